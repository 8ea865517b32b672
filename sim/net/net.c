/* SPDX-License-Identifier: Apache-2.0
 * Lanes, groups and messages of linked programs over shared links: see net.h. Everything happens
 * in one loop over the event queue; a lane that cannot go on stands in the list of the one wire or
 * lane it waits for, so an event costs only what it sets free. */
#include "net/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "net/fold.h"
#include "net/share.h"
#include "sched/layout.h"
#include "sched/pairs.h"

/* id: flow = wire, bucket, wire, lane, job */
enum event_kind { EV_FLOW, EV_BUCKET, EV_ARRIVE, EV_GROUP, EV_JOB };

#define NONE UINT32_MAX

/* One in-order worker of one rank. `pos` is the first record of the group it is at. */
struct lane {
    const struct lprog *prog;
    const uint32_t *wires;    /* of its rank: number by index in the program */
    uint32_t job, end_number; /* of its end in the job */
    uint32_t member, first, end, pos;
    uint32_t next;    /* in the list it stands in: of waiters, or of ready lanes */
    uint32_t waiters; /* lanes that wait for this one */
    uint32_t hands;   /* of its rank, in net.hands; NONE: it needs none */
    uint64_t pass;
    ps_t came_ps, begin_ps; /* of the group it is at: when it came there, and began */
};

/* The processor of a rank (struct net_hands). Lanes that could begin stand in `waiters` until all
 * of an instant is in: who is first must not hang on the order of its events, which folding
 * changes. */
struct hands {
    bool busy, listed; /* listed: in the list of net.idle */
    uint32_t waiters;
    uint32_t next; /* of that list */
};

/* Posted and not yet on the link: first in, first out per wire. */
struct message {
    uint64_t bytes;
    uint32_t next;
};

/* A wire of two ranks of a job; it has one flow, whose number is the wire's. */
struct wire {
    uint32_t src, dst; /* ends of the job */
    uint32_t job;
    uint16_t channel;
    uint8_t mode;
    bool local;          /* passes no link */
    uint32_t head, tail; /* messages, NONE when empty; the head is flowing */
    uint32_t waiters;    /* lanes that wait for an arrival or a release */
    uint32_t nmsgs;      /* per pass */
    ps_t latency_ps, overhead_ps;
    double stretch;
    uint64_t posted, arrived, released; /* messages */
    uint64_t sent_bytes, taken_bytes;
};

/* A schedule in the run. Its ends are members (ranks, then agents) of groups: that of member m of
 * group b has the number m x groups + b. Folded, members and groups are those that are run. */
struct job {
    const struct linked *linked;
    const struct sched *sched;
    const struct net_args *args;
    const struct net_job *asked; /* of net_run_jobs; else NULL */
    struct fold_place place;
    uint32_t ranks;              /* members of a group that are ranks, and run */
    uint32_t groups;             /* .. and run */
    uint32_t ends, nlanes, left; /* left: lanes that are not done; of a flood: flows */
    bool has_run;
    uint32_t before;          /* jobs that it still waits for */
    struct layout layouts[3]; /* of input, output, scratch planes */
    size_t **offsets[2];      /* of input and output, per rank, of uneven blocks; else NULL */
    bool even;                /* all chunks have `chunk_bytes` */
    bool timed;               /* groups can take time */
    size_t chunk_bytes;
    uint64_t passes;
    uint32_t *lane_base; /* per end, ends + 1: its first lane, in net.lanes */
    uint32_t *wire_base; /* per end, ends + 1: its first entry of wire_of */
    uint32_t *wire_of;   /* wire by (end, index in its program) */
    uint32_t first_wire, end_wire;
    size_t log_cap;
    struct net_result result;
};

struct net {
    const struct network *network;
    const double *rates; /* by enum net_kind: parts of links' rates; NULL: all */
    struct job *jobs;
    uint32_t njobs, jobs_cap;
    uint32_t *after_base, *after; /* per job, njobs + 1: the jobs that wait for it; or NULL */
    uint32_t *ended;              /* jobs, in the instant that is stepped through */
    uint32_t nended, ended_cap;
    double *carried, *posted; /* per link of the engine, by runs before the last of each job: bytes
                                 and messages; NULL: no job has run twice */
    struct fold fold;         /* of the only job */
    ps_t now_ps, end_ps;
    uint64_t events, trace;
    struct queue queue;
    struct share share;
    struct lane *lanes;
    uint32_t nlanes, lanes_cap;
    struct hands *hands; /* per rank of the network */
    uint32_t idle;       /* hands that have a lane to look at, as a list */
    struct wire *wires;
    uint32_t nwires, wires_cap;
    struct message *messages;
    uint32_t nmessages, messages_cap, free_messages;
    uint32_t ready_head, ready_tail; /* lanes to look at */
};

static const struct lprog *prog_of(const struct job *job, uint32_t member)
{
    return &job->linked->progs[job->sched->relative ? 0 : job->sched->prog_of[member]];
}

/* Bytes that a pass handles of `nchunks` chunks from `chunk` on, as a step of member `rank` names
 * them. */
static uint64_t slice_bytes(const struct job *job, uint32_t rank, uint32_t buf, uint32_t chunk,
                            uint32_t nchunks, uint64_t pass)
{
    struct layout layout = job->layouts[buf < BUF_SCRATCH ? buf : BUF_SCRATCH];
    if (job->even) {
        struct range whole = {0, job->chunk_bytes};
        return nchunks * range_slice(whole, layout.slice_bytes, pass).len;
    }
    if (buf < BUF_SCRATCH && job->offsets[buf]) layout.offsets = job->offsets[buf][rank];
    uint32_t total = layout.nblocks * layout.nparts;
    struct ref ref = sched_ref(job->sched, rank, (struct ref){buf, chunk});
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
    queue_put(&net->queue, ps_sum(net->now_ps, wire->latency_ps), EV_ARRIVE, number);
}

/* Lets the head of the line flow; messages that need no link are through at once. */
static void start_head(struct net *net, uint32_t number)
{
    struct wire *wire = &net->wires[number];
    while (wire->head != NONE) {
        uint64_t bytes = net->messages[wire->head].bytes;
        if (bytes > 0 && !wire->local) {
            share_start(&net->share, net->now_ps, number, (double)bytes * wire->stretch);
            return;
        }
        drained(net, number);
    }
}

static void log_message(struct job *job, const struct wire *wire, uint64_t bytes)
{
    struct net_result *result = &job->result;
    MEM_GROW(result->log, result->nlog, job->log_cap);
    result->log[result->nlog++] = (struct msg_log){.src = wire->src,
                                                   .dst = wire->dst,
                                                   .channel = wire->channel,
                                                   .number = wire->posted,
                                                   .bytes = bytes};
}

static void post(struct net *net, struct job *job, uint32_t number, uint64_t bytes)
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
    if (job->args->keep_log) {
        log_message(job, wire, bytes);
    }
    wire->posted++;
    wire->sent_bytes += bytes;
    if (idle) {
        start_head(net, number);
    }
}

static void release(struct net *net, struct job *job, struct wire *wire, uint64_t bytes)
{
    wire->released++;
    wire->taken_bytes += bytes;
    if (wire->mode == WIRE_PULL && wire->src < job->ranks * job->groups) {
        job->result.finish_ps[wire->src] = net->now_ps;
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
        struct lane *other =
            &net->lanes[net->jobs[lane->job].lane_base[lane->end_number] + wait->index];
        bool done = other->pass > pass || (other->pass == pass && other->pos > wait->number);
        return done ? (struct block){0}
                    : (struct block){&other->waiters, "the end of record", wait->number, NULL};
    }
    struct wire *wire = &net->wires[lane->wires[wait->index]];
    uint64_t number = pass * wire->nmsgs + wait->number;
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
    struct wire *wire = &net->wires[lane->wires[step->wire]];
    uint64_t number = lane->pass * wire->nmsgs + step->msg;
    if (info->receives) {
        return number < wire->arrived
                   ? (struct block){0}
                   : (struct block){&wire->waiters, "the arrival of message", number, wire};
    }
    return number < wire->released + net->jobs[lane->job].args->slots
               ? (struct block){0}
               : (struct block){&wire->waiters, "room for message", number, wire};
}

/* The first thing that the lane's group still waits for. */
static struct block group_block(struct net *net, const struct lane *lane)
{
    const struct lprog *prog = lane->prog;
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

/* Bytes that a record reads and writes: `first` if its group starts with it. */
struct touched {
    double buffers, slots; /* in units of its own bytes */
};

static struct touched touched_by(const struct net *net, const struct lane *lane,
                                 const struct lstep *step, bool first)
{
    const struct step_info *info = step_info(step->kind);
    bool stores = info->writes && !(step->flags & LS_NOSTORE);
    double reads = (info->reads_src && !(step->flags & LS_ACC)) + info->reads_src2;
    if (!info->sends && !info->receives) return (struct touched){reads + stores, 0};
    uint8_t mode = net->wires[lane->wires[step->wire]].mode;
    if (info->sends) { /* behind other records it sends their value */
        if (mode == WIRE_PULL) return (struct touched){0, 0};
        return mode == WIRE_PUSH ? (struct touched){first + 1, 0} : (struct touched){first, 1};
    }
    if (mode == WIRE_PUSH && !info->reduces) return (struct touched){0, 0};
    bool slot = mode == WIRE_STAGED || mode == WIRE_LL;
    return (struct touched){reads + stores + !slot, slot};
}

/* Time the rank's hands take for the lane's group, in picoseconds. */
static double hands_time(const struct net *net, const struct lane *lane)
{
    const struct job *job = &net->jobs[lane->job];
    const struct net_hands *hands = job->args->hands;
    uint32_t last = group_last(lane->prog, lane->pos);
    double time = 0;
    for (uint32_t i = lane->pos; i <= last; i++) {
        const struct lstep *step = &lane->prog->steps[i];
        bool sends = step_info(step->kind)->sends;
        struct touched touched = touched_by(net, lane, step, i == lane->pos);
        uint64_t bytes = slice_bytes(job, lane->member, sends ? step->src_buf : step->dst_buf,
                                     sends ? step->src : step->dst, step->nchunks, lane->pass);
        time += (double)bytes * 1e12 *
                (touched.buffers / hands->buffer_Bps + touched.slots / hands->slot_Bps);
        if (sends) time += (double)net->wires[lane->wires[step->wire]].overhead_ps;
    }
    return time;
}

/* Time the lane is busy with its group, in picoseconds. */
static double group_time(const struct net *net, const struct lane *lane)
{
    const struct job *job = &net->jobs[lane->job];
    double gamma = job->args->gamma_Bps, time = 0;
    uint32_t last = group_last(lane->prog, lane->pos);
    for (uint32_t i = lane->pos; job->timed && i <= last; i++) {
        const struct lstep *step = &lane->prog->steps[i];
        const struct step_info *info = step_info(step->kind);
        if (info->sends) {
            time += (double)net->wires[lane->wires[step->wire]].overhead_ps;
        } else if (gamma > 0 && (info->reduces || step->kind == STEP_COPY)) {
            uint64_t bytes =
                slice_bytes(job, lane->member, step->dst_buf, step->dst, step->nchunks, lane->pass);
            time += (double)bytes / gamma * 1e12;
        }
    }
    return time;
}

/* Record `r` of the lane's group, which ends now. */
static void add_step(struct net *net, struct job *job, const struct lane *lane, uint32_t r)
{
    const struct lprog *prog = lane->prog;
    const struct lstep *step = &prog->steps[r];
    const struct step_info *info = step_info(step->kind);
    struct ref ref = info->sends ? (struct ref){step->src_buf, step->src}
                                 : (struct ref){step->dst_buf, step->dst};
    struct trace_event event = {
        .rank = lane->end_number,
        .lane = (uint32_t)(lane - net->lanes) - job->lane_base[lane->end_number],
        .step = prog->source[r],
        .record = r,
        .group = lane->pos,
        .kind = step->kind,
        .chunk = sched_ref(job->sched, lane->member, ref).chunk,
        .nchunks = step->nchunks,
        .pass = lane->pass,
        .bytes = slice_bytes(job, lane->member, ref.buf, ref.chunk, step->nchunks, lane->pass),
        .came = lane->came_ps,
        .begin = lane->begin_ps,
        .end = net->now_ps,
    };
    if (info->sends || info->receives) {
        const struct wire *wire = &net->wires[lane->wires[step->wire]];
        event.peer = info->sends ? wire->dst : wire->src;
        event.channel = wire->channel;
        event.number = lane->pass * wire->nmsgs + step->msg;
    }
    trace_add(&job->result.steps, &event);
}

/* A lane of the job is done, or it has none: the last one starts the jobs that wait for it. */
static void end_job(struct net *net, struct job *job)
{
    uint32_t number = (uint32_t)(job - net->jobs);
    MEM_GROW(net->ended, net->nended, net->ended_cap);
    net->ended[net->nended++] = number;
    if (!net->after_base) return;
    for (uint32_t i = net->after_base[number]; i < net->after_base[number + 1]; i++) {
        struct job *next = &net->jobs[net->after[i]];
        if (--next->before == 0) {
            queue_put(&net->queue, ps_sum(net->now_ps, next->asked->start_ps), EV_JOB,
                      net->after[i]);
        }
    }
}

/* Posts what the group sends, releases what it received, and goes on to the next group. */
static void end_group(struct net *net, uint32_t number)
{
    struct lane *lane = &net->lanes[number];
    struct job *job = &net->jobs[lane->job];
    const struct lprog *prog = lane->prog;
    uint32_t last = group_last(prog, lane->pos);
    for (uint32_t i = lane->pos; i <= last; i++) {
        const struct lstep *step = &prog->steps[i];
        const struct step_info *info = step_info(step->kind);
        if (info->sends) {
            post(net, job, lane->wires[step->wire],
                 slice_bytes(job, lane->member, step->src_buf, step->src, step->nchunks,
                             lane->pass));
        } else if (info->receives) {
            release(net, job, &net->wires[lane->wires[step->wire]],
                    slice_bytes(job, lane->member, step->dst_buf, step->dst, step->nchunks,
                                lane->pass));
        }
    }
    for (uint32_t i = lane->pos; job->args->keep_steps && i <= last; i++) {
        add_step(net, job, lane, i);
    }
    lane->came_ps = net->now_ps;
    lane->pos = last + 1;
    if (lane->member < job->sched->nranks) {
        job->result.finish_ps[lane->end_number] = net->now_ps;
    }
    if (lane->pos == lane->end) {
        lane->pos = lane->first;
        if (++lane->pass == job->passes && --job->left == 0) {
            end_job(net, job);
        }
    }
    wake(net, &lane->waiters);
}

static void list_hands(struct net *net, uint32_t number)
{
    struct hands *hands = &net->hands[number];
    if (hands->listed || hands->busy || hands->waiters == NONE) return;
    hands->listed = true;
    hands->next = net->idle;
    net->idle = number;
}

/* Takes out of the waiters the lane that has come to its group first; of several, the first. */
static uint32_t take_lane(struct net *net, struct hands *hands)
{
    uint32_t *first = &hands->waiters;
    for (uint32_t *at = first; *at != NONE; at = &net->lanes[*at].next) {
        ps_t came = net->lanes[*at].came_ps, least = net->lanes[*first].came_ps;
        if (came < least || (came == least && *at < *first)) first = at;
    }
    uint32_t lane = *first;
    *first = net->lanes[lane].next;
    return lane;
}

/* All of an instant is in: idle hands begin a group. */
static void deal_hands(struct net *net)
{
    while (net->idle != NONE) {
        struct hands *hands = &net->hands[net->idle];
        uint32_t number = take_lane(net, hands);
        struct lane *lane = &net->lanes[number];
        net->idle = hands->next;
        hands->listed = false;
        hands->busy = true;
        lane->begin_ps = net->now_ps;
        queue_put(&net->queue, ps_add(net->now_ps, hands_time(net, lane)), EV_GROUP, number);
    }
}

/* Runs groups of a lane until one has to wait, for hands too, or takes time. */
static void advance(struct net *net, uint32_t number)
{
    struct lane *lane = &net->lanes[number];
    uint64_t passes = net->jobs[lane->job].passes;
    while (lane->pass < passes) {
        struct block block = group_block(net, lane);
        if (block.waiters) {
            lane->next = *block.waiters;
            *block.waiters = number;
            return;
        }
        if (lane->hands != NONE) {
            lane->next = net->hands[lane->hands].waiters;
            net->hands[lane->hands].waiters = number;
            list_hands(net, lane->hands);
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

/* All messages of a lane go on their wires at once. */
static void pour(struct net *net, struct lane *lane)
{
    const struct job *job = &net->jobs[lane->job];
    for (uint32_t i = lane->first; i < lane->end && lane->pass < job->passes; i++) {
        const struct lstep *step = &lane->prog->steps[i];
        if (!step_info(step->kind)->sends) continue;
        struct wire *wire = &net->wires[lane->wires[step->wire]];
        wire->sent_bytes +=
            slice_bytes(job, lane->member, step->src_buf, step->src, step->nchunks, 0);
        wire->taken_bytes = wire->sent_bytes;
        wire->released = wire->arrived = ++wire->posted;
    }
    lane->pass = job->passes;
}

/* Lanes go; or, where nothing waits (net_args.flood), all bytes. */
static void start_lanes(struct net *net, struct job *job)
{
    uint32_t first = job->lane_base[0];
    bool floods = job->args->flood;
    for (uint32_t i = first; i < first + job->nlanes; i++) {
        struct lane *lane = &net->lanes[i];
        lane->came_ps = net->now_ps;
        if (floods)
            pour(net, lane);
        else if (lane->pass < job->passes)
            make_ready(net, i);
    }
    if (!floods) return;
    job->left = 0;
    for (uint32_t w = job->first_wire; w < job->end_wire; w++) {
        const struct wire *wire = &net->wires[w];
        if (wire->sent_bytes == 0 || wire->local) continue;
        share_start(&net->share, net->now_ps, w, (double)wire->sent_bytes * wire->stretch);
        job->left++;
    }
}

static void note_finish(const struct net *net, struct job *job)
{
    for (uint32_t r = 0; r < job->result.nranks; r++) {
        job->result.finish_ps[r] = net->now_ps;
    }
}

static void start_job(struct net *net, struct job *job)
{
    job->result.start_ps = net->now_ps;
    note_finish(net, job);
    start_lanes(net, job);
    if (job->left == 0) {
        end_job(net, job);
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

static void end_flow(struct net *net, uint32_t number)
{
    struct job *job = &net->jobs[net->wires[number].job];
    share_end(&net->share, number);
    if (!job->args->flood) {
        drained(net, number);
        start_head(net, number);
    } else if (--job->left == 0) {
        note_finish(net, job);
        end_job(net, job);
    }
}

static void dispatch(struct net *net, const struct event *event)
{
    switch ((enum event_kind)event->kind) {
    case EV_FLOW:
        end_flow(net, event->id);
        return;
    case EV_BUCKET:
        share_empty(&net->share, event->time_ps, event->id);
        return;
    case EV_ARRIVE:
        net->wires[event->id].arrived++;
        wake(net, &net->wires[event->id].waiters);
        break;
    case EV_GROUP:
        end_group(net, event->id);
        make_ready(net, event->id);
        if (net->lanes[event->id].hands != NONE) {
            net->hands[net->lanes[event->id].hands].busy = false;
            list_hands(net, net->lanes[event->id].hands);
        }
        break;
    case EV_JOB:
        start_job(net, &net->jobs[event->id]);
        break;
    }
    run_ready(net);
}

/* One word into the hash of the trace (FNV-1a, on words instead of bytes). */
static uint64_t hash(uint64_t h, uint64_t word)
{
    return (h ^ word) * 0x100000001b3u;
}

/* Takes the next event, and once all of its instant are in, settles what they changed. */
static int take_event(struct net *net, struct err *err)
{
    struct event event;
    queue_take(&net->queue, &event);
    if (event.time_ps == PS_NEVER)
        return err_add(err, ERR_USAGE,
                       "the simulated time passes 213 days (2^64 ps): make the size or the latency "
                       "smaller, or the bandwidth higher");
    net->now_ps = event.time_ps;
    net->events++;
    net->trace = hash(net->trace, event.time_ps);
    net->trace = hash(net->trace, (uint64_t)event.kind << 32 | event.id);
    dispatch(net, &event);
    if (queue_time(&net->queue) > net->now_ps) deal_hands(net);
    if (queue_time(&net->queue) > net->now_ps) share_settle(&net->share, net->now_ps);
    return 0;
}

static int loop(struct net *net, struct err *err)
{
    int bad = 0;
    for (uint32_t j = 0; j < net->njobs; j++) {
        if (net->jobs[j].before == 0) {
            queue_put(&net->queue, net->jobs[j].asked->start_ps, EV_JOB, j);
        }
    }
    while (!bad && net->queue.count > 0) {
        bad = take_event(net, err);
    }
    return bad;
}

/* ---- what must hold at the end ---- */

static int check_finished(struct net *net, struct err *err)
{
    uint32_t unfinished = 0, first = NONE;
    for (uint32_t i = 0; i < net->nlanes; i++) {
        if (net->lanes[i].pass < net->jobs[net->lanes[i].job].passes) {
            first = first == NONE ? i : first;
            unfinished++;
        }
    }
    if (first == NONE) {
        return 0;
    }
    struct lane *lane = &net->lanes[first];
    const struct job *job = &net->jobs[lane->job];
    struct block block = group_block(net, lane);
    char wire[96] = "", which[24] = "";
    if (block.wire) {
        snprintf(wire, sizeof wire, " on the wire %u -> %u channel %u", block.wire->src,
                 block.wire->dst, block.wire->channel);
    }
    if (net->njobs > 1) {
        snprintf(which, sizeof which, "job %u ", lane->job);
    }
    return err_add(
        err, ERR_FAILED,
        "deadlock: %u of %u lanes cannot go on; first %s%s %u lane %u at step %u (%s) "
        "of pass %llu, which waits for %s %llu%s; wires have room for %u message(s)",
        unfinished, net->nlanes, which, sched_end_word(job->sched, lane->member), lane->end_number,
        first - job->lane_base[lane->end_number], lane->prog->source[lane->pos],
        step_info(lane->prog->steps[lane->pos].kind)->name, (unsigned long long)lane->pass,
        block.what, (unsigned long long)block.number, wire, job->args->slots);
}

/* .. on wires first .. end - 1. */
static int check_bytes(const struct net *net, uint32_t first, uint32_t end, struct err *err)
{
    for (uint32_t i = first; i < end; i++) {
        const struct wire *wire = &net->wires[i];
        const struct job *job = &net->jobs[wire->job];
        if (wire->posted != wire->released || wire->sent_bytes != wire->taken_bytes) {
            return err_add(err, ERR_FAILED,
                           "%s %u sent %llu messages, %llu bytes, to %s %u on channel %u, "
                           "which took %llu messages, %llu bytes",
                           sched_end_word(job->sched, wire->src / job->groups), wire->src,
                           (unsigned long long)wire->posted, (unsigned long long)wire->sent_bytes,
                           sched_end_word(job->sched, wire->dst / job->groups), wire->dst,
                           wire->channel, (unsigned long long)wire->released,
                           (unsigned long long)wire->taken_bytes);
        }
    }
    return 0;
}

/* The network's link that a link of the engine is: itself, or one of its class. */
static uint32_t real_link(const struct net *net, uint32_t link)
{
    return net->fold.class_of ? net->fold.link[link] : link;
}

/* That link, at the part of its rate that is left to the run. */
static struct net_link engine_link(const struct net *net, uint32_t link)
{
    uint32_t real = real_link(net, link);
    struct net_link out = network_link(net->network, real);
    if (net->rates) {
        double rate = net->rates[network_meets(net->network, real)];
        out.capacity_Bps *= rate;
        out.peak_Bps *= rate;
    }
    return out;
}

/* Most bytes that a link can carry in a time: a bucket gives its tokens on top, once. */
static double most_bytes(const struct net_link *link, double time_ps)
{
    double sustained = link->capacity_Bps * time_ps / 1e12;
    if (link->peak_Bps <= 0) {
        return sustained;
    }
    double peak = link->peak_Bps * time_ps / 1e12;
    return peak < sustained + link->bucket_bytes ? peak : sustained + link->bucket_bytes;
}

/* Adds what wires carried over each link of the engine: stretched bytes, and messages if asked. */
static void add_carried(const struct net *net, uint32_t first, uint32_t end, double *bytes,
                        double *messages)
{
    for (uint32_t w = first; w < end; w++) {
        const struct flow *flow = &net->share.flows[w];
        for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
            const struct hop *hop = &net->share.hops[h];
            const struct wire *wire = &net->wires[w];
            bytes[hop->link] += (double)wire->sent_bytes * wire->stretch * hop->times;
            if (messages) messages[hop->link] += (double)wire->posted * hop->times;
        }
    }
}

/* No link can carry more than its capacity allows in the time; a transfer can end 1.5 ps early, by
 * rounding and together with another, and its start and its end can let a bucket fill that is then
 * found empty half a picosecond late. */
static int check_physics(const struct net *net, struct err *err)
{
    double *bytes = mem_calloc(net->share.nlinks, sizeof *bytes);
    double *messages = mem_calloc(net->share.nlinks, sizeof *messages);
    add_carried(net, 0, net->nwires, bytes, messages);
    int bad = 0;
    for (uint32_t i = 0; net->carried && i < net->share.nlinks; i++) {
        bytes[i] += net->carried[i];
        messages[i] += net->posted[i];
    }
    for (uint32_t i = 0; i < net->share.nlinks && !bad; i++) {
        struct net_link link = engine_link(net, i);
        double had_ps = (double)net->end_ps;
        double rate = fmax(link.capacity_Bps, link.peak_Bps) / 1e12;
        double most = most_bytes(&link, had_ps * (1 + 1e-9)) + 2.5 * rate * messages[i];
        if (bytes[i] > most * (1 + 1e-9)) {
            char *name = network_link_name(net->network, real_link(net, i));
            bad = err_add(err, ERR_FAILED,
                          "the link %s carried %.0f bytes in %.0f ps, in which it can carry %.0f",
                          name, bytes[i], had_ps, most);
            free(name);
        }
    }
    free(bytes);
    free(messages);
    return bad;
}

/* ---- life cycle ---- */

/* Where the ends of a job are. */
static struct fold_place place_of(const struct network *network, const struct net_job *job)
{
    uint32_t groups = job->args->groups ? job->args->groups : 1;
    return (struct fold_place){.sched = job->linked->sched,
                               .network = job->routes ? job->routes : network,
                               .ranks = job->ranks,
                               .base = job->args->base,
                               .groups = groups};
}

/* Whose hands move what an end of the job sends and receives: an agent needs none. */
static uint32_t hands_of(const struct job *job, uint32_t member, uint32_t group)
{
    return job->args->hands && member < job->sched->nranks ? fold_end(&job->place, member, group)
                                                           : NONE;
}

/* Whether a lane is run: not if it is of a channel that another stands for. */
static bool is_run(const struct net *net, const struct lprog *prog, uint32_t lane)
{
    uint32_t first = prog->lane_start[lane], end = prog->lane_start[lane + 1];
    for (uint32_t i = first; net->fold.class_of && i < end; i++) {
        const struct step_info *info = step_info(prog->steps[i].kind);
        if (info->sends || info->receives)
            return fold_runs(&net->fold, prog->wires[prog->steps[i].wire].channel);
    }
    return first < end;
}

/* Lanes of a job, from net.lanes[base] on. */
static void build_lanes(struct net *net, struct job *job, uint32_t base)
{
    uint32_t count = base;
    for (uint32_t e = 0; e < job->ends; e++) {
        uint32_t member = e / job->groups;
        const struct lprog *prog = prog_of(job, member);
        for (uint32_t l = 0; l < prog->nlanes; l++, count++) {
            uint32_t first = prog->lane_start[l];
            bool runs = is_run(net, prog, l);
            net->lanes[count] = (struct lane){.prog = prog,
                                              .wires = &job->wire_of[job->wire_base[e]],
                                              .job = (uint32_t)(job - net->jobs),
                                              .end_number = e,
                                              .member = member,
                                              .first = first,
                                              .end = prog->lane_start[l + 1],
                                              .pos = first,
                                              .pass = runs ? 0 : job->passes,
                                              .next = NONE,
                                              .waiters = NONE,
                                              .hands = hands_of(job, member, e % job->groups)};
            job->left += runs;
        }
    }
}

/* A wire of end `src` of the job. */
struct new_wire {
    uint32_t member, peer, group; /* from, to, and of both */
    const struct lwire *end;
};

/* Its costs, its route and its flow. */
static void add_wire(struct net *net, struct job *job, const struct new_wire *new)
{
    const struct net_args *args = job->args;
    const struct lwire *end = new->end;
    uint32_t path[NETWORK_HOPS], times[NETWORK_HOPS];
    uint32_t from = fold_end(&job->place, new->member, new->group);
    uint32_t to = fold_end(&job->place, new->peer, new->group);
    const struct network *routes = job->place.network;
    uint32_t hops = network_route(routes, from, to, end->channel, path);
    enum net_scope scope = network_scope(routes, from, to);
    struct net_cost cost = args->costs ? args->costs[scope] : (struct net_cost){0};
    ps_t latency = cost.latency_ps;
    double slower = routes != net->network && hops > 0 ? 0 : 1; /* links than the run's */
    for (uint32_t i = 0; i < hops; i++) {
        struct net_link link = network_link(routes, path[i]);
        latency += link.latency_ps;
        if (routes != net->network)
            slower =
                fmax(slower, network_link(net->network, path[i]).capacity_Bps / link.capacity_Bps);
        times[i] = 1;
        if (net->fold.class_of) {
            path[i] = net->fold.class_of[path[i]];
            times[i] = net->fold.stands_for / net->fold.size[path[i]];
        }
    }
    share_add(&net->share, path, times, hops, cost.weight > 0 ? cost.weight : 1,
              cost.most_Bps * slower);
    MEM_GROW(net->wires, net->nwires, net->wires_cap);
    net->wires[net->nwires++] =
        (struct wire){.src = new->member * job->groups + new->group,
                      .dst = new->peer * job->groups + new->group,
                      .job = (uint32_t)(job - net->jobs),
                      .channel = end->channel,
                      .mode = end->mode,
                      .local = hops == 0,
                      .head = NONE,
                      .tail = NONE,
                      .waiters = NONE,
                      .nmsgs = end->nmsgs,
                      .latency_ps = latency,
                      .overhead_ps = args->overhead_ps + cost.overhead_ps,
                      .stretch = slower *(cost.stretch > 0 ? cost.stretch : 1)};
    job->timed |= args->overhead_ps + cost.overhead_ps > 0;
}

/* An agent inside a domain speaks with the ranks of that domain alone. Checks the wire of an end to
 * another. */
static int check_wire(const struct job *job, const struct new_wire *new, struct err *err)
{
    const struct sched *sched = job->sched;
    uint32_t rank = new->member < new->peer ? new->member : new->peer;
    uint32_t end = new->member < new->peer ? new->peer : new->member;
    if (end < sched->nranks || rank >= sched->nranks || sched->agents[end - sched->nranks].across) {
        return 0;
    }
    uint32_t rank_end = fold_end(&job->place, rank, new->group);
    uint32_t own = network_agent_of(job->place.network, SCOPE_DOMAIN, rank_end, 0);
    if (own == fold_end(&job->place, end, new->group)) {
        return 0;
    }
    return err_add(err, ERR_USAGE,
                   "%s reduces for rank %u inside the domain of rank %u, in which it is not",
                   sched->name, rank, sched->agents[end - sched->nranks].rank);
}

/* Gives wire `w` of end `e` a number, and the receiver's end of it the same. Folded, the receiver
 * is the peer's representative. */
static int build_wire(struct net *net, struct job *job, uint32_t e, uint32_t w, struct err *err)
{
    const struct sched *sched = job->sched;
    struct new_wire new = {.member = e / job->groups, .group = e % job->groups};
    const struct lwire *end = new.end = &prog_of(job, new.member)->wires[w];
    uint32_t peer = new.peer = sched_peer(sched, new.member, end->peer);
    const struct lprog *theirs = prog_of(job, peer);
    uint32_t other = wire_other_end(sched, new.member, end, theirs->wires, theirs->nwires);
    if (other == NO_WIRE || theirs->wires[other].nmsgs != end->nmsgs) {
        return err_add(err, ERR_FAILED,
                       "%s %u sends %u message(s) per pass to %s %u on channel %u, "
                       "which receives %u",
                       sched_end_word(sched, new.member), new.member, end->nmsgs,
                       sched_end_word(sched, peer), peer, end->channel,
                       other == NO_WIRE ? 0 : theirs->wires[other].nmsgs);
    }
    if (check_wire(job, &new, err)) {
        return -1;
    }
    uint32_t keeper = peer < sched->nranks ? peer % job->ranks : peer;
    job->wire_of[job->wire_base[e] + w] = net->nwires;
    job->wire_of[job->wire_base[keeper * job->groups + new.group] + other] = net->nwires;
    add_wire(net, job, &new);
    return 0;
}

/* Gives each pair of ends one wire, numbered by sender. */
static int build_wires(struct net *net, struct job *job, struct err *err)
{
    job->first_wire = net->nwires;
    job->timed = job->args->gamma_Bps > 0;
    for (uint32_t e = 0; e < job->ends; e++) {
        const struct lprog *prog = prog_of(job, e / job->groups);
        for (uint32_t w = 0; w < prog->nwires; w++) {
            bool run = prog->wires[w].send &&
                       (!net->fold.class_of || fold_runs(&net->fold, prog->wires[w].channel));
            if (run && build_wire(net, job, e, w, err)) return -1;
        }
    }
    job->end_wire = net->nwires;
    return 0;
}

/* The links: those of the network, or one of each class. */
static void build_links(struct net *net)
{
    uint32_t nlinks = net->fold.class_of ? net->fold.nclasses : network_links(net->network);
    struct share_link *links = mem_calloc(nlinks, sizeof *links);
    for (uint32_t i = 0; i < nlinks; i++) {
        struct net_link link = engine_link(net, i);
        links[i] = (struct share_link){link.capacity_Bps, link.peak_Bps, link.bucket_bytes};
    }
    share_init(&net->share, &net->queue, EV_FLOW, EV_BUCKET, nlinks, links);
    free(links);
}

static void build_layouts(struct job *job)
{
    const struct net_args *args = job->args;
    uint32_t n = job->sched->nranks;
    size_t slice = args->slice_bytes, granule = args->granule ? args->granule : LAYOUT_GRANULE;
    if (slice == 0) { /* all in one pass */
        slice = (args->block_bytes / granule + 1) * granule;
    }
    for (int buf = BUF_IN; buf <= BUF_SCRATCH; buf++) {
        job->layouts[buf] = (struct layout){
            .nblocks = coll_blocks(job->sched->coll, (enum buf)buf, n),
            .nparts = job->sched->nparts,
            .granule = granule,
            .block_bytes = args->block_bytes,
            .slice_bytes = slice,
        };
    }
    job->passes = layout_passes(&job->layouts[BUF_IN]);
    job->chunk_bytes = args->block_bytes / job->sched->nparts;
    job->even = !args->traffic && (job->sched->nparts == 1 ||
                                   args->block_bytes % (granule * job->sched->nparts) == 0);
    for (int buf = BUF_IN; args->traffic && buf <= BUF_OUT; buf++) {
        job->offsets[buf] = mem_calloc(n, sizeof *job->offsets[buf]);
        for (uint32_t r = 0; r < n; r++)
            job->offsets[buf][r] = traffic_offsets(args->traffic, (enum buf)buf, r, args->esize);
    }
}

int net_check(const struct net_args *args, struct err *err)
{
    int bad = 0;
    if (!args->network && !(args->beta_Bps > 0)) {
        bad = err_add(err, ERR_USAGE, "beta is %g bytes/s; it must be more than 0", args->beta_Bps);
    }
    if (!(args->gamma_Bps >= 0)) {
        bad = err_add(err, ERR_USAGE, "gamma is %g bytes/s; it must be 0 (free) or more",
                      args->gamma_Bps);
    }
    if (args->hands && (!(args->hands->buffer_Bps > 0) || !(args->hands->slot_Bps > 0))) {
        bad = err_add(err, ERR_USAGE,
                      "hands move %g bytes/s of buffers and %g of slots; both must be more than 0",
                      args->hands->buffer_Bps, args->hands->slot_Bps);
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

/* Whether the network has the ranks that the job's schedule, or its list, names, and switches that
 * reduce where the schedule wants them. */
static int check_ends(const struct net *net, const struct net_job *job, struct err *err)
{
    const struct sched *sched = job->linked->sched;
    struct fold_place place = place_of(net->network, job);
    uint32_t ranks = network_ranks(net->network);
    uint64_t all = (uint64_t)sched->nranks * place.groups;
    uint64_t end = job->ranks ? all : all + place.base;
    int bad = 0;
    if (!job->ranks && end > ranks) {
        return err_add(err, ERR_USAGE, "%s is for %llu ranks; the network has %u", sched->name,
                       (unsigned long long)end, ranks);
    }
    for (uint32_t r = 0; job->ranks && r < all; r++) {
        if (job->ranks[r] >= ranks) {
            bad =
                err_add(err, ERR_USAGE, "%s: rank %u is rank %u of the network, which has 0 to %u",
                        sched->name, r, job->ranks[r], ranks - 1);
        }
    }
    for (uint32_t i = 0; i < sched->nagents * place.groups && !bad; i++) {
        uint32_t a = i / place.groups;
        if (fold_end(&place, sched->nranks + a, i % place.groups) == NONE) {
            bad = err_add(err, ERR_USAGE,
                          "%s reduces inside the switch that rank %u reaches first %s; the network "
                          "has none there that can",
                          sched->name, sched->agents[a].rank,
                          sched->agents[a].across ? "between hosts" : "in its domain");
        }
    }
    return bad;
}

static int check_job(const struct net *net, const struct net_job *job, struct err *err)
{
    struct net_args args = *job->args;
    args.network = net->network;
    return net_check(&args, err) | check_ends(net, job, err);
}

static int check_jobs(const struct net *net, const struct net_job *jobs, struct err *err)
{
    int bad = 0;
    for (uint32_t j = 0; j < net->njobs; j++) {
        bad |= check_job(net, &jobs[j], err);
        for (uint32_t i = 0; i < jobs[j].nafter; i++) {
            if (jobs[j].after[i] >= j) {
                bad = err_add(err, ERR_USAGE, "job %u is after job %u; it can be after 0 to %u", j,
                              jobs[j].after[i], j - 1);
            }
        }
    }
    return bad;
}

/* Turns `after` round: per job, those that wait for it. */
static void build_order(struct net *net)
{
    net->after_base = mem_calloc((size_t)net->njobs + 1, sizeof *net->after_base);
    for (uint32_t j = 0; j < net->njobs; j++) {
        const struct net_job *job = net->jobs[j].asked;
        net->jobs[j].before = job->nafter;
        for (uint32_t i = 0; i < job->nafter; i++) {
            net->after_base[job->after[i] + 1]++;
        }
    }
    for (uint32_t j = 0; j < net->njobs; j++) {
        net->after_base[j + 1] += net->after_base[j];
    }
    net->after = mem_calloc(net->after_base[net->njobs], sizeof *net->after);
    uint32_t *at = mem_calloc((size_t)net->njobs, sizeof *at);
    for (uint32_t j = 0; j < net->njobs; j++) {
        const struct net_job *job = net->jobs[j].asked;
        for (uint32_t i = 0; i < job->nafter; i++) {
            net->after[net->after_base[job->after[i]] + at[job->after[i]]++] = j;
        }
    }
    free(at);
}

/* Looks for a symmetry if that was asked for and nothing forbids it. */
static void find_fold(struct net *net, bool fold)
{
    struct job *job = &net->jobs[0];
    struct net_result *result = &job->result;
    if (!fold) {
        return;
    }
    if (job->args->keep_log || job->args->keep_steps) {
        snprintf(result->why, sizeof result->why, "every message or step was to be kept");
        return;
    }
    fold_find(&net->fold, job->linked, &job->place, job->even, !job->args->hands);
    result->stands_for = net->fold.stands_for;
    snprintf(result->why, sizeof result->why, "%s", net->fold.why);
}

/* Bases of a job's lanes and wires; lanes go on from `nlanes` of the run. */
static void build_bases(struct net *net, struct job *job)
{
    bool folded = net->fold.class_of;
    uint32_t members = folded ? net->fold.members : sched_ends(job->sched);
    job->groups = folded ? net->fold.groups : job->place.groups;
    job->ranks = members < job->sched->nranks ? members : job->sched->nranks;
    job->ends = members * job->groups;
    job->result.classes = job->ranks * job->groups;
    job->lane_base = mem_calloc((size_t)job->ends + 1, sizeof *job->lane_base);
    job->wire_base = mem_calloc((size_t)job->ends + 1, sizeof *job->wire_base);
    job->lane_base[0] = net->nlanes;
    for (uint32_t e = 0; e < job->ends; e++) {
        const struct lprog *prog = prog_of(job, e / job->groups);
        job->lane_base[e + 1] = job->lane_base[e] + prog->nlanes;
        job->wire_base[e + 1] = job->wire_base[e] + prog->nwires;
    }
    job->nlanes = job->lane_base[job->ends] - net->nlanes;
    job->wire_of = mem_calloc(job->wire_base[job->ends], sizeof *job->wire_of);
    net->nlanes += job->nlanes;
}

/* A job as it is asked for, without lanes and wires yet. */
static struct job job_of(const struct net *net, const struct net_job *asked)
{
    const struct sched *sched = asked->linked->sched;
    struct fold_place place = place_of(net->network, asked);
    uint32_t nranks = sched->nranks * place.groups;
    struct job job = {.linked = asked->linked,
                      .sched = sched,
                      .args = asked->args,
                      .place = place,
                      .result = {.nranks = nranks, .stands_for = 1}};
    job.result.finish_ps = mem_calloc(nranks, sizeof *job.result.finish_ps);
    if (job.args->keep_steps) {
        trace_init(&job.result.steps, sched_ends(sched) * place.groups, 1e6,
                   job.args->hands != NULL);
    }
    build_layouts(&job);
    return job;
}

/* Its wires and lanes, behind those that are there. */
static int build_job(struct net *net, struct job *job, struct err *err)
{
    build_bases(net, job);
    if (build_wires(net, job, err)) return -1;
    if (net->nlanes > net->lanes_cap) {
        net->lanes_cap = net->nlanes > 2 * net->lanes_cap ? net->nlanes : 2 * net->lanes_cap;
        net->lanes = mem_realloc(net->lanes, net->lanes_cap, sizeof *net->lanes);
    }
    build_lanes(net, job, job->lane_base[0]);
    return 0;
}

/* What all jobs share. */
static void build_common(struct net *net)
{
    build_links(net);
    net->hands = mem_calloc(network_ranks(net->network), sizeof *net->hands);
    for (uint32_t r = 0; r < network_ranks(net->network); r++) {
        net->hands[r].waiters = NONE;
    }
    net->idle = net->ready_head = net->free_messages = NONE;
}

static int build(struct net *net, const struct net_job *jobs, bool fold, struct err *err)
{
    net->jobs = mem_calloc(net->njobs, sizeof *net->jobs);
    for (uint32_t j = 0; j < net->njobs; j++) {
        net->jobs[j] = job_of(net, &jobs[j]);
        net->jobs[j].asked = &jobs[j];
    }
    build_order(net);
    if (net->njobs == 1) {
        find_fold(net, fold);
    }
    build_common(net);
    int bad = 0;
    for (uint32_t j = 0; j < net->njobs && !bad; j++) {
        bad = build_job(net, &net->jobs[j], err);
    }
    return bad;
}

/* What a job carried over every link of the network, and which one that kept busiest. */
static void finish_links(const struct net *net, struct job *job)
{
    struct net_result *result = &job->result;
    double *bytes = mem_calloc(net->share.nlinks, sizeof *bytes);
    double time = (double)(result->total_ps - result->start_ps);
    result->nlinks = network_links(net->network);
    result->link_bytes = mem_calloc(result->nlinks, sizeof *result->link_bytes);
    result->limit = NONE;
    add_carried(net, job->first_wire, job->end_wire, bytes, NULL);
    for (uint32_t l = 0; l < result->nlinks; l++) {
        uint32_t from = net->fold.class_of ? net->fold.class_of[l] : l;
        result->link_bytes[l] = from == NONE ? 0 : bytes[from];
        struct net_link link = network_link(net->network, l);
        double use = time > 0 ? fmin(1, result->link_bytes[l] / most_bytes(&link, time)) : 0;
        if (use > result->limit_use * (1 + 1e-9)) {
            result->limit = l;
            result->limit_use = use;
        }
    }
    free(bytes);
}

/* Hands over what was counted. */
static void finish_result(struct net *net, struct job *job, bool links)
{
    struct net_result *result = &job->result;
    uint32_t all = job->place.groups;
    result->passes = job->passes;
    result->events = net->events;
    result->trace = net->trace;
    for (uint32_t w = job->first_wire; w < job->end_wire; w++) {
        result->messages += net->wires[w].posted * result->stands_for;
        result->bytes += net->wires[w].sent_bytes * result->stands_for;
    }
    result->total_ps = result->start_ps;
    for (uint32_t r = result->nranks; r-- > 0;) { /* backwards: who is run stands before */
        result->finish_ps[r] =
            result->finish_ps[r / all % job->ranks * job->groups + r % all % job->groups];
        if (result->finish_ps[r] > result->total_ps) {
            result->total_ps = result->finish_ps[r];
        }
        if (job->args->keep_steps) {
            result->steps.spans[r] = (struct trace_span){result->start_ps, result->finish_ps[r]};
        }
    }
    for (uint32_t e = result->nranks; job->args->keep_steps && e < job->ends; e++) {
        result->steps.spans[e] = (struct trace_span){result->start_ps, result->total_ps};
    }
    if (links || job->args->keep_links) {
        finish_links(net, job);
    }
    trace_sort(&result->steps);
}

static void job_release(struct job *job)
{
    for (int buf = BUF_IN; buf <= BUF_OUT; buf++) {
        for (uint32_t r = 0; job->offsets[buf] && r < job->sched->nranks; r++)
            free(job->offsets[buf][r]);
        free(job->offsets[buf]);
    }
    free(job->lane_base);
    free(job->wire_base);
    free(job->wire_of);
    net_result_release(&job->result);
}

static void net_release(struct net *net)
{
    for (uint32_t j = 0; net->jobs && j < net->njobs; j++) {
        job_release(&net->jobs[j]);
    }
    free(net->jobs);
    free(net->after_base);
    free(net->after);
    free(net->ended);
    free(net->carried);
    free(net->posted);
    fold_release(&net->fold);
    queue_release(&net->queue);
    share_release(&net->share);
    free(net->lanes);
    free(net->hands);
    free(net->wires);
    free(net->messages);
}

static int check_end(struct net *net, struct err *err)
{
    net->end_ps = net->now_ps;
    return check_finished(net, err) || check_bytes(net, 0, net->nwires, err) ||
                   check_physics(net, err)
               ? -1
               : 0;
}

static int run(const struct network *network, const struct net_job *jobs, uint32_t njobs, bool one,
               struct net_result *results, struct err *err)
{
    struct net net = {.network = network, .njobs = njobs};
    if (check_jobs(&net, jobs, err)) {
        return -1;
    }
    int bad = build(&net, jobs, one && jobs[0].args->fold, err);
    bad = bad || loop(&net, err) || check_end(&net, err) ? -1 : 0;
    for (uint32_t j = 0; j < njobs && !bad; j++) {
        finish_result(&net, &net.jobs[j], one);
        results[j] = net.jobs[j].result;
        net.jobs[j].result = (struct net_result){0};
    }
    net_release(&net);
    return bad;
}

int net_run_jobs(const struct network *network, const struct net_job *jobs, uint32_t njobs,
                 struct net_result *results, struct err *err)
{
    return run(network, jobs, njobs, false, results, err);
}

/* ---- jobs that another clock starts ---- */

struct net *net_open(const struct network *network, const double *rates)
{
    struct net *net = mem_calloc(1, sizeof *net);
    net->network = network;
    net->rates = rates;
    build_common(net);
    return net;
}

int net_add(struct net *net, const struct net_job *asked, uint32_t *number, struct err *err)
{
    if (check_job(net, asked, err)) return -1;
    MEM_GROW(net->jobs, net->njobs, net->jobs_cap);
    struct job *job = &net->jobs[net->njobs++];
    *job = job_of(net, asked);
    if (build_job(net, job, err)) return -1;
    *number = net->njobs - 1;
    return 0;
}

/* Takes a job that has run back to its start; what its wires have carried is kept as sums. */
static int rewind_job(struct net *net, struct job *job, struct err *err)
{
    if (check_bytes(net, job->first_wire, job->end_wire, err)) return -1;
    if (!net->carried) {
        net->carried = mem_calloc(net->share.nlinks, sizeof *net->carried);
        net->posted = mem_calloc(net->share.nlinks, sizeof *net->posted);
    }
    add_carried(net, job->first_wire, job->end_wire, net->carried, net->posted);
    for (uint32_t w = job->first_wire; w < job->end_wire; w++) {
        struct wire *wire = &net->wires[w];
        wire->posted = wire->arrived = wire->released = 0;
        wire->sent_bytes = wire->taken_bytes = 0;
    }
    job->left = 0;
    for (uint32_t i = job->lane_base[0]; i < job->lane_base[0] + job->nlanes; i++) {
        struct lane *lane = &net->lanes[i];
        bool runs = lane->first < lane->end;
        lane->pos = lane->first;
        lane->pass = runs ? 0 : job->passes;
        job->left += runs;
    }
    return 0;
}

int net_start(struct net *net, uint32_t number, ps_t when_ps, struct err *err)
{
    struct job *job = &net->jobs[number];
    if (job->has_run && rewind_job(net, job, err)) return -1;
    job->has_run = true;
    queue_put(&net->queue, when_ps, EV_JOB, number);
    return 0;
}

ps_t net_next_ps(const struct net *net)
{
    return queue_time(&net->queue);
}

int net_step(struct net *net, const uint32_t **ended, uint32_t *nended, struct err *err)
{
    ps_t now_ps = queue_time(&net->queue);
    net->nended = 0;
    while (net->queue.count > 0 && queue_time(&net->queue) == now_ps) {
        if (take_event(net, err)) return -1;
    }
    *ended = net->ended;
    *nended = net->nended;
    return 0;
}

int net_close(struct net *net, struct err *err)
{
    int bad = err ? check_end(net, err) : 0;
    net_release(net);
    free(net);
    return bad;
}

int net_run(const struct linked *linked, const struct net_args *args, struct net_result *result,
            struct err *err)
{
    if (net_check(args, err)) {
        return -1;
    }
    struct network *one = NULL;
    if (!args->network) {
        one = network_switch(args->base + linked->sched->nranks * (args->groups ? args->groups : 1),
                             args->beta_Bps, args->alpha_ps);
    }
    struct net_job job = {.linked = linked, .args = args};
    int bad = run(args->network ? args->network : one, &job, 1, true, result, err);
    network_free(one);
    return bad;
}

void net_result_release(struct net_result *result)
{
    free(result->finish_ps);
    free(result->link_bytes);
    free(result->log);
    trace_release(&result->steps);
    *result = (struct net_result){0};
}
