/* SPDX-License-Identifier: Apache-2.0
 * How sure a median is: 95 % intervals of medians and of ratios of medians. Samples that follow
 * each other are correlated, so one run is judged by a block bootstrap; several launches, which
 * also differ in placement, by what their medians scatter. */
#pragma once

#include <stddef.h>

enum interval_method { INTERVAL_NONE, INTERVAL_BLOCKS, INTERVAL_LAUNCHES };

/* A median in the unit of its samples, or a ratio of two. low, high, se_log and dof are NaN (method
 * INTERVAL_NONE) where nothing can be said: see each function. value > 0 unless it is NaN. */
struct estimate {
    double value, low, high; /* low <= value <= high: the 95 % interval */
    double se_log, dof;      /* standard error of log(value), its degrees of freedom (>= 1) */
    enum interval_method method;
};

enum { INTERVAL_SAMPLES_MIN = 5 }; /* fewer samples of one run have no interval */

/* "none", "block bootstrap", "launches". */
const char *interval_method_name(enum interval_method method);

/* The median (nearest rank, as in stats.h) of `n` samples > 0 in the order in which they were
 * taken, by a block bootstrap: resamples of blocks (Kuensch, "The jackknife and the bootstrap for
 * general stationary observations", 1989; blocks may wrap round the end, as in Politis and Romano
 * 1992) of the length that Politis and White ("Automatic block-length selection for the dependent
 * bootstrap", 2004) find best for the autocorrelation of the signs of sample - median, but n^(1/3)
 * to n/5. Percentiles of the resampled medians, widened by Student's t with (number of blocks - 1)
 * degrees of freedom, since few blocks vary too little, and never beyond
 * the samples (se_log is not cut). Same samples, same answer. Time is about n
 * log n + 1000 n (2 ns a piece), from n = 20000 on about 20 million. n = 0, or a median that is not
 * finite and > 0: all NaN. n < INTERVAL_SAMPLES_MIN: no interval. */
struct estimate estimate_median(const double *samples, size_t n);

/* median(other) / median(base) of samples taken in turns: sample i of both beside each other.
 * Blocks are resampled in both at once, so that what disturbed both does not count. Else as above.
 */
struct estimate estimate_ratio(const double *base, const double *other, size_t n);

/* median(other) / median(base) of two runs that know nothing of each other. */
struct estimate estimate_unpaired(const double *base, size_t nbase, const double *other,
                                  size_t nother);

/* From the medians of `n` launches: their geometric mean, t interval of the mean of the logarithms
 * with n - 1 degrees of freedom. n = 1: no interval; n = 0 or a median not > 0: all NaN. */
struct estimate estimate_launches(const double *medians, size_t n);

/* other / base from launches of each: Welch's t interval on the logarithms. */
struct estimate estimate_launch_ratio(const double *base, size_t nbase, const double *other,
                                      size_t nother);

/* The same from launches of `nclasses` classes, each compared only with launches of its own class
 * (blocks, in the words of the design of experiments), for instance by how far apart the cores of
 * the ranks are: the mean difference of the logarithms, class c weighted by n m / (n + m) for n and
 * m launches, and a t interval with the scatter inside the cells of a class and a side, taken to be
 * the same in all. *base_value is the geometric mean of base with these weights. Classes are
 * numbers below nclasses. No class on both sides: all NaN; one launch per cell: no interval. */
struct launches {
    const double *medians;
    const unsigned *classes;
    size_t n;
};
struct estimate estimate_launch_ratio_within(const struct launches *base,
                                             const struct launches *other, unsigned nclasses,
                                             double *base_value);

/* other / base of two independent estimates: Welch ("The generalization of Student's problem",
 * 1947) on the logarithms. Without an interval if one of them has none. */
struct estimate estimate_quotient(const struct estimate *base, const struct estimate *other);

/* The same with a further source of scatter: standard deviation `sd_log` of the logarithm, known
 * with `dof` degrees of freedom (Welch and Satterthwaite for both together). sd_log 0: unchanged.
 */
struct estimate estimate_widened(const struct estimate *estimate, double sd_log, double dof);

/* The two-sided p value of "the true value is `value`": t test on the logarithm. NaN where there is
 * no interval. */
double estimate_p(const struct estimate *estimate, double value);

/* Half of the interval on the logarithmic scale, as a fraction: 0.02 means about +- 2 %. NaN where
 * there is no interval. */
double estimate_half_width(const struct estimate *estimate);
