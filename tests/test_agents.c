/* SPDX-License-Identifier: Apache-2.0
 * Schedules with agents, programs inside switches that reduce and multicast: bytes on the links of
 * ranks, the order of their sums, their time on one switch, and who refuses them. That they are
 * right for 1 to 17 ranks and that every mutant is found is in test_sched.c, with all other rows.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "exec/exec.h"
#include "net/net.h"
#include "sched/copy.h"
#include "sched/goal.h"
#include "sched/msccl.h"
#include "sched/verify.h"

static struct sched *build(enum coll_id coll, const char *name, struct algo_args args)
{
    struct err err = ERR_INIT;
    const struct algo *algo = algo_find(coll, name, &err);
    struct sched *sched = algo ? algo_build(algo, &args, false, &err) : NULL;
    cr_assert(sched, "%s", err.text ? err.text : "");
    return sched;
}

static struct sched *build_nvls(uint32_t nranks)
{
    return build(COLL_ALLREDUCE, "nvls",
                 (struct algo_args){.nranks = nranks, .channels = 1, .parts = 1});
}

/* ---- bytes, in units of S ---- */

/* What a rank sends and receives: from and to its node's switch, the switch between the nodes, and
 * other ranks of its node and of others. */
struct bytes {
    double up, down, fabric_up, fabric_down, near_out, near_in, far_out, far_in;
};

/* A rank of n: v from the root on; node of m ranks among K, the largest of M; `owned` parts. */
struct who {
    double n, v, m, K, M, owned;
};

static struct bytes all_reduce(const struct who *w)
{
    double across = w->K > 1 ? 2 * w->owned / w->M * (w->K - 1) / w->K : 0;
    double own = w->K > 1 && w->m > 1 ? w->owned / w->M : 0;
    if (w->n == 1) return (struct bytes){0};
    return (struct bytes){
        .up = w->m > 1 ? 1 + own : 0, .down = w->m > 1, .far_out = across, .far_in = across};
}

static struct bytes sharp(const struct who *w)
{
    double near = (w->M - w->owned + w->owned * (w->m - 1)) / w->M;
    double across = w->K > 1 ? w->owned / w->M : 0;
    return (struct bytes){
        .near_out = near, .near_in = near, .fabric_up = across, .fabric_down = across};
}

static struct bytes nvls_sharp(const struct who *w)
{
    struct bytes bytes = all_reduce(w);
    bytes.far_out = bytes.far_in = 0;
    bytes.fabric_up = bytes.fabric_down = w->K > 1 ? w->owned / w->M : 0;
    return bytes;
}

static struct bytes all_gather(const struct who *w)
{
    return (struct bytes){.up = w->n > 1 ? 1 / w->n : 0, .down = (w->n - 1) / w->n};
}

static struct bytes reduce_scatter(const struct who *w)
{
    return (struct bytes){.up = w->n > 1, .down = w->n > 1 ? 1 / w->n : 0};
}

static struct bytes broadcast(const struct who *w)
{
    return (struct bytes){.up = w->n > 1 && w->v == 0, .down = w->v > 0};
}

static struct bytes reduce(const struct who *w)
{
    return (struct bytes){.up = w->n > 1, .down = w->n > 1 && w->v == 0};
}

static const struct form {
    enum coll_id coll;
    const char *algo;
    struct bytes (*of_rank)(const struct who *w);
} forms[] = {
    {COLL_ALLREDUCE, "nvls", all_reduce},
    {COLL_ALLREDUCE, "sharp", sharp},
    {COLL_ALLREDUCE, "nvls_sharp", nvls_sharp},
    {COLL_ALLGATHER, "nvls", all_gather},
    {COLL_REDUCE_SCATTER, "nvls", reduce_scatter},
    {COLL_BROADCAST, "nvls", broadcast},
    {COLL_REDUCE, "nvls", reduce},
};
enum { NFORMS = sizeof forms / sizeof *forms };

static uint32_t node_of(const struct algo_args *args, uint32_t rank)
{
    uint32_t k = 0;
    for (uint32_t end = args->nnodes ? args->nodes[0] : args->nranks; rank >= end;)
        end += args->nodes[++k];
    return k;
}

static struct who who_is(const struct algo_args *args, uint32_t rank)
{
    struct who w = {.n = args->nranks,
                    .v = (rank + args->nranks - args->root) % args->nranks,
                    .K = args->nnodes ? args->nnodes : 1,
                    .m = args->nranks,
                    .M = args->nranks};
    uint32_t mine = node_of(args, rank), local = rank;
    for (uint32_t k = 0; k < args->nnodes; k++) {
        w.M = k == 0 || args->nodes[k] > w.M ? args->nodes[k] : w.M;
        local -= k < mine ? args->nodes[k] : 0;
        w.m = k == mine ? args->nodes[k] : w.m;
    }
    for (uint32_t p = local; p < w.M; p += (uint32_t)w.m)
        w.owned++;
    return w;
}

/* Counts what the program of `rank` sends and receives. */
static struct bytes count(const struct sched *sched, const struct algo_args *args, uint32_t rank)
{
    struct bytes sum = {0};
    const struct prog *prog = sched_prog_of(sched, rank);
    uint32_t mine = node_of(args, rank);
    for (size_t i = 0; i < prog->nsteps; i++) {
        const struct step *step = &prog->steps[i];
        const struct step_info *info = step_info(step->kind);
        if (!info->sends && !info->receives) continue;
        double S = (double)step->nchunks / sched_chunks(sched, BUF_SCRATCH);
        if (step->peer < sched->nranks) {
            bool near = node_of(args, step->peer) == mine;
            *(info->sends ? near ? &sum.near_out : &sum.far_out
              : near      ? &sum.near_in
                          : &sum.far_in) += S;
            continue;
        }
        const struct agent *agent = &sched->agents[step->peer - sched->nranks];
        uint32_t leaf = args->leaf_nodes ? args->leaf_nodes : UINT32_MAX;
        if (agent->across) {
            cr_assert_eq(node_of(args, agent->rank) / leaf, mine / leaf, "the switch above it");
            *(info->sends ? &sum.fabric_up : &sum.fabric_down) += S;
        } else {
            cr_assert_eq(node_of(args, agent->rank), mine, "the switch of its own node");
            *(info->sends ? &sum.up : &sum.down) += S;
        }
    }
    return sum;
}

static void compare(const struct form *form, const struct algo_args *args)
{
    struct sched *sched = build(form->coll, form->algo, *args);
    for (uint32_t r = 0; r < args->nranks; r++) {
        struct who w = who_is(args, r);
        struct bytes want = form->of_rank(&w), have = count(sched, args, r);
        const double *a = (const double *)&want, *b = (const double *)&have;
        for (size_t i = 0; i < sizeof want / sizeof *a; i++) {
            cr_assert(fabs(a[i] - b[i]) < 1e-9,
                      "%s %s, %u ranks, root %u, %u nodes, rank %u: column %zu is %g S, not %g S",
                      sched->coll->name, form->algo, args->nranks, args->root, args->nnodes, r, i,
                      b[i], a[i]);
        }
    }
    sched_free(sched);
}

Test(bytes, one_switch_takes_s_up_and_s_down)
{
    for (size_t f = 0; f < NFORMS; f++) {
        bool rooted = coll_get(forms[f].coll)->rooted;
        for (uint32_t n = 1; n <= 17; n++) {
            for (uint32_t root = 0; root < (rooted ? n : 1); root++) {
                struct algo_args args = {
                    .nranks = n, .root = root, .channels = 1 + n % 3, .parts = 1 + root % 3};
                compare(&forms[f], &args);
            }
        }
    }
}

Test(bytes, two_levels_of_any_sizes)
{
    static const char *const groups[] = {"5",   "2+3", "1+4",    "4+4",    "1+1+1", "3+1+2",
                                         "4x4", "2x8", "4+1x10", "1x10+4", "3+5+7"};
    for (uint32_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (size_t f = 0; f < NFORMS; f++) {
            struct err err = ERR_INIT;
            const struct algo *algo = algo_find(forms[f].coll, forms[f].algo, &err);
            struct algo_args args = {
                .channels = 1 + g % 2, .parts = 1 + g % 3, .leaf_nodes = g % 4};
            uint32_t *nodes;
            cr_assert_eq(algo_nodes_parse(groups[g], &nodes, &args.nnodes, &err), 0);
            args.nranks = (uint32_t)algo_nodes_ranks(nodes, args.nnodes);
            args.nodes = nodes;
            if (algo->grouped) compare(&forms[f], &args);
            free(nodes);
        }
    }
}

Test(bytes, every_row_with_agents_has_a_form)
{
    size_t nalgos, found = 0, with = 0;
    const struct algo *table = algo_table(&nalgos);
    for (size_t a = 0; a < nalgos; a++) {
        with += !algo_runs_on_ranks(&table[a]);
        for (size_t f = 0; f < NFORMS && !algo_runs_on_ranks(&table[a]); f++)
            found += forms[f].coll == table[a].coll && strcmp(forms[f].algo, table[a].name) == 0;
    }
    cr_assert_eq(found, with);
    cr_assert_eq(with, NFORMS);
}

/* ---- order and numbers ---- */

/* A switch adds in the order of ranks: those of 3 nodes add all 4 parts, those of the network, one
 * per part and leaf of 2 nodes, one part each; everything in 4 pieces. */
Test(agents, add_in_the_order_of_ranks)
{
    static const uint32_t nodes[] = {3, 1, 4};
    struct algo_args args = {
        .nranks = 8, .channels = 2, .parts = 2, .nnodes = 3, .nodes = nodes, .leaf_nodes = 2};
    struct sched *sched = build(COLL_ALLREDUCE, "nvls_sharp", args);
    cr_assert_eq(sched->nagents, 3 + 4 * 2);
    cr_expect_eq(sched_prog_of(sched, 8 + 1)->nsteps, 0, "one rank alone needs no switch");
    for (uint32_t agent = 0; agent < sched->nagents; agent++) {
        const struct prog *prog = sched_prog_of(sched, 8 + agent);
        size_t sums = 0;
        for (size_t i = 1; i < prog->nsteps; i++) {
            if (prog->steps[i].kind != STEP_RECV_REDUCE) continue;
            cr_assert_gt(prog->steps[i].peer, prog->steps[i - 1].peer);
            cr_assert_eq(prog->steps[i].src.chunk, prog->steps[i - 1].dst.chunk);
            sums++;
        }
        static const size_t inside[] = {4 * 2, 0, 4 * 3};
        uint32_t part = (agent - 3) / 2, leaf = (agent - 3) % 2;
        cr_expect_eq(sched->agents[agent].across, agent >= 3);
        cr_expect_eq(sums, 4 * (agent < 3 ? inside[agent] : leaf ? 0 : 2), "agent %u", agent);
        if (agent < 3) continue;
        cr_expect_eq(sched->agents[agent].rank, leaf ? 4 + part : part % 3, "its owner");
    }
    sched_free(sched);
}

Test(agents, are_no_more_than_needed)
{
    static const struct {
        enum coll_id coll;
        const char *algo;
        uint32_t n, nnodes, agents;
    } want[] = {{COLL_ALLREDUCE, "nvls", 1, 0, 0},       {COLL_ALLREDUCE, "nvls", 8, 0, 1},
                {COLL_ALLREDUCE, "nvls", 8, 2, 2},       {COLL_ALLREDUCE, "sharp", 8, 1, 0},
                {COLL_ALLREDUCE, "sharp", 8, 2, 4},      {COLL_ALLREDUCE, "nvls_sharp", 8, 1, 1},
                {COLL_ALLREDUCE, "nvls_sharp", 8, 2, 6}, {COLL_REDUCE, "nvls", 1, 0, 0},
                {COLL_ALLGATHER, "nvls", 8, 1, 1},       {COLL_ALLREDUCE, "ring", 8, 2, 0}};
    static const uint32_t whole[] = {8}, halves[] = {4, 4};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct algo_args args = {.nranks = want[i].n,
                                 .channels = 1,
                                 .parts = 1,
                                 .nnodes = want[i].nnodes,
                                 .nodes = want[i].nnodes == 2 ? halves : whole};
        struct sched *sched = build(want[i].coll, want[i].algo, args);
        cr_expect_eq(sched->nagents, want[i].agents, "%s, %u nodes: %u agents", want[i].algo,
                     want[i].nnodes, sched->nagents);
        sched_free(sched);
    }
}

Test(agents, are_copied_and_compared)
{
    struct sched *a = build_nvls(3), *copy = sched_unroll(a);
    cr_expect(sched_equal(a, copy, NULL));
    cr_expect_eq(sched_hash(a), sched_hash(copy));
    copy->progs[copy->prog_of[3]].steps[0].peer ^= 1;
    cr_expect_not(sched_equal(a, copy, NULL), "agents' steps count");
    copy->progs[copy->prog_of[3]].steps[0].peer ^= 1;
    cr_expect(sched_equal(a, copy, NULL));
    copy->agents[0].across = true;
    cr_expect_not(sched_equal(a, copy, NULL), "and where they stand");
    sched_free(copy);
    struct sched *b = build(COLL_ALLREDUCE, "oneshot",
                            (struct algo_args){.nranks = 3, .channels = 1, .parts = 1});
    struct err why = ERR_INIT;
    cr_expect_not(sched_equal(a, b, &why));
    cr_expect(strstr(why.text, "1 agents"), "%s", why.text);
    err_release(&why);
    sched_free(a);
    sched_free(b);
}

/* ---- time ---- */

#define ALPHA_US 5.0
#define BETA 50e9

/* Time in us on one switch that reduces: n links of BETA each way, half of ALPHA on each. */
static double simulate(enum coll_id coll, const char *name, struct algo_args args, size_t size)
{
    struct err err = ERR_INIT;
    struct sched *sched = build(coll, name, args);
    struct linked *linked =
        link_sched(sched, &(struct link_opts){.mode = WIRE_STAGED, .fuse = true}, &err);
    cr_assert(linked, "%s", err.text ? err.text : "");
    struct net_args net = {.alpha_ps = (ps_t)(ALPHA_US * 1e6),
                           .beta_Bps = BETA,
                           .slots = linked->most_msgs + 1,
                           .block_bytes = coll_block_count(coll_get(coll), args.nranks, size, 1)};
    struct net_result result;
    cr_assert_eq(net_run(linked, &net, &result, &err), 0, "%s", err.text ? err.text : "");
    double time_us = (double)result.total_ps / 1e6;
    net_result_release(&result);
    linked_free(linked);
    sched_free(sched);
    return time_us;
}

/* n ranks, p pieces, b = S / BETA: a piece comes down while the next goes up.
 *     all-reduce, broadcast, reduce   ALPHA + b + b/p
 *     all-gather                      ALPHA + b/n/p + (n-1)/n b    the first pieces, then all down
 *     reduce-scatter                  ALPHA + b + b/n/p            all up, then the last piece */
Test(timing, one_switch_is_as_in_closed_form)
{
    static const uint32_t ranks[] = {2, 3, 8, 17};
    size_t size = (size_t)64 * 8 * 3 * 17 * 4 * 1000;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        for (uint32_t p = 1; p <= 4; p *= 2) {
            double n = ranks[i], b = (double)size / BETA * 1e6, piece = b / p;
            const struct {
                enum coll_id coll;
                double us;
            } want[] = {{COLL_ALLREDUCE, b + piece},
                        {COLL_BROADCAST, b + piece},
                        {COLL_REDUCE, b + piece},
                        {COLL_ALLGATHER, piece / n + (n - 1) / n * b},
                        {COLL_REDUCE_SCATTER, b + piece / n}};
            for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
                struct algo_args args = {.nranks = ranks[i], .channels = 1, .parts = p};
                double got = simulate(want[k].coll, "nvls", args, size);
                cr_expect(fabs(got / (ALPHA_US + want[k].us) - 1) < 1e-4,
                          "%s, %u ranks, %u pieces: %g us, not %g us", coll_get(want[k].coll)->name,
                          ranks[i], p, got, ALPHA_US + want[k].us);
            }
        }
    }
}

/* As the switch adds, its time for long messages does not depend on n, and is less than a ring's.
 */
Test(timing, long_messages_take_half_of_a_rings)
{
    double times[2];
    for (uint32_t n = 8; n <= 64; n *= 8) {
        struct algo_args args = {.nranks = n, .channels = 1, .parts = 64};
        times[n / 64] = simulate(COLL_ALLREDUCE, "nvls", args, (size_t)1 << 28);
        args.parts = 1;
        double ring = simulate(COLL_ALLREDUCE, "ring", args, (size_t)1 << 28);
        cr_expect_lt(times[n / 64], 1.02 * ring / (2 * (n - 1.0) / n));
    }
    cr_expect(fabs(times[1] / times[0] - 1) < 1e-3, "%g and %g us", times[0], times[1]);
}

/* ---- what is refused ---- */

static void refused(struct sched *sched, const char *word)
{
    struct err err = ERR_INIT;
    cr_expect(verify_all(sched, &err));
    cr_expect(err.text && strstr(err.text, word), "%s is not in: %s", word,
              err.text ? err.text : "");
    err_release(&err);
    sched_free(sched);
}

/* Two switches: each adds both ranks and answers one of them, in the same order or not. */
static struct sched *two_switches(bool same_order)
{
    struct sched *sched = sched_new("two", COLL_ALLREDUCE, 2, 0, 1);
    sched_set_agents(sched, 2);
    for (uint32_t r = 0; r < 2; r++) {
        struct prog *prog = sched_prog(sched, r);
        sched_send_ref(prog, 2, ref_in(0));
        sched_send_ref(prog, 3, ref_in(0));
        sched_recv(prog, 2 + r, 0);
    }
    for (uint32_t a = 0; a < 2; a++) {
        struct prog *prog = sched_prog(sched, 2 + a);
        uint32_t first = same_order ? 0 : a;
        sched_recv_ref(prog, first, ref_scratch(0, 0));
        sched_recv_reduce_ref(prog, 1 - first, ref_scratch(0, 0), ref_scratch(0, 0));
        sched_final(prog);
        sched_send_ref(prog, a, ref_scratch(0, 0));
    }
    return sched;
}

Test(refused, switches_that_add_in_different_orders)
{
    struct err err = ERR_INIT;
    struct sched *same = two_switches(true);
    cr_expect(!verify_all(same, &err), "%s", err.text ? err.text : "");
    cr_expect(verify_oracle(same, false) && verify_oracle(same, true));
    sched_free(same);
    refused(two_switches(false), "another order");
}

Test(refused, agents_with_input_or_output)
{
    static const struct {
        size_t step;
        uint32_t buf;
        const char *word;
    } wrong[] = {{0, BUF_OUT, "dst names the output"}, {3, BUF_IN, "src names the input"}};
    for (size_t i = 0; i < 2; i++) {
        struct sched *sched = build_nvls(3);
        struct step *step = &sched->progs[sched->prog_of[3]].steps[wrong[i].step];
        *(step->kind == STEP_SEND ? &step->src : &step->dst) = (struct ref){wrong[i].buf, 0};
        cr_expect_not(verify_oracle(sched, false) || verify_oracle(sched, true));
        refused(sched, wrong[i].word);
    }
}

/* It would be right, if there were such memory. */
Test(refused, an_agent_that_adds_in_an_output)
{
    struct sched *sched = build_nvls(3);
    struct prog *prog = &sched->progs[sched->prog_of[3]];
    for (size_t i = 0; i < prog->nsteps; i++) {
        prog->steps[i].src.buf = prog->steps[i].dst.buf = BUF_OUT;
    }
    cr_expect_not(verify_oracle(sched, false) || verify_oracle(sched, true));
    refused(sched, "scratch alone");
}

Test(refused, an_agent_without_program)
{
    struct sched *sched = sched_new("bare", COLL_BROADCAST, 1, 0, 1);
    sched_set_agents(sched, 1);
    sched_copy(sched_prog(sched, 0), ref_out(0), ref_in(0));
    refused(sched, "1 programs for 1 ranks and 1 agents");
    sched = sched_new("self", COLL_BROADCAST, 1, 0, 1);
    sched_set_agents(sched, 1);
    sched_copy(sched_prog(sched, 0), ref_out(0), ref_in(0));
    struct prog *agent = sched_prog(sched, 1);
    sched_recv_ref(agent, 1, ref_scratch(0, 0));
    refused(sched, "agent 1 step 0");
}

Test(refused, several_nodes_for_a_row_of_one)
{
    static const uint32_t nodes[] = {2, 2};
    struct algo_args args = {.nranks = 4, .channels = 1, .parts = 1, .nnodes = 2, .nodes = nodes};
    size_t nalgos, asked = 0;
    const struct algo *table = algo_table(&nalgos);
    for (size_t a = 0; a < nalgos; a++) {
        bool one = table[a].agents && !table[a].grouped;
        struct err err = ERR_INIT;
        struct sched *sched = algo_build(&table[a], &args, false, &err);
        cr_expect_eq(!sched, one, "%s", table[a].name);
        cr_expect(!one || (err.code == ERR_USAGE && strstr(err.text, "2 nodes")));
        asked += one;
        err_release(&err);
        sched_free(sched);
    }
    cr_assert_eq(asked, 4);
}

Test(refused, by_executor_and_by_files)
{
    struct sched *sched = build_nvls(4);
    struct err err = ERR_INIT;
    struct link_opts opts = {.mode = WIRE_STAGED, .fuse = true};
    struct linked *linked = link_sched(sched, &opts, &err);
    cr_assert(linked, "%s", err.text ? err.text : "");
    cr_expect_null(exec_open(&(struct exec_spec){.linked = linked}, &err));
    cr_expect(err.code == ERR_USAGE && strstr(err.text, "no executor"), "%s", err.text);
    err_release(&err);
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    cr_expect(goal_write(to, linked, &(struct goal_opts){.block_bytes = 64}, &err));
    cr_expect(strstr(err.text, "GOAL"), "%s", err.text);
    err_release(&err);
    cr_expect(msccl_write(to, sched, NULL, &err));
    cr_expect(strstr(err.text, "MSCCL"), "%s", err.text);
    err_release(&err);
    fclose(to);
    cr_expect_eq(bytes, 0, "nothing is written");
    free(text);
    linked_free(linked);
    sched_free(sched);
}
