/* SPDX-License-Identifier: Apache-2.0
 * A cluster as the engine sees it: directed links with a capacity and a latency, and the links
 * that a message between two ranks passes. Built from a topology (topo.h); ranks are accelerators,
 * host by host. Links are numbers, routes are computed, so that a network costs memory per host and
 * never per pair.
 *
 *     rank 0 --nvlink out--> NVSwitch --nvlink in--> rank 1            one domain
 *     rank 0 --pcie--> [switch] --nic0 out--> leaf ==> spine ==> leaf --nic0 in--> .. --> rank 9
 *
 * Scopes are nested: host, scale-up domain, rail group (hosts under one leaf), all. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "net/queue.h"
#include "net/topo.h"

enum net_kind {
    NET_PORT,   /* of the one switch of network_switch */
    NET_NVLINK, /* and NVSwitch ports */
    NET_XGMI,
    NET_PCIE,   /* device to switch or bridge, bridge to processor */
    NET_SOCKET, /* between NUMA nodes */
    NET_MEMORY, /* of a NUMA node */
    NET_NIC,    /* NIC to its leaf, or back */
    NET_FABRIC, /* between switches of the network */
    NNET_KINDS
};

enum net_scope { SCOPE_SELF, SCOPE_HOST, SCOPE_DOMAIN, SCOPE_RAIL, SCOPE_ALL, NSCOPES };

/* What a class of links does with its datasheet figures: from the table of constants. */
struct net_rate {
    double efficiency;    /* of the line rate, (0, 1] */
    ps_t latency_ps;      /* of a hop */
    double own_most_GBps; /* most of a link that ends at an accelerator; 0: no other limit */
};

struct net_link {
    double capacity_Bps; /* sustained, > 0 */
    double peak_Bps;     /* while the bucket holds tokens; 0: there is none */
    double bucket_bytes; /* tokens of a full bucket (peak_Bps > 0) */
    ps_t latency_ps;
    enum net_kind kind;
};

enum { NETWORK_HOPS = 32 }; /* the longest route there is; network_build checks it */

struct network;

/* One switch, one full duplex link per rank: links 2r (out of rank r) and 2r + 1 (into it), each of
 * `beta_Bps`; half of alpha_ps on each. Its switch holds one agent. */
struct network *network_switch(uint32_t nranks, double beta_Bps, ps_t alpha_ps);

/* By which NICs a message between hosts goes. How a library behaves, so whoever models one says it.
 *
 *     NET_OWN   each end by a NIC of its own: MPI, collbench, and NCCL's sends where PXN is off
 *     NET_PXN   the sender hands the message over NVLink to the GPU beside the NIC that has the
 *               number of the receiver's: it stays on its rail. NCCL's sends with PXN
 *     NET_RING  channel c by NIC c, modulo those of the domain (a host, or all hosts of a rack), at
 *               both ends, and by the GPU beside it, not by that of the rank: in NCCL's rings and
 * trees each channel enters and leaves a host at another GPU. The schedule has one order for all
 * channels; this puts the border of channel c where NCCL has it, and loads no other GPU's NVLink
 * for it. Without NVLink or xGMI it is by the rank itself, at the border of the one order */
enum net_policy { NET_OWN, NET_PXN, NET_RING };

/* The cluster, with its faults. Ranks are its accelerators in order, or with `order` (topo_gpus
 * entries, a permutation; may be NULL) rank r is accelerator order[r]. `rates` has NNET_KINDS
 * entries. NULL with sentences (ERR_USAGE): a route that does not exist, or is longer than
 * NETWORK_HOPS. */
struct network *network_build(const struct topo *topo, const struct net_rate *rates,
                              enum net_policy policy, const uint32_t *order, struct err *err);
void network_free(struct network *network);

/* Whether the faults of a cluster name what there is: 0, or -1 with the sentences of network_build.
 * Nothing is built where no link is named. */
int network_check_faults(const struct topo *topo, struct err *err);

/* Of NET_RING: from here on rings are those of `groups` groups of `n` ranks, rank k of group b
 * being base + k x groups + b. Channel c of a group enters and leaves a domain by the c-th NIC of
 * those that its members there own (as NET_OWN has it), modulo their number, and by the member
 * whose own it is. Not for a switch or a torus, where there is nothing to choose. */
void network_rings(struct network *network, uint32_t n, uint32_t groups, uint32_t base);

uint32_t network_ranks(const struct network *network);
uint32_t network_links(const struct network *network);
struct net_link network_link(const struct network *network, uint32_t link);

/* Agents: what reduces and multicasts inside the network. Agent a (its number as an end of a route
 * is network_ranks + a) sits on a switch; domains first, then rail groups. */
uint32_t network_agents(const struct network *network);

/* The end of a route that is the agent of a rank's domain (SCOPE_DOMAIN), or of the leaf of the NIC
 * by which it sends on that channel (SCOPE_RAIL); UINT32_MAX: there is none. Routes lead between an
 * agent and the ranks of its domain, a leaf's agent and any rank, and the agents of two leaves. */
uint32_t network_agent_of(const struct network *network, enum net_scope scope, uint32_t rank,
                          uint32_t channel);

/* The links from `src` to `dst`, in order, into path[NETWORK_HOPS]; their number. 0 between a rank
 * and itself. A link may stand twice (a message that is written to memory and read from it). The
 * same for the same arguments in every run. Where a rank has several NICs of its own, channel c
 * takes the c-th, modulo their number; ranks that have one and the same nearest NICs deal them out.
 * An accelerator whose NIC is beyond the host bridge reaches it over NVLink by the accelerator
 * beside it, where there is NVLink (PXN), else over the bus. */
uint32_t network_route(const struct network *network, uint32_t src, uint32_t dst, uint32_t channel,
                       uint32_t *path);

/* The fewest NICs that any domain has for a ring of NET_RING: with so many channels, or a multiple,
 * all carry the same. 0: there is one host or domain, one switch, or a torus. */
uint32_t network_ring_nics(const struct network *network);

/* Where a link starts and ends, as numbers of places; those of a memory are the same. Hops of a
 * route join, but that a route of NET_RING starts and ends at the accelerators beside the NICs. */
void network_ends(const struct network *network, uint32_t link, uint64_t *from, uint64_t *to);
/* The kind of links whose users meet on a link: PCIe links fall into those at an accelerator, those
 * at a NIC, which none but messages between hosts pass (NET_NIC), and those between switches and
 * bridges (NET_SOCKET). All others are of their own kind. */
enum net_kind network_meets(const struct network *network, uint32_t link);

/* The place of an accelerator (on a torus: of its host's router for a rank elsewhere), an agent. */
uint64_t network_place(const struct network *network, uint32_t end);

/* The graph of a host (graph.h), its warnings included; NULL: of the one switch. */
struct graph;
const struct graph *network_host(const struct network *network);

/* The smallest scope that holds both ends; an agent's is that of what it serves. */
enum net_scope network_scope(const struct network *network, uint32_t a, uint32_t b);

/* "host3/nic0 out", "host0/gpu2 nvlink in", "leaf1 to spine0". Freed by the caller. */
char *network_link_name(const struct network *network, uint32_t link);

const char *net_kind_name(enum net_kind kind);
const char *net_scope_name(enum net_scope scope);
