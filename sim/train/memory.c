/* SPDX-License-Identifier: Apache-2.0
 * Per stage: parameters of the rank times bytes, activations per token times tokens in flight. The
 * largest stage decides, which is often not the mean one. */
#include "train/memory.h"

#include <math.h>

#define GB 1e9

const char *moment_name(enum moment moment)
{
    static const char *const names[NMOMENTS] = {"init", "forward", "backward", "optimizer", "save"};
    return names[moment];
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {"fits", "tight", "does not fit"};
    return names[verdict];
}

static double tokens_of(const struct job *job)
{
    return (double)job->micro_batch * (double)job->seq / job->cp;
}

/* Bytes of scores, softmax and dropout per token of one layer: 5 a s with a fused softmax in place
 * (2015-2022 kernels), else scores and softmax apart; nothing with flash attention. */
static double score_B(const struct job *job)
{
    double as = job->shape.heads / (double)job->tp * (double)job->seq / job->cp;
    if (job->attn != ATTN_UNFUSED) return 0;
    if (job->recompute == RC_SELECTIVE && (job->rc_modules & RCM_CORE_ATTN)) return 0;
    return (job->fw == FW_LEGACY ? 5 : 4 + 3 * job->dropout) * as * job->cp;
}

/* RMSNorm in single PyTorch operators keeps an fp32 copy of its input, 4 B x h for each of a
 * layer's two; a per-operator recomputation keeps matrix products alone. */
static bool keeps_norm_copies(const struct job *job)
{
    bool repeated = job->recompute == RC_SELECTIVE && (job->rc_modules & (RCM_OPS | RCM_NORM));
    return job->unfused_norm && job->fw == FW_EAGER && !repeated;
}

/* Attention block and norms. */
static double block_B(const struct job *job)
{
    const struct shape *s = &job->shape;
    double h = s->hidden, tp = job->tp, split = job->sp ? tp : 1, q, kv;
    if (s->kv_lora) {
        q = s->heads * ((double)s->nope_dim + s->rope_dim);
        kv = s->heads * ((double)s->nope_dim + s->rope_dim + s->v_dim);
    } else {
        q = (double)s->heads * s->head_dim;
        kv = 2 * fmax(s->kv_heads, tp) * s->head_dim;
    }
    double bytes = 4 * h / split + 2 * (q + kv) / tp + 2 * q / tp + 4 * h / split + score_B(job);
    if (job->attn != ATTN_UNFUSED) bytes += 4 * s->heads / tp;
    if (keeps_norm_copies(job)) bytes += 8 * h / split;
    if (job->dropout) bytes += 2 * h / split;
    if (s->kv_lora) bytes += 2.0 * (s->q_lora + s->kv_lora);
    return bytes;
}

/* What a selective recomputation leaves of an MLP's activations. */
static double mlp_kept(const struct job *job)
{
    if (job->recompute != RC_SELECTIVE) return 1;
    if (job->rc_modules & RCM_MLP) return 0;
    return job->rc_modules & (RCM_MLP_PART | RCM_NORM) ? 2 / 3. : 1;
}

/* Share of a whole layer's bytes that is kept. */
static double layer_kept(const struct job *job)
{
    if (job->recompute != RC_SELECTIVE) return 1;
    if (job->rc_modules & RCM_OPS) return .43; /* torchtitan's per-operator rule, its logs */
    if (job->rc_modules & RCM_HALF) return .5;
    if (job->rc_modules & RCM_SAVE_DOT) return .6;
    return job->rc_modules & RCM_THIRD ? 2 / 3. : 1;
}

static double wide(const struct job *job)
{
    return job->precision == PREC_FP32 || job->precision == PREC_TF32 ? 2 : 1;
}

double memory_dense_layer_B(const struct job *job)
{
    double mats = job->shape.gated ? 3 : 2;
    double mlp = 2 * mats * job->shape.ffn / job->tp * mlp_kept(job);
    return (block_B(job) + mlp) * layer_kept(job) * wide(job);
}

double memory_moe_layer_B(const struct job *job)
{
    const struct shape *s = &job->shape;
    double mats = s->gated ? 3 : 2, routed = (double)s->topk / job->tp;
    double experts = routed * (4.0 * s->hidden + 2 * mats * s->expert_ffn) * mlp_kept(job);
    double shared = 2 * mats * s->shared_ffn / job->tp * mlp_kept(job);
    return (block_B(job) + experts + shared) * layer_kept(job) * wide(job);
}

double memory_in_flight(const struct job *job, uint32_t stage)
{
    double m = (double)job_microbatches(job), p = job->pp, v = job->vpp, i = stage;
    if (job->pp < 2) return 1;
    if (job->gpipe) return m;
    if (v > 1) return fmin(m * v, 2 * (p - i - 1) + (v - 1) * p + 1) / v;
    if (job->zb == 0) return fmin(m, 2 * p - 1); /* ZB-2p: twice 1F1B's first stage, everywhere */
    return fmin(m, p - i);
}

/* Parameters of a stage on one rank before data-parallel sharding. */
struct held {
    double shared, experts, ends, layer; /* layer: the largest one, whole */
    double adapters;                     /* LoRA */
};

static struct held held_by(const struct job *job, uint32_t stage)
{
    struct param_counts n = job_params(job);
    double moe = job_stage_moe_layers(job, stage), all = job_stage_layers(job, stage);
    double ends = (stage == 0) + (stage + 1 == job->pp && !(job->shape.tied && job->pp == 1));
    return (struct held){
        .shared = ((all - moe) * n.dense_layer + moe * n.moe_shared) / job->tp,
        .experts = moe * n.moe_experts / ((double)job->ep * job->etp),
        .ends = ends * n.embedding / job->tp,
        .layer = moe > 0 ? n.moe_shared / job->tp + n.moe_experts / ((double)job->ep * job->etp)
                         : n.dense_layer / job->tp,
        .adapters = all * job_lora_params(job) / job->tp,
    };
}

/* Ranks over which a level shards shared and expert parameters. */
static double sharers(const struct job *job, enum shard level, bool experts)
{
    if (job->shard < level) return 1;
    double n = (double)job->dp * job->cp;
    if (experts) n = fmax(1, n * job->tp / ((double)job->ep * job->etp));
    if (job->shard_size && job->shard_size < n) n = job->shard_size;
    return n;
}

static void hold_states(const struct job *job, const struct held *h, struct stage_memory *s)
{
    bool fsdp = job->shard == SHARD_FULL || job->shard == SHARD_GRAD_OP;
    bool master = !job->pure_bf16;
    double weight_B = 2 * wide(job);
    if (wide(job) > 1 && master) weight_B = 0; /* fp32 weights are their own master */
    if (fsdp && master && !job->sharded_copy) weight_B = 0;
    double shared = h->shared + h->ends;
    if (job->lora_rank) {                       /* a frozen base, only adapters train */
        double base_B = job->qlora ? .5625 : 2; /* nf4: 4 bits and a 32-bit scale per 64 */
        s->weights = (h->shared + h->experts) * base_B + h->ends * 2;
        s->weights /= sharers(job, SHARD_GRAD_OP, false);
        s->gradients = h->adapters * 2;
        s->optimizer = h->adapters * 12;
        return;
    }
    const struct {
        enum shard level;
        double bytes, *to;
    } parts[] = {{SHARD_GRAD_OP, weight_B, &s->weights},
                 {SHARD_ZERO2, job->grad_store_B, &s->gradients},
                 {SHARD_ZERO1, job->opt_B, &s->optimizer}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].to = parts[i].bytes * (shared / sharers(job, parts[i].level, false) +
                                         h->experts / sharers(job, parts[i].level, true));
    }
}

static void hold_activations(const struct job *job, uint32_t stage, struct stage_memory *s)
{
    double moe = job_stage_moe_layers(job, stage), layers = job_stage_layers(job, stage);
    double dense = layers - moe, tokens = tokens_of(job);
    double dense_B = memory_dense_layer_B(job), moe_B = moe > 0 ? memory_moe_layer_B(job) : 0;
    double split = job->sp ? job->tp : 1, input_B = 2.0 * job->shape.hidden / split * wide(job);
    double kept = dense * dense_B + moe * moe_B;
    if (job->recompute == RC_FULL) {
        double share = job->rc_modules & RCM_HALF ? .5 : 1;
        if (job->rc_blocks) share *= fmin(1, job->rc_blocks * (double)job->vpp / layers);
        kept = (1 - share) * kept + share * layers * input_B;
        s->live = tokens * fmax(dense > 0 ? dense_B : 0, moe_B);
    }
    s->activations = kept * tokens * s->in_flight;
    if (stage + 1 == job->pp) {
        s->logits =
            tokens * job->shape.vocab / job->tp * job->logit_B / (job->chunked_loss ? 8 : 1);
    }
}

struct stage_memory memory_stage(const struct job *job, const struct constants *c, uint32_t stage)
{
    struct stage_memory s = {.in_flight = memory_in_flight(job, stage)};
    struct held h = held_by(job, stage);
    hold_states(job, &h, &s);
    hold_activations(job, stage, &s);
    s.activations *= c->mem_act;
    /* one rank gathers nothing, but casts its fp32 weights */
    bool gathers = sharers(job, SHARD_ZERO1, false) > 1 || !(job->pure_bf16 || job->lora_rank);
    if (job->shard == SHARD_FULL && gathers)
        s.gathered = (4 + job->reduce_B) * h.layer + 4 * h.ends;
    if (job->shard == SHARD_GRAD_OP) s.gathered = 2 * (h.shared + h.experts + h.ends) + 4 * h.layer;
    if (job->lora_rank && s.gathered > 0) s.gathered = 4 * h.layer;
    double base = c->mem_base_GB * GB, held = s.weights + s.gradients + s.optimizer + base;
    s.moment[MOMENT_INIT] = s.weights + s.optimizer + base;
    s.moment[MOMENT_FORWARD] = held + s.activations + s.logits + s.gathered;
    s.moment[MOMENT_BACKWARD] = held + s.activations + fmax(s.logits, s.live) + s.gathered;
    s.moment[MOMENT_OPTIMIZER] = held;
    s.moment[MOMENT_SAVE] = s.weights + s.optimizer + base + 2 * job_params(job).total;
    for (int i = 0; i <= MOMENT_OPTIMIZER; i++) {
        s.peak = fmax(s.peak, s.moment[i]);
    }
    return s;
}

struct memory memory_predict(const struct job *job, const struct constants *c)
{
    struct memory m = {.capacity = job->dev.mem_B};
    for (uint32_t i = 0; i < job->pp; i++) {
        struct stage_memory s = memory_stage(job, c, i);
        if (i > 0 && s.peak <= m.worst.peak) continue;
        m.worst = s;
        m.stage = i;
    }
    m.allocated = m.worst.peak;
    m.reserved = m.allocated * c->reserved_factor + c->reserved_GB * GB;
    m.smi =
        m.allocated * c->smi_factor + c->smi_GB * GB; /* fitted apart: may fall below the pool */
    return m;
}

enum verdict memory_verdict(const struct memory *memory)
{
    if (memory->reserved > memory->capacity) return VERDICT_NO;
    return memory->reserved > .9 * memory->capacity ? VERDICT_TIGHT : VERDICT_FITS;
}
