/* SPDX-License-Identifier: Apache-2.0
 * `--repeat-check`: are results the same bits on all ranks, in every run, and whatever the
 * algorithm? In place of timing, each call is run several times on data whose sums are not exact
 * (random mantissas and exponents, the same for all algorithms, placements and launches).
 *
 *   promised by this program    all ranks of an allreduce, allgather or broadcast end with the same
 *                               bits; the same call gives the same bits again
 *   for information             how far the results of other algorithms are from those of the first
 */
#pragma once

#include "bench/board.h"

struct out;

enum { REPEAT_RUNS = 10 }; /* runs of each placement, unless the plan says how many samples */
enum { REPEAT_WINDOW = 64 << 10 };

/* Bytes that a rank needs beside what measuring needs: for the first output of a call, if there is
 * one to compare with it, and a window into rank 0's outputs. */
size_t repeat_bytes(const struct plan *plan);

/* The rank's side, for launch_child. The plan has one group. */
int repeat_rank(struct rank *rk, struct err *err);

/* The parent's side: what was seen in all rows, and in all launches. */
struct repeats {
    uint64_t rows;
    bool reduces;                               /* the operation adds up */
    uint64_t ranks_bad, runs_bad, launches_bad; /* rows whose ranks, runs, launches differ */
    uint64_t others,
        others_same;          /* rows compared with the first of their call; those equal to it */
    struct repeat_seen *seen; /* by row and placement: what an earlier launch gave */
    uint64_t nseen;
};

/* The report's columns, as a table without a place to go, and what they mean, as a note. */
struct out *repeat_table(void);
void repeat_header(struct out *table, const struct plan *plan);

/* Takes what MESSAGE_REPEATED holds; adds a sentence (ERR_FAILED) for a promise that is broken. */
void repeat_take(struct repeats *repeats, const struct repeated *repeated, struct err *err);

/* Prints it as a row. */
void repeat_row(struct out *table, const struct repeated *repeated);

/* The verdict, as notes and facts. */
void repeat_note(const struct repeats *repeats, struct out *table, bool failed);
void repeats_release(struct repeats *repeats);
