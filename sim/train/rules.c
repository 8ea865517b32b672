/* SPDX-License-Identifier: Apache-2.0
 * One function per rule and one table of them. A rule that is broken says what it demands, both
 * numbers, and the nearest legal values. Sources are in the table. */
#include "train/rules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/pipeline.h"

_Static_assert((int)SCHED_DUALPIPEV == (int)PIPELINE_DUALPIPEV &&
                   (int)NSCHEDULES == (int)NPIPELINES,
               "schedules are numbered as pipelines are");

struct check {
    struct rules_report *report;
    const char *rule; /* name of the one being checked */
    const struct strategy *s;
    const struct framework *f;
    const struct model *m;
    const struct topo *t;
};

static void add(const struct check *c, bool warning, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void add(const struct check *c, bool warning, const char *format, va_list args)
{
    struct rules_report *r = c->report;
    MEM_GROW(r->findings, r->count, r->cap);
    r->findings[r->count++] =
        (struct finding){.rule = c->rule, .warning = warning, .text = mem_vprintf(format, args)};
    if (warning)
        r->warnings++;
    else
        r->errors++;
}

static void refuse(const struct check *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void refuse(const struct check *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(c, false, format, args);
    va_end(args);
}

static void warn(const struct check *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void warn(const struct check *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(c, true, format, args);
    va_end(args);
}

/* ---- legal values ---- */

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Product, or UINT64_MAX where it does not fit. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* "60 or 80": the multiples of `unit` beside `value`, the lower one only if it is not 0. Freed by
 * the caller. */
static char *nearest_multiples(uint64_t value, uint64_t unit)
{
    uint64_t below = value / unit * unit;
    if (below == 0 || below > UINT64_MAX - unit)
        return mem_printf("%" PRIu64, below ? below : unit);
    return mem_printf("%" PRIu64 " or %" PRIu64, below, below + unit);
}

/* "1, 2, 4, 7, 14, 28": the divisors of n; of more than twelve only those next to `value`, three
 * on each side. Of numbers beyond 2^40, which no cluster has, they are not listed. n >= 1. Freed by
 * the caller. */
static char *divisors(uint64_t n, uint64_t value)
{
    if (n > (uint64_t)1 << 40) return mem_printf("the divisors of %" PRIu64, n);
    uint64_t *list = NULL;
    size_t count = 0, cap = 0, above = 0;
    for (uint64_t d = 1; d <= n / d; d++)
        if (n % d == 0)
            for (int pair = 0; pair < (d == n / d ? 1 : 2); pair++) {
                MEM_GROW(list, count, cap);
                size_t at = count++;
                uint64_t item = pair ? n / d : d;
                for (; at > 0 && list[at - 1] > item; at--)
                    list[at] = list[at - 1];
                list[at] = item;
            }
    while (above < count && list[above] <= value)
        above++;
    size_t from = count > 12 && above > 3 ? above - 3 : 0;
    size_t to = count > 12 && above + 3 < count ? above + 3 : count;
    char *text = mem_strdup(from ? "..., " : "");
    for (size_t i = from; i < to; i++) {
        char *longer = mem_printf("%s%" PRIu64 "%s", text, list[i],
                                  i + 1 < to   ? ", "
                                  : to < count ? ", ..."
                                               : "");
        free(text);
        text = longer;
    }
    free(list);
    return text;
}

/* "6,8,8,8": every chunk holds ceil(layers / chunks), the first what remains; evenly where nothing
 * would remain. Of more than 1024 chunks only the first and last few are written out. Freed by the
 * caller. */
static char *uneven_proposal(uint64_t layers, uint64_t chunks)
{
    uint64_t c = (layers + chunks - 1) / chunks;
    bool first_short = layers > (chunks - 1) * c;
    uint64_t fuller = layers % chunks;
    char *text = mem_strdup("");
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t here =
            first_short ? i ? c : layers - (chunks - 1) * c : layers / chunks + (i < fuller);
        bool gap = chunks > 1024 && i == 8;
        char *longer = gap ? mem_printf("%s...,", text)
                           : mem_printf("%s%" PRIu64 "%s", text, here, i + 1 < chunks ? "," : "");
        free(text);
        text = longer;
        if (gap) i = chunks - 9;
    }
    return text;
}

/* ---- the grid of ranks ---- */

static void world_size(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t parts = times(times(s->tp, s->pp), s->cp), all = times(parts, s->dp);
    if (all == s->gpus) return;
    char *fit = divisors(s->gpus, parts), *near = nearest_multiples(s->gpus, parts);
    if (s->dp_given && s->gpus % parts == 0)
        refuse(c,
               "tp %" PRIu64 " x cp %" PRIu64 " x pp %" PRIu64 " x dp %" PRIu64 " = %" PRIu64
               " ranks, but there are %" PRIu64 " GPUs; dp %" PRIu64 " would use them all",
               s->tp, s->cp, s->pp, s->dp, all, s->gpus, s->gpus / parts);
    else
        refuse(c,
               "%" PRIu64 " GPUs are not a multiple of tp %" PRIu64 " x cp %" PRIu64
               " x pp %" PRIu64 " = %" PRIu64 "; nearest: %s GPUs; products that divide %" PRIu64
               ": %s",
               s->gpus, s->tp, s->cp, s->pp, parts, near, s->gpus, fit);
    free(fit);
    free(near);
}

static void expert_mesh(const struct check *c)
{
    const struct strategy *s = c->s;
    if (c->f->experts != EP_EXPERT_MESH || (s->ep == 1 && s->etp == 1)) return;
    uint64_t parts = times(times(s->etp, s->ep), s->pp);
    if (s->gpus % parts == 0) return;
    char *near = nearest_multiples(s->gpus, parts), *fit = divisors(s->gpus, parts);
    refuse(c,
           "%" PRIu64 " GPUs are not a multiple of the expert mesh etp %" PRIu64 " x ep %" PRIu64
           " x pp %" PRIu64 " = %" PRIu64 "; nearest: %s GPUs; products that divide %" PRIu64
           ": %s",
           s->gpus, s->etp, s->ep, s->pp, parts, near, s->gpus, fit);
    free(near);
    free(fit);
}

static void tensor_domain(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t domain = topo_domain(c->t), span = times(strategy_stride(s, AXIS_TP), s->tp);
    if (s->tp == 1 || span <= domain) return;
    warn(c,
         "tp %" PRIu64 " spans %" PRIu64 " ranks but a scale-up domain has %" PRIu64
         ": tensor parallelism crosses the network; tp up to %" PRIu64 " placed first stays inside",
         s->tp, span, domain, domain);
}

/* ---- heads and widths ---- */

static void heads_tensor(const struct check *c)
{
    if (c->m->heads % c->s->tp == 0) return;
    char *legal = divisors(c->m->heads, c->s->tp);
    refuse(c, "%" PRIu64 " heads do not divide by tp %" PRIu64 "; legal tp: %s", c->m->heads,
           c->s->tp, legal);
    free(legal);
}

static void kv_tensor(const struct check *c)
{
    uint64_t kv = c->m->kv_heads, tp = c->s->tp;
    if (kv == 0 || kv % tp == 0 || kv == c->m->heads || c->m->mla) return;
    if (c->f->kv == KV_REPLICATE && tp % kv == 0) {
        warn(c,
             "%" PRIu64 " key/value heads are fewer than tp %" PRIu64 ": each is held %" PRIu64
             " times",
             kv, tp, tp / kv);
        return;
    }
    char *legal = divisors(kv, tp);
    refuse(c, "%" PRIu64 " key/value heads do not divide by tp %" PRIu64 "; legal tp: %s%s", kv, tp,
           legal, c->f->kv == KV_REPLICATE ? ", and multiples of their number, with copies" : "");
    free(legal);
}

static void ulysses_heads(const struct check *c)
{
    uint64_t degree = times(c->s->cp, c->s->tp), kv = c->m->kv_heads;
    if (!c->s->ulysses) return;
    if (c->m->heads % degree) {
        char *legal = divisors(c->m->heads / gcd(c->m->heads, c->s->tp), c->s->cp);
        refuse(c,
               "%" PRIu64 " heads do not divide by ulysses %" PRIu64 " x tp %" PRIu64
               "; legal ulysses: %s",
               c->m->heads, c->s->cp, c->s->tp, legal);
        free(legal);
    } else if (kv && kv % degree && degree % kv) {
        char *legal = divisors(kv, c->s->cp);
        refuse(c,
               "%" PRIu64 " key/value heads and ulysses %" PRIu64 " x tp %" PRIu64
               ": neither divides the other; legal products: %s, and multiples of %" PRIu64,
               kv, c->s->cp, c->s->tp, legal, kv);
        free(legal);
    } else if (kv && degree > kv && c->s->tp <= kv) {
        warn(c,
             "%" PRIu64 " key/value heads are fewer than ulysses %" PRIu64 " x tp %" PRIu64
             ": each is repeated %" PRIu64 " times",
             kv, c->s->cp, c->s->tp, degree / kv);
    }
}

static void head_width(const struct check *c)
{
    if (c->m->head_dim % 8)
        warn(c,
             "a head of %" PRIu64 " is no multiple of 8: no fused attention kernel takes it; "
             "nearest: %" PRIu64 " or %" PRIu64,
             c->m->head_dim, c->m->head_dim / 8 * 8, (c->m->head_dim / 8 + 1) * 8);
}

static void mlp_width(const struct check *c)
{
    const struct {
        const char *what, *axis;
        uint64_t width, ranks;
    } widths[] = {{"MLP width", "tp", c->m->ffn, c->s->tp},
                  {"expert width", "etp", c->m->expert_ffn, c->s->etp},
                  {"shared expert width", "tp", c->m->shared_ffn, c->s->tp}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (widths[i].width == 0 || widths[i].width % widths[i].ranks == 0) continue;
        char *legal = divisors(widths[i].width, widths[i].ranks);
        refuse(c, "%s %" PRIu64 " does not divide by %s %" PRIu64 "; legal: %s", widths[i].what,
               widths[i].width, widths[i].axis, widths[i].ranks, legal);
        free(legal);
    }
}

static void vocabulary(const struct check *c)
{
    if (c->f->vocab_multiple == 0 && c->m->vocab % c->s->tp)
        warn(c,
             "%" PRIu64 " tokens of vocabulary do not divide by tp %" PRIu64
             " and are not padded: ranks hold unequal parts; --feature vocab-multiple=1 pads to "
             "%" PRIu64,
             c->m->vocab, c->s->tp, model_padded_vocab(c->m->vocab, 1, c->s->tp));
}

/* ---- the sequence ---- */

static void sequence_parts(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t cut = s->ulysses || s->cp == 1 ? s->cp : times(2, s->cp);
    if (s->sp) cut = times(s->cp, s->ulysses || s->cp == 1 ? s->tp : s->tp % 2 ? 2 * s->tp : s->tp);
    if (s->seq % cut == 0) return;
    const char *rule = s->sp && s->cp > 1 ? "cp x lcm(2, tp)"
                       : s->sp            ? "tp"
                       : s->ulysses       ? "ulysses"
                                          : "2 x cp";
    if (s->sp && s->ulysses) rule = "ulysses x tp";
    char *near = nearest_multiples(s->seq, cut);
    refuse(c,
           "a sequence of %" PRIu64 " tokens does not divide by %s = %" PRIu64 " (%s %" PRIu64
           ", tp %" PRIu64 "%s): %" PRIu64 " would be lost; nearest: %s",
           s->seq, rule, cut, s->ulysses ? "ulysses" : "cp", s->cp, s->tp,
           s->sp ? " with sequence parallelism" : "", s->seq % cut, near);
    free(near);
}

static void sequence_parallel(const struct check *c)
{
    const struct strategy *s = c->s;
    if (s->sp_asked && s->tp == 1)
        warn(c, "sequence parallelism works beside tp; with tp 1 it is off");
    if (c->f->moe_needs_sp && c->m->experts && s->tp > 1 && !s->sp)
        refuse(c,
               "a mixture of experts with tp %" PRIu64
               " needs sequence parallelism, it is off; add "
               "sp, or tp 1",
               s->tp);
    if (c->f->tp_overlap && s->tp > 1 && !s->sp)
        refuse(c,
               "overlap of tensor-parallel communication with tp %" PRIu64
               " needs sequence parallelism, it is off; add sp, or --feature tp-overlap=off",
               s->tp);
}

static void positions(const struct check *c)
{
    if (c->m->positions && c->s->seq > c->m->positions)
        refuse(c,
               "a sequence of %" PRIu64 " tokens is longer than the model's %" PRIu64
               " learned positions; --seq up to %" PRIu64,
               c->s->seq, c->m->positions, c->m->positions);
    else if (c->m->max_positions && c->s->seq > c->m->max_positions)
        warn(c,
             "a sequence of %" PRIu64 " tokens is longer than the %" PRIu64
             " that the model's config names; computed positions can be stretched",
             c->s->seq, c->m->max_positions);
}

/* ---- the batch ---- */

static void global_batch(const struct check *c)
{
    const struct strategy *s = c->s;
    bool remainder = c->f->batch_remainder;
    uint64_t unit = remainder ? s->dp : times(s->micro_batch, s->dp);
    uint64_t rest = times(times(s->tp, s->pp), s->cp);
    if (s->global_batch % unit == 0) return;
    if (rest && s->gpus % rest) return; /* there is no such dp: world_size says it */
    char *near = nearest_multiples(s->global_batch, unit);
    if (remainder)
        refuse(c,
               "a global batch of %" PRIu64 " sequences does not divide by dp %" PRIu64
               "; nearest: %s",
               s->global_batch, s->dp, near);
    else
        refuse(c,
               "a global batch of %" PRIu64 " sequences does not divide by micro-batch %" PRIu64
               " x dp %" PRIu64 " = %" PRIu64 "; nearest: %s",
               s->global_batch, s->micro_batch, s->dp, unit, near);
    free(near);
}

static void batch_triangle(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t product = times(times(s->micro_batch, s->accumulation), s->dp);
    if (s->accumulation == 0 || product == s->global_batch) return;
    bool alone = s->gpus == 1 && c->t->full_host > 1;
    uint64_t per = times(s->micro_batch, s->dp);
    char *other = s->global_batch % per
                      ? mem_strdup("")
                      : mem_printf(", or accumulation %" PRIu64, s->global_batch / per);
    refuse(c,
           "global batch %" PRIu64 " is not micro-batch %" PRIu64 " x accumulation %" PRIu64
           " x dp %" PRIu64 " = %" PRIu64 "; nearest: global batch %" PRIu64 "%s%s",
           s->global_batch, s->micro_batch, s->accumulation, s->dp, product, product, other,
           alone ? "; there is one rank on a host of several accelerators: was a launcher used?"
                 : "");
    free(other);
}

/* ---- layers ---- */

static bool ends_given(const struct strategy *s)
{
    return s->layout_args.first || s->layout_args.last;
}

static void layers_even(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t chunks = times(s->pp, s->vpp), layers = c->m->layers;
    uint64_t extra = (uint64_t)s->layout_args.embedding + s->layout_args.loss;
    bool listed = s->layers_given || ends_given(s) || s->layers_per_chunk;
    if (chunks == 1 || listed) return;
    if (layers + extra < chunks) {
        refuse(c,
               "%" PRIu64 " layers are fewer than pp %" PRIu64 " x vpp %" PRIu64 " = %" PRIu64
               " chunks; at most %" PRIu64,
               layers, s->pp, s->vpp, chunks, layers + extra);
        return;
    }
    if ((layers + extra) % chunks == 0 || c->f->uneven == UNEVEN_SHARE) return;
    char *legal = divisors(layers + extra, chunks), *uneven = uneven_proposal(layers, chunks);
    refuse(c,
           "%" PRIu64 " layers%s do not divide by pp %" PRIu64 " x vpp %" PRIu64 " = %" PRIu64
           ": %" PRIu64 " would be built; legal pp x vpp: %s; uneven proposal: --layers %s%s",
           layers, extra ? " with embedding and loss counted as told" : "", s->pp, s->vpp, chunks,
           (layers + extra) / chunks * chunks - extra, legal, uneven,
           extra == 0 && (layers + 2) % chunks == 0 ? ", or --split embedding,loss" : "");
    free(legal);
    free(uneven);
}

static void layers_per_chunk(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t per = s->layers_per_chunk, layers = c->m->layers, unit = times(per, s->pp);
    if (per == 0) return;
    if (layers % unit) {
        char *legal = layers % s->pp == 0 ? divisors(layers / s->pp, per)
                                          : mem_printf("none, pp must divide %" PRIu64, layers);
        char *uneven = uneven_proposal(layers, s->pp);
        refuse(c,
               "%" PRIu64 " layers do not divide by pp %" PRIu64 " x %" PRIu64
               " layers per chunk = %" PRIu64 ": %" PRIu64
               " would be built; legal layers per chunk: %s; uneven proposal without chunks: "
               "--layers %s",
               layers, s->pp, per, unit, layers / s->pp / per * per * s->pp, legal, uneven);
        free(legal);
        free(uneven);
    } else if (times(unit, s->vpp) != layers) {
        refuse(c,
               "pp %" PRIu64 " x vpp %" PRIu64 " x %" PRIu64 " layers per chunk = %" PRIu64
               ", the model has %" PRIu64 " layers; vpp %" PRIu64 " fits",
               s->pp, s->vpp, per, times(unit, s->vpp), layers, layers / unit);
    }
}

static void layers_list(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t chunks = times(s->pp, s->vpp), sum = 0;
    size_t empty = s->nlayout;
    for (size_t i = 0; i < s->nlayout; i++) {
        sum += s->layout[i];
        if (s->layout[i] == 0 && empty == s->nlayout) empty = i;
    }
    if (!s->layers_given) return;
    if (empty < s->nlayout)
        warn(c, "--layers: chunk %zu of %zu holds no layer: its ranks only pass on what they get",
             empty + 1, s->nlayout);
    if (s->nlayout != chunks)
        refuse(c, "--layers lists %zu chunks, pp %" PRIu64 " x vpp %" PRIu64 " = %" PRIu64,
               s->nlayout, s->pp, s->vpp, chunks);
    if (sum == c->m->layers) return;
    char *uneven = uneven_proposal(c->m->layers, chunks);
    refuse(c, "--layers adds up to %" PRIu64 ", the model has %" PRIu64 " layers; for instance %s",
           sum, c->m->layers, uneven);
    free(uneven);
}

/* "4 or 11 in first and last stage": the numbers beside `ends`, of at least `least`, that leave a
 * multiple of `between`, and not 0, of the layers. Freed by the caller. */
static char *nearest_ends(uint64_t layers, uint64_t between, uint64_t least, uint64_t ends)
{
    if (layers < between || layers - between < least)
        return mem_printf("fewer stages: %" PRIu64 " layers are not enough", layers);
    uint64_t top = layers - between;
    uint64_t steps = ends < top ? (top - ends + between - 1) / between : 0;
    while (top - least < steps * between)
        steps--;
    uint64_t below = top - steps * between;
    if (steps == 0 || below > ends) return mem_printf("%" PRIu64 " in first and last stage", below);
    return mem_printf("%" PRIu64 " or %" PRIu64 " in first and last stage", below, below + between);
}

static void stage_ends(const struct check *c)
{
    const struct strategy *s = c->s;
    const struct layout_args *a = &s->layout_args;
    uint64_t ends = a->first + a->last, given = (uint64_t)(a->first != 0) + (a->last != 0);
    if (!ends_given(s)) return;
    if (s->pp <= given) {
        if (ends != c->m->layers)
            refuse(c,
                   "pp %" PRIu64 " has no stage beside those of %" PRIu64 " layers that are given: "
                   "%" PRIu64 " would be built, the model has %" PRIu64
                   "; leave the option out, or "
                   "pp %" PRIu64 " and more",
                   s->pp, ends, ends, c->m->layers, given + 1);
        return;
    }
    uint64_t between = times(s->pp - given, s->vpp);
    uint64_t rest = c->m->layers > ends ? c->m->layers - ends : 0, over = rest % between;
    if (rest == 0 || over) {
        char *legal = c->m->layers % s->vpp
                          ? mem_printf("none, vpp %" PRIu64 " does not divide the layers", s->vpp)
                          : nearest_ends(c->m->layers, between, times(given, s->vpp), ends);
        refuse(c,
               "%" PRIu64 " layers less the %" PRIu64 " of first and last stage leave %" PRIu64
               " for %" PRIu64 " chunks between, they do not divide: %" PRIu64
               " would be built; nearest: %s",
               c->m->layers, ends, rest, between, ends + rest - over, legal);
        free(legal);
    }
    if (a->first % s->vpp || a->last % s->vpp)
        refuse(c,
               "first and last stage of %" PRIu64 " and %" PRIu64
               " layers do not divide into vpp %" PRIu64 " chunks; multiples of %" PRIu64 " do",
               a->first, a->last, s->vpp, s->vpp);
}

/* ---- the pipeline ---- */

static bool two_ways(const struct strategy *s)
{
    return s->schedule == SCHED_DUALPIPE || s->schedule == SCHED_DUALPIPEV;
}

/* What the schedule itself asks, in its own words. Of those of one way, interleaving and
 * micro_batches say it in terms of the framework. */
/* It is simulated all the same. */
static void foreign_schedule(const struct check *c)
{
    const struct strategy *s = c->s;
    bool zero_bubble = s->schedule > SCHED_INTERLEAVED, two_p = s->schedule == SCHED_ZB_2P;
    enum schedules needs = two_p ? SCHEDULES_ALL : SCHEDULES_ZERO_BUBBLE;
    if (s->pp > 1 && zero_bubble && c->f->schedules < needs)
        warn(c, "framework %s has no schedule %s: it is simulated as if it had", c->f->name,
             schedule_name(s->schedule));
}

static void two_way_schedule(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t most = UINT32_MAX;
    foreign_schedule(c);
    if (!two_ways(s)) return;
    struct pipeline_shape shape = {
        .id = (enum pipeline_id)s->schedule,
        .ranks = (uint32_t)(s->pp < most ? s->pp : most),
        .chunks = (uint32_t)(s->vpp < most ? s->vpp : most),
        .micro = (uint32_t)(s->micro_batches < most ? s->micro_batches : most)};
    struct err err = ERR_INIT;
    if (pipeline_legal(&shape, &err)) {
        char *save = NULL;
        for (char *line = strtok_r(err.text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            refuse(c, "%s", line);
    }
    err_release(&err);
}

static void interleaving(const struct check *c)
{
    const struct strategy *s = c->s;
    bool interleaved = s->schedule == SCHED_INTERLEAVED;
    if (interleaved && s->vpp == 1)
        refuse(c, "schedule interleaved needs vpp above 1, it is 1; nearest: vpp 2, or 1f1b");
    if (two_ways(s)) return; /* pipeline_legal says it */
    if (!interleaved && s->vpp > 1)
        refuse(c, "schedule %s has one chunk per stage, vpp is %" PRIu64 "; vpp 1, or interleaved",
               schedule_name(s->schedule), s->vpp);
    if (s->vpp == 1) return;
    uint64_t least = c->f->p2p_overlap ? 2 : 3;
    if (s->pp < least)
        refuse(c,
               "interleaving (vpp %" PRIu64 ") needs pp %" PRIu64 " or more %s, pp is %" PRIu64
               "; nearest: pp %" PRIu64 ", or vpp 1%s",
               s->vpp, least,
               least == 2 ? "when messages between stages overlap"
                          : "when messages between stages do not overlap",
               s->pp, least, least == 3 && s->pp == 2 ? ", or --feature p2p-overlap=on" : "");
}

/* Megatron: the chunks take turns in groups of pp micro-batches. */
static void micro_groups(const struct check *c, uint64_t m)
{
    const struct strategy *s = c->s;
    if (s->vpp == 1 || m % s->pp == 0) return;
    uint64_t unit = times(times(s->micro_batch, s->dp), s->pp);
    char *near = nearest_multiples(m, s->pp), *batch = nearest_multiples(s->global_batch, unit);
    refuse(c,
           "the interleaved schedule needs a multiple of pp %" PRIu64 " micro-batches%s, there are "
           "%" PRIu64 "; nearest: %s micro-batches (global batch %s)",
           s->pp, m < s->pp ? " (a group holds at least pp and at most all)" : "", m, near, batch);
    free(near);
    free(batch);
}

/* PyTorch: a schedule of one chunk per stage needs pp micro-batches; others run in rounds. */
static void micro_rounds(const struct check *c, uint64_t m)
{
    const struct strategy *s = c->s;
    uint64_t per = times(s->micro_batch, s->dp), rounds = m / s->pp ? m / s->pp : 1;
    if (s->vpp == 1 && m < s->pp)
        refuse(c,
               "schedule %s needs at least pp %" PRIu64 " micro-batches, there are %" PRIu64
               "; nearest: %" PRIu64 " (global batch %" PRIu64 ")",
               schedule_name(s->schedule), s->pp, m, s->pp, times(per, s->pp));
    if (s->vpp > 1 && m % rounds) {
        char *near = nearest_multiples(m, rounds);
        refuse(c,
               "%" PRIu64 " micro-batches do not divide into max(1, m / pp) = %" PRIu64
               " rounds (pp %" PRIu64 "); nearest: %s",
               m, rounds, s->pp, near);
        free(near);
    }
}

static void micro_batches(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t m = s->micro_batches;
    if (s->pp == 1) return;
    size_t before = c->report->errors;
    if (c->f->micro == MICRO_GROUPS)
        micro_groups(c, m);
    else
        micro_rounds(c, m);
    if (m < s->pp && c->report->errors == before)
        warn(c,
             "%" PRIu64 " micro-batches for %" PRIu64 " stages: %" PRIu64 "/%" PRIu64
             " of the pipeline is idle; %" PRIu64 " micro-batches would leave %" PRIu64 "/%" PRIu64
             " idle",
             m, s->pp, s->pp - 1, m + s->pp - 1, 4 * s->pp, s->pp - 1, 5 * s->pp - 1);
}

/* ---- experts and sharding ---- */

static void experts(const struct check *c)
{
    const struct strategy *s = c->s;
    if (c->m->experts == 0 && (s->ep > 1 || s->etp > 1)) {
        refuse(c, "%s %" PRIu64 " needs experts, the model has 0; nearest: 1",
               s->ep > 1 ? "ep" : "etp", s->ep > 1 ? s->ep : s->etp);
        return;
    }
    if (c->m->experts && c->m->experts % s->ep) {
        char *legal = divisors(c->m->experts, s->ep);
        refuse(c, "%" PRIu64 " experts do not divide by ep %" PRIu64 "; legal ep: %s",
               c->m->experts, s->ep, legal);
        free(legal);
    }
    if (c->f->experts == EP_EXPERT_MESH && s->ep > 1 && s->precision->needs == PEAK_FP16)
        refuse(c, "ep %" PRIu64 " does not run in fp16; nearest: bf16, or ep 1", s->ep);
}

static void experts_in_data(const struct check *c)
{
    const struct strategy *s = c->s;
    if (c->f->experts != EP_IN_DATA || c->m->experts == 0) return;
    uint64_t ranks = times(s->shards, s->tp);
    if (ranks % s->ep) {
        char *legal = divisors(ranks, s->ep);
        refuse(c,
               "ep %" PRIu64 " does not divide dp shards x cp %" PRIu64 " x tp %" PRIu64
               " = %" PRIu64 "; legal ep: %s",
               s->ep, s->shards, s->tp, ranks, legal);
        free(legal);
    }
    if (s->tp > 1 && s->ep < s->tp)
        refuse(c,
               "a mixture of experts with tp %" PRIu64 " needs ep of at least tp, it is %" PRIu64
               "; nearest: ep %" PRIu64,
               s->tp, s->ep, s->tp);
}

static void expert_load(const struct check *c)
{
    const struct strategy *s = c->s;
    bool uneven = s->moe_imbalance > 1;
    if (c->m->experts == 0) return; /* no_effect says it */
    if (uneven && s->moe_imbalance > (double)s->ep)
        refuse(c,
               "moe-imbalance %g: the busiest of ep %" PRIu64 " ranks has at most %" PRIu64
               " times the mean; nearest: %" PRIu64,
               s->moe_imbalance, s->ep, s->ep, s->ep);
    if (s->moe_capacity > 0 && s->moe_capacity < 1)
        warn(c, "moe-capacity %g drops at least %.0f %% of all tokens even if experts are balanced",
             s->moe_capacity, 100 * (1 - s->moe_capacity));
}

/* Bytes below which a bucket was meant in another unit. */
static const double least_bucket = 4096;

/* Options that change nothing in this job. */
static void no_effect(const struct check *c)
{
    const struct strategy *s = c->s;
    const struct framework *f = c->f;
    static const char experts[] = "the model has no experts";
    const struct {
        bool asked, idle;
        const char *what, *why;
    } options[] = {
        {s->asked & ASKED_PREFETCH, s->zero != ZERO_3, "prefetch",
         "only fsdp and zero3 gather weights ahead"},
        {s->asked & ASKED_CP_COMM, s->cp == 1, "cp-comm", "cp is 1"},
        {s->asked & ASKED_TP_TILES, !f->tp_overlap || !s->sp, "tp-tiles",
         "tp-overlap is off, or there is no sequence parallelism"},
        {s->asked & ASKED_BUCKET, times(s->dp, s->cp) == 1 || !f->dp_overlap, "bucket-size",
         "no gradients are reduced beside a backward pass"},
        {s->asked & ASKED_SCHEDULE, s->pp == 1 && s->schedule != SCHED_1F1B, "schedule",
         "there is no pipeline, pp is 1"},
        {s->recompute == RC_SELECTIVE && (s->rc_modules & RCM_MLA_UP), !c->m->mla,
         "recompute mla_up", "the model has no latent attention"},
        {s->moe_imbalance > 1, c->m->experts == 0, "moe-imbalance", experts},
        {s->moe_capacity > 0, c->m->experts == 0, "moe-capacity", experts},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (options[i].asked && options[i].idle)
            warn(c, "%s has no effect: %s", options[i].what, options[i].why);
    }
    if ((s->asked & ASKED_BUCKET) && f->bucket_bytes > 0 && f->bucket_bytes < least_bucket)
        warn(c, "a bucket-size of %g bytes: each tensor is a bucket of its own; as MiB: %gM",
             f->bucket_bytes, f->bucket_bytes);
}

static void packed_documents(const struct check *c)
{
    if (c->s->packed > c->s->seq)
        refuse(c,
               "documents of %" PRIu64 " tokens on average do not fit a sequence of %" PRIu64
               " tokens; --packed up to %" PRIu64,
               c->s->packed, c->s->seq, c->s->seq);
}

static void fsdp_alone(const struct check *c)
{
    const struct strategy *s = c->s;
    const char *zero = s->fsdp ? "fsdp" : "zero3";
    if (!c->f->fsdp_alone || s->zero != ZERO_3) return;
    if (s->pp > 1)
        refuse(c, "%s does not go with a pipeline here, pp is %" PRIu64 "; nearest: pp 1, or zero1",
               zero, s->pp);
    if (s->ep > 1)
        refuse(c,
               "%s does not go with expert parallelism here, ep is %" PRIu64
               "; nearest: ep 1, or zero1",
               zero, s->ep);
}

static void zero_level(const struct check *c)
{
    const struct strategy *s = c->s;
    const struct framework *f = c->f;
    if (s->zero > f->most_zero)
        refuse(c, "zero%d is more than framework %s has; nearest: zero%d", (int)s->zero, f->name,
               (int)f->most_zero);
    else if (s->pp > 1 && s->zero > f->zero_with_pp)
        refuse(c,
               "zero%d does not go with a pipeline in framework %s, pp is %" PRIu64
               "; nearest: zero%d, or pp 1",
               (int)s->zero, f->name, s->pp, (int)f->zero_with_pp);
}

static void fsdp_groups(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t ranks = times(s->dp, s->cp);
    if (s->shards == 0 || ranks % s->shards == 0) return;
    char *legal = divisors(s->dp, s->shards / s->cp);
    refuse(c, "dp %" PRIu64 " does not divide into groups of %" PRIu64 " shards; legal: %s", s->dp,
           s->shards / s->cp, legal);
    free(legal);
}

static void precision_unit(const struct check *c)
{
    const struct precision_row *p = c->s->precision;
    if (c->t->accel.peak_TF[p->needs] > 0) return;
    char *legal = mem_strdup("");
    for (const struct precision_row *row = precision_table; row->name; row++) {
        if (!(c->t->accel.peak_TF[row->needs] > 0)) continue;
        char *longer = mem_printf("%s%s%s", legal, *legal ? ", " : "", row->name);
        free(legal);
        legal = longer;
    }
    const char *unit = peak_name(p->needs);
    if (p->precision == PREC_FP8 && p->needs == PEAK_FP4)
        refuse(
            c,
            "precision %s scales by blocks, which came with the fp4 unit; %s has none; legal: %s",
            p->name, c->t->accel.name, legal);
    else
        refuse(c, "precision %s needs %s %s unit, which %s has not; legal: %s", p->name,
               *unit == 'f' ? "an" : "a", unit, c->t->accel.name, legal);
    free(legal);
}

static void adapters(const struct check *c)
{
    if (c->s->qlora && c->s->lora == 0)
        refuse(c, "qlora keeps 4-bit weights frozen and needs adapters to train, their rank is 0; "
                  "add --lora 16 or another rank");
    if (c->s->lora > c->m->hidden)
        warn(c,
             "adapters of rank %" PRIu64 " are wider than the model's %" PRIu64
             ": they hold more than what they adapt; usual ranks are 8 to 64",
             c->s->lora, c->m->hidden);
}

static void recomputation(const struct check *c)
{
    const struct strategy *s = c->s;
    uint64_t most = 0;
    for (size_t i = 0; i < s->nlayout; i++)
        most = s->layout[i] > most ? s->layout[i] : most;
    if (s->recompute == RC_FULL && s->rc_blocks > most)
        warn(c,
             "full:%" PRIu64 " recomputes more layers than the %" PRIu64
             " of a chunk: all are recomputed; nearest: full:%" PRIu64 ", or full",
             s->rc_blocks, most, most);
    if (s->recompute == RC_SELECTIVE && s->rc_modules == RCM_CORE_ATTN &&
        c->f->attention != ATTN_UNFUSED)
        warn(c, "core_attn (what selective means here) runs attention again to save its scores, "
                "but a flash kernel keeps none: it costs time and saves nothing; try mlp, norm or "
                "full");
}

/* ---- the table ---- */

static const struct {
    struct rule_text text;
    void (*run)(const struct check *c);
} rules[] = {
    {{"world-size", "tp x cp x pp x dp = GPUs; dp is the quotient", "Megatron-LM arguments.py"},
     world_size},
    {{"expert-mesh", "GPUs % (etp x ep x pp) = 0; ep does not divide dp", "Megatron-LM #1459"},
     expert_mesh},
    {{"tp-domain", "tp within one scale-up domain (warning)", "published runs across nodes"},
     tensor_domain},
    {{"heads-tp", "heads % tp = 0", "vllm #596, DeepSpeed #3634"}, heads_tensor},
    {{"kv-tp", "kv % tp = 0; Megatron from 0.16 also tp % kv = 0, with copies",
      "torchtitan #2574, Megatron core"},
     kv_tensor},
    {{"ulysses-heads", "heads % ulysses = 0; kv % ulysses = 0 or ulysses % kv = 0",
      "verl #1226, DeepSpeed #4674"},
     ulysses_heads},
    {{"head-dim", "a multiple of 8 (warning)", "Megatron-LM arguments.py"}, head_width},
    {{"mlp-width", "ffn % tp = 0, expert ffn % etp = 0", "Megatron-LM arguments.py"}, mlp_width},
    {{"vocabulary", "padded to a multiple of tp, or divisible (warning)",
      "Megatron-LLM #103, Megatron-Bridge #5353"},
     vocabulary},
    {{"sequence", "s % (2 cp) = 0; with sp s % (cp lcm(2, tp)) = 0; ulysses: s % ulysses = 0",
      "Megatron-LM #1669, NeMo-RL #3563, DeepSpeed #7384"},
     sequence_parts},
    {{"sequence-parallel", "sp needs tp > 1; mixtures and tp overlap with tp > 1 need sp",
      "Megatron-LM arguments.py, ROCm Megatron-LM #85"},
     sequence_parallel},
    {{"positions", "s at most the model's positions", "Megatron-LM arguments.py"}, positions},
    {{"global-batch", "gbs % (micro-batch x dp) = 0; Composer: gbs % dp = 0",
      "Megatron-LM, cloudai #415, llm-foundry, openpi #437"},
     global_batch},
    {{"batch-triangle", "gbs = micro-batch x accumulation x dp", "DeepSpeed #6914"},
     batch_triangle},
    {{"layers", "(layers + embedding + loss as told) % (pp x vpp) = 0 unless dealt out unevenly",
      "Megatron-LM #750, #1304, Megatron-Bridge #5884"},
     layers_even},
    {{"layers-per-chunk", "layers % (pp x layers per chunk) = 0",
      "Megatron-LM arguments.py, #1304"},
     layers_per_chunk},
    {{"layers-list", "one entry per chunk, the sum is the number of layers", "Megatron-LM #1778"},
     layers_list},
    {{"stage-ends", "what first and last stage leave divides by the others", "Megatron-LM #1778"},
     stage_ends},
    {{"interleaving", "vpp > 1 needs pp > 1 with overlapped p2p, else pp > 2",
      "Megatron-LM arguments.py"},
     interleaving},
    {{"schedule",
      "dualpipe: pp even, micro-batches even and at least 2 pp; dualpipev: at least 2 pp; one that "
      "the framework lacks (warning)",
      "DeepSeek-V3 technical report 2024"},
     two_way_schedule},
    {{"micro-batches",
      "Megatron interleaved: m % pp = 0; PyTorch: m >= pp, interleaved m % max(1, m / pp) = 0",
      "torchtitan #775, PyTorch 129597, NeMo #14288"},
     micro_batches},
    {{"experts", "experts % ep = 0; ep needs experts, and not fp16", "Megatron-LM arguments.py"},
     experts},
    {{"experts-in-data", "torchtitan: ep divides dp shards x cp x tp, ep >= tp",
      "torchtitan #4258, #4794"},
     experts_in_data},
    {{"no-effect", "an option changes nothing in this job (warning)", "what the engines read"},
     no_effect},
    {{"expert-load", "imbalance at most ep", "the busiest rank has at most all tokens"},
     expert_load},
    {{"packed", "documents are no longer than the sequence", "packed sequences"}, packed_documents},
    {{"fsdp-alone", "Megatron's FSDP2 not with pp or ep", "Megatron-LM arguments.py"}, fsdp_alone},
    {{"zero-level", "at most the framework's highest; DeepSpeed: with a pipeline at most ZeRO-1",
      "DeepSpeed #1629, #4164"},
     zero_level},
    {{"fsdp-groups", "dp % shards = 0", "PyTorch FSDP, hybrid sharding"}, fsdp_groups},
    {{"precision", "the accelerator has the unit", "topologies/accelerators.json"}, precision_unit},
    {{"adapters", "qlora needs lora; rank at most h (warning)", "QLoRA paper, section 3"},
     adapters},
    {{"recomputation",
      "full:N at most the layers of a chunk; core_attn without a flash kernel (warnings)",
      "Korthikanti et al. 2022, section 5"},
     recomputation},
};

enum { NRULES = sizeof rules / sizeof *rules };

void rules_check(struct rules_report *report, const struct strategy *strategy,
                 const struct model *model, const struct topo *topo)
{
    struct check c = {
        .report = report, .s = strategy, .f = &strategy->framework, .m = model, .t = topo};
    for (size_t i = 0; i < NRULES; i++) {
        c.rule = rules[i].text.name;
        rules[i].run(&c);
    }
}

void rules_release(struct rules_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        free(report->findings[i].text);
    free(report->findings);
    *report = (struct rules_report){0};
}

int rules_refuse(const struct rules_report *report, struct err *err)
{
    for (size_t i = 0; i < report->count; i++)
        if (!report->findings[i].warning)
            err_add(err, ERR_USAGE, "%s: %s", report->findings[i].rule, report->findings[i].text);
    return report->errors ? -1 : 0;
}

const struct rule_text *rules_get(size_t i)
{
    return i < NRULES ? &rules[i].text : NULL;
}

uint64_t *rules_offer_tp(const struct model *model, uint64_t max, size_t *count)
{
    uint64_t *list = NULL, most = model->kv_heads && !model->mla ? model->kv_heads : model->heads;
    size_t cap = 0;
    *count = 0;
    for (uint64_t tp = 1; tp <= max && tp <= most; tp++) {
        if (model->heads % tp || most % tp) continue;
        MEM_GROW(list, *count, cap);
        list[(*count)++] = tp;
    }
    return list;
}
