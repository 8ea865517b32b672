/* SPDX-License-Identifier: Apache-2.0
 * How the hosts of a run meet: the first rank of each has a connection to the first rank of host 0,
 * which hears from all and then answers all. What ranks have published goes along, so that behind a
 * barrier every host has it in its memory.
 *
 *     host 1 --- number, published ---.
 *     host 2 --- number, published ---+--> host 0 --- all that the others published ---> each host
 *
 * Private to the executor. */
#pragma once

#include "exec/world.h"

/* Numbers of what is exchanged before the first barrier: how hosts are reached (probe.h), and that
 * they have been; barriers count from 1. */
enum { MEET_CARDS = 0x7ffffffe, MEET_DONE = 0x7fffffff };

/* Connects the first rank of a host to the others (every rank may call it; nothing is done for the
 * rest). Host 0's listens and tells its launcher where; the launchers tell the others. */
int meet_open(struct rank *rk, struct err *err);
void meet_close(struct rank *rk);

/* All hosts come to barrier `number`: called by rank_barrier when the own host has. Ends the
 * process when a host is lost. */
void meet_hosts(struct rank *rk, uint64_t number);
