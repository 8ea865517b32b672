/* SPDX-License-Identifier: Apache-2.0
 * The search for shifts that change nothing: see fold.h. */
#include "net/fold.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/pairs.h"

#define NONE UINT32_MAX

uint32_t fold_end(const struct fold_place *place, uint32_t member, uint32_t group)
{
    const struct sched *sched = place->sched;
    if (member < sched->nranks) {
        uint32_t at = member * place->groups + group;
        return place->ranks ? place->ranks[at] : place->base + at;
    }
    const struct agent *agent = &sched->agents[member - sched->nranks];
    return network_agent_of(place->network, agent->across ? SCOPE_RAIL : SCOPE_DOMAIN,
                            fold_end(place, agent->rank, group), 0);
}

/* A shift in the making. */
struct shift {
    const struct linked *linked;
    const struct fold_place *place;
    struct fold *fold;                  /* what has been folded before */
    uint32_t members, groups, channels; /* by which it shifts */
    uint32_t block;                     /* channels are shifted inside blocks of so many */
    uint32_t *image;                    /* per class: where it goes; NONE: open */
};

static bool same_link(const struct net_link *a, const struct net_link *b)
{
    return a->kind == b->kind && a->latency_ps == b->latency_ps &&
           a->capacity_Bps == b->capacity_Bps && a->peak_Bps == b->peak_Bps &&
           a->bucket_bytes == b->bucket_bytes;
}

static void say_links(struct shift *shift, uint32_t a, uint32_t b, bool same)
{
    const struct network *network = shift->place->network;
    char *first = network_link_name(network, shift->fold->link[a]);
    char *second = network_link_name(network, shift->fold->link[b]);
    snprintf(shift->fold->why, sizeof shift->fold->why, "ranks shifted by %u: the link %s %s %s",
             shift->members, first, same ? "cannot always become" : "is not like", second);
    free(first);
    free(second);
}

/* Whether class a can go to class b; notes it. No two go to one: each stands at some hop of the
 * route of some wire, and enough shifts bring that route back. */
static bool map_class(struct shift *shift, uint32_t a, uint32_t b)
{
    const struct fold *fold = shift->fold;
    if (shift->image[a] == b) return true;
    struct net_link from = network_link(shift->place->network, fold->link[a]);
    struct net_link to = network_link(shift->place->network, fold->link[b]);
    bool same = fold->size[a] == fold->size[b] && same_link(&from, &to);
    if (shift->image[a] == NONE && same) {
        shift->image[a] = b;
        return true;
    }
    if (shift->members) say_links(shift, a, b, same);
    return false;
}

/* The class of a link; one that no flow has passed before gets its own. */
static uint32_t class_at(struct fold *fold, uint32_t link, uint32_t *caps)
{
    if (fold->class_of[link] == NONE) {
        uint32_t number = fold->nclasses, count = number;
        MEM_GROW(fold->link, number, caps[0]);
        MEM_GROW(fold->size, count, caps[1]);
        fold->link[number] = link;
        fold->size[number] = 1;
        fold->class_of[link] = fold->nclasses++;
    }
    return fold->class_of[link];
}

/* Members whose wires are looked at: with one program for all, what is run; else all ends. */
static uint32_t members_of(const struct shift *shift)
{
    const struct sched *sched = shift->linked->sched;
    return sched->relative ? sched->nranks : sched_ends(sched);
}

static uint32_t shifted(const struct shift *shift, uint32_t channel)
{
    uint32_t at = channel % shift->block;
    return channel - at + (at + shift->channels) % shift->block;
}

/* Whether the shift takes a wire's route to the shifted wire's. */
static bool map_route(struct shift *shift, uint32_t member, uint32_t group,
                      const struct lwire *wire)
{
    const struct sched *sched = shift->linked->sched;
    const struct fold_place *place = shift->place;
    uint32_t peer = sched_peer(sched, member, wire->peer), n = sched->nranks;
    uint32_t member2 = shift->members ? (member + shift->members) % n : member;
    uint32_t peer2 = shift->members ? (peer + shift->members) % n : peer;
    uint32_t group2 = (group + shift->groups) % shift->fold->groups;
    uint32_t channel2 = shifted(shift, wire->channel);
    uint32_t from = fold_end(place, member, group), to = fold_end(place, peer, group);
    uint32_t from2 = fold_end(place, member2, group2), to2 = fold_end(place, peer2, group2);
    uint32_t path[NETWORK_HOPS], path2[NETWORK_HOPS];
    uint32_t hops = network_route(place->network, from, to, wire->channel, path);
    uint32_t hops2 = network_route(place->network, from2, to2, channel2, path2);
    if (hops != hops2 ||
        network_scope(place->network, from, to) != network_scope(place->network, from2, to2)) {
        if (shift->members)
            snprintf(shift->fold->why, sizeof shift->fold->why,
                     "ranks shifted by %u: the route %u to %u is not like %u to %u", shift->members,
                     from, to, from2, to2);
        return false;
    }
    for (uint32_t i = 0; i < hops; i++) {
        const uint32_t *class_of = shift->fold->class_of;
        if (!map_class(shift, class_of[path[i]], class_of[path2[i]])) return false;
    }
    return true;
}

static const struct lprog *prog_of(const struct linked *linked, uint32_t member)
{
    return &linked->progs[linked->sched->relative ? 0 : linked->sched->prog_of[member]];
}

/* Calls `each` for every wire that is still run; stops at the first false. */
static bool each_wire(struct shift *shift, bool (*each)(struct shift *shift, uint32_t member,
                                                        uint32_t group, const struct lwire *wire))
{
    for (uint32_t m = 0; m < members_of(shift); m++) {
        const struct lprog *prog = prog_of(shift->linked, m);
        for (uint32_t b = 0; b < shift->fold->groups; b++) {
            for (uint32_t w = 0; w < prog->nwires; w++) {
                const struct lwire *wire = &prog->wires[w];
                if (wire->send && fold_runs(shift->fold, wire->channel) && !each(shift, m, b, wire))
                    return false;
            }
        }
    }
    return true;
}

static bool is_symmetry(struct shift *shift)
{
    memset(shift->image, 0xff, shift->fold->nclasses * sizeof *shift->image);
    return each_wire(shift, map_route);
}

/* Puts the classes of an orbit together. */
static void join_classes(struct fold *fold, const uint32_t *image, uint32_t nlinks)
{
    uint32_t *orbit = mem_calloc(fold->nclasses, sizeof *orbit), count = 0;
    uint32_t *size = mem_calloc(fold->nclasses, sizeof *size);
    uint32_t *link = mem_calloc(fold->nclasses, sizeof *link);
    memset(orbit, 0xff, fold->nclasses * sizeof *orbit);
    for (uint32_t first = 0; first < fold->nclasses; first++) {
        if (orbit[first] != NONE) continue;
        link[count] = fold->link[first];
        uint32_t at = first;
        do {
            orbit[at] = count;
            size[count] += fold->size[at];
            at = image[at] == NONE ? first : image[at]; /* no flow that is left passes it */
        } while (at != first);
        count++;
    }
    for (uint32_t l = 0; l < nlinks; l++)
        if (fold->class_of[l] != NONE) fold->class_of[l] = orbit[fold->class_of[l]];
    free(orbit);
    free(fold->size);
    free(fold->link);
    fold->size = size;
    fold->link = link;
    fold->nclasses = count;
}

/* ---- channels ---- */

/* The channel of a lane's wires; NONE: none, or several. */
static uint32_t lane_channel(const struct lprog *prog, uint32_t lane)
{
    uint32_t channel = NONE;
    for (uint32_t i = prog->lane_start[lane]; i < prog->lane_start[lane + 1]; i++) {
        const struct step_info *info = step_info(prog->steps[i].kind);
        if (!info->sends && !info->receives) continue;
        uint32_t c = prog->wires[prog->steps[i].wire].channel;
        if (channel != NONE && c != channel) return NONE;
        channel = c;
    }
    return channel;
}

/* The wires and lanes that a shift of channels takes a program's own to. */
struct images {
    uint32_t *wire, *lane; /* NONE: it has none */
    uint32_t *channel;     /* per lane */
};

static bool find_images(const struct lprog *prog, const struct shift *shift, struct images *to)
{
    for (uint32_t w = 0; w < prog->nwires; w++) {
        const struct lwire *wire = &prog->wires[w];
        to->wire[w] = wire_find(prog->wires, prog->nwires, wire->send, wire->peer,
                                (uint16_t)shifted(shift, wire->channel));
        if (to->wire[w] == NO_WIRE || prog->wires[to->wire[w]].nmsgs != wire->nmsgs ||
            prog->wires[to->wire[w]].mode != wire->mode)
            return false;
    }
    for (uint32_t l = 0; l < prog->nlanes; l++) {
        to->channel[l] = lane_channel(prog, l);
        if (to->channel[l] == NONE && prog->lane_start[l] < prog->lane_start[l + 1]) return false;
    }
    for (uint32_t l = 0; l < prog->nlanes; l++) { /* the j-th of a channel: the j-th of its image */
        uint32_t turn = 0, other = 0;
        for (uint32_t k = 0; k < l; k++)
            turn += to->channel[k] == to->channel[l];
        if (to->channel[l] == NONE) continue;
        uint32_t wanted = shifted(shift, to->channel[l]);
        while (other < prog->nlanes && (to->channel[other] != wanted || turn-- > 0))
            other++;
        if (other == prog->nlanes) return false;
        to->lane[l] = other;
    }
    return true;
}

/* Whether what a record waits for is in its own channel, and its image waits for the image of that.
 */
static bool same_wait(const struct lprog *prog, const struct images *to, uint32_t channel,
                      const struct lwait *a, const struct lwait *b)
{
    if (a->kind != b->kind || a->distance != b->distance) return false;
    if (a->kind == LWAIT_RELEASE)
        return prog->wires[a->index].channel == channel && to->wire[a->index] == b->index &&
               a->number == b->number;
    return to->channel[a->index] == channel && to->lane[a->index] == b->index &&
           a->number - prog->lane_start[a->index] == b->number - prog->lane_start[b->index];
}

static bool same_step(const struct lprog *prog, const struct images *to, uint32_t channel,
                      const struct lstep *a, const struct lstep *b)
{
    const struct step_info *info = step_info(a->kind);
    if (a->kind != b->kind || a->flags != b->flags || a->nchunks != b->nchunks) return false;
    if (a->nwaits != b->nwaits) return false;
    if ((info->sends || info->receives) && (to->wire[a->wire] != b->wire || a->msg != b->msg))
        return false;
    for (uint32_t i = 0; i < a->nwaits; i++)
        if (!same_wait(prog, to, channel, &prog->waits[a->wait + i], &prog->waits[b->wait + i]))
            return false;
    return true;
}

/* Whether a program is the same when its channels are shifted, whatever chunks they handle. */
static bool same_prog(const struct lprog *prog, const struct shift *shift)
{
    struct images to = {mem_calloc(prog->nwires, sizeof *to.wire),
                        mem_calloc(prog->nlanes, sizeof *to.lane),
                        mem_calloc(prog->nlanes, sizeof *to.channel)};
    bool same = find_images(prog, shift, &to);
    for (uint32_t l = 0; same && l < prog->nlanes; l++) {
        uint32_t first = prog->lane_start[l], count = prog->lane_start[l + 1] - first;
        if (count == 0) continue;
        uint32_t other = prog->lane_start[to.lane[l]];
        same = prog->lane_start[to.lane[l] + 1] - other == count;
        for (uint32_t i = 0; same && i < count; i++)
            same = same_step(prog, &to, to.channel[l], &prog->steps[first + i],
                             &prog->steps[other + i]);
    }
    free(to.wire);
    free(to.lane);
    free(to.channel);
    return same;
}

static bool same_progs(const struct shift *shift)
{
    for (uint32_t p = 0; p < shift->linked->sched->nprogs; p++)
        if (!same_prog(&shift->linked->progs[p], shift)) return false;
    return true;
}

/* ---- the search ---- */

static uint32_t count_channels(const struct linked *linked)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < linked->sched->nprogs; p++)
        for (uint32_t w = 0; w < linked->progs[p].nwires; w++)
            if (linked->progs[p].wires[w].channel >= count)
                count = linked->progs[p].wires[w].channel + 1u;
    return count;
}

/* A reason that no shift of members need be looked at; "" if there is none. */
static const char *no_shift(const struct sched *sched, bool even)
{
    if (!sched->relative) {
        return "each rank has a program of its own";
    }
    if (sched->nranks == 1) {
        return "there is one rank";
    }
    for (uint32_t buf = BUF_IN; !even && buf <= BUF_SCRATCH; buf++) {
        if (sched_turn(sched, buf) % sched->nparts != 0) {
            return "the chunks differ in length";
        }
    }
    return sched->coll->uneven ? "the blocks differ in length" : "";
}

/* Tries shifts of `count` things by each of its divisors, least first: *by of the shift. Gives the
 * one that is proven, else `count`. */
static uint32_t try_shifts(struct shift *shift, uint32_t *by, uint32_t count)
{
    uint32_t nlinks = network_links(shift->place->network), found = count;
    for (*by = 1; *by <= count / 2 && found == count; ++*by) {
        if (count % *by != 0 || (shift->channels && !same_progs(shift)) || !is_symmetry(shift))
            continue;
        found = *by;
        join_classes(shift->fold, shift->image, nlinks);
    }
    *by = 0;
    return found;
}

/* Gives each link that a flow passes a class of its own. */
static void own_classes(struct shift *shift)
{
    struct fold *fold = shift->fold;
    uint32_t caps[2] = {0, 0}, path[NETWORK_HOPS];
    for (uint32_t m = 0; m < members_of(shift); m++) {
        const struct lprog *prog = prog_of(shift->linked, m);
        for (uint32_t b = 0; b < fold->groups; b++) {
            uint32_t from = fold_end(shift->place, m, b);
            for (uint32_t w = 0; w < prog->nwires; w++) {
                if (!prog->wires[w].send) continue;
                uint32_t peer = sched_peer(shift->linked->sched, m, prog->wires[w].peer);
                uint32_t hops =
                    network_route(shift->place->network, from, fold_end(shift->place, peer, b),
                                  prog->wires[w].channel, path);
                for (uint32_t i = 0; i < hops; i++)
                    class_at(fold, path[i], caps);
            }
        }
    }
}

void fold_find(struct fold *fold, const struct linked *linked, const struct fold_place *place,
               bool even, bool apart)
{
    const struct sched *sched = linked->sched;
    uint32_t n = sched->nranks, nlinks = network_links(place->network);
    uint32_t channels = even && apart ? count_channels(linked) : 1, all = n;
    *fold = (struct fold){.members = sched_ends(sched),
                          .groups = place->groups,
                          .channels = UINT32_MAX,
                          .block = UINT32_MAX,
                          .stands_for = 1};
    snprintf(fold->why, sizeof fold->why, "%s", no_shift(sched, even));
    if (fold->why[0] && place->groups == 1 && channels <= 1) return;
    fold->class_of = mem_calloc(nlinks, sizeof *fold->class_of);
    memset(fold->class_of, 0xff, nlinks * sizeof *fold->class_of);
    struct shift shift = {.linked = linked, .place = place, .fold = fold, .block = UINT32_MAX};
    own_classes(&shift);
    shift.image = mem_calloc(fold->nclasses, sizeof *shift.image);
    fold->groups = try_shifts(&shift, &shift.groups, place->groups);
    fold->stands_for = place->groups / fold->groups;
    for (uint32_t parts = 1; parts <= 2 && channels > parts && fold->channels > channels; parts++) {
        if (channels % parts != 0) continue;
        uint32_t block = shift.block = channels / parts;
        uint32_t kept = try_shifts(&shift, &shift.channels, block);
        if (kept == block) continue;
        fold->stands_for *= block / kept;
        fold->channels = kept;
        fold->block = block;
    }
    shift.block = UINT32_MAX;
    if (!fold->why[0]) {
        all = try_shifts(&shift, &shift.members, n);
        fold->stands_for *= n / all;
        if (all < n) {
            fold->members = all;
            fold->why[0] = '\0';
        }
    }
    free(shift.image);
    if (fold->stands_for > 1) return;
    free(fold->class_of);
    fold->class_of = NULL;
}

void fold_release(struct fold *fold)
{
    free(fold->class_of);
    free(fold->size);
    free(fold->link);
    *fold = (struct fold){0};
}
