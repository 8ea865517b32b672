/* SPDX-License-Identifier: Apache-2.0
 * Ties the rows of the table of network constants to the fields of struct net_consts: one line per
 * field below says under which name, and by which key, it is found. */
#include "net/net_const.h"

#include <string.h>

static const char *const gen_names[NLINK_GENS] = {"NVLink2", "NVLink3", "NVLink4", "NVLink5",
                                                  "xGMI",    "PCIe",    "memory"};
static const char *const fabric_names[NFABRICS] = {"InfiniBand", "RoCE", "EFA",     "Omni-Path",
                                                   "Slingshot",  "TCP",  "unstated"};
static const char *const proto_names[NNCCL_PROTOS] = {"LL", "LL128", "Simple"};
static const char *const launch_names[NLAUNCHES] = {"process", "single", "torch", "graph",
                                                    "symmetric"};
static const char *const no_key[1] = {""};

static const struct const_field fields[] = {
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

int net_const_read(struct net_const_table *table, const char *path, struct err *err)
{
    *table = (struct net_const_table){0};
    return consts_read(&table->list, &table->values, fields, sizeof fields / sizeof *fields, path,
                       "network.csv", err);
}

void net_const_release(struct net_const_table *table)
{
    consts_release(&table->list);
}

int net_const_write(const struct net_const_table *table, const struct net_consts *values,
                    const char *path, struct err *err)
{
    return consts_write(&table->list, values, 4, path, err);
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
