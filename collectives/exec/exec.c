/* SPDX-License-Identifier: Apache-2.0
 * The executor: what a handle is whatever runs it - the program of one rank with absolute peers
 * and chunks, the places of all chunks, wires, counts. The engines run it. See exec.h, engine.h. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"

/* ---- running ---- */

uint32_t exec_most_lanes(const struct exec *exec)
{
    uint32_t lanes = 0;
    for (uint32_t p = 0; p < exec->sched->nprogs; p++) {
        uint32_t here = exec->spec.linked->progs[p].nlanes;
        lanes = here > lanes ? here : lanes;
    }
    return lanes;
}

void exec_log_add(struct exec *exec, const struct lwire *wire, uint64_t number, size_t bytes)
{
    MEM_GROW(exec->log, exec->nlog, exec->log_cap);
    exec->log[exec->nlog++] =
        (struct msg_log){exec->spec.me, wire->peer, wire->channel, number, bytes};
}

void exec_waits(struct exec *exec, uint32_t record, uint64_t pass)
{
    struct rank_status *status = exec->rank->status;
    uint32_t prog = exec->sched->prog_of[exec->sched->relative ? 0 : exec->spec.me];
    const struct lstep *step = &exec->steps[record];
    const struct step_info *info = step_info((enum step_kind)step->kind);
    bool wired = info->sends || info->receives;
    uint32_t peer = wired ? exec->lwires[step->wire].peer : 0;
    int32_t world = (int32_t)(exec->spec.group ? exec->spec.group[peer] : peer);
    uint32_t source = exec->spec.linked->progs[prog].source[record];
    atomic_store_explicit(&status->wait_step, source, memory_order_relaxed);
    atomic_store_explicit(&status->wait_kind, step->kind, memory_order_relaxed);
    atomic_store_explicit(&status->wait_pass, pass, memory_order_relaxed);
    atomic_store_explicit(&status->wait_peer, wired ? world : -1, memory_order_relaxed);
    atomic_store_explicit(&status->waiting, 1, memory_order_release);
}

void exec_start(struct exec *exec)
{
    exec->started++;
    exec->transport->engine->start(exec);
}

bool exec_queues(const struct exec *exec)
{
    return exec->transport->engine == &gpu_engine;
}

int exec_progress(struct exec *exec)
{
    return exec->transport->engine->progress(exec);
}

void exec_run(struct exec *exec)
{
    exec_start(exec);
    exec_wait(exec);
}

void exec_wait(struct exec *exec)
{
    bool reported = false;
    const struct waiter fresh = {.sleep = exec->transport->wait, .with = exec->transport_state};
    for (struct waiter waiter = fresh; !exec_progress(exec); waiter_pause(&waiter, exec->rank)) {
        if (exec->moved) {
            waiter = fresh;
        } else if (waiter_is_slow(&waiter)) {
            exec->transport->engine->report(exec);
            reported = true;
        }
        waiter.sleep = exec->flying ? NULL : fresh.sleep; /* no message tells that a GPU is done */
    }
    if (reported) {
        atomic_store_explicit(&exec->rank->status->waiting, 0, memory_order_release);
    }
}

/* ---- opening ---- */

static enum wire_mode mode_of(const struct linked *linked)
{
    return linked->opts.mode;
}

static uint32_t default_depth(const struct linked *linked, const struct transport *transport)
{
    uint32_t depth = transport->suits[mode_of(linked)].depth;
    return depth > linked->least_depth ? depth : linked->least_depth;
}

static size_t round_up(size_t bytes, size_t granule)
{
    return (bytes + granule - 1) / granule * granule;
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

size_t exec_slice(const struct linked *linked, const struct transport *transport)
{
    size_t most = transport->suits[mode_of(linked)].slice_bytes, granule = transport->granule;
    if (mode_of(linked) == WIRE_STAGED) { /* all slots of a rank within the budget */
        uint32_t sends = 0;
        for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
            uint32_t here = 0; /* devices have the slots at the receiver */
            for (uint32_t w = 0; w < linked->progs[p].nwires; w++) {
                here += linked->progs[p].wires[w].send != transport->device;
            }
            sends = here > sends ? here : sends;
        }
        size_t share = transport->slot_budget / default_depth(linked, transport) /
                       (sends ? sends : 1) / longest_span(linked);
        most = share < most ? share / granule * granule : most;
    }
    return most > granule ? most : granule;
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
    size_t room = round_up(layout_longest(&exec->most), layout->granule);
    for (uint32_t c = 0; c < exec->nchunks[buf]; c++) {
        struct range *chunk = &exec->chunks[buf][c];
        *chunk = chunk_whole(layout, c / layout->nparts, c % layout->nparts);
        if (buf == BUF_SCRATCH) {
            chunk->off = c * room;
        }
    }
    if (buf == BUF_SCRATCH) {
        exec->plane_bytes = exec->nchunks[buf] * room;
        exec->scratch_bytes = exec->sched->nplanes * exec->plane_bytes;
    }
}

static void make_layouts(struct exec *exec)
{
    const struct exec_spec *spec = &exec->spec;
    const struct traffic *traffic = spec->traffic;
    uint32_t granule = spec->transport->granule;
    size_t slice_bytes =
        spec->slice_bytes ? spec->slice_bytes : exec_slice(spec->linked, spec->transport);
    exec->most = (struct layout){
        .nblocks = 1,
        .nparts = exec->sched->nparts,
        .granule = granule,
        .block_bytes = (traffic ? traffic_longest(traffic) : spec->block_count) * exec->esize,
        .slice_bytes = round_up(slice_bytes, granule)};
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
    exec->nwaits = prog->nwaits;
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
    exec->lane_start = prog->lane_start;
}

/* The longest message: as many chunks as any rank sends at once times the longest slice. */
static size_t longest_message(const struct exec *exec)
{
    return longest_span(exec->spec.linked) *
           round_up(layout_longest(&exec->most), exec->transport->message_align);
}

/* Whether the buffers lie on a GPU of which the transport knows nothing: nobody can map them. */
static bool is_foreign(const struct exec_spec *spec)
{
    return spec->rank->device && !spec->transport->device;
}

static int open_wires(struct exec *exec, struct err *err)
{
    const struct exec_spec *spec = &exec->spec;
    uint32_t depth = spec->depth ? spec->depth : default_depth(spec->linked, spec->transport);
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
    if (!spec->shared || is_foreign(spec)) {
        wires.own.base[BUF_IN] = wires.own.base[BUF_OUT] = NULL;
    }
    if (is_foreign(spec)) wires.own.base[BUF_SCRATCH] = NULL;
    exec->wires = mem_calloc(exec->nwires, sizeof *exec->wires);
    exec->peers = mem_calloc(exec->sched->nranks, sizeof *exec->peers);
    return spec->transport->open(&wires, exec->wires, exec->peers, &exec->transport_state, err);
}

struct exec *exec_open(const struct exec_spec *spec, struct err *err)
{
    if (spec->linked->sched->nagents) {
        err_add(err, ERR_USAGE,
                "%s has %u agent(s): programs inside switches, which no executor here runs; it "
                "can be simulated",
                spec->linked->sched->name, spec->linked->sched->nagents);
        return NULL;
    }
    if (mode_of(spec->linked) == WIRE_PULL && !spec->shared) {
        err_add(err, ERR_USAGE, "pull wires need buffers that peers can map; these are private");
        return NULL;
    }
    if (is_foreign(spec) && mode_of(spec->linked) != WIRE_STAGED) {
        err_add(err, ERR_USAGE, "buffers on GPUs go over %s by staged wires alone",
                spec->transport->name);
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
    exec->observed = spec->keep_log;
    make_layouts(exec);
    make_buffers(exec);
    resolve(exec);
    if (spec->keep_trace) exec->ran = mem_calloc(exec->nsteps * exec->passes, sizeof *exec->ran);
    exec->own.base[BUF_SCRATCH] = exec->own.base[BUF_OUT]; /* of no bytes, if it stays so */
    if (exec->scratch_bytes > 0) {
        exec->own.base[BUF_SCRATCH] =
            is_foreign(spec) ? device_alloc(spec->rank, exec->scratch_bytes, err)
                             : spec->transport->alloc(spec->rank, exec->scratch_bytes, err);
        if (!exec->own.base[BUF_SCRATCH]) {
            goto fail;
        }
    }
    if (open_wires(exec, err) || spec->transport->engine->open(exec, err)) {
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
    exec->transport->engine->close(exec);
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
    free(exec->lwires);
    free(exec->wires);
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

/* Own memory at chunk i of what a record names. */
static const uint8_t *named_at(const struct exec *exec, uint32_t buf, uint32_t chunk, uint32_t i,
                               uint64_t pass)
{
    return (const uint8_t *)exec->own.base[kind_of(buf)] +
           exec_range(exec, buf, chunk, i, pass).off;
}

/* Inputs of one chunk of a group: how many, and where the last one lies if in the own memory. */
static uint64_t count_inputs(const struct exec *exec, const struct lstep *group, uint32_t count,
                             uint32_t i, uint64_t pass, const uint8_t **own)
{
    uint64_t inputs = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        if (info->reads_src && !(step->flags & LS_ACC)) {
            inputs++;
            *own = named_at(exec, step->src_buf, step->src, i, pass);
        }
        if (info->receives) { /* pushed: it is already where it belongs */
            bool pushed = exec->lwires[step->wire].mode == WIRE_PUSH;
            inputs++;
            *own = pushed ? named_at(exec, step->dst_buf, step->dst, i, pass) : NULL;
        }
        inputs += info->reads_src2;
    }
    return inputs;
}

/* Its outputs. A pulled message has no place of its own; a copy onto itself, at `own`, is none. */
static uint64_t count_outputs(const struct exec *exec, const struct lstep *group, uint32_t count,
                              uint32_t i, uint64_t pass, const uint8_t *own)
{
    uint64_t outputs = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        if (info->sends) outputs += exec->lwires[step->wire].mode != WIRE_PULL;
        if (info->writes && !(step->flags & LS_NOSTORE))
            outputs += named_at(exec, step->dst_buf, step->dst, i, pass) != own;
    }
    return outputs;
}

static void count_group(const struct exec *exec, const struct lstep *group, uint32_t count,
                        uint64_t pass, struct exec_bytes *sum)
{
    const struct lstep *last = &group[count - 1];
    bool source = last->kind == STEP_SEND;
    for (uint32_t i = 0; i < group->nchunks; i++) {
        const uint8_t *own = NULL;
        uint64_t inputs = count_inputs(exec, group, count, i, pass, &own);
        uint64_t outputs = count_outputs(exec, group, count, i, pass, inputs == 1 ? own : NULL);
        size_t bytes = exec_range(exec, source ? last->src_buf : last->dst_buf,
                                  source ? last->src : last->dst, i, pass)
                           .len;
        sum->read += outputs ? inputs * bytes : 0; /* read only for somebody */
        sum->written += outputs * bytes;
    }
    for (uint32_t k = 0; k < count; k++)
        sum->sent += group[k].kind == STEP_SEND ? exec_step_bytes(exec, &group[k], pass) : 0;
}

struct exec_bytes exec_count_bytes(const struct exec *exec)
{
    struct exec_bytes sum = {0, 0, 0};
    for (uint64_t pass = 0; pass < exec->passes; pass++) {
        for (uint32_t r = 0, count; r < exec->nsteps; r += count) {
            for (count = 1; exec->steps[r + count - 1].flags & LS_CHAIN;)
                count++;
            count_group(exec, &exec->steps[r], count, pass, &sum);
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
        .bytes = exec_step_bytes(exec, step, ran->pass),
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
