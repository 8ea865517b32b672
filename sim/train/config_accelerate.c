/* SPDX-License-Identifier: Apache-2.0
 * accelerate's YAML for FSDP, both ways. It says how the job is sharded and in which precision;
 * batch, sequence and optimizer belong to the training script: these are options beside it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/units.h"
#include "train/config.h"

struct accelerate {
    const char *type, *precision, *strategy, *reshard;
    uint64_t version, machines, processes, accumulation;
    uint64_t replicate, shard, tp, cp;
    enum config_switch recompute, offload, offload2;
    const char *prefetch, *rotate, *compiler;
};

static const char *const types[] = {"FSDP", "MULTI_GPU", "NO", NULL};
static const char *const precisions[] = {"no", "bf16", "fp16", "fp8", NULL};
/* By number and name, as accelerate takes both. */
static const char *const strategies[] = {"FULL_SHARD",
                                         "SHARD_GRAD_OP",
                                         "NO_SHARD",
                                         "HYBRID_SHARD",
                                         "HYBRID_SHARD_ZERO2",
                                         "1",
                                         "2",
                                         "3",
                                         "4",
                                         "5",
                                         NULL};
/* Only BACKWARD_PRE gathers the next layer beside the one that runs. */
static const char *const prefetches[] = {
    "BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "0", "1", "2", NULL};
static const char *const reshards[] = {"true",         "false",      "True",
                                       "False",        "FULL_SHARD", "SHARD_GRAD_OP",
                                       "HYBRID_SHARD", "NO_SHARD",   NULL};

static const char *const rotations[] = {"allgather", "alltoall", NULL};

/* Change time or memory, but are not modelled. */
static const char *const unmodelled[] = {"fsdp_config.fsdp_forward_prefetch",
                                         "fsdp_config.fsdp_min_num_params",
                                         "parallelism_config.parallelism_config_sp_size",
                                         "deepspeed_config.zero_stage",
                                         "fp8_config.opt_level",
                                         NULL};

#define ROW(key, type, field, choices)                                                             \
    {                                                                                              \
        key, type, offsetof(struct accelerate, field), NULL, choices                               \
    }
static const struct config_word words[] = {
    ROW("distributed_type", CONFIG_TEXT, type, types),
    ROW("mixed_precision", CONFIG_TEXT, precision, precisions),
    ROW("num_machines", CONFIG_UINT, machines, NULL),
    ROW("num_processes", CONFIG_UINT, processes, NULL),
    ROW("gradient_accumulation_steps", CONFIG_UINT, accumulation, NULL),
    ROW("fsdp_config.fsdp_version", CONFIG_UINT, version, NULL),
    ROW("fsdp_config.fsdp_sharding_strategy", CONFIG_TEXT, strategy, strategies),
    ROW("fsdp_config.fsdp_reshard_after_forward", CONFIG_TEXT, reshard, reshards),
    ROW("fsdp_config.fsdp_activation_checkpointing", CONFIG_SWITCH, recompute, NULL),
    ROW("fsdp_config.fsdp_offload_params", CONFIG_SWITCH, offload, NULL),
    ROW("fsdp_config.fsdp_cpu_offload", CONFIG_SWITCH, offload2, NULL),
    ROW("fsdp_config.fsdp_backward_prefetch", CONFIG_TEXT, prefetch, prefetches),
    ROW("fsdp_config.fsdp_backward_prefetch_policy", CONFIG_TEXT, prefetch, prefetches),
    ROW("dynamo_config.dynamo_backend", CONFIG_TEXT, compiler, NULL),
    ROW("dynamo_backend", CONFIG_TEXT, compiler, NULL),
    ROW("parallelism_config.parallelism_config_cp_comm_strategy", CONFIG_TEXT, rotate, rotations),
    ROW("parallelism_config.parallelism_config_dp_replicate_size", CONFIG_UINT, replicate, NULL),
    ROW("parallelism_config.parallelism_config_dp_shard_size", CONFIG_UINT, shard, NULL),
    ROW("parallelism_config.parallelism_config_tp_size", CONFIG_UINT, tp, NULL),
    ROW("parallelism_config.parallelism_config_cp_size", CONFIG_UINT, cp, NULL),
    {0},
};
#undef ROW

enum sharding { FULL, GRAD_OP, NONE, HYBRID, HYBRID_ZERO2 };

/* true, false, or -1 where it names a strategy, as with FSDP1. */
static int reshard_truth(const char *said)
{
    return strcasecmp(said, "true") == 0 ? 1 : strcasecmp(said, "false") == 0 ? 0 : -1;
}

/* The sharding strategy; FSDP2 says it by fsdp_reshard_after_forward, FSDP1 may name it there. -1
 * with a sentence. */
static int sharding(const struct config *c, const struct accelerate *a, struct err *err)
{
    static const char *const key = "fsdp_config.fsdp_reshard_after_forward";
    const char *said = a->strategy;
    int truth = a->reshard ? reshard_truth(a->reshard) : 1;
    if (!a->type || strcmp(a->type, "FSDP") != 0) return NONE;
    if (a->version == 2 && said && strcmp(said, "FULL_SHARD") != 0 && strcmp(said, "1") != 0)
        return config_contradiction(c, "fsdp_config.fsdp_sharding_strategy", "fsdp_version 2",
                                    "it is said by fsdp_reshard_after_forward there", err);
    if (a->version == 2 && truth < 0)
        return config_contradiction(c, key, "fsdp_version 2", "it is true or false there", err);
    if (a->version == 2) return truth ? FULL : GRAD_OP;
    if (said && truth < 0 && strcmp(said, a->reshard) != 0)
        return config_contradiction(c, key, "fsdp_sharding_strategy", "give one of the two", err);
    if (truth == 0)
        return config_contradiction(c, key, "fsdp_version 1",
                                    "a strategy stands there, such as SHARD_GRAD_OP", err);
    if (truth < 0) said = a->reshard;
    for (int i = 0; said && strategies[i]; i++) {
        if (strcmp(strategies[i], said) == 0) return i % 5;
    }
    return FULL;
}

static int set_sharding(struct config *c, const struct accelerate *a, struct err *err)
{
    struct strategy_args *s = &c->args;
    int how = sharding(c, a, err);
    if (how < 0) return -1;
    if (how == HYBRID_ZERO2)
        return err_add(err, ERR_USAGE,
                       "%s: HYBRID_SHARD_ZERO2 (5) is not modelled; known: FULL_SHARD, "
                       "SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD",
                       config_where(&c->items, "fsdp_config.fsdp_sharding_strategy"));
    s->zero = how == NONE ? "none" : how == GRAD_OP ? "2" : "fsdp";
    s->replicas = a->replicate;
    if (how == GRAD_OP) config_feature(c, "gather-overlap", "on"); /* in the first forward pass */
    if (how != NONE) s->shards = a->shard;
    if (how != HYBRID || a->shard || a->replicate) return 0;
    if (!a->machines || !a->processes || a->processes % a->machines)
        return err_add(err, ERR_USAGE,
                       "%s: HYBRID_SHARD shards within a machine, so num_processes %" PRIu64
                       " must be a multiple of num_machines %" PRIu64 ", both given",
                       config_where(&c->items, "fsdp_config.fsdp_sharding_strategy"), a->processes,
                       a->machines);
    s->shards = a->processes / a->machines;
    s->replicas = a->machines;
    return 0;
}

/* accelerate reads fsdp_config with distributed_type FSDP only: without, it is as if it were not
 * there, and counts as not read. */
static void drop_fsdp(struct config *c, struct accelerate *a)
{
    if (a->type && strcmp(a->type, "FSDP") == 0) return;
    for (size_t i = 0; i < c->items.count; i++)
        if (strncmp(c->items.items[i].key, "fsdp_config.", 12) == 0) c->items.items[i].read = false;
    a->strategy = a->reshard = a->prefetch = NULL;
    a->version = 0;
    a->recompute = a->offload = a->offload2 = SWITCH_ABSENT;
}

static int translate(struct config *c, void *said, struct err *err)
{
    struct accelerate *a = said;
    drop_fsdp(c, a);
    struct strategy_args *s = &c->args;
    bool host = a->offload == SWITCH_ON || a->offload2 == SWITCH_ON;
    if (set_sharding(c, a, err)) return -1;
    if (host) s->offload = "optimizer,weights"; /* its CPUOffload takes all states */
    if (a->prefetch) {
        bool ahead = strcmp(a->prefetch, "BACKWARD_PRE") == 0 || strcmp(a->prefetch, "0") == 0;
        s->prefetch = ahead ? "1" : "0";
    }
    if (a->precision) s->precision = strcmp(a->precision, "no") == 0 ? "fp32" : a->precision;
    /* FSDP reduces in the type it computes in (set_mixed_precision of
     * FullyShardedDataParallelPlugin) */
    bool half =
        a->precision && (strcmp(a->precision, "bf16") == 0 || strcmp(a->precision, "fp16") == 0);
    if (half && s->zero && strcmp(s->zero, "none") != 0) {
        config_feature(c, "grad-bytes", "2");
        config_feature(c, "reduce-bytes", "2");
    }
    if (a->compiler && strcasecmp(a->compiler, "inductor") == 0)
        config_feature(c, "class", "fused");
    if (a->recompute) s->recompute = a->recompute == SWITCH_ON ? "full" : "none";
    s->tp = a->tp;
    s->cp = a->cp;
    if (a->cp > 1)
        s->cp_comm = !a->rotate || strcmp(a->rotate, "allgather") == 0 ? "gather" : "ring";
    s->accumulation = a->accumulation > 1 ? a->accumulation : 0;
    c->hosts = a->machines;
    c->gpus = a->processes;
    return 0;
}

/* ---- writing ---- */

static const char *truth(bool on)
{
    return on ? "true" : "false";
}

static void write_sharding(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    uint64_t shards = s->shards / s->cp, replicas = s->dp / (shards ? shards : 1);
    bool full = s->zero == ZERO_3, all = s->recompute == RC_FULL && !s->rc_blocks;
    if (s->zero != ZERO_NONE) {
        fprintf(to,
                "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: %s\n"
                "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                "  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_offload_params: %s\n",
                truth(full), truth((s->offload & OFFLOAD_STATES) == OFFLOAD_STATES));
        if (all || s->recompute == RC_NONE)
            fprintf(to, "  fsdp_activation_checkpointing: %s\n", truth(all));
    }
    if (s->tp == 1 && s->cp == 1 && (!full || replicas == 1)) return;
    fprintf(to, "parallelism_config:\n");
    if (full) {
        fprintf(to,
                "  parallelism_config_dp_replicate_size: %" PRIu64
                "\n  parallelism_config_dp_shard_size: %" PRIu64 "\n",
                replicas, shards);
    }
    fprintf(to,
            "  parallelism_config_tp_size: %" PRIu64 "\n  parallelism_config_cp_size: %" PRIu64
            "\n",
            s->tp, s->cp);
    if (s->cp > 1 && !s->ulysses)
        fprintf(to, "  parallelism_config_cp_comm_strategy: %s\n",
                s->framework.cp == CP_GATHER ? "allgather" : "alltoall");
}

static void write(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    bool plain = strcmp(s->precision->name, "fp32") == 0;
    fprintf(to,
            "compute_environment: LOCAL_MACHINE\ndistributed_type: %s\nmixed_precision: %s\n"
            "num_machines: %zu\nnum_processes: %" PRIu64 "\n",
            s->zero == ZERO_NONE ? "MULTI_GPU" : "FSDP", plain ? "\"no\"" : s->precision->name,
            (size_t)plan->topo.hosts, s->gpus);
    write_sharding(to, plan);
}

static const char *const beside[] = {"micro-batch",   "global-batch", "seq",   "optimizer",
                                     "recompute",     "lora",         "qlora", "packed",
                                     "moe-imbalance", "moe-capacity", NULL};

const struct config_format config_accelerate = {
    .option = "accelerate",
    .emit = "fsdp",
    .framework = "fsdp",
    .scan = config_scan_yaml,
    .words = words,
    .bytes = sizeof(struct accelerate),
    .translate = translate,
    .write = write,
    .beside = beside,
    .unmodelled = unmodelled,
    .features_beside = true,
};
