/* SPDX-License-Identifier: Apache-2.0
 * Runs that a launcher of parallel programs starts as copies, one per rank: torchrun, mpiexec,
 * srun. The copies meet; that of rank 0 becomes the launcher of the run, the first on every other
 * host its agent there, and the rest wait until the run is over: the ranks themselves are started
 * by the launcher and the agents, as in any run. So there is one table, however the run was
 * started.
 *
 *   host a: copy 0 = launcher -> its ranks     copy 1 waits
 *   host b: copy 2 = agent    -> its ranks     copy 3 waits */
#pragma once

#include "exec/hosts.h"

struct foreign {
    const char *name;    /* of the launcher, for messages; NULL: started alone */
    uint32_t rank, size; /* of this copy; copies */
    uint32_t local;      /* number on its host */
    bool placed;         /* `local` is known */
    const char *address; /* where copy 0 listens, NULL: all copies are on one host */
    uint16_t port;
    char *owned; /* memory of `address` */
};

/* Looks at the environment. -1: it contradicts itself, or says too little, with the way out. */
int foreign_read(struct foreign *foreign, struct err *err);
void foreign_release(struct foreign *foreign);

/* What only the copies of one run know. */
void foreign_token(const struct foreign *foreign, uint8_t token[TOKEN_BYTES]);

/* Copy 0: waits until all copies have come and their command lines are this one's; the hosts, in
 * the order of their ranks, the first is this one. NULL with the sentence. */
struct hosts *foreign_gather(const struct foreign *foreign, char **argv, double timeout_s,
                             struct err *err);

/* Every other copy: comes to copy 0 and does what it asks for. The exit status of the run. */
int foreign_follow(const struct foreign *foreign, char **argv, double timeout_s);
