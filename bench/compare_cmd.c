/* SPDX-License-Identifier: Apache-2.0
 * `collbench compare`: two records, row by row. A row is slower only if chance is ruled out (Holm's
 * correction over all rows) and the change passes the threshold; "no difference" is claimed only
 * where a change of that size would have shown. There is no verdict over the mean of all rows,
 * which hides a row that got worse behind others. */
#include "bench/compare_cmd.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/units.h"
#include "bench/record.h"
#include "bench/stats.h"

static const double ALPHA = 0.05, FACT_CHANGE = 0.2;
static const double CLASS_GAP = 2; /* between launches of near and of far cores */

struct request {
    double threshold;
    const char *json, *csv;
    bool overwrite;
};

#define ROW(name_, letter_, type_, field, arg_, help_, ...)                                        \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct request, field), .arg = (arg_), .help = (help_), __VA_ARGS__     \
    }

static const struct opts_row rows[] = {
    ROW("threshold", 't', OPTS_FRACTION, threshold, "SHARE",
        "change of the median that matters: 5% or 0.05", .value = "5%", .section = "Verdict"),
    ROW("json", 'J', OPTS_STRING, json, "FILE",
        "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("csv", 0, OPTS_STRING, csv, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, "files may exist already"),
    {.name = NULL},
};

static const char about[] =
    "Compares two records that --json wrote: for every row that both have, the change of the "
    "median from A to B with its 95 % interval, from the medians of the launches (Welch) if both "
    "have two or more, else from a block bootstrap of the samples. slower, faster: no change is "
    "ruled out at 5 % over all rows together (Holm) and the change passes the threshold. no "
    "difference: the change is within the threshold, and so is half of the interval, and samples "
    "of "
    "single launches do not scatter six times as much in one run as in the other. Else "
    "inconclusive. Launches whose cores are near each other, and launches whose cores are far (the "
    "way of a cache line tells), are compared only with their like. Where a cache line took r "
    "times as long in one run as in the other, a row of single launches must change by more than "
    "the factor r, up or down, since all that travels may do so. Runs measured in different ways "
    "(cadence, cold caches, beside a library) are refused. What single launches of these two runs "
    "differ by as a rule is in the intervals of such rows, so on most machines single launches are "
    "inconclusive below 10 %; 15 launches on both sides decide at 5 %. Exit status 1 if a row is "
    "slower.";

/* ---- rows ---- */

/* Rows needed to see how single launches scatter; how heavy the tails of that are taken to be; a
 * normal distribution's standard deviation / median absolute deviation. */
enum { SCATTER_ROWS = 8, SCATTER_DOF = 4 };
#define MAD_SD 1.4826
enum { SPREAD_FACTOR = 6 };
#define SPREAD_FLOOR 0.002

enum verdict { UNKNOWN, SLOWER, FASTER, SAME, INCONCLUSIVE, ONLY_A, ONLY_B, NVERDICTS };

static const char *const verdicts[NVERDICTS] = {
    "unknown", "slower", "faster", "no difference", "inconclusive", "only in A", "only in B",
};

enum { A, B };

struct pair {
    const struct record_series *sides[2]; /* NULL: not in that record */
    struct estimate medians[2], ratio;
    size_t index;     /* in order of the files */
    double explained; /* the ratio nearest to the measured one that the machine explains; 1: none */
    double p, p_holm; /* of that ratio; NaN: no test */
    enum verdict verdict;
};

struct comparison {
    double threshold; /* a share */
    struct record records[2];
    double scatter;    /* between single launches: see launch_scatter */
    double ping_ratio; /* of a cache line's way, B / A; 1: not known, or much the same */
    double *bounds_us; /* .. at which launches fall into another class of cores, ascending */
    unsigned nbounds;
    struct pair *pairs;
    size_t count, cap;
    size_t counts[NVERDICTS];
};

/* The one series of `record` that is the same but for its algorithm; NULL if there are several. */
static const struct record_series *only_one(const struct record *record,
                                            const struct record_series *key)
{
    const struct record_series *found = NULL;
    for (size_t i = 0; i < record->count; i++) {
        if (!record_same(&record->series[i], key, true)) continue;
        if (found) return NULL;
        found = &record->series[i];
    }
    return found;
}

/* The series of records[to] to set against `s` of the other record: the same, or, where each record
 * has one algorithm (the choice of --algo auto may have changed), the one that is there. */
static const struct record_series *partner(const struct comparison *c, int to,
                                           const struct record_series *s)
{
    const struct record *record = &c->records[to];
    for (size_t i = 0; i < record->count; i++)
        if (record_same(&record->series[i], s, false)) return &record->series[i];
    return only_one(&c->records[1 - to], s) ? only_one(record, s) : NULL;
}

/* The median and the class of each launch; its lists are freed by the caller. */
static struct launches launches_of(const struct comparison *c, const struct record_series *s)
{
    double *medians = mem_calloc(s->nlaunches, sizeof *medians);
    unsigned *classes = mem_calloc(s->nlaunches, sizeof *classes);
    for (size_t i = 0; i < s->nlaunches; i++) {
        medians[i] = record_median(&s->launches[i]);
        while (classes[i] < c->nbounds && s->launches[i].ping_us >= c->bounds_us[classes[i]])
            classes[i]++;
    }
    return (struct launches){medians, classes, s->nlaunches};
}

/* Launch against launch, in classes if there are several. */
static void compare_launches(const struct comparison *c, struct pair *pair)
{
    struct launches sides[2];
    for (int side = A; side <= B; side++)
        sides[side] = launches_of(c, pair->sides[side]);
    if (c->nbounds == 0) {
        pair->ratio = estimate_quotient(&pair->medians[A], &pair->medians[B]);
    } else {
        double value;
        pair->ratio = estimate_launch_ratio_within(&sides[A], &sides[B], c->nbounds + 1, &value);
        if (value > 0) { /* as they would be with the same share of near and far */
            pair->medians[A].value = value;
            pair->medians[B].value = value * pair->ratio.value;
        }
    }
    for (int side = A; side <= B; side++) {
        free((double *)sides[side].medians);
        free((unsigned *)sides[side].classes);
    }
}

/* How much longer a cache line was on its way in one run than in the other, beside the row if that
 * is known, else at the start of the run; 1 if by less than a fifth. */
static double apart(const struct comparison *c, const struct pair *pair)
{
    const struct record_series *s = pair->sides[A], *t = pair->sides[B];
    double a = s->nlaunches ? s->launches[0].ping_us : NAN;
    double b = t->nlaunches ? t->launches[0].ping_us : NAN;
    double r = a > 0 && b > 0 ? fmax(a, b) / fmin(a, b) : fmax(c->ping_ratio, 1 / c->ping_ratio);
    return r > 1 + FACT_CHANGE ? r : 1;
}

/* How far samples lie from their median as a rule: the median of |log(sample / median)|, at least
 * SPREAD_FLOOR, since a clock's steps alone make some. */
static double spread_of(const struct record_launch *launch)
{
    double *values = mem_calloc(launch->count, sizeof *values);
    double median = record_median(launch);
    for (size_t i = 0; i < launch->count; i++)
        values[i] = fabs(log(launch->us[i] / median));
    double spread = fmax(stats_median(values, launch->count), SPREAD_FLOOR);
    free(values);
    return spread;
}

/* True when the samples of one run scatter many times as much as the other's: then something else
 * went on, and equal medians say little. Identical runs differed by up to 5.7 on the development
 * machine (600 pairs of rows). */
static bool unlike(const struct pair *pair)
{
    const struct record_series *s = pair->sides[A], *t = pair->sides[B];
    if (!s->nlaunches || !t->nlaunches || !s->launches[0].count || !t->launches[0].count)
        return false;
    double a = spread_of(&s->launches[0]), b = spread_of(&t->launches[0]);
    return fmax(a, b) > SPREAD_FACTOR * fmin(a, b);
}

/* One launch against one. What another way of a cache line can explain, by its factor up or down,
 * is no change. */
static void compare_samples(const struct comparison *c, struct pair *pair)
{
    pair->ratio = estimate_quotient(&pair->medians[A], &pair->medians[B]);
    double r = apart(c, pair);
    pair->explained = fmin(fmax(pair->ratio.value, 1 / r), r);
}

static void add_pair(struct comparison *c, const struct record_series *a,
                     const struct record_series *b)
{
    const struct estimate none = {NAN, NAN, NAN, NAN, NAN, INTERVAL_NONE};
    MEM_GROW(c->pairs, c->count, c->cap);
    struct pair *pair = &c->pairs[c->count++];
    *pair = (struct pair){.sides = {a, b},
                          .index = c->count,
                          .medians = {none, none},
                          .ratio = none,
                          .explained = 1,
                          .p = NAN,
                          .p_holm = NAN};
    bool by_launches = a && b && a->nlaunches > 1 && b->nlaunches > 1;
    if (a) pair->medians[A] = record_estimate(a, by_launches);
    if (b) pair->medians[B] = record_estimate(b, by_launches);
    if (!a || !b) {
        pair->verdict = a ? ONLY_A : ONLY_B;
        return;
    }
    if (by_launches)
        compare_launches(c, pair);
    else
        compare_samples(c, pair);
    pair->p = estimate_p(&pair->ratio, pair->explained);
}

/* What single launches differ by beyond their samples: the median absolute deviation of the
 * logarithms of all ratios from their median, less what the samples explain. Most rows are taken to
 * have changed alike, if at all; a row that changed by itself hardly shows in it. */
static double launch_scatter(const struct comparison *c)
{
    double *logs = mem_calloc(c->count, sizeof *logs),
           *squares = mem_calloc(c->count, sizeof *logs);
    size_t n = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (c->pairs[i].ratio.method != INTERVAL_BLOCKS) continue;
        logs[n] = log(c->pairs[i].ratio.value);
        squares[n++] = c->pairs[i].ratio.se_log * c->pairs[i].ratio.se_log;
    }
    double scatter = 0;
    if (n >= SCATTER_ROWS) {
        double noise = stats_median(squares, n), middle = stats_median(logs, n);
        for (size_t i = 0; i < n; i++)
            logs[i] = fabs(logs[i] - middle);
        double mad = MAD_SD * stats_median(logs, n);
        scatter = sqrt(fmax(0, mad * mad - noise));
    }
    free(logs);
    free(squares);
    return scatter;
}

static void widen(struct comparison *c)
{
    c->scatter = launch_scatter(c);
    for (size_t i = 0; i < c->count; i++) {
        struct pair *pair = &c->pairs[i];
        if (pair->ratio.method != INTERVAL_BLOCKS) continue;
        struct estimate tails = estimate_widened(&pair->ratio, c->scatter, SCATTER_DOF);
        pair->p = estimate_p(&tails, pair->explained);
        pair->ratio = estimate_widened(&pair->ratio, c->scatter, (double)c->count);
    }
}

static void match(struct comparison *c)
{
    const struct record *a = &c->records[A], *b = &c->records[B];
    for (size_t i = 0; i < a->count; i++)
        add_pair(c, &a->series[i], partner(c, B, &a->series[i]));
    for (size_t i = 0; i < b->count; i++)
        if (!partner(c, A, &b->series[i])) add_pair(c, NULL, &b->series[i]);
}

/* ---- verdicts ---- */

static int by_p(const void *a, const void *b)
{
    const struct pair *x = *(struct pair *const *)a, *y = *(struct pair *const *)b;
    if (x->p != y->p) return x->p < y->p ? -1 : 1;
    return (x > y) - (x < y);
}

/* Holm ("A simple sequentially rejective multiple test procedure", 1979): the i-th smallest of m p
 * values, from 0, times m - i, at least the one before, at most 1. */
static void correct(struct comparison *c)
{
    struct pair **order = mem_calloc(c->count, sizeof(struct pair *));
    size_t m = 0;
    for (size_t i = 0; i < c->count; i++)
        if (!isnan(c->pairs[i].p)) order[m++] = &c->pairs[i];
    qsort(order, m, sizeof *order, by_p);
    double before = 0;
    for (size_t i = 0; i < m; i++)
        before = order[i]->p_holm = fmin(1, fmax(before, order[i]->p * (double)(m - i)));
    free(order);
}

static enum verdict judge(const struct comparison *c, const struct pair *pair)
{
    if (!pair->sides[A] || !pair->sides[B]) return pair->verdict;
    if (isnan(pair->p)) return INCONCLUSIVE;
    if (fabs(pair->ratio.value - 1) <= c->threshold) {
        bool narrow = estimate_half_width(&pair->ratio) <= c->threshold;
        bool alike = pair->ratio.method != INTERVAL_BLOCKS || !unlike(pair);
        return narrow && alike ? SAME : INCONCLUSIVE;
    }
    double change = pair->ratio.value / pair->explained - 1; /* beyond what the machine explains */
    if (fabs(change) <= c->threshold || pair->p_holm >= ALPHA) return INCONCLUSIVE;
    return change > 0 ? SLOWER : FASTER;
}

/* ---- the machines ---- */

/* Runs that were measured in different ways cannot be compared. */
static int check_ways(const struct comparison *c, struct err *err)
{
    static const struct {
        const char *key, *what;
    } ways[] = {
        {"cadence", "the cadence is"},
        {"cold", "flushing the caches (--cold) is"},
        {"compared_with", "what the operation was compared with, and so how samples begin, is"},
        {"over_ranks", "the value over the ranks (--average) is"},
    };
    int bad = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char *texts[2] = {NULL, NULL};
        for (int side = A; side <= B; side++) {
            const json_t *value = json_object_get(c->records[side].meta, ways[i].key);
            if (value) texts[side] = json_dumps(value, JSON_ENCODE_ANY);
        }
        if (texts[A] && texts[B] && strcmp(texts[A], texts[B]) != 0) {
            bad = err_add(err, ERR_USAGE, "%s %s in A and %s in B: measure both in the same way",
                          ways[i].what, texts[A], texts[B]);
        }
        free(texts[A]);
        free(texts[B]);
    }
    return bad;
}

/* Says where facts of the runs differ: texts and counts at all, times by more than a fifth. */
static void note_facts(const struct comparison *c, struct out *out)
{
    static const struct {
        const char *key, *what;
    } facts[] = {
        {"program", "program"},
        {"processor", "processor"},
        {"machine", "architecture"},
        {"cores", "cores"},
        {"system_release", "kernel"},
        {"kernels", "kernels"},
        {"ranks_as", "ranks run as"},
        {"bind", "binding"},
        {"barrier_s", "barrier"},
        {"clock_cost_s", "reading of the clock"},
        {"ping_s", "cache line from rank 0 to 1"},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        char *texts[2] = {NULL, NULL}, time[UNITS_TEXT];
        const json_t *values[2];
        for (int side = A; side <= B; side++) {
            const json_t *value = json_object_get(c->records[side].meta, facts[i].key);
            values[side] = value;
            if (json_is_string(value)) texts[side] = mem_strdup(json_string_value(value));
            if (json_is_integer(value))
                texts[side] = mem_printf("%lld", (long long)json_integer_value(value));
            if (json_is_real(value))
                texts[side] = mem_strdup(units_time(time, json_real_value(value)));
        }
        double a = json_number_value(values[A]), b = json_number_value(values[B]);
        bool near = fabs(a - b) <= FACT_CHANGE * fmin(a, b);
        bool same = json_is_real(values[A]) ? near : json_equal(values[A], values[B]);
        if (texts[A] && texts[B] && !same)
            out_note(out, "%s: %s in A, %s in B", facts[i].what, texts[A], texts[B]);
        free(texts[A]);
        free(texts[B]);
    }
    for (int side = A; side <= B; side++) {
        if (c->records[side].failed)
            out_note(out, "%s: the run FAILED or its data were wrong", side == A ? "A" : "B");
    }
}

/* How much longer a cache line is on its way in B than in A, if by a fifth at least; else 1. */
static double ping_ratio(const struct comparison *c)
{
    double a = json_number_value(json_object_get(c->records[A].meta, "ping_s"));
    double b = json_number_value(json_object_get(c->records[B].meta, "ping_s"));
    bool known = a > 0 && b > 0, apart = fabs(a - b) > FACT_CHANGE * fmin(a, b);
    return known && apart ? b / a : 1;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The ways of a cache line of all launches that are one of several, ascending, freed by the caller;
 * NULL if one of them is not known. */
static double *all_pings(const struct comparison *c, size_t *count)
{
    double *pings = NULL;
    size_t cap = 0;
    *count = 0;
    for (int side = A; side <= B; side++) {
        for (size_t i = 0; i < c->records[side].count; i++) {
            const struct record_series *s = &c->records[side].series[i];
            for (size_t k = 0; k < s->nlaunches && s->nlaunches > 1; k++) {
                MEM_GROW(pings, *count, cap);
                pings[(*count)++] = s->launches[k].ping_us;
                if (s->launches[k].ping_us > 0) continue;
                free(pings);
                return NULL;
            }
        }
    }
    if (pings) qsort(pings, *count, sizeof *pings, ascending);
    return pings;
}

/* Launches on cores that share a cache and on cores that do not are two classes: where the next
 * larger way of a cache line is CLASS_GAP times as long, there is a bound between. */
static void find_classes(struct comparison *c)
{
    size_t count, cap = 0;
    double *pings = all_pings(c, &count);
    for (size_t i = 1; pings && i < count; i++) {
        if (pings[i] < CLASS_GAP * pings[i - 1]) continue;
        MEM_GROW(c->bounds_us, c->nbounds, cap);
        c->bounds_us[c->nbounds++] = sqrt(pings[i - 1] * pings[i]);
    }
    free(pings);
}

/* ---- output ---- */

static const struct out_column columns[] = {
    {"collective", NULL, 14, 0, OUT_TEXT, NULL, NULL},
    {"nranks", NULL, 6, 0, OUT_UINT, "ranks", NULL},
    {"size", "B", 12, 0, OUT_UINT, NULL, NULL},
    {"type", NULL, 8, 0, OUT_TEXT, NULL, NULL},
    {"redop", NULL, 6, 0, OUT_TEXT, NULL, NULL},
    {"root", NULL, 4, 0, OUT_INT, NULL, NULL},
    {"algo", NULL, 14, 0, OUT_TEXT, NULL, NULL},
    {"buffers", NULL, 8, 0, OUT_TEXT, NULL, NULL},
    {"placement", NULL, 12, 0, OUT_TEXT, NULL, NULL},
    {"median_A", "us", 10, 2, OUT_DOUBLE, "A", NULL},
    {"median_B", "us", 10, 2, OUT_DOUBLE, "B", NULL},
    {"change", "%", 7, 2, OUT_DOUBLE, NULL, NULL},
    {"low", "%", 7, 2, OUT_DOUBLE, NULL, NULL},
    {"high", "%", 7, 2, OUT_DOUBLE, NULL, NULL},
    {"verdict", NULL, 13, 0, OUT_TEXT, NULL, NULL},
    {"series", NULL, 0, 0, OUT_TEXT, NULL, NULL}, /* from here on hidden in text */
    {"source", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"algo_B", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"transport_A", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"transport_B", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"method", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"launches_A", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"launches_B", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"p", NULL, 0, 6, OUT_DOUBLE, NULL, NULL},
    {"p_holm", NULL, 0, 6, OUT_DOUBLE, NULL, NULL},
};

static void print_row(struct out *out, const struct pair *pair)
{
    const struct record_series *a = pair->sides[A], *b = pair->sides[B], *s = a ? a : b;
    bool moved = a && b && strcmp(a->algo, b->algo) != 0;
    char *algo = moved ? mem_printf("%s>%s", a->algo, b->algo) : mem_strdup(s->algo);
    const struct estimate *ratio = &pair->ratio;
    struct out_cell none = {0};
    out_row(out, (struct out_cell[]){
                     out_text(s->coll),
                     out_uint(s->nranks),
                     out_uint(s->bytes),
                     out_text(s->dtype),
                     out_text(s->redop),
                     out_int(s->root),
                     out_text(algo),
                     out_text(s->buffers),
                     out_text(record_placement(s)),
                     out_double(pair->medians[A].value),
                     out_double(pair->medians[B].value),
                     out_double(100 * (ratio->value - 1)),
                     out_double(100 * (ratio->low - 1)),
                     out_double(100 * (ratio->high - 1)),
                     out_text(verdicts[pair->verdict]),
                     out_text(s->variant),
                     out_text(s->source),
                     b ? out_text(b->algo) : none,
                     a ? out_text(a->transport) : none,
                     b ? out_text(b->transport) : none,
                     out_text(interval_method_name(ratio->method)),
                     a ? out_uint(a->nlaunches) : none,
                     b ? out_uint(b->nlaunches) : none,
                     out_double(pair->p),
                     out_double(pair->p_holm),
                 });
    free(algo);
}

/* Rows that were judged by a method. */
static size_t count_method(const struct comparison *c, enum interval_method method)
{
    size_t count = 0;
    for (size_t i = 0; i < c->count; i++)
        count += c->pairs[i].ratio.method == method;
    return count;
}

static void print_head(const struct comparison *c, struct out *out)
{
    for (int side = A; side <= B; side++) {
        const char *name = side == A ? "A" : "B", *path = c->records[side].doc.path;
        const char *command = json_string_value(json_object_get(c->records[side].meta, "command"));
        out_note(out, "%s: %s%s%s", name, path, command ? ": " : "", command ? command : "");
        out_meta(out, side == A ? "file_A" : "file_B", out_text(path));
    }
    out_meta(out, "threshold_pct", out_double(100 * c->threshold));
    note_facts(c, out);
    out_meta(out, "ping_ratio", out_double(c->ping_ratio));
    if (c->ping_ratio != 1 && count_method(c, INTERVAL_BLOCKS) > 0) {
        out_note(out,
                 "cores as far apart as that explain a factor of up to %.3g either way: rows of "
                 "single launches that changed by less are inconclusive; --launches 5 samples "
                 "placements",
                 fmax(c->ping_ratio, 1 / c->ping_ratio));
    }
    out_meta(out, "launch_scatter_pct", out_double(100 * c->scatter));
    if (c->scatter > 0) {
        out_note(out,
                 "rows of single launches scatter by %.2g %% more than their samples explain: that "
                 "is in each interval, and with heavy tails (t, %d degrees of freedom) in each "
                 "verdict; --launches 15 averages it out",
                 100 * c->scatter, SCATTER_DOF);
    }
    for (unsigned i = 0; i < c->nbounds; i++) {
        char time[UNITS_TEXT];
        out_note(out,
                 "launches with a cache line's way under and over %s are compared only with their "
                 "like",
                 units_time(time, c->bounds_us[i] / 1e6));
    }
    out_note(out,
             "change of the median from A to B in %%, its 95 %% interval (low, high); verdicts at "
             "5 %% over all rows (Holm), threshold %g %%; times in us",
             100 * c->threshold);
}

static void note_change(struct out *out, const struct pair *pair)
{
    char *name = record_name(pair->sides[A]);
    const struct estimate *ratio = &pair->ratio;
    out_note(out, "%s: %s: %+.1f %% (%+.1f to %+.1f)", verdicts[pair->verdict], name,
             100 * (ratio->value - 1), 100 * (ratio->low - 1), 100 * (ratio->high - 1));
    free(name);
}

static void print_foot(const struct comparison *c, struct out *out)
{
    size_t single = count_method(c, INTERVAL_BLOCKS);
    if (single > 0) {
        out_note(out,
                 "%zu row%s judged from one launch: what changes from launch to launch (placement, "
                 "memory) is not in the interval; --launches 5 on both sides includes it",
                 single, single == 1 ? " is" : "s are");
    }
    for (enum verdict v = SLOWER; v <= FASTER; v++) {
        for (size_t i = 0; i < c->count; i++)
            if (c->pairs[i].verdict == v) note_change(out, &c->pairs[i]);
    }
    const size_t *n = c->counts;
    size_t compared = c->count - n[ONLY_A] - n[ONLY_B];
    out_note(out,
             "%zu row%s compared: %zu slower, %zu faster, %zu no difference, %zu inconclusive; "
             "%zu only in A, %zu only in B",
             compared, compared == 1 ? "" : "s", n[SLOWER], n[FASTER], n[SAME], n[INCONCLUSIVE],
             n[ONLY_A], n[ONLY_B]);
    static const char *const keys[NVERDICTS] = {
        [SLOWER] = "slower",      [FASTER] = "faster",
        [SAME] = "no_difference", [INCONCLUSIVE] = "inconclusive",
        [ONLY_A] = "only_in_A",   [ONLY_B] = "only_in_B"};
    for (int v = SLOWER; v < NVERDICTS; v++)
        out_meta(out, keys[v], out_uint(n[v]));
}

/* ---- the command ---- */

/* An input must not become an output. */
static int check_inputs(const struct comparison *c, const struct request *request, struct err *err)
{
    const char *const outputs[] = {request->json, request->csv};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        struct stat input, output;
        for (int side = A; side <= B; side++) {
            const char *path = c->records[side].doc.path;
            if (!outputs[i] || stat(outputs[i], &output) || stat(path, &input)) continue;
            if (input.st_dev != output.st_dev || input.st_ino != output.st_ino) continue;
            return err_add(err, ERR_USAGE,
                           "%s is one of the records compared, it would be overwritten; name "
                           "another file",
                           outputs[i]);
        }
    }
    return 0;
}

static int print(struct comparison *c, const struct request *request, struct err *err)
{
    struct out *out = out_new(columns, sizeof columns / sizeof *columns);
    int bad = check_inputs(c, request, err);
    if (!bad) bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    if (!bad) {
        print_head(c, out);
        for (size_t i = 0; i < c->count; i++)
            print_row(out, &c->pairs[i]);
        print_foot(c, out);
    }
    return out_close(out, err) || bad ? -1 : 0;
}

/* By size, whatever the order of measuring; rows of B alone come last. */
static int by_call(const void *x, const void *y)
{
    const struct pair *a = x, *b = y;
    const struct record_series *s = a->sides[A] ? a->sides[A] : a->sides[B];
    const struct record_series *t = b->sides[A] ? b->sides[A] : b->sides[B];
    if (!a->sides[A] != !b->sides[A]) return !a->sides[A] - !b->sides[A];
    if (s->bytes != t->bytes) return s->bytes < t->bytes ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* Returns -1 when there is nothing to compare or no place to write to. */
static int compare(struct comparison *c, const struct request *request, const char *const *paths,
                   struct err *err)
{
    int bad = 0;
    for (int side = A; side <= B; side++) {
        int read = record_read(&c->records[side], paths[side], err);
        bad |= read ? read : record_real(&c->records[side], err);
    }
    if (bad || check_ways(c, err)) return -1;
    c->ping_ratio = ping_ratio(c);
    find_classes(c);
    match(c);
    widen(c);
    correct(c);
    for (size_t i = 0; i < c->count; i++) {
        c->pairs[i].verdict = judge(c, &c->pairs[i]);
        c->counts[c->pairs[i].verdict]++;
    }
    if (c->counts[ONLY_A] + c->counts[ONLY_B] == c->count) {
        char *a = record_name(&c->records[A].series[0]), *b = record_name(&c->records[B].series[0]);
        err_add(err, ERR_USAGE,
                "%s and %s have no row in common; their first rows are \"%s\" and \"%s\"", paths[A],
                paths[B], a, b);
        free(a);
        free(b);
        return -1;
    }
    qsort(c->pairs, c->count, sizeof *c->pairs, by_call);
    return print(c, request, err);
}

int compare_cmd(int argc, char **argv)
{
    struct request request = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    struct comparison c = {0};
    opts_parse(&opts, rows, &request, argc, argv, &err);
    if (!opts.help && opts.npositionals != 2) {
        err_add(&err, ERR_USAGE, "takes two records, A.json and B.json; %zu were given",
                opts.npositionals);
    }
    if (opts.help) {
        opts_help(stdout, "collbench compare A.json B.json [options]", about, rows);
    } else if (err.count == 0) {
        c.threshold = request.threshold;
        signal(SIGPIPE, SIG_IGN); /* files are completed although nobody reads stdout */
        compare(&c, &request, opts.positionals, &err);
    }
    int status = err.code ? (int)err.code : c.counts[SLOWER] > 0;
    err_print(&err, "collbench compare");
    err_release(&err);
    for (int side = A; side <= B; side++)
        record_release(&c.records[side]);
    free(c.pairs);
    free(c.bounds_us);
    opts_release(&opts);
    return status;
}
