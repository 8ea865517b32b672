/* SPDX-License-Identifier: Apache-2.0
 * The MEANING layer of the verifier; not for others. */
#pragma once

#include "sched/pairs.h"

/* Runs the programs in list order on symbolic values and compares the end with the promise.
 * `pairs` is the schedule's. 0, or -1 with one sentence that names rank, step and values. */
int meaning_check(const struct pairs *pairs, bool in_place, struct err *err);
