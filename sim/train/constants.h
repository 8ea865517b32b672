/* SPDX-License-Identifier: Apache-2.0
 * The constants of the two engines of a step, each with its value, unit, source and whether it was
 * fitted: data/constants.csv is the event engine's, data/closed.csv that of the closed form, the
 * yardstick. `commsim fit` writes the same tables. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/consts.h"
#include "base/err.h"
#include "train/job.h"

/* What predicts a step: events (train/event.h), or formulas (train/step.h). */
enum engine { ENGINE_EVENT, ENGINE_CLOSED, NENGINES };

/* A superset: the first fields are in both tables; a field that is not in the table that was read
 * is NaN, so that who reads it by mistake has no answer. */
struct constants {
    double gemm_eff[NDEV_CLASSES]; /* sustained share of the dense peak of a large GEMM */
    double attn_eff[NATTN_FLASH][NDEV_CLASSES]; /* flash attention, share of the peak at d = 128 */
    double machine[NMACHINES];                /* compute time of a machine over that of its type */
    double k0;                                /* elements: a GEMM reaches half its rate at K = k0 */
    double quant_exp;                         /* exponent of the tile and wave quantisation */
    double misaligned;                        /* rate of a GEMM whose N or K is no multiple of 64 */
    double hbm_eff;                           /* usable share of the memory bandwidth */
    double fp4_gain;                          /* rate of fp4 over fp8 */
    double fp8_eff_hopper, fp8_eff_blackwell; /* fp8 efficiency over 16-bit efficiency */
    double fp8_rowwise;                       /* rate of the rowwise path */
    double fp8_traffic;           /* quantisation traffic, share of 4 bytes per element */
    double head_dim_exp, attn_s0; /* attention rate ~ (d/128)^exp s/(s+s0) */
    double attn_bwd_eff;          /* backward attention efficiency over forward */
    double unfused_k0, unfused_traffic, unfused_odd; /* attention without flash */
    double elem[NFW_CLASSES];                        /* element-wise traffic factor */
    double elem_unfused;           /* more of it in norms that are single operators */
    double kernel_us[NFW_CLASSES]; /* fixed time of a GEMM or attention kernel */
    double host_grace;             /* host costs on a Grace CPU over those on x86 */
    double step_ms[NFW_CLASSES];   /* fixed time of a step */
    double moe_layer_us;           /* fixed time of a layer with experts, forward */
    double moe_gemm, moe_permute, sink_act;
    double graphs_partial; /* share of a layer's kernels that stay outside captured graphs */
    double loss_traffic;   /* factor on 10 bytes per logit */
    double opt_traffic;    /* factor on 30 bytes per parameter */
    double mem_act, mem_base_GB, reserved_factor, reserved_GB, smi_factor, smi_GB;

    /* The event engine's alone. */
    double host_us[NFW_CLASSES];  /* the host needs to issue a kernel */
    double sm_nvlink, sm_network; /* share of the multiprocessors that a running collective takes,
                                     by what moves its bytes */
    double sink_graph;            /* sink_act in a whole graph, where single operators are fused */
    double fabric_eff[NFABRICS];  /* rate that training reaches over what benchmarks reach */

    /* The closed form's alone: exposed shares, latencies and windows that events replace. */
    double layer_us[NFW_CLASSES]; /* CPU floor of a layer */
    double micro_ms[NFW_CLASSES]; /* fixed time of a micro-batch and virtual stage */
    double tp_exposed[NFW_CLASSES], dp_exposed[NFW_CLASSES], pp_exposed[NFW_CLASSES];
    double fsdp_us[NFW_CLASSES]; /* latency of a gather or scatter per 8 ranks */
    double fsdp_contention[NFW_CLASSES];
    double tp_exposed_overlap, tp_lat_us;
    double nvlink_eff, nic_eff[NFABRICS];
    double cp_hidden, cp_exposed, cp_lat_us;
    double ep_eff_nvlink, ep_eff_nic, ep_exposed, ep_exposed_overlap, ep_lat_us;
    double moe_host_us; /* CPU floor of a layer with experts */
    double graphs_full; /* host costs left under full CUDA graphs */
    double fsdp_eff_a100, fsdp_eff_h100;
    double pp_lat_us, dp_lat_us, dp_contention;
};

struct const_table {
    struct const_rows list;
    struct constants values;
};

/* Reads the table of an engine at `path`; NULL is the shipped one. Every field of that engine must
 * have exactly one row, and no other one may; each fault is a sentence with its line. Returns 0 or
 * -1. */
int const_read(struct const_table *table, enum engine engine, const char *path, struct err *err);
void const_release(struct const_table *table);

/* Whether a row can matter to a job: not if its key is another device, class or kind than the
 * job's. */
bool const_touches(const struct const_row *row, const struct job *job);

/* Writes the table with the values of `values`. Returns 0, or -1 with a sentence. */
int const_write(const struct const_table *table, const struct constants *values, const char *path,
                struct err *err);

/* "event", "closed", NULL: choices of an option --step. */
extern const char *const engine_names[NENGINES + 1];

const char *dev_class_name(enum dev_class cls);
const char *fw_class_name(enum fw_class fw);
