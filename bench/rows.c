/* SPDX-License-Identifier: Apache-2.0
 * Rows as they come in: see rows.h. */
#include "bench/rows.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/history.h"

/* A soak runs for hours: of so many launches the record keeps the samples, then the statistics. */
enum { SOAK_SAMPLES = 10 };

/* One series of one placement. */
struct cell {
    bool here;
    struct result result;
    double *us;
    size_t count;
};

/* A row that is not printed yet. */
struct pending {
    uint64_t row;
    bool recorded;             /* it is in the record */
    uint32_t nseries[NPLACES]; /* expected; 0: not known */
    struct cell cells[NSERIES][NPLACES];
};

struct rows {
    const struct plan *plan;
    const struct outputs *outputs;
    struct err *wrong;
    struct pending *pending;
    size_t npending, cap;
    struct plan_row next; /* to be printed in text and CSV */
    bool behind;          /* all rows are printed */
    double *us;           /* samples that came before their result */
    size_t count, us_cap;
    struct history *history; /* several launches */
    struct footer footer;
};

void outputs_note(const struct outputs *outputs, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0) text = NULL;
    va_end(args);
    if (!text) return;
    out_note(outputs->record, "%s", text);
    if (outputs->format == FORMAT_OWN) out_note(outputs->text, "%s", text);
    free(text);
}

struct rows *rows_new(const struct plan *plan, const struct outputs *outputs, struct err *wrong)
{
    struct rows *rows = mem_calloc(1, sizeof *rows);
    *rows = (struct rows){.plan = plan, .outputs = outputs, .wrong = wrong};
    plan_first(plan, &rows->next);
    if (plan->launches != 1) rows->history = history_new();
    return rows;
}

void rows_free(struct rows *rows)
{
    if (!rows) return;
    history_free(rows->history);
    free(rows->pending);
    free(rows->us);
    free(rows);
}

const struct footer *rows_footer(const struct rows *rows)
{
    return &rows->footer;
}

/* ---- printing ---- */

static void note_rounding(const struct rows *rows)
{
    const struct plan_row *row = &rows->next;
    char asked[UNITS_TEXT], used[UNITS_TEXT];
    if (row->algo_at > 0 || rows->plan->launch > 1) return;
    if (row->asked != row->bytes) {
        outputs_note(
            rows->outputs, "%s asked: %s used, whole %s elements%s", units_size(asked, row->asked),
            units_size(used, row->bytes), dtype_name(row->dtype),
            coll_blocks(coll_get(rows->plan->coll), BUF_SCRATCH, 2) > 1 ? " per rank" : "");
    }
    if (row->merged > 0) {
        outputs_note(rows->outputs, "%llu more sizes round to %s and are left out",
                     (unsigned long long)row->merged, units_size(used, row->bytes));
    }
}

static void note_empty_chunks(const struct rows *rows)
{
    const struct plan *plan = rows->plan;
    const struct plan_row *row = &rows->next;
    if ((!plan->parts && !plan->channels) || plan->launch > 1) return; /* small sizes: as ever */
    uint32_t nparts = plan_nparts(plan, row);
    if (row->block_count == 0 || row->block_count >= nparts / 2) return;
    outputs_note(rows->outputs,
                 "%s, %s: blocks of %zu elements in %u chunks, most of them empty; fewer --parts "
                 "or --channels do the same",
                 units_size((char[UNITS_TEXT]){0}, row->bytes), plan_algo_name(plan, row),
                 row->block_count, nparts);
}

static bool has_series(const struct pending *p, unsigned series)
{
    return p->cells[series][OUT_OF_PLACE].here || p->cells[series][IN_PLACE].here;
}

static void sides_of(const struct pending *p, unsigned series, struct table_side sides[NPLACES])
{
    for (int place = 0; place < NPLACES; place++) {
        const struct cell *cell = &p->cells[series][place];
        sides[place] = (struct table_side){0};
        if (cell->here) sides[place] = (struct table_side){&cell->result, cell->us, cell->count};
    }
}

static void record(struct rows *rows, struct pending *p)
{
    for (unsigned series = 0; !p->recorded && series < NSERIES; series++) {
        struct table_side sides[NPLACES];
        if (!has_series(p, series)) continue;
        sides_of(p, series, sides);
        if (rows->plan->launches == 0 && rows->plan->launch > SOAK_SAMPLES)
            sides[OUT_OF_PLACE].samples_us = sides[IN_PLACE].samples_us = NULL;
        table_row(rows->outputs->record, &sides[OUT_OF_PLACE], &sides[IN_PLACE]);
    }
    p->recorded = true;
}

static void print(struct rows *rows, const struct pending *p)
{
    const struct outputs *outputs = rows->outputs;
    note_rounding(rows);
    note_empty_chunks(rows);
    for (unsigned series = 0; series < NSERIES; series++) {
        struct table_side sides[NPLACES];
        if (!has_series(p, series)) continue;
        sides_of(p, series, sides);
        table_row(outputs->sheet, &sides[OUT_OF_PLACE], &sides[IN_PLACE]);
        format_row(outputs->text, outputs->format, &sides[OUT_OF_PLACE], &sides[IN_PLACE]);
    }
}

/* ---- pending rows ---- */

static struct pending *pending_of(struct rows *rows, uint64_t row)
{
    for (size_t i = 0; i < rows->npending; i++) {
        if (rows->pending[i].row == row) return &rows->pending[i];
    }
    MEM_GROW(rows->pending, rows->npending, rows->cap);
    struct pending *p = &rows->pending[rows->npending++];
    *p = (struct pending){.row = row};
    return p;
}

static void drop(struct rows *rows, struct pending *p)
{
    for (unsigned series = 0; series < NSERIES; series++) {
        for (int place = 0; place < NPLACES; place++)
            free(p->cells[series][place].us);
    }
    *p = rows->pending[--rows->npending];
}

static bool whole(const struct rows *rows, const struct pending *p)
{
    for (int place = 0; place < NPLACES; place++) {
        uint32_t here = 0;
        for (unsigned series = 0; series < NSERIES; series++)
            here += p->cells[series][place].here;
        bool all = p->nseries[place] > 0 && here == p->nseries[place];
        if (rows->plan->place[place] && !all) return false;
    }
    return true;
}

static struct pending *lowest(const struct rows *rows)
{
    struct pending *low = NULL;
    for (size_t i = 0; i < rows->npending; i++) {
        if (!low || rows->pending[i].row < low->row) low = &rows->pending[i];
    }
    return low;
}

/* Prints rows in order: those that are whole and have nothing missing before them, or all. */
static void flush(struct rows *rows, bool all)
{
    for (struct pending *p; (p = lowest(rows)) != NULL; drop(rows, p)) {
        if (!all && (p->row != rows->next.index || !whole(rows, p))) return;
        while (!rows->behind && rows->next.index < p->row)
            rows->behind = !plan_next(rows->plan, &rows->next);
        record(rows, p);
        print(rows, p);
        if (!rows->behind) rows->behind = !plan_next(rows->plan, &rows->next);
    }
}

/* ---- taking in ---- */

/* A wrong element, as a sentence. */
static void say_wrong(struct rows *rows, const struct message *message)
{
    const struct result *result = &message->u.result.result;
    const struct wrong *first = &message->u.result.first;
    err_add(rows->wrong, ERR_FAILED,
            "%s %s, %zu B, %s %s, %s: %lld wrong elements; the first: rank %u, %s element %zu, "
            "expected %.9g, got %.9g",
            coll_get(result->coll)->name, result->algo, (size_t)result->bytes, result->dtype,
            result->redop, result->in_place ? "in place" : "out of place", (long long)result->wrong,
            first->rank, first->in_input ? "input" : "output", first->bad.index,
            first->bad.expected, first->bad.got);
}

static void count_result(struct rows *rows, const struct result *result)
{
    struct footer *footer = &rows->footer;
    if (result->wrong >= 0) {
        footer->checked++;
        footer->wrong += (uint64_t)result->wrong;
    }
    footer->batched += result->batch > 1;
    if (result->nsamples > 0 && result->source == SOURCE_MEASURED) {
        bool large = result->bytes >= FOOTER_LARGE;
        footer->busbw_sum += result->busbw_GBps;
        footer->busbw_count++;
        footer->large_sum += large ? result->busbw_GBps : 0;
        footer->large_count += large;
    }
}

/* A time that no transfer can have: less than half of what copying the least bytes takes. Only
 * where the slowest rank counts, and where no rank can come late for want of a core. */
static void judge_bound(struct rows *rows, const struct result *result)
{
    const struct plan *plan = rows->plan;
    bool counts = plan->average == AVERAGE_MAX && plan->contest != CONTEST_SKEW &&
                  plan_world(plan) <= plan->cores;
    if (!counts || result->nsamples == 0 || !(2 * result->p50_us < result->bound_us)) return;
    rows->footer.invalid++;
    err_add(rows->wrong, ERR_FAILED,
            "%s %s, %zu B, %s: the row is INVALID: p50 is %.3g us, but to move these bytes takes "
            "%.3g us at least; something else than the operation was timed",
            coll_get(result->coll)->name, result->algo, (size_t)result->bytes,
            result->in_place ? "in place" : "out of place", result->p50_us, result->bound_us);
}

/* Now, in local time with its offset, to the millisecond. */
static void stamp(char *text, size_t room)
{
    struct timespec now;
    struct tm local;
    char date[24] = "", zone[8] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    if (!localtime_r(&now.tv_sec, &local)) return;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &local);
    strftime(zone, sizeof zone, "%z", &local);
    snprintf(text, room, "%s.%03ld%s", date, now.tv_nsec / 1000000, zone);
}

static bool take_result(struct rows *rows, const struct message *message)
{
    struct result result = message->u.result.result;
    struct pending *p = pending_of(rows, message->u.result.row);
    int place = result.in_place ? IN_PLACE : OUT_OF_PLACE;
    stamp(result.timestamp, sizeof result.timestamp);
    p->nseries[place] = message->u.result.nseries;
    p->cells[message->u.result.series][place] = (struct cell){true, result, rows->us, rows->count};
    rows->us = NULL;
    rows->count = rows->us_cap = 0;
    count_result(rows, &result);
    if (result.wrong > 0) say_wrong(rows, message);
    judge_bound(rows, &result);
    if (rows->history) {
        char *drift = history_take(rows->history, p->row, message->u.result.series, &result);
        if (drift) outputs_note(rows->outputs, "DRIFT %s: %s", result.timestamp, drift);
        rows->footer.drifts += drift != NULL;
        free(drift);
    }
    if (!whole(rows, p)) return false;
    record(rows, p);
    flush(rows, false);
    return true;
}

bool rows_take(struct rows *rows, const struct message *message)
{
    if (message->kind == MESSAGE_RESULT) return take_result(rows, message);
    for (uint64_t i = 0; i < message->u.samples.count; i++) {
        MEM_GROW(rows->us, rows->count, rows->us_cap);
        rows->us[rows->count++] = message->u.samples.us[i];
    }
    return false;
}

void rows_end_launch(struct rows *rows)
{
    flush(rows, true);
    rows->count = 0;
    rows->behind = false;
    plan_first(rows->plan, &rows->next);
}

void rows_over_launches(struct rows *rows)
{
    if (!rows->history) return;
    uint64_t count = history_rows(rows->history);
    for (uint64_t row = 0; row < count; row++) {
        for (unsigned series = 0; series < NSERIES; series++) {
            struct result results[NPLACES];
            struct table_side sides[NPLACES] = {{0}};
            bool any = false;
            for (int place = 0; place < NPLACES; place++) {
                if (!history_over(rows->history, row, series, place == IN_PLACE, &results[place]))
                    continue;
                sides[place].result = &results[place];
                any = true;
            }
            if (!any) continue;
            table_row(rows->outputs->record, &sides[OUT_OF_PLACE], &sides[IN_PLACE]);
            table_row(rows->outputs->sheet, &sides[OUT_OF_PLACE], &sides[IN_PLACE]);
            format_row(rows->outputs->text, rows->outputs->format, &sides[OUT_OF_PLACE],
                       &sides[IN_PLACE]);
        }
    }
}
