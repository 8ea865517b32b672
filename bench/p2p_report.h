/* SPDX-License-Identifier: Apache-2.0
 * The pairwise matrix on paper: rows, matrices for few ranks, and the pairs that are slow. */
#pragma once

#include "base/out.h"
#include "bench/p2p.h"

enum { P2P_COLUMNS = 21, P2P_MATRIX_RANKS = 16 };
extern const struct out_column p2p_columns[P2P_COLUMNS];

/* The two rows of a pair: first to second and back. `bytes` is the size. */
void p2p_rows(struct out *out, const struct p2p_result *result, uint64_t bytes);

/* One value of a pair, or of one way of it. Times: more is worse. */
struct p2p_value {
    struct p2p_pair pair; /* from first to second */
    double us;            /* median */
    double quarter_us;    /* a quarter of the samples are at most this */
    double beside;        /* the least, over the passes, of median / median of p2p_beside */
};

/* The median of the values measured shortly before and after number `at` of `count`, itself
 * included; `us` is in the order in which they were measured, count >= 1. */
double p2p_beside(const double *us, size_t count, size_t at);

/* Sorts `values` by their time, the slowest first, and counts those that are slow: where both the
 * median and the quarter of the samples are above
 *
 *     limit = max(m + 5 MAD, 1.2 m)      m: median of all, MAD: median of |time - m|
 *
 * and, in each pass, 1.2 times what was measured beside it. So neither the spread among pairs nor a
 * pair's own noise makes it slow, nor a while in which the machine was slow. 0 for fewer than 3
 * values. *median_us and *limit_us are set for at least 1. */
size_t p2p_slow(struct p2p_value *values, size_t count, double *median_us, double *limit_us);

/* Matrices (up to P2P_MATRIX_RANKS ranks) and slow pairs, as notes and facts. `results` has one
 * for each pair and size, by index: the merged ones, then those of each pass. `host_ranks`: ranks
 * of each host, NULL: there is one; pairs inside of hosts are then compared among themselves, and
 * those between hosts. */
void p2p_summary(struct out *out, const struct p2p_plan *plan, const struct p2p_result *results,
                 const uint32_t *host_ranks);
