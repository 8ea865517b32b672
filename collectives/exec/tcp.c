/* SPDX-License-Identifier: Apache-2.0
 * The transport over TCP. Between two ranks there are a few connections, made when the first handle
 * needs them and used by all handles; messages travel in frames, straight from the sender's slot
 * into the receiver's. Credits flow back, so that neither slots nor memory can overflow.
 *
 *   sender                                                             receiver
 *   room, post: slot n mod d --- DATA (wire, n, bytes) ------------->  slot n mod d: peek
 *   released, room           <-- CREDIT (wire, messages released) ---  release
 *
 * Credits ride with data to the same peer; alone they go only when half of the room is owed, and
 * the wire has so many slots more: with them the sender always has the room that was asked for.
 *
 * A rank's loop (libuv) lives in rk->net, so that ranks can be threads. Every number that comes
 * from the network is checked against what the wire expects. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"
#include "exec/launch.h"
#include "exec/sock.h"
#include "sched/layout.h"

enum {
    CONNECTIONS = 2,         /* per pair, unless told otherwise */
    CONNECT_S = 10,          /* a peer listens before anybody connects: it has joined */
    HELLO_S = 1,             /* a hello that has begun to come is there within so long */
    STRIPE_BYTES = 32 << 10, /* shorter messages all take the first connection */
    BUFFER_BYTES = 16 << 10, /* of a connection: what one read takes in */
    LINE = 64,               /* slots start at multiples of it */
    BATCH = 32,              /* frames in one system call */
    LEAVE_MS = 5000,         /* peers say goodbye within so long */
    EARLY_MOST = 4096,       /* wires of a peer that are not open here yet, in the mean */
};

enum frame_kind { FRAME_OPEN = 1, FRAME_DATA, FRAME_CREDIT, FRAME_GOODBYE };

/* The head of a frame; all ranks have one byte order: see hosts.h. */
struct frame {
    uint32_t kind;   /* enum frame_kind */
    uint32_t wire;   /* number of the wire at who gets the frame; OPEN: at who sends it */
    uint64_t number; /* DATA: of the message; CREDIT: messages released; OPEN: see open_word */
    uint64_t bytes;  /* DATA: that follow; OPEN: of a slot */
};

/* ---- connections ---- */

struct outgoing {
    struct frame frame;
    const uint8_t *payload; /* in a slot; frame.bytes of it */
    uint32_t *unsent;       /* counts it until it has gone */
};

struct net;

struct conn {
    uv_poll_t poll;
    struct net *net;
    uint32_t peer;     /* world rank; UINT32_MAX: it has not said who it is */
    uint32_t number;   /* among those to that peer */
    bool met;          /* its hello has come */
    uint64_t since_ms; /* .. or is awaited since then */
    int fd;
    int events;   /* asked of the loop */
    bool goodbye; /* the peer is done */
    bool dirty;   /* in the net's list of those with new frames */
    struct conn *next_dirty;
    uint8_t *in; /* BUFFER_BYTES, read but not looked at: [from, to) */
    size_t from, to;
    struct tcp_wire *filling; /* its slot takes the next `left` bytes */
    uint8_t *fill_at;
    uint64_t left, filling_number;
    struct outgoing *out; /* [first, count): to be sent; of the first, `sent` bytes are */
    size_t first, count, cap, sent;
};

/* What lies in a slot of a receiver. */
struct arrival {
    uint64_t number, bytes; /* of the message, plus 1; 0: none yet */
};

struct tcp_wire {
    struct wire wire;
    struct net *net;
    struct tcp_state *state;
    uint32_t id, theirs; /* number here; at the peer, UINT32_MAX: it has not opened yet */
    uint32_t world_peer, tag, channel;
    uint32_t patience;
    bool sends, credit_due;
    uint8_t *slots;
    size_t stride;           /* from slot to slot */
    uint64_t released;       /* messages that the receiver has released */
    uint64_t told;           /* receiver: .. and has told the sender of */
    struct arrival *arrived; /* receiver: by slot */
    struct tcp_wire *next_due;
};

/* An OPEN that came before its wire was opened here. */
struct early {
    uint32_t peer, theirs;
    uint64_t word, slot_bytes;
};

/* What a rank's handles share. */
struct net {
    uv_loop_t loop;
    struct rank *rk;
    uv_poll_t listening;
    int listener;
    char address[NET_NAME];
    uint32_t nconns;      /* per pair */
    struct conn ***pairs; /* by world rank: NULL, or nconns connections, NULL: not there yet */
    struct conn **guests; /* have not said who they are */
    size_t nguests, guests_cap;
    struct tcp_wire **wires; /* by number; NULL: free */
    size_t nwires, wires_cap;
    struct early *early;
    size_t nearly, early_cap;
    struct tcp_wire *due; /* wires whose credits are to be told */
    struct conn *dirty;   /* connections with frames that nobody has tried to send */
    uint32_t unsent;      /* frames that belong to no handle, and have not gone */
};

struct tcp_state {
    struct net *net;
    struct tcp_wire *wires;
    uint32_t nwires;
    uint32_t unsent; /* its frames that have not gone to the kernel */
    uint8_t *slots;
    struct arrival *arrived;
};

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static _Noreturn void lose(struct conn *conn, const char *why)
{
    struct rank *rk = conn->net->rk;
    struct err err = ERR_INIT;
    err_add(&err, ERR_FAILED, "the connection to rank %u (%s) is lost: %s", conn->peer,
            world_status(rk->world, conn->peer)->card.address, why);
    rank_lost(rk, conn->peer, &err);
}

static void on_event(uv_poll_t *poll, int status, int events);

/* Tells the loop what to look for. */
static void conn_watch(struct conn *conn)
{
    int events = UV_READABLE | (conn->first < conn->count ? UV_WRITABLE : 0);
    if (events == conn->events || conn->fd < 0) return;
    conn->events = events;
    uv_poll_start(&conn->poll, events, on_event);
}

/* ---- sending ---- */

static void conn_queue(struct conn *conn, const struct frame *frame, const uint8_t *payload,
                       uint32_t *unsent)
{
    if (conn->first > 0 && (conn->first == conn->count || conn->count == conn->cap)) {
        conn->count -= conn->first;
        memmove(conn->out, conn->out + conn->first, conn->count * sizeof *conn->out);
        conn->first = 0;
    }
    MEM_GROW(conn->out, conn->count, conn->cap);
    conn->out[conn->count++] = (struct outgoing){*frame, payload, unsent};
    ++*unsent;
    if (conn->dirty) return;
    conn->dirty = true;
    conn->next_dirty = conn->net->dirty;
    conn->net->dirty = conn;
}

/* The parts of the frames that wait, without what has been sent. */
static int gather(const struct conn *conn, struct iovec *parts)
{
    int count = 0;
    size_t skip = conn->sent;
    for (size_t i = conn->first; i < conn->count && i < conn->first + BATCH; i++) {
        struct outgoing *out = &conn->out[i];
        size_t payload = out->payload ? out->frame.bytes : 0;
        size_t head = skip < sizeof out->frame ? skip : sizeof out->frame;
        if (head < sizeof out->frame)
            parts[count++] =
                (struct iovec){(uint8_t *)&out->frame + head, sizeof out->frame - head};
        if (payload > skip - head)
            parts[count++] = (struct iovec){(void *)(uintptr_t)(out->payload + (skip - head)),
                                            payload - (skip - head)};
        skip = 0;
    }
    return count;
}

/* Sends as much as the socket takes. */
static void conn_flush(struct conn *conn)
{
    while (conn->first < conn->count) {
        struct iovec parts[2 * BATCH];
        struct msghdr message = {.msg_iov = parts};
        message.msg_iovlen = (size_t)gather(conn, parts);
        ssize_t sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) break;
        if (sent < 0) lose(conn, strerror(errno));
        conn->sent += (size_t)sent;
        while (conn->first < conn->count) {
            const struct outgoing *out = &conn->out[conn->first];
            size_t whole = sizeof out->frame + (out->payload ? out->frame.bytes : 0);
            if (conn->sent < whole) break;
            conn->sent -= whole;
            conn->first++;
            --*out->unsent;
        }
    }
    conn_watch(conn);
}

/* Releases that a receiver may keep to itself, plus 1, on a wire with so many messages of room. */
static uint32_t patience(uint32_t depth)
{
    return (depth + 1) / 2;
}

static void tell_credits(struct net *net, bool all)
{
    for (struct tcp_wire **link = &net->due, *w; (w = *link);) {
        struct conn *conn = net->pairs[w->world_peer][0];
        if (!all && !conn->dirty && w->released - w->told < w->patience) {
            link = &w->next_due;
            continue;
        }
        struct frame frame = {.kind = FRAME_CREDIT, .wire = w->theirs, .number = w->released};
        conn_queue(conn, &frame, NULL, &w->state->unsent);
        w->told = w->released;
        w->credit_due = false;
        *link = w->next_due;
    }
}

/* Sends what is new; what a socket did not take goes on when the loop sees room. `all`: every
 * credit, too, since nobody may come to send it later. */
static void net_flush(struct net *net, bool all)
{
    tell_credits(net, all);
    while (net->dirty) {
        struct conn *conn = net->dirty;
        net->dirty = conn->next_dirty;
        conn->dirty = false;
        if (!(conn->events & UV_WRITABLE)) conn_flush(conn);
    }
}

/* ---- receiving ---- */

static uint64_t open_word(uint32_t tag, uint32_t channel, bool sends)
{
    return (uint64_t)tag << 32 | (uint64_t)channel << 1 | sends;
}

/* The wire that a peer's frame means; ends the run when it means none. */
static struct tcp_wire *wire_of(struct conn *conn, const struct frame *frame, bool sends)
{
    struct net *net = conn->net;
    struct tcp_wire *w = frame->wire < net->nwires ? net->wires[frame->wire] : NULL;
    if (!w || w->world_peer != conn->peer || w->sends != sends)
        lose(conn, "it names a wire that is not open");
    return w;
}

static void take_data(struct conn *conn, const struct frame *frame)
{
    struct tcp_wire *w = wire_of(conn, frame, false);
    uint64_t at = frame->number % w->wire.depth;
    bool fits = frame->bytes <= w->wire.slot_bytes && frame->number >= w->wire.next &&
                frame->number - w->wire.next < w->wire.depth &&
                w->arrived[at].number <= frame->number;
    if (!fits) lose(conn, "a message has a number or a length that its wire does not expect");
    conn->filling = w;
    conn->filling_number = frame->number;
    conn->fill_at = w->slots + at * w->stride;
    conn->left = frame->bytes;
    w->arrived[at].bytes = frame->bytes;
}

static void take_credit(struct conn *conn, const struct frame *frame)
{
    struct tcp_wire *w = wire_of(conn, frame, true);
    if (frame->number < w->released || frame->number > w->wire.next)
        lose(conn, "it releases messages that were never sent");
    w->released = frame->number;
}

/* A wire of a handle that is open here is met; else it is remembered. */
static void take_open(struct conn *conn, const struct frame *frame)
{
    struct net *net = conn->net;
    for (size_t i = 0; i < net->nwires; i++) {
        struct tcp_wire *w = net->wires[i];
        if (!w || w->world_peer != conn->peer || w->theirs != UINT32_MAX) continue;
        if (open_word(w->tag, w->channel, !w->sends) != frame->number) continue;
        if (w->wire.slot_bytes != frame->bytes) lose(conn, "its slots have another length");
        w->theirs = frame->wire;
        return;
    }
    if (net->nearly >= (size_t)EARLY_MOST * net->rk->nranks)
        lose(conn, "it opens more wires than a run has");
    MEM_GROW(net->early, net->nearly, net->early_cap);
    net->early[net->nearly++] =
        (struct early){conn->peer, frame->wire, frame->number, frame->bytes};
}

static void take_goodbye(struct conn *conn, const struct frame *frame)
{
    (void)frame;
    conn->goodbye = true;
}

static void take_frame(struct conn *conn, const struct frame *frame)
{
    static void (*const take[])(struct conn *, const struct frame *) = {
        [FRAME_OPEN] = take_open,
        [FRAME_DATA] = take_data,
        [FRAME_CREDIT] = take_credit,
        [FRAME_GOODBYE] = take_goodbye,
    };
    if (frame->kind >= sizeof take / sizeof *take || !take[frame->kind])
        lose(conn, "it does not speak this protocol");
    take[frame->kind](conn, frame);
}

static void arrived(struct conn *conn)
{
    struct tcp_wire *w = conn->filling;
    w->arrived[conn->filling_number % w->wire.depth].number = conn->filling_number + 1;
    conn->filling = NULL;
}

/* Takes apart what is in the buffer. */
static void conn_parse(struct conn *conn)
{
    for (;;) {
        size_t here = conn->to - conn->from;
        if (conn->filling) {
            size_t step = here < conn->left ? here : conn->left;
            memcpy(conn->fill_at, conn->in + conn->from, step);
            conn->from += step;
            conn->fill_at += step;
            conn->left -= step;
            if (conn->left > 0) break;
            arrived(conn);
        } else if (here >= sizeof(struct frame)) {
            struct frame frame;
            memcpy(&frame, conn->in + conn->from, sizeof frame);
            conn->from += sizeof frame;
            take_frame(conn, &frame);
        } else {
            memmove(conn->in, conn->in + conn->from, here);
            conn->from = 0;
            conn->to = here;
            return;
        }
    }
    conn->from = conn->to = 0;
}

/* Reads until nothing is there: the rest of a long message straight into its slot. */
static void conn_read(struct conn *conn)
{
    for (;;) {
        bool direct = conn->filling && conn->left >= BUFFER_BYTES;
        uint8_t *at = direct ? conn->fill_at : conn->in + conn->to;
        size_t room = direct ? conn->left : BUFFER_BYTES - conn->to;
        ssize_t got = recv(conn->fd, at, room, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0 && conn->goodbye) {
            uv_poll_stop(&conn->poll);
            close(conn->fd);
            conn->fd = -1;
            return;
        }
        if (got <= 0) lose(conn, got < 0 ? strerror(errno) : "it was closed at the other end");
        if (direct) {
            conn->fill_at += got;
            conn->left -= (uint64_t)got;
            if (conn->left == 0) arrived(conn);
        } else {
            conn->to += (size_t)got;
            conn_parse(conn);
        }
        if ((size_t)got < room) return;
    }
}

/* ---- meeting peers ---- */

static struct conn *conn_new(struct net *net, int fd, uint32_t peer, uint32_t number)
{
    struct conn *conn = mem_calloc(1, sizeof *conn);
    *conn =
        (struct conn){.net = net, .fd = fd, .peer = peer, .number = number, .since_ms = now_ms()};
    conn->in = mem_calloc(BUFFER_BYTES, 1);
    sock_await_hello(fd, true);
    uv_poll_init(&net->loop, &conn->poll, fd);
    conn->poll.data = conn;
    conn_watch(conn);
    return conn;
}

static void on_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    if (conn->fd >= 0) close(conn->fd);
    free(conn->in);
    free(conn->out);
    free(conn);
}

static void conn_close(struct conn *conn)
{
    uv_close((uv_handle_t *)&conn->poll, on_closed);
}

static struct conn **pair_of(struct net *net, uint32_t peer)
{
    if (!net->pairs[peer]) net->pairs[peer] = mem_calloc(net->nconns, sizeof(struct conn *));
    return net->pairs[peer];
}

static void drop_guest(struct net *net, struct conn *conn)
{
    size_t at = 0;
    while (net->guests[at] != conn)
        at++;
    net->guests[at] = net->guests[--net->nguests];
}

/* Takes the hello, which is there as a whole or never will be. Somebody who has connected says who
 * it is and gets an answer; strangers are sent away. */
static void greet(struct conn *conn)
{
    struct net *net = conn->net;
    uint32_t me = net->rk->rank;
    const uint8_t *token = world_token(net->rk->world);
    struct sock_hello hello, own = {.purpose = SOCK_DATA, .rank = me, .number = conn->number};
    bool guest = conn->peer == UINT32_MAX;
    if (guest) drop_guest(net, conn);
    bool good =
        !sock_hello_take(conn->fd, token, 0, &hello) && hello.purpose == SOCK_DATA &&
        hello.number < net->nconns &&
        (guest ? hello.rank < me : hello.rank == conn->peer && hello.number == conn->number);
    struct conn **pair = good ? pair_of(net, hello.rank) : NULL;
    if (guest && (!pair || pair[hello.number])) {
        conn_close(conn);
        return;
    }
    if (!good) lose(conn, "who answers there does not know this run's token");
    struct err err = ERR_INIT;
    own.number = hello.number;
    conn->peer = hello.rank;
    conn->number = (uint32_t)hello.number;
    conn->met = true;
    pair[hello.number] = conn;
    sock_await_hello(conn->fd, false);
    if (guest && sock_hello_send(conn->fd, token, &own, HELLO_S, &err)) rank_fail(net->rk, &err);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct conn *conn = poll->data;
    if (!conn->met) {
        greet(conn);
        return;
    }
    if (status >= 0 && events & UV_WRITABLE) conn_flush(conn);
    if (conn->fd >= 0) conn_read(conn); /* says more about an error than the status does */
    if (status < 0 && !conn->goodbye) lose(conn, uv_strerror(status));
}

/* Who has said nothing for long makes room for others. */
static void drop_silent(struct net *net)
{
    for (size_t i = net->nguests; i-- > 0;) {
        if (now_ms() - net->guests[i]->since_ms > HELLO_S * 1000) greet(net->guests[i]);
    }
}

static void on_guest(uv_poll_t *poll, int status, int events)
{
    struct net *net = poll->data;
    (void)status, (void)events;
    int fd;
    drop_silent(net);
    while ((fd = accept4(net->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        sock_no_delay(fd);
        MEM_GROW(net->guests, net->nguests, net->guests_cap);
        net->guests[net->nguests++] = conn_new(net, fd, UINT32_MAX, 0);
    }
}

/* One connection; the watcher sees meanwhile for whom this rank waits. */
static int connect_peer(struct net *net, uint32_t peer, struct err *err)
{
    struct rank *rk = net->rk;
    const struct rank_card *card = &world_status(rk->world, peer)->card;
    for (int second = 1;; second++) {
        struct err said = ERR_INIT;
        int fd = sock_connect(card->address, net->address, 1, &said);
        if (fd >= 0 || second == CONNECT_S) {
            rank_goes_on(rk);
            err_move(err, &said);
            return fd;
        }
        err_release(&said);
        rank_waits(rk, 0, WAIT_CONNECTION, (int32_t)peer, 0);
        rank_beat(rk);
    }
}

/* The connections to a higher rank are made from here, those to a lower one come. */
static int connect_pair(struct net *net, uint32_t peer, struct err *err)
{
    struct rank *rk = net->rk;
    struct conn **pair = pair_of(net, peer);
    const struct rank_card *card = &world_status(rk->world, peer)->card;
    for (uint32_t i = 0; i < net->nconns && rk->rank < peer; i++) {
        if (pair[i]) continue;
        struct sock_hello hello = {.purpose = SOCK_DATA, .rank = rk->rank, .number = i};
        int fd = connect_peer(net, peer, err);
        if (fd >= 0) pair[i] = conn_new(net, fd, peer, i);
        if (fd < 0 || sock_hello_send(fd, world_token(rk->world), &hello, HELLO_S, err))
            return err_add(err, ERR_FAILED, "rank %u cannot reach rank %u at %s", rk->rank, peer,
                           card->address);
        rank_tick(rk);
    }
    return 0;
}

/* Turns the loop until there is something to do, and tells the watcher for whom that is. */
static void turn(struct net *net, uint32_t peer)
{
    struct rank *rk = net->rk;
    net_flush(net, true);
    rank_beat(rk);
    rank_waits(rk, 0, WAIT_CONNECTION, (int32_t)peer, 0);
    struct pollfd one = {.fd = uv_backend_fd(&net->loop), .events = POLLIN};
    poll(&one, 1, 1);
    uv_run(&net->loop, UV_RUN_NOWAIT);
    rank_goes_on(rk);
}

static bool is_met(const struct net *net, uint32_t peer)
{
    for (uint32_t i = 0; i < net->nconns; i++) {
        if (!net->pairs[peer][i] || !net->pairs[peer][i]->met) return false;
    }
    return true;
}

/* ---- joining and leaving ---- */

static int tcp_join(struct rank *rk, struct err *err)
{
    struct net *net = rk->net = mem_calloc(1, sizeof *net);
    const struct net_spec *spec = world_net(rk->world);
    struct rank_card *card = &rk->status->card;
    net->rk = rk;
    net->listener = -1;
    net->nconns = spec->connections ? spec->connections : CONNECTIONS;
    net->pairs = mem_calloc(rk->nranks, sizeof *net->pairs);
    int rc = uv_loop_init(&net->loop);
    if (rc) {
        free(net->pairs);
        free(net);
        rk->net = NULL;
        return err_add(err, ERR_FAILED, "cannot start an event loop: %s", uv_strerror(rc));
    }
    if (sock_address(spec->iface, world_nhosts(rk->world) == 1, net->address, err)) return -1;
    net->listener = sock_listen(net->address, 0, card->address, err);
    if (net->listener < 0) return -1;
    net->listening.data = net;
    uv_poll_init(&net->loop, &net->listening, net->listener);
    uv_poll_start(&net->listening, UV_READABLE, on_guest);
    return 0;
}

/* Every peer is told that this was all, and hears it from every peer; then nothing is on its way
 * any more, and closing loses nothing. */
static void say_goodbye(struct net *net)
{
    uint64_t end_ms = now_ms() + LEAVE_MS;
    struct frame frame = {.kind = FRAME_GOODBYE};
    uint32_t none = net->rk->nranks, behind = 0;
    for (bool first = true; behind != none && now_ms() < end_ms; first = false) {
        behind = none;
        for (uint32_t r = 0; r < net->rk->nranks; r++) {
            struct conn **pair = net->pairs[r];
            for (uint32_t i = 0; pair && i < net->nconns; i++) {
                if (!pair[i] || pair[i]->fd < 0) continue;
                if (first) conn_queue(pair[i], &frame, NULL, &net->unsent);
                if (!pair[i]->goodbye || pair[i]->first < pair[i]->count) behind = r;
            }
        }
        if (behind != none) turn(net, behind);
    }
}

static void tcp_leave(struct rank *rk)
{
    struct net *net = rk->net;
    if (!net) return;
    say_goodbye(net);
    for (uint32_t r = 0; r < rk->nranks; r++) {
        for (uint32_t i = 0; net->pairs[r] && i < net->nconns; i++) {
            if (net->pairs[r][i]) conn_close(net->pairs[r][i]);
        }
        free(net->pairs[r]);
    }
    for (size_t i = 0; i < net->nguests; i++)
        conn_close(net->guests[i]);
    if (net->listener >= 0) {
        uv_close((uv_handle_t *)&net->listening, NULL);
        close(net->listener);
    }
    uv_run(&net->loop, UV_RUN_DEFAULT);
    uv_loop_close(&net->loop);
    free(net->pairs);
    free(net->guests);
    free(net->wires);
    free(net->early);
    free(net);
    rk->net = NULL;
}

static bool tcp_drop(struct rank *rk)
{
    struct net *net = rk->net;
    for (uint32_t r = 0; r < rk->nranks; r++) {
        if (net->pairs[r] && net->pairs[r][0]) {
            shutdown(net->pairs[r][0]->fd, SHUT_RDWR);
            return true;
        }
    }
    return false;
}

static const char *tcp_absent(void)
{
    return NULL;
}

/* ---- the fast side ---- */

static void *tcp_room(struct wire *wire, size_t bytes)
{
    struct tcp_wire *w = (struct tcp_wire *)wire;
    (void)bytes;
    if (wire->next - w->released >= wire->depth) return NULL;
    return w->slots + wire->next % wire->depth * w->stride;
}

static void tcp_post(struct wire *wire, size_t bytes, struct pull_ref ref)
{
    struct tcp_wire *w = (struct tcp_wire *)wire;
    (void)ref;
    struct frame frame = {
        .kind = FRAME_DATA, .wire = w->theirs, .number = wire->next, .bytes = bytes};
    uint32_t turn = bytes < STRIPE_BYTES ? 0 : (uint32_t)(wire->next % w->net->nconns);
    const uint8_t *payload = w->slots + wire->next % wire->depth * w->stride;
    struct conn *conn = w->net->pairs[w->world_peer][turn];
    conn_queue(conn, &frame, bytes ? payload : NULL, &w->state->unsent);
    if (bytes >= STRIPE_BYTES && !(conn->events & UV_WRITABLE)) conn_flush(conn);
    wire->next++;
}

static const void *tcp_peek(struct wire *wire, size_t bytes, struct pull_ref *ref)
{
    struct tcp_wire *w = (struct tcp_wire *)wire;
    (void)ref;
    uint64_t at = wire->next % wire->depth;
    if (w->arrived[at].number != wire->next + 1) return NULL;
    if (w->arrived[at].bytes != bytes)
        lose(w->net->pairs[w->world_peer][0], "a message has another length than was agreed on");
    return w->slots + at * w->stride;
}

static void tcp_release(struct wire *wire)
{
    struct tcp_wire *w = (struct tcp_wire *)wire;
    w->released = ++wire->next;
    if (w->credit_due) return;
    w->credit_due = true;
    w->next_due = w->net->due;
    w->net->due = w;
}

static bool tcp_released(struct wire *wire, uint64_t number)
{
    return ((struct tcp_wire *)wire)->released > number;
}

static bool tcp_idle(void *opened)
{
    struct tcp_state *state = opened;
    net_flush(state->net, false);
    return state->unsent == 0;
}

static void tcp_poll(void *opened)
{
    struct tcp_state *state = opened;
    net_flush(state->net, false);
    uv_run(&state->net->loop, UV_RUN_NOWAIT);
}

static void tcp_wait(void *opened, uint32_t us)
{
    struct tcp_state *state = opened;
    struct pollfd one = {.fd = uv_backend_fd(&state->net->loop), .events = POLLIN};
    struct timespec most = {.tv_nsec = (long)us * 1000};
    net_flush(state->net, false);
    ppoll(&one, 1, &most, NULL);
}

/* ---- handles ---- */

static uint32_t slots_of(uint32_t depth)
{
    return depth + patience(depth) - 1;
}

static void wire_open(struct tcp_wire *w, struct tcp_state *state, const struct wire_spec *spec,
                      const struct lwire *lwire)
{
    struct net *net = state->net;
    size_t id = 0;
    while (id < net->nwires && net->wires[id])
        id++;
    if (id == net->nwires) {
        MEM_GROW(net->wires, net->nwires, net->wires_cap);
        net->nwires++;
    }
    net->wires[id] = w;
    *w = (struct tcp_wire){.wire = {.peer = lwire->peer,
                                    .depth = slots_of(spec->depth),
                                    .mode = WIRE_STAGED,
                                    .slot_bytes = spec->slot_bytes},
                           .net = net,
                           .state = state,
                           .id = (uint32_t)id,
                           .theirs = UINT32_MAX,
                           .world_peer = spec->group ? spec->group[lwire->peer] : lwire->peer,
                           .tag = spec->tag,
                           .channel = lwire->channel,
                           .patience = patience(spec->depth),
                           .sends = lwire->send,
                           .slots = w->slots,
                           .stride = w->stride,
                           .arrived = w->arrived};
}

/* Tells the peer that the wire is open, and looks whether the peer has said so already. */
static void wire_meet(struct tcp_wire *w)
{
    struct net *net = w->net;
    struct frame frame = {.kind = FRAME_OPEN,
                          .wire = w->id,
                          .number = open_word(w->tag, w->channel, w->sends),
                          .bytes = w->wire.slot_bytes};
    conn_queue(net->pairs[w->world_peer][0], &frame, NULL, &w->state->unsent);
    for (size_t i = 0; i < net->nearly; i++) {
        const struct early *early = &net->early[i];
        if (early->peer != w->world_peer || early->word != open_word(w->tag, w->channel, !w->sends))
            continue;
        if (early->slot_bytes != w->wire.slot_bytes)
            lose(net->pairs[w->world_peer][0], "its slots have another length");
        w->theirs = early->theirs;
        net->early[i] = net->early[--net->nearly];
        return;
    }
}

/* The world rank that has not taken all yet, or that has not been told all; UINT32_MAX: none. */
static uint32_t who_is_behind(const struct tcp_state *state)
{
    for (uint32_t i = 0; i < state->nwires; i++) {
        const struct tcp_wire *w = &state->wires[i];
        if (w->sends ? w->released < w->wire.next : w->credit_due) return w->world_peer;
    }
    return state->unsent ? state->wires[0].world_peer : UINT32_MAX;
}

static void tcp_close(void *opened)
{
    struct tcp_state *state = opened;
    for (uint32_t peer; (peer = who_is_behind(state)) != UINT32_MAX;)
        turn(state->net, peer);
    for (uint32_t i = 0; i < state->nwires; i++) {
        state->net->wires[state->wires[i].id] = NULL;
    }
    free(state->arrived);
    slots_free(state->net->rk, state->slots);
    free(state->wires);
    free(state);
}

static int tcp_open(const struct wire_spec *spec, struct wire **wires, struct wire_buffers *peers,
                    void **opened, struct err *err)
{
    struct net *net = spec->rank->net;
    (void)peers;
    struct tcp_state *state = mem_calloc(1, sizeof *state);
    *opened = state;
    state->net = net;
    state->wires = mem_calloc(spec->nwires, sizeof *state->wires);
    size_t stride = spec->slot_bytes / LINE * LINE + LINE, depth = slots_of(spec->depth),
           slots = spec->nwires * depth;
    state->slots = slots_alloc(spec->rank, slots, stride, err);
    if (!state->slots) return -1;
    state->arrived = mem_calloc(slots, sizeof *state->arrived);
    for (uint32_t i = 0; i < spec->nwires; i++) {
        state->wires[i].stride = stride;
        state->wires[i].slots = state->slots + i * depth * stride;
        state->wires[i].arrived = state->arrived + i * depth;
        wire_open(&state->wires[i], state, spec, &spec->wires[i]);
        wires[i] = &state->wires[i].wire;
        state->nwires++;
        if (connect_pair(net, state->wires[i].world_peer, err)) return -1;
    }
    for (uint32_t i = 0; i < spec->nwires; i++) {
        while (!is_met(net, state->wires[i].world_peer))
            turn(net, state->wires[i].world_peer);
        wire_meet(&state->wires[i]);
    }
    for (uint32_t i = 0; i < spec->nwires; i++) {
        while (state->wires[i].theirs == UINT32_MAX)
            turn(net, state->wires[i].world_peer);
    }
    while (!tcp_idle(state)) /* peers wait for what was said here */
        turn(net, state->wires[0].world_peer);
    return 0;
}

const struct transport tcp_transport = {
    .name = "tcp",
    .modes = 1u << WIRE_STAGED,
    .engine = &host_engine,
    .suits = {[WIRE_STAGED] = {256 << 10, 4}},
    .slot_budget = 32 << 20,
    .granule = LAYOUT_GRANULE,
    .message_align = 1,
    .alloc = rank_alloc,
    .absent = tcp_absent,
    .connections = CONNECTIONS,
    .connection_bytes = BUFFER_BYTES,
    .join = tcp_join,
    .leave = tcp_leave,
    .drop = tcp_drop,
    .open = tcp_open,
    .close = tcp_close,
    .room = tcp_room,
    .post = tcp_post,
    .peek = tcp_peek,
    .release = tcp_release,
    .released = tcp_released,
    .idle = tcp_idle,
    .poll = tcp_poll,
    .wait = tcp_wait,
};
