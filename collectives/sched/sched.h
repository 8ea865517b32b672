/* SPDX-License-Identifier: Apache-2.0
 * A collective algorithm as data: programs of steps on symbolic chunks. Builders (algo/) write
 * programs with the calls below; linker, verifier, executor and simulator only read them.
 *
 *   kind          reads                       writes   effect
 *   ------------  --------------------------  -------  ------------------------------------------
 *   SEND          src                         -        posts src to (peer, channel); never waits
 *                                                      for the receiver, only for room on the wire
 *   RECV          the next message            dst      dst = arrived
 *   RECV_REDUCE   the next message, src       dst      dst = src (+) arrived
 *   COPY          src                         dst      dst = src
 *   REDUCE        src, src2                   dst      dst = src (+) src2
 *   CALC          -                           -        compute of a stated cost (step graphs)
 *   NOP           -                           -        nothing
 *
 * List order is the meaning. A step belongs to a lane (an in-order worker) and, if it sends or
 * receives, to a channel. A wire is (source, destination, channel), first in first out: the k-th
 * send meets the k-th receive; a wire belongs to one lane at each end.
 *
 * Ends of wires are ranks, 0 to nranks - 1, and agents from nranks on: programs that run inside a
 * switch, which reduces and multicasts. An agent has no input and no output, scratch alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/step.h"
#include "sched/coll.h"

/* The table above as data. */
struct step_info {
    const char *name;
    bool sends, receives, reads_src, reads_src2, writes, reduces;
};
const struct step_info *step_info(enum step_kind kind);

/* Chunks [chunk, chunk + step.nchunks) of a buffer; the range may wrap round the end. */
struct ref {
    uint32_t buf; /* enum buf, scratch planes from BUF_SCRATCH on */
    uint32_t chunk;
};

struct step {
    enum step_kind kind;
    bool final; /* this reduce completes its chunk: avg divides here */
    uint16_t lane;
    uint16_t channel;
    uint32_t peer;    /* an end; in a relative program the distance (peer - rank) mod nranks */
    uint32_t nchunks; /* >= 1 */
    struct ref src, src2, dst;
};

struct prog {
    struct step *steps;
    size_t nsteps, cap;
    uint16_t nlanes; /* lanes used: 0 .. nlanes - 1 */
    uint16_t lane;   /* what the next step gets: see sched_lane */
    uint16_t channel;
    uint32_t rank;    /* for whom it is built (relative: 0) */
    uint8_t *written; /* per output chunk: 1 once a step has written it (see sched_send) */
    struct sched *sched;
};

enum symmetry { SYM_NONE, SYM_SHIFT };

/* An agent stands in the switch that `rank` reaches first: of its own node or, `across`, of the
 * network between the nodes. */
struct agent {
    uint32_t rank;
    bool across;
};

struct sched {
    char name[32]; /* the algorithm */
    const struct coll *coll;
    uint32_t nranks, root;
    uint32_t nagents; /* 0: it runs on ranks alone */
    struct agent *agents;
    uint32_t nchannels; /* as asked of the builder */
    uint32_t nparts;    /* parts per block: how the builder cuts */
    uint32_t nplanes;   /* scratch planes used by any program */
    bool relative;      /* one program for all: peers are distances, chunks turn with the rank */
    uint32_t nprogs;
    struct prog *progs;
    uint32_t *prog_of; /* per end: ranks, then agents */
};

/* Life cycle. A schedule owns its programs. `nparts` is parts per block. */
struct sched *sched_new(const char *name, enum coll_id coll, uint32_t nranks, uint32_t root,
                        uint32_t nparts);
void sched_free(struct sched *sched);

/* Gives it agents, ends nranks .. nranks + nagents - 1, in the switch of rank 0's node: before the
 * first program, and never where programs are relative. */
void sched_set_agents(struct sched *sched, uint32_t nagents);

/* Adds an empty program of an end; in a relative schedule there is just one, for rank 0. */
struct prog *sched_prog(struct sched *sched, uint32_t rank);

/* Where the agent stands whose program this is. */
void sched_agent_at(struct prog *prog, uint32_t rank, bool across);

/* ---- what builders call ---------------------------------------------------------------------
 * Short forms speak of chunk `c` of the OUTPUT. Reading it means "what is known of the chunk so
 * far": the output if this program has written it before, else the input chunk of the same number
 * (allreduce, alltoall, broadcast; for other collectives an unwritten chunk must be named). */
void sched_lane(struct prog *prog, uint16_t lane, uint16_t channel); /* for the steps that follow */
void sched_send(struct prog *prog, uint32_t peer, uint32_t c);
void sched_recv(struct prog *prog, uint32_t peer, uint32_t c);
void sched_recv_reduce(struct prog *prog, uint32_t peer, uint32_t c);

/* Long forms name buffer and chunk. */
struct ref ref_in(uint32_t c);
struct ref ref_out(uint32_t c);
struct ref ref_scratch(uint32_t plane, uint32_t c);
void sched_send_ref(struct prog *prog, uint32_t peer, struct ref src);
void sched_recv_ref(struct prog *prog, uint32_t peer, struct ref dst);
void sched_recv_reduce_ref(struct prog *prog, uint32_t peer, struct ref dst, struct ref src);
void sched_copy(struct prog *prog, struct ref dst, struct ref src);
void sched_reduce(struct prog *prog, struct ref dst, struct ref src, struct ref src2);

/* The last step completes its chunk. */
void sched_final(struct prog *prog);

/* The last step speaks of `n` chunks from the named ones on. */
void sched_span(struct prog *prog, uint32_t n);

/* ---- what readers call ---------------------------------------------------------------------- */

/* Ranks and agents: the programs of a schedule that is not relative. */
static inline uint32_t sched_ends(const struct sched *sched)
{
    return sched->nranks + sched->nagents;
}

/* "rank" or "agent". */
const char *sched_end_word(const struct sched *sched, uint32_t end);

/* Chunks of a buffer: blocks x nparts. */
uint32_t sched_chunks(const struct sched *sched, uint32_t buf);

/* Chunks by which a relative program's references to `buf` turn from one rank to the next (0:
 * fixed). Only meaningful when `relative`. */
uint32_t sched_turn(const struct sched *sched, uint32_t buf);

/* The absolute peer and chunk that a step of `rank`'s program means. */
uint32_t sched_peer(const struct sched *sched, uint32_t rank, uint32_t peer);
struct ref sched_ref(const struct sched *sched, uint32_t rank, struct ref ref);

/* The canonical place of a chunk: in place, where input and output are one memory, both names of
 * it give the same ref. `rank` as in the program: 0 for a relative one. */
struct ref sched_place(const struct sched *sched, uint32_t rank, bool in_place, struct ref ref);

/* All places of one rank in a row: input, output, scratch planes. The number of a place (as
 * sched_place gives it), and how many there are. */
uint32_t sched_place_number(const struct sched *sched, struct ref place);
uint32_t sched_places(const struct sched *sched);

static inline const struct prog *sched_prog_of(const struct sched *sched, uint32_t rank)
{
    return &sched->progs[sched->prog_of[rank]];
}

/* a mod n for a in (-n .. 2n): the wrap of ring arithmetic. */
static inline uint32_t wrap(int64_t a, uint32_t n)
{
    int64_t m = a % (int64_t)n;
    return (uint32_t)(m < 0 ? m + n : m);
}
