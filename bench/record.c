/* SPDX-License-Identifier: Apache-2.0
 * Reading records: see record.h. Every row has two placements, each of which is a series of its
 * own if it was measured. */
#include "bench/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/header.h"
#include "bench/stats.h"

static const size_t BYTES_MAX = (size_t)1 << 30;
static const char *const placements[] = {"out_of_place", "in_place"};

size_t record_variant_length(const struct record_series *series)
{
    return strcmp(series->variant, "-") ? strcspn(series->variant, "/") : 0;
}

static bool same_variant(const struct record_series *a, const struct record_series *b)
{
    size_t length = record_variant_length(a);
    return length == record_variant_length(b) && memcmp(a->variant, b->variant, length) == 0;
}

bool record_same(const struct record_series *a, const struct record_series *b, bool any_algo)
{
    return a->bytes == b->bytes && a->nranks == b->nranks && a->in_place == b->in_place &&
           a->root == b->root && strcmp(a->coll, b->coll) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->redop, b->redop) == 0 && strcmp(a->buffers, b->buffers) == 0 &&
           strcmp(a->source, b->source) == 0 && strcmp(a->cut, b->cut) == 0 && same_variant(a, b) &&
           (any_algo || strcmp(a->algo, b->algo) == 0);
}

const char *record_placement(const struct record_series *series)
{
    return series->in_place ? "in-place" : "out-of-place";
}

char *record_name(const struct record_series *s)
{
    bool measured = strcmp(s->source, "measured") == 0, cut = strcmp(s->cut, "-") != 0;
    int variant = (int)record_variant_length(s);
    char *root = s->root >= 0 ? mem_printf(", root %lld", (long long)s->root) : mem_strdup("");
    char *name = mem_printf("%s%s%s, %llu ranks, %s, %s %s%s, %s, %s, %s%s%.*s%s%s", s->coll,
                            cut ? ", " : "", cut ? s->cut : "", (unsigned long long)s->nranks,
                            units_size((char[UNITS_TEXT]){0}, s->bytes), s->dtype, s->redop, root,
                            s->algo, s->buffers, record_placement(s), variant ? ", " : "", variant,
                            s->variant, measured ? "" : ", ", measured ? "" : s->source);
    free(root);
    return name;
}

double record_median(const struct record_launch *launch)
{
    double *copy = mem_calloc(launch->count, sizeof *copy);
    memcpy(copy, launch->us, launch->count * sizeof *copy);
    double median = stats_median(copy, launch->count);
    free(copy);
    return median;
}

static struct estimate estimate_by_launches(const struct record_series *s)
{
    double *medians = mem_calloc(s->nlaunches, sizeof *medians);
    for (size_t i = 0; i < s->nlaunches; i++)
        medians[i] = record_median(&s->launches[i]);
    struct estimate estimate = estimate_launches(medians, s->nlaunches);
    free(medians);
    return estimate;
}

struct estimate record_estimate(const struct record_series *s, bool by_launches)
{
    if (by_launches && s->nlaunches > 1) return estimate_by_launches(s);
    size_t count = 0, at = 0;
    for (size_t i = 0; i < s->nlaunches; i++)
        count += s->launches[i].count;
    if (count == 0) return (struct estimate){s->p50_us, NAN, NAN, NAN, NAN, INTERVAL_NONE};
    double *all = mem_calloc(count, sizeof *all);
    for (size_t i = 0; i < s->nlaunches; at += s->launches[i++].count)
        memcpy(all + at, s->launches[i].us, s->launches[i].count * sizeof *all);
    struct estimate estimate = estimate_median(all, count);
    free(all);
    return estimate;
}

/* ---- reading ---- */

/* The member PLACEMENT_NAME of a row. */
struct key {
    char text[40];
};

static struct key key_of(bool in_place, const char *name)
{
    struct key key;
    snprintf(key.text, sizeof key.text, "%s_%s", placements[in_place], name);
    return key;
}

/* What identifies a row: -1 if something of it is missing or no good. */
static int read_key(struct record *record, const json_t *row, struct record_series *s,
                    struct err *err)
{
    static const struct {
        const char *key;
        size_t offset;
        bool needed;
    } texts[] = {
        {"type", offsetof(struct record_series, dtype), true},
        {"redop", offsetof(struct record_series, redop), false},
        {"algo", offsetof(struct record_series, algo), true},
        {"buffers", offsetof(struct record_series, buffers), false},
        {"source", offsetof(struct record_series, source), true},
        {"series", offsetof(struct record_series, variant), false},
    };
    struct doc *doc = &record->doc;
    int bad = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char **to = (const char **)((char *)s + texts[i].offset);
        *to = "-";
        int got = doc_string(doc, row, texts[i].key, to, err);
        if (got == 0 && texts[i].needed) {
            got = doc_fault(doc, err, row, NULL, "the row has no \"%s\"", texts[i].key);
        }
        bad |= got < 0;
    }
    if (strcmp(s->variant, "own") == 0) s->variant = "-";
    if (strcmp(s->source, "reference") == 0) s->buffers = "-";
    s->coll = NULL;
    s->cut = "-";
    bad |= doc_string(doc, record->meta, "cut", &s->cut, err) < 0;
    bad |= doc_string(doc, record->meta, "collective", &s->coll, err) < 0;
    bad |= doc_string(doc, row, "collective", &s->coll, err) < 0;
    double root = -1;
    int size = doc_uint(doc, row, "size_B", 0, UINT64_MAX, &s->bytes, err);
    int ranks = doc_uint(doc, row, "nranks", 1, UINT32_MAX, &s->nranks, err);
    bad |= size < 0 || ranks < 0 || doc_double(doc, row, "root", -1, UINT32_MAX, &root, err) < 0;
    s->root = (int64_t)root;
    if (!bad && (size == 0 || ranks == 0 || !s->coll)) {
        bad = doc_fault(doc, err, row, NULL, "the row has no \"%s\"",
                        size == 0    ? "size_B"
                        : ranks == 0 ? "nranks"
                                     : "collective");
    }
    return bad ? -1 : 0;
}

/* Appends a list of samples to a launch. */
static int read_samples(struct doc *doc, const json_t *list, struct record_launch *launch,
                        struct err *err)
{
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        double us = json_number_value(item);
        if (!json_is_number(item) || us < 0) {
            return doc_fault_item(doc, err, list, i,
                                  "sample %zu of %zu must be a number of 0 or more", i + 1, count);
        }
        MEM_GROW(launch->us, launch->count, launch->cap);
        launch->us[launch->count++] = us;
    }
    return 0;
}

static struct record_launch *launch_of(struct record_series *s, uint64_t number)
{
    for (size_t i = 0; i < s->nlaunches; i++)
        if (s->launches[i].number == number) return &s->launches[i];
    MEM_GROW(s->launches, s->nlaunches, s->cap);
    s->launches[s->nlaunches] = (struct record_launch){.number = number, .ping_us = NAN};
    return &s->launches[s->nlaunches++];
}

/* The series of that key, a new one if need be. */
static struct record_series *series_of(struct record *record, const struct record_series *key)
{
    for (size_t i = 0; i < record->count; i++)
        if (record_same(&record->series[i], key, false)) return &record->series[i];
    MEM_GROW(record->series, record->count, record->cap);
    record->series[record->count] = *key;
    return &record->series[record->count++];
}

/* One placement of a row, whose key is in `key`; nothing if it was not run. */
static int read_placement(struct record *record, const json_t *row, struct record_series *key,
                          uint64_t launch, struct err *err)
{
    struct doc *doc = &record->doc;
    bool in_place = key->in_place;
    double p50 = NAN, low = NAN, high = NAN, bound = NAN, algbw = NAN, busbw = NAN, ping = NAN;
    const struct {
        const char *name;
        double *to;
    } numbers[] = {{"p50_us", &p50},          {"ci_low_us", &low},    {"ci_high_us", &high},
                   {"bound_time_us", &bound}, {"algbw_GBps", &algbw}, {"busbw_GBps", &busbw}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct key name = key_of(in_place, numbers[i].name);
        if (doc_double(doc, row, name.text, 0, HUGE_VAL, numbers[i].to, err) < 0) return -1;
    }
    if (doc_double(doc, row, "ping_us", 0, HUGE_VAL, &ping, err) < 0) return -1;
    json_t *samples = NULL;
    struct key list = key_of(in_place, "samples_us"), how = key_of(in_place, "transport");
    if (doc_child(doc, row, list.text, JSON_ARRAY, &samples, err) < 0) return -1;
    if (doc_string(doc, row, how.text, &key->transport, err) < 0) return -1;
    if (isnan(p50) && json_array_size(samples) == 0) return 0;

    size_t before = record->count;
    struct record_series *s = series_of(record, key);
    bool first = record->count > before;
    if (launch == 0 || first) {
        s->p50_us = p50;
        s->ci_low_us = low;
        s->ci_high_us = high;
        s->pooled = launch == 0;
    } else if (!s->pooled) { /* of several rows none speaks for all */
        s->p50_us = s->ci_low_us = s->ci_high_us = NAN;
    }
    s->bound_us = fmin(s->bound_us, bound);
    if (algbw > 0) s->busbw_factor = busbw / algbw;
    if (json_array_size(samples) == 0) return 0;
    struct record_launch *to = launch_of(s, launch);
    to->ping_us = ping;
    return read_samples(doc, samples, to, err);
}

static int read_row(struct record *record, const json_t *row, struct err *err)
{
    struct record_series key = {.bound_us = NAN, .busbw_factor = NAN};
    uint64_t launch = 1;
    if (read_key(record, row, &key, err)) return -1;
    if (doc_uint(&record->doc, row, "launch", 0, UINT32_MAX, &launch, err) < 0) return -1;
    int bad = 0;
    for (int place = 0; place < 2; place++) {
        key.in_place = place == 1;
        key.transport = "-";
        bad |= read_placement(record, row, &key, launch, err);
    }
    return bad;
}

static void launch_drop(struct record_series *s, size_t at)
{
    free(s->launches[at].us);
    memmove(&s->launches[at], &s->launches[at + 1], (s->nlaunches - at - 1) * sizeof *s->launches);
    s->nlaunches--;
}

/* The samples of all launches together, where the launches are there too. */
static void drop_pooled(struct record *record)
{
    for (size_t i = 0; i < record->count; i++) {
        struct record_series *s = &record->series[i];
        for (size_t k = 0; k < s->nlaunches && s->nlaunches > 1; k++)
            if (s->launches[k].number == 0) launch_drop(s, k);
    }
}

static int read_rows(struct record *record, struct err *err)
{
    struct doc *doc = &record->doc;
    json_t *rows = NULL, *summary = NULL;
    uint64_t schema = 1;
    bool okay = true;
    if (!json_is_object(doc->root) || !json_is_array(json_object_get(doc->root, "rows"))) {
        return doc_fault(doc, err, doc->root, NULL,
                         "no record of a run: it must be an object with a list \"rows\"");
    }
    if (doc_child(doc, doc->root, "meta", JSON_OBJECT, &record->meta, err) < 0 ||
        doc_child(doc, doc->root, "summary", JSON_OBJECT, &summary, err) < 0 ||
        doc_child(doc, doc->root, "rows", JSON_ARRAY, &rows, err) < 0 ||
        doc_uint(doc, record->meta, "schema", 1, RECORD_SCHEMA, &schema, err) < 0 ||
        doc_bool(doc, record->meta, "emulated", &record->emulated, err) < 0 ||
        doc_bool(doc, summary, "okay", &okay, err) < 0) {
        return -1;
    }
    record->failed = !okay;
    const json_t *first = json_array_get(rows, 0);
    if (json_is_object(first) && !json_object_get(first, "algo")) {
        return doc_fault_item(doc, err, rows, 0,
                              "a row without \"algo\" is none of an operation (p2p and "
                              "--repeat-check have tables of their own); valid: what \"collbench "
                              "OPERATION --json FILE\" writes");
    }
    int bad = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bad |= json_is_object(row) ? read_row(record, row, err)
                                   : doc_fault_item(doc, err, rows, i, "a row must be an object");
    }
    return bad;
}

int record_read(struct record *record, const char *path, struct err *err)
{
    *record = (struct record){0};
    if (doc_read_long(&record->doc, path, BYTES_MAX, err)) return -1;
    int bad = read_rows(record, err);
    if (!bad && record->count == 0) {
        bad = err_add(err, ERR_USAGE, "%s: no row holds a measurement", path);
    }
    drop_pooled(record);
    if (bad) record_release(record);
    return bad;
}

int record_real(const struct record *record, struct err *err)
{
    if (!record->emulated) return 0;
    return err_add(err, ERR_USAGE,
                   "%s: of emulated GPUs, whose times mean nothing; valid: records of real ones",
                   record->doc.path);
}

void record_release(struct record *record)
{
    for (size_t i = 0; i < record->count; i++) {
        struct record_series *s = &record->series[i];
        for (size_t k = 0; k < s->nlaunches; k++)
            free(s->launches[k].us);
        free(s->launches);
    }
    free(record->series);
    doc_release(&record->doc);
    *record = (struct record){0};
}
