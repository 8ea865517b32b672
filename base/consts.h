/* SPDX-License-Identifier: Apache-2.0
 * Tables of constants: a CSV file with a row per number (name, key, value, unit, source, whether it
 * is fitted, prior and its width, bounds) and the struct of doubles that it fills. Which struct,
 * and which field a row means, is said by a list of fields. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* A field: one double, or an array with one for each key. */
struct const_field {
    const char *name;
    size_t offset; /* in the struct of values */
    const char *const *keys;
    size_t nkeys;
};

/* One row of the table. */
struct const_row {
    char *name, *key, *unit, *source;      /* key: of an array; "" of a single number */
    double value, prior, sigma, low, high; /* sigma: of ln(value), the width of the prior */
    bool fitted;
    size_t offset; /* of the double in the struct of values */
};

struct const_rows {
    struct const_row *rows;
    size_t nrows;
};

/* Reads the table at `path`, NULL: the shipped data/`shipped`, and fills `values`. Every field must
 * have exactly one row; each fault is a sentence with its line. Returns 0, or -1 with no rows. */
int consts_read(struct const_rows *table, void *values, const struct const_field *fields,
                size_t nfields, const char *path, const char *shipped, struct err *err);
void consts_release(struct const_rows *table);

/* The value of a row inside `values`. */
double *consts_slot(void *values, const struct const_row *row);

/* Writes the table with the numbers of `values`, `digits` significant ones. Returns 0, or -1 with a
 * sentence. */
int consts_write(const struct const_rows *table, const void *values, int digits, const char *path,
                 struct err *err);
