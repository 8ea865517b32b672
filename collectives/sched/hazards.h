/* SPDX-License-Identifier: Apache-2.0
 * Which steps of one program touch the same chunk in a way whose order matters. Shared by linker
 * (which makes waits of them) and verifier (which checks that each pair is ordered). */
#pragma once

#include "sched/sched.h"

struct hazard {
    uint32_t before, after; /* steps, in list order; `before` may belong to the pass before */
    bool before_writes, after_writes; /* at least one of them */
    bool across;                      /* `before` is a step of the previous pass */
};

typedef void hazard_fn(void *ctx, const struct hazard *hazard);

/* Calls `fn` for every pair (last writer, reader), (reader since the last write, writer) and (last
 * writer, writer), `after` ascending; then for pairs across two passes, which only scratch has,
 * because passes work on disjoint slices of the user's buffers. All other conflicting pairs follow
 * from these. */
void hazards_scan(const struct sched *sched, const struct prog *prog, bool in_place, hazard_fn *fn,
                  void *ctx);
