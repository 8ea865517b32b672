/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of a run share besides their buffers: the plan, and a board on which they write
 * for each other. It lies in the blob of the world.
 *
 *   | plan | board | a place per rank, each on its own lines | samples of rank 0 | of rank 1 | ..
 *
 * Only the two ping-pong counters are atomic: all else is written before a barrier and read behind
 * it. Messages to the parent are here too. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "bench/plan.h"
#include "exec/world.h"
#include "kernels/data.h"

enum { SPEED_LOOPS = 4 };

struct board {
    _Alignas(128) _Atomic uint64_t ping; /* written by rank 0 */
    _Alignas(128) _Atomic uint64_t pong; /* written by rank 1 */
    _Alignas(128) uint64_t value;        /* rank 0's decision: see board_agree */
};

/* A rank's place. */
struct board_place {
    _Alignas(128) double moved_Bps[SPEED_LOOPS]; /* what its memory gave last: see speed.h */
    uint64_t wrong;                              /* elements, in all rounds of a check so far */
    struct data_bad bad;                         /* the first of them */
    bool in_input;                               /* it is in the input, which must not change */
};

size_t board_blob_bytes(const struct plan *plan);
void board_init(struct world *world, const struct plan *plan);

const struct plan *board_plan(struct world *world);
struct board *board_of(struct world *world);
struct board_place *board_place(struct world *world, uint32_t rank);
/* plan->samples_cap times in nanoseconds. */
uint64_t *board_samples(struct world *world, uint32_t rank);

/* Rank 0's `value`, for all; every rank calls it. */
uint64_t board_agree(struct rank *rk, uint64_t value);

/* ---- messages of rank 0 to the parent ---- */

enum message_kind { MESSAGE_FACTS, MESSAGE_SAMPLES, MESSAGE_RESULT };

/* Measured once at the start; seconds; NaN where there is nothing to measure. */
struct facts {
    double clock_cost_s, clock_step_s; /* of a reading; least difference of two */
    double barrier_s, ping_s;          /* ping: one way */
};

enum { SAMPLES_PER_MESSAGE = 400 };

struct message {
    enum message_kind kind;
    union {
        struct facts facts;
        struct {
            uint64_t count;
            double us[SAMPLES_PER_MESSAGE];
        } samples; /* all samples of a result come in such pieces, before it */
        struct {
            uint64_t row;
            struct result result;
            uint32_t wrong_rank; /* with the first wrong element */
            bool in_input;
            struct data_bad bad;
        } result;
    } u;
};
