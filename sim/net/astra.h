/* SPDX-License-Identifier: Apache-2.0
 * The network files of ASTRA-sim's analytical back end (YAML), read and written, and what they mean
 * as a topology of form "uniform". Its GB is 2^30 bytes; ours is 10^9.
 *
 *     topology: [ FullyConnected, Switch ]   Ring, FullyConnected or Switch, a word per dimension
 *     npus_count: [ 4, 16 ]                  ends in the dimension
 *     bandwidth: [ 93.13, 23.28 ]            2^30 bytes/s of a link, per direction
 *     latency: [ 500, 5000 ]                 ns
 *
 * A link leads to a switch, to each neighbour of a ring, or to each other end of a fully connected
 * dimension. Dimension 1 is the inside of a scale-up domain (Switch or FullyConnected), the others
 * join domains: one Switch, or Rings of one rate, which are a torus. Where dimension 1 is a Ring,
 * all are, of hosts of one accelerator each.
 *
 * The reader takes the flat part of YAML that such files use: keys with a list in brackets, over
 * several lines if need be, or with a line "- VALUE" for each; quotes; comments. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "net/topo.h"

enum astra_kind { ASTRA_RING, ASTRA_FULLY_CONNECTED, ASTRA_SWITCH, NASTRA_KINDS };

struct astra_dim {
    enum astra_kind kind;
    uint64_t npus;          /* >= 1 */
    double bandwidth_GiBps; /* of a link and direction, 2^30 bytes/s, > 0 */
    double latency_ns;      /* >= 0 */
    unsigned line;          /* of the file, of its kind; 0: from no file */
};

/* All zero is an empty one. */
struct astra {
    struct astra_dim *dims;
    size_t ndims, cap;
};

void astra_release(struct astra *astra);

/* Whether a text looks like such a file: its first line that is not empty starts with one of the
 * four keys or a comment, and one of them is "npus_count". */
bool astra_is(const char *text, size_t bytes);

/* Reads a file in memory. 0, or -1 with all faults (ERR_USAGE, "PATH:LINE: ...") and an empty one.
 */
int astra_parse(struct astra *astra, const char *path, const char *text, size_t bytes,
                struct err *err);

/* Writes the four keys; numbers are such that reading gives the same doubles. */
void astra_write(const struct astra *astra, FILE *to);

/* Latencies for a topology that states none. */
struct astra_latency {
    double scale_up_ns, network_ns;
};

/* The topology as dimensions, at the line rates of its links. ERR_USAGE with a sentence for each
 * thing that such files have no word for: links between some pairs only, an oversubscribed tree,
 * domains that are not full. 0 or -1. */
int astra_from_topo(struct astra *astra, const struct topo *topo,
                    const struct astra_latency *latency, struct err *err);

/* The topology that a file describes; it does not know accelerators, so their type is the caller's
 * (strings are borrowed from its table). Rings of large messages are taken to reach the line rate.
 * A latency of 0 becomes one that is not stated. ERR_USAGE with a sentence (`path` and line) for
 * dimensions that mean no topology. 0, or -1 and an empty topo; topo_release frees. */
int astra_to_topo(const struct astra *astra, const char *path, const struct accel *accel,
                  struct topo *topo, struct err *err);

const char *astra_kind_name(enum astra_kind kind); /* "FullyConnected" */
