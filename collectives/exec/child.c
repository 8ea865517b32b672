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
#include "exec/sock.h"
#include "exec/transport.h"

enum { DELAY_NS = 500000000 };  /* of a planted delay */
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

static const char *const fault_names[FAULT_COUNT] = {
    [FAULT_KILL] = "kill", [FAULT_STOP] = "stop",   [FAULT_STALL] = "stall", [FAULT_EXIT] = "exit",
    [FAULT_DROP] = "drop", [FAULT_DELAY] = "delay", [FAULT_FLIP] = "flip",   [FAULT_SWAP] = "swap",
};

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

/* A planted fault that never came would look like one that did no harm. */
static void say_unspent(const struct rank *rk)
{
    if (!rk->fault) return;
    fprintf(stderr,
            "rank %u: %s=%s has not happened in %llu operations: the run is too short, or the rank "
            "has no such data or connection\n",
            rk->rank, fault_env, getenv(fault_env), (unsigned long long)rk->faults);
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
            sock_kind(rk.status->card.address, rk.status->card.kind, NET_NAME);
            rank_publish(&rk, &rk.status->card, sizeof rk.status->card);
            rank_barrier(&rk); /* now all know how to reach each other */
        }
        if (!seat->rc) seat->rc = child->rank_main(&rk, &err);
    }
    if (seat->rc && !err.count) err_add(&err, ERR_FAILED, "failed without saying why");
    if (!seat->rc) say_unspent(&rk);
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

static int refuse_fault(const char *text, struct err *err)
{
    char words[128] = "";
    size_t at = 0;
    for (int kind = 1; kind < FAULT_COUNT; kind++)
        at += (size_t)snprintf(words + at, sizeof words - at, "%s%s", at ? "|" : "",
                               fault_names[kind]);
    return err_add(err, ERR_USAGE, "%s=%s: not of the form %s:RANK:TICK", fault_env, text, words);
}

/* The transport that was joined; NULL: ranks here reach each other through memory alone. */
static const struct transport *joined(struct world *world)
{
    struct err none = ERR_INIT;
    const char *name = world_net(world)->transport;
    const struct transport *net = *name ? transport_find(name, &none) : NULL;
    err_release(&none);
    return net;
}

/* Whether the fault can happen in this world. */
static int check_fault(const struct child *child, const char *text, struct err *err)
{
    uint32_t nranks = world_nranks(child->world);
    if (child->fault.rank >= nranks)
        return err_add(err, ERR_USAGE, "%s=%s: there is no rank %u, ranks are 0 to %u", fault_env,
                       text, child->fault.rank, nranks - 1);
    const struct transport *net = joined(child->world);
    if (child->fault.kind != FAULT_DROP || (net && net->drop)) return 0;
    if (!net)
        return err_add(err, ERR_USAGE,
                       "%s=%s: the ranks reach each other through memory, there is no connection "
                       "to cut",
                       fault_env, text);
    return err_add(err, ERR_USAGE, "%s=%s: transport %s has no connection of its own to cut",
                   fault_env, text, net->name);
}

/* Reads KIND:RANK:TICK. */
static int parse_fault(struct child *child, struct err *err)
{
    const char *text = getenv(fault_env);
    if (!text || !*text) return 0;
    size_t name = strcspn(text, ":");
    int end = 0, kind = 1;
    while (kind < FAULT_COUNT &&
           (strlen(fault_names[kind]) != name || strncmp(text, fault_names[kind], name) != 0))
        kind++;
    bool good = kind < FAULT_COUNT &&
                sscanf(text + name, ":%" SCNu32 ":%" SCNu64 "%n", &child->fault.rank,
                       &child->fault.at, &end) == 2 &&
                !text[name + (size_t)end];
    if (!good) return refuse_fault(text, err);
    child->fault.kind = kind;
    return check_fault(child, text, err);
}

bool launch_spoils(const struct rank *rk)
{
    return rk->fault == FAULT_FLIP || rk->fault == FAULT_SWAP;
}

int launch_refuse_spoil(const struct rank *rk, const char *why, struct err *err)
{
    if (!launch_spoils(rk)) return 0;
    return err_add(err, ERR_USAGE, "%s=%s: nobody would find it, since %s", fault_env,
                   getenv(fault_env), why);
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
        if (joined(rk->world)->drop(rk)) rk->fault = FAULT_NONE;
        break;
    case FAULT_DELAY:
        rk->fault = FAULT_NONE;
        nanosleep(&(struct timespec){.tv_nsec = DELAY_NS}, NULL);
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
    if (strcmp(getenv(RANK_ENV), "$") == 0) { /* it hands on its environment to all hosts */
        unsetenv(RANK_ENV);
        unsetenv(PARENT_ENV);
        unsetenv(SOCKET_ENV);
        signal(SIGPIPE, SIG_IGN); /* a host may end before it: it says so, and that is enough */
    }
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
    child->world = world_attach(child->world_fd, err);
    return !child->world || parse_fault(child, err) ? -1 : 0;
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
