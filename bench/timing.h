/* SPDX-License-Identifier: Apache-2.0
 * The timed part of one placement of a row: warming up, samples of the operation and, in turns with
 * them, of what it is compared with, until the medians are sure.
 *
 *   warm up | speed, samples | speed, samples | .. | samples | samples ..     speed: see speed.h
 *             segment 1        segment 2             6         7
 *
 * On GPUs a sample is what the device's own clock says: see timing_gpu.h.
 *
 * Back to back, a sample's operations follow the last one's at once. Where two series take turns,
 * each sample starts behind a barrier and one operation that is not timed, which takes up the
 * barrier's skew. Isolated, it starts behind the barrier itself. Between the samples nothing is
 * built, allocated or touched for the first time. */
#pragma once

#include "bench/interval.h"
#include "bench/side.h"
#include "bench/speed.h"

enum { SERIES_OWN, SERIES_OTHER, NSERIES };

struct series {
    struct runner runner;
    bool one_group;       /* only the first group runs it */
    bool late;            /* one rank after the other comes late by plan->skew_ns */
    uint64_t batch;       /* operations in a sample */
    double op_s;          /* of an operation, as warming up showed */
    double *us;           /* rank 0: samples over all ranks, in microseconds per operation */
    double *wait_us;      /* rank 0, series that are late: what the longest stay was beyond that */
    double cpu_s, wall_s; /* of this rank in all samples */
    double host_us, launch_us; /* GPUs: see timing_gpu.h */
    struct estimate median;    /* rank 0 */
};

struct timing {
    struct side *side;
    const struct facts *facts;
    struct series series[NSERIES];
    uint32_t nseries;
    uint64_t nsamples;
    struct speed speed;
    uint64_t speeds;               /* how often it was measured */
    double ping_s[SPEED_SEGMENTS]; /* beside it: see calibrate_ping_s */
    const char *stop;              /* what ended the sampling; rank 0 */
};

/* Whether buffers can be flushed from the caches on this kind of processor (--cold). */
bool timing_can_flush(void);

/* `side` is open, the runners are set. Every rank calls it; afterwards rank 0 has the samples. */
void timing_open(struct timing *timing);

/* Runs `count` operations of a series as the timed ones run; seconds per operation, the largest
 * over the ranks, agreed on by all; 0 when there were none. */
double timing_warm(struct timing *timing, struct series *series, uint64_t count);

/* How many operations more than the plan's warm-up are worth running after one took op_s. */
uint64_t timing_warm_more(double op_s);

/* Warms up (but for series whose op_s is known already), then takes the samples. */
void timing_run(struct timing *timing);

/* Rank 0: fills in times, statistics and bound of one series. */
void timing_conclude(const struct timing *timing, const struct series *series,
                     struct result *result);

void timing_close(struct timing *timing);
