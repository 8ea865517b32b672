/* SPDX-License-Identifier: Apache-2.0
 * Stands in for fit.c in a build without the GNU Scientific Library: everything but the fit works,
 * and the fit says what is missing. */
#include "train/fit.h"

int fit_constants(struct const_table *table, const struct fit_point *points, size_t npoints,
                  bool from_prior, size_t max_iterations, struct fit_report *report,
                  struct err *err)
{
    (void)table, (void)points, (void)npoints, (void)from_prior, (void)max_iterations, (void)report;
    return err_add(err, ERR_FAILED,
                   "this build has no solver: it was made without the GNU "
                   "Scientific Library (Debian: libgsl-dev)");
}
