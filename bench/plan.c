/* SPDX-License-Identifier: Apache-2.0
 * The walk through the rows of a plan: see plan.h. */
#include "bench/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "exec/transport.h"

struct plan *plan_append(struct plan *plan, const void *data, size_t bytes, size_t *at)
{
    size_t start = (plan->bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
    struct plan *longer = mem_calloc(1, start + bytes);
    memcpy(longer, plan, plan->bytes);
    if (bytes) memcpy((char *)longer + start, data, bytes);
    longer->bytes = start + bytes;
    *at = start;
    free(plan);
    return longer;
}

static size_t block_count_of(const struct plan *plan, const struct plan_row *row)
{
    return coll_block_count(coll_get(plan->coll), plan->nranks, row->asked,
                            dtype_bytes(row->dtype));
}

/* Where lanes are cheap, so many copies of the pattern as have enough to do. */
static void add_channels(const struct plan *plan, struct plan_row *row)
{
    const struct transport *transport = transport_table()[plan->transport];
    uint32_t least = row->choice.channels, most = transport->most_channels;
    uint32_t lanes = row->choice.algo->grouped ? 4 : 2; /* per channel, at most */
    if (row->choice.algo->grouped) most /= 4;
    if (most * lanes > plan->most_lanes) most = plan->most_lanes / lanes;
    for (uint64_t each = transport->channel_bytes;
         row->choice.channels * 2 <= most &&
         row->bytes >= 2 * each * row->choice.channels / least;) {
        row->choice.channels *= 2;
    }
}

static enum algo_reach reach_of(const struct plan *plan)
{
    if (transport_table()[plan->transport]->join)
        return plan->nhosts && plan->nranks > plan->nhosts ? ALGO_HOSTS : ALGO_NETWORK;
    return plan->shared ? ALGO_SHARED : ALGO_PRIVATE;
}

static void choose_algo(const struct plan *plan, struct plan_row *row)
{
    int32_t number = plan->algos[row->algo_at];
    size_t nalgos;
    if (number == PLAN_ALGO_DRAWN) {
        row->choice = (struct algo_choice){algo_drawn(), 1, 1};
    } else if (number == PLAN_ALGO_AUTO) {
        row->choice = algo_auto(plan->coll, plan->nranks, row->bytes, reach_of(plan));
    } else {
        const struct algo *algo = &algo_table(&nalgos)[number];
        row->choice = (struct algo_choice){algo, algo->channels, 1};
    }
    if (number != PLAN_ALGO_DRAWN) add_channels(plan, row);
    if (plan->channels) row->choice.channels = plan->channels;
    if (plan->parts) row->choice.parts = plan->parts;
}

struct traffic *plan_traffic(const struct plan *plan, const struct plan_row *row)
{
    const double *shares = plan_shares(plan);
    uint64_t total = (uint64_t)row->block_count * plan->nranks * plan->nranks;
    return shares ? traffic_deal(plan->nranks, shares, total) : NULL;
}

static void fill_uneven(const struct plan *plan, struct plan_row *row, size_t esize)
{
    struct traffic *traffic = plan_traffic(plan, row);
    if (!traffic) return;
    row->longest_bytes = traffic_longest(traffic) * esize;
    row->in_bytes = traffic_largest(traffic, BUF_IN) * esize;
    row->out_bytes = traffic_largest(traffic, BUF_OUT) * esize;
    free(traffic);
}

/* Fills in all that follows from the three indexes and `asked`. */
static void fill_row(const struct plan *plan, struct plan_row *row)
{
    const struct coll *coll = coll_get(plan->coll);
    row->dtype = plan->dtypes[row->dtype_at];
    row->op = plan->ops[row->op_at];
    size_t esize = dtype_bytes(row->dtype);
    row->block_count = block_count_of(plan, row);
    row->block_bytes = row->block_count * esize;
    row->bytes = coll_size(coll, plan->nranks, row->block_count, esize);
    row->longest_bytes = row->block_bytes;
    row->in_bytes = row->block_bytes * coll_blocks(coll, BUF_IN, plan->nranks);
    row->out_bytes = row->block_bytes * coll_blocks(coll, BUF_OUT, plan->nranks);
    fill_uneven(plan, row, esize);
    choose_algo(plan, row);
}

/* Counts the sizes that follow and round to the same bytes. */
static void look_ahead(const struct plan *plan, struct plan_row *row, uint64_t unit)
{
    struct plan_row next = *row;
    row->merged = 0;
    while (sweep_next(&plan->sweep, unit, &next.asked) &&
           block_count_of(plan, &next) == row->block_count) {
        row->merged++;
    }
}

/* Bytes of one element per block. */
static uint64_t unit_of(const struct plan *plan, const struct plan_row *row)
{
    return coll_size(coll_get(plan->coll), plan->nranks, 1, dtype_bytes(row->dtype));
}

void plan_first(const struct plan *plan, struct plan_row *row)
{
    *row = (struct plan_row){.asked = plan->sweep.min};
    fill_row(plan, row);
    look_ahead(plan, row, unit_of(plan, row));
}

bool plan_next(const struct plan *plan, struct plan_row *row)
{
    uint64_t unit = unit_of(plan, row);
    row->index++;
    if (++row->algo_at < plan->nalgos) {
        fill_row(plan, row);
        return true;
    }
    row->algo_at = 0;
    for (uint64_t i = 0; i < row->merged; i++)
        sweep_next(&plan->sweep, unit, &row->asked);
    if (!sweep_next(&plan->sweep, unit, &row->asked)) {
        row->asked = plan->sweep.min;
        if (++row->op_at == plan->nops) {
            row->op_at = 0;
            if (++row->dtype_at == plan->ndtypes) return false;
        }
    }
    fill_row(plan, row);
    look_ahead(plan, row, unit_of(plan, row));
    return true;
}

void plan_walk_open(const struct plan *plan, struct plan_walk *walk)
{
    *walk = (struct plan_walk){.count = plan_rows(plan)};
    plan_first(plan, &walk->row);
    if (!plan->shuffled || walk->count > PLAN_SHUFFLE_MOST) return;
    walk->rows = mem_calloc(walk->count, sizeof *walk->rows);
    for (uint64_t i = 0; i < walk->count; i++) {
        walk->rows[i] = walk->row;
        plan_next(plan, &walk->row);
    }
    struct rng rng;
    rng_init(&rng, plan->seed + plan->launch);
    for (uint64_t left = walk->count; left > 1; left--) { /* Fisher and Yates */
        uint64_t taken = rng_below(&rng, left);
        struct plan_row last = walk->rows[left - 1];
        walk->rows[left - 1] = walk->rows[taken];
        walk->rows[taken] = last;
    }
    walk->row = walk->rows[0];
}

bool plan_walk_next(const struct plan *plan, struct plan_walk *walk)
{
    if (!walk->rows) return plan_next(plan, &walk->row);
    if (++walk->at == walk->count) return false;
    walk->row = walk->rows[walk->at];
    return true;
}

void plan_walk_close(struct plan_walk *walk)
{
    free(walk->rows);
    walk->rows = NULL;
}

static struct plan_row type_row(const struct plan *plan, uint32_t dtype_at)
{
    return (struct plan_row){.dtype_at = dtype_at, .dtype = plan->dtypes[dtype_at]};
}

uint64_t plan_sizes(const struct plan *plan, uint32_t dtype_at)
{
    const struct sweep *sweep = &plan->sweep;
    if (sweep->factor == 0) return sweep->step ? (sweep->max - sweep->min) / sweep->step + 1 : 1;
    struct plan_row row = type_row(plan, dtype_at);
    uint64_t unit = unit_of(plan, &row), size = sweep->min, count = 1;
    while (sweep_next(sweep, unit, &size))
        count++;
    return count;
}

void plan_at(const struct plan *plan, uint32_t dtype_at, uint32_t algo_at, uint64_t k,
             struct plan_row *row)
{
    const struct sweep *sweep = &plan->sweep;
    *row = type_row(plan, dtype_at);
    row->algo_at = algo_at;
    row->asked = sweep->min + (sweep->factor ? 0 : k * sweep->step);
    uint64_t unit = unit_of(plan, row);
    for (uint64_t i = 0; sweep->factor && i < k; i++)
        sweep_next(sweep, unit, &row->asked);
    fill_row(plan, row);
}

/* Different sizes after rounding. Steps below one element per block meet every count between the
 * first and the last; longer ones change it each time, but for what is rounded up to one element.
 */
static uint64_t different_sizes(const struct plan *plan, uint32_t dtype_at)
{
    struct plan_row first, row;
    uint64_t sizes = plan_sizes(plan, dtype_at), count = 1;
    if (coll_get(plan->coll)->empty) return 1;
    plan_at(plan, dtype_at, 0, 0, &first);
    bool stepped = plan->sweep.factor == 0;
    if (stepped && plan->sweep.step < unit_of(plan, &first)) {
        plan_at(plan, dtype_at, 0, sizes - 1, &row);
        return row.block_count - first.block_count + 1;
    }
    for (uint64_t k = 1; k < sizes; k++, count++) {
        plan_at(plan, dtype_at, 0, k, &row);
        if (row.block_count == first.block_count) count--;
        if (stepped) return sizes - (row.block_count == first.block_count);
        first = row;
    }
    return count;
}

uint64_t plan_rows(const struct plan *plan)
{
    uint64_t count = 0;
    for (uint32_t dtype_at = 0; dtype_at < plan->ndtypes; dtype_at++)
        count += different_sizes(plan, dtype_at);
    return count * plan->nops * plan->nalgos;
}

const char *plan_algo_name(const struct plan *plan, const struct plan_row *row)
{
    return row->choice.algo == algo_drawn() ? plan->drawn_name : row->choice.algo->name;
}

struct algo_args plan_algo_args(const struct plan *plan, const struct plan_row *row)
{
    return (struct algo_args){.nranks = plan->nranks,
                              .root = plan->root,
                              .channels = row->choice.channels,
                              .parts = row->choice.parts,
                              .nnodes = plan->nnodes,
                              .nodes = plan_nodes(plan)};
}

uint32_t plan_nparts(const struct plan *plan, const struct plan_row *row)
{
    struct algo_args args = plan_algo_args(plan, row);
    bool drawn = row->choice.algo == algo_drawn();
    return drawn ? plan->drawn_parts : row->choice.algo->nparts(&args);
}

enum redop plan_data_op(const struct plan *plan, const struct plan_row *row)
{
    return coll_get(plan->coll)->reduces ? row->op : OP_COUNT;
}

/* What the speed of slots is measured with. */
static size_t slot_bytes(const struct plan *plan)
{
    return plan->shared ? 0 : SLOTS_TOUCHED;
}

struct plan_places plan_places(const struct plan *plan, const struct plan_row *row, uint32_t rank,
                               bool in_place)
{
    const struct coll *coll = coll_get(plan->coll);
    struct plan_places places = {0};
    if (!in_place) {
        places.out = row->in_bytes + (PLAN_ALIGN - row->in_bytes % PLAN_ALIGN) % PLAN_ALIGN;
        places.bytes = places.out + row->out_bytes;
        places.touched = places.bytes + slot_bytes(plan);
        return places;
    }
    /* coll_alias says which block of which buffer the other's block 0 lies on. */
    for (int buf = BUF_IN; buf <= BUF_OUT; buf++) {
        enum buf on = (enum buf)buf;
        uint32_t block = 0;
        coll_alias(coll, rank, &on, &block);
        *(buf == BUF_IN ? &places.in : &places.out) = block * row->block_bytes;
    }
    places.bytes = row->in_bytes > row->out_bytes ? row->in_bytes : row->out_bytes;
    places.touched = places.bytes + slot_bytes(plan);
    return places;
}

size_t plan_touched(const struct plan *plan, uint32_t rank)
{
    size_t most = 0;
    for (uint32_t dtype_at = 0; dtype_at < plan->ndtypes; dtype_at++) {
        struct plan_row row;
        plan_at(plan, dtype_at, 0, plan_sizes(plan, dtype_at) - 1, &row);
        for (int place = 0; place < NPLACES; place++) {
            size_t bytes = plan_places(plan, &row, rank, place == IN_PLACE).touched;
            if (plan->place[place] && bytes > most) most = bytes;
        }
    }
    return most;
}
