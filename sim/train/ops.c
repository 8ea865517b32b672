/* SPDX-License-Identifier: Apache-2.0
 * Layers as lists of operators. Times are those of the closed form (train/cost.h), one operator at
 * a time; what moves between ranks is a call for the network. A maker holds the place where the
 * data stands: each operator that is put waits for it, and is it from then on. */
#include "train/ops.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "train/cost.h"

enum { EP_PIECES = 4 }; /* of tokens that are exchanged beside the experts' work */

/* What a recomputation takes or leaves. */
enum op_class {
    CLASS_GEMM,
    CLASS_MLP,
    CLASS_UP,
    CLASS_CORE,
    CLASS_NORM,
    CLASS_ACT,
    CLASS_ELEMENT, /* the rest of it */
    CLASS_REST,
    NCLASSES
};

/* Kernels that a host issues in a forward pass, as profiles of such frameworks show them: an eager
 * one writes a norm as powers, means and products, keeps q, k, v, and gate and up apart, and turns
 * halves around one by one; a fused one has a kernel each, and some that copy and cast. Backward:
 * as many per gradient of a product, twice of the others. */
static const struct style {
    uint8_t norm, singles; /* with residual and dropout: fused; as single operators */
    uint8_t product;       /* a product, with what copies and casts for it */
    bool apart;            /* a product per weight */
    uint8_t rope, flash, unfused, act, sink_act;
    uint8_t quantise, route, permute, loss, lookup;
} styles[NFW_CLASSES] = {
    [FW_LEGACY] = {4, 8, 3, false, 4, 4, 8, 2, 16, 3, 12, 8, 14, 4},
    [FW_EAGER] = {4, 8, 2, true, 12, 4, 8, 3, 16, 3, 12, 8, 14, 4},
    [FW_FUSED] = {3, 3, 2, false, 4, 3, 8, 2, 12, 2, 8, 6, 8, 3},
};

struct maker {
    struct ops *ops;
    const struct job *job;
    const struct style *style;
    struct cost_base x;
    enum pass pass;
    double keys, share;  /* what attention sees in this layer */
    int32_t head;        /* the operator whose result goes on; -1: none */
    const double *again; /* in a recomputation: share of each class that is done again */
};

/* Host costs that are left by enum graphs: a captured graph has none. */
static struct cost_base base_of(const struct job *job, const struct constants *c)
{
    const double left[] = {1, c->graphs_partial, 0};
    struct cost_base x = cost_base(job, c, left);
    if (job->graphs == GRAPHS_FULL) x.sink_act = c->sink_graph;
    return x;
}

double ops_issue_s(const struct job *job, const struct constants *c)
{
    return c->host_us[job->fw] * 1e-6 * base_of(job, c).host;
}

double ops_traffic_s(const struct job *job, const struct constants *c, double bytes)
{
    return bytes / (job->dev.hbm_Bps * c->hbm_eff);
}

double ops_optimizer_s(const struct job *job, const struct constants *c, double owned, double held)
{
    double bytes = 30 * owned * (job->opt_traffic > 0 ? job->opt_traffic : 1);
    if (held > 0) bytes += 6 * held;
    return ops_traffic_s(job, c, c->opt_traffic * bytes);
}

/* ---- putting operators ---- */

static int32_t put(struct maker *m, struct op op, enum op_class class)
{
    double share = m->again ? m->again[class] : 1;
    bool compute = op.lane == OP_COMPUTE;
    if (share <= 0 || (compute && op.seconds <= 0)) return m->head;
    op.after[0] = m->head, op.after[1] = -1;
    if (op.pieces == 0) op.pieces = 1;
    if (m->again) {
        op.again = true;
        if (compute) {
            op.part = PART_RECOMPUTE;
            op.seconds *= share, op.flops *= share, op.bytes *= share;
        }
    }
    struct ops *ops = m->ops;
    MEM_GROW(ops->list, ops->count, ops->cap);
    ops->list[ops->count] = op;
    return m->head = (int32_t)ops->count++;
}

static void also_after(struct maker *m, int32_t op, int32_t before)
{
    struct op *list = m->ops->list;
    if (before >= 0 && op > before && list[op].after[0] != before) list[op].after[1] = before;
}

static void put_element(struct maker *m, const char *name, double bytes, unsigned kernels,
                        enum op_class class)
{
    bool norm = class == CLASS_NORM;
    struct cost t = cost_element(&m->x, bytes, norm);
    bool forward = m->pass == PASS_F || m->again;
    put(m,
        (struct op){.name = name,
                    .part = PART_ELEMENT,
                    .kernels = (uint32_t)(forward ? kernels : 2 * kernels),
                    .seconds = forward ? t.fwd : t.bwd,
                    .bytes = cost_element_factor(&m->x, norm) * bytes * (forward ? 1 : 2),
                    .limit = "memory"},
        class);
}

static void put_traffic(struct maker *m, const char *name, double seconds, unsigned kernels)
{
    put(m,
        (struct op){.name = name,
                    .part = PART_ELEMENT,
                    .kernels = (uint32_t)kernels,
                    .seconds = seconds,
                    .bytes = seconds * m->x.hbm_Bps,
                    .limit = "memory"},
        CLASS_ELEMENT);
}

/* Where piece i of `pieces` begins. */
static double cut(double all, uint32_t i, uint32_t pieces)
{
    return i == pieces ? all : floor(all * i / pieces);
}

/* What the products or casts of several experts cost the host, in operators. Where Python does
 * something for each (a loop over modules; the hook behind the gradient of each weight; a quantiser
 * with a scale of its own) an operator each; where one call loops in C++, as Transformer Engine's
 * grouped linear layer does, each has the library's and the launch's part of an operator left: 2 to
 * 8 of the 5 to 25 us that PyTorch needs, a quarter to a third. */
static unsigned launches_of(const struct maker *m, const struct cost_product *p, bool python)
{
    return (unsigned)ceil(p->count / (python || m->job->fw != FW_FUSED ? 1 : 4));
}

/* In fp8 before Blackwell, whose blocks of a row have scales of their own, each expert's rows have
 * one. */
static bool scales_tensors(const struct maker *m)
{
    enum dev_class cls = m->job->dev.cls;
    return m->job->precision == PREC_FP8 && cls != DEV_B200 && cls != DEV_B300;
}

/* A weight's gradient joins that of the micro-batches before; the first has none to join. */
static void accumulate(struct maker *m, double weights, unsigned kernels)
{
    double all = (double)job_microbatches(m->job);
    double bytes = m->job->accumulate_B * weights * (all - 1) / all;
    put_traffic(m, "add up", bytes / m->x.hbm_Bps, kernels);
}

/* A form of piece i of a product's rows, with the traffic beside it. Pieces run on streams of their
 * own, so that one fills the multiprocessors that another's last wave leaves: together they take
 * what the product takes, and a kernel's fixed time each. */
static int32_t put_piece(struct maker *m, const struct cost_product *p, enum cost_form form,
                         enum op_class class, uint32_t i, uint32_t pieces)
{
    double rows = cut(p->m, i + 1, pieces) - cut(p->m, i, pieces),
           fixed_s = m->x.kernel_s * p->factor;
    double share = pieces > 1 && p->m > 0 ? rows / p->m : 1;
    bool forward = form == COST_FORWARD;
    if (form != COST_WEIGHT) {
        struct cost_beside beside = cost_beside(&m->x, p);
        double quantise = forward ? beside.quantise.fwd : beside.quantise.bwd;
        put_traffic(m, "quantise", quantise * share,
                    m->style->quantise * launches_of(m, p, scales_tensors(m)));
        double unpack = forward ? beside.unpack.fwd : beside.unpack.bwd;
        put_traffic(m, "unpack", i == 0 ? unpack : 0, 1);
    }
    struct cost_gemm g = cost_gemm(&m->x, p, form);
    if (pieces > 1) g.seconds = (g.seconds - fixed_s) * share + fixed_s;
    unsigned kernels = m->style->product * (m->style->apart ? p->matrices : 1) *
                       launches_of(m, p, form == COST_WEIGHT || scales_tensors(m));
    int32_t op = put(m,
                     (struct op){.name = p->name[form],
                                 .part = PART_GEMM,
                                 .kernels = (uint32_t)kernels,
                                 .seconds = g.seconds,
                                 .flops = 2 * g.m * g.n * g.k * p->count * share,
                                 .peak = cost_peak(m->job, p->narrow),
                                 .bytes = g.bytes * share,
                                 .m = (uint64_t)(pieces == 1 ? g.m : rows),
                                 .n = (uint64_t)g.n,
                                 .k = (uint64_t)g.k,
                                 .count = (uint64_t)p->count,
                                 .limit = fixed_s > g.seconds / 2 ? "launch"
                                          : g.memory              ? "memory"
                                                                  : "compute"},
                     class);
    if (form == COST_WEIGHT) accumulate(m, g.m * g.n * p->count, m->style->apart ? p->matrices : 1);
    return op;
}

static int32_t put_product(struct maker *m, const struct cost_product *p, enum cost_form form,
                           enum op_class class)
{
    return put_piece(m, p, form, class, 0, 1);
}

/* A collective of `bytes`, or one of so many pieces of it, which are steps of its ring. */
static int32_t put_call(struct maker *m, const char *name, enum op_lane lane,
                        const struct fluid_call *whole, double bytes, uint32_t pieces)
{
    static const enum step_part parts[] = {[OP_TP] = PART_TP, [OP_CP] = PART_CP, [OP_EP] = PART_EP};
    struct fluid_call call = *whole;
    if (call.n < 2) return m->head;
    call.bytes = (uint64_t)bytes;
    return put(m,
               (struct op){.name = name,
                           .lane = (uint8_t)lane,
                           .part = (uint8_t)parts[lane],
                           .kernels = 1,
                           .bytes = (double)call.bytes / pieces,
                           .limit = "network",
                           .call = call,
                           .pieces = pieces},
               lane == OP_CP ? CLASS_CORE : CLASS_REST);
}

/* ---- tensor parallelism ---- */

static struct fluid_call tp_call(const struct maker *m, enum coll_id coll)
{
    return (struct fluid_call){
        .coll = coll, .n = m->job->tp, .stride = (uint32_t)job_tp_stride(m->job), .cross = 1};
}

static double hidden_bytes(const struct maker *m)
{
    return m->x.value_B * m->x.tokens * m->x.s->hidden;
}

/* The rows of all ranks; their sum; or a piece of it. Without sequence parallelism every rank holds
 * all rows, so there is nothing to gather, and the sum goes to all. */
static int32_t put_gather(struct maker *m, uint32_t pieces)
{
    if (!m->job->sp) return m->head;
    struct fluid_call call = tp_call(m, COLL_ALLGATHER);
    return put_call(m, "tp gather", OP_TP, &call, hidden_bytes(m), pieces);
}

static int32_t put_sum(struct maker *m, uint32_t pieces)
{
    struct fluid_call call = tp_call(m, m->job->sp ? COLL_REDUCE_SCATTER : COLL_ALLREDUCE);
    const char *name = m->job->sp ? "tp scatter" : "tp reduce";
    return put_call(m, name, OP_TP, &call, hidden_bytes(m), pieces);
}

static uint32_t tiles_of(const struct maker *m)
{
    const struct job *job = m->job;
    if (!job->tp_overlap || job->tp < 2 || m->again) return 1;
    return job->tp_tiles ? job->tp_tiles : job->tp;
}

/* As many pieces as ranks: rows go around the ring, a rank's at a time. */
static bool goes_around(const struct maker *m, uint32_t pieces)
{
    return m->job->sp && pieces > 1 && pieces == m->job->tp;
}

/* What was put from operator `from` on is more pieces of what stands before: one call of the host,
 * which loops without Python, issues them all. */
static void issue_together(struct maker *m, uint32_t from)
{
    for (uint32_t i = from; i < m->ops->count; i++) {
        m->ops->list[i].kernels = 0;
    }
}

/* A product of gathered rows, piece by piece behind its gather; around the ring, each while the
 * rows of the next are on their way. */
static void gather_product(struct maker *m, const struct cost_product *p, enum cost_form form,
                           enum op_class class)
{
    uint32_t pieces = m->job->sp ? tiles_of(m) : 1;
    bool around = goes_around(m, pieces);
    int32_t start = m->head, here = start;
    uint32_t first = 0;
    for (uint32_t i = 0; i < pieces; i++) {
        int32_t next = m->head = start;
        if (!around) here = put_gather(m, pieces);
        if (around && i + 1 < pieces) next = put_gather(m, pieces - 1);
        m->head = here;
        put_piece(m, p, form, class, i, pieces);
        here = next;
        if (i == 0) first = m->ops->count;
    }
    issue_together(m, first);
}

/* A product whose rows are summed over ranks, piece by piece before its sum; around the ring, sums
 * go on as far as they are, and the last one is added to this rank's own. */
static void product_sum(struct maker *m, const struct cost_product *p, enum cost_form form,
                        enum op_class class, uint32_t pieces)
{
    bool around = goes_around(m, pieces);
    int32_t start = m->head, sent = -1, own = -1;
    uint32_t first = 0;
    for (uint32_t i = 0; i < pieces; i++) {
        m->head = start;
        own = put_piece(m, p, form, class, i, pieces);
        if (!around) put_sum(m, pieces);
        if (around && i + 1 < pieces) sent = put_sum(m, pieces - 1);
        if (i == 0) first = m->ops->count;
    }
    issue_together(m, first);
    if (!around) return;
    m->head = own;
    put_traffic(m, "tp add", 3 * hidden_bytes(m) / pieces / m->x.hbm_Bps, 1);
    also_after(m, m->head, sent);
}

static bool makes_weights(const struct maker *m)
{
    return m->pass != PASS_B && !m->job->lora_rank;
}

/* Backward of a product that gathers its rows: the gradient of its input is summed. Its weight's
 * gradient needs the rows gathered again, and runs beside the sum where the framework starts that
 * first. */
static void gather_product_back(struct maker *m, const struct cost_product *p, enum op_class class)
{
    bool weights = makes_weights(m), beside = m->job->sum_beside;
    uint32_t pieces = weights && beside ? 1 : tiles_of(m); /* one hides what the other would */
    int32_t start = m->head, rows = start, sum;
    if (weights) rows = put_gather(m, 1);
    m->head = start;
    if (beside || !weights || pieces > 1) {
        product_sum(m, p, COST_INPUT, class, pieces);
        sum = m->head;
        m->head = start;
        if (weights) also_after(m, put_product(m, p, COST_WEIGHT, class), rows);
        m->head = sum;
        return;
    }
    put_product(m, p, COST_INPUT, class);
    also_after(m, put_product(m, p, COST_WEIGHT, class), rows);
    put_sum(m, 1);
}

/* Backward of a product whose rows were summed: the gradient is gathered. */
static void product_sum_back(struct maker *m, const struct cost_product *p, enum op_class class)
{
    gather_product(m, p, COST_INPUT, class);
    if (makes_weights(m)) put_product(m, p, COST_WEIGHT, class);
}

/* ---- attention ---- */

static void put_core(struct maker *m, bool back, uint32_t pieces)
{
    const struct cost_base *x = &m->x;
    struct cost t = cost_attention(x, m->keys, m->share);
    unsigned flash = m->job->attn == ATTN_UNFUSED ? m->style->unfused : m->style->flash;
    double seconds = back ? t.bwd : t.fwd, flops = cost_attention_flops(x, m->keys, m->share);
    put(m,
        (struct op){.name = back ? "attention back" : "attention",
                    .part = PART_ATTENTION,
                    .kernels = (uint32_t)(back ? 2 * flash : flash),
                    .seconds = (seconds - x->kernel_s) / pieces + x->kernel_s,
                    .flops = flops * (back ? 2 : 1) / pieces,
                    .peak = cost_peak(m->job, false),
                    .bytes = x->value_B * x->tokens * (2 * x->q_dim + x->kv_width) / x->tp *
                             (back ? 2 : 1) / pieces,
                    .limit = 2 * x->kernel_s * pieces > seconds ? "launch" : "compute"},
        CLASS_CORE);
}

static int32_t put_cp(struct maker *m, const char *name, enum coll_id coll, double width)
{
    struct fluid_call call = {
        .coll = coll, .n = m->job->cp, .stride = (uint32_t)job_cp_stride(m->job), .cross = 1};
    double bytes = m->x.value_B * m->x.tokens * width / m->x.tp;
    if (coll == COLL_ALLGATHER || coll == COLL_REDUCE_SCATTER) bytes *= m->job->cp;
    return put_call(m, name, OP_CP, &call, bytes, 1);
}

/* Heads for tokens: queries, keys and values before attention, its output behind it. Backward the
 * same the other way round. */
static void ulysses(struct maker *m, bool back)
{
    double q = m->x.q_dim, kv = m->x.kv_width / 2, widths[] = {q, kv, kv};
    if (back) put_cp(m, "cp exchange", COLL_ALLTOALL, q);
    if (back) put_core(m, back, 1);
    for (int i = 0; i < 3; i++) {
        put_cp(m, "cp exchange", COLL_ALLTOALL, widths[i]);
    }
    if (back) return;
    put_core(m, back, 1);
    put_cp(m, "cp exchange", COLL_ALLTOALL, q);
}

/* Keys and values go around the ring, block by block ahead of the attention over them; backward
 * their gradients follow. */
static void ring(struct maker *m, bool back)
{
    uint32_t cp = m->job->cp;
    int32_t start = m->head, here = start;
    for (uint32_t i = 0; i < cp; i++) {
        m->head = start;
        int32_t next = i + 1 < cp ? put_cp(m, "cp block", COLL_SENDRECV, m->x.kv_width) : start;
        m->head = here;
        put_core(m, back, cp);
        if (back && i > 0) put_cp(m, "cp gradient", COLL_SENDRECV, m->x.kv_width);
        here = next;
    }
}

static void attention(struct maker *m, bool back)
{
    const struct job *job = m->job;
    if (job->cp < 2) {
        put_core(m, back, 1);
    } else if (job->ulysses) {
        ulysses(m, back);
    } else if (job->cp_gather) {
        put_cp(m, "cp gather", COLL_ALLGATHER, m->x.kv_width);
        put_core(m, back, 1);
        if (back) put_cp(m, "cp scatter", COLL_REDUCE_SCATTER, m->x.kv_width);
    } else {
        ring(m, back);
    }
}

/* ---- blocks, forward and backward ---- */

static void put_norm(struct maker *m)
{
    bool single = m->job->unfused_norm;
    double bytes = m->x.value_B * m->x.tokens * cost_norm_width(&m->x) / 2;
    /* A norm fused with dropout and residual moves what it must, on rows that tp does not divide;
     * `elem` is of the others. */
    if (!single && m->job->fw != FW_EAGER) bytes /= fmax(1, cost_element_factor(&m->x, false));
    put_element(m, "norm", bytes, single ? m->style->singles : m->style->norm, CLASS_NORM);
}

static void put_rope(struct maker *m)
{
    put_element(m, "rope", m->x.value_B * m->x.tokens * cost_qkv_width(&m->x), m->style->rope,
                CLASS_ELEMENT);
}

static void put_act(struct maker *m, double bytes, bool sink)
{
    put_element(m, "activation", bytes, sink ? m->style->sink_act : m->style->act, CLASS_ACT);
}

/* The adapters' products: as long again for each of the two gradients. */
static void put_adapters(struct maker *m, double times)
{
    put(m,
        (struct op){.name = "adapters",
                    .part = PART_GEMM,
                    .kernels = (uint32_t)(4 * times),
                    .seconds = cost_adapters(&m->x).fwd * times,
                    .flops = 2 * m->x.tokens * job_lora_params(m->job) / m->x.tp * times,
                    .peak = cost_peak(m->job, false),
                    .limit = "memory"},
        CLASS_GEMM);
}

static enum op_class class_of(size_t i, size_t up, size_t nup)
{
    return i >= up && i < up + nup ? CLASS_UP : CLASS_GEMM;
}

static void attention_forward(struct maker *m)
{
    struct cost_product p[COST_PRODUCTS];
    size_t up, nup, n = cost_attention_products(&m->x, p, &up, &nup);
    put_norm(m);
    gather_product(m, &p[0], COST_FORWARD, CLASS_GEMM);
    for (size_t i = 1; i + 1 < n; i++) {
        put_product(m, &p[i], COST_FORWARD, class_of(i, up, nup));
    }
    put_adapters(m, 1);
    put_rope(m);
    attention(m, false);
    product_sum(m, &p[n - 1], COST_FORWARD, CLASS_GEMM, tiles_of(m));
}

static void attention_back(struct maker *m)
{
    struct cost_product p[COST_PRODUCTS];
    size_t up, nup, n = cost_attention_products(&m->x, p, &up, &nup);
    product_sum_back(m, &p[n - 1], CLASS_GEMM);
    attention(m, true);
    put_rope(m);
    put_adapters(m, m->pass == PASS_BW ? 2 : 1);
    for (size_t i = n - 1; i-- > 1;) {
        put_product(m, &p[i], COST_INPUT, class_of(i, up, nup));
        if (makes_weights(m)) put_product(m, &p[i], COST_WEIGHT, class_of(i, up, nup));
    }
    gather_product_back(m, &p[0], CLASS_GEMM);
    put_norm(m);
}

/* The weights' gradients alone, the last product's first; the rows of the first are gathered
 * meanwhile, if they are. */
static void weights_of(struct maker *m, const struct cost_product *list, size_t n, bool gathers)
{
    if (m->job->lora_rank) return;
    int32_t start = m->head, rows = start;
    if (gathers) rows = put_gather(m, 1);
    m->head = start;
    for (size_t i = n; i-- > 0;) {
        int32_t op = put_product(m, &list[i], COST_WEIGHT, CLASS_GEMM);
        if (i == 0) also_after(m, op, rows);
    }
}

static void attention_weights(struct maker *m)
{
    struct cost_product p[COST_PRODUCTS];
    size_t up, nup, n = cost_attention_products(&m->x, p, &up, &nup);
    put_adapters(m, 1);
    weights_of(m, p, n, true);
}

static void mlp_forward(struct maker *m, double ffn)
{
    struct cost_product p[2];
    cost_mlp_products(&m->x, ffn, p);
    gather_product(m, &p[0], COST_FORWARD, CLASS_MLP);
    put_act(m, cost_mlp_bytes(&m->x, m->x.tokens, ffn) / m->x.tp, false);
    product_sum(m, &p[1], COST_FORWARD, CLASS_MLP, tiles_of(m));
}

static void mlp_back(struct maker *m, double ffn)
{
    struct cost_product p[2];
    cost_mlp_products(&m->x, ffn, p);
    product_sum_back(m, &p[1], CLASS_MLP);
    put_act(m, cost_mlp_bytes(&m->x, m->x.tokens, ffn) / m->x.tp, false);
    gather_product_back(m, &p[0], CLASS_MLP);
}

static void mlp_weights(struct maker *m, double ffn)
{
    struct cost_product p[2];
    cost_mlp_products(&m->x, ffn, p);
    weights_of(m, p, 2, true);
}

/* ---- experts ---- */

struct moe {
    struct cost_experts experts;
    struct fluid_call exchange, spread; /* over expert parallelism; over an expert's own */
    double exchange_bytes, spread_bytes;
    uint32_t pieces;
    double shared; /* width of the shared expert; 0: none */
};

/* Copies of a token that are sent: one for each of its experts, or, where the kernel knows them
 * all, one for each rank that has any. */
static double copies(const struct job *job)
{
    return job->ep_dedup ? cost_touched(job, job->ep) : job->shape.topk;
}

/* Share of the bytes between hosts that crosses when a token goes to each host once. */
static double crossing(const struct job *job)
{
    double span = (double)job_stage_stride(job, job->etp, job->ep) * job->ep;
    double hosts = span / job->domain;
    if (!job->ep_dedup || hosts <= 1) return 1;
    return fmin(1, cost_touched(job, hosts) / copies(job));
}

static struct moe moe_of(const struct maker *m)
{
    const struct job *job = m->job;
    double load = job_expert_load(job);
    struct moe moe = {.experts = cost_experts(&m->x, load), .shared = m->x.s->shared_ffn};
    moe.exchange = (struct fluid_call){.coll = COLL_ALLTOALL,
                                       .n = job->ep,
                                       .stride = (uint32_t)job_stage_stride(job, job->etp, job->ep),
                                       .cross = crossing(job),
                                       .direct = job->ep_dedup};
    moe.spread = (struct fluid_call){
        .n = job->etp, .stride = (uint32_t)job_stage_stride(job, 1, job->etp), .cross = 1};
    double row_B = m->x.value_B * moe.experts.routed * m->x.s->hidden * load;
    moe.exchange_bytes = row_B * copies(job);
    moe.spread_bytes = row_B * m->x.s->topk * job->etp;
    moe.pieces = job->ep_overlap && job->ep > 1 && !m->again ? EP_PIECES : 1;
    return moe;
}

/* Tokens to their experts, or back. */
static int32_t put_exchange(struct maker *m, const struct moe *moe, const char *name)
{
    return put_call(m, name, OP_EP, &moe->exchange, moe->exchange_bytes, moe->pieces);
}

static int32_t put_spread(struct maker *m, const struct moe *moe, enum coll_id coll)
{
    struct fluid_call call = moe->spread;
    call.coll = coll;
    const char *name = coll == COLL_ALLGATHER ? "etp gather" : "etp scatter";
    return put_call(m, name, OP_TP, &call, moe->spread_bytes, moe->pieces);
}

/* What a layer with experts takes beside its products and traffic. */
static void put_routing(struct maker *m, double times)
{
    put(m,
        (struct op){.name = "routing",
                    .part = PART_LAUNCH,
                    .kernels = m->style->route,
                    .seconds = m->x.c->moe_layer_us * 1e-6 * m->x.host * times,
                    .limit = "launch"},
        CLASS_REST);
}

/* Where no token is dropped the host must know how many each expert has before it can issue what
 * follows; a captured graph has room for the most. */
static void read_counts(struct maker *m)
{
    bool put_here = !m->again || m->again[CLASS_REST] > 0;
    if (put_here && m->head >= 0 && m->job->graphs != GRAPHS_FULL && m->job->moe_capacity <= 0)
        m->ops->list[m->head].sync = true;
}

static void put_permute(struct maker *m, const struct moe *moe, const char *name)
{
    put_element(m, name, moe->experts.permute_bytes / 2, m->style->permute, CLASS_ELEMENT);
}

/* Rows that each tensor-parallel rank has of its own, as without sequence parallelism the routed
 * ones, are made whole again. */
static void put_whole(struct maker *m)
{
    if (m->job->sp) return;
    struct fluid_call call = tp_call(m, COLL_ALLGATHER);
    put_call(m, "tp gather", OP_TP, &call, hidden_bytes(m), 1);
}

/* All pieces leave at once, one behind the other; begins[i]: when piece i is there. */
static void send_all(struct maker *m, const struct moe *moe, const char *name, int32_t *begins)
{
    int32_t start = m->head;
    for (uint32_t i = 0; i < moe->pieces; i++) {
        m->head = start;
        begins[i] = put_exchange(m, moe, name);
    }
}

static void experts_forward(struct maker *m, const struct moe *moe)
{
    const struct cost_product *p = moe->experts.products;
    int32_t begins[EP_PIECES], norm = m->head, beside = -1;
    uint32_t first = 0;
    bool overlap = moe->pieces > 1;
    if (moe->shared > 0 && !overlap) mlp_forward(m, moe->shared);
    put_product(m, &moe->experts.router, COST_FORWARD, CLASS_GEMM);
    put_routing(m, 1);
    read_counts(m);
    put_permute(m, moe, "permute");
    send_all(m, moe, "dispatch", begins);
    if (moe->shared > 0 && overlap) {
        m->head = norm;
        mlp_forward(m, moe->shared);
        beside = m->head;
    }
    for (uint32_t i = 0; i < moe->pieces; i++) {
        m->head = begins[i];
        put_spread(m, moe, COLL_ALLGATHER);
        put_piece(m, &p[0], COST_FORWARD, CLASS_MLP, i, moe->pieces);
        put_act(m, moe->experts.act_bytes / moe->pieces, m->x.s->sink_attention);
        put_piece(m, &p[1], COST_FORWARD, CLASS_MLP, i, moe->pieces);
        put_spread(m, moe, COLL_REDUCE_SCATTER);
        put_exchange(m, moe, "combine");
        if (i == 0) first = m->ops->count;
    }
    issue_together(m, first);
    put_permute(m, moe, "unpermute");
    also_after(m, m->head, beside);
    put_whole(m);
}

/* One piece backward through the experts; weights' gradients too unless they wait for the end. */
static void experts_piece_back(struct maker *m, const struct moe *moe, uint32_t i, bool weights)
{
    const struct cost_product *p = moe->experts.products;
    put_spread(m, moe, COLL_ALLGATHER);
    put_piece(m, &p[1], COST_INPUT, CLASS_MLP, i, moe->pieces);
    if (weights) put_product(m, &p[1], COST_WEIGHT, CLASS_MLP);
    put_act(m, moe->experts.act_bytes / moe->pieces, m->x.s->sink_attention);
    put_piece(m, &p[0], COST_INPUT, CLASS_MLP, i, moe->pieces);
    if (weights) put_product(m, &p[0], COST_WEIGHT, CLASS_MLP);
    put_spread(m, moe, COLL_REDUCE_SCATTER);
    put_exchange(m, moe, "dispatch back");
}

static void experts_back(struct maker *m, const struct moe *moe)
{
    const struct cost_product *p = moe->experts.products;
    int32_t begins[EP_PIECES], start = m->head, beside = -1;
    uint32_t first = 0;
    bool overlap = moe->pieces > 1, weights = makes_weights(m);
    put_permute(m, moe, "unpermute back");
    send_all(m, moe, "combine back", begins);
    if (moe->shared > 0 && overlap) {
        m->head = start;
        mlp_back(m, moe->shared);
        beside = m->head;
    }
    for (uint32_t i = 0; i < moe->pieces; i++) {
        m->head = begins[i];
        experts_piece_back(m, moe, i, weights && !overlap);
        if (i == 0) first = m->ops->count;
    }
    issue_together(m, first);
    int32_t back = m->head;
    for (int i = 1; i >= 0 && weights && overlap; i--) {
        m->head = begins[moe->pieces - 1];
        put_product(m, &p[i], COST_WEIGHT, CLASS_MLP);
    }
    m->head = back;
    put_permute(m, moe, "permute back");
    put_routing(m, m->pass == PASS_BW ? 2 : 1);
    put_product(m, &moe->experts.router, COST_INPUT, CLASS_GEMM);
    if (weights) put_product(m, &moe->experts.router, COST_WEIGHT, CLASS_GEMM);
    if (moe->shared > 0 && !overlap) mlp_back(m, moe->shared);
    put_whole(m);
    also_after(m, m->head, beside);
}

static void experts_weights(struct maker *m, const struct moe *moe)
{
    weights_of(m, moe->experts.products, 2, false);
    put_routing(m, 1);
    weights_of(m, &moe->experts.router, 1, false);
    if (moe->shared > 0) mlp_weights(m, moe->shared);
}

/* ---- layers ---- */

static void layer_forward(struct maker *m, enum layer_kind kind)
{
    attention_forward(m);
    put_norm(m);
    if (kind == LAYER_DENSE) {
        mlp_forward(m, m->x.s->ffn);
    } else {
        const double *again = m->again;
        double all[NCLASSES];
        for (int c = 0; c < NCLASSES; c++) {
            all[c] = 1;
        }
        if (again && m->job->recompute == RC_SELECTIVE && m->job->rc_modules & RCM_MOE)
            m->again = all;
        struct moe moe = moe_of(m);
        experts_forward(m, &moe);
        m->again = again;
    }
}

static void layer_back(struct maker *m, enum layer_kind kind)
{
    if (kind == LAYER_DENSE) {
        mlp_back(m, m->x.s->ffn);
    } else {
        struct moe moe = moe_of(m);
        experts_back(m, &moe);
    }
    put_norm(m);
    attention_back(m);
}

static void layer_weights(struct maker *m, enum layer_kind kind)
{
    if (kind == LAYER_DENSE) {
        mlp_weights(m, m->x.s->ffn);
    } else {
        struct moe moe = moe_of(m);
        experts_weights(m, &moe);
    }
    attention_weights(m);
}

/* Whether all of a layer is done again: one in so many, or the first of a chunk. */
static bool whole_again(const struct job *job, uint32_t layer, uint32_t place)
{
    if (job->recompute == RC_NONE) return false;
    bool half = layer % 2 == 1, third = layer % 3 == 2;
    if (job->recompute == RC_SELECTIVE) {
        return (job->rc_modules & RCM_HALF && half) || (job->rc_modules & RCM_THIRD && third);
    }
    if (job->rc_blocks && place >= job->rc_blocks) return false;
    return !(job->rc_modules & RCM_HALF) || half;
}

/* Share of each class of operators that is done again; what several modules name is done once.
 * False: none. */
static bool again_shares(const struct job *job, enum layer_kind kind, bool whole,
                         double again[NCLASSES])
{
    static const struct {
        unsigned module;
        double again[NCLASSES];
    } modules[] = {
        {RCM_CORE_ATTN, {[CLASS_CORE] = 1}},
        {RCM_MLP, {[CLASS_MLP] = 1}},
        {RCM_MLP_PART, {[CLASS_MLP] = .6}},
        {RCM_MLA_UP, {[CLASS_UP] = 1}},
        {RCM_NORM, {[CLASS_NORM] = 1}},
        {RCM_ACT, {[CLASS_ACT] = 1}},
        {RCM_OPS,
         {[CLASS_NORM] = 1,
          [CLASS_ACT] = 1,
          [CLASS_ELEMENT] = 1,
          [CLASS_GEMM] = .5,
          [CLASS_MLP] = .5,
          [CLASS_UP] = .5}},
        {RCM_SAVE_DOT, {[CLASS_NORM] = 1, [CLASS_ACT] = 1, [CLASS_ELEMENT] = 1}},
    };
    bool selective = job->recompute == RC_SELECTIVE;
    bool any = whole || (selective && kind == LAYER_MOE && job->rc_modules & RCM_MOE);
    for (int c = 0; c < NCLASSES; c++) {
        again[c] = whole;
    }
    if (!selective) return any;
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        if (!(job->rc_modules & modules[i].module)) continue;
        if (kind == LAYER_MOE && modules[i].module == RCM_MLP) continue; /* not its experts */
        any = true;
        for (int c = 0; c < NCLASSES; c++) {
            again[c] = fmax(again[c], modules[i].again[c]);
        }
    }
    return any;
}

static bool windowed(const struct job *job, uint32_t layer)
{
    const struct shape *s = &job->shape;
    if (!s->window || s->window_share <= 0 || !s->layers) return false;
    uint64_t n = s->layers, some = (uint64_t)llround(s->window_share * (double)n), i = layer % n;
    return ((i + 1) * some + n - 1) / n > (i * some + n - 1) / n; /* spread, the first first */
}

uint32_t ops_key(const struct job *job, enum layer_kind kind, uint32_t layer, uint32_t place)
{
    if (kind != LAYER_DENSE && kind != LAYER_MOE) return kind;
    return kind | (windowed(job, layer) ? 4U : 0) | (whole_again(job, layer, place) ? 8U : 0);
}

/* What attention sees: documents of a packed sequence, where the kernel knows of them. */
static void set_keys(struct maker *m, bool window)
{
    const struct job *job = m->job;
    m->keys = (double)job->seq;
    if (job->packed_seq > 0 && job->attn != ATTN_UNFUSED) m->keys = fmin(m->keys, job->packed_seq);
    m->share = window ? cost_window(job->shape.window, m->keys) : 1;
}

static void put_layer(struct maker *m, enum layer_kind kind, bool whole)
{
    if (m->pass == PASS_F) {
        layer_forward(m, kind);
        return;
    }
    if (m->pass == PASS_W) {
        layer_weights(m, kind);
        return;
    }
    double again[NCLASSES];
    if (again_shares(m->job, kind, whole, again)) {
        m->again = again;
        layer_forward(m, kind);
        m->again = NULL;
    }
    layer_back(m, kind);
}

/* The token table, cut by vocabulary over tensor parallelism. */
static void put_embedding(struct maker *m)
{
    struct cost t = cost_lookup(&m->x);
    if (m->pass == PASS_F) {
        put_traffic(m, "embedding", t.fwd, m->style->lookup);
        put_sum(m, 1);
    } else if (makes_weights(m)) {
        put_gather(m, 1);
        put_traffic(m, "embedding back", t.bwd, m->style->lookup);
        accumulate(m, (double)m->x.s->vocab * m->x.s->hidden / m->x.tp, 1);
    }
}

/* The loss over logits that are cut by vocabulary: the largest, the right one, and the sum of all
 * are found together. */
static void put_loss(struct maker *m)
{
    struct cost t = cost_loss(&m->x);
    bool forward = m->pass == PASS_F;
    put_traffic(m, forward ? "loss" : "loss back", forward ? t.fwd : t.bwd, m->style->loss);
    struct fluid_call call = tp_call(m, COLL_ALLREDUCE);
    for (int i = 0; i < 3 && forward; i++) {
        put_call(m, "loss reduce", OP_TP, &call, 4 * m->x.tokens, 1);
    }
}

static void put_head(struct maker *m)
{
    struct cost_product p = cost_logits(&m->x);
    if (m->pass == PASS_W) {
        weights_of(m, &p, 1, true);
    } else if (m->pass == PASS_F) {
        gather_product(m, &p, COST_FORWARD, CLASS_GEMM);
        put_loss(m);
    } else {
        put_loss(m);
        gather_product_back(m, &p, CLASS_GEMM);
    }
}

void ops_layer(struct ops *ops, const struct job *job, const struct constants *c,
               enum layer_kind kind, enum pass pass, uint32_t layer, uint32_t place)
{
    struct maker m = {.ops = ops,
                      .job = job,
                      .style = &styles[job->fw],
                      .x = base_of(job, c),
                      .pass = pass,
                      .head = ops->count ? (int32_t)ops->last : -1};
    set_keys(&m, windowed(job, layer));
    if (kind == LAYER_EMBEDDING) {
        put_embedding(&m);
    } else if (kind == LAYER_HEAD) {
        put_head(&m);
    } else {
        put_layer(&m, kind, whole_again(job, layer, place));
    }
    if (m.head >= 0) ops->last = (uint32_t)m.head;
}

void ops_place(struct ops *ops, uint32_t from, uint32_t base, uint32_t span)
{
    for (uint32_t i = from; i < ops->count; i++) {
        struct fluid_call *call = &ops->list[i].call;
        if (ops->list[i].lane == OP_COMPUTE || (uint64_t)call->n * call->stride > span) continue;
        call->base = base;
        call->span = span;
    }
}

void ops_release(struct ops *ops)
{
    free(ops->list);
    *ops = (struct ops){0};
}
