/* SPDX-License-Identifier: Apache-2.0
 * The pure parts of bench/: the walk through a plan, places of buffers, statistics, options,
 * memory, and the bound, whose formulas are held against the bytes that the executor really moves.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/board.h"
#include "bench/bound.h"
#include "bench/check.h"
#include "bench/fit.h"
#include "bench/history.h"
#include "bench/options.h"
#include "bench/p2p.h"
#include "bench/rows.h"
#include "bench/stats.h"
#include "exec/exec.h"
#include "sched/verify.h"

enum { MOST_ARGS = 32 };

/* A request from a command line, and its plan for `nranks` ranks. */
struct parsed {
    struct request request;
    struct opts opts;
    struct plan *plan;
    struct err err;
    char text[1024];
};

/* In place, since the options point into it. */
static void parse(struct parsed *p, const char *operation, const char *line, uint32_t nranks)
{
    *p = (struct parsed){.err = ERR_INIT};
    char *text = p->text;
    char *argv[MOST_ARGS] = {text}, *save;
    int argc = 1;
    snprintf(text, sizeof p->text, "x %s", line);
    strtok_r(text, " ", &save);
    for (char *word; (word = strtok_r(NULL, " ", &save)); argc++)
        argv[argc] = word;
    const struct coll *coll = coll_find(operation, &p->err);
    if (request_parse(&p->request, &p->opts, argc, argv, &p->err) == 0) {
        p->plan = request_plan(&p->request, &p->opts, coll, nranks, &p->err);
    }
}

static void release(struct parsed *p)
{
    free(p->plan);
    opts_release(&p->opts);
    err_release(&p->err);
}

/* ---- the walk ---- */

static void expect_sizes(const char *operation, const char *line, uint32_t nranks,
                         const uint64_t *sizes, size_t count)
{
    struct parsed p;
    parse(&p, operation, line, nranks);
    cr_assert_not_null(p.plan, "%s", p.err.text);
    cr_assert_eq(plan_rows(p.plan), count, "%s %s: %llu rows", operation, line,
                 (unsigned long long)plan_rows(p.plan));
    struct plan_row row;
    plan_first(p.plan, &row);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(row.bytes, sizes[i], "%s %s: row %zu is %zu", operation, line, i, row.bytes);
        cr_assert_eq(row.index, i);
        cr_assert_eq(plan_next(p.plan, &row), i + 1 < count);
    }
    release(&p);
}

#define EXPECT_SIZES(operation, line, nranks, ...)                                                 \
    expect_sizes(operation, line, nranks, (uint64_t[]){__VA_ARGS__},                               \
                 sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

Test(plan, sizes)
{
    EXPECT_SIZES("allreduce", "-b 0 -e 64 -f 2", 2, 0, 4, 8, 16, 32, 64);
    EXPECT_SIZES("allreduce", "-b 0 -e 64 -f 2 -d bfloat16", 2, 0, 2, 4, 8, 16, 32, 64);
    EXPECT_SIZES("allreduce", "-b 64M -e 70M -i 2M", 2, 64 << 20, 66 << 20, 68 << 20, 70 << 20);
    EXPECT_SIZES("allreduce", "-b 8 -e 100 -f 3", 2, 8, 24, 72);
    EXPECT_SIZES("allreduce", "--size 1.5K", 2, 1536);
    EXPECT_SIZES("allgather", "-b 0 -e 64 -f 2", 3, 0, 12, 24, 48);
    /* 8 and 16 round to one element per rank: one row */
    EXPECT_SIZES("alltoall", "-b 8 -e 64 -f 2", 3, 12, 24, 60);
    EXPECT_SIZES("reduce_scatter", "--size 1", 5, 20);
    EXPECT_SIZES("broadcast", "--size 0", 5, 0);
}

Test(plan, order_of_rows)
{
    struct parsed p;
    parse(&p, "allreduce", "-b 8 -e 16 -f 2 -d bfloat16,all -o max,sum --algo ring,tree", 4);
    /* what is named, then all others in their order */
    static const char *const dtypes[] = {"bfloat16", "int8", "uint8", "int32",  "uint32", "int64",
                                         "uint64",   "half", "float", "double", "f8e4m3", "f8e5m2"};
    static const char *const ops[] = {"max", "sum"}, *const algos[] = {"ring", "tree"};
    cr_assert_not_null(p.plan, "%s", p.err.text);
    cr_assert_eq(plan_rows(p.plan), DT_COUNT * 2 * 2 * 2);
    struct plan_row row;
    plan_first(p.plan, &row);
    for (uint64_t i = 0; i < DT_COUNT * 8; i++) {
        cr_assert_str_eq(row.choice.algo->name, algos[i % 2]);
        cr_assert_eq(row.bytes, i / 2 % 2 ? 16 : 8);
        cr_assert_str_eq(redop_name(row.op), ops[i / 4 % 2]);
        cr_assert_str_eq(dtype_name(row.dtype), dtypes[i / 8]);
        plan_next(p.plan, &row);
    }
    release(&p);
}

/* Every row once, in another order for another launch, and the same one on every rank. */
Test(plan, shuffled_walk_is_a_permutation)
{
    struct parsed p;
    parse(&p, "allreduce", "-b 8 -e 1K -f 2 --algo ring,tree -d float,int32", 4);
    cr_assert_not_null(p.plan, "%s", p.err.text);
    uint64_t rows = plan_rows(p.plan), orders[3][32], moved = 0;
    cr_assert_eq(rows, 32);
    for (int walk = 0; walk < 3; walk++) {
        struct plan_walk at;
        uint64_t seen = 0, count = 0;
        p.plan->launch = walk < 2 ? 1 : 2;
        plan_walk_open(p.plan, &at);
        do {
            orders[walk][count++] = at.row.index;
            seen |= UINT64_C(1) << at.row.index;
        } while (plan_walk_next(p.plan, &at));
        plan_walk_close(&at);
        cr_assert_eq(count, rows);
        cr_assert_eq(seen, (UINT64_C(1) << rows) - 1);
    }
    cr_assert_arr_eq(orders[0], orders[1], sizeof orders[0]);
    for (uint64_t i = 0; i < rows; i++)
        moved += orders[0][i] != orders[2][i];
    cr_assert_gt(moved, rows / 2, "%llu rows moved", (unsigned long long)moved);
    p.plan->shuffled = false;
    struct plan_walk at;
    plan_walk_open(p.plan, &at);
    for (uint64_t i = 0; i < rows; i++) {
        cr_assert_eq(at.row.index, i);
        cr_assert_eq(plan_walk_next(p.plan, &at), i + 1 < rows);
    }
    plan_walk_close(&at);
    release(&p);
}

Test(plan, merged_sizes_are_counted)
{
    struct parsed p;
    parse(&p, "allgather", "-b 8 -e 19 -i 1", 2); /* 8..15 give 8, 16..19 give 16 */
    struct plan_row row;
    plan_first(p.plan, &row);
    cr_assert_eq(row.merged, 7);
    cr_assert(plan_next(p.plan, &row));
    cr_assert_eq(row.bytes, 16);
    cr_assert_eq(row.merged, 3);
    cr_assert(!plan_next(p.plan, &row));
    release(&p);
}

/* Rows are counted, and the largest found, without a walk through a sweep of billions. */
Test(plan, counting_agrees_with_the_walk)
{
    static const char *const lines[] = {"-b 0 -e 300 -i 1",
                                        "-b 1 -e 300 -i 1",
                                        "-b 3 -e 300 -i 7",
                                        "-b 5 -e 300 -i 13",
                                        "-b 1 -e 300 -i 24",
                                        "-b 0 -e 300 -f 2",
                                        "-b 1 -e 3000 -f 3",
                                        "-b 7 -e 7",
                                        "-b 0 -e 300 -i 48",
                                        "-b 2 -e 300 -i 25",
                                        "-b 100 -e 99999 -f 10",
                                        "-b 1 -e 9 -i 8",
                                        "-b 0 -e 3K -i 5 -d all -o all --algo all"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        for (int id = 0; id < COLL_COUNT; id++) {
            const char *name = coll_get((enum coll_id)id)->name;
            struct parsed p;
            parse(&p, name, lines[i], 3);
            cr_assert_not_null(p.plan, "%s", p.err.text);
            uint64_t count = 0;
            size_t touched = 0;
            struct plan_row row;
            plan_first(p.plan, &row);
            do {
                count++;
                for (int place = 0; place < NPLACES; place++) {
                    if (!p.plan->place[place]) continue;
                    size_t bytes = plan_places(p.plan, &row, 2, place == IN_PLACE).touched;
                    touched = bytes > touched ? bytes : touched;
                }
            } while (plan_next(p.plan, &row));
            cr_expect_eq(plan_rows(p.plan), count, "%s %s: %llu rows, not %llu", name, lines[i],
                         (unsigned long long)count, (unsigned long long)plan_rows(p.plan));
            cr_expect_eq(plan_touched(p.plan, 2), touched, "%s %s", name, lines[i]);
            release(&p);
        }
    }
    struct parsed p;
    parse(&p, "allreduce", "-b 1 -e 1T -i 1", 2);
    cr_expect_eq(plan_rows(p.plan), UINT64_C(1) << 38);
    release(&p);
}

Test(plan, places)
{
    for (int id = 0; id < COLL_COUNT; id++) {
        const struct coll *coll = coll_get((enum coll_id)id);
        struct parsed p;
        parse(&p, coll->name, "--size 120", 3);
        struct plan_row row;
        plan_first(p.plan, &row);
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct plan_places out = plan_places(p.plan, &row, rank, false);
            struct plan_places in = plan_places(p.plan, &row, rank, true);
            cr_assert_geq(out.out, row.in_bytes);
            cr_assert_eq(out.out % PLAN_ALIGN, 0);
            cr_assert_eq(out.bytes, out.out + row.out_bytes);
            if (!coll_in_place(coll)) continue;
            cr_assert_eq(in.bytes, 120);
            cr_assert_eq(in.in, id == COLL_ALLGATHER || id == COLL_GATHER ? rank * 40 : 0);
            cr_assert_eq(in.out, id == COLL_REDUCE_SCATTER || id == COLL_SCATTER ? rank * 40 : 0);
        }
        release(&p);
    }
}

Test(plan, board_has_room_for_all)
{
    struct parsed p;
    parse(&p, "allreduce", "--size 8 -n 37 --algo all", 5);
    uint64_t *blob = mem_calloc(1, board_blob_bytes(p.plan) + 128);
    cr_assert_geq(board_blob_bytes(p.plan), p.plan->bytes + 5 * 37 * sizeof(uint64_t) +
                                                5 * sizeof(struct board_place) +
                                                sizeof(struct board));
    free(blob);
    release(&p);
}

/* ---- statistics ---- */

Test(stats, percentiles_are_samples)
{
    double one[] = {7}, three[] = {3, 1, 2}, hundred[100], twenty[20];
    struct stats stats = stats_of(one, 1);
    cr_assert(stats.min == 7 && stats.p50 == 7 && stats.p99 == 7 && stats.max == 7 &&
              stats.mean == 7);
    stats = stats_of(three, 3);
    cr_assert(stats.min == 1 && stats.p50 == 2 && stats.p95 == 3 && stats.mean == 2);
    for (int i = 0; i < 100; i++)
        hundred[i] = 100 - i;
    stats = stats_of(hundred, 100);
    cr_assert(stats.min == 1 && stats.p50 == 50 && stats.p95 == 95 && stats.p99 == 99 &&
              stats.max == 100);
    for (int i = 0; i < 20; i++)
        twenty[i] = i + 1;
    stats = stats_of(twenty, 20);
    cr_assert(stats.p50 == 10 && stats.p95 == 19 && stats.p99 == 20);
    cr_assert(isnan(stats_of(NULL, 0).p50));
}

/* ---- options ---- */

static void expect_fault(const char *operation, const char *line, unsigned count, const char *word)
{
    struct parsed p;
    parse(&p, operation, line, 2);
    cr_assert_null(p.plan, "%s %s is accepted", operation, line);
    cr_assert_eq(p.err.code, ERR_USAGE);
    cr_assert_eq(p.err.count, count, "%s %s: %s", operation, line, p.err.text);
    cr_assert_not_null(strstr(p.err.text, word), "%s %s: %s", operation, line, p.err.text);
    release(&p);
}

Test(options, faults)
{
    expect_fault("allreduce", "-b 1M -e 1K", 1, "1024");
    expect_fault("allreduce", "-b 1 -e 8 -i 0", 1, "--stepbytes");
    expect_fault("allreduce", "-b 1 -e 8 -f 1", 1, "--stepfactor");
    expect_fault("allreduce", "--size 8 -b 8", 1, "--size");
    expect_fault("allreduce", "-d flaot -o summ --algo foo", 3, "foo");
    expect_fault("allreduce", "-t 2 -G 1 -R 2", 3, "--cudagraph 1");
    expect_fault("allreduce", "-r 1", 1, "no root");
    expect_fault("broadcast", "-r 2", 1, "0 to 1");
    expect_fault("allreduce", "--wire pull --buffers private", 1, "--buffers");
    expect_fault("allreduce", "--ranks 0", 1, "--ranks");
    expect_fault("allreduce", "-n 0", 1, "-n");
    expect_fault("allreduce", "-a 4", 1, "-a");
    expect_fault("allreduce", "-b 8 -e 64 -i 8 -f 2", 1, "give one of them");
    expect_fault("allreduce", "--slice 1", 1, "--slice 1 is no multiple of 64; nearest is 64");
    expect_fault("allreduce", "--slice 100", 1, "nearest are 64 and 128");
}

Test(options, aims)
{
    expect_fault("allreduce", "--groups 2", 1, "KxN");
    expect_fault("allreduce", "--groups 1x4", 1, "KxN");
    expect_fault("allreduce", "--groups 2x4x", 1, "KxN");
    expect_fault("allreduce", "--groups 2x4 --ranks 4", 1, "8 ranks");
    expect_fault("allreduce", "--vs mpi --overlap", 1, "--vs and --overlap");
    expect_fault("allreduce", "--vs rccl", 1, "mpi");
    expect_fault("allreduce", "--vs nccl", 1, "cuda-ipc");
    expect_fault("allreduce", "--vs mpi --ranks-as threads", 1, "processes");
    expect_fault("allreduce", "--cold --cadence back-to-back", 1, "--cold");
    expect_fault("allreduce", "--precision 200%", 1, "between 0 and 1");
    struct parsed p;
    parse(&p, "allreduce", "--groups 3x4 --launches 5 --precision 1%", 4);
    cr_assert_not_null(p.plan, "%s", p.err.text);
    cr_assert(p.plan->contest == CONTEST_GROUPS && p.plan->ngroups == 3);
    cr_assert(p.plan->nranks == 4 && plan_world(p.plan) == 12 && p.plan->launches == 5);
    cr_assert_float_eq(p.plan->precision, 0.01, 1e-12);
    cr_assert_eq(p.plan->cadence, CADENCE_BACK_TO_BACK);
    release(&p);
    parse(&p, "allreduce", "--skew 500us --time 2h", 4);
    cr_assert_not_null(p.plan, "%s", p.err.text);
    cr_assert(p.plan->contest == CONTEST_SKEW && p.plan->skew_ns == 500000);
    cr_assert(p.plan->cadence == CADENCE_ISOLATED && p.plan->launches == 0);
    release(&p);
}

/* Pairs of GPUs get as many lanes as have enough to do, and as run at once. */
Test(p2p, channels_of_gpus)
{
    struct p2p_plan plan = {.nranks = 2, .shared = true, .device = true, .wire = PLAN_WIRE_AUTO};
    const struct transport *const *table = transport_table();
    while (strcmp(table[plan.transport]->name, "cuda-ipc") != 0)
        plan.transport++;
    static const uint32_t lanes[] = {132, 8}, channels[] = {16, 4};
    for (int i = 0; i < 2; i++) {
        struct err err = ERR_INIT;
        struct p2p_legs legs;
        plan.most_lanes = lanes[i];
        cr_assert_eq(p2p_legs_make(&legs, &plan, 8 << 20, &err), 0, "%s", err.text);
        cr_assert_eq(legs.legs[LEG_BOTH].row.choice.channels, channels[i]);
        p2p_legs_release(&legs);
    }
}

/* ---- several launches ---- */

static struct result launch_of(double p50_us)
{
    return (struct result){.coll = COLL_ALLREDUCE,
                           .algo = "ring",
                           .bytes = 1 << 20,
                           .nranks = 2,
                           .time_us = p50_us + 1,
                           .min_us = p50_us - 2,
                           .p50_us = p50_us,
                           .p95_us = p50_us + 3,
                           .p99_us = p50_us + 4,
                           .max_us = p50_us + 9,
                           .nsamples = 10,
                           .ratio = 2,
                           .verdict = "faster"};
}

Test(history, over_launches)
{
    struct history *history = history_new();
    const double p50_us[] = {100, 102, 98, 101, 99};
    for (int i = 0; i < 5; i++) {
        struct result result = launch_of(p50_us[i]);
        cr_assert_null(history_take(history, 3, 0, &result));
    }
    cr_assert_eq(history_rows(history), 4);
    struct result over;
    cr_assert(!history_over(history, 2, 0, false, &over));
    cr_assert(!history_over(history, 3, 0, true, &over));
    cr_assert(history_over(history, 3, 0, false, &over));
    cr_assert_eq(over.launch, 0);
    cr_assert_float_eq(over.p50_us, 100, 0.1);
    cr_assert(over.ci_low_us < 99 && over.ci_low_us > 97, "%g", over.ci_low_us);
    cr_assert(over.ci_high_us > 101 && over.ci_high_us < 103, "%g", over.ci_high_us);
    cr_assert_float_eq(over.min_us, 96, 1e-9);
    cr_assert_float_eq(over.max_us, 111, 1e-9);
    cr_assert_float_eq(over.time_us, 101, 1e-9);
    cr_assert_str_eq(over.interval, "launches");
    cr_assert_float_eq(over.algbw_GBps, (1 << 20) / 101e-6 / 1e9, 1e-6);
    history_free(history);
}

/* The alarm needs some launches before, a change of more than 10 %, and more than their scatter. */
Test(history, drift_alarm)
{
    const struct {
        double p50_us[5];
        const char *says;
    } cases[] = {
        {{100, 101, 99, 100, 120}, "+20 %"}, {{100, 101, 99, 100, 80}, "-20 %"},
        {{100, 101, 99, 100, 108}, NULL},    {{100, 140, 70, 120, 150}, NULL},
        {{100, 101, 99, 130, 100}, NULL},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct history *history = history_new();
        char *last = NULL;
        for (int i = 0; i < 5; i++) {
            struct result result = launch_of(cases[c].p50_us[i]);
            free(last);
            last = history_take(history, 0, 0, &result);
            cr_assert(i + 1 >= HISTORY_ALARM_FROM || !last, "case %zu, launch %d", c, i + 1);
        }
        if (cases[c].says) {
            cr_assert_not_null(last, "case %zu", c);
            cr_assert(strstr(last, cases[c].says) && strstr(last, "1 MiB"), "%s", last);
        } else {
            cr_assert_null(last, "case %zu: %s", c, last);
        }
        free(last);
        history_free(history);
    }
}

/* ---- more options ---- */

Test(options, algorithms_run_once)
{
    struct parsed p;
    parse(&p, "allreduce", "--algo ring,tree,ring,auto,auto,all", 2);
    cr_assert_not_null(p.plan, "%s", p.err.text);
    size_t rows, want = 1; /* auto, and every row of the operation once */
    const struct algo *table = algo_table(&rows);
    for (size_t i = 0; i < rows; i++) {
        want += table[i].coll == COLL_ALLREDUCE && algo_runs_on_ranks(&table[i]);
    }
    cr_expect_eq(p.plan->nalgos, want);
    release(&p);
}

Test(options, plan_follows)
{
    struct parsed p;
    parse(&p, "alltoall",
          "-n 7 -w 0 -m 3 -a 0 -c 0 --in-place --ranks-as threads "
          "--wire ll --buffers private --channels 2 --parts 5",
          2);
    cr_assert_not_null(p.plan, "%s", p.err.text);
    cr_assert(p.plan->samples == 7 && p.plan->samples_cap == 7 && p.plan->warmup == 0);
    cr_assert(!p.plan->warm_longer && p.plan->batch == 3 && p.plan->rounds == 0);
    cr_assert(p.plan->average == AVERAGE_RANK0 && p.plan->threads && !p.plan->shared);
    cr_assert(p.plan->place[IN_PLACE] && !p.plan->place[OUT_OF_PLACE] && p.plan->wire == WIRE_LL);
    struct plan_row row;
    plan_first(p.plan, &row);
    cr_assert(row.choice.channels == 2 && row.choice.parts == 5);
    cr_assert_eq(plan_data_op(p.plan, &row), OP_COUNT);
    cr_assert_eq(check_rounds(p.plan, &row, 10), 0);
    release(&p);
}

Test(options, rounds_show_every_rank)
{
    struct parsed p;
    parse(&p, "allreduce", "-b 8 -e 8M -f 1048576", 64);
    struct plan_row row;
    plan_first(p.plan, &row);
    cr_assert_eq(check_rounds(p.plan, &row, 64), data_rounds(DT_FLOAT, OP_SUM, 64));
    cr_assert_gt(data_rounds(DT_FLOAT, OP_SUM, 64), 2);
    cr_assert(plan_next(p.plan, &row));
    cr_assert_eq(check_rounds(p.plan, &row, 64), 2); /* long chunks: all ranks in any two rounds */
    release(&p);
}

/* ---- memory ---- */

/* The schedules found by halving a long sweep are those that its rows will ask for. */
Test(fit, every_schedule_of_a_sweep_is_found)
{
    static const char *const lines[] = {"-b 0 -e 300K -i 64 --ranks 3",
                                        "-b 1K -e 600K -i 60 --ranks 4 --algo auto,all -d all",
                                        "-b 8 -e 512K -f 2 --ranks 2 --buffers private"};
    static const enum coll_id colls[] = {COLL_ALLREDUCE, COLL_BROADCAST};
    for (size_t i = 0; i < 2 * sizeof lines / sizeof *lines; i++) {
        const struct coll *coll = coll_get(colls[i % 2]);
        struct parsed p;
        parse(&p, coll->name, lines[i / 2], (uint32_t)(3 + i / 2));
        struct fitted fitted;
        struct err err = ERR_INIT;
        cr_assert_eq(fit(&p.request, &p.opts, coll, &fitted, &err), 0, "%s", err.text);
        size_t found = fitted.ready.count;
        cr_expect_gt(found, 1);
        struct plan_row row;
        plan_first(fitted.plan, &row);
        do {
            struct ready_bytes bytes =
                ready_bytes(ready_get(&fitted.ready, fitted.plan, &row, &err), fitted.plan, &row);
            cr_assert_leq(bytes.all, fitted.spec.resident_bytes, "%s, %zu B", lines[i / 2],
                          row.bytes);
        } while (plan_next(fitted.plan, &row));
        cr_expect_eq(fitted.ready.count, found, "%s %s: %zu schedules, %zu were found", coll->name,
                     lines[i / 2], fitted.ready.count, found);
        fitted_release(&fitted);
        release(&p);
    }
}

Test(fit, the_largest_size_named_fits_and_no_more)
{
    static const char *const lines[] = {"--size 4T --ranks 2", "--size 4T --ranks 3 --algo tree",
                                        "--size 4T"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct parsed p;
        parse(&p, "allreduce", lines[i], 2);
        struct fitted fitted;
        struct err err = ERR_INIT;
        cr_assert_eq(fit(&p.request, &p.opts, coll_get(COLL_ALLREDUCE), &fitted, &err), -1);
        cr_assert_eq(err.code, ERR_USAGE);
        const char *text = strstr(err.text, " fits is ");
        cr_assert_not_null(text, "%s", err.text);
        uint64_t size;
        cr_assert_eq(units_read_size("size", text + 9, &size, &err), 0);
        fitted_release(&fitted);
        err_release(&err);
        /* Memory is in use by others too: a tenth to either side. */
        p.request.sweep.min = p.request.sweep.max = size / 10 * 9;
        cr_assert_eq(fit(&p.request, &p.opts, coll_get(COLL_ALLREDUCE), &fitted, &err), 0, "%s",
                     err.text);
        fitted_release(&fitted);
        p.request.sweep.min = p.request.sweep.max = size / 10 * 11;
        cr_assert_eq(fit(&p.request, &p.opts, coll_get(COLL_ALLREDUCE), &fitted, &err), -1);
        fitted_release(&fitted);
        err_release(&err);
        release(&p);
    }
}

/* ---- rows that cannot be ---- */

/* NVIDIA/nccl#1984: 0.5 us for a collective that was launched, not waited for. */
Test(rows, D18_faster_than_bytes_can_move)
{
    const struct {
        double p50_us;
        enum average average;
        uint32_t cores;
        uint64_t invalid;
    } cases[] = {
        {0.5, AVERAGE_MAX, 2, 1},   {24.9, AVERAGE_MAX, 2, 1}, {25.1, AVERAGE_MAX, 2, 0},
        {0.5, AVERAGE_RANK0, 2, 0}, {0.5, AVERAGE_MAX, 1, 0},
    };
    struct parsed p;
    parse(&p, "allreduce", "--size 1M -n 3 --out-of-place", 2);
    cr_assert(p.plan);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err wrong = ERR_INIT, err = ERR_INIT;
        struct outputs outputs = {table_new(0), table_new(0), table_new(0), FORMAT_OWN};
        p.plan->average = cases[i].average;
        p.plan->cores = cases[i].cores;
        struct rows *rows = rows_new(p.plan, &outputs, &wrong);
        struct message message = {.kind = MESSAGE_RESULT};
        message.u.result.nseries = 1;
        message.u.result.result = (struct result){.coll = COLL_ALLREDUCE,
                                                  .algo = "ring",
                                                  .bytes = 1 << 20,
                                                  .nsamples = 3,
                                                  .p50_us = cases[i].p50_us,
                                                  .bound_us = 50};
        cr_expect(rows_take(rows, &message));
        cr_expect_eq(rows_footer(rows)->invalid, cases[i].invalid, "case %zu", i);
        cr_expect_eq(wrong.code, cases[i].invalid ? ERR_FAILED : 0);
        if (cases[i].invalid)
            cr_expect(strstr(wrong.text, "1048576 B, out of place: the row is INVALID"));
        rows_free(rows);
        out_close(outputs.record, &err);
        out_close(outputs.sheet, &err);
        out_close(outputs.text, &err);
        cr_expect_eq(err.count, 0);
        err_release(&wrong);
    }
    release(&p);
}

/* ---- the bound ---- */

Test(bound, one_rank)
{
    for (int id = 0; id < COLL_COUNT; id++) {
        for (int shared = 0; shared < 2; shared++) {
            struct bound out = bound_least((enum coll_id)id, 1, 1000, shared, false);
            struct bound in = bound_least((enum coll_id)id, 1, 1000, shared, true);
            cr_assert(out.read == 1000 && out.written == 1000);
            cr_assert(in.read == 0 && in.written == 0);
        }
    }
}

Test(bound, time)
{
    struct bound bound = {.read = 3e6, .written = 1e6};
    cr_assert_float_eq(bound_us(&bound, 1e9, 1e9), 2000, 1e-9); /* 4 MB moved, 2 per byte copied */
    cr_assert_eq(bound_us(&bound, 0, 1e9), 0);
    bound.slots = 1e6; /* of the 4 MB: at half of 2 GB moved per second */
    cr_assert_float_eq(bound_us(&bound, 1e9, 1e9), 2500, 1e-9);
    cr_assert_eq(bound_us(&bound, 1e9, 0), 0);
}

/* A rank of a test world: opens the handle and counts. */
struct counting {
    struct world *world;
    const struct linked *linked;
    uint32_t rank;
    bool shared;
    size_t block_count;
    struct exec_bytes bytes;
    struct err err;
    pthread_t thread;
};

static void *count_bytes(void *arg)
{
    struct counting *c = arg;
    const struct sched *sched = c->linked->sched;
    size_t bytes = c->block_count * sizeof(float) * sched->nranks;
    double *shares = mem_calloc((size_t)sched->nranks * sched->nranks, sizeof *shares);
    traffic_imbalance(sched->nranks, 1, shares);
    struct traffic *even =
        traffic_deal(sched->nranks, shares, bytes / sizeof(float) * sched->nranks);
    free(shares);
    struct rank rk;
    if (rank_init(&rk, c->world, c->rank, &c->err)) return NULL;
    uint8_t *memory = rank_alloc(&rk, 2 * bytes, &c->err);
    if (!memory) return NULL;
    struct exec_spec spec = {
        .linked = c->linked,
        .rank = &rk,
        .me = c->rank,
        .tag = 1,
        .transport = transport_table()[0],
        .in = memory,
        .out = c->linked->opts.in_place ? memory : memory + bytes,
        .shared = c->shared,
        .dtype = DT_FLOAT,
        .op = OP_SUM,
        .block_count = c->block_count,
        .traffic = sched->coll->uneven ? even : NULL,
    };
    struct exec *exec = exec_open(&spec, &c->err);
    if (!exec) return NULL;
    c->bytes = exec_count_bytes(exec);
    rank_barrier(&rk);
    exec_close(exec);
    free(even);
    return NULL;
}

/* What all ranks together read and write. */
static double count_all(const struct linked *linked, size_t block_count, bool shared)
{
    enum { EXTENT = 8 << 20 };
    uint32_t n = linked->sched->nranks;
    struct err err = ERR_INIT;
    struct world *world = world_create(
        &(struct world_spec){.nranks = n, .extent_bytes = EXTENT, .resident_bytes = EXTENT}, &err);
    cr_assert_not_null(world, "%s", err.text);
    struct counting *counting = mem_calloc(n, sizeof *counting);
    double sum = 0;
    for (uint32_t r = 0; r < n; r++) {
        counting[r] = (struct counting){.world = world,
                                        .linked = linked,
                                        .rank = r,
                                        .shared = shared,
                                        .block_count = block_count,
                                        .err = ERR_INIT};
        pthread_create(&counting[r].thread, NULL, count_bytes, &counting[r]);
    }
    for (uint32_t r = 0; r < n; r++) {
        pthread_join(counting[r].thread, NULL);
        cr_assert_eq(counting[r].err.count, 0, "%s", counting[r].err.text);
        sum += (double)counting[r].bytes.read + (double)counting[r].bytes.written;
    }
    free(counting);
    world_close(world);
    return sum;
}

/* No algorithm of the table, in any mode, moves less than the bound says that all must. */
Test(bound, no_algorithm_moves_less)
{
    size_t nalgos, compared = 0, tight = 0, rows = 0;
    const struct algo *table = algo_table(&nalgos);
    for (size_t i = 0; i < nalgos; i++) {
        rows += algo_runs_on_ranks(&table[i]);
        for (uint32_t n = 2; n <= 5 && algo_runs_on_ranks(&table[i]); n++) {
            struct err err = ERR_INIT;
            struct algo_args args = {.nranks = n, .channels = 1, .parts = 1};
            struct sched *sched = algo_build(&table[i], &args, false, &err);
            for (int k = 0; k < 4; k++) {
                bool shared = k & 1, in_place = k & 2;
                if (in_place && !coll_in_place(sched->coll)) continue;
                struct link_opts opts = {
                    .mode = shared ? WIRE_PULL : WIRE_STAGED, .in_place = in_place, .fuse = true};
                struct linked *linked = link_sched(sched, &opts, &err);
                if (!linked) continue;                           /* cannot be pulled */
                size_t count = sched->coll->empty ? 0 : 16 * 60; /* whole granules for every cut */
                double moved = count_all(linked, count, shared);
                size_t size = coll_size(sched->coll, n, count, sizeof(float));
                struct bound least = bound_least(sched->coll->id, n, size, shared, in_place);
                double bound = n * (least.read + least.written);
                cr_expect_geq(moved, bound * 0.9999, "%s %s, %u ranks, %s, %s: moves %g, bound %g",
                              sched->coll->name, sched->name, n, shared ? "shared" : "private",
                              in_place ? "in place" : "out of place", moved, bound);
                compared++;
                tight += moved <= bound * 1.0001;
                linked_free(linked);
            }
            sched_free(sched);
            err_release(&err);
        }
    }
    cr_assert_gt(compared, 8 * rows);
    cr_assert_gt(tight, 10); /* and it is no empty bound: some reach it to the byte */
}
