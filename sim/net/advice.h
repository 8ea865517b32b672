/* SPDX-License-Identifier: Apache-2.0
 * What a figure of a collective is often taken for, and what it means: one short sentence for each
 * usual misreading that a call gives rise to, from its prediction, its ceiling, and what the user
 * measured. The rules and their thresholds come from public reports of slow clusters. */
#pragma once

#include "net/ceiling.h"
#include "net/library.h"

/* One call, as predicted. */
struct advice_call {
    const struct topo *topo;
    enum coll_id coll;
    enum ceiling_kind kind;
    struct ceiling ceiling;
    uint64_t bytes;
    double time_us, busbw_GBps; /* predicted */
    double fixed_us;            /* .. of which does not grow with the bytes: launch, hops */
    double measured_GBps;       /* busbw that the user saw; negative: none */
};

enum {
    ADVICE_ONE_RANK,
    ADVICE_LATENCY,
    ADVICE_TWO_NODES,
    ADVICE_NVLS,
    ADVICE_ALLTOALL,
    ADVICE_PCIE,
    ADVICE_FAR_NIC,
    ADVICE_ARTEFACT,
    ADVICE_VERDICT,
    ADVICE_SOCKETS,
    ADVICE_ONE_HCA,
    NADVICE
};

/* Keeps, per rule, the sentence of the last call that it applied to. Starts zeroed. */
struct advice {
    char *texts[NADVICE];
};

void advice_add(struct advice *advice, const struct advice_call *call);
void advice_release(struct advice *advice);
