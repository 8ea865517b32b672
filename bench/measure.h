/* SPDX-License-Identifier: Apache-2.0
 * The rank's side of a run: one measuring loop for every collective, placement and wire. */
#pragma once

#include "exec/world.h"

/* Walks through the plan on the board as one rank: checks, measures, and, as rank 0, reports each
 * result to the parent. For launch_child. */
int measure_rank(struct rank *rk, struct err *err);
