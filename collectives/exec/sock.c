/* SPDX-License-Identifier: Apache-2.0
 * Addresses, listening, connecting and hellos: see sock.h. */
#include "exec/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum { RETRY_MS = 20, BACKLOG = 4096, PROTOCOL = 2 };

/* On the wire; both ends have one byte order: see hosts.h. */
struct frame {
    char magic[8];
    uint32_t protocol;
    struct sock_hello hello;
    uint8_t token[TOKEN_BYTES];
};

static const char magic[8] = {'c', 'o', 'l', 'l', 'b', 'n', 'c', 'h'};

/* ---- addresses ---- */

static const void *raw_of(const struct sockaddr *address, size_t *bytes)
{
    bool six = address->sa_family == AF_INET6;
    *bytes = six ? 16 : 4;
    return six ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
               : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
}

static bool is_ip(const struct sockaddr *address)
{
    return address && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

/* Link-local addresses of version 6 need a scope, which no peer knows. */
static bool is_local_six(const struct sockaddr *address)
{
    size_t bytes;
    const uint8_t *raw = raw_of(address, &bytes);
    return bytes == 16 && raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

/* Interfaces that lead to containers and virtual machines of this host. */
static bool is_inner(const char *name)
{
    static const char *const heads[] = {"docker", "br-", "virbr", "cni", "veth", "podman", "lxc"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        if (strncmp(name, heads[i], strlen(heads[i])) == 0) return true;
    }
    return false;
}

/* Whether an address matches "10.77.0.0/16", or "10.77.0.1" as a whole. */
static bool in_prefix(const struct sockaddr *address, const char *text)
{
    char copy[NET_NAME];
    snprintf(copy, sizeof copy, "%s", text);
    char *slash = strchr(copy, '/');
    if (slash) *slash++ = '\0';
    uint8_t wanted[16];
    size_t bytes;
    const uint8_t *raw = raw_of(address, &bytes);
    if (inet_pton(address->sa_family, copy, wanted) != 1) return false;
    unsigned long bits = slash ? strtoul(slash, NULL, 10) : 8 * bytes;
    if (bits > 8 * bytes) return false;
    for (size_t i = 0; i < bits; i++) {
        if ((raw[i / 8] ^ wanted[i / 8]) >> (7 - i % 8) & 1) return false;
    }
    return true;
}

static bool suits(const struct ifaddrs *at, const char *iface)
{
    if (!is_ip(at->ifa_addr) || !(at->ifa_flags & IFF_UP) || is_local_six(at->ifa_addr))
        return false;
    if (*iface) return strcmp(at->ifa_name, iface) == 0 || in_prefix(at->ifa_addr, iface);
    return !(at->ifa_flags & IFF_LOOPBACK) && !is_inner(at->ifa_name);
}

static void text_of(const struct sockaddr *address, char text[NET_NAME])
{
    size_t bytes;
    const void *raw = raw_of(address, &bytes);
    inet_ntop(address->sa_family, raw, text, NET_NAME);
}

/* "lo 127.0.0.1, eth0 10.0.0.1"; freed by the caller. */
static char *list_addresses(const struct ifaddrs *all)
{
    char *list = mem_strdup(""), text[NET_NAME];
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        if (!is_ip(at->ifa_addr) || is_local_six(at->ifa_addr)) continue;
        text_of(at->ifa_addr, text);
        char *longer = mem_printf("%s%s%s %s%s", list, *list ? ", " : "", at->ifa_name, text,
                                  at->ifa_flags & IFF_UP ? "" : " (down)");
        free(list);
        list = longer;
    }
    return list;
}

/* The length of "10.0.0.0/8" must be one. */
static int check_prefix(const char *iface, struct err *err)
{
    const char *slash = strchr(iface, '/');
    char *end;
    unsigned long most = strchr(iface, ':') ? 128 : 32,
                  bits = slash ? strtoul(slash + 1, &end, 10) : 0;
    bool good = !slash || (slash[1] >= '0' && slash[1] <= '9' && !*end && bits <= most);
    if (good) return 0;
    return err_add(err, ERR_USAGE,
                   "--iface %s: the length of a prefix goes from 0 to %lu, \"%s\" is none", iface,
                   most, slash + 1);
}

int sock_address(const char *iface, bool alone, char address[NET_NAME], struct err *err)
{
    if (check_prefix(iface, err)) return -1;
    if (!*iface && alone) {
        snprintf(address, NET_NAME, "127.0.0.1");
        return 0;
    }
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all))
        return err_add(err, ERR_FAILED, "cannot list the interfaces: %s", strerror(errno));
    const struct ifaddrs *found = NULL;
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) { /* version 4 before version 6 */
        if (!suits(at, iface)) continue;
        if (!found ||
            (found->ifa_addr->sa_family == AF_INET6 && at->ifa_addr->sa_family == AF_INET))
            found = at;
    }
    int bad = 0;
    if (found) {
        text_of(found->ifa_addr, address);
    } else {
        char *list = list_addresses(all);
        bad = err_add(err, ERR_USAGE, "--iface%s%s: no interface that is up %s; this host has %s",
                      *iface ? " " : "", iface,
                      *iface ? "has that name or address" : "leads to other hosts",
                      *list ? list : "none");
        free(list);
    }
    freeifaddrs(all);
    return bad;
}

/* ---- what an address is ---- */

static const struct {
    const char *prefix, *what;
} classes[] = {
    {"127.0.0.0/8", "loopback"},      {"::1", "loopback"},
    {"10.0.0.0/8", "private"},        {"172.16.0.0/12", "private"},
    {"192.168.0.0/16", "private"},    {"fc00::/7", "private"},
    {"169.254.0.0/16", "link-local"}, {"100.64.0.0/10", "carrier"},
    {"0.0.0.0/0", "public"},          {"::/0", "public"},
};

/* The address of "1.2.3.4:4711" or "[::1]:4711"; false: it is none. */
static bool read_where(const char *where, struct sockaddr_storage *address)
{
    char text[NET_NAME];
    bool six = *where == '[';
    const char *end = strrchr(where, six ? ']' : ':');
    snprintf(text, sizeof text, "%.*s", end ? (int)(end - where) - six : 0, where + six);
    *address = (struct sockaddr_storage){.ss_family = six ? AF_INET6 : AF_INET};
    size_t bytes;
    const void *raw = raw_of((struct sockaddr *)address, &bytes);
    return inet_pton(address->ss_family, text, (void *)(uintptr_t)raw) == 1;
}

static const char *class_of(const struct sockaddr *address)
{
    size_t i = 0;
    while (!in_prefix(address, classes[i].prefix))
        i++;
    return classes[i].what;
}

bool sock_is_loopback(const char *where)
{
    struct sockaddr_storage address;
    return read_where(where, &address) &&
           strcmp(class_of((struct sockaddr *)&address), classes[0].what) == 0;
}

void sock_kind(const char *where, char *text, size_t room)
{
    struct sockaddr_storage address;
    struct ifaddrs *all = NULL;
    const char *name = "an unknown interface";
    *text = '\0';
    if (!read_where(where, &address) || getifaddrs(&all)) return;
    size_t bytes, others;
    const void *raw = raw_of((struct sockaddr *)&address, &bytes);
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        if (!is_ip(at->ifa_addr)) continue;
        const void *theirs = raw_of(at->ifa_addr, &others);
        if (bytes == others && memcmp(raw, theirs, bytes) == 0) name = at->ifa_name;
    }
    snprintf(text, room, "%s (%s)", name, class_of((struct sockaddr *)&address));
    freeifaddrs(all);
}

/* Looks "ADDRESS:PORT", "[ADDRESS]:PORT" or a bare address with `port` up. */
static struct addrinfo *look_up(const char *where, uint16_t port, bool passive, struct err *err)
{
    char name[256], service[16];
    const char *colon = strrchr(where, ':');
    bool bare = passive || !colon;
    size_t length = bare ? strlen(where) : (size_t)(colon - where);
    if (length > 1 && where[0] == '[' && where[length - 1] == ']') {
        where++;
        length -= 2;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, where);
    if (bare) {
        snprintf(service, sizeof service, "%u", port);
    } else {
        snprintf(service, sizeof service, "%s", colon + 1);
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (passive ? AI_NUMERICHOST : 0)};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(name, service, &hints, &found);
    if (rc == 0) return found;
    err_add(err, ERR_FAILED, "%s: %s", where, gai_strerror(rc));
    return NULL;
}

/* ---- listening and connecting ---- */

static void name_of(const struct sockaddr *address, char where[NET_NAME])
{
    char text[INET6_ADDRSTRLEN + 8] = "?";
    size_t bytes;
    const void *raw = raw_of(address, &bytes);
    bool six = address->sa_family == AF_INET6;
    uint16_t port = six ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                        : ((const struct sockaddr_in *)(const void *)address)->sin_port;
    inet_ntop(address->sa_family, raw, text, sizeof text);
    snprintf(where, NET_NAME, six ? "[%s]:%u" : "%s:%u", text, ntohs(port));
}

int sock_listen(const char *address, uint16_t port, char where[NET_NAME], struct err *err)
{
    struct addrinfo *found = look_up(address, port, true, err);
    if (!found) return -1;
    int on = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_storage own = {0};
    socklen_t bytes = sizeof own;
    bool good = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
                !bind(fd, found->ai_addr, found->ai_addrlen) && !listen(fd, BACKLOG) &&
                !getsockname(fd, (struct sockaddr *)&own, &bytes);
    freeaddrinfo(found);
    if (good) {
        name_of((struct sockaddr *)&own, where);
        return fd;
    }
    err_add(err, ERR_FAILED, "cannot listen at %s, port %u: %s", address, port, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for an event until end_ms. 0, or -1 with errno. */
static int await_event(int fd, short events, int64_t end_ms)
{
    struct pollfd one = {.fd = fd, .events = events};
    for (;;) {
        int64_t left = end_ms - now_ms();
        int ready = left > 0 ? poll(&one, 1, (int)left) : 0;
        if (ready > 0) return 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) errno = ETIMEDOUT;
        return -1;
    }
}

void sock_no_delay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* One try. The descriptor, or -1 with errno. */
static int try_connect(const struct addrinfo *to, const struct addrinfo *from, int64_t end_ms)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int error = 0;
    socklen_t bytes = sizeof error;
    bool same = from && from->ai_family == to->ai_family;
    if (same && bind(fd, from->ai_addr, from->ai_addrlen)) goto fail;
    if (connect(fd, to->ai_addr, to->ai_addrlen)) {
        if (errno != EINPROGRESS || await_event(fd, POLLOUT, end_ms)) goto fail;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) || error) {
            errno = error ? error : errno;
            goto fail;
        }
    }
    sock_no_delay(fd);
    return fd;
fail:
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

int sock_connect(const char *where, const char *from, double timeout_s, struct err *err)
{
    int64_t end_ms = now_ms() + (int64_t)(timeout_s * 1000);
    struct addrinfo *to = look_up(where, 0, false, err), *own = NULL;
    if (!to) return -1;
    if (*from && !(own = look_up(from, 0, true, err))) {
        freeaddrinfo(to);
        return -1;
    }
    int fd = -1;
    for (;;) {
        fd = try_connect(to, own, end_ms);
        bool again = fd < 0 && (errno == ECONNREFUSED || errno == EINTR || errno == EADDRNOTAVAIL);
        if (!again || now_ms() + RETRY_MS >= end_ms) break;
        poll(NULL, 0, RETRY_MS);
    }
    if (fd < 0)
        err_add(err, ERR_FAILED, "cannot connect to %s%s%s: %s", where, *from ? " from " : "", from,
                strerror(errno));
    freeaddrinfo(to);
    if (own) freeaddrinfo(own);
    return fd;
}

/* ---- hellos ---- */

/* All bytes, in or out, until end_ms. 0, or -1 with errno. */
static int transfer(int fd, void *data, size_t bytes, bool out, int64_t end_ms)
{
    for (size_t done = 0; done < bytes;) {
        uint8_t *at = (uint8_t *)data + done;
        ssize_t got = out ? send(fd, at, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                          : recv(fd, at, bytes - done, MSG_DONTWAIT);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0) {
            errno = ECONNRESET;
            return -1;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (await_event(fd, out ? POLLOUT : POLLIN, end_ms)) return -1;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 0;
}

int sock_hello_send(int fd, const uint8_t *token, const struct sock_hello *hello, double timeout_s,
                    struct err *err)
{
    struct frame frame;
    memset(&frame, 0, sizeof frame);
    memcpy(frame.magic, magic, sizeof magic);
    frame.protocol = PROTOCOL;
    frame.hello = *hello;
    memcpy(frame.token, token, TOKEN_BYTES);
    if (!transfer(fd, &frame, sizeof frame, true, now_ms() + (int64_t)(timeout_s * 1000))) return 0;
    return err_add(err, ERR_FAILED, "cannot introduce this process to its peer: %s",
                   strerror(errno));
}

/* Compares as long whatever they hold. */
static bool same_token(const uint8_t *a, const uint8_t *b)
{
    unsigned differ = 0;
    for (int i = 0; i < TOKEN_BYTES; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}

static int refuse(int fd, const char *why)
{
    struct sockaddr_storage peer = {0};
    socklen_t bytes = sizeof peer;
    char where[NET_NAME] = "somewhere";
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && is_ip((struct sockaddr *)&peer))
        name_of((struct sockaddr *)&peer, where);
    fprintf(stderr, "collbench: refused a connection from %s: it %s\n", where, why);
    return -1;
}

int sock_hello_take(int fd, const uint8_t *token, double timeout_s, struct sock_hello *hello)
{
    struct frame frame;
    memset(&frame, 0, sizeof frame);
    if (transfer(fd, &frame, sizeof frame, false, now_ms() + (int64_t)(timeout_s * 1000)))
        return refuse(fd, "did not introduce itself");
    if (memcmp(frame.magic, magic, sizeof magic) != 0)
        return refuse(fd, "does not speak collbench");
    if (frame.protocol != PROTOCOL) {
        char why[96];
        snprintf(why, sizeof why, "runs another version of collbench (protocol %u, here %d)",
                 frame.protocol, PROTOCOL);
        return refuse(fd, why);
    }
    if (!same_token(frame.token, token)) return refuse(fd, "does not know this run's token");
    *hello = frame.hello;
    return 0;
}

void sock_await_hello(int fd, bool on)
{
    int bytes = on ? (int)sizeof(struct frame) : 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

/* ---- a door ---- */

void door_open(struct door *door, int listener, int64_t patience_ms)
{
    *door = (struct door){.listener = listener, .patience_ms = patience_ms};
}

void door_close(struct door *door)
{
    for (uint32_t i = 0; i < door->nguests; i++)
        close(door->guests[i].fd);
    if (door->listener >= 0) close(door->listener);
    *door = (struct door){.listener = -1};
}

/* Takes a guest out; its socket stays open. */
static int take_guest(struct door *door, uint32_t i)
{
    int fd = door->guests[i].fd;
    door->nguests--;
    memmove(&door->guests[i], &door->guests[i + 1], (door->nguests - i) * sizeof *door->guests);
    return fd;
}

/* Lets in who waits outside; when there is no room, the one who has been silent longest goes. */
static void let_in(struct door *door)
{
    int fd;
    while ((fd = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (door->nguests == DOOR_GUESTS) {
            int oldest = take_guest(door, 0);
            refuse(oldest, "was silent while others came");
            close(oldest);
        }
        sock_no_delay(fd);
        sock_await_hello(fd, true);
        door->guests[door->nguests++] = (struct guest){fd, now_ms()};
    }
}

int door_answer(struct door *door, const uint8_t *token, struct sock_hello *hello)
{
    let_in(door);
    for (uint32_t i = 0; i < door->nguests;) {
        struct pollfd one = {.fd = door->guests[i].fd, .events = POLLIN};
        bool late = now_ms() - door->guests[i].since_ms > door->patience_ms;
        if (!late && poll(&one, 1, 0) <= 0) {
            i++;
            continue;
        }
        int fd = take_guest(door, i);
        sock_await_hello(fd, false);
        if (!sock_hello_take(fd, token, 0, hello)) return fd;
        close(fd);
    }
    return -1;
}
