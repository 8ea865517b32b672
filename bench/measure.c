/* SPDX-License-Identifier: Apache-2.0
 * The rank's side of a run: see measure.h. For each row and placement
 *
 *   open, check | warm up, samples (timing.h) | last check, report, close
 *
 * Rows come in the order of the plan, or in one drawn by lot, the same on all ranks. */
#include "bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/board.h"
#include "bench/calibrate.h"
#include "bench/repeat.h"
#include "bench/rival.h"
#include "bench/timing.h"
#include "bench/trace.h"
#include "exec/device.h"
#include "exec/launch.h"

/* All that one rank has. */
struct measure {
    struct bench bench;
    struct rival rival;
    struct facts facts;
    uint64_t order; /* rows begun so far */
};

/* ---- reporting ---- */

static int send_samples(const struct bench *bench, const double *us, uint64_t count,
                        struct message *message)
{
    message->kind = MESSAGE_SAMPLES;
    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done;
        if (n > SAMPLES_PER_MESSAGE) n = SAMPLES_PER_MESSAGE;
        message->u.samples.count = n;
        memcpy(message->u.samples.us, us + done, n * sizeof(double));
        if (rank_send(bench->rk, message, sizeof *message, bench->err)) return -1;
    }
    return 0;
}

/* Rank 0: sends the samples of each series, then its result. */
static int report(const struct timing *timing, const struct result *results,
                  const struct wrong *wrongs)
{
    const struct bench *bench = timing->side->bench;
    for (uint32_t s = 0; s < timing->nseries; s++) {
        struct message message;
        memset(&message, 0, sizeof message);
        if (send_samples(bench, timing->series[s].us, results[s].nsamples, &message)) return -1;
        message.kind = MESSAGE_RESULT;
        message.u.result.row = timing->side->row->index;
        message.u.result.series = s;
        message.u.result.nseries = timing->nseries;
        message.u.result.result = results[s];
        message.u.result.first = wrongs[s];
        if (rank_send(bench->rk, &message, sizeof message, bench->err)) return -1;
    }
    return 0;
}

/* ---- one placement of a row ---- */

/* What is known before anything is measured. */
static void describe(struct measure *measure, const struct side *side, struct result *results)
{
    for (int s = 0; s < NSERIES; s++) {
        results[s] = side_describe(side);
        results[s].launch = measure->bench.plan->launch;
        results[s].order = measure->order;
    }
}

static void conclude(struct measure *measure, const struct timing *timing, struct result *results)
{
    for (uint32_t s = 0; s < timing->nseries; s++) {
        timing_conclude(timing, &timing->series[s], &results[s]);
        result_bandwidths(&results[s]);
    }
    rival_conclude(&measure->rival, results);
}

static void run_timed(struct measure *measure, struct timing *timing, struct result *results)
{
    struct rank *rk = measure->bench.rk;
    rival_warm(&measure->rival);
    timing_run(timing);
    struct board_place *place = board_place(rk->world, rk->rank);
    place->cpu_s = timing->series[SERIES_OTHER].cpu_s;
    place->wall_s = timing->series[SERIES_OTHER].wall_s;
    board_show(rk);
    rank_barrier(rk);
    if (rk->rank == 0) conclude(measure, timing, results);
    rank_barrier(rk);
}

static int run_side(struct measure *measure, const struct plan_row *row, bool in_place)
{
    struct bench *bench = &measure->bench;
    struct side side;
    if (side_open(&side, bench, row, in_place, false)) return -1;
    struct timing timing = {.side = &side, .facts = &measure->facts};
    struct runner own = side_runner(&side);
    timing.series[SERIES_OWN].runner = own;
    struct result results[NSERIES];
    describe(measure, &side, results);
    rival_meet(&measure->rival, &timing);
    rival_name(&measure->rival, results);
    timing_open(&timing);
    /* All rounds but the last come first, the last one comes behind the timed operations. */
    struct wrong wrongs[NSERIES] = {{0}};
    uint64_t before = side.rounds ? side.rounds - 1 : 0, wrong = 0, others = 0;
    if (side.rounds) {
        others = rival_check(&measure->rival, side.rounds, &wrongs[SERIES_OTHER]);
        results[SERIES_OTHER].wrong = (int64_t)others;
        rival_name(&measure->rival, results); /* of several ways, the wrong one */
        wrong = side_check(&side, &own, 0, before, &wrongs[SERIES_OWN]);
    }
    uint32_t nseries = timing.nseries;
    if (others > 0) timing.nseries = 1; /* what is wrong is not timed */
    if (wrong == 0) run_timed(measure, &timing, results);
    timing.nseries = nseries;
    if (side.rounds) {
        wrong = side_check(&side, &own, before, side.rounds, &wrongs[SERIES_OWN]);
        results[SERIES_OWN].wrong = (int64_t)wrong;
    }
    bool emulated = bench->rk->device && bench->rk->device->gpu->emulated;
    for (int s = 0; emulated && s < NSERIES; s++)
        results[s].source = SOURCE_EMULATED;
    int bad = bench->rk->rank == 0 ? report(&timing, results, wrongs) : 0;
    timing_close(&timing);
    side_close(&side);
    return bad;
}

/* ---- the rank ---- */

static int run_rows(struct measure *measure)
{
    const struct plan *plan = measure->bench.plan;
    struct plan_walk walk;
    plan_walk_open(plan, &walk);
    int bad = 0;
    do {
        measure->order++;
        for (int place = 0; !bad && place < NPLACES; place++) {
            if (plan->place[place]) bad = run_side(measure, &walk.row, place == IN_PLACE);
        }
    } while (!bad && plan_walk_next(plan, &walk));
    plan_walk_close(&walk);
    return bad;
}

static int send_facts(struct measure *measure)
{
    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = MESSAGE_FACTS;
    message.u.facts = measure->facts;
    const char *says = rival_says(&measure->rival);
    if (says) snprintf(message.u.facts.mpi, sizeof message.u.facts.mpi, "%s", says);
    const struct transport *transport = measure->bench.transport;
    if (measure->bench.rk->device && transport->gpu_says)
        transport->gpu_says(measure->bench.rk, message.u.facts.gpus, sizeof message.u.facts.gpus);
    return rank_send(measure->bench.rk, &message, sizeof message, measure->bench.err);
}

static int measure_all(struct rank *rk, struct err *err)
{
    struct measure measure = {0};
    int bad = bench_open(&measure.bench, rk, err) || rival_open(&measure.rival, &measure.bench);
    if (!bad) {
        measure.facts = calibrate(rk);
        bad = rk->rank == 0 ? send_facts(&measure) : 0;
    }
    if (!bad) bad = run_rows(&measure);
    rival_close(&measure.rival);
    bench_close(&measure.bench);
    return bad ? -1 : 0;
}

int measure_rank(struct rank *rk, struct err *err)
{
    static int (*const modes[])(struct rank *, struct err *) = {
        [MODE_TIME] = measure_all,
        [MODE_TRACE] = trace_rank,
        [MODE_REPEAT] = repeat_rank,
    };
    return modes[board_plan(rk->world)->mode](rk, err);
}
