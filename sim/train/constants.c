/* SPDX-License-Identifier: Apache-2.0
 * Ties the rows of the tables of constants to the fields of struct constants: one line per field
 * below says in which of the two it stands, under which name, and by which key it is found. */
#include "train/constants.h"

#include <math.h>

static const char *const dev_names[NDEV_CLASSES] = {
    "V100", "A100", "H100", "H100-500W", "H200", "B200", "B300", "MI250X", "MI300", "MI355", "CPU"};
static const char *const fw_names[NFW_CLASSES] = {"legacy", "eager", "fused"};
static const char *const fabric_names[NFABRICS] = {"InfiniBand", "RoCE", "EFA",     "Omni-Path",
                                                   "Slingshot",  "TCP",  "unstated"};
static const char *const machine_names[NMACHINES] = {"usual", "B200-slow"};
static const char *const no_key[1] = {""};

enum { EVENT = 1 << ENGINE_EVENT, CLOSED = 1 << ENGINE_CLOSED, BOTH = EVENT | CLOSED };

static const struct {
    unsigned engines; /* whose table has it: a set */
    struct const_field field;
} fields[] = {
#define BY(engines, field, name, keys)                                                             \
    {                                                                                              \
        engines,                                                                                   \
        {                                                                                          \
            name, offsetof(struct constants, field), keys, sizeof keys / sizeof *keys              \
        }                                                                                          \
    }
#define DEV(engines, field) BY(engines, field, #field, dev_names)
#define FW(engines, field) BY(engines, field, #field, fw_names)
#define ONE(engines, field) BY(engines, field, #field, no_key)
    DEV(BOTH, gemm_eff),
    BY(BOTH, attn_eff[ATTN_FA1], "attn_eff_fa1", dev_names),
    BY(BOTH, attn_eff[ATTN_FA2], "attn_eff_fa2", dev_names),
    BY(BOTH, attn_eff[ATTN_CUDNN], "attn_eff_cudnn", dev_names),
    BY(BOTH, machine, "machine", machine_names),
    ONE(BOTH, k0),
    ONE(BOTH, quant_exp),
    ONE(BOTH, misaligned),
    ONE(BOTH, hbm_eff),
    ONE(BOTH, fp4_gain),
    ONE(BOTH, fp8_eff_hopper),
    ONE(BOTH, fp8_eff_blackwell),
    ONE(BOTH, fp8_rowwise),
    ONE(BOTH, fp8_traffic),
    ONE(BOTH, head_dim_exp),
    ONE(BOTH, attn_s0),
    ONE(BOTH, attn_bwd_eff),
    ONE(BOTH, unfused_k0),
    ONE(BOTH, unfused_traffic),
    ONE(BOTH, unfused_odd),
    FW(BOTH, elem),
    ONE(BOTH, elem_unfused),
    FW(BOTH, kernel_us),
    ONE(BOTH, host_grace),
    FW(BOTH, step_ms),
    ONE(BOTH, moe_layer_us),
    ONE(BOTH, moe_gemm),
    ONE(BOTH, moe_permute),
    ONE(BOTH, sink_act),
    ONE(BOTH, graphs_partial),
    ONE(BOTH, loss_traffic),
    ONE(BOTH, opt_traffic),
    ONE(BOTH, mem_act),
    ONE(BOTH, mem_base_GB),
    ONE(BOTH, reserved_factor),
    ONE(BOTH, reserved_GB),
    ONE(BOTH, smi_factor),
    ONE(BOTH, smi_GB),
    FW(EVENT, host_us),
    ONE(EVENT, sm_nvlink),
    ONE(EVENT, sm_network),
    ONE(EVENT, sink_graph),
    BY(EVENT, fabric_eff, "fabric_eff", fabric_names),
    FW(CLOSED, layer_us),
    FW(CLOSED, micro_ms),
    FW(CLOSED, tp_exposed),
    FW(CLOSED, dp_exposed),
    FW(CLOSED, pp_exposed),
    FW(CLOSED, fsdp_us),
    FW(CLOSED, fsdp_contention),
    ONE(CLOSED, tp_exposed_overlap),
    ONE(CLOSED, tp_lat_us),
    ONE(CLOSED, nvlink_eff),
    BY(CLOSED, nic_eff, "nic_eff", fabric_names),
    ONE(CLOSED, cp_hidden),
    ONE(CLOSED, cp_exposed),
    ONE(CLOSED, cp_lat_us),
    ONE(CLOSED, ep_eff_nvlink),
    ONE(CLOSED, ep_eff_nic),
    ONE(CLOSED, ep_exposed),
    ONE(CLOSED, ep_exposed_overlap),
    ONE(CLOSED, ep_lat_us),
    ONE(CLOSED, moe_host_us),
    ONE(CLOSED, graphs_full),
    ONE(CLOSED, fsdp_eff_a100),
    ONE(CLOSED, fsdp_eff_h100),
    ONE(CLOSED, pp_lat_us),
    ONE(CLOSED, dp_lat_us),
    ONE(CLOSED, dp_contention),
#undef ONE
#undef FW
#undef DEV
#undef BY
};

const char *const engine_names[NENGINES + 1] = {"event", "closed", NULL};

const char *dev_class_name(enum dev_class cls)
{
    return dev_names[cls];
}

const char *fw_class_name(enum fw_class fw)
{
    return fw_names[fw];
}

int const_read(struct const_table *table, enum engine engine, const char *path, struct err *err)
{
    static const char *const shipped[NENGINES] = {"constants.csv", "closed.csv"};
    struct const_field mine[sizeof fields / sizeof *fields];
    size_t n = 0;
    *table = (struct const_table){0};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct const_field *field = &fields[i].field;
        double *values = (double *)(void *)((char *)&table->values + field->offset);
        for (size_t k = 0; k < field->nkeys; k++)
            values[k] = NAN;
        if (fields[i].engines >> engine & 1) mine[n++] = *field;
    }
    return consts_read(&table->list, &table->values, mine, n, path, shipped[engine], err);
}

void const_release(struct const_table *table)
{
    consts_release(&table->list);
}

bool const_touches(const struct const_row *row, const struct job *job)
{
    const struct {
        const char *const *keys;
        unsigned mine;
    } kinds[] = {{dev_names, job->dev.cls},
                 {fw_names, job->fw},
                 {fabric_names, job->fabric},
                 {machine_names, job->machine}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct const_field *field = &fields[i].field;
        if (row->offset < field->offset ||
            row->offset >= field->offset + field->nkeys * sizeof(double)) {
            continue;
        }
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (field->keys == kinds[k].keys)
                return row->offset == field->offset + kinds[k].mine * sizeof(double);
        }
    }
    return true;
}

int const_write(const struct const_table *table, const struct constants *values, const char *path,
                struct err *err)
{
    return consts_write(&table->list, values, 6, path, err);
}
