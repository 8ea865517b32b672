/* SPDX-License-Identifier: Apache-2.0
 * Who sends how much to whom in an all-to-all whose blocks differ in length (alltoallv). A schedule
 * knows nothing of it: the same programs run on any traffic, only the layouts differ.
 *
 *     elements[from][to]       to 0   1   2        a rank's input is its row, block after block;
 *                    from 0     4   0   1          its output is its column
 *                         1     2   2   2 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "sched/coll.h"

struct traffic {
    uint32_t nranks;
    uint64_t elements[]; /* nranks x nranks: from * nranks + to */
};

/* Shares of a traffic matrix, nranks x nranks numbers >= 0 of which one is > 0: row by row from a
 * text file, set apart by blanks, commas or semicolons; # starts a comment. ERR_USAGE with file and
 * line for what is no number, and for a number of rows or columns that is not nranks. NULL on
 * error; freed with free(). */
double *traffic_read(const char *path, uint32_t nranks, struct err *err);

/* Fills shares[nranks x nranks] in which rank 0 receives `factor` times the mean, and the others
 * share the rest evenly, as when a router of a mixture of experts favours one (MoE). `factor` is 1
 * (even) to nranks (all to one). Every rank sends the same. */
void traffic_imbalance(uint32_t nranks, double factor, double *shares);

/* What the options --matrix and --imbalance say. */
struct traffic_wish {
    const char *matrix; /* file; NULL: not given */
    bool factor_given;
    double factor; /* 1 when not given */
};

/* The shares that follow for an operation, freed with free(); NULL for one with equal blocks.
 * ERR_USAGE and NULL: for options that this operation has not, both at once, or a factor out of
 * range (not judged when other faults were found before). */
double *traffic_shares(const struct coll *coll, uint32_t nranks, const struct traffic_wish *wish,
                       struct err *err);

/* What busbw counts of such a traffic: most that a rank sends to, or receives from, others, as a
 * share of the mean input. Even: (n-1)/n. */
double traffic_busbw(uint32_t nranks, const double *shares);

/* The shares as text, "0 1 2; 3 0 1; 0 0 5"; freed with free(). */
char *traffic_text(uint32_t nranks, const double *shares);

/* Deals `total` elements by the shares, rounded so that the sum is exact (largest remainders, the
 * lowest pair first among equals). Freed with free(). */
struct traffic *traffic_deal(uint32_t nranks, const double *shares, uint64_t total);

/* Byte offsets of the blocks of `rank`'s input or output, nranks + 1; freed with free(). */
size_t *traffic_offsets(const struct traffic *traffic, enum buf buf, uint32_t rank, size_t esize);

/* Elements of the longest block, and of the largest input or output of any rank. */
uint64_t traffic_longest(const struct traffic *traffic);
uint64_t traffic_largest(const struct traffic *traffic, enum buf buf);

/* Elements of `rank`'s input or output. */
uint64_t traffic_sum(const struct traffic *traffic, enum buf buf, uint32_t rank);
