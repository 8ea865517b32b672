/* SPDX-License-Identifier: Apache-2.0
 * `commsim validate collectives`: reads tables, predicts every row, prints errors by band, class,
 * operation and bucket, and one line per row into a file if asked. `commsim fit collectives` fits
 * the constants to the same tables. */
#include "net/coll_validate_cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/ship.h"
#include "base/units.h"
#include "net/coll_fit.h"

struct request {
    const char *rows, *leave_out, *constants, *require, *to, *json, *csv;
    double launch_s, alpha_s, require_median[NBANDS];
    uint64_t iterations;
    bool overwrite, machines;
};

#define ROW(name_, type_, field, arg_, help_, ...)                                                 \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .arg = (arg_), .help = (help_), __VA_ARGS__                                                \
    }
#define COMMON_ROWS                                                                                \
    ROW("constants", OPTS_STRING, constants, "FILE",                                               \
        "constants in place of the shipped ones (data/network.csv)"),                              \
        ROW("iterations", OPTS_UINT, iterations, "N", "steps of the solver at most in a fit",      \
            .value = "40", .min = 1, .max = 10000),                                                \
        ROW("json", OPTS_STRING, json, "FILE", "write the scores as JSON (- is stdout)",           \
            .section = "Output"),                                                                  \
        ROW("csv", OPTS_STRING, csv, "FILE", "write the scores as CSV (- is stdout)"),             \
        ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files")

static const struct opts_row validate_options[] = {
    ROW("rows", OPTS_STRING, rows, "FILE",
        "one line per row: scored or why not, topology, predicted, measured, error, algorithm",
        .section = "Scores"),
    ROW("leave-out", OPTS_STRING, leave_out, "machine",
        "also score each machine with constants refitted without it"),
    ROW("machines", OPTS_FLAG, machines, NULL, "list every machine as it was understood"),
    ROW("require", OPTS_STRING, require, "S,M,L",
        "exit with 1 unless the median of healthy machines is within S, M, L percent (< 64 KiB, to "
        "16 MiB, above)"),
    ROW("alpha-net", OPTS_TIME_S, alpha_s, "TIME",
        "latency of a hop between hosts, in place of the fabric's constant",
        .section = "What you know better"),
    ROW("launch", OPTS_TIME_S, launch_s, "TIME", "the host's floor under every call"),
    COMMON_ROWS,
    {0},
};

static const char validate_about[] =
    "Predicts published sweeps of collectives and scores them: the median of |predicted / measured "
    "- 1| over the rows of a (machine, nodes, GPUs), then over machines. Without a file, the "
    "shipped table.\n\n"
    "A file is a table with commas and a header, in any order of columns. Needed: machine, op "
    "(allreduce, all_gather, osu_alltoall ..), n_nodes, gpus_per_node, gpu, size_bytes, time_us. "
    "Read where they are there: id, intra_link, inter_network, nccl_version, algo_proto, notes, "
    "expected_or_buggy (expected or empty, buggy, unclear), busbw_gbps (compared with the time, "
    "never used). Others are passed over.\n\n"
    "A row that is not scored has a reason in --rows. No prediction: machine-missing, op-missing, "
    "nodes-missing, gpus-missing, gpu-missing, size-missing (an empty cell), op-unknown, "
    "gpu-unknown (no known accelerator's name starts the cell), one-rank, size-0, no-network "
    "(several nodes, network \"none\"), nic-rate-0, repeat (all cells as in another row). "
    "Predicted but not scored: no-time, buggy, unclear, or the name of a bucket, which has a score "
    "of its own (data/README.md has the rules).\n\n"
    "Exit: 0; 1 if --require is not met; 2 for a wrong option or a file that cannot be read.";

static const struct opts_row fit_options[] = {
    ROW("out", OPTS_STRING, to, "FILE", "write the fitted table of constants", .section = "Fit"),
    COMMON_ROWS,
    {0},
};

/* ---- groups ---- */

static bool healthy(const struct coll_row *row, const void *arg)
{
    (void)arg;
    return coll_row_counts(row);
}

static bool of_class(const struct coll_row *row, const void *arg)
{
    return coll_row_counts(row) && strcmp(coll_row_class(row), arg) == 0;
}

static bool of_op(const struct coll_row *row, const void *arg)
{
    return coll_row_counts(row) && row->as.args.library != LIBRARY_MPI &&
           strcmp(coll_get(row->coll)->nccl, arg) == 0;
}

static bool of_bucket(const struct coll_row *row, const void *arg)
{
    return row->state == STATE_HEALTHY && *row->bucket && strcmp(row->bucket, arg) == 0;
}

static bool of_fault(const struct coll_row *row, const void *arg)
{
    return row->state == STATE_BUGGY && strcmp(coll_fault_name(row->as.fault), arg) == 0;
}

static bool unclear(const struct coll_row *row, const void *arg)
{
    (void)arg;
    return row->state == STATE_UNCLEAR;
}

static const char *class_of(const struct coll_row *row)
{
    return coll_row_counts(row) ? coll_row_class(row) : NULL;
}

static const char *op_of(const struct coll_row *row)
{
    return coll_row_counts(row) && row->as.args.library != LIBRARY_MPI ? coll_get(row->coll)->nccl
                                                                       : NULL;
}

static const char *bucket_of(const struct coll_row *row)
{
    return row->state == STATE_HEALTHY && !row->reason && *row->bucket ? row->bucket : NULL;
}

static const char *fault_of(const struct coll_row *row)
{
    return row->state == STATE_BUGGY && !row->reason ? coll_fault_name(row->as.fault) : NULL;
}

/* ---- scores ---- */

static const struct out_column columns[] = {
    {"group", NULL, -44, 0, OUT_TEXT, NULL, NULL},
    {"band", NULL, -15, 0, OUT_TEXT, NULL, NULL},
    {"machines", NULL, 8, 0, OUT_UINT, NULL, NULL},
    {"rows", NULL, 5, 0, OUT_UINT, NULL, NULL},
    {"median", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"p90", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"cells", "%", 7, 1, OUT_DOUBLE, "median of cells", NULL},
    {"bias", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"bar", NULL, -12, 0, OUT_TEXT, NULL, NULL},
};

/* A group in all bands; `bars` (percent, by band) may be NULL. */
static void print_group(struct out *out, const char *name, const struct coll_rows *rows,
                        const struct coll_prediction *p, coll_member member, const void *arg,
                        const double *bars)
{
    for (unsigned b = 0; b < NBANDS; b++) {
        struct coll_score s = coll_score_of(rows, p, (enum coll_band)b, member, arg);
        if (!s.rows) continue;
        char *bar = bars ? mem_printf("%g: %s", bars[b], s.median <= bars[b] ? "met" : "missed")
                         : mem_strdup("-");
        out_row(out,
                (struct out_cell[]){out_text(name), out_text(coll_band_name((enum coll_band)b)),
                                    out_uint(s.machines), out_uint(s.rows), out_double(s.median),
                                    out_double(s.p90), out_double(s.cell_median),
                                    out_double(s.bias), out_text(bar)});
        free(bar);
    }
}

/* One group for each name that `key` gives to a row, in the order of the alphabet. */
static void print_keys(struct out *out, const char *title, const struct coll_rows *rows,
                       const struct coll_prediction *p, const char *(*key)(const struct coll_row *),
                       coll_member member)
{
    const char *last = NULL;
    for (;;) {
        const char *next = NULL;
        for (size_t i = 0; i < rows->nrows; i++) {
            const char *name = key(&rows->rows[i]);
            if (!name || (last && strcmp(name, last) <= 0)) continue;
            if (!next || strcmp(name, next) < 0) next = name;
        }
        if (!next) return;
        char *group = mem_printf("%s: %s", title, *next ? next : "none known");
        print_group(out, group, rows, p, member, next, NULL);
        free(group);
        last = next;
    }
}

static bool is_contradiction(const struct coll_row *row)
{
    return row->contradicts;
}

static bool is_odd_state(const struct coll_row *row)
{
    return row->state == STATE_UNCLEAR && strcmp(row->state_word, "unclear") != 0;
}

static bool is_repeat(const struct coll_row *row)
{
    return row->reason && strcmp(row->reason, "repeat") == 0;
}

/* "NUMBER rows WHAT: FILE:LINE, ..", the first few of them; nothing where there is none. */
static void note_rows(struct out *out, const struct coll_rows *rows,
                      bool (*member)(const struct coll_row *), const char *what)
{
    enum { SHOWN = 8 };
    char *where = mem_strdup("");
    size_t count = 0;
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct coll_row *row = &rows->rows[i];
        if (!member(row) || ++count > SHOWN) continue;
        char *longer = mem_printf("%s%s%s:%zu", where, count > 1 ? ", " : "", row->file, row->line);
        free(where);
        where = longer;
    }
    if (count)
        out_note(out, "%zu row%s %s: %s%s", count, count > 1 ? "s" : "", what, where,
                 count > SHOWN ? ", .." : "");
    free(where);
}

static void note_counts(struct out *out, const struct coll_rows *rows)
{
    size_t healthy_rows = 0, scored = 0, table = 0, reasons = 0;
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct coll_row *row = &rows->rows[i];
        healthy_rows += row->state == STATE_HEALTHY;
        scored += coll_row_counts(row);
        table += row->from_table;
        reasons += row->reason != NULL;
    }
    out_note(out,
             "%zu rows read, %zu of healthy machines, %zu (%.1f %%) of these scored, the others in "
             "buckets below",
             rows->nrows, healthy_rows, scored,
             healthy_rows ? 100. * (double)scored / (double)healthy_rows : 0);
    out_note(out,
             "machines: %.1f %% of the rows by their text columns alone, the others with "
             "data/machines.csv",
             100. * (double)(rows->nrows - table) / (double)rows->nrows);
    if (reasons) out_note(out, "%zu rows have no prediction (--rows has the reasons)", reasons);
    note_rows(out, rows, is_repeat, "repeating another in all columns, counted once");
    note_rows(out, rows, is_odd_state,
              "with a word in expected_or_buggy that is not expected, buggy or unclear, taken as "
              "unclear");
    note_rows(out, rows, is_contradiction,
              "with a busbw that contradicts time and size by more than 5 %, the time is used");
}

static const double bars[NBANDS] = {15, 15, 5}, left_out_bars[NBANDS] = {20, 20, 5};

static void check_required(const struct request *q, const struct coll_rows *rows,
                           const struct coll_prediction *p, struct err *err)
{
    for (unsigned b = 0; b < NBANDS && q->require; b++) {
        struct coll_score s = coll_score_of(rows, p, (enum coll_band)b, healthy, NULL);
        if (s.rows && s.median > q->require_median[b]) {
            err_add(err, ERR_FAILED, "--require %s: the median of %s is %.1f %%", q->require,
                    coll_band_name((enum coll_band)b), s.median);
        }
    }
}

/* ---- one line per row ---- */

static const struct out_column row_columns[] = {
    {"file", NULL, -20, 0, OUT_TEXT, 0, 0},       {"id", NULL, -30, 0, OUT_TEXT, 0, 0},
    {"scored", NULL, 6, 0, OUT_BOOL, 0, 0},       {"reason", NULL, -20, 0, OUT_TEXT, 0, 0},
    {"topology", NULL, -50, 0, OUT_TEXT, 0, 0},   {"launch", NULL, -10, 0, OUT_TEXT, 0, 0},
    {"lib_class", NULL, -14, 0, OUT_TEXT, 0, 0},  {"fault", NULL, -14, 0, OUT_TEXT, 0, 0},
    {"predicted", "us", 12, 3, OUT_DOUBLE, 0, 0}, {"measured", "us", 12, 3, OUT_DOUBLE, 0, 0},
    {"error", NULL, 9, 4, OUT_DOUBLE, 0, 0},      {"algo", NULL, -10, 0, OUT_TEXT, 0, 0},
    {"proto", NULL, -7, 0, OUT_TEXT, 0, 0},       {"limit", NULL, -20, 0, OUT_TEXT, 0, 0},
    {"nccl_algo", NULL, -10, 0, OUT_TEXT, 0, 0},  {"nccl_proto", NULL, -7, 0, OUT_TEXT, 0, 0},
    {"left_out", "us", 12, 3, OUT_DOUBLE, 0, 0},  {"contradicts", NULL, -7, 0, OUT_TEXT, 0, 0},
};

/* Why a row is not among the scored: a reason, its bucket, or its state. */
static const char *why_not(const struct coll_row *row)
{
    if (row->reason) return row->reason;
    if (*row->bucket) return row->bucket;
    if (row->state == STATE_BUGGY) return "buggy";
    if (row->state == STATE_UNCLEAR) return "unclear";
    return row->measured_us > 0 ? "" : "no-time";
}

static void write_row(struct out *out, const struct coll_row *row, const struct coll_prediction *p,
                      const struct coll_prediction *left)
{
    const char *slash = strrchr(row->file, '/');
    struct out_cell none = {0};
    bool known = !row->reason;
    char *topo = coll_machine_describe(&row->as);
    struct out_cell cells[] = {
        out_text(slash ? slash + 1 : row->file),
        out_text(row->id),
        out_bool(coll_row_counts(row)),
        out_text(why_not(row)),
        out_text(topo),
        out_text(launch_name(row->as.args.launch)),
        out_text(lib_class_name(row->as.args.lib_class)),
        out_text(coll_fault_name(row->as.fault)),
        known ? out_double(p->time.time_us) : none,
        row->measured_us > 0 ? out_double(row->measured_us) : none,
        out_double(p->error),
        known ? out_text(p->time.choice.algo_name) : none,
        known ? out_text(p->time.choice.proto_name) : none,
        known ? out_text(p->time.limit) : none,
        known ? out_text(p->time.nccl.algo_name) : none,
        known ? out_text(p->time.nccl.proto_name) : none,
        known && left ? out_double(left->time.time_us) : none,
        out_text(row->contradicts ? "busbw" : ""),
    };
    out_row(out, cells);
    free(topo);
}

static int write_rows(const struct request *q, const struct coll_rows *rows,
                      const struct coll_prediction *p, const struct coll_prediction *left,
                      struct err *err)
{
    struct out *out = out_new(row_columns, sizeof row_columns / sizeof *row_columns);
    int bad = out_add(out, OUT_FORMAT_CSV, q->rows, q->overwrite, err);
    for (size_t i = 0; i < rows->nrows && !bad; i++) {
        write_row(out, &rows->rows[i], &p[i], left ? &left[i] : NULL);
    }
    return out_close(out, err) ? -1 : bad;
}

/* ---- machines ---- */

static bool same_parse(const struct coll_row *a, const struct coll_row *b)
{
    return strcmp(a->machine, b->machine) == 0 && a->hosts == b->hosts &&
           a->per_host == b->per_host && a->from_table == b->from_table &&
           a->as.args.launch == b->as.args.launch && a->as.args.lib_class == b->as.args.lib_class &&
           a->as.args.algo == b->as.args.algo && a->as.fault == b->as.fault &&
           a->as.topo.line_GBps == b->as.topo.line_GBps &&
           a->as.topo.scale_up == b->as.topo.scale_up && a->as.topo.fabric == b->as.topo.fabric &&
           a->as.topo.nic_Gbps == b->as.topo.nic_Gbps &&
           a->as.topo.domain_hosts == b->as.topo.domain_hosts;
}

static void note_machines(struct out *out, const struct coll_rows *rows)
{
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct coll_row *row = &rows->rows[i];
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = same_parse(&rows->rows[j], row);
        if (seen) continue;
        char *topo = coll_machine_describe(&row->as);
        out_note(out, "%s, %s%s%s: %s, launch %s, %s%s%s%s", row->machine,
                 row->from_table ? "data/machines.csv" : "by its text",
                 row->as.args.algo >= 0 ? ", " : "", nccl_algo_name(row->as.args.algo), topo,
                 launch_name(row->as.args.launch), lib_class_name(row->as.args.lib_class),
                 row->as.fault ? ", fault " : "", coll_fault_name(row->as.fault),
                 row->as.nics_stated || row->as.topo.hosts == 1 ? "" : ", NICs assumed");
        free(topo);
    }
}

/* ---- commands ---- */

static struct out *open_out(const struct request *q, struct err *err)
{
    struct out *out = out_new(columns, sizeof columns / sizeof *columns);
    out_add_asked(out, q->json, q->csv, q->overwrite, err);
    return out;
}

static void print_scores(struct out *out, const struct request *q, const struct coll_rows *rows,
                         const struct coll_prediction *p)
{
    if (q->machines) note_machines(out, rows);
    note_counts(out, rows);
    print_group(out, "healthy", rows, p, healthy, NULL, bars);
    print_keys(out, "class", rows, p, class_of, of_class);
    print_keys(out, "op", rows, p, op_of, of_op);
    print_keys(out, "bucket", rows, p, bucket_of, of_bucket);
    print_keys(out, "buggy, fault switched on", rows, p, fault_of, of_fault);
    print_group(out, "unclear", rows, p, unclear, NULL, NULL);
}

static void report(const struct request *q, const struct coll_rows *rows,
                   const struct net_const_table *table, struct err *err)
{
    struct coll_given given = {.launch_us = q->launch_s < 0 ? -1 : q->launch_s * 1e6,
                               .alpha_us = q->alpha_s < 0 ? -1 : q->alpha_s * 1e6};
    struct coll_prediction *p = coll_predict(rows, &table->values, &given);
    struct out *out = open_out(q, err);
    if (!err->count) print_scores(out, q, rows, p);
    struct coll_prediction *left = NULL;
    if (!err->count && q->leave_out) {
        left = coll_leave_out(table, rows, &given, q->iterations, err);
        if (left) {
            print_group(out, "left out: healthy", rows, left, healthy, NULL, left_out_bars);
            print_keys(out, "left out: class", rows, left, class_of, of_class);
            print_keys(out, "left out: op", rows, left, op_of, of_op);
        }
    }
    out_close(out, err);
    if (!err->count && q->rows) write_rows(q, rows, p, left, err);
    free(left);
    if (!err->count) check_required(q, rows, p, err);
    free(p);
}

static void fit(const struct request *q, const struct coll_rows *rows,
                struct net_const_table *table, struct err *err)
{
    static const struct coll_given nothing = {-1, -1};
    struct coll_fit_report r;
    if (coll_fit(table, rows, NULL, q->iterations, &r, err)) return;
    struct coll_prediction *p = coll_predict(rows, &table->values, &nothing);
    struct out *out = open_out(q, err);
    if (!err->count) {
        out_note(out, "%zu constants fitted to %zu rows in %zu steps, cost %.1f to %.1f",
                 r.constants, r.rows, r.iterations, r.cost_before, r.cost_after);
        print_group(out, "healthy", rows, p, healthy, NULL, bars);
        print_keys(out, "class", rows, p, class_of, of_class);
    }
    out_close(out, err);
    free(p);
    if (!err->count && q->to) net_const_write(table, &table->values, q->to, err);
}

static int read_request(struct request *q, struct err *err)
{
    if (q->leave_out && strcmp(q->leave_out, "machine") != 0)
        err_add(err, ERR_USAGE, "--leave-out %s: only \"machine\" can be left out", q->leave_out);
    double *m = q->require_median;
    if (q->require && sscanf(q->require, "%lf,%lf,%lf", &m[0], &m[1], &m[2]) != 3)
        err_add(err, ERR_USAGE, "--require %s: three numbers are needed, such as 15,15,5",
                q->require);
    return err->count ? -1 : 0;
}

static void read_and(const struct request *q, const struct opts *opts, bool fitting,
                     struct err *err)
{
    char *shipped = ship_find("data/collectives", "measured", ".csv");
    char **paths = mem_calloc(opts->npositionals + 1, sizeof *paths);
    size_t npaths = 0;
    for (size_t i = 1; i < opts->npositionals; i++)
        paths[npaths++] = mem_strdup(opts->positionals[i]);
    if (!npaths && shipped) paths[npaths++] = mem_strdup(shipped);
    if (!npaths) err_add(err, ERR_FAILED, "the shipped table data/collectives is not found");
    struct net_const_table table = {0};
    struct coll_rows rows = {0};
    if (!err->count && !net_const_read(&table, q->constants, err) &&
        !coll_rows_read(&rows, paths, npaths, err)) {
        if (fitting)
            fit(q, &rows, &table, err);
        else
            report(q, &rows, &table, err);
    }
    coll_rows_release(&rows);
    net_const_release(&table);
    for (size_t i = 0; i < npaths; i++)
        free(paths[i]);
    free(paths);
    free(shipped);
}

static int run(int argc, char **argv, const char *prog, const char *usage, const char *about,
               const struct opts_row *options, bool fitting)
{
    struct request q = {.launch_s = -1, .alpha_s = -1}; /* not given */
    struct opts opts = {0};
    struct err err = ERR_INIT;
    if (opts_parse(&opts, options, &q, argc, argv, &err) == 0) {
        if (opts.help) {
            opts_help(stdout, usage, about, options);
        } else if (!read_request(&q, &err)) {
            read_and(&q, &opts, fitting, &err);
        }
    }
    int status = err.count ? (int)err.code : 0;
    err_print(&err, prog);
    err_release(&err);
    opts_release(&opts);
    return status;
}

int coll_validate_cmd(int argc, char **argv)
{
    return run(argc, argv, "commsim validate", "commsim validate collectives [FILE]... [options]",
               validate_about, validate_options, false);
}

int coll_fit_cmd(int argc, char **argv)
{
    return run(argc, argv, "commsim fit", "commsim fit collectives [FILE]... [options]",
               "Fits the network constants to tables of measured collectives, from their priors; "
               "without a file, to the shipped one.",
               fit_options, true);
}
