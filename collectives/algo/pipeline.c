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
