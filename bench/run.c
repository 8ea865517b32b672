/* SPDX-License-Identifier: Apache-2.0
 * The parent's side of a run: options -> plan -> memory -> ranks -> table. It measures nothing; it
 * prints each row when rank 0 has sent its results. */
#include "bench/run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/progress.h"
#include "base/units.h"
#include "bench/board.h"
#include "bench/fit.h"
#include "bench/header.h"
#include "bench/list.h"
#include "bench/measure.h"
#include "bench/options.h"
#include "exec/launch.h"
#include "sched/table.h"

/* A placement of the row at hand. */
struct half {
    bool here;
    struct result result;
    double *us;
    size_t count, cap;
};

struct run {
    const struct plan *plan;
    struct out *table;
    struct err *err;
    struct plan_row row; /* at hand */
    bool behind;         /* all rows are printed */
    bool unread;         /* the reader of stdout went away, so the run was ended */
    struct half halves[NPLACES];
    double *us; /* samples that came before their result */
    size_t count, cap;
    struct footer footer;
    struct progress progress;
    int signal; /* that ended the run from outside; 0: none */
};

/* ---- rows ---- */

static void note_rounding(struct run *run)
{
    const struct plan_row *row = &run->row;
    char asked[UNITS_TEXT], used[UNITS_TEXT];
    if (row->algo_at > 0) return;
    if (row->asked != row->bytes) {
        out_note(run->table, "%s asked: %s used, whole %s elements%s",
                 units_size(asked, row->asked), units_size(used, row->bytes),
                 dtype_name(row->dtype),
                 coll_blocks(coll_get(run->plan->coll), BUF_SCRATCH, 2) > 1 ? " per rank" : "");
    }
    if (row->merged > 0) {
        out_note(run->table, "%llu more sizes round to %s and are left out",
                 (unsigned long long)row->merged, units_size(used, row->bytes));
    }
}

static void note_empty_chunks(struct run *run)
{
    const struct plan *plan = run->plan;
    const struct plan_row *row = &run->row;
    struct algo_args args = {.nranks = plan->nranks,
                             .root = plan->root,
                             .channels = row->choice.channels,
                             .parts = row->choice.parts};
    if (!plan->parts && !plan->channels) return; /* small sizes: as ever */
    uint32_t nparts = row->choice.algo->nparts(&args);
    if (row->block_count == 0 || row->block_count >= nparts / 2) return;
    out_note(run->table,
             "%s, %s: blocks of %zu elements in %u chunks, most of them empty; fewer --parts or "
             "--channels do the same",
             units_size((char[UNITS_TEXT]){0}, row->bytes), row->choice.algo->name,
             row->block_count, nparts);
}

/* Prints the row at hand, if anything of it is here. */
static void flush_row(struct run *run)
{
    struct table_side sides[NPLACES] = {{0}};
    bool any = false;
    for (int place = 0; place < NPLACES; place++) {
        struct half *half = &run->halves[place];
        if (!half->here) continue;
        any = true;
        sides[place] = (struct table_side){&half->result, half->us, half->count};
    }
    if (!any) return;
    progress_clear(&run->progress);
    note_rounding(run);
    note_empty_chunks(run);
    table_row(run->table, &sides[OUT_OF_PLACE], &sides[IN_PLACE]);
    for (int place = 0; place < NPLACES; place++) {
        free(run->halves[place].us);
        run->halves[place] = (struct half){0};
    }
}

/* A wrong element, as a sentence. */
static void say_wrong(struct run *run, const struct message *message)
{
    const struct result *result = &message->u.result.result;
    const struct data_bad *bad = &message->u.result.bad;
    err_add(run->err, ERR_FAILED,
            "%s %s, %zu B, %s %s, %s: %lld wrong elements; the first: rank %u, %s element %zu, "
            "expected %.9g, got %.9g",
            coll_get(result->coll)->name, result->algo, (size_t)result->bytes, result->dtype,
            result->redop, result->in_place ? "in place" : "out of place", (long long)result->wrong,
            message->u.result.wrong_rank, message->u.result.in_input ? "input" : "output",
            bad->index, bad->expected, bad->got);
}

static void count_result(struct run *run, const struct result *result)
{
    struct footer *footer = &run->footer;
    if (result->wrong >= 0) {
        footer->checked++;
        footer->wrong += (uint64_t)result->wrong;
    }
    footer->batched += result->batch > 1;
    if (result->nsamples > 0) {
        footer->busbw_sum += result->busbw_GBps;
        footer->busbw_count++;
    }
}

static void take_result(struct run *run, const struct message *message)
{
    const struct result *result = &message->u.result.result;
    while (!run->behind && run->row.index < message->u.result.row) {
        flush_row(run);
        run->behind = !plan_next(run->plan, &run->row);
    }
    struct half *half = &run->halves[result->in_place ? IN_PLACE : OUT_OF_PLACE];
    *half = (struct half){true, *result, run->us, run->count, run->cap};
    run->us = NULL;
    run->count = run->cap = 0;
    count_result(run, result);
    if (result->wrong > 0) say_wrong(run, message);
    bool whole = true;
    for (int place = 0; place < NPLACES; place++)
        whole = whole && run->halves[place].here == run->plan->place[place];
    if (!whole) return;
    flush_row(run);
    progress_step(&run->progress, run->row.index + 1, NULL);
}

static void on_message(void *ctx, uint32_t rank, const void *bytes, size_t length)
{
    struct run *run = ctx;
    struct message message;
    if (rank != 0 || length != sizeof message) return;
    memcpy(&message, bytes, sizeof message);
    if (message.kind == MESSAGE_FACTS) {
        header_facts(run->table, &message.u.facts);
    } else if (message.kind == MESSAGE_SAMPLES) {
        for (uint64_t i = 0; i < message.u.samples.count; i++) {
            MEM_GROW(run->us, run->count, run->cap);
            run->us[run->count++] = message.u.samples.us[i];
        }
    } else {
        take_result(run, &message);
    }
    if (!run->unread && out_reader_gone(run->table)) {
        run->unread = true;
        raise(SIGTERM); /* to launch_run, which ends the ranks */
    }
}

/* ---- the run ---- */

static int verify(const struct fitted *fitted, struct err *err)
{
    if (fitted->plan->nranks > READY_VERIFY_RANKS) return 0;
    for (size_t i = 0; i < fitted->ready.count; i++) {
        if (ready_verify(&fitted->ready.items[i], err)) return -1;
    }
    return 0;
}

static int open_outputs(struct run *run, const struct request *request, struct err *err)
{
    run->table = table_new(0);
    return out_add_asked(run->table, request->json, request->csv, request->overwrite, err);
}

/* Starts the ranks and prints what they send. */
static void start(struct run *run, const struct request *request, const struct fitted *fitted,
                  char **argv)
{
    struct world *world = world_create(&fitted->spec, run->err);
    if (!world) return;
    board_init(world, fitted->plan);
    struct launch_spec spec = {
        .prog = "collbench",
        .argv = argv,
        .world = world,
        .threads = fitted->plan->threads,
        .timeout_s = request->timeout_s,
        .on_message = on_message,
        .ctx = run,
        .interrupted = &run->signal,
    };
    plan_first(run->plan, &run->row);
    progress_init(&run->progress, coll_get(run->plan->coll)->name, plan_rows(run->plan));
    struct err launch_err = ERR_INIT;
    run->footer.failed = launch_run(&spec, &launch_err) != 0;
    if (run->unread) {
        err_release(&launch_err); /* nobody but us ended it */
    } else {
        err_move(run->err, &launch_err);
    }
    flush_row(run);
    progress_clear(&run->progress);
    world_close(world);
}

/* The signal that ended the run from outside, SIGPIPE when the reader of stdout went away; 0: none.
 */
static int run_plan(const struct request *request, const struct fitted *fitted, char **argv,
                    struct err *err)
{
    signal(SIGPIPE, SIG_IGN); /* writing says it too, and files are completed */
    struct run run = {.plan = fitted->plan, .err = err};
    int argc = 0;
    while (argv[argc])
        argc++;
    if (open_outputs(&run, request, err) == 0) {
        header_plan(run.table, fitted, argc, argv);
        run.footer.failed = true; /* until the ranks have come to their end */
        if (!out_reader_gone(run.table)) start(&run, request, fitted, argv);
        header_footer(run.table, &run.footer);
    }
    int ended = out_reader_gone(run.table) ? SIGPIPE : run.signal;
    out_close(run.table, err);
    free(run.us);
    return ended;
}

int run_cmd(const struct coll *coll, int argc, char **argv, char **whole_argv)
{
    if (launch_is_child()) return launch_child(measure_rank);
    struct request request;
    struct opts opts;
    struct fitted fitted = {0};
    struct err err = ERR_INIT, kernels_err = ERR_INIT;
    int bad = request_parse(&request, &opts, argc, argv, &err);
    int ended = 0;
    if (opts.help) {
        request_help(stdout, coll);
    } else if (!bad && request.version) {
        version_print();
    } else if (!bad && request.list) {
        list_cmd(1, argv);
    } else {
        if (!kernels_get(&kernels_err)) bad |= err_move(&err, &kernels_err);
        /* faults of words that only the plan can find come in the same go */
        if (bad) {
            free(request_plan(&request, &opts, coll, UINT32_MAX, &err));
        } else if (!fit(&request, &opts, coll, &fitted, &err) && !verify(&fitted, &err)) {
            ended = run_plan(&request, &fitted, whole_argv, &err);
        }
    }
    fitted_release(&fitted);
    opts_release(&opts);
    bool quiet = ended == SIGPIPE && err.count > 0;             /* a fault came first */
    int status = ended && !quiet ? 128 + ended : (int)err.code; /* as shells count */
    err_print(&err, "collbench");
    err_release(&err);
    return status;
}
