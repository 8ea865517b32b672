/* SPDX-License-Identifier: Apache-2.0
 * Completing a model: what is left out gets its default, contradictions are refused, layers that
 * are alike become one kind, and everything is counted. */
#include "train/model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/model_parts.h"

void model_assume(struct model *model, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    model->assumed = mem_realloc(model->assumed, model->nassumed + 1, sizeof *model->assumed);
    model->assumed[model->nassumed++] = mem_vprintf(format, args);
    va_end(args);
}

uint64_t model_default_ffn(uint64_t hidden, bool gated)
{
    return gated ? hidden * 8 / 3 / 64 * 64 : 4 * hidden;
}

uint64_t model_padded_vocab(uint64_t vocab, uint64_t divisor, uint64_t tp)
{
    uint64_t multiple = divisor * tp;
    return (vocab + multiple - 1) / multiple * multiple;
}

static const char *title(const struct model *model)
{
    return model->path ? model->path : model->name ? model->name : "model";
}

/* Nearest numbers that divide `n`, below and above `near`; n itself if the next one above is more
 * than twice as large. */
static void nearest_divisors(uint64_t n, uint64_t near, uint64_t *below, uint64_t *above)
{
    *below = near < n ? near : n;
    while (*below > 1 && n % *below) {
        --*below;
    }
    *above = near;
    while (*above < n && n % *above) {
        *above = *above < 2 * near ? *above + 1 : n;
    }
}

static void fill_defaults(struct model *m)
{
    m->family = m->family ? m->family : "";
    m->kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    if (m->head_dim == 0 && m->heads && m->hidden % m->heads == 0) {
        m->head_dim = m->hidden / m->heads;
        if (m->head_dim % 8) {
            model_assume(m,
                         "head_dim is absent: hidden size / heads = %" PRIu64
                         ", not a multiple of 8: no fused attention kernel has it",
                         m->head_dim);
        }
    }
    m->v_head_dim = m->v_head_dim ? m->v_head_dim : m->head_dim;
    m->ffn = m->ffn ? m->ffn : model_default_ffn(m->hidden, m->gated);
}

static char *check_heads(const struct model *m)
{
    uint64_t below, above;
    nearest_divisors(m->hidden, m->heads, &below, &above);
    return mem_printf("hidden size %" PRIu64 " is not divisible by %" PRIu64
                      " heads and no head_dim is given; nearest numbers of heads: %" PRIu64
                      ", %" PRIu64,
                      m->hidden, m->heads, below, above);
}

static char *check_kv_heads(const struct model *m)
{
    uint64_t below, above;
    nearest_divisors(m->heads, m->kv_heads, &below, &above);
    return mem_printf("%" PRIu64 " heads cannot share %" PRIu64
                      " key and value heads: heads must be a multiple of them; nearest: %" PRIu64
                      ", %" PRIu64,
                      m->heads, m->kv_heads, below, above);
}

#define FAULT(field, text)                                                                         \
    faults[n++] = (struct model_fault)                                                             \
    {                                                                                              \
        offsetof(struct model, field), (text)                                                      \
    }

size_t model_check(struct model *m, struct model_fault faults[MODEL_FAULTS_MAX])
{
    size_t n = 0;
    fill_defaults(m);
    if (m->layers == 0 || m->hidden == 0 || m->vocab == 0 || m->heads == 0) {
        FAULT(hidden, mem_printf("layers (%" PRIu64 "), hidden size (%" PRIu64 "), heads (%" PRIu64
                                 ") and vocabulary (%" PRIu64 ") must be above 0",
                                 m->layers, m->hidden, m->heads, m->vocab));
        return n;
    }
    if (m->heads % m->kv_heads) {
        FAULT(kv_heads, check_kv_heads(m));
    }
    if (m->head_dim == 0) {
        FAULT(heads, check_heads(m));
    }
    if (m->experts && (m->experts_per_token == 0 || m->experts_per_token > m->experts)) {
        FAULT(experts_per_token, mem_printf("%" PRIu64 " experts per token of %" PRIu64
                                            " experts: must be in 1..%" PRIu64,
                                            m->experts_per_token, m->experts, m->experts));
    }
    if (m->experts && m->expert_ffn == 0) {
        FAULT(expert_ffn, mem_strdup("the width of an expert (moe_intermediate_size) is missing"));
    }
    if (m->dense_layers > m->layers) {
        FAULT(dense_layers, mem_printf("%" PRIu64 " dense layers in front of %" PRIu64 " layers",
                                       m->dense_layers, m->layers));
    }
    return n;
}

/* Groups layers that are alike. Kinds stand in the order in which they first appear. */
static void make_kinds(struct model *m, const struct model_spec *specs)
{
    size_t cap = 0;
    m->kind_of = mem_calloc(m->layers, sizeof *m->kind_of);
    for (uint64_t i = 0; i < m->layers; i++) {
        const struct model_spec *s = &specs[i];
        size_t k = 0;
        while (k < m->nkinds &&
               (m->kinds[k].window != s->window || m->kinds[k].moe != s->moe ||
                m->kinds[k].causal != s->causal || m->kinds[k].cross != s->cross)) {
            k++;
        }
        if (k == m->nkinds) {
            MEM_GROW(m->kinds, m->nkinds, cap);
            m->kinds[m->nkinds++] = (struct model_kind){
                .window = s->window, .moe = s->moe, .causal = s->causal, .cross = s->cross};
        }
        m->kinds[k].copies++;
        m->kind_of[i] = (uint32_t)k;
    }
}

int model_finish(struct model *m, const struct model_spec *specs, struct err *err)
{
    struct model_fault faults[MODEL_FAULTS_MAX];
    size_t n = model_check(m, faults);
    for (size_t i = 0; i < n; i++) {
        err_add(err, ERR_USAGE, "%s: %s", title(m), faults[i].sentence);
        free(faults[i].sentence);
    }
    if (n) {
        return -1;
    }
    make_kinds(m, specs);
    return model_count(m, err);
}

int model_build(struct model *m, struct err *err)
{
    if (m->layers > MODEL_LAYERS_MAX) {
        return err_add(err, ERR_USAGE, "%s: %" PRIu64 " layers, the most is %d", title(m),
                       m->layers, MODEL_LAYERS_MAX);
    }
    m->norms = m->norms ? m->norms : 2;
    m->final_norm = true;
    struct model_spec *specs = mem_calloc(m->layers, sizeof *specs);
    for (uint64_t i = 0; i < m->layers; i++) {
        specs[i] = (struct model_spec){
            .window = m->window, .moe = m->experts > 0 && i >= m->dense_layers, .causal = true};
    }
    int result = model_finish(m, specs, err);
    free(specs);
    return result;
}

void model_release(struct model *model)
{
    free(model->name);
    free(model->path);
    free(model->kinds);
    free(model->kind_of);
    for (size_t i = 0; i < model->nassumed; i++) {
        free(model->assumed[i]);
    }
    free(model->assumed);
    *model = (struct model){0};
}
