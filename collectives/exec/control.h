/* SPDX-License-Identifier: Apache-2.0
 * What the launcher and its children agree on: descriptors, environment, and the records on the
 * control socket (SOCK_SEQPACKET: a record is a message, so threads can share it). Private to the
 * launcher. */
#pragma once

#include <stdint.h>

enum {
    WORLD_FD = 3, /* descriptors in a child */
    CONTROL_FD = 4,
    MESSAGE_BYTES = 4096, /* most of a message */
};

#define RANK_ENV "COLLBENCH_RANK"     /* a number, or "all": one thread each */
#define PARENT_ENV "COLLBENCH_PARENT" /* process id of the launcher */

/* Head of a record; the message, or one sentence of an error, follows. */
enum control_kind { CONTROL_MESSAGE, CONTROL_ERROR };
struct control {
    uint32_t kind; /* enum control_kind */
    uint32_t rank;
    uint32_t code; /* CONTROL_ERROR: enum err_code */
};
