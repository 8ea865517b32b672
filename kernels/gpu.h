/* SPDX-License-Identifier: Apache-2.0
 * GPUs behind one table of functions. The programs link no CUDA: a plug-in (kernels/cuda/, with
 * the CUDA runtime inside) is opened at run time, so one binary starts with and without a driver.
 * The tests open another plug-in with the same table, made of the same .cu files on an emulation
 * of the CUDA runtime; it says so in `emulated`.
 *
 * Every function of the table returns 0 or the number of a CUDA error, which error_name and
 * error_text explain (gpu_check makes a sentence of it). Streams, events and graphs are opaque.
 * Pointers to device memory are plain addresses: only the device, or the copy functions, may look
 * behind them. Calls act on the device that this thread chose with `use`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/kernels.h"
#include "kernels/step.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_ABI = 1, GPU_HANDLE_BYTES = 64, GPU_LINE = 128 /* flags lie on lines of their own */ };

struct gpu_info {
    char name[128];
    char pci[32]; /* bus address, e.g. "0000:1b:00.0" */
    int major, minor;
    uint32_t sms;             /* multiprocessors */
    size_t free_bytes, bytes; /* memory */
};

/* ---- kernels -------------------------------------------------------------------------------- */

/* Versions of the fold kernel, each a step further: see kernels/cuda/fold.cuh. */
enum gpu_version {
    GPU_NAIVE,  /* one element per thread and turn */
    GPU_VECTOR, /* 16 bytes per thread and turn */
    GPU_FLIGHT, /* several 16-byte loads of each input in flight: what the collectives use */
    GPU_VERSION_COUNT
};
const char *gpu_version_name(enum gpu_version version);

/* What the data of a check are made of: see kernels/data.h. */
struct gpu_data {
    enum dtype dtype;
    enum redop op; /* OP_COUNT: moved only */
    uint32_t nranks, rank;
    uint64_t first; /* position of the first element */
    uint64_t salt;
};

/* What a check found. Lies in memory that device and host can read; the caller sets it to {0, ~0}
 * before the first check. */
struct gpu_bad {
    uint64_t count;
    uint64_t lowest; /* index of the first wrong element */
};

/* ---- the step interpreter --------------------------------------------------------------------
 * One end of a device wire: plain data. What the other end writes lies in the memory of the one
 * who waits for it, so that polling stays local:
 *
 *      sender                               receiver
 *      released  <------- st.release ------ when a slot is free again
 *                ------- data, st.release -> slots, posted          STAGED
 *                ------- lines {8 B, flags} > slots                 LL: number + 1 in each
 *                ------- refs, st.release --> posted                PULL: data stay at the sender
 *                ------- data, st.release --> posted                PUSH: data go into the buffer
 *
 * Without peer access between the two, all of it lies in pinned host memory. */
struct gpu_wire {
    uint64_t *posted;     /* messages posted so far */
    uint64_t *released;   /* messages released so far */
    uint8_t *slots;       /* STAGED: depth x slot_stride bytes; LL: the same, of lines */
    uint64_t *refs;       /* PULL: depth words buf << 32 | chunk */
    uint64_t slot_stride; /* bytes from slot to slot */
    uint32_t depth;       /* messages of room */
    uint32_t mode;        /* enum wire_mode */
    uint32_t peer;        /* group rank */
    uint32_t nmsgs;       /* per pass */
};

struct gpu_range {
    uint64_t off, len; /* bytes */
};

/* One message that was sent, when messages are recorded. */
struct gpu_log {
    uint32_t wire, unused;
    uint64_t number, bytes;
};

/* Where a lane waits, for the host that watches; written when a wait has become long. */
struct gpu_report {
    uint64_t pass;
    uint32_t record; /* .. of the program */
    uint32_t waiting;
};

/* All that the lanes of one rank read: lies in device memory, as does what it points to, but for
 * `stop` and `reports` (pinned host memory). Lane i is block i of the rank. */
struct gpu_rank {
    const struct lstep *steps; /* peers and chunks absolute */
    const uint32_t *lane_start;
    const struct lwait *waits;
    struct gpu_wire *wires;
    const struct gpu_range *chunks[3];     /* whole chunks of input, output, scratch */
    const struct gpu_range *const *theirs; /* uneven blocks: by group rank, input then output */
    uint8_t *const *peers;                 /* by group rank: 3 addresses of buffers */
    uint8_t *base[3];                      /* own buffers */
    uint64_t plane_bytes, slice_bytes, passes;
    uint64_t *progress;   /* per lane, GPU_LINE bytes apart: passes << 32 | records done in the next
                             one; then operations that are over. Kept between operations */
    const uint32_t *stop; /* not 0: the run was ended, stop waiting */
    struct gpu_report *reports; /* per lane */
    struct gpu_log *log;        /* NULL: not recorded */
    uint64_t *nlog;
    uint32_t nchunks[3];
    uint32_t nwires, nlanes, nranks, esize;
    uint32_t crosses; /* 1: some lane waits for another */
};

/* A launch: blocks of `threads` threads, lane i of rank r is block r * nlanes + i. The ranks of a
 * launch (more than one: "virtual ranks") have the same number of lanes. */
struct gpu_launch {
    const struct gpu_rank *ranks; /* device memory */
    uint32_t nranks, nlanes, threads;
    enum dtype dtype;
    enum redop op;
};

/* ---- the table ------------------------------------------------------------------------------ */

struct gpu {
    int abi;          /* GPU_ABI */
    bool emulated;    /* no GPU: its times mean nothing */
    const char *name; /* "CUDA runtime 13.0" */
    const char *(*error_name)(int error);
    const char *(*error_text)(int error);
    int (*versions)(int *runtime, int *driver); /* 13000 is 13.0; driver 0: none */

    /* devices */
    int (*count)(int *devices);
    int (*use)(int device);
    int (*info)(int device, struct gpu_info *info);
    int (*can_peer)(int device, int other, bool *can); /* false for the device itself */
    int (*enable_peer)(int other);                     /* from the device in use; again: fine */

    /* memory */
    int (*alloc)(void **memory, size_t bytes);
    int (*free)(void *memory);
    int (*host_alloc)(void **memory, size_t bytes); /* pinned, the device sees it at *device */
    int (*host_free)(void *memory);
    int (*host_register)(void *memory, size_t bytes); /* whole pages; again: fine */
    int (*host_unregister)(void *memory);
    int (*host_device)(void *memory, void **device); /* the device's address of pinned memory */
    int (*ipc_get)(void *memory, uint8_t handle[GPU_HANDLE_BYTES]); /* base of an allocation */
    int (*ipc_open)(const uint8_t handle[GPU_HANDLE_BYTES], void **memory);
    int (*ipc_close)(void *memory);

    /* copies; addresses of host or device */
    int (*copy)(void *dst, const void *src, size_t bytes); /* over when it returns */
    int (*copy_async)(void *dst, const void *src, size_t bytes, void *stream);
    int (*copy_peer)(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                     void *stream);
    int (*set_async)(void *dst, int byte, size_t bytes, void *stream);

    /* streams and events; a stream waits for, or writes, 64-bit words: in stream order, the write
     * after all that stands before it (cuStreamWaitValue64 >=, cuStreamWriteValue64) */
    int (*stream_new)(void **stream);
    int (*stream_free)(void *stream);
    int (*stream_sync)(void *stream);
    int (*stream_done)(void *stream, bool *done);
    int (*stream_wait)(void *stream, const uint64_t *word, uint64_t least);
    int (*stream_write)(void *stream, uint64_t *word, uint64_t value);
    int (*event_new)(void **event);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_done)(void *event, bool *done);
    int (*event_ms)(void *from, void *to, float *ms);
    int (*stream_after)(void *stream, void *event); /* what follows waits for the event */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph); /* ready to be launched */
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_free)(void *graph);
    int (*last_error)(void); /* of an asynchronous failure, and forgets it */

    /* kernels. blocks and threads 0: what suits the device. `fold` is kernels/kernels.h's, with
     * addresses of the device; nin == 1 is a copy whatever the operator. */
    int (*spin)(const uint32_t *until, void *stream); /* runs until the word is not 0 */
    int (*fold)(const struct fold *fold, enum dtype dtype, enum redop op, enum gpu_version version,
                uint32_t blocks, uint32_t threads, void *stream);
    int (*convert)(void *dst, enum dtype to, const void *src, enum dtype from, size_t count,
                   void *stream); /* see kernels_convert in kernels.h */
    int (*fill)(void *dst, const struct gpu_data *data, size_t count, void *stream);
    int (*check)(const void *src, const struct gpu_data *data, bool reduced, size_t count,
                 struct gpu_bad *bad, void *stream);
    int (*poison)(void *dst, size_t bytes, uint64_t salt, void *stream);

    /* the interpreter: most blocks of `threads` threads that a device runs at once, and a launch */
    int (*run_limit)(enum dtype dtype, enum redop op, uint32_t threads, uint32_t *blocks);
    int (*run)(const struct gpu_launch *launch, void *stream);

    /* Emulated only, else NULL: bytes that kernels of this process have read and written in data
     * (not flags) since the last call. */
    void (*moved)(uint64_t *read, uint64_t *written);
};

/* The plug-in, opened on the first call (thread-safe): COLLBENCH_GPU_PLUGIN names it, else it lies
 * beside the program or in ../lib/collbench. NULL when it cannot be used, with the reason in *why
 * (never freed): no plug-in built, or it cannot be loaded. */
const struct gpu *gpu_open(const char **why);

/* The same, and the number of its devices: NULL, with the reason, when there is none ("no usable
 * GPU: cudaErrorInsufficientDriver (..)"). */
const struct gpu *gpu_devices(int *devices, const char **why);

/* 0 when `error` is 0, else the sentence "WHAT: NAME (TEXT)" (ERR_FAILED) and -1. */
int gpu_check(const struct gpu *gpu, int error, struct err *err, const char *what, ...)
    __attribute__((format(printf, 4, 5)));

#ifdef __cplusplus
}
#endif
