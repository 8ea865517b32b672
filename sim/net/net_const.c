/* SPDX-License-Identifier: Apache-2.0
 * Ties the rows of the table of network constants to the fields of struct net_consts: one line per
 * field below says under which name, and by which key, it is found. */
#include "net/net_const.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/mem.h"
#include "base/units.h"

static const char *const gen_names[NLINK_GENS] = {"NVLink2", "NVLink3", "NVLink4", "NVLink5",
                                                  "xGMI",    "PCIe",    "memory"};
static const char *const fabric_names[NFABRICS] = {"InfiniBand", "RoCE", "EFA",     "Omni-Path",
                                                   "Slingshot",  "TCP",  "unstated"};
static const char *const proto_names[NNCCL_PROTOS] = {"LL", "LL128", "Simple"};
static const char *const launch_names[NLAUNCHES] = {"process", "single", "torch", "graph",
                                                    "symmetric"};
static const char *const no_key[1] = {""};

static const struct {
    const char *name;
    size_t offset;
    const char *const *keys;
    size_t nkeys;
} fields[] = {
#define BY(field, keys)                                                                            \
    {                                                                                              \
#field, offsetof(struct net_consts, field), keys, sizeof keys / sizeof *keys               \
    }
#define GEN(field) BY(field, gen_names)
#define FABRIC(field) BY(field, fabric_names)
#define PROTO(field) BY(field, proto_names)
#define ONE(field) BY(field, no_key)
    BY(launch_us, launch_names),
    ONE(launch_grace),
    ONE(single_gpu_us),
    ONE(single_p2p),
    ONE(torch_add_us),
    ONE(floor_power),
    PROTO(base_us),
    PROTO(hop_us),
    ONE(base_p2p_us),
    ONE(hop_p2p_us),
    ONE(base_nvls_us),
    ONE(nvls_ramp_us),
    ONE(nvls_ramp_power),
    ONE(base_net_us),
    GEN(latency),
    ONE(pcie_hop),
    FABRIC(alpha_us),
    FABRIC(growth),
    PROTO(proto_alpha),
    ONE(ring_alpha),
    GEN(link_eff),
    FABRIC(nic_eff),
    PROTO(proto_eff),
    ONE(tree_ll),
    ONE(ll_most),
    ONE(gather_eff),
    ONE(tree_eff),
    ONE(tree_two),
    ONE(tree_many),
    GEN(nvls_eff),
    ONE(nvls_net),
    ONE(sharp_eff),
    ONE(sharp_net),
    ONE(alltoall_eff),
    ONE(sendrecv_eff),
    ONE(sendrecv_net),
    ONE(p2p_rate),
    ONE(p2p_most_us),
    ONE(soft_power),
    ONE(mpi_base_us),
    ONE(mpi_pair_us),
    ONE(mpi_rendezvous_us),
    ONE(mpi_gpu_us),
    ONE(mpi_shm_us),
    ONE(mpi_net_us),
    ONE(mpi_copy_GBps),
    ONE(mpi_nic_eff),
    ONE(mpi_socket_us),
    ONE(mpi_socket_GBps),
#undef ONE
#undef PROTO
#undef FABRIC
#undef GEN
#undef BY
};

const char *link_gen_name(enum link_gen gen)
{
    return gen_names[gen];
}

const char *launch_name(enum launch launch)
{
    return launch_names[launch];
}

double *net_const_slot(struct net_consts *values, const struct net_const_row *row)
{
    return (double *)(void *)((char *)values + row->offset);
}

/* Offset in struct net_consts of (name, key), or SIZE_MAX. */
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

static int read_numbers(const struct csv *csv, size_t i, struct net_const_row *row, struct err *err)
{
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
    return 0;
}

static int read_row(const struct csv *csv, size_t i, struct net_const_row *row, struct err *err)
{
    const char *name = csv_cell(csv, i, "name"), *key = csv_cell(csv, i, "key");
    row->offset = find_offset(name, key);
    if (row->offset == SIZE_MAX) {
        return err_add(err, ERR_USAGE, "%s:%zu: there is no constant \"%s\" with key \"%s\"",
                       csv->path, csv->line[i], name, key);
    }
    if (read_numbers(csv, i, row, err)) return -1;
    if (!(row->value > 0 && row->prior > 0 && row->sigma > 0 && row->value >= row->low &&
          row->value <= row->high && isfinite(row->value))) {
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
static int check_complete(const struct net_const_table *table, const char *path, struct err *err)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (size_t k = 0; k < fields[i].nkeys; k++) {
            size_t offset = fields[i].offset + k * sizeof(double), found = 0;
            for (size_t r = 0; r < table->nrows; r++) {
                found += table->rows[r].offset == offset;
            }
            if (found != 1) {
                bad = err_add(err, ERR_USAGE, "%s: constant %s%s%s has %zu rows, it needs 1", path,
                              fields[i].name, *fields[i].keys[k] ? " " : "", fields[i].keys[k],
                              found);
            }
        }
    }
    return bad;
}

int net_const_read(struct net_const_table *table, const char *path, struct err *err)
{
    *table = (struct net_const_table){0};
    char *shipped = path ? mem_strdup(path) : csv_shipped("network.csv");
    if (!shipped) {
        return err_add(err, ERR_FAILED, "the shipped table data/network.csv is not found");
    }
    struct csv csv = {0};
    if (csv_read(&csv, shipped, err)) {
        free(shipped);
        return -1;
    }
    int bad = 0;
    table->rows = mem_calloc(csv.nrows, sizeof *table->rows);
    for (size_t i = 0; i < csv.nrows; i++) {
        struct net_const_row *row = &table->rows[table->nrows];
        if (read_row(&csv, i, row, err)) {
            bad = -1;
            continue;
        }
        *net_const_slot(&table->values, row) = row->value;
        table->nrows++;
    }
    if (!bad) bad = check_complete(table, shipped, err);
    csv_release(&csv);
    free(shipped);
    if (bad) net_const_release(table);
    return bad;
}

void net_const_release(struct net_const_table *table)
{
    for (size_t i = 0; i < table->nrows; i++) {
        free(table->rows[i].name);
        free(table->rows[i].key);
        free(table->rows[i].unit);
        free(table->rows[i].source);
    }
    free(table->rows);
    *table = (struct net_const_table){0};
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

int net_const_write(const struct net_const_table *table, const struct net_consts *values,
                    const char *path, struct err *err)
{
    FILE *to = fopen(path, "w");
    if (!to) {
        return err_add(err, ERR_FAILED, "%s cannot be written: %s", path, strerror(errno));
    }
    fputs("name,key,value,unit,source,fitted,prior,sigma,low,high\n", to);
    for (size_t i = 0; i < table->nrows; i++) {
        const struct net_const_row *row = &table->rows[i];
        double value = *(const double *)(const void *)((const char *)values + row->offset);
        fprintf(to, "%s,%s,%.4g,%s,", row->name, row->key, value, row->unit);
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

/* The digit of a class name that starts with one of a generation's words: "H100" -> NVLink4. */
enum link_gen link_gen_of(const struct topo *topo)
{
    static const struct {
        const char *word;
        enum link_gen gen;
    } classes[] = {{"V100", LINK_NVLINK2},
                   {"A100", LINK_NVLINK3},
                   {"H", LINK_NVLINK4},
                   {"B", LINK_NVLINK5},
                   {"MI", LINK_XGMI}};
    switch (topo->scale_up) {
    case SCALE_UP_PCIE:
    case SCALE_UP_PCIE_HOST:
        return LINK_PCIE;
    case SCALE_UP_MEMORY:
        return LINK_MEMORY;
    case SCALE_UP_XGMI:
        return LINK_XGMI;
    default:
        break;
    }
    const char *name = topo->accel.class_name ? topo->accel.class_name : "";
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strncmp(name, classes[i].word, strlen(classes[i].word)) == 0) return classes[i].gen;
    }
    return topo->line_GBps <= 150   ? LINK_NVLINK2
           : topo->line_GBps <= 300 ? LINK_NVLINK3
           : topo->line_GBps <= 450 ? LINK_NVLINK4
                                    : LINK_NVLINK5;
}
