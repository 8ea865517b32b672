/* SPDX-License-Identifier: Apache-2.0
 * One message as executor and simulator both log it, so that the two logs can be compared: the
 * same schedule must give the same messages on either machine. */
#pragma once

#include <stdint.h>

struct msg_log {
    uint32_t src, dst; /* ranks of the group */
    uint16_t channel;
    uint64_t number; /* on its wire (src, dst, channel), from 0, going on over passes */
    uint64_t bytes;
};
