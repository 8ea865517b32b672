/* SPDX-License-Identifier: Apache-2.0
 * What an agent says of itself and its host: see hosts.h. Private to the executor. */
#pragma once

#include <stdint.h>

struct courier;

struct agent_hello {
    char version[64]; /* of the program, and what the layout of shared memory depends on */
    char name[64];    /* of the host */
    char boot[64];    /* one per start of a kernel: hosts with the same one are one machine */
    uint64_t words;   /* of a copy (foreign.h): a hash of its command line */
    /* Numbers of the namespaces for IPC and networks, and of the file system below /dev/shm: copies
     * that differ in one are in different containers. */
    uint64_t ipc, net, shm;
    uint64_t files; /* that a process may have open */
};

/* This process. The version comes first, whatever else changes: it is read of other builds too. */
void agent_describe(struct agent_hello *hello);

/* Runs what the launcher asks for, until it says that this was all: the exit status that it says;
 * -1: the launcher is lost. */
int agent_serve(struct courier *up, const uint8_t *token);
