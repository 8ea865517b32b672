/* SPDX-License-Identifier: Apache-2.0
 * Strategy words, the options beside them, what is left over, which layers run where, and the
 * table of frameworks. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "train/pipeline.h"
#include "train/rules.h"
#include "train/strategy.h"

static struct accel_table accels;
static struct framework_table frameworks;
static struct model model;

static void setup(void)
{
    struct err err = ERR_INIT;
    accel_read(&accels, NULL, &err);
    framework_read(&frameworks, NULL, &err);
    model = (struct model){.family = "",
                           .layers = 32,
                           .hidden = 4096,
                           .heads = 32,
                           .kv_heads = 8,
                           .ffn = 14336,
                           .vocab = 128256,
                           .gated = true,
                           .max_positions = 8192};
    model_build(&model, &err);
    cr_assert_null(err.text, "%s", err.text);
}

static void teardown(void)
{
    accel_release(&accels);
    framework_release(&frameworks);
    model_release(&model);
}

TestSuite(strategy, .init = setup, .fini = teardown);

/* Makes a strategy from a command line on `gpus` H100. 0 or -1. */
static int make(struct strategy *s, uint64_t gpus, const char *line, struct err *err)
{
    char *copy = mem_strdup(line), *argv[64] = {"test"};
    int argc = 1;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    struct strategy_args args = {0};
    struct opts opts;
    struct topo topo;
    topo_usual(&topo, accel_find(&accels, "H100", err), gpus);
    int bad = opts_parse(&opts, strategy_rows, &args, argc, argv, err);
    if (bad == 0) bad = strategy_make(s, &args, &topo, &model, &frameworks, err);
    opts_release(&opts);
    topo_release(&topo);
    free(copy);
    return bad;
}

static void made(struct strategy *s, uint64_t gpus, const char *line)
{
    struct err err = ERR_INIT;
    cr_assert_eq(make(s, gpus, line, &err), 0, "%s: %s", line, err.text);
}

static bool holds(const char *text, const char *says)
{
    bool all = text != NULL;
    for (size_t length; text && *says; says += length + (says[length] == '|')) {
        length = strcspn(says, "|");
        char *part = mem_printf("%.*s", (int)length, says);
        all &= strstr(text, part) != NULL;
        free(part);
    }
    return all;
}

Test(strategy, words)
{
    static const struct {
        uint64_t gpus;
        const char *line, *word;
    } rows[] = {
        {16, "", "dp16"},
        {16, "-s tp2pp4", "tp2pp4dp2"},
        {128, "-s tp8pp4dp4", "tp8pp4dp4"},
        {64, "-s dp64", "dp64"},
        {64, "-s fsdp", "fsdp64"},
        {128, "-s fsdp8x16", "fsdp8x16"},
        {128, "-s zero1", "dp128zero1"},
        {128, "-s zero1shards8", "dp128zero1shards8"},
        {128, "-s tp2cp2zero2 --fsdp-shards 4", "tp2cp2dp32zero2shards4"},
        {128, "-s zero1 --fsdp-replicas 16", "dp128zero1shards8"},
        {128, "-s zero1shards128", "dp128zero1"},
        {128, "-s zero2tp2", "tp2dp64zero2"},
        {128, "-s tp2-zero3", "tp2dp64zero3"},
        {16, "-s tp2sp", "tp2dp8sp"},
        {16, "-s cp4", "cp4dp4"},
        {16, "-s ulysses4", "ulysses4dp4"},
        {16, "-s ep8etp2", "dp16ep8etp2"},
        {40, "-s tp2_pp4.vpp5+dp5", "tp2pp4vpp5dp5"},
        {16, "-s tp8dp2@order=dp,tp", "tp8dp2@order=dp,tp"},
        {16, "-s tp8@order=tp,cp", "tp8dp2"},
        {16, "-s tp2@order=pp,dp,cp,tp", "tp2dp8@order=pp,dp,cp"},
        {16, "-s tp2@order=tp,pp", "tp2dp8@order=tp,pp"},
        {16, "--tp 2 --pp 4", "tp2pp4dp2"},
        {16, "-s tp2 --tp 2 --pp 4", "tp2pp4dp2"},
        {16, "-s fsdp2x4tp2", "tp2fsdp2x4"},
        {16, "-s cp2fsdp", "cp2fsdp8"},
        {16, "--fsdp-shards 4 --fsdp-replicas 4", "fsdp4x4"},
        {1, "", "dp1"},
        {8, "--framework torchtitan", "fsdp8"},
        {8, "--framework torchtitan --zero none", "dp8zero0"},
        {8, "--framework nemo", "dp8zero1"},
        {8, "--framework nemo -s zero0", "dp8zero0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct strategy s, again;
        made(&s, rows[i].gpus, rows[i].line);
        cr_expect_str_eq(s.word, rows[i].word);
        char *line = mem_printf("-s %s --framework %s", s.word, s.framework.name);
        made(&again, rows[i].gpus, line); /* the canonical word means the same */
        cr_expect_str_eq(again.word, s.word);
        cr_expect(s.tp == again.tp && s.dp == again.dp && s.shards == again.shards &&
                  s.zero == again.zero && s.order[0] == again.order[0]);
        free(line);
        strategy_release(&s);
        strategy_release(&again);
    }
}

Test(strategy, faults)
{
    static const struct {
        const char *line;
        unsigned faults;
        const char *says;
    } rows[] = {
        {"-s tp", 1, "\"tp\" needs a number, as in tp2"},
        {"-s tp0", 1, "tp|0"},
        {"-s tp2tp4", 1, "\"tp\" is given twice"},
        {"-s tp2xy", 1, "nothing is called \"xy\"|ulyssesN"},
        {"-s sp2", 1, "\"sp\" takes no number, it has 2"},
        {"-s zero4", 1, "zero|4"},
        {"-s zero", 1, "zero0 to zero3"},
        {"-s fsdp8x", 1, "fsdp8 needs a number of replicas"},
        {"-s fsdpzero1", 1, "\"zero\" is given twice"},
        {"-s tp99999999999999999999", 1, "99999999999999999999"},
        {"-s tp2 --tp 4", 1, "tp2 says tp 2, an option says 4|one of the two"},
        {"-s zero1 --zero 2", 1, "zero 1|says 2"},
        {"-s cp2ulysses4", 1, "--cp 2 and --ulysses 4"},
        {"-s fsdp8x2 --dp 8", 1, "--dp: 8|8 shards x 2 replicas = 16"},
        {"-s tp2@order=tp,tp", 1, "\"tp\" is given twice"},
        {"-s tp2@order=ep", 1, "ep|tp, cp, dp, pp"},
        {"--precision bf61", 1, "bf61|bf16, fp16"},
        {"--recipe rowwise", 1, "rowwise is for fp8|bf16"},
        {"--precision fp8 --recipe row", 1, "tensorwise, rowwise"},
        {"--optimizer adam", 1, "adamw"},
        {"--recompute some", 1, "some|selective"},
        {"--recompute full:0", 1, "full:N|0"},
        {"--recompute mlp+flash", 1, "flash|mla_up"},
        {"--schedule zbv", 1, "zbv|zb-2p"},
        {"--split head", 1, "head|embedding, loss"},
        {"--layers 4,x", 1, "--layers|x"},
        {"--layers 16,16 --split loss", 1, "--layers gives every chunk"},
        {"--framework pytorch", 1, "pytorch|torchtitan"},
        {"--feature tp-overlap=maybe", 1, "maybe|off, on"},
        {"--feature tp-overlap", 1, "has no value"},
        {"--feature overlap=on", 1, "unknown feature \"overlap\"|tp-overlap"},
        {"--feature grad-bytes=9", 1, "grad-bytes is 9|0.5..8"},
        {"--feature vocab-multiple=1.5", 1, "vocab-multiple is 1.5|whole"},
        {"--feature vocab-multiple=-1", 1, "vocab-multiple is -1"},
        {"--cp-comm all", 1, "all|ring, gather, ulysses"},
        {"--cp-comm ring -s ulysses2", 1, "ring|ulysses 2|cp 2"},
        {"--moe-imbalance .9", 1, "moe-imbalance is 0.9|at least 1"},
        {"--moe-imbalance nan", 1, "nan"},
        {"--moe-capacity 0", 1, "moe-capacity is 0|above 0"},
        {"--offload optimizer,gradients", 1, "gradients|optimizer, weights, activations"},
        {"--offload weights,weights", 1, "twice"},
        {"--bucket-size big", 1, "--bucket-size|big"},
        {"--prefetch -1 --tp-tiles 0", 2, "--prefetch|--tp-tiles"},
        {"--feature cp-comm=ulysses", 1, "ulysses|ring, gather"},
        {"--fsdp-shards 4 --zero none", 1,
         "4 shards are for fsdp and zero1 to zero3, zero is none"},
        {"-s zero1shards4shards2", 1, "\"shards\" is given twice"},
        {"-s fsdp8shards4", 1, "\"shards\" is given twice"},
        {"--seq 1T --global-batch 2147483647", 1, "more than 2^63"},
        {"-s tp --precision x --optimizer y --recompute z", 4, "tp|x|y|z"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = ERR_INIT;
        struct strategy s;
        cr_expect_eq(make(&s, 16, rows[i].line, &err), -1, "accepted: %s", rows[i].line);
        cr_expect_eq(err.count, rows[i].faults, "%s: %s", rows[i].line, err.text);
        cr_expect(holds(err.text, rows[i].says), "%s: %s", rows[i].line, err.text);
        cr_expect_eq(err.code, ERR_USAGE);
        err_release(&err);
    }
}

Test(strategy, defaults)
{
    struct strategy s;
    made(&s, 16, "-s tp2pp4");
    cr_expect(s.seq == 8192 && s.micro_batch == 1 && s.global_batch == 128 &&
              s.micro_batches == 64);
    cr_expect(s.batch_assumed && s.seq_assumed && s.micro_assumed);
    cr_expect_str_eq(s.precision->name, "bf16");
    cr_expect_str_eq(s.framework.name, "megatron");
    cr_expect_eq(s.schedule, SCHED_1F1B);
    strategy_release(&s);
    made(&s, 16384, "-s tp8pp16vpp2"); /* 1 Mi tokens are 128 sequences, rounded up to 16384 */
    cr_expect(s.global_batch == 16384 && s.dp == 128 && s.schedule == SCHED_INTERLEAVED);
    strategy_release(&s);
    made(&s, 24, "-s tp2 --micro-batch 5"); /* a multiple of 24 and of 5 x 12 */
    cr_expect(s.global_batch == 240 && s.global_batch % (s.micro_batch * s.dp) == 0);
    strategy_release(&s);
    made(&s, 8, "--accumulation 4 --micro-batch 2");
    cr_expect(s.global_batch == 64 && !s.batch_assumed && s.micro_batches == 4);
    strategy_release(&s);
    made(&s, 8, "--seq 1000 -s pp2 --schedule gpipe"); /* 1049 sequences hold 1 Mi tokens */
    cr_expect(s.global_batch == 1056 && s.schedule == SCHED_GPIPE && !s.seq_assumed);
    strategy_release(&s);
    made(&s, 8, "--global-batch 9 -s pp2 --schedule zb-2p");
    cr_expect(s.micro_batches == 3 && s.schedule == SCHED_ZB_2P);
    strategy_release(&s);
    made(&s, 1, "--framework composer --micro-batch 11 --global-batch 48");
    cr_expect_eq(s.micro_batches, 5); /* 11, 11, 11, 11, 4 */
    strategy_release(&s);
    model.max_positions = 1024;
    made(&s, 8, "");
    cr_expect_eq(s.seq, 1024);
    strategy_release(&s);
}

Test(strategy, recompute)
{
    struct strategy s;
    made(&s, 8, "--recompute selective");
    cr_expect(s.recompute == RC_SELECTIVE && s.rc_modules == RCM_CORE_ATTN);
    strategy_release(&s);
    made(&s, 8, "--recompute selective --framework torchtitan");
    cr_expect_eq(s.rc_modules, RCM_OPS);
    strategy_release(&s);
    made(&s, 8, "--recompute mlp+norm");
    cr_expect_eq(s.rc_modules, RCM_MLP | RCM_NORM | RCM_ACT);
    strategy_release(&s);
    made(&s, 8, "--recompute full:3");
    cr_expect(s.recompute == RC_FULL && s.rc_blocks == 3);
    strategy_release(&s);
}

Test(strategy, what_options_and_features_say_twice)
{
    struct strategy s;
    made(&s, 8, "-s cp4 --bucket-size 25M --prefetch 3 --tp-tiles 4 --cp-comm gather");
    cr_expect(s.framework.bucket_bytes == 25 << 20 && s.framework.prefetch == 3);
    cr_expect(s.framework.tp_tiles == 4 && s.framework.cp == CP_GATHER && !s.ulysses);
    strategy_release(&s);
    made(&s, 8, "-s cp4 --cp-comm ulysses");
    cr_expect(s.ulysses && s.cp == 4);
    cr_expect_str_eq(s.word, "ulysses4dp2");
    strategy_release(&s);
    made(&s, 8, "--bucket-size 0 --prefetch 0 --framework deepspeed");
    cr_expect_eq(framework_bucket_B(&s.framework, 2, 8), 0);
    cr_expect(s.framework.prefetch == 0 && s.framework.prefetch_params == 0);
    strategy_release(&s);
    made(&s, 8,
         "--offload activations,optimizer --packed 2K --moe-imbalance 1.3 --moe-capacity 1.1");
    cr_expect_eq(s.offload, OFFLOAD_ACTIVATIONS | OFFLOAD_OPTIMIZER);
    cr_expect(s.packed == 2048 && s.moe_imbalance == 1.3 && s.moe_capacity == 1.1);
    strategy_release(&s);
}

Test(strategy, schedules_are_pipelines)
{
    struct strategy s;
    for (int i = 0; i < NSCHEDULES; i++) {
        const char *name = schedule_name((enum schedule)i);
        char *line = mem_printf("-s pp2 --schedule %s", name);
        made(&s, 8, line);
        cr_expect_eq(s.schedule, (enum schedule)i);
        cr_expect_str_eq(name, pipeline_row((enum pipeline_id)i)->name);
        strategy_release(&s);
        free(line);
    }
}

Test(strategy, places)
{
    struct strategy s;
    made(&s, 64, "-s tp2cp2pp4");
    cr_expect_eq(strategy_stride(&s, AXIS_TP), 1);
    cr_expect_eq(strategy_stride(&s, AXIS_CP), 2);
    cr_expect_eq(strategy_stride(&s, AXIS_DP), 4);
    cr_expect_eq(strategy_stride(&s, AXIS_PP), 16);
    strategy_release(&s);
    made(&s, 64, "-s tp2cp2pp4@order=dp,tp");
    cr_expect_eq(strategy_stride(&s, AXIS_DP), 1);
    cr_expect_eq(strategy_stride(&s, AXIS_TP), 4);
    cr_expect_eq(strategy_stride(&s, AXIS_CP), 8);
    strategy_release(&s);
}

Test(strategy, lists)
{
    size_t count = 0;
    char **words = strategy_list("tp8dp2,tp8dp2@order=dp,tp,tp2pp4dp2,fsdp", &count);
    static const char *const expected[] = {"tp8dp2", "tp8dp2@order=dp,tp", "tp2pp4dp2", "fsdp"};
    cr_assert_eq(count, 4);
    for (size_t i = 0; i < count; i++)
        cr_expect_str_eq(words[i], expected[i]);
    strategy_list_free(words, count);
    words = strategy_list("", &count);
    cr_expect(count == 1 && *words[0] == '\0');
    strategy_list_free(words, count);
    words = strategy_list("tp2@order=pp,dp,", &count);
    cr_expect(count == 2 && *words[1] == '\0');
    cr_expect_str_eq(words[0], "tp2@order=pp,dp");
    strategy_list_free(words, count);
}

/* ---- layouts ---- */

static void expect_layout(struct layout_args args, const char *expected)
{
    uint64_t layout[64];
    strategy_layout(&args, layout);
    char *text = mem_strdup("");
    for (uint64_t i = 0; i < args.pp * args.vpp; i++) {
        char *longer = mem_printf("%s%s%" PRIu64, text, i ? "," : "", layout[i]);
        free(text);
        text = longer;
    }
    cr_expect_str_eq(text, expected);
    free(text);
}

Test(strategy, layouts)
{
    expect_layout((struct layout_args){32, 4, 1, false, false, 0, 0}, "8,8,8,8");
    expect_layout((struct layout_args){32, 4, 2, false, false, 0, 0}, "4,4,4,4,4,4,4,4");
    expect_layout((struct layout_args){30, 4, 1, true, true, 0, 0}, "7,8,8,7");
    expect_layout((struct layout_args){31, 4, 1, false, true, 0, 0}, "8,8,8,7");
    expect_layout((struct layout_args){60, 8, 1, false, false, 0, 0}, "6,8,8,8,8,8,8,6");
    expect_layout((struct layout_args){30, 4, 2, false, false, 0, 0}, "3,4,4,4,4,4,4,3");
    expect_layout((struct layout_args){28, 4, 2, false, false, 0, 0}, "3,4,4,3,3,4,4,3");
    expect_layout((struct layout_args){9, 8, 1, false, false, 0, 0}, "2,1,1,1,1,1,1,1");
    expect_layout((struct layout_args){60, 8, 1, false, false, 4, 0}, "4,8,8,8,8,8,8,8");
    expect_layout((struct layout_args){60, 8, 1, false, false, 6, 6}, "6,8,8,8,8,8,8,6");
    expect_layout((struct layout_args){20, 2, 2, false, false, 8, 0}, "4,6,4,6");
    expect_layout((struct layout_args){20, 1, 1, true, true, 0, 0}, "20");
    expect_layout((struct layout_args){20, 1, 1, false, false, 0, 7}, "7");
    expect_layout((struct layout_args){1, 4, 1, true, true, 0, 0}, "1,0,0,0");
}

/* Whatever the shape, no layer is lost and none is made. */
Test(strategy, layouts_add_up)
{
    for (uint64_t layers = 0; layers <= 40; layers++)
        for (uint64_t pp = 1; pp <= 7; pp++)
            for (uint64_t vpp = 1; vpp <= 3; vpp++)
                for (int split = 0; split < 4; split++) {
                    struct layout_args args = {layers, pp, vpp, split & 1, split & 2, 0, 0};
                    uint64_t layout[21], sum = 0, most = 0;
                    strategy_layout(&args, layout);
                    for (uint64_t i = 0; i < pp * vpp; i++) {
                        sum += layout[i];
                        most = layout[i] > most ? layout[i] : most;
                    }
                    uint64_t extra = (uint64_t)args.embedding + args.loss;
                    cr_expect_eq(sum, layers);
                    cr_expect_leq(most, (layers + extra + pp * vpp - 1) / (pp * vpp));
                }
}

Test(strategy, big_job)
{
    struct strategy s;
    model.layers = 126;
    made(&s, 16384, "-s tp8cp2pp16vpp8 --global-batch 2048 --split embedding,loss");
    cr_expect(s.nlayout == 128 && s.layout[0] == 0 && s.layout[1] == 1 && s.layout[127] == 0);
    cr_expect_eq(strategy_stage_layers(&s, 0), 7);
    cr_expect_eq(strategy_stage_layers(&s, 7), 8);
    cr_expect(s.dp == 64 && s.micro_batches == 32);
    strategy_release(&s);
}

/* ---- frameworks ---- */

Test(strategy, frameworks_are_complete)
{
    cr_expect_geq(frameworks.nrows, 10);
    for (size_t i = 0; i < frameworks.nrows; i++) {
        cr_expect(*frameworks.rows[i].about && *frameworks.rows[i].source);
        struct framework copy = frameworks.rows[i];
        for (size_t k = 0; framework_feature_name(k); k++) {
            char buf[32], *text = mem_printf("%s=%s", framework_feature_name(k),
                                             framework_value(&copy, k, buf));
            struct err err = ERR_INIT;
            cr_expect_eq(framework_feature(&copy, text, &err), 0, "%s", err.text);
            free(text);
        }
        cr_expect_eq(memcmp(&copy, &frameworks.rows[i], sizeof copy), 0); /* read = written */
    }
}

Test(strategy, features)
{
    struct strategy s;
    made(&s, 8, "--feature tp-overlap=on,attention=unfused,grad-bytes=2,vocab-multiple=64");
    cr_expect(s.framework.tp_overlap && s.framework.attention == ATTN_UNFUSED);
    cr_expect(s.framework.grad_bytes == 2 && s.framework.vocab_multiple == 64);
    strategy_release(&s);
}

/* Buckets, gathers and prefetch of a job, by the sources that the rows name. */
Test(strategy, overlap_of_frameworks)
{
    static const struct {
        const char *framework, *zero;
        uint32_t dp;
        double bucket_B, first_B;
        bool gather, each;
        uint32_t prefetch;
    } rows[] = {
        {"megatron", "none", 16, 40e6 * 4, 0, false, false, 0},
        {"megatron", "1", 16, 40e6 * 4, 0, true, false, 0},
        {"megatron", "1", 128, 128e6 * 4, 0, true, false, 0},
        {"megatron", "2", 16, 40e6 * 4, 0, true, true, 0},
        {"megatron", "3", 16, 40e6 * 4, 0, false, true, 3}, /* 500 M of layers of 218 M */
        {"nemo", "1", 16, 40e6 * 2, 0, true, false, 0},
        {"nemo", "3", 16, 40e6 * 2, 0, false, true, 1},
        {"megatron-2022", "none", 16, 0, 0, false, false, 0},
        {"deepspeed", "2", 16, 5e8 * 2, 0, false, true, 0},
        {"deepspeed", "3", 16, 5e8 * 2, 0, false, true, 1}, /* 50 M of a layer of 218 M */
        {"fsdp", "none", 16, 25 << 20, 1 << 20, false, false, 0},
        {"fsdp", "3", 16, 25 << 20, 1 << 20, false, true, 1},
        {"torchtitan", "none", 16, 100 << 20, 1 << 20, false, false, 0},
        {"nanotron", "1", 16, 0, 0, false, false, 0},
    };
    static const enum shard shards[] = {SHARD_NONE, SHARD_ZERO1, SHARD_ZERO2, SHARD_FULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = ERR_INIT;
        const struct framework *f = framework_find(&frameworks, rows[i].framework, &err);
        struct job job = {.dp = rows[i].dp,
                          .cp = 1,
                          .tp = 1,
                          .ep = 1,
                          .etp = 1,
                          .grad_B = f->grad_bytes,
                          .dp_overlap = f->dp_overlap,
                          .shard = shards[*rows[i].zero == 'n' ? 0 : *rows[i].zero - '0'],
                          .shape = {.layers = 32,
                                    .dense_layers = 32,
                                    .hidden = 4096,
                                    .ffn = 14336,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .vocab = 128256,
                                    .gated = true}};
        framework_overlap(&job, f);
        cr_expect_eq(job.bucket_B, rows[i].bucket_B, "row %zu: %g", i, job.bucket_B);
        cr_expect_eq(job.first_bucket_B, rows[i].first_B, "row %zu", i);
        cr_expect(job.gather_overlap == rows[i].gather && job.reduce_each == rows[i].each,
                  "row %zu", i);
        cr_expect_eq(job.prefetch, rows[i].prefetch, "row %zu: %u", i, job.prefetch);
        cr_expect_eq(job.accumulate_B, rows[i].each ? 0 : f->accumulate_bytes, "row %zu", i);
    }
}

Test(strategy, faulty_frameworks)
{
    static const struct {
        const char *text;
        unsigned faults;
        const char *says;
    } rows[] = {
        {"{\"schema\": 1, \"frameworks\": [\n{\"name\": \"a\", \"about\": \"\", \"source\": \"\","
         "\"like\": \"b\"}]}",
         1, ":2: there is no framework \"b\""},
        {"{\"schema\": 1, \"frameworks\": [7]}", 1, "must be an object"},
        {"{\"frameworks\": []}", 1, "\"schema\" is missing"},
        {"{\"schema\": 1}", 1, "\"frameworks\" is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[] = "/tmp/frameworksXXXXXX";
        int fd = mkstemp(path);
        dprintf(fd, "%s", rows[i].text);
        close(fd);
        struct err err = ERR_INIT;
        struct framework_table table;
        cr_expect_eq(framework_read(&table, path, &err), -1);
        cr_expect(err.count == rows[i].faults && holds(err.text, rows[i].says), "%s", err.text);
        err_release(&err);
        unlink(path);
    }
}

/* Whatever is written, it is understood or refused in sentences, and rules have something to say
 * about the largest numbers too. */
Test(strategy, anything)
{
    static const char *const parts[] = {
        "tp",   "pp",   "dp",   "cp",      "ep", "etp",        "vpp",
        "sp",   "fsdp", "zero", "ulysses", "x",  "-",          "@order=",
        ",",    "0",    "1",    "2",       "8",  "2147483647", "99999999999999999999",
        "\xff", "%s"};
    enum { NPARTS_ = sizeof parts / sizeof *parts };
    struct rng rng;
    rng_init(&rng, 1);
    unsigned understood = 0;
    for (unsigned i = 0; i < 20000; i++) {
        char *line = mem_strdup("--strategy=");
        for (uint64_t n = 1 + rng_below(&rng, 6); n > 0; n--) {
            char *longer = mem_printf("%s%s", line, parts[rng_below(&rng, NPARTS_)]);
            free(line);
            line = longer;
        }
        struct err err = ERR_INIT;
        struct strategy s;
        struct topo topo;
        if (make(&s, 1 + rng_below(&rng, 64), line, &err) == 0) {
            struct rules_report report = {0};
            topo_usual(&topo, accel_find(&accels, "H100", &err), s.gpus);
            rules_check(&report, &s, &model, &topo);
            bool fits = s.tp <= s.gpus && s.pp <= s.gpus && s.cp <= s.gpus && s.dp <= s.gpus &&
                        s.tp * s.pp * s.cp * s.dp == s.gpus;
            cr_expect(fits || report.errors, "%s", line);
            rules_release(&report);
            topo_release(&topo);
            strategy_release(&s);
            understood++;
        } else {
            cr_expect(err.count > 0 && err.code == ERR_USAGE, "%s", line);
        }
        err_release(&err);
        free(line);
    }
    cr_expect_gt(understood, 500);
}
