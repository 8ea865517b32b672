/* SPDX-License-Identifier: Apache-2.0
 * A rank's side of MPI as an opponent: memory and calls. See mpi.h. */
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
#include "ref/mpi_verbs.h"

enum {
    TEST_MISSES = 64,  /* before the core is given up */
    SLOW_MISSES = 4096 /* before the launcher is told that this rank waits */
};

/* Functions other than the collectives. */
struct functions {
    int (*alloc)(intptr_t bytes, uintptr_t info, void *memory);
    int (*free)(void *memory);
    int (*reduce_local)(const void *in, void *inout, intptr_t count, uintptr_t dtype, uintptr_t op);
};

static const struct mpi_name function_names[] = {
    {"MPI_Alloc_mem", offsetof(struct functions, alloc)},
    {"MPI_Free_mem", offsetof(struct functions, free)},
    {"MPI_Reduce_local", offsetof(struct functions, reduce_local)},
};

/* The functions of each form of a verb. */
struct verb_symbols {
    union mpi_function forms[MPI_FORM_COUNT][MPI_REQUESTS];
};

struct mpi {
    struct mpi_library *library;
    struct rank *rk;
    const struct mpi_abi *abi;
    struct functions fn;
    struct verb_symbols verbs[MPI_COUNT_KINDS][MPI_VERBS];
    uintptr_t world, info_null, dtype[DT_COUNT], bits8, bits16, op[OP_COUNT];
    void *in_place, *status_ignore;
    bool misordered; /* unsigned integers: see misorders */
    bool old_reduce; /* see reduces_badly */
};

/* ---- opening -------------------------------------------------------------------------------- */

/* The functions of one form of a verb; the first name that is missing, or NULL. */
static const char *find_form(const struct mpi *mpi, const struct mpi_form_of *form, unsigned kind,
                             union mpi_function functions[MPI_REQUESTS])
{
    const char *missing = NULL;
    for (int i = 0; i < MPI_REQUESTS && form->names[i]; i++) {
        char *name = mem_printf("%s%s", form->names[i], kind == MPI_COUNT_LARGE ? "_c" : "");
        functions[i].symbol = dlsym(mpi->library->library, name);
        free(name);
        if (!functions[i].symbol) missing = form->names[i];
    }
    return missing;
}

/* The functions of all collectives. Blocking ones with ints as counts must be there. */
static int find_verbs(struct mpi *mpi, struct err *err)
{
    for (unsigned at = 0; at < MPI_COUNT_KINDS * MPI_VERBS * MPI_FORM_COUNT; at++) {
        unsigned form = at % MPI_FORM_COUNT, verb = at / MPI_FORM_COUNT % MPI_VERBS;
        unsigned kind = at / MPI_FORM_COUNT / MPI_VERBS;
        const char *missing =
            find_form(mpi, &mpi_verbs[verb].forms[form], kind, mpi->verbs[kind][verb].forms[form]);
        if (missing && kind == MPI_COUNT_INT && form == MPI_FORM_BLOCKING) {
            return err_add(err, ERR_FAILED, "the library of %s has no %s", mpi->abi->name, missing);
        }
    }
    return 0;
}

/* Looks everything up. */
static int find_symbols(struct mpi *mpi, struct err *err)
{
    const struct mpi_library *library = mpi->library;
    size_t count = sizeof function_names / sizeof *function_names;
    if (mpi_library_find(library, function_names, count, &mpi->fn, err)) return -1;
    if (find_verbs(mpi, err)) return -1;
    mpi->world = library->world;
    mpi->info_null = mpi_library_handle(library, &mpi->abi->info_null);
    for (int i = 0; i < DT_COUNT; i++)
        mpi->dtype[i] = mpi_library_handle(library, &mpi->abi->dtype[i]);
    mpi->bits8 = mpi_library_handle(library, &mpi->abi->bits8);
    mpi->bits16 = mpi_library_handle(library, &mpi->abi->bits16);
    for (int i = 0; i < OP_COUNT; i++)
        mpi->op[i] = mpi_library_handle(library, &mpi->abi->op[i]);
    memcpy(&mpi->in_place, &mpi->abi->in_place, sizeof mpi->in_place);
    mpi->status_ignore = library->status_ignore;
    return 0;
}

/* Whether the library takes unsigned integers for signed ones in a maximum or minimum, as MPICH 4.0
 * (pmodels/mpich issue 6083) and Open MPI 4.1.2 to 4.1.4 (open-mpi/ompi issue 10525) do, the latter
 * in arrays. All bits set must be more than none. */
static bool misorders(const struct mpi *mpi)
{
    static const enum dtype types[] = {DT_UINT8, DT_UINT32, DT_UINT64};
    static const enum redop ops[] = {OP_MAX, OP_MIN};
    enum { BYTES = 1024, TRIES = 6 };
    bool wrong = false;
    for (int try = 0; try < TRIES; try++) {
        enum dtype dtype = types[try / 2];
        enum redop op = ops[try % 2];
        size_t width = dtype_bytes(dtype);
        uint64_t in[BYTES / sizeof(uint64_t)], inout[BYTES / sizeof(uint64_t)];
        uint8_t *a = (uint8_t *)in, *b = (uint8_t *)inout;
        for (size_t i = 0; i < BYTES; i++) {
            a[i] = i / width % 2 ? UINT8_MAX : 0;
            b[i] = (uint8_t)~a[i];
        }
        int rc =
            mpi->fn.reduce_local(a, b, (intptr_t)(BYTES / width), mpi->dtype[dtype], mpi->op[op]);
        for (size_t i = 0; !rc && i < BYTES; i++)
            wrong = wrong || b[i] != (op == OP_MAX ? UINT8_MAX : 0);
    }
    return wrong;
}

/* Whether MPI_Reduce may crash in place when the root is not rank 0: MPICH before 4.1.2
 * (pmodels/mpich issue 6540). MPI_Ireduce does not. */
static bool reduces_badly(const struct mpi *mpi)
{
    unsigned a, b, c = 0;
    bool known = sscanf(mpi->library->version, "MPICH Version: %u.%u.%u", &a, &b, &c) >= 2;
    return known && (a < 4 || (a == 4 && (b < 1 || (b == 1 && c < 2))));
}

struct mpi *mpi_open(struct rank *rk, struct err *err)
{
    struct mpi_library *library = mpi_library_open(rk, err);
    if (!library) return NULL;
    struct mpi *mpi = mem_calloc(1, sizeof *mpi);
    mpi->library = library;
    mpi->rk = rk;
    mpi->abi = library->abi;
    if (find_symbols(mpi, err)) {
        mpi_close(mpi);
        return NULL;
    }
    mpi->misordered = misorders(mpi);
    mpi->old_reduce = reduces_badly(mpi);
    return mpi;
}

void mpi_close(struct mpi *mpi)
{
    if (!mpi) return;
    mpi_library_close(mpi->library);
    free(mpi);
}

const char *mpi_version(const struct mpi *mpi)
{
    return mpi->library->version;
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
    uint64_t most = args->block_count;
    if (args->traffic) {
        uint64_t in = traffic_largest(args->traffic, BUF_IN);
        uint64_t out = traffic_largest(args->traffic, BUF_OUT);
        most = in > out ? in : out;
    }
    return args->large || most > INT_MAX;
}

static bool exists(const struct mpi_handle *handle)
{
    return handle->value || handle->symbol;
}

static bool is_unsigned(enum dtype dtype)
{
    return dtype == DT_UINT8 || dtype == DT_UINT32 || dtype == DT_UINT64;
}

/* Whether all functions of a form are there. */
static bool has_form(const struct mpi *mpi, unsigned kind, unsigned verb, enum mpi_form form)
{
    bool all = true;
    for (int i = 0; i < MPI_REQUESTS; i++) {
        bool wanted = mpi_verbs[verb].forms[form].names[i] != NULL;
        all = all && (!wanted || mpi->verbs[kind][verb].forms[form][i].symbol);
    }
    return all;
}

const char *mpi_lacks(const struct mpi *mpi, const struct mpi_args *args)
{
    /* Both libraries have the same types and operators. */
    const struct mpi_abi *abi = mpi ? mpi->abi : mpi_abi_get(MPI_MPICH);
    const struct coll *coll = coll_get(args->coll);
    if (coll->reduces && !exists(&abi->dtype[args->dtype])) {
        return "MPI has no type of that kind, so it cannot reduce it";
    }
    if (coll->reduces && !exists(&abi->op[args->op])) {
        return "MPI has no average among its operators";
    }
    bool ordered = args->op == OP_MAX || args->op == OP_MIN;
    if (coll->reduces && ordered && mpi && mpi->misordered && is_unsigned(args->dtype)) {
        return "this MPI library takes unsigned integers for signed ones in max and min";
    }
    if (args->coll == COLL_BROADCAST && !args->in_place) {
        return "MPI broadcasts in place only: it has one buffer";
    }
    if (args->in_place && !coll_in_place(coll)) {
        return coll->empty ? "there is no data that could lie in place"
                           : "in place, MPI wants what comes to be as long as what goes";
    }
    if (!mpi || !is_large(args)) return NULL;
    unsigned verb = mpi_verb_of(args->coll, args->in_place);
    if (args->block_count <= INTPTR_MAX &&
        has_form(mpi, MPI_COUNT_LARGE, verb, MPI_FORM_BLOCKING)) {
        return NULL;
    }
    return "this MPI library counts elements in 32 bits: at most 2147483647 per block";
}

void *mpi_result(const struct mpi_args *args)
{
    bool moved = args->coll == COLL_REDUCE_SCATTER && args->in_place;
    return moved ? args->in : args->out;
}

/* The differences of `offsets` (n + 1 of them), or themselves, as counts of that kind. */
static void *list_new(const size_t *offsets, uint32_t n, bool differences, unsigned kind)
{
    bool large = kind == MPI_COUNT_LARGE;
    void *list = mem_calloc(n, large ? sizeof(int64_t) : sizeof(int));
    for (uint32_t i = 0; i < n; i++) {
        size_t value = differences ? offsets[i + 1] - offsets[i] : offsets[i];
        if (large) {
            ((int64_t *)list)[i] = (int64_t)value;
        } else {
            ((int *)list)[i] = (int)value;
        }
    }
    return list;
}

static void fill_lists(struct mpi_call *call, const struct traffic *traffic)
{
    uint32_t n = traffic->nranks;
    for (int list = 0; list < MPI_LISTS; list++) {
        enum buf buf = list == MPI_SEND_COUNTS || list == MPI_SEND_PLACES ? BUF_IN : BUF_OUT;
        bool counts = list == MPI_SEND_COUNTS || list == MPI_RECV_COUNTS;
        size_t *offsets = traffic_offsets(traffic, buf, call->mpi->rk->rank, 1);
        call->lists[list] = list_new(offsets, n, counts, call->kind);
        free(offsets);
    }
}

/* The type that stands for `dtype`; if MPI lacks it, an integer of its width. */
static uintptr_t handle_of(const struct mpi *mpi, enum dtype dtype)
{
    if (mpi->dtype[dtype]) return mpi->dtype[dtype];
    return dtype_bytes(dtype) == sizeof(uint8_t) ? mpi->bits8 : mpi->bits16;
}

/* In place MPI wants MPI_IN_PLACE instead of one buffer, in collectives with a root on the root
 * alone: of scatter the buffer to receive in, of others the one to send. */
static void place_buffers(struct mpi_call *call, const struct mpi_args *args)
{
    const struct coll *coll = coll_get(args->coll);
    bool here = !coll->rooted || args->root == call->mpi->rk->rank;
    call->send = args->in;
    call->recv = mpi_result(args);
    if (!args->in_place || !here) return;
    if (args->coll == COLL_SCATTER) {
        call->recv = call->mpi->in_place;
    } else {
        call->send = call->mpi->in_place;
    }
}

void mpi_call_make(struct mpi *mpi, const struct mpi_args *args, struct mpi_call *call)
{
    assert(!mpi_lacks(mpi, args) && (args->coll == COLL_ALLTOALLV) == (args->traffic != NULL));
    uint32_t rank = mpi->rk->rank, n = mpi->rk->nranks;
    *call = (struct mpi_call){
        .mpi = mpi,
        .verb = mpi_verb_of(args->coll, args->in_place),
        .kind = is_large(args) ? MPI_COUNT_LARGE : MPI_COUNT_INT,
        .count = (intptr_t)args->block_count,
        .dtype = handle_of(mpi, args->dtype),
        .op = coll_get(args->coll)->reduces ? mpi->op[args->op] : 0,
        .comm = mpi->world,
        .root = (intptr_t)args->root,
        .to = (intptr_t)((rank + 1) % n),
        .from = (intptr_t)((rank + n - 1) % n),
        .status = mpi->status_ignore,
    };
    call->polled_only =
        mpi->old_reduce && args->coll == COLL_REDUCE && args->in_place && args->root;
    place_buffers(call, args);
    if (args->traffic) fill_lists(call, args->traffic);
}

void mpi_call_release(struct mpi_call *call)
{
    for (int list = 0; list < MPI_LISTS; list++)
        free(call->lists[list]);
    *call = (struct mpi_call){0};
}

bool mpi_call_has(const struct mpi_call *call, enum mpi_form form)
{
    if (call->polled_only && form != MPI_FORM_POLLED) return false;
    return has_form(call->mpi, call->kind, call->verb, form);
}

/* The call as its form has it: done, or started with a request for each of its functions. */
static int call_form(const struct mpi_call *call, enum mpi_form form, uintptr_t *requests)
{
    const struct verb_symbols *symbols = &call->mpi->verbs[call->kind][call->verb];
    return mpi_verbs[call->verb].forms[form].call(call, symbols->forms[form], requests);
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

/* Tests one request after the other; each test drives all of them on. */
static int call_polled(const struct mpi_call *call)
{
    const char *const *names = mpi_verbs[call->verb].forms[MPI_FORM_POLLED].names;
    struct mpi *mpi = call->mpi;
    struct rank *rk = mpi->rk;
    uintptr_t requests[MPI_REQUESTS] = {0};
    uint32_t misses = 0;
    int at = 0, rc = call_form(call, MPI_FORM_POLLED, requests);
    while (!rc && at < MPI_REQUESTS && names[at]) {
        int done = 0;
        rc = mpi->library->fn.test(&requests[at], &done, mpi->status_ignore);
        if (done) {
            at++;
            continue;
        }
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
    const char *const *names = mpi_verbs[call->verb].forms[form].names;
    char *what = mem_printf("%s%s%s", names[0], names[1] ? " or " : "", names[1] ? names[1] : "");
    mpi_library_error(call->mpi->library, code, what, &err);
    free(what);
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
        rc = call_form(call, MPI_FORM_BLOCKING, NULL);
        rank_goes_on(rk);
    }
    if (rc) call_failed(call, form, rc);
    rank_tick(rk);
}
