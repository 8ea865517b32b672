/* SPDX-License-Identifier: Apache-2.0
 * A machine as a graph (net/graph.h) as hwloc sees it: NUMA nodes, the bus, accelerators and NICs.
 * Where hwloc gets it from is hwloc's business: this system, or what HWLOC_XMLFILE,
 * HWLOC_SYNTHETIC or HWLOC_FSROOT name. */
#pragma once

#include "bench/nvml.h"
#include "net/graph.h"

struct topo_view; /* what hwloc has read */

/* NULL with a sentence: hwloc cannot read the machine (ERR_FAILED), or not the one that such a
 * variable names (ERR_USAGE). */
struct topo_view *topo_view_new(struct err *err);
void topo_view_free(struct topo_view *view);

/* Whether it is of this system, so that what others say of its devices belongs to it. */
bool topo_view_own(const struct topo_view *view);

/* Fills the empty graph with what is there, in this order: NUMA nodes that have processors;
 * accelerators, as `nvml` (or NULL) counts them, then others by bus address; NICs by bus address.
 *
 *     host bridge            a node
 *     bridge with several    a node: a PCIe switch, or a root port whose device has several parts
 *     .. with one or none    left out: the ports of switches, and root ports with one device
 *
 * A link's rate is that of the device's own end, as trained at this moment, or where NVML knows it
 * the highest that it can have. The rate of a NIC is that of its active ports, where the system
 * says it. A device whose NUMA node is unknown has none above it, and a warning; so has a GPU that
 * hwloc does not see. All pairs of NUMA nodes get a link of sockets, without figures. */
void topo_view_graph(const struct topo_view *view, const struct nvml *nvml, struct graph *graph);

/* Leaves this process one processor for each place that is worth comparing with others: the first
 * that it may use of each NUMA node, or of each core where it may use one node alone, `most` places
 * at most. Their number; 0: this machine cannot be asked. *list, "0,64", is freed by the caller. */
uint32_t topo_view_spread(const struct topo_view *view, uint32_t most, char **list);
