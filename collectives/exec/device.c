/* SPDX-License-Identifier: Apache-2.0
 * The GPU of a rank: see device.h. What the peers must know of it stands in the rank's status. */
#include "exec/device.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

enum { ALIGN = 256, ARENA_UNIT = 2 << 20 /* CUDA IPC maps whole pages of this size */ };

/* ---- errors ---- */

void device_must(struct rank *rk, int error, const char *what)
{
    if (!error) return;
    const struct gpu *gpu = rk->device->gpu;
    fprintf(stderr, "collbench: rank %u, device %d, %s: %s (%s)\n", rk->rank, rk->device->number,
            what, gpu->error_name(error), gpu->error_text(error));
    _exit(1);
}

bool device_done(struct rank *rk, void *stream, const char *what)
{
    bool done = false;
    device_must(rk, rk->device->gpu->stream_done(stream, &done), what);
    if (!done && world_aborted(rk->world)) { /* this rank ends at its next waiter_pause */
        *(volatile uint32_t *)rk->device->stop = 1;
        *(volatile uint32_t *)rk->device->hold = 1;
    }
    return done;
}

void device_sync(struct rank *rk, const char *what)
{
    for (struct waiter waiter = {0}; !device_done(rk, rk->device->stream, what);
         waiter_pause(&waiter, rk)) {
    }
}

void device_copy(struct rank *rk, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) device_must(rk, rk->device->gpu->copy(dst, src, bytes), "copying memory");
}

/* ---- life ---- */

int device_fit(uint32_t nranks, bool oversubscribe, const struct gpu **gpu, struct err *err)
{
    int devices;
    const char *why;
    *gpu = gpu_devices(&devices, &why);
    if (!*gpu) return err_add(err, ERR_USAGE, "%s", why);
    if (nranks > (uint32_t)devices && !oversubscribe) {
        return err_add(err, ERR_USAGE,
                       "%u ranks need as many GPUs, but there are %d; use --ranks %d, or "
                       "--oversubscribe to let ranks share GPUs",
                       nranks, devices, devices);
    }
    return 0;
}

/* The first rank of this host. */
static uint32_t first_here(const struct rank *rk)
{
    return world_first(rk->world, world_own_host(rk->world));
}

/* Fills in what the peers must know, in the own status. */
static int tell(struct rank *rk, struct err *err)
{
    struct device *device = rk->device;
    struct rank_device *said = &rk->status->device;
    const struct gpu *gpu = device->gpu;
    struct gpu_info info;
    if (gpu_check(gpu, gpu->info(device->number, &info), err, "asking device %d", device->number) ||
        gpu_check(gpu, gpu->ipc_get(device->arena, said->handle), err,
                  "a handle for the memory of device %d", device->number)) {
        return -1;
    }
    said->number = device->number;
    said->arena = (uint64_t)(uintptr_t)device->arena;
    said->pid = getpid();
    snprintf(said->pci, sizeof said->pci, "%s", info.pci);
    rank_publish(rk, said, sizeof *said);
    return 0;
}

static int allocate(struct rank *rk, size_t bytes, struct err *err)
{
    struct device *device = rk->device;
    const struct gpu *gpu = device->gpu;
    struct gpu_info info;
    device->bytes = (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;
    if (gpu_check(gpu, gpu->info(device->number, &info), err, "asking device %d", device->number))
        return -1;
    if (device->bytes < bytes || device->bytes > info.free_bytes) {
        return err_add(
            err, ERR_USAGE, "rank %u needs %zu MiB on device %d, where %zu of %zu MiB are free",
            rk->rank, device->bytes >> 20, device->number, info.free_bytes >> 20, info.bytes >> 20);
    }
    void *arena, *words, *seen;
    if (gpu_check(gpu, gpu->alloc(&arena, device->bytes), err, "%zu MiB on device %d",
                  device->bytes >> 20, device->number)) {
        return -1;
    }
    device->arena = arena;
    if (gpu_check(gpu, gpu->host_alloc(&words, 2 * GPU_LINE), err, "pinned memory")) return -1;
    device->stop = words;
    device->hold = (uint32_t *)words + GPU_LINE / sizeof(uint32_t);
    *device->stop = *device->hold = 0;
    if (gpu_check(gpu, gpu->host_device(words, &seen), err, "pinned memory")) return -1;
    device->stop_device = seen;
    device->hold_device = (uint32_t *)seen + GPU_LINE / sizeof(uint32_t);
    for (int i = 0; i < 2; i++) {
        if (gpu_check(gpu, gpu->event_new(&device->events[i]), err, "an event")) return -1;
    }
    return gpu_check(gpu, gpu->stream_new(&device->stream), err, "a stream");
}

/* The most on any device, so that all ranks of a process come to the same. */
static uint32_t count_sharers(const struct rank *rk)
{
    uint32_t most = 1, first = first_here(rk);
    uint32_t behind = first + world_host_ranks(rk->world, world_own_host(rk->world));
    for (uint32_t a = first; a < behind; a++) {
        const struct rank_device *one = &world_status(rk->world, a)->device;
        uint32_t sharers = 0;
        for (uint32_t b = first; b < behind; b++) {
            const struct rank_device *other = &world_status(rk->world, b)->device;
            sharers +=
                one->pid == getpid() && other->pid == one->pid && other->number == one->number;
        }
        most = sharers > most ? sharers : most;
    }
    return most;
}

/* What CUDA is to find at its first call: hardware queues for exec_copy.c's lanes; and kernels
 * loaded at once, since loading one may wait for those that run, and they may wait for a peer. */
static void set_environment(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int device_open(struct rank *rk, size_t bytes, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* ranks may be threads of one process */
    int devices;
    const char *why;
    pthread_once(&once, set_environment);
    const struct gpu *gpu = gpu_devices(&devices, &why);
    if (!gpu) return err_add(err, ERR_USAGE, "%s", why);
    struct device *device = rk->device = mem_calloc(1, sizeof *device);
    *device = (struct device){.gpu = gpu,
                              .rank = rk,
                              .number = (int)((rk->rank - first_here(rk)) % (uint32_t)devices),
                              .arenas = mem_calloc(rk->nranks, sizeof *device->arenas)};
    if (gpu_check(gpu, gpu->use(device->number), err, "device %d", device->number) ||
        allocate(rk, bytes, err) || tell(rk, err)) {
        return -1; /* the run ends */
    }
    rank_barrier(rk);
    device->arenas[rk->rank] = device->arena;
    device->sharers = count_sharers(rk);
    return 0;
}

void device_close(struct rank *rk)
{
    struct device *device = rk->device;
    if (!device) return;
    const struct gpu *gpu = device->gpu;
    while (device->npins > 0)
        device_unpin(rk, device->pins[0].memory);
    if (device->stream) { /* it was opened: so it was on all ranks */
        for (uint32_t r = 0; r < rk->nranks; r++) {
            bool mapped = device->arenas[r] &&
                          world_status(rk->world, r)->device.pid != rk->status->device.pid;
            if (mapped) gpu->ipc_close(device->arenas[r]);
        }
        rank_barrier(rk); /* nobody maps what is freed now */
        gpu->stream_free(device->stream);
    }
    for (int i = 0; i < 2; i++) {
        if (device->events[i]) gpu->event_free(device->events[i]);
    }
    if (device->stop) gpu->host_free(device->stop);
    if (device->arena) gpu->free(device->arena);
    free(device->arenas);
    free(device->pins);
    free(device);
    rk->device = NULL;
}

/* ---- memory ---- */

void *device_alloc(struct rank *rk, size_t bytes, struct err *err)
{
    struct device *device = rk->device;
    size_t left = device->bytes - device->used, need = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (need < bytes || need > left) {
        err_add(err, ERR_USAGE,
                "rank %u needs %zu B of its memory on device %d, but %zu B are free", rk->rank,
                bytes, device->number, left);
        return NULL;
    }
    device->used += need;
    return device->arena + device->used - need;
}

size_t device_mark(const struct rank *rk)
{
    return rk->device ? rk->device->used : 0;
}

void device_rewind(struct rank *rk, size_t mark)
{
    if (rk->device) rk->device->used = mark;
}

/* ---- memory of the host ---- */

static struct device_pin *find_pin(const struct device *device, const void *memory)
{
    for (size_t i = 0; i < device->npins; i++) {
        if (device->pins[i].memory == memory) return &device->pins[i];
    }
    return NULL;
}

/* Adds what the device sees as `memory`. */
static int add_pin(struct device *device, void *memory, size_t bytes, bool ours, struct err *err)
{
    void *seen = NULL;
    int bad = gpu_check(device->gpu, device->gpu->host_device(memory, &seen), err, "pinned memory");
    MEM_GROW(device->pins, device->npins, device->pins_cap);
    device->pins[device->npins++] = (struct device_pin){memory, seen, bytes, ours};
    return bad;
}

int device_pin(struct rank *rk, void *memory, size_t bytes, uint32_t owner, struct err *err)
{
    struct device *device = rk->device;
    if (!device || bytes == 0 || find_pin(device, memory)) return 0;
    bool ours = owner == rk->rank || world_status(rk->world, owner)->device.pid != getpid();
    if (ours && gpu_check(device->gpu, device->gpu->host_register(memory, bytes), err,
                          "rank %u pins %zu B of host memory", rk->rank, bytes)) {
        return -1;
    }
    return add_pin(device, memory, bytes, ours, err);
}

void device_unpin(struct rank *rk, void *memory)
{
    struct device *device = rk->device;
    struct device_pin *pin = device ? find_pin(device, memory) : NULL;
    if (!pin) return;
    if (pin->ours) device->gpu->host_unregister(memory);
    *pin = device->pins[--device->npins];
}

void *device_sees(const struct rank *rk, const void *at)
{
    const struct device *device = rk->device;
    uintptr_t place = (uintptr_t)at;
    for (size_t i = 0; device && i < device->npins; i++) {
        const struct device_pin *pin = &device->pins[i];
        uintptr_t off = place - (uintptr_t)pin->memory;
        if (off < pin->bytes) return pin->device + off;
    }
    return (void *)place;
}

void *slots_alloc(struct rank *rk, size_t count, size_t bytes, struct err *err)
{
    struct device *device = rk->device;
    void *memory;
    size_t all;
    if (!device) return mem_calloc(count, bytes);
    if (__builtin_mul_overflow(count, bytes, &all)) all = SIZE_MAX;
    all = all ? all : 1;
    if (gpu_check(device->gpu, device->gpu->host_alloc(&memory, all), err,
                  "rank %u: %zu B of pinned memory", rk->rank, all)) {
        return NULL;
    }
    memset(memory, 0, all);
    return add_pin(device, memory, all, false, err) ? NULL : memory;
}

void slots_free(struct rank *rk, void *memory)
{
    if (!rk->device) {
        free(memory);
        return;
    }
    device_unpin(rk, memory);
    if (memory) rk->device->gpu->host_free(memory);
}

/* ---- peers ---- */

int device_number(const struct rank *rk, uint32_t rank)
{
    return world_status(rk->world, rank)->device.number;
}

static bool reach(const struct gpu *gpu, int a, int b)
{
    bool there = false, back = false;
    return a == b || (!gpu->can_peer(a, b, &there) && !gpu->can_peer(b, a, &back) && there && back);
}

bool device_direct(const struct rank *rk, uint32_t one, uint32_t other)
{
    return reach(rk->device->gpu, device_number(rk, one), device_number(rk, other));
}

uint8_t *device_arena(struct rank *rk, uint32_t rank, struct err *err)
{
    struct device *device = rk->device;
    const struct gpu *gpu = device->gpu;
    const struct rank_device *theirs = &world_status(rk->world, rank)->device;
    if (device->arenas[rank]) return device->arenas[rank];
    if (theirs->number != device->number &&
        gpu_check(gpu, gpu->enable_peer(theirs->number), err, "peer access from device %d to %d",
                  device->number, theirs->number)) {
        return NULL;
    }
    void *arena = (void *)(uintptr_t)theirs->arena; /* of a rank in this process */
    if (theirs->pid != getpid() && gpu_check(gpu, gpu->ipc_open(theirs->handle, &arena), err,
                                             "rank %u maps the memory of rank %u on device %d",
                                             rk->rank, rank, theirs->number)) {
        return NULL;
    }
    return device->arenas[rank] = arena;
}

uint32_t device_apart(uint32_t nranks, char *text, size_t size)
{
    int devices;
    const char *why;
    const struct gpu *gpu = gpu_devices(&devices, &why);
    uint32_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t a = 0; a < nranks; a++) {
        for (uint32_t b = a + 1; b < nranks; b++) {
            if (reach(gpu, (int)a % devices, (int)b % devices)) continue;
            if (used + 32 < size) {
                used +=
                    (size_t)snprintf(text + used, size - used, "%s%u-%u", count ? " " : "", a, b);
            } else if (used < size) {
                snprintf(text + used, size - used, " ...");
                used = size;
            }
            count++;
        }
    }
    return count;
}
