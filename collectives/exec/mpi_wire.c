/* SPDX-License-Identifier: Apache-2.0
 * The transport over MPI: point to point, non-blocking, and nothing waits inside of the library,
 * which on ranks that share cores takes milliseconds per call.
 *
 *   sender                                                           receiver
 *   open: waits for it   <-- (tag 0) HELLO: handle, channel, T ----  open: a free tag T,
 *                                                                    an MPI_Irecv in each slot
 *   room, post: slot n mod d ---- (tag T) message n -------------->  peek: slot n mod d
 *   the send has ended                                               release: MPI_Irecv of n + d
 *
 * Messages of one tag do not overtake each other, so that the n-th of a wire ends in the n-th
 * receive posted. A sender knows T only when the receives are there, so that no message of a handle
 * can meet another one's.
 *
 * No credits are sent: each SYNC-th message goes by MPI_Issend, which ends when the peer has a slot
 * for it, and with it for all before. Ends are taken in order, so that never more than
 * depth + SYNC - 1 messages wait for a slot inside of the library. To other hosts all messages go
 * so, for a send that has ended otherwise may wait for this rank to drive the library. Medians of
 * an all-reduce of 8 B by 2 ranks with MPICH 4.0.2: 0.47 us when all go so, 0.41 with each second,
 * 0.31 with each fourth, 0.30 with each eighth, 0.25 with none, which nothing bounds; from 32 KiB
 * on there is no difference. */
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"
#include "exec/launch.h"
#include "exec/mpi.h"
#include "exec/transport.h"
#include "sched/layout.h"

enum { HELLO_TAG = 0, SYNC = 4 };

typedef int send_fn(const void *data, intptr_t count, uintptr_t dtype, intptr_t to, intptr_t tag,
                    uintptr_t comm, uintptr_t *request);

struct functions {
    int (*dup)(uintptr_t comm, uintptr_t *copy, uintptr_t *request);
    int (*comm_free)(uintptr_t *comm);
    int (*attribute)(uintptr_t comm, intptr_t key, void *value, int *set);
    send_fn *send, *send_sync;
    int (*receive)(void *data, intptr_t count, uintptr_t dtype, intptr_t from, intptr_t tag,
                   uintptr_t comm, uintptr_t *request);
    int (*test_some)(intptr_t count, void *requests, int *ended, int *indices, void *statuses);
    int (*count)(const void *status, uintptr_t dtype, int *count);
    int (*cancel)(uintptr_t *request);
    int (*barrier)(uintptr_t comm, uintptr_t *request);
};

static const struct mpi_name function_names[] = {
    {"MPI_Comm_idup", offsetof(struct functions, dup)},
    {"MPI_Comm_free", offsetof(struct functions, comm_free)},
    {"MPI_Comm_get_attr", offsetof(struct functions, attribute)},
    {"MPI_Isend", offsetof(struct functions, send)},
    {"MPI_Issend", offsetof(struct functions, send_sync)},
    {"MPI_Irecv", offsetof(struct functions, receive)},
    {"MPI_Testsome", offsetof(struct functions, test_some)},
    {"MPI_Get_count", offsetof(struct functions, count)},
    {"MPI_Cancel", offsetof(struct functions, cancel)},
    {"MPI_Ibarrier", offsetof(struct functions, barrier)},
};

/* What a receiver tells the sender of a wire. All ranks have one byte order. */
struct hello {
    uint32_t handle, channel, depth; /* handle: wire_spec.tag */
    int32_t tag;                     /* of its messages */
    uint64_t slot_bytes;
};

/* A hello that came before its wire was opened here. */
struct early {
    uint32_t peer;
    struct hello hello;
};

/* What a rank's handles share. */
struct net {
    struct rank *rk;
    struct mpi_library *mpi;
    struct functions fn;
    uintptr_t comm, bytes, none; /* own communicator; type of a byte; no request */
    int most_tag;
    bool *taken; /* by tag - 1 */
    size_t ntags, tags_cap;
    struct early *early;
    size_t nearly, early_cap;
};

struct mpi_wire {
    struct wire wire;
    struct mpi_state *state;
    uint32_t world_peer;
    bool sends, far;         /* far: to another host */
    struct hello hello;      /* tag 0: not known yet */
    uintptr_t hello_request; /* receiver: 0: there is none */
    uint8_t *slots;
    uintptr_t *requests; /* by slot */
    int *arrived;        /* receiver, by slot: bytes */
    uint64_t begun;      /* messages whose sends or receives have been started, */
    uint64_t ended;      /* and ended */
};

struct mpi_state {
    struct net *net;
    struct mpi_wire *wires;
    uint32_t nwires;
    uint8_t *memory;   /* of all slots */
    uint8_t *heads;    /* by wire: the oldest request that has not ended, as arrays have them */
    uint8_t *statuses; /* .. */
    int *indices;      /* .. */
};

/* Ends the run. `peer`: world rank, or -1; what fails with a peer may be that peer's fault. */
static _Noreturn void fail(const struct net *net, int code, const char *call, int peer)
{
    struct err err = ERR_INIT;
    char *what = peer < 0 ? mem_strdup(call) : mem_printf("%s with rank %d", call, peer);
    mpi_library_error(net->mpi, code, what, &err);
    free(what);
    if (peer >= 0) rank_lost(net->rk, (uint32_t)peer, &err);
    rank_fail(net->rk, &err);
}

/* Gives up the core, and tells the watcher for whom. */
static void turn(const struct net *net, int peer)
{
    rank_beat(net->rk);
    rank_waits(net->rk, 0, WAIT_LIBRARY, peer, 0);
    sched_yield();
    rank_goes_on(net->rk);
}

/* Polls until a request has ended. */
static void await(const struct net *net, uintptr_t *request, const char *call, int peer)
{
    int done = 0;
    for (;;) {
        int rc = net->mpi->fn.test(request, &done, net->mpi->status_ignore);
        if (rc) fail(net, rc, call, peer);
        if (done) return;
        turn(net, peer);
    }
}

/* ---- joining and leaving -------------------------------------------------------------------- */

static int mpi_join(struct rank *rk, struct err *err)
{
    rank_says(rk, "opening MPI");
    struct mpi_library *mpi = mpi_library_open(rk, err);
    if (!mpi) return -1;
    struct net *net = rk->net = mem_calloc(1, sizeof *net);
    net->rk = rk;
    net->mpi = mpi;
    net->bytes = mpi_library_handle(mpi, &mpi->abi->bits8);
    net->none = mpi_library_handle(mpi, &mpi->abi->request_null);
    size_t count = sizeof function_names / sizeof *function_names;
    if (mpi_library_find(mpi, function_names, count, &net->fn, err)) return -1;
    int *most, set = 0, rc = net->fn.attribute(mpi->world, mpi->abi->tag_ub, &most, &set);
    if (rc || !set) return mpi_library_error(mpi, rc, "MPI_Comm_get_attr of MPI_TAG_UB", err);
    net->most_tag = *most;
    uintptr_t request = 0;
    rc = net->fn.dup(mpi->world, &net->comm, &request);
    if (rc) return mpi_library_error(mpi, rc, "MPI_Comm_idup", err);
    await(net, &request, "MPI_Comm_idup", -1);
    return 0;
}

/* All leave together: who finalises while others work would make them wait inside the library.
 * Over several hosts nobody finalises (see mpi_library_close), but who has gone answers nobody. */
static void mpi_leave(struct rank *rk)
{
    struct net *net = rk->net;
    if (!net) return;
    if (net->comm && world_nhosts(rk->world) > 1) {
        rank_barrier(rk);
        mpi_library_close(net->mpi);
    } else if (net->comm) {
        uintptr_t request = 0;
        int rc = net->fn.barrier(net->comm, &request);
        if (rc) fail(net, rc, "MPI_Ibarrier", -1);
        await(net, &request, "MPI_Ibarrier", -1);
        net->fn.comm_free(&net->comm);
        mpi_library_close(net->mpi);
    }
    free(net->taken);
    free(net->early);
    free(net);
    rk->net = NULL;
}

/* ---- the fast side -------------------------------------------------------------------------- */

/* Puts the oldest request of a wire that has not ended into the list. */
static void set_head(struct mpi_wire *w)
{
    struct mpi_state *state = w->state;
    size_t bytes = state->net->mpi->abi->request_bytes;
    uint8_t *head = state->heads + (size_t)(w - state->wires) * bytes;
    if (w->ended < w->begun) {
        memcpy(head, &w->requests[w->ended % w->wire.depth], bytes);
    } else {
        memcpy(head, &state->net->none, bytes);
    }
}

static void begin_receive(struct mpi_wire *w)
{
    const struct net *net = w->state->net;
    uint64_t at = w->begun % w->wire.depth;
    w->requests[at] = 0;
    int rc = net->fn.receive(w->slots + at * w->wire.slot_bytes, (intptr_t)w->wire.slot_bytes,
                             net->bytes, (intptr_t)w->world_peer, w->hello.tag, net->comm,
                             &w->requests[at]);
    if (rc) fail(net, rc, "MPI_Irecv", (int)w->world_peer);
    if (w->ended == w->begun++) set_head(w);
}

static void *mpi_room(struct wire *wire, size_t bytes)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    (void)bytes;
    if (wire->next - w->ended >= wire->depth) return NULL;
    return w->slots + wire->next % wire->depth * wire->slot_bytes;
}

static void mpi_post(struct wire *wire, size_t bytes, struct pull_ref ref)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    const struct net *net = w->state->net;
    (void)ref;
    uint64_t at = wire->next % wire->depth;
    bool sync = w->far || wire->next % SYNC == SYNC - 1;
    send_fn *send = sync ? net->fn.send_sync : net->fn.send;
    w->requests[at] = 0;
    int rc = send(w->slots + at * wire->slot_bytes, (intptr_t)bytes, net->bytes,
                  (intptr_t)w->world_peer, w->hello.tag, net->comm, &w->requests[at]);
    if (rc) fail(net, rc, sync ? "MPI_Issend" : "MPI_Isend", (int)w->world_peer);
    wire->next++;
    if (w->ended == w->begun++) set_head(w);
}

static const void *mpi_peek(struct wire *wire, size_t bytes, struct pull_ref *ref)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    (void)ref;
    if (w->ended <= wire->next) return NULL;
    uint64_t at = wire->next % wire->depth;
    if ((size_t)w->arrived[at] != bytes) {
        struct err err = ERR_INIT;
        err_add(&err, ERR_FAILED, "message %llu from rank %u has %d B instead of %zu B",
                (unsigned long long)wire->next, w->world_peer, w->arrived[at], bytes);
        rank_fail(w->state->net->rk, &err);
    }
    return w->slots + at * wire->slot_bytes;
}

static void mpi_release(struct wire *wire)
{
    wire->next++;
    begin_receive((struct mpi_wire *)wire);
}

static bool mpi_released(struct wire *wire, uint64_t number)
{
    return ((struct mpi_wire *)wire)->ended > number;
}

/* Ends the run for the first of the ended requests whose status has an error. */
static _Noreturn void fail_some(const struct mpi_state *state, int code, int ended)
{
    const struct mpi_abi *abi = state->net->mpi->abi;
    for (int i = 0; i < ended; i++) {
        const struct mpi_wire *w = &state->wires[state->indices[i]];
        int error;
        memcpy(&error, state->statuses + (size_t)i * abi->status_bytes + abi->status_error,
               sizeof error);
        if (error)
            fail(state->net, error, w->sends ? "MPI_Isend" : "MPI_Irecv", (int)w->world_peer);
    }
    fail(state->net, code, "MPI_Testsome", -1);
}

static void mpi_poll(void *opened)
{
    struct mpi_state *state = opened;
    const struct net *net = state->net;
    int ended = 0;
    int rc = net->fn.test_some((intptr_t)state->nwires, state->heads, &ended, state->indices,
                               state->statuses);
    if (rc) fail_some(state, rc, ended);
    for (int i = 0; i < ended; i++) { /* below 0: nothing is under way */
        struct mpi_wire *w = &state->wires[state->indices[i]];
        if (!w->sends) {
            rc = net->fn.count(state->statuses + (size_t)i * net->mpi->abi->status_bytes,
                               net->bytes, &w->arrived[w->ended % w->wire.depth]);
            if (rc) fail(net, rc, "MPI_Get_count", (int)w->world_peer);
        }
        w->ended++;
        set_head(w);
    }
}

/* What was sent needs this rank until the sends have ended. */
static bool mpi_idle(void *opened)
{
    const struct mpi_state *state = opened;
    for (uint32_t i = 0; i < state->nwires; i++) {
        const struct mpi_wire *w = &state->wires[i];
        if (w->sends && w->ended < w->begun) return false;
    }
    return true;
}

/* MPI has nothing to wait on. */
static void mpi_wait(void *opened, uint32_t us)
{
    (void)opened, (void)us;
    sched_yield();
}

/* ---- handles -------------------------------------------------------------------------------- */

/* A tag that no wire here has; 0 with a sentence when there are no more. */
static int32_t tag_take(struct net *net, struct err *err)
{
    size_t at = 0;
    while (at < net->ntags && net->taken[at])
        at++;
    if (at >= (size_t)net->most_tag) {
        err_add(err, ERR_FAILED,
                "MPI has tags up to %d, and all of them are taken by wires to rank %u",
                net->most_tag, net->rk->rank);
        return 0;
    }
    if (at == net->ntags) {
        MEM_GROW(net->taken, net->ntags, net->tags_cap);
        net->ntags++;
    }
    net->taken[at] = true;
    return (int32_t)at + 1;
}

/* The receiver's end: receives in all slots, then the peer is told. */
static int receive_open(struct mpi_wire *w, struct err *err)
{
    struct net *net = w->state->net;
    w->hello.tag = tag_take(net, err);
    if (!w->hello.tag) return -1;
    for (uint32_t i = 0; i < w->wire.depth; i++)
        begin_receive(w);
    int rc = net->fn.send(&w->hello, sizeof w->hello, net->bytes, (intptr_t)w->world_peer,
                          HELLO_TAG, net->comm, &w->hello_request);
    if (rc) fail(net, rc, "MPI_Isend", (int)w->world_peer);
    return 0;
}

/* The hello of a wire among those that came early. */
static bool take_early(struct mpi_wire *w, struct hello *hello)
{
    struct net *net = w->state->net;
    for (size_t i = 0; i < net->nearly; i++) {
        const struct early *early = &net->early[i];
        if (early->peer != w->world_peer || early->hello.handle != w->hello.handle ||
            early->hello.channel != w->hello.channel)
            continue;
        *hello = early->hello;
        net->nearly--;
        memmove(&net->early[i], &net->early[i + 1], (net->nearly - i) * sizeof *net->early);
        return true;
    }
    return false;
}

/* Takes the next hello of that rank, if one has come. */
static void take_hello(struct net *net, uint32_t peer)
{
    int there = 0, rc = net->mpi->fn.probe((intptr_t)peer, HELLO_TAG, net->comm, &there,
                                           net->mpi->status_ignore);
    if (rc) fail(net, rc, "MPI_Iprobe", (int)peer);
    if (!there) {
        turn(net, (int)peer);
        return;
    }
    MEM_GROW(net->early, net->nearly, net->early_cap);
    struct early *early = &net->early[net->nearly];
    uintptr_t request = 0;
    early->peer = peer;
    rc = net->fn.receive(&early->hello, sizeof early->hello, net->bytes, (intptr_t)peer, HELLO_TAG,
                         net->comm, &request);
    if (rc) fail(net, rc, "MPI_Irecv", (int)peer);
    await(net, &request, "MPI_Irecv", (int)peer);
    net->nearly++;
}

/* The sender's end: waits for what the receiver tells. */
static int send_open(struct mpi_wire *w, struct err *err)
{
    struct net *net = w->state->net;
    struct hello hello;
    while (!take_early(w, &hello))
        take_hello(net, w->world_peer);
    bool same = hello.depth == w->hello.depth && hello.slot_bytes == w->hello.slot_bytes;
    if (same && hello.tag > 0 && hello.tag <= net->most_tag) {
        w->hello.tag = hello.tag;
        return 0;
    }
    return err_add(err, ERR_FAILED,
                   "a wire to rank %u has %u messages of %llu B here, and %u of %llu B with tag %d "
                   "there",
                   w->world_peer, w->hello.depth, (unsigned long long)w->hello.slot_bytes,
                   hello.depth, (unsigned long long)hello.slot_bytes, (int)hello.tag);
}

static void wire_fill(struct mpi_wire *w, struct mpi_state *state, const struct wire_spec *spec,
                      const struct lwire *lwire)
{
    size_t at = (size_t)(w - state->wires);
    struct world *world = spec->rank->world;
    uint32_t world_peer = spec->group ? spec->group[lwire->peer] : lwire->peer;
    *w = (struct mpi_wire){.wire = {.peer = lwire->peer,
                                    .depth = spec->depth,
                                    .mode = WIRE_STAGED,
                                    .slot_bytes = spec->slot_bytes},
                           .state = state,
                           .world_peer = world_peer,
                           .sends = lwire->send,
                           .far = world_host(world, world_peer) != world_own_host(world),
                           .hello = {.handle = spec->tag,
                                     .channel = lwire->channel,
                                     .depth = spec->depth,
                                     .slot_bytes = spec->slot_bytes},
                           .slots = state->memory + at * spec->depth * spec->slot_bytes,
                           .requests = mem_calloc(spec->depth, sizeof *w->requests),
                           .arrived = mem_calloc(spec->depth, sizeof *w->arrived)};
    set_head(w);
}

/* Everything that was started must have ended: what has been sent is taken, what was to be received
 * is not to come any more. */
static void wire_close(struct mpi_wire *w)
{
    struct net *net = w->state->net;
    int peer = (int)w->world_peer;
    for (; w->ended < w->begun; w->ended++) {
        uintptr_t *request = &w->requests[w->ended % w->wire.depth];
        int rc = w->sends ? 0 : net->fn.cancel(request);
        if (rc) fail(net, rc, "MPI_Cancel", peer);
        await(net, request, w->sends ? "MPI_Isend" : "MPI_Irecv", peer);
    }
    if (w->sends) return;
    await(net, &w->hello_request, "MPI_Isend", peer);
    net->taken[w->hello.tag - 1] = false;
}

static void mpi_wires_close(void *opened)
{
    struct mpi_state *state = opened;
    for (uint32_t i = 0; i < state->nwires; i++) {
        wire_close(&state->wires[i]);
        free(state->wires[i].requests);
        free(state->wires[i].arrived);
    }
    free(state->wires);
    free(state->heads);
    free(state->statuses);
    free(state->indices);
    slots_free(state->net->rk, state->memory);
    free(state);
}

static int mpi_wires_open(const struct wire_spec *spec, struct wire **wires,
                          struct wire_buffers *peers, void **opened, struct err *err)
{
    struct net *net = spec->rank->net;
    const struct mpi_abi *abi = net->mpi->abi;
    (void)peers;
    if (spec->slot_bytes > INT_MAX)
        return err_add(err, ERR_USAGE, "MPI counts bytes in 32 bits: %zu B in a message, most %d B",
                       spec->slot_bytes, INT_MAX);
    struct mpi_state *state = mem_calloc(1, sizeof *state);
    state->net = net;
    state->nwires = spec->nwires;
    state->wires = mem_calloc(spec->nwires, sizeof *state->wires);
    state->heads = mem_calloc(spec->nwires, abi->request_bytes);
    state->statuses = mem_calloc(spec->nwires, abi->status_bytes);
    state->indices = mem_calloc(spec->nwires, sizeof *state->indices);
    state->memory =
        slots_alloc(spec->rank, (size_t)spec->nwires + 1, spec->depth * spec->slot_bytes, err);
    int bad = state->memory ? 0 : -1;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        wire_fill(&state->wires[i], state, spec, &spec->wires[i]);
        wires[i] = &state->wires[i].wire;
    }
    for (uint32_t i = 0; !bad && i < spec->nwires; i++)
        bad = spec->wires[i].send ? 0 : receive_open(&state->wires[i], err);
    for (uint32_t i = 0; !bad && i < spec->nwires; i++)
        bad = spec->wires[i].send ? send_open(&state->wires[i], err) : 0;
    if (bad) return -1; /* the run ends; the receives of this handle are still under way */
    *opened = state;
    return 0;
}

static void mpi_gpu_says(struct rank *rk, char *text, size_t size)
{
    static const char name[] = "MPIX_Query_cuda_support";
    const struct mpi_library *mpi = ((struct net *)rk->net)->mpi;
    int (*query)(void);
    *(void **)(void *)&query = dlsym(mpi->library, name);
    snprintf(text, size, "%s %s memory of GPUs (%s)", mpi->abi->name,
             !query    ? "does not say whether it takes"
             : query() ? "takes"
                       : "does not take",
             name);
}

const struct transport mpi_transport = {
    .name = "mpi",
    .modes = 1u << WIRE_STAGED,
    .mpiexec = true,
    .engine = &host_engine,
    .suits = {[WIRE_STAGED] = {128 << 10, 8}},
    .slot_budget = 32 << 20,
    .granule = LAYOUT_GRANULE,
    .message_align = 1,
    .alloc = rank_alloc,
    .absent = mpi_absent,
    .join = mpi_join,
    .leave = mpi_leave,
    .gpu_says = mpi_gpu_says,
    .open = mpi_wires_open,
    .close = mpi_wires_close,
    .room = mpi_room,
    .post = mpi_post,
    .peek = mpi_peek,
    .release = mpi_release,
    .released = mpi_released,
    .poll = mpi_poll,
    .idle = mpi_idle,
    .wait = mpi_wait,
};
