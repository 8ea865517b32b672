/* SPDX-License-Identifier: Apache-2.0
 * A training job as plain numbers: machine, model shape, strategy, and what the framework does.
 * A command line and a row of a published table both become one; memory and step read nothing
 * else, so a prediction for a user and a score against a measurement run the same code. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "net/topo.h" /* enum fabric */

/* Accelerators that share calibrated efficiencies (GB200 is B200, H800 is H100, ...). */
enum dev_class {
    DEV_V100,
    DEV_A100,
    DEV_H100,
    DEV_H100_500W, /* the 96 GB HBM2e part with a 500 W limit */
    DEV_H200,
    DEV_B200,
    DEV_B300,
    DEV_MI250X,
    DEV_MI300,
    DEV_MI355,
    DEV_CPU,
    NDEV_CLASSES
};

/* Machines whose published runs are slower than their type throughout. */
enum machine { MACHINE_USUAL, MACHINE_B200_SLOW, NMACHINES };

/* Generations of frameworks: legacy (to 2022, unfused), eager PyTorch, fused or compiled. */
enum fw_class { FW_LEGACY, FW_EAGER, FW_FUSED, NFW_CLASSES };

enum attn_kernel { ATTN_FA1, ATTN_FA2, ATTN_CUDNN, NATTN_FLASH, ATTN_UNFUSED = NATTN_FLASH };

enum precision { PREC_16, PREC_FP8, PREC_FP4, PREC_TF32, PREC_FP32, NPRECISIONS };

/* What ZeRO or FSDP shards: each level adds to the one before. GRAD_OP is FSDP that keeps the
 * gathered weights from forward to backward. */
enum shard { SHARD_NONE, SHARD_ZERO1, SHARD_ZERO2, SHARD_GRAD_OP, SHARD_FULL };

enum graphs { GRAPHS_NONE, GRAPHS_PARTIAL, GRAPHS_FULL };

enum recompute { RC_NONE, RC_SELECTIVE, RC_FULL };

/* What a selective recomputation runs again; a set. */
enum {
    RCM_CORE_ATTN = 1,
    RCM_MLP = 2,      /* of layers without experts */
    RCM_MLP_PART = 4, /* all but the first GEMM's output */
    RCM_MLA_UP = 8,
    RCM_NORM = 16,
    RCM_OPS = 32,       /* per-operator checkpointing: element-wise work and half the linears */
    RCM_HALF = 64,      /* every second layer whole */
    RCM_SAVE_DOT = 128, /* everything but the matrix products */
    RCM_THIRD = 256,    /* an unstated fraction of the blocks: one in three */
    RCM_ACT = 512,      /* activations of MLPs and experts */
    RCM_MOE = 1024, /* layers with experts from the router on, exchanges and shared expert too */
};

struct device {
    const char *name; /* borrowed */
    enum dev_class cls;
    double flops16, flops8, flops_tf32, flops32; /* dense peaks, FLOP/s; flops8 = flops16 and
                                                    tf32 = flops32 where there is no such unit */
    double hbm_Bps;                              /* datasheet */
    double mem_B;
    uint32_t sms;
    bool grace;           /* its host is a Grace CPU, slower per thread than x86 */
    double ring_Bps;      /* bytes/s a ring reaches per GPU inside the NVLink domain */
    double nic_usual_Bps; /* usual network rate per GPU, for a row that states none */
};

struct shape {
    uint32_t layers, dense_layers; /* all; those without experts in a mixture, counted in front */
    uint32_t hidden, ffn, heads, kv_heads, head_dim;
    uint32_t vocab; /* padded as it runs */
    bool gated, tied;
    uint32_t q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* MLA; kv_lora 0: none */
    uint32_t window;                                     /* tokens of a sliding window, 0: none */
    double window_share;                                 /* of the layers */
    bool sink_attention; /* GPT-OSS: learned sinks, clamped SwiGLU with bias, unfused */
    uint32_t experts, topk, expert_ffn, shared_ffn;
    uint32_t groups, group_topk; /* a token's experts lie in group_topk of so many equal groups of
                                    neighbours (DeepSeek-V2, -V3); 0: in any */
    double params; /* exact total if known, else 0 and counted from the figures above */
};

struct job {
    struct device dev;
    uint32_t ngpus, gpus_per_node, domain; /* domain: GPUs joined by NVLink */
    double nic_Bps;                        /* stated rate per GPU */
    enum fabric fabric;
    double oversubscribed; /* >= 1: data and expert parallelism over hosts get 1/x of the rate */
    double machine_factor; /* compute time is multiplied by it; 1 is the type's usual machine */
    enum machine machine;  /* a machine known to differ from its type, by a fitted factor */

    struct shape shape;
    uint64_t seq;
    uint32_t dp, tp, pp, vpp, cp, ep, etp;
    bool sp;
    bool ulysses; /* cp exchanges heads by all-to-all instead of keys and values */
    /* Ranks between neighbours of a group; 0: tp, cp, dp, pp are placed from the innermost on. */
    uint64_t tp_stride, cp_stride, dp_stride, pp_stride;
    const double *stage_layers; /* pp entries, or NULL for the usual rule; borrowed */
    const uint64_t *layout;     /* layers of (chunk, stage): layout[chunk x pp + stage], pp x vpp
                                   entries,     or NULL for the usual rule; borrowed */
    enum shard shard;
    uint32_t shard_size; /* ranks that share one copy of what is sharded; 0: dp x cp */
    uint64_t micro_batch, global_batch; /* sequences */
    uint32_t local_batch; /* of a replica, which its pipeline takes at a time and runs empty before
                             the next (accumulation around PyTorch's schedules); 0: all */
    enum precision precision;
    bool fp8_params;  /* weights are gathered in 1 byte */
    bool fp8_rowwise; /* float8 with a scale per row: a slow path */

    enum fw_class fw;
    enum attn_kernel attn;
    bool tp_overlap, ep_overlap;
    bool ep_dedup;      /* a token goes once to a rank, and once to a host (DeepEP, HybridEP) */
    bool experts_dealt; /* a synthetic gate deals experts out in turn: a token's are neighbours */
    enum graphs graphs;
    double zb;           /* share of the bubble left: 1, 1/3 (ZB-1p), 0 (ZB-2p) */
    bool gpipe;          /* all forwards before all backwards: every micro-batch is in flight */
    bool unfused_norm;   /* norms in single operators (legacy and eager classes) */
    bool scatter_gather; /* p2p messages are cut over tp without sequence parallelism */
    bool dp_overlap, p2p_overlap; /* communication runs beside compute as the class can */
    double grad_B;                /* bytes per gradient on the wire */
    double grad_store_B;          /* and in memory */
    double reduce_B;              /* FSDP: bytes per gradient in reduce-scatter */
    bool pure_bf16;               /* no fp32 copy of the weights among the optimizer states */
    double opt_B;                 /* optimizer bytes per parameter beside weights and gradients */
    double opt_traffic;           /* memory traffic of the optimizer step over AdamW's */
    bool shard_copy;   /* ZeRO: a rank's part of the weights is a copy also where they are fp32 */
    bool sharded_copy; /* FSDP holds sharded 16-bit weights beside the master (DeepSpeed) */
    enum recompute recompute;
    unsigned rc_modules; /* RCM_..., with RC_SELECTIVE */
    uint32_t rc_blocks;  /* with RC_FULL: layers per virtual stage, 0: all */
    bool dropout;
    bool chunked_loss;
    double logit_B;     /* bytes held per logit at the peak */
    uint32_t lora_rank; /* 0: all weights train */
    bool qlora;         /* frozen weights in 4 bits */

    /* Read by the event engine alone (and, of offload, by memory). */
    uint8_t schedule;      /* enum pipeline_id (train/pipeline.h) */
    double bucket_B;       /* gradients are reduced in buckets of at least so many bytes as they
                              come; 0: all at once behind the last backward pass */
    double first_bucket_B; /* .. the first bucket; 0: as the others */
    bool gather_overlap;   /* ZeRO-1 and -2: weights are gathered beside the next forward pass */
    bool cut_messages;     /* p2p messages are cut over tp without sequence parallelism; the closed
                              form asks scatter_gather, which published rows of DeepSpeed lack */
    bool reduce_each;      /* ZeRO-2 and FSDP: gradients are reduced after each micro-batch, else
                              after the last alone */
    bool gather_tensors;   /* FSDP: weights are gathered tensor by tensor, not layer by layer */
    double accumulate_B;   /* traffic to add a weight's gradient to those of the micro-batches
                              before; 0: the product that makes it does so */
    bool owner_sends;      /* ZeRO-1 and -2: a tensor has one owner, who broadcasts it; its gradient
                              is summed on all */
    double reduce_copy_B;  /* FSDP: memory traffic per gradient that is made ready to be reduced */
    double piece_kernels;  /* FSDP: that the host issues for each rank's piece of a tensor */
    bool gather_sync;      /* FSDP: the host waits for the GPU before it gathers */
    bool sum_beside;       /* tp: an input's gradient is summed beside the weight's gradient */
    uint32_t prefetch;     /* FSDP: layers whose weights are gathered ahead of the one that runs */
    uint32_t tp_tiles;     /* tp_overlap: pieces of a product that overlaps its collective; 0: tp */
    bool cp_gather;        /* cp gathers all keys and values before attention, not in a ring */
    double moe_imbalance;  /* tokens of the busiest rank's experts over the mean; 0: 1 */
    double moe_capacity;   /* most tokens of an expert over the mean, the rest is dropped; 0: all */
    double packed_seq;     /* tokens of a document in a packed sequence, weighted by tokens: what
                              attention sees; 0: the whole sequence */
    unsigned offload;      /* OFFLOAD_... */
    double host_Bps;       /* between a GPU and its host's memory, each direction, alone */
    double host_shared;    /* GPUs that share it (one root); >= 1 */
    double host_mem_B;     /* memory of a host; 0: not stated */
    double host_mem_Bps;   /* of the host's memory per GPU: the optimizer's step on the processor */
};

/* What lies in the host's memory; a set. */
enum { OFFLOAD_OPTIMIZER = 1, OFFLOAD_WEIGHTS = 2, OFFLOAD_STATES = 3, OFFLOAD_ACTIVATIONS = 4 };

/* Micro-batches of a step: global_batch / (dp x micro_batch), at least 1. */
uint64_t job_microbatches(const struct job *job);

/* How often a pipeline runs empty in a step of `micro` micro-batches: at least once. */
uint64_t job_rounds(const struct job *job, uint64_t micro);

/* Tokens that the busiest rank's experts work on, over the mean of all ranks: its imbalance, as far
 * as no more are dropped; at least 1 unless fewer are kept. */
double job_expert_load(const struct job *job);

/* Layers of stage i < pp (all its chunks): the explicit list, else ceil(L/p) in the middle stages
 * (interleaved: ceil(L/(p v)) v) with first and last sharing what remains. */
double job_stage_layers(const struct job *job, uint32_t stage);

/* Of the layers of stage i, those with experts (dense layers stand in front). */
double job_stage_moe_layers(const struct job *job, uint32_t stage);

/* Parameters, by place. */
struct param_counts {
    double dense_layer; /* a layer without experts */
    double
        moe_shared; /* of a layer with experts, all but the experts (attention, router, shared) */
    double moe_experts; /* of a layer with experts, all experts */
    double embedding;   /* one V x h matrix */
    double total;       /* whole model, tied embeddings counted once */
    double active;      /* used by one token, embedding included */
};
struct param_counts job_params(const struct job *job);

/* Trainable parameters of a layer's adapters: rank x (inputs + outputs) of the q and v projections;
 * 0 without LoRA. */
double job_lora_params(const struct job *job);

/* Ranks between neighbours of a group. That of data parallelism is dp x cp, which hold the same
 * weights: its neighbours are those of the inner of the two; with other ranks between the two it is
 * taken as an even one that is as long, which has as many members in a host. */
uint64_t job_tp_stride(const struct job *job);
uint64_t job_cp_stride(const struct job *job);
uint64_t job_dp_stride(const struct job *job);
uint64_t job_pp_stride(const struct job *job);

/* The same for every `stride`-th of the ranks of a stage, n of them, as experts are placed:
 * `stride`, or, where ranks of other stages lie between them, so many times it. */
uint64_t job_stage_stride(const struct job *job, uint64_t stride, uint64_t n);
