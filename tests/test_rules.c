/* SPDX-License-Identifier: Apache-2.0
 * What frameworks demand: every published pass/fail pair, with both numbers and legal values in the
 * sentence, and that all violations of one strategy are reported at once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/rules.h"

static struct accel_table accels;
static struct framework_table frameworks;

static void setup(void)
{
    struct err err = ERR_INIT;
    accel_read(&accels, NULL, &err);
    framework_read(&frameworks, NULL, &err);
    cr_assert_null(err.text, "%s", err.text);
}

static void teardown(void)
{
    accel_release(&accels);
    framework_release(&frameworks);
}

TestSuite(rules, .init = setup, .fini = teardown);

/* A job: model by hand, GPUs of a type, a command line. */
struct trial {
    struct model model;
    struct topo topo;
    struct strategy strategy;
    struct rules_report report;
    struct opts opts;
    char *line, *argv[64];
    struct strategy_args args;
};

static void begin(struct trial *t, const struct model *shape, const char *accel, uint64_t gpus,
                  const char *line)
{
    struct err err = ERR_INIT;
    *t = (struct trial){.model = *shape, .line = mem_strdup(line)};
    cr_assert_eq(model_build(&t->model, &err), 0, "%s", err.text);
    topo_usual(&t->topo, accel_find(&accels, accel, &err), gpus);
    int argc = 1;
    t->argv[0] = "test";
    for (char *word = strtok(t->line, " "); word; word = strtok(NULL, " "))
        t->argv[argc++] = word;
    int bad = opts_parse(&t->opts, strategy_rows, &t->args, argc, t->argv, &err);
    cr_assert_eq(bad, 0, "%s", err.text);
    bad = strategy_make(&t->strategy, &t->args, &t->topo, &t->model, &frameworks, &err);
    cr_assert_eq(bad, 0, "%s: %s", line, err.text);
    rules_check(&t->report, &t->strategy, &t->model, &t->topo);
}

static void end(struct trial *t)
{
    rules_release(&t->report);
    strategy_release(&t->strategy);
    topo_release(&t->topo);
    model_release(&t->model);
    opts_release(&t->opts);
    free(t->line);
}

/* Shapes that the cases name; the rest of each is whatever is legal. */
#define SHAPE(L, a, kv, V, ...)                                                                    \
    {                                                                                              \
        .name = NULL, .family = "", .layers = (L), .hidden = 128 * (a), .heads = (a),              \
        .kv_heads = (kv), .head_dim = 128, .vocab = (V), .ffn = 9 * 5 * 7 * 11 * 13 * 128,         \
        .gated = true, __VA_ARGS__                                                                 \
    }
static const struct model llama8 = SHAPE(32, 32, 8, 128256, .max_positions = 8192);
static const struct model qwen7 = SHAPE(28, 28, 4, 152064, .max_positions = 0);
static const struct model qwen14 = SHAPE(48, 40, 8, 152064, .max_positions = 0);
static const struct model heads40 = SHAPE(40, 40, 40, 32000, .max_positions = 0);
static const struct model heads52 = SHAPE(40, 52, 52, 32000, .max_positions = 0);
static const struct model heads48 = SHAPE(60, 48, 48, 32000, .max_positions = 0);
static const struct model heads720 = SHAPE(40, 720, 720, 32000, .max_positions = 0);
static const struct model kv2 = SHAPE(40, 16, 2, 32000, .max_positions = 0);
static const struct model kv3 = SHAPE(40, 24, 3, 32000, .max_positions = 0);
static const struct model kv4 = SHAPE(40, 32, 4, 32000, .max_positions = 0);
static const struct model layers30 = SHAPE(30, 32, 32, 32000, .max_positions = 0);
static const struct model layers40 = SHAPE(40, 32, 32, 32000, .max_positions = 0);
static const struct model layers20 = SHAPE(20, 32, 32, 32000, .max_positions = 0);
static const struct model layers60 = SHAPE(60, 32, 32, 32000, .max_positions = 0);
static const struct model layers48 = SHAPE(48, 24, 24, 32000, .max_positions = 0);
static const struct model learned = SHAPE(24, 16, 16, 50257, .positions = 1024);
static const struct model moe8 =
    SHAPE(32, 32, 8, 32000, .experts = 8, .experts_per_token = 2, .expert_ffn = 14336);
static const struct model moe24 =
    SHAPE(32, 32, 8, 32000, .experts = 24, .experts_per_token = 2, .expert_ffn = 14336);
static const struct model moe60 =
    SHAPE(24, 16, 16, 151936, .experts = 60, .experts_per_token = 4, .expert_ffn = 1408);

/* rule NULL: legal; else the error with this name, whose sentence holds every part of `says`
 * (separated by |). "~name" is a warning of that name and no error. */
static const struct pair {
    const char *label;
    const struct model *model;
    uint64_t gpus;
    const char *line, *rule, *says;
} pairs[] = {
    /* the grid */
    {"B01", &llama8, 8, "-s tp2pp2 --global-batch 8", NULL, "dp2"},
    {"B01", &moe24, 8, "-s etp2ep3pp2 --global-batch 8", "expert-mesh", "8 GPUs|= 12|4, 8"},
    {"B01", &llama8, 12, "-s tp8 --global-batch 8", "world-size", "12 GPUs|= 8|8 or 16|4, 6, 12"},
    {"B01", &llama8, 64, "-s tp8pp4dp4 --global-batch 8", "world-size", "= 128 ranks|64 GPUs|dp 2"},
    {"B01", &llama8, 64, "-s tp4pp2dp4 --global-batch 8", "world-size", "= 32 ranks|64 GPUs|dp 8"},
    {"B02", &moe8, 16, "-s ep8 --global-batch 16 --micro-batch 1", NULL, "dp16ep8"},
    {"B02", &moe8, 16, "-s ep8 --global-batch 16 --micro-batch 2", "global-batch",
     "16 sequences|micro-batch 2 x dp 16 = 32|nearest: 32"},
    /* heads */
    {"B03", &heads40, 3, "-s tp3 --global-batch 8", "heads-tp", "40 heads|tp 3|1, 2, 4, 5, 8, 10"},
    {"B03", &qwen7, 8, "-s tp8 --global-batch 8", "heads-tp", "28 heads|tp 8|1, 2, 4, 7, 14, 28"},
    {"B03", &heads52, 8, "-s tp8 --global-batch 8", "heads-tp", "52 heads|tp 8|1, 2, 4, 13"},
    {"B03", &heads40, 8, "-s tp8 --global-batch 8", NULL, ""},
    {"B04", &kv2, 2, "-s tp2 --global-batch 8 --framework torchtitan", NULL, ""},
    {"B04", &kv2, 4, "-s tp4 --global-batch 8 --framework torchtitan", "kv-tp",
     "2 key/value heads|tp 4|legal tp: 1, 2"},
    {"B04", &kv3, 8, "-s tp8 --global-batch 8", "kv-tp", "3 key/value heads|tp 8|1, 3"},
    {"B04", &kv3, 8, "-s tp8 --global-batch 8 --framework torchtitan", "kv-tp", "3 key|tp 8|1, 3"},
    {"B04", &kv4, 8, "-s tp8 --global-batch 8", "~kv-tp", "4 key/value heads|tp 8|2 times"},
    {"B04", &kv4, 8, "-s tp8 --global-batch 8 --framework megatron-0.15", "kv-tp", "4 key|tp 8|4"},
    {"B04", &kv4, 8, "-s tp8 --global-batch 8 --framework torchtitan", "kv-tp", "4 key|tp 8|4"},
    /* sequence */
    {"B06", &qwen14, 8, "-s ulysses8 --global-batch 8", NULL, ""},
    {"B06", &qwen14, 16, "-s ulysses16 --global-batch 8", "ulysses-heads",
     "40 heads|ulysses 16|1, 2, 4, 5, 8, 10, 20, 40"},
    {"B06", &qwen14, 40, "-s ulysses40 --global-batch 8 --seq 8000", "~ulysses-heads",
     "8 key|ulysses 40|5 times"},
    {"B06", &heads48, 16, "-s ulysses16 --global-batch 8", NULL, ""},
    {"B06", &heads48, 64, "-s ulysses64 --global-batch 8", "ulysses-heads",
     "48 heads|64|16, 24, 48"},
    {"B06", &qwen7, 8, "-s ulysses8 --global-batch 8", "ulysses-heads", "28 heads|8|4, 7, 14"},
    {"B07", &llama8, 2, "-s ulysses2 --seq 9 --global-batch 8", "sequence",
     "9 tokens|ulysses = 2|1 would be lost|8 or 10"},
    {"B07", &llama8, 2, "-s ulysses2 --seq 8 --global-batch 8", NULL, ""},
    {"B08", &llama8, 2, "-s cp2 --seq 7 --global-batch 8", "sequence",
     "7 tokens|2 x cp = 4|3 would be lost|4 or 8"},
    {"B08", &llama8, 2, "-s cp2 --seq 8 --global-batch 8", NULL, ""},
    {"B08", &llama8, 3, "-s cp3 --seq 8192 --global-batch 8", "sequence", "8192 tokens|= 6|8196"},
    {"B08", &llama8, 3, "-s cp3 --seq 8190 --global-batch 8", NULL, ""},
    {"B09", &llama8, 8, "-s tp4cp2sp --seq 4104 --global-batch 8", NULL, ""},
    {"B09", &llama8, 8, "-s tp4cp2sp --seq 4100 --global-batch 8", "sequence",
     "4100|= 8|4096 or 4104"},
    {"B09", &llama8, 4, "-s cp4 --seq 4104 --global-batch 8", NULL, ""},
    {"B09", &llama8, 4, "-s cp4 --seq 4100 --global-batch 8", "sequence", "= 8"},
    {"B09", &kv3, 6, "-s tp3cp2sp --seq 4104 --global-batch 8", NULL, ""},
    {"B09", &kv3, 6, "-s tp3cp2sp --seq 4102 --global-batch 8", "sequence", "= 12|4092 or 4104"},
    {"B09", &llama8, 16, "-s tp8cp2sp --seq 4100 --global-batch 8", "sequence", "= 16|4112"},
    {"B10", &llama8, 8, "-s sp --global-batch 8", "~sequence-parallel", "tp 1"},
    {"B10", &moe8, 8, "-s tp2 --global-batch 8", "sequence-parallel", "experts|tp 2|add sp"},
    {"B10", &moe8, 8, "-s tp2sp --global-batch 8", NULL, ""},
    {"B10", &llama8, 8, "-s tp2 --global-batch 8", NULL, ""},
    /* batch */
    {"B11", &llama8, 16, "-s tp4 --micro-batch 5 --global-batch 64", "global-batch",
     "64 sequences|5 x dp 4 = 20|60 or 80"},
    {"B11", &llama8, 16, "-s tp4 --micro-batch 5 --global-batch 128", "global-batch", "120 or 140"},
    {"B11", &llama8, 16, "-s tp4 --micro-batch 5 --global-batch 256", "global-batch", "240 or 260"},
    {"B11", &llama8, 16, "-s tp4 --micro-batch 5 --global-batch 120", NULL, ""},
    {"B11", &llama8, 8, "-s dp8 --micro-batch 2 --global-batch 24", "global-batch",
     "= 16|16 or 32"},
    {"B12", &llama8, 1, "--micro-batch 2 --accumulation 1 --global-batch 8", "batch-triangle",
     "batch 8|micro-batch 2 x accumulation 1 x dp 1 = 2|launcher"},
    {"B12", &llama8, 1, "--micro-batch 4 --accumulation 8 --global-batch 64", "batch-triangle",
     "= 32"},
    {"B12", &llama8, 1, "--micro-batch 1 --accumulation 1 --global-batch 16", "batch-triangle",
     "= 1"},
    {"B12", &llama8, 8, "--micro-batch 2 --accumulation 4 --global-batch 64", NULL, ""},
    /* layers */
    {"B14", &llama8, 4, "-s pp4 --layers-per-chunk 2 --global-batch 8", NULL, "vpp4"},
    {"B14", &llama8, 4, "-s pp4 --layers-per-chunk 3 --global-batch 8", "layers-per-chunk",
     "32 layers|pp 4 x 3|= 12|1, 2, 4, 8"},
    {"B14", &llama8, 2, "-s pp2vpp2 --global-batch 8 --feature p2p-overlap=off", "interleaving",
     "vpp 2|pp 3|pp is 2|p2p-overlap=on"},
    {"B14", &llama8, 2, "-s pp2vpp2 --global-batch 8", NULL, ""},
    {"B14", &layers30, 4, "-s pp4 --split embedding,loss --global-batch 8", NULL, ""},
    {"B14", &layers30, 4, "-s pp4 --layers 7,8,8,7 --global-batch 8", NULL, ""},
    {"B14", &layers30, 4, "-s pp4 --layers 7,8,8,8 --global-batch 8", "layers-list",
     "31|30 layers"},
    {"B14", &layers30, 4, "-s pp4 --layers 15,15 --global-batch 8", "layers-list", "2 chunks|= 4"},
    {"B14", &llama8, 8, "-s vpp2 --global-batch 8", "interleaving", "pp 2|pp is 1"},
    {"B15a", &layers30, 4, "-s pp4 --global-batch 8", "layers", "30 layers|pp 4|28 would be built"},
    {"B15b", &layers40, 8, "-s pp8 --layers-per-chunk 2 --global-batch 8", "layers-per-chunk",
     "40 layers|= 16|32 would be built|1, 5"},
    {"B15c", &layers20, 1, "--last-stage-layers 7 --global-batch 8", "stage-ends",
     "7 would be built|has 20"},
    {"B17", &layers60, 8, "-s pp8 --global-batch 8", "layers",
     "60 layers|pp 8|56 would be built|5, 6, 10|--layers 4,8,8,8,8,8,8,8"},
    {"B17", &layers60, 8, "-s pp8 --layers 4,8,8,8,8,8,8,8 --global-batch 8", NULL, ""},
    {"B17", &layers60, 8, "-s pp8 --global-batch 8 --framework torchtitan", NULL, ""},
    {"B17", &layers60, 8, "-s pp8 --first-stage-layers 4 --global-batch 8", NULL, ""},
    {"B17", &layers60, 8, "-s pp8 --first-stage-layers 5 --global-batch 8", "stage-ends",
     "leave 55"},
    /* micro-batches */
    {"B19", &layers48, 6, "-s pp6vpp2 --global-batch 3", "micro-batches",
     "pp 6|at most all|are 3|6"},
    {"B19", &layers48, 6, "-s pp6 --global-batch 3 --framework torchtitan", "micro-batches",
     "at least pp 6|are 3|global batch 6"},
    {"B19", &llama8, 4,
     "-s pp4vpp2 --global-batch 10 --framework torchtitan --feature p2p-overlap=on", NULL, ""},
    {"B19", &llama8, 4, "-s pp4vpp2 --global-batch 3 --framework torchtitan", "~micro-batches",
     "3 micro-batches|4 stages|3/6"},
    {"B19", &llama8, 4, "-s pp4vpp2 --global-batch 10", "micro-batches", "pp 4|are 10|8 or 12"},
    {"B19", &llama8, 4, "-s pp4vpp2 --global-batch 11 --framework torchtitan", "micro-batches",
     "11 micro|= 2 rounds|10 or 12"},
    {"A14", &layers60, 12, "-s pp12 --global-batch 1", "~micro-batches", "11/12 of the pipeline"},
    /* schedules of two ways */
    {"two ways", &llama8, 4, "-s pp4 --schedule dualpipe --global-batch 8", "~schedule",
     "megatron has no schedule dualpipe"},
    {"two ways", &llama8, 4,
     "-s pp4 --schedule dualpipe --global-batch 8 --feature schedules=zero-bubble", NULL, "pp4"},
    {"two ways", &llama8, 4, "-s pp4 --schedule dualpipe --global-batch 6", "schedule",
     "dualpipe on 4 ranks|at least 8|6 are given|nearest: 8"},
    {"two ways", &llama8, 4, "-s pp4 --schedule dualpipe --global-batch 9", "schedule",
     "even number|9 are given|8 or 10"},
    {"two ways", &layers60, 3, "-s pp3 --schedule dualpipe --global-batch 12", "schedule",
     "even number of ranks|3 are given|2 or 4"},
    {"two ways", &layers60, 3, "-s pp3 --schedule dualpipev --global-batch 7", "~schedule",
     "megatron has no schedule dualpipev"},
    {"two ways", &layers60, 3, "-s pp3 --schedule interleaved --vpp 2 --global-batch 6", NULL,
     "pp3vpp2"},
    {"two ways", &layers60, 3, "-s pp3 --schedule dualpipev --global-batch 5", "schedule",
     "dualpipev on 3 ranks|at least 6|5 are given"},
    {"two ways", &llama8, 4, "-s pp4vpp2 --schedule dualpipe --global-batch 8", "schedule",
     "dualpipe|2"},
    /* load of experts, packed sequences */
    {"load", &moe8, 8, "-s ep4 --moe-imbalance 1.3 --moe-capacity 1.1 --global-batch 8", NULL, ""},
    {"load", &moe8, 8, "-s ep4 --moe-imbalance 5 --global-batch 8", "expert-load",
     "moe-imbalance 5|ep 4|nearest: 4"},
    {"load", &llama8, 8, "--moe-imbalance 1.3 --global-batch 8", "~no-effect",
     "moe-imbalance|no experts"},
    {"load", &llama8, 8, "--moe-capacity 1.3 --global-batch 8", "~no-effect",
     "moe-capacity|no experts"},
    {"idle", &llama8, 8, "-s tp2pp2 --prefetch 2 --global-batch 8", "~no-effect", "prefetch"},
    {"idle", &llama8, 8, "-s fsdp --prefetch 2 --global-batch 8", NULL, ""},
    {"idle", &llama8, 8, "--cp-comm ring --global-batch 8", "~no-effect", "cp-comm|cp is 1"},
    {"idle", &llama8, 8, "-s cp2 --cp-comm ring --global-batch 8", NULL, ""},
    {"idle", &llama8, 8, "-s tp2sp --tp-tiles 4 --global-batch 8", "~no-effect", "tp-overlap"},
    {"idle", &llama8, 8, "-s tp2sp --tp-tiles 4 --feature tp-overlap=on --global-batch 8", NULL,
     ""},
    {"idle", &llama8, 8, "-s tp8 --bucket-size 1M --global-batch 8", "~no-effect", "bucket-size"},
    {"idle", &llama8, 8, "-s dp8 --schedule zb --global-batch 8", "~no-effect", "schedule|pp is 1"},
    /* what sharding goes with a pipeline */
    {"zero", &llama8, 8, "-s pp2zero2 --framework deepspeed --global-batch 8", "zero-level",
     "zero2|deepspeed|pp is 2|nearest: zero1"},
    {"zero", &llama8, 8, "-s pp2zero1 --framework deepspeed --global-batch 8", NULL, ""},
    {"zero", &llama8, 8, "-s zero3 --framework deepspeed --global-batch 8", NULL, ""},
    {"zero", &llama8, 8, "-s zero2 --framework nanotron --global-batch 8", "zero-level",
     "zero2|nanotron|nearest: zero1"},
    {"zero", &llama8, 8, "-s pp2fsdp --framework torchtitan --global-batch 8", NULL, ""},
    {"load", &moe8, 8, "-s ep4 --moe-capacity .5 --global-batch 8", "~expert-load", "0.5|50 %"},
    {"packed", &llama8, 8, "--packed 8K --seq 8K --global-batch 8", NULL, ""},
    {"packed", &llama8, 8, "--packed 8K --seq 4K --global-batch 8", "packed",
     "8192 tokens|4096|up to 4096"},
    /* experts */
    {"B20", &moe8, 3, "-s ep3 --global-batch 6", "experts", "8 experts|ep 3|1, 2, 4, 8"},
    {"B20", &moe8, 8, "-s tp2dp4ep8sp --global-batch 8 --framework torchtitan", NULL, ""},
    {"B20", &moe24, 8, "-s tp2dp4ep12sp --global-batch 8 --framework torchtitan", "experts-in-data",
     "ep 12|= 8|1, 2, 4, 8"},
    {"B20", &moe8, 8, "-s tp4dp2ep2sp --global-batch 8 --framework torchtitan", "experts-in-data",
     "tp 4|it is 2|ep 4"},
    {"B20", &llama8, 8, "-s ep2 --global-batch 8", "experts", "ep 2|has 0"},
    {"B20", &moe8, 8, "-s ep2 --precision fp16 --global-batch 8", "experts", "ep 2|fp16|bf16"},
    {"F17", &moe60, 8, "-s ep8 --global-batch 8", "experts",
     "60 experts|ep 8|1, 2, 3, 4, 5, 6, 10, 12"},
    /* FSDP2 with the rest */
    {"B23", &llama8, 8, "-s fsdppp2 --global-batch 8", "fsdp-alone", "pipeline|pp is 2|pp 1"},
    {"B23", &moe8, 8, "-s fsdpep2 --global-batch 8", "fsdp-alone", "ep is 2"},
    {"B23", &llama8, 8, "-s fsdp --global-batch 8", NULL, ""},
    {"B23", &llama8, 8, "-s fsdppp2 --global-batch 8 --framework torchtitan", NULL, ""},
    {"B23", &llama8, 8, "-s tp2 --feature tp-overlap=on --global-batch 8", "sequence-parallel",
     "overlap|tp 2|add sp"},
    {"B23", &llama8, 8, "-s tp2sp --feature tp-overlap=on --global-batch 8", NULL, ""},
    {"B23", &learned, 8, "--seq 2048 --global-batch 8", "positions",
     "2048|1024 learned|up to 1024"},
    {"B23", &llama8, 8, "--seq 16K --global-batch 8", "~positions", "16384|8192"},
    {"B25", &llama8, 1, "--framework composer --micro-batch 11 --global-batch 48", NULL, ""},
    {"B25", &llama8, 8, "--framework composer --micro-batch 11 --global-batch 100", "global-batch",
     "100 sequences|dp 8|96 or 104"},
    {"B26", &llama8, 3, "--framework jax --global-batch 32", "global-batch", "32|dp 3|30 or 33"},
    {"B26", &llama8, 3, "--framework jax --global-batch 33", NULL, ""},
    /* whole sentences */
    {"whole", &qwen7, 8, "-s tp8 --global-batch 8 --framework megatron", "heads-tp",
     "!28 heads do not divide by tp 8; legal tp: 1, 2, 4, 7, 14, 28"},
    {"whole", &layers30, 4, "-s pp4 --global-batch 16", "layers",
     "!30 layers do not divide by pp 4 x vpp 1 = 4: 28 would be built; legal pp x vpp: 1, 2, 3, 5, "
     "6, 10, 15, 30; uneven proposal: --layers 6,8,8,8, or --split embedding,loss"},
    {"whole", &layers60, 36, "-s pp36 --global-batch 36", "layers",
     "!60 layers do not divide by pp 36 x vpp 1 = 36: 36 would be built; legal pp x vpp: 1, 2, 3, "
     "4, "
     "5, 6, 10, 12, 15, 20, 30, 60; uneven proposal: --layers "
     "2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1"},
    {"whole", &layers60, 8, "-s pp8 --first-stage-layers 5 --global-batch 8", "stage-ends",
     "!60 layers less the 5 of first and last stage leave 55 for 7 chunks between, they do not "
     "divide: 54 would be built; nearest: 4 or 11 in first and last stage"},
    {"whole", &layers40, 4,
     "-s pp4vpp2 --first-stage-layers 8 --last-stage-layers 6 --global-batch 8", "stage-ends",
     "!40 layers less the 14 of first and last stage leave 26 for 4 chunks between, they do not "
     "divide: 38 would be built; nearest: 12 or 16 in first and last stage"},
    {"whole", &layers40, 3,
     "-s pp3vpp2 --first-stage-layers 9 --last-stage-layers 9 --global-batch 9", "stage-ends",
     "!first and last stage of 9 and 9 layers do not divide into vpp 2 chunks; multiples of 2 do"},
    {"whole", &llama8, 1, "--micro-batch 2 --accumulation 1 --global-batch 8", "batch-triangle",
     "!global batch 8 is not micro-batch 2 x accumulation 1 x dp 1 = 2; nearest: global batch 2, "
     "or "
     "accumulation 4; there is one rank on a host of several accelerators: was a launcher used?"},
    {"whole", &llama8, 8, "--micro-batch 2 --accumulation 3 --global-batch 64", "batch-triangle",
     "!global batch 64 is not micro-batch 2 x accumulation 3 x dp 8 = 48; nearest: global batch "
     "48, "
     "or accumulation 4"},
    {"whole", &layers60, 12, "-s pp12 --global-batch 1", "~micro-batches",
     "!1 micro-batches for 12 stages: 11/12 of the pipeline is idle; 48 micro-batches would leave "
     "11/59 idle"},
    {"whole", &heads720, 7, "-s tp7 --global-batch 7", "heads-tp",
     "!720 heads do not divide by tp 7; legal tp: ..., 4, 5, 6, 8, 9, 10, ..."},
    {"whole", &moe24, 8, "-s ep3 --global-batch 8", "expert-mesh",
     "!8 GPUs are not a multiple of the expert mesh etp 1 x ep 3 x pp 1 = 3; nearest: 6 or 9 GPUs; "
     "products that divide 8: 1, 2, 4, 8"},
    {"whole", &llama8, 8, "-s tp2cp2sp --seq 4098 --global-batch 8", "sequence",
     "!a sequence of 4098 tokens does not divide by cp x lcm(2, tp) = 4 (cp 2, tp 2 with sequence "
     "parallelism): 2 would be lost; nearest: 4096 or 4100"},
    {"whole", &llama8, 8, "-s tp2sp --seq 4097 --global-batch 8", "sequence",
     "!a sequence of 4097 tokens does not divide by tp = 2 (cp 1, tp 2 with sequence parallelism): "
     "1 "
     "would be lost; nearest: 4096 or 4098"},
    {"whole", &llama8, 8, "-s tp2ulysses2sp --seq 4098 --global-batch 8", "sequence",
     "!a sequence of 4098 tokens does not divide by ulysses x tp = 4 (ulysses 2, tp 2 with "
     "sequence "
     "parallelism): 2 would be lost; nearest: 4096 or 4100"},
    {"whole", &llama8, 8, "--precision nvfp4 --global-batch 8", "precision",
     "!precision nvfp4 needs an fp4 unit, which H100-80GB has not; legal: bf16, fp16, fp32, tf32, "
     "fp8"},
    {"whole", &llama8, 2, "-s pp2vpp2 --global-batch 8 --feature p2p-overlap=off", "interleaving",
     "!interleaving (vpp 2) needs pp 3 or more when messages between stages do not overlap, pp is "
     "2; "
     "nearest: pp 3, or vpp 1, or --feature p2p-overlap=on"},
    {"whole", &llama8, 8, "-s vpp2 --global-batch 8", "interleaving",
     "!interleaving (vpp 2) needs pp 2 or more when messages between stages overlap, pp is 1; "
     "nearest: pp 2, or vpp 1"},
    {"whole", &llama8, 4, "-s pp4vpp2 --layers-per-chunk 2 --global-batch 8", "layers-per-chunk",
     "!pp 4 x vpp 2 x 2 layers per chunk = 16, the model has 32 layers; vpp 4 fits"},
    {"whole", &llama8, 8, "-s etp2 --global-batch 8", "experts",
     "!etp 2 needs experts, the model has 0; nearest: 1"},
    /* legal to the letter: not even a warning */
    {"legal", &llama8, 8, "-s tp8 --global-batch 8", NULL, "tp8"},
    {"legal", &moe8, 8, "-s tp4dp2ep4sp --global-batch 8 --framework torchtitan", NULL, "ep4"},
    {"legal", &qwen7, 8, "-s tp2 --global-batch 8 --feature vocab-multiple=0", NULL, "tp2"},
    {"legal", &llama8, 8, "-s pp8 --global-batch 8", NULL, "pp8"},
    /* and what follows from the tables */
    {"precision", &llama8, 8, "--precision mxfp8 --global-batch 8", "precision",
     "mxfp8|fp4 unit|bf16, fp16, fp32, tf32, fp8"},
    {"adapters", &llama8, 8, "--lora 9999 --global-batch 8", "~adapters", "rank 9999|4096"},
    {"recomputation", &llama8, 8, "--recompute full:99 --global-batch 8", "~recomputation",
     "full:99|the 32 of a chunk|full:32"},
    {"recomputation", &llama8, 8, "--recompute selective --global-batch 8", "~recomputation",
     "core_attn|flash kernel keeps none"},
    {"layers-list", &llama8, 2, "-s pp2 --layers 0,32 --global-batch 8", "~layers-list",
     "chunk 1 of 2 holds no layer"},
    {"precision", &llama8, 8, "--precision mxfp8 --global-batch 8", "precision",
     "scales by blocks"},
    {"whole", &llama8, 2, "-s pp2 --first-stage-layers 40 --global-batch 8", "stage-ends",
     "!32 layers less the 40 of first and last stage leave 0 for 1 chunks between, they do not "
     "divide: 40 would be built; nearest: 31 in first and last stage"},
    {"ends", &llama8, 4, "-s pp4 --first-stage-layers 31 --last-stage-layers 31 --global-batch 8",
     "stage-ends", "nearest: 30 in first"},
    {"adapters", &llama8, 8, "--qlora --global-batch 8", "adapters", "rank is 0|--lora 16"},
    {"schedule", &llama8, 4, "-s pp4vpp2 --schedule 1f1b --global-batch 8", "interleaving",
     "vpp is 2"},
    {"schedule", &llama8, 4, "-s pp4 --schedule interleaved --global-batch 8", "interleaving",
     "is 1"},
    {"A34", &llama8, 16, "-s tp16 --global-batch 8", "~tp-domain", "tp 16|domain has 8"},
    {"order", &llama8, 16, "-s tp4@order=dp,tp --global-batch 8", "~tp-domain", "tp 4|16 ranks"},
};

/* Whether `text` holds every part of `says`, or is what follows its "!". */
static bool holds(const char *text, const char *says)
{
    if (*says == '!') return strcmp(text, says + 1) == 0;
    bool all = true;
    for (size_t length; *says; says += length + (says[length] == '|')) {
        length = strcspn(says, "|");
        char *part = mem_printf("%.*s", (int)length, says);
        all &= strstr(text, part) != NULL;
        free(part);
    }
    return all;
}

static const struct finding *find(const struct rules_report *report, const char *rule, bool warning)
{
    for (size_t i = 0; i < report->count; i++)
        if (strcmp(report->findings[i].rule, rule) == 0 && report->findings[i].warning == warning)
            return &report->findings[i];
    return NULL;
}

Test(rules, pairs)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct pair *p = &pairs[i];
        struct trial t;
        begin(&t, p->model, "H100", p->gpus, p->line);
        bool warning = p->rule && *p->rule == '~', legal = !p->rule || warning;
        struct err err = ERR_INIT;
        int refused = rules_refuse(&t.report, &err);
        cr_expect_eq(refused, legal ? 0 : -1, "%s %s: %s", p->label, p->line,
                     err.text ? err.text : "accepted");
        const struct finding *f = p->rule ? find(&t.report, p->rule + warning, warning) : NULL;
        if (p->rule) {
            cr_expect(f && holds(f->text, p->says), "%s %s: wants \"%s\", says \"%s\"", p->label,
                      p->line, p->says,
                      f          ? f->text
                      : err.text ? err.text
                                 : "nothing");
            cr_expect(legal || t.report.errors == 1, "%s %s: %s", p->label, p->line, err.text);
        } else {
            cr_expect(holds(t.strategy.word, p->says), "%s: %s", p->line, t.strategy.word);
            cr_expect_eq(t.report.count, 0, "%s %s: %s", p->label, p->line,
                         t.report.count ? t.report.findings[0].text : "");
        }
        err_release(&err);
        end(&t);
    }
}

/* Each rule of the table is broken by at least one pair. */
Test(rules, every_rule_is_tested)
{
    for (size_t i = 0; rules_get(i); i++) {
        const char *name = rules_get(i)->name;
        bool seen = strcmp(name, "mlp-width") == 0 || strcmp(name, "vocabulary") == 0 ||
                    strcmp(name, "head-dim") == 0 || strcmp(name, "fsdp-groups") == 0;
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
            seen |= pairs[k].rule && strcmp(pairs[k].rule + (*pairs[k].rule == '~'), name) == 0;
        cr_expect(seen, "no pair breaks %s", name);
    }
}

Test(rules, all_at_once)
{
    struct trial t;
    begin(&t, &layers30, "A100", 48,
          "-s tp3pp4cp2fsdp --seq 8190 --global-batch 7 --precision fp8");
    const char *broken[] = {"heads-tp", "sequence",   "global-batch",
                            "layers",   "fsdp-alone", "precision"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        cr_expect_not_null(find(&t.report, broken[i], false), "%s", broken[i]);
    struct err err = ERR_INIT;
    cr_expect_eq(rules_refuse(&t.report, &err), -1);
    cr_expect_eq(err.count, t.report.errors);
    cr_expect_eq(err.code, ERR_USAGE);
    err_release(&err);
    end(&t);
}

Test(rules, widths_and_vocabulary)
{
    struct model odd = llama8;
    odd.ffn = 1000;
    odd.vocab = 50257;
    struct trial t;
    begin(&t, &odd, "H100", 16, "-s tp16 --global-batch 8 --feature vocab-multiple=0");
    const struct finding *f = find(&t.report, "mlp-width", false);
    cr_expect(f && holds(f->text, "1000|tp 16|8, 10, 20"), "%s", f ? f->text : "nothing");
    f = find(&t.report, "vocabulary", true);
    cr_expect(f && holds(f->text, "50257|tp 16|50272"), "%s", f ? f->text : "nothing");
    end(&t);
    /* h 2880 with 64 heads and no head_dim passes as 45, which no kernel uses */
    struct model heads = {.family = "", .layers = 24, .hidden = 2880, .heads = 64, .vocab = 32000};
    begin(&t, &heads, "H100", 8, "--global-batch 8");
    f = find(&t.report, "head-dim", true);
    cr_expect(f && holds(f->text, "45|40 or 48"), "%s", f ? f->text : "nothing");
    end(&t);
    heads.head_dim = 64;
    begin(&t, &heads, "H100", 8, "--global-batch 8");
    cr_expect_eq(t.report.count, 0);
    end(&t);
    begin(&t, &llama8, "H100", 8, "-s fsdp3x2dp6 --global-batch 12");
    cr_expect_not_null(find(&t.report, "world-size", false));
    end(&t);
    begin(&t, &llama8, "H100", 8, "-s dp8 --zero fsdp --global-batch 8");
    t.strategy.shards = 3;
    rules_release(&t.report);
    rules_check(&t.report, &t.strategy, &t.model, &t.topo);
    f = find(&t.report, "fsdp-groups", false);
    cr_expect(f && holds(f->text, "dp 8|3 shards|1, 2, 4, 8"), "%s", f ? f->text : "nothing");
    end(&t);
}

/* B22: padded vocabularies. */
Test(rules, padding)
{
    static const uint64_t rows[][4] = {
        {32000, 128, 1, 32000},  {32000, 128, 2, 32000},   {32000, 128, 4, 32256},
        {32000, 128, 8, 32768},  {32001, 128, 2, 32256},   {50257, 128, 1, 50304},
        {50257, 128, 8, 51200},  {50257, 1, 2, 50258},     {128256, 128, 8, 129024},
        {128256, 64, 8, 128512}, {151936, 128, 2, 152064},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(model_padded_vocab(rows[i][0], rows[i][1], rows[i][2]), rows[i][3]);
}

/* B24: h 4000 over 96 heads is no head size; a head size lifts it. */
Test(rules, hidden_over_heads)
{
    struct model m = {.family = "", .layers = 4, .hidden = 4000, .heads = 96, .vocab = 32000};
    struct err err = ERR_INIT;
    cr_expect_eq(model_build(&m, &err), -1);
    cr_expect(err.text && holds(err.text, "4000|96"), "%s", err.text);
    err_release(&err);
    model_release(&m);
    m = (struct model){
        .family = "", .layers = 4, .hidden = 4000, .heads = 96, .head_dim = 64, .vocab = 32000};
    cr_expect_eq(model_build(&m, &err), 0);
    model_release(&m);
    cr_expect_eq(model_default_ffn(4096, true), 10880);
}

/* B27: a search never offers more tensor ranks than key/value heads. */
Test(rules, offers)
{
    struct trial t;
    begin(&t, &llama8, "H100", 16, "-s tp16 --global-batch 8");
    size_t count = 0;
    uint64_t *tp = rules_offer_tp(&t.model, 64, &count);
    cr_expect_eq(count, 4);
    for (size_t i = 0; i < count; i++)
        cr_expect_eq(tp[i], (uint64_t)1 << i);
    free(tp);
    free(rules_offer_tp(&t.model, 8, &count));
    cr_expect_eq(count, 4);
    free(rules_offer_tp(&t.model, 7, &count));
    cr_expect_eq(count, 3);
    t.model.mla = true; /* latents have no key/value heads to copy */
    free(rules_offer_tp(&t.model, 64, &count));
    cr_expect_eq(count, 6); /* 1 to 32 */
    end(&t);
}

/* B23: one number format; naming two is one sentence. */
Test(rules, formats_exclude_each_other)
{
    struct err err = ERR_INIT;
    struct strategy s;
    struct model m = llama8;
    struct topo topo;
    cr_assert_eq(model_build(&m, &err), 0);
    topo_usual(&topo, accel_find(&accels, "A100", &err), 8);
    struct strategy_args args = {.precision = "fp16,bf16"};
    cr_expect_eq(strategy_make(&s, &args, &topo, &m, &frameworks, &err), -1);
    cr_expect(err.count == 1 && holds(err.text, "fp16,bf16|exclude"), "%s", err.text);
    err_release(&err);
    topo_release(&topo);
    model_release(&m);
}
