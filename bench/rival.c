/* SPDX-License-Identifier: Apache-2.0
 * What the operation is compared with: see rival.h. */
#include "bench/rival.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/clock.h"
#include "bench/stats.h"

enum { PROBES = 5, PROBE_CALLS_MOST = 100, WARMUP_LEAST = 6 };
#define PROBE_S 1e-3

/* ---- a library ---- */

static void queue_library(void *ctx)
{
    struct rival *rival = ctx;
    rival->opponent->start(rival->library, rival->way);
}

static void wait_library(void *ctx)
{
    struct rival *rival = ctx;
    if (rival->opponent->finish) rival->opponent->finish(rival->library);
}

static void call_library(void *ctx)
{
    queue_library(ctx);
    wait_library(ctx);
}

static int open_library(struct rival *rival)
{
    rival->library = rival->opponent->open(rival->bench);
    return rival->library ? 0 : -1;
}

/* The first way from `way` on that the library has; nways: none. */
static unsigned next_way(const struct rival *rival, unsigned way)
{
    while (way < rival->opponent->nways && !rival->opponent->has(rival->library, way))
        way++;
    return way;
}

static void meet_library(struct rival *rival, struct timing *timing)
{
    const char *why = rival->opponent->meet(rival->library, timing->side); /* was noted */
    rival->way = next_way(rival, 0);
    if (why || rival->way == rival->opponent->nways) timing->nseries = 1;
    bool queues = rival->opponent->finish != NULL;
    timing->series[SERIES_OTHER].runner = (struct runner){
        call_library, rival, queues ? queue_library : NULL, queues ? wait_library : NULL};
}

/* Seconds per call of each way, into op_s: warms all up, then tries them in turns. */
static void try_ways(struct rival *rival, double *op_s)
{
    struct timing *timing = rival->timing;
    struct series *series = &timing->series[SERIES_OTHER];
    const struct plan *plan = timing->side->bench->plan;
    unsigned nways = rival->opponent->nways;
    double *tries_s = mem_calloc(nways, PROBES * sizeof *tries_s);
    uint64_t warmup = plan->warmup > WARMUP_LEAST ? plan->warmup : WARMUP_LEAST;
    for (unsigned way = next_way(rival, 0); way < nways; way = next_way(rival, way + 1)) {
        rival->way = way;
        op_s[way] = timing_warm(timing, series, warmup);
        if (plan->warm_longer) timing_warm(timing, series, timing_warm_more(op_s[way]));
    }
    for (unsigned probe = 0; probe < PROBES; probe++) {
        for (unsigned way = next_way(rival, 0); way < nways; way = next_way(rival, way + 1)) {
            rival->way = way;
            double calls = op_s[way] > 0 ? PROBE_S / op_s[way] : 1;
            calls = fmin(fmax(calls, 1), PROBE_CALLS_MOST);
            tries_s[way * PROBES + probe] = timing_warm(timing, series, (uint64_t)calls);
        }
    }
    for (unsigned way = 0; way < nways; way++)
        op_s[way] = stats_median(tries_s + way * PROBES, PROBES);
    free(tries_s);
}

/* Takes the way that is the best here. */
static void warm_library(struct rival *rival)
{
    unsigned nways = rival->opponent->nways, best = next_way(rival, 0);
    double *op_s = mem_calloc(nways, sizeof *op_s);
    try_ways(rival, op_s);
    for (unsigned way = best; way < nways; way = next_way(rival, way + 1)) {
        if (op_s[way] < op_s[best]) best = way;
    }
    rival->way = (unsigned)board_agree(rival->bench->rk, best);
    rival->timing->series[SERIES_OTHER].op_s = op_s[rival->way];
    free(op_s);
}

/* Every way must give the right data; the first that does not is left as the one at hand. */
static uint64_t check_library(struct rival *rival, uint64_t rounds, struct wrong *first)
{
    const struct opponent *opponent = rival->opponent;
    const struct runner *runner = &rival->timing->series[SERIES_OTHER].runner;
    for (unsigned way = rival->way; way < opponent->nways; way = next_way(rival, way + 1)) {
        struct side side = *rival->timing->side;
        rival->way = way;
        side.check.memory = opponent->memory(rival->library, way);
        side.check.places.out = opponent->result(rival->library);
        uint64_t wrong = side_check(&side, runner, 0, rounds, first);
        if (wrong) return wrong;
    }
    rival->way = next_way(rival, 0);
    return 0;
}

/* ---- all groups at once ---- */

static void meet_groups(struct rival *rival, struct timing *timing)
{
    (void)rival;
    timing->series[SERIES_OTHER].runner = timing->series[SERIES_OWN].runner;
    timing->series[SERIES_OWN].one_group = true;
}

/* ---- beside compute ---- */

enum { LANES = 16, UNIT_ROUNDS = 16, CALIBRATE_UNITS = 20000 };

/* `units` of arithmetic in registers: nothing that the operation could slow down but the core. */
static void compute(uint64_t units)
{
    double x[LANES];
    for (int i = 0; i < LANES; i++)
        x[i] = i;
    for (uint64_t u = 0; u < units * UNIT_ROUNDS; u++) {
        for (int i = 0; i < LANES; i++)
            x[i] = x[i] * 0.999 + 0.001;
    }
    volatile double sink = 0;
    for (int i = 0; i < LANES; i++)
        sink += x[i];
    (void)sink;
}

static double compute_s(uint64_t units)
{
    uint64_t start = clock_ns();
    compute(units);
    return (double)(clock_ns() - start) / 1e9;
}

static int open_overlap(struct rival *rival)
{
    double tries[PROBES];
    for (int i = 0; i < PROBES; i++)
        tries[i] = compute_s(CALIBRATE_UNITS);
    rival->units_per_s = CALIBRATE_UNITS / stats_median(tries, PROBES);
    return 0;
}

/* Starts the operation, computes, with plan->looks looks at the operation in between, and waits. */
static void run_beside(void *ctx)
{
    struct rival *rival = ctx;
    struct side *side = rival->timing->side;
    uint64_t pieces = side->bench->plan->looks + 1, done = 0;
    exec_start(side->exec);
    exec_progress(side->exec);
    for (uint64_t i = 1; i <= pieces; i++) {
        uint64_t to = rival->units * i / pieces;
        compute(to - done);
        done = to;
        if (i < pieces) exec_progress(side->exec);
    }
    for (struct waiter waiter = {0}; !exec_progress(side->exec);)
        waiter_pause(&waiter, side->bench->rk);
    rank_tick(side->bench->rk);
}

static void meet_overlap(struct rival *rival, struct timing *timing)
{
    rival->units = 0;
    timing->series[SERIES_OTHER].runner = (struct runner){.run = run_beside, .ctx = rival};
}

/* As much compute as the operation takes. */
static void warm_overlap(struct rival *rival)
{
    struct timing *timing = rival->timing;
    struct series *own = &timing->series[SERIES_OWN], *other = &timing->series[SERIES_OTHER];
    const struct plan *plan = timing->side->bench->plan;
    uint64_t warmup = plan->warmup > WARMUP_LEAST ? plan->warmup : WARMUP_LEAST;
    own->op_s = timing_warm(timing, own, warmup); /* how much to compute follows from it */
    if (plan->warm_longer) own->op_s = timing_warm(timing, own, timing_warm_more(own->op_s));
    rival->units = (uint64_t)ceil(own->op_s * rival->units_per_s);
    other->op_s = timing_warm(timing, other, warmup);
}

/* OSU's overlap: 100 % when the compute hides the whole operation, 0 % when it hides nothing. */
static void conclude_overlap(struct rival *rival, struct result *result, double pure_us)
{
    struct rank *rk = rival->bench->rk;
    double cpu = 0, wall = 0, tries[PROBES];
    for (uint32_t r = 0; r < rk->nranks; r++) {
        cpu += board_place(rk->world, r)->cpu_s;
        wall += board_place(rk->world, r)->wall_s;
    }
    for (int i = 0; i < PROBES; i++)
        tries[i] = compute_s(rival->units) * 1e6;
    result->compute_us = stats_median(tries, PROBES);
    double exposed = (result->p50_us - result->compute_us) / pure_us;
    result->overlap_pct = fmin(fmax(0, 100 - 100 * exposed), 100);
    result->cores = wall > 0 ? rk->nranks * cpu / wall : 0;
}

/* ---- one rank late ---- */

static void meet_skew(struct rival *rival, struct timing *timing)
{
    (void)rival;
    timing->series[SERIES_OTHER].runner = timing->series[SERIES_OWN].runner;
    timing->series[SERIES_OTHER].late = true;
}

/* ---- one table of all ---- */

static const struct kind {
    const char *own, *other; /* names of the series */
    const struct opponent *opponent;
    int (*open)(struct rival *);
    void (*meet)(struct rival *, struct timing *);
    void (*warm)(struct rival *);
    bool checks; /* the second series is not just the operation again */
} kinds[] = {
    [CONTEST_NONE] = {"", "", NULL, NULL, NULL, NULL, false},
    [CONTEST_MPI] = {"own", "mpi", &opponent_mpi, open_library, meet_library, warm_library, true},
    [CONTEST_NCCL] = {"own", "nccl", &opponent_nccl, open_library, meet_library, warm_library,
                      true},
    [CONTEST_GROUPS] = {"alone", "together", NULL, NULL, meet_groups, NULL, false},
    [CONTEST_OVERLAP] = {"pure", "overlapped", NULL, open_overlap, meet_overlap, warm_overlap,
                         true},
    [CONTEST_SKEW] = {"on time", "one late", NULL, NULL, meet_skew, NULL, false},
};

static const struct kind *kind_of(const struct rival *rival)
{
    return &kinds[rival->bench->plan->contest];
}

int rival_open(struct rival *rival, struct bench *bench)
{
    *rival = (struct rival){.bench = bench};
    rival->opponent = kind_of(rival)->opponent;
    return kind_of(rival)->open ? kind_of(rival)->open(rival) : 0;
}

void rival_close(struct rival *rival)
{
    if (rival->opponent) rival->opponent->close(rival->library);
}

const char *rival_says(const struct rival *rival)
{
    return rival->library ? rival->opponent->says(rival->library) : NULL;
}

void rival_meet(struct rival *rival, struct timing *timing)
{
    rival->timing = timing;
    timing->nseries = plan_series(rival->bench->plan);
    if (kind_of(rival)->meet) kind_of(rival)->meet(rival, timing);
}

uint64_t rival_check(struct rival *rival, uint64_t rounds, struct wrong *first)
{
    struct timing *timing = rival->timing;
    if (!kind_of(rival)->checks || timing->nseries < 2) return 0;
    if (rival->opponent) return check_library(rival, rounds, first);
    return side_check(timing->side, &timing->series[SERIES_OTHER].runner, 0, rounds, first);
}

void rival_warm(struct rival *rival)
{
    if (rival->timing->nseries == 2 && kind_of(rival)->warm) kind_of(rival)->warm(rival);
}

/* The verdict on the operation, against the library. */
static const char *verdict_of(const struct estimate *ratio)
{
    if (ratio->method == INTERVAL_NONE) return "";
    if (ratio->low > 1) return "faster";
    return ratio->high < 1 ? "slower" : "no difference";
}

static void name_library(const struct rival *rival, struct result *result)
{
    result->source = SOURCE_REFERENCE;
    snprintf(result->algo, sizeof result->algo, "%s", rival->opponent->name);
    result->steps = result->passes = 0;
    result->channels = result->parts = 0;
    rival->opponent->describe(rival->library, rival->way, result);
}

void rival_name(const struct rival *rival, struct result results[NSERIES])
{
    const struct kind *kind = kind_of(rival);
    struct result *own = &results[SERIES_OWN], *other = &results[SERIES_OTHER];
    snprintf(own->series, sizeof own->series, "%s", kind->own);
    snprintf(other->series, sizeof other->series, "%s", kind->other);
    if (rival->opponent) name_library(rival, other);
}

void rival_conclude(struct rival *rival, struct result results[NSERIES])
{
    const struct timing *timing = rival->timing;
    enum contest contest = rival->bench->plan->contest;
    struct result *own = &results[SERIES_OWN], *other = &results[SERIES_OTHER];
    if (timing->nseries < 2 && rival->opponent) /* why: a note, or what the library lacks */
        snprintf(own->verdict, sizeof own->verdict, "not compared");
    if (timing->nseries < 2) return;
    rival_name(rival, results); /* by now the form is known */
    struct estimate ratio = estimate_ratio(timing->series[SERIES_OWN].us,
                                           timing->series[SERIES_OTHER].us, timing->nsamples);
    own->ratio = ratio.value;
    if (ratio.method != INTERVAL_NONE) {
        own->ratio_low = ratio.low;
        own->ratio_high = ratio.high;
    }
    if (rival->opponent) snprintf(own->verdict, sizeof own->verdict, "%s", verdict_of(&ratio));
    if (contest == CONTEST_OVERLAP) conclude_overlap(rival, other, own->p50_us);
}
