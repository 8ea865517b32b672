/* SPDX-License-Identifier: Apache-2.0
 * Unknowns are t = ln(value / prior) / sigma, so a prior is the residual t itself. A residual r of
 * a row is ln(predicted / measured) over its band's scale, bent so that half its square is the
 * pseudo-Huber loss sqrt(1 + r^2) - 1: an outlier pulls with a constant force. Levenberg-Marquardt
 * of the GNU Scientific Library. */
#include "net/coll_fit.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const double scale[NBANDS] = {.1, .1, .03}; /* errors beyond these count linearly */
static const double machine_weight = 4;            /* rows that a machine and band counts for */

struct point {
    const struct coll_row *row;
    double weight;
};

struct problem {
    struct net_const_table *table;
    struct point *points;
    size_t npoints, nunknowns;
    size_t *row_of; /* per unknown: row of the table */
    double *plain;  /* scratch: residuals */
};

static const struct coll_given nothing = {-1, -1};

static double value_of(const struct const_row *row, double t)
{
    return fmin(fmax(row->prior * exp(row->sigma * t), row->low), row->high);
}

static double bent(double r)
{
    return copysign(sqrt(2 * (sqrt(1 + r * r) - 1)), r);
}

static double residual(const struct problem *p, size_t i)
{
    const struct point *point = &p->points[i];
    double error = coll_predict_row(point->row, &p->table->values, &nothing).error;
    return sqrt(point->weight) * bent(log(1 + error) / scale[point->row->band]);
}

static void set_unknowns(const gsl_vector *x, const struct problem *p)
{
    for (size_t k = 0; k < p->nunknowns; k++) {
        const struct const_row *row = &p->table->list.rows[p->row_of[k]];
        *consts_slot(&p->table->values, row) = value_of(row, gsl_vector_get(x, k));
    }
}

static int residuals(const gsl_vector *x, void *params, gsl_vector *f)
{
    const struct problem *p = params;
    set_unknowns(x, p);
    for (size_t i = 0; i < p->npoints; i++) {
        gsl_vector_set(f, i, residual(p, i));
    }
    for (size_t k = 0; k < p->nunknowns; k++) {
        gsl_vector_set(f, p->npoints + k, gsl_vector_get(x, k));
    }
    return GSL_SUCCESS;
}

static int jacobian(const gsl_vector *x, void *params, gsl_matrix *j)
{
    const struct problem *p = params;
    const double h = .02;
    set_unknowns(x, p);
    for (size_t i = 0; i < p->npoints; i++) {
        p->plain[i] = residual(p, i);
    }
    gsl_matrix_set_zero(j);
    for (size_t k = 0; k < p->nunknowns; k++) {
        const struct const_row *row = &p->table->list.rows[p->row_of[k]];
        double *slot = consts_slot(&p->table->values, row), kept = *slot;
        double d = h;
        *slot = value_of(row, gsl_vector_get(x, k) + d);
        if (*slot == kept) { /* at its upper bound: look down */
            d = -h;
            *slot = value_of(row, gsl_vector_get(x, k) + d);
        }
        for (size_t i = 0; i < p->npoints && *slot != kept; i++) {
            gsl_matrix_set(j, i, k, (residual(p, i) - p->plain[i]) / d);
        }
        gsl_matrix_set(j, p->npoints + k, k, 1);
        *slot = kept;
    }
    return GSL_SUCCESS;
}

/* Half the sum of squared residuals. */
static double cost_of(gsl_multifit_nlinear_workspace *w)
{
    double norm = 0;
    const gsl_vector *f = gsl_multifit_nlinear_residual(w);
    for (size_t i = 0; i < f->size; i++) {
        norm += gsl_vector_get(f, i) * gsl_vector_get(f, i) / 2;
    }
    return norm;
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

/* The solver's work on a problem that is set up; `x` starts at 0, the priors. */
static int solve(struct problem *p, size_t max_iterations, struct coll_fit_report *report,
                 struct err *err)
{
    gsl_set_error_handler_off();
    gsl_multifit_nlinear_fdf fdf = {.f = residuals,
                                    .df = jacobian,
                                    .n = p->npoints + p->nunknowns,
                                    .p = p->nunknowns,
                                    .params = p};
    gsl_multifit_nlinear_parameters how = gsl_multifit_nlinear_default_parameters();
    how.solver = gsl_multifit_nlinear_solver_cholesky;
    gsl_multifit_nlinear_workspace *w =
        gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &how, fdf.n, fdf.p);
    gsl_vector *x = gsl_vector_calloc(p->nunknowns);
    int bad = 0, info = 0;
    if (!w || !x) {
        bad = err_add(err, ERR_FAILED, "the solver has no memory for %zu rows and %zu constants",
                      p->npoints, p->nunknowns);
        goto out;
    }
    gsl_multifit_nlinear_init(x, &fdf, w);
    report->cost_before = cost_of(w);
    int status =
        gsl_multifit_nlinear_driver(max_iterations, 1e-4, 1e-6, 1e-4, NULL, NULL, &info, w);
    if (status != GSL_SUCCESS && status != GSL_EMAXITER && status != GSL_ENOPROG) {
        bad = err_add(err, ERR_FAILED, "the fit failed: %s", gsl_strerror(status));
        goto out;
    }
    report->iterations = gsl_multifit_nlinear_niter(w);
    report->cost_after = cost_of(w);
    set_unknowns(gsl_multifit_nlinear_position(w), p);
out:
    if (w) gsl_multifit_nlinear_free(w);
    if (x) gsl_vector_free(x);
    return bad;
}

int coll_fit(struct net_const_table *table, const struct coll_rows *rows, const char *without,
             size_t max_iterations, struct coll_fit_report *report, struct err *err)
{
    struct problem p = {.table = table};
    struct coll_fit_report r = {0};
    p.row_of = mem_calloc(table->list.nrows, sizeof *p.row_of);
    for (size_t i = 0; i < table->list.nrows; i++) {
        if (table->list.rows[i].fitted) p.row_of[p.nunknowns++] = i;
    }
    collect(&p, rows, without);
    p.plain = mem_calloc(p.npoints + 1, sizeof *p.plain);
    int bad = 0;
    if (!p.npoints || !p.nunknowns) {
        bad = err_add(err, ERR_FAILED, "nothing to fit: %zu rows count, %zu constants are fitted",
                      p.npoints, p.nunknowns);
    }
    if (!bad) bad = solve(&p, max_iterations, &r, err);
    for (size_t i = 0; i < table->list.nrows && !bad; i++) {
        table->list.rows[i].value = *consts_slot(&table->values, &table->list.rows[i]);
    }
    r.rows = p.npoints;
    r.constants = p.nunknowns;
    if (report) *report = r;
    free(p.row_of);
    free(p.points);
    free(p.plain);
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
