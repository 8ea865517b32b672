/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of a run share besides their buffers: the plan, and a board on which they write
 * for each other. It lies in the blob of the world.
 *
 *   | plan | board | a place per rank, each on its own lines | samples of rank 0 | of rank 1 | ..
 *
 * Only the two ping-pong counters are atomic: all else is written before a barrier and read behind
 * it; ranks on other hosts see what was shown (board_show). Messages to the parent are here too. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "bench/plan.h"
#include "exec/world.h"
#include "kernels/data.h"
#include "sched/trace.h"

enum { SPEED_LOOPS = 4 };

/* What a rank writes down per sample, in nanoseconds: begin and end of its part. */
enum plane { PLANE_BEGIN, PLANE_END, PLANE_OTHER_BEGIN, PLANE_OTHER_END, BOARD_PLANES };

struct board {
    _Alignas(128) _Atomic uint64_t ping; /* written by rank 0 */
    _Alignas(128) _Atomic uint64_t pong; /* written by rank 1 */
    _Alignas(128) uint64_t value;        /* rank 0's decision: see board_agree */
};

/* The first wrong element on the lowest rank that has one. */
struct wrong {
    uint32_t rank;
    bool in_input;
    struct data_bad bad;
};

/* A rank's place. */
struct board_place {
    _Alignas(128) double moved_Bps[SPEED_LOOPS]; /* what its memory gave last: see speed.h */
    uint64_t wrong;                              /* elements, in all rounds of a check so far */
    struct data_bad bad;                         /* the first of them */
    bool in_input;                               /* it is in the input, which must not change */
    double value;                                /* see board_most */
    _Atomic uint32_t entered;                    /* operations of checks that it has begun */
    double cpu_s, wall_s;                        /* of its samples beside compute */
};

size_t board_blob_bytes(const struct plan *plan);
void board_init(struct world *world, const struct plan *plan);

const struct plan *board_plan(struct world *world);
struct board *board_of(struct world *world);
struct board_place *board_place(struct world *world, uint32_t rank);
/* plan->samples_cap times. */
uint64_t *board_samples(struct world *world, uint32_t rank, enum plane plane);

/* Shows the own place, or samples [from, to) of a plane, to ranks on other hosts too: read behind
 * the next barrier. */
void board_show(struct rank *rk);
void board_show_samples(struct rank *rk, enum plane plane, uint64_t from, uint64_t to);

/* Rank 0's `value`, for all; every rank calls it. */
uint64_t board_agree(struct rank *rk, uint64_t value);

/* The largest `value` of all ranks, for all; every rank calls it. */
double board_most(struct rank *rk, double value);

/* ---- messages to the parent: of rank 0, but for the steps, which each rank sends ---- */

enum message_kind {
    MESSAGE_FACTS,
    MESSAGE_SAMPLES,
    MESSAGE_RESULT,
    MESSAGE_STEPS,
    MESSAGE_REPEATED
};

/* Measured once at the start; seconds; NaN where there is nothing to measure. */
struct facts {
    double clock_cost_s, clock_step_s; /* of a reading; least difference of two */
    double barrier_s, ping_s;          /* ping: one way */
    char mpi[160];                     /* the MPI library compared with, "" for none */
    char gpus[160];                    /* what the transport's library says of GPUs, "" for none */
};

/* What repeated runs of one placement of a row gave: see bench/repeat.h. */
struct repeated {
    uint64_t row;
    struct result result;   /* what ran; it has no times */
    uint64_t nruns;         /* with the same data */
    uint64_t runs_differ;   /* of them, those that differ from the first */
    bool promised;          /* all ranks must end with the same */
    uint32_t ranks_differ;  /* promised: ranks that differ from rank 0 */
    uint64_t rank_elements; /* .. and elements in which they do, over all these ranks */
    bool is_first;          /* the placement that the others of the same call are compared with */
    uint64_t elements;      /* compared with it; not promised: over all ranks */
    uint64_t differ;        /* .. those that are not the same bits */
    uint64_t max_ulp;       /* .. the largest distance, in units in the last place */
    uint64_t hash;          /* of all outputs of the first run */
};

enum { SAMPLES_PER_MESSAGE = 400, STEPS_PER_MESSAGE = 36 };

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
            uint32_t series, nseries; /* of this placement: see bench/timing.h */
            struct result result;
            struct wrong first; /* with wrong elements: the first of them */
        } result;
        struct {
            uint32_t rank, count;
            struct trace_span span; /* ns since the first rank began */
            struct trace_event events[STEPS_PER_MESSAGE];
        } steps;
        struct repeated repeated;
    } u;
};
_Static_assert(sizeof(struct message) <= 4096, "rank_send takes no more");
