/* SPDX-License-Identifier: Apache-2.0
 * The verifier's layers put together, its freedom check, and the oracle it is tested against. */
#include "sched/verify.h"

#include <stdlib.h>

#include "base/mem.h"
#include "sched/hazards.h"
#include "sched/meaning.h"
#include "sched/pairs.h"
#include "sched/progress.h"

int verify_sched(const struct sched *sched, bool in_place, struct err *err)
{
    struct pairs pairs;
    if (pairs_init(&pairs, sched, err)) {
        return -1;
    }
    int bad = meaning_check(&pairs, in_place, err);
    pairs_release(&pairs);
    return bad;
}

/* ---- freedom ---- */

struct freedom {
    const struct linked *linked;
    const struct prog *prog;
    const struct lprog *lprog;
    uint32_t *record_of; /* per step */
    uint32_t *first_of;  /* per record: first of its group */
    struct err *err;
    int bad;
};

/* A wait at or before `record` in its lane that covers `want`: the same index and a number at least
 * as late, of the same pass or a later one. */
static bool waited_for(const struct freedom *f, uint32_t record, uint32_t lane,
                       const struct lwait *want)
{
    for (uint32_t r = f->first_of[record] + 1; r-- > f->lprog->lane_start[lane];) {
        const struct lstep *step = &f->lprog->steps[r];
        for (uint32_t i = 0; i < step->nwaits; i++) {
            const struct lwait *have = &f->lprog->waits[step->wait + i];
            if (have->kind == want->kind && have->index == want->index &&
                (have->distance < want->distance ||
                 (have->distance == want->distance && have->number >= want->number))) {
                return true;
            }
        }
    }
    return false;
}

static void check_pair(void *ctx, const struct hazard *hazard)
{
    struct freedom *f = ctx;
    const struct step *before = &f->prog->steps[hazard->before];
    const struct step *after = &f->prog->steps[hazard->after];
    uint32_t from = f->record_of[hazard->before], to = f->record_of[hazard->after];
    struct lwait lane = {
        .kind = LWAIT_LANE, .distance = hazard->across, .index = before->lane, .number = from};
    bool ordered = before->lane == after->lane ? from < to || hazard->across
                                               : waited_for(f, to, after->lane, &lane);
    const struct lstep *send = &f->lprog->steps[from];
    bool busy = before->kind == STEP_SEND && f->lprog->wires[send->wire].mode == WIRE_PULL;
    if (busy && hazard->after_writes) {
        struct lwait release = {.kind = LWAIT_RELEASE,
                                .distance = hazard->across,
                                .index = send->wire,
                                .number = send->msg};
        ordered = waited_for(f, to, after->lane, &release); /* implies that it was sent */
    }
    if (!ordered && !f->bad) {
        f->bad =
            err_add(f->err, ERR_USAGE,
                    "%s: %s %u: step %u (%s) and step %u (%s)%s touch the same chunk in no "
                    "fixed order",
                    f->linked->sched->name, sched_end_word(f->linked->sched, f->prog->rank),
                    f->prog->rank, hazard->before, step_info(before->kind)->name, hazard->after,
                    step_info(after->kind)->name, hazard->across ? " of the next pass" : "");
    }
}

static int check_freedom(const struct linked *linked, uint32_t p, struct err *err)
{
    const struct sched *sched = linked->sched;
    struct freedom f = {
        .linked = linked, .prog = &sched->progs[p], .lprog = &linked->progs[p], .err = err};
    f.record_of = mem_calloc(f.lprog->nsteps, sizeof *f.record_of);
    f.first_of = mem_calloc(f.lprog->nsteps, sizeof *f.first_of);
    for (uint32_t r = 0, first = 0; r < f.lprog->nsteps; r++) {
        f.record_of[f.lprog->source[r]] = r;
        f.first_of[r] = first;
        first = f.lprog->steps[r].flags & LS_CHAIN ? first : r + 1;
    }
    hazards_scan(sched, f.prog, linked->opts.in_place, check_pair, &f);
    free(f.record_of);
    free(f.first_of);
    return f.bad;
}

static int check_all_freedom(const struct linked *linked, struct err *err)
{
    int bad = 0;
    for (uint32_t p = 0; p < linked->sched->nprogs && !bad; p++) {
        bad = check_freedom(linked, p, err);
    }
    return bad;
}

int verify_linked(const struct linked *linked, uint32_t depth, struct err *err)
{
    if (progress_run(linked, &(struct progress_opts){.depth = depth}, err)) {
        return -1;
    }
    return check_all_freedom(linked, err);
}

static int verify_mode(const struct pairs *pairs, struct link_opts opts, struct err *err)
{
    struct err none = ERR_INIT;
    bool may_fail = opts.mode == WIRE_PULL; /* then it is run staged */
    struct linked *linked = link_pairs(pairs, &opts, may_fail ? &none : err);
    err_release(&none);
    if (!linked) {
        return may_fail ? 0 : -1;
    }
    int bad = check_all_freedom(linked, err); /* progress: the linker found the least depth */
    linked_free(linked);
    return bad;
}

int verify_all(const struct sched *sched, struct err *err)
{
    struct pairs pairs;
    if (pairs_init(&pairs, sched, err)) {
        return -1;
    }
    int bad = 0;
    for (int in_place = 0; in_place <= coll_in_place(sched->coll) && !bad; in_place++) {
        bad = meaning_check(&pairs, in_place, err);
        for (int i = 0; i < 4 && !bad; i++) {
            struct link_opts opts = {
                .mode = i & 1 ? WIRE_PULL : WIRE_STAGED, .in_place = in_place, .fuse = i & 2};
            bad = verify_mode(&pairs, opts, err);
        }
    }
    pairs_release(&pairs);
    return bad;
}
