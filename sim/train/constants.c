/* SPDX-License-Identifier: Apache-2.0
 * Ties the rows of the constants table to the fields of struct constants: one line per field below
 * says under which name, and by which key, it is found. */
#include "train/constants.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/mem.h"
#include "base/units.h"

static const char *const dev_names[NDEV_CLASSES] = {
    "V100", "A100", "H100", "H100-500W", "H200", "B200", "B300", "MI250X", "MI300", "MI355", "CPU"};
static const char *const fw_names[NFW_CLASSES] = {"legacy", "eager", "fused"};
static const char *const fabric_names[NFABRICS] = {"InfiniBand", "RoCE", "EFA",     "Omni-Path",
                                                   "Slingshot",  "TCP",  "unstated"};
static const char *const machine_names[NMACHINES] = {"usual", "B200-slow"};
static const char *const no_key[1] = {""};

static const struct {
    const char *name;
    size_t offset;
    const char *const *keys;
    size_t nkeys;
} fields[] = {
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

double *const_slot(struct constants *values, const struct const_row *row)
{
    return (double *)(void *)((char *)values + row->offset);
}

/* Offset in struct constants of (name, key), or SIZE_MAX. */
static size_t find_offset(const char *name, const char *key)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(fields[i].name, name) != 0) continue;
        for (size_t k = 0; k < fields[i].nkeys; k++) {
            if (strcmp(fields[i].keys[k], key) == 0) return fields[i].offset + k * sizeof(double);
        }
    }
    return SIZE_MAX;
}

static int read_row(const struct csv *csv, size_t i, struct const_row *row, struct err *err)
{
    const char *name = csv_cell(csv, i, "name"), *key = csv_cell(csv, i, "key");
    row->offset = find_offset(name, key);
    if (row->offset == SIZE_MAX) {
        return err_add(err, ERR_USAGE, "%s:%zu: there is no constant \"%s\" with key \"%s\"",
                       csv->path, csv->line[i], name, key);
    }
    const struct {
        const char *column;
        double *to, missing;
    } numbers[] = {{"value", &row->value, NAN},
                   {"prior", &row->prior, NAN},
                   {"sigma", &row->sigma, NAN},
                   {"low", &row->low, 0},
                   {"high", &row->high, INFINITY}};
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
        const char *text = csv_cell(csv, i, numbers[n].column);
        *numbers[n].to = numbers[n].missing;
        if (!*text && !isnan(numbers[n].missing)) continue;
        char *option = mem_printf("%s:%zu: %s", csv->path, csv->line[i], numbers[n].column);
        int bad = units_read_double(option, text, numbers[n].to, err);
        free(option);
        if (bad) return -1;
    }
    if (!(row->value > 0 && row->prior > 0 && row->sigma > 0 && row->value >= row->low &&
          row->value <= row->high)) {
        return err_add(err, ERR_USAGE,
                       "%s:%zu: value %g, prior %g and sigma %g of %s must be above 0 and the "
                       "value between %g and %g",
                       csv->path, csv->line[i], row->value, row->prior, row->sigma, name, row->low,
                       row->high);
    }
    row->name = mem_strdup(name);
    row->key = mem_strdup(key);
    row->unit = mem_strdup(csv_cell(csv, i, "unit"));
    row->source = mem_strdup(csv_cell(csv, i, "source"));
    row->fitted = strcmp(csv_cell(csv, i, "fitted"), "y") == 0;
    return 0;
}

/* Every field needs one row. */
static int check_complete(const struct const_table *table, const char *path, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (size_t k = 0; k < fields[i].nkeys; k++) {
            size_t offset = fields[i].offset + k * sizeof(double), found = 0;
            for (size_t r = 0; r < table->nrows; r++) {
                found += table->rows[r].offset == offset;
            }
            if (found != 1) {
                bad = err_add(err, ERR_USAGE, "%s: constant %s %s has %zu rows, it needs 1", path,
                              fields[i].name, fields[i].keys[k], found);
            }
        }
    }
    return bad;
}

int const_read(struct const_table *table, const char *path, struct err *err)
{
    *table = (struct const_table){0};
    char *shipped = path ? mem_strdup(path) : csv_shipped("constants.csv");
    if (!shipped) {
        return err_add(err, ERR_FAILED, "the shipped table data/constants.csv is not found");
    }
    struct csv csv = {0};
    if (csv_read(&csv, shipped, err)) {
        free(shipped);
        return -1;
    }
    int bad = 0;
    table->rows = mem_calloc(csv.nrows, sizeof *table->rows);
    for (size_t i = 0; i < csv.nrows; i++) {
        struct const_row *row = &table->rows[table->nrows];
        if (read_row(&csv, i, row, err)) {
            bad = -1;
            continue;
        }
        *const_slot(&table->values, row) = row->value;
        table->nrows++;
    }
    if (!bad) bad = check_complete(table, shipped, err);
    csv_release(&csv);
    free(shipped);
    if (bad) const_release(table);
    return bad;
}

void const_release(struct const_table *table)
{
    for (size_t i = 0; i < table->nrows; i++) {
        free(table->rows[i].name);
        free(table->rows[i].key);
        free(table->rows[i].unit);
        free(table->rows[i].source);
    }
    free(table->rows);
    *table = (struct const_table){0};
}

/* A field, quoted if it must be. */
static void put_field(FILE *to, const char *text)
{
    if (!strpbrk(text, ",\"\n")) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

int const_write(const struct const_table *table, const struct constants *values, const char *path,
                struct err *err)
{
    FILE *to = fopen(path, "w");
    if (!to) {
        return err_add(err, ERR_FAILED, "%s cannot be written: %s", path, strerror(errno));
    }
    fputs("name,key,value,unit,source,fitted,prior,sigma,low,high\n", to);
    for (size_t i = 0; i < table->nrows; i++) {
        const struct const_row *row = &table->rows[i];
        double value = *(const double *)(const void *)((const char *)values + row->offset);
        fprintf(to, "%s,%s,%.6g,%s,", row->name, row->key, value, row->unit);
        put_field(to, row->source);
        fprintf(to, ",%s,%g,%g,%g,", row->fitted ? "y" : "n", row->prior, row->sigma, row->low);
        if (isfinite(row->high)) fprintf(to, "%g", row->high);
        fputc('\n', to);
    }
    int failed = ferror(to);
    if (fclose(to) || failed) {
        return err_add(err, ERR_FAILED, "%s could not be written whole", path);
    }
    return 0;
}
