/* SPDX-License-Identifier: Apache-2.0
 * The linker: see link.h. In order: pair the messages, derive waits from hazards, fuse, emit. For
 * PULL it does so twice: the first result shows which wires may be raised to PUSH. */
#include "sched/link.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "sched/hazards.h"
#include "sched/pairs.h"
#include "sched/progress.h"
#include "sched/push.h"

static const char *const mode_names[WIRE_MODE_COUNT] = {"staged", "pull", "push", "ll"};

const char *wire_mode_name(enum wire_mode mode)
{
    return mode_names[mode];
}

/* ---- waits ---- */

struct step_wait {
    uint32_t step;
    struct lwait wait;
};

struct waits {
    const struct prog *prog;
    const struct pairs_prog *pairs;
    const struct lwire *wires; /* with their modes */
    const uint32_t *record_of; /* per step */
    struct step_wait *items;
    size_t count, cap;
    uint32_t *start; /* per step, nsteps + 1; after sort_waits */
};

static void add_wait(void *ctx, const struct hazard *hazard)
{
    struct waits *waits = ctx;
    const struct step *before = &waits->prog->steps[hazard->before];
    const struct step *after = &waits->prog->steps[hazard->after];
    struct lwait wait = {.distance = hazard->across};
    uint32_t wire = waits->pairs->wire_of[hazard->before];
    if (before->kind == STEP_SEND && waits->wires[wire].mode == WIRE_PULL) {
        if (!hazard->after_writes) {
            return; /* two readers */
        }
        wait.kind = LWAIT_RELEASE; /* the source is busy until the receiver has read it */
        wait.index = wire;
        wait.number = waits->pairs->msg_of[hazard->before];
    } else if (before->lane != after->lane) {
        wait.kind = LWAIT_LANE;
        wait.index = before->lane;
        wait.number = waits->record_of[hazard->before];
    } else {
        return; /* a lane is in order */
    }
    MEM_GROW(waits->items, waits->count, waits->cap);
    waits->items[waits->count++] = (struct step_wait){hazard->after, wait};
}

static int compare_waits(const void *a, const void *b)
{
    const struct step_wait *x = a, *y = b;
    const uint32_t keys[2][5] = {
        {x->step, x->wait.kind, x->wait.index, x->wait.distance, ~x->wait.number},
        {y->step, y->wait.kind, y->wait.index, y->wait.distance, ~y->wait.number}};
    for (int i = 0; i < 5; i++) {
        if (keys[0][i] != keys[1][i]) {
            return keys[0][i] < keys[1][i] ? -1 : 1;
        }
    }
    return 0;
}

/* Sorts by step and keeps only the latest of each kind, lane or wire, and pass. */
static void sort_waits(struct waits *waits)
{
    if (waits->count > 0) {
        qsort(waits->items, waits->count, sizeof *waits->items, compare_waits);
    }
    size_t kept = 0;
    for (size_t i = 0; i < waits->count; i++) {
        const struct step_wait *w = &waits->items[i], *last = &waits->items[kept ? kept - 1 : 0];
        bool same = kept > 0 && last->step == w->step && last->wait.kind == w->wait.kind &&
                    last->wait.index == w->wait.index && last->wait.distance == w->wait.distance;
        if (!same) {
            waits->items[kept++] = *w;
        }
    }
    waits->count = kept;
    waits->start = mem_calloc(waits->prog->nsteps + 1, sizeof *waits->start);
    for (size_t i = 0; i < kept; i++) {
        waits->start[waits->items[i].step + 1]++;
    }
    for (size_t k = 0; k < waits->prog->nsteps; k++) {
        waits->start[k + 1] += waits->start[k];
    }
}

/* ---- who touches a chunk next: which stores are dead ---- */

struct access {
    uint32_t step, next;
    bool write;
};

struct accesses {
    struct access *items;
    size_t count, cap;
    uint32_t *write_of; /* per step: its first write access, the others follow downwards */
};

enum { NONE = UINT32_MAX };

static void note_access(struct accesses *accesses, uint32_t *head, uint32_t step, bool write)
{
    MEM_GROW(accesses->items, accesses->count, accesses->cap);
    accesses->items[accesses->count] = (struct access){step, *head, write};
    *head = (uint32_t)accesses->count++;
}

struct toucher {
    struct accesses *accesses;
    const struct sched *sched;
    const struct prog *prog;
    bool in_place;
    uint32_t *heads; /* per place: the access that comes next */
};

static void note_ref(const struct toucher *toucher, uint32_t step, struct ref ref, bool write)
{
    const struct sched *sched = toucher->sched;
    uint32_t chunks = sched_chunks(sched, ref.buf);
    for (uint32_t i = 0; i < toucher->prog->steps[step].nchunks; i++) {
        struct ref at = {ref.buf, (ref.chunk + i) % chunks};
        at = sched_place(sched, toucher->prog->rank, toucher->in_place, at);
        note_access(toucher->accesses, &toucher->heads[sched_place_number(sched, at)], step, write);
    }
}

static void accesses_init(struct accesses *accesses, const struct sched *sched,
                          const struct prog *prog, bool in_place)
{
    *accesses = (struct accesses){0};
    struct toucher toucher = {accesses, sched, prog, in_place, NULL};
    uint32_t nplaces = sched_places(sched);
    toucher.heads = mem_calloc(nplaces, sizeof *toucher.heads);
    memset(toucher.heads, 0xff, nplaces * sizeof *toucher.heads);
    accesses->write_of = mem_calloc(prog->nsteps, sizeof *accesses->write_of);
    for (size_t k = prog->nsteps; k-- > 0;) { /* backwards: a step's write comes after its reads */
        const struct step *step = &prog->steps[k];
        const struct step_info *info = step_info(step->kind);
        accesses->write_of[k] = (uint32_t)accesses->count;
        if (info->writes) {
            note_ref(&toucher, (uint32_t)k, step->dst, true);
        }
        if (info->reads_src) {
            note_ref(&toucher, (uint32_t)k, step->src, false);
        }
        if (info->reads_src2) {
            note_ref(&toucher, (uint32_t)k, step->src2, false);
        }
    }
    free(toucher.heads);
}

static void accesses_release(struct accesses *accesses)
{
    free(accesses->items);
    free(accesses->write_of);
}

/* ---- fusion ---- */

struct linker {
    const struct sched *sched;
    const struct prog *prog;
    const struct pairs_prog *pairs;
    const struct link_opts *opts;
    struct lprog *out;
    struct waits waits;
    struct accesses accesses;
    uint32_t *group_of; /* per step: first record of its group */
};

/* What `step` stores is read by nobody but steps of group `group`. */
static bool store_is_dead(const struct linker *linker, uint32_t step, uint32_t group)
{
    const struct step *s = &linker->prog->steps[step];
    for (uint32_t i = 0; i < s->nchunks; i++) {
        const struct access *items = linker->accesses.items;
        uint32_t a = items[linker->accesses.write_of[step] + i].next;
        while (a != NONE && !items[a].write && linker->group_of[items[a].step] == group) {
            a = items[a].next;
        }
        if (a == NONE ? s->dst.buf < BUF_SCRATCH : !items[a].write) {
            return false;
        }
    }
    return true;
}

static bool same_place(const struct linker *linker, struct ref a, struct ref b)
{
    uint32_t rank = linker->prog->rank;
    a = sched_place(linker->sched, rank, linker->opts->in_place, a);
    b = sched_place(linker->sched, rank, linker->opts->in_place, b);
    return a.buf == b.buf && a.chunk == b.chunk;
}

struct group {
    uint32_t first;    /* record */
    uint32_t last;     /* step added last; NONE: none yet */
    uint32_t producer; /* step whose dst holds the value; NONE: a plain source */
    struct ref value;
    uint32_t nin, nout;
    bool settled; /* the value has been sent or copied: nothing is added to it any more */
};

static uint32_t count_inputs(const struct step *step)
{
    const struct step_info *info = step_info(step->kind);
    return (uint32_t)info->reads_src + info->reads_src2 + info->receives;
}

/* Whether `next` can go on with the group's value. A step with waits of its own never joins: its
 * waits would be moved before the group, and might then never hold. */
static bool joins(const struct linker *linker, const struct group *group, uint32_t next)
{
    const struct step *step = &linker->prog->steps[next];
    const struct step *last = &linker->prog->steps[group->last];
    bool waits = linker->waits.start[next + 1] > linker->waits.start[next];
    if (!linker->opts->fuse || waits || step->nchunks != last->nchunks || group->nin == 0) {
        return false;
    }
    if (step->kind == STEP_SEND || step->kind == STEP_COPY) {
        return same_place(linker, step->src, group->value) && group->nout < KERNEL_MAX_OUT;
    }
    if (step->kind != STEP_RECV_REDUCE && step->kind != STEP_REDUCE) {
        return false;
    }
    bool src2 = step->kind == STEP_REDUCE && same_place(linker, step->src2, group->value);
    return !group->settled && !src2 && same_place(linker, step->src, group->value) &&
           group->nin < KERNEL_MAX_IN && group->producer != NONE;
}

static void take(struct linker *linker, struct group *group, uint32_t index)
{
    const struct step *step = &linker->prog->steps[index];
    const struct step_info *info = step_info(step->kind);
    bool first = group->last == NONE;
    linker->group_of[index] = group->first;
    group->last = index;
    if (step->kind == STEP_SEND || (step->kind == STEP_COPY && !first)) {
        group->value = first ? step->src : group->value;
        group->settled = true;
        group->nout++;
    } else if (info->writes) {
        group->producer = index;
        group->value = step->dst;
        group->nout = 1;
    }
}

static void emit(struct linker *linker, uint32_t index, uint32_t record)
{
    const struct step *step = &linker->prog->steps[index];
    struct lstep *out = &linker->out->steps[record];
    *out = (struct lstep){.kind = (uint8_t)step->kind,
                          .flags = step->final ? LS_FINAL : 0,
                          .src_buf = (uint8_t)step->src.buf,
                          .dst_buf = (uint8_t)step->dst.buf,
                          .nchunks = step->nchunks,
                          .src = step->src.chunk,
                          .dst = step->dst.chunk,
                          .wire = linker->pairs->wire_of[index],
                          .msg = linker->pairs->msg_of[index]};
    if (step->kind == STEP_REDUCE) {
        out->wire = step->src2.chunk;
        out->msg = step->src2.buf;
    }
    linker->out->source[record] = index;
}

/* Sends whose wire reads the source in place keep the store alive. */
static bool sends_need_memory(const struct linker *linker, uint32_t first, uint32_t end)
{
    for (uint32_t r = first; r < end; r++) {
        const struct lstep *step = &linker->out->steps[r];
        if (step->kind == STEP_SEND && linker->out->wires[step->wire].mode == WIRE_PULL) {
            return true;
        }
    }
    return false;
}

/* Forms one group from `steps[at..count)` of a lane; returns where the next one starts. */
static uint32_t form_group(struct linker *linker, const uint32_t *steps, uint32_t at,
                           uint32_t count, uint32_t base)
{
    struct group group = {.first = base + at, .last = NONE, .producer = NONE};
    struct lstep *records = linker->out->steps;
    take(linker, &group, steps[at]);
    emit(linker, steps[at], base + at);
    group.nin = count_inputs(&linker->prog->steps[steps[at]]);
    uint32_t next = at + 1;
    for (; next < count && joins(linker, &group, steps[next]); next++) {
        uint32_t producer = group.producer;
        bool reduces = step_info(linker->prog->steps[steps[next]].kind)->reduces;
        if (reduces) { /* only if nobody else needs what was stored before */
            linker->group_of[steps[next]] = group.first;
            if (!store_is_dead(linker, producer, group.first)) {
                linker->group_of[steps[next]] = NONE;
                break;
            }
            records[base + next - 1].flags |= LS_NOSTORE;
            group.nin++;
        }
        take(linker, &group, steps[next]);
        emit(linker, steps[next], base + next);
        records[base + next - 1].flags |= LS_CHAIN;
        records[base + next].flags |= LS_ACC;
    }
    if (group.settled && group.producer != NONE &&
        !sends_need_memory(linker, base + at, base + next) &&
        store_is_dead(linker, group.producer, group.first)) {
        for (uint32_t r = base + at; r < base + next; r++) {
            records[r].flags |= linker->out->source[r] == group.producer ? LS_NOSTORE : 0;
        }
    }
    return next;
}

/* ---- emitting ---- */

/* Steps lane by lane, in list order within a lane. */
static uint32_t *order_by_lane(const struct prog *prog, struct lprog *out)
{
    uint32_t *order = mem_calloc(prog->nsteps, sizeof *order);
    uint32_t *at = mem_calloc(prog->nlanes + 1u, sizeof *at);
    out->lane_start = mem_calloc(prog->nlanes + 1u, sizeof *out->lane_start);
    for (size_t k = 0; k < prog->nsteps; k++) {
        out->lane_start[prog->steps[k].lane + 1]++;
    }
    for (uint32_t lane = 0; lane < prog->nlanes; lane++) {
        out->lane_start[lane + 1] += out->lane_start[lane];
        at[lane] = out->lane_start[lane];
    }
    for (size_t k = 0; k < prog->nsteps; k++) {
        order[at[prog->steps[k].lane]++] = (uint32_t)k;
    }
    free(at);
    return order;
}

/* The waits of a group are those of its first step: the others have none. */
static void emit_waits(struct linker *linker)
{
    struct lprog *out = linker->out;
    const struct waits *waits = &linker->waits;
    out->nwaits = (uint32_t)waits->count;
    out->waits = mem_calloc(waits->count, sizeof *out->waits);
    for (size_t i = 0; i < waits->count; i++) {
        out->waits[i] = waits->items[i].wait;
    }
    for (uint32_t r = 0; r < out->nsteps; r++) {
        uint32_t step = out->source[r];
        out->steps[r].wait = waits->start[step];
        out->steps[r].nwaits = waits->start[step + 1] - waits->start[step];
    }
}

static void link_prog(const struct sched *sched, const struct pairs *pairs, uint32_t p,
                      const struct link_opts *opts, struct lwire *wires, struct lprog *out)
{
    const struct prog *prog = &sched->progs[p];
    *out = (struct lprog){.nsteps = (uint32_t)prog->nsteps,
                          .nlanes = prog->nlanes,
                          .wires = wires,
                          .nwires = pairs->progs[p].nwires};
    struct linker linker = {
        .sched = sched, .prog = prog, .pairs = &pairs->progs[p], .opts = opts, .out = out};
    uint32_t *order = order_by_lane(prog, out);
    uint32_t *record_of = mem_calloc(prog->nsteps, sizeof *record_of);
    for (uint32_t r = 0; r < out->nsteps; r++) {
        record_of[order[r]] = r;
    }
    linker.waits =
        (struct waits){.prog = prog, .pairs = linker.pairs, .wires = wires, .record_of = record_of};
    hazards_scan(sched, prog, opts->in_place, add_wait, &linker.waits);
    sort_waits(&linker.waits);
    out->steps = mem_calloc(out->nsteps, sizeof *out->steps);
    out->source = mem_calloc(out->nsteps, sizeof *out->source);
    linker.group_of = mem_calloc(prog->nsteps, sizeof *linker.group_of);
    memset(linker.group_of, 0xff, prog->nsteps * sizeof *linker.group_of);
    if (opts->fuse) {
        accesses_init(&linker.accesses, sched, prog, opts->in_place);
    }
    for (uint32_t lane = 0; lane < out->nlanes; lane++) {
        uint32_t base = out->lane_start[lane], count = out->lane_start[lane + 1] - base;
        for (uint32_t at = 0; at < count;) {
            at = form_group(&linker, order + base, at, count, base);
        }
    }
    emit_waits(&linker);
    accesses_release(&linker.accesses);
    free(linker.group_of);
    free(linker.waits.items);
    free(linker.waits.start);
    free(record_of);
    free(order);
}

/* A send record says where its receiver puts the message, as the receiver's program says it. */
static void fill_destinations(struct linked *linked, const struct pairs *pairs)
{
    const struct sched *sched = linked->sched;
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        struct lprog *prog = &linked->progs[p];
        uint32_t rank = sched->progs[p].rank;
        for (uint32_t r = 0; r < prog->nsteps; r++) {
            struct lstep *step = &prog->steps[r];
            if (step->kind != STEP_SEND) {
                continue;
            }
            const struct lwire *wire = &prog->wires[step->wire];
            uint32_t peer = sched_peer(sched, rank, wire->peer);
            uint32_t q = sched->prog_of[sched->relative ? 0 : peer];
            const struct pairs_prog *theirs = &pairs->progs[q];
            uint32_t other = wire_other_end(sched, rank, wire, theirs->wires, theirs->nwires);
            const struct step *recv =
                &sched->progs[q].steps[theirs->step_of[theirs->first[other] + step->msg]];
            step->dst_buf = (uint8_t)recv->dst.buf;
            step->dst = recv->dst.chunk;
        }
    }
}

/* One linking with the wire modes given (`push`: per program and wire; NULL: none is raised). */
static struct linked *link_once(const struct sched *sched, const struct pairs *pairs,
                                const struct link_opts *opts, bool *const *push)
{
    struct linked *linked = mem_calloc(1, sizeof *linked);
    *linked = (struct linked){.sched = sched, .opts = *opts};
    linked->progs = mem_calloc(sched->nprogs, sizeof *linked->progs);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        uint32_t nwires = pairs->progs[p].nwires;
        struct lwire *wires = mem_calloc(nwires, sizeof *wires);
        for (uint32_t w = 0; w < nwires; w++) {
            wires[w] = pairs->progs[p].wires[w];
            wires[w].mode = (uint8_t)(push && push[p][w] ? WIRE_PUSH : opts->mode);
            if (wires[w].nmsgs > linked->most_msgs) {
                linked->most_msgs = wires[w].nmsgs;
            }
        }
        link_prog(sched, pairs, p, opts, wires, &linked->progs[p]);
    }
    fill_destinations(linked, pairs);
    linked->least_depth = progress_least_depth(linked);
    return linked;
}

/* Links again with proven wires raised to PUSH; gives the better of the two. */
static struct linked *raise_to_push(struct linked *linked, const struct pairs *pairs)
{
    bool **push = push_prove(linked, pairs);
    if (!push) {
        return linked;
    }
    struct linked *raised = link_once(linked->sched, pairs, &linked->opts, push);
    for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
        free(push[p]);
    }
    free(push);
    bool better = raised->least_depth > 0;
    linked_free(better ? linked : raised);
    return better ? raised : linked;
}

struct linked *link_pairs(const struct pairs *pairs, const struct link_opts *opts, struct err *err)
{
    const struct sched *sched = pairs->sched;
    struct linked *linked = link_once(sched, pairs, opts, NULL);
    if (linked->least_depth == 0 && opts->fuse) { /* fusing holds a message while it sends */
        struct link_opts plain = *opts;
        plain.fuse = false;
        linked_free(linked);
        linked = link_once(sched, pairs, &plain, NULL);
    }
    if (linked->least_depth == 0) {
        uint32_t depth = linked->most_msgs ? linked->most_msgs : 1;
        progress_run(linked, &(struct progress_opts){.depth = depth}, err);
        linked_free(linked);
        return NULL;
    }
    return opts->mode == WIRE_PULL ? raise_to_push(linked, pairs) : linked;
}

struct linked *link_sched(const struct sched *sched, const struct link_opts *opts, struct err *err)
{
    struct pairs pairs;
    if (pairs_init(&pairs, sched, err)) {
        return NULL;
    }
    struct linked *linked = link_pairs(&pairs, opts, err);
    pairs_release(&pairs);
    return linked;
}

void linked_free(struct linked *linked)
{
    if (!linked) {
        return;
    }
    for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
        struct lprog *prog = &linked->progs[p];
        free(prog->steps);
        free(prog->lane_start);
        free(prog->source);
        free(prog->waits);
        free(prog->wires);
    }
    free(linked->progs);
    free(linked);
}
