/* SPDX-License-Identifier: Apache-2.0
 * Statistics over rows. Identity of inputs is identity of the job and the framework's name. */
#include "train/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define GIB 1073741824.0

bool score_counts(const struct row *row)
{
    return !row->reason && row->status_ok && row->measured_s > 0 && !(row->buckets & BUCKET_APART);
}

int score_any(const struct rows *rows, bool memory, struct err *err)
{
    static const char *const needed[] = {"framework", "gpu", "model", "precision",
                                         "derived_step_time_s"};
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *row = &rows->rows[i];
        if (score_counts(row) || (memory && !row->reason && row->measured_GiB > 0)) return 0;
    }
    for (size_t t = 0; t < rows->ntables; t++) {
        for (size_t k = 0; k < sizeof needed / sizeof *needed; k++) {
            if (csv_column(&rows->tables[t], needed[k]) != SIZE_MAX) continue;
            return err_add(err, ERR_USAGE, "no row could be scored: %s has no column %s",
                           rows->tables[t].path, needed[k]);
        }
    }
    const struct row *first = rows->nrows ? rows->rows : NULL;
    return err_add(err, ERR_FAILED, "no row could be scored: %zu read%s%s", rows->nrows,
                   first && first->reason ? ", the first is left out as " : "",
                   first && first->reason ? first->reason : "");
}

static bool same_inputs(const struct row *a, const struct row *b)
{
    return a->complete == b->complete && strcmp(a->framework, b->framework) == 0 &&
           memcmp(&a->job, &b->job, sizeof a->job) == 0;
}

static double memory_of(const struct row *row, const struct memory *m, const struct constants *c)
{
    if (row->mem_stage >= 0 && row->mem == MEM_ALLOCATED) {
        uint32_t stage = row->mem_stage ? row->job.pp - 1 : 0;
        return memory_stage(&row->job, c, stage).peak / GIB;
    }
    double bytes = row->mem == MEM_SMI        ? m->smi
                   : row->mem == MEM_RESERVED ? m->reserved
                                              : m->allocated;
    return bytes / GIB;
}

struct runner *score_runner(const struct rows *rows, enum engine engine, struct err *err)
{
    struct runner_point *points = mem_calloc(rows->nrows + 1, sizeof *points);
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *row = &rows->rows[i];
        if (!row->reason) points[i] = (struct runner_point){&row->job, &row->topo};
    }
    struct runner *runner = runner_new(engine, points, rows->nrows, err);
    free(points);
    return runner;
}

/* The first row of identical inputs before row i, or i. */
static size_t first_alike(const struct rows *rows, const struct prediction *all, size_t i)
{
    const struct row *row = &rows->rows[i];
    for (size_t j = 0; j < i && score_counts(row); j++) {
        if (all[j].merged_into == j && all[j].time_s == all[i].time_s &&
            score_counts(&rows->rows[j]) && same_inputs(&rows->rows[j], row)) {
            return j;
        }
    }
    return i;
}

struct prediction *score_predict(const struct rows *rows, struct runner *runner,
                                 const struct constants *c, struct err *err)
{
    struct prediction *all = mem_calloc(rows->nrows + 1, sizeof *all);
    struct step *steps = mem_calloc(rows->nrows + 1, sizeof *steps);
    if (runner_steps(runner, c, &(struct runner_ask){0}, steps, err)) {
        free(all);
        all = NULL;
    }
    for (size_t i = 0; i < rows->nrows && all; i++) {
        const struct row *row = &rows->rows[i];
        struct prediction *p = &all[i];
        p->merged_into = i;
        p->error = NAN;
        if (row->reason) continue;
        p->step = steps[i];
        p->time_s = steps[i].time_s;
        p->memory = memory_predict(&row->job, c);
        p->memory_GiB = memory_of(row, &p->memory, c);
        p->fits = memory_verdict(&p->memory) != VERDICT_NO;
        if (row->measured_s > 0) p->error = p->time_s / row->measured_s - 1;
        p->merged_into = first_alike(rows, all, i);
    }
    free(steps);
    return all;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted values, linear between neighbours. */
static double quantile(const double *values, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return values[low] + (values[high] - values[low]) * (at - (double)low);
}

struct score score_of(double *errors, size_t n)
{
    struct score s = {.n = n};
    if (!n) return s;
    qsort(errors, n, sizeof *errors, by_value);
    s.bias = 100 * quantile(errors, n, .5);
    for (size_t i = 0; i < n; i++) {
        errors[i] = fabs(errors[i]);
        s.mean += 100 * errors[i] / (double)n;
    }
    qsort(errors, n, sizeof *errors, by_value);
    s.median = 100 * quantile(errors, n, .5);
    s.p90 = 100 * quantile(errors, n, .9);
    s.worst = 100 * errors[n - 1];
    return s;
}

double score_merged_time(const struct rows *rows, const struct prediction *p, size_t i)
{
    size_t n = 0;
    double *times = mem_calloc(rows->nrows - i, sizeof *times);
    for (size_t j = i; j < rows->nrows; j++) {
        if (p[j].merged_into == i) times[n++] = rows->rows[j].measured_s;
    }
    qsort(times, n, sizeof *times, by_value);
    double median = quantile(times, n, .5);
    free(times);
    return median;
}

struct score score_group(const struct rows *rows, const struct prediction *p, score_member member,
                         const void *arg, bool merge)
{
    double *errors = mem_calloc(rows->nrows, sizeof *errors);
    size_t n = 0;
    for (size_t i = 0; i < rows->nrows; i++) {
        if (!score_counts(&rows->rows[i]) || !member(&rows->rows[i], arg)) continue;
        if (merge && p[i].merged_into != i) continue;
        errors[n++] = merge ? p[i].time_s / score_merged_time(rows, p, i) - 1 : p[i].error;
    }
    struct score s = score_of(errors, n);
    free(errors);
    return s;
}

/* The same work on the same machines; precision counts as part of it. */
static bool same_work(const struct row *a, const struct row *b)
{
    const struct job *x = &a->job, *y = &b->job;
    struct shape s = x->shape, t = y->shape;
    s.vocab = t.vocab = 0; /* its padding depends on tp */
    return x->dev.name == y->dev.name && x->ngpus == y->ngpus && x->seq == y->seq &&
           x->precision == y->precision && strcmp(a->framework, b->framework) == 0 &&
           memcmp(&s, &t, sizeof s) == 0;
}

static bool same_strategy(const struct job *x, const struct job *y)
{
    return x->dp == y->dp && x->tp == y->tp && x->pp == y->pp && x->vpp == y->vpp &&
           x->cp == y->cp && x->ep == y->ep && x->etp == y->etp && x->sp == y->sp &&
           x->shard == y->shard && x->shard_size == y->shard_size &&
           x->micro_batch == y->micro_batch && x->recompute == y->recompute &&
           x->rc_modules == y->rc_modules && x->zb == y->zb;
}

static double tokens_per_s(const struct job *job, double time_s)
{
    return (double)job->global_batch * (double)job->seq / time_s;
}

/* A row that stands for its repeats, complete. */
static bool stands(const struct rows *rows, const struct prediction *p, size_t i)
{
    return score_counts(&rows->rows[i]) && rows->rows[i].complete == COMPLETE_Y &&
           p[i].merged_into == i;
}

struct pairs score_pairs(const struct rows *rows, const struct prediction *p)
{
    struct pairs pairs = {0, 0};
    double *times = mem_calloc(rows->nrows, sizeof *times);
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *a = &rows->rows[i];
        if (!stands(rows, p, i)) continue;
        times[i] = score_merged_time(rows, p, i);
        for (size_t j = 0; j < i; j++) {
            const struct row *b = &rows->rows[j];
            if (!stands(rows, p, j) || !same_work(a, b) || same_strategy(&a->job, &b->job))
                continue;
            double measured =
                log(tokens_per_s(&a->job, times[i]) / tokens_per_s(&b->job, times[j]));
            double predicted =
                log(tokens_per_s(&a->job, p[i].time_s) / tokens_per_s(&b->job, p[j].time_s));
            if (fabs(measured) <= log(1.05)) continue;
            pairs.n++;
            pairs.right += measured * predicted > 0;
        }
    }
    free(times);
    return pairs;
}

struct score score_memory(const struct rows *rows, const struct prediction *p, unsigned measures,
                          double params, const char *without)
{
    double *errors = mem_calloc(rows->nrows, sizeof *errors);
    size_t n = 0;
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *row = &rows->rows[i];
        if (row->reason || !(measures >> row->mem & 1) || row->measured_GiB <= 0) continue;
        if (!row->status_ok || (without && strcmp(row->framework, without) == 0)) continue;
        if (row->buckets & (BUCKET_APART & ~(unsigned)(BUCKET_DETERMINISTIC | BUCKET_REGRESSION))) {
            continue;
        }
        if (job_params(&row->job).total < params) continue;
        errors[n++] = p[i].memory_GiB / row->measured_GiB - 1;
    }
    struct score s = score_of(errors, n);
    free(errors);
    return s;
}

struct confusion score_fits(const struct rows *rows, const struct prediction *p)
{
    struct confusion c = {0};
    for (size_t i = 0; i < rows->nrows; i++) {
        const struct row *row = &rows->rows[i];
        bool oom = strcmp(row->status, "oom") == 0, sibling = false;
        if (row->reason || (!oom && !score_counts(row))) continue;
        for (size_t j = 0; j < rows->nrows && !oom && !sibling; j++) {
            sibling = strcmp(rows->rows[j].status, "oom") == 0 &&
                      strcmp(rows->rows[j].framework, row->framework) == 0;
        }
        if (oom) {
            c.oom_right += !p[i].fits;
            c.oom_wrong += p[i].fits;
        } else if (sibling) {
            c.fits_right += p[i].fits;
            c.fits_wrong += !p[i].fits;
        }
    }
    return c;
}
