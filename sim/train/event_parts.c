/* SPDX-License-Identifier: Apache-2.0
 * What stands still in a step: which rank holds which layers, who shares them, which buckets their
 * gradients go into, and which replicas are slow. */
#include "train/event_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/memory.h"

/* ---- layers ---- */

/* Layers of each stage on the path: as they are given, else a rank's share dealt over its chunks,
 * of which the first rank lacks layers in the first, all others in the last (strategy_layout). */
static void deal_layers(const struct job *job, const struct pipeline *p, uint32_t *layers)
{
    if (job->layout && p->shape.id == PIPELINE_INTERLEAVED) {
        for (uint32_t i = 0; i < p->stages; i++) {
            layers[i] = (uint32_t)job->layout[i];
        }
        return;
    }
    double sum = 0;
    uint64_t before = 0;
    uint32_t ranks = p->shape.ranks, chunks = p->stages / ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        sum += job_stage_layers(job, rank);
        uint64_t upto = (uint64_t)llround(sum), n = upto - before;
        for (uint32_t k = 0; k < chunks; k++) {
            uint32_t chunk = rank == 0 ? chunks - 1 - k : k;
            uint32_t stage = chunks == 1 ? rank : pipeline_stage(p, rank, chunk);
            layers[stage] = (uint32_t)(n / chunks + (k < n % chunks));
        }
        before = upto;
    }
}

/* ---- parameters ---- */

static struct unit unit_of(const struct job *job, const struct param_counts *n,
                           enum layer_kind kind, uint32_t layer)
{
    double etp = (double)job->ep * job->etp, ffn = job->shape.expert_ffn;
    struct unit unit = {.kind = kind, .layer = layer};
    switch (kind) {
    case LAYER_DENSE:
        unit.held[GROUP_DENSE] = n->dense_layer / job->tp;
        break;
    case LAYER_MOE:
        unit.held[GROUP_DENSE] = n->moe_shared / job->tp;
        unit.held[GROUP_EXPERT] = ffn > 0 ? n->moe_experts / etp : 0;
        break;
    default:
        unit.held[GROUP_DENSE] = n->embedding / job->tp;
    }
    bool inner = kind == LAYER_DENSE || kind == LAYER_MOE;
    memcpy(unit.trained, unit.held, sizeof unit.trained);
    if (job->lora_rank) {
        unit.trained[GROUP_DENSE] = inner ? job_lora_params(job) / job->tp : 0;
        unit.trained[GROUP_EXPERT] = 0;
    }
    double tokens = (double)job->micro_batch * (double)job->seq / job->cp;
    if (inner && job->recompute == RC_FULL) {
        bool wide = job->precision == PREC_FP32 || job->precision == PREC_TF32;
        unit.activation_B = (wide ? 4. : 2.) * tokens * job->shape.hidden / (job->sp ? job->tp : 1);
    } else if (inner) {
        unit.activation_B =
            tokens * (kind == LAYER_MOE ? memory_moe_layer_B(job) : memory_dense_layer_B(job));
    }
    return unit;
}

static void fill_units(const struct job *job, const struct param_counts *n, struct stage *stage)
{
    const struct chunk_shape *shape = &stage->shape;
    uint32_t count = 0, dense = job->shape.experts ? job->shape.dense_layers : UINT32_MAX;
    stage->units = mem_calloc((size_t)shape->layers + 2, sizeof *stage->units);
    if (shape->embedding) stage->units[count++] = unit_of(job, n, LAYER_EMBEDDING, 0);
    for (uint32_t i = 0; i < shape->layers; i++) {
        uint32_t layer = shape->first + i;
        stage->units[count++] = unit_of(job, n, layer < dense ? LAYER_DENSE : LAYER_MOE, layer);
    }
    if (shape->head) {
        struct unit *head = &stage->units[count++];
        *head = unit_of(job, n, LAYER_HEAD, 0);
        if (job->shape.tied && shape->embedding) { /* the embedding's matrix, gathered with it */
            memset(head->held, 0, sizeof head->held);
            memset(head->trained, 0, sizeof head->trained);
        }
    }
    stage->nunits = count;
}

/* ---- buckets ---- */

static void add_tensor(struct tensors *list, double params)
{
    if (params <= 0) return;
    MEM_GROW(list->params, list->count, list->cap);
    list->params[list->count++] = params;
}

void unit_tensors(const struct job *job, const struct unit *unit, int group, bool trained,
                  struct tensors *list)
{
    const struct shape *s = &job->shape;
    double mats = s->gated ? 3 : 2, h = s->hidden;
    double all = trained ? unit->trained[group] : unit->held[group];
    bool inner = unit->kind == LAYER_DENSE || unit->kind == LAYER_MOE;
    if (all <= 0 || !inner || (trained && job->lora_rank)) {
        add_tensor(list, all);
        return;
    }
    if (group == GROUP_EXPERT) {
        double n = mats * fmax(1, floor((double)s->experts / job->ep));
        for (double i = 0; i < n; i++) {
            add_tensor(list, all / n);
        }
        return;
    }
    double ffn = (double)(unit->kind == LAYER_MOE ? s->shared_ffn : s->ffn) / job->tp;
    double out = (double)s->heads * (s->kv_lora ? s->v_dim : s->head_dim) * h / job->tp;
    for (double i = 0; i < mats; i++) {
        add_tensor(list, h * ffn);
    }
    add_tensor(list, out);
    add_tensor(list, all - out - mats * h * ffn);
}

/* The buckets of a chunk's gradients in one group. */
static void cut_buckets(const struct job *job, struct stage *stage, int group)
{
    struct tensors t = {0};
    uint64_t cap = bucket_cap(job), first = cap;
    if (cap != UINT64_MAX && job->first_bucket_B > 0) first = (uint64_t)job->first_bucket_B;
    size_t *upto = mem_calloc(stage->nunits, sizeof *upto); /* tensors of a unit and those behind */
    for (uint32_t i = stage->nunits; i-- > 0;) {
        unit_tensors(job, &stage->units[i], group, true, &t);
        upto[i] = t.count;
    }
    uint64_t *bytes = mem_calloc(t.count, 2 * sizeof *bytes), *sizes = bytes + t.count;
    size_t *last = mem_calloc(t.count, sizeof *last);
    for (size_t i = 0; i < t.count; i++) {
        bytes[i] = (uint64_t)llround(t.params[i] * event_gradient_B(job));
    }
    size_t n = bucket_cut(bytes, t.count, first, cap, sizes, last), k = 0;
    struct event_bucket *buckets = mem_calloc(n, sizeof *buckets);
    for (uint32_t i = stage->nunits, at = 0; i-- > 0;) {
        stage->units[i].bucket[group] = at < upto[i] ? k : SIZE_MAX;
        for (; at < upto[i]; at++) {
            buckets[k].params += t.params[at];
            buckets[k].unit = i;
            k += at == last[k];
        }
    }
    stage->buckets[group] = buckets;
    stage->nbuckets[group] = n;
    free(upto);
    free(bytes);
    free(last);
    free(t.params);
}

struct stage *stages_new(const struct job *job, const struct pipeline *pipeline)
{
    struct stage *stages = mem_calloc(pipeline->stages, sizeof *stages);
    uint32_t *layers = mem_calloc(pipeline->stages, sizeof *layers), first = 0;
    struct param_counts counts = job_params(job);
    deal_layers(job, pipeline, layers);
    for (uint32_t i = 0; i < pipeline->stages; i++) {
        stages[i].shape = (struct chunk_shape){
            .first = first,
            .layers = layers[i],
            .embedding = i == 0 && job->shape.vocab > 0,
            .head = i + 1 == pipeline->stages && job->shape.vocab > 0,
        };
        first += layers[i];
        fill_units(job, &counts, &stages[i]);
        for (int g = 0; g < NGROUPS; g++) {
            cut_buckets(job, &stages[i], g);
        }
    }
    free(layers);
    return stages;
}

void stages_free(struct stage *stages, uint32_t nstages)
{
    for (uint32_t i = 0; stages && i < nstages; i++) {
        free(stages[i].units);
        for (int g = 0; g < NGROUPS; g++) {
            free(stages[i].buckets[g]);
        }
    }
    free(stages);
}

/* ---- the job ---- */

struct pipeline_shape event_shape(const struct job *job, uint32_t micro)
{
    struct pipeline_shape shape = {.id = (enum pipeline_id)job->schedule,
                                   .ranks = job->pp,
                                   .chunks = job->vpp,
                                   .micro = micro};
    if (job->pp == 1) { /* nothing to interleave: one micro-batch after the other */
        shape.id = PIPELINE_1F1B;
        shape.chunks = 1;
    } else if (job->vpp > 1 && (shape.id == PIPELINE_1F1B || shape.id == PIPELINE_GPIPE)) {
        shape.id = PIPELINE_INTERLEAVED;
    } else if (job->vpp == 1 && shape.id == PIPELINE_INTERLEAVED) {
        shape.id = PIPELINE_1F1B;
    }
    return shape;
}

/* Makes pairs of neighbours in the lists. */
static void make_pairs(struct pipeline *p)
{
    size_t n = 0;
    for (uint32_t rank = 0; rank < p->shape.ranks; rank++) {
        size_t i = p->first[rank], end = p->first[rank + 1];
        for (p->first[rank] = n; i < end; i++, n++) {
            struct pipeline_task task = p->tasks[i];
            if (task.kind == PIPELINE_BW && i + 1 < end && p->tasks[i + 1].kind == PIPELINE_F) {
                task.kind = PIPELINE_PAIR;
                task.micro[0] = p->tasks[++i].micro[0];
                task.chunk[0] = p->tasks[i].chunk[0];
            }
            p->tasks[n] = task;
            p->rank_of[n] = rank;
            for (int side = 0; side < 2; side++) {
                if (side == 0 ? task.kind == PIPELINE_BW : task.kind == PIPELINE_F) continue;
                p->task_of[side][pipeline_slot(p, rank, task.chunk[side], task.micro[side])] = n;
            }
        }
    }
    p->first[p->shape.ranks] = n;
}

/* The lists of a schedule once for each of `rounds`, one behind the other. */
static void repeat_rounds(struct pipeline *p, uint32_t rounds)
{
    size_t n = p->first[p->shape.ranks], at = 0, start = 0;
    uint32_t each = p->shape.micro;
    struct pipeline_task *tasks = mem_calloc(n * rounds, sizeof *tasks);
    p->shape.micro = each * rounds;
    p->rank_of = mem_realloc(p->rank_of, n * rounds, sizeof *p->rank_of);
    for (int side = 0; side < 2; side++) {
        size_t slots = (size_t)p->shape.ranks * p->chunks * p->shape.micro;
        p->task_of[side] = mem_realloc(p->task_of[side], slots, sizeof(size_t));
    }
    for (uint32_t rank = 0; rank < p->shape.ranks; rank++) {
        size_t from = start, stop = p->first[rank + 1];
        start = stop;
        p->first[rank] = at;
        for (size_t i = 0; i < (stop - from) * rounds; i++, at++) {
            struct pipeline_task task = p->tasks[from + i % (stop - from)];
            uint32_t behind = (uint32_t)(i / (stop - from)) * each;
            for (int side = 0; side < 2; side++) {
                task.micro[side] += behind;
                if (side == 0 ? task.kind != PIPELINE_F
                              : task.kind != PIPELINE_B && task.kind != PIPELINE_BW)
                    continue;
                p->task_of[side][pipeline_slot(p, rank, task.chunk[side], task.micro[side])] = at;
            }
            tasks[at] = task;
            p->rank_of[at] = rank;
        }
    }
    p->first[p->shape.ranks] = at;
    free(p->tasks);
    p->tasks = tasks;
}

static struct pipeline *schedule_of(const struct job *job, uint32_t micro, struct err *err)
{
    struct pipeline_shape shape = event_shape(job, micro);
    bool two_ways = shape.id == PIPELINE_DUALPIPE || shape.id == PIPELINE_DUALPIPEV;
    uint32_t rounds = two_ways ? 1 : (uint32_t)job_rounds(job, micro);
    shape.micro /= rounds;
    struct pipeline *p = pipeline_new(&shape, err);
    if (p && rounds > 1) repeat_rounds(p, rounds);
    return p;
}

struct pipeline *event_pipeline(const struct job *job, uint32_t micro, struct err *err)
{
    struct pipeline_shape shape = event_shape(job, micro);
    struct pipeline *p = schedule_of(job, micro, err);
    bool pairs = job->ep_overlap && job->ep > 1 && job->shape.experts && !event_fsdp(job);
    if (!p || !pairs || (job->pp > 1 && shape.id != PIPELINE_INTERLEAVED)) return p;
    struct err stuck = ERR_INIT;
    make_pairs(p);
    if (pipeline_check(p, &stuck)) { /* too few micro-batches under way */
        pipeline_free(p);
        p = schedule_of(job, micro, err);
    }
    err_release(&stuck);
    return p;
}

static uint32_t fewer(uint64_t n, uint32_t limit)
{
    return limit && limit < n ? limit : (uint32_t)n;
}

void event_groups(const struct job *job, struct group groups[NGROUPS])
{
    uint64_t all[NGROUPS] = {(uint64_t)job->dp * job->cp, 0};
    uint64_t stride[NGROUPS] = {job_dp_stride(job), (uint64_t)job->ep * job->etp};
    all[GROUP_EXPERT] = all[GROUP_DENSE] * job->tp / stride[GROUP_EXPERT];
    if (all[GROUP_EXPERT] == 0) all[GROUP_EXPERT] = 1;
    stride[GROUP_EXPERT] = job_stage_stride(job, stride[GROUP_EXPERT], all[GROUP_EXPERT]);
    uint32_t ways = job->pp > 1 ? pipeline_row(event_shape(job, 1).id)->weights : 1;
    for (int g = 0; g < NGROUPS; g++) {
        uint32_t n = fewer(all[g], job->shard == SHARD_NONE ? 0 : job->shard_size);
        uint32_t copies = (uint32_t)(all[g] / n);
        groups[g] = (struct group){n, (uint32_t)stride[g], copies, (uint32_t)stride[g] * n};
        if (ways > 1) { /* the stage's other copy sits on the mirrored rank */
            groups[g].copies *= ways;
            if (copies == 1) groups[g].copy_stride = (uint32_t)job_pp_stride(job);
        }
    }
}

double event_weight_B(const struct job *job)
{
    if (job->fp8_params) return 1;
    if (job->qlora) return .5625; /* nf4: 4 bits and a 32-bit scale per 64 */
    return job->precision == PREC_FP32 || job->precision == PREC_TF32 ? 4 : 2;
}

double event_gradient_B(const struct job *job)
{
    return event_fsdp(job) ? job->reduce_B : job->grad_B;
}

/* ---- slow GPUs ---- */

/* The stage of a GPU, and its replica: ranks that wait for each other inside a pass, those of
 * tensor and context parallelism and of an expert-parallel group. */
static void place_of(const struct job *job, uint32_t gpu, uint32_t *stage, uint64_t *replica)
{
    uint64_t dp_stride = job->dp_stride ? job->dp_stride : job_cp_stride(job) * job->cp;
    *stage = (uint32_t)(gpu / job_pp_stride(job) % job->pp);
    *replica = gpu / dp_stride % job->dp;
    uint64_t inside = (uint64_t)job->tp * job->cp, experts = (uint64_t)job->ep * job->etp;
    if (job->shape.experts && experts > inside) *replica /= experts / inside;
}

static uint64_t replicas_of(const struct job *job)
{
    uint64_t inside = (uint64_t)job->tp * job->cp, experts = (uint64_t)job->ep * job->etp;
    uint64_t each = job->shape.experts && experts > inside ? experts / inside : 1;
    return (job->dp + each - 1) / each;
}

static int check_slow(const struct event_args *args, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < args->nslow; i++) {
        const struct event_slow *slow = &args->slow[i];
        if (slow->gpu >= args->job->ngpus)
            bad = err_add(err, ERR_USAGE,
                          "gpu%" PRIu32 " is slow, but there are %" PRIu32
                          " GPUs; nearest: gpu%" PRIu32,
                          slow->gpu, args->job->ngpus, args->job->ngpus - 1);
        if (!(slow->speed >= .01 && slow->speed <= 1))
            bad = err_add(err, ERR_USAGE,
                          "gpu%" PRIu32 " runs at %g of its speed, which must lie in 0.01..1; "
                          "nearest: %g",
                          slow->gpu, slow->speed, slow->speed > 1 ? 1. : .01);
    }
    return bad;
}

struct replica {
    uint64_t id;
    double *factors;
};

/* The replica's row, new if it has had no slow GPU yet. */
static double *replica_row(struct replica *list, size_t *count, uint64_t id, uint32_t pp)
{
    for (size_t i = 0; i < *count; i++) {
        if (list[i].id == id) return list[i].factors;
    }
    double *factors = mem_calloc(pp, sizeof *factors);
    for (uint32_t k = 0; k < pp; k++) {
        factors[k] = 1;
    }
    list[*count] = (struct replica){id, factors};
    return list[(*count)++].factors;
}

size_t event_sets(const struct event_args *args, double **factors, struct err *err)
{
    const struct job *job = args->job;
    if (check_slow(args, err)) return 0;
    uint64_t replicas = replicas_of(job);
    struct replica *list = mem_calloc(args->nslow + (args->apart ? replicas : 1), sizeof *list);
    size_t count = 0, sets = 0;
    for (size_t i = 0; i < args->nslow; i++) {
        uint32_t stage;
        uint64_t id;
        place_of(job, args->slow[i].gpu, &stage, &id);
        double *row = replica_row(list, &count, id, job->pp);
        row[stage] = fmax(row[stage], 1 / args->slow[i].speed);
    }
    for (uint64_t id = 0; args->apart && id < replicas; id++) {
        replica_row(list, &count, id, job->pp);
    }
    if (count < replicas) replica_row(list, &count, UINT64_MAX, job->pp);
    double *all = mem_calloc(count * job->pp, sizeof *all);
    for (size_t i = 0; i < count; i++) { /* replicas that are alike are one set */
        size_t same = 0, bytes = job->pp * sizeof *all;
        while (same < sets &&
               (args->apart || memcmp(all + same * job->pp, list[i].factors, bytes) != 0)) {
            same++;
        }
        if (same == sets) memcpy(all + sets++ * job->pp, list[i].factors, bytes);
        free(list[i].factors);
    }
    free(list);
    *factors = all;
    return sets;
}
