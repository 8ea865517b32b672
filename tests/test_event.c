/* SPDX-License-Identifier: Apache-2.0
 * The training step, event by event, against what must hold whatever the constants are: idle times
 * of the schedules on stages that are alike, bytes of sharded states, bounds and scaling laws, time
 * that is accounted for to the picosecond, and figures that users measured. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "net/fault.h"
#include "tests/planned.h"
#include "tests/twice.h"
#include "train/bucket.h"
#include "train/event.h"
#include "train/plan.h"

/* A plan from a command line with all that a run needs. */
struct made {
    struct tables tables;
    struct net_const_table net;
    struct plan plan;
    struct job job; /* the plan's, to be changed */
    struct constants c;
    struct fluids *fluids;
    struct chunks *chunks;
    struct event_args args;
    struct event_result result;
};

static void make_with(struct made *m, const char *line, struct lib_args lib)
{
    struct err err = ERR_INIT;
    *m = (struct made){0};
    planned(&m->tables, &m->plan, ENGINE_EVENT, line);
    cr_assert_eq(net_const_read(&m->net, NULL, &err), 0, "%s", err.text);
    m->job = m->plan.job;
    m->c = m->tables.constants[ENGINE_EVENT].values;
    m->fluids = fluids_new(&m->plan.topo, &m->net.values, &lib);
    m->chunks = chunks_new();
    m->args =
        (struct event_args){.job = &m->job, .c = &m->c, .fluids = m->fluids, .chunks = m->chunks};
}

static void make(struct made *m, const char *line)
{
    make_with(m, line, lib_usual());
}

static void run(struct made *m)
{
    struct err err = ERR_INIT;
    event_release(&m->result);
    cr_assert_eq(event_run(&m->args, &m->result, &err), 0, "%s", err.text);
}

static void unmake(struct made *m)
{
    event_release(&m->result);
    chunks_free(m->chunks);
    fluids_free(m->fluids);
    net_const_release(&m->net);
    plan_release(&m->plan);
    tables_release(&m->tables);
}

static void near(double got, double want, double tolerance, const char *what)
{
    cr_assert(fabs(got / want - 1) <= tolerance, "%s: %.9g, expected %.9g within %g %%", what, got,
              want, 100 * tolerance);
}

/* A network without latencies, whose rates are beyond what a picosecond shows. */
static void free_network(struct made *m)
{
    struct net_consts *c = &m->net.values;
    double *const none[] = {&c->base_p2p_us, &c->hop_p2p_us, &c->base_nvls_us, &c->base_net_us,
                            &c->p2p_most_us};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        *none[i] = 0;
    }
    memset(c->base_us, 0, sizeof c->base_us);
    memset(c->hop_us, 0, sizeof c->hop_us);
    memset(c->alpha_us, 0, sizeof c->alpha_us);
    m->plan.topo.line_GBps = m->plan.topo.ring_GBps = 1e12;
    m->plan.topo.nic_Gbps = m->plan.topo.one_nic_Gbps = 1e12;
    m->plan.topo.scale_up_latency_ns = m->plan.topo.network_latency_ns = 0;
}

/* Nothing but layers that are alike: no embedding and head, nothing that is fixed per step, no
 * optimizer, and messages that take no time. */
static void bare(struct made *m)
{
    m->job.shape.vocab = 0;
    m->job.stage_layers = NULL;
    m->job.layout = NULL;
    memset(m->c.step_ms, 0, sizeof m->c.step_ms);
    m->c.opt_traffic = 0;
}

/* ---- schedules on stages that are alike ---- */

static ps_t pass_ps(struct made *m, uint32_t layers, enum pass kind)
{
    struct err err = ERR_INIT;
    struct chunk_shape shape = {.layers = layers};
    const struct chunk_pass *pass = chunks_pass(m->chunks, &shape, kind, 1, &err);
    cr_assert_not_null(pass, "%s", err.text);
    return pass->total_ps;
}

static ps_t pair_ps(struct made *m, uint32_t layers)
{
    struct err err = ERR_INIT;
    struct chunk_shape shape = {.layers = layers};
    const struct chunk_pass *pass = chunks_pair(m->chunks, &shape, &shape, 1, &err);
    cr_assert_not_null(pass, "%s", err.text);
    return pass->total_ps;
}

/* Times of a rank for one micro-batch, all its chunks. */
static struct pipeline_times times_of(struct made *m, uint32_t layers, uint32_t chunks)
{
    return (struct pipeline_times){
        .f = (double)(chunks * pass_ps(m, layers, PASS_F)),
        .b = (double)(chunks * pass_ps(m, layers, PASS_B)),
        .w = (double)(chunks * pass_ps(m, layers, PASS_W)),
        .pair = (double)(chunks * pair_ps(m, layers)),
    };
}

static void check_bubble(struct made *m, enum pipeline_id id, uint32_t v, uint64_t micro)
{
    struct err err = ERR_INIT;
    bool vee = id == PIPELINE_DUALPIPEV;
    m->job.schedule = (uint8_t)id;
    m->job.vpp = v;
    m->job.global_batch = micro;
    run(m);
    struct pipeline_shape shape = {id, m->job.pp, v, (uint32_t)micro, 0};
    cr_assert_eq(pipeline_legal(&shape, &err), 0, "%s", err.text);
    uint32_t layers = m->job.shape.layers / m->job.pp / (vee ? 2 : v), chunks = vee ? 2 : v;
    struct pipeline_times t = times_of(m, layers, chunks);
    bool split = id == PIPELINE_ZB_1P || id == PIPELINE_ZB_2P;
    if (!split) t.w = (double)(chunks * pass_ps(m, layers, PASS_BW)) - t.b; /* B then is the rest */
    double idle = pipeline_row(id)->idle(&shape, &t);
    cr_assert(!isnan(idle), "%s: the form does not hold", pipeline_row(id)->name);
    const ps_t *part = m->result.stages[pipeline_form_rank(&shape)].part_ps;
    cr_expect_float_eq((double)part[PART_BUBBLE], idle, .5,
                       "%s, %u stages, %u micro-batches: idle %.0f ps, by its form %.0f",
                       pipeline_row(id)->name, m->job.pp, (unsigned)micro,
                       (double)part[PART_BUBBLE], idle);
    if (v == 1 && (id == PIPELINE_1F1B || id == PIPELINE_GPIPE)) {
        double p = m->job.pp, share = (double)part[PART_BUBBLE] / (double)m->result.step_ps;
        near(share, (p - 1) / ((double)micro + p - 1), 1e-12, pipeline_row(id)->name);
    }
    if (v > 1) {
        double p = m->job.pp, share = (double)part[PART_BUBBLE] / (double)m->result.step_ps;
        near(share, (p - 1) / (v * (double)micro + p - 1), 1e-12, pipeline_row(id)->name);
    }
}

/* Nothing takes time but the arithmetic of matrix products and attention, backward as long as
 * forward: F and B are equal, and BW is B and W. */
static void pure_arithmetic(struct made *m)
{
    struct constants *c = &m->c;
    memset(c->elem, 0, sizeof c->elem);
    memset(c->kernel_us, 0, sizeof c->kernel_us);
    memset(c->host_us, 0, sizeof c->host_us);
    c->k0 = c->quant_exp = c->loss_traffic = 0;
    c->attn_bwd_eff = 2.5;
    c->hbm_eff = 1e9;
}

Test(event, idle_time_is_that_of_the_papers)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy pp8 --micro-batch 1 --seq 2K");
    bare(&m);
    free_network(&m);
    pure_arithmetic(&m);
    check_bubble(&m, PIPELINE_GPIPE, 1, 24);
    check_bubble(&m, PIPELINE_1F1B, 1, 24);
    check_bubble(&m, PIPELINE_1F1B, 1, 3);
    check_bubble(&m, PIPELINE_INTERLEAVED, 2, 16);
    check_bubble(&m, PIPELINE_INTERLEAVED, 4, 24);
    check_bubble(&m, PIPELINE_ZB_1P, 1, 24);
    check_bubble(&m, PIPELINE_ZB_2P, 1, 24);
    check_bubble(&m, PIPELINE_DUALPIPE, 1, 24);
    check_bubble(&m, PIPELINE_DUALPIPEV, 1, 24);
    unmake(&m);
}

/* A schedule that takes a local batch at a time runs empty behind each: the first rank is the last
 * to end one and the first that is needed for the next. */
Test(event, a_local_batch_runs_empty)
{
    static const struct {
        enum pipeline_id id;
        uint32_t vpp;
    } kinds[] = {{PIPELINE_1F1B, 1}, {PIPELINE_INTERLEAVED, 2}};
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy pp8 --micro-batch 1 --seq 2K");
    bare(&m);
    free_network(&m);
    pure_arithmetic(&m);
    for (size_t i = 0; i < 2; i++) {
        m.job.schedule = (uint8_t)kinds[i].id;
        m.job.vpp = kinds[i].vpp;
        m.job.local_batch = 0;
        m.job.global_batch = 8;
        run(&m);
        ps_t once = m.result.step_ps;
        m.job.global_batch = 24;
        run(&m);
        cr_expect_lt(m.result.step_ps, 3 * once);
        m.job.local_batch = 8;
        run(&m);
        cr_expect_eq(m.result.step_ps, 3 * once);
        m.job.global_batch = 320; /* most of it counted */
        run(&m);
        cr_expect_eq(m.result.step_ps, 40 * once);
    }
    unmake(&m);
}

/* ---- layers ---- */

static uint32_t layers_of(const struct made *m, uint32_t stage, uint32_t chunk)
{
    for (uint32_t i = 0; i < m->result.nchunks; i++) {
        const struct event_chunk *row = &m->result.chunks[i];
        if (row->stage == stage && row->chunk == chunk) return row->shape.layers;
    }
    return UINT32_MAX;
}

/* Layers run where the strategy has dealt them; where a rank lacks one, also without being told. */
Test(event, layers_run_where_they_are_dealt)
{
    static const struct {
        const char *line;
        bool told;
    } cases[] = {
        {"--topo dgx-h100x4 --model llama3-8b --strategy tp2pp4vpp4 --split embedding,loss", true},
        {"--topo dgx-h100x4 --model llama3-8b --strategy tp2pp4vpp3 --split embedding,loss", true},
        {"--topo dgx-h100x4 --model llama2-13b --strategy pp8vpp3 --split embedding", true},
        {"--topo dgx-h100x4 --model llama3-8b --strategy tp2pp4 --split embedding,loss", false},
        {"--topo dgx-h100x16 --model llama3-405b --strategy tp8pp16vpp4 --split embedding,loss",
         false},
        {"--topo dgx-h100x16 --model llama3-405b --strategy tp8pp16vpp8 --split embedding,loss",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        make(&m, cases[i].line);
        if (!cases[i].told) m.job.layout = NULL;
        const struct strategy *s = &m.plan.strategy;
        m.job.schedule = (uint8_t)(s->vpp > 1 ? PIPELINE_INTERLEAVED : PIPELINE_1F1B);
        m.job.global_batch = 2 * m.job.pp * m.job.dp * m.job.micro_batch;
        run(&m);
        for (uint32_t k = 0; k < s->pp * s->vpp; k++) {
            uint32_t stage = k % (uint32_t)s->pp, chunk = k / (uint32_t)s->pp;
            cr_expect_eq(layers_of(&m, stage, chunk), s->layout[k], "%s: chunk %u of stage %u",
                         cases[i].line, chunk, stage);
        }
        unmake(&m);
    }
}

/* ---- what must hold for every job ---- */

/* Jobs of many kinds; what is said behind | is set in the job. */
static const char *const kinds[] = {
    "--topo dgx-h100 --model llama3-8b --seq 8K",
    "--topo dgx-h100x4 --model llama3-8b --strategy tp2pp4 --framework megatron --seq 4K",
    "--topo dgx-h100x4 --model llama3-8b --strategy tp4pp2vpp2cp2 --framework nemo --seq 8K",
    "--topo dgx-a100x4 --model llama3-8b --strategy fsdp8x4 --framework torchtitan --seq 4K",
    "--topo dgx-h100x4 --model mixtral-8x7b --strategy ep8pp2 --framework megatron --seq 4K",
    "--topo dgx-a100x4 --model llama2-13b --strategy zero1tp4 --framework nanotron --seq 2K",
    "--topo dgx-h100x2 --model llama3-8b --strategy zero2 --framework deepspeed --seq 4K",
    "--topo dgx-h100x2 --model llama3-8b --lora 16 --strategy fsdp --framework fsdp --seq 4K",
    "--topo dgx-h100x4 --model mixtral-8x7b --strategy fsdpep4 --framework torchtitan --seq 4K",
};
enum { NKINDS = sizeof kinds / sizeof *kinds };

/* What the kinds leave out is set by turns. */
static void vary(struct job *job, size_t i)
{
    static const enum pipeline_id ids[] = {PIPELINE_1F1B, PIPELINE_ZB_1P, PIPELINE_ZB_2P};
    job->schedule = (uint8_t)(job->vpp > 1 ? PIPELINE_INTERLEAVED : ids[i % 3]);
    job->bucket_B = i % 2 ? 5e7 : 0;
    job->gather_overlap = i % 3 == 0;
    job->prefetch = (uint32_t)(i % 4);
    job->reduce_each = job->shard >= SHARD_ZERO2;
    if (job->shard == SHARD_FULL && i % 5 == 2) job->shard = SHARD_GRAD_OP;
}

static void check_sums(const struct made *m, const char *line)
{
    const struct event_result *r = &m->result;
    double least = INFINITY;
    for (uint32_t i = 0; i < r->nstages; i++) {
        const struct event_stage *stage = &r->stages[i];
        ps_t sum = 0;
        for (int k = 0; k < NPARTS; k++) {
            cr_assert(stage->part_ps[k] <= r->step_ps, "%s: %s of stage %u", line,
                      step_part_key((enum step_part)k), i);
            sum += stage->part_ps[k];
        }
        cr_assert_eq(sum, r->step_ps, "%s: stage %u", line, i);
        cr_assert(stage->floor_s > 0 && (double)r->step_ps * 1e-12 >= stage->floor_s,
                  "%s: stage %u takes %g s, its arithmetic %g s", line, i,
                  (double)r->step_ps * 1e-12, stage->floor_s);
        least = fmin(least, (double)stage->part_ps[PART_BUBBLE]);
    }
    ps_t bubble = r->stages[r->step.slowest_stage].part_ps[PART_BUBBLE];
    cr_assert_eq((double)bubble, least, "%s: the stage that waits least", line);
    near(r->step.time_s, (double)r->step_ps * 1e-12, 1e-12, line);
}

Test(event, time_is_accounted_for_and_never_under_the_arithmetic)
{
    for (size_t i = 0; i < 3 * NKINDS; i++) {
        struct made m;
        make(&m, kinds[i % NKINDS]);
        vary(&m.job, i);
        run(&m);
        check_sums(&m, kinds[i % NKINDS]);
        unmake(&m);
    }
}

/* Executed FLOPs are those of the model, and of what is recomputed. */
Test(event, flops_are_those_of_the_model)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy tp2pp4 --framework megatron --seq 4K");
    run(&m);
    double sum = 0;
    for (uint32_t i = 0; i < m.result.nstages; i++) {
        sum += m.result.stages[i].flops;
    }
    double ranks = (double)m.job.tp * m.job.cp * m.job.dp;
    cr_assert(sum * ranks >= m.result.step.model_flops * .999, "%g, model %g", sum * ranks,
              m.result.step.model_flops);
    cr_assert(sum * ranks <= m.result.step.model_flops * 1.1, "%g, model %g", sum * ranks,
              m.result.step.model_flops);
    unmake(&m);
}

Test(event, twice_as_fast_takes_half_the_time)
{
    for (size_t i = 0; i < NKINDS; i++) {
        struct made slow, fast;
        make(&slow, kinds[i]);
        make(&fast, kinds[i]);
        vary(&slow.job, i);
        vary(&fast.job, i);
        twice_as_fast(&fast.net.values, &fast.c, &fast.plan.topo, &fast.job);
        run(&slow);
        run(&fast);
        cr_expect(fabs(2 * fast.result.step.time_s / slow.result.step.time_s - 1) < 1e-6,
                  "%s: twice %g, %g", kinds[i], fast.result.step.time_s, slow.result.step.time_s);
        unmake(&slow);
        unmake(&fast);
    }
}

/* Micro-batches that are counted: as if all had been run. */
Test(event, counted_micro_batches_are_as_run)
{
    size_t counted = 0; /* others come to a steady state too slowly */
    for (size_t i = 0; i < NKINDS; i++) {
        struct made m;
        make(&m, kinds[i]);
        vary(&m.job, i);
        uint64_t micro = m.job.vpp > 1 ? 32 * m.job.pp : 32 * m.job.pp + 3;
        m.job.global_batch = micro * m.job.dp * m.job.micro_batch;
        run(&m);
        struct event_result few = m.result;
        m.result = (struct event_result){0};
        m.args.all = true;
        run(&m);
        cr_expect_eq(few.step_ps, m.result.step_ps, "%s", kinds[i]);
        counted += few.events < m.result.events;
        for (uint32_t s = 0; s < few.nstages; s++) {
            for (int k = 0; k < NPARTS; k++) {
                double a = (double)few.stages[s].part_ps[k],
                       b = (double)m.result.stages[s].part_ps[k];
                cr_expect(fabs(a - b) <= 200, "%s: %s %g, %g", kinds[i],
                          step_part_key((enum step_part)k), a, b);
            }
        }
        for (int k = 0; k < 6; k++) {
            cr_expect_float_eq(few.bytes_by_axis[k], m.result.bytes_by_axis[k],
                               1e-6 * few.bytes_by_axis[k] + 1, "%s", kinds[i]);
        }
        event_release(&few);
        unmake(&m);
    }
    cr_expect(counted + 2 >= NKINDS, "of %zu jobs only", counted);
}

/* Operator by operator: the same but for what reaches over the ends of passes. Passes that jobs
 * hold up on links go by operators in either case. */
Test(event, operator_by_operator_is_the_same)
{
    size_t whole = 0;
    for (size_t i = 0; i < NKINDS; i++) {
        struct made m;
        make(&m, kinds[i]);
        vary(&m.job, i);
        m.job.global_batch = (uint64_t)m.job.dp * m.job.micro_batch * 8;
        run(&m);
        double chunks = m.result.step.time_s;
        uint64_t events = m.result.events;
        m.args.detail = DETAIL_OP;
        run(&m);
        check_sums(&m, kinds[i]);
        cr_assert(m.result.events >= events, "%s: a task for every operator", kinds[i]);
        whole += m.result.events > 2 * events;
        near(m.result.step.time_s, chunks, .005, kinds[i]);
        unmake(&m);
    }
    cr_assert(whole > NKINDS / 2, "%zu of %d", whole, NKINDS);
}

/* Where the host bounds a sharded step: it goes on while a pass waits for a gather, but it begins a
 * pass with the rank, and waits for what it reads. */
Test(event, a_host_runs_ahead_of_gathers)
{
    static const char *const lines[] = {
        "--topo dgx-h100x2 --model llama3.2-1b --strategy cp4zero3 --seq 2K --global-batch 4",
        "--topo dgx-h100x2 --model mixtral-8x7b --strategy zero3 --seq 1K --global-batch 32",
        ("--topo dgx-h100x2 --model llama3.2-1b --strategy zero1 --seq 1K --framework nanotron "
         "--global-batch 16"),
        /* passes that are cut, whose host ends last, before passes that are not */
        ("--topo dgx-a100 --model llama3.2-1b --strategy zero2tp8 --seq 1K --framework deepspeed "
         "--accumulation 8"),
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct made m;
        make(&m, lines[i]);
        run(&m);
        double chunks = m.result.step.time_s, launch = m.result.step.part_s[PART_LAUNCH];
        cr_assert(launch - m.c.step_ms[m.job.fw] * 1e-3 > .05 * chunks, "%s: %g of %g", lines[i],
                  launch, chunks);
        m.args.detail = DETAIL_OP;
        run(&m);
        near(m.result.step.time_s, chunks, .002, lines[i]);
        unmake(&m);
    }
}

/* ---- more bandwidth ---- */

/* A random job on a random cluster. */
static char *random_line(struct rng *rng, bool overlap)
{
    static const struct {
        const char *topo;
        uint32_t hosts;
    } clusters[] = {{"dgx-h100", 1}, {"dgx-h100x2", 2}, {"dgx-h100x4", 4}, {"dgx-a100x4", 4}};
    static const char *const models[] = {"llama3-8b", "llama2-13b", "mixtral-8x7b", "gpt2-xl"};
    static const char *const frameworks[] = {"megatron", "nemo", "deepspeed", "nanotron"};
    static const char *const zero[] = {"", "", "zero1", "zero2"};
    size_t c = rng_below(rng, 4), model = rng_below(rng, 4);
    uint32_t tp = 1u << rng_below(rng, 3), pp = 1u << rng_below(rng, 3);
    uint32_t gpus = 8 * clusters[c].hosts, dp;
    while (tp * pp > gpus) {
        pp /= 2;
    }
    dp = gpus / (tp * pp);
    if (overlap && rng_below(rng, 3) == 0)
        return mem_printf("--topo %s --model %s --strategy fsdp --framework %s --seq %zu "
                          "--micro-batch 1 --global-batch %u",
                          clusters[c].topo, models[model],
                          rng_below(rng, 2) ? "fsdp" : "torchtitan",
                          (size_t)1024 << rng_below(rng, 3), gpus << rng_below(rng, 3));
    bool experts = model == 2 && dp >= 2 && rng_below(rng, 2);
    return mem_printf("--topo %s --model %s --strategy tp%upp%u%s%s --framework %s --seq %zu "
                      "--micro-batch %u --global-batch %u",
                      clusters[c].topo, models[model], tp, pp, experts ? "ep2" : "",
                      pp == 1 ? zero[rng_below(rng, 4)] : "", frameworks[rng_below(rng, 4)],
                      (size_t)1024 << rng_below(rng, 3), 1u << rng_below(rng, 2),
                      dp * 2 * (1u << rng_below(rng, 4)));
}

/* Times of the same job with rates as they are and `by` times as high inside and between hosts. */
static double gain(const char *line, uint64_t seed, bool overlap)
{
    double t[2];
    for (int fast = 0; fast < 2; fast++) {
        struct made m;
        struct rng rng;
        struct lib_args lib = lib_usual();
        bool p2p = !strstr(line, "pp1") || strstr(line, "ep2"); /* messages have no ring */
        if (!overlap) {
            lib.proto = NCCL_SIMPLE, lib.no_nvls = true, lib.channels = 8;
            if (!p2p) lib.algo = NCCL_RING;
        }
        make_with(&m, line, lib);
        rng_init(&rng, seed);
        vary(&m.job, rng_below(&rng, 60));
        m.job.oversubscribed = m.plan.topo.oversubscribed;
        double nvlink = 1 + rng_unit(&rng), nic = 1 + 3 * rng_unit(&rng);
        if (!overlap)
            m.job.dp_overlap = m.job.p2p_overlap = m.job.tp_overlap = m.job.ep_overlap =
                m.job.gather_overlap = false;
        if (fast) {
            m.plan.topo.line_GBps *= nvlink, m.plan.topo.ring_GBps *= nvlink;
            m.plan.topo.nic_Gbps *= nic, m.plan.topo.one_nic_Gbps *= nic;
            m.plan.topo.host.pcie_GBps *= nic, m.plan.topo.host.uplink_GBps *= nic;
        }
        run(&m);
        t[fast] = m.result.step.time_s;
        unmake(&m);
    }
    return t[1] / t[0];
}

enum { NRANDOM = 200 };

Test(event, more_bandwidth_without_overlap_is_never_slower)
{
    struct rng rng;
    rng_init(&rng, 7);
    for (int i = 0; i < NRANDOM; i++) {
        char *line = random_line(&rng, false);
        double ratio = gain(line, rng_next(&rng), false);
        cr_expect(ratio <= 1 + 1e-9, "%s: %.9f of the time", line, ratio);
        free(line);
    }
}

Test(event, more_bandwidth_with_overlap_is_hardly_ever_slower)
{
    struct rng rng;
    int slower = 0;
    rng_init(&rng, 8);
    for (int i = 0; i < NRANDOM; i++) {
        char *line = random_line(&rng, true);
        double ratio = gain(line, rng_next(&rng), true);
        cr_expect(ratio <= 1.03, "%s: %.4f of the time", line, ratio);
        slower += ratio > 1.01;
        free(line);
    }
    cr_expect(slower <= NRANDOM / 100, "%d of %d are slower by over 1 %%", slower, NRANDOM);
}

/* ---- bytes ---- */

enum { TP_BYTES, CP_BYTES, EP_BYTES, FSDP_BYTES, DP_BYTES, PP_BYTES };

/* ZeRO-3: of every micro-batch two gathers and a scatter, 3 (n-1)/n P bytes. */
Test(event, bytes_of_sharded_weights)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy fsdp --framework fsdp --seq 2K "
             "--micro-batch 1 --global-batch 24");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding;
    m.job.reduce_B = 2;
    m.job.reduce_each = true;
    run(&m);
    double want = 3 * 3 * 7 / 8. * params * 2;
    near(m.result.bytes_by_axis[FSDP_BYTES], want, 1e-9, "ZeRO-3");
    double links = m.result.stages[0].bytes[NET_NVLINK] / 2; /* out of a GPU and into one */
    cr_assert(links >= want * .999 && links <= want * 128 / 120., "%g on NVLink, %g and flags",
              links, want);
    m.job.shard = SHARD_GRAD_OP;
    run(&m);
    near(m.result.bytes_by_axis[FSDP_BYTES], want * 2 / 3, 1e-9, "weights stay gathered");
    m.job.reduce_each = false;
    run(&m);
    near(m.result.bytes_by_axis[FSDP_BYTES], want * 4 / 9, 1e-9, "one scatter in a step");
    unmake(&m);
}

Test(event, bytes_of_a_hybrid_shard)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy fsdp8x4 --framework fsdp --seq 2K "
             "--micro-batch 1 --global-batch 32");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding;
    m.job.reduce_B = 4;
    m.job.reduce_each = true;
    run(&m);
    near(m.result.bytes_by_axis[FSDP_BYTES], 7 / 8. * params * (2 + 2 + 4), 1e-9, "inside");
    near(m.result.bytes_by_axis[DP_BYTES], 2 * 3 / 4. * params / 8 * 4, 1e-9, "over the copies");
    cr_assert(m.result.stages[0].bytes[NET_NIC] > 0);
    unmake(&m);
}

/* ZeRO-1 over the ranks of a host: a scatter and a gather inside, an all-reduce of the share. */
Test(event, bytes_of_a_hybrid_zero)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy zero1 --framework nanotron --seq 2K "
             "--micro-batch 1 --global-batch 32");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding;
    m.job.shard_size = 8;
    m.job.grad_B = 4;
    for (int k = 0; k < 2; k++) {
        m.job.bucket_B = k ? 1e8 : 0;
        m.job.dp_overlap = m.job.gather_overlap = k == 1;
        run(&m);
        near(m.result.bytes_by_axis[DP_BYTES],
             7 / 8. * params * (4 + 2) + 2 * 3 / 4. * params / 8 * 4, 1e-8, "ZeRO-1 in hosts");
    }
    unmake(&m);
}

/* Without sharding an all-reduce; ZeRO-1 a scatter and a gather; ZeRO-2 a scatter each time. */
Test(event, bytes_of_data_parallelism)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy dp8 --framework megatron --seq 2K "
             "--micro-batch 1 --global-batch 24");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding;
    static const double buckets[] = {0, 1e8, 1e12};
    for (size_t i = 0; i < 3; i++) {
        m.job.bucket_B = buckets[i];
        m.job.grad_B = 4;
        m.job.reduce_each = false;
        m.job.shard = SHARD_NONE;
        run(&m);
        near(m.result.bytes_by_axis[DP_BYTES], 2 * 7 / 8. * params * 4, 1e-8, "all-reduce");
        m.job.shard = SHARD_ZERO1;
        for (int k = 0; k < 2; k++) {
            m.job.gather_overlap = k == 1;
            run(&m);
            near(m.result.bytes_by_axis[DP_BYTES], 7 / 8. * params * (4 + 2), 1e-8, "ZeRO-1");
        }
        m.job.shard = SHARD_ZERO2;
        m.job.reduce_each = true;
        run(&m);
        near(m.result.bytes_by_axis[DP_BYTES], 7 / 8. * params * (3 * 4 + 2), 1e-8, "ZeRO-2");
    }
    unmake(&m);
}

/* A tied embedding is summed over the first and the last stage, where they are on two ranks. */
Test(event, bytes_of_a_tied_embedding)
{
    static const enum pipeline_id ids[] = {PIPELINE_1F1B, PIPELINE_DUALPIPEV};
    for (size_t i = 0; i < 2; i++) {
        struct made m;
        make(&m, "--topo dgx-h100 --model gpt2-xl --strategy tp2pp4 --framework megatron --seq 1K "
                 "--micro-batch 1 --global-batch 8");
        m.job.schedule = (uint8_t)ids[i];
        m.job.grad_B = 4;
        for (int tied = 0; tied < 2; tied++) {
            m.job.shape.tied = tied == 1;
            run(&m);
            double want = tied && i == 0 ? job_params(&m.job).embedding / 2 * 4 : 0;
            uint32_t stage = m.result.step.slowest_stage;
            if (stage != 0 && stage != 3) want = 0;
            cr_expect_float_eq(m.result.bytes_by_axis[DP_BYTES], want, 1, "%zu: %g, %g, stage %u",
                               i, m.result.bytes_by_axis[DP_BYTES], want, stage);
            cr_expect(i == 1 || !tied || want > 0, "the head's stage waits least");
        }
        unmake(&m);
    }
}

/* Tensor parallelism: four all-reduces of a layer's activations, of s b h values. */
Test(event, bytes_of_tensor_parallelism_and_messages)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy tp8pp4 --framework megatron --seq 2K "
             "--micro-batch 1 --global-batch 8");
    m.job.schedule = PIPELINE_1F1B;
    m.job.shape.vocab = 0;
    m.job.sp = m.job.tp_overlap = false;
    m.job.stage_layers = NULL;
    m.job.layout = NULL;
    run(&m);
    double values = 2048. * m.job.shape.hidden;
    uint32_t stage = m.result.step.slowest_stage;
    double layers = 8, ends = stage == 0 || stage == 3 ? 1 : 2;
    near(m.result.bytes_by_axis[TP_BYTES], 8 * layers * 4 * 2 * 7 / 8. * 2 * values, 1e-9,
         "four all-reduces of a layer");
    near(m.result.bytes_by_axis[PP_BYTES], 8 * ends * 2 * values, 1e-9, "messages");
    unmake(&m);
}

/* The optimizer updates what a rank owns, and with ZeRO-1 writes what it holds. */
Test(event, the_optimizer_is_of_what_a_rank_owns)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy dp8 --framework megatron --seq 2K "
             "--micro-batch 1 --global-batch 8");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding;
    const struct {
        enum shard shard;
        double owned, held;
    } cases[] = {{SHARD_NONE, 1, 0}, {SHARD_ZERO1, 1 / 8., 1}, {SHARD_FULL, 1 / 8., 0}};
    for (size_t i = 0; i < 3; i++) {
        m.job.shard = cases[i].shard;
        run(&m);
        near(m.result.step.part_s[PART_OPTIMIZER],
             ops_optimizer_s(&m.job, &m.c, cases[i].owned * params, cases[i].held * params), 1e-9,
             "optimizer");
    }
    unmake(&m);
}

/* ---- overlap ---- */

/* Spans of the tasks of a name, in order; their number. */
static size_t spans_of(const struct made *m, const char *name, struct task_span *spans, size_t room)
{
    const struct tasks *tasks = m->result.tasks;
    size_t n = 0;
    for (uint32_t i = 0; i < tasks->ntasks && n < room; i++) {
        if (strcmp(m->result.labels[tasks->list[i].label].name, name) != 0) continue;
        spans[n++] = tasks->spans[i];
    }
    return n;
}

/* A rank that waits for its messages is never sooner through. */
Test(event, messages_hide_beside_compute)
{
    for (size_t i = 0; i < 3; i++) {
        static const enum pipeline_id ids[] = {PIPELINE_ZB_1P, PIPELINE_ZB_2P, PIPELINE_1F1B};
        struct made m;
        make(&m, "--topo dgx-a100x4 --model llama3-8b --strategy pp4tp4 --framework megatron "
                 "--seq 8K --micro-batch 1 --global-batch 32");
        m.job.schedule = (uint8_t)ids[i];
        m.job.p2p_overlap = true;
        run(&m);
        double beside = m.result.step.time_s;
        m.job.p2p_overlap = false;
        run(&m);
        bool call = ids[i] == PIPELINE_1F1B; /* which sends and receives in one */
        cr_assert(call ? m.result.step.time_s == beside : m.result.step.time_s > 1.002 * beside,
                  "%g, %g", m.result.step.time_s, beside);
        check_sums(&m, "messages");
        unmake(&m);
    }
}

/* Buckets hide what one reduction behind the last pass shows; gathers hide in the next step. */
Test(event, overlap_hides_what_it_can)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy dp32 --framework megatron --seq 8K "
             "--micro-batch 1 --global-batch 64");
    m.job.dp_overlap = true;
    m.job.bucket_B = 0;
    run(&m);
    double once = m.result.step.part_s[PART_DP], total = m.result.step.dp_total_s;
    near(once, total, 1e-9, "all of it is exposed");
    m.job.bucket_B = 1e8;
    run(&m);
    cr_assert(m.result.step.part_s[PART_DP] < .3 * once, "%g of %g", m.result.step.part_s[PART_DP],
              once);
    m.job.dp_overlap = false;
    run(&m);
    near(m.result.step.part_s[PART_DP], once, 1e-9, "without overlap a bucket's size says nothing");
    m.job.dp_overlap = true;
    m.job.shard = SHARD_ZERO1;
    run(&m);
    double before = m.result.step.part_s[PART_DP];
    m.job.gather_overlap = true;
    run(&m);
    cr_assert(m.result.step.part_s[PART_DP] < .7 * before, "%g of %g",
              m.result.step.part_s[PART_DP], before);
    unmake(&m);
}

/* DualPipe's mirrored ranks hold the same stages, twice as much as in 1F1B: what each sums with its
 * mirror is its part of what it has reduced, not all of that. */
Test(event, mirrored_copies_sum_parts)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model llama3-8b --strategy pp2 --accumulation 8");
    run(&m);
    double once = m.result.step.part_s[PART_DP], sent = m.result.bytes_by_axis[4];
    unmake(&m);
    make(&m,
         "--topo dgx-h100x8 --model llama3-8b --strategy pp2 --accumulation 8 --schedule dualpipe");
    run(&m);
    double n = m.job.dp, twice = 2 * sent * (1 + n / (n - 1) / n / 2);
    near(m.result.bytes_by_axis[4], twice, .03, "an all-reduce over n, and of a part over 2");
    cr_assert(m.result.step.part_s[PART_DP] < 2 * once, "%g, %g", m.result.step.part_s[PART_DP],
              once);
    unmake(&m);
}

/* A step is never shorter than what the data-parallel lane has to do, wherever it hides. */
Test(event, a_pass_waits_for_its_weights)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy zero1 --framework nanotron --seq 1K "
             "--micro-batch 1 --global-batch 32");
    m.plan.topo.nic_Gbps = m.plan.topo.one_nic_Gbps = 10;
    m.job.dp_overlap = m.job.gather_overlap = true;
    m.job.bucket_B = 1e8;
    memset(m.c.host_us, 0, sizeof m.c.host_us); /* passes that a host bounds go by operators */
    run(&m);
    cr_assert(m.result.step.part_s[PART_DP] > .7 * m.result.step.time_s);
    cr_assert(m.result.step.time_s >= m.result.step.dp_total_s, "%g, %g", m.result.step.time_s,
              m.result.step.dp_total_s);
    m.args.keep = true;
    run(&m);
    struct task_span gathers[500], passes[500]; /* those of two steps; of one */
    size_t n = spans_of(&m, "gather", gathers, 500) / 2, k = spans_of(&m, "F", passes, 500);
    cr_assert(n > 30 && k > 20, "%zu buckets, %zu parts of a forward pass", n, k);
    cr_assert(passes[k - 1].start_ps >= gathers[n - 1].end_ps);
    cr_assert(passes[k / 2].start_ps >= gathers[n / 3].end_ps);
    cr_assert(passes[k / 2].start_ps < gathers[n - 1].end_ps);
    unmake(&m);
}

/* Exchanges of experts hide beside the other pass of a pair of micro-batches. */
Test(event, exchanges_hide_beside_another_micro_batch)
{
    static const struct {
        const char *line;
        size_t pairs; /* at least, over all ranks */
    } cases[] = {
        {"--topo dgx-h100x4 --model mixtral-8x7b --strategy ep8 --framework megatron --seq 4K "
         "--micro-batch 1 --global-batch 256",
         7},
        {"--topo dgx-h100x4 --model mixtral-8x7b --strategy ep8pp2vpp2 --framework megatron "
         "--seq 4K --micro-batch 1 --global-batch 128",
         24},
        {"--topo dgx-h100x4 --model mixtral-8x7b --strategy ep8pp2 --framework megatron "
         "--seq 4K --micro-batch 1 --global-batch 128",
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made m;
        make(&m, cases[i].line);
        m.args.keep = true;
        m.job.schedule = (uint8_t)(m.job.vpp > 1 ? PIPELINE_INTERLEAVED : PIPELINE_1F1B);
        run(&m);
        double apart = m.result.step.part_s[PART_EP];
        m.job.ep_overlap = true;
        run(&m);
        check_sums(&m, cases[i].line);
        struct task_span spans[100];
        size_t pairs = spans_of(&m, "F&BW", spans, 100);
        if (cases[i].pairs == 0) {
            cr_expect_eq(pairs, 0u, "1F1B has no forward pass that it could wait with");
        } else {
            cr_expect(pairs >= cases[i].pairs && m.result.step.part_s[PART_EP] < .6 * apart,
                      "%s: %zu pairs, %g of %g s", cases[i].line, pairs,
                      m.result.step.part_s[PART_EP], apart);
        }
        unmake(&m);
    }
}

Test(event, prefetch_hides_gathers)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy fsdp --framework fsdp --seq 4K "
             "--micro-batch 1 --global-batch 64");
    m.job.reduce_each = true;
    m.job.prefetch = 0;
    run(&m);
    double none = m.result.step.part_s[PART_FSDP];
    m.job.prefetch = 1;
    run(&m);
    double one = m.result.step.part_s[PART_FSDP], total = m.result.step.dp_total_s;
    cr_assert(none > .6 * total && none <= total * (1 + 1e-9) && one < .9 * none, "%g, %g of %g",
              none, one, total);
    cr_assert(one < .8 * total, "%g of %g are exposed", one, total);
    m.job.prefetch = 3;
    run(&m);
    cr_assert(m.result.step.part_s[PART_FSDP] <= one * 1.0001);
    unmake(&m);
}

/* A layer's weights come when that many layers before it begin, not sooner. */
Test(event, gathers_run_no_further_ahead)
{
    for (uint32_t prefetch = 0; prefetch < 3; prefetch++) {
        struct made m;
        struct task_span gathers[34], passes[34];
        make(&m, "--topo dgx-h100 --model llama3-8b --strategy fsdp --framework fsdp --seq 8K "
                 "--micro-batch 1 --global-batch 8");
        m.job.prefetch = prefetch;
        m.job.reduce_each = m.args.keep = true;
        run(&m);
        cr_assert_eq(spans_of(&m, "gather", gathers, 34), 34u);
        cr_assert_eq(spans_of(&m, "F", passes, 34), 34u);
        for (size_t i = 0; i + prefetch + 1 < 34; i++) {
            cr_assert(gathers[i + prefetch + 1].start_ps >= passes[i].end_ps, "gather %zu", i);
            cr_assert(passes[i].start_ps >= gathers[i].end_ps, "pass %zu", i);
        }
        cr_assert(gathers[10 + prefetch].start_ps < passes[10].end_ps, "it does run ahead");
        unmake(&m);
    }
}

/* ---- what frameworks do otherwise ---- */

/* DeepSpeed gathers tensor by tensor (an MLP's three, the attention's two), and twice where a layer
 * is recomputed; weights in fp8 are half as many bytes. */
Test(event, weights_are_gathered_as_the_framework_does)
{
    struct made m;
    struct task_span gathers[600];
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy fsdp --framework fsdp --seq 2K "
             "--micro-batch 1 --global-batch 8");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding, share = 7 / 8. * params;
    m.job.reduce_each = m.args.keep = true;
    m.job.reduce_B = 2;
    run(&m);
    cr_expect_eq(spans_of(&m, "gather", gathers, 600), 2u * 34);
    near(m.result.bytes_by_axis[FSDP_BYTES], share * (2 + 2 + 2), 1e-9, "layer by layer");
    m.job.gather_tensors = true;
    run(&m);
    cr_expect_eq(spans_of(&m, "gather", gathers, 600), 2u * (32 * 5 + 2));
    near(m.result.bytes_by_axis[FSDP_BYTES], share * (2 + 2 + 2), 1e-8, "tensor by tensor");
    m.job.gather_tensors = false;
    m.job.recompute = RC_FULL;
    run(&m);
    near(m.result.bytes_by_axis[FSDP_BYTES], share * (2 + 2 + 2), 1e-9, "once for both");
    m.job.sharded_copy = true;
    run(&m);
    near(m.result.bytes_by_axis[FSDP_BYTES], share * (2 + 2 + 2 + 2), 1e-9, "and once more");
    m.job.sharded_copy = false;
    m.job.fp8_params = true;
    run(&m);
    near(m.result.bytes_by_axis[FSDP_BYTES], share * (1 + 1 + 2), 1e-9, "in one byte");
    unmake(&m);
}

/* Where a tensor has one owner, what each owns is broadcast, with a latency for each, and gradients
 * are summed on all. */
Test(event, owners_send_their_tensors)
{
    struct made m;
    struct task_span sent[600];
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy zero1 --framework internevo --seq 2K "
             "--micro-batch 1 --global-batch 32");
    struct param_counts n = job_params(&m.job);
    double params = 32 * n.dense_layer + 2 * n.embedding;
    cr_assert(m.job.owner_sends);
    m.args.keep = true;
    m.job.grad_B = 2;
    ps_t step_ps[2];
    for (int k = 0; k < 2; k++) {
        m.job.owner_sends = k == 1;
        run(&m);
        step_ps[k] = m.result.step_ps;
        cr_expect_eq(spans_of(&m, "gather", sent, 600), k ? 2u * 32 : 2u);
        near(m.result.bytes_by_axis[DP_BYTES], 31 / 32. * params * (k ? 4 + 2 : 2 + 2), 1e-8,
             "ZeRO-1");
    }
    double hops_us = 3 * m.net.values.alpha_us[m.job.fabric]; /* three borders of hosts at least */
    cr_expect_gt(step_ps[1], step_ps[0] + (ps_t)(31 * hops_us * 1e6));
    m.job.shape.layers = m.job.shape.dense_layers = 4;
    m.job.stage_layers = NULL;
    m.job.layout = NULL;
    run(&m);
    cr_expect_eq(spans_of(&m, "gather", sent, 600), 2u * (4 * 5 + 2), "no more than tensors");
    unmake(&m);
}

/* Gradients are copied, cast and scaled on the GPU before they are reduced: so many bytes each. */
Test(event, gradients_are_made_ready)
{
    struct made m;
    struct task_span copies[64], reduces[64];
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy fsdp --framework fsdp --seq 4K "
             "--micro-batch 1 --global-batch 8");
    m.job.reduce_each = m.args.keep = true;
    m.job.reduce_copy_B = 0;
    run(&m);
    double without = m.result.step.time_s, sent = m.result.bytes_by_axis[FSDP_BYTES];
    cr_expect_eq(spans_of(&m, "copy in", copies, 64), 0u);
    m.job.reduce_copy_B = 18;
    run(&m);
    size_t n = spans_of(&m, "copy in", copies, 64);
    cr_assert_eq(n, 34u);
    cr_assert_eq(spans_of(&m, "reduce", reduces, 64), n);
    double sum = 0, params = job_params(&m.job).total;
    for (size_t i = 0; i < n; i++) {
        cr_assert(reduces[i].start_ps >= copies[i].end_ps, "%zu", i);
        sum += (double)(copies[i].end_ps - copies[i].start_ps) * 1e-12;
    }
    double least = 18 * params / (m.job.dev.hbm_Bps * m.c.hbm_eff);
    cr_assert(sum >= least * .999 && sum < 1.4 * least, "%g of %g s", sum, least);
    double more = m.result.step.time_s - without;
    cr_assert(more > .5 * sum && more < 1.1 * sum, "%g s more by %g s", more, sum);
    cr_expect_eq(m.result.bytes_by_axis[FSDP_BYTES], sent);
    unmake(&m);
}

/* DeepSpeed's host takes each rank's piece of each tensor, of gradients' short vectors too; in 2021
 * it waited for the GPU before. */
Test(event, the_host_takes_pieces)
{
    struct made m;
    struct task_span pieces[200], passes[80];
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy zero3 --framework deepspeed --seq 4K "
             "--micro-batch 1 --global-batch 8");
    m.args.keep = true;
    m.job.piece_kernels = 0;
    run(&m);
    cr_expect_eq(spans_of(&m, "pieces", pieces, 200), 0u);
    double without = m.result.step.time_s, issue_s = ops_issue_s(&m.job, &m.c);
    m.job.piece_kernels = 2;
    run(&m);
    double hidden = m.result.step.time_s, host = 0;
    size_t n = spans_of(&m, "pieces", pieces, 200);
    cr_assert_eq(n, 3u * 34);
    for (size_t i = 0; i < n; i++) {
        host += (double)(pieces[i].end_ps - pieces[i].start_ps) * 1e-12;
    }
    double each = 8 * 2 * issue_s; /* five tensors of a layer three times, two norms once */
    near(host, (32 * (3 * 5 + 2) + 2 * 3) * each, 1e-6, "seconds of the host");
    cr_assert(hidden >= without && hidden >= host, "%g s, %g s without, host %g s", hidden, without,
              host);
    m.job.gather_sync = true;
    run(&m);
    cr_assert(m.result.step.time_s > 1.05 * hidden, "%g s after %g s", m.result.step.time_s,
              hidden);
    n = spans_of(&m, "pieces", pieces, 200);
    cr_assert(spans_of(&m, "F", passes, 80) == 34u && n == 3u * 34);
    for (size_t i = 2; i < 34; i++) { /* one gather ahead */
        cr_assert(pieces[i].start_ps >= passes[i - 2 - m.job.prefetch + 1].end_ps, "%zu", i);
    }
    unmake(&m);
}

/* Megatron cut messages over the tensor-parallel ranks, and gathered them where they came in. */
Test(event, messages_are_cut_and_put_together)
{
    struct made m;
    double bytes[2], lag[2];
    for (int cut = 0; cut < 2; cut++) {
        make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy tp8pp4 --framework megatron "
                 "--seq 8K --micro-batch 1 --global-batch 8");
        m.job.sp = m.job.tp_overlap = false;
        m.job.cut_messages = cut == 1;
        m.args.keep = true;
        run(&m);
        bytes[cut] = m.result.bytes_by_axis[PP_BYTES];
        lag[cut] = 0;
        for (uint32_t i = 0; i < m.result.tasks->ntasks; i++) {
            const struct task *task = &m.result.tasks->list[i];
            if (strcmp(m.result.labels[task->label].name, "send") == 0)
                lag[cut] = fmax(lag[cut], (double)task->lag_ps);
        }
        struct err err = ERR_INIT;
        struct fluid fluid;
        const struct fluid_call call = {COLL_ALLGATHER, 8192 * 4096 * 2, 8, 1, 0, 1, 0, false,
                                        false};
        cr_assert_eq(fluids_get(m.fluids, &call, &fluid, &err), 0);
        cr_assert((lag[cut] > (double)(fluid.fixed_ps + fluid.wire_ps)) == cut, "%g", lag[cut]);
        unmake(&m);
    }
    near(bytes[1], bytes[0] / 8, 1e-9, "an eighth");
}

/* A step's fixed time is the host's: less in a captured graph, none in a full one. */
Test(event, fixed_time_is_the_hosts)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy tp8 --framework megatron --seq 8K "
             "--micro-batch 1 --global-batch 8");
    double fixed = m.c.step_ms[m.job.fw] * 1e-3;
    memset(m.c.host_us, 0, sizeof m.c.host_us);
    memset(m.c.kernel_us, 0, sizeof m.c.kernel_us);
    const double left[] = {1, m.c.graphs_partial, 0};
    for (int k = 0; k < 3; k++) {
        m.job.graphs = (enum graphs)k;
        run(&m);
        cr_expect_float_eq(m.result.step.part_s[PART_LAUNCH], left[k] * fixed, 1e-9, "%d: %g, %g",
                           k, m.result.step.part_s[PART_LAUNCH], left[k] * fixed);
    }
    unmake(&m);
}

/* ---- slow parts ---- */

Test(event, a_step_is_as_slow_as_the_stage_of_its_slowest_gpu)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model llama3-8b --strategy tp4pp4 --framework megatron --seq 4K "
             "--micro-batch 1 --global-batch 256");
    const struct event_slow one = {37, .8}; /* of stage 2 */
    m.job.schedule = PIPELINE_1F1B;
    bare(&m);
    run(&m);
    double usual = m.result.step.time_s;
    m.args.slow = &one;
    m.args.nslow = 1;
    run(&m);
    double slow = m.result.step.time_s;
    check_sums(&m, "one slow GPU");
    cr_assert_eq(m.result.step.slowest_stage, 2u);
    /* all GPUs of that stage, in all replicas, are slow: the same step */
    struct event_slow all[16];
    for (uint32_t i = 0; i < 16; i++) {
        all[i] = (struct event_slow){32 + i, .8};
    }
    m.args.slow = all;
    m.args.nslow = 16;
    run(&m);
    near(slow, m.result.step.time_s, 1e-6, "one slow GPU, and its whole stage");
    cr_assert(slow > 1.15 * usual && slow < 1.25 * usual, "%g, %g", slow, usual);
    unmake(&m);
}

/* Two replicas, each slow in another stage, wait for each other at the end alone. */
Test(event, slow_gpus_of_two_replicas_are_not_in_one_pipeline)
{
    struct made m;
    make(&m, "--topo dgx-h100x8 --model llama3-8b --strategy tp4pp4 --framework megatron --seq 4K "
             "--micro-batch 1 --global-batch 32");
    const struct event_slow apart[] = {{17, .8}, {37, .8}}, together[] = {{17, .8}, {33, .8}};
    bare(&m);
    m.job.schedule = PIPELINE_1F1B;
    m.args.nslow = 2;
    m.args.slow = apart;
    run(&m);
    ps_t two = m.result.step_ps;
    m.args.slow = together;
    run(&m);
    cr_assert(m.result.step_ps > two + two / 200, "%g, %g", (double)m.result.step_ps, (double)two);
    unmake(&m);
}

Test(event, a_slow_gpu_slows_sharded_ranks_too)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3-8b --strategy fsdp --framework fsdp --seq 8K "
             "--micro-batch 2 --global-batch 32");
    const struct event_slow one = {5, .5};
    run(&m);
    double usual = m.result.step.time_s;
    m.args.slow = &one;
    m.args.nslow = 1;
    run(&m);
    check_sums(&m, "one slow GPU of a shard");
    cr_assert(m.result.step.time_s > 1.8 * usual && m.result.step.time_s < 2.05 * usual, "%g, %g",
              m.result.step.time_s, usual);
    unmake(&m);
}

/* .. for a gather or scatter begins once all have come to it. */
Test(event, collectives_begin_together)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3-8b --strategy fsdp --framework fsdp --seq 8K "
             "--micro-batch 2 --global-batch 32");
    const struct event_slow one = {5, .5};
    m.args.slow = &one;
    m.args.nslow = 1;
    m.args.keep = true;
    run(&m);
    static const char *const names[] = {"gather", "reduce"};
    const struct tasks *tasks = m.result.tasks;
    for (int k = 0; k < 2; k++) {
        ps_t starts[2][500];
        size_t n[2] = {0, 0};
        for (uint32_t i = 0; i < tasks->ntasks; i++) {
            const struct task *task = &tasks->list[i];
            if (strcmp(m.result.labels[task->label].name, names[k]) != 0) continue;
            cr_assert(task->rank < 2 && n[task->rank] < 500);
            starts[task->rank][n[task->rank]++] = tasks->spans[i].start_ps;
        }
        cr_assert(n[0] == n[1] && n[0] > 30);
        for (size_t i = 0; i < n[0]; i++) {
            cr_assert_eq(starts[0][i], starts[1][i], "%s %zu", names[k], i);
        }
    }
    unmake(&m);
}

/* A slow link counts wherever it sits, and only for the stage that it is in. */
Test(event, slow_links_count_in_every_host)
{
    static const char *const lines[] = {
        "--topo dgx-h100x4 --model llama3-8b --strategy tp8 --framework megatron --seq 4K "
        "--micro-batch 1 --global-batch 16",
        "--topo dgx-h100x4 --model llama3-8b --strategy fsdp8x4 --framework fsdp --seq 4K "
        "--micro-batch 1 --global-batch 32",
        "--topo dgx-h100x4 --model llama3-8b --strategy tp8pp2 --framework megatron --seq 4K "
        "--micro-batch 1 --global-batch 16",
    };
    for (size_t i = 0; i < 3; i++) {
        double times[3];
        for (int k = 0; k < 3; k++) {
            static const char *const faults[] = {NULL, "host0/gpu1=0.2", "host3/gpu1=0.2"};
            struct err err = ERR_INIT;
            struct made m;
            make(&m, lines[i]);
            bare(&m);
            if (faults[k])
                cr_assert_eq(fault_parse(&m.plan.topo, faults[k], &err), 0, "%s", err.text);
            run(&m);
            times[k] = m.result.step.time_s;
            for (int stage = 0; m.job.pp == 2 && k > 0 && stage < 2; stage++) {
                bool here = stage == k - 1; /* the hosts of the first stage are 0 and 1 */
                double tp = (double)m.result.stages[stage].part_ps[PART_TP] * 1e-12;
                cr_expect((tp > .25 * times[k]) == here, "stage %d: %g of %g s", stage, tp,
                          times[k]);
            }
            unmake(&m);
        }
        cr_expect(times[1] > 1.05 * times[0], "%s: %g, %g", lines[i], times[1], times[0]);
        cr_expect(fabs(times[2] / times[1] - 1) < (i == 2 ? .1 : .02), "%s: %g, %g", lines[i],
                  times[2], times[1]);
    }
}

Test(event, a_second_job_takes_its_share_of_the_network)
{
    struct made m;
    make(&m, "--topo dgx-h100x4 --model llama3-8b --strategy tp8dp4 --framework megatron --seq 2K "
             "--micro-batch 1 --global-batch 32");
    m.job.dp_overlap = false;
    run(&m);
    double alone = m.result.step.part_s[PART_DP];
    m.args.other_job = .5;
    run(&m);
    cr_assert(m.result.step.part_s[PART_DP] > 1.9 * alone &&
                  m.result.step.part_s[PART_DP] <= 2.0001 * alone,
              "%g, %g", m.result.step.part_s[PART_DP], alone);
    unmake(&m);
}

/* ---- the host's memory ---- */

Test(event, offload_shows_what_it_cannot_hide)
{
    static const unsigned what[] = {OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS, OFFLOAD_ACTIVATIONS,
                                    OFFLOAD_OPTIMIZER | OFFLOAD_WEIGHTS | OFFLOAD_ACTIVATIONS};
    for (size_t i = 0; i < 8; i++) {
        struct made m;
        make(&m, i % 2 ? "--topo dgx-h100 --model llama3-8b --strategy fsdp --framework fsdp "
                         "--seq 4K --micro-batch 1 --global-batch 16"
                       : "--topo dgx-h100 --model llama3-8b --strategy zero1 --framework deepspeed "
                         "--seq 4K --micro-batch 1 --global-batch 16");
        m.job.reduce_each = m.job.shard == SHARD_FULL;
        run(&m);
        double none = m.result.step.time_s;
        m.job.offload = what[i / 2];
        m.job.host_Bps = 50e9;
        m.job.host_mem_Bps = 40e9;
        m.job.host_shared = 1;
        run(&m);
        double slow = m.result.step.time_s, shown = m.result.step.part_s[PART_OFFLOAD];
        check_sums(&m, "offload");
        m.job.host_shared = 4;
        run(&m);
        cr_assert(m.result.step.time_s > slow, "a shared root");
        if (what[i / 2] & OFFLOAD_OPTIMIZER) cr_assert(slow > none && shown > 0);
        m.job.host_Bps = m.job.host_mem_Bps = 1e18;
        run(&m);
        cr_assert(m.result.step.time_s <= none * 1.0001, "%g, %g", m.result.step.time_s, none);
        unmake(&m);
    }
}

/* Activations that come back before they have gone stay. */
Test(event, activations_stay_that_come_back_at_once)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy fsdp --framework fsdp --seq 4K "
             "--micro-batch 1 --global-batch 16");
    m.job.reduce_each = true;
    m.job.prefetch = 100;
    run(&m);
    ps_t without = m.result.step_ps;
    m.job.offload = OFFLOAD_ACTIVATIONS;
    m.job.host_Bps = 1e8;
    m.job.host_shared = 1;
    run(&m);
    cr_assert_eq(m.result.step_ps, without);
    m.job.prefetch = 1;
    run(&m);
    cr_assert(m.result.step.part_s[PART_OFFLOAD] > m.result.step.time_s / 2);
    unmake(&m);
}

/* ---- cases ---- */

/* 90 billion parameters, 5.3 active, sharded over all, 82 % of the time for communication: a batch
 * of 1024 at once or of 1536 as two halves, 712 to 546 thousand tokens/s (ratio .766). */
Test(event, weights_are_gathered_for_every_micro_batch)
{
    struct made m;
    make(&m, "--topo dgx-h100x16 --model mixtral-8x7b --strategy fsdp --framework fsdp --seq 4K "
             "--micro-batch 8 --global-batch 1024");
    struct shape *s = &m.job.shape;
    s->hidden = 2560, s->heads = 20, s->kv_heads = 4, s->head_dim = 128;
    s->experts = 128, s->topk = 4, s->expert_ffn = 2304, s->shared_ffn = 6912, s->layers = 38;
    s->dense_layers = 0, s->params = 0;
    m.job.stage_layers = NULL;
    m.job.layout = NULL;
    m.job.reduce_each = true;
    struct param_counts n = job_params(&m.job);
    near(n.total, 90e9, .05, "parameters");
    near(n.active, 5.3e9, .2, "active");
    m.plan.topo.nic_Gbps = m.plan.topo.one_nic_Gbps = 28;
    run(&m);
    double share = m.result.step.part_s[PART_FSDP] / m.result.step.time_s;
    near(share, .82, .05, "share of communication");
    double one = m.result.step.tokens_per_s;
    m.job.micro_batch = 6;
    m.job.global_batch = 1536;
    run(&m);
    near(m.result.step.tokens_per_s / one, .766, .08, "two halves against one");
    unmake(&m);
}

/* ResNet-18 under PyTorch's buckets (measured: 2,052,000, 28,852,224, 15,853,824 bytes). */
Test(bucket, resnet18)
{
    uint64_t sizes[62], reversed[62], buckets[62];
    size_t n = 0, last[62];
    sizes[n++] = 64 * 3 * 49, sizes[n++] = 64, sizes[n++] = 64;
    for (uint64_t stage = 0, in = 64; stage < 4; stage++) {
        uint64_t out = (uint64_t)64 << stage;
        for (int block = 0; block < 2; block++, in = out) {
            sizes[n++] = in * out * 9, sizes[n++] = out, sizes[n++] = out;
            sizes[n++] = out * out * 9, sizes[n++] = out, sizes[n++] = out;
            if (in != out) sizes[n++] = in * out, sizes[n++] = out, sizes[n++] = out;
        }
    }
    sizes[n++] = 512 * 1000, sizes[n++] = 1000;
    cr_assert_eq(n, 62u);
    for (size_t i = 0; i < n; i++) {
        reversed[i] = 4 * sizes[n - 1 - i];
    }
    static const uint64_t want[] = {2052000, 28852224, 15853824};
    cr_assert_eq(bucket_cut(reversed, n, 1 << 20, 25 << 20, buckets, last), 3u);
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(buckets[i], want[i], "bucket %zu: %zu bytes", i, (size_t)buckets[i]);
    }
    cr_assert_eq(last[0], 1u);
    cr_assert_eq(last[2], 61u);
}

Test(bucket, edges)
{
    uint64_t sizes[] = {10, 0, 10, 30, 5}, buckets[5];
    size_t last[5];
    cr_assert_eq(bucket_cut(sizes, 0, 1, 1, buckets, last), 0u);
    cr_assert_eq(bucket_cut(sizes, 5, UINT64_MAX, UINT64_MAX, buckets, last), 1u);
    cr_assert_eq(buckets[0], 55u);
    cr_assert_eq(bucket_cut(sizes, 5, 20, 20, buckets, NULL), 3u);
    cr_assert(buckets[0] == 20 && buckets[1] == 30 && buckets[2] == 5);
    cr_assert_eq(bucket_cut(sizes, 5, 0, 0, buckets, last), 5u);
    cr_assert_eq(last[4], 4u);
}

/* ---- faults of the request ---- */

Test(event, bad_requests_are_told)
{
    struct made m;
    make(&m, "--topo dgx-h100 --model llama3-8b --strategy pp2 --seq 2K");
    struct err err = ERR_INIT;
    const struct event_slow bad[] = {{8, .8}, {1, 1.5}};
    m.args.slow = bad;
    m.args.nslow = 2;
    cr_assert_eq(event_run(&m.args, &m.result, &err), -1);
    cr_assert(err.count == 2 && err.code == ERR_USAGE, "%s", err.text);
    err_release(&err);
    m.args.nslow = 0;
    m.args.other_job = 1;
    cr_assert_eq(event_run(&m.args, &m.result, &err), -1);
    cr_assert(err.count == 1 && strstr(err.text, "0.95"), "%s", err.text);
    err_release(&err);
    m.args.other_job = 0;
    m.job.schedule = PIPELINE_DUALPIPE;
    m.job.global_batch = 3 * m.job.dp * m.job.micro_batch;
    cr_assert_eq(event_run(&m.args, &m.result, &err), -1);
    cr_assert(err.code == ERR_USAGE && strstr(err.text, "dualpipe"), "%s", err.text);
    err_release(&err);
    m.job.schedule = PIPELINE_1F1B;
    m.job.offload = OFFLOAD_OPTIMIZER;
    m.job.host_Bps = 0;
    cr_assert_eq(event_run(&m.args, &m.result, &err), -1);
    cr_assert(err.count == 1, "%s", err.text);
    err_release(&err);
    unmake(&m);
}

/* What the passes are, for tables: as many as the schedule has, a pair counted on both sides. */
Test(event, passes_are_counted)
{
    static const enum pipeline_id ids[] = {PIPELINE_1F1B, PIPELINE_ZB_1P, PIPELINE_DUALPIPE,
                                           PIPELINE_DUALPIPEV};
    for (size_t i = 0; i < 4; i++) {
        struct made m;
        make(&m, "--topo dgx-h100x2 --model llama3-8b --strategy tp4pp4 --framework megatron "
                 "--seq 2K --micro-batch 1 --global-batch 64");
        m.job.schedule = (uint8_t)ids[i];
        run(&m);
        uint64_t forward[4] = {0}, weights[4] = {0};
        double flops = 0;
        for (uint32_t k = 0; k < m.result.nchunks; k++) {
            const struct event_chunk *row = &m.result.chunks[k];
            cr_assert(row->stage < 4 && row->factor == 1);
            if (row->pass == PASS_F) forward[row->stage] += row->times;
            if (row->pass == PASS_W || row->pass == PASS_BW) weights[row->stage] += row->times;
        }
        for (int k = 0; k < 4; k++) {
            uint64_t want = ids[i] == PIPELINE_DUALPIPEV ? 128 : 64;
            cr_expect_eq(forward[k], want, "%zu: stage %d: %zu", i, k, (size_t)forward[k]);
            cr_expect_eq(weights[k], want, "%zu: stage %d: %zu", i, k, (size_t)weights[k]);
            flops += m.result.stages[k].flops;
        }
        near(flops * 4, m.result.step.model_flops, .02, pipeline_row(ids[i])->name);
        unmake(&m);
    }
}

/* Times beyond the range of the clock are an error, not a small number. */
Test(event, steps_beyond_the_clock)
{
    static const char *const lines[] = {
        "--topo dgx-h100 --model llama3-8b --seq 1G --micro-batch 8 --accumulation 1",
        "--topo dgx-h100 --model llama3-8b --seq 64M --micro-batch 8 --accumulation 1000000",
        "--topo dgx-h100x2 --model llama3-8b --seq 1G --micro-batch 8 --strategy pp4"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct made m;
        struct err err = ERR_INIT;
        make(&m, lines[i]);
        cr_assert_eq(event_run(&m.args, &m.result, &err), -1, "%s", lines[i]);
        cr_assert(err.code == ERR_USAGE && strstr(err.text, "213 days"), "%s", err.text);
        err_release(&err);
        unmake(&m);
    }
}

/* Groups that a domain cuts, here and there: the slowest counts, whether or not anything is broken.
 */
Test(event, groups_that_domains_cut)
{
    struct made whole, fault;
    const char *line = "--topo gb200-nvl72 --nodes 36 --model llama3-70b --strategy tp16";
    char *broken = mem_printf("%s --fault host0/nic0=.9999", line);
    make(&whole, line);
    run(&whole);
    make(&fault, line);
    cr_assert_eq(fault_parse(&fault.plan.topo, "host0/nic0=.9999", &(struct err)ERR_INIT), 0);
    run(&fault);
    near((double)fault.result.step_ps, (double)whole.result.step_ps, 1e-3, broken);
    struct err err = ERR_INIT; /* the first group lies in a domain, the fifth does not */
    struct fluid_call call = {
        .coll = COLL_ALLREDUCE, .bytes = 64 << 20, .n = 16, .stride = 1, .cross = 1};
    struct fluid inside, all;
    cr_assert_eq(fluids_get(whole.fluids, &call, &inside, &err), 0, "%s", err.text);
    call.span = whole.job.ngpus;
    cr_assert_eq(fluids_get(whole.fluids, &call, &all, &err), 0, "%s", err.text);
    double times =
        (double)(all.wire_ps + all.fixed_ps) / (double)(inside.wire_ps + inside.fixed_ps);
    cr_assert(times > 1.2, "%g", times);
    free(broken);
    unmake(&whole);
    unmake(&fault);
}

/* A matrix that embedding and head share is gathered and reduced once. */
Test(event, tied_head_is_gathered_once)
{
    struct made m;
    make(&m, "--topo dgx-h100x2 --model llama3.2-1b --strategy fsdp --framework fsdp "
             "--accumulation 1");
    run(&m);
    double weights = job_params(&m.job).total, n = m.job.ngpus;
    double each = 2. * 2 + m.job.reduce_B;
    near(m.result.bytes_by_axis[3], weights * each * (n - 1) / n, 1e-4,
         "bytes of FSDP"); /* but norms */
    unmake(&m);
}
