/* SPDX-License-Identifier: Apache-2.0
 * The pairwise matrix: what its files share. A pair is a group of two ranks that runs schedules of
 * two ranks through the executor: nothing here moves data itself.
 *
 *     leg     schedule                       mode        operations of one sample
 *     there   broadcast from the first       latency     window x (there, back); half of it
 *     back    broadcast from the second      there       window x there, meet
 *     both    allgather                      back        window x back, meet
 *     meet    allgather of 0 bytes           both        window x both, meet
 *     word    broadcast of one word          at once     as both, all pairs of a round together
 *
 * All are in place, so no rank copies within its own memory. Meeting says that the window has
 * arrived; the clock is that of the pair's first rank. Pairs are met in rounds, as in a
 * tournament: in each round every rank has one partner (none for one of them if their number is
 * odd), and after nranks - 1 rounds (nranks if odd) each pair was met once. In a round the pairs
 * are measured one after the other while all other ranks sleep, then all at once.
 *
 * What disturbs a machine lasts for a while: so the tournament of all sizes is held several times
 * over (passes), and of a pair's visits the best one counts. */
#pragma once

#include <stdatomic.h>

#include "bench/ready.h"
#include "exec/world.h"
#include "kernels/data.h"

enum p2p_leg { LEG_THERE, LEG_BACK, LEG_BOTH, LEG_MEET, LEG_WORD, NLEGS };
enum p2p_mode { P2P_LATENCY, P2P_THERE, P2P_BACK, P2P_BOTH, P2P_AT_ONCE, P2P_NMODES };

#define P2P_ALL UINT32_MAX /* as a rank: every one */

enum { P2P_SAMPLES_LEAST = 5, P2P_SAMPLES_MOST = 1000, P2P_WINDOW_MOST = 1024 };

/* Elements of 2 bytes: sizes are whole numbers of them. */
#define P2P_DTYPE DT_BFLOAT16

/* ---- what is run, and the blob of the world: | plan | board | a place per rank | ------------- */

struct p2p_plan {
    uint32_t nranks, cores;
    uint32_t transport; /* number in transport_table() */
    int wire;           /* enum wire_mode, or PLAN_WIRE_AUTO */
    bool shared, threads;
    bool device, oversubscribe, apart; /* as in struct plan */
    uint32_t most_lanes;
    size_t device_bytes; /* memory of a rank on its GPU */
    uint64_t samples;    /* per cell; 0: as many as fit cell_s, P2P_SAMPLES_LEAST to _MOST */
    double cell_s;       /* wanted time of a cell: one mode of one pair in one pass */
    uint32_t passes;     /* visits to each pair */
    uint32_t at_once; /* passes, the first ones, in which all pairs are also measured at once; 0 */
                      /* where a round has one pair */
    uint32_t slow_from, slow_to; /* planted: the one waits before each send to the other or all, */
    uint64_t slow_ns;            /* so long; 0: none */
    uint32_t nrounded;           /* sizes asked for that were no whole elements */
    uint32_t nsizes;
    uint64_t sizes[]; /* bytes, ascending */
};

/* How far all are. */
struct p2p_board {
    _Alignas(128) _Atomic uint64_t turn;     /* pair of this round that is measured alone */
    _Alignas(128) _Atomic uint64_t finished; /* pairs with all samples at once, in all rounds */
};

/* A rank's place: written before the pair meets, read behind it; but the bell is rung by others. */
struct p2p_place {
    _Alignas(128) _Atomic uint32_t bell; /* times this rank was woken: see p2p_rank.c */
    _Alignas(128) _Atomic uint64_t met;  /* GPUs: times this rank came to meet the other */
    _Alignas(128) uint64_t value;        /* GPUs: the first's decision */
    struct p2p_found {                   /* published to other hosts */
        uint64_t wrong;                  /* elements of this pair and size that arrived wrong */
        struct data_bad bad;             /* the first of them */
    } found;
};

size_t p2p_plan_bytes(uint32_t nsizes);
size_t p2p_blob_bytes(uint32_t nranks, uint32_t nsizes);

/* Of the plan in the blob. */
struct p2p_board *p2p_board(struct p2p_plan *plan);
struct p2p_place *p2p_place(struct p2p_plan *plan, uint32_t rank);

/* ---- rounds --------------------------------------------------------------------------------- */

struct p2p_pair {
    uint32_t first, second; /* world ranks, first < second */
};

/* Pairs in a round, and rounds until all have met; nranks >= 2. */
static inline uint32_t p2p_pairs(uint32_t nranks)
{
    return nranks / 2;
}
static inline uint32_t p2p_rounds(uint32_t nranks)
{
    return nranks % 2 ? nranks : nranks - 1;
}

/* Pair k of a round by the circle method: one rank (or a missing one, if nranks is odd) stands in
 * the middle, the others sit round it and turn by one place each round. */
struct p2p_pair p2p_pair_of(uint32_t nranks, uint32_t round, uint32_t k);

/* ---- schedules ------------------------------------------------------------------------------ */

/* The schedules for one size, linked in place. */
struct p2p_legs {
    struct {
        struct plan *plan; /* of this leg, as an operation on two ranks */
        struct plan_row row;
        struct ready_set set;
        const struct ready *ready;
    } legs[NLEGS];
};

/* 0 or -1; call p2p_legs_release in either case. `bytes` is a multiple of the element's. */
int p2p_legs_make(struct p2p_legs *legs, const struct p2p_plan *plan, uint64_t bytes,
                  struct err *err);
void p2p_legs_release(struct p2p_legs *legs);

/* Bytes of a rank's buffer for that size: a block for either rank. At least 2. */
size_t p2p_buffer_bytes(uint64_t bytes);

/* Bytes of the handles, without the buffer. */
size_t p2p_handle_bytes(const struct p2p_legs *legs);

/* ---- results -------------------------------------------------------------------------------- */

/* Microseconds per message (latency: half of there and back). Samples are means over a window. */
struct p2p_times {
    double p50_us, min_us;
    double quarter_us; /* a quarter of the samples are at most this */
    uint64_t samples, window;
};

/* What a pair's first rank sends to the parent, once in each pass. */
struct p2p_result {
    uint64_t index; /* (size number x rounds + round) x pairs + k */
    uint32_t size_at;
    struct p2p_pair pair;
    struct p2p_times times[P2P_NMODES]; /* samples 0: not measured */
    uint64_t wrong[2];                  /* elements, as found by the first and by the second, */
    struct data_bad bad[2];             /* in all checks of the visit */
};

/* Adds a visit of the same pair and size to those before: of each mode the times of the visit with
 * the least median remain, and wrong elements are added up. */
void p2p_merge(struct p2p_result *all, const struct p2p_result *visit);

/* The rank's side, for launch_child. */
int p2p_rank(struct rank *rk, struct err *err);
