/* SPDX-License-Identifier: Apache-2.0
 * Clock, barrier and cache line: see calibrate.h. Each figure is a median of short batches, so that
 * a rank losing its core once does not show. */
#include "bench/calibrate.h"

#include <math.h>

#include "bench/clock.h"
#include "bench/stats.h"

enum { BATCHES = 11, CLOCK_CALLS = 200, BARRIERS = 5, PINGS = 100, CROWDED_PINGS = 10 };
enum { SLOW_NS = 2000000 }; /* a first batch that takes longer is the only one */

static void calibrate_clock(struct facts *facts)
{
    double cost[BATCHES], step = INFINITY;
    for (int b = 0; b < BATCHES; b++) {
        uint64_t start = clock_ns(), last = start;
        for (int i = 0; i < CLOCK_CALLS; i++) {
            uint64_t now = clock_ns();
            if (now > last && (double)(now - last) < step) step = (double)(now - last);
            last = now;
        }
        cost[b] = (double)(last - start) / CLOCK_CALLS;
    }
    facts->clock_cost_s = stats_median(cost, BATCHES) / 1e9;
    facts->clock_step_s = step / 1e9;
}

/* How many batches to make after one that took `ns`; the same on all ranks. */
static uint64_t more_batches(struct rank *rk, double ns)
{
    return board_agree(rk, ns > SLOW_NS ? 0 : BATCHES - 1);
}

static double barrier_batch(struct rank *rk)
{
    uint64_t start = clock_ns(), count = rk->crowded ? 1 : BARRIERS;
    for (uint64_t i = 0; i < count; i++)
        rank_barrier(rk);
    return (double)(clock_ns() - start) / (double)count;
}

static void calibrate_barrier(struct rank *rk, struct facts *facts)
{
    double cost[BATCHES] = {barrier_batch(rk)};
    uint64_t more = more_batches(rk, cost[0]);
    for (uint64_t b = 1; b <= more; b++)
        cost[b] = barrier_batch(rk);
    facts->barrier_s = stats_median(cost, more + 1) / 1e9;
}

/* Waits until the other side has written `number`. */
static void await(struct rank *rk, _Atomic uint64_t *from, uint64_t number)
{
    for (struct waiter w = {0}; atomic_load_explicit(from, memory_order_acquire) < number;
         waiter_pause(&w, rk)) {
    }
}

/* Ranks 0 and 1 throw a number to and fro `count` times, from `last` on; ns per way. */
static double ping_batch(struct rank *rk, uint64_t *last, uint64_t count)
{
    struct board *board = board_of(rk->world);
    _Atomic uint64_t *own = rk->rank == 0 ? &board->ping : &board->pong;
    _Atomic uint64_t *other = rk->rank == 0 ? &board->pong : &board->ping;
    uint64_t start = clock_ns(), end = *last + count;
    for (uint64_t i = *last + 1; i <= end; i++) {
        if (rk->rank == 1) await(rk, other, i);
        atomic_store_explicit(own, i, memory_order_release); /* pairs with await */
        if (rk->rank == 0) await(rk, other, i);
    }
    *last = end;
    rank_tick(rk);
    return (double)(clock_ns() - start) / (2 * (double)count);
}

/* The other ranks wait in a barrier meanwhile. */
double calibrate_ping_s(struct rank *rk)
{
    if (rk->nranks < 2 || world_host(rk->world, 0) != world_host(rk->world, 1)) return NAN;
    struct board *board = board_of(rk->world);
    double cost[BATCHES] = {0}, ping_s = NAN;
    bool plays = rk->rank < 2;
    uint64_t last = atomic_load_explicit(&board->ping, memory_order_relaxed); /* both have it */
    rank_barrier(rk);
    uint64_t count = rk->crowded ? CROWDED_PINGS : PINGS;
    if (plays) cost[0] = ping_batch(rk, &last, count);
    uint64_t more = more_batches(rk, 2 * (double)count * cost[0]);
    for (uint64_t b = 1; plays && b <= more; b++)
        cost[b] = ping_batch(rk, &last, count);
    if (plays) ping_s = stats_median(cost, more + 1) / 1e9;
    rank_barrier(rk);
    return ping_s;
}

struct facts calibrate(struct rank *rk)
{
    struct facts facts = {0};
    rank_says(rk, "calibrating");
    calibrate_clock(&facts);
    rank_barrier(rk);
    calibrate_barrier(rk, &facts);
    facts.ping_s = calibrate_ping_s(rk);
    return facts;
}
