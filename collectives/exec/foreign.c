/* SPDX-License-Identifier: Apache-2.0
 * Copies that a launcher of parallel programs has started: who they are, and how they meet. On one
 * host they meet at an abstract socket that the launcher's process id names; over several, where
 * MASTER_ADDR and MASTER_PORT say, or the first host of Slurm's list. See foreign.h. */
#include "exec/foreign.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "exec/agent.h"
#include "exec/sock.h"

enum { HELLO_S = 5, PATIENCE_MS = 5000, LOOK_MS = 20, SLURM_PORTS = 20000, SLURM_FIRST = 20000 };

/* What each launcher leaves in the environment of a copy. A copy that is alone (a shell that srun
 * started, and what runs in it) does no harm. */
static const struct launcher {
    const char *name;
    const char *rank, *size, *local, *local_size; /* NULL: it does not tell */
} launchers[] = {
    {"mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"srun of Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL},
    {"mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"a launcher that speaks PMIx", "PMIX_RANK", NULL, NULL, NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
};

/* What ranks that are started from here must not see, by how the names begin: an MPI library would
 * take it for its own, and Open MPI's mpirun starts nothing below another one. */
static const char *const hidden[] = {"PMI_",          "PMIX_RANK",          "PMIX_NAMESPACE",
                                     "PMIX_ID",       "PMIX_SERVER_",       "PMIX_DSTORE_",
                                     "OMPI_MCA_ess",  "OMPI_MCA_orte_",     "OMPI_COMM_WORLD_",
                                     "OMPI_NUM_APP_", "OMPI_UNIVERSE_SIZE", NULL};

/* ---- the environment ---- */

static bool read_number(const char *name, uint32_t *value)
{
    const char *text = name ? getenv(name) : NULL;
    char *end;
    unsigned long number = text ? strtoul(text, &end, 10) : 0;
    if (!text || end == text || *end || number > UINT32_MAX) return false;
    *value = (uint32_t)number;
    return true;
}

/* The first name of a list such as "n[01-04,07],m3"; freed by the caller. */
static char *first_node(const char *list)
{
    size_t head = strcspn(list, "[,");
    if (list[head] != '[') return mem_printf("%.*s", (int)head, list);
    const char *number = list + head + 1;
    return mem_printf("%.*s%.*s", (int)head, list, (int)strcspn(number, "-,]"), number);
}

/* Torchrun's variables are also set by hand. */
static int check_number(const char *name, uint32_t least, uint32_t most, struct err *err)
{
    uint32_t value;
    const char *text = getenv(name);
    if (!text || (read_number(name, &value) && value >= least && value <= most)) return 0;
    return err_add(err, ERR_USAGE, "%s=%s: not a whole number from %u to %u", name, text, least,
                   most);
}

/* -1: they say something that cannot be. */
static int check_torchrun(struct err *err)
{
    if (!getenv("RANK") || !getenv("WORLD_SIZE") || strcmp(getenv("WORLD_SIZE"), "1") == 0)
        return 0;
    int bad = check_number("WORLD_SIZE", 1, INT32_MAX, err) |
              check_number("RANK", 0, INT32_MAX - 1, err) |
              check_number("LOCAL_RANK", 0, INT32_MAX - 1, err);
    if (getenv("MASTER_ADDR") && !getenv("MASTER_PORT"))
        bad |=
            err_add(err, ERR_USAGE, "MASTER_ADDR is set, MASTER_PORT is not: rank 0 listens there");
    if (getenv("MASTER_ADDR")) bad |= check_number("MASTER_PORT", 1, UINT16_MAX - 1, err);
    return bad ? -1 : 0;
}

/* Where copy 0 listens, if anybody says so. */
static void find_meeting(struct foreign *foreign)
{
    uint32_t port, job;
    const char *nodes = getenv("SLURM_STEP_NODELIST");
    if (getenv("MASTER_ADDR") && read_number("MASTER_PORT", &port) && port < UINT16_MAX) {
        const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE"); /* torchrun itself has it */
        foreign->address = getenv("MASTER_ADDR");
        foreign->port = (uint16_t)(port + (store && strcmp(store, "True") == 0));
    } else if (nodes && strpbrk(nodes, "[,") && read_number("SLURM_JOB_ID", &job)) {
        foreign->address = foreign->owned = first_node(nodes);
        foreign->port = (uint16_t)(SLURM_FIRST + job % SLURM_PORTS);
    }
}

/* Which launcher it was. */
static const struct launcher *find_launcher(struct foreign *foreign)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *at = &launchers[i];
        uint32_t size = 2;
        if (!read_number(at->rank, &foreign->rank)) continue;
        if (at->size && (!read_number(at->size, &size) || size < 2)) continue;
        foreign->name = at->name;
        foreign->size = size;
        return at;
    }
    return NULL;
}

int foreign_read(struct foreign *foreign, struct err *err)
{
    *foreign = (struct foreign){.name = NULL};
    if (launch_is_child()) return 0;
    if (check_torchrun(err)) return -1;
    const struct launcher *launcher = find_launcher(foreign);
    if (!launcher) return 0;
    uint32_t here;
    foreign->placed = read_number(launcher->local, &foreign->local);
    find_meeting(foreign);
    if (!launcher->size)
        return err_add(err, ERR_USAGE,
                       "this process was started by %s, which does not say how many copies there "
                       "are: run \"collbench OPERATION --ranks N\" once, or set RANK, WORLD_SIZE, "
                       "LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each",
                       foreign->name);
    if (foreign->rank >= foreign->size)
        return err_add(err, ERR_USAGE, "%s says %s=%u, but %s=%u: ranks go from 0 to %u",
                       foreign->name, launcher->rank, foreign->rank, launcher->size, foreign->size,
                       foreign->size - 1);
    if (foreign->placed && foreign->local > foreign->rank)
        return err_add(
            err, ERR_USAGE, "%s says %s=%u and %s=%u: ranks of a host must be neighbours, in order",
            foreign->name, launcher->rank, foreign->rank, launcher->local, foreign->local);
    bool several = read_number(launcher->local_size, &here) && here < foreign->size;
    if (several && !foreign->address)
        return err_add(err, ERR_USAGE,
                       "%s has started %u copies, %u of them on this host: set MASTER_ADDR (an "
                       "address of rank 0's host) and MASTER_PORT (a free port there) for all, or "
                       "run \"collbench OPERATION --hosts A:N,B:N\" once",
                       foreign->name, foreign->size, here);
    if (!foreign->placed && !foreign->address) foreign->local = foreign->rank;
    return 0;
}

void foreign_release(struct foreign *foreign)
{
    free(foreign->owned);
    foreign->owned = NULL;
}

/* ---- meeting ---- */

/* What the copies of one job have in common; whoever wants more sets COLLBENCH_TOKEN. */
void foreign_token(const struct foreign *foreign, uint8_t token[TOKEN_BYTES])
{
    static const char *const names[] = {"COLLBENCH_TOKEN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"};
    char *text = mem_printf("%u %s %u %u", foreign->size, foreign->address ? foreign->address : "",
                            foreign->port, (unsigned)geteuid());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        char *longer = mem_printf("%s|%s", text, value ? value : "");
        free(text);
        text = longer;
    }
    uint64_t word = rng_hash(text, strlen(text));
    for (int i = 0; i < TOKEN_BYTES; i += (int)sizeof word) {
        memcpy(token + i, &word, sizeof word);
        word = rng_hash(token, (size_t)i + sizeof word);
    }
    free(text);
}

/* A hash of the words behind the program, which all copies must have alike. */
static uint64_t hash_words(char **argv)
{
    uint64_t hash = 0;
    for (char **word = argv + 1; *word; word++)
        hash = rng_mix(hash ^ rng_hash(*word, strlen(*word)));
    return hash;
}

/* The name of the copies' socket on one host: no file, and others of the launcher's children have
 * another one. */
static socklen_t local_name(const struct foreign *foreign, struct sockaddr_un *name)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "collbench-%u-%d-%u",
                          (unsigned)geteuid(), (int)getppid(), foreign->size);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int listen_here(const struct foreign *foreign, struct err *err)
{
    struct sockaddr_un name;
    socklen_t bytes = local_name(foreign, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, bytes) && !listen(fd, (int)foreign->size))
        return fd;
    err_add(err, ERR_FAILED, "cannot open the socket at which the copies of %s meet: %s",
            foreign->name, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int connect_here(const struct foreign *foreign, double timeout_s, struct err *err)
{
    struct sockaddr_un name;
    socklen_t bytes = local_name(foreign, &name);
    for (double end_s = now_s() + timeout_s;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&name, bytes) == 0) return fd;
        if (fd >= 0) close(fd);
        if (now_s() >= end_s) break;
        poll(NULL, 0, LOOK_MS);
    }
    err_add(err, ERR_FAILED, "rank 0 did not open the socket at which the copies of %s meet",
            foreign->name);
    return -1;
}

/* Whether the other end of a local connection is this user's. */
static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

static void hide(void)
{
    for (char **at = environ; *at;) {
        const char *const *head = hidden;
        while (*head && strncmp(*at, *head, strlen(*head)) != 0)
            head++;
        char *name = mem_printf("%.*s", (int)strcspn(*at, "="), *at);
        at = *head && unsetenv(name) == 0 ? environ : at + 1; /* it moves the rest */
        free(name);
    }
}

/* Takes one copy, if one waits. */
static int take_copy(const struct foreign *foreign, struct hosts *hosts, struct door *door,
                     uint64_t words, struct err *err)
{
    struct sock_hello hello;
    int fd = door_answer(door, hosts_token(hosts), &hello);
    if (fd < 0) return 0;
    bool known = hello.purpose == SOCK_AGENT && hello.rank > 0 && hello.rank < foreign->size &&
                 (foreign->address || is_ours(fd));
    if (!known) {
        close(fd);
        return 0;
    }
    return hosts_add_copy(hosts, fd, hello.rank, hello.number, words, err);
}

struct hosts *foreign_gather(const struct foreign *foreign, char **argv, double timeout_s,
                             struct err *err)
{
    uint8_t token[TOKEN_BYTES];
    char where[NET_NAME];
    foreign_token(foreign, token);
    int listener = foreign->address ? sock_listen(foreign->address, foreign->port, where, err)
                                    : listen_here(foreign, err);
    if (listener < 0) return NULL;
    struct hosts *hosts = hosts_of_copies(foreign->size, token);
    struct door door;
    door_open(&door, listener, HELLO_S * 1000);
    double end_s = now_s() + timeout_s;
    int bad = 0;
    for (uint32_t come = 1; come < foreign->size && !bad;) {
        struct pollfd more = {.fd = listener, .events = POLLIN};
        poll(&more, 1, LOOK_MS);
        int got = take_copy(foreign, hosts, &door, hash_words(argv), err);
        bad = got < 0 ? -1 : launch_signal_pending() ? err_add(err, ERR_FAILED, "interrupted") : 0;
        come += got > 0;
        if (!bad && come < foreign->size && now_s() >= end_s)
            bad = err_add(err, ERR_FAILED,
                          "%u of the %u copies that %s has started came within %g s (were all "
                          "started with the same command, and can they reach %s?)",
                          come, foreign->size, foreign->name, timeout_s,
                          foreign->address ? where : "this host");
    }
    door_close(&door);
    if (!bad) bad = hosts_settle(hosts, err);
    hide();
    if (!bad) return hosts;
    hosts_close(hosts, (int)err->code);
    return NULL;
}

static int come(const struct foreign *foreign, char **argv, double timeout_s, uint8_t *token,
                struct courier *up, struct err *err)
{
    foreign_token(foreign, token);
    char *where =
        mem_printf(strchr(foreign->address ? foreign->address : "", ':') ? "[%s]:%u" : "%s:%u",
                   foreign->address ? foreign->address : "", foreign->port);
    int fd = foreign->address ? sock_connect(where, "", timeout_s, err)
                              : connect_here(foreign, timeout_s, err);
    if (fd < 0 && foreign->address)
        err_add(err, ERR_FAILED,
                "rank %u tried for %g s: %s is where the copy of rank 0 is to listen "
                "(MASTER_ADDR, MASTER_PORT)",
                foreign->rank, timeout_s, where);
    free(where);
    if (fd < 0) return -1;
    courier_init(up, fd);
    uint64_t first =
        foreign->placed || !foreign->address ? foreign->rank - foreign->local : UINT64_MAX;
    struct sock_hello hello = {.purpose = SOCK_AGENT, .rank = foreign->rank, .number = first};
    if (sock_hello_send(fd, token, &hello, HELLO_S, err)) return -1;
    struct agent_hello own;
    agent_describe(&own);
    own.words = hash_words(argv);
    struct courier_head head = {.kind = FRAME_HELLO, .bytes = sizeof own};
    if (courier_send(up, &head, &own, PATIENCE_MS))
        return err_add(err, ERR_FAILED, "rank 0 does not listen: %s", strerror(errno));
    return 0;
}

int foreign_follow(const struct foreign *foreign, char **argv, double timeout_s)
{
    struct err err = ERR_INIT;
    uint8_t token[TOKEN_BYTES];
    struct courier up = {.fd = -1};
    launch_block_signals();
    int bad = come(foreign, argv, timeout_s, token, &up, &err);
    hide();
    int status = bad ? -1 : agent_serve(&up, token);
    if (status < 0 && !err.count) err_add(&err, ERR_FAILED, "rank 0 is gone");
    courier_release(&up);
    if (status < 0) status = (int)err.code;
    err_print(&err, "collbench");
    err_release(&err);
    return status;
}
