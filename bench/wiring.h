/* SPDX-License-Identifier: Apache-2.0
 * --transport, --wire, --buffers and --memory: their words, and what they mean together. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

extern const char *const wire_words[];   /* of --wire, ended by NULL */
extern const char *const buffer_words[]; /* of --buffers */
extern const char *const memory_words[]; /* of --memory */

struct wiring {
    uint32_t transport;  /* number in transport_table() */
    int wire;            /* enum wire_mode, or PLAN_WIRE_AUTO */
    bool shared;         /* buffers that peers may map */
    bool device;         /* buffers lie in the memory of GPUs; see wiring_devices: */
    bool apart;          /* some pairs of ranks have no peer access to each other's */
    uint32_t most_lanes; /* blocks that surely run at once for each rank */
};

/* `wire`, `buffers` and `memory` are numbers of the words above. What cannot be had together adds a
 * sentence (ERR_USAGE); that there is no mpiexec does not, for one may have been named (mpi_find
 * looks). */
struct wiring wiring_of(const char *transport, unsigned wire, unsigned buffers, unsigned memory,
                        struct err *err);

/* How tables call the buffers: shared, private, or gpu of those that go through slots. */
const char *wiring_buffers(uint32_t transport, bool shared, bool device);

/* What the GPUs of this host allow its `nranks` ranks (threads of one process, or processes). More
 * ranks than GPUs, unless those may be shared, and pulling without peer access add a sentence
 * (ERR_USAGE) and give -1. */
int wiring_devices(struct wiring *wiring, uint32_t nranks, bool oversubscribe, bool threads,
                   struct err *err);

/* What has to be a process of its own for a library that counts processes: threads add a sentence
 * (ERR_USAGE) and give -1. */
int wiring_processes(const struct wiring *wiring, bool threads, struct err *err);
