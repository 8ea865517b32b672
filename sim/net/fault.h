/* SPDX-License-Identifier: Apache-2.0
 * What is broken in a cluster: links at a part of their rate, missing NICs, no peer access, NICs
 * that are not used, a fall back to TCP. From the member "faults" of a topology file, or from
 * --fault on a command line. The links they name are looked up when the network is built. */
#pragma once

#include "base/doc.h"
#include "base/opts.h"
#include "net/topo.h"

enum fault_kind {
    FAULT_FRACTION, /* a link carries `fraction` of its rate, in 1e-6..1 */
    FAULT_MISSING,  /* a NIC is not there */
    FAULT_NO_PEERS, /* devices reach each other through host memory alone, NVLink unused */
    FAULT_NICS,     /* only the first `nics` NICs of each host are used */
    FAULT_TCP       /* the network is used by TCP, host memory in between */
};

/* `link` is a name of network_link_name, "host*" at its start for all hosts; without a direction
 * ("host0/nic3", "host0/gpu2 nvlink") it means both. "nic*" is every NIC of the host, "gpu2" all
 * links of that accelerator to others: NVLink or xGMI, its PCIe link where there is neither. */
struct fault {
    enum fault_kind kind;
    char *link; /* FRACTION, MISSING; else NULL */
    double fraction;
    uint64_t nics;
    char *where; /* starts sentences about it: "x.json:12", "--fault \"host0/nic3=0.5\"" */
};

/* Options of every command that takes a cluster. */
struct fault_args {
    struct opts_list faults; /* each as the user wrote it */
};
extern const struct opts_row fault_rows[]; /* offsets are those of struct fault_args */

/* Adds one fault to topo->faults and does what it does to the figures of `topo`: NICS scales
 * nic_Gbps, TCP sets fabric, NO_PEERS sets host.peer_access and the scale-up link to PCIe through
 * host memory. `text` as behind --fault: "host0/nic3=0.5", "host0/nic3=0", "no-peer-access",
 * "nics=1", "tcp". 0, or -1 with the sentence. */
int fault_parse(struct topo *topo, const char *text, struct err *err);

/* All of them; 0, or -1 with a sentence for each that is wrong. A link that is named twice, in the
 * file or here, and faults that leave a host without a NIC that it needs, are wrong too. */
int fault_parse_all(struct topo *topo, const struct opts_list *texts, struct err *err);

/* The member "faults" of a topology file; absent: none. 0, or -1 with all sentences. */
int fault_read(struct doc *doc, struct topo *topo, struct err *err);

/* The share of topo->nic_Gbps that faults of single NICs leave, where all NICs of a host carry
 * alike and the worst host decides: 0.5 with one NIC at half its rate, 7/8 with one of eight
 * missing; 1 if none is named. For closed forms; other links that are named have no part in it. */
double fault_nic_share(const struct topo *topo);

/* The number of the host that a fault names alone; -1: it names all, or none. */
int64_t fault_host(const struct fault *fault);

void fault_release(struct topo *topo);
