/* SPDX-License-Identifier: Apache-2.0
 * Passes over chunks in a step's graph: one task each, or cut where gradients are reduced, weights
 * gathered or activations moved meanwhile. A use is a unit (a layer, the embedding, the head) that
 * a pass meets; what it needs is brought when `prefetch` uses before it begin, so that the gathers
 * of a rank stand on their lane in the order
 *
 *   gather 0, gather 1, (pass 0) scatter 0, gather 2, (pass 1) scatter 1, gather 3 ..      */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "train/event_graph.h"

#define KEPT (TASK_NONE - 1) /* activations that come back at once stay where they are */

/* ---- uses of units: what must be there before, and when it may come ---- */

enum pass graph_pass(const struct pipeline_task *task, int side)
{
    static const uint8_t passes[NTASK_KINDS][2] = {[PIPELINE_F] = {PASS_F, NPASSES},
                                                   [PIPELINE_B] = {NPASSES, PASS_B},
                                                   [PIPELINE_W] = {NPASSES, PASS_W},
                                                   [PIPELINE_BW] = {NPASSES, PASS_BW},
                                                   [PIPELINE_PAIR] = {PASS_F, PASS_BW}};
    return (enum pass)passes[task->kind][side];
}

/* The unit that a pass meets as its `pos`-th. */
static uint32_t unit_at(const struct stage *stage, enum pass kind, uint32_t pos)
{
    return kind == PASS_F ? pos : stage->nunits - 1 - pos;
}

/* Moves a cursor that stands behind the last unit of a pass to the next use; false: none is left.
 */
static bool settle(const struct build *b, const struct graph_rank *r, struct cursor *at)
{
    while (at->task < b->pipeline->first[r->index + 1]) {
        const struct pipeline_task *task = &b->pipeline->tasks[at->task];
        if (graph_pass(task, at->side) != NPASSES &&
            at->pos < r->chunks[task->chunk[at->side]].stage->nunits)
            return true;
        at->pos = 0;
        at->task += at->side == 1;
        at->side = !at->side;
    }
    return false;
}

static struct use *use_at(const struct build *b, struct graph_rank *r, uint64_t number)
{
    return &r->uses[number % (2 * (uint64_t)b->ahead + 2)];
}

/* Gathers what a unit holds in one group, whole or, as some do, tensor by tensor. */
static int gather_unit(struct build *b, struct graph_rank *r, const struct unit *unit, int g,
                       const struct pipeline_task *task, int side, uint32_t issued, uint32_t *ready)
{
    const struct group *group = &b->groups[g];
    struct tensors list = {0};
    struct wish w = {.name = "gather",
                     .coll = COLL_ALLGATHER,
                     .part = PART_FSDP,
                     .lane = g == GROUP_EXPERT ? LANE_EXPERT : LANE_REDUCE,
                     .axis = AXIS_FSDP_BYTES,
                     .ready = {*ready, issued},
                     .micro = task->micro[side],
                     .chunk = task->chunk[side],
                     .each = true};
    int bad = 0;
    graph_place(b, r, group->n, group->stride, &w);
    if (b->job->gather_tensors) unit_tensors(b->job, unit, g, false, &list);
    for (size_t i = 0; i < (list.count ? list.count : 1) && !bad; i++) {
        w.bytes = (list.count ? list.params[i] : unit->held[g]) * event_weight_B(b->job);
        bad = graph_job(b, r, &w, ready);
    }
    free(list.params);
    return bad;
}

/* Weights of a unit: from the host's memory, then from the ranks that share them. */
static int bring_weights(struct build *b, struct graph_rank *r, const struct unit *unit,
                         const struct pipeline_task *task, int side, uint32_t wait,
                         uint32_t ready[NGROUPS])
{
    bool fsdp = event_fsdp(b->job);
    uint32_t issued = TASK_NONE;
    if (fsdp) issued = graph_pieces(b, r, unit, false, b->job->gather_sync ? r->last : TASK_NONE);
    for (int g = 0; g < NGROUPS; g++) {
        double bytes = unit->held[g] * event_weight_B(b->job) / (fsdp ? b->groups[g].n : 1);
        uint32_t end = wait;
        if (bytes <= 0) continue;
        if (b->job->offload & OFFLOAD_WEIGHTS)
            end = graph_transfer(b, r, "weights from host", LANE_IN, bytes,
                                 (uint32_t[]){wait, TASK_NONE});
        if (fsdp && b->groups[g].n > 1 && gather_unit(b, r, unit, g, task, side, issued, &end))
            return -1;
        if (end != wait) ready[g] = end;
    }
    return 0;
}

static uint32_t *out_of(struct graph_chunk *chunk, uint32_t micro, uint32_t unit)
{
    return &chunk->out[(size_t)micro * chunk->stage->nunits + unit];
}

/* Brings what the next use needs, as soon as `ahead` uses before it have begun. */
static int issue(struct build *b, struct graph_rank *r)
{
    const struct pipeline_task *task = &b->pipeline->tasks[r->next.task];
    int side = r->next.side;
    enum pass kind = graph_pass(task, side);
    struct graph_chunk *chunk = &r->chunks[task->chunk[side]];
    uint32_t at = unit_at(chunk->stage, kind, r->next.pos);
    const struct unit *unit = &chunk->stage->units[at];
    struct use *use = use_at(b, r, r->issued);
    uint64_t behind = (uint64_t)b->ahead + 1;
    uint32_t wait = r->issued >= behind ? use_at(b, r, r->issued - behind)->done : r->weights;
    *use = (struct use){{TASK_NONE, TASK_NONE, TASK_NONE}, TASK_NONE, TASK_NONE};
    bool again = kind != PASS_F && b->job->shard == SHARD_GRAD_OP; /* they are still there */
    /* DeepSpeed lets go of what a layer's recomputation gathered before its backward pass. */
    bool twice = b->job->sharded_copy && b->job->recompute == RC_FULL && kind != PASS_F;
    for (int i = 0; kind != PASS_W && !again && i < 1 + twice; i++) {
        if (bring_weights(b, r, unit, task, side, wait, use->ready)) return -1;
    }
    if (chunk->out && (kind == PASS_B || kind == PASS_BW) && unit->activation_B > 0) {
        uint32_t *out = out_of(chunk, task->micro[side], at);
        if (*out == TASK_NONE) *out = KEPT;
        if (*out != KEPT)
            use->ready[NGROUPS] = graph_transfer(b, r, "activations from host", LANE_IN,
                                                 unit->activation_B, (uint32_t[]){wait, *out});
    }
    r->issued++;
    r->next.pos++;
    return 0;
}

/* ---- passes ---- */

/* A pass under way. */
struct walk {
    struct graph_rank *r;
    struct graph_chunk *chunk;
    const struct chunk_pass *pass;
    enum pass kind;
    uint32_t micro, number; /* of the micro-batch; of the chunk */
    bool gathers;           /* weights of its buckets may still be gathered */
    bool reduces;           /* its gradients are reduced as they come */
    size_t bucket[NGROUPS]; /* the next that closes */
    bool operators;         /* they are tasks */
    bool parted;            /* its segments meet gathers or reductions, while the host goes on */
    uint32_t host;          /* the host's next task waits for it; TASK_NONE */
    uint32_t first;         /* its first segment; TASK_NONE: none yet */
};

const struct chunk_pass *graph_pass_of(struct build *b, struct graph_rank *r, uint32_t chunk,
                                       enum pass kind)
{
    struct graph_chunk *of = &r->chunks[chunk];
    if (!of->pass[kind])
        of->pass[kind] = chunks_pass(b->args->chunks, &of->shape, kind, r->factor, b->err);
    return of->pass[kind];
}

const struct chunk_pass *graph_pair_of(struct build *b, struct graph_rank *r,
                                       const struct pipeline_task *task)
{
    return chunks_pair(b->args->chunks, &r->chunks[task->chunk[0]].shape,
                       &r->chunks[task->chunk[1]].shape, r->factor, b->err);
}

/* A pass as one task, without its work. */
static struct task compute_task(struct build *b, const struct graph_rank *r,
                                const struct chunk_pass *pass)
{
    return (struct task){.lane = b->tasks->compute_lane[r->id],
                         .rank = r->id,
                         .kind = TASK_COMPUTE,
                         .part = PART_GEMM,
                         .sm_hit = (float)pass->compute_share,
                         .link_hit = (float)pass->link_share,
                         .use = graph_use(b, pass->busy)};
}

/* What was added from `task` to `end` for these operators begins behind `start`; the host, which
 * runs ahead over the segments of a pass, with its first. */
static void begin_behind(struct build *b, const struct walk *w, const struct ops *ops,
                         uint32_t task, uint32_t start, uint32_t end)
{
    bool host = w->first != TASK_NONE;
    for (uint32_t i = 0; task < end; task++) {
        if (b->tasks->list[task].kind == TASK_HOST) {
            if (!host) graph_after(b, task, start);
            host = true;
        } else {
            const int32_t *before = ops->list[i++].after;
            if (before[0] < 0 && before[1] < 0) graph_after(b, task, start);
        }
    }
}

/* Operator by operator. */
static int add_operators(struct build *b, struct walk *w, uint32_t from, uint32_t to,
                         uint32_t start, uint32_t *end)
{
    struct graph_rank *r = w->r;
    const struct chunk_shape *shape = &w->chunk->shape;
    const struct chunk_lanes lanes = {
        r->id,
        r->lane[LANE_ISSUE],
        {b->tasks->compute_lane[r->id], r->lane[LANE_TP], r->lane[LANE_CP], r->lane[LANE_EP]}};
    struct ops ops = {0};
    for (uint32_t pos = from; pos < to; pos++) {
        const struct unit *unit = &w->chunk->stage->units[unit_at(w->chunk->stage, w->kind, pos)];
        ops_layer(&ops, b->job, b->c, unit->kind, w->kind, unit->layer, unit->layer - shape->first);
    }
    ops_place(&ops, 0, shape->base, shape->span);
    uint32_t label = (uint32_t)b->nlabels, task = b->tasks->ntasks;
    for (uint32_t i = 0; i < ops.count; i++) {
        graph_add_label(b, (struct event_label){(uint8_t)w->kind, ops.list[i].name, r->index,
                                                w->micro, w->number});
    }
    int bad = chunks_add(b->args->chunks, b->tasks, &lanes, &ops, r->factor, TASK_NONE, label, end,
                         b->err);
    if (!bad) {
        begin_behind(b, w, &ops, task, start, *end);
        graph_after(b, *end, start);
    }
    ops_release(&ops);
    return bad;
}

/* Units from .. to - 1 of a pass; those of a pass that is cut at every unit are asked for once. */
static int part_of(struct build *b, const struct walk *w, uint32_t from, uint32_t to,
                   struct chunk_part *part)
{
    struct graph_chunk *chunk = w->chunk;
    struct chunk_part **units = &chunk->units[w->kind];
    uint32_t n = chunk->stage->nunits;
    if (!b->by_unit)
        return chunks_part(b->args->chunks, &chunk->shape, w->kind, w->r->factor, from, to, part,
                           b->err);
    if (!*units) *units = mem_calloc(n, sizeof **units);
    if (!(*units)[from].far && chunks_part(b->args->chunks, &chunk->shape, w->kind, w->r->factor,
                                           from, to, &(*units)[from], b->err))
        return -1;
    *part = (*units)[from];
    return 0;
}

/* A task of the compute lane is behind all that the rank has there; what ends elsewhere (the host
 * of a pass that it bounds, operators) it is told to wait for. */
static void behind_last(struct build *b, const struct graph_rank *r, uint32_t task)
{
    if (r->last != TASK_NONE && b->tasks->list[r->last].lane != b->tasks->list[task].lane)
        graph_after(b, task, r->last);
}

/* .. as tasks of the host and of the rank, each of which goes on as far as it can: see struct
 * chunk_part. What the rank does is cut where the host waits for it. */
static int add_part(struct build *b, struct walk *w, uint32_t from, uint32_t to,
                    struct event_label label, uint32_t *start, uint32_t *end)
{
    struct graph_rank *r = w->r;
    struct chunk_part part;
    if (part_of(b, w, from, to, &part)) return -1;
    const struct chunk_pass *far = part.far, *near = part.near;
    struct task task = compute_task(b, r, far);
    task.work_ps = far->total_ps;
    if (near->host_ps == 0) {
        *start = *end = graph_task(b, task, far, label);
        behind_last(b, r, *start);
        return 0;
    }
    struct task host = {.lane = r->lane[LANE_ISSUE],
                        .rank = r->id,
                        .kind = TASK_HOST,
                        .part = PART_LAUNCH,
                        .use = TASK_NONE,
                        .fixed_ps = near->host_ps,
                        .lag_ps = near->total_ps - near->host_ps};
    *start = graph_join(b, r);
    graph_after(b, *start, r->last);
    struct event_label issue_label = label;
    issue_label.name = "issue";
    uint32_t issues = graph_task(b, host, NULL, issue_label);
    graph_after(b, issues, w->first == TASK_NONE ? *start : w->host);
    w->host = TASK_NONE;
    task.work_ps = far->host_ps > 0 ? far->host_ps : far->total_ps;
    uint32_t runs = graph_task(b, task, far, label);
    graph_after(b, runs, *start);
    if (far->host_ps > 0) {
        w->host = runs;
        task.work_ps = far->total_ps - far->host_ps;
        runs = graph_task(b, task, far, label);
    }
    *end = graph_join(b, r);
    graph_after(b, *end, runs);
    graph_after(b, *end, issues);
    return 0;
}

/* Whether a pass and jobs beside it hold each other up in a way that the mean of the pass does not
 * tell. An operator on links asks for nearly all of them, whatever the pass does in the mean; and
 * where the host is late, what jobs take of the multiprocessors is taken from its gaps. */
static bool meets(const struct chunk_pass *pass, const struct met *met)
{
    static const float little = .005F, beside = .05F;
    bool late = (double)pass->part_ps[PART_LAUNCH] > .01 * (double)pass->total_ps;
    for (int k = 0; k < NNET_KINDS; k++) {
        if (pass->busy[k] > little && met->busy[k] > beside) return true;
    }
    return late && met->sm > 0;
}

/* Of messages, which are short, where they are not too short to matter. */
static bool meets_messages(const struct chunk_pass *pass, const struct met *met)
{
    return (double)met->wire_ps > .02 * (double)pass->total_ps && meets(pass, met);
}

bool graph_crowded(const struct build *b)
{
    bool beside = b->by_unit || b->job->gather_overlap || graph_overlaps(b);
    for (size_t i = 0; i < b->nsets * b->pipeline->shape.ranks; i++) {
        for (uint32_t c = 0; c < b->pipeline->chunks; c++) {
            for (int kind = 0; kind < NPASSES; kind++) {
                const struct chunk_pass *pass = b->ranks[i].chunks[c].pass[kind];
                if (!pass) continue;
                if (meets_messages(pass, &b->met[1]) || (beside && meets(pass, &b->met[0])))
                    return true;
            }
        }
    }
    return false;
}

/* Whether the operators of a pass are run one by one: those that are asked for, and those of passes
 * that others hold up. */
static bool by_operators(const struct build *b, const struct walk *w)
{
    if (b->args->detail == DETAIL_OP) return true;
    if (!b->finer) return false;
    bool beside = w->parted || b->job->reduce_each;
    return meets_messages(w->pass, &b->met[1]) || (beside && meets(w->pass, &b->met[0]));
}

/* The part of a pass that meets units from .. to - 1, as tasks or operator by operator; *start
 * is who waits for what it needs, *end who is waited for. */
static int add_segment(struct build *b, struct walk *w, uint32_t from, uint32_t to, uint32_t *start,
                       uint32_t *end)
{
    static const char *const names[NPASSES] = {"F", "B", "W", "BW"};
    struct graph_rank *r = w->r;
    struct event_label label = {(uint8_t)w->kind, names[w->kind], r->index, w->micro, w->number};
    if (w->operators) {
        *start = graph_join(b, r);
        graph_after(b, *start, r->last);
        if (add_operators(b, w, from, to, *start, end)) return -1;
        graph_note(b, NULL);
    } else if (w->parted && to > from) {
        if (add_part(b, w, from, to, label, start, end)) return -1;
    } else {
        const struct chunk_pass *pass = w->pass;
        struct task task = compute_task(b, r, pass);
        for (uint32_t pos = from; pos < to; pos++) {
            task.work_ps = ps_sum(task.work_ps, pass->layer_ps[pos]);
        }
        *start = *end = graph_task(b, task, pass, label);
        behind_last(b, r, *start);
    }
    graph_after(b, *start, r->blocked);
    r->blocked = TASK_NONE;
    r->last = *end;
    if (w->first == TASK_NONE) w->first = *start;
    return 0;
}

/* Whether a pass is cut before unit `pos`. */
static bool cut_before(const struct build *b, const struct walk *w, uint32_t pos)
{
    const struct stage *stage = w->chunk->stage;
    if (b->by_unit) return true;
    const struct unit *here = &stage->units[unit_at(stage, w->kind, pos)];
    const struct unit *before = &stage->units[unit_at(stage, w->kind, pos - 1)];
    for (int g = 0; g < NGROUPS; g++) {
        if (w->gathers && here->bucket[g] != before->bucket[g]) return true;
        for (size_t k = w->bucket[g]; w->reduces && k < stage->nbuckets[g]; k++) {
            uint32_t closes = stage->buckets[g][k].unit;
            if (&stage->units[closes] == before) return true;
            if (closes < unit_at(stage, w->kind, pos)) break;
        }
    }
    return false;
}

/* Has brought what the next use needs, and those shortly behind it. */
static int issue_ahead(struct build *b, struct graph_rank *r)
{
    while (b->by_unit && r->issued <= r->run + b->ahead && settle(b, r, &r->next)) {
        if (issue(b, r)) return -1;
    }
    return 0;
}

static void wait_for_units(struct build *b, struct walk *w, uint32_t from, uint32_t to,
                           uint32_t start)
{
    const struct stage *stage = w->chunk->stage;
    for (int k = 0; b->by_unit && k <= NGROUPS; k++) {
        graph_after(b, start, use_at(b, w->r, w->r->run)->ready[k]);
    }
    for (int g = 0; w->gathers && g < NGROUPS; g++) {
        size_t seen = SIZE_MAX;
        for (uint32_t pos = from; pos < to; pos++) {
            size_t k = stage->units[unit_at(stage, w->kind, pos)].bucket[g];
            if (k == SIZE_MAX || k == seen) continue;
            graph_after(b, start, w->chunk->gather[g][k]);
            seen = k;
        }
    }
}

/* Buckets that the segment closed. */
static int reduce_buckets(struct build *b, struct walk *w, uint32_t to, uint32_t done)
{
    const struct stage *stage = w->chunk->stage;
    for (int g = 0; g < NGROUPS; g++) {
        for (size_t *k = &w->bucket[g]; *k < stage->nbuckets[g]; ++*k) {
            if (stage->buckets[g][*k].unit < unit_at(stage, w->kind, to - 1)) break;
            struct gradients what = {.group = g,
                                     .params = stage->buckets[g][*k].params,
                                     .ready = {done, TASK_NONE},
                                     .micro = w->micro,
                                     .chunk = w->number,
                                     .each = b->job->reduce_each};
            if (graph_reduce(b, w->r, &what)) return -1;
        }
    }
    w->chunk->reduced = true;
    return 0;
}

/* Gradients of a unit are put together, and reduced. */
static int reduce_unit(struct build *b, struct walk *w, const struct unit *unit, uint32_t done)
{
    struct graph_rank *r = w->r;
    double bytes = 0;
    for (int g = 0; g < NGROUPS; g++) {
        bool moves = b->groups[g].n > 1 || b->groups[g].copies > 1;
        bytes += moves ? unit->trained[g] * b->job->reduce_copy_B : 0;
    }
    if (bytes > 0) done = graph_copy(b, r, "copy in", bytes, done);
    uint32_t issued = graph_pieces(b, r, unit, true, TASK_NONE);
    for (int g = 0; g < NGROUPS; g++) {
        struct gradients what = {.group = g,
                                 .params = unit->trained[g],
                                 .ready = {done, issued},
                                 .micro = w->micro,
                                 .chunk = w->number,
                                 .each = b->job->reduce_each};
        if (graph_reduce(b, r, &what)) return -1;
    }
    return 0;
}

/* After a unit of a pass that is cut at every unit: its gradients, or its activations. */
static int after_unit(struct build *b, struct walk *w, uint32_t pos, uint32_t start, uint32_t done)
{
    struct graph_rank *r = w->r;
    const struct stage *stage = w->chunk->stage;
    uint32_t at = unit_at(stage, w->kind, pos);
    const struct unit *unit = &stage->units[at];
    struct use *use = use_at(b, r, r->run);
    use->done = done;
    if (w->kind == PASS_F && w->chunk->out && unit->activation_B > 0 &&
        *out_of(w->chunk, w->micro, at) != KEPT) {
        use->out = graph_transfer(b, r, "activations to host", LANE_OUT, unit->activation_B,
                                  (uint32_t[]){done, TASK_NONE});
        *out_of(w->chunk, w->micro, at) = use->out;
        uint64_t behind = (uint64_t)b->ahead + 1; /* they need room until they are through */
        if (r->run >= behind) graph_after(b, start, use_at(b, r, r->run - behind)->out);
    }
    r->run++;
    return w->reduces && event_fsdp(b->job) ? reduce_unit(b, w, unit, done) : 0;
}

/* One pass over a chunk. */
static int add_pass(struct build *b, struct walk *w)
{
    uint32_t n = w->chunk->stage->nunits, start, end;
    if (n == 0) return add_segment(b, w, 0, 0, &start, &end);
    for (uint32_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && !cut_before(b, w, to);) {
            to++;
        }
        if (issue_ahead(b, w->r) || add_segment(b, w, from, to, &start, &end)) return -1;
        wait_for_units(b, w, from, to, start);
        if (b->by_unit && after_unit(b, w, from, start, end)) return -1;
        if (w->reduces && !event_fsdp(b->job) && reduce_buckets(b, w, to, end)) return -1;
    }
    return 0;
}

/* What both sides of a task have in common. */
static struct walk walk_of(struct build *b, struct graph_rank *r, size_t index, int side)
{
    const struct pipeline_task *task = &b->pipeline->tasks[index];
    struct graph_chunk *chunk = &r->chunks[task->chunk[side]];
    enum pass kind = graph_pass(task, side);
    bool zero = b->job->shard == SHARD_ZERO1 || b->job->shard == SHARD_ZERO2;
    bool weights = kind == PASS_W || kind == PASS_BW; /* gives their gradients */
    return (struct walk){.r = r,
                         .chunk = chunk,
                         .kind = kind,
                         .micro = task->micro[side],
                         .number = task->chunk[side],
                         .gathers =
                             side == 0 && index == chunk->first && zero && b->job->gather_overlap,
                         .reduces = weights && (event_fsdp(b->job) || graph_overlaps(b)) &&
                                    (b->job->reduce_each || index == chunk->last),
                         .host = TASK_NONE,
                         .first = TASK_NONE};
}

/* F of one micro-batch and BW of another as one task. */
static int add_pair(struct build *b, struct graph_rank *r, size_t index, uint32_t *first)
{
    const struct pipeline_task *t = &b->pipeline->tasks[index];
    const struct chunk_pass *pass = graph_pair_of(b, r, t);
    if (!pass) return -1;
    struct walk f = walk_of(b, r, index, 0), back = walk_of(b, r, index, 1);
    struct task task = compute_task(b, r, pass);
    task.work_ps = pass->total_ps;
    *first = graph_task(b, task, pass,
                        (struct event_label){PASS_BW, "F&BW", r->index, f.micro, f.number});
    graph_after(b, *first, r->blocked);
    behind_last(b, r, *first);
    r->blocked = TASK_NONE;
    r->last = *first;
    wait_for_units(b, &f, 0, f.chunk->stage->nunits, *first);
    uint32_t n = back.chunk->stage->nunits;
    return back.reduces && !event_fsdp(b->job) && n > 0 ? reduce_buckets(b, &back, n, *first) : 0;
}

/* Without overlap the next pass waits until the gradients are reduced. */
static int reduce_at_once(struct build *b, struct graph_rank *r, size_t index)
{
    const struct pipeline_task *task = &b->pipeline->tasks[index];
    size_t before = r->npending;
    if (!b->job->reduce_each || event_fsdp(b->job) || graph_overlaps(b)) return 0;
    if (task->kind == PIPELINE_F || task->kind == PIPELINE_B) return 0;
    if (graph_reduce_chunk(b, r, task->chunk[1], task->micro[1])) return -1;
    if (r->npending == before) return 0;
    r->blocked = graph_join(b, r);
    for (size_t i = before; i < r->npending; i++) {
        graph_after(b, r->blocked, r->pending[i]);
    }
    return 0;
}

int graph_add_passes(struct build *b, struct graph_rank *r, size_t index)
{
    const struct pipeline_task *task = &b->pipeline->tasks[index];
    size_t at = r->set * b->pipeline->first[b->pipeline->shape.ranks] + index;
    uint32_t first = TASK_NONE;
    if (task->kind == PIPELINE_PAIR && !b->by_unit) {
        if (add_pair(b, r, index, &first)) return -1;
    } else {
        for (int side = 0; side < 2; side++) {
            if (graph_pass(task, side) == NPASSES) continue;
            struct walk w = walk_of(b, r, index, side);
            w.pass = graph_pass_of(b, r, w.number, w.kind);
            w.parted = b->by_unit || w.gathers || w.reduces;
            if (!w.pass) return -1;
            w.operators = by_operators(b, &w);
            if (add_pass(b, &w)) return -1;
            if (first == TASK_NONE) first = w.first;
        }
    }
    b->first[at] = first;
    b->last[at] = r->last;
    return reduce_at_once(b, r, index);
}
