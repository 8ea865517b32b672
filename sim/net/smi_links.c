/* SPDX-License-Identifier: Apache-2.0
 * The status of NVLinks as nvidia-smi prints it, line by line; see smi_links.h. Rates there are per
 * link and direction, in 10^9 bytes/s (25.781 for a link of V100: 8 lanes of 25.781 Gbit/s). */
#include "net/smi_links.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    FAULTS_MAX = 100,
    SHOWN = 60,           /* bytes of a line that a sentence repeats */
    NUMBER_MOST = 999999, /* of a GPU or link */
};
static const double rate_least_GBps = 1e-6, rate_most_GBps = 1000; /* of a link */

/* The GPU whose links are being read. */
struct card {
    uint32_t node; /* GRAPH_NONE: none yet */
    unsigned line;
    uint32_t links, active;
    int64_t last;             /* number of the link before; -1 */
    double GBps, least, most; /* of the active: all together, one of them */
    char *down;               /* ", 3, 5" */
    size_t down_bytes;
    FILE *downs;
    bool unable; /* the driver says that all links are inactive, and does not list them */
};

struct reader {
    struct graph *graph;
    const char *path;
    struct err *err;
    unsigned line, faults;
    int64_t last; /* number of the GPU before; -1 */
    bool linked;
    struct card card;
};

/* What a model's name tells of cards all of whose links are down; the first that fits. */
static const struct {
    const char *word, *says;
} models[] = {
    {"PCI", "normal for this card without an NVLink bridge, no fault"},
    {" NVL", "normal for this card without an NVLink bridge, no fault"},
    {"RTX", "normal for this card without an NVLink bridge, no fault"},
    {"Quadro", "normal for this card without an NVLink bridge, no fault"},
    {"A40", "normal for this card without an NVLink bridge, no fault"},
    {"SXM", "a fault: an SXM module has NVLink, 0 % of its bandwidth is left"},
    {"", "normal for a PCIe card without an NVLink bridge, a fault for an SXM module; the model's "
         "name does not say which it is"},
};

static int fault(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fault(struct reader *r, const char *format, ...)
{
    if (r->faults++ >= FAULTS_MAX) return -1;
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    err_add(r->err, ERR_USAGE, "%s:%u: %s%s", r->path, r->line, text,
            r->faults == FAULTS_MAX ? "; further faults are not shown" : "");
    free(text);
    return -1;
}

/* ---- words ---- */

/* "WORD 12: rest": the number, and where the rest begins; NULL. Numbers end at NUMBER_MOST. */
static const char *numbered(const char *line, const char *word, int64_t *number)
{
    size_t length = strlen(word);
    if (strncmp(line, word, length) != 0 || !isdigit((unsigned char)line[length])) return NULL;
    *number = 0;
    for (line += length; isdigit((unsigned char)*line); line++)
        if (*number <= NUMBER_MOST) *number = 10 * *number + (*line - '0');
    if (*line != ':') return NULL;
    line++;
    return line + strspn(line, " \t");
}

/* ---- a GPU ---- */

/* What looks wrong with the links of the GPU that has just been read. */
static void judge(struct reader *r)
{
    const struct card *c = &r->card;
    const char *name = r->graph->nodes[c->node].name, *type = r->graph->nodes[c->node].type;
    if (c->unable || (c->links && !c->active)) {
        size_t i = 0;
        while (!strstr(type, models[i].word))
            i++;
        char *all = c->links ? mem_printf("all %" PRIu32, c->links) : mem_strdup("all");
        graph_warn(r->graph, "%s:%u: %s (%s): %s NVLinks are inactive: %s", r->path, c->line, name,
                   type, all, models[i].says);
        free(all);
        return;
    }
    if (c->active < c->links) {
        double whole = c->GBps * c->links / c->active;
        graph_warn(r->graph,
                   "%s:%u: %s (%s): a fault: %" PRIu32 " of %" PRIu32
                   " NVLinks are active (not: %s): %.0f %% of the NVLink bandwidth, %.4g of %.4g "
                   "GB/s per direction",
                   r->path, c->line, name, type, c->active, c->links, c->down + 2,
                   100.0 * c->active / c->links, c->GBps, whole);
    }
    if (c->most > c->least)
        graph_warn(r->graph,
                   "%s:%u: %s (%s): a fault: its NVLinks are not of one rate, %.6g to %.6g GB/s",
                   r->path, c->line, name, type, c->least, c->most);
}

/* Links the GPU that has just been read to the switch, and forgets it. */
static void finish(struct reader *r)
{
    struct card *c = &r->card;
    if (c->downs) fclose(c->downs);
    if (c->node != GRAPH_NONE) judge(r);
    if (c->active) {
        uint32_t node = graph_find(r->graph, GRAPH_NVSWITCH, 0);
        if (!r->linked) node = graph_add(r->graph, GRAPH_NVSWITCH, NULL, 0, GRAPH_NONE);
        r->linked = true;
        graph_link(r->graph, GRAPH_NVLINK, c->node, node, c->active);
        struct graph_link *link = &r->graph->links[r->graph->nlinks - 1];
        link->GBps = c->GBps;
        link->line = c->line;
    }
    free(c->down);
    *c = (struct card){.node = GRAPH_NONE};
}

/* "Tesla V100-SXM2-16GB (UUID: GPU-..)" */
static int begin(struct reader *r, int64_t number, const char *model)
{
    finish(r);
    const char *uuid = strstr(model, "(UUID");
    size_t length = uuid ? (size_t)(uuid - model) : strlen(model);
    while (length && model[length - 1] == ' ')
        length--;
    if (number > NUMBER_MOST) return fault(r, "the number of a GPU is above %d", NUMBER_MOST);
    if (number <= r->last)
        return fault(r, "GPU %" PRId64 " follows GPU %" PRId64 ": numbers go up", number, r->last);
    if (length == 0) return fault(r, "GPU %" PRId64 " has no model's name", number);
    r->last = number;
    struct card *c = &r->card;
    c->node = graph_add(r->graph, GRAPH_ACCEL, NULL, (uint32_t)number, GRAPH_NONE);
    c->line = r->line;
    c->last = -1;
    c->downs = open_memstream(&c->down, &c->down_bytes);
    struct graph_node *node = &r->graph->nodes[c->node];
    node->type = mem_printf("%.*s", (int)length, model);
    node->line = r->line;
    return 0;
}

/* "25.781 GB/s", or a word in < > for one that does not work. */
static int add_link(struct reader *r, int64_t number, const char *state)
{
    struct card *c = &r->card;
    if (c->node == GRAPH_NONE) return fault(r, "a link before any GPU");
    if (number > NUMBER_MOST) return fault(r, "the number of a link is above %d", NUMBER_MOST);
    if (number <= c->last)
        return fault(r, "link %" PRId64 " follows link %" PRId64 ": numbers go up", number,
                     c->last);
    c->last = number;
    size_t length = strlen(state);
    if (length > 2 && state[0] == '<' && state[length - 1] == '>') {
        fprintf(c->downs, ", %" PRId64, number);
        c->links++;
        return 0;
    }
    size_t digits = strspn(state, "0123456789.");
    char *end = NULL;
    double GBps = digits ? strtod(state, &end) : 0;
    bool is = GBps >= rate_least_GBps && GBps <= rate_most_GBps && end == state + digits &&
              strcmp(end, " GB/s") == 0;
    if (!is)
        return fault(r,
                     "link %" PRId64 ": \"%.*s\" is neither a rate such as \"25.781 GB/s\" nor "
                     "\"<inactive>\"",
                     number, SHOWN, state);
    c->least = c->active ? fmin(c->least, GBps) : GBps;
    c->most = fmax(c->most, GBps);
    c->GBps += GBps;
    c->active++;
    c->links++;
    return 0;
}

/* One line without its end and the blanks around it. */
static void read_line(struct reader *r, const char *line)
{
    int64_t number = 0;
    const char *rest = numbered(line, "GPU ", &number);
    bool first = r->last < 0 && r->card.node == GRAPH_NONE;
    if (rest) {
        begin(r, number, rest);
    } else if ((rest = numbered(line, "Link ", &number))) {
        add_link(r, number, rest);
    } else if (strstr(line, "Unable to retrieve NVLink") && r->card.node != GRAPH_NONE) {
        r->card.unable = true;
    } else if (*line && !(first && r->faults == 0)) { /* before: the command, a prompt */
        fault(r,
              "\"%.*s\" is neither a GPU (\"GPU 0: MODEL (UUID: ..)\") nor a link (\"Link 0: "
              "25.781 GB/s\")",
              SHOWN, line);
    }
}

/* Calls read_line for each; the text is not changed. */
static void read_lines(struct reader *r, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; r->line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t stop = end ? (size_t)(end - text) : bytes, next = stop + 1;
        while (at < stop && isspace((unsigned char)text[at]))
            at++;
        while (stop > at && isspace((unsigned char)text[stop - 1]))
            stop--;
        char *line = mem_printf("%.*s", (int)(stop - at), text + at);
        read_line(r, line);
        free(line);
        at = next;
    }
    finish(r);
}

int smi_links_read(struct graph *graph, const char *path, const char *text, size_t bytes,
                   struct err *err)
{
    *graph = (struct graph){0};
    struct reader r = {.graph = graph,
                       .path = path,
                       .err = err,
                       .line = 1,
                       .last = -1,
                       .card = {.node = GRAPH_NONE}};
    read_lines(&r, text, bytes);
    r.line = 1;
    if (r.faults == 0 && graph->nnodes == 0)
        fault(&r, "this is no output of `nvidia-smi nvlink --status`");
    if (r.linked)
        graph_warn(graph, "%s: where NVLinks lead is not said, one switch is taken for it", path);
    graph->source = mem_printf("%s, output of nvidia-smi nvlink --status", path);
    int bad = r.faults ? -1 : graph_check(graph, path, err);
    if (bad) graph_release(graph);
    return bad;
}

bool smi_links_is(const char *text, size_t bytes)
{
    int64_t number;
    for (size_t at = 0; at < bytes;) {
        while (at < bytes && isspace((unsigned char)text[at]))
            at++;
        if (at < bytes && (text[at] == '{' || text[at] == '<')) return false;
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t stop = end ? (size_t)(end - text) : bytes;
        char *line = mem_printf("%.*s", (int)(stop - at), text + at);
        bool is = numbered(line, "GPU ", &number) != NULL;
        free(line);
        if (is) return true;
        at = stop + 1;
    }
    return false;
}
