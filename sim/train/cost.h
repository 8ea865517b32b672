/* SPDX-License-Identifier: Apache-2.0
 * What one layer, the head and the embedding cost on one GPU, forward and backward, in seconds:
 * matrix products with tile quantisation and K saturation, attention, element-wise traffic, and
 * the communication inside a layer. Formulas and fitted figures: data/constants.csv. */
#pragma once

#include "train/constants.h"
#include "train/job.h"

struct cost {
    double fwd, bwd; /* seconds */
};

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
 * full (4 s q_dim per layer, windows considered). Backward is twice that. */
struct flops {
    double linear, logits, attention;
};
struct flops cost_flops_per_token(const struct job *job);
