/* SPDX-License-Identifier: Apache-2.0
 * Schedules made ready to run: built and linked once for all rows that use the same, verified by
 * the parent before anything runs, and counted in bytes of memory. */
#pragma once

#include "bench/plan.h"
#include "sched/link.h"

enum { READY_VERIFY_RANKS = 64 }; /* up to here every schedule is verified before it runs */

/* One schedule, linked for each placement that the plan runs. */
struct ready {
    struct algo_choice choice;
    int wire; /* enum wire_mode asked for */
    struct sched *sched;
    struct linked *linked[NPLACES]; /* by enum placement; NULL: not run */
};

struct ready_set {
    struct ready *items;
    size_t count, cap;
};

void ready_release(struct ready_set *set);

/* The schedule of a row, built when it is first asked for; valid until the next call. With --wire
 * auto the mode is LL for small chunks, else pull for larger calls on shared buffers, where it can
 * be proven free of deadlock, else staged. NULL with the sentence on error. */
const struct ready *ready_get(struct ready_set *set, const struct plan *plan,
                              const struct plan_row *row, struct err *err);

/* All that the verifier knows about schedules as the plan runs them. 0 or -1. */
int ready_verify(const struct ready *ready, struct err *err);

/* Linked steps that a rank executes in one operation, at most. */
uint64_t ready_steps(const struct ready *ready, const struct plan *plan,
                     const struct plan_row *row);

/* Bytes of memory that one rank needs for a row: buffers, scratch, slots, schedule; of those,
 * `shared` lie in its extent. SIZE_MAX when it cannot be counted. */
struct ready_bytes {
    size_t all, shared;
    size_t handle; /* scratch and slots */
};
struct ready_bytes ready_bytes(const struct ready *ready, const struct plan *plan,
                               const struct plan_row *row);
