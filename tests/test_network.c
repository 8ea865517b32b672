/* SPDX-License-Identifier: Apache-2.0
 * The network as links and routes: every pair of every kind of host and layout has a way that joins
 * up; rates, counts and ways as by hand; faults change what they name; what is wrong is refused. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/rng.h"
#include "net/fault.h"
#include "net/graph.h"
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

TestSuite(network, .init = setup, .fini = teardown);

/* Line rates themselves; latencies that tell the kinds apart. */
static const struct net_rate line[NNET_KINDS] = {
    [NET_PORT] = {1, 1, 0}, [NET_NVLINK] = {1, 2, 0}, [NET_XGMI] = {1, 3, 0},
    [NET_PCIE] = {1, 4, 0}, [NET_SOCKET] = {1, 5, 0}, [NET_MEMORY] = {1, 6, 0},
    [NET_NIC] = {1, 7, 0},  [NET_FABRIC] = {1, 8, 0},
};

static bool holds(const char *text, const char *says)
{
    bool all = text != NULL;
    for (size_t length; text && *says; says += length + (says[length] == '|')) {
        length = strcspn(says, "|");
        char *part = mem_printf("%.*s", (int)length, says);
        all &= strstr(text, part) != NULL;
        free(part);
    }
    return all;
}

/* A topology of so many hosts of an accelerator; `rest` are further members (", ..."). */
static int parse(struct topo *topo, struct doc *doc, const char *accel, unsigned hosts,
                 unsigned per_host, const char *rest, struct err *err)
{
    char *text = mem_printf("{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": \"%s\",\n"
                            "\"hosts\": %u, \"accelerators_per_host\": %u%s}",
                            accel, hosts, per_host, rest);
    *topo = (struct topo){0};
    *doc = (struct doc){0};
    int bad = doc_parse(doc, "x.json", text, strlen(text), err);
    if (bad == 0) bad = topo_parse(topo, doc, &accels, err);
    topo->name = mem_strdup("x");
    free(text);
    return bad;
}

static struct network *build(const char *accel, unsigned hosts, unsigned per_host, const char *rest,
                             enum net_policy policy, const char *const *faults)
{
    struct topo topo;
    struct doc doc;
    struct err err = ERR_INIT;
    parse(&topo, &doc, accel, hosts, per_host, rest, &err);
    for (size_t i = 0; faults && faults[i]; i++)
        fault_parse(&topo, faults[i], &err);
    cr_assert_null(err.text, "%s", err.text);
    struct network *network = network_build(&topo, line, policy, NULL, &err);
    cr_assert_null(err.text, "%s", err.text);
    topo_release(&topo);
    doc_release(&doc);
    return network;
}

#define NET(kind, nics, gbps, more)                                                                \
    ",\n\"network\": {\"kind\": \"" kind "\", \"nics_per_host\": " nics                            \
    ", \"nic_Gbps\": " gbps more ", \"source\": \"s\"}"
#define HOST(more) ",\n\"host\": {" more ", \"source\": \"s\"}"
#define PAIRS                                                                                      \
    ",\n\"scale_up\": {\"kind\": \"nvlink-pairs\", \"line_GBps\": 300, \"ring_GBps\": 12,"         \
    "\"source\": \"s\"}"

/* ---- one switch ---- */

Test(network, one_switch)
{
    struct network *network = network_switch(3, 5e9, 7);
    uint32_t path[NETWORK_HOPS];
    cr_expect(network_ranks(network) == 3 && network_links(network) == 6);
    cr_expect_eq(network_route(network, 2, 0, 9, path), 2);
    cr_expect(path[0] == 4 && path[1] == 1);
    cr_expect_eq(network_link(network, 4).latency_ps + network_link(network, 1).latency_ps, 7);
    cr_expect_eq(network_link(network, 5).capacity_Bps, 5e9);
    cr_expect_eq(network_route(network, 1, 1, 0, path), 0);
    cr_expect(network_route(network, 1, 3, 0, path) == 1 && path[0] == 2); /* to the agent */
    cr_expect(network_route(network, 3, 1, 0, path) == 1 && path[0] == 3);
    cr_expect(network_agents(network) == 1 && network_agent_of(network, SCOPE_ALL, 0, 0) == 3);
    cr_expect(network_scope(network, 1, 1) == SCOPE_SELF &&
              network_scope(network, 0, 1) == SCOPE_ALL);
    char *name = network_link_name(network, 3);
    cr_expect_str_eq(name, "rank1 in");
    free(name);
    network_free(network);
}

/* ---- every pair has a way ---- */

static const struct shape {
    const char *accel;
    unsigned hosts, per_host;
    const char *rest;
} shapes[] = {
    {"A100", 1, 8, ""},
    {"A100", 5, 8, NET("ib", "8", "200", "")},
    {"A100", 3, 8, NET("ib", "8", "200", ", \"layout\": \"switch\"")},
    {"A100", 6, 8, NET("ib", "8", "200", ", \"leaf_hosts\": 2, \"oversubscribed\": 2")},
    {"A100", 7, 4, NET("roce", "4", "200", ", \"layout\": \"fat-tree\", \"leaf_hosts\": 3")},
    {"H100", 2, 8, NET("ib", "4", "400", "") HOST("\"sockets\": 2, \"switches\": 8")},
    {"H100", 3, 1, NET("ib", "4", "400", "")},
    {"H100", 2, 8, NET("efa", "32", "100", "")},
    {"V100-32GB", 3, 8, NET("ib", "4", "100", "")},
    {"GH200-96GB", 4, 4,
     NET("slingshot", "4", "200",
         ", \"layout\": \"dragonfly\","
         "\"leaf_hosts\": 1")},
    {"GH200-96GB", 24, 4,
     NET("slingshot", "4", "200",
         ", \"layout\": \"dragonfly\","
         "\"leaf_hosts\": 8")},
    {"A100", 2, 8, PAIRS NET("ib", "1", "200", "")},
    {"MI300X", 3, 8, NET("roce", "8", "400", "")},
    {"A100-PCIe-80GB", 2, 8, NET("ib", "2", "200", "")},
    {"RTX4090", 2, 8, NET("roce", "1", "100", "")},
    {"RTX4090", 2, 6, NET("tcp", "2", "100", "") HOST("\"sockets\": 2, \"switches\": 2")},
    {"EPYC-9654", 3, 2, NET("ib", "1", "200", "")},
    {"EPYC-9654", 2, 7, NET("tcp", "1", "25", "") HOST("\"sockets\": 4")},
    {"H100", 36, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [4, 3, 3]")},
    {"H100", 30, 2, NET("ib", "1", "400", ", \"layout\": \"torus\"")},
    {"H100", 5, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [5]")},
    {"GB200", 4, 4, ", \"domain_hosts\": 2" NET("ib", "4", "400", "")},
};

enum { NSHAPES = sizeof shapes / sizeof *shapes };

static void check_way(const struct network *network, uint32_t a, uint32_t b, uint32_t channel,
                      bool joined)
{
    uint32_t path[NETWORK_HOPS], hops = network_route(network, a, b, channel, path);
    uint64_t at = network_place(network, a), from, to;
    cr_assert(hops >= 1 && hops <= NETWORK_HOPS, "%u to %u: %u links", a, b, hops);
    for (uint32_t i = 0; i < hops; i++) {
        cr_assert_lt(path[i], network_links(network));
        struct net_link link = network_link(network, path[i]);
        cr_assert(link.capacity_Bps > 0 && link.latency_ps > 0, "link %u", path[i]);
        network_ends(network, path[i], &from, &to);
        if (i || joined)
            cr_assert_eq(from, at, "%u to %u: hop %u of %u starts elsewhere", a, b, i, hops);
        at = to;
    }
    if (joined) cr_assert_eq(at, network_place(network, b), "%u to %u: ends elsewhere", a, b);
}

Test(network, every_pair)
{
    for (size_t s = 0; s < NSHAPES; s++) {
        bool torus = strstr(shapes[s].rest, "torus") != NULL;
        for (int policy = NET_OWN; policy <= NET_RING; policy++) {
            struct network *network = build(shapes[s].accel, shapes[s].hosts, shapes[s].per_host,
                                            shapes[s].rest, (enum net_policy)policy, NULL);
            uint32_t n = network_ranks(network), per = shapes[s].per_host;
            for (uint32_t a = 0; a < n; a++) {
                for (uint32_t b = 0; b < n; b++) {
                    bool inside = a / per == b / per;
                    for (uint32_t c = 0; c < 3 && a != b; c++)
                        check_way(network, a, b, c, inside || (policy != NET_RING && !torus));
                }
            }
            network_free(network);
        }
    }
}

/* Whatever the figures, a network that is built has a way for every pair. */
Test(network, every_pair_of_any)
{
    static const char *const kinds[] = {"nvswitch",          "nvlink-mesh", "nvlink-cube",
                                        "nvlink-pairs",      "xgmi",        "pcie",
                                        "pcie-through-host", "memory"};
    static const char *const layouts[] = {"switch", "fat-tree", "rail", "torus", "dragonfly"};
    static const char *const fabrics[] = {"ib", "roce", "tcp"};
    struct rng rng;
    unsigned built = 0;
    rng_init(&rng, 7);
    for (int i = 0; i < 150; i++) {
        unsigned kind = (unsigned)rng_below(&rng, 8), sockets = 1 + (unsigned)rng_below(&rng, 4);
        unsigned hosts = 1 + (unsigned)rng_below(&rng, 12);
        unsigned per = kind == 2 ? 8 : 1 + (unsigned)rng_below(&rng, 9);
        char *rest = mem_printf(
            ", \"domain_hosts\": %u, \"scale_up\": {\"kind\": \"%s\", \"line_GBps\": 100,"
            "\"ring_GBps\": 50, \"source\": \"s\"}, \"network\": {\"kind\": \"%s\","
            "\"nics_per_host\": %u, \"nic_Gbps\": 100, \"layout\": \"%s\", \"leaf_hosts\": %u,"
            "\"oversubscribed\": %g, \"source\": \"s\"}, \"host\": {\"sockets\": %u,"
            "\"switches\": %u, \"source\": \"s\"}",
            1 + (unsigned)rng_below(&rng, hosts < 4 ? hosts : 4), kinds[kind],
            fabrics[rng_below(&rng, 3)], 1 + (unsigned)rng_below(&rng, 10),
            layouts[rng_below(&rng, 5)], 1 + (unsigned)rng_below(&rng, 5),
            1 + (double)rng_below(&rng, 5) / 2, sockets, sockets * (unsigned)rng_below(&rng, 4));
        struct topo topo;
        struct doc doc;
        struct err err = ERR_INIT;
        cr_assert_eq(parse(&topo, &doc, "A100", hosts, per, rest, &err), 0, "%s", err.text);
        topo.per_host = 1 + rng_below(&rng, per);
        if (rng_below(&rng, 3) == 0) fault_parse(&topo, "host*/nic0=0", &err);
        if (rng_below(&rng, 3) == 0) fault_parse(&topo, "host0/nic1=0", &err);
        if (rng_below(&rng, 9) == 0) fault_parse(&topo, "no-peer-access", &err);
        enum net_policy policy = (enum net_policy)rng_below(&rng, 3);
        struct network *network = network_build(&topo, line, policy, NULL, &err);
        cr_assert((network == NULL) == (err.count > 0), "%s: %s", rest, err.text);
        built += network != NULL;
        uint32_t n = network ? network_ranks(network) : 0;
        for (uint32_t a = 0; a < n; a++) {
            for (uint32_t b = 0; b < n; b++) {
                bool inside = a / topo.per_host == b / topo.per_host;
                bool joined = inside || (policy != NET_RING && topo.layout != TOPO_TORUS);
                if (a != b) check_way(network, a, b, (uint32_t)rng_below(&rng, 9), joined);
            }
        }
        network_free(network);
        err_release(&err);
        topo_release(&topo);
        doc_release(&doc);
        free(rest);
    }
    cr_expect_gt(built, 75, "%u of 150", built);
}

/* The names of all links are different, so that each can be told from the others. */
static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

Test(network, names)
{
    for (size_t s = 0; s < NSHAPES; s++) {
        struct network *network = build(shapes[s].accel, shapes[s].hosts, shapes[s].per_host,
                                        shapes[s].rest, NET_OWN, NULL);
        uint32_t n = network_links(network);
        char **names = mem_calloc(n, sizeof *names);
        for (uint32_t i = 0; i < n; i++)
            names[i] = network_link_name(network, i);
        qsort(names, n, sizeof *names, by_text);
        for (uint32_t i = 0; i + 1 < n; i++)
            cr_expect_str_neq(names[i], names[i + 1], "shape %zu", s);
        for (uint32_t i = 0; i < n; i++)
            free(names[i]);
        free(names);
        network_free(network);
    }
}

/* ---- ways as by hand ---- */

/* The names of the links on a way, joined by ", ". Freed by the caller. */
static char *way_text(const struct network *network, uint32_t a, uint32_t b, uint32_t channel)
{
    uint32_t path[NETWORK_HOPS], hops = network_route(network, a, b, channel, path);
    char *text = mem_strdup("");
    for (uint32_t i = 0; i < hops; i++) {
        char *name = network_link_name(network, path[i]);
        char *longer = mem_printf("%s%s%s", text, i ? ", " : "", name);
        free(text);
        free(name);
        text = longer;
    }
    return text;
}

static double least_GBps(const struct network *network, uint32_t a, uint32_t b, uint32_t channel)
{
    uint32_t path[NETWORK_HOPS], hops = network_route(network, a, b, channel, path);
    double least = 1e30;
    for (uint32_t i = 0; i < hops; i++) {
        double GBps = network_link(network, path[i]).capacity_Bps / 1e9;
        least = GBps < least ? GBps : least;
    }
    return least;
}

#define SPARSE NET("ib", "4", "400", "") HOST("\"switches\": 8, \"nic_at\": [0, 2, 4, 6]")

static const struct by_hand {
    const char *accel;
    unsigned hosts, per_host;
    const char *rest;
    enum net_policy policy;
    uint32_t a, b, channel;
    double GBps;
    const char *way;
} hands[] = {
    {"A100", 1, 8, "", NET_OWN, 1, 6, 0, 300, "host0/gpu1 nvlink out, host0/gpu6 nvlink in"},
    {"V100-32GB", 1, 8, "", NET_OWN, 0, 3, 0, 50, "host0/gpu0 nvlink to gpu3"},
    {"V100-32GB", 1, 8, "", NET_OWN, 1, 0, 0, 25, "host0/gpu1 nvlink to gpu0"},
    /* no link: by way of a neighbour of both */
    {"V100-32GB", 1, 8, "", NET_OWN, 0, 7, 0, 50,
     "host0/gpu0 nvlink to gpu4, host0/gpu4 nvlink to gpu7"},
    {"V100-32GB", 1, 8, "", NET_OWN, 0, 5, 0, 25,
     "host0/gpu0 nvlink to gpu1, host0/gpu1 nvlink to gpu5"}, /* as wide by 4: the first */
    {"GH200-96GB", 1, 4, "", NET_OWN, 3, 1, 0, 150, "host0/gpu3 nvlink to gpu1"},
    {"MI300X", 1, 8, "", NET_OWN, 7, 0, 0, 64, "host0/gpu7 xgmi to gpu0"},
    {"A100", 1, 8, PAIRS, NET_OWN, 2, 3, 0, 300, "host0/gpu2 nvlink to gpu3"},
    {"A100", 1, 8, PAIRS HOST("\"switches\": 2"), NET_OWN, 1, 2, 0, 31.5,
     "host0/gpu1 pcie out, host0/gpu2 pcie in"},
    {"A100", 1, 2,
     ",\"scale_up\": {\"kind\": \"pcie\", \"line_GBps\": 20, \"ring_GBps\": 10,"
     "\"source\": \"s\"}" HOST("\"switches\": 1"),
     NET_OWN, 0, 1, 0, 20, "host0/gpu0 pcie out, host0/gpu1 pcie in"},
    {"A100-PCIe-80GB", 1, 8, HOST("\"switches\": 2, \"uplink_GBps\": 20"), NET_OWN, 0, 4, 0, 20,
     "host0/gpu0 pcie out, host0/pcie-switch0 pcie out, host0/numa0 socket to numa1, "
     "host0/pcie-switch1 pcie in, host0/gpu4 pcie in"},
    /* without peer access: to memory and in again, though both are under one switch */
    {"RTX4090", 1, 8, HOST("\"switches\": 2"), NET_OWN, 0, 1, 0, 31.5,
     "host0/gpu0 pcie out, host0/pcie-switch0 pcie out, host0/numa0 memory, host0/numa0 memory, "
     "host0/pcie-switch0 pcie in, host0/gpu1 pcie in"},
    {"RTX4090", 1, 8, HOST("\"switches\": 2"), NET_OWN, 0, 7, 0, 31.5,
     "host0/gpu0 pcie out, host0/pcie-switch0 pcie out, host0/numa0 memory, host0/numa0 memory, "
     "host0/numa0 socket to numa1, host0/pcie-switch1 pcie in, host0/gpu7 pcie in"},
    {"EPYC-9654", 1, 2, "", NET_OWN, 0, 1, 0, 128,
     "host0/gpu0 memory out, host0/numa0 memory, host0/numa0 memory, host0/numa0 socket to numa1, "
     "host0/gpu1 memory in"},
    /* each by its own NIC; one rail stays on its leaf, another goes over a spine */
    {"H100", 2, 8, NET("ib", "8", "400", ""), NET_OWN, 3, 11, 5, 50,
     "host0/gpu3 pcie out, host0/nic3 pcie in, host0/nic3 out, host1/nic3 in, host1/nic3 pcie out, "
     "host1/gpu3 pcie in"},
    {"H100", 2, 8, NET("ib", "8", "400", ", \"oversubscribed\": 2"), NET_OWN, 3, 8, 0, 50,
     "host0/gpu3 pcie out, host0/nic3 pcie in, host0/nic3 out, leaf3 to spine0, spine0 to leaf0, "
     "host1/nic0 in, host1/nic0 pcie out, host1/gpu0 pcie in"},
    {"H100", 2, 8, NET("ib", "8", "400", ""), NET_PXN, 3, 8, 0, 50,
     "host0/gpu3 nvlink out, host0/gpu0 nvlink in, host0/gpu0 pcie out, host0/nic0 pcie in, "
     "host0/nic0 out, host1/nic0 in, host1/nic0 pcie out, host1/gpu0 pcie in"},
    /* the border of a ring: channel c by NIC c and the accelerator beside it */
    {"H100", 2, 8, NET("ib", "8", "400", ""), NET_RING, 7, 8, 10, 50,
     "host0/gpu2 pcie out, host0/nic2 pcie in, host0/nic2 out, host1/nic2 in, host1/nic2 pcie out, "
     "host1/gpu2 pcie in"},
    /* a NIC beside every second accelerator: the others reach it over NVLink (PXN) */
    {"H100", 2, 8, SPARSE, NET_OWN, 2, 12, 0, 50,
     "host0/gpu2 pcie out, host0/nic1 pcie in, host0/nic1 out, leaf1 to spine1, spine1 to leaf2, "
     "host1/nic2 in, host1/nic2 pcie out, host1/gpu4 pcie in"},
    {"H100", 2, 8, SPARSE, NET_OWN, 1, 8, 0, 50,
     "host0/gpu1 nvlink out, host0/gpu0 nvlink in, host0/gpu0 pcie out, host0/nic0 pcie in, "
     "host0/nic0 out, host1/nic0 in, host1/nic0 pcie out, host1/gpu0 pcie in"},
    /* two accelerators and one NIC under a switch: both go there straight */
    {"H100", 2, 8, NET("ib", "4", "400", ""), NET_OWN, 1, 8, 0, 50,
     "host0/gpu1 pcie out, host0/nic0 pcie in, host0/nic0 out, host1/nic0 in, host1/nic0 pcie out, "
     "host1/gpu0 pcie in"},
    /* two and four: two NICs each, by channel */
    {"A100", 2, 8, NET("efa", "16", "100", "") HOST("\"switches\": 4"), NET_OWN, 3, 9, 1, 12.5,
     "host0/gpu3 pcie out, host0/nic7 pcie in, host0/nic7 out, leaf7 to spine1, spine1 to leaf3, "
     "host1/nic3 in, host1/nic3 pcie out, host1/gpu1 pcie in"},
    /* no NVLink: over the host bridge and the other socket */
    {"A100-PCIe-80GB", 2, 8, NET("ib", "1", "200", "") HOST("\"switches\": 2"), NET_OWN, 4, 8, 0,
     25,
     "host0/gpu4 pcie out, host0/pcie-switch1 pcie out, host0/numa1 socket to numa0, "
     "host0/pcie-switch0 pcie in, host0/nic0 pcie in, host0/nic0 out, host1/nic0 in, "
     "host1/nic0 pcie out, host1/gpu0 pcie in"},
    /* four NICs for one accelerator: its PCIe link is the limit of all */
    {"H100", 2, 1, NET("ib", "4", "400", ""), NET_OWN, 0, 1, 3, 50,
     "host0/gpu0 pcie out, host0/nic3 pcie in, host0/nic3 out, host1/nic3 in, host1/nic3 pcie out, "
     "host1/gpu0 pcie in"},
    {"EPYC-9654", 2, 2, NET("ib", "1", "200", ""), NET_OWN, 1, 2, 0, 25,
     "host0/gpu1 memory out, host0/numa1 memory, host0/numa1 socket to numa0, host0/nic0 pcie in, "
     "host0/nic0 out, host1/nic0 in, host1/nic0 pcie out, host1/numa0 memory, "
     "host1/gpu0 memory in"},
    /* a domain of two hosts; beyond it the NIC */
    {"GB200", 4, 4, ", \"domain_hosts\": 2" NET("ib", "4", "400", ""), NET_OWN, 1, 6, 0, 900,
     "host0/gpu1 nvlink out, host1/gpu2 nvlink in"},
    {"GB200", 4, 4, ", \"domain_hosts\": 2" NET("ib", "4", "400", ""), NET_OWN, 5, 9, 0, 50,
     "host1/gpu1 pcie out, host1/nic1 pcie in, host1/nic1 out, host2/nic1 in, host2/nic1 pcie out, "
     "host2/gpu1 pcie in"},
    /* a ring leaves a domain at all its hosts in turn */
    {"GB200", 4, 4, ", \"domain_hosts\": 2" NET("ib", "4", "400", ""), NET_RING, 3, 8, 14, 50,
     "host1/gpu2 pcie out, host1/nic2 pcie in, host1/nic2 out, host3/nic2 in, host3/nic2 pcie out, "
     "host3/gpu2 pcie in"},
    /* torus 5 x 4: x the short way round, then y */
    {"H100", 20, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [5, 4]"), NET_OWN, 0,
     18, 0, 50, "host0/nic1 out, host4/nic1 out, host3/nic3 out"},
    /* as far either way: by channel */
    {"H100", 4, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [4]"), NET_OWN, 0, 2,
     0, 50, "host0/nic0 out, host1/nic0 out"},
    {"H100", 4, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [4]"), NET_OWN, 0, 2,
     1, 50, "host0/nic1 out, host3/nic1 out"},
    /* a side of 3 is not closed */
    {"H100", 3, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [3]"), NET_OWN, 0, 2,
     0, 50, "host0/nic0 out, host1/nic0 out"},
};

Test(network, ways_by_hand)
{
    for (size_t i = 0; i < sizeof hands / sizeof *hands; i++) {
        const struct by_hand *hand = &hands[i];
        struct network *network =
            build(hand->accel, hand->hosts, hand->per_host, hand->rest, hand->policy, NULL);
        char *text = way_text(network, hand->a, hand->b, hand->channel);
        cr_expect_str_eq(text, hand->way, "row %zu: %s\n not %s", i, text, hand->way);
        cr_expect_float_eq(least_GBps(network, hand->a, hand->b, hand->channel), hand->GBps, 1e-9,
                           "row %zu: %g", i, least_GBps(network, hand->a, hand->b, hand->channel));
        free(text);
        network_free(network);
    }
}

/* Seconds per byte of the fullest link when each pair of `pairs` sends a byte. */
static double fullest(const struct network *network, const uint32_t (*pairs)[2], size_t count)
{
    uint32_t path[NETWORK_HOPS];
    double *load = mem_calloc(network_links(network), sizeof *load), most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t hops = network_route(network, pairs[i][0], pairs[i][1], 0, path);
        for (uint32_t k = 0; k < hops; k++) {
            load[path[k]] += 1 / network_link(network, path[k]).capacity_Bps;
            most = load[path[k]] > most ? load[path[k]] : most;
        }
    }
    free(load);
    return most;
}

/* Four accelerators under each of two switches, no peer access: two of one switch, both ways, share
 * its one link to the processors, and are slower than two of different switches. */
Test(network, one_switch_is_no_faster_without_peer_access)
{
    static const uint32_t near[][2] = {{0, 1}, {1, 0}}, far[][2] = {{0, 4}, {4, 0}};
    struct network *network = build("RTX4090", 1, 8, HOST("\"switches\": 2"), NET_OWN, NULL);
    cr_expect_float_eq(fullest(network, near, 2), 2 / 31.5e9, 1e-15);
    cr_expect_float_eq(fullest(network, far, 2), 1 / 31.5e9, 1e-15);
    network_free(network);
    network = build("A100-PCIe-80GB", 1, 8, HOST("\"switches\": 2"), NET_OWN, NULL);
    cr_expect_float_eq(fullest(network, near, 2), 1 / 31.5e9, 1e-15); /* with it: no */
    network_free(network);
}

/* One accelerator drives four 400 Gb/s NICs at most at its PCIe link's 63 GB/s; eight drive all. */
Test(network, pcie_link_of_one_accelerator)
{
    static const char *const rests[] = {NET("ib", "4", "400", ""), SPARSE};
    for (size_t i = 0; i < 2; i++) {
        unsigned per = i ? 8 : 1;
        struct network *network = build("H100", 2, per, rests[i], NET_RING, NULL);
        double *load = mem_calloc(network_links(network), sizeof *load), most = 0;
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t path[NETWORK_HOPS], hops = network_route(network, per - 1, per, c, path);
            for (uint32_t k = 0; k < hops; k++) {
                load[path[k]] += 0.25 / network_link(network, path[k]).capacity_Bps;
                most = load[path[k]] > most ? load[path[k]] : most;
            }
        }
        cr_expect_float_eq(1 / most / 1e9, i ? 200 : 63, 1e-9, "%g", 1 / most / 1e9);
        free(load);
        network_free(network);
    }
}

/* ---- counts ---- */

static double sum_named(const struct network *network, const char *starts, const char *holds_text)
{
    double sum = 0;
    for (uint32_t i = 0; i < network_links(network); i++) {
        char *name = network_link_name(network, i);
        if (strncmp(name, starts, strlen(starts)) == 0 && strstr(name, holds_text))
            sum += network_link(network, i).capacity_Bps / 1e9;
        free(name);
    }
    return sum;
}

static uint32_t count_named(const struct network *network, const char *starts,
                            const char *holds_text)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < network_links(network); i++) {
        char *name = network_link_name(network, i);
        count += strncmp(name, starts, strlen(starts)) == 0 && strstr(name, holds_text);
        free(name);
    }
    return count;
}

Test(network, leaves_and_spines)
{
    /* 2 scalable units of 32 hosts with 8 NICs: 16 leaves; a leaf's uplinks are its NICs' sum */
    struct network *network = build("B200", 64, 8, NET("ib", "8", "400", ""), NET_OWN, NULL);
    cr_expect_eq(network_agents(network), 64 + 16);
    cr_expect_eq(count_named(network, "leaf15 ", " to spine"), 32);
    cr_expect_eq(count_named(network, "leaf16 ", " to "), 0);
    cr_expect_float_eq(sum_named(network, "leaf7 ", " to spine"), 32 * 50, 1e-6);
    network_free(network);
    /* 2:1, 2 hosts of 8 NICs under a leaf: 8 spines; 3:1: 5, which carry a third exactly */
    network = build("A100", 6, 8,
                    NET("ib", "8", "200",
                        ", \"layout\": \"fat-tree\", \"leaf_hosts\": 2, \"oversubscribed\": 2"),
                    NET_OWN, NULL);
    cr_expect_eq(count_named(network, "leaf2 ", " to spine"), 8);
    cr_expect_float_eq(sum_named(network, "leaf2 ", " to spine"), 16 * 25 / 2, 1e-6);
    cr_expect_float_eq(sum_named(network, "spine", " to leaf0"), 16 * 25 / 2, 1e-6);
    network_free(network);
    network = build("A100", 6, 8,
                    NET("ib", "8", "200",
                        ", \"layout\": \"fat-tree\", \"leaf_hosts\": 2, \"oversubscribed\": 3"),
                    NET_OWN, NULL);
    cr_expect_eq(count_named(network, "leaf2 ", " to spine"), 5);
    cr_expect_float_eq(sum_named(network, "leaf2 ", " to spine"), 16 * 25 / 3.0, 1e-6);
    network_free(network);
}

/* A Slingshot group of 32 switches: 512 NICs, 992 directed local links, at most 512 global ones. */
Test(network, dragonfly_counts)
{
    struct network *network =
        build("GH200-96GB", 3 * 128, 4,
              NET("slingshot", "4", "200", ", \"layout\": \"dragonfly\", \"leaf_hosts\": 128"),
              NET_OWN, NULL);
    cr_expect_eq(count_named(network, "group1/switch", " to switch"), 992);
    cr_expect_eq(count_named(network, "group1 to group", " cable"), 512);
    cr_expect_eq(count_named(network, "group1 to group2 ", " cable"), 256);
    uint32_t path[NETWORK_HOPS], most = 0;
    for (uint32_t b = 512; b < 1024; b++) {
        uint32_t hops = network_route(network, 5, b, 0, path), between = 0;
        for (uint32_t i = 0; i < hops; i++)
            between += network_link(network, path[i]).kind == NET_FABRIC;
        most = between > most ? between : most;
    }
    cr_expect_eq(most, 3); /* local, global, local */
    network_free(network);
}

/* A torus has 2 links per host and axis; one with a side below 4 lacks those that close it. */
Test(network, torus_links)
{
    struct network *network =
        build("H100", 32, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [4, 4, 2]"),
              NET_OWN, NULL);
    uint32_t path[NETWORK_HOPS], sum = 0, far = 0;
    for (uint32_t b = 1; b < 32; b++) {
        uint32_t hops = network_route(network, 0, b, 0, path);
        sum += hops;
        far = hops > far ? hops : far;
    }
    /* of a ring of 4: distances 0 1 2 1; of a line of 2: 0 1. Sum: 32 x (1 + 1 + 1/2) */
    cr_expect(sum == 80 && far == 5, "%u %u", sum, far);
    network_free(network);
}

/* ---- all hosts alike ---- */

/* Moving all ranks on by `hosts` hosts moves every link of every way to one and the same other. */
static void check_shift(const struct network *network, uint32_t per, uint32_t hosts)
{
    uint32_t n = network_ranks(network), links = network_links(network);
    uint32_t *to = mem_calloc(links, sizeof *to), *back = mem_calloc(links, sizeof *back);
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = 0; b < n; b++) {
            uint32_t one[NETWORK_HOPS], two[NETWORK_HOPS];
            uint32_t hops = network_route(network, a, b, 1, one);
            uint32_t more =
                network_route(network, (a + hosts * per) % n, (b + hosts * per) % n, 1, two);
            cr_assert_eq(hops, more);
            for (uint32_t i = 0; i < hops; i++) {
                cr_assert(to[one[i]] == 0 || to[one[i]] == two[i] + 1);
                cr_assert(back[two[i]] == 0 || back[two[i]] == one[i] + 1);
                to[one[i]] = two[i] + 1;
                back[two[i]] = one[i] + 1;
                struct net_link x = network_link(network, one[i]),
                                y = network_link(network, two[i]);
                cr_assert(x.capacity_Bps == y.capacity_Bps && x.kind == y.kind);
            }
        }
    }
    free(to);
    free(back);
}

Test(network, shifts)
{
    static const struct {
        struct shape shape;
        uint32_t hosts;
    } rows[] = {
        {{"A100", 5, 8, NET("ib", "8", "200", "")}, 1},
        {{"V100-32GB", 3, 8, NET("ib", "4", "100", "")}, 2},
        {{"A100", 6, 8, NET("ib", "8", "200", ", \"leaf_hosts\": 2, \"oversubscribed\": 2")}, 2},
        {{"A100", 6, 4, NET("roce", "4", "200", ", \"layout\": \"fat-tree\", \"leaf_hosts\": 2")},
         4},
        {{"GB200", 6, 4, ", \"domain_hosts\": 2" NET("ib", "4", "400", ", \"leaf_hosts\": 2")}, 2},
        {{"H100", 25, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [5, 5]")}, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct shape *s = &rows[i].shape;
        struct network *network = build(s->accel, s->hosts, s->per_host, s->rest, NET_OWN, NULL);
        check_shift(network, s->per_host, rows[i].hosts);
        network_free(network);
    }
}

/* Rank r is accelerator order[r]. */
Test(network, order)
{
    struct topo topo;
    struct doc doc;
    struct err err = ERR_INIT;
    uint32_t order[16], path[NETWORK_HOPS], other[NETWORK_HOPS];
    for (uint32_t i = 0; i < 16; i++)
        order[i] = i * 7 % 16;
    parse(&topo, &doc, "A100", 2, 8, NET("ib", "8", "200", ""), &err);
    struct network *plain = network_build(&topo, line, NET_OWN, NULL, &err);
    struct network *mixed = network_build(&topo, line, NET_OWN, order, &err);
    for (uint32_t a = 0; a < 16; a++) {
        for (uint32_t b = 0; b < 16; b++) {
            uint32_t hops = network_route(mixed, a, b, 0, path);
            cr_assert_eq(hops, network_route(plain, order[a], order[b], 0, other));
            cr_assert_arr_eq(path, other, hops * sizeof *path);
            cr_assert_eq(network_scope(mixed, a, b), network_scope(plain, order[a], order[b]));
        }
    }
    network_free(plain);
    network_free(mixed);
    topo_release(&topo);
    doc_release(&doc);
}

/* ---- domains, scopes, agents ---- */

Test(network, domain_of_a_rack)
{
    uint32_t path[NETWORK_HOPS];
    struct network *network =
        build("GB200", 36, 4, ", \"domain_hosts\": 18" NET("ib", "4", "400", ""), NET_OWN, NULL);
    cr_assert_eq(network_ranks(network), 144);
    for (uint32_t b = 1; b < 72; b++) {
        cr_expect_eq(network_route(network, 0, b, 0, path), 2);
        cr_expect_eq(network_scope(network, 0, b), b < 4 ? SCOPE_HOST : SCOPE_DOMAIN);
    }
    cr_expect(network_scope(network, 0, 72) == SCOPE_RAIL && network_scope(network, 3, 3) == 0);
    cr_expect_eq(network_scope(network, 4 * 31, 4 * 32), SCOPE_DOMAIN);
    cr_expect(network_agent_of(network, SCOPE_DOMAIN, 71, 0) == 144 &&
              network_agent_of(network, SCOPE_DOMAIN, 72, 0) == 145);
    cr_expect(network_route(network, 70, 144, 0, path) == 1); /* to the switch of its rack */
    cr_expect_eq(network_agents(network), 2 + 2 * 4); /* racks; hosts 0-31 and 32-35, 4 rails */
    network_free(network);
}

Test(network, agents_of_leaves)
{
    struct network *network =
        build("A100", 4, 8, NET("ib", "8", "200", ", \"leaf_hosts\": 2"), NET_OWN, NULL);
    uint32_t path[NETWORK_HOPS], first = 32 + 4; /* agents of hosts, then of leaves */
    cr_expect_eq(network_agents(network), 4 + 16);
    for (uint32_t r = 0; r < 32; r++) {
        uint32_t agent = network_agent_of(network, SCOPE_RAIL, r, 0);
        cr_expect_eq(agent, first + r / 16 * 8 + r % 8);
        check_way(network, r, agent, 0, true);
        check_way(network, agent, r, 0, true);
        check_way(network, agent, (r + 16) % 32, 0, true); /* leaf of the other group */
        check_way(network, agent, first + (r + 1) % 16, 0, agent != first + (r + 1) % 16);
        check_way(network, r, 32 + r / 8, 0, true);
        check_way(network, 32 + r / 8, r, 0, true);
        cr_expect_eq(network_agent_of(network, SCOPE_DOMAIN, r, 0), 32 + r / 8);
    }
    cr_expect_eq(network_route(network, first, first + 8, 0, path), 2); /* over a spine */
    network_free(network);
    /* what 5 leaves of a rail send to one of them is spread over its 4 spines */
    network = build("A100", 24, 8, NET("ib", "8", "200", ", \"leaf_hosts\": 4"), NET_OWN, NULL);
    uint32_t into[4] = {0};
    for (uint32_t leaf = 1; leaf < 6; leaf++) {
        cr_assert_eq(network_route(network, 192 + 24 + 8 * leaf, 192 + 24, 0, path), 2);
        char *name = network_link_name(network, path[1]);
        into[name[5] - '0']++;
        cr_expect(holds(name, "spine| to leaf0"), "%s", name);
        free(name);
    }
    cr_expect(into[0] == 1 && into[1] == 2 && into[2] == 1 && into[3] == 1);
    network_free(network);
    network = build("MI300X", 1, 8, "", NET_OWN, NULL);
    cr_expect(network_agents(network) == 0 &&
              network_agent_of(network, SCOPE_DOMAIN, 0, 0) == UINT32_MAX);
    network_free(network);
}

/* ---- size ---- */

Test(network, four_thousand)
{
    struct topo topo;
    struct err err = ERR_INIT;
    cr_assert_eq(topo_read(&topo, &accels, "dgx-h100x512", 0, 0, &err), 0);
    size_t before = mallinfo2().uordblks;
    struct network *network = NULL;
    double ms = INFINITY; /* the least of a few: others on the machine take caches, too */
    for (int i = 0; i < 5; i++) {
        network_free(network);
        struct timespec start, end;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
        network = network_build(&topo, line, NET_RING, NULL, &err);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        ms = fmin(ms, (double)(end.tv_sec - start.tv_sec) * 1e3 +
                          (double)(end.tv_nsec - start.tv_nsec) / 1e6);
    }
    cr_assert(network && network_ranks(network) == 4096);
    cr_expect_lt(ms, 50, "%g ms", ms);
    cr_expect_lt(mallinfo2().uordblks - before, 4u << 20);
    uint32_t path[NETWORK_HOPS], seen = 0;
    for (uint32_t a = 0; a < 4096; a++)
        seen += network_route(network, a, (a + 2048) % 4096, a, path);
    cr_expect_eq(seen, 4096 * 8); /* NIC c at both ends, so each stays on its rail, over a spine */
    network_free(network);
    topo_release(&topo);
}

/* ---- buckets, rates ---- */

Test(network, rates)
{
    struct net_rate rates[NNET_KINDS];
    struct topo topo;
    struct doc doc;
    struct err err = ERR_INIT;
    memcpy(rates, line, sizeof rates);
    rates[NET_NIC] = (struct net_rate){0.9, 1234, 0};
    parse(&topo, &doc, "A100", 2, 8,
          NET("efa", "8", "100", ", \"burst_Gbps\": 200, \"burst_GB\": 3"), &err);
    struct network *network = network_build(&topo, rates, NET_OWN, NULL, &err);
    cr_assert(network, "%s", err.text);
    uint32_t path[NETWORK_HOPS];
    network_route(network, 0, 8, 0, path);
    struct net_link nic = network_link(network, path[2]);
    cr_expect(nic.kind == NET_NIC && nic.latency_ps == 1234 && nic.bucket_bytes == 3e9);
    cr_expect_float_eq(nic.capacity_Bps, 12.5e9 * 0.9, 1);
    cr_expect_float_eq(nic.peak_Bps, 25e9 * 0.9, 1);
    network_free(network);
    topo_release(&topo);
    doc_release(&doc);
}

/* Latencies that the file states, of whole messages, in place of the links'. */
Test(network, stated_latencies)
{
    static const struct {
        struct shape shape;
        uint32_t a, b;
        ps_t latency_ps;
    } rows[] = {
        {{"A100", 1, 2,
          ",\"scale_up\": {\"kind\": \"nvswitch\", \"line_GBps\": 300,"
          "\"ring_GBps\": 230, \"latency_ns\": 500, \"source\": \"s\"}"},
         0,
         1,
         500000},
        {{"A100", 1, 2,
          ",\"scale_up\": {\"kind\": \"nvlink-mesh\", \"line_GBps\": 300,"
          "\"ring_GBps\": 230, \"latency_ns\": 500, \"source\": \"s\"}"},
         0,
         1,
         500000},
        {{"A100", 1, 2,
          ",\"scale_up\": {\"kind\": \"pcie\", \"line_GBps\": 31.5,"
          "\"ring_GBps\": 12, \"latency_ns\": 500, \"source\": \"s\"}" HOST("\"switches\": 1")},
         0,
         1,
         500000},
        {{"A100", 64, 2, NET("ib", "2", "200", ", \"latency_ns\": 3000")},
         0,
         127,
         3000000 + 4 * 4}, /* and two PCIe links at each end */
        {{"A100", 1, 2, ""}, 0, 1, 2 * 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct shape *s = &rows[i].shape;
        struct network *network = build(s->accel, s->hosts, s->per_host, s->rest, NET_OWN, NULL);
        uint32_t path[NETWORK_HOPS];
        uint32_t hops = network_route(network, rows[i].a, rows[i].b, 0, path);
        ps_t sum = 0;
        for (uint32_t k = 0; k < hops; k++)
            sum += network_link(network, path[k]).latency_ps;
        cr_expect_eq(sum, rows[i].latency_ps, "row %zu: %" PRIu64, i, sum);
        network_free(network);
    }
}

/* ---- faults ---- */

/* Links whose rate differs between two networks, as names joined by ", ". */
static char *changed(const struct network *one, const struct network *other)
{
    char *text = mem_strdup("");
    cr_assert_eq(network_links(one), network_links(other));
    for (uint32_t i = 0; i < network_links(one); i++) {
        double ratio = network_link(other, i).capacity_Bps / network_link(one, i).capacity_Bps;
        if (ratio == 1) continue;
        char *name = network_link_name(one, i);
        char *longer = mem_printf("%s%s%s %g", text, *text ? ", " : "", name, ratio);
        free(name);
        free(text);
        text = longer;
    }
    return text;
}

Test(network, slow_links)
{
    static const struct {
        const char *faults[3], *says;
    } rows[] = {
        {{"host1/nic3=0.5"}, "host1/nic3 out 0.5, host1/nic3 in 0.5"},
        {{"host0/gpu2 nvlink out=0.25"}, "host0/gpu2 nvlink out 0.25"},
        {{"host*/nic3=0.5"},
         "host0/nic3 out 0.5, host0/nic3 in 0.5, host1/nic3 out 0.5, host1/nic3 in 0.5"},
        {{"host*/nic3=0.5", "host1/nic3 in=0.5"},
         "host0/nic3 out 0.5, host0/nic3 in 0.5, host1/nic3 out 0.5, host1/nic3 in 0.25"},
        {{"host0/gpu2=0.25"}, "host0/gpu2 nvlink out 0.25, host0/gpu2 nvlink in 0.25"},
        {{"host0/numa1 memory=0.1"}, "host0/numa1 memory 0.1"},
        {{"spine1 to leaf2=0.75"}, "spine1 to leaf2 0.75"},
        {{"host1/nic0 pcie=0.5", "host1/nic0 pcie out=0.5"},
         "host1/nic0 pcie out 0.25, host1/nic0 pcie in 0.5"},
    };
    static const char rest[] = NET("ib", "8", "200", "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct network *plain = build("A100", 2, 8, rest, NET_OWN, NULL);
        struct network *faulty = build("A100", 2, 8, rest, NET_OWN, rows[i].faults);
        char *text = changed(plain, faulty);
        cr_expect_str_eq(text, rows[i].says, "%s: %s", rows[i].faults[0], text);
        free(text);
        network_free(plain);
        network_free(faulty);
    }
}

/* A missing NIC: its accelerator uses the next one, in that host alone. */
Test(network, missing_nics)
{
    static const struct {
        const char *faults[3];
        enum net_policy policy;
        uint32_t a, b, channel;
        const char *ports; /* what the way has of NICs' links */
    } rows[] = {
        {{"host0/nic3=0"}, NET_OWN, 3, 11, 0, "host0/nic2 out, host1/nic3 in"},
        {{"host0/nic3=0"}, NET_OWN, 11, 3, 0, "host1/nic3 out, host0/nic2 in"},
        {{"host0/nic3=0"}, NET_OWN, 4, 12, 0, "host0/nic4 out, host1/nic4 in"},
        {{"host*/nic3=0"}, NET_OWN, 3, 11, 0, "host0/nic2 out, host1/nic2 in"},
        {{"host0/nic3=0"}, NET_RING, 7, 8, 3, "host0/nic4 out, host1/nic4 in"},
        {{"nics=1"}, NET_RING, 7, 8, 3, "host0/nic0 out, host1/nic0 in"},
        {{"nics=4"}, NET_RING, 7, 8, 6, "host0/nic2 out, host1/nic2 in"},
        {{"nics=4", "host1/nic1=0"}, NET_RING, 7, 8, 1, "host0/nic1 out, host1/nic2 in"},
    };
    static const char rest[] =
        NET("ib", "8", "200", ", \"layout\": \"switch\"") HOST("\"switches\": 4");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct network *network = build("A100", 2, 8, rest, rows[i].policy, rows[i].faults);
        uint32_t path[NETWORK_HOPS];
        uint32_t hops = network_route(network, rows[i].a, rows[i].b, rows[i].channel, path);
        char *text = mem_strdup("");
        for (uint32_t k = 0; k < hops; k++) {
            if (network_link(network, path[k]).kind != NET_NIC) continue;
            char *name = network_link_name(network, path[k]);
            char *longer = mem_printf("%s%s%s", text, *text ? ", " : "", name);
            free(text);
            free(name);
            text = longer;
        }
        cr_expect_str_eq(text, rows[i].ports, "row %zu: %s", i, text);
        free(text);
        network_free(network);
    }
}

/* What is left for rings, and over how many NICs they are to be spread. */
Test(network, what_faults_leave)
{
    static const struct {
        const char *faults[4];
        double share;
        uint32_t nics;
    } rows[] = {
        {{0}, 1, 8},
        {{"host1/nic3=0.5", "host0/nic2=0.75"}, 0.5, 8},
        {{"host0/nic3=0"}, 7.0 / 8, 7},
        {{"host0/nic3=0", "host*/nic1=0", "host1/nic2=0.5"}, 0.5 * 6 / 8, 6},
        {{"host0/nic3=0", "host1/nic1=0"}, 7.0 / 8, 7},
        {{"host0/nic3 pcie=0.5", "host0/gpu1 nvlink=0.5", "leaf0 to spine0=0.5"}, 1, 8},
        {{"nics=2", "host0/nic1=0"}, 0.5, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo topo;
        struct doc doc;
        struct err err = ERR_INIT;
        parse(&topo, &doc, "A100", 2, 8, NET("ib", "8", "200", ""), &err);
        for (size_t k = 0; rows[i].faults[k]; k++)
            fault_parse(&topo, rows[i].faults[k], &err);
        cr_expect_float_eq(fault_nic_share(&topo), rows[i].share, 1e-12, "row %zu: %g", i,
                           fault_nic_share(&topo));
        struct network *network = network_build(&topo, line, NET_RING, NULL, &err);
        cr_assert(network, "%s", err.text);
        cr_expect_eq(network_ring_nics(network), rows[i].nics, "row %zu", i);
        network_free(network);
        topo_release(&topo);
        doc_release(&doc);
    }
    struct network *network =
        build("GB200", 4, 4, ", \"domain_hosts\": 2" NET("ib", "4", "400", ""), NET_RING, NULL);
    cr_expect_eq(network_ring_nics(network), 8);
    network_free(network);
    network = build("A100", 1, 8, "", NET_RING, NULL);
    cr_expect_eq(network_ring_nics(network), 0);
    network_free(network);
}

/* Faults that change what the cluster is. */
Test(network, faults_of_the_cluster)
{
    struct topo topo;
    struct doc doc;
    struct err err = ERR_INIT;
    parse(
        &topo, &doc, "A100", 2, 8,
        NET("ib", "8", "200", "") ",\n\"faults\": [{\"peer_access\": false}, {\"nics_used\": 2},\n"
                                  "{\"fallback\": \"tcp\"}, {\"missing\": \"host0/nic0\"},\n"
                                  "{\"link\": \"host1/nic1\", \"fraction\": 0.5}]",
        &err);
    cr_assert_null(err.text, "%s", err.text);
    cr_expect(topo.scale_up == SCALE_UP_PCIE_HOST && !topo.host.peer_access);
    cr_expect(topo.fabric == FABRIC_TCP && topo.nic_Gbps == 50 && topo.nfaults == 5);
    cr_expect_str_eq(topo.faults[4].where, "x.json:6");
    struct network *network = network_build(&topo, line, NET_OWN, NULL, &err);
    cr_assert(network, "%s", err.text);
    char *text = way_text(network, 0, 1, 0);
    cr_expect(holds(text, "host0/numa0 memory, host0/numa0 memory|pcie") && !strstr(text, "nvlink"),
              "%s", text);
    free(text);
    text = way_text(network, 0, 8, 0);
    cr_expect(holds(text, "host0/numa0 memory, host0/numa0 memory|host0/nic1 out"), "%s", text);
    free(text);
    network_free(network);
    topo_release(&topo);
    doc_release(&doc);
}

static const struct {
    const char *text, *says;
} bad_faults[] = {
    {"nic3", "--fault \"nic3\": a fault is LINK=FRACTION"},
    {"", "--fault \"\": a fault is"},
    {"host0/nic3=1.5", "a fraction of 1.5; it must be in 0..1"},
    {"host0/nic3=-1", "a fraction of -1; it must be in 0..1"},
    {"host0/nic3=half", "--fault \"host0/nic3=half\"|half"},
    {"nics=0", "--fault \"nics=0\"|1|8"},
    {"nics=9", "--fault \"nics=9\"|9|8"},
    {"host2/nic3=0.5", "--fault \"host2/nic3=0.5\": there is no host2; hosts are 0..1"},
    {"host0/nic8=0.5", "there is no link \"host0/nic8\"|host0..host1|nic0, nic1|nic7"},
    {"hostx/nic0=0.5", "there is no link \"hostx/nic0\""},
    {"host-1/nic0=0.5", "there is no link \"host-1/nic0\""},
    {"leaf99 to spine0=0.5", "there is no link \"leaf99 to spine0\""},
    {"host0/gpu1 nvlink=0", "\"host0/gpu1 nvlink\" cannot be missing, only a NIC"},
    {"host0/nic3=1e-323", "e-324; it must be in 1e-06..1, or 0 (a NIC that is missing)"},
    {"leaf0 to spine0=0", "\"leaf0 to spine0\" cannot be missing"},
    {"host0/gpu9=0.5", "there is no link \"host0/gpu9\"|gpu0 nvlink, gpu1 nvlink, .., gpu7 nvlink"},
    {"host0/gpu=0.5", "there is no link \"host0/gpu\""},
    {"host0/gpu1=0", "\"host0/gpu1\" cannot be missing, only a NIC"},
};

/* All links of an accelerator, all NICs; a link that is named twice; no NIC left. */
Test(network, faults_together)
{
    static const struct {
        char *faults[3];
        const char *says; /* NULL: fine */
    } rows[] = {
        {{"host0/nic3=0.5", "host0/nic3=0"},
         "--fault \"host0/nic3=0\": host0/nic3 has a fault already, 0.5 of its rate by --fault "
         "\"host0/nic3=0.5\"; here 0"},
        {{"host0/nic3=0.5", "host0/nic3=0.5"}, "has a fault already"},
        {{"host0/nic3=0.5", "host*/nic3=0.5", "host1/nic3=0"}, NULL},
        {{"nics=1", "host*/nic0=0"},
         "no NIC is left to reach the other hosts by, after --fault \"nics=1\", --fault "
         "\"host*/nic0=0\""},
        {{"host1/nic*=0"}, "no NIC is left to reach the other hosts by"},
        {{"nics=1", "host*/nic1=0"}, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo topo;
        struct doc doc;
        struct err err = ERR_INIT;
        struct opts_list list = {.items = (char **)rows[i].faults};
        while (list.count < 3 && rows[i].faults[list.count])
            list.count++;
        parse(&topo, &doc, "A100", 2, 8, NET("ib", "8", "200", ""), &err);
        int bad = fault_parse_all(&topo, &list, &err);
        cr_expect_eq(bad, rows[i].says ? -1 : 0, "row %zu: %s", i, err.text);
        cr_expect(!rows[i].says || (err.count == 1 && holds(err.text, rows[i].says)),
                  "row %zu says %s", i, err.text);
        err_release(&err);
        topo_release(&topo);
        doc_release(&doc);
    }
}

Test(network, refused_faults)
{
    for (size_t i = 0; i < sizeof bad_faults / sizeof *bad_faults; i++) {
        struct topo topo;
        struct doc doc;
        struct err err = ERR_INIT;
        parse(&topo, &doc, "A100", 2, 8, NET("ib", "8", "200", ""), &err);
        int bad = fault_parse(&topo, bad_faults[i].text, &err);
        struct network *network = bad ? NULL : network_build(&topo, line, NET_OWN, NULL, &err);
        cr_expect_null(network, "accepted: %s", bad_faults[i].text);
        cr_expect(err.count == 1 && err.code == ERR_USAGE, "%s", err.text);
        cr_expect(holds(err.text, bad_faults[i].says), "%s\nsays %s", bad_faults[i].text, err.text);
        network_free(network);
        err_release(&err);
        topo_release(&topo);
        doc_release(&doc);
    }
}

/* ---- what cannot be built ---- */

static const struct {
    struct shape shape;
    const char *says;
    const char *faults[9];
} refused[] = {
    {{"V100-32GB", 1, 4, ""}, "4 accelerators cannot be a cube mesh", {0}},
    {{"MI300X", 1, 2000, ""},
     "2000 accelerators, each linked to each (xgmi); the most are 1024",
     {0}},
    {{"A100", 1, 100000, ""}, "100000 accelerators|65536", {0}},
    {{"GH200-96GB", 1000, 4,
      NET("slingshot", "4", "200", ", \"layout\": \"dragonfly\", \"leaf_hosts\": 200")},
     "a dragonfly's group of 200 hosts|800; the most are 512: \"leaf_hosts\" up to 128",
     {0}},
    {{"GH200-96GB", 1000, 4,
      NET("slingshot", "4", "200", ", \"layout\": \"dragonfly\", \"leaf_hosts\": 4")},
     "250 dragonfly groups|1 switches has cables to 16 others",
     {0}},
    {{"H100", 300, 1, NET("ib", "1", "400", ", \"layout\": \"torus\", \"dims\": [300]")},
     "routes of 150 links; the longest may have 32",
     {0}},
    {{"H100", 2000000000, 1,
      NET("ib", "16", "400", ", \"layout\": \"fat-tree\", \"leaf_hosts\": 2000000000")},
     "x: 64000000000 links between switches; the most are 2147483647",
     {0}},
    {{"A100", 2, 2, NET("ib", "2", "200", "")},
     "x: host1 has no NIC left",
     {"host1/nic0=0", "host1/nic1=0"}},
    {{"A100", 2, 1, NET("ib", "1", "200", "")}, "x: a host has no NIC left", {"host*/nic0=0"}},
    {{"H100", 4, 1, NET("ib", "1", "400", ", \"layout\": \"torus\"")},
     "\"host0/nic0\" cannot be missing",
     {"host0/nic0=0"}},
};

Test(network, refused)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct topo topo;
        struct doc doc;
        struct err err = ERR_INIT;
        const struct shape *s = &refused[i].shape;
        parse(&topo, &doc, s->accel, s->hosts, s->per_host, s->rest, &err);
        for (size_t k = 0; refused[i].faults[k]; k++)
            fault_parse(&topo, refused[i].faults[k], &err);
        cr_expect_null(err.text, "%s", err.text);
        struct network *network = network_build(&topo, line, NET_OWN, NULL, &err);
        cr_expect_null(network, "row %zu was accepted", i);
        cr_expect(err.count >= 1 && err.code == ERR_USAGE && holds(err.text, refused[i].says),
                  "row %zu says %s", i, err.text);
        network_free(network);
        err_release(&err);
        topo_release(&topo);
        doc_release(&doc);
    }
}

/* ---- a host node by node ---- */

/* Direct links and those to switches that both have; the fewer of the two sums. */
Test(network, nvlinks_of_a_pair)
{
    struct graph graph = {0};
    uint32_t a = graph_add(&graph, GRAPH_ACCEL, NULL, 0, GRAPH_NONE);
    uint32_t b = graph_add(&graph, GRAPH_ACCEL, NULL, 1, GRAPH_NONE);
    uint32_t both = graph_add(&graph, GRAPH_NVSWITCH, NULL, 0, GRAPH_NONE);
    uint32_t one = graph_add(&graph, GRAPH_NVSWITCH, NULL, 1, GRAPH_NONE);
    graph_link(&graph, GRAPH_NVLINK, a, both, 2);
    graph_link(&graph, GRAPH_NVLINK, both, b, 1);
    graph_link(&graph, GRAPH_NVLINK, b, one, 3);
    cr_expect(graph_nvlinks(&graph, a, b) == 1 && graph_nvlinks(&graph, b, a) == 1);
    graph_link(&graph, GRAPH_NVLINK, b, a, 4);
    cr_expect(graph_nvlinks(&graph, a, b) == 5 && graph_nvlinks(&graph, b, a) == 5);
    graph_release(&graph);
}

static const char machine[] =
    "{\"schema\": 1, \"form\": \"graph\", \"nodes\": [\n"
    "{\"name\": \"numa1\", \"kind\": \"numa\", \"number\": 1},\n"
    "{\"name\": \"numa3\", \"kind\": \"numa\", \"number\": 3},\n"
    "{\"name\": \"root\", \"kind\": \"bridge\", \"number\": 0, \"parent\": \"numa1\"},\n"
    "{\"name\": \"sw\", \"kind\": \"pcie-switch\", \"number\": 0, \"parent\": \"root\"},\n"
    "{\"name\": \"b\", \"kind\": \"gpu\", \"number\": 1, \"parent\": \"sw\"},\n"
    "{\"name\": \"a\", \"kind\": \"gpu\", \"number\": 0, \"parent\": \"numa3\"},\n"
    "{\"name\": \"mlx5_0\", \"kind\": \"nic\", \"number\": 0, \"parent\": \"sw\"},\n"
    "{\"name\": \"s0\", \"kind\": \"nvswitch\", \"number\": 0},\n"
    "{\"name\": \"s1\", \"kind\": \"nvswitch\", \"number\": 1}],\n"
    "\"links\": [{\"kind\": \"nvlink\", \"between\": [\"a\", \"s0\"], \"count\": 5},\n"
    "{\"kind\": \"nvlink\", \"between\": [\"s1\", \"a\"], \"count\": 4},\n"
    "{\"kind\": \"nvlink\", \"between\": [\"b\", \"s0\"], \"count\": 5},\n"
    "{\"kind\": \"nvlink\", \"between\": [\"b\", \"s1\"], \"count\": 4}]}";

Test(network, machine_file)
{
    char path[] = "/tmp/machineXXXXXX", *rest;
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, machine, sizeof machine - 1), (ssize_t)sizeof machine - 1);
    close(fd);
    rest = mem_printf(", \"machine\": \"%s\"" NET("ib", "1", "400", ""), path);
    struct network *network = build("H100", 2, 2, rest, NET_OWN, NULL);
    /* all switches as one; nine links of 25 GB/s each */
    char *text = way_text(network, 0, 1, 0);
    cr_expect_str_eq(text, "host0/a nvlink out, host0/b nvlink in");
    cr_expect_float_eq(least_GBps(network, 0, 1, 0), 9 * 25, 1e-9);
    free(text);
    /* the bridge is no limit; `a` reaches the NIC by `b` */
    text = way_text(network, 0, 3, 0);
    cr_expect_str_eq(text, "host0/a nvlink out, host0/b nvlink in, host0/b pcie out, "
                           "host0/mlx5_0 pcie in, host0/mlx5_0 out, host1/mlx5_0 in, "
                           "host1/mlx5_0 pcie out, host1/b pcie in");
    free(text);
    const struct graph *graph = network_host(network);
    cr_expect_eq(graph->nwarnings, 4); /* PCIe, NVLink, the NIC, sockets */
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < 4; k++)
            if (i != k) check_way(network, i, k, 0, true);
    network_free(network);
    free(rest);
    /* numbers that do not fit the file */
    struct topo topo;
    struct doc doc;
    struct err err = ERR_INIT;
    rest = mem_printf(", \"machine\": \"%s\"" NET("ib", "3", "400", ""), path);
    cr_expect_eq(parse(&topo, &doc, "H100", 2, 4, rest, &err), 0);
    cr_expect_null(network_build(&topo, line, NET_OWN, NULL, &err));
    cr_expect(err.count == 2 && holds(err.text, "has 2 gpus|is 4|has 1 nics|is 3"), "%s", err.text);
    err_release(&err);
    topo_release(&topo);
    doc_release(&doc);
    free(rest);
    unlink(path);
}
