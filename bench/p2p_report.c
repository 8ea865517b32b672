/* SPDX-License-Identifier: Apache-2.0
 * The pairwise matrix on paper: see p2p_report.h. */
#include "bench/p2p_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/stats.h"

#define FAR_MADS 5.0     /* beyond the median by so many median deviations, */
#define FAR_FACTOR 1.2   /* and so many times the median */
enum { MOST_NAMED = 5 }; /* slow pairs listed */
enum { BESIDE = 8 };     /* values looked at before and after one, where there are so many */

/* ---- rows ---- */

const struct out_column p2p_columns[P2P_COLUMNS] = {
    {"from", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"to", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"bytes", NULL, 11, 0, OUT_UINT, NULL, NULL},
    {"latency_p50", "us", 11, 2, OUT_DOUBLE, "latency", NULL},
    {"latency_min", "us", 9, 2, OUT_DOUBLE, "min", NULL},
    {"one_way", "GB/s", 9, 3, OUT_DOUBLE, "one way", NULL},
    {"both_ways", "GB/s", 9, 3, OUT_DOUBLE, "both ways", NULL},
    {"all_at_once", "GB/s", 11, 3, OUT_DOUBLE, "all at once", NULL},
    {"slowdown", NULL, 8, 2, OUT_DOUBLE, NULL, NULL},
    {"wrong", NULL, 6, 0, OUT_UINT, "#wrong", NULL},
    {"one_way", "us", 0, 3, OUT_DOUBLE, NULL, NULL},
    {"both_ways", "us", 0, 3, OUT_DOUBLE, NULL, NULL},
    {"all_at_once", "us", 0, 3, OUT_DOUBLE, NULL, NULL},
    {"latency_quarter", "us", 0, 3, OUT_DOUBLE, NULL, NULL},
    {"one_way_quarter", "us", 0, 3, OUT_DOUBLE, NULL, NULL},
    {"latency_samples", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"latency_window", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"one_way_samples", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"one_way_window", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"both_ways_samples", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"both_ways_window", NULL, 0, 0, OUT_UINT, NULL, NULL},
};

/* 10^9 bytes per second; unknown without a time. */
static struct out_cell bandwidth(double bytes, const struct p2p_times *times)
{
    if (!times->samples || !(times->p50_us > 0)) return (struct out_cell){0};
    return out_double(bytes / times->p50_us / 1e3);
}

static struct out_cell time_cell(const struct p2p_times *times)
{
    return times->samples ? out_double(times->p50_us) : (struct out_cell){0};
}

void p2p_rows(struct out *out, const struct p2p_result *result, uint64_t bytes)
{
    const struct p2p_times *latency = &result->times[P2P_LATENCY];
    const struct p2p_times *both = &result->times[P2P_BOTH];
    const struct p2p_times *at_once = &result->times[P2P_AT_ONCE];
    double size = (double)bytes;
    for (int back = 0; back < 2; back++) {
        const struct p2p_times *one = &result->times[back ? P2P_BACK : P2P_THERE];
        const struct out_cell cells[P2P_COLUMNS] = {
            out_uint(back ? result->pair.second : result->pair.first),
            out_uint(back ? result->pair.first : result->pair.second),
            out_uint(bytes),
            out_double(latency->p50_us),
            out_double(latency->min_us),
            bandwidth(size, one),
            bandwidth(2 * size, both),
            bandwidth(2 * size, at_once),
            at_once->samples ? out_double(at_once->p50_us / both->p50_us) : (struct out_cell){0},
            out_uint(result->wrong[!back]), /* found by the one who received */
            time_cell(one),
            time_cell(both),
            time_cell(at_once),
            out_double(latency->quarter_us),
            out_double(one->quarter_us),
            out_uint(latency->samples),
            out_uint(latency->window),
            out_uint(one->samples),
            out_uint(one->window),
            out_uint(both->samples),
            out_uint(both->window),
        };
        out_row(out, cells);
    }
}

/* ---- matrices ---- */

/* One table of a value per ordered pair; cells[from * nranks + to]. */
static void note_matrix(struct out *out, const char *title, const double *cells, uint32_t nranks)
{
    enum { CELL = 9 };
    char *line = mem_calloc(nranks + 2, CELL);
    out_note(out, "%s", title);
    size_t at = (size_t)sprintf(line, "%7s", "from\\to");
    for (uint32_t to = 0; to < nranks; to++)
        at += (size_t)sprintf(line + at, " %7u", to);
    out_note(out, "%s", line);
    for (uint32_t from = 0; from < nranks; from++) {
        at = (size_t)sprintf(line, "%7u", from);
        for (uint32_t to = 0; to < nranks; to++) {
            double value = cells[from * nranks + to];
            if (from == to) {
                at += (size_t)sprintf(line + at, " %7s", "-");
            } else {
                at += (size_t)snprintf(line + at, CELL, value < 1000 ? " %7.2f" : " %7.4g", value);
            }
        }
        out_note(out, "%s", line);
    }
    free(line);
}

static void note_matrices(struct out *out, const struct p2p_plan *plan,
                          const struct p2p_result *first, const struct p2p_result *last,
                          size_t npairs)
{
    uint32_t n = plan->nranks;
    char size[UNITS_TEXT];
    double *latency = mem_calloc((size_t)n * n, sizeof *latency);
    double *GBps = mem_calloc((size_t)n * n, sizeof *GBps);
    double *both_GBps = mem_calloc((size_t)n * n, sizeof *both_GBps);
    for (size_t i = 0; i < npairs; i++) {
        const struct p2p_times *times = last[i].times;
        uint32_t a = first[i].pair.first, b = first[i].pair.second;
        double bytes = (double)plan->sizes[plan->nsizes - 1];
        latency[a * n + b] = latency[b * n + a] = first[i].times[P2P_LATENCY].p50_us;
        GBps[a * n + b] = bytes / times[P2P_THERE].p50_us / 1e3;
        GBps[b * n + a] = bytes / times[P2P_BACK].p50_us / 1e3;
        both_GBps[a * n + b] = both_GBps[b * n + a] = 2 * bytes / times[P2P_BOTH].p50_us / 1e3;
    }
    char *title = mem_printf("latency in us, %s:", units_size(size, plan->sizes[0]));
    note_matrix(out, title, latency, n);
    free(title);
    title = mem_printf("one way bandwidth in GB/s, %s:",
                       units_size(size, plan->sizes[plan->nsizes - 1]));
    note_matrix(out, title, GBps, n);
    free(title);
    title = mem_printf("both ways bandwidth in GB/s, the sum, %s:",
                       units_size(size, plan->sizes[plan->nsizes - 1]));
    note_matrix(out, title, both_GBps, n);
    free(title);
    free(latency);
    free(GBps);
    free(both_GBps);
}

/* ---- slow pairs ---- */

static int slowest_first(const void *a, const void *b)
{
    double x = ((const struct p2p_value *)a)->us, y = ((const struct p2p_value *)b)->us;
    return (x < y) - (x > y);
}

double p2p_beside(const double *us, size_t count, size_t at)
{
    double near[2 * BESIDE + 1];
    size_t n = count < 2 * BESIDE + 1 ? count : 2 * BESIDE + 1;
    size_t first = at < BESIDE ? 0 : at - BESIDE;
    if (first > count - n) first = count - n;
    memcpy(near, us + first, n * sizeof *near);
    return stats_median(near, n);
}

size_t p2p_slow(struct p2p_value *values, size_t count, double *median_us, double *limit_us)
{
    if (count == 0) return 0;
    double *us = mem_calloc(count, sizeof *us);
    for (size_t i = 0; i < count; i++)
        us[i] = values[i].us;
    double median = stats_median(us, count);
    for (size_t i = 0; i < count; i++)
        us[i] = fabs(us[i] - median);
    double limit = median + FAR_MADS * stats_median(us, count);
    free(us);
    if (limit < FAR_FACTOR * median) limit = FAR_FACTOR * median;
    *median_us = median;
    *limit_us = limit;
    qsort(values, count, sizeof *values, slowest_first);
    size_t slow = 0;
    for (size_t i = 0; count >= 3 && i < count && values[i].us > limit; i++) {
        if (values[i].quarter_us <= limit) continue;  /* its own noise, or the machine's: */
        if (values[i].beside <= FAR_FACTOR) continue; /* not for sure */
        struct p2p_value value = values[i];
        for (size_t k = i; k > slow; k--) /* the slow ones stand in front */
            values[k] = values[k - 1];
        values[slow++] = value;
    }
    return slow;
}

/* The rank that all of the slow pairs have, or UINT32_MAX; at least 2 different pairs. */
static uint32_t common_rank(const struct p2p_value *values, size_t slow)
{
    uint32_t ends[2] = {values[0].pair.first, values[0].pair.second};
    bool common[2] = {true, true}, differ = false;
    for (size_t i = 1; i < slow; i++) {
        struct p2p_pair pair = values[i].pair;
        bool has[2] = {pair.first == ends[0] || pair.second == ends[0],
                       pair.first == ends[1] || pair.second == ends[1]};
        common[0] = common[0] && has[0];
        common[1] = common[1] && has[1];
        differ = differ || !has[0] || !has[1];
    }
    if (!differ) return UINT32_MAX;
    return common[0] ? ends[0] : common[1] ? ends[1] : UINT32_MAX;
}

/* What is looked at: the latency of pairs at the smallest size, and the bandwidth of each way at
 * the largest. */
struct measure {
    const char *name, *key, *limit_key; /* keys: of the facts in JSON */
    bool ways;                          /* from -> to counts */
    double bytes;                       /* of a bandwidth; 0: a latency */
};

static void value_text(const struct measure *measure, double us, char *text)
{
    if (measure->bytes > 0) {
        units_bandwidth(text, measure->bytes / us * 1e6);
    } else {
        units_time(text, us / 1e6);
    }
}

static void note_slow(struct out *out, const struct measure *measure, struct p2p_value *values,
                      size_t npairs, size_t count)
{
    double median_us = 0, limit_us = 0;
    size_t slow = p2p_slow(values, count, &median_us, &limit_us);
    if (npairs < 3) slow = 0; /* said below */
    char own[UNITS_TEXT], median[UNITS_TEXT], limit[UNITS_TEXT];
    value_text(measure, median_us, median);
    value_text(measure, limit_us, limit);
    out_meta(out, measure->key, out_uint(slow));
    out_meta(out, measure->limit_key, out_double(limit_us));
    if (npairs < 3) {
        out_note(out, "%s: fewer than 3 to compare, so none can be called slow", measure->name);
        return;
    }
    if (slow == 0) {
        out_note(out, "%s: no slow pair (median %s, limit %s)", measure->name, median, limit);
        return;
    }
    for (size_t i = 0; i < slow && i < MOST_NAMED; i++) {
        value_text(measure, values[i].us, own);
        out_note(out,
                 "SLOW PAIR: %s %u %s %u is %s, %.1f times worse than the median of all (%s; limit "
                 "%s)",
                 measure->name, values[i].pair.first, measure->ways ? "->" : "-",
                 values[i].pair.second, own, values[i].us / median_us, median, limit);
    }
    if (slow > MOST_NAMED) {
        out_note(out, "%s: %zu slow in all, the worst %d are named", measure->name, slow,
                 MOST_NAMED);
    }
    uint32_t rank = common_rank(values, slow);
    if (rank != UINT32_MAX) out_note(out, "%s: rank %u is in all slow pairs", measure->name, rank);
}

/* Pairs that are compared with each other. */
struct fellows {
    size_t *at; /* numbers among the pairs, in the order of measuring */
    size_t count;
    const char *where, *key; /* behind names and keys */
};

static uint32_t host_of(const uint32_t *host_ranks, uint32_t rank)
{
    uint32_t host = 0;
    for (; rank >= host_ranks[host]; host++)
        rank -= host_ranks[host];
    return host;
}

/* Inside of hosts or between them; all where there is one host. */
static struct fellows choose(const struct p2p_result *results, size_t npairs,
                             const uint32_t *host_ranks, bool between)
{
    struct fellows fellows = {mem_calloc(npairs, sizeof *fellows.at), 0, "", ""};
    for (size_t i = 0; i < npairs; i++) {
        struct p2p_pair pair = results[i].pair;
        bool differ =
            host_ranks && host_of(host_ranks, pair.first) != host_of(host_ranks, pair.second);
        if (differ == between) fellows.at[fellows.count++] = i;
    }
    if (host_ranks) {
        fellows.where = between ? " between hosts" : " inside of hosts";
        fellows.key = between ? "_between_hosts" : "_inside_hosts";
    }
    return fellows;
}

/* Values of a measure, one per pair or way, in the order of measuring. `results` are merged, and
 * those of pass p lie (p + 1) x `stride` behind them. */
static void collect(const struct measure *measure, const struct p2p_plan *plan,
                    const struct p2p_result *results, const struct fellows *fellows, size_t stride,
                    struct p2p_value *values)
{
    size_t ways = measure->ways ? 2 : 1, count = fellows->count * ways;
    double *us = mem_calloc(count, sizeof *us);
    static const enum p2p_mode modes[2][2] = {{P2P_LATENCY}, {P2P_THERE, P2P_BACK}};
    for (size_t i = 0; i < count; i++) {
        const struct p2p_result *result = &results[fellows->at[i / ways]];
        const struct p2p_times *times = &result->times[modes[measure->ways][i % ways]];
        struct p2p_pair pair = result->pair;
        if (i % ways) pair = (struct p2p_pair){pair.second, pair.first};
        values[i] = (struct p2p_value){pair, times->p50_us, times->quarter_us, INFINITY};
    }
    for (uint32_t pass = 0; pass < plan->passes; pass++) {
        results += stride;
        for (size_t i = 0; i < count; i++)
            us[i] = results[fellows->at[i / ways]].times[modes[measure->ways][i % ways]].p50_us;
        for (size_t i = 0; i < count; i++)
            values[i].beside = fmin(values[i].beside, us[i] / p2p_beside(us, count, i));
    }
    free(us);
}

/* A measure of the pairs that can be compared; `bytes` 0: the latency. */
static void compare(struct out *out, const struct p2p_plan *plan, const struct p2p_result *results,
                    const struct fellows *fellows, double bytes)
{
    static const char *const names[][3] = {
        {"latency", "slow_latencies", "latency_limit"},
        {"one way bandwidth", "slow_bandwidths", "one_way_limit"},
    };
    const char *const *name = names[bytes > 0];
    size_t npairs = (size_t)p2p_rounds(plan->nranks) * p2p_pairs(plan->nranks);
    char *says = mem_printf("%s%s", name[0], fellows->where);
    char *key = mem_printf("%s%s", name[1], fellows->key);
    char *limit_key = mem_printf("%s%s_us", name[2], fellows->key);
    struct measure measure = {says, key, limit_key, bytes > 0, bytes};
    struct p2p_value *values = mem_calloc(2 * fellows->count, sizeof *values);
    collect(&measure, plan, results, fellows, npairs * plan->nsizes, values);
    note_slow(out, &measure, values, fellows->count, fellows->count * (bytes > 0 ? 2 : 1));
    free(values);
    free(says);
    free(key);
    free(limit_key);
}

void p2p_summary(struct out *out, const struct p2p_plan *plan, const struct p2p_result *results,
                 const uint32_t *host_ranks)
{
    size_t npairs = (size_t)p2p_rounds(plan->nranks) * p2p_pairs(plan->nranks);
    const struct p2p_result *last = results + npairs * (plan->nsizes - 1);
    double bytes = (double)plan->sizes[plan->nsizes - 1];
    if (plan->nranks <= P2P_MATRIX_RANKS) note_matrices(out, plan, results, last, npairs);
    for (int between = 0; between < 2; between++) {
        struct fellows fellows = choose(results, npairs, host_ranks, between);
        if (fellows.count > 0) compare(out, plan, results, &fellows, 0);
        if (fellows.count > 0 && bytes > 0) compare(out, plan, last, &fellows, bytes);
        free(fellows.at);
    }
}
