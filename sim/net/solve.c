/* SPDX-License-Identifier: Apache-2.0
 * Unknowns are t = ln(value / prior) / sigma, so a prior is the residual t itself. See solve.h. */
#include "net/solve.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"

struct problem {
    const struct solve *s;
    size_t nunknowns;
    size_t *row_of;        /* per unknown: row of the table */
    double *plain, *moved; /* scratch: residuals */
    gsl_matrix *slopes;    /* those found last, .. */
    size_t age;            /* .. and the steps since */
    struct err *err;
};

static double value_of(const struct const_row *row, double t)
{
    return fmin(fmax(row->prior * exp(row->sigma * t), row->low), row->high);
}

double solve_residual(double log_ratio, double scale, double weight)
{
    double r = log_ratio / scale;
    return sqrt(weight) * copysign(sqrt(2 * (sqrt(1 + r * r) - 1)), r);
}

static int evaluate(const struct problem *p, enum solve_ask ask, size_t row, double *out)
{
    if (p->s->residuals) return p->s->residuals(p->s->context, ask, row, out, p->err);
    for (size_t i = 0; i < p->s->npoints; i++)
        out[i] = p->s->residual(p->s->context, i);
    return 0;
}

static void set_unknowns(const gsl_vector *x, const struct problem *p)
{
    for (size_t k = 0; k < p->nunknowns; k++) {
        const struct const_row *row = &p->s->list->rows[p->row_of[k]];
        *consts_slot(p->s->values, row) = value_of(row, gsl_vector_get(x, k));
    }
}

static int residuals(const gsl_vector *x, void *params, gsl_vector *f)
{
    const struct problem *p = params;
    set_unknowns(x, p);
    if (evaluate(p, SOLVE_ALL, SIZE_MAX, p->plain)) return GSL_EFAILED;
    for (size_t i = 0; i < p->s->npoints; i++) {
        gsl_vector_set(f, i, p->plain[i]);
    }
    for (size_t k = 0; k < p->nunknowns; k++) {
        gsl_vector_set(f, p->s->npoints + k, gsl_vector_get(x, k));
    }
    return GSL_SUCCESS;
}

static int jacobian(const gsl_vector *x, void *params, gsl_matrix *j)
{
    struct problem *p = params;
    const double h = .02;
    set_unknowns(x, p);
    if (p->age++ % (p->s->keep_slopes ? p->s->keep_slopes : 1)) {
        gsl_matrix_memcpy(j, p->slopes);
        return GSL_SUCCESS;
    }
    if (evaluate(p, SOLVE_SLOPES, SIZE_MAX, p->plain)) return GSL_EFAILED;
    gsl_matrix_set_zero(j);
    for (size_t k = 0; k < p->nunknowns; k++) {
        const struct const_row *row = &p->s->list->rows[p->row_of[k]];
        double *slot = consts_slot(p->s->values, row), kept = *slot;
        double d = h;
        *slot = value_of(row, gsl_vector_get(x, k) + d);
        if (*slot == kept) { /* at its upper bound: look down */
            d = -h;
            *slot = value_of(row, gsl_vector_get(x, k) + d);
        }
        bool moves = *slot != kept;
        int bad = moves ? evaluate(p, SOLVE_MOVED, p->row_of[k], p->moved) : 0;
        for (size_t i = 0; i < p->s->npoints && moves; i++) {
            gsl_matrix_set(j, i, k, (p->moved[i] - p->plain[i]) / d);
        }
        gsl_matrix_set(j, p->s->npoints + k, k, 1);
        *slot = kept;
        if (bad) return GSL_EFAILED;
    }
    gsl_matrix_memcpy(p->slopes, j);
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

static void start(const struct problem *p, gsl_vector *x)
{
    for (size_t k = 0; k < p->nunknowns; k++) {
        const struct const_row *row = &p->s->list->rows[p->row_of[k]];
        double t = log(row->value / row->prior) / row->sigma;
        gsl_vector_set(x, k, p->s->from_prior ? 0 : t);
    }
}

/* The solver's work on a problem that is set up. */
static int drive(struct problem *p, struct solve_report *report, struct err *err)
{
    gsl_set_error_handler_off();
    gsl_multifit_nlinear_fdf fdf = {.f = residuals,
                                    .df = jacobian,
                                    .n = p->s->npoints + p->nunknowns,
                                    .p = p->nunknowns,
                                    .params = p};
    gsl_multifit_nlinear_parameters how = gsl_multifit_nlinear_default_parameters();
    how.solver = gsl_multifit_nlinear_solver_cholesky;
    gsl_multifit_nlinear_workspace *w =
        gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &how, fdf.n, fdf.p);
    gsl_vector *x = gsl_vector_alloc(p->nunknowns);
    int bad = 0, info = 0;
    p->slopes = gsl_matrix_alloc(fdf.n, fdf.p);
    if (!w || !x || !p->slopes) {
        bad = err_add(err, ERR_FAILED, "the solver has no memory for %zu rows and %zu constants",
                      p->s->npoints, p->nunknowns);
        goto out;
    }
    start(p, x);
    gsl_multifit_nlinear_init(x, &fdf, w);
    report->cost_before = cost_of(w);
    int status =
        gsl_multifit_nlinear_driver(p->s->max_iterations, 1e-4, 1e-6, 1e-4, NULL, NULL, &info, w);
    if (err->count) {
        bad = -1;
        goto out;
    }
    if (status != GSL_SUCCESS && status != GSL_EMAXITER && status != GSL_ENOPROG) {
        bad = err_add(err, ERR_FAILED, "the fit failed: %s", gsl_strerror(status));
        goto out;
    }
    report->iterations = gsl_multifit_nlinear_niter(w);
    report->cost_after = cost_of(w);
    set_unknowns(gsl_multifit_nlinear_position(w), p);
    for (size_t i = 0; i < p->s->list->nrows; i++) {
        p->s->list->rows[i].value = *consts_slot(p->s->values, &p->s->list->rows[i]);
    }
out:
    if (w) gsl_multifit_nlinear_free(w);
    if (x) gsl_vector_free(x);
    if (p->slopes) gsl_matrix_free(p->slopes);
    return bad;
}

int solve_constants(const struct solve *solve, struct solve_report *report, struct err *err)
{
    struct problem p = {.s = solve, .err = err};
    struct solve_report r = {0};
    p.row_of = mem_calloc(solve->list->nrows, sizeof *p.row_of);
    p.plain = mem_calloc(solve->npoints, sizeof *p.plain);
    p.moved = mem_calloc(solve->npoints, sizeof *p.moved);
    for (size_t i = 0; i < solve->list->nrows; i++) {
        if (solve->list->rows[i].fitted) p.row_of[p.nunknowns++] = i;
    }
    r.unknowns = p.nunknowns;
    int bad =
        solve->npoints && p.nunknowns
            ? drive(&p, &r, err)
            : err_add(err, ERR_FAILED, "nothing to fit: %zu rows count, %zu constants are fitted",
                      solve->npoints, p.nunknowns);
    if (report) *report = r;
    free(p.row_of);
    free(p.plain);
    free(p.moved);
    return bad;
}
