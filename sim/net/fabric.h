/* SPDX-License-Identifier: Apache-2.0
 * The switches between hosts: which links a message passes between two NICs. All by arithmetic;
 * nothing is stored per host.
 *
 *   switch     host0 nic .. hostN nic -- one that blocks nothing
 *   fat-tree   leaf = all NICs of leaf_hosts hosts; every leaf has one link to every spine
 *   rail       leaf = NIC i of leaf_hosts hosts; idem. Same rail, same group: the leaf alone
 *   torus      a router per host with a port per axis and direction ("nic" 2a forwards, 2a + 1
 *              back), right beside its accelerators: nothing of the host's bus is passed. One axis
 *              after the other, the shorter way round; a side below 4 is not closed to a ring
 *   dragonfly  groups of switches of 16 NICs; in a group each switch to each, every group to every
 *              group; a message goes local, global, local at most
 *
 * A fat tree has as many spines as give 1/k of a leaf's rate with links as fast as a NIC. Its
 * spine, and the cable between two dragonfly groups, are chosen by the receiver's place under its
 * leaf, as InfiniBand's tables do, which keeps any permutation free of conflict; on Ethernet (RoCE,
 * TCP) by a hash of both places, the distance of the leaves and the channel. Both are the same when
 * all hosts move on by a leaf or group. */
#pragma once

#include "net/network.h"

struct net_fabric {
    enum topo_layout layout;
    uint32_t hosts, nics; /* NICs (torus: ports) of a host */
    uint32_t leaf_hosts;
    uint32_t groups;         /* of leaf_hosts hosts; the last may be smaller */
    uint32_t leaves, spines; /* fat-tree, rail; switch: 1 leaf */
    uint32_t switches;       /* dragonfly: of a group */
    uint32_t cables;         /* dragonfly: between two groups */
    uint32_t *dims;          /* torus */
    uint32_t ndims;
    bool hashed;
    double up_GBps;    /* leaf to spine; dragonfly: a cable between groups */
    double local_GBps; /* dragonfly: between two switches of a group */
    uint32_t nlinks;   /* those between switches */

    /* How the network numbers links: fabric link i is `first` + i; port p of host h is
     * h x stride + port + p. Port 2n of a host is NIC n's way out, 2n + 1 its way in; torus: port p
     * is the link from the host's router. The network sets these. */
    uint32_t first, stride, port;
};

/* 0, or -1 with all sentences (ERR_USAGE) and an empty fabric. */
int fabric_make(struct net_fabric *fabric, const struct topo *topo, struct err *err);
void fabric_release(struct net_fabric *fabric);

/* From the way out of NIC `nic` of one host to the way in of the other's, both included; torus:
 * from router to router, the NICs are not read. The number of links; at most fabric_longest. */
uint32_t fabric_way(const struct net_fabric *fabric, const uint32_t host[2], const uint32_t nic[2],
                    uint32_t channel, uint32_t *path);
uint32_t fabric_longest(const struct net_fabric *fabric);

/* From one leaf to another (fat-tree, rail), by the spine that the sum of both groups gives: what
 * all leaves of a rail send to one of them is spread over all spines, as in SHARP's trees. */
uint32_t fabric_leaf_way(const struct net_fabric *fabric, uint32_t from, uint32_t to,
                         uint32_t *path);
uint32_t fabric_leaf(const struct net_fabric *fabric, uint32_t host, uint32_t nic);
/* The switch that a NIC is plugged into, as fabric_link numbers them; the leaf, but in a dragonfly.
 */
uint32_t fabric_plug(const struct net_fabric *fabric, uint32_t host, uint32_t nic);

/* Hosts of one number are under one leaf or rail group. */
uint32_t fabric_group(const struct net_fabric *fabric, uint32_t host);

/* Line rate of fabric link i in GB/s, and its two switches (torus: hosts). */
double fabric_link(const struct net_fabric *fabric, uint32_t i, uint32_t *from, uint32_t *to);
char *fabric_link_name(const struct net_fabric *fabric, uint32_t i);

/* The host to which port p of a torus leads; itself where there is no link. */
uint32_t fabric_neighbour(const struct net_fabric *fabric, uint32_t host, uint32_t port);
