/* SPDX-License-Identifier: Apache-2.0
 * Topology files: the shipped ones read and mean what they say, names and sizes, and that each
 * fault of a file is one sentence with its line. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/ship.h"
#include "net/topo.h"

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

TestSuite(topo, .init = setup, .fini = teardown);

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

/* ---- accelerators ---- */

Test(topo, accelerators)
{
    struct err err = ERR_INIT;
    static const struct {
        const char *name, *class_name;
        double memory_GB, memory_GBps, bf16, fp8, line;
        uint32_t sms;
    } rows[] = {
        {"V100-32GB", "V100", 32, 900, 0, 0, 150, 80},
        {"a100", "A100", 80, 2039, 312, 0, 300, 108},
        {"A100-40GB", "A100", 40, 1555, 312, 0, 300, 108},
        {"H100-SXM", "H100", 80, 3350, 989.4, 1978.9, 450, 132},
        {"H100-96GB-HBM2e", "H100-500W", 96, 2400, 989.4, 1978.9, 450, 132},
        {"H200", "H200", 141, 4800, 989.4, 1978.9, 450, 132},
        {"H800", "H100", 80, 3350, 989.4, 1978.9, 200, 132},
        {"B200", "B200", 180, 8000, 2250, 4500, 900, 148},
        {"GB200", "B200", 186, 8000, 2450, 4900, 900, 152},
        {"B300", "B300", 288, 8000, 2250, 4500, 900, 148},
        {"GB300", "B300", 288, 8000, 2500, 5000, 900, 152},
        {"MI300X", "MI300", 192, 5300, 1307.4, 2614.9, 448, 304},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct accel *a = accel_find(&accels, rows[i].name, &err);
        cr_assert_not_null(a, "%s", err.text);
        cr_expect_str_eq(a->class_name, rows[i].class_name);
        cr_expect_eq(a->memory_GB, rows[i].memory_GB, "%s", rows[i].name);
        cr_expect_eq(a->memory_GBps, rows[i].memory_GBps, "%s", rows[i].name);
        cr_expect_eq(a->peak_TF[PEAK_BF16], rows[i].bf16, "%s", rows[i].name);
        cr_expect_eq(a->peak_TF[PEAK_FP8], rows[i].fp8, "%s", rows[i].name);
        cr_expect_eq(a->line_GBps, rows[i].line, "%s", rows[i].name);
        cr_expect_eq(a->sms, rows[i].sms, "%s", rows[i].name);
    }
    cr_expect_null(accel_find(&accels, "H1OO", &err));
    cr_expect(holds(err.text, "unknown accelerator \"H1OO\"|MI300X|V100-32GB"), "%s", err.text);
    err_release(&err);
}

/* A source is a key of "sources" or a sentence, and no key stands there unused. */
Test(topo, accelerator_sources)
{
    struct err err = ERR_INIT;
    struct doc doc;
    char *path = ship_find("topologies", "accelerators", ".json");
    cr_assert_eq(doc_read(&doc, path, &err), 0, "%s", err.text);
    json_t *sources = json_object_get(doc.root, "sources"), *value, *row;
    json_t *rows = json_object_get(doc.root, "accelerators");
    const char *key;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        json_object_foreach(row, key, value)
        {
            const char *source = json_string_value(json_array_get(value, 1));
            if (!json_is_number(json_array_get(value, 0))) continue;
            cr_expect(json_object_get(sources, source) || strchr(source, ' '), "%s", source);
            if (json_object_get(sources, source)) json_object_set_new(sources, source, json_true());
        }
    }
    json_object_foreach(sources, key, value) cr_expect(json_is_true(value), "%s is unused", key);
    doc_release(&doc);
    free(path);
}

Test(topo, texts_of_others)
{
    static const struct {
        const char *text, *name;
        double memory_GB;
    } rows[] = {
        {"A100", "A100-80GB", 80},      {"A100", "A100-40GB", 40},
        {"A100", "A100-80GB", 0},       {"A100-40GB", "A100-40GB", 40},
        {"A100-SXM", "A100-80GB", 80},  {"H100 80GB HBM3", "H100-80GB", 80},
        {"V100-32GB", "V100-32GB", 32}, {"H100-96GB-HBM2e", "H100-96GB-HBM2e", 95},
        {"A800-80GB", "A800-80GB", 80}, {"MI250X-GCD", "MI250X-GCD", 64},
        {"GB200", "GB200", 186},        {"H800", "H800", 80},
        {"MI355X", "MI355X", 288},      {"TPUv4", NULL, 32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct accel *a = accel_match(&accels, rows[i].text, rows[i].memory_GB);
        if (rows[i].name)
            cr_expect(a && strcmp(a->name, rows[i].name) == 0, "%s: %s", rows[i].text,
                      a ? a->name : "none");
        else
            cr_expect_null(a);
    }
}

/* ---- shipped files ---- */

static void read_shipped(struct topo *topo, const char *name, uint64_t hosts, uint64_t gpus)
{
    struct err err = ERR_INIT;
    topo_read(topo, &accels, name, hosts, gpus, &err);
    cr_assert_null(err.text, "%s", err.text);
}

Test(topo, shipped)
{
    size_t count = 0;
    char **names = ship_names("topologies", ".json", &count);
    cr_expect_geq(count, 8);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], "accelerators") == 0) continue;
        struct topo topo;
        read_shipped(&topo, names[i], 0, 0);
        cr_expect_str_eq(topo.name, names[i]);
        cr_expect(topo.ring_GBps > 0 && topo.ring_GBps <= topo.line_GBps, "%s", names[i]);
        cr_expect(topo.nic_stated && topo.fabric != FABRIC_UNSTATED, "%s", names[i]);
        cr_expect_not_null(topo.about);
        topo_release(&topo);
    }
    ship_names_free(names);
}

Test(topo, figures)
{
    struct topo t;
    read_shipped(&t, "dgx2x8", 0, 0);
    char *text = topo_describe(&t);
    cr_expect_str_eq(text, "2 hosts x 8 H100-80GB, NVSwitch 450 GB/s, InfiniBand 400 Gb/s per "
                           "accelerator");
    free(text);
    cr_expect_eq(topo_nic_Bps(&t), 50e9);
    cr_expect_eq(topo_domain(&t), 8);
    topo_release(&t);
    read_shipped(&t, "gb200-nvl72", 0, 0);
    cr_expect_eq(topo_gpus(&t), 72);
    cr_expect_eq(topo_domain(&t), 72);
    topo_release(&t);
    read_shipped(&t, "pcie8", 0, 0);
    cr_expect_eq(t.scale_up, SCALE_UP_PCIE_HOST);
    cr_expect_eq(topo_nic_Bps(&t), 12.5e9 / 8);
    topo_release(&t);
    read_shipped(&t, "pcie8-a100", 0, 0);
    cr_expect_eq(t.scale_up, SCALE_UP_PCIE);
    topo_release(&t);
    topo_usual(&t, accel_find(&accels, "GB300", NULL), 512);
    cr_expect(topo_gpus(&t) == 512 && topo_domain(&t) == 72 && !t.nic_stated);
    topo_release(&t);
    topo_usual(&t, accel_find(&accels, "A100", NULL), 12);
    cr_expect(topo_gpus(&t) == 12 && t.per_host == 6);
    topo_release(&t);
}

Test(topo, sizes)
{
    static const struct {
        const char *name;
        uint64_t nodes, gpus, hosts, per_host, domain;
    } rows[] = {
        {"dgx-h100", 0, 0, 1, 8, 8},     {"dgx-h100x16", 0, 0, 16, 8, 8},
        {"dgx-h100", 16, 0, 16, 8, 8},   {"dgx-h100", 0, 16384, 2048, 8, 8},
        {"dgx-h100", 0, 4, 1, 4, 4},     {"dgx-h100", 4, 16, 4, 4, 4},
        {"dgx-h100", 4, 32, 4, 8, 8},    {"dgx-h100", 0, 8, 1, 8, 8},
        {"dgx-h100", 0, 1, 1, 1, 1},     {"gb200-nvl72x2", 0, 0, 36, 4, 72},
        {"gb200-nvl72", 9, 0, 9, 4, 36}, {"gb200-nvl72", 0, 512, 128, 4, 72},
        {"dgx2x8x3", 0, 0, 6, 8, 8},     {"topologies/dgx2x8.json", 0, 0, 2, 8, 8},
        {"dgx2x8.json", 1, 0, 1, 8, 8},  {"dgx1-v100x1", 0, 0, 1, 8, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo t;
        read_shipped(&t, rows[i].name, rows[i].nodes, rows[i].gpus);
        cr_expect(t.hosts == rows[i].hosts && t.per_host == rows[i].per_host &&
                      topo_domain(&t) == rows[i].domain,
                  "%s: %" PRIu64 " x %" PRIu64, rows[i].name, t.hosts, t.per_host);
        topo_release(&t);
    }
}

Test(topo, refused_sizes)
{
    static const struct {
        const char *name;
        uint64_t nodes, gpus;
        const char *says;
    } rows[] = {
        {"dgx-h100", 0, 12, "--gpus: 12|hosts of 8|8 or 16"},
        {"dgx-h100", 4, 10, "--gpus: 10|4 hosts|multiples of 4 up to 32"},
        {"dgx-h100", 4, 40, "--gpus: 40|4 hosts of at most 8|up to 32"},
        {"dgx-h100x2", 4, 0, "--nodes: 4|dgx-h100x2|2 times|one of the two"},
        {"dgx-h100x2", 0, 8, "--gpus: 8|dgx-h100x2"},
        {"dgx-h100x2147483647", 0, 0, "2147483647 hosts of 8|more than 2147483647"},
        {"dgx-h100x99999999999999999999", 0, 0, "unknown topology|dgx-h100"},
        {"dgx-h100x0", 0, 0, "unknown topology"},
        {"dgx-h10", 0, 0, "unknown topology|nearest is dgx-h100|gb200-nvl72"},
        {"", 0, 0, "unknown topology"},
        {"x2", 0, 0, "unknown topology"},
        {"accelerators", 0, 0, "\"form\" is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = ERR_INIT;
        struct topo t;
        cr_expect_eq(topo_read(&t, &accels, rows[i].name, rows[i].nodes, rows[i].gpus, &err), -1);
        cr_expect(holds(err.text, rows[i].says), "%s: %s", rows[i].name, err.text);
        cr_expect_eq(err.code, ERR_USAGE);
        err_release(&err);
    }
}

/* ---- faulty files ---- */

#define HEAD "{\"schema\": 1, \"form\": \"uniform\",\n\"accelerator\": \"A100\",\n"
#define SIZE "\"hosts\": 2, \"accelerators_per_host\": 8"

#define NET(more)                                                                                  \
    ",\n\"network\": {\"kind\": \"ib\", \"nics_per_host\": 8, \"nic_Gbps\": 400, "                 \
    "\"source\": \"s\"" more "}}"

static const struct {
    const char *text;
    unsigned faults;
    const char *says;
} faulty[] = {
    {"", 1, "x.json:1"},
    {"{", 1, "x.json:1: not valid JSON"},
    {"[]", 1, "x.json:1: a topology must be an object"},
    {"{}", 5,
     "\"schema\" is missing|\"form\" is missing|\"hosts\" is missing|"
     "\"accelerators_per_host\" is missing|\"accelerator\" is missing"},
    {"{\"schema\": 1, \"schema\": 1}", 1, "duplicate"},
    {HEAD SIZE ",\n\"hots\": 3}", 1, "x.json:4: unknown member \"hots\": nearest is hosts"},
    {HEAD "\"hosts\": 0, \"accelerators_per_host\": 8}", 1,
     "x.json:3: \"hosts\" is 0|1..2147483647"},
    {HEAD "\"hosts\": -1, \"accelerators_per_host\": 8}", 1, "\"hosts\" is -1"},
    {HEAD "\"hosts\": 2.5, \"accelerators_per_host\": 8}", 1, "\"hosts\" must be a whole number"},
    {HEAD "\"hosts\": \"2\", \"accelerators_per_host\": 8}", 1, "it is a string"},
    {HEAD "\"hosts\": 1e400, \"accelerators_per_host\": 8}", 1, "not valid JSON"},
    {HEAD "\"hosts\": 9223372036854775807, \"accelerators_per_host\": 8}", 1,
     "9223372036854775807"},
    {"{\"schema\": 2, \"form\": \"uniform\", \"accelerator\": \"A100\"," SIZE "}", 1,
     "\"schema\" is 2"},
    {"{\"schema\": 1, \"form\": \"graph\", \"accelerator\": \"A100\"," SIZE "}", 1,
     "unknown form \"graph\"|uniform"},
    {"{\"schema\": 1, \"form\": \"uniform\",\n \"accelerator\": \"A1000\",\n" SIZE "}", 1,
     "x.json:2: unknown accelerator \"A1000\"|A100-80GB"},
    {"{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": 7," SIZE "}", 1, "must be a string"},
    {"{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": {}," SIZE "}", 13,
     "\"name\" is missing|\"sms\" is missing"},
    {HEAD SIZE ",\n\"network\": {\"kind\": \"ib\", \"nics_per_host\": 8, \"nic_Gbps\": 400}}", 1,
     "x.json:4: \"source\" is missing"},
    {HEAD SIZE ",\n\"network\": {\"kind\": \"token-ring\", \"nics_per_host\": 8, \"nic_Gbps\": 0,"
               "\"source\": \"s\"}}",
     2, "unknown kind of network \"token-ring\"|roce|\"nic_Gbps\" is 0"},
    {HEAD SIZE ",\n\"network\": {\"kind\": \"ib\", \"nics_per_host\": 8, \"nic_Gbps\": 400,"
               "\"oversubscribed\": 0.5, \"source\": \"s\"}}",
     1, "\"oversubscribed\" is 0.5, it must be in 1..1000"},
    {HEAD SIZE ",\n\"network\": {}}", 4, "\"source\"|\"kind\"|\"nics_per_host\"|\"nic_Gbps\""},
    {HEAD SIZE ",\n\"network\": []}", 1, "must be an object"},
    {HEAD SIZE ",\n\"scale_up\": {\"kind\": \"pcie\", \"line_GBps\": 10, \"ring_GBps\": 11,"
               "\"source\": \"s\"}}",
     1, "\"ring_GBps\" is 11, above the line rate \"line_GBps\" of 10"},
    {HEAD SIZE ",\n\"scale_up\": {\"kind\": \"nvlonk\", \"line_GBps\": 10, \"ring_GBps\": 1,"
               "\"source\": \"\"}}",
     2, "unknown kind of link \"nvlonk\"|\"source\" is empty"},
    {HEAD SIZE NET(",\n\"layout\": \"tree\", \"leaf_hosts\": 0"), 2,
     "x.json:5: unknown layout of the network \"tree\"|fat-tree|\"leaf_hosts\" is 0"},
    {HEAD SIZE NET(",\n\"layout\": \"torus\", \"dims\": [2, 2]"), 1,
     "x.json:5: \"dims\": a torus of 2 x 2 has 4 hosts, but \"hosts\" is 2"},
    {HEAD SIZE NET(",\n\"layout\": \"torus\", \"dims\": [2,\n0]"), 1,
     "x.json:6: \"dims\" holds whole numbers in 1..2147483647"},
    {HEAD SIZE NET(",\n\"layout\": \"torus\", \"dims\": []"), 1, "\"dims\" is empty"},
    {HEAD SIZE NET(",\n\"layout\": \"torus\", \"dims\": 4"), 1, "\"dims\" must be a list"},
    {HEAD SIZE NET(",\n\"dims\": [2]"), 1,
     "x.json:5: \"dims\" is for the layout \"torus\", not rail"},
    {HEAD SIZE NET(",\n\"burst_Gbps\": 500"), 1,
     "x.json:5: \"burst_GB\" is missing beside \"burst_Gbps\""},
    {HEAD SIZE NET(",\n\"burst_GB\": 5"), 1, "\"burst_Gbps\" is missing beside \"burst_GB\""},
    {HEAD SIZE NET(",\n\"burst_GB\": 5, \"burst_Gbps\": 50"), 1,
     "\"burst_Gbps\" is 50, below the sustained \"nic_Gbps\" of 400"},
    {HEAD SIZE NET(",\n\"latency_ns\": 0"), 1, "\"latency_ns\" is 0"},
    {HEAD SIZE ",\n\"host\": {\"sockets\": 2}}", 1, "x.json:4: \"source\" is missing"},
    {HEAD SIZE ",\n\"host\": {\"source\": \"s\", \"sockets\": 0, \"pcie_GBps\": -1,\n"
               "\"bridges\": 1, \"peer_access\": 1}}",
     4,
     "x.json:5: unknown member \"bridges\"|\"sockets\" is 0, it must be in 1..64|"
     "\"pcie_GBps\" is -1|\"peer_access\" must be"},
    {HEAD SIZE ",\n\"host\": {\"source\": \"s\", \"sockets\": 4, \"switches\": 6}}", 1,
     "x.json:4: 6 switches do not spread evenly over 4 sockets; nearest: 4 or 8"},
    {HEAD SIZE ",\n\"host\": {\"source\": \"s\", \"nic_at\": [0, 1]}}", 1,
     "x.json:4: \"nic_at\" places 2 NICs, but a host has 8"},
    {HEAD SIZE ",\n\"host\": {\"source\": \"s\", \"nic_at\": [0,1,2,3,4,5,6,\n8]}}", 1,
     "x.json:5: \"nic_at\" holds whole numbers in 0..7"},
    {HEAD SIZE ",\n\"machine\": \"no-such-file\"}", 1, "x.json:4: \"machine\": there is no file"},
    {HEAD SIZE ",\n\"machine\": \"a\", \"host\": {\"source\": \"s\"}}", 1,
     "\"machine\" and \"host\" both"},
    {HEAD SIZE ",\n\"faults\": [{\"nics_used\": 0},\n{\"nics_used\": 9},\n5,\n{},\n"
               "{\"peer_access\": true},\n{\"fallback\": \"udp\"},\n"
               "{\"link\": \"host0/nic1\"},\n{\"missing\": \"a\", \"fallback\": \"tcp\"},\n"
               "{\"link\": \"host0/nic1\", \"fraction\": 2}, {\"mising\": 1}]}",
     10,
     "x.json:4: \"nics_used\" is 0|x.json:5: 9 NICs of each host are to be used; a host has 8: "
     "1..8|x.json:6: a fault must be an object|x.json:7: a fault is one of|x.json:8: "
     "\"peer_access\": true is no fault|x.json:9: \"fallback\" is \"udp\"|x.json:10: a fault is "
     "one of|x.json:11: a fault is one of|x.json:12: \"fraction\" is 2|unknown member \"mising\""},
    {HEAD SIZE ",\n\"faults\": {}}", 1, "\"faults\" must be a list"},
};

Test(topo, faults)
{
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        struct err err = ERR_INIT;
        struct doc doc = {0};
        struct topo topo = {0};
        int bad = doc_parse(&doc, "x.json", faulty[i].text, strlen(faulty[i].text), &err);
        if (bad == 0) bad = topo_parse(&topo, &doc, &accels, &err);
        cr_expect_eq(bad, -1, "accepted: %s", faulty[i].text);
        cr_expect_eq(err.count, faulty[i].faults, "%u faults: %s", err.count, err.text);
        cr_expect(holds(err.text, faulty[i].says), "%s\nsays %s", faulty[i].text, err.text);
        cr_expect_eq(err.code, ERR_USAGE);
        err_release(&err);
        topo_release(&topo);
        doc_release(&doc);
    }
}

/* What a file does not say of the layout and of a host. */
Test(topo, usual_layout_and_host)
{
    static const struct {
        const char *name;
        enum topo_layout layout;
        uint32_t sockets, switches;
        double pcie_GBps;
        uint64_t nics;
        bool peer_access;
    } rows[] = {
        {"dgx-h100", TOPO_RAIL, 2, 8, 63, 8, true},
        {"dgx-a100x4", TOPO_RAIL, 2, 8, 31.5, 8, true},
        {"dgx1-v100", TOPO_RAIL, 2, 4, 15.75, 4, true},
        {"dgx-b300", TOPO_RAIL, 2, 8, 121, 8, true},
        {"pcie8", TOPO_FAT_TREE, 2, 0, 31.5, 1, false},
        {"pcie8-a100", TOPO_FAT_TREE, 2, 2, 31.5, 1, true},
        {"cpu2", TOPO_FAT_TREE, 2, 0, 63, 1, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct topo t;
        read_shipped(&t, rows[i].name, 0, 0);
        bool says = json_object_get(((struct doc *)t.doc)->root, "host") != NULL;
        cr_expect(t.nics == rows[i].nics && t.host.peer_access == rows[i].peer_access &&
                      t.leaf_hosts > 0 && t.host.uplink_GBps > 0 && t.host.socket_GBps > 0 &&
                      t.host.memory_GBps > 0,
                  "%s", rows[i].name);
        cr_expect(says ||
                      (t.host.sockets == rows[i].sockets && t.host.switches == rows[i].switches &&
                       t.host.pcie_GBps == rows[i].pcie_GBps),
                  "%s: %u sockets, %u switches, %g GB/s", rows[i].name, t.host.sockets,
                  t.host.switches, t.host.pcie_GBps);
        cr_expect_eq(t.layout, rows[i].layout, "%s", rows[i].name);
        topo_release(&t);
    }
}

/* Sides of a torus must go with the hosts, also where the command line asks for others. */
Test(topo, torus_resized)
{
    static const char text[] =
        HEAD "\"hosts\": 6, \"accelerators_per_host\": 1, \"network\": {\"kind\": \"ib\","
             "\"nics_per_host\": 1, \"nic_Gbps\": 400, \"layout\": \"torus\","
             "\"dims\": [3, 2], \"source\": \"s\"}}";
    char path[] = "/tmp/topoXXXXXX";
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(fd);
    struct topo t;
    struct err err = ERR_INIT;
    read_shipped(&t, path, 0, 0);
    cr_expect(t.ndims == 2 && t.dims[0] == 3 && t.dims[1] == 2 && t.layout == TOPO_TORUS);
    topo_release(&t);
    cr_expect_eq(topo_read(&t, &accels, path, 8, 0, &err), -1);
    cr_expect(holds(err.text, "a torus of 3 x 2 hosts has 6, but 8 are asked for"), "%s", err.text);
    err_release(&err);
    unlink(path);
}

/* An accelerator of the user's own, in the file. */
Test(topo, own_accelerator)
{
    static const char text[] =
        "{\"schema\": 1, \"form\": \"uniform\", \"hosts\": 1, \"accelerators_per_host\": 4,"
        "\"accelerator\": {\"name\": \"L40S\", \"class\": \"A100\", \"scale_up\": \"pcie\","
        "\"aliases\": [\"l40\"], \"memory_GB\": [48, \"s\"], \"memory_GiB\": [44.5, \"s\"],"
        "\"memory_GBps\": [864, \"s\"], \"fp32_TF\": [91.6, \"s\"], \"bf16_TF\": [362, \"s\"],"
        "\"sms\": [142, \"s\"], \"line_GBps\": [31.5, \"s\"], \"ring_GBps\": [12.5, \"s\"],"
        "\"usual_per_host\": [8, \"s\"], \"usual_domain\": [8, \"s\"],"
        "\"usual_nic_Gbps\": [50, \"s\"]}}";
    char path[] = "/tmp/topoXXXXXX";
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(fd);
    struct topo t;
    read_shipped(&t, path, 0, 8 / 2);
    cr_expect_str_eq(t.accel.name, "L40S");
    cr_expect(t.accel.peak_TF[PEAK_BF16] == 362 && t.accel.peak_TF[PEAK_FP8] == 0);
    cr_expect(t.nic_Gbps == 50 && !t.nic_stated && t.fabric == FABRIC_UNSTATED);
    topo_release(&t);
    unlink(path);
}

/* Figures without a source, or that are none, are refused; so is a name that is taken. */
Test(topo, faulty_accelerators)
{
    static const char row[] = "{\"name\": \"%s\", \"class\": \"A100\", \"scale_up\": \"pcie\","
                              "\"memory_GB\": %s, \"memory_GiB\": [1, \"s\"],"
                              "\"memory_GBps\": [1, \"s\"], \"fp32_TF\": [1, \"s\"],"
                              "\"sms\": %s, \"line_GBps\": [1, \"s\"], \"ring_GBps\": [1, \"s\"],"
                              "\"usual_per_host\": [1, \"s\"], \"usual_domain\": [1, \"s\"],"
                              "\"usual_nic_Gbps\": [1, \"s\"]}";
    static const char *const memory[] = {
        "80", "[80]", "[80, \"\"]", "[\"80\", \"s\"]", "[0, \"s\"]", "[80, \"s\"]"};
    static const char *const sms[] = {"[1, \"s\"]", "[1.5, \"s\"]"};
    for (size_t i = 0; i < 7; i++) {
        char *first = mem_printf(row, "one", memory[i < 6 ? i : 5], sms[i == 5]);
        char *second = mem_printf(row, i == 6 ? "ONE" : "two", memory[5], sms[0]);
        char path[] = "/tmp/accelXXXXXX";
        int fd = mkstemp(path);
        dprintf(fd, "{\"schema\": 1,\n\"accelerators\": [%s,\n%s]}", first, second);
        close(fd);
        struct err err = ERR_INIT;
        struct accel_table table;
        cr_expect_eq(accel_read(&table, path, &err), -1, "%zu", i);
        cr_expect_eq(err.count, 1, "%zu: %s", i, err.text);
        cr_expect(holds(err.text, i == 6   ? ":3: |ONE|taken"
                                  : i == 5 ? ":2: |whole"
                                           : ":2: |memory_GB"),
                  "%s", err.text);
        err_release(&err);
        unlink(path);
        free(first);
        free(second);
    }
}
