/* SPDX-License-Identifier: Apache-2.0
 * What a step's graph is built from, for train/event*.c alone: the layers that each stage holds and
 * their parameters, the groups that reduce and gather them, the buckets, and how fast each rank is.
 *
 *   job --> stages (layers, parameters, buckets) --+--> graph of two steps --> result
 *       --> groups (data parallel, of experts)   --+
 *       --> sets   (replicas by their slow GPUs) --+                                            */
#pragma once

#include "train/bucket.h"
#include "train/event.h"

/* Who holds the same weights: all data-parallel ranks, or, of experts, those with the same ones. */
enum { GROUP_DENSE, GROUP_EXPERT, NGROUPS };

struct group {
    uint32_t n, stride;           /* ranks that share one copy, or, unsharded, that hold one each */
    uint32_t copies, copy_stride; /* hybrid shard, two ways: groups whose gradients are summed */
};

/* A layer, the embedding or the head on one rank. */
struct unit {
    enum layer_kind kind;
    uint32_t layer;
    double held[NGROUPS];    /* parameters, of tensor and expert parallelism this rank's share */
    double trained[NGROUPS]; /* those with gradients */
    double activation_B;     /* of a micro-batch, what backward needs of it */
    size_t bucket[NGROUPS];  /* the one that its first gradient goes into; SIZE_MAX: none */
};

struct event_bucket {
    double params;
    uint32_t unit; /* whose gradients close it */
};

/* What one chunk holds, by its place on the path of a micro-batch. */
struct stage {
    struct chunk_shape shape;
    struct unit *units; /* in the order of forward */
    uint32_t nunits;
    struct event_bucket *buckets[NGROUPS]; /* in the order in which they close */
    size_t nbuckets[NGROUPS];
};

/* Tensors of a unit on one rank, in the order in which their gradients come: the MLP's from its
 * output on, the attention's output projection, and what stands before it; of experts each its own.
 */
struct tensors {
    double *params; /* freed by the user */
    size_t count, cap;
};
void unit_tensors(const struct job *job, const struct unit *unit, int group, bool trained,
                  struct tensors *list); /* appends */

/* Stages of the job on its pipeline; freed by stages_free. */
struct stage *stages_new(const struct job *job, const struct pipeline *pipeline);
void stages_free(struct stage *stages, uint32_t nstages);

/* The shape of the pipeline that a job asks for, with `micro` micro-batches. */
struct pipeline_shape event_shape(const struct job *job, uint32_t micro);

/* The schedule of a job with `micro` micro-batches; NULL with sentences. Where the exchanges of
 * experts hide beside compute, a backward pass and the forward pass of another micro-batch behind
 * it run as a PAIR, as Megatron has it: without a pipeline, or with virtual stages. */
struct pipeline *event_pipeline(const struct job *job, uint32_t micro, struct err *err);

/* The groups of a job. */
void event_groups(const struct job *job, struct group groups[NGROUPS]);

/* Bytes per parameter of gathered weights, and of reduced gradients. */
double event_weight_B(const struct job *job);
double event_gradient_B(const struct job *job);

static inline bool event_fsdp(const struct job *job)
{
    return job->shard == SHARD_GRAD_OP || job->shard == SHARD_FULL;
}

/* Replicas that differ by their slow GPUs: factor[set x pp + stage], compute time over the usual.
 * Gives the number of sets; 0 with sentences for a GPU that is not there or a bad speed. */
size_t event_sets(const struct event_args *args, double **factors, struct err *err);
