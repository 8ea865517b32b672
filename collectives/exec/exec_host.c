/* SPDX-License-Identifier: Apache-2.0
 * The engine that runs lanes in the rank's own thread: a group waits until its waits hold, its
 * messages have arrived and its sends have room; then one kernel call per chunk does all of it, and
 * the messages are posted and released. See exec.h.
 *
 * Where the rank's buffers lie on a GPU (device.h), the calls are launches in its stream, of
 * kernels that read and write the slots in place; chunks that lie side by side are one launch. The
 * lane goes on when the event behind them has come, and the others meanwhile. */
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "exec/device.h"
#include "exec/engine.h"
#include "exec/launch.h"

/* The linker lets a group have at most so many inputs and outputs, hence records. */
enum { GROUP_MOST = KERNEL_MAX_IN + KERNEL_MAX_OUT };
enum { STREAM_BYTES = 8 << 20 }; /* buffers beyond this do not stay in a cache */

struct lane {
    uint32_t pc, start, end; /* records */
    uint64_t pass;
    uint64_t came_ns;  /* with keep_trace: when it came to its group, */
    bool blocked;      /* whether it could not go on at once, */
    uint64_t begin_ns; /* and when it did */
    void *event;       /* on a GPU: behind the group's launches, */
    bool flying;       /* until it has come */
};

struct host {
    const struct kernels *kernels;
    struct lane *lanes;
    uint32_t running;    /* lanes not done yet */
    uint64_t *wire_base; /* per wire: its message number at the start of the operation */
    bool stream;         /* user buffers are too large to stay in a cache */
    const void *arrived[GROUP_MOST]; /* per record of the group */
    void *place[GROUP_MOST];
    struct pull_ref refs[GROUP_MOST];
};

static struct host *host_of(const struct exec *exec)
{
    return exec->engine_state;
}

static void *own_at(const struct exec *exec, uint32_t buf, size_t off)
{
    return (uint8_t *)exec->own.base[kind_of(buf)] + off;
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
            uint64_t number = host_of(exec)->wire_base[wait->index] +
                              of * exec->lwires[wait->index].nmsgs + wait->number;
            if (!exec->transport->released(wire, number)) {
                return false;
            }
        } else {
            const struct lane *lane = &host_of(exec)->lanes[wait->index];
            if (lane->pass < of || (lane->pass == of && lane->pc <= wait->number)) {
                return false;
            }
        }
    }
    return true;
}

/* A place in a slot, for who reads and writes there. */
static void *seen(const struct exec *exec, const void *at)
{
    return exec->rank->device ? device_sees(exec->rank, at) : (void *)(uintptr_t)at;
}

/* Finds the messages and the room that the group needs; false when something is missing. */
static bool gather(struct exec *exec, const struct lstep *group, uint32_t count, uint64_t pass)
{
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        if (step->kind == STEP_SEND) {
            size_t bytes = exec_step_bytes(exec, step, pass);
            host_of(exec)->place[k] = exec->transport->room(exec->wires[step->wire], bytes);
            if (!host_of(exec)->place[k]) {
                return false;
            }
            host_of(exec)->place[k] = seen(exec, host_of(exec)->place[k]);
        } else if (step->kind == STEP_RECV || step->kind == STEP_RECV_REDUCE) {
            size_t bytes = exec_step_bytes(exec, step, pass);
            host_of(exec)->arrived[k] =
                exec->transport->peek(exec->wires[step->wire], bytes, &host_of(exec)->refs[k]);
            if (!host_of(exec)->arrived[k]) {
                return false;
            }
            host_of(exec)->arrived[k] = seen(exec, host_of(exec)->arrived[k]);
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
        struct pull_ref ref = host_of(exec)->refs[k];
        struct range from = exec_peer_range(exec, wire->peer, ref.buf, ref.chunk, i, pass);
        return (const uint8_t *)exec->peers[wire->peer].base[kind_of(ref.buf)] + from.off;
    }
    if (wire->mode == WIRE_PUSH) { /* it is already where it belongs */
        return own_at(exec, step->dst_buf, exec_range(exec, step->dst_buf, step->dst, i, pass).off);
    }
    return (const uint8_t *)host_of(exec)->arrived[k] + off;
}

static void *departure(const struct exec *exec, uint32_t k, const struct lstep *step, uint32_t i,
                       uint64_t pass, size_t off)
{
    const struct lwire *wire = &exec->lwires[step->wire];
    if (wire->mode == WIRE_PUSH) {
        struct range to = exec_peer_range(exec, wire->peer, step->dst_buf, step->dst, i, pass);
        return (uint8_t *)exec->peers[wire->peer].base[kind_of(step->dst_buf)] + to.off;
    }
    return wire->mode == WIRE_PULL ? NULL : (uint8_t *)host_of(exec)->place[k] + off;
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
    if (mode == WIRE_STAGED && !exec->rank->device) {
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
    fold->stream = host_of(exec)->stream;
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        if (info->reads_src && !(step->flags & LS_ACC)) {
            struct range src = exec_range(exec, step->src_buf, step->src, i, pass);
            fold->in[fold->nin++] = own_at(exec, step->src_buf, src.off);
            bytes = src.len;
        }
        if (info->receives) {
            fold->in[fold->nin++] = arrival(exec, k, step, i, pass, off);
        } else if (info->reads_src2) {
            struct range src = exec_range(exec, step->msg, step->wire, i, pass);
            fold->in[fold->nin++] = own_at(exec, step->msg, src.off);
        }
        if (info->writes) {
            struct range dst = exec_range(exec, step->dst_buf, step->dst, i, pass);
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
        host_of(exec)->kernels->fold[exec->spec.dtype][exec->spec.op](fold);
        return;
    }
    for (uint32_t k = 0; k < fold->nout; k++) {
        host_of(exec)->kernels->copy(fold->out[k], fold->in[0], bytes, fold->stream);
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
            host_of(exec)->kernels->copy(fold->out[k], room, bytes, true);
        }
    } else {
        fold_out(exec, fold, bytes);
    }
    for (uint32_t k = 0; k < slots->count; k++) {
        host_of(exec)->kernels->copy(slots->at[k], value, bytes, false);
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

static void run_folds(struct exec *exec, const struct lane *lane, const struct lstep *group,
                      uint32_t count)
{
    struct fold fold;
    struct slots slots;
    size_t off = 0;
    for (uint32_t i = 0; i < group->nchunks; i++) {
        size_t bytes = make_fold(exec, group, count, i, lane->pass, off, &fold, &slots);
        run_fold(exec, &fold, &slots, bytes);
        off += bytes;
    }
}

/* ---- the same on a GPU ---- */

static void launch_fold(const struct exec *exec, struct fold *fold, size_t bytes)
{
    const struct device *device = exec->rank->device;
    fold->count = bytes / exec->esize;
    device_must(
        exec->rank,
        device->gpu->fold(fold, exec->spec.dtype, exec->spec.op, GPU_FLIGHT, 0, 0, device->stream),
        "launching a step");
}

/* Whether all that the second fold reads and writes lies behind `bytes` of the first. */
static bool follows(const struct fold *first, const struct fold *second, size_t bytes)
{
    bool behind = first->nin == second->nin && first->nout == second->nout;
    for (uint32_t k = 0; behind && k < first->nin; k++)
        behind = (const uint8_t *)first->in[k] + bytes == second->in[k];
    for (uint32_t k = 0; behind && k < first->nout; k++)
        behind = (uint8_t *)first->out[k] + bytes == second->out[k];
    return behind;
}

/* Launches what the group does. False: that was nothing. */
static bool launch_folds(struct exec *exec, struct lane *lane, const struct lstep *group,
                         uint32_t count)
{
    struct fold folds[2]; /* to be launched; and the next one */
    struct slots none;
    size_t off = 0, bytes = 0, here;
    for (uint32_t i = 0; i < group->nchunks; i++, off += here) {
        here = make_fold(exec, group, count, i, lane->pass, off, &folds[1], &none);
        if (folds[1].nin == 1) drop_same(&folds[1]);
        if (here == 0 || folds[1].nout == 0) continue;
        if (bytes > 0 && follows(&folds[0], &folds[1], bytes)) {
            bytes += here;
            continue;
        }
        if (bytes > 0) launch_fold(exec, &folds[0], bytes);
        folds[0] = folds[1];
        bytes = here;
    }
    if (bytes == 0) return false;
    struct device *device = exec->rank->device;
    launch_fold(exec, &folds[0], bytes);
    device_must(exec->rank, device->gpu->event_record(lane->event, device->stream),
                "launching a step");
    return true;
}

static bool has_landed(const struct exec *exec, const struct lane *lane)
{
    bool done = false;
    device_must(exec->rank, exec->rank->device->gpu->event_done(lane->event, &done),
                "running a step");
    return done;
}

/* ---- what follows ---- */

/* For the log, and for a planted fault: what is about to be posted. */
static void observe(struct exec *exec, uint32_t k, const struct lstep *step, uint64_t pass)
{
    size_t off = 0;
    for (uint32_t i = 0; i < step->nchunks; i++) {
        struct range from = exec_range(exec, step->src_buf, step->src, i, pass);
        void *at = departure(exec, k, step, i, pass, off);
        exec_spoil_message(exec, at ? at : own_at(exec, step->src_buf, from.off), from.len);
        off += from.len;
    }
    if (exec->spec.keep_log) {
        exec_log_add(exec, &exec->lwires[step->wire], exec->wires[step->wire]->next, off);
    }
}

/* Messages out, then slots free. */
static void settle(struct exec *exec, const struct lstep *group, uint32_t count, uint64_t pass)
{
    for (uint32_t k = 0; k < count; k++) {
        const struct lstep *step = &group[k];
        if (step->kind == STEP_SEND) {
            struct wire *wire = exec->wires[step->wire];
            size_t bytes = exec_step_bytes(exec, step, pass);
            if (exec->observed) observe(exec, k, step, pass);
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

static void trace_group(struct exec *exec, struct lane *lane)
{
    uint64_t end_ns = now_ns();
    uint64_t came_ns = lane->blocked ? lane->came_ns : lane->begin_ns; /* no wait: none is shown */
    exec->ran[exec->nran++] = (struct ran){(uint32_t)(lane - host_of(exec)->lanes),
                                           lane->pc,
                                           lane->pass,
                                           came_ns,
                                           lane->begin_ns,
                                           end_ns};
    lane->came_ns = end_ns;
    lane->blocked = false;
}

/* Begins the group if it can run now. False: it cannot, or a GPU is at it. */
static bool begin_group(struct exec *exec, struct lane *lane, const struct lstep *group,
                        uint32_t count)
{
    if ((group->nwaits > 0 && !waits_hold(exec, group, lane->pass)) ||
        !gather(exec, group, count, lane->pass)) {
        lane->blocked = true;
        return false;
    }
    lane->begin_ns = exec->ran ? now_ns() : 0;
    if (!exec->rank->device) {
        run_folds(exec, lane, group, count);
        return true;
    }
    lane->flying = launch_folds(exec, lane, group, count);
    exec->flying += lane->flying;
    exec->moved = true;
    return !lane->flying;
}

/* Runs the group at the lane's pc as far as it goes now. True: it has ended. */
static bool run_group(struct exec *exec, struct lane *lane)
{
    const struct lstep *group = &exec->steps[lane->pc];
    uint32_t count = 1;
    while (group[count - 1].flags & LS_CHAIN) {
        count++;
    }
    if (!lane->flying) {
        if (!begin_group(exec, lane, group, count)) return false;
    } else if (!has_landed(exec, lane)) {
        return false;
    } else {
        lane->flying = false;
        exec->flying--;
    }
    settle(exec, group, count, lane->pass);
    if (exec->ran) trace_group(exec, lane);
    lane->pc += count;
    return true;
}

/* ---- running ---- */

static void host_start(struct exec *exec)
{
    host_of(exec)->running = exec->nlanes;
    exec->nran = 0;
    uint64_t start_ns = exec->ran ? now_ns() : 0;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        struct lane *lane = &host_of(exec)->lanes[i];
        lane->pc = lane->start;
        lane->pass = 0;
        lane->came_ns = start_ns;
        lane->blocked = true; /* lanes start in turns */
        if (lane->start == lane->end) {
            lane->pass = exec->passes;
            host_of(exec)->running--;
        }
    }
    for (uint32_t w = 0; w < exec->nwires; w++) {
        host_of(exec)->wire_base[w] = exec->wires[w]->next;
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
                host_of(exec)->running--;
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

static bool is_idle(const struct exec *exec)
{
    return !exec->transport->idle || exec->transport->idle(exec->transport_state);
}

static int host_progress(struct exec *exec)
{
    exec->moved = false;
    if (exec->transport->poll) {
        exec->transport->poll(exec->transport_state);
    }
    for (uint32_t i = 0; host_of(exec)->running > 0 && i < exec->nlanes; i++) {
        run_lane(exec, &host_of(exec)->lanes[i]);
    }
    if (exec->moved) {
        rank_tick(exec->rank);
    }
    return host_of(exec)->running == 0 && all_released(exec) && is_idle(exec);
}

/* All steps are done, but what they sent has not gone: the last send to a peer that has not taken
 * all it was sent. */
static void report_send(struct exec *exec)
{
    for (uint32_t r = exec->nsteps; r-- > 0;) {
        const struct lstep *step = &exec->steps[r];
        if (step->kind != STEP_SEND) continue;
        struct wire *wire = exec->wires[step->wire];
        if (wire->next == 0 || exec->transport->released(wire, wire->next - 1)) continue;
        exec_waits(exec, r, exec->passes - 1);
        return;
    }
    rank_waits(exec->rank, 0, WAIT_LIBRARY, -1, 0);
}

static void host_report(struct exec *exec)
{
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        const struct lane *lane = &host_of(exec)->lanes[i];
        if (lane->pass < exec->passes) {
            exec_waits(exec, lane->pc, lane->pass);
            return;
        }
    }
    report_send(exec);
}

/* ---- life ---- */

static int host_open(struct exec *exec, struct err *err)
{
    struct host *host = exec->engine_state = mem_calloc(1, sizeof *host);
    host->kernels = kernels_get(err);
    host->lanes = mem_calloc(exec->nlanes, sizeof *host->lanes);
    host->wire_base = mem_calloc(exec->nwires, sizeof *host->wire_base);
    host->stream =
        layout_bytes(&exec->layout[0]) + layout_bytes(&exec->layout[1]) > 2 * STREAM_BYTES;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        host->lanes[i].start = exec->lane_start[i];
        host->lanes[i].end = exec->lane_start[i + 1];
    }
    const struct gpu *gpu = exec->rank->device ? exec->rank->device->gpu : NULL;
    for (uint32_t i = 0; gpu && i < exec->nlanes; i++) {
        if (gpu_check(gpu, gpu->event_new(&host->lanes[i].event), err, "an event")) return -1;
    }
    return host->kernels ? 0 : -1;
}

static void host_close(struct exec *exec)
{
    struct host *host = host_of(exec);
    if (!host) return;
    for (uint32_t i = 0; i < exec->nlanes; i++) {
        if (host->lanes[i].event) exec->rank->device->gpu->event_free(host->lanes[i].event);
    }
    free(host->lanes);
    free(host->wire_base);
    free(host);
}

const struct engine host_engine = {host_open, host_close, host_start, host_progress, host_report};
