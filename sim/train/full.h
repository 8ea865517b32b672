/* SPDX-License-Identifier: Apache-2.0
 * Collectives of a training step run message by message: while the step's graph goes on, every
 * collective that is under way runs in one session of the network engine, on all the ranks that it
 * stands for, and shares links with the others as its messages meet theirs. What fluid jobs
 * (net/fluid.h) are checked against.
 *
 *   graph    stage 0:  | qkv | o |....| mlp |     one rank of the graph for all ranks of a stage,
 *                              [tp reduce]        which compute alike
 *   network  groups 0..3, 4..7, 8..11, 12..15     all of them reduce, over their own links
 *
 * A job ends when the last of its groups has. */
#pragma once

#include "net/fluid.h"
#include "train/job.h"
#include "train/tasks.h"

#define FULL_MOST_GPUS 64 /* messages of a step grow with their square */

struct full;

/* For steps of one job on the topology of `fluids`; all is borrowed. `fabric_eff`: rate between
 * hosts over what the constants say, > 0. NULL with sentences (ERR_USAGE): more GPUs than
 * FULL_MOST_GPUS; hosts whose accelerators are joined pair by pair, where rings and messages do not
 * have the same links in the model; a pipeline whose passes are pairs. */
struct full *full_new(const struct job *job, struct fluids *fluids, double fabric_eff,
                      struct err *err);
void full_free(struct full *full); /* NULL is fine */

/* What a task does there. */
struct full_call {
    struct fluid_call call; /* its base: of groups that are alike */
    uint32_t stage;         /* its ranks do it */
    uint32_t to;  /* n 2: with the ranks of that stage, which get a message; TASK_NONE: n of the
                     stage's own */
    bool message; /* only its bytes count: latency is the task's lag, it holds no lane */
};

/* The number of a call for struct task.outside, > 0; equal calls have equal numbers. */
uint32_t full_number(struct full *full, const struct full_call *call);

/* For tasks->outside; one run of the graph at a time. */
const struct tasks_outside *full_outside(struct full *full);

/* Checks the run that has ended: all that was sent was taken, no link carried more than it can. 0,
 * or -1 with a sentence (ERR_FAILED). The next run starts afresh. */
int full_end(struct full *full, struct err *err);
