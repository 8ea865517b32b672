/* SPDX-License-Identifier: Apache-2.0
 * PAT, parallel aggregated trees: a binomial tree for each block, turned so that the block's owner
 * is its root, all at once; what goes the same way in the same step goes in one message (Jeaugey,
 * "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv:2506.20252,
 * 2025; NCCL since 2.23). All-gather goes the farthest first, while a rank has one block to send:
 * of Bruck's long ways with many bytes none is left. Reduce-scatter goes the same way back.
 *
 *     n = 6, offset o = rank - owner of the block:       rank r sends to r+d the blocks r-o of
 *     step of distance 4    0 ----------> 4              offsets o = 0, 2d, 4d, .. below n-d; the
 *     step of distance 2    0 ----> 2                    receiver, d further, has them at o+d
 *     step of distance 1    0 > 1   2 > 3   4 > 5
 *
 * ceil(log2 n) messages, (n-1)/n S bytes per rank. Blocks of one message do not lie side by side:
 * where a block is one chunk they are kept in slots of scratch, numbered so that each message is a
 * range, and copied to their places at the end (reduce-scatter: from their places at first). Else
 * each block and piece is a message of its own. */
#include <stdlib.h>

#include "algo/builders.h"
#include "base/mem.h"

/* The farthest distance; 0 for a rank alone. */
static uint32_t farthest(uint32_t n)
{
    return n > 1 ? power_within(n - 1) : 0;
}

/* Offsets 0, 2d, 4d, .. that are sent on by d. */
static uint32_t offsets(uint32_t n, uint32_t d)
{
    return (n - d + 2 * d - 1) / (2 * d);
}

/* ---- slots ---- */

/* Slots by offset, counted from the own one on (they may lie before it). Held offsets fill a range;
 * in each step it gets those that arrive at one end, in the order of those sent. All held are sent
 * but, at times, the largest: it always lies at one end, the right one if `right`. */
static int64_t *slots_of(uint32_t n)
{
    int64_t *slot = mem_calloc(n, sizeof *slot), low = 0;
    uint32_t held = 1, top = farthest(n);
    bool right = top + top / 2 >= n;
    for (uint32_t d = top; d > 0; d /= 2) {
        uint32_t count = offsets(n, d);
        bool all = count == held;
        int64_t sent = low + (!all && !right), arrives = all == right ? low + held : low - count;
        for (uint32_t o = 0; o < n - d; o += 2 * d) {
            slot[o + d] = slot[o] - sent + arrives;
        }
        held += count;
        low = arrives < low ? arrives : low;
    }
    return slot;
}

/* The first slot of the range that offsets start, start + 2d, .. fill. */
static int64_t range_of(const int64_t *slot, uint32_t n, uint32_t d, uint32_t start)
{
    int64_t low = slot[start];
    for (uint32_t o = start; o < n - d + start; o += 2 * d) {
        low = slot[o] < low ? slot[o] : low;
    }
    return low;
}

static bool packs(const struct algo_args *args)
{
    return pieces(args) == 1 && args->nranks > 3; /* up to 3 ranks no message has two blocks */
}

/* ---- all-gather ---- */

/* From slots to places, in one copy what lies side by side in both; from the own slot on. */
static void unpack(struct prog *prog, const int64_t *slot, uint32_t n)
{
    uint32_t *offset = mem_calloc(n, sizeof *offset), rank = prog->rank;
    for (uint32_t o = 0; o < n; o++) {
        offset[wrap(slot[o], n)] = o;
    }
    for (uint32_t i = 0, run; i < n; i += run) {
        run = 1;
        while (i + run < n && offset[i + run] == wrap((int64_t)offset[i] - run, n)) {
            run++;
        }
        sched_copy(prog, ref_out(wrap((int64_t)rank - offset[i], n)),
                   ref_scratch(0, wrap(rank + i, n)));
        sched_span(prog, run);
    }
    free(offset);
}

static void gather_packed(struct prog *prog, uint32_t n)
{
    int64_t *slot = slots_of(n), rank = prog->rank;
    bool alone = true; /* no message but of the own block so far */
    for (uint32_t d = farthest(n); d > 0; d /= 2) {
        uint32_t count = offsets(n, d);
        if (count > 1 && alone) {
            sched_copy(prog, ref_scratch(0, prog->rank), ref_in(0));
            alone = false;
        }
        struct ref src = ref_scratch(0, wrap(rank + range_of(slot, n, d, 0), n));
        sched_send_ref(prog, wrap(rank + d, n), alone ? ref_in(0) : src);
        sched_span(prog, count);
        sched_recv_ref(prog, wrap(rank - d, n),
                       ref_scratch(0, wrap(rank + range_of(slot, n, d, d), n)));
        sched_span(prog, count);
    }
    unpack(prog, slot, n);
    free(slot);
}

void pat_allgather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    if (packs(args)) {
        gather_packed(prog, n);
        return;
    }
    for (uint32_t d = farthest(n); d > 0; d /= 2) {
        for (uint32_t o = 0; o < n - d; o += 2 * d) {
            allgather_send(prog, args, wrap(rank + d, n), wrap((int64_t)rank - o, n), 1);
        }
        for (uint32_t o = 0; o < n - d; o += 2 * d) {
            allgather_recv(prog, args, wrap((int64_t)rank - d, n), wrap((int64_t)rank - d - o, n),
                           1);
        }
    }
    allgather_own(prog, args);
}

/* ---- reduce-scatter: from the nearest to the farthest, and from o+d to o ---- */

/* The partial sum of an offset lies in the input until the first step has added to it: to the even
 * offsets, but not to n-1. */
static bool untouched(uint32_t n, uint32_t d, uint32_t o)
{
    return d == 1 || o == n - 1;
}

static void scatter_packed(struct prog *prog, uint32_t n)
{
    int64_t *slot = slots_of(n), rank = prog->rank;
    for (uint32_t d = 1; d <= farthest(n); d *= 2) {
        uint32_t count = offsets(n, d);
        int64_t adds = rank + range_of(slot, n, d, 0), sends = rank + range_of(slot, n, d, d);
        struct ref src = ref_scratch(0, wrap(sends, n)), sum = ref_scratch(0, wrap(adds, n));
        for (uint32_t o = d; o < n; o += 2 * d) {
            struct ref in = ref_in(wrap(rank - o, n));
            if (untouched(n, d, o) && count > 1) {
                sched_copy(prog, ref_scratch(0, wrap(rank + slot[o], n)), in);
            } else if (untouched(n, d, o)) {
                src = in;
            }
        }
        sched_send_ref(prog, wrap(rank - d, n), src);
        sched_span(prog, count);
        if (d > 1) {
            bool last = d == farthest(n);
            sched_recv_reduce_ref(prog, wrap(rank + d, n), last ? ref_out(0) : sum, sum);
            sched_span(prog, count);
            if (last) {
                sched_final(prog);
            }
            continue;
        }
        sched_recv_ref(prog, wrap(rank + d, n), sum);
        sched_span(prog, count);
        for (uint32_t o = 0; o < n - 1; o += 2) {
            sum = ref_scratch(0, wrap(rank + slot[o], n));
            sched_reduce(prog, sum, sum, ref_in(wrap(rank - o, n)));
        }
    }
    free(slot);
}

void pat_reduce_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    if (packs(args)) {
        scatter_packed(prog, n);
        return;
    }
    struct partial in = {BUF_IN, BUF_IN}, scratch = {BUF_SCRATCH, BUF_SCRATCH};
    for (uint32_t d = 1; d <= farthest(n); d *= 2) {
        for (uint32_t o = d; o < n; o += 2 * d) {
            partial_send(prog, args, wrap((int64_t)rank - d, n), wrap((int64_t)rank - o, n), 1,
                         untouched(n, d, o) ? in : scratch);
        }
        for (uint32_t o = 0; o < n - d; o += 2 * d) {
            partial_add(prog, args, wrap(rank + d, n), wrap((int64_t)rank - o, n), 1,
                        d == 1 ? in : scratch, d == farthest(n));
        }
    }
    for (uint32_t sub = 0; sub < pieces(args) && n == 1; sub++) {
        use_sub(prog, args, sub);
        sched_copy(prog, ref_out(sub), ref_in(sub));
    }
}
