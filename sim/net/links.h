/* SPDX-License-Identifier: Apache-2.0
 * What the links of a network have carried in a run, as a table: the busiest first, links that are
 * alike (the same name but for numbers, the same bytes and rate) as one line with their count. */
#pragma once

#include "net/net.h"
#include "net/network.h"

struct out;
struct links; /* what has been added */

struct links *links_new(void);
void links_free(struct links *links);

/* Adds a run; `call` names it. Links that carried nothing are one line. */
void links_add(struct links *links, const char *call, const struct network *network,
               const struct net_result *net);

/* Writes all lines as a table of its own to stdout. 0 or -1. */
int links_print(const struct links *links, struct err *err);
