/* SPDX-License-Identifier: Apache-2.0
 * The sizes of a run, as nccl-tests' -b -e -i -f say them: the same for benchmark and simulator. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct sweep {
    uint64_t min, max; /* bytes, both included */
    uint64_t step;     /* bytes added each time, if factor is 0 */
    uint64_t factor;   /* multiplied each time; 0: step counts */
};

/* ERR_USAGE with every rule broken: min <= max, and a sweep of more than one size has a factor of
 * at least 2, or none and a step of at least 1. Returns 0 or -1. */
int sweep_check(const struct sweep *sweep, struct err *err);

/* Goes from *size to the next one; false behind the last. Starts at sweep->min. After a size of 0 a
 * factor gives one element of `esize` bytes. Cannot overflow. */
bool sweep_next(const struct sweep *sweep, uint64_t esize, uint64_t *size);
