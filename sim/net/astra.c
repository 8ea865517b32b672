/* SPDX-License-Identifier: Apache-2.0
 * ASTRA-sim's network files: a scanner of words, the four lists, and the way to and from a
 * topology. See astra.h. */
#include "net/astra.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"

enum { FAULTS_MAX = 100 }; /* a file with more is not worth a longer list */

static const double GiB = 1073741824; /* ASTRA-sim's GB */

static const char *const kind_names[NASTRA_KINDS + 1] = {
    [ASTRA_RING] = "Ring",
    [ASTRA_FULLY_CONNECTED] = "FullyConnected",
    [ASTRA_SWITCH] = "Switch",
};

enum key { KEY_TOPOLOGY, KEY_NPUS, KEY_BANDWIDTH, KEY_LATENCY, NKEYS };
static const char *const key_names[NKEYS + 1] = {"topology", "npus_count", "bandwidth", "latency"};

const char *astra_kind_name(enum astra_kind kind)
{
    return kind_names[kind];
}

void astra_release(struct astra *astra)
{
    free(astra->dims);
    *astra = (struct astra){0};
}

/* ---- words ---- */

enum word_kind { WORD_END, WORD_TEXT, WORD_MARK, WORD_BAD }; /* a mark: [ ] , : or - */

struct word {
    enum word_kind kind;
    const char *text; /* in the file, without quotes */
    size_t bytes;
    unsigned line;
};

struct list {
    struct word *words;
    size_t count, cap;
    unsigned line; /* of its key; 0: there is none */
};

struct reader {
    const char *path, *at, *end;
    unsigned line;
    struct word word; /* the one in hand */
    struct list lists[NKEYS];
    struct err *err;
};

static int fault(struct reader *r, unsigned line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fault(struct reader *r, unsigned line, const char *format, ...)
{
    if (r->err->count >= FAULTS_MAX) return -1;
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    err_add(r->err, ERR_USAGE, "%s:%u: %s", r->path, line, text);
    free(text);
    return -1;
}

/* How much of a word a sentence shows. */
static int shown(const struct word *word)
{
    return word->bytes < 40 ? (int)word->bytes : 40;
}

static void skip_blank(struct reader *r)
{
    for (; r->at < r->end; r->at++) {
        if (*r->at == '#')
            while (r->at + 1 < r->end && r->at[1] != '\n')
                r->at++;
        else if (*r->at == '\n')
            r->line++;
        else if (!isspace((unsigned char)*r->at))
            return;
    }
}

static bool ends_word(char c)
{
    return c == '\0' || isspace((unsigned char)c) || strchr("[],:#\"'", c) != NULL;
}

/* Takes the next word in hand. */
static void next(struct reader *r)
{
    skip_blank(r);
    const char *start = r->at;
    r->word = (struct word){WORD_END, start, 0, r->line};
    if (start == r->end) return;
    bool dash = *start == '-' && (start + 1 == r->end || isspace((unsigned char)start[1]));
    r->word.bytes = 1;
    r->word.kind = WORD_MARK;
    r->at++;
    if (dash || strchr("[],:", *start)) return;
    bool quoted = *start == '"' || *start == '\'';
    r->word.kind = !quoted && ends_word(*start) ? WORD_BAD : WORD_TEXT;
    if (quoted) {
        while (r->at < r->end && *r->at != *start && *r->at != '\n')
            r->at++;
        bool closed = r->at < r->end && *r->at == *start;
        r->word = (struct word){closed ? WORD_TEXT : WORD_BAD, start + 1,
                                (size_t)(r->at - start - 1), r->line};
        r->at += closed;
        return;
    }
    while (r->at < r->end && !ends_word(*r->at))
        r->at++;
    r->word.bytes = (size_t)(r->at - start);
}

static bool is_mark(const struct reader *r, char mark)
{
    return r->word.kind == WORD_MARK && *r->word.text == mark;
}

static int want(struct reader *r, const char *what)
{
    if (r->word.kind == WORD_END)
        return fault(r, r->word.line, "the file ends where %s should stand", what);
    return fault(r, r->word.line, "\"%.*s\" stands where %s should", shown(&r->word), r->word.text,
                 what);
}

/* ---- lists ---- */

static int take_value(struct reader *r, struct list *list)
{
    if (r->word.kind != WORD_TEXT) return want(r, "a value");
    MEM_GROW(list->words, list->count, list->cap);
    list->words[list->count++] = r->word;
    next(r);
    return 0;
}

static int read_brackets(struct reader *r, struct list *list)
{
    next(r);
    while (!is_mark(r, ']')) {
        if (take_value(r, list)) return -1;
        if (is_mark(r, ',')) {
            next(r);
            if (is_mark(r, ']')) return want(r, "a value");
        } else if (!is_mark(r, ']')) {
            return want(r, "\",\" or \"]\"");
        }
    }
    next(r);
    return 0;
}

static int read_list(struct reader *r, struct list *list)
{
    if (is_mark(r, '[')) return read_brackets(r, list);
    if (!is_mark(r, '-')) return take_value(r, list);
    while (is_mark(r, '-')) {
        next(r);
        if (take_value(r, list)) return -1;
    }
    return 0;
}

/* KEY: LIST. An unknown key is a fault whose list is read over. */
static int read_entry(struct reader *r)
{
    struct list over = {0}, *list = &over;
    struct word key = r->word;
    if (key.kind != WORD_TEXT) return want(r, "a key");
    char *name = mem_printf("%.*s", shown(&key), key.text);
    unsigned k = 0;
    while (k < NKEYS && strcmp(name, key_names[k]) != 0)
        k++;
    if (k == NKEYS) {
        struct err inner = ERR_INIT;
        opts_unknown(&inner, "key", name, key_names);
        fault(r, key.line, "%s", inner.text);
        err_release(&inner);
    } else if (r->lists[k].line) {
        fault(r, key.line, "%s stands twice, first on line %u", name, r->lists[k].line);
    } else {
        list = &r->lists[k];
        list->line = key.line;
    }
    free(name);
    next(r);
    int bad = 0;
    if (!is_mark(r, ':')) {
        bad = want(r, "\":\"");
    } else {
        next(r);
        bad = read_list(r, list);
    }
    free(over.words);
    return bad;
}

/* ---- values ---- */

static int read_kind(struct reader *r, const struct word *word, struct astra_dim *dim)
{
    char *name = mem_printf("%.*s", shown(word), word->text);
    unsigned kind = 0;
    while (kind < NASTRA_KINDS && strcmp(name, kind_names[kind]) != 0)
        kind++;
    if (kind == NASTRA_KINDS) {
        struct err inner = ERR_INIT;
        opts_unknown(&inner, "kind of dimension", name, kind_names);
        fault(r, word->line, "%s", inner.text);
        err_release(&inner);
    }
    dim->kind = (enum astra_kind)kind;
    dim->line = word->line;
    free(name);
    return kind == NASTRA_KINDS ? -1 : 0;
}

/* A finite number in min..max; `open`: min itself is out. */
static int read_number(struct reader *r, enum key key, const struct word *word, double min,
                       bool open, double max, double *value)
{
    char *text = mem_printf("%.*s", shown(word), word->text), *end = text;
    double number = strtod(text, &end);
    bool decimal = end != text && *end == '\0' && strspn(text, "0123456789+-.eE") == strlen(text);
    bool fits = decimal && word->bytes == strlen(text) && number <= max &&
                (open ? number > min : number >= min);
    if (fits)
        *value = number;
    else
        fault(r, word->line, "%s is \"%s\", not a number %s %g and at most %g", key_names[key],
              text, open ? "above" : "of at least", min, max);
    free(text);
    return fits ? 0 : -1;
}

static int read_dim(struct reader *r, size_t i, struct astra_dim *dim)
{
    double npus = 0;
    int bad = read_kind(r, &r->lists[KEY_TOPOLOGY].words[i], dim);
    const struct word *word = &r->lists[KEY_NPUS].words[i];
    if (read_number(r, KEY_NPUS, word, 1, false, INT32_MAX, &npus))
        bad = -1;
    else if (npus != floor(npus))
        bad = fault(r, word->line, "npus_count is %g, not a whole number", npus);
    dim->npus = (uint64_t)npus;
    bad |= read_number(r, KEY_BANDWIDTH, &r->lists[KEY_BANDWIDTH].words[i], 0, true, 1e9,
                       &dim->bandwidth_GiBps);
    bad |= read_number(r, KEY_LATENCY, &r->lists[KEY_LATENCY].words[i], 0, false, 1e12,
                       &dim->latency_ns);
    return bad;
}

/* All four lists are there, and of one length. */
static int check_lists(struct reader *r)
{
    int bad = 0;
    size_t ndims = r->lists[KEY_TOPOLOGY].count;
    for (unsigned k = 0; k < NKEYS; k++) {
        const struct list *list = &r->lists[k];
        if (!list->line)
            bad = fault(r, r->line,
                        "%s is missing; the keys are topology, npus_count, bandwidth "
                        "and latency",
                        key_names[k]);
        else if (list->count == 0)
            bad = fault(r, list->line, "%s is empty", key_names[k]);
        else if (r->lists[KEY_TOPOLOGY].line && list->count != ndims)
            bad =
                fault(r, list->line, "%s has %zu values, but topology (line %u) has %zu dimensions",
                      key_names[k], list->count, r->lists[KEY_TOPOLOGY].line, ndims);
    }
    return bad;
}

/* Ranks are 32-bit numbers everywhere. */
static void check_total(struct reader *r, const struct astra *astra)
{
    double total = 1;
    for (size_t i = 0; i < astra->ndims; i++)
        total *= (double)astra->dims[i].npus;
    if (total > INT32_MAX)
        fault(r, r->lists[KEY_NPUS].line, "%g accelerators in all, more than %d", total, INT32_MAX);
}

int astra_parse(struct astra *astra, const char *path, const char *text, size_t bytes,
                struct err *err)
{
    struct err own = ERR_INIT;
    struct reader r = {.path = path, .at = text, .end = text + bytes, .line = 1, .err = &own};
    *astra = (struct astra){0};
    int bad = 0;
    for (next(&r); !bad && r.word.kind != WORD_END;)
        bad = read_entry(&r);
    if (!bad) bad = check_lists(&r);
    for (size_t i = 0; !bad && i < r.lists[KEY_TOPOLOGY].count; i++) {
        struct astra_dim dim = {0};
        read_dim(&r, i, &dim);
        MEM_GROW(astra->dims, astra->ndims, astra->cap);
        astra->dims[astra->ndims++] = dim;
    }
    if (own.count == 0) check_total(&r, astra);
    for (unsigned k = 0; k < NKEYS; k++)
        free(r.lists[k].words);
    bad = err_move(err, &own);
    if (bad) astra_release(astra);
    return bad;
}

bool astra_is(const char *text, size_t bytes)
{
    struct reader r = {.at = text, .end = text + bytes, .line = 1};
    next(&r);
    for (unsigned k = 0; k < NKEYS; k++) {
        size_t length = strlen(key_names[k]);
        if (r.word.kind == WORD_TEXT && r.word.bytes == length &&
            strncmp(r.word.text, key_names[k], length) == 0) {
            next(&r);
            return is_mark(&r, ':');
        }
    }
    return false;
}

/* ---- writing ---- */

/* A decimal that reads back as the same double. */
static void put_number(FILE *to, double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, to);
}

void astra_write(const struct astra *astra, FILE *to)
{
    for (unsigned k = 0; k < NKEYS; k++) {
        fprintf(to, "%s: [ ", key_names[k]);
        for (size_t i = 0; i < astra->ndims; i++) {
            const struct astra_dim *dim = &astra->dims[i];
            if (i > 0) fputs(", ", to);
            switch ((enum key)k) {
            case KEY_TOPOLOGY:
                fputs(kind_names[dim->kind], to);
                break;
            case KEY_NPUS:
                fprintf(to, "%" PRIu64, dim->npus);
                break;
            case KEY_BANDWIDTH:
                put_number(to, dim->bandwidth_GiBps);
                break;
            default:
                put_number(to, dim->latency_ns);
                break;
            }
        }
        fputs(" ]\n", to);
    }
}

/* ---- to and from a topology ---- */

static void add_dim(struct astra *astra, enum astra_kind kind, uint64_t npus, double GBps,
                    double latency_ns)
{
    MEM_GROW(astra->dims, astra->ndims, astra->cap);
    astra->dims[astra->ndims++] = (struct astra_dim){
        .kind = kind, .npus = npus, .bandwidth_GiBps = GBps * 1e9 / GiB, .latency_ns = latency_ns};
}

static int no_word(struct err *err, const struct topo *topo, const char *what, const char *legal)
{
    return err_add(err, ERR_USAGE,
                   "%s: ASTRA-sim's files have no word for %s; they have one for %s",
                   topo->name ? topo->name : "topology", what, legal);
}

/* Dimension 1: a domain, unless it is a single accelerator. */
static int add_domain(struct astra *astra, const struct topo *topo, double latency_ns,
                      struct err *err)
{
    static const bool meshes[NSCALE_UP] = {[SCALE_UP_NVLINK_MESH] = true, [SCALE_UP_XGMI] = true};
    static const bool nothing[NSCALE_UP] = {
        [SCALE_UP_NVLINK_CUBE] = true, [SCALE_UP_NVLINK_PAIRS] = true, [SCALE_UP_PCIE_HOST] = true};
    uint64_t domain = topo_domain(topo), hosts = domain / topo->per_host;
    if (topo->hosts % hosts)
        return no_word(err, topo, "domains that are not full", "domains of equal size");
    if (domain == 1) return 0;
    if (nothing[topo->scale_up])
        return no_word(err, topo, scale_up_name(topo->scale_up),
                       "nvswitch, nvlink-mesh, xgmi, pcie and memory");
    double links = meshes[topo->scale_up] ? (double)(topo->full_host - 1) : 1;
    add_dim(astra, links > 1 ? ASTRA_FULLY_CONNECTED : ASTRA_SWITCH, domain,
            topo->line_GBps / links, latency_ns);
    return 0;
}

int astra_from_topo(struct astra *astra, const struct topo *topo,
                    const struct astra_latency *latency, struct err *err)
{
    *astra = (struct astra){0};
    double inside = topo->scale_up_latency_ns, outside = topo->network_latency_ns;
    if (inside <= 0) inside = latency->scale_up_ns;
    if (outside <= 0) outside = latency->network_ns;
    double GBps = topo_nic_Bps(topo) / 1e9;
    uint64_t domains = topo->hosts * topo->per_host / topo_domain(topo);
    int bad = add_domain(astra, topo, inside, err);
    if (domains > 1 && topo->oversubscribed > 1)
        bad = no_word(err, topo, "an oversubscribed network", "\"oversubscribed\": 1");
    if (topo->nfaults > 0) bad = no_word(err, topo, "faults", "a machine without them");
    if (domains > 1 && topo->layout == TOPO_TORUS && topo->dims &&
        topo_domain(topo) == topo->per_host)
        for (uint32_t i = 0; i < topo->ndims; i++)
            add_dim(astra, ASTRA_RING, topo->dims[i], GBps, outside);
    else if (domains > 1 && topo->layout == TOPO_TORUS)
        bad = no_word(err, topo, "a torus without \"dims\", or of several hosts a domain",
                      "one with them, of one host a domain");
    else if (domains > 1)
        add_dim(astra, ASTRA_SWITCH, domains, GBps, outside);
    else if (domains * topo_domain(topo) == 1)
        add_dim(astra, ASTRA_SWITCH, 1, topo->line_GBps, inside);
    if (bad) astra_release(astra);
    return bad;
}

static int wrong_dim(const char *path, const struct astra_dim *dim, struct err *err,
                     const char *sentence)
{
    return err_add(err, ERR_USAGE, "%s:%u: %s", path, dim->line, sentence);
}

/* Dimensions `first`.. as the network between hosts. */
static int read_network(const struct astra *astra, size_t first, const char *path,
                        struct topo *topo, struct err *err)
{
    const struct astra_dim *dims = astra->dims, *dim = &dims[first];
    topo->fabric = FABRIC_UNSTATED;
    topo->layout = TOPO_SWITCH;
    topo->hosts = 1;
    for (size_t i = first; i < astra->ndims; i++) {
        if (dims[i].kind == ASTRA_FULLY_CONNECTED)
            return wrong_dim(path, &dims[i], err,
                             "hosts that are fully connected mean no topology here; between hosts "
                             "legal are one Switch, or Rings (a torus)");
        if (dims[i].kind != dim->kind || (i > first && dim->kind == ASTRA_SWITCH))
            return wrong_dim(path, &dims[i], err,
                             "a further dimension between hosts; legal are one Switch, or Rings (a "
                             "torus), behind at most one dimension inside of a host");
        if (dim->kind == ASTRA_RING && topo->domain_hosts > 1)
            return wrong_dim(path, &dims[i], err,
                             "a torus joins domains of one host, and this one has several");
        if (dims[i].bandwidth_GiBps != dim->bandwidth_GiBps ||
            dims[i].latency_ns != dim->latency_ns)
            return wrong_dim(
                path, &dims[i], err,
                "Rings between hosts have one bandwidth and latency in all dimensions");
        topo->hosts *= dims[i].npus;
    }
    if (first == astra->ndims) return 0;
    if (dim->kind == ASTRA_RING) {
        topo->layout = TOPO_TORUS;
        topo->ndims = (uint32_t)(astra->ndims - first);
        topo->dims = mem_calloc(topo->ndims, sizeof *topo->dims);
        for (size_t i = first; i < astra->ndims; i++)
            topo->dims[i - first] = (uint32_t)dims[i].npus;
    }
    topo->nics = topo->full_host; /* one each */
    topo->one_nic_Gbps = topo->nic_Gbps = dim->bandwidth_GiBps * GiB / 1e9 * 8;
    topo->nic_stated = true;
    topo->network_latency_ns = dim->latency_ns;
    return 0;
}

/* Dimension 1 as a scale-up domain: the accelerator's usual link where that is a switch of some
 * kind or a mesh as the file has it, and its usual host where a domain has several. */
static void read_domain(const struct astra_dim *dim, struct topo *topo)
{
    static const enum scale_up kinds[2][NSCALE_UP] = {
        [false] = {[SCALE_UP_PCIE] = SCALE_UP_PCIE,
                   [SCALE_UP_PCIE_HOST] = SCALE_UP_PCIE,
                   [SCALE_UP_MEMORY] = SCALE_UP_MEMORY}, /* the others: NVSwitch */
        [true] = {SCALE_UP_NVLINK_MESH, SCALE_UP_NVLINK_MESH, SCALE_UP_NVLINK_MESH,
                  SCALE_UP_NVLINK_MESH, SCALE_UP_XGMI, SCALE_UP_NVLINK_MESH, SCALE_UP_NVLINK_MESH,
                  SCALE_UP_NVLINK_MESH},
    };
    const struct accel *accel = &topo->accel;
    uint64_t per = accel->usual_per_host;
    bool mesh = dim->kind == ASTRA_FULLY_CONNECTED;
    bool rack = !mesh && accel->usual_domain > per && dim->npus <= accel->usual_domain &&
                dim->npus % per == 0;
    topo->per_host = topo->full_host = rack ? per : dim->npus;
    topo->domain_hosts = dim->npus / topo->per_host;
    topo->scale_up = kinds[mesh][accel->scale_up];
    double links = mesh && dim->npus > 1 ? (double)(dim->npus - 1) : 1;
    topo->line_GBps = topo->ring_GBps = dim->bandwidth_GiBps * GiB / 1e9 * links;
    topo->scale_up_latency_ns = dim->latency_ns;
}

int astra_to_topo(const struct astra *astra, const char *path, const struct accel *accel,
                  struct topo *topo, struct err *err)
{
    bool ring = astra->dims[0].kind == ASTRA_RING;
    topo_usual(topo, accel, 1);
    topo->full_host = topo->per_host = topo->domain_hosts = 1;
    if (!ring) read_domain(&astra->dims[0], topo);
    int bad = read_network(astra, !ring, path, topo, err);
    if (!bad) topo->hosts *= topo->domain_hosts;
    free(topo->name);
    topo->name = mem_strdup(path);
    topo->about = mem_printf("read from %s, a network file of ASTRA-sim", path);
    if (bad) topo_release(topo);
    return bad;
}
