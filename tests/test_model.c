/* SPDX-License-Identifier: Apache-2.0
 * Model shapes: published parameter counts are met exactly, well-known wrong readings are not
 * made, formulas add up, and faulty files get one sentence per fault with its line. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/mem.h"
#include "base/ship.h"
#include "train/model.h"

/* ---- the published counts ---- */

enum { ANY = 1 };
static const struct {
    const char *name;
    uint64_t params, active,
        wrong; /* active 0: = params, ANY: not published; wrong: a misreading */
} published[] = {
    {"llama2-7b", 6738415616, 0, 6738417664},
    {"llama2-13b", 13015864320, 0, 13015866880},
    {"llama2-70b", 68976648192, 0, 68976653312},
    {"7b", 6738415616, 0, 0},
    {"llama3-8b", 8030261248, 0, 0},
    {"llama3-70b", 70553706496, 0, 0},
    {"llama3-405b", 405853388800, 0, 0},
    {"llama3.2-1b", 1235814400, 0, 1235814400 + 262668288},
    {"llama3.2-3b", 3212749824, 0, 3212749824 + 394002432},
    {"mistral-7b-v0.1", 7241732096, 0, 0},
    {"mistral-7b-v0.3", 7248023552, 0, 0},
    {"mistral-nemo-12b", 12247782400, 0, 12772070400},
    {"mistral-small-3.2-24b", 23572403200, 0, 24011361280},
    {"qwen2.5-0.5b", 494032768, 0, 0},
    {"qwen2.5-7b", 7615616512, 0, 7615487488},
    {"qwen2.5-72b", 72706203648, 0, 0},
    {"qwen3-0.6b", 596049920, 0, 507965952},
    {"qwen3-4b", 4022468096, 0, 0},
    {"qwen3-8b", 8190735360, 0, 0},
    {"qwen3-14b", 14768307200, 0, 0},
    {"qwen3-32b", 32762123264, 0, 30497192960},
    {"gemma-7b", 8537680896, 0, 0},
    {"gemma-2b", 2506172416, 0, 0},
    {"gemma2-2b", 2614341888, 0, 0},
    {"gemma2-9b", 9241705984, 0, 0},
    {"gemma2-27b", 27227128320, 0, 0},
    {"gemma3-1b", 999885952, 0, 0},
    {"gemma3-4b", 3880263168, 0, 4300079472},
    {"gemma3-27b", 27009346304, 0, 27432406640},
    {"phi-2", 2779683840, 0, 0},
    {"phi-3-mini", 3821079552, 0, 0},
    {"phi-4", 14659507200, 0, 0},
    {"mixtral-8x7b", 46702792704, 12879925248, 0},
    {"qwen3-30b-a3b", 30532122624, 3353032704, 0},
    {"qwen3-235b-a22b", 235093634560, 22190763520, 0},
    {"qwen1.5-moe-a2.7b", 14315784192, 2689173504, 0},
    {"qwen2-57b-a14b", 57408658944, 14249270784, 0},
    {"deepseek-v3", 671026419200, 37552297472, 684531386000},
    {"deepseek-v2-lite", 15706484224, ANY, 0},
    {"gpt-oss-20b", 20914757184, ANY, 0},
    {"gpt2", 124439808, 0, 0},
    {"gpt2-large", 774030080, 0, 0},
    {"gpt2-xl", 1557611200, 0, 0},
    {"bloom-176b", 176247271424, 0, 0},
    {"bloom-1b1", 1065314304, 0, 0},
    {"falcon-7b", 6921720704, 0, 0},
    {"falcon-40b", 41303293952, 0, 0},
    {"falcon-180b", 179522565120, 0, 0},
    {"opt-6.7b", 6658473984, 0, 0},
    {"gpt-neox-20b", 20554567680, 0, 0},
    {"pythia-6.9b", 6857302016, 0, 0},
    {"t5-3b", 2851598336, 0, 0},
    {"t5-11b", 11307321344, 0, 0},
    {"flan-t5-xl", 2849757184, 0, 0},
    {"qwen-7b", 7721324544, 0, 0},
    {"gpt-j-6b", 6050882784, 0, 0},
    {"mpt-7b", 6649286656, 0, 0},
    {"starcoder2-15b", 15957889024, 0, 0},
};

static struct model read_model(const char *name)
{
    struct model model;
    struct err err = ERR_INIT;
    cr_assert_eq(model_read(&model, name, &err), 0, "%s: %s", name, err.text);
    return model;
}

Test(model, published_counts)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct model model = read_model(published[i].name);
        uint64_t active = published[i].active ? published[i].active : published[i].params;
        cr_expect_eq(model.params, published[i].params, "%s: %" PRIu64 " parameters, not %" PRIu64,
                     published[i].name, model.params, published[i].params);
        cr_expect(active == ANY || model.active == active, "%s: %" PRIu64 " active, not %" PRIu64,
                  published[i].name, model.active, active);
        cr_expect_neq(model.params, published[i].wrong);
        model_release(&model);
    }
}

/* ---- families without a preset: a config in one line each ---- */

static const struct {
    const char *text;
    uint64_t params;
} inline_configs[] = {
    {"{\"model_type\":\"opt\",\"hidden_size\":1024,\"num_hidden_layers\":24,\"ffn_dim\":4096,"
     "\"num_attention_heads\":16,\"vocab_size\":50272,\"max_position_embeddings\":2048,"
     "\"word_embed_proj_dim\":512,\"do_layer_norm_before\":false}",
     331196416},
    {"{\"model_type\":\"gpt_bigcode\",\"n_embd\":6144,\"n_layer\":40,\"n_head\":48,"
     "\"n_inner\":24576,\"n_positions\":8192,\"multi_query\":true,\"vocab_size\":49152}",
     15517456384},
    {"{\"model_type\":\"cohere\",\"hidden_size\":8192,\"num_hidden_layers\":40,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":64,\"intermediate_size\":22528,"
     "\"vocab_size\":256000}",
     34980831232},
    {"{\"model_type\":\"stablelm\",\"hidden_size\":2560,\"num_hidden_layers\":32,"
     "\"num_attention_heads\":32,\"intermediate_size\":6912,\"vocab_size\":50304}",
     2795443200},
    {"{\"model_type\":\"olmo2\",\"hidden_size\":4096,\"num_hidden_layers\":32,"
     "\"num_attention_heads\":32,\"intermediate_size\":11008,\"vocab_size\":100352}",
     7298617344},
    {"{\"model_type\":\"internlm2\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"bias\":false,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":14336,"
     "\"vocab_size\":92544}",
     7737708544},
    /* with learned positions and biases */
    {"{\"model_type\":\"mpt\",\"d_model\":4096,\"n_heads\":32,\"n_layers\":32,"
     "\"max_seq_len\":2048,\"no_bias\":false,\"vocab_size\":50368}",
     6658859008},
    /* StarCoder once more, its inner width left out: 4 h */
    {"{\"model_type\":\"gpt_bigcode\",\"n_embd\":6144,\"n_layer\":40,\"n_head\":48,"
     "\"n_positions\":8192,\"vocab_size\":49152}",
     15517456384},
    /* Falcon-40B with one norm per layer instead of two */
    {"{\"model_type\":\"falcon\",\"hidden_size\":8192,\"num_hidden_layers\":60,"
     "\"num_attention_heads\":128,\"num_kv_heads\":8,\"new_decoder_architecture\":true,"
     "\"num_ln_in_parallel_attn\":1,\"vocab_size\":65024}",
     41303293952 - 60 * 2 * 8192},
    /* Falcon-7B with a number of kv heads that multi_query overrules */
    {"{\"model_type\":\"falcon\",\"hidden_size\":4544,\"num_hidden_layers\":32,"
     "\"num_attention_heads\":71,\"num_kv_heads\":71,\"multi_query\":true,\"vocab_size\":65024}",
     6921720704},
    /* the older spelling of Falcon-40B */
    {"{\"model_type\":\"RefinedWeb\",\"hidden_size\":8192,\"n_layer\":60,\"n_head\":128,"
     "\"n_head_kv\":8,\"vocab_size\":65024}",
     41303293952},
};

static int parse(struct model *model, const char *text, struct err *err)
{
    return model_parse(model, "a.json", text, strlen(text), err);
}

Test(model, inline_configs)
{
    for (size_t i = 0; i < sizeof inline_configs / sizeof *inline_configs; i++) {
        struct model model;
        struct err err = ERR_INIT;
        cr_assert_eq(parse(&model, inline_configs[i].text, &err), 0, "%s", err.text);
        cr_expect_eq(model.params, inline_configs[i].params, "%s: %" PRIu64, model.family,
                     model.params);
        model_release(&model);
    }
}

/* ---- sums ---- */

/* All ways to the totals agree: terms, kinds of layers with what is outside, layer by layer. */
static void check_sums(const struct model *m)
{
    uint64_t params = 0, active = 0, mtp = 0, replicated = 0, copies = 0;
    size_t count;
    struct model_term *terms = model_terms(m, &count);
    for (size_t i = 0; i < count; i++) {
        *(terms[i].mtp ? &mtp : &params) += terms[i].each * terms[i].copies;
        active += terms[i].active * terms[i].copies;
        replicated += terms[i].replicated ? terms[i].each * terms[i].copies : 0;
        cr_expect(terms[i].each > 0 && terms[i].copies > 0 && *terms[i].numbers);
    }
    model_terms_free(terms, count);
    cr_expect_eq(params, m->params, "%s", m->name);
    cr_expect_eq(active, m->active, "%s", m->name);
    cr_expect_eq(mtp, m->mtp_params, "%s", m->name);
    uint64_t outside = 0, by_layer = 0;
    for (int part = 0; part < MODEL_PARTS; part++) {
        outside += m->once[part];
    }
    for (uint64_t i = 0; i < m->layers; i++) {
        by_layer += model_kind_params(model_layer(m, i));
    }
    for (size_t k = 0; k < m->nkinds; k++) {
        copies += m->kinds[k].copies;
        for (int part = 0; part < MODEL_PARTS; part++) {
            cr_expect_leq(m->kinds[k].replicated[part], m->kinds[k].params[part]);
        }
    }
    cr_expect_eq(outside + by_layer, m->params, "%s", m->name);
    cr_expect_eq(copies, m->layers);
    cr_expect_lt(replicated, m->params);
}

Test(model, every_preset_is_read)
{
    size_t count;
    char **names = ship_names("models", ".json", &count);
    cr_expect_geq(count, sizeof published / sizeof *published);
    for (size_t i = 0; i < count; i++) {
        struct model model = read_model(names[i]);
        check_sums(&model);
        model_release(&model);
    }
    ship_names_free(names);
}

/* Every formula of the table is evaluated once: a model that has everything. */
Test(model, everything_at_once)
{
    for (int bits = 0; bits < 16; bits++) {
        struct model model = {.name = mem_strdup("all"),
                              .layers = 5,
                              .hidden = 48,
                              .heads = 6,
                              .kv_heads = 3,
                              .vocab = 100,
                              .experts = 4,
                              .experts_per_token = 2,
                              .expert_ffn = 10,
                              .shared_ffn = 7,
                              .dense_layers = 2,
                              .positions = 64,
                              .position_buckets = 32,
                              .mtp_layers = 2,
                              .kv_lora_rank = 5,
                              .nope_head_dim = 6,
                              .rope_head_dim = 2};
        model.embed_dim = bits & 1 ? 16 : 0;
        model.q_lora_rank = bits & 2 ? 9 : 0;
        model.mla = bits & 2;
        model.tied = bits & 4;
        model.gated = bits & 8;
        model.qkv_bias = model.out_bias = model.mlp_bias = model.head_bias = true;
        model.router_bias = model.expert_bias = model.norm_bias = model.qk_norm = true;
        model.qk_norm_full = model.sinks = model.shared_gate = model.embed_norm = true;
        struct err err = ERR_INIT;
        cr_assert_eq(model_build(&model, &err), 0, "%s", err.text);
        check_sums(&model);
        cr_expect(model.active < model.params && model.nkinds == 2);
        model_release(&model);
    }
}

/* A model filled by hand is the same model. */
Test(model, filled_by_hand)
{
    struct model a = read_model("llama3-8b"), moe = read_model("mixtral-8x7b");
    struct model b = {.layers = 32,
                      .hidden = 4096,
                      .heads = 32,
                      .kv_heads = 8,
                      .ffn = 14336,
                      .vocab = 128256,
                      .gated = true};
    struct model c = {.layers = 32,
                      .hidden = 4096,
                      .heads = 32,
                      .kv_heads = 8,
                      .vocab = 32000,
                      .experts = 8,
                      .experts_per_token = 2,
                      .expert_ffn = 14336,
                      .gated = true};
    struct err err = ERR_INIT;
    cr_assert_eq(model_build(&b, &err), 0);
    cr_assert_eq(model_build(&c, &err), 0);
    cr_expect(b.params == a.params && b.active == a.active && b.head_dim == 128);
    cr_expect(c.params == moe.params && c.active == moe.active);
    cr_expect(b.nkinds == 1 && b.kinds[0].causal && !b.kinds[0].moe && c.kinds[0].moe);
    model_release(&a);
    model_release(&b);
    model_release(&c);
    model_release(&moe);
}

Test(model, contradictions_by_hand)
{
    static const struct {
        struct model model;
        const char *part;
        unsigned count;
    } cases[] = {
        {{.hidden = 8, .heads = 2, .vocab = 9}, "must be above 0", 1},
        {{.layers = 1, .heads = 2, .vocab = 9}, "must be above 0", 1},
        {{.layers = 1, .hidden = 8, .vocab = 9}, "must be above 0", 1},
        {{.layers = 1, .hidden = 8, .heads = 2}, "must be above 0", 1},
        {{.layers = 1, .hidden = 8, .heads = 3, .kv_heads = 2, .vocab = 9}, "3 heads cannot", 2},
        {{.layers = 1000001, .hidden = 8, .heads = 2, .vocab = 9}, "the most is 1000000", 1},
        {{.layers = 2, .hidden = 8, .heads = 2, .vocab = 9, .dense_layers = 3},
         "3 dense layers",
         1},
        {{.layers = 2, .hidden = 8, .heads = 2, .vocab = 9, .experts = 2, .experts_per_token = 1},
         "width of an expert",
         1},
        {{.layers = 2, .hidden = 8, .heads = 2, .vocab = 9, .experts = 2, .expert_ffn = 1},
         "0 experts per token of 2",
         1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model model = cases[i].model;
        struct err err = ERR_INIT;
        cr_expect_eq(model_build(&model, &err), -1, "case %zu", i);
        cr_expect(err.count == cases[i].count && strstr(err.text, cases[i].part), "%s", err.text);
        err_release(&err);
        model_release(&model);
    }
}

/* What every tensor-parallel rank holds whole. */
Test(model, replicated)
{
    struct model m = read_model("gpt2");
    const struct model_kind *k = &m.kinds[0];
    cr_expect_eq(k->replicated[MODEL_ATTENTION], 768); /* bias of the output projection */
    cr_expect_eq(k->replicated[MODEL_MLP], 768);       /* bias of the down projection */
    cr_expect_eq(k->replicated[MODEL_NORMS], 4 * 768);
    model_release(&m);
    m = read_model("deepseek-v3");
    k = model_layer(&m, 60);
    cr_expect_eq(k->replicated[MODEL_ATTENTION], 7168 * 1536 + 1536 + 7168 * (512 + 64) + 512);
    cr_expect_eq(k->replicated[MODEL_ROUTER], 7168 * 256 + 256);
    cr_expect(k->replicated[MODEL_EXPERTS] == 0 && k->replicated[MODEL_SHARED] == 0);
    model_release(&m);
    m = read_model("qwen3-8b");
    cr_expect_eq(m.kinds[0].replicated[MODEL_ATTENTION], 2 * 128);
    cr_expect_eq(m.kinds[0].replicated[MODEL_MLP], 0);
    model_release(&m);
}

/* ---- layers ---- */

static const struct {
    const char *name;
    uint64_t window, sliding, moe, not_causal, cross; /* layers of each sort */
} layer_sorts[] = {
    {"mistral-7b-v0.1", 4096, 32, 0, 0, 0},
    {"mistral-7b-v0.3", 0, 0, 0, 0, 0},
    {"qwen2.5-7b", 0, 0, 0, 0, 0}, /* use_sliding_window is false */
    {"gemma2-27b", 4096, 23, 0, 0, 0},
    {"gemma3-1b", 512, 22, 0, 0, 0},
    {"gemma3-27b", 1024, 52, 0, 0, 0},
    {"phi-3-mini", 2047, 32, 0, 0, 0},
    {"gpt-oss-20b", 128, 12, 24, 0, 0},
    {"mixtral-8x7b", 0, 0, 32, 0, 0},
    {"deepseek-v3", 0, 0, 58, 0, 0},
    {"deepseek-v2-lite", 0, 0, 26, 0, 0},
    {"t5-3b", 0, 0, 0, 24, 24},
};

Test(model, sorts_of_layers)
{
    for (size_t i = 0; i < sizeof layer_sorts / sizeof *layer_sorts; i++) {
        struct model m = read_model(layer_sorts[i].name);
        uint64_t sliding = 0, moe = 0, not_causal = 0, cross = 0;
        for (uint64_t l = 0; l < m.layers; l++) {
            const struct model_kind *k = model_layer(&m, l);
            cr_expect(k->window == 0 || k->window == layer_sorts[i].window);
            sliding += k->window > 0;
            moe += k->moe;
            not_causal += !k->causal;
            cross += k->cross;
        }
        cr_expect_eq(sliding, layer_sorts[i].sliding, "%s: %" PRIu64 " sliding", m.name, sliding);
        cr_expect_eq(moe, layer_sorts[i].moe, "%s", m.name);
        cr_expect_eq(not_causal, layer_sorts[i].not_causal, "%s", m.name);
        cr_expect_eq(cross, layer_sorts[i].cross, "%s", m.name);
        cr_expect_eq(m.window, layer_sorts[i].window, "%s", m.name);
        model_release(&m);
    }
}

#define TINY                                                                                       \
    "\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4,\"vocab_size\":100,"     \
    "\"intermediate_size\":128"

Test(model, windows_and_experts_by_layer)
{
    static const struct {
        const char *text, *sorts; /* per layer: s sliding, e experts, b both, . neither */
    } cases[] = {
        {"{\"model_type\":\"qwen2\"," TINY ",\"use_sliding_window\":true,\"sliding_window\":32,"
         "\"max_window_layers\":4}",
         "....ss"},
        {"{\"model_type\":\"gemma2\"," TINY "}", "s.s.s."},
        {"{\"model_type\":\"gemma3_text\"," TINY ",\"sliding_window_pattern\":3}", "ss.ss."},
        {"{\"model_type\":\"llama\"," TINY ",\"sliding_window\":16,\"layer_types\":["
         "\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\","
         "\"full_attention\",\"sliding_attention\"]}",
         ".s...s"},
        {"{\"model_type\":\"qwen3_moe\"," TINY ",\"num_experts\":4,\"num_experts_per_tok\":2,"
         "\"moe_intermediate_size\":32,\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}",
         ".e...e"},
        {"{\"model_type\":\"mixtral\"," TINY ",\"num_local_experts\":4,\"num_experts_per_tok\":2,"
         "\"sliding_window\":8}",
         "bbbbbb"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model m;
        struct err err = ERR_INIT;
        cr_assert_eq(parse(&m, cases[i].text, &err), 0, "%s", err.text);
        for (uint64_t l = 0; l < 6; l++) {
            const struct model_kind *k = model_layer(&m, l);
            char sort = ".seb"[(k->window > 0) + 2 * k->moe];
            cr_expect_eq(sort, cases[i].sorts[l], "case %zu layer %" PRIu64 " is %c", i, l, sort);
        }
        model_release(&m);
    }
}

/* ---- single dimensions that are misread elsewhere ---- */

Test(model, dimensions)
{
    struct model m = read_model("qwen3-32b");
    cr_expect_eq(m.head_dim, 128); /* not 5120 / 64 */
    model_release(&m);
    m = read_model("t5-3b");
    cr_expect(m.head_dim == 128 && m.heads == 32 && m.encoder_layers == 24 && m.layers == 48);
    model_release(&m);
    m = read_model("falcon-7b");
    cr_expect_eq(m.kv_heads, 1);
    model_release(&m);
    m = read_model("falcon-40b");
    cr_expect_eq(m.kv_heads, 8);
    model_release(&m);
    m = read_model("deepseek-v3");
    cr_expect(m.head_dim == 192 && m.v_head_dim == 128 && m.mtp_params == 11610068224);
    model_release(&m);
    m = read_model("gemma3-4b");
    cr_expect_str_eq(m.part, "text_config");
    cr_expect_eq(m.vocab, 262208);
    model_release(&m);
    m = read_model("gpt-oss-20b");
    cr_expect_eq(m.head_dim, 64);
    model_release(&m);
}

Test(model, padded_vocabulary)
{
    static const struct {
        uint64_t vocab, divisor, tp, padded;
    } cases[] = {{32000, 128, 1, 32000},  {32000, 128, 2, 32000},  {32000, 128, 4, 32256},
                 {32000, 128, 8, 32768},  {32001, 128, 2, 32256},  {50257, 128, 1, 50304},
                 {50257, 128, 8, 51200},  {50257, 1, 2, 50258},    {128256, 128, 8, 129024},
                 {128256, 64, 8, 128512}, {151936, 128, 2, 152064}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(model_padded_vocab(cases[i].vocab, cases[i].divisor, cases[i].tp),
                     cases[i].padded);
    }
}

Test(model, default_widths)
{
    cr_expect_eq(model_default_ffn(4096, true), 10880);
    cr_expect_eq(model_default_ffn(4096, false), 16384);
    struct model m;
    struct err err = ERR_INIT;
    cr_assert_eq(parse(&m,
                       "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":2,"
                       "\"num_attention_heads\":32,\"vocab_size\":100}",
                       &err),
                 0);
    cr_expect_eq(m.ffn, 10880);
    cr_expect(m.nassumed == 1 && strstr(m.assumed[0], "10880"));
    model_release(&m);
    cr_assert_eq(parse(&m,
                       "{\"model_type\":\"llama\",\"hidden_size\":2880,\"num_hidden_layers\":2,"
                       "\"num_attention_heads\":64,\"vocab_size\":100,\"intermediate_size\":8}",
                       &err),
                 0);
    cr_expect(m.head_dim == 45 && m.nassumed == 1 && strstr(m.assumed[0], "45"));
    model_release(&m);
}

/* ---- faults ---- */

/* `text` must be refused with `count` sentences, one of which holds `part` at its start after
 * "a.json". */
static void refuse(const char *text, size_t bytes, unsigned count, const char *part)
{
    struct model model;
    struct err err = ERR_INIT;
    cr_assert_eq(model_parse(&model, "a.json", text, bytes, &err), -1, "accepted: %.200s", text);
    cr_expect_eq(err.code, ERR_USAGE);
    cr_expect_eq(err.count, count, "%u sentences for %.200s: %s", err.count, text, err.text);
    cr_expect(strstr(err.text, part), "\"%s\" is not in \"%.2000s\"", part, err.text);
    cr_expect_eq(strncmp(err.text, "a.json:", 7), 0);
    cr_expect_eq(model.kinds, NULL);
    err_release(&err);
}

#define LLAMA "{\"model_type\":\"llama\"," TINY ",\n"

Test(model, faults)
{
    static const struct {
        const char *text, *part;
        unsigned count;
    } cases[] = {
        {"", "a.json:1: not valid JSON", 1},
        {"[]", "a.json:1: a config.json must be an object", 1},
        {"7", "a.json:1: ", 1},
        {"{}", "\"model_type\" is missing", 1},
        {"{\n\"model_type\":\n7}", "a.json:2: \"model_type\" must be a string, it is a whole", 1},
        {"{\n\n\"model_type\":\"lama\"}", "a.json:3: unknown model_type \"lama\": nearest is llama",
         1},
        {"{\"model_type\":\"qwen3_next\"}", "linear-attention layers", 1},
        {"{\"model_type\":\"mamba2\"}", "state-space layers", 1},
        {"{\"model_type\":\"llama\"}", "\"hidden_size\" is missing", 4},
        {"{\"text_config\":7}", "\"text_config\" must be an object", 1},
        {"{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "duplicate", 1},
        {LLAMA "\"num_key_value_heads\":3}",
         "a.json:2: 4 heads cannot share 3 key and value heads: heads must be a multiple of them; "
         "nearest: 2, 4",
         1},
        {LLAMA "\"num_key_value_heads\":-1}", "a.json:2: \"num_key_value_heads\" is -1", 1},
        {LLAMA "\"num_key_value_heads\":1.5}", "must be a whole number, it is a real number", 1},
        {LLAMA "\"num_key_value_heads\":99999999999999999999}", "a.json:2: not valid JSON", 1},
        {LLAMA "\"head_dim\":\"128\"}", "\"head_dim\" must be a whole number, it is a string", 1},
        {LLAMA "\"tie_word_embeddings\":1}", "must be true or false", 1},
        {LLAMA "\"n_embd\":65}", "\"n_embd\" is 65 but \"hidden_size\", another name of it, is 64",
         1},
        {LLAMA "\"num_experts\":8}", "\"num_experts\" means experts", 1},
        {LLAMA "\"mamba_d_state\":16,\n\"attn_layer_period\":8}", "a.json:3: \"attn_layer_period\"",
         2},
        {LLAMA "\"is_encoder_decoder\":true}", "llama models have one stack", 1},
        {LLAMA "\"layer_types\":[\"full_attention\"]}", "has 1 entries for 6 layers", 1},
        {LLAMA "\"layer_types\":[\"full_attention\",\n\"full_attention\",\n\"linear_attention\",1,"
               "\"full_attention\",\"sliding_attention\"]}",
         "a.json:4: layer 2 is \"linear_attention\", a type that is not known here", 3},
        {"{\"model_type\":\"llama\",\"hidden_size\":4000,\n\"num_attention_heads\":96,"
         "\"num_hidden_layers\":2,\"vocab_size\":10}",
         "a.json:2: hidden size 4000 is not divisible by 96 heads and no head_dim is given; "
         "nearest "
         "numbers of heads: 80, 100",
         1},
        {"{\"model_type\":\"qwen3_moe\"," TINY ",\n\"num_experts\":4,\n\"num_experts_per_tok\":5,"
         "\"moe_intermediate_size\":8}",
         "a.json:3: 5 experts per token of 4 experts: must be in 1..4", 1},
        {"{\"model_type\":\"qwen3_moe\"," TINY "}", "the number of experts", 1},
        {"{\"model_type\":\"qwen3_moe\"," TINY ",\"num_experts\":4,\"num_experts_per_tok\":1,"
         "\"moe_intermediate_size\":8,\"mlp_only_layers\":[0,6,\"x\"]}",
         "\"mlp_only_layers\" holds layers in 0..5 only", 2},
        {"{\"model_type\":\"deepseek_v3\"," TINY ",\"n_routed_experts\":4,"
         "\"num_experts_per_tok\":1,\"moe_intermediate_size\":8}",
         "\"kv_lora_rank\" is missing", 4},
        {"{\"model_type\":\"gpt2\"," TINY "}", "learn a position table", 1},
        {"{\"model_type\":\"llama\",\"hidden_size\":16777216,\"num_hidden_layers\":1000000,"
         "\"num_attention_heads\":1048576,\"vocab_size\":1000000000,"
         "\"intermediate_size\":268435456}",
         "more than 2^63 parameters", 1},
        {"{\"model_type\":\"llama\",\"hidden_size\":0,\"num_hidden_layers\":1000001,"
         "\"num_attention_heads\":4,\"vocab_size\":9}",
         "\"num_hidden_layers\" is 1000001, it must be in 1..1000000", 2},
        {"{\"model_type\":\"ll\\u0000ama\"}", "not valid JSON", 1},
        {"{\"model_type\":\"\xff\"}", "not valid JSON", 1},
        {"{\"model_type\":NaN}", "not valid JSON", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse(cases[i].text, strlen(cases[i].text), cases[i].count, cases[i].part);
    }
}

/* Files made to hurt: depth, size, thousands of faults, sentences that quote the file. */
Test(model, hostile)
{
    size_t bytes = (size_t)17 << 20;
    char *text = mem_calloc(bytes + 1, 1);
    memset(text, '[', bytes);
    refuse(text, 1 << 20, 1, "maximum parsing depth");
    refuse(text, bytes, 1, "longer than 16777216 bytes");
    size_t at = (size_t)sprintf(text, "{\"model_type\":\"llama\",\"hidden_size\":64,"
                                      "\"num_hidden_layers\":100000,\"num_attention_heads\":4,"
                                      "\"vocab_size\":9,\"layer_types\":[");
    for (int i = 0; i < 100000; i++) {
        at += (size_t)sprintf(text + at, "%s\"no\"", i ? "," : "");
    }
    at += (size_t)sprintf(text + at, "]}");
    refuse(text, at, 101, "more than 100 faults");
    at = (size_t)sprintf(text, "{\"model_type\":\"");
    memset(text + at, 'x', 1 << 20);
    sprintf(text + at + (1 << 20), "\"}");
    struct model model;
    struct err err = ERR_INIT;
    cr_expect_eq(model_parse(&model, "a.json", text, strlen(text), &err), -1);
    cr_expect(err.count == 1 && strlen(err.text) < 2000, "%zu bytes", strlen(err.text));
    err_release(&err);
    free(text);
}

/* Every truncation of a file is refused with one sentence. */
Test(model, truncations)
{
    const char *text = inline_configs[3].text;
    for (size_t bytes = 0; bytes < strlen(text); bytes++) {
        refuse(text, bytes, 1, "not valid JSON");
    }
}

Test(model, names_that_are_no_models)
{
    static const struct {
        const char *name, *part;
    } cases[] = {{"lama3-8b", "nearest is llama3-8b"}, {"", "unknown model"},
                 {"./no/such.json", "no such file"},   {"/", "cannot be opened"},
                 {"/dev/zero", "longer than"},         {"../README", "no such file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model model;
        struct err err = ERR_INIT;
        cr_assert_eq(model_read(&model, cases[i].name, &err), -1);
        cr_expect(err.count == 1 && strstr(err.text, cases[i].part), "%s", err.text);
        err_release(&err);
    }
}

Test(model, path_and_folder)
{
    struct model a, b;
    struct err err = ERR_INIT;
    char folder[] = "/tmp/model-XXXXXX";
    cr_assert(mkdtemp(folder));
    char *path = mem_printf("%s/config.json", folder);
    FILE *file = fopen(path, "w");
    fputs(inline_configs[3].text, file);
    fclose(file);
    cr_expect_eq(model_read(&a, folder, &err), 0, "%s", err.text);
    cr_expect_eq(model_read(&b, path, &err), 0, "%s", err.text);
    cr_expect(a.params == b.params && strcmp(a.name, folder + strlen("/tmp/")) == 0, "%s", a.name);
    model_release(&a);
    model_release(&b);
    remove(path);
    remove(folder);
    free(path);
}

/* ---- the command ---- */

static int command(const char *name, const char *option, const char *path)
{
    const char *argv[] = {"model", name, option, path};
    cr_redirect_stdout();
    cr_redirect_stderr();
    return model_cmd(4, (char **)argv);
}

Test(model, command_prints_terms)
{
    char path[] = "/tmp/model-XXXXXX";
    cr_assert_geq(mkstemp(path), 0);
    remove(path);
    cr_assert_eq(command("deepseek-v3", "--csv", path), 0);
    struct csv csv;
    struct err err = ERR_INIT;
    cr_assert_eq(csv_read(&csv, path, &err), 0, "%s", err.text);
    uint64_t params = 0, active = 0;
    for (size_t i = 0; i < csv.nrows; i++) {
        params += strtoull(csv_cell(&csv, i, "params"), NULL, 10);
        active += strtoull(csv_cell(&csv, i, "active"), NULL, 10);
    }
    cr_expect_eq(params, 671026419200 + 11610068224);
    cr_expect_eq(active, 37552297472);
    cr_expect_str_eq(csv_cell(&csv, 0, "formula"), "V*h");
    cr_expect_str_eq(csv_cell(&csv, 0, "numbers"), "129280*7168");
    csv_release(&csv);
    cr_expect_eq(command("deepseek-v3", "--csv", path), 2); /* it exists now */
    remove(path);
    cr_expect_eq(command("no-such-model", "--csv", path), 2);
    cr_expect_eq(access(path, F_OK), -1); /* nothing is written for a model that is not there */
}

Test(model, command_prints_json)
{
    char path[] = "/tmp/model-XXXXXX";
    cr_assert_geq(mkstemp(path), 0);
    remove(path);
    cr_assert_eq(command("gemma3-4b", "--json", path), 0);
    json_t *root = json_load_file(path, 0, NULL), *meta = json_object_get(root, "meta");
    cr_assert(meta);
    cr_expect_eq(json_integer_value(json_object_get(meta, "params")), 3880263168);
    cr_expect_eq(json_integer_value(json_object_get(meta, "head_dim")), 256);
    cr_expect_str_eq(json_string_value(json_object_get(meta, "part")), "text_config");
    json_decref(root);
    remove(path);
}
