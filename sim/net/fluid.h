/* SPDX-License-Identifier: Apache-2.0
 * A collective inside a training step as one fluid job: its schedule is run once by the engine, on
 * the links of the ranks that it lies on and together with its sibling groups, and what came out is
 * kept. In the step the job takes `fixed_ps`, and then `wire_ps` at rate 1 when it is alone; where
 * others load the same kind of links, only that part stretches.
 *
 *   ranks   0 1 2 3 4 5 6 7 | 8 9 ..       n = 2, stride = 8: the group 0, 8 and its seven
 *   groups  a b c d e f g h | a b ..       siblings 1, 9 .. 7, 15 start together and share NICs
 *
 * A group of `n` ranks that are `stride` apart and its stride - 1 siblings fill n x stride ranks in
 * a row: that block is what runs, on the hosts that it lies on.
 *
 * What goes in slices (trees, chains, NVLS) takes the latency of its messages, then its bytes flow
 * as one stream (net_args.flood). A hierarchical exchange (`cross`) is two jobs
 * in a row, or if `direct` at once: an exchange among all of the bytes that cross, and one of the
 * rest inside each domain. */
#pragma once

#include "net/library.h"
#include "net/network.h"
#include "net/queue.h"
#include "sched/coll.h"

struct fluid_call {
    enum coll_id coll; /* allreduce, allgather, reduce_scatter, alltoall, broadcast; sendrecv: rank
                          k sends to k + 1, and the last of more than two to the first */
    uint64_t bytes;    /* the size column of nccl-tests; 0: nothing but latency */
    uint32_t n;        /* >= 1; of one rank: no time */
    uint32_t stride;   /* >= 1 */
    uint32_t base;     /* first rank of the block; matters where a domain is cut, or links differ */
    /* alltoall: a rank's tokens go to a host once, however many of its ranks want them, and are
     * spread inside (hierarchical dispatch): bytes that cross hosts over those that would; 1 or
     * 0: all */
    double cross;
    /* Ranks from `base` on that are filled with such blocks, which do the same at once: the answer
     * is that of the slowest block, and they differ where links do. 0: the one block */
    uint32_t span;
    bool direct; /* alltoall: one kernel writes to all peers (DeepEP), in place of a send to each; a
                    hierarchical one spreads while it receives */
    bool back;   /* sendrecv of two: the second sends to the first. Differs where links do */
};

/* Which part of a GPU moves the bytes. */
enum fluid_mover { FLUID_NONE, FLUID_NETWORK, FLUID_NVLINK, NFLUID_MOVERS };

struct fluid {
    ps_t fixed_ps, wire_ps;   /* alone it takes fixed + wire */
    ps_t front_ps;            /* of fixed_ps before the first byte; the rest lies between bytes */
    float busy[NNET_KINDS];   /* of wire_ps: the busiest link of the kind (network_meets), 0..1 */
    double bytes[NNET_KINDS]; /* that a rank of the group puts on links of the kind, mean */
    enum fluid_mover mover;   /* NVLINK: a kernel that copies or reduces; NETWORK: mostly NICs;
                                 NONE: the switch, or copy engines */
    bool net_limited;         /* the busiest link is of the network between hosts */
    bool formula;             /* no schedule was run: too many ranks, or none stands for the call */
    const char *algo, *proto; /* static; "" where there is none */
};

/* Jobs of one topology, made when first asked for and kept. Everything is borrowed. Not for two
 * threads at once. */
struct fluids;
struct fluids *fluids_new(const struct topo *topo, const struct net_consts *consts,
                          const struct lib_args *args);
void fluids_free(struct fluids *fluids);

/* From here on each call is run on all hosts of the cluster, every rank of its groups by itself:
 * what cutting and folding are checked against. Before the first call. */
void fluids_unfold(struct fluids *fluids);

/* The job of a call: the library's quickest way by our constants for a group that lies so (of those
 * that the arguments ask for, where the operation has one of them), and its
 * time on the device by the engine (kernel time around the messages included, launch not). 0, or -1
 * with a sentence. */
int fluids_get(struct fluids *fluids, const struct fluid_call *call, struct fluid *fluid,
               struct err *err);

/* Whether links of single hosts differ from the others': blocks of a span can. */
bool fluids_marked(const struct fluids *fluids);

/* What they were made with, for who runs calls by himself. */
struct fluids_of {
    const struct topo *topo;
    const struct net_consts *consts;
    const struct lib_args *args;
};
struct fluids_of fluids_of(const struct fluids *fluids);

/* The calls that a call is made of, one after the other: itself, or the two of a hierarchical
 * exchange. Their number. */
uint32_t fluids_parts(const struct fluids *fluids, const struct fluid_call *call,
                      struct fluid_call parts[2]);

/* How many calls were run by the engine, and how many answers there were. */
void fluids_count(const struct fluids *fluids, size_t *runs, size_t *asked);
