/* SPDX-License-Identifier: Apache-2.0
 * Copies of schedules, and whether two are the same: for files and their tests. */
#pragma once

#include "sched/sched.h"

/* A copy with one absolute program per rank and agent: a relative program is unrolled. Freed by the
 * caller with sched_free. Cannot fail. */
struct sched *sched_unroll(const struct sched *sched);

/* Whether two schedules are the same: collective, ranks, agents, root, parts per block, and the
 * same programs step by step, relative ones unrolled. Names and channel counts asked of a builder
 * do not matter, nor do members of a step that its kind does not use. The first difference goes to
 * `why` as a sentence (ERR_FAILED), unless that is NULL. */
bool sched_equal(const struct sched *a, const struct sched *b, struct err *why);

/* A hash of what the programs say, whatever file or builder they came from: equal programs, equal
 * hashes. */
uint64_t sched_hash(const struct sched *sched);
