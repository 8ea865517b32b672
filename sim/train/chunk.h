/* SPDX-License-Identifier: Apache-2.0
 * A chunk of layers on one rank, operator by operator: how long a pass over it takes, where the
 * time goes, and when each layer is through. What the step's graph (train/event.h) is made of.
 *
 *   host     i i i i i i i i i ...                      issues kernels, may run ahead
 *   compute    qkv attn o ....... mlp ................
 *   tp                    [reduce]     [reduce]         a lane per communicator
 */
#pragma once

#include "train/ops.h"
#include "train/tasks.h"

/* One pass over one chunk. Times are of this pass alone on its rank. */
struct chunk_pass {
    ps_t total_ps;
    ps_t part_ps[NPARTS];     /* sum to total_ps: compute by its part, waits by their blocker */
    double compute_share;     /* of total_ps that the compute lane runs */
    double link_share;        /* of total_ps that waits for a collective (exposed) */
    float busy[NNET_KINDS];   /* mean use of links over total_ps, hidden collectives included */
    double bytes[NNET_KINDS]; /* of collectives of the layers, on links of each kind, one rank */
    double sent[NOP_LANES];   /* that a rank sends to others in collectives of the lane, by a ring's
                                 count: all-reduce 2 (n-1)/n, gather, scatter, all-to-all (n-1)/n of
                                 the call's bytes, a message all of it */
    double flops, floor_s;    /* executed, and what they take at the dense peak of each op's unit */
    ps_t host_ps;             /* when the host has issued all */
    uint32_t nlayers;         /* with embedding and head */
    ps_t *layer_ps; /* of each, in the order in which the pass meets them; sum: total_ps */
};

/* What to run. */
struct chunk_shape {
    uint32_t first, layers; /* model layers first .. first + layers - 1 */
    bool embedding, head;
    /* Ranks of its stage, `span` from `base` on: they all run it at once, and the slowest of their
     * groups counts. 0, 0: the first groups stand for all. */
    uint32_t base, span;
};

struct chunks; /* scratch memory and what has been run, for one job after another */

struct chunks *chunks_new(void);
void chunks_free(struct chunks *chunks);

/* Takes a job; what was run for the one before is forgotten. Everything is borrowed. */
void chunks_job(struct chunks *chunks, const struct job *job, const struct constants *c,
                struct fluids *fluids);

/* Collectives that chunks_add puts into a graph run message by message (train/full.h), whose rank r
 * is pipeline rank r; until the next chunks_job. */
struct full;
void chunks_full(struct chunks *chunks, struct full *full);

/* The pass, run once per distinct (shape, pass, factor) and kept until chunks_job. `factor`: of the
 * compute of this rank (a straggler: 1 / .8). Layers that repeat are run until two in a row take
 * the same time, to the picosecond, and counted from there on. NULL with a sentence: a collective
 * has no time. */
const struct chunk_pass *chunks_pass(struct chunks *chunks, const struct chunk_shape *shape,
                                     enum pass pass, double factor, struct err *err);

/* Layers of a pass as a rank runs them that has to wait between them. Where the host begins with
 * them at H and the rank, not before, at S, they end at max(S + far->total_ps, H + near->total_ps);
 * the host is through at H + near->host_ps, and, if it waits for operators, so that far->host_ps is
 * not 0, not before S + far->host_ps. */
struct chunk_part {
    const struct chunk_pass *far;  /* the host is far ahead: up to where it waits all is issued */
    const struct chunk_pass *near; /* it begins when they do */
};

/* The from-th .. (to - 1)-th layer, embedding or head that a pass meets, run alone and kept as by
 * chunks_pass; from < to <= nlayers. 0, or -1 with a sentence: a collective has no time. */
int chunks_part(struct chunks *chunks, const struct chunk_shape *shape, enum pass pass,
                double factor, uint32_t from, uint32_t to, struct chunk_part *part,
                struct err *err);

/* The job where the links between hosts give `eff` of the rate that benchmarks reach: it takes
 * longer once these are what holds it up, and loads them more. */
void chunks_fabric(struct fluid *fluid, double eff);

/* Makes *task that of a job, and *use what it does to links: what lies before the first byte is
 * fixed; then bytes pass, with latencies between them, and their share of that stretches. Lane,
 * rank, part and label are left. */
void chunks_job_task(struct task *task, struct task_use *use, const struct fluid *fluid,
                     const struct constants *c);

/* Lanes of a graph that a chunk's operators run on. */
struct chunk_lanes {
    uint32_t rank, host, lane[NOP_LANES]; /* lane[OP_COMPUTE]: the rank's */
};

/* Adds the operators of a list to a graph, and what the host issues for them, behind `start` (a
 * task; operators without one to wait for in the list wait for it, TASK_NONE: nothing). *end is a
 * join behind all. Labels: `label` for the first operator, counted on for the next ones; what the
 * host does for an operator has its label. 0, or -1 with a sentence: a collective has no time. */
int chunks_add(struct chunks *chunks, struct tasks *tasks, const struct chunk_lanes *lanes,
               const struct ops *ops, double factor, uint32_t start, uint32_t label, uint32_t *end,
               struct err *err);

/* Time of a forward of one micro-batch and the backward of another on the same rank side by side
 * (DualPipe): collectives of one run beside compute of the other; one behind the other where that
 * gains nothing. As chunk_pass; layers are those of the backward. */
const struct chunk_pass *chunks_pair(struct chunks *chunks, const struct chunk_shape *forward,
                                     const struct chunk_shape *backward, double factor,
                                     struct err *err);

/* The operators of a pass and when each ran, for tables and pictures; `spans` by op. The list is
 * that of all layers of the shape. Freed by the caller with ops_release and free(). */
int chunks_detail(struct chunks *chunks, const struct chunk_shape *shape, enum pass pass,
                  double factor, struct ops *ops, struct task_span **spans, struct err *err);
