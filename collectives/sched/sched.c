/* SPDX-License-Identifier: Apache-2.0
 * Programs of steps: building them and reading them. */
#include "sched/sched.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const struct step_info infos[STEP_KIND_COUNT] = {
    /*                   name           sends  receives src   src2   writes reduces */
    [STEP_SEND] = {"send", true, false, true, false, false, false},
    [STEP_RECV] = {"recv", false, true, false, false, true, false},
    [STEP_RECV_REDUCE] = {"recv_reduce", false, true, true, false, true, true},
    [STEP_COPY] = {"copy", false, false, true, false, true, false},
    [STEP_REDUCE] = {"reduce", false, false, true, true, true, true},
    [STEP_CALC] = {"calc", false, false, false, false, false, false},
    [STEP_NOP] = {"nop", false, false, false, false, false, false},
};

const struct step_info *step_info(enum step_kind kind)
{
    return &infos[kind];
}

struct sched *sched_new(const char *name, enum coll_id coll, uint32_t nranks, uint32_t root,
                        uint32_t nparts)
{
    struct sched *sched = mem_calloc(1, sizeof *sched);
    snprintf(sched->name, sizeof sched->name, "%s", name);
    sched->coll = coll_get(coll);
    sched->nranks = nranks;
    sched->root = root;
    sched->nparts = nparts;
    sched->nchannels = 1;
    sched->prog_of = mem_calloc(nranks, sizeof *sched->prog_of);
    return sched;
}

void sched_free(struct sched *sched)
{
    if (!sched) {
        return;
    }
    for (uint32_t i = 0; i < sched->nprogs; i++) {
        free(sched->progs[i].steps);
        free(sched->progs[i].written);
    }
    free(sched->progs);
    free(sched->prog_of);
    free(sched->agents);
    free(sched);
}

void sched_set_agents(struct sched *sched, uint32_t nagents)
{
    assert(!sched->progs && !sched->relative);
    sched->nagents = nagents;
    sched->agents = mem_calloc(nagents, sizeof *sched->agents);
    free(sched->prog_of);
    sched->prog_of = mem_calloc(sched_ends(sched), sizeof *sched->prog_of);
}

void sched_agent_at(struct prog *prog, uint32_t rank, bool across)
{
    assert(prog->rank >= prog->sched->nranks);
    prog->sched->agents[prog->rank - prog->sched->nranks] = (struct agent){rank, across};
}

struct prog *sched_prog(struct sched *sched, uint32_t rank)
{
    uint32_t most = sched->relative ? 1 : sched_ends(sched);
    if (!sched->progs) {
        sched->progs = mem_calloc(most, sizeof *sched->progs);
    }
    assert(sched->nprogs < most);
    struct prog *prog = &sched->progs[sched->nprogs];
    *prog = (struct prog){.sched = sched, .rank = rank};
    prog->written = mem_calloc(sched_chunks(sched, BUF_OUT), 1);
    sched->prog_of[sched->relative ? 0 : rank] = sched->nprogs++;
    return prog;
}

static struct step *add(struct prog *prog, struct step step)
{
    step.lane = prog->lane;
    step.channel = prog->channel;
    step.nchunks = 1;
    MEM_GROW(prog->steps, prog->nsteps, prog->cap);
    prog->steps[prog->nsteps] = step;
    if (prog->nlanes <= prog->lane) {
        prog->nlanes = (uint16_t)(prog->lane + 1);
    }
    struct ref refs[3] = {step.src, step.src2, step.dst};
    for (int i = 0; i < 3; i++) {
        if (refs[i].buf >= BUF_SCRATCH && refs[i].buf - BUF_SCRATCH >= prog->sched->nplanes) {
            prog->sched->nplanes = refs[i].buf - BUF_SCRATCH + 1;
        }
    }
    if (infos[step.kind].writes && step.dst.buf == BUF_OUT) {
        prog->written[step.dst.chunk] = 1;
    }
    return &prog->steps[prog->nsteps++];
}

void sched_lane(struct prog *prog, uint16_t lane, uint16_t channel)
{
    prog->lane = lane;
    prog->channel = channel;
}

struct ref ref_in(uint32_t c)
{
    return (struct ref){BUF_IN, c};
}

struct ref ref_out(uint32_t c)
{
    return (struct ref){BUF_OUT, c};
}

struct ref ref_scratch(uint32_t plane, uint32_t c)
{
    return (struct ref){BUF_SCRATCH + plane, c};
}

/* Where the program finds what is known of output chunk c so far. */
static struct ref known(const struct prog *prog, uint32_t c)
{
    return prog->written[c] ? ref_out(c) : ref_in(c);
}

void sched_send(struct prog *prog, uint32_t peer, uint32_t c)
{
    sched_send_ref(prog, peer, known(prog, c));
}

void sched_recv(struct prog *prog, uint32_t peer, uint32_t c)
{
    sched_recv_ref(prog, peer, ref_out(c));
}

void sched_recv_reduce(struct prog *prog, uint32_t peer, uint32_t c)
{
    sched_recv_reduce_ref(prog, peer, ref_out(c), known(prog, c));
}

void sched_send_ref(struct prog *prog, uint32_t peer, struct ref src)
{
    add(prog, (struct step){.kind = STEP_SEND, .peer = peer, .src = src});
}

void sched_recv_ref(struct prog *prog, uint32_t peer, struct ref dst)
{
    add(prog, (struct step){.kind = STEP_RECV, .peer = peer, .dst = dst});
}

void sched_recv_reduce_ref(struct prog *prog, uint32_t peer, struct ref dst, struct ref src)
{
    add(prog, (struct step){.kind = STEP_RECV_REDUCE, .peer = peer, .dst = dst, .src = src});
}

void sched_copy(struct prog *prog, struct ref dst, struct ref src)
{
    add(prog, (struct step){.kind = STEP_COPY, .dst = dst, .src = src});
}

void sched_reduce(struct prog *prog, struct ref dst, struct ref src, struct ref src2)
{
    add(prog, (struct step){.kind = STEP_REDUCE, .dst = dst, .src = src, .src2 = src2});
}

void sched_final(struct prog *prog)
{
    assert(prog->nsteps > 0);
    prog->steps[prog->nsteps - 1].final = true;
}

void sched_span(struct prog *prog, uint32_t n)
{
    assert(prog->nsteps > 0);
    struct step *step = &prog->steps[prog->nsteps - 1];
    step->nchunks = n;
    uint32_t chunks = sched_chunks(prog->sched, BUF_OUT);
    for (uint32_t i = 0; infos[step->kind].writes && step->dst.buf == BUF_OUT && i < n; i++) {
        prog->written[(step->dst.chunk + i) % chunks] = 1;
    }
}

const char *sched_end_word(const struct sched *sched, uint32_t end)
{
    return end < sched->nranks ? "rank" : "agent";
}

uint32_t sched_chunks(const struct sched *sched, uint32_t buf)
{
    enum buf kind = buf >= BUF_SCRATCH ? BUF_SCRATCH : (enum buf)buf;
    return coll_blocks(sched->coll, kind, sched->nranks) * sched->nparts;
}

/* One block per rank: it turns with the rank, block for block. One block cut into n x m parts: it
 * turns by m parts. A single block of an operation with one block per rank stays. */
uint32_t sched_turn(const struct sched *sched, uint32_t buf)
{
    const struct coll *coll = sched->coll;
    bool whole = !coll->in_per_rank && !coll->out_per_rank;
    if (whole) { /* each rank's own data, or shares of what is the same for all */
        return coll->reduces || coll->rooted ? sched->nparts / sched->nranks : 0;
    }
    enum buf kind = buf >= BUF_SCRATCH ? BUF_SCRATCH : (enum buf)buf;
    return coll_blocks(coll, kind, sched->nranks) > 1 || sched->nranks == 1 ? sched->nparts : 0;
}

uint32_t sched_peer(const struct sched *sched, uint32_t rank, uint32_t peer)
{
    if (!sched->relative) {
        return peer;
    }
    uint64_t sum = (uint64_t)rank + peer;
    return (uint32_t)(sum >= sched->nranks ? sum - sched->nranks : sum);
}

struct ref sched_ref(const struct sched *sched, uint32_t rank, struct ref ref)
{
    if (sched->relative) {
        uint64_t turned = ref.chunk + (uint64_t)rank * sched_turn(sched, ref.buf);
        ref.chunk = (uint32_t)(turned % sched_chunks(sched, ref.buf));
    }
    return ref;
}

struct ref sched_place(const struct sched *sched, uint32_t rank, bool in_place, struct ref ref)
{
    if (!in_place || ref.buf >= BUF_SCRATCH) {
        return ref;
    }
    enum buf buf = (enum buf)ref.buf;
    uint32_t block = ref.chunk / sched->nparts, part = ref.chunk % sched->nparts;
    coll_alias(sched->coll, rank, &buf, &block);
    return (struct ref){buf, block * sched->nparts + part};
}

uint32_t sched_place_number(const struct sched *sched, struct ref place)
{
    uint32_t in = sched_chunks(sched, BUF_IN), out = sched_chunks(sched, BUF_OUT);
    switch (place.buf) {
    case BUF_IN:
        return place.chunk;
    case BUF_OUT:
        return in + place.chunk;
    default:
        return in + out + (place.buf - BUF_SCRATCH) * sched_chunks(sched, BUF_SCRATCH) +
               place.chunk;
    }
}

uint32_t sched_places(const struct sched *sched)
{
    return sched_place_number(sched, (struct ref){BUF_SCRATCH + sched->nplanes, 0});
}
