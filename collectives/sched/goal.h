/* SPDX-License-Identifier: Apache-2.0
 * Schedules as GOAL text, the input of LogGOPSim (Hoefler, Schneider and Lumsdaine, "LogGOPSim:
 * simulating large-scale applications in the LogGOPS model", 2010; htor.inf.ethz.ch/LogGOPSim).
 *
 *     num_ranks 2
 *     rank 0 {
 *     l0: send 512b to 1 tag 0 cpu 0 nic 0      a lane is a cpu, a channel is a nic and the tag
 *     l1: recv 512b from 1 tag 0 cpu 0 nic 0
 *     l2: calc 1024 cpu 0                       nanoseconds of a reduce or copy
 *     l1 requires l0                            lanes are in order; so are the waits of the linker
 *     l2 requires l1
 *     }
 *
 * GOAL knows sizes and times, not data: it cannot be read back as a schedule. */
#pragma once

#include <stdio.h>

#include "sched/link.h"

struct goal_opts {
    size_t block_bytes;        /* bytes of a block of the collective */
    double reduce_ns_per_byte; /* of recv_reduce and reduce, per byte of the result; 0: no time */
    double copy_ns_per_byte;   /* of copies; 0: no time */
};

/* Writes one pass over whole chunks. ERR_USAGE for a schedule linked for anything but staged wires:
 * GOAL has no word for buffers that stay busy until they are read; nor for agents. ERR_FAILED when
 * writing fails. 0 or -1. */
int goal_write(FILE *to, const struct linked *linked, const struct goal_opts *opts,
               struct err *err);
