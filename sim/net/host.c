/* SPDX-License-Identifier: Apache-2.0
 * Draws up the graph of a host, makes directed links of it, finds ways. See host.h. */
#include "net/host.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    MOST_GPUS = 1 << 16, /* of a host that is drawn up */
    MOST_NICS = 1 << 16,
    MOST_MESH = 1 << 10 /* accelerators that are all linked with each other */
};

static const double c2c_GBps = 450; /* NVLink-C2C of Grace, per direction (datasheet) */

/* ---- a graph from a few figures ---- */

static void draw_link(struct graph *graph, enum graph_via via, uint32_t a, uint32_t b, double GBps,
                      double one_GBps)
{
    double count = one_GBps > 0 ? round(GBps / one_GBps) : 1;
    graph_link(graph, via, a, b, count >= 1 ? (uint32_t)count : 1);
    graph->links[graph->nlinks - 1].GBps = GBps;
}

static uint32_t draw_device(struct graph *graph, enum graph_kind kind, uint32_t number,
                            uint32_t parent, double up_GBps)
{
    uint32_t node = graph_add(graph, kind, NULL, number, parent);
    graph->nodes[node].up_GBps = up_GBps;
    return node;
}

/* Sockets, switches, accelerators and NICs; where each hangs. */
static void draw_bus(struct graph *graph, const struct topo *topo)
{
    const struct topo_host *host = &topo->host;
    uint32_t gpus = (uint32_t)topo->full_host, nics = (uint32_t)topo->nics;
    bool memory = topo->scale_up == SCALE_UP_MEMORY;
    uint32_t groups = host->switches ? host->switches : host->sockets;
    uint32_t *group = mem_calloc(groups, sizeof *group);
    for (uint32_t i = 0; i < host->sockets; i++) {
        uint32_t numa = graph_add(graph, GRAPH_NUMA, NULL, i, GRAPH_NONE);
        if (!host->switches) group[i] = numa;
        for (uint32_t k = 0; k < i; k++)
            draw_link(graph, GRAPH_SOCKET, k, numa, host->socket_GBps, 0);
    }
    for (uint32_t i = 0; i < host->switches; i++)
        group[i] = draw_device(graph, GRAPH_PCIE, i,
                               (uint32_t)((uint64_t)i * host->sockets / host->switches),
                               host->uplink_GBps);
    for (uint32_t i = 0; i < gpus; i++)
        draw_device(graph, GRAPH_ACCEL, i, group[(uint64_t)i * groups / gpus],
                    memory ? topo->line_GBps : host->pcie_GBps);
    for (uint32_t i = 0; topo->layout != TOPO_TORUS && i < nics; i++) {
        uint64_t beside = topo_nic_at(topo, i);
        uint32_t node =
            draw_device(graph, GRAPH_NIC, i, group[beside * groups / gpus], host->pcie_GBps);
        graph->nodes[node].rate_Gbps = topo->one_nic_Gbps;
    }
    free(group);
}

static void draw_mesh(struct graph *graph, const struct topo *topo, enum graph_via via)
{
    uint32_t gpus = (uint32_t)topo->full_host, first = graph_find(graph, GRAPH_ACCEL, 0);
    double one = topo_nvlink_GBps(&topo->accel), each = topo->line_GBps / (gpus > 1 ? gpus - 1 : 1);
    for (uint32_t a = 0; a < gpus; a++) {
        for (uint32_t b = a + 1; b < gpus; b++)
            draw_link(graph, via, first + a, first + b, each, via == GRAPH_NVLINK ? one : each);
    }
}

/* The hybrid cube mesh of 8 V100: pairs with two links, then pairs with one; 6 links each. */
static int draw_cube(struct graph *graph, const struct topo *topo, struct err *err)
{
    static const unsigned char pairs[16][2] = {{0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7},
                                               {5, 6}, {6, 7}, {0, 1}, {0, 2}, {1, 3}, {2, 6},
                                               {3, 7}, {4, 5}, {4, 6}, {5, 7}};
    if (topo->full_host != 8)
        return err_add(err, ERR_USAGE,
                       "%s: a host of %" PRIu64 " accelerators cannot be a cube mesh "
                       "(nvlink-cube); that has 8",
                       topo->name, topo->full_host);
    uint32_t first = graph_find(graph, GRAPH_ACCEL, 0);
    for (unsigned i = 0; i < 16; i++)
        draw_link(graph, GRAPH_NVLINK, first + pairs[i][0], first + pairs[i][1],
                  topo->line_GBps / 6 * (i < 8 ? 2 : 1), topo->line_GBps / 6);
    return 0;
}

static int draw_scale_up(struct graph *graph, const struct topo *topo, struct err *err)
{
    uint32_t gpus = (uint32_t)topo->full_host, first = graph_find(graph, GRAPH_ACCEL, 0);
    double one = topo_nvlink_GBps(&topo->accel);
    uint32_t middle;
    switch (topo->scale_up) {
    case SCALE_UP_NVSWITCH:
        middle = graph_add(graph, GRAPH_NVSWITCH, NULL, 0, GRAPH_NONE);
        for (uint32_t i = 0; i < gpus; i++)
            draw_link(graph, GRAPH_NVLINK, first + i, middle, topo->line_GBps, one);
        return 0;
    case SCALE_UP_NVLINK_MESH:
    case SCALE_UP_XGMI:
        if (gpus > MOST_MESH)
            return err_add(err, ERR_USAGE,
                           "%s: %" PRIu32 " accelerators, each linked to each (%s); the most are "
                           "%d",
                           topo->name, gpus, scale_up_name(topo->scale_up), MOST_MESH);
        draw_mesh(graph, topo, topo->scale_up == SCALE_UP_XGMI ? GRAPH_XGMI : GRAPH_NVLINK);
        return 0;
    case SCALE_UP_NVLINK_CUBE:
        return draw_cube(graph, topo, err);
    case SCALE_UP_NVLINK_PAIRS:
        for (uint32_t i = 0; i + 1 < gpus; i += 2)
            draw_link(graph, GRAPH_NVLINK, first + i, first + i + 1, topo->line_GBps, one);
        return 0;
    case SCALE_UP_PCIE:
    case SCALE_UP_PCIE_HOST:
    case SCALE_UP_MEMORY:
    case NSCALE_UP:
        break;
    }
    return 0;
}

/* ---- a graph from a file ---- */

static uint32_t *in_order(const struct graph *graph, enum graph_kind kind, uint32_t *count);

/* Figures that the file lacks. */
static void fill_rates(struct graph *graph, const struct topo *topo)
{
    const struct topo_host *host = &topo->host;
    uint32_t devices = 0, links = 0, nics = 0;
    const double usual[NGRAPH_VIAS] = {[GRAPH_NVLINK] = topo_nvlink_GBps(&topo->accel),
                                       [GRAPH_XGMI] = topo_nvlink_GBps(&topo->accel),
                                       [GRAPH_C2C] = c2c_GBps,
                                       [GRAPH_SOCKET] = host->socket_GBps};
    for (size_t i = 0; i < graph->nnodes; i++) {
        struct graph_node *node = &graph->nodes[i];
        bool device = node->kind == GRAPH_ACCEL || node->kind == GRAPH_NIC;
        if (node->kind == GRAPH_NIC && node->rate_Gbps <= 0) {
            node->rate_Gbps = topo->one_nic_Gbps;
            nics++;
        }
        if (node->up_GBps > 0 || (!device && node->kind != GRAPH_PCIE)) continue;
        node->up_GBps = device ? host->pcie_GBps : host->uplink_GBps;
        devices++;
    }
    for (size_t i = 0; i < graph->nlinks; i++) {
        struct graph_link *link = &graph->links[i];
        if (link->GBps > 0 || link->via == GRAPH_CABLE) continue;
        link->GBps = usual[link->via] * (link->via == GRAPH_SOCKET ? 1 : link->count);
        links++;
    }
    if (devices)
        graph_warn(graph, "%s: %" PRIu32 " PCIe links without a rate: taken as %g GB/s",
                   topo->machine, devices, host->pcie_GBps);
    if (links)
        graph_warn(graph,
                   "%s: %" PRIu32 " links without a rate: taken as %g GB/s (NVLink, xGMI: for each "
                   "of the bonded links), %g (C2C), %g (socket)",
                   topo->machine, links, usual[GRAPH_NVLINK], c2c_GBps, host->socket_GBps);
    if (nics)
        graph_warn(graph, "%s: %" PRIu32 " NICs without a rate: taken as %g Gb/s", topo->machine,
                   nics, topo->one_nic_Gbps);
}

/* What the bus needs to be one: a NUMA node, and links between several. */
static void fill_numas(struct graph *graph, const struct topo *topo)
{
    uint32_t count, sockets = 0;
    uint32_t *numa = in_order(graph, GRAPH_NUMA, &count);
    for (size_t i = 0; i < graph->nlinks; i++)
        sockets += graph->links[i].via == GRAPH_SOCKET;
    if (count == 0) graph_add(graph, GRAPH_NUMA, NULL, 0, GRAPH_NONE);
    for (uint32_t i = 0; sockets == 0 && i < count; i++) {
        for (uint32_t k = 0; k < i; k++)
            draw_link(graph, GRAPH_SOCKET, numa[k], numa[i], topo->host.socket_GBps, 0);
    }
    if (sockets == 0 && count > 1)
        graph_warn(graph,
                   "%s: no link joins the %" PRIu32 " NUMA nodes: each is taken to be joined to "
                   "each at %g GB/s",
                   topo->machine, count, topo->host.socket_GBps);
    free(numa);
}

static int read_machine(struct graph *graph, const struct topo *topo, struct err *err)
{
    uint32_t gpus, nics;
    if (graph_read(graph, topo->machine, err)) return -1;
    free(in_order(graph, GRAPH_ACCEL, &gpus));
    free(in_order(graph, GRAPH_NIC, &nics));
    int bad = 0;
    if (gpus != topo->full_host)
        bad = err_add(err, ERR_USAGE,
                      "%s: the machine has %" PRIu32
                      " gpus, but \"accelerators_per_host\" of %s is %" PRIu64,
                      topo->machine, gpus, topo->name, topo->full_host);
    if (topo->hosts > 1 && nics != topo->nics)
        bad =
            err_add(err, ERR_USAGE,
                    "%s: the machine has %" PRIu32 " nics, but \"nics_per_host\" of %s is %" PRIu64,
                    topo->machine, nics, topo->name, topo->nics);
    if (bad) return -1;
    fill_numas(graph, topo);
    fill_rates(graph, topo);
    return 0;
}

/* ---- directed links ---- */

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The nodes of a kind in the order of their numbers. Freed by the caller. */
static uint32_t *in_order(const struct graph *graph, enum graph_kind kind, uint32_t *count)
{
    uint64_t *keys = mem_calloc(graph->nnodes, sizeof *keys);
    uint32_t *nodes = mem_calloc(graph->nnodes, sizeof *nodes);
    *count = 0;
    for (size_t i = 0; i < graph->nnodes; i++)
        if (graph->nodes[i].kind == kind)
            keys[(*count)++] = (uint64_t)graph->nodes[i].number << 32 | i;
    qsort(keys, *count, sizeof *keys, by_number);
    for (uint32_t i = 0; i < *count; i++)
        nodes[i] = (uint32_t)keys[i];
    free(keys);
    return nodes;
}

static uint32_t add_link(struct host *host, uint32_t from, uint32_t to, double GBps,
                         enum net_kind kind, double latency_ns)
{
    MEM_GROW(host->links, host->nlinks, host->links_cap);
    host->links[host->nlinks] = (struct host_link){from, to, GBps, latency_ns, kind};
    return (uint32_t)host->nlinks++;
}

/* Parents, and the links to them. An accelerator with a C2C link goes by that. */
static void make_tree(struct host *host, const struct topo *topo)
{
    const struct graph *graph = &host->graph;
    size_t *c2c = mem_calloc(graph->nnodes, sizeof *c2c); /* 1 + its link */
    for (size_t k = 0; k < graph->nlinks; k++) {
        const struct graph_link *link = &graph->links[k];
        bool first = graph->nodes[link->a].kind == GRAPH_ACCEL;
        if (link->via == GRAPH_C2C) c2c[first ? link->a : link->b] = k + 1;
    }
    for (uint32_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        bool on_bus = node->kind <= GRAPH_BRIDGE;
        host->nodes[i] = (struct host_node){
            .parent = GRAPH_NONE, .numa = GRAPH_NONE, .up = GRAPH_NONE, .down = GRAPH_NONE};
        if (node->kind == GRAPH_NUMA) host->nodes[i].numa = i;
        if (!on_bus) continue;
        uint32_t parent = node->parent == GRAPH_NONE ? host->numa[0] : node->parent;
        double GBps = node->up_GBps, latency = 0;
        const struct graph_link *link = c2c[i] ? &graph->links[c2c[i] - 1] : NULL;
        bool memory = topo->scale_up == SCALE_UP_MEMORY && node->kind == GRAPH_ACCEL;
        enum net_kind kind = memory ? NET_MEMORY : NET_PCIE;
        if (link) {
            parent = link->a == i ? link->b : link->a;
            GBps = link->GBps;
            latency = link->latency_ns;
            kind = NET_NVLINK;
        }
        host->nodes[i].parent = parent;
        if (GBps <= 0) continue; /* a host bridge is no limit of its own */
        host->nodes[i].up = add_link(host, i, parent, GBps, kind, latency);
        host->nodes[i].down = add_link(host, parent, i, GBps, kind, latency);
    }
    free(c2c);
    for (uint32_t i = 0; i < graph->nnodes; i++) {
        if (graph->nodes[i].kind > GRAPH_BRIDGE) continue;
        uint32_t above = i;
        for (; host->nodes[above].parent != GRAPH_NONE; above = host->nodes[above].parent)
            host->nodes[i].depth++;
        host->nodes[i].numa = above;
    }
}

/* Memories, links between NUMA nodes, and the first link from each towards each. */
static int make_sockets(struct host *host, const struct topo *topo, struct err *err)
{
    const struct graph *graph = &host->graph;
    uint32_t n = host->numas;
    uint32_t *queue = mem_calloc(n, sizeof *queue);
    host->memory = mem_calloc(n, sizeof *host->memory);
    host->next = mem_calloc((size_t)n * n, sizeof *host->next);
    memset(host->next, 0xff, (size_t)n * n * sizeof *host->next);
    for (uint32_t i = 0; i < n; i++)
        host->memory[i] =
            add_link(host, host->numa[i], host->numa[i], topo->host.memory_GBps, NET_MEMORY, 0);
    size_t first = host->nlinks;
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->via != GRAPH_SOCKET) continue;
        add_link(host, link->a, link->b, link->GBps, NET_SOCKET, link->latency_ns);
        add_link(host, link->b, link->a, link->GBps, NET_SOCKET, link->latency_ns);
    }
    int bad = 0;
    for (uint32_t to = 0; to < n; to++) { /* breadth first, backwards from `to` */
        uint32_t head = 0, tail = 0;
        for (queue[tail++] = to; head < tail; head++) {
            for (size_t k = first; k < host->nlinks; k++) {
                uint32_t from = host->nodes[host->links[k].from].index;
                bool here = host->links[k].to == host->numa[queue[head]];
                if (!here || from == to || host->next[from * n + to] != GRAPH_NONE) continue;
                host->next[from * n + to] = (uint32_t)k;
                queue[tail++] = from;
            }
        }
        if (tail < n && !bad)
            bad = err_add(err, ERR_USAGE,
                          "%s: no chain of socket links leads to %s from every NUMA node",
                          topo->machine, graph->nodes[host->numa[to]].name);
    }
    free(queue);
    return bad;
}

static int by_gpu(const void *a, const void *b)
{
    const struct host_peer *x = a, *y = b;
    return (x->gpu > y->gpu) - (x->gpu < y->gpu);
}

/* Direct links between accelerators, listed by each. */
static void make_peers(struct host *host)
{
    const struct graph *graph = &host->graph;
    size_t first = host->nlinks;
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        bool gpus =
            graph->nodes[link->a].kind == GRAPH_ACCEL && graph->nodes[link->b].kind == GRAPH_ACCEL;
        if (!gpus || (link->via != GRAPH_NVLINK && link->via != GRAPH_XGMI)) continue;
        enum net_kind kind = link->via == GRAPH_XGMI ? NET_XGMI : NET_NVLINK;
        add_link(host, link->a, link->b, link->GBps, kind, link->latency_ns);
        add_link(host, link->b, link->a, link->GBps, kind, link->latency_ns);
    }
    size_t count = host->nlinks - first;
    host->peers = mem_calloc(count, sizeof *host->peers);
    for (size_t i = first; i < host->nlinks; i++)
        host->first[host->nodes[host->links[i].from].index + 1]++;
    for (uint32_t g = 0; g < host->gpus; g++)
        host->first[g + 1] += host->first[g];
    uint32_t *at = mem_calloc(host->gpus, sizeof *at);
    for (size_t i = first; i < host->nlinks; i++) {
        uint32_t g = host->nodes[host->links[i].from].index;
        host->peers[host->first[g] + at[g]++] =
            (struct host_peer){host->nodes[host->links[i].to].index, (uint32_t)i};
    }
    for (uint32_t g = 0; g < host->gpus; g++)
        qsort(host->peers + host->first[g], at[g], sizeof *host->peers, by_gpu);
    free(at);
}

/* All switches of NVLinks count as one, since NCCL spreads every message over them: one link out
 * and one in per accelerator, of all its links together. */
static void make_nvswitch(struct host *host)
{
    const struct graph *graph = &host->graph;
    double *GBps = mem_calloc(host->gpus, sizeof *GBps);
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        bool up = graph->nodes[link->b].kind == GRAPH_NVSWITCH;
        uint32_t gpu = up ? link->a : link->b, middle = up ? link->b : link->a;
        if (link->via != GRAPH_NVLINK || graph->nodes[gpu].kind != GRAPH_ACCEL ||
            graph->nodes[middle].kind != GRAPH_NVSWITCH)
            continue;
        GBps[host->nodes[gpu].index] += link->GBps;
        if (host->nvswitch == GRAPH_NONE) host->nvswitch = middle;
    }
    for (uint32_t g = 0; g < host->gpus; g++) {
        if (GBps[g] <= 0) continue;
        host->out[g] = add_link(host, host->gpu[g], host->nvswitch, GBps[g], NET_NVLINK, 0);
        host->in[g] = add_link(host, host->nvswitch, host->gpu[g], GBps[g], NET_NVLINK, 0);
    }
    free(GBps);
}

static int make_links(struct host *host, const struct topo *topo, struct err *err)
{
    const struct graph *graph = &host->graph;
    host->gpu = in_order(graph, GRAPH_ACCEL, &host->gpus);
    host->nic = in_order(graph, GRAPH_NIC, &host->nics);
    host->numa = in_order(graph, GRAPH_NUMA, &host->numas);
    host->nodes = mem_calloc(graph->nnodes, sizeof *host->nodes);
    host->first = mem_calloc((size_t)host->gpus + 1, sizeof *host->first);
    host->out = mem_calloc(host->gpus, sizeof *host->out);
    host->in = mem_calloc(host->gpus, sizeof *host->in);
    for (uint32_t i = 0; i < host->gpus; i++)
        host->out[i] = host->in[i] = GRAPH_NONE;
    make_tree(host, topo);
    for (uint32_t i = 0; i < host->gpus; i++)
        host->nodes[host->gpu[i]].index = i;
    for (uint32_t i = 0; i < host->nics; i++)
        host->nodes[host->nic[i]].index = i;
    for (uint32_t i = 0; i < host->numas; i++)
        host->nodes[host->numa[i]].index = i;
    if (make_sockets(host, topo, err)) return -1;
    if (topo->scale_up != SCALE_UP_PCIE_HOST) make_peers(host);
    if (topo->scale_up != SCALE_UP_PCIE_HOST) make_nvswitch(host);
    return 0;
}

int host_graph(struct graph *graph, const struct topo *topo, struct err *err)
{
    int bad = 0;
    *graph = (struct graph){0};
    if (topo->full_host > MOST_GPUS || topo->nics > MOST_NICS)
        return err_add(err, ERR_USAGE,
                       "%s: a host of %" PRIu64 " accelerators and %" PRIu64
                       " NICs; the most are %d and %d",
                       topo->name, topo->full_host, topo->nics, MOST_GPUS, MOST_NICS);
    if (topo->machine) {
        bad = read_machine(graph, topo, err);
    } else {
        draw_bus(graph, topo);
        bad = draw_scale_up(graph, topo, err);
    }
    if (bad) graph_release(graph);
    return bad;
}

/* Where the topology says how long a message takes inside a domain, the links of its accelerators
 * share that: two by the NVSwitch, or up and down the bus; a direct link takes it all. */
static void set_latency(struct host *host, const struct topo *topo)
{
    bool bus = topo->scale_up == SCALE_UP_PCIE || topo->scale_up == SCALE_UP_PCIE_HOST;
    for (size_t i = 0; topo->scale_up_latency_ns > 0 && i < host->nlinks; i++) {
        struct host_link *link = &host->links[i];
        enum graph_kind from = host->graph.nodes[link->from].kind;
        enum graph_kind to = host->graph.nodes[link->to].kind;
        bool own = from == GRAPH_ACCEL || to == GRAPH_ACCEL,
             c2c = from == GRAPH_NUMA || to == GRAPH_NUMA;
        bool up = link->kind == NET_XGMI || link->kind == NET_MEMORY ||
                  (link->kind == NET_NVLINK && !c2c) || (link->kind == NET_PCIE && bus);
        if (own && up) link->latency_ns = topo->scale_up_latency_ns / (from == to ? 1 : 2);
    }
}

int host_make(struct host *host, const struct topo *topo, struct err *err)
{
    bool memory = topo->scale_up == SCALE_UP_MEMORY, peers = topo->host.peer_access;
    *host = (struct host){.nvswitch = GRAPH_NONE};
    host->passes = memory || !peers ? 2 : 0;
    host->nic_passes = memory ? 1 : !peers || topo->fabric == FABRIC_TCP ? 2 : 0;
    int bad = host_graph(&host->graph, topo, err);
    if (!bad) bad = make_links(host, topo, err);
    if (!bad) set_latency(host, topo);
    if (bad) host_release(host);
    return bad;
}

void host_release(struct host *host)
{
    graph_release(&host->graph);
    free(host->gpu);
    free(host->nic);
    free(host->numa);
    free(host->nodes);
    free(host->links);
    free(host->memory);
    free(host->next);
    free(host->first);
    free(host->peers);
    free(host->out);
    free(host->in);
    *host = (struct host){.nvswitch = GRAPH_NONE};
}

/* ---- ways ---- */

/* A way that grows; counts alone where there is no room to write to. */
struct way {
    uint32_t *path, count;
};

static void step(struct way *way, uint32_t link)
{
    if (link == GRAPH_NONE) return;
    if (way->path) way->path[way->count] = link;
    way->count++;
}

/* From below `top` up to it. */
static void climb(const struct host *host, struct way *way, uint32_t node, uint32_t top)
{
    for (; node != top; node = host->nodes[node].parent)
        step(way, host->nodes[node].up);
}

static void descend(const struct host *host, struct way *way, uint32_t top, uint32_t node)
{
    if (node == top) return;
    descend(host, way, top, host->nodes[node].parent);
    step(way, host->nodes[node].down);
}

static void cross(const struct host *host, struct way *way, uint32_t from, uint32_t to)
{
    while (from != to) {
        uint32_t a = host->nodes[from].index, b = host->nodes[to].index;
        uint32_t link = host->next[(size_t)a * host->numas + b];
        step(way, link);
        from = host->links[link].to;
    }
}

/* By the bus, `passes` times through the memory of the NUMA node `memory`. */
static uint32_t bus_way(const struct host *host, uint32_t from, uint32_t to, uint32_t memory,
                        uint32_t passes, uint32_t *path)
{
    struct way way = {path, 0};
    uint32_t a = host->nodes[from].numa, b = host->nodes[to].numa;
    if (passes == 0 && a == b) { /* to where they meet */
        uint32_t x = from, y = to;
        while (x != y) {
            if (host->nodes[x].depth >= host->nodes[y].depth)
                x = host->nodes[x].parent;
            else
                y = host->nodes[y].parent;
        }
        climb(host, &way, from, x);
        descend(host, &way, x, to);
        return way.count;
    }
    if (passes == 0) memory = a;
    climb(host, &way, from, a);
    cross(host, &way, a, memory);
    for (uint32_t i = 0; i < passes; i++)
        step(&way, host->memory[host->nodes[memory].index]);
    cross(host, &way, memory, b);
    descend(host, &way, b, to);
    return way.count;
}

static uint32_t peer_link(const struct host *host, uint32_t a, uint32_t b)
{
    const struct host_peer wanted = {b, 0};
    size_t count = host->first[a + 1] - host->first[a];
    if (count == 0) return GRAPH_NONE;
    const struct host_peer *found =
        bsearch(&wanted, host->peers + host->first[a], count, sizeof wanted, by_gpu);
    return found ? found->link : GRAPH_NONE;
}

static bool by_switch(const struct host *host, uint32_t a, uint32_t b)
{
    return host->out[a] != GRAPH_NONE && host->in[b] != GRAPH_NONE && host->nvswitch != GRAPH_NONE;
}

bool host_linked(const struct host *host, uint32_t a, uint32_t b)
{
    return peer_link(host, a, b) != GRAPH_NONE || by_switch(host, a, b);
}

bool host_has_peers(const struct host *host, uint32_t gpu)
{
    return host->first[gpu + 1] > host->first[gpu] || host->out[gpu] != GRAPH_NONE;
}

/* The two links over the best accelerator between; false if there is none. */
static bool over_neighbour(const struct host *host, uint32_t from, uint32_t to, uint32_t pair[2])
{
    double best = 0;
    for (uint32_t i = host->first[from]; i < host->first[from + 1]; i++) {
        uint32_t here = host->peers[i].link, there = peer_link(host, host->peers[i].gpu, to);
        if (there == GRAPH_NONE) continue;
        double least = fmin(host->links[here].GBps, host->links[there].GBps);
        if (least <= best) continue;
        best = least;
        pair[0] = here;
        pair[1] = there;
    }
    return best > 0;
}

uint32_t host_way(const struct host *host, uint32_t from, uint32_t to, uint32_t *path)
{
    struct way way = {path, 0};
    uint32_t pair[2] = {0, 0};
    if (from == to) return 0;
    uint32_t direct = peer_link(host, from, to);
    if (direct != GRAPH_NONE) {
        step(&way, direct);
    } else if (by_switch(host, from, to)) {
        step(&way, host->out[from]);
        step(&way, host->in[to]);
    } else if (over_neighbour(host, from, to, pair)) {
        step(&way, pair[0]);
        step(&way, pair[1]);
    } else {
        uint32_t a = host->gpu[from], b = host->gpu[to];
        return bus_way(host, a, b, host->nodes[a].numa, host->passes, path);
    }
    return way.count;
}

uint32_t host_to_nic(const struct host *host, uint32_t gpu, uint32_t nic, uint32_t *path)
{
    uint32_t from = host->gpu[gpu];
    return bus_way(host, from, host->nic[nic], host->nodes[from].numa, host->nic_passes, path);
}

uint32_t host_from_nic(const struct host *host, uint32_t nic, uint32_t gpu, uint32_t *path)
{
    uint32_t to = host->gpu[gpu];
    return bus_way(host, host->nic[nic], to, host->nodes[to].numa, host->nic_passes, path);
}

enum graph_near host_near(const struct host *host, uint32_t gpu, uint32_t nic)
{
    return graph_near(&host->graph, host->gpu[gpu], host->nic[nic]);
}

char *host_link_name(const struct host *host, uint32_t link)
{
    static const char *const words[NNET_KINDS] = {"port",   "nvlink", "xgmi", "pcie",
                                                  "socket", "memory", "nic",  "fabric"};
    const struct host_link *at = &host->links[link];
    const struct graph_node *from = &host->graph.nodes[at->from], *to = &host->graph.nodes[at->to];
    const char *word = words[at->kind];
    bool up = host->nodes[at->from].up == link, down = host->nodes[at->to].down == link;
    if (at->from == at->to) return mem_printf("%s %s", from->name, word);
    if (up || to->kind == GRAPH_NVSWITCH) return mem_printf("%s %s out", from->name, word);
    if (down || from->kind == GRAPH_NVSWITCH) return mem_printf("%s %s in", to->name, word);
    return mem_printf("%s %s to %s", from->name, word, to->name);
}
