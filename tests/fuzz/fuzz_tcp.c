/* SPDX-License-Identifier: Apache-2.0
 * Speaks nonsense to a rank that listens: strangers first (garbage, half a hello, another run's
 * token), then a peer that knows the token and breaks the protocol (frames of any kind, wires,
 * numbers and lengths that are none, frames cut off). The rank must refuse with a sentence, or go
 * on; it may not crash, hang, or take a message that nobody sent. What is said depends on (seed,
 * iteration) alone, so that --only repeats one.
 *
 * The rank is a child process that opens a handle with a wire each way; this program plays the only
 * other rank. Linked so that rank_lost and rank_fail end the child at once: see tests/CMakeLists.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "exec/launch.h"
#include "exec/sock.h"
#include "exec/transport.h"
#include "tests/fuzz/fuzz.h"

enum {
    HANG_S = 20, /* a rank that takes longer is at fault */
    REFUSED = 7, /* exit status of a rank that ended with a sentence */
    RANKS = 3,   /* so that there are wires and connections of others to be named */
    VICTIM = 1,
    CONNECTIONS = 2,
    FRAME_BYTES = 24,
    MOST_FRAMES = 24,
};

static const struct opts_row options[] =
    FUZZ_OPTIONS("this iteration alone, with what the rank said");

/* What both processes know. */
struct board {
    _Atomic uint32_t listening, stop;
    uint32_t depth, slot_bytes;
    _Atomic uint64_t taken; /* messages */
};

/* ---- the rank ---- */

_Noreturn void __wrap_rank_fail(struct rank *rk, struct err *err);
_Noreturn void __wrap_rank_lost(struct rank *rk, uint32_t peer, struct err *err);

void __wrap_rank_fail(struct rank *rk, struct err *err)
{
    (void)rk;
    err_print(err, "rank");
    _exit(err->count ? REFUSED : 1);
}

void __wrap_rank_lost(struct rank *rk, uint32_t peer, struct err *err)
{
    (void)peer;
    __wrap_rank_fail(rk, err);
}

/* Bytes of message `number`: what both sides expect. */
static size_t length_of(const struct board *board, uint64_t number)
{
    return (size_t)(number * 37 % (board->slot_bytes + 1));
}

static uint8_t byte_of(uint64_t number)
{
    return (uint8_t)(number * 11 + 5);
}

/* Takes what comes and sends as much back, until it is told to stop. */
static void serve(const struct transport *transport, struct wire **wires, void *state,
                  struct board *board)
{
    struct pull_ref ref = {0, 0};
    while (!board->stop) {
        transport->poll(state);
        size_t bytes = length_of(board, wires[0]->next);
        const uint8_t *message = transport->peek(wires[0], bytes, &ref);
        for (size_t i = 0; message && i < bytes; i++) {
            if (message[i] != byte_of(wires[0]->next)) {
                fprintf(stderr, "message %" PRIu64 " holds what nobody sent\n", wires[0]->next);
                _exit(1);
            }
        }
        if (message) {
            transport->release(wires[0]);
            board->taken++;
        }
        bytes = length_of(board, wires[1]->next);
        uint8_t *place = transport->room(wires[1], bytes);
        if (place) {
            memset(place, byte_of(wires[1]->next), bytes);
            transport->post(wires[1], bytes, ref);
        }
        if (!message && !place) transport->wait(state, 1000);
    }
}

static _Noreturn void be_rank(struct world *world, struct board *board)
{
    struct err err = ERR_INIT;
    struct rank rk;
    const struct transport *transport = transport_find("tcp", &err);
    alarm(HANG_S);
    if (rank_init(&rk, world, VICTIM, &err) || transport->join(&rk, &err)) {
        err_print(&err, "rank");
        _exit(1);
    }
    board->listening = 1;
    const struct lwire lwires[2] = {{.peer = 0, .send = false, .mode = WIRE_STAGED},
                                    {.peer = 0, .send = true, .mode = WIRE_STAGED}};
    struct wire_spec spec = {.rank = &rk,
                             .ngroup = RANKS,
                             .me = VICTIM,
                             .tag = 5,
                             .wires = lwires,
                             .nwires = 2,
                             .depth = board->depth,
                             .slot_bytes = board->slot_bytes};
    struct wire *wires[2];
    struct wire_buffers peers[RANKS];
    void *state;
    memset(peers, 0, sizeof peers);
    if (transport->open(&spec, wires, peers, &state, &err)) {
        err_print(&err, "rank");
        _exit(1);
    }
    serve(transport, wires, state, board);
    _exit(0);
}

/* ---- the other side ---- */

struct frame {
    uint32_t kind, wire;
    uint64_t number, bytes;
};
_Static_assert(sizeof(struct frame) == FRAME_BYTES, "as on the wire");
enum { OPEN = 1, DATA, CREDIT, GOODBYE };

/* Single frames, each of which must end the connection with its sentence: the first iterations. At
 * the rank wire 0 receives and wire 1 sends. */
static const struct broken {
    struct frame frame;
    const char *says;
} broken[] = {
    {{DATA, 0, 1000, 0}, "a number or a length that its wire does not expect"},
    {{DATA, 0, UINT64_MAX, 0}, "a number or a length that its wire does not expect"},
    {{DATA, 0, 0, UINT32_MAX}, "a number or a length that its wire does not expect"},
    {{DATA, 0, 0, UINT64_MAX}, "a number or a length that its wire does not expect"},
    {{DATA, 1, 0, 0}, "it names a wire that is not open"},
    {{DATA, 2, 0, 0}, "it names a wire that is not open"},
    {{DATA, UINT32_MAX, 0, 0}, "it names a wire that is not open"},
    {{CREDIT, 0, 0, 0}, "it names a wire that is not open"},
    {{CREDIT, 1, 1000, 0}, "it releases messages that were never sent"},
    {{CREDIT, 1, UINT64_MAX, 0}, "it releases messages that were never sent"},
    {{0, 0, 0, 0}, "it does not speak this protocol"},
    {{GOODBYE + 1, 0, 0, 0}, "it does not speak this protocol"},
    {{UINT32_MAX, 0, 0, 0}, "it does not speak this protocol"},
    {{OPEN, 0, UINT64_C(9) << 32, 8}, "it opens more wires than a run has"},
};
enum { NBROKEN = sizeof broken / sizeof *broken };

struct talk {
    const struct world *world;
    const struct board *board;
    const char *where;
    struct rng rng;
    int fds[CONNECTIONS];
    uint64_t next;               /* message */
    const struct broken *broken; /* to be said; NULL: anything */
};

static uint64_t below(struct talk *talk, uint64_t n)
{
    return rng_below(&talk->rng, n);
}

/* Sends as much as it takes; the rank may have hung up. */
static void say(int fd, const void *data, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        if (poll(&one, 1, 1000) <= 0) return;
        ssize_t got = send(fd, (const uint8_t *)data + sent, bytes - sent, MSG_NOSIGNAL);
        if (got <= 0) return;
        sent += (size_t)got;
    }
}

static int call(struct talk *talk)
{
    struct err err = ERR_INIT;
    int fd = sock_connect(talk->where, "", 5, &err);
    err_release(&err); /* it may have ended */
    return fd;
}

/* The hello of connection `number`, as bytes. */
static size_t make_hello(struct talk *talk, uint64_t number, uint8_t *bytes, size_t room)
{
    struct err err = ERR_INIT;
    struct sock_hello hello = {.purpose = SOCK_DATA, .rank = 0, .number = number};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 0;
    sock_hello_send(pair[0], world_token(talk->world), &hello, 1, &err);
    ssize_t got = recv(pair[1], bytes, room, 0);
    close(pair[0]);
    close(pair[1]);
    return got > 0 ? (size_t)got : 0;
}

static void say_garbage(struct talk *talk, int fd)
{
    uint8_t bytes[512];
    size_t count = (size_t)below(talk, sizeof bytes);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)rng_next(&talk->rng);
    say(fd, bytes, count);
}

/* Somebody who does not belong here: garbage, half a hello, a hello with a bit flipped. */
static void be_stranger(struct talk *talk)
{
    uint8_t hello[256];
    /* no flip of one bit makes it that of a connection that there is */
    size_t bytes = make_hello(talk, 6 + below(talk, 2), hello, sizeof hello);
    int fd = call(talk);
    if (fd < 0) return;
    switch (below(talk, 3)) {
    case 0:
        say_garbage(talk, fd);
        break;
    case 1:
        say(fd, hello, (size_t)below(talk, bytes));
        break;
    case 2:
        hello[below(talk, bytes)] ^= (uint8_t)(1 << below(talk, 8));
        say(fd, hello, bytes);
        break;
    }
    close(fd);
}

static struct frame open_frame(const struct talk *talk, uint32_t id, bool sends)
{
    return (struct frame){OPEN, id, UINT64_C(5) << 32 | sends, talk->board->slot_bytes};
}

/* The message that is next, as it should be. */
static void say_message(struct talk *talk)
{
    size_t bytes = length_of(talk->board, talk->next);
    struct frame head = {DATA, 0, talk->next, bytes};
    uint8_t *payload = mem_calloc(bytes + 1, 1);
    memset(payload, byte_of(talk->next), bytes);
    int fd = talk->fds[below(talk, CONNECTIONS)];
    say(fd, &head, sizeof head);
    say(fd, payload, bytes);
    free(payload);
    talk->next++;
}

/* A number that is near a limit, or anything. */
static uint64_t odd_number(struct talk *talk)
{
    const uint64_t some[] = {0,
                             1,
                             talk->next,
                             talk->next + talk->board->depth,
                             talk->board->slot_bytes,
                             talk->board->slot_bytes + UINT64_C(1),
                             UINT32_MAX,
                             UINT64_C(1) << 32,
                             INT64_MAX,
                             UINT64_MAX,
                             UINT64_MAX - 1};
    uint64_t at = below(talk, sizeof some / sizeof *some + 2);
    return at < sizeof some / sizeof *some
               ? some[at]
               : below(talk, 2 * (talk->board->slot_bytes + UINT64_C(1)));
}

/* A frame with some fields as they should be and some not. */
static void say_odd_frame(struct talk *talk)
{
    struct frame head = {DATA, 0, talk->next, length_of(talk->board, talk->next)};
    if (below(talk, 2)) head.kind = (uint32_t)below(talk, 6);
    if (below(talk, 3) == 0) head.kind = (uint32_t)rng_next(&talk->rng);
    if (below(talk, 2)) head.wire = below(talk, 2) ? 1 : (uint32_t)odd_number(talk);
    if (below(talk, 2)) head.number = odd_number(talk);
    if (below(talk, 2)) head.bytes = odd_number(talk);
    int fd = talk->fds[below(talk, CONNECTIONS)];
    say(fd, &head, below(talk, 4) ? sizeof head : (size_t)below(talk, sizeof head));
    if (below(talk, 2)) say_garbage(talk, fd);
}

static bool has_ended(pid_t rank)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)rank, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

/* Reads whatever the rank says, until it has taken so many messages or has ended. */
static void listen_until(struct talk *talk, pid_t rank, uint64_t taken)
{
    uint8_t answer[4096];
    while (talk->board->taken < taken && !has_ended(rank)) {
        for (int i = 0; i < CONNECTIONS; i++) {
            while (talk->fds[i] >= 0 &&
                   recv(talk->fds[i], answer, sizeof answer, MSG_DONTWAIT) > 0) {
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* A peer that begins as it should. True: it has said nothing wrong. */
static bool be_peer(struct talk *talk, pid_t rank)
{
    uint8_t hello[256];
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        talk->fds[i] = call(talk);
        say(talk->fds[i], hello, make_hello(talk, i, hello, sizeof hello));
    }
    struct frame opens[2] = {open_frame(talk, 0, true), open_frame(talk, 1, false)};
    bool good = talk->broken || below(talk, 8) > 0;
    if (!good) opens[below(talk, 2)].bytes = odd_number(talk);
    say(talk->fds[0], opens, sizeof opens);
    if (talk->broken) {
        uint32_t times = talk->broken->frame.kind == OPEN ? RANKS * 4096 + 1 : 1;
        for (uint32_t i = 0; i < times; i++)
            say(talk->fds[0], &talk->broken->frame, sizeof talk->broken->frame);
        return false;
    }
    uint64_t count =
        below(talk, talk->board->depth + UINT64_C(1)); /* without waiting for credits */
    while (count-- > 0)
        say_message(talk);
    if (good && below(talk, 4) == 0) {
        listen_until(talk, rank, talk->next);
        return true;
    }
    for (uint64_t odd = 1 + below(talk, MOST_FRAMES); odd > 0; odd--)
        say_odd_frame(talk);
    return false;
}

/* ---- one iteration ---- */

/* What the rank wrote to stderr; freed by the caller. */
static char *said(int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = mem_calloc((size_t)bytes + 1, 1);
    if (pread(fd, text, (size_t)bytes, 0) != bytes) text[0] = '\0';
    return text;
}

/* 0 when the rank ended as it may. */
static int judge(int status, const char *text, bool fine, const struct talk *talk)
{
    bool refused = WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
    bool went_on = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (talk->broken) return refused && strstr(text, talk->broken->says) ? 0 : -1;
    if (fine) return went_on && talk->board->taken == talk->next ? 0 : -1;
    return went_on || (refused && strstr(text, "rank: the connection to rank 0 (")) ? 0 : -1;
}

static int iterate(struct world *world, uint64_t seed, uint64_t iteration, bool tell)
{
    struct board *board = world_blob(world);
    struct talk talk = {.world = world, .board = board, .fds = {-1, -1}};
    talk.broken = iteration < NBROKEN ? &broken[iteration] : NULL;
    rng_init(&talk.rng, rng_mix(seed) ^ iteration);
    *board = (struct board){.depth = 1 + (uint32_t)below(&talk, 5),
                            .slot_bytes = (uint32_t)below(&talk, below(&talk, 2) ? 40 : 100000)};
    int out = memfd_create("said", MFD_CLOEXEC);
    pid_t rank = out < 0 ? -1 : fork();
    if (rank < 0) return -1;
    if (rank == 0) {
        dup2(out, 2);
        be_rank(world, board);
    }
    while (!board->listening && !has_ended(rank))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    talk.where = world_status(world, VICTIM)->card.address;
    for (uint64_t strangers = below(&talk, 4); strangers > 0; strangers--)
        be_stranger(&talk);
    bool fine = be_peer(&talk, rank);
    board->stop = fine;
    for (int i = 0; !fine && !talk.broken && i < CONNECTIONS; i++)
        shutdown(talk.fds[i], SHUT_WR); /* ends it, when it has read all */
    listen_until(&talk, rank, UINT64_MAX);
    int status;
    waitpid(rank, &status, 0);
    for (int i = 0; i < CONNECTIONS; i++) {
        if (talk.fds[i] >= 0) close(talk.fds[i]);
    }
    char *text = said(out);
    int bad = judge(status, text, fine, &talk);
    if (bad || tell)
        fprintf(stderr,
                "iteration %" PRIu64 ": status %#x, %s, %" PRIu64 " messages of %" PRIu64 "\n%s",
                iteration, status, fine ? "nothing wrong was said" : "nonsense was said",
                board->taken, talk.next, text);
    free(text);
    close(out);
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
    for (double end = now_s() + request->time_s; now_s() < end; count++) {
        if (iterate(world, request->seed, count, false)) return 1;
    }
    printf("passed: %" PRIu64 " iterations\n", count);
    return count > 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct request request = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    struct world_spec spec = {.nranks = RANKS,
                              .net = {.transport = "tcp", .connections = CONNECTIONS},
                              .blob_bytes = sizeof(struct board),
                              .extent_bytes = 1 << 20,
                              .resident_bytes = 1 << 20};
    struct world *world = NULL;
    int status = opts_parse(&opts, options, &request, argc, argv, &err) < 0 ? 2 : 0;
    if (status == 0 && (world = world_create(&spec, &err)))
        status = opts_is_set(&opts, "only") ? -iterate(world, request.seed, request.only, true)
                                            : run(world, &request);
    status = err.count ? (int)err.code : status;
    world_close(world);
    err_print(&err, "fuzz_tcp");
    err_release(&err);
    opts_release(&opts);
    return status;
}
