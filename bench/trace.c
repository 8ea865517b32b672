/* SPDX-License-Identifier: Apache-2.0
 * Tracing one operation: see trace.h. All times are of one clock, which all processes of a machine
 * share; rank and parent speak in nanoseconds since the first rank began. */
#include "bench/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "bench/clock.h"
#include "bench/side.h"
#include "exec/launch.h"
#include "sched/table.h"

int trace_check(struct plan *plan, bool both, struct err *err)
{
    if (!both && plan->place[OUT_OF_PLACE]) plan->place[IN_PLACE] = false;
    uint64_t lists = (uint64_t)plan->ndtypes * plan->nops * plan->nalgos;
    const struct {
        uint64_t count;
        const char *what, *how;
    } parts[] = {
        {lists ? plan_rows(plan) / lists : 1, "sizes", "--size"},
        {plan->ndtypes, "element types", "--datatype (-d)"},
        {plan->nops, "operators", "--op (-o)"},
        {plan->nalgos, "algorithms", "--algo"},
        {(uint64_t)plan->place[OUT_OF_PLACE] + plan->place[IN_PLACE], "placements",
         "--in-place or --out-of-place"},
    };
    int bad = 0;
    if (plan->launches != 1) {
        bad = err_add(err, ERR_USAGE,
                      "--trace shows one operation: the ranks are started once, --launches is 1 "
                      "and there is no --time");
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].count <= 1) continue;
        bad = err_add(err, ERR_USAGE,
                      "--trace shows one operation, but there are %llu %s: give one with %s",
                      (unsigned long long)parts[i].count, parts[i].what, parts[i].how);
    }
    return bad;
}

/* ---- the rank ---- */

/* Runs the operation to be traced; the first begin and the last end over all ranks. */
static struct trace_span run_traced(struct side *side, struct trace_span *own)
{
    struct rank *rk = side->bench->rk;
    side_says(side, "tracing");
    for (uint64_t i = 0; i < side->bench->plan->warmup; i++)
        side_operate(side);
    rank_barrier(rk);
    own->begin = clock_ns();
    side_operate(side);
    own->end = clock_ns();
    *board_samples(rk->world, rk->rank, PLANE_BEGIN) = own->begin;
    *board_samples(rk->world, rk->rank, PLANE_END) = own->end;
    rank_barrier(rk);
    struct trace_span all = *own;
    for (uint32_t r = 0; r < rk->nranks; r++) {
        uint64_t begin = *board_samples(rk->world, r, PLANE_BEGIN);
        uint64_t end = *board_samples(rk->world, r, PLANE_END);
        all.begin = begin < all.begin ? begin : all.begin;
        all.end = end > all.end ? end : all.end;
    }
    return all;
}

/* Sends the own steps, with times since `origin`. One message at least: it has the span. */
static int send_steps(const struct side *side, struct trace_span own, uint64_t origin)
{
    const struct bench *bench = side->bench;
    struct trace trace = {0};
    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = MESSAGE_STEPS;
    message.u.steps.rank = bench->me;
    message.u.steps.span = (struct trace_span){own.begin - origin, own.end - origin};
    exec_trace(side->exec, &trace);
    size_t done = 0;
    int bad = 0;
    do {
        size_t n = trace.count - done < STEPS_PER_MESSAGE ? trace.count - done : STEPS_PER_MESSAGE;
        for (size_t i = 0; i < n; i++) {
            struct trace_event *event = &message.u.steps.events[i];
            *event = trace.events[done + i];
            event->came -= origin;
            event->begin -= origin;
            event->end -= origin;
        }
        message.u.steps.count = (uint32_t)n;
        bad = rank_send(bench->rk, &message, sizeof message, bench->err);
        done += n;
    } while (!bad && done < trace.count);
    trace_release(&trace);
    return bad;
}

/* Rank 0: the operation as a row of the table with one sample. */
static int send_result(const struct side *side, double time_us, int64_t wrong,
                       const struct wrong *first)
{
    const struct bench *bench = side->bench;
    struct message message;
    memset(&message, 0, sizeof message);
    message.kind = MESSAGE_SAMPLES;
    message.u.samples.count = 1;
    message.u.samples.us[0] = time_us;
    if (rank_send(bench->rk, &message, sizeof message, bench->err)) return -1;
    memset(&message, 0, sizeof message);
    message.kind = MESSAGE_RESULT;
    message.u.result.row = side->row->index;
    message.u.result.nseries = 1;
    struct result *result = &message.u.result.result;
    *result = side_describe(side);
    result->time_us = result->min_us = result->p50_us = result->p95_us = time_us;
    result->p99_us = result->max_us = time_us;
    result->nsamples = result->batch = 1;
    result->wrong = wrong;
    result_bandwidths(result);
    message.u.result.first = *first;
    return rank_send(bench->rk, &message, sizeof message, bench->err);
}

static int trace_side(struct side *side)
{
    struct runner runner = side_runner(side);
    struct wrong first = {0};
    int64_t wrong =
        side->rounds ? (int64_t)side_check(side, &runner, 0, side->rounds, &first) : INT64_C(-1);
    struct trace_span own, all = run_traced(side, &own);
    int bad = send_steps(side, own, all.begin);
    if (!bad && side->bench->rk->rank == 0) {
        bad = send_result(side, (double)(all.end - all.begin) / 1e3, wrong, &first);
    }
    return bad;
}

int trace_rank(struct rank *rk, struct err *err)
{
    struct bench bench;
    struct side side;
    struct plan_row row;
    int bad = bench_open(&bench, rk, err);
    if (!bad) {
        plan_first(bench.plan, &row);
        bad = side_open(&side, &bench, &row, !bench.plan->place[OUT_OF_PLACE], true);
    }
    if (!bad) {
        bad = trace_side(&side);
        side_close(&side);
    }
    bench_close(&bench);
    return bad;
}

/* ---- the parent ---- */

int traced_open(struct traced *traced, const struct plan *plan, const char *path, bool overwrite,
                struct err *err)
{
    *traced = (struct traced){0};
    trace_init(&traced->trace, plan->nranks, 1e3, true);
    return trace_file_open(&traced->file, path, overwrite, err);
}

void traced_take(struct traced *traced, const struct message *message)
{
    if (message->kind == MESSAGE_RESULT) traced->result = message->u.result.result;
    if (message->kind != MESSAGE_STEPS) return;
    if (message->u.steps.rank >= traced->trace.nranks) return;
    traced->trace.spans[message->u.steps.rank] = message->u.steps.span;
    for (uint32_t i = 0; i < message->u.steps.count && i < STEPS_PER_MESSAGE; i++)
        trace_add(&traced->trace, &message->u.steps.events[i]);
}

/* Freed by the caller. */
static char *what_of(const struct result *result)
{
    return mem_printf("%s %s, %llu B, %s %s, %s, %u ranks, %s, %s buffers",
                      coll_get(result->coll)->name, result->algo, (unsigned long long)result->bytes,
                      result->dtype, result->redop, result->in_place ? "in place" : "out of place",
                      result->nranks, result->transport, result->buffers);
}

int traced_write(struct traced *traced, const char *command, bool failed, struct err *err)
{
    char *what = what_of(&traced->result);
    struct trace_about about = {
        .program = "collbench " COLLBENCH_VERSION,
        .command = command,
        .source = source_name(SOURCE_MEASURED),
        .what = what,
        .clock = "microseconds of CLOCK_MONOTONIC since the first rank began",
    };
    trace_sort(&traced->trace);
    int bad = trace_file_close(&traced->file, failed ? NULL : &traced->trace, &about, err);
    free(what);
    return bad;
}

void traced_note(const struct traced *traced, struct out *out)
{
    char *what = what_of(&traced->result);
    out_note(out, "--trace: %s, written to %s", what, traced->file.path);
    trace_note(out, &traced->trace);
    free(what);
}

void traced_release(struct traced *traced)
{
    trace_release(&traced->trace);
}
