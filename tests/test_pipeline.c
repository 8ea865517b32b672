/* SPDX-License-Identifier: Apache-2.0
 * Pipeline schedules: each does all the work and comes to its end; idle times and activations in
 * flight are those of the papers, to the picosecond; time is accounted for to the picosecond on
 * random stages, ranks and messages; a plain second interpreter agrees with every run. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "train/pipeline.h"
#include "train/strategy.h"

/* Calls `each` for all legal shapes with p <= ranks, v <= chunks, m <= micro. */
static void all_shapes(uint32_t ranks, uint32_t chunks, uint32_t micro,
                       void (*each)(const struct pipeline *, size_t *), size_t *count)
{
    for (unsigned id = 0; id < NPIPELINES; id++) {
        for (uint32_t p = 1; p <= ranks; p++) {
            for (uint32_t v = 1; v <= chunks; v++) {
                for (uint32_t m = 1; m <= micro; m++) {
                    struct err err = ERR_INIT;
                    struct pipeline_shape shape = {(enum pipeline_id)id, p, v, m, 0};
                    struct pipeline *pipeline = pipeline_new(&shape, &err);
                    if (pipeline) each(pipeline, count);
                    pipeline_free(pipeline);
                    err_release(&err);
                }
            }
        }
    }
}

/* ---- a run with all stages alike: F, B, W of a rank for one micro-batch in ps ---- */

struct made {
    struct pipeline *pipeline;
    ps_t *stage_ps;
    struct pipeline_costs costs;
    struct pipeline_run run;
    struct pipeline_times times;
};

static void make(struct made *made, struct pipeline_shape shape, ps_t f, ps_t b, ps_t w)
{
    struct err err = ERR_INIT;
    *made = (struct made){.pipeline = pipeline_new(&shape, &err)};
    cr_assert_not_null(made->pipeline, "%s", err.text);
    const struct pipeline *p = made->pipeline;
    ps_t parts = p->stages / p->shape.ranks;
    cr_assert(f % parts == 0 && b % parts == 0 && w % parts == 0);
    made->stage_ps = mem_calloc(p->stages, 3 * sizeof *made->stage_ps);
    for (uint32_t s = 0; s < p->stages; s++) {
        made->stage_ps[3 * s] = f / parts;
        made->stage_ps[3 * s + 1] = b / parts;
        made->stage_ps[3 * s + 2] = w / parts;
    }
    made->costs.stage_ps = made->stage_ps;
    made->times = (struct pipeline_times){(double)f, (double)b, (double)w, (double)(f + b + w)};
}

static void go(struct made *made)
{
    struct err err = ERR_INIT;
    cr_assert_eq(pipeline_run(made->pipeline, &made->costs, &made->run, &err), 0, "%s", err.text);
}

static void unmake(struct made *made)
{
    pipeline_free(made->pipeline);
    pipeline_run_release(&made->run);
    free(made->stage_ps);
}

static ps_t busy(const struct pipeline_rank *rank)
{
    ps_t sum = 0;
    for (int k = 0; k < NTASK_KINDS; k++) {
        sum += rank->busy_ps[k];
    }
    return sum;
}

/* Idle time of a rank; without messages all of it is bubble. */
static ps_t idle_of(const struct made *made, ps_t r)
{
    const struct pipeline_rank *rank = &made->run.ranks[r];
    cr_assert_eq(rank->message_ps, 0);
    cr_assert_eq(rank->bubble_ps, made->run.step_ps - busy(rank));
    return rank->bubble_ps;
}

/* ---- schedules ---- */

static void complete(const struct pipeline *pipeline, size_t *count)
{
    struct err err = ERR_INIT;
    const struct pipeline_shape *s = &pipeline->shape;
    cr_assert_eq(pipeline_check(pipeline, &err), 0, "%s p %u v %u m %u: %s",
                 pipeline_row(s->id)->name, s->ranks, s->chunks, s->micro, err.text);
    ++*count;
}

Test(pipeline, every_schedule_is_complete)
{
    size_t count = 0;
    all_shapes(16, 4, 40, complete, &count);
    cr_log_info("%zu shapes", count);
    cr_assert_gt(count, 4 * 16 * 40);
}

/* What the check is worth: every exchange of two neighbours in a list is refused, or harmless by
 * the plain interpreter below; every task put in place of another is refused. */
Test(pipeline, check_finds_faults)
{
    for (unsigned id = 0; id < NPIPELINES; id++) {
        struct err err = ERR_INIT;
        struct pipeline_shape shape = {(enum pipeline_id)id, 4, id == PIPELINE_INTERLEAVED ? 2 : 1,
                                       8, 0};
        struct pipeline *p = pipeline_new(&shape, &err);
        size_t refused = 0;
        for (size_t i = 0; i + 1 < p->first[4]; i++) {
            struct pipeline_task a = p->tasks[i], b = p->tasks[i + 1];
            p->tasks[i] = b;
            cr_expect_eq(pipeline_check(p, &err), -1, "%s: task %zu doubled",
                         pipeline_row(shape.id)->name, i);
            err_release(&err);
            p->tasks[i + 1] = a;
            refused += pipeline_check(p, &err) != 0;
            err_release(&err);
            p->tasks[i] = a;
            p->tasks[i + 1] = b;
        }
        cr_expect_gt(refused, 4);
        cr_expect_eq(pipeline_check(p, &err), 0);
        pipeline_free(p);
    }
}

Test(pipeline, order_of_the_strategies)
{
    cr_expect_eq((int)PIPELINE_GPIPE, (int)SCHED_GPIPE);
    cr_expect_eq((int)PIPELINE_1F1B, (int)SCHED_1F1B);
    cr_expect_eq((int)PIPELINE_INTERLEAVED, (int)SCHED_INTERLEAVED);
    cr_expect_eq((int)PIPELINE_ZB_1P, (int)SCHED_ZB_1P);
    cr_expect_eq((int)PIPELINE_ZB_2P, (int)SCHED_ZB_2P);
}

/* ---- what is legal ---- */

static bool legal(enum pipeline_id id, uint32_t p, uint32_t v, uint32_t m, uint32_t group)
{
    struct err err = ERR_INIT;
    struct pipeline_shape shape = {id, p, v, m, group};
    bool yes = pipeline_legal(&shape, &err) == 0;
    err_release(&err);
    return yes;
}

static void refused(enum pipeline_id id, uint32_t p, uint32_t v, uint32_t m, uint32_t group,
                    unsigned count, const char *words)
{
    struct err err = ERR_INIT;
    struct pipeline_shape shape = {id, p, v, m, group};
    cr_expect_eq(pipeline_legal(&shape, &err), -1);
    cr_expect_eq(err.code, ERR_USAGE);
    cr_expect_eq(err.count, count, "%s", err.text);
    cr_expect(err.text && strstr(err.text, words), "\"%s\" is not in \"%s\"", words, err.text);
    err_release(&err);
}

Test(pipeline, rules_name_both_numbers_and_what_is_near)
{
    refused(PIPELINE_1F1B, 4, 2, 8, 0, 1, "takes 1 virtual stage per rank, 2 are given");
    refused(PIPELINE_INTERLEAVED, 4, 1, 8, 0, 1, "nearest: 2");
    refused(PIPELINE_DUALPIPE, 5, 3, 8, 4, 4, "nearest: 4 or 6");
    refused(PIPELINE_DUALPIPE, 4, 1, 9, 0, 1, "nearest: 8 or 10");
    refused(PIPELINE_DUALPIPE, 8, 1, 9, 0, 1, "nearest: 16");
    refused(PIPELINE_DUALPIPEV, 8, 1, 15, 0, 1, "nearest: 16");
    refused(PIPELINE_GPIPE, 8, 1, 0, 0, 1, "at least 1");
    refused(PIPELINE_INTERLEAVED, 4, 2, 11, 0, 1, "nearest: 10 or 12 micro-batches");
    cr_expect(legal(PIPELINE_INTERLEAVED, 4, 2, 10, 0) && legal(PIPELINE_INTERLEAVED, 4, 2, 12, 0));
    cr_expect(legal(PIPELINE_INTERLEAVED, 4, 2, 11, 11));
    refused(PIPELINE_INTERLEAVED, 4, 2, 11, 4, 1, "nearest: 6 or 11");
    refused(PIPELINE_INTERLEAVED, 4, 2, 11, 8, 1, "nearest: 7 or 11");
    cr_expect(legal(PIPELINE_INTERLEAVED, 4, 2, 11, 6)); /* 6 and 5 */
    cr_expect(legal(PIPELINE_INTERLEAVED, 4, 2, 11, 7)); /* 7 and 4 */
    cr_expect_not(legal(PIPELINE_INTERLEAVED, 4, 2, 11, 8));
}

/* Every group that is legal is complete, also those that do not divide the micro-batches. */
Test(pipeline, groups_are_complete)
{
    size_t count = 0, uneven = 0;
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t m = 1; m <= 24; m++) {
            for (uint32_t group = 1; group <= m; group++) {
                struct err err = ERR_INIT;
                struct pipeline_shape shape = {PIPELINE_INTERLEAVED, p, 3, m, group};
                struct pipeline *pipeline = pipeline_new(&shape, &err);
                err_release(&err);
                if (!pipeline) continue;
                complete(pipeline, &count);
                uneven += m % group != 0;
                pipeline_free(pipeline);
            }
        }
    }
    cr_assert_gt(uneven, 100);
}

/* ---- identities of the papers ---- */

/* F, B, W in ps that all chunk counts divide; F = B where `equal`; W <= both. */
static void draw_times(struct rng *rng, bool equal, ps_t t[3])
{
    t[0] = 840 * (1 + rng_below(rng, 1000));
    t[1] = equal ? t[0] : 840 * (1 + rng_below(rng, 1000));
    ps_t most = t[0] < t[1] ? t[0] : t[1];
    t[2] = 840 * (1 + rng_below(rng, most / 840));
}

Test(pipeline, plain_bubble)
{
    struct rng rng;
    rng_init(&rng, 1);
    for (int i = 0; i < 400; i++) {
        ps_t t[3], p = 1 + rng_below(&rng, 16), m = 1 + rng_below(&rng, 40);
        draw_times(&rng, false, t);
        t[2] *= (ps_t)i % 3; /* W may be nothing, or longer than the others */
        struct made made;
        make(&made,
             (struct pipeline_shape){i % 2 ? PIPELINE_1F1B : PIPELINE_GPIPE, (uint32_t)p, 1,
                                     (uint32_t)m, 0},
             t[0], t[1], t[2]);
        go(&made);
        for (ps_t r = 0; r < p; r++) { /* (p - 1) / (m + p - 1) of the step, without rounding */
            ps_t idle = idle_of(&made, r);
            cr_assert_eq(idle * (m + p - 1), (p - 1) * made.run.step_ps);
        }
        unmake(&made);
    }
}

Test(pipeline, interleaved_bubble)
{
    struct rng rng;
    rng_init(&rng, 2);
    for (int i = 0; i < 400; i++) {
        ps_t t[3], p = 1 + rng_below(&rng, 16), v = 2 + rng_below(&rng, 6);
        ps_t m = p * (1 + rng_below(&rng, 5));
        draw_times(&rng, false, t);
        struct made made;
        struct pipeline_shape shape = {PIPELINE_INTERLEAVED, (uint32_t)p, (uint32_t)v, (uint32_t)m,
                                       0};
        make(&made, shape, t[0], t[1], t[2]);
        go(&made);
        for (ps_t r = 0; r < p; r++) { /* (p - 1) / (v m + p - 1) of the step */
            ps_t idle = idle_of(&made, r);
            cr_assert_eq(idle * (v * m + p - 1), (p - 1) * made.run.step_ps);
        }
        unmake(&made);
    }
}

Test(pipeline, zero_bubble)
{
    struct rng rng;
    rng_init(&rng, 3);
    for (int i = 0; i < 400; i++) {
        ps_t t[3], p = 1 + rng_below(&rng, 16), m = 2 * p - 1 + rng_below(&rng, 30);
        draw_times(&rng, false, t);
        bool two = i % 2;
        struct made made;
        make(&made,
             (struct pipeline_shape){two ? PIPELINE_ZB_2P : PIPELINE_ZB_1P, (uint32_t)p, 1,
                                     (uint32_t)m, 0},
             t[0], t[1], t[2]);
        go(&made);
        int64_t left = (int64_t)(t[0] + t[1]) - (two ? 2 : 1) * (int64_t)t[2];
        for (ps_t r = 0; r < p; r++) {
            ps_t idle = idle_of(&made, r);
            cr_assert_eq((int64_t)idle, (int64_t)(p - 1) * left);
        }
        unmake(&made);
    }
}

/* DeepSeek-V3: (p/2 - 1)(F&B + B - 3 W), B the whole backward; also when the pair overlaps well. */
Test(pipeline, dualpipe_bubble)
{
    struct rng rng;
    rng_init(&rng, 4);
    for (int i = 0; i < 400; i++) {
        uint32_t p = 2 * (uint32_t)(1 + rng_below(&rng, 8));
        uint32_t m = 2 * (p + (uint32_t)rng_below(&rng, 20));
        ps_t t[3];
        draw_times(&rng, true, t);
        struct made made;
        make(&made, (struct pipeline_shape){PIPELINE_DUALPIPE, p, 1, m, 0}, t[0], t[1], t[2]);
        ps_t pair = t[0] + t[1] + t[2];
        if (i % 2) {
            made.costs.pair_factor = 0.75;
            pair = 3 * pair / 4;
        }
        go(&made);
        int64_t whole = (int64_t)(t[1] + t[2]);
        int64_t want = (int64_t)(p / 2 - 1) * ((int64_t)pair + whole - 3 * (int64_t)t[2]);
        for (uint32_t r = 0; r < p; r++) {
            if (i % 2 && r != p / 2 - 1 && r != p / 2) continue;
            ps_t idle = idle_of(&made, r);
            cr_assert_eq((int64_t)idle, want, "p %u m %u rank %u", p, m, r);
        }
        unmake(&made);
    }
}

/* DualPipeV: half as many ranks do the same, (p - 1)/2 (F&B + B - 3 W). */
Test(pipeline, dualpipev_bubble)
{
    struct rng rng;
    rng_init(&rng, 6);
    for (int i = 0; i < 400; i++) {
        uint32_t p = 1 + (uint32_t)rng_below(&rng, 12), m = 2 * p + (uint32_t)rng_below(&rng, 40);
        ps_t t[3];
        draw_times(&rng, true, t);
        struct made made;
        struct pipeline_shape shape = {PIPELINE_DUALPIPEV, p, 1, m, 0};
        make(&made, shape, t[0], t[1], t[2]);
        ps_t pair = t[0] + t[1] + t[2];
        if (i % 2) {
            made.costs.pair_factor = 0.75;
            pair = 3 * pair / 4;
        }
        go(&made);
        int64_t left = (int64_t)(pair + t[1] + t[2]) - 3 * (int64_t)t[2];
        for (uint32_t r = 0; r < p; r++) {
            if (i % 2 && r != pipeline_form_rank(&shape)) continue;
            cr_assert_eq(2 * (int64_t)idle_of(&made, r), (int64_t)(p - 1) * left,
                         "p %u m %u rank %u", p, m, r);
        }
        unmake(&made);
    }
}

/* Whatever the library calls its closed form is what a run gives, wherever it says it holds. */
static void form_holds(const struct pipeline *pipeline, size_t *count)
{
    static const ps_t times[][3] = {
        {840, 840, 840}, {1680, 840, 840}, {840, 1680, 840}, {2520, 2520, 1680}, {840, 840, 1680}};
    for (size_t i = 0; i < 5; i++) {
        struct made made;
        struct pipeline_shape shape = pipeline->shape;
        make(&made, shape, times[i][0], times[i][1], times[i][2]);
        double want = pipeline_row(shape.id)->idle(&shape, &made.times);
        if (!isnan(want)) {
            go(&made);
            uint32_t r = pipeline_form_rank(&shape);
            double idle = (double)idle_of(&made, r);
            cr_assert_float_eq(idle, want, 1e-6, "%s p %u v %u m %u: %g, not %g",
                               pipeline_row(shape.id)->name, shape.ranks, shape.chunks, shape.micro,
                               idle, want);
            ++*count;
        }
        unmake(&made);
    }
}

Test(pipeline, closed_forms_hold_where_they_say)
{
    size_t count = 0;
    all_shapes(10, 4, 24, form_holds, &count);
    cr_assert_gt(count, 4000);
}

Test(pipeline, one_rank_has_no_bubble)
{
    for (unsigned id = 0; id < NPIPELINES; id++) {
        if (id == PIPELINE_DUALPIPE) continue;
        struct made made;
        struct pipeline_shape shape = {(enum pipeline_id)id, 1, id == PIPELINE_INTERLEAVED ? 3 : 1,
                                       5, 0};
        make(&made, shape, 1260, 840, 420 * 2);
        go(&made);
        cr_expect_eq(made.run.step_ps, 5 * (1260 + 840 + 840));
        unmake(&made);
    }
}

/* ---- activations in flight ---- */

static uint32_t held(enum pipeline_id id, uint32_t p, uint32_t v, uint32_t m, uint32_t rank)
{
    struct err err = ERR_INIT;
    struct pipeline_shape shape = {id, p, v, m, 0};
    struct pipeline *pipeline = pipeline_new(&shape, &err);
    cr_assert_not_null(pipeline, "%s", err.text);
    uint32_t peak = pipeline_peak(pipeline, rank).held;
    pipeline_free(pipeline);
    return peak;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

Test(pipeline, activations_in_flight)
{
    for (uint32_t p = 1; p <= 16; p++) {
        for (uint32_t m = 1; m <= 40; m++) {
            for (uint32_t r = 0; r < p; r++) {
                cr_assert_eq(held(PIPELINE_GPIPE, p, 1, m, r), m);
                cr_assert_eq(held(PIPELINE_1F1B, p, 1, m, r), least(p - r, m));
                cr_assert_eq(held(PIPELINE_ZB_1P, p, 1, m, r), least(p, m));
                cr_assert_eq(held(PIPELINE_ZB_2P, p, 1, m, r), least(2 * p - 1, m));
                if (p % 2 == 0 && m % 2 == 0 && m >= 2 * p)
                    cr_assert_eq(held(PIPELINE_DUALPIPE, p, 1, m, r), p + 1);
            }
        }
    }
}

/* Megatron-LM's rule: the first rank holds 1 + (p - 1)/(p v) times the activations of p
 * micro-batches: 1.375 and 6 of them (rounded up) for p 4, v 2; 1.175 and 10 for p 8, v 5. */
Test(pipeline, interleaving_costs_memory)
{
    double chunks = held(PIPELINE_INTERLEAVED, 4, 2, 16, 0);
    cr_expect_float_eq(chunks / 2 / 4, 1.375, 1e-12);
    cr_expect_eq(ceil(chunks / 2), 6);
    chunks = held(PIPELINE_INTERLEAVED, 8, 5, 32, 0);
    cr_expect_float_eq(chunks / 5 / 8, 1.175, 1e-12);
    cr_expect_eq(ceil(chunks / 5), 10);
    for (uint32_t p = 2; p <= 8; p++) {
        for (uint32_t v = 2; v <= 4; v++) {
            cr_expect_eq(held(PIPELINE_INTERLEAVED, p, v, 4 * p, 0), p * v + p - 1);
            cr_expect_eq(held(PIPELINE_INTERLEAVED, p, v, 4 * p, p - 1), p * (v - 1) + 1);
        }
    }
}

/* ---- random stages, ranks and messages ---- */

/* A plain interpreter: ranks in turn, each as far as it comes, until all are done. */
static void plain_run(const struct pipeline *p, const struct pipeline_costs *costs,
                      struct task_span *spans)
{
    uint32_t ranks = p->shape.ranks;
    size_t slots = (size_t)ranks * p->chunks * p->shape.micro, left = p->first[ranks];
    ps_t *done[2] = {mem_calloc(slots, sizeof(ps_t)), mem_calloc(slots, sizeof(ps_t))};
    ps_t *come[2] = {mem_calloc(slots, sizeof(ps_t)), mem_calloc(slots, sizeof(ps_t))};
    ps_t *lane = mem_calloc(3 * (size_t)ranks, sizeof *lane);
    size_t *next = mem_calloc(ranks, sizeof *next);
    for (uint32_t r = 0; left; r = (r + 1) % ranks) {
        for (; p->first[r] + next[r] < p->first[r + 1]; next[r]++, left--) {
            size_t i = p->first[r] + next[r];
            const struct pipeline_task *t = &p->tasks[i];
            ps_t start = next[r] ? spans[i - 1].end_ps : 0;
            bool sides[2] = {t->kind == PIPELINE_F || t->kind == PIPELINE_PAIR,
                             t->kind != PIPELINE_F && t->kind != PIPELINE_W};
            bool ready = true;
            uint32_t q, c;
            for (int s = 0; s < 2; s++) {
                if (!sides[s] || !pipeline_next(p, r, t->chunk[s], s ? 1 : -1, &q, &c)) continue;
                size_t slot = pipeline_slot(p, r, t->chunk[s], t->micro[s]);
                ready = ready && done[s][slot];
                start = come[s][slot] > start ? come[s][slot] : start;
            }
            if (!ready) break;
            ps_t end = start + pipeline_task_ps(p, costs, r, t);
            spans[i] = (struct task_span){start, end};
            for (int s = 0; s < 2; s++) {
                if (!sides[s] || !pipeline_next(p, r, t->chunk[s], s ? -1 : 1, &q, &c)) continue;
                size_t slot = pipeline_slot(p, q, c, t->micro[s]);
                ps_t *l =
                    ranks == 2 ? &lane[2 * r + (unsigned)s] : &lane[2 * r + (q == (r + 1) % ranks)];
                done[s][slot] = 1;
                come[s][slot] = end;
                if (q == r) continue;
                *l = (*l > end ? *l : end) + costs->message_ps;
                come[s][slot] = *l + costs->latency_ps;
            }
        }
    }
    free(done[0]), free(done[1]), free(come[0]), free(come[1]), free(lane), free(next);
}

static void check_accounts(const struct made *made)
{
    const struct pipeline *p = made->pipeline;
    const struct pipeline_run *run = &made->run;
    ps_t blamed = 0, bubble = 0;
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        const struct pipeline_rank *rank = &run->ranks[r];
        cr_assert_eq(busy(rank) + rank->bubble_ps + rank->message_ps, run->step_ps);
        blamed += rank->blame_ps;
        bubble += rank->bubble_ps;
    }
    cr_assert_eq(blamed, bubble);
    cr_assert_leq(run->step_ps, run->end_ps);
}

Test(pipeline, random_runs_agree_and_add_up)
{
    struct rng rng;
    rng_init(&rng, 5);
    struct pipeline_run kept = {0};
    for (int i = 0; i < 600; i++) {
        enum pipeline_id id = (enum pipeline_id)(i % NPIPELINES);
        struct pipeline_shape shape = {id, 1 + (uint32_t)rng_below(&rng, 9), 1,
                                       1 + (uint32_t)rng_below(&rng, 30), 0};
        if (id == PIPELINE_INTERLEAVED) {
            shape.chunks = 2 + (uint32_t)rng_below(&rng, 3);
            shape.micro *= shape.ranks;
        } else if (id >= PIPELINE_DUALPIPE) {
            shape.ranks *= 2;
            shape.micro = 2 * shape.ranks + 2 * shape.micro;
        }
        struct made made;
        make(&made, shape, 840, 840, 840);
        double *factors = mem_calloc(shape.ranks, sizeof *factors);
        for (uint32_t r = 0; r < shape.ranks; r++) {
            factors[r] = rng_below(&rng, 4) ? 1 : 1 + 0.1 * (double)rng_below(&rng, 9);
        }
        for (uint32_t s = 0; s < 3 * made.pipeline->stages; s++) {
            made.stage_ps[s] = rng_below(&rng, 8) ? 1 + rng_below(&rng, 100000) : 0;
        }
        made.costs.rank_factor = factors;
        made.costs.pair_factor = i % 3 ? 0.9 : 0;
        made.costs.message_ps = i % 2 ? rng_below(&rng, 50000) : 0;
        made.costs.latency_ps = i % 4 ? rng_below(&rng, 20000) : 0;
        made.run = kept; /* its memory is used again */
        go(&made);
        check_accounts(&made);
        size_t n = made.pipeline->first[shape.ranks];
        struct task_span *spans = mem_calloc(n, sizeof *spans);
        plain_run(made.pipeline, &made.costs, spans);
        for (size_t k = 0; k < n; k++) {
            cr_assert_eq(spans[k].start_ps, made.run.spans[k].start_ps, "%d: task %zu", i, k);
            cr_assert_eq(spans[k].end_ps, made.run.spans[k].end_ps);
        }
        free(spans);
        free(factors);
        kept = made.run;
        made.run = (struct pipeline_run){0};
        unmake(&made);
    }
    pipeline_run_release(&kept);
}

/* One micro-batch goes down and up the pipeline: every message counts. */
Test(pipeline, messages_of_one_micro_batch)
{
    struct made made;
    make(&made, (struct pipeline_shape){PIPELINE_1F1B, 5, 1, 1, 0}, 1000, 1000, 500);
    made.costs.message_ps = 70;
    made.costs.latency_ps = 11;
    go(&made);
    cr_expect_eq(made.run.step_ps, 5 * 2500 + 2 * 4 * (70 + 11));
    cr_expect_eq(made.run.ranks[0].message_ps, 2 * 4 * (70 + 11));
    cr_expect_eq(made.run.ranks[0].bubble_ps, 4 * 2500);
    unmake(&made);
}

/* A message lane holds up the pipeline where it is slower than the stages. */
Test(pipeline, slow_lane_sets_the_pace)
{
    struct made made;
    make(&made, (struct pipeline_shape){PIPELINE_GPIPE, 2, 1, 10, 0}, 1000, 1000, 0);
    made.costs.message_ps = 3000;
    go(&made);
    /* the last activation is there at 1000 + 30000, and when stage 1 has done its first backward,
     * at 33000, ten gradients follow */
    cr_expect_eq(made.run.step_ps, 33000 + 10 * 3000 + 1000);
    unmake(&made);
}

/* A slow rank paces all, and is found. */
Test(pipeline, slow_rank_is_blamed)
{
    double factors[4] = {1, 1, 1.5, 1};
    struct made made;
    make(&made, (struct pipeline_shape){PIPELINE_1F1B, 4, 1, 32, 0}, 1000, 1000, 1000);
    made.costs.rank_factor = factors;
    go(&made);
    /* to rank 2, its work, its wait for the first gradient, and back to rank 0 */
    cr_expect_eq(made.run.step_ps, 2 * 1000 + 32 * 4500 + 1500 + 2 * 2000);
    for (uint32_t r = 0; r < 4; r++) {
        if (r != 2) cr_expect_gt(made.run.ranks[2].blame_ps, made.run.ranks[r].blame_ps);
    }
    unmake(&made);
}

/* Twice the times, twice the step, whatever the schedule. */
static void twice(const struct pipeline *pipeline, size_t *count)
{
    struct made made;
    make(&made, pipeline->shape, 840, 1680, 840);
    made.costs.message_ps = 77;
    made.costs.latency_ps = 5;
    go(&made);
    ps_t once = made.run.step_ps;
    for (uint32_t s = 0; s < 3 * made.pipeline->stages; s++) {
        made.stage_ps[s] *= 2;
    }
    made.costs.message_ps *= 2;
    made.costs.latency_ps *= 2;
    go(&made);
    cr_assert_eq(made.run.step_ps, 2 * once);
    check_accounts(&made);
    unmake(&made);
    ++*count;
}

Test(pipeline, twice_the_times)
{
    size_t count = 0;
    all_shapes(8, 4, 16, twice, &count);
    cr_assert_gt(count, 500);
}
