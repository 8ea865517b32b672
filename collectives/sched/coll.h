/* SPDX-License-Identifier: Apache-2.0
 * What each collective promises: its buffers, what they hold before and must hold after, and how
 * its bandwidth is counted. One row per collective; nothing here knows an algorithm. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum coll_id {
    COLL_ALLREDUCE,
    COLL_ALLGATHER,
    COLL_REDUCE_SCATTER,
    COLL_ALLTOALL,
    COLL_BROADCAST,
    COLL_REDUCE,
    COLL_GATHER,
    COLL_SCATTER,
    COLL_SENDRECV,
    COLL_ALLTOALLV,
    COLL_BARRIER,
    COLL_COUNT
};

/* Buffers by symbol. Scratch plane p is BUF_SCRATCH + p, laid out like the buffer with more
 * blocks. */
enum buf { BUF_IN = 0, BUF_OUT = 1, BUF_SCRATCH = 2 };

enum content { CONTENT_FREE, CONTENT_VALUE, CONTENT_UNCHANGED };

struct coll {
    enum coll_id id;
    const char *name;    /* the word on the command line */
    const char *nccl;    /* the name in nccl-tests, e.g. "all_reduce" */
    bool reduces;        /* has an operator */
    bool rooted;         /* has a root: at least one of the next two */
    bool root_in;        /* the root alone has an input */
    bool root_out;       /* the root alone has a result; the others' outputs are free */
    bool in_per_rank;    /* the input has one block per rank (else one block) */
    bool out_per_rank;   /* the output has one block per rank (else one block) */
    bool uneven;         /* blocks differ in length: sched/traffic.h; has no placement in place */
    bool empty;          /* blocks have no bytes: only the messages matter */
    const char *promise; /* one sentence for listings */
    const char *busbw;   /* the factor's formula, for headers */
    double (*busbw_factor)(uint32_t nranks); /* busbw = algbw * factor */
};

/* The row of a collective; `id` must be valid. */
const struct coll *coll_get(enum coll_id id);

/* True when the operation can run in place. */
static inline bool coll_in_place(const struct coll *coll)
{
    return !coll->uneven && !coll->empty;
}

/* The row by name (ours, nccl-tests' or MPI's spelling; "_perf" behind or "osu_" before it is
 * ignored); unknown: the valid list (ERR_USAGE), NULL. */
const struct coll *coll_find(const char *name, struct err *err);

/* Blocks of a buffer for `nranks` ranks (scratch: the larger of the two). */
uint32_t coll_blocks(const struct coll *coll, enum buf buf, uint32_t nranks);

/* In place: the block of the output that the input's block `block` of `rank` lies on (as many
 * blocks in both: the same one; allgather, gather: block `rank`), or, for reduce_scatter and
 * scatter, the other way round: output block 0 lies on input block `rank`. Gives one canonical
 * (buf, block). */
void coll_alias(const struct coll *coll, uint32_t rank, enum buf *buf, uint32_t *block);

/* What a chunk must hold: part p of input block `block` of `rank`, or the reduction of that part
 * over all ranks. Parts keep their number in every buffer. */
struct promise {
    enum content content;
    uint32_t block;
    uint32_t rank; /* when !all */
    bool all;
};

/* True when the input of `rank` holds data before the collective (else it may not be read). */
bool coll_has_input(const struct coll *coll, uint32_t root, uint32_t rank);

/* Content required afterwards of block `block` of `rank`'s output: a value, or FREE where the root
 * alone has a result. The input must be UNCHANGED out of place; in place only what lies outside the
 * output is free. Cannot fail. */
struct promise coll_after(const struct coll *coll, uint32_t nranks, uint32_t root, uint32_t rank,
                          uint32_t block);

/* The bytes of a call: S as counted by algbw, and the block sizes that follow.
 *   allreduce, broadcast, reduce, sendrecv   S = the buffer of one rank
 *   allgather, gather                        S = the output, nranks blocks
 *   reduce_scatter, scatter, alltoall        S = the input, nranks blocks
 *   alltoallv                                S = the input of a rank in the mean, nranks blocks
 *   barrier                                  S = 0
 * Gives elements per block for a wanted S: rounded down to whole elements per block, at least one
 * per block when S > 0. */
size_t coll_block_count(const struct coll *coll, uint32_t nranks, size_t size, size_t esize);

/* S in bytes for that many elements per block. */
size_t coll_size(const struct coll *coll, uint32_t nranks, size_t block_count, size_t esize);

enum source {
    SOURCE_MEASURED,
    SOURCE_SIMULATED,
    SOURCE_REFERENCE, /* measured: a library's call */
    SOURCE_EMULATED,  /* on emulated GPUs: checked, but its times mean nothing */
};

/* One row of any table: measured, simulated, or of a reference library. Times in microseconds per
 * operation; the maximum over ranks of each sample. */
struct result {
    enum source source;
    enum coll_id coll;
    char algo[32];      /* the algorithm that ran, never "auto" */
    char transport[32]; /* "shm/pull", "mpi", "switch", ... */
    char buffers[12];   /* "shared", "private" or "-" */
    char dtype[12], redop[8];
    int root; /* -1: none */
    uint32_t nranks;
    bool in_place;
    uint64_t bytes; /* S */
    uint64_t count; /* elements per block, as nccl-tests counts */
    double time_us; /* mean over all operations: what algbw is counted from */
    double min_us, p50_us, p95_us, p99_us, max_us;
    uint64_t nsamples, batch;      /* a sample is `batch` operations */
    double algbw_GBps, busbw_GBps; /* 10^9 bytes per second */
    double busbw_factor;           /* .. of uneven blocks by this factor: traffic_busbw */
    double bound_us;               /* least time the bound allows; 0 = unknown */
    double ceiling_GBps;           /* busbw for endless sizes on this network; 0 = unknown */
    char limit[48];                /* .. and the link that sets it, or "" */
    char proto[8];                 /* a library's protocol, or "" */
    int64_t wrong;                 /* wrong elements; -1 = not checked */
    uint64_t steps;                /* steps executed by one rank per operation = program x passes */
    uint64_t passes;
    uint32_t channels, parts;
    /* How it was measured; all that is unknown is 0 or "". */
    char series[24]; /* which of the things compared this is: "own", "mpi/blocking", .. */
    double ci_low_us, ci_high_us;        /* 95 % interval of p50 */
    char interval[20];                   /* .. by which method */
    char stop[12];                       /* what ended the sampling: "precision", "time", "count" */
    double ratio, ratio_low, ratio_high; /* p50 of what it is compared with / own, 95 % interval */
    char verdict[16];                    /* "faster", "slower", "no difference" */
    double compute_us, overlap_pct, cores; /* beside compute */
    double wait_us;                        /* longest stay beyond the time since the last arrival */
    double host_us;   /* GPUs: an operation alone, from its launch to the moment the host sees it
                         done, median, slowest rank; time_us is the device's */
    double launch_us; /* .. and what the host spends on launching it */
    double ping_us;   /* cache line from rank 0 to 1, beside the samples */
    uint64_t launch, order; /* from 1; launch 0: over all launches */
    char timestamp[40];     /* ISO 8601: when the row was complete */
};

/* Fills algbw and busbw from time_us, bytes and the factor; 0 when the time is 0. */
void result_bandwidths(struct result *result);
