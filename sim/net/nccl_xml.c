/* SPDX-License-Identifier: Apache-2.0
 * NCCL's and RCCL's topology XML as a graph: expat reads it into a flat list of processors, PCI
 * functions and link ends; that list then becomes nodes and links. Elements as NCCL's
 * src/graph/xml.cc writes them and src/graph/topo.cc understands them:
 *
 *     system > cpu > pci (> pci ..) > gpu > nvlink | xgmi | c2c
 *                                   > nic > net                   a nic may stand in a cpu as well
 *
 * NCCL leaves out root ports and calls all that meets at a <cpu> "PHB", so each <cpu> is a NUMA
 * node with one host bridge below it.
 *
 * Rates. NCCL reads a PCIe link as lanes x rate / 80, 12 GB/s for Gen3 x16: the wire less what its
 * authors saw lost, made for its search. The graph has the rate of the wire, lanes x GT/s x
 * encoding / 8 (15.75 GB/s), since a model takes the losses off itself. A rate or a width that is
 * missing is Gen3 and 16 lanes, as for NCCL. Virtual bridges show rates that nobody measured: those
 * on bus ffff:ff, which clouds invent, and those of Gen2 or less above a link of Gen4 or more,
 * whose device could not have trained so fast behind them; they take the fastest link below. */
#include <errno.h>
#include <expat.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/nccl_xml.h"

enum {
    BYTES_MAX = 16 << 20,
    DEPTH_MAX = 64, /* open elements; PCI buses of a machine are at most 256, NCCL's files < 10 */
    FAULTS_MAX = 100,
    NUMA_MAX = 1024, /* Linux has no more */
    COUNT_MAX = 65535,
    PORTS_MAX = 64,   /* of a NIC */
    MASK_MAX = 16384, /* letters of an affinity; Linux writes at most 2,304 */
    SHOWN = 40,
    CLASS_NONE = -1,
};

#define BUS_NONE UINT64_MAX         /* not said */
#define BUS_HIDDEN (UINT64_MAX - 1) /* of a switch that the machine does not show */
#define LEFT_OUT NGRAPH_KINDS       /* the kind of what is no part of the graph */
#define DOMAIN(bus) ((bus) >> 24)   /* of a bus id */
#define CLASS_CPU 0x068001          /* NVLink of a processor (POWER9) */
#define IS_SWITCH(c) ((c) >> 8 == 0x0680 && (c) != CLASS_CPU)

/* A <cpu>, a <pci>, a <nic> that stands in a <cpu>, or a switch that only link ends name. */
struct item {
    enum graph_kind kind; /* GRAPH_NUMA: a <cpu> */
    unsigned line;
    uint32_t parent; /* item; GRAPH_NONE */
    uint32_t node;   /* in the graph, what its children hang on; GRAPH_NONE */
    uint64_t bus;    /* domain << 24 | bus << 16 | device << 8 | function */
    char *address;   /* the same as the file writes it */
    char *name;      /* NIC: of its ports, with + in between, as NCCL fuses them */
    int64_t number;  /* dev; of a <cpu> numaid; -1 */
    int64_t class;   /* PCI's, 24 bits; CLASS_NONE */
    bool carries;    /* a <pci> stands in it */
    bool made_up;    /* a virtual bridge's rate */
    unsigned ports;
    double GTps, up_GBps;          /* 0: not said */
    double below_GTps, below_GBps; /* the fastest that is said of a link below */
    double rate_Gbps;
};

/* One end of a link: what a <nvlink>, <xgmi> or <c2c> says. */
struct end {
    enum graph_via via;
    unsigned line;
    uint32_t item; /* whose */
    uint64_t target;
    int64_t class, count;
    double GBps;
    /* once nodes have numbers; a < b if mutual */
    uint32_t a, b;
    bool mutual, back; /* both ends are in the file; this is b's */
};

struct place {
    uint64_t bus;
    uint32_t item;
};

enum tag { TAG_SYSTEM, TAG_CPU, TAG_PCI, TAG_GPU, TAG_NIC, TAG_NET, TAG_LINK, NTAGS };

struct parse {
    const char *path;
    struct graph *graph;
    struct err *err;
    XML_Parser parser;
    unsigned line;    /* of the element at hand */
    unsigned faults;  /* all, of which FAULTS_MAX are told */
    bool stopped;     /* nothing more is read */
    unsigned depth;   /* open elements */
    unsigned unknown; /* depth of the outermost unknown element; 0: in none */
    bool warned_unknown;
    struct {
        enum tag tag;
        uint32_t item;
    } open[DEPTH_MAX];
    char *host; /* of the first <cpu> that says it */
    struct item *items;
    size_t nitems, items_cap;
    struct end *ends;
    size_t nends, ends_cap;
    struct place *places; /* sorted */
    size_t nplaces, places_cap;
};

static void fault(struct parse *p, unsigned line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fault(struct parse *p, unsigned line, const char *format, ...)
{
    if (p->faults++ >= FAULTS_MAX) return;
    va_list args;
    va_start(args, format);
    char *sentence = mem_vprintf(format, args);
    va_end(args);
    err_add(p->err, ERR_USAGE, "%s:%u: %s", p->path, line, sentence);
    free(sentence);
}

static void stop(struct parse *p)
{
    p->stopped = true;
    XML_StopParser(p->parser, XML_FALSE);
}

/* ---- attributes ---- */

/* A value of the file as sentences and names may show it: short and on one line. */
static const char *shown(char text[SHOWN + 4], const char *value)
{
    size_t n = strnlen(value, SHOWN);
    for (size_t i = 0; i < n; i++) {
        text[i] = (unsigned char)value[i] < ' ' ? '?' : value[i];
    }
    snprintf(text + n, 4, "%s", value[n] ? ".." : "");
    return text;
}

#define SHOW(value) shown((char[SHOWN + 4]){0}, value)

static const char *find(const char **attrs, const char *name)
{
    for (; *attrs; attrs += 2) {
        if (strcmp(attrs[0], name) == 0) return attrs[1];
    }
    return NULL;
}

/* A whole number; what is absent or empty leaves *value alone, what is none is a fault. */
static void number(struct parse *p, const char **attrs, const char *name, int64_t min, int64_t max,
                   int64_t *value)
{
    const char *text = find(attrs, name);
    if (!text || !*text) return;
    char *end;
    errno = 0;
    long long read = strtoll(text, &end, 10);
    if (end == text || *end || errno || read < min || read > max) {
        fault(p, p->line, "%s=\"%s\" is no whole number from %" PRId64 " to %" PRId64, name,
              SHOW(text), min, max);
        return;
    }
    *value = read;
}

/* PCI's class as NCCL writes it, "0x030200". */
static int64_t read_class(struct parse *p, const char **attrs, const char *name)
{
    const char *text = find(attrs, name);
    if (!text || !*text) return CLASS_NONE;
    char *end;
    unsigned long read = strtoul(text, &end, 16);
    if (*end || read > 0xffffff) {
        fault(p, p->line, "%s=\"%s\" is no class of PCI, which is like \"0x030200\"", name,
              SHOW(text));
        return CLASS_NONE;
    }
    return (int64_t)read;
}

static bool hex(const char **text, unsigned digits, uint64_t *value)
{
    *value = 0;
    size_t n = strspn(*text, "0123456789abcdefABCDEF");
    if (n == 0 || n > digits) return false;
    *value = strtoul(*text, NULL, 16);
    *text += n;
    return true;
}

/* "0000:06:00.0", also without a domain or a function. */
static bool read_bus(const char *text, uint64_t *bus)
{
    uint64_t part[3] = {0}, function = 0;
    unsigned n = 0;
    while (n < 3 && hex(&text, n == 0 ? 8 : 2, &part[n]) && ++n < 3 && *text == ':') {
        text++;
    }
    if (n > 0 && text[-1] == ':') return false;
    if (n == 2) {
        if (part[0] > 0xff) return false;
        part[2] = part[1], part[1] = part[0], part[0] = 0;
    }
    if (n < 2 || (*text == '.' && (text++, !hex(&text, 1, &function))) || *text) return false;
    *bus = part[0] << 24 | part[1] << 16 | part[2] << 8 | function;
    return true;
}

/* ---- elements ---- */

static uint32_t add_item(struct parse *p, enum graph_kind kind, uint32_t parent)
{
    MEM_GROW(p->items, p->nitems, p->items_cap);
    p->items[p->nitems] = (struct item){.kind = kind,
                                        .line = p->line,
                                        .parent = parent,
                                        .node = GRAPH_NONE,
                                        .bus = BUS_NONE,
                                        .number = -1,
                                        .class = CLASS_NONE};
    return (uint32_t)p->nitems++;
}

static uint32_t read_system(struct parse *p, const char **attrs, uint32_t parent)
{
    int64_t version = 1;
    number(p, attrs, "version", 0, INT32_MAX, &version);
    if (version != 1 && version != 2) {
        graph_warn(p->graph,
                   "%s:%u: version %" PRId64 " of the format; 1 (NCCL) and 2 (RCCL) are "
                   "known",
                   p->path, p->line, version);
    }
    return parent;
}

static uint32_t read_cpu(struct parse *p, const char **attrs, uint32_t parent)
{
    uint32_t at = add_item(p, GRAPH_NUMA, parent);
    struct item *cpu = &p->items[at];
    if (!find(attrs, "numaid")) fault(p, p->line, "<cpu> lacks the attribute \"numaid\"");
    number(p, attrs, "numaid", -1, NUMA_MAX - 1, &cpu->number);
    const char *mask = find(attrs, "affinity"), *host = find(attrs, "host_hash");
    cpu->address = mask && *mask ? mem_strdup(mask) : NULL;
    if (host && !p->host) p->host = mem_strdup(host);
    if (host && strcmp(host, p->host) != 0) {
        fault(p, p->line,
              "host_hash=\"%s\" is a second host; a machine is one, give it the file "
              "of one host",
              SHOW(host));
    }
    return at;
}

/* Bits of payload per bit on the wire: 8b/10b to Gen2, 128b/130b to Gen5, then flits, 242 bytes of
 * 256 (PCI Express 6.0). */
static double encoding(double GTps)
{
    return GTps < 8 ? 0.8 : GTps < 64 ? 128.0 / 130 : 242.0 / 256;
}

static void read_rate(struct parse *p, const char **attrs, struct item *pci)
{
    const char *speed = find(attrs, "link_speed");
    int64_t lanes = 0;
    number(p, attrs, "link_width", -1, INT32_MAX, &lanes);
    double GTps = speed && *speed >= '0' && *speed <= '9' ? strtod(speed, NULL) : 0;
    bool no_speed = !(GTps >= 1 && GTps <= 1000), no_lanes = lanes < 1 || lanes > 32;
    if (no_speed || no_lanes) {
        graph_warn(p->graph,
                   "%s:%u: link_speed=\"%s\" link_width=\"%" PRId64 "\"%s%s: as NCCL "
                   "does, %s%s%s taken",
                   p->path, p->line, SHOW(speed ? speed : ""), lanes, pci->address ? " of " : "",
                   pci->address ? SHOW(pci->address) : "", no_speed ? "8 GT/s" : "",
                   no_speed && no_lanes ? " and " : "", no_lanes ? "16 lanes are" : " is");
    }
    GTps = no_speed ? 8 : GTps;
    pci->GTps = no_speed ? 0 : GTps;
    pci->up_GBps = (no_lanes ? 16 : (double)lanes) * GTps * encoding(GTps) / 8;
}

static uint32_t read_pci(struct parse *p, const char **attrs, uint32_t parent)
{
    uint32_t at = add_item(p, GRAPH_PCIE, parent);
    struct item *pci = &p->items[at];
    p->items[parent].carries = true;
    pci->class = read_class(p, attrs, "class");
    const char *bus = find(attrs, "busid");
    if (!bus || !read_bus(bus, &pci->bus)) {
        fault(p, p->line,
              bus ? "busid=\"%s\" is none, which is like \"0000:06:00.0\""
                  : "<pci> lacks the attribute \"busid\"%s",
              SHOW(bus ? bus : ""));
    } else {
        pci->address = mem_strdup(bus);
    }
    read_rate(p, attrs, pci);
    int64_t base = pci->class >> 16; /* as NCCL: display or processing accelerator; network */
    if (base == 0x03 || base == 0x12) pci->kind = GRAPH_ACCEL;
    if (base == 0x02) pci->kind = GRAPH_NIC;
    if (IS_SWITCH(pci->class)) pci->kind = GRAPH_NVSWITCH;
    return at;
}

static uint32_t read_gpu(struct parse *p, const char **attrs, uint32_t parent)
{
    struct item *pci = &p->items[parent];
    pci->kind = GRAPH_ACCEL;
    number(p, attrs, "dev", -1, INT32_MAX, &pci->number);
    return parent;
}

static uint32_t read_nic(struct parse *p, const char **attrs, uint32_t parent)
{
    (void)attrs;
    if (p->items[parent].kind == GRAPH_NUMA) return add_item(p, GRAPH_NIC, parent);
    p->items[parent].kind = GRAPH_NIC;
    return parent;
}

/* A port. Those that NCCL has fused into another one (net="0") say nothing new. */
static uint32_t read_net(struct parse *p, const char **attrs, uint32_t parent)
{
    struct item *nic = &p->items[parent];
    int64_t dev = -1, Mbps = 0, in_use = 1;
    number(p, attrs, "dev", -1, INT32_MAX, &dev);
    number(p, attrs, "speed", -1, INT32_MAX, &Mbps);
    number(p, attrs, "net", 0, 1, &in_use);
    if (!in_use) return parent;
    if (++nic->ports > PORTS_MAX) {
        if (nic->ports == PORTS_MAX + 1)
            fault(p, p->line, "a NIC of more than %d ports", PORTS_MAX);
        return parent;
    }
    const char *name = find(attrs, "name");
    if (name && *name) {
        char *joined =
            mem_printf("%s%s%s", nic->name ? nic->name : "", nic->name ? "+" : "", SHOW(name));
        free(nic->name);
        nic->name = joined;
    }
    if (dev >= 0 && (nic->number < 0 || dev < nic->number)) nic->number = dev;
    if (Mbps > 0) nic->rate_Gbps += (double)Mbps / 1000;
    if (Mbps <= 0) {
        graph_warn(p->graph, "%s:%u: the network port %s has no speed; its rate is not known",
                   p->path, p->line, SHOW(name ? name : ""));
    }
    return parent;
}

/* "-1", or nothing but f: what NCCL writes where it cannot see the other end. */
static bool is_hidden(const char *target)
{
    return strcmp(target, "-1") == 0 || (*target && !target[strspn(target, "fF:.")]);
}

static uint32_t read_link(struct parse *p, const char **attrs, enum graph_via via, uint32_t parent)
{
    struct end end = {.via = via, .line = p->line, .item = parent, .target = BUS_NONE, .count = 1};
    int64_t MBps = 0;
    number(p, attrs, "count", 1, COUNT_MAX, &end.count);
    number(p, attrs, "bw", 0, INT32_MAX, &MBps);
    end.GBps = (double)MBps * (double)end.count / 1000;
    end.class = read_class(p, attrs, "tclass");
    const char *target = find(attrs, "target");
    if (via == GRAPH_C2C) {
        end.class = CLASS_CPU;
    } else if (target && is_hidden(target)) {
        end.target = BUS_HIDDEN;
    } else if (!target || !read_bus(target, &end.target)) {
        fault(p, p->line, "target=\"%s\" is no bus id, which is like \"0000:06:00.0\"",
              SHOW(target ? target : ""));
        return parent;
    } else if (end.target == p->items[parent].bus) {
        end.target = BUS_HIDDEN;
    }
    MEM_GROW(p->ends, p->nends, p->ends_cap);
    p->ends[p->nends++] = end;
    return parent;
}

static uint32_t read_nvlink(struct parse *p, const char **attrs, uint32_t parent)
{
    return read_link(p, attrs, GRAPH_NVLINK, parent);
}

static uint32_t read_xgmi(struct parse *p, const char **attrs, uint32_t parent)
{
    return read_link(p, attrs, GRAPH_XGMI, parent);
}

static uint32_t read_c2c(struct parse *p, const char **attrs, uint32_t parent)
{
    return read_link(p, attrs, GRAPH_C2C, parent);
}

/* The elements that count, what each may stand in, and its reader, which gives the item that its
 * own elements belong to. */
static const struct {
    const char *name;
    enum tag tag;
    unsigned inside; /* bits of tags */
    uint32_t (*read)(struct parse *p, const char **attrs, uint32_t parent);
} elements[] = {{"system", TAG_SYSTEM, 0, read_system},
                {"cpu", TAG_CPU, 1 << TAG_SYSTEM, read_cpu},
                {"pci", TAG_PCI, 1 << TAG_CPU | 1 << TAG_PCI, read_pci},
                {"gpu", TAG_GPU, 1 << TAG_PCI, read_gpu},
                {"nic", TAG_NIC, 1 << TAG_CPU | 1 << TAG_PCI, read_nic},
                {"net", TAG_NET, 1 << TAG_NIC, read_net},
                {"nvlink", TAG_LINK, 1 << TAG_GPU, read_nvlink},
                {"xgmi", TAG_LINK, 1 << TAG_GPU, read_xgmi},
                {"c2c", TAG_LINK, 1 << TAG_GPU, read_c2c}};

/* Files that may be taken for one of these. */
static void refuse_root(struct parse *p, const char *name)
{
    const char *what = "no topology of NCCL, which is a <system>";
    if (strcmp(name, "graphs") == 0) {
        what = "NCCL's channels (NCCL_GRAPH_DUMP_FILE); the machine is in NCCL_TOPO_DUMP_FILE";
    } else if (strcmp(name, "algo") == 0) {
        what = "a schedule of MSCCL, not a machine";
    }
    fault(p, p->line, "<%s> is %s", SHOW(name), what);
    stop(p);
}

static void on_start(void *ctx, const char *name, const char **attrs)
{
    struct parse *p = ctx;
    if (p->stopped) return;
    p->line = (unsigned)XML_GetCurrentLineNumber(p->parser);
    unsigned depth = p->depth++;
    if (depth >= DEPTH_MAX) {
        fault(p, p->line, "elements stand more than %d deep in each other", DEPTH_MAX);
        stop(p);
        return;
    }
    if (p->unknown) return;
    size_t i = 0, n = sizeof elements / sizeof *elements;
    while (i < n && strcmp(name, elements[i].name) != 0) {
        i++;
    }
    if (depth == 0 && i != 0) {
        refuse_root(p, name);
        return;
    }
    enum tag outer = depth ? p->open[depth - 1].tag : NTAGS;
    uint32_t parent = depth ? p->open[depth - 1].item : GRAPH_NONE;
    bool at_home = i < n && (depth == 0 ? i == 0 : elements[i].inside >> outer & 1);
    if (at_home) {
        p->open[depth].tag = elements[i].tag;
        p->open[depth].item = elements[i].read(p, attrs, parent);
        return;
    }
    p->unknown = depth + 1;
    if (i < n) {
        fault(p, p->line,
              "<%s> stands at the wrong place; it is system, cpu, pci, gpu or nic, "
              "links or net from outside in",
              name);
        stop(p); /* what follows would be at the wrong place as well */
    } else if (!p->warned_unknown) {
        graph_warn(p->graph, "%s:%u: <%s> is not known and passed over, and so are others", p->path,
                   p->line, SHOW(name));
        p->warned_unknown = true;
    }
}

static void on_end(void *ctx, const char *name)
{
    struct parse *p = ctx;
    (void)name;
    if (p->unknown == p->depth) p->unknown = 0;
    p->depth--;
}

static void on_doctype(void *ctx, const char *name, const char *system, const char *public_id,
                       int internal)
{
    struct parse *p = ctx;
    (void)name, (void)system, (void)public_id, (void)internal;
    fault(p, (unsigned)XML_GetCurrentLineNumber(p->parser),
          "a DOCTYPE; topologies have none, and entities are not expanded");
    stop(p);
}

static void parse_text(struct parse *p, const char *text, size_t bytes)
{
    if (bytes > BYTES_MAX) {
        fault(p, 1, "%zu bytes; a topology has at most %d", bytes, BYTES_MAX);
        return;
    }
    p->parser = XML_ParserCreate(NULL);
    XML_SetUserData(p->parser, p);
    XML_SetElementHandler(p->parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(p->parser, on_doctype);
    if (XML_Parse(p->parser, text, (int)bytes, true) == XML_STATUS_ERROR && !p->stopped) {
        fault(p, (unsigned)XML_GetCurrentLineNumber(p->parser), "no XML: %s",
              XML_ErrorString(XML_GetErrorCode(p->parser)));
    }
    XML_ParserFree(p->parser);
}

/* ---- the list of items ---- */

/* Says what is no part of the graph, and what stands in a device. */
static void settle_kinds(struct parse *p)
{
    for (size_t i = 0; i < p->nitems; i++) {
        struct item *item = &p->items[i];
        if (item->kind == GRAPH_NUMA) continue;
        const struct item *above = &p->items[item->parent];
        if (above->kind != GRAPH_NUMA && above->kind != GRAPH_PCIE) {
            fault(p, item->line, "this PCI function stands below %s (line %u), which is no bridge",
                  above->address ? SHOW(above->address) : "a device", above->line);
        }
        if (item->kind == GRAPH_PCIE && !item->carries && item->class >> 8 != 0x0604) {
            graph_warn(p->graph,
                       "%s:%u: %s of class 0x%06" PRIx64 " is neither accelerator, NIC "
                       "nor bridge; it is left out",
                       p->path, item->line, item->address ? SHOW(item->address) : "?",
                       (uint64_t)(item->class < 0 ? 0 : item->class));
            item->kind = LEFT_OUT;
        }
    }
}

/* Virtual bridges take the fastest rate below; bottom up, since parents stand before children. */
static void settle_rates(struct parse *p)
{
    for (size_t i = p->nitems; i-- > 0;) {
        struct item *item = &p->items[i];
        if (item->kind == GRAPH_NUMA) continue;
        double GTps = item->GTps, GBps = item->GTps > 0 ? item->up_GBps : 0;
        if (item->kind == GRAPH_PCIE && item->below_GBps > 0) {
            bool no_bus = item->bus != BUS_NONE && DOMAIN(item->bus) == 0xffff;
            item->made_up = no_bus || (item->GTps > 0 && item->GTps <= 5 && item->below_GTps >= 16);
            if (item->made_up) GTps = item->below_GTps, GBps = item->below_GBps;
        }
        struct item *above = &p->items[item->parent];
        if (GTps < item->below_GTps) GTps = item->below_GTps;
        if (above->below_GTps < GTps) above->below_GTps = GTps;
        if (GBps < item->below_GBps) GBps = item->below_GBps;
        if (above->below_GBps < GBps) above->below_GBps = GBps;
    }
    for (size_t i = 0; i < p->nitems; i++) {
        struct item *item = &p->items[i];
        if (!item->made_up) continue;
        graph_warn(p->graph,
                   "%s:%u: the rate of the virtual bridge %s, %.2f GB/s, is made up; the "
                   "fastest link below has %.2f GB/s, which it takes",
                   p->path, item->line, SHOW(item->address), item->up_GBps, item->below_GBps);
        item->up_GBps = item->below_GBps;
    }
}

static int by_bus(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    if (a->bus != b->bus) return a->bus < b->bus ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

static uint32_t find_bus(const struct parse *p, uint64_t bus)
{
    size_t low = 0, high = p->nplaces;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (p->places[mid].bus < bus) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < p->nplaces && p->places[low].bus == bus ? p->places[low].item : GRAPH_NONE;
}

static void sort_places(struct parse *p)
{
    p->nplaces = 0;
    for (size_t i = 0; i < p->nitems; i++) {
        if (p->items[i].bus == BUS_NONE) continue;
        MEM_GROW(p->places, p->nplaces, p->places_cap);
        p->places[p->nplaces++] = (struct place){p->items[i].bus, (uint32_t)i};
    }
    if (p->nplaces) qsort(p->places, p->nplaces, sizeof *p->places, by_bus);
}

/* Bus ids are told once; switches that only links name become items. */
static void settle_buses(struct parse *p)
{
    sort_places(p);
    for (size_t i = 1; i < p->nplaces; i++) {
        const struct item *first = &p->items[p->places[i - 1].item];
        const struct item *again = &p->items[p->places[i].item];
        if (first->bus == again->bus) {
            fault(p, again->line, "busid %s stands in line %u already", SHOW(again->address),
                  first->line);
        }
    }
    for (size_t i = 0; i < p->nends; i++) {
        const struct end *end = &p->ends[i];
        bool is_switch = end->target == BUS_HIDDEN || IS_SWITCH(end->class);
        if (!is_switch || end->target == BUS_NONE || find_bus(p, end->target) != GRAPH_NONE) {
            continue;
        }
        p->line = end->line;
        uint64_t target = end->target;
        uint32_t at = add_item(p, GRAPH_NVSWITCH, GRAPH_NONE); /* moves the list */
        struct item *added = &p->items[at];
        added->bus = target;
        if (target != BUS_HIDDEN) {
            added->address = mem_printf("%04x:%02x:%02x.%x", (unsigned)DOMAIN(target),
                                        (unsigned)(target >> 16 & 0xff),
                                        (unsigned)(target >> 8 & 0xff), (unsigned)(target & 0xff));
        }
    }
    sort_places(p);
    for (size_t i = 1; i < p->nplaces; i++) { /* find_bus gives the first of a bus id */
        struct item *again = &p->items[p->places[i].item];
        bool twice = p->places[i - 1].bus == p->places[i].bus;
        if (twice && again->kind == GRAPH_NVSWITCH) again->kind = LEFT_OUT;
    }
}

/* ---- nodes ---- */

/* Bits of an affinity mask, "000000ff,ffff0000": 32 a group, the highest first. */
static bool read_mask(const char *mask, bool **bits, size_t *nbits)
{
    size_t length = strlen(mask);
    *nbits = 0;
    if (length > MASK_MAX) return false;
    *bits = mem_calloc(32 * (length + 1), sizeof **bits); /* a comma alone skips 32 */
    for (size_t i = length, group = 0, at = 0; i-- > 0;) {
        if (mask[i] == ',') {
            if (at > group + 32) return false;
            at = group += 32;
            continue;
        }
        const char *digits = "0123456789abcdef";
        const char *digit =
            strchr(digits, mask[i] >= 'A' && mask[i] <= 'F' ? mask[i] + 32 : mask[i]);
        if (!digit) return false;
        for (unsigned b = 0; b < 4; b++) {
            (*bits)[at + b] = (digit - digits) >> b & 1;
        }
        at += 4;
        *nbits = at;
    }
    return true;
}

/* "0-27,56-83"; NULL if none. */
static char *cpu_list(const bool *bits, size_t nbits)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    for (size_t i = 0, n = 0; i < nbits; i++) {
        if (!bits[i]) continue;
        size_t last = i;
        while (last + 1 < nbits && bits[last + 1]) {
            last++;
        }
        fprintf(to, "%s%zu", n++ ? "," : "", i);
        if (last > i) fprintf(to, "-%zu", last);
        i = last;
    }
    fclose(to);
    if (bytes == 0) {
        free(text);
        text = NULL;
    }
    return text;
}

struct owners {
    uint32_t *numa; /* of each processor, + 1; 0: none yet */
    size_t n;
};

static void read_affinity(struct parse *p, const struct item *cpu, uint32_t numa,
                          struct owners *owners)
{
    bool *bits = NULL;
    size_t nbits = 0;
    if (!cpu->address) return;
    if (!read_mask(cpu->address, &bits, &nbits)) {
        fault(p, cpu->line, "affinity=\"%s\" is no mask, which is like \"000000ff,ffffffff\"",
              SHOW(cpu->address));
    } else if (nbits > owners->n) {
        owners->numa = mem_realloc(owners->numa, nbits, sizeof *owners->numa);
        memset(owners->numa + owners->n, 0, (nbits - owners->n) * sizeof *owners->numa);
        owners->n = nbits;
    }
    uint32_t other = 0;
    for (size_t i = 0; i < nbits; i++) {
        if (!bits[i] || i >= owners->n) continue;
        if (owners->numa[i] && owners->numa[i] != numa + 1) other = owners->numa[i];
        owners->numa[i] = numa + 1;
    }
    if (other) {
        graph_warn(p->graph, "%s:%u: the affinity %s of %s overlaps with that of %s (line %u)",
                   p->path, cpu->line, SHOW(cpu->address), p->graph->nodes[numa].name,
                   p->graph->nodes[other - 1].name, p->graph->nodes[other - 1].line);
    }
    if (!p->graph->nodes[numa].cpus) p->graph->nodes[numa].cpus = cpu_list(bits, nbits);
    free(bits);
}

/* A NUMA node for a <cpu>. -1 is what a system says that has none, or a device that knows none: it
 * is node 0. */
static void add_numa(struct parse *p, struct item *cpu, struct owners *owners)
{
    struct graph *graph = p->graph;
    bool unknown = cpu->number < 0;
    uint32_t number_of = unknown ? 0 : (uint32_t)cpu->number;
    uint32_t node = graph_find(graph, GRAPH_NUMA, number_of);
    if (unknown) {
        graph_warn(graph, "%s:%u: numaid -1, so the NUMA node is not known; 0 is taken", p->path,
                   cpu->line);
    }
    if (node == GRAPH_NONE) {
        node = graph_add(graph, GRAPH_NUMA, NULL, number_of, GRAPH_NONE);
        graph->nodes[node].line = cpu->line;
    } else if (!unknown && number_of > 0) {
        fault(p, cpu->line, "numaid %u stands in line %u already", number_of,
              graph->nodes[node].line);
    }
    cpu->node = node;
    read_affinity(p, cpu, node, owners);
}

static void add_numas(struct parse *p)
{
    struct owners owners = {0};
    unsigned zero = 0; /* line of the <cpu> with numaid 0 */
    for (size_t i = 0; i < p->nitems; i++) {
        struct item *cpu = &p->items[i];
        if (cpu->kind != GRAPH_NUMA) continue;
        if (cpu->number == 0 && zero) {
            fault(p, cpu->line, "numaid 0 stands in line %u already", zero);
        }
        if (cpu->number == 0 && !zero) zero = cpu->line;
        add_numa(p, cpu, &owners);
    }
    free(owners.numa);
    /* NCCL links all of them; how sockets are wired the file does not say */
    size_t n = p->graph->nnodes;
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = a + 1; b < n; b++) {
            graph_link(p->graph, GRAPH_SOCKET, a, b, 1);
        }
    }
    uint32_t *bridges = mem_calloc(n, sizeof *bridges);
    for (uint32_t a = 0; a < n; a++) {
        bridges[a] = graph_add(p->graph, GRAPH_BRIDGE, NULL, a, a);
        p->graph->nodes[bridges[a]].line = p->graph->nodes[a].line;
    }
    for (size_t i = 0; i < p->nitems; i++) {
        if (p->items[i].kind == GRAPH_NUMA) p->items[i].node = bridges[p->items[i].node];
    }
    free(bridges);
}

static void add_node(struct parse *p, struct item *item, uint32_t number_of)
{
    uint32_t parent = item->parent == GRAPH_NONE ? GRAPH_NONE : p->items[item->parent].node;
    const char *name = item->kind == GRAPH_NVSWITCH ? NULL : item->name;
    item->node = graph_add(p->graph, item->kind, name, number_of, parent);
    struct graph_node *node = &p->graph->nodes[item->node];
    node->address = mem_strdup(item->address);
    node->line = item->line;
    node->up_GBps = item->up_GBps;
    node->rate_Gbps = item->rate_Gbps;
}

struct rank {
    int64_t number;
    uint64_t bus;
    struct item *item;
};

static int by_number(const void *left, const void *right)
{
    const struct rank *a = left, *b = right;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    if (a->bus != b->bus) return a->bus < b->bus ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

/* Whether all have a number and none has another's; `list` is in the order of numbers. */
static bool numbered(const struct rank *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].number < 0 || (i && list[i].number == list[i - 1].number)) return false;
    }
    return true;
}

/* All nodes of a kind: by `dev` if it tells them apart, else by bus id. How many. */
static size_t add_kind(struct parse *p, enum graph_kind kind)
{
    size_t n = 0, cap = 0;
    struct rank *list = NULL;
    for (size_t i = 0; i < p->nitems; i++) {
        struct item *item = &p->items[i];
        if (item->kind != kind) continue;
        MEM_GROW(list, n, cap);
        list[n++] = (struct rank){item->number, item->bus, item};
    }
    if (n) qsort(list, n, sizeof *list, by_number);
    bool use = numbered(list, n);
    if (!use) {
        if (list[n - 1].number >= 0) {
            graph_warn(p->graph,
                       "%s:%u: \"dev\" does not tell all %ss apart; they are numbered by "
                       "bus id",
                       p->path, list[n - 1].item->line, graph_kind_name(kind));
        }
        for (size_t i = 0; i < n; i++) {
            list[i].number = -1;
        }
        qsort(list, n, sizeof *list, by_number);
    }
    for (size_t i = 0; i < n; i++) {
        add_node(p, list[i].item, use ? (uint32_t)list[i].number : (uint32_t)i);
    }
    free(list);
    return n;
}

static void add_nodes(struct parse *p)
{
    add_numas(p);
    uint32_t bridges = 0;
    for (size_t i = 0; i < p->nitems; i++) { /* from above to below, as the file has them */
        if (p->items[i].kind == GRAPH_PCIE) add_node(p, &p->items[i], bridges++);
    }
    if (add_kind(p, GRAPH_ACCEL) == 0) {
        graph_warn(p->graph, "%s:1: no accelerators; NCCL would find them as it runs", p->path);
    }
    add_kind(p, GRAPH_NIC);
    add_kind(p, GRAPH_NVSWITCH);
}

/* ---- links ---- */

static int by_ends(const void *left, const void *right)
{
    const struct end *a = left, *b = right;
    if (a->a != b->a) return a->a < b->a ? -1 : 1;
    if (a->b != b->b) return a->b < b->b ? -1 : 1;
    if (a->via != b->via) return a->via < b->via ? -1 : 1;
    if (a->back != b->back) return a->back ? 1 : -1;
    return (a->line > b->line) - (a->line < b->line);
}

/* Finds the node at the other end; false if there is none. */
static bool resolve(struct parse *p, struct end *end)
{
    const struct item *from = &p->items[end->item];
    end->a = from->node;
    if (end->class == CLASS_CPU) {
        end->via = GRAPH_C2C;
        end->b = graph_numa(p->graph, from->node);
        return end->b != GRAPH_NONE;
    }
    uint32_t at = find_bus(p, end->target);
    const struct item *to = at == GRAPH_NONE ? NULL : &p->items[at];
    if (!to) {
        graph_warn(p->graph,
                   "%s:%u: %u link(s) of %s lead to a device that is not in the file; "
                   "they are left out",
                   p->path, end->line, (unsigned)end->count, p->graph->nodes[end->a].name);
        return false;
    }
    end->b = to->node;
    end->mutual = to->kind == GRAPH_ACCEL;
    end->back = end->mutual && end->a > end->b;
    if (end->back) {
        end->b = end->a;
        end->a = to->node;
    }
    if (to->kind == GRAPH_ACCEL || to->kind == GRAPH_NVSWITCH) return true;
    fault(p, end->line, "the target %s (line %u) is neither an accelerator nor a switch",
          to->address ? SHOW(to->address) : "?", to->line);
    return false;
}

/* The ends first..last-1 are of the same link. */
static void add_link(struct parse *p, const struct end *ends, size_t n)
{
    uint64_t count[2] = {0};
    unsigned line[2] = {0};
    double GBps = 0;
    for (size_t i = 0; i < n; i++) {
        count[ends[i].back] += (uint64_t)ends[i].count;
        GBps += ends[i].back ? 0 : ends[i].GBps;
        if (!line[ends[i].back]) line[ends[i].back] = ends[i].line;
    }
    const struct graph_node *a = &p->graph->nodes[ends->a], *b = &p->graph->nodes[ends->b];
    if (ends->mutual && count[0] != count[1]) {
        bool more = count[1] > count[0] || !line[0]; /* the end that says more comes first */
        const struct graph_node *one = more ? b : a, *two = more ? a : b;
        char *other = line[!more] ? mem_printf(" (line %u)", line[!more]) : mem_strdup("");
        fault(p, line[more],
              "%s (%s) has %" PRIu64 " %s link(s) to %s (%s), which has %" PRIu64
              "%s back; both must say the same",
              one->name, SHOW(one->address), count[more], graph_via_name(ends->via), two->name,
              SHOW(two->address), count[!more], other);
        free(other);
        return;
    }
    if (count[0] > COUNT_MAX) {
        fault(p, line[0], "%" PRIu64 " links between two nodes; at most %d", count[0], COUNT_MAX);
        return;
    }
    graph_link(p->graph, ends->via, ends->a, ends->b, (uint32_t)count[0]);
    struct graph_link *link = &p->graph->links[p->graph->nlinks - 1];
    link->line = line[0];
    link->GBps = GBps;
}

static void add_links(struct parse *p)
{
    size_t kept = 0;
    unsigned hidden = 0, first = 0;
    for (size_t i = 0; i < p->nends; i++) {
        struct end end = p->ends[i];
        if (!resolve(p, &end)) continue;
        if (end.target == BUS_HIDDEN && !hidden++) first = end.line;
        p->ends[kept++] = end;
    }
    if (hidden) {
        graph_warn(p->graph,
                   "%s:%u: %u accelerator(s) have links whose other end is not visible "
                   "or is themselves; they are taken for links to one switch",
                   p->path, first, hidden);
    }
    if (kept) qsort(p->ends, kept, sizeof *p->ends, by_ends);
    for (size_t i = 0, next; i < kept; i = next) {
        next = i + 1;
        while (next < kept && p->ends[next].a == p->ends[i].a && p->ends[next].b == p->ends[i].b &&
               p->ends[next].via == p->ends[i].via) {
            next++;
        }
        add_link(p, &p->ends[i], next - i);
    }
}

/* ---- the file ---- */

bool nccl_xml_is(const char *text, size_t bytes)
{
    size_t i = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* a byte order mark */
    while (i < bytes && (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r'))) {
        i++;
    }
    return i < bytes && text[i] == '<';
}

static void release(struct parse *p)
{
    for (size_t i = 0; i < p->nitems; i++) {
        free(p->items[i].address);
        free(p->items[i].name);
    }
    free(p->items);
    free(p->ends);
    free(p->places);
    free(p->host);
}

int nccl_xml_read(struct graph *graph, const char *path, const char *text, size_t bytes,
                  struct err *err)
{
    struct parse p = {.path = path, .graph = graph, .err = err};
    static void (*const steps[])(struct parse *) = {settle_kinds, settle_rates, settle_buses,
                                                    add_nodes, add_links};
    *graph = (struct graph){0};
    graph->source = mem_printf("%s, a topology file of NCCL", path);
    parse_text(&p, text, bytes);
    /* each step needs what the one before has checked */
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !p.faults; i++) {
        steps[i](&p);
    }
    if (p.faults > FAULTS_MAX) {
        err_add(err, ERR_USAGE, "%s:1: %u further faults", path, p.faults - FAULTS_MAX);
    }
    release(&p);
    if (!p.faults) return 0;
    graph_release(graph);
    return -1;
}
