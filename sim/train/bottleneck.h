/* SPDX-License-Identifier: Apache-2.0
 * What limits a predicted step, in one sentence: the largest part of the time and, if that is
 * useful arithmetic, the largest other part; for communication the link that carries it. */
#pragma once

#include <stdbool.h>

#include "train/plan.h"
#include "train/step.h"

struct bottleneck {
    enum step_part part; /* what limits */
    double share;        /* of the step */
    bool compute;        /* the part is useful arithmetic */
    bool nic;            /* the part is communication that leaves the scale-up domain */
};

/* The largest part. */
struct bottleneck bottleneck_find(const struct job *job, const struct step *step);

/* The largest part that is not useful arithmetic. */
struct bottleneck bottleneck_loss(const struct job *job, const struct step *step);

/* "compute (H100-80GB): matrix products is 61 % of the step, then NIC (InfiniBand, 400 Gb/s per
 * GPU): tensor-parallel communication is 38 % of the step". Freed by the caller. */
char *bottleneck_text(const struct plan *plan, const struct step *step);
