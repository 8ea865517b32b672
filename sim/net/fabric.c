/* SPDX-License-Identifier: Apache-2.0
 * Switches between hosts. See fabric.h; the dragonfly's counts are those of Slingshot-11: 64 ports,
 * 16 for NICs, 31 within the group, 16 to other groups. */
#include "net/fabric.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"

enum { DRAGONFLY_NICS = 16, DRAGONFLY_LOCAL = 31, DRAGONFLY_GLOBAL = 16, WHOLE_RING = 4 };

/* ---- making one ---- */

/* Sides of a torus as near to a cube as the number of hosts allows. */
static void choose_dims(struct net_fabric *fabric)
{
    uint32_t left = fabric->hosts;
    fabric->ndims = 3;
    fabric->dims = mem_calloc(3, sizeof *fabric->dims);
    for (uint32_t axis = 3; axis > 0; axis--) {
        uint32_t side = (uint32_t)(pow(left, 1.0 / axis) + 1e-9);
        while (left % side)
            side--;
        fabric->dims[axis - 1] = axis > 1 ? side : left;
        left /= fabric->dims[axis - 1];
    }
}

static void make_torus(struct net_fabric *fabric, const struct topo *topo)
{
    if (topo->dims) {
        fabric->ndims = topo->ndims;
        fabric->dims = mem_calloc(topo->ndims, sizeof *fabric->dims);
        for (uint32_t i = 0; i < topo->ndims; i++)
            fabric->dims[i] = topo->dims[i];
    } else {
        choose_dims(fabric);
    }
    fabric->nics = 2 * fabric->ndims;
    fabric->up_GBps = topo->one_nic_Gbps / 8;
}

/* Number of links of a tree, as a double since it may be beyond 32 bits. */
static double make_tree(struct net_fabric *fabric, const struct topo *topo)
{
    uint32_t hosts = fabric->hosts < fabric->leaf_hosts ? fabric->hosts : fabric->leaf_hosts;
    bool rail = fabric->layout == TOPO_RAIL;
    double under = (double)hosts * (rail ? 1 : fabric->nics);
    double leaves = (double)fabric->groups * (rail ? fabric->nics : 1);
    double spines = fmax(1, floor(under / topo->oversubscribed + 1e-9));
    if (2 * leaves * spines > INT32_MAX) return 2 * leaves * spines; /* refused */
    fabric->leaves = (uint32_t)leaves;
    fabric->spines = (uint32_t)spines;
    fabric->up_GBps =
        under * topo->one_nic_Gbps / 8 / topo->oversubscribed / (double)fabric->spines;
    return 2 * leaves * spines;
}

static double make_dragonfly(struct net_fabric *fabric, const struct topo *topo, struct err *err)
{
    uint64_t ends = (uint64_t)fabric->leaf_hosts * fabric->nics;
    uint64_t most = DRAGONFLY_NICS * (DRAGONFLY_LOCAL + 1);
    if (ends > most) {
        err_add(err, ERR_USAGE,
                "%s: a dragonfly's group of %" PRIu32 " hosts with %" PRIu32 " NICs has %" PRIu64
                "; the most are %" PRIu64 ": \"leaf_hosts\" up to %" PRIu64,
                topo->name, fabric->leaf_hosts, fabric->nics, ends, most, most / fabric->nics);
        return 0;
    }
    uint32_t a = (uint32_t)((ends + DRAGONFLY_NICS - 1) / DRAGONFLY_NICS),
             others = fabric->groups - 1;
    uint32_t local = a > 1 ? DRAGONFLY_LOCAL / (a - 1) : 0;
    if (others > a * DRAGONFLY_GLOBAL) {
        err_add(err, ERR_USAGE,
                "%s: %" PRIu32 " dragonfly groups, but one of %" PRIu32
                " switches has cables to %" PRIu32 " others at most; larger \"leaf_hosts\" make "
                "fewer groups",
                topo->name, fabric->groups, a, a * DRAGONFLY_GLOBAL);
        return 0;
    }
    fabric->switches = a;
    fabric->cables = others ? a * DRAGONFLY_GLOBAL / others : 0;
    fabric->local_GBps = local * topo->one_nic_Gbps / 8;
    fabric->up_GBps = topo->one_nic_Gbps / 8 / topo->oversubscribed;
    return (double)fabric->groups * a * (a - 1) + (double)fabric->groups * others * fabric->cables;
}

int fabric_make(struct net_fabric *fabric, const struct topo *topo, struct err *err)
{
    *fabric = (struct net_fabric){.layout = topo->layout,
                                  .hosts = (uint32_t)topo->hosts,
                                  .nics = (uint32_t)topo->nics,
                                  .leaf_hosts = (uint32_t)topo->leaf_hosts,
                                  .leaves = 1};
    unsigned before = err->count;
    double links = 0;
    fabric->groups = (fabric->hosts - 1) / fabric->leaf_hosts + 1;
    fabric->hashed = topo->fabric == FABRIC_ROCE || topo->fabric == FABRIC_TCP;
    if (fabric->layout == TOPO_TORUS) make_torus(fabric, topo);
    if (fabric->layout == TOPO_DRAGONFLY) links = make_dragonfly(fabric, topo, err);
    if (fabric->layout == TOPO_FAT_TREE || fabric->layout == TOPO_RAIL)
        links = make_tree(fabric, topo);
    if (links > INT32_MAX)
        err_add(err, ERR_USAGE, "%s: %.0f links between switches; the most are %d", topo->name,
                links, INT32_MAX);
    fabric->nlinks = links > INT32_MAX ? 0 : (uint32_t)links;
    if (err->count == before) return 0;
    fabric_release(fabric);
    return -1;
}

void fabric_release(struct net_fabric *fabric)
{
    free(fabric->dims);
    *fabric = (struct net_fabric){0};
}

/* ---- where things are ---- */

uint32_t fabric_group(const struct net_fabric *fabric, uint32_t host)
{
    if (fabric->layout == TOPO_SWITCH) return 0;
    return fabric->layout == TOPO_TORUS ? host : host / fabric->leaf_hosts;
}

uint32_t fabric_leaf(const struct net_fabric *fabric, uint32_t host, uint32_t nic)
{
    uint32_t group = fabric_group(fabric, host);
    return fabric->layout == TOPO_RAIL ? group * fabric->nics + nic : group;
}

/* Among the NICs of its leaf, or of its dragonfly group. */
static uint32_t place(const struct net_fabric *fabric, uint32_t host, uint32_t nic)
{
    uint32_t at = host % fabric->leaf_hosts;
    return fabric->layout == TOPO_RAIL ? at : at * fabric->nics + nic;
}

uint32_t fabric_plug(const struct net_fabric *fabric, uint32_t host, uint32_t nic)
{
    if (fabric->layout != TOPO_DRAGONFLY) return fabric_leaf(fabric, host, nic);
    return fabric_group(fabric, host) * fabric->switches +
           place(fabric, host, nic) / DRAGONFLY_NICS;
}

/* Which of `count` equal ways. */
static uint32_t pick(const struct net_fabric *fabric, uint32_t from, uint32_t to, uint32_t distance,
                     uint32_t channel, uint32_t count)
{
    if (!fabric->hashed) return to % count;
    uint64_t key = rng_mix((uint64_t)from << 32 | to) ^ ((uint64_t)distance << 32 | channel);
    return (uint32_t)(rng_mix(key) % count);
}

/* ---- trees ---- */

static uint32_t tree_way(const struct net_fabric *fabric, uint32_t from, uint32_t to,
                         uint32_t spine, uint32_t *path)
{
    if (from == to) return 0;
    path[0] = fabric->first + 2 * (from * fabric->spines + spine);
    path[1] = fabric->first + 2 * (to * fabric->spines + spine) + 1;
    return 2;
}

uint32_t fabric_leaf_way(const struct net_fabric *fabric, uint32_t from, uint32_t to,
                         uint32_t *path)
{
    uint32_t rails = fabric->layout == TOPO_RAIL ? fabric->nics : 1;
    uint32_t spine = fabric->spines ? (from + to) / rails % fabric->spines : 0;
    return from == to ? 0 : tree_way(fabric, from, to, spine, path);
}

/* ---- dragonfly ---- */

/* `other` among all numbers but `self`. */
static uint32_t without(uint32_t other, uint32_t self)
{
    return other < self ? other : other - 1;
}

static uint32_t local(const struct net_fabric *fabric, uint32_t group, uint32_t from, uint32_t to,
                      uint32_t *path)
{
    uint32_t a = fabric->switches;
    if (from == to) return 0;
    path[0] = fabric->first + (group * a + from) * (a - 1) + without(to, from);
    return 1;
}

/* Cable k from one group to another: its number, and the switch that it leaves. */
static uint32_t cable(const struct net_fabric *fabric, uint32_t from, uint32_t to, uint32_t k,
                      uint32_t *at)
{
    uint32_t end = without(to, from) * fabric->cables + k;
    *at = end % fabric->switches;
    return fabric->groups * fabric->switches * (fabric->switches - 1) +
           from * (fabric->groups - 1) * fabric->cables + end;
}

static uint32_t dragonfly_way(const struct net_fabric *fabric, const uint32_t host[2],
                              const uint32_t nic[2], uint32_t channel, uint32_t *path)
{
    uint32_t group[2], at[2], ends[2], gate[2], hops;
    for (int i = 0; i < 2; i++) {
        group[i] = fabric_group(fabric, host[i]);
        ends[i] = place(fabric, host[i], nic[i]);
        at[i] = ends[i] / DRAGONFLY_NICS;
    }
    if (group[0] == group[1]) return local(fabric, group[0], at[0], at[1], path);
    uint32_t distance = (group[1] + fabric->groups - group[0]) % fabric->groups;
    uint32_t k = pick(fabric, ends[0], ends[1], distance, channel, fabric->cables);
    uint32_t there = cable(fabric, group[0], group[1], k, &gate[0]);
    cable(fabric, group[1], group[0], k, &gate[1]);
    hops = local(fabric, group[0], at[0], gate[0], path);
    path[hops++] = fabric->first + there;
    return hops + local(fabric, group[1], gate[1], at[1], path + hops);
}

/* ---- torus ---- */

uint32_t fabric_neighbour(const struct net_fabric *fabric, uint32_t host, uint32_t port)
{
    uint32_t axis = port / 2, step = 1;
    for (uint32_t i = 0; i < axis; i++)
        step *= fabric->dims[i];
    uint32_t side = fabric->dims[axis], at = host / step % side;
    uint32_t next = port % 2 ? (at + side - 1) % side : (at + 1) % side;
    bool around = port % 2 ? at == 0 : at + 1 == side;
    if (around && side < WHOLE_RING) return host;
    return host - at * step + next * step;
}

static uint32_t torus_way(const struct net_fabric *fabric, const uint32_t host[2], uint32_t channel,
                          uint32_t *path)
{
    uint32_t hops = 0, at = host[0], step = 1;
    for (uint32_t axis = 0; axis < fabric->ndims; step *= fabric->dims[axis++]) {
        uint32_t side = fabric->dims[axis], from = host[0] / step % side,
                 to = host[1] / step % side;
        uint32_t ahead = (to + side - from) % side, back = side - ahead;
        bool open = side < WHOLE_RING;
        bool backwards = open ? to < from : ahead > back || (ahead == back && channel % 2);
        uint32_t count = backwards ? (ahead ? back : 0) : ahead;
        for (uint32_t i = 0; i < count; i++) {
            path[hops++] = at * fabric->stride + fabric->port + 2 * axis + backwards;
            at = fabric_neighbour(fabric, at, 2 * axis + backwards);
        }
    }
    return hops;
}

/* ---- all ---- */

uint32_t fabric_way(const struct net_fabric *fabric, const uint32_t host[2], const uint32_t nic[2],
                    uint32_t channel, uint32_t *path)
{
    if (fabric->layout == TOPO_TORUS) return torus_way(fabric, host, channel, path);
    uint32_t hops = 0;
    path[hops++] = host[0] * fabric->stride + fabric->port + 2 * nic[0];
    if (fabric->layout == TOPO_DRAGONFLY) {
        hops += dragonfly_way(fabric, host, nic, channel, path + hops);
    } else if (fabric->layout != TOPO_SWITCH) {
        uint32_t from = fabric_leaf(fabric, host[0], nic[0]);
        uint32_t to = fabric_leaf(fabric, host[1], nic[1]);
        uint32_t spine =
            pick(fabric, place(fabric, host[0], nic[0]), place(fabric, host[1], nic[1]),
                 (to + fabric->leaves - from) % fabric->leaves, channel, fabric->spines);
        hops += tree_way(fabric, from, to, spine, path + hops);
    }
    path[hops++] = host[1] * fabric->stride + fabric->port + 2 * nic[1] + 1;
    return hops;
}

uint32_t fabric_longest(const struct net_fabric *fabric)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < fabric->ndims; i++)
        sum += fabric->dims[i] < WHOLE_RING ? fabric->dims[i] - 1 : fabric->dims[i] / 2;
    return fabric->layout == TOPO_TORUS ? sum : 2 + (fabric->layout == TOPO_DRAGONFLY ? 3 : 2);
}

double fabric_link(const struct net_fabric *fabric, uint32_t i, uint32_t *from, uint32_t *to)
{
    uint32_t a = fabric->switches, locals = fabric->groups * a * (a - (a > 0));
    if (fabric->layout != TOPO_DRAGONFLY) {
        uint32_t leaf = i / 2 / fabric->spines, spine = fabric->leaves + i / 2 % fabric->spines;
        *from = i % 2 ? spine : leaf;
        *to = i % 2 ? leaf : spine;
        return fabric->up_GBps;
    }
    if (i < locals) {
        uint32_t at = i / (a - 1), other = i % (a - 1);
        *from = at;
        *to = at / a * a + other + (other >= at % a);
        return fabric->local_GBps;
    }
    uint32_t per = (fabric->groups - 1) * fabric->cables, group = (i - locals) / per;
    uint32_t end = (i - locals) % per, other = end / fabric->cables, gate;
    other += other >= group;
    cable(fabric, other, group, end % fabric->cables, &gate);
    *from = group * a + end % a;
    *to = other * a + gate;
    return fabric->up_GBps;
}

char *fabric_link_name(const struct net_fabric *fabric, uint32_t i)
{
    uint32_t from, to, a = fabric->switches;
    fabric_link(fabric, i, &from, &to);
    if (fabric->layout != TOPO_DRAGONFLY)
        return i % 2 ? mem_printf("spine%" PRIu32 " to leaf%" PRIu32, from - fabric->leaves, to)
                     : mem_printf("leaf%" PRIu32 " to spine%" PRIu32, from, to - fabric->leaves);
    if (i < fabric->groups * a * (a - 1))
        return mem_printf("group%" PRIu32 "/switch%" PRIu32 " to switch%" PRIu32, from / a,
                          from % a, to % a);
    uint32_t per = (fabric->groups - 1) * fabric->cables;
    uint32_t end = (i - fabric->groups * a * (a - 1)) % per;
    return mem_printf("group%" PRIu32 " to group%" PRIu32 " cable%" PRIu32, from / a, to / a,
                      end % fabric->cables);
}
