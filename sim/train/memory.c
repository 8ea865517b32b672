/* SPDX-License-Identifier: Apache-2.0
 * Per stage: parameters of the rank times bytes, activations per token times tokens in flight. The
 * largest stage decides, which is often not the mean one. */
#include "train/memory.h"

#include <math.h>

#include "train/pipeline.h"

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

static bool drops(const struct job *job, unsigned module)
{
    return job->recompute == RC_SELECTIVE && (job->rc_modules & module);
}

/* What a selective recomputation leaves of the activations of an MLP that is not run again. */
static double mlp_kept(const struct job *job)
{
    if (job->recompute != RC_SELECTIVE) return 1;
    return job->rc_modules & (RCM_MLP_PART | RCM_NORM | RCM_ACT) ? 2 / 3. : 1;
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
    if (drops(job, RCM_MLP)) mlp = 0;
    return (block_B(job) + mlp) * layer_kept(job) * wide(job);
}

double memory_moe_layer_B(const struct job *job)
{
    const struct shape *s = &job->shape;
    double mats = s->gated ? 3 : 2, routed = job_expert_load(job) * s->topk / job->tp;
    double experts = routed * (4.0 * s->hidden + 2 * mats * s->expert_ffn) * mlp_kept(job);
    double shared = 2 * mats * s->shared_ffn / job->tp * mlp_kept(job);
    if (drops(job, RCM_MOE)) experts = shared = 0;
    return (block_B(job) + experts + shared) * layer_kept(job) * wide(job);
}

/* A run of layers that a rank holds: its stage; with DualPipe also that of its mirror. */
struct place {
    double layers, moe; /* all; those with experts */
    bool embedding, head;
    double in_flight; /* micro-batches */
};

static double one_way(const struct job *job, uint32_t stage)
{
    double m = (double)job_microbatches(job), p = job->pp, v = job->vpp, i = stage;
    if (job->pp < 2) return 1;
    if (job->gpipe) return m;
    if (v > 1) return fmin(m * v, 2 * (p - i - 1) + (v - 1) * p + 1) / v;
    if (job->zb == 0) return fmin(m, 2 * p - 1); /* ZB-2p: twice 1F1B's first stage, everywhere */
    return fmin(m, p - i);
}

/* Layers with experts of the half stage s of 2 pp along a vee: half of rank s and of 2 pp - 1 - s.
 */
static double half_moe(const struct job *job, uint32_t s)
{
    double before = 0, dense = job->shape.dense_layers;
    uint32_t last = 2 * job->pp - 1;
    for (uint32_t i = 0; i < s && before < dense; i++) {
        before += job_stage_layers(job, i < job->pp ? i : last - i) / 2;
    }
    double here = job_stage_layers(job, s < job->pp ? s : last - s) / 2;
    return job->shape.experts ? here - fmin(here, fmax(0, dense - before)) : 0;
}

/* What a rank holds; 1 or 2 places. Of two ways each stage has as many micro-batches in flight as
 * with 1F1B, which makes p + 1 on every rank (DeepSeek-V3 report 2024, table 2). */
static int places_of(const struct job *job, uint32_t rank, struct place place[2])
{
    uint32_t p = job->pp, mirror = p - 1 - rank;
    double m = (double)job_microbatches(job), half = m / 2;
    if (job->schedule == PIPELINE_DUALPIPE && p > 1) {
        for (int way = 0; way < 2; way++) {
            uint32_t stage = way ? mirror : rank;
            place[way] = (struct place){.layers = job_stage_layers(job, stage),
                                        .moe = job_stage_moe_layers(job, stage),
                                        .embedding = stage == 0,
                                        .head = stage + 1 == p,
                                        .in_flight = fmin(half, p - stage)};
        }
        return 2;
    }
    if (job->schedule == PIPELINE_DUALPIPEV && p > 1) {
        for (uint32_t back = 0; back < 2; back++) {
            uint32_t stage = back ? 2 * p - 1 - rank : rank;
            place[back] = (struct place){.layers = job_stage_layers(job, rank) / 2,
                                         .moe = half_moe(job, stage),
                                         .embedding = stage == 0,
                                         .head = stage == 2 * p - 1,
                                         .in_flight = fmin(m, 2 * p - stage)};
        }
        return 2;
    }
    place[0] = (struct place){.layers = job_stage_layers(job, rank),
                              .moe = job_stage_moe_layers(job, rank),
                              .embedding = rank == 0,
                              .head = rank + 1 == p,
                              .in_flight = one_way(job, rank)};
    return 1;
}

double memory_in_flight(const struct job *job, uint32_t rank)
{
    struct place place[2];
    int count = places_of(job, rank, place);
    double halves = job->schedule == PIPELINE_DUALPIPEV && count == 2 ? 2 : 1;
    return count == 1 ? place[0].in_flight : (place[0].in_flight + place[1].in_flight) / halves;
}

/* Parameters of a stage on one rank before data-parallel sharding. */
struct held {
    double shared, experts, ends, layer; /* layer: the largest one, whole */
    double adapters;                     /* LoRA */
};

static struct held held_by(const struct job *job, uint32_t rank)
{
    struct param_counts n = job_params(job);
    struct place place[2];
    int count = places_of(job, rank, place);
    double cut = (double)job->ep * job->etp;
    struct held h = {.layer = n.dense_layer / job->tp};
    bool embedding = false, head = false;
    for (int i = 0; i < count; i++) {
        const struct place *p = &place[i];
        embedding |= p->embedding, head |= p->head;
        h.shared += ((p->layers - p->moe) * n.dense_layer + p->moe * n.moe_shared) / job->tp;
        h.experts += p->moe * n.moe_experts / cut;
        h.adapters += p->layers * job_lora_params(job) / job->tp;
        if (p->moe > 0) h.layer = n.moe_shared / job->tp + n.moe_experts / cut;
    }
    h.ends = (embedding + (head && !(job->shape.tied && embedding))) * n.embedding / job->tp;
    return h;
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
    double weight_B = 2 * wide(job), opt_B = job->opt_B;
    bool copied = job->sharded_copy || (job->shard_copy && job->shard != SHARD_NONE && !fsdp);
    if (wide(job) > 1 && master && !copied) opt_B -= 4; /* fp32 weights are their own master */
    if (wide(job) < 2 && fsdp && master && !job->sharded_copy) weight_B = 0;
    double shared = h->shared + h->ends;
    if (job->lora_rank) {                       /* a frozen base, only adapters train */
        double base_B = job->qlora ? .5625 : 2; /* nf4: 4 bits and a 32-bit scale per 64 */
        s->weights = (h->shared + h->experts) * base_B + (h->ends + h->adapters) * 2;
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
                 {SHARD_ZERO1, opt_B, &s->optimizer}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].to = parts[i].bytes * (shared / sharers(job, parts[i].level, false) +
                                         h->experts / sharers(job, parts[i].level, true));
    }
}

/* Bytes that the layers of a place leave for one token, of which full recomputation keeps inputs
 * alone. */
static double kept_B(const struct job *job, const struct place *p, double input_B)
{
    double dense_B = memory_dense_layer_B(job), moe_B = p->moe > 0 ? memory_moe_layer_B(job) : 0;
    double kept = (p->layers - p->moe) * dense_B + p->moe * moe_B;
    if (job->recompute != RC_FULL) return kept;
    double share = job->rc_modules & RCM_HALF ? .5 : 1;
    if (job->rc_blocks) share *= fmin(1, job->rc_blocks * (double)job->vpp / p->layers);
    return (1 - share) * kept + share * p->layers * input_B;
}

/* Activations that go to the host leave two layers behind: the one that computes and the one on its
 * way. Moves the rest to s->host. */
static void offload_activations(const struct job *job, double layers, struct stage_memory *s)
{
    double in_flight = fmax(1, s->in_flight);
    double here = layers > 0 ? fmin(s->activations, 2 * s->activations / layers / in_flight) : 0;
    if (!(job->offload & OFFLOAD_ACTIVATIONS)) return;
    s->host += s->activations - here;
    s->activations = here;
}

static void hold_activations(const struct job *job, uint32_t rank, struct stage_memory *s)
{
    struct place place[2];
    int count = places_of(job, rank, place);
    double tokens = tokens_of(job), split = job->sp ? job->tp : 1, layers = 0;
    double input_B = 2.0 * job->shape.hidden / split * wide(job);
    for (int i = 0; i < count; i++) {
        const struct place *p = &place[i];
        double dense_B = p->layers > p->moe ? memory_dense_layer_B(job) : 0;
        double moe_B = p->moe > 0 ? memory_moe_layer_B(job) : 0;
        s->activations += kept_B(job, p, input_B) * tokens * p->in_flight;
        layers += p->layers;
        if (job->recompute == RC_FULL) s->live = fmax(s->live, tokens * fmax(dense_B, moe_B));
        if (!p->head) continue;
        s->logits =
            tokens * job->shape.vocab / job->tp * job->logit_B / (job->chunked_loss ? 8 : 1);
    }
    offload_activations(job, layers, s);
}

static void move(double *from, double *to)
{
    *to += *from;
    *from = 0;
}

/* States on the host, and what stays of them. The optimizer takes sharded gradients with it, which
 * leave bucket by bucket, one being filled while another is under way; whole ones stay until the
 * step. Weights come back layer by layer, one ahead. Ren et al. 2021 (ZeRO-Offload). */
static void offload_states(const struct job *job, const struct held *h, struct stage_memory *s)
{
    bool fsdp = job->shard == SHARD_FULL || job->shard == SHARD_GRAD_OP;
    if (job->offload & OFFLOAD_OPTIMIZER) {
        double buckets = fmin(2 * job->bucket_B, s->gradients);
        move(&s->optimizer, &s->host);
        if (job->shard >= SHARD_ZERO2) {
            move(&s->gradients, &s->host);
            s->gathered += buckets;
        }
    }
    if (job->offload & OFFLOAD_WEIGHTS) {
        move(&s->weights, &s->host);
        if (!fsdp) s->gathered += 2 * wide(job) * (2 * h->layer + h->ends);
    }
}

double memory_deepspeed_estimate(double params, double largest, double gpus, unsigned offload)
{
    double per = offload & OFFLOAD_WEIGHTS ? 0 : offload & OFFLOAD_OPTIMIZER ? 2 : 18;
    return 4 * largest + per * params / gpus;
}

/* FSDP and ZeRO-3: layers that are whole at the peak. */
static double gathered_B(const struct job *job, const struct held *h)
{
    /* one rank gathers nothing, but casts its fp32 weights */
    bool casts = !(job->pure_bf16 || job->lora_rank || wide(job) > 1);
    bool gathers = sharers(job, SHARD_ZERO1, false) > 1 || casts;
    double each_B = 2 * wide(job), layer = each_B * h->layer,
           all = each_B * (h->shared + h->experts);
    double bytes = 0, ahead = layer * job->prefetch;
    double layers = fmax(layer, fmin(layer + ahead, all)); /* with that which runs */
    if (job->shard == SHARD_FULL && gathers)
        bytes = layers + job->reduce_B * h->layer + 2 * each_B * h->ends;
    if (job->shard == SHARD_GRAD_OP) bytes = all + each_B * h->ends + 4 * h->layer;
    return job->lora_rank && bytes > 0 ? 4 * h->layer : bytes;
}

/* A whole 16-bit state dict, where weights are sharded (adapters are picked out of it behind the
 * gather: meta-llama/llama-cookbook#332); else each rank writes what it has. */
static double gathered_to_save_B(const struct job *job)
{
    bool sharded = job->shard == SHARD_FULL || job->shard == SHARD_GRAD_OP;
    bool many = (uint64_t)job->dp * job->cp > 1;
    return sharded && many ? 2 * job_params(job).total : 0;
}

struct stage_memory memory_stage(const struct job *job, const struct constants *c, uint32_t stage)
{
    struct stage_memory s = {.in_flight = memory_in_flight(job, stage)};
    struct held h = held_by(job, stage);
    hold_states(job, &h, &s);
    hold_activations(job, stage, &s);
    s.activations *= c->mem_act, s.host *= c->mem_act;
    s.gathered = gathered_B(job, &h);
    offload_states(job, &h, &s);
    double base = c->mem_base_GB * GB, held = s.weights + s.gradients + s.optimizer + base;
    s.moment[MOMENT_INIT] = s.weights + s.optimizer + base;
    s.moment[MOMENT_FORWARD] = held + s.activations + s.logits + s.gathered;
    s.moment[MOMENT_BACKWARD] = held + s.activations + fmax(s.logits, s.live) + s.gathered;
    s.moment[MOMENT_OPTIMIZER] = held;
    s.moment[MOMENT_SAVE] = s.weights + s.optimizer + base + gathered_to_save_B(job);
    for (int i = 0; i <= MOMENT_OPTIMIZER; i++) {
        s.peak = fmax(s.peak, s.moment[i]);
    }
    return s;
}

struct memory memory_predict(const struct job *job, const struct constants *c)
{
    struct memory m = {.capacity = job->dev.mem_B, .host_capacity = job->host_mem_B};
    for (uint32_t i = 0; i < job->pp; i++) {
        struct stage_memory s = memory_stage(job, c, i);
        if (i > 0 && s.peak <= m.worst.peak) continue;
        m.worst = s;
        m.stage = i;
    }
    m.allocated = m.worst.peak;
    m.host = m.worst.host * job->gpus_per_node;
    /* Weights lie in the pool from the start, without gaps: it grows by what comes and goes. */
    double moves = m.allocated - m.worst.weights;
    m.reserved = m.worst.weights + moves * c->reserved_factor + c->reserved_GB * GB;
    m.smi = m.worst.weights + moves * c->smi_factor + c->smi_GB * GB; /* fitted apart */
    return m;
}

enum verdict memory_verdict(const struct memory *memory)
{
    if (memory->reserved > memory->capacity || memory_host_full(memory)) return VERDICT_NO;
    return memory->reserved > .9 * memory->capacity ? VERDICT_TIGHT : VERDICT_FITS;
}
