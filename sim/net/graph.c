/* SPDX-License-Identifier: Apache-2.0
 * A machine as a graph: nodes, links, how near they are, and the table of it. See graph.h; its own
 * form is read and written in graph_form.c. */
#include "net/graph.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/nccl_xml.h"
#include "net/smi.h"

const char *graph_kind_name(enum graph_kind kind)
{
    static const char *const names[NGRAPH_KINDS] = {"gpu",  "nic",      "pcie-switch", "bridge",
                                                    "numa", "nvswitch", "switch"};
    return names[kind];
}

const char *graph_via_name(enum graph_via via)
{
    static const char *const names[NGRAPH_VIAS] = {"nvlink", "xgmi", "c2c", "socket", "cable"};
    return names[via];
}

const char *graph_near_name(enum graph_near near)
{
    static const char *const names[NGRAPH_NEARS] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};
    return names[near];
}

/* ---- making one ---- */

void graph_release(struct graph *graph)
{
    for (size_t i = 0; i < graph->nnodes; i++) {
        struct graph_node *node = &graph->nodes[i];
        free(node->name);
        free(node->type);
        free(node->address);
        free(node->cpus);
    }
    for (size_t i = 0; i < graph->nwarnings; i++)
        free(graph->warnings[i]);
    free(graph->warnings);
    free(graph->nodes);
    free(graph->links);
    free(graph->about);
    free(graph->source);
    *graph = (struct graph){0};
}

uint32_t graph_add(struct graph *graph, enum graph_kind kind, const char *name, uint32_t number,
                   uint32_t parent)
{
    MEM_GROW(graph->nodes, graph->nnodes, graph->nodes_cap);
    graph->nodes[graph->nnodes] = (struct graph_node){
        .kind = kind,
        .name = name ? mem_strdup(name) : mem_printf("%s%" PRIu32, graph_kind_name(kind), number),
        .number = number,
        .parent = parent};
    return (uint32_t)graph->nnodes++;
}

void graph_link(struct graph *graph, enum graph_via via, uint32_t a, uint32_t b, uint32_t count)
{
    MEM_GROW(graph->links, graph->nlinks, graph->links_cap);
    graph->links[graph->nlinks++] = (struct graph_link){.via = via, .a = a, .b = b, .count = count};
}

void graph_warn(struct graph *graph, const char *format, ...)
{
    va_list args;
    MEM_GROW(graph->warnings, graph->nwarnings, graph->warnings_cap);
    va_start(args, format);
    graph->warnings[graph->nwarnings++] = mem_vprintf(format, args);
    va_end(args);
}

/* ---- looking at one ---- */

uint32_t graph_find(const struct graph *graph, enum graph_kind kind, uint32_t number)
{
    for (size_t i = 0; i < graph->nnodes; i++) {
        if (graph->nodes[i].kind == kind && graph->nodes[i].number == number) return (uint32_t)i;
    }
    return GRAPH_NONE;
}

uint32_t graph_numa(const struct graph *graph, uint32_t node)
{
    while (node != GRAPH_NONE && graph->nodes[node].kind != GRAPH_NUMA)
        node = graph->nodes[node].parent;
    return node;
}

/* Whether `above` is `node` or above it; *switches: PCIe switches from `node` to it, both counted.
 */
static bool is_above(const struct graph *graph, uint32_t above, uint32_t node, uint32_t *switches)
{
    for (*switches = 0; node != GRAPH_NONE; node = graph->nodes[node].parent) {
        *switches += graph->nodes[node].kind == GRAPH_PCIE;
        if (node == above) return true;
    }
    return false;
}

enum graph_near graph_near(const struct graph *graph, uint32_t a, uint32_t b)
{
    if (a == b) return GRAPH_SELF;
    uint32_t here = 0, there = 0, meet = a;
    while (meet != GRAPH_NONE && !is_above(graph, meet, b, &there))
        meet = graph->nodes[meet].parent;
    if (meet == GRAPH_NONE) return GRAPH_SYS;
    is_above(graph, meet, a, &here);
    switch (graph->nodes[meet].kind) {
    case GRAPH_NUMA:
        return GRAPH_NODE;
    case GRAPH_BRIDGE:
        return GRAPH_PHB;
    default: /* the switch where they meet was counted on both sides */
        return here + there - (graph->nodes[meet].kind == GRAPH_PCIE) > 1 ? GRAPH_PXB : GRAPH_PIX;
    }
}

uint32_t graph_nvlinks(const struct graph *graph, uint32_t a, uint32_t b)
{
    unsigned char *linked = mem_calloc(graph->nnodes, 1); /* switches: 1 to a, 2 to b */
    uint32_t there = 0, back = 0;
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->via != GRAPH_NVLINK) continue;
        linked[link->a] |= (unsigned char)((link->b == a) | (link->b == b) << 1);
        linked[link->b] |= (unsigned char)((link->a == a) | (link->a == b) << 1);
    }
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->via != GRAPH_NVLINK) continue;
        for (int end = 0; end < 2; end++) {
            uint32_t gpu = end ? link->a : link->b, other = end ? link->b : link->a;
            bool shared = graph->nodes[other].kind == GRAPH_NVSWITCH && linked[other] == 3;
            if (gpu == a && (shared || other == b)) there += link->count;
            if (gpu == b && (shared || other == a)) back += link->count;
        }
    }
    free(linked);
    return there < back ? there : back;
}

/* ---- rules ---- */

static int fault(const char *path, unsigned line, struct err *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int fault(const char *path, unsigned line, struct err *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    if (line) {
        err_add(err, ERR_USAGE, "%s:%u: %s", path, line, text);
    } else {
        err_add(err, ERR_USAGE, "%s: %s", path, text);
    }
    free(text);
    return -1;
}

/* What may hang below what. */
static bool carries(enum graph_kind parent, enum graph_kind child)
{
    static const unsigned below[NGRAPH_KINDS] = {
        [GRAPH_PCIE] = 1 << GRAPH_ACCEL | 1 << GRAPH_NIC | 1 << GRAPH_PCIE | 1 << GRAPH_NVSWITCH,
        [GRAPH_BRIDGE] = 1 << GRAPH_ACCEL | 1 << GRAPH_NIC | 1 << GRAPH_PCIE | 1 << GRAPH_NVSWITCH,
        [GRAPH_NUMA] = 1 << GRAPH_ACCEL | 1 << GRAPH_NIC | 1 << GRAPH_PCIE | 1 << GRAPH_NVSWITCH |
                       1 << GRAPH_BRIDGE,
    };
    return below[parent] >> child & 1;
}

static const struct {
    unsigned ends[2]; /* kinds of one end, and of the other */
    const char *says;
} joins[NGRAPH_VIAS] = {
    [GRAPH_NVLINK] = {{1 << GRAPH_ACCEL | 1 << GRAPH_NVSWITCH,
                       1 << GRAPH_ACCEL | 1 << GRAPH_NVSWITCH},
                      "GPUs and NVSwitches"},
    [GRAPH_XGMI] = {{1 << GRAPH_ACCEL, 1 << GRAPH_ACCEL}, "GPUs"},
    [GRAPH_C2C] = {{1 << GRAPH_ACCEL, 1 << GRAPH_NUMA}, "a GPU and a NUMA node"},
    [GRAPH_SOCKET] = {{1 << GRAPH_NUMA, 1 << GRAPH_NUMA}, "NUMA nodes"},
    [GRAPH_CABLE] = {{1 << GRAPH_NIC | 1 << GRAPH_SWITCH, 1 << GRAPH_NIC | 1 << GRAPH_SWITCH},
                     "NICs and switches"},
};

static int check_node(const struct graph *graph, uint32_t at, const char *path, struct err *err)
{
    const struct graph_node *node = &graph->nodes[at];
    if (node->parent == GRAPH_NONE) return 0;
    if (node->parent >= graph->nnodes)
        return fault(path, node->line, err, "%s has parent number %" PRIu32 "; there are %zu nodes",
                     node->name, node->parent, graph->nnodes);
    const struct graph_node *parent = &graph->nodes[node->parent];
    if (!carries(parent->kind, node->kind))
        return fault(path, node->line, err, "%s, a %s, cannot hang below %s, a %s", node->name,
                     graph_kind_name(node->kind), parent->name, graph_kind_name(parent->kind));
    size_t steps = 0;
    uint32_t above = at;
    while (above < graph->nnodes && steps++ <= graph->nnodes)
        above = graph->nodes[above].parent;
    if (steps > graph->nnodes)
        return fault(path, node->line, err, "the parents of %s go round in a circle", node->name);
    return 0;
}

static int check_link(const struct graph *graph, const struct graph_link *link, const char *path,
                      struct err *err)
{
    const char *via = graph_via_name(link->via);
    if (link->a >= graph->nnodes || link->b >= graph->nnodes)
        return fault(path, link->line, err, "a link (%s) ends at no node", via);
    const struct graph_node *a = &graph->nodes[link->a], *b = &graph->nodes[link->b];
    const unsigned *ends = joins[link->via].ends;
    bool fits = (ends[0] >> a->kind & 1 && ends[1] >> b->kind & 1) ||
                (ends[0] >> b->kind & 1 && ends[1] >> a->kind & 1);
    if (link->a == link->b)
        return fault(path, link->line, err, "a link (%s) leads from %s to itself", via, a->name);
    if (!fits)
        return fault(path, link->line, err, "%s joins %s, not %s (a %s) and %s (a %s)", via,
                     joins[link->via].says, a->name, graph_kind_name(a->kind), b->name,
                     graph_kind_name(b->kind));
    if (link->count == 0)
        return fault(path, link->line, err, "%s between %s and %s: a count of 0; the least is 1",
                     via, a->name, b->name);
    return 0;
}

/* Nodes or links by what must be theirs alone. */
struct key {
    const struct graph *graph;
    size_t at;
};

static int by_name(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    int differ = strcmp(x->graph->nodes[x->at].name, y->graph->nodes[y->at].name);
    return differ ? differ : (x->at > y->at) - (x->at < y->at);
}

static int by_number(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    const struct graph_node *one = &x->graph->nodes[x->at], *other = &y->graph->nodes[y->at];
    if (one->kind != other->kind) return one->kind < other->kind ? -1 : 1;
    if (one->number != other->number) return one->number < other->number ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static int by_ends(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    const struct graph_link *one = &x->graph->links[x->at], *other = &y->graph->links[y->at];
    uint32_t mine[] = {one->via, one->a < one->b ? one->a : one->b,
                       one->a < one->b ? one->b : one->a};
    uint32_t theirs[] = {other->via, other->a < other->b ? other->a : other->b,
                         other->a < other->b ? other->b : other->a};
    for (int i = 0; i < 3; i++) {
        if (mine[i] != theirs[i]) return mine[i] < theirs[i] ? -1 : 1;
    }
    return (x->at > y->at) - (x->at < y->at);
}

static struct key *sorted(const struct graph *graph, size_t count,
                          int (*order)(const void *, const void *))
{
    struct key *keys = mem_calloc(count, sizeof *keys);
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct key){graph, i};
    qsort(keys, count, sizeof *keys, order);
    return keys;
}

static int check_twice(const struct graph *graph, const char *path, struct err *err)
{
    int bad = 0;
    struct key *names = sorted(graph, graph->nnodes, by_name);
    struct key *numbers = sorted(graph, graph->nnodes, by_number);
    struct key *links = sorted(graph, graph->nlinks, by_ends);
    for (size_t i = 1; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[names[i].at];
        const struct graph_node *before = &graph->nodes[names[i - 1].at];
        if (strcmp(node->name, before->name) == 0)
            bad = fault(path, node->line, err, "two nodes are called %s", node->name);
        node = &graph->nodes[numbers[i].at];
        before = &graph->nodes[numbers[i - 1].at];
        if (node->kind == before->kind && node->number == before->number)
            bad =
                fault(path, node->line, err, "%s and %s are both number %" PRIu32 " of their kind",
                      before->name, node->name, node->number);
    }
    for (size_t i = 1; i < graph->nlinks; i++) {
        const struct graph_link *one = &graph->links[links[i - 1].at];
        const struct graph_link *other = &graph->links[links[i].at];
        bool same = one->via == other->via && ((one->a == other->a && one->b == other->b) ||
                                               (one->a == other->b && one->b == other->a));
        if (same)
            bad = fault(path, other->line, err,
                        "two %s links join %s and %s: write one, with a count",
                        graph_via_name(other->via), graph->nodes[other->a].name,
                        graph->nodes[other->b].name);
    }
    free(names);
    free(numbers);
    free(links);
    return bad;
}

int graph_check(const struct graph *graph, const char *path, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < graph->nnodes; i++)
        bad |= check_node(graph, (uint32_t)i, path, err);
    for (size_t i = 0; i < graph->nlinks; i++)
        bad |= check_link(graph, &graph->links[i], path, err);
    return bad ? -1 : check_twice(graph, path, err);
}

/* ---- as a table ---- */

enum { CELL = 7, CPUS = 16 };

/* Accelerators, then NICs, each in the order of their numbers. */
static uint32_t *table_order(const struct graph *graph, uint32_t *count)
{
    struct key *keys = sorted(graph, graph->nnodes, by_number);
    uint32_t *order = mem_calloc(graph->nnodes, sizeof *order);
    *count = 0;
    for (size_t i = 0; i < graph->nnodes; i++) {
        if (graph->nodes[keys[i].at].kind <= GRAPH_NIC) order[(*count)++] = (uint32_t)keys[i].at;
    }
    free(keys);
    return order;
}

static void label(const struct graph_node *node, char text[static 16])
{
    snprintf(text, 16, "%s%" PRIu32, node->kind == GRAPH_ACCEL ? "GPU" : "NIC", node->number);
}

static void print_cell(const struct graph *graph, uint32_t a, uint32_t b, FILE *to)
{
    bool gpus = graph->nodes[a].kind == GRAPH_ACCEL && graph->nodes[b].kind == GRAPH_ACCEL;
    uint32_t nvlinks = gpus && a != b ? graph_nvlinks(graph, a, b) : 0;
    char text[16];
    snprintf(text, sizeof text, "NV%" PRIu32, nvlinks);
    fprintf(to, " %-*s", CELL, nvlinks ? text : graph_near_name(graph_near(graph, a, b)));
}

static void print_row(const struct graph *graph, const uint32_t *order, uint32_t count, uint32_t at,
                      FILE *to)
{
    char text[16];
    const struct graph_node *node = &graph->nodes[order[at]];
    uint32_t numa = graph_numa(graph, order[at]);
    label(node, text);
    fprintf(to, "%-*s", CELL, text);
    for (uint32_t k = 0; k < count; k++)
        print_cell(graph, order[at], order[k], to);
    if (node->kind == GRAPH_ACCEL) {
        const char *cpus = numa == GRAPH_NONE ? NULL : graph->nodes[numa].cpus;
        fprintf(to, " %-*s", CPUS, cpus ? cpus : "N/A");
        if (numa == GRAPH_NONE) {
            fprintf(to, " N/A");
        } else {
            fprintf(to, " %" PRIu32, graph->nodes[numa].number);
        }
    }
    fputc('\n', to);
}

void graph_matrix(const struct graph *graph, FILE *to)
{
    uint32_t count;
    uint32_t *order = table_order(graph, &count);
    char text[16], own[16];
    fprintf(to, "%-*s", CELL, "");
    for (uint32_t i = 0; i < count; i++) {
        label(&graph->nodes[order[i]], text);
        fprintf(to, " %-*s", CELL, text);
    }
    fprintf(to, " %-*s NUMA Affinity\n", CPUS, "CPU Affinity");
    for (uint32_t i = 0; i < count; i++)
        print_row(graph, order, count, i, to);
    bool legend = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct graph_node *node = &graph->nodes[order[i]];
        snprintf(own, sizeof own, "nic%" PRIu32, node->number);
        if (node->kind != GRAPH_NIC || strcmp(node->name, own) == 0) continue;
        label(node, text);
        fprintf(to, "%s  %s: %s\n", legend ? "" : "\nNIC Legend:\n\n", text, node->name);
        legend = true;
    }
    free(order);
}
