/* SPDX-License-Identifier: Apache-2.0
 * A topology of form "uniform" as text for people, as a picture for Graphviz, and as its own file.
 * The inside of a host is the graph that host.h makes of it; what is between hosts is drawn as one
 * host sees it, so that a picture is as large for 8 hosts as for 8,000. */
#pragma once

#include <stdio.h>

#include "net/graph.h"
#include "net/topo.h"

/* Lines "# ..": what it is, the inside of a host, the network; then the matrix of a host. `host` is
 * its graph. */
void topo_text_show(const struct topo *topo, const struct graph *host, FILE *to);

/* One host, the switches that its NICs lead to, and what is behind them; faults as red notes, tied
 * to the device in that host that stands for the one they name. */
void topo_text_dot(const struct topo *topo, const struct graph *host, FILE *to);

/* A file of form "uniform" with the members that tell this topology from the usual one of its
 * accelerator; `source` stands beside all figures. */
void topo_text_write(const struct topo *topo, const char *source, FILE *to);
