/* SPDX-License-Identifier: Apache-2.0
 * The linked step: the 32-byte record that the executor on the CPU, the simulator and the
 * interpreter on a GPU read alike. What the kinds mean is written in sched/sched.h, how records
 * come to be in sched/link.h. Also read by CUDA code: plain data only. */
#pragma once

#include <stdint.h>

enum step_kind {
    STEP_SEND,
    STEP_RECV,
    STEP_RECV_REDUCE,
    STEP_COPY,
    STEP_REDUCE,
    STEP_CALC,
    STEP_NOP,
    STEP_KIND_COUNT
};

/* How messages travel on a wire. */
enum wire_mode {
    WIRE_STAGED, /* copied to a slot, read from there */
    WIRE_PULL,   /* the receiver reads the sender's buffer; it stays busy until then */
    WIRE_PUSH,   /* the sender writes the receiver's place; only where proven free */
    WIRE_LL,     /* staged, payload and sequence number in one cache line */
    WIRE_MODE_COUNT
};

enum lflags {
    LS_FINAL = 1,   /* avg divides in this (+) */
    LS_CHAIN = 2,   /* the next record goes on with this one's value: same group */
    LS_NOSTORE = 4, /* nobody reads dst: keep the value in registers */
    LS_ACC = 8,     /* src is the previous record's value */
};

/* One linked step: the record that executor, simulator and GPU interpreter read. */
struct lstep {
    uint8_t kind;             /* enum step_kind */
    uint8_t flags;            /* enum lflags */
    uint8_t src_buf, dst_buf; /* SEND: dst is where the PEER receives it */
    uint32_t nchunks;
    uint32_t src, dst; /* first chunks */
    uint32_t wire;     /* index into the program's wires; REDUCE: first chunk of src2 */
    uint32_t msg;      /* number of the message within a pass; REDUCE: buffer of src2 */
    uint32_t wait;     /* first wait of the group in the program's waits (at its first record) */
    uint32_t nwaits;
};

enum lwait_kind {
    LWAIT_RELEASE, /* message `number` sent on `index` (wire) has been released */
    LWAIT_LANE,    /* lane `index` has finished its record `number` */
};

struct lwait {
    uint8_t kind;
    uint8_t distance; /* 0: of this pass; 1: of the pass before */
    uint16_t unused;
    uint32_t index;
    uint32_t number;
};
