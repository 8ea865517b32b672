/* SPDX-License-Identifier: Apache-2.0
 * The time of a call in closed form: latency of the hops on the longest way plus bytes over
 * bandwidth, for every algorithm and protocol that could run. */
#pragma once

#include "net/library.h"

/* A topology as the formulas see it. Nodes are hosts, or domains of several hosts. */
struct site {
    enum link_gen gen;
    double n, nodes, per_node; /* accelerators, nodes, accelerators of a node */
    double per_host;           /* accelerators of a host */
    double line_GBps;          /* of an accelerator, with the peers there are */
    double own_most_GBps;    /* through host memory: what its kernels reach there; 0: other links */
    double pair_GBps;        /* of two neighbours, where each pair has links of its own */
    double nic_GBps;         /* of all NICs of a node; 0: one node */
    double one_GBps;         /* of the NICs of one accelerator, or of the one that it shares */
    double pcie_GBps;        /* what an accelerator copies over its own PCIe link */
    double near;             /* share of the node's NICs at its own PCIe switch */
    double reach;            /* .. and of those that others of its host hand on to (PXN) */
    double leaf;             /* accelerators under a leaf switch whose links up are too few, .. */
    double leaf_hosts, over; /* .. its hosts, and k of 1:k; 0, 0, 1: there is none */
    enum fabric fabric;
    double socket_nics; /* NICs of a node that the kernel's sockets drive; 0: none */
    bool nvswitch, grace;
    bool bridged; /* bridges join pairs, and there are more: rings pass PCIe (as if that alone) */
};

/* 0, or -1 with a sentence (ERR_USAGE): several nodes and a NIC rate of 0. */
int site_of(const struct topo *topo, struct site *site, struct err *err);

/* What an accelerator reaches on its links inside, and what one NIC of `line_GBps` does, GB/s. */
double closed_own(const struct site *site, const struct net_consts *c);
double closed_nic(const struct site *site, const struct net_consts *c, double line_GBps);

/* One way to run a call. */
struct way {
    int algo, proto;
    double base_us, latency_us, wire_us; /* of the kernel, the hops, the bytes */
    double ceiling_GBps;                 /* busbw for endless sizes */
    const char *limit;
};

enum { NWAYS = 16 };

/* Whether the library is one that has NVLS, on hosts that have it. */
bool closed_may_nvls(const struct site *site, const struct lib_args *args);

/* All ways to run the call that the library has there, forced ones alone where args forces; their
 * number. */
unsigned closed_ways(const struct site *site, const struct net_consts *c,
                     const struct lib_args *args, enum coll_id coll, uint64_t bytes,
                     struct way ways[NWAYS]);

/* Whether the switch of a node can reduce and multicast, and it pays: published sweeps with NVLS
 * forced fall behind the ring up to 4 GPUs of NVLink4 and 5 of NVLink5. */
bool closed_has_nvls(const struct site *site);

/* Latency of a hop between nodes for a call of that size, LL, us. */
double closed_alpha(const struct site *site, const struct net_consts *c,
                    const struct lib_args *args, uint64_t bytes);

/* Time of the kernel, whatever it sends, us. */
double closed_base(const struct site *site, const struct net_consts *c, int algo, int proto);

/* What NVLS loses until all GPUs' chunks flow through the switch, us. It grows slowly with the time
 * on the wire inside a node; published sweeps of 8 to 72 GPUs show it proportional to their number.
 */
double closed_nvls_ramp(const struct site *site, const struct net_consts *c, uint64_t bytes);

/* How much slower, >= 1, a call over nodes is than the slower of its two kinds of links, since both
 * are near their limit. */
double closed_crowding(const struct site *site, const struct net_consts *c, int algo,
                       enum coll_id coll);

/* Times of sends and receives between pairs, us: of the message that a rank posts to each of the
 * others, one after the other (with PXN those for a host go together); and what a pair loses until
 * its own pipeline is full. */
double closed_posts(const struct site *site, const struct net_consts *c,
                    const struct lib_args *args, uint64_t bytes);
double closed_pair_loss(const struct site *site, const struct net_consts *c, enum coll_id coll,
                        uint64_t bytes);

/* The call as the host sees it, from the time on the device. */
double closed_launched(const struct site *site, const struct net_consts *c,
                       const struct lib_args *args, enum coll_id coll, double device_us,
                       double *floor_us);

/* An MPI library between processes on processors, or on accelerators through them. `bytes` is the
 * buffer of a rank; alltoall: all blocks of a rank. */
struct way closed_mpi(const struct site *site, const struct net_consts *c, bool gpu,
                      enum coll_id coll, uint64_t bytes);
