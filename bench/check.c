/* SPDX-License-Identifier: Apache-2.0
 * The data check of a run: see check.h. Long buffers are handled in pieces, with a sign of progress
 * after each. */
#include "bench/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20 };       /* elements */
enum { SHARES_PER_CHUNK = 16 }; /* positions per group of active ranks that make a chunk "long" */

uint64_t check_rounds(const struct plan *plan, const struct plan_row *row, uint32_t nparts)
{
    if (plan->rounds == 0) return 0;
    uint64_t rounds = plan->rounds < 2 ? 2 : plan->rounds;
    uint64_t all = data_rounds(row->dtype, plan_data_op(plan, row), plan->nranks);
    /* In a long chunk every rank has its turn at some position in any two rounds. */
    bool is_long = row->block_count / nparts >= SHARES_PER_CHUNK * all;
    return is_long || all < rounds ? rounds : all;
}

static size_t piece_of(size_t left)
{
    return left < PIECE ? left : PIECE;
}

/* Elements of the own input or output; 0 for an input that does not exist. */
static size_t own_elements(const struct check *check, enum buf buf)
{
    const struct plan_row *row = check->row;
    if (buf == BUF_IN && !coll_has_input(coll_get(check->plan->coll), check->plan->root, check->me))
        return 0;
    if (check->traffic) return traffic_sum(check->traffic, buf, check->me);
    return (buf == BUF_IN ? row->in_bytes : row->out_bytes) / dtype_bytes(row->dtype);
}

static struct gpu_data data_of(const struct check *check, uint32_t rank, uint64_t first,
                               uint64_t salt)
{
    return (struct gpu_data){.dtype = check->row->dtype,
                             .op = plan_data_op(check->plan, check->row),
                             .nranks = check->plan->nranks,
                             .rank = rank,
                             .first = first,
                             .salt = salt};
}

void check_fill(const struct check *check, uint64_t salt)
{
    size_t esize = dtype_bytes(check->row->dtype);
    for (size_t done = 0, n; done < check->places.bytes; done += n) {
        n = piece_of(check->places.bytes - done);
        site_poison(check->site, check->memory + done, n, salt);
        rank_tick(check->rk);
    }
    size_t count = own_elements(check, BUF_IN);
    uint8_t *in = check->memory + check->places.in;
    for (size_t done = 0, n; done < count; done += n) {
        n = piece_of(count - done);
        struct gpu_data data = data_of(check, check->me, done, salt);
        site_fill(check->site, in + done * esize, &data, n);
        rank_tick(check->rk);
    }
}

/* Compares `count` elements at `at`, element `base` of their buffer, with what is promised from
 * position `first` on. */
static void check_elements(const struct check *check, const uint8_t *at, size_t base, size_t count,
                           const struct promise *promise, uint64_t first, bool input, uint64_t salt)
{
    struct board_place *place = board_place(check->rk->world, check->rk->rank);
    for (size_t done = 0, n; done < count; done += n) {
        n = piece_of(count - done);
        struct gpu_data data = data_of(check, promise->rank, first + done, salt);
        struct data_bad bad;
        size_t wrong = site_wrong(check->site, at + done * dtype_bytes(data.dtype), &data,
                                  promise->all, n, &bad);
        if (wrong && place->wrong == 0) {
            bad.index += base + done;
            place->bad = bad;
            place->in_input = input;
        }
        place->wrong += wrong;
        rank_tick(check->rk);
    }
}

/* A block of the own output: where it starts in elements, how many it has, and where in the input
 * of its origin they come from. */
struct place {
    size_t base, count;
    uint64_t first;
};

static struct place place_of(const struct check *check, uint32_t block,
                             const struct promise *promise)
{
    size_t count = check->row->block_count;
    struct place place = {block * count, count, promise->block * (uint64_t)count};
    if (check->traffic) {
        size_t *own = traffic_offsets(check->traffic, BUF_OUT, check->me, 1);
        size_t *theirs = traffic_offsets(check->traffic, BUF_IN, promise->rank, 1);
        place = (struct place){own[block], own[block + 1] - own[block], theirs[promise->block]};
        free(own);
        free(theirs);
    }
    return place;
}

/* A barrier has no data: wrong are the ranks that had not come when this one was through; of other
 * hosts nobody can see that. */
static void check_arrivals(const struct check *check)
{
    struct world *world = check->rk->world;
    struct board_place *own = board_place(world, check->rk->rank);
    uint32_t first = check->rk->rank - check->me;
    for (uint32_t r = first; r < first + check->plan->nranks; r++) {
        if (world_host(world, r) != world_own_host(world)) continue;
        own->wrong += board_place(world, r)->entered < own->entered;
    }
}

void check_result(const struct check *check, uint64_t salt)
{
    const struct plan *plan = check->plan;
    const struct coll *coll = coll_get(plan->coll);
    size_t esize = dtype_bytes(check->row->dtype);
    uint32_t rank = check->me, blocks = coll_blocks(coll, BUF_OUT, plan->nranks);
    if (coll->empty) check_arrivals(check);
    for (uint32_t block = 0; block < blocks; block++) {
        struct promise promise = coll_after(coll, plan->nranks, plan->root, rank, block);
        if (promise.content == CONTENT_FREE) continue;
        struct place place = place_of(check, block, &promise);
        const uint8_t *at = check->memory + check->places.out + place.base * esize;
        check_elements(check, at, place.base, place.count, &promise, place.first, false, salt);
    }
    if (!check->in_place && coll_has_input(coll, plan->root, rank)) {
        struct promise own = {.content = CONTENT_UNCHANGED, .rank = rank};
        check_elements(check, check->memory + check->places.in, 0, own_elements(check, BUF_IN),
                       &own, 0, true, salt);
    }
}

int check_plant(struct rank *rk, uint64_t *element, struct err *err)
{
    const char *text = getenv("COLLBENCH_WRONG");
    uint32_t rank;
    int end = 0;
    *element = UINT64_MAX;
    if (!text || !*text) return 0;
    if (sscanf(text, "%" SCNu32 ":%" SCNu64 "%n", &rank, element, &end) != 2 || text[end]) {
        return err_add(err, ERR_USAGE, "COLLBENCH_WRONG=%s: not of the form RANK:ELEMENT", text);
    }
    if (rank != rk->rank) *element = UINT64_MAX;
    return 0;
}
