/* SPDX-License-Identifier: Apache-2.0
 * A small program on the MPI library and on ranks under mpiexec, driven by test_mpi.py.
 *
 *     rankmpi CASE RANKS blocking|polled TIMEOUT-SECONDS [MPIEXEC]
 *
 * check: all collectives, types, operators and placements, the data compared bit by bit. work:
 * all-reduces for about 20 s, with a place for planted faults. print: each rank writes two lines.
 * error: a call that MPI refuses. early: rank 1 ends before it has opened MPI. Sentences go to
 * stderr; exit status 0, 1 or 2, and 77 when there is no mpiexec, as in the real programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/start.h"
#include "exec/launch.h"
#include "kernels/data.h"
#include "ref/mpi.h"

enum { ALIGN = 128, WORK_COUNT = 1 << 18, WORK_S = 20, LARGE_TRIED = 17, NO_MPIEXEC = 77 };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What the launcher passes on in the blob. */
struct job {
    char name[16];
    enum mpi_form form;
};

static struct job *job_of(struct rank *rk)
{
    return world_blob(rk->world);
}

/* ---- check ---------------------------------------------------------------------------------- */

/* One call to be checked. */
struct
try {
    struct rank *rk;
    struct mpi_args args;
    const struct coll *coll;
    enum redop data_op;
    size_t block_bytes, in_bytes, bytes;
    uint8_t *memory;
    uint64_t salt;
};

/* Lays the buffers out as the benchmark does, and gets memory for them. */
static int try_open(struct try *try, struct mpi *mpi, struct err *err)
{
    struct mpi_args *args = &try->args;
    uint32_t n = try->rk->nranks;
    try->coll = coll_get(args->coll);
    try->data_op = try->coll->reduces ? args->op : OP_COUNT;
    try->block_bytes = args->block_count * dtype_bytes(args->dtype);
    try->in_bytes = coll_blocks(try->coll, BUF_IN, n) * try->block_bytes;
    size_t out_bytes = coll_blocks(try->coll, BUF_OUT, n) * try->block_bytes;
    size_t in = 0, out = (try->in_bytes + ALIGN - 1) / ALIGN * ALIGN;
    try->bytes = out + out_bytes;
    for (int buf = BUF_IN; args->in_place && buf <= BUF_OUT; buf++) {
        enum buf on = (enum buf)buf;
        uint32_t block = 0;
        coll_alias(try->coll, try->rk->rank, &on, &block);
        *(buf == BUF_IN ? &in : &out) = block * try->block_bytes;
    }
    try->memory = mpi_memory(mpi, try->bytes + ALIGN, err);
    if (!try->memory) return -1;
    args->in = try->memory + in;
    args->out = try->memory + out;
    data_poison(try->memory, try->bytes, try->salt);
    if (coll_has_input(try->coll, args->root, try->rk->rank)) {
        data_fill(args->in, args->dtype, try->data_op, n, try->rk->rank, 0,
                  try->in_bytes / dtype_bytes(args->dtype), try->salt);
    }
    return 0;
}

/* Wrong elements of the result and of an input that was to stay. */
static size_t try_wrong(const struct try *try)
{
    const struct mpi_args *args = &try->args;
    uint32_t n = try->rk->nranks, rank = try->rk->rank;
    size_t wrong = 0, count = args->block_count;
    struct data_bad bad;
    for (uint32_t b = 0; b < coll_blocks(try->coll, BUF_OUT, n); b++) {
        struct promise promise = coll_after(try->coll, n, args->root, rank, b);
        const uint8_t *at = (const uint8_t *)mpi_result(args) + b * try->block_bytes;
        uint64_t first = promise.block * (uint64_t)count;
        wrong += promise.all ? data_check_reduced(at, args->dtype, try->data_op, n, first, count,
                                                  try->salt, &bad)
                             : data_check_copy(at, args->dtype, try->data_op, n, promise.rank,
                                               first, count, try->salt, &bad);
    }
    if (args->in_place || !coll_has_input(try->coll, args->root, rank)) return wrong;
    return wrong + data_check_copy(args->in, args->dtype, try->data_op, n, rank, 0,
                                   try->in_bytes / dtype_bytes(args->dtype), try->salt, &bad);
}

/* Makes the call, if MPI has it, and looks at what it did. */
static int try_call(struct try *try, struct mpi *mpi, uint64_t *calls, struct err *err)
{
    if (mpi_lacks(mpi, &try->args)) return 0;
    for (int form = 0; form < MPI_FORM_COUNT; form++) {
        try->salt++;
        if (try_open(try, mpi, err)) return -1;
        struct mpi_call call;
        mpi_call_make(mpi, &try->args, &call);
        rank_says(try->rk, "%s, %zu B", try->coll->name, try->bytes);
        mpi_call_run(&call, (enum mpi_form)form);
        size_t wrong = try_wrong(try);
        mpi_memory_free(mpi, try->memory);
        ++*calls;
        if (!wrong) continue;
        return err_add(err, ERR_FAILED, "%s %s %s %s, %zu elements, %s: %zu wrong",
                       mpi_form_name((enum mpi_form)form), try->coll->name,
                       dtype_name(try->args.dtype), redop_name(try->args.op), try->args.block_count,
                       try->args.in_place ? "in place" : "out of place", wrong);
    }
    return 0;
}

static int case_check(struct rank *rk, struct mpi *mpi, struct err *err)
{
    static const size_t counts[] = {0, 1, 3, LARGE_TRIED, 1023, 65537};
    enum { NCOUNTS = sizeof counts / sizeof *counts };
    uint64_t calls[2] = {0, 0}; /* with counts of 32 bits, of 64 bits */
    struct try try = {.rk = rk};
    for (int i = 0; i < COLL_COUNT * DT_COUNT * OP_COUNT * 2 * NCOUNTS; i++) {
        int rest = i;
        try.args = (struct mpi_args){.root = rk->nranks - 1};
        try.args.block_count = counts[rest % NCOUNTS];
        rest /= NCOUNTS;
        try.args.in_place = rest % 2;
        rest /= 2;
        try.args.op = (enum redop)(rest % OP_COUNT);
        rest /= OP_COUNT;
        try.args.dtype = (enum dtype)(rest % DT_COUNT);
        try.args.coll = (enum coll_id)(rest / DT_COUNT);
        for (int large = 0; large <= (try.args.block_count == LARGE_TRIED); large++) {
            try.args.large = large;
            if (try_call(&try, mpi, &calls[large], err)) return -1;
        }
    }
    char line[200];
    int length =
        snprintf(line, sizeof line, "OK: %llu calls, %llu with large counts, %s",
                 (unsigned long long)calls[0], (unsigned long long)calls[1], mpi_version(mpi));
    return rk->rank ? 0 : rank_send(rk, line, (size_t)length, err);
}

/* ---- the other cases ------------------------------------------------------------------------ */

static int case_work(struct rank *rk, struct mpi *mpi, struct err *err)
{
    size_t bytes = WORK_COUNT * sizeof(float);
    float *memory = mpi_memory(mpi, 2 * bytes, err);
    if (!memory) return -1;
    memset(memory, 0, 2 * bytes);
    struct mpi_args args = {.coll = COLL_ALLREDUCE,
                            .block_count = WORK_COUNT,
                            .in = memory,
                            .out = memory + WORK_COUNT};
    struct mpi_call call;
    mpi_call_make(mpi, &args, &call);
    rank_says(rk, "MPI_Allreduce, %zu B", bytes);
    for (double end = now_s() + WORK_S; now_s() < end;) {
        launch_fault(rk);
        mpi_call_run(&call, job_of(rk)->form);
    }
    mpi_memory_free(mpi, memory);
    return 0;
}

static int case_print(struct rank *rk, struct mpi *mpi, struct err *err)
{
    (void)mpi, (void)err;
    const char *tunables = getenv("GLIBC_TUNABLES");
    printf("rank %u of %u\n", rk->rank, rk->nranks);
    fprintf(stderr, "rank %u: %s\n", rk->rank, tunables ? tunables : "no tunables");
    fflush(stdout);
    return 0;
}

static int case_error(struct rank *rk, struct mpi *mpi, struct err *err)
{
    (void)err;
    float value = 0;
    struct mpi_args args = {.coll = COLL_BROADCAST,
                            .in_place = true,
                            .block_count = 1,
                            .root = rk->nranks,
                            .in = &value,
                            .out = &value};
    struct mpi_call call;
    mpi_call_make(mpi, &args, &call);
    mpi_call_run(&call, job_of(rk)->form);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(struct rank *rk, struct mpi *mpi, struct err *err);
} cases[] = {
    {"check", case_check}, {"work", case_work},   {"print", case_print},
    {"error", case_error}, {"early", case_print},
};

static int rank_main(struct rank *rk, struct err *err)
{
    const struct job *job = job_of(rk);
    if (!strcmp(job->name, "early") && rk->rank == 1) _exit(5);
    struct mpi *mpi = mpi_open(rk, err);
    if (!mpi) return -1;
    int rc = -1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(job->name, cases[i].name)) rc = cases[i].run(rk, mpi, err);
    }
    if (!rc) mpi_close(mpi); /* after an error others may wait in a call: no finalising */
    return rc;
}

/* ---- the launcher's side -------------------------------------------------------------------- */

static void on_message(void *ctx, uint32_t rank, const void *msg, size_t bytes)
{
    (void)ctx, (void)rank;
    printf("%.*s\n", (int)bytes, (const char *)msg);
}

static int launch(char **argv, uint32_t nranks, struct err *err)
{
    struct mpi_setup setup;
    if (mpi_find(&setup, argv[5], nranks, err)) return -1;
    struct world *world = world_create(&(struct world_spec){.nranks = nranks,
                                                            .blob_bytes = sizeof(struct job),
                                                            .extent_bytes = 4096,
                                                            .resident_bytes = 4096},
                                       err);
    int rc = -1;
    if (world) {
        struct job *job = world_blob(world);
        snprintf(job->name, sizeof job->name, "%s", argv[1]);
        job->form = strcmp(argv[3], "polled") ? MPI_FORM_BLOCKING : MPI_FORM_POLLED;
        rc = launch_run(&(struct launch_spec){.prog = "rankmpi",
                                              .argv = argv,
                                              .world = world,
                                              .timeout_s = atof(argv[4]),
                                              .on_message = on_message,
                                              .env = setup.env,
                                              .wrapper = setup.words,
                                              .rank_variable = setup.rank_variable},
                        err);
        world_close(world);
    }
    mpi_setup_release(&setup);
    return rc;
}

int main(int argc, char **argv)
{
    program_start();
    if (launch_is_child()) return launch_child(rank_main);
    if (argc < 5) return 2;
    struct err err = ERR_INIT;
    const char *foreign = launch_foreign();
    if (foreign) err_add(&err, ERR_USAGE, "one of several copies that %s has started", foreign);
    if (!foreign && !argv[5] && mpi_absent()) {
        fprintf(stderr, "rankmpi: %s\n", mpi_absent());
        return NO_MPIEXEC;
    }
    if (!foreign) launch(argv, (uint32_t)atoi(argv[2]), &err);
    int status = (int)err.code;
    err_print(&err, "rankmpi");
    err_release(&err);
    return program_end("rankmpi", status);
}
