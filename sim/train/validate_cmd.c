/* SPDX-License-Identifier: Apache-2.0
 * `commsim validate training`: reads tables, predicts every row, prints scores by bucket and
 * family, and one line per row into a file if asked. */
#include "train/validate_cmd.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/ship.h"
#include "base/units.h"
#include "net/coll_validate_cmd.h"
#include "train/limit.h"
#include "train/rowtext.h"
#include "train/score.h"

struct request {
    const char *rows, *bands, *require, *constants, *json, *csv;
    unsigned engine; /* enum engine */
    bool overwrite, list_words;
    double require_median, require_p90;
};

#define ROW(name_, type_, field, arg_, help_, ...)                                                 \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .arg = (arg_), .help = (help_), __VA_ARGS__                                                \
    }
static const struct opts_row options[] = {
    ROW("rows", OPTS_STRING, rows, "FILE",
        "one line per row: bucket, reason, predicted, measured, error, memory, assumptions",
        .section = "Scores"),
    ROW("step", OPTS_CHOICE, engine, "ENGINE",
        "what predicts: event beside closed, or closed (formulas, the yardstick) alone",
        .value = "event", .choices = engine_names),
    ROW("bands", OPTS_STRING, bands, "FILE",
        "write the error bands that predictions print (shipped as data/bands.csv)"),
    ROW("require", OPTS_STRING, require, "median=M,p90=P",
        "exit with 1 unless all complete rows are within M and P percent"),
    ROW("constants", OPTS_STRING, constants, "FILE", "constants in place of the shipped ones"),
    ROW("list-words", OPTS_FLAG, list_words, NULL, "list the flag words that no pattern knows"),
    ROW("json", OPTS_STRING, json, "FILE", "write the scores as JSON (- is stdout)",
        .section = "Output"),
    ROW("csv", OPTS_STRING, csv, "FILE", "write the scores as CSV (- is stdout)"),
    ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files"),
    {0},
};

/* ---- groups ---- */

static bool is_vtrain(const struct row *row)
{
    return rowtext_has(row->file, "vtrain");
}

static bool complete_y(const struct row *row, const void *arg)
{
    (void)arg;
    return row->complete == COMPLETE_Y;
}

static bool usual_machine(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && row->job.machine == MACHINE_USUAL;
}

static bool dense16(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && !row->job.shape.experts && row->job.precision == PREC_16;
}

static bool dense_narrow(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && !row->job.shape.experts && row->job.precision != PREC_16;
}

static bool moe(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && row->job.shape.experts;
}

static bool assumed(const struct row *row, const void *arg)
{
    (void)arg;
    return row->complete == COMPLETE_ASSUMED && !is_vtrain(row);
}

static bool vtrain_many(const struct row *row, const void *arg)
{
    (void)arg;
    return is_vtrain(row) && row->job.ngpus > row->job.gpus_per_node;
}

static bool vtrain_one(const struct row *row, const void *arg)
{
    (void)arg;
    return is_vtrain(row) && row->job.ngpus <= row->job.gpus_per_node;
}

static bool net_unstated(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && (row->buckets & BUCKET_NET_UNSTATED);
}

static bool from_flops(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && (row->buckets & BUCKET_FROM_FLOPS);
}

static bool few_micro(const struct row *row, const void *arg)
{
    const struct job *job = &row->job;
    return complete_y(row, arg) && job->pp > 1 && job_microbatches(job) * job->vpp < 16 * job->pp;
}

static bool fsdp_nodes(const struct row *row, const void *arg)
{
    const struct job *job = &row->job;
    return complete_y(row, arg) && job->shard >= SHARD_GRAD_OP && job->ngpus > job->gpus_per_node;
}

static bool much_dp(const struct row *row, const void *arg)
{
    const struct job *job = &row->job;
    return complete_y(row, arg) && job->shard < SHARD_GRAD_OP && job->dp * job->cp >= 64;
}

static bool tensor(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && row->job.tp > 1;
}

static bool context(const struct row *row, const void *arg)
{
    return complete_y(row, arg) && row->job.cp > 1;
}

static bool of_framework(const struct row *row, const void *arg)
{
    return row->complete != COMPLETE_NO && !is_vtrain(row) && strcmp(row->framework, arg) == 0;
}

/* Bars: largest median, p90, bias and mean (percent); 0 is none. */
static const struct group {
    const char *name;
    score_member member;
    bool merge;
    double median, p90, bias, mean;
} groups[] = {
    {"all complete", complete_y, true, 4, 13, 2, 0},
    {"all complete, repeats not merged", complete_y, false, 0, 0, 0, 0},
    {"all complete, without the B200-slow machine", usual_machine, true, 0, 0, 0, 0},
    {"dense 16 bit", dense16, true, 3.5, 11, 2, 0},
    {"dense fp8 and fp4", dense_narrow, true, 3.5, 11, 3, 0},
    {"mixture of experts", moe, true, 5, 16, 4, 0},
    {"complete but for assumed inputs", assumed, true, 5, 16, 0, 0},
    {"vtrain, several nodes", vtrain_many, true, 0, 0, 0, 12},
    {"vtrain, one node", vtrain_one, true, 0, 0, 0, 20},
    {"pipelines, m v / p < 16 (part of all complete)", few_micro, true, 0, 0, 0, 0},
    {"FSDP over several nodes (part of all complete)", fsdp_nodes, true, 0, 0, 0, 0},
    {"64 or more dp, no FSDP (part of all complete)", much_dp, true, 0, 0, 0, 0},
    {"tensor parallel (part of all complete)", tensor, true, 0, 0, 0, 0},
    {"context parallel (part of all complete)", context, true, 0, 0, 0, 0},
    {"network not stated (part of all complete)", net_unstated, true, 0, 0, 0, 0},
    {"time derived from FLOP/s (part of all complete)", from_flops, true, 0, 0, 0, 0},
};

/* ---- output ---- */

static const struct out_column columns[] = {
    {"bucket", NULL, -48, 0, OUT_TEXT, NULL, NULL},
    {"rows", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"median", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"p90", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"worst", "%", 7, 0, OUT_DOUBLE, NULL, NULL},
    {"bias", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"mean", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"bar", NULL, -28, 0, OUT_TEXT, NULL, NULL},
    {"closed_median", "%", 7, 1, OUT_DOUBLE, NULL, NULL}, /* from here on with events alone */
    {"closed_p90", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"closed_bias", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
};
enum { BESIDE = 3 }; /* columns of the closed form beside the events */

/* The rows as the engine asked for predicts them, and, beside events, as the closed form does. */
struct scored {
    const struct rows *rows;
    const struct prediction *p;
    const struct prediction *closed; /* NULL: `p` is the closed form's */
};

static void print_score(struct out *out, const char *name, struct score s, struct score closed,
                        const char *bar)
{
    struct out_cell cells[] = {
        out_text(name),         out_uint(s.n),          out_double(s.median),
        out_double(s.p90),      out_double(s.worst),    out_double(s.bias),
        out_double(s.mean),     out_text(bar),          out_double(closed.median),
        out_double(closed.p90), out_double(closed.bias)};
    for (int i = 2; i < 7 && !s.n; i++)
        cells[i] = (struct out_cell){0};
    for (int i = 8; i < 8 + BESIDE && !closed.n; i++)
        cells[i] = (struct out_cell){0};
    out_row(out, cells);
}

/* The closed form's score of a group; empty where it is not beside. */
static struct score beside(const struct scored *all, score_member member, const void *arg,
                           bool merge)
{
    return all->closed ? score_group(all->rows, all->closed, member, arg, merge)
                       : (struct score){0};
}

/* "4 / 13 met", "mean 12 missed", "" where there is no bar. */
static char *bar_text(const struct group *g, struct score s)
{
    bool met = s.n > 0;
    if (g->median > 0) met = met && s.median <= g->median && s.p90 <= g->p90;
    if (g->bias > 0) met = met && fabs(s.bias) <= g->bias;
    if (g->mean > 0) met = met && s.mean <= g->mean;
    const char *word = met ? "met" : "missed";
    if (g->mean > 0) return mem_printf("mean %g: %s", g->mean, word);
    if (!(g->median > 0)) return mem_printf("-");
    if (g->bias > 0) return mem_printf("%g / %g, bias %g: %s", g->median, g->p90, g->bias, word);
    return mem_printf("%g / %g: %s", g->median, g->p90, word);
}

static void print_families(struct out *out, const struct scored *all)
{
    const struct rows *rows = all->rows;
    for (size_t i = 0; i < rows->nrows; i++) {
        const char *name = rows->rows[i].framework;
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = strcmp(rows->rows[j].framework, name) == 0;
        if (seen) continue;
        struct score s = score_group(rows, all->p, of_framework, name, true);
        char *title = mem_printf("framework: %s", name);
        if (s.n) print_score(out, title, s, beside(all, of_framework, name, true), "-");
        free(title);
    }
}

static void print_memory(struct out *out, const struct scored *all)
{
    static const struct {
        const char *name;
        unsigned measures;
        double params;
        const char *without;
        struct group bar;
    } kinds[] = {
        {"memory: allocated, models from 1 B on",
         1 << MEM_ALLOCATED,
         1e9,
         NULL,
         {.median = 4, .p90 = 10}},
        {"memory: allocated, all", 1 << MEM_ALLOCATED, 0, NULL, {0}},
        {"memory: nvidia-smi or reserved, no InternEvo",
         1 << MEM_SMI | 1 << MEM_RESERVED,
         0,
         "InternEvo",
         {.median = 7, .p90 = 15}},
        {"memory: nvidia-smi", 1 << MEM_SMI, 0, NULL, {0}},
        {"memory: reserved", 1 << MEM_RESERVED, 0, NULL, {0}},
        {"memory: other or unclear figures", 1 << MEM_OTHER, 0, NULL, {0}},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct score s =
            score_memory(all->rows, all->p, kinds[i].measures, kinds[i].params, kinds[i].without);
        char *bar = bar_text(&kinds[i].bar, s);
        print_score(out, kinds[i].name, s, (struct score){0}, bar);
        free(bar);
    }
}

/* Rows that are not scored, by reason; "" where it is scored. Freed by the caller. */
static char *reason_of(const struct row *row)
{
    if (row->reason) return mem_strdup(row->reason);
    if (!row->status_ok) return mem_printf("status:%s", row->status);
    if (row->measured_s <= 0) return mem_strdup("no-time");
    return rows_bucket_names(row->buckets & BUCKET_APART);
}

static void print_reasons(struct out *out, const struct rows *rows)
{
    char **reasons = mem_calloc(rows->nrows, sizeof *reasons);
    size_t *counts = mem_calloc(rows->nrows, sizeof *counts), n = 0, scored = 0;
    for (size_t i = 0; i < rows->nrows; i++) {
        char *reason = reason_of(&rows->rows[i]);
        size_t k = 0;
        while (k < n && strcmp(reasons[k], reason) != 0)
            k++;
        if (!*reason) scored++;
        if (!*reason || k < n) {
            free(reason);
        } else {
            reasons[n++] = reason;
        }
        if (k < n && counts) counts[k]++;
    }
    out_note(out, "%zu rows read, %zu scored; not scored, by reason:", rows->nrows, scored);
    for (size_t k = 0; k < n; k++) {
        out_note(out, "  %5zu %s", counts[k], reasons[k]);
        free(reasons[k]);
    }
    free(reasons);
    free(counts);
}

static void print_facts(struct out *out, const struct rows *rows, const struct prediction *p,
                        const struct const_table *table, bool list_words)
{
    struct pairs pairs = score_pairs(rows, p);
    struct confusion c = score_fits(rows, p);
    size_t right = c.fits_right + c.oom_right, all = right + c.fits_wrong + c.oom_wrong, fitted = 0;
    size_t most = c.fits_right + c.fits_wrong;
    if (most < c.oom_right + c.oom_wrong) most = c.oom_right + c.oom_wrong;
    for (size_t i = 0; i < table->list.nrows; i++)
        fitted += table->list.rows[i].fitted;
    if (pairs.n) {
        out_note(out,
                 "same-job pairs that differ by more than 5 %%: %zu of %zu ordered rightly, %.0f %%"
                 " (bar 88 %%)",
                 pairs.right, pairs.n, 100. * (double)pairs.right / (double)pairs.n);
    }
    if (all) {
        out_note(out,
                 "fits or not: %zu of %zu right, %.0f %% (bar 89 %%; guessing the majority: "
                 "%.0f %%); ran and fits %zu, ran and refused %zu, out of memory and refused "
                 "%zu, out of memory and fits %zu",
                 right, all, 100. * (double)right / (double)all, 100. * (double)most / (double)all,
                 c.fits_right, c.fits_wrong, c.oom_right, c.oom_wrong);
    }
    out_note(out, "%zu constants fitted of %zu (bar 120)", fitted, table->list.nrows);
    out_note(out, "%zu flag words, %zu that no pattern knows, of %zu kinds", rows->nwords,
             rows->nunmatched, rows->nunmatched_kinds);
    for (size_t i = 0; i < rows->nunmatched_kinds && list_words; i++) {
        out_note(out, "  %s", rows->unmatched[i]);
    }
    print_reasons(out, rows);
}

/* ---- one line per row ---- */

static const struct out_column row_columns[] = {
    {"file", NULL, -20, 0, OUT_TEXT, 0, 0},
    {"id", NULL, -30, 0, OUT_TEXT, 0, 0},
    {"bucket", NULL, -20, 0, OUT_TEXT, 0, 0},
    {"scored", NULL, 6, 0, OUT_BOOL, 0, 0},
    {"reason", NULL, -20, 0, OUT_TEXT, 0, 0},
    {"predicted", "s", 12, 6, OUT_DOUBLE, 0, 0},
    {"measured", "s", 12, 6, OUT_DOUBLE, 0, 0},
    {"error", NULL, 9, 4, OUT_DOUBLE, 0, 0},
    {"predicted_memory", "GiB", 9, 3, OUT_DOUBLE, 0, 0},
    {"measured_memory", "GiB", 9, 3, OUT_DOUBLE, 0, 0},
    {"memory_measure", NULL, -10, 0, OUT_TEXT, 0, 0},
    {"fits", NULL, 5, 0, OUT_BOOL, 0, 0},
    {"features", NULL, -60, 0, OUT_TEXT, 0, 0},
    {"class", NULL, -8, 0, OUT_TEXT, 0, 0},
    {"network", "GB/s", 9, 3, OUT_DOUBLE, 0, 0},
    {"domain", NULL, 6, 0, OUT_UINT, 0, 0},
    {"assumed", NULL, -40, 0, OUT_TEXT, 0, 0},
    {"closed_predicted", "s", 12, 6, OUT_DOUBLE, 0, 0},
    {"parts", "s", -80, 0, OUT_TEXT, 0, 0},
};

/* What the job does, as the prediction sees it. Freed by the caller. */
static char *features_of(const struct job *job)
{
    static const char *const attention[] = {"fa1", "fa2", "cudnn", "unfused"};
    static const char *const graphs[] = {"none", "partial", "full"};
    return mem_printf(
        "attention=%s graphs=%s tp-overlap=%d dp-overlap=%d p2p-overlap=%d "
        "ep-overlap=%d ep-dedup=%d unfused-norm=%d recompute=%d modules=%u bubble=%.3g "
        "grad=%gB reduce=%gB fp8-params=%d rowwise=%d network=%s",
        attention[job->attn], graphs[job->graphs], job->tp_overlap, job->dp_overlap,
        job->p2p_overlap, job->ep_overlap, job->ep_dedup, job->unfused_norm, (int)job->recompute,
        job->rc_modules, job->zb, job->grad_B, job->reduce_B, job->fp8_params, job->fp8_rowwise,
        topo_fabric_name(job->fabric));
}

/* "gemm=1.2 attention=0.3 ..": where the time of the slowest stage goes. Freed by the caller. */
static char *parts_of(const struct step *step)
{
    char *all = mem_strdup("");
    for (int k = 0; k < NPARTS; k++) {
        if (!(step->part_s[k] > 0)) continue;
        char *more = mem_printf("%s%s%s=%.4g", all, *all ? " " : "",
                                step_part_key((enum step_part)k), step->part_s[k]);
        free(all);
        all = more;
    }
    return all;
}

static void write_row(struct out *out, const struct scored *all, size_t i)
{
    const struct row *row = &all->rows->rows[i];
    const struct prediction *p = &all->p[i];
    static const char *const measures[] = {"",           "allocated", "reserved",
                                           "nvidia-smi", "oom",       "other"};
    char *reason = reason_of(row), *bucket = rows_bucket_names(row->buckets);
    char *features = features_of(&row->job), *parts = parts_of(&p->step);
    const char *slash = strrchr(row->file, '/');
    bool job = !row->reason;
    struct out_cell none = {0};
    struct out_cell cells[] = {
        out_text(slash ? slash + 1 : row->file),
        out_text(row->id),
        out_text(bucket),
        out_bool(score_counts(row)),
        out_text(reason),
        job ? out_double(p->time_s) : none,
        row->measured_s > 0 ? out_double(row->measured_s) : none,
        out_double(p->error),
        job ? out_double(p->memory_GiB) : none,
        row->measured_GiB > 0 ? out_double(row->measured_GiB) : none,
        out_text(measures[row->mem]),
        job ? out_bool(p->fits) : none,
        job ? out_text(features) : none,
        job ? out_text(fw_class_name(row->job.fw)) : none,
        job ? out_double(row->job.nic_Bps / 1e9) : none,
        job ? out_uint(row->job.domain) : none,
        out_text(row->assumed ? row->assumed : ""),
        job && all->closed ? out_double(all->closed[i].time_s) : none,
        out_text(parts),
    };
    out_row(out, cells);
    free(reason);
    free(bucket);
    free(features);
    free(parts);
}

static int write_rows(const struct request *q, const struct scored *all, struct err *err)
{
    struct out *out = out_new(row_columns, sizeof row_columns / sizeof *row_columns);
    int bad = out_add(out, OUT_FORMAT_CSV, q->rows, q->overwrite, err);
    for (size_t i = 0; i < all->rows->nrows && !bad; i++) {
        write_row(out, all, i);
    }
    return out_close(out, err) ? -1 : bad;
}

/* ---- error bands ---- */

struct band_key {
    unsigned kind;
    enum fw_class fw;
};

static bool in_band(const struct row *row, const void *arg)
{
    const struct band_key *key = arg;
    return row->complete == COMPLETE_Y && limit_kind(&row->job) == key->kind &&
           row->job.fw == key->fw;
}

static const struct out_column band_columns[] = {
    {"kind", NULL, -20, 0, OUT_TEXT, 0, 0},    {"class", NULL, -8, 0, OUT_TEXT, 0, 0},
    {"rows", NULL, 6, 0, OUT_UINT, 0, 0},      {"median", "%", 7, 1, OUT_DOUBLE, 0, 0},
    {"p90", "%", 7, 1, OUT_DOUBLE, 0, 0},      {"accelerators", NULL, -30, 0, OUT_TEXT, 0, 0},
    {"most_gpus", NULL, 6, 0, OUT_UINT, 0, 0}, {"largest_model", "B", 7, 1, OUT_DOUBLE, 0, 0},
};

/* What the runs of a band span. */
struct span {
    char *accels;  /* their names, by spaces; freed by the caller */
    uint64_t gpus; /* most */
    double params; /* most */
};

static struct span span_of(const struct rows *rows, const struct band_key *key)
{
    struct span span = {.accels = mem_strdup("")};
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *row = &rows->rows[i];
        if (!score_counts(row) || !in_band(row, key)) continue;
        if (!limit_holds_name(span.accels, row->job.dev.name)) {
            char *longer =
                mem_printf("%s%s%s", span.accels, *span.accels ? " " : "", row->job.dev.name);
            free(span.accels);
            span.accels = longer;
        }
        if (row->job.ngpus > span.gpus) span.gpus = row->job.ngpus;
        span.params = fmax(span.params, job_params(&row->job).total);
    }
    return span;
}

static int write_bands(const struct request *q, const struct rows *rows, const struct prediction *p,
                       struct err *err)
{
    struct out *out = out_new(band_columns, sizeof band_columns / sizeof *band_columns);
    int bad = out_add(out, OUT_FORMAT_CSV, q->bands, q->overwrite, err);
    for (int i = 0; i < NKINDS * NFW_CLASSES && !bad; i++) {
        struct band_key key = {(unsigned)i / NFW_CLASSES, (enum fw_class)(i % NFW_CLASSES)};
        struct score s = score_group(rows, p, in_band, &key, true);
        struct span span = span_of(rows, &key);
        struct out_cell cells[] = {out_text(limit_kind_name(key.kind)),
                                   out_text(fw_class_name(key.fw)),
                                   out_uint(s.n),
                                   out_double(round(s.median * 10) / 10),
                                   out_double(round(s.p90 * 10) / 10),
                                   out_text(span.accels),
                                   out_uint(span.gpus),
                                   out_double(ceil(span.params / 1e8) / 10)};
        if (s.n >= 3) out_row(out, cells); /* fewer say nothing */
        free(span.accels);
    }
    return out_close(out, err) ? -1 : bad;
}

/* ---- the command ---- */

/* "median=4,p90=13" */
static int read_require(struct request *q, struct err *err)
{
    q->require_median = q->require_p90 = INFINITY;
    char *text = q->require ? mem_strdup(q->require) : NULL, *save = NULL;
    int bad = 0;
    for (char *w = text ? strtok_r(text, ",", &save) : NULL; w; w = strtok_r(NULL, ",", &save)) {
        double *to = strncmp(w, "median=", 7) == 0 ? &q->require_median
                     : strncmp(w, "p90=", 4) == 0  ? &q->require_p90
                                                   : NULL;
        if (!to) {
            bad = err_add(err, ERR_USAGE,
                          "--require: \"%s\" is neither median=PERCENT nor "
                          "p90=PERCENT",
                          w);
        } else if (units_read_double("--require", strchr(w, '=') + 1, to, err)) {
            bad = -1;
        }
    }
    free(text);
    return bad;
}

/* All groups; --require is of the first. */
static void print_groups(const struct request *q, const struct scored *all, struct out *out,
                         struct err *err)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const struct group *g = &groups[i];
        struct score s = score_group(all->rows, all->p, g->member, NULL, g->merge);
        char *bar = bar_text(g, s);
        print_score(out, g->name, s, beside(all, g->member, NULL, g->merge), bar);
        free(bar);
        if (i == 0 && q->require && !s.n) {
            err_add(err, ERR_FAILED, "--require: no complete row could be scored");
        } else if (i == 0 && (!(s.median <= q->require_median) || !(s.p90 <= q->require_p90))) {
            err_add(err, ERR_FAILED,
                    "--require: all complete rows have median %.2f %% and p90 %.2f %%", s.median,
                    s.p90);
        }
    }
}

static int report(const struct request *q, const struct scored *all,
                  const struct const_table *table, struct err *err)
{
    size_t ncolumns = sizeof columns / sizeof *columns - (all->closed ? 0 : BESIDE);
    struct out *out = out_new(columns, ncolumns);
    int bad = out_add_asked(out, q->json, q->csv, q->overwrite, err);
    if (!bad) {
        out_note(out, "error = predicted / measured - 1 of the step time; repeats of identical "
                      "inputs count once, with their median");
        out_note(out, "%s",
                 all->closed ? "predicted by events, as the bare command does (--step event); "
                               "closed_: beside it by formulas (--step closed)"
                             : "predicted by formulas (--step closed), which the bare command "
                               "takes only if told");
        print_facts(out, all->rows, all->p, table, q->list_words);
        print_groups(q, all, out, err);
        print_memory(out, all);
        print_families(out, all);
    }
    if (out_close(out, err)) bad = -1;
    if (!bad && q->rows) bad = write_rows(q, all, err);
    if (!bad && q->bands) bad = write_bands(q, all->rows, all->p, err);
    return bad || err->count ? -1 : 0;
}

/* Predictions of an engine with its constants, --constants being those of the engine asked for. */
static struct prediction *predict(const struct request *q, enum engine engine,
                                  const struct rows *rows, struct const_table *table,
                                  struct err *err)
{
    if (const_read(table, engine, engine == q->engine ? q->constants : NULL, err)) return NULL;
    struct runner *runner = score_runner(rows, engine, err);
    struct prediction *p = runner ? score_predict(rows, runner, &table->values, err) : NULL;
    runner_free(runner);
    return p;
}

static int predict_and_report(const struct request *q, const struct rows *rows, struct err *err)
{
    struct const_table table = {0}, yardstick = {0};
    struct prediction *p = predict(q, (enum engine)q->engine, rows, &table, err);
    struct prediction *closed =
        p && q->engine == ENGINE_EVENT ? predict(q, ENGINE_CLOSED, rows, &yardstick, err) : NULL;
    struct scored all = {rows, p, closed};
    int bad = err->count ? -1 : report(q, &all, &table, err);
    const_release(&table);
    const_release(&yardstick);
    free(p);
    free(closed);
    return bad;
}

static int read_and_report(struct request *q, const struct opts *opts, struct err *err)
{
    if (opts->npositionals < 1 || strcmp(opts->positionals[0], "training") != 0) {
        return err_add(err, ERR_USAGE,
                       "validate needs the word training or collectives, and may be given files");
    }
    if (read_require(q, err)) return -1;
    char *shipped = ship_folder("data/training");
    char **paths = mem_calloc(opts->npositionals + 1, sizeof *paths);
    size_t npaths = opts->npositionals - 1;
    for (size_t i = 0; i < npaths; i++)
        paths[i] = mem_strdup(opts->positionals[i + 1]);
    if (!npaths && shipped) paths[npaths++] = mem_strdup(shipped);
    struct rows rows = {0};
    int bad = rows_read(&rows, paths, npaths, err);
    if (!bad) bad = score_any(&rows, q->require == NULL, err);
    if (!bad) bad = predict_and_report(q, &rows, err);
    rows_release(&rows);
    for (size_t i = 0; i < npaths; i++)
        free(paths[i]);
    free(paths);
    free(shipped);
    return bad;
}

int validate_cmd(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "collectives") == 0) return coll_validate_cmd(argc, argv);
    struct request q = {0};
    struct opts opts = {0};
    struct err err = ERR_INIT;
    if (opts_parse(&opts, options, &q, argc, argv, &err) == 0) {
        if (opts.help) {
            opts_help(
                stdout,
                "commsim validate training [FILE|FOLDER]... [options]\n"
                "       commsim validate collectives [FILE]... [options]",
                "Predicts the step time and memory of published runs, or the times of published "
                "collectives, and scores them. Without a file, the shipped tables. The options "
                "below are those of training; commsim validate collectives --help has the others.",
                options);
        } else {
            read_and_report(&q, &opts, &err);
        }
    }
    int status = err.count ? (int)err.code : 0;
    err_print(&err, "commsim validate");
    err_release(&err);
    opts_release(&opts);
    return status;
}
