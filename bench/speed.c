/* SPDX-License-Identifier: Apache-2.0
 * What memory gives: see speed.h. */
#include "bench/speed.h"

#include <math.h>

#include "bench/clock.h"
#include "bench/stats.h"

enum {
    SAMPLES_MOST = 25, /* in a block */
    REPEATS_MOST = 10000,
    CLOCK_SHARE = 200, /* a sample takes at least so many readings of the clock */
    GRAIN = 64,        /* bytes; streams start at multiples of it */
    COPY_LOOPS = 2,    /* the first ones, plain and non-temporal */
    HANDOVERS = 7,     /* in a block; the median counts */
};
#define BLOCK_S 1e-3 /* wanted length of a block */
#define WARM_S 10e-3 /* a pass this short is worth one untimed pass, which fills the caches */

/* One pass of a loop (0, 1: copy; 2, 3: fold; odd: non-temporal); bytes read and written. */
static double run_loop(const struct speed *speed, int loop)
{
    bool stream = loop & 1;
    uint8_t *at = speed->memory;
    size_t half = speed->bytes / 2;
    if (loop < COPY_LOOPS) {
        speed->kernels->copy(at + half, at, half, stream);
        return 2 * (double)half;
    }
    size_t streams = speed->rewrites ? 2 : 4, each = speed->bytes / streams / GRAIN * GRAIN;
    size_t out = speed->rewrites ? 0 : 2 * each;
    struct fold fold = {
        .in = {at, at + each},
        .out = {at + out, at + out + each},
        .nin = 2,
        .nout = 2,
        .stream = stream,
        .count = each / dtype_bytes(DT_INT32),
    };
    if (each > 0) speed->kernels->fold[DT_INT32][OP_SUM](&fold);
    return 4 * (double)each;
}

/* Bytes per second that a block of one loop moves on this rank: the median of its samples. */
static double run_block(const struct speed *speed, int loop)
{
    double Bps[SAMPLES_MOST];
    if (speed->warm) run_loop(speed, loop);
    for (uint64_t s = 0; s < speed->samples; s++) {
        double moved = 0;
        uint64_t start = clock_ns();
        for (uint64_t i = 0; i < speed->repeats; i++)
            moved += run_loop(speed, loop);
        uint64_t ns = clock_ns() - start;
        Bps[s] = moved * 1e9 / (double)(ns > 0 ? ns : 1);
    }
    return stats_median(Bps, speed->samples);
}

/* A block of the first `loops` loops on all ranks at once; moved[loop] is the mean over the ranks,
 * valid on rank 0. */
static void run_together(const struct speed *speed, int loops, double *moved)
{
    struct rank *rk = speed->rk;
    double *own = board_place(rk->world, rk->rank)->moved_Bps;
    rank_barrier(rk);
    for (int loop = 0; loop < loops; loop++)
        own[loop] = run_block(speed, loop);
    board_show(rk);
    rank_barrier(rk);
    for (int loop = 0; rk->rank == 0 && loop < loops; loop++) {
        double sum = 0;
        for (uint32_t r = 0; r < rk->nranks; r++)
            sum += board_place(rk->world, r)->moved_Bps[loop];
        moved[loop] = sum / rk->nranks;
    }
}

/* How often a loop runs in a sample, and how many samples make a block. */
static void settle(struct speed *speed)
{
    double moved_Bps = 1;
    speed->samples = speed->repeats = 1;
    run_together(speed, 1, &moved_Bps);
    double pass_s = (double)speed->bytes / moved_Bps;
    double repeats = ceil(CLOCK_SHARE * speed->clock_s / pass_s);
    double samples = BLOCK_S / (fmax(repeats, 1) * pass_s);
    speed->warm = board_agree(speed->rk, pass_s < WARM_S);
    speed->repeats = board_agree(speed->rk, (uint64_t)fmin(fmax(repeats, 1), REPEATS_MOST));
    speed->samples = board_agree(speed->rk, (uint64_t)fmin(fmax(samples, 1), SAMPLES_MOST));
}

/* Hands a block over `HANDOVERS` times; the mean over the ranks of the medians, valid on rank 0. */
static double hand_over(const struct speed *speed)
{
    struct rank *rk = speed->rk;
    double Bps[HANDOVERS];
    uint8_t *block = speed->slot + speed->block;
    for (int i = 0; i < HANDOVERS; i++) {
        uint64_t start = clock_ns();
        speed->kernels->copy(speed->slot, block, speed->block, false);
        uint64_t ns = clock_ns() - start;
        rank_barrier(rk);
        start = clock_ns();
        speed->kernels->copy(block, speed->from, speed->block, false);
        ns += clock_ns() - start;
        rank_barrier(rk);
        Bps[i] = 4e9 * (double)speed->block / (double)(ns > 0 ? ns : 1);
    }
    board_place(rk->world, rk->rank)->moved_Bps[0] = stats_median(Bps, HANDOVERS);
    board_show(rk);
    rank_barrier(rk);
    double sum = 0;
    for (uint32_t r = 0; rk->rank == 0 && r < rk->nranks; r++)
        sum += board_place(rk->world, r)->moved_Bps[0];
    rank_barrier(rk);
    return sum / rk->nranks;
}

void speed_measure(struct speed *speed, uint64_t segment)
{
    if (speed->slot) speed->slot_Bps[segment] = hand_over(speed);
    if (speed->bytes < 2) return;
    if (speed->samples == 0) settle(speed); /* the first time */
    run_together(speed, SPEED_LOOPS, speed->moved_Bps[segment]);
}

/* With more ranks than cores a rank has its share of a core. */
static double share_of_core(const struct speed *speed)
{
    uint32_t nranks = speed->rk->nranks;
    return nranks > speed->cores ? (double)speed->cores / nranks : 1;
}

double speed_copy_Bps(const struct speed *speed, uint64_t segments)
{
    double best = 0;
    for (uint64_t s = 0; speed->samples > 0 && s < segments; s++) {
        for (int loop = 0; loop < SPEED_LOOPS; loop++)
            best = fmax(best, speed->moved_Bps[s][loop]);
    }
    return share_of_core(speed) * best / 2;
}

double speed_slot_Bps(const struct speed *speed, uint64_t segments)
{
    double best = 0;
    for (uint64_t s = 0; speed->slot && s < segments; s++)
        best = fmax(best, speed->slot_Bps[s]);
    return share_of_core(speed) * best;
}
