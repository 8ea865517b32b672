/* SPDX-License-Identifier: Apache-2.0
 * The builders behind the table of algo.c: each emits the program of one rank. In all of them
 * channel `ch` (with a lane of its own, or two) moves an equal share of every block, cut into
 * `parts` pieces: sub-chunk ch * parts + p. */
#pragma once

#include "algo/algo.h"

typedef void build_fn(struct prog *prog, const struct algo_args *args, uint32_t rank);

build_fn ring_allreduce, ring_allgather, ring_reduce_scatter;
build_fn tree_allreduce, binomial_broadcast;
build_fn oneshot_allreduce, twoshot_allreduce, direct_alltoall, pairwise_alltoall;
build_fn chain_broadcast;
build_fn doubling_allreduce, halving_doubling_allreduce, swing_allreduce;
build_fn doubling_allgather, halving_reduce_scatter;
build_fn bruck_allgather, bruck_reduce_scatter;
build_fn pat_allgather, pat_reduce_scatter;
build_fn direct_allgather, direct_reduce_scatter;
build_fn direct_reduce, direct_gather, direct_scatter, shift_sendrecv, dissemination_barrier;

build_fn hierarchical_allreduce, hierarchical_alltoall, bruck_alltoall;
build_fn scatter_allgather_broadcast, double_tree_broadcast;
build_fn binomial_reduce, chain_reduce, reduce_scatter_gather;
build_fn binomial_gather, binomial_scatter, tree_barrier;

/* With agents: the end may be a rank or an agent. */
build_fn nvls_allreduce, sharp_allreduce, nvls_sharp_allreduce;
build_fn nvls_allgather, nvls_reduce_scatter, nvls_broadcast, nvls_reduce;

/* Parts that the all-reduces of hierarchical.c cut the block into. */
typedef uint32_t count_fn(const struct algo_args *args);
count_fn hierarchical_parts, nvls_parts, sharp_parts, nvls_sharp_parts;

/* Their agents; and that of the rows for ranks behind one switch, who need none for one rank. */
count_fn nvls_agents, sharp_agents, nvls_sharp_agents, one_agent;

/* An agent receives `nchunks` chunks from ranks first .. first + size - 1 and adds, in this order,
 * into `sum`; or it sends them `from` there, but not to rank `but` (UINT32_MAX: to all). */
void agent_add(struct prog *prog, uint32_t first, uint32_t size, struct ref sum, uint32_t nchunks);
void agent_send(struct prog *prog, uint32_t first, uint32_t size, uint32_t but, struct ref from,
                uint32_t nchunks);

/* Pieces per block or per rank's share: channels x parts. */
static inline uint32_t pieces(const struct algo_args *args)
{
    return args->channels * args->parts;
}

/* One rank alone: the output is the input, `chunks` of it. */
void copy_all(struct prog *prog, uint32_t chunks);

/* Receives chunk c from all others and adds: ((x0 + x1) + x2) + .. with the own input in its turn;
 * partial sums in scratch, the last, final one in the output. n >= 2. */
void add_in_rank_order(struct prog *prog, uint32_t n, uint32_t rank, uint32_t c);

/* The largest power of two that is no more than `n` (>= 1). */
static inline uint32_t power_within(uint32_t n)
{
    uint32_t power = 1;
    while (power <= n / 2) {
        power *= 2;
    }
    return power;
}

/* The steps that follow work for sub-chunk `sub`: lane and channel are its channel's. */
static inline void use_sub(struct prog *prog, const struct algo_args *args, uint32_t sub)
{
    sched_lane(prog, (uint16_t)(sub / args->parts), (uint16_t)(sub / args->parts));
}

/* ---- several blocks in a row, behind the last comes the first: one message where a block is one
 * chunk; else one per block and piece, as pieces of one channel do not lie side by side ---- */

/* All-gather: sends or receives blocks [first, first + count) of the output. The rank's own block
 * goes out from the input while it goes alone; allgather_own copies it, unless that has been done.
 */
void allgather_send(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                    uint32_t count);
void allgather_recv(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                    uint32_t count);
void allgather_own(struct prog *prog, const struct algo_args *args);

/* Reduce-scatter: where the partial sums of a rank lie, by buffer: BUF_IN until something has been
 * added, then scratch plane 0. */
struct partial {
    uint32_t own, others;
};

/* Sends partial sums of blocks [first, first + count), or receives and adds them: into scratch, or,
 * if `last` and one block only, into the output. */
void partial_send(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                  uint32_t count, struct partial from);
void partial_add(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                 uint32_t count, struct partial from, bool last);

/* Binomial tree of n positions, 0 at the top: a position's parent is itself without its lowest set
 * bit. That bit, for position v < n (0: the least power of two >= n); children stand at v + bit for
 * the powers of two below it. */
static inline uint32_t binomial_bit(uint32_t v, uint32_t n)
{
    uint32_t bit = v & -v;
    for (bit = v > 0 ? bit : 1; v == 0 && bit < n; bit <<= 1) {
    }
    return bit;
}

/* Positions v .. v + size - 1 are v's subtree, itself included. */
static inline uint32_t binomial_size(uint32_t v, uint32_t n)
{
    uint32_t bit = binomial_bit(v, n);
    return bit < n - v ? bit : n - v;
}
