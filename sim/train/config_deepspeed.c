/* SPDX-License-Identifier: Apache-2.0
 * DeepSpeed's JSON, both ways. It says nothing of the sequence, recomputation or adapters, which
 * belong to the training script: these are options beside it. "auto" is what the Hugging Face
 * trainer fills in: no more than if the member were not there. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/units.h"
#include "train/config.h"

struct deepspeed {
    uint64_t train, micro, accumulation, stage, tp, ulysses, shards;
    const char *offload_optimizer, *offload_param, *optimizer;
    enum config_switch bf16, fp16, overlap, cpu_offload, checkpoints;
    double bucket_params, prefetch_params;
    double momentum;
    const char *wire, *store, *bf16_word, *fp16_word;
};

static const char *const wires[] = {"fp32", "fp16", "bf16", "bfp16", NULL};
static const char *const devices[] = {"none", "cpu", "nvme", NULL};

#define ROW(key, type, field, choices)                                                             \
    {                                                                                              \
        key, type, offsetof(struct deepspeed, field), "auto", choices                              \
    }
static const struct config_word words[] = {
    ROW("train_batch_size", CONFIG_UINT, train, NULL),
    ROW("train_micro_batch_size_per_gpu", CONFIG_UINT, micro, NULL),
    ROW("gradient_accumulation_steps", CONFIG_UINT, accumulation, NULL),
    ROW("zero_optimization.stage", CONFIG_COUNT, stage, NULL),
    ROW("zero_optimization.overlap_comm", CONFIG_SWITCH, overlap, NULL),
    ROW("zero_optimization.cpu_offload", CONFIG_SWITCH, cpu_offload, NULL),
    ROW("zero_optimization.offload_optimizer.device", CONFIG_TEXT, offload_optimizer, devices),
    ROW("zero_optimization.offload_param.device", CONFIG_TEXT, offload_param, devices),
    ROW("zero_optimization.reduce_bucket_size", CONFIG_DOUBLE, bucket_params, NULL),
    ROW("zero_optimization.stage3_prefetch_bucket_size", CONFIG_DOUBLE, prefetch_params, NULL),
    ROW("activation_checkpointing.cpu_checkpointing", CONFIG_SWITCH, checkpoints, NULL),
    ROW("tensor_parallel.autotp_size", CONFIG_COUNT, tp, NULL),
    ROW("bf16.enabled", CONFIG_SWITCH, bf16, NULL),
    ROW("fp16.enabled", CONFIG_SWITCH, fp16, NULL),
    ROW("sequence_parallel_size", CONFIG_UINT, ulysses, NULL),
    {"zero_optimization.mics_shard_size", CONFIG_UINT, offsetof(struct deepspeed, shards), "-1",
     NULL},
    {"bf16.enabled", CONFIG_TEXT, offsetof(struct deepspeed, bf16_word), NULL, NULL},
    {"fp16.enabled", CONFIG_TEXT, offsetof(struct deepspeed, fp16_word), NULL, NULL},
    ROW("bfloat16.enabled", CONFIG_SWITCH, bf16, NULL),
    ROW("optimizer.type", CONFIG_TEXT, optimizer, NULL),
    ROW("optimizer.params.momentum", CONFIG_DOUBLE, momentum, NULL),
    ROW("communication_data_type", CONFIG_TEXT, wire, wires),
    ROW("data_types.grad_accum_dtype", CONFIG_TEXT, store, wires),
    {0},
};
#undef ROW

/* Change time or memory, but are not modelled. */
static const char *const unmodelled[] = {"amp.enabled",
                                         "torch_autocast.enabled",
                                         "fp16.fp16_master_weights_and_grads",
                                         "compression_training",
                                         "sparse_attention",
                                         "pipeline.stages",
                                         "pipeline.partition",
                                         "activation_checkpointing.cpu_checkpointing",
                                         "pipeline.activation_checkpoint_interval",
                                         "activation_checkpointing.partition_activations",
                                         "zero_optimization.zero_hpz_partition_size",
                                         "zero_optimization.zero_quantized_weights",
                                         "zero_optimization.zero_quantized_gradients",
                                         "zero_optimization.zeropp_loco_param",
                                         "zero_optimization.offload_optimizer.ratio",
                                         "zero_optimization.stage3_param_persistence_threshold",
                                         "zero_optimization.stage3_max_live_parameters",
                                         "zero_optimization.stage3_max_reuse_distance",
                                         "zero_optimization.allgather_bucket_size",
                                         NULL};

static bool on_host(const char *device)
{
    return device && strcmp(device, "cpu") == 0;
}

static bool optimizer_on_host(const struct deepspeed *d)
{
    return on_host(d->offload_optimizer) || d->cpu_offload == SWITCH_ON;
}

static int check(const struct config *c, const struct deepspeed *d, struct err *err)
{
    const char *offload_optimizer = config_either(c, "zero_optimization.offload_optimizer.device",
                                                  "zero_optimization.cpu_offload");
    static const char *const offload_param = "zero_optimization.offload_param.device";
    const char *host = "what is modelled here", *why = "disks are not timed; known: none, cpu";
    int result = 0;
    if (d->offload_optimizer && strcmp(d->offload_optimizer, "nvme") == 0)
        result = config_contradiction(c, offload_optimizer, host, why, err);
    if (d->offload_param && strcmp(d->offload_param, "nvme") == 0)
        result = config_contradiction(c, offload_param, host, why, err);
    if (on_host(d->offload_param) && d->stage != 3)
        result = config_contradiction(c, offload_param, "a stage below 3",
                                      "weights leave the GPU with stage 3 only", err);
    if (optimizer_on_host(d) && d->stage == 0)
        result = config_contradiction(c, offload_optimizer, "stage 0",
                                      "states leave the GPU with stages 1 to 3 only", err);
    if (d->bf16 == SWITCH_ON && d->fp16 == SWITCH_ON)
        result =
            config_contradiction(c, "fp16.enabled", "bf16.enabled", "weights have one format", err);
    if (d->shards && d->stage != 3)
        result = config_contradiction(c, "zero_optimization.mics_shard_size", "a stage below 3",
                                      "groups that share weights are for stage 3", err);
    const struct config_item *plain = config_find(&c->items, "zero_optimization");
    if (plain)
        result =
            err_add(err, ERR_USAGE, "%s: is %.20s; an object stands there, such as {\"stage\": 1}",
                    plain->where, plain->value);
    if (d->stage > 3)
        result = err_add(err, ERR_USAGE, "%s: is %" PRIu64 ", there are stages 0 to 3",
                         config_where(&c->items, "zero_optimization.stage"), d->stage);
    return result;
}

/* Optimizers by their names in DeepSpeed and PyTorch; others are left to --optimizer. */
static int set_optimizer(struct config *c, const struct deepspeed *d, struct err *err)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"Adam", "adamw"}, {"AdamW", "adamw"},       {"FusedAdam", "adamw"},
                 {"SGD", "sgd"},    {"Adam8bit", "adam8bit"}, {"AdamW8bit", "adam8bit"}};
    if (!d->optimizer) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcasecmp(names[i].theirs, d->optimizer) == 0) c->args.optimizer = names[i].ours;
    }
    if (!c->args.optimizer)
        return err_add(err, ERR_USAGE,
                       "%s: states of \"%.60s\" are not known here; known: Adam, AdamW, SGD, "
                       "Adam8bit",
                       config_where(&c->items, "optimizer.type"), d->optimizer);
    if (strcmp(c->args.optimizer, "sgd") == 0 && d->momentum > 0) c->args.optimizer = "momentum";
    return 0;
}

/* The bytes of a data type, as the value of a feature. */
static void set_bytes(struct config *c, const char *feature, const char *type)
{
    if (type) config_feature(c, feature, strcmp(type, "fp32") == 0 ? "4" : "2");
}

/* A number of elements; 0: not said, or "auto". */
static void set_elements(struct config *c, const char *feature, double elements)
{
    char text[UNITS_TEXT];
    snprintf(text, sizeof text, "%.0f", elements);
    if (elements > 0) config_feature(c, feature, text);
}

static int translate(struct config *c, void *said, struct err *err)
{
    static const char *const levels[] = {"none", "1", "2", "3"};
    const struct deepspeed *d = said;
    struct strategy_args *s = &c->args;
    if (check(c, d, err) || set_optimizer(c, d, err)) return -1;
    s->zero = levels[d->stage];
    s->tp = d->tp;
    s->ulysses = d->ulysses;
    s->shards = d->shards;
    s->micro_batch = d->micro;
    s->global_batch = d->train;
    s->accumulation = d->accumulation;
    if (!d->train && !d->accumulation && d->micro) s->accumulation = 1;
    c->derive_batch = d->train && !d->micro;
    bool automatic = (d->bf16_word && strcmp(d->bf16_word, "auto") == 0) ||
                     (d->fp16_word && strcmp(d->fp16_word, "auto") == 0);
    bool chosen = d->bf16 == SWITCH_ON || d->fp16 == SWITCH_ON;
    if (chosen || !automatic)
        s->precision = d->bf16 == SWITCH_ON ? "bf16" : d->fp16 == SWITCH_ON ? "fp16" : "fp32";
    bool overlap = d->overlap ? d->overlap == SWITCH_ON : d->stage == 3;
    config_feature(c, "dp-overlap", overlap ? "on" : "off");
    set_elements(c, "bucket-params", d->bucket_params);
    set_elements(c, "prefetch-params", d->prefetch_params);
    unsigned host = (optimizer_on_host(d) ? OFFLOAD_OPTIMIZER : 0u) |
                    (on_host(d->offload_param) ? OFFLOAD_WEIGHTS : 0u);
    c->host_checkpoints = d->checkpoints == SWITCH_ON; /* of layers that the script recomputes */
    if (host) s->offload = config_own(c, config_offload_text(host));
    set_bytes(c, "grad-bytes", d->wire);
    set_bytes(c, "reduce-bytes", d->wire);
    set_bytes(c, "grad-store-bytes", d->store);
    return 0;
}

/* ---- writing ---- */

static const char *bytes_type(const struct plan *plan, const char *feature)
{
    bool half = strcmp(plan->strategy.precision->name, "fp16") == 0;
    return config_is(plan, feature, "4") ? "fp32" : half ? "fp16" : "bf16";
}

/* The optimizer as DeepSpeed's member. */
static json_t *optimizer(const struct strategy *s)
{
    static const struct {
        const char *ours, *theirs;
        double momentum;
    } names[] = {{"adamw", "AdamW", 0},
                 {"adam8bit", "Adam8bit", 0},
                 {"momentum", "SGD", .9},
                 {"sgd", "SGD", 0}};
    json_t *params = json_object(), *o = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].ours, s->optimizer->name) != 0) continue;
        json_object_set_new(o, "type", json_string(names[i].theirs));
        if (names[i].momentum > 0)
            json_object_set_new(params, "momentum", json_real(names[i].momentum));
    }
    json_object_set_new(o, "params", params);
    return o;
}

/* The member zero_optimization. */
static json_t *zero_member(const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    json_t *zero = json_pack("{s:i, s:b}", "stage", (int)s->zero, "overlap_comm",
                             (int)config_is(plan, "dp-overlap", "on"));
    static const struct {
        unsigned flag;
        enum zero_level least;
        const char *key;
    } hosts[] = {{OFFLOAD_OPTIMIZER, ZERO_1, "offload_optimizer"},
                 {OFFLOAD_WEIGHTS, ZERO_3, "offload_param"}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (s->offload & hosts[i].flag && s->zero >= hosts[i].least)
            json_object_set_new(zero, hosts[i].key, json_pack("{s:s}", "device", "cpu"));
    uint64_t shards = s->shards / s->cp;
    if (s->zero == ZERO_3 && shards < s->dp)
        json_object_set_new(zero, "mics_shard_size", json_integer((json_int_t)shards));
    const struct framework *f = &s->framework;
    if (f->bucket_params && f->bucket_bytes <= 0)
        json_object_set_new(zero, "reduce_bucket_size", json_integer((json_int_t)f->bucket_params));
    if (s->zero == ZERO_3 && f->prefetch_params)
        json_object_set_new(zero, "stage3_prefetch_bucket_size",
                            json_integer((json_int_t)f->prefetch_params));
    return zero;
}

static void write(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    json_t *root = json_object();
    if (s->offload & OFFLOAD_ACTIVATIONS)
        json_object_set_new(root, "activation_checkpointing",
                            json_pack("{s:b}", "cpu_checkpointing", 1));
    json_object_set_new(root, "train_batch_size", json_integer((json_int_t)s->global_batch));
    json_object_set_new(root, "train_micro_batch_size_per_gpu",
                        json_integer((json_int_t)s->micro_batch));
    if (s->global_batch == s->micro_batches * s->micro_batch * s->dp)
        json_object_set_new(root, "gradient_accumulation_steps",
                            json_integer((json_int_t)s->micro_batches));
    json_object_set_new(root, "zero_optimization", zero_member(plan));
    if (strcmp(s->precision->name, "bf16") == 0)
        json_object_set_new(root, "bf16", json_pack("{s:b}", "enabled", 1));
    if (strcmp(s->precision->name, "fp16") == 0)
        json_object_set_new(root, "fp16", json_pack("{s:b}", "enabled", 1));
    json_object_set_new(root, "optimizer", optimizer(s));
    if (s->tp > 1)
        json_object_set_new(root, "tensor_parallel",
                            json_pack("{s:I}", "autotp_size", (json_int_t)s->tp));
    if (s->cp > 1 && s->ulysses)
        json_object_set_new(root, "sequence_parallel_size", json_integer((json_int_t)s->cp));
    json_object_set_new(root, "communication_data_type",
                        json_string(bytes_type(plan, "grad-bytes")));
    json_object_set_new(
        root, "data_types",
        json_pack("{s:s}", "grad_accum_dtype", bytes_type(plan, "grad-store-bytes")));
    json_dumpf(root, to, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    fputc('\n', to);
    json_decref(root);
}

static const char *const beside[] = {"seq",    "recompute",     "lora",         "qlora",
                                     "packed", "moe-imbalance", "moe-capacity", NULL};

const struct config_format config_deepspeed = {
    .option = "deepspeed",
    .emit = "deepspeed",
    .framework = "deepspeed",
    .scan = config_scan_json,
    .words = words,
    .bytes = sizeof(struct deepspeed),
    .translate = translate,
    .write = write,
    .beside = beside,
    .unmodelled = unmodelled,
    .features_beside = true,
};
