/* SPDX-License-Identifier: Apache-2.0
 * Sockets of a run: which address they bind to, and who may speak on them. Every connection begins
 * with a hello of fixed length that carries the run's token; who does not know it is refused, and
 * the refusal is logged. Nothing here waits longer than it is told. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "exec/world.h"

/* The own address to bind to. `iface`: an interface ("eth0"), an own address ("10.77.0.1"), or a
 * prefix ("10.77.0.0/16"); "": 127.0.0.1 if `alone`, else the first address that is up and neither
 * loopback nor of a bridge for containers or virtual machines. -1 (ERR_USAGE) with the interfaces
 * there are. */
int sock_address(const char *iface, bool alone, char address[NET_NAME], struct err *err);

/* What an own address "10.77.0.1:4711" is: "eth0 (private)"; of others the class alone is true. ""
 * when it is no address of that form. */
void sock_kind(const char *where, char *text, size_t room);
bool sock_is_loopback(const char *where);

/* A non-blocking socket that listens at that address alone; port 0: any. where: "10.77.0.1:4711",
 * "[::1]:4711". -1 with the sentence. */
int sock_listen(const char *address, uint16_t port, char where[NET_NAME], struct err *err);

/* Connects to `where` (as sock_listen says it, or NAME:PORT) from the own address `from` ("": any),
 * again and again while nobody listens there, up to timeout_s. Non-blocking, without Nagle's
 * algorithm. */
int sock_connect(const char *where, const char *from, double timeout_s, struct err *err);

enum sock_purpose { SOCK_AGENT, SOCK_MEETING, SOCK_DATA };

/* Who comes, and for what. */
struct sock_hello {
    uint32_t purpose; /* enum sock_purpose */
    uint32_t rank;
    uint64_t number; /* agent, meeting: of the host; data: of the connection */
};

int sock_hello_send(int fd, const uint8_t *token, const struct sock_hello *hello, double timeout_s,
                    struct err *err);

/* Reads and checks the hello that begins a connection. -1: it did not come in time, or does not
 * know the token, which stderr is told with the peer's address. */
int sock_hello_take(int fd, const uint8_t *token, double timeout_s, struct sock_hello *hello);

/* While it is on, a loop says that the socket can be read only when a whole hello has come, or
 * nothing more will. */
void sock_await_hello(int fd, bool on);

/* Sends at once what is written. */
void sock_no_delay(int fd);

/* A listener, and those who have connected but not said who they are. They wait for nothing and
 * nobody waits for them: strangers who are silent, or say something else, cost a few sockets. */
enum { DOOR_GUESTS = 64 };
struct door {
    int listener;        /* owned */
    int64_t patience_ms; /* for a hello */
    uint32_t nguests;
    struct guest {
        int fd;
        int64_t since_ms;
    } guests[DOOR_GUESTS];
};
void door_open(struct door *door, int listener, int64_t patience_ms);
void door_close(struct door *door);

/* The next connection whose hello is there and knows the token; non-blocking, without Nagle's
 * algorithm. -1: nobody yet. Never waits; who is refused is named on stderr. */
int door_answer(struct door *door, const uint8_t *token, struct sock_hello *hello);
