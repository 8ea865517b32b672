/* SPDX-License-Identifier: Apache-2.0
 * Proving that a sender may write into its receiver's buffer at the moment it sends: everything
 * the receiver (or a peer on its behalf) does with that place before must be known to be over.
 * Known means: it lies in the past of the send, along lanes, waits and messages. The past of every
 * group is a vector clock over all lanes of all ranks (Mattern 1989), taken from one play of the
 * schedule. Being in the past does not depend on the order of the play. */
#include "sched/push.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/hazards.h"
#include "sched/progress.h"

enum { MOST_CLOCKS = 1 << 26, MOST_RANKS = 64 };

struct proof {
    const struct linked *linked;
    const struct sched *sched;
    const struct pairs *pairs;
    size_t *lane_base, *record_base; /* per end */
    size_t nlanes;
    uint32_t *clocks;     /* [record, at the first of its group][lane]: records known to be over */
    uint32_t **first_of;  /* per program and record: first of its group */
    uint32_t **record_of; /* per program and step */
};

static uint32_t prog_index(const struct proof *proof, uint32_t rank)
{
    return proof->sched->prog_of[proof->sched->relative ? 0 : rank];
}

static uint32_t *clock_at(const struct proof *proof, uint32_t rank, uint32_t record)
{
    uint32_t first = proof->first_of[prog_index(proof, rank)][record];
    return proof->clocks + (proof->record_base[rank] + first) * proof->nlanes;
}

/* The record at the other end of a message: its rank in *peer. */
static uint32_t other_record(const struct proof *proof, uint32_t rank, uint32_t wire, uint32_t msg,
                             uint32_t *peer)
{
    const struct lwire *w = &proof->linked->progs[prog_index(proof, rank)].wires[wire];
    *peer = sched_peer(proof->sched, rank, w->peer);
    uint32_t q = prog_index(proof, *peer);
    const struct pairs_prog *theirs = &proof->pairs->progs[q];
    uint32_t other = wire_other_end(proof->sched, rank, w, theirs->wires, theirs->nwires);
    return proof->record_of[q][theirs->step_of[theirs->first[other] + msg]];
}

static void join(const struct proof *proof, uint32_t *clock, uint32_t rank, uint32_t record)
{
    const uint32_t *from = clock_at(proof, rank, record);
    for (size_t i = 0; i < proof->nlanes; i++) {
        clock[i] = from[i] > clock[i] ? from[i] : clock[i];
    }
}

/* A group has run: its past is that of its predecessor, its messages and the lanes it waited for.
 * Waits for a release do not count: they go away where the wire is raised. */
static void note_group(void *ctx, uint32_t rank, uint32_t lane, uint32_t first)
{
    struct proof *proof = ctx;
    const struct lprog *prog = &proof->linked->progs[prog_index(proof, rank)];
    uint32_t *clock = clock_at(proof, rank, first), last = group_last(prog, first), peer;
    if (first > prog->lane_start[lane]) {
        join(proof, clock, rank, first - 1);
    }
    for (uint32_t r = first; r <= last; r++) {
        const struct lstep *step = &prog->steps[r];
        if (step_info((enum step_kind)step->kind)->receives) {
            uint32_t sending = other_record(proof, rank, step->wire, step->msg, &peer);
            join(proof, clock, peer, sending);
        }
    }
    for (uint32_t i = 0; i < prog->steps[first].nwaits; i++) {
        const struct lwait *wait = &prog->waits[prog->steps[first].wait + i];
        if (wait->distance == 0 && wait->kind == LWAIT_LANE) {
            join(proof, clock, rank, wait->number);
        }
    }
    clock[proof->lane_base[rank] + lane] = last + 1;
}

static void proof_init(struct proof *proof, const struct linked *linked, const struct pairs *pairs)
{
    const struct sched *sched = linked->sched;
    *proof = (struct proof){.linked = linked, .sched = sched, .pairs = pairs};
    proof->first_of = mem_calloc(sched->nprogs, sizeof *proof->first_of);
    proof->record_of = mem_calloc(sched->nprogs, sizeof *proof->record_of);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        const struct lprog *prog = &linked->progs[p];
        proof->first_of[p] = mem_calloc(prog->nsteps, sizeof **proof->first_of);
        proof->record_of[p] = mem_calloc(prog->nsteps, sizeof **proof->record_of);
        for (uint32_t r = 0, first = 0; r < prog->nsteps; r++) {
            proof->first_of[p][r] = first;
            proof->record_of[p][prog->source[r]] = r;
            first = prog->steps[r].flags & LS_CHAIN ? first : r + 1;
        }
    }
    uint32_t ends = sched_ends(sched);
    proof->lane_base = mem_calloc(ends + 1, sizeof *proof->lane_base);
    proof->record_base = mem_calloc(ends + 1, sizeof *proof->record_base);
    for (uint32_t i = 0; i < ends; i++) {
        const struct lprog *prog = &linked->progs[prog_index(proof, i)];
        proof->lane_base[i + 1] = proof->lane_base[i] + prog->nlanes;
        proof->record_base[i + 1] = proof->record_base[i] + prog->nsteps;
    }
    proof->nlanes = proof->lane_base[ends];
}

static void proof_release(struct proof *proof)
{
    for (uint32_t p = 0; p < proof->sched->nprogs; p++) {
        free(proof->first_of[p]);
        free(proof->record_of[p]);
    }
    free(proof->first_of);
    free(proof->record_of);
    free(proof->lane_base);
    free(proof->record_base);
    free(proof->clocks);
}

/* ---- the question for one wire ---- */

/* Every send of the wire goes on with a value of its group. */
static bool pays(const struct lprog *prog, uint32_t wire)
{
    for (uint32_t r = 0; r < prog->nsteps; r++) {
        const struct lstep *step = &prog->steps[r];
        if (step->kind != STEP_SEND || step->wire != wire) {
            continue;
        }
        uint32_t first = r;
        while (first > 0 && prog->steps[first - 1].flags & LS_CHAIN) {
            first--;
        }
        if (prog->steps[first].kind == STEP_SEND) {
            return false;
        }
    }
    return true;
}

struct question {
    const struct proof *proof;
    uint32_t receiver, step; /* the receive asked about */
    const uint32_t *known;   /* clock of the send */
    bool free;
};

static void ask(void *ctx, const struct hazard *hazard)
{
    struct question *q = ctx;
    if (hazard->after != q->step || hazard->across) {
        return;
    }
    const struct proof *proof = q->proof;
    uint32_t p = prog_index(proof, q->receiver);
    const struct lprog *prog = &proof->linked->progs[p];
    const struct step *before = &proof->sched->progs[p].steps[hazard->before];
    uint32_t record = proof->record_of[p][hazard->before];
    bool over = q->known[proof->lane_base[q->receiver] + before->lane] > record;
    if (before->kind == STEP_SEND) { /* busy until taken */
        uint32_t peer, taking = other_record(proof, q->receiver, prog->steps[record].wire,
                                             prog->steps[record].msg, &peer);
        const struct prog *theirs = &proof->sched->progs[prog_index(proof, peer)];
        uint32_t source = proof->linked->progs[prog_index(proof, peer)].source[taking];
        over = q->known[proof->lane_base[peer] + theirs->steps[source].lane] > taking;
    }
    q->free &= over;
}

/* The receiver has begun this operation, and the place is free, whenever message `msg` is sent. */
static bool message_is_free(const struct proof *proof, uint32_t rank, uint32_t wire, uint32_t msg,
                            uint32_t sending)
{
    uint32_t peer, record = other_record(proof, rank, wire, msg, &peer);
    uint32_t q = prog_index(proof, peer);
    const struct prog *prog = &proof->sched->progs[q];
    struct question question = {.proof = proof,
                                .receiver = peer,
                                .step = proof->linked->progs[q].source[record],
                                .known = clock_at(proof, rank, sending),
                                .free = false};
    const struct step *recv = &prog->steps[question.step];
    if (recv->kind != STEP_RECV || recv->dst.buf >= BUF_SCRATCH) {
        return false;
    }
    for (uint32_t lane = 0; lane < prog->nlanes; lane++) {
        question.free |= question.known[proof->lane_base[peer] + lane] >
                         proof->linked->progs[q].lane_start[lane];
    }
    if (question.free) {
        hazards_scan(proof->sched, prog, proof->linked->opts.in_place, ask, &question);
    }
    return question.free;
}

static bool wire_is_free(const struct proof *proof, uint32_t rank, uint32_t wire)
{
    const struct lprog *prog = &proof->linked->progs[prog_index(proof, rank)];
    for (uint32_t r = 0; r < prog->nsteps; r++) {
        const struct lstep *step = &prog->steps[r];
        if (step->kind == STEP_SEND && step->wire == wire &&
            !message_is_free(proof, rank, wire, step->msg, r)) {
            return false;
        }
    }
    return true;
}

static void raise_wire(const struct proof *proof, bool **push, uint32_t rank, uint32_t wire)
{
    uint32_t p = prog_index(proof, rank);
    const struct lwire *w = &proof->linked->progs[p].wires[wire];
    uint32_t q = prog_index(proof, sched_peer(proof->sched, rank, w->peer));
    const struct pairs_prog *theirs = &proof->pairs->progs[q];
    push[p][wire] = true;
    push[q][wire_other_end(proof->sched, rank, w, theirs->wires, theirs->nwires)] = true;
}

bool **push_prove(const struct linked *linked, const struct pairs *pairs)
{
    const struct sched *sched = linked->sched;
    bool **push = NULL, found = false;
    struct proof proof;
    proof_init(&proof, linked, pairs);
    size_t records = proof.record_base[sched_ends(sched)];
    if (sched->nranks > MOST_RANKS || records * proof.nlanes > MOST_CLOCKS) {
        goto out;
    }
    proof.clocks = mem_calloc(records * proof.nlanes, sizeof *proof.clocks);
    struct err none = ERR_INIT;
    progress_run(linked, &(struct progress_opts){linked->most_msgs + 1, true, note_group, &proof},
                 &none);
    err_release(&none);
    push = mem_calloc(sched->nprogs, sizeof *push);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        push[p] = mem_calloc(linked->progs[p].nwires, sizeof **push);
    }
    for (uint32_t p = 0; p < sched->nprogs; p++) { /* a relative one: rank 0 stands for all */
        const struct lprog *prog = &linked->progs[p];
        for (uint32_t w = 0; w < prog->nwires; w++) {
            if (prog->wires[w].send && pays(prog, w) && wire_is_free(&proof, p, w)) {
                raise_wire(&proof, push, p, w);
                found = true;
            }
        }
    }
    for (uint32_t p = 0; !found && p < sched->nprogs; p++) {
        free(push[p]);
    }
    if (!found) {
        free(push);
        push = NULL;
    }
out:
    proof_release(&proof);
    return push;
}
