/* SPDX-License-Identifier: Apache-2.0
 * The graph's own form in JSON, its picture for Graphviz, and which reader a file is for. See
 * graph.h, topologies/README.md. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/doc.h"
#include "base/mem.h"
#include "net/graph.h"
#include "net/nccl_xml.h"
#include "net/smi.h"
#include "net/smi_links.h"

/* ---- writing ---- */

static void set_text(json_t *object, const char *key, const char *text)
{
    if (text) json_object_set_new(object, key, json_string(text));
}

static void set_figure(json_t *object, const char *key, double value)
{
    if (value > 0) json_object_set_new(object, key, json_real(value));
}

static json_t *node_json(const struct graph *graph, const struct graph_node *node)
{
    json_t *object = json_object();
    set_text(object, "name", node->name);
    set_text(object, "kind", graph_kind_name(node->kind));
    json_object_set_new(object, "number", json_integer(node->number));
    if (node->parent != GRAPH_NONE) set_text(object, "parent", graph->nodes[node->parent].name);
    set_text(object, "type", node->type);
    set_text(object, "address", node->address);
    set_text(object, "cpus", node->cpus);
    set_figure(object, "up_GBps", node->up_GBps);
    set_figure(object, "rate_Gbps", node->rate_Gbps);
    return object;
}

static json_t *link_json(const struct graph *graph, const struct graph_link *link)
{
    json_t *object = json_object(), *between = json_array();
    json_array_append_new(between, json_string(graph->nodes[link->a].name));
    json_array_append_new(between, json_string(graph->nodes[link->b].name));
    set_text(object, "kind", graph_via_name(link->via));
    json_object_set_new(object, "between", between);
    if (link->count != 1) json_object_set_new(object, "count", json_integer(link->count));
    set_figure(object, "GBps", link->GBps);
    set_figure(object, "latency_ns", link->latency_ns);
    return object;
}

/* One line of a list. */
static void write_line(json_t *object, bool last, FILE *to)
{
    fputs("    ", to);
    json_dumpf(object, to, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    fputs(last ? "\n" : ",\n", to);
    json_decref(object);
}

static void write_text(const char *key, const char *text, FILE *to)
{
    if (!text) return;
    json_t *string = json_string(text);
    fprintf(to, "  \"%s\": ", key);
    json_dumpf(string, to, JSON_ENCODE_ANY);
    fputs(",\n", to);
    json_decref(string);
}

void graph_write(const struct graph *graph, FILE *to)
{
    fputs("{\n  \"schema\": 1,\n  \"form\": \"graph\",\n", to);
    write_text("about", graph->about, to);
    write_text("source", graph->source, to);
    fputs("  \"nodes\": [\n", to);
    for (size_t i = 0; i < graph->nnodes; i++)
        write_line(node_json(graph, &graph->nodes[i]), i + 1 == graph->nnodes, to);
    fputs("  ],\n  \"links\": [\n", to);
    for (size_t i = 0; i < graph->nlinks; i++)
        write_line(link_json(graph, &graph->links[i]), i + 1 == graph->nlinks, to);
    fputs("  ]\n}\n", to);
}

/* ---- reading ---- */

enum { MOST_NODES = 1 << 20 };
#define MOST_RATE 1e9

struct entry {
    const char *name;
    uint32_t at; /* number of the node */
};

struct reader {
    struct graph *graph;
    struct doc *doc;
    struct err *err;
    struct entry *order; /* nodes by name */
};

/* The number of `word` among names; -1 with a fault that lists them. */
static int find_word(struct reader *reader, const json_t *object, const char *word, int count,
                     const char *(*name)(int))
{
    for (int i = 0; word && i < count; i++) {
        if (strcmp(word, name(i)) == 0) return i;
    }
    char *all = mem_strdup("");
    for (int i = 0; i < count; i++) {
        char *longer = mem_printf("%s%s%s", all, i ? ", " : "", name(i));
        free(all);
        all = longer;
    }
    doc_fault(reader->doc, reader->err, object, "kind", "kind %s%s%s; it is one of: %s",
              word ? "\"" : "", word ? word : "is missing", word ? "\" is none" : "", all);
    free(all);
    return -1;
}

static const char *kind_at(int i)
{
    return graph_kind_name((enum graph_kind)i);
}

static const char *via_at(int i)
{
    return graph_via_name((enum graph_via)i);
}

static void copy_text(struct reader *reader, const json_t *object, const char *key, char **to)
{
    const char *text = NULL;
    doc_string(reader->doc, object, key, &text, reader->err);
    if (text) *to = mem_strdup(text);
}

static void read_node(struct reader *reader, const json_t *object)
{
    static const char *const known[] = {"name",    "kind", "number",  "parent",    "type",
                                        "address", "cpus", "up_GBps", "rate_Gbps", NULL};
    const char *name = NULL, *word = NULL;
    uint64_t number = 0;
    doc_keys(reader->doc, object, known, reader->err);
    doc_string(reader->doc, object, "name", &name, reader->err);
    doc_string(reader->doc, object, "kind", &word, reader->err);
    int there = doc_uint(reader->doc, object, "number", 0, GRAPH_NONE - 1, &number, reader->err);
    int kind = find_word(reader, object, word, NGRAPH_KINDS, kind_at);
    if (!name) doc_fault(reader->doc, reader->err, object, "name", "name is missing");
    if (!there) doc_fault(reader->doc, reader->err, object, "number", "number is missing");
    if (kind < 0) kind = GRAPH_SWITCH; /* go on: all faults at once */
    uint32_t at = graph_add(reader->graph, (enum graph_kind)kind, name ? name : "",
                            (uint32_t)number, GRAPH_NONE);
    struct graph_node *node = &reader->graph->nodes[at];
    node->line = doc_line(reader->doc, object, "name", 0);
    copy_text(reader, object, "type", &node->type);
    copy_text(reader, object, "address", &node->address);
    copy_text(reader, object, "cpus", &node->cpus);
    doc_double(reader->doc, object, "up_GBps", 1e-6, MOST_RATE, &node->up_GBps, reader->err);
    doc_double(reader->doc, object, "rate_Gbps", 1e-6, MOST_RATE, &node->rate_Gbps, reader->err);
}

static int order_by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* The node called `name`; GRAPH_NONE with a fault. */
static uint32_t named(struct reader *reader, const json_t *object, const char *key,
                      const char *name)
{
    const struct entry wanted = {name, 0};
    const struct entry *found =
        bsearch(&wanted, reader->order, reader->graph->nnodes, sizeof wanted, order_by_name);
    if (found) return found->at;
    doc_fault(reader->doc, reader->err, object, key, "there is no node \"%s\"", name);
    return GRAPH_NONE;
}

static void read_parent(struct reader *reader, const json_t *object, uint32_t at)
{
    const char *name = NULL;
    doc_string(reader->doc, object, "parent", &name, reader->err);
    if (name) reader->graph->nodes[at].parent = named(reader, object, "parent", name);
}

static void read_link(struct reader *reader, const json_t *object)
{
    static const char *const known[] = {"kind", "between", "count", "GBps", "latency_ns", NULL};
    const char *word = NULL;
    uint64_t count = 1;
    json_t *between = NULL;
    uint32_t ends[2] = {GRAPH_NONE, GRAPH_NONE};
    doc_keys(reader->doc, object, known, reader->err);
    doc_string(reader->doc, object, "kind", &word, reader->err);
    doc_uint(reader->doc, object, "count", 1, GRAPH_NONE - 1, &count, reader->err);
    doc_child(reader->doc, object, "between", JSON_ARRAY, &between, reader->err);
    int via = find_word(reader, object, word, NGRAPH_VIAS, via_at);
    bool two = json_array_size(between) == 2 && json_is_string(json_array_get(between, 0)) &&
               json_is_string(json_array_get(between, 1));
    if (!two) doc_fault(reader->doc, reader->err, object, "between", "between is not two names");
    for (size_t i = 0; two && i < 2; i++)
        ends[i] = named(reader, object, "between", json_string_value(json_array_get(between, i)));
    if (via < 0 || ends[0] == GRAPH_NONE || ends[1] == GRAPH_NONE) return;
    graph_link(reader->graph, (enum graph_via)via, ends[0], ends[1], (uint32_t)count);
    struct graph_link *link = &reader->graph->links[reader->graph->nlinks - 1];
    link->line = doc_line(reader->doc, object, "between", 0);
    doc_double(reader->doc, object, "GBps", 1e-6, MOST_RATE, &link->GBps, reader->err);
    doc_double(reader->doc, object, "latency_ns", 0, MOST_RATE, &link->latency_ns, reader->err);
}

/* Figures need a source. */
static void need_source(struct reader *reader)
{
    const struct graph *graph = reader->graph;
    bool figures = false;
    for (size_t i = 0; i < graph->nnodes; i++)
        figures = figures || graph->nodes[i].up_GBps > 0 || graph->nodes[i].rate_Gbps > 0;
    for (size_t i = 0; i < graph->nlinks; i++)
        figures = figures || graph->links[i].GBps > 0 || graph->links[i].latency_ns > 0;
    if (figures && !graph->source)
        doc_fault(reader->doc, reader->err, reader->doc->root, "source",
                  "source is missing: where do the figures come from?");
}

static int read_form(struct graph *graph, struct doc *doc, struct err *err)
{
    static const char *const known[] = {"schema", "form",  "about", "source",
                                        "nodes",  "links", NULL};
    struct reader reader = {graph, doc, err, NULL};
    unsigned before = err->count;
    json_t *nodes = NULL, *links = NULL, *object;
    uint64_t schema = 0;
    size_t i;
    doc_keys(doc, doc->root, known, err);
    if (doc_uint(doc, doc->root, "schema", 1, 1, &schema, err) == 0)
        doc_fault(doc, err, doc->root, "schema", "schema is missing; it is 1");
    doc_child(doc, doc->root, "nodes", JSON_ARRAY, &nodes, err);
    doc_child(doc, doc->root, "links", JSON_ARRAY, &links, err);
    copy_text(&reader, doc->root, "about", &graph->about);
    copy_text(&reader, doc->root, "source", &graph->source);
    if (json_array_size(nodes) == 0)
        return doc_fault(doc, err, doc->root, "nodes", "there are no nodes");
    if (json_array_size(nodes) > MOST_NODES)
        return doc_fault(doc, err, doc->root, "nodes", "%zu nodes; the most are %d",
                         json_array_size(nodes), MOST_NODES);
    json_array_foreach(nodes, i, object) read_node(&reader, object);
    reader.order = mem_calloc(graph->nnodes, sizeof *reader.order);
    for (i = 0; i < graph->nnodes; i++)
        reader.order[i] = (struct entry){graph->nodes[i].name, (uint32_t)i};
    qsort(reader.order, graph->nnodes, sizeof *reader.order, order_by_name);
    json_array_foreach(nodes, i, object) read_parent(&reader, object, (uint32_t)i);
    json_array_foreach(links, i, object) read_link(&reader, object);
    free(reader.order);
    need_source(&reader);
    return err->count > before ? -1 : 0;
}

static int read_json(struct graph *graph, const char *path, const char *text, size_t bytes,
                     struct err *err)
{
    struct doc doc;
    const char *form = NULL;
    if (doc_parse(&doc, path, text, bytes, err)) return -1;
    int bad = doc_string(&doc, doc.root, "form", &form, err) < 0;
    if (!bad && (!form || strcmp(form, "graph") != 0)) {
        bad = doc_fault(&doc, err, doc.root, "form", "form %s%s%s; a graph has the form \"graph\"",
                        form ? "\"" : "is missing", form ? form : "", form ? "\"" : "");
    } else if (!bad) {
        bad = read_form(graph, &doc, err);
    }
    doc_release(&doc);
    return bad ? -1 : 0;
}

char *graph_text(const char *path, size_t *bytes, struct err *err)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = mem_calloc(1, 1);
    size_t cap = 1, got = 0;
    *bytes = 0;
    while (file && *bytes < DOC_BYTES_MAX) {
        if (*bytes + 1 >= cap) text = mem_realloc(text, cap = 2 * cap + 4096, 1);
        got = fread(text + *bytes, 1, cap - 1 - *bytes, file);
        if (got == 0) break;
        *bytes += got;
    }
    bool bad = !file || ferror(file) || *bytes >= DOC_BYTES_MAX;
    if (file && file != stdin) fclose(file);
    text[*bytes] = '\0';
    if (!bad) return text;
    free(text);
    err_add(err, ERR_USAGE, "%s: %s", path,
            file ? "cannot be read, or has more than 16 MiB"
                 : "there is no such file, or it cannot "
                   "be opened");
    return NULL;
}

int graph_parse(struct graph *graph, const char *path, const char *text, size_t bytes,
                struct err *err)
{
    static const struct {
        bool (*is)(const char *text, size_t bytes);
        int (*read)(struct graph *graph, const char *path, const char *text, size_t bytes,
                    struct err *err);
    } forms[] = {{nccl_xml_is, nccl_xml_read}, {smi_is, smi_read}, {smi_links_is, smi_links_read}};
    size_t form = 0;
    *graph = (struct graph){0};
    while (form < sizeof forms / sizeof *forms && !forms[form].is(text, bytes))
        form++;
    bool known = form < sizeof forms / sizeof *forms;
    int bad = known ? forms[form].read(graph, path, text, bytes, err)
                    : read_json(graph, path, text, bytes, err);
    if (!bad) bad = graph_check(graph, path, err);
    if (bad) graph_release(graph);
    return bad ? -1 : 0;
}

int graph_read(struct graph *graph, const char *path, struct err *err)
{
    size_t bytes;
    *graph = (struct graph){0};
    char *text = graph_text(path, &bytes, err);
    int bad = text ? graph_parse(graph, path, text, bytes, err) : -1;
    free(text);
    return bad;
}

/* ---- a picture ---- */

static const struct {
    const char *shape, *colour;
} looks[NGRAPH_KINDS] = {
    [GRAPH_ACCEL] = {"box", "#76b900"},      [GRAPH_NIC] = {"box", "#4f81bd"},
    [GRAPH_PCIE] = {"ellipse", "#dddddd"},   [GRAPH_BRIDGE] = {"ellipse", "#bbbbbb"},
    [GRAPH_NUMA] = {"folder", "#f5deb3"},    [GRAPH_NVSWITCH] = {"hexagon", "#b6d7a8"},
    [GRAPH_SWITCH] = {"hexagon", "#9fc5e8"},
};

static void dot_text(const char *text, FILE *to)
{
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

static void dot_edge(const char *from, const char *to_name, const char *style, FILE *to)
{
    fputs("  ", to);
    dot_text(from, to);
    fputs(" -- ", to);
    dot_text(to_name, to);
    fprintf(to, " [%s", style);
}

void graph_dot(const struct graph *graph, FILE *to)
{
    fputs("graph machine {\n  layout=dot; rankdir=TB; node [style=filled, fontname=Helvetica];\n",
          to);
    for (size_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        fputs("  ", to);
        dot_text(node->name, to);
        fprintf(to, " [shape=%s, fillcolor=\"%s\"];\n", looks[node->kind].shape,
                looks[node->kind].colour);
    }
    for (size_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->parent == GRAPH_NONE) continue;
        dot_edge(graph->nodes[node->parent].name, node->name, "color=\"#888888\"", to);
        if (node->up_GBps > 0) fprintf(to, ", label=\"%.4g GB/s\"", node->up_GBps);
        fputs("];\n", to);
    }
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        dot_edge(graph->nodes[link->a].name, graph->nodes[link->b].name,
                 "constraint=false, penwidth=2, color=\"#38761d\"", to);
        fprintf(to, ", label=\"%s x%u\"];\n", graph_via_name(link->via), link->count);
    }
    fputs("}\n", to);
}
