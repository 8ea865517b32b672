/* SPDX-License-Identifier: Apache-2.0
 * The closed-form step and memory against figures that can be worked out by hand or were published:
 * FLOPs of known models, activation bytes of Korthikanti et al., ZeRO's bytes per parameter,
 * pipeline bubbles, and cases of users. Plans are made from command lines, as a user makes them. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/mem.h"
#include "tests/planned.h"
#include "train/cost.h"
#include "train/limit.h"
#include "train/memory.h"
#include "train/plan.h"
#include "train/step.h"
#include "train/step_cmd.h"

#define GIB 1073741824.0

/* A plan from a command line; the tables live as long as the plan. */
struct made {
    struct tables tables;
    struct plan plan;
    struct step step;
    struct memory memory;
};

static void make(struct made *m, const char *line)
{
    planned(&m->tables, &m->plan, ENGINE_CLOSED, line);
    m->step = step_predict(&m->plan.job, &m->tables.constants[ENGINE_CLOSED].values);
    m->memory = memory_predict(&m->plan.job, &m->tables.constants[ENGINE_CLOSED].values);
}

static void unmake(struct made *m)
{
    plan_release(&m->plan);
    tables_release(&m->tables);
}

static double time_of(const char *line)
{
    struct made m;
    make(&m, line);
    double t = m.step.time_s;
    unmake(&m);
    return t;
}

static struct memory memory_of(const char *line)
{
    struct made m;
    make(&m, line);
    struct memory memory = m.memory;
    unmake(&m);
    return memory;
}

static void near(double got, double want, double tolerance, const char *what)
{
    cr_assert(fabs(got / want - 1) <= tolerance, "%s: %.6g, expected %.6g within %.2f %%", what,
              got, want, 100 * tolerance);
}

/* ---- FLOPs ---- */

Test(step, flops_of_known_models)
{
    static const struct {
        const char *line;
        bool full;        /* attention counted full, or its causal half */
        double per_token; /* forward and backward, input embedding excluded */
    } cases[] = {
        {"--topo dgx-h100 --model llama3.1-8b --seq 8192", true, 57.91e9},
        {"--topo dgx-h100 --model llama3.1-8b --seq 8192", false, 51.47e9},
        {"--topo dgx-h100x12 --model qwen3-235b-a22b --seq 196608", false, 204.0e15 / 196608},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        make(&m, cases[i].line);
        double tokens = (double)m.plan.job.global_batch * (double)m.plan.job.seq;
        double flops = cases[i].full ? m.step.model_flops_full : m.step.model_flops;
        near(flops / tokens, cases[i].per_token, .006, cases[i].line);
        unmake(&m);
    }
}

/* Attention within documents: FLOPs of a token are those of sequences as long as a document. */
Test(step, flops_of_packed_documents)
{
    static const unsigned conventions[] = {0, FLOPS_FULL, FLOPS_HARDWARE};
    struct made packed, one;
    make(&packed, "--topo dgx-h100x8 --model llama3-8b --strategy cp8 --seq 128K --packed 2K "
                  "--global-batch 64 --recompute full");
    make(&one, "--topo dgx-h100x8 --model llama3-8b --strategy cp8 --seq 2K --global-batch 4096 "
               "--recompute full");
    for (int i = 0; i < 3; i++) {
        double of = step_flops(&packed.plan.job, conventions[i]);
        near(of, step_flops(&one.plan.job, conventions[i]), 1e-12, "packed");
    }
    unmake(&packed);
    unmake(&one);
}

/* The conventions of one count: 6 N and 8 N with all parameters, attention apart. */
Test(step, flops_by_convention)
{
    struct made m;
    make(&m, "--topo dgx-a100x4 --model gpt3-175b --strategy tp8pp4 --seq 2K --recompute full");
    const struct job *job = &m.plan.job;
    double tokens = (double)job->global_batch * 2048, n = (double)m.plan.model.active;
    double attention = 4. * 2048 * 96 * 12288; /* forward, full */
    unsigned all = FLOPS_EMBEDDING, none = FLOPS_LINEAR | FLOPS_EMBEDDING;
    near(step_flops(job, none) / tokens, 6 * n, 1e-9, "6 N");
    near(step_flops(job, none | FLOPS_HARDWARE) / tokens, 8 * n, 1e-9, "8 N");
    near((step_flops(job, all) - step_flops(job, none)) / tokens, 1.5 * attention, 1e-6, "causal");
    near((step_flops(job, all | FLOPS_FULL) - step_flops(job, none)) / tokens, 3 * attention, 1e-6,
         "full");
    cr_assert(step_flops(job, 0) < step_flops(job, all), "the input embedding is left out");
    unmake(&m);
}

Test(step, parts_add_up_and_nothing_is_negative)
{
    static const char *const lines[] = {
        "--topo dgx2x8 --strategy tp2pp4",
        "--topo dgx-h100x32 --model llama3-405b --strategy tp8pp16 --split embedding,loss",
        "--topo dgx-a100x4 --strategy fsdp8x4 --framework torchtitan --model llama3-8b",
        "--topo dgx-h100x4 --model mixtral-8x7b --strategy ep8 --precision fp8",
        "--topo gb200-nvl72 --nodes 16 --model deepseek-v3 --strategy pp4ep16 --seq 4096",
        "--topo cpu2 --model qwen2.5-0.5b --precision fp32",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct made m;
        make(&m, lines[i]);
        double sum = 0;
        for (int k = 0; k < NPARTS; k++) {
            cr_assert(m.step.part_s[k] >= 0, "%s: %s is negative", lines[i],
                      step_part_name((enum step_part)k));
            sum += m.step.part_s[k];
        }
        near(sum, m.step.time_s, 1e-12, lines[i]);
        double bound = m.step.model_flops / m.plan.job.ngpus / m.plan.job.dev.flops16 / 2;
        cr_assert(m.step.time_s > bound, "%s: faster than the hardware", lines[i]);
        unmake(&m);
    }
}

/* ---- activations: Korthikanti et al. 2022, table 2, of GPT-3, b 1, s 2048, t 8 ---- */

static struct job gpt3_layer(void)
{
    return (struct job){
        .shape = {.layers = 96,
                  .dense_layers = 96,
                  .hidden = 12288,
                  .ffn = 49152,
                  .heads = 96,
                  .kv_heads = 96,
                  .head_dim = 128,
                  .vocab = 51200},
        .seq = 2048,
        .micro_batch = 1,
        .global_batch = 8,
        .tp = 1,
        .dp = 1,
        .pp = 1,
        .vpp = 1,
        .cp = 1,
        .ep = 1,
        .etp = 1,
        .attn = ATTN_UNFUSED,
        .fw = FW_LEGACY,
        .dropout = true,
        .zb = 1,
    };
}

Test(memory, activation_bytes_of_korthikanti)
{
    struct job job = gpt3_layer();
    near(memory_dense_layer_B(&job) * 2048 / 1e6, 2868.9, .001, "no parallelism");
    job.tp = 8;
    near(memory_dense_layer_B(&job) * 2048 / 1e6, 578.8, .001, "tensor parallel");
    job.sp = true;
    near(memory_dense_layer_B(&job) * 2048 / 1e6, 358.6, .001, "tensor and sequence parallel");
    job.recompute = RC_SELECTIVE;
    job.rc_modules = RCM_CORE_ATTN;
    near(memory_dense_layer_B(&job) * 2048 / 1e6, 107.0, .001, "and selective recomputation");
}

Test(memory, unfused_scores_of_one_layer)
{
    struct job job = gpt3_layer(), flash;
    job.shape.hidden = 3072, job.shape.heads = job.shape.kv_heads = 32, job.shape.head_dim = 96;
    job.seq = 4096;
    job.fw = FW_EAGER;
    flash = job;
    flash.attn = ATTN_FA2;
    double statistics = 4. * 32 * 4096; /* flash attention keeps the softmax statistics instead */
    double scores = (memory_dense_layer_B(&job) - memory_dense_layer_B(&flash)) * 4096 + statistics;
    near(scores / 1048576, 3584, 1e-9, "scores, softmax, dropout of 32 x 4096 x 4096");
}

Test(memory, in_flight)
{
    struct job job = gpt3_layer();
    job.pp = 4, job.vpp = 2, job.global_batch = 64;
    near(memory_in_flight(&job, 0), 4 * 1.375, 1e-12, "p 4, v 2");
    job.pp = 8, job.vpp = 5;
    near(memory_in_flight(&job, 0), 8 * 1.175, 1e-12, "p 8, v 5");
    job.vpp = 1;
    near(memory_in_flight(&job, 0), 8, 1e-12, "1F1B, first stage");
    near(memory_in_flight(&job, 7), 1, 1e-12, "1F1B, last stage");
    job.global_batch = 2;
    near(memory_in_flight(&job, 0), 2, 1e-12, "fewer micro-batches than stages");
    job.global_batch = 64, job.gpipe = true;
    near(memory_in_flight(&job, 3), 64, 1e-12, "GPipe");
}

/* Weights, gradients and optimizer: 18 B per parameter, 6 + 12/dp with the distributed one. */
Test(memory, bytes_per_parameter)
{
    static const struct {
        const char *line;
        double GiB; /* of stage 0: weights, gradients, optimizer */
    } cases[] = {
        {"--topo dgx-h100x4 --model llama3-70b --strategy tp8pp4 --framework megatron", 38.07},
        {"--topo dgx-h100x16 --model llama3-70b --strategy tp8pp4dp4zero1 --framework megatron",
         19.03},
        {"--topo dgx-a100x8 --model gpt3-175b --strategy tp8pp8 --framework megatron", 46.89},
        {"--topo dgx-a100x128 --model gpt3-175b --strategy tp8pp8dp16zero1 --framework megatron",
         17.58},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        make(&m, cases[i].line);
        struct stage_memory s =
            memory_stage(&m.plan.job, &m.tables.constants[ENGINE_CLOSED].values, 0);
        near((s.weights + s.gradients + s.optimizer) / GIB, cases[i].GiB, .01, cases[i].line);
        unmake(&m);
    }
}

/* RMSNorm in single operators: an fp32 copy of h per norm, unless the operators run again. */
Test(memory, copies_of_unfused_norms)
{
    struct job job = gpt3_layer(), fused;
    job.fw = FW_EAGER;
    fused = job;
    job.unfused_norm = true;
    near(memory_dense_layer_B(&job) - memory_dense_layer_B(&fused), 8 * 12288, 1e-9, "two norms");
    job.recompute = fused.recompute = RC_SELECTIVE;
    job.rc_modules = fused.rc_modules = RCM_OPS;
    near(memory_dense_layer_B(&job), memory_dense_layer_B(&fused), 1e-12, "operators run again");
}

/* Two moments of one byte each, in pure 16 bits as with an fp32 copy. */
Test(memory, moments_of_8_bits)
{
    static const char *const lines[] = {
        "--topo dgx-a100 --model llama3-8b --strategy fsdp --seq 2K "
        "--optimizer adam8bit --framework fsdp",
        "--topo dgx-a100 --model llama3-8b --strategy fsdp --seq 2K "
        "--optimizer adam8bit --framework torchtune"};
    static const double per_parameter[] = {6, 2}; /* with and without the fp32 copy */
    for (size_t i = 0; i < 2; i++) {
        near(memory_of(lines[i]).worst.optimizer * 8 / 8030261248., per_parameter[i], .001,
             lines[i]);
    }
}

Test(memory, sharding_over_more_gpus)
{
    double n = 8030261248., a = 0, b = 0;
    struct memory few = memory_of("--topo dgx-h100 --model llama3.1-8b --strategy fsdp --framework "
                                  "torchtitan --micro-batch 2 --recompute ops");
    struct memory many = memory_of("--topo dgx-h100x16 --model llama3.1-8b --strategy fsdp "
                                   "--framework torchtitan --micro-batch 2 --recompute ops "
                                   "--global-batch 256");
    a = (few.allocated - many.allocated) / GIB;
    b = n * 16 * (1 / 8. - 1 / 128.) / GIB;
    near(a, b, .1, "8 to 128 GPUs: 16 B per parameter");
}

Test(memory, context_parallelism_keeps_it_flat)
{
    double first = 0;
    static const char *const lines[] = {"--strategy fsdp --seq 32K", "--strategy cp2fsdp --seq 64K",
                                        "--strategy cp4fsdp --seq 128K",
                                        "--strategy cp8fsdp --seq 256K"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char *line = mem_printf("--topo dgx-h100 --model llama3.1-8b --framework torchtitan "
                                "--recompute full --precision fp8 --global-batch %d %s",
                                8 >> i, lines[i]);
        double now = memory_of(line).allocated;
        if (i == 0) first = now;
        near(now, first, .02, line);
        free(line);
    }
}

/* The peak depends on the tokens of a rank: two context ranks are half a micro-batch. */
Test(memory, context_rank_is_half_a_micro_batch)
{
    struct memory cp = memory_of("--topo dgx-h100 --model llama3-8b --strategy cp2 --seq 4K "
                                 "--micro-batch 2 --global-batch 16");
    struct memory half = memory_of("--topo dgx-h100 --model llama3-8b --strategy dp8 --seq 4K "
                                   "--micro-batch 1 --global-batch 16");
    near(cp.allocated, half.allocated, .01, "cp 2 with micro-batch 2, against micro-batch 1");
}

/* With the optimizer sharded, n1 to n2 GPUs save 12 B per parameter of the difference. */
Test(memory, optimizer_over_more_gpus)
{
    static const char *const lines[] = {
        "--topo dgx-a100 --model llama2-7b --strategy dp8zero1 --seq 2K --global-batch 64",
        "--topo dgx-a100x2 --model llama2-7b --strategy dp16zero1 --seq 2K --global-batch 64",
        "--topo dgx-a100x4 --model llama2-7b --strategy dp32zero1 --seq 2K --global-batch 64",
        "--topo dgx-a100x8 --model llama2-7b --strategy dp64zero1 --seq 2K --global-batch 64"};
    static const double MiB[] = {4819, 2410, 1205}; /* published, measured */
    double before = memory_of(lines[0]).allocated;
    for (size_t i = 0; i < 3; i++) {
        double now = memory_of(lines[i + 1]).allocated;
        near((before - now) / 1048576, MiB[i], .01, lines[i + 1]);
        before = now;
    }
}

Test(memory, verdicts_that_users_met)
{
    static const struct {
        const char *line;
        bool fits;
    } cases[] = {
        /* full fine-tuning of 7 B on one 80 GB card */
        {"--topo dgx-a100 --gpus 1 --model llama2-7b --seq 2048 --global-batch 1", false},
        /* 13 B on 2 and on 4 cards */
        {"--topo dgx-a100 --gpus 2 --model llama2-13b --strategy fsdp --seq 2048 --global-batch 2 "
         "--recompute full",
         false},
        {"--topo dgx-a100 --gpus 4 --model llama2-13b --strategy fsdp --seq 2048 --global-batch 4 "
         "--recompute full",
         true},
        /* 70 B with ZeRO-3 on 16 and on 32 */
        {"--topo dgx-a100x2 --model llama2-70b --strategy zero3 --framework deepspeed --seq 2048 "
         "--global-batch 16 --recompute full",
         false},
        {"--topo dgx-a100x4 --model llama2-70b --strategy zero3 --framework deepspeed --seq 2048 "
         "--global-batch 32 --recompute full",
         true},
        /* unfused attention at s 4096 */
        {"--topo dgx-a100 --gpus 1 --model phi-3-mini --seq 4096 --global-batch 1 "
         "--feature attention=unfused,dropout=on",
         false},
        /* 405 B with FSDP alone */
        {"--topo dgx-h100x64 --model llama3-405b --strategy fsdp --framework torchtitan --seq 8192 "
         "--global-batch 512",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct memory m = memory_of(cases[i].line);
        cr_assert_eq(memory_verdict(&m) != VERDICT_NO, cases[i].fits, "%s: %.1f of %.1f GiB",
                     cases[i].line, m.reserved / GIB, m.capacity / GIB);
    }
}

Test(memory, remedy_is_true)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3-8b --strategy dp16");
    char *text = limit_remedy(&m.plan, &m.tables.constants[ENGINE_CLOSED].values, &m.step);
    cr_assert(text && strstr(text, "would fit"), "%s", text ? text : "fits already");
    free(text);
    unmake(&m);
}

/* ---- time: cases that users met ---- */

Test(step, ratios_that_users_met)
{
    static const struct {
        const char *slow, *fast;
        double low, high; /* of time_slow / time_fast */
    } cases[] = {
        /* micro-batches on an interleaved pipeline of 8 x 2: 16 against 32 of them, per token */
        {"--topo dgx-h100 --model llama3-8b --strategy pp8vpp2 --seq 8192 --global-batch 32",
         "--topo dgx-h100 --model llama3-8b --strategy pp8vpp2 --seq 8192 --global-batch 16",
         2 / 1.13, 2 / 1.06},
        /* TP over two nodes against TP in one, on machines with NVLink */
        {"--topo dgx-h100x2 --strategy tp8dp2@order=dp,tp", "--topo dgx-h100x2 --strategy tp8dp2",
         1.15, 2.5},
        {"--topo dgx-a100x2 --strategy tp8dp2@order=dp,tp", "--topo dgx-a100x2 --strategy tp8dp2",
         1.15, 2.5},
        /* TP 8 against FSDP where both fit: a third slower at least */
        {"--topo dgx-h100 --model llama3-8b --strategy tp8 --recompute full",
         "--topo dgx-h100 --model llama3-8b --strategy fsdp --recompute full", 1.3, 2.5},
        /* full recomputation costs up to a third */
        {"--topo dgx-h100 --strategy tp4zero1 --recompute full",
         "--topo dgx-h100 --strategy tp4zero1", 1.2, 1.38},
        /* 1F1B against interleaved, 405 B on 512 */
        {"--topo dgx-h100x64 --model llama3-405b --strategy tp8pp8 --split embedding,loss "
         "--global-batch 256",
         "--topo dgx-h100x64 --model llama3-405b --strategy tp8pp8vpp8 --split embedding,loss "
         "--global-batch 256",
         1.05, 1.4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double ratio = time_of(cases[i].slow) / time_of(cases[i].fast);
        cr_assert(ratio >= cases[i].low && ratio <= cases[i].high,
                  "%s: %.3f, expected %.2f to %.2f", cases[i].slow, ratio, cases[i].low,
                  cases[i].high);
    }
}

Test(step, llama3_405b_on_16384)
{
    double t = time_of("--topo dgx-h100x2048 --model llama3-405b --strategy tp8pp16vpp8zero1 --seq "
                       "8192 "
                       "--global-batch 2048 --split embedding,loss --recompute none");
    near(t, 6.46, .1, "405 B on 16,384 H100 (published: 400 TFLOP/s)");
}

/* With equal stages, no head and no fixed costs, the bubble is (p - 1)/m of the ideal time. */
Test(step, bubble_identity)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy pp8 --global-batch 32 --seq 4096");
    struct job job = m.plan.job;
    struct constants c = m.tables.constants[ENGINE_CLOSED].values;
    job.shape.vocab = 0;
    job.stage_layers = NULL;
    c.micro_ms[job.fw] = c.step_ms[job.fw] = c.pp_exposed[job.fw] = 0;
    c.pp_lat_us = 0;
    job.dev.ring_Bps = 1e30;
    static const struct {
        uint32_t v;
        double zb, want;
    } cases[] = {{1, 1, 7 / 32.}, {2, 1, 7 / 64.}, {4, 1, 7 / 128.}, {1, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job.vpp = cases[i].v;
        job.zb = cases[i].zb;
        struct step s = step_predict(&job, &c);
        double ideal = s.time_s - s.part_s[PART_BUBBLE] - s.part_s[PART_OPTIMIZER];
        double embedding = cost_embedding(&job, &c).element.fwd * 3 * 32;
        double got = s.part_s[PART_BUBBLE] / (ideal - embedding);
        cr_assert(fabs(got - cases[i].want) < 2e-3, "v %u, zb %g: %.5f, expected %.5f", cases[i].v,
                  cases[i].zb, got, cases[i].want);
    }
    unmake(&m);
}

/* ---- the commands ---- */

static int run(int (*command)(int, char **), const char *line)
{
    char *text = mem_strdup(line), *save = NULL, *argv[64] = {"x"};
    int argc = 1;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        argv[argc++] = w;
    }
    int status = command(argc, argv);
    fflush(stdout);
    free(text);
    return status;
}

Test(command, memory_prints_the_course_table, .init = cr_redirect_stdout)
{
    static const double want[][4] = {/* weights, gradients, optimizer, total, GB */
                                     {14, 14, 84, 112},
                                     {14, 14, 10.5, 38.5},
                                     {14, 1.75, 10.5, 26.25},
                                     {1.75, 1.75, 10.5, 14}};
    static const char *const columns[] = {"weights_GB", "gradients_GB", "optimizer_GB", "total_GB"};
    char path[] = "/tmp/course-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    char *line = mem_printf("--model 7b --gpus 8 --overwrite --csv %s", path);
    cr_assert_eq(run(memory_cmd, line), 0);
    struct csv csv;
    struct err err = ERR_INIT;
    cr_assert_eq(csv_read(&csv, path, &err), 0, "%s", err.text);
    cr_assert(csv.nrows >= 4);
    for (size_t r = 0; r < 4; r++) {
        for (size_t c = 0; c < 4; c++) {
            near(atof(csv_cell(&csv, r, columns[c])), want[r][c], 1e-9, columns[c]);
        }
    }
    csv_release(&csv);
    remove(path);
    free(line);
}

Test(command, statuses, .init = cr_redirect_stdout)
{
    cr_redirect_stderr();
    cr_assert_eq(run(step_cmd, "--topo dgx2x8.json --strategy tp2pp4"), 0);
    cr_assert_eq(run(step_cmd, "--topo dgx2x8.json --strategy tp2pp4 --json"), 0);
    cr_assert_eq(run(step_cmd, "--strategy tp2"), 2);
    cr_assert_eq(run(step_cmd, "--topo nowhere"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx2x8 --strategy tp3"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --precision nvfp4"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --model t5-3b"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --machine-factor 0"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --flops linear,hardware,embedding"), 0);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --flops full,causal"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --flops model,hardware"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --measured-rate 3000"), 0);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --measured-time 2s --measured-rate 3000"), 2);
    cr_assert_eq(run(step_cmd, "--topo dgx-a100 --measured-rate -1"), 2);
    cr_assert_eq(run(memory_cmd, "--topo dgx2x8 --strategy tp2pp4"), 0);
    cr_assert_eq(run(memory_cmd, "--model nothing"), 2);
}
