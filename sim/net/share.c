/* SPDX-License-Identifier: Apache-2.0
 * Max-min shares, kept up to date by connected component: see share.h. */
#include "net/share.h"

#include <stdlib.h>

#include "base/mem.h"

void share_init(struct share *share, struct queue *queue, uint32_t kind, uint32_t nlinks,
                const double *capacity_Bps)
{
    *share = (struct share){.queue = queue, .kind = kind, .nlinks = nlinks};
    share->links = mem_calloc(nlinks, sizeof *share->links);
    for (uint32_t i = 0; i < nlinks; i++) {
        share->links[i].capacity = capacity_Bps[i] / 1e12;
    }
}

void share_release(struct share *share)
{
    for (uint32_t i = 0; i < share->nlinks; i++) {
        free(share->links[i].flows);
    }
    free(share->links);
    free(share->flows);
    free(share->dirty);
    free(share->comp_links);
    free(share->comp_flows);
    *share = (struct share){0};
}

uint32_t share_add(struct share *share, const uint32_t *path, uint32_t npath)
{
    MEM_GROW(share->flows, share->nflows, share->flows_cap);
    share->flows[share->nflows] = (struct flow){.path = path, .npath = npath};
    return share->nflows++;
}

static void mark_dirty(struct share *share, uint32_t number)
{
    struct link *link = &share->links[number];
    if (!link->dirty) {
        link->dirty = true;
        MEM_GROW(share->dirty, share->ndirty, share->dirty_cap);
        share->dirty[share->ndirty++] = number;
    }
}

void share_start(struct share *share, ps_t now_ps, uint32_t number, uint64_t bytes)
{
    struct flow *flow = &share->flows[number];
    flow->bytes = bytes;
    flow->remaining = (double)bytes;
    flow->rate = 0;
    flow->since_ps = now_ps;
    flow->end_ps = PS_NEVER;
    flow->running = true;
    for (uint32_t i = 0; i < flow->npath; i++) {
        struct link *link = &share->links[flow->path[i]];
        if (!flow->listed) {
            MEM_GROW(link->flows, link->nflows, link->cap);
            link->flows[link->nflows++] = number;
        }
        mark_dirty(share, flow->path[i]);
    }
    flow->listed = true;
}

bool share_end(struct share *share, ps_t now_ps, uint32_t number)
{
    struct flow *flow = &share->flows[number];
    if (!flow->running || flow->end_ps != now_ps) {
        return false;
    }
    flow->running = false; /* the lists drop it when they are next visited */
    for (uint32_t i = 0; i < flow->npath; i++) {
        share->links[flow->path[i]].bytes += flow->bytes;
        share->links[flow->path[i]].ends++;
        mark_dirty(share, flow->path[i]);
    }
    return true;
}

static void add_link(struct share *share, uint32_t number)
{
    struct link *link = &share->links[number];
    if (link->stamp != share->stamp) {
        link->stamp = share->stamp;
        MEM_GROW(share->comp_links, share->ncomp_links, share->comp_links_cap);
        share->comp_links[share->ncomp_links++] = number;
    }
}

static void add_flow(struct share *share, uint32_t number)
{
    struct flow *flow = &share->flows[number];
    if (flow->stamp == share->stamp) {
        return;
    }
    flow->stamp = share->stamp;
    MEM_GROW(share->comp_flows, share->ncomp_flows, share->comp_flows_cap);
    share->comp_flows[share->ncomp_flows++] = number;
    for (uint32_t i = 0; i < flow->npath; i++) {
        add_link(share, flow->path[i]);
    }
}

/* The connected component of a link, as comp_links and comp_flows; flows that ended leave the
 * lists on the way. */
static void collect(struct share *share, uint32_t first)
{
    share->ncomp_links = share->ncomp_flows = 0;
    add_link(share, first);
    for (uint32_t i = 0; i < share->ncomp_links; i++) {
        struct link *link = &share->links[share->comp_links[i]];
        uint32_t kept = 0;
        for (uint32_t j = 0; j < link->nflows; j++) {
            uint32_t number = link->flows[j];
            if (share->flows[number].running) {
                link->flows[kept++] = number;
                add_flow(share, number);
            } else {
                share->flows[number].listed = false;
            }
        }
        link->nflows = kept;
    }
}

static double remaining(const struct flow *flow, ps_t now_ps)
{
    return flow->remaining - flow->rate * (double)(now_ps - flow->since_ps);
}

static void put_end(struct share *share, uint32_t number, ps_t time_ps)
{
    share->flows[number].end_ps = time_ps;
    queue_put(share->queue, time_ps, share->kind, number);
}

/* Ends now the flows of the component that are within 1 ps of completion. True if there are any:
 * their ends touch what is left of the component, which is then visited again. */
static bool end_near(struct share *share, ps_t now_ps)
{
    bool any = false;
    for (uint32_t i = 0; i < share->ncomp_flows; i++) {
        const struct flow *flow = &share->flows[share->comp_flows[i]];
        if (flow->rate > 0 && remaining(flow, now_ps) <= flow->rate) {
            put_end(share, share->comp_flows[i], now_ps);
            any = true;
        }
    }
    return any;
}

/* A flow's rate from now on; its end becomes an event if that changes anything. */
static void set_rate(struct share *share, uint32_t number, ps_t now_ps, double rate)
{
    struct flow *flow = &share->flows[number];
    if (flow->rate == rate) {
        return;
    }
    flow->remaining = remaining(flow, now_ps);
    flow->since_ps = now_ps;
    flow->rate = rate;
    put_end(share, number, ps_add(now_ps, flow->remaining / rate));
}

/* Serves every flow of a saturated link with the equal part, and takes that from its links. */
static void serve(struct share *share, const struct link *link, ps_t now_ps, double part)
{
    for (uint32_t j = 0; j < link->nflows; j++) {
        struct flow *flow = &share->flows[link->flows[j]];
        if (flow->served) {
            continue;
        }
        flow->served = true;
        for (uint32_t k = 0; k < flow->npath; k++) {
            share->links[flow->path[k]].left -= part;
            share->links[flow->path[k]].unserved--;
        }
        set_rate(share, link->flows[j], now_ps, part);
    }
}

/* Progressive filling of the component: the link with the least equal part is saturated first; it
 * fixes the rate of its flows; what is left of the other links goes to their other flows. */
static void fill(struct share *share, ps_t now_ps)
{
    for (uint32_t i = 0; i < share->ncomp_links; i++) {
        struct link *link = &share->links[share->comp_links[i]];
        link->left = link->capacity;
        link->unserved = link->nflows;
    }
    for (uint32_t i = 0; i < share->ncomp_flows; i++) {
        share->flows[share->comp_flows[i]].served = false;
    }
    for (;;) {
        double least = -1;
        for (uint32_t i = 0; i < share->ncomp_links; i++) {
            const struct link *link = &share->links[share->comp_links[i]];
            if (link->unserved > 0 && (least < 0 || link->left / link->unserved < least)) {
                least = link->left / link->unserved;
            }
        }
        if (least < 0) {
            return;
        }
        for (uint32_t i = 0; i < share->ncomp_links; i++) {
            const struct link *link = &share->links[share->comp_links[i]];
            if (link->unserved > 0 && link->left / link->unserved <= least * (1 + 1e-12)) {
                serve(share, link, now_ps, least);
            }
        }
    }
}

void share_settle(struct share *share, ps_t now_ps)
{
    share->stamp++;
    for (uint32_t i = 0; i < share->ndirty; i++) {
        struct link *link = &share->links[share->dirty[i]];
        link->dirty = false;
        if (link->stamp == share->stamp) {
            continue;
        }
        collect(share, share->dirty[i]);
        if (!end_near(share, now_ps)) {
            fill(share, now_ps);
        }
    }
    share->ndirty = 0;
}
