/* SPDX-License-Identifier: Apache-2.0
 * The engine that runs a whole operation as one launch of the interpreter kernel: the linked
 * program, the places of all chunks and the device wires are put into the arena once, at opening;
 * starting is a launch, or the launch of a captured graph. Starting again before the last operation
 * is done queues the next behind it. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"

enum { THREADS = 512, ALIGN = 256 };

struct state {
    struct gpu_launch launch;
    struct gpu_report *reports; /* pinned, per lane */
    struct gpu_log *log;        /* device */
    uint64_t *nlog;             /* device */
    void *graph;                /* of one launch, NULL: none */
};

static struct state *state_of(const struct exec *exec)
{
    return exec->engine_state;
}

/* ---- the image of a gpu_rank: built in host memory, with addresses of the device ---- */

struct image {
    uint8_t *host, *device; /* NULL: only counting */
    size_t used;
};

/* Room for `count` things of `each` bytes: their address on the device; `from` is copied there when
 * there is an image already. */
static void *put(struct image *image, const void *from, size_t count, size_t each)
{
    size_t at = image->used;
    image->used += (count * each + ALIGN - 1) / ALIGN * ALIGN;
    if (!image->host) return NULL;
    if (from && count > 0) memcpy(image->host + at, from, count * each);
    return image->device + at;
}

static struct gpu_range *ranges_of(const struct range *from, size_t count)
{
    struct gpu_range *ranges = mem_calloc(count, sizeof *ranges);
    for (size_t i = 0; i < count; i++)
        ranges[i] = (struct gpu_range){from[i].off, from[i].len};
    return ranges;
}

static void put_chunks(struct image *image, const struct exec *exec, struct gpu_rank *rank)
{
    for (int buf = 0; buf < 3; buf++) {
        struct gpu_range *ranges = ranges_of(exec->chunks[buf], exec->nchunks[buf]);
        rank->chunks[buf] = put(image, ranges, exec->nchunks[buf], sizeof *ranges);
        rank->nchunks[buf] = exec->nchunks[buf];
        rank->base[buf] = exec->own.base[buf];
        free(ranges);
    }
    if (!exec->theirs) return;
    uint32_t n = exec->sched->nranks;
    size_t both = (size_t)exec->nchunks[BUF_IN] + exec->nchunks[BUF_OUT];
    const void **tables = mem_calloc(n, sizeof *tables);
    for (uint32_t r = 0; r < n; r++) {
        struct gpu_range *ranges = ranges_of(exec->theirs[r], both);
        tables[r] = put(image, ranges, both, sizeof *ranges);
        free(ranges);
    }
    rank->theirs = put(image, tables, n, sizeof *tables);
    free(tables);
}

static void put_wires(struct image *image, const struct exec *exec, struct gpu_rank *rank)
{
    uint32_t n = exec->sched->nranks;
    struct gpu_wire *wires = mem_calloc(exec->nwires, sizeof *wires);
    for (uint32_t w = 0; w < exec->nwires; w++)
        wires[w] = ((const struct device_wire *)(const void *)exec->wires[w])->gpu;
    rank->wires = put(image, wires, exec->nwires, sizeof *wires);
    rank->nwires = exec->nwires;
    free(wires);
    void **peers = mem_calloc((size_t)n * 3, sizeof *peers);
    for (uint32_t r = 0; r < n; r++) {
        for (int b = 0; b < 3; b++)
            peers[r * 3 + (uint32_t)b] = exec->peers[r].base[b];
    }
    rank->peers = put(image, peers, (size_t)n * 3, sizeof *peers);
    free(peers);
}

static bool crosses(const struct exec *exec)
{
    for (uint32_t i = 0; i < exec->nwaits; i++) {
        if (exec->waits[i].kind == LWAIT_LANE) return true;
    }
    return false;
}

static size_t messages(const struct exec *exec)
{
    size_t count = 0;
    for (uint32_t w = 0; w < exec->nwires; w++)
        count += exec->lwires[w].send ? exec->lwires[w].nmsgs * exec->passes : 0;
    return count;
}

/* All of it; the gpu_rank comes first. */
static void put_rank(struct image *image, const struct exec *exec, struct gpu_rank *rank)
{
    struct state *state = state_of(exec);
    size_t at = image->used;
    put(image, NULL, 1, sizeof *rank);
    put_chunks(image, exec, rank);
    put_wires(image, exec, rank);
    rank->steps = put(image, exec->steps, exec->nsteps, sizeof *exec->steps);
    rank->lane_start =
        put(image, exec->lane_start, (size_t)exec->nlanes + 1, sizeof *exec->lane_start);
    rank->waits = put(image, exec->waits, exec->nwaits, sizeof *exec->waits);
    rank->progress = put(image, NULL, exec->nlanes, GPU_LINE);
    if (exec->spec.keep_log) {
        rank->log = state->log = put(image, NULL, messages(exec), sizeof *rank->log);
        rank->nlog = state->nlog = put(image, NULL, 1, sizeof *rank->nlog);
    }
    if (image->host) memcpy(image->host + at, rank, sizeof *rank);
}

static int put_all(struct exec *exec, struct gpu_rank *rank, struct err *err)
{
    struct image image = {0};
    put_rank(&image, exec, rank);
    image.device = device_alloc(exec->rank, image.used, err);
    if (!image.device) return -1;
    image.host = mem_calloc(1, image.used);
    size_t bytes = image.used;
    image.used = 0;
    put_rank(&image, exec, rank);
    device_copy(exec->rank, image.device, image.host, bytes);
    free(image.host);
    state_of(exec)->launch.ranks = (const struct gpu_rank *)(void *)image.device;
    return 0;
}

/* ---- life ---- */

/* All lanes must run at once: one that waits for a lane that has no place would wait for ever. */
static int check_lanes(const struct exec *exec, struct err *err)
{
    const struct device *device = exec->rank->device;
    const struct gpu_launch *launch = &state_of(exec)->launch;
    uint32_t blocks;
    if (gpu_check(device->gpu,
                  device->gpu->run_limit(launch->dtype, launch->op, launch->threads, &blocks), err,
                  "asking how many blocks fit")) {
        return -1;
    }
    /* The same on all ranks: all refuse, or none, as kernels of the others would run on. */
    uint32_t lanes = exec_most_lanes(exec), room = blocks / device->sharers;
    if (lanes <= room) return 0;
    uint32_t channels = exec->sched->nchannels;
    return err_add(err, ERR_USAGE,
                   "%s %s has %u lanes with --channels %u, but device %d runs %u blocks of %u "
                   "threads at once, for %u rank%s of this process; use --channels %u",
                   exec->sched->coll->name, exec->sched->name, lanes, channels, device->number,
                   blocks, launch->threads, device->sharers, device->sharers == 1 ? "" : "s",
                   room * channels / lanes > 0 ? room * channels / lanes : 1);
}

static int gpu_open_engine(struct exec *exec, struct err *err)
{
    struct state *state = exec->engine_state = mem_calloc(1, sizeof *state);
    const struct gpu *gpu = exec->rank->device->gpu;
    const struct coll *coll = exec->sched->coll;
    state->launch = (struct gpu_launch){.nranks = 1,
                                        .nlanes = exec->nlanes,
                                        .threads = THREADS,
                                        .dtype = exec->spec.dtype,
                                        .op = coll->reduces ? exec->spec.op : OP_SUM};
    if (exec->spec.keep_trace) {
        return err_add(err, ERR_USAGE, "steps are not traced on GPUs: use --transport shm");
    }
    void *reports, *seen;
    size_t bytes = (exec->nlanes ? exec->nlanes : 1) * sizeof *state->reports;
    if (gpu_check(gpu, gpu->host_alloc(&reports, bytes), err, "pinned memory")) return -1;
    state->reports = reports;
    memset(reports, 0, bytes);
    if (gpu_check(gpu, gpu->host_device(reports, &seen), err, "pinned memory") ||
        check_lanes(exec, err)) {
        return -1;
    }
    struct gpu_rank rank = {.plane_bytes = exec->plane_bytes,
                            .slice_bytes = exec->most.slice_bytes,
                            .passes = exec->passes,
                            .stop = exec->rank->device->stop_device,
                            .reports = seen,
                            .nlanes = exec->nlanes,
                            .nranks = exec->sched->nranks,
                            .esize = (uint32_t)exec->esize,
                            .crosses = crosses(exec)};
    return put_all(exec, &rank, err);
}

static void gpu_close_engine(struct exec *exec)
{
    struct state *state = state_of(exec);
    if (!state) return;
    const struct gpu *gpu = exec->rank->device->gpu;
    device_sync(exec->rank, "closing");
    if (state->graph) gpu->graph_free(state->graph);
    if (state->reports) gpu->host_free(state->reports);
    free(state);
}

/* ---- running ---- */

static void capture(struct exec *exec)
{
    struct rank *rk = exec->rank;
    const struct gpu *gpu = rk->device->gpu;
    void *stream = rk->device->stream;
    device_must(rk, gpu->capture_begin(stream), "capturing a graph");
    device_must(rk, gpu->run(&state_of(exec)->launch, stream), "launching the interpreter");
    device_must(rk, gpu->capture_end(stream, &state_of(exec)->graph), "capturing a graph");
}

static void gpu_start(struct exec *exec)
{
    struct rank *rk = exec->rank;
    const struct gpu *gpu = rk->device->gpu;
    struct state *state = state_of(exec);
    for (uint32_t w = 0; w < exec->nwires; w++)
        exec->wires[w]->next += exec->lwires[w].nmsgs * exec->passes;
    if (exec->nlanes == 0) return;
    if (exec->spec.graph && !state->graph) capture(exec);
    int error = state->graph ? gpu->graph_launch(state->graph, rk->device->stream)
                             : gpu->run(&state->launch, rk->device->stream);
    device_must(rk, error, "launching the interpreter");
}

struct gpu_launch exec_launch(const struct exec *exec)
{
    return state_of(exec)->launch;
}

static void fetch_log(struct exec *exec)
{
    struct state *state = state_of(exec);
    uint64_t count, none = 0;
    device_copy(exec->rank, &count, state->nlog, sizeof count);
    struct gpu_log *log = mem_calloc(count, sizeof *log);
    device_copy(exec->rank, log, state->log, count * sizeof *log);
    for (uint64_t i = 0; i < count; i++)
        exec_log_add(exec, &exec->lwires[log[i].wire], log[i].number, log[i].bytes);
    device_copy(exec->rank, state->nlog, &none, sizeof none);
    free(log);
}

static int gpu_progress(struct exec *exec)
{
    exec->moved = false;
    if (!device_done(exec->rank, exec->rank->device->stream, "running the collective")) return 0;
    rank_tick(exec->rank);
    if (exec->spec.keep_log && exec->nlanes > 0) fetch_log(exec);
    return 1;
}

static void gpu_report(struct exec *exec)
{
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        const volatile struct gpu_report *report = &state_of(exec)->reports[i];
        if (report->waiting) {
            exec_waits(exec, report->record, report->pass);
            return;
        }
    }
}

const struct engine gpu_engine = {gpu_open_engine, gpu_close_engine, gpu_start, gpu_progress,
                                  gpu_report};
