/* SPDX-License-Identifier: Apache-2.0
 * Frames over a connection between processes that run each other: a launcher and its agents on
 * other hosts, the first ranks of hosts. The connection has been opened and authenticated by
 * sock.h. Lengths that come over it are bounded; nothing waits without an end. Private to the
 * executor. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COURIER_MOST = 64 << 20 }; /* bytes of a frame's payload, at most */

/* What precedes every payload. Both ends have the same byte order and build: see hosts.h. */
struct courier_head {
    uint32_t kind, rank, code, reserved;
    uint64_t bytes; /* of the payload */
};

struct courier {
    int fd;                 /* non-blocking; owned */
    uint8_t *in;            /* what has arrived of the next frames */
    size_t used, done, cap; /* bytes in it; of them taken */
};

struct courier_frame {
    struct courier_head head;
    const uint8_t *data; /* valid until the next call */
};

void courier_init(struct courier *courier, int fd);
void courier_release(struct courier *courier);

/* Sends a frame; waits at most `patience_ms` for each bit of room. -1 with errno (ETIMEDOUT). */
int courier_send(struct courier *courier, const struct courier_head *head, const void *data,
                 uint64_t patience_ms);

/* The next whole frame, without waiting. 1: *frame holds it, 0: it is not here yet, -1: the
 * connection is closed or broken, with errno; EPROTO: a frame is longer than COURIER_MOST. */
int courier_recv(struct courier *courier, struct courier_frame *frame);

/* ---- payloads: numbers and blocks, one behind the other ---- */

struct pack {
    uint8_t *data;
    size_t used, cap;
};
void pack_raw(struct pack *pack, const void *data, size_t bytes); /* without its length */
void pack_u64(struct pack *pack, uint64_t value);
void pack_block(struct pack *pack, const void *data, size_t bytes); /* its length comes first */
void pack_text(struct pack *pack, const char *text);
void pack_release(struct pack *pack);

/* Takes them out in the same order. What is not there is 0, or NULL and 0 bytes, and sets `bad`. */
struct unpack {
    const uint8_t *at, *end;
    bool bad;
};
uint64_t unpack_u64(struct unpack *unpack);
const void *unpack_block(struct unpack *unpack, size_t *bytes);
/* A copy that ends with a zero; freed by the caller. */
char *unpack_text(struct unpack *unpack);
