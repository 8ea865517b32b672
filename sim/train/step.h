/* SPDX-License-Identifier: Apache-2.0
 * The time of one training step in closed form: what each layer costs, how pipeline, data and
 * expert parallelism put layers together, and a breakdown that adds up to the step. */
#pragma once

#include "train/constants.h"
#include "train/job.h"

/* Where the time of the slowest stage goes. The parts add up to the step. */
enum step_part {
    PART_GEMM,      /* matrix products of forward and backward */
    PART_ATTENTION, /* attention cores */
    PART_ELEMENT,   /* norms, activations, quantisation, loss: memory traffic */
    PART_RECOMPUTE, /* forward work done again */
    PART_LAUNCH,    /* host floor and fixed costs per layer, micro-batch and step */
    PART_TP,        /* exposed communication: tensor, context, expert parallelism */
    PART_CP,
    PART_EP,
    PART_FSDP,
    PART_DP,
    PART_PP,     /* point-to-point messages between stages */
    PART_BUBBLE, /* waiting for other stages */
    PART_OPTIMIZER,
    PART_OFFLOAD, /* transfers to and from the host's memory, exposed */
    NPARTS
};

struct step {
    double time_s;
    double part_s[NPARTS];
    double tokens_per_s;     /* all GPUs */
    double model_flops;      /* of a step, attention counted causal */
    double model_flops_full; /* the same with attention counted full */
    double hardware_flops;   /* with what recomputation adds, causal */
    double dp_total_s;       /* data-parallel traffic, hidden or not */
    uint32_t slowest_stage;
};

/* What a FLOP count holds; pages differ by up to a factor of two for the same run. */
enum {
    FLOPS_HARDWARE = 1, /* also what recomputation does again */
    FLOPS_FULL = 2,   /* attention as if every token saw the whole sequence, not the causal half */
    FLOPS_LINEAR = 4, /* no attention: 6 N, with full recomputation 8 N */
    FLOPS_EMBEDDING = 8, /* all parameters that a token meets, input embedding and norms included */
};

/* FLOP of a step by a convention, a set of FLOPS_. What recomputation adds is causal throughout. */
double step_flops(const struct job *job, unsigned convention);

/* Predicts the step. Cannot fail: every job whose figures are positive has a time. */
struct step step_predict(const struct job *job, const struct constants *c);

/* The part's name ("tensor-parallel communication") and its key ("tp"). */
const char *step_part_name(enum step_part part);
const char *step_part_key(enum step_part part);
