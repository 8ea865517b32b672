/* SPDX-License-Identifier: Apache-2.0
 * The token game behind the PROGRESS layer: see progress.h. */
#include "sched/progress.h"

#include <stdlib.h>

#include "base/mem.h"
#include "sched/pairs.h"

struct game {
    const struct linked *linked;
    const struct sched *sched;
    const struct progress_opts *opts;
    uint32_t ninstances;
    uint32_t **other;     /* per program and wire: the peer's index of the same wire */
    size_t *lane_base;    /* per instance: its first lane in the flat arrays */
    size_t *wire_base;    /* per instance: its first wire in `moved` */
    uint32_t *pc;         /* per lane: next record */
    uint32_t *lane_owner; /* per lane: its instance */
    uint32_t *moved;      /* per wire end: messages posted or taken */
    uint32_t *queue;      /* lanes to look at; a ring */
    uint8_t *queued;
    size_t head, count, nlanes;
};

static const struct lprog *prog_at(const struct game *g, uint32_t instance)
{
    return &g->linked->progs[g->sched->prog_of[g->ninstances == 1 ? 0 : instance]];
}

static uint32_t peer_at(const struct game *g, uint32_t instance, uint32_t peer)
{
    return g->ninstances == 1 ? 0 : sched_peer(g->sched, instance, peer);
}

static void wake(struct game *g, size_t lane)
{
    if (!g->queued[lane]) {
        g->queued[lane] = 1;
        g->queue[(g->head + g->count++) % g->nlanes] = (uint32_t)lane;
    }
}

static void wake_all(struct game *g, uint32_t instance)
{
    for (size_t lane = g->lane_base[instance]; lane < g->lane_base[instance + 1]; lane++) {
        wake(g, lane);
    }
}

/* Messages that the other end of a wire has posted or taken. */
static uint32_t moved_there(const struct game *g, uint32_t instance, uint32_t wire)
{
    const struct lprog *prog = prog_at(g, instance);
    uint32_t peer = peer_at(g, instance, prog->wires[wire].peer);
    return g->moved[g->wire_base[peer] + g->other[prog - g->linked->progs][wire]];
}

/* NULL when the group that starts at `first` can run, else what it waits for. */
static const char *blocked_by(const struct game *g, uint32_t instance, uint32_t first,
                              uint32_t *record)
{
    const struct lprog *prog = prog_at(g, instance);
    const struct lstep *head = &prog->steps[first];
    *record = first;
    for (uint32_t i = 0; i < head->nwaits; i++) {
        const struct lwait *wait = &prog->waits[head->wait + i];
        if (wait->distance > 0) {
            continue;
        }
        if (wait->kind == LWAIT_RELEASE && moved_there(g, instance, wait->index) <= wait->number) {
            return "a message it sent to be taken";
        }
        if (wait->kind == LWAIT_LANE &&
            g->pc[g->lane_base[instance] + wait->index] <= wait->number) {
            return "another lane";
        }
    }
    for (uint32_t i = first; i <= group_last(prog, first); i++) {
        const struct lstep *step = &prog->steps[i];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        *record = i;
        if (info->receives && moved_there(g, instance, step->wire) <= step->msg) {
            return "a message to arrive";
        }
        if (info->sends && step->msg >= g->opts->depth &&
            moved_there(g, instance, step->wire) <= step->msg - g->opts->depth) {
            return "room on its wire";
        }
    }
    return NULL;
}

static void run_group(struct game *g, uint32_t instance, uint32_t first, uint32_t last)
{
    const struct lprog *prog = prog_at(g, instance);
    for (uint32_t i = first; i <= last; i++) {
        const struct lstep *step = &prog->steps[i];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        if (info->sends || info->receives) {
            g->moved[g->wire_base[instance] + step->wire]++;
            wake_all(g, peer_at(g, instance, prog->wires[step->wire].peer));
        }
    }
    if (prog->nlanes > 1) {
        wake_all(g, instance);
    }
}

static void game_init(struct game *g, const struct linked *linked, const struct progress_opts *opts)
{
    const struct sched *sched = linked->sched;
    *g = (struct game){.linked = linked, .sched = sched, .opts = opts};
    g->ninstances = sched->relative && !opts->unroll ? 1 : sched_ends(sched);
    g->other = mem_calloc(sched->nprogs, sizeof *g->other);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        const struct lprog *prog = &linked->progs[p];
        g->other[p] = mem_calloc(prog->nwires, sizeof **g->other);
        uint32_t rank = sched->progs[p].rank;
        for (uint32_t w = 0; w < prog->nwires; w++) {
            uint32_t peer = sched_peer(sched, rank, prog->wires[w].peer);
            const struct lprog *theirs = &linked->progs[sched->prog_of[sched->relative ? 0 : peer]];
            g->other[p][w] =
                wire_other_end(sched, rank, &prog->wires[w], theirs->wires, theirs->nwires);
        }
    }
    g->lane_base = mem_calloc(g->ninstances + 1, sizeof *g->lane_base);
    g->wire_base = mem_calloc(g->ninstances + 1, sizeof *g->wire_base);
    for (uint32_t i = 0; i < g->ninstances; i++) {
        g->lane_base[i + 1] = g->lane_base[i] + prog_at(g, i)->nlanes;
        g->wire_base[i + 1] = g->wire_base[i] + prog_at(g, i)->nwires;
    }
    g->nlanes = g->lane_base[g->ninstances];
    g->pc = mem_calloc(g->nlanes, sizeof *g->pc);
    g->lane_owner = mem_calloc(g->nlanes, sizeof *g->lane_owner);
    g->queue = mem_calloc(g->nlanes, sizeof *g->queue);
    g->queued = mem_calloc(g->nlanes, sizeof *g->queued);
    g->moved = mem_calloc(g->wire_base[g->ninstances], sizeof *g->moved);
    for (uint32_t i = 0; i < g->ninstances; i++) {
        const struct lprog *prog = prog_at(g, i);
        for (uint32_t lane = 0; lane < prog->nlanes; lane++) {
            g->lane_owner[g->lane_base[i] + lane] = i;
            g->pc[g->lane_base[i] + lane] = prog->lane_start[lane];
        }
        wake_all(g, i);
    }
}

static void game_release(struct game *g)
{
    for (uint32_t p = 0; p < g->sched->nprogs; p++) {
        free(g->other[p]);
    }
    free(g->other);
    free(g->lane_base);
    free(g->wire_base);
    free(g->pc);
    free(g->lane_owner);
    free(g->queue);
    free(g->queued);
    free(g->moved);
}

static void advance_lane(struct game *g, size_t flat)
{
    uint32_t instance = g->lane_owner[flat];
    uint32_t lane = (uint32_t)(flat - g->lane_base[instance]);
    const struct lprog *prog = prog_at(g, instance);
    uint32_t record = 0;
    while (g->pc[flat] < prog->lane_start[lane + 1] &&
           !blocked_by(g, instance, g->pc[flat], &record)) {
        uint32_t first = g->pc[flat], last = group_last(prog, first);
        run_group(g, instance, first, last);
        g->pc[flat] = last + 1;
        if (g->opts->group) {
            g->opts->group(g->opts->ctx, instance, lane, first);
        }
    }
}

/* Names up to four lanes that stand still. */
static int report_stuck(const struct game *g, struct err *err)
{
    char *text =
        mem_printf("%s (%s, room for %u message(s) per wire) cannot make progress:", g->sched->name,
                   wire_mode_name(g->linked->opts.mode), g->opts->depth);
    int named = 0;
    for (size_t flat = 0; flat < g->nlanes && named < 4; flat++) {
        uint32_t instance = g->lane_owner[flat], record = 0;
        uint32_t lane = (uint32_t)(flat - g->lane_base[instance]);
        const struct lprog *prog = prog_at(g, instance);
        if (g->pc[flat] == prog->lane_start[lane + 1]) {
            continue;
        }
        const char *why = blocked_by(g, instance, g->pc[flat], &record);
        char *longer =
            mem_printf("%s%s %s %u step %u (%s) waits for %s", text, named ? "," : "",
                       sched_end_word(g->sched, instance), instance, prog->source[record],
                       step_info((enum step_kind)prog->steps[record].kind)->name, why);
        free(text);
        text = longer;
        named++;
    }
    if (named > 0) {
        err_add(err, ERR_USAGE, "%s", text);
    }
    free(text);
    return named > 0 ? -1 : 0;
}

int progress_run(const struct linked *linked, const struct progress_opts *opts, struct err *err)
{
    struct game game;
    game_init(&game, linked, opts);
    while (game.count > 0) {
        uint32_t flat = game.queue[game.head];
        game.head = (game.head + 1) % game.nlanes;
        game.count--;
        game.queued[flat] = 0;
        advance_lane(&game, flat);
    }
    int bad = report_stuck(&game, err);
    game_release(&game);
    return bad;
}

static bool succeeds(const struct linked *linked, uint32_t depth)
{
    struct err err = ERR_INIT;
    int bad = progress_run(linked, &(struct progress_opts){.depth = depth}, &err);
    err_release(&err);
    return !bad;
}

uint32_t progress_least_depth(const struct linked *linked)
{
    uint32_t low = 0, high = 1; /* low fails (0 always does), high is tried */
    while (!succeeds(linked, high)) {
        if (high >= linked->most_msgs) {
            return 0; /* more room than messages: no depth helps */
        }
        low = high;
        high = high > linked->most_msgs / 2 ? linked->most_msgs : 2 * high;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(succeeds(linked, middle) ? &high : &low) = middle;
    }
    return high;
}
