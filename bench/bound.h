/* SPDX-License-Identifier: Apache-2.0
 * The least that an operation can cost: how many bytes its ranks must read and write at the very
 * least, whatever the algorithm, for buffers that peers can map (shared) and for buffers that they
 * cannot (private). Divided by the measured speed of plain copies it is the bound behind %bound.
 *
 * Bytes per rank, the average over all n ranks, in units of S as algbw counts it. B = S/n.
 *
 *   shared          read      written     in place: written
 *   allreduce       1         1           1             every input once; every output once
 *   allgather       1/n       1           1 - 1/n       a block is read once and stored n times
 *   reduce_scatter  1         1/n         1/n           every input once; own block once
 *   alltoall        1         1           1 - 1/n  (*)  every block once
 *   broadcast       1/n       1           1 - 1/n       the root's data once, n outputs
 *   reduce          1         1/n         1/n           every input once; the root's output
 *   gather, scatter 1/n       1/n         1/n - 1/n^2 (*)  n blocks in all
 *   sendrecv        1         1           1             every input once; every output once
 *   alltoallv       1         1           -             of the mean input
 *   barrier         0         0           -
 *
 *   private         read      written     in place: written
 *   allreduce       3 - 2/n   2           2
 *   allgather       1         1 + 1/n     1
 *   reduce_scatter  2 - 1/n   1           1
 *   alltoall        2 - 1/n   2 - 1/n     2 - 2/n  (*)
 *   broadcast       1         1 + 1/n     1
 *   reduce          2 - 1/n   1           1
 *   gather, scatter 2/n - 1/n^2 (both)    2/n - 2/n^2 (*)
 *   sendrecv        2         2           2
 *   alltoallv       1         1           -             as if shared: blocks to oneself may be all
 *                                        (*) in place the same is read as written
 *
 * Private: what changes rank is written to a slot by the one and read from it by the other; a slot
 * may be read by many. Per element of
 *   reduce_scatter  n inputs are read, n-1 partial sums written and read again, 1 result written;
 *   allreduce       besides, the result is written to a slot once and read by n-1 ranks, and there
 *                   are n results: n + 2(n-1) reads, n + n writes. (No scheme needs fewer reads:
 *                   one-way gossip among n takes 2(n-1) messages. One-shot, with n(n-1) slot
 *                   reads, is never less.)
 *   allgather       an input is read once and written to a slot and, out of place, to the own
 *                   output in one go; n-1 ranks read the slot and write their output;
 *   broadcast       the same with the root's data alone;
 *   alltoall        n-1 of n blocks go through a slot, the n-th is copied (in place: stays); so do
 *                   the blocks of the root of a gather or scatter, and all of sendrecv's;
 *   reduce          as reduce_scatter, with one result of n blocks.
 * One rank: out of place one copy of S, in place nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "sched/coll.h"

struct bound {
    double read, written; /* bytes per rank, average over the ranks */
    double slots;         /* of both together: written to slots and read from them */
};

/* The least bytes of an operation of S = `bytes` on `nranks` ranks. */
struct bound bound_least(enum coll_id coll, uint32_t nranks, size_t bytes, bool shared,
                         bool in_place);

/* True when the operation in place must write where something was read before (allreduce, alltoall,
 * reduce_scatter, reduce, sendrecv): then a line of memory is fetched once for both. */
bool bound_rewrites(enum coll_id coll);

/* Microseconds that those bytes take: slots at `slot_Bps`, bytes moved per second and rank when
 * ranks hand data to each other through slots; the rest at `copy_Bps`, bytes copied per second and
 * rank (a byte copied is one read and one written). 0 when there is nothing to move or no speed is
 * known. */
double bound_us(const struct bound *bound, double copy_Bps, double slot_Bps);

/* The table above, from the numbers that bound_least uses. */
void bound_print(FILE *to);
