/* SPDX-License-Identifier: Apache-2.0
 * Medians of medians: rows are sorted by machine, nodes and GPUs, so that each cell and each
 * machine is a run of neighbours. */
#include "net/coll_score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct coll_prediction coll_predict_row(const struct coll_row *row, const struct net_consts *consts,
                                        const struct coll_given *given)
{
    struct coll_prediction p = {.error = NAN};
    struct lib_args args = row->as.args;
    args.launch_us = given->launch_us;
    args.alpha_us = given->alpha_us;
    struct err quiet = ERR_INIT;
    if (row->reason ||
        lib_closed(&row->as.topo, consts, &args, row->coll, row->bytes, &p.time, &quiet)) {
        err_release(&quiet);
        return p;
    }
    if (row->measured_us > 0) p.error = p.time.time_us / row->measured_us - 1;
    return p;
}

struct coll_prediction *coll_predict(const struct coll_rows *rows, const struct net_consts *consts,
                                     const struct coll_given *given)
{
    struct coll_prediction *all = mem_calloc(rows->nrows, sizeof *all);
    for (size_t i = 0; i < rows->nrows; i++) {
        all[i] = coll_predict_row(&rows->rows[i], consts, given);
    }
    return all;
}

struct sample {
    const struct coll_row *row;
    double error;
};

static int same_machine(const struct coll_row *a, const struct coll_row *b)
{
    return strcmp(a->machine, b->machine);
}

static int by_cell(const void *left, const void *right)
{
    const struct sample *x = left, *y = right;
    const struct coll_row *a = x->row, *b = y->row;
    int machine = same_machine(a, b);
    if (machine) return machine;
    if (a->hosts != b->hosts) return a->hosts < b->hosts ? -1 : 1;
    if (a->per_host != b->per_host) return a->per_host < b->per_host ? -1 : 1;
    return (x->error > y->error) - (x->error < y->error); /* no order of rows remains */
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantile q of n values (sorted here), linear between neighbours. */
static double quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof *values, by_value);
    double at = q * (double)(n - 1);
    size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return values[low] + (values[high] - values[low]) * (at - (double)low);
}

/* Median of the n samples' errors, without their sign if `absolute`; `scratch` holds n. */
static double median_of(const struct sample *samples, size_t n, bool absolute, double *scratch)
{
    for (size_t i = 0; i < n; i++) {
        scratch[i] = absolute ? fabs(samples[i].error) : samples[i].error;
    }
    return quantile(scratch, n, .5);
}

/* The medians of all cells, and in turn those of all machines; signed ones if not `absolute`. */
static void reduce(const struct sample *s, size_t n, bool absolute, double *cells, size_t *ncells,
                   double *machines, size_t *nmachines)
{
    double *scratch = mem_calloc(n + 1, sizeof *scratch);
    *ncells = *nmachines = 0;
    size_t first_cell = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        while (end < n && !same_machine(s[i].row, s[end].row) &&
               s[end].row->hosts == s[i].row->hosts && s[end].row->per_host == s[i].row->per_host)
            end++;
        cells[(*ncells)++] = median_of(&s[i], end - i, absolute, scratch);
        if (end == n || same_machine(s[i].row, s[end].row)) {
            size_t count = *ncells - first_cell;
            memcpy(scratch, &cells[first_cell], count * sizeof *cells);
            machines[(*nmachines)++] = quantile(scratch, count, .5);
            first_cell = *ncells;
        }
        i = end;
    }
    free(scratch);
}

struct coll_score coll_score_of(const struct coll_rows *rows, const struct coll_prediction *p,
                                enum coll_band band, coll_member member, const void *arg)
{
    struct coll_score score = {0};
    struct sample *samples = mem_calloc(rows->nrows + 1, sizeof *samples);
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct coll_row *row = &rows->rows[i];
        if (isnan(p[i].error) || row->band != band || !member(row, arg)) continue;
        samples[score.rows++] = (struct sample){row, p[i].error};
    }
    if (score.rows) {
        qsort(samples, score.rows, sizeof *samples, by_cell);
        double *cells = mem_calloc(2 * score.rows, sizeof *cells), *machines = cells + score.rows;
        reduce(samples, score.rows, false, cells, &score.cells, machines, &score.machines);
        score.bias = 100 * quantile(machines, score.machines, .5);
        reduce(samples, score.rows, true, cells, &score.cells, machines, &score.machines);
        score.median = 100 * quantile(machines, score.machines, .5);
        score.p90 = 100 * quantile(machines, score.machines, .9);
        score.cell_median = 100 * quantile(cells, score.cells, .5);
        free(cells);
    }
    free(samples);
    return score;
}
