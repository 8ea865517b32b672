/* SPDX-License-Identifier: Apache-2.0
 * Connections that the ranks of a run will make over a network, counted from the schedules before
 * anything is started: a direct all-to-all needs as many per host as there are pairs, which no
 * table of open files and no network card holds at scale. */
#pragma once

#include "bench/fit.h"
#include "exec/hosts.h"

struct links {
    uint32_t each;         /* connections per pair of ranks; 0: no network, nothing is counted */
    uint64_t rank_most;    /* of the rank with the most, */
    uint32_t rank;         /* .. which is this one, */
    uint64_t process_most; /* .. and of the process with the most: its ranks may be threads, */
    uint32_t process_host; /* .. on this host */
    uint64_t host_most;    /* that leave or enter the host with the most, */
    uint32_t host;         /* .. which is this one */
    uint64_t all;          /* of the run */
    size_t bytes;          /* of memory for each: the transport's and the kernel's; 0: unknown */
};

/* What the schedules of a plan need on the transport of the plan. */
struct links links_count(const struct fitted *fitted);

/* Whether each process may open as many. `hosts`: that are there, or NULL: this one. -1 with both
 * numbers and the ways out. */
int links_check(const struct links *links, const struct fitted *fitted, const struct hosts *hosts,
                struct err *err);

struct out;
void links_note(const struct links *links, const struct hosts *hosts, struct out *out);
