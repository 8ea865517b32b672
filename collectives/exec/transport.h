/* SPDX-License-Identifier: Apache-2.0
 * What a transport is: a table of functions that move chunks over wires between the ranks of a
 * group. Wires are first in, first out; messages are numbered from 0 and the numbers go on over
 * passes and operations. No function here blocks. */
#pragma once

#include "exec/world.h"
#include "sched/link.h"

/* One end of a wire. Transports embed it first in their own struct. */
struct wire {
    const struct transport *transport;
    uint32_t peer;  /* group rank */
    uint32_t depth; /* messages of room */
    enum wire_mode mode;
    size_t slot_bytes; /* longest message */
    uint64_t next;     /* number of the next message to post (sender) or take (receiver) */
};

/* What a pulled message says: where in the sender's buffers the data lie. */
struct pull_ref {
    uint32_t buf, chunk;
};

/* Where the peers find each other's buffers. */
struct wire_buffers {
    void *base[3]; /* BUF_IN, BUF_OUT, BUF_SCRATCH; NULL: cannot be mapped */
    size_t bytes[3];
};

struct wire_spec {
    struct rank *rank;
    const uint32_t *group; /* world ranks; NULL: identity */
    uint32_t ngroup, me;
    uint32_t tag;
    const struct lwire *wires; /* this rank's, peers resolved to group ranks */
    uint32_t nwires;
    uint32_t depth;
    size_t slot_bytes;
    struct wire_buffers own;
};

struct engine;

struct transport {
    const char *name;
    unsigned modes;              /* bit per enum wire_mode */
    bool device;                 /* its wires and all buffers are of GPUs: see device.h */
    bool graphs;                 /* .. and operations can be launched as graphs */
    bool mpiexec;                /* ranks are started under an mpiexec: see mpi.h */
    const struct engine *engine; /* what runs programs over its wires */
    /* What suits it when nobody says otherwise, per enum wire_mode: most bytes of a chunk per pass,
     * messages of room; and bytes for all slots of a rank. Chunks are cut at multiples of granule,
     * those of one message lie at multiples of message_align. */
    struct {
        size_t slice_bytes;
        uint32_t depth;
    } suits[WIRE_MODE_COUNT];
    size_t slot_budget;
    uint32_t granule, message_align;
    uint32_t most_channels; /* of an algorithm, unless asked for; 0: its own number, */
    size_t channel_bytes;   /* .. each with at least so many bytes of a call */
    /* Memory for scratch, of the kind that its buffers are of: rank_alloc, device_alloc. */
    void *(*alloc)(struct rank *rk, size_t bytes, struct err *err);
    const char *(*absent)(void); /* why it cannot be used here; NULL: it can */
    /* Transports of the network, else NULL. Every rank joins once before its rank_main, when
     * nothing has been measured: it makes what all handles share (sockets, an endpoint) in rk->net,
     * and says in rk->status->card how peers reach it; behind the barrier that follows they all
     * read that. It must not wait for peers. leave: after rank_main; NULL in rk->net is fine. */
    int (*join)(struct rank *rk, struct err *err);
    void (*leave)(struct rank *rk);
    /* Memory that a rank takes to join, beside that of handles; NULL: next to none. */
    size_t (*rank_bytes)(const struct net_spec *net);
    /* .. connections per pair of ranks, each a file, unless told otherwise; the memory of one
     * beside the kernel's. 0: other ends. outer: what leads to other hosts, where ranks of one
     * share memory; NULL: it does so itself. */
    uint32_t connections;
    size_t connection_bytes;
    const struct transport *outer;
    /* After the end of all ranks, in the launcher: removes what killed ones left behind; may be
     * NULL. */
    void (*sweep)(const struct world *world);
    /* Test hook: cuts a connection to one peer, as a broken network would; false: none is cut for
     * good yet, call it again. NULL: the transport has no connections of its own. */
    bool (*drop)(struct rank *rk);
    /* Whether its library says that it takes memory of GPUs, as a clause for people; NULL: it has
     * no library. Buffers there go through slots all the same. */
    void (*gpu_says)(struct rank *rk, char *text, size_t size);
    /* Opens all wires of one handle; every member of the group calls it with its own list. On
     * success wires[i] belongs to spec->wires[i], and peers[g] holds group rank g's buffers as
     * mapped here (only those that a PULL or PUSH wire needs). */
    int (*open)(const struct wire_spec *spec, struct wire **wires, struct wire_buffers *peers,
                void **state, struct err *err);
    void (*close)(void *state);
    /* Sender: a place for the next message of `bytes`, or NULL when the wire is full. PULL and
     * PUSH wires give any non-NULL pointer: only the room counts. */
    void *(*room)(struct wire *wire, size_t bytes);
    /* Sender: posts the message whose place `room` gave. */
    void (*post)(struct wire *wire, size_t bytes, struct pull_ref ref);
    /* Receiver: the next message: its bytes (STAGED, LL), or for PULL and PUSH any non-NULL
     * pointer with *ref filled in (PULL). NULL when it has not arrived. */
    const void *(*peek)(struct wire *wire, size_t bytes, struct pull_ref *ref);
    /* Receiver: done with the message that peek gave. */
    void (*release)(struct wire *wire);
    /* Sender: true once the message with this number has been released. */
    bool (*released)(struct wire *wire, uint64_t number);
    /* True when all that was posted and released will reach the peers though nobody drives the
     * transport any more: an operation is not done before. NULL: at once. */
    bool (*idle)(void *state);
    /* Drives the transport where it does not move by itself; may be NULL. */
    void (*poll)(void *state);
    /* Instead of sleeping: waits until something may have arrived, at most `us` microseconds; may
     * be NULL. */
    void (*wait)(void *state, uint32_t us);
    /* Transports of devices have none of the six above: their wires are device wires (device.h). */
};

/* Every transport that was built, NULL-terminated. */
const struct transport *const *transport_table(void);
const struct transport *transport_find(const char *name, struct err *err);

/* The same, though it may be one that cannot be used here. */
const struct transport *transport_named(const char *name, struct err *err);

/* Removes what ranks of a run that were killed left behind; to be called when all have ended. */
void transport_sweep(const struct world *world);

/* What ranks that use it need of the world, besides the choices of whoever runs them. */
struct net_spec transport_net(const struct transport *transport);
size_t transport_rank_bytes(const struct transport *transport, const struct net_spec *net);
