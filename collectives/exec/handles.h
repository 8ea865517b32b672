/* SPDX-License-Identifier: Apache-2.0
 * How the members of a handle find each other's words about it: each publishes one block of its
 * extent under the handle's tag, its status lists tag and place in one word, so that a peer touches
 * only the block it looks for. What the blocks hold is the transport's business. */
#pragma once

#include "exec/world.h"

enum { HANDLE_PLACE = 128 /* blocks start at multiples of it */ };

/* Publishes `block`, which lies in the rank's extent, as its word about the handle `tag`; all that
 * was stored there before is seen by who finds it. The place in the status, to be given to
 * handles_drop; NULL with the sentence when there are too many handles (ERR_FAILED). */
_Atomic uint64_t *handles_publish(struct rank *rk, uint32_t tag, const void *block,
                                  struct err *err);
void handles_drop(_Atomic uint64_t *handle);

/* The block of world rank `rank`, mapped here; waits until it is published. *extent: where that
 * rank's extent is mapped. NULL with the sentence when it cannot be mapped. */
void *handles_find(struct rank *rk, uint32_t rank, uint32_t tag, uint8_t **extent, struct err *err);
