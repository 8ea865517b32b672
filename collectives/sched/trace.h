/* SPDX-License-Identifier: Apache-2.0
 * The step timeline of one collective, measured or simulated: what every lane of every rank did
 * and when. Written as a file of Chrome's trace event format (loads in chrome://tracing and in
 * Perfetto), and summed up in a few sentences: who worked, who waited, and what came last.
 *
 *   rank 0  operation |-------------------------------|
 *           lane 0    [send 0 -> 1] wait [recv 3 <- 3][..
 *                             \                            an arrow from each send to its receive
 *   rank 1  lane 0     wait    `->[recv_reduce 0 <- 0]..
 *
 * Steps that the linker fused run as one kernel call: they have the same begin and end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct out;

/* One step of one pass. Times are in ticks since the operation began; the lane came to the step at
 * `came`, all that it needs was there at `begin`, and it was done at `end`. */
struct trace_event {
    uint32_t rank, lane;
    uint32_t step;          /* as drawn */
    uint32_t record, group; /* linked record, and the first of its group */
    uint32_t kind;          /* enum step_kind */
    uint32_t chunk;         /* first of nchunks: what it writes; of a send: what it reads */
    uint32_t nchunks;
    uint32_t peer, channel; /* of sends and receives */
    uint64_t pass;
    uint64_t number; /* of the message on its wire, from 0, going on over passes */
    uint64_t bytes;
    uint64_t came, begin, end;
};

/* The whole operation on one rank. */
struct trace_span {
    uint64_t begin, end;
};

struct trace {
    uint32_t nranks;
    double ticks_per_us;
    bool one_thread; /* the lanes of a rank take turns */
    struct trace_event *events;
    size_t count, cap;
    struct trace_span *spans; /* per rank */
};

void trace_init(struct trace *trace, uint32_t nranks, double ticks_per_us, bool one_thread);
void trace_release(struct trace *trace);
void trace_add(struct trace *trace, const struct trace_event *event);

/* Puts the events into the order that the functions below need: by rank, lane, pass, record. */
void trace_sort(struct trace *trace);

/* What the file says about the run; texts are borrowed, NULL leaves one out. */
struct trace_about {
    const char *program, *command;
    const char *source; /* "measured", "simulated" */
    const char *what;   /* "allreduce ring, 1024 B, float sum, out of place, 4 ranks" */
    const char *clock;  /* what the times are */
};

/* A file to be written at the end of a run. */
struct trace_file {
    const char *path; /* borrowed */
    int fd;           /* -1: none */
    bool created;     /* it was not there before */
};

/* Opens it: so that a path that cannot be had is refused before the run (ERR_USAGE); an existing
 * file is kept as it is until trace_file_close. `path` must name a file, not "-". 0 or -1. */
int trace_file_open(struct trace_file *file, const char *path, bool overwrite, struct err *err);

/* Writes the sorted trace and closes; with `trace` NULL (the run failed) a new file is removed and
 * an old one kept. 0, or -1 with ERR_FAILED when it could not be written. Does nothing when the
 * file is not open. */
int trace_file_close(struct trace_file *file, const struct trace *trace,
                     const struct trace_about *about, struct err *err);

/* The summary of a sorted trace as notes: time in all, work and waiting of each rank (of the
 * TRACE_RANKS that ended last), the step that ended last, and the chain that led to it. */
enum { TRACE_RANKS = 16, TRACE_HOPS = 8 };
void trace_note(struct out *out, const struct trace *trace);

/* The chain behind the step that ended last, from there back to the start: each link is the first
 * record of a group, and what it followed. A receive that had to wait followed the send of its
 * message; else a group followed what its own lane did before it (one_thread: its own rank). Waits
 * for room or for the release of a message are not followed. */
struct trace_link {
    size_t event;    /* index into the events */
    bool by_message; /* it waited for the message of the link behind it in the list */
    uint64_t gap;    /* ticks between the end of that link and its own begin */
};

/* *count links, the last step first; freed by the caller. NULL for no events. */
struct trace_link *trace_chain(const struct trace *trace, size_t *count);
