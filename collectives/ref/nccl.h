/* SPDX-License-Identifier: Apache-2.0
 * NCCL as an opponent, opened at run time: which library there is and what it is told (launcher and
 * ranks), a communicator over the ranks of a run, memory as the library likes it, and calls. Calls
 * are asynchronous: they stand in a stream of the device, directly or as a captured graph. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/gpu.h"
#include "kernels/kernels.h"
#include "sched/coll.h"
#include "sched/traffic.h"

/* ---- the library ---------------------------------------------------------------------------- */

struct nccl_library;

/* Opens COLLBENCH_NCCL if that is set, else libnccl.so.2, else libnccl.so. NULL with the reason
 * (ERR_USAGE): none found, a function is missing, or it is older than 2.10. Needs no GPU. Freed
 * with nccl_library_free, which leaves the library loaded and accepts NULL. */
struct nccl_library *nccl_load(struct err *err);
void nccl_library_free(struct nccl_library *library);

/* 22809 is 2.28.9. */
int nccl_version(const struct nccl_library *library);

/* One line, "NCCL 2.28.9 (/usr/lib/libnccl.so.2)"; a test's stub says so. */
const char *nccl_text(const struct nccl_library *library);

/* The same without the path, for columns: "NCCL 2.28.9", "NCCL-stub 2.28.9". */
char *nccl_short_text(const struct nccl_library *library);

/* ---- what it is told ------------------------------------------------------------------------ */

struct nccl_wish {
    const char *algo, *proto; /* NCCL_ALGO, NCCL_PROTO; NULL: as the environment says */
    uint32_t nranks, ndevices;
    int major;         /* compute capability of the devices, 0: unknown */
    bool hostid_trick; /* see struct nccl_spec */
};

/* All texts are freed by nccl_setup_release. */
struct nccl_setup {
    char **env;                       /* launch_spec.env: "NAME=VALUE", NULL at the end */
    char *library;                    /* nccl_text */
    char *algo, *proto, *ctas, *nvls; /* what was asked for, "its own choice" where nothing was */
    char *notes; /* what else: files that it reads too, ranks that share GPUs; "" for nothing */
    bool stub;
    int version, major; /* for nccl_lacks */
};

/* Opens the library and fills *setup. ERR_USAGE and -1: none, or one that refuses so many ranks on
 * so few devices: NCCL takes one rank per GPU, before 2.30.3 always. */
int nccl_find(struct nccl_setup *setup, const struct nccl_wish *wish, struct err *err);
void nccl_setup_release(struct nccl_setup *setup);

/* ---- a rank's communicator ------------------------------------------------------------------ */

struct nccl;

struct nccl_spec {
    const struct nccl_library *library; /* borrowed, as all here */
    const struct gpu *gpu;
    int device; /* the rank's; chosen by this thread */
    uint32_t rank, nranks;
    bool several; /* ranks share a device: from 2.30.3 on */
    /* Each rank says that it is on a host of its own (NCCL_HOSTID), so that ranks may share a GPU
     * in any version. Data then go over sockets: good to see that the calls work, never for times.
     * Ranks must be processes, and the first communicator of theirs. */
    bool hostid_trick;
    void (*share)(void *ctx, void *bytes, size_t count); /* gives every rank those of rank 0 */
    void *ctx;
};

/* Every rank calls it at once. NULL with a sentence. */
struct nccl *nccl_open(const struct nccl_spec *spec, struct err *err);

/* Frees it; every rank calls it, with its streams idle. After an error it is aborted instead, which
 * waits for nobody. Accepts NULL. */
void nccl_close(struct nccl *nccl);

/* ---- memory --------------------------------------------------------------------------------- */

/* In which memory buffers lie: the caller's; from ncclMemAlloc and registered with the
 * communicator; from ncclMemAlloc and registered as a symmetric window on all ranks. */
enum nccl_memory { NCCL_PLAIN, NCCL_REGISTERED, NCCL_WINDOW, NCCL_MEMORIES };
const char *nccl_memory_name(enum nccl_memory kind);

struct nccl_buffer {
    enum nccl_memory kind;
    void *base; /* NULL: the library has not that kind of memory */
    size_t bytes;
    void *handle;
};

/* Allocates at least `bytes` (>= 1) and registers it; every rank calls it with the same `bytes`.
 * NCCL_PLAIN is refused. 0, or -1 with a sentence; nccl_buffer_release in either case. */
int nccl_buffer_new(struct nccl *nccl, enum nccl_memory kind, size_t bytes,
                    struct nccl_buffer *buffer, struct err *err);
void nccl_buffer_release(struct nccl *nccl, struct nccl_buffer *buffer);

/* ---- calls ---------------------------------------------------------------------------------- */

struct nccl_args {
    enum coll_id coll;
    enum dtype dtype;
    enum redop op; /* ignored when the collective does not reduce */
    bool in_place; /* the buffers overlap as coll_alias says */
    uint32_t nranks;
    size_t block_count;            /* elements per block, as in exec_spec */
    const struct traffic *traffic; /* alltoallv: .. of each block; else NULL */
    uint32_t root;                 /* ignored when the collective has none */
    void *in, *out;                /* device memory; in place: both, where they start */
};

/* Why NCCL cannot do that; NULL when it can. A `version` or `major` (compute capability) of 0 is
 * not known and not judged. */
const char *nccl_lacks(int version, int major, const struct nccl_args *args);

/* The name of the library's function behind a call: "ncclAllReduce", "ncclSend/ncclRecv". */
const char *nccl_function(const struct nccl *nccl, enum coll_id coll);

/* A call, ready to be made as often as wanted. */
struct nccl_call {
    struct nccl *nccl;
    struct nccl_args args; /* without the traffic */
    size_t *places[2];     /* alltoallv: byte offsets of the blocks of input and output */
    void *graph;           /* captured: see nccl_call_capture */
};

/* Fills *call; nccl_lacks must have been NULL. `args` with its traffic is not needed any more.
 * Freed with nccl_call_release, which accepts a call of zeros. */
void nccl_call_make(struct nccl *nccl, const struct nccl_args *args, struct nccl_call *call);
void nccl_call_release(struct nccl_call *call);

/* From now on the call is a graph. Every rank does it, with the stream idle. 0, or -1 with a
 * sentence. */
int nccl_call_capture(struct nccl_call *call, void *stream, struct err *err);

/* Puts the call into the stream. 0, or -1 with a sentence. A barrier is an all-reduce of one
 * element: it has happened when the stream is idle. */
int nccl_call_start(struct nccl_call *call, void *stream, struct err *err);

/* Whether all in the stream is done; looks for errors of the communicator too. 0, or -1 with a
 * sentence. */
int nccl_done(struct nccl *nccl, void *stream, bool *done, struct err *err);
