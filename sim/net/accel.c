/* SPDX-License-Identifier: Apache-2.0
 * Reads the table of accelerator types: topologies/accelerators.json. Each figure is a pair
 * [value, source], so that none can be there without a source. */
#include "net/accel_read.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/ship.h"
#include "net/topo.h"

static const char *const scale_up_names[NSCALE_UP + 1] = {
    [SCALE_UP_NVSWITCH] = "nvswitch",
    [SCALE_UP_NVLINK_MESH] = "nvlink-mesh",
    [SCALE_UP_NVLINK_CUBE] = "nvlink-cube",
    [SCALE_UP_NVLINK_PAIRS] = "nvlink-pairs",
    [SCALE_UP_XGMI] = "xgmi",
    [SCALE_UP_PCIE] = "pcie",
    [SCALE_UP_PCIE_HOST] = "pcie-through-host",
    [SCALE_UP_MEMORY] = "memory",
};

static const char *const peak_names[NPEAKS + 1] = {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"};

const char *scale_up_name(enum scale_up kind)
{
    return scale_up_names[kind];
}

const char *peak_name(enum peak peak)
{
    return peak_names[peak];
}

/* A figure of a type: where it goes and what is possible. */
static const struct figure {
    const char *key;
    size_t offset;
    double min, max;
    bool whole;    /* into a uint32_t, else a double */
    bool required; /* else 0: the part has no such thing */
} figures[] = {
    {"memory_GB", offsetof(struct accel, memory_GB), 0.1, 1e6, false, true},
    {"memory_GiB", offsetof(struct accel, memory_GiB), 0.1, 1e6, false, true},
    {"memory_GBps", offsetof(struct accel, memory_GBps), 0.1, 1e6, false, true},
    {"fp32_TF", offsetof(struct accel, peak_TF[PEAK_FP32]), 1e-6, 1e9, false, true},
    {"tf32_TF", offsetof(struct accel, peak_TF[PEAK_TF32]), 1e-6, 1e9, false, false},
    {"fp16_TF", offsetof(struct accel, peak_TF[PEAK_FP16]), 1e-6, 1e9, false, false},
    {"bf16_TF", offsetof(struct accel, peak_TF[PEAK_BF16]), 1e-6, 1e9, false, false},
    {"fp8_TF", offsetof(struct accel, peak_TF[PEAK_FP8]), 1e-6, 1e9, false, false},
    {"fp4_TF", offsetof(struct accel, peak_TF[PEAK_FP4]), 1e-6, 1e9, false, false},
    {"sms", offsetof(struct accel, sms), 1, 1e6, true, true},
    {"line_GBps", offsetof(struct accel, line_GBps), 1e-3, 1e6, false, true},
    {"ring_GBps", offsetof(struct accel, ring_GBps), 1e-3, 1e6, false, true},
    {"usual_per_host", offsetof(struct accel, usual_per_host), 1, 1e6, true, true},
    {"usual_domain", offsetof(struct accel, usual_domain), 1, 1e6, true, true},
    {"usual_nic_Gbps", offsetof(struct accel, usual_nic_Gbps), 1e-3, 1e6, false, true},
};

enum { NFIGURES = sizeof figures / sizeof *figures };

static int read_figure(struct doc *doc, const json_t *row, const struct figure *figure,
                       struct accel *accel, struct err *err)
{
    json_t *pair = NULL;
    int got = doc_child(doc, row, figure->key, JSON_ARRAY, &pair, err);
    if (got < 0 || (got == 0 && !figure->required)) return got;
    if (got == 0)
        return doc_fault(doc, err, row, figure->key, "\"%s\" is missing: [value, source]",
                         figure->key);
    const json_t *number = json_array_get(pair, 0);
    const char *source = json_string_value(json_array_get(pair, 1));
    if (json_array_size(pair) != 2 || !json_is_number(number) || !source || !*source)
        return doc_fault(doc, err, row, figure->key,
                         "\"%s\" must be [value, source]: a number and where it comes from",
                         figure->key);
    double value = json_number_value(number);
    if (!(value >= figure->min && value <= figure->max))
        return doc_fault(doc, err, row, figure->key, "\"%s\" is %g, it must be in %g..%g",
                         figure->key, value, figure->min, figure->max);
    if (figure->whole && value != floor(value))
        return doc_fault(doc, err, row, figure->key, "\"%s\" is %g, it must be a whole number",
                         figure->key, value);
    char *to = (char *)accel + figure->offset;
    if (figure->whole)
        *(uint32_t *)(void *)to = (uint32_t)value;
    else
        *(double *)(void *)to = value;
    return 0;
}

int scale_up_read(struct doc *doc, const json_t *object, const char *key, enum scale_up *kind,
                  struct err *err)
{
    const char *name = NULL;
    int got = doc_string(doc, object, key, &name, err);
    if (got <= 0) return got;
    for (unsigned i = 0; i < NSCALE_UP; i++)
        if (strcmp(name, scale_up_names[i]) == 0) {
            *kind = (enum scale_up)i;
            return 1;
        }
    struct err inner = ERR_INIT;
    opts_unknown(&inner, "kind of link", name, scale_up_names);
    doc_fault(doc, err, object, key, "%s", inner.text);
    err_release(&inner);
    return -1;
}

static int read_aliases(struct doc *doc, const json_t *row, struct accel *accel, struct err *err)
{
    json_t *list = NULL;
    int got = doc_child(doc, row, "aliases", JSON_ARRAY, &list, err);
    if (got < 0) return -1;
    int result = 0;
    accel->naliases = json_array_size(list);
    accel->aliases = mem_calloc(accel->naliases, sizeof *accel->aliases);
    for (size_t i = 0; i < accel->naliases; i++) {
        accel->aliases[i] = json_string_value(json_array_get(list, i));
        if (!accel->aliases[i] || !*accel->aliases[i]) {
            result = doc_fault_item(doc, err, list, i, "an alias must be a word");
            accel->aliases[i] = "?";
        }
    }
    return result;
}

int accel_read_row(struct doc *doc, const json_t *row, struct accel *accel, struct err *err)
{
    const char *known[NFIGURES + 6] = {"name", "class", "aliases", "scale_up", "about"};
    for (size_t i = 0; i < NFIGURES; i++)
        known[5 + i] = figures[i].key;
    *accel = (struct accel){0};
    int result = doc_keys(doc, row, known, err);
    static const char *const words[] = {"name", "class"};
    const char **to[] = {&accel->name, &accel->class_name};
    for (size_t i = 0; i < 2; i++) {
        int got = doc_string(doc, row, words[i], to[i], err);
        if (got == 0 || (got == 1 && !**to[i]))
            got = doc_fault(doc, err, row, words[i], "\"%s\" is missing or empty", words[i]);
        result |= got < 0 ? -1 : 0;
    }
    result |= read_aliases(doc, row, accel, err);
    int got = scale_up_read(doc, row, "scale_up", &accel->scale_up, err);
    if (got == 0) got = doc_fault(doc, err, row, NULL, "\"scale_up\" is missing");
    result |= got < 0 ? -1 : 0;
    for (size_t i = 0; i < NFIGURES; i++)
        result |= read_figure(doc, row, &figures[i], accel, err);
    if (result == 0 && accel->ring_GBps > accel->line_GBps)
        result = doc_fault(doc, err, row, "ring_GBps",
                           "\"ring_GBps\" is %g, above the line rate \"line_GBps\" of %g",
                           accel->ring_GBps, accel->line_GBps);
    return result;
}

/* Whether the type answers to `text`, and with how many characters of its start. Another digit
 * behind a digit is another name: an A1000 is no A100. */
static size_t answers(const struct accel *accel, const char *text, bool whole)
{
    size_t best = 0;
    for (size_t i = 0; i <= accel->naliases; i++) {
        const char *word = i ? accel->aliases[i - 1] : accel->name;
        size_t length = strlen(word);
        bool same = whole ? strcasecmp(text, word) == 0 : strncasecmp(text, word, length) == 0;
        bool longer = same && !whole && isdigit((unsigned char)word[length - 1]) &&
                      isdigit((unsigned char)text[length]);
        if (same && !longer && length > best) best = length;
    }
    return best;
}

static int check_twice(struct doc *doc, const json_t *rows, const struct accel_table *table,
                       size_t last, struct err *err)
{
    const struct accel *accel = &table->rows[last];
    int result = 0;
    for (size_t i = 0; i < last; i++)
        if (accel->name && table->rows[i].name && answers(&table->rows[i], accel->name, true))
            result = doc_fault_item(doc, err, rows, last, "the name \"%s\" is taken by \"%s\"",
                                    accel->name, table->rows[i].name);
    return result;
}

static int read_table(struct doc *doc, struct accel_table *table, struct err *err)
{
    static const char *const known[] = {"schema", "about", "sources", "accelerators", NULL};
    json_t *rows;
    int result = doc_table(doc, known, "accelerators", &rows, err);
    if (!rows) return -1;
    table->rows = mem_calloc(json_array_size(rows), sizeof *table->rows);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!json_is_object(row)) {
            result = doc_fault_item(doc, err, rows, i, "an accelerator must be an object");
            continue;
        }
        result |= accel_read_row(doc, row, &table->rows[table->nrows++], err);
        result |= check_twice(doc, rows, table, table->nrows - 1, err);
    }
    return result;
}

int accel_read(struct accel_table *table, const char *path, struct err *err)
{
    *table = (struct accel_table){0};
    char *found = path ? mem_strdup(path) : ship_find("topologies", "accelerators", ".json");
    if (!found)
        return err_add(err, ERR_FAILED, "the shipped file topologies/accelerators.json is missing");
    struct doc *doc = mem_calloc(1, sizeof *doc);
    table->doc = doc;
    int result = doc_read(doc, found, err);
    if (result == 0) result = read_table(doc, table, err);
    free(found);
    if (result) accel_release(table);
    return result;
}

void accel_release(struct accel_table *table)
{
    for (size_t i = 0; i < table->nrows; i++)
        free(table->rows[i].aliases);
    free(table->rows);
    if (table->doc) doc_release(table->doc);
    free(table->doc);
    *table = (struct accel_table){0};
}

const struct accel *accel_find(const struct accel_table *table, const char *name, struct err *err)
{
    for (size_t i = 0; i < table->nrows; i++)
        if (answers(&table->rows[i], name, true)) return &table->rows[i];
    const char **names = mem_calloc(table->nrows + 1, sizeof *names);
    for (size_t i = 0; i < table->nrows; i++)
        names[i] = table->rows[i].name;
    opts_unknown(err, "accelerator", name, names);
    free(names);
    return NULL;
}

const struct accel *accel_match(const struct accel_table *table, const char *text, double memory_GB)
{
    const struct accel *best = NULL;
    size_t longest = 0;
    double distance = 0;
    for (size_t i = 0; i < table->nrows; i++) {
        const struct accel *accel = &table->rows[i];
        size_t length = answers(accel, text, false);
        double off = memory_GB > 0 ? fabs(accel->memory_GB - memory_GB) : 0;
        if (length && (length > longest || (length == longest && off < distance))) {
            best = accel;
            longest = length;
            distance = off;
        }
    }
    return best;
}
