/* SPDX-License-Identifier: Apache-2.0
 * `collbench topo`: this machine as a graph. hwloc gives the tree of the bus, NVML the NVLinks;
 * the table and the file are net/graph.h's. */
#include "bench/topo_cmd.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "bench/header.h"
#include "bench/p2p_cmd.h"
#include "bench/topo_hwloc.h"
#include "exec/place.h"

struct asked {
    const char *json;
    bool overwrite, measure;
};

enum { MEASURE_MOST = 8 }; /* ranks: 28 pairs */

static const struct opts_row rows[] = {
    {.name = "measure",
     .type = OPTS_FLAG,
     .offset = offsetof(struct asked, measure),
     .help =
         "then measure all pairs of NUMA nodes, or of cores where there is one node, 8 at most, "
         "as collbench p2p does",
     .section = "What"},
    {.name = "json",
     .letter = 'J',
     .type = OPTS_STRING,
     .offset = offsetof(struct asked, json),
     .arg = "FILE",
     .help =
         "write the machine in commsim's form too (commsim topo reads it); - is stdout, without "
         "the text",
     .section = "Output"},
    {.name = "overwrite",
     .type = OPTS_FLAG,
     .offset = offsetof(struct asked, overwrite),
     .help = "the file may exist already"},
    {.name = NULL},
};

static const char about[] =
    "Shows what this machine is made of: NUMA nodes with their processors, GPUs and NICs with bus "
    "address, model and rate, and how near they are to each other, as `nvidia-smi topo -m` does. "
    "hwloc finds what is on the bus; NVML (libnvidia-ml.so.1, or the file that COLLBENCH_NVML "
    "names), opened if it is there, knows the GPUs' names and NVLinks. HWLOC_XMLFILE shows another "
    "machine, from a file that lstopo has written there.";

/* ---- NVLinks --------------------------------------------------------------------------------- */

static uint32_t by_address(const struct graph *graph, enum graph_kind kind, const char *address)
{
    for (uint32_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        bool none = !address && !node->address;
        if (node->kind == kind &&
            (none || (address && node->address && strcmp(address, node->address) == 0)))
            return i;
    }
    return GRAPH_NONE;
}

/* The switch at that address; without one, the only switch that the host does not see. */
static uint32_t nvswitch_at(struct graph *graph, const char *address)
{
    uint32_t at = by_address(graph, GRAPH_NVSWITCH, address), count = 0;
    if (at != GRAPH_NONE) return at;
    for (size_t i = 0; i < graph->nnodes; i++)
        count += graph->nodes[i].kind == GRAPH_NVSWITCH;
    at = graph_add(graph, GRAPH_NVSWITCH, NULL, count, GRAPH_NONE);
    graph->nodes[at].address = mem_strdup(address);
    return at;
}

static void set_rate(struct graph *graph, const struct nvml_gpu *gpu)
{
    struct graph_link *link = &graph->links[graph->nlinks - 1];
    link->GBps = link->count * gpu->link_GBps;
}

/* Links of `gpu`, number `from` in the graph, to one device. Between GPUs both name them: the first
 * one's count. */
static void add_peer(struct graph *graph, const struct nvml *nvml, size_t number,
                     const struct nvml_peer *peer)
{
    const struct nvml_gpu *gpu = &nvml->gpus[number];
    uint32_t from = graph_find(graph, GRAPH_ACCEL, (uint32_t)number);
    uint32_t to = peer->address ? by_address(graph, GRAPH_ACCEL, peer->address) : GRAPH_NONE;
    if (peer->end == NVML_END_PROCESSOR) {
        graph_warn(graph, "%s has %" PRIu32 " NVLinks to a processor, which are left out",
                   graph->nodes[from].name, peer->count);
    } else if (to == GRAPH_NONE && peer->end != NVML_END_GPU) {
        if (peer->end == NVML_END_UNKNOWN)
            graph_warn(graph,
                       "%s: what %" PRIu32 " of its NVLinks lead to is not known, and taken "
                       "for a switch",
                       graph->nodes[from].name, peer->count);
        to = nvswitch_at(graph, peer->address);
        graph_link(graph, GRAPH_NVLINK, from, to, peer->count);
        set_rate(graph, gpu);
    } else if (to == GRAPH_NONE || to == from) {
        graph_warn(graph, "%s has %" PRIu32 " NVLinks to a GPU at %s, which is not here: left out",
                   graph->nodes[from].name, peer->count,
                   peer->address ? peer->address : "no address");
    } else if (graph->nodes[to].number > number) {
        graph_link(graph, GRAPH_NVLINK, from, to, peer->count);
        set_rate(graph, gpu);
    }
}

/* What the second GPU says of the links that the first one has named. */
static uint32_t count_back(const struct nvml *nvml, const struct graph *graph,
                           const struct graph_link *link)
{
    const struct nvml_gpu *gpu = &nvml->gpus[graph->nodes[link->b].number];
    for (size_t i = 0; i < gpu->npeers; i++) {
        const char *address = gpu->peers[i].address;
        if (address && graph->nodes[link->a].address &&
            strcmp(address, graph->nodes[link->a].address) == 0)
            return gpu->peers[i].count;
    }
    return 0;
}

static void check_back(struct graph *graph, const struct nvml *nvml)
{
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->via != GRAPH_NVLINK || graph->nodes[link->b].kind != GRAPH_ACCEL) continue;
        uint32_t back = count_back(nvml, graph, link);
        if (back != link->count)
            graph_warn(graph, "%s names %" PRIu32 " NVLinks to %s, which names %" PRIu32 " back",
                       graph->nodes[link->a].name, link->count, graph->nodes[link->b].name, back);
    }
}

static void add_nvlinks(struct graph *graph, const struct nvml *nvml)
{
    for (size_t i = 0; i < nvml->ngpus; i++) {
        const struct nvml_gpu *gpu = &nvml->gpus[i];
        uint32_t at = graph_find(graph, GRAPH_ACCEL, (uint32_t)i), numa = graph_numa(graph, at);
        for (size_t k = 0; k < gpu->npeers; k++)
            add_peer(graph, nvml, i, &gpu->peers[k]);
        if (gpu->coherent && numa != GRAPH_NONE) graph_link(graph, GRAPH_C2C, at, numa, 1);
        if (gpu->active && gpu->inactive)
            graph_warn(graph, "%" PRIu32 " of the %" PRIu32 " NVLinks of %s are not active",
                       gpu->inactive, gpu->active + gpu->inactive, graph->nodes[at].name);
    }
    check_back(graph, nvml);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void note_device(struct out *out, const struct graph *graph, const struct graph_node *node)
{
    const char *address = node->address ? node->address : "no address on the bus";
    const char *parent = node->parent == GRAPH_NONE ? NULL : graph->nodes[node->parent].name;
    char rate[64] = "", up[64] = "";
    if (node->rate_Gbps > 0) snprintf(rate, sizeof rate, ", %g Gb/s", node->rate_Gbps);
    if (node->up_GBps > 0) snprintf(up, sizeof up, ", %.3g GB/s", node->up_GBps);
    out_note(out, "%s: %s%s%s%s%s%s%s", node->name, node->type ? node->type : "",
             node->type ? ", " : "", address, rate, up,
             !parent ? ""
             : *up   ? " to "
                     : ", at ",
             parent ? parent : "");
}

/* All of a GPU's links in one line. */
static void note_links(struct out *out, const struct graph *graph, uint32_t gpu)
{
    double GBps = 0;
    char *line = mem_strdup("");
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->a != gpu && link->b != gpu) continue;
        uint32_t other = link->a == gpu ? link->b : link->a;
        char *longer = mem_printf("%s%s%" PRIu32 " %s to %s", line, *line ? ", " : "", link->count,
                                  graph_via_name(link->via), graph->nodes[other].name);
        free(line);
        line = longer;
        GBps += link->GBps;
    }
    const char *name = graph->nodes[gpu].name;
    if (*line && GBps > 0) out_note(out, "%s: %s; %.4g GB/s in all", name, line, GBps);
    if (*line && !(GBps > 0)) out_note(out, "%s: %s", name, line);
    free(line);
}

static void note_graph(struct out *out, const struct graph *graph)
{
    for (size_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->kind == GRAPH_NUMA) {
            out_note(out, "%s: processors %s", node->name, node->cpus);
        } else {
            note_device(out, graph, node);
        }
    }
    for (uint32_t i = 0; i < graph->nnodes; i++)
        if (graph->nodes[i].kind == GRAPH_ACCEL) note_links(out, graph, i);
    out_note(out, "GB/s: 10^9 bytes/s per direction; Gb/s: 10^9 bit/s");
    for (size_t i = 0; i < graph->nwarnings; i++)
        out_note(out, "warning: %s", graph->warnings[i]);
}

/* Who found what. */
struct said {
    char *hwloc, *nvml;
};

static bool has(const struct graph *graph, enum graph_kind kind)
{
    for (size_t i = 0; i < graph->nnodes; i++)
        if (graph->nodes[i].kind == kind) return true;
    return false;
}

static void print_matrix(struct out *out, const struct graph *graph)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) abort(); /* out of memory */
    graph_matrix(graph, to);
    fclose(to);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        out_line(out, "%.*s", (int)(end - line), line);
    free(text);
}

static int print_text(const struct graph *graph, const struct said *said, char **whole_argv,
                      struct err *err)
{
    int argc = 0;
    while (whole_argv[argc])
        argc++;
    struct out *out = out_new(NULL, 0);
    if (out_add(out, OUT_FORMAT_TEXT, NULL, false, err) == 0) {
        bool gpus = has(graph, GRAPH_ACCEL), nics = has(graph, GRAPH_NIC);
        header_machine(out, SOURCE_MEASURED, argc, whole_argv);
        out_note(out, "processors and the bus: %s", said->hwloc);
        out_note(out, "%s", said->nvml);
        note_graph(out, graph);
        if (!gpus && !nics) out_note(out, "there is no accelerator and no NIC");
        if (gpus && !nics) out_note(out, "there is no NIC");
        if (!gpus && nics) out_note(out, "there is no accelerator");
        if (gpus || nics) print_matrix(out, graph);
    }
    return out_close(out, err);
}

/* ---- the file -------------------------------------------------------------------------------- */

static int write_json(const struct graph *graph, const struct asked *asked, struct err *err)
{
    bool file = strcmp(asked->json, "-") != 0;
    FILE *to = file ? fopen(asked->json, asked->overwrite ? "w" : "wx") : stdout;
    if (!to && errno == EEXIST)
        return err_add(err, ERR_USAGE,
                       "%s exists and is kept; name another file or give --overwrite", asked->json);
    if (!to) return err_add(err, ERR_USAGE, "cannot write %s: %s", asked->json, strerror(errno));
    graph_write(graph, to);
    bool bad = fflush(to) || ferror(to);
    if (file) bad |= fclose(to) != 0;
    return bad ? err_add(err, ERR_FAILED, "%s was not written: %s", file ? asked->json : "stdout",
                         strerror(errno))
               : 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* What NVML knows, and a sentence about it, freed by the caller; NULL: an error. Of another machine
 * it knows nothing, unless it was named. */
static char *ask_nvml(const struct topo_view *view, struct nvml *nvml, struct err *err)
{
    const char *named = getenv(nvml_variable);
    if (!topo_view_own(view) && !(named && *named))
        return mem_strdup("NVML was not asked: it knows this machine alone");
    struct err why = ERR_INIT;
    char *says = NULL;
    if (nvml_read(nvml, &why) == 0) {
        says = mem_printf("GPUs and NVLinks: %s", nvml->text);
    } else if (why.code == ERR_USAGE) {
        err_move(err, &why);
    } else {
        says = mem_strdup(why.text);
        nvml_release(nvml); /* all or nothing */
    }
    err_release(&why);
    return says;
}

static int show(const struct asked *asked, const struct topo_view *view, char **whole_argv,
                struct err *err)
{
    struct graph graph = {0};
    struct nvml nvml = {0};
    struct said said = {.nvml = ask_nvml(view, &nvml, err)};
    int bad = said.nvml ? 0 : -1;
    if (!bad) {
        said.hwloc = mem_printf("hwloc %s%s", HWLOC_VERSION,
                                topo_view_own(view) ? ""
                                                    : ", from HWLOC_XMLFILE, HWLOC_SYNTHETIC or "
                                                      "HWLOC_FSROOT, not from this machine");
        graph.source =
            mem_printf("%s%s%s", said.hwloc, nvml.text ? "; " : "", nvml.text ? nvml.text : "");
        topo_view_graph(view, &nvml, &graph);
        add_nvlinks(&graph, &nvml);
        bad = graph_check(&graph, "this machine", err);
        if (!bad && asked->json) bad = write_json(&graph, asked, err);
        bool text = !asked->json || strcmp(asked->json, "-") != 0;
        if (!bad && text) bad = print_text(&graph, &said, whole_argv, err);
    }
    free(said.hwloc);
    free(said.nvml);
    graph_release(&graph);
    nvml_release(&nvml);
    return bad;
}

/* Where the ranks will be, as p2p places them. */
static int note_ranks(const char *list, uint32_t nranks, struct err *err)
{
    struct place *place = place_plan(BIND_CORE, nranks);
    struct out *out = out_new(NULL, 0);
    if (out_add(out, OUT_FORMAT_TEXT, NULL, false, err) == 0) {
        out_note(out, "measured as by: taskset -c %s collbench p2p --ranks %" PRIu32, list, nranks);
        for (uint32_t r = 0; r < nranks; r++)
            out_note(out, "rank %" PRIu32 ": processors %s, NUMA node %" PRId32, r,
                     place_cpus(place, r), (int32_t)place_node(place, r));
    }
    place_free(place);
    return out_close(out, err);
}

/* Hands over to p2p; its exit status. */
static int measure(const struct topo_view *view, struct err *err)
{
    char *list;
    uint32_t nranks = topo_view_spread(view, MEASURE_MOST, &list);
    int status = 0;
    if (nranks < 2) {
        err_add(err, ERR_FAILED, "--measure: there is one processor to run on, and no pair");
    } else if (note_ranks(list, nranks, err) == 0) {
        char program[] = "collbench", word[] = "p2p", option[] = "--ranks", count[16];
        char *words[] = {program, word, option, count, NULL};
        snprintf(count, sizeof count, "%" PRIu32, nranks);
        status = p2p_cmd(3, words + 1, words);
    }
    free(list);
    return status;
}

static int run(const struct asked *asked, char **whole_argv, struct err *err)
{
    bool only_json = asked->json && strcmp(asked->json, "-") == 0;
    if (asked->measure && only_json)
        err_add(err, ERR_USAGE, "--measure prints a table, and --json - has stdout: name a file");
    struct topo_view *view = err->count ? NULL : topo_view_new(err);
    if (view && asked->measure && !topo_view_own(view))
        err_add(err, ERR_USAGE,
                "--measure measures this machine, and HWLOC_XMLFILE, "
                "HWLOC_SYNTHETIC or HWLOC_FSROOT names another one");
    int bad = err->count ? -1 : show(asked, view, whole_argv, err);
    int status = !bad && asked->measure ? measure(view, err) : 0;
    topo_view_free(view);
    return status;
}

int topo_here_cmd(int argc, char **argv, char **whole_argv)
{
    struct asked asked = {.json = NULL};
    struct opts opts;
    struct err err = ERR_INIT;
    int status = 0;
    opts_parse(&opts, rows, &asked, argc, argv, &err);
    if (opts.npositionals > 0)
        err_add(&err, ERR_USAGE, "takes no words, \"%s\" was given", opts.positionals[0]);
    if (opts.help) {
        opts_help(stdout, "collbench topo [options]", about, rows);
    } else if (err.count == 0) {
        status = run(&asked, whole_argv, &err);
    }
    if (err.code) status = (int)err.code;
    err_print(&err, "collbench topo");
    err_release(&err);
    opts_release(&opts);
    return status;
}
