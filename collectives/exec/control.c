/* SPDX-License-Identifier: Apache-2.0
 * Records and descriptors over the control sockets: see control.h. */
#include "exec/control.h"

#include <errno.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/mem.h"

enum { ANSWER_S = 10 }; /* a rank waits so long for its descriptors */

int control_send(int fd, const struct control *head, const void *data, size_t bytes)
{
    struct iovec parts[2] = {
        {.iov_base = (void *)(uintptr_t)head, .iov_len = sizeof *head},
        {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent;
    do {
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

/* Finds the sender's process; false when it belongs to another user. */
static bool known_sender(struct msghdr *message, pid_t *pid)
{
    *pid = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS) continue;
        struct ucred sender;
        memcpy(&sender, CMSG_DATA(part), sizeof sender);
        *pid = sender.pid;
        return sender.uid == geteuid();
    }
    return true;
}

int control_recv(int fd, struct record *record)
{
    for (;;) {
        _Alignas(struct cmsghdr) char extra[CMSG_SPACE(sizeof(struct ucred))];
        struct iovec parts[2] = {
            {.iov_base = &record->head, .iov_len = sizeof record->head},
            {.iov_base = record->data, .iov_len = sizeof record->data},
        };
        struct msghdr message = {.msg_name = &record->from,
                                 .msg_namelen = sizeof record->from,
                                 .msg_iov = parts,
                                 .msg_iovlen = 2,
                                 .msg_control = extra,
                                 .msg_controllen = sizeof extra};
        ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return 0;
        if (got == 0) return -1;
        if (!known_sender(&message, &record->pid) || got < (ssize_t)sizeof record->head) continue;
        record->bytes = (size_t)got - sizeof record->head;
        record->from_bytes = message.msg_namelen;
        return 1;
    }
}

/* A datagram socket under a name that the kernel chooses. */
static int open_named(void)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un any = {.sun_family = AF_UNIX};
    if (fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(sa_family_t))) {
        close(fd);
        return -1;
    }
    return fd;
}

int control_listen(char **name)
{
    struct sockaddr_un own = {0};
    socklen_t bytes = sizeof own;
    int fd = open_named(), on = 1;
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
        getsockname(fd, (struct sockaddr *)&own, &bytes)) {
        close(fd);
        return -1;
    }
    size_t head = offsetof(struct sockaddr_un, sun_path) + 1; /* abstract: a zero comes first */
    *name = mem_printf("%.*s", (int)(bytes - head), own.sun_path + 1);
    return fd;
}

int control_join(const char *name)
{
    struct sockaddr_un launcher = {.sun_family = AF_UNIX};
    size_t length = strlen(name), head = offsetof(struct sockaddr_un, sun_path) + 1;
    if (length > sizeof launcher.sun_path - 1) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(launcher.sun_path + 1, name, length);
    int fd = open_named();
    if (fd >= 0 && connect(fd, (struct sockaddr *)&launcher, (socklen_t)(head + length))) {
        close(fd);
        return -1;
    }
    return fd;
}

int control_give(int fd, const struct record *hello, const int fds[HELLO_COUNT])
{
    enum { BYTES = HELLO_COUNT * sizeof(int) };
    _Alignas(struct cmsghdr) char extra[CMSG_SPACE(BYTES)] = {0};
    char byte = 0;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)&hello->from,
                             .msg_namelen = hello->from_bytes,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = extra,
                             .msg_controllen = sizeof extra};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(BYTES);
    memcpy(CMSG_DATA(head), fds, BYTES);
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

int control_take(int fd, int fds[HELLO_COUNT])
{
    enum { BYTES = HELLO_COUNT * sizeof(int) };
    _Alignas(struct cmsghdr) char extra[CMSG_SPACE(BYTES)];
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = extra, .msg_controllen = sizeof extra};
    struct timeval patience = {.tv_sec = ANSWER_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ssize_t got;
    do {
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(BYTES)) {
        errno = EBADMSG;
        return -1;
    }
    memcpy(fds, CMSG_DATA(head), BYTES);
    return 0;
}
