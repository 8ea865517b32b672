/* SPDX-License-Identifier: Apache-2.0
 * Fits the constants that are marked as fitted to measured step times: robust least squares on
 * ln(predicted / measured), with a prior for each constant so that what no row decides stays where
 * physics puts it. Levenberg-Marquardt of the GNU Scientific Library. */
#pragma once

#include <stdint.h>

#include "net/solve.h"
#include "train/constants.h"
#include "train/runner.h"

struct fit_point {
    size_t at; /* which point of the runner */
    const struct job *job;
    double measured_s; /* > 0 */
    double weight;     /* of its squared residual, > 0 */
};

/* Changes table->values (and the rows' values) of the fitted rows; other rows keep theirs. The
 * runner's engine is that of the table. Starts from the priors if `from_prior`, else from the
 * present values. Returns 0, or -1 (ERR_FAILED) if the solver gives up, if a step has no time, or
 * if there is no solver in this build. `report` may be NULL. */
int fit_constants(struct const_table *table, struct runner *runner, const struct fit_point *points,
                  size_t npoints, bool from_prior, size_t max_iterations,
                  struct solve_report *report, struct err *err);
