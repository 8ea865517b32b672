/* SPDX-License-Identifier: Apache-2.0
 * How concurrent flows share links: weighted max-min fairness by progressive filling. A flow runs
 * over a fixed path of links; every link gives its flows parts in proportion to their weights, and
 * what one flow cannot use, because another link of its path or its own cap holds it back, goes to
 * the others. Knows no messages and no ranks. Bertsekas and Gallager, Data Networks, 2nd ed.,
 * section 6.5.2.
 *
 *     link 0 (10) ==== a ====          a, b, c meet on link 1: 3 each
 *     link 1 ( 9) ==== a, b, c ===     link 0 has only a: its 10 are not the limit
 *     link 2 ( 1) ==== c ====          but c gets only 1, so a and b get 4 each
 *
 * A flow may load a link several times over: because its path passes there twice, or because it
 * stands for several flows of a class of links (fold.h). Its rate counts as often on that link.
 *
 * A link may be a token bucket. It carries `peak` while it has tokens; a token is a byte beyond the
 * sustained rate: they go at (used - sustained), and come back at (sustained - used), up to a full
 * bucket. The emptying is an event; when the bucket refills, the link's flows are held back
 * elsewhere, so that nothing changes for them, and the next start or end finds the tokens there.
 *
 *     rate  peak ______________                       ____
 *                              |                     |         a flow, then a pause of the link,
 *      sustained               |__________           |         then a flow again
 *                                         |__________|
 *     tokens full \                                ___
 *                    \                         __/     \
 *                       \ ________________ __/          \
 */
#pragma once

#include "net/queue.h"

struct share_link {
    double capacity_Bps; /* sustained, > 0 */
    double peak_Bps;     /* while there are tokens; 0: no bucket */
    double bucket_bytes; /* tokens at the start, and at most (with peak_Bps) */
};

/* A flow on a link. */
struct hop {
    uint32_t link, flow;
    uint32_t times; /* the flow's rate counts this often */
    uint32_t at;    /* its place in the link's list, while the flow runs */
};

struct bucket {
    double peak, sustained, full; /* bytes per picosecond, bytes */
    double tokens, used;          /* at since_ps, and bytes per picosecond from then on */
    ps_t since_ps;
    uint32_t link, timer;
};

/* A sum of many terms in two parts: errors do not add up however long a link is busy, and the order
 * of the terms makes no difference. */
struct sum {
    double high, low;
};

struct link {
    double capacity; /* bytes per picosecond, > 0; of a bucket: what it is now */
    struct sum used; /* by all running flows at their rates */
    double level;    /* bytes per picosecond and weight of the flows that it holds back */
    uint32_t bound;  /* .. their number */
    uint32_t bucket; /* UINT32_MAX: none */
    uint32_t *hops;  /* of running flows */
    uint32_t nhops, cap;
    /* of the filling under way */
    struct sum left;          /* capacity not yet given */
    double weight;            /* .. and the weights not yet served */
    double last, full;        /* highest level served, level at which it was full; < 0: not */
    uint32_t asked, unserved; /* flows that are filled, and of them those not yet served */
    uint64_t stamp;           /* the settle that opened it last */
    bool dirty;
};

struct flow {
    uint32_t hop, nhops; /* in share.hops: its path, each link once */
    uint32_t timer;
    uint32_t holder; /* the link that holds it back; UINT32_MAX: its cap, or none yet */
    bool running, served;
    double weight, most;   /* most: bytes per picosecond */
    double remaining;      /* bytes, at since_ps */
    double rate;           /* bytes per picosecond since since_ps; 0: not yet given */
    double next;           /* of the filling under way */
    ps_t since_ps, end_ps; /* end_ps: where its timer stands */
    uint64_t stamp;        /* the settle that asked for it last */
};

/* What stops the filling: a link that is full, a flow at its cap. */
struct limit {
    double level; /* bytes per picosecond and weight, when it was looked at last */
    uint32_t number;
    bool is_flow;
};

struct numbers {
    uint32_t *items;
    uint32_t count, cap;
};

struct share {
    struct queue *queue; /* borrowed: gets a timer (flow_kind, flow) for each flow's end */
    uint32_t flow_kind, bucket_kind;
    struct link *links;
    uint32_t nlinks;
    struct bucket *buckets;
    uint32_t nbuckets, buckets_cap;
    struct flow *flows;
    uint32_t nflows, flows_cap;
    struct hop *hops;
    uint32_t nhops, hops_cap;
    struct numbers fresh;               /* flows that need a rate: started since the last settle */
    struct numbers dirty;               /* links whose flows changed since then */
    struct numbers open, asked, capped; /* of the filling: links, flows, and those with a cap */
    struct limit *limits;               /* a heap by level */
    uint32_t nlimits, limits_cap;
    uint64_t stamp;
    uint64_t rates; /* given so far: a measure of the work */
};

/* Ends of flows come as timers of `flow_kind` with the flow's number, buckets that are empty as
 * timers of `bucket_kind` with the bucket's. */
void share_init(struct share *share, struct queue *queue, uint32_t flow_kind, uint32_t bucket_kind,
                uint32_t nlinks, const struct share_link *links);
void share_release(struct share *share);

/* Adds a flow, not running, over `npath` (>= 1) links; gives its number, 0 for the first. A link
 * may stand several times in the path, and each standing counts `times` times (NULL: once).
 * `weight` > 0; `most_Bps` its cap, 0: none. */
uint32_t share_add(struct share *share, const uint32_t *path, const uint32_t *times, uint32_t npath,
                   double weight, double most_Bps);

/* Starts a transfer of `bytes` (> 0) on a flow that is not running. It gets its rate, and its
 * timer, with the next share_settle. */
void share_start(struct share *share, ps_t now_ps, uint32_t flow, double bytes);

/* Takes the timer of a flow: it has ended. */
void share_end(struct share *share, uint32_t flow);

/* Takes the timer of a bucket: it is empty. */
void share_empty(struct share *share, ps_t now_ps, uint32_t bucket);

/* Gives new rates to those that a start, an end or an emptied bucket since the last call concerns;
 * to be called once all of the instant `now_ps` is in. A flow that meets no other costs its path
 * and no more. Where flows meet, only those are filled anew whose share can change: first those
 * that a touched link holds back, then whoever they push aside or leave room to, until the rates
 * of all are max-min fair again. Flows that share a link with one that has ended, and would end
 * within 1 ps, get an event of now instead, and all rates come with the call that follows it. */
void share_settle(struct share *share, ps_t now_ps);
