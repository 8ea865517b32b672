/* SPDX-License-Identifier: Apache-2.0
 * What a rank has for a whole run (struct bench: buffers, kernels, schedules), and for one row in
 * one placement (struct side: an open handle, and the data check of it). Measuring, tracing and
 * the determinism report all stand on these. */
#pragma once

#include "bench/board.h"
#include "bench/check.h"
#include "bench/ready.h"
#include "exec/exec.h"
#include "exec/transport.h"

/* All that one rank has. */
struct bench {
    struct rank *rk;
    struct err *err;
    const struct plan *plan;
    const struct transport *transport;
    const struct kernels *kernels;
    uint32_t me;     /* rank in the own group */
    uint32_t *group; /* world ranks of the own group: neighbours */
    struct ready_set ready;
    uint8_t *memory; /* of input and output, for the largest row */
    size_t memory_bytes;
    uint8_t *slot;            /* private buffers: to measure handing over with; else NULL */
    const uint8_t *next_slot; /* the next rank's */
    struct site site;         /* where the memory is */
    uint32_t handles;         /* opened so far */
    uint64_t planted;         /* element to make wrong, UINT64_MAX: none */
};

/* Allocates and prefaults the buffers; every rank calls it. bench_close in either case. */
int bench_open(struct bench *bench, struct rank *rk, struct err *err);
void bench_close(struct bench *bench);

/* Something to run once: our operation, or a library's call. `queue` only puts it into the stream
 * of the rank's GPU, `wait` waits for all that was queued; NULL: that needs waiting. */
struct runner {
    void (*run)(void *ctx);
    void *ctx;
    void (*queue)(void *ctx);
    void (*wait)(void *ctx);
};

/* One placement of one row. */
struct side {
    struct bench *bench;
    const struct plan_row *row; /* borrowed */
    bool in_place;
    const struct ready *ready;
    const struct linked *linked;
    struct check check;
    struct traffic *traffic; /* alltoallv; else NULL */
    struct exec *exec;
    size_t mark, device_mark; /* of extent and arena before the handle was opened */
    uint64_t rounds;          /* of the data check; 0: none */
};

/* Opens the handle; every rank calls it, for the same row. `trace`: record every step. 0, or -1
 * with the sentence, and nothing to close. */
int side_open(struct side *side, struct bench *bench, const struct plan_row *row, bool in_place,
              bool trace);

/* Closes it; every rank calls it. Nobody leaves before all are done with his memory. */
void side_close(struct side *side);

/* The operation once, as a runner's functions: `ctx` is the side. */
void side_operate(void *ctx);
void side_queue(void *ctx);
void side_wait(void *ctx);

/* The operation of a side as a runner. */
struct runner side_runner(struct side *side);

/* Rounds [from, to) of the data check, each with its own data, with `runner` as the operation.
 * Every rank calls it and learns the number of wrong elements on all ranks, and where the first one
 * is, if there is one. */
uint64_t side_check(const struct side *side, const struct runner *runner, uint64_t from,
                    uint64_t to, struct wrong *first);

/* Says what is done, for messages about a rank that fails: "allreduce ring, 8 B, in place, PHASE".
 */
void side_says(const struct side *side, const char *phase);

/* What is known about the result before anything is measured. */
struct result side_describe(const struct side *side);
