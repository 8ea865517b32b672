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

struct flow {
    const struct coll_request *request;
    const struct topo *topo;
    const struct net_consts *consts;
    const struct lib_args *args;
    struct ready_list hosts, domains; /* schedules whose node groups are these */
    uint32_t *domain_sizes;
    struct network *networks[NPOLICIES];
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
    return flow;
}

void flow_free(struct flow *flow)
{
    if (!flow) return;
    ready_release(&flow->hosts);
    ready_release(&flow->domains);
    free(flow->domain_sizes);
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
    for (int i = 0; i < NNET_KINDS; i++)
        rates[i].efficiency /= crowding;
    rates[NET_NIC].latency_ps = (ps_t)llround(latency);
}

static const struct network *get_network(struct flow *flow, enum net_policy policy, struct err *err)
{
    if (flow->networks[policy]) return flow->networks[policy];
    struct net_rate rates[NNET_KINDS];
    struct topo topo = *flow->topo;
    net_rates(flow->consts, &topo, rates);
    struct site site;
    if (policy == NET_RING && site_of(&topo, &site, err)) return NULL;
    if (policy == NET_RING) slow_links(&site, flow->consts, flow->request->coll->id, rates);
    if (policy == NET_RING && flow_is_mesh(&topo)) {
        if (topo.scale_up == SCALE_UP_XGMI) rates[NET_NVLINK] = rates[NET_XGMI];
        rates[NET_NVLINK].latency_ps /= 2; /* into the switch and out of it */
        topo.scale_up = SCALE_UP_NVSWITCH;
        topo.line_GBps = site.line_GBps;
    }
    flow->networks[policy] = network_build(&topo, rates, policy, NULL, err);
    return flow->networks[policy];
}

static int run_linked(struct flow *flow, const struct network *network, const struct ready *ready,
                      const struct linked *linked, struct net_args *args, size_t count,
                      struct flow_run *run, struct err *err)
{
    const struct coll_request *request = flow->request;
    struct traffic *traffic = coll_size_args(request, linked, count, args);
    args->network = network;
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
    if (all == 0) return 1;
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
    const struct algo *row =
        in->row ? algo_find(flow->request->coll->id, in->row, err) : &flow_tree;
    enum net_policy policy = in->policy == NET_PXN && flow->args->no_pxn ? NET_OWN : in->policy;
    way->network = row ? get_network(flow, policy, err) : NULL;
    if (!way->network) return -1;
    uint32_t channels = row->channels;
    const struct topo *topo = flow->topo;
    if (in->per_nic) channels *= nics_wanted(flow, in, way->network);
    if (in->algo == NCCL_P2P && topo->hosts > 1 && topo->nics > topo->full_host)
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

int flow_library(struct flow *flow, const struct lib_choice *choice, size_t count,
                 struct flow_run *run, struct err *err)
{
    const struct coll_request *request = flow->request;
    struct way_to_run way;
    if (settle(flow, choice, &way, err)) return -1;
    const struct algo_choice ours = way.ours;
    const struct ready *ready = ready_get(&flow->domains, &ours, err);
    if (!ready) return -1;
    struct net_cost costs[NSCOPES] = {0};
    double base_us = 0;
    struct net_args args = coll_net_args(request);
    uint64_t bytes =
        coll_size(request->coll, (uint32_t)request->nranks, count, dtype_bytes(request->dtype));
    lib_costs(flow->consts, flow->topo, flow->args, choice, request->coll->id, bytes, ours.channels,
              costs, &base_us);
    args.costs = costs;
    if (way.in->pipelined) pipeline(request, count, choice->proto, ours.channels, &args);
    if (run_linked(flow, way.network, ready, ready->linked[0], &args, count, run, err)) return -1;
    run->device_us += base_us;
    return 0;
}

void flow_release(struct flow_run *run)
{
    net_result_release(&run->net);
}
