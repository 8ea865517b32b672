/* SPDX-License-Identifier: Apache-2.0
 * Reads the text once and cuts it in place: a field loses its quotes and is ended by a zero. */
#include "base/csv.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/ship.h"

/* The whole file as text, or NULL with a sentence. */
static char *slurp(const char *path, struct err *err)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        err_add(err, ERR_USAGE, "%s cannot be read: %s", path, strerror(errno));
        return NULL;
    }
    char *text = NULL;
    size_t count = 0, cap = 0, got;
    do {
        cap = cap ? 2 * cap : 1 << 16;
        text = mem_realloc(text, cap + 1, 1);
        got = fread(text + count, 1, cap - count, file);
        count += got;
    } while (count == cap);
    text[count] = 0;
    int failed = ferror(file);
    fclose(file);
    if (failed || memchr(text, 0, count)) {
        err_add(err, ERR_USAGE, "%s cannot be read as text: %s", path,
                failed ? "the read failed" : "it holds a zero byte");
        free(text);
        return NULL;
    }
    return text;
}

struct cursor {
    char *at;
    size_t line;
};

/* Takes one field off the text; *last tells that it ended its line. NULL: a quote is left open. */
static char *field(struct cursor *c, int *last)
{
    char *out = c->at, *start = out;
    int quoted = *c->at == '"';
    if (quoted) {
        c->at++;
        while (*c->at && !(c->at[0] == '"' && c->at[1] != '"')) {
            c->line += *c->at == '\n';
            c->at += *c->at == '"';
            *out++ = *c->at++;
        }
        if (!*c->at) return NULL;
        c->at++;
    }
    while (*c->at && *c->at != ',' && *c->at != '\n' && *c->at != '\r') {
        *out++ = *c->at++;
    }
    *last = *c->at != ',';
    if (*c->at == '\r') c->at++;
    if (*c->at == '\n') c->line++;
    if (*c->at) c->at++;
    *out = 0;
    return start;
}

/* Reads one line into `fields` (grown); returns 0, or -1 with a sentence. */
static int record(struct csv *csv, struct cursor *c, char ***fields, size_t *count, size_t *cap,
                  struct err *err)
{
    size_t line = c->line;
    int last = 0;
    *count = 0;
    while (!last) {
        char *text = field(c, &last);
        if (!text) {
            return err_add(err, ERR_USAGE, "%s:%zu: a quote is not closed", csv->path, line);
        }
        MEM_GROW(*fields, *count, *cap);
        (*fields)[(*count)++] = text;
    }
    return 0;
}

int csv_read(struct csv *csv, const char *path, struct err *err)
{
    *csv = (struct csv){0};
    struct csv t = {.text = slurp(path, err)};
    if (!t.text) return -1;
    t.path = mem_strdup(path);
    static char empty[] = "";
    struct cursor c = {t.text, 1};
    char **fields = NULL;
    size_t count = 0, cap = 0, rows_cap = 0;
    if (record(&t, &c, &t.header, &t.ncolumns, &cap, err)) goto fail;
    cap = 0;
    while (*c.at) {
        size_t line = c.line;
        if (record(&t, &c, &fields, &count, &cap, err)) goto fail;
        if (count == 1 && !*fields[0]) continue;
        if (count > t.ncolumns) {
            err_add(err, ERR_USAGE, "%s:%zu: the line has %zu fields, the header %zu", path, line,
                    count, t.ncolumns);
            goto fail;
        }
        if (t.nrows == rows_cap) {
            rows_cap = rows_cap ? 2 * rows_cap : 64;
            t.cells = mem_realloc(t.cells, rows_cap * t.ncolumns, sizeof *t.cells);
            t.line = mem_realloc(t.line, rows_cap, sizeof *t.line);
        }
        for (size_t i = 0; i < t.ncolumns; i++) {
            t.cells[t.nrows * t.ncolumns + i] = i < count ? fields[i] : empty;
        }
        t.line[t.nrows++] = line;
    }
    free(fields);
    *csv = t;
    return 0;
fail:
    free(fields);
    csv_release(&t);
    return -1;
}

void csv_release(struct csv *csv)
{
    free(csv->path);
    free(csv->header);
    free(csv->cells);
    free(csv->line);
    free(csv->text);
    *csv = (struct csv){0};
}

size_t csv_column(const struct csv *csv, const char *name)
{
    for (size_t i = 0; i < csv->ncolumns; i++) {
        if (strcmp(csv->header[i], name) == 0) return i;
    }
    return SIZE_MAX;
}

const char *csv_cell(const struct csv *csv, size_t row, const char *name)
{
    size_t column = csv_column(csv, name);
    return column == SIZE_MAX ? "" : csv->cells[row * csv->ncolumns + column];
}

char *csv_shipped(const char *name)
{
    char *folder = ship_folder("data");
    char *path = folder ? mem_printf("%s/%s", folder, name) : NULL;
    free(folder);
    if (path && access(path, R_OK) == 0) return path;
    free(path);
    return NULL;
}
