/* SPDX-License-Identifier: Apache-2.0
 * GOAL text, read and timed: every algorithm that is exported takes as long as the engine says of
 * the schedule itself; sums, dependencies and processors by hand; every fault has its line. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "net/goal_run.h"
#include "net/net.h"
#include "sched/goal.h"

#define ALPHA 5000000u /* 5 us */
#define BETA 50e9

/* Reads and times a text on one switch. */
static ps_t time_of(const char *text, ps_t overhead_ps, struct goal *goal)
{
    struct err err = ERR_INIT;
    struct goal_result result;
    cr_assert(!goal_read(goal, "x.goal", text, strlen(text), &err), "%s", err.text);
    struct network *network = network_switch(goal->nranks, BETA, ALPHA);
    cr_assert(!goal_run(goal, network, overhead_ps, &result, &err), "%s", err.text);
    ps_t time = result.total_ps;
    double carried = 0;
    for (uint32_t i = 0; i < network_links(network); i++)
        carried += result.link_bytes[i];
    uint64_t to_others = 0;
    for (size_t i = 0; i < goal->nops; i++)
        if (goal->ops[i].kind == GOAL_SEND && goal->ops[i].peer != goal->ops[i].rank)
            to_others += goal->ops[i].amount;
    cr_expect_eq(carried, 2.0 * (double)to_others, "each byte passes two links");
    goal_result_release(&result);
    network_free(network);
    return time;
}

static ps_t alone(const char *text, ps_t overhead_ps)
{
    struct goal goal;
    ps_t time = time_of(text, overhead_ps, &goal);
    goal_release(&goal);
    return time;
}

/* ---- exported schedules ---- */

/* On `network`, NULL: one switch. */
static void compare_on(const struct network *cluster, const struct sched *sched, bool fuse,
                       double ns_per_byte)
{
    struct err err = ERR_INIT;
    struct linked *linked =
        link_sched(sched, &(struct link_opts){.mode = WIRE_STAGED, .fuse = fuse}, &err);
    cr_assert(linked, "%s", err.text);
    size_t block = coll_block_count(sched->coll, sched->nranks, 1 << 20, 1);
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    struct goal_opts opts = {
        .block_bytes = block, .reduce_ns_per_byte = ns_per_byte, .copy_ns_per_byte = ns_per_byte};
    cr_assert(!goal_write(to, linked, &opts, &err), "%s", err.text);
    fclose(to);
    struct network *own = cluster ? NULL : network_switch(sched->nranks, BETA, ALPHA);
    const struct network *network = cluster ? cluster : own;
    struct net_args args = {.network = network,
                            .gamma_Bps = ns_per_byte > 0 ? 1e9 / ns_per_byte : 0,
                            .slots = UINT32_MAX,
                            .block_bytes = block};
    struct net_result result;
    cr_assert(!net_run(linked, &args, &result, &err), "%s", err.text);
    struct goal goal;
    struct goal_result timed;
    cr_assert(!goal_read(&goal, "x.goal", text, strlen(text), &err), "%s", err.text);
    cr_assert(!goal_run(&goal, network, 0, &timed, &err), "%s", err.text);
    double time = (double)timed.total_ps, want = (double)result.total_ps;
    for (uint32_t i = 0; i < network_links(network); i++)
        cr_expect_eq(timed.link_bytes[i], result.link_bytes[i], "link %u", i);
    goal_result_release(&timed);
    cr_expect_eq(goal.messages, result.messages, "%s", sched->name);
    cr_expect_eq(goal.bytes, result.bytes, "%s", sched->name);
    /* A calc is rounded to a nanosecond; a chain of them is as long as the schedule is deep. */
    double round_ps = ns_per_byte > 0 ? 500.0 * 2 * sched->nranks : 1;
    cr_expect(fabs(time - want) <= round_ps + 1e-9 * want, "%s %s, %u ranks, %s: %.0f ps, not %.0f",
              sched->coll->name, sched->name, sched->nranks, fuse ? "fused" : "unfused", time,
              want);
    goal_release(&goal);
    net_result_release(&result);
    network_free(own);
    linked_free(linked);
    free(text);
}

static void compare(const struct sched *sched, bool fuse, double ns_per_byte)
{
    compare_on(NULL, sched, fuse, ns_per_byte);
}

Test(goal, every_algorithm_takes_as_long_as_its_schedule)
{
    static const uint32_t sizes[] = {2, 3, 5, 8};
    size_t nrows;
    const struct algo *table = algo_table(&nrows);
    unsigned compared = 0;
    for (size_t a = 0; a < nrows; a++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct err err = ERR_INIT;
            struct algo_args args = {.nranks = sizes[i], .channels = 1 + i % 2, .parts = 1};
            struct sched *sched = algo_build(&table[a], &args, false, &err);
            err_release(&err);
            if (!sched) continue; /* that many ranks are not its own */
            if (sched->nagents == 0 && sched->coll->id != COLL_ALLTOALLV &&
                sched->coll->id != COLL_BARRIER) {
                compare(sched, false, 0);
                compare(sched, true, 0);
                compared++;
            }
            sched_free(sched);
        }
    }
    cr_expect_gt(compared, 100u);
}

Test(goal, reduces_take_their_time)
{
    static const char *const names[] = {"ring", "tree", "recursive_doubling"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err err = ERR_INIT;
        const struct algo *algo = algo_find(COLL_ALLREDUCE, names[i], &err);
        cr_assert(algo, "%s", err.text);
        struct algo_args args = {.nranks = 8, .channels = 1, .parts = 1};
        struct sched *sched = algo_build(algo, &args, false, &err);
        cr_assert(sched, "%s", err.text);
        compare(sched, false, 0.02);
        sched_free(sched);
    }
}

/* Routes are those of the engine: a message's nic is its channel. */
Test(goal, clusters)
{
    static const char *const clusters[] = {"dgx-a100x2", "pcie8x2", "polaris-a100x4", "p4d-a100x2"};
    struct accel_table accels;
    struct err err = ERR_INIT;
    struct net_rate rates[NNET_KINDS];
    for (int kind = 0; kind < NNET_KINDS; kind++)
        rates[kind] = (struct net_rate){.efficiency = 0.9, .latency_ps = 700000};
    cr_assert(!accel_read(&accels, NULL, &err), "%s", err.text);
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++) {
        struct topo topo;
        cr_assert(!topo_read(&topo, &accels, clusters[i], 0, 0, &err), "%s", err.text);
        struct network *network = network_build(&topo, rates, NET_OWN, NULL, &err);
        cr_assert(network, "%s", err.text);
        static const char *const names[] = {"ring", "halving_doubling"};
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            const struct algo *algo = algo_find(COLL_ALLREDUCE, names[k], &err);
            cr_assert(algo, "%s", err.text);
            struct algo_args args = {.nranks = 16, .channels = 4, .parts = 1};
            struct sched *sched = algo_build(algo, &args, false, &err);
            cr_assert(sched, "%s", err.text);
            compare_on(network, sched, true, 0);
            sched_free(sched);
        }
        network_free(network);
        topo_release(&topo);
    }
    accel_release(&accels);
}

/* ---- by hand ---- */

Test(goal, operations)
{
    /* 50,000 bytes take 1 us over a link of 50 GB/s; then 5 us of latency. */
    cr_expect_eq(
        alone("num_ranks 2 rank 0 { a: send 50000b to 1 } rank 1 { b: recv 50000b from 0 }", 0),
        6000000u);
    cr_expect_eq(alone("num_ranks 2 rank 0 {send 0b to 1} rank 1 {recv 0b from 0}", 0), ALPHA);
    cr_expect_eq(alone("num_ranks 1 rank 0 { a: send 9b to 0 b: recv 9b from 0 }", 0), 0u);
    cr_expect_eq(alone("num_ranks 3", 0), 0u);
    /* Two messages to one rank share its link; two of one wire follow each other. */
    cr_expect_eq(alone("num_ranks 3 rank 0 {send 50000 to 2} rank 1 {send 50000 to 2}"
                       "rank 2 {recv 50000 from 0; recv 50000 from 1}",
                       0),
                 7000000u);
    cr_expect_eq(alone("num_ranks 2 rank 0 {send 50000 to 1 send 50000 to 1}"
                       "rank 1 {a: recv 50000 from 0 recv 50000 from 0 c: calc 3000 c requires a}",
                       0),
                 9000000u);
}

Test(goal, processors_do_one_thing_at_a_time)
{
    cr_expect_eq(alone("num_ranks 1 rank 0 { calc 10 cpu 0 calc 20 cpu 0 calc 25 cpu 7 }", 0),
                 30000u);
    cr_expect_eq(alone("num_ranks 2 rank 0 { send 0 to 1 calc 10 } rank 1 { recv 0b from 0 }", 700),
                 ALPHA + 700u);
    cr_expect_eq(alone("num_ranks 1 rank 0 { a: calc 10 cpu 0 b: calc 20 cpu 1 b requires a }", 0),
                 30000u);
    cr_expect_eq(alone("num_ranks 1 rank 0 { b irequires a a: calc 10 cpu 0 b: calc 20 cpu 1 }", 0),
                 20000u);
}

Test(goal, words)
{
    struct goal goal;
    const char *text =
        "# a comment\n/* another\n */ num_ranks 2 // and\nrank 1\n{\nx.y-z : recv 8B "
        "from 0 nic 3 tag 4 cpu 2; tag: calc 5; cpu: calc 6 nic 2 cpu 1\n"
        "tag requires cpu; cpu requires x.y-z }\nrank 0 { 1: send 8 to 1 tag 4 }\n";
    cr_expect_eq(time_of(text, 0, &goal), ALPHA + 160u + 11000u);
    cr_expect(goal.nops == 4 && goal.messages == 1 && goal.bytes == 8 && goal.ncpus == 4);
    cr_expect_eq(goal.ops[0].line, 6u);
    goal_release(&goal);
}

Test(goal, many_messages_cost_no_squares)
{
    enum { N = 200000 };
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    fprintf(to, "num_ranks 2\nrank 0 {\n");
    for (int i = 0; i < N; i++)
        fprintf(to, "l%d: send 50000b to 1 tag %d\n", i, i % 3);
    for (int i = 1; i < N; i++)
        fprintf(to, "l%d requires l%d\n", i, i - 1);
    fprintf(to, "}\nrank 1 {\n");
    for (int i = 0; i < N; i++)
        fprintf(to, "l%d: recv 50000b from 0 tag %d\n", i, i % 3);
    fprintf(to, "}\n");
    fclose(to);
    cr_expect_eq(alone(text, 0), (ps_t)N * 1000000u + ALPHA);
    free(text);
}

/* ---- faults ---- */

/* More ranks than this machine's memory holds are refused before anything is allocated. */
Test(goal, ranks_beyond_memory)
{
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    struct goal goal;
    struct err err = ERR_INIT;
    const char text[] = "\n num_ranks 2147483647";
    int bad = goal_read(&goal, "x.goal", text, strlen(text), &err);
    if (bytes / 300 < INT32_MAX) {
        cr_expect(bad && err.code == ERR_USAGE, "accepted");
        cr_expect(err.text && strstr(err.text, "x.goal:2: num_ranks is 2147483647, more than the "),
                  "%s", err.text);
    }
    cr_expect(bytes / 300 < INT32_MAX || !bad, "%s", err.text);
    if (!bad) goal_release(&goal);
    err_release(&err);
}

Test(goal, faults_have_lines)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"", "x.goal:1: the text ends where \"num_ranks\" should stand"},
        {"num_ranks 0", "x.goal:1: num_ranks is 0"},
        {"num_ranks x", "\"x\" stands where the number of ranks should"},
        {"num_ranks 99999999999", "is 99999999999, more than 2147483647"},
        {"num_ranks 2\nrank 2 { }", "x.goal:2: rank 2 is none of the 2, 0 to 1"},
        {"num_ranks 2\nrank 0 { }\nrank 0 { }", "x.goal:3: rank 0 stands twice, first on line 2"},
        {"num_ranks 2\nrank 0 {", "the text ends where send, recv or calc should"},
        {"num_ranks 2\nrank 0 { a: jump 3 }", "x.goal:2: \"jump\" stands where send, recv or calc"},
        {"num_ranks 2\nrank 0 { send 5b from 1 }", "\"from\" stands where \"to\" should"},
        {"num_ranks 2\nrank 0 { send 5kb to 1 }", "\"5kb\" stands where bytes should"},
        {"num_ranks 2\nrank 0 {\nsend 5 to 7 }", "x.goal:3: rank 7 is none of the 2"},
        {"num_ranks 2\nrank 0 { a: calc 1\na: calc 2 }",
         "x.goal:3: label a stands twice, first on line 2"},
        {"num_ranks 2\nrank 0 { a: calc 1\na requires b }", "x.goal:3: rank 0 has no label b"},
        {"num_ranks 2\nrank 0 { a: calc 1 a requires }", "\"}\" stands where a label should"},
        {"num_ranks 2\nrank 0 { send 5 to 1 tag 3 }",
         "x.goal:2: rank 0 sends 5 bytes to rank 1 under tag 3, for which that rank has no "
         "receive"},
        {"num_ranks 2\nrank 0 { recv 5 from 1 }", "receives 5 bytes from rank 1 under tag 0, for "},
        {"num_ranks 2\nrank 0 { send 5 to 1 }\nrank 1 { recv 6 from 0 }",
         "x.goal:3: rank 1 receives 6 bytes from rank 0, which sends 5 (line 2)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = ERR_INIT;
        struct goal goal;
        cr_expect(goal_read(&goal, "x.goal", rows[i].text, strlen(rows[i].text), &err), "%s",
                  rows[i].text);
        cr_expect(err.code == ERR_USAGE && err.text && strstr(err.text, rows[i].words),
                  "\"%s\" is not in \"%s\"", rows[i].words, err.text ? err.text : "");
        cr_expect_null(goal.ops);
        err_release(&err);
    }
}

Test(goal, all_faults_at_once)
{
    struct err err = ERR_INIT;
    struct goal goal;
    const char *text =
        "num_ranks 3\nrank 0 {\nsend 5 to 1\nrecv 1 from 2\n}\nrank 1 { recv 9 from 0 }";
    cr_expect(goal_read(&goal, "x.goal", text, strlen(text), &err));
    cr_expect_eq(err.count, 2u, "%s", err.text);
    err_release(&err);
}

static void deadlock(const char *text, const char *words)
{
    struct err err = ERR_INIT;
    struct goal goal;
    struct goal_result result;
    cr_assert(!goal_read(&goal, "x.goal", text, strlen(text), &err), "%s", err.text);
    struct network *network = network_switch(goal.nranks, BETA, ALPHA);
    cr_expect(goal_run(&goal, network, 0, &result, &err));
    cr_expect(err.code == ERR_FAILED && err.text && strstr(err.text, words),
              "\"%s\" is not in \"%s\"", words, err.text ? err.text : "");
    err_release(&err);
    network_free(network);
    goal_release(&goal);
}

Test(goal, circles_are_written_down)
{
    deadlock(
        "num_ranks 1\nrank 0 {\na: calc 1\na requires a\n}",
        "x.goal: 1 operation waits in a circle and never starts: a of rank 0 (line 3) waits for "
        "itself");
    deadlock("num_ranks 1\nrank 0 {\na: calc 1\nb: calc 2\na requires b\nb irequires a\n}",
             "2 operations wait in a circle");
    deadlock("num_ranks 2\nrank 0 {\nr: recv 1 from 1\ns: send 1 to 1\ns requires r }\n"
             "rank 1 {\nr: recv 1 from 0\ns: send 1 to 0\ns requires r }",
             "4 operations wait in a circle");
}

Test(goal, a_network_with_too_few_ranks)
{
    struct err err = ERR_INIT;
    struct goal goal;
    struct goal_result result;
    cr_assert(!goal_read(&goal, "x.goal", "num_ranks 3", 11, &err));
    struct network *network = network_switch(2, BETA, ALPHA);
    cr_expect(goal_run(&goal, network, 0, &result, &err));
    cr_expect(strstr(err.text, "x.goal has 3 ranks, the network 2"), "%s", err.text);
    err_release(&err);
    network_free(network);
    goal_release(&goal);
}
