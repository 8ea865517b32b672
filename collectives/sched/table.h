/* SPDX-License-Identifier: Apache-2.0
 * The one table of results: nccl-tests' columns, then what we add. Benchmark and simulator both
 * fill it, so measured and predicted rows can be read, joined and compared column by column.
 *
 *   size count type redop root | time algbw busbw #wrong | time algbw busbw #wrong |
 *                                       out of place              in place
 *   algo transport buffers | p50 p99 %bound | p50 p99 %bound
 *                             out of place      in place
 *
 * CSV and JSON have more: source, ranks, channels, parts, passes, steps, batch, and per placement
 * transport (in text one word for both: shm/pull+staged if out of place is pulled and in place is
 * staged), min, p95, max, number of samples and the samples. %bound is 100 x bound_us / p50_us. */
#pragma once

#include "base/out.h"
#include "sched/coll.h"

/* One placement of a row. `result` NULL: it was not run, its cells are unknown. */
struct table_side {
    const struct result *result;
    const double *samples_us; /* every sample, in order; NULL: none kept */
    size_t nsamples;
};

/* A table of these columns without a place to go yet: out_add, out_meta, out_note and out_close
 * are the caller's. */
struct out *table_new(void);

/* Adds a row; at least one side has a result, and both speak of the same call. Unchecked (wrong
 * < 0) is N/A, and so is a bound that is not known (bound_us 0). */
void table_row(struct out *out, const struct table_side *out_of_place,
               const struct table_side *in_place);

/* "measured", "simulated", "reference". */
const char *source_name(enum source source);
