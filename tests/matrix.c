/* SPDX-License-Identifier: Apache-2.0
 * The matrix: every row of the algorithm table x ranks x counts x roots x node groups x channels
 * and parts x wire modes x passes x placements, with types and operators rotating, executed and
 * checked element by element; and for every row the executor's message log against the simulator's.
 *
 *     matrix [--threads] [--ranks 1,2,5] [--every K] [--logs] [--algo NAME] [--transport NAME]
 *            [--provider NAME] [--plain] [--gpu]
 *
 * --every K runs each K-th case (a different share of the cases for each rank count); --algo takes
 * only the rows of that name; --plain makes all of them sums of floats. On a transport of GPUs, and
 * with --gpu on others too, buffers lie on GPUs and ranks share those that there are; every fourth
 * of its cases there is launched as a graph, where the transport has graphs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "base/rng.h"
#include "exec/device.h"
#include "exec/exec.h"
#include "exec/launch.h"
#include "exec/mpi.h"
#include "kernels/data.h"
#include "net/net.h"
#include "sched/layout.h"
#include "sched/traffic.h"
#include "sched/verify.h"

struct options {
    bool threads, logs, plain, gpu;
    uint32_t every;
    uint32_t ranks[32], nranks;
    const char *algo; /* NULL: all */
    const char *transport;
    const char *provider; /* of libfabric; NULL: chosen */
};

/* What all ranks need to know; lies in the blob. */
struct job {
    uint32_t every;
    bool logs, plain, gpu;
    char algo[sizeof((struct sched){0}.name)]; /* "": all */
    char transport[16];
    bool graphs;
    bool apart; /* some ranks have no peer access to each other's GPU */
    _Atomic uint64_t cases, wrong, unlinked;
    _Atomic uint64_t partial; /* cases of 3 passes or more, the last one partial */
};

struct point {
    const struct algo *algo;
    struct algo_args args;
    enum wire_mode mode;
    bool in_place;
    size_t count; /* elements per block */
    enum dtype dtype;
    enum redop op;
    uint32_t passes; /* wanted, at least where the chunks are long enough */
    uint32_t tag;
    struct traffic *traffic; /* alltoallv; else NULL */
};

enum { MOST_BYTES = 4 << 20 };
enum { DEVICE_BUFFER = 1 << 20, DEVICE_BYTES = 16 << 20 }; /* on a GPU */

/* Traffic in which a pair sends 0 to 3 shares, drawn by lot. */
static struct traffic *draw_traffic(const struct point *point)
{
    uint32_t n = point->args.nranks;
    size_t pairs = (size_t)n * n;
    double *shares = mem_calloc(pairs, sizeof *shares);
    struct rng rng;
    rng_init(&rng, point->tag);
    for (size_t i = 0; i < pairs; i++)
        shares[i] = (double)rng_below(&rng, 4);
    shares[point->tag % pairs] = 2; /* one at least */
    struct traffic *traffic = traffic_deal(n, shares, point->count * pairs);
    free(shares);
    return traffic;
}

/* Elements of a block of `rank`'s input or output and where it starts. */
struct extent {
    size_t first, count;
};

static struct extent extent_of(const struct point *point, enum buf buf, uint32_t rank,
                               uint32_t block)
{
    struct extent extent = {block * point->count, point->count};
    if (point->traffic) {
        size_t *offsets = traffic_offsets(point->traffic, buf, rank, 1);
        extent = (struct extent){offsets[block], offsets[block + 1] - offsets[block]};
        free(offsets);
    }
    return extent;
}

/* Elements of a whole buffer. */
static size_t elements_of(const struct point *point, enum buf buf, uint32_t rank)
{
    uint32_t blocks = coll_blocks(coll_get(point->algo->coll), buf, point->args.nranks);
    struct extent last = extent_of(point, buf, rank, blocks - 1);
    return last.first + last.count;
}

/* Bytes of the longest chunk. */
static size_t chunk_bytes(const struct sched *sched, const struct point *point)
{
    size_t count = point->traffic ? traffic_longest(point->traffic) : point->count;
    return (count + sched->nparts - 1) / sched->nparts * dtype_bytes(point->dtype);
}

static size_t slice_for(const struct sched *sched, const struct point *point, size_t granule)
{
    size_t chunk = chunk_bytes(sched, point);
    size_t slice = chunk / point->passes / granule * granule;
    return slice ? slice : granule;
}

/* Buffers as the ranks' programs see them, and in memory that this program can look at: the same,
 * or copies of what lies on a GPU. */
struct buffers {
    uint8_t *in, *out;
    uint8_t *seen_in, *seen_out;
};

/* Runs the operation on what was put into the seen buffers. */
static void run_once(struct rank *rk, struct exec *exec, const struct buffers *buffers,
                     size_t in_bytes, size_t out_bytes)
{
    if (!rk->device) {
        exec_run(exec);
        return;
    }
    device_copy(rk, buffers->out, buffers->seen_out, out_bytes);
    device_copy(rk, buffers->in, buffers->seen_in, in_bytes);
    rank_barrier(rk); /* peers may write the output as soon as they start */
    exec_run(exec);
    device_copy(rk, buffers->seen_in, buffers->in, in_bytes);
    device_copy(rk, buffers->seen_out, buffers->out, out_bytes);
}

/* One call with one salt; wrong elements. */
static size_t call(struct rank *rk, struct exec *exec, const struct point *point,
                   const struct buffers *buffers, uint64_t salt)
{
    uint8_t *in = buffers->seen_in, *out = buffers->seen_out;
    const struct coll *coll = coll_get(point->algo->coll);
    uint32_t n = point->args.nranks, me = rk->rank;
    size_t esize = dtype_bytes(point->dtype), ins = elements_of(point, BUF_IN, me);
    enum redop op = coll->reduces ? point->op : OP_COUNT;
    uint32_t out_blocks = coll_blocks(coll, BUF_OUT, n);
    data_poison(out, elements_of(point, BUF_OUT, me) * esize, salt);
    if (coll_has_input(coll, point->args.root, me)) {
        data_fill(in, point->dtype, op, n, me, 0, ins, salt);
    }
    run_once(rk, exec, buffers, ins * esize, elements_of(point, BUF_OUT, me) * esize);
    size_t wrong = 0;
    for (uint32_t b = 0; b < out_blocks; b++) {
        struct data_bad bad;
        struct promise promise = coll_after(coll, n, point->args.root, me, b);
        if (promise.content == CONTENT_FREE) continue;
        struct extent block = extent_of(point, BUF_OUT, me, b);
        const void *at = out + block.first * esize;
        uint64_t first = extent_of(point, BUF_IN, promise.rank, promise.block).first;
        size_t here = promise.all ? data_check_reduced(at, point->dtype, op, n, first, block.count,
                                                       salt, &bad)
                                  : data_check_copy(at, point->dtype, op, n, promise.rank, first,
                                                    block.count, salt, &bad);
        if (here > 0 && wrong == 0) {
            fprintf(stderr,
                    "wrong: %s %s n=%u nodes=%u root=%u channels=%u parts=%u %s %s count=%zu %s %s "
                    "rank %u block %u index %zu: expected %g, got %g (%zu wrong)\n",
                    coll->name, point->algo->name, n, point->args.nnodes, point->args.root,
                    point->args.channels, point->args.parts, wire_mode_name(point->mode),
                    point->in_place ? "in place" : "out of place", point->count,
                    dtype_name(point->dtype), coll->reduces ? redop_name(op) : "-", me, b,
                    bad.index, bad.expected, bad.got, here);
        }
        wrong += here;
    }
    if (!point->in_place && coll_has_input(coll, point->args.root, me)) {
        struct data_bad bad;
        wrong += data_check_copy(in, point->dtype, op, n, me, 0, ins, salt, &bad);
    }
    return wrong;
}

/* The messages this rank sent, against those the simulator says it sends. */
static size_t compare_logs(struct rank *rk, const struct job *job, const struct exec *exec,
                           const struct linked *linked, const struct point *point, size_t slice,
                           uint32_t depth)
{
    struct err err = ERR_INIT;
    struct net_result result;
    struct net_args args = {.alpha_ps = 1000,
                            .beta_Bps = 1e9,
                            .slots = depth,
                            .block_bytes =
                                (point->traffic ? traffic_longest(point->traffic) : point->count) *
                                dtype_bytes(point->dtype),
                            .traffic = point->traffic,
                            .esize = dtype_bytes(point->dtype),
                            .slice_bytes = slice,
                            .granule = transport_find(job->transport, &err)->granule,
                            .keep_log = true};
    if (net_run(linked, &args, &result, &err)) {
        err_print(&err, "matrix");
        err_release(&err);
        return 1;
    }
    size_t nours, wrong = 0, at = 0;
    const struct msg_log *ours = exec_log(exec, &nours);
    bool *seen = mem_calloc(nours, sizeof *seen);
    for (size_t i = 0; i < result.nlog; i++) {
        const struct msg_log *theirs = &result.log[i];
        if (theirs->src != rk->rank) {
            continue;
        }
        at++;
        bool found = false;
        for (size_t k = 0; k < nours && !found; k++) {
            found = !seen[k] && ours[k].dst == theirs->dst && ours[k].number == theirs->number &&
                    ours[k].channel == theirs->channel && ours[k].bytes == theirs->bytes;
            seen[k] |= found;
        }
        wrong += !found;
    }
    if (wrong || at != nours) {
        fprintf(stderr,
                "logs differ: %s %s n=%u rank %u: executor %zu messages, simulator %zu, %zu "
                "not found\n",
                coll_get(point->algo->coll)->name, point->algo->name, point->args.nranks, rk->rank,
                nours, at, wrong);
        wrong += at != nours;
    }
    free(seen);
    net_result_release(&result);
    return wrong;
}

/* Input and output of a placement. */
static struct buffers place(struct rank *rk, const struct point *point, uint8_t *in, uint8_t *out,
                            uint8_t *seen_in, uint8_t *seen_out)
{
    const struct coll *coll = coll_get(point->algo->coll);
    struct buffers buffers = {in, out, seen_in, seen_out};
    size_t own = rk->rank * point->count * dtype_bytes(point->dtype);
    if (!point->in_place) return buffers;
    if (coll->in_per_rank && !coll->out_per_rank) { /* the output is a block of the input */
        buffers.out = in + own;
        buffers.seen_out = seen_in + own;
        return buffers;
    }
    size_t block = coll->out_per_rank && !coll->in_per_rank ? own : 0;
    buffers.in = out + block;
    buffers.seen_in = seen_out + block;
    return buffers;
}

/* What goes on from row to row. */
struct walk {
    struct rank *rk;
    struct job *job;
    uint8_t *in, *out, *seen_in, *seen_out; /* see struct buffers */
    unsigned modes;                         /* that the transport has */
    uint32_t index, tag, turn;
};

static int run_point(struct walk *walk, const struct point *point, struct err *err)
{
    struct rank *rk = walk->rk;
    struct job *job = walk->job;
    const struct transport *transport = transport_find(job->transport, err);
    struct sched *sched = algo_build(point->algo, &point->args, false, err);
    struct link_opts opts = {.mode = point->mode, .in_place = point->in_place, .fuse = true};
    struct err refused = ERR_INIT;
    struct linked *linked = sched ? link_sched(sched, &opts, &refused) : NULL;
    size_t mark = rank_mark(rk), mark_there = device_mark(rk);
    int bad = sched ? 0 : -1;
    if (sched && !linked) { /* pull only: proven not to make progress */
        bad = point->mode == WIRE_PULL ? 0 : err_move(err, &refused);
        job->unlinked++;
    }
    if (linked) {
        struct buffers buffers =
            place(rk, point, walk->in, walk->out, walk->seen_in, walk->seen_out);
        struct exec_spec spec = {.linked = linked,
                                 .rank = rk,
                                 .me = rk->rank,
                                 .tag = point->tag,
                                 .transport = transport,
                                 .in = buffers.in,
                                 .out = buffers.out,
                                 .shared = true,
                                 .dtype = point->dtype,
                                 .op = point->op,
                                 .block_count = point->count,
                                 .traffic = point->traffic,
                                 .slice_bytes = slice_for(sched, point, transport->granule),
                                 .depth = linked->least_depth,
                                 .graph = job->graphs && point->tag % 4 == 0,
                                 .keep_log = job->logs};
        struct exec *exec = exec_open(&spec, err);
        bad = exec ? 0 : -1;
        uint32_t rounds = job->logs ? 1 : data_rounds(point->dtype, point->op, point->args.nranks);
        for (uint32_t round = 0; exec && round < rounds; round++) {
            job->wrong += call(rk, exec, point, &buffers, point->tag * 64 + round);
        }
        if (exec && job->logs) {
            job->wrong += compare_logs(rk, job, exec, linked, point, spec.slice_bytes, spec.depth);
        }
        if (exec && exec_passes(exec) >= 3 && chunk_bytes(sched, point) % spec.slice_bytes != 0)
            job->partial++;
        exec_close(exec);
        job->cases++;
    }
    err_release(&refused);
    rank_rewind(rk, mark);
    device_rewind(rk, mark_there);
    linked_free(linked);
    sched_free(sched);
    return bad;
}

/* ---- the points ---- */

/* Node groups to try with rows that look at them, besides none. */
static const char *const groupings[] = {"1+1",   "1+2",     "2+2",   "2+3",    "1+4", "3+1+2",
                                        "3+3+1", "4+4",     "2+2+4", "1+7",    "3x3", "1+5+3",
                                        "4+4+5", "1+2+4+6", "4x4",   "1+9+1+5"};
enum { NGROUPINGS = sizeof groupings / sizeof *groupings };

/* Fills in the k-th grouping for n ranks; 0 is none. False behind the last. */
static bool group_ranks(struct algo_args *args, uint32_t k)
{
    struct err none = ERR_INIT;
    for (size_t i = 0; k > 0 && i < NGROUPINGS; i++) {
        uint32_t *nodes, nnodes, sum = 0;
        if (algo_nodes_parse(groupings[i], &nodes, &nnodes, &none)) return false;
        for (uint32_t j = 0; j < nnodes; j++)
            sum += nodes[j];
        if (sum == args->nranks && --k == 0) {
            args->nodes = nodes;
            args->nnodes = nnodes;
            return true;
        }
        free(nodes);
    }
    return k == 0;
}

enum { CUTS = 5, MODES = 3, COUNTS = 9 };
static const uint32_t cuts[CUTS][2] = {{1, 1}, {1, 2}, {1, 3}, {2, 1}, {3, 2}};

/* All points of a row for one root and grouping, all of them or each K-th. */
static int each_call(struct walk *walk, const struct algo *algo, const struct algo_args *args,
                     struct err *err)
{
    static const enum wire_mode modes[MODES] = {WIRE_STAGED, WIRE_PULL, WIRE_LL};
    const struct coll *coll = coll_get(algo->coll);
    uint32_t n = args->nranks, places = coll_in_place(coll) ? 2 : 1;
    const size_t counts[COUNTS] = {0, 1, n - 1, n, n + 1, 127, 129, 1000, 4097};
    uint32_t ncounts = coll->empty ? 1 : COUNTS;
    for (uint32_t i = 0; i < CUTS * MODES * places * ncounts; i++) {
        uint32_t c = i % ncounts, place = i / ncounts % places, rest = i / ncounts / places;
        struct point point = {.algo = algo,
                              .args = *args,
                              .mode = modes[rest % MODES],
                              .in_place = place,
                              .count = counts[c],
                              .passes = 3 + walk->turn % 2,
                              .dtype = DT_FLOAT,
                              .op = OP_SUM,
                              .tag = ++walk->tag};
        point.args.channels = cuts[rest / MODES][0];
        point.args.parts = cuts[rest / MODES][1];
        if (!walk->job->plain) {
            point.dtype = (enum dtype)(walk->turn % DT_COUNT);
            point.op = (enum redop)(walk->turn / DT_COUNT % OP_COUNT);
        }
        walk->turn++;
        bool pulled = point.mode == WIRE_PULL;
        if (!(walk->modes >> point.mode & 1) || (pulled && walk->job->apart)) continue;
        if (walk->index++ % walk->job->every != 0) continue;
        rank_says(walk->rk, "matrix %s %s, %u ranks, case %u", coll->name, algo->name, n,
                  point.tag);
        if (coll->uneven) point.traffic = draw_traffic(&point);
        int bad = run_point(walk, &point, err);
        free(point.traffic);
        if (bad) return -1;
    }
    return 0;
}

static int each_point(struct walk *walk, struct err *err)
{
    uint32_t n = walk->rk->nranks;
    const uint32_t roots[] = {0, n / 2, n - 1};
    size_t nalgos;
    const struct algo *algos = algo_table(&nalgos);
    for (size_t a = 0; a < nalgos; a++) {
        const char *only = walk->job->algo;
        if (*only && strcmp(algos[a].name, only) != 0) continue;
        if (!algo_runs_on_ranks(&algos[a])) continue;
        uint32_t nroots = coll_get(algos[a].coll)->rooted ? (n > 2 ? 3 : n) : 1;
        for (uint32_t r = 0; r < nroots; r++) {
            struct algo_args args = {.nranks = n, .root = roots[r]};
            for (uint32_t k = 0; (k == 0 || algos[a].grouped) && group_ranks(&args, k); k++) {
                int bad = each_call(walk, &algos[a], &args, err);
                free((void *)args.nodes);
                args.nodes = NULL;
                if (bad) return -1;
            }
        }
        walk->turn += 4; /* so that types and counts do not march in step */
    }
    return 0;
}

static int rank_main(struct rank *rk, struct err *err)
{
    struct job *job = world_blob(rk->world);
    const struct transport *transport = transport_find(job->transport, err);
    uint8_t *in = rank_alloc(rk, MOST_BYTES, err), *out = rank_alloc(rk, MOST_BYTES, err);
    if (!transport || !in || !out) return -1;
    struct walk walk = {.rk = rk,
                        .job = job,
                        .in = in,
                        .out = out,
                        .seen_in = in,
                        .seen_out = out,
                        .modes = transport->modes,
                        .index = rk->nranks};
    if (transport->device || job->gpu) {
        if (!transport->device) walk.modes = 1u << WIRE_STAGED;
        if (device_open(rk, DEVICE_BYTES, err)) return -1;
        walk.in = device_alloc(rk, DEVICE_BUFFER, err);
        walk.out = device_alloc(rk, DEVICE_BUFFER, err);
        if (!walk.in || !walk.out) return -1;
    }
    int bad = each_point(&walk, err);
    if (!bad) device_close(rk);
    return bad;
}

/* What was run, of all rank counts. */
struct sum {
    uint64_t cases, partial;
};

static int run_ranks(const struct options *options, uint32_t n, char **argv, struct sum *sum)
{
    struct err err = ERR_INIT;
    const struct transport *transport = transport_find(options->transport, &err);
    struct world_spec spec = {.nranks = n,
                              .net = transport_net(transport),
                              .blob_bytes = sizeof(struct job),
                              .extent_bytes = (size_t)256 << 20,
                              .resident_bytes = (size_t)24 << 20};
    if (options->provider)
        snprintf(spec.net.provider, sizeof spec.net.provider, "%s", options->provider);
    struct mpi_setup mpi = {0};
    int bad = transport->mpiexec ? mpi_find(&mpi, NULL, n, &err) : 0;
    struct world *world = bad ? NULL : world_create(&spec, &err);
    bad = world ? 0 : -1;
    if (world) {
        struct job *job = world_blob(world);
        *job = (struct job){.every = options->every,
                            .logs = options->logs,
                            .plain = options->plain,
                            .gpu = options->gpu};
        snprintf(job->transport, sizeof job->transport, "%s", options->transport);
        char pairs[64];
        job->apart = transport->device && device_apart(n, pairs, sizeof pairs) > 0;
        job->graphs = strcmp(options->transport, "cuda-ipc") == 0;
        if (options->algo) snprintf(job->algo, sizeof job->algo, "%s", options->algo);
        struct launch_spec launch = {.prog = "matrix",
                                     .argv = argv,
                                     .world = world,
                                     .threads = options->threads,
                                     .timeout_s = 120,
                                     .env = mpi.env,
                                     .wrapper = mpi.words,
                                     .rank_variable = mpi.rank_variable};
        bad = launch_run(&launch, &err);
        printf("%2u ranks: %lu runs (%lu of 3 passes or more, the last partial), %lu wrong "
               "elements, %lu that cannot be pulled\n",
               n, (unsigned long)job->cases, (unsigned long)job->partial, (unsigned long)job->wrong,
               (unsigned long)job->unlinked);
        fflush(stdout);
        sum->cases += job->cases;
        sum->partial += job->partial;
        bad |= job->wrong > 0 || job->cases == 0;
        world_close(world);
    }
    mpi_setup_release(&mpi);
    err_print(&err, "matrix");
    err_release(&err);
    return bad;
}

static void parse(struct options *options, int argc, char **argv)
{
    *options = (struct options){.every = 1, .transport = "shm"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0) {
            options->threads = true;
        } else if (strcmp(argv[i], "--logs") == 0) {
            options->logs = true;
        } else if (strcmp(argv[i], "--plain") == 0) {
            options->plain = true;
        } else if (strcmp(argv[i], "--gpu") == 0) {
            options->gpu = true;
        } else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc) {
            options->every = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--algo") == 0 && i + 1 < argc) {
            options->algo = argv[++i];
        } else if (strcmp(argv[i], "--transport") == 0 && i + 1 < argc) {
            options->transport = argv[++i];
        } else if (strcmp(argv[i], "--provider") == 0 && i + 1 < argc) {
            options->provider = argv[++i];
        } else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) {
            for (char *at = argv[++i]; *at && options->nranks < 32; at += *at == ',') {
                options->ranks[options->nranks++] = (uint32_t)strtoul(at, &at, 10);
            }
        }
    }
    static const uint32_t all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16};
    if (options->nranks == 0) {
        memcpy(options->ranks, all, sizeof all);
        options->nranks = sizeof all / sizeof *all;
    }
}

/* Whether there is a row of that name that can be run; if not, says so. */
static bool known(const char *algo)
{
    size_t nalgos;
    const struct algo *algos = algo_table(&nalgos);
    for (size_t a = 0; a < nalgos; a++) {
        if (strcmp(algos[a].name, algo) == 0 && algo_runs_on_ranks(&algos[a])) return true;
    }
    fprintf(stderr, "matrix: --algo %s: the table has no such row to run\n", algo);
    return false;
}

int main(int argc, char **argv)
{
    if (launch_is_child()) {
        return launch_child(rank_main);
    }
    struct options options;
    parse(&options, argc, argv);
    if (options.algo && !known(options.algo)) return 2;
    struct err err = ERR_INIT;
    if (!transport_find(options.transport, &err)) {
        err_print(&err, "matrix");
        return 2;
    }
    int bad = 0;
    struct sum sum = {0, 0};
    for (uint32_t i = 0; i < options.nranks; i++) {
        bad |= run_ranks(&options, options.ranks[i], argv, &sum);
    }
    if (!options.algo && sum.partial == 0) {
        printf("no case had 3 passes or more, the last one partial: take more cases\n");
        bad = 1;
    }
    printf("%s: %lu runs\n", bad ? "FAILED" : "passed", (unsigned long)sum.cases);
    return bad ? 1 : 0;
}
