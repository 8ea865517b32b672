/* SPDX-License-Identifier: Apache-2.0
 * Bruck's algorithm for any number of ranks: rank r has blocks r .. r+h-1 (behind n-1 comes 0) and
 * h doubles each step, nearest neighbours first (Bruck, Ho, Kipnis, Upfal and Weathersby,
 * "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE
 * TPDS 8, 1997). Backwards it is a reduce-scatter: what was received is sent, what was sent is
 * received and added (Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
 * arXiv:2410.14234, 2024, from whom also the choice of h: n halved, rounded up, again and again).
 *
 *     n = 5, h = 1, 2, 3, 5; what rank r has, and gets from r+1, r+1, r+2:
 *         r
 *         r   r+1
 *         r   r+1 r+2
 *         r   r+1 r+2 r+3 r+4
 *
 * Where h grows from l to an odd number, only l-1 blocks are wanted: then the own block is the one
 * that stays, and the distance is l-1. As blocks lie at their places, and a range may wrap round
 * the end, nothing is turned at the end. ceil(log2 n) messages, (n-1)/n S bytes per rank. */
#include "algo/builders.h"

/* What a rank has before the step after which it has h. */
static uint32_t before(uint32_t h)
{
    return (h + 1) / 2;
}

void bruck_allgather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    for (uint32_t had = 1; had < n;) {
        uint32_t h = n;
        while (before(h) > had) {
            h = before(h);
        }
        uint32_t odd = h % 2, distance = had - odd;
        allgather_send(prog, args, wrap((int64_t)rank - distance, n), wrap(rank + odd, n), h - had);
        allgather_recv(prog, args, wrap(rank + distance, n), wrap(rank + had, n), h - had);
        had = h;
    }
    allgather_own(prog, args);
}

/* The own block lies in the input until something is added to it. To be read together with others
 * it must lie where they lie: it is copied, at most once. */
void bruck_reduce_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    struct partial from = {BUF_IN, BUF_IN};
    for (uint32_t h = n; h > 1; h = before(h)) {
        uint32_t left = before(h), odd = h % 2, distance = left - odd;
        partial_send(prog, args, wrap(rank + distance, n), wrap(rank + left, n), h - left, from);
        if (w == 1 && !odd && h > 2 && from.own != from.others) {
            sched_copy(prog, ref_scratch(0, rank), ref_in(rank));
            from.own = BUF_SCRATCH;
        }
        partial_add(prog, args, wrap((int64_t)rank - distance, n), wrap(rank + odd, n), h - left,
                    from, h == 2);
        from.others = BUF_SCRATCH;
        from.own = odd ? from.own : BUF_SCRATCH;
    }
    for (uint32_t sub = 0; sub < w && n == 1; sub++) {
        use_sub(prog, args, sub);
        sched_copy(prog, ref_out(sub), ref_in(sub));
    }
}
