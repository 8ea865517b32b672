/* SPDX-License-Identifier: Apache-2.0
 * `collbench plot`: the rows of records as lines over size. What all lines have in common is the
 * title; by what they differ is their name. */
#include "bench/plot_cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/plot.h"
#include "bench/record.h"

enum { WHAT_BOTH, WHAT_TIME, WHAT_BUSBW };
enum { PLACE_OUT, PLACE_IN, PLACE_BOTH };
static const char *const whats[] = {"both", "time", "busbw", NULL};
static const char *const places[] = {"out-of-place", "in-place", "both", NULL};

struct request {
    const char *output;
    unsigned what, placement;
};

#define ROW(name_, letter_, type_, field, arg_, help_, ...)                                        \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct request, field), .arg = (arg_), .help = (help_), __VA_ARGS__     \
    }

static const struct opts_row rows[] = {
    ROW("output", 'o', OPTS_STRING, output, "FILE",
        "the picture (.png or .svg by gnuplot; .gp: the script with its data); replaced if it is "
        "there",
        .section = "Picture"),
    ROW("what", 0, OPTS_CHOICE, what, "WORD", "time, bus bandwidth, or both side by side",
        .value = "both", .choices = whats),
    ROW("placement", 0, OPTS_CHOICE, placement, "WORD",
        "which results; without it out-of-place ones, or in-place ones where there are no others",
        .choices = places),
    {.name = NULL},
};

static const char about[] =
    "Draws records that --json wrote: the median time and the bus bandwidth over size, a line per "
    "file, operation, algorithm and source, with the 95 % interval of the median as a band and the "
    "bound (the least time in which memory could move the bytes) in grey. Where a record has one "
    "algorithm per size, as --algo auto chooses it, its rows are one line. Sizes of 0 bytes have "
    "no place on the axis.";

/* ---- curves ---- */

/* What can tell two curves apart, in the order of names. */
enum part { FILE_, COLL, RANKS, TYPE, ROOT, BUFFERS, PLACEMENT, SOURCE, VARIANT, ALGO, NPARTS };

struct point {
    double bytes, us, low_us, high_us, busbw_factor;
    const char *algo;
};

struct curve {
    char *parts[NPARTS];
    char *name;
    bool bound;
    bool joined; /* its algorithm changes with the size: named when all points are there */
    struct point *points;
    size_t count, cap;
};

struct picture {
    const struct request *request;
    struct record *records;
    size_t nrecords;
    bool in_place, out_of_place; /* are drawn */
    struct curve *curves;
    size_t count, cap;
    char *title;
};

/* The file's name without folder and ".json", freed by the caller. */
static char *stem(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name), tail = strlen(".json");
    bool json = length > tail && strcmp(name + length - tail, ".json") == 0;
    return mem_printf("%.*s", (int)(json ? length - tail : length), name);
}

/* The curve with these parts, whose texts are taken; a new one if need be. */
static struct curve *curve_of(struct picture *p, char **parts, bool bound)
{
    for (size_t i = 0; i < p->count; i++) {
        bool same = p->curves[i].bound == bound;
        for (int k = 0; k < NPARTS && same; k++)
            same = strcmp(p->curves[i].parts[k], parts[k]) == 0;
        if (!same) continue;
        for (int k = 0; k < NPARTS; k++)
            free(parts[k]);
        return &p->curves[i];
    }
    MEM_GROW(p->curves, p->count, p->cap);
    struct curve *curve = &p->curves[p->count++];
    *curve = (struct curve){.bound = bound};
    memcpy(curve->parts, parts, sizeof curve->parts);
    return curve;
}

/* The parts of a series; of a bound, for whichever file, algorithm and source. */
static void make_parts(char **parts, const char *path, const struct record_series *s, bool joined,
                       bool bound)
{
    size_t variant = record_variant_length(s);
    bool reduces = strcmp(s->redop, "none") != 0 && strcmp(s->redop, "-") != 0;
    parts[FILE_] = bound ? mem_strdup("") : stem(path);
    parts[COLL] = mem_strdup(s->coll);
    parts[RANKS] = mem_printf("%llu ranks", (unsigned long long)s->nranks);
    parts[TYPE] = mem_printf("%s%s%s", s->dtype, reduces ? " " : "", reduces ? s->redop : "");
    parts[ROOT] = s->root < 0 ? mem_strdup("") : mem_printf("root %lld", (long long)s->root);
    bool buffers = strcmp(s->buffers, "-") != 0;
    parts[BUFFERS] = buffers ? mem_printf("%s buffers", s->buffers) : mem_strdup("");
    parts[PLACEMENT] = mem_strdup(record_placement(s));
    parts[SOURCE] = mem_strdup(bound || strcmp(s->source, "measured") == 0 ? "" : s->source);
    bool named = strncmp(s->variant, s->algo, variant) == 0; /* the library's name is enough */
    parts[VARIANT] = mem_printf("%.*s", bound || named ? 0 : (int)variant, s->variant);
    parts[ALGO] = mem_strdup(bound ? "bound" : joined ? "" : s->algo);
}

static void add_point(struct curve *curve, const struct record_series *s)
{
    struct point point = {(double)s->bytes, s->p50_us,       s->ci_low_us,
                          s->ci_high_us,    s->busbw_factor, s->algo};
    if (!(point.low_us <= point.high_us)) {
        struct estimate estimate = record_estimate(s, true);
        point.us = estimate.value;
        point.low_us = estimate.low;
        point.high_us = estimate.high;
    }
    MEM_GROW(curve->points, curve->count, curve->cap);
    curve->points[curve->count++] = point;
}

/* The least of the bounds of one size. */
static void add_bound(struct curve *curve, const struct record_series *s)
{
    for (size_t i = 0; i < curve->count; i++) {
        struct point *point = &curve->points[i];
        if (point->bytes != (double)s->bytes) continue;
        point->us = fmin(point->us, s->bound_us);
        return;
    }
    MEM_GROW(curve->points, curve->count, curve->cap);
    curve->points[curve->count++] =
        (struct point){(double)s->bytes, s->bound_us, NAN, NAN, s->busbw_factor, "bound"};
}

/* Whether another algorithm of the record has the same size. */
static bool crowded(const struct record *record, const struct record_series *s)
{
    for (size_t i = 0; i < record->count; i++) {
        const struct record_series *t = &record->series[i];
        if (t != s && record_same(t, s, true)) return true;
    }
    return false;
}

static void add_record(struct picture *p, const struct record *record)
{
    bool *crowd = mem_calloc(record->count, sizeof *crowd);
    for (size_t i = 0; i < record->count; i++)
        crowd[i] = crowded(record, &record->series[i]);
    for (size_t i = 0; i < record->count; i++) {
        const struct record_series *s = &record->series[i];
        if (s->bytes == 0 || !(s->in_place ? p->in_place : p->out_of_place)) continue;
        bool joined = true;
        for (size_t k = 0; k < record->count && joined; k++) {
            const struct record_series *t = &record->series[k];
            joined = !crowd[k] || strcmp(t->source, s->source) || strcmp(t->coll, s->coll);
        }
        char *parts[NPARTS];
        make_parts(parts, record->doc.path, s, joined, false);
        struct curve *curve = curve_of(p, parts, false);
        curve->joined = joined;
        add_point(curve, s);
    }
    free(crowd);
}

static void add_bounds(struct picture *p, const struct record *record)
{
    for (size_t i = 0; i < record->count; i++) {
        const struct record_series *s = &record->series[i];
        bool drawn = s->bytes > 0 && (s->in_place ? p->in_place : p->out_of_place);
        bool library = strcmp(s->source, "reference") == 0; /* in buffers of its own */
        if (!drawn || library || !(s->bound_us > 0)) continue;
        char *parts[NPARTS];
        make_parts(parts, record->doc.path, s, false, true);
        add_bound(curve_of(p, parts, true), s);
    }
}

static int by_size(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* ---- names ---- */

/* Appends a word behind `joint`, unless it is empty. */
static void append(char **text, const char *joint, const char *word)
{
    if (!*word) return;
    char *longer = mem_printf("%s%s%s", *text, **text ? joint : "", word);
    free(*text);
    *text = longer;
}

/* "oneshot/ring": the algorithms of a curve by size, each once. */
static void name_joined(struct curve *curve)
{
    for (size_t i = 0; i < curve->count; i++) {
        bool named = false;
        for (size_t k = 0; k < i && !named; k++)
            named = strcmp(curve->points[k].algo, curve->points[i].algo) == 0;
        if (!named) append(&curve->parts[ALGO], "/", curve->points[i].algo);
    }
}

/* Whether a part of a curve says nothing: a bound is for all files, sources and variants, and a
 * library for all buffers. */
static bool silent(const struct curve *curve, int part)
{
    bool empty = !*curve->parts[part];
    return empty && (curve->bound || part == BUFFERS || part == ALGO);
}

/* The first curve that says something in a part; NULL: none. */
static const struct curve *speaker(const struct picture *p, int part)
{
    for (size_t i = 0; i < p->count; i++)
        if (!silent(&p->curves[i], part)) return &p->curves[i];
    return NULL;
}

static bool differs(const struct picture *p, int part)
{
    const struct curve *first = speaker(p, part);
    for (size_t i = 0; i < p->count; i++) {
        const struct curve *curve = &p->curves[i];
        if (!silent(curve, part) && strcmp(first->parts[part], curve->parts[part])) return true;
    }
    return false;
}

static void name_curves(struct picture *p)
{
    bool in_name[NPARTS];
    for (int k = 0; k < NPARTS; k++)
        in_name[k] = k == ALGO || differs(p, k);
    p->title = mem_strdup("");
    for (int k = COLL; k < NPARTS; k++)
        if (!in_name[k] && speaker(p, k)) append(&p->title, ", ", speaker(p, k)->parts[k]);
    const char *processor = json_string_value(json_object_get(p->records[0].meta, "processor"));
    if (processor && p->nrecords == 1) append(&p->title, ", ", processor);
    for (size_t i = 0; i < p->count; i++) {
        p->curves[i].name = mem_strdup("");
        for (int k = 0; k < NPARTS; k++)
            if (in_name[k]) append(&p->curves[i].name, " ", p->curves[i].parts[k]);
    }
}

/* ---- picture ---- */

/* Four lists of `count` numbers in one piece of memory, freed with free(line.x). */
static struct plot_line make_line(const struct curve *curve, bool busbw)
{
    size_t n = curve->count;
    double *x = mem_calloc(4 * n, sizeof *x), *y = x + n, *low = y + n, *high = low + n;
    for (size_t i = 0; i < n; i++) {
        const struct point *point = &curve->points[i];
        double bytes = point->bytes * point->busbw_factor / 1e3; /* B/us -> GB/s */
        x[i] = point->bytes;
        y[i] = busbw ? bytes / point->us : point->us * 1e-6;
        low[i] = busbw ? bytes / point->high_us : point->low_us * 1e-6;
        high[i] = busbw ? bytes / point->low_us : point->high_us * 1e-6;
    }
    return (struct plot_line){.name = curve->name,
                              .x = x,
                              .y = y,
                              .low = curve->bound ? NULL : low,
                              .high = curve->bound ? NULL : high,
                              .count = n,
                              .bound = curve->bound};
}

static int draw(const struct picture *p, struct err *err)
{
    enum { MOST = 2 };
    struct plot_panel panels[MOST];
    struct plot_line *lines[MOST];
    size_t npanels = 0;
    for (int busbw = 0; busbw < MOST; busbw++) {
        unsigned what = p->request->what;
        if (what != WHAT_BOTH && what != (busbw ? WHAT_BUSBW : WHAT_TIME)) continue;
        lines[npanels] = mem_calloc(p->count, sizeof(struct plot_line));
        for (size_t i = 0; i < p->count; i++)
            lines[npanels][i] = make_line(&p->curves[i], busbw);
        panels[npanels] = busbw ? (struct plot_panel){"bus bandwidth (GB/s)", "%g", false, NULL}
                                : (struct plot_panel){"time, median", "%.0s %cs", true, NULL};
        panels[npanels].lines = lines[npanels];
        npanels++;
    }
    struct plot_lines plot = {p->title, "size (bytes)", npanels, p->count, panels};
    int bad = plot_lines(&plot, p->request->output, err);
    for (size_t i = 0; i < npanels; i++) {
        for (size_t k = 0; k < p->count; k++)
            free((double *)lines[i][k].x);
        free(lines[i]);
    }
    return bad;
}

/* Which placements are drawn. */
static void choose_placement(struct picture *p, bool asked)
{
    bool any_out = false;
    for (size_t i = 0; i < p->nrecords; i++)
        for (size_t k = 0; k < p->records[i].count; k++)
            any_out = any_out || !p->records[i].series[k].in_place;
    unsigned place = asked ? p->request->placement : any_out ? PLACE_OUT : PLACE_IN;
    p->in_place = place != PLACE_OUT;
    p->out_of_place = place != PLACE_IN;
}

static int plot(struct picture *p, const struct opts *opts, struct err *err)
{
    int bad = 0;
    p->records = mem_calloc(opts->npositionals, sizeof *p->records);
    p->nrecords = opts->npositionals;
    for (size_t i = 0; i < p->nrecords; i++) {
        int read = record_read(&p->records[i], opts->positionals[i], err);
        bad |= read ? read : record_real(&p->records[i], err);
    }
    if (bad) return -1;
    choose_placement(p, opts_is_set(opts, "placement"));
    for (size_t i = 0; i < p->nrecords; i++)
        add_record(p, &p->records[i]);
    for (size_t i = 0; i < p->nrecords; i++)
        add_bounds(p, &p->records[i]);
    if (p->count == 0) {
        return err_add(err, ERR_USAGE, "%s: no row of more than 0 bytes is %s",
                       opts->positionals[0], p->in_place ? "in place" : "out of place");
    }
    for (size_t i = 0; i < p->count; i++) {
        struct curve *curve = &p->curves[i];
        qsort(curve->points, curve->count, sizeof *curve->points, by_size);
        if (curve->joined) name_joined(curve);
    }
    name_curves(p);
    return draw(p, err);
}

static void release(struct picture *p)
{
    for (size_t i = 0; i < p->count; i++) {
        for (int k = 0; k < NPARTS; k++)
            free(p->curves[i].parts[k]);
        free(p->curves[i].name);
        free(p->curves[i].points);
    }
    for (size_t i = 0; i < p->nrecords; i++)
        record_release(&p->records[i]);
    free(p->curves);
    free(p->records);
    free(p->title);
}

int plot_cmd(int argc, char **argv)
{
    struct request request = {0};
    struct picture picture = {.request = &request};
    struct opts opts;
    struct err err = ERR_INIT;
    opts_parse(&opts, rows, &request, argc, argv, &err);
    if (!opts.help && opts.npositionals == 0) {
        err_add(&err, ERR_USAGE, "takes one or more records, none was given");
    }
    if (!opts.help && !request.output) {
        err_add(&err, ERR_USAGE, "-o FILE is needed: a name that ends in .png, .svg or .gp");
    }
    if (opts.help) {
        opts_help(stdout, "collbench plot A.json [B.json ...] -o FILE [options]", about, rows);
    } else if (err.count == 0) {
        plot(&picture, &opts, &err);
    }
    int status = (int)err.code;
    err_print(&err, "collbench plot");
    err_release(&err);
    release(&picture);
    opts_release(&opts);
    return status;
}
