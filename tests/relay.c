/* SPDX-License-Identifier: Apache-2.0
 * Links in user space: passes TCP connections on with a delay, at a rate, and with scripted faults.
 * Needs no root, so that latencies and failures between ranks can be tested anywhere. Each
 * direction of a pair is one link that all its connections share, first come, first served:
 *
 *     connects --> listen [ read | the link: one piece after the other, at the rate | delay ] to
 * --> ^ stops when it holds delay x rate + window bytes: back-pressure
 *
 *     relay --listen ADDR:PORT --to ADDR:PORT [options]      more pairs may follow; see --help
 *
 * With `--to named` each connection says first where it wants to go, which via.c does for programs
 * that know nothing of a relay; each target has a link of its own.
 *
 * For each pair it prints "listening ADDR:PORT for ADDR:PORT" and runs until it is killed.
 * Handshakes are not delayed. A target that does not answer is told by a reset. Segments are queued
 * with their time as in a discrete-event simulation; the clock is CLOCK_MONOTONIC. */
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/units.h"

enum { CHUNK = 16384 }; /* bytes read at once, at most: connections take turns by it */
enum { FOREVER_S = 10 * 365 * 86400 };

/* What stands in a queue: bytes, or what happens once all before it has gone on. */
enum event {
    EVENT_DATA,
    EVENT_END,   /* the sender has closed its direction */
    EVENT_BREAK, /* both sides are closed with a reset; also when the sender did so */
    EVENT_DROP,  /* both sides are closed */
    EVENT_STALL, /* nothing of this connection moves for a time */
    EVENT_DELAY, /* what follows waits for a time */
    EVENT_FLIP,  /* never queued: changes a byte as it is read */
};

/* A fault by its name. */
static const struct fault_kind {
    const char *name;
    enum event event;
    bool may_last, must_last; /* takes, needs a time */
} fault_kinds[] = {
    {"drop", EVENT_DROP, false, false},  {"reset", EVENT_BREAK, false, false},
    {"stall", EVENT_STALL, true, false}, {"delay", EVENT_DELAY, true, true},
    {"flip", EVENT_FLIP, false, false},
};

/* Happens once, to the connection whose bytes are the first to reach byte `at` of its link. */
struct fault {
    const struct fault_kind *kind;
    unsigned way; /* 0: from the connecting side to the target, 1: back */
    uint64_t at;  /* bytes that went this way before */
    uint64_t lasts_ns;
    bool done;
};

struct address {
    struct sockaddr_storage at;
    socklen_t length; /* 0: not given */
};

/* One direction of a link. */
struct way {
    uint64_t free_ns; /* when it has sent all that was read */
    uint64_t passed;  /* bytes read */
};

/* To one target. */
struct link {
    struct address to;
    struct way ways[2];
};

struct pair {
    struct address listen;
    bool named;          /* connections name their targets */
    struct link **links; /* otherwise one */
    size_t nlinks, links_cap;
    uint64_t delay_ns;
    double rate_Bps; /* 0: as fast as it goes */
    uint64_t window; /* bytes */
    struct fault *faults;
    size_t nfaults, faults_cap;
    int fd;
};

struct segment {
    struct segment *next;
    uint64_t due_ns; /* leaves at this time */
    enum event event;
    uint64_t lasts_ns; /* STALL */
    size_t bytes, sent;
    uint8_t data[];
};

/* One direction of a connection: what was read of fds[way] and not yet written to fds[1 - way]. */
struct lane {
    struct segment *first, **last;
    size_t held;  /* bytes of memory */
    bool ended;   /* nothing more is read */
    bool blocked; /* the receiver takes nothing at present */
    bool closed;  /* its end has been passed on */
};

struct connection {
    struct pair *pair;
    struct link *link; /* NULL: it has not named its target yet */
    int fds[2];        /* of the connecting side, of the target */
    bool connecting, dead;
    uint64_t still_ns; /* stalled until then */
    struct lane lanes[2];
};

struct relay {
    struct pair common; /* settings before the first pair hold for all */
    struct pair *pairs;
    size_t npairs, pairs_cap;
    struct connection **connections;
    size_t nconnections, connections_cap;
    struct pollfd *polls;
    size_t polls_cap;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- options ---- */

/* "127.0.0.1:80" or "[::1]:80"; `ports` is the least port. */
static int read_address(const char *option, const char *text, unsigned least_port,
                        struct address *address, struct err *err)
{
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    bool brackets = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    char *host = mem_printf("%.*s", (int)(brackets ? length - 2 : length), text + brackets);
    uint64_t port = 0;
    int status = -1;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (!colon || !length || getaddrinfo(host, NULL, &hints, &found) != 0) {
        err_add(err, ERR_USAGE, "%s: \"%s\" is no numeric ADDRESS:PORT", option, text);
    } else if (units_read_uint(option, colon + 1, least_port, 65535, &port, err) == 0) {
        memcpy(&address->at, found->ai_addr, found->ai_addrlen);
        address->length = found->ai_addrlen;
        in_port_t *at = found->ai_family == AF_INET
                            ? &((struct sockaddr_in *)&address->at)->sin_port
                            : &((struct sockaddr_in6 *)&address->at)->sin6_port;
        *at = htons((uint16_t)port);
        status = 0;
    }
    if (found) {
        freeaddrinfo(found);
    }
    free(host);
    return status;
}

/* The pair that an option holds for: the last one, or all that follow. */
static struct pair *current(struct relay *relay)
{
    return relay->npairs ? &relay->pairs[relay->npairs - 1] : &relay->common;
}

static int take_listen(struct relay *relay, const char *text, struct err *err)
{
    struct pair pair = relay->common;
    pair.faults = mem_calloc(pair.nfaults, sizeof *pair.faults);
    pair.faults_cap = pair.nfaults;
    for (size_t i = 0; i < pair.nfaults; i++) {
        pair.faults[i] = relay->common.faults[i];
    }
    pair.fd = -1;
    MEM_GROW(relay->pairs, relay->npairs, relay->pairs_cap);
    relay->pairs[relay->npairs++] = pair;
    return read_address("--listen", text, 0, &current(relay)->listen, err);
}

/* The link of a pair to a target, a new one if need be. */
static struct link *link_to(struct pair *pair, const struct address *to)
{
    for (size_t i = 0; i < pair->nlinks; i++) {
        const struct address *other = &pair->links[i]->to;
        if (other->length == to->length && memcmp(&other->at, &to->at, to->length) == 0) {
            return pair->links[i];
        }
    }
    struct link *link = mem_calloc(1, sizeof *link);
    link->to = *to;
    MEM_GROW(pair->links, pair->nlinks, pair->links_cap);
    pair->links[pair->nlinks++] = link;
    return link;
}

static int take_to(struct relay *relay, const char *text, struct err *err)
{
    if (!relay->npairs) {
        return err_add(err, ERR_USAGE, "--to %s comes before its --listen", text);
    }
    if (strcmp(text, "named") == 0) {
        current(relay)->named = true;
        return 0;
    }
    struct address to = {0};
    if (read_address("--to", text, 1, &to, err) != 0) {
        return -1;
    }
    link_to(current(relay), &to);
    return 0;
}

static int take_pair(struct relay *relay, const char *text, struct err *err)
{
    const char *comma = strchr(text, ',');
    if (!comma) {
        return err_add(err, ERR_USAGE, "--pair: \"%s\" is not LISTEN,TO", text);
    }
    char *first = mem_printf("%.*s", (int)(comma - text), text);
    int status = take_listen(relay, first, err);
    free(first);
    return status == 0 ? take_to(relay, comma + 1, err) : -1;
}

static int take_delay(struct relay *relay, const char *text, struct err *err)
{
    double delay_us;
    if (units_read_double("--delay-us", text, &delay_us, err) != 0) {
        return -1;
    }
    if (delay_us < 0 || delay_us > 1e6 * FOREVER_S) {
        return err_add(err, ERR_USAGE, "--delay-us %s is not from 0 to %g", text, 1e6 * FOREVER_S);
    }
    current(relay)->delay_ns = (uint64_t)(delay_us * 1e3);
    return 0;
}

static int take_rate(struct relay *relay, const char *text, struct err *err)
{
    return units_read_bandwidth("--rate", text, &current(relay)->rate_Bps, err);
}

static int take_window(struct relay *relay, const char *text, struct err *err)
{
    return units_read_size("--window", text, &current(relay)->window, err);
}

/* The time of a fault, behind its second colon or NULL. */
static int read_lasts(const char *text, const char *seconds, struct fault *fault, struct err *err)
{
    double lasts_s = FOREVER_S;
    if (seconds && !fault->kind->may_last) {
        return err_add(err, ERR_USAGE, "--fault %s: %s takes no time", text, fault->kind->name);
    }
    if (!seconds && fault->kind->must_last) {
        return err_add(err, ERR_USAGE, "--fault %s: %s needs a time, as in %s@0:1.5", text,
                       fault->kind->name, fault->kind->name);
    }
    if (seconds && units_read_time_s("--fault", seconds, true, &lasts_s, err) != 0) {
        return -1;
    }
    fault->lasts_ns = (uint64_t)(fmin(lasts_s, FOREVER_S) * 1e9);
    return 0;
}

/* [back:]KIND@BYTES[:SECONDS] */
static int take_fault(struct relay *relay, const char *text, struct err *err)
{
    struct fault fault = {0};
    fault.way = strncmp(text, "back:", 5) == 0;
    char *word = mem_strdup(text + (fault.way ? 5 : 0)), *bytes = strchr(word, '@');
    char *seconds = bytes ? strchr(bytes, ':') : NULL;
    if (bytes) {
        *bytes++ = '\0';
    }
    if (seconds) {
        *seconds++ = '\0';
    }
    for (size_t i = 0; i < sizeof fault_kinds / sizeof *fault_kinds; i++) {
        fault.kind = strcmp(word, fault_kinds[i].name) == 0 ? &fault_kinds[i] : fault.kind;
    }
    int status = -1;
    if (!bytes || !fault.kind) {
        err_add(err, ERR_USAGE,
                "--fault: \"%s\" is not [back:]KIND@BYTES[:SECONDS] with drop, reset, stall, delay "
                "or flip",
                text);
    } else if (units_read_size("--fault", bytes, &fault.at, err) == 0) {
        status = read_lasts(text, seconds, &fault, err);
    }
    free(word);
    struct pair *pair = current(relay);
    MEM_GROW(pair->faults, pair->nfaults, pair->faults_cap);
    pair->faults[pair->nfaults++] = fault;
    return status;
}

static const struct option {
    const char *name, *arg;
    int (*take)(struct relay *relay, const char *text, struct err *err);
    const char *help;
} options[] = {
    {"--listen", "ADDR:PORT", take_listen,
     "a pair: connections to here (port 0: any free one) ..."},
    {"--to", "ADDR:PORT", take_to, "... are passed on to there; named: to where each one says"},
    {"--pair", "LISTEN,TO", take_pair, "both in one"},
    {"--delay-us", "US", take_delay, "one-way delay, both ways; 0"},
    {"--rate", "BANDWIDTH", take_rate, "payload, each way, as 100Mb/s; without: unlimited"},
    {"--window", "SIZE", take_window,
     "held beside delay x rate before reading stops, and the sockets' buffers; 256K"},
    {"--fault", "FAULT", take_fault,
     "[back:]KIND@BYTES[:SECONDS], once per pair, when BYTES of it went from the connecting side\n"
     "                          to the target (back: the other way). drop: closes both sides;\n"
     "                          reset: the same with a reset; stall: nothing of the connection\n"
     "                          moves, for good or SECONDS; delay: what follows comes SECONDS\n"
     "                          later; flip: the lowest bit of byte number BYTES is turned"},
};
enum { NOPTIONS = sizeof options / sizeof *options };

static void help(void)
{
    printf("usage: relay --listen ADDR:PORT --to ADDR:PORT [options] [more pairs]\n\n"
           "Options behind a pair hold for it, those before the first pair for all.\n");
    for (size_t i = 0; i < NOPTIONS; i++) {
        printf("  %-12s %-10s %s\n", options[i].name, options[i].arg, options[i].help);
    }
}

static int read_options(struct relay *relay, int argc, char **argv, struct err *err)
{
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0;
        while (k < NOPTIONS && strcmp(argv[i], options[k].name) != 0) {
            k++;
        }
        if (k == NOPTIONS || i + 1 == argc) {
            return err_add(err, ERR_USAGE, "%s %s; see --help", argv[i],
                           k == NOPTIONS ? "is no option" : "needs a value");
        }
        if (options[k].take(relay, argv[i + 1], err) != 0) {
            return -1;
        }
    }
    for (size_t p = 0; p < relay->npairs; p++) {
        if (relay->pairs[p].nlinks + relay->pairs[p].named != 1) {
            return err_add(err, ERR_USAGE, "--listen number %zu needs one --to", p + 1);
        }
    }
    return relay->npairs ? 0 : err_add(err, ERR_USAGE, "no pair is given; see --help");
}

/* ---- sockets ---- */

static int text_of(const struct address *address, char *buffer, size_t bytes)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    int status = getnameinfo((const struct sockaddr *)&address->at, address->length, host,
                             sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    bool six = address->at.ss_family == AF_INET6;
    snprintf(buffer, bytes, six ? "[%s]:%s" : "%s:%s", host, port);
    return status;
}

/* A TCP socket that waits for nothing, with buffers as large as the window, so that the kernel
 * holds no more of a link than that on each side. */
static int new_socket(const struct pair *pair, int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    int buffer = (int)(pair->window < CHUNK     ? CHUNK
                       : pair->window > 1 << 30 ? 1 << 30
                                                : pair->window);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    }
    return fd;
}

static int open_pair(struct pair *pair, struct err *err)
{
    char text[NI_MAXHOST + NI_MAXSERV + 4], to[sizeof text] = "named";
    if (!pair->named) {
        text_of(&pair->links[0]->to, to, sizeof to);
    }
    text_of(&pair->listen, text, sizeof text);
    pair->fd = new_socket(pair, pair->listen.at.ss_family);
    struct sockaddr *at = (struct sockaddr *)&pair->listen.at;
    if (pair->fd < 0 || bind(pair->fd, at, pair->listen.length) != 0 ||
        listen(pair->fd, SOMAXCONN) != 0 || getsockname(pair->fd, at, &pair->listen.length) != 0) {
        return err_add(err, ERR_FAILED, "cannot listen on %s: %s", text, strerror(errno));
    }
    text_of(&pair->listen, text, sizeof text);
    printf("listening %s for %s\n", text, to);
    fflush(stdout);
    return 0;
}

/* Closes both sides; with a reset if `hard`. The connection is freed by the loop. */
static void end_connection(struct connection *c, bool hard)
{
    struct linger linger = {1, 0};
    for (int side = 0; side < 2 && !c->dead; side++) {
        if (c->fds[side] < 0) {
            continue;
        }
        if (hard) {
            setsockopt(c->fds[side], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        }
        close(c->fds[side]);
    }
    c->dead = true;
}

static void free_connection(struct connection *c)
{
    for (unsigned way = 0; way < 2; way++) {
        for (struct segment *s = c->lanes[way].first, *next; s; s = next) {
            next = s->next;
            free(s);
        }
    }
    free(c);
}

/* ---- the link ---- */

/* Queues `bytes` of data, or an event, behind all that was read of this direction: it leaves when
 * the link has sent it, at the rate, and the delay has passed. */
static void queue(struct connection *c, unsigned way, enum event event, const void *data,
                  size_t bytes, uint64_t lasts_ns)
{
    struct pair *pair = c->pair;
    struct way *link = &c->link->ways[way];
    struct lane *lane = &c->lanes[way];
    struct segment *s = mem_calloc(1, sizeof *s + bytes);
    uint64_t now = now_ns(), start = link->free_ns > now ? link->free_ns : now;
    if (pair->rate_Bps > 0) {
        start += (uint64_t)ceil((double)bytes * 1e9 / pair->rate_Bps);
    }
    if (bytes) {
        link->free_ns = start;
        memcpy(s->data, data, bytes);
    }
    s->due_ns = start + pair->delay_ns + (event == EVENT_DELAY ? lasts_ns : 0);
    s->event = event;
    s->lasts_ns = lasts_ns;
    s->bytes = bytes;
    *lane->last = s;
    lane->last = &s->next;
    lane->held += sizeof *s + bytes;
}

/* Whether a direction holds all it may: delay x rate, which is under way, and the window. Counted
 * in memory, so that a million single bytes are bounded as well. */
static bool is_full(const struct connection *c, unsigned way)
{
    const struct pair *pair = c->pair;
    double under_way = (double)pair->delay_ns * 1e-9 * pair->rate_Bps;
    return (double)c->lanes[way].held > under_way + (double)pair->window;
}

/* Faults whose byte has been reached, a flip excepted. */
static void fire_faults(struct connection *c, unsigned way)
{
    struct pair *pair = c->pair;
    for (size_t i = 0; i < pair->nfaults; i++) {
        struct fault *fault = &pair->faults[i];
        if (!fault->done && fault->way == way && fault->at == c->link->ways[way].passed &&
            fault->kind->event != EVENT_FLIP) {
            fault->done = true;
            queue(c, way, fault->kind->event, NULL, 0, fault->lasts_ns);
            bool closes = fault->kind->event == EVENT_DROP || fault->kind->event == EVENT_BREAK;
            c->lanes[way].ended |= closes;
            fprintf(stderr, "relay: %s at byte %llu %s\n", fault->kind->name,
                    (unsigned long long)fault->at, way ? "back" : "on its way");
        }
    }
}

/* Bytes that may be read before the next fault, at most CHUNK. */
static size_t bytes_to_fault(const struct connection *c, unsigned way)
{
    const struct pair *pair = c->pair;
    uint64_t most = CHUNK, passed = c->link->ways[way].passed;
    for (size_t i = 0; i < pair->nfaults; i++) {
        const struct fault *fault = &pair->faults[i];
        if (fault->way == way && fault->at > passed && fault->at - passed < most) {
            most = fault->at - passed;
        }
    }
    return (size_t)most;
}

/* Turns the lowest bit of the first byte if a flip is due there. */
static void flip(const struct connection *c, unsigned way, uint8_t *byte)
{
    struct pair *pair = c->pair;
    for (size_t i = 0; i < pair->nfaults; i++) {
        struct fault *fault = &pair->faults[i];
        if (!fault->done && fault->way == way && fault->at == c->link->ways[way].passed &&
            fault->kind->event == EVENT_FLIP) {
            fault->done = true;
            *byte ^= 1;
            fprintf(stderr, "relay: flip at byte %llu %s\n", (unsigned long long)fault->at,
                    way ? "back" : "on its way");
        }
    }
}

/* Reads one piece of what has arrived. */
static void read_lane(struct connection *c, unsigned way)
{
    uint8_t data[CHUNK];
    ssize_t got = recv(c->fds[way], data, bytes_to_fault(c, way), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got <= 0) {
        c->lanes[way].ended = true;
        queue(c, way, got == 0 ? EVENT_END : EVENT_BREAK, NULL, 0, 0);
        return;
    }
    flip(c, way, data);
    queue(c, way, EVENT_DATA, data, (size_t)got, 0);
    c->link->ways[way].passed += (uint64_t)got;
    fire_faults(c, way);
}

/* Does what the first segment of a lane is for. False if the receiver does not take all of it. */
static bool serve(struct connection *c, unsigned way, struct segment *s, uint64_t now)
{
    struct lane *lane = &c->lanes[way];
    switch (s->event) {
    case EVENT_DATA:
        while (s->sent < s->bytes) {
            ssize_t sent =
                send(c->fds[1 - way], s->data + s->sent, s->bytes - s->sent, MSG_NOSIGNAL);
            if (sent < 0 && errno != EINTR) {
                lane->blocked = errno == EAGAIN;
                if (!lane->blocked) {
                    end_connection(c, true);
                }
                return false;
            }
            s->sent += sent > 0 ? (size_t)sent : 0;
        }
        break;
    case EVENT_END:
        shutdown(c->fds[1 - way], SHUT_WR);
        lane->closed = true;
        break;
    case EVENT_STALL:
        c->still_ns = now + s->lasts_ns;
        break;
    case EVENT_BREAK:
    case EVENT_DROP:
        end_connection(c, s->event == EVENT_BREAK);
        break;
    case EVENT_DELAY:
    case EVENT_FLIP:
        break;
    }
    return true;
}

/* Passes on what is due in a lane. */
static void serve_lane(struct connection *c, unsigned way, uint64_t now)
{
    struct lane *lane = &c->lanes[way];
    struct segment *s;
    while (!c->dead && c->still_ns <= now && !lane->blocked && (s = lane->first) &&
           s->due_ns <= now && !(way == 0 && c->connecting)) {
        if (!serve(c, way, s, now)) {
            return;
        }
        lane->first = s->next;
        lane->last = lane->first ? lane->last : &lane->first;
        lane->held -= sizeof *s + s->bytes;
        free(s);
    }
}

/* ---- the loop ---- */

/* Both sides are connected, or could not be: the connecting side is told so where it asks. */
static void connected(struct connection *c, int fault)
{
    uint8_t answer = (uint8_t)fault;
    c->connecting = false;
    bool gone = c->pair->named && send(c->fds[0], &answer, 1, MSG_NOSIGNAL) != 1;
    if (fault || gone) {
        end_connection(c, !c->pair->named);
        return;
    }
    fire_faults(c, 0);
    fire_faults(c, 1);
}

static void connect_target(struct connection *c, const struct address *to)
{
    c->link = link_to(c->pair, to);
    c->fds[1] = new_socket(c->pair, to->at.ss_family);
    int status = connect(c->fds[1], (const struct sockaddr *)&to->at, to->length);
    c->connecting = status != 0 && errno == EINPROGRESS;
    if (!c->connecting) {
        connected(c, status != 0 ? errno : 0);
    }
}

/* Reads where a connection wants to go: the IPv4 address and the port, 6 bytes. They come in one
 * piece, for they are the first. */
static void read_name(struct connection *c)
{
    struct address to = {.length = sizeof(struct sockaddr_in)};
    struct sockaddr_in *in = (struct sockaddr_in *)&to.at;
    uint8_t name[6];
    if (recv(c->fds[0], name, sizeof name, 0) != (ssize_t)sizeof name) {
        end_connection(c, true);
        return;
    }
    in->sin_family = AF_INET;
    memcpy(&in->sin_addr, name, 4);
    memcpy(&in->sin_port, name + 4, 2);
    connect_target(c, &to);
}

static void accept_connection(struct relay *relay, struct pair *pair)
{
    int one = 1, fd = accept4(pair->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        fprintf(stderr, "relay: cannot accept a connection: %s\n", strerror(errno));
        exit(1);
    }
    if (fd < 0) {
        return; /* it has gone again */
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct connection *c = mem_calloc(1, sizeof *c);
    *c = (struct connection){.pair = pair, .fds = {fd, -1}};
    c->lanes[0].last = &c->lanes[0].first;
    c->lanes[1].last = &c->lanes[1].first;
    MEM_GROW(relay->connections, relay->nconnections, relay->connections_cap);
    relay->connections[relay->nconnections++] = c;
    if (!pair->named) {
        connect_target(c, &pair->links[0]->to);
    }
}

/* What to wait for on both sides of a connection, and until when. Nothing: fd -1, for a socket with
 * an error would wake the loop for ever. */
static void want(const struct connection *c, uint64_t now, struct pollfd polls[2], uint64_t *until)
{
    bool still = c->still_ns > now;
    uint64_t wake = still ? c->still_ns : UINT64_MAX;
    for (unsigned side = 0; side < 2; side++) {
        const struct lane *in = &c->lanes[side], *out = &c->lanes[1 - side];
        bool connecting = side == 1 && c->connecting;
        bool reads = c->link ? !connecting && !in->ended && !is_full(c, side) : side == 0;
        int events = (reads ? POLLIN : 0) | (out->blocked || connecting ? POLLOUT : 0);
        events = still ? 0 : events;
        polls[side] = (struct pollfd){events ? c->fds[side] : -1, (short)events, 0};
        if (!still && in->first && !in->blocked && !(side == 0 && c->connecting)) {
            wake = in->first->due_ns < wake ? in->first->due_ns : wake;
        }
    }
    *until = wake < *until ? wake : *until;
}

/* What ppoll said of a connection. */
static void heed(struct connection *c, const struct pollfd polls[2])
{
    if (!c->link) {
        if (polls[0].revents) {
            read_name(c);
        }
        return;
    }
    if (c->connecting && polls[1].revents) {
        int fault = 0;
        socklen_t length = sizeof fault;
        getsockopt(c->fds[1], SOL_SOCKET, SO_ERROR, &fault, &length);
        connected(c, fault);
        return;
    }
    for (unsigned side = 0; side < 2; side++) {
        if (polls[side].revents & (POLLOUT | POLLERR | POLLHUP)) {
            c->lanes[1 - side].blocked = false;
        }
        if (polls[side].revents & (POLLIN | POLLERR | POLLHUP) && polls[side].events & POLLIN) {
            read_lane(c, side);
        }
    }
}

/* Passes on what is due, frees connections that are over, and fills the table of ppoll: first the
 * pairs, then two of each connection. Returns when the next segment is due. */
static uint64_t prepare(struct relay *relay)
{
    uint64_t now = now_ns(), until = UINT64_MAX;
    size_t kept = 0;
    for (size_t i = 0; i < relay->nconnections; i++) {
        struct connection *c = relay->connections[i];
        serve_lane(c, 0, now);
        serve_lane(c, 1, now);
        if (!c->dead && c->lanes[0].closed && c->lanes[1].closed) {
            end_connection(c, false);
        }
        if (c->dead) {
            free_connection(c);
        } else {
            relay->connections[kept++] = c;
        }
    }
    relay->nconnections = kept;
    size_t needed = relay->npairs + 2 * kept;
    if (needed > relay->polls_cap) {
        relay->polls_cap = 2 * needed;
        relay->polls = mem_realloc(relay->polls, relay->polls_cap, sizeof *relay->polls);
    }
    for (size_t p = 0; p < relay->npairs; p++) {
        relay->polls[p] = (struct pollfd){relay->pairs[p].fd, POLLIN, 0};
    }
    for (size_t i = 0; i < kept; i++) {
        want(relay->connections[i], now, &relay->polls[relay->npairs + 2 * i], &until);
    }
    return until;
}

static void run(struct relay *relay)
{
    for (;;) {
        uint64_t until = prepare(relay), now = now_ns();
        uint64_t wait = until > now ? until - now : 0;
        struct timespec left = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        size_t before = relay->nconnections;
        nfds_t count = (nfds_t)(relay->npairs + 2 * before);
        if (ppoll(relay->polls, count, until == UINT64_MAX ? NULL : &left, NULL) <= 0) {
            continue;
        }
        for (size_t i = 0; i < before; i++) {
            heed(relay->connections[i], &relay->polls[relay->npairs + 2 * i]);
        }
        for (size_t p = 0; p < relay->npairs; p++) {
            if (relay->polls[p].revents) {
                accept_connection(relay, &relay->pairs[p]);
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        help();
        return 0;
    }
    struct relay relay = {.common = {.window = 256 << 10}};
    struct err err = ERR_INIT;
    prctl(PR_SET_TIMERSLACK, 1UL);
    int status = read_options(&relay, argc, argv, &err);
    for (size_t p = 0; p < relay.npairs && status == 0; p++) {
        status = open_pair(&relay.pairs[p], &err);
    }
    if (status == 0) {
        run(&relay);
    }
    err_print(&err, "relay");
    int code = (int)err.code;
    for (size_t p = 0; p < relay.npairs; p++) {
        for (size_t i = 0; i < relay.pairs[p].nlinks; i++) {
            free(relay.pairs[p].links[i]);
        }
        free(relay.pairs[p].links);
        free(relay.pairs[p].faults);
    }
    free(relay.pairs);
    free(relay.common.faults);
    err_release(&err);
    return code;
}
