/* SPDX-License-Identifier: Apache-2.0
 * NCCL's choice of algorithm, protocol and channels: its published model (NCCL 2.30, tuning.cc):
 * t = latency + bytes / bandwidth for each pair, the least t wins. The figures are NCCL's, not
 * fitted; the time that a call really takes is closed.h's or the engine's. */
#pragma once

#include "net/closed.h"

struct nccl_choice {
    int algo, proto;
    uint32_t channels;
    double time_us; /* as NCCL believes */
};

/* Sets the choice; args->algo, proto, channels and sharp force. False if nothing runs: an
 * algorithm that the operation has not. RCCL is taken as NCCL. */
bool nccl_choose(const struct site *site, const struct lib_args *args, enum coll_id coll,
                 uint64_t bytes, struct nccl_choice *choice);

/* What one channel carries inside a node at most, GB/s, whatever the links: NCCL's figure for a
 * generation of accelerators. */
double nccl_channel_GBps(enum link_gen gen);
