/* SPDX-License-Identifier: Apache-2.0
 * The table of `nvidia-smi topo -m` as a tree. Codes are nested classes (PIX in PXB in PHB in
 * NODE): whoever is joined at a level, also by way of others, shares the node of that level. NV#
 * hides how far two GPUs are on the bus: they are as far as other cells and their affinity allow.
 */
#include "net/smi.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    CODE_NONE = NGRAPH_NEARS, /* no code at all */
    CODE_NV,                  /* CODE_NV + k: k NVLinks */
    NV_MOST = 1000,           /* a larger number is no code */
    GPU_NVLINKS = 18,         /* the most that a GPU has (Hopper, Blackwell); more: by switches */
    MP_GPUS = 8,              /* so many GPUs without a near pair look like a hidden NVSwitch */
    FAULTS_MAX = 100,
    LEVELS = GRAPH_SYS, /* classes are kept at GRAPH_PIX..GRAPH_NODE */
};

struct token {
    const char *text;
    unsigned length, code;
};

struct line {
    unsigned number; /* from 1 */
    size_t first, count;
};

enum column { CPUS, NUMA, GPU_NUMA, NCOLUMNS }; /* what follows the codes */

static const struct {
    const char *title;
    unsigned words;
} columns[NCOLUMNS] = {
    [CPUS] = {"CPU Affinity", 2}, [NUMA] = {"NUMA Affinity", 2}, [GPU_NUMA] = {"GPU NUMA ID", 3}};

/* What `topo -p2p` says of a pair. */
static const struct {
    const char *code, *means;
} capabilities[] = {{"OK", "supported"},          {"CNS", "chipset not supported"},
                    {"GNS", "GPU not supported"}, {"TNS", "topology not supported"},
                    {"NS", "not supported"},      {"U", "unknown"}};
enum { NCAPABILITIES = sizeof capabilities / sizeof *capabilities };

struct device {
    struct token name, label; /* of the column; of the NIC legend, length 0: none */
    bool gpu;
    uint32_t number;
    size_t row;                  /* its line; SIZE_MAX: not met yet */
    struct token said[NCOLUMNS]; /* length 0: not said, or N/A */
    uint32_t numa;               /* GRAPH_NONE: not said */
    uint32_t group;              /* of the first of a NUMA class: what its members say */
};

struct table {
    const char *path;
    struct err *err;
    unsigned faults;
    char *text;
    struct token *tokens;
    size_t ntokens, tokens_cap;
    struct line *lines;
    size_t nlines, lines_cap;
    size_t header, end; /* lines: of the names; behind the last row */
    struct device *devices;
    size_t n, devices_cap;
    enum column order[NCOLUMNS];
    unsigned ncolumns;
    uint32_t *root[LEVELS]; /* [level][device]: the first device of its class */
    struct graph *graph;
    uint32_t *place; /* number in the graph, by device */
};

static int fault(struct table *t, size_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fault(struct table *t, size_t line, const char *format, ...)
{
    if (t->faults++ >= FAULTS_MAX) return -1;
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    err_add(t->err, ERR_USAGE, "%s:%u: %s%s", t->path, t->lines[line].number, text,
            t->faults == FAULTS_MAX ? "; further faults are not shown" : "");
    free(text);
    return -1;
}

/* ---- words ---- */

#define SHOW(token) (int)((token).length < 60 ? (token).length : 60), (token).text

static bool same(struct token a, struct token b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.text, b.text, a.length) == 0);
}

static bool is(struct token token, const char *word)
{
    return token.length == strlen(word) && memcmp(token.text, word, token.length) == 0;
}

/* "GPU12": 12, behind `prefix`; digits to the end, or to where *used says. */
static bool numbered(struct token token, const char *prefix, uint32_t *number, unsigned *used)
{
    unsigned at = (unsigned)strlen(prefix), begin = at;
    if (token.length <= at || memcmp(token.text, prefix, at) != 0) return false;
    uint32_t value = 0;
    for (; at < token.length && at < begin + 9 && isdigit((unsigned char)token.text[at]); at++)
        value = 10 * value + (uint32_t)(token.text[at] - '0');
    *number = value;
    *used = at;
    return at > begin;
}

static bool number_of(struct token token, const char *prefix, uint32_t *number)
{
    unsigned used = 0;
    return numbered(token, prefix, number, &used) && used == token.length;
}

/* The code that a text begins with, and its length; CODE_NONE. */
static unsigned code_at(struct token token, unsigned *length)
{
    uint32_t links = 0;
    if (numbered(token, "NV", &links, length)) {
        return links > 0 && links <= NV_MOST ? CODE_NV + links : (unsigned)CODE_NONE;
    }
    for (unsigned near = 0; near < NGRAPH_NEARS; near++) {
        const char *name = graph_near_name((enum graph_near)near);
        *length = (unsigned)strlen(name);
        if (token.length >= *length && memcmp(token.text, name, *length) == 0) return near;
    }
    *length = 3; /* SYS was called SOC by drivers before 2017 */
    return token.length >= 3 && memcmp(token.text, "SOC", 3) == 0 ? GRAPH_SYS : CODE_NONE;
}

/* How many codes a text is made of, without a gap; 0: it is something else. */
static unsigned codes_in(struct token token)
{
    unsigned count = 0, length = 0;
    for (; token.length; token.text += length, token.length -= length, count++) {
        if (code_at(token, &length) == CODE_NONE) return 0;
    }
    return count;
}

/* A list of numbers and ranges ("0-27,56-83"), or one number below zero. */
static bool is_list(struct token token)
{
    for (unsigned i = 0; i < token.length; i++) {
        if (!isdigit((unsigned char)token.text[i]) && !memchr(",-", token.text[i], 2)) return false;
    }
    return token.length > 0 && token.text[0] != ',';
}

/* Cuts the text at blanks and lines. Escape sequences (the names are underlined on a terminal)
 * count as blanks. */
static void cut(struct table *t, const char *text, size_t bytes)
{
    t->text = mem_calloc(bytes + 2, 1);
    memcpy(t->text, text, bytes);
    t->text[bytes] = '\n';
    unsigned number = 1;
    size_t first = 0;
    for (char *at = t->text, *end = at + bytes + 1; at < end;) {
        if (*at == '\033') {
            while (at < end - 1 && *at != 'm' && *at != '\n')
                at++;
            at += *at == 'm';
        } else if (*at == '\n') {
            MEM_GROW(t->lines, t->nlines, t->lines_cap);
            t->lines[t->nlines++] = (struct line){number++, first, t->ntokens - first};
            first = t->ntokens;
            at++;
        } else if (isspace((unsigned char)*at)) {
            at++;
        } else {
            char *from = at;
            while (!isspace((unsigned char)*at) && *at != '\033')
                at++;
            MEM_GROW(t->tokens, t->ntokens, t->tokens_cap);
            t->tokens[t->ntokens++] =
                (struct token){.text = from, .length = (unsigned)(at - from), .code = CODE_NONE};
        }
    }
}

static struct token word(const struct table *t, size_t line, size_t i)
{
    return i < t->lines[line].count ? t->tokens[t->lines[line].first + i] : (struct token){0};
}

/* ---- the table's shape ---- */

/* The line of the names: it begins with a GPU's, as does the next that is not empty. */
static bool find_header(struct table *t)
{
    uint32_t number;
    unsigned used;
    for (size_t i = 0; i < t->nlines; i++) {
        if (!numbered(word(t, i, 0), "GPU", &number, &used)) continue;
        size_t next = i + 1;
        while (next < t->nlines && t->lines[next].count == 0)
            next++;
        if (next == t->nlines || !numbered(word(t, next, 0), "GPU", &number, &used)) continue;
        if (codes_in(word(t, i, 1))) continue; /* a row */
        t->header = i;
        for (t->end = next; t->end < t->nlines && t->lines[t->end].count; t->end++)
            ;
        return true;
    }
    return false;
}

bool smi_is(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && isspace((unsigned char)text[at]))
        at++;
    if (at == bytes || text[at] == '{' || text[at] == '<') return false;
    struct table t = {0};
    cut(&t, text, bytes);
    bool found = find_header(&t);
    free(t.text);
    free(t.tokens);
    free(t.lines);
    return found;
}

/* A name that is two: "NIC8NIC9", or those of two rows. Sets where the second begins. */
static bool two_names(const struct table *t, struct token name, unsigned *second)
{
    uint32_t number;
    unsigned used;
    for (unsigned at = 1; at + 3 < name.length; at++) {
        struct token rest = {.text = name.text + at, .length = name.length - at};
        *second = at;
        if (numbered(rest, "GPU", &number, &used) || numbered(rest, "NIC", &number, &used)) {
            return true;
        }
    }
    for (size_t line = t->header + 1; line < t->end; line++) {
        struct token row = word(t, line, 0);
        if (row.length == 0 || row.length >= name.length) continue;
        struct token head = {.text = name.text, .length = row.length};
        struct token rest = {.text = name.text + row.length, .length = name.length - row.length};
        *second = row.length;
        for (size_t other = t->header + 1; same(head, row) && other < t->end; other++) {
            if (same(word(t, other, 0), rest)) return true;
        }
    }
    return false;
}

/* Columns of affinity from word `at` of the header on. */
static int read_order(struct table *t, size_t at)
{
    while (at < t->lines[t->header].count) {
        unsigned c = 0;
        for (; c < NCOLUMNS; c++) {
            const char *from = word(t, t->header, at).text; /* words may have any blanks between */
            const char *title = columns[c].title;
            unsigned words = 0;
            for (; words < columns[c].words; words++, title += strcspn(title, " ") + 1) {
                struct token part = {.text = title, .length = (unsigned)strcspn(title, " ")};
                if (!from || !same(word(t, t->header, at + words), part)) break;
            }
            if (words == columns[c].words) break;
        }
        struct token here = word(t, t->header, at);
        if (c == NCOLUMNS || t->ncolumns == NCOLUMNS) {
            return fault(t, t->header,
                         "\"%.*s\" begins no column that is known (CPU Affinity, NUMA Affinity, "
                         "GPU NUMA ID)",
                         SHOW(here));
        }
        t->order[t->ncolumns++] = (enum column)c;
        at += columns[c].words;
    }
    return 0;
}

/* Names in the header, up to the columns of affinity. */
static int read_names(struct table *t)
{
    uint32_t nics = 0;
    size_t at = 0;
    for (; at < t->lines[t->header].count; at++) {
        struct token name = word(t, t->header, at);
        if (is(name, "CPU") || is(name, "NUMA") || is(name, "GPU") || is(name, "Affinity")) break;
        struct device d = {.name = name, .row = SIZE_MAX, .numa = GRAPH_NONE, .group = GRAPH_NONE};
        unsigned second = 0;
        d.gpu = number_of(name, "GPU", &d.number);
        bool plain = d.gpu || number_of(name, "NIC", &d.number);
        if (!plain && two_names(t, name, &second)) {
            struct token head = {.text = name.text, .length = second};
            struct token rest = {.text = name.text + second, .length = name.length - second};
            fault(t, t->header, "column %zu, \"%.*s\", is two names run into one: %.*s and %.*s",
                  at + 1, SHOW(name), SHOW(head), SHOW(rest));
        }
        if (!plain) d.number = nics;
        nics += !d.gpu;
        MEM_GROW(t->devices, t->n, t->devices_cap);
        t->devices[t->n++] = d;
    }
    return read_order(t, at) | (t->faults ? -1 : 0);
}

static unsigned capability(struct token token)
{
    unsigned i = 0;
    while (i < NCAPABILITIES && !is(token, capabilities[i].code))
        i++;
    return i;
}

/* The table of `topo -p2p` has the same shape; says so, and what it says. Returns -1 if it is. */
static int refuse_p2p(struct table *t)
{
    size_t counts[NCAPABILITIES + 1] = {0}, pairs = 0;
    for (size_t line = t->header + 1; line < t->end; line++) {
        for (size_t i = 1; i < t->lines[line].count && i <= t->n; i++)
            counts[capability(word(t, line, i))]++;
    }
    unsigned most = 1;
    for (unsigned i = 0; i < NCAPABILITIES; i++) {
        pairs += counts[i];
        if (i > most && counts[i] > counts[most]) most = i;
    }
    if (pairs == 0) return 0;
    const char *all = counts[0] == pairs ? "all pairs of GPUs: supported"
                      : counts[0] == 0   ? "all pairs of GPUs: not supported"
                                         : "some pairs of GPUs: not supported";
    return fault(t, t->header,
                 "this is the capability matrix of `nvidia-smi topo -p2p` (%s; %s: %s), which has "
                 "no distances; the table of `nvidia-smi topo -m` is needed",
                 all, counts[0] == pairs ? "OK" : capabilities[most].code,
                 capabilities[counts[0] == pairs ? 0 : most].means);
}

/* ---- rows ---- */

static struct device *device_named(struct table *t, struct token name, size_t hint)
{
    if (hint < t->n && same(t->devices[hint].name, name)) return &t->devices[hint];
    for (size_t i = 0; i < t->n; i++) {
        if (same(t->devices[i].name, name)) return &t->devices[i];
    }
    return NULL;
}

/* The codes of a row into its tokens. */
static int read_codes(struct table *t, size_t line, size_t self)
{
    struct token row = word(t, line, 0);
    for (size_t c = 0; c < t->n; c++) {
        const struct device *to = &t->devices[c];
        struct token *cell = &t->tokens[t->lines[line].first + 1 + c];
        if (c + 1 >= t->lines[line].count) {
            return fault(t, line, "row %.*s ends before its column %.*s", SHOW(row),
                         SHOW(to->name));
        }
        unsigned count = codes_in(*cell), length = 0;
        if (count != 1) {
            return fault(t, line, "row %.*s, column %.*s: \"%.*s\" is %s", SHOW(row),
                         SHOW(to->name), SHOW(*cell),
                         count
                             ? "several cells run into one"
                             : "no code (X, NV#, PIX, PXB, PHB, NODE, SYS); a cell may be missing");
        }
        cell->code = code_at(*cell, &length);
        bool nvlink = cell->code > CODE_NV;
        if ((cell->code == GRAPH_SELF) != (c == self)) {
            return fault(t, line,
                         "row %.*s, column %.*s: %.*s, but X stands where a row meets its "
                         "own column and only there; a cell is missing or one too many",
                         SHOW(row), SHOW(to->name), SHOW(*cell));
        }
        if (nvlink && !(to->gpu && t->devices[self].gpu)) {
            return fault(t, line, "row %.*s, column %.*s: %.*s, but only GPUs have NVLink",
                         SHOW(row), SHOW(to->name), SHOW(*cell));
        }
    }
    return 0;
}

/* What follows the codes: all columns, or, in the row of a NIC, none. */
static int read_said(struct table *t, size_t line, struct device *d)
{
    size_t count = t->lines[line].count - 1 - t->n;
    if (count == 0 && !d->gpu) return 0;
    if (count < t->ncolumns) {
        return fault(t, line, "row %.*s ends before its column %s", SHOW(d->name),
                     columns[t->order[count]].title);
    }
    if (count > t->ncolumns) {
        struct token more = word(t, line, 1 + t->n + t->ncolumns);
        return fault(t, line, "row %.*s has %zu cells, the header %zu columns: \"%.*s\" is over",
                     SHOW(d->name), t->lines[line].count - 1, t->n + t->ncolumns, SHOW(more));
    }
    for (unsigned c = 0; c < t->ncolumns; c++) {
        struct token cell = word(t, line, 1 + t->n + c);
        if (is(cell, "N/A")) continue;
        if (!is_list(cell)) {
            return fault(t, line, "row %.*s, column %s: \"%.*s\" is no list of numbers, nor N/A",
                         SHOW(d->name), columns[t->order[c]].title, SHOW(cell));
        }
        d->said[t->order[c]] = cell;
    }
    return 0;
}

static int read_rows(struct table *t)
{
    for (size_t line = t->header + 1, hint = 0; line < t->end && t->faults < FAULTS_MAX; line++) {
        struct token name = word(t, line, 0);
        if (name.length == 0) continue;
        struct device *d = device_named(t, name, hint++);
        if (!d || d->row != SIZE_MAX) {
            fault(t, line, d ? "row %.*s stands twice" : "row %.*s has no column", SHOW(name));
            continue;
        }
        d->row = line;
        if (read_codes(t, line, (size_t)(d - t->devices)) == 0) read_said(t, line, d);
    }
    for (size_t i = 0; i < t->n && t->faults < FAULTS_MAX; i++) {
        struct token name = t->devices[i].name;
        if (t->devices[i].row == SIZE_MAX) {
            fault(t, t->header, "column %.*s has no row", SHOW(name));
        }
    }
    return t->faults ? -1 : 0;
}

static unsigned code(const struct table *t, size_t a, size_t b)
{
    return t->tokens[t->lines[t->devices[a].row].first + 1 + b].code;
}

static int check_symmetry(struct table *t)
{
    for (size_t a = 0; a < t->n; a++) {
        for (size_t b = 0; b < a && t->faults < FAULTS_MAX; b++) {
            if (code(t, a, b) == code(t, b, a)) continue;
            const struct device *da = &t->devices[a], *db = &t->devices[b];
            struct token there = word(t, db->row, 1 + a), here = word(t, da->row, 1 + b);
            fault(t, da->row,
                  "row %.*s, column %.*s: %.*s, but row %.*s (line %u), column %.*s: "
                  "%.*s",
                  SHOW(da->name), SHOW(db->name), SHOW(here), SHOW(db->name),
                  t->lines[db->row].number, SHOW(da->name), SHOW(there));
        }
    }
    return t->faults ? -1 : 0;
}

/* "NIC0: mlx5_0", behind the table. */
static void read_legend(struct table *t)
{
    for (size_t line = t->end; line < t->nlines; line++) {
        struct token key = word(t, line, 0);
        if (t->lines[line].count != 2 || key.text[key.length - 1] != ':') continue;
        key.length--;
        struct device *d = device_named(t, key, SIZE_MAX);
        if (d && !d->gpu) d->label = word(t, line, 1);
    }
}

/* ---- classes ---- */

/* Puts a device and what follows its name at the end of a list in words; NULL: an empty one. */
static void list_add(const struct table *t, char **list, size_t i, const char *more)
{
    struct token name = t->devices[i].name;
    char *longer =
        mem_printf("%s%s%.*s%s", *list ? *list : "", *list ? ", " : "", SHOW(name), more);
    free(*list);
    *list = longer;
}

/* Warns of the devices in a list, if there are any, and frees it. */
static void list_warn(struct table *t, char *list, const char *says)
{
    if (list) {
        graph_warn(t->graph, "%s:%u: %s: %s", t->path, t->lines[t->header].number, says, list);
    }
    free(list);
}

static void join(struct table *t, unsigned level, size_t a, size_t b)
{
    uint32_t *root = t->root[level], x = root[a], y = root[b];
    if (x == y) return;
    uint32_t to = x < y ? x : y, from = x < y ? y : x;
    for (size_t i = 0; i < t->n; i++)
        if (root[i] == from) root[i] = to;
}

/* Who has the same is at one NUMA node: the NUMA column, else the processors; nothing for all. */
static struct token place_said(const struct device *d)
{
    return d->said[NUMA].length ? d->said[NUMA] : d->said[CPUS];
}

/* Classes that no cell says are apart, and whose GPUs are at one place, are one NUMA node. */
static void join_hidden(struct table *t)
{
    uint32_t *root = t->root[GRAPH_NODE];
    bool *apart = mem_calloc(t->n * t->n, sizeof *apart);
    for (size_t a = 0; a < t->n; a++) {
        for (size_t b = 0; b < t->n; b++)
            apart[root[a] * t->n + root[b]] |= code(t, a, b) == GRAPH_SYS;
    }
    for (size_t a = 0; a < t->n; a++) {
        for (size_t b = a + 1; b < t->n; b++) {
            uint32_t x = root[a], y = root[b];
            if (code(t, a, b) < CODE_NV || x == y || apart[x * t->n + y] ||
                !same(place_said(&t->devices[a]), place_said(&t->devices[b]))) {
                continue;
            }
            for (size_t i = 0; i < t->n; i++) {
                bool both = apart[x * t->n + i] | apart[y * t->n + i];
                apart[x * t->n + i] = apart[y * t->n + i] = both;
                apart[i * t->n + x] = apart[i * t->n + y] = both;
            }
            join(t, GRAPH_NODE, a, b);
        }
    }
    free(apart);
}

static void find_classes(struct table *t)
{
    for (unsigned level = GRAPH_PIX; level < LEVELS; level++) {
        t->root[level] = mem_calloc(t->n, sizeof *t->root[level]);
        for (uint32_t i = 0; i < t->n; i++)
            t->root[level][i] = i;
        for (size_t a = 0; a < t->n; a++) {
            for (size_t b = a + 1; b < t->n; b++)
                if (code(t, a, b) <= level) join(t, level, a, b);
        }
    }
    join_hidden(t);
}

static unsigned tree_code(const struct table *t, size_t a, size_t b)
{
    unsigned level = GRAPH_PIX;
    while (level < LEVELS && t->root[level][a] != t->root[level][b])
        level++;
    return level;
}

/* One sentence for each row with cells that the tree cannot have. */
static void warn_no_tree(struct table *t)
{
    for (size_t a = 0; a < t->n; a++) {
        char *cells = NULL;
        for (size_t b = a + 1; b < t->n; b++) {
            unsigned said = code(t, a, b), level = tree_code(t, a, b);
            if (said > GRAPH_SYS || said == level) continue;
            size_t by = 0;
            while (by < t->n &&
                   !(by != a && by != b && code(t, a, by) <= level && code(t, by, b) <= level))
                by++;
            struct token between = by < t->n ? t->devices[by].name : (struct token){"others", 6, 0};
            char *more = mem_printf(" %s (%s by way of %.*s)", graph_near_name(said),
                                    graph_near_name(level), SHOW(between));
            list_add(t, &cells, b, more);
            free(more);
        }
        if (cells) {
            struct token row = t->devices[a].name;
            graph_warn(t->graph,
                       "%s:%u: row %.*s has cells that no tree can have beside the "
                       "others, the nearer way is taken: %s",
                       t->path, t->lines[t->devices[a].row].number, SHOW(row), cells);
        }
        free(cells);
    }
}

/* ---- the tree ---- */

/* The first number of a list: a node below 0 (unknown to the system) is node 0. */
static uint32_t first_number(struct token list)
{
    uint32_t number = 0;
    unsigned used;
    return numbered(list, "", &number, &used) ? number : 0;
}

/* NUMA nodes of devices by their column; else by the processors, numbered as they come. Returns the
 * first number that is free. */
static uint32_t find_numa(struct table *t)
{
    char *below = NULL, *several = NULL, *guessed = NULL;
    uint32_t next = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct device *d = &t->devices[i];
        struct token said = d->said[NUMA];
        if (said.length == 0) continue;
        d->numa = first_number(said);
        next = d->numa >= next ? d->numa + 1 : next;
        if (said.text[0] == '-') {
            list_add(t, &below, i, "");
        } else if (!number_of(said, "", &d->numa)) {
            list_add(t, &several, i, "");
        }
    }
    for (size_t i = 0; i < t->n; i++) {
        struct device *d = &t->devices[i];
        if (d->numa != GRAPH_NONE || d->said[CPUS].length == 0) continue;
        for (size_t j = 0; j < t->n && d->numa == GRAPH_NONE; j++)
            if (same(d->said[CPUS], t->devices[j].said[CPUS])) d->numa = t->devices[j].numa;
        if (d->numa == GRAPH_NONE) d->numa = next++;
        list_add(t, &guessed, i, "");
    }
    list_warn(t, below, "NUMA node -1 is none, node 0 is taken");
    list_warn(t, several, "several NUMA nodes are named, the first is taken");
    list_warn(t, guessed, "no NUMA node is named, they are told apart by the lists of processors");
    return next;
}

/* Adds the NUMA node of the class whose first is `root`. If cells say that devices of one node are
 * SYS from each other, that node is taken for several: "numa0", "numa0.1" with a number made up. */
static uint32_t add_numa(struct table *t, uint32_t root, uint32_t *next, char **unknown,
                         char **parts)
{
    struct device *first = &t->devices[root];
    struct token cpus = {0};
    uint32_t twins = 0;
    for (size_t i = root; i < t->n; i++) {
        if (t->root[GRAPH_NODE][i] != root) continue;
        if (first->group == GRAPH_NONE) first->group = t->devices[i].numa;
        if (cpus.length == 0) cpus = t->devices[i].said[CPUS];
    }
    for (size_t i = 0; i < root; i++)
        twins += t->root[GRAPH_NODE][i] == i && t->devices[i].group == first->group;
    bool part = twins && first->group != GRAPH_NONE;
    uint32_t number = part || first->group == GRAPH_NONE ? (*next)++ : first->group;
    char *name = part ? mem_printf("numa%" PRIu32 ".%" PRIu32, first->group, twins) : NULL;
    uint32_t node = graph_add(t->graph, GRAPH_NUMA, name, number, GRAPH_NONE);
    if (cpus.length) t->graph->nodes[node].cpus = mem_printf("%.*s", (int)cpus.length, cpus.text);
    if (part || first->group == GRAPH_NONE) {
        char *more = mem_printf(" (%s)", t->graph->nodes[node].name);
        list_add(t, part ? parts : unknown, root, more);
        free(more);
    }
    free(name);
    return node;
}

static uint32_t add_device(struct table *t, size_t i, uint32_t parent)
{
    const struct device *d = &t->devices[i];
    uint32_t number;
    bool plain = d->gpu || number_of(d->name, "NIC", &number);
    struct token called = d->label.length ? d->label : d->name;
    char *name =
        plain && !d->label.length ? NULL : mem_printf("%.*s", (int)called.length, called.text);
    uint32_t node = graph_add(t->graph, d->gpu ? GRAPH_ACCEL : GRAPH_NIC, name, d->number, parent);
    t->graph->nodes[node].line = t->lines[d->row].number;
    free(name);
    return node;
}

/* Each class is a node under that of the class around it; a switch with one below is none. */
static void add_nodes(struct table *t, uint32_t next)
{
    uint32_t *up[LEVELS], numbers[NGRAPH_KINDS] = {0};
    size_t *members = mem_calloc(t->n, sizeof *members), *inner = mem_calloc(t->n, sizeof *inner);
    char *unknown = NULL, *parts = NULL;
    for (unsigned level = GRAPH_PIX; level < LEVELS; level++)
        up[level] = mem_calloc(t->n, sizeof *up[level]);
    for (size_t i = 0; i < t->n; i++) {
        members[t->root[GRAPH_PIX][i]]++;
        inner[t->root[GRAPH_PXB][i]] += t->root[GRAPH_PIX][i] == i;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t at = GRAPH_NONE;
        for (unsigned level = GRAPH_NODE; level >= GRAPH_PIX; level--) {
            uint32_t root = t->root[level][i];
            if (root != i) {
                at = up[level][root];
                continue;
            }
            bool several = inner[t->root[GRAPH_PXB][i]] > 1;
            if (level == GRAPH_NODE) {
                at = add_numa(t, i, &next, &unknown, &parts);
            } else if (level == GRAPH_PHB) {
                at = graph_add(t->graph, GRAPH_BRIDGE, NULL, numbers[GRAPH_BRIDGE]++, at);
            } else if (several || (level == GRAPH_PIX && members[i] > 1)) {
                at = graph_add(t->graph, GRAPH_PCIE, NULL, numbers[GRAPH_PCIE]++, at);
            }
            up[level][i] = at;
        }
        t->place[i] = add_device(t, i, at);
    }
    for (unsigned level = GRAPH_PIX; level < LEVELS; level++)
        free(up[level]);
    free(members);
    free(inner);
    list_warn(t, unknown, "no NUMA node is named, further numbers are made up");
    list_warn(t, parts, "SYS from others of the same NUMA node, which is taken for several");
}

static void link_sockets(struct graph *graph)
{
    for (uint32_t a = 0; a < graph->nnodes; a++) {
        for (uint32_t b = 0; b < a && graph->nodes[a].kind == GRAPH_NUMA; b++)
            if (graph->nodes[b].kind == GRAPH_NUMA) graph_link(graph, GRAPH_SOCKET, b, a, 1);
    }
}

/* ---- NVLink ---- */

/* Links of a GPU to the others; *most to one of them. */
static uint64_t nvlinks(const struct table *t, size_t a, uint32_t *most)
{
    uint64_t sum = 0;
    *most = 0;
    for (size_t b = 0; b < t->n; b++) {
        uint32_t links = code(t, a, b) > CODE_NV ? code(t, a, b) - CODE_NV : 0;
        *most = links > *most ? links : *most;
        sum += links;
    }
    return sum;
}

/* Whether the GPUs that `a` has NVLinks to have them to each other, as many as the fewer of two:
 * what a switch gives. Such a group is `in`. */
static bool is_switched(const struct table *t, size_t a, const uint32_t *most, bool *in)
{
    for (size_t i = 0; i < t->n; i++)
        in[i] = i == a || code(t, a, i) > CODE_NV;
    for (size_t i = 0; i < t->n; i++) {
        for (size_t j = 0; in[i] && j < t->n; j++) {
            uint32_t links = code(t, i, j) > CODE_NV ? code(t, i, j) - CODE_NV : 0;
            uint32_t fewer = most[i] < most[j] ? most[i] : most[j];
            if (i != j && links != (in[j] ? fewer : 0)) return false;
        }
    }
    return true;
}

/* The table does not name switches: they are taken for there (as one) where a GPU would need more
 * links than any has. */
static void link_gpus(struct table *t)
{
    uint32_t *most = mem_calloc(t->n, sizeof *most), switches = 0;
    bool *in = mem_calloc(t->n, sizeof *in), *done = mem_calloc(t->n, sizeof *done);
    uint64_t *sum = mem_calloc(t->n, sizeof *sum);
    char *many = NULL;
    for (size_t a = 0; a < t->n; a++)
        sum[a] = nvlinks(t, a, &most[a]);
    for (size_t a = 0; a < t->n; a++) {
        if (done[a] || sum[a] == 0) continue;
        if (sum[a] > GPU_NVLINKS && is_switched(t, a, most, in)) {
            uint32_t node = graph_add(t->graph, GRAPH_NVSWITCH, NULL, switches++, GRAPH_NONE);
            for (size_t b = 0; b < t->n; b++) {
                if (in[b]) graph_link(t->graph, GRAPH_NVLINK, t->place[b], node, most[b]);
                done[b] |= in[b];
            }
            continue;
        }
        if (sum[a] > GPU_NVLINKS) list_add(t, &many, a, "");
        for (size_t b = a + 1; b < t->n; b++) {
            if (code(t, a, b) > CODE_NV) {
                graph_link(t->graph, GRAPH_NVLINK, t->place[a], t->place[b],
                           code(t, a, b) - CODE_NV);
            }
        }
    }
    list_warn(t, many, "more NVLinks than the 18 that a GPU has, yet not as by a switch");
    free(most);
    free(in);
    free(done);
    free(sum);
}

/* ---- what people should know ---- */

/* The nearest NIC of a GPU, or GPU of a NIC: the least code. */
static unsigned nearest(const struct table *t, size_t a)
{
    unsigned least = CODE_NONE;
    for (size_t b = 0; b < t->n; b++)
        if (t->devices[a].gpu != t->devices[b].gpu && code(t, a, b) < least) least = code(t, a, b);
    return least;
}

static void warn_nics(struct table *t)
{
    char *far = NULL, *idle = NULL;
    for (size_t i = 0; i < t->n; i++)
        if (nearest(t, i) == GRAPH_SYS) list_add(t, t->devices[i].gpu ? &far : &idle, i, "");
    list_warn(t, far, "GPU without a local NIC (all are SYS)");
    list_warn(t, idle, "NIC without a local GPU, of storage or management perhaps");
}

static void warn_gpus(struct table *t)
{
    size_t gpus = 0, near = 0, linked = 0;
    for (size_t a = 0; a < t->n; a++) {
        gpus += t->devices[a].gpu;
        for (size_t b = 0; b < a && t->devices[a].gpu; b++) {
            linked += code(t, a, b) > CODE_NV;
            near += t->devices[b].gpu && code(t, a, b) < GRAPH_NODE;
        }
    }
    unsigned line = t->lines[t->header].number;
    if (gpus < 2 || linked) return;
    graph_warn(t->graph,
               "%s:%u: no NVLink, and no model is named: whether these %zu GPUs reach each "
               "other (P2P; consumer GPUs may not) is unknown",
               t->path, line, gpus);
    if (gpus >= MP_GPUS && near == 0) {
        graph_warn(t->graph,
                   "%s:%u: all of %zu GPUs are NODE or SYS: if their model has NVLink, "
                   "this is maybe of `nvidia-smi topo -mp`, which hides it",
                   t->path, line, gpus);
    }
}

/* Devices whose column says another NUMA node than the class they are in. */
static void warn_numa(struct table *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct device *d = &t->devices[i];
        uint32_t group = t->devices[t->root[GRAPH_NODE][i]].group;
        if (d->numa == GRAPH_NONE || group == d->numa) continue;
        graph_warn(t->graph,
                   "%s:%u: %.*s is put at NUMA node %" PRIu32 ", as its cells say, not at %" PRIu32
                   ", as its affinity says",
                   t->path, t->lines[d->row].number, SHOW(d->name), group, d->numa);
    }
}

static int read_table(struct table *t)
{
    if (!find_header(t)) {
        return err_add(t->err, ERR_USAGE, "%s:1: this is no table of `nvidia-smi topo -m`",
                       t->path);
    }
    if (read_names(t) < 0 || refuse_p2p(t) < 0 || read_rows(t) < 0 || check_symmetry(t) < 0) {
        return -1;
    }
    read_legend(t);
    find_classes(t);
    t->place = mem_calloc(t->n, sizeof *t->place);
    add_nodes(t, find_numa(t));
    link_sockets(t->graph);
    link_gpus(t);
    warn_no_tree(t);
    warn_numa(t);
    warn_gpus(t);
    warn_nics(t);
    return graph_check(t->graph, t->path, t->err);
}

int smi_read(struct graph *graph, const char *path, const char *text, size_t bytes, struct err *err)
{
    *graph = (struct graph){0};
    struct table t = {.path = path, .err = err, .graph = graph};
    cut(&t, text, bytes);
    int result = read_table(&t);
    if (result < 0) graph_release(graph);
    free(t.text);
    free(t.tokens);
    free(t.lines);
    free(t.devices);
    free(t.place);
    for (unsigned level = GRAPH_PIX; level < LEVELS; level++)
        free(t.root[level]);
    return result;
}
