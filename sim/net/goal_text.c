/* SPDX-License-Identifier: Apache-2.0
 * Reads GOAL text: words, then ranks, labels, dependencies and messages. Whatever is looked up by
 * name or number is sorted first, so that no text costs more than O(n log n). See goal_run.h. */
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/opts.h"
#include "net/goal_run.h"

enum { FAULTS_MAX = 100 };

#define NONE UINT32_MAX

struct word {
    const char *text;
    size_t bytes; /* 0: the text has ended */
    uint32_t line;
};

struct label {
    struct word name;
    uint32_t op;
};

/* "to requires from", by name. */
struct need {
    struct word to, from;
    bool on_start;
};

struct block {
    uint32_t rank, line;
};

struct raw_edge {
    uint32_t from;
    struct goal_edge edge;
};

struct reader {
    const char *at, *end;
    uint32_t line;
    struct word word, ahead; /* the one in hand, and the next */
    struct goal *goal;
    struct block *blocks; /* so far */
    size_t nblocks, blocks_cap;
    struct label *labels; /* of the block */
    size_t nlabels, labels_cap;
    struct need *needs; /* of the block */
    size_t nneeds, needs_cap;
    struct raw_edge *edges;
    size_t nedges, edges_cap;
    struct err *err;
};

static int fault(struct reader *r, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fault(struct reader *r, uint32_t line, const char *format, ...)
{
    if (r->err->count >= FAULTS_MAX) return -1;
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    err_add(r->err, ERR_USAGE, "%s:%" PRIu32 ": %s", r->goal->path, line, text);
    free(text);
    return -1;
}

/* ---- words ---- */

static int shown(const struct word *word)
{
    return word->bytes < 40 ? (int)word->bytes : 40;
}

static bool is(const struct word *word, const char *text)
{
    return word->bytes == strlen(text) && memcmp(word->text, text, word->bytes) == 0;
}

static bool starts(const struct reader *r, const char *text)
{
    size_t bytes = strlen(text);
    return (size_t)(r->end - r->at) >= bytes && memcmp(r->at, text, bytes) == 0;
}

static void skip_to(struct reader *r, const char *what)
{
    while (r->at < r->end && !starts(r, what)) {
        r->line += *r->at == '\n';
        r->at++;
    }
}

static void skip_blank(struct reader *r)
{
    while (r->at < r->end) {
        if (*r->at == '#' || starts(r, "//")) {
            skip_to(r, "\n");
        } else if (starts(r, "/*")) {
            skip_to(r, "*/");
            r->at += r->at < r->end ? 2 : 0;
        } else if (isspace((unsigned char)*r->at) || *r->at == ';') {
            r->line += *r->at == '\n';
            r->at++;
        } else {
            return;
        }
    }
}

static bool in_word(char c)
{
    return !isspace((unsigned char)c) && c != '\0' && !strchr("{}:;#", c);
}

static void next(struct reader *r)
{
    r->word = r->ahead;
    skip_blank(r);
    r->ahead = (struct word){r->at, 0, r->line};
    while (r->at < r->end && in_word(*r->at))
        r->at++;
    r->ahead.bytes = (size_t)(r->at - r->ahead.text);
    if (r->ahead.bytes == 0 && r->at < r->end) { /* a mark, or a byte that belongs nowhere */
        r->at++;
        r->ahead.bytes = 1;
    }
}

static int want(struct reader *r, const char *what)
{
    if (r->word.bytes == 0)
        return fault(r, r->word.line, "the text ends where %s should stand", what);
    return fault(r, r->word.line, "\"%.*s\" stands where %s should", shown(&r->word), r->word.text,
                 what);
}

static int take(struct reader *r, const char *text)
{
    if (!is(&r->word, text)) {
        char *quoted = mem_printf("\"%s\"", text);
        want(r, quoted);
        free(quoted);
        return -1;
    }
    next(r);
    return 0;
}

/* A whole number up to `max`; with `unit` a "b" may stand behind it. */
static int take_number(struct reader *r, const char *what, uint64_t max, bool unit, uint64_t *value)
{
    size_t digits = 0, bytes = r->word.bytes;
    uint64_t number = 0;
    bool fits = true;
    while (digits < bytes && isdigit((unsigned char)r->word.text[digits])) {
        uint64_t digit = (uint64_t)(r->word.text[digits++] - '0');
        fits &= number <= (max - digit) / 10;
        number = fits ? number * 10 + digit : 0;
    }
    bool tail = unit && digits + 1 == bytes && (r->word.text[digits] | 32) == 'b';
    if (digits == 0 || (digits < bytes && !tail)) return want(r, what);
    if (!fits)
        return fault(r, r->word.line, "%s is %.*s, more than %" PRIu64, what, shown(&r->word),
                     r->word.text, max);
    *value = number;
    next(r);
    return 0;
}

/* ---- operations ---- */

/* What may stand behind an operation, in any order. */
static int take_suffixes(struct reader *r, struct goal_op *op)
{
    const struct {
        const char *name;
        uint32_t *to;
        bool message; /* means something for messages alone; of a calc it is read over */
    } rows[] = {{"tag", &op->tag, true}, {"cpu", &op->cpu, false}, {"nic", &op->nic, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows;) {
        uint64_t value = 0;
        if (!is(&r->word, rows[i].name) || is(&r->ahead, ":") || is(&r->ahead, "requires") ||
            is(&r->ahead, "irequires")) {
            i++;
            continue;
        }
        next(r);
        if (take_number(r, rows[i].name, UINT32_MAX, false, &value)) return -1;
        if (!rows[i].message || op->kind != GOAL_CALC) *rows[i].to = (uint32_t)value;
        i = 0;
    }
    return 0;
}

static int take_op(struct reader *r, uint32_t rank, const struct word *label)
{
    struct goal *goal = r->goal;
    struct goal_op op = {.kind = is(&r->word, "send")   ? GOAL_SEND
                                 : is(&r->word, "recv") ? GOAL_RECV
                                                        : GOAL_CALC,
                         .rank = rank,
                         .match = NONE,
                         .line = r->word.line};
    if (op.kind == GOAL_CALC && !is(&r->word, "calc")) return want(r, "send, recv or calc");
    bool wired = op.kind != GOAL_CALC;
    next(r);
    if (take_number(r, wired ? "bytes" : "nanoseconds", UINT64_MAX / 1024, wired, &op.amount))
        return -1;
    uint64_t peer = 0;
    uint32_t line = r->word.line;
    if (wired && (take(r, op.kind == GOAL_SEND ? "to" : "from") ||
                  take_number(r, "the rank", UINT32_MAX, false, &peer)))
        return -1;
    if (peer >= goal->nranks)
        return fault(r, line, "rank %" PRIu64 " is none of the %" PRIu32 ", 0 to %" PRIu32, peer,
                     goal->nranks, goal->nranks - 1);
    op.peer = (uint32_t)peer;
    if (take_suffixes(r, &op)) return -1;
    if (goal->nops == NONE) return fault(r, op.line, "more than %u operations", NONE - 1);
    if (label) {
        op.label = (uint64_t)(label->text - goal->text);
        op.label_bytes = (uint32_t)label->bytes;
        MEM_GROW(r->labels, r->nlabels, r->labels_cap);
        r->labels[r->nlabels++] = (struct label){*label, (uint32_t)goal->nops};
    }
    MEM_GROW(goal->ops, goal->nops, goal->ops_cap);
    goal->ops[goal->nops++] = op;
    return 0;
}

/* One statement of a block. */
static int take_statement(struct reader *r, uint32_t rank)
{
    struct word first = r->word;
    bool start = is(&r->ahead, "irequires");
    if (is(&r->ahead, ":")) {
        next(r);
        next(r);
        return take_op(r, rank, &first);
    }
    if (!start && !is(&r->ahead, "requires")) return take_op(r, rank, NULL);
    next(r);
    next(r);
    if (r->word.bytes == 0 || is(&r->word, "}")) return want(r, "a label");
    MEM_GROW(r->needs, r->nneeds, r->needs_cap);
    r->needs[r->nneeds++] = (struct need){first, r->word, start};
    next(r);
    return 0;
}

/* ---- the end of a block: labels and processors ---- */

static int compare_words(const struct word *a, const struct word *b)
{
    size_t least = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = memcmp(a->text, b->text, least);
    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_labels(const void *a, const void *b)
{
    const struct label *x = a, *y = b;
    int order = compare_words(&x->name, &y->name);
    return order ? order : (x->op > y->op) - (x->op < y->op);
}

static uint32_t find_label(struct reader *r, const struct word *name, uint32_t rank)
{
    size_t low = 0, high = r->nlabels;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_words(&r->labels[middle].name, name);
        if (order == 0) return r->labels[middle].op;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    fault(r, name->line, "rank %" PRIu32 " has no label %.*s", rank, shown(name), name->text);
    return NONE;
}

static void end_labels(struct reader *r, uint32_t rank)
{
    if (r->nlabels > 0) qsort(r->labels, r->nlabels, sizeof *r->labels, compare_labels);
    for (size_t i = 1; i < r->nlabels; i++) {
        const struct label *label = &r->labels[i], *before = label - 1;
        if (compare_words(&label->name, &before->name) == 0)
            fault(r, label->name.line, "label %.*s stands twice, first on line %" PRIu32,
                  shown(&label->name), label->name.text, before->name.line);
    }
    for (size_t i = 0; i < r->nneeds; i++) {
        const struct need *need = &r->needs[i];
        uint32_t to = find_label(r, &need->to, rank), from = find_label(r, &need->from, rank);
        if (to == NONE || from == NONE) continue;
        MEM_GROW(r->edges, r->nedges, r->edges_cap);
        r->edges[r->nedges++] = (struct raw_edge){from, {to, need->on_start}};
    }
    r->nlabels = r->nneeds = 0;
}

static int compare_numbers(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* What a rank takes on one switch, whether it does something or not: links, their shares, a time.
 */
enum { RANK_BYTES = 300 };

/* Ranks for which this machine has the memory. */
static uint64_t most_ranks(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes / RANK_BYTES : UINT64_MAX;
}

/* Numbers the processors of a rank through, after those of the ranks before. */
static void end_cpus(struct goal *goal, size_t first)
{
    size_t count = goal->nops - first, kept = 0;
    uint32_t *cpus = mem_calloc(count, sizeof *cpus);
    for (size_t i = 0; i < count; i++)
        cpus[i] = goal->ops[first + i].cpu;
    qsort(cpus, count, sizeof *cpus, compare_numbers);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || cpus[kept - 1] != cpus[i]) cpus[kept++] = cpus[i];
    for (size_t i = first; i < goal->nops; i++) {
        const uint32_t *at = bsearch(&goal->ops[i].cpu, cpus, kept, sizeof *cpus, compare_numbers);
        goal->ops[i].cpu = goal->ncpus + (uint32_t)(at - cpus);
    }
    goal->ncpus += (uint32_t)kept;
    free(cpus);
}

static int take_block(struct reader *r)
{
    struct goal *goal = r->goal;
    uint64_t rank = 0;
    uint32_t line = r->word.line;
    size_t first = goal->nops;
    if (take(r, "rank") || take_number(r, "the rank", UINT32_MAX, false, &rank)) return -1;
    if (rank >= goal->nranks)
        return fault(r, line, "rank %" PRIu64 " is none of the %" PRIu32 ", 0 to %" PRIu32, rank,
                     goal->nranks, goal->nranks - 1);
    MEM_GROW(r->blocks, r->nblocks, r->blocks_cap);
    r->blocks[r->nblocks++] = (struct block){(uint32_t)rank, line};
    if (take(r, "{")) return -1;
    while (!is(&r->word, "}"))
        if (take_statement(r, (uint32_t)rank)) return -1;
    next(r);
    end_labels(r, (uint32_t)rank);
    end_cpus(goal, first);
    return 0;
}

static int compare_blocks(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                              : (x->line > y->line) - (x->line < y->line);
}

static int take_text(struct reader *r)
{
    uint64_t nranks = 0;
    next(r);
    next(r);
    uint32_t line = r->word.line;
    if (take(r, "num_ranks") || take_number(r, "the number of ranks", INT32_MAX, false, &nranks))
        return -1;
    if (nranks == 0) return fault(r, line, "num_ranks is 0; at least 1");
    if (nranks > most_ranks())
        return fault(r, line,
                     "num_ranks is %" PRIu64
                     ", more than the memory of this machine holds: %" PRIu64 " of %d bytes",
                     nranks, most_ranks(), RANK_BYTES);
    r->goal->nranks = (uint32_t)nranks;
    while (r->word.bytes > 0)
        if (take_block(r)) return -1;
    if (r->nblocks > 0) qsort(r->blocks, r->nblocks, sizeof *r->blocks, compare_blocks);
    for (size_t i = 1; i < r->nblocks; i++)
        if (r->blocks[i].rank == r->blocks[i - 1].rank)
            fault(r, r->blocks[i].line, "rank %" PRIu32 " stands twice, first on line %" PRIu32,
                  r->blocks[i].rank, r->blocks[i - 1].line);
    return 0;
}

/* ---- messages ---- */

struct key {
    uint32_t src, dst, tag, last; /* last: a receive, or the nic */
    uint32_t op;
};

static int compare_keys(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    for (int i = 0; i < 5; i++)
        if (x[i] != y[i]) return x[i] > y[i] ? 1 : -1;
    return 0;
}

static bool same_pair(const struct key *a, const struct key *b)
{
    return a->src == b->src && a->dst == b->dst && a->tag == b->tag;
}

/* The messages sorted by source, destination, tag and what `nics` says; *count of them. */
static struct key *sort_messages(const struct goal *goal, bool nics, size_t *count)
{
    struct key *keys = mem_calloc(goal->nops, sizeof *keys);
    *count = 0;
    for (uint32_t i = 0; i < goal->nops; i++) {
        const struct goal_op *op = &goal->ops[i];
        bool sends = op->kind == GOAL_SEND;
        if (op->kind == GOAL_CALC || (nics && !sends)) continue;
        keys[(*count)++] = (struct key){sends ? op->rank : op->peer, sends ? op->peer : op->rank,
                                        op->tag, nics ? op->nic : !sends, i};
    }
    qsort(keys, *count, sizeof *keys, compare_keys);
    return keys;
}

static void alone(struct reader *r, uint32_t number)
{
    const struct goal_op *op = &r->goal->ops[number];
    bool sends = op->kind == GOAL_SEND;
    fault(r, op->line,
          "rank %" PRIu32 " %s %" PRIu64 " bytes %s rank %" PRIu32 " under tag %" PRIu32
          ", for which that rank has no %s",
          op->rank, sends ? "sends" : "receives", op->amount, sends ? "to" : "from", op->peer,
          op->tag, sends ? "receive" : "send");
}

static void match(struct reader *r, uint32_t send, uint32_t recv)
{
    struct goal_op *s = &r->goal->ops[send], *d = &r->goal->ops[recv];
    s->match = recv;
    d->match = send;
    r->goal->messages++;
    r->goal->bytes += s->amount;
    if (s->amount != d->amount)
        fault(r, d->line,
              "rank %" PRIu32 " receives %" PRIu64 " bytes from rank %" PRIu32
              ", which sends %" PRIu64 " (line %" PRIu32 ")",
              d->rank, d->amount, d->peer, s->amount, s->line);
}

static void match_messages(struct reader *r)
{
    size_t count;
    struct key *keys = sort_messages(r->goal, false, &count);
    for (size_t first = 0, end, recv; first < count; first = end) {
        for (end = recv = first; end < count && same_pair(&keys[first], &keys[end]); end++)
            if (!keys[end].last) recv = end + 1;
        size_t sends = recv - first, recvs = end - recv;
        for (size_t i = 0; i < sends || i < recvs; i++) {
            if (i < sends && i < recvs)
                match(r, keys[first + i].op, keys[recv + i].op);
            else
                alone(r, i < sends ? keys[first + i].op : keys[recv + i].op);
        }
    }
    free(keys);
}

static void number_wires(struct goal *goal)
{
    size_t count;
    struct key *keys = sort_messages(goal, true, &count);
    for (size_t i = 0; i < count; i++) {
        bool fresh =
            i == 0 || !same_pair(&keys[i], &keys[i - 1]) || keys[i].last != keys[i - 1].last;
        goal->nwires += fresh;
        goal->ops[keys[i].op].wire = goal->nwires - 1;
    }
    free(keys);
}

/* Sorts the edges by where they come from. */
static void place_edges(struct goal *goal, const struct raw_edge *raw, size_t count)
{
    goal->edges = mem_calloc(count, sizeof *goal->edges);
    goal->nedges = count;
    for (size_t i = 0; i < count; i++) {
        goal->ops[raw[i].from].nedges++;
        goal->ops[raw[i].edge.to].waits++;
    }
    uint64_t at = 0;
    for (size_t i = 0; i < goal->nops; i++) {
        goal->ops[i].first = at;
        at += goal->ops[i].nedges;
        goal->ops[i].nedges = 0;
    }
    for (size_t i = 0; i < count; i++) {
        struct goal_op *op = &goal->ops[raw[i].from];
        goal->edges[op->first + op->nedges++] = raw[i].edge;
    }
}

int goal_read(struct goal *goal, const char *path, const char *text, size_t bytes, struct err *err)
{
    struct err own = ERR_INIT;
    *goal = (struct goal){.path = path, .text = text};
    struct reader r = {.at = text, .end = text + bytes, .line = 1, .goal = goal, .err = &own};
    if (take_text(&r) == 0 && own.count == 0) {
        match_messages(&r);
        number_wires(goal);
        place_edges(goal, r.edges, r.nedges);
    }
    free(r.blocks);
    free(r.labels);
    free(r.needs);
    free(r.edges);
    int bad = err_move(err, &own);
    if (bad) goal_release(goal);
    return bad;
}

void goal_release(struct goal *goal)
{
    free(goal->ops);
    free(goal->edges);
    *goal = (struct goal){0};
}
