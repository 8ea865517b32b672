/* SPDX-License-Identifier: Apache-2.0
 * ASTRA-sim's network files: what they mean, there and back, units, and every fault with its line.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/ship.h"
#include "net/astra.h"

static struct accel_table accels;

static void setup(void)
{
    struct err err = ERR_INIT;
    cr_assert(!accel_read(&accels, NULL, &err), "%s", err.text);
}

static void teardown(void)
{
    accel_release(&accels);
}

TestSuite(astra, .init = setup, .fini = teardown);

static const struct accel *accel(const char *name)
{
    struct err err = ERR_INIT;
    const struct accel *found = accel_find(&accels, name, &err);
    cr_assert(found, "%s", err.text);
    return found;
}

static struct astra parse(const char *text)
{
    struct astra astra;
    struct err err = ERR_INIT;
    cr_assert(!astra_parse(&astra, "x.yml", text, strlen(text), &err), "%s", err.text);
    return astra;
}

static char *written(const struct astra *astra)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    astra_write(astra, to);
    fclose(to);
    return text;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 4e-16 * fabs(b);
}

/* ---- files ---- */

Test(astra, ways_to_write_lists)
{
    static const char *const texts[] = {
        "topology: [ FullyConnected, Switch ]\nnpus_count: [ 4, 16 ]\nbandwidth: [ 93.5, 25 ]\n"
        "latency: [ 500, 5e3 ]\n",
        "# a comment\nlatency: [500.0,5000]#and another\nbandwidth:\n  [ 93.5,\n    25.0 ]\n"
        "topology:\n  - FullyConnected\n  - \"Switch\"\nnpus_count:\n- 4\n- '16'\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_expect(astra_is(texts[i], strlen(texts[i])));
        struct astra astra = parse(texts[i]);
        cr_assert_eq(astra.ndims, 2u);
        cr_expect(astra.dims[0].kind == ASTRA_FULLY_CONNECTED &&
                  astra.dims[1].kind == ASTRA_SWITCH);
        cr_expect(astra.dims[0].npus == 4 && astra.dims[1].npus == 16);
        cr_expect(astra.dims[0].bandwidth_GiBps == 93.5 && astra.dims[1].bandwidth_GiBps == 25);
        cr_expect(astra.dims[0].latency_ns == 500 && astra.dims[1].latency_ns == 5000);
        char *text = written(&astra);
        cr_expect_str_eq(text, "topology: [ FullyConnected, Switch ]\nnpus_count: [ 4, 16 ]\n"
                               "bandwidth: [ 93.5, 25 ]\nlatency: [ 500, 5000 ]\n");
        free(text);
        astra_release(&astra);
    }
    struct astra one = parse("topology: Ring\nnpus_count: 8\nbandwidth: 50\nlatency: 500");
    cr_expect(one.ndims == 1 && one.dims[0].kind == ASTRA_RING && one.dims[0].npus == 8);
    astra_release(&one);
}

Test(astra, other_files_are_none)
{
    static const char *const texts[] = {
        "",       "{\"schema\": 1}", "topology",    "latency of 3",
        "GPU0 X", "<system/>",       "topology: [", "- topology: 3"};
    static const bool is[] = {false, false, false, false, false, false, true, false};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect_eq(astra_is(texts[i], strlen(texts[i])), is[i], "%s", texts[i]);
}

Test(astra, doubles_come_back_as_they_were)
{
    static const double values[] = {1.0 / 3, 93.1322574615478515625, 370.67, 0.1, 1e-3, 12345678.9};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct astra_dim dim = {ASTRA_SWITCH, 3, values[i], values[i] * 7, 0};
        struct astra astra = {&dim, 1, 1};
        char *text = written(&astra);
        struct astra again = parse(text);
        cr_expect_eq(again.dims[0].bandwidth_GiBps, values[i]);
        cr_expect_eq(again.dims[0].latency_ns, values[i] * 7);
        astra_release(&again);
        free(text);
    }
}

Test(astra, faults_have_lines)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]\n",
         "x.yml:4: latency is missing"},
        {"topology: [ Ring ]\nnpus_count: [ 8, 2 ]\nbandwidth: [ 50 ]\nlatency: [ 5 ]",
         "x.yml:2: npus_count has 2 values, but topology (line 1) has 1 dimensions"},
        {"topology: [ Rnig ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]\nlatency: [ 5 ]",
         "x.yml:1: unknown kind of dimension \"Rnig\": nearest is Ring"},
        {"topology: [ Ring ]\nnpus: [ 8 ]\nbandwidth: [ 50 ]\nlatency: [ 5 ]",
         "x.yml:2: unknown key \"npus\""},
        {"topology: [ Ring ]\nlatency: [ 5 ]\nlatency: [ 5 ]", "x.yml:3: latency stands twice"},
        {"topology: [ Ring ]\nnpus_count: [ 0 ]\nbandwidth: [ 50 ]\nlatency: [ 5 ]",
         "x.yml:2: npus_count is \"0\", not a number of at least 1"},
        {"topology: [ Ring ]\nnpus_count: [ 1.5 ]\nbandwidth: [ 50 ]\nlatency: [ 5 ]",
         "x.yml:2: npus_count is 1.5, not a whole number"},
        {"topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 0 ]\nlatency: [ 5 ]",
         "x.yml:3: bandwidth is \"0\", not a number above 0"},
        {"topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ nan ]\nlatency: [ -5 ]",
         "x.yml:4: latency is \"-5\", not a number of at least 0"},
        {"topology: [ Ring\nnpus_count: [ 8 ]",
         "x.yml:2: \"npus_count\" stands where \",\" or \"]\""},
        {"topology: [ Ring, ]", "x.yml:1: \"]\" stands where a value should"},
        {"topology [ Ring ]", "x.yml:1: \"[\" stands where \":\" should"},
        {"topology: []\nnpus_count: []\nbandwidth: []\nlatency: []", "x.yml:1: topology is empty"},
        {"topology: [ Ring, Ring ]\nnpus_count: [ 65536, 65536 ]\nbandwidth: [ 1, 1 ]\n"
         "latency: [ 5, 5 ]",
         "x.yml:2: 4.29497e+09 accelerators in all, more than 2147483647"},
        {"topology: \"Ring", "x.yml:1: \"Ring\" stands where a value should"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = ERR_INIT;
        struct astra astra;
        cr_expect(astra_parse(&astra, "x.yml", rows[i].text, strlen(rows[i].text), &err), "%s",
                  rows[i].text);
        cr_expect(err.code == ERR_USAGE && err.text && strstr(err.text, rows[i].words),
                  "\"%s\" is not in \"%s\"", rows[i].words, err.text ? err.text : "");
        cr_expect_null(astra.dims);
        err_release(&err);
    }
}

Test(astra, all_faults_at_once)
{
    const char *text = "topology: [ Rope ]\nnpus_count: [ x ]\nbandwidth: [ -1 ]\nlatency: [ y ]\n";
    struct err err = ERR_INIT;
    struct astra astra;
    cr_expect(astra_parse(&astra, "x.yml", text, strlen(text), &err));
    cr_expect_eq(err.count, 4u, "%s", err.text);
    err_release(&err);
}

/* ---- topologies ---- */

static struct topo to_topo(const char *text, const char *type)
{
    struct astra astra = parse(text);
    struct topo topo;
    struct err err = ERR_INIT;
    cr_assert(!astra_to_topo(&astra, "x.yml", accel(type), &topo, &err), "%s", err.text);
    astra_release(&astra);
    return topo;
}

Test(astra, a_gigabyte_is_2_to_the_30)
{
    struct topo topo = to_topo("topology: [ FullyConnected, Switch ]\nnpus_count: [ 4, 16 ]\n"
                               "bandwidth: [ 100, 20 ]\nlatency: [ 500, 5000 ]",
                               "A100");
    cr_expect(near(topo.line_GBps, 3 * 107.3741824) && topo.ring_GBps == topo.line_GBps);
    cr_expect(near(topo.nic_Gbps, 8 * 21.47483648) && near(topo_nic_Bps(&topo), 21.47483648e9));
    cr_expect(topo.hosts == 16 && topo.per_host == 4 && topo.scale_up == SCALE_UP_NVLINK_MESH);
    cr_expect(topo.layout == TOPO_SWITCH && topo.nics == 4);
    cr_expect(topo.scale_up_latency_ns == 500 && topo.network_latency_ns == 5000);
    topo_release(&topo);
    topo =
        to_topo("topology: [ FullyConnected ]\nnpus_count: [ 8 ]\nbandwidth: [ 1 ]\nlatency: [ 1 ]",
                "MI300X");
    cr_expect_eq(topo.scale_up, SCALE_UP_XGMI);
    topo_release(&topo);
}

Test(astra, racks_and_tori)
{
    struct topo topo = to_topo("topology: [ Switch, Switch ]\nnpus_count: [ 72, 4 ]\n"
                               "bandwidth: [ 800, 40 ]\nlatency: [ 500, 5000 ]",
                               "GB200");
    cr_expect(topo.per_host == 4 && topo.domain_hosts == 18 && topo.hosts == 72);
    cr_expect_eq(topo_domain(&topo), 72);
    topo_release(&topo);
    topo = to_topo("topology: [ Ring, Ring, Ring ]\nnpus_count: [ 4, 3, 2 ]\n"
                   "bandwidth: [ 40, 40, 40 ]\nlatency: [ 500, 500, 500 ]",
                   "A100");
    cr_expect(topo.per_host == 1 && topo.hosts == 24 && topo.layout == TOPO_TORUS);
    cr_assert_eq(topo.ndims, 3u);
    cr_expect(topo.dims[0] == 4 && topo.dims[1] == 3 && topo.dims[2] == 2);
    topo_release(&topo);
}

Test(astra, dimensions_that_mean_no_topology)
{
    static const struct {
        const char *kinds, *words;
    } rows[] = {
        {"Switch, FullyConnected, Ring", "hosts that are fully connected"},
        {"Switch, Switch, Switch", "a further dimension between hosts"},
        {"Switch, Ring, Switch", "a further dimension between hosts"},
        {"Ring, Ring, Ring", "one bandwidth and latency in all"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = mem_printf("npus_count: [ 2, 2, 2 ]\nbandwidth: [ 1, 1, 2 ]\n"
                                "latency: [ 5, 5, 5 ]\ntopology: [ %s ]",
                                rows[i].kinds);
        struct astra astra = parse(text);
        struct err err = ERR_INIT;
        struct topo topo;
        cr_expect(astra_to_topo(&astra, "x.yml", accel("A100"), &topo, &err));
        cr_expect(err.text && strstr(err.text, rows[i].words) &&
                      strncmp(err.text, "x.yml:4: ", 9) == 0,
                  "%s", err.text ? err.text : "");
        cr_expect_null(topo.name);
        err_release(&err);
        astra_release(&astra);
        free(text);
    }
}

/* What a file of ASTRA-sim can hold of a topology comes back to the last bit but one. */
static void there_and_back(const struct topo *topo, unsigned *kept, unsigned *refused)
{
    static const struct astra_latency latency = {1000, 5000};
    struct err err = ERR_INIT;
    struct astra astra, again;
    struct topo back;
    if (astra_from_topo(&astra, topo, &latency, &err)) {
        cr_expect(err.code == ERR_USAGE && strstr(err.text, "have no word for"), "%s", err.text);
        err_release(&err);
        ++*refused;
        return;
    }
    char *text = written(&astra);
    again = parse(text);
    cr_assert(!astra_to_topo(&again, "x.yml", &topo->accel, &back, &err), "%s: %s", topo->name,
              err.text);
    cr_expect_eq(topo_gpus(&back), topo_gpus(topo), "%s", topo->name);
    cr_expect_eq(topo_domain(&back), topo_domain(topo), "%s", topo->name);
    cr_expect(topo_domain(topo) == 1 || back.scale_up == topo->scale_up, "%s", topo->name);
    cr_expect(topo_domain(topo) == 1 || near(back.line_GBps, topo->line_GBps), "%s: %.17g",
              topo->name, back.line_GBps);
    if (topo_gpus(topo) > topo_domain(topo))
        cr_expect(near(topo_nic_Bps(&back), topo_nic_Bps(topo)), "%s", topo->name);
    struct astra third;
    cr_assert(!astra_from_topo(&third, &back, &latency, &err));
    char *same = written(&third);
    cr_expect_str_eq(same, text);
    free(same);
    free(text);
    astra_release(&astra);
    astra_release(&again);
    astra_release(&third);
    topo_release(&back);
    ++*kept;
}

Test(astra, every_shipped_topology_goes_there_and_back)
{
    char **names = ship_names("topologies", ".json", NULL);
    unsigned kept = 0, refused = 0;
    for (char **name = names; *name; name++) {
        if (strcmp(*name, "accelerators") == 0) continue;
        for (unsigned times = 1; times <= 4; times += 3) {
            struct err err = ERR_INIT;
            struct topo topo;
            char *many = mem_printf("%sx%u", *name, times);
            cr_assert(!topo_read(&topo, &accels, many, 0, 0, &err), "%s: %s", many, err.text);
            there_and_back(&topo, &kept, &refused);
            topo_release(&topo);
            free(many);
        }
    }
    ship_names_free(names);
    cr_expect(kept > 50 && refused > 5 && kept > refused, "%u kept, %u refused", kept, refused);
}
