/* SPDX-License-Identifier: Apache-2.0
 * The residuals of measured steps: see fit.h, and solve.h for the solver. */
#include "train/fit.h"

#include <math.h>

#include "train/step.h"

static const double scale = .03; /* errors beyond 3 % count linearly */

struct problem {
    const struct const_table *table;
    const struct fit_point *points;
};

static double residual(const void *context, size_t i)
{
    const struct problem *p = context;
    const struct fit_point *point = &p->points[i];
    double t = step_predict(point->job, &p->table->values).time_s;
    return solve_residual(log(t / point->measured_s), scale, point->weight);
}

int fit_constants(struct const_table *table, const struct fit_point *points, size_t npoints,
                  bool from_prior, size_t max_iterations, struct solve_report *report,
                  struct err *err)
{
    struct problem p = {table, points};
    struct solve solve = {.list = &table->list,
                          .values = &table->values,
                          .npoints = npoints,
                          .residual = residual,
                          .context = &p,
                          .from_prior = from_prior,
                          .max_iterations = max_iterations};
    return solve_constants(&solve, report, err);
}
