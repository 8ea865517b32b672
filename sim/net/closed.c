/* SPDX-License-Identifier: Apache-2.0
 * Rings, trees, NVLS and sends as formulas of hops and bytes. The structure is NCCL's published
 * model (latency x steps + bytes / bandwidth); the constants are ours. */
#include "net/closed.h"

#include <math.h>

#include "net/fault.h"

static const double pcie_share = .8; /* of a device's PCIe link, by copies: 0.80 to 0.83 */

/* What a formula needs, worked out once per call. */
struct call {
    const struct site *s;
    const struct net_consts *c;
    enum coll_id coll;
    bool many;            /* nodes */
    double bytes, factor; /* busbw's factor */
    double block;         /* bytes of a rank's block */
    double own, net;      /* GB/s of a GPU inside, of a node's NICs */
    double chain;         /* .. above a leaf switch, for what passes from leaf to leaf */
    double alpha;         /* us of a hop between nodes */
};

/* Rates of the two kinds of links that a way passes. */
struct rates {
    double own, net;
};

/* The rate of a way through both: near their limits they disturb each other. */
static double together(const struct call *k, struct rates r)
{
    if (!k->many) return r.own;
    double low = fmin(r.own, r.net), high = fmax(r.own, r.net), p = k->c->soft_power;
    return low * pow(1 + pow(low / high, p), -1 / p);
}

static bool is_gather(enum coll_id coll)
{
    return coll == COLL_ALLGATHER || coll == COLL_REDUCE_SCATTER;
}

static bool is_ring(enum coll_id coll)
{
    return coll == COLL_ALLREDUCE || is_gather(coll) || coll == COLL_BROADCAST ||
           coll == COLL_REDUCE;
}

static double hop_inside(const struct call *k, int proto)
{
    const struct net_consts *c = k->c;
    return c->hop_us[proto] * c->latency[k->s->gen] * (k->s->gen == LINK_PCIE ? c->pcie_hop : 1);
}

static bool has_ll128(const struct site *s)
{
    return s->gen != LINK_PCIE && s->gen != LINK_XGMI;
}

static void set_wire(struct way *w, const struct call *k, double GBps)
{
    w->wire_us = k->factor * k->bytes / (GBps * 1e3);
    w->ceiling_GBps = GBps;
    w->limit = k->many && k->net <= k->own ? "NICs of a node" : "links of a GPU";
}

/* busbw that the NICs give to a tree over nodes. With two nodes S crosses in each direction; with
 * more, in a double binary tree, each node sends S up and S down. */
static double tree_net(const struct call *k)
{
    const struct net_consts *c = k->c;
    return k->factor * k->net * (k->s->nodes == 2 ? c->tree_two : c->tree_many / 2);
}

/* busbw inside a domain where the switch reduces and multicasts: S / rate, whatever the number of
 * GPUs. */
static double nvls_GBps(const struct call *k)
{
    return k->factor * k->own * k->c->nvls_eff[k->s->gen];
}

static struct rates rates_of(const struct call *k, int algo)
{
    const struct net_consts *c = k->c;
    switch (algo) {
    case NCCL_TREE:
        return (struct rates){k->own * c->tree_eff, fmin(tree_net(k), k->chain)};
    case NCCL_NVLS:
    case NCCL_NVLS_TREE:
        return (struct rates){nvls_GBps(k), fmin(tree_net(k) * c->nvls_net, k->chain)};
    case NCCL_COLLNET:
        return (struct rates){
            c->sharp_eff * (closed_has_nvls(k->s) ? nvls_GBps(k) : k->own),
            k->net * c->sharp_net,
        };
    default:
        return (struct rates){k->own * (is_gather(k->coll) ? c->gather_eff : 1),
                              fmin(k->net, k->chain)};
    }
}

/* A block passes n-1 hops (twice for an all-reduce), each a latency and a transfer; meanwhile the
 * slowest link carries n-1 blocks one after the other. What lasts longer counts: where the NICs are
 * much slower than the links inside, they never wait for a latency. A chain sends pieces: no block
 * is waited for. One that starts before a border passes `nodes` of them. */
static struct way ring(const struct call *k, int proto)
{
    const struct net_consts *c = k->c;
    const struct site *s = k->s;
    struct way w = {.algo = NCCL_RING, .proto = proto};
    struct rates r = rates_of(k, w.algo);
    bool chain = k->coll == COLL_BROADCAST || k->coll == COLL_REDUCE;
    double steps = k->coll == COLL_ALLREDUCE ? 2 : 1, most = k->own * c->ll_most;
    double outside = k->many ? steps * (s->nodes - (chain || s->per_node == 1)) : 0;
    double inside = steps * (s->n - 1) - outside, eff = c->proto_eff[proto];
    double GBps = together(k, r) * eff;
    if (proto == NCCL_LL) GBps = fmin(GBps, most);
    w.base_us = closed_base(s, c, w.algo, proto);
    w.latency_us =
        inside * hop_inside(k, proto) + outside * k->alpha * c->proto_alpha[proto] * c->ring_alpha;
    set_wire(&w, k, GBps);
    if (!k->many || chain) return w;
    double own = r.own * eff, share = together(k, r) / fmin(r.own, r.net);
    if (proto == NCCL_LL) own = fmin(own, most);
    double block = k->bytes / s->n / 1e3 / share;
    double slack = w.wire_us - block * (inside / own + outside / fmin(r.net * eff, own));
    w.latency_us -= fmin(fmax(slack, 0), w.latency_us);
    return w;
}

static double log_nodes(const struct site *s)
{
    return ceil(log2(s->nodes) - 1e-9);
}

static struct way tree(const struct call *k, int proto)
{
    const struct net_consts *c = k->c;
    const struct site *s = k->s;
    double GBps = together(k, rates_of(k, NCCL_TREE));
    GBps *= proto == NCCL_LL ? c->tree_ll : c->proto_eff[proto];
    struct way w = {.algo = NCCL_TREE, .proto = proto};
    w.base_us = closed_base(s, c, w.algo, proto);
    w.latency_us = 2 * (s->per_node - 1) * hop_inside(k, proto) +
                   2 * log_nodes(s) * k->alpha * c->proto_alpha[proto];
    set_wire(&w, k, GBps);
    return w;
}

static struct way nvls(const struct call *k)
{
    const struct net_consts *c = k->c;
    const struct site *s = k->s;
    double GBps = together(k, rates_of(k, NCCL_NVLS));
    struct way w = {.algo = k->many ? NCCL_NVLS_TREE : NCCL_NVLS, .proto = NCCL_SIMPLE};
    w.base_us = closed_base(s, c, w.algo, w.proto);
    if (k->many) w.latency_us = 2 * log_nodes(s) * k->alpha * c->proto_alpha[NCCL_SIMPLE];
    set_wire(&w, k, GBps);
    w.wire_us += closed_nvls_ramp(s, c, (uint64_t)k->bytes);
    return w;
}

static struct way sharp(const struct call *k)
{
    struct way w = {.algo = NCCL_COLLNET, .proto = NCCL_SIMPLE};
    w.base_us = closed_base(k->s, k->c, w.algo, w.proto);
    w.latency_us = 4 * k->alpha;
    set_wire(&w, k, together(k, rates_of(k, NCCL_COLLNET)));
    return w;
}

/* busbw that the NICs give to blocks between pairs: see ceiling.h. */
static double pairs_net(const struct call *k)
{
    const struct site *s = k->s;
    double out = (s->n - 1) / (s->n - s->per_node); /* all blocks per block that leaves the node */
    double one = fmin(closed_nic(s, k->c, s->one_GBps), s->pcie_GBps);
    switch (k->coll) {
    case COLL_SENDRECV: /* one message leaves a node */
        return one;
    case COLL_GATHER: /* all come in by the root's NIC */
        return one * out;
    case COLL_SCATTER: /* by the NIC of the receiver's number, where the root's node can relay */
        return fmin(fmax(k->net * s->reach, one), s->pcie_GBps * s->reach / s->near) * out;
    default: /* of the blocks that leave the node, those for other leaves share its links up */
        return k->net / s->per_node *
               fmin(out, s->leaf > 0 ? (s->n - 1) / (s->n - s->leaf) / s->over : INFINITY);
    }
}

static double pairs_GBps(const struct call *k)
{
    const struct net_consts *c = k->c;
    const struct site *s = k->s;
    double own = k->own, all = s->n - 1, out = s->n - s->per_node;
    if (k->coll == COLL_SCATTER && k->many && s->reach > s->near)
        own *= all / (all - out * s->near);
    if (k->coll == COLL_GATHER && k->many && s->per_node > 1 && s->gen != LINK_PCIE)
        own *= all / (s->per_node - 1);
    double eff = k->coll != COLL_SENDRECV ? c->alltoall_eff
                 : k->many                ? c->sendrecv_net
                                          : c->sendrecv_eff;
    bool all_pairs = k->coll == COLL_ALLTOALL || k->coll == COLL_ALLTOALLV;
    if (s->bridged && all_pairs) /* but for the one block that takes the bridge */
        own *= (s->per_node - 1) / (s->per_node - 2);
    if (k->coll == COLL_SENDRECV) own *= s->pair_GBps / s->line_GBps;
    return eff * (k->many ? fmin(own, pairs_net(k)) : own);
}

static double pair_loss(const struct call *k, double wire_us)
{
    double rate = k->c->p2p_rate * k->s->line_GBps / 300 * 1e3;
    return hypot(fmin(k->block / rate, k->c->p2p_most_us), wire_us) - wire_us;
}

static double posts(const struct call *k, bool pxn)
{
    const struct site *s = k->s;
    double inside = (s->per_node - 1) * k->c->hop_p2p_us * k->c->latency[s->gen];
    return inside + (s->nodes - 1) * (pxn ? 1 : s->per_node) * k->alpha * .5;
}

/* Blocks between pairs: all-to-all, sendrecv, gather, scatter. */
static struct way sends(const struct call *k, bool pxn, bool direct)
{
    struct way w = {.algo = NCCL_P2P, .proto = NCCL_SIMPLE};
    w.base_us = closed_base(k->s, k->c, w.algo, w.proto);
    w.latency_us = k->coll == COLL_SENDRECV || direct ? k->alpha : posts(k, pxn);
    set_wire(&w, k, pairs_GBps(k));
    if (!direct) w.wire_us += pair_loss(k, w.wire_us);
    return w;
}

static double factor_of(enum coll_id coll, double n)
{
    switch (coll) {
    case COLL_ALLREDUCE:
        return 2 * (n - 1) / n;
    case COLL_BROADCAST:
    case COLL_REDUCE:
    case COLL_SENDRECV:
        return 1;
    default:
        return (n - 1) / n;
    }
}

double closed_alpha(const struct site *s, const struct net_consts *c, const struct lib_args *args,
                    uint64_t bytes)
{
    double at = fmin(fmax(log2(fmax((double)bytes, 1) / 2048) / 3, 0), 1);
    double alpha = args->alpha_us >= 0 ? args->alpha_us : c->alpha_us[s->fabric];
    return alpha * (1 + (c->growth[s->fabric] - 1) * at);
}

double closed_base(const struct site *s, const struct net_consts *c, int algo, int proto)
{
    double lat = c->latency[s->gen], net = s->nodes > 1 ? c->base_net_us : 0;
    switch (algo) {
    case NCCL_NVLS:
    case NCCL_NVLS_TREE:
        return c->base_nvls_us * lat;
    case NCCL_COLLNET:
        return c->base_us[proto];
    case NCCL_P2P:
        return c->base_p2p_us * lat;
    default:
        return c->base_us[proto] * lat + net;
    }
}

/* args of NULL: no latency is asked for. */
static struct call call_of(const struct site *s, const struct net_consts *c,
                           const struct lib_args *args, enum coll_id coll, uint64_t bytes)
{
    struct call k = {.s = s, .c = c, .coll = coll, .many = s->nodes > 1};
    bool whole = coll == COLL_BROADCAST || coll == COLL_REDUCE || coll == COLL_SENDRECV;
    k.bytes = fmax((double)bytes, 1);
    k.block = k.bytes / (whole ? 1 : s->n);
    k.factor = factor_of(coll, s->n);
    k.own = closed_own(s, c);
    double nics = fmax(s->socket_nics, 1);
    k.net = k.many ? nics * closed_nic(s, c, s->nic_GBps / nics) : 1e18;
    k.chain = s->leaf > 0 ? k.net * s->leaf_hosts / s->over : INFINITY;
    if (k.many && args) k.alpha = closed_alpha(s, c, args, bytes);
    return k;
}

static void keep(struct way *ways, unsigned *n, const struct lib_args *args, struct way w)
{
    if (args->algo >= 0 && args->algo != w.algo) return;
    if (args->proto >= 0 && args->proto != w.proto) return;
    ways[(*n)++] = w;
}

double closed_own(const struct site *s, const struct net_consts *c)
{
    double GBps = s->line_GBps * (s->bridged ? pcie_share : c->link_eff[s->gen]);
    return s->own_most_GBps > 0 ? fmin(GBps, s->own_most_GBps) : GBps;
}

double closed_nic(const struct site *s, const struct net_consts *c, double line_GBps)
{
    double GBps = line_GBps * c->nic_eff[s->fabric];
    return s->socket_nics > 0 ? fmin(GBps, c->mpi_socket_GBps) : GBps;
}

bool closed_may_nvls(const struct site *s, const struct lib_args *args)
{
    return closed_has_nvls(s) && !args->no_nvls;
}

bool closed_has_nvls(const struct site *s)
{
    return s->nvswitch && ((s->gen == LINK_NVLINK4 && s->per_node > 4) ||
                           (s->gen == LINK_NVLINK5 && s->per_node > 5));
}

unsigned closed_ways(const struct site *s, const struct net_consts *c, const struct lib_args *args,
                     enum coll_id coll, uint64_t bytes, struct way ways[NWAYS])
{
    struct call k = call_of(s, c, args, coll, bytes);
    unsigned n = 0;
    bool reduce = coll == COLL_ALLREDUCE;
    if (reduce && k.many && args->sharp) keep(ways, &n, args, sharp(&k));
    for (int p = 0; p < NNCCL_PROTOS && is_ring(coll); p++) {
        if (p == NCCL_LL128 && !has_ll128(s)) continue;
        keep(ways, &n, args, ring(&k, p));
        if (reduce && k.many) keep(ways, &n, args, tree(&k, p));
    }
    if (reduce && closed_may_nvls(s, args)) keep(ways, &n, args, nvls(&k));
    if (!is_ring(coll))
        keep(ways, &n, args, sends(&k, !args->no_pxn, args->direct && coll == COLL_ALLTOALL));
    return n;
}

double closed_launched(const struct site *s, const struct net_consts *c,
                       const struct lib_args *args, enum coll_id coll, double device_us,
                       double *floor_us)
{
    enum launch launch = args->launch;
    double floor = c->launch_us[launch];
    if (launch == LAUNCH_PROCESS && s->grace) floor *= c->launch_grace;
    if (launch == LAUNCH_SINGLE) {
        floor += c->single_gpu_us * s->per_host *
                 (coll == COLL_ALLTOALL || coll == COLL_ALLTOALLV ? c->single_p2p : 1);
    }
    if (args->launch_us >= 0) floor = args->launch_us;
    if (launch == LAUNCH_GRAPH || launch == LAUNCH_SYMMETRIC)
        device_us -= fmin(device_us * .6, c->base_us[NCCL_LL] / 2);
    if (launch == LAUNCH_TORCH) device_us += c->torch_add_us;
    *floor_us = floor;
    double low = fmin(floor, device_us), high = fmax(floor, device_us), p = c->floor_power;
    return high > 0 ? high * pow(1 + pow(low / high, p), 1 / p) : 0;
}

double closed_nvls_ramp(const struct site *s, const struct net_consts *c, uint64_t bytes)
{
    double rate = closed_own(s, c) * c->nvls_eff[s->gen] * 1e3;
    double wire_us = fmax((double)bytes, 1) / rate, tau = c->nvls_ramp_us * s->per_node;
    return tau * pow(wire_us / tau, 1 - c->nvls_ramp_power);
}

double closed_crowding(const struct site *s, const struct net_consts *c, int algo,
                       enum coll_id coll)
{
    struct call k = call_of(s, c, NULL, coll, 1);
    struct rates r = rates_of(&k, algo);
    return k.many && algo != NCCL_P2P ? fmin(r.own, r.net) / together(&k, r) : 1;
}

double closed_posts(const struct site *s, const struct net_consts *c, const struct lib_args *args,
                    uint64_t bytes)
{
    struct call k = call_of(s, c, args, COLL_ALLTOALL, bytes);
    return posts(&k, !args->no_pxn);
}

double closed_pair_loss(const struct site *s, const struct net_consts *c, enum coll_id coll,
                        uint64_t bytes)
{
    struct call k = call_of(s, c, NULL, coll, bytes);
    return pair_loss(&k, k.factor * k.bytes / (pairs_GBps(&k) * 1e3));
}

struct way closed_mpi(const struct site *s, const struct net_consts *c, bool gpu, enum coll_id coll,
                      uint64_t bytes)
{
    bool many = s->nodes > 1, all = coll == COLL_ALLTOALL || coll == COLL_ALLTOALLV;
    double block = (double)bytes / (all ? s->n : 1), g = s->per_node;
    bool sockets = many && s->fabric == FABRIC_TCP;
    double nic = many ? s->nic_GBps * c->mpi_nic_eff * 1e3 : INFINITY;
    if (sockets) nic = fmin(nic, c->mpi_socket_GBps * g * 1e3);
    double pair = sockets ? c->mpi_socket_us : c->mpi_pair_us;
    double copy = c->mpi_copy_GBps * 1e3;
    struct way w = {.algo = -1, .proto = -1, .base_us = gpu ? c->mpi_gpu_us : 0};
    bool rendezvous = block >= 8192;
    if (all) {
        w.base_us += c->mpi_base_us;
        w.latency_us = (s->n - 1) * (pair + (rendezvous ? c->mpi_rendezvous_us : 0));
        w.wire_us = fmax(g * (s->n - g) * block / nic, g * (g - 1) * block / copy);
    } else {
        w.base_us += 1;
        w.latency_us = ceil(log2(g) - 1e-9) * c->mpi_shm_us +
                       log_nodes(s) * 2 * (sockets ? pair : c->mpi_net_us) + (rendezvous ? 10 : 0);
        w.wire_us = (many ? 2 * block / nic : 0) + 2 * g * block / copy;
    }
    w.limit = many ? "NICs of a node" : "memory of a node";
    w.ceiling_GBps =
        w.wire_us > 0 ? (double)bytes * factor_of(coll, s->n) / w.wire_us / 1e3 : INFINITY;
    return w;
}

/* Share of an accelerator's links that lead to the others in use: all through a switch; to each of
 * the peers of a mesh alike; 2 of 6 between the best pair of a V100 cube, 4 among three. */
static double reached(const struct topo *t)
{
    double used = (double)t->per_host, full = (double)t->full_host;
    bool mesh = t->scale_up == SCALE_UP_NVLINK_MESH || t->scale_up == SCALE_UP_XGMI;
    if (mesh && used > 1 && used < full) return (used - 1) / (full - 1);
    if (t->scale_up == SCALE_UP_NVLINK_CUBE && used > 1 && used < 4) return (used - 1) / 3;
    return 1;
}

/* Share of a host's NICs whose accelerators an accelerator reaches by links between two, which then
 * hand on what it sends: of a V100 cube half. */
static double relayed(const struct topo *t)
{
    static const double shares[NSCALE_UP] = {
        [SCALE_UP_NVSWITCH] = 1,
        [SCALE_UP_NVLINK_MESH] = 1,
        [SCALE_UP_XGMI] = 1,
        [SCALE_UP_NVLINK_CUBE] = .5,
    };
    return shares[t->scale_up];
}

int site_of(const struct topo *t, struct site *s, struct err *err)
{
    double domain = (double)topo_domain(t), n = (double)topo_gpus(t);
    *s = (struct site){.gen = link_gen_of(t),
                       .n = n,
                       .per_node = domain,
                       .nodes = ceil(n / domain),
                       .per_host = (double)t->per_host,
                       .fabric = t->fabric,
                       .nvswitch = t->scale_up == SCALE_UP_NVSWITCH};
    const char *name = t->accel.name ? t->accel.name : "";
    s->grace = name[0] == 'G' && (name[1] == 'H' || name[1] == 'B') && name[2] != '1';
    s->line_GBps = t->line_GBps * reached(t);
    bool mesh = t->scale_up == SCALE_UP_NVLINK_MESH || t->scale_up == SCALE_UP_XGMI;
    s->pair_GBps = mesh ? t->line_GBps / fmax((double)t->full_host - 1, 1) : s->line_GBps;
    s->bridged = t->scale_up == SCALE_UP_NVLINK_PAIRS && t->per_host > 2 && t->host.pcie_GBps > 0;
    if (s->bridged) {
        s->gen = LINK_PCIE;
        s->line_GBps = s->pair_GBps = t->host.pcie_GBps;
    }
    s->own_most_GBps = topo_through_host(t);
    s->over = 1;
    if (s->nodes <= 1) return 0;
    double leaf = (double)t->leaf_hosts * s->per_host;
    if (t->oversubscribed > 1 && leaf > 0 && n > leaf) {
        s->leaf = leaf;
        s->leaf_hosts = (double)t->leaf_hosts;
        s->over = t->oversubscribed;
    }
    double left = t->nfaults ? fault_nic_share(t) : 1;
    s->nic_GBps = t->nic_Gbps / 8 * domain * left;
    for (size_t i = 0; i < t->nfaults; i++)
        if (t->faults[i].kind == FAULT_TCP) s->socket_nics = s->nic_GBps * 8 / t->one_nic_Gbps;
    s->one_GBps = fmin(fmax(t->nic_Gbps, t->one_nic_Gbps) / 8, s->nic_GBps);
    s->pcie_GBps = t->host.pcie_GBps > 0 ? pcie_share * t->host.pcie_GBps : INFINITY;
    double beside = t->host.switches ? (double)t->full_host / t->host.switches : 1;
    double relays = t->host.switches ? relayed(t) : 0, hosts = domain / s->per_host;
    s->near = fmin(beside / s->per_host, 1) / hosts;
    s->reach = fmax(relays / hosts, s->near);
    if (s->nic_GBps > 0) return 0;
    return err_add(err, ERR_USAGE,
                   "%s: %g nodes with a network of 0 Gb/s cannot exchange anything; a NIC rate "
                   "must be above 0",
                   t->name ? t->name : "topology", s->nodes);
}
