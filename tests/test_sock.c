/* SPDX-License-Identifier: Apache-2.0
 * Tests of sockets: own addresses, listening and connecting, and that only who knows the run's
 * token is let in. Every socket here is on the loopback. */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
#include "exec/sock.h"

static const uint8_t token[TOKEN_BYTES] = {1, 2, 3}, other_token[TOKEN_BYTES] = {1, 2, 4};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void assert_address(const char *iface, bool alone, const char *expected)
{
    struct err err = ERR_INIT;
    char address[NET_NAME] = "";
    cr_assert_eq(sock_address(iface, alone, address, &err), 0, "%s: %s", iface, err.text);
    cr_assert_str_eq(address, expected);
}

Test(sock, own_addresses_by_name_address_and_prefix)
{
    assert_address("", true, "127.0.0.1");
    assert_address("lo", false, "127.0.0.1");
    assert_address("127.0.0.1", false, "127.0.0.1");
    assert_address("127.0.0.0/8", true, "127.0.0.1");
    assert_address("126.0.0.0/7", false, "127.0.0.1");
}

Test(sock, unknown_interfaces_are_refused_with_those_there_are)
{
    static const char *const unknown[] = {"eth77", "203.0.113.9", "203.0.113.0/24", "127.0.0.2",
                                          "/8"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        struct err err = ERR_INIT;
        char address[NET_NAME];
        cr_assert_eq(sock_address(unknown[i], false, address, &err), -1, "%s", unknown[i]);
        cr_assert_eq(err.code, ERR_USAGE);
        cr_assert(strstr(err.text, unknown[i]), "%s", err.text);
        cr_assert(strstr(err.text, "lo 127.0.0.1"), "%s", err.text);
        err_release(&err);
    }
}

Test(sock, lengths_of_prefixes_that_cannot_be_are_refused_with_those_that_can)
{
    static const struct {
        const char *text, *most;
    } bad[] = {{"127.0.0.0/33", "0 to 32"},
               {"10.0.0.0/", "0 to 32"},
               {"10.0.0.0/8x", "0 to 32"},
               {"10.0.0.0/-1", "0 to 32"},
               {"fd00::/129", "0 to 128"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = ERR_INIT;
        char address[NET_NAME];
        cr_assert_eq(sock_address(bad[i].text, false, address, &err), -1, "%s", bad[i].text);
        cr_assert_eq(err.code, ERR_USAGE);
        cr_assert(strstr(err.text, bad[i].text) && strstr(err.text, bad[i].most), "%s", err.text);
        err_release(&err);
    }
}

/* A listener and its address. */
static int listen_at(const char *address, char where[NET_NAME])
{
    struct err err = ERR_INIT;
    int fd = sock_listen(address, 0, where, &err);
    cr_assert(fd >= 0, "%s", err.text);
    return fd;
}

static int connect_to(const char *where, const char *from)
{
    struct err err = ERR_INIT;
    int fd = sock_connect(where, from, 5, &err);
    cr_assert(fd >= 0, "%s", err.text);
    return fd;
}

Test(sock, sockets_do_not_block_are_not_inherited_and_send_at_once)
{
    char where[NET_NAME];
    int listener = listen_at("127.0.0.1", where);
    cr_assert_eq(strncmp(where, "127.0.0.1:", 10), 0, "%s", where);
    int fd = connect_to(where, "127.0.0.1"), on = 0;
    socklen_t bytes = sizeof on;
    int both[2] = {listener, fd};
    for (int i = 0; i < 2; i++) {
        cr_assert(fcntl(both[i], F_GETFL) & O_NONBLOCK);
        cr_assert(fcntl(both[i], F_GETFD) & FD_CLOEXEC);
    }
    cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &bytes), 0);
    cr_assert(on);
    close(fd);
    close(listener);
}

Test(sock, connections_come_from_the_address_asked_for)
{
    char where[NET_NAME];
    int listener = listen_at("127.0.0.1", where);
    int fd = connect_to(where, "127.0.0.5");
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&own, &bytes), 0);
    cr_assert_eq(ntohl(own.sin_addr.s_addr), 0x7f000005u);
    close(fd);
    close(listener);
}

Test(sock, version_six_has_brackets)
{
    struct err err = ERR_INIT;
    char where[NET_NAME];
    int listener = sock_listen("::1", 0, where, &err);
    if (listener < 0) { /* a machine without it */
        err_release(&err);
        return;
    }
    cr_assert_eq(strncmp(where, "[::1]:", 6), 0, "%s", where);
    int fd = connect_to(where, "");
    close(fd);
    close(listener);
}

Test(sock, a_listener_can_be_reached_at_its_address_alone)
{
    struct err err = ERR_INIT;
    char where[NET_NAME], elsewhere[NET_NAME];
    int listener = listen_at("127.0.0.1", where);
    snprintf(elsewhere, sizeof elsewhere, "127.0.0.2:%s", strrchr(where, ':') + 1);
    cr_assert_eq(sock_connect(elsewhere, "", 0.1, &err), -1);
    cr_assert(strstr(err.text, elsewhere), "%s", err.text);
    err_release(&err);
    close(listener);
}

Test(sock, connecting_is_tried_until_the_time_is_over)
{
    struct err err = ERR_INIT;
    char where[NET_NAME];
    close(listen_at("127.0.0.1", where));
    double start = now_s();
    cr_assert_eq(sock_connect(where, "", 0.5, &err), -1);
    double took = now_s() - start;
    cr_assert(took > 0.3 && took < 5, "%g s", took);
    cr_assert(strstr(err.text, where) && strstr(err.text, "refused"), "%s", err.text);
    err_release(&err);
}

Test(sock, names_and_ports_that_are_none_are_refused)
{
    static const char *const bad[] = {"127.0.0.1:http", "127.0.0.1:", ":", "127.0.0.1:99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = ERR_INIT;
        int fd = sock_connect(bad[i], "", 0.1, &err);
        cr_assert_eq(fd, -1, "%s", bad[i]);
        cr_assert(err.count > 0);
        err_release(&err);
    }
    struct err err = ERR_INIT;
    char where[NET_NAME];
    cr_assert_eq(sock_listen("203.0.113.9", 0, where, &err), -1);
    cr_assert(strstr(err.text, "203.0.113.9"), "%s", err.text);
    err_release(&err);
}

/* ---- hellos ---- */

struct ends {
    int listener, caller;
};

static struct ends call(void)
{
    struct ends ends;
    char where[NET_NAME];
    ends.listener = listen_at("127.0.0.1", where);
    ends.caller = connect_to(where, "");
    return ends;
}

static void hang_up(struct ends ends)
{
    close(ends.caller);
    close(ends.listener);
}

/* The connection that was made, waiting for it or for its end. */
static int take(struct ends ends, int64_t patience_ms, struct sock_hello *hello)
{
    struct door door;
    struct pollfd one = {.fd = ends.listener, .events = POLLIN};
    cr_assert_eq(poll(&one, 1, 5000), 1);
    door_open(&door, dup(ends.listener), patience_ms);
    int fd = door_answer(&door, token, hello);
    while (fd < 0 && door.nguests > 0) {
        poll(NULL, 0, 1);
        fd = door_answer(&door, token, hello);
    }
    door_close(&door);
    return fd;
}

/* What a hello looks like on the wire. */
static size_t raw_hello(const uint8_t *of_token, uint8_t *bytes, size_t room)
{
    struct err err = ERR_INIT;
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    struct sock_hello hello = {SOCK_DATA, 3, 7};
    cr_assert_eq(sock_hello_send(pair[0], of_token, &hello, 1, &err), 0);
    ssize_t got = recv(pair[1], bytes, room, 0);
    cr_assert(got > TOKEN_BYTES && (size_t)got < room);
    close(pair[0]);
    close(pair[1]);
    return (size_t)got;
}

Test(sock, a_hello_says_who_comes)
{
    struct err err = ERR_INIT;
    struct ends ends = call();
    struct sock_hello sent = {SOCK_MEETING, 12, UINT64_C(1) << 40}, got = {0, 0, 0};
    cr_assert_eq(sock_hello_send(ends.caller, token, &sent, 1, &err), 0);
    int fd = take(ends, 5000, &got);
    cr_assert(fd >= 0);
    cr_assert(got.purpose == SOCK_MEETING && got.rank == 12 && got.number == UINT64_C(1) << 40);
    cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
    close(fd);
    hang_up(ends);
}

/* stderr while `sent` comes as a hello; freed by the caller. */
static char *refused_with(const uint8_t *sent, size_t bytes, bool end)
{
    struct ends ends = call();
    struct sock_hello hello;
    cr_assert_eq(send(ends.caller, sent, bytes, 0), (ssize_t)bytes);
    if (end) shutdown(ends.caller, SHUT_WR);
    FILE *file = tmpfile();
    int before = dup(2);
    fflush(stderr);
    dup2(fileno(file), 2);
    int fd = take(ends, 50, &hello);
    fflush(stderr);
    dup2(before, 2);
    close(before);
    cr_assert_eq(fd, -1);
    char *text = mem_calloc(1, 1000);
    rewind(file);
    fread(text, 1, 999, file);
    fclose(file);
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    getsockname(ends.caller, (struct sockaddr *)&own, &length);
    char *where = mem_printf("127.0.0.1:%u", ntohs(own.sin_port));
    cr_assert(strstr(text, where), "%s does not name %s", text, where);
    free(where);
    hang_up(ends);
    return text;
}

Test(sock, strangers_are_refused_and_named)
{
    uint8_t good[256], bad[256];
    size_t bytes = raw_hello(token, good, sizeof good), last = bytes - TOKEN_BYTES;
    static const struct {
        const char *says;
        int at; /* flipped byte; from the start of the token when negative: -1 is its first */
    } flips[] = {{"does not speak collbench", 0},
                 {"another version", 8},
                 {"token", -1},
                 {"token", -TOKEN_BYTES}};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        memcpy(bad, good, bytes);
        bad[flips[i].at < 0 ? last + (size_t)(-1 - flips[i].at) : (size_t)flips[i].at] ^= 1;
        char *text = refused_with(bad, bytes, false);
        cr_assert(strstr(text, flips[i].says), "%s", text);
        free(text);
    }
    raw_hello(other_token, bad, sizeof bad);
    char *text = refused_with(bad, bytes, false);
    cr_assert(strstr(text, "does not know this run's token"), "%s", text);
    free(text);
}

Test(sock, a_hello_that_does_not_come_ends_the_wait)
{
    uint8_t good[256];
    size_t bytes = raw_hello(token, good, sizeof good);
    for (int end = 0; end < 2; end++) {
        for (size_t part = 1; part < bytes; part += 13) {
            char *text = refused_with(good, part, end);
            cr_assert(strstr(text, "did not introduce itself"), "%s", text);
            free(text);
        }
    }
}

/* Silent strangers keep nobody waiting, and no more of them than there is room for. */
Test(sock, who_knows_the_token_passes_the_silent)
{
    enum { SILENT = 3 * DOOR_GUESTS };
    struct err err = ERR_INIT;
    char where[NET_NAME];
    struct door door;
    int silent[SILENT], before = dup(2), null = open("/dev/null", O_WRONLY);
    door_open(&door, listen_at("127.0.0.1", where), 600000);
    dup2(null, 2); /* they are named there */
    struct sock_hello sent = {SOCK_AGENT, 0, 3}, got = {0, 0, 0};
    for (int i = 0; i < SILENT; i++) {
        silent[i] = connect_to(where, "");
        cr_assert_eq(door_answer(&door, token, &got), -1);
        cr_assert(door.nguests <= DOOR_GUESTS);
    }
    int caller = connect_to(where, "");
    cr_assert_eq(sock_hello_send(caller, token, &sent, 1, &err), 0);
    int fd = -1;
    for (int ms = 0; fd < 0 && ms < 5000; ms++) {
        fd = door_answer(&door, token, &got);
        poll(NULL, 0, 1);
    }
    dup2(before, 2);
    cr_assert(fd >= 0 && got.purpose == SOCK_AGENT && got.number == 3);
    close(fd);
    close(caller);
    close(before);
    close(null);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    door_close(&door);
}

Test(sock, a_loop_hears_of_a_hello_when_it_is_whole)
{
    uint8_t good[256];
    size_t bytes = raw_hello(token, good, sizeof good);
    struct ends ends = call();
    struct pollfd one = {.fd = ends.listener, .events = POLLIN};
    cr_assert_eq(poll(&one, 1, 5000), 1);
    one.fd = accept(ends.listener, NULL, NULL);
    sock_await_hello(one.fd, true);
    cr_assert_eq(send(ends.caller, good, bytes - 1, 0), (ssize_t)bytes - 1);
    cr_assert_eq(poll(&one, 1, 50), 0);
    cr_assert_eq(send(ends.caller, good + bytes - 1, 1, 0), 1);
    cr_assert_eq(poll(&one, 1, 5000), 1);
    struct sock_hello hello;
    cr_assert_eq(sock_hello_take(one.fd, token, 0, &hello), 0);
    sock_await_hello(one.fd, false);
    cr_assert_eq(send(ends.caller, good, 1, 0), 1);
    cr_assert_eq(poll(&one, 1, 5000), 1);
    close(one.fd);
    hang_up(ends);
}
