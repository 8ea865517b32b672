/* SPDX-License-Identifier: Apache-2.0
 * Runs the graph of two steps and reads the second one off it. Micro-batches of a step are alike
 * once the first are through: as many are run as it takes until two in a row (in a pipeline: two
 * periods of its schedule, on every rank) need the same time to the picosecond; the rest are
 * counted. */
#include "train/event.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/event_graph.h"
#include "train/full.h"

/* ---- micro-batches that are counted instead of run ---- */

/* Micro-batches after which a schedule comes back to itself; 0: it does not, or not alike. */
static uint32_t period_of(const struct job *job, uint32_t micro)
{
    enum pipeline_id id = event_shape(job, micro).id;
    if (job->pp == 1) return 1;
    if (job_rounds(job, micro) > 1) return (uint32_t)(job->local_batch / job->micro_batch);
    if (id == PIPELINE_INTERLEAVED) return micro % job->pp == 0 ? job->pp : 0;
    return id == PIPELINE_1F1B || id == PIPELINE_ZB_1P || id == PIPELINE_ZB_2P ? job->pp : 0;
}

/* When a rank has the input's gradient of the first micro-batch of the `n`-th period from the last:
 * of the second from there on no rank starts or comes to its end. */
static ps_t period_end(const struct build *b, const struct graph_rank *r, uint32_t n)
{
    const struct pipeline *p = b->pipeline;
    uint32_t period = period_of(b->job, p->shape.micro), periods = p->shape.micro / period;
    size_t slot = pipeline_slot(p, r->index, p->chunks - 1, (periods - n) * period);
    size_t set = r->set * p->first[p->shape.ranks];
    return b->tasks->spans[b->last[set + p->task_of[1][slot]]].end_ps;
}

/* The time of a period of a rank. */
static ps_t period_ps(const struct build *b, const struct graph_rank *r)
{
    return period_end(b, r, 2) - period_end(b, r, 3);
}

/* Whether the period took as long as the one before, on every rank and on all of a set as long. */
static bool steady(const struct build *b)
{
    for (size_t i = 0; i < b->nsets * b->pipeline->shape.ranks; i++) {
        const struct graph_rank *r = &b->ranks[i];
        ps_t each = period_ps(b, r);
        if (each != period_end(b, r, 3) - period_end(b, r, 4)) return false;
        if (each != period_ps(b, r - r->index)) return false;
    }
    return true;
}

static int too_long(struct err *err)
{
    return err_add(err, ERR_USAGE,
                   "the step passes 213 days (2^64 ps): make the batch, the sequence or the model "
                   "smaller, or the cluster quicker");
}

static int too_many(const struct event_args *args, uint32_t micro, struct err *err)
{
    struct pipeline_shape shape = event_shape(args->job, micro);
    uint64_t each = (uint64_t)shape.ranks * shape.chunks,
             most = args->most ? args->most : EVENT_MOST;
    if (micro <= most / each) return 0;
    return err_add(err, ERR_USAGE,
                   "schedule %s of %" PRIu32 " micro-batches on %" PRIu64
                   " stages does not repeat: "
                   "%" PRIu64 " passes would run one by one, at most %" PRIu64 " can; nearest: "
                   "%" PRIu64 " micro-batches, or another schedule",
                   pipeline_row(shape.id)->name, micro, each, micro * each, most,
                   most / each > 0 ? most / each : 1);
}

/* Builds and runs a graph that tells what `micro` micro-batches take. */
static int run_graph(struct build *b, const struct event_args *args, const struct constants *c,
                     struct full *full, uint32_t micro, struct err *err)
{
    uint32_t period = args->keep || args->all || full ? 0 : period_of(args->job, micro);
    uint64_t some = args->job->pp == 1 ? 4 : 5; /* periods, and what is left over */
    for (;; some *= 3) {
        uint64_t run = some * period + (period ? micro % period : 0);
        bool all = period == 0 || 2 * run >= micro; /* what is lost if it is not steady */
        *b = (struct build){0};
        if (too_many(args, all ? micro : (uint32_t)run, err)) return -1;
        if (graph_build(b, args, c, full, all ? micro : (uint32_t)run, err) ||
            tasks_run(b->tasks, err) || (full && full_end(full, err)))
            return -1;
        if (tasks_end(b->tasks) == PS_NEVER) return too_long(err);
        if (all || steady(b)) return 0;
        graph_free(b);
    }
}

/* Periods that were not run. */
static uint64_t periods_left(const struct build *b)
{
    uint64_t left = job_microbatches(b->job) - b->pipeline->shape.micro;
    return left ? left / period_of(b->job, b->pipeline->shape.micro) : 0;
}

/* Their time, of the slowest set. */
static ps_t counted_ps(const struct build *b)
{
    uint64_t left = periods_left(b);
    ps_t most = 0;
    for (size_t s = 0; left > 0 && s < b->nsets; s++) {
        ps_t each = period_ps(b, &b->ranks[s * b->pipeline->shape.ranks]);
        most = each > most ? each : most;
    }
    return ps_times(most, left);
}

/* ---- what the time went to ---- */

/* A pass's time over its parts, in proportion. */
static void split(const void *context, uint32_t task, ps_t span_ps, ps_t *charged_ps)
{
    const struct build *b = context;
    const struct chunk_pass *pass = b->pass_of[task];
    ps_t sum = 0, given = 0;
    if (!pass || pass->total_ps == 0) {
        charged_ps[b->tasks->list[task].part] += span_ps;
        return;
    }
    for (int k = 0; k < NPARTS; k++) {
        sum += pass->part_ps[k];
        double share = (double)sum / (double)pass->total_ps;
        ps_t upto = sum == pass->total_ps ? span_ps : (ps_t)((double)span_ps * share);
        charged_ps[k] += upto - given;
        given = upto;
    }
}

/* The second step of one rank as it was run, and micro-batches that were not. */
static void charge_rank(const struct build *b, const struct graph_rank *r, ps_t run_ps,
                        ps_t step_ps, ps_t *part_ps)
{
    struct tasks_charge how = {
        .parts = NPARTS, .bubble = PART_BUBBLE, .split = split, .context = b};
    ps_t end = b->tasks->spans[r->close[1]].end_ps, each[NPARTS] = {0}, sum = 0;
    uint64_t left = periods_left(b);
    memset(part_ps, 0, NPARTS * sizeof *part_ps);
    tasks_charge(b->tasks, r->id, end - run_ps, end, &how, part_ps);
    if (left > 0)
        tasks_charge(b->tasks, r->id, period_end(b, r, 3), period_end(b, r, 2), &how, each);
    for (int k = 0; k < NPARTS; k++) {
        part_ps[k] += left * each[k];
        sum += part_ps[k];
    }
    part_ps[PART_BUBBLE] += step_ps - sum; /* a faster set waits for the slowest */
}

/* What `times` passes move and compute. */
static void count_pass(struct event_stage *stage, double *sent, const struct chunk_pass *pass,
                       double times)
{
    for (int k = 0; k < NNET_KINDS; k++) {
        stage->bytes[k] += times * pass->bytes[k];
    }
    for (int k = 0; k < 3; k++) { /* tp, cp, ep stand in the same order in both */
        sent[AXIS_TP_BYTES + k] += times * pass->sent[OP_TP + k];
    }
    stage->flops += times * pass->flops;
    stage->floor_s += times * pass->floor_s;
}

/* The rank runs a pass over a chunk so many times in the graph. */
static void add_row(const struct build *b, const struct graph_rank *r, uint32_t chunk,
                    enum pass kind, uint64_t times, struct event_result *result)
{
    result->chunks = mem_realloc(result->chunks, result->nchunks + 1, sizeof *result->chunks);
    result->chunks[result->nchunks++] =
        (struct event_chunk){.stage = r->index,
                             .chunk = chunk,
                             .shape = r->chunks[chunk].shape,
                             .pass = (uint8_t)kind,
                             .factor = r->factor,
                             .times = (uint32_t)((double)times * b->repeat + .5)};
}

/* How often a rank runs a pass over a chunk: at all, and not as part of a pair. */
struct count {
    uint64_t all, alone;
};

/* Passes of a rank: how often each ran, and what that adds up to. */
static int count_passes(struct build *b, struct graph_rank *r, struct event_result *result,
                        struct event_stage *stage, double *sent)
{
    const struct pipeline *p = b->pipeline;
    size_t n = (size_t)p->chunks * NPASSES;
    struct count *counts = mem_calloc(n, sizeof *counts);
    int bad = 0;
    for (size_t i = p->first[r->index]; i < p->first[r->index + 1]; i++) {
        const struct pipeline_task *task = &p->tasks[i];
        bool pair = task->kind == PIPELINE_PAIR && !b->by_unit;
        const struct chunk_pass *both = pair ? graph_pair_of(b, r, task) : NULL;
        if (both) count_pass(stage, sent, both, b->repeat);
        for (int side = 0; side < 2; side++) {
            enum pass kind = graph_pass(task, side);
            if (kind == NPASSES) continue;
            struct count *count = &counts[task->chunk[side] * (size_t)NPASSES + kind];
            count->all++;
            count->alone += !pair;
        }
    }
    for (size_t i = 0; i < n && !bad; i++) {
        uint32_t chunk = (uint32_t)(i / NPASSES);
        enum pass kind = (enum pass)(i % NPASSES);
        if (counts[i].all > 0) add_row(b, r, chunk, kind, counts[i].all, result);
        if (counts[i].alone == 0) continue;
        const struct chunk_pass *pass = graph_pass_of(b, r, chunk, kind);
        bad = pass ? 0 : -1;
        if (pass) count_pass(stage, sent, pass, (double)counts[i].alone * b->repeat);
    }
    free(counts);
    return bad;
}

/* What a rank moves and computes in a step, its jobs included. */
static int count_rank(struct build *b, struct graph_rank *r, struct event_result *result,
                      struct event_stage *stage, double *sent)
{
    for (int k = 0; k < NNET_KINDS; k++) {
        stage->bytes[k] += r->bytes[k];
    }
    for (int k = 0; k < NAXIS_BYTES; k++) {
        sent[k] += r->sent[k];
    }
    return count_passes(b, r, result, stage, sent);
}

/* Of a stage's sets the one that waits least. */
static struct graph_rank *charge_stage(struct build *b, uint32_t index, ps_t run_ps, ps_t step_ps,
                                       struct event_stage *stage)
{
    struct graph_rank *least = NULL;
    for (size_t s = 0; s < b->nsets; s++) {
        struct graph_rank *r = &b->ranks[s * b->pipeline->shape.ranks + index];
        ps_t part_ps[NPARTS];
        charge_rank(b, r, run_ps, step_ps, part_ps);
        if (least && part_ps[PART_BUBBLE] >= stage->part_ps[PART_BUBBLE]) continue;
        least = r;
        memcpy(stage->part_ps, part_ps, sizeof part_ps);
    }
    stage->compute_ps = stage->part_ps[PART_OPTIMIZER];
    for (int k = PART_GEMM; k <= PART_RECOMPUTE; k++) {
        stage->compute_ps += stage->part_ps[k];
    }
    return least;
}

static ps_t end_of(const struct build *b, int step)
{
    ps_t end = 0;
    for (size_t i = 0; i < b->nsets * b->pipeline->shape.ranks; i++) {
        ps_t own = b->tasks->spans[b->ranks[i].close[step]].end_ps;
        end = own > end ? own : end;
    }
    return end;
}

/* ---- the result ---- */

static void fill_step(const struct job *job, struct event_result *result)
{
    struct step *step = &result->step;
    const struct event_stage *stage = &result->stages[step->slowest_stage];
    step->time_s = (double)result->step_ps * 1e-12;
    for (int k = 0; k < NPARTS; k++) {
        step->part_s[k] = (double)stage->part_ps[k] * 1e-12;
    }
    step->model_flops = step_flops(job, 0);
    step->model_flops_full = step_flops(job, FLOPS_FULL);
    step->hardware_flops = step_flops(job, FLOPS_HARDWARE);
    step->tokens_per_s = (double)job->global_batch * (double)job->seq / step->time_s;
}

static int fill_result(struct build *b, struct event_result *result)
{
    ps_t run_ps = end_of(b, 1) - end_of(b, 0), least = PS_NEVER;
    result->from_ps = end_of(b, 0);
    result->step_ps = ps_sum(run_ps, counted_ps(b));
    if (result->step_ps == PS_NEVER) return too_long(b->err);
    result->nstages = b->pipeline->shape.ranks;
    result->stages = mem_calloc(result->nstages, sizeof *result->stages);
    result->events = b->tasks->ntasks;
    for (uint32_t i = 0; i < result->nstages; i++) {
        struct event_stage *stage = &result->stages[i];
        struct graph_rank *r = charge_stage(b, i, run_ps, result->step_ps, stage);
        double sent[NAXIS_BYTES] = {0};
        if (count_rank(b, r, result, stage, sent)) return -1;
        if (stage->part_ps[PART_BUBBLE] >= least) continue;
        least = stage->part_ps[PART_BUBBLE];
        result->step.slowest_stage = i;
        result->step.dp_total_s = r->reduce_s;
        memcpy(result->bytes_by_axis, sent, sizeof sent);
    }
    fill_step(b->job, result);
    if (b->args->keep) {
        result->tasks = b->tasks;
        result->labels = b->labels;
        b->tasks = NULL;
        b->labels = NULL;
    }
    return 0;
}

void event_chunks(const struct event_args *args, struct constants *c)
{
    *c = *args->c;
    c->fabric_eff[args->job->fabric] *= 1 - args->other_job;
    chunks_job(args->chunks, args->job, c, args->fluids);
}

/* The network that collectives run on one by one. */
static struct full *get_full(const struct event_args *args, const struct constants *c,
                             struct err *err)
{
    int bad = 0;
    if (args->detail != DETAIL_OP)
        bad = err_add(err, ERR_USAGE, "--net full runs each operator; nearest: --detail op");
    if (args->nslow > 0)
        bad = err_add(err, ERR_USAGE,
                      "--net full runs one rank of a stage for all, which then compute alike; %zu "
                      "slow GPUs are given; nearest: none",
                      args->nslow);
    if (bad) return NULL;
    return full_new(args->job, args->fluids, c->fabric_eff[args->job->fabric], err);
}

int event_run(const struct event_args *args, struct event_result *result, struct err *err)
{
    struct constants c;
    struct build b;
    *result = (struct event_result){0};
    if (!(args->other_job >= 0 && args->other_job <= .95))
        return err_add(err, ERR_USAGE,
                       "a second job takes %g of the network, which must lie in 0..0.95; "
                       "nearest: %g",
                       args->other_job, args->other_job > .95 ? .95 : 0.);
    uint64_t micro = job_microbatches(args->job);
    if (micro > UINT32_MAX)
        return err_add(err, ERR_USAGE, "%" PRIu64 " micro-batches are too many; nearest: %" PRIu32,
                       micro, UINT32_MAX);
    event_chunks(args, &c);
    struct full *full = NULL;
    if (args->full && !(full = get_full(args, &c, err))) return -1;
    chunks_full(args->chunks, full);
    int bad = run_graph(&b, args, &c, full, (uint32_t)micro, err);
    if (!bad) bad = fill_result(&b, result);
    graph_free(&b);
    full_free(full);
    chunks_job(args->chunks, args->job, args->c, args->fluids); /* `c` goes */
    if (bad) event_release(result);
    return bad;
}

void event_release(struct event_result *result)
{
    free(result->stages);
    free(result->chunks);
    free(result->labels);
    tasks_free(result->tasks);
    *result = (struct event_result){0};
}
