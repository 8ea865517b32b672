/* SPDX-License-Identifier: Apache-2.0
 * Reads what `nvidia-smi nvlink --status` prints: GPUs with their models, and the rate of each
 * NVLink or that it is inactive. Where links lead is not in it: those that work lead to one switch.
 *
 *     GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-...)
 *              Link 0: 25.781 GB/s
 *              Link 3: <inactive>                                                            */
#pragma once

#include "net/graph.h"

/* Whether a text looks like it: its first line that is not empty, or one after it, begins with
 * "GPU", a blank, a number and a colon. */
bool smi_links_is(const char *text, size_t bytes);

/* Fills *graph: a GPU for each, with as many links to nvswitch0 as work, and their rates' sum. A
 * warning for each GPU some of whose links are down (a fault: the share of its bandwidth that is
 * left), whose rates differ, or all of whose links are down: a fault of an SXM module, normal for a
 * card without a bridge. Faults, "PATH:LINE: ..": a line that is neither of these, numbers that do
 * not go up, rates that are none. 0 or -1 (ERR_USAGE). */
int smi_links_read(struct graph *graph, const char *path, const char *text, size_t bytes,
                   struct err *err);
