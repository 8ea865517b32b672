/* SPDX-License-Identifier: Apache-2.0
 * Fits the network constants that are marked as fitted to measured collectives: robust least
 * squares on ln(predicted / measured), each machine counting once per band, with a prior for every
 * constant so that what no row decides stays at its published figure. */
#pragma once

#include "net/coll_score.h"

struct coll_fit_report {
    size_t rows, constants, iterations;
    double cost_before, cost_after; /* half the sum of squares, priors included */
};

/* Changes table->values (and the rows' values) of the fitted rows, from their priors, by the rows
 * that count (coll_row_counts) and are not of the machine `without` (NULL: all). Returns 0, or -1
 * (ERR_FAILED) if there is no row, or the solver gives up. `report` may be NULL. */
int coll_fit(struct net_const_table *table, const struct coll_rows *rows, const char *without,
             size_t max_iterations, struct coll_fit_report *report, struct err *err);

/* Predictions of rows whose machine was left out of a fit of its own: every machine that counts is
 * predicted by constants that never saw it; other rows by all. Freed with free(); NULL on failure.
 * `progress` is called with each machine's name, may be NULL. */
struct coll_prediction *coll_leave_out(const struct net_const_table *table,
                                       const struct coll_rows *rows, const struct coll_given *given,
                                       size_t max_iterations, struct err *err);
