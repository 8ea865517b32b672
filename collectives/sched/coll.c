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

static const struct coll table[COLL_COUNT] = {
    {COLL_ALLREDUCE, "allreduce", "all_reduce", true, false, false, false,
     "every rank's output is the reduction of all inputs", "2(n-1)/n", factor_allreduce},
    {COLL_ALLGATHER, "allgather", "all_gather", false, false, false, true,
     "every rank's output is all inputs, in rank order", "(n-1)/n", factor_share},
    {COLL_REDUCE_SCATTER, "reduce_scatter", "reduce_scatter", true, false, true, false,
     "rank r's output is the reduction of all ranks' input blocks r", "(n-1)/n", factor_share},
    {COLL_ALLTOALL, "alltoall", "alltoall", false, false, true, true,
     "block s of rank r's output is block r of rank s's input", "(n-1)/n", factor_share},
    {COLL_BROADCAST, "broadcast", "broadcast", false, true, false, false,
     "every rank's output is the root's input", "1", factor_one},
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
    char valid[256] = "";
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
    return !coll->rooted || rank == root;
}

struct promise coll_after(const struct coll *coll, uint32_t root, uint32_t rank, uint32_t block)
{
    struct promise promise = {.content = CONTENT_VALUE, .block = block, .rank = rank};
    switch (coll->id) {
    case COLL_ALLREDUCE:
        promise.all = true;
        break;
    case COLL_ALLGATHER:
        promise.block = 0;
        promise.rank = block;
        break;
    case COLL_REDUCE_SCATTER:
        promise.block = rank;
        promise.all = true;
        break;
    case COLL_ALLTOALL:
        promise.block = rank;
        promise.rank = block;
        break;
    case COLL_BROADCAST:
        promise.rank = root;
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
    result->busbw_GBps = result->algbw_GBps * coll_get(result->coll)->busbw_factor(result->nranks);
}
