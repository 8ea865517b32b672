/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks of a run on this machine and watches them: processes (the program itself
 * re-executed by libuv, with the world's descriptor inherited), threads of one child process, or
 * processes that another program starts (mpiexec), so that they can call its library.
 * A rank that dies, stops or stalls ends the run within the timeout, and is named. */
#pragma once

#include "exec/place.h"
#include "exec/world.h"

struct hosts;
struct courier;

struct launch_spec {
    const char *prog; /* for messages */
    char **argv;      /* the command line, executed again in every child */
    struct world *world;
    const struct place *place; /* processors of the ranks; NULL: place_plan(BIND_CORE) */
    bool threads;              /* one child with all ranks as threads */
    double timeout_s;          /* no rank makes progress for this long: the run is stalled */
    /* Called in the parent for each message a rank sent, in order per rank. */
    void (*on_message)(void *ctx, uint32_t rank, const void *msg, size_t bytes);
    void *ctx;
    int *interrupted; /* set to the signal that ended the run from outside, if any; may be NULL */
    char *const *env; /* more "NAME=VALUE" for every rank, before the environment; NULL: none */
    /* The words of a command that starts the ranks itself, from the command line that is put behind
     * them: all of them on this machine, or on all hosts, by launch_hydra.c; NULL: the ranks are
     * started from here. Not with `threads`. With `uplink` it is the whole command. */
    char *const *wrapper;
    /* Over several hosts: their agents, here the launcher's; the policy and the part of the blob
     * that they need. NULL: one host. */
    struct hosts *hosts;
    enum bind bind;
    size_t blob_used;
    uint32_t place_first;   /* in `place`: that of the first rank here */
    struct courier *uplink; /* .. and here an agent's, to the launcher that has the last word */
    const char
        *rank_variable; /* with `wrapper`: the variable in which it tells a rank its number */
};

/* `wait_kind` of a rank that is inside a call of somebody else's library (see rank_waits). */
enum { WAIT_LIBRARY = UINT32_MAX - 1 };

/* .. and of one that waits for a connection: for its peer to come, or to be found missing. */
enum { WAIT_CONNECTION = UINT32_MAX - 2 };

/* Runs all ranks to their end. 0 when every rank returned 0; else -1 with one sentence that names
 * the rank at fault, what it worked on, and who waited for it at which step. A rank's own errors
 * (rank_fail) come first. Afterwards no child is left. */
int launch_run(const struct launch_spec *spec, struct err *err);

/* True in a process that launch_run started. */
bool launch_is_child(void);

/* For a program that runs several launches, or writes something behind one: SIGINT, SIGTERM and
 * SIGHUP wait from here on, but while launch_run runs, which takes them. launch_signal_pending:
 * one that waits, or 0. */
void launch_block_signals(void);
int launch_signal_pending(void);

/* To be called first in main, before the command line is looked at: a process that launch_run
 * started to become the wrapper does so here, and this does not return. launch_child calls it too.
 */
void launch_wrap(void);

/* Child side: attaches to the world and runs `rank_main` as one rank, or as all of them in threads;
 * each is bound to its processors. `rank_main` returns 0 or -1
 * with a sentence, which the parent prints. Returns the exit status. */
int launch_child(int (*rank_main)(struct rank *rk, struct err *err));

/* Ends this rank's process at once, and hands the sentences of `err` to the launcher. For errors
 * in the middle of what cannot return one. */
_Noreturn void rank_fail(struct rank *rk, struct err *err);

/* The same when the connection to `peer` is lost: whoever ended it gets the blame, if the launcher
 * finds out who within two seconds. */
_Noreturn void rank_lost(struct rank *rk, uint32_t peer, struct err *err);

/* Sends one message (at most 4096 bytes) to the parent's on_message. */
int rank_send(struct rank *rk, const void *msg, size_t bytes, struct err *err);

/* Cores this process may run on. */
uint32_t launch_cores(void);

/* Test hooks, from the environment: COLLBENCH_FAULT="KIND:RANK:TICK", what the rank does to itself
 * behind its first TICK operations. A transport without connections of its own has none to drop,
 * and data that nobody checks are not spoiled: both are refused. */
enum fault_kind {
    FAULT_NONE,
    FAULT_KILL,
    FAULT_STOP,
    FAULT_STALL, /* it sleeps for ever */
    FAULT_EXIT,
    FAULT_DROP,  /* it loses a connection of its transport */
    FAULT_DELAY, /* it is late once, by half a second */
    FAULT_FLIP,  /* one bit of its next message in a checked operation: see spoil.c */
    FAULT_SWAP,  /* two blocks or elements of its next checked result */
    FAULT_COUNT
};

/* Called by the ranks once per operation. */
void launch_fault(struct rank *rk);

/* Whether the planted fault is one of the data, which is for exec_spoil. */
bool launch_spoils(const struct rank *rk);

/* Refuses such a fault: `why` nobody would find it. 0 when there is none. */
int launch_refuse_spoil(const struct rank *rk, const char *why, struct err *err);
