/* SPDX-License-Identifier: Apache-2.0
 * Results: one table of columns, written as aligned text, CSV and JSON, to several places at the
 * same time. No other file prints results. An unknown value (an empty cell, NaN, infinity) is
 * "N/A" in text, empty in CSV and null in JSON. Each row is complete in its file before the next
 * is measured, so a run that ends early keeps its rows, and a JSON file is valid from the first
 * note or row on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum out_kind { OUT_UNKNOWN, OUT_TEXT, OUT_UINT, OUT_INT, OUT_DOUBLE, OUT_BOOL, OUT_DOUBLES };

struct out_column {
    const char *key;  /* name in CSV and JSON, where the unit is appended: "time" -> time_us */
    const char *unit; /* "us", "GB/s" (-> GBps), "%" (-> pct); NULL for none */
    int width;        /* of the text; negative aligns left, as in printf; 0 hides it in text */
    int precision;    /* decimals of a double in text; fewer if the width would be exceeded */
    enum out_kind kind;
    const char *label; /* heading in text; NULL takes the key */
    const char *group; /* heading above columns that belong together, and prefix of their keys:
                          "out-of-place" -> out_of_place_time_us; NULL for none */
};

/* One value. A zeroed cell is an unknown value of any kind. */
struct out_cell {
    enum out_kind kind;
    union {
        const char *text;
        uint64_t u;
        int64_t i;
        double d;
        bool b;
        struct {
            const double *values;
            size_t count;
        } doubles; /* raw samples: a list in JSON, joined by ; in CSV, a count in text */
    } v;
};

static inline struct out_cell out_text(const char *text)
{
    return (struct out_cell){.kind = text ? OUT_TEXT : OUT_UNKNOWN, .v.text = text};
}

static inline struct out_cell out_uint(uint64_t u)
{
    return (struct out_cell){.kind = OUT_UINT, .v.u = u};
}

static inline struct out_cell out_int(int64_t i)
{
    return (struct out_cell){.kind = OUT_INT, .v.i = i};
}

static inline struct out_cell out_double(double d)
{
    return (struct out_cell){.kind = OUT_DOUBLE, .v.d = d};
}

static inline struct out_cell out_bool(bool b)
{
    return (struct out_cell){.kind = OUT_BOOL, .v.b = b};
}

static inline struct out_cell out_doubles(const double *values, size_t count)
{
    return (struct out_cell){.kind = OUT_DOUBLES, .v.doubles = {values, count}};
}

enum out_format { OUT_FORMAT_TEXT, OUT_FORMAT_CSV, OUT_FORMAT_JSON };

struct out;

/* A table without a place to go. `columns` is copied; the texts in it are borrowed for the life of
 * the table. */
struct out *out_new(const struct out_column *columns, size_t ncolumns);

/* Adds a place: a file, or stdout if `path` is NULL or "-". An existing file is refused unless
 * `overwrite`; so is one file, or stdout, twice (all ERR_USAGE). What a file holds stays until the
 * first note or row; once a place was refused nothing is written anywhere. Call before the first
 * note or row; `path` is borrowed for the life of the table. Returns 0 or -1. */
int out_add(struct out *out, enum out_format format, const char *path, bool overwrite,
            struct err *err);

/* The places that --json, --csv and --overwrite of a program ask for (NULL: not asked for): text on
 * stdout, unless "-" gives stdout to one of them. Returns 0 or -1. */
int out_add_asked(struct out *out, const char *json, const char *csv, bool overwrite,
                  struct err *err);

/* Text as another program prints it: out_row writes no headings (the caller writes that program's
 * own with out_line), and a double that does not fit its column even without decimals gets a power
 * of ten ("1.2e+07"), so that readers who count characters stay right. Call before the first row.
 */
void out_imitate(struct out *out);

/* A line of text exactly as it is, blanks at its end too, at once; CSV and JSON do not have it. The
 * line has no newline. */
void out_line(struct out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets a fact about the run, for JSON alone: object "meta" before the first row, object "summary"
 * from then on. Setting a key again replaces it while its object is still open. The unit, if any,
 * is part of the key ("size_max_B"). */
void out_meta(struct out *out, const char *key, struct out_cell value);

/* There are no rows any more: from here on out_meta sets facts of "summary", even without a row. */
void out_summary(struct out *out);

/* A line "# ..." in text, at once; also an item of "notes" in JSON. The sentence has no newline. */
void out_note(struct out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One row: `cells` has one cell per column, of that column's kind or unknown. The first row prints
 * the headings. */
void out_row(struct out *out, const struct out_cell *cells);

/* Ends the table so far: rows that follow belong to another, with columns of their own (copied,
 * texts borrowed). Text: its headings stand above its first row, behind an empty line, and a table
 * whose columns are all hidden is not shown; CSV: its headings behind an empty line; JSON: a member
 * `name` (borrowed) beside "rows". Of CSV and text nothing is seen of a table without rows. */
void out_table(struct out *out, const char *name, const struct out_column *columns,
               size_t ncolumns);

/* True once stdout is a pipe whose reader went away: a reason to end the run. Where SIGPIPE is not
 * ignored, the program ends by it before. */
bool out_reader_gone(const struct out *out);

/* Completes and closes all places and frees the table, also after a failed run. NULL is fine. When
 * a place was refused, or `err` holds ERR_USAGE and there is no row, files that were new are
 * removed. Returns -1 and adds a sentence if something could not be written (ERR_FAILED), else 0; a
 * reader that went away is no such fault. */
int out_close(struct out *out, struct err *err);
