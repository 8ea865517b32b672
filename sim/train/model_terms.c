/* SPDX-License-Identifier: Apache-2.0
 * Parameter counts. Every tensor (or pair of like tensors) of every family is one row of the table
 * below: when it exists, in which layers, and its size as a formula over the dimensions. The
 * formulas are evaluated to count and printed to explain, so the two cannot differ. */
#include "train/model.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/model_parts.h"

/* ---- the dimensions by the names that formulas use ---- */

#define SIZE(name, field)                                                                          \
    {                                                                                              \
        name, offsetof(struct model, field), false                                                 \
    }
#define FLAG(field)                                                                                \
    {                                                                                              \
#field, offsetof(struct model, field), true                                                \
    }
static const struct {
    const char *name;
    size_t offset;
    bool flag;
} symbols[] = {
    SIZE("h", hidden),
    SIZE("V", vocab),
    SIZE("a", heads),
    SIZE("kv", kv_heads),
    SIZE("d", head_dim),
    SIZE("dv", v_head_dim),
    SIZE("dn", nope_head_dim),
    SIZE("dr", rope_head_dim),
    SIZE("f", ffn),
    SIZE("E", experts),
    SIZE("k", experts_per_token),
    SIZE("fe", expert_ffn),
    SIZE("fs", shared_ffn),
    SIZE("rq", q_lora_rank),
    SIZE("rkv", kv_lora_rank),
    SIZE("pos", positions),
    SIZE("buckets", position_buckets),
    SIZE("e", embed_dim),
    SIZE("norms", norms),
    FLAG(gated),
    FLAG(tied),
    FLAG(mla),
    FLAG(qkv_bias),
    FLAG(out_bias),
    FLAG(mlp_bias),
    FLAG(head_bias),
    FLAG(router_bias),
    FLAG(expert_bias),
    FLAG(norm_bias),
    FLAG(qk_norm),
    FLAG(qk_norm_full),
    FLAG(sinks),
    FLAG(shared_gate),
    FLAG(embed_norm),
    FLAG(final_norm),
};

/* ---- the table ---- */

enum scope {
    ONCE,      /* in the model */
    STACK,     /* once per stack: an encoder-decoder has two */
    LAYER,     /* in every layer */
    DENSE,     /* in layers with a dense MLP */
    MOE,       /* in layers with experts */
    CROSS,     /* in layers with cross-attention */
    MTP,       /* in every multi-token-prediction layer */
    MTP_BLOCK, /* the same: all that the last layer of the model holds */
};

static const struct row {
    enum model_part part;
    enum scope scope;
    const char *name;
    const char *when;   /* exists where this is above 0; "!x" is 1 where x is 0; NULL: always */
    const char *each;   /* parameters */
    const char *active; /* met by one token; NULL: all */
    bool replicated;
} rows[] = {
    {MODEL_EMBEDDING, ONCE, "token table", "!e", "V*h", NULL, false},
    {MODEL_EMBEDDING, ONCE, "token table", "e", "V*e", NULL, false},
    {MODEL_EMBEDDING, ONCE, "projections into and out of h", "e", "2*e*h", NULL, true},
    {MODEL_EMBEDDING, ONCE, "embedding norm", "embed_norm", "h", NULL, true},
    {MODEL_EMBEDDING, ONCE, "embedding norm bias", "embed_norm*norm_bias", "h", NULL, true},
    {MODEL_POSITIONS, ONCE, "learned positions", "pos", "pos*h", NULL, true},
    {MODEL_POSITIONS, STACK, "relative positions", "buckets", "buckets*a", NULL, false},

    {MODEL_ATTENTION, LAYER, "q projection", "!rq", "h*a*d", NULL, false},
    {MODEL_ATTENTION, LAYER, "q down projection", "rq", "h*rq", NULL, true},
    {MODEL_ATTENTION, LAYER, "q latent norm", "rq", "rq", NULL, true},
    {MODEL_ATTENTION, LAYER, "q up projection", "rq", "rq*a*d", NULL, false},
    {MODEL_ATTENTION, LAYER, "k projection", "!mla", "h*kv*d", NULL, false},
    {MODEL_ATTENTION, LAYER, "v projection", "!mla", "h*kv*dv", NULL, false},
    {MODEL_ATTENTION, LAYER, "kv down projection, rope key", "mla", "h*(rkv+dr)", NULL, true},
    {MODEL_ATTENTION, LAYER, "kv latent norm", "mla", "rkv", NULL, true},
    {MODEL_ATTENTION, LAYER, "kv up projection", "mla", "rkv*a*(dn+dv)", NULL, false},
    {MODEL_ATTENTION, LAYER, "output projection", NULL, "a*dv*h", NULL, false},
    {MODEL_ATTENTION, LAYER, "q, k, v biases", "qkv_bias", "a*d+kv*d+kv*dv", NULL, false},
    {MODEL_ATTENTION, LAYER, "output bias", "out_bias", "h", NULL, true},
    {MODEL_ATTENTION, LAYER, "q and k norms", "qk_norm", "2*d", NULL, true},
    {MODEL_ATTENTION, LAYER, "q and k norms", "qk_norm_full", "a*d+kv*d", NULL, false},
    {MODEL_ATTENTION, LAYER, "attention sinks", "sinks", "a", NULL, false},
    {MODEL_CROSS, CROSS, "cross-attention q, k, v, o", NULL, "2*h*a*d+2*h*kv*d", NULL, false},
    {MODEL_CROSS, CROSS, "cross-attention norm", NULL, "h", NULL, true},
    {MODEL_CROSS, CROSS, "cross-attention norm bias", "norm_bias", "h", NULL, true},

    {MODEL_MLP, DENSE, "gate", "gated", "h*f", NULL, false},
    {MODEL_MLP, DENSE, "up", NULL, "h*f", NULL, false},
    {MODEL_MLP, DENSE, "down", NULL, "f*h", NULL, false},
    {MODEL_MLP, DENSE, "gate bias", "mlp_bias*gated", "f", NULL, false},
    {MODEL_MLP, DENSE, "up bias", "mlp_bias", "f", NULL, false},
    {MODEL_MLP, DENSE, "down bias", "mlp_bias", "h", NULL, true},

    {MODEL_ROUTER, MOE, "router", NULL, "h*E", NULL, true},
    {MODEL_ROUTER, MOE, "router bias", "router_bias", "E", NULL, true},
    {MODEL_ROUTER, MOE, "gate of the shared expert", "shared_gate", "h", NULL, true},
    {MODEL_EXPERTS, MOE, "experts' gate", "gated", "E*h*fe", "k*h*fe", false},
    {MODEL_EXPERTS, MOE, "experts' up", NULL, "E*h*fe", "k*h*fe", false},
    {MODEL_EXPERTS, MOE, "experts' down", NULL, "E*fe*h", "k*fe*h", false},
    {MODEL_EXPERTS, MOE, "experts' gate bias", "expert_bias*gated", "E*fe", "k*fe", false},
    {MODEL_EXPERTS, MOE, "experts' up bias", "expert_bias", "E*fe", "k*fe", false},
    {MODEL_EXPERTS, MOE, "experts' down bias", "expert_bias", "E*h", "k*h", false},
    {MODEL_SHARED, MOE, "shared expert gate", "gated*fs", "h*fs", NULL, false},
    {MODEL_SHARED, MOE, "shared expert up", "fs", "h*fs", NULL, false},
    {MODEL_SHARED, MOE, "shared expert down", "fs", "fs*h", NULL, false},

    {MODEL_NORMS, LAYER, "norms", "norms", "norms*h", NULL, true},
    {MODEL_NORMS, LAYER, "norm biases", "norms*norm_bias", "norms*h", NULL, true},

    {MODEL_FINAL_NORM, STACK, "final norm", "final_norm", "h", NULL, true},
    {MODEL_FINAL_NORM, STACK, "final norm bias", "final_norm*norm_bias", "h", NULL, true},
    {MODEL_HEAD, ONCE, "output head", "!tied*!e", "V*h", NULL, false},
    {MODEL_HEAD, ONCE, "output head", "!tied*e", "V*e", NULL, false},
    {MODEL_HEAD, ONCE, "output head bias", "head_bias", "V", NULL, false},

    {MODEL_ATTENTION, MTP_BLOCK, "MTP: a layer like the last", NULL, NULL, NULL, false},
    {MODEL_ATTENTION, MTP, "MTP: projection and three norms", NULL, "2*h*h+3*h", NULL, false},
};

enum { NROWS = sizeof rows / sizeof *rows };

/* ---- formulas: sums of products of whole numbers, symbols and sums in brackets ---- */

struct eval {
    const struct model *model;
    const char *at;
    bool overflow;
};

static uint64_t symbol_value(const struct model *model, const char *name, size_t length)
{
    size_t i = 0;
    while (strlen(symbols[i].name) != length || strncmp(symbols[i].name, name, length) != 0) {
        i++; /* a formula with an unknown symbol cannot pass the tests, which evaluate all */
    }
    const char *field = (const char *)model + symbols[i].offset;
    return symbols[i].flag ? *(const bool *)field : *(const uint64_t *)(const void *)field;
}

static size_t word_length(const char *at)
{
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_') {
        length++;
    }
    return length;
}

static uint64_t sum(struct eval *e);

static uint64_t factor(struct eval *e)
{
    uint64_t value;
    if (*e->at == '!') {
        e->at++;
        return factor(e) == 0;
    }
    if (*e->at == '(') {
        e->at++;
        value = sum(e);
        e->at++; /* the closing bracket */
        return value;
    }
    size_t length = word_length(e->at);
    value = isdigit((unsigned char)*e->at) ? strtoull(e->at, NULL, 10)
                                           : symbol_value(e->model, e->at, length);
    e->at += length;
    return value;
}

static uint64_t product(struct eval *e)
{
    uint64_t value = factor(e);
    while (*e->at == '*') {
        e->at++;
        e->overflow |= __builtin_mul_overflow(value, factor(e), &value);
    }
    return value;
}

static uint64_t sum(struct eval *e)
{
    uint64_t value = product(e);
    while (*e->at == '+') {
        e->at++;
        e->overflow |= __builtin_add_overflow(value, product(e), &value);
    }
    return value;
}

/* Value of a formula; NULL is 1. *overflow is set, never cleared. */
static uint64_t evaluate(const struct model *model, const char *formula, bool *overflow)
{
    if (!formula) {
        return 1;
    }
    struct eval e = {model, formula, false};
    uint64_t value = sum(&e);
    *overflow |= e.overflow;
    return value;
}

/* The formula with numbers in the place of symbols. Freed by the caller. */
static char *with_numbers(const struct model *model, const char *formula)
{
    char *text = mem_strdup("");
    for (const char *at = formula; *at;) {
        size_t length = word_length(at);
        char *longer;
        if (length && !isdigit((unsigned char)*at)) {
            longer = mem_printf("%s%" PRIu64, text, symbol_value(model, at, length));
        } else {
            length = length ? length : 1;
            longer = mem_printf("%s%.*s", text, (int)length, at);
        }
        free(text);
        text = longer;
        at += length;
    }
    return text;
}

/* ---- counting ---- */

static bool in_kind(enum scope scope, const struct model_kind *kind)
{
    switch (scope) {
    case LAYER:
        return true;
    case DENSE:
        return !kind->moe;
    case MOE:
        return kind->moe;
    case CROSS:
        return kind->cross;
    default:
        return false;
    }
}

static uint64_t copies_of(const struct model *model, enum scope scope)
{
    switch (scope) {
    case ONCE:
        return 1;
    case STACK:
        return model->encoder_layers ? 2 : 1;
    case MTP:
    case MTP_BLOCK:
        return model->mtp_layers;
    default:
        break;
    }
    uint64_t copies = 0;
    for (size_t i = 0; i < model->nkinds; i++) {
        copies += in_kind(scope, &model->kinds[i]) ? model->kinds[i].copies : 0;
    }
    return copies;
}

/* Size of a row's tensor in this model, 0 where it does not exist. */
static uint64_t row_size(const struct model *model, const struct row *row, bool *overflow)
{
    if (row->scope == MTP_BLOCK) {
        return model_kind_params(model_layer(model, model->layers - 1));
    }
    bool ignored = false;
    if (row->when && evaluate(model, row->when, &ignored) == 0 && !ignored) {
        return 0;
    }
    return evaluate(model, row->each, overflow);
}

static uint64_t row_active(const struct model *model, const struct row *row, uint64_t size)
{
    bool ignored = false;
    return row->active && size ? evaluate(model, row->active, &ignored) : size;
}

static void count_kind(struct model *model, struct model_kind *kind, bool *overflow)
{
    for (size_t i = 0; i < NROWS; i++) {
        if (!in_kind(rows[i].scope, kind)) {
            continue;
        }
        enum model_part part = rows[i].part;
        uint64_t size = row_size(model, &rows[i], overflow);
        *overflow |= __builtin_add_overflow(kind->params[part], size, &kind->params[part]);
        kind->replicated[part] += rows[i].replicated ? size : 0;
        kind->active += row_active(model, &rows[i], size);
    }
}

/* *total += copies * each */
static void add_copies(uint64_t *total, uint64_t copies, uint64_t each, bool *overflow)
{
    uint64_t all = 0;
    *overflow |= __builtin_mul_overflow(copies, each, &all);
    *overflow |= __builtin_add_overflow(*total, all, total);
}

int model_count(struct model *model, struct err *err)
{
    bool overflow = false;
    for (size_t i = 0; i < model->nkinds; i++) {
        count_kind(model, &model->kinds[i], &overflow);
    }
    for (size_t i = 0; i < NROWS; i++) {
        uint64_t size = row_size(model, &rows[i], &overflow);
        uint64_t copies = copies_of(model, rows[i].scope);
        if (rows[i].scope == MTP || rows[i].scope == MTP_BLOCK) {
            add_copies(&model->mtp_params, copies, size, &overflow);
            continue;
        }
        add_copies(&model->params, copies, size, &overflow);
        add_copies(&model->active, copies, row_active(model, &rows[i], size), &overflow);
        if (rows[i].scope == ONCE || rows[i].scope == STACK) {
            add_copies(&model->once[rows[i].part], copies, size, &overflow);
        }
    }
    if (overflow || model->params > INT64_MAX || model->mtp_params > INT64_MAX) {
        return err_add(err, ERR_USAGE,
                       "%s: the dimensions give more than 2^63 parameters, which cannot be a model",
                       model->path   ? model->path
                       : model->name ? model->name
                                     : "model");
    }
    return 0;
}

uint64_t model_kind_params(const struct model_kind *kind)
{
    uint64_t params = 0;
    for (int i = 0; i < MODEL_PARTS; i++) {
        params += kind->params[i];
    }
    return params;
}

struct model_term *model_terms(const struct model *model, size_t *count)
{
    struct model_term *terms = mem_calloc(NROWS, sizeof *terms);
    size_t n = 0;
    for (size_t i = 0; i < NROWS; i++) {
        bool ignored = false, mtp = rows[i].scope == MTP || rows[i].scope == MTP_BLOCK;
        uint64_t copies = copies_of(model, rows[i].scope);
        uint64_t size = copies ? row_size(model, &rows[i], &ignored) : 0;
        if (size == 0) {
            continue;
        }
        const char *formula = rows[i].each ? rows[i].each : "all terms of that layer";
        terms[n++] = (struct model_term){
            .part = rows[i].part,
            .name = rows[i].name,
            .formula = formula,
            .numbers = rows[i].each ? with_numbers(model, formula) : mem_printf("%" PRIu64, size),
            .each = size,
            .copies = copies,
            .active = mtp ? 0 : row_active(model, &rows[i], size),
            .replicated = rows[i].replicated,
            .mtp = mtp,
        };
    }
    *count = n;
    return terms;
}

void model_terms_free(struct model_term *terms, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(terms[i].numbers);
    }
    free(terms);
}

const char *model_part_name(enum model_part part)
{
    static const char *const names[MODEL_PARTS] = {
        [MODEL_EMBEDDING] = "embedding",
        [MODEL_POSITIONS] = "positions",
        [MODEL_HEAD] = "head",
        [MODEL_FINAL_NORM] = "final norm",
        [MODEL_ATTENTION] = "attention",
        [MODEL_CROSS] = "cross-attention",
        [MODEL_MLP] = "MLP",
        [MODEL_ROUTER] = "router",
        [MODEL_EXPERTS] = "experts",
        [MODEL_SHARED] = "shared expert",
        [MODEL_NORMS] = "norms",
    };
    return names[part];
}
