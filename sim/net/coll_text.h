/* SPDX-License-Identifier: Apache-2.0
 * The text columns of a table of measured collectives (GPU, links inside, network between, library,
 * notes) as a topology and a library's arguments. Words and numbers of hardware only: never a
 * time, a bandwidth that was measured, an id or a source. */
#pragma once

#include "net/library.h"

/* The columns of one row; "" where there is none. Borrowed. */
struct coll_text {
    const char *machine, *gpu, *intra, *inter, *library, *algo, *notes, *op;
    uint64_t hosts, per_host; /* as stated */
};

/* A known wrong state of a machine, by its own words. */
enum coll_fault {
    COLL_FAULT_NONE,
    COLL_FAULT_NO_PEER, /* no peer access: through host memory */
    COLL_FAULT_ONE_NIC, /* the library uses one NIC of a host */
    COLL_FAULT_FAR_NIC, /* NIC and accelerator meet at the processor, not at a switch */
    COLL_FAULT_TCP,     /* sockets in place of the fabric's own provider */
    NCOLL_FAULTS
};

struct coll_machine {
    struct topo topo; /* name owned, other strings borrowed; coll_machine_release */
    struct lib_args args;
    bool other_library; /* neither NCCL, RCCL nor MPI */
    bool gpu_known;     /* else `topo` has no figures of links, and no prediction is possible */
    bool no_network;    /* the text says that there is none */
    bool nics_stated;   /* the text has a number of NICs or a rate per host or accelerator */
    enum coll_fault fault;
};

/* Reads the texts. Cannot fail: what is not stated is the accelerator's usual figure. The
 * accelerator is the longest known name that starts the text, without vendors' words; no other is
 * guessed. A network of "none", or a stated rate of 0, between several hosts is a NIC rate of 0. */
void coll_machine_of(const struct coll_text *text, const struct accel_table *accels,
                     struct coll_machine *machine);
void coll_machine_release(struct coll_machine *machine);

/* One line as topo_describe's; it says so where the accelerator is not known. Freed by the caller.
 */
char *coll_machine_describe(const struct coll_machine *machine);

/* Switches the fault on in the topology. */
void coll_fault_apply(struct coll_machine *machine);

/* The network of one host in Gb/s from a text like "8 NIC x 200Gb/s", "400 Gb/s per GPU", "2x HDR",
 * "3.2 Tb/s"; 0 if it says nothing, *stated false if the number of NICs had to be assumed. */
double coll_text_host_Gbps(const char *text, uint64_t per_host, bool one_per_host, bool *stated);

enum fabric coll_text_fabric(const char *text);

/* Whether one of the words (by |) is part of the text, case ignored. */
bool coll_text_has(const char *text, const char *words);

const char *coll_fault_name(enum coll_fault fault);
