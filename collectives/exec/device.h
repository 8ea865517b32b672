/* SPDX-License-Identifier: Apache-2.0
 * The GPU of a rank: one allocation (the arena) from which buffers, scratch and wires are cut, so
 * that one handle opens all of it to a peer; a stream; and the words that the host shares with
 * kernels. Ranks with peer access (NVLink, PCIe) to each other map each other's arenas; between
 * the others wires lie in pinned memory of the host.
 *
 * A rank that has one has its buffers there whatever its transport. Those that know nothing of GPUs
 * have slots in memory of the host, which is pinned, so that kernels read and write it in place. */
#pragma once

#include "exec/transport.h"
#include "exec/world.h"
#include "kernels/gpu.h"

/* Beside what buffers and handles need: of a rank's device, and of its memory on the host. */
enum { DEVICE_SLACK = 4 << 20, DEVICE_HOST_BYTES = 1 << 20 };

struct device {
    const struct gpu *gpu;
    struct rank *rank;
    int number; /* of the device, as the CUDA runtime counts */
    void *stream;
    void *events[2]; /* with times: of who measures */
    uint8_t *arena;
    size_t bytes, used;
    uint8_t **arenas; /* per world rank: as mapped here; NULL: not yet */
    uint32_t *stop;   /* pinned: not 0 makes waiting kernels end */
    uint32_t *stop_device;
    uint32_t *hold, *hold_device; /* pinned: what a spin kernel waits for, see timing */
    uint32_t sharers;             /* most ranks of this process that share a device */
    struct device_pin *pins;      /* memory of the host that this device sees */
    size_t npins, pins_cap;
};

/* A stretch of pinned memory. */
struct device_pin {
    uint8_t *memory, *device; /* addresses for the host, and for the device */
    size_t bytes;
    bool ours; /* pinned from here: to be undone */
};

/* A device wire beside the plain one: what the transports of devices open. */
struct device_wire {
    struct wire wire;
    struct gpu_wire gpu; /* addresses as the own device sees them */
    int peer_device;     /* the number of the peer's device; -1: through the host */
};

/* How many ranks this host may have: as many as devices, unless several may share one. 0, or -1
 * with both numbers (ERR_USAGE); *gpu is the table. */
int device_fit(uint32_t nranks, bool oversubscribe, const struct gpu **gpu, struct err *err);

/* Gives the rank device `rank mod devices`, by its number among the ranks of its host, with an
 * arena of `bytes`; all ranks of the world call it. Refuses, with need and free, what the device
 * has not. 0 or -1. */
int device_open(struct rank *rk, size_t bytes, struct err *err);

/* Gives it back; all ranks call it. Nothing when there is none. */
void device_close(struct rank *rk);

/* `bytes` of the arena (at multiples of 256 B); NULL with need and free when it is used up.
 * device_mark and device_rewind free everything allocated since. */
void *device_alloc(struct rank *rk, size_t bytes, struct err *err);
size_t device_mark(const struct rank *rk);
void device_rewind(struct rank *rk, size_t mark);

/* Memory of the host for `count` slots of `bytes`, zeroed, and pinned where the rank has a GPU;
 * freed by slots_free. NULL with the sentence when it cannot be pinned. */
void *slots_alloc(struct rank *rk, size_t count, size_t bytes, struct err *err);
void slots_free(struct rank *rk, void *memory);

/* Pins memory of the host that is there already, whole pages, until device_unpin or device_close.
 * `owner` is the world rank that has pinned it too, if it is another one that shares it: in one
 * process it does so for both, and must go on until this rank is done. Nothing without a GPU, or
 * when it is pinned already. 0 or -1. */
int device_pin(struct rank *rk, void *memory, size_t bytes, uint32_t owner, struct err *err);
void device_unpin(struct rank *rk, void *memory);

/* The device's address of a place in pinned memory; of any other place the same one. */
void *device_sees(const struct rank *rk, const void *at);

/* Whether two ranks of a host reach each other's memory: on one device, or with peer access both
 * ways. */
bool device_direct(const struct rank *rk, uint32_t one, uint32_t other);

/* The arena of a rank of this host, as this rank sees it: opened on the first call. NULL with the
 * sentence. */
uint8_t *device_arena(struct rank *rk, uint32_t rank, struct err *err);

/* The number of a world rank's device. */
int device_number(const struct rank *rk, uint32_t rank);

/* Waits until the stream has done all; a failure of the device ends the process with a sentence,
 * as nothing can be said about its memory any more. `what` was being done. */
void device_sync(struct rank *rk, const char *what);

/* The same without waiting: whether it has. */
bool device_done(struct rank *rk, void *stream, const char *what);

/* When error is not 0: says "rank N, WHAT: ERROR" and ends the process with status 1. */
void device_must(struct rank *rk, int error, const char *what);

/* A copy between any memories, over when it returns. */
void device_copy(struct rank *rk, void *dst, const void *src, size_t bytes);

/* What starting the handle launches, of handles whose operations are one launch (exec_queues): its
 * gpu_rank lies on the device. Copied side by side there, those of several ranks that share a
 * device can be one launch (virtual ranks); the handles are then idle as far as exec knows. */
struct exec;
struct gpu_launch exec_launch(const struct exec *exec);

/* How many pairs of `nranks` ranks have no peer access to each other's device, and which, as text:
 * "0-2 0-3 1-2 1-3", "..." at its end when `size` characters do not hold them. For who starts the
 * ranks; a usable GPU is there. */
uint32_t device_apart(uint32_t nranks, char *text, size_t size);
