/* SPDX-License-Identifier: Apache-2.0
 * Published structures of machines and clusters, each a row: what stands in reference
 * architectures, in topology files of clouds and in reports must come out of the shipped file or of
 * the layout that describes it. What a model cannot say is listed in topologies/README.md. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/doc.h"
#include "base/mem.h"
#include "net/fabric.h"
#include "net/graph.h"
#include "net/host.h"
#include "net/network.h"

static struct accel_table accels;

static void setup(void)
{
    struct err err = ERR_INIT;
    accel_read(&accels, NULL, &err);
    cr_assert_null(err.text, "%s", err.text);
}

static void teardown(void)
{
    accel_release(&accels);
}

TestSuite(structures, .init = setup, .fini = teardown);

static const struct net_rate line[NNET_KINDS] = {
    [NET_PORT] = {1, 0, 0}, [NET_NVLINK] = {1, 0, 0}, [NET_XGMI] = {1, 0, 0},
    [NET_PCIE] = {1, 0, 0}, [NET_SOCKET] = {1, 0, 0}, [NET_MEMORY] = {1, 0, 0},
    [NET_NIC] = {1, 0, 0},  [NET_FABRIC] = {1, 0, 0},
};

static void read_topo(struct topo *topo, const char *name)
{
    struct err err = ERR_INIT;
    topo_read(topo, &accels, name, 0, 0, &err);
    cr_assert_null(err.text, "%s", err.text);
}

static struct network *build(const struct topo *topo)
{
    struct err err = ERR_INIT;
    struct network *network = network_build(topo, line, NET_OWN, NULL, &err);
    cr_assert_null(err.text, "%s", err.text);
    return network;
}

/* Rate of the narrowest link of a way, 10^9 bytes/s. */
static double way_GBps(const struct network *network, uint32_t from, uint32_t to)
{
    uint32_t path[NETWORK_HOPS], hops = network_route(network, from, to, 0, path);
    double least = 1e300;
    for (uint32_t i = 0; i < hops; i++) {
        double here = network_link(network, path[i]).capacity_Bps / 1e9;
        least = here < least ? here : least;
    }
    return least;
}

static unsigned kinds(const struct graph *graph, enum graph_kind kind)
{
    unsigned count = 0;
    for (size_t i = 0; i < graph->nnodes; i++)
        count += graph->nodes[i].kind == kind;
    return count;
}

/* Direct links between accelerators, and those of accelerator `gpu`: pairs, and bonded links. */
static unsigned direct(const struct graph *graph, uint32_t gpu, unsigned *bonded)
{
    uint32_t node = graph_find(graph, GRAPH_ACCEL, gpu);
    unsigned peers = 0;
    *bonded = 0;
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        bool own = link->via == GRAPH_NVLINK || link->via == GRAPH_XGMI;
        if (!own || (link->a != node && link->b != node)) continue;
        uint32_t other = link->a == node ? link->b : link->a;
        peers += graph->nodes[other].kind == GRAPH_ACCEL;
        *bonded += link->count;
    }
    return peers;
}

/* ---- hosts ---- */

/* What the shipped file of a machine must be. */
static const struct host_row {
    const char *name;
    unsigned hosts, gpus, domain, nics; /* of a host; GPUs of a domain */
    double nic_Gbps;
    unsigned nvlinks; /* between GPU 0 and 1, as nvidia-smi counts; 0: none */
    unsigned peers;   /* accelerators with a link of their own to GPU 0 */
    unsigned links;   /* NVLinks of GPU 0 in all */
    double pair_GBps; /* the way from GPU 0 to GPU 1 */
    unsigned sockets, switches;
} hosts[] = {
    /* 1: degree 6, four neighbours (two NV1, two NV2), four EDR NICs or one */
    {"dgx1-v100", 1, 8, 8, 4, 100, 1, 4, 6, 25, 2, 4},
    {"ndv2-v100", 1, 8, 8, 1, 100, 1, 4, 6, 25, 2, 4},
    /* 2: quad meshes, NV2, NV4, NV6 */
    {"v100-quad", 1, 4, 4, 1, 100, 2, 3, 6, 50, 1, 0},
    {"polaris-a100", 1, 4, 4, 2, 200, 4, 3, 12, 100, 1, 0},
    {"alps-gh200", 1, 4, 4, 4, 200, 6, 3, 18, 150, 4, 0},
    {"h100-quad", 1, 4, 4, 4, 200, 6, 3, 18, 150, 2, 0},
    /* 3: two GPUs for each of eight EDR NICs, NV6 to anywhere */
    {"dgx2-v100", 1, 16, 16, 8, 100, 6, 0, 6, 150, 2, 8},
    /* 4: NV12; 8 rails of 200G, four NUMA nodes on NDv4, four EFA on p4d */
    {"dgx-a100", 1, 8, 8, 8, 200, 12, 0, 12, 300, 2, 4},
    {"ndv4-a100", 1, 8, 8, 8, 200, 12, 0, 12, 300, 4, 4},
    {"p4d-a100", 1, 8, 8, 4, 100, 12, 0, 12, 300, 2, 4},
    /* 5: NV18; a NIC for each GPU; p5: 32 EFA */
    {"dgx-h100", 1, 8, 8, 8, 400, 18, 0, 18, 450, 2, 8},
    {"dgx-h200", 1, 8, 8, 8, 400, 18, 0, 18, 450, 2, 8},
    {"p5-h100", 1, 8, 8, 32, 100, 18, 0, 18, 450, 2, 8},
    /* 9: two GPUs for a NIC */
    {"h200-4nic", 1, 8, 8, 4, 400, 18, 0, 18, 450, 2, 4},
    /* 10: groups of two GPUs and two NICs */
    {"dgx-b200", 1, 8, 8, 8, 400, 18, 0, 18, 900, 2, 4},
    /* 12: pairs, else the bus */
    {"pcie8-a40", 1, 8, 8, 1, 100, 4, 1, 4, 56.25, 2, 0},
    {"a100-pcie-pairs", 1, 8, 8, 1, 200, 12, 1, 12, 300, 2, 0},
    {"h100-pcie-pairs", 1, 8, 8, 1, 100, 12, 1, 12, 300, 2, 0},
    /* 13, 14: no links but the bus */
    {"pcie8", 1, 8, 8, 1, 100, 0, 0, 0, 31.5, 2, 0},
    {"pcie4-4090", 1, 4, 4, 1, 100, 0, 0, 0, 31.5, 1, 0},
    {"pcie4-4090-p2p", 1, 4, 4, 1, 100, 0, 0, 0, 31.5, 1, 0},
    /* 20: seven peers of 64 GB/s */
    {"hgx-mi300x", 1, 8, 8, 8, 400, 0, 7, 7, 64, 2, 8},
    {"mi300x-ib", 1, 8, 8, 8, 400, 0, 7, 7, 64, 2, 8},
    /* 22: a quad under a switch, all linked */
    {"mi100-quad", 1, 4, 4, 1, 200, 0, 3, 3, 46, 1, 1},
    /* 25: 18 trays of 4, one domain of 72, 18 links */
    {"gb200-nvl72", 18, 4, 72, 4, 400, 18, 0, 18, 900, 2, 4},
    {"gb300-nvl72", 18, 4, 72, 4, 800, 18, 0, 18, 900, 2, 4},
};

static void check_host(const struct host_row *row)
{
    struct topo topo;
    read_topo(&topo, row->name);
    struct network *network = build(&topo);
    const struct graph *graph = network_host(network);
    unsigned bonded, peers = direct(graph, 0, &bonded);
    cr_expect(topo.hosts == row->hosts && topo.per_host == row->gpus &&
                  topo_domain(&topo) == row->domain && topo.nics == row->nics &&
                  topo.one_nic_Gbps == row->nic_Gbps,
              "%s: %" PRIu64 " x %" PRIu64 ", domain %" PRIu64 ", %" PRIu64 " NICs of %g",
              row->name, topo.hosts, topo.per_host, topo_domain(&topo), topo.nics,
              topo.one_nic_Gbps);
    cr_expect(kinds(graph, GRAPH_ACCEL) == row->gpus && kinds(graph, GRAPH_NIC) == row->nics &&
                  kinds(graph, GRAPH_NUMA) == row->sockets &&
                  kinds(graph, GRAPH_PCIE) == row->switches,
              "%s: %u gpus, %u nics, %u numa, %u switches", row->name, kinds(graph, GRAPH_ACCEL),
              kinds(graph, GRAPH_NIC), kinds(graph, GRAPH_NUMA), kinds(graph, GRAPH_PCIE));
    uint32_t nvlinks =
        graph_nvlinks(graph, graph_find(graph, GRAPH_ACCEL, 0), graph_find(graph, GRAPH_ACCEL, 1));
    cr_expect(nvlinks == row->nvlinks && peers == row->peers && bonded == row->links,
              "%s: NV%" PRIu32 ", %u peers, %u links", row->name, nvlinks, peers, bonded);
    cr_expect_float_eq(way_GBps(network, 0, 1), row->pair_GBps, 1e-6, "%s: %g", row->name,
                       way_GBps(network, 0, 1));
    network_free(network);
    topo_release(&topo);
}

Test(structures, hosts)
{
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        check_host(&hosts[i]);
}

/* 1: the 28 pairs of a cube mesh: eight of NV2, eight of NV1, twelve of none; every GPU has 6. */
Test(structures, cube_mesh)
{
    static const char *const pairs[] = {"", "0-1 0-2 1-3 2-6 3-7 4-5 4-6 5-7 ",
                                        "0-3 0-4 1-2 1-5 2-3 4-7 5-6 6-7 "};
    struct topo topo;
    read_topo(&topo, "dgx1-v100");
    struct network *network = build(&topo);
    const struct graph *graph = network_host(network);
    char *said[3] = {mem_strdup(""), mem_strdup(""), mem_strdup("")};
    unsigned none = 0;
    for (uint32_t a = 0; a < 8; a++) {
        for (uint32_t b = a + 1; b < 8; b++) {
            uint32_t n = graph_nvlinks(graph, graph_find(graph, GRAPH_ACCEL, a),
                                       graph_find(graph, GRAPH_ACCEL, b));
            cr_assert(n <= 2);
            none += n == 0;
            char *more = mem_printf("%s%" PRIu32 "-%" PRIu32 " ", said[n], a, b);
            free(said[n]);
            said[n] = more;
        }
    }
    cr_expect_eq(none, 12);
    for (int n = 0; n < 3; n++) {
        if (n) cr_expect_str_eq(said[n], pairs[n]);
        free(said[n]);
    }
    for (uint32_t gpu = 0; gpu < 8; gpu++) {
        unsigned bonded;
        cr_expect_eq(direct(graph, gpu, &bonded), 4);
        cr_expect_eq(bonded, 6);
    }
    network_free(network);
    topo_release(&topo);
}

/* 12: outside a pair, the bus; the cliff is 300 to 31.5 of a Gen4 x16, 10:1. */
Test(structures, cliff_of_pairs)
{
    struct topo topo;
    read_topo(&topo, "a100-pcie-pairs");
    struct network *network = build(&topo);
    cr_expect_float_eq(way_GBps(network, 0, 1) / way_GBps(network, 1, 2), 300 / 31.5, 1e-9);
    network_free(network);
    topo_release(&topo);
}

/* 25: any two of a rack by the NVSwitch; racks by the network. Eight racks: 576 GPUs. */
Test(structures, racks)
{
    struct topo topo;
    read_topo(&topo, "gb200-nvl72x8");
    struct network *network = build(&topo);
    cr_expect_eq(network_ranks(network), 576);
    unsigned domain = 0;
    for (uint32_t b = 0; b < 576; b++)
        domain += network_scope(network, 100, b) <= SCOPE_DOMAIN;
    cr_expect_eq(domain, 72);
    cr_expect_float_eq(way_GBps(network, 72, 143), 900, 1e-9);
    cr_expect_float_eq(way_GBps(network, 72, 144), 50, 1e-9);
    network_free(network);
    topo_release(&topo);
}

/* ---- accelerators in graphs of their own ---- */

/* Machines of MI100 class, and others whose accelerators are joined by links of their own: which
 * pairs have one, or with `without` have none. */
static const struct variant {
    const char *name, *edges;
    bool without;
    unsigned gpus, degree, numas, switches, empty; /* `empty`: further NUMA nodes without devices */
    unsigned nics, nic_at;                         /* the switch of the first NIC */
    uint32_t far[2], hops;                         /* a pair, and the links of its way */
} variants[] = {
    {"topo_8p6l", "0-5 1-4 2-7 3-6", true, 8, 6, 2, 2, 0, 4, 0, {0, 5}, 2},
    {"topo_8p_90a",
     "0-1 0-2 0-6 1-3 1-5 2-3 2-4 3-7 4-5 4-6 5-7 6-7",
     false,
     8,
     3,
     2,
     2,
     0,
     1,
     0,
     {0, 3},
     2},
    {"topo_8p_pcie_2nic, socket 1 empty", "", false, 8, 0, 1, 2, 1, 2, 0, {0, 3}, 2},
    {"topo_4p3l_ia, four without a NIC",
     "0-1 0-2 0-3 1-2 1-3 2-3 4-5 4-6 4-7 5-6 5-7 6-7",
     false,
     8,
     3,
     1,
     2,
     0,
     1,
     0,
     {0, 4},
     4},
    {"topo_3p_pcie, the NIC with the single one", "", false, 3, 0, 2, 2, 0, 1, 1, {0, 2}, 5},
    {"MI300A", "", true, 4, 3, 4, 4, 0, 4, 0, {0, 1}, 1},
};

static bool named(const char *edges, uint32_t a, uint32_t b)
{
    char pair[32];
    snprintf(pair, sizeof pair, "%" PRIu32 "-%" PRIu32, a, b);
    return strstr(edges, pair) != NULL;
}

static void make_variant(struct graph *graph, const struct variant *v)
{
    uint32_t numa[4], switches[4], gpu[8];
    *graph = (struct graph){.source = mem_strdup("a variant")};
    for (uint32_t i = 0; i < v->numas; i++)
        numa[i] = graph_add(graph, GRAPH_NUMA, NULL, i, GRAPH_NONE);
    for (uint32_t i = 0; i < v->empty; i++)
        graph_add(graph, GRAPH_NUMA, NULL, v->numas + i, GRAPH_NONE);
    for (uint32_t i = 0; i < v->switches; i++)
        switches[i] = graph_add(graph, GRAPH_PCIE, NULL, i, numa[i % v->numas]);
    for (uint32_t i = 0; i < v->gpus; i++)
        gpu[i] = graph_add(graph, GRAPH_ACCEL, NULL, i, switches[i * v->switches / v->gpus]);
    for (uint32_t i = 0; i < v->nics; i++) {
        uint32_t at = (v->nic_at + i * v->switches / v->nics) % v->switches;
        graph_add(graph, GRAPH_NIC, NULL, i, switches[at]);
    }
    for (uint32_t a = 0; a < v->gpus; a++)
        for (uint32_t b = a + 1; b < v->gpus; b++)
            if (named(v->edges, a, b) != v->without)
                graph_link(graph, GRAPH_XGMI, gpu[a], gpu[b], 1);
}

/* As a "machine": links of each, the way between two that have none, a network of two hosts. */
static void check_variant(const struct variant *v)
{
    char path[] = "/tmp/variantXXXXXX";
    struct graph graph;
    make_variant(&graph, v);
    FILE *to = fdopen(mkstemp(path), "w");
    graph_write(&graph, to);
    fclose(to);
    for (uint32_t i = 0; i < v->gpus; i++) {
        unsigned bonded;
        cr_expect_eq(direct(&graph, i, &bonded), v->degree, "%s: %u", v->name, bonded);
    }
    char *text = mem_printf("{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": \"MI100\",\n"
                            "\"hosts\": 2, \"accelerators_per_host\": %u, \"machine\": \"%s\",\n"
                            "\"network\": {\"kind\": \"ib\", \"nics_per_host\": %u, "
                            "\"nic_Gbps\": 200, \"source\": \"s\"}}",
                            v->gpus, path, v->nics);
    struct doc doc;
    struct topo topo = {.name = mem_strdup(v->name)};
    struct err err = ERR_INIT;
    cr_assert_eq(doc_parse(&doc, "x.json", text, strlen(text), &err), 0);
    cr_assert_eq(topo_parse(&topo, &doc, &accels, &err), 0, "%s", err.text);
    struct network *network = build(&topo);
    uint32_t way[NETWORK_HOPS], hops = network_route(network, v->far[0], v->far[1], 0, way);
    cr_expect_eq(hops, v->hops, "%s: %" PRIu32, v->name, hops);
    for (uint32_t a = 0; a < v->gpus; a++)
        for (uint32_t b = 0; b < 2 * v->gpus; b++)
            cr_expect(a == b || network_route(network, a, b, 0, way) > 0, "%s", v->name);
    network_free(network);
    topo_release(&topo);
    doc_release(&doc);
    graph_release(&graph);
    free(text);
    unlink(path);
}

Test(structures, variants)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        check_variant(&variants[i]);
}

/* ---- trees ---- */

/* Of reference architectures. Our tree has one stage of spines, each with a link to every leaf; a
 * real one has fewer with `ports` ports, and where leaves are more than its ports, cores above
 * them: spines then keep half of their ports for these. What leaves all leaves is the same. */
static const struct tree {
    const char *name, *accel;
    unsigned hosts, per_host, nics, nic_Gbps, leaf_hosts;
    unsigned ports;                         /* of a spine, each of nic_Gbps */
    unsigned leaves, spines, cores, cables; /* published; cables: from hosts to leaves */
} trees[] = {
    {"B200, 2 units", "B200", 64, 8, 8, 400, 32, 64, 16, 8, 0, 512},
    {"B200, 4 units", "B200", 128, 8, 8, 400, 32, 64, 32, 16, 0, 1024},
    {"B200, 8 units", "B200", 256, 8, 8, 400, 32, 64, 64, 32, 0, 2048},
    {"B200, 16 units", "B200", 512, 8, 8, 400, 32, 64, 128, 128, 64, 4096},
    {"B200, 32 units", "B200", 1024, 8, 8, 400, 32, 64, 256, 256, 128, 8192},
    {"B200, 64 units", "B200", 2048, 8, 8, 400, 32, 64, 512, 512, 256, 16384},
    /* two planes of 400 Gb/s each, as twice the NICs; spines of 64 ports of 800 */
    {"B300 over RoCE, 1 unit", "B300", 64, 8, 16, 400, 64, 128, 16, 8, 0, 1024},
    {"B300 over RoCE, 16 units", "B300", 1024, 8, 16, 400, 64, 128, 256, 128, 0, 16384},
    {"B300 over XDR, 1 unit", "B300", 72, 8, 8, 800, 72, 144, 8, 4, 0, 576},
    {"B300 over XDR, 18 units", "B300", 1296, 8, 8, 800, 72, 144, 144, 72, 0, 10368},
    {"four rails, 64 hosts", "B200", 64, 4, 4, 400, 64, 128, 4, 2, 0, 256},
};

static void make_fabric(struct net_fabric *fabric, struct topo *topo, struct doc *doc,
                        const char *accel, unsigned n, unsigned per, const char *network)
{
    struct err err = ERR_INIT;
    char *text = mem_printf("{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": \"%s\",\n"
                            "\"hosts\": %u, \"accelerators_per_host\": %u, \"network\": {%s, "
                            "\"source\": \"s\"}}",
                            accel, n, per, network);
    *topo = (struct topo){.name = mem_strdup("x")};
    cr_assert_eq(doc_parse(doc, "x.json", text, strlen(text), &err), 0, "%s", err.text);
    cr_assert_eq(topo_parse(topo, doc, &accels, &err), 0, "%s", err.text);
    cr_assert_eq(fabric_make(fabric, topo, &err), 0, "%s", err.text);
    free(text);
}

static void check_tree(const struct tree *t)
{
    struct topo topo;
    struct doc doc;
    struct net_fabric fabric;
    char *network = mem_printf("\"kind\": \"ib\", \"layout\": \"rail\", \"nics_per_host\": %u, "
                               "\"nic_Gbps\": %u, \"leaf_hosts\": %u",
                               t->nics, t->nic_Gbps, t->leaf_hosts);
    make_fabric(&fabric, &topo, &doc, t->accel, t->hosts, t->per_host, network);
    double up_GBps = fabric.up_GBps * fabric.spines * fabric.leaves;
    double down_GBps = (double)fabric.hosts * fabric.nics * t->nic_Gbps / 8;
    double top = up_GBps * 8 / t->nic_Gbps / t->ports; /* switches that take all uplinks */
    cr_expect_eq(fabric.leaves, t->leaves, "%s: %" PRIu32, t->name, fabric.leaves);
    cr_expect_eq(fabric.hosts * fabric.nics, t->cables, "%s", t->name);
    cr_expect_float_eq(up_GBps, down_GBps, 1e-6 * down_GBps, "%s", t->name);
    cr_expect_float_eq(top, t->cores ? t->cores : t->spines, 1e-9, "%s: %g", t->name, top);
    if (t->cores) cr_expect_float_eq(2 * top, t->spines, 1e-9, "%s", t->name);
    fabric_release(&fabric);
    topo_release(&topo);
    doc_release(&doc);
    free(network);
}

Test(structures, trees)
{
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
        check_tree(&trees[i]);
}

/* 26: the shipped files have the leaves of their scalable unit; H100: 127 hosts, 32 leaves; same
 * rail, same unit: one leaf; another rail: the spine, or NVLink. */
Test(structures, shipped_leaves)
{
    static const struct {
        const char *name;
        unsigned leaves;
    } rows[] = {{"dgx-b200x64", 16},
                {"dgx-h100x127", 32},
                {"dgx-b300x72", 8},
                {"dgx-b300x1296", 144},
                {"gb200-nvl72x8", 32}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo topo;
        struct net_fabric fabric;
        struct err err = ERR_INIT;
        read_topo(&topo, rows[i].name);
        cr_assert_eq(fabric_make(&fabric, &topo, &err), 0, "%s", err.text);
        cr_expect_eq(fabric.leaves, rows[i].leaves, "%s: %" PRIu32, rows[i].name, fabric.leaves);
        uint32_t path[NETWORK_HOPS], ends[] = {0, 1}, same[] = {2, 2}, other[] = {2, 3};
        cr_expect_eq(fabric_way(&fabric, ends, same, 0, path), 2);
        cr_expect_eq(fabric_way(&fabric, ends, other, 0, path), 4);
        fabric_release(&fabric);
        topo_release(&topo);
    }
}

/* ---- tori and dragonflies ---- */

/* Links from one half of a torus to the other along its last axis, one direction. */
static uint64_t bisection(const struct net_fabric *fabric)
{
    uint64_t crossing = 0;
    uint32_t axis = fabric->ndims - 1, below = 1;
    for (uint32_t i = 0; i < axis; i++)
        below *= fabric->dims[i];
    for (uint32_t h = 0; h < fabric->hosts; h++) {
        for (uint32_t back = 0; back < 2; back++) {
            uint32_t to = fabric_neighbour(fabric, h, 2 * axis + back);
            crossing += h / below < fabric->dims[axis] / 2 && to / below >= fabric->dims[axis] / 2;
        }
    }
    return crossing;
}

/* 29: chips of one accelerator; six links of 50 GB/s (v4) or 100 (v5p) per direction. */
Test(structures, tori)
{
    static const struct {
        const char *dims;
        unsigned chips, Gbps, axes;
        uint64_t links, crossing; /* one direction */
        double bisection_TBps;    /* published, or by hand */
    } rows[] = {
        {"16, 16, 16", 4096, 400, 3, 24576, 512, 25.6}, /* v4, published as 24 TB/s */
        {"16, 16, 24", 6144, 800, 3, 36864, 512, 51.2}, /* v5p's largest slice */
        {"4, 4, 4", 64, 400, 3, 384, 32, 1.6},          /* a cube */
        {"4, 4, 2", 32, 400, 3, 160, 16, 0.8},          /* a side below 4: half of 32 */
        {"4, 4, 3", 48, 400, 3, 256, 16, 0.8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo topo;
        struct doc doc;
        struct net_fabric fabric;
        char *network = mem_printf("\"kind\": \"ib\", \"layout\": \"torus\", \"nics_per_host\": 1, "
                                   "\"nic_Gbps\": %u, \"dims\": [%s]",
                                   rows[i].Gbps, rows[i].dims);
        make_fabric(&fabric, &topo, &doc, "H100", rows[i].chips, 1, network);
        uint64_t links = 0, crossing = bisection(&fabric);
        for (uint32_t h = 0; h < fabric.hosts; h++)
            for (uint32_t p = 0; p < 2 * rows[i].axes; p++)
                links += fabric_neighbour(&fabric, h, p) != h;
        cr_expect_eq(links, rows[i].links, "%s: %" PRIu64, rows[i].dims, links);
        cr_expect_eq(crossing, rows[i].crossing, "%s: %" PRIu64, rows[i].dims, crossing);
        cr_expect_float_eq((double)crossing * fabric.up_GBps / 1e3, rows[i].bisection_TBps, 1e-9);
        fabric_release(&fabric);
        topo_release(&topo);
        doc_release(&doc);
        free(network);
    }
}

/* 30: groups of at most 32 switches with 16 NICs, 31 local ports and 16 global ones each; three
 * hops at most. Alps: 2,688 hosts with 4 NICs are 21 groups of 512. */
Test(structures, dragonflies)
{
    static const struct {
        const char *name;
        unsigned groups, switches, cables; /* between two groups */
    } rows[] = {{"alps-gh200x2688", 21, 32, 25},
                {"polaris-a100x560", 3, 32, 256},
                {"alps-gh200x128", 1, 32, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo topo;
        struct net_fabric fabric;
        struct err err = ERR_INIT;
        read_topo(&topo, rows[i].name);
        cr_assert_eq(fabric_make(&fabric, &topo, &err), 0, "%s", err.text);
        cr_expect(fabric.groups == rows[i].groups && fabric.switches == rows[i].switches &&
                      fabric.cables == rows[i].cables,
                  "%s: %" PRIu32 " %" PRIu32 " %" PRIu32, rows[i].name, fabric.groups,
                  fabric.switches, fabric.cables);
        uint32_t locals = fabric.switches * (fabric.switches - 1);
        cr_expect(locals == 992 && fabric.leaf_hosts * fabric.nics == 512);
        cr_expect(fabric.cables * (fabric.groups - 1) <= 512);
        uint32_t most = 0, path[NETWORK_HOPS];
        for (uint32_t to = 1; to < fabric.hosts; to++) {
            uint32_t ends[] = {0, to}, nics[] = {0, to % fabric.nics};
            uint32_t hops = fabric_way(&fabric, ends, nics, 0, path) - 2; /* NICs' own */
            most = hops > most ? hops : most;
        }
        cr_expect_eq(most, fabric.groups > 1 ? 3 : 1, "%s: %" PRIu32, rows[i].name, most);
        fabric_release(&fabric);
        topo_release(&topo);
    }
}
