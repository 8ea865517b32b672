/* SPDX-License-Identifier: Apache-2.0
 * The executor: lanes run groups of linked steps. A group waits until its waits hold, its messages
 * have arrived and its sends have room; then one kernel call per chunk does all of it, and the
 * messages are posted and released. See exec.h. */
#include "exec/exec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "sched/layout.h"

/* The linker lets a group have at most so many inputs and outputs, hence records. */
enum { GROUP_MOST = KERNEL_MAX_IN + KERNEL_MAX_OUT };

struct lane {
    uint32_t pc, start, end; /* records */
    uint64_t pass;
    uint64_t came_ns; /* with keep_trace: when it came to its group, */
    bool blocked;     /* and whether it could not go on at once */
};

/* One group that ran, with keep_trace. */
struct ran {
    uint32_t lane, pc;
    uint64_t pass, came_ns, begin_ns, end_ns;
};

struct exec {
    struct exec_spec spec;
    const struct sched *sched;
    const struct kernels *kernels;
    struct rank *rank;
    const struct transport *transport;
    void *transport_state;
    const struct lwait *waits;
    struct lstep *steps; /* this rank's: peers and chunks absolute */
    uint32_t nsteps;
    struct lane *lanes;
    uint32_t nlanes, running; /* lanes, and those not done yet */
    struct lwire *lwires;
    struct wire **wires;
    uint64_t *wire_base; /* per wire: its message number at the start of the operation */
    uint32_t nwires;
    struct layout layout[2]; /* input, output */
    struct layout most;      /* one block as long as the longest of any rank: what all agree on */
    size_t *offsets[2];      /* of uneven blocks; else NULL */
    struct range **theirs;   /* .. then by group rank: where the peer's chunks lie, as `chunks` */
    struct range *chunks[3]; /* per buffer kind: whole chunks; scratch: place and longest slice */
    uint32_t nchunks[3];
    size_t scratch_bytes, plane_bytes;
    struct wire_buffers own, *peers; /* peers by group rank */
    size_t esize;
    uint64_t passes;
    bool stream;                     /* user buffers are too large to stay in a cache */
    bool moved;                      /* some group ran in this progress call */
    const void *arrived[GROUP_MOST]; /* per record of the group */
    void *place[GROUP_MOST];
    struct pull_ref refs[GROUP_MOST];
    struct msg_log *log;
    size_t nlog, log_cap;
    struct ran *ran; /* of the last operation; NULL without keep_trace */
    size_t nran;
};

/* ---- bytes of a step ---- */

static uint32_t kind_of(uint32_t buf)
{
    return buf < BUF_SCRATCH ? buf : BUF_SCRATCH;
}

/* Chunk `chunk + i` of `buf` in a pass, as a place in `base`. */
static struct range slice(const struct exec *exec, uint32_t buf, uint32_t chunk, uint32_t i,
                          uint64_t pass)
{
    uint32_t kind = kind_of(buf), c = chunk + i;
    c = c >= exec->nchunks[kind] ? c - exec->nchunks[kind] : c;
    struct range whole = exec->chunks[kind][c];
    struct range range = range_slice(whole, exec->most.slice_bytes, pass);
    if (kind == BUF_SCRATCH) { /* every pass uses the same place */
        range.off = (buf - BUF_SCRATCH) * exec->plane_bytes + whole.off;
    }
    return range;
}

static void *own_at(const struct exec *exec, uint32_t buf, size_t off)
{
    return (uint8_t *)exec->own.base[kind_of(buf)] + off;
}

/* The same in the memory of group rank `peer`. */
static struct range peer_slice(const struct exec *exec, uint32_t peer, uint32_t buf, uint32_t chunk,
                               uint32_t i, uint64_t pass)
{
    if (!exec->theirs) {
        return slice(exec, buf, chunk, i, pass);
    }
    uint32_t c = (chunk + i) % exec->nchunks[buf];
    struct range whole = exec->theirs[peer][buf * exec->nchunks[BUF_IN] + c];
    return range_slice(whole, exec->most.slice_bytes, pass);
}

/* Bytes that the record's message or value has in a pass. */
static size_t step_bytes(const struct exec *exec, const struct lstep *step, uint64_t pass)
{
    bool source = step->kind == STEP_SEND;
    uint32_t buf = source ? step->src_buf : step->dst_buf;
    uint32_t chunk = source ? step->src : step->dst;
    size_t bytes = 0;
    for (uint32_t i = 0; i < step->nchunks; i++) {
        bytes += slice(exec, buf, chunk, i, pass).len;
    }
    return bytes;
}

/* ---- one group ---- */

static bool waits_hold(const struct exec *exec, const struct lstep *head, uint64_t pass)
{
    for (uint32_t i = 0; i < head->nwaits; i++) {
        const struct lwait *wait = &exec->waits[head->wait + i];
        if (pass < wait->distance) {
            continue;
        }
        uint64_t of = pass - wait->distance;
        if (wait->kind == LWAIT_RELEASE) {
            struct wire *wire = exec->wires[wait->index];
            uint64_t number =
                exec->wire_base[wait->index] + of * exec->lwires[wait->index].nmsgs + wait->number;
            if (!exec->transport->released(wire, number)) {
                return false;
            }
        } else {
            const struct lane *lane = &exec->lanes[wait->index];
            if (lane->pass < of || (lane->pass == of && lane->pc <= wait->number)) {
                return false;
            }
        }
    }
    return true;
}

/* Finds the messages and the room that the group needs; false when something is missing. */
static bool gather(struct exec *exec, const struct lstep *group, uint32_t count, uint64_t pass)
{
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        if (step->kind == STEP_SEND) {
            size_t bytes = step_bytes(exec, step, pass);
            exec->place[k] = exec->transport->room(exec->wires[step->wire], bytes);
            if (!exec->place[k]) {
                return false;
            }
        } else if (step->kind == STEP_RECV || step->kind == STEP_RECV_REDUCE) {
            size_t bytes = step_bytes(exec, step, pass);
            exec->arrived[k] =
                exec->transport->peek(exec->wires[step->wire], bytes, &exec->refs[k]);
            if (!exec->arrived[k]) {
                return false;
            }
        }
    }
    return true;
}

/* Where chunk i of an arrived message lies. `off` is its place within the message. */
static const void *arrival(const struct exec *exec, uint32_t k, const struct lstep *step,
                           uint32_t i, uint64_t pass, size_t off)
{
    const struct lwire *wire = &exec->lwires[step->wire];
    if (wire->mode == WIRE_PULL) {
        struct pull_ref ref = exec->refs[k];
        struct range from = peer_slice(exec, wire->peer, ref.buf, ref.chunk, i, pass);
        return (const uint8_t *)exec->peers[wire->peer].base[kind_of(ref.buf)] + from.off;
    }
    if (wire->mode == WIRE_PUSH) { /* it is already where it belongs */
        return own_at(exec, step->dst_buf, slice(exec, step->dst_buf, step->dst, i, pass).off);
    }
    return (const uint8_t *)exec->arrived[k] + off;
}

static void *departure(const struct exec *exec, uint32_t k, const struct lstep *step, uint32_t i,
                       uint64_t pass, size_t off)
{
    const struct lwire *wire = &exec->lwires[step->wire];
    if (wire->mode == WIRE_PUSH) {
        struct range to = peer_slice(exec, wire->peer, step->dst_buf, step->dst, i, pass);
        return (uint8_t *)exec->peers[wire->peer].base[kind_of(step->dst_buf)] + to.off;
    }
    return wire->mode == WIRE_PULL ? NULL : (uint8_t *)exec->place[k] + off;
}

/* Outputs that are slots: lines that a peer has read, and will read soon. */
struct slots {
    void *at[KERNEL_MAX_OUT];
    uint32_t count;
};

static void add_departure(const struct exec *exec, const struct lstep *step, void *at,
                          struct fold *fold, struct slots *slots)
{
    unsigned mode = exec->lwires[step->wire].mode;
    if (mode == WIRE_STAGED) {
        slots->at[slots->count++] = at;
    } else if (mode != WIRE_PULL) {
        fold->out[fold->nout++] = at;
        fold->stream &= mode == WIRE_PUSH; /* LL: soon packed into its lines */
    }
}

/* Inputs and outputs of chunk i of a group, as one fold; its bytes. */
static size_t make_fold(const struct exec *exec, const struct lstep *group, uint32_t count,
                        uint32_t i, uint64_t pass, size_t off, struct fold *fold,
                        struct slots *slots)
{
    size_t bytes = 0;
    fold->nin = fold->nout = slots->count = 0;
    fold->divisor = 1;
    fold->stream = exec->stream;
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        if (info->reads_src && !(step->flags & LS_ACC)) {
            struct range src = slice(exec, step->src_buf, step->src, i, pass);
            fold->in[fold->nin++] = own_at(exec, step->src_buf, src.off);
            bytes = src.len;
        }
        if (info->receives) {
            fold->in[fold->nin++] = arrival(exec, k, step, i, pass, off);
        } else if (info->reads_src2) {
            struct range src = slice(exec, step->msg, step->wire, i, pass);
            fold->in[fold->nin++] = own_at(exec, step->msg, src.off);
        }
        if (info->writes) {
            struct range dst = slice(exec, step->dst_buf, step->dst, i, pass);
            bytes = dst.len;
            if (!(step->flags & LS_NOSTORE)) {
                fold->out[fold->nout++] = own_at(exec, step->dst_buf, dst.off);
            }
        } else if (info->sends) {
            add_departure(exec, step, departure(exec, k, step, i, pass, off), fold, slots);
        }
        if (step->flags & LS_FINAL && exec->spec.op == OP_AVG) {
            fold->divisor = exec->sched->nranks;
        }
    }
    return bytes;
}

/* Streaming stores make a line that was just read leave the cache: not for outputs on inputs. */
static bool overlaps(const struct fold *fold)
{
    for (uint32_t o = 0; o < fold->nout; o++) {
        for (uint32_t i = 0; i < fold->nin; i++) {
            if (fold->out[o] == fold->in[i]) {
                return true;
            }
        }
    }
    return false;
}

/* A copy onto itself is none. */
static void drop_same(struct fold *fold)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < fold->nout; k++) {
        if (fold->out[k] != fold->in[0]) {
            fold->out[kept++] = fold->out[k];
        }
    }
    fold->nout = kept;
}

/* A fold into what are no slots. */
static void fold_out(const struct exec *exec, struct fold *fold, size_t bytes)
{
    fold->count = bytes / exec->esize;
    if (fold->nin > 1) {
        exec->kernels->fold[exec->spec.dtype][exec->spec.op](fold);
        return;
    }
    for (uint32_t k = 0; k < fold->nout; k++) {
        exec->kernels->copy(fold->out[k], fold->in[0], bytes, fold->stream);
    }
}

/* What is copied to several places is worked on in pieces that stay in a near cache. */
enum { PIECE = 32 << 10 };

/* One piece. Stores to lines that a peer holds fetch them first; the string copies behind `copy` do
 * not, and take a third of the time (measured on Zen 5: 128 KiB that the other core has read take
 * 3.5 us with 64 B stores, 1.3 us with rep movsb). So a value is made once outside the slots, and
 * copied from there to them. */
static void run_piece(const struct exec *exec, struct fold *fold, const struct slots *slots,
                      size_t bytes)
{
    _Alignas(64) uint8_t room[PIECE];
    const void *value = fold->nin == 1 ? fold->in[0] : fold->out[0];
    if (fold->nin > 1 && (fold->nout == 0 || fold->stream)) {
        struct fold first = *fold; /* no output, or none that stays in the cache */
        first.out[0] = room;
        first.nout = 1;
        first.stream = false;
        fold_out(exec, &first, bytes);
        value = room;
        for (uint32_t k = 0; k < fold->nout; k++) {
            exec->kernels->copy(fold->out[k], room, bytes, true);
        }
    } else {
        fold_out(exec, fold, bytes);
    }
    for (uint32_t k = 0; k < slots->count; k++) {
        exec->kernels->copy(slots->at[k], value, bytes, false);
    }
}

/* To the next piece. */
static void advance(struct fold *fold, struct slots *slots, size_t bytes)
{
    for (uint32_t k = 0; k < fold->nin; k++) {
        fold->in[k] = (const uint8_t *)fold->in[k] + bytes;
    }
    for (uint32_t k = 0; k < fold->nout; k++) {
        fold->out[k] = (uint8_t *)fold->out[k] + bytes;
    }
    for (uint32_t k = 0; k < slots->count; k++) {
        slots->at[k] = (uint8_t *)slots->at[k] + bytes;
    }
}

static void run_fold(const struct exec *exec, struct fold *fold, struct slots *slots, size_t bytes)
{
    if (fold->nin == 1) {
        drop_same(fold);
    }
    uint32_t places = fold->nout + slots->count;
    if (places == 0 || bytes == 0) {
        return;
    }
    fold->stream = fold->stream && !overlaps(fold);
    bool once = fold->nin == 1 ? places == 1 : slots->count == 0;
    if (once && slots->count == 0) {
        fold_out(exec, fold, bytes);
        return;
    }
    for (; !once && bytes > PIECE; bytes -= PIECE) {
        run_piece(exec, fold, slots, PIECE);
        advance(fold, slots, PIECE);
    }
    run_piece(exec, fold, slots, bytes);
}

static void log_message(struct exec *exec, const struct lwire *wire, uint64_t number, size_t bytes)
{
    MEM_GROW(exec->log, exec->nlog, exec->log_cap);
    exec->log[exec->nlog++] =
        (struct msg_log){exec->spec.me, wire->peer, wire->channel, number, bytes};
}

/* Messages out, then slots free. */
static void settle(struct exec *exec, const struct lstep *group, uint32_t count, uint64_t pass)
{
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        if (step->kind == STEP_SEND) {
            struct wire *wire = exec->wires[step->wire];
            size_t bytes = step_bytes(exec, step, pass);
            if (exec->spec.keep_log) {
                log_message(exec, &exec->lwires[step->wire], wire->next, bytes);
            }
            exec->transport->post(wire, bytes, (struct pull_ref){step->src_buf, step->src});
        } else if (step->kind == STEP_RECV || step->kind == STEP_RECV_REDUCE) {
            exec->transport->release(exec->wires[step->wire]);
        }
    }
}

/* ---- the trace ---- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void trace_group(struct exec *exec, struct lane *lane, uint64_t begin_ns)
{
    uint64_t end_ns = now_ns();
    uint64_t came_ns = lane->blocked ? lane->came_ns : begin_ns; /* no wait: none is shown */
    exec->ran[exec->nran++] = (struct ran){
        (uint32_t)(lane - exec->lanes), lane->pc, lane->pass, came_ns, begin_ns, end_ns};
    lane->came_ns = end_ns;
    lane->blocked = false;
}

/* Runs the group at the lane's pc if it can run now. */
static bool run_group(struct exec *exec, struct lane *lane)
{
    const struct lstep *group = &exec->steps[lane->pc];
    uint32_t count = 1;
    while (group[count - 1].flags & LS_CHAIN) {
        count++;
    }
    if ((group->nwaits > 0 && !waits_hold(exec, group, lane->pass)) ||
        !gather(exec, group, count, lane->pass)) {
        lane->blocked = true;
        return false;
    }
    uint64_t begin_ns = exec->ran ? now_ns() : 0;
    struct fold fold;
    struct slots slots;
    size_t off = 0;
    for (uint32_t i = 0; i < group->nchunks; i++) {
        size_t bytes = make_fold(exec, group, count, i, lane->pass, off, &fold, &slots);
        run_fold(exec, &fold, &slots, bytes);
        off += bytes;
    }
    settle(exec, group, count, lane->pass);
    if (exec->ran) trace_group(exec, lane, begin_ns);
    lane->pc += count;
    return true;
}

/* ---- running ---- */

void exec_start(struct exec *exec)
{
    exec->running = exec->nlanes;
    exec->nran = 0;
    uint64_t start_ns = exec->ran ? now_ns() : 0;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        struct lane *lane = &exec->lanes[i];
        lane->pc = lane->start;
        lane->pass = 0;
        lane->came_ns = start_ns;
        lane->blocked = true; /* lanes start in turns */
        if (lane->start == lane->end) {
            lane->pass = exec->passes;
            exec->running--;
        }
    }
    for (uint32_t w = 0; w < exec->nwires; w++) {
        exec->wire_base[w] = exec->wires[w]->next;
    }
}

static void run_lane(struct exec *exec, struct lane *lane)
{
    while (lane->pass < exec->passes) {
        if (!run_group(exec, lane)) {
            return;
        }
        exec->moved = true;
        if (lane->pc == lane->end) {
            lane->pass++;
            rank_tick(exec->rank);
            if (lane->pass < exec->passes) {
                lane->pc = lane->start;
            } else {
                exec->running--;
            }
        }
    }
}

/* Sources that peers read in place are ours again only when they have been read. */
static bool all_released(const struct exec *exec)
{
    for (uint32_t w = 0; w < exec->nwires; w++) {
        struct wire *wire = exec->wires[w];
        if (exec->lwires[w].send && wire->mode == WIRE_PULL && wire->next > 0 &&
            !exec->transport->released(wire, wire->next - 1)) {
            return false;
        }
    }
    return true;
}

int exec_progress(struct exec *exec)
{
    exec->moved = false;
    if (exec->transport->poll) {
        exec->transport->poll(exec->transport_state);
    }
    for (uint32_t i = 0; exec->running > 0 && i < exec->nlanes; i++) {
        run_lane(exec, &exec->lanes[i]);
    }
    if (exec->moved) {
        rank_tick(exec->rank);
    }
    return exec->running == 0 && all_released(exec);
}

/* Tells the watcher where the first unfinished lane stands. */
static void report(struct exec *exec)
{
    struct rank_status *status = exec->rank->status;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        const struct lane *lane = &exec->lanes[i];
        if (lane->pass >= exec->passes) {
            continue;
        }
        uint32_t prog = exec->sched->prog_of[exec->sched->relative ? 0 : exec->spec.me];
        const struct lprog *lprog = &exec->spec.linked->progs[prog];
        uint32_t record = lane->pc;
        const struct lstep *step = &exec->steps[record];
        bool wired = step_info((enum step_kind)step->kind)->sends ||
                     step_info((enum step_kind)step->kind)->receives;
        uint32_t peer = wired ? exec->lwires[step->wire].peer : 0;
        int32_t world = (int32_t)(exec->spec.group ? exec->spec.group[peer] : peer);
        atomic_store_explicit(&status->wait_step, lprog->source[record], memory_order_relaxed);
        atomic_store_explicit(&status->wait_kind, step->kind, memory_order_relaxed);
        atomic_store_explicit(&status->wait_pass, lane->pass, memory_order_relaxed);
        atomic_store_explicit(&status->wait_peer, wired ? world : -1, memory_order_relaxed);
        atomic_store_explicit(&status->waiting, 1, memory_order_release);
        return;
    }
}

void exec_run(struct exec *exec)
{
    exec_start(exec);
    bool reported = false;
    for (struct waiter waiter = {0}; !exec_progress(exec); waiter_pause(&waiter, exec->rank)) {
        if (exec->moved) {
            waiter = (struct waiter){0};
        } else if (waiter_is_slow(&waiter)) {
            report(exec);
            reported = true;
        }
    }
    if (reported) {
        atomic_store_explicit(&exec->rank->status->waiting, 0, memory_order_release);
    }
}

/* ---- opening ---- */

enum {
    STAGED_SLICE = 128 << 10,
    LL_SLICE = 8 << 10,
    PULL_SLICE = 1 << 20,
    SLOT_BUDGET = 32 << 20, /* bytes of slots per rank */
    STAGED_DEPTH = 4,
    LL_DEPTH = 8,
    PULL_DEPTH = 6,
    STREAM_BYTES = 8 << 20, /* buffers beyond this do not stay in a cache */
};

static enum wire_mode mode_of(const struct linked *linked)
{
    return linked->opts.mode;
}

static uint32_t default_depth(const struct linked *linked)
{
    static const uint32_t depths[WIRE_MODE_COUNT] = {STAGED_DEPTH, PULL_DEPTH, PULL_DEPTH,
                                                     LL_DEPTH};
    uint32_t depth = depths[mode_of(linked)];
    return depth > linked->least_depth ? depth : linked->least_depth;
}

/* The most chunks of one message between any ranks: both ends of a wire must come to the same. */
static uint32_t longest_span(const struct linked *linked)
{
    uint32_t most = 1;
    for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
        const struct lprog *prog = &linked->progs[p];
        for (uint32_t r = 0; r < prog->nsteps; r++) {
            most = prog->steps[r].nchunks > most ? prog->steps[r].nchunks : most;
        }
    }
    return most;
}

size_t exec_slice(const struct linked *linked)
{
    static const size_t slices[WIRE_MODE_COUNT] = {STAGED_SLICE, PULL_SLICE, PULL_SLICE, LL_SLICE};
    size_t most = slices[mode_of(linked)];
    if (mode_of(linked) == WIRE_STAGED) { /* all slots of a rank within the budget */
        uint32_t sends = 0;
        for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
            uint32_t here = 0;
            for (uint32_t w = 0; w < linked->progs[p].nwires; w++) {
                here += linked->progs[p].wires[w].send;
            }
            sends = here > sends ? here : sends;
        }
        size_t share =
            SLOT_BUDGET / default_depth(linked) / (sends ? sends : 1) / longest_span(linked);
        most = share < most ? share / LAYOUT_GRANULE * LAYOUT_GRANULE : most;
    }
    return most > LAYOUT_GRANULE ? most : LAYOUT_GRANULE;
}

/* A buffer as `rank` has it. */
static struct layout layout_of(const struct exec *exec, uint32_t buf, const size_t *offsets)
{
    struct layout layout = exec->most;
    layout.nblocks = coll_blocks(exec->sched->coll, (enum buf)buf, exec->sched->nranks);
    layout.offsets = offsets;
    return layout;
}

/* Where the chunks of uneven blocks lie in the memory of group rank `rank`: input, then output. */
static struct range *their_chunks(const struct exec *exec, uint32_t rank)
{
    struct range *table = mem_calloc(2 * (size_t)exec->nchunks[BUF_IN], sizeof *table), *at = table;
    for (uint32_t buf = BUF_IN; buf <= BUF_OUT; buf++) {
        size_t *offsets = traffic_offsets(exec->spec.traffic, (enum buf)buf, rank, exec->esize);
        struct layout layout = layout_of(exec, buf, offsets);
        for (uint32_t c = 0; c < exec->nchunks[buf]; c++) {
            *at++ = chunk_whole(&layout, c / layout.nparts, c % layout.nparts);
        }
        free(offsets);
    }
    return table;
}

/* Chunk tables: where each chunk lies. Scratch chunks are as long as the buffer's, each with room
 * for one slice. */
static void make_chunks(struct exec *exec, uint32_t buf, const struct layout *layout)
{
    exec->nchunks[buf] = layout->nblocks * layout->nparts;
    exec->chunks[buf] = mem_calloc(exec->nchunks[buf], sizeof **exec->chunks);
    size_t room = (layout_longest(&exec->most) + LAYOUT_GRANULE - 1) / LAYOUT_GRANULE;
    for (uint32_t c = 0; c < exec->nchunks[buf]; c++) {
        struct range *chunk = &exec->chunks[buf][c];
        *chunk = chunk_whole(layout, c / layout->nparts, c % layout->nparts);
        if (buf == BUF_SCRATCH) {
            chunk->off = c * room * LAYOUT_GRANULE;
        }
    }
    if (buf == BUF_SCRATCH) {
        exec->plane_bytes = exec->nchunks[buf] * room * LAYOUT_GRANULE;
        exec->scratch_bytes = exec->sched->nplanes * exec->plane_bytes;
    }
}

static void make_layouts(struct exec *exec)
{
    const struct exec_spec *spec = &exec->spec;
    const struct traffic *traffic = spec->traffic;
    size_t slice_bytes = spec->slice_bytes ? spec->slice_bytes : exec_slice(spec->linked);
    exec->most = (struct layout){
        .nblocks = 1,
        .nparts = exec->sched->nparts,
        .granule = LAYOUT_GRANULE,
        .block_bytes = (traffic ? traffic_longest(traffic) : spec->block_count) * exec->esize,
        .slice_bytes = (slice_bytes + LAYOUT_GRANULE - 1) / LAYOUT_GRANULE * LAYOUT_GRANULE};
    for (uint32_t buf = BUF_IN; buf <= BUF_SCRATCH; buf++) {
        if (traffic && buf < BUF_SCRATCH) {
            exec->offsets[buf] = traffic_offsets(traffic, (enum buf)buf, spec->me, exec->esize);
        }
        struct layout layout = layout_of(exec, buf, buf < BUF_SCRATCH ? exec->offsets[buf] : NULL);
        make_chunks(exec, buf, &layout);
        if (buf < BUF_SCRATCH) exec->layout[buf] = layout;
    }
    if (traffic) {
        exec->theirs = mem_calloc(exec->sched->nranks, sizeof *exec->theirs);
        for (uint32_t r = 0; r < exec->sched->nranks; r++)
            exec->theirs[r] = their_chunks(exec, r);
    }
    exec->passes = layout_passes(&exec->most);
    exec->stream =
        layout_bytes(&exec->layout[0]) + layout_bytes(&exec->layout[1]) > 2 * STREAM_BYTES;
}

/* In place the smaller buffer lies in the larger: see coll_alias. */
static void make_buffers(struct exec *exec)
{
    const struct exec_spec *spec = &exec->spec;
    const struct coll *coll = exec->sched->coll;
    uint8_t *in = spec->in, *out = spec->out;
    size_t own_block = spec->me * spec->block_count * exec->esize;
    if (spec->linked->opts.in_place) {
        if (coll->in_per_rank && !coll->out_per_rank) {
            out = in + own_block;
        } else {
            in = out + (coll->out_per_rank && !coll->in_per_rank ? own_block : 0);
        }
    }
    exec->own.base[BUF_IN] = in;
    exec->own.base[BUF_OUT] = out;
    for (int buf = 0; buf < 2; buf++) {
        exec->own.bytes[buf] = layout_bytes(&exec->layout[buf]);
    }
    exec->own.bytes[BUF_SCRATCH] = exec->scratch_bytes;
}

/* This rank's copy of the program, with absolute peers and chunks. */
static void resolve(struct exec *exec)
{
    const struct sched *sched = exec->sched;
    uint32_t me = exec->spec.me, p = sched->prog_of[sched->relative ? 0 : me];
    const struct lprog *prog = &exec->spec.linked->progs[p];
    exec->nwires = prog->nwires;
    exec->lwires = mem_calloc(prog->nwires, sizeof *exec->lwires);
    for (uint32_t w = 0; w < prog->nwires; w++) {
        exec->lwires[w] = prog->wires[w];
        exec->lwires[w].peer = sched_peer(sched, me, prog->wires[w].peer);
    }
    exec->waits = prog->waits;
    exec->nsteps = prog->nsteps;
    exec->steps = mem_calloc(prog->nsteps, sizeof *exec->steps);
    for (uint32_t r = 0; r < prog->nsteps; r++) {
        struct lstep *step = &exec->steps[r];
        *step = prog->steps[r];
        uint32_t reader = step->kind == STEP_SEND ? exec->lwires[step->wire].peer : me;
        step->src = sched_ref(sched, me, (struct ref){step->src_buf, step->src}).chunk;
        step->dst = sched_ref(sched, reader, (struct ref){step->dst_buf, step->dst}).chunk;
        if (step->kind == STEP_REDUCE) {
            step->wire = sched_ref(sched, me, (struct ref){step->msg, step->wire}).chunk;
        }
    }
    exec->nlanes = prog->nlanes;
    exec->lanes = mem_calloc(prog->nlanes, sizeof *exec->lanes);
    for (uint32_t i = 0; i < prog->nlanes; i++) {
        exec->lanes[i].start = prog->lane_start[i];
        exec->lanes[i].end = prog->lane_start[i + 1];
    }
}

/* The longest message: as many chunks as any rank sends at once times the longest slice. */
static size_t longest_message(const struct exec *exec)
{
    return longest_span(exec->spec.linked) * layout_longest(&exec->most);
}

static int open_wires(struct exec *exec, struct err *err)
{
    const struct exec_spec *spec = &exec->spec;
    uint32_t depth = spec->depth ? spec->depth : default_depth(spec->linked);
    depth = depth > spec->linked->least_depth ? depth : spec->linked->least_depth;
    struct wire_spec wires = {.rank = spec->rank,
                              .group = spec->group,
                              .ngroup = exec->sched->nranks,
                              .me = spec->me,
                              .tag = spec->tag,
                              .wires = exec->lwires,
                              .nwires = exec->nwires,
                              .depth = depth,
                              .slot_bytes = longest_message(exec),
                              .own = exec->own};
    if (!spec->shared) {
        wires.own.base[BUF_IN] = wires.own.base[BUF_OUT] = NULL;
    }
    exec->wires = mem_calloc(exec->nwires, sizeof *exec->wires);
    exec->wire_base = mem_calloc(exec->nwires, sizeof *exec->wire_base);
    exec->peers = mem_calloc(exec->sched->nranks, sizeof *exec->peers);
    return spec->transport->open(&wires, exec->wires, exec->peers, &exec->transport_state, err);
}

struct exec *exec_open(const struct exec_spec *spec, struct err *err)
{
    if (mode_of(spec->linked) == WIRE_PULL && !spec->shared) {
        err_add(err, ERR_USAGE, "pull wires need buffers that peers can map; these are private");
        return NULL;
    }
    const struct coll *coll = spec->linked->sched->coll;
    assert(coll->uneven == (spec->traffic != NULL));
    assert(coll_in_place(coll) || !spec->linked->opts.in_place);
    struct exec *exec = mem_calloc(1, sizeof *exec);
    exec->spec = *spec;
    exec->sched = spec->linked->sched;
    exec->rank = spec->rank;
    exec->transport = spec->transport;
    exec->esize = dtype_bytes(spec->dtype);
    exec->kernels = kernels_get(err);
    if (!exec->kernels) {
        goto fail;
    }
    make_layouts(exec);
    make_buffers(exec);
    resolve(exec);
    if (spec->keep_trace) exec->ran = mem_calloc(exec->nsteps * exec->passes, sizeof *exec->ran);
    exec->own.base[BUF_SCRATCH] = exec->own.base[BUF_OUT]; /* of no bytes, if it stays so */
    if (exec->scratch_bytes > 0) {
        exec->own.base[BUF_SCRATCH] = rank_alloc(spec->rank, exec->scratch_bytes, err);
        if (!exec->own.base[BUF_SCRATCH]) {
            goto fail;
        }
    }
    if (open_wires(exec, err)) {
        goto fail;
    }
    return exec;
fail:
    exec_close(exec);
    return NULL;
}

void exec_close(struct exec *exec)
{
    if (!exec) {
        return;
    }
    if (exec->transport_state) {
        exec->transport->close(exec->transport_state);
    }
    for (int buf = 0; buf < 3; buf++) {
        free(exec->chunks[buf]);
    }
    for (uint32_t r = 0; exec->theirs && r < exec->sched->nranks; r++) {
        free(exec->theirs[r]);
    }
    free(exec->theirs);
    free(exec->offsets[BUF_IN]);
    free(exec->offsets[BUF_OUT]);
    free(exec->steps);
    free(exec->lanes);
    free(exec->lwires);
    free(exec->wires);
    free(exec->wire_base);
    free(exec->peers);
    free(exec->log);
    free(exec->ran);
    free(exec);
}

/* ---- counts ---- */

uint64_t exec_passes(const struct exec *exec)
{
    return exec->passes;
}

uint64_t exec_steps(const struct exec *exec)
{
    return exec->nsteps * exec->passes;
}

struct exec_bytes exec_count_bytes(const struct exec *exec)
{
    struct exec_bytes sum = {0, 0, 0};
    for (uint64_t pass = 0; pass < exec->passes; pass++) {
        for (uint32_t r = 0; r < exec->nsteps; r++) {
            const struct lstep *step = &exec->steps[r];
            const struct step_info *info = step_info((enum step_kind)step->kind);
            bool wired = info->sends || info->receives;
            unsigned mode = wired ? exec->lwires[step->wire].mode : 0;
            size_t bytes = step_bytes(exec, step, pass);
            bool reads = info->reads_src && !(step->flags & LS_ACC);
            bool pushed = info->receives && mode == WIRE_PUSH;
            bool pulled = info->sends && mode == WIRE_PULL;
            uint64_t inputs =
                (uint64_t)(reads && !pulled) + (info->receives && !pushed) + info->reads_src2;
            uint64_t outputs = (uint64_t)(info->writes && !pushed && !(step->flags & LS_NOSTORE)) +
                               (info->sends && !pulled);
            sum.read += inputs * bytes;
            sum.written += outputs * bytes;
            sum.sent += info->sends ? bytes : 0;
        }
    }
    return sum;
}

const struct msg_log *exec_log(const struct exec *exec, size_t *count)
{
    *count = exec->nlog;
    return exec->log;
}

/* The record `r` of a group that ran. */
static struct trace_event event_of(const struct exec *exec, const struct ran *ran, uint32_t r)
{
    const struct lstep *step = &exec->steps[r];
    const struct step_info *info = step_info((enum step_kind)step->kind);
    const struct linked *linked = exec->spec.linked;
    uint32_t p = exec->sched->prog_of[exec->sched->relative ? 0 : exec->spec.me];
    struct trace_event event = {
        .rank = exec->spec.me,
        .lane = ran->lane,
        .step = linked->progs[p].source[r],
        .record = r,
        .group = ran->pc,
        .kind = step->kind,
        .chunk = info->sends ? step->src : step->dst,
        .nchunks = step->nchunks,
        .pass = ran->pass,
        .bytes = step_bytes(exec, step, ran->pass),
        .came = ran->came_ns,
        .begin = ran->begin_ns,
        .end = ran->end_ns,
    };
    if (info->sends || info->receives) {
        const struct lwire *wire = &exec->lwires[step->wire];
        event.peer = wire->peer;
        event.channel = wire->channel;
        event.number = ran->pass * wire->nmsgs + step->msg;
    }
    return event;
}

void exec_trace(const struct exec *exec, struct trace *trace)
{
    for (size_t i = 0; i < exec->nran; i++) {
        uint32_t r = exec->ran[i].pc;
        do {
            struct trace_event event = event_of(exec, &exec->ran[i], r);
            trace_add(trace, &event);
        } while (exec->steps[r++].flags & LS_CHAIN);
    }
}
