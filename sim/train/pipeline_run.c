/* SPDX-License-Identifier: Apache-2.0
 * Runs a pipeline schedule as a graph of tasks (train/tasks.h): a rank's list is its compute lane,
 * messages go over lanes of their own. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/pipeline.h"

/* What time is charged as: the kinds of tasks, and two more. */
enum { PART_MESSAGE = NTASK_KINDS, PART_BUBBLE, NPARTS_HERE };

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

/* ---- the graph ---- */

/* `task`, which does the forward (side 0) or backward (1) of a micro-batch on a chunk of `rank`,
 * hands on what it makes: activations to the next stage, gradients to the one before. Two message
 * lanes of a rank follow its compute lane. */
static void hand_on(struct tasks *tasks, const struct pipeline *p,
                    const struct pipeline_costs *costs, uint32_t rank, uint32_t task, int side)
{
    const struct pipeline_task *t = &p->tasks[task];
    uint32_t to = rank, chunk = t->chunk[side];
    bool end = !pipeline_next(p, rank, t->chunk[side], side ? -1 : 1, &to, &chunk);
    if (end && side == 1) return;
    /* at the end of the path the loss is made, whose gradient is at hand */
    size_t behind = p->task_of[end ? 1 : side][pipeline_slot(p, to, chunk, t->micro[side])];
    uint32_t from = task;
    if (to != rank && (costs->message_ps > 0 || costs->latency_ps > 0)) {
        bool up = to == (rank + 1) % p->shape.ranks && !(side == 1 && p->shape.ranks == 2);
        struct task message = {.lane = tasks->compute_lane[rank] + 1 + up,
                               .rank = rank,
                               .kind = TASK_JOB,
                               .part = PART_MESSAGE,
                               .use = TASK_NONE,
                               .work_ps = costs->message_ps,
                               .lag_ps = costs->latency_ps};
        from = tasks_add(tasks, &message);
        tasks_after(tasks, from, task);
    }
    tasks_after(tasks, (uint32_t)behind, from);
}

/* Task i of the schedule is task i of the graph; messages come behind them. */
static void build(struct tasks *tasks, const struct pipeline *p, const struct pipeline_costs *costs)
{
    tasks_clear(tasks);
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        struct task task = {.rank = tasks_rank(tasks), .kind = TASK_COMPUTE, .use = TASK_NONE};
        task.lane = tasks->compute_lane[r];
        tasks_lane(tasks);
        tasks_lane(tasks);
        for (size_t i = p->first[r]; i < p->first[r + 1]; i++) {
            task.part = p->tasks[i].kind;
            task.work_ps = pipeline_task_ps(p, costs, r, &p->tasks[i]);
            tasks_add(tasks, &task);
        }
    }
    size_t count = p->first[p->shape.ranks];
    for (uint32_t i = 0; i < count; i++) {
        uint8_t kind = p->tasks[i].kind;
        if (kind == PIPELINE_F || kind == PIPELINE_PAIR)
            hand_on(tasks, p, costs, p->rank_of[i], i, 0);
        if (kind != PIPELINE_F && kind != PIPELINE_W) hand_on(tasks, p, costs, p->rank_of[i], i, 1);
    }
}

/* ---- the account ---- */

/* The length of the step, and the rank that it is due to. */
static uint32_t measure(struct pipeline_run *run, const struct pipeline *p)
{
    bool staggered = pipeline_row(p->shape.id)->staggered;
    uint32_t longest = 0;
    run->end_ps = run->step_ps = 0;
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        struct pipeline_rank *rank = &run->ranks[r];
        *rank = (struct pipeline_rank){.first_ps = run->spans[p->first[r]].start_ps,
                                       .last_ps = run->spans[p->first[r + 1] - 1].end_ps};
        ps_t length = rank->last_ps - (staggered ? rank->first_ps : 0);
        run->end_ps = rank->last_ps > run->end_ps ? rank->last_ps : run->end_ps;
        longest = length > run->step_ps ? r : longest;
        run->step_ps = length > run->step_ps ? length : run->step_ps;
        run->blame_ps[r] = 0;
    }
    return longest;
}

static void account(struct pipeline_run *run, const struct pipeline *p)
{
    bool staggered = pipeline_row(p->shape.id)->staggered;
    uint32_t longest = measure(run, p);
    struct tasks_charge how = {NPARTS_HERE, PART_BUBBLE, .blame_ps = run->blame_ps};
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        struct pipeline_rank *rank = &run->ranks[r];
        ps_t from_ps = staggered ? rank->first_ps : 0;
        ps_t to_ps = staggered ? rank->last_ps : run->step_ps;
        ps_t charged_ps[NPARTS_HERE] = {0}, rest_ps = run->step_ps - (to_ps - from_ps);
        tasks_charge(run->tasks, r, from_ps, to_ps, &how, charged_ps);
        memcpy(rank->busy_ps, charged_ps, sizeof rank->busy_ps);
        rank->message_ps = charged_ps[PART_MESSAGE];
        rank->bubble_ps = charged_ps[PART_BUBBLE] + rest_ps;
        run->blame_ps[longest] += rest_ps;
    }
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        run->ranks[r].blame_ps = run->blame_ps[r];
    }
}

int pipeline_run(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                 struct pipeline_run *run, struct err *err)
{
    size_t ranks = pipeline->shape.ranks;
    if (!run->tasks) run->tasks = tasks_new();
    if (ranks > run->ranks_cap) {
        run->ranks = mem_realloc(run->ranks, ranks, sizeof *run->ranks);
        run->blame_ps = mem_realloc(run->blame_ps, ranks, sizeof *run->blame_ps);
        run->ranks_cap = ranks;
    }
    build(run->tasks, pipeline, costs);
    if (tasks_run(run->tasks, err)) return -1;
    run->spans = run->tasks->spans;
    account(run, pipeline);
    return 0;
}

void pipeline_run_release(struct pipeline_run *run)
{
    free(run->ranks);
    free(run->blame_ps);
    tasks_free(run->tasks);
    *run = (struct pipeline_run){0};
}
