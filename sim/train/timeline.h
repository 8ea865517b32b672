/* SPDX-License-Identifier: Apache-2.0
 * A simulated step as a picture: a row for each distinct rank and lane, and on it what ran when in
 * the second of the two steps (train/event.h). As characters, as a file of Chrome's trace event
 * format (Perfetto, chrome://tracing), and as a drawing by gnuplot. */
#pragma once

#include "base/err.h"
#include "base/out.h"
#include "train/event.h"

/* What is in a row, in order and without overlap. What began in the step before, or goes on into
 * the next, is cut at the step's ends. */
struct timeline_span {
    uint32_t row, task;
    ps_t start_ps, end_ps; /* since the start of the step; end > start */
};

struct timeline_row {
    uint32_t rank, lane; /* of the graph; lane TASK_NONE: tasks that have none */
    char *rank_name;     /* "stage 0" */
    char *name;          /* "compute", "host", "tp", "dp 2" */
    size_t first, count; /* of the spans */
};

struct timeline {
    const struct event_result *result; /* borrowed */
    struct timeline_row *rows;         /* by rank, the compute lane first */
    size_t nrows;
    struct timeline_span *spans;
    size_t nspans;
};

/* Of a result that was made with `keep`. Rows without a span are left out. */
struct timeline *timeline_new(const struct event_result *result);
void timeline_free(struct timeline *timeline); /* NULL is fine */

/* A line of at most `width` (>= 60) characters per row, and a legend, as notes. A task shows its
 * letter, where they fit the digits of its micro-batch, and dashes to its end; a column shows what
 * runs at its middle. */
void timeline_draw(struct out *out, const struct timeline *timeline, uint32_t width);

/* Writes the trace: a process per rank, a thread per lane. `what` is a title. An existing file is
 * refused unless `overwrite`. 0, or -1 with a sentence. */
int timeline_trace(const struct timeline *timeline, const char *what, const char *path,
                   bool overwrite, struct err *err);

/* Draws the picture: base/plot.h. 0, or -1 with a sentence. */
int timeline_plot(const struct timeline *timeline, const char *what, const char *path,
                  bool overwrite, struct err *err);
