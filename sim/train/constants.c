/* SPDX-License-Identifier: Apache-2.0
 * Ties the rows of the constants table to the fields of struct constants: one line per field below
 * says under which name, and by which key, it is found. */
#include "train/constants.h"

static const char *const dev_names[NDEV_CLASSES] = {
    "V100", "A100", "H100", "H100-500W", "H200", "B200", "B300", "MI250X", "MI300", "MI355", "CPU"};
static const char *const fw_names[NFW_CLASSES] = {"legacy", "eager", "fused"};
static const char *const fabric_names[NFABRICS] = {"InfiniBand", "RoCE", "EFA",     "Omni-Path",
                                                   "Slingshot",  "TCP",  "unstated"};
static const char *const machine_names[NMACHINES] = {"usual", "B200-slow"};
static const char *const no_key[1] = {""};

static const struct const_field fields[] = {
#define BY(field, name, keys)                                                                      \
    {                                                                                              \
        name, offsetof(struct constants, field), keys, sizeof keys / sizeof *keys                  \
    }
#define DEV(field) BY(field, #field, dev_names)
#define FW(field) BY(field, #field, fw_names)
#define ONE(field) BY(field, #field, no_key)
    DEV(gemm_eff),
    BY(attn_eff[ATTN_FA1], "attn_eff_fa1", dev_names),
    BY(attn_eff[ATTN_FA2], "attn_eff_fa2", dev_names),
    BY(attn_eff[ATTN_CUDNN], "attn_eff_cudnn", dev_names),
    BY(machine, "machine", machine_names),
    ONE(k0),
    ONE(quant_exp),
    ONE(misaligned),
    ONE(hbm_eff),
    ONE(fp4_gain),
    ONE(fp8_eff_hopper),
    ONE(fp8_eff_blackwell),
    ONE(fp8_rowwise),
    ONE(fp8_traffic),
    ONE(head_dim_exp),
    ONE(attn_s0),
    ONE(attn_bwd_eff),
    ONE(unfused_k0),
    ONE(unfused_traffic),
    ONE(unfused_odd),
    FW(elem),
    ONE(elem_unfused),
    FW(kernel_us),
    FW(layer_us),
    ONE(host_grace),
    FW(micro_ms),
    FW(step_ms),
    FW(tp_exposed),
    FW(dp_exposed),
    FW(pp_exposed),
    FW(fsdp_us),
    FW(fsdp_contention),
    ONE(tp_exposed_overlap),
    ONE(tp_lat_us),
    ONE(nvlink_eff),
    BY(nic_eff, "nic_eff", fabric_names),
    ONE(cp_hidden),
    ONE(cp_exposed),
    ONE(cp_lat_us),
    ONE(ep_eff_nvlink),
    ONE(ep_eff_nic),
    ONE(ep_exposed),
    ONE(ep_exposed_overlap),
    ONE(ep_lat_us),
    ONE(moe_layer_us),
    ONE(moe_gemm),
    ONE(moe_permute),
    ONE(moe_host_us),
    ONE(sink_act),
    ONE(graphs_partial),
    ONE(graphs_full),
    ONE(fsdp_eff_a100),
    ONE(fsdp_eff_h100),
    ONE(loss_traffic),
    ONE(opt_traffic),
    ONE(pp_lat_us),
    ONE(dp_lat_us),
    ONE(dp_contention),
    ONE(mem_act),
    ONE(mem_base_GB),
    ONE(reserved_factor),
    ONE(reserved_GB),
    ONE(smi_factor),
    ONE(smi_GB),
#undef ONE
#undef FW
#undef DEV
#undef BY
};

const char *dev_class_name(enum dev_class cls)
{
    return dev_names[cls];
}

const char *fw_class_name(enum fw_class fw)
{
    return fw_names[fw];
}

int const_read(struct const_table *table, const char *path, struct err *err)
{
    *table = (struct const_table){0};
    return consts_read(&table->list, &table->values, fields, sizeof fields / sizeof *fields, path,
                       "constants.csv", err);
}

void const_release(struct const_table *table)
{
    consts_release(&table->list);
}

int const_write(const struct const_table *table, const struct constants *values, const char *path,
                struct err *err)
{
    return consts_write(&table->list, values, 6, path, err);
}
