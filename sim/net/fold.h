/* SPDX-License-Identifier: Apache-2.0
 * Folding: where a shift changes nothing, what it takes to one another does the same at the same
 * times, and the engine need run only one of each. Three shifts are tried, in this order:
 *
 *   groups     group b becomes b + s: siblings that lie alike (any schedule)
 *   channels   channel c becomes c + d: copies of the pattern whose programs are alike; or within
 *              each half of the channels, which have a tree each
 *   members    rank k of each group becomes k + h (one program for all ranks)
 *
 * That a shift changes nothing is proven, never assumed: it takes every route of every wire, hop by
 * hop, to the route of the shifted wire, by one map of links that keeps what a link is.
 *
 *     ranks   0 1 2 3 | 4 5 6 7 | 8 9 ..        h = 4: rank 5 stands for 1, 9 for 1, ..
 *     wire    3 ----------> 4                   is received by 4's representative, 0
 *     links   host0/nic3 out, host1/nic3 out, host2/nic3 out: one class of n / h = 3 links
 *
 * A class of links is an orbit of the map. A flow stands for its whole orbit, `stands_for` flows,
 * which pass a class of c links stands_for / c times each for every time the path stands on it: so
 * often the flow's rate counts there. c divides it, since so many shifts give every route back. The
 * next shift is sought among what the one before left: of classes, which have a size, too. */
#pragma once

#include "net/network.h"
#include "sched/link.h"

/* Where the ends of a job are: member k (rank, or agent from nranks on) of group b. */
struct fold_place {
    const struct sched *sched;
    const struct network *network;
    const uint32_t *ranks; /* the network's rank of rank k of group b, at k x groups + b; NULL: */
    uint32_t base, groups; /* .. base + k x groups + b. groups >= 1 */
};

/* The network's end for a member of a group; NONE (UINT32_MAX) for an agent: no switch reduces
 * there. */
uint32_t fold_end(const struct fold_place *place, uint32_t member, uint32_t group);

struct fold {
    uint32_t members, groups; /* to run: members 0 .. members - 1 of groups 0 .. groups - 1 */
    uint32_t channels, block; /* .. and of each `block` of channels the first `channels` */
    uint32_t stands_for;      /* flows, each that is run; 1: nothing is folded */
    uint32_t nclasses;        /* of links */
    uint32_t *class_of;       /* per link of the network; UINT32_MAX: no flow passes. NULL: nothing
                                 is folded */
    uint32_t *size;           /* per class: links */
    uint32_t *link;           /* .. one of them */
    char why[160];            /* why members are not folded; "" */
};

/* Whether what happens on a channel is run. */
static inline bool fold_runs(const struct fold *fold, uint32_t channel)
{
    return channel % fold->block < fold->channels;
}

/* The least shifts that are proven, in O(ranks x wires x hops) per divisor of their numbers.
 * `even`: all chunks have the same bytes in every pass; `apart`: channels of a rank meet on links
 * alone, no processor of it serves one after the other. Cannot fail. */
void fold_find(struct fold *fold, const struct linked *linked, const struct fold_place *place,
               bool even, bool apart);
void fold_release(struct fold *fold);
