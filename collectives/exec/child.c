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
#include "exec/meet.h"
#include "exec/place.h"
#include "exec/transport.h"

enum { LOST_MS = 2000 };        /* who ended a connection is found out within that, or not */
enum { TIMER_SLACK_NS = 1000 }; /* so that a sleep of 50 us does not take 100 */

static const char fault_env[] = "COLLBENCH_FAULT";

/* ---- cores ---------------------------------------------------------------------------------- */

/* Processors in this thread's affinity mask. */
static uint32_t mask_count(void)
{
    uint32_t count = 0;
    for (size_t space = CPU_SETSIZE; count == 0; space *= 2) {
        cpu_set_t *set = CPU_ALLOC(space);
        size_t bytes = CPU_ALLOC_SIZE(space);
        bool known = set && sched_getaffinity(0, bytes, set) == 0;
        if (known) count = (uint32_t)CPU_COUNT_S(bytes, set);
        bool small = set && !known && errno == EINVAL; /* the kernel knows more of them */
        CPU_FREE(set);
        if (!small) break;
    }
    return count;
}

uint32_t launch_cores(void)
{
    uint32_t count = mask_count(), quota = cgroup_cpus("");
    if (quota < count) count = quota;
    return count ? count : 1;
}

/* ---- one rank or all ------------------------------------------------------------------------- */

enum fault_kind {
    FAULT_NONE,
    FAULT_KILL,
    FAULT_STOP,
    FAULT_STALL,
    FAULT_EXIT,
    FAULT_DROP,
    FAULT_COUNT
};
static const char *const fault_names[FAULT_COUNT] = {"", "kill", "stop", "stall", "exit", "drop"};

struct child {
    int (*rank_main)(struct rank *rk, struct err *err);
    struct world *world;
    bool threads;
    uint32_t rank; /* !threads */
    int world_fd, control_fd;
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
static void report(int fd, uint32_t rank, struct err *err)
{
    struct control head = {.kind = CONTROL_ERROR, .rank = rank, .code = err->code};
    for (char *line = err->text, *end; line; line = end) {
        end = strchr(line, '\n');
        size_t bytes = end ? (size_t)(end++ - line) : strlen(line);
        if (bytes > MESSAGE_BYTES) bytes = MESSAGE_BYTES;
        if (control_send(fd, &head, line, bytes)) {
            fprintf(stderr, "rank %u: %.*s\n", rank, (int)bytes, line);
        }
    }
    err_release(err);
}

void rank_fail(struct rank *rk, struct err *err)
{
    report(rk->control_fd, rk->rank, err);
    _exit(1);
}

void rank_lost(struct rank *rk, uint32_t peer, struct err *err)
{
    rank_waits(rk, 0, WAIT_CONNECTION, (int32_t)peer, 0);
    for (int ms = 0; ms < LOST_MS; ms++) {
        rank_beat(rk); /* ends here when the run is aborted */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    rank_fail(rk, err);
}

static void *seat_run(void *arg)
{
    struct seat *seat = arg;
    struct child *child = seat->child;
    struct err err = ERR_INIT;
    struct rank rk = {.control_fd = -1};
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    const struct transport *net = NULL;
    const char *name = world_net(child->world)->transport;
    seat->rc = rank_init(&rk, child->world, seat->rank, &err);
    if (!seat->rc && *name) seat->rc = (net = transport_find(name, &err)) ? 0 : -1;
    if (!seat->rc) {
        rk.control_fd = child->control_fd;
        if (child->fault.rank == rk.rank) {
            rk.fault = child->fault.kind;
            rk.fault_at = child->fault.at;
        }
        const char *cpus = rk.status->cpus;
        if (*cpus) place_bind(cpus); /* where it is not allowed the rank runs unbound */
        seat->rc = meet_open(&rk, &err);
        if (net && !seat->rc) seat->rc = net->join(&rk, &err);
        if (net && !seat->rc) {
            rank_publish(&rk, &rk.status->card, sizeof rk.status->card);
            rank_barrier(&rk); /* now all know how to reach each other */
        }
        if (!seat->rc) seat->rc = child->rank_main(&rk, &err);
    }
    if (seat->rc && !err.count) err_add(&err, ERR_FAILED, "failed without saying why");
    report(child->control_fd, seat->rank, &err); /* first: leaving may wait for others */
    if (net) net->leave(&rk);
    meet_close(&rk);
    struct rank_status *status = world_status(child->world, seat->rank);
    atomic_store_explicit(&status->done, 1, memory_order_release);
    return NULL;
}

/* Runs all ranks as threads. The launcher reacts to the first one that reports an error: it aborts
 * the world, which ends this process from inside a wait. */
static int run_threads(struct child *child)
{
    uint32_t host = world_own_host(child->world), first = world_first(child->world, host);
    uint32_t nranks = world_host_ranks(child->world, host), started = 0;
    struct seat *seats = mem_calloc(nranks, sizeof *seats);
    int rc = 0;
    for (; started < nranks; started++) {
        struct seat *seat = &seats[started];
        *seat = (struct seat){.child = child, .rank = first + started};
        int error = pthread_create(&seat->thread, NULL, seat_run, seat);
        if (error) {
            struct err err = ERR_INIT;
            err_add(&err, ERR_FAILED, "cannot start thread %u of %u: %s", started + 1, nranks,
                    strerror(error));
            report(child->control_fd, seat->rank, &err);
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
    return err_add(err, ERR_USAGE, "%s=%s: not of the form kill|stop|stall|exit|drop:RANK:TICK",
                   fault_env, text);
}

static void drop_connection(struct rank *rk)
{
    struct err none = ERR_INIT;
    const char *name = world_net(rk->world)->transport;
    const struct transport *net = *name ? transport_find(name, &none) : NULL;
    if (net && net->drop) net->drop(rk);
    err_release(&none);
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
    case FAULT_DROP:
        rk->fault = FAULT_NONE;
        drop_connection(rk);
    }
}

/* ---- meeting the launcher -------------------------------------------------------------------- */

/* The words of this process's command line, NULL-terminated; NULL when they cannot be read. */
static char **own_words(void)
{
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (!file) return NULL;
    char **words = NULL, *word = NULL;
    size_t count = 0, cap = 0, room = 0;
    while (getdelim(&word, &room, '\0', file) >= 0) {
        MEM_GROW(words, count, cap);
        words[count++] = mem_strdup(word);
    }
    free(word);
    fclose(file);
    MEM_GROW(words, count, cap);
    words[count] = NULL;
    return words;
}

/* Becomes the wrapper, which keeps what is set here: it ends with the launcher, and a terminal's
 * signals do not reach it. What it is to run is this process's command line. */
static _Noreturn void become_wrapper(void)
{
    char **words = own_words();
    setsid();
    if (words) execvp(words[0], words);
    fprintf(stderr, "cannot run %s: %s\n", words ? words[0] : "a command", strerror(errno));
    _exit(127);
}

void launch_wrap(void)
{
    const char *rank = getenv(RANK_ENV), *parent = getenv(PARENT_ENV);
    pid_t launcher = (pid_t)atoi(parent ? parent : "0");
    if (!rank || rank[0] != '$' || getppid() != launcher) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1); /* it died before the line above */
    become_wrapper();
}

/* A rank that a wrapper started: introduces itself to the launcher, and gets from it what a child
 * would have inherited. The wrapper's own pipes stay open behind stdout and stderr, for it may take
 * their end for the end of the rank. */
static int join_launcher(struct child *child, const char *variable, struct err *err)
{
    const char *number = getenv(variable), *name = getenv(SOCKET_ENV);
    if (!number || !name) {
        return err_add(err, ERR_FAILED, "the command that was to start the ranks has not set %s",
                       number ? SOCKET_ENV : variable);
    }
    child->rank = (uint32_t)strtoul(number, NULL, 10);
    child->control_fd = control_join(name);
    struct control hello = {.kind = CONTROL_HELLO, .rank = child->rank};
    int fds[HELLO_COUNT];
    if (child->control_fd < 0 || control_send(child->control_fd, &hello, NULL, 0) ||
        control_take(child->control_fd, fds)) {
        return err_add(err, ERR_FAILED, "rank %u cannot reach the launcher: %s", child->rank,
                       strerror(errno));
    }
    child->world_fd = fds[HELLO_WORLD];
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        int from = fds[fd == STDOUT_FILENO ? HELLO_STDOUT : HELLO_STDERR];
        fcntl(fd, F_DUPFD_CLOEXEC, CONTROL_FD + 1);
        dup2(from, fd);
        close(from);
    }
    return 0;
}

/* Fills *child from what the launcher left in the environment. */
static int child_open(struct child *child, struct err *err)
{
    const char *rank = getenv(RANK_ENV), *parent = getenv(PARENT_ENV);
    pid_t launcher = (pid_t)atoi(parent ? parent : "0");
    bool wrapped = rank && rank[0] == '$';
    launch_wrap();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!wrapped && getppid() != launcher) _exit(1); /* it died before the line above */
    /* a terminal sends these to all; what follows is the launcher's choice */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (wrapped) {
        if (join_launcher(child, rank + 1, err)) return -1;
    } else {
        fcntl(WORLD_FD, F_SETFD, FD_CLOEXEC);
        fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    }
    child->threads = rank && strcmp(rank, "all") == 0;
    if (rank && !child->threads && !wrapped) child->rank = (uint32_t)strtoul(rank, NULL, 10);
    if (parse_fault(child, err)) return -1;
    child->world = world_attach(child->world_fd, err);
    return child->world ? 0 : -1;
}

int launch_child(int (*rank_main)(struct rank *rk, struct err *err))
{
    struct child child = {.rank_main = rank_main, .world_fd = WORLD_FD, .control_fd = CONTROL_FD};
    struct err err = ERR_INIT;
    int rc = child_open(&child, &err);
    if (rc) {
        report(child.control_fd, child.rank, &err);
    } else if (child.threads) {
        rc = run_threads(&child);
    } else {
        struct seat seat = {.child = &child, .rank = child.rank};
        seat_run(&seat);
        rc = seat.rc;
    }
    world_close(child.world);
    return rc ? 1 : 0;
}
