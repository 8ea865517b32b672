/* SPDX-License-Identifier: Apache-2.0
 * An option without effect does not exist: each option of a strategy and each feature of a
 * framework, changed in a stated case, changes time or memory in the stated direction by at least
 * the stated amount, or (a rule) what is refused. A test fails when one of them has no row here. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/memory.h"
#include "train/plan.h"
#include "train/runner.h"
#include "train/step.h"

/* What a change does. Ratios are with / without the change. */
enum effect {
    TIME,     /* step time per token */
    MEMORY,   /* allocated on the worst stage */
    WARNINGS, /* other sentences of the rules, idem */
    ERRORS,   /* rules that refuse the job: with minus without */
    EVENT,    /* step time per token, by the event engine */
};

static const struct {
    const char *name; /* of the option, or feature */
    const char *base, *with;
    enum effect effect;
    double from, to; /* bounds of the ratio (TIME, EVENT, MEMORY) or difference (ERRORS) */
} rows[] = {
#define H "--topo dgx-h100x2 --strategy "
#define INTERN "--topo dgx-h100x4 --strategy zero1 --framework internevo --seq 2K --global-batch 32"
#define TT "--topo dgx-h100x2 --framework torchtitan --strategy "
#define DDP "--topo dgx-h100x4 --model gpt2 --seq 1K --framework fsdp --zero none --accumulation 1"
#define MOE "--topo dgx-h100x4 --model mixtral-8x7b --strategy "
    {"topo", H "tp8", "--topo dgx-a100x2 --strategy tp8", TIME, 1.5, 3},
    {"nodes", "--topo dgx-h100", "--topo dgx-h100 --nodes 4", TIME, .2, .3},
    {"gpus", "--topo dgx-h100 --gpus 4", "--topo dgx-h100 --gpus 8", TIME, .45, .55},
    {"model", H "tp8", H "tp8 --model llama2-13b --seq 8192", TIME, 1.2, 2.5},
    {"machine-factor", H "tp8", H "tp8 --machine-factor 1.3", TIME, 1.1, 1.3},
    {"strategy", H "tp8dp2", H "tp2dp8", TIME, .4, .9},
    {"tp", H "dp16 --global-batch 128", "--topo dgx-h100x2 --tp 8 --global-batch 128", TIME, 1.2,
     3},
    {"sp", H "tp8dp2", H "tp8dp2 --sp", MEMORY, .5, .9},
    {"pp", H "dp16", "--topo dgx-h100x2 --pp 4", MEMORY, .2, .8},
    {"vpp", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --vpp 4", TIME, .5, .95},
    {"dp", H "tp8pp2", "--topo dgx-h100x2 --tp 8 --dp 2", MEMORY, 1.02, 2},
    {"cp", H "dp16", "--topo dgx-h100x2 --cp 4", MEMORY, .3, .9},
    {"ulysses", "--topo dgx-h100x2 --cp 8 --seq 64K", "--topo dgx-h100x2 --ulysses 8 --seq 64K",
     TIME, 1.0005, 1.5},
    {"ep", MOE "dp32", "--topo dgx-h100x4 --model mixtral-8x7b --ep 8", MEMORY, .1, .5},
    {"etp", MOE "tp4ep2 --sp", MOE "tp4ep2 --etp 4 --sp", MEMORY, .2, .95},
    {"zero", H "dp16", H "dp16 --zero 1", MEMORY, .3, .7},
    {"fsdp-shards", H "fsdp16", "--topo dgx-h100x2 --zero fsdp --fsdp-shards 4", MEMORY, 1.1, 3},
    {"fsdp-replicas", H "fsdp16", "--topo dgx-h100x2 --zero fsdp --fsdp-replicas 4", MEMORY, 1.1,
     3},
    {"cp-comm", "--topo dgx-h100x2 --cp 8 --seq 64K",
     "--topo dgx-h100x2 --cp 8 --seq 64K --cp-comm ulysses", TIME, 1.0005, 1.5},
    {"moe-imbalance", MOE "ep8", MOE "ep8 --moe-imbalance 1.3", MEMORY, 1.01, 1.3},
    {"moe-capacity", MOE "ep8 --moe-imbalance 1.3",
     MOE "ep8 --moe-imbalance 1.3 --moe-capacity 1.1", MEMORY, .8, .99},
    {"cp-comm", H "cp8 --seq 32K", H "cp8 --seq 32K --cp-comm gather", EVENT, 1.002, 1.2},
    {"moe-imbalance", MOE "ep8", MOE "ep8 --moe-imbalance 1.3", EVENT, 1.05, 1.45},
    {"moe-capacity", MOE "ep8 --moe-imbalance 1.3",
     MOE "ep8 --moe-imbalance 1.3 --moe-capacity 1.1", EVENT, .7, .97},
    {"packed", H "dp16", H "dp16 --packed 1K", EVENT, .6, .95},
    {"offload", H "dp16", H "dp16 --offload optimizer", EVENT, 1.05, 3},
    {"offload", H "tp8dp2 --sp", H "tp8dp2 --sp --offload activations", EVENT, 1.005, 2},
    {"bucket-size", DDP, DDP " --bucket-size 1M", EVENT, 1.002, 1.5},
    {"prefetch", TT "fsdp --seq 1K", TT "fsdp --seq 1K --prefetch 2", EVENT, .9, .999},
    {"tp-tiles", H "tp8dp2 --sp --feature tp-overlap=on --tp-tiles 1",
     H "tp8dp2 --sp --feature tp-overlap=on --tp-tiles 2", EVENT, .7, .99},
    {"schedule", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --schedule dualpipe", EVENT,
     .5, .95},
    {"schedule", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --schedule dualpipev", EVENT,
     .6, .97},
    {"offload", H "dp16", H "dp16 --offload optimizer", MEMORY, .3, .6},
    {"offload", H "fsdp --framework deepspeed",
     H "fsdp --framework deepspeed --offload weights,optimizer", MEMORY, .5, .95},
    {"offload", H "tp8dp2 --sp", H "tp8dp2 --sp --offload activations", MEMORY, .3, .95},
    {"fsdp-shards", H "zero1", H "zero1 --fsdp-shards 4", MEMORY, 1.05, 2},
    {"order", H "tp8dp2", H "tp8dp2 --order dp,tp", TIME, 1.15, 2.5},
    {"schedule", H "pp8 --global-batch 16", H "pp8 --global-batch 16 --schedule zb", TIME, .5, .9},
    {"schedule", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --schedule gpipe", MEMORY, 1.2,
     9},
    {"schedule", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --schedule zb-2p", MEMORY, 1.1,
     3},
    {"schedule", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --schedule dualpipe", MEMORY,
     1.3, 3},
    {"schedule", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --schedule dualpipev", MEMORY,
     1.02, 3},
    {"split", H "pp8 --model llama3-405b", H "pp8 --model llama3-405b --split embedding,loss",
     ERRORS, -9, -1},
    {"layers", H "pp4", H "pp4 --layers 5,9,9,9", MEMORY, .5, .97},
    {"layers-per-chunk", H "pp4 --global-batch 32", H "pp4 --global-batch 32 --layers-per-chunk 2",
     TIME, .6, .97},
    {"first-stage-layers", H "pp4", H "pp4 --first-stage-layers 5", MEMORY, .5, .97},
    {"last-stage-layers", H "pp4", H "pp4 --last-stage-layers 2", TIME, 1.01, 1.5},
    {"micro-batch", H "tp8dp2", H "tp8dp2 --micro-batch 4", TIME, .5, .99},
    {"global-batch", H "pp8 --global-batch 16", H "pp8 --global-batch 128", TIME, .4, .8},
    {"accumulation", H "pp8", H "pp8 --accumulation 8", TIME, 1.1, 2.5},
    {"seq", H "tp8dp2", H "tp8dp2 --seq 32K", TIME, 1.05, 3},
    {"precision", H "tp2dp8", H "tp2dp8 --precision fp8", TIME, .5, .9},
    {"precision", H "tp2dp8", H "tp2dp8 --precision fp32", TIME, 3, 20},
    {"precision", H "tp2dp8", H "tp2dp8 --precision tf32", TIME, 1.3, 3},
    {"precision", "--topo dgx-b200 --precision mxfp8", "--topo dgx-b200 --precision nvfp4", TIME,
     .5, .98},
    {"recipe", H "tp2dp8 --precision fp8", H "tp2dp8 --precision fp8 --recipe rowwise", TIME, 1.2,
     3},
    {"optimizer", H "dp16", H "dp16 --optimizer adam8bit", MEMORY, .5, .95},
    {"optimizer", H "dp16", H "dp16 --optimizer sgd", MEMORY, .4, .9},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute full", TIME, 1.15, 1.4},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute full", MEMORY, .3, .9},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute full:16", TIME, 1.05, 1.25},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute core_attn", TIME, 1.01, 1.2},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute mlp", TIME, 1.05, 1.3},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute norm", TIME, 1.002, 1.1},
    {"recompute", H "tp2dp8", H "tp2dp8 --recompute ops", MEMORY, .4, .95},
    {"recompute", "--topo dgx-h100x32 --model deepseek-v3 --strategy pp8ep32",
     "--topo dgx-h100x32 --model deepseek-v3 --strategy pp8ep32 --recompute mla_up", TIME, 1.002,
     1.1},
    {"lora", H "dp16", H "dp16 --lora 16", TIME, .5, .85},
    {"lora", H "dp16", H "dp16 --lora 16", MEMORY, .1, .6},
    {"qlora", H "dp16 --lora 16", H "dp16 --lora 16 --qlora", MEMORY, .3, .9},
    {"framework", H "dp16 --framework megatron", H "dp16 --framework megatron-2022", TIME, 1.1, 4},
    {"feature", H "tp8dp2 --sp", H "tp8dp2 --sp --feature tp-overlap=on", TIME, .7, .98},
    /* features */
    {"class", H "tp2dp8", H "tp2dp8 --feature class=eager", TIME, 1.02, 3},
    {"attention", H "tp2dp8", H "tp2dp8 --feature attention=fa2", TIME, 1.02, 1.5},
    {"attention", H "tp2dp8", H "tp2dp8 --feature attention=unfused", MEMORY, 1.5, 20},
    {"graphs", H "tp8dp2 --seq 2K", H "tp8dp2 --seq 2K --feature graphs=full", TIME, .3, .95},
    {"zero", H "dp16 --framework megatron", H "dp16 --framework megatron --feature zero=1", MEMORY,
     .3, .8},
    {"grad-bytes", "--topo dgx-h100x32 --strategy tp8 --model llama3-70b --global-batch 256",
     "--topo dgx-h100x32 --strategy tp8 --model llama3-70b --global-batch 256 --feature "
     "grad-bytes=2",
     TIME, .8, .999},
    {"grad-store-bytes", H "dp16", H "dp16 --feature grad-store-bytes=2", MEMORY, .5, .97},
    {"reduce-bytes", H "fsdp --framework torchtitan --seq 1K",
     H "fsdp --framework torchtitan --seq 1K --feature reduce-bytes=2", TIME, .5, .99},
    {"master-weights", H "dp16", H "dp16 --feature master-weights=off", MEMORY, .3, .9},
    {"shard-copy", H "dp16zero1 --precision fp32",
     H "dp16zero1 --precision fp32 --feature shard-copy=on", MEMORY, 1.001, 1.1},
    {"tp-overlap", H "tp8dp2 --sp", H "tp8dp2 --sp --feature tp-overlap=on", TIME, .7, .98},
    {"dp-overlap", "--topo dgx-h100x32 --strategy tp8 --global-batch 64",
     "--topo dgx-h100x32 --strategy tp8 --global-batch 64 --feature dp-overlap=off", TIME, 1.01, 3},
    {"p2p-overlap", H "pp8 --global-batch 64", H "pp8 --global-batch 64 --feature p2p-overlap=off",
     TIME, 1.01, 2},
    {"ep-overlap", MOE "ep8", MOE "ep8 --feature ep-overlap=on", TIME, .7, .99},
    {"ep-dedup", "--topo dgx-h100x4 --model qwen3-30b-a3b --strategy ep32",
     "--topo dgx-h100x4 --model qwen3-30b-a3b --strategy ep32 --feature ep-dedup=on", TIME, .5,
     .98},
    {"scatter-gather", H "tp4pp4", H "tp4pp4 --feature scatter-gather=on", TIME, .7, .998},
    {"op-recompute", H "tp2dp8 --recompute selective",
     H "tp2dp8 --recompute selective --feature op-recompute=on", MEMORY, .4, .95},
    {"chunked-loss", "--topo dgx-h100 --strategy fsdp --seq 32K --recompute full",
     "--topo dgx-h100 --strategy fsdp --seq 32K --recompute full --feature chunked-loss=on", MEMORY,
     .5, .98},
    {"dropout", H "tp2dp8", H "tp2dp8 --feature dropout=on", MEMORY, 1.01, 1.3},
    {"fp8-params", "--topo dgx-h100x32 --strategy fsdp --precision fp8 --seq 1K --global-batch 256",
     "--topo dgx-h100x32 --strategy fsdp --precision fp8 --seq 1K --global-batch 256 --feature "
     "fp8-params=on",
     TIME, .5, .99},
    {"logit-bytes", "--topo dgx-h100 --strategy fsdp --seq 32K --recompute full",
     "--topo dgx-h100 --strategy fsdp --seq 32K --recompute full --feature logit-bytes=2", MEMORY,
     .4, .98},
    {"vocab-multiple", H "tp8 --model gpt2 --seq 1K --micro-batch 8",
     H "tp8 --model gpt2 --seq 1K --micro-batch 8 --feature vocab-multiple=8192", TIME, 1.0005,
     1.5},
    {"bucket-bytes", DDP, DDP " --feature bucket-bytes=1e6", EVENT, 1.002, 1.5},
    {"first-bucket-bytes", DDP, DDP " --feature first-bucket-bytes=26214400", EVENT, .98, .999},
    {"bucket-params", H "dp16", H "dp16 --feature bucket-params=900000000", EVENT, 1.0005, 1.05},
    {"bucket-params-per-rank", H "dp16", H "dp16 --feature bucket-params-per-rank=90000000", EVENT,
     1.0003, 1.05},
    {"gather-overlap", H "zero1 --global-batch 16",
     H "zero1 --global-batch 16 --feature gather-overlap=off", EVENT, 1.01, 1.3},
    {"reduce-each", H "zero2", H "zero2 --feature reduce-each=off", EVENT, .9, .998},
    {"prefetch", TT "fsdp --seq 1K", TT "fsdp --seq 1K --feature prefetch=2", EVENT, .9, .999},
    {"prefetch-params", TT "fsdp --seq 1K", TT "fsdp --seq 1K --feature prefetch-params=900000000",
     EVENT, .9, .999},
    {"tp-tiles", H "tp8dp2 --sp --feature tp-overlap=on,tp-tiles=1",
     H "tp8dp2 --sp --feature tp-overlap=on,tp-tiles=2", EVENT, .7, .99},
    {"gather-tensors", H "fsdp --seq 1K", H "fsdp --seq 1K --feature gather-tensors=on", EVENT,
     1.001, 2},
    {"reduce-copy-bytes", TT "fsdp", TT "fsdp --feature reduce-copy-bytes=18", EVENT, 1.005, 1.2},
    {"piece-kernels", H "fsdp --seq 1K", H "fsdp --seq 1K --feature piece-kernels=4", EVENT, 1.05,
     20},
    {"gather-sync", H "fsdp --seq 1K --feature piece-kernels=1",
     H "fsdp --seq 1K --feature piece-kernels=1,gather-sync=on", EVENT, 1.002, 3},
    {"accumulate-bytes", H "tp8dp2", H "tp8dp2 --feature accumulate-bytes=6", EVENT, 1.005, 1.1},
    {"owner-sends", INTERN " --feature owner-sends=off", INTERN, EVENT, 1.001, 2},
    {"sum-beside", H "tp8dp2", H "tp8dp2 --feature sum-beside=off", EVENT, 1.005, 1.3},
    {"cp-comm", H "cp8 --seq 32K", H "cp8 --seq 32K --feature cp-comm=gather", EVENT, 1.002, 1.2},
    /* features that are rules */
    {"kv", H "tp16 --model llama3-8b", H "tp16 --model llama3-8b --feature kv=multiple", ERRORS, 1,
     1},
    {"uneven", "--topo dgx-h100 --gpus 5 --strategy pp5",
     "--topo dgx-h100 --gpus 5 --strategy pp5 --feature uneven=share", ERRORS, -1, -1},
    {"micro-batches", "--topo dgx-h100 --strategy pp8vpp2 --global-batch 12",
     "--topo dgx-h100 --strategy pp8vpp2 --global-batch 12 --feature micro-batches=rounds", ERRORS,
     -1, -1},
    {"tp-with-sp", H "tp8dp2 --feature sum-beside=off",
     H "tp8dp2 --feature sum-beside=off,tp-with-sp=on", EVENT, .8, .997},
    {"moe-needs-sp", MOE "tp2ep8", MOE "tp2ep8 --feature moe-needs-sp=off", ERRORS, -1, -1},
    {"experts", MOE "tp4ep2 --sp", MOE "tp4ep2 --sp --feature experts=in-data", ERRORS, 1, 1},
    {"batch-remainder", H "dp16 --micro-batch 3 --global-batch 64",
     H "dp16 --micro-batch 3 --global-batch 64 --feature batch-remainder=on", ERRORS, -1, -1},
    {"schedules", TT "pp4 --schedule zb", TT "pp4 --schedule zb --feature schedules=1f1b", WARNINGS,
     1, 1},
    {"most-zero", H "zero2", H "zero2 --feature most-zero=1", ERRORS, 1, 1},
    {"zero-with-pp", H "pp2zero2", H "pp2zero2 --feature zero-with-pp=1", ERRORS, 1, 1},
    {"fsdp-alone", "--topo dgx-h100 --strategy pp2fsdp",
     "--topo dgx-h100 --strategy pp2fsdp --feature fsdp-alone=off", ERRORS, -1, -1},
};
enum { NROWS = sizeof rows / sizeof *rows };

struct figures {
    double time, memory; /* seconds per token; bytes */
    size_t errors, warnings;
};

static struct tables tables;

/* Seconds per token by the event engine. */
static double event_time(const struct plan *plan)
{
    struct err err = ERR_INIT;
    struct runner_point point = {&plan->job, &plan->topo};
    struct runner *runner = runner_new(ENGINE_EVENT, &point, 1, &err);
    struct step step = {0};
    cr_assert(runner, "%s", err.text);
    struct runner_ask whole = {0};
    int bad = runner_steps(runner, &tables.constants[ENGINE_EVENT].values, &whole, &step, &err);
    cr_assert_eq(bad, 0, "%s", err.text);
    runner_free(runner);
    return 1 / step.tokens_per_s;
}

static struct figures figures_of(const char *line, enum effect effect)
{
    static const struct opts_row none[] = {{0}};
    struct plan_args args = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    struct plan plan;
    struct opts_row *options = plan_options(0, none);
    char *text = mem_strdup(line), *save = NULL, *argv[64] = {"x"};
    int argc = 1;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    cr_assert_eq(opts_parse(&opts, options, &args, argc, argv, &err), 0, "%s", err.text);
    cr_assert_eq(plan_make(&plan, &tables, &args, &err), 0, "%s: %s", line, err.text);
    const struct constants *c = &tables.constants[ENGINE_CLOSED].values;
    struct step step = step_predict(&plan.job, c);
    struct figures f = {effect == EVENT ? event_time(&plan) : 1 / step.tokens_per_s,
                        memory_predict(&plan.job, c).allocated, plan.rules.errors,
                        plan.rules.warnings};
    plan_release(&plan);
    opts_release(&opts);
    free(options);
    free(text);
    return f;
}

static void read_tables(void)
{
    struct err err = ERR_INIT;
    cr_assert_eq(tables_read(&tables, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
}

static void release_tables(void)
{
    tables_release(&tables);
}

Test(effects, every_change_changes, .init = read_tables, .fini = release_tables)
{
    for (size_t i = 0; i < NROWS; i++) {
        struct figures a = figures_of(rows[i].base, rows[i].effect);
        struct figures b = figures_of(rows[i].with, rows[i].effect);
        double got = rows[i].effect == MEMORY     ? b.memory / a.memory
                     : rows[i].effect == WARNINGS ? (double)b.warnings - (double)a.warnings
                     : rows[i].effect == ERRORS   ? (double)b.errors - (double)a.errors
                                                  : b.time / a.time;
        cr_expect(got >= rows[i].from && got <= rows[i].to, "%s: %.5f, expected %g to %g: %s",
                  rows[i].name, got, rows[i].from, rows[i].to, rows[i].with);
    }
}

static bool has_row(const char *name)
{
    for (size_t i = 0; i < NROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) return true;
    }
    return false;
}

Test(effects, every_option_has_a_row)
{
    static const struct opts_row none[] = {{0}};
    struct opts_row *options = plan_options(0, none);
    for (size_t i = 0; options[i].name; i++) {
        cr_expect(has_row(options[i].name), "option --%s has no row", options[i].name);
    }
    for (size_t i = 0; framework_feature_name(i); i++) {
        cr_expect(has_row(framework_feature_name(i)), "feature %s has no row",
                  framework_feature_name(i));
    }
    free(options);
}
