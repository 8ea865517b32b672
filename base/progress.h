/* SPDX-License-Identifier: Apache-2.0
 * A line on stderr that says how far a long run is. Silent unless stderr is a terminal, and during
 * the first second, so that logs and short runs stay clean. Not for use in timed regions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* borrowed, e.g. "allreduce" */
    uint64_t total;   /* steps of the run, 0 if not known */
    double start_s, shown_s;
    bool terminal;
    bool visible; /* a line stands on the screen */
};

/* Starts the clock. `what` is borrowed. */
void progress_init(struct progress *progress, const char *what, uint64_t total);

/* `done` of the steps are behind us; `detail` (may be NULL) says what runs now. Shows at most ten
 * lines a second. */
void progress_step(struct progress *progress, uint64_t done, const char *detail);

/* Wipes the line, before a result is printed and at the end. */
void progress_clear(struct progress *progress);
