/* SPDX-License-Identifier: Apache-2.0
 * Comma-separated tables with a header line, as spreadsheets write them: quotes, doubled quotes,
 * commas and newlines inside quotes. Columns are found by name, so their order does not matter. */
#pragma once

#include <stddef.h>

#include "base/err.h"

struct csv {
    char *path;
    char **header; /* ncolumns names */
    size_t ncolumns;
    char **cells; /* nrows x ncolumns texts, "" where a line is short */
    size_t nrows;
    size_t *line; /* per row, from 1 */
    char *text;   /* holds all of the above */
};

/* Reads a file whole. ERR_USAGE if it cannot be read, has no header, a quote is not closed, or a
 * line has more fields than the header (with the line). Returns 0 or -1. */
int csv_read(struct csv *csv, const char *path, struct err *err);
void csv_release(struct csv *csv);

/* The path of a table in the shipped folder data/, never one of the working directory: a file there
 * that happens to bear the name must not change predictions. NULL if it is not found. Freed by the
 * caller. */
char *csv_shipped(const char *name);

/* The column of that name, or SIZE_MAX. */
size_t csv_column(const struct csv *csv, const char *name);

/* The cell of a row by column name; "" if there is no such column. */
const char *csv_cell(const struct csv *csv, size_t row, const char *name);
