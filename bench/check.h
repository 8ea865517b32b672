/* SPDX-License-Identifier: Apache-2.0
 * The data check of a run: data that depend on rank, position and round go in, poison waits in the
 * output, and every element that comes out is compared with what the collective promises. */
#pragma once

#include "bench/board.h"
#include "bench/site.h"

/* One rank's share of a call to be checked. */
struct check {
    struct rank *rk;
    uint32_t me; /* rank in the own group */
    const struct plan *plan;
    const struct plan_row *row;
    bool in_place;
    uint8_t *memory; /* of the buffers, see plan_places */
    struct plan_places places;
    const struct traffic *traffic; /* alltoallv; else NULL */
    const struct site *site;
};

/* Rounds that a row needs: as many as asked, at least two, and so many that each rank's share shows
 * in every chunk. 0 when the plan says no check. */
uint64_t check_rounds(const struct plan *plan, const struct plan_row *row, uint32_t nparts);

/* Before the operation: fills the own input, poisons all else. */
void check_fill(const struct check *check, uint64_t salt);

/* Behind it: adds the wrong elements to the own place on the board. */
void check_result(const struct check *check, uint64_t salt);

/* A planted fault for tests: COLLBENCH_WRONG=RANK:ELEMENT makes that element of the rank's output
 * wrong before each check_result; of a barrier, that the rank
 * passes for one that never came. 0, or -1 when it is not of this form. */
int check_plant(struct rank *rk, uint64_t *element, struct err *err);
