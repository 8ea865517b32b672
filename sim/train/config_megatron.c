/* SPDX-License-Identifier: Apache-2.0
 * Megatron-LM arguments, both ways. Names and defaults are those of megatron/training/arguments.py;
 * where a default differs from the table of frameworks (no overlap unless asked for, dropout 0.1),
 * the arguments have the word. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "train/config.h"

/* What the arguments say; 0 and NULL: nothing. */
struct megatron {
    uint64_t nodes, per_node;
    uint64_t tp, pp, chunk_layers, chunks, cp, ep, etp, instances;
    uint64_t first_layers, last_layers;
    uint64_t micro_batch, global_batch, seq;
    const char *granularity, *method, *modules;
    uint64_t recompute_layers;
    bool recompute_activations;
    bool sp, distributed_optimizer, fsdp2, megatron_fsdp, tp_pp_dp, split_embedding, split_loss;
    const char *sharding, *cp_comm;
    bool bf16, fp16, fp8_gather;
    const char *fp8, *fp8_recipe, *fp4, *optimizer;
    bool grad_overlap, tp_overlap, no_p2p_overlap, ep_overlap, deepep, flash, offload;
    bool param_gather;
    uint64_t bucket_params, offload_layers;
    const char *dispatcher, *capacity, *offload_share;
    bool grad_16, graph, external_graph;
    const char *attention, *graph_impl, *graph_scope, *main_grads;
    double attention_dropout, hidden_dropout;
    uint64_t vocab_multiple;

    struct model m; /* dimensions as they stand */
    uint64_t query_groups, position_rows;
    bool grouped, no_bias, qkv_bias, untied, rope, no_positions, qk_norm, mla;
    const char *norm, *positions, *moe_layers, *dropout_attention, *dropout_hidden;
};

#define AT(field) offsetof(struct megatron, field)
#define UINT(key, field)                                                                           \
    {                                                                                              \
        key, CONFIG_UINT, AT(field), NULL, NULL                                                    \
    }
#define TEXT(key, field, choices)                                                                  \
    {                                                                                              \
        key, CONFIG_TEXT, AT(field), NULL, choices                                                 \
    }
#define ON(key, field)                                                                             \
    {                                                                                              \
        key, CONFIG_ON, AT(field), NULL, NULL                                                      \
    }

static const char *const granularities[] = {"selective", "full", NULL};
static const char *const methods[] = {"uniform", "block", NULL};
static const char *const shardings[] = {"no_shard", "optim", "optim_grads", "optim_grads_params",
                                        NULL};
static const char *const fp8_formats[] = {"hybrid", "e4m3", NULL};
static const char *const fp8_recipes[] = {"delayed", "tensorwise", "blockwise", "mxfp8", NULL};
static const char *const optimizers[] = {"adam", "sgd", NULL};
static const char *const attentions[] = {"flash", "fused", "unfused", "local", "auto", NULL};
static const char *const graph_impls[] = {"none", "local", "transformer_engine", NULL};
static const char *const norms[] = {"LayerNorm", "RMSNorm", NULL};
static const char *const position_types[] = {"learned_absolute", "rope", "none", NULL};
static const char *const grad_types[] = {"fp32", "bf16", NULL};
static const char *const cp_types[] = {"p2p", "a2a", "all_gather", "allgather", NULL};
static const char *const dispatchers[] = {"alltoall", "flex", NULL};

static const struct config_word words[] = {
    UINT("nnodes", nodes),
    UINT("nproc-per-node", per_node),
    UINT("tensor-model-parallel-size", tp),
    UINT("pipeline-model-parallel-size", pp),
    UINT("num-layers-per-virtual-pipeline-stage", chunk_layers),
    UINT("num-virtual-stages-per-pipeline-rank", chunks),
    UINT("context-parallel-size", cp),
    TEXT("cp-comm-type", cp_comm, cp_types),
    UINT("expert-model-parallel-size", ep),
    UINT("expert-tensor-parallel-size", etp),
    UINT("num-distributed-optimizer-instances", instances),
    UINT("decoder-first-pipeline-num-layers", first_layers),
    UINT("decoder-last-pipeline-num-layers", last_layers),
    ON("account-for-embedding-in-pipeline-split", split_embedding),
    ON("account-for-loss-in-pipeline-split", split_loss),
    ON("use-tp-pp-dp-mapping", tp_pp_dp),
    ON("sequence-parallel", sp),
    ON("use-distributed-optimizer", distributed_optimizer),
    ON("use-torch-fsdp2", fsdp2),
    ON("use-megatron-fsdp", megatron_fsdp),
    ON("use-custom-fsdp", megatron_fsdp),
    TEXT("data-parallel-sharding-strategy", sharding, shardings),
    UINT("micro-batch-size", micro_batch),
    UINT("global-batch-size", global_batch),
    UINT("seq-length", seq),
    ON("recompute-activations", recompute_activations),
    TEXT("recompute-granularity", granularity, granularities),
    TEXT("recompute-method", method, methods),
    UINT("recompute-num-layers", recompute_layers),
    TEXT("recompute-modules", modules, NULL),
    ON("bf16", bf16),
    ON("fp16", fp16),
    TEXT("fp8-format", fp8, fp8_formats),
    TEXT("fp8-recipe", fp8_recipe, fp8_recipes),
    TEXT("fp4-format", fp4, NULL),
    ON("fp8-param-gather", fp8_gather),
    TEXT("optimizer", optimizer, optimizers),
    ON("optimizer-cpu-offload", offload),
    TEXT("optimizer-offload-fraction", offload_share, NULL),
    UINT("cpu-offloading-num-layers", offload_layers),
    ON("overlap-grad-reduce", grad_overlap),
    ON("overlap-param-gather", param_gather),
    UINT("ddp-bucket-size", bucket_params),
    TEXT("moe-token-dispatcher-type", dispatcher, dispatchers),
    TEXT("moe-expert-capacity-factor", capacity, NULL),
    ON("tp-comm-overlap", tp_overlap),
    ON("no-overlap-p2p-communication", no_p2p_overlap),
    ON("overlap-moe-expert-parallel-comm", ep_overlap),
    ON("moe-enable-deepep", deepep),
    ON("grad-reduce-in-bf16", grad_16),
    TEXT("main-grads-dtype", main_grads, grad_types),
    ON("enable-cuda-graph", graph),
    ON("external-cuda-graph", external_graph),
    TEXT("cuda-graph-impl", graph_impl, graph_impls),
    TEXT("cuda-graph-scope", graph_scope, NULL),
    ON("use-flash-attn", flash),
    TEXT("attention-backend", attention, attentions),
    {"attention-dropout", CONFIG_DOUBLE, AT(attention_dropout), NULL, NULL},
    {"hidden-dropout", CONFIG_DOUBLE, AT(hidden_dropout), NULL, NULL},
    TEXT("attention-dropout", dropout_attention, NULL),
    TEXT("hidden-dropout", dropout_hidden, NULL),
    UINT("make-vocab-size-divisible-by", vocab_multiple),
    UINT("num-layers", m.layers),
    UINT("hidden-size", m.hidden),
    UINT("ffn-hidden-size", m.ffn),
    UINT("num-attention-heads", m.heads),
    UINT("num-query-groups", query_groups),
    ON("group-query-attention", grouped),
    UINT("kv-channels", m.head_dim),
    ON("swiglu", m.gated),
    UINT("vocab-size", m.vocab),
    UINT("max-position-embeddings", position_rows),
    TEXT("position-embedding-type", positions, position_types),
    ON("use-rotary-position-embeddings", rope),
    ON("no-position-embedding", no_positions),
    ON("untie-embeddings-and-output-weights", untied),
    TEXT("normalization", norm, norms),
    ON("disable-bias-linear", no_bias),
    ON("add-qkv-bias", qkv_bias),
    ON("qk-layernorm", qk_norm),
    UINT("num-experts", m.experts),
    UINT("moe-router-topk", m.experts_per_token),
    UINT("moe-router-num-groups", m.router_groups),
    UINT("moe-router-group-topk", m.router_group_topk),
    UINT("moe-ffn-hidden-size", m.expert_ffn),
    UINT("moe-shared-expert-intermediate-size", m.shared_ffn),
    TEXT("moe-layer-freq", moe_layers, NULL),
    ON("moe-router-enable-expert-bias", m.router_bias),
    ON("moe-shared-expert-gate", m.shared_gate),
    ON("multi-latent-attention", mla),
    UINT("q-lora-rank", m.q_lora_rank),
    UINT("kv-lora-rank", m.kv_lora_rank),
    UINT("qk-head-dim", m.nope_head_dim),
    UINT("qk-pos-emb-head-dim", m.rope_head_dim),
    UINT("v-head-dim", m.v_head_dim),
    {0},
};
#undef AT
#undef UINT
#undef TEXT
#undef ON

/* Change time or memory, but are not modelled. */
static const char *const unmodelled[] = {"pipeline-model-parallel-layout",
                                         "model-parallel-size",
                                         "batch-size",
                                         "checkpoint-activations",
                                         "zero-stage",
                                         "deepspeed-activation-checkpointing",
                                         "outer-dp-sharding-strategy",
                                         "hybrid-override-pattern",
                                         "hierarchical-context-parallel-sizes",
                                         "mtp-num-layers",
                                         "window-size",
                                         "distribute-saved-activations",
                                         "delay-wgrad-compute",
                                         "overlap-param-gather-with-optimizer-step",
                                         "tp-comm-bulk-dgrad",
                                         "disable-tp-comm-bulk-dgrad",
                                         "disable-tp-comm-bulk-wgrad",
                                         "disable-tp-comm-overlap-ag",
                                         "disable-tp-comm-overlap-rs",
                                         "disable-tp-comm-split-ag",
                                         "disable-tp-comm-split-rs",
                                         "exp-avg-dtype",
                                         "exp-avg-sq-dtype",
                                         "main-params-dtype",
                                         "moe-shared-expert-overlap",
                                         "moe-pad-expert-input-to-capacity",
                                         "moe-latent-size",
                                         "first-last-layers-bf16",
                                         "fp16-lm-cross-entropy",
                                         "cross-entropy-loss-fusion",
                                         "no-bias-swiglu-fusion",
                                         "no-bias-gelu-fusion",
                                         "no-bias-dropout-fusion",
                                         "no-masked-softmax-fusion",
                                         "no-rope-fusion",
                                         "no-persist-layer-norm",
                                         "microbatch-group-size-per-virtual-pipeline-stage",
                                         "deterministic-mode",
                                         "rampup-batch-size",
                                         NULL};

/* ---- reading ---- */

/* Pairs that Megatron refuses too, or of which one would have no effect. */
static int check_pairs(const struct config *c, const struct megatron *a, struct err *err)
{
    const struct {
        bool broken;
        const char *key, *other, *why;
    } pairs[] = {
        {a->bf16 && a->fp16, "fp16", "--bf16", "weights have one format"},
        {a->fp8 && a->fp4, "fp4-format", "--fp8-format", "linears have one format"},
        {a->fp8_recipe && !a->fp8, "fp8-recipe", "a line without --fp8-format",
         "a recipe is for fp8"},
        {a->chunks && a->chunk_layers, "num-virtual-stages-per-pipeline-rank",
         "--num-layers-per-virtual-pipeline-stage", "give one of the two"},
        {(a->chunks > 1 || a->chunk_layers) && a->pp <= 1,
         a->chunks ? "num-virtual-stages-per-pipeline-rank"
                   : "num-layers-per-virtual-pipeline-stage",
         "--pipeline-model-parallel-size 1", "chunks need a pipeline of 2 stages or more"},
        {a->query_groups && !a->grouped, "num-query-groups",
         "a line without --group-query-attention",
         "it would have no effect; add that option or leave this one out"},
        {a->recompute_activations && a->granularity && strcmp(a->granularity, "full") == 0,
         "recompute-activations", "--recompute-granularity full", "it means selective"},
        {a->granularity && strcmp(a->granularity, "full") == 0 && !a->method,
         "recompute-granularity", "a line without --recompute-method",
         "full needs a method, uniform or block"},
        {a->method && (!a->granularity || strcmp(a->granularity, "full") != 0), "recompute-method",
         "a line without --recompute-granularity full", "a method is for full recomputation"},
        {a->fsdp2 && a->distributed_optimizer, "use-torch-fsdp2", "--use-distributed-optimizer",
         "FSDP shards the optimizer itself"},
        {a->sharding && strcmp(a->sharding, "no_shard") != 0 && !a->megatron_fsdp,
         "data-parallel-sharding-strategy", "a line without --use-megatron-fsdp",
         "it would have no effect"},
        {a->param_gather && !a->grad_overlap, "overlap-param-gather",
         "a line without --overlap-grad-reduce", "gathers are overlapped beside reductions only"},
        {a->param_gather && !a->distributed_optimizer, "overlap-param-gather",
         "a line without --use-distributed-optimizer", "there is nothing to gather"},
        {a->offload_share && !a->offload, "optimizer-offload-fraction",
         "a line without --optimizer-cpu-offload", "it would have no effect"},
        {a->offload_share && strtod(a->offload_share, NULL) != 1, "optimizer-offload-fraction",
         "what is modelled here", "all of the optimizer is on the host or none; give 1"},
        {a->position_rows && a->seq > a->position_rows, "max-position-embeddings", "--seq-length",
         "positions end before the sequence does"},
    };
    int result = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i].broken)
            result = config_contradiction(c, pairs[i].key, pairs[i].other, pairs[i].why, err);
    }
    return result;
}

static void set_sharding(struct config *c, const struct megatron *a)
{
    static const char *const levels[] = {"none", "1", "2", "fsdp"};
    c->args.zero = a->fsdp2 ? "fsdp" : a->distributed_optimizer ? "1" : "none";
    for (unsigned i = 0; a->megatron_fsdp && i < 4; i++) {
        const char *said = a->sharding ? a->sharding : "no_shard";
        if (strcmp(said, shardings[i]) == 0) c->args.zero = levels[i];
    }
    c->args.replicas = a->instances;
}

/* "core_attn mlp" -> "core_attn+mlp", in the words of --recompute. */
static int set_modules(struct config *c, const char *modules, struct err *err)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {
        {"core_attn", "core_attn"}, {"mlp", "mlp"},       {"moe", "moe"}, {"moe_act", "act"},
        {"mla_up_proj", "mla_up"},  {"layernorm", "norm"}};
    char *all = NULL;
    int result = 0;
    for (size_t n; *modules; modules += n, modules += strspn(modules, " ")) {
        n = strcspn(modules, " ");
        const char *ours = NULL;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            if (strlen(names[i].theirs) == n && strncmp(names[i].theirs, modules, n) == 0)
                ours = names[i].ours;
        }
        if (!ours) {
            result = err_add(err, ERR_USAGE,
                             "%s: recomputation of %.*s is not modelled; known: core_attn, mlp, "
                             "moe, moe_act, mla_up_proj, layernorm",
                             config_where(&c->items, "recompute-modules"), (int)(n < 60 ? n : 60),
                             modules);
            continue;
        }
        char *more = all ? mem_printf("%s+%s", all, ours) : mem_strdup(ours);
        free(all);
        all = more;
    }
    if (all) c->args.recompute = config_own(c, all);
    return result;
}

static int set_recompute(struct config *c, const struct megatron *a, struct err *err)
{
    bool full = a->granularity && strcmp(a->granularity, "full") == 0;
    c->args.recompute = full                                         ? "full"
                        : a->granularity || a->recompute_activations ? "selective"
                                                                     : "none";
    if (full && strcmp(a->method, "block") == 0)
        c->args.recompute = config_own(
            c, mem_printf("full:%" PRIu64, a->recompute_layers ? a->recompute_layers : 1));
    if (full && strcmp(a->method, "uniform") == 0 && a->recompute_layers > 1)
        return err_add(err, ERR_USAGE,
                       "%s: kept inputs of every %" PRIu64
                       " layers are not modelled; give 1, or --recompute-method block",
                       config_where(&c->items, "recompute-num-layers"), a->recompute_layers);
    if (a->modules && strcmp(c->args.recompute, "selective") == 0)
        return set_modules(c, a->modules, err);
    return 0;
}

static int set_precision(struct config *c, const struct megatron *a, struct err *err)
{
    bool mx = a->fp8_recipe && strcmp(a->fp8_recipe, "mxfp8") == 0;
    c->args.precision = a->fp4    ? "nvfp4"
                        : a->fp8  ? mx ? "mxfp8" : "fp8"
                        : a->bf16 ? "bf16"
                        : a->fp16 ? "fp16"
                                  : "fp32";
    if (a->fp8_gather) config_feature(c, "fp8-params", "on");
    c->args.optimizer = a->optimizer && strcmp(a->optimizer, "sgd") == 0 ? "momentum" : "adamw";
    if (a->fp8_recipe && strcmp(a->fp8_recipe, "blockwise") == 0)
        return err_add(err, ERR_USAGE,
                       "%s: blocks of 128 x 128 are not modelled; known: delayed, tensorwise, "
                       "mxfp8",
                       config_where(&c->items, "fp8-recipe"));
    return 0;
}

static const char *graphs_word(const struct megatron *a)
{
    bool whole = a->graph_scope && strcmp(a->graph_scope, "full_iteration") == 0;
    bool impl = a->graph_impl && strcmp(a->graph_impl, "none") != 0;
    bool any = impl || a->graph || a->external_graph;
    return any && whole ? "full" : any ? "partial" : "none";
}

static const char *on_off(bool on)
{
    return on ? "on" : "off";
}

/* A feature that is a number, if it is said. */
static void set_count(struct config *c, const char *feature, uint64_t value)
{
    char text[UNITS_TEXT];
    snprintf(text, sizeof text, "%" PRIu64, value);
    if (value) config_feature(c, feature, text);
}

static void set_features(struct config *c, const struct megatron *a)
{
    static const struct {
        const char *theirs, *ours;
    } kernels[] = {{"flash", "fa2"},
                   {"fused", "cudnn"},
                   {"auto", "cudnn"},
                   {"unfused", "unfused"},
                   {"local", "unfused"}};
    const char *kernel = a->attention ? a->attention : a->flash ? "flash" : "auto";
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].theirs, kernel) == 0) config_feature(c, "attention", kernels[i].ours);
    }
    config_feature(c, "graphs", graphs_word(a));
    config_feature(c, "dp-overlap", on_off(a->grad_overlap));
    config_feature(c, "tp-overlap", on_off(a->tp_overlap));
    config_feature(c, "p2p-overlap", on_off(!a->no_p2p_overlap));
    config_feature(c, "gather-overlap", on_off(a->param_gather));
    if (a->ep_overlap) config_feature(c, "ep-overlap", "on");
    bool flex = a->dispatcher && strcmp(a->dispatcher, "flex") == 0;
    if (a->deepep || flex) config_feature(c, "ep-dedup", "on");
    bool masks = !a->dropout_attention || !a->dropout_hidden || a->attention_dropout > 0 ||
                 a->hidden_dropout > 0;
    config_feature(c, "dropout", on_off(masks));
    if (a->grad_16) config_feature(c, "grad-bytes", "2");
    if (a->main_grads && strcmp(a->main_grads, "bf16") == 0)
        config_feature(c, "grad-store-bytes", "2");
    set_count(c, "vocab-multiple", a->vocab_multiple);
    set_count(c, "bucket-params", a->bucket_params);
    if (a->bucket_params) config_feature(c, "bucket-params-per-rank", "0");
}

static void set_degrees(struct config *c, const struct megatron *a)
{
    struct strategy_args *s = &c->args;
    bool heads = a->cp_comm && strcmp(a->cp_comm, "a2a") == 0;
    s->tp = a->tp ? a->tp : 1;
    s->pp = a->pp ? a->pp : 1;
    s->ep = a->ep ? a->ep : 1;
    *(heads ? &s->ulysses : &s->cp) = a->cp ? a->cp : 1;
    bool gather = a->cp_comm && strstr(a->cp_comm, "gather");
    if (s->cp > 1) s->cp_comm = gather ? "gather" : "ring";
    s->moe_capacity = a->capacity;
    c->offload_layers = a->offload_layers;
    s->offload = a->offload_layers ? a->offload ? "optimizer,activations" : "activations"
                 : a->offload      ? "optimizer"
                                   : NULL;
    if (a->etp || a->ep || a->m.experts) s->etp = a->etp ? a->etp : s->tp;
    s->vpp = a->chunks;
    s->layers_per_chunk = a->chunk_layers;
    s->first_layers = a->first_layers;
    s->last_layers = a->last_layers;
    s->split = a->split_embedding ? a->split_loss ? "embedding,loss" : "embedding"
               : a->split_loss    ? "loss"
                                  : NULL;
    s->sp = a->sp;
    s->order = a->tp_pp_dp ? "tp,cp,pp,dp" : NULL;
    s->micro_batch = a->micro_batch;
    s->global_batch = a->global_batch;
    s->accumulation = a->global_batch ? 0 : 1;
    s->seq = a->seq;
    c->hosts = a->nodes;
    c->gpus = a->nodes && a->per_node ? a->nodes * a->per_node : 0;
}

/* Dense layers in front of `text`, a list of every layer as in "[0,0,1,1]"; UINT64_MAX if it is
 * none, or has a dense layer behind one with experts. */
static uint64_t dense_in_front(const char *text, uint64_t layers)
{
    uint64_t dense = 0, count = 0;
    if (*text != '[') return UINT64_MAX;
    for (const char *s = text + 1; *s; s++) {
        if (*s == ']') return s[1] == '\0' && count == layers ? dense : UINT64_MAX;
        if (*s == ',' || *s == ' ') continue;
        bool in_front = *s == '0' && dense == count;
        if (*s != '1' && !in_front) return UINT64_MAX;
        dense += in_front;
        count++;
    }
    return UINT64_MAX;
}

/* 1: all layers have experts; "([0]*3+[1]*58)" or "[0,0,0,1,...]": the first three do not. */
static int set_moe_layers(const struct config *c, struct model *m, const char *text,
                          struct err *err)
{
    unsigned long long dense = 0, moe = 0;
    char end = 0;
    if (!text || strcmp(text, "1") == 0) return 0;
    bool good = sscanf(text, "([0]*%llu+[1]*%llu%c", &dense, &moe, &end) == 3 && end == ')' &&
                dense <= m->layers && moe == m->layers - dense;
    m->dense_layers = good ? dense : dense_in_front(text, m->layers);
    if (m->dense_layers <= m->layers) return 0;
    m->dense_layers = 0;
    return err_add(err, ERR_USAGE,
                   "%s: \"%.60s\" is not modelled; known: 1, and dense layers in front of %" PRIu64
                   " in all, as in ([0]*3+[1]*%" PRIu64 ")",
                   config_where(&c->items, "moe-layer-freq"), text, m->layers,
                   m->layers > 3 ? m->layers - 3 : 1);
}

static void set_latent(struct model *m)
{
    m->mla = true;
    m->kv_lora_rank = m->kv_lora_rank ? m->kv_lora_rank : 512;
    m->nope_head_dim = m->nope_head_dim ? m->nope_head_dim : 128;
    m->rope_head_dim = m->rope_head_dim ? m->rope_head_dim : 64;
    m->v_head_dim = m->v_head_dim ? m->v_head_dim : 128;
    m->head_dim = m->nope_head_dim + m->rope_head_dim;
    m->kv_heads = m->heads;
}

/* Figures without the three that make a shape: each must be that of the model. */
static void set_claims(struct config *c, const struct megatron *a)
{
    const struct model *m = &a->m;
    const struct {
        const char *key;
        size_t offset;
        bool flag, said;
        uint64_t value;
    } rows[] = {
#define AT(field) offsetof(struct model, field)
#define FIGURE(key, field) {key, AT(field), false, m->field != 0, m->field}
#define FLAG(key, field, said, value)                                                              \
    {                                                                                              \
        key, AT(field), true, said, value                                                          \
    }
        FIGURE("num-layers", layers),
        FIGURE("hidden-size", hidden),
        FIGURE("ffn-hidden-size", ffn),
        FIGURE("num-attention-heads", heads),
        {"num-query-groups", AT(kv_heads), false, a->grouped && a->query_groups, a->query_groups},
        {"kv-channels", AT(head_dim), false, m->head_dim && !a->mla, m->head_dim},
        FIGURE("vocab-size", vocab),
        FIGURE("num-experts", experts),
        FIGURE("moe-router-topk", experts_per_token),
        FIGURE("moe-ffn-hidden-size", expert_ffn),
        FIGURE("moe-shared-expert-intermediate-size", shared_ffn),
        FIGURE("q-lora-rank", q_lora_rank),
        FIGURE("kv-lora-rank", kv_lora_rank),
        FIGURE("qk-head-dim", nope_head_dim),
        FIGURE("qk-pos-emb-head-dim", rope_head_dim),
        FIGURE("v-head-dim", v_head_dim),
        FLAG("swiglu", gated, m->gated, true),
        FLAG("untie-embeddings-and-output-weights", tied, a->untied, false),
        FLAG("normalization", norm_bias, a->norm, a->norm && strcmp(a->norm, "LayerNorm") == 0),
        FLAG("disable-bias-linear", mlp_bias, a->no_bias, false),
        FLAG("add-qkv-bias", qkv_bias, a->qkv_bias, true),
        FLAG("qk-layernorm", qk_norm, a->qk_norm && !a->mla, true),
        FLAG("multi-latent-attention", mla, a->mla, true),
        FLAG("moe-router-enable-expert-bias", router_bias, m->router_bias, true),
        FLAG("moe-shared-expert-gate", shared_gate, m->shared_gate, true),
#undef FLAG
#undef FIGURE
#undef AT
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].said) config_claim(c, rows[i].key, rows[i].offset, rows[i].flag, rows[i].value);
    if (!m->layers && !m->hidden && !m->heads) return;
    c->lacks = config_own(
        c, mem_printf("%s: --num-layers, --hidden-size and --num-attention-heads go together; "
                      "they are %" PRIu64 ", %" PRIu64 " and %" PRIu64,
                      config_where(&c->items, m->layers   ? "num-layers"
                                              : m->hidden ? "hidden-size"
                                                          : "num-attention-heads"),
                      m->layers, m->hidden, m->heads));
}

/* The same of dense layers, as far as the text has their number by itself. */
static int set_moe_claim(struct config *c, const struct megatron *a, struct err *err)
{
    unsigned long long dense = 0, moe = 0;
    struct model sum = {0};
    const char *text = a->moe_layers;
    if (!text) return 0;
    if (sscanf(text, "([0]*%llu+[1]*%llu", &dense, &moe) == 2) sum.layers = dense + moe;
    for (const char *s = text; *text == '[' && *s; s++)
        sum.layers += *s == '0' || *s == '1';
    if (!sum.layers && strcmp(text, "1") != 0)
        return err_add(err, ERR_USAGE,
                       "%s: \"%.60s\" is not modelled; known: 1, and dense layers in front, as in "
                       "([0]*3+[1]*29)",
                       config_where(&c->items, "moe-layer-freq"), text);
    if (set_moe_layers(c, &sum, text, err)) return -1;
    config_claim(c, "moe-layer-freq", offsetof(struct model, dense_layers), false,
                 sum.dense_layers);
    return 0;
}

static int set_shape(struct config *c, const struct megatron *a, struct err *err)
{
    struct model *m = &c->shape;
    *m = a->m;
    if (!m->layers || !m->hidden || !m->heads) {
        set_claims(c, a);
        return set_moe_claim(c, a, err);
    }
    c->has_shape = true;
    m->name = mem_strdup("megatron-args");
    if (!m->ffn) m->ffn = model_default_ffn(m->hidden, m->gated);
    m->kv_heads = a->grouped ? a->query_groups ? a->query_groups : 1 : 0;
    m->tied = !a->untied;
    m->norm_bias = !a->norm || strcmp(a->norm, "LayerNorm") == 0;
    m->qkv_bias = a->qkv_bias || !a->no_bias;
    m->out_bias = m->mlp_bias = !a->no_bias;
    m->expert_bias = m->experts && !a->no_bias;
    m->qk_norm = a->qk_norm;
    m->max_positions = a->position_rows;
    bool learned = !a->rope && !a->no_positions &&
                   (!a->positions || strcmp(a->positions, "learned_absolute") == 0);
    if (learned) m->positions = a->position_rows;
    if (a->mla) set_latent(m);
    if (!m->experts) return 0;
    if (!m->experts_per_token) m->experts_per_token = 2;
    if (!m->expert_ffn) m->expert_ffn = m->ffn;
    return set_moe_layers(c, m, a->moe_layers, err);
}

/* Words of old releases that newer ones refuse, with what stands for them now. */
static int refuse_old(const struct config *c, struct err *err)
{
    static const char *const old[][2] = {{"model-parallel-size", "tensor-model-parallel-size"},
                                         {"batch-size", "micro-batch-size"},
                                         {"checkpoint-activations", "recompute-activations"}};
    int result = 0;
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        const struct config_item *item = config_find(&c->items, old[i][0]);
        if (item)
            result = err_add(err, ERR_USAGE, "%s: is called --%s now", item->where, old[i][1]);
    }
    return result;
}

static int translate(struct config *c, void *said, struct err *err)
{
    const struct megatron *a = said;
    if (refuse_old(c, err) || check_pairs(c, a, err)) return -1;
    set_degrees(c, a);
    set_sharding(c, a);
    set_features(c, a);
    int result = set_recompute(c, a, err);
    result |= set_precision(c, a, err);
    return result | set_shape(c, a, err);
}

/* ---- writing ---- */

static void say(FILE *to, const char *option, uint64_t value)
{
    fprintf(to, " \\\n  --%s %" PRIu64, option, value);
}

static void say_word(FILE *to, bool wanted, const char *words_)
{
    if (wanted) fprintf(to, " \\\n  --%s", words_);
}

/* Numbers that are said only when they are not what their absence means. */
static void say_unless(FILE *to, const char *option, uint64_t value, uint64_t usual)
{
    if (value != usual) say(to, option, value);
}

static void write_shape(FILE *to, const struct model *m, uint64_t seq)
{
    say(to, "num-layers", m->layers);
    say(to, "hidden-size", m->hidden);
    say(to, "ffn-hidden-size", m->ffn);
    say(to, "num-attention-heads", m->heads);
    if (!m->mla) {
        if (m->kv_heads != m->heads) {
            say_word(to, true, "group-query-attention");
            say(to, "num-query-groups", m->kv_heads);
        }
        say(to, "kv-channels", m->head_dim);
    }
    say(to, "vocab-size", m->vocab);
    uint64_t rows = m->max_positions && m->max_positions < seq ? seq : m->max_positions;
    say_unless(to, "max-position-embeddings", m->positions ? m->positions : rows, 0);
    say_word(to, !m->positions, "position-embedding-type rope");
    say_word(to, m->gated, "swiglu");
    say_word(to, !m->tied, "untie-embeddings-and-output-weights");
    say_word(to, !m->norm_bias, "normalization RMSNorm");
    say_word(to, !m->out_bias, "disable-bias-linear");
    say_word(to, m->qkv_bias && !m->out_bias, "add-qkv-bias");
    say_word(to, m->qk_norm, "qk-layernorm");
    if (m->mla) {
        say_word(to, true, "multi-latent-attention");
        say_unless(to, "q-lora-rank", m->q_lora_rank, 0);
        say(to, "kv-lora-rank", m->kv_lora_rank);
        say(to, "qk-head-dim", m->nope_head_dim);
        say(to, "qk-pos-emb-head-dim", m->rope_head_dim);
        say(to, "v-head-dim", m->v_head_dim);
    }
    if (!m->experts) return;
    say(to, "num-experts", m->experts);
    say(to, "moe-router-topk", m->experts_per_token);
    if (m->router_groups > 1 && m->router_group_topk) {
        say(to, "moe-router-num-groups", m->router_groups);
        say(to, "moe-router-group-topk", m->router_group_topk);
    }
    say(to, "moe-ffn-hidden-size", m->expert_ffn);
    say_unless(to, "moe-shared-expert-intermediate-size", m->shared_ffn, 0);
    say_word(to, m->router_bias, "moe-router-enable-expert-bias");
    say_word(to, m->shared_gate, "moe-shared-expert-gate");
    if (m->dense_layers)
        fprintf(to, " \\\n  --moe-layer-freq '([0]*%" PRIu64 "+[1]*%" PRIu64 ")'", m->dense_layers,
                m->layers - m->dense_layers);
}

/* Whether stages were given their layers one by one (--layers), and those between the first and the
 * last have the same number: that can be said by the two. */
static bool ends_differ(const struct strategy *s)
{
    const uint64_t *layout = s->layout;
    size_t n = s->nlayout;
    const struct layout_args *a = &s->layout_args;
    if (n < 2 || n != s->pp || a->first || a->last || a->embedding || a->loss) return false;
    for (size_t i = 2; i + 1 < n; i++)
        if (layout[i] != layout[1]) return false;
    return layout[0] != layout[1] || layout[n - 1] != layout[n - 2];
}

static void write_degrees(FILE *to, const struct strategy *s, bool moe)
{
    say_unless(to, "tensor-model-parallel-size", s->tp, 1);
    say_word(to, s->sp || s->sp_asked, "sequence-parallel");
    say_unless(to, "pipeline-model-parallel-size", s->pp, 1);
    say_unless(to, "num-virtual-stages-per-pipeline-rank", s->vpp, 1);
    uint64_t first = s->layout_args.first, last = s->layout_args.last;
    if (ends_differ(s)) first = s->layout[0], last = s->layout[s->nlayout - 1];
    say_unless(to, "decoder-first-pipeline-num-layers", first, 0);
    say_unless(to, "decoder-last-pipeline-num-layers", last, 0);
    say_word(to, s->layout_args.embedding, "account-for-embedding-in-pipeline-split");
    say_word(to, s->layout_args.loss, "account-for-loss-in-pipeline-split");
    say_unless(to, "context-parallel-size", s->cp, 1);
    say_word(to, s->cp > 1 && s->ulysses, "cp-comm-type a2a");
    say_word(to, s->cp > 1 && !s->ulysses && s->framework.cp == CP_GATHER,
             "cp-comm-type all_gather");
    say_unless(to, "expert-model-parallel-size", s->ep, 1);
    if (moe || s->ep > 1 || s->etp > 1) say(to, "expert-tensor-parallel-size", s->etp);
    say_word(to, s->order[2] == AXIS_PP && s->order[3] == AXIS_DP, "use-tp-pp-dp-mapping");
    uint64_t replicas = s->dp * s->cp / (s->shards ? s->shards : 1);
    bool own = s->zero == ZERO_2 || (s->zero == ZERO_3 && replicas > 1); /* Megatron-FSDP */
    say_word(to, s->zero == ZERO_1 || own, "use-distributed-optimizer");
    say_word(to, own, "use-megatron-fsdp --ckpt-format fsdp_dtensor");
    say_word(to, own,
             s->zero == ZERO_2 ? "data-parallel-sharding-strategy optim_grads"
                               : "data-parallel-sharding-strategy optim_grads_params");
    say_word(to, s->zero == ZERO_3 && !own, "use-torch-fsdp2");
    say_word(to, own || s->zero == ZERO_3, "no-gradient-accumulation-fusion");
    say_unless(to, "num-distributed-optimizer-instances", replicas, 1);
    say(to, "micro-batch-size", s->micro_batch);
    say(to, "global-batch-size", s->global_batch);
    say(to, "seq-length", s->seq);
}

static void write_recompute(FILE *to, const struct strategy *s, bool moe)
{
    const struct {
        unsigned module;
        const char *name;
    } names[] = {{RCM_CORE_ATTN, "core_attn"},
                 {RCM_MLP, "mlp"},
                 {RCM_MOE, "moe"},
                 {moe ? RCM_ACT : 0, "moe_act"},
                 {RCM_MLA_UP, "mla_up_proj"},
                 {RCM_NORM, "layernorm"}};
    if (s->recompute == RC_FULL) {
        say_word(to, true, "recompute-granularity full");
        say_word(to, true, s->rc_blocks ? "recompute-method block" : "recompute-method uniform");
        say(to, "recompute-num-layers", s->rc_blocks ? s->rc_blocks : 1);
    } else if (s->recompute == RC_SELECTIVE) {
        say_word(to, true, "recompute-granularity selective");
        if (s->rc_modules != RCM_CORE_ATTN) {
            say_word(to, true, "recompute-modules");
            for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                if (s->rc_modules & names[i].module) fprintf(to, " %s", names[i].name);
        }
    }
}

static void write_precision(FILE *to, const struct strategy *s)
{
    static const struct {
        const char *name, *words;
    } names[] = {{"bf16", "bf16"},
                 {"fp16", "fp16"},
                 {"fp8", "bf16 --fp8-format hybrid"},
                 {"mxfp8", "bf16 --fp8-format e4m3 --fp8-recipe mxfp8"},
                 {"nvfp4", "bf16 --fp4-format e2m1"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        say_word(to, strcmp(s->precision->name, names[i].name) == 0, names[i].words);
    say_word(to, strcmp(s->optimizer->name, "momentum") == 0, "optimizer sgd");
}

static void write_features(FILE *to, const struct plan *plan)
{
    static const struct {
        const char *feature, *value, *words;
    } names[] = {
        {"attention", "fa2", "attention-backend flash"},
        {"attention", "unfused", "attention-backend unfused"},
        {"graphs", "full", "cuda-graph-impl local --cuda-graph-scope full_iteration"},
        {"graphs", "partial", "cuda-graph-impl transformer_engine"},
        {"dp-overlap", "on", "overlap-grad-reduce"},
        {"tp-overlap", "on", "tp-comm-overlap"},
        {"p2p-overlap", "off", "no-overlap-p2p-communication"},
        {"ep-overlap", "on", "overlap-moe-expert-parallel-comm"},
        {"ep-dedup", "on", "moe-token-dispatcher-type flex --moe-enable-deepep"},
        {"dropout", "off", "attention-dropout 0 --hidden-dropout 0"},
        {"grad-bytes", "2", "grad-reduce-in-bf16"},
        {"grad-store-bytes", "2", "use-precision-aware-optimizer --main-grads-dtype bf16"},
        {"fp8-params", "on", "fp8-param-gather"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        say_word(to, config_is(plan, names[i].feature, names[i].value), names[i].words);
    const struct strategy *s = &plan->strategy;
    const struct framework *f = &s->framework;
    bool bucket = f->dp_overlap && (s->zero < ZERO_3 || s->offload & OFFLOAD_OPTIMIZER);
    say_word(to, plan->job.gather_overlap, "overlap-param-gather");
    uint64_t params = f->bucket_bytes > 0         ? (uint64_t)(f->bucket_bytes / f->grad_bytes)
                      : f->bucket_params_per_rank ? 0
                                                  : f->bucket_params;
    if (bucket) say_unless(to, "ddp-bucket-size", params, 0);
    say_word(to, s->offload & OFFLOAD_OPTIMIZER, "optimizer-cpu-offload");
    /* it must be below --num-layers there (TransformerConfig of megatron/core) */
    uint64_t layers = plan->model.layers;
    if (s->offload & OFFLOAD_ACTIVATIONS)
        say(to, "cpu-offloading-num-layers", layers > 1 ? layers - 1 : layers);
    if (s->moe_capacity > 0)
        fprintf(to, " \\\n  --moe-expert-capacity-factor %.15g", s->moe_capacity);
    char buf[UNITS_TEXT];
    if (!config_is(plan, "vocab-multiple", "0"))
        fprintf(to, " \\\n  --make-vocab-size-divisible-by %s",
                config_value(plan, "vocab-multiple", buf));
}

static void write(FILE *to, const struct plan *plan)
{
    const struct strategy *s = &plan->strategy;
    fprintf(to, "torchrun --nnodes %zu --nproc-per-node %zu pretrain_gpt.py",
            (size_t)plan->topo.hosts, (size_t)plan->topo.per_host);
    write_shape(to, &plan->model, s->seq);
    write_degrees(to, s, plan->model.experts > 0);
    write_recompute(to, s, plan->model.experts > 0);
    write_precision(to, s);
    write_features(to, plan);
    fputc('\n', to);
}

static const char *const beside[] = {NULL};

const struct config_format config_megatron = {
    .option = "megatron-args",
    .emit = "megatron",
    .framework = "megatron",
    .scan = config_scan_line,
    .words = words,
    .bytes = sizeof(struct megatron),
    .translate = translate,
    .write = write,
    .beside = beside,
    .unmodelled = unmodelled,
    .inline_text = true,
};
