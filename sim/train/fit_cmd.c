/* SPDX-License-Identifier: Apache-2.0
 * `commsim constants` lists the constants; `commsim fit` fits those marked as fitted to tables of
 * measurements and, asked to, refits them without each framework to see how they transfer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/ship.h"
#include "net/coll_validate_cmd.h"
#include "net/net_const.h"
#include "train/fit.h"
#include "train/rowtext.h"
#include "train/score.h"
#include "train/validate_cmd.h"

struct request {
    const char *constants, *to, *json, *csv;
    unsigned engine; /* enum engine */
    bool overwrite, from_prior, leave_one_out;
    uint64_t iterations;
};

#define ROW(name_, type_, field, arg_, help_, ...)                                                 \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .arg = (arg_), .help = (help_), __VA_ARGS__                                                \
    }
#define OUTPUT_ROWS                                                                                \
    ROW("json", OPTS_STRING, json, "FILE", "write the table as JSON (- is stdout)",                \
        .section = "Output"),                                                                      \
        ROW("csv", OPTS_STRING, csv, "FILE", "write the table as CSV (- is stdout)"),              \
        ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files")

static const struct opts_row constants_options[] = {
    ROW("constants", OPTS_STRING, constants, "FILE", "constants in place of the shipped ones",
        .section = "Constants"),
    ROW("step", OPTS_CHOICE, engine, "ENGINE",
        "whose: the event engine's, or those of the closed form", .value = "event",
        .choices = engine_names),
    OUTPUT_ROWS,
    {0},
};

static const struct opts_row fit_options[] = {
    ROW("out", OPTS_STRING, to, "FILE", "write the fitted table of constants", .section = "Fit"),
    ROW("constants", OPTS_STRING, constants, "FILE", "start from these, not from the shipped ones"),
    ROW("step", OPTS_CHOICE, engine, "ENGINE",
        "whose constants: the event engine's, or those of the closed form", .value = "event",
        .choices = engine_names),
    ROW("from-prior", OPTS_FLAG, from_prior, NULL,
        "start from the priors, not from the present values"),
    ROW("iterations", OPTS_UINT, iterations, "N", "steps of the solver at most", .value = "30",
        .min = 1, .max = 10000),
    ROW("leave-one-out", OPTS_FLAG, leave_one_out, NULL,
        "refit without each framework and score its rows with that fit"),
    OUTPUT_ROWS,
    {0},
};

static struct out *open_out(const struct request *q, const struct out_column *columns, size_t n,
                            struct err *err)
{
    struct out *out = out_new(columns, n);
    out_add_asked(out, q->json, q->csv, q->overwrite, err);
    return out;
}

/* ---- constants ---- */

static const struct out_column constant_columns[] = {
    {"name", NULL, -20, 0, OUT_TEXT, 0, 0},   {"key", NULL, -12, 0, OUT_TEXT, 0, 0},
    {"value", NULL, 10, 4, OUT_DOUBLE, 0, 0}, {"unit", NULL, -9, 0, OUT_TEXT, 0, 0},
    {"fitted", NULL, 6, 0, OUT_BOOL, 0, 0},   {"prior", NULL, 10, 4, OUT_DOUBLE, 0, 0},
    {"sigma", NULL, 6, 2, OUT_DOUBLE, 0, 0},  {"table", NULL, -8, 0, OUT_TEXT, 0, 0},
    {"source", NULL, -40, 0, OUT_TEXT, 0, 0},
};

/* Those of networks and libraries, of `commsim coll`. */
static void list_network(struct out *out, struct err *err)
{
    struct net_const_table table;
    if (net_const_read(&table, NULL, err)) return;
    size_t fitted = 0;
    for (size_t i = 0; i < table.list.nrows; i++)
        fitted += table.list.rows[i].fitted;
    out_note(out, "then %zu constants of networks and libraries, %zu of them fitted to collectives",
             table.list.nrows, fitted);
    for (size_t i = 0; i < table.list.nrows; i++) {
        const struct const_row *row = &table.list.rows[i];
        struct out_cell cells[] = {
            out_text(row->name),    out_text(row->key),    out_double(row->value),
            out_text(row->unit),    out_bool(row->fitted), out_double(row->prior),
            out_double(row->sigma), out_text("network"),   out_text(row->source)};
        out_row(out, cells);
    }
    net_const_release(&table);
}

static void list_constants(const struct request *q, struct err *err)
{
    struct const_table table;
    if (const_read(&table, (enum engine)q->engine, q->constants, err)) return;
    size_t n = sizeof constant_columns / sizeof *constant_columns;
    size_t fitted = 0, set = 0;
    struct out *out = open_out(q, constant_columns, n, err);
    for (size_t i = 0; i < table.list.nrows; i++) {
        fitted += table.list.rows[i].fitted;
        set += strncmp(table.list.rows[i].source, "set on", 6) == 0;
    }
    out_note(out,
             "%zu constants, %zu of them fitted to step times, %zu set by hand on memory columns; "
             "sigma is the width of the prior of ln(value)",
             table.list.nrows, fitted, set);
    for (size_t i = 0; i < table.list.nrows && !err->count; i++) {
        const struct const_row *row = &table.list.rows[i];
        struct out_cell cells[] = {
            out_text(row->name),    out_text(row->key),    out_double(row->value),
            out_text(row->unit),    out_bool(row->fitted), out_double(row->prior),
            out_double(row->sigma), out_text("training"),  out_text(row->source)};
        out_row(out, cells);
    }
    if (!err->count && !q->constants) list_network(out, err);
    out_close(out, err);
    const_release(&table);
}

/* ---- fit ---- */

enum { ROWS = 80 }; /* from here on a framework's rows count less each */

/* Whether a fit may see a row: scored, complete or with assumed inputs, not of the framework that
 * is left out, and not of vtrain.csv, which stays a test. */
static bool is_seen(const struct row *row, size_t without)
{
    return score_counts(row) && row->complete != COMPLETE_NO && row->published != without &&
           !rowtext_has(row->file, "vtrain");
}

/* The rows as points. A framework with many rows counts less per row. */
static struct fit_point *points_of(const struct rows *rows, size_t without, size_t *count)
{
    struct fit_point *points = mem_calloc(rows->nrows + 1, sizeof *points);
    *count = 0;
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *row = &rows->rows[i];
        if (!is_seen(row, without)) continue;
        double same = 0;
        for (size_t j = 0; j < rows->nrows; j++) {
            same += strcmp(rows->rows[j].framework, row->framework) == 0;
        }
        points[(*count)++] =
            (struct fit_point){i, &row->job, row->measured_s, fmin(1, sqrt(ROWS / same))};
    }
    return points;
}

static const struct out_column fit_columns[] = {
    {"fit", NULL, -36, 0, OUT_TEXT, 0, 0},
    {"rows", NULL, 6, 0, OUT_UINT, 0, 0},
    {"median", "%", 7, 1, OUT_DOUBLE, 0, 0},
    {"p90", "%", 7, 1, OUT_DOUBLE, 0, 0},
    {"worst", "%", 7, 0, OUT_DOUBLE, 0, 0},
    {"bias", "%", 7, 1, OUT_DOUBLE, 0, 0},
    {"iterations", NULL, 6, 0, OUT_UINT, "steps", 0},
    {"cost", NULL, 9, 1, OUT_DOUBLE, 0, 0},
};

static bool fitted_row(const struct row *row, const void *arg)
{
    size_t only = *(const size_t *)arg;
    return row->complete != COMPLETE_NO && !rowtext_has(row->file, "vtrain") &&
           (only == SIZE_MAX || row->published == only);
}

/* What all fits of a command share. */
struct session {
    const struct request *q;
    const struct rows *rows;
    struct runner *runner;
    struct out *out;
    struct err *err;
};

static void print_fit(const struct session *s, const struct constants *values, const char *name,
                      size_t only, const struct solve_report *r, struct score *score)
{
    struct prediction *p = score_predict(s->rows, s->runner, values, s->err);
    if (!p) return;
    *score = score_group(s->rows, p, fitted_row, &only, true);
    free(p);
    struct out_cell cells[] = {
        out_text(name),          out_uint(score->n),       out_double(score->median),
        out_double(score->p90),  out_double(score->worst), out_double(score->bias),
        out_uint(r->iterations), out_double(r->cost_after)};
    out_row(s->out, cells);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over frameworks of at least `least` rows, and how many of them miss by more than 16 %. */
static void sum_up(struct out *out, const struct score *scores, size_t nscores, size_t least)
{
    double *medians = mem_calloc(nscores, sizeof *medians);
    size_t n = 0, above = 0;
    for (size_t i = 0; i < nscores; i++) {
        if (scores[i].n < least) continue;
        medians[n++] = scores[i].median;
        above += scores[i].median > 16;
    }
    if (n) {
        qsort(medians, n, sizeof *medians, by_value);
        out_note(out,
                 "leave one framework out: median over %zu frameworks of %zu rows or more %.1f %% "
                 "(bar 11 %%), %zu above 16 %% (bar 2)",
                 n, least, (medians[(n - 1) / 2] + medians[n / 2]) / 2, above);
    }
    free(medians);
}

/* Whether the rows of a framework are scored. */
static bool has_rows(const struct rows *rows, size_t framework)
{
    for (size_t i = 0; i < rows->nrows; i++) {
        if (score_counts(&rows->rows[i]) && fitted_row(&rows->rows[i], &framework)) return true;
    }
    return false;
}

/* Refits without each framework that has rows, scores them, and sums up. */
static int leave_one_out(const struct session *s)
{
    size_t n = 0;
    const struct rows *rows = s->rows;
    struct score *scores = mem_calloc(rows->published.nrows, sizeof *scores);
    for (size_t k = 0; k < rows->published.nrows && !s->err->count; k++) {
        size_t count;
        struct const_table table;
        if (!has_rows(rows, k)) continue;
        if (const_read(&table, (enum engine)s->q->engine, s->q->constants, s->err)) break;
        struct fit_point *points = points_of(rows, k, &count);
        struct solve_report r = {0};
        if (fit_constants(&table, s->runner, points, count, true, s->q->iterations, &r, s->err) ==
            0) {
            char *name = mem_printf("without %s", csv_cell(&rows->published, k, "pattern"));
            print_fit(s, &table.values, name, k, &r, &scores[n++]);
            free(name);
        }
        free(points);
        const_release(&table);
    }
    sum_up(s->out, scores, n, 1);
    sum_up(s->out, scores, n, 10);
    free(scores);
    return s->err->count ? -1 : 0;
}

static void fit_tables(const struct request *q, const struct rows *rows, struct err *err)
{
    struct const_table table;
    if (const_read(&table, (enum engine)q->engine, q->constants, err)) return;
    struct runner *runner = score_runner(rows, (enum engine)q->engine, err);
    size_t n = sizeof fit_columns / sizeof *fit_columns, count;
    struct session s = {q, rows, runner, open_out(q, fit_columns, n, err), err};
    struct fit_point *points = points_of(rows, SIZE_MAX, &count);
    struct solve_report r = {0};
    struct score score;
    if (!err->count && !count) {
        err_add(err, ERR_FAILED,
                "no row could be fitted to: none is complete and none has its "
                "unstated inputs assumed (vtrain.csv is never fitted to)");
    }
    if (!err->count) print_fit(&s, &table.values, "as given", SIZE_MAX, &r, &score);
    if (!err->count &&
        fit_constants(&table, runner, points, count, q->from_prior, q->iterations, &r, err) == 0) {
        print_fit(&s, &table.values, "fitted", SIZE_MAX, &r, &score);
        if (q->to) const_write(&table, &table.values, q->to, err);
    }
    if (!err->count && q->leave_one_out) leave_one_out(&s);
    out_close(s.out, err);
    free(points);
    runner_free(runner);
    const_release(&table);
}

static void read_and_fit(const struct request *q, const struct opts *opts, struct err *err)
{
    char *shipped = ship_folder("data/training");
    char **paths = mem_calloc(opts->npositionals + 1, sizeof *paths);
    size_t npaths = opts->npositionals;
    for (size_t i = 0; i < npaths; i++)
        paths[i] = mem_strdup(opts->positionals[i]);
    if (!npaths && shipped) paths[npaths++] = mem_strdup(shipped);
    struct rows rows;
    if (rows_read(&rows, paths, npaths, err) == 0) {
        if (score_any(&rows, false, err) == 0) fit_tables(q, &rows, err);
        rows_release(&rows);
    }
    for (size_t i = 0; i < npaths; i++)
        free(paths[i]);
    free(paths);
    free(shipped);
}

static int run(int argc, char **argv, const char *prog, const char *usage, const char *about,
               const struct opts_row *options, bool fit)
{
    struct request q = {0};
    struct opts opts = {0};
    struct err err = ERR_INIT;
    if (opts_parse(&opts, options, &q, argc, argv, &err) == 0) {
        if (opts.help) {
            opts_help(stdout, usage, about, options);
        } else if (fit) {
            read_and_fit(&q, &opts, &err);
        } else if (opts.npositionals) {
            err_add(&err, ERR_USAGE, "constants takes no words, \"%s\" is one",
                    opts.positionals[0]);
        } else {
            list_constants(&q, &err);
        }
    }
    int status = err.count ? (int)err.code : 0;
    err_print(&err, prog);
    err_release(&err);
    opts_release(&opts);
    return status;
}

int constants_cmd(int argc, char **argv)
{
    return run(argc, argv, "commsim constants", "commsim constants [options]",
               "Lists the constants of a step's engine, and those of networks and libraries "
               "(data/network.csv) unless --constants names a table.",
               constants_options, false);
}

int fit_cmd(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "collectives") == 0) return coll_fit_cmd(argc, argv);
    return run(argc, argv, "commsim fit", "commsim fit [FILE|FOLDER]... [options]",
               "Fits the constants to tables of measured step times; without a file, to the "
               "shipped ones but for vtrain.csv.",
               fit_options, true);
}
