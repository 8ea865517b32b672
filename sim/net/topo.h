/* SPDX-License-Identifier: Apache-2.0
 * A cluster as the user describes it: an accelerator, how many sit in a host, what joins them
 * there, and the network between hosts. This is the first form of the description ("uniform": all
 * hosts alike); a file names its form, so that a full graph of nodes and links can be another one.
 * The format is written down in topologies/README.md; figures and their sources are in the files.
 *
 *     host 0                      host 1               "domain": accelerators joined by the
 *     [a0 a1 .. a7]== scale-up    [a0 a1 .. a7]==       scale-up link (NVLink, xGMI, PCIe). One
 *      |  |      |  n NICs         |  |      |           host, or several (GB200 NVL72: 18).
 *     ------------------- network -----------------
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/opts.h"

/* What joins accelerators inside a domain. */
enum scale_up {
    SCALE_UP_NVSWITCH,     /* every pair at full rate, through switches */
    SCALE_UP_NVLINK_MESH,  /* direct links between all pairs of a host */
    SCALE_UP_NVLINK_CUBE,  /* direct links, not between all pairs (8 V100) */
    SCALE_UP_NVLINK_PAIRS, /* bridges between pairs, PCIe elsewhere */
    SCALE_UP_XGMI,         /* direct links between all pairs, AMD */
    SCALE_UP_PCIE,         /* PCIe with peer access */
    SCALE_UP_PCIE_HOST,    /* PCIe without peer access: every message goes through host memory */
    SCALE_UP_MEMORY,       /* ranks of a CPU host share its memory */
    NSCALE_UP
};

/* The network between hosts, by kind. */
enum fabric {
    FABRIC_IB,
    FABRIC_ROCE,
    FABRIC_EFA,
    FABRIC_OMNIPATH,
    FABRIC_SLINGSHOT,
    FABRIC_TCP,
    FABRIC_UNSTATED,
    NFABRICS
};

/* How the switches of the network are laid out; fabric.h draws them. */
enum topo_layout {
    TOPO_SWITCH, /* one, that blocks nothing */
    TOPO_FAT_TREE,
    TOPO_RAIL, /* NIC i of the hosts of a group on leaf i */
    TOPO_TORUS,
    TOPO_DRAGONFLY,
    NTOPO_LAYOUTS
};

/* Number formats with a peak of their own. */
enum peak { PEAK_FP32, PEAK_TF32, PEAK_FP16, PEAK_BF16, PEAK_FP8, PEAK_FP4, NPEAKS };

/* A type of accelerator (topologies/accelerators.json). All strings are owned by the table. */
struct accel {
    const char *name;       /* "A100-80GB" */
    const char *class_name; /* types that share calibrated efficiencies: "A100" */
    const char **aliases;   /* other names; several types may share one ("A100") */
    size_t naliases;
    double memory_GB;        /* as the vendor counts: 80 for 80 GiB of HBM */
    double memory_GiB;       /* what a process sees */
    double memory_GBps;      /* datasheet, 10^9 bytes/s */
    double peak_TF[NPEAKS];  /* dense, 10^12 FLOP/s; 0: the part has no such unit */
    uint32_t sms;            /* multiprocessors, compute units, or cores */
    enum scale_up scale_up;  /* usual link in a host */
    double line_GBps;        /* its rate per accelerator and direction, datasheet */
    double ring_GBps;        /* what a ring of large messages reaches on it, measured */
    uint32_t usual_per_host; /* accelerators in the usual host */
    uint32_t usual_domain;   /* and in its scale-up domain */
    double usual_nic_Gbps;   /* usual network rate per accelerator */
};

struct accel_table {
    struct accel *rows;
    size_t nrows;
    void *doc; /* owner of the strings */
};

/* Reads the shipped table, or the one at `path` if not NULL. Returns 0, or -1 with all faults. */
int accel_read(struct accel_table *table, const char *path, struct err *err);
void accel_release(struct accel_table *table);

/* The type with this name or alias, case ignored; NULL with a sentence that lists the names. */
const struct accel *accel_find(const struct accel_table *table, const char *name, struct err *err);

/* The type with the longest name or alias that starts `text` ("A100-SXM4-40GB ...", "H100 80GB
 * HBM3"), case ignored; among types of equal match the one of memory_GB (0: not known). NULL if
 * none. For texts that nobody wrote with this table in mind. */
const struct accel *accel_match(const struct accel_table *table, const char *text,
                                double memory_GB);

/* The inside of a host, as far as a few figures tell it. */
struct topo_host {
    uint32_t sockets;   /* NUMA nodes, accelerators spread evenly over them */
    uint32_t switches;  /* PCIe switches, likewise; 0: all devices sit at root ports */
    double pcie_GBps;   /* a device's own link, per direction, datasheet */
    double uplink_GBps; /* a switch's link to its socket */
    double socket_GBps; /* between two sockets, per direction */
    double memory_GBps; /* of a socket's memory, reads and writes together */
    double memory_GiB;  /* all that the host has; 0: not said */
    uint32_t *nic_at;   /* per NIC the accelerator that it sits beside; NULL: spread evenly */
    bool peer_access;   /* devices may reach each other without going through host memory */
};

/* Ranks that move data themselves, as on hosts without GPUs; for collbench's own schedules. */
struct topo_hands {
    double buffer_GBps; /* buffers read or written, 10^9 bytes/s per rank; 0: nothing is said */
    double cached_GBps; /* the same while all that a rank touches stays in its cache */
    double cache_MiB;   /* .. which is so up to here, and no longer from twice that */
    double slot_GBps;   /* slots read or written */
    double post_us;     /* a message takes a rank this long, whatever its size */
    uint64_t slice_KiB; /* of a chunk that one pass handles, 2^10 bytes; 0: all of it */
};

struct fault;

struct topo {
    char *name;         /* as the user wrote it: "dgx-h100x16" */
    char *path;         /* the file it was read from, NULL if made without one */
    char *about;        /* one sentence, may be NULL */
    struct accel accel; /* strings borrowed from the table, or from `doc` */
    void *doc;          /* the file's text when it describes an accelerator of its own */
    uint64_t hosts;
    uint64_t per_host;     /* accelerators used in each host */
    uint64_t domain_hosts; /* hosts that share one scale-up domain */
    enum scale_up scale_up;
    double line_GBps, ring_GBps; /* inside the domain, per accelerator and direction */
    double scale_up_latency_ns;  /* of a message inside the domain; 0: that of the constants */
    struct topo_hands hands;
    double network_efficiency; /* of the NICs' line rate; 0: that of the constants */
    double network_latency_ns; /* between NICs, whatever the layout; 0: idem */
    enum fabric fabric;
    double nic_Gbps;       /* network rate per accelerator, 10^9 bit/s, of all its NICs */
    bool nic_stated;       /* false: the accelerator's usual rate was taken */
    double oversubscribed; /* >= 1: k of 1:k at the top of the tree; 1 is full bisection */
    uint64_t full_host;    /* accelerators built into a host; per_host may be fewer */
    uint64_t nics;         /* NICs built into a host */
    double one_nic_Gbps;   /* of one of them */
    double burst_Gbps;     /* of one NIC while its bucket holds tokens; 0: it has none */
    double burst_GB;       /* the bucket, 10^9 bytes */
    enum topo_layout layout;
    uint64_t leaf_hosts; /* hosts under a leaf, of a rail group, of a dragonfly's group */
    uint32_t *dims;      /* hosts of a torus along each axis; NULL: chosen as near to a cube */
    uint32_t ndims;
    struct topo_host host;
    char *machine;        /* a file of form "graph" that says what a host is; NULL: `host` does */
    struct fault *faults; /* fault.h */
    size_t nfaults;
    uint64_t nics_used; /* at most; 0: all */
};

/* The cluster that `name` means: a file (path, working directory, shipped folder; with or without
 * .json), or NAMExN: N times what NAME's file describes (16 hosts: dgx-h100x16; 2 racks:
 * gb200-nvl72x2). `hosts` and `gpus` of 0 keep what the file says; else they resize it: `hosts`
 * counts hosts, `gpus` accelerators in all, whole hosts or a part of one host.
 * The table must outlive the topo. Returns 0, or -1 with all faults (ERR_USAGE) and an empty topo;
 * topo_release accepts an empty one. */
int topo_read(struct topo *topo, const struct accel_table *table, const char *name, uint64_t hosts,
              uint64_t gpus, struct err *err);

/* The same from a file in memory, without resizing; adds every fault and fills what it can. The doc
 * stays the caller's and must outlive the topo. topo_release frees in either case. */
struct doc;
int topo_parse(struct topo *topo, struct doc *doc, const struct accel_table *table,
               struct err *err);

/* `gpus` (1 or more) accelerators of a type in its usual hosts on its usual network, without a
 * file. Where hosts would not be filled, each holds the largest part that divides `gpus`. */
void topo_usual(struct topo *topo, const struct accel *accel, uint64_t gpus);
void topo_release(struct topo *topo);

/* Accelerators in all. */
uint64_t topo_gpus(const struct topo *topo);
/* The accelerator that NIC i of a host sits beside: as told, else NICs are spread evenly over the
 * accelerators, and over switches (or sockets) where accelerators do not divide by NICs. */
uint64_t topo_nic_at(const struct topo *topo, uint64_t i);
/* Accelerators of one scale-up domain, at most topo_gpus. */
uint64_t topo_domain(const struct topo *topo);
/* What an accelerator reaches where all that it exchanges passes the host's memory, written and
 * read by its kernels' stores and loads: "ring_GBps", which is a figure of the host (its root
 * complexes, its chip for inputs and outputs) and far below what copy engines reach. 0: other
 * links. */
double topo_through_host(const struct topo *topo);
/* .. where no figure of the host is known, of a PCIe link of `pcie_GBps`: 5 of 31.5 GB/s on 8 RTX
 * 4090 (NVIDIA/nccl-tests#307; 4 A100 with peer access disabled: 5.2; stores alone: 5.7 to 6.4), 27
 * of 63 on 4 RTX 5090 (nccl-tests#287). */
double topo_usual_through_host(double pcie_GBps);
/* Network rate per accelerator, bytes/s. */
double topo_nic_Bps(const struct topo *topo);
/* One line: "2 hosts x 8 H100-80GB, NVSwitch 450 GB/s, InfiniBand 400 Gb/s per GPU". Freed by the
 * caller. */
char *topo_describe(const struct topo *topo);

const char *scale_up_name(enum scale_up kind);     /* as in files: "nvswitch" */
const char *topo_fabric_name(enum fabric fabric);  /* as in files: "ib" */
const char *topo_fabric_title(enum fabric fabric); /* "InfiniBand" */
const char *peak_name(enum peak peak);             /* "bf16" */
/* The fabric of that name, NFABRICS if there is none. */
enum fabric fabric_from_name(const char *name);
const char *topo_layout_name(enum topo_layout layout); /* as in files: "fat-tree" */

/* NVLink speed of one link of an accelerator of this class, 10^9 bytes/s per direction. */
double topo_nvlink_GBps(const struct accel *accel);

/* Options of every command that takes a cluster; `topo` is a name as above. */
struct topo_args {
    const char *topo;
    uint64_t nodes, gpus; /* 0: not given */
};
extern const struct opts_row topo_rows[]; /* offsets are those of struct topo_args */
