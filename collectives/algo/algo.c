/* SPDX-License-Identifier: Apache-2.0
 * The table of algorithms, and what `auto` chooses from it. */
#include "algo/algo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/builders.h"
#include "base/mem.h"

enum { MOST_GROUPED = 1 << 20 };

/* Parts per block: the share of each channel in `parts` pieces; where the block is the whole
 * buffer and every rank owns a share of it, n times as many. */
static uint32_t per_rank(const struct algo_args *args)
{
    return args->nranks * pieces(args);
}

static uint32_t per_block(const struct algo_args *args)
{
    return pieces(args);
}

/* .. or as many as are left when the extra ones have been folded in: see recursive.c. */
static uint32_t per_power(const struct algo_args *args)
{
    return power_within(args->nranks) * pieces(args);
}

/* A row: operation, name, symmetry, default channels, paper; what it does; its cut, its builder. */
#define ROW(coll_, name_, symmetry_, channels_, paper_, what_, nparts_, build_, ...)               \
    {                                                                                              \
        .coll = (coll_), .name = (name_), .symmetry = (symmetry_), .channels = (channels_),        \
        .paper = (paper_), .what = (what_), .nparts = (nparts_), .build = (build_), __VA_ARGS__    \
    }

static const struct algo table[] = {
    ROW(COLL_ALLREDUCE, "ring", SYM_SHIFT, 1, "Patarasuk, Yuan 2009",
        "reduce-scatter and all-gather round a ring: least bytes, 2(n-1) steps", per_rank,
        ring_allreduce),
    ROW(COLL_ALLREDUCE, "tree", SYM_NONE, 2, "Sanders, Speck, Traeff 2009",
        "up and down two complementary binary trees: about 2 log2 n steps", per_block,
        tree_allreduce),
    ROW(COLL_ALLREDUCE, "oneshot", SYM_NONE, 1, "direct exchange",
        "all send all to all, everyone adds in rank order: one round", per_block,
        oneshot_allreduce),
    ROW(COLL_ALLREDUCE, "twoshot", SYM_SHIFT, 1, "direct exchange; Rabenseifner 2004",
        "each rank adds its share of all, then sends it to all: two rounds", per_rank,
        twoshot_allreduce),
    ROW(COLL_ALLREDUCE, "recursive_doubling", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "partners twice as far each step swap and add all: log2 n steps", per_block,
        doubling_allreduce),
    ROW(COLL_ALLREDUCE, "halving_doubling", SYM_NONE, 1, "Rabenseifner 2004",
        "halves, quarters, .. are swapped and added, then gathered: 2 log2 n steps, least bytes",
        per_power, halving_doubling_allreduce),
    ROW(COLL_ALLREDUCE, "swing", SYM_NONE, 1, "De Sensi, Bonato, Saam, Hoefler 2024",
        "halving-doubling with partners 1, 1, 3, 5, 11, .. away to either side in turn", per_power,
        swing_allreduce),
    ROW(COLL_ALLREDUCE, "hierarchical", SYM_NONE, 1, "Sistare, vandeVaart, Loh 1999",
        "adds up inside each node, then among the nodes: least bytes between nodes, 4 rounds",
        hierarchical_parts, hierarchical_allreduce, .grouped = true),
    ROW(COLL_ALLREDUCE, "nvls", SYM_NONE, 1, "NVIDIA NVLink SHARP 2022",
        "each node's switch adds up and multicasts: S up and S down per rank", nvls_parts,
        nvls_allreduce, .grouped = true, .agents = nvls_agents),
    ROW(COLL_ALLREDUCE, "sharp", SYM_NONE, 1, "Graham et al. 2016",
        "adds up inside each node, then in the switch between the nodes", sharp_parts,
        sharp_allreduce, .grouped = true, .agents = sharp_agents),
    ROW(COLL_ALLREDUCE, "nvls_sharp", SYM_NONE, 1, "Graham et al. 2016; NVIDIA NVLink SHARP 2022",
        "adds up in the switch of each node, then in the one between them", nvls_sharp_parts,
        nvls_sharp_allreduce, .grouped = true, .agents = nvls_sharp_agents),
    ROW(COLL_ALLGATHER, "ring", SYM_SHIFT, 1, "Patarasuk, Yuan 2009",
        "blocks go round a ring: n-1 steps", per_block, ring_allgather),
    ROW(COLL_ALLGATHER, "recursive_doubling", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "partners twice as far each step swap all they have: log2 n steps", per_block,
        doubling_allgather),
    ROW(COLL_ALLGATHER, "bruck", SYM_SHIFT, 1, "Bruck et al. 1997; Traeff 2024",
        "what a rank has doubles each step, for any n: log2 n steps, nearest first", per_block,
        bruck_allgather),
    ROW(COLL_ALLGATHER, "pat", SYM_SHIFT, 1, "Jeaugey 2025",
        "a binomial tree per rank, all at once, farthest first: log2 n steps", per_block,
        pat_allgather),
    ROW(COLL_ALLGATHER, "direct", SYM_SHIFT, 1, "direct exchange",
        "all send all their block: one round", per_block, direct_allgather),
    ROW(COLL_ALLGATHER, "nvls", SYM_NONE, 1, "NVIDIA NVLink SHARP 2022",
        "the switch multicasts each block: S/n up and (n-1)/n S down per rank", per_block,
        nvls_allgather, .agents = one_agent),
    ROW(COLL_REDUCE_SCATTER, "ring", SYM_SHIFT, 1, "Patarasuk, Yuan 2009",
        "partial sums go round a ring: n-1 steps", per_block, ring_reduce_scatter),
    ROW(COLL_REDUCE_SCATTER, "recursive_halving", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "partners half as far each step swap and add halves: log2 n steps", per_block,
        halving_reduce_scatter),
    ROW(COLL_REDUCE_SCATTER, "bruck", SYM_SHIFT, 1, "Bruck et al. 1997; Traeff 2024",
        "half of the sums are handed on each step, for any n: log2 n steps, nearest last",
        per_block, bruck_reduce_scatter),
    ROW(COLL_REDUCE_SCATTER, "pat", SYM_SHIFT, 1, "Jeaugey 2025",
        "a binomial tree per rank, all at once, farthest last: log2 n steps", per_block,
        pat_reduce_scatter),
    ROW(COLL_REDUCE_SCATTER, "direct", SYM_SHIFT, 1, "direct exchange",
        "all send each its block, who adds: one round", per_block, direct_reduce_scatter),
    ROW(COLL_REDUCE_SCATTER, "nvls", SYM_NONE, 1, "NVIDIA NVLink SHARP 2022",
        "the switch adds up each block: S up and S/n down per rank", per_block, nvls_reduce_scatter,
        .agents = one_agent),
    ROW(COLL_ALLTOALL, "pairwise", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "n rounds, each rank swaps blocks with one partner", per_block, pairwise_alltoall),
    ROW(COLL_ALLTOALL, "direct", SYM_SHIFT, 1, "direct exchange",
        "all sends at once, then all receives", per_block, direct_alltoall),
    ROW(COLL_ALLTOALL, "hierarchical", SYM_NONE, 1, "NVIDIA NCCL 2.12 (PXN) 2022",
        "blocks for a rank of another node are gathered inside the node first", per_block,
        hierarchical_alltoall, .grouped = true),
    ROW(COLL_ALLTOALL, "bruck", SYM_SHIFT, 1, "Bruck et al. 1997",
        "blocks travel the powers of two in their distance: log2 n rounds", per_block,
        bruck_alltoall),
    ROW(COLL_BROADCAST, "binomial", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "ranks that have the data double each round: log2 n steps", per_block, binomial_broadcast),
    ROW(COLL_BROADCAST, "chain", SYM_NONE, 1, "Traeff, Ripke 2008",
        "pieces go down a chain of ranks: one copy per rank, pipelined", per_block,
        chain_broadcast),
    ROW(COLL_BROADCAST, "scatter_allgather", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "shares go down a binomial tree, then round a ring: least bytes for long messages",
        per_rank, scatter_allgather_broadcast),
    ROW(COLL_BROADCAST, "double_tree", SYM_NONE, 2, "Sanders, Speck, Traeff 2009",
        "half of the data down each of two complementary binary trees", per_block,
        double_tree_broadcast),
    ROW(COLL_BROADCAST, "nvls", SYM_NONE, 1, "NVIDIA NVLink SHARP 2022",
        "the switch multicasts what the root sends: S up once, S down to each", per_block,
        nvls_broadcast, .agents = one_agent),
    ROW(COLL_REDUCE, "direct", SYM_NONE, 1, "direct exchange",
        "all send to the root, which adds in rank order: one round", per_block, direct_reduce),
    ROW(COLL_REDUCE, "binomial", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "sums go up a binomial tree: log2 n rounds", per_block, binomial_reduce),
    ROW(COLL_REDUCE, "chain", SYM_NONE, 1, "Traeff, Ripke 2008",
        "pieces go down a chain of ranks, each adds its own: pipelined", per_block, chain_reduce),
    ROW(COLL_REDUCE, "reduce_scatter_gather", SYM_NONE, 1, "Rabenseifner 2004",
        "recursive halving, then shares go up a binomial tree: for long messages", per_power,
        reduce_scatter_gather),
    ROW(COLL_REDUCE, "nvls", SYM_NONE, 1, "NVIDIA NVLink SHARP 2022",
        "the switch adds up: S up per rank, S down to the root", per_block, nvls_reduce,
        .agents = one_agent),
    ROW(COLL_GATHER, "direct", SYM_NONE, 1, "direct exchange",
        "all send their block to the root: one round", per_block, direct_gather),
    ROW(COLL_GATHER, "binomial", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "blocks of whole subtrees go up a binomial tree: log2 n rounds", per_block,
        binomial_gather),
    ROW(COLL_SCATTER, "direct", SYM_NONE, 1, "direct exchange",
        "the root sends each rank its block: one round", per_block, direct_scatter),
    ROW(COLL_SCATTER, "binomial", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "blocks of whole subtrees go down a binomial tree: log2 n rounds", per_block,
        binomial_scatter),
    ROW(COLL_SENDRECV, "shift", SYM_SHIFT, 1, "direct exchange", "each rank sends to the next",
        per_block, shift_sendrecv),
    ROW(COLL_ALLTOALLV, "pairwise", SYM_NONE, 1, "Thakur, Rabenseifner, Gropp 2005",
        "n rounds, each rank swaps blocks with one partner", per_block, pairwise_alltoall),
    ROW(COLL_ALLTOALLV, "direct", SYM_SHIFT, 1, "direct exchange",
        "all sends at once, then all receives", per_block, direct_alltoall),
    ROW(COLL_BARRIER, "dissemination", SYM_SHIFT, 1, "Hensgen, Finkel, Manber 1988",
        "in round k each tells the one 2^k further whom it has heard of: log2 n rounds", per_block,
        dissemination_barrier),
    ROW(COLL_BARRIER, "tree", SYM_NONE, 1, "Mellor-Crummey, Scott 1991",
        "the word goes up a binomial tree and down again: 2(n-1) messages in all", per_block,
        tree_barrier),
};

#undef ROW
enum { NALGOS = sizeof table / sizeof *table };

const struct algo *algo_table(size_t *count)
{
    *count = NALGOS;
    return table;
}

const struct algo *algo_find(enum coll_id coll, const char *name, struct err *err)
{
    char valid[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < NALGOS; i++) {
        if (table[i].coll != coll) {
            continue;
        }
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
        at +=
            (size_t)snprintf(valid + at, sizeof valid - at, "%s%s", at ? ", " : "", table[i].name);
    }
    err_add(err, ERR_USAGE, "%s has no algorithm '%s': valid are %s", coll_get(coll)->name, name,
            valid);
    return NULL;
}

const struct algo *algo_drawn(void)
{
    static const struct algo drawn = {.name = "from a file"};
    return &drawn;
}

uint64_t algo_nodes_ranks(const uint32_t *nodes, uint32_t nnodes)
{
    uint64_t ranks = 0;
    for (uint32_t k = 0; k < nnodes; k++)
        ranks += nodes[k];
    return ranks;
}

int algo_check(const struct algo_args *args, struct err *err)
{
    int bad = 0;
    if (args->nranks == 0) {
        bad |= err_add(err, ERR_USAGE, "a collective needs at least 1 rank, not 0");
    } else if (args->root >= args->nranks) {
        bad |= err_add(err, ERR_USAGE, "root %u is no rank: with %u ranks it is 0 to %u",
                       args->root, args->nranks, args->nranks - 1);
    }
    uint64_t grouped = algo_nodes_ranks(args->nodes, args->nnodes);
    if (args->nnodes && grouped != args->nranks) {
        bad |= err_add(err, ERR_USAGE, "the nodes have %llu ranks in all; there are %u ranks",
                       (unsigned long long)grouped, args->nranks);
    }
    if (args->channels == 0 || args->channels > 4096 || args->parts == 0) {
        bad |= err_add(err, ERR_USAGE,
                       "%u channels with %u parts: channels are 1 to 4096, parts at least 1",
                       args->channels, args->parts);
    }
    double chunks = (double)args->nranks * args->nranks * args->channels * args->parts;
    if (!bad && chunks > 0x1p31) {
        bad |=
            err_add(err, ERR_USAGE, "%u ranks x %u channels x %u parts give more than 2^31 chunks",
                    args->nranks, args->channels, args->parts);
    }
    return bad;
}

/* One group of the list, "4" or "2x4": its end, or NULL. */
static const char *read_group(const char *text, unsigned long long *times, unsigned long long *size)
{
    char *end;
    if (*text < '0' || *text > '9') return NULL;
    *times = 1;
    *size = strtoull(text, &end, 10);
    if (*end == 'x' && end[1] >= '0' && end[1] <= '9') {
        *times = *size;
        *size = strtoull(end + 1, &end, 10);
    }
    bool fits = *times >= 1 && *size >= 1 && *times <= MOST_GROUPED && *size <= MOST_GROUPED;
    return fits && (*end == '+' || *end == '\0') ? end : NULL;
}

int algo_nodes_parse(const char *text, uint32_t **nodes, uint32_t *nnodes, struct err *err)
{
    size_t count = 0, cap = 0;
    unsigned long long times, size, ranks = 0;
    uint32_t *list = NULL;
    const char *at = text;
    do {
        at = read_group(at, &times, &size);
        ranks += at ? times * size : 0;
        for (; at && ranks <= MOST_GROUPED && times > 0; times--) {
            MEM_GROW(list, count, cap);
            list[count++] = (uint32_t)size;
        }
    } while (at && ranks <= MOST_GROUPED && *at++ == '+');
    if (!at || ranks > MOST_GROUPED) {
        free(list);
        return err_add(err, ERR_USAGE,
                       "--nodes %s: not a list of node sizes such as 2+3 or 2x4 (2 nodes of 4 "
                       "ranks), 1 rank or more each, %d in all at most",
                       text, MOST_GROUPED);
    }
    *nodes = list;
    *nnodes = (uint32_t)count;
    return 0;
}

struct sched *algo_build(const struct algo *algo, const struct algo_args *args, bool unroll,
                         struct err *err)
{
    if (algo_check(args, err)) {
        return NULL;
    }
    if (algo->agents && !algo->grouped && args->nnodes > 1) {
        err_add(err, ERR_USAGE,
                "%s %s is for ranks behind one switch, which adds up or multicasts; these are %u "
                "nodes",
                coll_get(algo->coll)->name, algo->name, args->nnodes);
        return NULL;
    }
    struct sched *sched =
        sched_new(algo->name, algo->coll, args->nranks, args->root, algo->nparts(args));
    sched->nchannels = args->channels;
    sched->relative = algo->symmetry == SYM_SHIFT && !unroll;
    if (algo->agents) {
        sched_set_agents(sched, algo->agents(args));
    }
    uint32_t nprogs = sched->relative ? 1 : sched_ends(sched);
    for (uint32_t rank = 0; rank < nprogs; rank++) {
        algo->build(sched_prog(sched, rank), args, rank);
    }
    return sched;
}

/* ---- auto ---- */

/* A row holds for calls of at most `most` bytes on at most `ranks` ranks (POWERS: on powers of two)
 * that reach each other so; the first that fits is taken. SHARED and PRIVATE are set by
 * results/choose.py from measurements of 2, 4 and 8 ranks on 2 cores with shared memory; among
 * equals the one that was there before; more than 8 ranks by the number of messages. NET and HOSTS
 * are for networks, where a message costs more than in memory and a link carries one at a time:
 * from Thakur, Rabenseifner, Gropp 2005, and measured on 4 hosts with links of 1 Gbit/s. */
enum {
    SHARED = 1 << ALGO_SHARED,
    PRIVATE = 1 << ALGO_PRIVATE,
    MEMORY = SHARED | PRIVATE,
    FLAT = 1 << ALGO_NETWORK,
    HOSTS = 1 << ALGO_HOSTS,
    NET = FLAT | HOSTS,
    ANY = MEMORY | NET,
    POWERS = 0, /* of .ranks */
};

struct range_row {
    enum coll_id coll;
    unsigned reach; /* bit per enum algo_reach */
    uint32_t ranks;
    size_t most;
    const char *algo;
    uint32_t channels, parts;
};

static const struct range_row ranges[] = {
    {COLL_ALLREDUCE, PRIVATE, 2, 128 << 10, "oneshot", 1, 1},
    {COLL_ALLREDUCE, SHARED, 2, 2 << 10, "oneshot", 1, 1},
    {COLL_ALLREDUCE, MEMORY, 2, SIZE_MAX, "twoshot", 1, 1},
    {COLL_ALLREDUCE, PRIVATE, 16, 16 << 10, "oneshot", 1, 1},
    {COLL_ALLREDUCE, SHARED, 16, 8 << 10, "oneshot", 1, 1},
    {COLL_ALLREDUCE, SHARED, 64, SIZE_MAX, "twoshot", 1, 1},
    {COLL_ALLREDUCE, PRIVATE, 4, 1 << 20, "halving_doubling", 1, 1},
    {COLL_ALLREDUCE, PRIVATE, 4, SIZE_MAX, "twoshot", 1, 1},
    {COLL_ALLREDUCE, PRIVATE, 64, 64 << 10, "twoshot", 1, 1},
    {COLL_ALLREDUCE, PRIVATE, 64, 256 << 10, "halving_doubling", 1, 1},
    {COLL_ALLREDUCE, PRIVATE, 64, SIZE_MAX, "tree", 2, 1},
    {COLL_ALLREDUCE, MEMORY, UINT32_MAX, 64 << 10, "tree", 2, 1},
    {COLL_ALLREDUCE, MEMORY, UINT32_MAX, SIZE_MAX, "ring", 1, 1},
    {COLL_ALLREDUCE, NET, UINT32_MAX, 16 << 10, "recursive_doubling", 1, 1},
    {COLL_ALLREDUCE, NET, POWERS, SIZE_MAX, "halving_doubling", 1, 1},
    {COLL_ALLREDUCE, HOSTS, UINT32_MAX, SIZE_MAX, "hierarchical", 1, 1},
    {COLL_ALLREDUCE, FLAT, 16, SIZE_MAX, "twoshot", 1, 1},
    {COLL_ALLREDUCE, NET, UINT32_MAX, 256 << 10, "halving_doubling", 1, 1},
    {COLL_ALLREDUCE, NET, UINT32_MAX, SIZE_MAX, "ring", 1, 1},
    {COLL_ALLGATHER, MEMORY, 2, SIZE_MAX, "recursive_doubling", 1, 1},
    {COLL_ALLGATHER, SHARED, 64, SIZE_MAX, "direct", 1, 1},
    {COLL_ALLGATHER, PRIVATE, 4, SIZE_MAX, "direct", 1, 1},
    {COLL_ALLGATHER, PRIVATE, 64, 256 << 10, "direct", 1, 1},
    {COLL_ALLGATHER, MEMORY, UINT32_MAX, 64 << 10, "bruck", 1, 1},
    {COLL_ALLGATHER, MEMORY, UINT32_MAX, SIZE_MAX, "ring", 1, 1},
    {COLL_ALLGATHER, NET, POWERS, SIZE_MAX, "recursive_doubling", 1, 1},
    {COLL_ALLGATHER, NET, UINT32_MAX, 64 << 10, "bruck", 1, 1},
    {COLL_ALLGATHER, FLAT, 16, SIZE_MAX, "direct", 1, 1},
    {COLL_ALLGATHER, NET, UINT32_MAX, SIZE_MAX, "ring", 1, 1},
    {COLL_REDUCE_SCATTER, MEMORY, 2, SIZE_MAX, "ring", 1, 1},
    {COLL_REDUCE_SCATTER, MEMORY, 64, SIZE_MAX, "direct", 1, 1},
    {COLL_REDUCE_SCATTER, MEMORY, UINT32_MAX, 64 << 10, "bruck", 1, 1},
    {COLL_REDUCE_SCATTER, MEMORY, UINT32_MAX, SIZE_MAX, "ring", 1, 1},
    {COLL_REDUCE_SCATTER, NET, POWERS, SIZE_MAX, "recursive_halving", 1, 1},
    {COLL_REDUCE_SCATTER, NET, UINT32_MAX, 64 << 10, "bruck", 1, 1},
    {COLL_REDUCE_SCATTER, FLAT, 16, SIZE_MAX, "direct", 1, 1},
    {COLL_REDUCE_SCATTER, NET, UINT32_MAX, SIZE_MAX, "ring", 1, 1},
    {COLL_ALLTOALL, MEMORY, UINT32_MAX, SIZE_MAX, "direct", 1, 1},
    {COLL_ALLTOALL, NET, 8, SIZE_MAX, "direct", 1, 1},
    {COLL_ALLTOALL, NET, UINT32_MAX, 2 << 10, "bruck", 1, 1},
    {COLL_ALLTOALL, NET, UINT32_MAX, SIZE_MAX, "direct", 1, 1},
    {COLL_BROADCAST, PRIVATE, 2, SIZE_MAX, "chain", 1, 1},
    {COLL_BROADCAST, SHARED, 2, 64 << 10, "chain", 1, 1},
    {COLL_BROADCAST, MEMORY, 4, 16 << 10, "binomial", 1, 1},
    {COLL_BROADCAST, PRIVATE, 8, 256 << 10, "chain", 1, 1},
    {COLL_BROADCAST, SHARED, 4, 256 << 10, "chain", 1, 1},
    {COLL_BROADCAST, SHARED, 8, 16 << 10, "chain", 1, 1},
    {COLL_BROADCAST, MEMORY, 8, SIZE_MAX, "chain", 1, 4},
    {COLL_BROADCAST, MEMORY, UINT32_MAX, 256 << 10, "binomial", 1, 1},
    {COLL_BROADCAST, MEMORY, UINT32_MAX, SIZE_MAX, "chain", 1, 4},
    {COLL_BROADCAST, NET, UINT32_MAX, 32 << 10, "binomial", 1, 1},
    {COLL_BROADCAST, NET, 16, SIZE_MAX, "chain", 1, 1},
    {COLL_BROADCAST, NET, UINT32_MAX, 1 << 20, "scatter_allgather", 1, 1},
    {COLL_BROADCAST, NET, UINT32_MAX, SIZE_MAX, "chain", 1, 4},
    {COLL_REDUCE, MEMORY, 2, SIZE_MAX, "direct", 1, 1},
    {COLL_REDUCE, SHARED, 4, 32 << 10, "binomial", 1, 1},
    {COLL_REDUCE, SHARED, 8, 16 << 10, "binomial", 1, 1},
    {COLL_REDUCE, SHARED, 64, SIZE_MAX, "direct", 1, 1},
    {COLL_REDUCE, PRIVATE, 4, SIZE_MAX, "binomial", 1, 1},
    {COLL_REDUCE, PRIVATE, 8, 16 << 10, "binomial", 1, 1},
    {COLL_REDUCE, PRIVATE, 8, 256 << 10, "chain", 1, 1},
    {COLL_REDUCE, MEMORY, UINT32_MAX, SIZE_MAX, "binomial", 1, 1},
    {COLL_REDUCE, NET, UINT32_MAX, 32 << 10, "binomial", 1, 1},
    {COLL_REDUCE, NET, 16, SIZE_MAX, "chain", 1, 1},
    {COLL_REDUCE, NET, UINT32_MAX, 1 << 20, "reduce_scatter_gather", 1, 1},
    {COLL_REDUCE, NET, UINT32_MAX, SIZE_MAX, "chain", 1, 4},
    {COLL_GATHER, ANY, 4, SIZE_MAX, "direct", 1, 1},
    {COLL_GATHER, ANY, UINT32_MAX, 4 << 10, "binomial", 1, 1},
    {COLL_GATHER, ANY, UINT32_MAX, SIZE_MAX, "direct", 1, 1},
    {COLL_SCATTER, ANY, UINT32_MAX, SIZE_MAX, "direct", 1, 1},
    {COLL_SENDRECV, ANY, UINT32_MAX, SIZE_MAX, "shift", 1, 1},
    {COLL_ALLTOALLV, ANY, UINT32_MAX, SIZE_MAX, "direct", 1, 1},
    {COLL_BARRIER, ANY, UINT32_MAX, SIZE_MAX, "dissemination", 1, 1},
};

static bool holds(const struct range_row *row, enum coll_id coll, uint32_t nranks, size_t size,
                  enum algo_reach reach)
{
    bool ranks = row->ranks == POWERS ? (nranks & (nranks - 1)) == 0 : nranks <= row->ranks;
    return row->coll == coll && row->reach >> reach & 1 && ranks && size <= row->most;
}

struct algo_choice algo_auto(enum coll_id coll, uint32_t nranks, size_t size, enum algo_reach reach)
{
    const struct range_row *row = ranges;
    while (!holds(row, coll, nranks, size, reach)) {
        row++; /* the last row of each collective holds for all */
    }
    struct err none = ERR_INIT;
    return (struct algo_choice){algo_find(coll, row->algo, &none), row->channels, row->parts};
}
