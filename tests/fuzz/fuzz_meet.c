/* SPDX-License-Identifier: Apache-2.0
 * Speaks nonsense where a run's processes meet, before there is any transport: to the first copy
 * that waits for the others, to the first rank of host 0 that waits for the other hosts, and to an
 * agent that waits for jobs. Strangers come first (garbage, half a hello, another run's token,
 * silence); then somebody who knows the token says all that he should, or that with bytes changed,
 * left out or added. Who is spoken to must go on, or end with a sentence; strangers alone may
 * neither end it nor hold it up. What is said depends on (seed, iteration) alone. */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "exec/agent.h"
#include "exec/control.h"
#include "exec/foreign.h"
#include "exec/meet.h"
#include "exec/probe.h"
#include "exec/sock.h"
#include "tests/fuzz/fuzz.h"

enum {
    KEPT = 16,   /* sockets kept open until the end, at most */
    HANG_S = 20, /* who takes longer is at fault */
    REFUSED = 7, /* exit status of who ended with a sentence */
    COPIES = 3,
    MOST_MIB = 256, /* of memory that is touched: lengths are bounded */
    BLOB = 4096,
};

static const struct opts_row options[] =
    FUZZ_OPTIONS("this iteration alone, with what was said on stderr");

struct talk {
    struct rng rng;
    struct world *world; /* of host 0 of two */
    char where[NET_NAME];
    uint8_t token[TOKEN_BYTES];
    bool good;      /* nobody who knows the token says anything wrong */
    uint32_t loud;  /* strangers who have to be named */
    int open[KEPT]; /* sockets kept open until the end */
    uint32_t nopen;
};

static uint64_t below(struct talk *talk, uint64_t limit)
{
    return limit ? rng_next(&talk->rng) % limit : 0;
}

/* ---- who is spoken to, in a process of its own ---- */

_Noreturn void __wrap_rank_fail(struct rank *rk, struct err *err);
_Noreturn void __wrap_rank_lost(struct rank *rk, uint32_t peer, struct err *err);

static _Noreturn void leave(struct err *err)
{
    err_print(err, "here");
    _exit(err->count ? REFUSED : 1);
}

void __wrap_rank_fail(struct rank *rk, struct err *err)
{
    (void)rk;
    leave(err);
}

void __wrap_rank_lost(struct rank *rk, uint32_t peer, struct err *err)
{
    (void)rk, (void)peer;
    leave(err);
}

static struct foreign first_copy(uint16_t port)
{
    return (struct foreign){.name = "fuzz", .size = COPIES, .address = "127.0.0.1", .port = port};
}

static _Noreturn void be_first_copy(uint16_t port, bool good)
{
    struct err err = ERR_INIT;
    struct foreign foreign = first_copy(port);
    char *argv[] = {(char *)(uintptr_t) "fuzz", NULL};
    struct hosts *hosts = foreign_gather(&foreign, argv, good ? HANG_S : 0.2, &err);
    if (!hosts) leave(&err);
    hosts_close(hosts, 0);
    _exit(0);
}

static _Noreturn void be_first_rank(struct world *world, int control_fd)
{
    struct err err = ERR_INIT;
    struct rank rk;
    if (rank_init(&rk, world, 0, &err)) leave(&err);
    rk.control_fd = control_fd;
    if (meet_open(&rk, &err)) leave(&err);
    rank_publish(&rk, &rk.status->card, sizeof rk.status->card);
    for (int i = 0; i < 2; i++)
        rank_barrier(&rk);
    meet_close(&rk);
    _exit(0);
}

static _Noreturn void be_agent(int fd, const uint8_t *token)
{
    struct courier up;
    launch_block_signals();
    courier_init(&up, fd);
    int status = agent_serve(&up, token);
    courier_release(&up);
    _exit(status < 0 ? REFUSED : 0);
}

/* ---- what is said ---- */

static void put_frame(struct pack *pack, uint32_t kind, const void *data, size_t bytes)
{
    struct courier_head head = {.kind = kind, .rank = 1, .bytes = bytes};
    pack_raw(pack, &head, sizeof head);
    pack_raw(pack, data, bytes);
}

static void put_hello(struct pack *pack, const uint8_t *token, struct sock_hello hello)
{
    struct err err = ERR_INIT;
    uint8_t bytes[256];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
    sock_hello_send(pair[0], token, &hello, 1, &err);
    ssize_t got = recv(pair[1], bytes, sizeof bytes, 0);
    close(pair[0]);
    close(pair[1]);
    pack_raw(pack, bytes, got > 0 ? (size_t)got : 0);
}

/* Says the first `bytes` again behind the rest. */
static void repeat(struct pack *pack, size_t bytes)
{
    uint8_t *copy = mem_calloc(bytes + 1, 1);
    memcpy(copy, pack->data, bytes);
    pack_raw(pack, copy, bytes);
    free(copy);
}

/* Changes, cuts or lengthens what should be said. */
static void spoil(struct talk *talk, struct pack *pack)
{
    const uint64_t odd[] = {0,
                            1,
                            2,
                            UINT32_MAX,
                            INT64_MAX,
                            UINT64_MAX,
                            COURIER_MOST,
                            COURIER_MOST + UINT64_C(1),
                            UINT64_C(1) << 40,
                            BLOB + 8};
    for (uint64_t n = 1 + below(talk, 3); n > 0; n--) {
        uint64_t value = odd[below(talk, sizeof odd / sizeof *odd)];
        size_t at = (size_t)below(talk, pack->used);
        switch (below(talk, 4)) {
        case 0:
            pack->data[at] ^= (uint8_t)(1 << below(talk, 8));
            break;
        case 1: /* a number, for numbers are aligned */
            at -= at % sizeof value;
            if (at + sizeof value <= pack->used) memcpy(pack->data + at, &value, sizeof value);
            break;
        case 2:
            pack->used = at + 1;
            break;
        case 3:
            repeat(pack, at);
            break;
        }
    }
}

/* Sends all that is taken; then, if `end`, that there will be no more. */
static void say(int fd, const struct pack *pack, bool end)
{
    for (size_t sent = 0; sent < pack->used;) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        if (poll(&one, 1, 1000) <= 0) break;
        ssize_t got = send(fd, pack->data + sent, pack->used - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got <= 0) break;
        sent += (size_t)got;
    }
    if (end) shutdown(fd, SHUT_WR);
}

static int call(const struct talk *talk)
{
    struct err err = ERR_INIT;
    int fd = sock_connect(talk->where, "", 5, &err);
    err_release(&err); /* it may have ended */
    return fd;
}

/* Closed at the end of the iteration: at most three strangers and two others. */
static void keep(struct talk *talk, int fd)
{
    if (talk->nopen < KEPT) talk->open[talk->nopen++] = fd;
}

/* Somebody who does not know the token. */
static void be_stranger(struct talk *talk)
{
    struct pack pack = {0};
    uint8_t token[TOKEN_BYTES];
    int fd = call(talk);
    if (fd < 0) return;
    memcpy(token, talk->token, sizeof token);
    token[below(talk, sizeof token)] ^= (uint8_t)(1 + below(talk, 255));
    put_hello(&pack, token, (struct sock_hello){(uint32_t)below(talk, 3), 1, 1});
    uint64_t what = below(talk, 4);
    for (size_t i = 0; what == 1 && i < pack.used; i++)
        pack.data[i] = (uint8_t)rng_next(&talk->rng);
    if (what == 2) pack.used = (size_t)below(talk, pack.used);
    if (what == 3) {
        keep(talk, fd);
    } else {
        say(fd, &pack, true);
        talk->loud++;
        close(fd);
    }
    pack_release(&pack);
}

/* Says it as it is, or not. */
static void speak(struct talk *talk, int fd, struct pack *pack)
{
    if (!talk->good) spoil(talk, pack);
    if (fd >= 0) say(fd, pack, !talk->good);
    pack_release(pack);
}

static void be_copies(struct talk *talk)
{
    for (uint32_t r = 1; r < COPIES; r++) {
        struct pack pack = {0};
        struct agent_hello own;
        agent_describe(&own);
        put_hello(&pack, talk->token, (struct sock_hello){SOCK_AGENT, r, 0});
        put_frame(&pack, FRAME_HELLO, &own, sizeof own);
        int fd = call(talk);
        speak(talk, fd, &pack);
        if (fd >= 0) keep(talk, fd);
    }
}

static int be_other_host(struct talk *talk, int *listener)
{
    struct pack pack = {0}, shown = {0};
    struct err err = ERR_INIT;
    struct probe_card card;
    size_t all;
    *listener = probe_listen("127.0.0.1", &card, &err);
    const uint8_t *shared = world_shared(talk->world, &all);
    uint8_t *blob = world_blob(talk->world);
    pack_u64(&shown, (uint64_t)(blob - shared));
    pack_block(&shown, talk->token, TOKEN_BYTES);
    put_hello(&pack, talk->token, (struct sock_hello){SOCK_MEETING, 1, 1});
    put_frame(&pack, MEET_CARDS, &card, sizeof card);
    put_frame(&pack, MEET_DONE, &(uint8_t){1}, 1);
    put_frame(&pack, 1, shown.data, shown.used);
    put_frame(&pack, 2, NULL, 0);
    struct pack again = {0}; /* the host itself, behind somebody who was sent away */
    pack_raw(&again, pack.data, pack.used);
    int fd = call(talk);
    speak(talk, fd, &pack);
    if (!talk->good && fd >= 0) {
        keep(talk, fd);
        fd = call(talk);
        if (fd >= 0) say(fd, &again, true);
    }
    pack_release(&again);
    pack_release(&shown);
    return fd;
}

/* Reads what an agent answers until its ranks are gone, or it is. */
static void hear_done(int fd)
{
    struct courier courier;
    struct courier_frame frame = {.head.kind = FRAME_HELLO};
    struct pollfd one = {.fd = fd, .events = POLLIN};
    courier_init(&courier, dup(fd));
    for (int got; (got = courier_recv(&courier, &frame)) >= 0;) {
        if (got > 0 && frame.head.kind == FRAME_DONE) break;
        if (got == 0 && poll(&one, 1, HANG_S * 1000) <= 0) break;
    }
    courier_release(&courier);
}

/* A job of two ranks, of which this one's ends at once, and the end; else any end. */
static void be_launcher(struct talk *talk, int fd)
{
    struct pack pack = {0}, job = {0};
    struct net_spec net = {.connections = 0};
    const uint64_t numbers[] = {2, BLOB, 1 << 20, 1 << 20};
    const uint32_t table[] = {1, 1};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        pack_u64(&job, numbers[i]);
    pack_block(&job, &net, sizeof net);
    pack_u64(&job, 1);
    pack_block(&job, table, sizeof table);
    pack_u64(&job, 2);
    pack_u64(&job, 0);
    pack_u64(&job, BIND_NONE);
    pack_u64(&job, 0);
    pack_block(&job, &net, 64);
    pack_u64(&job, 1);
    pack_text(&job, "fuzz");
    pack_u64(&job, 0);   /* started without another command, */
    pack_text(&job, ""); /* .. and so without its variable */
    put_frame(&pack, FRAME_JOB, job.data, job.used);
    if (!talk->good) put_frame(&pack, FRAME_ABORT, NULL, 0);
    pack_release(&job);
    speak(talk, fd, &pack);
    hear_done(fd);
    put_frame(&pack, FRAME_END, NULL, 0);
    say(fd, &pack, true);
    pack_release(&pack);
}

/* ---- one iteration ---- */

/* A port that nobody has now. */
static uint16_t free_port(char where[NET_NAME])
{
    struct err err = ERR_INIT;
    int fd = sock_listen("127.0.0.1", 0, where, &err);
    if (fd >= 0) close(fd);
    return fd < 0 ? 0 : (uint16_t)strtoul(strrchr(where, ':') + 1, NULL, 10);
}

/* What was written to stderr; freed by the caller. */
static char *said(int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = mem_calloc((size_t)bytes + 1, 1);
    if (pread(fd, text, (size_t)bytes, 0) != bytes) text[0] = '\0';
    return text;
}

static uint32_t count_refused(const char *text)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, "refused a connection from 127.0.0.1:")); at++)
        count++;
    return count;
}

enum meeting { COPY, RANK, AGENT, MEETINGS };

/* The process that is spoken to; its stderr is `out`. */
static pid_t start(struct talk *talk, enum meeting meeting, int out, int pair[2], uint16_t port)
{
    pid_t pid = fork();
    if (pid) return pid;
    dup2(out, 2);
    alarm(HANG_S);
    close(pair[0]);
    if (meeting == COPY) be_first_copy(port, talk->good);
    if (meeting == RANK) be_first_rank(talk->world, pair[1]);
    be_agent(pair[1], talk->token);
}

/* Where the first rank says that it listens. False: it does not say it. */
static bool hear_where(struct talk *talk, int fd)
{
    struct {
        struct control head;
        char where[NET_NAME];
    } record = {.where = ""};
    ssize_t got = recv(fd, &record, sizeof record - 1, 0);
    snprintf(talk->where, sizeof talk->where, "%.*s", NET_NAME - 1, record.where);
    return got > (ssize_t)sizeof record.head;
}

static int judge(const struct talk *talk, enum meeting meeting, int status, const char *text,
                 const struct rusage *used)
{
    bool refused = WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
    bool went_on = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (used->ru_maxrss > (long)MOST_MIB << 10) return -1;
    if (!talk->good) return went_on || refused ? 0 : -1;
    return went_on && (meeting == AGENT || count_refused(text) == talk->loud) ? 0 : -1;
}

static int iterate(struct world *world, uint64_t seed, uint64_t iteration, bool tell)
{
    struct talk talk = {.world = world};
    enum meeting meeting = (enum meeting)(iteration % MEETINGS);
    rng_init(&talk.rng, rng_mix(seed) ^ iteration);
    talk.good = below(&talk, 3) == 0;
    int pair[2], listener = -1, other = -1, type = meeting == RANK ? SOCK_SEQPACKET : SOCK_STREAM;
    uint16_t port = free_port(talk.where);
    struct foreign foreign = first_copy(port);
    foreign_token(&foreign, talk.token);
    if (meeting == RANK) memcpy(talk.token, world_token(world), TOKEN_BYTES);
    int out = memfd_create("said", MFD_CLOEXEC);
    if (out < 0 || socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair)) return -1;
    pid_t pid = start(&talk, meeting, out, pair, port);
    close(pair[1]);
    bool ready = meeting != RANK || hear_where(&talk, pair[0]);
    for (uint64_t n = ready && meeting != AGENT ? below(&talk, 4) : 0; n > 0; n--)
        be_stranger(&talk);
    if (meeting == COPY) be_copies(&talk);
    if (meeting == RANK) other = be_other_host(&talk, &listener);
    if (meeting == AGENT) be_launcher(&talk, pair[0]);
    int status;
    struct rusage used;
    wait4(pid, &status, 0, &used);
    char *text = said(out);
    int bad = judge(&talk, meeting, status, text, &used);
    if (bad || tell)
        fprintf(stderr, "iteration %" PRIu64 ": status %#x, %s, %u strangers, %ld KiB\n%s",
                iteration, status, talk.good ? "nothing wrong was said" : "nonsense was said",
                talk.loud, used.ru_maxrss, text);
    for (uint32_t i = 0; i < talk.nopen; i++)
        close(talk.open[i]);
    if (other >= 0) close(other);
    if (listener >= 0) close(listener);
    close(pair[0]);
    close(out);
    free(text);
    return bad;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int run(struct world *world, const struct request *request)
{
    uint64_t count = 0;
    /* each meeting at least once, however slow the machine */
    for (double end = now_s() + request->time_s; count < MEETINGS || now_s() < end; count++) {
        if (iterate(world, request->seed, count, false)) return 1;
    }
    printf("passed: %" PRIu64 " iterations\n", count);
    return 0;
}

int main(int argc, char **argv)
{
    if (launch_is_child()) return 3; /* a rank of a job that came through */
    struct request request = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    const uint32_t ranks[] = {1, 1};
    struct world_spec spec = {.nranks = 2,
                              .net = {.iface = "127.0.0.1"},
                              .nhosts = 2,
                              .host_ranks = ranks,
                              .blob_bytes = BLOB,
                              .extent_bytes = 1 << 20,
                              .resident_bytes = 1 << 20};
    struct world *world = NULL;
    int status = opts_parse(&opts, options, &request, argc, argv, &err) < 0 ? 2 : 0;
    if (status == 0 && (world = world_create(&spec, &err)))
        status = opts_is_set(&opts, "only") ? -iterate(world, request.seed, request.only, true)
                                            : run(world, &request);
    status = err.count ? (int)err.code : status;
    world_close(world);
    err_print(&err, "fuzz_meet");
    err_release(&err);
    opts_release(&opts);
    return status;
}
