/* SPDX-License-Identifier: Apache-2.0
 * Facts in the record: read back from JSON, with the kernel's files made up, and with an
 * environment that holds secrets. */
#include <criterion/criterion.h>

#include <hwloc.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/facts.h"

static const struct out_column columns[] = {{.key = "size", .kind = OUT_UINT}};

/* The document with the facts, released by the caller; its file is gone. */
static json_t *facts_read(const struct place *place, const char *root)
{
    struct err err = ERR_INIT;
    char path[] = "/tmp/test_facts_json.XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    struct out *out = out_new(columns, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, path, true, &err), 0, "%s", err.text);
    facts_note_under(out, place, root);
    struct out_cell cell = out_uint(8);
    out_row(out, &cell);
    cr_assert_eq(out_close(out, &err), 0, "%s", err.text);
    json_error_t error;
    json_t *document = json_load_file(path, 0, &error);
    cr_assert_not_null(document, "%s", error.text);
    unlink(path);
    return document;
}

static json_t *meta_of(json_t *document, const char *key)
{
    json_t *value = json_object_get(json_object_get(document, "meta"), key);
    cr_assert_not_null(value, "no fact %s", key);
    return value;
}

static const char *text_of(json_t *document, const char *key)
{
    json_t *value = meta_of(document, key);
    cr_assert(json_is_string(value), "%s is no text", key);
    return json_string_value(value);
}

/* ---- the kernel's files ---------------------------------------------------------------------- */

struct fake {
    const char *path, *text;
};

static const struct fake fakes[] = {
    {"/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 6\nmodel name\t: Fast CPU  9000 @ 2.5GHz\n"
                      "microcode version\t: 7\nmicrocode\t: 0xd0003a5\n"
                      "flags\t\t: fpu hypervisor_guest sse hypervisor\n\n"
                      "processor\t: 1\nmodel name\t: another\n"},
    {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"},
    {"/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"},
    {"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
    {"/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise\n"}, /* none is chosen */
    {"/proc/sys/kernel/numa_balancing", ""},
};
static const struct fake bare[] = {
    {"/proc/cpuinfo", "model name\t: \nflags\t\t: nohypervisor hypervisor_guest\n"},
};

/* Makes the file below the folder, and the folders above it. */
static void fake(const char *folder, const struct fake *file)
{
    char *path = mem_printf("%s%s", folder, file->path);
    for (char *slash = path + strlen(folder); (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *to = fopen(path, "w");
    cr_assert_not_null(to, "%s", path);
    fputs(file->text, to);
    fclose(to);
    free(path);
}

/* The facts where nothing but these files is there. */
static json_t *facts_of_fakes(const struct fake *files, size_t count)
{
    char folder[] = "/tmp/test_facts.XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    for (size_t i = 0; i < count; i++)
        fake(folder, &files[i]);
    json_t *document = facts_read(NULL, folder);
    char *remove = mem_printf("rm -r %s", folder);
    cr_expect_eq(system(remove), 0);
    free(remove);
    return document;
}

Test(facts, from_made_up_files)
{
    json_t *document = facts_of_fakes(fakes, sizeof fakes / sizeof *fakes);
    cr_expect_str_eq(text_of(document, "processor"), "Fast CPU  9000 @ 2.5GHz");
    cr_expect_str_eq(text_of(document, "microcode"), "0xd0003a5");
    cr_expect_str_eq(text_of(document, "governor"), "powersave");
    cr_expect_str_eq(text_of(document, "clock_source"), "hpet");
    cr_expect_str_eq(text_of(document, "huge_pages"), "madvise");
    cr_expect(json_is_true(meta_of(document, "hypervisor")));
    const char *const unknown[] = {"huge_pages_shared", "numa_balancing", "boost", "smt"};
    for (size_t i = 0; i < 4; i++)
        cr_expect(json_is_null(meta_of(document, unknown[i])), "%s", unknown[i]);
    cr_expect_null(json_object_get(json_object_get(document, "meta"), "packages"));
    json_decref(document);
    document = facts_of_fakes(bare, 1);
    cr_expect(json_is_false(meta_of(document, "hypervisor")));
    cr_expect(json_is_null(meta_of(document, "processor")));
    json_decref(document);
}

/* No files at all, as on a system without /sys: nothing is made up. */
Test(facts, from_no_files)
{
    json_t *document = facts_read(NULL, "/nowhere");
    const char *const unknown[] = {"processor", "microcode",    "hypervisor",
                                   "governor",  "clock_source", "huge_pages"};
    for (size_t i = 0; i < 6; i++)
        cr_expect(json_is_null(meta_of(document, unknown[i])), "%s", unknown[i]);
    json_decref(document);
}

/* ---- this machine ---------------------------------------------------------------------------- */

Test(facts, of_this_machine)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    setenv("TZ", "XYZ-05:45", 1); /* a zone 5 h 45 min east of Greenwich */
    time_t before = time(NULL);
    json_t *document = facts_read(NULL, "");
    time_t after = time(NULL);
    cr_expect_str_eq(text_of(document, "host"), host);
    int year, month, day, hour, minute, second, end = 0;
    const char *started = text_of(document, "started");
    sscanf(started, "%4d-%2d-%2dT%2d:%2d:%2d+05:45%n", &year, &month, &day, &hour, &minute, &second,
           &end);
    cr_assert_eq((size_t)end, strlen(started), "%s", started);
    struct tm local = {.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_hour = hour,
                       .tm_min = minute - 45,
                       .tm_sec = second};
    time_t then = timegm(&local) - 5 * 3600;
    cr_expect(then >= before && then <= after, "%s", started);
    const char *const texts[] = {"system_release", "system_version", "machine", "compiler",
                                 "libc",           "libuv",          "jansson", "hwloc"};
    for (size_t i = 0; i < 8; i++)
        cr_expect_gt(strlen(text_of(document, texts[i])), 1, "%s", texts[i]);
    json_decref(document);
}

Test(facts, of_the_ranks_and_the_machines_shape)
{
    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_set_synthetic(topology, "pack:2 numa:1 l2:2(size=1048576) core:1 pu:2");
    hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    cr_assert_eq(hwloc_topology_load(topology), 0);
    struct place *place = place_plan_on(topology, "0-7", UINT32_MAX, BIND_CORE, 3);
    json_t *document = facts_read(place, "");
    cr_expect_str_eq(text_of(document, "numa_node_by_rank"), "0 | 0 | 1");
    static const struct {
        const char *key;
        json_int_t value;
    } numbers[] = {{"packages", 2},        {"numa_nodes", 2},        {"machine_cores", 4},
                   {"machine_threads", 8}, {"cores_per_package", 2}, {"cache_l2_B", 1048576}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cr_expect_eq(json_integer_value(meta_of(document, numbers[i].key)), numbers[i].value, "%s",
                     numbers[i].key);
    cr_expect_null(json_object_get(json_object_get(document, "meta"), "cache_l1_B"));
    json_decref(document);
    place_free(place);
    place = place_plan_on(topology, "1,6", UINT32_MAX, BIND_NONE, 2); /* no node of their own */
    document = facts_read(place, "");
    cr_expect_str_eq(text_of(document, "numa_node_by_rank"), "- | -");
    json_decref(document);
    place_free(place);
    hwloc_topology_destroy(topology);
}

/* ---- environment ----------------------------------------------------------------------------- */

static const struct {
    const char *name, *value;
    bool recorded;
} variables[] = {
    {"UCX_TLS", "tcp", true},
    {"NCCL_API_KEY", "planted-1", false},
    {"NCCL_ALGO", "Ring", true},
    {"NCCL_SOCKET_password", "planted-2", false},
    {"FI_PROVIDER", "", true}, /* set to nothing differs from not set */
    {"FI_auth_TYPE", "planted-3", false},
    {"OMPI_MCA_btl", "self,vader", true},
    {"OMPI_MCA_orte_hnp_uri", "planted-4", false},
    {"OMPI_MCA_orte_precondition_transports", "planted-5", false},
    {"MPIR_CVAR_CH4_ROOTS", "a \"b\" \\c\n", true},
    {"MPIR_CVAR_MyToken", "planted-6", false},
    {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", true},
    {"GLIBC_TUNABLES_2", "planted-7", false},
    {"MALLOC_ARENA_MAX", "1", true},
    {"MALLOC_CREDIT", "planted-8", false},
    {"MALLOC_", "planted-9", false},
    {"OMP_NUM_THREADS", "4", true},
    {"COLLBENCH_KERNELS", "scalar", true},
    {"MY_UCX_TLS", "planted-10", false},
    {"ucx_tls", "planted-11", false},
    {"UCX_NET DEVICES", "planted-12", false},
    {"UCX_\xff", "planted-13", false},
    {"AWS_SECRET_ACCESS_KEY", "planted-14", false},
    {"HOME_PAGE", "planted-15", false},
};
enum { NVARIABLES = sizeof variables / sizeof *variables };

Test(facts, of_the_environment_only_what_changes_a_result)
{
    clearenv();
    size_t recorded = 0, seen = 0;
    for (size_t i = 0; i < NVARIABLES; i++) {
        setenv(variables[i].name, variables[i].value, 1);
        recorded += variables[i].recorded;
    }
    json_t *document = facts_read(NULL, "");
    for (size_t i = 0; i < NVARIABLES; i++) {
        char *key = mem_printf("env_%s", variables[i].name);
        json_t *value = json_object_get(json_object_get(document, "meta"), key);
        cr_expect_eq(value != NULL, variables[i].recorded, "%s", variables[i].name);
        if (value) cr_expect_str_eq(json_string_value(value), variables[i].value);
        free(key);
    }
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(document, "meta"), key, value)
    {
        seen += strncmp(key, "env_", 4) == 0;
    }
    cr_expect_eq(seen, recorded);
    char *all = json_dumps(document, JSON_COMPACT);
    cr_expect_null(strstr(all, "planted"), "%s", all);
    free(all);
    json_decref(document);
}
