/* SPDX-License-Identifier: Apache-2.0
 * Operations between a root and all others. Direct: the root speaks to every rank itself, one
 * message each: least bytes, n-1 messages at the root.
 *
 *   reduce   all send to the root, which adds in rank order
 *   gather   all send their block to the root
 *   scatter  the root sends each its block */
#include "algo/builders.h"

void direct_reduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t c = 0; c < pieces(args); c++) {
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        if (rank == args->root) {
            add_in_rank_order(prog, n, rank, c);
        } else {
            sched_send_ref(prog, args->root, ref_in(c));
        }
    }
}

void direct_gather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t sub = 0; sub < w; sub++) {
        sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
        if (rank != args->root) {
            sched_send_ref(prog, args->root, ref_in(sub));
            continue;
        }
        sched_copy(prog, ref_out(rank * w + sub), ref_in(sub));
        for (uint32_t d = 1; d < n; d++) {
            uint32_t from = wrap(rank + d, n);
            sched_recv(prog, from, from * w + sub);
        }
    }
}

void direct_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t sub = 0; sub < w; sub++) {
        sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
        if (rank != args->root) {
            sched_recv(prog, args->root, sub);
            continue;
        }
        for (uint32_t d = 1; d < n; d++) {
            uint32_t to = wrap(rank + d, n);
            sched_send_ref(prog, to, ref_in(to * w + sub));
        }
        sched_copy(prog, ref_out(sub), ref_in(rank * w + sub));
    }
}
