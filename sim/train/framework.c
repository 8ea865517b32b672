/* SPDX-License-Identifier: Apache-2.0
 * The table of frameworks: data/frameworks.json. One table of features says for each member of the
 * file and each --feature what type it has and where it goes. */
#include "train/framework.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/doc.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/units.h"

static const char *const off_on[] = {"off", "on", NULL};
static const char *const class_names[] = {"legacy", "eager", "fused", NULL};
static const char *const attention_names[] = {"fa1", "fa2", "cudnn", "unfused", NULL};
static const char *const graph_names[] = {"none", "partial", "full", NULL};
static const char *const schedules_names[] = {"1f1b", "interleaved", "zero-bubble", "all", NULL};
static const char *const zero_names[] = {"none", "1", "2", "3", NULL};
static const char *const cp_names[] = {"ring", "gather", NULL};
static const char *const kv_names[] = {"multiple", "replicate", NULL};
static const char *const uneven_names[] = {"refuse", "share", NULL};
static const char *const micro_names[] = {"groups", "rounds", NULL};
static const char *const expert_names[] = {"expert-mesh", "in-data", NULL};

enum feature_type { CHOICE, SWITCH, NUMBER, COUNT };

static const struct feature {
    const char *name;
    size_t offset;
    enum feature_type type;
    const char *const *choices; /* CHOICE: of an enum that counts from 0; SWITCH: off, on */
    double min, max;            /* NUMBER, COUNT */
} features[] = {
#define AT(member) offsetof(struct framework, member)
    {"class", AT(cls), CHOICE, class_names, 0, 0},
    {"attention", AT(attention), CHOICE, attention_names, 0, 0},
    {"graphs", AT(graphs), CHOICE, graph_names, 0, 0},
    {"zero", AT(zero), CHOICE, zero_names, 0, 0},
    {"grad-bytes", AT(grad_bytes), NUMBER, NULL, 0.5, 8},
    {"grad-store-bytes", AT(grad_store_bytes), NUMBER, NULL, 0.5, 8},
    {"reduce-bytes", AT(reduce_bytes), NUMBER, NULL, 0.5, 8},
    {"shard-copy", AT(shard_copy), SWITCH, off_on, 0, 0},
    {"master-weights", AT(master_weights), SWITCH, off_on, 0, 0},
    {"tp-overlap", AT(tp_overlap), SWITCH, off_on, 0, 0},
    {"dp-overlap", AT(dp_overlap), SWITCH, off_on, 0, 0},
    {"p2p-overlap", AT(p2p_overlap), SWITCH, off_on, 0, 0},
    {"ep-overlap", AT(ep_overlap), SWITCH, off_on, 0, 0},
    {"ep-dedup", AT(ep_dedup), SWITCH, off_on, 0, 0},
    {"scatter-gather", AT(scatter_gather), SWITCH, off_on, 0, 0},
    {"op-recompute", AT(op_recompute), SWITCH, off_on, 0, 0},
    {"chunked-loss", AT(chunked_loss), SWITCH, off_on, 0, 0},
    {"dropout", AT(dropout), SWITCH, off_on, 0, 0},
    {"fp8-params", AT(fp8_params), SWITCH, off_on, 0, 0},
    {"logit-bytes", AT(logit_bytes), NUMBER, NULL, 0, 64},
    {"vocab-multiple", AT(vocab_multiple), COUNT, NULL, 0, 1 << 20},
    {"bucket-bytes", AT(bucket_bytes), NUMBER, NULL, 0, 1e15},
    {"first-bucket-bytes", AT(first_bucket_bytes), NUMBER, NULL, 0, 1e15},
    {"bucket-params", AT(bucket_params), COUNT, NULL, 0, 1e15},
    {"bucket-params-per-rank", AT(bucket_params_per_rank), COUNT, NULL, 0, 1e12},
    {"gather-overlap", AT(gather_overlap), SWITCH, off_on, 0, 0},
    {"reduce-each", AT(reduce_each), SWITCH, off_on, 0, 0},
    {"gather-tensors", AT(gather_tensors), SWITCH, off_on, 0, 0},
    {"accumulate-bytes", AT(accumulate_bytes), NUMBER, NULL, 0, 64},
    {"owner-sends", AT(owner_sends), SWITCH, off_on, 0, 0},
    {"reduce-copy-bytes", AT(reduce_copy_bytes), NUMBER, NULL, 0, 64},
    {"piece-kernels", AT(piece_kernels), NUMBER, NULL, 0, 16},
    {"gather-sync", AT(gather_sync), SWITCH, off_on, 0, 0},
    {"sum-beside", AT(sum_beside), SWITCH, off_on, 0, 0},
    {"prefetch", AT(prefetch), COUNT, NULL, 0, 1 << 20},
    {"prefetch-params", AT(prefetch_params), COUNT, NULL, 0, 1e15},
    {"tp-tiles", AT(tp_tiles), COUNT, NULL, 0, 1 << 10},
    {"cp-comm", AT(cp), CHOICE, cp_names, 0, 0},
    {"kv", AT(kv), CHOICE, kv_names, 0, 0},
    {"uneven", AT(uneven), CHOICE, uneven_names, 0, 0},
    {"micro-batches", AT(micro), CHOICE, micro_names, 0, 0},
    {"experts", AT(experts), CHOICE, expert_names, 0, 0},
    {"tp-with-sp", AT(tp_with_sp), SWITCH, off_on, 0, 0},
    {"moe-needs-sp", AT(moe_needs_sp), SWITCH, off_on, 0, 0},
    {"batch-remainder", AT(batch_remainder), SWITCH, off_on, 0, 0},
    {"fsdp-alone", AT(fsdp_alone), SWITCH, off_on, 0, 0},
    {"most-zero", AT(most_zero), CHOICE, zero_names, 0, 0},
    {"zero-with-pp", AT(zero_with_pp), CHOICE, zero_names, 0, 0},
    {"schedules", AT(schedules), CHOICE, schedules_names, 0, 0},
#undef AT
};

enum { NFEATURES = sizeof features / sizeof *features };

const char *framework_feature_name(size_t i)
{
    return i < NFEATURES ? features[i].name : NULL;
}

static void *slot(const struct feature *feature, struct framework *framework)
{
    return (char *)framework + feature->offset;
}

/* ---- values from text and back ---- */

static int set_choice(const struct feature *feature, struct framework *framework, const char *text,
                      struct err *err)
{
    for (unsigned i = 0; feature->choices[i]; i++)
        if (strcmp(feature->choices[i], text) == 0) {
            if (feature->type == SWITCH)
                *(bool *)slot(feature, framework) = i;
            else
                *(unsigned *)slot(feature, framework) = i;
            return 0;
        }
    char *what = mem_printf("value of %s", feature->name);
    opts_unknown(err, what, text, feature->choices);
    free(what);
    return -1;
}

static int set_number(const struct feature *feature, struct framework *framework, double value,
                      struct err *err)
{
    bool inside = value >= feature->min && value <= feature->max; /* false for NaN too */
    if (!inside || (feature->type == COUNT && value != (double)(uint64_t)value))
        return err_add(err, ERR_USAGE, "%s is %g, it must be %s in %g..%g", feature->name, value,
                       feature->type == COUNT ? "a whole number" : "a number", feature->min,
                       feature->max);
    if (feature->type == COUNT)
        *(uint64_t *)slot(feature, framework) = (uint64_t)value;
    else
        *(double *)slot(feature, framework) = value;
    return 0;
}

int framework_feature(struct framework *framework, const char *text, struct err *err)
{
    const char *names[NFEATURES + 1] = {0};
    size_t length = strcspn(text, "=");
    for (size_t i = 0; i < NFEATURES; i++) {
        const struct feature *feature = &features[i];
        names[i] = feature->name;
        if (strlen(feature->name) != length || strncmp(feature->name, text, length) != 0) continue;
        if (text[length] != '=')
            return err_add(err, ERR_USAGE, "--feature: \"%s\" has no value; write %s=VALUE", text,
                           text);
        const char *value = text + length + 1;
        if (feature->choices) return set_choice(feature, framework, value, err);
        double number = 0;
        if (units_read_double(feature->name, value, &number, err)) return -1;
        return set_number(feature, framework, number, err);
    }
    char *word = mem_printf("%.*s", (int)length, text);
    opts_unknown(err, "feature", word, names);
    free(word);
    return -1;
}

const char *framework_value(const struct framework *framework, size_t i, char *buf)
{
    const struct feature *feature = &features[i];
    const void *at = (const char *)framework + feature->offset;
    switch (feature->type) {
    case CHOICE:
        return feature->choices[*(const unsigned *)at];
    case SWITCH:
        return off_on[*(const bool *)at];
    case NUMBER:
        snprintf(buf, UNITS_TEXT, "%.15g", *(const double *)at);
        return buf;
    default:
        snprintf(buf, UNITS_TEXT, "%" PRIu64, *(const uint64_t *)at);
        return buf;
    }
}

/* ---- into a job ---- */

double framework_bucket_B(const struct framework *f, double grad_B, double ranks)
{
    double params = fmax((double)f->bucket_params, (double)f->bucket_params_per_rank * ranks);
    return f->bucket_bytes > 0 ? f->bucket_bytes : params * grad_B;
}

/* Layers that hold the parameters which are gathered ahead: the next one at least, in part. */
static uint32_t layers_ahead(const struct job *job, uint64_t params)
{
    struct param_counts n = job_params(job);
    bool moe = job->shape.experts && job->shape.dense_layers < job->shape.layers;
    double layer =
        moe ? n.moe_shared + n.moe_experts / ((double)job->ep * job->etp) : n.dense_layer;
    return (uint32_t)fmin(job->shape.layers, ceil((double)params * job->tp / fmax(layer, 1)));
}

void framework_overlap(struct job *job, const struct framework *f)
{
    bool whole = job->shard == SHARD_FULL || job->shard == SHARD_GRAD_OP;
    double ranks = (double)job->dp * job->cp;
    job->bucket_B = job->dp_overlap ? framework_bucket_B(f, job->grad_B, ranks) : 0;
    job->first_bucket_B = fmin(f->first_bucket_bytes, job->bucket_B);
    job->gather_overlap = f->gather_overlap && job->dp_overlap &&
                          (job->shard == SHARD_ZERO1 || job->shard == SHARD_ZERO2);
    job->reduce_each = f->reduce_each && (whole || job->shard == SHARD_ZERO2);
    job->cut_messages = f->scatter_gather;
    job->gather_tensors = f->gather_tensors && whole;
    bool shards = whole || job->shard == SHARD_ZERO2; /* reduced each time: its own part is added */
    job->accumulate_B = shards && job->reduce_each ? 0 : f->accumulate_bytes;
    job->owner_sends = f->owner_sends && (job->shard == SHARD_ZERO1 || job->shard == SHARD_ZERO2);
    job->reduce_copy_B = whole ? f->reduce_copy_bytes * job->reduce_B / f->reduce_bytes : 0;
    job->piece_kernels = whole ? f->piece_kernels : 0;
    job->gather_sync = f->gather_sync && whole;
    job->sum_beside = f->sum_beside;
    job->prefetch = !whole || !job->dp_overlap ? 0
                    : f->prefetch_params       ? layers_ahead(job, f->prefetch_params)
                                               : (uint32_t)f->prefetch;
    job->tp_tiles = job->tp_overlap ? (uint32_t)f->tp_tiles : 0;
    job->cp_gather = f->cp == CP_GATHER && !job->ulysses && job->cp > 1;
}

/* ---- the file ---- */

static int read_member(struct doc *doc, const json_t *row, const struct feature *feature,
                       struct framework *framework, struct err *err)
{
    struct err inner = ERR_INIT;
    int result = 0, got = 0;
    if (feature->type == NUMBER || feature->type == COUNT) {
        double value = 0;
        got = doc_double(doc, row, feature->name, feature->min, feature->max, &value, err);
        if (got == 1) result = set_number(feature, framework, value, &inner);
    } else {
        const char *word = NULL;
        got = doc_string(doc, row, feature->name, &word, err);
        if (got == 1) result = set_choice(feature, framework, word, &inner);
    }
    if (result) doc_fault(doc, err, row, feature->name, "%s", inner.text);
    err_release(&inner);
    return got < 0 ? -1 : result;
}

/* Starts a row as a copy of an earlier one, if it says so. */
static int read_like(struct doc *doc, const json_t *row, const struct framework_table *table,
                     struct framework *framework, struct err *err)
{
    const char *like = NULL;
    int got = doc_string(doc, row, "like", &like, err);
    if (got <= 0) return got;
    for (size_t i = 0; i < table->nrows; i++)
        if (strcmp(table->rows[i].name, like) == 0) {
            *framework = table->rows[i];
            return 0;
        }
    return doc_fault(doc, err, row, "like", "there is no framework \"%s\" above this row", like);
}

/* A row that is like no other must name every feature. */
static int check_complete(struct doc *doc, const json_t *row, struct err *err)
{
    int result = 0;
    for (size_t i = 0; i < NFEATURES; i++)
        if (!json_object_get(row, "like") && !json_object_get(row, features[i].name))
            result = doc_fault(doc, err, row, NULL, "\"%s\" is missing", features[i].name);
    return result;
}

static int read_row(struct doc *doc, const json_t *row, const struct framework_table *table,
                    struct framework *framework, struct err *err)
{
    const char *known[NFEATURES + 5] = {"name", "about", "source", "like"};
    for (size_t i = 0; i < NFEATURES; i++)
        known[4 + i] = features[i].name;
    *framework = (struct framework){0};
    int result = doc_keys(doc, row, known, err);
    result |= read_like(doc, row, table, framework, err) | check_complete(doc, row, err);
    static const char *const words[] = {"name", "about", "source"};
    const char **to[] = {&framework->name, &framework->about, &framework->source};
    for (size_t i = 0; i < 3; i++) {
        *to[i] = "";
        int got = doc_string(doc, row, words[i], to[i], err);
        if (got == 0) got = doc_fault(doc, err, row, NULL, "\"%s\" is missing", words[i]);
        result |= got < 0 ? -1 : 0;
    }
    for (size_t i = 0; i < NFEATURES; i++)
        result |= read_member(doc, row, &features[i], framework, err);
    for (size_t i = 0; i < table->nrows; i++)
        if (strcmp(table->rows[i].name, framework->name) == 0)
            result = doc_fault(doc, err, row, "name", "the name \"%s\" is taken", framework->name);
    return result;
}

static int read_table(struct doc *doc, struct framework_table *table, struct err *err)
{
    static const char *const known[] = {"schema", "about", "frameworks", NULL};
    json_t *rows;
    int result = doc_table(doc, known, "frameworks", &rows, err);
    if (!rows) return -1;
    table->rows = mem_calloc(json_array_size(rows), sizeof *table->rows);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!json_is_object(row)) {
            result = doc_fault_item(doc, err, rows, i, "a framework must be an object");
            continue;
        }
        result |= read_row(doc, row, table, &table->rows[table->nrows], err);
        table->nrows++;
    }
    return result;
}

int framework_read(struct framework_table *table, const char *path, struct err *err)
{
    *table = (struct framework_table){0};
    char *found = path ? mem_strdup(path) : csv_shipped("frameworks.json");
    if (!found) return err_add(err, ERR_FAILED, "the shipped file data/frameworks.json is missing");
    struct doc *doc = mem_calloc(1, sizeof *doc);
    table->doc = doc;
    int result = doc_read(doc, found, err);
    if (result == 0) result = read_table(doc, table, err);
    free(found);
    if (result) framework_release(table);
    return result;
}

void framework_release(struct framework_table *table)
{
    free(table->rows);
    if (table->doc) doc_release(table->doc);
    free(table->doc);
    *table = (struct framework_table){0};
}

const struct framework *framework_find(const struct framework_table *table, const char *name,
                                       struct err *err)
{
    const char **names = mem_calloc(table->nrows + 1, sizeof *names);
    const struct framework *found = NULL;
    for (size_t i = 0; i < table->nrows; i++) {
        names[i] = table->rows[i].name;
        if (strcmp(names[i], name) == 0) found = &table->rows[i];
    }
    if (!found) opts_unknown(err, "framework", name, names);
    free(names);
    return found;
}
