/* SPDX-License-Identifier: Apache-2.0
 * The libraries that a run can be compared with (--vs), behind one table of functions, so that the
 * contest (rival.c) is the same for all: calls made in several ways, of which the best is taken.
 * The launcher's side says how the ranks are started, and what the header tells. */
#pragma once

#include "bench/options.h"
#include "bench/rows.h"
#include "bench/side.h"
#include "exec/launch.h"
#include "ref/mpi.h"
#include "ref/nccl.h"

/* ---- a rank's side -------------------------------------------------------------------------- */

/* A way is a number: which function or graph, with the buffers in whose memory. What takes `state`
 * is called between open and close, what takes `way` for ways of the placement that was met last.
 */
struct opponent {
    const char *name; /* the algorithm of its rows */
    unsigned nways;
    /* Opens the library; every rank calls it. NULL with a sentence. */
    void *(*open)(struct bench *bench);
    void (*close)(void *state); /* accepts NULL */
    /* One line that facts show, NULL where the launcher's side has said all. */
    const char *(*says)(const void *state);
    /* Readies the calls of a placement; every rank calls it. Why there is none; NULL: there is. */
    const char *(*meet)(void *state, const struct side *side);
    bool (*has)(const void *state, unsigned way);
    /* Where the buffers of a way start (check.memory in their place), and where behind that the
     * library leaves the result. */
    uint8_t *(*memory)(const void *state, unsigned way);
    size_t (*result)(const void *state);
    /* The call once: puts it into the stream of the rank's GPU, and waits for all that is there.
     * `finish` NULL: `start` returns when all is done. Errors end the rank with a sentence. */
    void (*start)(void *state, unsigned way);
    void (*finish)(void *state);
    /* Names a series of results: source, algo, series, transport, buffers. */
    void (*describe)(const void *state, unsigned way, struct result *result);
};
extern const struct opponent opponent_mpi, opponent_nccl;

/* ---- the launcher's side -------------------------------------------------------------------- */

struct opponent_setup {
    struct mpi_setup mpi;
    struct nccl_setup nccl;
};

/* Finds the library of the plan's contest, and MPI for a transport that needs it; nothing to do
 * where there is neither. ERR_USAGE
 * and -1 with the reason why there is none. */
int opponent_find(struct opponent_setup *setup, const struct request *request,
                  const struct plan *plan, struct err *err);
void opponent_setup_release(struct opponent_setup *setup);

/* How the ranks are to be started: sets what `spec` says about that. */
void opponent_launch(const struct opponent_setup *setup, struct launch_spec *spec);

/* What was found, and the rows for which the library has no call. */
void opponent_note(const struct opponent_setup *setup, const struct plan *plan,
                   const struct outputs *outputs);
