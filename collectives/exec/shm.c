/* SPDX-License-Identifier: Apache-2.0
 * The shared-memory transport. A wire lies in its sender's extent:
 *
 *     | posted, refs | released |  slots                                  |
 *       sender's       receiver's  STAGED: depth x slot_bytes
 *       line           line        LL:     depth x lines of {56 B data, number}
 *                                  PULL, PUSH: none, the data are in the buffers
 *
 * STAGED, PULL, PUSH: the sender stores `posted` (release) after the data, the receiver loads it
 * (acquire) before reading them; back, `released` says the same about reading being over. LL: each
 * cache line carries its message's number, stored after its data: one miss brings both (after
 * NCCL's LL128 and the flag-in-data lines of many MPI libraries).
 *
 * Wires of ranks on GPUs (device.h) are STAGED. Their slots lie in the sender's GPU where the two
 * have peer access to each other's, else where they always do, pinned.
 *
 * WIRE_CHECK (set by the build, except for Release): each message also says its bytes and number,
 * and the receiver compares. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"
#include "exec/handles.h"
#include "exec/transport.h"

enum { LINE = 64, LL_DATA = 56, PLACE = HANDLE_PLACE };

struct ll_line {
    uint8_t data[LL_DATA];
    _Atomic uint64_t number; /* of the message it belongs to, plus 1 */
};
_Static_assert(sizeof(struct ll_line) == LINE, "payload and number share one cache line");

struct shm_ctl {
    _Alignas(128) _Atomic uint64_t posted;
    struct pull_ref refs[]; /* depth of them; the first 7 share the line of `posted` */
};

struct shm_wire {
    struct wire wire;
    struct shm_ctl *ctl;
    _Atomic uint64_t *released;
    uint8_t *slots;
    size_t slot_stride; /* bytes from slot to slot */
    uint32_t at;        /* slot of message `next`: next mod depth */
    bool sends;
    uint64_t seen;   /* sender: messages known released; receiver: known posted */
    uint8_t *bounce; /* LL: a message in one piece */
    void *pinned;    /* receiver: the sender's memory, if this rank pins it */
};

struct directory_entry {
    uint32_t dst;
    uint16_t channel;
    uint64_t offset; /* of the wire in the extent */
    uint64_t arena;  /* of its slots in the arena, plus 1; 0: they are in the wire */
};

/* What a rank tells its peers about one handle; lies in its extent (see handles.h). */
struct directory {
    uint32_t nwires;
    _Atomic uint32_t readers; /* look-ups by peers that are over */
    uint64_t memory;          /* bytes of this and of the wires, from here on */
    uint64_t offset[3];       /* of its buffers, plus 1; 0: not to be mapped */
    uint64_t bytes[3];
    struct directory_entry wires[];
};

struct shm_state {
    struct rank *rank;
    struct directory *directory;
    _Atomic uint64_t *handle; /* its word in the status */
    struct shm_wire *wires;
    uint32_t nwires;
    uint32_t readers; /* look-ups by peers to come, one per wire that needs one */
    uint8_t *bounces;
};

/* ---- the fast side ---- */

static size_t ll_lines(size_t bytes)
{
    return bytes == 0 ? 1 : (bytes + LL_DATA - 1) / LL_DATA;
}

static void step_on(struct shm_wire *w)
{
    w->wire.next++;
    w->at = w->at + 1 == w->wire.depth ? 0 : w->at + 1;
}

static bool has_room(struct shm_wire *w)
{
    if (w->wire.next - w->seen < w->wire.depth) {
        return true;
    }
    w->seen = atomic_load_explicit(w->released, memory_order_acquire); /* with: release */
    return w->wire.next - w->seen < w->wire.depth;
}

static void *shm_room(struct wire *wire, size_t bytes)
{
    struct shm_wire *w = (struct shm_wire *)wire;
    (void)bytes;
    if (!has_room(w)) {
        return NULL;
    }
    return wire->mode == WIRE_LL ? w->bounce : w->slots + w->at * w->slot_stride;
}

static void ll_pack(struct shm_wire *w, size_t bytes)
{
    struct ll_line *line = (struct ll_line *)(w->slots + w->at * w->slot_stride);
    const uint8_t *from = w->bounce;
    while (bytes > LL_DATA) {
        memcpy(line->data, from, LL_DATA);
        atomic_store_explicit(&line->number, w->wire.next + 1, memory_order_release);
        from += LL_DATA;
        bytes -= LL_DATA;
        line++;
    }
    memcpy(line->data, from, bytes);
    atomic_store_explicit(&line->number, w->wire.next + 1, memory_order_release);
}

static void shm_post(struct wire *wire, size_t bytes, struct pull_ref ref)
{
    struct shm_wire *w = (struct shm_wire *)wire;
    if (wire->mode == WIRE_LL) {
        ll_pack(w, bytes); /* pairs with the acquire in ll_arrived */
    } else {
        if (WIRE_CHECK && wire->mode != WIRE_PULL) {
            ref = (struct pull_ref){(uint32_t)bytes, (uint32_t)wire->next};
        }
        if (WIRE_CHECK || wire->mode == WIRE_PULL) {
            w->ctl->refs[w->at] = ref;
        }
        /* pairs with the acquire in shm_peek */
        atomic_store_explicit(&w->ctl->posted, wire->next + 1, memory_order_release);
    }
    step_on(w);
}

static const void *ll_arrived(struct shm_wire *w, size_t bytes)
{
    struct ll_line *line = (struct ll_line *)(w->slots + w->at * w->slot_stride);
    size_t lines = ll_lines(bytes);
    for (size_t i = lines; i-- > 0;) { /* the last one first: it comes last */
        if (atomic_load_explicit(&line[i].number, memory_order_acquire) != w->wire.next + 1) {
            return NULL;
        }
    }
    if (lines == 1) {
        return line->data;
    }
    for (size_t i = 0; i < lines; i++) {
        size_t len = i + 1 < lines ? LL_DATA : bytes - i * LL_DATA;
        memcpy(w->bounce + i * LL_DATA, line[i].data, len);
    }
    return w->bounce;
}

static const void *shm_peek(struct wire *wire, size_t bytes, struct pull_ref *ref)
{
    struct shm_wire *w = (struct shm_wire *)wire;
    if (wire->mode == WIRE_LL) {
        return ll_arrived(w, bytes);
    }
    if (w->seen <= wire->next) {
        w->seen = atomic_load_explicit(&w->ctl->posted, memory_order_acquire);
        if (w->seen <= wire->next) {
            return NULL;
        }
    }
    struct pull_ref said = w->ctl->refs[w->at];
    if (wire->mode == WIRE_PULL) {
        *ref = said;
    } else if (WIRE_CHECK) { /* both ends mean the same message */
        assert(said.buf == (uint32_t)bytes && said.chunk == (uint32_t)wire->next);
    }
    return w->slots + w->at * w->slot_stride;
}

static void shm_release(struct wire *wire)
{
    struct shm_wire *w = (struct shm_wire *)wire;
    /* pairs with the acquire in has_room and shm_released */
    atomic_store_explicit(w->released, wire->next + 1, memory_order_release);
    step_on(w);
}

static bool shm_released(struct wire *wire, uint64_t number)
{
    struct shm_wire *w = (struct shm_wire *)wire;
    if (w->seen <= number) {
        w->seen = atomic_load_explicit(w->released, memory_order_acquire);
    }
    return w->seen > number;
}

/* ---- opening ---- */

static uint32_t world_rank(const struct wire_spec *spec, uint32_t member)
{
    return spec->group ? spec->group[member] : member;
}

static size_t ctl_bytes(const struct wire_spec *spec)
{
    size_t refs = sizeof(struct shm_ctl) + spec->depth * sizeof(struct pull_ref);
    return (refs + 127) / 128 * 128 + 128; /* and a line for `released` */
}

static size_t slot_bytes(const struct wire_spec *spec, enum wire_mode mode)
{
    if (mode == WIRE_LL) {
        return ll_lines(spec->slot_bytes) * LINE;
    }
    return mode == WIRE_STAGED ? (spec->slot_bytes + LINE - 1) / LINE * LINE : 0;
}

static size_t all_slots(const struct wire_spec *spec, const struct lwire *lwire)
{
    return spec->depth * slot_bytes(spec, (enum wire_mode)lwire->mode);
}

/* Whether the slots lie in the sender's GPU. */
static bool on_device(const struct wire_spec *spec, const struct lwire *lwire)
{
    const struct rank *rk = spec->rank;
    return rk->device && device_direct(rk, rk->rank, world_rank(spec, lwire->peer));
}

static size_t wire_bytes(const struct wire_spec *spec, const struct lwire *lwire)
{
    size_t bytes = ctl_bytes(spec) + (on_device(spec, lwire) ? 0 : all_slots(spec, lwire));
    return (bytes + PLACE - 1) / PLACE * PLACE; /* the next one starts on lines of its own */
}

/* Fills in one end of a wire that lies at `base`; slots NULL: they do too. */
static void attach(struct shm_wire *w, const struct wire_spec *spec, const struct lwire *lwire,
                   uint8_t *base, uint8_t *slots)
{
    enum wire_mode mode = (enum wire_mode)lwire->mode;
    *w = (struct shm_wire){.wire = {.peer = lwire->peer,
                                    .depth = spec->depth,
                                    .mode = mode,
                                    .slot_bytes = spec->slot_bytes},
                           .sends = lwire->send,
                           .bounce = w->bounce};
    size_t ctl = ctl_bytes(spec);
    w->ctl = (struct shm_ctl *)(void *)base;
    w->released = (_Atomic uint64_t *)(void *)(base + ctl - 128);
    w->slots = slots ? slots : base + ctl;
    w->slot_stride = slot_bytes(spec, mode);
}

/* Lays out a wire on which this rank sends; its lines are at `base`. */
static int lay_out(struct shm_wire *w, const struct wire_spec *spec, const struct lwire *lwire,
                   uint8_t *base, struct directory_entry *entry, struct err *err)
{
    struct rank *rk = spec->rank;
    uint8_t *slots = NULL;
    if (on_device(spec, lwire)) {
        slots = device_alloc(rk, all_slots(spec, lwire), err);
        if (!slots) return -1;
        entry->arena = (uint64_t)(slots - rk->device->arena) + 1;
    }
    attach(w, spec, lwire, base, slots);
    return 0;
}

/* Lays out the own wires and says where they are. */
static int publish(struct shm_state *state, const struct wire_spec *spec, struct err *err)
{
    struct rank *rank = spec->rank;
    uint8_t *extent = world_extent(rank->world, rank->rank, err);
    if (!extent) {
        return -1;
    }
    size_t head = sizeof(struct directory) + spec->nwires * sizeof(struct directory_entry);
    head = (head + 127) / 128 * 128;
    size_t total = head;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        total += spec->wires[i].send ? wire_bytes(spec, &spec->wires[i]) : 0;
    }
    uint8_t *memory = rank_alloc(rank, total, err);
    if (!memory || device_pin(rank, memory, total, rank->rank, err)) {
        return -1;
    }
    memset(memory, 0, total);
    struct directory *directory = (struct directory *)(void *)memory;
    directory->memory = total;
    for (int b = 0; b < 3; b++) {
        uint8_t *base = spec->own.base[b];
        directory->offset[b] = base ? (uint64_t)(base - extent) + 1 : 0;
        directory->bytes[b] = spec->own.bytes[b];
    }
    uint8_t *at = memory + head;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        const struct lwire *lwire = &spec->wires[i];
        if (!lwire->send) continue;
        struct directory_entry *entry = &directory->wires[directory->nwires++];
        *entry = (struct directory_entry){world_rank(spec, lwire->peer), lwire->channel,
                                          (uint64_t)(at - extent), 0};
        if (lay_out(&state->wires[i], spec, lwire, at, entry, err)) return -1;
        at += wire_bytes(spec, lwire);
    }
    state->handle = handles_publish(rank, spec->tag, memory, err);
    state->directory = state->handle ? directory : NULL;
    return state->handle ? 0 : -1;
}

/* Maps the peer's buffers of one handle, once. */
static int map_buffers(struct rank *rk, const struct directory *directory, uint8_t *extent,
                       struct wire_buffers *out, struct err *err)
{
    for (int b = 0; b < 3; b++) {
        if (directory->offset[b] == 0 || out->base[b]) {
            continue;
        }
        uint8_t *base = extent + directory->offset[b] - 1;
        if (rank_prefault(rk, base, directory->bytes[b], err)) {
            return -1;
        }
        out->base[b] = base;
        out->bytes[b] = directory->bytes[b];
    }
    return 0;
}

/* Attaches the receiver's end of a wire to what the sender has laid out. */
static int attach_to(struct shm_wire *w, const struct wire_spec *spec, const struct lwire *lwire,
                     struct directory *directory, const struct directory_entry *entry,
                     uint8_t *extent, struct err *err)
{
    struct rank *rk = spec->rank;
    uint32_t peer = world_rank(spec, lwire->peer);
    uint8_t *arena = entry->arena ? device_arena(rk, peer, err) : NULL;
    if (entry->arena && !arena) return -1;
    attach(w, spec, lwire, extent + entry->offset, arena ? arena + entry->arena - 1 : NULL);
    if (rank_prefault(rk, extent + entry->offset, wire_bytes(spec, lwire), err)) return -1;
    if (arena) return 0;
    w->pinned = directory;
    return device_pin(rk, directory, directory->memory, peer, err);
}

/* Finds what one wire needs in the peer's directory. */
static int look_up(struct shm_wire *w, const struct wire_spec *spec, const struct lwire *lwire,
                   struct directory *directory, uint8_t *extent, struct wire_buffers *peers,
                   struct err *err)
{
    enum wire_mode mode = (enum wire_mode)lwire->mode;
    bool reaches = lwire->send ? mode == WIRE_PUSH : mode == WIRE_PULL;
    if (reaches && map_buffers(spec->rank, directory, extent, &peers[lwire->peer], err)) {
        return -1;
    }
    if (lwire->send) {
        return 0;
    }
    for (uint32_t i = 0; i < directory->nwires; i++) {
        const struct directory_entry *entry = &directory->wires[i];
        if (entry->dst == spec->rank->rank && entry->channel == lwire->channel) {
            return attach_to(w, spec, lwire, directory, entry, extent, err);
        }
    }
    return err_add(err, ERR_FAILED,
                   "rank %u expects a wire from rank %u on channel %u, which that rank did not "
                   "open",
                   spec->rank->rank, world_rank(spec, lwire->peer), lwire->channel);
}

/* A receiver needs its sender's directory; a sender its receiver's only to push. */
static bool looks_up(const struct lwire *lwire)
{
    return !lwire->send || lwire->mode == WIRE_PUSH;
}

static bool is_looked_up(const struct lwire *lwire)
{
    return lwire->send || lwire->mode == WIRE_PUSH;
}

static int connect_wire(struct shm_wire *w, const struct wire_spec *spec, const struct lwire *lwire,
                        struct wire_buffers *peers, struct err *err)
{
    uint8_t *extent;
    struct directory *directory =
        handles_find(spec->rank, world_rank(spec, lwire->peer), spec->tag, &extent, err);
    if (!directory) {
        return -1;
    }
    int bad = look_up(w, spec, lwire, directory, extent, peers, err);
    /* pairs with the acquire in shm_close */
    atomic_fetch_add_explicit(&directory->readers, 1, memory_order_release);
    return bad;
}

static const char *shm_absent(void)
{
    return NULL;
}

static bool is_quiet(struct shm_state *state)
{
    for (uint32_t i = 0; i < state->nwires; i++) {
        struct shm_wire *w = &state->wires[i];
        if (w->sends && w->wire.next > 0 && !shm_released(&w->wire, w->wire.next - 1)) {
            return false;
        }
    }
    return atomic_load_explicit(&state->directory->readers, memory_order_acquire) == state->readers;
}

/* Waits until every peer has found its wires and every message has been taken: then nobody looks
 * at this memory any more. */
static void shm_close(void *opened)
{
    struct shm_state *state = opened;
    if (state->directory) {
        for (struct waiter waiter = {0}; !is_quiet(state); waiter_pause(&waiter, state->rank)) {
        }
        handles_drop(state->handle);
        device_unpin(state->rank, state->directory);
    }
    for (uint32_t i = 0; i < state->nwires; i++)
        device_unpin(state->rank, state->wires[i].pinned);
    free(state->wires);
    free(state->bounces);
    free(state);
}

static int shm_open(const struct wire_spec *spec, struct wire **wires, struct wire_buffers *peers,
                    void **opened, struct err *err)
{
    struct shm_state *state = mem_calloc(1, sizeof *state);
    state->rank = spec->rank;
    state->nwires = spec->nwires;
    state->wires = mem_calloc(spec->nwires, sizeof *state->wires);
    size_t bounce = (spec->slot_bytes + LL_DATA + LINE - 1) / LINE * LINE;
    bool ll = spec->nwires > 0 && spec->wires[0].mode == WIRE_LL;
    state->bounces = ll ? mem_calloc(spec->nwires, bounce) : NULL;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        state->wires[i].bounce = ll ? state->bounces + i * bounce : NULL;
        state->readers += is_looked_up(&spec->wires[i]);
    }
    int bad = publish(state, spec, err);
    for (uint32_t i = 0; !bad && i < spec->nwires; i++) {
        if (looks_up(&spec->wires[i])) {
            bad = connect_wire(&state->wires[i], spec, &spec->wires[i], peers, err);
        }
        wires[i] = &state->wires[i].wire;
    }
    if (bad) { /* the run ends: nobody may wait for peers that cannot come any more */
        free(state->wires);
        free(state->bounces);
        free(state);
        return -1;
    }
    *opened = state;
    return 0;
}

const struct transport shm_transport = {
    .name = "shm",
    .modes = 1u << WIRE_STAGED | 1u << WIRE_PULL | 1u << WIRE_PUSH | 1u << WIRE_LL,
    .engine = &host_engine,
    .suits = {[WIRE_STAGED] = {128 << 10, 4},
              [WIRE_PULL] = {1 << 20, 6},
              [WIRE_PUSH] = {1 << 20, 6},
              [WIRE_LL] = {8 << 10, 8}},
    .slot_budget = 32 << 20,
    .granule = LAYOUT_GRANULE,
    .message_align = 1,
    .alloc = rank_alloc,
    .absent = shm_absent,
    .open = shm_open,
    .close = shm_close,
    .room = shm_room,
    .post = shm_post,
    .peek = shm_peek,
    .release = shm_release,
    .released = shm_released,
};
