/* SPDX-License-Identifier: Apache-2.0
 * The schedules: the table of all, what each asks of p, v and m, one builder per family, and the
 * check that a schedule does all the work in an order that comes to its end. */
#include "train/pipeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum placement { LOOP, BOTH_WAYS, VEE };

struct builder {
    struct pipeline *to;
    size_t count;
    uint32_t rank;
};

/* ---- closed forms ---- */

/* Huang et al. 2019 and Narayanan et al. 2019; BW is one task. */
static double idle_plain(const struct pipeline_shape *s, const struct pipeline_times *t)
{
    return (s->ranks - 1) * (t->f + t->b + t->w);
}

/* Narayanan et al. 2021, section 2.2; groups shorter than p leave more idle. */
static double idle_interleaved(const struct pipeline_shape *s, const struct pipeline_times *t)
{
    return s->group < s->ranks ? NAN : idle_plain(s, t) / s->chunks;
}

/* Qi et al. 2023, table 2. Stage 0 waits (p - 1) B for its first B whatever W is, and the last
 * stage (p - 1) F for its first F: below that no W can push the idle time. */
static double idle_zb_1p(const struct pipeline_shape *s, const struct pipeline_times *t)
{
    bool holds = t->w <= t->f && t->w <= t->b && s->micro >= s->ranks;
    return s->ranks == 1 ? 0 : holds ? (s->ranks - 1) * (t->f + t->b - t->w) : NAN;
}

static double idle_zb_2p(const struct pipeline_shape *s, const struct pipeline_times *t)
{
    bool holds = t->w <= t->f && t->w <= t->b && s->micro >= 2 * s->ranks - 1;
    return s->ranks == 1 ? 0 : holds ? (s->ranks - 1) * (t->f + t->b - 2 * t->w) : NAN;
}

/* DeepSeek-V3 technical report 2024, table 2: its B is the whole backward, B + W here. It takes F
 * and B as equal. */
static double idle_dualpipe(const struct pipeline_shape *s, const struct pipeline_times *t)
{
    if (t->f != t->b || t->w > t->f) return NAN;
    return (s->ranks / 2.0 - 1) * (t->pair + (t->b + t->w) - 3 * t->w);
}

/* The same on twice as many half ranks, whose chunks are half as long. */
static double idle_dualpipev(const struct pipeline_shape *s, const struct pipeline_times *t)
{
    if (t->f != t->b || t->w > t->f) return NAN;
    return (s->ranks - 1) * (t->pair + (t->b + t->w) - 3 * t->w) / 2;
}

/* ---- builders: one rank's list each ---- */

static void add(struct builder *b, enum pipeline_kind kind, uint32_t chunk, uint32_t micro)
{
    bool back = kind != PIPELINE_F;
    struct pipeline_task *task = &b->to->tasks[b->count++];
    *task = (struct pipeline_task){.kind = (uint8_t)kind};
    task->micro[back] = micro;
    task->chunk[back] = (uint16_t)chunk;
}

/* One chunk per rank. `warm` forwards, then forward and backward in turn, each W `delay` backwards
 * after its own B (`split`) or one with it. */
static void build_turns(struct builder *b, uint32_t warm, bool split, uint32_t delay)
{
    uint32_t m = b->to->shape.micro, f = 0, w = 0;
    while (f < warm && f < m) {
        add(b, PIPELINE_F, 0, f++);
    }
    for (uint32_t k = 0; k < m; k++) {
        if (f < m) add(b, PIPELINE_F, 0, f++);
        add(b, split ? PIPELINE_B : PIPELINE_BW, 0, k);
        if (split && k >= delay) add(b, PIPELINE_W, 0, w++);
    }
    while (split && w < m) {
        add(b, PIPELINE_W, 0, w++);
    }
}

static void build_gpipe(struct builder *b)
{
    build_turns(b, b->to->shape.micro, false, 0);
}

static void build_1f1b(struct builder *b)
{
    build_turns(b, b->to->shape.ranks - 1 - b->rank, false, 0);
}

/* ZB-H1: W's wait so long that every rank holds p micro-batches, as the first of 1F1B does. */
static void build_zb_1p(struct builder *b)
{
    build_turns(b, b->to->shape.ranks - 1 - b->rank, true, b->rank);
}

/* ZB-H2: the same with twice as many, 2 p - 1. */
static void build_zb_2p(struct builder *b)
{
    build_turns(b, 2 * (b->to->shape.ranks - 1 - b->rank), true, 2 * b->rank);
}

/* The k-th forward of the interleaved order: a group of micro-batches through each chunk in turn,
 * then the next group; the last group may be shorter. */
static void interleaved_place(const struct pipeline *p, size_t k, uint32_t *chunk, uint32_t *micro)
{
    uint32_t group = p->shape.group, m = p->shape.micro;
    size_t whole = (size_t)group * p->chunks;
    uint32_t base = (uint32_t)(k / whole) * group;
    uint32_t width = m - base < group ? m - base : group;
    *chunk = (uint32_t)(k % whole) / width;
    *micro = base + (uint32_t)(k % whole) % width;
}

/* Narayanan et al. 2021 as Megatron runs it: backwards take the chunks in reverse. */
static void build_interleaved(struct builder *b)
{
    const struct pipeline *p = b->to;
    size_t total = (size_t)p->chunks * p->shape.micro, f = 0;
    size_t warm =
        2 * (size_t)(p->shape.ranks - 1 - b->rank) + (size_t)(p->chunks - 1) * p->shape.group;
    uint32_t chunk, micro;
    for (size_t k = 0; k < total; k++) {
        for (; f < total && f <= warm + k; f++) {
            interleaved_place(p, f, &chunk, &micro);
            add(b, PIPELINE_F, chunk, micro);
        }
        interleaved_place(p, k, &chunk, &micro);
        add(b, PIPELINE_BW, p->chunks - 1 - chunk, micro);
    }
}

/* DualPipe on `ranks` ranks, or on half as many that each do the work of a mirrored pair. Micro-
 * batches come in two phases: 0 is what enters on this rank's side. */
struct dual {
    struct builder *b;
    bool swap;          /* this rank is of the second half: its phase 0 is chunk 1 */
    uint32_t base;      /* first micro-batch of chunk 1 */
    uint32_t did[2][2]; /* by phase: forwards and backwards so far */
    size_t waiting;     /* no W of a task before this one is left */
};

static uint32_t dual_next(struct dual *d, bool back, uint32_t phase, uint32_t *chunk)
{
    *chunk = phase ^ d->swap;
    return (*chunk ? d->base : 0) + d->did[phase][back]++;
}

static void dual_do(struct dual *d, enum pipeline_kind kind, uint32_t phase)
{
    uint32_t chunk, micro = dual_next(d, kind != PIPELINE_F, phase, &chunk);
    add(d->b, kind, chunk, micro);
}

static void dual_pair(struct dual *d, uint32_t forward, uint32_t backward)
{
    uint32_t f_chunk, b_chunk;
    uint32_t f = dual_next(d, false, forward, &f_chunk);
    uint32_t b = dual_next(d, true, backward, &b_chunk);
    d->b->to->tasks[d->b->count++] = (struct pipeline_task){
        .kind = PIPELINE_PAIR, .micro = {f, b}, .chunk = {(uint16_t)f_chunk, (uint16_t)b_chunk}};
}

/* The W of the oldest B that is without one. */
static void dual_weight(struct dual *d)
{
    const struct pipeline_task *tasks = d->b->to->tasks;
    while (tasks[d->waiting].kind != PIPELINE_B) {
        d->waiting++;
    }
    const struct pipeline_task *task = &tasks[d->waiting++];
    add(d->b, PIPELINE_W, task->chunk[1], task->micro[1]);
}

/* The eight stretches of DualPipe (DeepSeek-V3 report, figure 5): `outer` is how far the rank is
 * from the middle. */
static void build_dual(struct builder *b, uint32_t ranks, uint32_t per_way, uint32_t base)
{
    uint32_t half = b->rank < ranks / 2 ? b->rank : ranks - 1 - b->rank;
    uint32_t outer = ranks / 2 - 1 - half, both = half + 1;
    struct dual d = {
        .b = b, .swap = b->rank >= ranks / 2, .base = base, .waiting = b->to->first[b->rank]};
    for (uint32_t i = 0; i < 2 * outer; i++) {
        dual_do(&d, PIPELINE_F, 0);
    }
    for (uint32_t i = 0; i < both; i++) {
        dual_do(&d, PIPELINE_F, 0), dual_do(&d, PIPELINE_F, 1);
    }
    for (uint32_t i = 0; i < outer; i++) {
        dual_do(&d, PIPELINE_B, 1), dual_weight(&d), dual_do(&d, PIPELINE_F, 1);
    }
    for (uint32_t i = 0; i < per_way - ranks + both; i++) {
        if (i == 0 && outer == 0) { /* in the middle the first backward has to come early */
            dual_do(&d, PIPELINE_F, 0), dual_do(&d, PIPELINE_BW, 1);
        } else {
            dual_pair(&d, 0, 1);
        }
        dual_pair(&d, 1, 0);
    }
    for (uint32_t i = 0; i < outer; i++) {
        dual_do(&d, PIPELINE_BW, 1), dual_pair(&d, 1, 0);
    }
    for (uint32_t i = 0; i < 2 * both; i++) { /* the later half leaves its W's for the end */
        dual_do(&d, i < both ? PIPELINE_BW : PIPELINE_B, i % 2 == 0);
    }
    for (uint32_t i = 0; i < outer; i++) {
        dual_weight(&d), dual_do(&d, PIPELINE_B, 0);
    }
    for (uint32_t i = 0; i < both; i++) {
        dual_weight(&d);
    }
}

static void build_dualpipe(struct builder *b)
{
    build_dual(b, b->to->shape.ranks, b->to->shape.micro / 2, b->to->shape.micro / 2);
}

static void build_dualpipev(struct builder *b)
{
    build_dual(b, 2 * b->to->shape.ranks, b->to->shape.micro, 0);
}

/* ---- legality ---- */

static int one_chunk(const struct pipeline_shape *s, const char *name, struct err *err)
{
    if (s->chunks == 1) return 0;
    return err_add(err, ERR_USAGE,
                   "schedule %s takes 1 virtual stage per rank, %" PRIu32
                   " are given; nearest: 1, or the schedule interleaved",
                   name, s->chunks);
}

static int legal_plain(struct pipeline_shape *s, const char *name, struct err *err)
{
    return one_chunk(s, name, err);
}

/* Whether groups of g may pass m micro-batches: short groups at the end are as in Megatron-Core,
 * and one group may hold them all. */
static bool group_fits(uint32_t p, uint32_t m, uint32_t group)
{
    return group == m || (group >= p && group < m && (m % group == 0 || m % group >= p));
}

static uint32_t default_group(uint32_t p, uint32_t m)
{
    uint32_t rounds = m > p ? m / p : 1;
    return m % rounds == 0 ? m / rounds : 0;
}

static int legal_interleaved(struct pipeline_shape *s, const char *name, struct err *err)
{
    int bad = 0;
    if (s->chunks < 2) {
        bad = err_add(err, ERR_USAGE,
                      "schedule %s needs at least 2 virtual stages per rank, 1 is given; nearest: "
                      "2, or the schedule 1f1b",
                      name);
    }
    uint32_t p = s->ranks, m = s->micro, low, high;
    if (s->group == 0) {
        s->group = default_group(p, m);
        if (s->group) return bad;
        for (low = m - 1; !default_group(p, low); low--) {
        }
        for (high = m + 1; !default_group(p, high); high++) {
        }
        return err_add(err, ERR_USAGE,
                       "schedule %s on %" PRIu32 " ranks cuts %" PRIu32
                       " micro-batches into %" PRIu32
                       " rounds, which do not divide them; nearest: %" PRIu32 " or %" PRIu32
                       " micro-batches, or a --group of %" PRIu32,
                       name, p, m, m / p, low, high, m);
    }
    if (group_fits(p, m, s->group)) return bad;
    for (low = s->group < m ? s->group : m; low > p && !group_fits(p, m, low); low--) {
    }
    for (high = s->group < p ? p : s->group; high < m && !group_fits(p, m, high); high++) {
    }
    high = high < m ? high : m;
    bool below = group_fits(p, m, low);
    return err_add(err, ERR_USAGE,
                   "schedule %s: groups of %" PRIu32 " of %" PRIu32 " micro-batches on %" PRIu32
                   " ranks; a group must hold at least as many as there are ranks, and so must the "
                   "last one, or one group all; nearest: %" PRIu32 " or %" PRIu32,
                   name, s->group, m, p, below ? low : high, below ? high : m);
}

/* At least 2 micro-batches for each of `ranks` halves. */
static int enough(const struct pipeline_shape *s, const char *name, uint32_t least, struct err *err)
{
    if (s->micro >= least) return 0;
    return err_add(err, ERR_USAGE,
                   "schedule %s on %" PRIu32 " ranks needs at least %" PRIu32
                   " micro-batches, %" PRIu32 " are given; nearest: %" PRIu32,
                   name, s->ranks, least, s->micro, least);
}

static int legal_dualpipe(struct pipeline_shape *s, const char *name, struct err *err)
{
    int bad = one_chunk(s, name, err);
    if (s->ranks % 2) {
        bad =
            s->ranks == 1
                ? err_add(err, ERR_USAGE,
                          "schedule %s needs an even number of ranks, 1 is given; nearest: 2", name)
                : err_add(err, ERR_USAGE,
                          "schedule %s needs an even number of ranks, %" PRIu32
                          " are given; nearest: %" PRIu32 " or %" PRIu32,
                          name, s->ranks, s->ranks - 1, s->ranks + 1);
    }
    if (s->micro % 2 && s->micro > 2 * s->ranks) {
        bad = err_add(err, ERR_USAGE,
                      "schedule %s sends half of the micro-batches each way and needs an even "
                      "number, %" PRIu32 " are given; nearest: %" PRIu32 " or %" PRIu32,
                      name, s->micro, s->micro - 1, s->micro + 1);
    }
    return enough(s, name, 2 * s->ranks, err) ? -1 : bad;
}

static int legal_dualpipev(struct pipeline_shape *s, const char *name, struct err *err)
{
    int bad = one_chunk(s, name, err);
    return enough(s, name, 2 * s->ranks, err) ? -1 : bad;
}

/* ---- the table ---- */

static const struct schedule_row {
    struct pipeline_row row;
    enum placement placement;
    void (*build)(struct builder *b);
    int (*legal)(struct pipeline_shape *shape, const char *name, struct err *err);
} table[NPIPELINES] = {
    [PIPELINE_GPIPE] = {{"gpipe", "Huang et al. 2019 (GPipe)", "v 1", "(p-1)(F+B+W)", idle_plain, 1,
                         false},
                        LOOP,
                        build_gpipe,
                        legal_plain},
    [PIPELINE_1F1B] = {{"1f1b", "Narayanan et al. 2019 (PipeDream-Flush)", "v 1", "(p-1)(F+B+W)",
                        idle_plain, 1, false},
                       LOOP,
                       build_1f1b,
                       legal_plain},
    [PIPELINE_INTERLEAVED] = {{"interleaved", "Narayanan et al. 2021 (Megatron-LM)",
                               "v >= 2; groups of p or more micro-batches, or one group",
                               "(p-1)(F+B+W)/v", idle_interleaved, 1, false},
                              LOOP,
                              build_interleaved,
                              legal_interleaved},
    [PIPELINE_ZB_1P] = {{"zb-1p", "Qi et al. 2023 (zero bubble, ZB-H1)", "v 1", "(p-1)(F+B-W)",
                         idle_zb_1p, 1, false},
                        LOOP,
                        build_zb_1p,
                        legal_plain},
    [PIPELINE_ZB_2P] = {{"zb-2p", "Qi et al. 2023 (zero bubble, ZB-H2)", "v 1", "(p-1)(F+B-2W)",
                         idle_zb_2p, 1, true},
                        LOOP,
                        build_zb_2p,
                        legal_plain},
    [PIPELINE_DUALPIPE] = {{"dualpipe", "DeepSeek-AI 2024 (DeepSeek-V3)",
                            "v 1; p even; m even, m >= 2p", "(p/2-1)(F&BW+B-2W)", idle_dualpipe, 2,
                            false},
                           BOTH_WAYS,
                           build_dualpipe,
                           legal_dualpipe},
    [PIPELINE_DUALPIPEV] = {{"dualpipev", "Sea AI Lab 2025 (DualPipe cut in half)",
                             "v 1 (two half chunks); m >= 2p", "(p-1)(F&BW+B-2W)/2", idle_dualpipev,
                             1, false},
                            VEE,
                            build_dualpipev,
                            legal_dualpipev},
};

const struct pipeline_row *pipeline_row(enum pipeline_id id)
{
    return &table[id].row;
}

uint32_t pipeline_form_rank(const struct pipeline_shape *shape)
{
    return table[shape->id].placement == VEE ? shape->ranks - 1 : (shape->ranks - 1) / 2;
}

/* ---- placement ---- */

uint32_t pipeline_stage(const struct pipeline *pipeline, uint32_t rank, uint32_t chunk)
{
    uint32_t p = pipeline->shape.ranks;
    switch (table[pipeline->shape.id].placement) {
    case BOTH_WAYS:
        return chunk ? p - 1 - rank : rank;
    case VEE:
        return chunk ? 2 * p - 1 - rank : rank;
    default:
        return chunk * p + rank;
    }
}

bool pipeline_next(const struct pipeline *pipeline, uint32_t rank, uint32_t chunk, int step,
                   uint32_t *to_rank, uint32_t *to_chunk)
{
    uint32_t p = pipeline->shape.ranks, stage = pipeline_stage(pipeline, rank, chunk);
    if (step > 0 ? stage + 1 == pipeline->stages : stage == 0) return false;
    stage = step > 0 ? stage + 1 : stage - 1;
    switch (table[pipeline->shape.id].placement) {
    case BOTH_WAYS:
        *to_chunk = chunk;
        *to_rank = chunk ? p - 1 - stage : stage;
        return true;
    case VEE:
        *to_chunk = stage >= p;
        *to_rank = stage >= p ? 2 * p - 1 - stage : stage;
        return true;
    default:
        *to_chunk = stage / p;
        *to_rank = stage % p;
        return true;
    }
}

/* ---- making ---- */

int pipeline_legal(struct pipeline_shape *shape, struct err *err)
{
    int bad = 0;
    if (shape->ranks == 0 || shape->chunks == 0 || shape->micro == 0) {
        return err_add(err, ERR_USAGE,
                       "a pipeline needs at least 1 rank, 1 virtual stage and 1 micro-batch, not "
                       "%" PRIu32 ", %" PRIu32 " and %" PRIu32,
                       shape->ranks, shape->chunks, shape->micro);
    }
    if (shape->chunks > UINT16_MAX || (uint64_t)shape->chunks * shape->ranks > UINT32_MAX / 2 ||
        (uint64_t)shape->chunks * shape->micro > UINT32_MAX / 4) {
        bad = err_add(err, ERR_USAGE,
                      "%" PRIu32 " ranks with %" PRIu32 " virtual stages and %" PRIu32
                      " micro-batches are too many: up to 65535 virtual stages, 2^31 stages and "
                      "2^30 tasks of a kind on a rank",
                      shape->ranks, shape->chunks, shape->micro);
    }
    if (shape->id != PIPELINE_INTERLEAVED && shape->group != 0) {
        bad = err_add(err, ERR_USAGE,
                      "groups of %" PRIu32 " micro-batches belong to the schedule interleaved, not "
                      "to %s; nearest: none",
                      shape->group, table[shape->id].row.name);
    }
    return table[shape->id].legal(shape, table[shape->id].row.name, err) ? -1 : bad;
}

/* Fills task_of and rank_of. */
static void index_tasks(struct pipeline *p)
{
    for (uint32_t rank = 0; rank < p->shape.ranks; rank++) {
        for (size_t i = p->first[rank]; i < p->first[rank + 1]; i++) {
            const struct pipeline_task *t = &p->tasks[i];
            bool forward = t->kind == PIPELINE_F || t->kind == PIPELINE_PAIR;
            bool back = t->kind != PIPELINE_F && t->kind != PIPELINE_W;
            p->rank_of[i] = rank;
            if (forward) p->task_of[0][pipeline_slot(p, rank, t->chunk[0], t->micro[0])] = i;
            if (back) p->task_of[1][pipeline_slot(p, rank, t->chunk[1], t->micro[1])] = i;
        }
    }
}

struct pipeline *pipeline_new(const struct pipeline_shape *shape, struct err *err)
{
    struct pipeline_shape legal = *shape;
    if (pipeline_legal(&legal, err)) return NULL;
    const struct schedule_row *row = &table[legal.id];
    struct pipeline *p = mem_calloc(1, sizeof *p);
    *p = (struct pipeline){.shape = legal,
                           .chunks = row->placement == LOOP ? legal.chunks : 2,
                           .stages = legal.ranks * (row->placement == LOOP  ? legal.chunks
                                                    : row->placement == VEE ? 2
                                                                            : 1)};
    size_t slots = (size_t)legal.ranks * p->chunks * legal.micro;
    p->tasks = mem_calloc(slots, 3 * sizeof *p->tasks); /* F, B, W apart are the most */
    p->first = mem_calloc((size_t)legal.ranks + 1, sizeof *p->first);
    struct builder b = {.to = p};
    for (b.rank = 0; b.rank < legal.ranks; b.rank++) {
        p->first[b.rank] = b.count;
        row->build(&b);
    }
    p->first[legal.ranks] = b.count;
    p->tasks = mem_realloc(p->tasks, b.count, sizeof *p->tasks);
    p->rank_of = mem_calloc(b.count, sizeof *p->rank_of);
    for (int k = 0; k < 2; k++) {
        p->task_of[k] = mem_realloc(NULL, slots, sizeof *p->task_of[k]);
        for (size_t i = 0; i < slots; i++) {
            p->task_of[k][i] = SIZE_MAX;
        }
    }
    index_tasks(p);
    return p;
}

void pipeline_free(struct pipeline *pipeline)
{
    if (!pipeline) return;
    free(pipeline->tasks);
    free(pipeline->first);
    free(pipeline->rank_of);
    free(pipeline->task_of[0]);
    free(pipeline->task_of[1]);
    free(pipeline);
}

struct pipeline_peak pipeline_peak(const struct pipeline *pipeline, uint32_t rank)
{
    static const struct {
        uint8_t add, live, held; /* at the start; what is given back at the end */
    } change[NTASK_KINDS] = {[PIPELINE_F] = {1, 0, 0},
                             [PIPELINE_B] = {0, 1, 0},
                             [PIPELINE_W] = {0, 0, 1},
                             [PIPELINE_BW] = {0, 1, 1},
                             [PIPELINE_PAIR] = {1, 1, 1}};
    struct pipeline_peak peak = {0};
    uint32_t live = 0, held = 0;
    for (size_t i = pipeline->first[rank]; i < pipeline->first[rank + 1]; i++) {
        uint8_t kind = pipeline->tasks[i].kind;
        live += change[kind].add;
        held += change[kind].add;
        peak.live = live > peak.live ? live : peak.live;
        peak.held = held > peak.held ? held : peak.held;
        live -= change[kind].live;
        held -= change[kind].held;
    }
    return peak;
}

/* ---- the check ---- */

/* What has been done of each slot, one bit each. */
enum { DID_F = 1, DID_B = 2, DID_W = 4 };

static const uint8_t does[NTASK_KINDS][2] = {[PIPELINE_F] = {DID_F, 0},
                                             [PIPELINE_B] = {0, DID_B},
                                             [PIPELINE_W] = {0, DID_W},
                                             [PIPELINE_BW] = {0, DID_B | DID_W},
                                             [PIPELINE_PAIR] = {DID_F, DID_B | DID_W}};

/* Whether what `work` on a slot needs of its own and other ranks has been done. */
static bool may_run(const struct pipeline *p, const uint8_t *done, uint32_t rank, uint32_t chunk,
                    uint32_t micro, uint8_t work)
{
    uint32_t to, to_chunk;
    uint8_t own = done[pipeline_slot(p, rank, chunk, micro)];
    if (work & DID_F) {
        return !pipeline_next(p, rank, chunk, -1, &to, &to_chunk) ||
               done[pipeline_slot(p, to, to_chunk, micro)] & DID_F;
    }
    if (work == DID_W) return own & DID_B;
    return own & DID_F && (!pipeline_next(p, rank, chunk, 1, &to, &to_chunk) ||
                           done[pipeline_slot(p, to, to_chunk, micro)] & DID_B);
}

/* Does the tasks of a rank as far as they go. Returns how many, or SIZE_MAX with a sentence when
 * one is done twice. */
static size_t advance(const struct pipeline *p, uint8_t *done, uint32_t rank, size_t *next,
                      struct err *err)
{
    size_t before = *next;
    for (; *next < p->first[rank + 1]; ++*next) {
        const struct pipeline_task *t = &p->tasks[*next];
        for (int side = 0; side < 2; side++) {
            if (does[t->kind][side] &&
                !may_run(p, done, rank, t->chunk[side], t->micro[side], does[t->kind][side]))
                return *next - before;
        }
        for (int side = 0; side < 2; side++) {
            if (!does[t->kind][side]) continue;
            uint8_t *slot = &done[pipeline_slot(p, rank, t->chunk[side], t->micro[side])];
            if (*slot & does[t->kind][side]) {
                err_add(err, ERR_FAILED,
                        "rank %" PRIu32 " does part of micro-batch %" PRIu32 " on chunk %d twice",
                        rank, t->micro[side], t->chunk[side]);
                return SIZE_MAX;
            }
            *slot |= does[t->kind][side];
        }
    }
    return *next - before;
}

/* After all ranks came to their end: has every slot been done? Of two ways each chunk has its half
 * of the micro-batches. */
static int all_done(const struct pipeline *p, const uint8_t *done, struct err *err)
{
    uint32_t half = p->shape.micro / 2;
    bool ways = table[p->shape.id].placement == BOTH_WAYS;
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        for (uint32_t c = 0; c < p->chunks; c++) {
            for (uint32_t m = 0; m < p->shape.micro; m++) {
                uint8_t wanted = ways && (m >= half) != c ? 0 : DID_F | DID_B | DID_W;
                if (done[pipeline_slot(p, r, c, m)] != wanted)
                    return err_add(err, ERR_FAILED,
                                   "rank %" PRIu32 " leaves micro-batch %" PRIu32
                                   " on chunk %" PRIu32 " undone, or has too much of it",
                                   r, m, c);
            }
        }
    }
    return 0;
}

int pipeline_check(const struct pipeline *p, struct err *err)
{
    uint32_t ranks = p->shape.ranks, stuck = 0;
    uint8_t *done = mem_calloc((size_t)ranks * p->chunks * p->shape.micro, sizeof *done);
    size_t *next = mem_calloc(ranks, sizeof *next);
    int bad = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        next[r] = p->first[r];
    }
    for (uint32_t r = 0; stuck < ranks && !bad; r = (r + 1) % ranks) {
        size_t did = advance(p, done, r, &next[r], err);
        stuck = did ? 0 : stuck + 1;
        bad = did == SIZE_MAX ? -1 : 0;
    }
    for (uint32_t r = 0; r < ranks && !bad; r++) {
        if (next[r] < p->first[r + 1])
            bad =
                err_add(err, ERR_FAILED, "rank %" PRIu32 " waits for ever at task %zu of its list",
                        r, next[r] - p->first[r]);
    }
    bad = bad ? bad : all_done(p, done, err);
    free(done);
    free(next);
    return bad;
}
