/* SPDX-License-Identifier: Apache-2.0
 * Results of several launches: see history.h. */
#include "bench/history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/interval.h"
#include "bench/stats.h"

#define DRIFT 0.10
#define DEVIATIONS 5

enum { PLACES = 2, SERIES = 2 };

/* What a launch found for one row, series and placement. */
struct kept {
    double mean, min, p50, p95, p99, max, ratio;
};

struct line {
    struct result last;
    struct kept *kept;
    size_t count, cap;
};

struct history {
    struct line *lines; /* by row, series, placement */
    size_t count, cap;
};

struct history *history_new(void)
{
    return mem_calloc(1, sizeof(struct history));
}

void history_free(struct history *history)
{
    if (!history) return;
    for (size_t i = 0; i < history->count; i++)
        free(history->lines[i].kept);
    free(history->lines);
    free(history);
}

static size_t place_of(uint64_t row, unsigned series, bool in_place)
{
    return (row * SERIES + series) * PLACES + in_place;
}

uint64_t history_rows(const struct history *history)
{
    return history->count / (SERIES * PLACES);
}

/* The median of one member over the launches [0, count) of a line. */
static double median_of(const struct line *line, size_t count, size_t member)
{
    double *values = mem_calloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = *(const double *)(const void *)((const char *)&line->kept[i] + member);
    double median = stats_median(values, count);
    free(values);
    return median;
}

/* The median of |log(p50 / median)|. */
static double scatter_of(const struct line *line, size_t count, double median)
{
    double *values = mem_calloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = fabs(log(line->kept[i].p50 / median));
    double scatter = stats_median(values, count);
    free(values);
    return scatter;
}

static char *alarm_of(const struct line *line)
{
    size_t before = line->count - 1;
    const struct result *now = &line->last;
    if (line->count < HISTORY_ALARM_FROM || !(now->p50_us > 0)) return NULL;
    double median = median_of(line, before, offsetof(struct kept, p50));
    double change = log(now->p50_us / median);
    double noise = DEVIATIONS * scatter_of(line, before, median);
    if (!(fabs(change) > log1p(DRIFT)) || fabs(change) <= noise) return NULL;
    return mem_printf("%s %s, %s, %s: p50 %s, %+.0f %% from %s, the median of %zu launches before",
                      coll_get(now->coll)->name, now->algo,
                      units_size((char[UNITS_TEXT]){0}, now->bytes),
                      now->in_place ? "in place" : "out of place",
                      units_time((char[UNITS_TEXT]){0}, now->p50_us / 1e6), 100 * expm1(change),
                      units_time((char[UNITS_TEXT]){0}, median / 1e6), before);
}

char *history_take(struct history *history, uint64_t row, unsigned series,
                   const struct result *result)
{
    size_t place = place_of(row, series, result->in_place);
    while (history->count < place_of(row + 1, 0, false)) {
        MEM_GROW(history->lines, history->count, history->cap);
        history->lines[history->count++] = (struct line){0};
    }
    struct line *line = &history->lines[place];
    line->last = *result;
    if (result->nsamples == 0) return NULL; /* wrong data are not timed */
    MEM_GROW(line->kept, line->count, line->cap);
    line->kept[line->count++] =
        (struct kept){result->time_us, result->min_us, result->p50_us, result->p95_us,
                      result->p99_us,  result->max_us, result->ratio};
    return alarm_of(line);
}

static struct estimate over_launches(const struct line *line, size_t member)
{
    double *values = mem_calloc(line->count, sizeof *values);
    for (size_t i = 0; i < line->count; i++)
        values[i] = *(const double *)(const void *)((const char *)&line->kept[i] + member);
    struct estimate estimate = estimate_launches(values, line->count);
    free(values);
    return estimate;
}

bool history_over(const struct history *history, uint64_t row, unsigned series, bool in_place,
                  struct result *over)
{
    const struct line *line = &history->lines[place_of(row, series, in_place)];
    if (line->count == 0) return false;
    *over = line->last;
    over->launch = 0;
    over->order = 0;
    over->min_us = INFINITY;
    over->max_us = over->time_us = 0;
    for (size_t i = 0; i < line->count; i++) {
        over->min_us = fmin(over->min_us, line->kept[i].min);
        over->max_us = fmax(over->max_us, line->kept[i].max);
        over->time_us += line->kept[i].mean / (double)line->count;
    }
    over->p95_us = median_of(line, line->count, offsetof(struct kept, p95));
    over->p99_us = median_of(line, line->count, offsetof(struct kept, p99));
    struct estimate p50 = over_launches(line, offsetof(struct kept, p50));
    over->p50_us = p50.value;
    over->ci_low_us = p50.method != INTERVAL_NONE ? p50.low : 0;
    over->ci_high_us = p50.method != INTERVAL_NONE ? p50.high : 0;
    over->nsamples = line->count;
    snprintf(over->interval, sizeof over->interval, "%s", interval_method_name(p50.method));
    snprintf(over->stop, sizeof over->stop, "launches");
    if (over->ratio > 0) {
        struct estimate ratio = over_launches(line, offsetof(struct kept, ratio));
        bool known = ratio.method != INTERVAL_NONE;
        over->ratio = ratio.value;
        over->ratio_low = known ? ratio.low : 0;
        over->ratio_high = known ? ratio.high : 0;
        bool judged = over->verdict[0] && known;
        snprintf(over->verdict, sizeof over->verdict, "%s",
                 !judged          ? ""
                 : ratio.low > 1  ? "faster"
                 : ratio.high < 1 ? "slower"
                                  : "no difference");
    }
    result_bandwidths(over);
    return true;
}
