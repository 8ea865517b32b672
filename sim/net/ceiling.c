/* SPDX-License-Identifier: Apache-2.0
 * Ceilings by counting bytes: see ceiling.h. Sources of the shares: 20 of 25 GB/s of an NVLink for
 * copies by kernels (what NCCL's tuner counts, and what machines of all generations show); 24 of
 * 25 GB/s of a 200 Gb/s NIC; 50 of 63 GB/s of a PCIe Gen5 x16 link. */
#include "net/ceiling.h"

#include <math.h>
#include <stdio.h>

#include "net/closed.h"

static const double nvlink_share = 0.8, nic_share = 0.96, pcie_share = 0.8;

static bool has_nvlink(const struct topo *topo)
{
    return topo->scale_up <= SCALE_UP_NVLINK_PAIRS;
}

/* Whether NIC `i` of a host sits beside accelerator `gpu`. */
static uint64_t nic_at(const struct topo *topo, uint64_t i)
{
    return topo_nic_at(topo, i);
}

/* NICs of a host that sit beside an accelerator that takes part; where none does, one is used from
 * afar. */
double ceiling_nics(const struct topo *topo)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < topo->nics; i++)
        count += nic_at(topo, i) < topo->per_host;
    if (count == 0) count = 1;
    return (double)(topo->nics_used && topo->nics_used < count ? topo->nics_used : count);
}

uint64_t ceiling_far_gpus(const struct topo *topo)
{
    uint64_t far = 0;
    for (uint64_t gpu = 0; topo->hosts > 1 && gpu < topo->per_host; gpu++) {
        uint64_t i = 0;
        while (i < topo->nics && nic_at(topo, i) != gpu)
            i++;
        far += i == topo->nics;
    }
    return far;
}

/* What the formulas need. */
struct need {
    const struct topo *topo;
    double n, g, nodes;
    double link;             /* L */
    double node, per_gpu;    /* W, W / g */
    enum ceiling_limit wire; /* LIMIT_NICS or LIMIT_PCIE: what W is */
};

/* Bridges join pairs: where there are more accelerators, what goes round passes PCIe. */
static bool beyond_pairs(const struct topo *topo)
{
    return topo->scale_up == SCALE_UP_NVLINK_PAIRS && topo->per_host > 2;
}

static double link_rate(const struct topo *topo, const struct net_consts *consts,
                        const struct site *site)
{
    double part = site->line_GBps / topo->line_GBps; /* of a mesh with peers missing */
    if (beyond_pairs(topo)) return pcie_share * topo->host.pcie_GBps;
    double own = consts->link_eff[site->gen];
    double share = has_nvlink(topo) ? fmax(nvlink_share, own) : own;
    return part * fmax(share * topo->line_GBps, topo->ring_GBps);
}

static double nic_rate(const struct topo *topo, const struct net_consts *consts)
{
    double own = consts->nic_eff[topo->fabric];
    return fmax(own, topo->fabric == FABRIC_TCP ? consts->mpi_nic_eff : nic_share);
}

/* Fills W, and the facts of it. */
static void count_nics(const struct topo *topo, const struct net_consts *consts, struct need *need,
                       struct ceiling *c)
{
    double hosts = need->g / (double)topo->per_host;
    c->nics = ceiling_nics(topo) * hosts;
    c->wire_GBps = c->nics * topo->one_nic_Gbps / 8;
    double nics = c->wire_GBps * nic_rate(topo, consts);
    double pcie =
        topo->scale_up == SCALE_UP_MEMORY ? INFINITY : need->g * topo->host.pcie_GBps * pcie_share;
    need->wire = nics <= pcie ? LIMIT_NICS : LIMIT_PCIE;
    need->node = c->node_GBps = fmin(nics, pcie);
    need->per_gpu = c->per_gpu_GBps = need->node / need->g;
}

/* Lowers the ceiling. */
static void bound(struct ceiling *c, double GBps, enum ceiling_limit limit)
{
    if (GBps >= c->busbw_GBps) return;
    c->busbw_GBps = GBps;
    c->limit = limit;
}

/* Accelerators under one leaf switch (its hosts, or its rail group). */
static double leaf_gpus(const struct topo *topo)
{
    return (double)topo->leaf_hosts * (double)topo->per_host;
}

static bool above_leaves(const struct need *need)
{
    return need->topo->oversubscribed > 1 && leaf_gpus(need->topo) > 0 &&
           need->n > leaf_gpus(need->topo);
}

/* Rings and trees pass from leaf to leaf over few of the links above. */
static void bound_leaf_chain(struct ceiling *c, const struct need *need)
{
    double hosts = (double)need->topo->leaf_hosts;
    if (above_leaves(need)) bound(c, need->node * hosts / need->topo->oversubscribed, LIMIT_LEAF);
}

/* All that endpoints add up: each node's NICs carry S (N-1)/N or more each way, twice. */
static void bound_cut(struct ceiling *c, const struct need *need, enum coll_id coll)
{
    double n = need->n, nodes = need->nodes;
    double factor = coll_get(coll)->busbw_factor((uint32_t)n);
    double passes = coll == COLL_ALLREDUCE ? 2 : 1; /* S (N-1)/N per pass; rooted: S */
    bool whole = coll == COLL_BROADCAST || coll == COLL_REDUCE;
    if (nodes > 1)
        bound(c, factor / (passes * (whole ? 1 : (nodes - 1) / nodes)) * need->node, need->wire);
}

/* What the NICs of one accelerator carry; it may have the use of one that it shares. */
static double one_gpu(const struct need *need, const struct ceiling *c)
{
    double all = need->node * fmax(1 / need->g, 1 / c->nics);
    return fmin(all, need->topo->scale_up == SCALE_UP_MEMORY
                         ? all
                         : need->topo->host.pcie_GBps * pcie_share);
}

static void bound_pairs(struct ceiling *c, const struct need *need, enum coll_id coll)
{
    double n = need->n, g = need->g, leaf = leaf_gpus(need->topo);
    bool many = need->nodes > 1;
    double out = (n - 1) / (n - g); /* all blocks per block that leaves the node */
    /* the block for or from the other of a pair takes their bridge */
    double rooted = need->link * (n - 1) / (n - 1 - beyond_pairs(need->topo));
    switch (coll) {
    case COLL_SENDRECV: /* one message crosses from node to node */
        bound(c, need->link, LIMIT_LINK);
        if (many) bound(c, one_gpu(need, c), need->wire);
        return;
    case COLL_GATHER: /* all blocks to the NICs of one accelerator */
        bound(c, rooted, LIMIT_LINK);
        if (many) bound(c, one_gpu(need, c) * out, need->wire);
        return;
    case COLL_SCATTER: /* from one accelerator, which may hand them to its node's */
        bound(c, rooted, LIMIT_LINK);
        if (many) bound(c, need->node * out, need->wire);
        return;
    default:
        /* of g - 1 blocks for the node, the one for the other of the pair takes their bridge */
        if (g > 1) bound(c, need->link * (n - 1) / (g - 1 - beyond_pairs(need->topo)), LIMIT_LINK);
        if (many) bound(c, need->per_gpu * out, need->wire);
        if (above_leaves(need))
            bound(c, need->per_gpu / need->topo->oversubscribed * (n - 1) / (n - leaf), LIMIT_LEAF);
    }
}

/* An all-reduce in the switch: each accelerator sends S and receives S, at the rate of multicasts.
 */
static double switch_rate(const struct need *need, const struct net_consts *consts,
                          enum coll_id coll)
{
    if (coll != COLL_ALLREDUCE) return need->link;
    return need->link * 2 * (need->n - 1) / need->n * consts->nvls_eff[link_gen_of(need->topo)];
}

static void bound_kind(struct ceiling *c, const struct need *need, const struct net_consts *consts,
                       enum ceiling_kind kind, enum coll_id coll)
{
    double n = need->n;
    switch (kind) {
    case CEILING_RING:
        if (need->g > 1) bound(c, need->link, LIMIT_LINK);
        if (need->nodes > 1) bound(c, need->node, need->wire);
        bound_leaf_chain(c, need);
        break;
    case CEILING_TREE:
        if (need->g > 1) bound(c, need->link * (n - 1) / n, LIMIT_LINK);
        bound_cut(c, need, coll);
        bound_leaf_chain(c, need);
        break;
    case CEILING_SWITCH:
        bound(c, switch_rate(need, consts, coll), LIMIT_LINK);
        bound_cut(c, need, coll);
        bound_leaf_chain(c, need);
        break;
    case CEILING_SHARP:
        bound(c, switch_rate(need, consts, coll), LIMIT_LINK);
        bound(c, need->node * 2 * (n - 1) / n, need->wire);
        break;
    case CEILING_PAIRS:
        bound_pairs(c, need, coll);
        break;
    case CEILING_ANY:
        if (need->g > 1) bound(c, need->link, LIMIT_LINK);
        bound_cut(c, need, coll);
        break;
    }
}

static const char *link_title(const struct topo *topo)
{
    static const char *const titles[NSCALE_UP] = {
        [SCALE_UP_NVSWITCH] = "NVLink",
        [SCALE_UP_NVLINK_MESH] = "NVLink",
        [SCALE_UP_NVLINK_CUBE] = "NVLink",
        [SCALE_UP_NVLINK_PAIRS] = "NVLink",
        [SCALE_UP_XGMI] = "xGMI",
        [SCALE_UP_PCIE] = "PCIe",
        [SCALE_UP_PCIE_HOST] = "host memory",
        [SCALE_UP_MEMORY] = "memory",
    };
    return titles[beyond_pairs(topo) ? SCALE_UP_PCIE : topo->scale_up];
}

static void say(struct ceiling *c, const struct topo *topo)
{
    bool cpu = topo->scale_up == SCALE_UP_MEMORY;
    double hosts = c->nics > 0 ? ceil((double)topo_domain(topo) / (double)topo->per_host) : 1;
    switch (c->limit) {
    case LIMIT_NONE:
        break;
    case LIMIT_LINK:
        snprintf(c->text, sizeof c->text, "%s of a %s", link_title(topo), cpu ? "host" : "GPU");
        break;
    case LIMIT_NICS:
        snprintf(c->text, sizeof c->text, "%g NIC%s of a %s", c->nics, c->nics == 1 ? "" : "s",
                 hosts > 1 ? "domain" : "host");
        break;
    case LIMIT_PCIE:
        snprintf(c->text, sizeof c->text, "PCIe link of a GPU");
        break;
    case LIMIT_LEAF:
        snprintf(c->text, sizeof c->text, "links above a leaf switch (1:%g)", topo->oversubscribed);
        break;
    }
}

struct ceiling ceiling_of(const struct topo *topo, const struct net_consts *consts,
                          enum ceiling_kind kind, enum coll_id coll)
{
    struct ceiling c = {.busbw_GBps = INFINITY};
    struct err none = ERR_INIT;
    struct site site;
    int dead = site_of(topo, &site, &none); /* nodes without a network */
    err_release(&none);
    struct need need = {.topo = topo, .n = site.n, .g = site.per_node, .nodes = site.nodes};
    need.link = c.link_GBps = link_rate(topo, consts, &site);
    if (site.nodes > 1 && !dead) count_nics(topo, consts, &need, &c);
    if (site.n > 1) bound_kind(&c, &need, consts, kind, coll);
    if (c.limit == LIMIT_NONE) c.busbw_GBps = 0;
    say(&c, topo);
    return c;
}
