/* SPDX-License-Identifier: Apache-2.0
 * What memory gives: all ranks at once run the plainest loops over the working set of a row, in
 * blocks between the timed samples, so that cache, placement and load are the same for both.
 *
 *     working set   |   first half    |   second half   |
 *     copy          first half -> second half, one stream
 *     fold          out of place: two streams at once, each adds nothing to the traffic
 *                     quarters 0, 1 -> sums to quarters 2, 3
 *                   in place, for operations that write where they read: both halves are read and
 *                     both are rewritten
 *
 * With private buffers, besides, the speed of handing over: each rank copies a block to its slot,
 * all meet, each copies the block of the next rank's slot back; only the copies are timed.
 *
 * The loops run both with plain and with non-temporal stores. A block is a few samples of each
 * loop, of which the median counts; the best block of all is the speed behind %bound, since a bound
 * must not be lowered by what else the machine did meanwhile. With more ranks than cores a rank has
 * its share of a core: speeds are scaled by cores/ranks. */
#pragma once

#include "bench/board.h"
#include "kernels/kernels.h"

enum { SPEED_SEGMENTS = 5 };

struct speed {
    struct rank *rk;
    const struct kernels *kernels;
    uint8_t *memory;     /* the working set */
    size_t bytes;        /* of it */
    bool rewrites;       /* in place, and the operation writes where it reads */
    uint32_t cores;      /* that the ranks share */
    double clock_s;      /* what a reading of the clock costs */
    uint64_t samples;    /* of a block; 0: not known yet */
    uint64_t repeats;    /* of the loop in a sample */
    uint8_t *slot;       /* own memory that peers can map: a slot, then a block; NULL: not needed */
    const uint8_t *from; /* the next rank's slot */
    size_t block;        /* bytes of a block handed over */
    double slot_Bps[SPEED_SEGMENTS]; /* read + written per second and rank in handing over */
    bool warm; /* an untimed pass comes first: the loop before left other things cached */
    double moved_Bps[SPEED_SEGMENTS][SPEED_LOOPS]; /* read + written per second and rank (rank 0) */
};

/* One block of each loop; every rank calls it, with segment < SPEED_SEGMENTS. The contents of the
 * working set change. */
void speed_measure(struct speed *speed, uint64_t segment);

/* Bytes copied per second and rank (half of what is moved): the best of `segments` blocks and all
 * loops; 0 when the working set is too small to copy. Rank 0. */
double speed_copy_Bps(const struct speed *speed, uint64_t segments);

/* Bytes read and written per second and rank in handing over; 0 when there are no slots. Rank 0. */
double speed_slot_Bps(const struct speed *speed, uint64_t segments);
