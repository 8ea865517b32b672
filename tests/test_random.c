/* SPDX-License-Identifier: Apache-2.0
 * What must hold of the training step whatever is asked for: random commands (cluster, model,
 * strategy, framework, faults), drawn from a fixed seed. RANDOM_CASES and RANDOM_SEED in the
 * environment draw more of them, or others. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/twice.h"
#include "train/event.h"
#include "train/plan.h"
#include "train/slow.h"

/* ---- a random command ---- */

/* Words of a command line, each behind the last. */
struct words {
    char *text;
};

static void say(struct words *words, char *more)
{
    char *all = mem_printf("%s%s%s", words->text ? words->text : "", words->text ? " " : "", more);
    free(words->text);
    free(more);
    words->text = all;
}

/* One of a list; its last is NULL. */
static const char *pick(struct rng *rng, const char *const *list)
{
    size_t n = 0;
    while (list[n])
        n++;
    return list[rng_below(rng, n)];
}

static uint32_t power(struct rng *rng, unsigned most)
{
    return 1u << rng_below(rng, most + 1);
}

static bool one_in(struct rng *rng, uint32_t n)
{
    return rng_below(rng, n) == 0;
}

static void say_strategy(struct words *w, struct rng *rng, bool experts, bool sharded)
{
    static const char *const states[] = {"", "", "zero1", "zero2", NULL};
    static const char *const shards[] = {"zero3", "fsdp", "fsdp", "fsdp8x2", NULL};
    const char *state = pick(rng, sharded ? shards : states);
    uint32_t tp = power(rng, 3), pp = power(rng, sharded ? 0 : 3), ep = power(rng, 3);
    uint32_t cp = one_in(rng, 4) ? 2 : 1, vpp = pp > 1 && one_in(rng, 3) ? 2 : 1;
    static const char *const cps[] = {"cp", "ulysses", NULL};
    say(w, mem_printf("--strategy %stp%upp%uvpp%u%s%uep%u", state, tp, pp, vpp, pick(rng, cps), cp,
                      experts ? ep : 1));
    static const char *const schedules[] = {"gpipe",    "zb-1p",     "zb-2p",
                                            "dualpipe", "dualpipev", NULL};
    if (pp > 1 && vpp == 1 && one_in(rng, 2))
        say(w, mem_printf("--schedule %s", pick(rng, schedules)));
}

/* What a job may have beside its strategy. */
static void say_job(struct words *w, struct rng *rng, bool experts)
{
    static const char *const recomputes[] = {"selective", "full", "full:1", "core_attn+norm", NULL};
    static const char *const offloads[] = {"optimizer", "weights", "activations",
                                           "optimizer,weights", NULL};
    static const char *const features[] = {
        "tp-overlap=on",    "ep-overlap=on", "dp-overlap=off",    "gather-overlap=on",
        "p2p-overlap=off",  "ep-dedup=on",   "scatter-gather=on", "graphs=full",
        "bucket-bytes=2e7", "prefetch=2",    "gather-tensors=on", NULL};
    say(w, mem_printf("--seq %u --micro-batch %u --accumulation %u", 512u << rng_below(rng, 5),
                      power(rng, 1), power(rng, 4)));
    if (one_in(rng, 3)) say(w, mem_printf("--recompute %s", pick(rng, recomputes)));
    if (one_in(rng, 8)) say(w, mem_printf("--offload %s", pick(rng, offloads)));
    if (one_in(rng, 8)) say(w, mem_printf("--lora 16%s", one_in(rng, 2) ? " --qlora" : ""));
    if (one_in(rng, 8)) say(w, mem_printf("--packed 700"));
    if (one_in(rng, 8)) say(w, mem_printf("--precision fp8"));
    if (experts && one_in(rng, 2)) say(w, mem_printf("--moe-imbalance 1.3"));
    if (experts && one_in(rng, 3)) say(w, mem_printf("--moe-capacity 1.25"));
    if (one_in(rng, 3)) say(w, mem_printf("--feature %s", pick(rng, features)));
}

/* A command that need not make sense. `most`: hosts, a power of two. */
static char *draw_line(struct rng *rng, unsigned most)
{
    static const char *const topos[] = {"dgx-h100",      "dgx-a100", "h200-4nic",  "pcie8-a100",
                                        "dgx-h100-roce", "p5-h100",  "hgx-mi300x", "pcie4-4090",
                                        "dgx1-v100",     NULL};
    static const char *const dense[] = {"llama3.2-1b", "llama3-8b", "llama2-13b",
                                        "gpt2-xl",     "gemma2-2b", NULL};
    static const char *const mixed[] = {"mixtral-8x7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite",
                                        NULL};
    static const char *const frameworks[] = {
        "megatron",           "nemo", "torchtitan", "deepspeed", "fsdp", "nanotron", "composer",
        "megatron-deepspeed", "neox", "internevo",  NULL};
    struct words w = {0};
    bool experts = one_in(rng, 3), sharded = one_in(rng, 3);
    say(&w, mem_printf("--topo %sx%u --model %s --framework %s", pick(rng, topos), power(rng, most),
                       pick(rng, experts ? mixed : dense), pick(rng, frameworks)));
    say_strategy(&w, rng, experts, sharded);
    say_job(&w, rng, experts);
    return w.text;
}

/* ---- a plan of it ---- */

/* What is read once. */
struct shelf {
    struct tables tables;
    struct net_const_table net;
};

static void shelf_init(struct shelf *shelf)
{
    struct err err = ERR_INIT;
    cr_assert_eq(tables_read(&shelf->tables, ENGINE_EVENT, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(net_const_read(&shelf->net, NULL, &err), 0, "%s", err.text);
}

static void shelf_release(struct shelf *shelf)
{
    net_const_release(&shelf->net);
    tables_release(&shelf->tables);
}

struct made {
    char *line, *what; /* the command; with its faults */
    struct plan plan;
    struct job job; /* the plan's, to be changed */
    struct constants c;
    struct net_consts net;
    struct fluids *fluids;
    struct chunks *chunks;
    struct event_slow slow[2];
    char *fault; /* of a link, or NULL */
    struct event_args args;
    struct event_result result;
};

static void unmake(struct made *m)
{
    event_release(&m->result);
    chunks_free(m->chunks);
    fluids_free(m->fluids);
    plan_release(&m->plan);
    free(m->line);
    free(m->what);
    free(m->fault);
    *m = (struct made){0};
}

/* Plans m->line with m->fault; false: there is no such plan. */
static bool plan_line(struct made *m, struct shelf *shelf)
{
    static const struct opts_row none[] = {{0}};
    struct plan_args args = {0};
    struct opts opts;
    struct opts_list faults = {0};
    struct err err = ERR_INIT;
    struct opts_row *rows = plan_options(0, none);
    char *text = mem_strdup(m->line), *save = NULL, *argv[64] = {"x"};
    int argc = 1;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        cr_assert(argc < 64);
        argv[argc++] = w;
    }
    cr_assert_eq(opts_parse(&opts, rows, &args, argc, argv, &err), 0, "%s: %s", m->line, err.text);
    if (m->fault) {
        faults = (struct opts_list){.items = &m->fault, .count = 1};
        args.faults = &faults;
    }
    bool there = plan_make(&m->plan, &shelf->tables, &args, &err) == 0;
    if (there && m->plan.rules.errors > 0) {
        plan_release(&m->plan);
        there = false;
    }
    err_release(&err);
    opts_release(&opts);
    free(rows);
    free(text);
    return there;
}

static void ready(struct made *m, const struct shelf *shelf)
{
    struct lib_args lib = lib_usual();
    m->job = m->plan.job;
    m->c = shelf->tables.constants[ENGINE_EVENT].values;
    m->net = shelf->net.values;
    m->fluids = fluids_new(&m->plan.topo, &m->net, &lib);
    m->chunks = chunks_new();
    m->args = (struct event_args){
        .job = &m->job, .c = &m->c, .fluids = m->fluids, .chunks = m->chunks, .slow = m->slow};
}

/* Makes its network anew: nothing is known of collectives. */
static void remake(struct made *m)
{
    struct lib_args lib = lib_usual();
    fluids_free(m->fluids);
    m->fluids = fluids_new(&m->plan.topo, &m->net, &lib);
    m->args.fluids = m->fluids;
}

/* Breaks something, at random. */
static void break_something(struct made *m, struct rng *rng, const struct topo *topo)
{
    uint64_t gpus = topo_gpus(topo);
    for (size_t i = 0; i < 1 + rng_below(rng, 2); i++) {
        struct event_slow slow = {(uint32_t)rng_below(rng, gpus), .3 + .7 * rng_unit(rng)};
        if (i && m->slow[0].gpu == slow.gpu) continue;
        m->slow[m->args.nslow++] = slow;
    }
}

static char *link_fault(struct rng *rng, const struct topo *topo)
{
    uint64_t host = rng_below(rng, topo->hosts);
    if (one_in(rng, 2) && topo->hosts > 1 && topo->nics > 0)
        return mem_printf("host%llu/nic%llu=%.2f", (unsigned long long)host,
                          (unsigned long long)rng_below(rng, (uint64_t)topo->nics),
                          .2 + .7 * rng_unit(rng));
    return mem_printf("host%llu/gpu%llu=%.2f", (unsigned long long)host,
                      (unsigned long long)rng_below(rng, (uint64_t)topo->per_host),
                      .2 + .7 * rng_unit(rng));
}

static void describe(struct made *m)
{
    m->what =
        mem_printf("%s%s%s%s", m->line, m->fault ? " --fault " : "",
                   m->fault && strstr(m->fault, "/gpu") ? "link:" : "", m->fault ? m->fault : "");
    for (size_t i = 0; i < m->args.nslow; i++) {
        char *all = mem_printf("%s --fault gpu%u=%.17g", m->what, m->slow[i].gpu, m->slow[i].speed);
        free(m->what);
        m->what = all;
    }
    if (m->args.other_job > 0) {
        char *all = mem_printf("%s --other-job %g", m->what, m->args.other_job);
        free(m->what);
        m->what = all;
    }
}

/* Draws until there is a plan; one in three with faults, if any are wanted. */
static void draw(struct made *m, struct shelf *shelf, struct rng *rng, unsigned most, bool faults)
{
    for (;;) {
        *m = (struct made){.line = draw_line(rng, most)};
        if (!plan_line(m, shelf)) {
            unmake(m);
            continue;
        }
        bool broken = faults && one_in(rng, 3), slow = faults && one_in(rng, 3);
        bool other = faults && one_in(rng, 5);
        if (broken) {
            m->fault = link_fault(rng, &m->plan.topo);
            plan_release(&m->plan);
            if (!plan_line(m, shelf)) {
                unmake(m);
                continue;
            }
        }
        ready(m, shelf);
        if (slow) break_something(m, rng, &m->plan.topo);
        if (other) m->args.other_job = .5 * rng_unit(rng);
        describe(m);
        return;
    }
}

/* false: the engine refuses it. */
static bool run(struct made *m)
{
    struct err err = ERR_INIT;
    event_release(&m->result);
    m->result = (struct event_result){0};
    bool ran = event_run(&m->args, &m->result, &err) == 0;
    if (!ran) cr_expect_eq(err.code, ERR_USAGE, "%s: %s", m->what, err.text);
    err_release(&err);
    return ran;
}

/* ---- how many, and from where on ---- */

static uint64_t setting(const char *name, uint64_t usual)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : usual;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- two levels ---- */

/* Time is accounted for to the picosecond, and no stage is quicker than its arithmetic. */
static void check_sums(const struct made *m)
{
    const struct event_result *r = &m->result;
    for (uint32_t i = 0; i < r->nstages; i++) {
        const struct event_stage *stage = &r->stages[i];
        ps_t sum = 0;
        for (int k = 0; k < NPARTS; k++) {
            cr_expect(stage->part_ps[k] <= r->step_ps, "%s: %s of stage %u", m->what,
                      step_part_key((enum step_part)k), i);
            sum += stage->part_ps[k];
        }
        cr_expect_eq(sum, r->step_ps, "%s: stage %u", m->what, i);
        cr_expect((double)r->step_ps * 1e-12 >= stage->floor_s,
                  "%s: stage %u takes %g s, its arithmetic %g s", m->what, i,
                  (double)r->step_ps * 1e-12, stage->floor_s);
    }
}

/* Operator by operator a step takes what it does chunk by chunk. */
Test(random, levels_agree)
{
    size_t cases = setting("RANDOM_CASES", 240), over = 0, whole = 0;
    double *off = mem_calloc(cases, sizeof *off);
    struct rng rng;
    struct shelf shelf;
    shelf_init(&shelf);
    rng_init(&rng, setting("RANDOM_SEED", 1));
    for (size_t n = 0; n < cases;) {
        struct made m;
        draw(&m, &shelf, &rng, 2, true);
        if (run(&m)) {
            double chunks = m.result.step.time_s;
            uint64_t events = m.result.events;
            check_sums(&m);
            m.args.detail = DETAIL_OP;
            if (run(&m)) {
                check_sums(&m);
                whole += m.result.events > 2 * events;
                off[n] = fabs(m.result.step.time_s / chunks - 1);
                over += off[n] > .005;
                cr_expect(off[n] <= .005, "%+.2f %%: %s: %.6g s, chunk by chunk %.6g s",
                          100 * (m.result.step.time_s / chunks - 1), m.what, m.result.step.time_s,
                          chunks);
                n++;
            }
        }
        unmake(&m);
    }
    qsort(off, cases, sizeof *off, by_size);
    printf("levels: %zu of %zu over 0.5 %%, median %.3f %%, worst %.2f %%; %zu mostly of whole "
           "passes\n",
           over, cases, 100 * off[cases / 2], 100 * off[cases - 1], whole);
    cr_expect(whole > cases / 3, "of %zu steps %zu have whole passes", cases, whole);
    free(off);
    shelf_release(&shelf);
}

/* ---- all rates ---- */

/* All rates twice, all latencies and fixed times half: half the time. */
Test(random, twice_as_fast_takes_half_the_time)
{
    size_t cases = setting("RANDOM_CASES", 120);
    struct rng rng;
    struct shelf shelf;
    shelf_init(&shelf);
    rng_init(&rng, setting("RANDOM_SEED", 2));
    for (size_t n = 0; n < cases;) {
        struct made m;
        draw(&m, &shelf, &rng, 3, true);
        if (run(&m)) {
            double slow = m.result.step.time_s;
            check_sums(&m);
            remake(&m);
            twice_as_fast(&m.net, &m.c, &m.plan.topo, &m.job);
            cr_expect(run(&m), "%s", m.what);
            cr_expect(fabs(2 * m.result.step.time_s / slow - 1) < 1e-6, "%s: twice %.9g, %.9g",
                      m.what, m.result.step.time_s, slow);
            n++;
        }
        unmake(&m);
    }
    shelf_release(&shelf);
}

/* ---- more bandwidth ---- */

/* Links inside and between hosts are up to 2 and 4 times as fast: hardly ever slower, though other
 * collectives meet then, and the library chooses others. */
Test(random, more_bandwidth_is_hardly_ever_slower)
{
    size_t cases = setting("RANDOM_CASES", 200), slower = 0;
    double *ratio = mem_calloc(cases, sizeof *ratio);
    struct rng rng;
    struct shelf shelf;
    shelf_init(&shelf);
    rng_init(&rng, setting("RANDOM_SEED", 4));
    for (size_t n = 0; n < cases;) {
        struct made m;
        draw(&m, &shelf, &rng, 2, true);
        if (run(&m)) {
            double slow = m.result.step.time_s;
            double inside = 1 + rng_unit(&rng), nic = 1 + 3 * rng_unit(&rng);
            struct topo *t = &m.plan.topo;
            bool bus = t->scale_up == SCALE_UP_PCIE || t->scale_up == SCALE_UP_PCIE_HOST;
            if (bus) inside = nic; /* they are the same links */
            remake(&m);
            t->line_GBps *= inside, t->ring_GBps *= inside;
            t->nic_Gbps *= nic, t->one_nic_Gbps *= nic;
            t->host.pcie_GBps *= nic, t->host.uplink_GBps *= nic;
            cr_expect(run(&m), "%s", m.what);
            ratio[n] = m.result.step.time_s / slow;
            slower += ratio[n] > 1.01;
            cr_expect(ratio[n] <= 1.03, "%.4f of the time with %g and %g times the rates: %s",
                      ratio[n], inside, nic, m.what);
            n++;
        }
        unmake(&m);
    }
    qsort(ratio, cases, sizeof *ratio, by_size);
    printf("more bandwidth: %zu of %zu over 1 %% slower, worst %+.2f %%, median %+.2f %%\n", slower,
           cases, 100 * ratio[cases - 1] - 100, 100 * ratio[cases / 2] - 100);
    cr_expect(slower <= cases / 100, "%zu of %zu", slower, cases);
    free(ratio);
    shelf_release(&shelf);
}

/* ---- who stands for whom ---- */

/* Clusters are cut, ranks of a collective and replicas of a stage stand for others: as if none did.
 */
Test(random, folded_is_unfolded)
{
    size_t cases = setting("RANDOM_CASES", 200), sets = 0, broken = 0, large = 0;
    struct rng rng;
    struct shelf shelf;
    shelf_init(&shelf);
    rng_init(&rng, setting("RANDOM_SEED", 3));
    for (size_t n = 0; n < cases;) {
        struct made m;
        draw(&m, &shelf, &rng, 3, true);
        if (run(&m)) {
            double folded = m.result.step.time_s;
            uint64_t events = m.result.events;
            remake(&m);
            fluids_unfold(m.fluids);
            m.args.apart = true;
            cr_expect(run(&m), "%s", m.what);
            cr_expect(fabs(m.result.step.time_s / folded - 1) < 1e-9, "%s: %.12g, folded %.12g",
                      m.what, m.result.step.time_s, folded);
            sets += m.result.events > events;
            broken += m.fault != NULL;
            large += m.job.ngpus >= 32;
            n++;
        }
        unmake(&m);
    }
    printf(
        "folded: of %zu cases %zu with replicas, %zu with broken links, %zu of 32 GPUs and more\n",
        cases, sets, broken, large);
    cr_expect(cases < 200 || (sets > cases / 4 && broken > cases / 6 && large > cases / 6));
    shelf_release(&shelf);
}
