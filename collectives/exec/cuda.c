/* SPDX-License-Identifier: Apache-2.0
 * Wires between GPUs, for both transports of devices: cuda-ipc, over which the interpreter kernel
 * reads and writes the peers' memory itself, and cuda-peer, over which copy engines do. What a
 * wire's end waits for lies at that end (see gpu.h), so each end publishes its own part and looks
 * up the other's:
 *
 *      sender's part     | released |                        in its arena
 *      receiver's part   | posted | refs (PULL) | slots |    in its arena
 *
 * Without peer access between the two, both parts lie in the ranks' extents of host memory, which
 * each of them pins. Such wires are STAGED or LL. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"
#include "exec/handles.h"

enum { ALIGN = 256 };

struct part {
    uint32_t peer; /* world rank */
    uint16_t channel;
    uint8_t sends, direct;
    uint64_t offset; /* in the arena, or in the extent */
};

/* What a rank tells its peers about one handle; lies in its extent, host parts of wires behind. */
struct directory {
    uint32_t nwires;
    _Atomic uint32_t readers; /* look-ups by peers that are over */
    uint64_t bytes;           /* of directory and host parts: what a peer pins */
    uint64_t offset[3];       /* of its buffers in the arena, plus 1; 0: not to be mapped */
    uint64_t buffer_bytes[3];
    struct part parts[];
};

/* A region of host memory pinned for the device. */
struct pinned {
    void *memory;
    uint8_t *device;
    bool ours; /* pinned from here: to be undone */
};

struct state {
    struct rank *rank;
    struct directory *directory;
    _Atomic uint64_t *handle; /* its word in the status */
    struct device_wire *wires;
    uint32_t nwires;
    struct pinned *pinned; /* by group rank: of the peer's directory; the own one at `me` */
    uint32_t ngroup, me;
};

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t world_rank(const struct wire_spec *spec, uint32_t member)
{
    return spec->group ? spec->group[member] : member;
}

/* ---- how large parts are ---- */

static size_t slot_stride(const struct wire_spec *spec, unsigned mode)
{
    if (mode == WIRE_LL) return aligned(2 * spec->slot_bytes + GPU_LINE); /* flags double it */
    return mode == WIRE_STAGED ? aligned(spec->slot_bytes) : 0;
}

static size_t refs_bytes(const struct wire_spec *spec, unsigned mode)
{
    return mode == WIRE_PULL ? aligned(spec->depth * sizeof(uint64_t)) : 0;
}

static size_t part_bytes(const struct wire_spec *spec, const struct lwire *lwire)
{
    if (lwire->send) return ALIGN;
    return ALIGN + refs_bytes(spec, lwire->mode) + spec->depth * slot_stride(spec, lwire->mode);
}

/* Fills in the addresses of one end: `sender` and `receiver` are the parts as seen from here. */
static void attach(struct device_wire *wire, const struct wire_spec *spec,
                   const struct lwire *lwire, uint8_t *sender, uint8_t *receiver, int peer_device)
{
    unsigned mode = lwire->mode;
    size_t refs = refs_bytes(spec, mode);
    *wire = (struct device_wire){
        .wire = {.peer = lwire->peer,
                 .depth = spec->depth,
                 .mode = (enum wire_mode)mode,
                 .slot_bytes = spec->slot_bytes},
        .gpu = {.posted = (uint64_t *)(void *)receiver,
                .released = (uint64_t *)(void *)sender,
                .slots = receiver + ALIGN + refs,
                .refs = refs ? (uint64_t *)(void *)(receiver + ALIGN) : NULL,
                .slot_stride = slot_stride(spec, mode),
                .depth = spec->depth,
                .mode = mode,
                .peer = lwire->peer,
                .nmsgs = lwire->nmsgs},
        .peer_device = peer_device,
    };
}

/* ---- the own parts ---- */

/* `ours`: not yet pinned by another rank of this process, which unpins it when all are done. */
static int pin(struct rank *rk, struct pinned *pinned, void *memory, size_t bytes, bool ours,
               struct err *err)
{
    const struct gpu *gpu = rk->device->gpu;
    void *seen;
    if (pinned->device) return 0;
    if (ours && gpu_check(gpu, gpu->host_register(memory, bytes), err,
                          "pinning %zu B of host memory", bytes)) {
        return -1;
    }
    *pinned = (struct pinned){.memory = memory, .ours = ours};
    if (gpu_check(gpu, gpu->host_device(memory, &seen), err, "pinned memory")) return -1;
    pinned->device = seen;
    return 0;
}

static void say_buffers(struct directory *directory, const struct wire_spec *spec)
{
    const struct device *device = spec->rank->device;
    for (int b = 0; b < 3; b++) {
        uint8_t *base = spec->own.base[b];
        bool inside = base >= device->arena && base <= device->arena + device->bytes;
        directory->offset[b] = inside ? (uint64_t)(base - device->arena) + 1 : 0;
        directory->buffer_bytes[b] = spec->own.bytes[b];
    }
}

static bool goes_direct(const struct wire_spec *spec, const struct lwire *lwire)
{
    return device_direct(spec->rank, spec->rank->rank, world_rank(spec, lwire->peer));
}

/* Lays out the own parts, zeroed, and says where they are. */
static int publish(struct state *state, const struct wire_spec *spec, struct err *err)
{
    struct rank *rk = spec->rank;
    struct device *device = rk->device;
    size_t head = aligned(sizeof(struct directory) + spec->nwires * sizeof(struct part));
    size_t host = head, direct = 0;
    for (uint32_t i = 0; i < spec->nwires; i++) {
        size_t bytes = part_bytes(spec, &spec->wires[i]);
        *(goes_direct(spec, &spec->wires[i]) ? &direct : &host) += bytes;
    }
    uint8_t *extent = world_extent(rk->world, rk->rank, err);
    uint8_t *memory = extent ? rank_alloc(rk, host, err) : NULL;
    uint8_t *arena = memory ? device_alloc(rk, direct, err) : NULL;
    if (!arena) return -1;
    memset(memory, 0, host);
    device_must(rk, device->gpu->set_async(arena, 0, direct, device->stream), "clearing wires");
    device_sync(rk, "clearing wires");
    struct directory *directory = state->directory = (struct directory *)(void *)memory;
    directory->bytes = host;
    say_buffers(directory, spec);
    size_t host_at = (size_t)(memory - extent) + head, arena_at = (size_t)(arena - device->arena);
    for (uint32_t i = 0; i < spec->nwires; i++) {
        const struct lwire *lwire = &spec->wires[i];
        bool through = goes_direct(spec, lwire);
        size_t *at = through ? &arena_at : &host_at;
        directory->parts[directory->nwires++] =
            (struct part){world_rank(spec, lwire->peer), lwire->channel, lwire->send, through, *at};
        *at += part_bytes(spec, lwire);
    }
    if (host > head && pin(rk, &state->pinned[spec->me], memory, host, true, err)) return -1;
    state->handle = handles_publish(rk, spec->tag, memory, err);
    return state->handle ? 0 : -1;
}

/* ---- the peers' parts ---- */

static const struct part *find_part(const struct directory *directory, uint32_t rank,
                                    const struct lwire *lwire)
{
    for (uint32_t i = 0; i < directory->nwires; i++) {
        const struct part *part = &directory->parts[i];
        if (part->peer == rank && part->channel == lwire->channel && part->sends != lwire->send)
            return part;
    }
    return NULL;
}

/* The address, here, of a part that lies in the memory of `owner` (group rank). */
static uint8_t *part_address(const struct state *state, const struct part *part, uint8_t *arena,
                             uint32_t owner, const uint8_t *extent)
{
    if (part->direct) return arena + part->offset;
    const struct pinned *pinned = &state->pinned[owner];
    return pinned->device + (extent + part->offset - (const uint8_t *)pinned->memory);
}

/* Where this rank finds the peer's buffers. */
static int map_buffers(struct rank *rk, const struct directory *directory, uint32_t rank,
                       struct wire_buffers *out, struct err *err)
{
    uint8_t *arena = device_arena(rk, rank, err);
    for (int b = 0; arena && b < 3; b++) {
        out->base[b] = directory->offset[b] ? arena + directory->offset[b] - 1 : NULL;
        out->bytes[b] = directory->buffer_bytes[b];
    }
    return arena ? 0 : -1;
}

static int connect_wire(struct state *state, const struct wire_spec *spec, uint32_t i,
                        struct wire_buffers *peers, struct err *err)
{
    struct rank *rk = spec->rank;
    const struct lwire *lwire = &spec->wires[i];
    uint32_t peer = world_rank(spec, lwire->peer);
    uint8_t *extent, *own_extent = world_extent(rk->world, rk->rank, err), *arena = NULL;
    struct directory *directory = handles_find(rk, peer, spec->tag, &extent, err);
    if (!directory || !own_extent) return -1;
    const struct part *theirs = find_part(directory, rk->rank, lwire);
    const struct part *own = &state->directory->parts[i];
    if (!theirs) {
        return err_add(err, ERR_FAILED,
                       "rank %u expects a wire with rank %u on channel %u, which that rank did not "
                       "open",
                       rk->rank, peer, lwire->channel);
    }
    if (own->direct) {
        arena = device_arena(rk, peer, err);
        if (!arena || map_buffers(rk, directory, peer, &peers[lwire->peer], err)) return -1;
    } else if (lwire->mode != WIRE_STAGED && lwire->mode != WIRE_LL) {
        return err_add(err, ERR_USAGE,
                       "ranks %u and %u have no peer access to each other's GPU: use --wire staged "
                       "or --wire ll",
                       rk->rank, peer);
    } else if (pin(rk, &state->pinned[lwire->peer], directory, directory->bytes,
                   world_status(rk->world, peer)->device.pid != getpid(), err)) {
        return -1;
    }
    uint8_t *mine = part_address(state, own, rk->device->arena, spec->me, own_extent);
    uint8_t *other = part_address(state, theirs, arena, lwire->peer, extent);
    attach(&state->wires[i], spec, lwire, lwire->send ? mine : other, lwire->send ? other : mine,
           own->direct ? device_number(rk, peer) : -1);
    /* pairs with the acquire in close_wires */
    atomic_fetch_add_explicit(&directory->readers, 1, memory_order_release);
    return 0;
}

/* ---- life ---- */

static void free_state(struct state *state)
{
    const struct gpu *gpu = state->rank->device->gpu;
    for (uint32_t g = 0; g < state->ngroup; g++) {
        if (state->pinned[g].ours) gpu->host_unregister(state->pinned[g].memory);
    }
    free(state->pinned);
    free(state->wires);
    free(state);
}

static int open_wires(const struct wire_spec *spec, struct wire **wires, struct wire_buffers *peers,
                      void **opened, struct err *err)
{
    struct state *state = mem_calloc(1, sizeof *state);
    *state = (struct state){.rank = spec->rank,
                            .nwires = spec->nwires,
                            .wires = mem_calloc(spec->nwires, sizeof *state->wires),
                            .pinned = mem_calloc(spec->ngroup, sizeof *state->pinned),
                            .ngroup = spec->ngroup,
                            .me = spec->me};
    int bad = publish(state, spec, err);
    for (uint32_t i = 0; !bad && i < spec->nwires; i++) {
        bad = connect_wire(state, spec, i, peers, err);
        wires[i] = &state->wires[i].wire;
    }
    if (bad) { /* the run ends: nobody may wait for peers that cannot come any more */
        free_state(state);
        return -1;
    }
    *opened = state;
    return 0;
}

/* The stream of the rank goes on when the last message of every wire on which it sends has been
 * released. */
static void await_released(const struct state *state)
{
    const struct device *device = state->rank->device;
    for (uint32_t i = 0; i < state->nwires; i++) {
        const struct device_wire *wire = &state->wires[i];
        if (!state->directory->parts[i].sends || wire->wire.next == 0) continue;
        device_must(state->rank,
                    device->gpu->stream_wait(device->stream, wire->gpu.released, wire->wire.next),
                    "closing wires");
    }
}

static bool is_quiet(const struct state *state)
{
    return device_done(state->rank, state->rank->device->stream, "closing wires") &&
           atomic_load_explicit(&state->directory->readers, memory_order_acquire) == state->nwires;
}

/* Waits until every peer has found its parts and taken every message. */
static void close_wires(void *opened)
{
    struct state *state = opened;
    await_released(state);
    for (struct waiter waiter = {0}; !is_quiet(state); waiter_pause(&waiter, state->rank)) {
    }
    handles_drop(state->handle);
    free_state(state);
}

static const char *absent(void)
{
    int devices;
    const char *why;
    return gpu_devices(&devices, &why) ? NULL : why;
}

const struct transport cuda_ipc_transport = {
    .name = "cuda-ipc",
    .modes = 1u << WIRE_STAGED | 1u << WIRE_PULL | 1u << WIRE_PUSH | 1u << WIRE_LL,
    .device = true,
    .graphs = true,
    .engine = &gpu_engine,
    .suits = {[WIRE_STAGED] = {512 << 10, 4},
              [WIRE_PULL] = {4 << 20, 4},
              [WIRE_PUSH] = {4 << 20, 4},
              [WIRE_LL] = {32 << 10, 8}},
    .slot_budget = 256 << 20,
    .most_channels = 16, /* a block moves some 25 GB/s, NVLink 450: not measured here */
    .channel_bytes = 256 << 10,
    .granule = ALIGN,
    .message_align = 16,
    .alloc = device_alloc,
    .absent = absent,
    .open = open_wires,
    .close = close_wires,
};

const struct transport cuda_peer_transport = {
    .name = "cuda-peer",
    .modes = 1u << WIRE_STAGED,
    .device = true,
    .engine = &copy_engine,
    .suits = {[WIRE_STAGED] = {4 << 20, 3}},
    .slot_budget = 256 << 20,
    .granule = ALIGN,
    .message_align = 16,
    .alloc = device_alloc,
    .absent = absent,
    .open = open_wires,
    .close = close_wires,
};
