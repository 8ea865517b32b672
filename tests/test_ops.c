/* SPDX-License-Identifier: Apache-2.0
 * Layers as operators: what they add up to (the closed form's costs of compute, FLOPs as they are
 * counted, bytes of collectives as papers give them), that none is quicker than the unit it runs
 * on, and that lists wait for what they need. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/planned.h"
#include "train/cost.h"
#include "train/ops.h"
#include "train/plan.h"
#include "train/step.h"

struct made {
    struct tables tables;
    struct plan plan;
    struct job job;     /* a copy, to be changed */
    struct constants c; /* the closed form's, so that both have the same ones */
};

static void make(struct made *m, const char *line)
{
    planned(&m->tables, &m->plan, ENGINE_EVENT, line);
    m->job = m->plan.job;
    m->c = m->tables.constants[ENGINE_CLOSED].values;
    const struct constants *event = &m->tables.constants[ENGINE_EVENT].values;
    if (!m->job.unfused_norm) m->c.elem[m->job.fw] = 1; /* see norms_move_what_they_must */
    m->c.elem_unfused = 1;                              /* likewise */
    m->job.accumulate_B = 0;                            /* see gradients_are_added_up */
    memcpy(m->c.host_us, event->host_us, sizeof m->c.host_us);
    m->c.sink_graph = event->sink_graph;
}

static void unmake(struct made *m)
{
    plan_release(&m->plan);
    tables_release(&m->tables);
}

static void near(double got, double want, double tolerance, const char *line, const char *what)
{
    double off = want == 0 ? fabs(got) : fabs(got / want - 1);
    cr_assert(off <= tolerance, "%s: %s: %.9g, expected %.9g", line, what, got, want);
}

/* Sums over the operators of a list. */
struct sums {
    double part[NPARTS], again, flops, bytes[NOP_LANES][COLL_COUNT];
    uint32_t calls[NOP_LANES], kernels;
};

static void add_sums(struct sums *s, const struct ops *ops)
{
    for (uint32_t i = 0; i < ops->count; i++) {
        const struct op *op = &ops->list[i];
        s->kernels += op->kernels;
        if (op->lane != OP_COMPUTE) {
            s->bytes[op->lane][op->call.coll] += op->bytes;
            s->calls[op->lane]++;
            continue;
        }
        *(op->again ? &s->again : &s->part[op->part]) += op->seconds;
        s->flops += op->flops;
    }
}

static struct sums sums_of(const struct made *m, enum layer_kind kind, enum pass pass,
                           uint32_t layer)
{
    struct sums s = {.again = 0};
    struct ops ops = {0};
    ops_layer(&ops, &m->job, &m->c, kind, pass, layer, layer);
    add_sums(&s, &ops);
    ops_release(&ops);
    return s;
}

static enum layer_kind kind_of(const struct made *m)
{
    return m->job.shape.experts ? LAYER_MOE : LAYER_DENSE;
}

/* Means over as many layers as windows and recomputed ones repeat in. */
static struct sums mean_of(const struct made *m, enum layer_kind kind, enum pass pass)
{
    struct sums all = {.again = 0};
    uint32_t n = m->job.shape.layers;
    for (uint32_t i = 0; i < n; i++) {
        struct sums one = sums_of(m, kind, pass, i);
        for (int p = 0; p < NPARTS; p++) {
            all.part[p] += one.part[p] / n;
        }
        all.again += one.again / n;
        all.flops += one.flops / n;
    }
    return all;
}

/* Jobs of every kind of layer. */
static const char *const jobs[] = {
    "--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --seq 2048",
    "--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --seq 2048 --sp --recompute selective",
    "--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --framework megatron-2022",
    "--topo dgx-h100x2 --model llama3-8b --strategy tp1 --precision fp8",
    "--topo dgx-h100x2 --model llama3-8b --strategy tp2cp4 --seq 16K",
    "--topo dgx-h100x2 --model llama3-8b --strategy tp1 --framework deepspeed",
    "--topo dgx-h100x8 --model mixtral-8x7b --strategy ep8",
    "--topo dgx-h100x8 --model mixtral-8x7b --strategy tp4ep8 --sp --recompute full",
    "--topo dgx-h100x32 --model deepseek-v3 --strategy pp4ep64",
    "--topo dgx-h100x32 --model deepseek-v3 --strategy pp4ep64 --precision fp8",
    "--topo dgx-h100x32 --model deepseek-v3 --strategy tp2pp4ep32 --sp",
    "--topo dgx-h100x2 --model gemma2-9b --strategy tp4",
    "--topo dgx-h100x2 --model gpt-oss-20b --strategy ep8",
    "--topo dgx-h100 --model llama3-8b --strategy tp1 --lora 16",
    "--topo dgx-h100 --model llama3-8b --strategy tp1 --lora 16 --qlora",
    "--topo dgx-h100x2 --model llama3-8b --strategy tp1 --recompute full",
};
enum { NJOBS = sizeof jobs / sizeof *jobs };

static void check_costs(const struct made *m, enum layer_kind kind, const struct layer_cost *want,
                        const char *line)
{
    const struct {
        enum step_part part;
        struct cost cost;
    } parts[] = {
        {PART_GEMM, want->gemm}, {PART_ATTENTION, want->attention}, {PART_ELEMENT, want->element}};
    struct sums f = mean_of(m, kind, PASS_F), both = mean_of(m, kind, PASS_BW);
    struct sums b = mean_of(m, kind, PASS_B), w = mean_of(m, kind, PASS_W);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *name = step_part_name(parts[i].part);
        uint32_t p = parts[i].part;
        /* the pieces of a ring have a kernel each */
        double ring = p == PART_ATTENTION && m->job.cp > 1
                          ? (m->job.cp - 1) * m->c.kernel_us[m->job.fw] * 1e-6
                          : 0;
        near(f.part[p], parts[i].cost.fwd + ring, 1e-9, line, name);
        near(both.part[p], parts[i].cost.bwd + ring, 1e-9, line, name);
        near(b.part[p] + w.part[p], both.part[p], 1e-9, line, name);
    }
    double fixed = kind == LAYER_MOE ? m->c.moe_layer_us * 1e-6 : 0;
    near(f.part[PART_LAUNCH], fixed, 1e-9, line, "fixed");
    near(both.part[PART_LAUNCH], 2 * fixed, 1e-9, line, "fixed, backward");
    near(b.part[PART_LAUNCH] + w.part[PART_LAUNCH], 2 * fixed, 1e-9, line, "fixed, in two passes");
    near(b.again, both.again, 1e-9, line, "recomputation before the input's gradient");
    cr_assert_eq(w.again, 0);
    cr_assert_eq(f.again, 0);
}

Test(ops, add_up_to_the_costs_of_layers)
{
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        make(&m, jobs[i]);
        struct layer_cost dense = cost_dense_layer(&m.job, &m.c);
        check_costs(&m, LAYER_DENSE, &dense, jobs[i]);
        if (m.job.shape.experts) {
            struct layer_cost moe = cost_moe_layer(&m.job, &m.c);
            check_costs(&m, LAYER_MOE, &moe, jobs[i]);
        }
        struct layer_cost head = cost_head(&m.job, &m.c);
        struct sums f = sums_of(&m, LAYER_HEAD, PASS_F, 0);
        struct sums b = sums_of(&m, LAYER_HEAD, PASS_BW, 0);
        near(f.part[PART_GEMM], head.gemm.fwd, 1e-9, jobs[i], "logits");
        near(b.part[PART_GEMM], head.gemm.bwd, 1e-9, jobs[i], "logits, backward");
        near(f.part[PART_ELEMENT], head.element.fwd, 1e-9, jobs[i], "loss");
        near(b.part[PART_ELEMENT], head.element.bwd, 1e-9, jobs[i], "loss, backward");
        struct layer_cost table = cost_embedding(&m.job, &m.c);
        f = sums_of(&m, LAYER_EMBEDDING, PASS_F, 0);
        near(f.part[PART_ELEMENT], table.element.fwd, 1e-9, jobs[i], "embedding");
        b = sums_of(&m, LAYER_EMBEDDING, PASS_BW, 0);
        near(b.part[PART_ELEMENT], m.job.lora_rank ? 0 : table.element.bwd, 1e-9, jobs[i],
             "embedding, backward");
        cr_assert_eq(sums_of(&m, LAYER_EMBEDDING, PASS_B, 0).kernels, 0);
        unmake(&m);
    }
}

static double router_s(const struct made *m)
{
    const double left[] = {1, 1, 1};
    struct cost_base x = cost_base(&m->job, &m->c, left);
    struct cost_experts e = cost_experts(&x, 1);
    return cost_gemm(&x, &e.router, COST_FORWARD).seconds;
}

/* Each module alone, on a layer without collectives, so that the closed form's count is of compute;
 * 30 layers hold whole halves and thirds. */
Test(ops, recompute_what_modules_name)
{
    static const unsigned modules[] = {RCM_CORE_ATTN, RCM_MLP, RCM_MLP_PART, RCM_MLA_UP,
                                       RCM_NORM,      RCM_OPS, RCM_HALF,     RCM_SAVE_DOT,
                                       RCM_THIRD,     RCM_ACT, RCM_MOE};
    static const char *const lines[] = {"--topo dgx-h100x2 --model llama3-8b --strategy tp1",
                                        "--topo dgx-h100x2 --model mixtral-8x7b --strategy ep1"};
    for (size_t l = 0; l < 2; l++) {
        struct made m;
        make(&m, lines[l]);
        m.job.shape.layers = 30;
        m.job.recompute = RC_SELECTIVE;
        for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
            m.job.rc_modules = modules[i];
            struct layer_cost want =
                l ? cost_moe_layer(&m.job, &m.c) : cost_dense_layer(&m.job, &m.c);
            if (l && modules[i] == RCM_OPS) /* the closed form leaves the router out */
                want.recompute += router_s(&m) / 2;
            near(mean_of(&m, kind_of(&m), PASS_B).again, want.recompute, 1e-9, lines[l], "module");
        }
        m.job.recompute = RC_FULL;
        m.job.rc_modules = 0;
        m.job.rc_blocks = 7;
        struct layer_cost want = l ? cost_moe_layer(&m.job, &m.c) : cost_dense_layer(&m.job, &m.c);
        near(mean_of(&m, kind_of(&m), PASS_BW).again, want.recompute, 1e-9, lines[l], "7 blocks");
        m.job.recompute = RC_SELECTIVE;
        m.job.rc_modules = RCM_NORM | RCM_SAVE_DOT; /* element-wise work is done once again */
        double both = mean_of(&m, kind_of(&m), PASS_B).again;
        m.job.rc_modules = RCM_SAVE_DOT;
        near(mean_of(&m, kind_of(&m), PASS_B).again, both, 1e-12, lines[l], "two modules");
        unmake(&m);
    }
}

/* Full recomputation repeats the forward, its collectives included. */
Test(ops, recompute_collectives)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model mixtral-8x7b --strategy tp4ep8 --sp --recompute full");
    struct sums f = sums_of(&m, LAYER_MOE, PASS_F, 0), b = sums_of(&m, LAYER_MOE, PASS_B, 0);
    m.job.recompute = RC_NONE;
    struct sums plain = sums_of(&m, LAYER_MOE, PASS_B, 0);
    for (int lane = 0; lane < NOP_LANES; lane++) {
        for (int coll = 0; coll < COLL_COUNT; coll++) {
            near(b.bytes[lane][coll], f.bytes[lane][coll] + plain.bytes[lane][coll], 1e-12, "full",
                 "bytes again");
        }
    }
    cr_assert_gt(f.bytes[OP_EP][COLL_ALLTOALL], 0);
    near(b.flops, f.flops + plain.flops, 1e-12, "full", "FLOPs again");
    unmake(&m);
}

/* Megatron's words: mlp is that of layers without experts, moe all from the router on, with its
 * exchanges; attention is done once. */
Test(ops, recompute_of_experts)
{
    struct made m;
    make(&m, "--topo dgx-h100x32 --model deepseek-v3 --strategy pp4ep64");
    struct sums f = sums_of(&m, LAYER_MOE, PASS_F, 3), plain = sums_of(&m, LAYER_MOE, PASS_BW, 3);
    m.job.recompute = RC_SELECTIVE;
    m.job.rc_modules = RCM_MLP;
    cr_assert_eq(sums_of(&m, LAYER_MOE, PASS_BW, 3).again, 0);
    cr_assert_gt(sums_of(&m, LAYER_DENSE, PASS_BW, 0).again, 0);
    m.job.rc_modules = RCM_MOE;
    struct sums b = sums_of(&m, LAYER_MOE, PASS_BW, 3);
    near(b.bytes[OP_EP][COLL_ALLTOALL],
         f.bytes[OP_EP][COLL_ALLTOALL] + plain.bytes[OP_EP][COLL_ALLTOALL], 1e-12, "moe", "bytes");
    cr_assert_gt(b.again, 0);
    double attention = f.part[PART_ATTENTION];
    cr_assert_leq(b.again, f.part[PART_GEMM] + f.part[PART_ELEMENT] + f.part[PART_LAUNCH]);
    cr_assert_gt(attention, 0);
    cr_assert_eq(sums_of(&m, LAYER_DENSE, PASS_BW, 0).again, 0);
    unmake(&m);
}

/* What all ranks execute for a step is what papers count: three times the forward, attention's
 * causal half, and what is done again. */
Test(ops, flops_of_a_step)
{
    static const struct {
        const char *line;
        unsigned convention;
    } cases[] = {
        {"--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --seq 2048", FLOPS_HARDWARE},
        {"--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --recompute full", FLOPS_HARDWARE},
        {"--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --framework megatron-2022",
         FLOPS_HARDWARE | FLOPS_FULL},
        {"--topo dgx-h100x2 --model llama3-8b --strategy tp2cp4 --seq 16K", FLOPS_HARDWARE},
        {"--topo dgx-h100x8 --model mixtral-8x7b --strategy tp4ep8 --sp", FLOPS_HARDWARE},
        {"--topo dgx-h100x32 --model deepseek-v3 --strategy pp4ep64", FLOPS_HARDWARE},
        {"--topo dgx-h100x2 --model gemma2-9b --strategy tp4", FLOPS_HARDWARE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        make(&m, cases[i].line);
        const struct job *job = &m.job;
        double flops =
            sums_of(&m, LAYER_HEAD, PASS_F, 0).flops + sums_of(&m, LAYER_HEAD, PASS_BW, 0).flops;
        for (uint32_t l = 0; l < job->shape.layers; l++) {
            enum layer_kind kind =
                job->shape.experts && l >= job->shape.dense_layers ? LAYER_MOE : LAYER_DENSE;
            flops += sums_of(&m, kind, PASS_F, l).flops + sums_of(&m, kind, PASS_BW, l).flops;
        }
        double ranks = (double)job->tp * job->cp;
        double micro = (double)job->global_batch / (double)job->micro_batch;
        near(flops * ranks * micro, step_flops(job, cases[i].convention), 1e-9, cases[i].line,
             "FLOPs of a step");
        unmake(&m);
    }
}

/* Each collective is waited for: by name, as what the next layer goes on from, or as a piece of the
 * one behind it on its lane; gradients of a ring by the last of them. */
static void check_waits(const struct ops *ops, const char *line)
{
    bool *named = mem_calloc(ops->count + 1, sizeof *named);
    uint32_t behind[NOP_LANES];
    memset(behind, 255, sizeof behind);
    for (uint32_t j = 0; j < ops->count; j++) {
        for (int a = 0; a < 2; a++) {
            cr_assert_lt(ops->list[j].after[a], (int32_t)j);
            if (ops->list[j].after[a] >= 0) named[ops->list[j].after[a]] = true;
        }
    }
    for (uint32_t j = ops->count; j-- > 0;) {
        const struct op *op = &ops->list[j];
        uint32_t next = behind[op->lane];
        bool piece = next < ops->count && (strcmp(ops->list[next].name, op->name) == 0 ||
                                           strncmp(op->name, "cp ", 3) == 0);
        cr_assert(op->lane == OP_COMPUTE || named[j] || j == ops->last || piece,
                  "%s: nothing waits for %s", line, op->name);
        behind[op->lane] = j;
    }
    free(named);
}

/* No operator beats the unit that it runs on. */
Test(ops, are_sound)
{
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        make(&m, jobs[i]);
        for (unsigned k = 0; k < 4 * NPASSES * 4; k++) {
            enum layer_kind kind = k % 4;
            if (kind == LAYER_MOE && !m.job.shape.experts) continue;
            m.job.tp_overlap = k / 4 % 2;
            m.job.ep_overlap = k / 8 % 2;
            struct ops ops = {0};
            ops_layer(&ops, &m.job, &m.c, kind, k / 16 % NPASSES, 0, 0);
            for (uint32_t j = 0; j < ops.count; j++) {
                const struct op *op = &ops.list[j];
                cr_assert(op->pieces >= 1 && op->lane < NOP_LANES && op->part < NPARTS);
                cr_assert_geq(op->seconds * (1 + 1e-12), op->peak > 0 ? op->flops / op->peak : 0,
                              "%s: %s", jobs[i], op->name);
                cr_assert_eq(op->lane != OP_COMPUTE, op->call.n > 1);
            }
            check_waits(&ops, jobs[i]);
            ops_release(&ops);
        }
        unmake(&m);
    }
}

/* ---- bytes of collectives ---- */

static void check_tp(struct made *m, bool overlap)
{
    m->job.tp_overlap = overlap;
    double one = 2.0 * (double)m->job.micro_batch * (double)m->job.seq * m->job.shape.hidden;
    struct sums f = sums_of(m, LAYER_DENSE, PASS_F, 0), b = sums_of(m, LAYER_DENSE, PASS_BW, 0);
    struct sums in = sums_of(m, LAYER_DENSE, PASS_B, 0), w = sums_of(m, LAYER_DENSE, PASS_W, 0);
    bool sp = m->job.sp;
    double gathers = sp ? 2 * one : 0, sums = 2 * one;
    enum coll_id sum = sp ? COLL_REDUCE_SCATTER : COLL_ALLREDUCE;
    near(f.bytes[OP_TP][COLL_ALLGATHER], gathers, 1e-12, "forward", "gathers");
    near(f.bytes[OP_TP][sum], sums, 1e-12, "forward", "sums");
    /* rows of qkv and up are gathered once more for the weights' gradients */
    near(b.bytes[OP_TP][COLL_ALLGATHER], 2 * gathers, 1e-12, "backward", "gathers");
    near(b.bytes[OP_TP][sum], sums, 1e-12, "backward", "sums");
    near(in.bytes[OP_TP][COLL_ALLGATHER], gathers, 1e-12, "of the input", "gathers");
    near(in.bytes[OP_TP][sum], sums, 1e-12, "of the input", "sums");
    near(w.bytes[OP_TP][COLL_ALLGATHER], gathers, 1e-12, "of the weights", "gathers");
    near(w.bytes[OP_TP][sum], 0, 0, "of the weights", "sums");
}

Test(ops, bytes_of_tensor_parallelism)
{
    struct made m;
    make(&m, "--topo dgx-a100x16 --model gpt3-175b --strategy tp8pp8 --seq 2048");
    for (int i = 0; i < 8; i++) {
        m.job.sp = i % 2;
        m.job.tp_tiles = i / 4 ? 5 : 0; /* 0: around the ring */
        check_tp(&m, i / 2 % 2);
    }
    m.job.tp = 1;
    cr_assert_eq(sums_of(&m, LAYER_DENSE, PASS_BW, 0).calls[OP_TP], 0);
    unmake(&m);
}

Test(ops, bytes_of_context_parallelism)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3-8b --strategy tp2cp4 --seq 16K");
    double tokens = 16384.0 / 4, kv = 2 * tokens * 2 * 8 * 128 / 2, q = 2 * tokens * 4096 / 2;
    struct sums f = sums_of(&m, LAYER_DENSE, PASS_F, 0), b = sums_of(&m, LAYER_DENSE, PASS_BW, 0);
    near(f.bytes[OP_CP][COLL_SENDRECV], 3 * kv, 1e-12, "ring", "forward");
    near(b.bytes[OP_CP][COLL_SENDRECV], 6 * kv, 1e-12, "ring", "backward: with gradients");
    m.job.cp_gather = true;
    f = sums_of(&m, LAYER_DENSE, PASS_F, 0), b = sums_of(&m, LAYER_DENSE, PASS_BW, 0);
    near(f.bytes[OP_CP][COLL_ALLGATHER], 4 * kv, 1e-12, "gather", "forward");
    near(b.bytes[OP_CP][COLL_ALLGATHER], 4 * kv, 1e-12, "gather", "backward");
    near(b.bytes[OP_CP][COLL_REDUCE_SCATTER], 4 * kv, 1e-12, "gather", "gradients");
    m.job.ulysses = true;
    f = sums_of(&m, LAYER_DENSE, PASS_F, 0), b = sums_of(&m, LAYER_DENSE, PASS_BW, 0);
    near(f.bytes[OP_CP][COLL_ALLTOALL], 2 * q + kv, 1e-12, "Ulysses", "forward");
    near(b.bytes[OP_CP][COLL_ALLTOALL], 2 * q + kv, 1e-12, "Ulysses", "backward");
    unmake(&m);
}

/* A published count: h 6144, 4 experts a token, 48 layers: 4.5 MiB (EP - 1)/EP of a token go and
 * come back in a forward pass; training doubles it. */
Test(ops, bytes_of_expert_parallelism)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model mixtral-8x7b --strategy tp4ep8 --sp");
    m.job.shape.hidden = 6144;
    m.job.shape.topk = 4;
    static const struct {
        uint32_t ep;
        double MiB;
    } cases[] = {{8, 3.9375}, {16, 4.21875}};
    for (size_t i = 0; i < 4; i++) {
        uint32_t ep = m.job.ep = cases[i % 2].ep;
        m.job.ep_overlap = i / 2;
        double tokens = (double)m.job.micro_batch * (double)m.job.seq / m.job.tp;
        struct sums f = sums_of(&m, LAYER_MOE, PASS_F, 0), b = sums_of(&m, LAYER_MOE, PASS_BW, 0);
        double sent = f.bytes[OP_EP][COLL_ALLTOALL] * (ep - 1) / ep / tokens;
        near(48 * sent / 1048576, cases[i % 2].MiB, 1e-12, "MoE", "forward");
        near(b.bytes[OP_EP][COLL_ALLTOALL], f.bytes[OP_EP][COLL_ALLTOALL], 1e-12, "MoE",
             "training");
        cr_assert_eq(f.calls[OP_EP], m.job.ep_overlap ? 8 : 2);
        cr_assert_eq(sums_of(&m, LAYER_MOE, PASS_W, 0).calls[OP_EP], 0);
    }
    unmake(&m);
}

static struct fluid_call dispatch_of(const struct made *m)
{
    struct ops ops = {0};
    struct fluid_call call = {.n = 0};
    ops_layer(&ops, &m->job, &m->c, LAYER_MOE, PASS_F, 0, 0);
    for (uint32_t i = 0; i < ops.count && !call.n; i++) {
        if (ops.list[i].lane == OP_EP) call = ops.list[i].call;
    }
    ops_release(&ops);
    return call;
}

/* n over k */
static double ways(double n, double k)
{
    double c = 1;
    for (double i = 0; i < k; i++)
        c *= (n - i) / (k - i);
    return c;
}

/* Of 256 experts on 64 ranks of 8 hosts a token has 8: it goes to each rank and crosses to each
 * host once that has any of them. One that wants a single expert saves nothing; one inside a
 * domain crosses nowhere. A router that is limited to the experts of 4 hosts (DeepSeek-V3) reaches
 * fewer, a gate that deals experts out in turn two ranks of one host. */
Test(ops, tokens_go_to_a_host_once)
{
    struct made m;
    make(&m, "--topo dgx-h100x32 --model deepseek-v3 --strategy pp4ep64");
    cr_assert(dispatch_of(&m).cross == 1 && !dispatch_of(&m).direct);
    m.job.ep_dedup = true;
    cr_assert(dispatch_of(&m).direct);
    double all_B = 2. * 7168 * (double)m.job.seq * (double)m.job.micro_batch;
    double ranks = 32 * (1 - ways(124, 8) / ways(128, 8));
    double hosts = 4 * (1 - ways(96, 8) / ways(128, 8));
    near((double)dispatch_of(&m).bytes, all_B * ranks, 1e-7, "limited", "bytes");
    near(dispatch_of(&m).cross, hosts / ranks, 1e-9, "limited", "share");
    cr_assert_eq(dispatch_of(&m).n, 64);
    double none = 0; /* of 4 hosts one has 0, 1 or 2 of the 4 groups */
    for (int j = 0; j <= 2; j++)
        none += ways(2, j) * ways(6, 4 - j) / ways(8, 4) * ways(128 - 32 * j, 8) / ways(128, 8);
    near(cost_touched(&m.job, 4), 4 * (1 - none), 1e-12, "limited", "hosts of two groups");
    m.job.shape.groups = 0;
    ranks = 64 * (1 - ways(252, 8) / ways(256, 8));
    hosts = 8 * (1 - ways(224, 8) / ways(256, 8));
    near((double)dispatch_of(&m).bytes, all_B * ranks, 1e-7, "any", "bytes");
    near(dispatch_of(&m).cross, hosts / ranks, 1e-9, "any", "share");
    m.job.experts_dealt = true;
    near((double)dispatch_of(&m).bytes, all_B * 2, 1e-7, "in turn", "bytes");
    near(dispatch_of(&m).cross, .5, 1e-9, "in turn", "share");
    m.job.experts_dealt = false;
    m.job.shape.topk = 1;
    near(dispatch_of(&m).cross, 1, 1e-9, "1 expert", "share");
    m.job.shape.topk = 8;
    m.job.domain = 72;
    cr_assert_eq(dispatch_of(&m).cross, 1);
    unmake(&m);
}

/* ---- what options change ---- */

static double seconds_of(const struct made *m, const char *name)
{
    struct ops ops = {0};
    double seconds = 0;
    ops_layer(&ops, &m->job, &m->c, LAYER_DENSE, PASS_F, 0, 0);
    for (uint32_t i = 0; i < ops.count; i++) {
        if (strcmp(ops.list[i].name, name) == 0) seconds += ops.list[i].seconds;
    }
    ops_release(&ops);
    return seconds;
}

/* How much more than the least element-wise kernels move holds for norms that are not fused with
 * dropout and residual only: a fused one reads and writes 10 h values of a token. */
Test(ops, norms_move_what_they_must)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3-8b --strategy tp1");
    double least = seconds_of(&m, "norm"), act = seconds_of(&m, "activation");
    double rope = seconds_of(&m, "rope");
    double bytes = 2.0 * 10 * m.job.shape.hidden * (double)m.job.seq * (double)m.job.micro_batch;
    near(least, bytes / (m.job.dev.hbm_Bps * m.c.hbm_eff), 1e-9, "norm", "seconds");
    m.c.elem[FW_LEGACY] = m.c.elem[FW_EAGER] = 2;
    m.c.elem_unfused = 1.5;
    m.job.fw = FW_LEGACY;
    near(seconds_of(&m, "norm"), least, 1e-9, "fused norm", "seconds");
    near(seconds_of(&m, "activation"), 2 * act, 1e-9, "activation", "seconds");
    m.job.fw = FW_EAGER;
    near(seconds_of(&m, "norm"), 2 * least, 1e-9, "not fused with the residual", "seconds");
    m.job.unfused_norm = true;
    near(seconds_of(&m, "norm"), 3 * least, 1e-9, "single operators", "seconds");
    near(seconds_of(&m, "activation"), 2 * act, 1e-9, "beside single operators", "seconds");
    near(seconds_of(&m, "rope"), 2 * rope, 1e-9, "beside single operators", "seconds");
    unmake(&m);
}

/* All micro-batches but the first read and write the sum of the weights' gradients once more, those
 * of a table as well, with the weights and not with the input; for adapters nothing. */
Test(ops, gradients_are_added_up)
{
    static const enum layer_kind kinds[] = {LAYER_DENSE, LAYER_EMBEDDING, LAYER_HEAD};
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy tp2 --micro-batch 1 --global-batch 16");
    const struct shape *s = &m.job.shape;
    double h = s->hidden, q = (double)s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    double table = s->vocab * h / 2, layer = (h * (2 * q + 2 * kv) + 3 * h * s->ffn) / 2;
    const double weights[] = {layer, table, table};
    for (int i = 0; i < 3; i++) {
        struct sums b = sums_of(&m, kinds[i], PASS_B, 0), both = sums_of(&m, kinds[i], PASS_BW, 0);
        m.job.accumulate_B = 10;
        double want = 3 / 4. * 10 * weights[i] / (m.job.dev.hbm_Bps * m.c.hbm_eff);
        double all = sums_of(&m, kinds[i], PASS_BW, 0).part[PART_ELEMENT];
        near(all - both.part[PART_ELEMENT], want, 1e-9, "four micro-batches", "seconds");
        near(sums_of(&m, kinds[i], PASS_B, 0).part[PART_ELEMENT], b.part[PART_ELEMENT], 1e-12,
             "the input's gradient", "seconds");
        m.job.global_batch = 4;
        near(sums_of(&m, kinds[i], PASS_BW, 0).part[PART_ELEMENT], both.part[PART_ELEMENT], 1e-12,
             "one micro-batch", "seconds");
        m.job.accumulate_B = 0, m.job.global_batch = 16;
    }
    unmake(&m);
}

Test(ops, busiest_experts)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model mixtral-8x7b --strategy ep8");
    struct sums even = sums_of(&m, LAYER_MOE, PASS_F, 0);
    m.job.moe_imbalance = 1.5;
    struct sums uneven = sums_of(&m, LAYER_MOE, PASS_F, 0);
    m.job.moe_capacity = 1.25;
    struct sums capped = sums_of(&m, LAYER_MOE, PASS_F, 0);
    near(uneven.bytes[OP_EP][COLL_ALLTOALL], 1.5 * even.bytes[OP_EP][COLL_ALLTOALL], 1e-9,
         "imbalance 1.5", "bytes");
    near(capped.bytes[OP_EP][COLL_ALLTOALL], 1.25 * even.bytes[OP_EP][COLL_ALLTOALL], 1e-9,
         "capacity 1.25", "bytes");
    cr_assert(uneven.part[PART_GEMM] > capped.part[PART_GEMM] &&
              capped.part[PART_GEMM] > even.part[PART_GEMM]);
    m.job.moe_capacity = m.job.moe_imbalance = 0; /* rows grow smoothly, whatever divides them */
    double first = sums_of(&m, LAYER_MOE, PASS_BW, 0).part[PART_GEMM], last = first;
    for (int i = 1; i <= 40; i++) {
        m.job.moe_imbalance = 1 + .0125 * i;
        double now = sums_of(&m, LAYER_MOE, PASS_BW, 0).part[PART_GEMM];
        cr_assert(now > last && now < last + .0126 * first, "%g: %g, %g", 1 + .0125 * i, last, now);
        last = now;
    }
    unmake(&m);
}

Test(ops, what_attention_sees)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model gemma2-9b --strategy tp1 --seq 16K");
    uint32_t key = ops_key(&m.job, LAYER_DENSE, 0, 0);
    cr_assert_neq(key, ops_key(&m.job, LAYER_DENSE, 1, 1)); /* every second layer has a window */
    cr_assert_eq(key, ops_key(&m.job, LAYER_DENSE, 2, 2));
    double window = sums_of(&m, LAYER_DENSE, PASS_F, 0).part[PART_ATTENTION];
    double whole = sums_of(&m, LAYER_DENSE, PASS_F, 1).part[PART_ATTENTION];
    double fixed = m.c.kernel_us[m.job.fw] * 1e-6;
    near((window - fixed) / (whole - fixed), 2.0 * m.job.shape.window / 16384, 1e-9, "gemma2",
         "window of 4096 of 16384");
    m.job.packed_seq = 2048; /* documents are shorter than the window */
    near(sums_of(&m, LAYER_DENSE, PASS_F, 0).part[PART_ATTENTION],
         sums_of(&m, LAYER_DENSE, PASS_F, 1).part[PART_ATTENTION], 1e-12, "gemma2", "documents");
    m.job.packed_seq = 0;
    m.job.shape.window_share = 0;
    double flops = sums_of(&m, LAYER_DENSE, PASS_F, 0).flops;
    m.job.packed_seq = 2048;
    double packed = sums_of(&m, LAYER_DENSE, PASS_F, 0).flops;
    double attention = 2.0 * 16384 * 16384 * m.job.shape.heads * m.job.shape.head_dim;
    near(flops - packed, attention * 7 / 8, 1e-9, "packed", "FLOPs of what is not seen");
    unmake(&m);
}

Test(ops, frozen_weights)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy tp1");
    double full = sums_of(&m, LAYER_DENSE, PASS_BW, 0).flops;
    double core = cost_flops_per_token(&m.job).attention / m.job.shape.layers * (double)m.job.seq *
                  (double)m.job.micro_batch;
    m.job.lora_rank = 16;
    double thin = 4 * job_lora_params(&m.job) * (double)m.job.seq * (double)m.job.micro_batch;
    struct sums lora = sums_of(&m, LAYER_DENSE, PASS_BW, 0);
    near(lora.flops - thin - core, (full - core) / 2, 1e-9, "LoRA", "no gradients of weights");
    cr_assert_eq(sums_of(&m, LAYER_EMBEDDING, PASS_BW, 0).kernels, 0);
    m.job.qlora = true;
    cr_assert_gt(sums_of(&m, LAYER_DENSE, PASS_F, 0).part[PART_ELEMENT],
                 lora.part[PART_ELEMENT] / 2);
    unmake(&m);
}

static uint32_t kernels_of(struct made *m, enum fw_class fw, bool unfused, enum layer_kind kind)
{
    m->job.fw = fw;
    m->job.unfused_norm = unfused;
    return sums_of(m, kind, PASS_F, 0).kernels;
}

/* However many pieces a product is cut into, the host issues it, and what stands beside it, once.
 */
static void pieces_are_issued_together(const struct made *m)
{
    struct made cut = *m;
    cut.job.tp = 8, cut.job.sp = true;
    for (int k = LAYER_DENSE; k <= LAYER_MOE; k++) {
        for (int p = 0; p < NPASSES; p++) {
            enum layer_kind kind = (enum layer_kind)k;
            enum pass pass = (enum pass)p;
            cut.job.tp_overlap = cut.job.ep_overlap = false;
            uint32_t whole = sums_of(&cut, kind, pass, 0).kernels, last = 0;
            cut.job.tp_overlap = true;
            for (cut.job.tp_tiles = 0; cut.job.tp_tiles < 32; cut.job.tp_tiles += 4) {
                uint32_t now = sums_of(&cut, kind, pass, 0).kernels;
                cr_assert(now >= whole && now <= whole + 3, "%d %d: %u, %u", k, p, now, whole);
                cr_assert(cut.job.tp_tiles < 16 || now == last); /* at 8 around the ring */
                last = now;
            }
            cut.job.ep_overlap = true; /* a dispatch of each of the four pieces */
            cr_assert_leq(sums_of(&cut, kind, pass, 0).kernels, last + 3);
        }
    }
}

Test(ops, kernels_and_the_host)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model mixtral-8x7b --strategy ep8");
    uint32_t fused = kernels_of(&m, FW_FUSED, false, LAYER_DENSE);
    uint32_t eager = kernels_of(&m, FW_EAGER, true, LAYER_DENSE);
    cr_assert(fused >= 20 && fused <= 30, "%u", fused);
    cr_assert(eager >= 40 && eager <= 60, "%u", eager);
    uint32_t experts = kernels_of(&m, FW_FUSED, false, LAYER_MOE);
    cr_assert_gt(experts, fused);
    uint32_t weights = sums_of(&m, LAYER_MOE, PASS_W, 0).kernels;
    m.job.shape.experts *= 16; /* four of a rank's 16 in the time of an operator, two a product */
    cr_assert_eq(kernels_of(&m, FW_FUSED, false, LAYER_MOE), experts + 2 * 2 * 3);
    cr_assert_eq(sums_of(&m, LAYER_MOE, PASS_W, 0).kernels, weights + 2 * 2 * 15);
    m.job.precision = PREC_FP8; /* each expert's product and cast, and casts of qkv and o */
    cr_assert_eq(kernels_of(&m, FW_FUSED, false, LAYER_MOE),
                 experts + 2 * 2 * 15 + 2 * 2 * 16 + 2 * 2);
    m.job.precision = PREC_16;
    m.job.shape.experts /= 16;
    pieces_are_issued_together(&m);
    cr_assert_gt(kernels_of(&m, FW_EAGER, true, LAYER_MOE), eager);
    cr_assert_gt(sums_of(&m, LAYER_DENSE, PASS_BW, 0).kernels, eager);
    m.job.graphs = GRAPHS_NONE;
    m.job.dev.grace = false;
    near(ops_issue_s(&m.job, &m.c), m.c.host_us[FW_EAGER] * 1e-6, 1e-12, "eager", "issue");
    m.job.dev.grace = true;
    near(ops_issue_s(&m.job, &m.c), m.c.host_us[FW_EAGER] * 1e-6 * m.c.host_grace, 1e-12, "Grace",
         "issue");
    m.job.graphs = GRAPHS_PARTIAL;
    m.c.graphs_partial = .25;
    near(ops_issue_s(&m.job, &m.c), m.c.host_us[FW_EAGER] * 1e-6 * m.c.host_grace / 4, 1e-12,
         "partial graphs", "issue");
    m.job.graphs = GRAPHS_FULL;
    cr_assert_eq(ops_issue_s(&m.job, &m.c), 0);
    cr_assert_eq(sums_of(&m, LAYER_MOE, PASS_F, 0).part[PART_LAUNCH], 0);
    unmake(&m);
}

Test(ops, optimizer)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy tp1");
    double Bps = m.job.dev.hbm_Bps * m.c.hbm_eff / m.c.opt_traffic;
    m.job.opt_traffic = 0;
    near(ops_optimizer_s(&m.job, &m.c, 1e9, 0), 30e9 / Bps, 1e-12, "AdamW", "seconds");
    m.job.opt_traffic = .5;
    near(ops_optimizer_s(&m.job, &m.c, 1e9, 8e9), (15e9 + 48e9) / Bps, 1e-12, "ZeRO-1", "seconds");
    unmake(&m);
}

/* Groups reach as far as they do where pipeline ranks lie inside them, with as many members in a
 * host. */
Test(ops, groups_around_stages)
{
    struct job job = {.ngpus = 32, .cp = 2, .dp = 4, .pp = 4, .ep = 4, .etp = 2, .tp = 1};
    job.cp_stride = 1, job.dp_stride = 2, job.pp_stride = 8; /* cp, dp, pp */
    cr_assert_eq(job_dp_stride(&job), 1);
    cr_assert_eq(job_stage_stride(&job, 2, 4), 2);
    job.pp_stride = 2, job.dp_stride = 8; /* cp, pp, dp: 0 1 8 9 16 17 24 25 as 0 4 8 .. 28 */
    cr_assert_eq(job_dp_stride(&job), 4);
    cr_assert_eq(job_stage_stride(&job, 1, 2), 1); /* an expert's two */
    cr_assert_eq(job_stage_stride(&job, 2, 4), 8);
    job.dp_stride = 1, job.pp_stride = 4, job.cp_stride = 16; /* dp, pp, cp */
    cr_assert_eq(job_dp_stride(&job), 4);
    job.cp_stride = 4, job.pp_stride = 8; /* dp, cp, pp */
    cr_assert_eq(job_dp_stride(&job), 1);

    struct made m;
    make(&m, "--topo dgx-h100x4 --model qwen3-30b-a3b --strategy ep8pp2@order=pp,dp");
    struct ops ops = {0};
    ops_layer(&ops, &m.job, &m.c, LAYER_MOE, PASS_F, 0, 0);
    uint32_t exchanges = 0;
    for (uint32_t i = 0; i < ops.count; i++) {
        if (ops.list[i].lane != OP_EP) continue;
        cr_assert(ops.list[i].call.stride == 2 && ops.list[i].call.n == 8);
        exchanges++;
    }
    cr_assert_eq(exchanges, 2);
    ops_release(&ops);
    unmake(&m);
}
