/* SPDX-License-Identifier: Apache-2.0
 * What a step's graph moves: collectives and messages as fluid jobs, transfers to and from the
 * host's memory, and the reduction of gradients that is made of them. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "train/event_graph.h"
#include "train/full.h"

/* ---- tasks ---- */

struct event_label graph_label(const struct graph_rank *r, const char *name)
{
    return (struct event_label){NPASSES, name, r->index, UINT32_MAX, UINT32_MAX};
}

uint32_t graph_add_label(struct build *b, struct event_label label)
{
    MEM_GROW(b->labels, b->nlabels, b->labels_cap);
    b->labels[b->nlabels] = label;
    return (uint32_t)b->nlabels++;
}

void graph_note(struct build *b, const struct chunk_pass *pass)
{
    while (b->nnotes < b->tasks->ntasks) {
        MEM_GROW(b->pass_of, b->nnotes, b->pass_cap);
        b->pass_of[b->nnotes++] = pass;
    }
}

uint32_t graph_task(struct build *b, struct task task, const struct chunk_pass *pass,
                    struct event_label label)
{
    task.label = graph_add_label(b, label);
    uint32_t number = tasks_add(b->tasks, &task);
    graph_note(b, pass);
    return number;
}

void graph_after(struct build *b, uint32_t task, uint32_t before)
{
    if (before != TASK_NONE) tasks_after(b->tasks, task, before);
}

uint32_t graph_join(struct build *b, const struct graph_rank *r)
{
    struct task task = {.lane = TASK_NONE, .rank = r->id, .kind = TASK_JOIN, .use = TASK_NONE};
    return graph_task(b, task, NULL, graph_label(r, "join"));
}

void graph_pend(struct graph_rank *r, uint32_t task)
{
    MEM_GROW(r->pending, r->npending, r->pending_cap);
    r->pending[r->npending++] = task;
}

ps_t graph_ps(double seconds)
{
    return ps_add(0, seconds * 1e12);
}

/* ---- jobs ---- */

/* Bytes that a rank sends, by the ring's count. */
static double sent_bytes(const struct fluid_call *call)
{
    double n = call->n, share = (n - 1) / n;
    if (call->coll == COLL_SENDRECV) return (double)call->bytes;
    return (call->coll == COLL_ALLREDUCE ? 2 : 1) * share * (double)call->bytes;
}

uint32_t graph_use(struct build *b, const float *busy)
{
    struct task_use use;
    bool any = false;
    for (int k = 0; k < NNET_KINDS; k++) {
        use.busy[k] = busy[k];
        any = any || busy[k] > 0;
    }
    return any ? tasks_use(b->tasks, &use) : TASK_NONE;
}

static void count_job(struct build *b, struct graph_rank *r, const struct wish *w,
                      const struct fluid_call *call, const struct fluid *fluid)
{
    double times = w->each ? b->repeat : 1;
    if (b->step == 0) return;
    for (int k = 0; k < NNET_KINDS; k++) {
        r->bytes[k] += times * fluid->bytes[k];
    }
    r->sent[w->axis] += times * sent_bytes(call);
    if (w->axis != AXIS_PP_BYTES)
        r->reduce_s += times * (double)(fluid->fixed_ps + fluid->wire_ps) * 1e-12;
}

/* With several sets the job waits for what it waits for in each of them. */
static uint32_t wait_in_all_sets(struct build *b, const struct graph_rank *r, const struct wish *w)
{
    if (b->nsets == 1 || w->message) return TASK_NONE;
    uint32_t join = graph_join(b, r);
    graph_after(b, join, w->ready[0]);
    graph_after(b, join, w->ready[1]);
    return join;
}

static void sync_job(struct build *b, const struct graph_rank *r, uint32_t join, uint32_t job)
{
    if (join == TASK_NONE) return;
    size_t at = r->set * (size_t)b->pipeline->shape.ranks + r->index;
    MEM_GROW(b->sync[at], b->nsync[at], b->sync_cap[at]);
    b->sync[at][b->nsync[at]++] = (struct sync){join, job};
}

static void note_job(struct met *met, const struct fluid *fluid, float sm)
{
    for (int k = 0; k < NNET_KINDS; k++) {
        met->busy[k] = fmaxf(met->busy[k], fluid->busy[k]);
    }
    met->sm = fmaxf(met->sm, sm);
    if (fluid->wire_ps > met->wire_ps) met->wire_ps = fluid->wire_ps;
}

/* Pipelines that lie side by side send at once: where single hosts are broken, the slowest of them
 * is what the others meet behind the step. */
static int slowest_row(struct build *b, struct fluid_call call, struct fluid *fluid)
{
    uint64_t row = job_pp_stride(b->job) * b->job->pp, rows = b->job->ngpus / row;
    if (!fluids_marked(b->args->fluids)) return 0;
    for (uint64_t i = 1; i < rows; i++) {
        struct fluid other;
        call.base += (uint32_t)row;
        if (fluids_get(b->args->fluids, &call, &other, b->err)) return -1;
        if (other.fixed_ps + other.wire_ps > fluid->fixed_ps + fluid->wire_ps) *fluid = other;
    }
    return 0;
}

/* A collective or message of the rank. */
int graph_job(struct build *b, struct graph_rank *r, const struct wish *w, uint32_t *number)
{
    struct fluid_call call = {.coll = w->coll,
                              .bytes = (uint64_t)llround(w->bytes),
                              .n = w->n,
                              .stride = w->stride,
                              .base = w->base,
                              .cross = 1,
                              .span = w->span,
                              .back = w->back};
    struct fluid fluid;
    if (fluids_get(b->args->fluids, &call, &fluid, b->err)) return -1;
    if (w->message && slowest_row(b, call, &fluid)) return -1;
    chunks_fabric(&fluid, b->c->fabric_eff[b->job->fabric]);
    count_job(b, r, w, &call, &fluid);
    struct task task = {.lane = r->lane[w->lane], .rank = r->id, .part = (uint8_t)w->part};
    struct task_use use;
    if (w->message) {
        task.lag_ps = fluid.fixed_ps + w->later_ps;
        fluid.fixed_ps = fluid.front_ps = 0;
        task.peer = b->ranks[r->set * (size_t)b->pipeline->shape.ranks + w->to - 1].id + 1;
    }
    chunks_job_task(&task, &use, &fluid, b->c);
    task.use = graph_use(b, use.busy);
    note_job(&b->met[w->message], &fluid, task.sm);
    struct full_call whole = {call, r->index, w->to ? w->to - 1 : TASK_NONE, w->message};
    if (b->full) task.outside = full_number(b->full, &whole);
    uint32_t join = wait_in_all_sets(b, r, w);
    *number = graph_task(b, task, NULL,
                         (struct event_label){NPASSES, w->name, r->index, w->micro, w->chunk});
    graph_after(b, *number, join);
    if (join == TASK_NONE) {
        graph_after(b, *number, w->ready[0]);
        graph_after(b, *number, w->ready[1]);
    }
    sync_job(b, r, join, *number);
    return 0;
}

uint32_t graph_span(const struct build *b, uint32_t index, uint32_t *base)
{
    uint32_t stride = (uint32_t)job_pp_stride(b->job);
    bool row = (uint64_t)stride * b->job->pp == b->job->ngpus;
    *base = row ? index * stride : 0;
    return row ? stride : b->job->ngpus;
}

void graph_place(const struct build *b, const struct graph_rank *r, uint32_t n, uint32_t stride,
                 struct wish *w)
{
    uint64_t block = (uint64_t)n * stride, at = r->index * job_pp_stride(b->job);
    w->n = n;
    w->stride = stride;
    w->base = (uint32_t)(at / block * block);
    if (!b->places) return;
    uint32_t base, span = graph_span(b, r->index, &base);
    if (block < span) w->base = base, w->span = span;
}

/* A transfer between the GPU and its host's memory. */
uint32_t graph_transfer(struct build *b, struct graph_rank *r, const char *name, int lane,
                        double bytes, const uint32_t ready[2])
{
    double share = b->job->host_shared > 1 ? b->job->host_shared : 1;
    struct task task = {.lane = r->lane[lane],
                        .rank = r->id,
                        .kind = TASK_JOB,
                        .part = PART_OFFLOAD,
                        .use = TASK_NONE,
                        .work_ps = graph_ps(bytes * share / b->job->host_Bps)};
    uint32_t number = graph_task(b, task, NULL, graph_label(r, name));
    graph_after(b, number, ready[0]);
    graph_after(b, number, ready[1]);
    return number;
}

/* ---- what shards cost beside their collectives ---- */

/* Vectors of a layer, too short to be sharded, whose gradients are reduced all the same: weights of
 * two norms, and, in layers of GPT's kind, their biases and those of four products. */
static double vectors_of(const struct job *job, const struct unit *unit)
{
    if (unit->kind != LAYER_DENSE && unit->kind != LAYER_MOE) return 0;
    return job->lora_rank ? 0 : job->shape.gated ? 2 : 8;
}

uint32_t graph_pieces(struct build *b, struct graph_rank *r, const struct unit *unit, bool trained,
                      uint32_t ready)
{
    double pieces = 0;
    for (int g = 0; b->job->piece_kernels > 0 && g < NGROUPS; g++) {
        struct tensors list = {0};
        double vectors = trained && g == GROUP_DENSE ? vectors_of(b->job, unit) : 0;
        if (b->groups[g].n < 2) continue;
        unit_tensors(b->job, unit, g, trained, &list);
        pieces += ((double)list.count + vectors) * b->groups[g].n;
        free(list.params);
    }
    double seconds = pieces * b->job->piece_kernels * ops_issue_s(b->job, b->c);
    if (seconds <= 0) return TASK_NONE;
    struct task task = {.lane = r->lane[LANE_ISSUE],
                        .rank = r->id,
                        .kind = TASK_HOST,
                        .part = PART_LAUNCH,
                        .use = TASK_NONE,
                        .fixed_ps = graph_ps(seconds)};
    uint32_t number = graph_task(b, task, NULL, graph_label(r, "pieces"));
    graph_after(b, number, ready);
    graph_after(b, number, r->weights);
    return number;
}

uint32_t graph_copy(struct build *b, struct graph_rank *r, const char *name, double bytes,
                    uint32_t ready)
{
    struct task task = {.lane = b->tasks->compute_lane[r->id],
                        .rank = r->id,
                        .kind = TASK_COMPUTE,
                        .part = PART_ELEMENT,
                        .sm_hit = 1,
                        .use = TASK_NONE,
                        .work_ps = graph_ps(r->factor * ops_traffic_s(b->job, b->c, bytes))};
    uint32_t number = graph_task(b, task, NULL, graph_label(r, name));
    graph_after(b, number, ready);
    return r->last = number;
}

/* ---- gradients ---- */

/* Ranks over which what is reduced is then spread. */
double graph_spread(const struct build *b, int group)
{
    return b->job->shard == SHARD_NONE ? 1 : b->groups[group].n;
}

int graph_reduce(struct build *b, struct graph_rank *r, const struct gradients *of)
{
    const struct group *g = &b->groups[of->group];
    bool fsdp = event_fsdp(b->job), whole = b->job->shard == SHARD_NONE || b->job->owner_sends;
    uint32_t end = of->ready[0];
    struct wish w = {.name = "reduce",
                     .coll = whole ? COLL_ALLREDUCE : COLL_REDUCE_SCATTER,
                     .part = fsdp ? PART_FSDP : PART_DP,
                     .lane = of->group == GROUP_EXPERT ? LANE_EXPERT : LANE_REDUCE,
                     .axis = fsdp ? AXIS_FSDP_BYTES : AXIS_DP_BYTES,
                     .bytes = of->params * event_gradient_B(b->job),
                     .ready = {of->ready[0], of->ready[1]},
                     .micro = of->micro,
                     .chunk = of->chunk,
                     .each = of->each};
    if (of->params <= 0) return 0;
    graph_place(b, r, g->n, g->stride, &w);
    if (g->n > 1 && graph_job(b, r, &w, &end)) return -1;
    double owned_B = w.bytes / graph_spread(b, of->group);
    if (g->copies > 1) { /* scattered, each rank sums its part; then it is gathered */
        w.bytes /= g->n;
        w.name = "reduce copies";
        w.coll = COLL_ALLREDUCE, w.part = PART_DP, w.axis = AXIS_DP_BYTES;
        w.ready[0] = end, w.ready[1] = TASK_NONE;
        graph_place(b, r, g->copies, g->copy_stride, &w);
        if (graph_job(b, r, &w, &end)) return -1;
    }
    if (b->job->offload & OFFLOAD_OPTIMIZER)
        end = graph_transfer(b, r, "gradients to host", LANE_OUT, owned_B,
                             (uint32_t[]){end, TASK_NONE});
    if (end != of->ready[0]) graph_pend(r, end);
    return 0;
}

bool graph_overlaps(const struct build *b)
{
    bool any = (b->job->offload & OFFLOAD_OPTIMIZER) != 0;
    for (int g = 0; g < NGROUPS; g++) {
        any = any || b->groups[g].n > 1 || b->groups[g].copies > 1;
    }
    return any && bucket_cap(b->job) != UINT64_MAX;
}

int graph_reduce_chunk(struct build *b, struct graph_rank *r, uint32_t chunk, uint32_t micro)
{
    struct graph_chunk *of = &r->chunks[chunk];
    for (int g = 0; g < NGROUPS; g++) {
        double params = 0;
        for (uint32_t i = 0; i < of->stage->nunits; i++) {
            params += of->stage->units[i].trained[g];
        }
        struct gradients what = {.group = g,
                                 .params = params,
                                 .ready = {r->last, TASK_NONE},
                                 .micro = micro,
                                 .chunk = chunk,
                                 .each = b->job->reduce_each};
        if (graph_reduce(b, r, &what)) return -1;
    }
    of->reduced = true;
    return 0;
}
