/* SPDX-License-Identifier: Apache-2.0
 * NCCL's and RCCL's topology files: machines as the libraries and the clouds write them
 * (tests/cases/nccl) become the graph that they are; what is missing or made up is a warning with
 * its line, and what is broken one sentence with its line. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/nccl_xml.h"

static const double GEN2_X16 = 8, GEN3_X16 = 15.754, GEN4_X16 = 31.508, GEN5_X16 = 63.015;

static char *load(const char *name)
{
    char *path = mem_printf("tests/cases/nccl/%s", name);
    FILE *from = fopen(path, "rb");
    cr_assert_not_null(from, "%s", path);
    char *text = mem_calloc(1 << 20, 1);
    size_t bytes = fread(text, 1, (1 << 20) - 1, from);
    cr_assert_gt(bytes, 0);
    fclose(from);
    free(path);
    return text;
}

/* Reads a text that must be accepted. */
static struct graph accept_text(const char *text)
{
    struct err err = ERR_INIT;
    struct graph graph;
    cr_assert(nccl_xml_is(text, strlen(text)));
    cr_assert_eq(nccl_xml_read(&graph, "t.xml", text, strlen(text), &err), 0, "%s", err.text);
    cr_assert_eq(err.count, 0);
    cr_assert_eq(graph_check(&graph, "t.xml", &err), 0, "%s", err.text);
    return graph;
}

static struct graph accept(const char *name)
{
    char *text = load(name);
    struct graph graph = accept_text(text);
    free(text);
    return graph;
}

/* The n-th (from 0) `from` of a text becomes `to`. */
static char *edited(const char *text, unsigned n, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    for (; n && at; n--) {
        at = strstr(at + 1, from);
    }
    cr_assert_not_null(at, "%s", from);
    return mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* Refuses a text with one sentence that begins with `starts` and holds `holds`. */
static void refuse_text(const char *text, size_t bytes, const char *starts, const char *holds)
{
    struct err err = ERR_INIT;
    struct graph graph;
    cr_assert_eq(nccl_xml_read(&graph, "t.xml", text, bytes, &err), -1, "%s", holds);
    cr_expect_eq(err.count, 1, "%s", err.text);
    cr_expect_eq(err.code, ERR_USAGE);
    cr_expect_eq(strncmp(err.text, starts, strlen(starts)), 0, "%s: %s", starts, err.text);
    cr_expect_not_null(strstr(err.text, holds), "%s: %s", holds, err.text);
    cr_expect_eq(graph.nnodes + graph.nlinks + graph.nwarnings, 0);
    err_release(&err);
}

static void refuse(const char *name, unsigned n, const char *from, const char *to,
                   const char *starts, const char *holds)
{
    char *text = load(name), *bad = edited(text, n, from, to);
    refuse_text(bad, strlen(bad), starts, holds);
    free(bad);
    free(text);
}

/* How many warnings hold a text. */
static unsigned warned(const struct graph *graph, const char *holds)
{
    unsigned n = 0;
    for (size_t i = 0; i < graph->nwarnings; i++) {
        n += strstr(graph->warnings[i], holds) != NULL;
    }
    return n;
}

static void expect_warnings(const struct graph *graph, size_t n)
{
    for (size_t i = 0; i < graph->nwarnings; i++) {
        cr_expect_eq(strncmp(graph->warnings[i], "t.xml:", 6), 0, "%s", graph->warnings[i]);
    }
    cr_expect_eq(graph->nwarnings, n, "%zu, of which the first is %s", graph->nwarnings,
                 graph->nwarnings ? graph->warnings[0] : "none");
}

static uint32_t count(const struct graph *graph, enum graph_kind kind)
{
    uint32_t n = 0;
    for (size_t i = 0; i < graph->nnodes; i++) {
        n += graph->nodes[i].kind == kind;
    }
    return n;
}

static uint32_t node(const struct graph *graph, enum graph_kind kind, uint32_t number)
{
    uint32_t at = graph_find(graph, kind, number);
    cr_assert_neq(at, GRAPH_NONE, "%s %" PRIu32, graph_kind_name(kind), number);
    return at;
}

static const struct graph_node *gpu(const struct graph *graph, uint32_t number)
{
    return &graph->nodes[node(graph, GRAPH_ACCEL, number)];
}

static const struct graph_node *nic(const struct graph *graph, uint32_t number)
{
    return &graph->nodes[node(graph, GRAPH_NIC, number)];
}

static const struct graph_node *above(const struct graph *graph, const struct graph_node *below)
{
    return &graph->nodes[below->parent];
}

static uint32_t numa_of(const struct graph *graph, uint32_t gpu_number)
{
    return graph->nodes[graph_numa(graph, node(graph, GRAPH_ACCEL, gpu_number))].number;
}

static enum graph_near near(const struct graph *graph, uint32_t gpu_number, enum graph_kind kind,
                            uint32_t number)
{
    return graph_near(graph, node(graph, GRAPH_ACCEL, gpu_number), node(graph, kind, number));
}

/* Links of a kind that end at a node, each counted as often as it is bonded. */
static uint32_t links_of(const struct graph *graph, enum graph_via via, uint32_t at)
{
    uint32_t n = 0;
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        n += link->via == via && (link->a == at || link->b == at) ? link->count : 0;
    }
    return n;
}

static void near_to(double value, double wanted)
{
    cr_expect(fabs(value - wanted) < 1e-3 * wanted, "%g, not %g", value, wanted);
}

/* ---- clouds: bare PCI functions ---- */

Test(nccl_xml, E14_first_functions_by_class_in_bus_order)
{
    struct graph graph = accept("cloud-a100.xml");
    static const char *const gpus[] = {"0001:00:00.0", "0002:00:00.0", "0003:00:00.0",
                                       "0004:00:00.0", "000b:00:00.0", "000c:00:00.0",
                                       "000d:00:00.0", "000e:00:00.0"};
    static const uint32_t numa[] = {1, 1, 0, 0, 3, 3, 2, 2};
    cr_expect_eq(count(&graph, GRAPH_ACCEL), 8);
    cr_expect_eq(count(&graph, GRAPH_NIC), 8);
    cr_expect_eq(count(&graph, GRAPH_PCIE), 4);
    cr_expect_eq(count(&graph, GRAPH_NUMA), 4);
    for (uint32_t g = 0; g < 8; g++) {
        cr_expect_str_eq(gpu(&graph, g)->address, gpus[g]);
        cr_expect_eq(numa_of(&graph, g), numa[g]);
        cr_expect_eq(gpu(&graph, g)->address[3] == '1' && g, 0);
        near_to(gpu(&graph, g)->up_GBps, GEN4_X16);
        near_to(above(&graph, gpu(&graph, g))->up_GBps, GEN4_X16);
        cr_expect_eq(near(&graph, g, GRAPH_NIC, g), GRAPH_PIX, "%" PRIu32, g);
        cr_expect_eq(near(&graph, g, GRAPH_NIC, (g + 4) % 8), GRAPH_SYS);
    }
    cr_expect_eq(near(&graph, 0, GRAPH_ACCEL, 1), GRAPH_PIX);
    cr_expect_eq(near(&graph, 1, GRAPH_ACCEL, 2), GRAPH_SYS);
    cr_expect_str_eq(graph.nodes[node(&graph, GRAPH_NUMA, 1)].cpus, "24-47");
    cr_expect_eq(links_of(&graph, GRAPH_SOCKET, node(&graph, GRAPH_NUMA, 0)), 3);
    cr_expect_eq(warned(&graph, "virtual bridge ffff:ff:0"), 4);
    expect_warnings(&graph, 4);
    graph_release(&graph);
}

Test(nccl_xml, E14_second_no_speed_and_links_to_itself)
{
    struct graph graph = accept("cloud-self-link.xml");
    cr_expect_eq(count(&graph, GRAPH_ACCEL), 2);
    cr_expect_eq(count(&graph, GRAPH_NVSWITCH), 1);
    cr_expect_eq(graph_nvlinks(&graph, node(&graph, GRAPH_ACCEL, 0), node(&graph, GRAPH_ACCEL, 1)),
                 12);
    near_to(gpu(&graph, 0)->up_GBps, GEN3_X16);
    cr_expect_str_eq(nic(&graph, 0)->name, "eth0");
    cr_expect_eq(nic(&graph, 0)->rate_Gbps, 100);
    cr_expect_eq(near(&graph, 0, GRAPH_NIC, 0), GRAPH_PHB);
    cr_expect_eq(near(&graph, 1, GRAPH_NIC, 0), GRAPH_SYS);
    cr_expect_eq(warned(&graph, "8 GT/s and 16 lanes are taken"), 2);
    cr_expect_eq(warned(&graph, "t.xml:5: 2 accelerator(s) have links whose other end is not"), 1);
    expect_warnings(&graph, 3);
    graph_release(&graph);
}

Test(nccl_xml, E14_third_both_with_the_same_affinity)
{
    struct graph graph = accept("cloud-same-affinity.xml");
    cr_expect_eq(warned(&graph, "t.xml:6: the affinity 0000ffff,0000ffff of numa1 overlaps with "
                                "that of numa0 (line 2)"),
                 1);
    expect_warnings(&graph, 1);
    for (uint32_t n = 0; n < 2; n++) {
        cr_expect_str_eq(graph.nodes[node(&graph, GRAPH_NUMA, n)].cpus, "0-15,32-47");
    }
    graph_release(&graph);
    char *text = load("cloud-same-affinity.xml");
    char *fixed = edited(text, 1, "0000ffff,0000ffff", "ffff0000,ffff0000");
    graph = accept_text(fixed);
    expect_warnings(&graph, 0);
    cr_expect_str_eq(graph.nodes[node(&graph, GRAPH_NUMA, 1)].cpus, "16-31,48-63");
    graph_release(&graph);
    free(fixed);
    free(text);
}

Test(nccl_xml, numa_1_3_5_7)
{
    struct graph graph = accept("cloud-numa-1357.xml");
    cr_expect_eq(count(&graph, GRAPH_NUMA), 4);
    cr_expect_eq(graph_find(&graph, GRAPH_NUMA, 0), GRAPH_NONE);
    for (uint32_t g = 0; g < 8; g++) {
        cr_expect_eq(numa_of(&graph, g), 2 * (g / 2) + 1);
        cr_expect_eq(near(&graph, g, GRAPH_NIC, g), GRAPH_PIX);
    }
    cr_expect_str_eq(graph.nodes[node(&graph, GRAPH_NUMA, 3)].cpus, "48-63,176-191");
    expect_warnings(&graph, 0);
    graph_release(&graph);
}

/* ---- NVLink ---- */

/* Both published numberings: the same cube mesh, relabelled. */
static void check_cube(const char *name, const char *const *row)
{
    struct graph graph = accept(name);
    expect_warnings(&graph, 0);
    for (uint32_t a = 0; a < 8; a++) {
        uint32_t at = node(&graph, GRAPH_ACCEL, a);
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, at), 6);
        for (uint32_t b = 0; b < 8; b++) {
            if (a == b) continue;
            uint32_t links = graph_nvlinks(&graph, at, node(&graph, GRAPH_ACCEL, b));
            cr_expect_eq(links, (uint32_t)(row[a][b] - '0'), "%s: %u to %u: %u", name, a, b, links);
        }
        near_to(gpu(&graph, a)->up_GBps, GEN3_X16);
        cr_expect_eq(near(&graph, a, GRAPH_NIC, a / 2), GRAPH_PIX);
        cr_expect_eq(near(&graph, a, GRAPH_ACCEL, a ^ 1), GRAPH_PIX);
        cr_expect_eq(near(&graph, a, GRAPH_ACCEL, a ^ 2), GRAPH_PHB);
        cr_expect_eq(near(&graph, a, GRAPH_ACCEL, a ^ 4), GRAPH_SYS);
    }
    graph_release(&graph);
}

Test(nccl_xml, E15_a_dgx1_both_numberings)
{
    static const char *const one[] = {"01122000", "10210200", "12020010", "21200001",
                                      "20000112", "02001021", "00101202", "00012120"};
    static const char *const other[] = {"02211000", "20120100", "21010020", "12100002",
                                        "10000221", "01002012", "00202101", "00021210"};
    check_cube("dgx1-v100.xml", one);
    check_cube("dgx1-v100-relabelled.xml", other);
}

Test(nccl_xml, E15_a_ends_that_differ)
{
    /* the first count="2" of the file is that of gpu0 to gpu3 */
    refuse("dgx1-v100.xml", 0, "0000:0b:00.0\" count=\"2\"", "0000:0b:00.0\" count=\"1\"",
           "t.xml:37: ",
           "gpu3 (0000:0b:00.0) has 2 nvlink link(s) to gpu0 (0000:06:00.0), which "
           "has 1 (line 8) back; both must say the same");
    refuse("dgx1-v100.xml", 0, "<nvlink target=\"0000:85:00.0\" count=\"2\" tclass=\"0x030200\"/>",
           "", "t.xml:",
           "gpu4 (0000:85:00.0) has 2 nvlink link(s) to gpu0 (0000:06:00.0), which "
           "has 0 back");
}

Test(nccl_xml, E15_b_dgx_a100)
{
    struct graph graph = accept("dgx-a100.xml");
    static const uint32_t numa[] = {3, 1, 7, 5};
    static const char *const cpus[] = {"48-63,176-191", "16-31,144-159", "112-127,240-255",
                                       "80-95,208-223"};
    expect_warnings(&graph, 0);
    cr_expect_eq(count(&graph, GRAPH_NVSWITCH), 6);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t at = node(&graph, GRAPH_ACCEL, g);
        cr_expect_eq(numa_of(&graph, g), numa[g / 2]);
        cr_expect_str_eq(graph.nodes[graph_numa(&graph, at)].cpus, cpus[g / 2]);
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, at), 12);
        cr_expect_eq(graph_nvlinks(&graph, at, node(&graph, GRAPH_ACCEL, (g + 3) % 8)), 12);
        cr_expect_eq(near(&graph, g, GRAPH_NIC, g), GRAPH_PIX);
    }
    cr_expect_eq(count(&graph, GRAPH_NIC), 8);
    cr_expect_str_eq(nic(&graph, 0)->name, "mlx5_0+mlx5_1");
    cr_expect_eq(nic(&graph, 0)->rate_Gbps, 300);
    cr_expect_eq(nic(&graph, 1)->rate_Gbps, 200);
    cr_expect_str_eq(graph.nodes[node(&graph, GRAPH_NVSWITCH, 5)].address, "0000:c9:00.0");
    graph_release(&graph);
}

Test(nccl_xml, E15_c_switch_that_cannot_be_seen)
{
    static const char *const targets[] = {"-1", "fffffff:ffff:ff", "0000:3b:00.0"};
    char *text = load("hidden-switch.xml");
    for (size_t i = 0; i < 3; i++) {
        char *other = edited(text, 0, "-1", targets[i]);
        struct graph graph = accept_text(other);
        uint32_t at = node(&graph, GRAPH_NVSWITCH, 0);
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, at), 1);
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, node(&graph, GRAPH_ACCEL, 0)), 1);
        cr_expect_null(graph.nodes[at].address);
        cr_expect_eq(warned(&graph, "taken for links to one switch"), 1);
        expect_warnings(&graph, 1);
        graph_release(&graph);
        free(other);
    }
    free(text);
}

Test(nccl_xml, E15_d_h100_uneven_switches_and_a_nic_of_width_0)
{
    struct graph graph = accept("h100-4545.xml");
    cr_expect_eq(count(&graph, GRAPH_NVSWITCH), 4);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t at = node(&graph, GRAPH_ACCEL, g);
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, at), 18);
        cr_expect_eq(graph_nvlinks(&graph, at, node(&graph, GRAPH_ACCEL, (g + 1) % 8)), 18);
        near_to(gpu(&graph, g)->up_GBps, GEN5_X16);
    }
    near_to(nic(&graph, 0)->up_GBps, GEN5_X16); /* width 0 is 16 */
    cr_expect_eq(warned(&graph, "of 0000:0c:00.0: as NCCL does, 16 lanes are taken"), 1);
    expect_warnings(&graph, 1);
    graph_release(&graph);
}

Test(nccl_xml, virtual_bridges_of_5_GTps)
{
    struct graph graph = accept("h100-virtual-bridges.xml");
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t at = node(&graph, GRAPH_ACCEL, g);
        const struct graph_node *inner = above(&graph, gpu(&graph, g));
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, at), 18);
        near_to(inner->up_GBps, GEN5_X16);
        near_to(above(&graph, inner)->up_GBps, GEN5_X16);
        cr_expect_eq(near(&graph, g, GRAPH_NIC, 2 * g), GRAPH_PXB);
        cr_expect_eq(nic(&graph, 2 * g)->rate_Gbps, 360); /* two ports of 180 */
    }
    uint32_t last = 0;
    for (size_t i = 0; i < graph.nlinks; i++) { /* 4 + 5 + 5 + 4 */
        if (graph.links[i].via == GRAPH_NVLINK) last |= 1U << graph.links[i].count;
    }
    cr_expect_eq(last, 1U << 4 | 1U << 5);
    cr_expect_eq(warned(&graph, "t.xml:3: the rate of the virtual bridge 0000:08:00.0, 8.00 GB/s, "
                                "is made up; the fastest link below has 63.02 GB/s"),
                 1);
    cr_expect_eq(warned(&graph, "virtual bridge"), 8);
    expect_warnings(&graph, 8);
    graph_release(&graph);
}

Test(nccl_xml, real_bridges_keep_their_rates)
{
    char *text = load("dgx1-v100.xml");
    char *slow = edited(text, 0, "link_speed=\"8 GT/s\"", "link_speed=\"5 GT/s\"");
    struct graph graph = accept_text(slow);
    near_to(above(&graph, gpu(&graph, 0))->up_GBps, GEN2_X16); /* Gen2 above Gen3 is possible */
    expect_warnings(&graph, 0);
    graph_release(&graph);
    free(slow);
    free(text);
}

Test(nccl_xml, E15_e_six_cards_without_numa)
{
    struct graph graph = accept("six-cards.xml");
    static const char *const bus[] = {"0000:21:00.0", "0000:01:00.0", "0000:61:00.0",
                                      "0000:41:00.0", "0000:c1:00.0", "0000:81:00.0"};
    cr_expect_eq(count(&graph, GRAPH_ACCEL), 6);
    for (uint32_t g = 0; g < 6; g++) { /* cards by dev, not by bus */
        cr_expect_str_eq(gpu(&graph, g)->address, bus[g]);
        cr_expect_eq(numa_of(&graph, g), 0);
        cr_expect_eq(near(&graph, g, GRAPH_ACCEL, (g + 1) % 6), GRAPH_PHB);
        near_to(gpu(&graph, g)->up_GBps, GEN4_X16);
    }
    cr_expect_eq(warned(&graph, "t.xml:2: numaid -1"), 1);
    expect_warnings(&graph, 1);
    graph_release(&graph);
}

/* ---- others ---- */

Test(nccl_xml, mi300x_of_rccl)
{
    struct graph graph = accept("mi300x.xml");
    expect_warnings(&graph, 0);
    cr_expect_eq(graph.nlinks, 28 + 1); /* and the sockets */
    for (uint32_t g = 0; g < 8; g++) {
        cr_expect_eq(links_of(&graph, GRAPH_XGMI, node(&graph, GRAPH_ACCEL, g)), 7);
        cr_expect_eq(near(&graph, g, GRAPH_NIC, g), GRAPH_PXB);
        cr_expect_eq(near(&graph, g, GRAPH_ACCEL, (g + 4) % 8), GRAPH_SYS);
        cr_expect_eq(nic(&graph, g)->rate_Gbps, 400);
    }
    graph_release(&graph);
    refuse("mi300x.xml", 0, "<xgmi target=\"0000:15:00.0\" count=\"1\" tclass=\"0x120000\"/>", "",
           "t.xml:", "gpu1 (0000:15:00.0) has 1 xgmi link(s) to gpu0 (0000:0c:00.0), which has 0");
}

Test(nccl_xml, grace_hopper_c2c)
{
    struct graph graph = accept("grace-hopper.xml");
    expect_warnings(&graph, 0);
    for (uint32_t g = 0; g < 2; g++) {
        uint32_t at = node(&graph, GRAPH_ACCEL, g);
        cr_expect_eq(links_of(&graph, GRAPH_C2C, at), 10);
        cr_expect_eq(links_of(&graph, GRAPH_C2C, node(&graph, GRAPH_NUMA, g)), 10);
        cr_expect_eq(links_of(&graph, GRAPH_NVLINK, at), 18);
    }
    for (size_t i = 0; i < graph.nlinks; i++) {
        if (graph.links[i].via == GRAPH_C2C) near_to(graph.links[i].GBps, 447.12);
    }
    cr_expect_str_eq(graph.nodes[node(&graph, GRAPH_NUMA, 1)].cpus, "72-143");
    graph_release(&graph);
}

/* lanes x GT/s x encoding / 8 */
Test(nccl_xml, rates_of_the_wire)
{
    static const struct {
        const char *speed, *width;
        double GBps;
    } rows[] = {{"2.5 GT/s PCIe", "16", 4},      {"5.0 GT/s PCIe", "8", 4},
                {"8.0 GT/s PCIe", "16", 15.754}, {"16.0 GT/s PCIe", "4", 7.877},
                {"32 GT/s", "16", 63.015},       {"64.0 GT/s PCIe", "16", 121},
                {"Unknown", "16", 15.754},       {"8 GT/s", "63", 15.754}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = mem_printf("<?xml version=\"1.0\"?><system version=\"1\"><cpu numaid=\"0\">"
                                "<pci busid=\"06:00.0\" class=\"0x030000\" link_speed=\"%s\" "
                                "link_width=\"%s\"/></cpu></system>",
                                rows[i].speed, rows[i].width);
        struct graph graph = accept_text(text);
        near_to(gpu(&graph, 0)->up_GBps, rows[i].GBps);
        expect_warnings(&graph, i >= 6);
        graph_release(&graph);
        free(text);
    }
}

Test(nccl_xml, classes)
{
    struct graph graph =
        accept_text("<system version=\"1\"><cpu numaid=\"0\">"
                    "<pci busid=\"1:0.0\" class=\"0x030000\" link_speed=\"8\" link_width=\"8\"/>"
                    "<pci busid=\"2:0.0\" class=\"0x038000\" link_speed=\"8\" link_width=\"8\"/>"
                    "<pci busid=\"3:0.0\" class=\"0x120000\" link_speed=\"8\" link_width=\"8\"/>"
                    "<pci busid=\"4:0.0\" class=\"0x020700\" link_speed=\"8\" link_width=\"8\"/>"
                    "<pci busid=\"5:0.0\" class=\"0x060400\" link_speed=\"8\" link_width=\"8\"/>"
                    "<pci busid=\"6:0.0\" class=\"0x068000\" link_speed=\"8\" link_width=\"8\"/>"
                    "</cpu></system>");
    cr_expect_eq(count(&graph, GRAPH_ACCEL), 3);
    cr_expect_eq(count(&graph, GRAPH_NIC), 1);
    cr_expect_eq(count(&graph, GRAPH_PCIE), 1);
    cr_expect_eq(count(&graph, GRAPH_NVSWITCH), 1);
    expect_warnings(&graph, 0);
    graph_release(&graph);
}

Test(nccl_xml, warnings)
{
    static const struct {
        const char *file, *from, *to, *says;
    } rows[] = {
        {"six-cards.xml", "dev=\"3\"", "dev=\"2\"", "does not tell all gpus apart"},
        {"six-cards.xml", "speed=\"10000\"", "speed=\"-1\"", "port eno1 has no speed"},
        {"six-cards.xml", "<nic>", "<new/><nic>", "<new> is not known"},
        {"six-cards.xml", "version=\"1\"", "version=\"3\"", "version 3 of the format"},
        {"six-cards.xml", "class=\"0x030000\"", "class=\"0x010802\"", NULL}, /* <gpu> decides */
        {"cloud-a100.xml", "class=\"0x020700\"", "class=\"0x010802\"",
         "t.xml:5: 0103:00:00.0 of class 0x010802 is neither"},
        {"grace-hopper.xml", "target=\"0009:01:00.0\"", "target=\"0007:01:00.0\"", NULL},
        {"hidden-switch.xml", "\"-1\" count=\"1\" tclass=\"0x068000\"",
         "\"0000:3c:00.0\" count=\"1\" tclass=\"0x030200\"", "a device that is not in the file"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = load(rows[i].file), *other = edited(text, 0, rows[i].from, rows[i].to);
        struct err err = ERR_INIT;
        struct graph graph;
        int bad = nccl_xml_read(&graph, "t.xml", other, strlen(other), &err);
        if (strcmp(rows[i].file, "grace-hopper.xml") == 0) { /* the other end still says 18 */
            cr_expect_eq(bad, -1);
            cr_expect_not_null(strstr(err.text, "which has 0 back"), "%s", err.text);
        } else {
            cr_assert_eq(bad, 0, "%s", err.text);
            if (rows[i].says) cr_expect_eq(warned(&graph, rows[i].says), 1, "%s", rows[i].says);
            cr_expect_eq(count(&graph, GRAPH_ACCEL), i < 5 ? 6 : i == 5 ? 8 : 1);
        }
        err_release(&err);
        graph_release(&graph);
        free(other);
        free(text);
    }
}

Test(nccl_xml, no_accelerators_in_the_file)
{
    struct graph graph = accept_text("<system version=\"1\"><cpu numaid=\"0\"/></system>");
    cr_expect_eq(warned(&graph, "no accelerators"), 1);
    expect_warnings(&graph, 1);
    graph_release(&graph);
}

Test(nccl_xml, faults)
{
    static const struct {
        const char *from, *to, *starts, *says;
    } rows[] = {
        {"</cpu>", "", "t.xml:10: ", "<cpu> stands at the wrong place"},
        {"</system>", "", "t.xml:35: ", "no XML: no element found"},
        {"</system>", "</cpu>", "t.xml:34: ", "no XML: mismatched tag"},
        {"<system version=\"1\">", "<!DOCTYPE a><system version=\"1\">", "t.xml:1: ", "a DOCTYPE"},
        {"<system version=\"1\">", "<graphs version=\"1\">", "t.xml:1: ", "NCCL_TOPO_DUMP_FILE"},
        {"<system version=\"1\">", "<algo>", "t.xml:1: ", "a schedule of MSCCL"},
        {"<system version=\"1\">", "<svg>", "t.xml:1: ", "no topology of NCCL"},
        {"numaid=\"1\"", "", "t.xml:10: ", "lacks the attribute \"numaid\""},
        {"numaid=\"1\"", "numaid=\"0\"", "t.xml:10: ", "numaid 0 stands in line 2 already"},
        {"numaid=\"3\"", "numaid=\"2\"", "t.xml:26: ", "numaid 2 stands in line 18 already"},
        {"numaid=\"1\"", "numaid=\"one\"", "t.xml:10: ", "from -1 to 1023"},
        {"affinity=\"0000", "affinity=\"x", "t.xml:2: ", "is no mask"},
        {"0001:00:00.0", "0001:00:", "t.xml:12: ", "busid=\"0001:00:\" is none"},
        {"0001:00:00.0", "zz", "t.xml:12: ", "busid=\"zz\" is none"},
        {"0001:00:00.0", "0003:00:00.0", "t.xml:12: ", "stands in line 4 already"},
        {"busid=\"0001:00:00.0\"", "", "t.xml:12: ", "lacks the attribute \"busid\""},
        {"0x030200", "red", "t.xml:4: ", "no class of PCI"},
        {"link_width=\"16\"", "link_width=\"wide\"", "t.xml:3: ", "link_width=\"wide\""},
        {"<cpu numaid=\"1\"", "<pci busid=\"1:1.0\"/><cpu numaid=\"1\"",
         "t.xml:10: ", "<pci> stands at the wrong place"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        refuse("cloud-a100.xml", 0, rows[i].from, rows[i].to, rows[i].starts, rows[i].says);
    }
}

Test(nccl_xml, faults_of_structure)
{
    static const struct {
        const char *inside, *starts, *says;
    } rows[] = {
        {"<cpu numaid=\"0\" host_hash=\"0x1\"/>\n<cpu numaid=\"1\" host_hash=\"0x2\"/>",
         "t.xml:2: ", "host_hash=\"0x2\" is a second host"},
        {"<cpu numaid=\"0\"><pci busid=\"1:2.0\" class=\"0x020000\">\n"
         "<pci busid=\"1:3.0\" class=\"0x030000\"/></pci></cpu>",
         "t.xml:2: ", "stands below 1:2.0 (line 1), which is no bridge"},
        {"<cpu numaid=\"0\"><pci busid=\"1:2.0\" class=\"0x030000\"><gpu>\n"
         "<nvlink target=\"1:3.0\"/></gpu></pci><pci busid=\"1:3.0\" class=\"0x020000\"/></cpu>",
         "t.xml:2: ", "the target 1:3.0 (line 2) is neither an accelerator nor a switch"},
        {"<cpu numaid=\"0\"><pci busid=\"1:2.0\"><gpu>\n<nvlink count=\"2\"/></gpu></pci></cpu>",
         "t.xml:2: ", "target=\"\" is no bus id"},
        {"<cpu numaid=\"0\"><pci busid=\"1:2.0\"><gpu>\n"
         "<nvlink target=\"-1\" count=\"0\"/></gpu></pci></cpu>",
         "t.xml:2: ", "count=\"0\" is no whole number from 1 to 65535"},
        {"<cpu numaid=\"0\"/>\n<cpu numaid=\"1\" affinity=\"f,f,fffffffff,f\"/>",
         "t.xml:2: ", "is no mask"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = mem_printf("<system version=\"1\">%s</system>", rows[i].inside);
        refuse_text(text, strlen(text), rows[i].starts, rows[i].says);
        free(text);
    }
}

/* All faults of a file at once. */
Test(nccl_xml, faults_are_listed_together)
{
    struct err err = ERR_INIT;
    struct graph graph;
    const char *text = "<system version=\"1\">\n<cpu numaid=\"5000\">\n<pci class=\"0x030200\"/>\n"
                       "<pci busid=\"?\" class=\"x\"/>\n</cpu></system>";
    cr_assert_eq(nccl_xml_read(&graph, "t.xml", text, strlen(text), &err), -1);
    cr_expect_eq(err.count, 4, "%s", err.text);
    err_release(&err);
}

Test(nccl_xml, too_deep)
{
    char *text = mem_calloc(1 << 20, 1);
    strcpy(text, "<system version=\"1\"><cpu numaid=\"0\">\n");
    for (unsigned i = 0; i < 1000; i++) {
        char *pci = mem_printf("<pci busid=\"0:%x:%x.0\" class=\"0x060400\">\n", i / 16, i % 16);
        strcat(text, pci);
        free(pci);
    }
    refuse_text(text, strlen(text), "t.xml:64: ", "more than 64 deep");
    free(text);
}

Test(nccl_xml, too_long)
{
    size_t bytes = (16 << 20) + 1;
    char *text = mem_calloc(bytes, 1);
    memset(text, ' ', bytes);
    refuse_text(text, bytes, "t.xml:1: ", "at most 16777216");
    free(text);
}

/* Any beginning of a file is refused with one sentence, or it is the whole. */
Test(nccl_xml, cut_off)
{
    char *text = load("hidden-switch.xml");
    size_t bytes = strlen(text);
    for (size_t n = 0; n + 1 < bytes; n++) { /* the last is a newline */
        refuse_text(text, n, "t.xml:", "no XML: ");
    }
    free(text);
}

Test(nccl_xml, is)
{
    static const struct {
        const char *text;
        bool is;
    } rows[] = {{"<system>", true},   {"\n \t<?xml?>", true}, {"\xef\xbb\xbf<system>", true},
                {"", false},          {"  ", false},          {"{\"form\": \"graph\"}", false},
                {"\tGPU0\tX", false}, {"\xef\xbb", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(nccl_xml_is(rows[i].text, strlen(rows[i].text)), rows[i].is, "%zu", i);
    }
}
