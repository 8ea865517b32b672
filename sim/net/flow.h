/* SPDX-License-Identifier: Apache-2.0
 * Runs a call on a cluster by the engine: what a library would do becomes one of our schedules on
 * the network that the topology describes, with the costs of the library's protocol.
 *
 *   Ring      ring; broadcast and reduce: a chain. One channel per NIC, each entering and leaving a
 *             host by its own
 *   Tree      a chain inside each node, and between the nodes two binary trees per NIC: flow_tree.c
 *   NVLS, NVLSTree, CollNet   schedules with agents in the switches. Of groups (flow_part) NVLSTree
 *             is its two levels side by side: NVLS in each node, and a tree of each rank of the
 *             nodes for its share
 *   PAT       pat
 *   P2P       all sends at once; across hosts by the NIC of the receiver's number (PXN), or by the
 *             sender's own where it is off
 *
 * Our own algorithms run as they are. */
#pragma once

#include "net/closed.h"
#include "net/coll_request.h"
#include "net/library.h"
#include "net/net.h"
#include "net/net_const.h"
#include "net/network.h"
#include "net/ready.h"

struct flow;

/* Calls of all accelerators. Everything is borrowed. */
struct flow *flow_new(const struct coll_request *request, const struct topo *topo,
                      const struct net_consts *consts, const struct lib_args *args,
                      struct out *notes);
void flow_free(struct flow *flow);

/* Calls of groups that lie side by side on a part of a cluster: rank k of group b is the topology's
 * rank base + k x groups + b. All of them call at once. */
struct flow_lay {
    uint32_t n, groups, base; /* n >= 2 of each; all are ranks of the topology */
    uint32_t back;            /* 1, of two ranks a group: they have changed places */
};

/* A group as the formulas see it, its NICs being what its siblings leave it; `alike`: the domains
 * cut all groups alike. 0, or -1 with a sentence (ERR_USAGE): several nodes and a NIC rate of 0. */
int flow_site(const struct topo *topo, const struct flow_lay *lay, struct site *site, bool *alike,
              struct err *err);

/* .. request->nranks being lay->n, and `site` that of flow_site. Copies the lay and the site. All
 * channels get the same bytes: a call is rounded up to it, by less than a byte per channel. */
struct flow *flow_group(const struct coll_request *request, const struct topo *topo,
                        const struct net_consts *consts, const struct lib_args *args,
                        const struct flow_lay *lay, const struct site *site);

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

/* A call of groups ready to run, as by net_run: args.costs are `costs`; fold is not asked for. The
 * rest is of the flow. */
struct flow_call {
    const struct network *network;
    const struct ready *ready;
    struct net_cost costs[NSCOPES];
    struct net_args args;
    double base_us; /* of the kernel, beside what the run takes */
    bool pipelined; /* it goes in slices */
};
int flow_prepare(struct flow *flow, const struct lib_choice *choice, size_t count,
                 struct flow_call *call, struct err *err);

/* Whether groups have a schedule for the choice, and one that can be built. */
bool flow_can(const struct flow *flow, const struct lib_choice *choice);

/* A call of groups as the library has chosen to run it; *empty: what it takes on the device with no
 * bytes, but all messages, and the costs of messages of its size. Of a sendrecv between two the
 * first one sends, the second receives; among more each sends to the next. */
struct flow_empty {
    double us, front_us; /* .. of it before the first byte arrives: the rest lies between bytes */
};
int flow_part(struct flow *flow, const struct lib_choice *choice, size_t count,
              struct flow_run *run, struct flow_empty *empty, struct err *err);

/* The runs that a call of groups is made of, all at once: one, or the two levels of NVLSTree. Ready
 * as by flow_prepare; what goes in slices as one stream (net_args.flood), which begins once the
 * latencies have passed. calls[] must stay where they are. 0, or -1 with a sentence. */
int flow_pieces(struct flow *flow, const struct lib_choice *choice, size_t count,
                struct flow_call calls[2], uint32_t *ncalls, struct err *err);

/* .. by an algorithm of ours, out of place or in place. run->ready is NULL, and nothing ran, where
 * the schedule cannot run so. */
int flow_own(struct flow *flow, const struct algo_choice *choice, size_t count, bool in_place,
             struct flow_run *run, struct err *err);

/* Releases the result of a run. */
void flow_release(struct flow_run *run);

/* Two binary trees over the node groups per pair of channels, the ranks of each in a chain: see
 * flow_tree.c. A row like those of the table, for allreduce. */
extern const struct algo flow_tree;

/* The switch of each node group adds up its ranks and tells them the sum, and nothing between the
 * groups: the inner part of NVLSTree. A row for allreduce, which by itself does not end it. */
extern const struct algo flow_inside;
