/* SPDX-License-Identifier: Apache-2.0
 * Scores predictions against tables of measurements: errors by bucket, repeats merged, pairs of the
 * same job in order, memory, and whether it fits. No row is dropped: what is not scored is counted
 * with its reason. */
#pragma once

#include "train/constants.h"
#include "train/memory.h"
#include "train/rows.h"
#include "train/runner.h"

struct prediction {
    struct step step;
    double time_s, error; /* error: predicted / measured - 1; NaN where nothing was measured */
    struct memory memory;
    double memory_GiB; /* what compares with the measured figure */
    bool fits;
    size_t merged_into; /* first row of identical inputs; its own index for the first */
};

struct score {
    size_t n;
    double median, p90, worst, bias, mean; /* of the absolute error, bias of the signed one; % */
};

/* The rows' steps as points of a runner, row by row. The rows must outlive it. */
struct runner *score_runner(const struct rows *rows, enum engine engine, struct err *err);

/* One prediction per row (zeroed where the row has no job), by the runner of these rows; freed by
 * the caller with free(). NULL with a sentence for each step that the engine refuses. */
struct prediction *score_predict(const struct rows *rows, struct runner *runner,
                                 const struct constants *c, struct err *err);

/* Whether a row's step time is scored: it has a job, a measured time, status ok, and no bucket
 * that is scored apart. */
bool score_counts(const struct row *row);

/* 0 if any row counts (with `memory`, also one that has only a measured memory); else -1 with a
 * sentence: the column that is missing (ERR_USAGE), or why the first row is left out. */
int score_any(const struct rows *rows, bool memory, struct err *err);

/* Statistics of n errors (fractions); sorts them. */
struct score score_of(double *errors, size_t n);

/* Median measurement of the rows that are merged into row i, seconds. */
double score_merged_time(const struct rows *rows, const struct prediction *p, size_t i);

/* A group of rows of which the errors are wanted. */
typedef bool (*score_member)(const struct row *row, const void *arg);

/* The score of the rows that count and are members; `merge` takes the median measurement of rows
 * with identical inputs as one row. */
struct score score_group(const struct rows *rows, const struct prediction *p, score_member member,
                         const void *arg, bool merge);

/* Pairs of one job under two strategies whose measured tokens/s differ by more than 5 %. */
struct pairs {
    size_t n, right;
};
struct pairs score_pairs(const struct rows *rows, const struct prediction *p);

/* Memory rows of a set of measures (bits 1 << MEM_...), models of at least `params` parameters;
 * `without` names a framework to leave out, or is NULL. */
struct score score_memory(const struct rows *rows, const struct prediction *p, unsigned measures,
                          double params, const char *without);

/* Fits or not: rows that ran out of memory against rows of the same frameworks that ran. */
struct confusion {
    size_t fits_right, fits_wrong, oom_right, oom_wrong;
};
struct confusion score_fits(const struct rows *rows, const struct prediction *p);
