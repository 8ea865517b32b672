/* SPDX-License-Identifier: Apache-2.0
 * Runs over several hosts: what --hosts means for a plan, and the hosts while it runs. */
#pragma once

#include "base/out.h"
#include "bench/options.h"
#include "exec/foreign.h"

enum { HOSTS_COME_S = 60 /* for agents to come, with --timeout 0 */ };

struct across {
    struct host_list list;
    struct hosts *hosts; /* NULL: one host */
    bool grouped;        /* the hosts are the node groups of hierarchical algorithms */
};

/* Reads --hosts into *across and completes the request: ranks, their node groups, a transport that
 * reaches them. Refuses, all at once, what runs on one host alone. 0 when there is no --hosts. */
int across_read(struct across *across, struct request *request, struct opts *opts, struct err *err);

/* The same for the copies of another launcher, which it gathers: copy 0 only. */
int across_copies(struct across *across, const struct foreign *foreign, struct request *request,
                  struct opts *opts, char **argv, struct err *err);

/* Starts the agents, if they are not there; nothing on one host. */
int across_open(struct across *across, const struct request *request, struct err *err);
/* `status`: of the run, for who has waited for it. */
void across_close(struct across *across, int status);

/* How long hosts and copies wait for each other at the start. */
double across_patience_s(const struct request *request);

/* Ranks of the run on this machine. */
uint32_t across_machine_ranks(const struct across *across, uint32_t nranks);

/* Says in the header which ranks are where; and, once the ranks have met, at which addresses. */
void across_note(const struct across *across, struct out *out);
void across_note_addresses(struct world *world, struct out *out);
