/* SPDX-License-Identifier: Apache-2.0
 * The inside of a handle, for the files of the executor alone: what all ways of running a linked
 * program share (exec.c), and what an engine is. Engines: lanes of a CPU thread (exec_host.c), the
 * interpreter kernel of a GPU (exec_gpu.c), its copy engines (exec_copy.c). A transport names the
 * engine that runs over it. */
#pragma once

#include "exec/exec.h"
#include "sched/layout.h"

struct engine {
    int (*open)(struct exec *exec, struct err *err); /* the wires are open */
    void (*close)(struct exec *exec);                /* before they are closed */
    void (*start)(struct exec *exec);
    int (*progress)(struct exec *exec);
    void (*report)(struct exec *exec); /* tells the watcher where the first unfinished lane waits */
};
extern const struct engine host_engine;
extern const struct engine gpu_engine;  /* one kernel launch per operation */
extern const struct engine copy_engine; /* copies and kernels put into streams */

/* One group that ran, with keep_trace. */
struct ran {
    uint32_t lane, pc;
    uint64_t pass, came_ns, begin_ns, end_ns;
};

struct exec {
    struct exec_spec spec;
    const struct sched *sched;
    struct rank *rank;
    const struct transport *transport;
    void *transport_state, *engine_state;
    const struct lwait *waits;
    struct lstep *steps; /* this rank's: peers and chunks absolute */
    uint32_t nsteps, nwaits;
    uint32_t *lane_start; /* nlanes + 1 */
    uint32_t nlanes;
    struct lwire *lwires;
    struct wire **wires;
    uint32_t nwires;
    struct layout layout[2]; /* input, output */
    struct layout most;      /* one block as long as the longest of any rank: what all agree on */
    size_t *offsets[2];      /* of uneven blocks; else NULL */
    struct range **theirs;   /* .. then by group rank: where the peer's chunks lie, as `chunks` */
    struct range *chunks[3]; /* per buffer kind: whole chunks; scratch: place and longest slice */
    uint32_t nchunks[3];
    size_t scratch_bytes, plane_bytes;
    struct wire_buffers own, *peers; /* peers by group rank */
    size_t esize;
    uint64_t passes;
    uint64_t started; /* operations so far */
    bool moved;       /* something went on in this progress call */
    bool observed;    /* messages are logged, or a planted fault waits for one */
    int spoil;        /* .. enum fault_kind */
    uint32_t flying;  /* groups under way on the rank's GPU */
    struct msg_log *log;
    size_t nlog, log_cap;
    struct ran *ran; /* of the last operation; NULL without keep_trace */
    size_t nran;
};

static inline uint32_t kind_of(uint32_t buf)
{
    return buf < BUF_SCRATCH ? buf : BUF_SCRATCH;
}

/* Chunk `chunk + i` of `buf` in a pass, as a place in the base of its kind of buffer. */
static inline struct range exec_range(const struct exec *exec, uint32_t buf, uint32_t chunk,
                                      uint32_t i, uint64_t pass)
{
    uint32_t kind = kind_of(buf), c = chunk + i;
    c = c >= exec->nchunks[kind] ? c - exec->nchunks[kind] : c;
    struct range whole = exec->chunks[kind][c];
    struct range range = range_slice(whole, exec->most.slice_bytes, pass);
    if (kind == BUF_SCRATCH) { /* every pass uses the same place */
        range.off = (buf - BUF_SCRATCH) * exec->plane_bytes + whole.off;
    }
    return range;
}

/* The same in the memory of group rank `peer`. */
static inline struct range exec_peer_range(const struct exec *exec, uint32_t peer, uint32_t buf,
                                           uint32_t chunk, uint32_t i, uint64_t pass)
{
    if (!exec->theirs) {
        return exec_range(exec, buf, chunk, i, pass);
    }
    uint32_t c = (chunk + i) % exec->nchunks[buf];
    struct range whole = exec->theirs[peer][buf * exec->nchunks[BUF_IN] + c];
    return range_slice(whole, exec->most.slice_bytes, pass);
}

/* Bytes that the record's message or value has in a pass. */
static inline size_t exec_step_bytes(const struct exec *exec, const struct lstep *step,
                                     uint64_t pass)
{
    bool source = step->kind == STEP_SEND;
    uint32_t buf = source ? step->src_buf : step->dst_buf;
    uint32_t chunk = source ? step->src : step->dst;
    size_t bytes = 0;
    for (uint32_t i = 0; i < step->nchunks; i++) {
        bytes += exec_range(exec, buf, chunk, i, pass).len;
    }
    return bytes;
}

/* Lanes of the rank that has most: what all ranks agree on. */
uint32_t exec_most_lanes(const struct exec *exec);

/* Adds a message to the log. */
void exec_log_add(struct exec *exec, const struct lwire *wire, uint64_t number, size_t bytes);

/* The planted fault, if one waits for a message: that with `bytes` at `at` is posted next. */
void exec_spoil_message(struct exec *exec, void *at, size_t bytes);

/* Tells the watcher that the lane which stands at `record` waits there in `pass`. */
void exec_waits(struct exec *exec, uint32_t record, uint64_t pass);
