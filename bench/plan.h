/* SPDX-License-Identifier: Apache-2.0
 * What a run will do, as plain data: the parent makes it from the options, puts it into the memory
 * that the ranks share, and every rank walks through the same rows in the same order. It never
 * changes once the ranks run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algo/algo.h"
#include "kernels/kernels.h"
#include "sched/coll.h"
#include "sched/sweep.h"
#include "sched/traffic.h"

enum { PLAN_ALGO_AUTO = -1, PLAN_ALGO_DRAWN = -2, PLAN_WIRE_AUTO = -1 };
enum { OUT_OF_PLACE, IN_PLACE, NPLACES };
enum average { AVERAGE_RANK0, AVERAGE_MEAN, AVERAGE_MIN, AVERAGE_MAX };

/* What the ranks do with each row. */
enum mode { MODE_TIME, MODE_TRACE, MODE_REPEAT };

/* What the operation is compared with, sample by sample; MODE_TIME alone. */
enum contest {
    CONTEST_NONE,
    CONTEST_MPI,     /* the MPI library's call */
    CONTEST_NCCL,    /* NCCL's call */
    CONTEST_GROUPS,  /* one group alone, then all groups at once */
    CONTEST_OVERLAP, /* the operation alone, then beside compute */
    CONTEST_SKEW,    /* all ranks on time, then one of them late */
};

enum cadence { CADENCE_BACK_TO_BACK, CADENCE_ISOLATED };

struct plan {
    size_t bytes; /* of this struct with the lists at its end */
    enum mode mode;
    enum contest contest;
    enum coll_id coll;
    uint32_t nranks, root; /* of one group */
    uint32_t ngroups;      /* that run the collective at once; ranks in all: plan_world() */
    uint32_t cores;        /* that the parent, and so all ranks together, may use */
    struct sweep sweep;
    uint32_t ndtypes, nops, nalgos;
    enum dtype dtypes[DT_COUNT];
    enum redop ops[OP_COUNT];
    uint32_t channels, parts; /* 0: the algorithm's own, or what auto chooses */
    int wire;                 /* enum wire_mode, or PLAN_WIRE_AUTO */
    size_t slice_bytes;       /* 0: chosen by the executor */
    uint32_t depth;           /* 0: chosen by the executor */
    uint32_t transport;       /* number in transport_table() */
    bool shared;              /* buffers that peers may map */
    bool device;              /* buffers lie in the memory of GPUs, */
    bool oversubscribe;       /* .. which ranks may share, */
    bool apart;               /* .. some pairs of them without peer access, */
    uint32_t most_lanes;      /* .. blocks that run at once for each rank, at least; */
    bool graph;               /* .. operations are launched as graphs */
    bool nccl_hostid;         /* CONTEST_NCCL: see struct nccl_spec, hostid_trick */
    size_t device_bytes;      /* .. memory that each rank needs there; set by fit */
    bool threads;             /* ranks are threads */
    bool place[NPLACES];      /* placements to run */
    uint64_t warmup;          /* operations before the timed ones */
    bool warm_longer;         /* .. and as many more as PLAN_WARM_S takes */
    uint64_t samples;         /* exactly so many; 0: until they are sure, see PLAN_SAMPLES_* */
    double precision;         /* sure: the half-width of the median's 95 % interval / median */
    double cap_s;             /* .. or when so much time went into a row's placement */
    uint64_t samples_cap;     /* room for samples per rank */
    uint64_t batch;           /* least operations per sample */
    uint64_t rounds;          /* rounds of the data check; 0: none */
    enum cadence cadence;
    bool cold;        /* buffers are flushed from the caches before each sample */
    uint64_t skew_ns; /* CONTEST_SKEW: how late one rank is */
    uint64_t looks;   /* CONTEST_OVERLAP: at the operation, during compute */
    bool shuffled;    /* rows are measured in an order drawn from `seed` */
    uint64_t seed;
    uint64_t launches;    /* how often the ranks are started; 0: nobody knows yet */
    uint64_t launch;      /* from 1: how often the ranks were started so far */
    enum average average; /* over the ranks, of each sample */
    uint32_t nnodes;      /* node groups; 0: all ranks are one node */
    size_t nodes_at;      /* bytes from the start of the plan: see plan_nodes */
    uint32_t nhosts;      /* hosts; 0: all ranks are on this one */
    size_t hosts_at;      /* see plan_host_ranks */
    char iface[64];       /* for connections; "": chosen */
    char provider[64];    /* of libfabric; "": chosen */
    uint32_t connections; /* per pair of ranks; 0: chosen */
    size_t shares_at;     /* see plan_shares; 0: there are none */
    size_t drawn_at;      /* PLAN_ALGO_DRAWN: see plan_drawn; else 0 */
    uint32_t drawn_parts; /* parts per block of that schedule, */
    char drawn_name[32];  /* .. and its name */
    char cut[48];         /* what else tells this call from others: "imbalance 2", .. or "" */
    int32_t algos[];      /* rows of algo_table(), PLAN_ALGO_AUTO, or PLAN_ALGO_DRAWN alone */
};

/* Without -n a row gets samples until its median is sure, within these limits. */
enum { PLAN_SAMPLES_LEAST = 20, PLAN_SAMPLES_MOST = 4000, PLAN_WARMUP = 6, PLAN_WARM_MOST = 1000 };
#define PLAN_WARM_S 0.002

/* Ranks in all groups together. */
static inline uint32_t plan_world(const struct plan *plan)
{
    return plan->nranks * plan->ngroups;
}

/* Ranks of each of the nnodes node groups. */
static inline const uint32_t *plan_nodes(const struct plan *plan)
{
    return (const uint32_t *)(const void *)((const char *)plan + plan->nodes_at);
}

/* Ranks on each of the nhosts hosts; NULL: there is one host. */
static inline const uint32_t *plan_host_ranks(const struct plan *plan)
{
    return plan->nhosts ? (const uint32_t *)(const void *)((const char *)plan + plan->hosts_at)
                        : NULL;
}

/* alltoallv: the share of each pair of ranks in the traffic, nranks x nranks; else NULL. */
static inline const double *plan_shares(const struct plan *plan)
{
    return plan->shares_at ? (const double *)(const void *)((const char *)plan + plan->shares_at)
                           : NULL;
}

/* The file with the schedule to run. */
static inline const char *plan_drawn(const struct plan *plan)
{
    return (const char *)plan + plan->drawn_at;
}

/* Puts `bytes` bytes behind the plan, which moves: gives it, and where they lie in it in *at. */
struct plan *plan_append(struct plan *plan, const void *data, size_t bytes, size_t *at);

/* Whether it is compared with a library. */
static inline bool plan_library(const struct plan *plan)
{
    return plan->contest == CONTEST_MPI || plan->contest == CONTEST_NCCL;
}

/* Series of samples that a placement has: the operation's, and those of what it is compared with.
 */
static inline uint32_t plan_series(const struct plan *plan)
{
    return plan->contest == CONTEST_NONE ? 1 : 2;
}

/* One row of the table, and where the walk stands. */
struct plan_row {
    uint64_t index; /* from 0 */
    enum dtype dtype;
    enum redop op;
    uint64_t asked; /* bytes: the size of the sweep, before rounding to whole elements */
    size_t bytes;   /* S */
    size_t block_count, block_bytes; /* alltoallv: in the mean */
    size_t longest_bytes;            /* of the longest block of any rank */
    size_t in_bytes, out_bytes;      /* alltoallv: of the rank that has most */
    struct algo_choice choice;
    uint64_t merged; /* sizes of the sweep behind this one that round to the same S */
    uint32_t dtype_at, op_at, algo_at;
};

/* The traffic of a row of alltoallv, freed with free(); NULL for other operations. */
struct traffic *plan_traffic(const struct plan *plan, const struct plan_row *row);

/* The first row; there is always one. */
void plan_first(const struct plan *plan, struct plan_row *row);

/* Goes on to the next row; false behind the last. Types are outermost, then operators, sizes and
 * algorithms. Sizes that round to the size before are left out. */
bool plan_next(const struct plan *plan, struct plan_row *row);

/* The rows in the order in which they are measured: that of the plan, or drawn by lot from its seed
 * and launch, the same on all ranks; more than PLAN_SHUFFLE_MOST rows stay in order. Usage:
 *
 *     plan_walk_open(plan, &walk);
 *     do { .. walk.row .. } while (plan_walk_next(plan, &walk));
 *     plan_walk_close(&walk); */
enum { PLAN_SHUFFLE_MOST = 10000 };

struct plan_walk {
    struct plan_row row;   /* at hand */
    struct plan_row *rows; /* all, shuffled; NULL: in order */
    uint64_t count, at;
};
void plan_walk_open(const struct plan *plan, struct plan_walk *walk);
bool plan_walk_next(const struct plan *plan, struct plan_walk *walk);
void plan_walk_close(struct plan_walk *walk);

/* Counted by arithmetic: a sweep may have billions of sizes. */
uint64_t plan_rows(const struct plan *plan);

/* Sizes of the sweep for element type number `dtype_at`, also those that are left out. */
uint64_t plan_sizes(const struct plan *plan, uint32_t dtype_at);

/* The row of the k-th (from 0) of these sizes, as it would be if it were not left out, with the
 * first operator; `index` and `merged` are 0. */
void plan_at(const struct plan *plan, uint32_t dtype_at, uint32_t algo_at, uint64_t k,
             struct plan_row *row);

/* The name of a row's algorithm, and its parts per block. */
const char *plan_algo_name(const struct plan *plan, const struct plan_row *row);
uint32_t plan_nparts(const struct plan *plan, const struct plan_row *row);

/* What the algorithm is built with. */
struct algo_args plan_algo_args(const struct plan *plan, const struct plan_row *row);

/* The operator to use for data: OP_COUNT when the collective does not reduce. */
enum redop plan_data_op(const struct plan *plan, const struct plan_row *row);

/* Bytes of a rank's buffers that one placement of a row uses, and where they start in its memory.
 *
 *     out of place   | input | output |      the output starts at a multiple of PLAN_ALIGN
 *     in place       | larger of the two |   the smaller one is its block `rank`
 */
enum { PLAN_ALIGN = 128 };
enum { SLOTS_TOUCHED = 512 << 10 }; /* bytes: a slot and a block, to measure handing over with */

struct plan_places {
    size_t in, out; /* offsets of the buffers */
    size_t bytes;   /* used in all */
    size_t touched; /* memory that the rank works on: with private buffers, SLOTS_TOUCHED more */
};
struct plan_places plan_places(const struct plan *plan, const struct plan_row *row, uint32_t rank,
                               bool in_place);

/* The most that `rank` works on in any row, in bytes. */
size_t plan_touched(const struct plan *plan, uint32_t rank);
