/* SPDX-License-Identifier: Apache-2.0
 * Warming up, taking samples, knowing when to stop: see timing.h. */
#include "bench/timing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/mem.h"
#include "bench/bound.h"
#include "bench/calibrate.h"
#include "bench/clock.h"
#include "bench/stats.h"
#include "bench/timing_gpu.h"

enum {
    CLOCK_SHARE = 50, /* a sample takes at least so many readings of the clock */
    BATCH_MOST = 1000,
    SEGMENT_MOST = 200, /* samples */
    SEGMENT_LEAST = 4,
    FIRST_LOOK = SPEED_SEGMENTS, /* segments before it is asked how sure the medians are */
    CACHE_LINE = 64,
};
#define SEGMENT_S 0.02

static const struct plan *plan_of(const struct timing *t)
{
    return t->side->bench->plan;
}

static struct rank *rank_of(const struct timing *t)
{
    return t->side->bench->rk;
}

/* ---- samples ---- */

static uint64_t *plane(const struct timing *t, uint32_t rank, const struct series *series, bool end)
{
    unsigned number = series == &t->series[SERIES_OTHER] ? PLANE_OTHER_BEGIN : PLANE_BEGIN;
    return board_samples(rank_of(t)->world, rank, (enum plane)(number + end));
}

static bool takes_part(const struct timing *t, const struct series *series)
{
    return !series->one_group || rank_of(t)->rank < plan_of(t)->nranks;
}

static void operate(const struct series *series, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        series->runner.run(series->runner.ctx);
}

/* Samples [from, to) back to back. */
static void sample_on(struct timing *t, struct series *series, uint64_t from, uint64_t to)
{
    uint32_t rank = rank_of(t)->rank;
    uint64_t *begins = plane(t, rank, series, false), *ends = plane(t, rank, series, true);
    uint64_t before = clock_ns();
    for (uint64_t i = from; i < to; i++) {
        begins[i] = before;
        operate(series, series->batch);
        ends[i] = before = clock_ns();
    }
}

/* Samples [from, to) by the clock of the GPU. */
static void sample_on_gpu(struct timing *t, struct series *series, uint64_t from, uint64_t to)
{
    struct rank *rk = rank_of(t);
    uint64_t *begins = plane(t, rk->rank, series, false), *ends = plane(t, rk->rank, series, true);
    for (uint64_t i = from; i < to; i++) {
        begins[i] = 0;
        ends[i] = timing_gpu_sample(rk, &series->runner, series->batch);
    }
}

#if defined(__x86_64__)
#define FLUSH_LINE(at) _mm_clflush(at)
#define FLUSH_END() _mm_mfence()
#elif defined(__aarch64__)
#define FLUSH_LINE(at) __asm__ volatile("dc civac, %0" ::"r"(at) : "memory")
#define FLUSH_END() __asm__ volatile("dsb ish" ::: "memory")
#endif

bool timing_can_flush(void)
{
#if defined(FLUSH_LINE)
    return true;
#else
    return false;
#endif
}

/* Makes the next access to any byte of the buffers go to memory. */
static void flush_caches(const struct timing *t)
{
#if defined(FLUSH_LINE)
    const uint8_t *at = t->side->check.memory;
    for (size_t i = 0; i < t->side->check.places.bytes; i += CACHE_LINE)
        FLUSH_LINE(at + i);
    FLUSH_END();
#else
    (void)t; /* a plan does not ask for it: see timing_can_flush */
#endif
}

static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Spins until `ns` have gone by. */
static void be_late(uint64_t ns)
{
    for (uint64_t start = clock_ns(); clock_ns() - start < ns;) {
    }
}

/* Sample i on its own, behind a barrier. */
static void sample_alone(struct timing *t, struct series *series, uint64_t i)
{
    const struct plan *plan = plan_of(t);
    struct rank *rk = rank_of(t);
    uint64_t *begins = plane(t, rk->rank, series, false), *ends = plane(t, rk->rank, series, true);
    if (plan->device) {
        sample_on_gpu(t, series, i, i + 1);
        return;
    }
    if (plan->cold) flush_caches(t);
    rank_barrier(rk);
    begins[i] = ends[i] = 0;
    if (!takes_part(t, series)) return;
    if (plan->cadence == CADENCE_BACK_TO_BACK && plan->warmup > 0) operate(series, 1);
    if (series->late && t->side->bench->me == i % plan->nranks) be_late(plan->skew_ns);
    double cpu = plan->contest == CONTEST_OVERLAP ? cpu_s() : 0;
    begins[i] = clock_ns();
    operate(series, series->batch);
    ends[i] = clock_ns();
    if (plan->contest == CONTEST_OVERLAP) series->cpu_s += cpu_s() - cpu;
    series->wall_s += (double)(ends[i] - begins[i]) / 1e9;
}

/* Samples [from, to) of all series. */
static void run_samples(struct timing *t, uint64_t from, uint64_t to)
{
    struct rank *rk = rank_of(t);
    bool back_to_back = plan_of(t)->cadence == CADENCE_BACK_TO_BACK && !plan_of(t)->device;
    if (t->nseries == 1 && back_to_back) {
        struct series *own = &t->series[SERIES_OWN];
        rank_barrier(rk);
        if (plan_of(t)->warmup > 0) operate(own, 1); /* takes up the skew of the barrier */
        sample_on(t, own, from, to);
        return;
    }
    for (uint64_t i = from; i < to; i++) {
        for (uint32_t s = 0; s < t->nseries; s++) { /* a b, b a, a b, .. */
            sample_alone(t, &t->series[i % 2 ? t->nseries - 1 - s : s], i);
        }
    }
}

/* ---- warming up, and what follows from it ---- */

/* seconds / each, rounded up, within least..most. */
static uint64_t how_many(double seconds, double each, uint64_t least, uint64_t most)
{
    double count = each > 0 ? ceil(seconds / each) : (double)least;
    if (!(count > (double)least)) return least;
    return count < (double)most ? (uint64_t)count : most;
}

uint64_t timing_warm_more(double op_s)
{
    return how_many(PLAN_WARM_S, op_s, 1, PLAN_WARM_MOST);
}

double timing_warm(struct timing *t, struct series *series, uint64_t count)
{
    struct rank *rk = rank_of(t);
    uint64_t cap = plan_of(t)->samples_cap, last = 0;
    series->batch = 1;
    rank_barrier(rk);
    for (uint64_t left = count; left > 0; left -= last) {
        last = left < cap ? left : cap;
        if (takes_part(t, series)) sample_on(t, series, 0, last);
    }
    if (last == 0) return 0;
    double *ns = mem_calloc(last, sizeof *ns);
    for (uint64_t i = 0; takes_part(t, series) && i < last; i++)
        ns[i] =
            (double)(plane(t, rk->rank, series, true)[i] - plane(t, rk->rank, series, false)[i]);
    double median = board_most(rk, stats_median(ns, last)) / 1e9;
    free(ns);
    return median;
}

/* Settles the batch of a series, the same on all ranks. */
static void settle(struct timing *t, struct series *series)
{
    const struct plan *plan = plan_of(t);
    side_says(t->side, "warming up");
    if (series->op_s == 0) {
        series->op_s = timing_warm(t, series, plan->warmup);
        if (plan->warm_longer)
            series->op_s = timing_warm(t, series, timing_warm_more(series->op_s));
    }
    double least_s = CLOCK_SHARE * t->facts->clock_cost_s;
    series->batch = plan->batch;
    if (plan->device)
        timing_gpu_host(rank_of(t), &series->runner, &series->host_us, &series->launch_us);
    if (plan->cadence == CADENCE_ISOLATED) return; /* each operation is for itself */
    uint64_t most = plan->device ? TIMING_GPU_BATCH : BATCH_MOST;
    least_s = plan->device ? TIMING_GPU_SAMPLE_S : least_s;
    series->batch = board_agree(rank_of(t), how_many(least_s, series->op_s, plan->batch, most));
}

/* ---- rank 0: over all ranks ---- */

static uint64_t duration(const struct timing *t, const struct series *series, uint32_t rank,
                         uint64_t i)
{
    return plane(t, rank, series, true)[i] - plane(t, rank, series, false)[i];
}

/* From the last arrival to the last departure, in nanoseconds. */
static uint64_t since_last_arrival(const struct timing *t, const struct series *series, uint64_t i)
{
    uint64_t begin = 0, end = 0;
    for (uint32_t r = 0; r < plan_world(plan_of(t)); r++) {
        uint64_t b = plane(t, r, series, false)[i], e = plane(t, r, series, true)[i];
        begin = b > begin ? b : begin;
        end = e > end ? e : end;
    }
    return end - begin;
}

static double combine(const struct timing *t, struct series *series, uint64_t i)
{
    const struct plan *plan = plan_of(t);
    uint32_t nranks = series->one_group ? plan->nranks : plan_world(plan);
    double value = (double)duration(t, series, 0, i), sum = value;
    for (uint32_t r = 1; r < nranks; r++) {
        double other = (double)duration(t, series, r, i);
        sum += other;
        bool takes = (plan->average == AVERAGE_MAX && other > value) ||
                     (plan->average == AVERAGE_MIN && other < value);
        if (takes) value = other;
    }
    if (plan->average == AVERAGE_MEAN) value = sum / nranks;
    if (plan->contest == CONTEST_SKEW) {
        double left = (double)since_last_arrival(t, series, i);
        series->wait_us[i] = (value - left) / 1e3;
        value = left;
    }
    return value / 1e3 / (double)series->batch;
}

/* Takes in samples [from, to) of all ranks. */
static void take(struct timing *t, uint64_t from, uint64_t to)
{
    for (uint32_t s = 0; s < t->nseries; s++) {
        for (uint64_t i = from; i < to; i++)
            t->series[s].us[i] = combine(t, &t->series[s], i);
    }
}

static bool sure(struct timing *t, double precision)
{
    bool yes = true;
    for (uint32_t s = 0; s < t->nseries; s++) {
        struct series *series = &t->series[s];
        series->median = estimate_median(series->us, t->nsamples);
        double half = estimate_half_width(&series->median);
        yes = yes && half <= precision;
    }
    return yes;
}

/* Why to stop now, or NULL. */
static const char *why_stop(struct timing *t, uint64_t segment, double spent_s, uint64_t *look)
{
    const struct plan *plan = plan_of(t);
    if (t->nsamples == plan->samples_cap) return "count";
    if (plan->samples || segment < FIRST_LOOK || t->nsamples < PLAN_SAMPLES_LEAST) return NULL;
    if (segment >= *look) { /* looking takes time, so ever more rarely */
        *look = segment + (segment + 1) / 2;
        if (sure(t, plan->precision)) return "precision";
    }
    return spent_s >= plan->cap_s ? "time" : NULL;
}

/* ---- all of it ---- */

void timing_open(struct timing *t)
{
    const struct side *side = t->side;
    const struct bench *bench = side->bench;
    const struct plan *plan = bench->plan;
    t->speed = (struct speed){
        .rk = bench->rk,
        .kernels = bench->kernels,
        .memory = side->check.memory,
        .bytes = side->check.places.bytes,
        .rewrites = side->in_place && bound_rewrites(plan->coll),
        .cores = plan->cores,
        .clock_s = t->facts->clock_cost_s,
        .slot = bench->slot,
        .from = bench->next_slot,
        .block = SLOTS_TOUCHED / 2,
    };
    for (uint32_t s = 0; bench->rk->rank == 0 && s < t->nseries; s++) {
        t->series[s].us = mem_calloc(plan->samples_cap, sizeof(double));
        if (plan->contest == CONTEST_SKEW)
            t->series[s].wait_us = mem_calloc(plan->samples_cap, sizeof(double));
    }
}

void timing_close(struct timing *t)
{
    for (uint32_t s = 0; s < t->nseries; s++) {
        free(t->series[s].us);
        free(t->series[s].wait_us);
    }
}

/* To rank 0, if that is on another host. */
static void show_samples(struct timing *t, uint64_t from, uint64_t to)
{
    for (unsigned plane = 0; plane < 2 * t->nseries; plane++)
        board_show_samples(rank_of(t), (enum plane)plane, from, to);
}

/* Samples of a segment. */
static uint64_t segment_length(const struct timing *t)
{
    const struct plan *plan = plan_of(t);
    if (plan->samples) return (plan->samples + SPEED_SEGMENTS - 1) / SPEED_SEGMENTS;
    double each_s = 0;
    for (uint32_t s = 0; s < t->nseries; s++)
        each_s += t->series[s].op_s * (double)t->series[s].batch;
    if (each_s < t->facts->clock_cost_s) each_s = t->facts->clock_cost_s; /* no warm-up */
    return how_many(SEGMENT_S, each_s, SEGMENT_LEAST, SEGMENT_MOST);
}

void timing_run(struct timing *t)
{
    const struct plan *plan = plan_of(t);
    struct rank *rk = rank_of(t);
    for (uint32_t s = 0; s < t->nseries; s++)
        settle(t, &t->series[s]);
    side_says(t->side, "timing");
    uint64_t length = board_agree(rk, segment_length(t)), look = 0, start = clock_ns();
    t->nsamples = 0;
    for (uint64_t segment = 1, more = 1; more; segment++) {
        uint64_t left = plan->samples_cap - t->nsamples;
        uint64_t from = t->nsamples, to = from + (length < left ? length : left);
        if (!plan->device && !plan->nhosts && t->speeds < SPEED_SEGMENTS) {
            if (!rk->crowded) t->ping_s[t->speeds] = calibrate_ping_s(rk);
            speed_measure(&t->speed, t->speeds++);
        }
        run_samples(t, from, to);
        t->nsamples = to;
        show_samples(t, from, to);
        rank_barrier(rk); /* now all samples can be read, */
        if (rk->rank == 0) {
            take(t, from, to);
            t->stop = why_stop(t, segment, (double)(clock_ns() - start) / 1e9, &look);
        }
        more = board_agree(rk, t->stop == NULL); /* and from here on written again */
    }
}

void timing_conclude(const struct timing *t, const struct series *series, struct result *result)
{
    const struct plan *plan = plan_of(t);
    double *sorted = mem_calloc(t->nsamples, sizeof *sorted);
    memcpy(sorted, series->us, t->nsamples * sizeof *sorted);
    struct stats stats = stats_of(sorted, t->nsamples);
    struct estimate median = estimate_median(series->us, t->nsamples);
    result->time_us = stats.mean;
    result->min_us = stats.min;
    result->p50_us = stats.p50;
    result->p95_us = stats.p95;
    result->p99_us = stats.p99;
    result->max_us = stats.max;
    result->nsamples = t->nsamples;
    result->batch = series->batch;
    if (median.method != INTERVAL_NONE) {
        result->ci_low_us = median.low;
        result->ci_high_us = median.high;
    }
    snprintf(result->interval, sizeof result->interval, "%s", interval_method_name(median.method));
    snprintf(result->stop, sizeof result->stop, "%s", t->stop);
    if (series->wait_us) {
        memcpy(sorted, series->wait_us, t->nsamples * sizeof *sorted);
        result->wait_us = stats_median(sorted, t->nsamples);
    }
    double pings_s[SPEED_SEGMENTS];
    memcpy(pings_s, t->ping_s, sizeof pings_s);
    result->ping_us = t->speeds > 0 ? stats_median(pings_s, t->speeds) * 1e6 : 0;
    result->host_us = series->host_us;
    result->launch_us = series->launch_us;
    free(sorted);
    if (plan->device || plan->nhosts) return; /* what bounds it is not measured here */
    struct bound least =
        bound_least(plan->coll, plan->nranks, t->side->row->bytes, plan->shared, t->side->in_place);
    result->bound_us = bound_us(&least, speed_copy_Bps(&t->speed, t->speeds),
                                speed_slot_Bps(&t->speed, t->speeds));
}
