/* SPDX-License-Identifier: Apache-2.0
 * What one layer, the head and the embedding cost on one GPU, forward and backward, in seconds:
 * matrix products with tile quantisation and K saturation, attention, element-wise traffic, and
 * the communication inside a layer. Formulas and fitted figures: data/constants.csv. */
#pragma once

#include <stddef.h>

#include "train/constants.h"
#include "train/job.h"

struct cost {
    double fwd, bwd; /* seconds */
};

/* What the costs of one job have in common, and the pieces that a layer is made of. The closed
 * form adds them up; train/ops.h makes a list of them. */
struct cost_base {
    const struct job *job;
    const struct shape *s;
    const struct constants *c;
    double hbm_Bps;  /* usable */
    double host;     /* host costs under CUDA graphs: 1, or the share left */
    double kernel_s; /* fixed time of a kernel */
    double sink_act; /* element-wise traffic of GPT-OSS' experts over the usual */
    double slow;     /* of this machine: compute times are multiplied by it */
    double value_B;  /* bytes of an activation value */
    bool rows_align; /* closed form, as its constants were fitted: a weight's gradient is slow where
                        the rows, too, are no multiple of 64 */
    double tokens;   /* of a micro-batch on this rank, b s / cp */
    double tp;
    double q_dim;    /* width of attention scores and values, as the cost counts it */
    double kv_width; /* k and v of a token, elements */
    double head_dim;
};

/* `graphs_left`: by enum graphs, the share of host costs that is left. */
struct cost_base cost_base(const struct job *job, const struct constants *c,
                           const double graphs_left[3]);

/* A linear layer: (m, k) -> (m, n), `count` of them in one kernel, whole numbers. */
struct cost_product {
    const char *const *name; /* by enum cost_form: "qkv", "qkv dx", "qkv dw"; static */
    double m, n, k;
    double even; /* rows that tiles are reckoned with, where `m` is a mean of uneven ones; 0: m */
    double count;
    bool narrow;       /* may run in fp8 or fp4 */
    double factor;     /* on its time */
    unsigned matrices; /* that are separate weights unless a framework joins them: q, k, v */
};

/* A product of matrices in one of its three forms. */
enum cost_form {
    COST_FORWARD, /* (m, k) x (k, n) */
    COST_INPUT,   /* gradient of the input: (m, n) x (n, k) */
    COST_WEIGHT,  /* gradient of the weight: (n, m) x (m, k) */
};

struct cost_gemm {
    double m, n, k; /* of this form */
    double seconds; /* the kernel's fixed time included, times the factor */
    double bytes;   /* of memory traffic */
    bool memory;    /* slower by its traffic than by its arithmetic */
};
struct cost_gemm cost_gemm(const struct cost_base *x, const struct cost_product *p,
                           enum cost_form form);

/* Seconds of traffic beside a product, times its factor: quantising input and gradient to fp8 or
 * fp4; unpacking 4-bit weights, forward and backward. */
struct cost_beside {
    struct cost quantise, unpack;
};
struct cost_beside cost_beside(const struct cost_base *x, const struct cost_product *p);

/* Dense peak of the unit that a product runs on, FLOP/s; fp4 counts twice fp8. */
double cost_peak(const struct job *job, bool narrow);

/* The products around attention in order, into list[COST_PRODUCTS]; their number. Those from
 * *up on, *nup of them, are MLA's two up-projections (none: *nup is 0). */
enum { COST_PRODUCTS = 4 };
size_t cost_attention_products(const struct cost_base *x, struct cost_product *list, size_t *up,
                               size_t *nup);

/* The two products of an MLP `ffn` wide; the logits. */
void cost_mlp_products(const struct cost_base *x, double ffn, struct cost_product list[2]);
struct cost_product cost_logits(const struct cost_base *x);

/* Parts that a token's experts lie in, mean, of `parts` equal ones in which they are placed in
 * order: routed at random, within the groups that the router is limited to. */
double cost_touched(const struct job *job, double parts);

/* A rank's experts when it computes `load` times its share of the tokens (balanced: 1). */
struct cost_experts {
    double routed;        /* tokens that this rank routes */
    double tokens;        /* rows that its experts see together */
    double act_bytes;     /* of activations, element-wise */
    double permute_bytes; /* of putting tokens in order of experts and back */
    struct cost_product products[2], router;
};
struct cost_experts cost_experts(const struct cost_base *x, double load);

/* The attention core over `keys` keys (the sequence, or the document) of which a query sees `share`
 * of the causal half: flash kernels at their share of the peak, or scores and softmax in memory.
 * Source of the backward's FLOP: Dao 2023, 2.5 of the forward's. */
struct cost cost_attention(const struct cost_base *x, double keys, double share);

/* FLOP of a forward core, executed: the causal half, unfused all of it. */
double cost_attention_flops(const struct cost_base *x, double keys, double share);

/* Share of the causal half of `keys` keys that a window leaves. */
double cost_window(double window, double keys);

/* Element-wise values of a token: of norms and residuals, and around attention; bytes of an MLP. */
double cost_norm_width(const struct cost_base *x);
double cost_qkv_width(const struct cost_base *x);
double cost_mlp_bytes(const struct cost_base *x, double tokens, double ffn);

/* Element-wise kernels over so many bytes; how much their traffic is over the least: more in a norm
 * that is written as single operators, or in all of them, as the closed form's constants have it.
 */
struct cost cost_element(const struct cost_base *x, double bytes, bool norm);
double cost_element_factor(const struct cost_base *x, bool norm);

/* The adapters of a layer (LoRA), the loss, the lookup in the token table. */
struct cost cost_adapters(const struct cost_base *x);
struct cost cost_loss(const struct cost_base *x);
struct cost cost_lookup(const struct cost_base *x);

/* Layer costs by part. Communication is what stays exposed. */
struct layer_cost {
    struct cost gemm, attention, element, tp, cp, ep, launch;
    double recompute;
};

/* Sum over all parts; the recomputation is part of backward. */
struct cost layer_total(const struct layer_cost *layer);

/* A layer without and one with experts (only for models that have them), of tokens b s / cp. */
struct layer_cost cost_dense_layer(const struct job *job, const struct constants *c);
struct layer_cost cost_moe_layer(const struct job *job, const struct constants *c);

/* Output projection and loss, both on the last stage; lookup on the first. */
struct layer_cost cost_head(const struct job *job, const struct constants *c);
struct layer_cost cost_embedding(const struct job *job, const struct constants *c);

/* Bytes/s that each member reaches in a ring of `n` GPUs whose neighbours are `stride` ranks
 * apart: NVLink inside the domain; across domains the NICs of the members that share one. */
double cost_group_Bps(const struct job *job, const struct constants *c, uint64_t stride,
                      uint64_t n);

/* Host costs of this job over those of its framework's class on an x86 host: CUDA graphs take most
 * of them away, a slower CPU adds. */
double cost_host(const struct job *job, const struct constants *c);

/* The rate of one GPU's NIC, bytes/s. */
double cost_nic_Bps(const struct job *job, const struct constants *c);

/* FLOP of a token: forward matrix products of all layers, of the logits, and attention counted
 * full (4 s q_dim per layer, s being a document's tokens where sequences are packed; windows
 * considered). Backward is twice that. */
struct flops {
    double linear, logits, attention;
};
struct flops cost_flops_per_token(const struct job *job);
