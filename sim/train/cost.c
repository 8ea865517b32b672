/* SPDX-License-Identifier: Apache-2.0
 * Costs of a layer. A matrix product runs at peak x efficiency x tile quantisation x K saturation,
 * or at the memory's rate if that is slower; everything else is bytes over bandwidth plus fixed
 * costs. The constants and where they come from are in data/constants.csv. */
#include "train/cost.h"

#include <math.h>

/* What the costs of one job have in common. */
struct ctx {
    const struct job *job;
    const struct shape *s;
    const struct constants *c;
    double hbm_Bps;  /* usable */
    double host;     /* host costs under CUDA graphs: 1, or the share left */
    double kernel_s; /* fixed time of a kernel */
    double slow;     /* of this machine: compute times are multiplied by it */
    double value_B;  /* bytes of an activation value */
    double tokens;   /* of a micro-batch on this rank, b s / cp */
    double tp;
    double q_dim;    /* width of attention scores and values, as the cost counts it */
    double kv_width; /* k and v of a token, elements */
    double head_dim;
};

double cost_host(const struct job *job, const struct constants *c)
{
    const double left[] = {1, c->graphs_partial, c->graphs_full};
    return left[job->graphs] * (job->dev.grace ? c->host_grace : 1);
}

static struct ctx ctx_of(const struct job *job, const struct constants *c)
{
    const struct shape *s = &job->shape;
    double host = cost_host(job, c);
    struct ctx x = {
        .job = job,
        .s = s,
        .c = c,
        .hbm_Bps = job->dev.hbm_Bps * c->hbm_eff,
        .host = host,
        .kernel_s = c->kernel_us[job->fw] * 1e-6 * (job->dev.grace ? host / c->host_grace : host),
        .slow = job->machine_factor * c->machine[job->machine],
        .value_B = job->precision == PREC_FP32 || job->precision == PREC_TF32 ? 4 : 2,
        .tokens = (double)job->micro_batch * (double)job->seq / job->cp,
        .tp = job->tp,
        .head_dim = s->head_dim,
    };
    if (s->kv_lora) { /* q and k are wider than v: the mean counts */
        x.head_dim = ((double)s->nope_dim + s->rope_dim + s->v_dim) / 2;
        x.kv_width = 2.0 * s->heads * x.head_dim;
    } else {
        x.kv_width = 2 * fmax(s->kv_heads, x.tp) * s->head_dim; /* at least one head a rank */
    }
    x.q_dim = s->heads * x.head_dim;
    return x;
}

static struct cost scaled(struct cost a, double by)
{
    return (struct cost){a.fwd * by, a.bwd * by};
}

static struct cost sum(struct cost a, struct cost b)
{
    return (struct cost){a.fwd + b.fwd, a.bwd + b.bwd};
}

/* Share of the multiprocessors' work that is wanted, for the best tile: a wave of tiles takes as
 * long when it is not full, and a tile at the edge as long when it is cut. */
static double tile_quantisation(double m, double n, double count, double sms)
{
    static const struct {
        double rows, columns, rate; /* of the multiprocessor's peak */
    } tiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, .95}, {128, 64, .8}, {64, 64, .6}};
    double best = INFINITY;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        double blocks = ceil(m / tiles[i].rows) * ceil(n / tiles[i].columns) * count;
        double waves = ceil(blocks / sms);
        best = fmin(best, waves * sms * tiles[i].rows * tiles[i].columns / tiles[i].rate);
    }
    return fmin(1, m * n * count / best);
}

static bool is_narrow(const struct job *job)
{
    return job->precision == PREC_FP8 || job->precision == PREC_FP4;
}

/* Dense peak of what is not in fp8 or fp4. */
static double plain_peak(const struct job *job)
{
    if (job->precision == PREC_TF32) return job->dev.flops_tf32;
    return job->precision == PREC_FP32 ? job->dev.flops32 : job->dev.flops16;
}

/* Peak and efficiency of a matrix product, and bytes of an element; `narrow` allows fp8 or fp4. */
static double gemm_rate(const struct ctx *x, bool narrow, double *bytes)
{
    const struct constants *c = x->c;
    const struct device *dev = &x->job->dev;
    double eff = c->gemm_eff[dev->cls] / x->slow;
    *bytes = x->value_B;
    if (!narrow || !is_narrow(x->job)) return plain_peak(x->job) * eff;
    bool hopper = dev->cls == DEV_H100 || dev->cls == DEV_H100_500W || dev->cls == DEV_H200;
    *bytes = 1;
    eff *= hopper ? c->fp8_eff_hopper : c->fp8_eff_blackwell;
    if (x->job->fp8_rowwise) eff *= c->fp8_rowwise;
    return dev->flops8 * eff * (x->job->precision == PREC_FP4 ? c->fp4_gain : 1);
}

/* Seconds of `count` products (m,k) x (k,n) in one kernel. */
static double gemm(const struct ctx *x, double m, double n, double k, bool narrow, double count)
{
    if (m <= 0 || n <= 0 || k <= 0) return 0;
    double bytes, rate = gemm_rate(x, narrow, &bytes);
    rate *= pow(tile_quantisation(m, n, count, x->job->dev.sms), x->c->quant_exp);
    if ((fmod(n, 64) != 0 || fmod(k, 64) != 0) && fmin(n, k) > 64) rate *= x->c->misaligned;
    rate *= k / (k + x->c->k0 * (bytes == 1 ? 2 : 1));
    double memory = count * (bytes * (m * k + n * k) + x->value_B * m * n) / x->hbm_Bps;
    return fmax(2 * m * n * k * count / rate, memory);
}

/* A linear layer (m,k) -> (m,n): forward; gradients of input and weight. fp8 adds the traffic of
 * quantising, which is returned apart in *element. */
static struct cost linear(const struct ctx *x, double m, double n, double k, bool narrow,
                          double count, struct cost *element)
{
    m = floor(m), n = floor(n), k = floor(k);
    if (narrow && is_narrow(x->job)) {
        double per = x->c->fp8_traffic * 4 * count / x->hbm_Bps;
        *element = sum(*element, (struct cost){per * m * k, per * m * n});
    }
    struct cost t = {gemm(x, m, n, k, narrow, count) + x->kernel_s,
                     gemm(x, m, k, n, narrow, count) + x->kernel_s};
    if (!x->job->lora_rank) { /* a frozen weight needs no gradient */
        t.bwd += gemm(x, n, k, m, narrow, count) + x->kernel_s;
    }
    if (x->job->qlora) { /* 4-bit weights are read and written as 16 bits before each use */
        double unpack = 2.5 * n * k * count / x->hbm_Bps;
        *element = sum(*element, (struct cost){unpack, unpack});
    }
    return t;
}

/* The adapters of a layer: two thin products each, beside the frozen projections of q and v. */
static struct cost adapters(const struct ctx *x)
{
    if (!x->job->lora_rank) return (struct cost){0, 0};
    double flops = 2 * x->tokens * job_lora_params(x->job) / x->tp, peak = plain_peak(x->job);
    double t = flops / (peak * .1) + 4 * x->kernel_s; /* thin: a tenth of the peak at most */
    return (struct cost){t, 2 * t};
}

/* The projections around attention; *up gets MLA's two up-projections (forward seconds). */
static struct cost attention_linears(const struct ctx *x, struct cost *element, double *up)
{
    const struct shape *s = x->s;
    double m = x->tokens, h = s->hidden, tp = x->tp, a = s->heads;
    *up = 0;
    if (!s->kv_lora) {
        return sum(
            linear(x, m, (a + 2 * fmax(s->kv_heads, tp)) * s->head_dim / tp, h, true, 1, element),
            linear(x, m, h, a * s->head_dim / tp, true, 1, element));
    }
    double qk = (double)s->nope_dim + s->rope_dim, down = (double)s->kv_lora + s->rope_dim;
    double q_from = s->q_lora ? s->q_lora : h;
    struct cost all = linear(x, m, (s->q_lora ? s->q_lora : 0) + down, h, true, 1, element);
    struct cost q = linear(x, m, a * qk / tp, q_from, true, 1, element);
    struct cost kv =
        linear(x, m, a * ((double)s->nope_dim + s->v_dim) / tp, s->kv_lora, true, 1, element);
    *up = q.fwd + kv.fwd;
    all = sum(sum(all, q), kv);
    return sum(all, linear(x, m, h, a * s->v_dim / tp, true, 1, element));
}

/* Mean share of the keys that a query of a layer sees, of the causal half = 1. */
static double window_share(const struct ctx *x)
{
    const struct shape *s = x->s;
    if (!s->window || s->window_share <= 0) return 1;
    double seq = (double)x->job->seq;
    return 1 - s->window_share * (1 - fmin(1, 2.0 * s->window / seq));
}

/* The attention core: flash kernels at their share of the peak, or scores and softmax in memory. */
static struct cost attention_core(const struct ctx *x)
{
    const struct constants *c = x->c;
    const struct job *job = x->job;
    double seq = (double)job->seq, b = (double)job->micro_batch;
    double full = 4 * b * seq * (seq / job->cp) * x->q_dim / x->tp * window_share(x);
    if (job->attn != ATTN_UNFUSED) {
        double eff = c->attn_eff[job->attn][job->dev.cls] *
                     pow(x->head_dim / 128, c->head_dim_exp) * seq / (seq + c->attn_s0) / x->slow;
        double fwd = full / 2 / (plain_peak(job) * eff);
        return (struct cost){fwd + x->kernel_s, fwd * 2.5 / c->attn_bwd_eff + x->kernel_s};
    }
    double scores = b * x->s->heads / x->tp * seq * seq / job->cp;
    double eff = c->gemm_eff[job->dev.cls] / x->slow * x->head_dim / (x->head_dim + c->unfused_k0) *
                 (x->s->head_dim % 8 ? c->unfused_odd : 1);
    double fwd = full / (plain_peak(job) * eff) + c->unfused_traffic * 13 * scores / x->hbm_Bps;
    return (struct cost){fwd + 4 * x->kernel_s, 2 * fwd + 8 * x->kernel_s};
}

static struct cost elementwise(const struct ctx *x, double bytes)
{
    double factor = x->c->elem[x->job->fw];
    if (x->job->unfused_norm && x->job->fw != FW_FUSED) factor *= x->c->elem_unfused;
    double fwd = factor * bytes / x->hbm_Bps;
    return (struct cost){fwd, 2 * fwd};
}

/* Element-wise bytes of the attention block and norms, and of an MLP that is `ffn` wide. */
static double block_bytes(const struct ctx *x)
{
    double split = x->job->sp ? x->tp : 1;
    return x->value_B * x->tokens *
           (10.0 * x->s->hidden / split + 2 * (x->q_dim + x->kv_width / 2) / x->tp);
}

static double mlp_bytes(const struct ctx *x, double tokens, double ffn)
{
    return x->value_B * tokens * (x->s->gated ? 3 : 2) * ffn;
}

static struct cost mlp(const struct ctx *x, double ffn, struct cost *element)
{
    double h = x->s->hidden, up = x->s->gated ? 2 : 1;
    return sum(linear(x, x->tokens, floor(up * ffn / x->tp), h, true, 1, element),
               linear(x, x->tokens, h, ffn / x->tp, true, 1, element));
}

double cost_nic_Bps(const struct job *job, const struct constants *c)
{
    return job->nic_Bps * c->nic_eff[job->fabric];
}

double cost_group_Bps(const struct job *job, const struct constants *c, uint64_t stride, uint64_t n)
{
    double nvlink = job->dev.ring_Bps * c->nvlink_eff;
    if (stride * n <= job->domain) return nvlink;
    uint64_t sharing = job->domain / stride; /* members of the group in one domain */
    return fmin(nvlink, cost_nic_Bps(job, c) * (double)(sharing > 1 ? sharing : 1));
}

static struct cost tp_exposed(const struct ctx *x)
{
    const struct job *job = x->job;
    if (job->tp < 2) return (struct cost){0, 0};
    double rate = cost_group_Bps(job, x->c, job_tp_stride(job), job->tp);
    double bytes = x->value_B * x->tokens * x->s->hidden;
    double one = 2 * (x->tp - 1) / x->tp * bytes / rate + 2 * x->c->tp_lat_us * 1e-6;
    if (job_tp_stride(job) * job->tp > job->domain) one += 2 * x->c->pp_lat_us * 1e-6;
    double share = job->tp_overlap ? x->c->tp_exposed_overlap : x->c->tp_exposed[job->fw];
    return (struct cost){2 * one * share, 2 * one * share * (job->sp ? 1.25 : 1)};
}

static struct cost cp_exposed(const struct ctx *x, struct cost attention)
{
    const struct job *job = x->job;
    const struct constants *c = x->c;
    if (job->cp < 2) return (struct cost){0, 0};
    double rate = cost_group_Bps(job, c, job_cp_stride(job), job->cp),
           lat = c->cp_lat_us * 1e-6 * job->cp;
    double all = job->cp;
    if (job->ulysses) { /* four all-to-alls of q, k, v, out; nothing hides them */
        double bytes =
            x->value_B * x->tokens * (2 * x->q_dim + x->kv_width) / x->tp * (all - 1) / all;
        return (struct cost){bytes / rate + lat, bytes / rate + lat};
    }
    double t = x->value_B * x->tokens * x->kv_width / x->tp * (all - 1) / rate;
    return (struct cost){fmax(0, t - c->cp_hidden * attention.fwd) + c->cp_exposed * t + lat,
                         fmax(0, 2 * t - c->cp_hidden * attention.bwd) + 2 * c->cp_exposed * t +
                             2 * lat};
}

/* Dispatch and combine of the tokens of a rank, `each` = tokens it routes. */
static struct cost ep_exposed(const struct ctx *x, double each)
{
    const struct job *job = x->job;
    const struct constants *c = x->c;
    if (job->ep < 2) return (struct cost){0, 0};
    double k = x->s->topk, h = x->s->hidden, bytes = x->value_B * each * k * h, t;
    double span = (double)job->ep * job->etp, nvlink = job->dev.ring_Bps * c->nvlink_eff;
    if (span <= job->domain) {
        t = bytes * (job->ep - 1.0) / job->ep / (nvlink * c->ep_eff_nvlink);
    } else {
        double domains = span / job->domain,
               nic = cost_nic_Bps(job, c) * c->ep_eff_nic / job->oversubscribed;
        if (job->ep_dedup) { /* a token crosses once per other domain that it needs */
            double others = domains * (1 - pow(1 - 1 / domains, k)) - 1;
            t = fmax(x->value_B * each * h * fmax(others, 0) / nic,
                     bytes / (nvlink * c->ep_eff_nvlink));
        } else {
            t = bytes * (domains - 1) / domains / nic;
        }
    }
    double share = job->ep_overlap ? c->ep_exposed_overlap : c->ep_exposed;
    double one = 2 * t * share + c->ep_lat_us * 1e-6;
    return (struct cost){one, one};
}

/* Parts of a layer that a recomputation may repeat. */
struct repeat {
    struct layer_cost *layer;
    double mlp_fwd, mla_up_fwd, linears_fwd;
    double layers; /* of a virtual stage */
};

static double recompute_cost(const struct ctx *x, const struct repeat *r)
{
    const struct job *job = x->job;
    double whole = layer_total(r->layer).fwd;
    if (job->recompute == RC_NONE) return 0;
    if (job->recompute == RC_FULL) {
        double share = job->rc_blocks ? fmin(1, job->rc_blocks / r->layers) : 1;
        return whole * (job->rc_modules & RCM_HALF ? .5 : 1) * share;
    }
    const struct {
        unsigned module;
        double seconds;
    } again[] = {
        {RCM_CORE_ATTN, r->layer->attention.fwd},
        {RCM_MLP, r->mlp_fwd},
        {RCM_MLP_PART, .6 * r->mlp_fwd},
        {RCM_MLA_UP, r->mla_up_fwd},
        {RCM_NORM, .3 * r->layer->element.fwd},
        {RCM_OPS, r->layer->element.fwd + .5 * r->linears_fwd},
        {RCM_HALF, .5 * whole},
        {RCM_SAVE_DOT, r->layer->element.fwd},
        {RCM_THIRD, whole / 3},
    };
    double t = 0;
    for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
        if (job->rc_modules & again[i].module) t += again[i].seconds;
    }
    return t;
}

struct cost layer_total(const struct layer_cost *l)
{
    struct cost t = sum(sum(sum(l->gemm, l->attention), sum(l->element, l->tp)),
                        sum(sum(l->cp, l->ep), l->launch));
    t.bwd += l->recompute;
    return t;
}

/* The host needs `floor_us` for the launches of a layer: what it adds where the GPU is not much
 * slower. */
static void add_floor(const struct ctx *x, struct layer_cost *l, double floor_us)
{
    double f = floor_us * 1e-6 * x->host, g = f * (x->job->recompute == RC_FULL ? 1.8 : 1.2);
    struct cost t = layer_total(l);
    l->launch.fwd += pow(pow(t.fwd, 4) + pow(f, 4), .25) - t.fwd;
    l->launch.bwd += pow(pow(t.bwd, 4) + pow(g, 4), .25) - t.bwd;
}

static double layers_of_chunk(const struct job *job)
{
    return (double)job->shape.layers / ((double)job->pp * job->vpp);
}

struct layer_cost cost_dense_layer(const struct job *job, const struct constants *c)
{
    struct ctx x = ctx_of(job, c);
    struct layer_cost l = {0};
    double up;
    struct cost around = attention_linears(&x, &l.element, &up);
    struct cost inner = mlp(&x, job->shape.ffn, &l.element);
    l.gemm = sum(sum(around, inner), adapters(&x));
    l.attention = attention_core(&x);
    struct cost el =
        elementwise(&x, block_bytes(&x) + mlp_bytes(&x, x.tokens, job->shape.ffn) / x.tp);
    struct repeat r = {.layer = &l,
                       .mlp_fwd = inner.fwd,
                       .mla_up_fwd = up,
                       .linears_fwd = l.gemm.fwd + l.element.fwd,
                       .layers = layers_of_chunk(job)};
    l.element = sum(l.element, el);
    l.tp = tp_exposed(&x);
    l.cp = cp_exposed(&x, l.attention);
    l.recompute = recompute_cost(&x, &r);
    add_floor(&x, &l, c->layer_us[job->fw]);
    return l;
}

struct layer_cost cost_moe_layer(const struct job *job, const struct constants *c)
{
    struct ctx x = ctx_of(job, c);
    const struct shape *s = &job->shape;
    struct layer_cost l = {0};
    double up, h = s->hidden, mats = s->gated ? 2 : 1, etp = job->etp;
    double mine = x.tokens / x.tp;        /* tokens that this rank routes */
    double tokens = mine * s->topk * etp; /* rows its experts see when balanced */
    double experts = fmax(1, floor((double)s->experts / job->ep));
    double rows = fmax(1, rint(tokens / experts));
    struct cost around = attention_linears(&x, &l.element, &up), fp8 = {0, 0};
    struct cost inner =
        sum(linear(&x, rows, floor(mats * s->expert_ffn / etp), h, true, experts, &fp8),
            linear(&x, rows, h, s->expert_ffn / etp, true, experts, &fp8));
    inner = scaled(inner, c->moe_gemm);
    l.element = sum(l.element, scaled(fp8, c->moe_gemm));
    double bytes = mlp_bytes(&x, tokens, s->expert_ffn) / etp;
    if (s->sink_attention) { /* clamped SwiGLU with bias: many operators, fewer in a whole graph */
        bytes *= 1 + (c->sink_act - 1) * (job->graphs == GRAPHS_FULL ? c->graphs_full : 1);
    }
    bytes += block_bytes(&x) + x.value_B * mine * s->topk * h * c->moe_permute;
    struct cost shared = {0, 0};
    if (s->shared_ffn) {
        shared = mlp(&x, s->shared_ffn, &l.element);
        bytes += mlp_bytes(&x, x.tokens, s->shared_ffn) / x.tp;
    }
    struct cost router = linear(&x, x.tokens / (job->sp ? x.tp : 1), s->experts, h, false, 1, &fp8);
    l.gemm = sum(sum(sum(around, inner), sum(shared, router)), adapters(&x));
    l.attention = attention_core(&x);
    struct repeat r = {.layer = &l,
                       .mlp_fwd = inner.fwd,
                       .mla_up_fwd = up,
                       .linears_fwd = around.fwd + inner.fwd,
                       .layers = layers_of_chunk(job)};
    l.element = sum(l.element, elementwise(&x, bytes));
    l.tp = tp_exposed(&x);
    l.cp = cp_exposed(&x, l.attention);
    l.ep = ep_exposed(&x, mine);
    double fixed = c->moe_layer_us * 1e-6 * x.host;
    l.launch = (struct cost){fixed, 2 * fixed};
    l.recompute = recompute_cost(&x, &r);
    add_floor(&x, &l, c->moe_host_us);
    return l;
}

struct layer_cost cost_head(const struct job *job, const struct constants *c)
{
    struct ctx x = ctx_of(job, c);
    struct layer_cost l = {0};
    double columns = floor(job->shape.vocab / x.tp);
    l.gemm = linear(&x, x.tokens, columns, job->shape.hidden, false, 1, &l.element);
    double traffic = x.tokens * job->shape.vocab / x.tp * c->loss_traffic / x.hbm_Bps;
    l.element = sum(l.element, (struct cost){4 * traffic, 6 * traffic});
    return l;
}

struct layer_cost cost_embedding(const struct job *job, const struct constants *c)
{
    struct ctx x = ctx_of(job, c);
    double t = 4 * x.tokens * job->shape.hidden / x.hbm_Bps;
    return (struct layer_cost){.element = {t, 2 * t}};
}

struct flops cost_flops_per_token(const struct job *job)
{
    const struct shape *s = &job->shape;
    struct param_counts n = job_params(job);
    double moe = s->experts ? (double)s->layers - s->dense_layers : 0;
    double dense = (double)s->layers - moe, used = s->experts ? (double)s->topk / s->experts : 0;
    double head = s->kv_lora ? ((double)s->nope_dim + s->rope_dim + s->v_dim) / 2 : s->head_dim;
    double seq = (double)job->seq, share = 1;
    if (s->window) share = 1 - s->window_share * (1 - fmin(1, 2.0 * s->window / seq));
    return (struct flops){
        .linear = 2 * (dense * n.dense_layer + moe * (n.moe_shared + n.moe_experts * used)),
        .logits = 2.0 * s->hidden * s->vocab,
        .attention = 4 * seq * s->heads * head * s->layers * share,
    };
}
