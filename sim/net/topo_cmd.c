/* SPDX-License-Identifier: Apache-2.0
 * `commsim topo show|check|convert|draw FILE`: see topo_cmd.h. The readers and writers are those of
 * graph.h; a shipped description without a graph is described in one line. */
#include "net/topo_cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "net/graph.h"
#include "net/topo.h"

struct request {
    const char *output;
    bool overwrite;
};

static const struct opts_row options[] = {
    {.name = "output",
     .letter = 'o',
     .type = OPTS_STRING,
     .offset = offsetof(struct request, output),
     .arg = "FILE",
     .help = "convert, draw: where to, instead of stdout"},
    {.name = "overwrite",
     .type = OPTS_FLAG,
     .offset = offsetof(struct request, overwrite),
     .help = "the file may exist already"},
    {.name = NULL},
};

static const char about[] =
    "Reads what a machine is made of: the table of `nvidia-smi topo -m` as text, the XML that NCCL "
    "and RCCL write (NCCL_TOPO_DUMP_FILE), or a graph in commsim's own form; - is stdin. show "
    "prints "
    "the table, what is in it, and what looks wrong; check says what is wrong and is silent "
    "otherwise; convert writes commsim's form; draw writes a picture for Graphviz (dot -Tsvg).";

/* Nodes of each kind, "8 x gpu, 2 x numa". */
static void print_counts(const struct graph *graph)
{
    size_t counts[NGRAPH_KINDS] = {0}, nvlinks = 0;
    bool first = true;
    for (size_t i = 0; i < graph->nnodes; i++)
        counts[graph->nodes[i].kind]++;
    for (size_t i = 0; i < graph->nlinks; i++)
        nvlinks += graph->links[i].via == GRAPH_NVLINK ? graph->links[i].count : 0;
    printf("# ");
    for (int kind = 0; kind < NGRAPH_KINDS; kind++) {
        if (!counts[kind]) continue;
        printf("%s%zu x %s", first ? "" : ", ", counts[kind],
               graph_kind_name((enum graph_kind)kind));
        first = false;
    }
    if (nvlinks) printf(", %zu x nvlink", nvlinks);
    putchar('\n');
}

static int show(const struct graph *graph, FILE *to)
{
    if (graph->about) printf("# %s\n", graph->about);
    print_counts(graph);
    for (size_t i = 0; i < graph->nwarnings; i++)
        printf("# WARNING: %s\n", graph->warnings[i]);
    graph_matrix(graph, to);
    return 0;
}

static int check(const struct graph *graph, FILE *to)
{
    for (size_t i = 0; i < graph->nwarnings; i++)
        fprintf(to, "WARNING: %s\n", graph->warnings[i]);
    return 0;
}

static int convert(const struct graph *graph, FILE *to)
{
    graph_write(graph, to);
    return 0;
}

static int draw(const struct graph *graph, FILE *to)
{
    graph_dot(graph, to);
    return 0;
}

static const struct verb {
    const char *name;
    int (*run)(const struct graph *graph, FILE *to);
    bool writes; /* a file, if asked for */
} verbs[] = {
    {"show", show, false},
    {"check", check, false},
    {"convert", convert, true},
    {"draw", draw, true},
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

/* A shipped description, which is no graph: 1, or 0 when `name` is none. */
static int show_shipped(const char *name)
{
    struct err err = ERR_INIT;
    struct accel_table table = {0};
    struct topo topo;
    bool known =
        accel_read(&table, NULL, &err) == 0 && topo_read(&topo, &table, name, 0, 0, &err) == 0;
    if (known) {
        char *text = topo_describe(&topo);
        printf("# %s%s%s\n# all hosts are alike (form \"uniform\"): there is no graph to print\n",
               text, topo.about ? "\n# " : "", topo.about ? topo.about : "");
        free(text);
        topo_release(&topo);
    }
    accel_release(&table);
    err_release(&err);
    return known;
}

static FILE *open_output(const struct request *request, const struct verb *verb, struct err *err)
{
    if (!request->output || strcmp(request->output, "-") == 0) return stdout;
    if (!verb->writes) {
        err_add(err, ERR_USAGE, "--output (-o) is for convert and draw, not for %s", verb->name);
        return NULL;
    }
    FILE *file = fopen(request->output, request->overwrite ? "w" : "wx");
    if (!file)
        err_add(err, ERR_USAGE, "--output %s: %s%s", request->output, strerror(errno),
                errno == EEXIST ? "; --overwrite allows it" : "");
    return file;
}

static void run(const struct request *request, const char *word, const char *path, struct err *err)
{
    struct graph graph;
    const struct verb *verb = find_verb(word, err);
    if (!verb) return;
    FILE *to = open_output(request, verb, err);
    if (!to) return;
    struct err why = ERR_INIT;
    bool bad = graph_read(&graph, path, &why) != 0;
    if (bad && verb->run == show && show_shipped(path)) {
        err_release(&why);
    } else if (bad) {
        err_move(err, &why);
    } else {
        verb->run(&graph, to);
        graph_release(&graph);
    }
    if (fflush(to) || (to != stdout && fclose(to)))
        err_add(err, ERR_FAILED, "cannot write %s: %s",
                request->output ? request->output : "stdout", strerror(errno));
}

int topo_cmd(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct request request = {0};
    struct opts opts;
    if (opts_parse(&opts, options, &request, argc, argv, &err) == 0 && opts.help) {
        opts_help(stdout, "commsim topo show|check|convert|draw FILE [options]", about, options);
    } else if (err.count == 0 && opts.npositionals != 2) {
        err_add(
            &err, ERR_USAGE,
            "commsim topo takes a word (show, check, convert or draw) and a file, %zu words are "
            "given",
            opts.npositionals);
    } else if (err.count == 0) {
        run(&request, opts.positionals[0], opts.positionals[1], &err);
    }
    opts_release(&opts);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
