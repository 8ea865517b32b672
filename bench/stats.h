/* SPDX-License-Identifier: Apache-2.0
 * Statistics of samples. Every percentile is a sample that was really measured: the one at
 * position ceil(p n) of the sorted list ("nearest rank"), so p50 of one sample is that sample. */
#pragma once

#include <stddef.h>

struct stats {
    double mean, min, p50, p95, p99, max; /* NaN when there is no sample */
};

/* `samples` is sorted ascending by the call. */
struct stats stats_of(double *samples, size_t count);

/* The sample at position ceil(p n) of `sorted`; p in (0, 1], count >= 1. */
double stats_percentile(const double *sorted, size_t count, double p);

/* The median as above; sorts `samples`; count >= 1. */
double stats_median(double *samples, size_t count);
