/* SPDX-License-Identifier: Apache-2.0
 * Schedules for people to read. */
#pragma once

#include <stdio.h>

#include "sched/link.h"

enum { PRINT_ALL = UINT32_MAX };

/* One line per step of end `rank` (or of PRINT_ALL: ranks, then agents): end, step, lane, channel,
 * kind, peer, and the chunks read and written, all absolute. `in`, `out` and `t0` are input,
 * output, scratch plane 0.
 */
void sched_print_table(FILE *to, const struct sched *sched, uint32_t rank);

/* Who receives what from whom, round by round, a column per rank, and per agent behind them:
 *
 *     round   rank 0    rank 1    rank 2
 *         1   2+<2      0+<0      1+<1        chunk 2 of the output (+)= what came from rank 2
 *         2   1+<2      2+<0      0+<1        = instead of + : replaced
 *
 * A receive belongs to the round after the later of its predecessor in the lane and the receive
 * that the sender made before it sent. `linked` gives lanes and waits. */
void sched_print_draw(FILE *to, const struct linked *linked);

/* One line per record of end `rank`: its group, flags, wire mode and waits. */
void linked_print(FILE *to, const struct linked *linked, uint32_t rank);
