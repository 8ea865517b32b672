/* SPDX-License-Identifier: Apache-2.0
 * Times of many steps by one engine, on all processors of this machine: what scores and fits ask
 * for. Jobs on equal clusters share one store of collectives (net/fluid.h), which stays warm from
 * call to call; the answer does not depend on the number of threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "net/topo.h"
#include "train/constants.h"
#include "train/job.h"
#include "train/step.h"

/* A job on a cluster; both borrowed. */
struct runner_point {
    const struct job *job; /* NULL: there is none, its step is all 0 */
    const struct topo *topo;
};

/* One step by an engine. 0, or -1 with a sentence: the engine refuses it, or the constants of the
 * network cannot be read. */
int runner_step(enum engine engine, const struct runner_point *point, const struct constants *c,
                struct step *step, struct err *err);

struct runner;

/* Takes n points, for an engine; `points` itself is copied. NULL with a sentence: the constants of
 * the network cannot be read. */
struct runner *runner_new(enum engine engine, const struct runner_point *points, size_t n,
                          struct err *err);
void runner_free(struct runner *runner); /* NULL is fine */
size_t runner_points(const struct runner *runner);
enum engine runner_engine(const struct runner *runner);

/* How a runner is asked. All zero: every step, whole. */
struct runner_ask {
    const bool *keep; /* by point: leave its step as it is; may be NULL */
    bool brief;       /* steps of at most twice as many micro-batches as stages: what a change of
                         constants does to them, in per cent, is what it does to the whole step, or
                         near it, in a part of the time. Formulas take no longer: whole */
};

/* Writes each point's step into steps[n]. 0, or -1 with a sentence for each step that the engine
 * refuses, by point. */
int runner_steps(struct runner *runner, const struct constants *c, const struct runner_ask *ask,
                 struct step *steps, struct err *err);
