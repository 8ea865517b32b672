/* SPDX-License-Identifier: Apache-2.0
 * Schedules to MSCCL files: see msccl.h. A lane is cut into blocks of one channel and one peer each
 * way; what the lane and the list ordered between blocks becomes dependencies where chunks are at
 * stake, and is free where none are. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/copy.h"
#include "sched/hazards.h"
#include "sched/msccl.h"
#include "sched/pairs.h"
#include "sched/verify.h"

#include <inttypes.h>

enum { NONE = UINT32_MAX };

struct block {
    uint16_t lane, channel;
    uint32_t in, out; /* wires of the program; NONE: none */
    uint32_t count;   /* steps of the file */
    uint32_t first;   /* in `sorted` */
};

struct dep {
    uint32_t after, before; /* steps */
};

/* The program of one rank on its way to the file. */
struct write {
    FILE *to;
    const struct sched *sched; /* one program per rank */
    const struct pairs *pairs;
    const struct msccl_opts *opts;
    bool places[2]; /* right out of place, in place */
    uint32_t rank;
    const struct prog *prog;
    const struct pairs_prog *wires;
    struct block *blocks;
    uint32_t nblocks;
    size_t blocks_cap;
    uint32_t *block_of; /* per step */
    struct dep *deps;   /* by step, then by the block waited for */
    size_t ndeps, deps_cap;
    uint32_t *dep_start; /* per step, nsteps + 1 */
    bool *fused;         /* per step: written together with the receive before it */
    bool *hasdep;        /* per step */
    uint32_t *s_of;      /* per step: number of its last piece in its block */
    uint32_t *temp;      /* per step: scratch chunk of ours that it needs; NONE: none */
    uint32_t ntemps;     /* planes of them */
};

/* ---- blocks ---- */

/* The send behind a receive that passes on what has arrived, in the same lane. */
static bool passes_on(const struct write *w, size_t k)
{
    if (k + 1 >= w->prog->nsteps) return false;
    const struct step *recv = &w->prog->steps[k], *send = recv + 1;
    return step_info(recv->kind)->receives && send->kind == STEP_SEND && recv->lane == send->lane &&
           recv->channel == send->channel && recv->nchunks == send->nchunks &&
           recv->dst.buf == send->src.buf && recv->dst.chunk == send->src.chunk;
}

static uint32_t add_block(struct write *w, const struct step *step, uint32_t in, uint32_t out)
{
    MEM_GROW(w->blocks, w->nblocks, w->blocks_cap);
    w->blocks[w->nblocks] =
        (struct block){.lane = step->lane, .channel = step->channel, .in = in, .out = out};
    return w->nblocks++;
}

/* Which wire out shares a block with which wire in: those that pass on, first come first served. */
static uint32_t *match_wires(const struct write *w)
{
    uint32_t *mate = mem_calloc(w->wires->nwires, sizeof *mate);
    memset(mate, 0xff, w->wires->nwires * sizeof *mate);
    for (size_t k = 0; k < w->prog->nsteps; k++) {
        if (!passes_on(w, k)) continue;
        uint32_t in = w->wires->wire_of[k], out = w->wires->wire_of[k + 1];
        if (mate[in] == NONE && mate[out] == NONE) {
            mate[in] = out;
            mate[out] = in;
        }
    }
    return mate;
}

/* Steps with a wire go to its block; local ones to the block that their lane used last, or will use
 * first. */
static void cut_blocks(struct write *w)
{
    size_t nsteps = w->prog->nsteps;
    uint32_t *mate = match_wires(w), *of_wire = mem_calloc(w->wires->nwires, sizeof *of_wire);
    uint32_t *of_lane = mem_calloc(w->prog->nlanes, sizeof *of_lane);
    memset(of_wire, 0xff, w->wires->nwires * sizeof *of_wire);
    memset(of_lane, 0xff, w->prog->nlanes * sizeof *of_lane);
    w->block_of = mem_calloc(nsteps, sizeof *w->block_of);
    for (size_t k = 0; k < nsteps; k++) {
        const struct step *step = &w->prog->steps[k];
        uint32_t wire = w->wires->wire_of[k];
        if (wire == NO_WIRE) continue;
        if (of_wire[wire] == NONE) {
            bool sends = step_info(step->kind)->sends;
            uint32_t other = mate[wire];
            of_wire[wire] = add_block(w, step, sends ? other : wire, sends ? wire : other);
            if (other != NONE) of_wire[other] = of_wire[wire];
        }
        w->block_of[k] = of_wire[wire];
        if (of_lane[step->lane] == NONE) of_lane[step->lane] = w->block_of[k];
    }
    for (size_t k = 0; k < nsteps; k++) {
        const struct step *step = &w->prog->steps[k];
        uint32_t *lane = &of_lane[step->lane];
        if (w->wires->wire_of[k] != NO_WIRE) {
            *lane = w->block_of[k];
            continue;
        }
        if (*lane == NONE) *lane = add_block(w, step, NONE, NONE);
        w->block_of[k] = *lane;
    }
    free(mate);
    free(of_wire);
    free(of_lane);
}

/* ---- dependencies ---- */

static void add_dep(void *ctx, const struct hazard *hazard)
{
    struct write *w = ctx;
    if (hazard->across || w->block_of[hazard->before] == w->block_of[hazard->after]) return;
    MEM_GROW(w->deps, w->ndeps, w->deps_cap);
    w->deps[w->ndeps++] = (struct dep){hazard->after, hazard->before};
}

struct dep_key {
    uint32_t to, from, after, before; /* blocks, steps */
};

static int compare_keys(const void *a, const void *b)
{
    const struct dep_key *x = a, *y = b;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->after != y->after) return x->after < y->after ? -1 : 1;
    return x->before > y->before ? -1 : x->before < y->before;
}

static int compare_deps(const void *a, const void *b)
{
    const struct dep *x = a, *y = b;
    if (x->after != y->after) return x->after < y->after ? -1 : 1;
    return x->before < y->before ? -1 : x->before > y->before;
}

/* Keeps, of the waits of one block for another, those for a later step than all before. */
static void thin_deps(struct write *w)
{
    struct dep_key *keys = mem_calloc(w->ndeps, sizeof *keys);
    for (size_t i = 0; i < w->ndeps; i++) {
        const struct dep *dep = &w->deps[i];
        keys[i] = (struct dep_key){w->block_of[dep->after], w->block_of[dep->before], dep->after,
                                   dep->before};
    }
    if (w->ndeps > 0) qsort(keys, w->ndeps, sizeof *keys, compare_keys);
    size_t kept = 0;
    uint32_t latest = 0;
    for (size_t i = 0; i < w->ndeps; i++) {
        bool fresh = i == 0 || keys[i].to != keys[i - 1].to || keys[i].from != keys[i - 1].from;
        if (!fresh && keys[i].before <= latest) continue;
        latest = keys[i].before;
        w->deps[kept++] = (struct dep){keys[i].after, keys[i].before};
    }
    free(keys);
    w->ndeps = kept;
    if (kept > 0) qsort(w->deps, kept, sizeof *w->deps, compare_deps);
    w->dep_start = mem_calloc(w->prog->nsteps + 1, sizeof *w->dep_start);
    w->hasdep = mem_calloc(w->prog->nsteps, sizeof *w->hasdep);
    for (size_t i = 0; i < kept; i++) {
        w->dep_start[w->deps[i].after + 1]++;
        w->hasdep[w->deps[i].before] = true;
    }
    for (size_t k = 0; k < w->prog->nsteps; k++) {
        w->dep_start[k + 1] += w->dep_start[k];
    }
}

static void find_deps(struct write *w)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        if (w->places[in_place]) hazards_scan(w->sched, w->prog, in_place, add_dep, w);
    }
    thin_deps(w);
}

/* ---- pieces: steps of the file that make up one of ours ---- */

struct piece {
    const char *type;
    struct ref src, dst;
    uint32_t n;
};

enum { MOST_FORMS = 3 };

/* The step at the other end of the message that step k sends or receives. */
static const struct step *other_end(const struct write *w, size_t k)
{
    uint32_t wire = w->wires->wire_of[k];
    uint32_t peer = w->wires->wires[wire].peer, q = w->sched->prog_of[peer];
    const struct pairs_prog *theirs = &w->pairs->progs[q];
    uint32_t other =
        wire_other_end(w->sched, w->rank, &w->wires->wires[wire], theirs->wires, theirs->nwires);
    return &w->sched->progs[q].steps[theirs->step_of[theirs->first[other] + w->wires->msg_of[k]]];
}

static bool wraps(const struct write *w, const struct step *step)
{
    const struct step_info *info = step_info(step->kind);
    const struct ref refs[] = {step->src, step->src2, step->dst};
    const bool used[] = {info->reads_src, info->reads_src2, info->writes};
    for (int i = 0; i < 3; i++) {
        if (used[i] &&
            (uint64_t)refs[i].chunk + step->nchunks > sched_chunks(w->sched, refs[i].buf))
            return true;
    }
    return false;
}

/* A range that goes round the end of a buffer, at either end of a message, is written chunk by
 * chunk. */
static uint32_t pieces_of(const struct write *w, size_t k)
{
    const struct step *step = &w->prog->steps[k];
    bool cut = wraps(w, step) || (w->wires->wire_of[k] != NO_WIRE && wraps(w, other_end(w, k)));
    return cut ? step->nchunks : 1;
}

static bool meet(const struct write *w, struct ref a, struct ref b)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        struct ref x = sched_place(w->sched, w->rank, in_place, a);
        struct ref y = sched_place(w->sched, w->rank, in_place, b);
        if (w->places[in_place] && x.buf == y.buf && x.chunk == y.chunk) return true;
    }
    return false;
}

static bool same_ref(struct ref a, struct ref b)
{
    return a.buf == b.buf && a.chunk == b.chunk;
}

/* A reduce whose result falls on its second source needs a place in between. */
static bool needs_temp(const struct write *w, const struct step *step)
{
    if (step->kind != STEP_REDUCE || same_ref(step->dst, step->src)) return false;
    uint32_t out = sched_chunks(w->sched, step->dst.buf);
    uint32_t in = sched_chunks(w->sched, step->src2.buf);
    for (uint32_t i = 0; i < step->nchunks; i++) {
        struct ref dst = {step->dst.buf, (step->dst.chunk + i) % out};
        struct ref src2 = {step->src2.buf, (step->src2.chunk + i) % in};
        if (meet(w, dst, src2)) return true;
    }
    return false;
}

/* Gives each lane that needs it a plane of scratch behind the schedule's own. */
static void deal_temps(struct write *w)
{
    uint32_t *plane = mem_calloc(w->prog->nlanes, sizeof *plane);
    w->temp = mem_calloc(w->prog->nsteps, sizeof *w->temp);
    w->ntemps = 0;
    for (size_t k = 0; k < w->prog->nsteps; k++) {
        const struct step *step = &w->prog->steps[k];
        w->temp[k] = NONE;
        if (!needs_temp(w, step)) continue;
        if (plane[step->lane] == 0) plane[step->lane] = ++w->ntemps;
        w->temp[k] = w->sched->nplanes + plane[step->lane] - 1;
    }
    free(plane);
}

/* dst = src (+) src2 in MSCCL's two-place words. */
static int reduce_forms(const struct write *w, size_t k, struct piece *forms)
{
    const struct step *step = &w->prog->steps[k];
    struct ref sum = step->dst;
    int n = 0;
    if (w->temp[k] != NONE) sum = (struct ref){BUF_SCRATCH + w->temp[k], step->dst.chunk};
    if (!same_ref(sum, step->src)) forms[n++] = (struct piece){"cpy", step->src, sum, 0};
    forms[n++] = (struct piece){"re", step->src2, sum, 0};
    if (w->temp[k] != NONE) forms[n++] = (struct piece){"cpy", sum, step->dst, 0};
    return n;
}

/* The words for step k, each of all its chunks. */
static int forms_of(const struct write *w, size_t k, struct piece *forms)
{
    const struct step *step = &w->prog->steps[k];
    bool fused = k + 1 < w->prog->nsteps && w->fused[k + 1];
    switch (step->kind) {
    case STEP_SEND:
        forms[0] = (struct piece){"s", step->src, other_end(w, k)->dst, 0};
        return 1;
    case STEP_RECV:
        forms[0] = (struct piece){fused ? "rcs" : "r", other_end(w, k)->src, step->dst, 0};
        return 1;
    case STEP_RECV_REDUCE:
        forms[0] = (struct piece){fused ? "rrcs" : "rrc", step->src, step->dst, 0};
        return 1;
    case STEP_COPY:
        forms[0] = (struct piece){"cpy", step->src, step->dst, 0};
        return 1;
    case STEP_REDUCE:
        return reduce_forms(w, k, forms);
    default:
        forms[0] = (struct piece){"nop", ref_in(0), ref_in(0), 0};
        return 1;
    }
}

/* ---- numbers ---- */

/* Decides what is fused and numbers the steps of every block. A send with dependencies of its own
 * is not fused: the receive must not wait for them. */
static void number_steps(struct write *w)
{
    size_t nsteps = w->prog->nsteps;
    w->fused = mem_calloc(nsteps, sizeof *w->fused);
    w->s_of = mem_calloc(nsteps, sizeof *w->s_of);
    for (size_t k = 0; k + 1 < nsteps; k++) {
        w->fused[k + 1] = passes_on(w, k) && w->block_of[k] == w->block_of[k + 1] &&
                          w->dep_start[k + 1] == w->dep_start[k + 2] && pieces_of(w, k) == 1 &&
                          pieces_of(w, k + 1) == 1;
    }
    for (size_t k = 0; k < nsteps; k++) {
        struct block *block = &w->blocks[w->block_of[k]];
        struct piece forms[MOST_FORMS];
        if (!w->fused[k]) {
            uint32_t ndeps = w->dep_start[k + 1] - w->dep_start[k];
            uint32_t nforms = (uint32_t)forms_of(w, k, forms);
            block->count += (ndeps > 1 ? ndeps - 1 : 0) + nforms * pieces_of(w, k);
        } else if (w->hasdep[k]) {
            w->hasdep[k - 1] = true; /* one step of the file */
        }
        w->s_of[k] = block->count - 1;
    }
}

/* ---- printing ---- */

static void print_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", to);
            break;
        case '<':
            fputs("&lt;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? '?' : *text, to);
        }
    }
}

static void print_ref(const struct write *w, const char *which, struct ref ref, uint32_t i)
{
    static const char letters[] = "ios";
    uint32_t chunks = sched_chunks(w->sched, ref.buf);
    uint32_t plane = ref.buf >= BUF_SCRATCH ? ref.buf - BUF_SCRATCH : 0;
    uint64_t off = (uint64_t)plane * chunks + (ref.chunk + i) % chunks;
    fprintf(w->to, " %sbuf=\"%c\" %soff=\"%" PRIu64 "\"", which,
            letters[ref.buf >= BUF_SCRATCH ? BUF_SCRATCH : ref.buf], which, off);
}

/* One <step>; `dep`: the step waited for, NONE for none. */
static void print_piece(const struct write *w, size_t k, uint32_t s, const struct piece *piece,
                        uint32_t i, uint32_t dep, bool hasdep, bool placed)
{
    fprintf(w->to, "      <step s=\"%u\" type=\"%s\"", s, piece->type);
    print_ref(w, "src", piece->src, i);
    print_ref(w, "dst", piece->dst, i);
    fprintf(w->to, " cnt=\"%u\"", piece->n);
    if (dep == NONE) {
        fputs(" depid=\"-1\" deps=\"-1\"", w->to);
    } else {
        fprintf(w->to, " depid=\"%u\" deps=\"%u\"", w->block_of[dep], w->s_of[dep]);
    }
    fprintf(w->to, " hasdep=\"%d\"", hasdep);
    if (placed && !w->opts->plain) fprintf(w->to, " at=\"%zu\"", k);
    fputs("/>\n", w->to);
}

static void print_step(const struct write *w, size_t k)
{
    const struct step *step = &w->prog->steps[k];
    struct piece forms[MOST_FORMS], nop = {"nop", ref_in(0), ref_in(0), 0};
    uint32_t nforms = (uint32_t)forms_of(w, k, forms), npieces = pieces_of(w, k);
    uint32_t first = w->dep_start[k], end = w->dep_start[k + 1];
    uint32_t left = nforms * npieces, s = w->s_of[k] + 1 - left;
    uint32_t dep = first < end ? w->deps[end - 1].before : NONE;
    for (uint32_t d = first; d + 1 < end; d++) {
        print_piece(w, k, s - (end - 1 - d), &nop, 0, w->deps[d].before, false, false);
    }
    for (uint32_t i = 0; i < npieces; i++) {
        for (uint32_t f = 0; f < nforms; f++, s++) {
            forms[f].n = step->kind == STEP_NOP ? 0 : step->nchunks / npieces;
            print_piece(w, k, s, &forms[f], i, dep, --left == 0 && w->hasdep[k], true);
            dep = NONE;
        }
    }
}

static uint32_t peer_of(const struct write *w, uint32_t wire)
{
    return w->wires->wires[wire].peer;
}

/* Steps block by block, in list order within each. */
static void print_blocks(struct write *w)
{
    size_t nsteps = w->prog->nsteps;
    uint32_t *next = mem_calloc(nsteps, sizeof *next);
    uint32_t *head = mem_calloc(w->nblocks, sizeof *head);
    memset(head, 0xff, w->nblocks * sizeof *head);
    for (size_t k = nsteps; k-- > 0;) {
        next[k] = head[w->block_of[k]];
        head[w->block_of[k]] = (uint32_t)k;
    }
    for (uint32_t b = 0; b < w->nblocks; b++) {
        const struct block *block = &w->blocks[b];
        int64_t send = block->out == NONE ? -1 : (int64_t)peer_of(w, block->out);
        int64_t recv = block->in == NONE ? -1 : (int64_t)peer_of(w, block->in);
        fprintf(w->to, "    <tb id=\"%u\" send=\"%" PRId64 "\" recv=\"%" PRId64 "\" chan=\"%u\"", b,
                send, recv, block->channel);
        if (!w->opts->plain) fprintf(w->to, " lane=\"%u\"", block->lane);
        fputs(">\n", w->to);
        for (uint32_t k = head[b]; k != NONE; k = next[k]) {
            if (!w->fused[k]) print_step(w, k);
        }
        fputs("    </tb>\n", w->to);
    }
    free(next);
    free(head);
}

static void write_rank(struct write *w, uint32_t rank)
{
    const struct sched *sched = w->sched;
    w->rank = rank;
    w->prog = sched_prog_of(sched, rank);
    w->wires = &w->pairs->progs[sched->prog_of[rank]];
    w->blocks = NULL, w->deps = NULL;
    w->nblocks = 0, w->ndeps = 0, w->blocks_cap = 0, w->deps_cap = 0;
    cut_blocks(w);
    find_deps(w);
    deal_temps(w);
    number_steps(w);
    fprintf(w->to, "  <gpu id=\"%u\" i_chunks=\"%u\" o_chunks=\"%u\" s_chunks=\"%" PRIu64 "\">\n",
            rank, sched_chunks(sched, BUF_IN), sched_chunks(sched, BUF_OUT),
            ((uint64_t)sched->nplanes + w->ntemps) * sched_chunks(sched, BUF_SCRATCH));
    print_blocks(w);
    fputs("  </gpu>\n", w->to);
    free(w->blocks);
    free(w->block_of);
    free(w->deps);
    free(w->dep_start);
    free(w->fused);
    free(w->hasdep);
    free(w->s_of);
    free(w->temp);
}

static void write_head(const struct write *w)
{
    const struct sched *sched = w->sched;
    const struct msccl_opts *opts = w->opts;
    uint32_t nchannels = 1;
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        for (size_t k = 0; k < sched->progs[p].nsteps; k++) {
            uint32_t channel = sched->progs[p].steps[k].channel;
            nchannels = channel >= nchannels ? channel + 1 : nchannels;
        }
    }
    fputs("<algo name=\"", w->to);
    print_text(w->to, sched->name);
    fprintf(w->to,
            "\" proto=\"%s\" nchannels=\"%u\" nchunksperloop=\"%u\" ngpus=\"%u\" coll=\"%s\"",
            opts->proto ? opts->proto : "Simple", nchannels, sched_chunks(sched, BUF_SCRATCH),
            sched->nranks, sched->coll->name);
    fprintf(w->to, " inplace=\"%d\" outofplace=\"%d\" minBytes=\"%" PRIu64 "\" maxBytes=\"%" PRIu64,
            w->places[1], w->places[0], opts->min_bytes,
            opts->max_bytes ? opts->max_bytes : (uint64_t)INT64_MAX);
    fputs("\"", w->to);
    if (sched->coll->rooted) fprintf(w->to, " root=\"%u\"", sched->root);
    if (!opts->plain) fputs(" list=\"1\"", w->to);
    fputs(">\n", w->to);
}

/* The placements in which a schedule is right; -1 with the sentence when it is in none. */
static int find_places(const struct sched *sched, bool places[2], struct err *err)
{
    struct err why = ERR_INIT;
    places[0] = verify_sched(sched, false, &why) == 0;
    struct err ignored = ERR_INIT;
    places[1] = coll_in_place(sched->coll) && verify_sched(sched, true, &ignored) == 0;
    err_release(&ignored);
    if (!places[0] && !places[1]) return err_move(err, &why);
    err_release(&why);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        for (size_t k = 0; k < sched->progs[p].nsteps; k++) {
            if (sched->progs[p].steps[k].kind == STEP_CALC) {
                return err_add(
                    err, ERR_USAGE,
                    "%s: rank %u step %zu is a compute step, for which MSCCL has no word",
                    sched->name, sched->progs[p].rank, k);
            }
        }
    }
    return 0;
}

int msccl_write(FILE *to, const struct sched *sched, const struct msccl_opts *opts, struct err *err)
{
    static const struct msccl_opts defaults = {0};
    struct write w = {.to = to, .opts = opts ? opts : &defaults};
    if (sched->nagents) {
        return err_add(err, ERR_USAGE,
                       "%s has %u agent(s) inside switches, for which MSCCL has no word: it knows "
                       "GPUs alone",
                       sched->name, sched->nagents);
    }
    if (find_places(sched, w.places, err)) return -1;
    struct sched *all = sched_unroll(sched);
    struct pairs pairs;
    int bad = pairs_init(&pairs, all, err);
    if (!bad) {
        w.sched = all;
        w.pairs = &pairs;
        write_head(&w);
        for (uint32_t rank = 0; rank < all->nranks; rank++) {
            write_rank(&w, rank);
        }
        fputs("</algo>\n", to);
        pairs_release(&pairs);
        if (fflush(to) || ferror(to)) bad = err_add(err, ERR_FAILED, "the file was not written");
    }
    sched_free(all);
    return bad;
}
