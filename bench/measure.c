/* SPDX-License-Identifier: Apache-2.0
 * The rank's side of a run: see measure.h. For each row and placement
 *
 *   open, check, warm up | copies, samples | copies, samples | .. | last check, report, close
 *                          segment 1         segment 2
 *
 * where the copies measure what memory gives for the same working set, between the samples, and
 * nothing is built, allocated or touched for the first time while a clock runs. */
#include "bench/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "bench/board.h"
#include "bench/bound.h"
#include "bench/calibrate.h"
#include "bench/check.h"
#include "bench/clock.h"
#include "bench/ready.h"
#include "bench/speed.h"
#include "bench/stats.h"
#include "exec/exec.h"
#include "exec/launch.h"

enum {
    CLOCK_SHARE = 50, /* a sample takes at least so many readings of the clock */
    BATCH_MOST = 1000,
};

/* All that one rank has. */
struct bench {
    struct rank *rk;
    struct err *err;
    const struct plan *plan;
    const struct transport *transport;
    const struct kernels *kernels;
    struct ready_set ready;
    struct facts facts;
    uint8_t *memory; /* of input and output, for the largest row */
    size_t memory_bytes;
    uint8_t *slot;            /* private buffers: to measure handing over with; else NULL */
    const uint8_t *next_slot; /* the next rank's */
    uint32_t handles;         /* opened so far */
    uint64_t planted;         /* element to make wrong, UINT64_MAX: none */
    uint64_t *samples;        /* own, on the board */
};

/* One placement of one row. */
struct side {
    struct bench *bench;
    const struct plan_row *row;
    bool in_place;
    const struct ready *ready;
    const struct linked *linked;
    struct check check;
    struct exec *exec;
    size_t mark; /* of the extent before the handle was opened */
    uint64_t rounds;
    uint64_t batch, nsamples;
    struct speed speed;
    struct result result; /* rank 0 */
    double *us;           /* rank 0: nsamples, over all ranks */
};

static void says(const struct side *side, const char *phase)
{
    rank_says(side->bench->rk, "%s %s, %zu B, %s, %s", coll_get(side->bench->plan->coll)->name,
              side->row->choice.algo->name, side->row->bytes,
              side->in_place ? "in place" : "out of place", phase);
}

/* ---- the operation ---- */

static void operate(const struct side *side)
{
    struct rank *rk = side->bench->rk;
    if (rk->fault) launch_fault(rk);
    exec_run(side->exec);
}

/* The measuring loop: `count` samples of side->batch operations, back to back, in nanoseconds. */
static void run_samples(const struct side *side, uint64_t *samples, uint64_t count)
{
    uint64_t before = clock_ns();
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t b = 0; b < side->batch; b++)
            operate(side);
        uint64_t now = clock_ns();
        samples[i] = now - before;
        before = now;
    }
}

/* ---- data check ---- */

/* Rounds [from, to), each with its own data. Every rank learns the number of wrong elements. */
static uint64_t run_check(struct side *side, uint64_t from, uint64_t to)
{
    struct rank *rk = side->bench->rk;
    size_t esize = dtype_bytes(side->row->dtype);
    says(side, "checking");
    for (uint64_t round = from; round < to; round++) {
        uint64_t salt = side->row->index * 1000003 + round;
        check_fill(&side->check, salt);
        rank_barrier(rk);
        operate(side);
        if (side->bench->planted < side->row->out_bytes / esize) {
            uint8_t *out = side->check.memory + side->check.places.out;
            out[side->bench->planted * esize] ^= 1;
        }
        check_result(&side->check, salt);
    }
    rank_barrier(rk);
    uint64_t wrong = 0;
    for (uint32_t r = 0; r < rk->nranks; r++)
        wrong += board_place(rk->world, r)->wrong;
    rank_barrier(rk);
    return wrong;
}

/* ---- warming up, and what follows from it ---- */

/* Runs `count` operations as the timed ones run; seconds per operation, 0 when there were none. */
static double warm_up(const struct side *side, uint64_t count)
{
    const struct bench *bench = side->bench;
    uint64_t last = 0;
    for (uint64_t left = count; left > 0; left -= last) {
        last = left < bench->plan->samples_cap ? left : bench->plan->samples_cap;
        run_samples(side, bench->samples, last);
    }
    if (last == 0) return 0;
    double *ns = mem_calloc(last, sizeof *ns);
    for (uint64_t i = 0; i < last; i++)
        ns[i] = (double)bench->samples[i];
    double median = stats_median(ns, last);
    free(ns);
    return median / 1e9;
}

/* seconds / each, rounded up, within least..most. */
static uint64_t how_many(double seconds, double each, uint64_t least, uint64_t most)
{
    double count = each > 0 ? ceil(seconds / each) : (double)least;
    if (!(count > (double)least)) return least;
    return count < (double)most ? (uint64_t)count : most;
}

/* Warms up and settles batch and number of samples, the same on all ranks. */
static void settle(struct side *side)
{
    struct bench *bench = side->bench;
    const struct plan *plan = bench->plan;
    says(side, "warming up");
    side->batch = 1;
    rank_barrier(bench->rk);
    double op_s = warm_up(side, plan->warmup);
    if (plan->warm_longer) {
        uint64_t more = board_agree(bench->rk, how_many(PLAN_WARM_S, op_s, 1, PLAN_WARM_MOST));
        op_s = warm_up(side, more);
    }
    double least_s = CLOCK_SHARE * bench->facts.clock_cost_s;
    side->batch = board_agree(bench->rk, how_many(least_s, op_s, plan->batch, BATCH_MOST));
    side->nsamples = plan->samples;
    if (!plan->samples) {
        uint64_t count = how_many(PLAN_SAMPLES_S, op_s * (double)side->batch, PLAN_SAMPLES_LEAST,
                                  PLAN_SAMPLES_MOST);
        side->nsamples = board_agree(bench->rk, count);
    }
}

/* ---- timing ---- */

/* One sample over all ranks, in microseconds per operation. */
static double combine(const struct bench *bench, uint64_t i, uint64_t batch)
{
    struct world *world = bench->rk->world;
    double value = (double)bench->samples[i], sum = value;
    for (uint32_t r = 1; r < bench->rk->nranks; r++) {
        double other = (double)board_samples(world, r)[i];
        sum += other;
        bool takes = (bench->plan->average == AVERAGE_MAX && other > value) ||
                     (bench->plan->average == AVERAGE_MIN && other < value);
        if (takes) value = other;
    }
    if (bench->plan->average == AVERAGE_MEAN) value = sum / bench->rk->nranks;
    return value / 1e3 / (double)batch;
}

/* Rank 0: statistics and bound. */
static void conclude(struct side *side, uint64_t segments)
{
    const struct plan *plan = side->bench->plan;
    struct result *result = &side->result;
    side->us = mem_calloc(side->nsamples, sizeof *side->us);
    double *sorted = mem_calloc(side->nsamples, sizeof *sorted);
    for (uint64_t i = 0; i < side->nsamples; i++)
        side->us[i] = sorted[i] = combine(side->bench, i, side->batch);
    struct stats stats = stats_of(sorted, side->nsamples);
    free(sorted);
    result->time_us = stats.mean;
    result->min_us = stats.min;
    result->p50_us = stats.p50;
    result->p95_us = stats.p95;
    result->p99_us = stats.p99;
    result->max_us = stats.max;
    result->nsamples = side->nsamples;
    result->batch = side->batch;
    struct bound least =
        bound_least(plan->coll, plan->nranks, side->row->bytes, plan->shared, side->in_place);
    result->bound_us = bound_us(&least, speed_copy_Bps(&side->speed, segments),
                                speed_slot_Bps(&side->speed, segments));
}

static void run_timed(struct side *side)
{
    struct bench *bench = side->bench;
    settle(side);
    says(side, "timing");
    uint64_t segments = side->nsamples < SPEED_SEGMENTS ? side->nsamples : SPEED_SEGMENTS;
    for (uint64_t s = 0; s < segments; s++) {
        uint64_t first = side->nsamples * s / segments, end = side->nsamples * (s + 1) / segments;
        speed_measure(&side->speed, s);
        rank_barrier(bench->rk);
        if (bench->plan->warmup > 0) operate(side); /* takes up the skew of the barrier */
        run_samples(side, bench->samples + first, end - first);
    }
    rank_barrier(bench->rk); /* now all samples can be read, */
    if (bench->rk->rank == 0) conclude(side, segments);
    rank_barrier(bench->rk); /* and from here on written again */
}

/* ---- reporting ---- */

static void describe(struct side *side)
{
    const struct plan *plan = side->bench->plan;
    const struct plan_row *row = side->row;
    const struct coll *coll = coll_get(plan->coll);
    struct result *result = &side->result;
    *result = (struct result){
        .source = SOURCE_MEASURED,
        .coll = coll->id,
        .root = coll->rooted ? (int)plan->root : -1,
        .nranks = plan->nranks,
        .in_place = side->in_place,
        .bytes = row->bytes,
        .count = row->block_count,
        .time_us = NAN,
        .min_us = NAN,
        .p50_us = NAN,
        .p95_us = NAN,
        .p99_us = NAN,
        .max_us = NAN,
        .batch = plan->batch,
        .wrong = -1,
        .steps = exec_steps(side->exec),
        .passes = exec_passes(side->exec),
        .channels = row->choice.channels,
        .parts = row->choice.parts,
    };
    snprintf(result->algo, sizeof result->algo, "%s", row->choice.algo->name);
    snprintf(result->transport, sizeof result->transport, "%s/%s", side->bench->transport->name,
             wire_mode_name(side->linked->opts.mode));
    snprintf(result->buffers, sizeof result->buffers, "%s", plan->shared ? "shared" : "private");
    snprintf(result->dtype, sizeof result->dtype, "%s", dtype_name(row->dtype));
    snprintf(result->redop, sizeof result->redop, "%s",
             coll->reduces ? redop_name(row->op) : "none");
}

static int send_samples(const struct side *side, struct message *message)
{
    message->kind = MESSAGE_SAMPLES;
    for (uint64_t done = 0, n; done < side->result.nsamples; done += n) {
        n = side->result.nsamples - done;
        if (n > SAMPLES_PER_MESSAGE) n = SAMPLES_PER_MESSAGE;
        message->u.samples.count = n;
        memcpy(message->u.samples.us, side->us + done, n * sizeof(double));
        if (rank_send(side->bench->rk, message, sizeof *message, side->bench->err)) return -1;
    }
    return 0;
}

/* Rank 0: sends the samples, then the result. */
static int report(struct side *side)
{
    struct rank *rk = side->bench->rk;
    struct message message;
    memset(&message, 0, sizeof message);
    if (send_samples(side, &message)) return -1;
    result_bandwidths(&side->result);
    if (isnan(side->result.time_us)) side->result.algbw_GBps = side->result.busbw_GBps = NAN;
    message.kind = MESSAGE_RESULT;
    message.u.result.row = side->row->index;
    message.u.result.result = side->result;
    for (uint32_t r = rk->nranks; r-- > 0;) {
        const struct board_place *place = board_place(rk->world, r);
        if (!place->wrong) continue;
        message.u.result.wrong_rank = r;
        message.u.result.bad = place->bad;
        message.u.result.in_input = place->in_input;
    }
    return rank_send(rk, &message, sizeof message, side->bench->err);
}

/* ---- one placement ---- */

static int side_open(struct side *side)
{
    struct bench *bench = side->bench;
    const struct plan *plan = bench->plan;
    const struct plan_row *row = side->row;
    says(side, "opening");
    side->ready = ready_get(&bench->ready, plan, row, bench->err);
    if (!side->ready) return -1;
    side->linked = side->ready->linked[side->in_place ? IN_PLACE : OUT_OF_PLACE];
    side->check = (struct check){
        .rk = bench->rk,
        .plan = plan,
        .row = row,
        .in_place = side->in_place,
        .memory = bench->memory,
        .places = plan_places(plan, row, bench->rk->rank, side->in_place),
    };
    side->speed = (struct speed){
        .rk = bench->rk,
        .kernels = bench->kernels,
        .memory = bench->memory,
        .bytes = side->check.places.bytes,
        .rewrites = side->in_place && bound_rewrites(plan->coll),
        .cores = plan->cores,
        .clock_s = bench->facts.clock_cost_s,
        .slot = bench->slot,
        .from = bench->next_slot,
        .block = SLOTS_TOUCHED / 2,
    };
    side->rounds = check_rounds(plan, row, side->ready->sched->nparts);
    side->mark = rank_mark(bench->rk);
    board_place(bench->rk->world, bench->rk->rank)->wrong = 0;
    struct exec_spec spec = {
        .linked = side->linked,
        .rank = bench->rk,
        .me = bench->rk->rank,
        .tag = ++bench->handles,
        .transport = bench->transport,
        .in = bench->memory + side->check.places.in,
        .out = bench->memory + side->check.places.out,
        .shared = plan->shared,
        .dtype = row->dtype,
        .op = row->op,
        .block_count = row->block_count,
        .slice_bytes = plan->slice_bytes,
        .depth = plan->depth,
    };
    side->exec = exec_open(&spec, bench->err);
    return side->exec ? 0 : -1;
}

/* Nobody leaves before all are done with his memory, and nobody reuses it before all have left. */
static void side_close(struct side *side)
{
    struct rank *rk = side->bench->rk;
    rank_barrier(rk);
    exec_close(side->exec);
    rank_barrier(rk);
    rank_rewind(rk, side->mark);
    free(side->us);
}

static int run_side(struct bench *bench, const struct plan_row *row, bool in_place)
{
    struct side side = {.bench = bench, .row = row, .in_place = in_place};
    if (side_open(&side)) return -1;
    describe(&side);
    /* All rounds but the last come first, the last one comes behind the timed operations. */
    uint64_t before = side.rounds ? side.rounds - 1 : 0, wrong = 0;
    side.batch = 1;
    wrong = run_check(&side, 0, before);
    if (wrong == 0) run_timed(&side);
    if (side.rounds) {
        wrong = run_check(&side, before, side.rounds);
        side.result.wrong = (int64_t)wrong;
    }
    int bad = bench->rk->rank == 0 ? report(&side) : 0;
    side_close(&side);
    return bad;
}

/* ---- the rank ---- */

/* A slot that peers can map, in the same place of every rank's extent. */
static int allocate_slot(struct bench *bench)
{
    struct rank *rk = bench->rk;
    bench->slot = rank_alloc(rk, SLOTS_TOUCHED, bench->err);
    uint8_t *own = world_extent(rk->world, rk->rank, bench->err);
    uint8_t *next = world_extent(rk->world, (rk->rank + 1) % rk->nranks, bench->err);
    if (!bench->slot || !own || !next) return -1;
    rank_barrier(rk); /* it is there on all ranks */
    bench->next_slot = next + (bench->slot - own);
    return rank_prefault(rk, next + (bench->slot - own), SLOTS_TOUCHED, bench->err);
}

/* Memory for input and output of the largest row, filled in so that no page is missing later. */
static int allocate(struct bench *bench)
{
    const struct plan *plan = bench->plan;
    bench->memory_bytes = plan_touched(plan, bench->rk->rank);
    if (bench->memory_bytes == 0) bench->memory_bytes = 1; /* addresses for empty buffers */
    if (plan->shared) {
        bench->memory = rank_alloc(bench->rk, bench->memory_bytes, bench->err);
        return bench->memory ? 0 : -1;
    }
    void *map =
        mmap(NULL, bench->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return err_add(bench->err, ERR_USAGE, "cannot map %zu B of private memory",
                       bench->memory_bytes);
    }
    bench->memory = map;
    if (rank_prefault(bench->rk, map, bench->memory_bytes, bench->err)) return -1;
    return allocate_slot(bench);
}

static int run_rows(struct bench *bench)
{
    const struct plan *plan = bench->plan;
    struct plan_row row;
    plan_first(plan, &row);
    do {
        for (int place = 0; place < NPLACES; place++) {
            if (plan->place[place] && run_side(bench, &row, place == IN_PLACE)) return -1;
        }
    } while (plan_next(plan, &row));
    return 0;
}

static int send_facts(struct bench *bench)
{
    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = MESSAGE_FACTS;
    message.u.facts = bench->facts;
    return rank_send(bench->rk, &message, sizeof message, bench->err);
}

int measure_rank(struct rank *rk, struct err *err)
{
    const struct plan *plan = board_plan(rk->world);
    struct bench bench = {
        .rk = rk,
        .err = err,
        .plan = plan,
        .transport = transport_table()[plan->transport],
        .kernels = kernels_get(err),
        .samples = board_samples(rk->world, rk->rank),
    };
    rank_says(rk, "%s, starting", coll_get(plan->coll)->name);
    if (rk->fault) launch_fault(rk);
    int bad = bench.kernels ? check_plant(rk, &bench.planted, err) : -1;
    if (!bad) bad = allocate(&bench);
    if (!bad) {
        bench.facts = calibrate(rk);
        bad = rk->rank == 0 ? send_facts(&bench) : 0;
    }
    if (!bad) bad = run_rows(&bench);
    ready_release(&bench.ready);
    if (!plan->shared && bench.memory) munmap(bench.memory, bench.memory_bytes);
    return bad;
}
