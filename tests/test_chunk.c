/* SPDX-License-Identifier: Apache-2.0
 * Passes over chunks: times that add up, a host that is late, what overlaps, and that counting
 * layers gives what running them all gives. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/planned.h"
#include "train/chunk.h"
#include "train/plan.h"

struct made {
    struct tables tables;
    struct plan plan;
    struct job job; /* a copy, to be changed */
    struct constants c;
    struct net_const_table net;
    struct lib_args args;
    struct fluids *fluids;
    struct chunks *chunks;
};

static void make(struct made *m, const char *line)
{
    struct err err = ERR_INIT;
    planned(&m->tables, &m->plan, ENGINE_EVENT, line);
    m->job = m->plan.job;
    m->c = m->tables.constants[ENGINE_EVENT].values;
    cr_assert_eq(net_const_read(&m->net, NULL, &err), 0, "%s", err.text);
    m->args = lib_usual();
    m->fluids = fluids_new(&m->plan.topo, &m->net.values, &m->args);
    m->chunks = chunks_new();
    chunks_job(m->chunks, &m->job, &m->c, m->fluids);
}

static void unmake(struct made *m)
{
    chunks_free(m->chunks);
    fluids_free(m->fluids);
    net_const_release(&m->net);
    plan_release(&m->plan);
    tables_release(&m->tables);
}

/* The job was changed. */
static void again(struct made *m)
{
    chunks_job(m->chunks, &m->job, &m->c, m->fluids);
}

static const struct chunk_pass *pass_of(struct made *m, struct chunk_shape shape, enum pass pass)
{
    struct err err = ERR_INIT;
    const struct chunk_pass *p = chunks_pass(m->chunks, &shape, pass, 1, &err);
    cr_assert(p, "%s", err.text);
    return p;
}

/* All layers of the job. */
static struct chunk_shape whole(const struct made *m)
{
    return (struct chunk_shape){.layers = m->job.shape.layers, .embedding = true, .head = true};
}

/* Jobs of every kind of collective. */
static const char *const jobs[] = {
    "--topo dgx-h100 --model llama3-8b --strategy tp1",
    "--topo dgx-a100x8 --model gpt3-175b --strategy tp8pp8 --seq 2048",
    "--topo dgx-a100x8 --model gpt3-175b --strategy tp8pp8 --sp --recompute full --seq 2048",
    "--topo dgx-h100x8 --model llama3-70b --strategy tp8pp4 --sp --feature tp-overlap=on",
    "--topo dgx-h100x2 --model llama3-8b --strategy tp2cp4 --seq 32K",
    "--topo dgx-h100x2 --model llama3-8b --strategy tp2cp8 --seq 32K --cp-comm gather",
    "--topo dgx-h100x2 --model gemma2-9b --strategy tp4 --framework torchtitan",
    "--topo dgx-h100x4 --model mixtral-8x7b --strategy tp2ep8 --sp --feature ep-overlap=on",
    "--topo dgx-h100x8 --model deepseek-v3 --strategy ep64 --framework deepspeed",
    "--topo dgx-h100x8 --model deepseek-v3 --strategy ep64 --recompute full --seq 512",
};
enum { NJOBS = sizeof jobs / sizeof *jobs };

/* Layers behind a host that is late, or that wait for it: as struct chunk_part has it. */
Test(chunk, parts_are_of_the_host_and_the_rank)
{
    struct err err = ERR_INIT;
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        make(&m, jobs[i]);
        struct chunk_shape all = whole(&m);
        for (int pass = PASS_F; pass <= PASS_BW; pass += PASS_BW - PASS_F) {
            const struct chunk_pass *one = pass_of(&m, all, (enum pass)pass);
            struct chunk_part part;
            cr_assert_eq(
                chunks_part(m.chunks, &all, (enum pass)pass, 1, 0, one->nlayers, &part, &err), 0,
                "%s", err.text);
            cr_assert_eq(part.near, one, "%s: all layers are the pass", jobs[i]);
            for (uint32_t k = 0; k < one->nlayers; k++) {
                cr_assert_eq(chunks_part(m.chunks, &all, (enum pass)pass, 1, k, k + 1, &part, &err),
                             0, "%s", err.text);
                cr_assert(part.far->total_ps <= part.near->total_ps &&
                          part.far->host_ps <= part.far->total_ps &&
                          part.near->host_ps <= part.near->total_ps);
                cr_assert_eq(part.near->nlayers, 1);
                cr_assert(part.near->host_ps > 0, "%s: layer %u is issued", jobs[i], k);
                cr_assert_eq(part.near->flops, part.far->flops);
            }
        }
        unmake(&m);
    }
}

static void check_sums(const struct chunk_pass *p, const char *line)
{
    ps_t parts_ps = 0, layers_ps = 0;
    for (int i = 0; i < NPARTS; i++) {
        parts_ps += p->part_ps[i];
    }
    for (uint32_t i = 0; i < p->nlayers; i++) {
        layers_ps += p->layer_ps[i];
    }
    cr_assert_eq(parts_ps, p->total_ps, "%s: parts %lu, all %lu", line, parts_ps, p->total_ps);
    cr_assert_eq(layers_ps, p->total_ps, "%s: layers %lu, all %lu", line, layers_ps, p->total_ps);
    cr_assert(p->compute_share >= 0 && p->link_share >= 0);
    cr_assert_leq(p->compute_share + p->link_share, 1 + 1e-12, "%s", line);
    cr_assert_leq(p->floor_s * 1e12, (double)p->total_ps, "%s", line);
    cr_assert_eq(p->part_ps[PART_BUBBLE], 0, "%s", line);
}

Test(chunk, parts_sum_to_the_total)
{
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        struct err err = ERR_INIT;
        make(&m, jobs[i]);
        struct chunk_shape shape = whole(&m);
        for (int us = 0; us <= 50; us += 25) {
            m.c.host_us[m.job.fw] = us;
            again(&m);
            for (enum pass pass = PASS_F; pass < NPASSES; pass++) {
                check_sums(pass_of(&m, shape, pass), jobs[i]);
            }
            const struct chunk_pass *pair = chunks_pair(m.chunks, &shape, &shape, 1, &err);
            cr_assert(pair, "%s", err.text);
            check_sums(pair, jobs[i]);
        }
        struct chunk_shape none = {.layers = 0};
        cr_assert_eq(pass_of(&m, none, PASS_BW)->total_ps, 0);
        unmake(&m);
    }
}

/* Operators of all layers of the shape, and how many kernels the host issues for them. */
static uint64_t list_all(struct made *m, struct chunk_shape shape, enum pass pass, struct ops *ops,
                         uint32_t *ends)
{
    bool forward = pass == PASS_F;
    uint32_t n = 0, dense = m->job.shape.experts ? m->job.shape.dense_layers : UINT32_MAX;
    for (uint32_t i = 0; i < shape.layers + 2; i++) {
        uint32_t at = forward ? i : shape.layers + 1 - i, place = at - 1;
        enum layer_kind kind = shape.first + place < dense ? LAYER_DENSE : LAYER_MOE;
        if (at == 0) kind = LAYER_EMBEDDING;
        if (at == shape.layers + 1) kind = LAYER_HEAD;
        if ((at == 0 && !shape.embedding) || (kind == LAYER_HEAD && !shape.head)) continue;
        ops_layer(ops, &m->job, &m->c, kind, pass, shape.first + place, place);
        if (ends) ends[n] = ops->count;
        n++;
    }
    uint64_t kernels = 0;
    for (uint32_t i = 0; i < ops->count; i++) {
        kernels += ops->list[i].kernels;
    }
    return kernels;
}

Test(chunk, alone_takes_the_sum_of_its_operators)
{
    struct made m;
    make(&m, jobs[0]);
    m.c.host_us[m.job.fw] = 0;
    again(&m);
    for (enum pass pass = PASS_F; pass < NPASSES; pass++) {
        struct ops ops = {0};
        ps_t sum_ps = 0;
        list_all(&m, whole(&m), pass, &ops, NULL);
        for (uint32_t i = 0; i < ops.count; i++) {
            sum_ps += (ps_t)llround(ops.list[i].seconds * 1e12);
        }
        const struct chunk_pass *p = pass_of(&m, whole(&m), pass);
        cr_assert_eq(p->total_ps, sum_ps, "%lu %lu", p->total_ps, sum_ps);
        cr_assert_float_eq(p->compute_share, 1, 1e-12);
        ops_release(&ops);
    }
    unmake(&m);
}

Test(chunk, waits_for_a_late_host)
{
    struct made m;
    make(&m, jobs[0]);
    struct ops ops = {0};
    uint64_t kernels = list_all(&m, whole(&m), PASS_BW, &ops, NULL);
    ps_t quick_ps = 0;
    for (uint32_t i = 0; i < ops.count; i++) {
        quick_ps += (ps_t)llround(ops.list[i].seconds * 1e12);
    }
    m.c.host_us[m.job.fw] = 30000; /* longer than any operator */
    again(&m);
    const struct chunk_pass *p = pass_of(&m, whole(&m), PASS_BW);
    cr_assert_eq(p->total_ps, kernels * 30000000000ULL);
    cr_assert_eq(p->part_ps[PART_LAUNCH], p->total_ps - quick_ps);
    m.c.host_us[m.job.fw] = .001; /* never late */
    again(&m);
    cr_assert_eq(pass_of(&m, whole(&m), PASS_BW)->total_ps, quick_ps);
    m.c.host_us[m.job.fw] = 30000;
    m.job.graphs = GRAPHS_FULL; /* kernels have no fixed time in it, so it may be less */
    again(&m);
    p = pass_of(&m, whole(&m), PASS_BW);
    cr_assert_leq(p->total_ps, quick_ps);
    cr_assert_eq(p->part_ps[PART_LAUNCH], 0);
    ops_release(&ops);
    unmake(&m);
}

/* What is counted is what a run of all layers has, layer by layer. */
static void check_unrolled(struct made *m, struct chunk_shape shape, enum pass pass,
                           const char *line)
{
    struct err err = ERR_INIT;
    struct ops ops = {0}, same = {0};
    struct task_span *spans;
    uint32_t *ends = mem_calloc(shape.layers + 2, sizeof *ends);
    const struct chunk_pass *p = pass_of(m, shape, pass);
    cr_assert_eq(chunks_detail(m->chunks, &shape, pass, 1, &ops, &spans, &err), 0, "%s", err.text);
    uint64_t kernels = list_all(m, shape, pass, &same, ends);
    cr_assert_eq(same.count, ops.count);
    ps_t at_ps = 0, end_ps = 0, host_ps = 0;
    bool waits = false;
    for (uint32_t i = 0; i < ops.count; i++) {
        waits = waits || ops.list[i].sync;
    }
    if (ops_issue_s(&m->job, &m->c) > 0)
        host_ps = kernels * (ps_t)llround(ops_issue_s(&m->job, &m->c) * 1e12);
    for (uint32_t i = 0, op = 0; i < p->nlayers; i++) {
        for (; op < ends[i]; op++) {
            if (spans[op].end_ps > end_ps) end_ps = spans[op].end_ps;
        }
        bool last = i + 1 == p->nlayers;
        if (last && host_ps > end_ps) end_ps = host_ps;
        if (last && waits) break; /* a host that has waited may end later still */
        at_ps += p->layer_ps[i];
        cr_assert_eq(at_ps, end_ps, "%s: pass %d, layer %u: %lu, unrolled %lu", line, pass, i,
                     at_ps, end_ps);
    }
    free(spans);
    free(ends);
    ops_release(&ops);
    ops_release(&same);
}

Test(chunk, counted_is_unrolled)
{
    static const double hosts_us[] = {0, 4, 8, 16, 40, 300};
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        make(&m, jobs[i]);
        if (m.job.shape.experts && m.job.shape.layers > 4) m.job.shape.dense_layers = 5;
        m.job.rc_blocks = m.job.recompute == RC_FULL ? 9 : 0;
        for (size_t h = 0; h < sizeof hosts_us / sizeof *hosts_us; h++) {
            m.c.host_us[m.job.fw] = hosts_us[h];
            again(&m);
            for (enum pass pass = PASS_F; pass < NPASSES; pass++) {
                check_unrolled(&m, whole(&m), pass, jobs[i]);
                check_unrolled(&m, (struct chunk_shape){.first = 1, .layers = 7}, pass, jobs[i]);
            }
        }
        unmake(&m);
    }
}

/* In pieces is not slower than whole but for a kernel's fixed time per piece, and what running
 * collectives take from the products beside them. */
static void check_overlap(struct made *m, bool *switched, const char *line)
{
    for (enum pass pass = PASS_F; pass < NPASSES; pass++) {
        *switched = false;
        again(m);
        struct ops ops = {0};
        list_all(m, whole(m), pass, &ops, NULL);
        double plain = (double)pass_of(m, whole(m), pass)->total_ps;
        uint32_t before = ops.count;
        *switched = true;
        again(m);
        ops.count = 0;
        list_all(m, whole(m), pass, &ops, NULL);
        double cut = (double)pass_of(m, whole(m), pass)->total_ps;
        double fixed = (ops.count - before) * m->c.kernel_us[m->job.fw] * 1e6;
        cr_assert_leq(cut, plain + 1.2 * fixed, "%s: pass %d: %g, whole %g, fixed %g", line, pass,
                      cut, plain, fixed);
        if (pass == PASS_F) cr_assert_lt(cut, plain, "%s: nothing is gained", line);
        ops_release(&ops);
    }
}

Test(chunk, overlap_gains)
{
    struct made m;
    make(&m, jobs[3]);
    check_overlap(&m, &m.job.tp_overlap, jobs[3]);
    unmake(&m);
    make(&m, "--topo dgx-h100x4 --model mixtral-8x7b --strategy ep32 --sp");
    check_overlap(&m, &m.job.ep_overlap, "mixtral");
    unmake(&m);
}

Test(chunk, pair_lies_between_the_longer_and_the_sum)
{
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        struct err err = ERR_INIT;
        make(&m, jobs[i]);
        m.job.tp_overlap = m.job.ep_overlap = false;
        again(&m);
        struct chunk_shape f = {.layers = 4, .embedding = true},
                           b = {.first = 4, .layers = 3, .head = true};
        ps_t f_ps = pass_of(&m, f, PASS_F)->total_ps, b_ps = pass_of(&m, b, PASS_BW)->total_ps;
        const struct chunk_pass *pair = chunks_pair(m.chunks, &f, &b, 1, &err);
        cr_assert(pair, "%s", err.text);
        ps_t longer_ps = f_ps > b_ps ? f_ps : b_ps;
        cr_assert(pair->total_ps >= longer_ps && pair->total_ps <= f_ps + b_ps,
                  "%s: %lu and %lu, together %lu", jobs[i], f_ps, b_ps, pair->total_ps);
        cr_assert_eq(pair->nlayers, 4);
        if (pass_of(&m, f, PASS_F)->link_share > .05)
            cr_assert_lt(pair->total_ps, f_ps + b_ps, "%s: nothing is hidden", jobs[i]);
        cr_assert_eq(chunks_pair(m.chunks, &f, &b, 1, &err), pair);
        m.c.sm_nvlink = m.c.sm_network = .9; /* to run beside a collective gains nothing */
        again(&m);
        f_ps = pass_of(&m, f, PASS_F)->total_ps, b_ps = pass_of(&m, b, PASS_BW)->total_ps;
        pair = chunks_pair(m.chunks, &f, &b, 1, &err);
        cr_assert(pair && pair->total_ps <= f_ps + b_ps, "%s", jobs[i]);
        check_sums(pair, jobs[i]);
        unmake(&m);
    }
}

Test(chunk, passes_are_kept)
{
    struct made m;
    struct err err = ERR_INIT;
    make(&m, jobs[1]);
    struct chunk_shape a = {.layers = 12}, b = {.first = 12, .layers = 12};
    const struct chunk_pass *pass = pass_of(&m, a, PASS_F);
    size_t runs, asked, later;
    fluids_count(m.fluids, &runs, &asked);
    cr_assert_eq(pass_of(&m, b, PASS_F), pass); /* the same layers elsewhere */
    fluids_count(m.fluids, &runs, &later);
    cr_assert_eq(asked, later);
    cr_assert_neq(pass_of(&m, a, PASS_BW), pass);
    const struct chunk_pass *slow = chunks_pass(m.chunks, &a, PASS_F, 2, &err);
    cr_assert(slow && slow != pass);
    cr_assert_gt(slow->total_ps, pass->total_ps);
    cr_assert_float_eq(slow->bytes[NET_NVLINK] / pass->bytes[NET_NVLINK], 1, 1e-12);
    ps_t others_ps = pass->part_ps[PART_TP];
    cr_assert_leq(slow->total_ps - others_ps, 2 * (pass->total_ps - others_ps) + 1000);
    unmake(&m);
}

/* Adds a pass as operators to a graph, behind a task; when it ends after that. */
static ps_t added(struct made *m, enum pass pass)
{
    struct err err = ERR_INIT;
    struct tasks *tasks = tasks_new();
    struct chunk_lanes lanes = {.rank = tasks_rank(tasks)};
    for (int lane = 0; lane < NOP_LANES; lane++) {
        lanes.lane[lane] = lane ? tasks_lane(tasks) : tasks->compute_lane[lanes.rank];
    }
    lanes.host = tasks_lane(tasks);
    struct task before = {.lane = lanes.lane[OP_COMPUTE], .use = TASK_NONE, .fixed_ps = 12345};
    uint32_t start = tasks_add(tasks, &before), end;
    struct ops ops = {0};
    list_all(m, whole(m), pass, &ops, NULL);
    cr_assert_eq(chunks_add(m->chunks, tasks, &lanes, &ops, 1, start, 7, &end, &err), 0, "%s",
                 err.text);
    cr_assert_eq(tasks_run(tasks, &err), 0, "%s", err.text);
    cr_assert_eq(tasks->list[end].label, 7);
    ps_t end_ps = tasks->spans[end].start_ps - 12345;
    ops_release(&ops);
    tasks_free(tasks);
    return end_ps;
}

/* A pass as operators in somebody's graph ends when it ends by itself, the host included. */
Test(chunk, adds_to_a_graph)
{
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        make(&m, jobs[i]);
        for (int us = 0; us < 100; us += 12) {
            m.c.host_us[m.job.fw] = us;
            again(&m);
            for (enum pass pass = PASS_F; pass < NPASSES; pass++) {
                cr_assert_eq(added(&m, pass), pass_of(&m, whole(&m), pass)->total_ps,
                             "%s: pass %d, host %d us", jobs[i], pass, us);
            }
        }
        unmake(&m);
    }
}

/* A host that reads how many tokens each expert has is behind from there on, layer by layer. */
Test(chunk, waits_to_read_counts)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model mixtral-8x7b --strategy ep8 --seq 1K");
    double host_us = m.c.host_us[m.job.fw] = 20;
    again(&m);
    struct chunk_shape shape = {.layers = 16};
    ps_t waits_ps = pass_of(&m, shape, PASS_F)->total_ps;
    m.job.moe_capacity = 1; /* room for so many: nothing to read */
    again(&m);
    ps_t runs_ps = pass_of(&m, shape, PASS_F)->total_ps;
    cr_assert_gt(waits_ps, runs_ps + (ps_t)(16 * host_us * 1e6), "%lu %lu", waits_ps, runs_ps);
    m.job.moe_capacity = 0;
    m.c.host_us[m.job.fw] = 0;
    again(&m);
    cr_assert_leq(pass_of(&m, shape, PASS_F)->total_ps, runs_ps);
    unmake(&m);
}

/* What a rank sends is what the operators say, and the network sees it. */
Test(chunk, bytes_are_those_of_the_operators)
{
    for (size_t i = 0; i < NJOBS; i++) {
        struct made m;
        make(&m, jobs[i]);
        struct ops ops = {0};
        double sent[NOP_LANES] = {0}, all = 0, links = 0;
        list_all(&m, whole(&m), PASS_BW, &ops, NULL);
        for (uint32_t j = 0; j < ops.count; j++) {
            const struct op *op = &ops.list[j];
            double n = op->call.n, twice = op->call.coll == COLL_ALLREDUCE ? 2 : 1;
            if (op->lane == OP_COMPUTE) continue;
            sent[op->lane] +=
                op->bytes * (op->call.coll == COLL_SENDRECV ? 1 : twice * (n - 1) / n);
        }
        const struct chunk_pass *p = pass_of(&m, whole(&m), PASS_BW);
        for (int lane = 0; lane < NOP_LANES; lane++) {
            cr_assert_float_eq(p->sent[lane], sent[lane], 1e-9 * sent[lane], "%s", jobs[i]);
            all += sent[lane];
        }
        for (int k = 0; k < NNET_KINDS; k++) {
            links += p->bytes[k];
            cr_assert(p->busy[k] >= 0 && p->busy[k] <= 1);
        }
        cr_assert_eq(links > 0, all > 0, "%s", jobs[i]);
        ops_release(&ops);
        unmake(&m);
    }
}

Test(chunk, training_on_a_slower_network)
{
    struct fluid f = {.wire_ps = 1000, .busy = {[NET_NIC] = 1, [NET_NVLINK] = .25F}};
    chunks_fabric(&f, .5);
    cr_assert(f.wire_ps == 2000 && f.busy[NET_NIC] == 1 && f.busy[NET_NVLINK] == .125F);
    f = (struct fluid){.wire_ps = 1000, .busy = {[NET_NIC] = .25F, [NET_NVLINK] = 1}};
    chunks_fabric(&f, .5); /* NVLink holds it up; the NICs are busier */
    cr_assert(f.wire_ps == 1000 && f.busy[NET_NIC] == .5F && f.busy[NET_NVLINK] == 1);
    struct made m;
    make(&m, jobs[8]);
    m.c.fabric_eff[m.job.fabric] = 1;
    again(&m);
    ps_t quick_ps = pass_of(&m, whole(&m), PASS_F)->part_ps[PART_EP];
    m.c.fabric_eff[m.job.fabric] = .5;
    again(&m);
    ps_t slow_ps = pass_of(&m, whole(&m), PASS_F)->part_ps[PART_EP];
    cr_assert(slow_ps > quick_ps * 3 / 2 && slow_ps <= 2 * quick_ps, "%lu %lu", slow_ps, quick_ps);
    unmake(&m);
}

/* The same layers on other ranks are another pass; without faults they take the same. */
Test(chunk, ranks_of_a_stage)
{
    struct made m;
    make(&m, jobs[1]);
    struct chunk_shape here = {.layers = 12}, there = here;
    there.base = 8;
    there.span = 16;
    const struct chunk_pass *a = pass_of(&m, here, PASS_F), *b = pass_of(&m, there, PASS_F);
    cr_assert_neq(a, b);
    cr_assert_eq(a->total_ps, b->total_ps);
    there.base = 24;
    cr_assert_neq(pass_of(&m, there, PASS_F), b);
    there.span = 8;
    cr_assert_neq(pass_of(&m, there, PASS_F), b);
    unmake(&m);
}

Test(chunk, names_a_collective_without_time)
{
    struct made m;
    struct err err = ERR_INIT;
    make(&m, jobs[7]);
    struct chunk_shape shape = whole(&m);
    m.job.ep = 4096; /* more ranks than there are */
    again(&m);
    cr_assert_null(chunks_pass(m.chunks, &shape, PASS_F, 1, &err));
    cr_assert(err.text[0]);
    err_release(&err);
    cr_assert_null(chunks_pair(m.chunks, &shape, &shape, 1, &err));
    cr_assert(err.text[0]);
    err_release(&err);
    unmake(&m);
}
