/* SPDX-License-Identifier: Apache-2.0
 * Times GOAL on a network: operations that may start, processors that do one at a time, wires whose
 * messages share links. One loop over the event queue; see goal_run.h for what an operation is. */
#include "net/goal_run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/share.h"

enum event_kind { EV_FLOW, EV_BUCKET, EV_ARRIVE, EV_CPU }; /* id: flow, bucket, send, cpu */

#define NONE UINT32_MAX

/* First in, first out, linked by run.next; the head is the one being done. */
struct line {
    uint32_t head, tail; /* operations; NONE when empty */
};

struct wire {
    struct line line; /* sends; the head is flowing */
    uint32_t flow;    /* NONE: of a rank to itself */
    ps_t latency_ps;
    double bytes;  /* carried so far */
    uint32_t send; /* one of its sends: says where it leads */
};

struct run {
    const struct goal *goal;
    const struct network *network;
    ps_t overhead_ps, now_ps;
    struct queue queue;
    struct share share;
    struct wire *wires;
    uint32_t *flow_wire; /* wire by flow */
    struct line *cpus;
    uint32_t *next;  /* in the line where an operation stands */
    uint32_t *waits; /* left, per operation */
    bool *started, *arrived, *ended;
    uint32_t *ready; /* operations that may start, each once, in the order of events */
    size_t nready, done;
    size_t left; /* operations that have not ended */
    struct goal_result result;
};

/* True if it was empty. */
static bool line_put(struct run *run, struct line *line, uint32_t op)
{
    bool empty = line->head == NONE;
    run->next[op] = NONE;
    if (empty)
        line->head = op;
    else
        run->next[line->tail] = op;
    line->tail = op;
    return empty;
}

static void line_take(struct run *run, struct line *line)
{
    line->head = run->next[line->head];
}

/* ---- operations ---- */

/* Those that wait for the start, or the end, of an operation. */
static void let_go(struct run *run, uint32_t number, bool on_start)
{
    const struct goal_op *op = &run->goal->ops[number];
    for (uint64_t i = op->first; i < op->first + op->nedges; i++) {
        const struct goal_edge *edge = &run->goal->edges[i];
        if (edge->on_start == on_start && --run->waits[edge->to] == 0)
            run->ready[run->nready++] = edge->to;
    }
}

static void start(struct run *run, uint32_t op)
{
    run->started[op] = true;
    let_go(run, op, true);
}

static void end(struct run *run, uint32_t op)
{
    run->ended[op] = true;
    run->left--;
    run->result.finish_ps[run->goal->ops[op].rank] = run->now_ps;
    let_go(run, op, false);
}

/* The last byte of the wire's head has left. */
static void drained(struct run *run, struct wire *wire)
{
    uint32_t op = wire->line.head;
    line_take(run, &wire->line);
    wire->bytes += (double)run->goal->ops[op].amount;
    queue_put(&run->queue, ps_sum(run->now_ps, wire->latency_ps), EV_ARRIVE, op);
}

/* Lets the head flow; messages that need no link are through at once. */
static void flow_head(struct run *run, struct wire *wire)
{
    while (wire->line.head != NONE) {
        uint64_t bytes = run->goal->ops[wire->line.head].amount;
        if (bytes > 0 && wire->flow != NONE) {
            share_start(&run->share, run->now_ps, wire->flow, (double)bytes);
            return;
        }
        drained(run, wire);
    }
}

static ps_t time_of(const struct run *run, const struct goal_op *op)
{
    if (op->kind == GOAL_SEND) return run->overhead_ps;
    return op->amount > PS_NEVER / 1000 ? PS_NEVER : op->amount * 1000;
}

/* The head of a processor is done. */
static void end_head(struct run *run, struct line *cpu)
{
    uint32_t op = cpu->head;
    line_take(run, cpu);
    if (run->goal->ops[op].kind == GOAL_SEND) {
        struct wire *wire = &run->wires[run->goal->ops[op].wire];
        if (line_put(run, &wire->line, op)) flow_head(run, wire);
    }
    end(run, op);
}

/* Does what stands at a processor until something takes time. */
static void run_cpu(struct run *run, uint32_t number)
{
    struct line *cpu = &run->cpus[number];
    while (cpu->head != NONE) {
        ps_t time = time_of(run, &run->goal->ops[cpu->head]);
        start(run, cpu->head);
        if (time > 0) {
            queue_put(&run->queue, ps_sum(run->now_ps, time), EV_CPU, number);
            return;
        }
        end_head(run, cpu);
    }
}

/* Starts what may start. */
static void run_ready(struct run *run)
{
    while (run->done < run->nready) {
        uint32_t op = run->ready[run->done++];
        uint32_t cpu = run->goal->ops[op].cpu;
        if (run->goal->ops[op].kind == GOAL_RECV) {
            start(run, op);
            if (run->arrived[op]) end(run, op);
        } else if (line_put(run, &run->cpus[cpu], op)) {
            run_cpu(run, cpu);
        }
    }
}

/* ---- the loop ---- */

static void dispatch(struct run *run, const struct event *event)
{
    switch ((enum event_kind)event->kind) {
    case EV_FLOW:
        share_end(&run->share, event->id);
        drained(run, &run->wires[run->flow_wire[event->id]]);
        flow_head(run, &run->wires[run->flow_wire[event->id]]);
        break;
    case EV_BUCKET:
        share_empty(&run->share, event->time_ps, event->id);
        break;
    case EV_ARRIVE: {
        uint32_t recv = run->goal->ops[event->id].match;
        run->arrived[recv] = true;
        if (run->started[recv]) end(run, recv);
        break;
    }
    case EV_CPU:
        end_head(run, &run->cpus[event->id]);
        run_cpu(run, event->id);
        break;
    }
    run_ready(run);
}

static int loop(struct run *run, struct err *err)
{
    struct event event;
    for (uint32_t op = 0; op < run->goal->nops; op++)
        if (run->waits[op] == 0) run->ready[run->nready++] = op;
    run_ready(run);
    share_settle(&run->share, 0);
    while (queue_take(&run->queue, &event)) {
        if (event.time_ps == PS_NEVER)
            return err_add(err, ERR_USAGE,
                           "the simulated time passes 213 days (2^64 ps): make sizes, times or the "
                           "latency smaller, or the bandwidth higher");
        run->now_ps = event.time_ps;
        run->result.events++;
        dispatch(run, &event);
        if (queue_time(&run->queue) > run->now_ps) share_settle(&run->share, run->now_ps);
    }
    return 0;
}

/* ---- operations that wait for each other ---- */

static char *op_text(const struct goal *goal, uint32_t number)
{
    static const char *const words[] = {"a send", "a receive", "a calc"};
    const struct goal_op *op = &goal->ops[number];
    return op->label_bytes
               ? mem_printf("%.*s of rank %" PRIu32 " (line %" PRIu32 ")", (int)op->label_bytes,
                            goal->text + op->label, op->rank, op->line)
               : mem_printf("%s of rank %" PRIu32 " (line %" PRIu32 ")", words[op->kind], op->rank,
                            op->line);
}

/* One that each operation still waits for; NONE. */
static uint32_t *find_blockers(const struct run *run)
{
    const struct goal *goal = run->goal;
    uint32_t *blocker = mem_calloc(goal->nops, sizeof *blocker);
    for (uint32_t i = 0; i < goal->nops; i++) {
        bool silent = goal->ops[i].kind == GOAL_RECV && run->started[i] && !run->arrived[i];
        blocker[i] = silent ? goal->ops[i].match : NONE;
    }
    for (uint32_t i = 0; i < goal->nops; i++) {
        const struct goal_op *op = &goal->ops[i];
        for (uint64_t e = op->first; e < op->first + op->nedges; e++) {
            const struct goal_edge *edge = &goal->edges[e];
            if (edge->on_start ? !run->started[i] : !run->ended[i]) blocker[edge->to] = i;
        }
    }
    return blocker;
}

/* From any that waits, the way leads into a circle: there is nothing else that it could wait for.
 */
static int report_circle(const struct run *run, struct err *err)
{
    enum { SHOWN = 8 };
    uint32_t *blocker = find_blockers(run), at = 0;
    while (run->ended[at])
        at++;
    for (size_t i = 0; i < run->goal->nops; i++)
        at = blocker[at];
    char *text = op_text(run->goal, at);
    uint32_t first = at, count = 1;
    for (at = blocker[at]; at != first; at = blocker[at], count++) {
        if (count >= SHOWN) continue;
        char *op = op_text(run->goal, at), *longer = mem_printf("%s waits for %s, which", text, op);
        free(op);
        free(text);
        text = longer;
    }
    err_add(err, ERR_FAILED,
            "%s: %" PRIu32 " operation%s wait%s in a circle and never start%s: %s "
            "waits for %s",
            run->goal->path, count, count == 1 ? "" : "s", count == 1 ? "s" : "",
            count == 1 ? "s" : "", text,
            count == 1      ? "itself"
            : count > SHOWN ? "others, and so on"
                            : "the first");
    free(text);
    free(blocker);
    return -1;
}

/* ---- setting up ---- */

static void set_lines(struct line *lines, size_t count)
{
    for (size_t i = 0; i < count; i++)
        lines[i] = (struct line){NONE, NONE};
}

static uint32_t route(const struct run *run, const struct wire *wire, uint32_t *path)
{
    const struct goal_op *op = &run->goal->ops[wire->send];
    return network_route(run->network, op->rank, op->peer, op->nic, path);
}

static void set_up_wires(struct run *run)
{
    const struct goal *goal = run->goal;
    run->wires = mem_calloc(goal->nwires, sizeof *run->wires);
    run->flow_wire = mem_calloc(goal->nwires, sizeof *run->flow_wire);
    for (uint32_t i = 0; i < goal->nops; i++)
        if (goal->ops[i].kind == GOAL_SEND) run->wires[goal->ops[i].wire].send = i;
    for (uint32_t w = 0; w < goal->nwires; w++) {
        struct wire *wire = &run->wires[w];
        uint32_t path[NETWORK_HOPS], hops = route(run, wire, path);
        set_lines(&wire->line, 1);
        for (uint32_t i = 0; i < hops; i++)
            wire->latency_ps += network_link(run->network, path[i]).latency_ps;
        wire->flow = hops ? share_add(&run->share, path, NULL, hops, 1, 0) : NONE;
        if (hops) run->flow_wire[wire->flow] = w;
    }
}

static void set_up(struct run *run)
{
    const struct goal *goal = run->goal;
    uint32_t nlinks = network_links(run->network);
    struct share_link *links = mem_calloc(nlinks, sizeof *links);
    for (uint32_t i = 0; i < nlinks; i++) {
        struct net_link link = network_link(run->network, i);
        links[i] = (struct share_link){link.capacity_Bps, link.peak_Bps, link.bucket_bytes};
    }
    share_init(&run->share, &run->queue, EV_FLOW, EV_BUCKET, nlinks, links);
    free(links);
    set_up_wires(run);
    run->cpus = mem_calloc(goal->ncpus, sizeof *run->cpus);
    set_lines(run->cpus, goal->ncpus);
    run->next = mem_calloc(goal->nops, sizeof *run->next);
    run->waits = mem_calloc(goal->nops, sizeof *run->waits);
    run->ready = mem_calloc(goal->nops, sizeof *run->ready);
    run->started = mem_calloc(goal->nops, sizeof *run->started);
    run->arrived = mem_calloc(goal->nops, sizeof *run->arrived);
    run->ended = mem_calloc(goal->nops, sizeof *run->ended);
    for (size_t i = 0; i < goal->nops; i++)
        run->waits[i] = goal->ops[i].waits;
    run->left = goal->nops;
    run->result.finish_ps = mem_calloc(goal->nranks, sizeof *run->result.finish_ps);
    run->result.link_bytes = mem_calloc(nlinks, sizeof *run->result.link_bytes);
}

/* Adds up what was counted; a link that carried more than it can is a fault of the model. */
static int finish(struct run *run, struct err *err)
{
    struct goal_result *result = &run->result;
    for (uint32_t r = 0; r < run->goal->nranks; r++)
        if (result->finish_ps[r] > result->total_ps) result->total_ps = result->finish_ps[r];
    for (uint32_t w = 0; w < run->goal->nwires; w++) {
        uint32_t path[NETWORK_HOPS], hops = route(run, &run->wires[w], path);
        for (uint32_t i = 0; i < hops; i++)
            result->link_bytes[path[i]] += run->wires[w].bytes;
    }
    for (uint32_t i = 0; i < network_links(run->network); i++) {
        struct net_link link = network_link(run->network, i);
        double room = link.capacity_Bps * (double)result->total_ps / 1e12 + link.bucket_bytes;
        if (result->link_bytes[i] <= room * (1 + 1e-9) + 1) continue;
        char *name = network_link_name(run->network, i);
        err_add(err, ERR_FAILED, "%s: %g bytes went over the link %s, which carries %g in %g us",
                run->goal->path, result->link_bytes[i], name, room, (double)result->total_ps / 1e6);
        free(name);
        return -1;
    }
    return 0;
}

static void run_release(struct run *run)
{
    queue_release(&run->queue);
    share_release(&run->share);
    free(run->wires);
    free(run->flow_wire);
    free(run->cpus);
    free(run->next);
    free(run->waits);
    free(run->ready);
    free(run->started);
    free(run->arrived);
    free(run->ended);
    goal_result_release(&run->result);
}

int goal_run(const struct goal *goal, const struct network *network, ps_t overhead_ps,
             struct goal_result *result, struct err *err)
{
    if (network_ranks(network) < goal->nranks)
        return err_add(err, ERR_USAGE,
                       "%s has %" PRIu32 " ranks, the network %" PRIu32 ", which is "
                       "too few",
                       goal->path, goal->nranks, network_ranks(network));
    struct run run = {.goal = goal, .network = network, .overhead_ps = overhead_ps};
    set_up(&run);
    int bad = loop(&run, err);
    if (!bad && run.left > 0) bad = report_circle(&run, err);
    if (!bad) bad = finish(&run, err);
    if (!bad) {
        *result = run.result;
        run.result = (struct goal_result){0};
    }
    run_release(&run);
    return bad;
}

void goal_result_release(struct goal_result *result)
{
    free(result->finish_ps);
    free(result->link_bytes);
    *result = (struct goal_result){0};
}
