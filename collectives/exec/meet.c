/* SPDX-License-Identifier: Apache-2.0
 * The meeting of the hosts: see meet.h. What a rank shows lies in its own status and places, which
 * nobody changes while the barrier lasts; so it is read and written here without locks. */
#include "exec/meet.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/control.h"
#include "exec/courier.h"
#include "exec/launch.h"
#include "exec/probe.h"
#include "exec/sock.h"

enum {
    POLL_MS = 1,         /* between two beats */
    PATIENCE_MS = 10000, /* a host takes its part of a barrier within so long */
    CONNECT_S = 30,      /* .. and comes to the first one */
    HELLO_S = 5,
};

/* The first rank of another host. */
struct other {
    struct courier courier;
    uint32_t host;
    const uint8_t *shown; /* what its host has published, as it came; until the next barrier */
    uint64_t bytes;
    bool here;
};

struct meet {
    uint32_t nothers;
    struct other *others; /* host 0: all others, by host; else host 0 */
    struct pollfd *polls;
    struct pack own, answer;
};

/* ---- connecting ---- */

/* Gives up the time slice; every connection that a wait depends on wakes it. */
static void rest(struct rank *rk, struct pollfd *polls, uint32_t count)
{
    rank_beat(rk);
    rank_drive(rk);
    poll(polls, count, POLL_MS);
}

static int tell_launcher(struct rank *rk, const char *where, struct err *err)
{
    struct control head = {.kind = CONTROL_MEETING, .rank = rk->rank};
    if (!control_send(rk->control_fd, &head, where, strlen(where))) return 0;
    return err_add(err, ERR_FAILED, "cannot send to the launcher: %s", strerror(errno));
}

/* Host 0: takes the connections of all others. */
static int accept_all(struct rank *rk, struct door *door, struct err *err)
{
    struct meet *meet = rk->meet;
    struct pollfd poll_fd = {.fd = door->listener, .events = POLLIN};
    for (uint32_t come = 0; come < meet->nothers;) {
        struct sock_hello hello;
        int fd = door_answer(door, world_token(rk->world), &hello);
        if (fd < 0) {
            rest(rk, &poll_fd, 1);
            continue;
        }
        bool known = hello.purpose == SOCK_MEETING && hello.number > 0 &&
                     hello.number <= meet->nothers && meet->others[hello.number - 1].courier.fd < 0;
        if (!known) {
            close(fd);
            return err_add(err, ERR_FAILED,
                           "a second or foreign host %" PRIu64 " came to meet the others",
                           hello.number);
        }
        struct other *other = &meet->others[hello.number - 1];
        courier_init(&other->courier, fd);
        other->host = (uint32_t)hello.number;
        come++;
        rank_tick(rk);
    }
    return 0;
}

static int receive_all(struct rank *rk, const char *address, struct err *err)
{
    char where[NET_NAME];
    int listener = sock_listen(address, 0, where, err);
    if (listener < 0) return -1;
    struct door door;
    door_open(&door, listener, HELLO_S * 1000);
    int bad = tell_launcher(rk, where, err) ? -1 : accept_all(rk, &door, err);
    door_close(&door);
    return bad;
}

static int connect_to_first(struct rank *rk, const char *address, struct err *err)
{
    while (!*world_meeting(rk->world))
        rest(rk, NULL, 0);
    int fd = sock_connect(world_meeting(rk->world), address, CONNECT_S, err);
    if (fd < 0) return -1;
    courier_init(&rk->meet->others[0].courier, fd);
    struct sock_hello hello = {
        .purpose = SOCK_MEETING, .rank = rk->rank, .number = world_own_host(rk->world)};
    return sock_hello_send(fd, world_token(rk->world), &hello, HELLO_S, err);
}

/* ---- what is shown ---- */

/* What the ranks of this host have published since the last barrier. */
static void gather(struct rank *rk)
{
    struct world *world = rk->world;
    struct pack *own = &rk->meet->own;
    size_t all;
    const uint8_t *shared = world_shared(world, &all);
    uint32_t host = world_own_host(world), first = world_first(world, host);
    own->used = 0;
    for (uint32_t r = first; r < first + world_host_ranks(world, host); r++) {
        struct rank_status *status = world_status(world, r);
        for (uint32_t i = 0; i < status->nshown; i++) {
            pack_u64(own, status->shown[i].at);
            pack_block(own, shared + status->shown[i].at, status->shown[i].bytes);
        }
        status->nshown = 0;
    }
}

/* Writes down what others have published. False: it does not fit the memory. */
static bool spread(struct rank *rk, const uint8_t *data, uint64_t bytes)
{
    size_t all;
    uint8_t *shared = world_shared(rk->world, &all);
    struct unpack unpack = {.at = data, .end = data + bytes};
    while (unpack.at < unpack.end && !unpack.bad) {
        uint64_t at = unpack_u64(&unpack);
        size_t length;
        const void *block = unpack_block(&unpack, &length);
        if (!block || at > all || length > all - at) return false;
        memcpy(shared + at, block, length);
    }
    return !unpack.bad;
}

/* ---- a barrier ---- */

static _Noreturn void lost(struct rank *rk, const struct other *other, const char *why)
{
    struct err err = ERR_INIT;
    uint32_t peer = world_first(rk->world, other->host);
    err_add(&err, ERR_FAILED, "the connection to host %u (rank %u) is lost: %s", other->host, peer,
            why);
    rank_lost(rk, peer, &err);
}

/* Waits for the frame of every other side. */
static void await_all(struct rank *rk, uint64_t number)
{
    struct meet *meet = rk->meet;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < meet->nothers; i++) {
        meet->others[i].here = false;
        missing++;
    }
    for (bool told = false; missing > 0;) {
        uint32_t waits = 0, first = 0;
        for (uint32_t i = 0; i < meet->nothers; i++) {
            struct other *other = &meet->others[i];
            struct courier_frame frame;
            int got = other->here ? 1 : courier_recv(&other->courier, &frame);
            if (got < 0) lost(rk, other, strerror(errno));
            if (got > 0 && !other->here) {
                if (frame.head.kind != (uint32_t)number) lost(rk, other, "barriers do not match");
                other->shown = frame.data;
                other->bytes = frame.head.bytes;
                other->here = true;
                missing--;
            } else if (got == 0) {
                first = waits == 0 ? other->host : first;
                meet->polls[waits++] = (struct pollfd){.fd = other->courier.fd, .events = POLLIN};
            }
        }
        if (waits == 0) continue;
        if (!told) {
            rank_waits(rk, 0, UINT32_MAX, (int32_t)world_first(rk->world, first), 0);
            told = true;
        }
        rest(rk, meet->polls, waits);
    }
    rank_goes_on(rk);
}

static void send_frame(struct rank *rk, struct other *other, uint64_t number,
                       const struct pack *pack)
{
    struct courier_head head = {.kind = (uint32_t)number, .rank = rk->rank, .bytes = pack->used};
    if (courier_send(&other->courier, &head, pack->data, PATIENCE_MS))
        lost(rk, other, strerror(errno));
}

void meet_hosts(struct rank *rk, uint64_t number)
{
    struct meet *meet = rk->meet;
    bool first = world_own_host(rk->world) == 0;
    gather(rk);
    if (!first) send_frame(rk, &meet->others[0], number, &meet->own);
    await_all(rk, number);
    for (uint32_t i = 0; i < meet->nothers; i++) {
        struct other *other = &meet->others[i];
        if (!spread(rk, other->shown, other->bytes))
            lost(rk, other, "what it publishes does not fit");
    }
    for (uint32_t i = 0; first && i < meet->nothers; i++) {
        meet->answer.used = 0;
        pack_raw(&meet->answer, meet->own.data, meet->own.used);
        for (uint32_t k = 0; k < meet->nothers; k++) {
            if (k != i) pack_raw(&meet->answer, meet->others[k].shown, meet->others[k].bytes);
        }
        send_frame(rk, &meet->others[i], number, &meet->answer);
    }
}

/* ---- all of it ---- */

/* Sends `bytes` of every host to all of them: *all holds them by host. */
static int exchange(struct rank *rk, uint64_t number, const void *own, size_t bytes, uint8_t *all,
                    struct err *err)
{
    struct meet *meet = rk->meet;
    uint32_t nhosts = world_nhosts(rk->world), host = world_own_host(rk->world);
    struct pack pack = {0};
    bool good = true;
    pack_raw(&pack, own, bytes);
    if (host != 0) send_frame(rk, &meet->others[0], number, &pack);
    await_all(rk, number);
    size_t expected = host == 0 ? bytes : nhosts * bytes;
    for (uint32_t i = 0; i < meet->nothers; i++)
        good = good && meet->others[i].bytes == expected;
    if (good && host != 0) memcpy(all, meet->others[0].shown, nhosts * bytes);
    for (uint32_t i = 0; good && host == 0 && i < meet->nothers; i++)
        memcpy(all + meet->others[i].host * bytes, meet->others[i].shown, bytes);
    if (good && host == 0) {
        memcpy(all, own, bytes);
        pack.used = 0;
        pack_raw(&pack, all, nhosts * bytes);
        for (uint32_t i = 0; i < meet->nothers; i++)
            send_frame(rk, &meet->others[i], number, &pack);
    }
    pack_release(&pack);
    return good ? 0 : err_add(err, ERR_FAILED, "another host says more or less than it should");
}

/* All hosts try each other, and go on when all have come through. */
static int probe(struct rank *rk, const char *address, struct err *err)
{
    uint32_t nhosts = world_nhosts(rk->world), host = world_own_host(rk->world);
    struct probe_card own, *cards = mem_calloc(nhosts, sizeof *cards);
    uint8_t *done = mem_calloc(nhosts, 1);
    int listener = probe_listen(address, &own, err);
    int bad = listener < 0 ? -1 : 0;
    if (!bad) bad = exchange(rk, MEET_CARDS, &own, sizeof own, (uint8_t *)cards, err);
    for (uint32_t h = 0; h < nhosts; h++) {
        struct probe_card *card = &cards[h];
        card->where[NET_NAME - 1] = '\0';
        card->host[sizeof card->host - 1] = card->boot[sizeof card->boot - 1] = '\0';
    }
    if (!bad) bad = probe_hosts(rk, cards, nhosts, host, address, err);
    if (!bad) bad = exchange(rk, MEET_DONE, &(uint8_t){1}, 1, done, err);
    if (listener >= 0) close(listener);
    free(done);
    free(cards);
    return bad;
}

int meet_open(struct rank *rk, struct err *err)
{
    uint32_t nhosts = world_nhosts(rk->world), host = world_own_host(rk->world);
    if (nhosts == 1 || rk->rank != world_first(rk->world, host)) return 0;
    struct meet *meet = rk->meet = mem_calloc(1, sizeof *meet);
    meet->nothers = host == 0 ? nhosts - 1 : 1;
    meet->others = mem_calloc(meet->nothers, sizeof *meet->others);
    meet->polls = mem_calloc(meet->nothers, sizeof *meet->polls);
    for (uint32_t i = 0; i < meet->nothers; i++)
        courier_init(&meet->others[i].courier, -1);
    rank_says(rk, "meeting the other hosts");
    char address[NET_NAME];
    if (sock_address(world_net(rk->world)->iface, false, address, err)) return -1;
    int bad = host == 0 ? receive_all(rk, address, err) : connect_to_first(rk, address, err);
    return bad ? bad : probe(rk, address, err);
}

void meet_close(struct rank *rk)
{
    struct meet *meet = rk->meet;
    if (!meet) return;
    for (uint32_t i = 0; i < meet->nothers; i++)
        courier_release(&meet->others[i].courier);
    pack_release(&meet->own);
    pack_release(&meet->answer);
    free(meet->others);
    free(meet->polls);
    free(meet);
    rk->meet = NULL;
}
