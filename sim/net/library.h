/* SPDX-License-Identifier: Apache-2.0
 * How a library runs a collective on a cluster: which algorithm, protocol and channels it takes,
 * and what that costs. The time comes from our constants (net_const.h), in closed form or by the
 * engine, and is that of the quickest way; what NCCL's published formula would take stands beside
 * it (its choice timed by our constants misses published sweeps by more: data/README.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/net_const.h"
#include "net/topo.h"
#include "sched/coll.h"

enum library { LIBRARY_COLLBENCH, LIBRARY_NCCL, LIBRARY_MPI, NLIBRARIES };

/* Versions that behave alike. */
enum lib_class { LIB_NCCL_2_18, LIB_NCCL_2_19, LIB_NCCL_2_27, LIB_RCCL, LIB_MPI, NLIB_CLASSES };

enum nccl_algo {
    NCCL_RING,
    NCCL_TREE,
    NCCL_NVLS,
    NCCL_NVLS_TREE,
    NCCL_COLLNET,
    NCCL_PAT,
    NCCL_P2P,
    NNCCL_ALGOS
};

/* How a time is found: by formula; by the engine on the schedule folded where it can be; by the
 * engine on all ranks. */
enum net_mode { NET_CLOSED, NET_FLOW, NET_FULL };

struct lib_args {
    enum library library;
    enum lib_class lib_class; /* NLIB_CLASSES: the usual one for the accelerator's era */
    enum launch launch;
    int algo, proto;   /* enum nccl_algo, nccl_proto; -1: as the library chooses */
    uint32_t channels; /* 0: as the library chooses */
    bool sharp;        /* reduction in the network's switches is set up */
    bool no_nvls;      /* a version of before NVLS */
    bool direct;       /* all-to-all by one kernel that writes to all peers, as DeepEP's: nothing
                          per pair */
    bool no_pxn;       /* sends leave by the sender's own NIC, each for itself */
    double launch_us;  /* the user's floor; < 0: the constants' */
    double alpha_us;   /* the user's latency of a hop between hosts; < 0: the constants' */
};

struct lib_choice {
    int algo, proto; /* -1: has none (MPI) */
    uint32_t channels;
    const char *algo_name, *proto_name; /* "Ring", "LL128"; "" */
};

/* A predicted call. time = what stands below together; ceiling and limit are for large sizes. */
struct lib_time {
    struct lib_choice choice; /* the quickest by our constants: what the time is of */
    struct lib_choice nccl;   /* what NCCL's published formula takes (nccl.h) */
    double time_us;
    double launch_us;    /* the floor of the host */
    double base_us;      /* of the kernel */
    double latency_us;   /* of all hops on the longest way */
    double wire_us;      /* bytes over bandwidth */
    double ceiling_GBps; /* busbw for endless sizes */
    const char *limit;   /* "NVLink of a GPU", "NICs of a host", "PCIe link of a GPU": static */
};

/* Time of one call of `bytes` (size column of nccl-tests) on all accelerators of the topology, in
 * closed form. One accelerator alone copies from its buffer to the other, out of place. `root` is
 * not an input: no formula depends on it. 0, or -1 with a sentence
 * (ERR_USAGE): an algorithm that the operation has not, a NIC rate of 0. */
int lib_closed(const struct topo *topo, const struct net_consts *consts,
               const struct lib_args *args, enum coll_id coll, uint64_t bytes,
               struct lib_time *time, struct err *err);

struct site; /* closed.h */

/* What the library does for a group of accelerators, by formula: the quickest of closed_ways, or
 * what closed_mpi says. -1: there is no way to run the call. */
struct way;
int lib_way(const struct site *site, const struct net_consts *consts, const struct lib_args *args,
            enum coll_id coll, uint64_t bytes, struct way *way);

/* The arguments when the user names nothing: NCCL, one process per GPU, all else chosen. */
struct lib_args lib_usual(void);

/* The class that versions of the accelerator's era belong to. */
enum lib_class lib_class_of(const struct topo *topo);

/* The call as the host sees it, from its time on the device: the launch floor, as lib_closed takes
 * it. 0, or -1 as lib_closed. */
int lib_call_us(const struct topo *topo, const struct net_consts *consts,
                const struct lib_args *args, enum coll_id coll, double device_us, double *time_us,
                struct err *err);

/* What the engine needs to run a call with these constants: rates[NNET_KINDS] of links
 * (network.h), which for rings, trees and NVLS are slower by closed_crowding of a ring. */
struct net_rate;
void net_rates(const struct net_consts *consts, const struct topo *topo, struct net_rate *rates);

/* .. and costs[NSCOPES] (net.h) of a message of the choice beside its links, where a rank's bytes
 * go by `channels` flows at once, and the time of the kernel around all messages (us). The latency
 * of a hop is what the closed form charges, less what the links of net_rates have already. */
struct net_cost;
void lib_costs(const struct net_consts *consts, const struct site *site,
               const struct lib_args *args, const struct lib_choice *choice, enum coll_id coll,
               uint64_t bytes, uint32_t channels, struct net_cost *costs, double *base_us);

const char *nccl_algo_name(int algo);                 /* "Ring"; "" for -1 */
const char *nccl_proto_name(int proto);               /* "LL"; "" for -1 */
const char *lib_class_name(enum lib_class lib_class); /* "NCCL 2.19-2.26" */
