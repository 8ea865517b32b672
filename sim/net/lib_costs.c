/* SPDX-License-Identifier: Apache-2.0
 * The constants in the engine's terms. A hop has one latency: a part of it lies with the links
 * (what LL pays), the rest with the message, by protocol. */
#include <math.h>
#include <string.h>

#include "net/closed.h"
#include "net/nccl.h"
#include "net/net.h"
#include "net/network.h"

static ps_t ps_of(double us)
{
    return us > 0 ? (ps_t)llround(us * 1e6) : 0;
}

static double inside_us(const struct net_consts *c, enum link_gen gen, int proto)
{
    return c->hop_us[proto] * c->latency[gen] * (gen == LINK_PCIE ? c->pcie_hop : 1);
}

void net_rates(const struct net_consts *c, const struct topo *topo, struct net_rate *rates)
{
    enum link_gen gen = link_gen_of(topo);
    bool direct = topo->scale_up != SCALE_UP_NVSWITCH; /* one link between two accelerators */
    double hop = inside_us(c, gen, NCCL_LL), eff = c->link_eff[gen];
    double nvlink_eff = gen == LINK_PCIE || gen == LINK_MEMORY ? c->link_eff[LINK_NVLINK3] : eff;
    bool pcie = gen == LINK_PCIE;
    double nic_eff = c->nic_eff[topo->fabric];
    struct site site;
    struct err quiet = ERR_INIT; /* no network: no NIC is used */
    if (topo->one_nic_Gbps > 0 && site_of(topo, &site, &quiet) == 0)
        nic_eff = closed_nic(&site, c, topo->one_nic_Gbps / 8) / (topo->one_nic_Gbps / 8);
    err_release(&quiet);
    const struct net_rate all[NNET_KINDS] = {
        [NET_PORT] = {1, 0, 0},
        [NET_NVLINK] = {nvlink_eff,
                        ps_of(pcie     ? 0
                              : direct ? hop
                                       : hop / 2),
                        0},
        [NET_XGMI] = {gen == LINK_XGMI ? eff : c->link_eff[LINK_XGMI], ps_of(hop), 0},
        [NET_PCIE] = {pcie ? eff : .8, ps_of(pcie ? hop / 2 : 0),
                      topo_through_host(topo)}, /* copies reach 0.80 to 0.83 */
        [NET_SOCKET] = {.8, 0, 0},
        [NET_MEMORY] = {.8, 0, 0},
        [NET_NIC] = {nic_eff, ps_of(c->alpha_us[topo->fabric] / 2), 0},
        [NET_FABRIC] = {c->nic_eff[topo->fabric], 0, 0},
    };
    memcpy(rates, all, sizeof all);
}

/* Sends and receives between pairs. NCCL works through a rank's peers in rounds, each with its
 * latency, and the next does not begin before: so the rounds are time of the kernel. */
static void sends(const struct net_consts *c, const struct site *s, const struct lib_args *args,
                  enum coll_id coll, uint64_t bytes, struct net_cost *costs, double *base_us)
{
    bool pair = coll == COLL_SENDRECV, many = s->nodes > 1;
    double alpha = many ? closed_alpha(s, c, args, bytes) : 0;
    double link[2] = {inside_us(c, s->gen, NCCL_LL), c->alpha_us[s->fabric]}; /* of net_rates */
    bool direct = args->direct && !pair;
    if (!direct) *base_us += closed_pair_loss(s, c, coll, bytes);
    if (!direct && !pair) *base_us += closed_posts(s, c, args, bytes);
    if (!direct && (!pair || !many)) *base_us = fmax(0, *base_us - link[many]);
    for (int scope = SCOPE_HOST; scope < NSCOPES; scope++) {
        bool inside = scope <= SCOPE_DOMAIN;
        double eff = !pair ? c->alltoall_eff : many ? c->sendrecv_net : c->sendrecv_eff;
        costs[scope].latency_ps = ps_of(pair && !inside ? alpha - link[1] : 0);
        costs[scope].stretch = 1 / eff;
    }
}

/* Bytes on the links per byte of a message: what the closed form takes off the rate, where the
 * links themselves do not. */
static double stretch(const struct net_consts *c, const struct site *s, int algo, int proto,
                      enum coll_id coll, bool inside)
{
    double flags = 1 / c->proto_eff[proto], net = s->nodes <= 2 ? c->tree_two : c->tree_many;
    double n = s->n, factor = 2 * (n - 1) / n;
    bool gather = coll == COLL_ALLGATHER || coll == COLL_REDUCE_SCATTER;
    switch (algo) {
    case NCCL_TREE:
        if (proto == NCCL_LL) flags = 1 / c->tree_ll;
        return inside ? flags * factor / 2 / c->tree_eff : flags / net;
    case NCCL_NVLS:
    case NCCL_NVLS_TREE:
        return inside ? 1 / c->nvls_eff[s->gen] : 1 / (net * c->nvls_net);
    case NCCL_COLLNET:
        return inside ? 1 / c->sharp_eff : factor / c->sharp_net;
    default:
        return inside && gather ? flags / c->gather_eff : flags;
    }
}

void lib_costs(const struct net_consts *c, const struct site *site, const struct lib_args *args,
               const struct lib_choice *choice, enum coll_id coll, uint64_t bytes,
               uint32_t channels, struct net_cost *costs, double *base_us)
{
    memset(costs, 0, NSCOPES * sizeof *costs);
    *base_us = 0;
    if (choice->proto < 0) return;
    int p = choice->proto, algo = choice->algo;
    bool nvls = algo == NCCL_NVLS || algo == NCCL_NVLS_TREE;
    double alpha = site->nodes > 1 ? closed_alpha(site, c, args, bytes) : 0;
    double link = c->alpha_us[site->fabric] * fmin(c->ring_alpha, 1),
           own = closed_own(site, c) * 1e9;
    double ring = closed_crowding(site, c, NCCL_RING, coll); /* the links are that much slower */
    double crowding = closed_crowding(site, c, algo, coll) / ring;
    *base_us = closed_base(site, c, algo, p);
    if (nvls) *base_us += closed_nvls_ramp(site, c, bytes);
    if (algo == NCCL_P2P) {
        sends(c, site, args, coll, bytes, costs, base_us);
        return;
    }
    for (int scope = SCOPE_HOST; scope < NSCOPES; scope++) {
        bool inside = scope <= SCOPE_DOMAIN;
        double hop = inside ? inside_us(c, site->gen, p)
                            : alpha * c->proto_alpha[p] * (algo == NCCL_RING ? c->ring_alpha : 1);
        double links = inside ? inside_us(c, site->gen, NCCL_LL) : link;
        costs[scope].latency_ps = inside && nvls ? 0 : ps_of(hop - links);
        costs[scope].stretch = stretch(c, site, algo, p, coll, inside) * crowding;
        if (algo == NCCL_RING && p == NCCL_LL)
            costs[scope].most_Bps = own * c->ll_most * costs[scope].stretch / channels;
        if (algo == NCCL_TREE) costs[scope].most_Bps = own / ring / 2 / channels; /* up, or down */
        if (args->channels && inside) { /* of one channel, whoever chose their number */
            double most = nccl_channel_GBps(site->gen) * 1e9 * costs[scope].stretch;
            if (!(costs[scope].most_Bps > 0) || most < costs[scope].most_Bps)
                costs[scope].most_Bps = most;
        }
    }
}
