/* SPDX-License-Identifier: Apache-2.0
 * A graph of tasks on lanes, run in the event queue: the one clock under a pipeline, a chunk's
 * operators, and a whole training step. A task starts when the tasks before it on its lane have
 * ended and all that it waits for is there; it ends when its work is done at the rate that its rank
 * then leaves it.
 *
 *   host     |issue|issue|issue|
 *   compute        |== qkv ==|=== attention ===|          |== mlp ==|      rank 0
 *   tp                                         |- reduce -|
 *   dp       |-------------- gather of the next layer ---------------|
 *                   the two jobs take SM share from compute, and share links where they meet
 *
 * Nothing here knows a model or reads or prints; times are picoseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "net/network.h"
#include "net/queue.h"

#define TASK_NONE UINT32_MAX

enum task_kind {
    TASK_COMPUTE, /* on the rank's multiprocessors: slowed by `sm` of the jobs that run there */
    TASK_JOB,     /* a collective or message: takes SM share, stretched where links are full */
    TASK_HOST,    /* the processor issues kernels */
    TASK_JOIN     /* nothing: takes no time, a point to wait for */
};

/* What a task does to links while its work passes at rate 1, by enum net_kind: how busy the busiest
 * link of the kind is with it in the mean, 0..1. */
struct task_use {
    float busy[NNET_KINDS];
};

struct task {
    uint32_t lane;    /* number of tasks_lane; TASK_NONE: none, it starts when its waits hold */
    uint32_t rank;    /* where it runs: shares of multiprocessors and links are per rank */
    uint8_t kind;     /* enum task_kind */
    uint8_t part;     /* what its time is charged as; any number below `parts` of the graph */
    float sm;         /* a job: share of the multiprocessors that it takes while it runs, 0..1 */
    float sm_hit;     /* share of its own work that is slowed by others' `sm`: compute 1, or, of a
                         chunk of many operators, the share of its time that it computes */
    float link_hit;   /* share of its own work that stretches where links are full */
    uint32_t use;     /* row of the graph's uses; TASK_NONE: no links */
    ps_t fixed_ps;    /* first passes this, at rate 1 whatever else runs (latency) .. */
    ps_t work_ps;     /* .. then this much work at the rate that is left */
    ps_t lag_ps;      /* who waits for it sees its end this much later; the lane does not */
    uint32_t label;   /* the user's, for pictures */
    uint32_t peer;    /* a message: the rank that gets it, + 1; 0: a job that sends and receives */
    uint32_t outside; /* a job: not `fixed` and `work`, but tasks->outside says when it ends; its
                         number there, from 1 on; 0: not so */
};

/* Who runs jobs that the graph knows the ends of alone, on a clock that tasks_run drives in step
 * with its own. All may be called with tasks of tasks->list; -1: with a sentence. */
struct tasks_outside {
    void *context;
    /* A task starts; it ends in a take of this instant at the earliest. */
    int (*start)(void *context, const struct task *task, uint32_t number, ps_t now_ps,
                 struct err *err);
    /* When something happens next; PS_NEVER: nothing. */
    ps_t (*next_ps)(const void *context);
    /* Takes the next instant; ended: numbers of the tasks that end in it, valid until the next
     * call.
     */
    int (*take)(void *context, const uint32_t **ended, uint32_t *nended, struct err *err);
};

struct task_span {
    ps_t start_ps, end_ps; /* PS_NEVER: has not run */
};

/* The graph, kept for the next (tasks_clear). Fields are read by users, changed by functions. */
struct tasks {
    struct task *list;
    struct task_span *spans; /* by task, after tasks_run */
    uint32_t ntasks;
    uint32_t nlanes, nranks;
    uint32_t *compute_lane; /* per rank: the lane whose gaps are its idle time */
    struct task_use *uses;
    uint32_t nuses;
    const struct tasks_outside *outside; /* set by the user; borrowed; NULL: all jobs are its own */
    struct tasks_private *own;
};

struct tasks *tasks_new(void);
void tasks_free(struct tasks *tasks);  /* NULL is fine */
void tasks_clear(struct tasks *tasks); /* no ranks, lanes, uses, tasks; memory is kept */

/* A new rank, with its compute lane; a new lane; a new row of uses (rows of equal figures are one).
 * Each gives its number, 0 for the first. */
uint32_t tasks_rank(struct tasks *tasks);
uint32_t tasks_lane(struct tasks *tasks);
uint32_t tasks_use(struct tasks *tasks, const struct task_use *use);

/* Adds a task behind those that its lane has; gives its number. tasks_after: `task` waits for
 * `before`, which may have been added later (a loop is found by tasks_run). Amortised O(1). */
uint32_t tasks_add(struct tasks *tasks, const struct task *task);
void tasks_after(struct tasks *tasks, uint32_t task, uint32_t before);

/* Runs all. Rates: a task with work left progresses at 1 / (1 + sm_hit x (1 / (1 - sm) - 1) +
 * link_hit x (over - 1)): its parts one after the other, each as slow as it is made. sm: min(.9,
 * sum of sm of other running jobs of its rank); over >= 1: the largest, over the kinds of links
 * that it uses, of what it asks for over what it gets. It asks for a = busy / link_hit, at most 1,
 * as link_hit is the share of its work that is on links. It gets what the others that are past
 * their latency leave, or its fair part f, 1 over the number of users, if that is more: each of the
 * others takes busy / ((1 - link_hit) + link_hit x max(1, a / f)), since who is held up on links is
 * on them for longer, but computes as long as before. So who asks for little is not slowed, and who
 * comes in bursts leaves the time between them. Links have two directions: a message loads those
 * out of its rank and those into its peer, other jobs both of their rank. Starts and ends of one
 * instant are all applied before rates change; an end is rounded up to the picosecond, and exact
 * where the rate is 1 throughout. 0, or -1 (ERR_FAILED, which names the first task that cannot
 * start) where they wait for each other in a circle, or for a job of others that does not end.
 * O(tasks x log). */
int tasks_run(struct tasks *tasks, struct err *err);

/* When the last task ended. */
ps_t tasks_end(const struct tasks *tasks);

/* What a rank's time in [from, to) went to: every picosecond is charged once. While its compute
 * lane runs a task, to that task's part (split as `split` has it, if given); else to what it waited
 * for, found by walking back from the task that ended the wait: through the latest of what that
 * task waited for (`part` of a job or host task; `bubble` for a task on another rank's compute
 * lane), to what that one waited for in turn; of two that came at once, the one before on the lane.
 * Behind the rank's last task the walk is from the task that ended last; time in which nothing runs
 * any more is `bubble`. charged_ps[parts] is added to; their sum grows by to - from exactly. */
struct tasks_charge {
    uint32_t parts, bubble;
    /* May be NULL: spreads `span_ps` of a task's own time over the parts, exactly. */
    void (*split)(const void *context, uint32_t task, ps_t span_ps, ps_t *charged_ps);
    const void *context;
    ps_t *blame_ps; /* [ranks], may be NULL: `bubble` by whose compute lane it was, added to */
};
void tasks_charge(const struct tasks *tasks, uint32_t rank, ps_t from_ps, ps_t to_ps,
                  const struct tasks_charge *how, ps_t *charged_ps);
