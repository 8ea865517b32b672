/* SPDX-License-Identifier: Apache-2.0
 * What NVIDIA's management library says of the GPUs of this machine: their order, names and bus
 * addresses, and where their NVLinks lead. It is opened at run time; the program does not need it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* What is at the other end; the numbers are NVML's (nvmlIntNvLinkDeviceType_t). */
enum nvml_end { NVML_END_GPU, NVML_END_PROCESSOR, NVML_END_SWITCH, NVML_END_UNKNOWN = 255 };

/* NVLinks to one device. */
struct nvml_peer {
    enum nvml_end end;
    char *address; /* on the bus; NULL: it has none, as switches that the host does not see */
    uint32_t count;
};

struct nvml_gpu {
    char *name;       /* "NVIDIA H100 80GB HBM3" */
    char *address;    /* "0000:06:00.0", as Linux writes it */
    double pcie_GBps; /* of the fastest link that GPU and slot can have; 0: not said */
    double link_GBps; /* of one NVLink, per direction; 0: not said */
    bool coherent;    /* NVLink-C2C to the processor */
    struct nvml_peer *peers;
    size_t npeers, cap;
    uint32_t active, inactive; /* NVLinks */
};

struct nvml {
    char *text; /* "NVML 12.535.104.05 (libnvidia-ml.so.1), driver 535.104.05" */
    struct nvml_gpu *gpus;
    size_t ngpus;
};

/* The environment variable that names the library's file. */
extern const char nvml_variable[];

/* Fills *nvml; call nvml_release in either case. -1 with one sentence that says why nothing can be
 * known: ERR_USAGE when the library named by COLLBENCH_NVML cannot be loaded, else ERR_FAILED. */
int nvml_read(struct nvml *nvml, struct err *err);
void nvml_release(struct nvml *nvml);

/* 10^9 bytes/s in one direction of a PCIe link: lanes x transfers per second x the share that the
 * line code leaves (8/10 up to generation 2, 128/130 up to 5, 242/256 of a flit in 6: PCI Express
 * Base Specification 6.0). 0 for a generation that is none of those. */
double nvml_pcie_GBps(unsigned generation, unsigned lanes);
