/* SPDX-License-Identifier: Apache-2.0
 * NCCL as an opponent, on the emulation of CUDA with a stand-in for the library: every collective
 * between ranks that are threads and ranks that are processes, checked as the benchmark checks its
 * own; and what is said when something is missing or fails. EMULATED_PLUGIN, NCCL_STUB and
 * NCCL_STUB_OLD (without the functions of later versions) are files. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/data.h"
#include "ref/nccl.h"

enum { TEXT = 512, SHARED_BYTES = 256, MOST_RANKS = 4, ALIGN = 256, LARGE = 20011 };

/* What the ranks of a run share. */
struct run {
    uint32_t nranks;
    bool hostid_trick;
    int (*rank)(struct run *run, uint32_t rank, char *text); /* 0, or a sentence in `text` */
    pthread_barrier_t barrier;
    uint8_t shared[SHARED_BYTES];
    uint64_t done;               /* cases that were right */
    uint64_t entered;            /* barriers that a rank has come to */
    char text[MOST_RANKS][TEXT]; /* what went wrong */
};

struct rank_arg {
    struct run *run;
    uint32_t rank;
};

static void use(const char *library)
{
    setenv("COLLBENCH_GPU_PLUGIN", EMULATED_PLUGIN, 1);
    setenv("COLLBENCH_NCCL", library, 1);
    setenv("CUEMU_TIMEOUT_S", "30", 1);
}

static void *thread_main(void *ctx)
{
    struct rank_arg *arg = ctx;
    arg->run->rank(arg->run, arg->rank, arg->run->text[arg->rank]);
    return NULL;
}

static void run_threads(struct run *run)
{
    pthread_t threads[MOST_RANKS];
    struct rank_arg args[MOST_RANKS];
    for (uint32_t r = 0; r < run->nranks; r++) {
        args[r] = (struct rank_arg){run, r};
        cr_assert_eq(pthread_create(&threads[r], NULL, thread_main, &args[r]), 0);
    }
    for (uint32_t r = 0; r < run->nranks; r++)
        pthread_join(threads[r], NULL);
}

/* Forked before any call of CUDA. */
static void run_processes(struct run *run)
{
    pid_t pids[MOST_RANKS];
    for (uint32_t r = 0; r < run->nranks; r++) {
        pids[r] = fork();
        cr_assert_geq(pids[r], 0);
        if (pids[r] == 0) _exit(run->rank(run, r, run->text[r]) ? 1 : 0);
    }
    for (uint32_t r = 0; r < run->nranks; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        if (!WIFEXITED(status) && !run->text[r][0])
            snprintf(run->text[r], TEXT, "ended by signal %d", WTERMSIG(status));
    }
}

static struct run *run_new(uint32_t nranks, int (*rank)(struct run *, uint32_t, char *))
{
    struct run *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(run, MAP_FAILED);
    run->nranks = nranks;
    run->rank = rank;
    pthread_barrierattr_t attr;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&run->barrier, &attr, nranks);
    pthread_barrierattr_destroy(&attr);
    return run;
}

/* Runs it and expects no rank to complain. */
static void run_well(struct run *run, bool threads)
{
    if (threads) {
        run_threads(run);
    } else {
        run_processes(run);
    }
    for (uint32_t r = 0; r < run->nranks; r++)
        cr_expect_eq(run->text[r][0], '\0', "%u ranks as %s, rank %u: %s", run->nranks,
                     threads ? "threads" : "processes", r, run->text[r]);
}

/* ---- a rank --------------------------------------------------------------------------------- */

struct place {
    struct run *run;
    struct nccl_library *library;
    const struct gpu *gpu;
    struct nccl *nccl;
    void *stream;
    uint32_t rank;
    struct err err;
};

static void share(void *ctx, void *bytes, size_t count)
{
    struct place *place = ctx;
    struct run *run = place->run;
    cr_assert_leq(count, sizeof run->shared);
    if (place->rank == 0) memcpy(run->shared, bytes, count);
    pthread_barrier_wait(&run->barrier);
    memcpy(bytes, run->shared, count);
    pthread_barrier_wait(&run->barrier);
}

static int say(struct place *place, char *text)
{
    if (place->err.text) snprintf(text, TEXT, "%s", place->err.text);
    err_release(&place->err);
    return text[0] ? -1 : 0;
}

/* Opens a communicator on device `device`. */
static int place_open(struct place *place, struct run *run, uint32_t rank, int device)
{
    const char *why = NULL;
    *place = (struct place){.run = run, .rank = rank, .err = ERR_INIT};
    place->library = nccl_load(&place->err);
    place->gpu = gpu_open(&why);
    if (!place->library || !place->gpu)
        return err_add(&place->err, ERR_FAILED, "%s", why ? why : "no library");
    struct nccl_spec spec = {.library = place->library,
                             .gpu = place->gpu,
                             .device = device,
                             .rank = rank,
                             .nranks = run->nranks,
                             .hostid_trick = run->hostid_trick,
                             .share = share,
                             .ctx = place};
    place->nccl = nccl_open(&spec, &place->err);
    if (!place->nccl) return -1;
    return gpu_check(place->gpu, place->gpu->stream_new(&place->stream), &place->err, "a stream");
}

static void place_close(struct place *place)
{
    nccl_close(place->nccl);
    if (place->stream) place->gpu->stream_free(place->stream);
    nccl_library_free(place->library);
}

static int wait_done(struct place *place)
{
    for (bool done = false; !done; sched_yield()) {
        if (nccl_done(place->nccl, place->stream, &done, &place->err)) return -1;
    }
    return 0;
}

/* ---- one case ------------------------------------------------------------------------------- */

struct scene {
    struct nccl_args args;
    size_t in_bytes, out_bytes, in_at, out_at, bytes; /* of buffers, where they start, in all */
    enum nccl_memory memory;
    bool graph;
    uint64_t salt;
};

static enum redop data_op(const struct nccl_args *args)
{
    return coll_get(args->coll)->reduces ? args->op : OP_COUNT;
}

static void lay_out(struct scene *scene, uint32_t rank)
{
    const struct nccl_args *args = &scene->args;
    const struct coll *coll = coll_get(args->coll);
    size_t esize = dtype_bytes(args->dtype);
    size_t block = coll->empty ? 0 : args->block_count * esize;
    scene->in_bytes = block * coll_blocks(coll, BUF_IN, args->nranks);
    scene->out_bytes = block * coll_blocks(coll, BUF_OUT, args->nranks);
    if (args->traffic) {
        scene->in_bytes = traffic_sum(args->traffic, BUF_IN, rank) * esize;
        scene->out_bytes = traffic_sum(args->traffic, BUF_OUT, rank) * esize;
    }
    scene->in_at = scene->out_at = 0;
    if (!args->in_place) {
        scene->out_at = (scene->in_bytes + ALIGN - 1) / ALIGN * ALIGN;
        scene->bytes = scene->out_at + scene->out_bytes;
        return;
    }
    if (scene->in_bytes < scene->out_bytes) scene->in_at = rank * block;
    if (scene->in_bytes > scene->out_bytes) scene->out_at = rank * block;
    scene->bytes = scene->in_bytes > scene->out_bytes ? scene->in_bytes : scene->out_bytes;
}

static void fill(const struct scene *scene, uint32_t rank, uint8_t *host)
{
    const struct nccl_args *args = &scene->args;
    data_poison(host, scene->bytes, scene->salt);
    if (!coll_has_input(coll_get(args->coll), args->root, rank)) return;
    data_fill(host + scene->in_at, args->dtype, data_op(args), args->nranks, rank, 0,
              scene->in_bytes / dtype_bytes(args->dtype), scene->salt);
}

/* Wrong elements of one block of the output. */
static size_t check_block(const struct scene *scene, uint32_t rank, uint32_t block,
                          const uint8_t *host)
{
    const struct nccl_args *args = &scene->args;
    struct promise promise =
        coll_after(coll_get(args->coll), args->nranks, args->root, rank, block);
    if (promise.content == CONTENT_FREE) return 0;
    size_t base = block * args->block_count, count = args->block_count;
    uint64_t first = promise.block * args->block_count;
    if (args->traffic) {
        size_t *own = traffic_offsets(args->traffic, BUF_OUT, rank, 1);
        size_t *theirs = traffic_offsets(args->traffic, BUF_IN, promise.rank, 1);
        base = own[block];
        count = own[block + 1] - own[block];
        first = theirs[promise.block];
        free(own);
        free(theirs);
    }
    struct data_bad bad;
    const uint8_t *at = host + scene->out_at + base * dtype_bytes(args->dtype);
    if (promise.all)
        return data_check_reduced(at, args->dtype, args->op, args->nranks, first, count,
                                  scene->salt, &bad);
    return data_check_copy(at, args->dtype, data_op(args), args->nranks, promise.rank, first, count,
                           scene->salt, &bad);
}

static size_t check(const struct scene *scene, uint32_t rank, const uint8_t *host)
{
    const struct nccl_args *args = &scene->args;
    const struct coll *coll = coll_get(args->coll);
    size_t wrong = 0;
    if (coll->empty) return 0;
    for (uint32_t b = 0; b < coll_blocks(coll, BUF_OUT, args->nranks); b++)
        wrong += check_block(scene, rank, b, host);
    if (args->in_place || !coll_has_input(coll, args->root, rank)) return wrong;
    struct data_bad bad;
    return wrong + data_check_copy(host + scene->in_at, args->dtype, data_op(args), args->nranks,
                                   rank, 0, scene->in_bytes / dtype_bytes(args->dtype), scene->salt,
                                   &bad);
}

/* The call from its start to its end. Nobody leaves a barrier before all have come, so some come
 * late. */
static int operate(struct place *place, const struct scene *scene, struct nccl_call *call)
{
    struct run *run = place->run;
    bool barrier = coll_get(scene->args.coll)->empty;
    uint64_t before = __atomic_load_n(&run->entered, __ATOMIC_SEQ_CST) / run->nranks;
    pthread_barrier_wait(&run->barrier);
    if (barrier) {
        usleep(place->rank * 200);
        __atomic_add_fetch(&run->entered, 1, __ATOMIC_SEQ_CST);
    }
    if (nccl_call_start(call, place->stream, &place->err) || wait_done(place)) return -1;
    uint64_t entered = __atomic_load_n(&run->entered, __ATOMIC_SEQ_CST);
    if (barrier && entered < (before + 1) * run->nranks)
        return err_add(&place->err, ERR_FAILED, "left a barrier before all had come");
    return 0;
}

/* Fills, makes the call, checks. */
static int play(struct place *place, struct scene *scene, struct nccl_call *call, uint8_t *device)
{
    const struct gpu *gpu = place->gpu;
    uint8_t *host = mem_calloc(scene->bytes + 1, 1);
    fill(scene, place->rank, host);
    int bad = gpu_check(gpu, gpu->copy(device, host, scene->bytes), &place->err, "copying");
    if (!bad) bad = operate(place, scene, call);
    if (!bad) bad = gpu_check(gpu, gpu->copy(host, device, scene->bytes), &place->err, "copying");
    size_t wrong = bad ? 0 : check(scene, place->rank, host);
    const struct nccl_args *args = &scene->args;
    if (wrong) {
        err_add(&place->err, ERR_FAILED, "%s %s %s count %zu root %u %s %s%s: %zu wrong",
                coll_get(args->coll)->name, dtype_name(args->dtype), redop_name(args->op),
                args->block_count, args->root, args->in_place ? "in place" : "out of place",
                nccl_memory_name(scene->memory), scene->graph ? " graph" : "", wrong);
    }
    free(host);
    return bad || wrong ? -1 : 0;
}

/* A case in memory of its kind, which starts at an address that NCCL has no say in. */
static int run_scene(struct place *place, struct scene *scene)
{
    const struct gpu *gpu = place->gpu;
    struct nccl_buffer buffer = {0};
    void *memory = NULL;
    lay_out(scene, place->rank);
    size_t blocks = 2 * place->run->nranks; /* of any input and output */
    size_t most = blocks * (scene->args.block_count + 1) * dtype_bytes(scene->args.dtype) + ALIGN;
    int bad = scene->memory == NCCL_PLAIN
                  ? gpu_check(gpu, gpu->alloc(&memory, most), &place->err, "allocating")
                  : nccl_buffer_new(place->nccl, scene->memory, most, &buffer, &place->err);
    uint8_t *base = memory ? memory : buffer.base;
    if (bad) return -1;
    if (!base) return 0; /* a library without such memory */
    scene->args.in = base + scene->in_at;
    scene->args.out = base + scene->out_at;
    struct nccl_call call;
    nccl_call_make(place->nccl, &scene->args, &call);
    if (scene->graph) bad = nccl_call_capture(&call, place->stream, &place->err);
    uint32_t rounds = data_rounds(scene->args.dtype, data_op(&scene->args), place->run->nranks);
    for (uint32_t round = 0; !bad && round < rounds; round++) {
        scene->salt = 1000 * (uint64_t)scene->args.coll + round;
        bad = play(place, scene, &call, base);
    }
    nccl_call_release(&call);
    if (memory) gpu->free(memory);
    nccl_buffer_release(place->nccl, &buffer);
    if (place->rank == 0) place->run->done += !bad;
    return bad;
}

/* ---- all cases ------------------------------------------------------------------------------ */

/* Runs a case if NCCL has it. */
static int try_scene(struct place *place, struct scene scene)
{
    struct nccl_args *args = &scene.args;
    struct traffic *traffic = NULL;
    args->nranks = place->run->nranks;
    if (nccl_lacks(nccl_version(place->library), 9, args)) return 0;
    if (args->coll == COLL_ALLTOALLV) {
        double *shares = mem_calloc((size_t)args->nranks * args->nranks, sizeof *shares);
        traffic_imbalance(args->nranks, args->nranks > 1 ? args->nranks - 0.5 : 1, shares);
        traffic = traffic_deal(args->nranks, shares, (uint64_t)args->block_count * args->nranks);
        free(shares);
        args->traffic = traffic;
    }
    int bad = run_scene(place, &scene);
    free(traffic);
    return bad;
}

static const struct {
    enum dtype dtype;
    enum redop op;
} kinds[] = {
    {DT_FLOAT, OP_SUM},  {DT_BFLOAT16, OP_AVG}, {DT_HALF, OP_PROD},  {DT_F8E4M3, OP_SUM},
    {DT_F8E5M2, OP_MAX}, {DT_INT8, OP_AVG},     {DT_UINT8, OP_MIN},  {DT_INT32, OP_PROD},
    {DT_UINT32, OP_MAX}, {DT_INT64, OP_SUM},    {DT_UINT64, OP_MIN}, {DT_DOUBLE, OP_AVG},
};

static int sweep(struct place *place, enum coll_id coll)
{
    static const size_t counts[] = {0, 1, 7, 1024};
    uint32_t n = place->run->nranks;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds * 4 * 2; i++) {
        struct scene scene = {.args = {.coll = coll,
                                       .dtype = kinds[i / 8].dtype,
                                       .op = kinds[i / 8].op,
                                       .block_count = counts[i / 2 % 4],
                                       .in_place = i % 2,
                                       .root = coll_get(coll)->rooted ? (uint32_t)i / 2 % n : 0}};
        if (try_scene(place, scene)) return -1;
    }
    return 0;
}

static int ways(struct place *place, enum coll_id coll)
{
    for (int i = 0; i < NCCL_MEMORIES * 2 * 2; i++) {
        struct scene scene = {.args = {.coll = coll,
                                       .dtype = DT_FLOAT,
                                       .op = OP_SUM,
                                       .block_count = LARGE,
                                       .in_place = i % 2,
                                       .root = coll_get(coll)->rooted ? place->run->nranks - 1 : 0},
                              .memory = (enum nccl_memory)(i / 4),
                              .graph = i / 2 % 2};
        if (try_scene(place, scene)) return -1;
    }
    return 0;
}

static int all_cases(struct run *run, uint32_t rank, char *text)
{
    struct place place;
    int bad = place_open(&place, run, rank, (int)rank);
    for (int coll = 0; !bad && coll < COLL_COUNT; coll++)
        bad = sweep(&place, (enum coll_id)coll) || ways(&place, (enum coll_id)coll);
    int code = say(&place, text);
    place_close(&place);
    return code;
}

/* Every rank has its device; 9 collectives in one or two placements, 12 kinds, 4 counts, less what
 * NCCL lacks. */
static void all_ranks(const char *library, bool threads)
{
    use(library);
    for (uint32_t n = 1; n <= MOST_RANKS; n++) {
        struct run *run = run_new(n, all_cases);
        run_well(run, threads);
        cr_expect_geq(run->done, 600, "%u ranks: only %llu cases", n,
                      (unsigned long long)run->done);
        munmap(run, sizeof *run);
    }
}

Test(nccl, every_collective_between_threads)
{
    all_ranks(NCCL_STUB, true);
}

Test(nccl, every_collective_between_processes)
{
    all_ranks(NCCL_STUB, false);
}

Test(nccl, every_collective_of_a_library_without_the_later_functions)
{
    all_ranks(NCCL_STUB_OLD, false);
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

/* The sentence about a library that cannot be used holds `words`. */
static void refused(const char *library, const char *words)
{
    struct err err = ERR_INIT;
    setenv("COLLBENCH_NCCL", library, 1);
    cr_assert_null(nccl_load(&err), "%s", library);
    cr_assert_eq(err.code, ERR_USAGE);
    cr_expect(strstr(err.text, words), "%s", err.text);
    err_release(&err);
}

Test(nccl, what_is_no_library_has_a_reason)
{
    refused("/nonexistent/libnccl.so", "COLLBENCH_NCCL=/nonexistent/libnccl.so cannot be loaded");
    refused("libm.so.6", "has no function ncclGetVersion");
    setenv("NCCL_STUB_VERSION", "20907", 1);
    refused(NCCL_STUB, "is version 2.9.7, the oldest supported is 2.10.0");
    setenv("NCCL_STUB_VERSION", "2708", 1);
    refused(NCCL_STUB, "is version 2.7.8");
}

Test(nccl, a_stub_is_called_one)
{
    struct err err = ERR_INIT;
    use(NCCL_STUB);
    struct nccl_setup setup;
    struct nccl_wish wish = {.algo = "Ring", .nranks = 2, .ndevices = 2, .major = 9};
    cr_assert_eq(nccl_find(&setup, &wish, &err), 0, "%s", err.text);
    cr_expect(setup.stub);
    cr_expect(strstr(setup.library, "STUB of NCCL"), "%s", setup.library);
    cr_expect(strstr(setup.library, "2.28.9"), "%s", setup.library);
    cr_expect_str_eq(setup.env[0], "NCCL_ALGO=Ring");
    cr_expect_null(setup.env[1]);
    cr_expect_str_eq(setup.algo, "Ring");
    cr_expect_str_eq(setup.proto, "its own choice");
    cr_expect_str_eq(setup.ctas, "its own choice");
    nccl_setup_release(&setup);
}

Test(nccl, settings_of_the_environment_are_told)
{
    struct err err = ERR_INIT;
    use(NCCL_STUB);
    setenv("NCCL_PROTO", "LL", 1);
    setenv("NCCL_MAX_CTAS", "8", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    struct nccl_setup setup;
    struct nccl_wish wish = {.nranks = 2, .ndevices = 2, .major = 9};
    cr_assert_eq(nccl_find(&setup, &wish, &err), 0, "%s", err.text);
    cr_expect_str_eq(setup.proto, "LL");
    cr_expect_str_eq(setup.ctas, "its own choice to 8 (NCCL_MIN_CTAS, NCCL_MAX_CTAS)");
    cr_expect_str_eq(setup.nvls, "off (NCCL_NVLS_ENABLE=0)");
    nccl_setup_release(&setup);
}

Test(nccl, more_ranks_than_gpus_need_a_later_version)
{
    struct err err = ERR_INIT;
    use(NCCL_STUB);
    struct nccl_setup setup;
    struct nccl_wish wish = {.nranks = 2, .ndevices = 1};
    cr_assert_eq(nccl_find(&setup, &wish, &err), -1);
    cr_assert_eq(err.code, ERR_USAGE);
    cr_expect(strstr(err.text, "takes one rank per GPU: 2 ranks, 1 GPU (from 2.30.3 on"), "%s",
              err.text);
    err_release(&err);
    nccl_setup_release(&setup);
    wish.hostid_trick = true;
    cr_assert_eq(nccl_find(&setup, &wish, &err), 0, "%s", err.text);
    cr_expect(strstr(setup.notes, "times mean nothing"), "%s", setup.notes);
    nccl_setup_release(&setup);
    wish.hostid_trick = false;
    setenv("NCCL_STUB_VERSION", "23003", 1);
    cr_assert_eq(nccl_find(&setup, &wish, &err), 0, "%s", err.text);
    cr_expect(strstr(setup.notes, "ranks share GPUs"), "%s", setup.notes);
    nccl_setup_release(&setup);
}

/* All ranks on device 0. */
static int on_one_device(struct run *run, uint32_t rank, char *text)
{
    struct place place;
    if (place_open(&place, run, rank, 0) == 0) ways(&place, COLL_ALLREDUCE);
    int code = say(&place, text);
    place_close(&place);
    return code;
}

Test(nccl, two_ranks_on_a_gpu_fail_with_the_librarys_words)
{
    use(NCCL_STUB);
    struct run *run = run_new(2, on_one_device);
    run_processes(run);
    for (int r = 0; r < 2; r++) {
        cr_expect(strstr(run->text[r], "ncclCommInitRank fails: invalid usage (Duplicate GPU"),
                  "%s", run->text[r]);
    }
}

Test(nccl, two_ranks_on_a_gpu_can_pretend_to_be_hosts)
{
    use(NCCL_STUB);
    struct run *run = run_new(2, on_one_device);
    run->hostid_trick = true;
    run_well(run, false);
    cr_expect_eq(run->done, NCCL_MEMORIES * 2 * 2);
}

static int one_allreduce(struct run *run, uint32_t rank, char *text)
{
    struct place place;
    if (place_open(&place, run, rank, (int)rank) == 0) ways(&place, COLL_ALLREDUCE);
    int code = say(&place, text);
    place_close(&place);
    return code;
}

Test(nccl, a_function_that_fails_is_named)
{
    static const char *const symbols[] = {"ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce",
                                          "ncclCommRegister"};
    use(NCCL_STUB);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        setenv("NCCL_STUB_FAIL", symbols[i], 1);
        struct run *run = run_new(1, one_allreduce);
        run_processes(run);
        char *words = mem_printf("%s%s fails: unhandled system error (", symbols[i],
                                 i == 0 ? " of rank 0" : "");
        cr_expect(strstr(run->text[0], words), "%s: %s", symbols[i], run->text[0]);
        free(words);
        munmap(run, sizeof *run);
    }
}

/* Rank 0 starts what rank 1 never joins: rank 1 breaks and aborts. */
static int left_alone(struct run *run, uint32_t rank, char *text)
{
    struct place place;
    void *memory = NULL;
    struct nccl_call call = {0};
    if (place_open(&place, run, rank, (int)rank)) return say(&place, text);
    struct nccl_args args = {
        .coll = COLL_ALLREDUCE, .dtype = DT_FLOAT, .op = OP_SUM, .nranks = 2, .block_count = 4};
    place.gpu->alloc(&memory, 64);
    args.in = args.out = memory;
    if (rank == 1) args.dtype = (enum dtype)99; /* no type: an error before anything is sent */
    nccl_call_make(place.nccl, &args, &call);
    if (nccl_call_start(&call, place.stream, &place.err) == 0) wait_done(&place);
    nccl_call_release(&call);
    int code = say(&place, text);
    place_close(&place);
    return code;
}

Test(nccl, an_aborted_communicator_is_an_error_of_the_others)
{
    use(NCCL_STUB);
    struct run *run = run_new(2, left_alone);
    run_processes(run);
    cr_expect(strstr(run->text[0], "an operation of NCCL fails: remote process exited"), "%s",
              run->text[0]);
    cr_expect(strstr(run->text[1], "ncclAllReduce fails: invalid argument"), "%s", run->text[1]);
}

/* ---- what NCCL has -------------------------------------------------------------------------- */

Test(nccl, what_it_lacks_has_a_reason)
{
    int able = 0;
    for (int i = 0; i < COLL_COUNT * DT_COUNT * OP_COUNT * 2; i++) {
        struct nccl_args args = {.in_place = i % 2,
                                 .op = (enum redop)(i / 2 % OP_COUNT),
                                 .dtype = (enum dtype)(i / 2 / OP_COUNT % DT_COUNT),
                                 .coll = (enum coll_id)(i / 2 / OP_COUNT / DT_COUNT),
                                 .nranks = 3};
        able += !nccl_lacks(22809, 9, &args);
    }
    /* 3 collectives reduce 12 types with 4 operators, and 6 integers with the average; 4 move 12
     * types whatever the operator (5), all in 2 placements; 4 others in one. */
    cr_assert_eq(able, 3 * (12 * 4 + 6) * 2 + 4 * 12 * 5 * 2 + 4 * 12 * 5);
    struct nccl_args eighth = {.coll = COLL_ALLREDUCE, .dtype = DT_F8E4M3, .nranks = 2};
    cr_expect_null(nccl_lacks(0, 0, &eighth));
    cr_expect(strstr(nccl_lacks(22304, 9, &eighth), "from 2.24 on"));
    cr_expect(strstr(nccl_lacks(22809, 8, &eighth), "9.0 or more"));
    eighth.coll = COLL_ALLGATHER;
    cr_expect_null(nccl_lacks(22809, 8, &eighth));
    struct nccl_args average = {.coll = COLL_ALLREDUCE, .op = OP_AVG, .dtype = DT_FLOAT};
    for (uint32_t n = 1; n <= 8; n++) {
        average.nranks = n;
        cr_expect_eq(nccl_lacks(22809, 9, &average) == NULL, (n & (n - 1)) == 0, "%u", n);
    }
}
