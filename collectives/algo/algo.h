/* SPDX-License-Identifier: Apache-2.0
 * The table of all algorithms. A row is everything there is to know about one: adding an
 * algorithm is one builder function and one row. */
#pragma once

#include "base/err.h"
#include "sched/sched.h"

struct algo_args {
    uint32_t nranks, root;
    uint32_t channels; /* >= 1: independent copies of the pattern on their own share of the data */
    uint32_t parts;    /* >= 1: pieces that each channel's share is cut into further */
    uint32_t nnodes;   /* node groups of consecutive ranks; 0: all ranks are one node. For rows with
                          agents: those behind one switch that reduces */
    const uint32_t *nodes; /* .. ranks in each, >= 1, nranks in all; borrowed */
    uint32_t leaf_nodes;   /* so many nodes in a row are under one switch of the network; 0: all */
};

struct algo {
    enum coll_id coll;
    const char *name;
    enum symmetry symmetry; /* SHIFT: rank r's program is rank 0's, turned by r (root 0 or none) */
    uint32_t channels;      /* default */
    const char *paper;
    const char *what; /* one line for the listing */
    /* Parts per block for these arguments. */
    uint32_t (*nparts)(const struct algo_args *args);
    /* Emits the program of `rank`, or of an agent (sched.h: ends). */
    void (*build)(struct prog *prog, const struct algo_args *args, uint32_t rank);
    bool grouped; /* looks at the node groups; a row with agents that does not needs a single one */
    /* Agents for these arguments; NULL: a row without. */
    uint32_t (*agents)(const struct algo_args *args);
};

/* Whether it runs on ranks alone: else it can be simulated, but no executor here has agents. */
static inline bool algo_runs_on_ranks(const struct algo *algo)
{
    return !algo->agents;
}

/* All rows, in listing order. */
const struct algo *algo_table(size_t *count);

/* The row of (coll, name); unknown: the names valid for the collective (ERR_USAGE) and NULL. */
const struct algo *algo_find(enum coll_id coll, const char *name, struct err *err);

/* The row that stands for a schedule from a file: of any operation, and not to be built. */
const struct algo *algo_drawn(void);

/* Arguments in range: root < nranks, channels and parts >= 1, no more than 2^31 chunks. Adds a
 * sentence for each broken rule; 0 or -1. */
int algo_check(const struct algo_args *args, struct err *err);

/* Reads node groups: "2+3" (ranks of each) or "2x4" (2 nodes of 4 ranks), or both: "2x4+1". 0 with
 * *nodes (freed with free()) and *nnodes >= 1, or -1 with a sentence (ERR_USAGE). */
int algo_nodes_parse(const char *text, uint32_t **nodes, uint32_t *nnodes, struct err *err);

/* Ranks of all node groups together. */
uint64_t algo_nodes_ranks(const uint32_t *nodes, uint32_t nnodes);

/* Builds the schedule: one relative program if the row says so and `unroll` is false, else one
 * program per rank and agent. Arguments are checked (root < nranks, channels and parts >= 1,
 * nranks >= 1, parts x channels x nranks within 2^31, one node where the row's agent serves one);
 * NULL with the sentence on error. */
struct sched *algo_build(const struct algo *algo, const struct algo_args *args, bool unroll,
                         struct err *err);

/* What `auto` means. */
struct algo_choice {
    const struct algo *algo;
    uint32_t channels, parts;
};

/* How ranks reach each other: in memory, with buffers that peers can map or not; over a network; or
 * over a network between hosts with several ranks each. */
enum algo_reach { ALGO_SHARED, ALGO_PRIVATE, ALGO_NETWORK, ALGO_HOSTS };

/* The best row for a call of `size` bytes (S) on `nranks` ranks: from the ranges of the table in
 * algo.c. Cannot fail for a valid collective. */
struct algo_choice algo_auto(enum coll_id coll, uint32_t nranks, size_t size,
                             enum algo_reach reach);
