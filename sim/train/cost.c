/* SPDX-License-Identifier: Apache-2.0
 * Costs of a layer. A matrix product runs at peak x efficiency x tile quantisation x K saturation,
 * or at the memory's rate if that is slower; everything else is bytes over bandwidth plus fixed
 * costs. The constants and where they come from are in data/constants.csv. */
#include "train/cost.h"

#include <math.h>

double cost_host(const struct job *job, const struct constants *c)
{
    const double left[] = {1, c->graphs_partial, c->graphs_full};
    return left[job->graphs] * (job->dev.grace ? c->host_grace : 1);
}

struct cost_base cost_base(const struct job *job, const struct constants *c,
                           const double graphs_left[3])
{
    const struct shape *s = &job->shape;
    double host = graphs_left[job->graphs] * (job->dev.grace ? c->host_grace : 1);
    struct cost_base x = {
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
    x.sink_act =
        1 + (c->sink_act - 1) * (job->graphs == GRAPHS_FULL ? graphs_left[GRAPHS_FULL] : 1);
    if (s->kv_lora) { /* q and k are wider than v: the mean counts */
        x.head_dim = ((double)s->nope_dim + s->rope_dim + s->v_dim) / 2;
        x.kv_width = 2.0 * s->heads * x.head_dim;
    } else {
        x.kv_width = 2 * fmax(s->kv_heads, x.tp) * s->head_dim; /* at least one head a rank */
    }
    x.q_dim = s->heads * x.head_dim;
    return x;
}

static struct cost_base closed_base(const struct job *job, const struct constants *c)
{
    const double left[] = {1, c->graphs_partial, c->graphs_full};
    struct cost_base x = cost_base(job, c, left);
    x.rows_align = true;
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
static double gemm_rate(const struct cost_base *x, bool narrow, double *bytes)
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

double cost_peak(const struct job *job, bool narrow)
{
    if (!narrow || !is_narrow(job)) return plain_peak(job);
    return job->dev.flops8 * (job->precision == PREC_FP4 ? 2 : 1);
}

static const char *const qkv_names[] = {"qkv", "qkv dx", "qkv dw"};
static const char *const latent_names[] = {"latents", "latents dx", "latents dw"};
static const char *const q_names[] = {"q", "q dx", "q dw"};
static const char *const kv_names[] = {"kv", "kv dx", "kv dw"};
static const char *const o_names[] = {"o", "o dx", "o dw"};
static const char *const up_names[] = {"up", "up dx", "up dw"};
static const char *const down_names[] = {"down", "down dx", "down dw"};
static const char *const router_names[] = {"router", "router dx", "router dw"};
static const char *const expert_up_names[] = {"experts up", "experts up dx", "experts up dw"};
static const char *const expert_down_names[] = {"experts down", "experts down dx",
                                                "experts down dw"};
static const char *const logits_names[] = {"logits", "logits dx", "logits dw"};

static struct cost_product product_of(const char *const *name, double m, double n, double k)
{
    return (struct cost_product){name, floor(m), floor(n), floor(k), 0, 1, true, 1, 1};
}

/* Rows in memory whose lengths tensor cores do not like. They are n or k long in all three forms;
 * how many there are does not matter, but to the closed form. */
static bool is_misaligned(const struct cost_base *x, const struct cost_product *p,
                          const struct cost_gemm *g)
{
    double n = x->rows_align ? g->n : p->n, k = x->rows_align ? g->k : p->k;
    return (fmod(n, 64) != 0 || fmod(k, 64) != 0) && fmin(n, k) > 64;
}

struct cost_gemm cost_gemm(const struct cost_base *x, const struct cost_product *p,
                           enum cost_form form)
{
    const struct cost_gemm forms[] = {
        {.m = p->m, .n = p->n, .k = p->k},
        {.m = p->m, .n = p->k, .k = p->n},
        {.m = p->n, .n = p->k, .k = p->m},
    };
    struct cost_gemm g = forms[form];
    double m = g.m, n = g.n, k = g.k, count = p->count, t = 0;
    double tiled = form != COST_WEIGHT && p->even > 0 ? p->even : m;
    if (m > 0 && n > 0 && k > 0) {
        double bytes, rate = gemm_rate(x, p->narrow, &bytes);
        rate *= pow(tile_quantisation(tiled, n, count, x->job->dev.sms), x->c->quant_exp);
        if (is_misaligned(x, p, &g)) rate *= x->c->misaligned;
        rate *= k / (k + x->c->k0 * (bytes == 1 ? 2 : 1));
        g.bytes = count * (bytes * (m * k + n * k) + x->value_B * m * n);
        double memory = g.bytes / x->hbm_Bps;
        t = fmax(2 * m * n * k * count / rate, memory);
        g.memory = t <= memory;
    }
    g.seconds = (t + x->kernel_s) * p->factor;
    return g;
}

struct cost_beside cost_beside(const struct cost_base *x, const struct cost_product *p)
{
    struct cost_beside t = {{0, 0}, {0, 0}};
    if (p->narrow && is_narrow(x->job)) {
        double per = x->c->fp8_traffic * 4 * p->count / x->hbm_Bps;
        t.quantise = scaled((struct cost){per * p->m * p->k, per * p->m * p->n}, p->factor);
    }
    if (x->job->qlora) { /* 4-bit weights are read and written as 16 bits before each use */
        double unpack = 2.5 * p->n * p->k * p->count / x->hbm_Bps;
        t.unpack = scaled((struct cost){unpack, unpack}, p->factor);
    }
    return t;
}

/* A linear layer, its factor aside: forward; gradients of input and weight. The traffic beside it
 * is added to *element. */
static struct cost linear(const struct cost_base *x, const struct cost_product *product,
                          struct cost *element)
{
    struct cost_product plain = *product, *p = &plain;
    plain.factor = 1;
    struct cost_beside beside = cost_beside(x, p);
    *element = sum(sum(*element, beside.quantise), beside.unpack);
    struct cost t = {cost_gemm(x, p, COST_FORWARD).seconds, cost_gemm(x, p, COST_INPUT).seconds};
    if (!x->job->lora_rank) { /* a frozen weight needs no gradient */
        t.bwd += cost_gemm(x, p, COST_WEIGHT).seconds;
    }
    return t;
}

struct cost cost_adapters(const struct cost_base *x)
{
    /* Two thin products each, beside the frozen projections of q and v. */
    if (!x->job->lora_rank) return (struct cost){0, 0};
    double flops = 2 * x->tokens * job_lora_params(x->job) / x->tp, peak = plain_peak(x->job);
    double t = flops / (peak * .1) + 4 * x->kernel_s; /* thin: a tenth of the peak at most */
    return (struct cost){t, 2 * t};
}

size_t cost_attention_products(const struct cost_base *x, struct cost_product *list, size_t *up,
                               size_t *nup)
{
    const struct shape *s = x->s;
    double m = x->tokens, h = s->hidden, tp = x->tp, a = s->heads;
    *up = *nup = 0;
    if (!s->kv_lora) {
        double columns = (a + 2 * fmax(s->kv_heads, tp)) * s->head_dim;
        list[0] = product_of(qkv_names, m, columns / tp, h);
        list[0].matrices = 3;
        list[1] = product_of(o_names, m, h, a * s->head_dim / tp);
        return 2;
    }
    double qk = (double)s->nope_dim + s->rope_dim, down = (double)s->kv_lora + s->rope_dim;
    double q_from = s->q_lora ? s->q_lora : h;
    *up = 1, *nup = 2;
    list[0] = product_of(latent_names, m, (s->q_lora ? s->q_lora : 0) + down, h);
    list[1] = product_of(q_names, m, a * qk / tp, q_from);
    list[2] = product_of(kv_names, m, a * ((double)s->nope_dim + s->v_dim) / tp, s->kv_lora);
    list[3] = product_of(o_names, m, h, a * s->v_dim / tp);
    return 4;
}

/* The projections around attention; *up gets MLA's two up-projections (forward seconds). */
static struct cost attention_linears(const struct cost_base *x, struct cost *element, double *up)
{
    struct cost_product list[COST_PRODUCTS];
    struct cost all = {0, 0};
    size_t first, nup, n = cost_attention_products(x, list, &first, &nup);
    *up = 0;
    for (size_t i = 0; i < n; i++) {
        struct cost one = linear(x, &list[i], element);
        if (i >= first && i < first + nup) *up += one.fwd;
        all = sum(all, one);
    }
    return all;
}

double cost_window(double window, double keys)
{
    return fmin(1, 2.0 * window / keys);
}

/* Mean share of the keys that a query of a layer sees, of the causal half = 1. */
static double window_share(const struct cost_base *x)
{
    const struct shape *s = x->s;
    if (!s->window || s->window_share <= 0) return 1;
    return 1 - s->window_share * (1 - cost_window(s->window, (double)x->job->seq));
}

/* FLOP of all scores and values, no mask. */
static double attention_full(const struct cost_base *x, double keys, double share)
{
    const struct job *job = x->job;
    double seq = (double)job->seq, b = (double)job->micro_batch;
    return 4 * b * seq * (keys / job->cp) * x->q_dim / x->tp * share;
}

double cost_attention_flops(const struct cost_base *x, double keys, double share)
{
    return attention_full(x, keys, share) / (x->job->attn == ATTN_UNFUSED ? 1 : 2);
}

struct cost cost_attention(const struct cost_base *x, double keys, double share)
{
    const struct constants *c = x->c;
    const struct job *job = x->job;
    double seq = (double)job->seq, b = (double)job->micro_batch;
    double full = attention_full(x, keys, share);
    if (job->attn != ATTN_UNFUSED) {
        double eff = c->attn_eff[job->attn][job->dev.cls] *
                     pow(x->head_dim / 128, c->head_dim_exp) * keys / (keys + c->attn_s0) / x->slow;
        double fwd = full / 2 / (plain_peak(job) * eff);
        return (struct cost){fwd + x->kernel_s, fwd * 2.5 / c->attn_bwd_eff + x->kernel_s};
    }
    double scores = b * x->s->heads / x->tp * seq * keys / job->cp;
    double eff = c->gemm_eff[job->dev.cls] / x->slow * x->head_dim / (x->head_dim + c->unfused_k0) *
                 (x->s->head_dim % 8 ? c->unfused_odd : 1);
    double fwd = full / (plain_peak(job) * eff) + c->unfused_traffic * 13 * scores / x->hbm_Bps;
    return (struct cost){fwd + 4 * x->kernel_s, 2 * fwd + 8 * x->kernel_s};
}

double cost_element_factor(const struct cost_base *x, bool norm)
{
    double factor = x->c->elem[x->job->fw];
    if (x->job->unfused_norm && x->job->fw != FW_FUSED && norm) factor *= x->c->elem_unfused;
    return factor;
}

struct cost cost_element(const struct cost_base *x, double bytes, bool norm)
{
    double fwd = cost_element_factor(x, norm) * bytes / x->hbm_Bps;
    return (struct cost){fwd, 2 * fwd};
}

double cost_norm_width(const struct cost_base *x)
{
    double split = x->job->sp ? x->tp : 1;
    return 10.0 * x->s->hidden / split;
}

double cost_qkv_width(const struct cost_base *x)
{
    return 2 * (x->q_dim + x->kv_width / 2) / x->tp;
}

/* Element-wise bytes of the attention block and norms. */
static double block_bytes(const struct cost_base *x)
{
    return x->value_B * x->tokens * (cost_norm_width(x) + cost_qkv_width(x));
}

double cost_mlp_bytes(const struct cost_base *x, double tokens, double ffn)
{
    return x->value_B * tokens * (x->s->gated ? 3 : 2) * ffn;
}

void cost_mlp_products(const struct cost_base *x, double ffn, struct cost_product list[2])
{
    double h = x->s->hidden, up = x->s->gated ? 2 : 1;
    list[0] = product_of(up_names, x->tokens, floor(up * ffn / x->tp), h);
    list[0].matrices = x->s->gated ? 2 : 1;
    list[1] = product_of(down_names, x->tokens, h, ffn / x->tp);
}

static struct cost both(const struct cost_base *x, const struct cost_product list[2],
                        struct cost *element)
{
    struct cost down = linear(x, &list[1], element);
    return sum(linear(x, &list[0], element), down);
}

static struct cost mlp(const struct cost_base *x, double ffn, struct cost *element)
{
    struct cost_product list[2];
    cost_mlp_products(x, ffn, list);
    return both(x, list, element);
}

struct cost_experts cost_experts(const struct cost_base *x, double load)
{
    const struct shape *s = x->s;
    double h = s->hidden, mats = s->gated ? 2 : 1, etp = x->job->etp;
    struct cost_experts e = {.routed = x->tokens / x->tp};
    e.tokens = e.routed * s->topk * etp * load;
    double experts = fmax(1, floor((double)s->experts / x->job->ep));
    double rows = fmax(1, rint(e.tokens / experts));
    e.products[0] = product_of(expert_up_names, rows, floor(mats * s->expert_ffn / etp), h);
    e.products[1] = product_of(expert_down_names, rows, h, s->expert_ffn / etp);
    for (int i = 0; i < 2; i++) {
        e.products[i].count = experts;
        if (load != 1) e.products[i].even = fmax(1, rint(e.tokens / load / experts));
        e.products[i].factor = x->c->moe_gemm;
    }
    e.products[0].matrices = s->gated ? 2 : 1;
    e.router = product_of(router_names, x->tokens / (x->job->sp ? x->tp : 1), s->experts, h);
    e.router.narrow = false;
    e.act_bytes = cost_mlp_bytes(x, e.tokens, s->expert_ffn) / etp;
    /* clamped SwiGLU with bias: many operators, fewer in a whole graph */
    if (s->sink_attention) e.act_bytes *= x->sink_act;
    e.permute_bytes = x->value_B * e.routed * s->topk * h * x->c->moe_permute;
    return e;
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

static struct cost tp_exposed(const struct cost_base *x)
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

static struct cost cp_exposed(const struct cost_base *x, struct cost attention)
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

static double choose(double n, double k)
{
    double c = k < 0 || k > n ? 0 : 1;
    for (double i = 0; i < k && c > 0; i++)
        c *= (n - i) / (k - i);
    return c;
}

/* Probability that none of `k` different ones of `all` is among `some` of them. */
static double missed(double all, double some, double k)
{
    double p = 1;
    for (double i = 0; i < k; i++)
        p *= fmax(0, all - some - i) / (all - i);
    return p;
}

static double common_divisor(double a, double b)
{
    return b < 1 ? a : common_divisor(b, fmod(a, b));
}

double cost_touched(const struct job *job, double parts)
{
    const struct shape *s = &job->shape;
    double k = s->topk, experts = fmax(k, s->experts), size = experts / parts;
    if (job->experts_dealt) /* runs of k, one behind the other */
        return size < 1 ? k : 1 + (k - common_divisor(k, floor(size))) / floor(size);
    bool limited = s->groups > 1 && s->group_topk > 0 && s->group_topk < s->groups;
    double groups = limited ? s->groups : 1, chosen = limited ? s->group_topk : 1;
    double inside = fmax(1, floor(groups / parts)), open = fmax(k, experts * chosen / groups);
    double none = 0, each = size / inside; /* a part holds so many groups, or a piece of one */
    for (double j = 0; j <= fmin(inside, chosen); j++) {
        double odds = choose(inside, j) * choose(groups - inside, chosen - j);
        none += odds / choose(groups, chosen) * missed(open, fmin(each * j, open), k);
    }
    return parts * (1 - none);
}

/* Dispatch and combine of the tokens of a rank, `each` = tokens it routes. */
static struct cost ep_exposed(const struct cost_base *x, double each)
{
    const struct job *job = x->job;
    const struct constants *c = x->c;
    if (job->ep < 2) return (struct cost){0, 0};
    double k = x->s->topk, h = x->s->hidden, bytes = x->value_B * each * k * h, t;
    double span = (double)job->ep * job->etp, nvlink = job->dev.ring_Bps * c->nvlink_eff;
    if (span <= job->domain) {
        double sent = job->ep_dedup ? cost_touched(job, job->ep) / k : 1;
        t = sent * bytes * (job->ep - 1.0) / job->ep / (nvlink * c->ep_eff_nvlink);
    } else {
        double domains = span / job->domain,
               nic = cost_nic_Bps(job, c) * c->ep_eff_nic / job->oversubscribed;
        if (job->ep_dedup) { /* a token crosses once per other domain that it needs */
            double others = cost_touched(job, domains) * (1 - 1 / domains);
            t = x->value_B * each * h *
                fmax(others / nic, cost_touched(job, job->ep) / (nvlink * c->ep_eff_nvlink));
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
    double mlp_fwd, experts_fwd, moe_fwd, mla_up_fwd, linears_fwd; /* of an MLP; from a router on */
    double norm_fwd, act_fwd;
    double layers; /* of a virtual stage */
};

static double recompute_cost(const struct cost_base *x, const struct repeat *r)
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
        {RCM_MLP_PART, .6 * (r->mlp_fwd + r->experts_fwd)},
        {RCM_MLA_UP, r->mla_up_fwd},
        {RCM_NORM, r->norm_fwd},
        {RCM_ACT, r->act_fwd},
        {RCM_MOE, r->moe_fwd},
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
static void add_floor(const struct cost_base *x, struct layer_cost *l, double floor_us)
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

static double norms_forward(const struct cost_base *x)
{
    return cost_element(x, x->value_B * x->tokens * cost_norm_width(x), true).fwd;
}

struct layer_cost cost_dense_layer(const struct job *job, const struct constants *c)
{
    struct cost_base x = closed_base(job, c);
    struct layer_cost l = {0};
    double up;
    struct cost around = attention_linears(&x, &l.element, &up);
    struct cost inner = mlp(&x, job->shape.ffn, &l.element);
    l.gemm = sum(sum(around, inner), cost_adapters(&x));
    l.attention = cost_attention(&x, (double)job->seq, window_share(&x));
    double act_bytes = cost_mlp_bytes(&x, x.tokens, job->shape.ffn) / x.tp;
    struct cost el = cost_element(&x, block_bytes(&x) + act_bytes, true);
    struct repeat r = {.layer = &l,
                       .mlp_fwd = inner.fwd,
                       .mla_up_fwd = up,
                       .linears_fwd = l.gemm.fwd + l.element.fwd,
                       .norm_fwd = norms_forward(&x),
                       .act_fwd = cost_element(&x, act_bytes, true).fwd,
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
    struct cost_base x = closed_base(job, c);
    const struct shape *s = &job->shape;
    struct layer_cost l = {0};
    double up;
    struct cost_experts e = cost_experts(&x, 1);
    struct cost around = attention_linears(&x, &l.element, &up), beside = {0, 0}, rest = {0, 0};
    struct cost inner = scaled(both(&x, e.products, &beside), c->moe_gemm);
    l.element = sum(l.element, scaled(beside, c->moe_gemm));
    double bytes = e.act_bytes;
    bytes += block_bytes(&x) + e.permute_bytes;
    struct cost shared = {0, 0};
    if (s->shared_ffn) {
        shared = mlp(&x, s->shared_ffn, &l.element);
        bytes += cost_mlp_bytes(&x, x.tokens, s->shared_ffn) / x.tp;
    }
    struct cost router = linear(&x, &e.router, &rest);
    l.gemm = sum(sum(sum(around, inner), sum(shared, router)), cost_adapters(&x));
    l.attention = cost_attention(&x, (double)job->seq, window_share(&x));
    struct repeat r = {.layer = &l,
                       .experts_fwd = inner.fwd,
                       .mla_up_fwd = up,
                       .linears_fwd = around.fwd + inner.fwd,
                       .norm_fwd = norms_forward(&x),
                       .act_fwd = cost_element(&x, e.act_bytes, true).fwd,
                       .layers = layers_of_chunk(job)};
    l.element = sum(l.element, cost_element(&x, bytes, true));
    l.tp = tp_exposed(&x);
    l.cp = cp_exposed(&x, l.attention);
    l.ep = ep_exposed(&x, e.routed);
    double fixed = c->moe_layer_us * 1e-6 * x.host;
    l.launch = (struct cost){fixed, 2 * fixed};
    r.moe_fwd = inner.fwd + shared.fwd + router.fwd + beside.fwd * c->moe_gemm + l.ep.fwd + fixed +
                cost_element(&x, bytes - block_bytes(&x), true).fwd;
    l.recompute = recompute_cost(&x, &r);
    add_floor(&x, &l, c->moe_host_us);
    return l;
}

struct cost_product cost_logits(const struct cost_base *x)
{
    struct cost_product p =
        product_of(logits_names, x->tokens, floor(x->s->vocab / x->tp), x->s->hidden);
    p.narrow = false;
    return p;
}

struct cost cost_loss(const struct cost_base *x)
{
    double traffic = x->tokens * x->s->vocab / x->tp * x->c->loss_traffic / x->hbm_Bps;
    return (struct cost){4 * traffic, 6 * traffic};
}

struct cost cost_lookup(const struct cost_base *x)
{
    double t = 4 * x->tokens * x->s->hidden / x->hbm_Bps;
    return (struct cost){t, 2 * t};
}

struct layer_cost cost_head(const struct job *job, const struct constants *c)
{
    struct cost_base x = closed_base(job, c);
    struct layer_cost l = {0};
    struct cost_product logits = cost_logits(&x);
    l.gemm = linear(&x, &logits, &l.element);
    l.element = sum(l.element, cost_loss(&x));
    return l;
}

struct layer_cost cost_embedding(const struct job *job, const struct constants *c)
{
    struct cost_base x = closed_base(job, c);
    return (struct layer_cost){.element = cost_lookup(&x)};
}

struct flops cost_flops_per_token(const struct job *job)
{
    const struct shape *s = &job->shape;
    struct param_counts n = job_params(job);
    double moe = s->experts ? (double)s->layers - s->dense_layers : 0;
    double dense = (double)s->layers - moe, used = s->experts ? (double)s->topk / s->experts : 0;
    double head = s->kv_lora ? ((double)s->nope_dim + s->rope_dim + s->v_dim) / 2 : s->head_dim;
    double seq = (double)job->seq, share = 1;
    if (job->packed_seq > 0) seq = fmin(seq, job->packed_seq);
    if (s->window) share = 1 - s->window_share * (1 - fmin(1, 2.0 * s->window / seq));
    return (struct flops){
        .linear = 2 * (dense * n.dense_layer + moe * (n.moe_shared + n.moe_experts * used)),
        .logits = 2.0 * s->hidden * s->vocab,
        .attention = 4 * seq * s->heads * head * s->layers * share,
    };
}
