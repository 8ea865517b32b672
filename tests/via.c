/* SPDX-License-Identifier: Apache-2.0
 * Preloaded, leads every TCP connection that a program opens over IPv4 through a relay that was
 * started with `--to named`, so that links with delays, rates and faults can be put between ranks
 * which know nothing of it.
 *
 *     RELAY=127.0.0.1:7000 LD_PRELOAD=librelay_via.so PROGRAM
 *
 * connect() tells the relay the target, 4 bytes of address and 2 of port as in sockaddr_in, and
 * waits for its answer of one byte: 0 or errno. Other kinds of connections are left alone. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The relay's address from RELAY. 0, or -1 if there is none. */
static int relay_address(struct sockaddr_in *relay)
{
    char host[INET_ADDRSTRLEN] = "";
    const char *text = getenv("RELAY"), *colon = text ? strrchr(text, ':') : NULL;
    if (!colon || (size_t)(colon - text) >= sizeof host) {
        return -1;
    }
    memcpy(host, text, (size_t)(colon - text));
    memset(relay, 0, sizeof *relay);
    relay->sin_family = AF_INET;
    relay->sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    return inet_pton(AF_INET, host, &relay->sin_addr) == 1 ? 0 : -1;
}

/* Waits without an end: a relay that hangs is what a test wants to see. */
static void await(int fd, short event)
{
    struct pollfd want = {fd, event, 0};
    while (poll(&want, 1, -1) < 0 && errno == EINTR) {
    }
}

/* Says where the connection goes, and gives the relay's answer: 0 or -1 with errno. */
static int name_target(int fd, const struct sockaddr_in *to)
{
    uint8_t name[6], answer = ECONNRESET;
    memcpy(name, &to->sin_addr, 4);
    memcpy(name + 4, &to->sin_port, 2);
    await(fd, POLLOUT);
    if (send(fd, name, sizeof name, MSG_NOSIGNAL) == (ssize_t)sizeof name) {
        await(fd, POLLIN);
        answer = recv(fd, &answer, 1, 0) == 1 ? answer : ECONNRESET;
    }
    errno = answer;
    return answer ? -1 : 0;
}

int connect(int fd, const struct sockaddr *to, socklen_t length)
{
    int (*plain)(int, const struct sockaddr *, socklen_t) = NULL;
    *(void **)&plain = dlsym(RTLD_NEXT, "connect");
    struct sockaddr_in relay;
    int kind = 0;
    socklen_t bytes = sizeof kind;
    if (to->sa_family != AF_INET || relay_address(&relay) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &bytes) != 0 || kind != SOCK_STREAM) {
        return plain(fd, to, length);
    }
    if (plain(fd, (struct sockaddr *)&relay, sizeof relay) != 0 && errno != EINPROGRESS) {
        return -1;
    }
    return name_target(fd, (const struct sockaddr_in *)to);
}
