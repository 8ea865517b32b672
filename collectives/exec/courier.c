/* SPDX-License-Identifier: Apache-2.0
 * Frames and payloads: see courier.h. */
#include "exec/courier.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"

enum { READ_BYTES = 64 << 10 };

void courier_init(struct courier *courier, int fd)
{
    *courier = (struct courier){.fd = fd};
}

void courier_release(struct courier *courier)
{
    if (courier->fd >= 0) close(courier->fd);
    free(courier->in);
    *courier = (struct courier){.fd = -1};
}

/* Sends all of the parts, which it changes. */
static int send_all(int fd, struct iovec *parts, int count, uint64_t patience_ms)
{
    while (count > 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            int ready = poll(&room, 1, (int)patience_ms);
            if (ready < 0 && errno != EINTR) return -1;
            if (ready == 0) {
                errno = ETIMEDOUT;
                return -1;
            }
            continue;
        }
        if (sent < 0) return -1;
        for (size_t left = (size_t)sent; count > 0;) {
            size_t step = left < parts->iov_len ? left : parts->iov_len;
            parts->iov_base = (uint8_t *)parts->iov_base + step;
            parts->iov_len -= step;
            left -= step;
            if (parts->iov_len > 0) break;
            parts++;
            count--;
        }
    }
    return 0;
}

int courier_send(struct courier *courier, const struct courier_head *head, const void *data,
                 uint64_t patience_ms)
{
    struct courier_head copy = *head;
    struct iovec parts[2] = {{&copy, sizeof copy}, {(void *)(uintptr_t)data, head->bytes}};
    return send_all(courier->fd, parts, head->bytes ? 2 : 1, patience_ms);
}

/* Reads what is there, up to `bytes` more. 1: something came, 0: nothing is there, -1: see errno.
 */
static int read_more(struct courier *courier, size_t bytes)
{
    if (courier->done > 0) {
        memmove(courier->in, courier->in + courier->done, courier->used - courier->done);
        courier->used -= courier->done;
        courier->done = 0;
    }
    if (courier->cap < courier->used + bytes) {
        courier->cap = courier->used + bytes;
        courier->in = mem_realloc(courier->in, courier->cap, 1);
    }
    ssize_t got = recv(courier->fd, courier->in + courier->used, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) return -1;
    courier->used += (size_t)got;
    return 1;
}

int courier_recv(struct courier *courier, struct courier_frame *frame)
{
    for (;;) {
        size_t here = courier->used - courier->done, want = sizeof frame->head;
        if (here >= sizeof frame->head) {
            memcpy(&frame->head, courier->in + courier->done, sizeof frame->head);
            if (frame->head.bytes > COURIER_MOST) {
                errno = EPROTO;
                return -1;
            }
            want += frame->head.bytes;
            if (here >= want) {
                frame->data = courier->in + courier->done + sizeof frame->head;
                courier->done += want;
                return 1;
            }
        }
        size_t ask = want - here > READ_BYTES ? want - here : READ_BYTES;
        int got = read_more(courier, ask);
        if (got <= 0) return got;
    }
}

/* ---- payloads ---- */

void pack_raw(struct pack *pack, const void *data, size_t bytes)
{
    if (pack->cap - pack->used < bytes) {
        pack->cap = 2 * pack->cap + bytes;
        pack->data = mem_realloc(pack->data, pack->cap, 1);
    }
    if (bytes) memcpy(pack->data + pack->used, data, bytes);
    pack->used += bytes;
}

void pack_u64(struct pack *pack, uint64_t value)
{
    pack_raw(pack, &value, sizeof value);
}

void pack_block(struct pack *pack, const void *data, size_t bytes)
{
    pack_u64(pack, bytes);
    pack_raw(pack, data, bytes);
}

void pack_text(struct pack *pack, const char *text)
{
    pack_block(pack, text, strlen(text));
}

void pack_release(struct pack *pack)
{
    free(pack->data);
    *pack = (struct pack){0};
}

static const void *take(struct unpack *unpack, size_t bytes)
{
    const uint8_t *at = unpack->at;
    if ((size_t)(unpack->end - at) < bytes) {
        unpack->bad = true;
        return NULL;
    }
    unpack->at = at + bytes;
    return at;
}

uint64_t unpack_u64(struct unpack *unpack)
{
    uint64_t value = 0;
    const void *at = take(unpack, sizeof value);
    if (at) memcpy(&value, at, sizeof value);
    return value;
}

const void *unpack_block(struct unpack *unpack, size_t *bytes)
{
    uint64_t length = unpack_u64(unpack);
    const void *at = unpack->bad ? NULL : take(unpack, length);
    *bytes = at ? length : 0;
    return at;
}

char *unpack_text(struct unpack *unpack)
{
    size_t bytes;
    const char *text = unpack_block(unpack, &bytes);
    char *copy = mem_calloc(bytes + 1, 1);
    if (text) memcpy(copy, text, bytes);
    return copy;
}
