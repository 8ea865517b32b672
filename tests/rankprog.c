/* SPDX-License-Identifier: Apache-2.0
 * A small program on the launcher, driven by test_launch.c: every case is what one rank does.
 *
 *     rankprog CASE RANKS process|thread [TIMEOUT-SECONDS]
 *
 * Sentences go to stderr, exit status 0, 1 or 2 as in the real programs. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "exec/cgroup.h"
#include "exec/launch.h"
#include "sched/sched.h"

enum {
    MEET_ROUNDS = 3000,
    MESSAGES = 300,
    EXTENT_BYTES = 3 << 20, /* not a multiple of what extents are aligned to */
    BENCH_BATCH = 200,
    BENCH_BATCHES = 25,
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A cheap sequence of numbers, different for each seed. */
static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* Barriers are barriers: every rank writes a plain number before and reads all after. Two rows in
 * turn, so that a rank one barrier ahead writes elsewhere. Odd ranks dawdle at random. */
static int case_meet(struct rank *rk, struct err *err)
{
    uint32_t *rows = world_blob(rk->world);
    uint64_t seed = rk->rank;
    for (uint32_t round = 1; round <= MEET_ROUNDS; round++) {
        uint32_t *row = rows + (round % 2) * rk->nranks;
        uint32_t dice = draw(&seed) % 64;
        if (dice == 0) sched_yield();
        if (dice == 1 && rk->rank % 2) usleep(draw(&seed) % 100);
        for (volatile uint32_t i = 0; i < dice * 4; i++) {
        }
        row[rk->rank] = round;
        rank_barrier(rk);
        for (uint32_t r = 0; r < rk->nranks; r++) {
            if (row[r] != round) {
                return err_add(err, ERR_FAILED, "barrier %u: rank %u says %u", round, r, row[r]);
            }
        }
    }
    if (rk->barriers != MEET_ROUNDS) return err_add(err, ERR_FAILED, "barriers miscounted");
    return 0;
}

/* Messages of growing length, numbered; see on_message. */
static int case_messages(struct rank *rk, struct err *err)
{
    uint32_t message[1024];
    for (uint32_t i = 0; i < MESSAGES; i++) {
        size_t words = 2 + (i * 37 + rk->rank) % 1023;
        for (size_t w = 0; w < words; w++)
            message[w] = i + (uint32_t)w;
        message[0] = i;
        message[1] = rk->rank;
        if (rank_send(rk, message, words * sizeof *message, err)) return -1;
        rank_tick(rk);
    }
    struct err expected = ERR_INIT;
    if (!rank_send(rk, message, sizeof message + 1, &expected)) {
        return err_add(err, ERR_FAILED, "a message of 4097 B went through");
    }
    err_release(&expected);
    return 0;
}

/* Ranks see each other's extents; nothing has a name in the file system. */
static int case_extents(struct rank *rk, struct err *err)
{
    size_t half = EXTENT_BYTES / 2, mark = rank_mark(rk);
    uint8_t *mine = rank_alloc(rk, half, err);
    if (!mine) return -1;
    memset(mine, (int)rk->rank + 1, half);
    rank_barrier(rk);
    for (uint32_t r = 0; r < rk->nranks; r++) {
        const uint8_t *theirs = world_extent(rk->world, r, err);
        if (!theirs) return -1;
        for (size_t i = 0; i < half; i += 4093) {
            if (theirs[i] != (uint8_t)(r + 1)) {
                return err_add(err, ERR_FAILED, "byte %zu of rank %u is %u", i, r, theirs[i]);
            }
        }
    }
    rank_barrier(rk);
    struct err full = ERR_INIT;
    if (rank_alloc(rk, EXTENT_BYTES, &full)) return err_add(err, ERR_FAILED, "extent overdrawn");
    err_release(&full);
    rank_rewind(rk, mark);
    if (rank_alloc(rk, EXTENT_BYTES, err) != mine) return err_add(err, ERR_FAILED, "no rewind");
    char *maps = file_text("/proc/self/maps");
    bool named = !maps || strstr(maps, "/dev/shm") || !strstr(maps, "memfd:");
    free(maps);
    return named ? err_add(err, ERR_FAILED, "shared memory has a name") : 0;
}

/* Rank 1 (0 when alone) fails with a sentence of its own while the others wait for it. */
static int case_error(struct rank *rk, struct err *err)
{
    rank_says(rk, "allreduce ring, 1048576 B");
    rank_barrier(rk);
    if (rk->rank == (rk->nranks > 1)) return err_add(err, ERR_FAILED, "the coffee is cold");
    rank_barrier(rk);
    return 0;
}

/* Rank 1 fails, rank 0 computes for 60 s and looks at nothing. */
static int case_deaf(struct rank *rk, struct err *err)
{
    rank_barrier(rk);
    if (rk->rank == 1) return err_add(err, ERR_FAILED, "never mind");
    for (double end = now_s() + 60; rk->rank == 0 && now_s() < end;) {
    }
    rank_barrier(rk);
    return 0;
}

/* All ranks refuse with the same sentence. */
static int case_refuse(struct rank *rk, struct err *err)
{
    (void)rk;
    return err_add(err, ERR_USAGE, "too much coffee");
}

/* A round trip per operation between neighbours, with a place for a planted fault; when a rank
 * dies its right neighbour is seen waiting at step 3. Runs for about 20 s. */
static int case_work(struct rank *rk, struct err *err)
{
    (void)err;
    _Atomic uint32_t *turns = world_blob(rk->world);
    uint32_t left = (rk->rank + rk->nranks - 1) % rk->nranks;
    rank_says(rk, "allreduce ring, 1048576 B");
    for (double end = now_s() + 20; now_s() < end;) {
        launch_fault(rk);
        uint32_t turn = atomic_fetch_add(&turns[rk->rank], 1) + 1;
        struct waiter w = {0};
        for (; atomic_load(&turns[left]) < turn; waiter_pause(&w, rk)) {
            if (waiter_is_slow(&w)) rank_waits(rk, 3, STEP_RECV, (int32_t)left, 7);
        }
        if (waiter_is_slow(&w)) rank_goes_on(rk);
        rank_tick(rk);
        usleep(100);
    }
    return 0;
}

/* Ends the process under the launcher's feet with status 0. */
static int case_vanish(struct rank *rk, struct err *err)
{
    (void)err;
    rank_barrier(rk);
    if (rk->rank == 0) _exit(0);
    rank_barrier(rk);
    return 0;
}

/* Rank 0 returns, the others wait for it. */
static int case_leave(struct rank *rk, struct err *err)
{
    (void)err;
    if (rk->rank > 0) rank_barrier(rk);
    return 0;
}

/* Rank 0 has returned, rank 2 stalls, the others wait for the rank before: 2 is at fault. */
static int case_mixed(struct rank *rk, struct err *err)
{
    (void)err;
    if (rk->rank == 0) return 0;
    while (rk->rank == 2)
        pause();
    for (struct waiter w = {0}; !world_aborted(rk->world); waiter_pause(&w, rk)) {
        rank_waits(rk, 0, STEP_RECV, (int32_t)rk->rank - 1, 0);
    }
    return 0;
}

/* All wait in a circle, but rank 1 is stopped while it does: only its beat tells. */
static int case_halt(struct rank *rk, struct err *err)
{
    (void)err;
    uint32_t left = (rk->rank + rk->nranks - 1) % rk->nranks;
    rank_waits(rk, 0, STEP_RECV, (int32_t)left, 0);
    if (rk->rank == 1) kill(getpid(), SIGSTOP);
    for (struct waiter w = {0}; !world_aborted(rk->world); waiter_pause(&w, rk)) {
    }
    return 0;
}

/* Each waits for the next one's message: nobody is at fault. */
static int case_circle(struct rank *rk, struct err *err)
{
    (void)err;
    for (struct waiter w = {0}; !world_aborted(rk->world); waiter_pause(&w, rk)) {
        rank_waits(rk, rk->rank, STEP_SEND, (int32_t)((rk->rank + 1) % rk->nranks), 0);
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One way of a cache line between ranks 0 and 1, in us: strictly in turns, so that no message can
 * be under way together with another. `line` counts turns from *turn on. */
static double ping_pong(struct rank *rk, _Atomic uint64_t *line, uint64_t *turn)
{
    double start = now_s();
    for (int i = 0; i < BENCH_BATCH; i++, *turn += 2) {
        if (rk->rank > 1) continue;
        uint64_t mine = *turn + rk->rank;
        struct waiter w = {0};
        for (; atomic_load_explicit(&line[rk->rank * 16], memory_order_acquire) < mine;
             waiter_pause(&w, rk)) {
        }
        atomic_store_explicit(&line[(1 - rk->rank) * 16], mine + 1, memory_order_release);
    }
    return (now_s() - start) / BENCH_BATCH / 2 * 1e6;
}

/* Time of a barrier beside the time of a cache line, measured in turns by the same ranks, since
 * the latter changes with the placement of virtual cores. min, median, max of each, in us. */
static int case_bench(struct rank *rk, struct err *err)
{
    double us[2][BENCH_BATCHES], found[6];
    _Atomic uint64_t *line = world_blob(rk->world);
    uint64_t turn = 0;
    for (int b = 0; b < BENCH_BATCHES; b++) {
        rank_barrier(rk);
        us[1][b] = rk->nranks > 1 ? ping_pong(rk, line, &turn) : 0;
        for (int i = 0; i < BENCH_BATCH / 4; i++)
            rank_barrier(rk);
        double start = now_s();
        for (int i = 0; i < BENCH_BATCH; i++)
            rank_barrier(rk);
        us[0][b] = (now_s() - start) / BENCH_BATCH * 1e6;
    }
    for (int k = 0; k < 2; k++) {
        qsort(us[k], BENCH_BATCHES, sizeof **us, by_value);
        found[3 * k] = us[k][0];
        found[3 * k + 1] = us[k][BENCH_BATCHES / 2];
        found[3 * k + 2] = us[k][BENCH_BATCHES - 1];
    }
    return rk->rank ? 0 : rank_send(rk, found, sizeof found, err);
}

static const struct {
    const char *name;
    int (*rank_main)(struct rank *rk, struct err *err);
} cases[] = {
    {"meet", case_meet},     {"messages", case_messages}, {"extents", case_extents},
    {"error", case_error},   {"refuse", case_refuse},     {"work", case_work},
    {"vanish", case_vanish}, {"leave", case_leave},       {"circle", case_circle},
    {"bench", case_bench},   {"deaf", case_deaf},         {"mixed", case_mixed},
    {"halt", case_halt},     {"unborn", case_meet},
};

/* ---- the launcher's side -------------------------------------------------------------------- */

/* Checks what case_messages sent: in order, complete, each from the rank it names. */
struct inbox {
    bool bench;
    uint32_t nranks, *next;
    bool bad;
};

static void on_message(void *ctx, uint32_t rank, const void *msg, size_t bytes)
{
    struct inbox *inbox = ctx;
    if (inbox->bench) {
        const double *us = msg;
        printf("barrier: min %.3f median %.3f max %.3f us; cache line one way: min %.3f median "
               "%.3f max %.3f us\n",
               us[0], us[1], us[2], us[3], us[4], us[5]);
        return;
    }
    uint32_t words[1024], i = inbox->next[rank]++;
    size_t nwords = 2 + (i * 37 + rank) % 1023;
    memcpy(words, msg, bytes);
    bool good = rank < inbox->nranks && bytes == nwords * sizeof *words && words[0] == i &&
                words[1] == rank;
    for (size_t w = 2; good && w < nwords; w++)
        good = words[w] == i + (uint32_t)w;
    inbox->bad = inbox->bad || !good;
}

int main(int argc, char **argv)
{
    size_t which = 0, ncases = sizeof cases / sizeof *cases;
    while (argc >= 4 && which < ncases && strcmp(argv[1], cases[which].name))
        which++;
    if (argc < 4 || which == ncases) return 2;
    if (launch_is_child()) {
        if (!strcmp(argv[1], "unborn")) raise(SIGSTOP); /* before it is a rank */
        return launch_child(cases[which].rank_main);
    }

    struct err err = ERR_INIT;
    struct inbox inbox = {.bench = !strcmp(argv[1], "bench"), .nranks = (uint32_t)atoi(argv[2])};
    struct world *world =
        world_create(&(struct world_spec){.nranks = inbox.nranks,
                                          .blob_bytes = 4096 + 2 * inbox.nranks * sizeof(uint32_t),
                                          .extent_bytes = EXTENT_BYTES,
                                          .resident_bytes = EXTENT_BYTES},
                     &err);
    if (!world) {
        err_print(&err, "rankprog");
        return err.code == ERR_USAGE ? 2 : 1;
    }
    inbox.next = mem_calloc(inbox.nranks, sizeof *inbox.next);
    int rc = launch_run(&(struct launch_spec){.prog = "rankprog",
                                              .argv = argv,
                                              .world = world,
                                              .threads = !strcmp(argv[3], "thread"),
                                              .timeout_s = argc > 4 ? atof(argv[4]) : 60,
                                              .on_message = on_message,
                                              .ctx = &inbox},
                        &err);
    if (rc && !world_aborted(world)) err_add(&err, ERR_FAILED, "the ranks were not asked to end");
    for (uint32_t r = 0; r < inbox.nranks && !strcmp(argv[1], "messages"); r++) {
        if (inbox.next[r] != MESSAGES || inbox.bad) {
            err_add(&err, ERR_FAILED, "rank %u: %u messages%s", r, inbox.next[r],
                    inbox.bad ? ", some wrong" : "");
        }
    }
    int status = (int)err.code;
    err_print(&err, "rankprog");
    err_release(&err);
    free(inbox.next);
    world_close(world);
    return status;
}
