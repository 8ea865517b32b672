/* SPDX-License-Identifier: Apache-2.0
 * How a job is spread over a cluster: the words ("tp8pp4dp4", "fsdp8x16", "zero1"), the long
 * options, what follows when they meet a cluster and a model (the remaining GPUs become data
 * parallelism), and which layer runs in which stage. Legality is rules.h's business. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/opts.h"
#include "net/topo.h"
#include "train/framework.h"
#include "train/job.h"
#include "train/model.h"

/* Axes of the rank grid. */
enum axis { AXIS_TP, AXIS_CP, AXIS_DP, AXIS_PP, NAXES };

/* In the order of enum pipeline_id (train/pipeline.h). */
enum schedule {
    SCHED_GPIPE,
    SCHED_1F1B,
    SCHED_INTERLEAVED,
    SCHED_ZB_1P,
    SCHED_ZB_2P,
    SCHED_DUALPIPE,
    SCHED_DUALPIPEV,
    NSCHEDULES
};

/* Number formats of --precision: names, what the linears run in, and the peak they need. */
struct precision_row {
    const char *name;         /* "bf16", "mxfp8" */
    enum precision precision; /* of the linears */
    enum peak needs;          /* the unit the accelerator must have (block scaling came with fp4) */
};
extern const struct precision_row precision_table[]; /* ended by name NULL */

/* Optimizers, per parameter and with an fp32 master copy (4 bytes, not counted here). */
struct optimizer_row {
    const char *name;
    double state_bytes;   /* moments */
    double bf16_bytes;    /* moments in pure bf16 */
    double traffic_bytes; /* read and written by a step: gradient 4, master 8, weight 2, moments */
};
extern const struct optimizer_row optimizer_table[]; /* ended by name NULL */

/* What the user wrote, before it meets a cluster. All zero: nothing. Fields of options are
 * explained by the help texts in strategy_rows. */
struct strategy_args {
    const char *strategy;
    uint64_t tp, pp, dp, cp, ulysses, ep, etp, vpp, shards, replicas;
    const char *zero;
    bool sp;
    const char *order;
    uint64_t micro_batch, global_batch, accumulation, seq;
    const char *precision, *recipe, *optimizer, *recompute, *schedule;
    uint64_t lora;
    bool qlora;
    const char *split, *layers;
    uint64_t layers_per_chunk, first_layers, last_layers;
    const char *framework;
    struct opts_list features;
    const char *cp_comm, *bucket_size, *prefetch, *tp_tiles; /* features by another name */
    const char *moe_imbalance, *moe_capacity, *offload;
    uint64_t packed;
};
extern const struct opts_row strategy_rows[]; /* offsets are those of struct strategy_args */

/* How layers are dealt out. */
struct layout_args {
    uint64_t layers, pp, vpp;
    bool embedding, loss; /* each counts as a layer, in the first and in the last chunk */
    uint64_t first, last; /* layers of the first and last stage; 0: as the others */
};

/* Options given that not every job has a use for. */
enum {
    ASKED_PREFETCH = 1,
    ASKED_CP_COMM = 2,
    ASKED_TP_TILES = 4,
    ASKED_BUCKET = 8,
    ASKED_SCHEDULE = 16
};

/* A strategy on a cluster: everything has its value, legal or not. Plain data; strategy_release
 * frees. */
struct strategy {
    char *word; /* canonical: "tp2pp4dp2", with what was left over */
    uint64_t gpus;
    uint64_t tp, pp, dp, cp, ep, etp, vpp;
    bool dp_given;
    uint64_t edp;         /* copies of each expert: gpus / (etp ep pp), at least 1 */
    bool sp, sp_asked;    /* sp is off with tp 1, asked for or not; on if the framework says so */
    bool ulysses;         /* cp exchanges heads instead of keys and values */
    enum zero_level zero; /* ZERO_3 also for fsdp */
    bool fsdp;
    uint64_t shards;        /* ranks that share one copy of what is sharded; dp x cp if all do */
    enum axis order[NAXES]; /* innermost first; usual: tp cp dp pp */
    uint64_t micro_batch, global_batch, seq; /* sequences, sequences, tokens */
    uint64_t micro_batches; /* per data-parallel rank and step; rounded up, at least 1 */
    uint64_t accumulation;  /* 0: not given */
    bool batch_assumed, seq_assumed, micro_assumed;
    const struct precision_row *precision;
    bool fp8_rowwise; /* --recipe rowwise */
    const struct optimizer_row *optimizer;
    enum recompute recompute;
    unsigned rc_modules; /* RCM_... with RC_SELECTIVE */
    uint64_t rc_blocks;  /* with RC_FULL: layers per chunk, 0: all */
    enum schedule schedule;
    uint64_t lora; /* rank, 0: all weights train */
    bool qlora;
    double moe_imbalance;       /* tokens of the busiest rank's experts over the mean, >= 1 */
    double moe_capacity;        /* most tokens of an expert over the mean, 0: none are dropped */
    uint64_t packed;            /* mean tokens of a document in a packed sequence, 0: not packed */
    unsigned offload;           /* OFFLOAD_... */
    struct framework framework; /* the row with --feature applied */
    unsigned asked;             /* ASKED_... */

    struct layout_args layout_args;
    uint64_t layers_per_chunk; /* 0: not given */
    bool layers_given;
    uint64_t *layout; /* layers of (chunk, stage): layout[chunk * pp + stage] */
    size_t nlayout;   /* pp x vpp, or as many as --layers holds */
};

/* The framework where none is named. */
extern const char *const strategy_usual_framework;

/* Reads a strategy word into `args` (only the fields it names). Words may follow each other
 * directly or with - _ + . between: "tp2pp4", "fsdp8x16", "tp8-dp4@order=dp,tp". Every fault is one
 * sentence. Returns 0 or -1. The strings it stores are constants or lie in `word`. */
int strategy_parse(struct strategy_args *args, const char *word, struct err *err);

/* Cuts "a,b,c" into words; the axes behind "@order=" stay with their word. Freed by
 * strategy_list_free. */
char **strategy_list(const char *text, size_t *count);
void strategy_list_free(char **words, size_t count);

/* Makes the strategy of `args` (word and options) for a model on `topo`. What is not given: dp is
 * what is left of the GPUs; micro-batch 1; sequence 8192 tokens or the model's longest, if shorter;
 * a global batch of 1 Mi tokens, rounded up to a multiple of as many sequences as there are GPUs
 * and of micro-batch x dp; bf16; adamw; framework megatron. Faults of the text and two options that
 * contradict each other are errors; whether it is legal is for rules_check to say, which needs to
 * see the whole. Returns 0, or -1 with all faults and an empty strategy. */
int strategy_make(struct strategy *strategy, const struct strategy_args *args,
                  const struct topo *topo, const struct model *model,
                  const struct framework_table *frameworks, struct err *err);
void strategy_release(struct strategy *strategy);

/* Deals layers over pp x vpp chunks into layout[chunk * pp + stage]. Every chunk holds
 * c = ceil((layers + embedding + loss) / (pp vpp)), of which embedding and loss take their place in
 * the first and last chunk; what is then too many is taken from the last stage and the first in
 * turn, from the outermost of their chunks on, so that these two share the remainder. If they have
 * not enough, all chunks hold c or c - 1, the fuller ones first in model order. With first or last
 * given, these stages hold that many and the others share the rest in the same way.
 * The sum is `layers` whenever first + last <= layers. Source: Megatron core,
 * account_for_embedding_in_pipeline_split and num_layers_in_first/last_pipeline_stage. */
void strategy_layout(const struct layout_args *args, uint64_t *layout);

/* Layers of a stage, all its chunks. */
uint64_t strategy_stage_layers(const struct strategy *strategy, uint64_t stage);

/* Ranks between neighbours of an axis, by the order of axes: 1 for the innermost. */
uint64_t strategy_stride(const struct strategy *strategy, enum axis axis);

/* Ranks of an axis. */
uint64_t strategy_degree(const struct strategy *strategy, enum axis axis);

const char *axis_name(enum axis axis);
const char *schedule_name(enum schedule schedule);

/* The name that a short form stands for ("zb-1p" for "zb"); other texts as they are. */
const char *schedule_whole_name(const char *name);
