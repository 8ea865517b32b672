/* SPDX-License-Identifier: Apache-2.0
 * The verifier: proves that a schedule does what its collective promises before anything runs. */
#pragma once

#include "sched/link.h"

enum verify_layer {
    VERIFY_SHAPE = 1,    /* indexes, peers, lanes and messages are in range and pair up */
    VERIFY_MEANING = 2,  /* run on symbolic values, the end equals the promise */
    VERIFY_PROGRESS = 4, /* no cycle among lanes, waits and wires: it cannot hang */
    VERIFY_FREEDOM = 8,  /* every conflicting pair of accesses in a rank is ordered */
    VERIFY_ALL = 15,
};

/* Checks the programs as drawn for one placement: SHAPE and MEANING. 0, or -1 with a sentence
 * that names rank and step. */
int verify_sched(const struct sched *sched, bool in_place, struct err *err);

/* Checks a linked schedule: PROGRESS (with `depth` messages of room per wire) and FREEDOM. */
int verify_linked(const struct linked *linked, uint32_t depth, struct err *err);

/* All layers, both placements, modes staged and pull (where it links), fused and not. */
int verify_all(const struct sched *sched, struct err *err);

/* An independent plain interpreter on integer weights, for testing the verifier itself: runs the
 * programs as drawn step by step with unbounded wires and says whether the result is right
 * (1 yes, 0 no). */
int verify_oracle(const struct sched *sched, bool in_place);
