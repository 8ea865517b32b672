/* SPDX-License-Identifier: Apache-2.0
 * The graph of two training steps in a row, for train/event*.c alone: what event_graph.c builds and
 * event.c runs and reads. */
#pragma once

#include "train/event_parts.h"

/* Lanes of a rank beside its compute. */
enum {
    LANE_REDUCE, /* the data-parallel communicator: gathers and reductions in one order */
    LANE_EXPERT, /* that of the experts */
    LANE_UP,     /* messages to the next rank */
    LANE_DOWN,   /* .. to the one before */
    LANE_IN,     /* from the host's memory */
    LANE_OUT,    /* to it */
    LANE_HOST,   /* its processor */
    LANE_ISSUE, /* what issues kernels, and the communicators inside layers: operator by operator */
    LANE_TP,
    LANE_CP,
    LANE_EP,
    NLANES
};

enum {
    AXIS_TP_BYTES,
    AXIS_CP_BYTES,
    AXIS_EP_BYTES,
    AXIS_FSDP_BYTES,
    AXIS_DP_BYTES,
    AXIS_PP_BYTES,
    NAXIS_BYTES
};

/* A chunk on one rank. */
struct graph_chunk {
    const struct stage *stage;
    struct chunk_shape shape;               /* the stage's, on this rank */
    uint32_t number;                        /* of the stage */
    const struct chunk_pass *pass[NPASSES]; /* NULL: not asked for yet */
    struct chunk_part *units[NPASSES];      /* [unit], in the order of the pass; NULL: likewise */
    uint32_t *gather[NGROUPS];              /* of a bucket's weights; TASK_NONE: none is to come */
    size_t first, last; /* tasks of the schedule: the first forward, the last backward */
    bool reduced;       /* its gradients are on their way */
    uint32_t *out;      /* [micro-batch][unit]: activations sent to the host */
};

/* A use of a unit by a pass, in the order of the schedule. */
struct cursor {
    size_t task;
    int side; /* 0: forward, 1: backward */
    uint32_t pos;
};

/* What a use waits for and what waits for it; a ring of the last few. */
struct use {
    uint32_t ready[NGROUPS + 1];
    uint32_t done, out;
};

struct graph_rank {
    uint32_t id, set, index; /* of the graph; of the sets; in the pipeline */
    double factor;
    uint32_t lane[NLANES];
    struct graph_chunk *chunks;
    uint32_t weights;  /* gathers of this step wait for it: the optimizer; TASK_NONE */
    uint32_t blocked;  /* the next pass waits for it: a reduction without overlap; TASK_NONE */
    uint32_t last;     /* the segment added last; TASK_NONE */
    uint32_t *pending; /* the optimizer waits for them */
    size_t npending, pending_cap;
    struct cursor next;   /* whose gather comes next */
    uint64_t issued, run; /* uses: gathered for, and run */
    struct use *uses;
    uint32_t reduced;  /* all its gradients are there */
    uint32_t close[2]; /* the end of each step, on its compute lane */
    double bytes[NNET_KINDS], sent[NAXIS_BYTES], reduce_s; /* of jobs in the second step */
};

/* A collective of several sets, and what it waits for in one. */
struct sync {
    uint32_t ready, job;
};

/* What jobs of ranks do to passes beside them, the most of each. */
struct met {
    float busy[NNET_KINDS], sm; /* links; multiprocessors */
    ps_t wire_ps;
};

struct build {
    const struct event_args *args;
    const struct job *job;
    struct full *full;         /* train/full.h; or NULL */
    const struct constants *c; /* with what a second job leaves of the network */
    struct err *err;
    struct pipeline *pipeline;
    struct tasks *tasks;
    struct stage *stages;
    struct group groups[NGROUPS];
    bool places; /* blocks of groups differ: by faults, or by where domains cut them */
    size_t nsets;
    double *factors;          /* [set][pipeline rank] */
    struct graph_rank *ranks; /* [set][pipeline rank] */
    struct sync **sync;       /* [set][pipeline rank]: list */
    size_t *nsync, *sync_cap;
    uint32_t *first, *last;            /* [set][task of the schedule]: its first and last segment */
    double repeat;                     /* micro-batches of the step over those in the graph */
    int step;                          /* that is being built: 0, 1 */
    bool by_unit;                      /* passes are cut at every unit */
    bool finer;                        /* passes that meet jobs go by operators */
    struct met met[2];                 /* jobs; messages */
    uint32_t ahead;                    /* uses for which weights are brought ahead */
    const struct chunk_pass **pass_of; /* by task; NULL: no pass */
    struct event_label *labels;        /* by task's label */
    size_t nnotes, nlabels, pass_cap, labels_cap;
};

/* Makes the graph of two steps of `micro` micro-batches. 0 or -1; graph_free in either case. */
int graph_build(struct build *b, const struct event_args *args, const struct constants *c,
                struct full *full, uint32_t micro, struct err *err);
void graph_free(struct build *b);

/* ---- event_jobs.c: tasks ---- */

struct event_label graph_label(const struct graph_rank *r, const char *name);
/* A new label; gives its number. */
uint32_t graph_add_label(struct build *b, struct event_label label);
/* Notes which pass the tasks that have been added are; NULL: none. */
void graph_note(struct build *b, const struct chunk_pass *pass);
uint32_t graph_task(struct build *b, struct task task, const struct chunk_pass *pass,
                    struct event_label label);
uint32_t graph_join(struct build *b, const struct graph_rank *r);
void graph_after(struct build *b, uint32_t task, uint32_t before); /* TASK_NONE is fine */
void graph_pend(struct graph_rank *r, uint32_t task);              /* the optimizer waits for it */
uint32_t graph_use(struct build *b, const float *busy);
ps_t graph_ps(double seconds);

/* Something to be moved. */
struct wish {
    const char *name;
    enum coll_id coll;
    enum step_part part;
    int lane, axis;
    double bytes;
    uint32_t n, stride, base, span; /* as in struct fluid_call */
    uint32_t ready[2];              /* what it waits for; TASK_NONE */
    uint32_t micro, chunk;
    bool back;     /* of a pair: to the rank below, as in struct fluid_call */
    uint32_t to;   /* of a pair: the other's pipeline rank, + 1; 0: ranks of the same */
    ps_t later_ps; /* of a message: who waits for it sees it so much later */
    bool message;  /* its latency holds no lane */
    bool each;     /* once in every micro-batch */
};

/* A collective or message of the rank. 0 or -1. */
int graph_job(struct build *b, struct graph_rank *r, const struct wish *w, uint32_t *number);

/* Where a rank's groups of n, stride apart, lie: w->n, stride, base, and, where links of single
 * hosts are slow, the span of all groups of the stage. */
void graph_place(const struct build *b, const struct graph_rank *r, uint32_t n, uint32_t stride,
                 struct wish *w);

/* The ranks of a pipeline rank's stage, from *base on; where they do not lie in a row, all. */
uint32_t graph_span(const struct build *b, uint32_t index, uint32_t *base);

/* A transfer between the GPU and its host's memory. */
uint32_t graph_transfer(struct build *b, struct graph_rank *r, const char *name, int lane,
                        double bytes, const uint32_t ready[2]);

/* What the rank does for a unit that is gathered or reduced beside the collective itself: the host,
 * for each rank's piece of each tensor (TASK_NONE: nothing), and memory traffic of `bytes` on its
 * compute lane, behind `ready` and all that it runs; gives what comes last. */
uint32_t graph_pieces(struct build *b, struct graph_rank *r, const struct unit *unit, bool trained,
                      uint32_t ready);
uint32_t graph_copy(struct build *b, struct graph_rank *r, const char *name, double bytes,
                    uint32_t ready);

/* Ranks over which what is reduced is then spread. */
double graph_spread(const struct build *b, int group);

/* Gradients of one group, there once what they wait for is: a pass or a copy, and the host. */
struct gradients {
    int group;
    double params;
    uint32_t ready[2]; /* TASK_NONE: nothing */
    uint32_t micro, chunk;
    bool each;
};

/* Reduces gradients and, with an optimizer on the host, sends them there. */
int graph_reduce(struct build *b, struct graph_rank *r, const struct gradients *of);

/* Whether gradients are reduced beside backward, and whether there is anything to reduce. */
bool graph_overlaps(const struct build *b);

/* Reduces all that a chunk holds, at once, behind the rank's last pass. */
int graph_reduce_chunk(struct build *b, struct graph_rank *r, uint32_t chunk, uint32_t micro);

/* ---- event_pass.c: passes ---- */

/* The pass of one side (0: forward) of a task of the schedule, NPASSES where it has none. */
enum pass graph_pass(const struct pipeline_task *task, int side);
/* The pass, run when first asked for; NULL with a sentence. */
const struct chunk_pass *graph_pass_of(struct build *b, struct graph_rank *r, uint32_t chunk,
                                       enum pass kind);
/* .. of a PAIR. */
const struct chunk_pass *graph_pair_of(struct build *b, struct graph_rank *r,
                                       const struct pipeline_task *task);
/* Whether passes of the graph that are whole would meet jobs on links. */
bool graph_crowded(const struct build *b);
/* Adds a task of the schedule behind what the rank has. */
int graph_add_passes(struct build *b, struct graph_rank *r, size_t index);
