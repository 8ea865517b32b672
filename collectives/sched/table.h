/* SPDX-License-Identifier: Apache-2.0
 * The one table of results: nccl-tests' columns, then what we add. Benchmark and simulator both
 * fill it, so measured and predicted rows can be read, joined and compared column by column.
 *
 *   size count type redop root | time algbw busbw #wrong | time algbw busbw #wrong |
 *                                       out of place              in place
 *   algo transport buffers | p50 +-% p99 %bound | p50 +-% p99 %bound
 *                               out of place           in place
 *
 * +-% is half of the 95 % interval of the median, %bound is 100 x bound_us / p50_us. A run that
 * compares has `series` and, per placement, the ratio of what the row is compared with to the row
 * itself, with its interval, and a verdict. A run that knows its network has the ceiling of busbw,
 * the share of it that is reached (out of place) and the link that sets it. CSV and JSON have all
 * columns. */
#pragma once

#include "base/out.h"
#include "sched/coll.h"

/* One placement of a row. `result` NULL: it was not run, its cells are unknown. */
struct table_side {
    const struct result *result;
    const double *samples_us; /* every sample, in order; NULL: none kept */
    size_t nsamples;
};

/* What else the text shows; CSV and JSON have everything. */
enum table_show {
    TABLE_CONTEST = 1, /* series, ratio, verdict */
    TABLE_OVERLAP = 2,
    TABLE_WAIT = 4,
    TABLE_LAUNCH = 8,
    TABLE_TIME = 16,
    TABLE_SURE = 32,     /* how sure the median is */
    TABLE_GPU = 64,      /* what the host sees beside the time of the device */
    TABLE_CEILING = 128, /* how near to what the network can do, and what limits it */
};

/* A table of these columns without a place to go yet: out_add, out_meta, out_note and out_close
 * are the caller's. `show`: enum table_show, or-ed. */
struct out *table_new(unsigned show);

/* Adds a row; at least one side has a result, and both speak of the same call. Unchecked (wrong
 * < 0) is N/A, and so is what is not known. */
void table_row(struct out *out, const struct table_side *out_of_place,
               const struct table_side *in_place);

/* "measured", "simulated", "reference". */
const char *source_name(enum source source);
