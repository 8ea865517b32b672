/* SPDX-License-Identifier: Apache-2.0
 * Virtual ranks of `collbench bench-gpu`: a ring all-reduce whose ranks are groups of blocks of one
 * launch on one GPU. Each rank is a thread that opens the collective's handle as any run does; what
 * the handles would launch one by one lies side by side on the device and is launched at once:
 *
 *     rank 0 .. n-1   exec_open -> gpu_rank on the device
 *     rank 0          | gpu_rank 0 | gpu_rank 1 | .. | -> one launch of n x lanes blocks
 *
 * So no link is in the time: what remains is what the interpreter costs per step, and how much of
 * the memory's bandwidth it reaches. The process sees one GPU only, the one asked for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "bench/check.h"
#include "bench/gpu_bench.h"
#include "bench/site.h"
#include "exec/device.h"
#include "exec/exec.h"
#include "exec/launch.h"

enum { SALT = 4999, CHANNELS_MOST = 16, THREADS = 512, TIMEOUT_S = 60 };
enum { EXTENT = 16 << 20, RESIDENT = 2 << 20, SLACK = 32 << 20 };

/* A row to be measured, and what came of it. */
struct virtual_row {
    enum wire_mode mode;
    uint64_t bytes;
    uint32_t channels;  /* 0: as many as suit */
    struct gpu_row got; /* its texts are filled in by the parent */
};

/* What a rank hands to the one that launches. */
struct virtual_place {
    const struct gpu_rank *image;
    uint64_t moved, wrong;
};

/* Lies in the blob: the rows, then the ranks' places. */
struct virtual_task {
    enum dtype dtype;
    enum redop op;
    uint64_t samples;
    uint32_t nrows;
    struct virtual_row rows[];
};

static struct virtual_place *places_of(struct virtual_task *task)
{
    return (struct virtual_place *)(void *)&task->rows[task->nrows];
}

/* ---- the ranks ---- */

struct member {
    struct rank *rk;
    struct virtual_task *task;
    struct virtual_row *row;
    struct sched *sched;
    struct linked *linked;
    struct exec *exec;
    uint8_t *in, *out;
    struct gpu_launch launch; /* of all ranks: rank 0's alone */
};

/* A launch gets as many lanes as all run at once. */
static int choose_channels(struct member *m, uint32_t *channels, struct err *err)
{
    const struct gpu *gpu = m->rk->device->gpu;
    uint32_t blocks, nranks = m->rk->nranks;
    if (gpu_check(gpu, gpu->run_limit(m->task->dtype, m->task->op, THREADS, &blocks), err,
                  "asking how many blocks fit")) {
        return -1;
    }
    if (blocks < nranks) {
        return err_add(err, ERR_USAGE,
                       "--ranks %u: the device runs %u blocks of %d threads at once, so there are "
                       "at most %u virtual ranks",
                       nranks, blocks, THREADS, blocks);
    }
    uint32_t fit = blocks / nranks < CHANNELS_MOST ? blocks / nranks : CHANNELS_MOST;
    *channels = m->row->channels ? m->row->channels : fit;
    return 0;
}

static int open_member(struct member *m, uint32_t tag, struct err *err)
{
    struct rank *rk = m->rk;
    struct algo_args args = {.nranks = rk->nranks, .parts = 1};
    const struct algo *ring = algo_find(COLL_ALLREDUCE, "ring", err);
    if (!ring || choose_channels(m, &args.channels, err)) return -1;
    m->sched = algo_build(ring, &args, false, err);
    if (!m->sched) return -1;
    m->linked = link_sched(m->sched, &(struct link_opts){.mode = m->row->mode, .fuse = true}, err);
    m->in = m->linked ? device_alloc(rk, m->row->bytes, err) : NULL;
    m->out = m->in ? device_alloc(rk, m->row->bytes, err) : NULL;
    if (!m->out) return -1;
    struct exec_spec spec = {.linked = m->linked,
                             .rank = rk,
                             .me = rk->rank,
                             .tag = tag,
                             .transport = transport_find("cuda-ipc", err),
                             .in = m->in,
                             .out = m->out,
                             .shared = true,
                             .dtype = m->task->dtype,
                             .op = m->task->op,
                             .block_count = m->row->bytes / dtype_bytes(m->task->dtype)};
    m->exec = spec.transport ? exec_open(&spec, err) : NULL;
    return m->exec ? 0 : -1;
}

static struct gpu_data data_of(const struct member *m)
{
    return (struct gpu_data){m->task->dtype, m->task->op, m->rk->nranks, m->rk->rank, 0, SALT};
}

static int fill(const struct member *m, struct err *err)
{
    struct site site;
    struct gpu_data data = data_of(m);
    int bad = site_open(&site, m->rk, err);
    if (!bad) {
        site_fill(&site, m->in, &data, m->row->bytes / dtype_bytes(data.dtype));
        site_poison(&site, m->out, m->row->bytes, SALT);
    }
    site_close(&site);
    return bad;
}

/* Adds the wrong elements of the own output, in which one may be planted (see check_plant). */
static int check(const struct member *m, struct err *err)
{
    struct site site;
    struct gpu_data data = data_of(m);
    struct data_bad first;
    size_t esize = dtype_bytes(data.dtype), count = m->row->bytes / esize;
    uint64_t planted;
    if (check_plant(m->rk, &planted, err)) return -1;
    int bad = site_open(&site, m->rk, err);
    if (!bad) {
        if (planted < count) site_flip(&site, m->out + planted * esize);
        places_of(m->task)[m->rk->rank].wrong +=
            site_wrong(&site, m->out, &data, true, count, &first);
    }
    site_close(&site);
    return bad;
}

/* ---- what rank 0 does for all ---- */

static int virtual_work(void *ctx, void *stream)
{
    const struct member *m = ctx;
    return m->rk->device->gpu->run(&m->launch, stream);
}

/* Puts the ranks side by side. */
static int gather(struct member *m, struct err *err)
{
    struct rank *rk = m->rk;
    const struct gpu *gpu = rk->device->gpu;
    struct gpu_rank *side = device_alloc(rk, rk->nranks * sizeof *side, err);
    if (!side) return -1;
    for (uint32_t r = 0; r < rk->nranks; r++) {
        const struct gpu_rank *image = places_of(m->task)[r].image;
        if (gpu_check(gpu, gpu->copy(side + r, image, sizeof *image), err, "a rank's program"))
            return -1;
    }
    m->launch = exec_launch(m->exec);
    m->launch.ranks = side;
    m->launch.nranks = rk->nranks;
    return 0;
}

/* Groups that the longest lane goes through in an operation. */
static uint64_t longest_lane(const struct member *m)
{
    const struct lprog *prog = &m->linked->progs[m->sched->prog_of[0]];
    uint64_t most = 0;
    for (uint32_t lane = 0; lane < prog->nlanes; lane++) {
        uint64_t groups = 0;
        for (uint32_t r = prog->lane_start[lane]; r < prog->lane_start[lane + 1]; r++)
            groups += !(prog->steps[r].flags & LS_CHAIN);
        most = groups > most ? groups : most;
    }
    return most * exec_passes(m->exec);
}

/* One operation; the bytes that it moved, where somebody counts. */
static int run_once(struct member *m, struct gpu_watch *watch, struct err *err)
{
    const struct gpu *gpu = m->rk->device->gpu;
    uint64_t read = 0, written = 0;
    if (gpu->moved) gpu->moved(&read, &written);
    if (gpu_watch_run(watch, virtual_work, m, "virtual ranks", err)) return -1;
    if (!gpu->moved) return 0;
    gpu->moved(&read, &written);
    m->row->got.counted = read + written;
    return 0;
}

static int measure(struct member *m, struct err *err)
{
    const struct gpu *gpu = m->rk->device->gpu;
    struct gpu_row *got = &m->row->got;
    struct gpu_watch watch = {0};
    /* what it copies is the input, and an output that the next operation writes again */
    struct gpu_copy copy = {gpu, m->out, m->in, m->row->bytes};
    int bad = gather(m, err) || gpu_watch_open(&watch, gpu, err);
    if (!bad) {
        bad = gpu_watch_beside(&watch, virtual_work, m, &copy, m->task->samples, got, err) ||
              run_once(m, &watch, err);
    }
    if (watch.gpu) gpu_watch_close(&watch);
    got->steps = longest_lane(m);
    got->ranks = m->rk->nranks;
    got->bytes = m->row->bytes;
    for (uint32_t r = 0; r < m->rk->nranks; r++)
        got->moved += places_of(m->task)[r].moved;
    return bad ? -1 : 0;
}

static int run_member(struct member *m, struct err *err)
{
    struct rank *rk = m->rk;
    struct virtual_place *place = &places_of(m->task)[rk->rank];
    if (open_member(m, (uint32_t)(m->row - m->task->rows) + 1, err) || fill(m, err)) return -1;
    struct exec_bytes bytes = exec_count_bytes(m->exec);
    *place = (struct virtual_place){.image = exec_launch(m->exec).ranks,
                                    .moved = bytes.read + bytes.written};
    rank_barrier(rk);
    if (rk->rank == 0 && measure(m, err)) return -1;
    rank_barrier(rk);
    if (check(m, err)) return -1;
    rank_barrier(rk);
    for (uint32_t r = 0; rk->rank == 0 && r < rk->nranks; r++)
        m->row->got.wrong += places_of(m->task)[r].wrong;
    return 0;
}

static int run_row(struct rank *rk, struct virtual_task *task, uint32_t number, struct err *err)
{
    struct member m = {.rk = rk, .task = task, .row = &task->rows[number]};
    size_t mark = rank_mark(rk), device = device_mark(rk);
    rank_says(rk, "virtual ranks, %s, %llu B", wire_mode_name(m.row->mode),
              (unsigned long long)m.row->bytes);
    int bad = run_member(&m, err);
    if (!bad) exec_close(m.exec); /* else the run ends */
    if (!bad) rank_barrier(rk);
    linked_free(m.linked);
    sched_free(m.sched);
    rank_rewind(rk, mark);
    device_rewind(rk, device);
    return bad;
}

int gpu_virtual_rank(struct rank *rk, struct err *err)
{
    struct virtual_task *task = world_blob(rk->world);
    const struct transport *transport = transport_find("cuda-ipc", err);
    uint64_t most = 0;
    for (uint32_t i = 0; i < task->nrows; i++)
        most = task->rows[i].bytes > most ? task->rows[i].bytes : most;
    /* input, output, slots (twice as long in LL) and program */
    size_t slots = most < transport->slot_budget ? 4 * most : transport->slot_budget;
    int bad = device_open(rk, 2 * most + slots + SLACK, err);
    for (uint32_t i = 0; !bad && i < task->nrows; i++)
        bad = run_row(rk, task, i, err);
    device_close(rk);
    return bad;
}

/* ---- the parent ---- */

/* The device's entry in what CUDA_VISIBLE_DEVICES lets us see; freed by the caller. */
static char *visible(int device)
{
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    if (!seen) return mem_printf("CUDA_VISIBLE_DEVICES=%d", device);
    for (int i = 0; i < device && seen; i++) {
        seen = strchr(seen, ',');
        seen = seen ? seen + 1 : NULL;
    }
    int length = seen ? (int)strcspn(seen, ",") : 0;
    return mem_printf("CUDA_VISIBLE_DEVICES=%.*s", length, seen ? seen : "");
}

/* The rows of one number of ranks: small calls over each wire, then the sweep. With `rows` NULL
 * they are only counted. */
static uint32_t list_rows(const struct gpu_bench *bench, struct virtual_row *rows)
{
    static const enum wire_mode modes[] = {WIRE_LL, WIRE_STAGED, WIRE_PULL};
    size_t esize = dtype_bytes(bench->dtypes[0]);
    uint32_t count = 0;
    for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
        uint64_t bytes = (bench->small + esize - 1) / esize * esize;
        if (rows) rows[count] = (struct virtual_row){modes[k], bytes, 1, gpu_row_empty()};
        count++;
    }
    uint64_t size = bench->sweep.min;
    do {
        uint64_t bytes = size / esize * esize;
        for (size_t k = 1; bytes > 0 && k < sizeof modes / sizeof *modes; k++) {
            if (rows) {
                rows[count] = (struct virtual_row){modes[k], bytes, (uint32_t)bench->channels,
                                                   gpu_row_empty()};
            }
            count++;
        }
    } while (sweep_next(&bench->sweep, esize, &size));
    return count;
}

static void print_rows(struct gpu_bench *bench, const struct virtual_task *task)
{
    for (uint32_t i = 0; i < task->nrows; i++) {
        struct gpu_row row = task->rows[i].got;
        row.part = "virtual";
        row.what = "ring allreduce";
        row.version = wire_mode_name(task->rows[i].mode);
        row.dtype = dtype_name(task->dtype);
        row.redop = redop_name(task->op);
        row.checked = true;
        gpu_row_print(bench, &row);
    }
}

static int run_ranks(struct gpu_bench *bench, uint32_t nranks, struct err *err)
{
    uint32_t nrows = list_rows(bench, NULL);
    size_t blob = sizeof(struct virtual_task) + nrows * sizeof(struct virtual_row) +
                  nranks * sizeof(struct virtual_place);
    struct world_spec spec = {
        .nranks = nranks, .blob_bytes = blob, .extent_bytes = EXTENT, .resident_bytes = RESIDENT};
    struct world *world = world_create(&spec, err);
    if (!world) return -1;
    struct virtual_task *task = world_blob(world);
    task->dtype = bench->dtypes[0];
    task->op = bench->ops[0];
    task->samples = bench->samples;
    task->nrows = nrows;
    list_rows(bench, task->rows);
    char *device = visible(bench->device), *const env[] = {device, NULL};
    struct launch_spec launch = {.prog = "collbench",
                                 .argv = bench->argv,
                                 .world = world,
                                 .threads = true,
                                 .timeout_s = TIMEOUT_S,
                                 .env = env};
    int bad = launch_run(&launch, err);
    if (!bad) print_rows(bench, task);
    free(device);
    world_close(world);
    return bad;
}

int gpu_bench_virtual(struct gpu_bench *bench, struct err *err)
{
    for (uint32_t i = 0; i < bench->nranks; i++) {
        if (run_ranks(bench, bench->ranks[i], err)) return -1;
    }
    return 0;
}
