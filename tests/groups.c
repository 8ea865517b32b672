/* SPDX-License-Identifier: Apache-2.0
 * Many handles at once: every rank runs collectives on several groups that overlap in time, moving
 * all of them by exec_progress alone, in an order of its own. Rows, columns and the whole of a grid
 * of ranks, as tensor, data and world groups of a training job are.
 *
 *     ranks 0 1 2     rows {0,1,2} {3,4,5}, columns {0,3} {1,4} {2,5}, all {0..5}
 *           3 4 5
 *
 *     groups [--threads] [--transport NAME]       exit 0: all results right
 *
 * Wires that a transport does not have are staged. */
#include <stdio.h>
#include <string.h>

#include "algo/algo.h"
#include "base/rng.h"
#include "exec/exec.h"
#include "exec/launch.h"
#include "exec/mpi.h"
#include "kernels/data.h"

enum { ROWS = 2, COLUMNS = 3, RANKS = ROWS * COLUMNS, NHANDLES = 4, ROUNDS = 40, COUNT = 3001 };

struct job {
    _Atomic uint64_t wrong, operations;
};

struct task {
    const char *algo;
    enum wire_mode mode;
    uint32_t group[RANKS], n, me;
    uint32_t tag;
    struct sched *sched;
    struct linked *linked;
    struct exec *exec;
    float *in, *out;
    uint32_t round;
    bool running;
};

/* The four groups this rank is in. */
static void make_groups(uint32_t rank, struct task tasks[NHANDLES])
{
    static const char *const algos[NHANDLES] = {"ring", "twoshot", "oneshot", "tree"};
    static const enum wire_mode modes[NHANDLES] = {WIRE_STAGED, WIRE_PULL, WIRE_LL, WIRE_STAGED};
    for (uint32_t t = 0; t < NHANDLES; t++) {
        struct task *task = &tasks[t];
        *task = (struct task){.algo = algos[t], .mode = modes[t]};
        uint32_t row = rank / COLUMNS, column = rank % COLUMNS;
        task->tag = 1 + t * 16 + (t == 0 ? row : t == 1 ? column : 0);
        for (uint32_t r = 0; r < RANKS; r++) {
            bool in = t == 0 ? r / COLUMNS == row : t == 1 ? r % COLUMNS == column : true;
            if (in) {
                task->me = r == rank ? task->n : task->me;
                task->group[task->n++] = r;
            }
        }
    }
}

static int open_task(struct rank *rk, struct task *task, struct err *err)
{
    const struct algo *algo = algo_find(COLL_ALLREDUCE, task->algo, err);
    struct algo_args args = {.nranks = task->n, .channels = algo->channels, .parts = 1};
    task->sched = algo_build(algo, &args, false, err);
    const char *net = world_net(rk->world)->transport;
    const struct transport *transport = transport_find(*net ? net : "shm", err);
    struct link_opts opts = {transport->modes >> task->mode & 1 ? task->mode : WIRE_STAGED, false,
                             true};
    task->linked = task->sched ? link_sched(task->sched, &opts, err) : NULL;
    task->in = rank_alloc(rk, COUNT * sizeof(float), err);
    task->out = rank_alloc(rk, COUNT * sizeof(float), err);
    if (!task->linked || !task->in || !task->out) {
        return -1;
    }
    struct exec_spec spec = {.linked = task->linked,
                             .rank = rk,
                             .group = task->group,
                             .me = task->me,
                             .tag = task->tag,
                             .transport = transport,
                             .in = task->in,
                             .out = task->out,
                             .shared = true,
                             .dtype = DT_FLOAT,
                             .op = OP_SUM,
                             .block_count = COUNT,
                             .slice_bytes = 1024};
    task->exec = exec_open(&spec, err);
    return task->exec ? 0 : -1;
}

static void begin(struct task *task)
{
    data_poison(task->out, COUNT * sizeof(float), task->round);
    data_fill(task->in, DT_FLOAT, OP_SUM, task->n, task->me, 0, COUNT,
              task->round * 64 + task->tag);
    exec_start(task->exec);
    task->running = true;
}

static void end(struct rank *rk, struct job *job, struct task *task)
{
    struct data_bad bad;
    size_t wrong = data_check_reduced(task->out, DT_FLOAT, OP_SUM, task->n, 0, COUNT,
                                      task->round * 64 + task->tag, &bad);
    if (wrong > 0) {
        fprintf(stderr, "rank %u %s round %u: %zu wrong, index %zu expected %g got %g\n", rk->rank,
                task->algo, task->round, wrong, bad.index, bad.expected, bad.got);
    }
    job->wrong += wrong;
    job->operations++;
    task->running = false;
    task->round++;
    rank_tick(rk);
}

static int rank_main(struct rank *rk, struct err *err)
{
    struct job *job = world_blob(rk->world);
    struct task tasks[NHANDLES];
    make_groups(rk->rank, tasks);
    for (uint32_t t = 0; t < NHANDLES; t++) { /* all in the same order: opening is collective */
        if (open_task(rk, &tasks[t], err)) {
            return -1;
        }
    }
    struct rng rng;
    rng_init(&rng, rk->rank + 1);
    uint32_t left = NHANDLES * ROUNDS;
    for (struct waiter waiter = {0}; left > 0; waiter_pause(&waiter, rk)) {
        struct task *task = &tasks[rng_below(&rng, NHANDLES)];
        if (!task->running && task->round < ROUNDS) {
            begin(task);
        }
        if (task->running && exec_progress(task->exec)) {
            end(rk, job, task);
            left--;
            waiter = (struct waiter){0};
        }
    }
    rank_barrier(rk);
    for (uint32_t t = 0; t < NHANDLES; t++) {
        exec_close(tasks[t].exec);
        linked_free(tasks[t].linked);
        sched_free(tasks[t].sched);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (launch_is_child()) {
        return launch_child(rank_main);
    }
    struct err err = ERR_INIT;
    bool threads = false;
    const char *name = "shm";
    for (int i = 1; i < argc; i++) {
        threads |= strcmp(argv[i], "--threads") == 0;
        if (strcmp(argv[i], "--transport") == 0 && i + 1 < argc) name = argv[++i];
    }
    const struct transport *transport = transport_find(name, &err);
    struct world_spec spec = {.nranks = RANKS,
                              .net = transport ? transport_net(transport)
                                               : (struct net_spec){.connections = 0},
                              .blob_bytes = sizeof(struct job),
                              .extent_bytes = (size_t)64 << 20,
                              .resident_bytes = (size_t)8 << 20};
    struct mpi_setup mpi = {0};
    int bad = transport ? 0 : -1;
    if (!bad && transport->mpiexec) bad = mpi_find(&mpi, NULL, RANKS, &err);
    struct world *world = bad ? NULL : world_create(&spec, &err);
    bad = world ? 0 : -1;
    if (world) {
        struct launch_spec launch = {.prog = "groups",
                                     .argv = argv,
                                     .world = world,
                                     .threads = threads,
                                     .timeout_s = 60,
                                     .env = mpi.env,
                                     .wrapper = mpi.words,
                                     .rank_variable = mpi.rank_variable};
        bad = launch_run(&launch, &err);
        struct job *job = world_blob(world);
        printf("%lu operations, %lu wrong elements\n", (unsigned long)job->operations,
               (unsigned long)job->wrong);
        bad |= job->wrong > 0 || job->operations != RANKS * NHANDLES * ROUNDS;
        world_close(world);
    }
    mpi_setup_release(&mpi);
    err_print(&err, "groups");
    err_release(&err);
    return bad ? 1 : 0;
}
