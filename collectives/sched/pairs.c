/* SPDX-License-Identifier: Apache-2.0
 * Shape of a schedule, and the pairing of sends with receives: see pairs.h. */
#include "sched/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MOST_SENTENCES = 8 }; /* a broken schedule is usually broken everywhere */

static int compare_wires(const void *a, const void *b)
{
    const struct lwire *x = a, *y = b;
    if (x->send != y->send) {
        return x->send < y->send ? -1 : 1;
    }
    if (x->peer != y->peer) {
        return x->peer < y->peer ? -1 : 1;
    }
    return x->channel < y->channel ? -1 : x->channel > y->channel;
}

uint32_t wire_find(const struct lwire *wires, uint32_t nwires, bool send, uint32_t peer,
                   uint16_t channel)
{
    struct lwire key = {.peer = peer, .channel = channel, .send = send};
    if (nwires == 0) {
        return NO_WIRE;
    }
    const struct lwire *found = bsearch(&key, wires, nwires, sizeof *wires, compare_wires);
    return found ? (uint32_t)(found - wires) : NO_WIRE;
}

uint32_t wire_other_end(const struct sched *sched, uint32_t rank, const struct lwire *wire,
                        const struct lwire *peer_wires, uint32_t peer_nwires)
{
    uint32_t back = sched->relative ? sched->nranks - wire->peer : rank;
    return wire_find(peer_wires, peer_nwires, !wire->send, back, wire->channel);
}

/* ---- shape of single steps ---- */

static int check_ref(const struct sched *sched, uint32_t rank, size_t index, const char *which,
                     struct ref ref, uint32_t nchunks, struct err *err)
{
    const char *word = sched_end_word(sched, rank);
    if (ref.buf >= BUF_SCRATCH + sched->nplanes) {
        return err_add(err, ERR_USAGE, "%s %u step %zu: %s names scratch plane %u, there are %u",
                       word, rank, index, which, ref.buf - BUF_SCRATCH, sched->nplanes);
    }
    if (rank >= sched->nranks && ref.buf < BUF_SCRATCH) {
        return err_add(err, ERR_USAGE, "%s %u step %zu: %s names the %s, but it has scratch alone",
                       word, rank, index, which, ref.buf == BUF_IN ? "input" : "output");
    }
    uint32_t chunks = sched_chunks(sched, ref.buf);
    if (ref.chunk >= chunks || nchunks > chunks) {
        return err_add(err, ERR_USAGE,
                       "%s %u step %zu: %s names %u chunk(s) from %u on, the buffer has %u", word,
                       rank, index, which, nchunks, ref.chunk, chunks);
    }
    return 0;
}

static int check_step(const struct sched *sched, uint32_t rank, size_t index,
                      const struct step *step, struct err *err)
{
    if ((unsigned)step->kind >= STEP_KIND_COUNT || step->nchunks == 0) {
        return err_add(err, ERR_USAGE, "%s %u step %zu: kind %d with %u chunks does not exist",
                       sched_end_word(sched, rank), rank, index, (int)step->kind, step->nchunks);
    }
    const struct step_info *info = step_info(step->kind);
    int bad = 0;
    if (info->reads_src) {
        bad |= check_ref(sched, rank, index, "src", step->src, step->nchunks, err);
    }
    if (info->reads_src2) {
        bad |= check_ref(sched, rank, index, "src2", step->src2, step->nchunks, err);
    }
    if (info->writes) {
        bad |= check_ref(sched, rank, index, "dst", step->dst, step->nchunks, err);
    }
    uint32_t self = sched->relative ? 0 : rank;
    if ((info->sends || info->receives) &&
        (step->peer >= sched_ends(sched) || step->peer == self)) {
        bad |= err_add(err, ERR_USAGE, "%s %u step %zu: peer %u is %s", sched_end_word(sched, rank),
                       rank, index, step->peer,
                       step->peer == self ? "the rank itself" : "no rank of the group");
    }
    return bad;
}

static int check_steps(const struct sched *sched, struct err *err)
{
    int bad = 0;
    for (uint32_t i = 0; i < sched->nprogs; i++) {
        const struct prog *prog = &sched->progs[i];
        for (size_t k = 0; k < prog->nsteps && err->count < MOST_SENTENCES; k++) {
            bad |= check_step(sched, prog->rank, k, &prog->steps[k], err);
        }
    }
    return bad;
}

/* ---- wires ---- */

static void collect_wires(const struct prog *prog, struct pairs_prog *out)
{
    struct lwire *all = NULL;
    size_t count = 0, cap = 0;
    for (size_t k = 0; k < prog->nsteps; k++) {
        const struct step *step = &prog->steps[k];
        const struct step_info *info = step_info(step->kind);
        if (!info->sends && !info->receives) {
            continue;
        }
        struct lwire wire = {.peer = step->peer,
                             .channel = step->channel,
                             .send = info->sends,
                             .lane = step->lane,
                             .nmsgs = 1};
        bool known = false; /* the same few wires again and again are common */
        for (size_t back = 1; back <= 4 && back <= count && !known; back++) {
            known = compare_wires(&all[count - back], &wire) == 0;
        }
        if (known) {
            continue;
        }
        MEM_GROW(all, count, cap);
        all[count++] = wire;
    }
    if (count > 0) {
        qsort(all, count, sizeof *all, compare_wires);
    }
    for (size_t k = 0; k < count; k++) {
        if (out->nwires == 0 || compare_wires(&all[out->nwires - 1], &all[k]) != 0) {
            all[out->nwires] = all[k];
            all[out->nwires++].nmsgs = 0;
        }
    }
    out->wires = all;
}

/* Numbers the messages of every wire in list order. */
static int number_messages(const struct prog *prog, struct pairs_prog *out, struct err *err)
{
    out->wire_of = mem_calloc(prog->nsteps, sizeof *out->wire_of);
    out->msg_of = mem_calloc(prog->nsteps, sizeof *out->msg_of);
    out->first = mem_calloc(out->nwires + 1, sizeof *out->first);
    int bad = 0;
    uint32_t total = 0;
    for (size_t k = 0; k < prog->nsteps; k++) {
        const struct step *step = &prog->steps[k];
        const struct step_info *info = step_info(step->kind);
        out->wire_of[k] = NO_WIRE;
        if (!info->sends && !info->receives) {
            continue;
        }
        uint32_t w = wire_find(out->wires, out->nwires, info->sends, step->peer, step->channel);
        struct lwire *wire = &out->wires[w];
        if (wire->nmsgs == 0) {
            wire->lane = step->lane;
        }
        if (wire->lane != step->lane && err->count < MOST_SENTENCES) {
            bad |= err_add(err, ERR_USAGE,
                           "%s %u step %zu: the wire %s peer %u on channel %u is used by lanes "
                           "%u and %u; a wire belongs to one lane",
                           sched_end_word(prog->sched, prog->rank), prog->rank, k,
                           info->sends ? "to" : "from", step->peer, step->channel, wire->lane,
                           step->lane);
        }
        out->wire_of[k] = w;
        out->msg_of[k] = wire->nmsgs++;
        total++;
    }
    out->step_of = mem_calloc(total, sizeof *out->step_of);
    for (uint32_t w = 0; w < out->nwires; w++) {
        out->first[w + 1] = out->first[w] + out->wires[w].nmsgs;
    }
    for (size_t k = 0; k < prog->nsteps; k++) {
        if (out->wire_of[k] != NO_WIRE) {
            out->step_of[out->first[out->wire_of[k]] + out->msg_of[k]] = (uint32_t)k;
        }
    }
    return bad;
}

/* The peer's end of one wire must exist and carry the same messages. */
static int check_pair(const struct pairs *pairs, const struct prog *prog, uint32_t w,
                      struct err *err)
{
    const struct sched *sched = pairs->sched;
    const struct pairs_prog *mine = &pairs->progs[prog - sched->progs];
    const struct lwire *wire = &mine->wires[w];
    uint32_t peer = sched_peer(sched, prog->rank, wire->peer);
    uint32_t other_prog = sched->relative ? 0 : sched->prog_of[peer];
    const struct pairs_prog *theirs = &pairs->progs[other_prog];
    uint32_t other = wire_other_end(sched, prog->rank, wire, theirs->wires, theirs->nwires);
    uint32_t count = other == NO_WIRE ? 0 : theirs->wires[other].nmsgs;
    if (count != wire->nmsgs) {
        return err_add(err, ERR_USAGE,
                       "%s %u %s %s %u %u message(s) on channel %u, which %s %u of them",
                       sched_end_word(sched, prog->rank), prog->rank,
                       wire->send ? "sends" : "expects from", sched_end_word(sched, peer), peer,
                       wire->nmsgs, wire->channel, wire->send ? "receives" : "sends", count);
    }
    for (uint32_t m = 0; wire->send && m < count; m++) {
        uint32_t s = mine->step_of[mine->first[w] + m];
        uint32_t r = theirs->step_of[theirs->first[other] + m];
        uint32_t sent = prog->steps[s].nchunks;
        uint32_t taken = sched->progs[other_prog].steps[r].nchunks;
        if (sent != taken) {
            return err_add(err, ERR_USAGE,
                           "%s %u step %u sends %u chunk(s), but %s %u step %u receives %u",
                           sched_end_word(sched, prog->rank), prog->rank, s, sent,
                           sched_end_word(sched, peer), peer, r, taken);
        }
    }
    return 0;
}

int pairs_init(struct pairs *pairs, const struct sched *sched, struct err *err)
{
    *pairs = (struct pairs){.sched = sched};
    if (sched->nprogs != (sched->relative ? 1 : sched_ends(sched))) {
        return err_add(err, ERR_USAGE, "%s has %u programs for %u ranks and %u agents", sched->name,
                       sched->nprogs, sched->nranks, sched->nagents);
    }
    if (check_steps(sched, err)) {
        return -1;
    }
    int bad = 0;
    pairs->progs = mem_calloc(sched->nprogs, sizeof *pairs->progs);
    for (uint32_t i = 0; i < sched->nprogs; i++) {
        collect_wires(&sched->progs[i], &pairs->progs[i]);
        bad |= number_messages(&sched->progs[i], &pairs->progs[i], err);
    }
    for (uint32_t i = 0; i < sched->nprogs && err->count < MOST_SENTENCES; i++) {
        for (uint32_t w = 0; w < pairs->progs[i].nwires; w++) {
            bad |= check_pair(pairs, &sched->progs[i], w, err);
        }
    }
    if (bad) {
        pairs_release(pairs);
        return -1;
    }
    return 0;
}

void pairs_release(struct pairs *pairs)
{
    for (uint32_t i = 0; pairs->progs && i < pairs->sched->nprogs; i++) {
        free(pairs->progs[i].wires);
        free(pairs->progs[i].first);
        free(pairs->progs[i].step_of);
        free(pairs->progs[i].wire_of);
        free(pairs->progs[i].msg_of);
    }
    free(pairs->progs);
    pairs->progs = NULL;
}
