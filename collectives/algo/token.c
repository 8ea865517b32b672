/* SPDX-License-Identifier: Apache-2.0
 * The smallest patterns: everyone sends to the next (sendrecv), and the barrier, in which only the
 * fact that a message came matters. */
#include "algo/builders.h"

void shift_sendrecv(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t c = 0; c < pieces(args); c++) {
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        sched_send_ref(prog, wrap(rank + 1, n), ref_in(c));
        sched_recv(prog, wrap((int64_t)rank - 1, n), c);
    }
}

/* Dissemination (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J.
 * of Parallel Programming 17, 1988): in round k each rank tells the one 2^k further of whom it has
 * heard. As an allgather of empty blocks the verifier proves that everyone has heard of all.
 *
 *     n = 5, rank 0 hears from   4 (4)   3 (3, 2)   1 (1)        in brackets: of whom
 *
 * ceil(log2 n) messages per rank, of no bytes. */
void dissemination_barrier(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t d = 1; d < 2 * n; d <<= 1) {
        uint32_t count = d < n - d ? d : n - d, from = wrap((int64_t)rank - d, n);
        uint32_t oldest = wrap((int64_t)rank - count + 1, n) * w;
        if (d < n) {
            sched_send_ref(prog, wrap(rank + d, n), d == 1 ? ref_in(0) : ref_out(oldest));
            sched_span(prog, count * w);
        }
        if (d == 1) {
            sched_copy(prog, ref_out(rank * w), ref_in(0));
            sched_span(prog, w);
        }
        if (d >= n) {
            break;
        }
        sched_recv(prog, from, wrap((int64_t)from - count + 1, n) * w);
        sched_span(prog, count * w);
    }
}

/* The word goes up a binomial tree and down again: rank 0 hears of all, then tells all. Twice the
 * depth of dissemination, 2 ceil(log2 n) rounds, but only 2(n-1) messages in all, of no bytes.
 *
 *     up    1 -> 0, 3 -> 2     2 -> 0 (2, 3)         in brackets: of whom
 *     down  0 -> 2 (all)       0 -> 1, 2 -> 3 (all) */
void tree_barrier(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), top = binomial_bit(rank, n);
    sched_copy(prog, ref_out(rank * w), ref_in(0));
    sched_span(prog, w);
    for (uint32_t bit = 1; bit < top && rank + bit < n; bit <<= 1) {
        sched_recv(prog, rank + bit, (rank + bit) * w);
        sched_span(prog, binomial_size(rank + bit, n) * w);
    }
    if (rank > 0) {
        sched_send(prog, rank - top, rank * w);
        sched_span(prog, binomial_size(rank, n) * w);
        sched_recv(prog, rank - top, 0);
        sched_span(prog, n * w);
    }
    for (uint32_t bit = top >> 1; bit > 0; bit >>= 1) {
        if (rank + bit < n) {
            sched_send_ref(prog, rank + bit, ref_out(0));
            sched_span(prog, n * w);
        }
    }
}
