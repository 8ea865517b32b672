/* SPDX-License-Identifier: Apache-2.0
 * What follows from a job's figures alone: micro-batches, layers of a stage, parameters. */
#include "train/job.h"

#include <math.h>

uint64_t job_microbatches(const struct job *job)
{
    double m = (double)job->global_batch / ((double)job->dp * (double)job->micro_batch);
    return m < 1 ? 1 : (uint64_t)llround(m);
}

uint64_t job_rounds(const struct job *job, uint64_t micro)
{
    uint64_t each = job->pp > 1 && job->micro_batch ? job->local_batch / job->micro_batch : 0;
    return each > 0 && micro % each == 0 ? micro / each : 1;
}

double job_expert_load(const struct job *job)
{
    double load = job->moe_imbalance > 1 ? job->moe_imbalance : 1;
    return job->moe_capacity > 0 && job->moe_capacity < load ? job->moe_capacity : load;
}

double job_stage_layers(const struct job *job, uint32_t stage)
{
    if (job->stage_layers) return job->stage_layers[stage];
    uint64_t layers = job->shape.layers, p = job->pp, v = job->vpp;
    if (layers % p == 0 && layers % (p * v) == 0) return (double)(layers / p);
    uint64_t middle = (layers + p * v - 1) / (p * v) * v;
    uint64_t inside = p > 2 ? (p - 2) * middle : 0;
    if (inside > layers) return (double)layers / (double)p;
    double rest = (double)(layers - inside) / (p > 1 ? 2.0 : 1.0);
    return stage == 0 || stage + 1 == p ? rest : (double)middle;
}

double job_stage_moe_layers(const struct job *job, uint32_t stage)
{
    if (!job->shape.experts) return 0;
    double before = 0, dense = job->shape.dense_layers;
    for (uint32_t i = 0; i < stage && before < dense; i++) {
        before += job_stage_layers(job, i);
    }
    double here = job_stage_layers(job, stage);
    return here - fmin(here, fmax(0, dense - before));
}

/* Parameters of an attention block without biases and norms. */
static double attention_params(const struct shape *s)
{
    double h = s->hidden, a = s->heads;
    if (!s->kv_lora) {
        return h * (a + 2.0 * s->kv_heads) * s->head_dim + a * s->head_dim * h;
    }
    double qk = (double)s->nope_dim + s->rope_dim;
    double q = s->q_lora ? h * s->q_lora + s->q_lora * a * qk : h * a * qk;
    return q + h * (s->kv_lora + s->rope_dim) + s->kv_lora * a * ((double)s->nope_dim + s->v_dim) +
           a * s->v_dim * h;
}

struct param_counts job_params(const struct job *job)
{
    const struct shape *s = &job->shape;
    double h = s->hidden, mats = s->gated ? 3 : 2, attention = attention_params(s);
    double moe = s->experts ? (double)s->layers - s->dense_layers : 0;
    double dense = (double)s->layers - moe;
    struct param_counts n = {
        .dense_layer = attention + mats * h * s->ffn,
        .moe_shared = s->experts ? attention + mats * h * s->shared_ffn + h * s->experts : 0,
        .moe_experts = (double)s->experts * mats * h * s->expert_ffn,
        .embedding = h * s->vocab,
    };
    double outside = (s->tied ? 1 : 2) * n.embedding + dense * n.dense_layer + moe * n.moe_shared;
    n.total = s->params > 0 ? s->params : outside + moe * n.moe_experts;
    n.active = n.total;
    if (s->experts) {
        n.active -= moe * n.moe_experts * (1 - (double)s->topk / s->experts);
    }
    return n;
}

double job_lora_params(const struct job *job)
{
    const struct shape *s = &job->shape;
    double q = s->heads, v = s->kv_heads, d = s->head_dim;
    if (s->kv_lora) {
        d = (double)s->nope_dim + s->rope_dim;
        v = s->heads * (double)s->v_dim / d;
    }
    return job->lora_rank * (2.0 * s->hidden + (q + v) * d);
}

uint64_t job_tp_stride(const struct job *job)
{
    return job->tp_stride ? job->tp_stride : 1;
}

uint64_t job_cp_stride(const struct job *job)
{
    return job->cp_stride ? job->cp_stride : job->tp;
}

uint64_t job_dp_stride(const struct job *job)
{
    uint64_t cp = job_cp_stride(job), dp = job->dp_stride;
    if (!dp || (job->cp > 1 && job->dp == 1)) return cp;
    if (job->cp == 1) return dp;
    if (dp > cp * job->cp) return dp / job->cp;
    if (cp > dp * job->dp) return cp / job->dp;
    return cp < dp ? cp : dp;
}

uint64_t job_stage_stride(const struct job *job, uint64_t stride, uint64_t n)
{
    uint64_t stage = job_pp_stride(job);
    bool inside = stage * job->pp < job->ngpus; /* stages lie inside something */
    return inside && stride * n > stage ? stride * job->pp : stride;
}

uint64_t job_pp_stride(const struct job *job)
{
    return job->pp_stride ? job->pp_stride : job->ngpus / (job->pp ? job->pp : 1);
}
