/* SPDX-License-Identifier: Apache-2.0
 * What the parts of `collbench bench-gpu` share: a row of its table, and a watch that takes time by
 * the events of a stream. Kernels: gpu_fold.c; virtual ranks: gpu_virtual.c; launches and the
 * command itself: gpu_cmd.c. */
#pragma once

#include "base/out.h"
#include "exec/world.h"
#include "kernels/gpu.h"
#include "sched/sweep.h"

/* A row; fields that a part does not know stay as gpu_row_empty has them. */
struct gpu_row {
    const char *part, *what, *version, *dtype, *redop; /* NULL: none */
    uint64_t ranks, bytes;                             /* bytes: of one buffer */
    double p50_us, min_us;                             /* per operation; NaN: not known */
    uint64_t steps;   /* of the longest lane, in groups of fused records; 0: none */
    uint64_t moved;   /* bytes read + written per operation, as a whole; 0: none */
    uint64_t counted; /* .. as an emulation counted them; 0: it did not */
    double copy_us;   /* beside it, sample by sample: a copy of copy_bytes */
    uint64_t copy_bytes;
    bool checked;
    uint64_t wrong; /* elements */
};

struct gpu_bench {
    const struct gpu *gpu;
    int device;
    struct out *out;
    uint64_t samples;
    struct sweep sweep; /* bytes of a buffer */
    uint32_t ndtypes, nops;
    enum dtype dtypes[DT_COUNT];
    enum redop ops[OP_COUNT];
    uint32_t nranks; /* how many numbers of virtual ranks */
    uint32_t *ranks;
    uint64_t small;    /* bytes of the calls that show what a step costs */
    uint64_t channels; /* 0: as many as suit */
    uint64_t wrong;    /* elements, in all rows so far */
    char **argv;       /* the whole command line, run again for virtual ranks */
};

struct gpu_row gpu_row_empty(void);
void gpu_row_print(struct gpu_bench *bench, const struct gpu_row *row);

/* ---- time ---- */

struct gpu_watch {
    const struct gpu *gpu;
    void *stream, *events[2];
    uint32_t *hold, *hold_device; /* pinned: what the spin kernel waits for */
};

/* On the device in use. gpu_watch_close accepts what gpu_watch_open left after a failure. */
int gpu_watch_open(struct gpu_watch *watch, const struct gpu *gpu, struct err *err);
void gpu_watch_close(struct gpu_watch *watch);

/* Queues one operation in a stream; returns the number of a CUDA error. */
typedef int gpu_work(void *ctx, void *stream);

/* Runs one operation to its end; `what` is for the sentence. 0 or -1, as all below. */
int gpu_watch_run(struct gpu_watch *watch, gpu_work *work, void *ctx, const char *what,
                  struct err *err);

/* Microseconds per operation of a batch by the device's clock: it begins when all of it is queued,
 * held back by a spin kernel. *launch_us: the host's per call. */
int gpu_watch_time(struct gpu_watch *watch, gpu_work *work, void *ctx, uint64_t batch, double *us,
                   double *launch_us, struct err *err);

/* Samples of an operation and of a copy, in turns: p50 and min of the first, p50 of the other. Each
 * sample has so many operations that it takes some 200 us (1 to 100). */
struct gpu_copy {
    const struct gpu *gpu;
    void *dst;
    const void *src;
    size_t bytes;
};
int gpu_watch_beside(struct gpu_watch *watch, gpu_work *work, void *ctx, struct gpu_copy *copy,
                     uint64_t samples, struct gpu_row *row, struct err *err);

/* ---- parts: 0, or -1 with a sentence; rows go to bench->out ---- */

int gpu_bench_fold(struct gpu_bench *bench, struct err *err);
int gpu_bench_virtual(struct gpu_bench *bench, struct err *err);

/* What a rank of gpu_bench_virtual runs, in a process that it started. */
int gpu_virtual_rank(struct rank *rk, struct err *err);
