/* SPDX-License-Identifier: Apache-2.0
 * Direct exchanges: every rank speaks to every other. Least steps; on memory that all ranks share
 * also least copies.
 *
 *   one-shot   all send everything to all; each adds up everything, in rank order, so that all get
 *              the same bits                                       1 round, (n-1) S per rank
 *   two-shot   rank r gathers and adds block r, then sends it to all  2 rounds, 2 (n-1)/n S
 *              (reduce-scatter and all-gather, each direct; Rabenseifner 2004 names the split)
 *   allgather  all send their block to all                          1 round, (n-1)/n S per rank
 *   reduce-scatter  all send each rank its block, who adds it up    1 round, (n-1)/n S
 *   alltoall   direct: all sends, then all receives; pairwise: one partner at a time */
#include "algo/builders.h"

void copy_all(struct prog *prog, uint32_t chunks)
{
    for (uint32_t c = 0; c < chunks; c++) {
        sched_copy(prog, ref_out(c), ref_in(c));
    }
}

void add_in_rank_order(struct prog *prog, uint32_t n, uint32_t rank, uint32_t c)
{
    struct ref sum = ref_in(c);
    if (rank > 0) {
        sum = ref_scratch(0, c);
        sched_recv_ref(prog, 0, sum);
    }
    for (uint32_t r = 1; r < n; r++) {
        struct ref dst = r == n - 1 ? ref_out(c) : ref_scratch(0, c);
        if (r == rank) {
            sched_reduce(prog, dst, sum, ref_in(c));
        } else {
            sched_recv_reduce_ref(prog, r, dst, sum);
        }
        sum = dst;
    }
    sched_final(prog);
}

void oneshot_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t c = 0; c < pieces(args); c++) {
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        for (uint32_t d = 1; d < n; d++) {
            sched_send_ref(prog, wrap(rank + d, n), ref_in(c));
        }
        add_in_rank_order(prog, n, rank, c);
    }
}

/* Channels 2ch (inputs to the block's owner) and 2ch + 1 (results to all). Results are received in
 * a lane of their own: adding the next pass need not wait for the results of this one. */
void twoshot_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    if (n == 1) {
        copy_all(prog, w);
        return;
    }
    for (uint32_t sub = 0; sub < w; sub++) {
        uint16_t lane = (uint16_t)(2 * (sub / args->parts)), results = (uint16_t)(lane + 1);
        uint32_t own = rank * w + sub;
        sched_lane(prog, lane, lane);
        for (uint32_t d = 1; d < n; d++) {
            sched_send(prog, wrap(rank + d, n), wrap(rank + d, n) * w + sub);
        }
        for (uint32_t d = 1; d < n; d++) {
            sched_recv_reduce(prog, wrap((int64_t)rank - d, n), own);
        }
        sched_final(prog);
        sched_lane(prog, lane, results);
        for (uint32_t d = 1; d < n; d++) {
            sched_send(prog, wrap(rank + d, n), own);
        }
        sched_lane(prog, results, results);
        for (uint32_t d = 1; d < n; d++) {
            uint32_t owner = wrap((int64_t)rank - d, n);
            sched_recv(prog, owner, owner * w + sub);
        }
    }
}

/* Messages: n-1; bytes (n-1)/n S. */
void direct_allgather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t sub = 0; sub < w; sub++) {
        use_sub(prog, args, sub);
        for (uint32_t d = 1; d < n; d++) {
            sched_send_ref(prog, wrap(rank + d, n), ref_in(sub));
        }
        sched_copy(prog, ref_out(rank * w + sub), ref_in(sub));
        for (uint32_t d = 1; d < n; d++) {
            uint32_t from = wrap((int64_t)rank - d, n);
            sched_recv(prog, from, from * w + sub);
        }
    }
}

/* Messages: n-1; bytes (n-1)/n S. The sum grows in the output, nearest rank first. */
void direct_reduce_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t sub = 0; sub < w; sub++) {
        use_sub(prog, args, sub);
        struct ref sum = ref_in(rank * w + sub);
        if (n == 1) {
            sched_copy(prog, ref_out(sub), sum);
            continue;
        }
        for (uint32_t d = 1; d < n; d++) {
            uint32_t to = wrap(rank + d, n);
            sched_send_ref(prog, to, ref_in(to * w + sub));
        }
        for (uint32_t d = 1; d < n; d++) {
            sched_recv_reduce_ref(prog, wrap((int64_t)rank - d, n), ref_out(sub), sum);
            sum = ref_out(sub);
        }
        sched_final(prog);
    }
}

void direct_alltoall(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t sub = 0; sub < w; sub++) {
        sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
        for (uint32_t d = 1; d < n; d++) {
            uint32_t to = wrap(rank + d, n);
            sched_send_ref(prog, to, ref_in(to * w + sub));
        }
        sched_copy(prog, ref_out(rank * w + sub), ref_in(rank * w + sub));
        for (uint32_t d = 1; d < n; d++) {
            uint32_t from = wrap((int64_t)rank - d, n);
            sched_recv(prog, from, from * w + sub);
        }
    }
}

/* Round k pairs ranks whose sum is k mod n: both ends swap their blocks, so it works in place. */
void pairwise_alltoall(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t partner = wrap((int64_t)k - rank, n);
        for (uint32_t sub = 0; sub < w; sub++) {
            uint32_t c = partner * w + sub;
            sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
            if (partner == rank) {
                sched_copy(prog, ref_out(c), ref_in(c));
            } else {
                sched_send_ref(prog, partner, ref_in(c));
                sched_recv(prog, partner, c);
            }
        }
    }
}
