/* SPDX-License-Identifier: Apache-2.0
 * What the machine itself costs, measured before the first row and printed with the results. */
#pragma once

#include "bench/board.h"

/* Every rank calls it; rank 0's facts are those to report. About 10 ms where each rank has a core
 * of its own. */
struct facts calibrate(struct rank *rk);

/* The time that a cache line takes from rank 0 to rank 1 or back, in seconds, now; NaN with one
 * rank, and on the ranks beyond these two. Every rank calls it. */
double calibrate_ping_s(struct rank *rk);
