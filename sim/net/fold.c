/* SPDX-License-Identifier: Apache-2.0
 * The search for a shift that changes nothing: see fold.h. */
#include "net/fold.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define NONE UINT32_MAX

/* A shift in the making. */
struct shift {
    const struct sched *sched;
    const struct lprog *prog;
    const struct network *network;
    uint32_t by;
    uint32_t *image; /* per link: where it goes; NONE: open */
    char *why;
    size_t why_size;
};

static bool same_link(const struct net_link *a, const struct net_link *b)
{
    return a->kind == b->kind && a->latency_ps == b->latency_ps &&
           a->capacity_Bps == b->capacity_Bps && a->peak_Bps == b->peak_Bps &&
           a->bucket_bytes == b->bucket_bytes;
}

/* Whether link a can go to link b; notes it. No two links go to one: each stands at some hop of the
 * route of some wire, and nranks / by shifts bring that route back. */
static bool map_link(struct shift *shift, uint32_t a, uint32_t b)
{
    if (shift->image[a] == b) {
        return true;
    }
    struct net_link from = network_link(shift->network, a), to = network_link(shift->network, b);
    if (shift->image[a] == NONE && same_link(&from, &to)) {
        shift->image[a] = b;
        return true;
    }
    char *first = network_link_name(shift->network, a);
    char *second = network_link_name(shift->network, b);
    snprintf(shift->why, shift->why_size, "ranks shifted by %u: the link %s %s %s", shift->by,
             first, same_link(&from, &to) ? "cannot always become" : "is not like", second);
    free(first);
    free(second);
    return false;
}

/* Whether the shift takes a wire's route to the shifted wire's. */
static bool map_route(struct shift *shift, uint32_t rank, const struct lwire *wire)
{
    uint32_t n = shift->sched->nranks, peer = sched_peer(shift->sched, rank, wire->peer);
    uint32_t rank2 = (rank + shift->by) % n, peer2 = (peer + shift->by) % n;
    uint32_t path[NETWORK_HOPS], path2[NETWORK_HOPS];
    uint32_t hops = network_route(shift->network, rank, peer, wire->channel, path);
    uint32_t hops2 = network_route(shift->network, rank2, peer2, wire->channel, path2);
    if (hops != hops2 ||
        network_scope(shift->network, rank, peer) != network_scope(shift->network, rank2, peer2)) {
        snprintf(shift->why, shift->why_size,
                 "ranks shifted by %u: the route %u to %u is not like %u to %u", shift->by, rank,
                 peer, rank2, peer2);
        return false;
    }
    for (uint32_t i = 0; i < hops; i++) {
        if (!map_link(shift, path[i], path2[i])) {
            return false;
        }
    }
    return true;
}

static bool is_symmetry(struct shift *shift)
{
    memset(shift->image, 0xff, network_links(shift->network) * sizeof *shift->image);
    for (uint32_t r = 0; r < shift->sched->nranks; r++) {
        for (uint32_t w = 0; w < shift->prog->nwires; w++) {
            if (shift->prog->wires[w].send && !map_route(shift, r, &shift->prog->wires[w])) {
                return false;
            }
        }
    }
    return true;
}

/* The orbits of the map of links. */
static void find_classes(struct fold *fold, const struct shift *shift)
{
    uint32_t nlinks = network_links(shift->network), cap = 0, cap2 = 0;
    fold->class_of = mem_calloc(nlinks, sizeof *fold->class_of);
    memset(fold->class_of, 0xff, nlinks * sizeof *fold->class_of);
    for (uint32_t first = 0; first < nlinks; first++) {
        if (shift->image[first] == NONE || fold->class_of[first] != NONE) {
            continue;
        }
        uint32_t number = fold->nclasses, count = fold->nclasses, link = first;
        MEM_GROW(fold->link, number, cap);
        MEM_GROW(fold->size, count, cap2);
        fold->nclasses++;
        fold->link[number] = first;
        fold->size[number] = 0;
        do {
            fold->class_of[link] = number;
            fold->size[number]++;
            link = shift->image[link];
        } while (link != first);
    }
}

/* A reason that no route need be looked at for; "" if there is none. */
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

void fold_find(struct fold *fold, const struct linked *linked, const struct network *network,
               bool even)
{
    const struct sched *sched = linked->sched;
    uint32_t n = sched->nranks;
    *fold = (struct fold){.nranks = n, .classes = n};
    snprintf(fold->why, sizeof fold->why, "%s", no_shift(sched, even));
    if (fold->why[0]) {
        return;
    }
    struct shift shift = {.sched = sched,
                          .prog = &linked->progs[0],
                          .network = network,
                          .image = mem_calloc(network_links(network), sizeof *shift.image),
                          .why = fold->why,
                          .why_size = sizeof fold->why};
    for (shift.by = 1; shift.by <= n / 2 && fold->classes == n; shift.by++) {
        if (n % shift.by == 0 && is_symmetry(&shift)) {
            fold->classes = shift.by;
            fold->why[0] = '\0';
            find_classes(fold, &shift);
        }
    }
    free(shift.image);
}

void fold_release(struct fold *fold)
{
    free(fold->class_of);
    free(fold->size);
    free(fold->link);
    *fold = (struct fold){0};
}
