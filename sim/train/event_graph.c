/* SPDX-License-Identifier: Apache-2.0
 * Builds the graph of two steps: what each rank does in the order of the schedule, the messages
 * between ranks, and the end of a step: what is still to be reduced, the optimizer, and weights
 * that are gathered or sent back. Of the first step only this end is there where all ranks meet
 * before the optimizer, for then nothing else of it reaches into the second. */
#include "train/event_graph.h"
#include "train/full.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Tasks of a set up to which passes go by operators where they have to: some tenths of a second. */
enum { FINER_MOST = 1 << 18 };

/* ---- messages ---- */

/* Neighbours that stand for the last and the first: two that no NVLink joins, if there are such. */
static uint32_t across(const struct build *b)
{
    uint64_t stride = job_pp_stride(b->job), domain = b->job->domain;
    uint32_t low = b->pipeline->shape.ranks - 2;
    while (low > 0 && domain > 0 && low * stride / domain == (low + 1) * stride / domain) {
        low--;
    }
    return low;
}

/* From rank to rank: the call's place, and the lane. */
static void route(const struct build *b, uint32_t from, uint32_t to, int side, struct wish *w)
{
    uint32_t p = b->pipeline->shape.ranks, low = from < to ? from : to;
    bool up = to == (from + 1) % p && !(side == 1 && p == 2),
         next = low + 1 == to || low + 1 == from;
    if (!next) low = across(b);
    w->back = next ? to < from : !up;
    w->lane = up ? LANE_UP : LANE_DOWN;
    w->n = 2;
    w->stride = (uint32_t)job_pp_stride(b->job);
    w->base = low * w->stride;
    w->to = to + 1;
}

/* A message that was cut over the tensor-parallel ranks is put together again where it arrives. */
static int gather_lag(struct build *b, uint32_t to, double bytes, ps_t *lag_ps)
{
    const struct job *job = b->job;
    *lag_ps = 0;
    if (!job->cut_messages || job->sp || job->tp < 2) return 0;
    uint64_t stride = job_tp_stride(job), block = stride * job->tp;
    struct fluid_call call = {.coll = COLL_ALLGATHER,
                              .bytes = (uint64_t)bytes,
                              .n = job->tp,
                              .stride = (uint32_t)stride,
                              .base = (uint32_t)(to * job_pp_stride(job) / block * block),
                              .cross = 1};
    struct fluid fluid;
    if (fluids_get(b->args->fluids, &call, &fluid, b->err)) return -1;
    chunks_fabric(&fluid, b->c->fabric_eff[job->fabric]);
    *lag_ps = fluid.fixed_ps + fluid.wire_ps;
    return 0;
}

/* What a task made on one side goes to the rank that goes on with it, if that is another. */
static int send(struct build *b, struct graph_rank *r, size_t index, int side)
{
    const struct pipeline *p = b->pipeline;
    const struct pipeline_task *task = &p->tasks[index];
    const struct job *job = b->job;
    uint32_t to, chunk, micro = task->micro[side], message;
    enum pass kind = graph_pass(task, side);
    if (kind == NPASSES || kind == PASS_W) return 0;
    if (!pipeline_next(p, r->index, task->chunk[side], side ? -1 : 1, &to, &chunk)) return 0;
    if (to == r->index) return 0;
    bool wide = job->precision == PREC_FP32 || job->precision == PREC_TF32;
    double tokens = (double)job->micro_batch * (double)job->seq / job->cp;
    double bytes = (wide ? 4 : 2) * tokens * job->shape.hidden;
    size_t set = r->set * p->first[p->shape.ranks];
    struct wish w = {.name = "send",
                     .coll = COLL_SENDRECV,
                     .part = PART_PP,
                     .axis = AXIS_PP_BYTES,
                     .bytes = job->sp || job->cut_messages ? bytes / job->tp : bytes,
                     .ready = {b->last[set + index], TASK_NONE},
                     .micro = micro,
                     .chunk = task->chunk[side],
                     .message = true,
                     .each = true};
    route(b, r->index, to, side, &w);
    if (gather_lag(b, to, bytes, &w.later_ps) || graph_job(b, r, &w, &message)) return -1;
    size_t next = p->task_of[side][pipeline_slot(p, to, chunk, micro)];
    graph_after(b, b->first[set + next], message);
    /* With one micro-batch forward and one backward in turn, send and receive are one call that
     * returns when both are done, whatever the framework overlaps elsewhere. */
    bool turns = p->shape.id == PIPELINE_1F1B || p->shape.id == PIPELINE_GPIPE;
    if (job->p2p_overlap && !turns) return 0;
    if (index + 1 < p->first[r->index + 1]) { /* the call returns when it has been sent */
        graph_after(b, b->first[set + index + 1], message);
    } else {
        graph_pend(r, message);
    }
    return 0;
}

/* All that a rank does up to its last pass. */
static int add_schedule(struct build *b, struct graph_rank *r)
{
    const struct pipeline *p = b->pipeline;
    r->next = (struct cursor){.task = p->first[r->index]};
    r->issued = r->run = 0;
    for (uint32_t c = 0; c < p->chunks; c++) {
        struct graph_chunk *chunk = &r->chunks[c];
        chunk->reduced = false;
        if (chunk->out)
            memset(chunk->out, 0xff,
                   (size_t)p->shape.micro * chunk->stage->nunits * sizeof *chunk->out);
    }
    for (size_t i = p->first[r->index]; i < p->first[r->index + 1]; i++) {
        if (graph_add_passes(b, r, i)) return -1;
    }
    return 0;
}

static int add_messages(struct build *b, struct graph_rank *r)
{
    for (size_t i = b->pipeline->first[r->index]; i < b->pipeline->first[r->index + 1]; i++) {
        if (send(b, r, i, 0) || send(b, r, i, 1)) return -1;
    }
    return 0;
}

/* ---- the end of a step ---- */

/* Reduces what has not been, and gives the point where all gradients of the rank are there. */
static int end_gradients(struct build *b, struct graph_rank *r, bool whole)
{
    for (uint32_t c = 0; whole && c < b->pipeline->chunks; c++) {
        if (event_fsdp(b->job) || r->chunks[c].reduced) continue;
        if (graph_reduce_chunk(b, r, c, UINT32_MAX)) return -1;
    }
    r->reduced = graph_join(b, r);
    graph_after(b, r->reduced, r->last);
    for (size_t i = 0; i < r->npending; i++) {
        graph_after(b, r->reduced, r->pending[i]);
    }
    r->npending = 0;
    return 0;
}

/* A tied embedding has a copy on the first and on the last rank: their gradients are summed. */
static int sum_tied(struct build *b, struct graph_rank *ranks)
{
    const struct job *job = b->job;
    uint32_t p = b->pipeline->shape.ranks;
    struct graph_rank *first = &ranks[0], *last = &ranks[p - 1];
    bool apart = pipeline_stage(b->pipeline, p - 1, b->pipeline->chunks - 1) + 1 ==
                 b->pipeline->stages; /* else one rank holds both */
    if (!job->shape.tied || job->shape.vocab == 0 || p < 2 || !apart || job->lora_rank) return 0;
    double bytes = job_params(job).embedding / job->tp * event_gradient_B(job);
    if (event_fsdp(job)) bytes /= b->groups[GROUP_DENSE].n;
    struct wish w = {.name = "reduce tied embedding",
                     .coll = COLL_ALLREDUCE,
                     .part = PART_DP,
                     .lane = LANE_REDUCE,
                     .axis = AXIS_DP_BYTES,
                     .bytes = bytes,
                     .n = 2,
                     .stride = (uint32_t)job_pp_stride(job),
                     .to = 2, /* as far as the last */
                     .ready = {first->reduced, last->reduced},
                     .micro = UINT32_MAX,
                     .chunk = UINT32_MAX};
    uint32_t done[2];
    if (graph_job(b, first, &w, &done[0])) return -1;
    done[1] = done[0]; /* message by message it is one */
    if (!b->full && graph_job(b, last, &w, &done[1])) return -1;
    first->reduced = done[0];
    last->reduced = done[1];
    return 0;
}

/* Trained parameters of a rank that one group shares. */
static double trained(const struct build *b, const struct graph_rank *r, int group)
{
    double params = 0;
    for (uint32_t c = 0; c < b->pipeline->chunks; c++) {
        const struct stage *stage = r->chunks[c].stage;
        for (uint32_t i = 0; i < stage->nunits; i++) {
            params += stage->units[i].trained[group];
        }
    }
    return params;
}

static void fixed_time(struct build *b, const struct graph_rank *r, uint32_t meet)
{
    static const double whole = 1;
    double left[] = {whole, b->c->graphs_partial, 0}; /* by enum graphs: no host in a full one */
    double host = left[b->job->graphs] * (b->job->dev.grace ? b->c->host_grace : 1);
    struct task task = {.lane = b->tasks->compute_lane[r->id],
                        .rank = r->id,
                        .kind = TASK_COMPUTE,
                        .part = PART_LAUNCH,
                        .use = TASK_NONE,
                        .work_ps = graph_ps(b->c->step_ms[b->job->fw] * 1e-3 * host)};
    uint32_t number = graph_task(b, task, NULL, graph_label(r, "host"));
    graph_after(b, number, meet);
    graph_after(b, number, r->last);
}

/* The optimizer over what the rank owns, on the GPU or on its host; *done is its last task. */
static uint32_t add_optimizer(struct build *b, struct graph_rank *r, uint32_t meet)
{
    const struct job *job = b->job;
    bool zero = job->shard == SHARD_ZERO1 || job->shard == SHARD_ZERO2;
    bool host = (job->offload & OFFLOAD_OPTIMIZER) != 0;
    double owned = 0, held = 0;
    for (int g = 0; g < NGROUPS; g++) {
        double params = trained(b, r, g);
        owned += params / graph_spread(b, g);
        held += zero ? params : 0;
    }
    double seconds = ops_optimizer_s(job, b->c, owned, held);
    if (host) /* the processor moves at least what the optimizer reads and writes */
        seconds *=
            fmax(1, 1 / b->c->opt_traffic) * job->dev.hbm_Bps * b->c->hbm_eff / job->host_mem_Bps;
    struct task task = {.lane = host ? r->lane[LANE_HOST] : b->tasks->compute_lane[r->id],
                        .rank = r->id,
                        .kind = host ? TASK_HOST : TASK_COMPUTE,
                        .part = host ? PART_OFFLOAD : PART_OPTIMIZER,
                        .sm_hit = host ? 0 : 1,
                        .use = TASK_NONE,
                        .work_ps = graph_ps(seconds)};
    uint32_t done = graph_task(b, task, NULL, graph_label(r, "optimizer"));
    graph_after(b, done, meet);
    if (host && !(job->offload & OFFLOAD_WEIGHTS))
        done = graph_transfer(b, r, "weights from host", LANE_IN, owned * event_weight_B(job),
                              (uint32_t[]){done, TASK_NONE});
    return done;
}

static int gather_bucket(struct build *b, struct graph_rank *r, uint32_t chunk, int g,
                         double params, uint32_t ready, uint32_t *number)
{
    const struct group *group = &b->groups[g];
    struct wish w = {.name = "gather",
                     .coll = b->job->owner_sends ? COLL_BROADCAST : COLL_ALLGATHER,
                     .part = PART_DP,
                     .lane = g == GROUP_EXPERT ? LANE_EXPERT : LANE_REDUCE,
                     .axis = AXIS_DP_BYTES,
                     .bytes = params * event_weight_B(b->job),
                     .ready = {ready, TASK_NONE},
                     .micro = UINT32_MAX,
                     .chunk = chunk};
    graph_place(b, r, group->n, group->stride, &w);
    return graph_job(b, r, &w, number);
}

/* Owners of whole tensors send what they have to all, one owner after the other: of more ranks than
 * tensors only so many own one. */
static int send_tensors(struct build *b, struct graph_rank *r, uint32_t chunk, int g,
                        uint32_t ready, uint32_t close)
{
    const struct stage *stage = r->chunks[chunk].stage;
    struct tensors list = {0};
    int bad = 0;
    for (uint32_t i = 0; i < stage->nunits; i++) {
        unit_tensors(b->job, &stage->units[i], g, true, &list);
    }
    double all = 0;
    size_t n = b->groups[g].n;
    for (size_t i = 0; i < list.count; i++) {
        all += list.params[i];
    }
    for (size_t i = 0; i < (n < list.count ? n : list.count) && !bad; i++) {
        uint32_t number = TASK_NONE;
        double params = n < list.count ? all / (double)n : list.params[i];
        bad = gather_bucket(b, r, chunk, g, params, ready, &number);
        if (!bad) graph_after(b, close, number);
    }
    free(list.params);
    return bad;
}

/* ZeRO-1 and -2: the owners' weights go to all; `close` waits for what no pass will wait for. */
static int gather_weights(struct build *b, struct graph_rank *r, uint32_t ready, uint32_t close)
{
    for (uint32_t c = 0; c < b->pipeline->chunks; c++) {
        struct graph_chunk *chunk = &r->chunks[c];
        for (int g = 0; g < NGROUPS; g++) {
            double all = 0;
            uint32_t number;
            if (b->groups[g].n < 2) continue;
            if (b->job->owner_sends) {
                if (send_tensors(b, r, c, g, ready, close)) return -1;
                continue;
            }
            for (size_t k = chunk->stage->nbuckets[g]; k-- > 0;) {
                double params = chunk->stage->buckets[g][k].params;
                all += params;
                if (!b->job->gather_overlap) continue;
                if (gather_bucket(b, r, c, g, params, ready, &chunk->gather[g][k])) return -1;
            }
            if (b->job->gather_overlap || all <= 0) continue;
            if (gather_bucket(b, r, c, g, all, ready, &number)) return -1;
            graph_after(b, close, number);
        }
    }
    return 0;
}

/* From the point where the gradients are there to that where the next step may begin. */
static int end_step(struct build *b, struct graph_rank *r, uint32_t meet)
{
    bool zero = b->job->shard == SHARD_ZERO1 || b->job->shard == SHARD_ZERO2;
    fixed_time(b, r, meet);
    uint32_t done = add_optimizer(b, r, meet);
    struct task task = {.lane = TASK_NONE, .rank = r->id, .use = TASK_NONE};
    task.kind = TASK_JOIN;
    uint32_t ready = graph_task(b, task, NULL, graph_label(r, "join"));
    graph_after(b, ready, done);
    if (zero && gather_weights(b, r, done, ready)) return -1;
    task.kind = TASK_COMPUTE;
    task.lane = b->tasks->compute_lane[r->id];
    uint32_t close = graph_task(b, task, NULL, graph_label(r, "end"));
    graph_after(b, close, ready);
    r->weights = done;
    r->last = r->close[b->step] = close;
    return 0;
}

/* -1; 1: there are too many operators. */
static int add_step(struct build *b, bool whole)
{
    uint32_t p = b->pipeline->shape.ranks;
    bool meet_all = !pipeline_row(b->pipeline->shape.id)->staggered;
    size_t n = b->nsets * p;
    for (size_t i = 0; whole && i < n; i++) {
        if (add_schedule(b, &b->ranks[i])) return -1;
        if (b->finer && b->tasks->ntasks > FINER_MOST * b->nsets) return 1;
    }
    for (size_t i = 0; whole && i < n; i++) {
        if (add_messages(b, &b->ranks[i])) return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (end_gradients(b, &b->ranks[i], whole)) return -1;
    }
    for (size_t s = 0; whole && s < b->nsets; s++) {
        if (sum_tied(b, &b->ranks[s * p])) return -1;
    }
    uint32_t meet = meet_all ? graph_join(b, &b->ranks[0]) : TASK_NONE;
    for (size_t i = 0; meet_all && i < n; i++) { /* the norm of all gradients is what clips them */
        graph_after(b, meet, b->ranks[i].reduced);
    }
    for (size_t i = 0; i < n; i++) {
        if (end_step(b, &b->ranks[i], meet_all ? meet : b->ranks[i].reduced)) return -1;
    }
    return 0;
}

/* Jobs of one group begin in all sets once all are ready. */
static void join_sets(struct build *b)
{
    size_t p = b->pipeline->shape.ranks;
    for (size_t i = 0; b->nsets > 1 && i < b->nsets * p; i++) {
        for (size_t other = i % p; other < b->nsets * p; other += p) {
            for (size_t k = 0; other != i && k < b->nsync[i]; k++) {
                graph_after(b, b->sync[i][k].job, b->sync[other][k].ready);
            }
        }
    }
}

/* ---- life ---- */

static void make_rank(struct build *b, size_t i)
{
    const struct pipeline *p = b->pipeline;
    struct graph_rank *r = &b->ranks[i];
    *r = (struct graph_rank){.id = tasks_rank(b->tasks),
                             .set = (uint32_t)(i / p->shape.ranks),
                             .index = (uint32_t)(i % p->shape.ranks),
                             .factor = b->factors[i],
                             .weights = TASK_NONE,
                             .blocked = TASK_NONE,
                             .last = TASK_NONE};
    for (int k = 0; k < NLANES; k++) {
        r->lane[k] = tasks_lane(b->tasks);
    }
    r->uses = mem_calloc(2 * (size_t)b->ahead + 2, sizeof *r->uses);
    r->chunks = mem_calloc(p->chunks, sizeof *r->chunks);
    for (uint32_t c = 0; c < p->chunks; c++) {
        struct graph_chunk *chunk = &r->chunks[c];
        chunk->number = pipeline_stage(p, r->index, c);
        chunk->stage = &b->stages[chunk->number];
        chunk->shape = chunk->stage->shape;
        if (b->places) chunk->shape.span = graph_span(b, r->index, &chunk->shape.base);
        chunk->first = chunk->last = SIZE_MAX;
        for (int g = 0; g < NGROUPS; g++) {
            size_t n = chunk->stage->nbuckets[g];
            chunk->gather[g] = mem_calloc(n, sizeof *chunk->gather[g]);
            memset(chunk->gather[g], 0xff, n * sizeof *chunk->gather[g]); /* TASK_NONE */
        }
        if (b->job->offload & OFFLOAD_ACTIVATIONS)
            chunk->out =
                mem_calloc((size_t)p->shape.micro * chunk->stage->nunits, sizeof *chunk->out);
    }
    for (size_t k = p->first[r->index]; k < p->first[r->index + 1]; k++) {
        for (int side = 0; side < 2; side++) {
            enum pass kind = graph_pass(&p->tasks[k], side);
            struct graph_chunk *chunk = &r->chunks[p->tasks[k].chunk[side]];
            if (kind == PASS_F && chunk->first == SIZE_MAX) chunk->first = k;
            if (kind == PASS_W || kind == PASS_BW) chunk->last = k;
        }
    }
}

/* Whether domains cut blocks of some group of the job, but not all alike. */
static bool cut_unevenly(const struct build *b)
{
    const struct job *job = b->job;
    const struct group *dense = &b->groups[GROUP_DENSE], *experts = &b->groups[GROUP_EXPERT];
    const uint64_t blocks[] = {job_tp_stride(job) * job->tp, job_cp_stride(job) * job->cp,
                               job_stage_stride(job, job->etp, job->ep) * job->ep,
                               (uint64_t)dense->n * dense->stride,
                               (uint64_t)experts->n * experts->stride};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (job->domain == 0 || blocks[i] == 0) continue;
        if (job->domain % blocks[i] != 0 && blocks[i] % job->domain != 0) return true;
    }
    return false;
}

static int check_host(const struct job *job, struct err *err)
{
    bool moves = job->offload != 0, steps = (job->offload & OFFLOAD_OPTIMIZER) != 0;
    if ((!moves || job->host_Bps > 0) && (!steps || job->host_mem_Bps > 0)) return 0;
    return err_add(err, ERR_USAGE,
                   "what is offloaded needs a way to the host's memory and its rate: %g and %g "
                   "bytes/s are given; nearest: above 0",
                   job->host_Bps, job->host_mem_Bps);
}

/* `met`: what jobs do to passes, once that is known; NULL. -1; 1: there are too many operators. */
static int build_once(struct build *b, const struct event_args *args, const struct constants *c,
                      struct full *full, uint32_t micro, const struct met *met, struct err *err)
{
    const struct job *job = args->job;
    struct pipeline_shape shape = event_shape(job, micro);
    unsigned by_unit = OFFLOAD_WEIGHTS | OFFLOAD_ACTIVATIONS;
    *b = (struct build){.args = args,
                        .job = job,
                        .full = full,
                        .c = c,
                        .err = err,
                        .repeat = (double)job_microbatches(job) / micro,
                        .by_unit = event_fsdp(job) || (job->offload & by_unit) != 0,
                        .ahead = job->prefetch};
    b->finer = met != NULL;
    if (met) memcpy(b->met, met, sizeof b->met);
    b->nsets = event_sets(args, &b->factors, err);
    if (check_host(job, err) || b->nsets == 0) return -1;
    b->pipeline = event_pipeline(job, micro, err);
    if (!b->pipeline) return -1;
    b->tasks = tasks_new();
    b->tasks->outside = full ? full_outside(full) : NULL;
    b->stages = stages_new(job, b->pipeline);
    event_groups(job, b->groups);
    b->places = fluids_marked(args->fluids) || cut_unevenly(b);
    size_t n = b->nsets * job->pp, tasks = b->nsets * b->pipeline->first[job->pp];
    b->ranks = mem_calloc(n, sizeof *b->ranks);
    b->sync = mem_calloc(n, sizeof *b->sync);
    b->nsync = mem_calloc(n, sizeof *b->nsync);
    b->sync_cap = mem_calloc(n, sizeof *b->sync_cap);
    b->first = mem_calloc(tasks, sizeof *b->first);
    b->last = mem_calloc(tasks, sizeof *b->last);
    for (size_t i = 0; i < n; i++) {
        make_rank(b, i);
    }
    for (b->step = 0; b->step < 2; b->step++) {
        int rc = add_step(b, b->step == 1 || pipeline_row(shape.id)->staggered);
        if (rc) return rc;
    }
    join_sets(b);
    return 0;
}

int graph_build(struct build *b, const struct event_args *args, const struct constants *c,
                struct full *full, uint32_t micro, struct err *err)
{
    if (build_once(b, args, c, full, micro, NULL, err)) return -1;
    if (args->detail == DETAIL_OP || args->keep || !graph_crowded(b)) return 0;
    const struct met met[2] = {b->met[0], b->met[1]};
    graph_free(b);
    int rc = build_once(b, args, c, full, micro, met, err);
    if (rc <= 0) return rc;
    graph_free(b);
    return build_once(b, args, c, full, micro, NULL, err);
}

static void free_rank(struct graph_rank *r, uint32_t chunks)
{
    for (uint32_t c = 0; r->chunks && c < chunks; c++) {
        for (int g = 0; g < NGROUPS; g++) {
            free(r->chunks[c].gather[g]);
        }
        for (int kind = 0; kind < NPASSES; kind++) {
            free(r->chunks[c].units[kind]);
        }
        free(r->chunks[c].out);
    }
    free(r->chunks);
    free(r->uses);
    free(r->pending);
}

void graph_free(struct build *b)
{
    if (b->pipeline) {
        for (size_t i = 0; b->ranks && i < b->nsets * b->job->pp; i++) {
            free_rank(&b->ranks[i], b->pipeline->chunks);
            free(b->sync[i]);
        }
        stages_free(b->stages, b->pipeline->stages);
    }
    void *all[] = {b->ranks, b->sync,    b->nsync,   b->sync_cap, b->first,
                   b->last,  b->factors, b->pass_of, b->labels};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    tasks_free(b->tasks);
    pipeline_free(b->pipeline);
    *b = (struct build){0};
}
