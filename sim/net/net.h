/* SPDX-License-Identifier: Apache-2.0
 * Runs a linked schedule of all ranks on a modelled network: the simulator's counterpart of the
 * executor. It reads the same linked program, so only the clock is a model, never the messages.
 *
 *     rank 0 ==== egress ===\            /=== ingress ==== rank 0      every rank has one full
 *     rank 1 ==== egress =====  switch  ====== ingress ==== rank 1     duplex link of bandwidth
 *     rank 2 ==== egress ===/            \=== ingress ==== rank 2      beta to one switch
 *
 * A message posted at t waits for the earlier messages of its wire; then it flows over its
 * sender's egress and its receiver's ingress at its max-min fair share of both, and arrives alpha
 * after its last byte has left: t + bytes / beta + alpha when nothing is in its way. No bytes, no
 * flow: it arrives after alpha. A message to oneself arrives at once.
 *
 * A group of records starts when its waits hold, its messages have arrived, and each of its sends
 * has room (`slots` messages posted and not released). It keeps its lane busy for `overhead` per
 * send plus the time its reduces and copies take, then posts its sends and releases what it has
 * received; both are known everywhere at once. How a wire moves its bytes (staged, pull, ...)
 * changes the waits that the linker gave, not the timing model. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "net/queue.h"
#include "sched/link.h"
#include "sched/msglog.h"
#include "sched/trace.h"
#include "sched/traffic.h"

struct net_args {
    ps_t alpha_ps;      /* latency of a message */
    double beta_Bps;    /* bytes per second of a rank's link, each direction; > 0 */
    ps_t overhead_ps;   /* a lane is busy this long for each message it posts */
    double gamma_Bps;   /* bytes per second of recv_reduce, reduce and copy; 0: they take no time */
    uint32_t slots;     /* room of a wire in messages, >= 1 */
    size_t block_bytes; /* bytes of a block of the collective; alltoallv: of the longest */
    const struct traffic *traffic; /* alltoallv: elements per pair, of `esize` bytes; else NULL */
    size_t esize;
    size_t slice_bytes; /* most bytes of a chunk per pass, a multiple of LAYOUT_GRANULE; 0: all */
    size_t granule;     /* chunks are cut at multiples of it; 0: LAYOUT_GRANULE */
    bool keep_log, keep_steps;
};

/* What a run gave. The creator of the arrays is net_run; net_result_release frees them. */
struct net_result {
    uint32_t nranks;
    ps_t total_ps;   /* the last rank's finish */
    ps_t *finish_ps; /* per rank: its last group has ended and its pulled messages are released */
    uint64_t passes;
    uint64_t events;        /* taken from the queue */
    uint64_t trace;         /* hash of all of them in order: equal runs, equal traces */
    uint64_t messages;      /* all ranks and passes, those of no bytes too */
    uint64_t bytes;         /* sent by all ranks */
    uint64_t *egress_bytes; /* per rank: carried by its link */
    uint64_t *ingress_bytes;
    struct msg_log *log; /* with keep_log: every message in the order of posting */
    size_t nlog;
    struct trace steps; /* with keep_steps: every step, in picoseconds, sorted */
};

/* Adds every rule that the arguments break (ERR_USAGE). Returns 0 or -1. */
int net_check(const struct net_args *args, struct err *err);

/* Runs the program to its end. ERR_USAGE for arguments out of range or times beyond 213 days;
 * ERR_FAILED for a deadlock (names rank, lane, step and what it waits for), for messages whose two
 * ends disagree on the bytes, and for a link that carried more than its capacity allows in the
 * time. `result` is set only on success (0); else -1. */
int net_run(const struct linked *linked, const struct net_args *args, struct net_result *result,
            struct err *err);
void net_result_release(struct net_result *result);
