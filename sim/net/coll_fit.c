/* SPDX-License-Identifier: Apache-2.0
 * The residuals of measured collectives: see coll_fit.h, and solve.h for the solver. */
#include "net/coll_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/solve.h"

static const double scale[NBANDS] = {.1, .1, .03}; /* errors beyond these count linearly */
static const double machine_weight = 4;            /* rows that a machine and band counts for */

struct point {
    const struct coll_row *row;
    double weight;
};

struct problem {
    const struct net_const_table *table;
    struct point *points;
    size_t npoints;
};

static const struct coll_given nothing = {-1, -1};

static double residual(const void *context, size_t i)
{
    const struct problem *p = context;
    const struct point *point = &p->points[i];
    double error = coll_predict_row(point->row, &p->table->values, &nothing).error;
    return solve_residual(log(1 + error), scale[point->row->band], point->weight);
}

static bool same_group(const struct coll_row *a, const struct coll_row *b)
{
    return a->band == b->band && strcmp(a->machine, b->machine) == 0;
}

static void collect(struct problem *p, const struct coll_rows *rows, const char *without)
{
    p->points = mem_calloc(rows->nrows + 1, sizeof *p->points);
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct coll_row *row = &rows->rows[i];
        if (!coll_row_counts(row) || (without && strcmp(row->machine, without) == 0)) continue;
        p->points[p->npoints++].row = row;
    }
    for (size_t i = 0; i < p->npoints; i++) {
        if (p->points[i].weight > 0) continue;
        size_t n = 0;
        for (size_t j = i; j < p->npoints; j++)
            n += same_group(p->points[i].row, p->points[j].row);
        for (size_t j = i; j < p->npoints; j++) {
            if (same_group(p->points[i].row, p->points[j].row))
                p->points[j].weight = machine_weight / (double)n;
        }
    }
}

int coll_fit(struct net_const_table *table, const struct coll_rows *rows, const char *without,
             size_t max_iterations, struct coll_fit_report *report, struct err *err)
{
    struct problem p = {.table = table};
    collect(&p, rows, without);
    struct solve solve = {.list = &table->list,
                          .values = &table->values,
                          .npoints = p.npoints,
                          .residual = residual,
                          .context = &p,
                          .from_prior = true,
                          .max_iterations = max_iterations};
    struct solve_report r;
    int bad = solve_constants(&solve, &r, err);
    if (report) {
        *report = (struct coll_fit_report){p.npoints, r.unknowns, r.iterations, r.cost_before,
                                           r.cost_after};
    }
    free(p.points);
    return bad;
}

struct coll_prediction *coll_leave_out(const struct net_const_table *table,
                                       const struct coll_rows *rows, const struct coll_given *given,
                                       size_t max_iterations, struct err *err)
{
    struct coll_prediction *all = coll_predict(rows, &table->values, given);
    bool *done = mem_calloc(rows->nrows + 1, sizeof *done);
    int bad = 0;
    for (size_t i = 0; i < rows->nrows && !bad; i++) {
        if (done[i] || !coll_row_counts(&rows->rows[i])) continue;
        const char *machine = rows->rows[i].machine;
        struct net_const_table refit = *table; /* rows' texts are shared, values are not changed */
        refit.list.rows = mem_calloc(table->list.nrows, sizeof *refit.list.rows);
        memcpy(refit.list.rows, table->list.rows, table->list.nrows * sizeof *refit.list.rows);
        bad = coll_fit(&refit, rows, machine, max_iterations, NULL, err);
        for (size_t j = i; j < rows->nrows && !bad; j++) {
            if (strcmp(rows->rows[j].machine, machine) != 0) continue;
            done[j] = true;
            all[j] = coll_predict_row(&rows->rows[j], &refit.values, given);
        }
        free(refit.list.rows);
    }
    free(done);
    if (!bad) return all;
    free(all);
    return NULL;
}
