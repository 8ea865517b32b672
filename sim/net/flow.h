/* SPDX-License-Identifier: Apache-2.0
 * Runs a call on a cluster by the engine: what a library would do becomes one of our schedules on
 * the network that the topology describes, with the costs of the library's protocol.
 *
 *   Ring      ring; broadcast and reduce: a chain. One channel per NIC, each entering and leaving a
 *             host by its own
 *   Tree      a chain inside each node, and between the nodes two binary trees per NIC: flow_tree.c
 *   NVLS, NVLSTree, CollNet   schedules with agents in the switches
 *   PAT       pat
 *   P2P       all sends at once; across hosts by the NIC of the receiver's number (PXN), or by the
 *             sender's own where it is off
 *
 * Our own algorithms run as they are. */
#pragma once

#include "net/coll_request.h"
#include "net/library.h"
#include "net/net.h"
#include "net/net_const.h"
#include "net/network.h"
#include "net/ready.h"

struct flow;

/* Everything is borrowed. `full`: all ranks are run, nothing is folded. */
struct flow *flow_new(const struct coll_request *request, const struct topo *topo,
                      const struct net_consts *consts, const struct lib_args *args,
                      struct out *notes);
void flow_free(struct flow *flow);

/* What a run gave. */
struct flow_run {
    struct net_result net;         /* its time is that of the schedule alone */
    const struct network *network; /* that it ran on; of the flow */
    const struct ready *ready;     /* the schedule; of the flow */
    double device_us;              /* with the kernel's own time */
};

/* Links between all or some pairs of a host: NCCL lays so many rings over them that all are used,
 * ours have one order. So for rings an accelerator's links are taken as one into a switch. */
bool flow_is_mesh(const struct topo *topo);

/* Whether the run takes seconds at most, as far as can be told before (--net full: it is wanted).
 */
bool flow_is_quick(struct flow *flow, const struct lib_choice *choice, size_t count);

/* A call of `count` elements per block as the library has chosen to run it. 0, or -1 with a
 * sentence: no schedule of ours stands for it (ERR_USAGE), or the run failed. */
int flow_library(struct flow *flow, const struct lib_choice *choice, size_t count,
                 struct flow_run *run, struct err *err);

/* .. by an algorithm of ours, out of place or in place. run->ready is NULL, and nothing ran, where
 * the schedule cannot run so. */
int flow_own(struct flow *flow, const struct algo_choice *choice, size_t count, bool in_place,
             struct flow_run *run, struct err *err);

/* Releases the result of a run. */
void flow_release(struct flow_run *run);

/* Two binary trees over the node groups per pair of channels, the ranks of each in a chain: see
 * flow_tree.c. A row like those of the table, for allreduce. */
extern const struct algo flow_tree;
