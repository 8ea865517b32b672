/* SPDX-License-Identifier: Apache-2.0
 * Schedules ready to run: built, linked and verified when they are first asked for, and kept for
 * all sizes of a run. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "algo/algo.h"
#include "base/err.h"
#include "sched/link.h"

struct out;

struct ready {
    struct algo_choice choice;
    struct sched *sched;
    struct linked *linked[2]; /* out of place, in place; NULL: cannot be run so */
};

/* What all schedules of a run have in common, and those there are. All is borrowed. */
struct ready_list {
    const struct coll *coll;
    struct algo_args args; /* channels and parts come with each choice */
    enum wire_mode mode;   /* how messages travel */
    struct sched *drawn;   /* run this one in place of any row; or NULL */
    uint32_t verify_ranks; /* up to here schedules are verified */
    bool in_place;         /* link that placement too */
    struct out *notes;     /* says which placement is not run, and why */
    struct ready **items;  /* owned from here on */
    size_t count, cap;
};

/* The schedule of a choice: the same pointer for the same choice. NULL with a sentence. */
const struct ready *ready_get(struct ready_list *list, const struct algo_choice *choice,
                              struct err *err);
void ready_release(struct ready_list *list);
