/* SPDX-License-Identifier: Apache-2.0
 * What would make a step quicker: changes of the strategy, each tried as a plan of its own on the
 * same cluster with the same global batch. The closed form ranks all that are legal and fit in
 * memory; the event engine times the best of them, and only these times are told. */
#pragma once

#include "net/net_const.h"
#include "train/event.h"
#include "train/memory.h"
#include "train/plan.h"

/* A change that was simulated. */
struct advice {
    char *change; /* "micro-batch 2, recompute full" */
    char *word;   /* the whole strategy: "tp2pp4dp2" */
    size_t kind;  /* of change: what it turns */
    double step_s;
    double gain; /* share of the present step's time that it saves; below 0: it takes longer */
    struct memory memory;
};

enum { NADVICE_BEST = 2, ADVICE_LORA = 16 };

struct advise_args {
    const struct plan *plan; /* the present one */
    const struct tables *tables;
    const struct strategy_args *strategy; /* what it was made of */
    struct event_args event;              /* how it was timed */
    double step_s;                        /* its time */
    const struct net_consts *net;
    const struct lib_args *lib; /* for another network's jobs */
};

struct advices {
    struct advice best[NADVICE_BEST]; /* the quickest first; of different kinds */
    size_t count;
    size_t legal, timed; /* candidates that were legal and fit, and those of them simulated */
    size_t tried;        /* whole strategies of the last search, where no change made it fit */
    double lora_B;       /* reserved with adapters of rank ADVICE_LORA alone, where the present job
                            does not fit and that would; else 0 */
};

/* Tries the changes. The best two that are quicker by .1 % at least; where the present job does not
 * fit in memory, the quickest two that do. A candidate that the engine cannot run is passed over.
 * The chunks of args->event are left with another job. */
void advise(const struct advise_args *args, struct advices *advices);
void advices_release(struct advices *advices);
