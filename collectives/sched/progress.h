/* SPDX-License-Identifier: Apache-2.0
 * Plays a linked schedule without data or time: can every group run? Lanes are in order and wires
 * first in first out, so the dependencies form a marked graph; playing it greedily ends if and
 * only if it has no cycle. A relative program is played once for all ranks (its quotient graph has
 * a cycle exactly when the full one has). Shared by linker and verifier. */
#pragma once

#include "sched/link.h"

/* Called for each group when it has run: an order that respects every dependency. */
typedef void progress_fn(void *ctx, uint32_t instance, uint32_t lane, uint32_t first);

struct progress_opts {
    uint32_t depth; /* messages of room per wire */
    bool unroll;    /* play all ranks of a relative program */
    progress_fn *group;
    void *ctx;
};

/* Plays one pass (waits of distance 1 hold). 0, or -1 with a sentence naming who waits for whom. */
int progress_run(const struct linked *linked, const struct progress_opts *opts, struct err *err);

/* The least depth with which progress_run succeeds; 0 when none does. */
uint32_t progress_least_depth(const struct linked *linked);
