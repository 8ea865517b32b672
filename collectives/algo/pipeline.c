/* SPDX-License-Identifier: Apache-2.0
 * The pipelined chain: the data go from rank to rank in pieces; while one piece is two ranks down,
 * the next is one rank down. (n-2+m) pieces deep for m pieces: best for long messages and few
 * ranks (see Traeff and Ripke, "Optimal broadcast for fully connected processor-node networks",
 * JPDC 68, 2008, for the comparison).
 *
 *     root --p0--> root+1 --p0--> root+2 ...
 *          --p1-->        --p1-->
 *
 * Pieces are the parts of a channel, and the passes of the executor. */
#include "algo/builders.h"

void chain_broadcast(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, v = wrap((int64_t)rank - args->root, n);
    for (uint32_t c = 0; c < pieces(args); c++) {
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        if (v > 0) {
            sched_recv(prog, wrap((int64_t)rank - 1, n), c);
        }
        if (v < n - 1) {
            sched_send(prog, wrap(rank + 1, n), c);
        }
        if (v == 0) {
            sched_copy(prog, ref_out(c), ref_in(c));
        }
    }
}

/* The same towards the root: each adds its own to what comes from behind and passes it on. S per
 * rank but the root, one message each. Partial sums melt into the message: scratch is seldom
 * written. */
void chain_reduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, v = wrap((int64_t)rank - args->root, n);
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t c = 0; c < pieces(args); c++) {
        struct ref sum = v == 0 ? ref_out(c) : v < n - 1 ? ref_scratch(0, c) : ref_in(c);
        sched_lane(prog, (uint16_t)(c / args->parts), (uint16_t)(c / args->parts));
        if (v < n - 1) {
            sched_recv_reduce_ref(prog, wrap(rank + 1, n), sum, ref_in(c));
        }
        if (v == 0) {
            sched_final(prog);
        } else {
            sched_send_ref(prog, wrap((int64_t)rank - 1, n), sum);
        }
    }
}
