/* SPDX-License-Identifier: Apache-2.0
 * Fits the constants of a table that are marked as fitted: robust least squares with a prior for
 * each constant, so that what no measurement decides stays where it was put. Levenberg-Marquardt of
 * the GNU Scientific Library. */
#pragma once

#include "base/consts.h"

enum solve_ask {
    SOLVE_ALL,    /* with the present values */
    SOLVE_SLOPES, /* again, with the same values: slopes are asked for next .. */
    SOLVE_MOVED   /* .. with `row` of the list alone moved a little */
};

struct solve {
    struct const_rows *list; /* changed: values of the fitted rows */
    void *values;            /* .. and the struct that they fill */
    size_t npoints;
    /* The residual of a point with the present `values`: see solve_residual. */
    double (*residual)(const void *context, size_t point);
    /* May be given in its place: all residuals at once, into out[npoints]. */
    int (*residuals)(void *context, enum solve_ask ask, size_t row, double *out, struct err *err);
    void *context;
    size_t keep_slopes; /* steps for which slopes are kept once they are found; 0: 1 */
    bool from_prior;    /* start there; else from the present values */
    size_t max_iterations;
};

struct solve_report {
    size_t unknowns, iterations;
    double cost_before, cost_after; /* half the sum of squares, priors included */
};

/* 0, or -1 (ERR_FAILED) if the solver gives up; then `values` are in between. `report` may be NULL.
 */
int solve_constants(const struct solve *solve, struct solve_report *report, struct err *err);

/* The residual for ln(predicted / measured), of which errors beyond `scale` count linearly: bent so
 * that half its square is the pseudo-Huber loss sqrt(1 + r^2) - 1. `weight` (> 0) is that of its
 * square. */
double solve_residual(double log_ratio, double scale, double weight);
