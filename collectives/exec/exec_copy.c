/* SPDX-License-Identifier: Apache-2.0
 * The engine that leaves moving to copy engines: the rank's thread walks through the lanes and puts
 * what each group does into the lane's stream, without waiting for any of it:
 *
 *      wait for words       room on the wires it sends on, messages on those it receives from,
 *                           hazards (the same words that the interpreter kernel polls)
 *      fold, copies         a kernel where something is reduced, else and to peers copy engines
 *      write words          messages posted and released, how far the lane is
 *
 * The device orders itself by the words, so lanes and ranks need not be issued in any order. Few
 * groups of a lane are under way at a time: streams hold a limited number of operations. Lanes need
 * hardware queues of their own, as one that waits blocks what shares its queue. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"

enum {
    UNDER_WAY = 32, /* groups of a lane between two looks at what is done */
    MOST_LANES = 31 /* CUDA has up to 32 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) */
};

struct lane {
    void *stream, *event;
    uint8_t *bounce; /* device: a reduced value that is only sent */
    uint32_t pc, start, end;
    uint64_t pass;
    uint32_t issued; /* groups since the event was recorded */
    bool held;       /* until the event has come */
};

struct state {
    struct lane *lanes;
    uint32_t running;      /* lanes not issued to their end */
    void *began;           /* event: what was queued before the operation */
    uint64_t *progress;    /* pinned, per lane: passes << 32 | records done in the next one */
    uint64_t *progress_at; /* the device's address of it */
    uint64_t operations;   /* started before this one */
};

static struct state *state_of(const struct exec *exec)
{
    return exec->engine_state;
}

static const struct gpu *gpu_of(const struct exec *exec)
{
    return exec->rank->device->gpu;
}

static struct device_wire *wire_of(const struct exec *exec, uint32_t wire)
{
    return (struct device_wire *)(void *)exec->wires[wire];
}

static void must(const struct exec *exec, int error)
{
    device_must(exec->rank, error, "issuing the collective");
}

/* Passes before this operation's. */
static uint64_t first_pass(const struct exec *exec)
{
    return state_of(exec)->operations * exec->passes;
}

static uint64_t message(const struct exec *exec, uint32_t wire, uint64_t pass, uint32_t msg)
{
    return (first_pass(exec) + pass) * exec->lwires[wire].nmsgs + msg;
}

/* ---- waiting, in the stream ---- */

static void await_hazard(struct exec *exec, struct lane *lane, const struct lwait *wait)
{
    const struct gpu *gpu = gpu_of(exec);
    if (lane->pass < wait->distance) return;
    uint64_t pass = lane->pass - wait->distance;
    if (wait->kind == LWAIT_RELEASE) {
        uint64_t number = message(exec, wait->index, pass, wait->number);
        must(exec,
             gpu->stream_wait(lane->stream, wire_of(exec, wait->index)->gpu.released, number + 1));
    } else {
        uint64_t records = wait->number - state_of(exec)->lanes[wait->index].start + 1;
        must(exec, gpu->stream_wait(lane->stream, state_of(exec)->progress_at + wait->index,
                                    (first_pass(exec) + pass) << 32 | records));
    }
}

static void await_record(struct exec *exec, struct lane *lane, const struct lstep *step)
{
    const struct gpu *gpu = gpu_of(exec);
    const struct step_info *info = step_info((enum step_kind)step->kind);
    if (!info->sends && !info->receives) return;
    const struct gpu_wire *wire = &wire_of(exec, step->wire)->gpu;
    uint64_t number = message(exec, step->wire, lane->pass, step->msg);
    if (info->receives) {
        must(exec, gpu->stream_wait(lane->stream, wire->posted, number + 1));
    } else if (number >= wire->depth) {
        must(exec, gpu->stream_wait(lane->stream, wire->released, number - wire->depth + 1));
    }
}

/* ---- one chunk of a group ---- */

/* A fold into the own memory, and copies of its value to peers. */
struct work {
    struct fold fold;
    void *away[KERNEL_MAX_OUT];
    int device[KERNEL_MAX_OUT]; /* of the peer; -1: pinned memory of the host */
    uint32_t naway;
    size_t bytes;
    bool from_host; /* an input arrived in pinned memory of the host */
};

static uint8_t *slot(const struct exec *exec, const struct lane *lane, const struct lstep *step,
                     size_t off)
{
    const struct gpu_wire *wire = &wire_of(exec, step->wire)->gpu;
    uint64_t number = message(exec, step->wire, lane->pass, step->msg);
    return wire->slots + number % wire->depth * wire->slot_stride + off;
}

static uint8_t *own_at(const struct exec *exec, uint32_t buf, struct range range)
{
    return (uint8_t *)exec->own.base[kind_of(buf)] + range.off;
}

static void add_record(const struct exec *exec, const struct lane *lane, const struct lstep *step,
                       uint32_t i, size_t off, struct work *work)
{
    const struct step_info *info = step_info((enum step_kind)step->kind);
    struct fold *fold = &work->fold;
    if (info->reads_src && !(step->flags & LS_ACC)) {
        struct range src = exec_range(exec, step->src_buf, step->src, i, lane->pass);
        fold->in[fold->nin++] = own_at(exec, step->src_buf, src);
        work->bytes = src.len;
    }
    if (info->receives) {
        fold->in[fold->nin++] = slot(exec, lane, step, off);
        work->from_host |= wire_of(exec, step->wire)->peer_device < 0;
    } else if (info->reads_src2) {
        struct range src = exec_range(exec, step->msg, step->wire, i, lane->pass);
        fold->in[fold->nin++] = own_at(exec, step->msg, src);
    }
    if (info->writes) {
        struct range dst = exec_range(exec, step->dst_buf, step->dst, i, lane->pass);
        work->bytes = dst.len;
        if (!(step->flags & LS_NOSTORE)) fold->out[fold->nout++] = own_at(exec, step->dst_buf, dst);
    } else if (info->sends) {
        work->device[work->naway] = wire_of(exec, step->wire)->peer_device;
        work->away[work->naway++] = slot(exec, lane, step, off);
    }
    if (step->flags & LS_FINAL && exec->spec.op == OP_AVG) fold->divisor = exec->sched->nranks;
}

/* `value` lies on the own device, or, `in_host`, in pinned memory. */
static void copy_away(const struct exec *exec, const struct lane *lane, const struct work *work,
                      const void *value, bool in_host)
{
    const struct gpu *gpu = gpu_of(exec);
    int own = exec->rank->device->number;
    for (uint32_t k = 0; k < work->naway; k++) {
        bool near = in_host || work->device[k] < 0 || work->device[k] == own;
        must(exec, near ? gpu->copy_async(work->away[k], value, work->bytes, lane->stream)
                        : gpu->copy_peer(work->away[k], work->device[k], value, own, work->bytes,
                                         lane->stream));
    }
}

static void run_work(const struct exec *exec, const struct lane *lane, struct work *work)
{
    const struct gpu *gpu = gpu_of(exec);
    struct fold *fold = &work->fold;
    if (work->bytes == 0 || fold->nin == 0) return;
    const void *value = fold->in[0];
    bool in_host = fold->nin == 1 && work->from_host;
    if (fold->nin > 1) {
        if (fold->nout == 0 && work->naway == 0) return;
        if (fold->nout == 0) fold->out[fold->nout++] = lane->bounce;
        fold->count = work->bytes / exec->esize;
        must(exec,
             gpu->fold(fold, exec->spec.dtype, exec->spec.op, GPU_FLIGHT, 0, 0, lane->stream));
        value = fold->out[0];
    } else {
        for (uint32_t k = 0; k < fold->nout; k++) {
            if (fold->out[k] == value) continue; /* a copy onto itself is none */
            must(exec, gpu->copy_async(fold->out[k], value, work->bytes, lane->stream));
            value = fold->out[k];
            in_host = false;
        }
    }
    copy_away(exec, lane, work, value, in_host);
}

/* ---- groups ---- */

static void settle(struct exec *exec, const struct lane *lane, const struct lstep *step)
{
    const struct gpu *gpu = gpu_of(exec);
    const struct step_info *info = step_info((enum step_kind)step->kind);
    if (!info->sends && !info->receives) return;
    const struct gpu_wire *wire = &wire_of(exec, step->wire)->gpu;
    uint64_t number = message(exec, step->wire, lane->pass, step->msg);
    must(exec,
         gpu->stream_write(lane->stream, info->sends ? wire->posted : wire->released, number + 1));
    if (info->sends && exec->spec.keep_log) {
        exec_log_add(exec, &exec->lwires[step->wire], number,
                     exec_step_bytes(exec, step, lane->pass));
    }
}

static void issue_group(struct exec *exec, struct lane *lane, uint32_t count)
{
    const struct lstep *group = &exec->steps[lane->pc];
    for (uint32_t i = 0; i < group->nwaits; i++)
        await_hazard(exec, lane, &exec->waits[group->wait + i]);
    for (uint32_t k = 0; k < count; k++)
        await_record(exec, lane, &group[k]);
    size_t off = 0;
    for (uint32_t i = 0; i < group->nchunks; i++) {
        struct work work = {.fold = {.divisor = 1}};
        for (uint32_t k = 0; k < count; k++)
            add_record(exec, lane, &group[k], i, off, &work);
        run_work(exec, lane, &work);
        uint32_t align = exec->transport->message_align;
        off += (work.bytes + align - 1) / align * align;
    }
    for (uint32_t k = 0; k < count; k++)
        settle(exec, lane, &group[k]);
}

/* To the next group, also for who reads the lane's word. */
static void step_on(struct exec *exec, struct lane *lane, uint32_t count)
{
    const struct gpu *gpu = gpu_of(exec);
    struct state *state = state_of(exec);
    lane->pc += count;
    uint64_t done = lane->pc - lane->start;
    if (lane->pc == lane->end) {
        lane->pass++;
        lane->pc = lane->start;
        done = 0;
    }
    must(exec, gpu->stream_write(lane->stream, state->progress_at + (lane - state->lanes),
                                 (first_pass(exec) + lane->pass) << 32 | done));
    exec->moved = true;
    if (++lane->issued < UNDER_WAY) return;
    must(exec, gpu->event_record(lane->event, lane->stream));
    lane->issued = 0;
    lane->held = true;
}

/* The rank's stream goes on when the lane has. */
static void end_lane(struct exec *exec, struct lane *lane)
{
    const struct gpu *gpu = gpu_of(exec);
    must(exec, gpu->event_record(lane->event, lane->stream));
    must(exec, gpu->stream_after(exec->rank->device->stream, lane->event));
    state_of(exec)->running--;
}

static void issue_lane(struct exec *exec, struct lane *lane)
{
    while (lane->pass < exec->passes) {
        if (lane->held) {
            bool done;
            must(exec, gpu_of(exec)->event_done(lane->event, &done));
            if (!done) return;
            lane->held = false;
            exec->moved = true;
        }
        const struct lstep *group = &exec->steps[lane->pc];
        uint32_t count = 1;
        while (group[count - 1].flags & LS_CHAIN)
            count++;
        issue_group(exec, lane, count);
        step_on(exec, lane, count);
        if (lane->pass == exec->passes) end_lane(exec, lane);
    }
}

/* ---- running ---- */

static void copy_start(struct exec *exec)
{
    const struct gpu *gpu = gpu_of(exec);
    struct state *state = state_of(exec);
    state->operations = exec->started - 1;
    must(exec, gpu->event_record(state->began, exec->rank->device->stream));
    state->running = 0;
    for (uint32_t w = 0; w < exec->nwires; w++)
        exec->wires[w]->next += exec->lwires[w].nmsgs * exec->passes;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        struct lane *lane = &state->lanes[i];
        lane->pc = lane->start;
        lane->pass = lane->start < lane->end ? 0 : exec->passes;
        lane->issued = 0;
        lane->held = false;
        if (lane->pass == exec->passes) continue;
        state->running++;
        must(exec, gpu->stream_after(lane->stream, state->began));
    }
}

static int copy_progress(struct exec *exec)
{
    struct state *state = state_of(exec);
    exec->moved = false;
    for (uint32_t i = 0; i < exec->nlanes; i++)
        issue_lane(exec, &state->lanes[i]);
    if (exec->moved) rank_tick(exec->rank);
    bool done = device_done(exec->rank, exec->rank->device->stream, "running the collective");
    return state->running == 0 && done;
}

static void copy_report(struct exec *exec)
{
    const struct state *state = state_of(exec);
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        uint64_t at = ((const volatile uint64_t *)state->progress)[i];
        uint64_t pass = (at >> 32) - first_pass(exec);
        uint32_t record = state->lanes[i].start + (uint32_t)at;
        if (at >> 32 >= first_pass(exec) && pass < exec->passes && record < state->lanes[i].end) {
            exec_waits(exec, record, pass);
            return;
        }
    }
}

/* ---- life ---- */

static int open_lane(struct exec *exec, uint32_t i, struct err *err)
{
    const struct gpu *gpu = gpu_of(exec);
    struct lane *lane = &state_of(exec)->lanes[i];
    lane->start = exec->lane_start[i];
    lane->end = exec->lane_start[i + 1];
    lane->bounce = device_alloc(exec->rank, layout_longest(&exec->most), err);
    if (!lane->bounce) return -1;
    if (gpu_check(gpu, gpu->stream_new(&lane->stream), err, "a stream")) return -1;
    return gpu_check(gpu, gpu->event_new(&lane->event), err, "an event");
}

static int copy_open(struct exec *exec, struct err *err)
{
    struct state *state = exec->engine_state = mem_calloc(1, sizeof *state);
    const struct gpu *gpu = gpu_of(exec);
    state->lanes = mem_calloc(exec->nlanes, sizeof *state->lanes);
    if (exec->spec.keep_trace)
        return err_add(err, ERR_USAGE, "steps are not traced on GPUs: use --transport shm");
    uint32_t lanes = exec_most_lanes(exec);
    if (lanes > MOST_LANES) {
        return err_add(
            err, ERR_USAGE,
            "%u lanes need as many hardware queues, but cuda-peer has %d; use --channels "
            "%u",
            exec->nlanes, MOST_LANES, MOST_LANES * exec->sched->nchannels / lanes);
    }
    void *words, *seen;
    size_t bytes = (exec->nlanes ? exec->nlanes : 1) * sizeof *state->progress;
    if (gpu_check(gpu, gpu->event_new(&state->began), err, "an event") ||
        gpu_check(gpu, gpu->host_alloc(&words, bytes), err, "pinned memory")) {
        return -1;
    }
    state->progress = words;
    memset(words, 0, bytes);
    if (gpu_check(gpu, gpu->host_device(words, &seen), err, "pinned memory")) return -1;
    state->progress_at = seen;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        if (open_lane(exec, i, err)) return -1;
    }
    return 0;
}

static void copy_close(struct exec *exec)
{
    struct state *state = state_of(exec);
    if (!state) return;
    const struct gpu *gpu = gpu_of(exec);
    device_sync(exec->rank, "closing");
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        if (state->lanes[i].event) gpu->event_free(state->lanes[i].event);
        if (state->lanes[i].stream) gpu->stream_free(state->lanes[i].stream);
    }
    if (state->began) gpu->event_free(state->began);
    if (state->progress) gpu->host_free(state->progress);
    free(state->lanes);
    free(state);
}

const struct engine copy_engine = {copy_open, copy_close, copy_start, copy_progress, copy_report};
