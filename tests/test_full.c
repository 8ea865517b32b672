/* SPDX-License-Identifier: Apache-2.0
 * Collectives of a step run message by message: alone each takes what its fluid job does, to the
 * picosecond; whole steps take what they do with fluid jobs, within 2 %. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/planned.h"
#include "train/event.h"
#include "train/full.h"
#include "train/plan.h"

/* ---- a plan from a command line ---- */

struct made {
    struct tables tables;
    struct net_const_table net;
    struct plan plan;
    struct job job; /* the plan's, to be changed */
    struct constants c;
    struct fluids *fluids;
    struct chunks *chunks;
};

static void unmake(struct made *m)
{
    chunks_free(m->chunks);
    fluids_free(m->fluids);
    net_const_release(&m->net);
    plan_release(&m->plan);
    tables_release(&m->tables);
}

/* false: there is no such plan. */
static bool make(struct made *m, const char *line)
{
    struct err err = ERR_INIT;
    struct lib_args lib = lib_usual();
    *m = (struct made){0};
    cr_assert_eq(net_const_read(&m->net, NULL, &err), 0, "%s", err.text);
    bool there = planned_if(&m->tables, &m->plan, ENGINE_EVENT, line, &err) == 0;
    if (there) {
        m->job = m->plan.job;
        m->c = m->tables.constants[ENGINE_EVENT].values;
        m->fluids = fluids_new(&m->plan.topo, &m->net.values, &lib);
        m->chunks = chunks_new();
    }
    err_release(&err);
    if (!there) unmake(m);
    return there;
}

/* ---- one call alone ---- */

/* What a call takes as the only task of a graph. */
static ps_t alone_ps(struct made *m, const struct full_call *call)
{
    struct err err = ERR_INIT;
    struct full *full = full_new(&m->job, m->fluids, 1, &err);
    cr_assert_not_null(full, "%s", err.text);
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), lane = tasks_lane(tasks);
    struct task task = {.lane = lane,
                        .rank = rank,
                        .kind = TASK_JOB,
                        .use = TASK_NONE,
                        .outside = full_number(full, call)};
    cr_assert_eq(task.outside, full_number(full, call));
    for (int i = 0; i < 3; i++) { /* the second and third run on what the first has made */
        tasks_add(tasks, &task);
    }
    tasks->outside = full_outside(full);
    cr_assert_eq(tasks_run(tasks, &err), 0, "%s", err.text);
    cr_assert_eq(full_end(full, &err), 0, "%s", err.text);
    ps_t whole = tasks_end(tasks);
    cr_assert_eq(whole, 3 * tasks->spans[0].end_ps);
    tasks_free(tasks);
    full_free(full);
    return whole / 3;
}

static const enum coll_id colls[] = {COLL_ALLREDUCE, COLL_ALLGATHER, COLL_REDUCE_SCATTER,
                                     COLL_ALLTOALL, COLL_BROADCAST};
enum { NCOLLS = sizeof colls / sizeof *colls };

Test(full, alone_is_the_fluid_job)
{
    static const char *const lines[] = {
        "--topo dgx-h100x4 --model llama3-8b",   "--topo dgx-a100x4 --model llama3-8b",
        "--topo h200-4nicx4 --model llama3-8b",  "--topo pcie8-a100x4 --model llama3-8b",
        "--topo pcie4-4090x8 --model llama3-8b", "--topo p5-h100x8 --model llama3-8b"};
    struct rng rng;
    rng_init(&rng, 5);
    unsigned tried = 0, across = 0, spread = 0;
    for (size_t t = 0; t < sizeof lines / sizeof *lines; t++) {
        struct made m;
        cr_assert(make(&m, lines[t]), "%s", lines[t]);
        uint32_t per_host = (uint32_t)m.plan.topo.per_host;
        for (int i = 0; i < 14; i++) {
            struct full_call call = {
                .call = {.coll = colls[rng_below(&rng, NCOLLS)],
                         .bytes = rng_below(&rng, 1 << 20) << rng_below(&rng, 10),
                         .n = 1u << rng_below(&rng, 6),
                         .stride = 1u << rng_below(&rng, 5),
                         .cross = rng_below(&rng, 4) ? 1 : .5},
                .to = TASK_NONE};
            if (call.call.n * call.call.stride > m.job.ngpus) continue;
            struct fluid fluid;
            struct err err = ERR_INIT;
            cr_assert_eq(fluids_get(m.fluids, &call.call, &fluid, &err), 0, "%s", err.text);
            ps_t got = alone_ps(&m, &call), want = fluid.fixed_ps + fluid.wire_ps;
            struct fluid_call parts[2];
            uint32_t nparts = fluids_parts(m.fluids, &call.call, parts);
            cr_assert_eq(got, want,
                         "%s: %s of %llu B, %u ranks %u apart by %s: %llu ps, fluid %llu", lines[t],
                         coll_get(call.call.coll)->name, (unsigned long long)call.call.bytes,
                         call.call.n, call.call.stride, fluid.algo, (unsigned long long)got,
                         (unsigned long long)want);
            tried++;
            across += call.call.n > 1 && call.call.n * call.call.stride > per_host;
            spread += nparts > 1;
        }
        unmake(&m);
    }
    cr_assert(tried > 50 && across > 20 && spread > 1, "%u, %u, %u", tried, across, spread);
}

/* A pipeline's message: bytes alone, and those of the other direction are not in its way. */
Test(full, messages)
{
    struct made m;
    cr_assert(
        make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy pp4tp2 --framework megatron"));
    struct full_call up = {.call = {.coll = COLL_SENDRECV,
                                    .bytes = 64 << 20,
                                    .n = 2,
                                    .stride = 8,
                                    .base = 8,
                                    .cross = 1},
                           .stage = 1,
                           .to = 2,
                           .message = true},
                     down = up;
    down.to = 0;
    down.call.base = 0;
    struct fluid fluid;
    struct err err = ERR_INIT;
    cr_assert_eq(fluids_get(m.fluids, &up.call, &fluid, &err), 0, "%s", err.text);
    cr_assert_eq(alone_ps(&m, &up), fluid.wire_ps);
    struct full *full = full_new(&m.job, m.fluids, 1, &err);
    cr_assert_not_null(full, "%s", err.text);
    struct full_call back = {.call = up.call, .stage = 2, .to = 1, .message = true};
    const struct full_call pairs[2][2] = {{up, back}, {up, down}};
    for (int i = 0; i < 2; i++) { /* both ways between two hosts; out of one host twice */
        struct tasks *tasks = tasks_new();
        tasks_rank(tasks);
        for (int k = 0; k < 2; k++) {
            struct task task = {.lane = tasks_lane(tasks),
                                .kind = TASK_JOB,
                                .use = TASK_NONE,
                                .outside = full_number(full, &pairs[i][k])};
            tasks_add(tasks, &task);
        }
        tasks->outside = full_outside(full);
        cr_assert_eq(tasks_run(tasks, &err), 0, "%s", err.text);
        cr_assert_eq(full_end(full, &err), 0, "%s", err.text);
        double times = (double)tasks_end(tasks) / (double)fluid.wire_ps;
        cr_assert(fabs(times - (i ? 2 : 1)) < 1e-6, "%d: %.9f", i, times);
        tasks_free(tasks);
    }
    full_free(full);
    unmake(&m);
}

/* ---- whole steps ---- */

static const char *pick(struct rng *rng, const char *const *list, size_t n)
{
    return list[rng_below(rng, n)];
}

/* A command line at random; it need not make sense. */
static char *random_line(struct rng *rng)
{
    static const char *const topos[] = {"dgx-h100",   "dgx-a100",      "h200-4nic", "pcie8-a100",
                                        "pcie4-4090", "dgx-h100-roce", "p5-h100"};
    static const char *const models[] = {"llama3-8b", "llama2-13b", "mixtral-8x7b"};
    static const char *const states[] = {"", "", "zero1", "zero2", "zero3", "fsdp", "fsdp8x4"};
    static const char *const frameworks[] = {"megatron", "nemo", "torchtitan", "deepspeed", "fsdp"};
    const char *state = pick(rng, states, 7);
    bool sharded = strncmp(state, "fsdp", 4) == 0 || strcmp(state, "zero3") == 0;
    uint32_t tp = 1u << rng_below(rng, 4), pp = 1u << rng_below(rng, sharded ? 1 : 3);
    uint32_t cp = rng_below(rng, 4) ? 1 : 2, vpp = pp > 1 && rng_below(rng, 3) == 0 ? 2 : 1;
    const char *model = pick(rng, models, 3);
    uint32_t ep = strcmp(model, "mixtral-8x7b") == 0 ? 1u << rng_below(rng, 4) : 1;
    return mem_printf("--topo %sx%u --model %s --strategy %stp%upp%uvpp%ucp%uep%u --framework %s "
                      "--seq %uK --micro-batch 1",
                      pick(rng, topos, 7), 1u << rng_below(rng, 4), model, state, tp, pp, vpp, cp,
                      ep, pick(rng, frameworks, 5), 2u << rng_below(rng, 3));
}

/* A few layers and micro-batches; half of the steps by accelerators that are up to four times as
 * fast, on hosts that are never late, so that the network matters. */
static void shrink(struct made *m, struct rng *rng)
{
    uint32_t stages = m->job.pp * m->job.vpp;
    m->job.shape.layers = stages * (1 + (uint32_t)rng_below(rng, 3));
    m->job.shape.dense_layers = 0;
    m->job.stage_layers = NULL;
    m->job.layout = NULL;
    uint64_t micro = m->job.pp * (1 + rng_below(rng, 2));
    m->job.global_batch = micro * m->job.dp * m->job.micro_batch;
    if (rng_below(rng, 2)) return;
    memset(m->c.host_us, 0, sizeof m->c.host_us);
    memset(m->c.step_ms, 0, sizeof m->c.step_ms);
    m->job.machine_factor /= 1 + (double)rng_below(rng, 4);
}

/* Time of jobs in the graph over what they take alone. */
static double stretched(const struct event_result *result)
{
    double sum = 0, alone = 0;
    for (uint32_t t = 0; t < result->tasks->ntasks; t++) {
        const struct task *task = &result->tasks->list[t];
        if (!task->outside) continue;
        sum += (double)(result->tasks->spans[t].end_ps - result->tasks->spans[t].start_ps);
        alone += (double)(task->fixed_ps + task->work_ps);
    }
    return alone > 0 ? sum / alone : 1;
}

static void run(struct made *m, enum event_detail detail, bool whole, const char *line,
                struct event_result *result)
{
    struct err err = ERR_INIT;
    struct event_args args = {.job = &m->job,
                              .c = &m->c,
                              .fluids = m->fluids,
                              .chunks = m->chunks,
                              .detail = detail,
                              .keep = whole,
                              .full = whole};
    cr_assert_eq(event_run(&args, result, &err), 0, "%s: %s", line, err.text);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

Test(full, steps_are_within_two_percent)
{
    enum { STEPS = 50 };
    double off[STEPS], shares = 0;
    unsigned met = 0, large = 0;
    struct rng rng;
    rng_init(&rng, 9);
    for (int n = 0; n < STEPS;) {
        char *line = random_line(&rng);
        struct made m;
        struct event_result fluid, full;
        if (!make(&m, line)) {
            free(line);
            continue;
        }
        bool fits = m.job.ngpus > 1 && m.job.ngpus <= FULL_MOST_GPUS && m.plan.rules.errors == 0;
        if (fits) {
            shrink(&m, &rng);
            run(&m, DETAIL_CHUNK, false, line, &fluid);
            run(&m, DETAIL_OP, true, line, &full);
            const ps_t *part = full.stages[full.step.slowest_stage].part_ps;
            off[n] = fabs((double)full.step_ps / (double)fluid.step_ps - 1);
            cr_expect(off[n] <= .02, "%s: %.6g s, with fluid jobs %.6g s", line, full.step.time_s,
                      fluid.step.time_s);
            ps_t moved = part[PART_TP] + part[PART_CP] + part[PART_EP] + part[PART_FSDP] +
                         part[PART_DP] + part[PART_PP];
            shares += (double)moved / (double)full.step_ps / STEPS;
            met += stretched(&full) > 1.01;
            large += m.job.ngpus == FULL_MOST_GPUS;
            n++;
            event_release(&fluid);
            event_release(&full);
        }
        unmake(&m);
        free(line);
    }
    qsort(off, STEPS, sizeof *off, by_size);
    printf("steps: median %.3f %%, 45 within %.2f %%, worst %.2f %%; %.0f %% of the time is "
           "communication\n",
           100 * off[STEPS / 2], 100 * off[44], 100 * off[STEPS - 1], 100 * shares);
    cr_assert(met >= 10 && large >= 5 && shares > .2, "%u, %u, %g", met, large, shares);
}

/* ---- what is refused ---- */

Test(full, refused)
{
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"--topo dgx-h100x16 --model llama3-8b --strategy tp8", "64 GPUs at most"},
        {"--topo hgx-mi300xx2 --model llama3-8b", "pair by pair"},
        {"--topo dgx-h100x2 --model llama3-8b --strategy pp4 --schedule dualpipe", "side by side"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        struct err err = ERR_INIT;
        cr_assert(make(&m, cases[i].line), "%s", cases[i].line);
        cr_assert_null(full_new(&m.job, m.fluids, 1, &err));
        cr_assert(err.code == ERR_USAGE && strstr(err.text, cases[i].words), "%s", err.text);
        err_release(&err);
        unmake(&m);
    }
}
