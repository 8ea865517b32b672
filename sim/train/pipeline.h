/* SPDX-License-Identifier: Apache-2.0
 * Pipeline schedules as data, and their run in the event queue. A schedule is, for each rank, an
 * ordered list of tasks (a part of one micro-batch on one chunk); list order is the meaning. Stages
 * are numbered along the path of a micro-batch; where a stage sits is the schedule's placement:
 *
 *   loop (4 ranks, 2 chunks)      two ways (DualPipe)            vee (DualPipeV)
 *   rank 0  stages 0 4            rank 0  0 down, 3 up           rank 0  stages 0 7
 *   rank 1  stages 1 5            rank 1  1 down, 2 up           rank 1  stages 1 6
 *   rank 2  stages 2 6            rank 2  2 down, 1 up           rank 2  stages 2 5
 *   rank 3  stages 3 7            rank 3  3 down, 0 up           rank 3  stages 3 4
 *
 * Nothing here reads or prints; times are picoseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "train/tasks.h"

/* The first five in the order of enum schedule (train/strategy.h). */
enum pipeline_id {
    PIPELINE_GPIPE,
    PIPELINE_1F1B,
    PIPELINE_INTERLEAVED,
    PIPELINE_ZB_1P,
    PIPELINE_ZB_2P,
    PIPELINE_DUALPIPE,
    PIPELINE_DUALPIPEV,
    NPIPELINES,
};

/* Kind of a task    what it does                             what it needs
 * F                 forward                                  F of the stage before
 * B                 gradient of the input                    own F; B of the stage behind
 * W                 gradient of the weights                  own B
 * BW                both as one; the gradient leaves at      as B
 *                   its end
 * PAIR              F of one micro-batch and BW of another,  as F and B
 *                   overlapped                                                              */
enum pipeline_kind { PIPELINE_F, PIPELINE_B, PIPELINE_W, PIPELINE_BW, PIPELINE_PAIR, NTASK_KINDS };

struct pipeline_task {
    uint32_t micro[2]; /* micro-batch of the F, and of the B or W; the other is unused */
    uint16_t chunk[2]; /* the chunks of this rank that they run on, likewise */
    uint8_t kind;      /* enum pipeline_kind */
};

/* What a user chooses. */
struct pipeline_shape {
    enum pipeline_id id;
    uint32_t ranks;  /* p >= 1 */
    uint32_t chunks; /* v >= 1: chunks per rank, interleaved only; else 1 */
    uint32_t micro;  /* m >= 1: micro-batches of a step; of two ways: both together */
    uint32_t group;  /* interleaved: micro-batches that pass a chunk in a row; 0: p, or, where p
                        does not divide m, m / max(1, m / p) as PyTorch has it */
};

/* What the closed forms of the papers speak of: times of one rank for one micro-batch, all stages
 * alike. `pair` is the time of F and B + W overlapped (of the stages on one rank). */
struct pipeline_times {
    double f, b, w, pair;
};

/* A schedule's row in the table of all. */
struct pipeline_row {
    const char *name, *source, *rule; /* its paper, and what it asks of p, v and m */
    const char *form;                 /* closed form of the idle time of a rank, in F, B, W, B+W */
    /* Its value; NaN where the form does not hold (too few micro-batches, W too long, for DualPipe
     * F and B not equal). */
    double (*idle)(const struct pipeline_shape *shape, const struct pipeline_times *t);
    uint32_t weights; /* copies of the parameters of a rank: 2 where two ways are held */
    bool staggered;   /* no meeting of all ranks between steps: a step lasts as long as the longest
                         rank from its own first start to its own last end (needs an optimizer
                         that looks at norms and overflows afterwards) */
};

const struct pipeline_row *pipeline_row(enum pipeline_id id);

/* The rank whose idle time a closed form gives: one in the middle of the path (the others have as
 * much unless a PAIR takes less, or more, than its parts). */
uint32_t pipeline_form_rank(const struct pipeline_shape *shape);

struct pipeline {
    struct pipeline_shape shape; /* with `group` filled */
    uint32_t chunks;             /* per rank: v, or 2 */
    uint32_t stages;             /* on the path of a micro-batch */
    struct pipeline_task *tasks; /* rank by rank, in list order */
    size_t *first;               /* p + 1: tasks of rank r are first[r] .. first[r + 1] - 1 */
    /* By slot: the task of the F, and of the B (or BW), of (rank, chunk, micro-batch); SIZE_MAX
     * where that micro-batch does not come. */
    size_t *task_of[2];
    uint32_t *rank_of; /* by task */
};

/* Adds a sentence for each broken rule, with both numbers and the nearest legal values (ERR_USAGE),
 * and returns -1; else fills shape->group and returns 0. */
int pipeline_legal(struct pipeline_shape *shape, struct err *err);

/* The schedule of a legal shape (checked again); NULL with sentences. O(tasks). */
struct pipeline *pipeline_new(const struct pipeline_shape *shape, struct err *err);
void pipeline_free(struct pipeline *pipeline); /* NULL is fine */

/* Whether each (micro-batch, chunk) has its F, B and W once, in order on its rank, and whether the
 * lists come to their end whatever the times are. Returns 0, or -1 with a sentence (ERR_FAILED) on
 * the first fault. O(tasks). */
int pipeline_check(const struct pipeline *pipeline, struct err *err);

/* The stage that a chunk of a rank holds, 0 .. stages - 1. */
uint32_t pipeline_stage(const struct pipeline *pipeline, uint32_t rank, uint32_t chunk);

/* Where the path of a chunk's micro-batches goes on: the rank and chunk of stage + 1 (`step` 1) or
 * stage - 1 (-1); false at the end of the path. */
bool pipeline_next(const struct pipeline *pipeline, uint32_t rank, uint32_t chunk, int step,
                   uint32_t *to_rank, uint32_t *to_chunk);

static inline size_t pipeline_slot(const struct pipeline *pipeline, uint32_t rank, uint32_t chunk,
                                   uint32_t micro)
{
    return ((size_t)rank * pipeline->chunks + chunk) * pipeline->shape.micro + micro;
}

/* Peak of activations that a rank holds at one time, in chunks (divide by `chunks` of a loop or vee
 * for micro-batches): `held` from F's start to W's end, `live` from F's start to B's end (what is
 * between the two may need less memory). A matter of list order alone. */
struct pipeline_peak {
    uint32_t held, live;
};
struct pipeline_peak pipeline_peak(const struct pipeline *pipeline, uint32_t rank);

/* ---- the run ---- */

struct pipeline_costs {
    const ps_t *stage_ps;      /* [stage][3]: F, B, W of each stage */
    const double *rank_factor; /* [rank]: 1.3 is 30 % slower; NULL: all 1 */
    double pair_factor;        /* a PAIR takes this much of F + B + W; 0 is 1 */
    ps_t message_ps;           /* a message holds its lane so long (a rank has one lane to each
                                  neighbour, beside its compute; of two ranks one for activations
                                  and one for gradients) .. */
    ps_t latency_ps;           /* .. and comes this much later */
};

/* Time of one rank in a step. busy + bubble + message = step, to the picosecond. */
struct pipeline_rank {
    ps_t busy_ps[NTASK_KINDS];
    ps_t first_ps, last_ps; /* start of the first task, end of the last */
    ps_t bubble_ps;         /* idle, because another rank computed */
    ps_t message_ps;        /* idle, because a message was under way */
    ps_t blame_ps;          /* idle time of others charged to what this rank computed */
};

/* A run and its memory, kept for the next. All zero is a run that has not been. */
struct pipeline_run {
    ps_t end_ps;  /* the last task ends */
    ps_t step_ps; /* the step: end_ps, or, staggered, the longest rank */
    struct pipeline_rank *ranks;
    const struct task_span *spans; /* by task */
    struct tasks *tasks;           /* task i of the schedule is task i; then come messages */
    /* private */
    ps_t *blame_ps;
    size_t ranks_cap;
};

/* Runs the schedule: a task starts when its rank is free, in list order, and its inputs are there.
 * Idle time is charged as tasks_charge has it. Times are taken as fitting into the range of ps_t.
 * O(tasks log ranks + idle gaps). Allocates only what an earlier, smaller run did not. Returns 0,
 * or -1 (ERR_FAILED) if the lists do not come to their end. */
int pipeline_run(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                 struct pipeline_run *run, struct err *err);
void pipeline_run_release(struct pipeline_run *run);

/* Time of a task on a rank, ps. */
ps_t pipeline_task_ps(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                      uint32_t rank, const struct pipeline_task *task);
