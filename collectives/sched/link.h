/* SPDX-License-Identifier: Apache-2.0
 * The linker: from programs as drawn to programs as run. It gives wires and message numbers,
 * derives every wait from read/write hazards, and fuses neighbours into groups that one kernel
 * call serves. Executor and simulator read the same linked program.
 *
 *   as drawn            linked (a group: records up to the one without CHAIN)
 *   recv_reduce a  \
 *   recv_reduce a   }   [recv_reduce CHAIN NOSTORE][recv_reduce CHAIN][send]  = one kernel call:
 *   send a         /    2 arrivals + local in, 1 local store, 1 message out */
#pragma once

#include "kernels/step.h"
#include "sched/sched.h"

const char *wire_mode_name(enum wire_mode mode);

_Static_assert(sizeof(struct lstep) == 32, "a linked step is 32 bytes");

struct lwire {
    uint32_t peer; /* as in the program: relative or absolute */
    uint16_t channel;
    uint8_t send; /* 1: we send on it, 0: we receive */
    uint8_t mode; /* enum wire_mode; the same at both ends */
    uint16_t lane;
    uint32_t nmsgs; /* messages per pass */
};

struct lprog {
    struct lstep *steps; /* lane by lane */
    uint32_t nsteps;
    uint16_t nlanes;
    uint32_t *lane_start; /* nlanes + 1 */
    uint32_t *source;     /* per record: index of the step in the program as drawn */
    struct lwait *waits;
    uint32_t nwaits, waits_cap;
    struct lwire *wires;
    uint32_t nwires;
};

struct link_opts {
    enum wire_mode
        mode; /* STAGED, LL, or PULL (wires are raised to PUSH where proven and useful) */
    bool in_place;
    bool fuse;
};

struct linked {
    const struct sched *sched; /* borrowed; must outlive this */
    struct link_opts opts;
    struct lprog *progs;  /* one per program of the schedule */
    uint32_t least_depth; /* wires need room for at least this many messages; 0: no depth will do */
    uint32_t most_msgs;   /* the most messages per pass on any wire */
};

/* Links. ERR_USAGE with the steps concerned when sends and receives do not pair up, a wire is
 * used by two lanes, or a PULL schedule cannot make progress. NULL on error. */
struct linked *link_sched(const struct sched *sched, const struct link_opts *opts, struct err *err);
void linked_free(struct linked *linked);

/* The same for a schedule whose messages are paired already (sched/pairs.h). */
struct pairs;
struct linked *link_pairs(const struct pairs *pairs, const struct link_opts *opts, struct err *err);

/* The last record of the group that starts at `first`. */
static inline uint32_t group_last(const struct lprog *prog, uint32_t first)
{
    while (prog->steps[first].flags & LS_CHAIN) {
        first++;
    }
    return first;
}
