/* SPDX-License-Identifier: Apache-2.0
 * Tables of constants, read and written: see consts.h. */
#include "base/consts.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/mem.h"
#include "base/units.h"

double *consts_slot(void *values, const struct const_row *row)
{
    return (double *)(void *)((char *)values + row->offset);
}

/* Offset in the struct of values of (name, key), or SIZE_MAX. */
static size_t find_offset(const struct const_field *fields, size_t nfields, const char *name,
                          const char *key)
{
    for (size_t i = 0; i < nfields; i++) {
        if (strcmp(fields[i].name, name) != 0) continue;
        for (size_t k = 0; k < fields[i].nkeys; k++) {
            if (strcmp(fields[i].keys[k], key) == 0) return fields[i].offset + k * sizeof(double);
        }
    }
    return SIZE_MAX;
}

static int read_numbers(const struct csv *csv, size_t i, struct const_row *row, struct err *err)
{
    const struct {
        const char *column;
        double *to, missing;
    } numbers[] = {{"value", &row->value, NAN},
                   {"prior", &row->prior, NAN},
                   {"sigma", &row->sigma, NAN},
                   {"low", &row->low, 0},
                   {"high", &row->high, INFINITY}};
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
        const char *text = csv_cell(csv, i, numbers[n].column);
        *numbers[n].to = numbers[n].missing;
        if (!*text && !isnan(numbers[n].missing)) continue;
        char *option = mem_printf("%s:%zu: %s", csv->path, csv->line[i], numbers[n].column);
        int bad = units_read_double(option, text, numbers[n].to, err);
        free(option);
        if (bad) return -1;
    }
    return 0;
}

static int read_row(const struct csv *csv, size_t i, const struct const_field *fields,
                    size_t nfields, struct const_row *row, struct err *err)
{
    const char *name = csv_cell(csv, i, "name"), *key = csv_cell(csv, i, "key");
    row->offset = find_offset(fields, nfields, name, key);
    if (row->offset == SIZE_MAX) {
        return err_add(err, ERR_USAGE, "%s:%zu: there is no constant \"%s\" with key \"%s\"",
                       csv->path, csv->line[i], name, key);
    }
    if (read_numbers(csv, i, row, err)) return -1;
    if (!(row->value > 0 && row->prior > 0 && row->sigma > 0 && row->value >= row->low &&
          row->value <= row->high && isfinite(row->value))) {
        return err_add(err, ERR_USAGE,
                       "%s:%zu: value %g, prior %g and sigma %g of %s must be above 0 and the "
                       "value between %g and %g",
                       csv->path, csv->line[i], row->value, row->prior, row->sigma, name, row->low,
                       row->high);
    }
    row->name = mem_strdup(name);
    row->key = mem_strdup(key);
    row->unit = mem_strdup(csv_cell(csv, i, "unit"));
    row->source = mem_strdup(csv_cell(csv, i, "source"));
    row->fitted = strcmp(csv_cell(csv, i, "fitted"), "y") == 0;
    return 0;
}

/* Every field needs one row. */
static int check_complete(const struct const_rows *table, const struct const_field *fields,
                          size_t nfields, const char *path, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < nfields; i++) {
        for (size_t k = 0; k < fields[i].nkeys; k++) {
            size_t offset = fields[i].offset + k * sizeof(double), found = 0;
            for (size_t r = 0; r < table->nrows; r++) {
                found += table->rows[r].offset == offset;
            }
            if (found != 1) {
                bad = err_add(err, ERR_USAGE, "%s: constant %s%s%s has %zu rows, it needs 1", path,
                              fields[i].name, *fields[i].keys[k] ? " " : "", fields[i].keys[k],
                              found);
            }
        }
    }
    return bad;
}

int consts_read(struct const_rows *table, void *values, const struct const_field *fields,
                size_t nfields, const char *path, const char *shipped, struct err *err)
{
    *table = (struct const_rows){0};
    char *found = path ? mem_strdup(path) : csv_shipped(shipped);
    if (!found) {
        return err_add(err, ERR_FAILED, "the shipped table data/%s is not found", shipped);
    }
    struct csv csv = {0};
    if (csv_read(&csv, found, err)) {
        free(found);
        return -1;
    }
    int bad = 0;
    table->rows = mem_calloc(csv.nrows, sizeof *table->rows);
    for (size_t i = 0; i < csv.nrows; i++) {
        struct const_row *row = &table->rows[table->nrows];
        if (read_row(&csv, i, fields, nfields, row, err)) {
            bad = -1;
            continue;
        }
        *consts_slot(values, row) = row->value;
        table->nrows++;
    }
    if (!bad) bad = check_complete(table, fields, nfields, found, err);
    csv_release(&csv);
    free(found);
    if (bad) consts_release(table);
    return bad;
}

void consts_release(struct const_rows *table)
{
    for (size_t i = 0; i < table->nrows; i++) {
        free(table->rows[i].name);
        free(table->rows[i].key);
        free(table->rows[i].unit);
        free(table->rows[i].source);
    }
    free(table->rows);
    *table = (struct const_rows){0};
}

/* A field, quoted if it must be. */
static void put_field(FILE *to, const char *text)
{
    if (!strpbrk(text, ",\"\n")) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

int consts_write(const struct const_rows *table, const void *values, int digits, const char *path,
                 struct err *err)
{
    FILE *to = fopen(path, "w");
    if (!to) {
        return err_add(err, ERR_FAILED, "%s cannot be written: %s", path, strerror(errno));
    }
    fputs("name,key,value,unit,source,fitted,prior,sigma,low,high\n", to);
    for (size_t i = 0; i < table->nrows; i++) {
        const struct const_row *row = &table->rows[i];
        double value = *(const double *)(const void *)((const char *)values + row->offset);
        fprintf(to, "%s,%s,%.*g,%s,", row->name, row->key, digits, value, row->unit);
        put_field(to, row->source);
        fprintf(to, ",%s,%g,%g,%g,", row->fitted ? "y" : "n", row->prior, row->sigma, row->low);
        if (isfinite(row->high)) fprintf(to, "%g", row->high);
        fputc('\n', to);
    }
    int failed = ferror(to);
    if (fclose(to) || failed) {
        return err_add(err, ERR_FAILED, "%s could not be written whole", path);
    }
    return 0;
}
