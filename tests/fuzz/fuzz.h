/* SPDX-License-Identifier: Apache-2.0
 * The command line of a fuzzer: for how long, from which random numbers, or one iteration alone. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/opts.h"

struct request {
    uint64_t seed, only;
    double time_s;
};

/* The option table; `only_help` says what --only does beside running one iteration. */
#define FUZZ_OPTIONS(only_help)                                                                    \
    {                                                                                              \
        {.name = "seconds",                                                                        \
         .type = OPTS_TIME_S,                                                                      \
         .offset = offsetof(struct request, time_s),                                               \
         .value = "3",                                                                             \
         .plain_seconds = true,                                                                    \
         .arg = "TIME",                                                                            \
         .help = "how long"},                                                                      \
            {.name = "seed",                                                                       \
             .type = OPTS_UINT,                                                                    \
             .offset = offsetof(struct request, seed),                                             \
             .value = "1",                                                                         \
             .arg = "N",                                                                           \
             .help = "start of the random numbers"},                                               \
            {.name = "only",                                                                       \
             .type = OPTS_UINT,                                                                    \
             .offset = offsetof(struct request, only),                                             \
             .arg = "N",                                                                           \
             .help = only_help},                                                                   \
            {.name = NULL},                                                                        \
    }
