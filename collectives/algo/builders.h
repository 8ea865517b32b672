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
build_fn direct_reduce, direct_gather, direct_scatter, shift_sendrecv, dissemination_barrier;

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
