/* SPDX-License-Identifier: Apache-2.0
 * The ring: everyone sends to the next and receives from the previous; each link carries
 * (n-1)/n of the data per phase, which is the least possible (Patarasuk and Yuan, "Bandwidth
 * optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009).
 *
 *      r0 ---> r1 ---> r2 ---> r3        reduce-scatter, k = 0 .. n-2: chunk rank-k goes on to the
 *       ^                       |        next, who adds its own: after n-1 steps rank r holds
 *       +-----------------------+        chunk r+1 complete
 *                                        all-gather, n-1 steps: complete chunks go round once more
 *
 * A chunk that has arrived is passed on at once, so that the two melt into one kernel call. */
#include "algo/builders.h"

/* Step k of 2n-2 receives chunk rank-1-k: it adds while k < n-1, then replaces; all but the last
 * pass on. */
void ring_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), next = wrap(rank + 1, n);
    uint32_t prev = wrap((int64_t)rank - 1, n);
    if (n == 1) {
        copy_all(prog, w);
        return;
    }
    for (uint32_t sub = 0; sub < w; sub++) {
        sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
        sched_send(prog, next, rank * w + sub);
    }
    for (uint32_t k = 0; k < 2 * n - 2; k++) {
        for (uint32_t sub = 0; sub < w; sub++) {
            uint32_t c = wrap((int64_t)rank - 1 - k, n) * w + sub;
            sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
            if (k < n - 1) {
                sched_recv_reduce(prog, prev, c);
            } else {
                sched_recv(prog, prev, c);
            }
            if (k == n - 2) {
                sched_final(prog);
            }
            if (k < 2 * n - 3) {
                sched_send(prog, next, c);
            }
        }
    }
}

void ring_allgather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), next = wrap(rank + 1, n);
    uint32_t prev = wrap((int64_t)rank - 1, n);
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t sub = 0; sub < w; sub++) {
            uint32_t c = wrap((int64_t)rank - k, n) * w + sub;
            sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
            if (k > 0) {
                sched_recv(prog, prev, c);
            }
            if (k < n - 1) {
                sched_send_ref(prog, next, k > 0 ? ref_out(c) : ref_in(sub));
            }
            if (k == 0) {
                sched_copy(prog, ref_out(c), ref_in(sub));
            }
        }
    }
}

/* Partial sums live in scratch: the input stays as it is and the output has room for one block. */
void ring_reduce_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), next = wrap(rank + 1, n);
    uint32_t prev = wrap((int64_t)rank - 1, n);
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t sub = 0; sub < w; sub++) {
            uint32_t c = wrap((int64_t)rank - 1 - k, n) * w + sub;
            sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
            if (n == 1) {
                sched_copy(prog, ref_out(sub), ref_in(c));
            } else if (k == 0) {
                sched_send_ref(prog, next, ref_in(c));
            } else if (k < n - 1) {
                sched_recv_reduce_ref(prog, prev, ref_scratch(0, c), ref_in(c));
                sched_send_ref(prog, next, ref_scratch(0, c));
            } else {
                sched_recv_reduce_ref(prog, prev, ref_out(sub), ref_in(c));
                sched_final(prog);
            }
        }
    }
}
