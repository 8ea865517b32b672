/* SPDX-License-Identifier: Apache-2.0
 * The training step, event by event: passes over chunks (train/chunk.h) in the order of the
 * pipeline's schedule (train/pipeline.h), messages between stages, gathers and reductions of
 * sharded states, the optimizer. One graph of tasks (train/tasks.h); one rank stands for the
 * tensor, context, expert and data-parallel ranks of its stage, which do the same at the same time,
 * unless a fault sets some apart. Where the ranks of a stage do not lie in a row, a fault of a link
 * counts for all stages.
 *
 *   stage 0  F0 F1 F2 F3 ....... B0 F4 B1 ...  | optimizer | F0 ..
 *   stage 1     F0 F1 F2 .. B0 F3 B1 ........  |           |
 *   dp                       reduce [bucket] [bucket] | gather weights |
 *
 * Two steps in a row are run, and the second one's time is the answer, since gathers reach into the
 * next step. */
#pragma once

#include "base/opts.h"
#include "train/chunk.h"
#include "train/job.h"
#include "train/pipeline.h"
#include "train/tasks.h"

enum event_detail { DETAIL_CHUNK, DETAIL_OP }; /* passes are tasks; operators are */

/* An accelerator that runs at a part of its speed. */
struct event_slow {
    uint32_t gpu;
    double speed; /* 0.8: compute takes 1 / 0.8 of the time; in 0.01..1 */
};

/* 1.5 KB and 4 us each, so no more than that of memory and seconds. */
enum { EVENT_MOST = 1 << 20 };

struct event_args {
    const struct job *job;
    const struct constants *c;
    struct fluids *fluids; /* of the job's topology; its link faults are in there */
    struct chunks *chunks; /* scratch, from job to job */
    enum event_detail detail;
    const struct event_slow *slow;
    size_t nslow;
    double other_job; /* share of the network's links that a second job takes, 0..0.95 */
    bool apart;       /* each replica is run by itself, for tests: no other stands for it */
    bool keep;     /* the graph stays in the result, for pictures, and all its passes are whole */
    bool all;      /* every micro-batch is run, for tests: none is counted */
    bool full;     /* with DETAIL_OP: collectives run message by message (struct full) */
    uint64_t most; /* micro-batches x stages that a schedule which does not repeat may have to
                      run; 0: EVENT_MOST */
};

/* A stage in the second step. Parts sum to the step's time. */
struct event_stage {
    ps_t part_ps[NPARTS];
    ps_t compute_ps;          /* of them, computing: GEMM .. RECOMPUTE, OPTIMIZER */
    double bytes[NNET_KINDS]; /* that a rank puts on links of each kind in a step */
    double flops, floor_s;    /* executed; at the dense peaks of the units */
};

/* A pass that the step runs over a chunk. */
struct event_chunk {
    uint32_t stage, chunk; /* row of `stages`; of that rank's chunks */
    struct chunk_shape shape;
    uint8_t pass;   /* enum pass; a PAIR is a PASS_F and a PASS_BW */
    double factor;  /* of compute: 1 / .8 on a slow GPU */
    uint32_t times; /* in one step */
};

/* What a task of the kept graph is. */
struct event_label {
    uint8_t pass;          /* enum pass; NPASSES: no pass */
    const char *name;      /* "F", "F&BW", "send", "reduce", "gather", "optimizer": static */
    uint32_t stage, micro; /* row of `stages`; micro-batch; UINT32_MAX: none */
    uint32_t chunk;        /* of that rank */
};

struct event_result {
    struct step step; /* as in closed form; parts of slowest_stage, which waits least for others */
    ps_t step_ps;     /* end of the second step - end of the first */
    uint32_t nstages;
    struct event_stage *stages;
    uint32_t nchunks;
    struct event_chunk *chunks;
    /* That a rank of slowest_stage sends to others in a step, by the ring's count (all-reduce
     * 2 (n-1)/n of the call's bytes; gather, scatter, all-to-all (n-1)/n): tp, cp, ep, fsdp, dp, pp
     */
    double bytes_by_axis[6];
    uint64_t events;
    struct tasks *tasks;        /* with `keep`: owned by the result */
    struct event_label *labels; /* by task's label */
    ps_t from_ps;               /* where the second step starts in the graph */
};

/* Runs the step. 0, or -1 with sentences: a slow GPU that is not there, a schedule that does not
 * fit (pipeline_legal), a collective without a time. */
int event_run(const struct event_args *args, struct event_result *result, struct err *err);
void event_release(struct event_result *result);

/* Makes args->chunks ready for passes of the job as event_run runs them (chunks_detail): with *c,
 * the constants less what a second job takes, which must outlive that. */
void event_chunks(const struct event_args *args, struct constants *c);
