/* SPDX-License-Identifier: Apache-2.0
 * `commsim topo show|check|convert|draw FILE`: see topo_cmd.h. A file is a graph of one machine
 * (graph.h), a cluster of like hosts (topo.h), or a network of ASTRA-sim (astra.h); every word has
 * a function for each of the three. */
#include "net/topo_cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/opts.h"
#include "net/astra.h"
#include "net/fault.h"
#include "net/graph.h"
#include "net/host.h"
#include "net/network.h"
#include "net/topo.h"
#include "net/topo_text.h"

enum form { FORM_GRAPH, FORM_UNIFORM, FORM_ASTRA, NFORMS };
static const char *const form_names[] = {
    [FORM_GRAPH] = "graph", [FORM_UNIFORM] = "uniform", [FORM_ASTRA] = "astra", [NFORMS] = NULL};

struct request {
    const char *output, *accelerator;
    unsigned to; /* a form; NFORMS: not said */
    ps_t scale_up_latency_ps, network_latency_ps;
    bool overwrite;
    struct fault_args fault;
};

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct request, field), .value = (value_), .arg = (arg_),               \
        .help = (help_), __VA_ARGS__                                                               \
    }

static const struct opts_row options[] = {
    ROW("to", 0, OPTS_CHOICE, to, NULL, "FORM",
        "convert: graph (one machine, node by node), uniform (like hosts) or astra (ASTRA-sim's "
        "network file); without it, graph, or uniform from a file of ASTRA-sim",
        .choices = form_names),
    ROW("accelerator", 0, OPTS_STRING, accelerator, NULL, "TYPE",
        "the type of accelerator that a file of ASTRA-sim means: it does not say so"),
    ROW("scale-up-latency", 0, OPTS_TIME_PS, scale_up_latency_ps, "1us", "TIME",
        "convert --to astra: latency inside a domain where the topology states none"),
    ROW("network-latency", 0, OPTS_TIME_PS, network_latency_ps, "5us", "TIME",
        "convert --to astra: latency between hosts where the topology states none"),
    ROW("output", 'o', OPTS_STRING, output, NULL, "FILE",
        "convert, draw: where to, instead of stdout"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, NULL, "the file may exist already"),
    {.name = NULL},
};

static const char about[] =
    "Reads what a machine or a cluster is made of: a topology as --topo takes it (a shipped name, "
    "dgx-h100x16, a file), the table of `nvidia-smi topo -m` or `nvidia-smi "
    "nvlink --status` as text, the XML that NCCL and RCCL "
    "write (NCCL_TOPO_DUMP_FILE), a graph in commsim's own form, or a network file of ASTRA-sim; - "
    "is stdin. show prints what is in it, the table of a host, and what looks wrong; check says "
    "what is wrong and is silent otherwise; convert writes another form; draw writes a picture for "
    "Graphviz (dot -Tsvg).";

/* What was read; `form` says which of the three. */
struct input {
    enum form form;
    const char *path;
    const struct request *request;
    struct accel_table accels;
    struct graph graph; /* GRAPH */
    struct topo topo;   /* UNIFORM, and its host */
    struct host host;
    struct astra astra;
    char *text;
    struct doc doc; /* of a topology from stdin */
};

/* Nodes of each kind, "8 x gpu, 2 x numa". */
static void print_counts(const struct graph *graph, FILE *to)
{
    size_t counts[NGRAPH_KINDS] = {0}, nvlinks = 0;
    bool first = true;
    for (size_t i = 0; i < graph->nnodes; i++)
        counts[graph->nodes[i].kind]++;
    for (size_t i = 0; i < graph->nlinks; i++)
        nvlinks += graph->links[i].via == GRAPH_NVLINK ? graph->links[i].count : 0;
    fprintf(to, "# ");
    for (int kind = 0; kind < NGRAPH_KINDS; kind++) {
        if (!counts[kind]) continue;
        fprintf(to, "%s%zu x %s", first ? "" : ", ", counts[kind],
                graph_kind_name((enum graph_kind)kind));
        first = false;
    }
    if (nvlinks) fprintf(to, ", %zu x nvlink", nvlinks);
    fputc('\n', to);
}

/* NVLinks of each accelerator where their rate is known: "gpu0: 4 x nvlink, 103.1 GB/s". */
static void print_nvlinks(const struct graph *graph, FILE *to)
{
    uint32_t *count = mem_calloc(graph->nnodes, sizeof *count);
    double *GBps = mem_calloc(graph->nnodes, sizeof *GBps);
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->via != GRAPH_NVLINK) continue;
        count[link->a] += link->count, count[link->b] += link->count;
        GBps[link->a] += link->GBps, GBps[link->b] += link->GBps;
    }
    for (size_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->kind != GRAPH_ACCEL || GBps[i] <= 0) continue;
        fprintf(to, "# %s%s%s: %" PRIu32 " x nvlink, %.4g GB/s per direction\n", node->name,
                node->type ? ", " : "", node->type ? node->type : "", count[i], GBps[i]);
    }
    free(count);
    free(GBps);
}

static void print_warnings(const struct graph *graph, const char *before, FILE *to)
{
    for (size_t i = 0; i < graph->nwarnings; i++)
        fprintf(to, "%sWARNING: %s\n", before, graph->warnings[i]);
}

/* ---- show, check, draw ---- */

static int show_graph(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    if (input->graph.about) fprintf(to, "# %s\n", input->graph.about);
    print_counts(&input->graph, to);
    print_nvlinks(&input->graph, to);
    print_warnings(&input->graph, "# ", to);
    graph_matrix(&input->graph, to);
    return 0;
}

static int show_uniform(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    topo_text_show(&input->topo, &input->host.graph, to);
    print_warnings(&input->host.graph, "# ", to);
    return 0;
}

static int show_astra(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    uint64_t npus = 1;
    for (size_t i = 0; i < input->astra.ndims; i++) {
        const struct astra_dim *dim = &input->astra.dims[i];
        fprintf(to, "# dimension %zu: %s of %" PRIu64 ", %.4g GB/s a link (10^9), latency %g ns\n",
                i + 1, astra_kind_name(dim->kind), dim->npus, dim->bandwidth_GiBps * 1.073741824,
                dim->latency_ns);
        npus *= dim->npus;
    }
    fprintf(to, "# %" PRIu64 " accelerators in all\n", npus);
    return 0;
}

/* Reading has found all faults; what a host's description left open is none. */
static int check_read(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    print_warnings(&input->graph, "", to);
    return 0;
}

/* Whether a topology can be made of the dimensions; which accelerator does not matter for that. */
static int check_astra(struct input *input, FILE *to, struct err *err)
{
    (void)to;
    struct topo topo;
    int bad = astra_to_topo(&input->astra, input->path, &input->accels.rows[0], &topo, err);
    if (!bad) topo_release(&topo);
    return bad;
}

static int draw_graph(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    graph_dot(&input->graph, to);
    return 0;
}

static int draw_uniform(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    topo_text_dot(&input->topo, &input->host.graph, to);
    return 0;
}

/* ---- convert ---- */

static int to_graph(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    struct graph *graph = input->form == FORM_GRAPH ? &input->graph : &input->host.graph;
    if (!graph->source && input->form != FORM_GRAPH) /* figures need one */
        graph->source =
            mem_printf("a host of %s, and what is usual where that says nothing", input->path);
    graph_write(graph, to);
    return 0;
}

static int to_uniform(struct input *input, FILE *to, struct err *err)
{
    (void)err;
    char *source = mem_printf("%s, a network file of ASTRA-sim", input->path);
    topo_text_write(&input->topo, source, to);
    free(source);
    return 0;
}

static int to_astra(struct input *input, FILE *to, struct err *err)
{
    const struct request *request = input->request;
    if (input->form == FORM_ASTRA) { /* the same in our hand */
        astra_write(&input->astra, to);
        return 0;
    }
    struct astra_latency latency = {.scale_up_ns = (double)request->scale_up_latency_ps / 1e3,
                                    .network_ns = (double)request->network_latency_ps / 1e3};
    struct astra astra;
    if (astra_from_topo(&astra, &input->topo, &latency, err)) return -1;
    char *text = topo_describe(&input->topo);
    fprintf(to, "# %s\n# line rates; bandwidth in 2^30 bytes/s, latency in ns\n", text);
    free(text);
    astra_write(&astra, to);
    astra_release(&astra);
    return 0;
}

typedef int verb_fn(struct input *input, FILE *to, struct err *err);

/* Reads the accelerator of a file of ASTRA-sim and makes it a topology. */
static int make_uniform(struct input *input, struct err *err);

static int convert(struct input *input, FILE *to, struct err *err)
{
    static verb_fn *const ways[NFORMS][NFORMS] = {
        [FORM_GRAPH] = {[FORM_GRAPH] = to_graph},
        [FORM_UNIFORM] = {[FORM_GRAPH] = to_graph, [FORM_ASTRA] = to_astra},
        [FORM_ASTRA] =
            {[FORM_GRAPH] = to_graph, [FORM_UNIFORM] = to_uniform, [FORM_ASTRA] = to_astra},
    };
    enum form from = input->form;
    unsigned form = input->request->to;
    if (form == NFORMS) form = from == FORM_ASTRA ? FORM_UNIFORM : FORM_GRAPH;
    if (!ways[from][form])
        return err_add(err, ERR_USAGE,
                       "--to %s: %s is of the form %s, which can be converted to %s",
                       form_names[form], input->path, form_names[from],
                       from == FORM_GRAPH ? "graph" : "graph and astra");
    if (from == FORM_ASTRA && form != FORM_ASTRA && make_uniform(input, err)) return -1;
    return ways[from][form](input, to, err);
}

static int draw_astra(struct input *input, FILE *to, struct err *err)
{
    return make_uniform(input, err) ? -1 : draw_uniform(input, to, err);
}

static const struct verb {
    const char *name;
    verb_fn *run[NFORMS];
    bool writes; /* a file, if asked for */
} verbs[] = {
    {"show", {show_graph, show_uniform, show_astra}, false},
    {"check", {check_read, check_read, check_astra}, false},
    {"convert", {convert, convert, convert}, true},
    {"draw", {draw_graph, draw_uniform, draw_astra}, true},
};
enum { NVERBS = sizeof verbs / sizeof *verbs };

static const struct verb *find_verb(const char *word, struct err *err)
{
    const char *names[NVERBS + 1] = {0};
    for (size_t i = 0; i < NVERBS; i++) {
        if (strcmp(word, verbs[i].name) == 0) return &verbs[i];
        names[i] = verbs[i].name;
    }
    opts_unknown(err, "word", word, names);
    return NULL;
}

/* ---- reading ---- */

/* The graph of a host, and whether the network of all of them can be built. */
static int build(struct input *input, struct err *err)
{
    struct net_rate rates[NNET_KINDS];
    for (int kind = 0; kind < NNET_KINDS; kind++)
        rates[kind] = (struct net_rate){.efficiency = 1};
    if (host_make(&input->host, &input->topo, err)) return -1;
    struct network *network = network_build(&input->topo, rates, NET_OWN, NULL, err);
    network_free(network);
    return network ? 0 : -1;
}

static int make_uniform(struct input *input, struct err *err)
{
    if (!input->request->accelerator)
        return err_add(err, ERR_USAGE,
                       "%s: a file of ASTRA-sim does not say what its accelerators are: give "
                       "--accelerator TYPE, a name of topologies/accelerators.json such as %s",
                       input->path, input->accels.rows[0].name);
    const struct accel *accel = accel_find(&input->accels, input->request->accelerator, err);
    if (!accel || astra_to_topo(&input->astra, input->path, accel, &input->topo, err)) return -1;
    return build(input, err);
}

/* Whether a text is JSON of form "uniform"; if so it stays in `doc`. */
static bool is_uniform(struct doc *doc, const char *path, const char *text, size_t bytes)
{
    struct err quiet = ERR_INIT;
    const char *form = NULL;
    bool is = doc_parse(doc, path, text, bytes, &quiet) == 0 &&
              doc_string(doc, doc->root, "form", &form, &quiet) == 1 &&
              strcmp(form, form_names[FORM_UNIFORM]) == 0;
    err_release(&quiet);
    if (!is) doc_release(doc);
    return is;
}

static int read_uniform(struct input *input, struct err *err)
{
    input->form = FORM_UNIFORM;
    if (strcmp(input->path, "-") != 0) {
        if (topo_read(&input->topo, &input->accels, input->path, 0, 0, err)) return -1;
    } else {
        input->topo.name = mem_strdup(input->path);
        if (topo_parse(&input->topo, &input->doc, &input->accels, err)) return -1;
    }
    if (fault_parse_all(&input->topo, &input->request->fault.faults, err)) return -1;
    return build(input, err);
}

/* A name that is no file is that of a topology. */
static int read_input(struct input *input, struct err *err)
{
    size_t bytes = 0;
    if (accel_read(&input->accels, NULL, err)) return -1;
    if (strcmp(input->path, "-") != 0 && access(input->path, F_OK) != 0)
        return read_uniform(input, err);
    input->text = graph_text(input->path, &bytes, err);
    if (!input->text) return -1;
    if (astra_is(input->text, bytes)) {
        input->form = FORM_ASTRA;
        return astra_parse(&input->astra, input->path, input->text, bytes, err);
    }
    if (is_uniform(&input->doc, input->path, input->text, bytes)) return read_uniform(input, err);
    return graph_parse(&input->graph, input->path, input->text, bytes, err);
}

static void input_release(struct input *input)
{
    graph_release(&input->graph);
    host_release(&input->host);
    topo_release(&input->topo);
    astra_release(&input->astra);
    doc_release(&input->doc);
    accel_release(&input->accels);
    free(input->text);
}

/* ---- the command ---- */

static int check_options(const struct opts *opts, const struct verb *verb, struct err *err)
{
    static const char *const convert_only[] = {"to", "scale-up-latency", "network-latency"};
    for (size_t i = 0; i < sizeof convert_only / sizeof *convert_only; i++)
        if (opts_is_set(opts, convert_only[i]) && strcmp(verb->name, "convert") != 0)
            err_add(err, ERR_USAGE, "--%s is for convert, not for %s", convert_only[i], verb->name);
    if (opts_is_set(opts, "fault") && strcmp(verb->name, "convert") == 0)
        err_add(err, ERR_USAGE,
                "--fault is for show, check and draw, not for convert: write "
                "\"faults\" into the file");
    if (opts_is_set(opts, "output") && !verb->writes)
        err_add(err, ERR_USAGE, "--output (-o) is for convert and draw, not for %s", verb->name);
    return err->count ? -1 : 0;
}

/* Opens the file, writes what was made, closes it. */
static int save(const struct request *request, const char *text, size_t bytes, struct err *err)
{
    bool file = request->output && strcmp(request->output, "-") != 0;
    FILE *to = file ? fopen(request->output, request->overwrite ? "w" : "wx") : stdout;
    if (!to)
        return err_add(err, ERR_USAGE, "--output %s: %s%s", request->output, strerror(errno),
                       errno == EEXIST ? "; --overwrite allows it" : "");
    bool short_of = fwrite(text, 1, bytes, to) < bytes;
    if (fflush(to) || short_of || (file && fclose(to)))
        return err_add(err, ERR_FAILED, "cannot write %s: %s", file ? request->output : "stdout",
                       strerror(errno));
    return 0;
}

/* Faults are those of a cluster; in a graph of one machine a link that is broken is not there. */
static int refuse_faults(const struct input *input, struct err *err)
{
    if (input->form == FORM_UNIFORM || input->request->fault.faults.count == 0) return 0;
    return err_add(err, ERR_USAGE, "--fault: %s is of the form %s; faults are for the form %s",
                   input->path, form_names[input->form], form_names[FORM_UNIFORM]);
}

static void run(const struct request *request, const struct verb *verb, const char *path,
                struct err *err)
{
    struct input input = {.path = path, .request = request};
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    int bad = read_input(&input, err) || refuse_faults(&input, err) ||
              verb->run[input.form](&input, memory, err);
    fclose(memory);
    if (!bad) save(request, text, bytes, err);
    free(text);
    input_release(&input);
}

int topo_cmd(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct request request = {.to = NFORMS};
    struct opts opts;
    const struct verb *verb = NULL;
    struct opts_part parts[] = {{options, 0}, {fault_rows, offsetof(struct request, fault)}};
    struct opts_row *all = opts_join(parts, sizeof parts / sizeof *parts);
    if (opts_parse(&opts, all, &request, argc, argv, &err) == 0 && opts.help)
        opts_help(stdout, "commsim topo show|check|convert|draw FILE [options]", about, all);
    else if (err.count == 0 && opts.npositionals != 2)
        err_add(&err, ERR_USAGE,
                "commsim topo takes a word (show, check, convert or draw) and a file, %zu words "
                "are given",
                opts.npositionals);
    else if (err.count == 0)
        verb = find_verb(opts.positionals[0], &err);
    if (verb && check_options(&opts, verb, &err) == 0)
        run(&request, verb, opts.positionals[1], &err);
    opts_release(&opts);
    free(all);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
