/* SPDX-License-Identifier: Apache-2.0
 * What the operation is compared with, sample by sample (enum contest): a library's call at its
 * best (opponent.h), all groups at once, the operation beside compute, or with one rank late. It
 * says what the second series runs, and names both. */
#pragma once

#include "bench/opponent.h"
#include "bench/timing.h"

/* What one rank has for the whole run. */
struct rival {
    struct bench *bench;
    const struct opponent *opponent; /* a library; else NULL */
    void *library;                   /* .. its state */
    unsigned way;          /* .. of the placement at hand: the one to run, in the end the best */
    double units_per_s;    /* CONTEST_OVERLAP: speed of the compute loop */
    struct timing *timing; /* the one at hand */
    uint64_t units;        /* .. compute beside one operation */
};

/* Every rank calls it, once. 0 or -1; rival_close in either case. */
int rival_open(struct rival *rival, struct bench *bench);
void rival_close(struct rival *rival);

/* What the library calls itself, one line; NULL: there is none, or the header has said it. */
const char *rival_says(const struct rival *rival);

/* Sets the runners of a placement; timing->nseries is 1 where there is nothing to compare with.
 * Every rank calls it. */
void rival_meet(struct rival *rival, struct timing *timing);

/* Names both series in their results, before anything is measured. */
void rival_name(const struct rival *rival, struct result results[NSERIES]);

/* Wrong elements that the second series leaves, over all rounds of the data check; 0 where it is
 * the operation itself. */
uint64_t rival_check(struct rival *rival, uint64_t rounds, struct wrong *first);

/* Warms the second series up and settles what is left open (libraries: which way is the best). */
void rival_warm(struct rival *rival);

/* Rank 0: fills in the ratio and what else the contest is about. */
void rival_conclude(struct rival *rival, struct result results[NSERIES]);
