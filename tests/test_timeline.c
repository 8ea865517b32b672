/* SPDX-License-Identifier: Apache-2.0
 * Pictures of a step and the table of its operators, on graphs and lists made by hand, where every
 * figure is known; and slow accelerators read from a command line. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "train/ops_table.h"
#include "train/slow.h"
#include "train/timeline.h"

/* ---- the timeline ---- */

enum { F0, BW0, REDUCE, GATHER_A, GATHER_B, NLABELS };

static const struct event_label labels[NLABELS] = {
    [F0] = {PASS_F, "F", 0, 0, 0},
    [BW0] = {PASS_BW, "BW", 0, 12, 0},
    [REDUCE] = {NPASSES, "reduce", 0, UINT32_MAX, UINT32_MAX},
    [GATHER_A] = {NPASSES, "gather", 0, UINT32_MAX, UINT32_MAX},
    [GATHER_B] = {NPASSES, "gather", 0, UINT32_MAX, UINT32_MAX},
};

static uint32_t add(struct tasks *tasks, uint32_t lane, enum task_kind kind, enum step_part part,
                    ps_t work_ps, uint32_t label)
{
    return tasks_add(tasks, &(struct task){.lane = lane,
                                           .kind = (uint8_t)kind,
                                           .part = (uint8_t)part,
                                           .use = TASK_NONE,
                                           .work_ps = work_ps,
                                           .label = label});
}

/* One rank; the step is 100..300 ps. compute: F 50..150, BW 150..250; dp: reduce 250..300; two
 * gathers without a lane, 0..120 and 0..200. */
static void make(struct event_result *result)
{
    struct tasks *tasks = tasks_new();
    struct err err = ERR_INIT;
    tasks_rank(tasks);
    uint32_t dp = tasks_lane(tasks), compute = tasks->compute_lane[0];
    uint32_t wait = add(tasks, TASK_NONE, TASK_HOST, PART_LAUNCH, 50, GATHER_A);
    uint32_t f = add(tasks, compute, TASK_COMPUTE, PART_GEMM, 100, F0);
    uint32_t b = add(tasks, compute, TASK_COMPUTE, PART_GEMM, 100, BW0);
    uint32_t reduce = add(tasks, dp, TASK_JOB, PART_DP, 50, REDUCE);
    add(tasks, TASK_NONE, TASK_JOB, PART_FSDP, 120, GATHER_A);
    add(tasks, TASK_NONE, TASK_JOB, PART_FSDP, 200, GATHER_B);
    tasks_after(tasks, f, wait);
    tasks_after(tasks, reduce, b);
    cr_assert_eq(tasks_run(tasks, &err), 0);
    *result = (struct event_result){.step_ps = 200, .tasks = tasks, .from_ps = 100};
    result->labels = mem_calloc(NLABELS, sizeof *labels);
    memcpy(result->labels, labels, sizeof labels);
}

static void unmake(struct event_result *result)
{
    tasks_free(result->tasks);
    free(result->labels);
}

Test(timeline, rows_hold_what_is_in_the_step)
{
    static const struct {
        const char *name;
        ps_t spans[2][2];
        size_t count;
    } expected[] = {
        {"compute", {{0, 50}, {50, 150}}, 2},
        {"dp", {{150, 200}}, 1},
        {"fsdp", {{0, 20}}, 1},
        {"fsdp 2", {{0, 100}}, 1},
    };
    struct event_result result;
    make(&result);
    struct timeline *t = timeline_new(&result);
    cr_assert_eq(t->nrows, 4);
    for (size_t i = 0; i < t->nrows; i++) {
        cr_assert_str_eq(t->rows[i].name, expected[i].name);
        cr_assert_str_eq(t->rows[i].rank_name, "stage 0");
        cr_assert_eq(t->rows[i].count, expected[i].count);
        for (size_t k = 0; k < t->rows[i].count; k++) {
            const struct timeline_span *s = &t->spans[t->rows[i].first + k];
            cr_assert_eq(s->row, i);
            cr_assert_eq(s->start_ps, expected[i].spans[k][0], "%s", t->rows[i].name);
            cr_assert_eq(s->end_ps, expected[i].spans[k][1], "%s", t->rows[i].name);
        }
    }
    timeline_free(t);
    unmake(&result);
}

/* The text that `out` writes. */
static char *text_of(void (*write)(struct out *out, const void *what), const void *what)
{
    char path[] = "/tmp/test_timeline_XXXXXX", text[4096] = "";
    struct err err = ERR_INIT;
    close(mkstemp(path));
    struct out *out = out_new(ops_columns, OPS_COLUMNS);
    cr_assert_eq(out_add(out, OUT_FORMAT_TEXT, path, true, &err), 0);
    write(out, what);
    cr_assert_eq(out_close(out, &err), 0);
    FILE *file = fopen(path, "r");
    cr_assert_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    unlink(path);
    return mem_strdup(text);
}

static void draw(struct out *out, const void *timeline)
{
    timeline_draw(out, timeline, 60);
}

Test(timeline, letters_numbers_and_ends)
{
    struct event_result result;
    make(&result);
    struct timeline *t = timeline_new(&result);
    char *text = text_of(draw, t);
    /* "stage 0 compute" and 3 more leave 42 columns of 200 ps */
    cr_assert(strstr(text, "# stage 0 compute F0---------B12------------------..........\n"), "%s",
              text);
    cr_assert(strstr(text, "# stage 0 dp      ................................r---------\n"), "%s",
              text);
    cr_assert(strstr(text, "B backward"), "%s", text);
    cr_assert(strstr(text, "r reduce"), "%s", text);
    free(text);
    timeline_free(t);
    unmake(&result);
}

/* ---- operators ---- */

static struct op compute(const char *name, int32_t after)
{
    return (struct op){.name = name,
                       .limit = "compute",
                       .lane = OP_COMPUTE,
                       .part = PART_GEMM,
                       .after = {after, -1},
                       .flops = 10,
                       .peak = 1};
}

/* qkv 0..10, reduce 10..15 behind it, nothing issued until 16, mlp 16..20, a reduce 20..26 at the
 * end; run 3 times. */
Test(ops_table, waits_are_charged_and_sum_up)
{
    struct op list[] = {compute("mlp", -1),
                        {.name = "reduce",
                         .limit = "network",
                         .lane = OP_TP,
                         .part = PART_TP,
                         .after = {0, -1},
                         .bytes = 7},
                        compute("mlp", 1),
                        {.name = "reduce",
                         .limit = "network",
                         .lane = OP_TP,
                         .part = PART_TP,
                         .after = {2, -1},
                         .bytes = 7}};
    const struct task_span spans[] = {{0, 10}, {10, 15}, {16, 20}, {20, 26}};
    struct ops ops = {.list = list, .count = 4};
    struct ops_table table = {0};
    ops_table_add(&table, &ops, spans, PASS_F, 3);
    cr_assert_eq(table.count, 2); /* equal operators are one row */
    cr_assert_eq(table.rows[0].count, 6);
    cr_assert_float_eq(table.rows[0].flops, 60, 1e-9);
    cr_assert_float_eq(table.rows[0].time_s, 3 * 14e-12, 1e-20);
    cr_assert_float_eq(table.rows[0].charged_s, 3 * 14e-12, 1e-20);
    cr_assert_float_eq(table.rows[1].time_s, 3 * 11e-12, 1e-20);
    cr_assert_float_eq(table.rows[1].charged_s, 3 * 11e-12, 1e-20);
    cr_assert_float_eq(table.rows[1].bytes, 42, 1e-9);
    cr_assert_float_eq(table.host_s, 3 * 1e-12, 1e-20);
    ops_table_add(&table, &ops, spans, PASS_BW, 1); /* another pass has rows of its own */
    cr_assert_eq(table.count, 4);
    ops_table_release(&table);
}

/* A collective that runs beside compute is charged for what compute waits alone. */
Test(ops_table, hidden_collectives_are_free)
{
    struct op list[] = {
        compute("a", -1),
        {.name = "gather", .limit = "network", .lane = OP_TP, .part = PART_TP, .after = {-1, -1}},
        compute("b", 1)};
    const struct task_span spans[] = {{0, 10}, {2, 13}, {13, 20}};
    struct ops ops = {.list = list, .count = 3};
    struct ops_table table = {0};
    ops_table_add(&table, &ops, spans, PASS_F, 1);
    cr_assert_float_eq(table.rows[1].time_s, 11e-12, 1e-20);
    cr_assert_float_eq(table.rows[1].charged_s, 3e-12, 1e-20);
    cr_assert_float_eq(table.host_s, 0, 1e-20);
    ops_table_release(&table);
}

/* ---- slow accelerators ---- */

static char *texts(struct opts_list *list, const char *words)
{
    char *copy = mem_strdup(words), *rest = copy;
    *list = (struct opts_list){0};
    for (char *word; (word = strsep(&rest, " "));) {
        list->items = mem_realloc(list->items, list->count + 1, sizeof *list->items);
        list->items[list->count++] = word;
    }
    return copy;
}

Test(slow, sorts_and_reads)
{
    struct topo topo = {.hosts = 2, .per_host = 4};
    struct opts_list list;
    struct slow_faults faults;
    struct event_slow *slow;
    size_t n;
    struct err err = ERR_INIT;
    char *copy =
        texts(&list, "gpu1=.5 host1/gpu3=0.8 host*/gpu2=1 host0/nic0=.5 link:host0/gpu1=.5");
    slow_sort(&faults, &list);
    cr_assert_eq(faults.gpus.count, 3);
    cr_assert_eq(faults.links.count, 2);
    cr_assert_str_eq(faults.links.items[1], "host0/gpu1=.5");
    cr_assert_eq(slow_read(&faults.gpus, &topo, &slow, &n, &err), 0);
    cr_assert_eq(n, 2); /* a speed of 1 is none */
    cr_assert(slow[0].gpu == 1 && slow[0].speed == .5);
    cr_assert(slow[1].gpu == 7 && slow[1].speed == .8);
    free(slow);
    slow_release(&faults);
    free(list.items);
    free(copy);
}

Test(slow, every_fault_has_a_sentence)
{
    struct topo topo = {.hosts = 2, .per_host = 4};
    struct opts_list list;
    struct slow_faults faults;
    struct event_slow *slow;
    size_t n;
    struct err err = ERR_INIT;
    char *copy = texts(&list, "gpu8=.5 host2/gpu0=.5 host0/gpu4=.5 gpu0=0 gpu0=x gpu1=.5 gpu1=.6");
    slow_sort(&faults, &list);
    cr_assert_eq(slow_read(&faults.gpus, &topo, &slow, &n, &err), -1);
    cr_assert_eq(err.count, 6, "%s", err.text);
    cr_assert_eq(err.code, ERR_USAGE);
    static const char *const said[] = {
        "gpu8=.5: there is no accelerator 8; they are 0..7", "there is no host 2; hosts are 0..1",
        "a host has no accelerator 4; they are 0..3", "gpu0=0: a speed of 0",
        "accelerator 1 has a speed already, 0.5; here 0.6"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        cr_assert(strstr(err.text, said[i]), "%s: %s", said[i], err.text);
    }
    free(slow);
    err_release(&err);
    slow_release(&faults);
    free(list.items);
    free(copy);
}
