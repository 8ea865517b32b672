/* SPDX-License-Identifier: Apache-2.0
 * The child's side of a run: attaching to the world, binding to cores, running one rank or all of
 * them as threads, reporting to the launcher, and planted faults for its tests. */
#include "exec/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/cgroup.h"
#include "exec/control.h"

enum { TIMER_SLACK_NS = 1000 }; /* so that a sleep of 50 us does not take 100 */

static const char fault_env[] = "COLLBENCH_FAULT";

/* ---- cores ---------------------------------------------------------------------------------- */

/* The cores in this thread's affinity mask, ascending; freed by the caller. */
static uint32_t *mask_cores(uint32_t *count)
{
    uint32_t *cores = NULL, cap = 0;
    *count = 0;
    for (int space = CPU_SETSIZE; space > 0; space *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)space);
        size_t bytes = CPU_ALLOC_SIZE((size_t)space);
        bool known = set && sched_getaffinity(0, bytes, set) == 0;
        bool small = set && !known && errno == EINVAL; /* the kernel knows more cores */
        for (int core = 0; known && core < space; core++) {
            if (!CPU_ISSET_S((size_t)core, bytes, set)) continue;
            MEM_GROW(cores, *count, cap);
            cores[(*count)++] = (uint32_t)core;
        }
        CPU_FREE(set);
        if (!small) break;
    }
    return cores;
}

static void bind_to_core(uint32_t core)
{
    cpu_set_t *set = CPU_ALLOC(core + 1);
    if (!set) return;
    size_t bytes = CPU_ALLOC_SIZE(core + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(core, bytes, set);
    sched_setaffinity(0, bytes, set); /* where it is not allowed the rank runs unbound */
    CPU_FREE(set);
}

uint32_t launch_cores(void)
{
    uint32_t count, quota = cgroup_cpus("");
    free(mask_cores(&count));
    if (quota < count) count = quota;
    return count ? count : 1;
}

/* ---- one rank or all ------------------------------------------------------------------------- */

enum fault_kind { FAULT_NONE, FAULT_KILL, FAULT_STOP, FAULT_STALL, FAULT_EXIT, FAULT_COUNT };
static const char *const fault_names[FAULT_COUNT] = {"", "kill", "stop", "stall", "exit"};

struct child {
    int (*rank_main)(struct rank *rk, struct err *err);
    struct world *world;
    bool threads;
    uint32_t rank; /* !threads */
    uint32_t *cores, ncores;
    struct {
        int kind; /* enum fault_kind */
        uint32_t rank;
        uint64_t at;
    } fault;
};

/* One rank of a child. */
struct seat {
    struct child *child;
    uint32_t rank;
    int rc;
    pthread_t thread;
};

bool launch_is_child(void)
{
    return getenv(RANK_ENV) && getenv(PARENT_ENV);
}

static int control_send(int fd, const struct control *head, const void *data, size_t bytes)
{
    struct iovec parts[2] = {
        {.iov_base = (void *)(uintptr_t)head, .iov_len = sizeof *head},
        {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes},
    };
    struct msghdr record = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent;
    do {
        sent = sendmsg(fd, &record, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

int rank_send(struct rank *rk, const void *msg, size_t bytes, struct err *err)
{
    struct control head = {.kind = CONTROL_MESSAGE, .rank = rk->rank};
    if (bytes > MESSAGE_BYTES) {
        return err_add(err, ERR_FAILED, "a message of %zu B is longer than %d B", bytes,
                       MESSAGE_BYTES);
    }
    if (control_send(rk->control_fd, &head, msg, bytes)) {
        return err_add(err, ERR_FAILED, "cannot send to the launcher: %s", strerror(errno));
    }
    return 0;
}

/* Hands every sentence of `err` to the launcher, or to stderr when there is none. */
static void report(uint32_t rank, struct err *err)
{
    struct control head = {.kind = CONTROL_ERROR, .rank = rank, .code = err->code};
    for (char *line = err->text, *end; line; line = end) {
        end = strchr(line, '\n');
        size_t bytes = end ? (size_t)(end++ - line) : strlen(line);
        if (bytes > MESSAGE_BYTES) bytes = MESSAGE_BYTES;
        if (control_send(CONTROL_FD, &head, line, bytes)) {
            fprintf(stderr, "rank %u: %.*s\n", rank, (int)bytes, line);
        }
    }
    err_release(err);
}

static void *seat_run(void *arg)
{
    struct seat *seat = arg;
    struct child *child = seat->child;
    struct err err = ERR_INIT;
    struct rank rk;
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    seat->rc = rank_init(&rk, child->world, seat->rank, &err);
    if (!seat->rc) {
        rk.control_fd = CONTROL_FD;
        if (child->fault.rank == rk.rank) {
            rk.fault = child->fault.kind;
            rk.fault_at = child->fault.at;
        }
        if (!rk.crowded && rk.nranks <= child->ncores) bind_to_core(child->cores[rk.rank]);
        seat->rc = child->rank_main(&rk, &err);
    }
    if (seat->rc && !err.count) err_add(&err, ERR_FAILED, "failed without saying why");
    report(seat->rank, &err);
    struct rank_status *status = world_status(child->world, seat->rank);
    atomic_store_explicit(&status->done, 1, memory_order_release);
    return NULL;
}

/* Runs all ranks as threads. The launcher reacts to the first one that reports an error: it aborts
 * the world, which ends this process from inside a wait. */
static int run_threads(struct child *child)
{
    uint32_t nranks = world_nranks(child->world), started = 0;
    struct seat *seats = mem_calloc(nranks, sizeof *seats);
    int rc = 0;
    for (; started < nranks; started++) {
        struct seat *seat = &seats[started];
        *seat = (struct seat){.child = child, .rank = started};
        int error = pthread_create(&seat->thread, NULL, seat_run, seat);
        if (error) {
            struct err err = ERR_INIT;
            err_add(&err, ERR_FAILED, "cannot start thread %u of %u: %s", started + 1, nranks,
                    strerror(error));
            report(started, &err);
            rc = -1;
            break;
        }
    }
    for (uint32_t r = 0; r < started; r++) {
        pthread_join(seats[r].thread, NULL);
        if (seats[r].rc) rc = -1;
    }
    free(seats);
    return rc;
}

/* Reads KIND:RANK:TICK. */
static int parse_fault(struct child *child, struct err *err)
{
    const char *text = getenv(fault_env);
    if (!text || !*text) return 0;
    size_t name = strcspn(text, ":");
    int end = 0;
    for (int kind = 1; kind < FAULT_COUNT; kind++) {
        if (strlen(fault_names[kind]) != name || strncmp(text, fault_names[kind], name)) continue;
        if (sscanf(text + name, ":%" SCNu32 ":%" SCNu64 "%n", &child->fault.rank, &child->fault.at,
                   &end) == 2 &&
            !text[name + (size_t)end]) {
            child->fault.kind = kind;
            return 0;
        }
    }
    return err_add(err, ERR_USAGE, "%s=%s: not of the form kill|stop|stall|exit:RANK:TICK",
                   fault_env, text);
}

void launch_fault(struct rank *rk)
{
    if (rk->fault == FAULT_NONE || rk->faults++ < rk->fault_at) return;
    switch (rk->fault) {
    case FAULT_KILL:
        kill(getpid(), SIGKILL);
        break;
    case FAULT_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case FAULT_EXIT:
        _exit(3);
    case FAULT_STALL:
        for (;;)
            pause();
    }
}

/* Fills *child from what the launcher left in the environment. */
static int child_open(struct child *child, struct err *err)
{
    const char *rank = getenv(RANK_ENV), *parent = getenv(PARENT_ENV);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT,
           SIG_IGN); /* a terminal sends these to all; what follows is the launcher's choice */
    signal(SIGHUP, SIG_IGN);
    if (getppid() != atoi(parent ? parent : "0")) _exit(1); /* it died before the line above */
    fcntl(WORLD_FD, F_SETFD, FD_CLOEXEC);
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    child->threads = rank && strcmp(rank, "all") == 0;
    child->rank = rank && !child->threads ? (uint32_t)strtoul(rank, NULL, 10) : 0;
    child->cores = mask_cores(&child->ncores);
    if (parse_fault(child, err)) return -1;
    child->world = world_attach(WORLD_FD, err);
    return child->world ? 0 : -1;
}

int launch_child(int (*rank_main)(struct rank *rk, struct err *err))
{
    struct child child = {.rank_main = rank_main};
    struct err err = ERR_INIT;
    int rc = child_open(&child, &err);
    if (rc) {
        report(child.rank, &err);
    } else if (child.threads) {
        rc = run_threads(&child);
    } else {
        struct seat seat = {.child = &child, .rank = child.rank};
        seat_run(&seat);
        rc = seat.rc;
    }
    free(child.cores);
    world_close(child.world);
    return rc ? 1 : 0;
}
