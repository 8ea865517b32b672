/* SPDX-License-Identifier: Apache-2.0
 * JSON files that people write: reading them with limits, typed access to their members, and
 * faults that name file and line. jansson parses; this file adds the line of every member, which
 * jansson does not keep, and the sentences. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    DOC_BYTES_MAX = 16 << 20, /* a longer file is refused, unless doc_read_long allows more */
    DOC_FAULTS_MAX = 100,     /* further faults of one file are counted in one last sentence */
};

struct doc {
    char *path; /* how the user knows the file; starts every sentence */
    char *text; /* the whole file */
    size_t bytes;
    json_t *root;    /* owned; members live as long as the doc */
    unsigned faults; /* sentences written so far */
};

/* Reads and parses a file, or `bytes` bytes of text known to the user as `path`. Two members of
 * one object with the same name are a fault; so are depth beyond 2048, numbers beyond 64 bits or
 * the range of a double, and text that is not UTF-8. Returns 0, or -1 with one sentence (ERR_USAGE)
 * and an empty doc. doc_release frees; it accepts an empty (zeroed) doc. */
int doc_read(struct doc *doc, const char *path, struct err *err);
int doc_read_long(struct doc *doc, const char *path, size_t bytes_max, struct err *err);
int doc_parse(struct doc *doc, const char *path, const char *text, size_t bytes, struct err *err);
void doc_release(struct doc *doc);

/* Line (from 1) on which the member `key` of `parent` starts; for an array, its element `index`
 * (key is then ignored). Where there is no such member, the line on which `parent` starts. */
unsigned doc_line(const struct doc *doc, const json_t *parent, const char *key, size_t index);

/* Adds "PATH:LINE: sentence" (ERR_USAGE) for that member or element. Returns -1. */
int doc_fault(struct doc *doc, struct err *err, const json_t *parent, const char *key,
              const char *format, ...) __attribute__((format(printf, 5, 6)));
int doc_fault_item(struct doc *doc, struct err *err, const json_t *array, size_t index,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Typed members. An absent or null member leaves *value alone and returns 0; a good one is stored
 * and returns 1; a wrong type or a value outside min..max is a fault and returns -1. `object` may
 * be NULL (nothing is there). Strings are borrowed from the doc. */
int doc_uint(struct doc *doc, const json_t *object, const char *key, uint64_t min, uint64_t max,
             uint64_t *value, struct err *err);
int doc_double(struct doc *doc, const json_t *object, const char *key, double min, double max,
               double *value, struct err *err);
int doc_bool(struct doc *doc, const json_t *object, const char *key, bool *value, struct err *err);
int doc_string(struct doc *doc, const json_t *object, const char *key, const char **value,
               struct err *err);
/* An object or array member (JSON_OBJECT or JSON_ARRAY). */
int doc_child(struct doc *doc, const json_t *object, const char *key, json_type type,
              json_t **value, struct err *err);

/* Refuses members of `object` that are not in `known` (ended by NULL): one sentence each, with the
 * nearest known name and all of them. Returns 0 or -1. */
int doc_keys(struct doc *doc, const json_t *object, const char *const *known, struct err *err);

/* A document that is a table: {"schema": 1, NAME: [rows]} with no members but `known`. Adds every
 * fault; -1 if there was one. *rows is NULL when the rows themselves cannot be read. */
int doc_table(struct doc *doc, const char *const *known, const char *name, json_t **rows,
              struct err *err);
