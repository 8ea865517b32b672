/* SPDX-License-Identifier: Apache-2.0
 * Reads the table that `nvidia-smi topo -m` prints, in all the forms it has had: NICs as columns by
 * name or as NICn with a legend, affinity columns or not, tabs or blanks. The tree is the one that
 * the codes tell: PIX makes a switch, PXB one above it, PHB a host bridge, NODE a NUMA node. */
#pragma once

#include "net/graph.h"

/* Whether a text looks like such a table. */
bool smi_is(const char *text, size_t bytes);

/* Fills *graph. Faults, "PATH:LINE: .." with row and column: a cell that is no code, two cells run
 * into one, a row or column too few, cells that contradict each other (the table is symmetric); the
 * capability table of `topo -p2p` and others are named as what they are. 0 or -1 (ERR_USAGE). */
int smi_read(struct graph *graph, const char *path, const char *text, size_t bytes,
             struct err *err);
