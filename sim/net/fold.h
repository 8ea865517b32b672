/* SPDX-License-Identifier: Apache-2.0
 * Folding: where shifting all ranks by h changes nothing, ranks r, r + h, r + 2h, .. do the same at
 * the same times, and the engine need run only the first h of them. That it changes nothing is
 * proven, never assumed: the program is one for all ranks, and the shift takes every route of every
 * wire, hop by hop, to the route of the shifted wire, by one map of links that keeps what a link
 * is.
 *
 *     ranks   0 1 2 3 | 4 5 6 7 | 8 9 ..        h = 4: rank 5 stands for 1, 9 for 1, ..
 *     wire    3 ----------> 4                   is received by 4's representative, 0
 *     links   host0/nic3 out, host1/nic3 out, host2/nic3 out: one class of n / h = 3 links
 *
 * A class of links is an orbit of the map. A flow stands for its whole orbit, n / h flows, which
 * pass a class of c links (n / h) / c times each for every time the path stands on it: so often the
 * flow's rate counts there. c divides n / h, since n / h shifts give every route back. */
#pragma once

#include "net/network.h"
#include "sched/link.h"

struct fold {
    uint32_t nranks;
    uint32_t classes;   /* ranks to run: 0 .. classes - 1; nranks: nothing is folded */
    uint32_t nclasses;  /* of links */
    uint32_t *class_of; /* per link of the network; UINT32_MAX: no flow passes */
    uint32_t *size;     /* per class: links */
    uint32_t *link;     /* .. one of them */
    char why[160];      /* why nothing is folded; "" */
};

/* The least shift h < nranks that is proven, in O(ranks x wires x hops) per divisor of nranks.
 * `even`: all chunks have the same bytes in every pass. Cannot fail. */
void fold_find(struct fold *fold, const struct linked *linked, const struct network *network,
               bool even);
void fold_release(struct fold *fold);
