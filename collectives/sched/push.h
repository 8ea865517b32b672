/* SPDX-License-Identifier: Apache-2.0
 * Which wires may be pushed; used by the linker only. */
#pragma once

#include "sched/pairs.h"

/* For a linked PULL schedule: per program and wire, true where a sender may write straight into
 * its receiver's place and it pays (the value is at hand from a reduce or receive in the same
 * group). NULL when there is none. Each array and the list are freed by the caller. */
bool **push_prove(const struct linked *linked, const struct pairs *pairs);
