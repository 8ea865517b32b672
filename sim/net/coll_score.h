/* SPDX-License-Identifier: Apache-2.0
 * Errors of predicted collectives against measured ones. A machine counts once in a band, however
 * many rows it has: the median of |predicted / measured - 1| over the rows of one (machine, nodes,
 * GPUs, band), then the median of these over the machine, then statistics over machines. */
#pragma once

#include "net/coll_rows.h"

struct coll_prediction {
    struct lib_time time;
    double error; /* predicted / measured - 1; NaN where either is missing */
};

/* What the user fixes; < 0: the constants'. */
struct coll_given {
    double launch_us, alpha_us;
};

/* Predicts the rows that have no reason against it. Freed with free(). */
struct coll_prediction *coll_predict(const struct coll_rows *rows, const struct net_consts *consts,
                                     const struct coll_given *given);
struct coll_prediction coll_predict_row(const struct coll_row *row, const struct net_consts *consts,
                                        const struct coll_given *given);

typedef bool (*coll_member)(const struct coll_row *row, const void *arg);

struct coll_score {
    size_t rows, cells, machines;
    double median, p90; /* over machines, % */
    double cell_median; /* over (machine, nodes, GPUs) without machines, % */
    double bias;        /* median over machines of the signed error, % */
};

struct coll_score coll_score_of(const struct coll_rows *rows, const struct coll_prediction *p,
                                enum coll_band band, coll_member member, const void *arg);
