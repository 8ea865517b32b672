/* SPDX-License-Identifier: Apache-2.0
 * Puts layers together: stages of a pipeline, FSDP's gathers around each layer, the data-parallel
 * reduction, the optimizer. Closed forms: what overlaps is a share, not an event. */
#include "train/step.h"

#include <math.h>
#include <string.h>

#include "train/cost.h"
#include "train/ops.h"

static const struct {
    const char *key, *name;
} parts[NPARTS] = {
    [PART_GEMM] = {"gemm", "matrix products"},
    [PART_ATTENTION] = {"attention", "attention"},
    [PART_ELEMENT] = {"elementwise", "element-wise work and loss (memory traffic)"},
    [PART_RECOMPUTE] = {"recompute", "recomputation"},
    [PART_LAUNCH] = {"launch", "launches and fixed costs"},
    [PART_TP] = {"tp", "tensor-parallel communication, exposed"},
    [PART_CP] = {"cp", "context-parallel communication, exposed"},
    [PART_EP] = {"ep", "expert-parallel communication, exposed"},
    [PART_FSDP] = {"fsdp", "gathering and scattering of sharded weights, exposed"},
    [PART_DP] = {"dp", "data-parallel communication, exposed"},
    [PART_PP] = {"pp", "messages between pipeline stages, exposed"},
    [PART_BUBBLE] = {"bubble", "pipeline bubble"},
    [PART_OPTIMIZER] = {"optimizer", "optimizer"},
    [PART_OFFLOAD] = {"offload", "transfers to and from host memory, exposed"},
};

const char *step_part_name(enum step_part part)
{
    return parts[part].name;
}

const char *step_part_key(enum step_part part)
{
    return parts[part].key;
}

/* What the stages of one job share. */
struct ctx {
    const struct job *job;
    const struct constants *c;
    struct layer_cost dense, moe, head, embedding;
    struct param_counts params;
    double micro_batches;
    double hbm_Bps;
};

/* Seconds per micro-batch of a stage, by part. */
struct stage {
    double part[NPARTS];
};

static double stage_total(const struct stage *stage)
{
    double t = 0;
    for (int i = 0; i < NPARTS; i++) {
        t += stage->part[i];
    }
    return t;
}

static void add_layers(struct stage *stage, const struct layer_cost *l, double count)
{
    const struct {
        enum step_part part;
        struct cost cost;
    } costs[] = {{PART_GEMM, l->gemm},       {PART_ATTENTION, l->attention},
                 {PART_ELEMENT, l->element}, {PART_TP, l->tp},
                 {PART_CP, l->cp},           {PART_EP, l->ep},
                 {PART_LAUNCH, l->launch}};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        stage->part[costs[i].part] += count * (costs[i].cost.fwd + costs[i].cost.bwd);
    }
    stage->part[PART_RECOMPUTE] += count * l->recompute;
}

static bool is_fsdp(const struct job *job)
{
    return job->shard == SHARD_GRAD_OP || job->shard == SHARD_FULL;
}

/* Ranks that share one copy of the weights under FSDP. */
static double shards_of(const struct job *job)
{
    double all = (double)job->dp * job->cp;
    return job->shard_size && job->shard_size < all ? job->shard_size : all;
}

/* Bytes/s of each member of a data-parallel group of `n` ranks, `stride` apart: what groups over
 * hosts get of an oversubscribed network. */
static double dp_Bps(const struct job *job, const struct constants *c, uint64_t stride, uint64_t n)
{
    double rate = cost_group_Bps(job, c, stride, n);
    return stride * n > job->domain ? rate / job->oversubscribed : rate;
}

/* What gathering a layer of `params` adds to its forward and backward: the longer of the two, and
 * a share of the shorter, for they disturb each other. */
static double fsdp_exposed(const struct ctx *x, const struct layer_cost *layer, double params)
{
    const struct job *job = x->job;
    const struct constants *c = x->c;
    double n = shards_of(job), all = (double)job->dp * job->cp, per = params / job->tp;
    bool ampere = job->dev.cls == DEV_A100 || job->dev.cls == DEV_V100;
    double rate = dp_Bps(job, c, job_dp_stride(job), (uint64_t)n) *
                  (ampere ? c->fsdp_eff_a100 : c->fsdp_eff_h100);
    double latency = n > 1 ? c->fsdp_us[job->fw] * 1e-6 * fmax(1, n / 8) : 0;
    double gather = (n - 1) / n * (job->fp8_params ? 1 : 2) * per / rate + latency;
    double scatter = (n - 1) / n * job->reduce_B * per / rate + latency;
    if (job->lora_rank) scatter = 0; /* frozen weights have no gradients */
    if (n < all && !job->lora_rank) {
        double copies_Bps = dp_Bps(job, c, job_dp_stride(job) * (uint64_t)n, (uint64_t)(all / n));
        scatter += 2 * per / n * job->reduce_B / copies_Bps;
    }
    struct cost t = layer_total(layer);
    double back = scatter + (job->shard == SHARD_GRAD_OP ? 0 : gather);
    double share = c->fsdp_contention[job->fw];
    return fmax(0, gather - t.fwd) + share * fmin(gather, t.fwd) + fmax(0, back - t.bwd) +
           share * fmin(back, t.bwd);
}

/* A message between stages: seconds. */
static double p2p_time(const struct ctx *x)
{
    const struct job *job = x->job;
    double bytes = 2.0 * (double)job->micro_batch * (double)job->seq / job->cp * job->shape.hidden;
    if (job->sp || job->scatter_gather) bytes /= job->tp;
    bool inside = job_pp_stride(job) * job->pp <= job->domain;
    double rate = inside ? job->dev.ring_Bps * x->c->nvlink_eff * .8 : cost_nic_Bps(job, x->c);
    return bytes / rate + x->c->pp_lat_us * 1e-6;
}

/* Parameters of stage i on one rank, by the groups that reduce them. */
struct rank_params {
    double shared, experts;
};

static struct rank_params rank_params(const struct ctx *x, uint32_t i)
{
    const struct job *job = x->job;
    const struct param_counts *n = &x->params;
    double moe = job_stage_moe_layers(job, i), dense = job_stage_layers(job, i) - moe;
    if (job->lora_rank) {
        return (struct rank_params){(dense + moe) * job_lora_params(job) / job->tp, 0};
    }
    double ends = (i == 0) + (i + 1 == job->pp && !(job->shape.tied && job->pp == 1));
    return (struct rank_params){
        (dense * n->dense_layer + moe * n->moe_shared + ends * n->embedding) / job->tp,
        moe * n->moe_experts / ((double)job->ep * job->etp)};
}

static struct stage stage_of(const struct ctx *x, uint32_t i)
{
    const struct job *job = x->job;
    struct stage stage = {{0}};
    double moe = job_stage_moe_layers(job, i), dense = job_stage_layers(job, i) - moe;
    add_layers(&stage, &x->dense, dense);
    if (moe > 0) add_layers(&stage, &x->moe, moe);
    if (i == 0) add_layers(&stage, &x->embedding, 1);
    if (i + 1 == job->pp) add_layers(&stage, &x->head, 1);
    struct rank_params own = rank_params(x, i); /* all gradients but the first are added up */
    double again = 1 - 1 / x->micro_batches;
    stage.part[PART_ELEMENT] +=
        ops_traffic_s(job, x->c, job->accumulate_B * (own.shared + own.experts) * again);
    if (is_fsdp(job)) {
        const struct param_counts *n = &x->params;
        stage.part[PART_FSDP] += dense * fsdp_exposed(x, &x->dense, n->dense_layer);
        if (moe > 0) {
            double params = n->moe_shared + n->moe_experts / job->ep;
            stage.part[PART_FSDP] += moe * fsdp_exposed(x, &x->moe, params);
        }
        if (i + 1 == job->pp) { /* nothing runs beside the head's gathers */
            double shards = shards_of(job);
            double rate = dp_Bps(job, x->c, job_dp_stride(job), (uint64_t)shards);
            stage.part[PART_FSDP] += 2 * (shards - 1) / shards * 2 * n->embedding / job->tp / rate;
        }
    }
    return stage;
}

/* Seconds of the gradient reduction (and, with ZeRO, the gathering of weights) of one group. */
static double reduce_time(const struct ctx *x, double params, uint64_t n, uint64_t stride)
{
    const struct job *job = x->job;
    if (n < 2 || params <= 0) return 0;
    double weight_B = job->fp8_params ? 1 : 2, grad_B = job->grad_B;
    double rate = dp_Bps(job, x->c, stride, n);
    double span = (double)n * (double)stride;
    double bytes = job->shard == SHARD_NONE ? 2 * grad_B
                   : job->owner_sends       ? 2 * grad_B + weight_B
                                            : grad_B + weight_B;
    double rounds = span > job->domain ? span / job->domain : 1;
    return ((double)n - 1) / (double)n * params * bytes / rate +
           x->c->dp_lat_us * 1e-6 * fmax(1, params * (grad_B + weight_B) / 1e8) * rounds;
}

static uint64_t expert_copies(const struct job *job)
{
    uint64_t n = (uint64_t)job->dp * job->cp * job->tp / ((uint64_t)job->ep * job->etp);
    return n ? n : 1;
}

/* Adds the data-parallel reduction: part of it hides behind the last backward passes. */
static void add_dp(const struct ctx *x, struct step *step, struct rank_params p, double stage_s)
{
    const struct job *job = x->job;
    double t = reduce_time(x, p.shared, (uint64_t)job->dp * job->cp, job_dp_stride(job)) +
               reduce_time(x, p.experts, expert_copies(job), (uint64_t)job->ep * job->etp);
    double v = job->vpp, window = stage_s;
    if (v > 1) window *= fmin(x->micro_batches, job->pp) * (v - 1) / v;
    double share = job->dp_overlap ? x->c->dp_exposed[job->fw] : 1;
    double exposed = share * t + (1 - share) * fmax(0, t - .8 * window);
    if (share < 1) exposed += x->c->dp_contention * fmin(t, window);
    step->dp_total_s = t;
    step->part_s[PART_DP] += exposed;
}

static void add_optimizer(const struct ctx *x, struct step *step, struct rank_params p)
{
    const struct job *job = x->job;
    double n = (double)job->dp * job->cp, copies = (double)expert_copies(job), own;
    if (is_fsdp(job)) n = copies = shards_of(job);
    own = p.shared + p.experts;
    if (job->shard != SHARD_NONE) own = p.shared / n + p.experts / copies;
    bool held = job->shard == SHARD_ZERO1 || job->shard == SHARD_ZERO2;
    step->part_s[PART_OPTIMIZER] +=
        ops_optimizer_s(job, x->c, own, held ? p.shared + p.experts : 0);
}

/* FLOP per token that recomputation does again, of `linear` in the layers and `half` in causal
 * attention. */
static double flops_again(const struct job *job, double linear, double half)
{
    const struct shape *s = &job->shape;
    double experts = (double)s->topk * s->expert_ffn + s->shared_ffn, mats = s->gated ? 3 : 2;
    double ndense = s->experts ? s->dense_layers : s->layers;
    double mlp = 2.0 * ndense * s->hidden * s->ffn * mats;
    double moe = 2.0 * (s->layers - ndense) * s->hidden * experts * mats;
    unsigned modules = job->rc_modules;
    if (job->recompute == RC_NONE) return 0;
    if (job->recompute == RC_FULL) {
        double share = modules & RCM_HALF ? .5 : 1;
        if (job->rc_blocks) {
            share *= fmin(1, job->rc_blocks * (double)job->pp * job->vpp / s->layers);
        }
        return share * (linear + half);
    }
    return (modules & RCM_CORE_ATTN ? half : 0) + (modules & RCM_MLP ? mlp : 0) +
           (modules & RCM_MOE ? moe : 0) + (modules & RCM_MLP_PART ? .6 * (mlp + moe) : 0) +
           (modules & RCM_OPS ? .5 * linear : 0) + (modules & RCM_HALF ? .5 * (linear + half) : 0) +
           (modules & RCM_THIRD ? (linear + half) / 3 : 0);
}

double step_flops(const struct job *job, unsigned convention)
{
    struct flops f = cost_flops_per_token(job);
    double half = convention & FLOPS_LINEAR ? 0 : f.attention / 2;
    double attention = convention & FLOPS_FULL ? 2 * half : half;
    double linear = f.linear + f.logits, layers = f.linear;
    if (convention & FLOPS_EMBEDDING) linear = layers = 2 * job_params(job).active;
    double passes = job->lora_rank ? 2 : 3; /* forward, input gradients, weight gradients */
    double again = convention & FLOPS_HARDWARE ? flops_again(job, layers, half) : 0;
    return (double)job->global_batch * (double)job->seq * (passes * linear + 3 * attention + again);
}

static struct ctx ctx_of(const struct job *job, const struct constants *c)
{
    struct ctx x = {.job = job,
                    .c = c,
                    .head = cost_head(job, c),
                    .embedding = cost_embedding(job, c),
                    .params = job_params(job),
                    .micro_batches = (double)job_microbatches(job),
                    .hbm_Bps = job->dev.hbm_Bps * c->hbm_eff};
    x.dense = cost_dense_layer(job, c);
    if (job->shape.experts) x.moe = cost_moe_layer(job, c);
    return x;
}

/* Share of 1F1B's bubble that is left. A zero-bubble schedule (Qi et al. 2023) needs enough
 * micro-batches: the first stage has nothing to do from its m forwards until the first gradient is
 * back, after p forwards and p - 1 backwards of an input, each a third of a micro-batch. */
static double bubble_left(const struct job *job, double micro_batches)
{
    if (job->pp < 2 || job->zb >= 1) return job->zb;
    double wait = (2.0 * job->pp - 1 - micro_batches) / 3;
    return fmax(job->zb, wait / (job->pp - 1.0));
}

/* The slowest stage runs all micro-batches; the others make it wait at both ends of the step. */
static void add_pipeline(const struct ctx *x, struct step *step, struct stage *slowest)
{
    const struct job *job = x->job;
    double all = 0, longest = -1, m = x->micro_batches, v = job->vpp, p = job->pp;
    for (uint32_t i = 0; i < job->pp; i++) {
        struct stage stage = stage_of(x, i);
        double t = stage_total(&stage);
        all += t;
        if (t <= longest) continue;
        longest = t;
        *slowest = stage;
        step->slowest_stage = i;
    }
    for (int i = 0; i < NPARTS; i++) {
        step->part_s[i] = m * slowest->part[i];
    }
    double fixed = x->c->micro_ms[job->fw] * 1e-3 * cost_host(job, x->c);
    step->part_s[PART_LAUNCH] += m * v * fixed;
    if (job->pp < 2) return;
    double message = p2p_time(x), share = job->p2p_overlap ? x->c->pp_exposed[job->fw] : 1;
    step->part_s[PART_PP] += m * 2 * v * share * message;
    double rounds = (double)job_rounds(job, (uint64_t)m), left = bubble_left(job, m / rounds);
    step->part_s[PART_BUBBLE] =
        rounds * left * ((all - longest) / v + (p - 1) * (fixed + 2 * message));
}

struct step step_predict(const struct job *job, const struct constants *c)
{
    struct ctx x = ctx_of(job, c);
    struct step step = {0};
    struct stage slowest = {{0}};
    add_pipeline(&x, &step, &slowest);
    struct rank_params most = {0, 0};
    for (uint32_t i = 0; i < job->pp; i++) {
        struct rank_params p = rank_params(&x, i);
        if (p.shared + p.experts > most.shared + most.experts) most = p;
    }
    if (!is_fsdp(job)) add_dp(&x, &step, most, stage_total(&slowest));
    add_optimizer(&x, &step, most);
    step.part_s[PART_LAUNCH] += c->step_ms[job->fw] * 1e-3 * cost_host(job, c);
    for (int i = 0; i < NPARTS; i++) {
        step.time_s += step.part_s[i];
    }
    step.model_flops = step_flops(job, 0);
    step.model_flops_full = step_flops(job, FLOPS_FULL);
    step.hardware_flops = step_flops(job, FLOPS_HARDWARE);
    step.tokens_per_s = (double)job->global_batch * (double)job->seq / step.time_s;
    return step;
}
