/* SPDX-License-Identifier: Apache-2.0
 * What a training framework does and demands: one row of data/frameworks.json. A row holds the
 * features that time and memory depend on and the rules the framework checks; the user changes
 * single features with --feature. No code knows a framework by its name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "train/job.h"

/* What a framework does when heads of keys and values are fewer than tensor-parallel ranks. */
enum kv_rule { KV_MULTIPLE, KV_REPLICATE }; /* kv % tp = 0; or also tp % kv = 0, then copies */

/* What it does with layers that the chunks of a pipeline do not divide. */
enum uneven_rule { UNEVEN_REFUSE, UNEVEN_SHARE };

/* What it asks of the number of micro-batches m of a pipeline of p stages. */
enum micro_rule {
    MICRO_GROUPS, /* interleaved: m a multiple of p; else any (Megatron) */
    MICRO_ROUNDS, /* m >= p unless interleaved; then m % max(1, m / p) = 0 (PyTorch) */
};

enum ep_rule {
    EP_EXPERT_MESH, /* world % (etp ep pp) = 0; not with fp16 (Megatron) */
    EP_IN_DATA,     /* ep divides dp cp tp, and ep >= tp (torchtitan) */
};

/* How the ranks of a sequence see each other's keys and values. */
enum cp_exchange { CP_RING, CP_GATHER }; /* piece by piece beside attention, or all before it */

/* The default sharding of optimizer, gradients and weights. */
enum zero_level { ZERO_NONE, ZERO_1, ZERO_2, ZERO_3 };

/* Schedules that a framework has: 1F1B and GPipe, interleaved ones too, the zero-bubble schedules
 * that keep 1F1B's memory and DualPipeV too, or all. */
enum schedules { SCHEDULES_1F1B, SCHEDULES_INTERLEAVED, SCHEDULES_ZERO_BUBBLE, SCHEDULES_ALL };

struct framework {
    const char *name; /* strings are owned by the table */
    const char *about, *source;

    /* Features: what it does. */
    enum fw_class cls;
    enum attn_kernel attention;
    enum graphs graphs;
    enum zero_level zero;    /* unless the strategy says otherwise */
    double grad_bytes;       /* per gradient on the wire */
    double grad_store_bytes; /* and in memory: 4 for fp32 main gradients */
    double reduce_bytes;     /* FSDP: per gradient in the reduce-scatter */
    bool master_weights;     /* fp32 copy of 16-bit weights in the optimizer */
    bool shard_copy; /* ZeRO: a rank's part of fp32 weights is copied too, not updated in place */
    bool tp_overlap, dp_overlap, p2p_overlap, ep_overlap;
    bool ep_dedup;       /* the dispatcher sends a token to a host and to a rank once (DeepEP,
                            HybridEP) */
    bool scatter_gather; /* p2p messages are cut over tensor ranks */
    bool op_recompute;   /* "selective" saves per operator (SAC), not the attention core alone */
    bool chunked_loss;   /* the logits are never whole */
    bool dropout;        /* masks are kept for the backward pass */
    bool fp8_params;     /* with fp8 or fp4: weights are gathered in 1 byte */
    double logit_bytes;  /* held per logit at the peak */
    uint64_t vocab_multiple; /* V is padded to a multiple of this x tp; 1 pads to tp; 0: never */
    /* Gradients are reduced in buckets while the backward pass goes on: at least so many bytes
     * each, or, where that is 0, so many parameters, or so many for each data-parallel rank,
     * whichever is more. Both 0: one bucket. The first may have a cap of its own. */
    double bucket_bytes, first_bucket_bytes;
    uint64_t bucket_params, bucket_params_per_rank;
    bool gather_overlap; /* ZeRO-1 and -2: weights are gathered beside the next forward pass */
    bool reduce_each; /* ZeRO-2 and -3: gradients are reduced after every micro-batch, not the last
                         alone */
    bool gather_tensors;     /* ZeRO-3: weights are gathered tensor by tensor, not layer by layer */
    double accumulate_bytes; /* moved per weight and micro-batch to add its gradient up behind the
                                product that makes it; 0: the product adds */
    bool owner_sends; /* ZeRO-1 and -2: a tensor belongs to one rank, which broadcasts it; its
                         gradient is summed on all */
    double reduce_copy_bytes; /* ZeRO-3: read and written per gradient where it is put into a flat
                                 buffer, cast or scaled for a reduction in reduce_bytes */
    double piece_kernels; /* ZeRO-3: what the host does for each rank's piece of each tensor that is
                             gathered or reduced, in kernels of PyTorch that it issues */
    bool gather_sync;     /* ZeRO-3: the host waits for the GPU before it gathers */
    bool sum_beside;   /* tp: the gradient of a product's input is summed beside the gradient of its
                          weight; autograd's own products make both first */
    uint64_t prefetch; /* ZeRO-3: layers gathered ahead of the one that runs */
    uint64_t prefetch_params; /* .. or so many parameters, where not 0 */
    uint64_t tp_tiles;        /* pieces of a product that overlaps its collective; 0: tp */
    enum cp_exchange cp;      /* keys and values of context parallelism */

    /* Rules: what it demands. */
    enum kv_rule kv;
    enum uneven_rule uneven;
    enum micro_rule micro;
    enum ep_rule experts;
    bool tp_with_sp;              /* tensor parallelism is always with sequence parallelism */
    bool moe_needs_sp;            /* MoE with tp > 1 runs with sequence parallelism only */
    bool batch_remainder;         /* a rank's batch need not divide by the micro-batch (Composer) */
    bool fsdp_alone;              /* FSDP not with pipeline, expert parallelism, or ZeRO-1 */
    enum zero_level most_zero;    /* the highest level it has; fsdp is ZERO_3 */
    enum zero_level zero_with_pp; /* .. beside a pipeline */
    enum schedules schedules;     /* that it has; others are simulated, but not advised */
};

struct framework_table {
    struct framework *rows;
    size_t nrows;
    void *doc;
};

/* Reads the shipped table, or the one at `path` if not NULL. Returns 0, or -1 with all faults. */
int framework_read(struct framework_table *table, const char *path, struct err *err);
void framework_release(struct framework_table *table);

/* The row of that name; NULL with a sentence that lists the names. */
const struct framework *framework_find(const struct framework_table *table, const char *name,
                                       struct err *err);

/* Sets one feature from "NAME=VALUE" ("attention=fa2", "tp-overlap=on"), names and values as in the
 * file. Returns -1 with a sentence that lists the names, or the values. */
int framework_feature(struct framework *framework, const char *text, struct err *err);

/* Bytes of a bucket of gradients for `ranks` of data parallelism: the features above; 0: one. */
double framework_bucket_B(const struct framework *framework, double grad_B, double ranks);

/* Sets what the job says of buckets, gathers ahead, tiles and context parallelism. Last of all, for
 * it reads degrees, shape, sharding, `grad_B` and the overlaps. */
void framework_overlap(struct job *job, const struct framework *framework);

/* Name of feature i of the table, NULL behind the last. */
const char *framework_feature_name(size_t i);

/* The value of feature i as text ("on", "fa2", "4"), into `buf` of UNITS_TEXT bytes. */
const char *framework_value(const struct framework *framework, size_t i, char *buf);
