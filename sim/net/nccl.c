/* SPDX-License-Identifier: Apache-2.0
 * The tables of NCCL's model and the sums over them. Latencies in us by protocol LL, LL128,
 * Simple; bandwidths in GB/s. */
#include "net/nccl.h"

#include <math.h>

enum { LINK, PCI, NET, NHW }; /* what a hop crosses: NVLink or xGMI, PCIe, the network */

static const double base_us[NNCCL_ALGOS][NNCCL_PROTOS] = {
    [NCCL_RING] = {6.6, 14, 8.4},
    [NCCL_TREE] = {6.8, 14, 8.4},
    [NCCL_PAT] = {8, 8, 8},
    [NCCL_P2P] = {8.4, 8.4, 8.4},
};

static const double hop_us[NNCCL_ALGOS][NHW][NNCCL_PROTOS] = {
    [NCCL_RING] = {{.6, 1.9, 3.4}, {1, 2.5, 5.7}, {2.7, 4, 14}},
    [NCCL_TREE] = {{.6, 1.25, 4}, {1, 1.9, 4}, {5, 8.5, 14}},
    [NCCL_COLLNET] = {{0, 0, 2.8}, {0, 0, 2.8}, {0, 0, 30}},
    [NCCL_NVLS] = {{0, 0, 25}, {0, 0, 0}, {0, 0, 18}},
    [NCCL_NVLS_TREE] = {{0, 0, 25}, {0, 0, 0}, {0, 0, 20.9}},
    [NCCL_PAT] = {{0, 0, 4}, {0, 0, 4}, {0, 0, 14}},
    [NCCL_P2P] = {{3.4, 3.4, 3.4}, {5.7, 5.7, 5.7}, {14, 14, 14}},
};

/* By generation of links: share of the line rate that NCCL counts with (20 of 25, 20.6 of 25, 40.1
 * of 50, 12 of 15.75 GB/s), most of LL and most of a channel with 1, 2 and more nodes, and the
 * usual number of channels. */
static const struct gen {
    double share, ll_most[3], ring_ll128, tree_ll128[3], tree_simple[3], nvls_tree[3], nvls;
    uint32_t channels;
} gens[NLINK_GENS] = {
    [LINK_NVLINK2] = {.8, {39, 39, 20.4}, 20, {20, 20, 20}, {26.5, 18.5, 10}, {0}, 0, 12},
    [LINK_NVLINK3] = {.8, {87.7, 22.5, 19}, 20, {20, 20, 20}, {24, 23.6, 17.8}, {0}, 0, 24},
    [LINK_NVLINK4] = {.824,
                      {141, 45, 35},
                      36.7,
                      {36.7, 36.7, 29},
                      {38.7, 41.4, 36},
                      {0, 57.7, 45.5},
                      8 * 40 * .85,
                      16},
    [LINK_NVLINK5] =
        {.802, {282, 90, 70}, 40, {55.6, 31.7, 20}, {70, 42.8, 24}, {0, 96, 80}, 8 * 80 * .74, 24},
    [LINK_XGMI] = {.75, {87.7, 22.5, 19}, 20, {20, 20, 20}, {24, 23.6, 17.8}, {0}, 0, 28},
    [LINK_PCIE] = {.762, {39, 39, 20.4}, 20, {20, 20, 20}, {24, 23.6, 17.8}, {0}, 0, 4},
    [LINK_MEMORY] = {.762, {39, 39, 20.4}, 20, {20, 20, 20}, {24, 23.6, 17.8}, {0}, 0, 2},
};

/* What NCCL takes off a tree in the middle, by size: 64 B << i. */
static const double tree_share[NNCCL_PROTOS][24] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
     .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9}};

static const double net_share = .96; /* 12 GB/s of 100 Gb/s */

struct ask {
    const struct site *s;
    const struct gen *g;
    enum coll_id coll;
    double bytes, own, net, log_nodes;
    unsigned many; /* 0, 1, 2: one, two, more nodes */
    uint32_t channels;
};

static unsigned inside(const struct ask *a)
{
    return a->s->gen == LINK_PCIE || a->s->gen == LINK_MEMORY ? PCI : LINK;
}

static bool reduces_all(const struct ask *a)
{
    return a->coll == COLL_ALLREDUCE;
}

static double post_us(int proto)
{
    return proto == NCCL_SIMPLE ? 3 : 1; /* of a network send */
}

static double ring_us(const struct ask *a, int p)
{
    const struct site *s = a->s;
    bool rooted = a->coll == COLL_BROADCAST || a->coll == COLL_REDUCE;
    double times = reduces_all(a) ? 2 : 1, steps = times * (s->n - 1);
    double outside = times * (s->nodes - 1);
    int far = s->per_node > 1 ? NCCL_RING : NCCL_TREE;
    double in = hop_us[NCCL_RING][inside(a)][p], out = hop_us[far][NET][p];
    if (a->many) in = fmax(in, post_us(p));
    double us = base_us[NCCL_RING][p] + (rooted ? in : (steps - outside) * in + outside * out);
    bool full = a->bytes / (a->channels * s->n) >= 64;
    if (p == NCCL_SIMPLE && a->many && reduces_all(a) && full)
        us *= s->gen <= LINK_NVLINK2 ? 1.9 : 1.4;
    double bus = fmin(a->own, a->net);
    if (p == NCCL_LL) bus = fmin(a->g->ll_most[a->many], .5 * bus);
    if (p == NCCL_LL128) bus = fmin(.92 * bus, a->channels * a->g->ring_ll128);
    double moved = rooted ? 1 : steps / s->n;
    return us + moved * a->bytes / (bus * 1e3);
}

static double tree_us(const struct ask *a, int p)
{
    const struct site *s = a->s;
    double in = hop_us[NCCL_TREE][inside(a)][p], out = hop_us[NCCL_TREE][NET][p];
    double us = base_us[NCCL_TREE][p] + 2 * ((s->per_node - 1) * in + a->log_nodes * out);
    double bus = .92 * fmin(a->own, a->many == 1 ? 2 * a->net : a->net);
    bus = fmin(bus, a->channels * a->g->tree_simple[a->many]);
    if (p == NCCL_LL) bus = fmin(bus / 3.8, a->g->ll_most[a->many]);
    if (p == NCCL_LL128)
        bus = fmin(bus * (a->many ? 120. / 128 : 7. / 9), a->channels * a->g->tree_ll128[a->many]);
    int i = (int)fmax(0, floor(log2(fmax(a->bytes, 1) / 64)));
    if (i < 24) bus *= tree_share[p][i];
    return us + 2 * a->bytes / (bus * 1e3);
}

static double nvls_us(const struct ask *a)
{
    double us = hop_us[NCCL_NVLS][LINK][NCCL_SIMPLE], algbw = a->g->nvls;
    if (a->many) {
        us += 2 * a->log_nodes * hop_us[NCCL_NVLS_TREE][NET][NCCL_SIMPLE];
        double bus = fmin(8 * a->g->nvls_tree[a->many], a->many == 1 ? 2 * a->net : a->net);
        algbw = fmin(algbw, bus / 2);
    }
    return us + a->bytes / (algbw * 1e3);
}

static double collnet_us(const struct ask *a)
{
    double us = 2 * (a->s->per_node - 1) * hop_us[NCCL_COLLNET][LINK][NCCL_SIMPLE] +
                hop_us[NCCL_COLLNET][NET][NCCL_SIMPLE];
    return us + 2 * a->bytes / (fmin(a->own, 2 * a->net) * 1e3);
}

static double pat_us(const struct ask *a)
{
    double us = base_us[NCCL_PAT][NCCL_SIMPLE] + 2.8 * a->s->n +
                a->log_nodes * hop_us[NCCL_PAT][NET][NCCL_SIMPLE] / 3.5;
    return us + a->bytes * (a->s->n - 1) / a->s->n / (.75 * fmin(a->own, a->net) * 1e3);
}

static double p2p_us(const struct ask *a)
{
    const struct site *s = a->s;
    double share = a->many ? a->net / s->per_node : a->own;
    double moved = a->coll == COLL_SENDRECV ? 1 : (s->n - 1) / s->n;
    return base_us[NCCL_P2P][0] + hop_us[NCCL_P2P][a->many ? NET : inside(a)][0] +
           moved * a->bytes / (fmin(a->own, share) * 1e3);
}

static double time_of(const struct ask *a, int algo, int proto)
{
    switch (algo) {
    case NCCL_RING:
        return ring_us(a, proto);
    case NCCL_TREE:
        return tree_us(a, proto);
    case NCCL_NVLS:
    case NCCL_NVLS_TREE:
        return nvls_us(a);
    case NCCL_COLLNET:
        return collnet_us(a);
    case NCCL_PAT:
        return pat_us(a);
    default:
        return p2p_us(a);
    }
}

double nccl_channel_GBps(enum link_gen gen)
{
    return gens[gen].tree_simple[0];
}

/* Whether NCCL would consider the pair there. */
static bool offered(const struct ask *a, const struct lib_args *args, int algo, int proto)
{
    const struct site *s = a->s;
    bool gather = a->coll == COLL_ALLGATHER || a->coll == COLL_REDUCE_SCATTER;
    bool rooted = a->coll == COLL_BROADCAST || a->coll == COLL_REDUCE;
    bool nvls = reduces_all(a) && closed_may_nvls(s, args), simple = proto == NCCL_SIMPLE;
    bool ll128 = s->gen != LINK_PCIE && s->gen != LINK_XGMI && s->gen != LINK_MEMORY;
    bool newer = args->lib_class >= LIB_NCCL_2_19; /* NVLS and PAT came with 2.17 to 2.24 */
    switch (algo) {
    case NCCL_RING:
        return (reduces_all(a) || gather || rooted) && (proto != NCCL_LL128 || ll128);
    case NCCL_TREE:
        return reduces_all(a) && (proto != NCCL_LL128 || ll128);
    case NCCL_NVLS:
        return simple && nvls && !a->many && newer;
    case NCCL_NVLS_TREE:
        return simple && nvls && a->many && newer;
    case NCCL_COLLNET:
        return simple && reduces_all(a) && a->many && args->sharp;
    case NCCL_PAT:
        return simple && gather && s->per_node <= 1 && newer && args->lib_class != LIB_RCCL;
    default:
        return simple && !reduces_all(a) && !gather && !rooted;
    }
}

/* Channels that a size is worth: each thread of each gets some bytes. */
static uint32_t channels_of(const struct ask *a, int algo, int proto)
{
    static const double threads[NNCCL_PROTOS] = {512, 640, 512}, least[NNCCL_PROTOS] = {8, 8, 64};
    double each = threads[proto] * least[proto];
    if (algo == NCCL_RING && proto == NCCL_LL) each *= a->s->n;
    double most = algo == NCCL_NVLS || algo == NCCL_NVLS_TREE ? 8 : a->channels;
    return (uint32_t)fmax(1, fmin(most, ceil(a->bytes / each)));
}

bool nccl_choose(const struct site *s, const struct lib_args *args, enum coll_id coll,
                 uint64_t bytes, struct nccl_choice *choice)
{
    struct ask a = {.s = s, .g = &gens[s->gen], .coll = coll, .bytes = (double)bytes};
    a.many = s->nodes <= 1 ? 0 : s->nodes <= 2 ? 1 : 2;
    a.own = s->line_GBps * a.g->share;
    a.net = a.many ? s->nic_GBps * net_share : 1e18;
    a.log_nodes = ceil(log2(s->nodes) - 1e-9);
    a.channels = args->channels ? args->channels : a.g->channels;
    *choice = (struct nccl_choice){-1, -1, 0, INFINITY};
    for (int algo = 0; algo < NNCCL_ALGOS; algo++) {
        if (args->algo >= 0 && args->algo != algo) continue;
        for (int proto = 0; proto < NNCCL_PROTOS; proto++) {
            if (args->proto >= 0 && args->proto != proto) continue;
            if (!offered(&a, args, algo, proto)) continue;
            double us = time_of(&a, algo, proto);
            if (us < choice->time_us) *choice = (struct nccl_choice){algo, proto, 0, us};
        }
    }
    if (choice->algo < 0) return false;
    choice->channels =
        args->channels ? args->channels : channels_of(&a, choice->algo, choice->proto);
    return true;
}
