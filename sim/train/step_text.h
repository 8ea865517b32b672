/* SPDX-License-Identifier: Apache-2.0
 * The answer of the bare command: plan, memory, speed, where the time goes, what limits it and what
 * would help, as text, CSV and JSON at once. Further tables follow the breakdown: stages, traffic,
 * advice. */
#pragma once

#include "base/out.h"
#include "train/advise.h"
#include "train/config.h"
#include "train/event.h"
#include "train/limit.h"
#include "train/memory.h"
#include "train/plan.h"
#include "train/step.h"

/* Everything that is known about one prediction. All is borrowed. */
struct answer {
    const struct plan *plan;
    const struct config *config;        /* another framework's words; format 0: none */
    const struct constants *c, *closed; /* of the engine, and of the closed form */
    unsigned convention;                /* FLOPS_... */
    double measured_s, measured_tps;    /* of the user's run; at most one is above 0 */
    struct step step, closed_step;
    struct memory memory;
    struct band band;
    /* of the event engine; `event` is NULL for the closed form */
    const struct event_result *event;
    const struct event_slow *slow;
    size_t nslow;
    double other_job;
    double healthy_s; /* the step without faults and other jobs; 0: there are none */
    const struct advices *advices;
};

/* The table of the breakdown, to which step_text_print prints. */
struct out *step_text_open(void);

/* All of it. The table of operators and the timeline can follow. */
void step_text_print(struct out *out, const struct answer *answer);
