/* SPDX-License-Identifier: Apache-2.0
 * The one clock of all measurements: the same for every process on a machine. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Nanoseconds since some start. */
static inline uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
