/* SPDX-License-Identifier: Apache-2.0
 * Unknowns are t = ln(value / prior) / sigma, so a prior is the residual t itself. A residual r of
 * a row is ln(predicted / measured) / scale, bent so that half its square is the pseudo-Huber loss
 * sqrt(1 + r^2) - 1: an outlier pulls with a constant force. */
#include "train/fit.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "train/step.h"

#define SCALE .03 /* errors beyond 3 % count linearly */

struct problem {
    struct const_table *table;
    const struct fit_point *points;
    size_t npoints, nunknowns;
    size_t *row_of; /* per unknown: row of the table */
    double *plain;  /* scratch: residuals */
};

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
    const struct fit_point *point = &p->points[i];
    double t = step_predict(point->job, &p->table->values).time_s;
    return sqrt(point->weight) * bent(log(t / point->measured_s) / SCALE);
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

static void start(const struct problem *p, bool from_prior, gsl_vector *x)
{
    for (size_t k = 0; k < p->nunknowns; k++) {
        const struct const_row *row = &p->table->list.rows[p->row_of[k]];
        double t = log(row->value / row->prior) / row->sigma;
        gsl_vector_set(x, k, from_prior ? 0 : t);
    }
}

static void keep_values(struct const_table *table)
{
    for (size_t i = 0; i < table->list.nrows; i++) {
        table->list.rows[i].value = *consts_slot(&table->values, &table->list.rows[i]);
    }
}

int fit_constants(struct const_table *table, const struct fit_point *points, size_t npoints,
                  bool from_prior, size_t max_iterations, struct fit_report *report,
                  struct err *err)
{
    struct problem p = {.table = table, .points = points, .npoints = npoints};
    p.row_of = mem_calloc(table->list.nrows, sizeof *p.row_of);
    p.plain = mem_calloc(npoints, sizeof *p.plain);
    for (size_t i = 0; i < table->list.nrows; i++) {
        if (table->list.rows[i].fitted) p.row_of[p.nunknowns++] = i;
    }
    gsl_set_error_handler_off();
    gsl_multifit_nlinear_fdf fdf = {
        .f = residuals, .df = jacobian, .n = npoints + p.nunknowns, .p = p.nunknowns, .params = &p};
    gsl_multifit_nlinear_parameters how = gsl_multifit_nlinear_default_parameters();
    how.solver = gsl_multifit_nlinear_solver_cholesky;
    gsl_multifit_nlinear_workspace *w =
        gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &how, fdf.n, fdf.p);
    gsl_vector *x = gsl_vector_alloc(p.nunknowns);
    int bad = 0, info = 0;
    if (!w || !x) {
        bad = err_add(err, ERR_FAILED, "the solver has no memory for %zu rows and %zu constants",
                      npoints, p.nunknowns);
        goto out;
    }
    start(&p, from_prior, x);
    gsl_multifit_nlinear_init(x, &fdf, w);
    struct fit_report r = {.cost_before = cost_of(w)};
    int status =
        gsl_multifit_nlinear_driver(max_iterations, 1e-4, 1e-6, 1e-4, NULL, NULL, &info, w);
    if (status != GSL_SUCCESS && status != GSL_EMAXITER && status != GSL_ENOPROG) {
        bad = err_add(err, ERR_FAILED, "the fit failed: %s", gsl_strerror(status));
        goto out;
    }
    r.iterations = gsl_multifit_nlinear_niter(w);
    r.cost_after = cost_of(w);
    set_unknowns(gsl_multifit_nlinear_position(w), &p);
    keep_values(table);
    if (report) *report = r;
out:
    if (w) gsl_multifit_nlinear_free(w);
    if (x) gsl_vector_free(x);
    free(p.row_of);
    free(p.plain);
    return bad;
}
