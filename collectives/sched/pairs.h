/* SPDX-License-Identifier: Apache-2.0
 * Who meets whom: the wires of every program, and which step holds their k-th message. Shared by
 * linker, verifier and simulator. */
#pragma once

#include "sched/link.h"

enum { NO_WIRE = UINT32_MAX };

struct pairs_prog {
    struct lwire *wires; /* sorted by (send, peer, channel) */
    uint32_t nwires;
    uint32_t *first;   /* per wire, nwires + 1: where its messages start in step_of */
    uint32_t *step_of; /* per message: the step that sends or receives it */
    uint32_t *wire_of; /* per step; NO_WIRE if it neither sends nor receives */
    uint32_t *msg_of;  /* per step: number on its wire */
};

struct pairs {
    const struct sched *sched;
    struct pairs_prog *progs;
};

/* Checks the SHAPE of every program (indexes, peers and lanes in range; a wire in one lane at each
 * end; sends and receives pair up, with as many chunks) and fills `pairs`. -1 with sentences that
 * name rank and step; `pairs` then holds nothing. */
int pairs_init(struct pairs *pairs, const struct sched *sched, struct err *err);
void pairs_release(struct pairs *pairs);

/* Index of a wire among `nwires` sorted ones, or NO_WIRE. */
uint32_t wire_find(const struct lwire *wires, uint32_t nwires, bool send, uint32_t peer,
                   uint16_t channel);

/* The other end of wire `wire` of `rank`'s program: the peer's rank (absolute) in *peer, and the
 * peer's wire index. `wires` and `nwires` are the peer program's (the same for a relative one). */
uint32_t wire_other_end(const struct sched *sched, uint32_t rank, const struct lwire *wire,
                        const struct lwire *peer_wires, uint32_t peer_nwires);
