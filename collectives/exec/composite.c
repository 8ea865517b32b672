/* SPDX-License-Identifier: Apache-2.0
 * Transports made of two: shared memory between ranks of one host, a network between hosts. A
 * handle's wires are dealt to the parts by where the peer is; each part opens its own, and a wire
 * says which part it belongs to. Both parts move messages through slots (WIRE_STAGED). */
#include <stdlib.h>

#include "base/mem.h"
#include "exec/engine.h"
#include "exec/transport.h"
#include "sched/layout.h"

enum { PARTS = 2, NEAR = 0, FAR = 1 };
enum { NEAR_WAIT_US = 50 }; /* nothing tells that a message has come through shared memory */

extern const struct transport shm_transport, tcp_transport, ofi_transport, mpi_transport;

struct composite {
    const struct transport *part[PARTS];
    void *state[PARTS]; /* NULL: it has no wire */
    struct rank *rank;
    struct waiter waiter; /* of a wait for memory alone, which began at this tick */
    uint64_t tick;
};

/* Opens the wires that lead to `part`; *opened stays NULL when there is none. */
static int open_part(const struct wire_spec *spec, uint32_t part, const struct transport *transport,
                     struct wire **wires, struct wire_buffers *peers, void **opened,
                     struct err *err)
{
    struct world *world = spec->rank->world;
    struct lwire *lwires = mem_calloc(spec->nwires, sizeof *lwires);
    uint32_t *at = mem_calloc(spec->nwires, sizeof *at);
    struct wire_spec own = *spec;
    own.wires = lwires;
    own.nwires = 0;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        uint32_t peer = spec->wires[i].peer, rank = spec->group ? spec->group[peer] : peer;
        if ((world_host(world, rank) != world_own_host(world)) != part) continue;
        at[own.nwires] = i;
        lwires[own.nwires++] = spec->wires[i];
    }
    struct wire **got = mem_calloc(spec->nwires, sizeof *got);
    int bad = own.nwires > 0 ? transport->open(&own, got, peers, opened, err) : 0;
    for (uint32_t i = 0; !bad && i < own.nwires; i++) {
        wires[at[i]] = got[i];
        got[i]->transport = transport;
    }
    free(got);
    free(at);
    free(lwires);
    return bad;
}

static void composite_close(void *opened)
{
    struct composite *all = opened;
    for (uint32_t part = PARTS; part-- > 0;) { /* the network first: it has to be driven */
        if (all->state[part]) all->part[part]->close(all->state[part]);
    }
    free(all);
}

static int composite_open(const struct wire_spec *spec, const struct transport *far,
                          struct wire **wires, struct wire_buffers *peers, void **opened,
                          struct err *err)
{
    struct composite *all = mem_calloc(1, sizeof *all);
    all->part[NEAR] = &shm_transport;
    all->part[FAR] = far;
    all->rank = spec->rank;
    for (uint32_t part = 0; part < PARTS; part++) {
        if (open_part(spec, part, all->part[part], wires, peers, &all->state[part], err)) {
            free(all); /* the run ends: nobody waits for peers */
            return -1;
        }
    }
    *opened = all;
    return 0;
}

static void *composite_room(struct wire *wire, size_t bytes)
{
    return wire->transport->room(wire, bytes);
}

static void composite_post(struct wire *wire, size_t bytes, struct pull_ref ref)
{
    wire->transport->post(wire, bytes, ref);
}

static const void *composite_peek(struct wire *wire, size_t bytes, struct pull_ref *ref)
{
    return wire->transport->peek(wire, bytes, ref);
}

static void composite_release(struct wire *wire)
{
    wire->transport->release(wire);
}

static bool composite_released(struct wire *wire, uint64_t number)
{
    return wire->transport->released(wire, number);
}

static bool composite_idle(void *opened)
{
    struct composite *all = opened;
    const struct transport *far = all->part[FAR];
    return !all->state[FAR] || !far->idle || far->idle(all->state[FAR]);
}

static void composite_poll(void *opened)
{
    struct composite *all = opened;
    const struct transport *far = all->part[FAR];
    if (all->state[FAR] && far->poll) far->poll(all->state[FAR]);
}

static void composite_wait(void *opened, uint32_t us)
{
    struct composite *all = opened;
    const struct transport *far = all->part[FAR];
    if (all->state[FAR] && far->wait) {
        far->wait(all->state[FAR], all->state[NEAR] && us > NEAR_WAIT_US ? NEAR_WAIT_US : us);
        return;
    }
    uint64_t tick = atomic_load_explicit(&all->rank->status->tick, memory_order_relaxed);
    if (tick != all->tick) all->waiter = (struct waiter){0};
    all->tick = tick;
    waiter_pause(&all->waiter, all->rank);
}

/* The transport "shm+X" of shared memory and `far`; what suits it must suit both. */
#define COMPOSITE(far, text, slice, slots, under_mpiexec)                                          \
    static int far##_composite_open(const struct wire_spec *spec, struct wire **wires,             \
                                    struct wire_buffers *peers, void **opened, struct err *err)    \
    {                                                                                              \
        return composite_open(spec, &far##_transport, wires, peers, opened, err);                  \
    }                                                                                              \
    static int far##_composite_join(struct rank *rk, struct err *err)                              \
    {                                                                                              \
        return far##_transport.join(rk, err);                                                      \
    }                                                                                              \
    static void far##_composite_leave(struct rank *rk)                                             \
    {                                                                                              \
        far##_transport.leave(rk);                                                                 \
    }                                                                                              \
    static size_t far##_composite_bytes(const struct net_spec *net)                                \
    {                                                                                              \
        return transport_rank_bytes(&far##_transport, net);                                        \
    }                                                                                              \
    static bool far##_composite_drop(struct rank *rk)                                              \
    {                                                                                              \
        return far##_transport.drop && far##_transport.drop(rk);                                   \
    }                                                                                              \
    static void far##_composite_gpu_says(struct rank *rk, char *said, size_t size)                 \
    {                                                                                              \
        if (far##_transport.gpu_says) far##_transport.gpu_says(rk, said, size);                    \
    }                                                                                              \
    static void far##_composite_sweep(const struct world *world)                                   \
    {                                                                                              \
        if (far##_transport.sweep) far##_transport.sweep(world);                                   \
    }                                                                                              \
    static const char *far##_composite_absent(void)                                                \
    {                                                                                              \
        return far##_transport.absent();                                                           \
    }                                                                                              \
    const struct transport shm_##far##_transport = {                                               \
        .name = text,                                                                              \
        .modes = 1u << WIRE_STAGED,                                                                \
        .mpiexec = under_mpiexec,                                                                  \
        .engine = &host_engine,                                                                    \
        .suits = {[WIRE_STAGED] = {slice, slots}},                                                 \
        .slot_budget = 32 << 20,                                                                   \
        .granule = LAYOUT_GRANULE,                                                                 \
        .message_align = 1,                                                                        \
        .alloc = rank_alloc,                                                                       \
        .absent = far##_composite_absent,                                                          \
        .outer = &far##_transport,                                                                 \
        .join = far##_composite_join,                                                              \
        .leave = far##_composite_leave,                                                            \
        .rank_bytes = far##_composite_bytes,                                                       \
        .drop = far##_composite_drop,                                                              \
        .sweep = far##_composite_sweep,                                                            \
        .gpu_says = far##_composite_gpu_says,                                                      \
        .open = far##_composite_open,                                                              \
        .close = composite_close,                                                                  \
        .room = composite_room,                                                                    \
        .post = composite_post,                                                                    \
        .peek = composite_peek,                                                                    \
        .release = composite_release,                                                              \
        .released = composite_released,                                                            \
        .idle = composite_idle,                                                                    \
        .poll = composite_poll,                                                                    \
        .wait = composite_wait,                                                                    \
    }

COMPOSITE(tcp, "shm+tcp", 256 << 10, 4, false);
COMPOSITE(ofi, "shm+ofi", 128 << 10, 4, false);
COMPOSITE(mpi, "shm+mpi", 128 << 10, 8, true);
