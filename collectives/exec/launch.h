/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks of a run on this machine and watches them: processes (the program itself
 * re-executed by libuv, with the world's descriptor inherited) or threads of one child process.
 * A rank that dies, stops or stalls ends the run within the timeout, and is named. */
#pragma once

#include "exec/world.h"

struct launch_spec {
    const char *prog; /* for messages */
    char **argv;      /* the command line, executed again in every child */
    struct world *world;
    bool threads;     /* one child with all ranks as threads */
    double timeout_s; /* no rank makes progress for this long: the run is stalled */
    /* Called in the parent for each message a rank sent, in order per rank. */
    void (*on_message)(void *ctx, uint32_t rank, const void *msg, size_t bytes);
    void *ctx;
    int *interrupted; /* set to the signal that ended the run from outside, if any; may be NULL */
};

/* Runs all ranks to their end. 0 when every rank returned 0; else -1 with one sentence that names
 * the rank at fault, what it worked on, and who waited for it at which step. A rank's own errors
 * (rank_fail) come first. Afterwards no child is left. */
int launch_run(const struct launch_spec *spec, struct err *err);

/* True in a process that launch_run started. */
bool launch_is_child(void);

/* Child side: attaches to the world and runs `rank_main` as one rank, or as all of them in threads;
 * ranks are bound to cores round robin when there are cores for all. `rank_main` returns 0 or -1
 * with a sentence, which the parent prints. Returns the exit status. */
int launch_child(int (*rank_main)(struct rank *rk, struct err *err));

/* Sends one message (at most 4096 bytes) to the parent's on_message. */
int rank_send(struct rank *rk, const void *msg, size_t bytes, struct err *err);

/* Cores this process may run on. */
uint32_t launch_cores(void);

/* Test hooks, from the environment: COLLBENCH_FAULT="kill:RANK:TICK", "stop:RANK:TICK",
 * "stall:RANK:TICK", "exit:RANK:TICK": the rank does that to itself when its tick passes TICK.
 * Called by the ranks once per operation. */
void launch_fault(struct rank *rk);
