/* SPDX-License-Identifier: Apache-2.0
 * Binomial trees that carry to or from each subtree just the blocks, or shares of one block, that
 * belong to it: gather and scatter, and the long broadcast and reduce that are made of them (van de
 * Geijn's and Rabenseifner's; see Thakur, Rabenseifner and Gropp, "Optimization of collective
 * communication operations in MPICH", IJHPCA 19, 2005). v = rank - root:
 *
 *     scatter, n = 7   0 -> 4 (4 5 6)                     in brackets: whose blocks; v's subtree is
 *                      0 -> 2 (2 3)  4 -> 6 (6)           v .. v + size - 1, size the lowest set
 *                      0 -> 1  2 -> 3  4 -> 5             bit of v or what there is
 *
 *   gather     v > 0 sends size(v) blocks in one message, scatter: v sends size(v) - 1 blocks, one
 *              message per child; in all the sum over v of popcount(v): a block's hops
 *   broadcast  scatter of n shares, then a ring that passes on what the next has not got yet:
 *              v sends size(v) - 1 + n - size(v+1) shares of S/n, size(n) = n: 2(n-1)/n S at most;
 *              (n-1) S in all, which is least (without that: n-1 + popcounts; the shorter ring is
 *              Zhou, Marjanovic, Niethammer and Gracia, "A bandwidth-saving optimization for MPI
 *              broadcast collective operation", ICPPW 2015)
 *   reduce     recursive halving over p = 2^k shares, p <= n as large as can be; v >= p first gives
 *              all it has to v - p; then gather: v < p sends p - 1 + (v > 0) lowest bit of v
 *              shares of S/p; (n - 1 + log2(p)/2) S in all */
#include "algo/builders.h"

static uint32_t rank_of(const struct algo_args *args, uint32_t v)
{
    return wrap((int64_t)args->root + v, args->nranks);
}

/* Offset of the child in whose subtree the b-th rank of one's own is; 0: it is oneself. */
static uint32_t child_of(uint32_t b)
{
    return b > 0 ? power_within(b) : 0;
}

/* Subtrees are ranges of blocks; with one piece per block a range is one message, which waits in
 * scratch until it is complete. Cut finer, each piece is passed on at once, the own one first. */
void binomial_gather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), v = wrap((int64_t)rank - args->root, n);
    uint32_t size = binomial_size(v, n), parent = rank_of(args, v - binomial_bit(v, n));
    for (uint32_t sub = 0; sub < w; sub++) {
        bool at_once = w > 1 || size == 1;
        use_sub(prog, args, sub);
        for (uint32_t b = 0, count; b < size; b += count) {
            uint32_t left = size - b, c = rank_of(args, v + b) * w + sub;
            struct ref slot = v == 0 ? ref_out(c) : ref_scratch(0, c);
            count = at_once || b == 0 ? 1 : b < left ? b : left;
            if (b > 0) {
                sched_recv_ref(prog, rank_of(args, v + child_of(b)), slot);
                sched_span(prog, count);
            } else if (v == 0 || !at_once) {
                sched_copy(prog, slot, ref_in(sub));
            }
            if (v > 0 && at_once) {
                sched_send_ref(prog, parent, b > 0 ? slot : ref_in(sub));
            }
        }
        if (v > 0 && !at_once) {
            sched_send_ref(prog, parent, ref_scratch(0, rank));
            sched_span(prog, size);
        }
    }
}

/* The other way: the farthest subtree first, the own block last. */
void binomial_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), v = wrap((int64_t)rank - args->root, n);
    uint32_t size = binomial_size(v, n), parent = rank_of(args, v - binomial_bit(v, n));
    for (uint32_t sub = 0; sub < w; sub++) {
        bool at_once = w > 1 || size == 1;
        use_sub(prog, args, sub);
        if (v > 0 && !at_once) {
            sched_recv_ref(prog, parent, ref_scratch(0, rank));
            sched_span(prog, size);
        }
        for (uint32_t end = size, b; end > 0; end = b) {
            b = w > 1 ? end - 1 : child_of(end - 1);
            uint32_t c = rank_of(args, v + b) * w + sub;
            struct ref slot = v == 0 ? ref_in(c) : ref_scratch(0, c);
            if (v > 0 && at_once) {
                slot = b > 0 ? slot : ref_out(sub);
                sched_recv_ref(prog, parent, slot);
            }
            if (b > 0) {
                sched_send_ref(prog, rank_of(args, v + child_of(b)), slot);
                sched_span(prog, end - b);
            } else if (v == 0 || !at_once) {
                sched_copy(prog, ref_out(sub), slot);
            }
        }
    }
}

/* ---- one block in shares: share s of piece `sub` is chunk sub * nshares + s ---- */

/* Shares v .. v + size - 1 come from the parent; each child gets those of its subtree. */
static void scatter_shares(struct prog *prog, const struct algo_args *args, uint32_t v,
                           uint32_t start)
{
    uint32_t n = args->nranks, top = binomial_bit(v, n);
    if (v > 0) {
        sched_recv(prog, rank_of(args, v - top), start + v);
        sched_span(prog, binomial_size(v, n));
    }
    for (uint32_t bit = top >> 1; bit > 0; bit >>= 1) {
        if (v + bit < n) {
            sched_send(prog, rank_of(args, v + bit), start + v + bit);
            sched_span(prog, binomial_size(v + bit, n));
        }
    }
}

/* Lanes 2ch (scatter) and 2ch + 1 (ring): the next pass is scattered while this one goes round. */
void scatter_allgather_broadcast(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args), v = wrap((int64_t)rank - args->root, n);
    uint32_t next = wrap((int64_t)v + 1, n), had = binomial_size(v, n);
    uint32_t next_had = binomial_size(next, n);
    for (uint32_t sub = 0; sub < w; sub++) {
        uint16_t lane = (uint16_t)(2 * (sub / args->parts));
        sched_lane(prog, lane, lane);
        scatter_shares(prog, args, v, sub * n);
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t sub = 0; sub < w; sub++) {
            uint16_t lane = (uint16_t)(2 * (sub / args->parts) + 1);
            uint32_t share = wrap((int64_t)v - k, n);
            sched_lane(prog, lane, lane);
            if (wrap((int64_t)share - v, n) >= had) {
                sched_recv(prog, wrap((int64_t)rank - 1, n), sub * n + share);
            }
            if (wrap((int64_t)share - next, n) >= next_had) {
                sched_send(prog, wrap(rank + 1, n), sub * n + share);
            }
        }
    }
    for (uint32_t sub = 0; v == 0 && sub < w; sub++) {
        sched_lane(prog, (uint16_t)(2 * (sub / args->parts)), 0);
        sched_copy(prog, ref_out(sub * n), ref_in(sub * n));
        sched_span(prog, n);
    }
}

/* Round by round v and v ^ d swap halves of the range of shares that both still add up: v keeps the
 * one with share v in it. Sums wait in scratch; on the root the last is the result. */
static void halve(struct prog *prog, const struct algo_args *args, uint32_t v, uint32_t start)
{
    uint32_t p = power_within(args->nranks);
    struct ref sum = ref_in(start);
    if (v >= p) {
        sched_send_ref(prog, rank_of(args, v - p), sum);
        sched_span(prog, p);
        return;
    }
    if (v + p < args->nranks) {
        sched_recv_reduce_ref(prog, rank_of(args, v + p), ref_scratch(0, start), sum);
        sched_span(prog, p);
        sum = ref_scratch(0, start);
    }
    for (uint32_t d = p >> 1, low = start; d > 0; d >>= 1) {
        uint32_t keep = low + (v & d), give = low + (~v & d), partner = rank_of(args, v ^ d);
        sched_send_ref(prog, partner, (struct ref){sum.buf, give});
        sched_span(prog, d);
        struct ref dst = v == 0 && d == 1 ? ref_out(keep) : ref_scratch(0, keep);
        sched_recv_reduce_ref(prog, partner, dst, (struct ref){sum.buf, keep});
        sched_span(prog, d);
        sum = dst;
        low = keep;
    }
    sched_final(prog);
}

static void gather_shares(struct prog *prog, const struct algo_args *args, uint32_t v,
                          uint32_t start)
{
    uint32_t p = power_within(args->nranks), top = binomial_bit(v, p);
    for (uint32_t bit = 1; bit < top; bit <<= 1) {
        uint32_t c = start + v + bit;
        sched_recv_ref(prog, rank_of(args, v + bit), v == 0 ? ref_out(c) : ref_scratch(0, c));
        sched_span(prog, bit);
    }
    if (v > 0) {
        sched_send_ref(prog, rank_of(args, v - top), ref_scratch(0, start + v));
        sched_span(prog, top);
    }
}

/* Lanes 2ch (halving) and 2ch + 1 (gather). */
void reduce_scatter_gather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, v = wrap((int64_t)rank - args->root, n), p = power_within(n);
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t sub = 0; sub < pieces(args); sub++) {
        uint16_t lane = (uint16_t)(2 * (sub / args->parts));
        sched_lane(prog, lane, lane);
        halve(prog, args, v, sub * p);
        if (v < p) {
            sched_lane(prog, (uint16_t)(lane + 1), (uint16_t)(lane + 1));
            gather_shares(prog, args, v, sub * p);
        }
    }
}
