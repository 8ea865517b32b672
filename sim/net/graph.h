/* SPDX-License-Identifier: Apache-2.0
 * A machine as a graph: accelerators, NICs, PCIe switches, host bridges and NUMA nodes as a tree,
 * as the system's bus has them, and the links beside it: NVLink, xGMI, between sockets, cables.
 * Readers of other programs' files (smi.h, smi_links.h, nccl_xml.h) make it; see
 * topologies/README.md for its own form.
 *
 *     numa0 ------- socket ------- numa1          a node's parent is towards the processors;
 *       |                            |            numa nodes have none
 *     bridge0                      bridge1
 *       |                            |
 *     switch0 [gpu0 gpu1 nic0]     gpu2           gpu0 ==NVLink== nvswitch0 ==NVLink== gpu1
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define GRAPH_NONE UINT32_MAX

enum graph_kind {
    GRAPH_ACCEL,
    GRAPH_NIC,
    GRAPH_PCIE,   /* PCIe switch (or another bridge below the host's) */
    GRAPH_BRIDGE, /* host bridge, root port: where the bus leaves the processors */
    GRAPH_NUMA,   /* processors and memory */
    GRAPH_NVSWITCH,
    GRAPH_SWITCH, /* of a fabric */
    NGRAPH_KINDS
};

enum graph_via { GRAPH_NVLINK, GRAPH_XGMI, GRAPH_C2C, GRAPH_SOCKET, GRAPH_CABLE, NGRAPH_VIAS };

/* How near two nodes are on the bus: the codes of `nvidia-smi topo -m`. */
enum graph_near {
    GRAPH_SELF, /* X */
    GRAPH_PIX,  /* at most one PCIe switch between them */
    GRAPH_PXB,  /* several, but no host bridge */
    GRAPH_PHB,  /* one host bridge */
    GRAPH_NODE, /* host bridges of one NUMA node */
    GRAPH_SYS,  /* the link between NUMA nodes; or nothing is known of a way */
    NGRAPH_NEARS
};

struct graph_node {
    enum graph_kind kind;
    char *name;       /* of this node alone: "gpu0", "mlx5_0" */
    char *type;       /* what it is called: "NVIDIA H100 80GB HBM3"; NULL: not said */
    char *address;    /* on the bus: "0000:06:00.0"; NULL: not said */
    char *cpus;       /* NUMA: its processors, "0-27,56-83"; NULL: not said */
    uint32_t number;  /* among its kind, as its source counts: 3 of GPU3; NUMA: the system's */
    uint32_t parent;  /* number in the list; GRAPH_NONE */
    double up_GBps;   /* to the parent, 10^9 bytes/s per direction; 0: not said */
    double rate_Gbps; /* NIC: of all its ports, 10^9 bit/s; 0: not said */
    unsigned line;    /* of the file it was read from; 0: none */
};

/* Both directions alike. */
struct graph_link {
    enum graph_via via;
    uint32_t a, b;     /* numbers in the list of nodes */
    uint32_t count;    /* bonded links; 1 where nothing else is said */
    double GBps;       /* of all of them, 10^9 bytes/s per direction; 0: not said */
    double latency_ns; /* 0: not said */
    unsigned line;
};

/* All zero is an empty one. */
struct graph {
    char *about;  /* a sentence for people; NULL */
    char *source; /* where its figures come from; NULL: it has none, or nobody knows */
    struct graph_node *nodes;
    size_t nnodes, nodes_cap;
    struct graph_link *links;
    size_t nlinks, links_cap;
    char **warnings; /* what was guessed or looks wrong, a sentence each with path and line */
    size_t nwarnings, warnings_cap;
};

void graph_release(struct graph *graph);

/* Adds a node and gives its number. `name` NULL: the kind's word and `number` ("gpu3"). Strings are
 * copied. The pointer graph->nodes[i] is valid until the next call. */
uint32_t graph_add(struct graph *graph, enum graph_kind kind, const char *name, uint32_t number,
                   uint32_t parent);
void graph_link(struct graph *graph, enum graph_via via, uint32_t a, uint32_t b, uint32_t count);
void graph_warn(struct graph *graph, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The node of that kind with that number; GRAPH_NONE. */
uint32_t graph_find(const struct graph *graph, enum graph_kind kind, uint32_t number);

/* The NUMA node above a node; GRAPH_NONE. */
uint32_t graph_numa(const struct graph *graph, uint32_t node);

/* By the tree alone. */
enum graph_near graph_near(const struct graph *graph, uint32_t a, uint32_t b);

/* NVLinks between two accelerators: direct ones, or those to switches that both have: the fewer of
 * the two sums, as NVML counts. */
uint32_t graph_nvlinks(const struct graph *graph, uint32_t a, uint32_t b);

/* Adds a sentence (ERR_USAGE, "PATH:LINE: ..") for each rule that is broken: names twice, parents
 * in a circle or of a kind that carries nothing, links from a node to itself or twice. 0 or -1. */
int graph_check(const struct graph *graph, const char *path, struct err *err);

/* The table of `nvidia-smi topo -m`: accelerators and NICs, with the affinity of processors and
 * NUMA nodes behind; then the legend of NICs whose names are not NICn. */
void graph_matrix(const struct graph *graph, FILE *to);

/* The graph's own form (topologies/README.md, form "graph"), and Graphviz's. */
void graph_write(const struct graph *graph, FILE *to);
void graph_dot(const struct graph *graph, FILE *to);

/* Reads a file, whose form is found out: the own form, a table or the NVLink status of nvidia-smi,
 * NCCL's XML. 0, or -1 with all faults (ERR_USAGE) and an empty graph. graph_parse reads one that
 * is in memory, ended by a 0 behind its bytes. */
int graph_read(struct graph *graph, const char *path, struct err *err);
int graph_parse(struct graph *graph, const char *path, const char *text, size_t bytes,
                struct err *err);

/* The bytes of a file, or of stdin for "-", with a 0 behind them; freed by the caller. NULL with a
 * sentence (ERR_USAGE) if it cannot be read or has more than 16 MiB. */
char *graph_text(const char *path, size_t *bytes, struct err *err);

const char *graph_kind_name(enum graph_kind kind); /* as in files: "gpu" */
const char *graph_via_name(enum graph_via via);    /* "nvlink" */
const char *graph_near_name(enum graph_near near); /* "PIX" */
