/* SPDX-License-Identifier: Apache-2.0
 * A rank's side of MPI: opening the library, memory, and calls. See mpi.h. */
#include "ref/mpi.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/launch.h"
#include "ref/mpi_env.h"

enum {
    TEXT_BYTES = 8192, /* most that either library writes into a string: MPICH's version */
    TEST_MISSES = 64,  /* before the core is given up */
    SLOW_MISSES = 4096 /* before the launcher is told that this rank waits */
};

/* Functions other than the collectives; the names without "MPI_". */
struct functions {
    int (*init)(int *argc, char ***argv);
    int (*finalize)(void);
    int (*rank)(uintptr_t comm, int *rank);
    int (*size)(uintptr_t comm, int *size);
    int (*set_errhandler)(uintptr_t comm, uintptr_t handler);
    int (*error_text)(int code, char *text, int *length);
    int (*version_text)(char *text, int *length);
    int (*alloc)(intptr_t bytes, uintptr_t info, void *memory);
    int (*free)(void *memory);
    int (*test)(uintptr_t *request, int *done, void *status);
};

static const struct {
    const char *name;
    size_t offset; /* in struct functions */
} function_names[] = {
    {"MPI_Init", offsetof(struct functions, init)},
    {"MPI_Finalize", offsetof(struct functions, finalize)},
    {"MPI_Comm_rank", offsetof(struct functions, rank)},
    {"MPI_Comm_size", offsetof(struct functions, size)},
    {"MPI_Comm_set_errhandler", offsetof(struct functions, set_errhandler)},
    {"MPI_Error_string", offsetof(struct functions, error_text)},
    {"MPI_Get_library_version", offsetof(struct functions, version_text)},
    {"MPI_Alloc_mem", offsetof(struct functions, alloc)},
    {"MPI_Free_mem", offsetof(struct functions, free)},
    {"MPI_Test", offsetof(struct functions, test)},
};

enum { COUNT_INT, COUNT_LARGE, COUNT_KINDS };

struct mpi {
    struct rank *rk;
    const struct mpi_abi *abi;
    void *library;
    struct functions fn;
    struct mpi_calls calls[COUNT_KINDS][COLL_COUNT];
    uintptr_t world, info_null, dtype[DT_COUNT], op[OP_COUNT];
    void *in_place, *status_ignore;
    char *version;
    bool initialised;
};

/* ---- opening -------------------------------------------------------------------------------- */

/* Tries PREFIX/lib/NAME, PREFIX/lib64/NAME, then NAME where the loader looks. */
static void *open_library(const struct mpi_abi *abi, const char *prefix, struct err *err)
{
    static const char *const folders[] = {"/lib/", "/lib64/", NULL};
    char *why = NULL;
    for (size_t f = 0; f < 3; f++) {
        for (const char *const *name = abi->libraries; *name; name++) {
            char *path =
                mem_printf("%s%s%s", folders[f] ? prefix : "", folders[f] ? folders[f] : "", *name);
            bool there = !folders[f] || access(path, R_OK) == 0;
            void *library = there ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
            free(path);
            if (library) {
                free(why);
                return library;
            }
            if (!there || why) continue;
            const char *text = dlerror();
            why = mem_strdup(text ? text : "it cannot be opened");
        }
    }
    err_add(err, ERR_FAILED, "the library of %s cannot be opened: %s", abi->name, why);
    free(why);
    return NULL;
}

static uintptr_t handle(const struct mpi *mpi, const struct mpi_handle *row)
{
    return row->symbol ? (uintptr_t)dlsym(mpi->library, row->symbol) : row->value;
}

/* Looks everything up. Only what every MPI 3 has must be there. */
static int find_symbols(struct mpi *mpi, struct err *err)
{
    for (size_t i = 0; i < sizeof function_names / sizeof *function_names; i++) {
        void *symbol = dlsym(mpi->library, function_names[i].name);
        if (!symbol) {
            return err_add(err, ERR_FAILED, "the library of %s has no %s", mpi->abi->name,
                           function_names[i].name);
        }
        memcpy((char *)&mpi->fn + function_names[i].offset, &symbol, sizeof symbol);
    }
    for (int coll = 0; coll < COLL_COUNT; coll++) {
        if (!mpi_functions[coll][0]) continue; /* not compared */
        for (int kind = 0; kind < COUNT_KINDS; kind++) {
            void *found[2];
            for (int form = 0; form < 2; form++) {
                char *name = mem_printf("%s%s", mpi_functions[coll][form], kind ? "_c" : "");
                found[form] = dlsym(mpi->library, name);
                free(name);
            }
            mpi->calls[kind][coll].blocking.symbol = found[0];
            mpi->calls[kind][coll].started.symbol = found[1];
            if (kind == COUNT_INT && (!found[0] || !found[1])) {
                return err_add(err, ERR_FAILED, "the library of %s has no %s or %s", mpi->abi->name,
                               mpi_functions[coll][0], mpi_functions[coll][1]);
            }
        }
    }
    mpi->world = handle(mpi, &mpi->abi->world);
    mpi->info_null = handle(mpi, &mpi->abi->info_null);
    for (int i = 0; i < DT_COUNT; i++)
        mpi->dtype[i] = handle(mpi, &mpi->abi->dtype[i]);
    for (int i = 0; i < OP_COUNT; i++)
        mpi->op[i] = handle(mpi, &mpi->abi->op[i]);
    memcpy(&mpi->in_place, &mpi->abi->in_place, sizeof mpi->in_place);
    memcpy(&mpi->status_ignore, &mpi->abi->status_ignore, sizeof mpi->status_ignore);
    if (mpi->world) return 0;
    return err_add(err, ERR_FAILED, "the library of %s has no communicator of all ranks",
                   mpi->abi->name);
}

/* The first line, tabs as blanks. `wanted` is the version of mpiexec: library and launcher of two
 * installations would not find each other. */
static int check_version(struct mpi *mpi, const char *wanted, struct err *err)
{
    char *text = mem_calloc(TEXT_BYTES, 1);
    int length;
    mpi->fn.version_text(text, &length);
    text[strcspn(text, "\r\n")] = '\0';
    for (char *at = text; (at = strchr(at, '\t'));)
        *at = ' ';
    mpi->version = text;
    if (strstr(text, wanted)) return 0;
    return err_add(err, ERR_FAILED, "mpiexec is %s %s, but the library found is \"%s\"",
                   mpi->abi->name, wanted, text);
}

static int initialise(struct mpi *mpi, struct err *err)
{
    int rank, size, rc = mpi->fn.init(NULL, NULL);
    if (rc) return err_add(err, ERR_FAILED, "MPI_Init fails with code %d", rc);
    mpi->initialised = true;
    rank_tick(mpi->rk);
    uintptr_t errors_return = handle(mpi, &mpi->abi->errors_return);
    if (errors_return) mpi->fn.set_errhandler(mpi->world, errors_return);
    mpi->fn.rank(mpi->world, &rank);
    mpi->fn.size(mpi->world, &size);
    if ((uint32_t)rank == mpi->rk->rank && (uint32_t)size == mpi->rk->nranks) return 0;
    return err_add(err, ERR_FAILED, "MPI takes rank %u of %u for rank %d of %d", mpi->rk->rank,
                   mpi->rk->nranks, rank, size);
}

struct mpi *mpi_open(struct rank *rk, struct err *err)
{
    const char *chosen = getenv(MPI_ENV);
    unsigned family = MPI_FAMILIES;
    int at = 0;
    char *version = NULL;
    struct mpi *mpi = NULL;
    if (!chosen || sscanf(chosen, "%u %ms %n", &family, &version, &at) < 2 ||
        family >= MPI_FAMILIES) {
        err_add(err, ERR_FAILED, "this rank was not started by an mpiexec");
        goto out;
    }
    mpi = mem_calloc(1, sizeof *mpi);
    mpi->rk = rk;
    mpi->abi = mpi_abi_get((enum mpi_family)family);
    mpi->library = open_library(mpi->abi, chosen + at, err);
    if (mpi->library && !find_symbols(mpi, err) && !check_version(mpi, version, err) &&
        !initialise(mpi, err)) {
        goto out;
    }
    mpi_close(mpi);
    mpi = NULL;
out:
    free(version);
    return mpi;
}

void mpi_close(struct mpi *mpi)
{
    if (!mpi) return;
    if (mpi->initialised) {
        mpi->fn.finalize();
        rank_tick(mpi->rk);
    }
    free(mpi->version); /* the library stays: what it left running must not lose its code */
    free(mpi);
}

const char *mpi_version(const struct mpi *mpi)
{
    return mpi->version;
}

/* ---- memory --------------------------------------------------------------------------------- */

void *mpi_memory(struct mpi *mpi, size_t bytes, struct err *err)
{
    void *memory = NULL;
    if (bytes <= INTPTR_MAX && mpi->fn.alloc((intptr_t)bytes, mpi->info_null, &memory) == 0) {
        return memory;
    }
    err_add(err, ERR_FAILED, "MPI_Alloc_mem cannot give %zu B", bytes);
    return NULL;
}

void mpi_memory_free(struct mpi *mpi, void *memory)
{
    if (memory) mpi->fn.free(memory);
}

/* ---- calls ---------------------------------------------------------------------------------- */

const char *mpi_form_name(enum mpi_form form)
{
    static const char *const names[MPI_FORM_COUNT] = {"blocking", "polled"};
    return names[form];
}

static bool is_large(const struct mpi_args *args)
{
    return args->large || args->block_count > INT_MAX;
}

const char *mpi_lacks(const struct mpi *mpi, const struct mpi_args *args)
{
    /* Both libraries have the same types and operators. */
    const struct mpi_abi *abi = mpi ? mpi->abi : mpi_abi_get(MPI_MPICH);
    if (!abi->dtype[args->dtype].value && !abi->dtype[args->dtype].symbol) {
        return "MPI has no type of that kind (bfloat16 comes after MPI 4)";
    }
    if (coll_get(args->coll)->reduces && !abi->op[args->op].value && !abi->op[args->op].symbol) {
        return "MPI has no average among its operators";
    }
    if (args->coll > COLL_BROADCAST) return "its call in MPI is not known here";
    if (args->coll == COLL_BROADCAST && !args->in_place) {
        return "MPI broadcasts in place only: it has one buffer";
    }
    if (!mpi || !is_large(args)) return NULL;
    const struct mpi_calls *large = &mpi->calls[COUNT_LARGE][args->coll];
    if (args->block_count <= INTPTR_MAX && large->blocking.symbol && large->started.symbol) {
        return NULL;
    }
    return "this MPI library counts elements in 32 bits: at most 2147483647 per block";
}

void *mpi_result(const struct mpi_args *args)
{
    bool moved = args->coll == COLL_REDUCE_SCATTER && args->in_place;
    return moved ? args->in : args->out;
}

void mpi_call_make(struct mpi *mpi, const struct mpi_args *args, struct mpi_call *call)
{
    assert(!mpi_lacks(mpi, args));
    int kind = is_large(args) ? COUNT_LARGE : COUNT_INT;
    *call = (struct mpi_call){
        .mpi = mpi,
        .coll = args->coll,
        .calls = &mpi->calls[kind][args->coll],
        .send = args->in_place ? mpi->in_place : args->in,
        .recv = mpi_result(args),
        .count = (intptr_t)args->block_count,
        .dtype = mpi->dtype[args->dtype],
        .op = coll_get(args->coll)->reduces ? mpi->op[args->op] : 0,
        .root = (intptr_t)args->root,
    };
}

static int call_blocking(const struct mpi_call *c)
{
    uintptr_t world = c->mpi->world;
    switch (c->coll) {
    case COLL_ALLREDUCE:
    case COLL_REDUCE_SCATTER:
        return c->calls->blocking.reduce(c->send, c->recv, c->count, c->dtype, c->op, world);
    case COLL_ALLGATHER:
    case COLL_ALLTOALL:
        return c->calls->blocking.gather(c->send, c->count, c->dtype, c->recv, c->count, c->dtype,
                                         world);
    case COLL_BROADCAST:
        return c->calls->blocking.bcast(c->recv, c->count, c->dtype, c->root, world);
    default:
        break;
    }
    return 0;
}

static int call_start(const struct mpi_call *c, uintptr_t *request)
{
    uintptr_t world = c->mpi->world;
    switch (c->coll) {
    case COLL_ALLREDUCE:
    case COLL_REDUCE_SCATTER:
        return c->calls->started.reduce(c->send, c->recv, c->count, c->dtype, c->op, world,
                                        request);
    case COLL_ALLGATHER:
    case COLL_ALLTOALL:
        return c->calls->started.gather(c->send, c->count, c->dtype, c->recv, c->count, c->dtype,
                                        world, request);
    case COLL_BROADCAST:
        return c->calls->started.bcast(c->recv, c->count, c->dtype, c->root, world, request);
    default:
        break;
    }
    return 0;
}

/* Gives up the core, shows that this rank lives, and ends it when the run was aborted. */
static void pause_polling(struct rank *rk)
{
    _Atomic uint64_t *beat = &rk->status->beat;
    atomic_store_explicit(beat, atomic_load_explicit(beat, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (world_aborted(rk->world)) _exit(1);
    sched_yield();
}

static int call_polled(const struct mpi_call *call)
{
    struct mpi *mpi = call->mpi;
    struct rank *rk = mpi->rk;
    uintptr_t request = 0;
    uint32_t misses = 0;
    int done = 0, rc = call_start(call, &request);
    while (!rc) {
        rc = mpi->fn.test(&request, &done, mpi->status_ignore);
        if (done) break;
        if (misses == SLOW_MISSES) rank_waits(rk, 0, WAIT_LIBRARY, -1, 0);
        if (misses <= SLOW_MISSES) misses++;
        if (misses > TEST_MISSES || rk->crowded) pause_polling(rk);
    }
    if (misses > SLOW_MISSES) rank_goes_on(rk);
    return rc;
}

static _Noreturn void call_failed(struct mpi_call *call, enum mpi_form form, int code)
{
    struct err err = ERR_INIT;
    char *text = mem_calloc(TEXT_BYTES, 1);
    int length;
    call->mpi->fn.error_text(code, text, &length);
    text[strcspn(text, "\r\n")] = '\0';
    err_add(&err, ERR_FAILED, "%s fails: %s", mpi_functions[call->coll][form], text);
    free(text);
    rank_fail(call->mpi->rk, &err);
}

void mpi_call_run(struct mpi_call *call, enum mpi_form form)
{
    struct rank *rk = call->mpi->rk;
    int rc;
    if (form == MPI_FORM_POLLED) {
        rc = call_polled(call);
    } else { /* nobody can look out of a blocking call: six stores say where this rank is */
        rank_waits(rk, 0, WAIT_LIBRARY, -1, 0);
        rc = call_blocking(call);
        rank_goes_on(rk);
    }
    if (rc) call_failed(call, form, rc);
    rank_tick(rk);
}
