/* SPDX-License-Identifier: Apache-2.0
 * How many ranks a run gets, and the memory that it needs: nothing is started that does not fit. */
#pragma once

#include "bench/options.h"
#include "bench/ready.h"
#include "exec/world.h"

struct fitted {
    struct plan *plan; /* freed with free() */
    struct ready_set ready;
    struct world_spec spec;
    uint32_t wanted;  /* ranks by the number of cores; more than plan->nranks: lowered */
    bool asked;       /* the number of ranks is the user's */
    size_t available; /* bytes, when it was looked at */
};

/* Without --ranks: one per core, at least 2 and at most 8, lowered until everything fits in half
 * of the memory available. Refuses (ERR_USAGE) with need, have, and the largest size that fits.
 * Call fitted_release in either case. */
int fit(const struct request *request, const struct opts *opts, const struct coll *coll,
        struct fitted *fitted, struct err *err);

void fitted_release(struct fitted *fitted);
