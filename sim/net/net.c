/* SPDX-License-Identifier: Apache-2.0
 * Lanes, groups and messages of a linked program over shared links: see net.h. Everything happens
 * in one loop over the event queue; a lane that cannot go on stands in the list of the one wire or
 * lane it waits for, so an event costs only what it sets free. */
#include "net/net.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "net/share.h"
#include "sched/layout.h"
#include "sched/pairs.h"

enum event_kind { EV_FLOW, EV_ARRIVE, EV_GROUP }; /* id: wire, wire, lane */

#define NONE UINT32_MAX

/* One in-order worker of one rank. `pos` is the first record of the group it is at. */
struct lane {
    uint32_t rank, first, end, pos;
    uint64_t pass;
    ps_t came_ps, begin_ps; /* of the group it is at: when it came there, and began */
    uint32_t next;          /* in the list it stands in: of waiters, or of ready lanes */
    uint32_t waiters;       /* lanes that wait for this one */
};

/* Posted and not yet on the link: first in, first out per wire. */
struct message {
    uint64_t bytes;
    uint32_t next;
};

/* A wire of two ranks; it has one flow, whose number is the wire's. */
struct wire {
    uint32_t src, dst;
    uint16_t channel;
    uint8_t mode;
    uint64_t posted, arrived, released; /* messages */
    uint64_t sent_bytes, taken_bytes;
    uint32_t head, tail; /* messages, NONE when empty; the head is flowing */
    uint32_t waiters;    /* lanes that wait for an arrival or a release */
};

struct net {
    const struct linked *linked;
    const struct sched *sched;
    const struct net_args *args;
    struct layout layouts[3]; /* of input, output, scratch planes */
    size_t **offsets[2];      /* of input and output, per rank, of uneven blocks; else NULL */
    uint64_t passes;
    ps_t now_ps;
    struct queue queue;
    struct share share;
    uint32_t *lane_base; /* per rank, nranks + 1: its first lane */
    struct lane *lanes;
    uint32_t *wire_base; /* per rank, nranks + 1: its first entry of wire_of */
    uint32_t *wire_of;   /* wire by (rank, index in its program) */
    struct wire *wires;
    uint32_t nwires, wires_cap;
    uint32_t *paths; /* two links per wire */
    struct message *messages;
    uint32_t nmessages, messages_cap, free_messages;
    uint32_t ready_head, ready_tail; /* lanes to look at */
    size_t log_cap;
    struct net_result result;
};

static const struct lprog *prog_of(const struct net *net, uint32_t rank)
{
    return &net->linked->progs[net->sched->relative ? 0 : net->sched->prog_of[rank]];
}

static struct wire *wire_at(struct net *net, uint32_t rank, uint32_t index)
{
    return &net->wires[net->wire_of[net->wire_base[rank] + index]];
}

/* Bytes that a pass handles of `nchunks` chunks from `chunk` on, as a step of `rank` names them. */
static uint64_t slice_bytes(const struct net *net, uint32_t rank, uint32_t buf, uint32_t chunk,
                            uint32_t nchunks, uint64_t pass)
{
    struct layout layout = net->layouts[buf < BUF_SCRATCH ? buf : BUF_SCRATCH];
    if (buf < BUF_SCRATCH && net->offsets[buf]) layout.offsets = net->offsets[buf][rank];
    uint32_t total = layout.nblocks * layout.nparts;
    struct ref ref = sched_ref(net->sched, rank, (struct ref){buf, chunk});
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < nchunks; i++) {
        uint32_t c = (uint32_t)(((uint64_t)ref.chunk + i) % total);
        bytes += chunk_range(&layout, c / layout.nparts, c % layout.nparts, pass).len;
    }
    return bytes;
}

/* ---- lists of lanes ---- */

static void make_ready(struct net *net, uint32_t lane)
{
    net->lanes[lane].next = NONE;
    if (net->ready_head == NONE) {
        net->ready_head = lane;
    } else {
        net->lanes[net->ready_tail].next = lane;
    }
    net->ready_tail = lane;
}

static void wake(struct net *net, uint32_t *waiters)
{
    uint32_t lane = *waiters;
    *waiters = NONE;
    while (lane != NONE) {
        uint32_t next = net->lanes[lane].next;
        make_ready(net, lane);
        lane = next;
    }
}

/* ---- messages ---- */

/* Takes the head off the wire's line: its last byte has left, it arrives after the latency. */
static void drained(struct net *net, uint32_t number)
{
    struct wire *wire = &net->wires[number];
    uint32_t head = wire->head;
    wire->head = net->messages[head].next;
    net->messages[head].next = net->free_messages;
    net->free_messages = head;
    ps_t latency = wire->src == wire->dst ? 0 : net->args->alpha_ps;
    queue_put(&net->queue, ps_add(net->now_ps, (double)latency), EV_ARRIVE, number);
}

/* Lets the head of the line flow; messages that need no link are through at once. */
static void start_head(struct net *net, uint32_t number)
{
    struct wire *wire = &net->wires[number];
    while (wire->head != NONE) {
        uint64_t bytes = net->messages[wire->head].bytes;
        if (bytes > 0 && wire->src != wire->dst) {
            share_start(&net->share, net->now_ps, number, bytes);
            return;
        }
        drained(net, number);
    }
}

static void log_message(struct net *net, const struct wire *wire, uint64_t bytes)
{
    struct net_result *result = &net->result;
    MEM_GROW(result->log, result->nlog, net->log_cap);
    result->log[result->nlog++] = (struct msg_log){.src = wire->src,
                                                   .dst = wire->dst,
                                                   .channel = wire->channel,
                                                   .number = wire->posted,
                                                   .bytes = bytes};
}

static void post(struct net *net, uint32_t number, uint64_t bytes)
{
    struct wire *wire = &net->wires[number];
    uint32_t message = net->free_messages;
    if (message == NONE) {
        MEM_GROW(net->messages, net->nmessages, net->messages_cap);
        message = net->nmessages++;
    } else {
        net->free_messages = net->messages[message].next;
    }
    net->messages[message] = (struct message){bytes, NONE};
    bool idle = wire->head == NONE;
    if (idle) {
        wire->head = message;
    } else {
        net->messages[wire->tail].next = message;
    }
    wire->tail = message;
    if (net->args->keep_log) {
        log_message(net, wire, bytes);
    }
    wire->posted++;
    wire->sent_bytes += bytes;
    net->result.messages++;
    net->result.bytes += bytes;
    if (idle) {
        start_head(net, number);
    }
}

static void release(struct net *net, struct wire *wire, uint64_t bytes)
{
    wire->released++;
    wire->taken_bytes += bytes;
    if (wire->mode == WIRE_PULL) {
        net->result.finish_ps[wire->src] = net->now_ps;
    }
    wake(net, &wire->waiters);
}

/* ---- groups ---- */

/* What a lane waits for: the list to stand in, and words for it. */
struct block {
    uint32_t *waiters; /* NULL: it waits for nothing */
    const char *what;
    uint64_t number; /* of a message, or of a record */
    const struct wire *wire;
};

static struct block wait_block(struct net *net, const struct lane *lane, const struct lwait *wait)
{
    if (wait->distance > lane->pass) {
        return (struct block){0}; /* of a pass that never was */
    }
    uint64_t pass = lane->pass - wait->distance;
    if (wait->kind == LWAIT_LANE) {
        struct lane *other = &net->lanes[net->lane_base[lane->rank] + wait->index];
        bool done = other->pass > pass || (other->pass == pass && other->pos > wait->number);
        return done ? (struct block){0}
                    : (struct block){&other->waiters, "the end of record", wait->number, NULL};
    }
    struct wire *wire = wire_at(net, lane->rank, wait->index);
    uint64_t number = pass * prog_of(net, lane->rank)->wires[wait->index].nmsgs + wait->number;
    return number < wire->released
               ? (struct block){0}
               : (struct block){&wire->waiters, "the release of message", number, wire};
}

static struct block step_block(struct net *net, const struct lane *lane, const struct lstep *step)
{
    const struct step_info *info = step_info(step->kind);
    if (!info->sends && !info->receives) {
        return (struct block){0};
    }
    struct wire *wire = wire_at(net, lane->rank, step->wire);
    uint64_t nmsgs = prog_of(net, lane->rank)->wires[step->wire].nmsgs;
    uint64_t number = lane->pass * nmsgs + step->msg;
    if (info->receives) {
        return number < wire->arrived
                   ? (struct block){0}
                   : (struct block){&wire->waiters, "the arrival of message", number, wire};
    }
    return number < wire->released + net->args->slots
               ? (struct block){0}
               : (struct block){&wire->waiters, "room for message", number, wire};
}

/* The first thing that the lane's group still waits for. */
static struct block group_block(struct net *net, const struct lane *lane)
{
    const struct lprog *prog = prog_of(net, lane->rank);
    const struct lstep *first = &prog->steps[lane->pos];
    struct block block = {0};
    for (uint32_t i = 0; i < first->nwaits && !block.waiters; i++) {
        block = wait_block(net, lane, &prog->waits[first->wait + i]);
    }
    uint32_t last = group_last(prog, lane->pos);
    for (uint32_t i = lane->pos; i <= last && !block.waiters; i++) {
        block = step_block(net, lane, &prog->steps[i]);
    }
    return block;
}

/* Time the lane is busy with its group, in picoseconds. */
static double group_time(const struct net *net, const struct lane *lane)
{
    const struct net_args *args = net->args;
    const struct lprog *prog = prog_of(net, lane->rank);
    uint32_t last = group_last(prog, lane->pos);
    double time = 0;
    for (uint32_t i = lane->pos; i <= last; i++) {
        const struct lstep *step = &prog->steps[i];
        const struct step_info *info = step_info(step->kind);
        if (info->sends) {
            time += (double)args->overhead_ps;
        } else if (args->gamma_Bps > 0 && (info->reduces || step->kind == STEP_COPY)) {
            uint64_t bytes =
                slice_bytes(net, lane->rank, step->dst_buf, step->dst, step->nchunks, lane->pass);
            time += (double)bytes / args->gamma_Bps * 1e12;
        }
    }
    return time;
}

/* Record `r` of the lane's group, which ends now. */
static void add_step(struct net *net, const struct lane *lane, uint32_t r)
{
    const struct lprog *prog = prog_of(net, lane->rank);
    const struct lstep *step = &prog->steps[r];
    const struct step_info *info = step_info(step->kind);
    struct ref ref = info->sends ? (struct ref){step->src_buf, step->src}
                                 : (struct ref){step->dst_buf, step->dst};
    struct trace_event event = {
        .rank = lane->rank,
        .lane = (uint32_t)(lane - net->lanes) - net->lane_base[lane->rank],
        .step = prog->source[r],
        .record = r,
        .group = lane->pos,
        .kind = step->kind,
        .chunk = sched_ref(net->sched, lane->rank, ref).chunk,
        .nchunks = step->nchunks,
        .pass = lane->pass,
        .bytes = slice_bytes(net, lane->rank, ref.buf, ref.chunk, step->nchunks, lane->pass),
        .came = lane->came_ps,
        .begin = lane->begin_ps,
        .end = net->now_ps,
    };
    if (info->sends || info->receives) {
        const struct wire *wire = wire_at(net, lane->rank, step->wire);
        event.peer = info->sends ? wire->dst : wire->src;
        event.channel = wire->channel;
        event.number = lane->pass * prog->wires[step->wire].nmsgs + step->msg;
    }
    trace_add(&net->result.steps, &event);
}

/* Posts what the group sends, releases what it received, and goes on to the next group. */
static void end_group(struct net *net, uint32_t number)
{
    struct lane *lane = &net->lanes[number];
    const struct lprog *prog = prog_of(net, lane->rank);
    uint32_t last = group_last(prog, lane->pos);
    for (uint32_t i = lane->pos; i <= last; i++) {
        const struct lstep *step = &prog->steps[i];
        const struct step_info *info = step_info(step->kind);
        if (info->sends) {
            uint32_t wire = net->wire_of[net->wire_base[lane->rank] + step->wire];
            post(net, wire,
                 slice_bytes(net, lane->rank, step->src_buf, step->src, step->nchunks, lane->pass));
        } else if (info->receives) {
            release(
                net, wire_at(net, lane->rank, step->wire),
                slice_bytes(net, lane->rank, step->dst_buf, step->dst, step->nchunks, lane->pass));
        }
    }
    for (uint32_t i = lane->pos; net->args->keep_steps && i <= last; i++) {
        add_step(net, lane, i);
    }
    lane->came_ps = net->now_ps;
    lane->pos = last + 1;
    if (lane->pos == lane->end) {
        lane->pos = lane->first;
        lane->pass++;
    }
    net->result.finish_ps[lane->rank] = net->now_ps;
    wake(net, &lane->waiters);
}

/* Runs groups of a lane until one has to wait or takes time. */
static void advance(struct net *net, uint32_t number)
{
    struct lane *lane = &net->lanes[number];
    while (lane->pass < net->passes) {
        struct block block = group_block(net, lane);
        if (block.waiters) {
            lane->next = *block.waiters;
            *block.waiters = number;
            return;
        }
        lane->begin_ps = net->now_ps;
        double time = group_time(net, lane);
        if (time > 0) {
            queue_put(&net->queue, ps_add(net->now_ps, time), EV_GROUP, number);
            return;
        }
        end_group(net, number);
    }
}

static void run_ready(struct net *net)
{
    while (net->ready_head != NONE) {
        uint32_t lane = net->ready_head;
        net->ready_head = net->lanes[lane].next;
        advance(net, lane);
    }
}

/* ---- the loop ---- */

static void dispatch(struct net *net, const struct event *event)
{
    switch ((enum event_kind)event->kind) {
    case EV_FLOW:
        if (share_end(&net->share, event->time_ps, event->id)) {
            drained(net, event->id);
            start_head(net, event->id);
        }
        break;
    case EV_ARRIVE:
        net->wires[event->id].arrived++;
        wake(net, &net->wires[event->id].waiters);
        break;
    case EV_GROUP:
        end_group(net, event->id);
        make_ready(net, event->id);
        break;
    }
    run_ready(net);
}

/* One word into the hash of the trace (FNV-1a, on words instead of bytes). */
static uint64_t hash(uint64_t h, uint64_t word)
{
    return (h ^ word) * 0x100000001b3u;
}

static int loop(struct net *net, struct err *err)
{
    run_ready(net);
    share_settle(&net->share, 0);
    struct event event;
    while (queue_take(&net->queue, &event)) {
        if (event.time_ps == PS_NEVER) {
            return err_add(err, ERR_USAGE,
                           "the simulated time passes 213 days (2^64 ps): make the size or the "
                           "latency smaller, or the bandwidth higher");
        }
        net->now_ps = event.time_ps;
        net->result.events++;
        net->result.trace = hash(net->result.trace, event.time_ps);
        net->result.trace = hash(net->result.trace, (uint64_t)event.kind << 32 | event.id);
        dispatch(net, &event);
        if (queue_time(&net->queue) > net->now_ps) { /* all of this instant is in */
            share_settle(&net->share, net->now_ps);
        }
    }
    return 0;
}

/* ---- what must hold at the end ---- */

static int check_finished(struct net *net, struct err *err)
{
    uint32_t total = net->lane_base[net->sched->nranks], unfinished = 0, first = NONE;
    for (uint32_t i = 0; i < total; i++) {
        if (net->lanes[i].pass < net->passes) {
            first = first == NONE ? i : first;
            unfinished++;
        }
    }
    if (first == NONE) {
        return 0;
    }
    struct lane *lane = &net->lanes[first];
    const struct lprog *prog = prog_of(net, lane->rank);
    struct block block = group_block(net, lane);
    char wire[96] = "";
    if (block.wire) {
        snprintf(wire, sizeof wire, " on the wire %u -> %u channel %u", block.wire->src,
                 block.wire->dst, block.wire->channel);
    }
    return err_add(err, ERR_FAILED,
                   "deadlock: %u of %u lanes cannot go on; first rank %u lane %u at step %u (%s) "
                   "of pass %llu, which waits for %s %llu%s; wires have room for %u message(s)",
                   unfinished, total, lane->rank, first - net->lane_base[lane->rank],
                   prog->source[lane->pos], step_info(prog->steps[lane->pos].kind)->name,
                   (unsigned long long)lane->pass, block.what, (unsigned long long)block.number,
                   wire, net->args->slots);
}

static int check_bytes(const struct net *net, struct err *err)
{
    for (uint32_t i = 0; i < net->nwires; i++) {
        const struct wire *wire = &net->wires[i];
        if (wire->posted != wire->released || wire->sent_bytes != wire->taken_bytes) {
            return err_add(err, ERR_FAILED,
                           "rank %u sent %llu messages, %llu bytes, to rank %u on channel %u, "
                           "which took %llu messages, %llu bytes",
                           wire->src, (unsigned long long)wire->posted,
                           (unsigned long long)wire->sent_bytes, wire->dst, wire->channel,
                           (unsigned long long)wire->released,
                           (unsigned long long)wire->taken_bytes);
        }
    }
    return 0;
}

/* No link can carry more than its capacity allows in the time; a transfer's end is rounded to a
 * picosecond. */
static int check_physics(const struct net *net, struct err *err)
{
    for (uint32_t i = 0; i < net->share.nlinks; i++) {
        const struct link *link = &net->share.links[i];
        double least_ps = (double)link->bytes / link->capacity;
        double had_ps = (double)net->result.total_ps;
        if (least_ps > had_ps * (1 + 1e-9) + (double)link->ends) {
            return err_add(err, ERR_FAILED,
                           "the link %s rank %u carried %llu bytes in %.0f ps, which takes at "
                           "least %.0f ps",
                           i % 2 ? "to" : "from", i / 2, (unsigned long long)link->bytes, had_ps,
                           least_ps);
        }
    }
    return 0;
}

/* ---- life cycle ---- */

static void build_lanes(struct net *net)
{
    uint32_t n = net->sched->nranks, count = 0;
    net->lane_base = mem_calloc((size_t)n + 1, sizeof *net->lane_base);
    for (uint32_t r = 0; r < n; r++) {
        net->lane_base[r + 1] = net->lane_base[r] + prog_of(net, r)->nlanes;
    }
    net->lanes = mem_calloc(net->lane_base[n], sizeof *net->lanes);
    net->ready_head = NONE;
    for (uint32_t r = 0; r < n; r++) {
        const struct lprog *prog = prog_of(net, r);
        for (uint32_t l = 0; l < prog->nlanes; l++, count++) {
            uint32_t first = prog->lane_start[l], end = prog->lane_start[l + 1];
            net->lanes[count] = (struct lane){
                .rank = r, .first = first, .end = end, .pos = first, .next = NONE, .waiters = NONE};
            if (first == end) {
                net->lanes[count].pass = net->passes; /* nothing to do */
            } else {
                make_ready(net, count);
            }
        }
    }
}

static struct wire new_wire(uint32_t src, uint32_t dst, const struct lwire *sender)
{
    return (struct wire){.src = src,
                         .dst = dst,
                         .channel = sender->channel,
                         .mode = sender->mode,
                         .head = NONE,
                         .tail = NONE,
                         .waiters = NONE};
}

/* Gives each pair of ends one wire, numbered by sender. */
static int build_wires(struct net *net, struct err *err)
{
    uint32_t n = net->sched->nranks;
    net->wire_base = mem_calloc((size_t)n + 1, sizeof *net->wire_base);
    for (uint32_t r = 0; r < n; r++) {
        net->wire_base[r + 1] = net->wire_base[r] + prog_of(net, r)->nwires;
    }
    net->wire_of = mem_calloc(net->wire_base[n], sizeof *net->wire_of);
    for (uint32_t r = 0; r < n; r++) {
        const struct lprog *prog = prog_of(net, r);
        for (uint32_t w = 0; w < prog->nwires; w++) {
            const struct lwire *end = &prog->wires[w];
            if (!end->send) {
                continue;
            }
            uint32_t peer = sched_peer(net->sched, r, end->peer);
            const struct lprog *theirs = prog_of(net, peer);
            uint32_t other = wire_other_end(net->sched, r, end, theirs->wires, theirs->nwires);
            if (other == NO_WIRE || theirs->wires[other].nmsgs != end->nmsgs) {
                return err_add(err, ERR_FAILED,
                               "rank %u sends %u message(s) per pass to rank %u on channel %u, "
                               "which receives %u",
                               r, end->nmsgs, peer, end->channel,
                               other == NO_WIRE ? 0 : theirs->wires[other].nmsgs);
            }
            MEM_GROW(net->wires, net->nwires, net->wires_cap);
            net->wires[net->nwires] = new_wire(r, peer, end);
            net->wire_of[net->wire_base[r] + w] = net->nwires;
            net->wire_of[net->wire_base[peer] + other] = net->nwires++;
        }
    }
    return 0;
}

/* The topology: links 2r (from rank r to the switch) and 2r + 1 (to rank r), and each wire's path
 * over them. */
static void build_links(struct net *net)
{
    uint32_t nlinks = 2 * net->sched->nranks;
    double *capacity = mem_calloc(nlinks, sizeof *capacity);
    for (uint32_t i = 0; i < nlinks; i++) {
        capacity[i] = net->args->beta_Bps;
    }
    share_init(&net->share, &net->queue, EV_FLOW, nlinks, capacity);
    free(capacity);
    net->paths = mem_calloc(net->nwires, 2 * sizeof *net->paths);
    for (uint32_t w = 0; w < net->nwires; w++) {
        uint32_t *path = &net->paths[2 * (size_t)w];
        path[0] = 2 * net->wires[w].src;
        path[1] = 2 * net->wires[w].dst + 1;
        share_add(&net->share, path, 2);
    }
}

static void build_layouts(struct net *net)
{
    const struct net_args *args = net->args;
    size_t slice = args->slice_bytes;
    if (slice == 0) { /* all in one pass */
        size_t granule = args->granule ? args->granule : LAYOUT_GRANULE;
        slice = (args->block_bytes / granule + 1) * granule;
    }
    for (int buf = BUF_IN; buf <= BUF_SCRATCH; buf++) {
        net->layouts[buf] = (struct layout){
            .nblocks = coll_blocks(net->sched->coll, (enum buf)buf, net->sched->nranks),
            .nparts = net->sched->nparts,
            .granule = args->granule ? args->granule : LAYOUT_GRANULE,
            .block_bytes = args->block_bytes,
            .slice_bytes = slice,
        };
    }
    net->passes = layout_passes(&net->layouts[BUF_IN]);
    for (int buf = BUF_IN; args->traffic && buf <= BUF_OUT; buf++) {
        net->offsets[buf] = mem_calloc(net->sched->nranks, sizeof *net->offsets[buf]);
        for (uint32_t r = 0; r < net->sched->nranks; r++)
            net->offsets[buf][r] = traffic_offsets(args->traffic, (enum buf)buf, r, args->esize);
    }
}

int net_check(const struct net_args *args, struct err *err)
{
    int bad = 0;
    if (!(args->beta_Bps > 0)) {
        bad = err_add(err, ERR_USAGE, "beta is %g bytes/s; it must be more than 0", args->beta_Bps);
    }
    if (!(args->gamma_Bps >= 0)) {
        bad = err_add(err, ERR_USAGE, "gamma is %g bytes/s; it must be 0 (free) or more",
                      args->gamma_Bps);
    }
    if (args->slots == 0) {
        bad = err_add(err, ERR_USAGE, "slots is 0; a wire needs room for at least 1 message");
    }
    if (args->slice_bytes % LAYOUT_GRANULE != 0) {
        size_t below = args->slice_bytes / LAYOUT_GRANULE * LAYOUT_GRANULE;
        bad = err_add(err, ERR_USAGE,
                      "slice is %zu bytes, which is no multiple of %d; nearest are %zu and %zu",
                      args->slice_bytes, LAYOUT_GRANULE, below, below + LAYOUT_GRANULE);
    }
    return bad;
}

/* Hands over what was counted. */
static void finish_result(struct net *net)
{
    struct net_result *result = &net->result;
    result->passes = net->passes;
    for (uint32_t r = 0; r < result->nranks; r++) {
        result->egress_bytes[r] = net->share.links[2 * r].bytes;
        result->ingress_bytes[r] = net->share.links[2 * r + 1].bytes;
        if (result->finish_ps[r] > result->total_ps) {
            result->total_ps = result->finish_ps[r];
        }
        if (net->args->keep_steps) {
            result->steps.spans[r] = (struct trace_span){0, result->finish_ps[r]};
        }
    }
    trace_sort(&result->steps);
}

static void net_release(struct net *net)
{
    queue_release(&net->queue);
    share_release(&net->share);
    for (int buf = BUF_IN; buf <= BUF_OUT; buf++) {
        for (uint32_t r = 0; net->offsets[buf] && r < net->sched->nranks; r++)
            free(net->offsets[buf][r]);
        free(net->offsets[buf]);
    }
    free(net->lane_base);
    free(net->lanes);
    free(net->wire_base);
    free(net->wire_of);
    free(net->wires);
    free(net->paths);
    free(net->messages);
    net_result_release(&net->result);
}

int net_run(const struct linked *linked, const struct net_args *args, struct net_result *result,
            struct err *err)
{
    if (net_check(args, err)) {
        return -1;
    }
    uint32_t n = linked->sched->nranks;
    struct net net = {
        .linked = linked, .sched = linked->sched, .args = args, .free_messages = NONE};
    net.result = (struct net_result){
        .nranks = n,
        .finish_ps = mem_calloc(n, sizeof *net.result.finish_ps),
        .egress_bytes = mem_calloc(n, sizeof *net.result.egress_bytes),
        .ingress_bytes = mem_calloc(n, sizeof *net.result.ingress_bytes),
    };
    if (args->keep_steps) {
        trace_init(&net.result.steps, n, 1e6, false);
    }
    build_layouts(&net);
    build_lanes(&net);
    int status = build_wires(&net, err);
    if (!status) {
        build_links(&net);
        status = loop(&net, err);
    }
    if (!status) {
        status = check_finished(&net, err);
    }
    if (!status) {
        finish_result(&net);
        status = check_bytes(&net, err) || check_physics(&net, err) ? -1 : 0;
    }
    if (!status) {
        *result = net.result;
        net.result = (struct net_result){0};
    }
    net_release(&net);
    return status;
}

void net_result_release(struct net_result *result)
{
    free(result->finish_ps);
    free(result->egress_bytes);
    free(result->ingress_bytes);
    free(result->log);
    trace_release(&result->steps);
    *result = (struct net_result){0};
}
