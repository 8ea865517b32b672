/* SPDX-License-Identifier: Apache-2.0
 * Statistics of samples: see stats.h. */
#include "bench/stats.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stats_percentile(const double *sorted, size_t count, double p)
{
    /* The small amount keeps a product like 0.95 x 20 from being rounded up to 19.0000001. */
    double place = ceil(p * (double)count - 1e-9);
    size_t at = place < 1 ? 1 : (size_t)place;
    return sorted[(at > count ? count : at) - 1];
}

double stats_median(double *samples, size_t count)
{
    qsort(samples, count, sizeof *samples, ascending);
    return stats_percentile(samples, count, 0.5);
}

struct stats stats_of(double *samples, size_t count)
{
    if (count == 0) return (struct stats){NAN, NAN, NAN, NAN, NAN, NAN};
    qsort(samples, count, sizeof *samples, ascending);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += samples[i];
    return (struct stats){
        .mean = sum / (double)count,
        .min = samples[0],
        .p50 = stats_percentile(samples, count, 0.50),
        .p95 = stats_percentile(samples, count, 0.95),
        .p99 = stats_percentile(samples, count, 0.99),
        .max = samples[count - 1],
    };
}
