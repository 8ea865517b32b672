/* SPDX-License-Identifier: Apache-2.0
 * What stands beside a prediction: what would make the job fit, and how far such predictions were
 * off on published runs. */
#pragma once

#include "train/memory.h"
#include "train/plan.h"
#include "train/step.h"

/* The first remedy that the rules allow and that makes the job fit, with its time against the
 * present step; NULL if it fits already, a sentence too if none of them helps. Freed by the caller.
 */
char *limit_remedy(const struct plan *plan, const struct constants *c, const struct step *step);

/* Errors of published runs like this job: same kind of model and precision, same class of
 * framework (data/bands.csv, written by `commsim validate training --bands`). */
struct band {
    double n, median, p90; /* rows, percent */
    char *unlike; /* what sets the job apart from all of them, NULL: nothing; freed by the caller */
};
/* Returns 0, or -1 with a sentence if the table cannot be read; n is 0 where no run is alike. */
int limit_band(const struct job *job, struct band *band, struct err *err);

/* Whether a list of names, cut at spaces, holds one. */
bool limit_holds_name(const char *names, const char *name);

enum { NKINDS = 3 }; /* dense 16 bit, dense narrow, mixture of experts */
unsigned limit_kind(const struct job *job);
const char *limit_kind_name(unsigned kind);
