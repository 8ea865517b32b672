/* SPDX-License-Identifier: Apache-2.0
 * Facts about the machine and the software: see facts.h. Each comes from a row of a table: a file
 * of the kernel and which part of it, or a name in the environment. */
#include "bench/facts.h"

#include <ctype.h>
#include <gnu/libc-version.h>
#include <hwloc.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/mem.h"
#include "exec/cgroup.h"

#ifdef __clang__
#define COMPILER __VERSION__ /* has the name in it */
#else
#define COMPILER "gcc " __VERSION__
#endif

/* ---- files of the kernel --------------------------------------------------------------------- */

enum part {
    PART_LINE,  /* the first line */
    PART_CHOSEN /* the word in brackets: "always [madvise] never" */
};

static const struct {
    const char *key, *path;
    enum part part;
} files[] = {
    {"governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", PART_LINE},
    {"boost", "/sys/devices/system/cpu/cpufreq/boost", PART_LINE},
    {"smt", "/sys/devices/system/cpu/smt/control", PART_LINE},
    {"clock_source", "/sys/devices/system/clocksource/clocksource0/current_clocksource", PART_LINE},
    {"huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled", PART_CHOSEN},
    {"huge_pages_shared", "/sys/kernel/mm/transparent_hugepage/shmem_enabled", PART_CHOSEN},
    {"numa_balancing", "/proc/sys/kernel/numa_balancing", PART_LINE},
};

/* Cuts the text down to the part, in place; NULL when it is not there. */
static char *cut(char *text, enum part part)
{
    char *open = part == PART_CHOSEN ? strchr(text, '[') : NULL;
    if (part == PART_CHOSEN && !open) return NULL;
    char *start = open ? open + 1 : text;
    start[strcspn(start, open ? "]\n" : "\n")] = '\0';
    return *start ? start : NULL;
}

static void note_files(struct out *out, const char *root)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = mem_printf("%s%s", root, files[i].path);
        char *text = file_text(path);
        out_meta(out, files[i].key, out_text(text ? cut(text, files[i].part) : NULL));
        free(text);
        free(path);
    }
}

/* The value of the first line "key : value" of /proc/cpuinfo, freed by the caller; NULL: none. */
static char *cpuinfo_value(const char *text, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) != 0) continue;
        const char *colon = line + length + strspn(line + length, " \t");
        if (*colon != ':') continue;
        const char *value = colon + 1 + strspn(colon + 1, " \t");
        return *value && *value != '\n' ? mem_printf("%.*s", (int)strcspn(value, "\n"), value)
                                        : NULL;
    }
    return NULL;
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        bool starts = at == list || at[-1] == ' ';
        if (starts && (at[length] == ' ' || !at[length])) return true;
    }
    return false;
}

static void note_processor(struct out *out, const char *root)
{
    char *path = mem_printf("%s/proc/cpuinfo", root);
    char *text = file_text(path);
    char *name = cpuinfo_value(text, "model name");
    char *microcode = cpuinfo_value(text, "microcode");
    char *flags = cpuinfo_value(text, "flags");
    out_meta(out, "processor", out_text(name));
    out_meta(out, "microcode", out_text(microcode));
    out_meta(out, "hypervisor",
             flags ? out_bool(has_word(flags, "hypervisor")) : (struct out_cell){0});
    free(flags);
    free(microcode);
    free(name);
    free(text);
    free(path);
}

/* ---- system, libraries, time ----------------------------------------------------------------- */

static void note_system(struct out *out)
{
    struct utsname uts;
    if (uname(&uts) == 0) {
        out_meta(out, "host", out_text(uts.nodename));
        out_meta(out, "machine", out_text(uts.machine));
        out_meta(out, "system", out_text(uts.sysname));
        out_meta(out, "system_release", out_text(uts.release));
        out_meta(out, "system_version", out_text(uts.version));
    }
}

static void note_software(struct out *out)
{
    out_meta(out, "compiler", out_text(COMPILER));
    out_meta(out, "libc", out_text(gnu_get_libc_version()));
    out_meta(out, "libuv", out_text(uv_version_string()));
    out_meta(out, "jansson", out_text(jansson_version_str()));
    out_meta(out, "hwloc", out_text(HWLOC_VERSION));
}

/* "2026-11-29T20:05:00+01:00" */
static void note_start(struct out *out)
{
    char text[sizeof "-2147481748-12-31T23:59:60+00:00"], zone[sizeof "+0000"];
    time_t now = time(NULL);
    struct tm local;
    tzset();
    if (!localtime_r(&now, &local)) return;
    size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &local);
    if (!length || !strftime(zone, sizeof zone, "%z", &local)) return;
    snprintf(text + length, sizeof text - length, "%.3s:%.2s", zone, zone + 3);
    out_meta(out, "started", out_text(text));
}

/* ---- the machine's shape, the ranks' places -------------------------------------------------- */

static struct out_cell count(uint32_t n)
{
    return n ? out_uint(n) : (struct out_cell){0};
}

static void note_shape(struct out *out, const struct machine *machine)
{
    uint32_t packages = machine->packages;
    bool even = packages && machine->cores % packages == 0;
    out_meta(out, "packages", count(packages));
    out_meta(out, "numa_nodes", count(machine->nodes));
    out_meta(out, "machine_cores", count(machine->cores));
    out_meta(out, "machine_threads", count(machine->threads));
    out_meta(out, "cores_per_package", count(even ? machine->cores / packages : 0));
    for (int i = 0; i < MACHINE_CACHES; i++) {
        if (!machine->cache_bytes[i]) continue;
        char *key = mem_printf("cache_l%d_B", i + 1);
        out_meta(out, key, out_uint(machine->cache_bytes[i]));
        free(key);
    }
}

static void note_nodes(struct out *out, const struct place *place)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    for (uint32_t r = 0; to && r < place_nranks(place); r++) {
        uint32_t node = place_node(place, r);
        if (r) fputs(" | ", to);
        if (node == UINT32_MAX)
            fputc('-', to);
        else
            fprintf(to, "%u", node);
    }
    if (to) fclose(to);
    out_meta(out, "numa_node_by_rank", out_text(text));
    free(text);
}

/* ---- environment ----------------------------------------------------------------------------- */

/* Names, or with a "*" at the end their beginnings. */
static const char *const wanted[] = {
    "COLLBENCH_*", "GLIBC_TUNABLES",  "MALLOC_*",      "LD_PRELOAD", "LD_LIBRARY_PATH",
    "LD_BIND_NOW", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
    "HWLOC_*",     "MPIR_CVAR_*",     "MPICH_*",       "HYDRA_*",    "OMPI_MCA_*",
    "PRTE_MCA_*",  "UCX_*",           "FI_*",          "NCCL_*",     "CUDA_VISIBLE_DEVICES",
};

/* Parts of names, in any case, whose values are nobody's business: secrets, and where a launcher
 * can be reached ("uri"; "transports" is the key that Open MPI's mpirun makes up). */
static const char *const secret[] = {
    "TOKEN", "SECRET", "KEY", "PASS", "AUTH", "CRED", "COOKIE", "URI", "TRANSPORTS",
};

/* `name` is not terminated. */
static bool env_allowed(const char *name, size_t length)
{
    bool found = false;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && !found; i++) {
        size_t fixed = strcspn(wanted[i], "*");
        found = (wanted[i][fixed] ? length > fixed : length == fixed) &&
                strncmp(name, wanted[i], fixed) == 0;
    }
    for (size_t i = 0; i < length && found; i++) {
        found = isalnum((unsigned char)name[i]) || name[i] == '_';
        for (size_t j = 0; j < sizeof secret / sizeof *secret; j++) {
            size_t part = strlen(secret[j]);
            if (part <= length - i && strncasecmp(name + i, secret[j], part) == 0) found = false;
        }
    }
    return found;
}

static void note_environment(struct out *out)
{
    for (char **at = environ; at && *at; at++) {
        const char *equals = strchr(*at, '=');
        size_t length = equals ? (size_t)(equals - *at) : 0;
        if (!length || !env_allowed(*at, length)) continue;
        char *key = mem_printf("env_%.*s", (int)length, *at);
        out_meta(out, key, out_text(equals + 1));
        free(key);
    }
}

void facts_note_under(struct out *out, const struct place *place, const char *root)
{
    note_start(out);
    note_system(out);
    note_software(out);
    note_processor(out, root);
    note_files(out, root);
    if (place) {
        note_shape(out, place_machine(place));
        note_nodes(out, place);
    }
    note_environment(out);
}

void facts_note(struct out *out, const struct place *place)
{
    facts_note_under(out, place, "");
}
