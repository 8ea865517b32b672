/* SPDX-License-Identifier: Apache-2.0
 * An independent, plain interpreter of programs as drawn, on integer weights: the yardstick for
 * the verifier. It shares no code with the verifier's run: no symbolic values, no pairing tables,
 * just random numbers, sums, and queues. */
#include <stdlib.h>

#include "base/mem.h"
#include "sched/verify.h"

struct packet {
    uint32_t src, dst, channel, nvalues;
    uint64_t *values;
    bool taken;
};

struct oracle {
    const struct sched *sched;
    bool in_place;
    uint64_t *memory; /* [end][buffer][chunk], buffers `stride` apart */
    size_t stride, nbufs;
    struct packet *packets;
    size_t npackets, cap;
    bool broken; /* it read or wrote what it must not */
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* What rank r's input holds at a chunk: any number, but never 0, which means "nothing". */
static uint64_t weight(uint32_t rank, uint32_t chunk)
{
    return mix(((uint64_t)rank << 32 | chunk) + 0x9e3779b97f4a7c15u) | 1u << 16;
}

/* The last step of a reduction ("avg divides here"), as something no other step does. */
static uint64_t finish(uint64_t sum)
{
    return sum * 3 + 5;
}

/* An agent's input and output are memory that nobody else sees: using them is noted. */
static uint64_t *cell(struct oracle *o, uint32_t rank, struct ref ref, uint32_t i)
{
    ref = sched_ref(o->sched, rank, ref);
    ref.chunk = (ref.chunk + i) % sched_chunks(o->sched, ref.buf);
    bool agent = rank >= o->sched->nranks;
    o->broken |= agent && ref.buf < BUF_SCRATCH;
    if (!agent && o->in_place && ref.buf < BUF_SCRATCH) {
        enum buf buf = (enum buf)ref.buf;
        uint32_t nparts = o->sched->nparts, block = ref.chunk / nparts;
        coll_alias(o->sched->coll, rank, &buf, &block);
        ref = (struct ref){buf, block * nparts + ref.chunk % nparts};
    }
    return &o->memory[(rank * o->nbufs + ref.buf) * o->stride + ref.chunk];
}

static struct packet *find(const struct oracle *o, uint32_t src, uint32_t dst, uint32_t channel)
{
    for (size_t i = 0; i < o->npackets; i++) {
        struct packet *p = &o->packets[i];
        if (!p->taken && p->src == src && p->dst == dst && p->channel == channel) {
            return p;
        }
    }
    return NULL;
}

/* 1: done, 0: must wait. */
static int play(struct oracle *o, uint32_t rank, const struct step *step)
{
    uint32_t peer = sched_peer(o->sched, rank, step->peer);
    struct packet *arrived = NULL, sent = {rank, peer, step->channel, step->nchunks, NULL, false};
    if (step->kind == STEP_RECV || step->kind == STEP_RECV_REDUCE) {
        arrived = find(o, peer, rank, step->channel);
        if (!arrived) {
            return 0;
        }
        o->broken |= arrived->nvalues != step->nchunks;
    }
    if (step->kind == STEP_SEND) {
        sent.values = mem_calloc(step->nchunks, sizeof *sent.values);
    }
    for (uint32_t i = 0; i < step->nchunks && !o->broken; i++) {
        uint64_t in = arrived ? arrived->values[i] : 0, value = 0;
        switch (step->kind) {
        case STEP_SEND:
            sent.values[i] = *cell(o, rank, step->src, i);
            continue;
        case STEP_RECV:
            value = in;
            break;
        case STEP_RECV_REDUCE:
            value = *cell(o, rank, step->src, i) + in;
            break;
        case STEP_COPY:
            value = *cell(o, rank, step->src, i);
            break;
        case STEP_REDUCE:
            value = *cell(o, rank, step->src, i) + *cell(o, rank, step->src2, i);
            break;
        default:
            continue;
        }
        o->broken |= !o->in_place && step->dst.buf == BUF_IN;
        *cell(o, rank, step->dst, i) = step->final ? finish(value) : value;
    }
    if (arrived) {
        arrived->taken = true;
    }
    if (step->kind == STEP_SEND) {
        MEM_GROW(o->packets, o->npackets, o->cap);
        o->packets[o->npackets++] = sent;
    }
    return 1;
}

static bool run(struct oracle *o)
{
    const struct sched *sched = o->sched;
    size_t *pc = mem_calloc(sched_ends(sched), sizeof *pc);
    bool moved = true, finished = false;
    while (moved && !finished && !o->broken) {
        moved = false;
        finished = true;
        for (uint32_t r = 0; r < sched_ends(sched); r++) {
            const struct prog *prog = &sched->progs[sched->prog_of[sched->relative ? 0 : r]];
            while (pc[r] < prog->nsteps && !o->broken && play(o, r, &prog->steps[pc[r]])) {
                pc[r]++;
                moved = true;
            }
            finished &= pc[r] == prog->nsteps;
        }
    }
    free(pc);
    return finished && !o->broken;
}

/* What a chunk must hold at the end; *free_content: nothing is promised. */
static uint64_t expected(const struct sched *sched, uint32_t rank, uint32_t block, uint32_t part,
                         bool *free_content)
{
    uint32_t nparts = sched->nparts, n = sched->nranks;
    struct promise promise = coll_after(sched->coll, n, sched->root, rank, block);
    *free_content = promise.content == CONTENT_FREE;
    if (!promise.all || n == 1) {
        return weight(promise.all ? rank : promise.rank, promise.block * nparts + part);
    }
    uint64_t sum = 0;
    for (uint32_t r = 0; r < n; r++) {
        sum += weight(r, promise.block * nparts + part);
    }
    return finish(sum);
}

int verify_oracle(const struct sched *sched, bool in_place)
{
    struct oracle o = {.sched = sched, .in_place = in_place};
    o.nbufs = BUF_SCRATCH + sched->nplanes;
    o.stride = sched_chunks(sched, BUF_SCRATCH);
    o.memory = mem_calloc(sched_ends(sched) * o.nbufs * o.stride, sizeof *o.memory);
    for (uint32_t r = 0; r < sched->nranks; r++) {
        uint32_t chunks = sched_chunks(sched, BUF_IN);
        for (uint32_t c = 0; c < chunks && coll_has_input(sched->coll, sched->root, r); c++) {
            uint32_t back = sched->relative ? sched_turn(sched, BUF_IN) : 0;
            uint32_t named = wrap((int64_t)c - (int64_t)r * back, chunks); /* cell turns it again */
            *cell(&o, r, ref_in(named), 0) = weight(r, c);
        }
    }
    bool right = run(&o);
    for (size_t i = 0; i < o.npackets; i++) {
        right &= o.packets[i].taken;
        free(o.packets[i].values);
    }
    for (uint32_t r = 0; r < sched->nranks && right; r++) {
        uint32_t chunks = sched_chunks(sched, BUF_OUT);
        for (uint32_t c = 0; c < chunks; c++) {
            uint32_t back = sched->relative ? sched_turn(sched, BUF_OUT) : 0;
            uint32_t named = wrap((int64_t)c - (int64_t)r * back, chunks);
            bool nothing;
            uint64_t wanted = expected(sched, r, c / sched->nparts, c % sched->nparts, &nothing);
            right &= nothing || *cell(&o, r, ref_out(named), 0) == wanted;
        }
    }
    free(o.packets);
    free(o.memory);
    return right;
}
