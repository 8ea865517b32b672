/* SPDX-License-Identifier: Apache-2.0
 * The best busbw that a cluster allows for an operation of endless size, and which link sets it: by
 * counting the bytes that must pass each kind of link, not by running anything.
 *
 *   n accelerators, g of them in a node (host, or NVLink domain of several), N nodes; L: what an
 *   accelerator reaches on its links inside, W: what the NICs of a node reach together
 *
 *   ring                           min(L, W)
 *   tree, and any that endpoints   min((n-1)/n L, (n-1)/n N/(N-1) W): with two nodes each NIC
 *   add up                         carries S where a ring carries 2 S (n-1)/n: above the wire
 *   NVLS (adds in the switch)      2 (n-1)/n L x the share that multicast gives; over nodes as a
 * tree all-to-all                     min(L (n-1)/(g-1), W/g (n-1)/(n-g)); behind leaf switches
 * that are oversubscribed 1:k, of l accelerators: W/g/k (n-1)/(n-l)
 *
 * L is 20 of 25 GB/s on NVLink (PCIe's where bridges join pairs alone), or more where the topology
 * says that more was measured; W is 0.96 of the NICs' line rate, and no more than what the
 * accelerators' PCIe links carry (0.8 of theirs). A NIC counts when the accelerator that it sits
 * beside takes part. */
#pragma once

#include "net/net_const.h"
#include "net/topo.h"
#include "sched/coll.h"

enum ceiling_kind {
    CEILING_RING,
    CEILING_TREE,
    CEILING_SWITCH, /* NVLS, NVLSTree */
    CEILING_SHARP,  /* the network's switches add */
    CEILING_PAIRS,  /* all-to-all, sendrecv, gather, scatter: blocks go from rank to rank */
    CEILING_ANY,    /* any algorithm of ranks: what the bytes of the operation need at least */
};

enum ceiling_limit {
    LIMIT_NONE, /* one rank: nothing is sent */
    LIMIT_LINK, /* inside a node */
    LIMIT_NICS,
    LIMIT_PCIE,
    LIMIT_LEAF, /* links above the leaf switches */
};

struct ceiling {
    double busbw_GBps;
    enum ceiling_limit limit;
    char text[48];       /* "NVLink of a GPU", "4 NICs of a host", "PCIe link of a GPU" */
    double link_GBps;    /* L */
    double node_GBps;    /* W; 0: one node */
    double wire_GBps;    /* line rate of the NICs that count, of a node; 0: one node */
    double nics;         /* .. how many */
    double per_gpu_GBps; /* W / g */
};

struct ceiling ceiling_of(const struct topo *topo, const struct net_consts *consts,
                          enum ceiling_kind kind, enum coll_id coll);

/* NICs of a host that count: beside an accelerator that takes part, and no more than are used. */
double ceiling_nics(const struct topo *topo);

/* Accelerators of a host that take part and have no NIC beside them. 0 with one host. */
uint64_t ceiling_far_gpus(const struct topo *topo);
