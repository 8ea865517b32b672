/* SPDX-License-Identifier: Apache-2.0
 * A small program on the MPI library and on ranks under mpiexec, driven by test_mpi.py.
 *
 *     rankmpi CASE RANKS blocking|polled TIMEOUT-SECONDS [MPIEXEC]
 *
 * check: all collectives, types, operators, placements and several roots with all counts, or with
 * one count each where ranks share cores, the data compared bit by bit; and that nobody is through
 * a barrier before the last has come. work: all-reduces for about 20 s, with a place for planted
 * faults. print: each rank writes two lines. error: a call that MPI refuses. early: rank 1 ends
 * before it has opened MPI. aside: messages meet a rank that waits for other things. Sentences go
 * to stderr; exit status 0, 1 or 2, and 77 when there is no mpiexec, as in the real programs. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/start.h"
#include "exec/foreign.h"
#include "exec/launch.h"
#include "exec/transport.h"
#include "kernels/data.h"
#include "ref/mpi.h"

enum { ALIGN = 128, WORK_COUNT = 1 << 18, WORK_S = 20, LARGE_TRIED = 17, NO_MPIEXEC = 77 };
enum { LATE_US = 2000 };       /* of one rank, before a barrier */
enum { LONG_BYTES = 4 << 20 }; /* MPI agrees with the peer before it sends so much */
enum { ASIDE = 2 };            /* messages to who waits elsewhere */
enum { EXTENT_BYTES = 16 << 20 };

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
    _Atomic uint64_t arrivals; /* at barriers, of all ranks */
    _Atomic bool gone;         /* of case aside: the second message */
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
    struct traffic *traffic; /* alltoallv; else NULL */
    const struct coll *coll;
    enum redop data_op;
    size_t esize, in_count, out_count; /* elements of the own buffers */
    uint8_t *memory;
    uint64_t salt;
};

/* Blocks of different lengths, some of them empty; all ranks draw the same. */
static struct traffic *draw_traffic(uint32_t n, size_t count)
{
    double *shares = mem_calloc((size_t)n * n, sizeof *shares);
    struct rng rng;
    rng_init(&rng, count);
    shares[n - 1] = 1;
    for (size_t i = 0; i < (size_t)n * n; i++)
        shares[i] += (double)rng_below(&rng, 3);
    struct traffic *traffic = traffic_deal(n, shares, (uint64_t)count * n * n);
    free(shares);
    return traffic;
}

static size_t elements(const struct try *try, enum buf buf)
{
    if (try->traffic) return traffic_sum(try->traffic, buf, try->rk->rank);
    return coll_blocks(try->coll, buf, try->rk->nranks) * try->args.block_count;
}

/* Lays the buffers out as the benchmark does, and gets memory for them. */
static int try_open(struct try *try, struct mpi *mpi, struct err *err)
{
    struct mpi_args *args = &try->args;
    uint32_t n = try->rk->nranks;
    try->data_op = try->coll->reduces ? args->op : OP_COUNT;
    try->esize = dtype_bytes(args->dtype);
    try->in_count = elements(try, BUF_IN);
    try->out_count = elements(try, BUF_OUT);
    size_t in = 0, out = (try->in_count * try->esize + ALIGN - 1) / ALIGN * ALIGN;
    size_t bytes = out + try->out_count * try->esize;
    for (int buf = BUF_IN; args->in_place && buf <= BUF_OUT; buf++) {
        enum buf on = (enum buf)buf;
        uint32_t block = 0;
        coll_alias(try->coll, try->rk->rank, &on, &block);
        *(buf == BUF_IN ? &in : &out) = block * args->block_count * try->esize;
    }
    try->memory = mpi_memory(mpi, bytes + ALIGN, err);
    if (!try->memory) return -1;
    args->in = try->memory + in;
    args->out = try->memory + out;
    data_poison(try->memory, bytes, try->salt);
    if (coll_has_input(try->coll, args->root, try->rk->rank)) {
        data_fill(args->in, args->dtype, try->data_op, n, try->rk->rank, 0, try->in_count,
                  try->salt);
    }
    return 0;
}

/* Wrong elements of one block of the result. */
static size_t block_wrong(const struct try *try, uint32_t block)
{
    const struct mpi_args *args = &try->args;
    uint32_t n = try->rk->nranks, rank = try->rk->rank;
    struct promise promise = coll_after(try->coll, n, args->root, rank, block);
    if (promise.content == CONTENT_FREE) return 0;
    size_t count = args->block_count, base = block * count, first = promise.block * count;
    if (try->traffic) {
        size_t *own = traffic_offsets(try->traffic, BUF_OUT, rank, 1);
        size_t *theirs = traffic_offsets(try->traffic, BUF_IN, promise.rank, 1);
        base = own[block];
        count = own[block + 1] - base;
        first = theirs[promise.block];
        free(own);
        free(theirs);
    }
    const uint8_t *at = (const uint8_t *)mpi_result(args) + base * try->esize;
    struct data_bad bad;
    return promise.all
               ? data_check_reduced(at, args->dtype, try->data_op, n, first, count, try->salt, &bad)
               : data_check_copy(at, args->dtype, try->data_op, n, promise.rank, first, count,
                                 try->salt, &bad);
}

/* Wrong elements of the result and of an input that was to stay. */
static size_t try_wrong(const struct try *try)
{
    const struct mpi_args *args = &try->args;
    uint32_t n = try->rk->nranks, rank = try->rk->rank;
    size_t wrong = 0;
    struct data_bad bad;
    for (uint32_t b = 0; b < coll_blocks(try->coll, BUF_OUT, n); b++)
        wrong += block_wrong(try, b);
    if (args->in_place || !coll_has_input(try->coll, args->root, rank)) return wrong;
    return wrong + data_check_copy(args->in, args->dtype, try->data_op, n, rank, 0, try->in_count,
                                   try->salt, &bad);
}

/* Makes the call in each form that MPI has, and looks at what it did. */
static int try_call(struct try *try, struct mpi *mpi, uint64_t *calls, uint64_t *left_out,
                    struct err *err)
{
    for (int form = 0; form < MPI_FORM_COUNT; form++) {
        try->salt++;
        if (try_open(try, mpi, err)) return -1;
        struct mpi_call call;
        mpi_call_make(mpi, &try->args, &call);
        bool here = mpi_call_has(&call, (enum mpi_form)form);
        rank_says(try->rk, "%s, %zu elements", try->coll->name, try->args.block_count);
        if (here) mpi_call_run(&call, (enum mpi_form)form);
        size_t wrong = here ? try_wrong(try) : 0;
        mpi_call_release(&call);
        mpi_memory_free(mpi, try->memory);
        *calls += here;
        *left_out += !here;
        if (!wrong) continue;
        return err_add(err, ERR_FAILED, "%s %s %s %s, %zu elements, root %u, %s: %zu wrong",
                       mpi_form_name((enum mpi_form)form), try->coll->name,
                       dtype_name(try->args.dtype), redop_name(try->args.op), try->args.block_count,
                       try->args.root, try->args.in_place ? "in place" : "out of place", wrong);
    }
    return 0;
}

/* A barrier in each form and with each rank late: all must have come when one is through. */
static int try_barriers(struct rank *rk, struct mpi *mpi, struct err *err)
{
    struct job *job = job_of(rk);
    uint64_t due = 0;
    struct mpi_call call;
    mpi_call_make(mpi, &(struct mpi_args){.coll = COLL_BARRIER}, &call);
    for (uint32_t i = 0; i < MPI_FORM_COUNT * rk->nranks; i++) {
        enum mpi_form form = (enum mpi_form)(i % MPI_FORM_COUNT);
        if (i / MPI_FORM_COUNT == rk->rank) usleep(LATE_US);
        atomic_fetch_add(&job->arrivals, 1);
        mpi_call_run(&call, form);
        uint64_t come = atomic_load(&job->arrivals);
        due += rk->nranks;
        if (come < due) {
            return err_add(err, ERR_FAILED, "%s barrier: through when %llu of %llu had come",
                           mpi_form_name(form), (unsigned long long)come, (unsigned long long)due);
        }
    }
    mpi_call_release(&call);
    return 0;
}

static int case_check(struct rank *rk, struct mpi *mpi, struct err *err)
{
    static const size_t counts[] = {0, 1, 3, LARGE_TRIED, 1023, 65537};
    enum { NCOUNTS = sizeof counts / sizeof *counts };
    uint64_t calls[2] = {0, 0};    /* with counts of 32 bits, of 64 bits */
    uint64_t left_out[2] = {0, 0}; /* forms that the library lacks */
    uint64_t misordered = 0;       /* unsigned integers that it cannot compare */
    struct try try = {.rk = rk};
    int rc = try_barriers(rk, mpi, err);
    for (int i = 0; !rc && i < COLL_COUNT * DT_COUNT * OP_COUNT * 2 * NCOUNTS; i++) {
        int rest = i;
        if (rk->crowded && i % NCOUNTS != i / NCOUNTS % NCOUNTS) continue; /* slow: one count */
        try.args = (struct mpi_args){.root = (uint32_t)i % rk->nranks};
        try.args.block_count = counts[rest % NCOUNTS];
        rest /= NCOUNTS;
        try.args.in_place = rest % 2;
        rest /= 2;
        try.args.op = (enum redop)(rest % OP_COUNT);
        rest /= OP_COUNT;
        try.args.dtype = (enum dtype)(rest % DT_COUNT);
        try.args.coll = (enum coll_id)(rest / DT_COUNT);
        try.coll = coll_get(try.args.coll);
        bool again = !try.coll->reduces && try.args.op > 0; /* the operator does not matter */
        if (try.coll->empty || again || mpi_lacks(NULL, &try.args)) continue;
        if (try.coll->uneven) try.traffic = draw_traffic(rk->nranks, try.args.block_count);
        try.args.traffic = try.traffic;
        for (int large = 0; !rc && large <= (try.args.block_count == LARGE_TRIED); large++) {
            try.args.large = large;
            const char *lacks = mpi_lacks(mpi, &try.args);
            misordered += lacks && strstr(lacks, "unsigned") && !large;
            if (!lacks) rc = try_call(&try, mpi, &calls[large], &left_out[large], err);
        }
        free(try.traffic);
        try.traffic = NULL;
    }
    char line[200];
    int length = snprintf(line, sizeof line,
                          "OK: %llu calls, %llu left out; large counts: %llu, %llu; misordered: "
                          "%llu; %s",
                          (unsigned long long)calls[0], (unsigned long long)left_out[0],
                          (unsigned long long)calls[1], (unsigned long long)left_out[1],
                          (unsigned long long)misordered, mpi_version(mpi));
    return rc || rk->rank ? rc : rank_send(rk, line, (size_t)length, err);
}

/* ---- the other cases ------------------------------------------------------------------------ */

static int case_work(struct rank *rk, struct mpi *mpi, struct err *err)
{
    size_t bytes = WORK_COUNT * sizeof(float);
    float *memory = mpi_memory(mpi, 2 * bytes, err);
    if (!memory) return -1;
    memset(memory, 0, 2 * bytes);
    struct mpi_args args = {.coll = COLL_ALLREDUCE,
                            .dtype = DT_FLOAT,
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
    mpi_call_release(&call);
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
                            .dtype = DT_FLOAT,
                            .in_place = true,
                            .block_count = 1,
                            .root = rk->nranks,
                            .in = &value,
                            .out = &value};
    struct mpi_call call;
    mpi_call_make(mpi, &args, &call);
    mpi_call_run(&call, job_of(rk)->form);
    mpi_call_release(&call);
    return 0;
}

/* Sends a message that is only gone when the other rank has answered. */
static void send_long(struct rank *rk, const struct transport *transport, struct wire *wire,
                      void *state)
{
    memset(transport->room(wire, LONG_BYTES), 1, LONG_BYTES);
    transport->post(wire, LONG_BYTES, (struct pull_ref){0});
    for (struct waiter w = {0}; !transport->idle(state); waiter_pause(&w, rk))
        transport->poll(state);
}

/* What rank 0 sends is only gone when rank 1 has answered, who waits in a barrier and then for
 * something else. */
static int case_aside(struct rank *rk, struct mpi *mpi, struct err *err)
{
    (void)mpi;
    const struct transport *transport = transport_find("mpi", err);
    if (!transport || transport->join(rk, err)) return -1;
    _Atomic bool *gone = &job_of(rk)->gone;
    struct lwire lwire = {.peer = 1 - rk->rank, .send = rk->rank == 0};
    struct wire_spec spec = {.rank = rk,
                             .ngroup = 2,
                             .me = rk->rank,
                             .wires = &lwire,
                             .nwires = 1,
                             .depth = ASIDE,
                             .slot_bytes = LONG_BYTES};
    struct wire *wire;
    void *state;
    if (transport->open(&spec, &wire, NULL, &state, err)) return -1;
    rank_barrier(rk);
    if (lwire.send) send_long(rk, transport, wire, state);
    rank_barrier(rk);
    if (lwire.send) send_long(rk, transport, wire, state);
    if (lwire.send) atomic_store(gone, true);
    for (struct waiter w = {0}; !atomic_load(gone); waiter_pause(&w, rk)) {
    }
    for (int i = 0; !lwire.send && i < ASIDE; i++) {
        const char *got = NULL;
        for (struct waiter w = {0}; !got; waiter_pause(&w, rk)) {
            transport->poll(state);
            got = transport->peek(wire, LONG_BYTES, &(struct pull_ref){0});
        }
        if (got[LONG_BYTES - 1] != 1)
            return err_add(err, ERR_FAILED, "the message has %d at its end", got[LONG_BYTES - 1]);
        transport->release(wire);
    }
    rank_barrier(rk);
    transport->close(state);
    transport->leave(rk);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(struct rank *rk, struct mpi *mpi, struct err *err);
} cases[] = {
    {"check", case_check}, {"work", case_work},   {"print", case_print},
    {"error", case_error}, {"early", case_print}, {"aside", case_aside},
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
                                                            .extent_bytes = EXTENT_BYTES,
                                                            .resident_bytes = EXTENT_BYTES},
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
    struct foreign copy;
    if (!foreign_read(&copy, &err) && copy.name)
        err_add(&err, ERR_USAGE, "one of several copies that %s has started", copy.name);
    foreign_release(&copy);
    bool foreign = err.count > 0;
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
