/* SPDX-License-Identifier: Apache-2.0
 * Links by use: see links.h. */
#include "net/links.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"

/* Links that are alike. */
struct group {
    size_t call;
    char *name;    /* of the first of them */
    char *pattern; /* .. with its numbers as stars */
    enum net_kind kind;
    double bytes, rate_Bps, capacity_Bps; /* of each */
    uint64_t count;
};

struct links {
    char **calls;
    struct group *groups;
    size_t ncalls, calls_cap, count, cap;
};

struct links *links_new(void)
{
    return mem_calloc(1, sizeof(struct links));
}

void links_free(struct links *links)
{
    if (!links) return;
    for (size_t i = 0; i < links->ncalls; i++)
        free(links->calls[i]);
    for (size_t i = 0; i < links->count; i++) {
        free(links->groups[i].name);
        free(links->groups[i].pattern);
    }
    free(links->calls);
    free(links->groups);
    free(links);
}

/* "host3/nic0 out" with all its numbers as stars. */
static char *without_numbers(const char *name)
{
    char *text = mem_strdup(name), *to = text;
    for (const char *from = name; *from; from++) {
        bool digit = isdigit((unsigned char)*from);
        bool more = digit && from > name && isdigit((unsigned char)from[-1]);
        if (!more) *to++ = digit ? '*' : *from;
    }
    *to = '\0';
    return text;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(a, b);
}

static void add_link(struct links *links, size_t from, struct group link)
{
    for (size_t i = from; i < links->count; i++) {
        struct group *g = &links->groups[i];
        if (link.bytes > 0
                ? !near(g->bytes, link.bytes) || !near(g->capacity_Bps, link.capacity_Bps) ||
                      strcmp(g->pattern, link.pattern) != 0
                : g->bytes > 0)
            continue;
        g->count++;
        free(link.name);
        free(link.pattern);
        return;
    }
    MEM_GROW(links->groups, links->count, links->cap);
    links->groups[links->count++] = link;
}

static int by_use(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    double ux = x->rate_Bps / x->capacity_Bps, uy = y->rate_Bps / y->capacity_Bps;
    return ux != uy ? (ux < uy ? 1 : -1) : strcmp(x->name, y->name);
}

void links_add(struct links *links, const char *call, const struct network *network,
               const struct net_result *net)
{
    size_t from = links->count;
    double time_s = (double)net->total_ps / 1e12;
    MEM_GROW(links->calls, links->ncalls, links->calls_cap);
    links->calls[links->ncalls++] = mem_strdup(call);
    for (uint32_t i = 0; i < net->nlinks; i++) {
        struct net_link l = network_link(network, i);
        char *name = network_link_name(network, i);
        double bytes = net->link_bytes[i];
        add_link(links, from,
                 (struct group){.call = links->ncalls - 1,
                                .name = name,
                                .pattern = without_numbers(name),
                                .kind = l.kind,
                                .bytes = bytes,
                                .rate_Bps = time_s > 0 ? bytes / time_s : 0,
                                .capacity_Bps = l.capacity_Bps,
                                .count = 1});
    }
    qsort(links->groups + from, links->count - from, sizeof *links->groups, by_use);
}

int links_print(const struct links *links, struct err *err)
{
    static const struct out_column columns[] = {
        {"call", NULL, -34, 0, OUT_TEXT, NULL, NULL},
        {"links", NULL, 7, 0, OUT_UINT, NULL, NULL},
        {"link", NULL, -28, 0, OUT_TEXT, NULL, NULL},
        {"kind", NULL, -8, 0, OUT_TEXT, NULL, NULL},
        {"carried", "B", 15, 0, OUT_DOUBLE, NULL, "each"},
        {"rate", "GB/s", 9, 2, OUT_DOUBLE, NULL, "each"},
        {"capacity", "GB/s", 9, 2, OUT_DOUBLE, NULL, "each"},
        {"used", "%", 7, 1, OUT_DOUBLE, NULL, "each"},
    };
    struct out *out = out_new(columns, sizeof columns / sizeof *columns);
    int bad = out_add(out, OUT_FORMAT_TEXT, NULL, false, err);
    for (size_t i = 0; !bad && i < links->count; i++) {
        const struct group *g = &links->groups[i];
        struct out_cell cells[] = {
            out_text(links->calls[g->call]),
            out_uint(g->count),
            out_text(g->bytes <= 0  ? "idle links"
                     : g->count > 1 ? g->pattern
                                    : g->name),
            out_text(net_kind_name(g->kind)),
            out_double(g->bytes),
            out_double(g->rate_Bps / 1e9),
            out_double(g->capacity_Bps / 1e9),
            out_double(100 * g->rate_Bps / g->capacity_Bps),
        };
        if (g->bytes <= 0) /* of any kind */
            cells[3] = cells[5] = cells[6] = cells[7] = (struct out_cell){0};
        out_row(out, cells);
    }
    return out_close(out, err) | bad;
}
