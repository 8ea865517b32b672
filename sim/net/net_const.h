/* SPDX-License-Identifier: Apache-2.0
 * The constants of networks and of the libraries that use them, each with its value, unit, source
 * and whether it was fitted, read from one table (data/network.csv); `commsim fit collectives`
 * writes the same table. Constants belong to a generation of links, a kind of network, a protocol
 * or a way of launching, never to a machine. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/consts.h"
#include "base/err.h"
#include "net/topo.h"

/* Links inside a host or domain that behave alike. */
enum link_gen {
    LINK_NVLINK2,
    LINK_NVLINK3,
    LINK_NVLINK4,
    LINK_NVLINK5,
    LINK_XGMI,
    LINK_PCIE, /* with peer access or through host memory */
    LINK_MEMORY,
    NLINK_GENS
};

enum nccl_proto { NCCL_LL, NCCL_LL128, NCCL_SIMPLE, NNCCL_PROTOS };

/* How kernels are launched: the floor below which no call gets. */
enum launch {
    LAUNCH_PROCESS,   /* one process per GPU */
    LAUNCH_SINGLE,    /* one process for all GPUs of a host (nccl-tests -g) */
    LAUNCH_TORCH,     /* a loop in PyTorch */
    LAUNCH_GRAPH,     /* captured in a CUDA graph */
    LAUNCH_SYMMETRIC, /* kernels on symmetric memory, in a graph */
    NLAUNCHES
};

struct net_consts {
    /* of the host */
    double launch_us[NLAUNCHES]; /* floor; SINGLE: its constant part */
    double launch_grace;         /* floor on a Grace CPU over that on x86 */
    double single_gpu_us;        /* SINGLE: more for each GPU of the host */
    double single_p2p;           /* SINGLE: factor for calls made of sends and receives */
    double torch_add_us;         /* TORCH: added to the call on the device */
    double floor_power;          /* p of (floor^p + call^p)^(1/p) */
    /* latencies inside a domain */
    double base_us[NNCCL_PROTOS], hop_us[NNCCL_PROTOS];
    double base_p2p_us, hop_p2p_us; /* grouped sends and receives */
    double base_nvls_us;
    double nvls_ramp_us, nvls_ramp_power; /* per GPU; 1 - exponent of the time on the wire */
    double base_net_us;                   /* more where hosts take part */
    double latency[NLINK_GENS];           /* all of these latencies by generation, relative */
    double pcie_hop;                      /* a hop over PCIe, relative */
    /* between hosts */
    double alpha_us[NFABRICS];        /* latency of a hop, LL, small messages */
    double growth[NFABRICS];          /* .. of 16 KiB and more over that of 2 KiB */
    double proto_alpha[NNCCL_PROTOS]; /* hop of a protocol over that of LL */
    double ring_alpha;                /* a ring's hop over a tree's */
    /* bandwidths, shares of the line rate unless said */
    double link_eff[NLINK_GENS];
    double nic_eff[NFABRICS];
    double proto_eff[NNCCL_PROTOS];       /* of what Simple reaches */
    double tree_ll;                       /* .. of LL in a tree */
    double ll_most;                       /* most of LL, share of a GPU's link */
    double gather_eff;                    /* all-gather, reduce-scatter over all-reduce */
    double tree_eff, tree_two, tree_many; /* links; NICs with two hosts, more */
    double nvls_eff[NLINK_GENS];
    double nvls_net;
    double sharp_eff, sharp_net;
    double alltoall_eff, sendrecv_eff, sendrecv_net;
    double p2p_rate, p2p_most_us; /* a pair's rate (GB/s on NVLink3), and the most it costs */
    double soft_power; /* p of two rates that are near each other: (a^-p + b^-p)^(-1/p) */
    /* MPI between processes on processors */
    double mpi_base_us, mpi_pair_us, mpi_rendezvous_us, mpi_gpu_us, mpi_shm_us, mpi_net_us;
    double mpi_copy_GBps, mpi_nic_eff;
    double mpi_socket_us, mpi_socket_GBps; /* a message, a process, where sockets carry it */
};

struct net_const_table {
    struct const_rows list;
    struct net_consts values;
};

/* Reads the table at `path`; NULL is the shipped one. Every field of struct net_consts must have
 * exactly one row; each fault is a sentence with its line. Returns 0 or -1. */
int net_const_read(struct net_const_table *table, const char *path, struct err *err);
void net_const_release(struct net_const_table *table);

/* Writes the table with the values of `values`. Returns 0, or -1 with a sentence. */
int net_const_write(const struct net_const_table *table, const struct net_consts *values,
                    const char *path, struct err *err);

const char *link_gen_name(enum link_gen gen); /* "NVLink4" */
const char *launch_name(enum launch launch);  /* "process" */

/* The generation of a topology's links inside a host or domain. */
enum link_gen link_gen_of(const struct topo *topo);
