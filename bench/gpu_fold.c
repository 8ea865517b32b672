/* SPDX-License-Identifier: Apache-2.0
 * Copy and reduce kernels of `collbench bench-gpu` against the device's own copy, both counted in
 * bytes read and written: a copy of S moves 2 S, a sum of two inputs 3 S, one that is also sent on
 * 4 S. What they wrote is compared bit by bit with the plain C reference of the host. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/check.h"
#include "bench/gpu_bench.h"
#include "kernels/data.h"

enum { ALIGN = 256, SALT = 20011, NIN = 2, NOUT = 2 };
enum { WINDOWS = 64, WINDOW = 4096, WHOLE = 1 << 20 /* elements: up to here all are compared */ };

static const struct shape {
    const char *name;
    uint32_t nin, nout;
} shapes[] = {{"copy", 1, 1}, {"reduce", 2, 1}, {"reduce-copy", 2, 2}};

enum { NSHAPES = sizeof shapes / sizeof *shapes };

struct job {
    struct gpu_bench *bench;
    struct gpu_watch watch;
    uint8_t *in[NIN], *out[NOUT]; /* on the device */
    struct fold fold;
    enum dtype dtype;
    enum redop op;
    enum gpu_version version;
};

static int fold_work(void *ctx, void *stream)
{
    const struct job *job = ctx;
    return job->bench->gpu->fold(&job->fold, job->dtype, job->op, job->version, 0, 0, stream);
}

/* ---- data ---- */

/* Any finite bit patterns, another list in each input. */
static int fill(struct job *job, size_t count, struct err *err)
{
    const struct gpu *gpu = job->bench->gpu;
    for (uint32_t i = 0; i < NIN; i++) {
        struct gpu_data data = {job->dtype, OP_COUNT, NIN, i, 0, SALT};
        if (gpu_check(gpu, gpu->fill(job->in[i], &data, count, job->watch.stream), err, "filling"))
            return -1;
    }
    return gpu_check(gpu, gpu->stream_sync(job->watch.stream), err, "filling");
}

/* Elements of out[k] in [first, first + count) that are not the reference's. `room` holds four
 * times as many. */
static int compare(const struct job *job, uint32_t k, size_t first, size_t count, uint8_t *room,
                   uint64_t *wrong, struct err *err)
{
    const struct gpu *gpu = job->bench->gpu;
    size_t esize = dtype_bytes(job->dtype), bytes = count * esize;
    uint8_t *got = room, *expected = room + bytes;
    struct fold fold = job->fold;
    for (uint32_t i = 0; i < fold.nin; i++) {
        uint8_t *in = room + (2 + i) * bytes;
        data_fill(in, job->dtype, OP_COUNT, NIN, i, first, count, SALT);
        fold.in[i] = in;
    }
    fold.out[0] = expected;
    fold.nout = 1;
    fold.count = count;
    kernels_all()[0]->fold[job->dtype][job->op](&fold);
    if (gpu_check(gpu, gpu->copy(got, job->out[k] + first * esize, bytes), err, "copying back"))
        return -1;
    for (size_t i = 0; i < count; i++)
        *wrong += memcmp(got + i * esize, expected + i * esize, esize) != 0;
    return 0;
}

/* All elements of a small buffer; of a large one windows from its first to its last element. */
static int check(const struct job *job, uint64_t *wrong, struct err *err)
{
    size_t count = job->fold.count, windows = count > WHOLE ? WINDOWS : 1;
    size_t window = count > WHOLE ? WINDOW : count;
    uint8_t *room = mem_calloc((2 + NIN) * window + 1, dtype_bytes(job->dtype));
    int bad = 0;
    for (uint32_t k = 0; k < job->fold.nout; k++) {
        for (size_t w = 0; !bad && w < windows; w++) {
            size_t first = windows > 1 ? (count - window) / (windows - 1) * w : 0;
            if (w > 0 && w == windows - 1) first = count - window;
            bad = compare(job, k, first, window, room, wrong, err);
        }
    }
    free(room);
    return bad;
}

/* ---- a row ---- */

/* Makes the planted element of the first output wrong (see check_plant): as if of rank 0. */
static int plant(const struct job *job, struct err *err)
{
    const struct gpu *gpu = job->bench->gpu;
    uint64_t element;
    uint8_t byte;
    if (check_plant(&(struct rank){.rank = 0}, &element, err)) return -1;
    if (element >= job->fold.count) return 0;
    uint8_t *at = job->out[0] + element * dtype_bytes(job->dtype);
    if (gpu_check(gpu, gpu->copy(&byte, at, 1), err, "planting")) return -1;
    byte ^= 1;
    return gpu_check(gpu, gpu->copy(at, &byte, 1), err, "planting");
}

/* One run, whose result is checked; the bytes that it moves, where somebody counts. */
static int run_once(struct job *job, struct gpu_row *row, struct err *err)
{
    const struct gpu *gpu = job->bench->gpu;
    uint64_t read = 0, written = 0;
    if (gpu->moved) gpu->moved(&read, &written);
    if (gpu_watch_run(&job->watch, fold_work, job, "a kernel", err)) return -1;
    if (!gpu->moved) return 0;
    gpu->moved(&read, &written);
    row->counted = read + written;
    return 0;
}

static int run(struct job *job, const struct shape *shape, size_t bytes, struct err *err)
{
    struct gpu_bench *bench = job->bench;
    const struct gpu *gpu = bench->gpu;
    struct gpu_row row = gpu_row_empty();
    row.part = "kernels";
    row.what = shape->name;
    row.version = gpu_version_name(job->version);
    row.dtype = dtype_name(job->dtype);
    row.redop = shape->nin > 1 ? redop_name(job->op) : "none";
    row.bytes = bytes;
    row.moved = (shape->nin + shape->nout) * bytes;
    row.checked = true;
    job->fold = (struct fold){.nin = shape->nin,
                              .nout = shape->nout,
                              .divisor = job->op == OP_AVG ? NIN : 1,
                              .count = bytes / dtype_bytes(job->dtype)};
    for (uint32_t k = 0; k < shape->nout; k++) {
        job->fold.out[k] = job->out[k];
        if (gpu_check(gpu, gpu->poison(job->out[k], bytes, SALT, job->watch.stream), err,
                      "poisoning"))
            return -1;
    }
    for (uint32_t i = 0; i < shape->nin; i++)
        job->fold.in[i] = job->in[i];
    /* the copy writes an output that the run behind it writes again, or nobody looks at */
    struct gpu_copy copy = {gpu, job->out[NOUT - 1], job->in[0], bytes};
    if (gpu_watch_beside(&job->watch, fold_work, job, &copy, bench->samples, &row, err) ||
        run_once(job, &row, err) || plant(job, err) || check(job, &row.wrong, err)) {
        return -1;
    }
    gpu_row_print(bench, &row);
    return 0;
}

static int run_size(struct job *job, size_t bytes, struct err *err)
{
    struct gpu_bench *bench = job->bench;
    if (fill(job, bytes / dtype_bytes(job->dtype), err)) return -1;
    for (uint32_t o = 0; o < bench->nops; o++) {
        job->op = bench->ops[o];
        for (size_t s = 0; s < NSHAPES; s++) {
            if (shapes[s].nin == 1 && o > 0) continue; /* the same whatever the operator */
            for (int v = 0; v < GPU_VERSION_COUNT; v++) {
                job->version = (enum gpu_version)v;
                if (run(job, &shapes[s], bytes, err)) return -1;
            }
        }
    }
    return 0;
}

static int run_all(struct job *job, struct err *err)
{
    struct gpu_bench *bench = job->bench;
    for (uint32_t d = 0; d < bench->ndtypes; d++) {
        size_t esize = dtype_bytes(bench->dtypes[d]);
        uint64_t size = bench->sweep.min, last = UINT64_MAX;
        job->dtype = bench->dtypes[d];
        do {
            uint64_t bytes = size / esize * esize;
            if (bytes == 0 || bytes == last) continue;
            if (run_size(job, bytes, err)) return -1;
            last = bytes;
        } while (sweep_next(&bench->sweep, esize, &size));
    }
    return 0;
}

int gpu_bench_fold(struct gpu_bench *bench, struct err *err)
{
    const struct gpu *gpu = bench->gpu;
    struct job job = {.bench = bench};
    size_t each = (bench->sweep.max + ALIGN) / ALIGN * ALIGN;
    void *memory = NULL;
    int bad = gpu_check(gpu, gpu->alloc(&memory, (NIN + NOUT) * each), err,
                        "%d buffers of %zu B on device %d", NIN + NOUT, each, bench->device);
    if (!bad) bad = gpu_watch_open(&job.watch, gpu, err);
    for (uint32_t i = 0; !bad && i < NIN + NOUT; i++)
        *(i < NIN ? &job.in[i] : &job.out[i - NIN]) = (uint8_t *)memory + i * each;
    if (!bad) bad = run_all(&job, err);
    if (job.watch.gpu) gpu_watch_close(&job.watch);
    if (memory) gpu->free(memory);
    return bad;
}
