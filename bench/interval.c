/* SPDX-License-Identifier: Apache-2.0
 * Intervals of medians: see interval.h. A resample is a set of counts by rank of the sample, so
 * that its median needs no sorting. Student's t comes from GSL. */
#include "bench/interval.h"

#include <gsl/gsl_cdf.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bench/stats.h"

enum { RESAMPLES = 1000, RESAMPLES_MIN = 200, RESAMPLED_MAX = 20000000, SEED = 4 };
static const double TAIL = 0.025; /* on either side of the interval */

const char *interval_method_name(enum interval_method method)
{
    static const char *const names[] = {"none", "block bootstrap", "launches"};
    return names[method];
}

static struct estimate no_interval(double value)
{
    bool good = isfinite(value) && value > 0;
    return (struct estimate){good ? value : NAN, NAN, NAN, NAN, NAN, INTERVAL_NONE};
}

/* ---- order ---- */

struct placed {
    double value;
    size_t at;
};

static int ascending(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Samples of one run and their order. */
struct ranked {
    size_t n;
    double *sorted;
    uint32_t *rank;   /* twice n: rank[i] = rank[i + n] = place of sample i in `sorted` */
    uint32_t *counts; /* of a resample, by rank */
    size_t middle;    /* place of the median */
};

static void ranked_init(struct ranked *r, const double *samples, size_t n)
{
    struct placed *placed = mem_calloc(n, sizeof *placed);
    *r = (struct ranked){
        .n = n,
        .sorted = mem_calloc(n, sizeof *r->sorted),
        .rank = mem_calloc(2 * n, sizeof *r->rank),
        .counts = mem_calloc(n, sizeof *r->counts),
        .middle = (n + 1) / 2 - 1,
    };
    for (size_t i = 0; i < n; i++)
        placed[i] = (struct placed){samples[i], i};
    qsort(placed, n, sizeof *placed, ascending);
    for (size_t i = 0; i < n; i++) {
        r->sorted[i] = placed[i].value;
        r->rank[placed[i].at] = r->rank[placed[i].at + n] = (uint32_t)i;
    }
    free(placed);
}

static void ranked_release(struct ranked *r)
{
    free(r->sorted);
    free(r->rank);
    free(r->counts);
}

/* ---- length of the blocks ---- */

/* -1, 0 or 1 by the side of the median on which each sample lies, less their mean. */
static double *signs(const struct ranked *r)
{
    double *y = mem_calloc(r->n, sizeof *y), mean = 0, median = r->sorted[r->middle];
    for (size_t i = 0; i < r->n; i++) {
        double x = r->sorted[r->rank[i]];
        y[i] = (x > median) - (x < median);
        mean += y[i] / (double)r->n;
    }
    for (size_t i = 0; i < r->n; i++)
        y[i] -= mean;
    return y;
}

static double autocovariance(const double *y, size_t n, size_t lag)
{
    double sum = 0;
    for (size_t i = lag; i < n; i++)
        sum += y[i] * y[i - lag];
    return sum / (double)n;
}

/* Politis and White 2004, section 3.2 with the constants of their correction (Patton, Politis and
 * White 2009): from the first lag behind which `quiet` correlations in a row are small, twice that
 * lag is the reach of a flat-top window; length = (2 G^2 / (4/3 g^2))^(1/3) n^(1/3). */
static size_t block_length(const struct ranked *r)
{
    size_t n = r->n, reach = (size_t)ceil(sqrt((double)n));
    double spread = log10((double)n), small = 2 * sqrt(spread / (double)n);
    size_t quiet = (size_t)fmax(5, ceil(sqrt(spread)));
    double *y = signs(r), variance = autocovariance(y, n, 0);
    size_t lag = 0, streak = 0;
    for (size_t k = 1; k < n && k <= reach + quiet && streak < quiet && variance > 0; k++) {
        bool is_small = fabs(autocovariance(y, n, k)) < small * variance;
        streak = is_small ? streak + 1 : 0;
        if (!is_small) lag = k < reach ? k : reach;
    }
    double big = 0, total = variance; /* sums of |k| R(k) and of R(k) under the window */
    for (size_t k = 1; k < 2 * lag && k < n; k++) {
        double window = k <= lag ? 1 : 2 - (double)k / (double)lag;
        double part = 2 * window * autocovariance(y, n, k);
        big += part * (double)k;
        total += part;
    }
    free(y);
    double least = cbrt((double)n), most = (double)(n / 5);
    double best = variance == 0 ? least
                  : total > 0   ? least * cbrt(1.5 * big * big / (total * total))
                                : most;
    return (size_t)fmin(ceil(fmax(best, least)), most);
}

/* ---- bootstrap ---- */

/* The median of a resample made of blocks of `length` samples that begin at `starts`. */
static double resampled_median(struct ranked *r, const uint64_t *starts, size_t length)
{
    memset(r->counts, 0, r->n * sizeof *r->counts);
    for (size_t done = 0, block = 0; done < r->n; done += length, block++) {
        const uint32_t *rank = r->rank + starts[block];
        size_t count = r->n - done < length ? r->n - done : length;
        for (size_t i = 0; i < count; i++)
            r->counts[rank[i]]++;
    }
    size_t seen = 0, at = 0;
    while ((seen += r->counts[at]) <= r->middle)
        at++;
    return r->sorted[at];
}

/* median(other) / median(base), or the median of `other` alone if there is no base. */
static struct estimate bootstrap(struct ranked *base, struct ranked *other)
{
    size_t n = other->n, length = block_length(other);
    if (base) {
        size_t longer = block_length(base);
        length = longer > length ? longer : length;
    }
    size_t nblocks = (n + length - 1) / length, count = RESAMPLED_MAX / n;
    count = count > RESAMPLES ? RESAMPLES : count < RESAMPLES_MIN ? RESAMPLES_MIN : count;
    double value = other->sorted[other->middle] / (base ? base->sorted[base->middle] : 1);
    uint64_t *starts = mem_calloc(nblocks, sizeof *starts);
    double *values = mem_calloc(count, sizeof *values);
    struct rng rng;
    rng_init(&rng, SEED);
    for (size_t b = 0; b < count; b++) {
        for (size_t i = 0; i < nblocks; i++)
            starts[i] = rng_below(&rng, n);
        values[b] = resampled_median(other, starts, length) /
                    (base ? resampled_median(base, starts, length) : 1);
    }
    stats_median(values, count); /* sorts */
    double below = log(fmin(1, stats_percentile(values, count, TAIL) / value));
    double above = log(fmax(1, stats_percentile(values, count, 1 - TAIL) / value));
    free(values);
    free(starts);
    double whole = (double)n / (double)length, dof = fmax(1, floor(whole) - 1);
    double few = sqrt((dof + 1) / dof) / gsl_cdf_ugaussian_Qinv(TAIL);
    double widen = few * gsl_cdf_tdist_Qinv(TAIL, dof);
    return (struct estimate){value,
                             value * exp(below * widen),
                             value * exp(above * widen),
                             (above - below) / 2 * few,
                             dof,
                             INTERVAL_BLOCKS};
}

struct estimate estimate_median(const double *samples, size_t n)
{
    if (n == 0) return no_interval(NAN);
    struct ranked r;
    ranked_init(&r, samples, n);
    struct estimate estimate = no_interval(r.sorted[r.middle]);
    if (n >= INTERVAL_SAMPLES_MIN && estimate.value > 0) {
        estimate = bootstrap(NULL, &r);
        estimate.low = fmax(estimate.low, r.sorted[0]);
        estimate.high = fmin(estimate.high, r.sorted[n - 1]);
    }
    ranked_release(&r);
    return estimate;
}

struct estimate estimate_ratio(const double *base, const double *other, size_t n)
{
    if (n == 0) return no_interval(NAN);
    struct ranked b, o;
    ranked_init(&b, base, n);
    ranked_init(&o, other, n);
    struct estimate estimate = no_interval(o.sorted[o.middle] / b.sorted[b.middle]);
    if (n >= INTERVAL_SAMPLES_MIN && estimate.value > 0) estimate = bootstrap(&b, &o);
    ranked_release(&b);
    ranked_release(&o);
    return estimate;
}

/* ---- by Student's t ---- */

static struct estimate t_interval(double value, double se_log, double dof,
                                  enum interval_method method)
{
    double half = se_log * gsl_cdf_tdist_Qinv(TAIL, dof);
    return (struct estimate){value, value * exp(-half), value * exp(half), se_log, dof, method};
}

struct estimate estimate_quotient(const struct estimate *base, const struct estimate *other)
{
    struct estimate none = no_interval(other->value / base->value);
    if (!base->method || !other->method || !(none.value > 0)) return none;
    double b = base->se_log * base->se_log, o = other->se_log * other->se_log, sum = b + o;
    double dof = sum > 0 ? sum * sum / (b * b / base->dof + o * o / other->dof)
                         : fmin(base->dof, other->dof);
    enum interval_method method = base->method < other->method ? base->method : other->method;
    return t_interval(none.value, sqrt(sum), fmax(1, dof), method);
}

struct estimate estimate_widened(const struct estimate *estimate, double sd_log, double dof)
{
    if (estimate->method == INTERVAL_NONE || !(sd_log > 0)) return *estimate;
    double own = estimate->se_log * estimate->se_log, more = sd_log * sd_log, sum = own + more;
    double both = sum * sum / (own * own / estimate->dof + more * more / dof);
    return t_interval(estimate->value, sqrt(sum), both, estimate->method);
}

struct estimate estimate_unpaired(const double *base, size_t nbase, const double *other,
                                  size_t nother)
{
    struct estimate b = estimate_median(base, nbase), o = estimate_median(other, nother);
    return estimate_quotient(&b, &o);
}

struct estimate estimate_launches(const double *medians, size_t n)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        mean += log(medians[i]) / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (log(medians[i]) - mean) * (log(medians[i]) - mean);
    struct estimate none = no_interval(n > 0 ? exp(mean) : NAN);
    if (n < 2 || !(none.value > 0)) return none;
    double dof = (double)(n - 1);
    return t_interval(none.value, sqrt(squares / dof / (double)n), dof, INTERVAL_LAUNCHES);
}

struct estimate estimate_launch_ratio(const double *base, size_t nbase, const double *other,
                                      size_t nother)
{
    struct estimate b = estimate_launches(base, nbase), o = estimate_launches(other, nother);
    return estimate_quotient(&b, &o);
}

/* The logarithms of one class: how many, mean, sum of squares around it. */
struct cell {
    double n, mean, squares;
};

static struct cell cell_of(const struct launches *launches, unsigned number)
{
    struct cell cell = {0, 0, 0};
    for (size_t i = 0; i < launches->n; i++) {
        if (launches->classes[i] != number) continue;
        double x = log(launches->medians[i]), away = x - cell.mean; /* Welford 1962 */
        cell.n++;
        cell.mean += away / cell.n;
        cell.squares += away * (x - cell.mean);
    }
    return cell;
}

struct estimate estimate_launch_ratio_within(const struct launches *base,
                                             const struct launches *other, unsigned nclasses,
                                             double *base_value)
{
    double weight = 0, difference = 0, level = 0, squares = 0, dof = 0;
    for (unsigned k = 0; k < nclasses; k++) {
        struct cell b = cell_of(base, k), o = cell_of(other, k);
        if (b.n == 0 || o.n == 0) continue;
        double w = b.n * o.n / (b.n + o.n);
        weight += w;
        difference += w * (o.mean - b.mean);
        level += w * b.mean;
        squares += b.squares + o.squares;
        dof += b.n + o.n - 2;
    }
    *base_value = weight > 0 ? exp(level / weight) : NAN;
    struct estimate none = no_interval(weight > 0 ? exp(difference / weight) : NAN);
    if (dof < 1 || !(none.value > 0)) return none;
    return t_interval(none.value, sqrt(squares / dof / weight), dof, INTERVAL_LAUNCHES);
}

double estimate_p(const struct estimate *estimate, double value)
{
    if (!estimate->method) return NAN;
    double apart = fabs(log(estimate->value / value));
    if (estimate->se_log == 0) return apart > 0 ? 0 : 1;
    return 2 * gsl_cdf_tdist_Q(apart / estimate->se_log, estimate->dof);
}

double estimate_half_width(const struct estimate *estimate)
{
    return expm1(log(estimate->high / estimate->low) / 2);
}
