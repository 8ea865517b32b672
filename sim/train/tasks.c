/* SPDX-License-Identifier: Apache-2.0
 * Runs a graph of tasks: see tasks.h. What waits for a task hangs in a list from it; a running task
 * has a slot, which owns one timer of the queue; shares are summed per rank as integers, so that
 * the sums are exact whatever comes and goes. Each task keeps what it started behind: walking back
 * along that gives who is to blame. */
#include "train/tasks.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SHARE_ONE 0x1p40 /* a share of 1 in the sums */
#define SM_MOST 0.9      /* what jobs leave of the multiprocessors is at least the rest */

enum event_kind { EVENT_START, EVENT_SLOT };

/* A task's place in the graph. */
struct node {
    uint32_t needs;          /* how many it waits for, with the one before it on its lane */
    uint32_t previous, next; /* on its lane */
    uint32_t edge;           /* the first of those that wait for it */
};

struct edge {
    uint32_t task, next;
};

struct lane {
    uint32_t first, last;
};

/* How far a task has come. */
struct state {
    ps_t ready_ps;  /* the latest of what it waited for so far */
    uint32_t needs; /* still to come */
    uint32_t cause; /* who came last */
};

/* A running task. Slot i owns timer i. */
struct slot {
    uint32_t task;
    uint32_t previous[2], next[2]; /* on its rank, and on its peer; of a free slot, next[0] is the
                                      next free one */
    bool waits;                    /* its latency passes; then its links come in */
    ps_t since_ps;     /* when `left` was true; in the future while the latency passes */
    double left, rate; /* work, ps; rate 0: to be set */
};

/* Links of a rank in one direction: how many use them, and, where they are several, how much they
 * take together, of SHARE_ONE. */
struct way {
    uint32_t users[NNET_KINDS];
    int64_t taken[NNET_KINDS];
};

struct rank {
    uint32_t running[2]; /* slots of its own; of messages that come to it */
    bool changed;
    int64_t sm;         /* sum over what runs, of SHARE_ONE */
    struct way ways[2]; /* out of it, into it */
    uint32_t on_links;  /* tasks that use them */
    uint32_t messages;  /* .. of these; 0: both ways are the same */
};

struct tasks_private {
    struct node *nodes;
    struct state *states;
    uint32_t *ready; /* who can start now, in order: nready - next of them */
    struct edge *edges;
    struct lane *lanes;
    struct rank *ranks;
    struct slot *slots;
    uint32_t *fresh;   /* slots without a rate */
    uint32_t *changed; /* ranks whose sums changed in this instant */
    uint32_t nedges, nslots, nready, next, nfresh, nchanged;
    uint32_t free_slot;
    uint32_t last;            /* the task that ended last */
    uint32_t nended, nabroad; /* tasks; that others run now */
    bool failed;              /* the last run, half way */
    size_t tasks_cap, nodes_cap, states_cap, edges_cap, lanes_cap, ranks_cap, uses_cap, slots_cap;
    struct queue queue;
};

/* ---- the graph ---- */

struct tasks *tasks_new(void)
{
    struct tasks *tasks = mem_calloc(1, sizeof *tasks);
    tasks->own = mem_calloc(1, sizeof *tasks->own);
    tasks->own->free_slot = tasks->own->last = TASK_NONE;
    return tasks;
}

void tasks_free(struct tasks *tasks)
{
    if (!tasks) return;
    struct tasks_private *own = tasks->own;
    void *all[] = {tasks->list, tasks->spans, tasks->compute_lane, tasks->uses, own->nodes,
                   own->states, own->ready,   own->edges,          own->lanes,  own->ranks,
                   own->slots,  own->fresh,   own->changed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    queue_release(&own->queue);
    free(own);
    free(tasks);
}

void tasks_clear(struct tasks *tasks)
{
    tasks->ntasks = tasks->nlanes = tasks->nranks = tasks->nuses = tasks->own->nedges = 0;
    tasks->own->last = TASK_NONE;
}

uint32_t tasks_lane(struct tasks *tasks)
{
    MEM_GROW(tasks->own->lanes, tasks->nlanes, tasks->own->lanes_cap);
    tasks->own->lanes[tasks->nlanes] = (struct lane){TASK_NONE, TASK_NONE};
    return tasks->nlanes++;
}

uint32_t tasks_rank(struct tasks *tasks)
{
    struct tasks_private *own = tasks->own;
    size_t cap = own->ranks_cap;
    MEM_GROW(own->ranks, tasks->nranks, own->ranks_cap);
    if (own->ranks_cap != cap) {
        tasks->compute_lane =
            mem_realloc(tasks->compute_lane, own->ranks_cap, sizeof *tasks->compute_lane);
        own->changed = mem_realloc(own->changed, own->ranks_cap, sizeof *own->changed);
    }
    own->ranks[tasks->nranks] = (struct rank){.running = {TASK_NONE, TASK_NONE}};
    tasks->compute_lane[tasks->nranks] = tasks_lane(tasks);
    return tasks->nranks++;
}

uint32_t tasks_use(struct tasks *tasks, const struct task_use *use)
{
    struct tasks_private *own = tasks->own;
    for (uint32_t i = tasks->nuses; i-- > 0;) {
        if (memcmp(&tasks->uses[i], use, sizeof *use) == 0) return i;
    }
    MEM_GROW(tasks->uses, tasks->nuses, own->uses_cap);
    tasks->uses[tasks->nuses] = *use;
    return tasks->nuses++;
}

uint32_t tasks_add(struct tasks *tasks, const struct task *task)
{
    struct tasks_private *own = tasks->own;
    assert(task->rank < tasks->nranks && (task->lane < tasks->nlanes || task->lane == TASK_NONE));
    assert(task->use < tasks->nuses || task->use == TASK_NONE);
    uint32_t number = tasks->ntasks++, previous = TASK_NONE;
    MEM_GROW(tasks->list, number, own->tasks_cap);
    MEM_GROW(own->nodes, number, own->nodes_cap);
    if (task->lane != TASK_NONE) {
        struct lane *lane = &own->lanes[task->lane];
        previous = lane->last;
        *(previous == TASK_NONE ? &lane->first : &own->nodes[previous].next) = number;
        lane->last = number;
    }
    tasks->list[number] = *task;
    own->nodes[number] = (struct node){previous != TASK_NONE, previous, TASK_NONE, TASK_NONE};
    return number;
}

void tasks_after(struct tasks *tasks, uint32_t task, uint32_t before)
{
    struct tasks_private *own = tasks->own;
    assert(task < tasks->ntasks && before < tasks->ntasks);
    MEM_GROW(own->edges, own->nedges, own->edges_cap);
    own->edges[own->nedges] = (struct edge){task, own->nodes[before].edge};
    own->nodes[before].edge = own->nedges++;
    own->nodes[task].needs++;
}

/* ---- rates ---- */

static int64_t share(float value)
{
    return (int64_t)(SHARE_ONE * (double)value + 0.5);
}

static void change(struct tasks_private *own, uint32_t rank)
{
    if (!own->ranks[rank].changed) {
        own->ranks[rank].changed = true;
        own->changed[own->nchanged++] = rank;
    }
}

/* Where a task's bytes leave (side 0), and where they arrive. */
static uint32_t end_of(const struct task *task, int side)
{
    return side == 1 && task->peer > 0 ? task->peer - 1 : task->rank;
}

/* A task's links come in (sign 1) or go (-1). */
static void use_links(const struct tasks *tasks, const struct task *task, int sign)
{
    struct tasks_private *own = tasks->own;
    const float *busy = tasks->uses[task->use].busy;
    for (int side = 0; side < 2; side++) {
        uint32_t rank = end_of(task, side);
        struct way *way = &own->ranks[rank].ways[side];
        for (int k = 0; k < NNET_KINDS; k++) {
            way->users[k] += (uint32_t)(sign * (busy[k] > 0));
        }
        if (side == 0 || task->peer > 0) own->ranks[rank].on_links += (uint32_t)sign;
        own->ranks[rank].messages += (uint32_t)(sign * (task->peer > 0));
        change(own, rank);
    }
}

static bool uses_links(const struct task *task)
{
    return task->use != TASK_NONE && task->work_ps > 0;
}

/* What a task asks for while it is on links that it keeps busy for that share of its work. */
static double asked(double busy, double hit)
{
    return hit > 0 ? fmin(1, busy / hit) : 0;
}

/* What a task takes of links that `users` share: with no more than its fair part it is on them for
 * longer, but not beside them. */
static int64_t taken(double busy, double hit, uint32_t users)
{
    double over = fmax(1, asked(busy, hit) * users);
    return llround(SHARE_ONE * busy / (1 - hit + hit * over));
}

static void take_links(const struct tasks *tasks, const struct task *task, struct way *way)
{
    for (int k = 0; k < NNET_KINDS; k++) {
        double busy = (double)tasks->uses[task->use].busy[k];
        if (busy > 0 && way->users[k] > 1)
            way->taken[k] += taken(busy, (double)task->link_hit, way->users[k]);
    }
}

/* What all that use a rank's links take of them. */
static void sum_taken(struct tasks *tasks, struct rank *rank)
{
    const struct tasks_private *own = tasks->own;
    memset(rank->ways[0].taken, 0, sizeof rank->ways[0].taken);
    memset(rank->ways[1].taken, 0, sizeof rank->ways[1].taken);
    for (int side = 0; side < 2; side++) {
        for (uint32_t s = rank->running[side]; s != TASK_NONE; s = own->slots[s].next[side]) {
            const struct task *task = &tasks->list[own->slots[s].task];
            if (own->slots[s].waits || !uses_links(task)) continue;
            take_links(tasks, task, &rank->ways[side]);
            if (side == 0 && task->peer == 0) take_links(tasks, task, &rank->ways[1]);
        }
    }
}

/* Of the kinds of links that a task uses: what it asks for while it is on them, over what the
 * others leave it, or its fair part. */
static double most_over(const struct tasks *tasks, const struct task *task, double hit)
{
    const struct tasks_private *own = tasks->own;
    const float *busy = tasks->uses[task->use].busy;
    double most = 1;
    int sides = 1 + (own->ranks[task->rank].messages > 0);
    for (int side = 0; side < sides; side++) {
        const struct way *way = &own->ranks[end_of(task, side)].ways[side];
        for (int k = 0; k < NNET_KINDS; k++) {
            if (busy[k] <= 0 || way->users[k] < 2) continue;
            int64_t others = way->taken[k] - taken((double)busy[k], hit, way->users[k]);
            double left = fmax(1 - (double)others / SHARE_ONE, 1. / way->users[k]);
            most = fmax(most, asked((double)busy[k], hit) / left);
        }
    }
    return most;
}

/* What is computed takes longer by what is left of the multiprocessors, what is on links by their
 * load: each for its share of the work. */
static double rate_of(const struct tasks *tasks, const struct task *task)
{
    const struct tasks_private *own = tasks->own;
    const struct rank *rank = &own->ranks[task->rank];
    double left = 1, stretch = 1;
    int64_t others = rank->sm - share(task->sm);
    if (others > 0 && task->sm_hit > 0) left -= fmin(SM_MOST, (double)others / SHARE_ONE);
    if (task->use != TASK_NONE && task->link_hit > 0) {
        double hit = (double)task->link_hit;
        stretch = 1 - hit + hit * most_over(tasks, task, hit);
    }
    return left / (left * stretch + (double)task->sm_hit * (1 - left));
}

/* `work` at `rate`, rounded up to what is not too early. */
static ps_t rounded_up(double work, double rate)
{
    double span_ps = ceil(work / rate);
    return span_ps < 0x1p64 ? (ps_t)span_ps : PS_NEVER;
}

static void set_rate(struct tasks *tasks, uint32_t number, ps_t now_ps)
{
    struct slot *slot = &tasks->own->slots[number];
    if (slot->waits) return;
    const struct task *task = &tasks->list[slot->task];
    double rate = rate_of(tasks, task);
    if (rate == slot->rate) return;
    if (now_ps > slot->since_ps) {
        slot->left = fmax(0, slot->left - (double)(now_ps - slot->since_ps) * slot->rate);
        slot->since_ps = now_ps;
    }
    slot->rate = rate;
    bool whole = slot->left == (double)task->work_ps;
    ps_t span_ps = whole && rate == 1 ? task->work_ps : rounded_up(slot->left, rate);
    queue_set(&tasks->own->queue, number, ps_sum(slot->since_ps, span_ps));
}

/* After the last event of an instant: rates of what has started, and of all where shares changed.
 */
static void set_rates(struct tasks *tasks, ps_t now_ps)
{
    struct tasks_private *own = tasks->own;
    for (uint32_t i = 0; i < own->nchanged; i++) {
        struct rank *rank = &own->ranks[own->changed[i]];
        if (rank->on_links > 1) sum_taken(tasks, rank);
    }
    for (uint32_t i = 0; i < own->nfresh; i++) {
        set_rate(tasks, own->fresh[i], now_ps);
    }
    for (uint32_t i = 0; i < own->nchanged; i++) {
        struct rank *rank = &own->ranks[own->changed[i]];
        for (int side = 0; side < 2; side++) {
            for (uint32_t s = rank->running[side]; s != TASK_NONE; s = own->slots[s].next[side]) {
                set_rate(tasks, s, now_ps);
            }
        }
        rank->changed = false;
    }
    own->nfresh = own->nchanged = 0;
}

/* ---- starts and ends ---- */

/* `from` is through as far as `task` is concerned; it counts from `when_ps` on. */
static void arrive(struct tasks_private *own, uint32_t task, uint32_t from, ps_t when_ps,
                   ps_t now_ps)
{
    struct state *state = &own->states[task];
    if (when_ps > state->ready_ps ||
        (when_ps == state->ready_ps && own->nodes[task].previous == from)) {
        state->ready_ps = when_ps;
        state->cause = from;
    }
    if (--state->needs > 0) return;
    if (state->ready_ps > now_ps) {
        queue_put(&own->queue, state->ready_ps, EVENT_START, task);
    } else {
        own->ready[own->nready++] = task;
    }
}

static void finish(struct tasks *tasks, uint32_t number, ps_t now_ps)
{
    struct tasks_private *own = tasks->own;
    const struct node *node = &own->nodes[number];
    tasks->spans[number].end_ps = now_ps;
    own->nended++;
    own->last = number;
    if (node->next != TASK_NONE) arrive(own, node->next, number, now_ps, now_ps);
    ps_t seen_ps = ps_sum(now_ps, tasks->list[number].lag_ps);
    for (uint32_t e = node->edge; e != TASK_NONE; e = own->edges[e].next) {
        arrive(own, own->edges[e].task, number, seen_ps, now_ps);
    }
}

static uint32_t take_slot(struct tasks_private *own)
{
    uint32_t number = own->free_slot;
    if (number != TASK_NONE) {
        own->free_slot = own->slots[number].next[0];
        return number;
    }
    size_t cap = own->slots_cap;
    MEM_GROW(own->slots, own->nslots, own->slots_cap);
    if (own->slots_cap != cap)
        own->fresh = mem_realloc(own->fresh, own->slots_cap, sizeof *own->fresh);
    return queue_timer(&own->queue, EVENT_SLOT, own->nslots++);
}

/* A task takes its share of the multiprocessors (sign 1), or gives it back (-1). */
static void use_sm(struct tasks_private *own, const struct task *task, int sign)
{
    if (!(task->sm > 0)) return;
    own->ranks[task->rank].sm += sign * share(task->sm);
    change(own, task->rank);
}

static int start_outside(struct tasks *tasks, uint32_t number, ps_t now_ps, struct err *err)
{
    const struct tasks_outside *outside = tasks->outside;
    const struct task *task = &tasks->list[number];
    use_sm(tasks->own, task, 1);
    tasks->own->nabroad++;
    return outside->start(outside->context, task, number, now_ps, err);
}

/* Takes an instant of those who run jobs outside. */
static int take_outside(struct tasks *tasks, ps_t now_ps, struct err *err)
{
    const struct tasks_outside *outside = tasks->outside;
    const uint32_t *ended;
    uint32_t nended;
    if (outside->take(outside->context, &ended, &nended, err)) return -1;
    for (uint32_t i = 0; i < nended; i++) {
        use_sm(tasks->own, &tasks->list[ended[i]], -1);
        tasks->own->nabroad--;
        finish(tasks, ended[i], now_ps);
    }
    return 0;
}

/* Puts a slot into the list of its rank, and of its peer. */
static void list_slot(struct tasks_private *own, const struct task *task, uint32_t number)
{
    struct slot *slot = &own->slots[number];
    for (int side = 0; side < 1 + (task->peer > 0); side++) {
        uint32_t *first = &own->ranks[end_of(task, side)].running[side];
        slot->previous[side] = TASK_NONE;
        slot->next[side] = *first;
        if (*first != TASK_NONE) own->slots[*first].previous[side] = number;
        *first = number;
    }
}

static void unlist_slot(struct tasks_private *own, const struct task *task, const struct slot *slot)
{
    for (int side = 0; side < 1 + (task->peer > 0); side++) {
        uint32_t previous = slot->previous[side], next = slot->next[side];
        uint32_t *first = &own->ranks[end_of(task, side)].running[side];
        *(previous == TASK_NONE ? first : &own->slots[previous].next[side]) = next;
        if (next != TASK_NONE) own->slots[next].previous[side] = previous;
    }
}

static void start_own(struct tasks *tasks, uint32_t number, ps_t now_ps)
{
    struct tasks_private *own = tasks->own;
    const struct task *task = &tasks->list[number];
    uint32_t s = take_slot(own);
    own->slots[s] = (struct slot){.task = number,
                                  .waits = task->fixed_ps > 0 && uses_links(task),
                                  .since_ps = ps_sum(now_ps, task->fixed_ps),
                                  .left = (double)task->work_ps};
    list_slot(own, task, s);
    use_sm(own, task, 1);
    if (own->slots[s].waits) {
        queue_set(&own->queue, s, own->slots[s].since_ps);
    } else {
        if (uses_links(task)) use_links(tasks, task, 1);
        own->fresh[own->nfresh++] = s;
    }
}

static int start(struct tasks *tasks, uint32_t number, ps_t now_ps, struct err *err)
{
    const struct task *task = &tasks->list[number];
    tasks->spans[number].start_ps = now_ps;
    if (task->outside && tasks->outside) return start_outside(tasks, number, now_ps, err);
    if (task->kind == TASK_JOIN || (task->fixed_ps == 0 && task->work_ps == 0))
        finish(tasks, number, now_ps);
    else
        start_own(tasks, number, now_ps);
    return 0;
}

/* A slot's timer: its latency is over, or its work. */
static void slot_event(struct tasks *tasks, uint32_t s, ps_t now_ps)
{
    struct tasks_private *own = tasks->own;
    struct slot *slot = &own->slots[s];
    uint32_t number = slot->task;
    const struct task *task = &tasks->list[number];
    if (slot->waits) {
        slot->waits = false;
        use_links(tasks, task, 1);
        own->fresh[own->nfresh++] = s;
        return;
    }
    unlist_slot(own, task, slot);
    slot->next[0] = own->free_slot;
    own->free_slot = s;
    use_sm(own, task, -1);
    if (uses_links(task)) use_links(tasks, task, -1);
    finish(tasks, number, now_ps);
}

/* ---- the run ---- */

/* What a run that failed half way has left. */
static void forget_run(struct tasks *tasks)
{
    struct tasks_private *own = tasks->own;
    struct event event;
    while (queue_take(&own->queue, &event)) {
    }
    for (uint32_t r = 0; r < tasks->nranks; r++) {
        own->ranks[r] = (struct rank){.running = {TASK_NONE, TASK_NONE}};
    }
    own->free_slot = TASK_NONE;
    for (uint32_t s = own->nslots; s-- > 0;) {
        own->slots[s].next[0] = own->free_slot;
        own->free_slot = s;
    }
    own->nfresh = own->nchanged = 0;
    own->failed = false;
}

static void prepare(struct tasks *tasks)
{
    struct tasks_private *own = tasks->own;
    if (own->failed) forget_run(tasks);
    if (own->tasks_cap > own->states_cap) {
        own->states_cap = own->tasks_cap;
        own->states = mem_realloc(own->states, own->states_cap, sizeof *own->states);
        own->ready = mem_realloc(own->ready, own->states_cap, sizeof *own->ready);
        tasks->spans = mem_realloc(tasks->spans, own->states_cap, sizeof *tasks->spans);
    }
    own->nready = own->next = own->nended = own->nabroad = 0;
    own->last = TASK_NONE;
    for (uint32_t i = 0; i < tasks->ntasks; i++) {
        own->states[i] = (struct state){0, own->nodes[i].needs, TASK_NONE};
        tasks->spans[i] = (struct task_span){PS_NEVER, PS_NEVER};
        if (own->nodes[i].needs == 0) own->ready[own->nready++] = i;
    }
}

/* Names the first task that cannot start and one that it waits for. */
static int stands_still(const struct tasks *tasks, struct err *err)
{
    const struct tasks_private *own = tasks->own;
    uint32_t task = 0, before = TASK_NONE;
    if (own->nabroad > 0)
        return err_add(err, ERR_FAILED,
                       "%u jobs that run on the network do not end; %u of %u tasks have ended",
                       own->nabroad, own->nended, tasks->ntasks);
    while (own->states[task].needs == 0) {
        task++;
    }
    uint32_t previous = own->nodes[task].previous;
    if (previous != TASK_NONE && own->states[previous].needs > 0) before = previous;
    for (uint32_t i = 0; i < tasks->ntasks && before == TASK_NONE; i++) {
        if (own->states[i].needs == 0) continue;
        for (uint32_t e = own->nodes[i].edge; e != TASK_NONE; e = own->edges[e].next) {
            if (own->edges[e].task == task) before = i;
        }
    }
    return err_add(err, ERR_FAILED,
                   "tasks wait for each other in a circle: task %u of rank %u, which waits for "
                   "task %u of rank %u, cannot start; %u of %u tasks have run",
                   task, tasks->list[task].rank, before, tasks->list[before].rank, own->nready,
                   tasks->ntasks);
}

/* The next thing of the graph's own; false: nothing. */
static bool take_own(struct tasks *tasks, ps_t *now_ps)
{
    struct tasks_private *own = tasks->own;
    struct event event;
    if (!queue_take(&own->queue, &event)) return false;
    *now_ps = event.time_ps;
    if (event.kind == EVENT_SLOT) {
        slot_event(tasks, event.id, *now_ps);
    } else {
        own->ready[own->nready++] = event.id;
    }
    return true;
}

int tasks_run(struct tasks *tasks, struct err *err)
{
    struct tasks_private *own = tasks->own;
    const struct tasks_outside *outside = tasks->outside;
    prepare(tasks);
    own->failed = true;
    for (ps_t now_ps = 0;;) {
        while (own->next < own->nready) {
            if (start(tasks, own->ready[own->next++], now_ps, err)) return -1;
        }
        ps_t out_ps = outside ? outside->next_ps(outside->context) : PS_NEVER;
        bool settled = own->queue.count == 0 || queue_time(&own->queue) > now_ps;
        if (settled && (out_ps > now_ps || out_ps == PS_NEVER)) set_rates(tasks, now_ps);
        if (out_ps != PS_NEVER && out_ps <= queue_time(&own->queue)) {
            now_ps = out_ps;
            if (take_outside(tasks, now_ps, err)) return -1;
        } else if (!take_own(tasks, &now_ps)) {
            break;
        }
    }
    own->failed = own->nabroad > 0;
    return own->nended == tasks->ntasks ? 0 : stands_still(tasks, err);
}

ps_t tasks_end(const struct tasks *tasks)
{
    uint32_t last = tasks->own->last;
    return last == TASK_NONE ? 0 : tasks->spans[last].end_ps;
}

/* ---- where the time went ---- */

/* Charges the idle time [low_ps, high_ps) of a rank, which `task` and what it waited for filled. */
static void charge_idle(const struct tasks *tasks, uint32_t rank, uint32_t task, ps_t low_ps,
                        ps_t high_ps, const struct tasks_charge *how, ps_t *charged_ps)
{
    for (; high_ps > low_ps; task = tasks->own->states[task].cause) {
        const struct task *t = &tasks->list[task]; /* who waits for nothing starts at 0 */
        ps_t start_ps = tasks->spans[task].start_ps;
        ps_t begin_ps = start_ps > low_ps ? start_ps : low_ps;
        if (begin_ps >= high_ps) continue;
        bool bubble = t->rank != rank && t->lane == tasks->compute_lane[t->rank];
        charged_ps[bubble ? how->bubble : t->part] += high_ps - begin_ps;
        if (bubble && how->blame_ps) how->blame_ps[t->rank] += high_ps - begin_ps;
        high_ps = begin_ps;
    }
}

void tasks_charge(const struct tasks *tasks, uint32_t rank, ps_t from_ps, ps_t to_ps,
                  const struct tasks_charge *how, ps_t *charged_ps)
{
    const struct tasks_private *own = tasks->own;
    ps_t at_ps = from_ps; /* all before is charged */
    uint32_t task = own->lanes[tasks->compute_lane[rank]].first;
    for (; task != TASK_NONE && at_ps < to_ps; task = own->nodes[task].next) {
        ps_t start_ps = tasks->spans[task].start_ps, end_ps = tasks->spans[task].end_ps;
        start_ps = start_ps < to_ps ? start_ps : to_ps;
        end_ps = end_ps < to_ps ? end_ps : to_ps;
        if (start_ps > at_ps) {
            charge_idle(tasks, rank, own->states[task].cause, at_ps, start_ps, how, charged_ps);
            at_ps = start_ps;
        }
        if (end_ps <= at_ps) continue;
        if (how->split) {
            how->split(how->context, task, end_ps - at_ps, charged_ps);
        } else {
            charged_ps[tasks->list[task].part] += end_ps - at_ps;
        }
        at_ps = end_ps;
    }
    if (at_ps >= to_ps) return;
    ps_t last_ps = tasks_end(tasks);
    if (to_ps > last_ps) { /* nothing runs */
        ps_t begin_ps = at_ps > last_ps ? at_ps : last_ps;
        charged_ps[how->bubble] += to_ps - begin_ps;
        to_ps = begin_ps;
    }
    charge_idle(tasks, rank, own->last, at_ps, to_ps, how, charged_ps);
}
