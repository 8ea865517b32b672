/* SPDX-License-Identifier: Apache-2.0
 * How concurrent flows share links: max-min fairness by progressive filling. A flow runs over a
 * fixed path of links; every link gives its flows equal parts, and what one flow cannot use,
 * because another link of its path holds it back, goes to the others. Knows no messages and no
 * ranks. Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2.
 *
 *     link 0 (10) ==== a ====          a, b, c meet on link 1: 3 each
 *     link 1 ( 9) ==== a, b, c ===     link 0 has only a: its 10 are not the limit
 *     link 2 ( 1) ==== c ====          but c gets only 1, so a and b get 4 each
 */
#pragma once

#include "net/queue.h"

struct link {
    double capacity; /* bytes per picosecond, > 0 */
    uint64_t bytes;  /* carried so far by flows that have ended */
    uint64_t ends;   /* flows that ended on it */
    uint32_t *flows; /* those running, and those that ended in this instant */
    uint32_t nflows, cap;
    double left; /* of the fill under way: capacity not yet given, flows not yet served */
    uint32_t unserved;
    uint64_t stamp; /* the settle that visited it last */
    bool dirty;
};

struct flow {
    const uint32_t *path; /* link numbers; borrowed */
    uint32_t npath;
    uint64_t bytes;   /* of the transfer */
    double remaining; /* bytes, at since_ps */
    double rate;      /* bytes per picosecond since since_ps; 0: not yet given */
    ps_t since_ps;
    ps_t end_ps;    /* of its event in the queue: earlier and later ones are stale */
    uint64_t stamp; /* the settle that visited it last */
    bool running;
    bool listed; /* is in the lists of its links */
    bool served; /* has its rate of the fill under way */
};

struct share {
    struct queue *queue; /* borrowed: gets an event (kind, flow) for each end */
    uint32_t kind;
    struct link *links;
    uint32_t nlinks;
    struct flow *flows;
    uint32_t nflows, flows_cap;
    uint32_t *dirty; /* links whose flows changed since the last settle */
    uint32_t ndirty, dirty_cap;
    uint32_t *comp_links, *comp_flows; /* the connected component in hand */
    uint32_t ncomp_links, ncomp_flows, comp_links_cap, comp_flows_cap;
    uint64_t stamp;
};

/* `capacity_Bps`: bytes per second (> 0) of each of the `nlinks` links. Ends of flows come as
 * events of `kind` with the flow's number and version. */
void share_init(struct share *share, struct queue *queue, uint32_t kind, uint32_t nlinks,
                const double *capacity_Bps);
void share_release(struct share *share);

/* Adds a flow over `npath` (>= 1) links, not running; gives its number. `path` is borrowed. */
uint32_t share_add(struct share *share, const uint32_t *path, uint32_t npath);

/* Starts a transfer of `bytes` (> 0) on a flow that is not running. It gets its rate, and its
 * event, with the next share_settle. */
void share_start(struct share *share, ps_t now_ps, uint32_t flow, uint64_t bytes);

/* Takes an event of now: true if the flow has ended with it, false if the event is stale. */
bool share_end(struct share *share, ps_t now_ps, uint32_t flow);

/* Gives new rates to the connected components of links that a start or an end has touched since
 * the last call; to be called once all starts and ends of the instant `now_ps` are in. Flows
 * within 1 ps of completion get an event of now instead, and their component its rates with the
 * call that follows it. */
void share_settle(struct share *share, ps_t now_ps);
