/* SPDX-License-Identifier: Apache-2.0
 * From an MSCCL file to a schedule: see msccl.h. The steps are run once in the file's order on
 * symbolic chunks, which tells what the file leaves open:
 *   - which reduce is final: the one that brings the contributions to one per rank;
 *   - which part of a block a scratch chunk holds. MSCCL's chunks are all alike; ours are of a
 *     part, whose length they share, so a scratch chunk that holds several parts in turn becomes
 *     several places;
 *   - in a file for in place alone, whether a chunk means the input or what was written over it.
 * Where the chunks of one step would fall apart in this, all steps are cut into single chunks. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/msccl.h"
#include "sched/msccl_file.h"
#include "sched/verify.h"

enum { NOTHING = UINT32_MAX };
enum { FREE_CHUNKS = 1 << 20, CHUNKS_PER_BYTE = 16 }; /* see check_size */

/* What a place holds: a part of an input block, from so many ranks. */
struct value {
    uint32_t chunk; /* of the input; NOTHING: unknown */
    uint32_t leaves;
};

struct cell {
    struct value value;
    bool written;
    uint32_t homes; /* scratch: where its parts live, a list in `homes` */
};

struct home {
    uint32_t part, slot, next;
};

struct build {
    const struct file *file;
    struct sched *sched;
    bool alias;         /* for in place alone */
    bool single;        /* every step is cut into single chunks, scratch is dealt out by part */
    bool apart;         /* .. and must be: the chunks of a step fell apart */
    size_t *base;       /* per rank: its first cell: input, output, file's scratch, ours */
    uint32_t *rrs_base; /* per rank: first scratch chunk of ours, for sums that are not kept */
    uint32_t *rrs_of;   /* per block: its number among the blocks of its rank with such sums */
    struct cell *cells;
    struct home *homes;
    size_t nhomes, homes_cap;
    uint32_t *next_slot; /* per rank and part: places of that part dealt out */
    struct value *messages;
    size_t *message; /* per file step that sends: its first value */
    size_t nmessages;
    uint32_t *last;    /* per rank: the file step built last */
    uint32_t **source; /* per rank and step built: the file step; FILE_NONE: added by us */
    size_t *source_cap;
};

/* ---- places ---- */

static uint32_t own_chunks(const struct build *b)
{
    return sched_chunks(b->sched, BUF_IN) + sched_chunks(b->sched, BUF_OUT);
}

/* Scratch chunks of `rank` with ours: a share for each block that keeps sums for itself, and, in
 * place, one for the partial sums that lie in the input. */
static uint64_t scratch_chunks(const struct build *b, uint32_t rank, uint32_t nrrs)
{
    return b->rrs_base[rank] + (nrrs + (uint64_t)b->alias) * sched_chunks(b->sched, BUF_SCRATCH);
}

static struct cell *scratch_cell(const struct build *b, uint32_t rank, uint32_t k)
{
    return &b->cells[b->base[rank] + own_chunks(b) + k];
}

static struct cell *cell_of(const struct build *b, uint32_t rank, uint8_t buf, uint32_t chunk)
{
    if (buf == BUF_SCRATCH) return scratch_cell(b, rank, chunk);
    struct ref ref = sched_place(b->sched, rank, b->alias, (struct ref){buf, chunk});
    return &b->cells[b->base[rank] + sched_place_number(b->sched, ref)];
}

/* Where chunk k of the file's scratch lives while it holds part `part`. */
static struct ref scratch_ref(struct build *b, uint32_t rank, uint32_t k, uint32_t part)
{
    uint32_t nparts = b->sched->nparts, chunks = sched_chunks(b->sched, BUF_SCRATCH);
    if (!b->single) {
        b->apart |= k % chunks % nparts != part;
        return (struct ref){BUF_SCRATCH + k / chunks, k % chunks};
    }
    struct cell *cell = scratch_cell(b, rank, k);
    uint32_t h = cell->homes;
    while (h != NOTHING && b->homes[h].part != part) {
        h = b->homes[h].next;
    }
    if (h == NOTHING) {
        MEM_GROW(b->homes, b->nhomes, b->homes_cap);
        h = (uint32_t)b->nhomes++;
        b->homes[h] =
            (struct home){part, b->next_slot[(size_t)rank * nparts + part]++, cell->homes};
        cell->homes = h;
    }
    uint32_t nblocks = chunks / nparts, slot = b->homes[h].slot;
    return (struct ref){BUF_SCRATCH + slot / nblocks, slot % nblocks * nparts + part};
}

/* In place alone: the name of a place before it is written (the input that lies there, if any),
 * and after (the output that lies there, else scratch of ours). */
static struct ref alias_ref(struct build *b, uint32_t rank, uint8_t buf, uint32_t chunk,
                            bool written, uint32_t part)
{
    const struct sched *sched = b->sched;
    struct ref place = sched_place(sched, rank, true, (struct ref){buf, chunk});
    uint32_t nparts = sched->nparts;
    bool own =
        place.chunk / nparts == rank; /* the block on which the single one of the other lies */
    bool in = sched->coll->in_per_rank, out = sched->coll->out_per_rank;
    if (in == out) return written ? ref_out(place.chunk) : ref_in(place.chunk);
    if (out) return !written && own ? ref_in(place.chunk % nparts) : ref_out(place.chunk);
    if (!written) return ref_in(place.chunk);
    if (own) return ref_out(place.chunk % nparts);
    uint32_t chunks = sched_chunks(sched, BUF_SCRATCH);
    uint64_t total = b->base[rank + 1] - b->base[rank] - own_chunks(b);
    return scratch_ref(b, rank, (uint32_t)(total - chunks) + place.chunk, part);
}

/* The name of a chunk that holds, or is about to hold, `part`. */
static struct ref name_of(struct build *b, uint32_t rank, uint8_t buf, uint32_t chunk, bool written,
                          uint32_t part)
{
    if (buf == BUF_SCRATCH) return scratch_ref(b, rank, chunk, part);
    if (b->alias) return alias_ref(b, rank, buf, chunk, written, part);
    return (struct ref){buf, chunk};
}

/* ---- steps ---- */

/* One step of the schedule in the making, chunk by chunk: its first chunk names it, the others must
 * follow. */
struct making {
    struct step step;
    uint32_t n; /* chunks so far */
};

static void name_ref(struct build *b, const struct making *making, struct ref *ref, struct ref now)
{
    if (making->n == 0) {
        *ref = now;
    } else {
        b->apart |= now.buf != ref->buf || now.chunk != ref->chunk + making->n;
    }
}

static struct value read_chunk(struct build *b, uint32_t rank, struct making *making,
                               struct ref *ref, uint8_t buf, uint32_t chunk)
{
    const struct cell *cell = cell_of(b, rank, buf, chunk);
    struct value value = cell->value;
    uint32_t part = value.chunk == NOTHING ? 0 : value.chunk % b->sched->nparts;
    name_ref(b, making, ref, name_of(b, rank, buf, chunk, cell->written, part));
    return value;
}

static void write_chunk(struct build *b, uint32_t rank, struct making *making, uint8_t buf,
                        uint32_t chunk, struct value value)
{
    struct cell *cell = cell_of(b, rank, buf, chunk);
    uint32_t part = value.chunk == NOTHING ? 0 : value.chunk % b->sched->nparts;
    name_ref(b, making, &making->step.dst, name_of(b, rank, buf, chunk, true, part));
    cell->value = value;
    cell->written = true;
}

static struct value add(struct build *b, struct making *making, struct value a, struct value v)
{
    if (a.chunk != NOTHING) a.leaves += v.leaves;
    bool final = b->sched->coll->reduces && a.leaves == b->sched->nranks;
    if (making->n == 0) making->step.final = final;
    b->apart |= making->step.final != final;
    return a;
}

/* ---- lists: neighbours with the same place are one step of the program ---- */

static bool follows(const struct sched *sched, struct ref first, uint32_t n, struct ref next)
{
    uint64_t chunk = ((uint64_t)first.chunk + n) % sched_chunks(sched, next.buf);
    return first.buf == next.buf && chunk == next.chunk;
}

static bool same_ref(struct ref a, struct ref b)
{
    return a.buf == b.buf && a.chunk == b.chunk;
}

/* Joins `next` to the step before it: a copy and a reduce behind it are a reduce of three places,
 * a copy of its result moves it; else they are pieces of one step. False if they do not fit. */
static bool join(const struct sched *sched, struct step *step, const struct step *next)
{
    if (step->kind == STEP_COPY && next->kind == STEP_REDUCE && same_ref(next->src, step->dst)) {
        step->kind = STEP_REDUCE;
        step->src2 = next->src2;
        step->final = next->final;
        return step->nchunks == next->nchunks;
    }
    if (step->kind == STEP_REDUCE && next->kind == STEP_COPY && same_ref(next->src, step->dst)) {
        step->dst = next->dst;
        return step->nchunks == next->nchunks;
    }
    const struct step_info *info = step_info(step->kind);
    bool fit = step->kind == next->kind && step->final == next->final && step->peer == next->peer &&
               step->channel == next->channel &&
               (!info->reads_src || follows(sched, step->src, step->nchunks, next->src)) &&
               (!info->reads_src2 || follows(sched, step->src2, step->nchunks, next->src2)) &&
               (!info->writes || follows(sched, step->dst, step->nchunks, next->dst));
    step->nchunks += next->nchunks;
    return fit;
}

/* ---- building ---- */

static void append(struct build *b, uint32_t rank, const struct step *step, uint32_t source)
{
    struct prog *prog = &b->sched->progs[b->sched->prog_of[rank]];
    MEM_GROW(b->source[rank], prog->nsteps, b->source_cap[rank]);
    b->source[rank][prog->nsteps] = source;
    MEM_GROW(prog->steps, prog->nsteps, prog->cap);
    prog->steps[prog->nsteps++] = *step;
    if (prog->nlanes <= step->lane) prog->nlanes = (uint16_t)(step->lane + 1);
}

/* Takes over a made step of file step `x`; -1 when a list gives one place to steps that are none.
 */
static int take(struct build *b, uint32_t x, const struct making *making, struct err *err)
{
    const struct file *file = b->file;
    const struct file_step *step = &file->steps[x];
    uint32_t rank = file_rank(file, x), before = b->last[rank];
    struct prog *prog = &b->sched->progs[b->sched->prog_of[rank]];
    struct step made = making->step;
    made.nchunks = making->n;
    if (!file->listed || b->single || before == FILE_NONE || before == x ||
        file->steps[before].at != step->at) {
        append(b, rank, &made, x);
        return 0;
    }
    struct step *last = &prog->steps[prog->nsteps - 1];
    if (file->steps[before].block == step->block && join(b->sched, last, &made)) return 0;
    return file_fault(
        file, step->line, err,
        "<step at=\"%u\">: line %u has the same place in the program, and the two are "
        "not pieces of one step",
        step->at, file->steps[before].line);
}

static struct making start(const struct build *b, uint32_t x, enum step_kind kind, uint32_t peer)
{
    const struct file *file = b->file;
    const struct file_block *block = &file->blocks[file->steps[x].block];
    uint32_t index = (uint32_t)(block - file->blocks) - file->gpus[block->gpu].first;
    struct making making = {.step = {.kind = kind, .peer = peer == FILE_NONE ? 0 : peer}};
    making.step.lane = (uint16_t)(file->listed ? block->lane : index);
    making.step.channel = block->channel;
    return making;
}

static enum step_kind kind_of(const struct file_info *info)
{
    if (info->receives) return info->reads_src ? STEP_RECV_REDUCE : STEP_RECV;
    if (info->reads_dst) return STEP_REDUCE;
    return info->writes_dst ? STEP_COPY : STEP_NOP;
}

/* Where a step that sends on what it has made puts it: its dst, or for rrs scratch of ours. */
static void result_place(const struct build *b, uint32_t x, uint8_t *buf, uint32_t *chunk)
{
    const struct file_step *step = &b->file->steps[x];
    *buf = step->dst_buf;
    *chunk = step->dst;
    if (step->kind == FILE_RECV_REDUCE_SEND) {
        uint32_t chunks = sched_chunks(b->sched, BUF_SCRATCH);
        *buf = BUF_SCRATCH;
        *chunk = b->rrs_base[file_rank(b->file, x)] + b->rrs_of[step->block] * chunks +
                 step->src % chunks;
    }
}

/* Chunks [i, i + n) of a step that receives, copies or reduces. */
static struct making make_local(struct build *b, uint32_t x, uint32_t i, uint32_t n)
{
    const struct file *file = b->file;
    const struct file_step *step = &file->steps[x];
    const struct file_info *info = file_info(step->kind);
    uint32_t rank = file_rank(file, x), result;
    uint8_t buf;
    result_place(b, x, &buf, &result);
    struct making making = start(b, x, kind_of(info), file->blocks[step->block].recv);
    for (; making.n < n; making.n++, i++) {
        struct value value = {NOTHING, 0}, src = value;
        if (info->reads_dst) { /* dst = dst (+) src */
            value = read_chunk(b, rank, &making, &making.step.src, step->dst_buf, step->dst + i);
            src = read_chunk(b, rank, &making, &making.step.src2, step->src_buf, step->src + i);
            value = add(b, &making, value, src);
        } else {
            if (info->receives) value = b->messages[b->message[step->from] + i];
            if (info->reads_src)
                src = read_chunk(b, rank, &making, &making.step.src, step->src_buf, step->src + i);
            if (info->reads_src) value = info->receives ? add(b, &making, src, value) : src;
        }
        write_chunk(b, rank, &making, buf, result + i, value);
    }
    return making;
}

static struct making make_send(struct build *b, uint32_t x, uint32_t i, uint32_t n)
{
    const struct file *file = b->file;
    const struct file_step *step = &file->steps[x];
    uint32_t rank = file_rank(file, x), chunk = step->src;
    uint8_t buf = step->src_buf;
    if (file_info(step->kind)->receives) result_place(b, x, &buf, &chunk);
    struct making making = start(b, x, STEP_SEND, file->blocks[step->block].send);
    for (; making.n < n; making.n++, i++) {
        b->messages[b->message[x] + i] =
            read_chunk(b, rank, &making, &making.step.src, buf, chunk + i);
    }
    return making;
}

static int build_step(struct build *b, uint32_t x, struct err *err)
{
    const struct file_step *step = &b->file->steps[x];
    const struct file_info *info = file_info(step->kind);
    uint32_t rank = file_rank(b->file, x), n = b->single ? 1 : step->cnt;
    if (step->kind == FILE_NOP) {
        struct making nop = start(b, x, STEP_NOP, FILE_NONE);
        nop.step.nchunks = 1;
        if (step->at != FILE_NONE) append(b, rank, &nop.step, x); /* else it only waits */
        return 0;
    }
    if (info->sends) {
        b->message[x] = b->nmessages;
        b->nmessages += step->cnt;
    }
    for (uint32_t i = 0; i < step->cnt && !b->apart; i += n) {
        if (step->kind != FILE_SEND) {
            struct making made = make_local(b, x, i, n);
            if (take(b, x, &made, err)) return -1;
            b->last[rank] = x;
        }
        if (info->sends) {
            struct making made = make_send(b, x, i, n);
            if (take(b, x, &made, err)) return -1;
            b->last[rank] = x;
        }
    }
    return 0;
}

/* In place a chunk may be right without a step: the rank's own data, where they lie already. Out
 * of place they must be copied. */
static void copy_what_lies_there(struct build *b)
{
    const struct sched *sched = b->sched;
    uint32_t chunks = sched_chunks(sched, BUF_OUT);
    for (uint32_t rank = 0; rank < sched->nranks; rank++) {
        if (!coll_has_input(sched->coll, sched->root, rank)) continue;
        for (uint32_t c = 0; c < chunks; c++) {
            const struct cell *cell = cell_of(b, rank, BUF_OUT, c);
            if (cell->written || cell->value.chunk == NOTHING) continue;
            struct ref src = alias_ref(b, rank, BUF_OUT, c, false, 0);
            struct step copy = {.kind = STEP_COPY, .nchunks = 1, .src = src, .dst = ref_out(c)};
            append(b, rank, &copy, FILE_NONE);
        }
    }
}

static void count_planes(struct sched *sched)
{
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        const struct prog *prog = &sched->progs[p];
        for (size_t k = 0; k < prog->nsteps; k++) {
            const struct step *step = &prog->steps[k];
            const struct step_info *info = step_info(step->kind);
            const struct ref refs[] = {step->src, step->src2, step->dst};
            const bool used[] = {info->reads_src, info->reads_src2, info->writes};
            for (int i = 0; i < 3; i++) {
                if (used[i] && refs[i].buf >= BUF_SCRATCH + sched->nplanes)
                    sched->nplanes = refs[i].buf - BUF_SCRATCH + 1;
            }
            if (step->channel >= sched->nchannels) sched->nchannels = step->channel + 1u;
        }
    }
}

/* ---- beginning and end ---- */

static struct sched *empty_sched(const struct file *file)
{
    uint32_t widest = coll_blocks(file->coll, BUF_SCRATCH, file->nranks);
    struct sched *sched =
        sched_new(file->name, file->coll->id, file->nranks, file->root, file->loop / widest);
    for (uint32_t r = 0; r < file->nranks; r++) {
        sched_prog(sched, r);
    }
    return sched;
}

/* Whether a block sends sums that it does not store: they need scratch of ours. */
static bool keeps_sums(const struct file *file, const struct file_block *block)
{
    for (uint32_t x = block->first; x < block->first + block->count; x++) {
        if (file->steps[x].kind == FILE_RECV_REDUCE_SEND) return true;
    }
    return false;
}

/* Memory goes with the chunks that a file claims: it must not claim far more than it has bytes. */
static int check_size(const struct file *file, struct err *err)
{
    uint32_t widest = coll_blocks(file->coll, BUF_SCRATCH, file->nranks);
    double part = (double)file->loop / widest;
    double chunks = part * file->nranks *
                    (coll_blocks(file->coll, BUF_IN, file->nranks) +
                     coll_blocks(file->coll, BUF_OUT, file->nranks));
    for (size_t g = 0; g < file->ngpus; g++) {
        chunks += file->gpus[g].s_chunks + 2.0 * file->loop;
    }
    for (size_t b = 0; b < file->nblocks; b++) {
        chunks += keeps_sums(file, &file->blocks[b]) ? file->loop : 0;
    }
    double most = FREE_CHUNKS + CHUNKS_PER_BYTE * (double)file->bytes;
    if (chunks > most || (double)file->values > most) {
        return file_fault(file, file->line, err,
                          "%.0f chunks in buffers and %.0f in steps are too many for a file of "
                          "%.0f bytes: at most %.0f",
                          chunks, (double)file->values, (double)file->bytes, most);
    }
    return 0;
}

static void lay_out(struct build *b)
{
    const struct file *file = b->file;
    uint32_t chunks = sched_chunks(b->sched, BUF_SCRATCH);
    b->base = mem_calloc(file->nranks + 1, sizeof *b->base);
    b->rrs_base = mem_calloc(file->nranks, sizeof *b->rrs_base);
    b->rrs_of = mem_calloc(file->nblocks, sizeof *b->rrs_of);
    for (uint32_t rank = 0; rank < file->nranks; rank++) {
        const struct file_gpu *gpu = &file->gpus[file->gpu_of[rank]];
        uint32_t nrrs = 0;
        for (uint32_t i = gpu->first; i < gpu->first + gpu->count; i++) {
            b->rrs_of[i] = nrrs;
            nrrs += keeps_sums(file, &file->blocks[i]);
        }
        b->rrs_base[rank] = (gpu->s_chunks + chunks - 1) / chunks * chunks;
        b->base[rank + 1] = b->base[rank] + own_chunks(b) + (size_t)scratch_chunks(b, rank, nrrs);
    }
}

static void build_init(struct build *b, const struct file *file, bool single)
{
    *b = (struct build){.file = file, .sched = empty_sched(file), .single = single};
    const struct sched *sched = b->sched;
    b->alias = file->places[1] && !file->places[0];
    lay_out(b);
    b->cells = mem_calloc(b->base[file->nranks], sizeof *b->cells);
    for (size_t i = 0; i < b->base[file->nranks]; i++) {
        b->cells[i] = (struct cell){{NOTHING, 0}, false, NOTHING};
    }
    b->next_slot = mem_calloc((size_t)file->nranks * sched->nparts, sizeof *b->next_slot);
    b->messages = mem_calloc(file->values, sizeof *b->messages);
    b->message = mem_calloc(file->nsteps, sizeof *b->message);
    b->last = mem_calloc(file->nranks, sizeof *b->last);
    b->source = mem_calloc(file->nranks, sizeof *b->source);
    b->source_cap = mem_calloc(file->nranks, sizeof *b->source_cap);
    uint32_t chunks = sched_chunks(sched, BUF_IN);
    for (uint32_t rank = 0; rank < file->nranks; rank++) {
        b->last[rank] = FILE_NONE;
        for (uint32_t c = 0; c < chunks && coll_has_input(sched->coll, sched->root, rank); c++) {
            cell_of(b, rank, BUF_IN, c)->value = (struct value){c, 1};
        }
    }
}

static void build_release(struct build *b)
{
    for (uint32_t rank = 0; b->source && rank < b->file->nranks; rank++) {
        free(b->source[rank]);
    }
    free(b->source);
    free(b->source_cap);
    free(b->base);
    free(b->rrs_base);
    free(b->rrs_of);
    free(b->cells);
    free(b->homes);
    free(b->next_slot);
    free(b->messages);
    free(b->message);
    free(b->last);
    sched_free(b->sched);
}

/* Builds; again in single chunks if it must. `b` is to be released in either case. */
static int build_sched(struct build *b, const struct file *file, struct err *err)
{
    int bad = 0;
    for (int single = 0; single < 2; single++) {
        build_init(b, file, single);
        for (size_t i = 0; i < file->nsteps && !bad && !b->apart; i++) {
            bad = build_step(b, file->order[i], err);
        }
        if (bad || !b->apart || single) break;
        build_release(b);
    }
    if (bad) return -1;
    if (b->alias) copy_what_lies_there(b);
    count_planes(b->sched);
    return 0;
}

/* ---- proving ---- */

/* A sentence of verifier or linker as one of the file: with the line and the step that it names. */
static int blame(const struct build *b, const struct err *why, struct err *err)
{
    const struct file *file = b->file;
    size_t length = strcspn(why->text, "\n");
    const char *at = strstr(why->text + (strncmp(why->text, file->name, strlen(file->name)) == 0
                                             ? strlen(file->name)
                                             : 0),
                            "rank ");
    unsigned rank = 0, step = 0;
    int found = at && at < why->text + length ? sscanf(at, "rank %u step %u", &rank, &step) : 0;
    if (found < 1 || rank >= file->nranks)
        return file_fault(file, file->line, err, "%.*s", (int)length, why->text);
    const struct file_gpu *gpu = &file->gpus[file->gpu_of[rank]];
    const struct prog *prog = sched_prog_of(b->sched, rank);
    uint32_t x = found == 2 && step < prog->nsteps ? b->source[rank][step] : FILE_NONE;
    if (x == FILE_NONE) return file_fault(file, gpu->line, err, "%.*s", (int)length, why->text);
    return file_fault(file, file->steps[x].line, err, "%.*s (tb %u step %u here)", (int)length,
                      why->text, file_tb(file, x), file_s(file, x));
}

static int prove(const struct build *b, struct err *err)
{
    struct err why = ERR_INIT;
    int bad = 0;
    for (int in_place = 0; in_place < 2 && !bad; in_place++) {
        if (!b->file->places[in_place]) continue;
        struct link_opts opts = {.mode = WIRE_STAGED, .in_place = in_place, .fuse = true};
        struct linked *linked = NULL;
        bad = verify_sched(b->sched, in_place, &why);
        if (!bad) linked = link_sched(b->sched, &opts, &why);
        bad = !linked;
        linked_free(linked);
    }
    if (bad) blame(b, &why, err);
    err_release(&why);
    return bad ? -1 : 0;
}

static struct sched *read_text(const char *path, const char *text, size_t bytes, struct err *err)
{
    struct file file;
    struct build build = {.file = &file};
    struct sched *shape = NULL, *sched = NULL;
    if (file_parse(&file, path, text, bytes, err) || check_size(&file, err) ||
        file_order(&file, err)) {
        goto out;
    }
    shape = empty_sched(&file);
    if (file_races(&file, shape, err) || build_sched(&build, &file, err) || prove(&build, err)) {
        goto out;
    }
    sched = build.sched;
    build.sched = NULL;
out:
    build_release(&build);
    sched_free(shape);
    file_release(&file);
    return sched;
}

struct sched *msccl_read(const char *path, struct err *err)
{
    return read_text(path, NULL, 0, err);
}

struct sched *msccl_parse(const char *path, const char *text, size_t bytes, struct err *err)
{
    return read_text(path, text, bytes, err);
}
