/* SPDX-License-Identifier: Apache-2.0
 * `commsim model`: a model's shape, its parameter counts and the formula of every term; without a
 * name, the presets that are shipped. Of a list of tensors, the buckets in which their gradients
 * are reduced. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/ship.h"
#include "base/units.h"
#include "train/bucket.h"
#include "train/model.h"

struct request {
    const char *tensors;
    uint64_t bucket, first_bucket, bytes;
    const char *json, *csv;
    bool overwrite;
};

static const struct opts_row options[] = {
    {.name = "tensors",
     .type = OPTS_STRING,
     .offset = offsetof(struct request, tensors),
     .arg = "FILE",
     .help =
         "in place of a model: the buckets in which the gradients of these tensors are reduced. "
         "A CSV with the columns tensor and params, in the order of the model; buckets are "
         "filled from the last on, no tensor is cut, and a bucket is full once it has reached "
         "its size",
     .section = "Buckets"},
    {.name = "bucket-size",
     .type = OPTS_SIZE,
     .offset = offsetof(struct request, bucket),
     .value = "25M",
     .arg = "SIZE",
     .help = "of a bucket (PyTorch's DDP: 25 MiB)",
     .min = 1},
    {.name = "first-bucket-size",
     .type = OPTS_SIZE,
     .offset = offsetof(struct request, first_bucket),
     .value = "1M",
     .arg = "SIZE",
     .help = "of the first, at most that of the others (PyTorch's DDP: 1 MiB)",
     .min = 1},
    {.name = "grad-bytes",
     .type = OPTS_UINT,
     .offset = offsetof(struct request, bytes),
     .value = "4",
     .arg = "N",
     .help = "of a gradient",
     .min = 1,
     .max = 8},
    {.name = "json",
     .letter = 'J',
     .type = OPTS_STRING,
     .offset = offsetof(struct request, json),
     .arg = "FILE",
     .help = "write the table as JSON too; - is stdout, without the text",
     .section = "Output"},
    {.name = "csv",
     .type = OPTS_STRING,
     .offset = offsetof(struct request, csv),
     .arg = "FILE",
     .help = "write the table as CSV too; - is stdout, without the text"},
    {.name = "overwrite",
     .type = OPTS_FLAG,
     .offset = offsetof(struct request, overwrite),
     .help = "files may exist already"},
    {.name = NULL},
};

static const char about[] =
    "Prints the shape of a model, its exact parameter counts and the formula of every term. NAME "
    "is "
    "a preset; PATH is a Hugging Face config.json or a folder that holds one. Without a word, the "
    "presets are listed.";

/* ---- one model ---- */

static const struct out_column term_columns[] = {
    {"part", NULL, -16, 0, OUT_TEXT, NULL, NULL},
    {"term", NULL, -32, 0, OUT_TEXT, NULL, NULL},
    {"formula", NULL, -18, 0, OUT_TEXT, NULL, NULL},
    {"numbers", NULL, -32, 0, OUT_TEXT, NULL, NULL},
    {"each", NULL, 14, 0, OUT_UINT, NULL, NULL},
    {"copies", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"params", NULL, 16, 0, OUT_UINT, NULL, NULL},
    {"active", NULL, 15, 0, OUT_UINT, NULL, NULL},
};

static const struct {
    const char *key, *text; /* of a note "# text: value"; JSON has the key */
    size_t offset;
} facts[] = {
    {"layers", "layers", offsetof(struct model, layers)},
    {"encoder_layers", "of these, encoder", offsetof(struct model, encoder_layers)},
    {"hidden", "h, hidden size", offsetof(struct model, hidden)},
    {"ffn", "f, width of the dense MLP", offsetof(struct model, ffn)},
    {"heads", "a, heads", offsetof(struct model, heads)},
    {"kv_heads", "kv, key and value heads", offsetof(struct model, kv_heads)},
    {"head_dim", "d, head size", offsetof(struct model, head_dim)},
    {"v_head_dim", "dv, head size of values", offsetof(struct model, v_head_dim)},
    {"nope_head_dim", "dn, part of d without rope", offsetof(struct model, nope_head_dim)},
    {"rope_head_dim", "dr, part of d with rope", offsetof(struct model, rope_head_dim)},
    {"q_lora_rank", "rq, latent rank of q", offsetof(struct model, q_lora_rank)},
    {"kv_lora_rank", "rkv, latent rank of k and v", offsetof(struct model, kv_lora_rank)},
    {"vocab", "V, vocabulary", offsetof(struct model, vocab)},
    {"positions", "pos, learned positions", offsetof(struct model, positions)},
    {"embed_dim", "e, width of the token table", offsetof(struct model, embed_dim)},
    {"window", "sliding window, tokens", offsetof(struct model, window)},
    {"experts", "E, experts", offsetof(struct model, experts)},
    {"experts_per_token", "k, experts per token", offsetof(struct model, experts_per_token)},
    {"expert_ffn", "fe, width of an expert", offsetof(struct model, expert_ffn)},
    {"shared_ffn", "fs, width of the shared expert", offsetof(struct model, shared_ffn)},
    {"mtp_layers", "multi-token-prediction layers", offsetof(struct model, mtp_layers)},
};

static void print_shape(struct out *out, const struct model *m)
{
    out_note(out, "model %s: family %s, %s", m->name, m->family, m->path);
    out_meta(out, "model", out_text(m->name));
    out_meta(out, "family", out_text(m->family));
    out_meta(out, "path", out_text(m->path));
    if (m->part) {
        out_note(out, "only %s is counted, not what stands beside it (a vision tower)", m->part);
        out_meta(out, "part", out_text(m->part));
    }
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        uint64_t value = *(const uint64_t *)(const void *)((const char *)m + facts[i].offset);
        if (value) {
            out_note(out, "%s: %" PRIu64, facts[i].text, value);
        }
        out_meta(out, facts[i].key, out_uint(value));
    }
    out_note(out, "MLP %s, head %s", m->gated ? "gated (three matrices)" : "of two matrices",
             m->tied ? "tied to the token table" : "of its own");
    out_meta(out, "gated", out_bool(m->gated));
    out_meta(out, "tied", out_bool(m->tied));
}

static void print_kinds(struct out *out, const struct model *m)
{
    for (size_t i = 0; i < m->nkinds; i++) {
        const struct model_kind *k = &m->kinds[i];
        char *window =
            k->window ? mem_printf("sliding window %" PRIu64, k->window) : mem_strdup("full");
        out_note(out,
                 "%" PRIu64 " layers: %s attention%s%s, %s, %" PRIu64 " parameters each, %" PRIu64
                 " active",
                 k->copies, window, k->causal ? "" : " (not causal)",
                 k->cross ? " and cross-attention" : "", k->moe ? "experts" : "dense MLP",
                 model_kind_params(k), k->active);
        free(window);
    }
}

static void print_counts(struct out *out, const struct model *m)
{
    out_note(out, "parameters: %" PRIu64 " (%.2f GB = %.2f GiB in 2 bytes each)", m->params,
             (double)m->params * 2 / 1e9, (double)m->params * 2 / (1 << 30));
    out_note(out, "active per token: %" PRIu64 ", without the token table %" PRIu64, m->active,
             m->active - (m->tied ? 0 : m->once[MODEL_EMBEDDING]));
    out_meta(out, "params", out_uint(m->params));
    out_meta(out, "active", out_uint(m->active));
    out_meta(out, "mtp_params", out_uint(m->mtp_params));
    if (m->mtp_params) {
        out_note(out, "multi-token prediction adds %" PRIu64 ", not in the sum above",
                 m->mtp_params);
    }
    for (size_t i = 0; i < m->nassumed; i++) {
        out_note(out, "assumed: %s", m->assumed[i]);
    }
}

static void print_terms(struct out *out, const struct model *m)
{
    size_t count;
    struct model_term *terms = model_terms(m, &count);
    for (size_t i = 0; i < count; i++) {
        const struct model_term *t = &terms[i];
        struct out_cell cells[] = {
            out_text(t->mtp ? "MTP" : model_part_name(t->part)),
            out_text(t->name),
            out_text(t->formula),
            out_text(t->numbers),
            out_uint(t->each),
            out_uint(t->copies),
            out_uint(t->each * t->copies),
            out_uint(t->active * t->copies),
        };
        out_row(out, cells);
    }
    model_terms_free(terms, count);
}

/* ---- the presets ---- */

static const struct out_column preset_columns[] = {
    {"model", NULL, -22, 0, OUT_TEXT, NULL, NULL}, {"family", NULL, -12, 0, OUT_TEXT, NULL, NULL},
    {"layers", NULL, 6, 0, OUT_UINT, NULL, NULL},  {"hidden", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"params", NULL, 14, 0, OUT_UINT, NULL, NULL}, {"active", NULL, 14, 0, OUT_UINT, NULL, NULL},
};

static int print_presets(struct out *out, struct err *err)
{
    char **names = ship_names("models", ".json", NULL);
    for (char **name = names; *name; name++) {
        struct model model;
        if (model_read(&model, *name, err) == 0) {
            struct out_cell cells[] = {
                out_text(*name),        out_text(model.family), out_uint(model.layers),
                out_uint(model.hidden), out_uint(model.params), out_uint(model.active),
            };
            out_row(out, cells);
        }
        model_release(&model);
    }
    if (!*names) {
        err_add(err, ERR_FAILED, "no folder \"models\" is installed beside the program");
    }
    ship_names_free(names);
    return err->count ? -1 : 0;
}

/* ---- buckets ---- */

static const struct out_column bucket_columns[] = {
    {"bucket", NULL, 6, 0, OUT_UINT, NULL, NULL},  {"bytes", NULL, 14, 0, OUT_UINT, NULL, NULL},
    {"tensors", NULL, 8, 0, OUT_UINT, NULL, NULL}, {"from", NULL, -32, 0, OUT_TEXT, NULL, NULL},
    {"to", NULL, -32, 0, OUT_TEXT, NULL, NULL},
};

/* Bytes of each gradient, in the order in which they are ready. NULL with a sentence per fault;
 * freed by the caller. */
static uint64_t *gradient_bytes(const struct csv *csv, uint64_t each, struct err *err)
{
    uint64_t *bytes = mem_calloc(csv->nrows, sizeof *bytes), sum = 0;
    unsigned before = err->count;
    for (size_t i = 0; i < csv->nrows; i++) {
        size_t row = csv->nrows - 1 - i;
        uint64_t params = 0;
        char *where = mem_printf("%s:%zu: params", csv->path, csv->line[row]);
        units_read_uint(where, csv_cell(csv, row, "params"), 0, INT64_MAX / 8, &params, err);
        bytes[i] = params * each;
        if (__builtin_add_overflow(sum, bytes[i], &sum) || sum > INT64_MAX) {
            err_add(err, ERR_USAGE, "%s: all tensors together are more than 2^63 bytes", where);
            sum = 0;
        }
        free(where);
    }
    if (err->count == before) return bytes;
    free(bytes);
    return NULL;
}

static void print_buckets(struct out *out, const struct csv *csv, const uint64_t *bytes,
                          const struct request *q)
{
    size_t n = csv->nrows, from = 0;
    uint64_t first = q->first_bucket < q->bucket ? q->first_bucket : q->bucket, sum = 0;
    uint64_t *buckets = mem_calloc(n, sizeof *buckets);
    size_t *last = mem_calloc(n, sizeof *last);
    size_t count = bucket_cut(bytes, n, first, q->bucket, buckets, last);
    for (size_t i = 0; i < n; i++)
        sum += bytes[i];
    out_note(out, "%zu tensors of %s: %" PRIu64 " bytes of gradients in %zu buckets", n, csv->path,
             sum, count);
    out_meta(out, "bytes", out_uint(sum));
    for (size_t i = 0; i < count; from = ++last[i++]) {
        struct out_cell cells[] = {out_uint(i), out_uint(buckets[i]), out_uint(last[i] + 1 - from),
                                   out_text(csv_cell(csv, n - 1 - from, "tensor")),
                                   out_text(csv_cell(csv, n - 1 - last[i], "tensor"))};
        out_row(out, cells);
    }
    free(buckets);
    free(last);
}

static int show_buckets(const struct request *request, struct err *err)
{
    struct csv csv;
    if (csv_read(&csv, request->tensors, err)) return -1;
    int bad = 0;
    if (csv_column(&csv, "tensor") == SIZE_MAX || csv_column(&csv, "params") == SIZE_MAX)
        bad = err_add(err, ERR_USAGE, "%s:1: the columns tensor and params are needed", csv.path);
    uint64_t *bytes = bad ? NULL : gradient_bytes(&csv, request->bytes, err);
    if (bytes) {
        struct out *out = out_new(bucket_columns, sizeof bucket_columns / sizeof *bucket_columns);
        if (!out_add_asked(out, request->json, request->csv, request->overwrite, err))
            print_buckets(out, &csv, bytes, request);
        bad = out_close(out, err);
    }
    free(bytes);
    csv_release(&csv);
    return err->count ? -1 : bad;
}

/* ---- the command ---- */

static int show_presets(const struct request *request, struct err *err)
{
    struct out *out = out_new(preset_columns, sizeof preset_columns / sizeof *preset_columns);
    int bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    if (!bad) {
        bad = print_presets(out, err);
    }
    return out_close(out, err) | bad;
}

static int show_model(const struct request *request, const char *name, struct err *err)
{
    struct model model;
    if (model_read(&model, name, err) < 0) {
        return -1;
    }
    struct out *out = out_new(term_columns, sizeof term_columns / sizeof *term_columns);
    int bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    if (!bad) {
        print_shape(out, &model);
        print_kinds(out, &model);
        print_counts(out, &model);
        print_terms(out, &model);
    }
    model_release(&model);
    return out_close(out, err) | bad;
}

/* What is said of buckets or of a model beside the other. Returns 0, or -1 with sentences. */
static int check_words(const struct request *request, const struct opts *opts, struct err *err)
{
    static const char *const of_buckets[] = {"bucket-size", "first-bucket-size", "grad-bytes"};
    if (request->tensors && opts->npositionals)
        return err_add(err, ERR_USAGE,
                       "commsim model takes a model or --tensors, \"%s\" is given beside it",
                       opts->positionals[0]);
    if (opts->npositionals > 1)
        return err_add(err, ERR_USAGE, "commsim model takes one name or path, %zu are given",
                       opts->npositionals);
    for (size_t i = 0; i < sizeof of_buckets / sizeof *of_buckets && !request->tensors; i++)
        if (opts_is_set(opts, of_buckets[i]))
            err_add(err, ERR_USAGE, "--%s is for the buckets of --tensors, which is not given",
                    of_buckets[i]);
    return err->count ? -1 : 0;
}

static void show_any(const struct request *request, const struct opts *opts, struct err *err)
{
    if (request->tensors)
        show_buckets(request, err);
    else if (opts->npositionals)
        show_model(request, opts->positionals[0], err);
    else
        show_presets(request, err);
}

int model_cmd(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct request request = {0};
    struct opts opts;
    if (opts_parse(&opts, options, &request, argc, argv, &err) == 0 && opts.help) {
        opts_help(stdout, "commsim model [NAME|PATH | --tensors FILE] [options]", about, options);
    } else if (!err.count && !check_words(&request, &opts, &err)) {
        show_any(&request, &opts, &err);
    }
    opts_release(&opts);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
