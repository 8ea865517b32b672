/* SPDX-License-Identifier: Apache-2.0
 * From a library's choice to a run of the engine: see flow.h. Networks and schedules are made when
 * they are first needed, and serve all sizes. */
#include "net/flow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/ceiling.h"
#include "net/closed.h"
#include "net/coll_loop.h"
#include "net/fault.h"

enum { NPOLICIES = NET_RING + 1 };

/* What of a call it runs: levels of NVLSTree. */
enum piece { PIECE_ALL, PIECE_INSIDE, PIECE_BETWEEN };

/* A run without bytes: what it took hangs on these alone. */
struct empty {
    const struct ready *ready;
    const struct network *network;
    uint64_t slots; /* wide: no padding, it is compared as bytes */
    ps_t latency_ps[NSCOPES], overhead_ps[NSCOPES];
    ps_t total_ps;
};

struct flow {
    const struct coll_request *request;
    const struct topo *topo;
    const struct net_consts *consts;
    const struct lib_args *args;
    struct ready_list hosts, domains; /* schedules whose node groups are these */
    uint32_t *domain_sizes;
    struct network *networks[NPOLICIES];
    struct flow_lay lay;
    struct site site;
    bool part; /* it is of groups */
    enum piece piece;
    struct coll_request *asked; /* of a piece: its own request */
    struct flow *levels[2];     /* of NVLSTree: inside, between nodes */
    struct empty *empties;
    size_t nempties, empties_cap;
    bool has_site; /* .. it is known */
};

/* What stands for an algorithm of the library. */
struct stand_in {
    int algo;
    enum coll_id coll;
    const char *row; /* of our table; NULL: flow_tree */
    enum net_policy policy;
    bool per_nic;   /* a channel (of a tree: two) for each NIC of a host */
    bool pipelined; /* in slices: a rank passes on one while the next arrives */
};

static const struct stand_in stand_ins[] = {
    {NCCL_RING, COLL_ALLREDUCE, "ring", NET_RING, true, false},
    {NCCL_RING, COLL_ALLGATHER, "ring", NET_RING, true, false},
    {NCCL_RING, COLL_REDUCE_SCATTER, "ring", NET_RING, true, false},
    {NCCL_RING, COLL_BROADCAST, "chain", NET_RING, true, true},
    {NCCL_RING, COLL_REDUCE, "chain", NET_RING, true, true},
    {NCCL_TREE, COLL_ALLREDUCE, NULL, NET_RING, true, true},
    {NCCL_NVLS, COLL_ALLREDUCE, "nvls", NET_RING, false, true},
    {NCCL_NVLS, COLL_ALLGATHER, "nvls", NET_RING, false, true},
    {NCCL_NVLS, COLL_REDUCE_SCATTER, "nvls", NET_RING, false, true},
    {NCCL_NVLS_TREE, COLL_ALLREDUCE, "nvls", NET_RING, true, true},
    {NCCL_COLLNET, COLL_ALLREDUCE, "sharp", NET_RING, true, true},
    {NCCL_PAT, COLL_ALLGATHER, "pat", NET_OWN, false, false},
    {NCCL_PAT, COLL_REDUCE_SCATTER, "pat", NET_OWN, false, false},
    {NCCL_P2P, COLL_ALLTOALL, "direct", NET_PXN, false, false},
    {NCCL_P2P, COLL_ALLTOALLV, "direct", NET_PXN, false, false},
    {NCCL_P2P, COLL_SENDRECV, "shift", NET_PXN, false, false},
    {NCCL_P2P, COLL_GATHER, "direct", NET_PXN, false, false},
    {NCCL_P2P, COLL_SCATTER, "direct", NET_PXN, false, false},
};

struct flow *flow_new(const struct coll_request *request, const struct topo *topo,
                      const struct net_consts *consts, const struct lib_args *args,
                      struct out *notes)
{
    struct flow *flow = mem_calloc(1, sizeof *flow);
    flow->request = request;
    flow->topo = topo;
    flow->consts = consts;
    flow->args = args;
    flow->hosts = flow->domains = coll_schedules(request, notes);
    flow->hosts.in_place = true;
    uint32_t size = (uint32_t)topo_domain(topo), n = (uint32_t)request->nranks, count = 0;
    flow->domain_sizes = mem_calloc((n + size - 1) / size, sizeof *flow->domain_sizes);
    for (uint32_t first = 0; first < n; first += size)
        flow->domain_sizes[count++] = n - first < size ? n - first : size;
    flow->domains.args.nnodes = count;
    flow->domains.args.nodes = flow->domain_sizes;
    flow->lay = (struct flow_lay){.n = n, .groups = 1};
    return flow;
}

/* Sizes of the parts of group b that are in one domain each, in order; their number. */
static uint32_t cut_group(const struct topo *topo, const struct flow_lay *lay, uint32_t b,
                          uint32_t *sizes)
{
    uint64_t domain = topo_domain(topo), last = UINT64_MAX;
    uint32_t count = 0;
    for (uint32_t k = 0; k < lay->n; k++) {
        uint64_t at = (lay->base + (uint64_t)k * lay->groups + b) / domain;
        if (at != last) sizes[count++] = 0;
        sizes[count - 1]++;
        last = at;
    }
    return count;
}

/* Whether all groups are cut like group 0, into `count` parts of these sizes. */
static bool all_alike(const struct topo *topo, const struct flow_lay *lay, const uint32_t *sizes,
                      uint32_t count)
{
    uint32_t *own = mem_calloc(lay->n, sizeof *own);
    bool same = true;
    for (uint32_t b = 1; b < lay->groups && same; b++)
        same =
            cut_group(topo, lay, b, own) == count && memcmp(own, sizes, count * sizeof *own) == 0;
    free(own);
    return same;
}

/* Members of a group under a leaf whose links up are too few; 0: all are under one. */
static double under_leaf(const struct topo *topo, const struct flow_lay *lay)
{
    uint64_t leaf = topo->leaf_hosts * topo->per_host;
    uint64_t last = lay->base + (uint64_t)lay->n * lay->groups - 1;
    if (!(topo->oversubscribed > 1) || leaf == 0 || lay->base / leaf == last / leaf) return 0;
    return fmax((double)leaf / lay->groups, 1);
}

/* Of a group whose parts are in `nodes` domains: what is left of the figures of all accelerators.
 */
static void narrow(struct site *site, const struct topo *topo, const struct flow_lay *lay,
                   uint32_t nodes)
{
    double all = site->per_node, per = (double)lay->n / nodes, full = (double)topo->full_host;
    bool mesh = topo->scale_up == SCALE_UP_NVLINK_MESH || topo->scale_up == SCALE_UP_XGMI;
    if (mesh && per > 1 && per < full) site->line_GBps = topo->line_GBps * (per - 1) / (full - 1);
    if (topo->scale_up == SCALE_UP_NVLINK_CUBE && per > 1)
        site->line_GBps = topo->line_GBps * fmin((per - 1) / 3, 1);
    if (site->bridged && lay->n == 2 && lay->groups == 1 && lay->base % 2 == 0) { /* a pair */
        site->bridged = false;
        site->gen = link_gen_of(topo);
        site->line_GBps = site->pair_GBps = topo->line_GBps;
    }
    site->per_host = fmin(fmax(per * site->per_host / all, 1), per);
    site->n = lay->n;
    site->nodes = nodes;
    site->per_node = per;
    site->nic_GBps *= per / all;
    site->one_GBps = fmin(site->one_GBps, site->nic_GBps);
    site->socket_nics *= per / all;
    site->leaf = under_leaf(topo, lay);
    site->leaf_hosts = site->leaf / per;
    site->over = site->leaf > 0 ? topo->oversubscribed : 1;
}

/* site_of where only hosts that the lay is on are broken. */
static int site_of_lay(const struct topo *topo, const struct flow_lay *lay, struct site *site,
                       struct err *err)
{
    uint64_t end = lay->base + (uint64_t)lay->n * lay->groups - 1;
    int64_t first = (int64_t)(lay->base / topo->per_host), last = (int64_t)(end / topo->per_host);
    struct topo part = *topo;
    part.faults = mem_calloc(topo->nfaults, sizeof *part.faults); /* their strings are borrowed */
    part.nfaults = 0;
    for (size_t i = 0; i < topo->nfaults; i++) {
        int64_t host = fault_host(&topo->faults[i]);
        if (host < 0 || (host >= first && host <= last))
            part.faults[part.nfaults++] = topo->faults[i];
    }
    int bad = site_of(&part, site, err);
    free(part.faults);
    return bad;
}

int flow_site(const struct topo *topo, const struct flow_lay *lay, struct site *site, bool *alike,
              struct err *err)
{
    if (site_of_lay(topo, lay, site, err)) return -1;
    uint32_t *sizes = mem_calloc(lay->n, sizeof *sizes);
    uint32_t count = cut_group(topo, lay, 0, sizes);
    *alike = all_alike(topo, lay, sizes, count);
    free(sizes);
    narrow(site, topo, lay, count);
    uint64_t domain = topo_domain(topo), all = (uint64_t)lay->n * lay->groups;
    bool full = lay->base % domain == 0 && all % domain == 0 && domain % lay->groups == 0;
    if (!*alike || (count > 1 && !full)) /* no schedule for switches that groups use so */
        site->nvswitch = false;
    return 0;
}

struct flow *flow_group(const struct coll_request *request, const struct topo *topo,
                        const struct net_consts *consts, const struct lib_args *args,
                        const struct flow_lay *lay, const struct site *site)
{
    struct flow *flow = flow_new(request, topo, consts, args, NULL);
    flow->domain_sizes = mem_realloc(flow->domain_sizes, lay->n, sizeof *flow->domain_sizes);
    flow->domains.args.nodes = flow->domain_sizes;
    flow->domains.args.nnodes = cut_group(topo, lay, 0, flow->domain_sizes);
    flow->hosts.verify_ranks = flow->domains.verify_ranks = 0; /* rows are verified in tests */
    flow->lay = *lay;
    flow->site = *site;
    flow->part = flow->has_site = true;
    return flow;
}

static const struct site *get_site(struct flow *flow, struct err *err)
{
    if (!flow->has_site && site_of(flow->topo, &flow->site, err)) return NULL;
    flow->has_site = true;
    return &flow->site;
}

/* Whether a call leaves a host; of groups, a domain. */
static bool is_spread(const struct flow *flow)
{
    return flow->part ? flow->site.nodes > 1 : flow->topo->hosts > 1;
}

/* Whether the groups are but one, of all accelerators in a row. */
static bool is_whole(const struct flow *flow)
{
    return flow->lay.groups == 1 && flow->lay.n == topo_gpus(flow->topo);
}

void flow_free(struct flow *flow)
{
    if (!flow) return;
    ready_release(&flow->hosts);
    ready_release(&flow->domains);
    free(flow->domain_sizes);
    free(flow->asked);
    free(flow->empties);
    for (int i = 0; i < 2; i++)
        flow_free(flow->levels[i]);
    for (int i = 0; i < NPOLICIES; i++)
        network_free(flow->networks[i]);
    free(flow);
}

bool flow_is_mesh(const struct topo *topo)
{
    return topo->scale_up == SCALE_UP_NVLINK_MESH || topo->scale_up == SCALE_UP_NVLINK_CUBE ||
           topo->scale_up == SCALE_UP_XGMI;
}

/* What a library's rings find: links that disturb each other, and of all hops between nodes the
 * least latency; the rest lies with the messages (lib_costs). */
static void slow_links(const struct site *site, const struct net_consts *consts, enum coll_id coll,
                       struct net_rate *rates)
{
    double crowding = closed_crowding(site, consts, NCCL_RING, coll);
    double latency = (double)rates[NET_NIC].latency_ps * fmin(consts->ring_alpha, 1);
    for (int i = 0; i < NNET_KINDS; i++) {
        rates[i].efficiency /= crowding;
        rates[i].own_most_GBps /= crowding;
    }
    rates[NET_NIC].latency_ps = (ps_t)llround(latency);
}

/* The accelerators in order, but for the two of each group, which have changed places. */
static uint32_t *back_order(const struct flow *flow)
{
    const struct flow_lay *lay = &flow->lay;
    uint64_t count = topo_gpus(flow->topo);
    uint32_t *order = mem_calloc(count, sizeof *order);
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = lay->base; i < lay->base + lay->groups; i++) {
        order[i] = i + lay->groups;
        order[i + lay->groups] = i;
    }
    return order;
}

static const struct network *get_network(struct flow *flow, enum net_policy policy, struct err *err)
{
    if (flow->networks[policy]) return flow->networks[policy];
    struct net_rate rates[NNET_KINDS];
    struct topo topo = *flow->topo;
    net_rates(flow->consts, &topo, rates);
    const struct site *site = NULL;
    if (policy == NET_RING && !(site = get_site(flow, err))) return NULL;
    if (policy == NET_RING) slow_links(site, flow->consts, flow->request->coll->id, rates);
    if (policy == NET_RING && flow_is_mesh(&topo)) {
        if (topo.scale_up == SCALE_UP_XGMI) rates[NET_NVLINK] = rates[NET_XGMI];
        rates[NET_NVLINK].latency_ps /= 2; /* into the switch and out of it */
        topo.scale_up = SCALE_UP_NVSWITCH;
        topo.line_GBps = site->line_GBps;
    }
    uint32_t *order = flow->lay.back ? back_order(flow) : NULL;
    struct network *network = network_build(&topo, rates, policy, order, err);
    free(order);
    if (network && policy == NET_RING && !is_whole(flow))
        network_rings(network, flow->lay.n, flow->lay.groups, flow->lay.base);
    return flow->networks[policy] = network;
}

/* Sets where and how much: `count` elements per block. The traffic it refers to, freed with free(),
 * or NULL. */
static struct traffic *size_call(const struct flow *flow, const struct network *network,
                                 const struct linked *linked, size_t count, struct net_args *args)
{
    struct traffic *traffic = coll_size_args(flow->request, linked, count, args);
    args->network = network;
    args->groups = flow->lay.groups;
    args->base = flow->lay.base;
    if (flow->part) { /* all channels the same */
        uint32_t parts = linked->sched->nparts;
        args->granule = 1;
        args->block_bytes = (args->block_bytes + parts - 1) / parts * parts;
    }
    return traffic;
}

static int run_linked(struct flow *flow, const struct network *network, const struct ready *ready,
                      const struct linked *linked, struct net_args *args, size_t count,
                      struct flow_run *run, struct err *err)
{
    const struct coll_request *request = flow->request;
    struct traffic *traffic = size_call(flow, network, linked, count, args);
    args->keep_steps = request->trace != NULL;
    args->fold = request->net == NET_FLOW && !args->keep_log && !args->keep_steps;
    *run = (struct flow_run){.network = network, .ready = ready};
    int bad = net_run(linked, args, &run->net, err);
    free(traffic);
    if (!bad) run->device_us = (double)run->net.total_ps / 1e6;
    return bad;
}

/* Speeds of a rank that moves the data itself and touches `bytes`: those of its cache while all
 * fits, none of them from twice as many on. */
static struct net_hands hands_of(const struct topo_hands *hands, double bytes)
{
    double beyond = bytes / (hands->cache_MiB * (1 << 20)) - 1;
    double missing = beyond < 0 ? 0 : beyond > 1 ? 1 : beyond;
    double ns_per_byte = missing / hands->buffer_GBps + (1 - missing) / hands->cached_GBps;
    return (struct net_hands){.buffer_Bps = 1e9 / ns_per_byte, .slot_Bps = hands->slot_GBps * 1e9};
}

/* Bytes of a rank's buffers, in and out; in place the longer holds the other. */
static double buffer_bytes(const struct coll_request *request, size_t count, bool in_place)
{
    uint32_t n = (uint32_t)request->nranks;
    double in = coll_blocks(request->coll, BUF_IN, n), out = coll_blocks(request->coll, BUF_OUT, n);
    double blocks = in_place ? fmax(in, out) : in + out;
    return blocks * (double)count * (double)dtype_bytes(request->dtype);
}

int flow_own(struct flow *flow, const struct algo_choice *choice, size_t count, bool in_place,
             struct flow_run *run, struct err *err)
{
    *run = (struct flow_run){0};
    struct net_args args = coll_net_args(flow->request);
    const struct topo_hands *said = &flow->topo->hands;
    struct net_hands hands;
    if (said->buffer_GBps > 0) {
        hands = hands_of(said, buffer_bytes(flow->request, count, in_place));
        args.hands = &hands;
        args.overhead_ps += (ps_t)llround(said->post_us * 1e6);
        if (args.slice_bytes == 0) args.slice_bytes = said->slice_KiB << 10;
    }
    const struct network *network = get_network(flow, NET_OWN, err);
    const struct ready *ready = network ? ready_get(&flow->hosts, choice, err) : NULL;
    if (!ready) return -1;
    const struct linked *linked = ready->linked[in_place];
    return linked ? run_linked(flow, network, ready, linked, &args, count, run, err) : 0;
}

/* Sets the bytes of a chunk that one pass handles, and the messages that a wire holds. A slice is a
 * share of the chunk so small that the pipeline is soon full, but no more passes than can be run in
 * a moment. A wire holds what NCCL's buffer of a connection does: 4 MiB, and of LL 256 KiB of data.
 * LL passes on a line when it comes, LL128 what a warp stores at once, Simple parts that shrink
 * with the size. */
static void pipeline(const struct coll_request *request, size_t count, int proto, uint32_t channels,
                     struct net_args *args)
{
    enum { SENDS = 1 << 20, MOST_PASSES = 512 };
    static const size_t least[NNCCL_PROTOS] = {256, 2 << 10, 16 << 10};
    static const size_t room[NNCCL_PROTOS] = {256 << 10, 4 << 20, 4 << 20};
    size_t chunk = count * dtype_bytes(request->dtype) / channels;
    size_t passes = SENDS / channels / request->nranks;
    passes = passes < 1 ? 1 : passes > MOST_PASSES ? MOST_PASSES : passes;
    size_t slice = chunk / passes & ~(size_t)63;
    slice = slice < least[proto] ? least[proto] : slice;
    args->slice_bytes = slice >= chunk ? 0 : slice;
    if (room[proto] / slice > args->slots) args->slots = (uint32_t)(room[proto] / slice);
}

static const struct stand_in *find_stand_in(const struct flow *flow,
                                            const struct lib_choice *choice, struct err *err)
{
    enum coll_id coll = flow->request->coll->id;
    for (size_t i = 0; i < sizeof stand_ins / sizeof *stand_ins; i++)
        if (stand_ins[i].algo == choice->algo && stand_ins[i].coll == coll) return &stand_ins[i];
    err_add(err, ERR_USAGE,
            "no schedule stands for %s of NCCL with %s: --net closed has the formula",
            flow->request->coll->name, choice->algo_name);
    return NULL;
}

bool flow_can(const struct flow *flow, const struct lib_choice *choice)
{
    struct err quiet = ERR_INIT;
    const struct stand_in *in = find_stand_in(flow, choice, &quiet);
    err_release(&quiet);
    double n = flow->lay.n, nics = (double)topo_domain(flow->topo); /* at most, as channels */
    if (!in || choice->algo < 0) return false;
    if (choice->algo == NCCL_NVLS_TREE) n /= fmax(flow->domains.args.nnodes, 1);
    return n * n * 2 * nics <= 0x1p31; /* algo_check */
}

/* How a choice is run. */
struct way_to_run {
    const struct stand_in *in;
    const struct network *network;
    struct algo_choice ours;
};

/* NICs of a node that carry all that its accelerators' links can send: whole hosts' worth, each the
 * same; a tree may use twice as many as a ring. */
static uint32_t nics_wanted(const struct flow *flow, const struct stand_in *in,
                            const struct network *network)
{
    const struct topo *topo = flow->topo;
    uint32_t all = network_ring_nics(network), step = all;
    uint64_t hosts = topo_domain(topo) / topo->per_host;
    if (all == 0 || !is_spread(flow)) return 1;
    if (hosts > 1 && all % hosts == 0) step = all / (uint32_t)hosts;
    struct ceiling c = ceiling_of(topo, flow->consts, CEILING_RING, flow->request->coll->id);
    double one = c.node_GBps / c.nics, link = c.link_GBps * (in->algo == NCCL_RING ? 1 : 2);
    uint32_t count = step;
    while (count < all && count * one < link)
        count += step;
    return count;
}

/* 0, or -1 with a sentence. */
static int settle(struct flow *flow, const struct lib_choice *choice, struct way_to_run *way,
                  struct err *err)
{
    const struct stand_in *in = way->in = find_stand_in(flow, choice, err);
    if (!in) return -1;
    bool one = flow->part && in->coll == COLL_SENDRECV && flow->lay.n == 2; /* to the second */
    const struct algo *row = flow->piece == PIECE_INSIDE                ? &flow_inside
                             : !in->row || flow->piece == PIECE_BETWEEN ? &flow_tree
                             : one ? algo_find(COLL_BROADCAST, "chain", err)
                                   : algo_find(in->coll, in->row, err);
    enum net_policy policy = in->policy == NET_PXN && flow->args->no_pxn ? NET_OWN : in->policy;
    way->network = row ? get_network(flow, policy, err) : NULL;
    if (!way->network) return -1;
    uint32_t channels = row->channels;
    const struct topo *topo = flow->topo;
    if (in->per_nic) channels *= nics_wanted(flow, in, way->network);
    if (in->algo == NCCL_P2P && is_spread(flow) && topo->nics > topo->full_host)
        channels *= (uint32_t)(topo->nics / topo->full_host); /* over the NICs of one accelerator */
    if (flow->request->channels) channels = (uint32_t)flow->request->channels;
    way->ours = (struct algo_choice){row, channels, 1};
    return 0;
}

/* Messages that a pipelined schedule sends, times what each costs: where flows meet on links that
 * many share (PCIe), or wait for all below a switch that reduces, the more flows there are. */
static double pipelined_work(const struct flow *flow, const struct way_to_run *way, int proto,
                             size_t count)
{
    const struct coll_request *request = flow->request;
    struct net_args args = coll_net_args(request);
    double flows = (double)request->nranks * way->ours.channels, passes = 1;
    pipeline(request, count, proto, way->ours.channels, &args);
    double chunk = (double)count * (double)dtype_bytes(request->dtype) / way->ours.channels;
    if (args.slice_bytes) passes = ceil(chunk / (double)args.slice_bytes);
    enum scale_up inside = flow->topo->scale_up;
    bool bus =
        inside == SCALE_UP_PCIE || inside == SCALE_UP_PCIE_HOST || inside == SCALE_UP_NVLINK_PAIRS;
    bool switched = way->in->algo == NCCL_NVLS_TREE || way->in->algo == NCCL_COLLNET;
    return 2 * flows * passes * (bus ? 256 * flows : switched ? flows : 1024);
}

bool flow_is_quick(struct flow *flow, const struct lib_choice *choice, size_t count)
{
    enum { PIPELINED = 1 << 14, RING = 1 << 24, EXCHANGE = 1 << 15 }; /* messages, about */
    const double most_work = 4294967296.;                             /* two seconds or so */
    struct way_to_run way;
    struct err later = ERR_INIT; /* flow_library says it again */
    int bad = settle(flow, choice, &way, &later);
    err_release(&later);
    if (bad || flow->request->net == NET_FULL) return true;
    for (size_t i = 0; i < flow->topo->nfaults; i++)
        if (flow->topo->faults[i].link) return true; /* nothing else knows it */
    double n = (double)flow->request->nranks, channels = way.ours.channels;
    double leaf = (double)flow->topo->leaf_hosts * (double)flow->topo->per_host;
    double alike = leaf > 0 && leaf < n ? leaf : (double)topo_domain(flow->topo); /* at best */
    enum coll_id coll = flow->request->coll->id;
    if (coll == COLL_ALLTOALL || coll == COLL_ALLTOALLV) return alike * n <= EXCHANGE;
    if (!way.in->pipelined) return alike * 2 * n * channels <= RING;
    return n * channels <= PIPELINED &&
           pipelined_work(flow, &way, choice->proto, count) <= most_work;
}

/* Beside other calls all flows of a rank together weigh as one: those inside its node, and those
 * between nodes, where a ring or a tree leaves by one flow for all of a node's ranks. */
static double weight_of(const struct stand_in *in, const struct site *site, bool outside)
{
    double peers = outside ? site->n - site->per_node : site->per_node - 1;
    if (in->coll == COLL_ALLTOALL) return 1 / fmax(peers, 1);
    return outside && in->policy == NET_RING ? site->per_node : 1;
}

int flow_prepare(struct flow *flow, const struct lib_choice *choice, size_t count,
                 struct flow_call *call, struct err *err)
{
    const struct coll_request *request = flow->request;
    const struct site *site = get_site(flow, err);
    struct way_to_run way;
    if (!site || settle(flow, choice, &way, err)) return -1;
    const struct algo_choice ours = way.ours;
    *call = (struct flow_call){.network = way.network, .args = coll_net_args(request)};
    call->ready = ready_get(&flow->domains, &ours, err);
    if (!call->ready) return -1;
    uint64_t bytes =
        coll_size(request->coll, (uint32_t)request->nranks, count, dtype_bytes(request->dtype));
    lib_costs(flow->consts, site, flow->args, choice, request->coll->id, bytes, ours.channels,
              call->costs, &call->base_us);
    for (int scope = 0; scope < NSCOPES && flow->part; scope++)
        call->costs[scope].weight = weight_of(way.in, site, scope > SCOPE_DOMAIN) / ours.channels;
    call->args.costs = call->costs;
    call->pipelined = way.in->pipelined;
    if (call->pipelined) pipeline(request, count, choice->proto, ours.channels, &call->args);
    free(size_call(flow, call->network, call->ready->linked[0], count, &call->args));
    return 0;
}

/* One run of it, which may be with another count than it was made for. */
static int run_call(struct flow *flow, const struct flow_call *call, size_t count,
                    struct flow_run *run, struct err *err)
{
    struct net_args args = call->args;
    if (run_linked(flow, call->network, call->ready, call->ready->linked[0], &args, count, run,
                   err))
        return -1;
    run->device_us += call->base_us;
    return 0;
}

int flow_library(struct flow *flow, const struct lib_choice *choice, size_t count,
                 struct flow_run *run, struct err *err)
{
    struct flow_call call;
    return flow_prepare(flow, choice, count, &call, err) || run_call(flow, &call, count, run, err)
               ? -1
               : 0;
}

/* What a call takes without bytes; run once for all sizes whose messages cost the same. */
static int run_empty(struct flow *flow, const struct flow_call *call, ps_t *total_ps,
                     struct err *err)
{
    struct empty wanted = {
        .ready = call->ready, .network = call->network, .slots = call->args.slots};
    for (int scope = 0; scope < NSCOPES; scope++) {
        wanted.latency_ps[scope] = call->costs[scope].latency_ps;
        wanted.overhead_ps[scope] = call->costs[scope].overhead_ps;
    }
    for (size_t i = 0; i < flow->nempties; i++) {
        wanted.total_ps = *total_ps = flow->empties[i].total_ps;
        if (memcmp(&wanted, &flow->empties[i], sizeof wanted) == 0) return 0;
    }
    struct flow_run run;
    struct flow_call none = *call;
    none.args.costs = none.costs;
    none.args.slice_bytes = 0;
    if (run_call(flow, &none, 0, &run, err)) return -1;
    wanted.total_ps = *total_ps = run.net.total_ps;
    flow_release(&run);
    MEM_GROW(flow->empties, flow->nempties, flow->empties_cap);
    flow->empties[flow->nempties++] = wanted;
    return 0;
}

/* The levels of NVLSTree: all ranks inside; the ranks of the nodes that have the same place there.
 */
static void make_levels(struct flow *flow)
{
    uint32_t nodes = flow->domains.args.nnodes, per = flow->lay.n / nodes;
    for (int i = 0; i < 2 && !flow->levels[i]; i++) {
        struct coll_request *request = mem_calloc(1, sizeof *request);
        struct flow_lay lay = flow->lay;
        if (i) lay = (struct flow_lay){nodes, per * lay.groups, lay.base, 0};
        *request = *flow->request;
        request->nranks = lay.n;
        flow->levels[i] =
            flow_group(request, flow->topo, flow->consts, flow->args, &lay, &flow->site);
        flow->levels[i]->asked = request;
        flow->levels[i]->piece = i ? PIECE_BETWEEN : PIECE_INSIDE;
    }
}

/* Both levels at once: latencies of one after the other, then the wire time of the slower. */
static int run_levels(struct flow *flow, const struct lib_choice *choice, size_t count,
                      struct flow_run *run, struct flow_empty *both, struct err *err)
{
    struct flow_run more;
    struct flow_empty empty[2];
    make_levels(flow);
    uint32_t nodes = flow->domains.args.nnodes, per = flow->lay.n / nodes;
    size_t share = count / per + (count % per > 0);
    if (flow_part(flow->levels[0], choice, count, run, &empty[0], err)) return -1;
    if (flow_part(flow->levels[1], choice, share, &more, &empty[1], err)) {
        flow_release(run);
        return -1;
    }
    double wire_us = fmax(run->device_us - empty[0].us, more.device_us - empty[1].us);
    both->us = both->front_us = empty[0].us + empty[1].us;
    run->device_us = both->us + wire_us;
    for (uint32_t l = 0; l < run->net.nlinks; l++)
        run->net.link_bytes[l] += more.net.link_bytes[l];
    flow_release(&more);
    return 0;
}

int flow_part(struct flow *flow, const struct lib_choice *choice, size_t count,
              struct flow_run *run, struct flow_empty *empty, struct err *err)
{
    struct flow_call call;
    ps_t latency_ps;
    if (choice->algo == NCCL_NVLS_TREE && flow->piece == PIECE_ALL)
        return run_levels(flow, choice, count, run, empty, err);
    if (flow_prepare(flow, choice, count, &call, err) || run_empty(flow, &call, &latency_ps, err))
        return -1;
    if (flow->piece == PIECE_BETWEEN) call.base_us = 0; /* the other level has it */
    empty->us = call.base_us + (double)latency_ps / 1e6;
    empty->front_us = call.pipelined ? empty->us : call.base_us;
    if (call.pipelined) { /* behind the latencies, its bytes as one stream */
        call.args.flood = true;
        call.args.slice_bytes = 0;
    }
    if (run_call(flow, &call, count, run, err)) return -1;
    if (call.pipelined) run->device_us += (double)latency_ps / 1e6;
    return 0;
}

int flow_pieces(struct flow *flow, const struct lib_choice *choice, size_t count,
                struct flow_call calls[2], uint32_t *ncalls, struct err *err)
{
    struct flow *of[2] = {flow, NULL};
    size_t counts[2] = {count, 0};
    if (choice->algo == NCCL_NVLS_TREE && flow->piece == PIECE_ALL) {
        make_levels(flow);
        uint32_t per = flow->lay.n / flow->domains.args.nnodes;
        of[0] = flow->levels[0];
        of[1] = flow->levels[1];
        counts[1] = count / per + (count % per > 0);
    }
    for (*ncalls = 0; *ncalls < 2 && of[*ncalls]; ++*ncalls) {
        struct flow_call *call = &calls[*ncalls];
        if (flow_prepare(of[*ncalls], choice, counts[*ncalls], call, err)) return -1;
        if (!call->pipelined) continue;
        call->args.flood = true;
        call->args.slice_bytes = 0;
    }
    return 0;
}

void flow_release(struct flow_run *run)
{
    net_result_release(&run->net);
}
