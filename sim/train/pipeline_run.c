/* SPDX-License-Identifier: Apache-2.0
 * Runs a pipeline schedule: ranks take their lists in order, messages go over lanes of their own.
 * Afterwards every idle picosecond of a rank is charged to what it waited for, found by walking
 * back from what ended the wait. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/pipeline.h"

/* What one run needs at hand. */
struct work {
    const struct pipeline *p;
    const struct pipeline_costs *costs;
    struct pipeline_run *run;
};

ps_t pipeline_task_ps(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                      uint32_t rank, const struct pipeline_task *task)
{
    ps_t sum = 0;
    for (int side = 0; side < 2; side++) {
        static const uint8_t parts[NTASK_KINDS][2] = {[PIPELINE_F] = {1, 0},
                                                      [PIPELINE_B] = {0, 2},
                                                      [PIPELINE_W] = {0, 4},
                                                      [PIPELINE_BW] = {0, 6},
                                                      [PIPELINE_PAIR] = {1, 6}};
        uint8_t part = parts[task->kind][side];
        if (part == 0) continue;
        const ps_t *t =
            costs->stage_ps + 3 * (size_t)pipeline_stage(pipeline, rank, task->chunk[side]);
        sum += (part & 1 ? t[0] : 0) + (part & 2 ? t[1] : 0) + (part & 4 ? t[2] : 0);
    }
    double factor = costs->rank_factor ? costs->rank_factor[rank] : 1;
    if (task->kind == PIPELINE_PAIR && costs->pair_factor > 0) {
        factor *= costs->pair_factor;
    }
    return factor == 1 ? sum : ps_add(0, factor * (double)sum);
}

/* ---- events ---- */

static bool has_forward(const struct pipeline_task *t)
{
    return t->kind == PIPELINE_F || t->kind == PIPELINE_PAIR;
}

static bool has_back(const struct pipeline_task *t)
{
    return t->kind != PIPELINE_F && t->kind != PIPELINE_W;
}

/* When the input of a task's forward (side 0) or backward (1) is there; 0 for what has none. */
static ps_t input_ps(const struct work *w, uint32_t rank, const struct pipeline_task *t, int side)
{
    if (side == 0 ? !has_forward(t) : !has_back(t)) return 0;
    return w->run->arrive[side][pipeline_slot(w->p, rank, t->chunk[side], t->micro[side])];
}

/* Starts the next task of a rank if it is free and the inputs are on their way. */
static void try_start(struct work *w, uint32_t rank)
{
    struct pipeline_run *run = w->run;
    size_t i = w->p->first[rank] + run->next[rank];
    if (run->running[rank] || i == w->p->first[rank + 1]) return;
    const struct pipeline_task *t = &w->p->tasks[i];
    ps_t forward = input_ps(w, rank, t, 0), back = input_ps(w, rank, t, 1);
    ps_t input = forward > back ? forward : back;
    if (input == PS_NEVER) return;
    ps_t free_ps = run->next[rank] ? run->spans[i - 1].end_ps : 0;
    ps_t start = input > free_ps ? input : free_ps;
    ps_t end = ps_sum(start, pipeline_task_ps(w->p, w->costs, rank, t));
    run->spans[i] = (struct pipeline_span){start, end};
    run->running[rank] = true;
    run->next[rank]++;
    queue_put(&run->queue, end, t->kind, rank);
}

/* Sends what a task made on (side 0: activations to the next stage, 1: gradients to the one
 * before), and wakes who waits for it. */
static void send(struct work *w, uint32_t rank, const struct pipeline_task *t, int side,
                 ps_t now_ps)
{
    uint32_t to = rank, chunk = t->chunk[side], micro = t->micro[side];
    if (!pipeline_next(w->p, rank, t->chunk[side], side ? -1 : 1, &to, &chunk)) {
        if (side == 0) /* the loss: its gradient is at hand */
            w->run->arrive[1][pipeline_slot(w->p, rank, t->chunk[0], micro)] = now_ps;
        return;
    }
    ps_t arrival = now_ps;
    if (to != rank) {
        bool up = to == (rank + 1) % w->p->shape.ranks && !(side == 1 && w->p->shape.ranks == 2);
        ps_t *lane = &w->run->lane_free[2 * (size_t)rank + up];
        ps_t begin = *lane > now_ps ? *lane : now_ps;
        *lane = ps_sum(begin, w->costs->message_ps);
        arrival = ps_sum(*lane, w->costs->latency_ps);
    }
    w->run->arrive[side][pipeline_slot(w->p, to, chunk, micro)] = arrival;
    if (to != rank) try_start(w, to);
}

static void reserve(struct pipeline_run *run, const struct pipeline *p)
{
    size_t ranks = p->shape.ranks, tasks = p->first[ranks];
    size_t slots = ranks * p->chunks * p->shape.micro;
    if (tasks > run->tasks_cap) {
        run->spans = mem_realloc(run->spans, tasks, sizeof *run->spans);
        run->tasks_cap = tasks;
    }
    if (slots > run->slots_cap) {
        run->arrive[0] = mem_realloc(run->arrive[0], slots, sizeof *run->arrive[0]);
        run->arrive[1] = mem_realloc(run->arrive[1], slots, sizeof *run->arrive[1]);
        run->slots_cap = slots;
    }
    if (ranks > run->ranks_cap) {
        run->ranks = mem_realloc(run->ranks, ranks, sizeof *run->ranks);
        run->lane_free = mem_realloc(run->lane_free, 2 * ranks, sizeof *run->lane_free);
        run->next = mem_realloc(run->next, ranks, sizeof *run->next);
        run->running = mem_realloc(run->running, ranks, sizeof *run->running);
        run->ranks_cap = ranks;
    }
}

static void clear(struct pipeline_run *run, const struct pipeline *p)
{
    size_t ranks = p->shape.ranks, slots = ranks * p->chunks * p->shape.micro;
    memset(run->arrive[0], 0xff, slots * sizeof *run->arrive[0]); /* PS_NEVER */
    memset(run->arrive[1], 0xff, slots * sizeof *run->arrive[1]);
    memset(run->ranks, 0, ranks * sizeof *run->ranks);
    memset(run->lane_free, 0, 2 * ranks * sizeof *run->lane_free);
    memset(run->next, 0, ranks * sizeof *run->next);
    memset(run->running, 0, ranks * sizeof *run->running);
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t c = 0; c < p->chunks; c++) {
            if (pipeline_stage(p, r, c) == 0) {
                memset(&run->arrive[0][pipeline_slot(p, r, c, 0)], 0,
                       p->shape.micro * sizeof(ps_t));
            }
        }
    }
}

/* ---- who is to blame ---- */

/* The task whose output a task waited for and which came at `at_ps`; SIZE_MAX if there is none. */
static size_t source_of(const struct work *w, size_t task, ps_t at_ps)
{
    const struct pipeline_task *t = &w->p->tasks[task];
    uint32_t rank = w->p->rank_of[task], to, chunk;
    for (int side = 0; side < 2; side++) {
        if (input_ps(w, rank, t, side) != at_ps || (side == 0 ? !has_forward(t) : !has_back(t)))
            continue;
        if (pipeline_next(w->p, rank, t->chunk[side], side ? 1 : -1, &to, &chunk))
            return w->p->task_of[side][pipeline_slot(w->p, to, chunk, t->micro[side])];
    }
    return SIZE_MAX;
}

/* Charges `from_ps` .. `at_ps` of a rank's idle time, walking back from `task`, before whose start
 * (`at_ps`) the rank waited. */
static void charge(struct work *w, struct pipeline_rank *idle, size_t task, ps_t from_ps,
                   ps_t at_ps)
{
    const struct pipeline_span *spans = w->run->spans;
    while (at_ps > from_ps) {
        uint32_t rank = w->p->rank_of[task];
        if (task > w->p->first[rank] && spans[task - 1].end_ps == at_ps) {
            task--;
        } else {
            task = source_of(w, task, at_ps);
            ps_t sent = spans[task].end_ps > from_ps ? spans[task].end_ps : from_ps;
            idle->message_ps += at_ps - sent;
            at_ps = sent;
        }
        ps_t begin = spans[task].start_ps > from_ps ? spans[task].start_ps : from_ps;
        if (at_ps > begin) {
            idle->bubble_ps += at_ps - begin;
            w->run->ranks[w->p->rank_of[task]].blame_ps += at_ps - begin;
            at_ps = begin;
        }
    }
}

/* Idle time after the last task of a rank: another one ended the step. */
static void charge_end(struct work *w, uint32_t rank, uint32_t longest)
{
    struct pipeline_run *run = w->run;
    struct pipeline_rank *r = &run->ranks[rank];
    size_t last = w->p->first[longest + 1] - 1;
    if (pipeline_row(w->p->shape.id)->staggered) {
        ps_t idle = run->step_ps - (r->last_ps - r->first_ps);
        r->bubble_ps += idle;
        run->ranks[longest].blame_ps += idle;
    } else if (r->last_ps < run->step_ps) {
        const struct pipeline_span *span = &run->spans[last];
        ps_t begin = span->start_ps > r->last_ps ? span->start_ps : r->last_ps;
        r->bubble_ps += span->end_ps - begin;
        run->ranks[longest].blame_ps += span->end_ps - begin;
        charge(w, r, last, r->last_ps, begin);
    }
}

static void account(struct work *w)
{
    struct pipeline_run *run = w->run;
    bool staggered = pipeline_row(w->p->shape.id)->staggered;
    uint32_t longest = 0;
    run->end_ps = run->step_ps = 0;
    for (uint32_t r = 0; r < w->p->shape.ranks; r++) {
        struct pipeline_rank *rank = &run->ranks[r];
        ps_t at = 0;
        for (size_t i = w->p->first[r]; i < w->p->first[r + 1]; i++) {
            const struct pipeline_span *span = &run->spans[i];
            bool first = i == w->p->first[r];
            if (span->start_ps > at && !(first && staggered))
                charge(w, rank, i, at, span->start_ps);
            rank->first_ps = first ? span->start_ps : rank->first_ps;
            rank->busy_ps[w->p->tasks[i].kind] += span->end_ps - span->start_ps;
            at = span->end_ps;
        }
        rank->last_ps = at;
        ps_t length = staggered ? at - rank->first_ps : at;
        run->end_ps = at > run->end_ps ? at : run->end_ps;
        longest = length > run->step_ps ? r : longest;
        run->step_ps = length > run->step_ps ? length : run->step_ps;
    }
    for (uint32_t r = 0; r < w->p->shape.ranks; r++) {
        charge_end(w, r, longest);
    }
}

int pipeline_run(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                 struct pipeline_run *run, struct err *err)
{
    struct work w = {pipeline, costs, run};
    reserve(run, pipeline);
    clear(run, pipeline);
    for (uint32_t r = 0; r < pipeline->shape.ranks; r++) {
        try_start(&w, r);
    }
    struct event event;
    size_t done = 0;
    while (queue_take(&run->queue, &event)) {
        uint32_t rank = event.id;
        const struct pipeline_task *t =
            &pipeline->tasks[pipeline->first[rank] + run->next[rank] - 1];
        run->running[rank] = false;
        done++;
        if (has_forward(t)) send(&w, rank, t, 0, event.time_ps);
        if (has_back(t)) send(&w, rank, t, 1, event.time_ps);
        try_start(&w, rank);
    }
    if (done < pipeline->first[pipeline->shape.ranks])
        return err_add(err, ERR_FAILED, "the pipeline schedule stands still after %zu of %zu tasks",
                       done, pipeline->first[pipeline->shape.ranks]);
    account(&w);
    return 0;
}

void pipeline_run_release(struct pipeline_run *run)
{
    free(run->ranks);
    free(run->spans);
    free(run->arrive[0]);
    free(run->arrive[1]);
    free(run->lane_free);
    free(run->next);
    free(run->running);
    queue_release(&run->queue);
    *run = (struct pipeline_run){0};
}
