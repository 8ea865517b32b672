/* SPDX-License-Identifier: Apache-2.0
 * What the launcher and its ranks agree on: descriptors, environment, and the records on the
 * control sockets. A record is a message, so threads can share a socket. Private to the launcher.
 *
 * A child of the launcher inherits one end of a SOCK_SEQPACKET pair. A rank that another program
 * started for it (mpiexec) sends to the launcher's one SOCK_DGRAM socket, whose abstract name is in
 * the environment: such a name is in no file system and ends with the launcher. The rank says
 * hello, and gets the descriptors that a child would have inherited. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

enum {
    WORLD_FD = 3, /* descriptors in a child */
    CONTROL_FD = 4,
    MESSAGE_BYTES = 4096, /* most of a message */
};

/* A number; "all": one thread each; or "$NAME": the number is in the variable NAME ("$": somebody
 * else starts the ranks of this wrapper). */
#define RANK_ENV "COLLBENCH_RANK"
#define PARENT_ENV "COLLBENCH_PARENT" /* process id of the launcher */
#define SOCKET_ENV "COLLBENCH_SOCKET" /* with "$NAME": name of the launcher's socket */

/* Head of a record; the message, or one sentence of an error, follows. */
enum control_kind {
    CONTROL_MESSAGE,
    CONTROL_ERROR,
    CONTROL_HELLO,
    CONTROL_MEETING, /* where the first rank of host 0 waits for the other hosts */
};
struct control {
    uint32_t kind; /* enum control_kind */
    uint32_t rank;
    uint32_t code; /* CONTROL_ERROR: enum err_code */
};

/* What the launcher answers to a hello. */
enum { HELLO_WORLD, HELLO_STDOUT, HELLO_STDERR, HELLO_COUNT };

/* A record as it arrived. */
struct record {
    struct control head;
    char data[MESSAGE_BYTES];
    size_t bytes; /* of data */
    pid_t pid;    /* of the sender as the kernel says; 0: it came over a pair */
    struct sockaddr_un from;
    socklen_t from_bytes;
};

/* Sends one record of at most MESSAGE_BYTES; waits while the other side's queue is full. -1: see
 * errno. */
int control_send(int fd, const struct control *head, const void *data, size_t bytes);

/* Takes one record without waiting; those of other users are dropped. 1: got one, 0: there is none
 * now, -1: the other end is closed. */
int control_recv(int fd, struct record *record);

/* The launcher's socket for ranks that are not its children; *name, freed by the caller, is for
 * SOCKET_ENV. -1: see errno. */
int control_listen(char **name);

/* A rank's socket, connected to the launcher's of that name. -1: see errno. */
int control_join(const char *name);

/* Answers a hello with descriptors, and takes the answer in; the latter gives up after 10 s. -1:
 * see errno. */
int control_give(int fd, const struct record *hello, const int fds[HELLO_COUNT]);
int control_take(int fd, int fds[HELLO_COUNT]);
