/* SPDX-License-Identifier: Apache-2.0
 * Memory of schedules of two ways, of uneven experts, and of what lies on the host: against the
 * schedules' own lists, counts by hand, and DeepSpeed's estimator. Closed figures of the usual
 * strategies are in test_step.c. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/planned.h"
#include "train/memory.h"
#include "train/pipeline.h"
#include "train/plan.h"

#define GIB 1073741824.0

/* Figures of a rank of a job of a command line. */
struct made {
    struct tables tables;
    struct plan plan;
};

static void make(struct made *m, const char *line)
{
    planned(&m->tables, &m->plan, ENGINE_CLOSED, line);
}

static struct stage_memory stage_of(const char *line, uint32_t rank)
{
    struct made m;
    make(&m, line);
    struct stage_memory s =
        memory_stage(&m.plan.job, &m.tables.constants[ENGINE_CLOSED].values, rank);
    plan_release(&m.plan);
    tables_release(&m.tables);
    return s;
}

static void near(double got, double want, double tolerance, const char *what)
{
    cr_expect(fabs(got - want) <= tolerance * fabs(want), "%s: %.9g, expected %.9g", what, got,
              want);
}

/* What is in flight by formula is what the schedule's list holds, in the same units. */
Test(memory, two_ways_hold_what_their_lists_hold)
{
    static const enum pipeline_id ids[] = {PIPELINE_DUALPIPE, PIPELINE_DUALPIPEV};
    for (size_t k = 0; k < 2; k++) {
        for (uint32_t p = 2; p <= 12; p += 2) {
            for (uint32_t m = 2 * p; m <= 6 * p; m += p) {
                struct err err = ERR_INIT;
                struct pipeline_shape shape = {.id = ids[k], .ranks = p, .chunks = 1, .micro = m};
                struct pipeline *pipeline = pipeline_new(&shape, &err);
                cr_assert(pipeline, "%s", err.text);
                double stages[12], most = 0, formula = 0;
                for (uint32_t i = 0; i < p; i++)
                    stages[i] = 4;
                struct job job = {.schedule = (uint8_t)ids[k],
                                  .pp = p,
                                  .vpp = 1,
                                  .dp = 1,
                                  .micro_batch = 1,
                                  .global_batch = m,
                                  .zb = 1,
                                  .stage_layers = stages};
                for (uint32_t r = 0; r < p; r++) {
                    double live = pipeline_peak(pipeline, r).live;
                    if (ids[k] == PIPELINE_DUALPIPEV) live /= 2; /* chunks are half a stage */
                    most = fmax(most, live);
                    formula = fmax(formula, memory_in_flight(&job, r));
                }
                near(formula, most, 1e-12, pipeline_row(ids[k])->name);
                pipeline_free(pipeline);
            }
        }
    }
}

Test(memory, two_ways_hold_weights)
{
    static const char base[] = "--topo dgx-h100 --gpus 4 --model llama3-8b --strategy pp4 "
                               "--global-batch 16 --schedule ";
    char *one = mem_printf("%s1f1b", base), *two = mem_printf("%sdualpipe", base),
         *vee = mem_printf("%sdualpipev", base);
    double layer = stage_of(one, 1).weights; /* of 8 layers; the first stage has the embedding */
    double end = stage_of(one, 0).weights - layer;
    for (uint32_t r = 0; r < 4; r++) {
        bool outer = r == 0 || r == 3;
        near(stage_of(two, r).weights, 2 * layer + 2 * outer * end, 1e-12, "dualpipe");
        near(stage_of(vee, r).weights, layer + 2 * (r == 0) * end, 1e-12, "dualpipev");
        cr_expect_eq(stage_of(two, r).logits > 0, outer);
        cr_expect_eq(stage_of(vee, r).logits > 0, r == 0);
    }
    free(one);
    free(two);
    free(vee);
}

/* Uneven experts: those of the busiest rank grow, the rest does not; dropped tokens cap it. */
Test(memory, busiest_experts)
{
#define MOE "--topo dgx-h100 --model mixtral-8x7b --strategy ep8 --seq 4K --global-batch 8"
    double even = stage_of(MOE, 0).activations;
    double more = stage_of(MOE " --moe-imbalance 1.5", 0).activations;
    double most = stage_of(MOE " --moe-imbalance 2", 0).activations;
    double kept = stage_of(MOE " --moe-imbalance 2 --moe-capacity 1.5", 0).activations;
    near(most - even, 2 * (more - even), 1e-9, "in proportion");
    near(kept, more, 1e-12, "capped");
    /* topk 2 of 4 h and 3 matrices of f, in 2 bytes, 32 layers, 4096 tokens, half as much again */
    near(more - even, .5 * 2 * (4. * 4096 + 6. * 14336) * 32 * 4096, 1e-9, "by hand");
#undef MOE
}

/* What leaves the GPU is found on the host, and nothing else changes. */
Test(memory, offload)
{
#define Z "--topo dgx-h100 --model llama3-8b --framework deepspeed --strategy "
    const double n = 8030261248;
    struct stage_memory all = stage_of(Z "zero3", 0);
    struct stage_memory opt = stage_of(Z "zero3 --offload optimizer", 0);
    struct stage_memory both = stage_of(Z "zero3 --offload optimizer,weights", 0);
    near(opt.host, (12 + 4) * n / 8, .01, "16 N / n");
    near(both.host, 18 * n / 8, .01, "18 N / n");
    cr_expect(opt.optimizer == 0 && opt.gradients == 0 && opt.weights == all.weights);
    cr_expect(both.weights == 0 && both.activations == all.activations);
    near(opt.gathered - all.gathered, 2 * 5e8 * 2, 1e-9, "two buckets of 5e8 elements");
    near(all.peak - opt.peak, (12 + 4) * n / 8 - 2e9, .01, "peak");

    struct stage_memory first = stage_of(Z "zero1 --offload optimizer", 0);
    near(first.host, 12 * n / 8, .01, "whole gradients stay");
    near(first.gradients, 4 * n, .01, "whole gradients stay");

    struct stage_memory kept = stage_of(Z "zero2", 0);
    struct stage_memory away = stage_of(Z "zero2 --offload activations", 0);
    near(away.activations, kept.activations * 2 / 32, 1e-9, "two layers of 32");
    near(away.host, kept.activations * 30 / 32, 1e-9, "the rest");
#undef Z
}

/* fp32 weights are their own master: whole on each rank with ZeRO-1 and -2, a part with FSDP.
 * DeepSpeed clones its part of them; Megatron's is a view. */
Test(memory, fp32_weights)
{
#define L "--topo dgx-h100 --model llama2-7b --seq 2048 --precision "
    const double n = 6738149376, tf = n / 8;
    static const struct {
        const char *line;
        double weights, gradients,
            optimizer; /* bytes of a parameter; below 0: of a rank's eighth */
    } cases[] = {
        {L "fp32 --strategy dp8", 4, 4, 8},
        {L "fp32 --strategy dp8zero1", 4, 4, -8},
        {L "tf32 --strategy dp8zero2", 4, -4, -8},
        {L "fp32 --strategy dp8zero1 --framework deepspeed", 4, 4, -12},
        {L "fp32 --strategy dp8zero3 --framework deepspeed", -4, -4, -12},
        {L "fp32 --strategy fsdp8 --framework fsdp", -4, -4, -8},
        {L "bf16 --strategy dp8zero1", 2, 4, -12},
        {L "bf16 --strategy fsdp8 --framework fsdp", 0, -4, -12},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stage_memory s = stage_of(cases[i].line, 0);
        const double bytes[] = {cases[i].weights, cases[i].gradients, cases[i].optimizer};
        const double got[] = {s.weights, s.gradients, s.optimizer};
        for (int k = 0; k < 3; k++)
            near(got[k], bytes[k] < 0 ? -bytes[k] * tf : bytes[k] * n, .01, cases[i].line);
    }
#undef L
}

/* What is offloaded must fit into a host that says what it has. */
Test(memory, hosts_have_an_end)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3.1-405b --strategy fsdp --framework fsdp --seq 4096 "
             "--offload optimizer,weights --recompute full");
    const struct constants *c = &m.tables.constants[ENGINE_CLOSED].values;
    struct memory memory = memory_predict(&m.plan.job, c);
    cr_expect(memory.reserved < memory.capacity);
    cr_expect(memory.host > 3000 * GIB && memory.host_capacity == 2048 * GIB);
    cr_expect(memory_host_full(&memory) && memory_verdict(&memory) == VERDICT_NO);
    m.plan.job.host_mem_B = 0;
    memory = memory_predict(&m.plan.job, c);
    cr_expect(!memory_host_full(&memory) && memory_verdict(&memory) != VERDICT_NO);
    plan_release(&m.plan);
    tables_release(&m.tables);
}

/* The three figures of deepspeedai/DeepSpeed#4527: 6805 M parameters, the largest module 131 M, 4
 * GPUs; and no promise below what a process needs. */
Test(memory, estimator_of_deepspeed)
{
    near(memory_deepspeed_estimate(6805e6, 131e6, 4, OFFLOAD_STATES) / GIB, .488, .0005, "all");
    near(memory_deepspeed_estimate(6805e6, 131e6, 4, OFFLOAD_OPTIMIZER) / GIB, 3.657, .0005, "opt");
    near(memory_deepspeed_estimate(6805e6, 131e6, 4, 0) / GIB, 29.007, .0005, "none");
    static const char *const offloads[] = {"", " --offload optimizer",
                                           " --offload optimizer,weights"};
    for (size_t i = 0; i < 3; i++) {
        char *line = mem_printf("--topo dgx-a100 --gpus 4 --model llama2-7b --framework deepspeed "
                                "--strategy zero3 --seq 2K --global-batch 4%s",
                                offloads[i]);
        struct made m;
        make(&m, line);
        struct memory memory =
            memory_predict(&m.plan.job, &m.tables.constants[ENGINE_CLOSED].values);
        double promise = memory_deepspeed_estimate((double)m.plan.model.params, 32000 * 4096., 4,
                                                   m.plan.job.offload);
        cr_expect_gt(memory.allocated, promise, "%s", line);
        cr_expect_gt(memory.allocated, 4 * GIB, "%s: %g", line, memory.allocated / GIB);
        plan_release(&m.plan);
        tables_release(&m.tables);
        free(line);
    }
}

/* Each layer gathered ahead is 2 bytes a parameter more, until all are there. */
Test(memory, layers_gathered_ahead)
{
    struct made m;
    make(&m, "--topo dgx-a100x8 --model llama2-70b --framework fsdp --strategy fsdp64");
    double layer_B = 2 * job_params(&m.plan.job).dense_layer, held[4];
    static const int ahead[] = {1, 2, 9, 200};
    plan_release(&m.plan);
    tables_release(&m.tables);
    for (int i = 0; i < 4; i++) {
        char *line = mem_printf("--topo dgx-a100x8 --model llama2-70b --framework fsdp --strategy "
                                "fsdp64 --prefetch %d",
                                ahead[i]);
        struct stage_memory s = stage_of(line, 0);
        held[i] = s.gathered;
        cr_assert_geq(s.peak, s.weights + s.gradients + s.optimizer + s.gathered);
        free(line);
    }
    near(held[1] - held[0], layer_B, 1e-9, "two ahead");
    near(held[2] - held[0], 8 * layer_B, 1e-9, "nine ahead");
    near(held[3] - held[0], (80 - 2) * layer_B, 1e-9, "all 80");
}

/* A pool grows by what comes and goes, not by weights that lie in it: 65 B parameters in 4 bits
 * train on one card of 48 GB (Dettmers et al. 2023). */
Test(memory, weights_do_not_grow_the_pool)
{
    struct made m;
    make(&m, "--topo pcie8-a40 --gpus 1 --model llama-65b --qlora --lora 64 --seq 512 "
             "--global-batch 16 --recompute full");
    struct memory memory = memory_predict(&m.plan.job, &m.tables.constants[ENGINE_CLOSED].values);
    double weights = memory.worst.weights, moves = memory.allocated - weights;
    cr_assert_gt(weights, 5 * moves);
    cr_assert_lt(memory.reserved - weights, 1.5 * moves + 1.5e9);
    cr_assert_geq(memory.reserved, memory.allocated);
    cr_assert_neq(memory_verdict(&memory), VERDICT_NO);
    plan_release(&m.plan);
    tables_release(&m.tables);
}

/* The way to the host: its own link, or a part of what a switch has; memory by socket. */
Test(memory, way_to_the_host)
{
    static const struct {
        const char *line;
        double GBps, shared, memory_GBps;
    } rows[] = {
        {"--topo dgx-h100", 63, 1, 307.2 / 4},   /* a switch for each */
        {"--topo dgx-a100", 31.5, 2, 204.8 / 4}, /* 4 switches, 2 sockets, 8 GPUs */
        {"--topo dgx-a100 --gpus 1", 31.5, 1, 204.8},
        {"--topo pcie8-a100", 31.5, 4, 204.8 / 4}, /* 4 under a switch */
        {"--topo pcie8-a40", 31.5, 1, 204.8 / 4},  /* root ports */
        {"--topo alps-gh200", 450, 1, 500},        /* C2C */
        {"--topo gb200-nvl72", 450, 2, 250},       /* two GPUs of a Grace */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct made m;
        make(&m, rows[i].line);
        near(m.plan.job.host_Bps / 1e9, rows[i].GBps, 1e-9, rows[i].line);
        near(m.plan.job.host_shared, rows[i].shared, 1e-9, rows[i].line);
        near(m.plan.job.host_mem_Bps / 1e9, rows[i].memory_GBps, 1e-9, rows[i].line);
        plan_release(&m.plan);
        tables_release(&m.tables);
    }
}
