/* SPDX-License-Identifier: Apache-2.0
 * torchtitan's TOML files and the flags that go over them, both ways. Names and defaults are those
 * of torchtitan's job configuration; tensor parallelism implies sequence parallelism there. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "train/config.h"

struct torchtitan {
    const char *name, *flavor;
    uint64_t nodes, per_node;
    uint64_t local_batch, global_batch, seq;
    const char *param, *reduce;
    enum config_switch compile, async_tp, float8_linear, float8_gather;
    const char *converters, *reshard, *components;
    uint64_t replicate, shard, tp, pp, cp, ep, etp, micro_batch, chunk_layers;
    const char *first_less, *last_less;
    const char *schedule, *ac_mode, *ac_option, *recipe, *optimizer, *rotate;
    enum config_switch offload;
};

static const char *const params[] = {"bfloat16", "float32", NULL};
static const char *const schedules[] = {
    "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV", NULL};
static const enum schedule ours[] = {SCHED_GPIPE, SCHED_1F1B, SCHED_INTERLEAVED, SCHED_ZB_1P,
                                     SCHED_DUALPIPEV};
enum { USUAL_CHUNKS = 2 }; /* of a rank, with schedules that have chunks */
static const char *const rotations[] = {"allgather", "alltoall", NULL};
static const char *const modes[] = {"none", "selective", "full", NULL};
static const char *const recipes[] = {"tensorwise", "rowwise", NULL};
static const char *const reshards[] = {"default", "always", "never", NULL};
static const char *const lesses[] = {"0", "1", NULL};
static const char *const optimizers[] = {"Adam", "AdamW", NULL};

#define ROW(key, type, field, ...)                                                                 \
    {                                                                                              \
        key, type, offsetof(struct torchtitan, field), __VA_ARGS__                                 \
    }
static const struct config_word words[] = {
    ROW("nnodes", CONFIG_UINT, nodes, NULL, NULL),
    ROW("nproc-per-node", CONFIG_UINT, per_node, NULL, NULL),
    ROW("model.name", CONFIG_TEXT, name, NULL, NULL),
    ROW("model.flavor", CONFIG_TEXT, flavor, NULL, NULL),
    ROW("model.converters", CONFIG_TEXT, converters, NULL, NULL),
    ROW("training.local_batch_size", CONFIG_UINT, local_batch, NULL, NULL),
    ROW("training.batch_size", CONFIG_UINT, local_batch, NULL, NULL),
    ROW("training.global_batch_size", CONFIG_UINT, global_batch, "-1", NULL),
    ROW("training.seq_len", CONFIG_UINT, seq, NULL, NULL),
    ROW("training.compile", CONFIG_SWITCH, compile, NULL, NULL),
    ROW("compile.enable", CONFIG_SWITCH, compile, NULL, NULL),
    ROW("compile.components", CONFIG_TEXT, components, NULL, NULL),
    ROW("training.mixed_precision_param", CONFIG_TEXT, param, NULL, params),
    ROW("training.mixed_precision_reduce", CONFIG_TEXT, reduce, NULL, params),
    ROW("parallelism.data_parallel_replicate_degree", CONFIG_UINT, replicate, NULL, NULL),
    ROW("parallelism.data_parallel_shard_degree", CONFIG_UINT, shard, "-1", NULL),
    ROW("parallelism.tensor_parallel_degree", CONFIG_UINT, tp, NULL, NULL),
    ROW("parallelism.enable_async_tensor_parallel", CONFIG_SWITCH, async_tp, NULL, NULL),
    ROW("parallelism.pipeline_parallel_degree", CONFIG_UINT, pp, NULL, NULL),
    ROW("parallelism.pipeline_parallel_schedule", CONFIG_TEXT, schedule, NULL, schedules),
    ROW("parallelism.pipeline_parallel_microbatch_size", CONFIG_UINT, micro_batch, NULL, NULL),
    ROW("parallelism.pipeline_parallel_layers_per_stage", CONFIG_UINT, chunk_layers, NULL, NULL),
    ROW("parallelism.pipeline_parallel_first_stage_less_layers", CONFIG_TEXT, first_less, NULL,
        lesses),
    ROW("parallelism.pipeline_parallel_last_stage_less_layers", CONFIG_TEXT, last_less, NULL,
        lesses),
    ROW("parallelism.context_parallel_degree", CONFIG_UINT, cp, NULL, NULL),
    ROW("parallelism.context_parallel_rotate_method", CONFIG_TEXT, rotate, NULL, rotations),
    ROW("training.enable_cpu_offload", CONFIG_SWITCH, offload, NULL, NULL),
    ROW("parallelism.expert_parallel_degree", CONFIG_UINT, ep, NULL, NULL),
    ROW("parallelism.expert_tensor_parallel_degree", CONFIG_UINT, etp, NULL, NULL),
    ROW("parallelism.fsdp_reshard_after_forward", CONFIG_TEXT, reshard, NULL, reshards),
    ROW("activation_checkpoint.mode", CONFIG_TEXT, ac_mode, NULL, modes),
    ROW("activation_checkpoint.selective_ac_option", CONFIG_TEXT, ac_option, NULL, NULL),
    ROW("float8.enable_float8_linear", CONFIG_SWITCH, float8_linear, NULL, NULL),
    ROW("float8.enable_fsdp_float8_all_gather", CONFIG_SWITCH, float8_gather, NULL, NULL),
    ROW("float8.recipe_name", CONFIG_TEXT, recipe, NULL, recipes),
    ROW("quantize.linear.float8.enable_fsdp_float8_all_gather", CONFIG_SWITCH, float8_gather, NULL,
        NULL),
    ROW("quantize.linear.float8.recipe_name", CONFIG_TEXT, recipe, NULL, recipes),
    ROW("optimizer.name", CONFIG_TEXT, optimizer, NULL, optimizers),
    {0},
};
#undef ROW

/* ---- reading ---- */

/* Change time or memory, but are not modelled. */
static const char *const unmodelled[] = {"parallelism.disable_loss_parallel",
                                         "parallelism.enable_compiled_autograd",
                                         "parallelism.module_fqns_per_model_part",
                                         "parallelism.pipeline_parallel_schedule_csv",
                                         "parallelism.pipeline_parallel_split_points",
                                         "parallelism.expert_parallel_comm_backend",
                                         "training.dtype",
                                         "training.deterministic",
                                         "optimizer.early_step_in_backward",
                                         "float8.force_recompute_fp8_weight_in_bwd",
                                         "float8.filter_fqns",
                                         "quantize.linear.float8.filter_fqns",
                                         "mx.filter_fqns",
                                         "quantize.linear.mx.filter_fqns",
                                         "fault_tolerance.enable",
                                         "fault_tolerance.semi_sync_method",
                                         NULL};

/* Old files and flags: [experimental] and [training] held the degrees. */
static int refuse_old(const struct config *c, struct err *err)
{
    static const char *const old[] = {"training.tensor_parallel_degree",
                                      "training.data_parallel_shard_degree",
                                      "training.data_parallel_degree",
                                      "training.data_parallel_replicate_degree",
                                      "experimental.pipeline_parallel_degree",
                                      "experimental.pipeline_parallel_schedule",
                                      "experimental.enable_async_tensor_parallel",
                                      "experimental.context_parallel_degree"};
    int result = 0;
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        const char *where = config_where(&c->items, old[i]);
        if (where == old[i]) continue;
        result =
            err_add(err, ERR_USAGE, "%s: stands under [parallelism] since 2025; move it", where);
    }
    return result;
}

/* What its converters make of linear layers. Those of grouped products alone leave the others as
 * they are, and are not here. */
static const struct {
    const char *name;
    bool fp8, mx;
} converters[] = {{.name = "float8", .fp8 = true},
                  {.name = "quantize.linear.float8", .fp8 = true},
                  {.name = "quantize.dense.float8", .fp8 = true},
                  {.name = "mx", .mx = true},
                  {.name = "quantize.linear.mx", .mx = true}};

/* The row of the first `n` bytes of a name; -1: it is not known. */
static int converter(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof converters / sizeof *converters; i++)
        if (strlen(converters[i].name) == n && strncmp(converters[i].name, name, n) == 0)
            return (int)i;
    return -1;
}

/* Whether one of them is in the list. */
static bool converts(const struct torchtitan *t, bool mx)
{
    for (const char *s = t->converters; s && *s; s += strcspn(s, ", "), s += strspn(s, ", ")) {
        int i = converter(s, strcspn(s, ", "));
        if (i >= 0 && (mx ? converters[i].mx : converters[i].fp8)) return true;
    }
    return false;
}

static bool has_float8(const struct torchtitan *t)
{
    return t->float8_linear == SWITCH_ON || converts(t, false);
}

static int check_converters(const struct config *c, const struct torchtitan *t, struct err *err)
{
    int result = 0;
    for (const char *s = t->converters; s && *s; s += strcspn(s, ", "), s += strspn(s, ", ")) {
        size_t n = strcspn(s, ", ");
        if (n == 0 || converter(s, n) >= 0) continue;
        result = err_add(err, ERR_USAGE,
                         "%s: converter \"%.*s\" is not modelled; known: float8, mx, "
                         "quantize.linear.float8, quantize.linear.mx",
                         config_where(&c->items, "model.converters"), (int)(n < 60 ? n : 60), s);
    }
    if (has_float8(t) && converts(t, true))
        result = config_contradiction(c, "model.converters", "itself",
                                      "float8 and mx are two formats of one layer", err);
    return result;
}

/* Sequences of a rank where nothing is said (Training.local_batch_size of its job configuration).
 */
enum { LOCAL_BATCH = 8 };

static int check(const struct config *c, const struct torchtitan *t, struct err *err)
{
    bool fp8 = has_float8(t), rowwise = t->recipe && strcmp(t->recipe, "rowwise") == 0;
    uint64_t micro = t->micro_batch ? t->micro_batch : 1;
    uint64_t local = t->local_batch ? t->local_batch : t->global_batch ? 0 : LOCAL_BATCH;
    int result = refuse_old(c, err) | check_converters(c, t, err);
    if (fp8 && rowwise && t->float8_gather == SWITCH_ON)
        result = config_contradiction(
            c,
            config_either(c, "float8.enable_fsdp_float8_all_gather",
                          "quantize.linear.float8.enable_fsdp_float8_all_gather"),
            "recipe_name rowwise", "rows of a shard have no scale for the whole", err);
    if (t->pp > 1 && local && local % micro)
        result = err_add(err, ERR_USAGE,
                         "%s: a rank's batch of %" PRIu64
                         " is no multiple of pipeline_parallel_microbatch_size %" PRIu64,
                         config_where(&c->items, config_either(c, "training.local_batch_size",
                                                               "training.batch_size")),
                         local, micro);
    return result;
}

/* With a pipeline the rank's batch is cut into micro-batches; else it is one, and a larger global
 * batch accumulates. */
static void set_batch(struct config *c, const struct torchtitan *t)
{
    struct strategy_args *s = &c->args;
    uint64_t local = t->local_batch;
    s->seq = t->seq;
    s->global_batch = t->global_batch;
    if (t->pp <= 1) {
        s->micro_batch = local;
        if (local && !t->global_batch) s->accumulation = 1;
        if (!local) c->usual_micro = LOCAL_BATCH, c->usual_accumulation = 1;
        return;
    }
    s->micro_batch = t->micro_batch ? t->micro_batch : 1;
    if (local && !t->global_batch) s->accumulation = local / s->micro_batch;
    if (!local) c->usual_accumulation = LOCAL_BATCH / s->micro_batch;
}

static void set_degrees(struct config *c, const struct torchtitan *t)
{
    struct strategy_args *s = &c->args;
    s->tp = t->tp ? t->tp : 1;
    s->pp = t->pp ? t->pp : 1;
    s->cp = t->cp ? t->cp : 1;
    s->ep = t->ep ? t->ep : 1;
    s->etp = t->etp;
    s->sp = s->tp > 1;
    if (s->cp > 1 && t->rotate)
        s->cp_comm = strcmp(t->rotate, "allgather") == 0 ? "gather" : "ring";
    if (t->offload == SWITCH_ON) s->offload = "optimizer,weights";
}

/* "default" gathers weights for every micro-batch unless there is a pipeline; else they are
 * gathered beside the first forward pass and stay, as with ZeRO-2
 * (get_fsdp_reshard_after_forward_policy of torchtitan/distributed/fsdp.py). */
static void set_sharding(struct config *c, const struct torchtitan *t)
{
    struct strategy_args *s = &c->args;
    if (t->shard == 1) {
        s->zero = "none";
        s->dp = t->replicate;
        return;
    }
    const char *how = t->reshard ? t->reshard : "default";
    bool keep = strcmp(how, "never") == 0 || (strcmp(how, "default") == 0 && s->pp > 1);
    s->zero = keep ? "2" : "fsdp";
    if (keep) config_feature(c, "gather-overlap", "on");
    s->shards = t->shard;
    s->replicas = t->shard && !t->replicate ? 1 : t->replicate;
}

/* Without a word it is every second layer. */
static int set_recompute(struct config *c, const struct torchtitan *t, struct err *err)
{
    const char *mode = t->ac_mode ? t->ac_mode : "selective";
    const char *option = t->ac_option ? t->ac_option : "2";
    if (strcmp(mode, "selective") != 0 || strcmp(option, "op") == 0) {
        c->args.recompute = mode;
        return 0;
    }
    const char *where =
        config_where(&c->items, t->ac_option ? "activation_checkpoint.selective_ac_option"
                                             : "activation_checkpoint.mode");
    return units_read_uint(where, option, 1, INT32_MAX, &c->recompute_every, err);
}

static void set_schedule(struct config *c, const struct torchtitan *t)
{
    struct strategy_args *s = &c->args;
    if (s->pp == 1) return;
    unsigned i = 0;
    while (t->schedule && strcmp(schedules[i], t->schedule) != 0)
        i++;
    s->schedule = t->schedule ? schedule_name(ours[i]) : "1f1b";
    bool chunks = t->schedule && (ours[i] == SCHED_INTERLEAVED || ours[i] == SCHED_ZB_1P);
    bool first = t->first_less && *t->first_less == '1',
         last = t->last_less && *t->last_less == '1';
    s->split = first ? last ? "embedding,loss" : "embedding" : last ? "loss" : NULL;
    s->layers_per_chunk = t->chunk_layers;
    if (chunks && !t->chunk_layers) s->vpp = USUAL_CHUNKS;
}

static void set_features(struct config *c, const struct torchtitan *t)
{
    bool compiled = t->compile == SWITCH_ON && (!t->components || strstr(t->components, "model"));
    if (!compiled) config_feature(c, "class", "eager");
    /* "currently only effective when compile is enabled" (its job configuration) */
    config_feature(c, "tp-overlap", compiled && t->async_tp == SWITCH_ON ? "on" : "off");
    if (t->reduce && strcmp(t->reduce, "bfloat16") == 0) {
        config_feature(c, "grad-bytes", "2");
        config_feature(c, "reduce-bytes", "2");
    }
    if (t->float8_gather == SWITCH_ON && has_float8(t)) config_feature(c, "fp8-params", "on");
}

/* Its models whose flavors are presets here: flavor "8B" of "llama3" is llama3-8b. */
static const struct {
    const char *name, *flavor, *preset; /* flavor NULL: any, behind `preset` */
} models[] = {
    {"deepseek_v3", "671B", "deepseek-v3"}, {"llama3", NULL, "llama3-"}, {"qwen3", NULL, "qwen3-"}};
enum { NMODELS = sizeof models / sizeof *models };

/* Any other model becomes its name and flavor joined, which --model may replace. */
static void set_model(struct config *c, const struct torchtitan *t)
{
    if (!t->name || !t->flavor) return;
    char *name = NULL;
    for (size_t i = 0; i < NMODELS && !name; i++) {
        if (strcmp(models[i].name, t->name) != 0) continue;
        if (!models[i].flavor)
            name = mem_printf("%s%s", models[i].preset, t->flavor);
        else if (strcmp(models[i].flavor, t->flavor) == 0)
            name = mem_strdup(models[i].preset);
    }
    if (!name) name = mem_printf("%s-%s", t->name, t->flavor);
    for (char *s = name; *s; s++)
        *s = (char)tolower((unsigned char)*s);
    c->model = config_own(c, name);
}

static int translate(struct config *c, void *said, struct err *err)
{
    const struct torchtitan *t = said;
    struct strategy_args *s = &c->args;
    if (check(c, t, err)) return -1;
    set_degrees(c, t);
    set_sharding(c, t);
    set_batch(c, t);
    set_schedule(c, t);
    set_features(c, t);
    set_model(c, t);
    bool fp8 = has_float8(t), plain = t->param && strcmp(t->param, "float32") == 0;
    s->precision = fp8 ? "fp8" : converts(t, true) ? "mxfp8" : plain ? "fp32" : "bf16";
    if (fp8 && t->recipe) s->recipe = t->recipe;
    c->hosts = t->nodes;
    c->gpus = t->nodes && t->per_node ? t->nodes * t->per_node : 0;
    if (t->optimizer) s->optimizer = "adamw"; /* Adam has the same states */
    return set_recompute(c, t, err);
}

/* Flags, and the file that --job.config_file names under them. */
static int scan(struct config_items *items, const char *name, const char *text, struct err *err)
{
    bool flags = strncmp(name, "--", 2) == 0;
    if (!flags) return config_scan_toml(items, name, text, err);
    if (config_scan_line(items, name, text, err)) return -1;
    struct config_item *file = config_find(items, "job.config_file");
    if (!file || !file->value) return 0;
    file->read = true;
    struct config_items under = {0};
    char *toml = config_read_file("torchtitan", file->value, err);
    int result = toml ? config_scan_toml(&under, file->value, toml, err) : -1;
    config_items_move(items, &under);
    free(toml);
    return result;
}

/* ---- writing ---- */

static void say(FILE *to, const char *key, uint64_t value)
{
    fprintf(to, "%s = %" PRIu64 "\n", key, value);
}

static void say_text(FILE *to, const char *key, const char *value)
{
    fprintf(to, "%s = \"%s\"\n", key, value);
}

static const char *truth(bool on)
{
    return on ? "true" : "false";
}

static void write_model(FILE *to, const struct plan *plan)
{
    const char *name = plan->model.name;
    fprintf(to, "[model]\n");
    for (size_t i = 0; i < NMODELS; i++) {
        size_t n = strlen(models[i].preset);
        bool whole = models[i].flavor != NULL;
        if (strncmp(name, models[i].preset, n) != 0 || (whole && name[n])) continue;
        fprintf(to, "name = \"%s\"\nflavor = \"", models[i].name);
        for (const char *s = whole ? models[i].flavor : name + n; *s; s++)
            fputc(toupper((unsigned char)*s), to);
        fprintf(to, "\"\n");
    }
    bool fp8 = strcmp(plan->strategy.precision->name, "fp8") == 0;
    bool mx = strcmp(plan->strategy.precision->name, "mxfp8") == 0;
    if (fp8 || mx) fprintf(to, "converters = [\"%s\"]\n", fp8 ? "float8" : "mx");
}

static void write_training(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    fprintf(to, "\n[training]\n");
    say(to, "local_batch_size", s->pp > 1 ? s->global_batch / (s->dp ? s->dp : 1) : s->micro_batch);
    say(to, "global_batch_size", s->global_batch);
    say(to, "seq_len", s->seq);
    say_text(to, "mixed_precision_param",
             strcmp(s->precision->name, "fp32") == 0 ? "float32" : "bfloat16");
    say_text(to, "mixed_precision_reduce",
             config_is(plan, "grad-bytes", "2") ? "bfloat16" : "float32");
    if ((s->offload & OFFLOAD_STATES) == OFFLOAD_STATES) fprintf(to, "enable_cpu_offload = true\n");
    fprintf(to, "\n[compile]\nenable = %s\n", truth(config_is(plan, "class", "fused")));
}

static void write_parallelism(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    uint64_t shards = s->zero >= ZERO_2 ? s->shards / s->cp : 1;
    fprintf(to, "\n[parallelism]\n");
    say(to, "data_parallel_replicate_degree", s->dp / (shards ? shards : 1));
    say(to, "data_parallel_shard_degree", shards);
    if (shards > 1)
        say_text(to, "fsdp_reshard_after_forward", s->zero == ZERO_2 ? "never" : "always");
    say(to, "tensor_parallel_degree", s->tp);
    fprintf(to, "enable_async_tensor_parallel = %s\n", truth(config_is(plan, "tp-overlap", "on")));
    say(to, "pipeline_parallel_degree", s->pp);
    if (s->pp > 1) {
        unsigned i = 0;
        while (ours[i] != s->schedule && schedules[i + 1])
            i++;
        say_text(to, "pipeline_parallel_schedule", schedules[i]);
        say(to, "pipeline_parallel_microbatch_size", s->micro_batch);
        if (s->vpp > 1 && s->vpp != USUAL_CHUNKS && plan->model.layers % (s->pp * s->vpp) == 0)
            say(to, "pipeline_parallel_layers_per_stage", plan->model.layers / s->pp / s->vpp);
    }
    if (s->pp > 1 && (s->layout_args.embedding || s->layout_args.loss)) {
        say(to, "pipeline_parallel_first_stage_less_layers", s->layout_args.embedding);
        say(to, "pipeline_parallel_last_stage_less_layers", s->layout_args.loss);
    }
    say(to, "context_parallel_degree", s->cp);
    if (s->cp > 1 && !s->ulysses)
        say_text(to, "context_parallel_rotate_method",
                 rotations[s->framework.cp == CP_GATHER ? 0 : 1]);
    say(to, "expert_parallel_degree", s->ep);
    if (s->etp > 1) say(to, "expert_tensor_parallel_degree", s->etp);
}

static void write(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    write_model(to, plan);
    write_training(to, plan);
    write_parallelism(to, plan);
    fprintf(to, "\n[activation_checkpoint]\nmode = \"%s\"\n",
            s->recompute == RC_NONE   ? "none"
            : s->recompute == RC_FULL ? "full"
                                      : "selective");
    if (s->recompute == RC_SELECTIVE) fprintf(to, "selective_ac_option = \"op\"\n");
    if (strcmp(s->precision->name, "fp8") == 0) {
        fprintf(to, "\n[float8]\nenable_fsdp_float8_all_gather = %s\n",
                truth(config_is(plan, "fp8-params", "on")));
        if (s->fp8_rowwise) say_text(to, "recipe_name", "rowwise");
    }
    fprintf(to, "\n[optimizer]\nname = \"AdamW\"\n");
}

static const char *const beside[] = {NULL};

const struct config_format config_torchtitan = {
    .option = "torchtitan",
    .emit = "torchtitan",
    .framework = "torchtitan",
    .scan = scan,
    .words = words,
    .bytes = sizeof(struct torchtitan),
    .translate = translate,
    .write = write,
    .beside = beside,
    .unmodelled = unmodelled,
    .names_model = true,
    .features_beside = true,
    .inline_text = true,
};
