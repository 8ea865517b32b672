/* SPDX-License-Identifier: Apache-2.0
 * Records: the JSON files that collbench (or commsim) wrote, read back as a list of series. A
 * series is one thing that was measured, in one placement, with its samples by launch. What
 * identifies it must be there; members that this reader does not know are skipped. A file without
 * a schema number is of schema 1; the newest that can be read is RECORD_SCHEMA (bench/header.h). */
#pragma once

#include <stdbool.h>

#include "base/doc.h"
#include "bench/interval.h"

/* One launch of the ranks. */
struct record_launch {
    uint64_t number; /* from 1 */
    double ping_us;  /* a cache line's way from rank 0 to 1; NaN: not known */
    double *us;      /* samples in the order in which they were taken */
    size_t count, cap;
};

/* Texts belong to the record; those that a row lacks are "-". `variant` is what the run's contest
 * calls it ("together", "overlapped", "mpi/polled"), "-" for "own"; behind a '/' it says how, not
 * what. A library takes the buffers that suit it best, so for the source "reference" they are "-".
 */
struct record_series {
    const char *coll, *dtype, *redop, *algo, *buffers, *source, *variant;
    const char *cut; /* what else tells this call from others; "-": nothing */
    uint64_t nranks, bytes;
    int64_t root;
    bool in_place;
    const char *transport;                /* of the first row: how, not what */
    double p50_us, ci_low_us, ci_high_us; /* as the file has them for all launches; else NaN */
    double bound_us;                      /* least time of its rows; NaN: not known */
    double busbw_factor;                  /* busbw / algbw; NaN: not known */
    struct record_launch *launches;       /* without those that kept no samples */
    size_t nlaunches, cap;
    bool pooled; /* p50_us and ci_*_us come from a row of all launches together */
};

struct record {
    struct doc doc; /* doc.path names the file */
    json_t *meta;   /* of the doc; NULL if there is none */
    bool failed;    /* its summary says so: the run failed, or data were wrong */
    bool emulated;  /* its meta says so: of emulated GPUs, whose times mean nothing */
    struct record_series *series;
    size_t count, cap;
};

/* Reads a file. Rows of one launch with the same key are one series in a row (a run that measures
 * over and over); a row of all launches together (launch 0) only gives p50_us and ci_*_us when the
 * launches have rows of their own. Returns 0, or -1 with sentences that name file and line
 * (ERR_USAGE) and an empty record. record_release frees and accepts an empty (zeroed) record. */
int record_read(struct record *record, const char *path, struct err *err);

/* 0, or -1 with a sentence (ERR_USAGE) when the times of the record mean nothing: of emulated GPUs.
 * For who draws or tabulates them. */
int record_real(const struct record *record, struct err *err);
void record_release(struct record *record);

/* Whether both speak of the same thing. `any_algo`: whatever the algorithm. */
bool record_same(const struct record_series *a, const struct record_series *b, bool any_algo);

/* The median of one launch's samples. */
double record_median(const struct record_launch *launch);

/* The median and how sure it is: from the medians of the launches if `by_launches` and there are
 * two or more, else from all samples in a row, else (none were kept) p50_us without an interval. */
struct estimate record_estimate(const struct record_series *series, bool by_launches);

/* Length of the variant without "/how"; 0 for "-". */
size_t record_variant_length(const struct record_series *series);

/* "out-of-place" or "in-place". */
const char *record_placement(const struct record_series *series);

/* "allreduce, 2 ranks, 8 B, float sum, ring, shared, out-of-place"; a root, a variant and a
 * source other than "measured" are named too. Freed by the caller. */
char *record_name(const struct record_series *series);
