/* SPDX-License-Identifier: Apache-2.0
 * `commsim goal FILE`: options, the network that they mean, one row. Reading and timing are
 * goal_run.h's. */
#include "net/goal_cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/units.h"
#include "net/fault.h"
#include "net/goal_run.h"
#include "net/library.h"
#include "net/network.h"
#include "net/topo.h"

struct request {
    struct topo_args cluster;
    struct fault_args fault;
    ps_t alpha_ps, overhead_ps;
    double beta_Bps;
    const char *json, *csv;
    bool links, overwrite;
};

#define ROW(name_, type_, field, value_, arg_, help_, ...)                                         \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .value = (value_), .arg = (arg_), .help = (help_), __VA_ARGS__                             \
    }

static const struct opts_row rows[] = {
    ROW("alpha", OPTS_TIME_PS, alpha_ps, "5us", "TIME",
        "without --topo: latency; a message arrives this long after its last byte has left",
        .section = "The network"),
    ROW("beta", OPTS_BANDWIDTH, beta_Bps, "50GB/s", "BANDWIDTH",
        "without --topo: bandwidth of a rank's link to the one switch, in each direction"),
    ROW("overhead", OPTS_TIME_PS, overhead_ps, "0ps", "TIME",
        "time for which a cpu of the schedule is busy with each message it sends"),
    ROW("links", OPTS_FLAG, links, NULL, NULL, "a line for each link that carried anything",
        .section = "Output"),
    ROW("json", OPTS_STRING, json, NULL, "FILE",
        "write the table as JSON too; - is stdout, without the text", .letter = 'J'),
    ROW("csv", OPTS_STRING, csv, NULL, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("overwrite", OPTS_FLAG, overwrite, NULL, NULL, "files may exist already"),
    {.name = NULL},
};

static const char about[] =
    "Times a schedule that is given as GOAL text (the input of LogGOPSim; `collbench schedule "
    "--export FILE.goal` writes such files): sends, receives and calculations of each rank, and "
    "what waits for what. Messages share the links of the network. - is stdin. The file holds no "
    "data: that the schedule is right is not checked, only that every message has two ends of one "
    "size and that nothing waits in a circle.";

static const struct out_column columns[] = {
    {"ranks", NULL, 8, 0, OUT_UINT, NULL, NULL},
    {"ops", NULL, 11, 0, OUT_UINT, NULL, NULL},
    {"messages", NULL, 11, 0, OUT_UINT, NULL, NULL},
    {"bytes", "B", 16, 0, OUT_UINT, NULL, NULL},
    {"time", "us", 14, 3, OUT_DOUBLE, NULL, NULL},
    {"busiest", NULL, -30, 0, OUT_TEXT, "busiest link", NULL},
    {"use", "%", 7, 2, OUT_DOUBLE, NULL, NULL},
    {"events", NULL, 0, 0, OUT_UINT, NULL, NULL},
};
enum { NCOLUMNS = sizeof columns / sizeof *columns };

/* The whole file, of any length; NULL with a sentence. */
static char *read_all(const char *path, size_t *bytes, struct err *err)
{
    FILE *from = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    size_t cap = 1 << 16, got = 1;
    char *text = mem_calloc(cap, 1);
    *bytes = 0;
    while (from && got > 0) {
        if (*bytes + 1 == cap) text = mem_realloc(text, cap *= 2, 1);
        got = fread(text + *bytes, 1, cap - 1 - *bytes, from);
        *bytes += got;
    }
    bool bad = !from || ferror(from);
    if (from && from != stdin) fclose(from);
    if (!bad) return text;
    free(text);
    err_add(err, ERR_USAGE, "%s: there is no such file, or it cannot be read", path);
    return NULL;
}

/* ---- the network ---- */

static struct network *build_cluster(const struct topo *topo, struct err *err)
{
    struct net_const_table consts;
    struct net_rate rates[NNET_KINDS];
    if (net_const_read(&consts, NULL, err)) return NULL;
    net_rates(&consts.values, topo, rates);
    struct network *network = network_build(topo, rates, NET_OWN, NULL, err);
    net_const_release(&consts);
    return network;
}

/* The network of --topo, or one switch; *text says which. */
static struct network *get_network(const struct request *request, uint32_t nranks, char **text,
                                   struct err *err)
{
    const struct topo_args *cluster = &request->cluster;
    if (!cluster->topo) {
        *text = mem_printf("one switch, %s a rank and direction, latency %s",
                           units_bandwidth((char[UNITS_TEXT]){0}, request->beta_Bps),
                           units_time((char[UNITS_TEXT]){0}, (double)request->alpha_ps / 1e12));
        return network_switch(nranks, request->beta_Bps, request->alpha_ps);
    }
    struct accel_table accels = {0};
    struct topo topo = {0};
    struct network *network = NULL;
    if (accel_read(&accels, NULL, err) == 0 &&
        topo_read(&topo, &accels, cluster->topo, cluster->nodes, cluster->gpus, err) == 0 &&
        fault_parse_all(&topo, &request->fault.faults, err) == 0) {
        network = build_cluster(&topo, err);
        *text = topo_describe(&topo);
    }
    topo_release(&topo);
    accel_release(&accels);
    return network;
}

/* ---- output ---- */

/* The share of a link's capacity that was used. */
static double use_of(const struct network *network, const struct goal_result *result, uint32_t link)
{
    double time = (double)result->total_ps / 1e12;
    return time > 0 ? result->link_bytes[link] / network_link(network, link).capacity_Bps / time
                    : 0;
}

static void print_links(struct out *out, const struct network *network,
                        const struct goal_result *result)
{
    for (uint32_t i = 0; i < network_links(network); i++) {
        if (result->link_bytes[i] <= 0) continue;
        char *name = network_link_name(network, i);
        out_note(out, "link %s: %.0f B, %.2f %% of its capacity", name, result->link_bytes[i],
                 100 * use_of(network, result, i));
        free(name);
    }
}

static void print_row(struct out *out, const struct goal *goal, const struct network *network,
                      const struct goal_result *result)
{
    uint32_t busiest = 0;
    for (uint32_t i = 1; i < network_links(network); i++)
        if (use_of(network, result, i) > use_of(network, result, busiest)) busiest = i;
    double use = use_of(network, result, busiest);
    char *name = network_link_name(network, busiest);
    const struct out_cell none = {0};
    out_row(out, (struct out_cell[NCOLUMNS]){
                     out_uint(goal->nranks), out_uint(goal->nops), out_uint(goal->messages),
                     out_uint(goal->bytes), out_double((double)result->total_ps / 1e6),
                     use > 0 ? out_text(name) : none, use > 0 ? out_double(100 * use) : none,
                     out_uint(result->events)});
    free(name);
}

static int print(const struct request *request, const struct goal *goal,
                 const struct network *network, const char *cluster,
                 const struct goal_result *result, struct err *err)
{
    struct out *out = out_new(columns, NCOLUMNS);
    int bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    if (!bad) {
        out_meta(out, "program", out_text("commsim " COMMSIM_VERSION));
        out_meta(out, "file", out_text(goal->path));
        out_meta(out, "network", out_text(cluster));
        out_note(out, "commsim %s: SIMULATED %s; nothing was measured, data is not checked",
                 COMMSIM_VERSION, goal->path);
        out_note(out, "network: %s", cluster);
        if (request->links) print_links(out, network, result);
        print_row(out, goal, network, result);
    }
    return out_close(out, err) | bad;
}

/* ---- the command ---- */

static void run(const struct request *request, const char *path, struct err *err)
{
    size_t bytes = 0;
    struct goal goal = {0};
    struct network *network = NULL;
    struct goal_result result = {0};
    char *cluster = NULL, *text = read_all(path, &bytes, err);
    if (text && goal_read(&goal, path, text, bytes, err) == 0)
        network = get_network(request, goal.nranks, &cluster, err);
    if (network && goal_run(&goal, network, request->overhead_ps, &result, err) == 0)
        print(request, &goal, network, cluster, &result, err);
    goal_result_release(&result);
    network_free(network);
    goal_release(&goal);
    free(cluster);
    free(text);
}

/* Options that mean something with a cluster alone, or without one alone. */
static void check_options(const struct opts *opts, struct err *err)
{
    static const struct {
        const char *name;
        bool cluster;
    } some[] = {
        {"alpha", false}, {"beta", false}, {"nodes", true}, {"gpus", true}, {"fault", true}};
    bool cluster = opts_is_set(opts, "topo");
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (opts_is_set(opts, some[i].name) && some[i].cluster != cluster)
            err_add(err, ERR_USAGE, "--%s: %s --topo", some[i].name,
                    cluster ? "is of the one switch that there is without" : "says something of");
}

int goal_cmd(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct request request = {0};
    struct opts opts;
    struct opts_part parts[] = {{topo_rows, offsetof(struct request, cluster)},
                                {fault_rows, offsetof(struct request, fault)},
                                {rows, 0}};
    struct opts_row *all = opts_join(parts, sizeof parts / sizeof *parts);
    if (opts_parse(&opts, all, &request, argc, argv, &err) == 0 && opts.help) {
        opts_help(stdout, "commsim goal FILE [options]", about, all);
    } else if (err.count == 0) {
        if (opts.npositionals != 1)
            err_add(&err, ERR_USAGE, "commsim goal takes one file, %zu are given",
                    opts.npositionals);
        check_options(&opts, &err);
        if (err.count == 0) run(&request, opts.positionals[0], &err);
    }
    opts_release(&opts);
    free(all);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
