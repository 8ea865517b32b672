/* SPDX-License-Identifier: Apache-2.0
 * Memory of one GPU of each pipeline stage: what is held all the time, what each micro-batch in
 * flight adds, and the peak at each moment of a step. Formulas: Korthikanti et al. 2022
 * (activations 34 s b h + 5 a s^2 b per layer), Rajbhandari et al. 2020 (ZeRO), Megatron-LM
 * theoretical_memory_usage.py (micro-batches in flight). Overheads of allocator and driver were set
 * on the memory columns of the training tables. */
#pragma once

#include "train/constants.h"
#include "train/job.h"

enum moment {
    MOMENT_INIT,
    MOMENT_FORWARD,
    MOMENT_BACKWARD,
    MOMENT_OPTIMIZER,
    MOMENT_SAVE,
    NMOMENTS
};

/* Bytes on one GPU of a stage. */
struct stage_memory {
    double weights, gradients, optimizer; /* held, after sharding */
    double activations;                   /* of all micro-batches in flight */
    double live;                          /* a layer that is being recomputed or differentiated */
    double logits;                        /* last stage */
    double gathered;                      /* FSDP and ZeRO-3: the whole layer that runs, those that
                                             are gathered ahead, embedding and head; what is on its
                                             way to or from the host */
    double host;                          /* in the host's memory, for this GPU */
    double moment[NMOMENTS];              /* peak of what is allocated */
    double peak;                          /* the largest of init to optimizer */
    double in_flight;                     /* micro-batches */
};

struct memory {
    uint32_t stage;            /* the one that needs most */
    struct stage_memory worst; /* its figures */
    double allocated, reserved,
        smi; /* bytes: framework, its allocator's pool, as nvidia-smi shows */
    double capacity;
    double host, host_capacity; /* of a host, for all its GPUs; capacity 0: not stated */
};

/* What nvidia-smi shows, bytes: never less than the pool and the context of CUDA beside it, half a
 * GiB where kernels are loaded when first called. `smi` alone is a formula of its own, fitted
 * apart. */
static inline double memory_smi(const struct memory *memory)
{
    double least = memory->reserved + .5 * 1073741824.;
    return memory->smi > least ? memory->smi : least;
}

/* Whether what is offloaded is more than the hosts are said to have. */
static inline bool memory_host_full(const struct memory *memory)
{
    return memory->host_capacity > 0 && memory->host > memory->host_capacity;
}

enum verdict { VERDICT_FITS, VERDICT_TIGHT, VERDICT_NO };

struct stage_memory memory_stage(const struct job *job, const struct constants *c, uint32_t stage);
struct memory memory_predict(const struct job *job, const struct constants *c);

/* Does not fit: the allocator's pool exceeds the card, or what is offloaded the host. Tight: less
 * than a tenth is left. */
enum verdict memory_verdict(const struct memory *memory);

/* Bytes per token and layer that a micro-batch leaves behind for backward. */
double memory_dense_layer_B(const struct job *job);
double memory_moe_layer_B(const struct job *job);

/* Micro-batches in flight on a rank of the pipeline, in units of the layers of a stage. */
double memory_in_flight(const struct job *job, uint32_t stage);

/* What DeepSpeed's own estimator of ZeRO-3 promises per GPU, bytes: 4 bytes for each parameter of
 * the largest module, and of the N of the model 18 N / n, with the optimizer on the host 2 N / n,
 * with the weights there too nothing. No context, buffers or activations. Source: deepspeedai/
 * DeepSpeed runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs. */
double memory_deepspeed_estimate(double params, double largest, double gpus, unsigned offload);

const char *moment_name(enum moment moment);
const char *verdict_name(enum verdict verdict);
