/* SPDX-License-Identifier: Apache-2.0
 * The loop over sizes and over the algorithms of our own table, the same on a switch and on a
 * cluster. */
#pragma once

#include "algo/algo.h"
#include "net/coll_request.h"
#include "net/ready.h"

/* An empty list of the schedules that the request speaks of; `notes` is borrowed. */
struct ready_list coll_schedules(const struct coll_request *request, struct out *notes);

/* Sets the sizes of `args` for `count` elements per block, and the room that the linked schedule
 * needs at least. alltoallv: returns the traffic that they refer to, freed with free(); else NULL.
 */
struct traffic *coll_size_args(const struct coll_request *request, const struct linked *linked,
                               size_t count, struct net_args *args);

/* Calls `each` for every size, ascending; stops at the first that does not return 0, and returns
 * that. `count` is in elements per block. */
int coll_each_size(const struct coll_request *request,
                   int (*each)(size_t count, void *context, struct err *err), void *context,
                   struct err *err);

/* .. for every size and every algorithm asked for, by size. "all" are those of ranks alone: one
 * that needs agents in switches is to be named. */
int coll_each(const struct coll_request *request,
              int (*each)(const struct algo_choice *choice, size_t count, void *context,
                          struct err *err),
              void *context, struct err *err);
