/* SPDX-License-Identifier: Apache-2.0
 * Schedules as GOAL text, the input of LogGOPSim (Hoefler, Schneider and Lumsdaine, "LogGOPSim:
 * simulating large-scale applications in the LogGOPS model", 2010), read and timed on a modelled
 * network. GOAL knows sizes, times and order, but no data: what is timed is not checked.
 *
 *     num_ranks 2
 *     rank 0 {
 *     l0: send 512b to 1 tag 0 cpu 0 nic 0     "b" may be left out; tag, cpu, nic are 0 then
 *     l1: recv 512b from 1 tag 0
 *     l2: calc 1024 cpu 0                      nanoseconds
 *     l1 requires l0                           l1 starts when l0 has ended
 *     l2 irequires l1                          l2 starts when l1 has started
 *     }
 *
 * Words are separated by blanks, lines or ";"; comments are those of C, and from "#" to the end of
 * the line.
 *
 * The i-th send from a rank to another under a tag belongs to their i-th receive, in the order of
 * the text. Messages of one source, destination, tag and nic follow each other as on a wire of
 * net.h: the next starts to flow when the last byte of the one before has left. A send has ended
 * when it is posted, after `overhead` of its cpu; a receive when its message has arrived; a calc
 * after its time. A cpu does one send or calc at a time, in the order in which they may start. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "net/network.h"
#include "net/queue.h"

enum goal_kind { GOAL_SEND, GOAL_RECV, GOAL_CALC };

struct goal_op {
    enum goal_kind kind;
    uint32_t rank, peer;    /* peer, tag, nic: of messages */
    uint32_t tag, cpu, nic; /* cpu: as written; goal_read numbers them through, see cpu_of */
    uint32_t match;         /* SEND: its receive; RECV: its send */
    uint32_t wire;          /* SEND: of one source, destination, tag and nic */
    uint32_t waits;         /* dependencies on others */
    uint64_t amount;        /* bytes; CALC: nanoseconds */
    uint64_t first;         /* in `edges`: those that wait for this one, nedges of them */
    uint32_t nedges;
    uint32_t label_bytes; /* of the label at text + label; 0: it has none */
    uint64_t label;
    uint32_t line;
};

/* `to` waits for the start of the operation (irequires) or for its end (requires). */
struct goal_edge {
    uint32_t to;
    bool on_start;
};

/* All zero is an empty one. */
struct goal {
    const char *path, *text; /* borrowed */
    uint32_t nranks, ncpus, nwires;
    struct goal_op *ops; /* rank by rank in the order of the text */
    size_t nops, ops_cap;
    struct goal_edge *edges;
    size_t nedges;
    uint64_t messages, bytes; /* of all sends */
};

/* Reads a text, which must outlive the goal. ERR_USAGE ("PATH:LINE: ...") with a sentence for the
 * first thing that is no GOAL, or for each rank, label, message or size that is wrong or has no
 * counterpart (at most 100). Costs O(n log n) for n words. 0, or -1 and an empty one. */
int goal_read(struct goal *goal, const char *path, const char *text, size_t bytes, struct err *err);
void goal_release(struct goal *goal);

struct goal_result {
    ps_t total_ps;
    ps_t *finish_ps; /* per rank: its last operation has ended */
    uint64_t events;
    double *link_bytes; /* per link of the network */
};

/* Times it. Ranks are those of the network, of which there may be more. ERR_USAGE for too few, and
 * for times beyond 213 days; ERR_FAILED for operations that wait for each other in a circle, which
 * is written down. `result` is set only on success (0); else -1. */
int goal_run(const struct goal *goal, const struct network *network, ps_t overhead_ps,
             struct goal_result *result, struct err *err);
void goal_result_release(struct goal_result *result);
