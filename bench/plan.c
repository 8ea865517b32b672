/* SPDX-License-Identifier: Apache-2.0
 * The walk through the rows of a plan: see plan.h. */
#include "bench/plan.h"

#include <string.h>

enum { SLOTS_TOUCHED = 1 << 20 }; /* bytes: what the slots of two ranks come to */

static size_t block_count_of(const struct plan *plan, const struct plan_row *row)
{
    return coll_block_count(coll_get(plan->coll), plan->nranks, row->asked,
                            dtype_bytes(row->dtype));
}

static void choose_algo(const struct plan *plan, struct plan_row *row)
{
    int32_t number = plan->algos[row->algo_at];
    size_t nalgos;
    if (number == PLAN_ALGO_AUTO) {
        row->choice = algo_auto(plan->coll, plan->nranks, row->bytes, plan->shared);
    } else {
        const struct algo *algo = &algo_table(&nalgos)[number];
        row->choice = (struct algo_choice){algo, algo->channels, 1};
    }
    if (plan->channels) row->choice.channels = plan->channels;
    if (plan->parts) row->choice.parts = plan->parts;
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
    row->in_bytes = row->block_bytes * coll_blocks(coll, BUF_IN, plan->nranks);
    row->out_bytes = row->block_bytes * coll_blocks(coll, BUF_OUT, plan->nranks);
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

uint64_t plan_rows(const struct plan *plan)
{
    struct plan_row row;
    uint64_t count = 1;
    for (plan_first(plan, &row); plan_next(plan, &row);)
        count++;
    return count;
}

enum redop plan_data_op(const struct plan *plan, const struct plan_row *row)
{
    return coll_get(plan->coll)->reduces ? row->op : OP_COUNT;
}

/* Private data pass through slots, which are used over and over. */
static size_t slot_bytes(const struct plan *plan, size_t bytes)
{
    size_t most = bytes < SLOTS_TOUCHED ? bytes : SLOTS_TOUCHED;
    return plan->shared ? 0 : most;
}

struct plan_places plan_places(const struct plan *plan, const struct plan_row *row, uint32_t rank,
                               bool in_place)
{
    const struct coll *coll = coll_get(plan->coll);
    struct plan_places places = {0};
    if (!in_place) {
        places.out = row->in_bytes + (PLAN_ALIGN - row->in_bytes % PLAN_ALIGN) % PLAN_ALIGN;
        places.bytes = places.out + row->out_bytes;
        places.touched = places.bytes + slot_bytes(plan, places.bytes);
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
    places.touched = places.bytes + slot_bytes(plan, places.bytes);
    return places;
}
