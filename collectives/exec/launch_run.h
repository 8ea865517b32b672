/* SPDX-License-Identifier: Apache-2.0
 * The inside of a run as its launcher sees it, for the files of the launcher alone: launch.c starts
 * and watches the ranks of this host, launch_far.c speaks with the other hosts, launch_hydra.c has
 * the ranks of all hosts started by one mpiexec. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "exec/control.h"
#include "exec/hosts.h"
#include "exec/launch.h"

enum { FAR_PATIENCE_MS = 5000 }; /* a host takes a frame within so long, or is lost */

struct proc {
    struct run *run;
    uv_process_t process;
    uv_poll_t poll;
    int fd;          /* our end of its control socket */
    uint32_t first;  /* its ranks */
    uint32_t nranks; /* 0: an mpiexec that leaves the start of ranks to us */
    bool spawned, ended;
};

/* A rank that the wrapper started: no child of ours. */
struct far {
    struct run *run;
    uv_poll_t poll;
    int fd;    /* of its process, readable when that has ended */
    pid_t pid; /* 0: it has not said hello yet */
    bool ended;
};

/* Another host. */
struct remote {
    struct run *run;
    uv_poll_t poll;
    struct courier *courier;
    uint32_t host;
    uint64_t heard_ms; /* when the agent last said something */
    bool ended;        /* nothing of this launch is left there */
};

/* What the launcher remembers of a rank. */
struct seen {
    uint64_t tick, beat;
    uint64_t beat_ms; /* when the beat last moved */
    uint32_t done;
};

enum phase { RUNNING, GRACE, ABORTED, KILLED };

struct run {
    const struct launch_spec *spec;
    uv_loop_t *loop;
    uv_timer_t watch, alarm;
    uv_signal_t signals[3]; /* of signal_numbers */
    struct proc *procs;
    uint32_t nprocs, nranks, first, nlocal; /* ranks here: nlocal from `first` on */
    uint32_t nalive;        /* children, ranks of the wrapper, other hosts that run */
    struct remote *remotes; /* of all other hosts; NULL: there are none */
    uint32_t nremotes;
    uv_poll_t up;       /* an agent: its launcher */
    bool obeys;         /* .. which has told it to end */
    struct far *fars;   /* per rank; NULL: there is no wrapper */
    int chatter;        /* file with what the wrapper printed, -1: none */
    bool quiet;         /* .. and it is no news */
    off_t chatter_from; /* .. for people, from here on */
    char ***commands;   /* by host: words of the command that starts its ranks; NULL: unknown */
    uv_timer_t look;    /* .. for them */
    struct seen *seen;
    uint64_t moved_ms;  /* when any rank last made progress */
    uint64_t looked_ms; /* when the watch last looked */
    enum phase phase;
    bool stalled;        /* the guilty process is alive, but will not notice an abort */
    int interrupted;     /* signal that ended the run from outside, or 0 */
    struct err own;      /* what ranks reported themselves */
    uint32_t culprit;    /* rank at fault; NO_RANK: a whole process, or nobody */
    struct proc *guilty; /* its process, or NULL */
    uint32_t place;      /* host at fault, of several */
    char *verb;          /* what happened to it */
    int guilt;           /* with a wrapper: how surely it did this to itself; see far_guilt */
    char *sentence;      /* the whole story, once told */
};

/* ---- launch.c ---- */

uint64_t run_now(struct run *run); /* milliseconds */

/* The first failure: remembers whose, and starts the way out. Takes `verb`. */
void run_fail(struct run *run, uint32_t rank, struct proc *proc, char *verb);

/* One child, or host, less is running. */
void run_less(struct run *run);

/* A rank's own sentence, and its message. */
void run_own_error(struct run *run, struct proc *proc, const struct record *record);
void run_message(struct run *run, uint32_t rank, const void *data, size_t bytes);

bool run_rank_done(struct run *run, uint32_t rank);

/* The local process of a rank; NULL: it is not here. */
struct proc *run_proc_of(struct run *run, uint32_t rank);
void run_kill_proc(struct proc *proc);

/* Starts the child that becomes `command` (takes nothing), which starts the ranks of this host, and
 * listens to them. */
int wrapper_start(struct proc *proc, char **command, struct err *err);

/* Starts the child that becomes the wrapper, with `more` words (or NULL) before this program's. */
int wrapper_spawn(struct proc *proc, char *const *more, struct err *err);

/* ---- launch_hydra.c ---- */

/* Starts mpiexec (procs[1]), and the ranks of all hosts once it has said how. */
int hydra_start(struct run *run, struct err *err);
void hydra_release(struct run *run);

/* ---- launch_far.c ---- */

/* A host with work left whose agent has said nothing since `since_ms` (run_now); NULL: none. */
struct remote *far_silent(struct run *run, uint64_t since_ms);

/* An agent: to its launcher. Failing is noticed by far_start's callbacks. */
void far_send_up(struct run *run, enum host_frame kind, uint32_t rank, uint32_t code,
                 const void *data, size_t bytes);
void far_send_statuses(struct run *run);

/* A launcher: to all other hosts; `rank`: the one meant, or NO_RANK. */
void far_send_down(struct run *run, enum host_frame kind, uint32_t rank, const void *data,
                   size_t bytes);

/* Prepares for the other hosts; sends them the job; listens to the launcher, if this is an agent;
 * adds a sentence for each host that has not ended, and frees. */
void far_open(struct run *run);
int far_start(struct run *run, struct err *err);
int far_listen_up(struct run *run, struct err *err);
void far_close(struct run *run, struct err *err);
