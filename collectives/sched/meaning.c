/* SPDX-License-Identifier: Apache-2.0
 * Meaning: programs run on symbolic values. A value says which data it is (a chunk of the input of
 * some rank), and how it was reduced: an expression tree whose leaves are ranks.
 *
 * A value is (input chunk, base rank, expression, final). Expressions are kept relative to their
 * leftmost rank (the base), each stored once:   ((r2 + r3) + r4)  =  base 2, ((0 + 1) + 2).
 * So turning a value by d ranks is adding d to the base, which makes the run of a relative program
 * exact for all ranks at the cost of one. */
#include "sched/meaning.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- expressions: each stored once ---- */

struct interval {
    uint32_t begin, end; /* ranks relative to the base, end not included, begin < end <= n */
};

struct expr {
    uint32_t left, right; /* expressions; a leaf has none */
    uint32_t delta;       /* base of the right one, relative to ours */
    uint32_t nleaves;
    uint32_t first, nintervals; /* which ranks contribute: in pool `intervals`, sorted */
};

struct exprs {
    uint32_t n; /* ranks */
    struct expr *items;
    size_t count, cap;
    struct interval *intervals;
    size_t nintervals, intervals_cap;
    uint32_t *table; /* open addressing; 0 = empty (expression 0 is the leaf, never looked up) */
    size_t table_size;
};

enum { LEAF = 0, OVERLAP = UINT32_MAX };

static void exprs_init(struct exprs *exprs, uint32_t n)
{
    *exprs = (struct exprs){.n = n, .table_size = 1024};
    exprs->table = mem_calloc(exprs->table_size, sizeof *exprs->table);
    MEM_GROW(exprs->items, exprs->count, exprs->cap);
    exprs->items[exprs->count++] = (struct expr){.nleaves = 1, .nintervals = 1};
    MEM_GROW(exprs->intervals, exprs->nintervals, exprs->intervals_cap);
    exprs->intervals[exprs->nintervals++] = (struct interval){0, 1};
}

static void exprs_release(struct exprs *exprs)
{
    free(exprs->items);
    free(exprs->intervals);
    free(exprs->table);
}

static size_t hash_node(uint32_t left, uint32_t right, uint32_t delta)
{
    uint64_t h =
        left * 0x9e3779b97f4a7c15u ^ right * 0xc2b2ae3d27d4eb4fu ^ delta * 0x165667b19e3779f9u;
    return (size_t)(h ^ h >> 29);
}

static void table_put(struct exprs *exprs, uint32_t id)
{
    const struct expr *e = &exprs->items[id];
    size_t at = hash_node(e->left, e->right, e->delta) & (exprs->table_size - 1);
    while (exprs->table[at]) {
        at = (at + 1) & (exprs->table_size - 1);
    }
    exprs->table[at] = id;
}

static void table_grow(struct exprs *exprs)
{
    if (2 * exprs->count < exprs->table_size) {
        return;
    }
    free(exprs->table);
    exprs->table_size *= 2;
    exprs->table = mem_calloc(exprs->table_size, sizeof *exprs->table);
    for (uint32_t id = 1; id < exprs->count; id++) {
        table_put(exprs, id);
    }
}

static int compare_intervals(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Appends the union of left's ranks and right's (turned by delta) to the pool: neighbours joined.
 * Number of intervals, or OVERLAP (then nothing is kept). */
static uint32_t append_union(struct exprs *exprs, const struct expr *left, const struct expr *right,
                             uint32_t delta)
{
    size_t start = exprs->nintervals;
    for (uint32_t i = 0; i < left->nintervals + 2 * right->nintervals; i++) {
        MEM_GROW(exprs->intervals, exprs->nintervals, exprs->intervals_cap);
        struct interval *out = &exprs->intervals[exprs->nintervals];
        if (i < left->nintervals) {
            *out = exprs->intervals[left->first + i];
            exprs->nintervals++;
            continue;
        }
        uint32_t k = (i - left->nintervals) / 2, half = (i - left->nintervals) % 2;
        struct interval in = exprs->intervals[right->first + k];
        uint64_t begin = (uint64_t)in.begin + delta, end = (uint64_t)in.end + delta, n = exprs->n;
        if (half == 0) { /* what lies below n */
            *out = (struct interval){(uint32_t)begin, (uint32_t)(end < n ? end : n)};
        } else { /* what wraps round */
            *out = (struct interval){(uint32_t)(begin > n ? begin - n : 0),
                                     (uint32_t)(end > n ? end - n : 0)};
        }
        exprs->nintervals += out->begin < out->end;
    }
    struct interval *pool = exprs->intervals + start;
    size_t count = exprs->nintervals - start, kept = 0;
    qsort(pool, count, sizeof *pool, compare_intervals);
    for (size_t i = 1; i < count; i++) {
        if (pool[i].begin < pool[kept].end) {
            exprs->nintervals = start;
            return OVERLAP;
        }
        if (pool[i].begin == pool[kept].end) {
            pool[kept].end = pool[i].end;
        } else {
            pool[++kept] = pool[i];
        }
    }
    exprs->nintervals = start + kept + 1;
    return (uint32_t)kept + 1;
}

/* The expression left (+) right, where right's base lies delta ranks after left's; OVERLAP when a
 * rank contributes to both. */
static uint32_t expr_node(struct exprs *exprs, uint32_t left, uint32_t right, uint32_t delta)
{
    size_t at = hash_node(left, right, delta) & (exprs->table_size - 1);
    for (; exprs->table[at]; at = (at + 1) & (exprs->table_size - 1)) {
        const struct expr *e = &exprs->items[exprs->table[at]];
        if (e->left == left && e->right == right && e->delta == delta) {
            return exprs->table[at];
        }
    }
    size_t first = exprs->nintervals;
    struct expr l = exprs->items[left], r = exprs->items[right];
    uint32_t nintervals = append_union(exprs, &l, &r, delta);
    if (nintervals == OVERLAP) {
        return OVERLAP;
    }
    uint32_t id = (uint32_t)exprs->count;
    MEM_GROW(exprs->items, exprs->count, exprs->cap);
    exprs->items[exprs->count++] =
        (struct expr){left, right, delta, l.nleaves + r.nleaves, (uint32_t)first, nintervals};
    table_put(exprs, id);
    table_grow(exprs);
    return id;
}

/* ---- the run ---- */

struct value {
    uint32_t chunk; /* of the input; NOTHING: unknown content */
    uint32_t base;  /* the leftmost contributor; of unreduced data: whose input it is */
    uint32_t expr;
    uint32_t final;
};

enum { NOTHING = UINT32_MAX };

struct machine {
    const struct pairs *pairs;
    const struct sched *sched;
    bool in_place;
    uint32_t ninstances; /* ends run: all, or rank 0 for all of a relative schedule */
    struct exprs exprs;
    uint32_t nplaces;       /* per instance: IN, OUT, planes */
    struct value *places;   /* [instance][place] */
    size_t *msg_start;      /* per program: its first message value */
    uint32_t **value_of;    /* per program and step that sends: first value of its message */
    struct value *messages; /* what each instance sent */
    uint32_t **sent;        /* per instance and wire: messages posted */
    size_t *pc;             /* per instance */
    struct err *err;
};

static const struct prog *prog_of(const struct machine *m, uint32_t instance)
{
    return sched_prog_of(m->sched, instance);
}

static const struct pairs_prog *pairs_of(const struct machine *m, uint32_t instance)
{
    return &m->pairs->progs[m->sched->prog_of[instance]];
}

static struct value *place(const struct machine *m, uint32_t instance, struct ref ref, uint32_t i)
{
    ref.chunk = (ref.chunk + i) % sched_chunks(m->sched, ref.buf);
    ref = sched_place(m->sched, instance, m->in_place, ref);
    return &m->places[(size_t)instance * m->nplaces + sched_place_number(m->sched, ref)];
}

static int wrong(const struct machine *m, uint32_t instance, const char *what, uint32_t i)
{
    size_t index = m->pc[instance];
    const struct step *step = &prog_of(m, instance)->steps[index];
    return err_add(m->err, ERR_USAGE, "%s: %s %u step %zu (%s%s), chunk %u of %u: %s",
                   m->sched->name, sched_end_word(m->sched, instance), instance, index,
                   step_info(step->kind)->name, m->in_place ? ", in place" : "", i + 1,
                   step->nchunks, what);
}

/* A value as the receiver sees it: in a relative program the sender is `turn` ranks away and its
 * data turn with it. */
static struct value turned(const struct machine *m, struct value value, uint32_t turn)
{
    if (turn > 0) {
        uint64_t chunk = value.chunk + (uint64_t)turn * sched_turn(m->sched, BUF_IN);
        value.chunk = (uint32_t)(chunk % sched_chunks(m->sched, BUF_IN));
        value.base = (value.base + turn) % m->sched->nranks;
    }
    return value;
}

static int reduce_values(const struct machine *m, uint32_t instance, uint32_t i, bool final,
                         struct value a, struct value b, struct value *out)
{
    if (!m->sched->coll->reduces) {
        return wrong(m, instance, "reduces, but the operation has no reduction", i);
    }
    if (a.final || b.final) {
        return wrong(m, instance, "reduces a value that is already final", i);
    }
    if (a.chunk != b.chunk) {
        return wrong(m, instance, "reduces two chunks of different places", i);
    }
    uint32_t n = m->sched->nranks, delta = (b.base + n - a.base) % n;
    uint32_t expr = expr_node((struct exprs *)&m->exprs, a.expr, b.expr, delta);
    if (expr == OVERLAP) {
        return wrong(m, instance, "some rank contributes twice", i);
    }
    bool complete = m->exprs.items[expr].nleaves == n;
    if (complete != final) {
        return wrong(m, instance,
                     complete ? "completes the chunk but is not marked final"
                              : "is marked final but contributions are missing",
                     i);
    }
    *out = (struct value){a.chunk, a.base, expr, final};
    return 0;
}

static int store(const struct machine *m, uint32_t instance, struct ref dst, uint32_t i,
                 struct value value)
{
    if (!m->in_place && dst.buf == BUF_IN) {
        return wrong(m, instance, "writes the input, which stays unchanged out of place", i);
    }
    uint32_t nparts = m->sched->nparts;
    if (value.chunk % nparts != (dst.chunk + i) % sched_chunks(m->sched, dst.buf) % nparts) {
        return wrong(m, instance, "moves a part to the place of another: their lengths differ", i);
    }
    if (m->sched->coll->uneven &&
        !(dst.buf == BUF_OUT && value.chunk / nparts == instance &&
          (dst.chunk + i) % sched_chunks(m->sched, dst.buf) / nparts == value.base)) {
        return wrong(m, instance, "moves a block to the place of another: their lengths differ", i);
    }
    *place(m, instance, dst, i) = value;
    return 0;
}

/* Index of the arrived message's first value, and the turn of its sender; SIZE_MAX when it has not
 * been sent yet. */
static size_t arrived(const struct machine *m, uint32_t instance, const struct step *step,
                      uint32_t *turn)
{
    uint32_t from = m->sched->relative ? 0 : step->peer;
    *turn = m->sched->relative ? step->peer : 0;
    const struct pairs_prog *mine = pairs_of(m, instance), *theirs = pairs_of(m, from);
    uint32_t w = mine->wire_of[m->pc[instance]], k = mine->msg_of[m->pc[instance]];
    uint32_t other =
        wire_other_end(m->sched, instance, &mine->wires[w], theirs->wires, theirs->nwires);
    if (m->sent[from][other] <= k) {
        return SIZE_MAX;
    }
    uint32_t sending = theirs->step_of[theirs->first[other] + k];
    uint32_t p = m->sched->prog_of[from];
    return m->msg_start[p] + m->value_of[p][sending];
}

/* One step of one instance. 1: done, 0: its message has not come yet, -1: wrong. */
static int run_step(struct machine *m, uint32_t instance)
{
    const struct step *step = &prog_of(m, instance)->steps[m->pc[instance]];
    const struct step_info *info = step_info(step->kind);
    uint32_t turn = 0;
    size_t message = 0;
    if (info->receives && (message = arrived(m, instance, step, &turn)) == SIZE_MAX) {
        return 0;
    }
    uint32_t p = m->sched->prog_of[instance];
    for (uint32_t i = 0; i < step->nchunks; i++) {
        struct value a = {NOTHING, 0, 0, 0}, b = a;
        if (info->reads_src) {
            a = *place(m, instance, step->src, i);
        }
        if (info->receives) {
            b = turned(m, m->messages[message + i], turn);
        } else if (info->reads_src2) {
            b = *place(m, instance, step->src2, i);
        }
        bool reads_b = info->receives || info->reads_src2;
        if ((info->reads_src && a.chunk == NOTHING) || (reads_b && b.chunk == NOTHING)) {
            return wrong(m, instance, "reads a chunk that holds nothing yet", i);
        }
        struct value result = reads_b ? b : a;
        if (info->reduces && reduce_values(m, instance, i, step->final, a, b, &result)) {
            return -1;
        }
        if (info->writes && store(m, instance, step->dst, i, result)) {
            return -1;
        }
        if (info->sends) {
            m->messages[m->msg_start[p] + m->value_of[p][m->pc[instance]] + i] = result;
        }
    }
    if (info->sends) {
        m->sent[instance][pairs_of(m, instance)->wire_of[m->pc[instance]]]++;
    }
    m->pc[instance]++;
    return 1;
}

/* Each round lets every instance run as far as it goes. */
static int run(struct machine *m)
{
    for (;;) {
        bool moved = false, finished = true;
        uint32_t blocked = 0;
        for (uint32_t i = 0; i < m->ninstances; i++) {
            int state = 1;
            while (m->pc[i] < prog_of(m, i)->nsteps && (state = run_step(m, i)) == 1) {
                moved = true;
            }
            if (state < 0) {
                return -1;
            }
            if (m->pc[i] < prog_of(m, i)->nsteps) {
                finished = false;
                blocked = i;
            }
        }
        if (finished) {
            return 0;
        }
        if (!moved) {
            return wrong(m, blocked, "waits for a message that is never sent before it", 0);
        }
    }
}

/* ---- before and after ---- */

static void machine_init(struct machine *m, const struct pairs *pairs, bool in_place,
                         struct err *err)
{
    const struct sched *sched = pairs->sched;
    *m = (struct machine){.pairs = pairs, .sched = sched, .in_place = in_place, .err = err};
    m->ninstances = sched->relative ? 1 : sched_ends(sched);
    exprs_init(&m->exprs, sched->nranks);
    m->nplaces = sched_places(sched);
    size_t total = (size_t)m->ninstances * m->nplaces;
    m->places = mem_calloc(total, sizeof *m->places);
    for (size_t i = 0; i < total; i++) {
        m->places[i].chunk = NOTHING;
    }
    m->msg_start = mem_calloc(sched->nprogs + 1, sizeof *m->msg_start);
    m->value_of = mem_calloc(sched->nprogs, sizeof *m->value_of);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        const struct prog *prog = &sched->progs[p];
        m->value_of[p] = mem_calloc(prog->nsteps, sizeof **m->value_of);
        uint32_t values = 0;
        for (size_t k = 0; k < prog->nsteps; k++) {
            m->value_of[p][k] = values;
            values += prog->steps[k].kind == STEP_SEND ? prog->steps[k].nchunks : 0;
        }
        m->msg_start[p + 1] = m->msg_start[p] + values;
    }
    m->messages = mem_calloc(m->msg_start[sched->nprogs], sizeof *m->messages);
    m->pc = mem_calloc(m->ninstances, sizeof *m->pc);
    m->sent = mem_calloc(m->ninstances, sizeof *m->sent);
    for (uint32_t i = 0; i < m->ninstances; i++) {
        m->sent[i] = mem_calloc(pairs_of(m, i)->nwires, sizeof **m->sent);
        bool has = i < sched->nranks && coll_has_input(sched->coll, sched->root, i);
        for (uint32_t c = 0; has && c < sched_chunks(sched, BUF_IN); c++) {
            *place(m, i, ref_in(c), 0) = (struct value){c, i, LEAF, 0};
        }
    }
}

static void machine_release(struct machine *m)
{
    exprs_release(&m->exprs);
    for (uint32_t p = 0; p < m->sched->nprogs; p++) {
        free(m->value_of[p]);
    }
    for (uint32_t i = 0; i < m->ninstances; i++) {
        free(m->sent[i]);
    }
    free(m->value_of);
    free(m->sent);
    free(m->places);
    free(m->msg_start);
    free(m->messages);
    free(m->pc);
}

static int missed(const struct machine *m, uint32_t instance, uint32_t chunk, const char *what)
{
    return err_add(m->err, ERR_USAGE, "%s: rank %u%s ends with output chunk %u %s", m->sched->name,
                   instance, m->in_place ? " (in place)" : "", chunk, what);
}

static int check_chunk(const struct machine *m, uint32_t instance, uint32_t chunk)
{
    const struct sched *sched = m->sched;
    struct promise promise =
        coll_after(sched->coll, sched->nranks, sched->root, instance, chunk / sched->nparts);
    struct value value = *place(m, instance, ref_out(chunk), 0);
    if (promise.content == CONTENT_FREE) {
        return 0;
    }
    if (value.chunk == NOTHING) {
        return missed(m, instance, chunk, "never written");
    }
    if (value.chunk != promise.block * sched->nparts + chunk % sched->nparts) {
        return missed(m, instance, chunk, "holding data of another place");
    }
    if (promise.all) {
        if (m->exprs.items[value.expr].nleaves != sched->nranks) {
            return missed(m, instance, chunk, "lacking contributions");
        }
        return 0; /* complete is final: reduce_values saw to it */
    }
    if (value.base != promise.rank || value.expr != LEAF) {
        return missed(m, instance, chunk, "holding data of another rank");
    }
    return 0;
}

/* Ranks that were run; of agents nothing is required at the end. */
static uint32_t ranks_run(const struct machine *m)
{
    return m->ninstances - m->sched->nagents;
}

/* All-reduce: every rank's chunk has the same expression, hence the same bits. For a relative
 * program: chunk y of the next rank is chunk y - turn of this one, turned by one. */
static int check_same_bits(const struct machine *m)
{
    const struct sched *sched = m->sched;
    uint32_t chunks = sched_chunks(sched, BUF_OUT), n = sched->nranks;
    for (uint32_t c = 0; c < chunks; c++) {
        struct value first = *place(m, 0, ref_out(c), 0);
        if (sched->relative) {
            uint32_t before = wrap((int64_t)c - sched_turn(sched, BUF_OUT), chunks);
            struct value next = turned(m, *place(m, 0, ref_out(before), 0), 1 % n);
            if (next.expr != first.expr || next.base != first.base) {
                return missed(m, 1 % n, c, "reduced in another order than on rank 0");
            }
            continue;
        }
        for (uint32_t i = 1; i < ranks_run(m); i++) {
            struct value other = *place(m, i, ref_out(c), 0);
            if (other.expr != first.expr || other.base != first.base) {
                return missed(m, i, c, "reduced in another order than on rank 0");
            }
        }
    }
    return 0;
}

int meaning_check(const struct pairs *pairs, bool in_place, struct err *err)
{
    struct machine m;
    machine_init(&m, pairs, in_place, err);
    int bad = run(&m);
    uint32_t chunks = sched_chunks(pairs->sched, BUF_OUT);
    for (uint32_t i = 0; !bad && i < ranks_run(&m); i++) {
        for (uint32_t c = 0; !bad && c < chunks; c++) {
            bad = check_chunk(&m, i, c);
        }
    }
    if (!bad && pairs->sched->coll->id == COLL_ALLREDUCE) {
        bad = check_same_bits(&m);
    }
    machine_release(&m);
    return bad;
}
