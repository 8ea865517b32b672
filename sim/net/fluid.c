/* SPDX-License-Identifier: Apache-2.0
 * Fluid jobs: see fluid.h. A block's hosts are cut out of the cluster, with what is broken there,
 * so that a call costs what its own ranks cost; flow.h turns the library's choice into a run. */
#include "net/fluid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/closed.h"
#include "net/fault.h"
#include "net/flow.h"

/* Hosts of the cluster that a block is on. */
struct cut {
    uint32_t first, hosts;
    bool marked; /* faults of single hosts are among them: they are not like others */
};

static bool same_cut(const struct cut *a, const struct cut *b)
{
    return a->hosts == b->hosts && a->marked == b->marked && (!a->marked || a->first == b->first);
}

/* The calls of groups that lie alike: all sizes. */
struct family {
    enum coll_id coll;
    struct flow_lay lay; /* its base counts from the first host of the cut */
    struct cut cut;
    struct topo topo; /* of the cut; its faults are owned, all else is borrowed */
    struct lib_args args;
    struct coll_request request;
    struct site site;
    struct flow *flow;
};

struct answer {
    struct fluid_call call; /* its base counts from the cut's; n 0: a free place */
    struct cut cut;
    struct fluid fluid;
};

struct fluids {
    const struct topo *topo;
    const struct net_consts *consts;
    struct lib_args args;
    bool unfolded;
    struct family **families;
    size_t nfamilies, families_cap;
    struct answer *answers; /* a table of 2^k places, at most half of them full */
    size_t nanswers, places;
    size_t runs, asked;
};

struct fluids *fluids_new(const struct topo *topo, const struct net_consts *consts,
                          const struct lib_args *args)
{
    struct fluids *fluids = mem_calloc(1, sizeof *fluids);
    fluids->topo = topo;
    fluids->consts = consts;
    fluids->args = *args;
    return fluids;
}

void fluids_unfold(struct fluids *fluids)
{
    fluids->unfolded = true;
}

static void family_free(struct family *family)
{
    flow_free(family->flow);
    fault_release(&family->topo);
    free(family);
}

void fluids_free(struct fluids *fluids)
{
    if (!fluids) return;
    for (size_t i = 0; i < fluids->nfamilies; i++)
        family_free(fluids->families[i]);
    free(fluids->families);
    free(fluids->answers);
    free(fluids);
}

struct fluids_of fluids_of(const struct fluids *fluids)
{
    return (struct fluids_of){fluids->topo, fluids->consts, &fluids->args};
}

void fluids_count(const struct fluids *fluids, size_t *runs, size_t *asked)
{
    *runs = fluids->runs;
    *asked = fluids->asked;
}

/* ---- the hosts of a block ---- */

static uint64_t least_common(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* Whether hosts can be taken out and leave a network like theirs: not from a torus or a dragonfly,
 * whose links depend on all hosts, nor where links between switches are broken. */
static bool can_cut(const struct topo *topo)
{
    for (size_t i = 0; i < topo->nfaults; i++) {
        const char *link = topo->faults[i].link;
        if (link && strncmp(link, "host", 4) != 0) return false;
    }
    return topo->layout == TOPO_SWITCH || topo->layout == TOPO_FAT_TREE ||
           topo->layout == TOPO_RAIL;
}

/* From the start of the domain, and of the leaf, of the block's first host; within one domain from
 * that host. */
static struct cut cut_of(const struct fluids *fluids, const struct fluid_call *call)
{
    const struct topo *topo = fluids->topo;
    uint64_t end = call->base + (uint64_t)call->n * call->stride - 1;
    uint64_t first = call->base / topo->per_host, last = end / topo->per_host, unit = 1;
    uint64_t domain = topo->domain_hosts ? topo->domain_hosts : 1;
    if (fluids->unfolded || !can_cut(topo))
        return (struct cut){0, (uint32_t)topo->hosts, topo->nfaults > 0};
    if (first / domain != last / domain) {
        unit = domain;
        if (topo->layout != TOPO_SWITCH || topo->oversubscribed > 1)
            unit = least_common(domain, topo->leaf_hosts ? topo->leaf_hosts : 1);
    }
    struct cut cut = {.first = (uint32_t)(first / unit * unit)};
    cut.hosts = (uint32_t)last - cut.first + 1;
    for (size_t i = 0; i < topo->nfaults; i++) { /* of hosts that the block itself is on */
        int64_t host = fault_host(&topo->faults[i]);
        cut.marked |= host >= (int64_t)first && host <= (int64_t)last;
    }
    return cut;
}

/* The cluster without other hosts; links of faults are named anew. */
static struct topo cut_topo(const struct topo *whole, const struct cut *cut)
{
    struct topo topo = *whole;
    topo.hosts = cut->hosts;
    topo.faults = mem_calloc(whole->nfaults, sizeof *topo.faults);
    topo.nfaults = 0;
    for (size_t i = 0; i < whole->nfaults; i++) {
        struct fault fault = whole->faults[i];
        int64_t host = fault_host(&fault), at = host - (int64_t)cut->first;
        if (host >= 0 && (!cut->marked || at < 0 || at >= (int64_t)cut->hosts)) continue;
        const char *slash = fault.link ? strchr(fault.link, '/') : NULL;
        fault.link = host < 0 ? mem_strdup(fault.link)
                              : mem_printf("host%lld%s", (long long)at, slash ? slash : "");
        fault.where = mem_strdup(fault.where);
        topo.faults[topo.nfaults++] = fault;
    }
    return topo;
}

/* ---- families ---- */

/* With a broken link no two ranks are alike, and the engine takes seconds for a ring of thousands,
 * on a channel per NIC. Broken NICs then count as all NICs at the rate that the worst host has
 * left: as its ring goes by each of them, the others wait for that host. */
static void smooth_faults(struct topo *topo, const struct fluid_call *call)
{
    enum { MOST_MESSAGES = 1 << 20 };
    double messages = (double)call->n * call->n * call->stride * (double)topo->nics;
    double share = topo->nfaults ? fault_nic_share(topo) : 1;
    bool nics = !topo->machine;
    for (size_t i = 0; i < topo->nfaults; i++) {
        nics &= topo->faults[i].link && strstr(topo->faults[i].link, "/nic") != NULL;
    }
    if (!topo->nfaults || !nics || !(share > 0) || messages <= MOST_MESSAGES) return;
    fault_release(topo);
    topo->nic_Gbps *= share;
    topo->one_nic_Gbps *= share;
}

/* `call`: its base counts from the cut's first host. */
static struct family *make_family(const struct fluids *fluids, const struct fluid_call *call,
                                  const struct cut *cut, struct err *err)
{
    struct family *family = mem_calloc(1, sizeof *family);
    bool alike;
    family->coll = call->coll;
    family->topo = cut_topo(fluids->topo, cut);
    smooth_faults(&family->topo, call);
    family->cut = *cut;
    family->args = fluids->args;
    family->args.direct = call->direct;
    family->lay = (struct flow_lay){call->n, call->stride, call->base, call->back};
    family->request = (struct coll_request){.coll = coll_get(call->coll),
                                            .nranks = call->n,
                                            .slots = 1,
                                            .dtype = DT_UINT8,
                                            .net = fluids->unfolded ? NET_FULL : NET_FLOW,
                                            .channels = fluids->args.channels};
    if (flow_site(&family->topo, &family->lay, &family->site, &alike, err) == 0) {
        family->flow = flow_group(&family->request, &family->topo, fluids->consts, &family->args,
                                  &family->lay, &family->site);
        return family;
    }
    family_free(family);
    return NULL;
}

static struct family *get_family(struct fluids *fluids, const struct fluid_call *call,
                                 const struct cut *cut, struct err *err)
{
    for (size_t i = 0; i < fluids->nfamilies; i++) {
        struct family *f = fluids->families[i];
        if (f->coll == call->coll && f->args.direct == call->direct && f->lay.n == call->n &&
            f->lay.groups == call->stride && f->lay.base == call->base &&
            f->lay.back == call->back && same_cut(&f->cut, cut))
            return f;
    }
    struct family *made = make_family(fluids, call, cut, err);
    if (!made) return NULL;
    MEM_GROW(fluids->families, fluids->nfamilies, fluids->families_cap);
    return fluids->families[fluids->nfamilies++] = made;
}

/* ---- a run ---- */

/* Where a mesh is taken as a switch, its links are still of their kind. */
static enum net_kind kind_of(const struct family *family, enum net_kind kind)
{
    return kind == NET_NVLINK && family->topo.scale_up == SCALE_UP_XGMI ? NET_XGMI : kind;
}

/* Splits the time of a run: its busiest link is at work for a time in which latencies pass as well,
 * so that what there is beside is but the rest. `empty_ps`: without bytes. */
static void split_time(const struct family *family, const struct flow_run *run, ps_t total_ps,
                       ps_t empty_ps, struct fluid *fluid)
{
    double busiest_ps = 0;
    for (uint32_t l = 0; l < run->net.nlinks; l++) {
        if (!(run->net.link_bytes[l] > 0)) continue;
        struct net_link link = network_link(run->network, l);
        double busy_ps = run->net.link_bytes[l] / link.capacity_Bps * 1e12;
        if (busy_ps <= busiest_ps) continue;
        busiest_ps = busy_ps;
        enum net_kind kind = kind_of(family, link.kind);
        fluid->net_limited = kind == NET_NIC || kind == NET_FABRIC;
    }
    double most_ps = (double)(total_ps - fluid->front_ps);
    fluid->wire_ps = total_ps - empty_ps;
    if (busiest_ps > (double)fluid->wire_ps) fluid->wire_ps = (ps_t)fmin(busiest_ps, most_ps);
    fluid->fixed_ps = total_ps - fluid->wire_ps;
}

static void count_links(const struct family *family, const struct flow_run *run,
                        struct fluid *fluid)
{
    double wire_s = (double)fluid->wire_ps / 1e12;
    bool one = family->coll == COLL_SENDRECV && family->lay.n == 2; /* of them sends */
    double senders = (one ? 1. : family->lay.n) * family->lay.groups;
    for (uint32_t l = 0; l < run->net.nlinks; l++) {
        double bytes = run->net.link_bytes[l];
        if (!(bytes > 0)) continue;
        struct net_link link = network_link(run->network, l);
        enum net_kind kind = kind_of(family, link.kind);
        float busy = wire_s > 0 ? (float)fmin(bytes / link.capacity_Bps / wire_s, 1) : 0;
        fluid->bytes[kind] += bytes / senders;
        enum net_kind met = kind_of(family, network_meets(run->network, l));
        fluid->busy[met] = fmaxf(fluid->busy[met], busy);
    }
}

/* The switch reduces by itself; else a kernel moves what stays inside, and little but NICs what
 * leaves a node, by what there is more of. */
static enum fluid_mover mover_of(const struct site *site, const struct lib_choice *choice)
{
    if (choice->algo == NCCL_NVLS || choice->algo == NCCL_NVLS_TREE || choice->algo == NCCL_COLLNET)
        return FLUID_NONE;
    double inside = (site->per_node - 1) / site->per_node;
    if (choice->algo == NCCL_P2P) inside = (site->per_node - 1) / (site->n - 1);
    return site->nodes > 1 && inside < .5 ? FLUID_NETWORK : FLUID_NVLINK;
}

/* By formula: the limiting kind of links is busy all the time, and no other is known of. */
static void take_way(const struct family *family, const struct way *way, uint64_t bytes,
                     struct fluid *fluid)
{
    const struct site *site = &family->site;
    enum scale_up inside = family->topo.scale_up;
    bool net = site->nodes > 1 && site->nic_GBps / site->per_node <= site->line_GBps;
    enum net_kind kind = net                         ? NET_NIC
                         : inside == SCALE_UP_MEMORY ? NET_MEMORY
                         : inside == SCALE_UP_XGMI   ? NET_XGMI
                         : site->gen == LINK_PCIE    ? NET_PCIE
                                                     : NET_NVLINK;
    fluid->formula = true;
    fluid->fixed_ps = fluid->front_ps = ps_add(0, (way->base_us + way->latency_us) * 1e6);
    fluid->wire_ps = bytes ? ps_add(0, way->wire_us * 1e6) : 0;
    fluid->busy[kind] = bytes ? 1 : 0;
    fluid->bytes[kind] = coll_get(family->coll)->busbw_factor(family->lay.n) * (double)bytes;
    fluid->net_limited = net;
}

static int run_family(struct fluids *fluids, struct family *family, uint64_t bytes,
                      struct fluid *fluid, struct err *err)
{
    struct way way;
    struct lib_args any = family->args; /* a step has operations without the algorithm asked for */
    any.algo = any.proto = -1;
    if (lib_way(&family->site, fluids->consts, &family->args, family->coll, bytes, &way) &&
        lib_way(&family->site, fluids->consts, &any, family->coll, bytes, &way))
        return err_add(err, ERR_USAGE, "%s: no way to run %s inside a training step",
                       fluids->topo->name ? fluids->topo->name : "topology",
                       coll_get(family->coll)->name);
    struct lib_choice choice = {way.algo, way.proto, 0, nccl_algo_name(way.algo),
                                nccl_proto_name(way.proto)};
    fluid->mover = mover_of(&family->site, &choice);
    fluid->algo = choice.algo_name;
    fluid->proto = choice.proto_name;
    if (!flow_can(family->flow, &choice)) {
        take_way(family, &way, bytes, fluid);
        return 0;
    }
    struct flow_run run;
    struct flow_empty empty;
    const struct coll *coll = coll_get(family->coll);
    size_t count = coll_block_count(coll, family->lay.n, bytes, 1);
    if (flow_part(family->flow, &choice, count, &run, &empty, err)) return -1;
    double fixed_us = fmin(empty.us, run.device_us);
    fluid->front_ps = ps_add(0, fmin(empty.front_us, fixed_us) * 1e6);
    split_time(family, &run, ps_add(0, run.device_us * 1e6), ps_add(0, fixed_us * 1e6), fluid);
    count_links(family, &run, fluid);
    flow_release(&run);
    fluids->runs++;
    return 0;
}

/* ---- hierarchical dispatch ---- */

static int get_block(struct fluids *fluids, const struct fluid_call *call, struct fluid *fluid,
                     struct err *err);

static ps_t later(ps_t a, ps_t b)
{
    return a > b ? a : b;
}

/* Two jobs count as one: in a row, or `at_once`, where they share what both need. */
static void add_job(struct fluid *sum, const struct fluid *job, bool at_once)
{
    double wire[2] = {(double)sum->wire_ps, (double)job->wire_ps}, both = 0;
    for (int k = 0; k < NNET_KINDS && at_once; k++)
        both = fmax(both, sum->busy[k] * wire[0] + job->busy[k] * wire[1]);
    both = at_once ? fmax(both, fmax(wire[0], wire[1])) : wire[0] + wire[1];
    for (int k = 0; k < NNET_KINDS && both > 0; k++) {
        sum->busy[k] = (float)((sum->busy[k] * wire[0] + job->busy[k] * wire[1]) / both);
        sum->bytes[k] += job->bytes[k];
    }
    sum->fixed_ps = at_once ? later(sum->fixed_ps, job->fixed_ps) : sum->fixed_ps + job->fixed_ps;
    sum->front_ps = at_once ? later(sum->front_ps, job->front_ps) : sum->front_ps + job->front_ps;
    sum->wire_ps = ps_add(0, both);
}

/* An exchange between all of what has to cross, then one inside each domain of the rest: a rank's
 * tokens cross once per host, what comes in is spread there. */
static void spread_parts(const struct fluid_call *call, uint32_t inside, struct fluid_call parts[2])
{
    parts[0] = parts[1] = *call;
    parts[0].cross = parts[1].cross = 1;
    parts[0].bytes = (uint64_t)llround((double)call->bytes * call->cross);
    parts[1].bytes = call->bytes - parts[0].bytes;
    parts[1].n = inside;
}

static int run_spread(struct fluids *fluids, const struct fluid_call *call, uint32_t inside,
                      struct fluid *fluid, struct err *err)
{
    struct fluid_call parts[2];
    struct fluid second;
    spread_parts(call, inside, parts);
    if (get_block(fluids, &parts[0], fluid, err) || get_block(fluids, &parts[1], &second, err))
        return -1;
    add_job(fluid, &second, call->direct);
    return 0;
}

/* Members of a group in the domain of its first. */
static uint32_t members_inside(const struct topo *topo, const struct fluid_call *call)
{
    uint64_t domain = topo_domain(topo), left = domain - call->base % domain;
    uint64_t count = (left + call->stride - 1) / call->stride;
    return count < call->n ? (uint32_t)count : call->n;
}

/* ---- asking ---- */

static int check(const struct fluids *fluids, const struct fluid_call *call, struct err *err)
{
    uint64_t gpus = topo_gpus(fluids->topo);
    uint64_t block = (uint64_t)call->n * call->stride;
    uint64_t end = call->base + (call->span > block ? call->span : block);
    if (call->n == 0 || call->stride == 0)
        return err_add(err, ERR_USAGE, "a group of %u ranks, %u apart; both must be at least 1",
                       call->n, call->stride);
    if (end > gpus)
        return err_add(err, ERR_USAGE,
                       "groups of %u ranks, %u apart, from rank %u on end at rank %llu; the "
                       "topology has %llu",
                       call->n, call->stride, call->base, (unsigned long long)end,
                       (unsigned long long)gpus);
    if (!(call->cross >= 0 && call->cross <= 1))
        return err_add(err, ERR_USAGE, "a share of %g of the bytes crosses hosts; it must be 0..1",
                       call->cross);
    return 0;
}

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static bool same_call(const struct fluid_call *a, const struct fluid_call *b)
{
    return a->coll == b->coll && a->bytes == b->bytes && a->n == b->n && a->stride == b->stride &&
           a->base == b->base && a->cross == b->cross && a->direct == b->direct &&
           a->back == b->back;
}

static bool same_answer(const struct answer *a, const struct answer *b)
{
    return same_call(&a->call, &b->call) && same_cut(&a->cut, &b->cut);
}

/* The place of an answer, or a free one for it. */
static struct answer *find_place(struct answer *answers, size_t places, const struct answer *wanted)
{
    const struct fluid_call *call = &wanted->call;
    uint64_t h = mix(mix(mix(call->bytes, call->coll), call->n), call->stride);
    size_t at = (size_t)mix(mix(h, call->base), (uint64_t)llround(call->cross * 1e9));
    while (answers[at & (places - 1)].call.n && !same_answer(&answers[at & (places - 1)], wanted))
        at++;
    return &answers[at & (places - 1)];
}

static void keep(struct fluids *fluids, const struct answer *answer)
{
    if (2 * (fluids->nanswers + 1) > fluids->places) {
        size_t places = fluids->places ? 2 * fluids->places : 64;
        struct answer *answers = mem_calloc(places, sizeof *answers);
        for (size_t i = 0; i < fluids->places; i++)
            if (fluids->answers[i].call.n)
                *find_place(answers, places, &fluids->answers[i]) = fluids->answers[i];
        free(fluids->answers);
        fluids->answers = answers;
        fluids->places = places;
    }
    *find_place(fluids->answers, fluids->places, answer) = *answer;
    fluids->nanswers++;
}

/* Whether a call is made of two, `inside` of its members being in one domain. */
static bool is_spread(const struct fluid_call *call, uint32_t inside)
{
    return call->coll == COLL_ALLTOALL && inside < call->n && call->cross > 0 && call->cross < 1;
}

uint32_t fluids_parts(const struct fluids *fluids, const struct fluid_call *call,
                      struct fluid_call parts[2])
{
    uint32_t inside = members_inside(fluids->topo, call);
    parts[0] = *call;
    parts[0].cross = 1;
    if (!is_spread(call, inside)) return 1;
    spread_parts(call, inside, parts);
    return 2;
}

/* The answer for one block. */
static int get_block(struct fluids *fluids, const struct fluid_call *call, struct fluid *fluid,
                     struct err *err)
{
    struct answer answer = {*call, cut_of(fluids, call), {.algo = "", .proto = ""}};
    struct fluid_call *key = &answer.call;
    uint32_t inside = members_inside(fluids->topo, call);
    key->cross = is_spread(call, inside) ? call->cross : 1;
    key->direct = call->direct && call->coll == COLL_ALLTOALL;
    key->back = call->back && call->coll == COLL_SENDRECV && call->n == 2 && fluids->topo->nfaults;
    key->base -= (uint32_t)(answer.cut.first * fluids->topo->per_host);
    const struct answer *known =
        fluids->places ? find_place(fluids->answers, fluids->places, &answer) : NULL;
    if (known && known->call.n) {
        *fluid = known->fluid;
        return 0;
    }
    int bad = 0;
    if (key->n > 1 && key->cross < 1) {
        bad = run_spread(fluids, call, inside, &answer.fluid, err);
    } else if (key->n > 1) {
        struct family *family = get_family(fluids, key, &answer.cut, err);
        bad = !family || run_family(fluids, family, key->bytes, &answer.fluid, err) ? -1 : 0;
    }
    if (bad) return -1;
    keep(fluids, &answer);
    *fluid = answer.fluid;
    return 0;
}

bool fluids_marked(const struct fluids *fluids)
{
    for (size_t i = 0; i < fluids->topo->nfaults; i++) {
        const char *link = fluids->topo->faults[i].link;
        if (link && (fault_host(&fluids->topo->faults[i]) >= 0 || strncmp(link, "host", 4) != 0))
            return true;
    }
    return false;
}

int fluids_get(struct fluids *fluids, const struct fluid_call *call, struct fluid *fluid,
               struct err *err)
{
    if (check(fluids, call, err)) return -1;
    fluids->asked++;
    struct fluid_call block = *call;
    uint32_t size = call->n * call->stride, blocks = call->span / size;
    block.span = 0;
    if (call->n == 1) blocks = 1;
    if (!fluids_marked(fluids)) { /* blocks differ by where domains cut them, which comes again */
        uint64_t domain = topo_domain(fluids->topo);
        bool even = size % domain == 0 || domain % size == 0;
        uint64_t differ = even ? 1 : least_common(size, domain) / size;
        if (blocks > differ) blocks = (uint32_t)differ;
    }
    for (uint32_t i = 0; i < blocks || i == 0; i++, block.base += size) {
        struct fluid one;
        if (get_block(fluids, &block, &one, err)) return -1;
        if (i == 0 || one.fixed_ps + one.wire_ps > fluid->fixed_ps + fluid->wire_ps) *fluid = one;
    }
    return 0;
}
