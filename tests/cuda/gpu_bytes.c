/* SPDX-License-Identifier: Apache-2.0
 * Bytes by count: every row of the algorithm table runs over cuda-ipc on the emulated GPUs, whose
 * kernels count each byte of data that they load and store. That count must be what the linked
 * program says (exec_count_bytes), and, where the algorithm has one here, the closed form of its
 * fused program: each input read once, each output written once. Ranks are threads, so that the
 * count of the process is that of all ranks.
 *
 *     gpu_bytes [--ranks 2,3,8] [--show] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "exec/device.h"
#include "exec/exec.h"
#include "exec/launch.h"

enum { COUNT = 1024, BUFFER = 1 << 20, ARENA = 16 << 20 }; /* elements per block; bytes */

/* Lies in the blob. */
struct job {
    bool show;
    _Atomic uint64_t cases, formed, wrong;
    _Atomic uint64_t read, written; /* of the case at hand, by the linked programs */
};

struct point {
    const struct algo *algo;
    struct algo_args args;
    enum wire_mode mode;
    bool in_place;
};

/* ---- closed forms: what all ranks read and write where messages pass through slots ----
 *
 * In units of S, the size of the operation as collbench has it, on n > 1 ranks; `own` is 1 when an
 * own block has to be copied to the output, 0 in place. A value that several sends and a copy share
 * is read once, and several arrivals that are combined are combined in one go. */

struct moved {
    uint64_t read, written;
};

/* Per rank, in n-ths: sends its own (1 read, 1 written), n - 2 times takes one, combines it and
 * sends it on (2, 1), combines and keeps the last (2, 1); sends that on with the same reading
 * (0, 1), n - 2 times takes one, keeps it and sends it on (1, 2), keeps the last (1, 1). Two-shot
 * comes to the same: sends n - 1 (1, 1), combines n into one that is kept and sent to all (n, n),
 * takes n - 1 (1, 1). */
static struct moved reduce_and_gather(uint64_t n, uint64_t own)
{
    (void)own;
    return (struct moved){3 * n - 2, 3 * n - 2};
}

/* The first half of it. */
static struct moved reduce_scatter(uint64_t n, uint64_t own)
{
    (void)own;
    return (struct moved){2 * n - 1, n};
}

/* Each block is read by its owner, and by each of the n - 1 others from a slot; it is written n - 1
 * times to a slot and to n - 1 outputs, and to the owner's. The same for all of S of a root. */
static struct moved spread(uint64_t n, uint64_t own)
{
    return (struct moved){n, 2 * n - 2 + own};
}

/* Per rank, in n-ths: n - 1 are sent and n - 1 taken (1, 1 each), one is kept. */
static struct moved exchange(uint64_t n, uint64_t own)
{
    return (struct moved){2 * n - 2 + own, 2 * n - 2 + own};
}

/* Each rank reads its input for n - 1 slots, then all n at once for its output. */
static struct moved oneshot(uint64_t n, uint64_t own)
{
    (void)own;
    return (struct moved){n * (1 + n), n * n};
}

/* Each rank sends one and takes one. */
static struct moved shift(uint64_t n, uint64_t own)
{
    (void)own;
    return (struct moved){2 * n, 2 * n};
}

typedef struct moved form_fn(uint64_t n, uint64_t own);

static const struct row {
    enum coll_id coll;
    const char *algo;
    form_fn *form;
    bool nth; /* the form is in n-ths of S */
} forms[] = {
    {COLL_ALLREDUCE, "ring", reduce_and_gather, false},
    {COLL_ALLREDUCE, "twoshot", reduce_and_gather, false},
    {COLL_ALLREDUCE, "oneshot", oneshot, false},
    {COLL_REDUCE_SCATTER, "ring", reduce_scatter, false},
    {COLL_REDUCE_SCATTER, "direct", reduce_scatter, false},
    {COLL_ALLGATHER, "ring", spread, false},
    {COLL_ALLGATHER, "direct", spread, false},
    {COLL_BROADCAST, "binomial", spread, false},
    {COLL_BROADCAST, "chain", spread, false},
    {COLL_BROADCAST, "double_tree", spread, false},
    {COLL_ALLTOALL, "pairwise", exchange, false},
    {COLL_ALLTOALL, "direct", exchange, false},
    {COLL_GATHER, "direct", exchange, true},
    {COLL_SCATTER, "direct", exchange, true},
    {COLL_SENDRECV, "shift", shift, false},
};

static const struct row *form_of(const struct algo *algo)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].coll == algo->coll && strcmp(forms[i].algo, algo->name) == 0) return &forms[i];
    }
    return NULL;
}

/* ---- one case ---- */

/* Says so, and counts, when what was moved is not what was wanted. */
static void compare(struct job *job, const struct point *point, const char *by, uint64_t read,
                    uint64_t written, uint64_t wanted_read, uint64_t wanted_written)
{
    bool same = read == wanted_read && written == wanted_written;
    if (same && !job->show) return;
    printf("%s: %s %s, %u ranks, %u nodes, %s, %s: kernels read %" PRIu64 " B and wrote %" PRIu64
           " B, %s %" PRIu64 " and %" PRIu64 "\n",
           same ? "same" : "differs", coll_get(point->algo->coll)->name, point->algo->name,
           point->args.nranks, point->args.nnodes, wire_mode_name(point->mode),
           point->in_place ? "in place" : "out of place", read, written, by, wanted_read,
           wanted_written);
    job->wrong += !same;
}

/* On rank 0, when all ranks are done. */
static void judge(struct job *job, struct rank *rk, const struct point *point)
{
    uint64_t read, written, n = point->args.nranks;
    rk->device->gpu->moved(&read, &written);
    compare(job, point, "the program", read, written, job->read, job->written);
    job->cases++;
    const struct row *row = form_of(point->algo);
    if (!row || point->mode != WIRE_STAGED || n < 2) return;
    const struct coll *coll = coll_get(point->algo->coll);
    uint64_t size = coll_size(coll, (uint32_t)n, COUNT, sizeof(float));
    struct moved wanted = row->form(n, !point->in_place);
    uint64_t unit = row->nth ? size / n : size;
    compare(job, point, "the closed form", read, written, wanted.read * unit,
            wanted.written * unit);
    job->formed++;
}

static int run_point(struct rank *rk, const struct point *point, uint32_t tag, uint8_t *buffers,
                     struct err *err)
{
    struct job *job = world_blob(rk->world);
    const struct coll *coll = coll_get(point->algo->coll);
    struct sched *sched = algo_build(point->algo, &point->args, false, err);
    struct link_opts opts = {.mode = point->mode, .in_place = point->in_place, .fuse = true};
    struct err refused = ERR_INIT; /* pull: may be proven not to make progress */
    struct linked *linked = sched ? link_sched(sched, &opts, &refused) : NULL;
    size_t mark = rank_mark(rk), mark_there = device_mark(rk);
    uint32_t n = point->args.nranks;
    struct traffic *traffic = NULL;
    if (coll->uneven) {
        double *shares = calloc((size_t)n * n, sizeof *shares);
        for (uint32_t i = 0; i < n * n; i++)
            shares[i] = 1 + i % 3;
        traffic = traffic_deal(n, shares, (size_t)COUNT * n * n);
        free(shares);
    }
    int bad = sched ? 0 : -1;
    if (linked) {
        struct exec_spec spec = {.linked = linked,
                                 .rank = rk,
                                 .me = rk->rank,
                                 .tag = tag,
                                 .transport = transport_find("cuda-ipc", err),
                                 .in = buffers,
                                 .out = buffers + BUFFER,
                                 .shared = true,
                                 .dtype = DT_FLOAT,
                                 .op = OP_SUM,
                                 .block_count = COUNT,
                                 .traffic = traffic,
                                 .slice_bytes = 1280, /* passes, the last one partial */
                                 .depth = linked->least_depth};
        struct exec *exec = exec_open(&spec, err);
        bad = exec ? 0 : -1;
        if (rk->rank == 0) job->read = job->written = 0;
        rank_barrier(rk);
        if (exec) {
            struct exec_bytes bytes = exec_count_bytes(exec);
            job->read += bytes.read;
            job->written += bytes.written;
            exec_run(exec);
        }
        rank_barrier(rk);
        if (rk->rank == 0) judge(job, rk, point);
        rank_barrier(rk);
        exec_close(exec);
    }
    err_release(&refused);
    rank_rewind(rk, mark);
    device_rewind(rk, mark_there);
    free(traffic);
    linked_free(linked);
    sched_free(sched);
    return bad;
}

/* ---- all of them ---- */

static int rank_main(struct rank *rk, struct err *err)
{
    static const enum wire_mode modes[] = {WIRE_STAGED, WIRE_PULL};
    uint32_t n = rk->nranks, tag = 0, halves[] = {n / 2, n - n / 2};
    if (device_open(rk, ARENA, err)) return -1;
    uint8_t *buffers = device_alloc(rk, 2 * BUFFER, err);
    if (!buffers) return -1;
    size_t nalgos;
    const struct algo *table = algo_table(&nalgos);
    for (size_t a = 0; a < nalgos; a++) {
        const struct coll *coll = coll_get(table[a].coll);
        if (!algo_runs_on_ranks(&table[a])) continue;
        uint32_t places = coll_in_place(coll) ? 2 : 1, groups = table[a].grouped && n > 3 ? 2 : 1;
        for (uint32_t i = 0; i < 2 * places * groups; i++) {
            struct point point = {.algo = &table[a],
                                  .args = {.nranks = n, .channels = 1, .parts = 1},
                                  .mode = modes[i % 2],
                                  .in_place = i / 2 % places};
            if (i / 2 / places) {
                point.args.nodes = halves;
                point.args.nnodes = 2;
            }
            if (run_point(rk, &point, ++tag, buffers, err)) return -1;
        }
    }
    device_close(rk);
    return 0;
}

static int run_ranks(uint32_t n, bool show, char **argv)
{
    struct err err = ERR_INIT;
    struct world_spec spec = {.nranks = n,
                              .blob_bytes = sizeof(struct job),
                              .extent_bytes = (size_t)64 << 20,
                              .resident_bytes = (size_t)8 << 20};
    struct world *world = world_create(&spec, &err);
    if (!world) {
        err_print(&err, "gpu_bytes");
        err_release(&err);
        return 1;
    }
    struct job *job = world_blob(world);
    job->show = show;
    struct launch_spec launch = {
        .prog = "gpu_bytes", .argv = argv, .world = world, .threads = true, .timeout_s = 120};
    int bad = launch_run(&launch, &err);
    printf("%2u ranks: %" PRIu64 " runs, %" PRIu64 " also by closed form, %" PRIu64 " differ\n", n,
           job->cases, job->formed, job->wrong);
    bad |= job->wrong > 0 || job->cases == 0 || job->formed == 0;
    world_close(world);
    err_print(&err, "gpu_bytes");
    err_release(&err);
    return bad != 0;
}

int main(int argc, char **argv)
{
    if (launch_is_child()) return launch_child(rank_main);
    const char *ranks = "2,3,4,8";
    bool show = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) ranks = argv[++i];
        show |= strcmp(argv[i], "--show") == 0;
    }
    int bad = 0;
    for (char *at = (char *)(uintptr_t)ranks; *at; at += *at == ',')
        bad |= run_ranks((uint32_t)strtoul(at, &at, 10), show, argv);
    printf("%s\n", bad ? "FAILED" : "passed");
    return bad;
}
