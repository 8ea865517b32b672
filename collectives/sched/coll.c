/* SPDX-License-Identifier: Apache-2.0
 * The collectives: one row each. Bandwidth factors as nccl-tests' PERFORMANCE.md defines them. */
#include "sched/coll.h"

#include <stdio.h>
#include <string.h>

static double factor_allreduce(uint32_t n)
{
    return 2.0 * (n - 1) / n;
}

static double factor_share(uint32_t n)
{
    return (double)(n - 1) / n;
}

static double factor_one(uint32_t n)
{
    (void)n;
    return 1.0;
}

static double factor_none(uint32_t n)
{
    (void)n;
    return 0.0;
}

static const struct coll table[COLL_COUNT] = {
    {.id = COLL_ALLREDUCE,
     .name = "allreduce",
     .nccl = "all_reduce",
     .reduces = true,
     .promise = "every rank's output is the reduction of all inputs",
     .busbw = "2(n-1)/n",
     .busbw_factor = factor_allreduce},
    {.id = COLL_ALLGATHER,
     .name = "allgather",
     .nccl = "all_gather",
     .out_per_rank = true,
     .promise = "every rank's output is all inputs, in rank order",
     .busbw = "(n-1)/n",
     .busbw_factor = factor_share},
    {.id = COLL_REDUCE_SCATTER,
     .name = "reduce_scatter",
     .nccl = "reduce_scatter",
     .reduces = true,
     .in_per_rank = true,
     .promise = "rank r's output is the reduction of all ranks' input blocks r",
     .busbw = "(n-1)/n",
     .busbw_factor = factor_share},
    {.id = COLL_ALLTOALL,
     .name = "alltoall",
     .nccl = "alltoall",
     .in_per_rank = true,
     .out_per_rank = true,
     .promise = "block s of rank r's output is block r of rank s's input",
     .busbw = "(n-1)/n",
     .busbw_factor = factor_share},
    {.id = COLL_BROADCAST,
     .name = "broadcast",
     .nccl = "broadcast",
     .rooted = true,
     .root_in = true,
     .promise = "every rank's output is the root's input",
     .busbw = "1",
     .busbw_factor = factor_one},
    {.id = COLL_REDUCE,
     .name = "reduce",
     .nccl = "reduce",
     .reduces = true,
     .rooted = true,
     .root_out = true,
     .promise = "the root's output is the reduction of all inputs",
     .busbw = "1",
     .busbw_factor = factor_one},
    {.id = COLL_GATHER,
     .name = "gather",
     .nccl = "gather",
     .rooted = true,
     .root_out = true,
     .out_per_rank = true,
     .promise = "the root's output is all inputs, in rank order",
     .busbw = "(n-1)/n",
     .busbw_factor = factor_share},
    {.id = COLL_SCATTER,
     .name = "scatter",
     .nccl = "scatter",
     .rooted = true,
     .root_in = true,
     .in_per_rank = true,
     .promise = "rank r's output is block r of the root's input",
     .busbw = "(n-1)/n",
     .busbw_factor = factor_share},
    {.id = COLL_SENDRECV,
     .name = "sendrecv",
     .nccl = "sendrecv",
     .promise = "rank r's output is the input of the rank before it, r-1 (0: the last)",
     .busbw = "1",
     .busbw_factor = factor_one},
    {.id = COLL_ALLTOALLV,
     .name = "alltoallv",
     .nccl = "alltoallv",
     .in_per_rank = true,
     .out_per_rank = true,
     .uneven = true,
     .promise = "as alltoall, with blocks of any lengths: --matrix, --imbalance",
     .busbw = "m/S, m = most that a rank sends to or receives from others",
     .busbw_factor = factor_share},
    {.id = COLL_BARRIER,
     .name = "barrier",
     .nccl = "barrier",
     .out_per_rank = true,
     .empty = true,
     .promise = "no rank is through before all have come: an allgather of nothing",
     .busbw = "0",
     .busbw_factor = factor_none},
};

const struct coll *coll_get(enum coll_id id)
{
    return &table[id];
}

/* Names in MPI, and so in OSU's benchmarks, where they are others. */
static const struct {
    const char *name;
    enum coll_id id;
} mpi_names[] = {
    {"bcast", COLL_BROADCAST},
    {"reduce_scatter_block", COLL_REDUCE_SCATTER},
    {"alltoall_v", COLL_ALLTOALLV},
};

static bool same(const char *text, size_t len, const char *name)
{
    return strlen(name) == len && strncmp(text, name, len) == 0;
}

const struct coll *coll_find(const char *name, struct err *err)
{
    const char *word = name;
    size_t len = strlen(word);
    if (len > 5 && strcmp(word + len - 5, "_perf") == 0) {
        len -= 5;
    } else if (strncmp(word, "osu_", 4) == 0) {
        word += 4;
        len -= 4;
    }
    for (size_t i = 0; i < COLL_COUNT; i++) {
        if (same(word, len, table[i].name) || same(word, len, table[i].nccl)) return &table[i];
    }
    for (size_t i = 0; i < sizeof mpi_names / sizeof *mpi_names; i++) {
        if (same(word, len, mpi_names[i].name)) return &table[mpi_names[i].id];
    }
    char valid[512] = "";
    for (size_t i = 0, at = 0; i < COLL_COUNT; i++) {
        at += (size_t)snprintf(valid + at, sizeof valid - at, "%s%s", i ? ", " : "", table[i].name);
    }
    err_add(err, ERR_USAGE, "unknown operation '%s': valid are %s", name, valid);
    return NULL;
}

uint32_t coll_blocks(const struct coll *coll, enum buf buf, uint32_t nranks)
{
    bool per_rank = buf == BUF_IN    ? coll->in_per_rank
                    : buf == BUF_OUT ? coll->out_per_rank
                                     : coll->in_per_rank || coll->out_per_rank;
    return per_rank ? nranks : 1;
}

void coll_alias(const struct coll *coll, uint32_t rank, enum buf *buf, uint32_t *block)
{
    if (coll->in_per_rank == coll->out_per_rank) { /* one and the same memory */
        if (*buf == BUF_IN) {
            *buf = BUF_OUT;
        }
    } else if (coll->out_per_rank) { /* the input is the output's block `rank` */
        if (*buf == BUF_IN) {
            *buf = BUF_OUT;
            *block = rank;
        }
    } else if (*buf == BUF_OUT) { /* the output is the input's block `rank` */
        *buf = BUF_IN;
        *block = rank;
    }
}

bool coll_has_input(const struct coll *coll, uint32_t root, uint32_t rank)
{
    return !coll->root_in || rank == root;
}

struct promise coll_after(const struct coll *coll, uint32_t nranks, uint32_t root, uint32_t rank,
                          uint32_t block)
{
    struct promise promise = {.content = CONTENT_VALUE, .block = block, .rank = rank};
    if (coll->root_out && rank != root) {
        promise.content = CONTENT_FREE;
        return promise;
    }
    switch (coll->id) {
    case COLL_ALLREDUCE:
    case COLL_REDUCE:
        promise.all = true;
        break;
    case COLL_ALLGATHER:
    case COLL_GATHER:
    case COLL_BARRIER:
        promise.block = 0;
        promise.rank = block;
        break;
    case COLL_REDUCE_SCATTER:
        promise.block = rank;
        promise.all = true;
        break;
    case COLL_ALLTOALL:
    case COLL_ALLTOALLV:
        promise.block = rank;
        promise.rank = block;
        break;
    case COLL_BROADCAST:
        promise.rank = root;
        break;
    case COLL_SCATTER:
        promise.block = rank;
        promise.rank = root;
        break;
    case COLL_SENDRECV:
        promise.rank = (rank + nranks - 1) % nranks;
        break;
    case COLL_COUNT:
        break;
    }
    return promise;
}

static uint32_t blocks_counted(const struct coll *coll, uint32_t nranks)
{
    return coll->in_per_rank || coll->out_per_rank ? nranks : 1;
}

size_t coll_block_count(const struct coll *coll, uint32_t nranks, size_t size, size_t esize)
{
    size_t count = size / esize / blocks_counted(coll, nranks);
    if (coll->empty) return 0;
    return count == 0 && size > 0 ? 1 : count;
}

size_t coll_size(const struct coll *coll, uint32_t nranks, size_t block_count, size_t esize)
{
    return block_count * esize * blocks_counted(coll, nranks);
}

void result_bandwidths(struct result *result)
{
    result->algbw_GBps = 0;
    if (result->time_us > 0) {
        result->algbw_GBps = (double)result->bytes / result->time_us / 1e3;
    }
    const struct coll *coll = coll_get(result->coll);
    double factor = coll->uneven ? result->busbw_factor : coll->busbw_factor(result->nranks);
    result->busbw_GBps = result->algbw_GBps * factor;
}
