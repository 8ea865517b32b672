/* SPDX-License-Identifier: Apache-2.0
 * Who is at fault when a run ends badly, and the sentence that says so. Reads the statuses of the
 * ranks and changes nothing. Private to the launcher. */
#pragma once

#include "exec/world.h"

enum { NO_RANK = UINT32_MAX };

struct blame {
    uint32_t rank;          /* at fault; NO_RANK: a whole process, or nobody */
    uint32_t first, nranks; /* ranks of its process; 0 of them: no process */
    int32_t pid;            /* of the process */
    bool threads;           /* ranks are threads */
    const char *host;       /* where it is, of a run over several; or NULL */
    const char *wrapper;    /* the process is this program, which started the ranks; or NULL */
    bool name_waiting;      /* say who waited for it (for whom, if rank is NO_RANK) */
    const char *verb;       /* what happened to it, e.g. "was killed by signal 9 (Killed)" */
};

/* The whole story: who, what happened, during what work, and who waited for it at which step.
 * Freed by the caller. */
char *blame_sentence(struct world *world, const struct blame *blame);

/* What the kernel says a rank's thread does: the letter after the name in /proc/ID/stat; of ranks
 * on other hosts the last one that was told. '?': unknown. */
char blame_letter(struct world *world, uint32_t rank);

/* Nobody makes progress: finds the rank that keeps the others from going on, by following the
 * chains of waits to one that does not wait, or whose beat stands still (`beats[rank]` false); of
 * several it takes one outside of a wait, else one that is stopped.
 * NO_RANK: they wait for each other in a circle. *verb, freed by the caller, says what it does. */
uint32_t blame_stalled(struct world *world, const bool *beats, double seconds, char **verb);
