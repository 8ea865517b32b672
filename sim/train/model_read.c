/* SPDX-License-Identifier: Apache-2.0
 * Reads Hugging Face config.json files. A family is a row of defaults (those of its configuration
 * class in the transformers library); common members are read by one table for all; what is odd in
 * a family is one short function. What would change the layers in a way unknown here is refused. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/ship.h"
#include "train/model.h"
#include "train/model_parts.h"

struct reader {
    struct doc doc;
    const json_t *top; /* the file's object */
    const json_t *o;   /* the object that is counted: `top` or its text_config */
    const struct family *family;
    struct model *m;
    struct model_spec *specs; /* [layers] */
    struct err *err;
};

/* Which layers have a sliding window when no layer_types list says so. */
enum windows {
    WINDOW_NONE,
    WINDOW_ALL,       /* if sliding_window is set */
    WINDOW_QWEN,      /* if use_sliding_window, from layer max_window_layers on */
    WINDOW_ALTERNATE, /* layers 0, 2, 4, ... */
    WINDOW_PATTERN,   /* all but every sliding_window_pattern-th */
};

struct family {
    const char *type; /* model_type */
    bool gated, tied; /* tied: unless tie_word_embeddings says otherwise */
    bool norm_bias;   /* LayerNorm with bias */
    bool qkv_bias, out_bias, mlp_bias, head_bias; /* always there */
    bool qk_norm, qk_norm_full, embed_norm, learned_positions, parallel;
    bool mla, moe, router_bias, expert_bias, shared_gate, sinks;
    const char *bias_key; /* member that switches the biases of q, k, v, o; NULL: none */
    bool bias_default;    /* its value where absent */
    unsigned norms;       /* per layer */
    enum windows windows;
    uint64_t window, head_dim, heads, kv_heads, vocab; /* where absent; 0: none */
    void (*odd)(struct reader *r); /* after the common members; NULL: nothing odd */
};

enum {
    HIDDEN_MAX = 1 << 24,
    HEADS_MAX = 1 << 20,
    VOCAB_MAX = 1 << 30,
    WIDTH_MAX = 1 << 28,
    LENGTH_MAX = 1 << 30,
};

/* ---- common members ---- */

static const struct dimension {
    size_t offset;
    const char *keys[6]; /* equal names; the first is the one to ask for */
    uint64_t min, max;
    bool required;
} dimensions[] = {
#define DIM(field) offsetof(struct model, field)
    {DIM(hidden), {"hidden_size", "n_embd", "d_model", "n_embed"}, 1, HIDDEN_MAX, true},
    {DIM(layers),
     {"num_hidden_layers", "n_layer", "num_layers", "n_layers"},
     1,
     MODEL_LAYERS_MAX,
     true},
    {DIM(heads), {"num_attention_heads", "n_head", "num_heads", "n_heads"}, 1, HEADS_MAX, true},
    {DIM(vocab), {"vocab_size"}, 1, VOCAB_MAX, true},
    {DIM(ffn),
     {"intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"},
     1,
     WIDTH_MAX,
     false},
    {DIM(kv_heads), {"num_key_value_heads", "num_kv_heads", "n_head_kv"}, 1, HEADS_MAX, false},
    {DIM(head_dim), {"head_dim", "d_kv"}, 1, HIDDEN_MAX, false},
    {DIM(max_positions),
     {"max_position_embeddings", "n_positions", "max_seq_len"},
     1,
     LENGTH_MAX,
     false},
    {DIM(experts), {"num_local_experts", "num_experts", "n_routed_experts"}, 0, HEADS_MAX, false},
    {DIM(experts_per_token),
     {"num_experts_per_tok", "experts_per_token", "moe_topk"},
     1,
     HEADS_MAX,
     false},
    {DIM(router_groups), {"n_group"}, 0, HEADS_MAX, false},
    {DIM(router_group_topk), {"topk_group"}, 0, HEADS_MAX, false},
    {DIM(expert_ffn), {"moe_intermediate_size"}, 1, WIDTH_MAX, false},
    {DIM(shared_ffn), {"shared_expert_intermediate_size"}, 0, WIDTH_MAX, false},
#undef DIM
};

/* Reads a dimension under whichever of its names the file uses; two names must agree. */
static void read_dimension(struct reader *r, const struct dimension *dim)
{
    uint64_t *field = (uint64_t *)(void *)((char *)r->m + dim->offset), value = 0;
    const char *used = NULL;
    bool faulty = false;
    for (const char *const *key = dim->keys; *key; key++) {
        int got = doc_uint(&r->doc, r->o, *key, dim->min, dim->max, &value, r->err);
        faulty |= got < 0;
        if (got > 0 && used && value != *field) {
            doc_fault(&r->doc, r->err, r->o, *key,
                      "\"%s\" is %" PRIu64 " but \"%s\", another name of it, is %" PRIu64, *key,
                      value, used, *field);
        } else if (got > 0) {
            used = *key;
            *field = value;
        }
    }
    if (!used && !faulty && *field == 0 && dim->required) {
        doc_fault(&r->doc, r->err, r->o, NULL, "\"%s\" is missing", dim->keys[0]);
    }
}

/* A switch: `fallback` where absent. */
static bool flag(struct reader *r, const char *key, bool fallback)
{
    bool value = fallback;
    doc_bool(&r->doc, r->o, key, &value, r->err);
    return value;
}

static uint64_t number(struct reader *r, const char *key, uint64_t max, uint64_t fallback)
{
    uint64_t value = fallback;
    doc_uint(&r->doc, r->o, key, 0, max, &value, r->err);
    return value;
}

/* ---- what is odd in a family ---- */

static void odd_mixtral(struct reader *r)
{
    r->m->expert_ffn = r->m->ffn;
}

static void odd_qwen1(struct reader *r)
{
    r->m->ffn /= 2; /* the member counts gate and up together */
    uint64_t channels = number(r, "kv_channels", HIDDEN_MAX, 128);
    r->m->head_dim = r->m->head_dim ? r->m->head_dim : channels;
}

static void odd_deepseek(struct reader *r)
{
    struct model *m = r->m;
    m->q_lora_rank = number(r, "q_lora_rank", WIDTH_MAX, 0);
    static const struct {
        const char *key;
        size_t offset;
    } needed[] = {{"kv_lora_rank", offsetof(struct model, kv_lora_rank)},
                  {"qk_nope_head_dim", offsetof(struct model, nope_head_dim)},
                  {"qk_rope_head_dim", offsetof(struct model, rope_head_dim)},
                  {"v_head_dim", offsetof(struct model, v_head_dim)}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        uint64_t *field = (uint64_t *)(void *)((char *)m + needed[i].offset);
        if (doc_uint(&r->doc, r->o, needed[i].key, 1, HIDDEN_MAX, field, r->err) == 0) {
            doc_fault(&r->doc, r->err, r->o, NULL, "\"%s\" is missing", needed[i].key);
        }
    }
    m->head_dim = m->nope_head_dim + m->rope_head_dim;
    m->kv_heads = m->heads;
    m->shared_ffn = number(r, "n_shared_experts", HEADS_MAX, 0) * m->expert_ffn;
    m->mtp_layers = number(r, "num_nextn_predict_layers", MODEL_LAYERS_MAX, 0);
    const char *method = r->family->router_bias ? "noaux_tc" : "";
    doc_string(&r->doc, r->o, "topk_method", &method, r->err);
    m->router_bias = strcmp(method, "noaux_tc") == 0;
    if (flag(r, "attention_bias", false)) {
        doc_fault(&r->doc, r->err, r->o, "attention_bias",
                  "\"attention_bias\" is true, which is not known for latent attention");
    }
}

static void odd_gpt_oss(struct reader *r)
{
    r->m->expert_ffn = r->m->ffn;
}

static void odd_gpt2(struct reader *r)
{
    r->m->ffn = r->m->ffn ? r->m->ffn : 4 * r->m->hidden;
    r->m->kv_heads = r->m->heads;
}

static void odd_gpt_bigcode(struct reader *r)
{
    r->m->ffn = r->m->ffn ? r->m->ffn : 4 * r->m->hidden;
    r->m->kv_heads = flag(r, "multi_query", true) ? 1 : r->m->heads;
}

static void odd_mpt(struct reader *r)
{
    struct model *m = r->m;
    json_t *attention = NULL;
    bool alibi = false, learned = flag(r, "learned_pos_emb", true);
    doc_child(&r->doc, r->o, "attn_config", JSON_OBJECT, &attention, r->err);
    doc_bool(&r->doc, attention, "alibi", &alibi, r->err);
    doc_uint(&r->doc, attention, "kv_n_heads", 1, HEADS_MAX, &m->kv_heads, r->err);
    m->positions = learned && !alibi ? m->max_positions : 0;
    m->ffn = m->hidden * number(r, "expansion_ratio", 1024, 4);
    bool bias = !flag(r, "no_bias", true);
    m->qkv_bias = m->out_bias = m->mlp_bias = m->norm_bias = bias;
}

static void odd_falcon(struct reader *r)
{
    struct model *m = r->m;
    bool grouped = flag(r, "new_decoder_architecture", json_object_get(r->o, "n_head_kv") != NULL);
    bool one_kv = flag(r, "multi_query", !grouped);
    m->parallel = flag(r, "parallel_attn", true) || grouped;
    if (!grouped || m->kv_heads == 0) {
        m->kv_heads = !grouped && one_kv ? 1 : m->heads;
    }
    m->norms = grouped ? number(r, "num_ln_in_parallel_attn", 2, 2) : m->parallel ? 1 : 2;
    m->ffn = m->ffn ? m->ffn : 4 * m->hidden;
    m->qkv_bias = m->out_bias = m->mlp_bias = flag(r, "bias", false);
}

static void odd_opt(struct reader *r)
{
    struct model *m = r->m;
    m->positions = m->max_positions ? m->max_positions + 2 : 0;
    uint64_t width = number(r, "word_embed_proj_dim", HIDDEN_MAX, m->hidden);
    m->embed_dim = width == m->hidden ? 0 : width;
    m->final_norm =
        flag(r, "do_layer_norm_before", true) && !flag(r, "_remove_final_layer_norm", false);
    m->qkv_bias = m->out_bias = m->mlp_bias = flag(r, "enable_bias", true);
    if (!flag(r, "layer_norm_elementwise_affine", true)) {
        m->norms = 0;
        m->final_norm = false;
    }
}

static void odd_starcoder2(struct reader *r)
{
    r->m->mlp_bias = r->m->qkv_bias;
}

static void odd_stablelm(struct reader *r)
{
    r->m->qkv_bias = flag(r, "use_qkv_bias", false);
    r->m->parallel = flag(r, "use_parallel_residual", false);
    r->m->norms = r->m->parallel ? 1 : 2;
}

static void odd_cohere(struct reader *r)
{
    r->m->qk_norm_full = flag(r, "use_qk_norm", false);
}

static void odd_llama(struct reader *r)
{
    r->m->mlp_bias = flag(r, "mlp_bias", false);
}

static void odd_bloom(struct reader *r)
{
    r->m->ffn = 4 * r->m->hidden;
    r->m->kv_heads = r->m->heads;
}

static void odd_t5(struct reader *r)
{
    struct model *m = r->m;
    const char *activation = "relu";
    doc_string(&r->doc, r->o, "feed_forward_proj", &activation, r->err);
    m->gated = strncmp(activation, "gated-", 6) == 0;
    m->encoder_layers = m->layers;
    m->layers += number(r, "num_decoder_layers", MODEL_LAYERS_MAX / 2, m->layers);
    m->position_buckets = number(r, "relative_attention_num_buckets", LENGTH_MAX, 32);
    m->kv_heads = m->heads;
}

/* ---- families: defaults of their configuration classes in transformers ---- */

#define LLAMA_LIKE .gated = true, .norms = 2
#define ALL_BIASES .qkv_bias = true, .out_bias = true, .mlp_bias = true, .norm_bias = true
static const struct family families[] = {
    {"baichuan", LLAMA_LIKE},
    {"bloom", ALL_BIASES, .tied = true, .embed_norm = true, .norms = 2, .odd = odd_bloom},
    {"cohere", .gated = true, .tied = true, .norms = 1, .parallel = true,
     .bias_key = "attention_bias", .odd = odd_cohere},
    {"deepseek_v2", LLAMA_LIKE, .mla = true, .moe = true, .odd = odd_deepseek},
    {"deepseek_v3", LLAMA_LIKE, .mla = true, .moe = true, .router_bias = true, .odd = odd_deepseek},
    {"falcon", .tied = true, .norm_bias = true, .norms = 1, .odd = odd_falcon},
    {"gemma", LLAMA_LIKE, .tied = true, .bias_key = "attention_bias", .head_dim = 256},
    {"gemma2", .gated = true, .norms = 4, .tied = true, .bias_key = "attention_bias",
     .head_dim = 256, .windows = WINDOW_ALTERNATE, .window = 4096},
    {"gemma3_text", .gated = true, .norms = 4, .tied = true, .qk_norm = true,
     .bias_key = "attention_bias", .head_dim = 256, .windows = WINDOW_PATTERN, .window = 4096,
     .heads = 8, .kv_heads = 4, .vocab = 262208},
    {"gpt2", ALL_BIASES, .tied = true, .learned_positions = true, .norms = 2, .odd = odd_gpt2},
    {"gpt_bigcode", ALL_BIASES, .tied = true, .learned_positions = true, .norms = 2,
     .odd = odd_gpt_bigcode},
    {"gpt_neox", .mlp_bias = true, .norm_bias = true, .bias_key = "attention_bias",
     .bias_default = true, .parallel = true, .norms = 2},
    {"gpt_oss", LLAMA_LIKE, .moe = true, .router_bias = true, .expert_bias = true, .sinks = true,
     .bias_key = "attention_bias", .bias_default = true, .head_dim = 64,
     .windows = WINDOW_ALTERNATE, .window = 128, .odd = odd_gpt_oss},
    {"gptj", .mlp_bias = true, .norm_bias = true, .head_bias = true, .parallel = true, .norms = 1,
     .odd = odd_gpt2},
    {"granite", LLAMA_LIKE, .bias_key = "attention_bias", .odd = odd_llama},
    {"internlm", LLAMA_LIKE, .bias_key = "bias", .bias_default = true},
    {"internlm2", LLAMA_LIKE, .bias_key = "bias", .bias_default = true},
    {"kimi_k2", LLAMA_LIKE, .mla = true, .moe = true, .router_bias = true, .odd = odd_deepseek},
    {"llama", LLAMA_LIKE, .bias_key = "attention_bias", .odd = odd_llama},
    {"mistral", LLAMA_LIKE, .windows = WINDOW_ALL, .window = 4096},
    {"mixtral", LLAMA_LIKE, .moe = true, .windows = WINDOW_ALL, .odd = odd_mixtral},
    {"mpt", .tied = true, .norms = 2, .odd = odd_mpt},
    {"mt5", .norms = 2, .odd = odd_t5},
    {"nemotron", .norm_bias = true, .norms = 2, .bias_key = "attention_bias", .odd = odd_llama},
    {"olmo2", LLAMA_LIKE, .qk_norm_full = true, .bias_key = "attention_bias"},
    {"opt", .tied = true, .norm_bias = true, .norms = 2, .odd = odd_opt},
    {"phi", ALL_BIASES, .head_bias = true, .parallel = true, .norms = 1},
    {"phi3", LLAMA_LIKE, .windows = WINDOW_ALL},
    {"qwen", LLAMA_LIKE, .qkv_bias = true, .odd = odd_qwen1},
    {"qwen2", LLAMA_LIKE, .qkv_bias = true, .windows = WINDOW_QWEN, .window = 4096},
    {"qwen2_moe", LLAMA_LIKE, .qkv_bias = true, .moe = true, .shared_gate = true,
     .windows = WINDOW_QWEN, .window = 4096},
    {"qwen3", LLAMA_LIKE, .qk_norm = true, .bias_key = "attention_bias", .head_dim = 128,
     .windows = WINDOW_QWEN, .window = 4096},
    {"qwen3_moe", LLAMA_LIKE, .qk_norm = true, .moe = true, .bias_key = "attention_bias",
     .windows = WINDOW_QWEN, .window = 4096},
    {"smollm3", LLAMA_LIKE, .tied = true, .bias_key = "attention_bias", .odd = odd_llama,
     .windows = WINDOW_QWEN, .window = 4096},
    {"stablelm", LLAMA_LIKE, .norm_bias = true, .odd = odd_stablelm},
    {"starcoder2", .tied = true, .norm_bias = true, .norms = 2, .bias_key = "use_bias",
     .bias_default = true, .windows = WINDOW_ALL, .odd = odd_starcoder2},
    {"t5", .tied = true, .norms = 2, .odd = odd_t5},
};
enum { NFAMILIES = sizeof families / sizeof *families };

/* Known by name, and known to hold layers that this program cannot count or time. */
static const struct {
    const char *type, *layers;
} refused[] = {
    {"bert", "bidirectional encoder layers"},
    {"deepseek_v32", "attention with an index of chosen tokens"},
    {"falcon_h1", "state-space layers beside attention"},
    {"falcon_mamba", "state-space layers"},
    {"gemma3n_text", "layers with alternating updates and shared keys"},
    {"jamba", "state-space layers among attention layers"},
    {"kimi_linear", "linear-attention layers"},
    {"mamba", "state-space layers"},
    {"mamba2", "state-space layers"},
    {"minimax", "linear-attention layers"},
    {"mllama_text_model", "cross-attention layers to an image"},
    {"nemotron_h", "state-space layers among attention layers"},
    {"qwen3_next", "linear-attention layers, three of four"},
    {"qwen3_5_text", "linear-attention layers"},
    {"recurrent_gemma", "recurrent layers"},
    {"rwkv", "recurrent layers"},
    {"zamba", "state-space layers"},
    {"zamba2", "state-space layers"},
};

/* Members that change what a layer holds in a way that is not known here: refused unless null,
 * false, 0 or empty. */
static const struct {
    const char *key, *what;
} foreign[] = {
    {"full_attention_interval", "linear-attention layers"},
    {"linear_num_key_heads", "linear-attention layers"},
    {"linear_attn_config", "linear-attention layers"},
    {"mamba_d_state", "state-space layers"},
    {"mamba_num_heads", "state-space layers"},
    {"ssm_cfg", "state-space layers"},
    {"state_size", "state-space layers"},
    {"attn_layer_period", "layers without attention"},
    {"attn_layer_indices", "layers without attention"},
    {"layers_block_type", "layers of several types"},
    {"block_types", "layers of several types"},
    {"hybrid_override_pattern", "layers of several types"},
    {"block_configs", "layers of different shapes"},
    {"cross_attention_layers", "cross-attention layers"},
    {"add_cross_attention", "cross-attention layers"},
    {"index_topk", "attention with an index of chosen tokens"},
    {"altup_num_inputs", "layers with alternating updates"},
    {"num_kv_shared_layers", "layers that share keys"},
    {"hidden_size_per_layer_input", "a token table per layer"},
    {"zero_expert_num", "experts without weights"},
    {"qk_layernorm", "query and key norms whose shape is not known for this family"},
};

const char *const *model_families(void)
{
    static const char *names[NFAMILIES + 1];
    for (size_t i = 0; i < NFAMILIES; i++) {
        names[i] = families[i].type;
    }
    return names;
}

/* Older or outer names of families. */
static const struct {
    const char *type, *family;
} aliases[] = {{"RefinedWeb", "falcon"},
               {"RefinedWebModel", "falcon"},
               {"gemma3", "gemma3_text"},
               {"mistral3", "mistral"},
               {"InternLM", "internlm"}};

static const struct family *find_family(struct reader *r, const json_t *where, const char *type)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (strcmp(type, refused[i].type) == 0) {
            doc_fault(&r->doc, r->err, where, "model_type",
                      "model_type \"%s\" has %s, which are not modelled", type, refused[i].layers);
            return NULL;
        }
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        type = strcmp(type, aliases[i].type) == 0 ? aliases[i].family : type;
    }
    for (size_t i = 0; i < NFAMILIES; i++) {
        if (strcmp(type, families[i].type) == 0) {
            return &families[i];
        }
    }
    struct err inner = ERR_INIT;
    opts_unknown(&inner, "model_type", type, model_families());
    doc_fault(&r->doc, r->err, where, "model_type", "%s", inner.text);
    err_release(&inner);
    return NULL;
}

/* ---- layers ---- */

static bool is_set(const json_t *value)
{
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_number(value) && json_number_value(value) == 0) &&
           !((json_is_array(value) || json_is_object(value)) && json_array_size(value) == 0 &&
             json_object_size(value) == 0);
}

static void refuse_foreign(struct reader *r)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (is_set(json_object_get(r->o, foreign[i].key))) {
            doc_fault(&r->doc, r->err, r->o, foreign[i].key,
                      "\"%s\" means %s, which %s models are not known to have here", foreign[i].key,
                      foreign[i].what, r->family->type);
        }
    }
    json_t *experts = NULL;
    static const char *const names[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    for (size_t i = 0; i < 3 && !r->family->moe; i++) {
        experts = json_object_get(r->o, names[i]);
        if (json_is_integer(experts) && json_integer_value(experts) > 1) {
            doc_fault(&r->doc, r->err, r->o, names[i],
                      "\"%s\" means experts, which %s models are not known to have here", names[i],
                      r->family->type);
        }
    }
    bool stacks = flag(r, "is_encoder_decoder", r->m->encoder_layers > 0);
    if (stacks && r->m->encoder_layers == 0) {
        doc_fault(&r->doc, r->err, r->o, "is_encoder_decoder",
                  "\"is_encoder_decoder\" is true, but %s models have one stack", r->family->type);
    }
}

/* The sliding window: the family's where the member is absent, none where it is null. */
static uint64_t read_window(struct reader *r)
{
    const char *key = "sliding_window";
    if (r->family->windows == WINDOW_NONE && !json_object_get(r->o, "layer_types")) {
        return 0;
    }
    if (json_object_get(r->o, key)) {
        return number(r, key, LENGTH_MAX, 0);
    }
    if (r->family->window && r->family->windows != WINDOW_QWEN) {
        model_assume(r->m, "sliding_window is absent: %" PRIu64 ", the default of %s",
                     r->family->window, r->family->type);
    }
    return r->family->window;
}

static bool sliding_by_rule(struct reader *r, uint64_t layer, uint64_t pattern, uint64_t first)
{
    switch (r->family->windows) {
    case WINDOW_ALL:
        return true;
    case WINDOW_QWEN:
        return layer >= first;
    case WINDOW_ALTERNATE:
        return layer % 2 == 0;
    case WINDOW_PATTERN:
        return (layer + 1) % pattern != 0;
    default:
        return false;
    }
}

/* layer_types: one word per layer. */
static void read_layer_types(struct reader *r, json_t *types, uint64_t window)
{
    if (json_array_size(types) != r->m->layers) {
        doc_fault(&r->doc, r->err, r->o, "layer_types",
                  "\"layer_types\" has %zu entries for %" PRIu64 " layers", json_array_size(types),
                  r->m->layers);
        return;
    }
    for (size_t i = 0; i < r->m->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        if (!type || (!sliding && strcmp(type, "full_attention") != 0)) {
            doc_fault_item(&r->doc, r->err, types, i,
                           "layer %zu is \"%.60s\", a type that is not known here; known: "
                           "full_attention, sliding_attention",
                           i, type ? type : "(no string)");
        } else if (sliding && window == 0) {
            doc_fault_item(&r->doc, r->err, types, i,
                           "layer %zu has a sliding window but \"sliding_window\" is not set", i);
        }
        r->specs[i].window = sliding ? window : 0;
    }
}

static void read_windows(struct reader *r)
{
    uint64_t window = read_window(r), layers = r->m->layers;
    uint64_t pattern = 6, first = layers;
    json_t *types = NULL;
    doc_uint(&r->doc, r->o, "sliding_window_pattern", 1, MODEL_LAYERS_MAX, &pattern, r->err);
    if (r->family->windows == WINDOW_QWEN && flag(r, "use_sliding_window", false)) {
        first = number(r, "max_window_layers", MODEL_LAYERS_MAX, 28);
    }
    if (doc_child(&r->doc, r->o, "layer_types", JSON_ARRAY, &types, r->err) > 0) {
        read_layer_types(r, types, window);
    } else {
        for (uint64_t i = 0; i < layers; i++) {
            r->specs[i].window = sliding_by_rule(r, i, pattern, first) ? window : 0;
        }
    }
    for (uint64_t i = 0; i < layers; i++) {
        r->m->window = r->specs[i].window ? window : r->m->window;
    }
}

/* mlp_only_layers: layers that stay dense. */
static void read_dense_list(struct reader *r)
{
    json_t *list = NULL;
    doc_child(&r->doc, r->o, "mlp_only_layers", JSON_ARRAY, &list, r->err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *item = json_array_get(list, i);
        json_int_t layer = json_integer_value(item);
        if (!json_is_integer(item) || layer < 0 || (uint64_t)layer >= r->m->layers) {
            doc_fault_item(&r->doc, r->err, list, i,
                           "\"mlp_only_layers\" holds layers in 0..%" PRIu64 " only",
                           r->m->layers - 1);
        } else {
            r->specs[layer].moe = false;
        }
    }
}

static void read_moe_layers(struct reader *r)
{
    struct model *m = r->m;
    uint64_t first = 0, step = 1, every = 1;
    doc_uint(&r->doc, r->o, "first_k_dense_replace", 0, m->layers, &first, r->err);
    doc_uint(&r->doc, r->o, "moe_layer_freq", 1, MODEL_LAYERS_MAX, &every, r->err);
    doc_uint(&r->doc, r->o, "decoder_sparse_step", 1, MODEL_LAYERS_MAX, &step, r->err);
    for (uint64_t i = 0; i < m->layers; i++) {
        r->specs[i].moe = i >= first && i % every == 0 && (i + 1) % step == 0;
    }
    read_dense_list(r);
    while (m->dense_layers < m->layers && !r->specs[m->dense_layers].moe) {
        m->dense_layers++;
    }
}

static void read_layers(struct reader *r)
{
    struct model *m = r->m;
    r->specs = mem_calloc(m->layers, sizeof *r->specs);
    for (uint64_t i = 0; i < m->layers; i++) {
        r->specs[i].causal = i >= m->encoder_layers;
        r->specs[i].cross = m->encoder_layers && i >= m->encoder_layers;
    }
    read_windows(r);
    if (r->family->moe) {
        read_moe_layers(r);
    }
}

/* ---- a file ---- */

static void apply_family(struct reader *r)
{
    struct model *m = r->m;
    const struct family *f = r->family;
    m->family = f->type;
    m->heads = f->heads;
    m->kv_heads = f->kv_heads;
    m->vocab = f->vocab;
    m->norms = f->norms;
    m->gated = f->gated;
    m->mla = f->mla;
    m->norm_bias = f->norm_bias;
    m->qkv_bias = f->qkv_bias;
    m->out_bias = f->out_bias;
    m->mlp_bias = f->mlp_bias;
    m->head_bias = f->head_bias;
    m->qk_norm = f->qk_norm;
    m->qk_norm_full = f->qk_norm_full;
    m->router_bias = f->router_bias;
    m->expert_bias = f->expert_bias;
    m->shared_gate = f->shared_gate;
    m->sinks = f->sinks;
    m->embed_norm = f->embed_norm;
    m->parallel = f->parallel;
    m->final_norm = true;
}

/* tie_word_embeddings may stand beside the text_config instead of inside it. */
static bool read_tied(struct reader *r)
{
    bool tied = r->family->tied;
    if (doc_bool(&r->doc, r->o, "tie_word_embeddings", &tied, r->err) == 0 && r->o != r->top) {
        doc_bool(&r->doc, r->top, "tie_word_embeddings", &tied, r->err);
    }
    return tied;
}

/* The name under which the file gives the dimension at `offset`; NULL if it does not. */
static const char *key_in_file(const struct reader *r, size_t offset)
{
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        for (const char *const *key = dimensions[i].keys; *key; key++) {
            if (dimensions[i].offset == offset && json_object_get(r->o, *key)) {
                return *key;
            }
        }
    }
    return NULL;
}

static void check_members(struct reader *r)
{
    struct model_fault faults[MODEL_FAULTS_MAX];
    size_t n = r->err->count ? 0 : model_check(r->m, faults);
    for (size_t i = 0; i < n; i++) {
        doc_fault(&r->doc, r->err, r->o, key_in_file(r, faults[i].offset), "%s",
                  faults[i].sentence);
        free(faults[i].sentence);
    }
}

static void read_members(struct reader *r)
{
    struct model *m = r->m;
    const struct family *f = r->family;
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        read_dimension(r, &dimensions[i]);
    }
    if (f->learned_positions) {
        m->positions = m->max_positions;
        if (m->positions == 0) {
            doc_fault(&r->doc, r->err, r->o, NULL,
                      "\"n_positions\" is missing, and %s models learn a position table", f->type);
        }
    }
    m->tied = read_tied(r);
    if (f->bias_key) {
        m->qkv_bias = m->out_bias = flag(r, f->bias_key, f->bias_default);
    }
    if (f->odd) {
        f->odd(r);
    }
    if (m->head_dim == 0) {
        m->head_dim = f->head_dim;
    }
    if (m->ffn == 0 && m->hidden) {
        m->ffn = model_default_ffn(m->hidden, m->gated);
        model_assume(m, "intermediate_size is absent: %" PRIu64 ", Megatron's default%s", m->ffn,
                     m->gated ? " for a gated MLP, int(8 h / 3 / 64) * 64" : ", 4 h");
    }
    m->shared_gate &= m->shared_ffn > 0;
    if (f->moe && m->experts == 0) {
        doc_fault(&r->doc, r->err, r->o, NULL, "the number of experts (num_experts) is missing");
    }
    refuse_foreign(r);
    check_members(r);
}

/* The object to count: the file's, or its text_config. Returns 0 or -1. */
static int choose_object(struct reader *r)
{
    static const char *const inner[] = {"text_config", "llm_config", "language_config"};
    if (!json_is_object(r->doc.root)) {
        return doc_fault(&r->doc, r->err, NULL, NULL, "a config.json must be an object");
    }
    r->top = r->o = r->doc.root;
    json_t *text = NULL;
    for (size_t i = 0; i < sizeof inner / sizeof *inner && !text; i++) {
        int got = doc_child(&r->doc, r->top, inner[i], JSON_OBJECT, &text, r->err);
        if (got < 0) {
            return -1;
        }
        if (got > 0) {
            r->o = text;
            r->m->part = inner[i];
        }
    }
    return 0;
}

/* model_type of the text part, or else of the file. */
static int choose_family(struct reader *r)
{
    const char *type = NULL;
    const json_t *where = r->o;
    int got = doc_string(&r->doc, r->o, "model_type", &type, r->err);
    if (got == 0 && r->o != r->top) {
        where = r->top;
        got = doc_string(&r->doc, r->top, "model_type", &type, r->err);
    }
    if (got == 0) {
        return doc_fault(&r->doc, r->err, r->o, NULL,
                         "\"model_type\" is missing, so the layers are not known");
    }
    r->family = got > 0 ? find_family(r, where, type) : NULL;
    return r->family ? 0 : -1;
}

static int read_object(struct reader *r)
{
    if (choose_object(r) < 0 || choose_family(r) < 0) {
        return -1;
    }
    apply_family(r);
    read_members(r);
    if (r->err->count) {
        return -1;
    }
    read_layers(r);
    return r->err->count ? -1 : model_finish(r->m, r->specs, r->err);
}

/* "models/llama3-8b.json" -> "llama3-8b"; ".../Foo/config.json" -> "Foo" */
static char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    const char *start = file, *end = file + strlen(file);
    if (slash && strcmp(file, "config.json") == 0) {
        for (start = end = slash; start > path && start[-1] != '/'; start--) {
        }
    } else if (end - start > 5 && strcmp(end - 5, ".json") == 0) {
        end -= 5;
    }
    return mem_printf("%.*s", (int)(end - start), start);
}

/* Takes the doc. */
static int from_doc(struct model *model, struct doc doc, struct err *err)
{
    struct err own = ERR_INIT;
    struct model made = {.path = mem_strdup(doc.path), .name = name_of(doc.path)};
    struct reader r = {.doc = doc, .m = &made, .err = &own};
    int result = read_object(&r);
    free(r.specs);
    doc_release(&r.doc);
    if (result < 0) {
        model_release(&made);
    }
    *model = made;
    return err_move(err, &own);
}

int model_parse(struct model *model, const char *path, const char *text, size_t bytes,
                struct err *err)
{
    struct doc doc;
    *model = (struct model){0};
    return doc_parse(&doc, path, text, bytes, err) < 0 ? -1 : from_doc(model, doc, err);
}

/* The preset of that name; NULL if there is none, or for a path: it has a slash or ends in .json.
 */
static char *find_preset(const char *name)
{
    struct stat st;
    size_t length = strlen(name);
    bool is_path = strchr(name, '/') || (length > 5 && strcmp(name + length - 5, ".json") == 0);
    char *folder = is_path || !*name ? NULL : ship_folder("models");
    char *path = folder ? mem_printf("%s/%s.json", folder, name) : NULL;
    free(folder);
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode)) return path;
    free(path);
    return NULL;
}

/* A preset comes before a file or folder of the same name. */
static char *find_model(const char *name, struct err *err)
{
    struct stat st;
    char *preset = find_preset(name);
    if (preset) return preset;
    if (*name && stat(name, &st) == 0 && S_ISDIR(st.st_mode)) {
        return mem_printf("%s/config.json", name);
    }
    char *path = ship_find("models", name, ".json");
    if (!path && strchr(name, '/')) {
        err_add(err, ERR_USAGE, "model %s: no such file", name);
    } else if (!path) {
        char **names = ship_names("models", ".json", NULL);
        opts_unknown(err, "model", name, (const char *const *)names);
        ship_names_free(names);
    }
    return path;
}

int model_read(struct model *model, const char *name_or_path, struct err *err)
{
    struct doc doc;
    *model = (struct model){0};
    char *path = find_model(name_or_path, err);
    int result = path ? doc_read(&doc, path, err) : -1;
    free(path);
    return result < 0 ? -1 : from_doc(model, doc, err);
}
