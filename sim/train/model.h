/* SPDX-License-Identifier: Apache-2.0
 * The shape of a transformer and its exact parameter counts. A model comes from a Hugging Face
 * config.json (any of the families in model_families), from a preset in models/, or is filled by
 * hand and completed with model_build. What a family's layers hold is one table of formulas
 * (model_terms.c); counts and the printed formulas are the same text evaluated. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { MODEL_LAYERS_MAX = 1000000 }; /* a longer list of layers is refused */

/* Parts that parameters are counted by. */
enum model_part {
    MODEL_EMBEDDING, /* token table V*h, counted here also when tied; embedding norm, projections */
    MODEL_POSITIONS, /* learned positions, relative-position tables */
    MODEL_HEAD,      /* output projection: 0 when tied; its bias */
    MODEL_FINAL_NORM,
    MODEL_ATTENTION, /* q, k, v, o with biases, q/k norms, sinks; MLA's latents and their norms */
    MODEL_CROSS,     /* cross-attention of a decoder beside an encoder */
    MODEL_MLP,       /* dense MLP */
    MODEL_ROUTER,    /* MoE: router with bias, gate of the shared expert */
    MODEL_EXPERTS,   /* MoE: all routed experts */
    MODEL_SHARED,    /* MoE: shared experts */
    MODEL_NORMS,     /* the norms of a layer */
    MODEL_PARTS
};

/* Layers that are alike are one kind. Counts are of ONE layer. */
struct model_kind {
    uint64_t window; /* a query sees at most this many tokens; 0: all of the sequence */
    bool moe;        /* experts in the place of the dense MLP */
    bool causal;     /* false in an encoder */
    bool cross;      /* has cross-attention too */
    uint64_t copies; /* layers of this kind */
    uint64_t params[MODEL_PARTS];     /* parameters by part */
    uint64_t replicated[MODEL_PARTS]; /* of these, held whole by every tensor-parallel rank: norms,
                                         router, MLA's down projections, biases of row-parallel
                                         linears */
    uint64_t active;                  /* parameters that one token meets */
};

struct model {
    char *name;         /* preset name or file name without folder and suffix */
    char *path;         /* file it came from; NULL for one filled by hand */
    const char *family; /* model_type of the config; "" when filled by hand */
    const char *part;   /* "text_config" if only this part of the file is counted, else NULL */

    /* Dimensions. 0 where a model has no such thing. */
    uint64_t layers;         /* all: of an encoder-decoder both stacks */
    uint64_t encoder_layers; /* of these, encoder layers, which come first */
    uint64_t hidden;         /* h */
    uint64_t ffn;            /* f, inner width of a dense MLP */
    uint64_t heads;          /* a */
    uint64_t kv_heads;
    uint64_t head_dim;         /* d of q and k; MLA: nope + rope */
    uint64_t v_head_dim;       /* d of v; = head_dim but for MLA */
    uint64_t vocab;            /* V, true size, not padded */
    uint64_t positions;        /* rows of the learned position table */
    uint64_t max_positions;    /* longest sequence the config states; 0: not stated */
    uint64_t window;           /* sliding window of the layers that have one */
    uint64_t embed_dim;        /* width of the token table where it is not h (OPT-350m), else 0 */
    uint64_t norms;            /* norms per layer, without q/k norms and latents' norms */
    uint64_t position_buckets; /* T5: rows of the relative-position table of a stack */

    uint64_t experts;           /* E, routed */
    uint64_t experts_per_token; /* k */
    uint64_t router_groups;     /* equal groups of experts that lie in a row .. */
    uint64_t router_group_topk; /* .. of which so many have all experts of a token; 0: any */
    uint64_t expert_ffn;        /* inner width of one routed expert */
    uint64_t shared_ffn;        /* inner width of all shared experts together */
    uint64_t dense_layers;      /* leading dense layers of a MoE (counted; kinds are exact) */

    uint64_t q_lora_rank; /* MLA; 0: q comes straight from h */
    uint64_t kv_lora_rank;
    uint64_t nope_head_dim;
    uint64_t rope_head_dim;
    uint64_t mtp_layers; /* multi-token-prediction layers: not in `params`, see mtp_params */

    bool gated; /* three MLP matrices instead of two */
    bool tied;  /* the head is the token table */
    bool mla;   /* latent attention */
    bool qkv_bias, out_bias, mlp_bias, head_bias, router_bias, expert_bias;
    bool norm_bias;    /* norms have a bias beside the weight (LayerNorm) */
    bool qk_norm;      /* one weight of head_dim for q and one for k per layer */
    bool qk_norm_full; /* the same over all heads: a*d and kv*d (OLMo-2) */
    bool sinks;        /* one sink per head */
    bool shared_gate;  /* h weights that scale the shared expert */
    bool embed_norm;   /* a norm behind the token table */
    bool final_norm;   /* a norm before the head; of an encoder-decoder one per stack */
    bool parallel;     /* attention and MLP read the same norm output */

    /* Made by model_build. */
    size_t nkinds;
    struct model_kind *kinds;
    uint32_t *kind_of;          /* [layers]: index into kinds */
    uint64_t once[MODEL_PARTS]; /* parameters outside the layers, by part */
    uint64_t params;            /* all, the token table included, tied head once, no MTP */
    uint64_t active;            /* of these, those that one token meets (k of E experts) */
    uint64_t mtp_params;        /* of the MTP layers, beside `params` */
    size_t nassumed;
    char **assumed; /* sentences: what was absent and what was taken instead */
};

/* Reads `name_or_path`: a path to a config.json (or a folder that holds one), or a preset. Every
 * fault of the file is one sentence with its line (ERR_USAGE); unknown families, layer types and
 * members that change the layers in ways unknown here are refused. Returns 0, or -1 with *model
 * empty. */
int model_read(struct model *model, const char *name_or_path, struct err *err);

/* The same from text in memory; `path` is how the user knows it. */
int model_parse(struct model *model, const char *path, const char *text, size_t bytes,
                struct err *err);

/* Completes a model filled by hand (zeroed, then the dimensions): kv_heads 0 = heads, head_dim 0 =
 * hidden/heads, v_head_dim 0 = head_dim, ffn 0 = model_default_ffn, norms 0 = 2. The first
 * dense_layers layers are dense and the others MoE if experts > 0; all are causal and have
 * `window`. Then makes kinds and counts. Returns -1 with sentences if shapes contradict each other
 * or the count exceeds 2^63. model_release frees. */
int model_build(struct model *model, struct err *err);

void model_release(struct model *model); /* accepts a zeroed one */

static inline const struct model_kind *model_layer(const struct model *model, uint64_t layer)
{
    return &model->kinds[model->kind_of[layer]];
}

/* Parameters of one layer of a kind, all parts. */
uint64_t model_kind_params(const struct model_kind *kind);

/* Inner width of an MLP that a config leaves out: 4h, or gated int(8h/3/64)*64
 * (Megatron-LM, training/arguments.py). */
uint64_t model_default_ffn(uint64_t hidden, bool gated);

/* V rounded up to a multiple of divisor*tp (Megatron: divisor 128; ColossalAI: 64). Used for
 * memory and FLOPs, never for the count. divisor and tp >= 1. */
uint64_t model_padded_vocab(uint64_t vocab, uint64_t divisor, uint64_t tp);

/* One line of the count. */
struct model_term {
    enum model_part part;
    const char *name;    /* "q projection" */
    const char *formula; /* "h*a*d" */
    char *numbers;       /* "4096*32*128" */
    uint64_t each;       /* parameters in one copy */
    uint64_t copies;     /* layers that have it, or 1 */
    uint64_t active;     /* per copy, that one token meets */
    bool replicated;     /* held whole by every tensor-parallel rank */
    bool mtp;            /* belongs to mtp_params */
};

/* All terms with a count above 0; their sums are model->params, ->active and ->mtp_params. Freed
 * by model_terms_free. */
struct model_term *model_terms(const struct model *model, size_t *count);
void model_terms_free(struct model_term *terms, size_t count);

const char *model_part_name(enum model_part part); /* "attention" */

/* model_type names that are understood, ended by NULL. */
const char *const *model_families(void);

/* `commsim model NAME|PATH`: prints shape, counts and the formula of every term; without a word,
 * the presets. Returns the exit status. */
int model_cmd(int argc, char **argv);
