/* SPDX-License-Identifier: Apache-2.0
 * The inside of a host as directed links, and the ways through it. A host is a graph (graph.h):
 * drawn up from the few figures of a topology of form "uniform", or read from a "machine" file.
 *
 * Ways between accelerators, the first that there is: their own link (NVLink, xGMI); the NVSwitch;
 * over one accelerator to which both have a link (widest, then first), as NCCL does on a cube mesh;
 * the bus. On the bus a way climbs to where both meet and descends; between NUMA nodes it passes
 * the link between sockets. Without peer access it climbs to the sender's NUMA node, is written to
 * memory and read from it (its link stands twice), and descends. */
#pragma once

#include "net/graph.h"
#include "net/network.h"

struct host_link {
    uint32_t from, to; /* nodes of the graph; a memory's are the same */
    double GBps;       /* line rate */
    double latency_ns; /* of this link alone; 0: that of its kind */
    enum net_kind kind;
};

/* A node on its way to the processors. */
struct host_node {
    uint32_t parent, numa; /* nodes; GRAPH_NONE at a NUMA node and for a switch of NVLinks */
    uint32_t up, down;     /* links to the parent and back; GRAPH_NONE: no limit */
    uint32_t depth;        /* of NUMA nodes 0 */
    uint32_t index;        /* among its kind, in the order of numbers */
};

struct host_peer {
    uint32_t gpu, link;
};

struct host {
    struct graph graph; /* its warnings say what was filled in */
    uint32_t gpus, nics, numas;
    uint32_t *gpu, *nic, *numa; /* nodes, in the order of their numbers */
    struct host_node *nodes;
    struct host_link *links;
    size_t nlinks, links_cap;
    uint32_t *memory;            /* per NUMA node its link */
    uint32_t *next;              /* numas x numas: the link towards the second; GRAPH_NONE */
    uint32_t *first;             /* gpus + 1: where the peers of each begin */
    struct host_peer *peers;     /* direct links, by gpu */
    uint32_t *out, *in;          /* per gpu: links to and from the NVSwitch; GRAPH_NONE */
    uint32_t nvswitch;           /* the node that stands for all of them; GRAPH_NONE */
    uint32_t passes, nic_passes; /* through memory, on the bus: between gpus, to and from NICs */
};

/* The graph of one host: drawn up, or read and filled in (its warnings say what). 0, or -1 with all
 * sentences (ERR_USAGE) and an empty graph. */
int host_graph(struct graph *graph, const struct topo *topo, struct err *err);

/* 0, or -1 with all sentences (ERR_USAGE) and an empty host. */
int host_make(struct host *host, const struct topo *topo, struct err *err);
void host_release(struct host *host);

/* The links of a way into path, which may be NULL; their number. */
uint32_t host_way(const struct host *host, uint32_t from, uint32_t to, uint32_t *path);
uint32_t host_to_nic(const struct host *host, uint32_t gpu, uint32_t nic, uint32_t *path);
uint32_t host_from_nic(const struct host *host, uint32_t nic, uint32_t gpu, uint32_t *path);

/* How near on the bus. */
enum graph_near host_near(const struct host *host, uint32_t gpu, uint32_t nic);
/* Whether there is a direct link or a switch of NVLinks between two accelerators. */
bool host_linked(const struct host *host, uint32_t a, uint32_t b);
/* .. from one to any other. */
bool host_has_peers(const struct host *host, uint32_t gpu);

/* "gpu2 nvlink out", "gpu0 xgmi to gpu3", "numa0 memory". Freed by the caller. */
char *host_link_name(const struct host *host, uint32_t link);
