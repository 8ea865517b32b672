/* SPDX-License-Identifier: Apache-2.0
 * JSON files with limits and lines. jansson parses and checks; when a fault must name a line, the
 * text is walked once more beside the parsed tree: members keep their order, so the n-th value of
 * the text is the n-th value of the tree. */
#include "base/doc.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"

/* ---- lines ---- */

struct walk {
    const char *at;
    unsigned line;
    const json_t *parent; /* wanted: this member of this container */
    const char *key;
    size_t index;
    unsigned parent_line, member_line; /* 0 until found */
};

static void skip_space(struct walk *w)
{
    for (; strchr(" \t\r\n,:", *w->at) && *w->at; w->at++) {
        w->line += *w->at == '\n';
    }
}

/* From an opening quote to behind the closing one. */
static void skip_string(struct walk *w)
{
    for (w->at++; *w->at != '"'; w->at++) {
        w->at += *w->at == '\\';
    }
    w->at++;
}

static bool found(const struct walk *w)
{
    return w->member_line != 0;
}

static void walk_value(struct walk *w, const json_t *value);

static void walk_object(struct walk *w, const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        skip_space(w);
        if (object == w->parent && w->key && strcmp(key, w->key) == 0) {
            w->member_line = w->line;
        }
        skip_string(w);
        walk_value(w, value);
        if (found(w)) {
            return;
        }
    }
}

static void walk_array(struct walk *w, const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array) && !found(w); i++) {
        skip_space(w);
        if (array == w->parent && i == w->index) {
            w->member_line = w->line;
        }
        walk_value(w, json_array_get(array, i));
    }
}

/* Validated text: what opens also closes. Depth is bounded by jansson. */
static void walk_value(struct walk *w, const json_t *value)
{
    skip_space(w);
    if (found(w)) {
        return;
    }
    if (json_is_string(value)) {
        skip_string(w);
    } else if (json_is_object(value) || json_is_array(value)) {
        if (value == w->parent) {
            w->parent_line = w->line;
        }
        w->at++;
        if (json_is_object(value)) {
            walk_object(w, value);
        } else {
            walk_array(w, value);
        }
        skip_space(w);
        w->at += !found(w);
    } else {
        w->at += strcspn(w->at, " \t\r\n,:]}");
    }
}

unsigned doc_line(const struct doc *doc, const json_t *parent, const char *key, size_t index)
{
    struct walk w = {.at = doc->text, .line = 1, .parent = parent, .key = key, .index = index};
    walk_value(&w, doc->root);
    return found(&w) ? w.member_line : w.parent_line ? w.parent_line : 1;
}

/* ---- faults ---- */

static int fault(struct doc *doc, struct err *err, unsigned line, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));

static int fault(struct doc *doc, struct err *err, unsigned line, const char *format, va_list args)
{
    doc->faults++;
    char *sentence = mem_vprintf(format, args);
    err_add(err, ERR_USAGE, "%s:%u: %s", doc->path, line, sentence);
    free(sentence);
    return -1;
}

/* Beyond the most that a reader could want, faults are only counted: one sentence says so. */
static bool too_many(struct doc *doc, struct err *err)
{
    if (doc->faults < DOC_FAULTS_MAX) {
        return false;
    }
    if (doc->faults++ == DOC_FAULTS_MAX) {
        err_add(err, ERR_USAGE, "%s: more than %d faults; the others are not listed", doc->path,
                DOC_FAULTS_MAX);
    }
    return true;
}

int doc_fault(struct doc *doc, struct err *err, const json_t *parent, const char *key,
              const char *format, ...)
{
    if (too_many(doc, err)) {
        return -1;
    }
    va_list args;
    va_start(args, format);
    fault(doc, err, doc_line(doc, parent, key, SIZE_MAX), format, args);
    va_end(args);
    return -1;
}

int doc_fault_item(struct doc *doc, struct err *err, const json_t *array, size_t index,
                   const char *format, ...)
{
    if (too_many(doc, err)) {
        return -1;
    }
    va_list args;
    va_start(args, format);
    fault(doc, err, doc_line(doc, array, NULL, index), format, args);
    va_end(args);
    return -1;
}

/* ---- reading ---- */

/* jansson's sentence without the excerpt of the text, of which hostile input could fill a page. */
static void syntax_fault(const struct doc *doc, const json_error_t *fault_, struct err *err)
{
    const char *near = strstr(fault_->text, " near '");
    int length = near ? (int)(near - fault_->text) : (int)strlen(fault_->text);
    err_add(err, ERR_USAGE, "%s:%d: not valid JSON: %.*s (column %d)", doc->path,
            fault_->line > 0 ? fault_->line : 1, length, fault_->text, fault_->column);
}

/* Takes `text`, of `bytes` bytes and a NUL. */
static int parse(struct doc *doc, const char *path, char *text, size_t bytes, size_t bytes_max,
                 struct err *err)
{
    json_error_t fault_;
    *doc = (struct doc){.path = mem_strdup(path), .text = text, .bytes = bytes};
    if (bytes > bytes_max) {
        err_add(err, ERR_USAGE, "%s: longer than %zu bytes, the most that is read", path,
                bytes_max);
    } else {
        doc->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &fault_);
        if (!doc->root) {
            syntax_fault(doc, &fault_, err);
        }
    }
    if (!doc->root) {
        doc_release(doc);
        return -1;
    }
    return 0;
}

int doc_parse(struct doc *doc, const char *path, const char *text, size_t bytes, struct err *err)
{
    char *copy = mem_calloc(bytes + 1, 1);
    memcpy(copy, text, bytes);
    return parse(doc, path, copy, bytes, DOC_BYTES_MAX, err);
}

int doc_read_long(struct doc *doc, const char *path, size_t bytes_max, struct err *err)
{
    *doc = (struct doc){0};
    FILE *file = fopen(path, "rb");
    if (!file) {
        return err_add(err, ERR_USAGE, "%s: cannot be opened: %s", path, strerror(errno));
    }
    size_t room = 1 << 14, bytes = 0;
    char *text = mem_calloc(room + 1, 1);
    while (bytes <= bytes_max) {
        size_t got = fread(text + bytes, 1, room - bytes, file);
        bytes += got;
        if (got == 0) {
            break;
        }
        if (bytes == room) {
            room *= 2;
            text = mem_realloc(text, room + 1, 1);
        }
    }
    int failed = ferror(file) ? errno : 0;
    fclose(file);
    if (failed) {
        free(text);
        return err_add(err, ERR_USAGE, "%s: cannot be read: %s", path, strerror(failed));
    }
    text[bytes] = '\0';
    return parse(doc, path, text, bytes, bytes_max, err);
}

int doc_read(struct doc *doc, const char *path, struct err *err)
{
    return doc_read_long(doc, path, DOC_BYTES_MAX, err);
}

void doc_release(struct doc *doc)
{
    json_decref(doc->root);
    free(doc->text);
    free(doc->path);
    *doc = (struct doc){0};
}

/* ---- typed members ---- */

static const char *const type_names[] = {
    [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list",
    [JSON_STRING] = "a string",    [JSON_INTEGER] = "a whole number",
    [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
    [JSON_FALSE] = "false",        [JSON_NULL] = "null",
};

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static int wrong_type(struct doc *doc, const json_t *object, const char *key, const char *wanted,
                      struct err *err)
{
    return doc_fault(doc, err, object, key, "\"%s\" must be %s, it is %s", key, wanted,
                     type_names[json_typeof(json_object_get(object, key))]);
}

int doc_uint(struct doc *doc, const json_t *object, const char *key, uint64_t min, uint64_t max,
             uint64_t *value, struct err *err)
{
    json_t *found_ = member(object, key);
    if (!found_) {
        return 0;
    }
    if (!json_is_integer(found_)) {
        return wrong_type(doc, object, key, "a whole number", err);
    }
    json_int_t number = json_integer_value(found_);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max) {
        return doc_fault(doc, err, object, key,
                         "\"%s\" is %" JSON_INTEGER_FORMAT ", it must be in %" PRIu64 "..%" PRIu64,
                         key, number, min, max);
    }
    *value = (uint64_t)number;
    return 1;
}

int doc_double(struct doc *doc, const json_t *object, const char *key, double min, double max,
               double *value, struct err *err)
{
    json_t *found_ = member(object, key);
    if (!found_) {
        return 0;
    }
    if (!json_is_number(found_)) {
        return wrong_type(doc, object, key, "a number", err);
    }
    double number = json_number_value(found_);
    if (!(number >= min && number <= max)) {
        return doc_fault(doc, err, object, key, "\"%s\" is %g, it must be in %g..%g", key, number,
                         min, max);
    }
    *value = number;
    return 1;
}

int doc_bool(struct doc *doc, const json_t *object, const char *key, bool *value, struct err *err)
{
    json_t *found_ = member(object, key);
    if (!found_) {
        return 0;
    }
    if (!json_is_boolean(found_)) {
        return wrong_type(doc, object, key, "true or false", err);
    }
    *value = json_is_true(found_);
    return 1;
}

int doc_string(struct doc *doc, const json_t *object, const char *key, const char **value,
               struct err *err)
{
    json_t *found_ = member(object, key);
    if (!found_) {
        return 0;
    }
    if (!json_is_string(found_)) {
        return wrong_type(doc, object, key, "a string", err);
    }
    *value = json_string_value(found_);
    return 1;
}

int doc_child(struct doc *doc, const json_t *object, const char *key, json_type type,
              json_t **value, struct err *err)
{
    json_t *found_ = member(object, key);
    if (!found_) {
        return 0;
    }
    if (json_typeof(found_) != type) {
        return wrong_type(doc, object, key, type_names[type], err);
    }
    *value = found_;
    return 1;
}

int doc_keys(struct doc *doc, const json_t *object, const char *const *known, struct err *err)
{
    int result = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        const char *const *name = known;
        while (*name && strcmp(*name, key) != 0) {
            name++;
        }
        if (!*name) {
            struct err inner = ERR_INIT;
            opts_unknown(&inner, "member", key, known);
            result = doc_fault(doc, err, object, key, "%s", inner.text);
            err_release(&inner);
        }
    }
    return result;
}

int doc_table(struct doc *doc, const char *const *known, const char *name, json_t **rows,
              struct err *err)
{
    uint64_t schema = 0;
    *rows = NULL;
    if (!json_is_object(doc->root)) {
        return err_add(err, ERR_USAGE, "%s:1: must be an object", doc->path);
    }
    int result = doc_keys(doc, doc->root, known, err);
    int got = doc_uint(doc, doc->root, "schema", 1, 1, &schema, err);
    if (got == 0) {
        got = doc_fault(doc, err, doc->root, NULL, "\"schema\" is missing; it is 1");
    }
    result |= got < 0 ? -1 : 0;
    got = doc_child(doc, doc->root, name, JSON_ARRAY, rows, err);
    if (got == 0) {
        got = doc_fault(doc, err, doc->root, NULL, "\"%s\" is missing", name);
    }
    return got < 0 ? -1 : result;
}
