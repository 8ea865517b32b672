/* SPDX-License-Identifier: Apache-2.0
 * The cluster as numbered links and computed routes. See network.h; the inside of a host is host.h,
 * the switches between hosts fabric.h. All hosts are alike but for their faults: link l of host h
 * has the number h x stride + l, with the host's own links first and its ports behind. */
#include "net/network.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/fabric.h"
#include "net/fault.h"
#include "net/host.h"

/* The nearest NICs of an accelerator: near[start] and `count` - 1 behind it. Those that have the
 * same ones deal them out: `each` belong to this one, from its `turn` on. */
struct nic_set {
    enum graph_near how;
    uint32_t start, count, turn, each;
};

/* Which NICs the accelerators of a host use. */
struct nic_use {
    bool *usable;        /* per NIC */
    struct nic_set *set; /* per accelerator */
    uint32_t *near;
    uint32_t *beside; /* per NIC the accelerator beside it */
    uint32_t *ring;   /* NICs that are somebody's nearest: those of rings */
    uint32_t nring;
};

/* A link whose rate is not that of its class. */
struct spoiled {
    uint32_t link;
    double fraction;
};

/* Where a ring leaves a domain. */
struct ring_exit {
    uint32_t host, gpu, nic;
};

/* Exits of the rings of groups: those of a rank's group in its domain. */
struct rings {
    uint32_t base, n, groups;
    struct ring_exit *exits;
    uint32_t nexits, cap;
    uint32_t *start, *count; /* per rank of the groups */
    uint32_t least;          /* of the counts */
};

/* A host whose NICs are not those of the others. */
struct odd_host {
    uint32_t host;
    struct nic_use use;
};

struct network {
    uint32_t nranks;
    double beta_Bps; /* of the one switch; 0: a cluster, with all that follows */
    ps_t alpha_ps;

    struct host host;
    struct net_fabric fabric;
    struct net_rate rates[NNET_KINDS];
    enum net_policy policy;
    uint32_t hosts, per_host, domain_hosts;
    uint32_t ports;   /* of a host: links of NICs */
    uint32_t *order;  /* accelerator of a rank; NULL: the same number */
    double *fraction; /* per link of a host, faults of all hosts */
    double burst_Bps, burst_bytes;
    double latency_ns; /* between two NICs; 0: those of the links */
    struct nic_use use;
    struct odd_host *odd; /* by host */
    size_t nodd, odd_cap;
    struct rings rings;      /* groups 0: one, of all ranks, and all NICs are its */
    struct spoiled *spoiled; /* by link */
    size_t nspoiled, spoiled_cap;
};

/* ---- one switch ---- */

struct network *network_switch(uint32_t nranks, double beta_Bps, ps_t alpha_ps)
{
    struct network *network = mem_calloc(1, sizeof *network);
    network->nranks = nranks;
    network->beta_Bps = beta_Bps;
    network->alpha_ps = alpha_ps;
    return network;
}

static bool is_switch(const struct network *network)
{
    return network->beta_Bps > 0;
}

/* ---- which NIC ---- */

static void use_release(struct nic_use *use)
{
    free(use->usable);
    free(use->set);
    free(use->near);
    free(use->beside);
    free(use->ring);
}

/* The nearest usable NICs of each accelerator that is used. Those that hang below the same node,
 * one after the other, have the same. */
static void find_near(const struct host *host, uint32_t gpus, struct nic_use *use)
{
    size_t count = 0, cap = 0;
    use->set = mem_calloc(gpus, sizeof *use->set);
    for (uint32_t g = 0; g < gpus; g++) {
        struct nic_set *set = &use->set[g];
        uint32_t above = host->nodes[host->gpu[g]].parent;
        if (g && host->nodes[host->gpu[g - 1]].parent == above) {
            *set = set[-1];
            continue;
        }
        *set = (struct nic_set){.how = NGRAPH_NEARS, .start = (uint32_t)count};
        for (uint32_t k = 0; k < host->nics; k++) {
            enum graph_near how = use->usable[k] ? host_near(host, g, k) : NGRAPH_NEARS;
            if (how > set->how || how == NGRAPH_NEARS) continue;
            if (how < set->how) count = set->start; /* those before are farther */
            set->how = how;
            MEM_GROW(use->near, count, cap);
            use->near[count++] = k;
        }
        set->count = (uint32_t)count - set->start;
    }
}

/* Deals NICs out among accelerators with the same nearest ones: as near, and the same first. */
static void deal(const struct host *host, uint32_t gpus, struct nic_use *use)
{
    uint32_t *sharers = mem_calloc((size_t)host->nics * NGRAPH_NEARS, sizeof *sharers);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t g = 0; g < gpus; g++) {
            struct nic_set *set = &use->set[g];
            if (set->count == 0) continue;
            uint32_t *same = &sharers[use->near[set->start] * NGRAPH_NEARS + set->how];
            if (pass == 0)
                set->turn = (*same)++;
            else
                set->each = (set->count + *same - 1) / *same;
        }
    }
    free(sharers);
}

/* The NIC of an accelerator for a channel. */
static uint32_t own_nic(const struct nic_use *use, uint32_t gpu, uint32_t channel)
{
    const struct nic_set *set = &use->set[gpu];
    return use->near[set->start + (set->turn * set->each + channel % set->each) % set->count];
}

/* The accelerator beside each NIC: the nearest, of those the first whose NIC it is. */
static void find_beside(const struct host *host, uint32_t gpus, struct nic_use *use)
{
    uint32_t *best = mem_calloc(host->nics, sizeof *best);
    use->beside = mem_calloc(host->nics, sizeof *use->beside);
    use->ring = mem_calloc(host->nics, sizeof *use->ring);
    memset(best, 0xff, host->nics * sizeof *best);
    for (int owned = 1; owned >= 0; owned--) { /* then those that nobody owns */
        for (uint32_t g = 0; g < gpus; g++) {
            const struct nic_set *set = &use->set[g];
            for (uint32_t i = 0; i < (owned ? set->each : set->count); i++) {
                uint32_t k = owned ? own_nic(use, g, i) : use->near[set->start + i];
                if (set->how >= best[k]) continue;
                best[k] = set->how;
                use->beside[k] = g;
            }
        }
    }
    for (uint32_t k = 0; k < host->nics; k++) {
        if (best[k] != UINT32_MAX) use->ring[use->nring++] = k;
    }
    free(best);
}

/* `use->usable` is there already. */
static void use_make(const struct host *host, uint32_t gpus, struct nic_use *use)
{
    find_near(host, gpus, use);
    deal(host, gpus, use);
    find_beside(host, gpus, use);
}

static int by_host(const void *a, const void *b)
{
    const struct odd_host *x = a, *y = b;
    return (x->host > y->host) - (x->host < y->host);
}

static const struct nic_use *use_of(const struct network *network, uint32_t host)
{
    const struct odd_host wanted = {.host = host};
    if (network->nodd == 0) return &network->use;
    const struct odd_host *found =
        bsearch(&wanted, network->odd, network->nodd, sizeof wanted, by_host);
    return found ? &found->use : &network->use;
}

/* ---- faults ---- */

/* Name of link l of a host, ports included, without the host's. */
static char *local_name(const struct network *network, uint32_t l)
{
    const struct host *host = &network->host;
    if (l < host->nlinks) return host_link_name(host, l);
    uint32_t port = l - (uint32_t)host->nlinks;
    if (network->fabric.layout == TOPO_TORUS) return mem_printf("nic%" PRIu32 " out", port);
    return mem_printf("%s %s", host->graph.nodes[host->nic[port / 2]].name,
                      port % 2 ? "in" : "out");
}

/* Whether a name is `text`, or `text` with a direction behind. */
static bool means(const char *name, const char *text)
{
    size_t length = strlen(text);
    if (strncmp(name, text, length) != 0) return false;
    return name[length] == '\0' || strcmp(name + length, " out") == 0 ||
           strcmp(name + length, " in") == 0;
}

/* Whether a host has links between accelerators other than PCIe. */
static bool has_scale_up(const struct network *network)
{
    for (uint32_t l = 0; l < network->host.nlinks; l++) {
        enum net_kind kind = network->host.links[l].kind;
        if (kind == NET_NVLINK || kind == NET_XGMI) return true;
    }
    return false;
}

/* Whether link l of a host, of that name, is one of several that `text` means: "nic*", "gpu2". */
static bool is_among(const struct network *network, uint32_t l, const char *name, const char *text)
{
    const struct host *host = &network->host;
    if (strcmp(text, "nic*") == 0) return l >= host->nlinks;
    if (strncmp(text, "gpu", 3) != 0 || strchr(text, ' ') || l >= host->nlinks) return false;
    enum net_kind kind = host->links[l].kind;
    bool counts = has_scale_up(network) ? kind == NET_NVLINK || kind == NET_XGMI : kind == NET_PCIE;
    size_t length = strlen(text), whole = strlen(name);
    if (!counts) return false;
    if (strncmp(name, text, length) == 0 && name[length] == ' ') return true;
    return whole > length + 4 && strncmp(name + whole - length - 4, " to ", 4) == 0 &&
           strcmp(name + whole - length, text) == 0;
}

static void spoil(struct network *network, uint32_t link, double fraction)
{
    MEM_GROW(network->spoiled, network->nspoiled, network->spoiled_cap);
    network->spoiled[network->nspoiled++] = (struct spoiled){link, fraction};
}

static int by_link(const void *a, const void *b)
{
    const struct spoiled *x = a, *y = b;
    return (x->link > y->link) - (x->link < y->link);
}

/* Sorted; what is named twice is spoiled twice. */
static void sort_spoiled(struct network *network)
{
    size_t kept = 0;
    if (network->nspoiled == 0) return;
    qsort(network->spoiled, network->nspoiled, sizeof *network->spoiled, by_link);
    for (size_t i = 0; i < network->nspoiled; i++) {
        struct spoiled *at = &network->spoiled[i];
        if (kept && network->spoiled[kept - 1].link == at->link)
            network->spoiled[kept - 1].fraction *= at->fraction;
        else
            network->spoiled[kept++] = *at;
    }
    network->nspoiled = kept;
}

/* The use of a host that is to differ from the others'. Valid until the next call. */
static struct nic_use *odd_use(struct network *network, uint32_t host)
{
    uint32_t nics = network->host.nics;
    for (size_t i = 0; i < network->nodd; i++)
        if (network->odd[i].host == host) return &network->odd[i].use;
    MEM_GROW(network->odd, network->nodd, network->odd_cap);
    struct odd_host *odd = &network->odd[network->nodd++];
    *odd = (struct odd_host){.host = host};
    odd->use.usable = mem_calloc(nics, sizeof *odd->use.usable);
    for (uint32_t k = 0; k < nics; k++)
        odd->use.usable[k] = true;
    return &odd->use;
}

/* Links whose names differ in their numbers alone. */
struct family {
    char *first, *second, *last; /* the two others may be NULL */
};

/* Whether two names differ in their numbers alone. */
static bool alike(const char *a, const char *b)
{
    static const char digits[] = "0123456789";
    while (*a && *b) {
        size_t x = strspn(a, digits), y = strspn(b, digits);
        if (!x != !y || (!x && *a != *b)) return false;
        a += x ? x : 1;
        b += y ? y : 1;
    }
    return *a == *b;
}

/* Puts a name, which it takes, into its family, which may be a new one. */
static void join_family(struct family *families, size_t *count, char *name)
{
    size_t k = 0;
    while (k < *count && !alike(families[k].first, name))
        k++;
    struct family *at = &families[k];
    if (k == *count) {
        families[(*count)++].first = name;
    } else if (!at->second) {
        at->second = name;
    } else {
        free(at->last);
        at->last = name;
    }
}

/* What a host has that can be named, NICs first: "nic0, nic1, .., nic7, gpu0 nvlink, ..". */
static char *all_links(const struct network *network)
{
    uint32_t stride = network->fabric.stride;
    struct family *families = mem_calloc((size_t)stride + 1, sizeof *families);
    size_t count = 0;
    char *text = mem_strdup("");
    for (uint32_t i = 0; i < stride; i++) {
        char *name = local_name(network, (network->fabric.port + i) % stride);
        char *end = strrchr(name, ' ');
        if (end && strcmp(end, " in") == 0) {
            free(name);
            continue;
        }
        if (end && strcmp(end, " out") == 0) *end = '\0';
        join_family(families, &count, name);
    }
    for (size_t i = 0; i < count; i++) {
        const struct family *f = &families[i];
        char *longer =
            mem_printf("%s%s%s%s%s%s%s", text, *text ? ", " : "", f->first, f->second ? ", " : "",
                       f->second ? f->second : "", f->last ? ", .., " : "", f->last ? f->last : "");
        free(text);
        text = longer;
        free(f->first);
        free(f->second);
        free(f->last);
    }
    free(families);
    return text;
}

static int unknown_link(const struct network *network, const struct fault *fault, struct err *err)
{
    char *all = all_links(network);
    err_add(err, ERR_USAGE,
            "%s: there is no link \"%s\"; links are host0..host%" PRIu32
            ", or host*, then \"/\" and one of: %s; nic* is all NICs, gpu0 all scale-up links of "
            "gpu0",
            fault->where, fault->link, network->hosts - 1, all);
    free(all);
    return -1;
}

/* Link l of one host (all: UINT32_MAX) has the fault. */
static int fault_local(struct network *network, const struct fault *fault, uint32_t host,
                       uint32_t l, struct err *err)
{
    uint32_t own = (uint32_t)network->host.nlinks;
    bool all = host == UINT32_MAX;
    if (fault->kind == FAULT_FRACTION) {
        if (all)
            network->fraction[l] *= fault->fraction;
        else
            spoil(network, host * network->fabric.stride + l, fault->fraction);
        return 0;
    }
    if (l < own || network->fabric.layout == TOPO_TORUS)
        return err_add(err, ERR_USAGE,
                       "%s: \"%s\" cannot be missing, only a NIC of a network with switches can; "
                       "give a fraction above 0",
                       fault->where, fault->link);
    struct nic_use *use = all ? &network->use : odd_use(network, host);
    use->usable[(l - own) / 2] = false;
    return 0;
}

/* A link between switches. */
static int fault_fabric(struct network *network, const struct fault *fault, struct err *err)
{
    bool found = false;
    for (uint32_t i = 0; i < network->fabric.nlinks && !found; i++) {
        char *name = fabric_link_name(&network->fabric, i);
        found = strcmp(name, fault->link) == 0;
        free(name);
        if (!found) continue;
        if (fault->kind == FAULT_MISSING)
            return err_add(err, ERR_USAGE,
                           "%s: \"%s\" cannot be missing, only a NIC can; give a fraction above 0",
                           fault->where, fault->link);
        spoil(network, network->fabric.first + i, fault->fraction);
    }
    return found ? 0 : unknown_link(network, fault, err);
}

static int apply_fault(struct network *network, const struct fault *fault, struct err *err)
{
    const char *text = fault->link, *slash = strchr(text, '/');
    bool found = false;
    int bad = 0;
    if (strncmp(text, "host", 4) != 0 || !slash) return fault_fabric(network, fault, err);
    uint32_t host = UINT32_MAX;
    if (strncmp(text, "host*/", 6) != 0) {
        char *end = NULL;
        unsigned long long number = strtoull(text + 4, &end, 10);
        if (end != slash || end == text + 4 || text[4] == '-' || text[4] == '+')
            return unknown_link(network, fault, err);
        if (number >= network->hosts)
            return err_add(err, ERR_USAGE, "%s: there is no host%llu; hosts are 0..%" PRIu32,
                           fault->where, number, network->hosts - 1);
        host = (uint32_t)number;
    }
    for (uint32_t l = 0; l < network->fabric.stride; l++) {
        char *name = local_name(network, l);
        if (means(name, slash + 1) || is_among(network, l, name, slash + 1)) {
            found = true;
            if (!bad) bad = fault_local(network, fault, host, l, err);
        }
        free(name);
    }
    return found ? bad : unknown_link(network, fault, err);
}

/* Marks NICs and links, then deals NICs out; sentences for hosts that have none left. */
static int apply_faults(struct network *network, const struct topo *topo, struct err *err)
{
    uint32_t nics = network->host.nics;
    bool need = network->hosts > network->domain_hosts && network->fabric.layout != TOPO_TORUS;
    unsigned before = err->count;
    network->use.usable = mem_calloc(nics, sizeof *network->use.usable);
    for (uint32_t k = 0; k < nics; k++)
        network->use.usable[k] = true;
    for (size_t i = 0; i < topo->nfaults; i++)
        if (topo->faults[i].link) apply_fault(network, &topo->faults[i], err);
    sort_spoiled(network);
    if (network->nodd) qsort(network->odd, network->nodd, sizeof *network->odd, by_host);
    for (size_t i = 0; i <= network->nodd; i++) {
        struct nic_use *use = i ? &network->odd[i - 1].use : &network->use;
        for (uint32_t k = 0; k < nics; k++)
            use->usable[k] = use->usable[k] && network->use.usable[k] &&
                             (!topo->nics_used || k < topo->nics_used);
        if (network->hosts > 1) use_make(&network->host, network->per_host, use);
        if (!need || use->nring) continue;
        char *which =
            i ? mem_printf("host%" PRIu32, network->odd[i - 1].host) : mem_strdup("a host");
        err_add(err, ERR_USAGE, "%s: %s has no NIC left to reach the other hosts by", topo->name,
                which);
        free(which);
    }
    return err->count > before ? -1 : 0;
}

/* ---- making one ---- */

static uint32_t most_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* No route is longer than this. */
static uint32_t longest(const struct network *network)
{
    const struct host *host = &network->host;
    uint32_t depth = 0, apart = 0;
    for (size_t i = 0; i < host->graph.nnodes; i++)
        depth = most_of(depth, host->nodes[i].depth);
    for (uint32_t a = 0; a < host->numas; a++) {
        for (uint32_t b = 0; b < host->numas; b++) {
            uint32_t at = a, hops = 0;
            for (; at != b; hops++)
                at = host->nodes[host->links[host->next[at * host->numas + b]].to].index;
            apart = most_of(apart, hops);
        }
    }
    uint32_t inside = 2 * depth + apart + host->passes;
    uint32_t side = 2 * depth + apart + (host->nic_passes ? host->nic_passes : 2); /* 2: PXN */
    uint32_t across = fabric_longest(&network->fabric);
    if (network->fabric.layout != TOPO_TORUS) across += 2 * side;
    return most_of(inside, network->hosts > 1 ? across : 0);
}

static void fill(struct network *network, const struct topo *topo, const struct net_rate *rates,
                 enum net_policy policy)
{
    memcpy(network->rates, rates, sizeof network->rates);
    network->policy = policy;
    network->nranks = (uint32_t)topo_gpus(topo);
    network->hosts = (uint32_t)topo->hosts;
    network->per_host = (uint32_t)topo->per_host;
    network->burst_Bps = topo->burst_Gbps * 1e9 / 8 * rates[NET_NIC].efficiency;
    network->latency_ns = topo->network_latency_ns;
    network->burst_bytes = topo->burst_GB * 1e9;
    bool wide = topo->domain_hosts > 1;
    for (uint32_t g = 0; g < network->per_host; g++)
        wide = wide && network->host.out[g] != GRAPH_NONE;
    network->domain_hosts = wide ? (uint32_t)topo->domain_hosts : 1;
}

static int number_links(struct network *network, const struct topo *topo, struct err *err)
{
    struct net_fabric *fabric = &network->fabric;
    uint32_t own = (uint32_t)network->host.nlinks;
    network->ports = fabric->layout == TOPO_TORUS ? fabric->nics : 2 * network->host.nics;
    fabric->stride = own + network->ports;
    fabric->port = own;
    double all = (double)network->hosts * fabric->stride + fabric->nlinks;
    if (all >= UINT32_MAX)
        return err_add(err, ERR_USAGE, "%s: a network of %.0f links; the most are %" PRIu32,
                       topo->name, all, UINT32_MAX - 1);
    fabric->first = network->hosts * fabric->stride;
    network->fraction = mem_calloc(fabric->stride, sizeof *network->fraction);
    for (uint32_t l = 0; l < fabric->stride; l++)
        network->fraction[l] = 1;
    return 0;
}

struct network *network_build(const struct topo *topo, const struct net_rate *rates,
                              enum net_policy policy, const uint32_t *order, struct err *err)
{
    struct network *network = mem_calloc(1, sizeof *network);
    int bad = host_make(&network->host, topo, err);
    if (!bad) bad = fabric_make(&network->fabric, topo, err);
    if (!bad) {
        fill(network, topo, rates, policy);
        bad = number_links(network, topo, err);
    }
    if (!bad) bad = apply_faults(network, topo, err);
    if (!bad && longest(network) > NETWORK_HOPS)
        bad = err_add(err, ERR_USAGE, "%s: routes of %" PRIu32 " links; the longest may have %d",
                      topo->name, longest(network), NETWORK_HOPS);
    if (!bad && order) {
        network->order = mem_calloc(network->nranks, sizeof *order);
        memcpy(network->order, order, network->nranks * sizeof *order);
    }
    if (!bad) return network;
    network_free(network);
    return NULL;
}

int network_check_faults(const struct topo *topo, struct err *err)
{
    struct net_rate rates[NNET_KINDS];
    bool named = false;
    for (size_t i = 0; i < topo->nfaults; i++) {
        named |= topo->faults[i].link != NULL;
    }
    if (!named) return 0;
    for (int i = 0; i < NNET_KINDS; i++) { /* it carries nothing */
        rates[i] = (struct net_rate){.efficiency = 1};
    }
    struct network *network = network_build(topo, rates, NET_OWN, NULL, err);
    network_free(network);
    return network ? 0 : -1;
}

void network_free(struct network *network)
{
    if (!network) return;
    if (!is_switch(network)) {
        host_release(&network->host);
        fabric_release(&network->fabric);
        use_release(&network->use);
        for (size_t i = 0; i < network->nodd; i++)
            use_release(&network->odd[i].use);
    }
    free(network->rings.exits);
    free(network->rings.start);
    free(network->rings.count);
    free(network->odd);
    free(network->spoiled);
    free(network->fraction);
    free(network->order);
    free(network);
}

/* ---- links ---- */

uint32_t network_ranks(const struct network *network)
{
    return network->nranks;
}

uint32_t network_links(const struct network *network)
{
    return is_switch(network) ? 2 * network->nranks
                              : network->fabric.first + network->fabric.nlinks;
}

const struct graph *network_host(const struct network *network)
{
    return is_switch(network) ? NULL : &network->host.graph;
}

static double port_GBps(const struct network *network, uint32_t port)
{
    const struct host *host = &network->host;
    if (network->fabric.layout == TOPO_TORUS) return network->fabric.up_GBps;
    return host->graph.nodes[host->nic[port / 2]].rate_Gbps / 8;
}

/* The link as it would be without faults of one host alone. */
static struct net_link usual_link(const struct network *network, uint32_t link)
{
    const struct net_fabric *fabric = &network->fabric;
    struct net_link out = {.kind = NET_FABRIC};
    double GBps = 0, fraction = 1, latency_ns = 0;
    uint32_t from, to, l = link % fabric->stride;
    bool at_accel = false;
    if (link >= fabric->first) {
        GBps = fabric_link(fabric, link - fabric->first, &from, &to);
    } else if (l < network->host.nlinks) {
        const struct host_link *at = &network->host.links[l];
        fraction = network->fraction[l];
        GBps = at->GBps;
        latency_ns = at->latency_ns;
        out.kind = at->kind;
        const struct graph_node *nodes = network->host.graph.nodes;
        at_accel = nodes[at->from].kind == GRAPH_ACCEL || nodes[at->to].kind == GRAPH_ACCEL;
    } else {
        fraction = network->fraction[l];
        GBps = port_GBps(network, l - fabric->port);
        out.kind = NET_NIC;
        out.peak_Bps = network->burst_Bps * fraction;
        out.bucket_bytes = network->burst_bytes;
    }
    GBps *= network->rates[out.kind].efficiency;
    if (at_accel && network->rates[out.kind].own_most_GBps > 0)
        GBps = fmin(GBps, network->rates[out.kind].own_most_GBps);
    out.capacity_Bps = GBps * 1e9 * fraction;
    bool stated = network->latency_ns > 0; /* half at each NIC; of a torus: per hop */
    if (stated && out.kind == NET_NIC)
        latency_ns = network->latency_ns / (fabric->layout == TOPO_TORUS ? 1 : 2);
    if (stated && out.kind == NET_FABRIC) return out;
    out.latency_ps =
        latency_ns > 0 ? ps_add(0, latency_ns * 1e3) : network->rates[out.kind].latency_ps;
    return out;
}

struct net_link network_link(const struct network *network, uint32_t link)
{
    if (is_switch(network)) {
        ps_t half = network->alpha_ps / 2;
        return (struct net_link){.capacity_Bps = network->beta_Bps,
                                 .latency_ps = link % 2 ? network->alpha_ps - half : half,
                                 .kind = NET_PORT};
    }
    struct net_link out = usual_link(network, link);
    const struct spoiled wanted = {.link = link};
    const struct spoiled *found = NULL;
    if (network->nspoiled)
        found = bsearch(&wanted, network->spoiled, network->nspoiled, sizeof wanted, by_link);
    out.capacity_Bps *= found ? found->fraction : 1;
    out.peak_Bps *= found ? found->fraction : 1;
    return out;
}

char *network_link_name(const struct network *network, uint32_t link)
{
    const struct net_fabric *fabric = &network->fabric;
    if (is_switch(network))
        return mem_printf("rank%" PRIu32 " %s", link / 2, link % 2 ? "in" : "out");
    if (link >= fabric->first) return fabric_link_name(fabric, link - fabric->first);
    char *local = local_name(network, link % fabric->stride);
    char *name = mem_printf("host%" PRIu32 "/%s", link / fabric->stride, local);
    free(local);
    return name;
}

/* ---- places: nodes of hosts, domains, switches ---- */

static uint32_t domains(const struct network *network)
{
    bool any = network->host.nvswitch != GRAPH_NONE;
    return any ? (network->hosts - 1) / network->domain_hosts + 1 : 0;
}

/* Node `node` of a host; the NVSwitch is that of the domain. */
static uint64_t node_place(const struct network *network, uint32_t host, uint32_t node)
{
    uint64_t nodes = network->host.graph.nnodes;
    if (node == network->host.nvswitch)
        return network->hosts * nodes + host / network->domain_hosts;
    return host * nodes + node;
}

static uint64_t fabric_place(const struct network *network, uint32_t node)
{
    return (uint64_t)network->hosts * network->host.graph.nnodes + domains(network) + node;
}

void network_ends(const struct network *network, uint32_t link, uint64_t *from, uint64_t *to)
{
    const struct net_fabric *fabric = &network->fabric;
    if (is_switch(network)) {
        *from = link % 2 ? network->nranks : link / 2;
        *to = link % 2 ? link / 2 : network->nranks;
        return;
    }
    if (link >= fabric->first) {
        uint32_t a, b;
        fabric_link(fabric, link - fabric->first, &a, &b);
        *from = fabric_place(network, a);
        *to = fabric_place(network, b);
        return;
    }
    uint32_t host = link / fabric->stride, l = link % fabric->stride, port = l - fabric->port;
    if (l < network->host.nlinks) {
        *from = node_place(network, host, network->host.links[l].from);
        *to = node_place(network, host, network->host.links[l].to);
    } else if (fabric->layout == TOPO_TORUS) {
        *from = fabric_place(network, host);
        *to = fabric_place(network, fabric_neighbour(fabric, host, port));
    } else {
        uint64_t nic = node_place(network, host, network->host.nic[port / 2]);
        uint64_t leaf = fabric_place(network, fabric_plug(fabric, host, port / 2));
        *from = port % 2 ? leaf : nic;
        *to = port % 2 ? nic : leaf;
    }
}

static bool touches(const struct host_link *link, const uint32_t *nodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (link->from == nodes[i] || link->to == nodes[i]) return true;
    }
    return false;
}

enum net_kind network_meets(const struct network *network, uint32_t link)
{
    const struct host *host = &network->host;
    enum net_kind kind = network_link(network, link).kind;
    if (kind != NET_PCIE) return kind;
    const struct host_link *at = &host->links[link % network->fabric.stride];
    if (touches(at, host->nic, host->nics)) return NET_NIC;
    return touches(at, host->gpu, host->gpus) ? NET_PCIE : NET_SOCKET;
}

/* ---- routes ---- */

/* An end of a route. */
struct end {
    uint32_t host, gpu;
};

static struct end end_of(const struct network *network, uint32_t rank)
{
    uint32_t accel = network->order ? network->order[rank] : rank;
    return (struct end){accel / network->per_host, accel % network->per_host};
}

/* ---- rings of groups ---- */

/* Adds the NICs that an accelerator owns to the exits from `first` on, those that are not there. */
static void add_exits(struct network *network, uint32_t first, struct end end)
{
    struct rings *rings = &network->rings;
    const struct nic_use *use = use_of(network, end.host);
    uint32_t own = use->set[end.gpu].count ? use->set[end.gpu].each : 0;
    for (uint32_t i = 0; i < own; i++) {
        uint32_t nic = own_nic(use, end.gpu, i), at = first;
        while (at < rings->nexits &&
               (rings->exits[at].host != end.host || rings->exits[at].nic != nic))
            at++;
        if (at < rings->nexits) continue;
        MEM_GROW(rings->exits, rings->nexits, rings->cap);
        rings->exits[rings->nexits++] = (struct ring_exit){end.host, end.gpu, nic};
    }
}

/* The exits of members k.. of group b that are in one domain; gives the first that is in another.
 */
static uint32_t join_exits(struct network *network, uint32_t k, uint32_t b)
{
    struct rings *rings = &network->rings;
    uint32_t first = rings->nexits, at = k * rings->groups + b, next = k;
    uint32_t domain = end_of(network, rings->base + at).host / network->domain_hosts;
    for (; next < rings->n; next++) {
        struct end end = end_of(network, rings->base + next * rings->groups + b);
        if (end.host / network->domain_hosts != domain) break;
        add_exits(network, first, end);
    }
    for (; k < next; k++) {
        rings->start[k * rings->groups + b] = first;
        rings->count[k * rings->groups + b] = rings->nexits - first;
    }
    if (rings->nexits - first < rings->least) rings->least = rings->nexits - first;
    return next;
}

void network_rings(struct network *network, uint32_t n, uint32_t groups, uint32_t base)
{
    struct rings *rings = &network->rings;
    bool none = is_switch(network) || network->fabric.layout == TOPO_TORUS;
    if (none || network->hosts <= network->domain_hosts) return;
    *rings = (struct rings){.base = base, .n = n, .groups = groups, .least = UINT32_MAX};
    rings->start = mem_calloc((size_t)n * groups, sizeof *rings->start);
    rings->count = mem_calloc((size_t)n * groups, sizeof *rings->count);
    for (uint32_t b = 0; b < groups; b++)
        for (uint32_t k = 0; k < n;)
            k = join_exits(network, k, b);
}

/* Moves a way inside a host to the numbers of the network; passes its length on. */
static uint32_t rebase(const struct network *network, uint32_t host, uint32_t hops, uint32_t *path)
{
    for (uint32_t i = 0; i < hops; i++)
        path[i] += host * network->fabric.stride;
    return hops;
}

/* The accelerator that hands a message on to the NIC, or takes it from there: another one when it
 * is beside the NIC and reached by NVLink, and this one's own way is beyond the host bridge. A ring
 * always goes by the one beside, unless all it has is its PCIe link: that carries the ring too. */
static uint32_t relay(const struct network *network, struct end end, uint32_t nic)
{
    const struct host *host = &network->host;
    uint32_t beside = use_of(network, end.host)->beside[nic];
    if (network->policy == NET_RING && !network->rings.groups)
        return host_has_peers(host, beside) ? beside : end.gpu;
    bool far = host_near(host, end.gpu, nic) > GRAPH_PXB;
    bool can = host->nic_passes == 0 && host_near(host, beside, nic) <= GRAPH_PXB &&
               host_linked(host, end.gpu, beside);
    return far && can ? beside : end.gpu;
}

/* Whether the way from an accelerator to the one that hands on is one of the message. */
static bool relays(const struct network *network)
{
    return network->policy != NET_RING || network->rings.groups;
}

static uint32_t to_nic(const struct network *network, struct end end, uint32_t nic, uint32_t *path)
{
    const struct host *host = &network->host;
    uint32_t by = relay(network, end, nic), hops = 0;
    if (by != end.gpu && relays(network)) hops = host_way(host, end.gpu, by, path);
    hops += host_to_nic(host, by, nic, path + hops);
    return rebase(network, end.host, hops, path);
}

static uint32_t from_nic(const struct network *network, struct end end, uint32_t nic,
                         uint32_t *path)
{
    const struct host *host = &network->host;
    uint32_t by = relay(network, end, nic), hops = host_from_nic(host, nic, by, path);
    if (by != end.gpu && relays(network)) hops += host_way(host, by, end.gpu, path + hops);
    return rebase(network, end.host, hops, path);
}

/* Where channel c of a ring leaves or enters a domain: NIC c modulo all NICs of its hosts. */
static void ring_nic(const struct network *network, uint32_t channel, struct end *end,
                     uint32_t *nic)
{
    uint32_t domain = end->host / network->domain_hosts * network->domain_hosts;
    uint32_t hosts = network->hosts - domain;
    if (hosts > network->domain_hosts) hosts = network->domain_hosts;
    if (hosts > 1) end->host = domain + channel / network->use.nring % hosts;
    const struct nic_use *use = use_of(network, end->host);
    *nic = use->ring[channel % use->nring];
}

uint32_t network_ring_nics(const struct network *network)
{
    if (is_switch(network) || network->hosts <= network->domain_hosts ||
        network->fabric.layout == TOPO_TORUS)
        return 0;
    if (network->rings.groups) return network->rings.least;
    uint32_t least = network->use.nring, over = network->hosts % network->domain_hosts;
    for (size_t i = 0; i < network->nodd; i++)
        if (network->odd[i].use.nring < least) least = network->odd[i].use.nring;
    return least * (over ? over : network->domain_hosts);
}

/* NICs at both ends; for a ring the hosts, too. */
static void choose_nics(const struct network *network, uint32_t channel, struct end end[2],
                        uint32_t nic[2])
{
    if (network->policy == NET_RING) {
        ring_nic(network, channel, &end[0], &nic[0]);
        ring_nic(network, channel, &end[1], &nic[1]);
        if (use_of(network, end[1].host)->usable[nic[0]]) nic[1] = nic[0];
        return;
    }
    const struct nic_use *use[2] = {use_of(network, end[0].host), use_of(network, end[1].host)};
    nic[0] = own_nic(use[0], end[0].gpu, channel);
    nic[1] = own_nic(use[1], end[1].gpu, channel);
    if (network->policy != NET_PXN || !use[0]->usable[nic[1]]) return;
    uint32_t by = relay(network, end[0], nic[1]);
    if (host_near(&network->host, by, nic[1]) <= GRAPH_PXB) nic[0] = nic[1];
}

/* The exit of a rank's group in its domain, for a channel. */
static void ring_exit(const struct network *network, uint32_t rank, uint32_t channel,
                      struct end *end, uint32_t *nic)
{
    const struct rings *rings = &network->rings;
    uint32_t at = rank - rings->base;
    const struct ring_exit *out = &rings->exits[rings->start[at] + channel % rings->count[at]];
    bool itself = end->host == out->host && !host_has_peers(&network->host, end->gpu);
    *end = (struct end){out->host, itself ? end->gpu : out->gpu};
    *nic = out->nic;
}

static bool in_rings(const struct network *network, uint32_t rank)
{
    const struct rings *rings = &network->rings;
    uint32_t at = rank - rings->base; /* wraps below the base */
    return rank >= rings->base && at < rings->n * rings->groups && rings->count[at] > 0;
}

static uint32_t rank_route(const struct network *network, const uint32_t rank[2], uint32_t channel,
                           uint32_t *path)
{
    struct end end[2] = {end_of(network, rank[0]), end_of(network, rank[1])};
    const struct host *host = &network->host;
    uint32_t hops = 0, nic[2] = {0, 0}, hosts[2] = {end[0].host, end[1].host};
    if (hosts[0] == hosts[1])
        return rebase(network, hosts[0], host_way(host, end[0].gpu, end[1].gpu, path), path);
    if (hosts[0] / network->domain_hosts == hosts[1] / network->domain_hosts) {
        path[0] = host->out[end[0].gpu] + hosts[0] * network->fabric.stride;
        path[1] = host->in[end[1].gpu] + hosts[1] * network->fabric.stride;
        return 2;
    }
    if (network->fabric.layout == TOPO_TORUS)
        return fabric_way(&network->fabric, hosts, nic, channel, path);
    if (in_rings(network, rank[0]) && in_rings(network, rank[1])) {
        for (int i = 0; i < 2; i++)
            ring_exit(network, rank[i], channel, &end[i], &nic[i]);
    } else {
        choose_nics(network, channel, end, nic);
    }
    for (int i = 0; i < 2; i++)
        hosts[i] = end[i].host;
    hops = to_nic(network, end[0], nic[0], path);
    hops += fabric_way(&network->fabric, hosts, nic, channel, path + hops);
    return hops + from_nic(network, end[1], nic[1], path + hops);
}

/* ---- agents ---- */

static uint32_t leaf_agents(const struct network *network)
{
    enum topo_layout layout = network->fabric.layout;
    bool none = layout == TOPO_TORUS || layout == TOPO_DRAGONFLY || network->hosts == 1;
    return none ? 0 : network->fabric.leaves;
}

uint32_t network_agents(const struct network *network)
{
    return is_switch(network) ? 1 : domains(network) + leaf_agents(network);
}

/* The NIC by which a rank reaches the agent of a leaf: that of the rail, or its own. */
static uint32_t agent_nic(const struct network *network, struct end end, uint32_t leaf,
                          uint32_t channel)
{
    const struct nic_use *use = use_of(network, end.host);
    uint32_t rail = leaf % network->fabric.nics;
    if (network->fabric.layout == TOPO_RAIL && use->usable[rail]) return rail;
    return own_nic(use, end.gpu, channel);
}

uint32_t network_agent_of(const struct network *network, enum net_scope scope, uint32_t rank,
                          uint32_t channel)
{
    if (is_switch(network)) return network->nranks;
    struct end end = end_of(network, rank);
    uint32_t nd = domains(network);
    if (scope == SCOPE_DOMAIN)
        return nd && network->host.out[end.gpu] != GRAPH_NONE
                   ? network->nranks + end.host / network->domain_hosts
                   : UINT32_MAX;
    if (scope != SCOPE_RAIL || leaf_agents(network) == 0) return UINT32_MAX;
    const struct nic_use *use = use_of(network, end.host);
    if (use->nring == 0) return UINT32_MAX;
    uint32_t nic = own_nic(use, end.gpu, channel);
    return network->nranks + nd + fabric_leaf(&network->fabric, end.host, nic);
}

/* Between a rank and an agent. */
static uint32_t agent_route(const struct network *network, uint32_t rank, uint32_t agent, bool up,
                            uint32_t channel, uint32_t *path)
{
    const struct net_fabric *fabric = &network->fabric;
    struct end end = end_of(network, rank);
    uint32_t nd = domains(network), base = end.host * fabric->stride, hops = 0;
    if (agent < nd) {
        path[0] = base + (up ? network->host.out : network->host.in)[end.gpu];
        return 1;
    }
    uint32_t leaf = agent - nd, nic = agent_nic(network, end, leaf, channel);
    uint32_t mine = fabric_leaf(fabric, end.host, nic);
    if (up) {
        hops = to_nic(network, end, nic, path);
        path[hops++] = base + fabric->port + 2 * nic;
        return hops + fabric_leaf_way(fabric, mine, leaf, path + hops);
    }
    hops = fabric_leaf_way(fabric, leaf, mine, path);
    path[hops++] = base + fabric->port + 2 * nic + 1;
    return hops + from_nic(network, end, nic, path + hops);
}

uint64_t network_place(const struct network *network, uint32_t end)
{
    if (is_switch(network)) return end;
    if (end < network->nranks) {
        struct end at = end_of(network, end);
        return node_place(network, at.host, network->host.gpu[at.gpu]);
    }
    uint32_t agent = end - network->nranks, nd = domains(network);
    if (agent >= nd) return fabric_place(network, agent - nd);
    return (uint64_t)network->hosts * network->host.graph.nnodes + agent;
}

uint32_t network_route(const struct network *network, uint32_t src, uint32_t dst, uint32_t channel,
                       uint32_t *path)
{
    uint32_t n = network->nranks, hops = 0;
    if (src == dst) return 0;
    if (is_switch(network)) {
        if (src < n) path[hops++] = 2 * src;
        if (dst < n) path[hops++] = 2 * dst + 1;
        return hops;
    }
    if (src < n && dst < n)
        return rank_route(network, (const uint32_t[2]){src, dst}, channel, path);
    if (src < n) return agent_route(network, src, dst - n, true, channel, path);
    if (dst < n) return agent_route(network, dst, src - n, false, channel, path);
    uint32_t nd = domains(network);
    return fabric_leaf_way(&network->fabric, src - n - nd, dst - n - nd, path);
}

/* ---- scopes ---- */

enum net_scope network_scope(const struct network *network, uint32_t a, uint32_t b)
{
    if (a == b) return SCOPE_SELF;
    if (is_switch(network)) return SCOPE_ALL;
    uint32_t n = network->nranks, nd = domains(network), high = a > b ? a : b;
    if (high >= n + nd) return SCOPE_RAIL;
    if (high >= n) return network->domain_hosts > 1 ? SCOPE_DOMAIN : SCOPE_HOST;
    uint32_t x = end_of(network, a).host, y = end_of(network, b).host;
    if (x == y) return SCOPE_HOST;
    if (x / network->domain_hosts == y / network->domain_hosts) return SCOPE_DOMAIN;
    bool near = fabric_group(&network->fabric, x) == fabric_group(&network->fabric, y);
    return near ? SCOPE_RAIL : SCOPE_ALL;
}

const char *net_kind_name(enum net_kind kind)
{
    static const char *const names[NNET_KINDS] = {"port",   "nvlink", "xgmi", "pcie",
                                                  "socket", "memory", "nic",  "fabric"};
    return names[kind];
}

const char *net_scope_name(enum net_scope scope)
{
    static const char *const names[NSCOPES] = {"self", "host", "domain", "rail", "all"};
    return names[scope];
}
