/* SPDX-License-Identifier: Apache-2.0
 * Reads the topology XML of NCCL and RCCL (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): systems written by
 * the library itself, and those that clouds ship, in which GPUs and NICs are bare PCI functions. */
#pragma once

#include "net/graph.h"

/* Whether a text looks like such a file. */
bool nccl_xml_is(const char *text, size_t bytes);

/* Fills *graph. 0, or -1 with faults, "PATH:LINE: .." (ERR_USAGE). What is missing or made up (no
 * speed, NUMA -1, rates of virtual bridges) is a warning. */
int nccl_xml_read(struct graph *graph, const char *path, const char *text, size_t bytes,
                  struct err *err);
