/* SPDX-License-Identifier: Apache-2.0
 * The pairwise matrix: rounds, shared memory and schedules, for parent and ranks: see p2p.h. */
#include "bench/p2p.h"

#include <stdlib.h>

#include "base/mem.h"

enum { LINE = 128 };

static size_t board_at(uint32_t nsizes)
{
    return (p2p_plan_bytes(nsizes) + LINE - 1) / LINE * LINE;
}

size_t p2p_plan_bytes(uint32_t nsizes)
{
    return sizeof(struct p2p_plan) + nsizes * sizeof(uint64_t);
}

size_t p2p_blob_bytes(uint32_t nranks, uint32_t nsizes)
{
    return board_at(nsizes) + sizeof(struct p2p_board) + nranks * sizeof(struct p2p_place);
}

struct p2p_board *p2p_board(struct p2p_plan *plan)
{
    return (struct p2p_board *)(void *)((uint8_t *)plan + board_at(plan->nsizes));
}

struct p2p_place *p2p_place(struct p2p_plan *plan, uint32_t rank)
{
    return (struct p2p_place *)(void *)(p2p_board(plan) + 1) + rank;
}

struct p2p_pair p2p_pair_of(uint32_t nranks, uint32_t round, uint32_t k)
{
    uint32_t odd = nranks % 2, circle = nranks - 1 + odd; /* seats round the middle */
    uint32_t place = k + odd;                             /* odd: who meets the middle rests */
    uint32_t one = wrap((int64_t)round + place, circle);
    uint32_t other = place ? wrap((int64_t)round - place, circle) : nranks - 1;
    return one < other ? (struct p2p_pair){one, other} : (struct p2p_pair){other, one};
}

void p2p_merge(struct p2p_result *all, const struct p2p_result *visit)
{
    for (int mode = 0; mode < P2P_NMODES; mode++) {
        struct p2p_times *best = &all->times[mode];
        const struct p2p_times *times = &visit->times[mode];
        if (times->samples && (!best->samples || times->p50_us < best->p50_us)) *best = *times;
    }
    for (int i = 0; i < 2; i++) {
        if (all->wrong[i] == 0) all->bad[i] = visit->bad[i];
        all->wrong[i] += visit->wrong[i];
    }
}

/* ---- schedules ---- */

static const struct {
    enum coll_id coll;
    uint32_t root;
    uint64_t blocks; /* of the size wanted, in what the collective counts as its size, */
    uint64_t more;   /* and bytes beside it */
} kinds[NLEGS] = {
    [LEG_THERE] = {COLL_BROADCAST, 0, 1, 0},
    [LEG_BACK] = {COLL_BROADCAST, 1, 1, 0},
    [LEG_BOTH] = {COLL_ALLGATHER, 0, 2, 0},
    [LEG_MEET] = {COLL_ALLGATHER, 0, 0, 0},
    [LEG_WORD] = {COLL_BROADCAST, 0, 0, sizeof(uint64_t)},
};

static struct plan *leg_plan(const struct p2p_plan *plan, enum p2p_leg leg, uint64_t bytes)
{
    size_t size = sizeof(struct plan) + sizeof(int32_t);
    struct plan *made = mem_calloc(1, size);
    uint64_t all = kinds[leg].blocks * bytes + kinds[leg].more;
    *made = (struct plan){
        .bytes = size,
        .coll = kinds[leg].coll,
        .nranks = 2,
        .root = kinds[leg].root,
        .cores = plan->cores,
        .sweep = {.min = all, .max = all},
        .ndtypes = 1,
        .nops = 1,
        .nalgos = 1,
        .dtypes = {P2P_DTYPE},
        .ops = {OP_SUM},
        .wire = plan->wire,
        .transport = plan->transport,
        .shared = plan->shared,
        .device = plan->device,
        .apart = plan->apart,
        .most_lanes = plan->most_lanes,
        .place = {[IN_PLACE] = true},
    };
    made->algos[0] = PLAN_ALGO_AUTO;
    return made;
}

int p2p_legs_make(struct p2p_legs *legs, const struct p2p_plan *plan, uint64_t bytes,
                  struct err *err)
{
    *legs = (struct p2p_legs){0};
    for (int leg = 0; leg < NLEGS; leg++) {
        legs->legs[leg].plan = leg_plan(plan, (enum p2p_leg)leg, bytes);
        plan_at(legs->legs[leg].plan, 0, 0, 0, &legs->legs[leg].row);
        legs->legs[leg].ready =
            ready_get(&legs->legs[leg].set, legs->legs[leg].plan, &legs->legs[leg].row, err);
        if (!legs->legs[leg].ready) return -1;
    }
    return 0;
}

void p2p_legs_release(struct p2p_legs *legs)
{
    for (int leg = 0; leg < NLEGS; leg++) {
        ready_release(&legs->legs[leg].set);
        free(legs->legs[leg].plan);
    }
    *legs = (struct p2p_legs){0};
}

size_t p2p_buffer_bytes(uint64_t bytes)
{
    return bytes ? 2 * bytes : 2;
}

size_t p2p_handle_bytes(const struct p2p_legs *legs)
{
    size_t bytes = 0;
    for (int leg = 0; leg < NLEGS; leg++) {
        const struct plan *plan = legs->legs[leg].plan;
        const struct plan_row *row = &legs->legs[leg].row;
        size_t all = ready_bytes(legs->legs[leg].ready, plan, row).all;
        size_t own = plan_places(plan, row, 0, true).touched;
        if (all == SIZE_MAX || __builtin_add_overflow(bytes, all - own, &bytes)) return SIZE_MAX;
    }
    return bytes;
}
