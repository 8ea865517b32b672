/* SPDX-License-Identifier: Apache-2.0
 * Copying and comparing schedules: see copy.h. */
#include "sched/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

/* The step of a program as `rank` means it. */
static struct step absolute(const struct sched *sched, uint32_t rank, struct step step)
{
    const struct step_info *info = step_info(step.kind);
    if (info->sends || info->receives) step.peer = sched_peer(sched, rank, step.peer);
    if (info->reads_src) step.src = sched_ref(sched, rank, step.src);
    if (info->reads_src2) step.src2 = sched_ref(sched, rank, step.src2);
    if (info->writes) step.dst = sched_ref(sched, rank, step.dst);
    return step;
}

static const struct prog *program_of(const struct sched *sched, uint32_t rank)
{
    return &sched->progs[sched->prog_of[sched->relative ? 0 : rank]];
}

struct sched *sched_unroll(const struct sched *sched)
{
    struct sched *copy =
        sched_new(sched->name, sched->coll->id, sched->nranks, sched->root, sched->nparts);
    copy->nchannels = sched->nchannels;
    copy->nplanes = sched->nplanes;
    if (sched->nagents) {
        sched_set_agents(copy, sched->nagents);
        memcpy(copy->agents, sched->agents, sched->nagents * sizeof *copy->agents);
    }
    for (uint32_t rank = 0; rank < sched_ends(sched); rank++) {
        const struct prog *from = program_of(sched, rank);
        struct prog *to = sched_prog(copy, rank);
        to->nlanes = from->nlanes;
        to->nsteps = to->cap = from->nsteps;
        to->steps = mem_calloc(from->nsteps, sizeof *to->steps);
        for (size_t k = 0; k < from->nsteps; k++) {
            to->steps[k] = absolute(sched, rank, from->steps[k]);
        }
    }
    return copy;
}

static bool same_ref(struct ref a, struct ref b)
{
    return a.buf == b.buf && a.chunk == b.chunk;
}

static bool same_step(const struct step *a, const struct step *b)
{
    const struct step_info *info = step_info(a->kind);
    bool wired = info->sends || info->receives;
    return a->kind == b->kind && a->final == b->final && a->lane == b->lane &&
           a->nchunks == b->nchunks &&
           (!wired || (a->channel == b->channel && a->peer == b->peer)) &&
           (!info->reads_src || same_ref(a->src, b->src)) &&
           (!info->reads_src2 || same_ref(a->src2, b->src2)) &&
           (!info->writes || same_ref(a->dst, b->dst));
}

static bool differ(struct err *why, const char *what, uint32_t rank, size_t step)
{
    if (why) err_add(why, ERR_FAILED, "rank %u step %zu: %s", rank, step, what);
    return false;
}

bool sched_equal(const struct sched *a, const struct sched *b, struct err *why)
{
    if (a->coll != b->coll || a->nranks != b->nranks || a->nagents != b->nagents ||
        a->root != b->root || a->nparts != b->nparts) {
        if (why) {
            err_add(why, ERR_FAILED,
                    "%s, %u ranks, %u agents, root %u, %u parts is not %s, %u, %u, %u, %u",
                    a->coll->name, a->nranks, a->nagents, a->root, a->nparts, b->coll->name,
                    b->nranks, b->nagents, b->root, b->nparts);
        }
        return false;
    }
    for (uint32_t i = 0; i < a->nagents; i++) {
        if (a->agents[i].rank != b->agents[i].rank || a->agents[i].across != b->agents[i].across)
            return differ(why, "an agent of another switch", a->nranks + i, 0);
    }
    for (uint32_t rank = 0; rank < sched_ends(a); rank++) {
        const struct prog *x = program_of(a, rank), *y = program_of(b, rank);
        if (x->nsteps != y->nsteps) return differ(why, "one program ends here", rank, x->nsteps);
        for (size_t k = 0; k < x->nsteps; k++) {
            struct step s = absolute(a, rank, x->steps[k]), t = absolute(b, rank, y->steps[k]);
            if (!same_step(&s, &t)) return differ(why, step_info(s.kind)->name, rank, k);
        }
    }
    return true;
}

uint64_t sched_hash(const struct sched *sched)
{
    uint64_t hash = sched->nranks;
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        for (size_t k = 0; k < sched->progs[p].nsteps; k++) {
            const struct step *s = &sched->progs[p].steps[k];
            const uint32_t words[] = {
                p,           s->kind,    s->final,     s->lane,     s->channel,    s->peer,
                s->nchunks,  s->src.buf, s->src.chunk, s->src2.buf, s->src2.chunk, s->dst.buf,
                s->dst.chunk};
            hash = hash * 31 + rng_hash(words, sizeof words);
        }
    }
    return hash;
}
