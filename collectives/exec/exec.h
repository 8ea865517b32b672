/* SPDX-License-Identifier: Apache-2.0
 * The executor: runs a linked program for one rank over a transport. A handle is opened once per
 * (schedule, sizes, buffers), then started as often as wanted; progress never blocks, so many
 * handles can be under way in one thread. Nothing is allocated or built after exec_open. */
#pragma once

#include "exec/transport.h"
#include "exec/world.h"
#include "kernels/kernels.h"
#include "sched/link.h"
#include "sched/msglog.h"
#include "sched/trace.h"
#include "sched/traffic.h"

struct exec;

struct exec_spec {
    const struct linked *linked;
    struct rank *rank;
    const uint32_t *group; /* world rank of each group rank; NULL: the same number */
    uint32_t me;           /* own group rank */
    uint32_t tag;          /* tells live handles apart; the same on all members */
    const struct transport *transport;
    void *in, *out; /* own buffers; in place: `in` is ignored */
    bool shared;    /* both lie in the own extent: peers may map them */
    enum dtype dtype;
    enum redop op;
    size_t block_count;            /* elements per block; alltoallv: not looked at, */
    const struct traffic *traffic; /* .. but this: elements per pair; else NULL; borrowed */
    size_t slice_bytes;            /* most bytes of a chunk per pass; 0: chosen by exec_slice */
    uint32_t depth;  /* messages of room per wire; 0: chosen; raised to linked->least_depth */
    bool graph;      /* devices: start by launching a graph that was captured once */
    bool keep_log;   /* record every message: see exec_log */
    bool keep_trace; /* record when each step ran: see exec_trace */
};

/* A slice that suits the mode: whole chunks where peers read them in place, slot-sized else. */
size_t exec_slice(const struct linked *linked, const struct transport *transport);

/* Opens a handle; every member of the group calls it. Peers' memory is mapped and prefaulted.
 * In place only the larger buffer is looked at, `in` for reduce_scatter and `out` for the others;
 * the smaller one lies in it as coll_alias says. Tags must not be used again while any member may
 * still have the older handle open: best never. A schedule with agents is refused (ERR_USAGE). */
struct exec *exec_open(const struct exec_spec *spec, struct err *err);

/* Closes it, when the peers have taken every message: members that close at very different times
 * wait for each other here. Accepts NULL. Must come before the memory behind the handle is rewound.
 */
void exec_close(struct exec *exec);

/* Starts one operation; the handle must be idle. Where operations are one launch (see
 * exec_queues) it need not be: the next one is queued behind the last in the device's stream. */
void exec_start(struct exec *exec);
bool exec_queues(const struct exec *exec);

/* Moves every lane as far as it goes without waiting. 1: all that was started is done, 0: not yet.
 */
int exec_progress(struct exec *exec);

/* Progress until all that was started is done, waiting as waiter_pause does and telling the watcher
 * for what; and start before that. */
void exec_wait(struct exec *exec);
void exec_run(struct exec *exec);

/* Test hook, for who checks data and only with rank.fault: before and behind an operation whose
 * data are checked. Spoils them once, when a flip or a swap has been planted and is due: see
 * spoil.c. */
void exec_spoil(struct exec *exec);
void exec_spoiled(struct exec *exec);

/* Passes per operation, and steps as drawn that this rank executes per operation. */
uint64_t exec_passes(const struct exec *exec);
uint64_t exec_steps(const struct exec *exec);

/* Counted, not timed: chunk bytes read and written by this rank per operation. */
struct exec_bytes {
    uint64_t read, written, sent;
};
struct exec_bytes exec_count_bytes(const struct exec *exec);

/* Messages this rank has sent since exec_open, in order. Only with keep_log. */
const struct msg_log *exec_log(const struct exec *exec, size_t *count);

/* Adds every step of the last operation to the trace; came, begin and end are nanoseconds of
 * CLOCK_MONOTONIC. Only with keep_trace. A group's time goes from the moment when all that it needs
 * was found, to the moment when its messages were posted and released: two readings of the clock
 * per group. A group that could go on at once came when it began. */
void exec_trace(const struct exec *exec, struct trace *trace);
