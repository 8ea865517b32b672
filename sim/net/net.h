/* SPDX-License-Identifier: Apache-2.0
 * Runs linked schedules of all ranks on a modelled network: the simulator's counterpart of the
 * executor. It reads the same linked program, so only the clock is a model, never the messages.
 *
 *     rank 0: post ---> wire: first in, first out ---> links of its route, each ---> rank 1:
 * arrival overhead        one message at a time     shared with others           + latency
 *
 * A message posted at t waits for the earlier messages of its wire; then it flows over all links of
 * its route at once (hops cut through), at its weighted max-min fair share of them (share.h), and
 * arrives a latency after its last byte has left: that of the hops together, and that of its scope
 * (struct net_cost). When nothing is in its way: t + bytes x stretch / slowest link + latency. No
 * bytes, no flow: it arrives after the latency. A message to oneself arrives at once.
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
#include "net/network.h"
#include "net/queue.h"
#include "sched/link.h"
#include "sched/msglog.h"
#include "sched/trace.h"
#include "sched/traffic.h"

/* What a message costs beside its links, by the scope of its two ends. All zero: nothing. */
struct net_cost {
    ps_t overhead_ps; /* the sender's lane is busy this long */
    ps_t latency_ps;  /* it arrives this much later */
    double stretch;   /* bytes on the links per byte of the message; 0: 1. Flags beside data: 2 */
    double most_Bps;  /* of one flow; 0: its links alone decide */
    double weight;    /* of the flow where links are shared; 0: 1 */
};

/* The processor of a rank, where it moves the data itself, as on a host without GPUs: what it reads
 * and writes for a group of records takes time, and it works at one group at a time, whatever the
 * lane or the job: next is the lane that came to its group first, of several the one of the lowest
 * number.
 *
 *     recv_reduce, send   [slot] --read--+            +--write--> [buffer]   slots and buffers have
 *     of one group        [buffer] -read-+--> (+) ----+--write--> [slot]     speeds of their own
 *
 * A pulled message is read from the sender's buffer, a pushed one written to the receiver's. */
struct net_hands {
    double buffer_Bps; /* bytes of buffers read or written per second, > 0 */
    double slot_Bps;   /* of slots, > 0 */
};

struct net_args {
    const struct network *network; /* NULL: one switch of the next two; else they are not read */
    ps_t alpha_ps;                 /* latency of a message */
    double beta_Bps;               /* bytes per second of a rank's link, each direction; > 0 */
    ps_t overhead_ps;              /* a lane is busy this long for each message it posts */
    double gamma_Bps;   /* bytes per second of recv_reduce, reduce and copy; 0: they take no time */
    uint32_t slots;     /* room of a wire in messages, >= 1 */
    size_t block_bytes; /* bytes of a block of the collective; alltoallv: of the longest */
    const struct traffic *traffic; /* alltoallv: elements per pair, of `esize` bytes; else NULL */
    size_t esize;
    size_t slice_bytes; /* most bytes of a chunk per pass, a multiple of LAYOUT_GRANULE; 0: all */
    size_t granule;     /* chunks are cut at multiples of it; 0: LAYOUT_GRANULE */
    const struct net_cost *costs;  /* NSCOPES entries; NULL: none */
    const struct net_hands *hands; /* NULL: others move the data; else gamma is not read */
    uint32_t groups; /* so many groups run the schedule at once, side by side: rank k of group b is
                        the network's rank base + k x groups + b, and the result's k x groups + b.
                        0: 1 */
    uint32_t base;   /* with `ranks` of a job not read */
    bool flood; /* all that a wire carries flows from the start, nothing waits for anything: what
                   the wire time of a pipeline tends to as its slices get ever smaller, without
                   latencies. In one pass, without hands; times of reduces are not
                   counted */
    bool keep_log, keep_steps;
    bool keep_links; /* of a job: give its link_bytes; net_run always does */
    bool fold; /* run one of what is alike, as far as that is proven (fold.h); not with keep_log or
                  keep_steps, and net_run alone */
};

/* What a run gave. The creator of the arrays is net_run; net_result_release frees them. All times
 * are on the clock of the run. */
struct net_result {
    uint32_t nranks; /* of all groups */
    ps_t start_ps;   /* 0, or when the job started */
    ps_t total_ps;   /* the last rank's finish */
    ps_t *finish_ps; /* per rank: its last group has ended and its pulled messages are released */
    uint64_t passes;
    uint64_t events;   /* of the whole run, taken from the queue */
    uint64_t trace;    /* hash of all of them in order: equal runs, equal traces */
    uint64_t messages; /* all ranks and passes, those of no bytes too; agents' too */
    uint64_t bytes;    /* sent by all of them */
    uint32_t nlinks;
    double *link_bytes;  /* per link of the network: carried by it, stretched */
    uint32_t limit;      /* the link nearest to its capacity over the run; UINT32_MAX: none */
    double limit_use;    /* .. its bytes over what it could carry in the time; 0 to 1 */
    uint32_t classes;    /* ranks that were run */
    uint32_t stands_for; /* flows that each that ran stands for; 1: nothing was folded */
    char why[160];       /* why ranks were not folded, if they should have been; "" */
    struct msg_log *log; /* with keep_log: every message in the order of posting */
    size_t nlog;
    struct trace steps; /* with keep_steps: every step, in picoseconds, sorted */
};

/* Adds every rule that the arguments break (ERR_USAGE). Returns 0 or -1. */
int net_check(const struct net_args *args, struct err *err);

/* Runs the program to its end. ERR_USAGE for arguments out of range, for more ranks than the
 * network has, agents where no switch reduces, or times beyond 213 days; ERR_FAILED for a deadlock
 * (names rank, lane, step and what it waits for), for messages whose two ends disagree on the
 * bytes, and for a link that carried more than its capacity allows in the time. `result` is set
 * only on success (0); else -1.
 */
int net_run(const struct linked *linked, const struct net_args *args, struct net_result *result,
            struct err *err);
void net_result_release(struct net_result *result);

/* ---- several schedules in one run ------------------------------------------------------------
 * A job is a schedule on some of the network's ranks. Jobs share links, and the hands of ranks
 * (net_hands), and nothing else: two jobs on one rank do not wait for each other's steps unless
 * `after` says so.
 *
 *     job 0 |====== all-reduce of ranks 0..7 ======|--- start_ps ---|== job 2: after 0 and 1 ==|
 *     job 1 |=== all-reduce of ranks 8..15 ===|                                                */

struct net_job {
    const struct linked *linked;
    const struct net_args *args; /* network, alpha, beta and fold are not read */
    const uint32_t *ranks;       /* the network's rank for each, of all groups; NULL: from
                                    args->base on */
    const uint32_t *after; /* `nafter` numbers of earlier jobs: it starts after the last of them */
    uint32_t nafter;
    ps_t start_ps;                /* .. this much later; without any, this long after time 0 */
    const struct network *routes; /* another one with the same links by number, for routes and
                                     latencies; where its links are slower, bytes are stretched by
                                     as much as on the fastest of a route. NULL: that of the run */
};

/* Runs `njobs` jobs to their ends; results[j] is that of job j, and all of them or none are set.
 * Errors as net_run; a job in `after` that is not earlier is ERR_USAGE. */
int net_run_jobs(const struct network *network, const struct net_job *jobs, uint32_t njobs,
                 struct net_result *results, struct err *err);

/* ---- jobs that another clock starts
 * -------------------------------------------------------------- The same run, an instant at a
 * time, for whoever has events of his own in between. A job may run again once it has ended; what
 * it needs (lanes, wires) is made once, by net_add.
 *
 *     while ((now = least of net_next_ps and what else comes) != PS_NEVER)
 *         net_step: jobs that ended now; then net_start what follows */
struct net;

/* `rates` (NNET_KINDS, by network_meets; NULL: all 1): the part of their rates that links have in
 * the run. Everything is borrowed; so is, of a job, all that net_job points to. */
struct net *net_open(const struct network *network, const double *rates);

/* A new job, which `start_ps` and `after` do not start; its number, 0 for the first. 0, or -1 with
 * the sentences of net_run_jobs: the run cannot go on, but be closed. */
int net_add(struct net *net, const struct net_job *job, uint32_t *number, struct err *err);

/* Starts a job, which must not be running, at `when_ps`, which must not have passed. 0, or -1 with
 * a sentence (ERR_FAILED): what it sent in its last run is not what was taken. */
int net_start(struct net *net, uint32_t job, ps_t when_ps, struct err *err);

/* When something happens next; PS_NEVER: nothing is left. */
ps_t net_next_ps(const struct net *net);

/* Takes all of the next instant; *ended: the jobs that ended in it, valid until the next call. What
 * is started for the same instant afterwards makes another one of it. 0, or -1: times beyond 213
 * days. */
int net_step(struct net *net, const uint32_t **ended, uint32_t *nended, struct err *err);

/* Ends the run and frees it. With `err` it checks what net_run_jobs checks at the end: a job that
 * stands still, bytes that were sent and not taken, a link that carried more than it can. */
int net_close(struct net *net, struct err *err);
