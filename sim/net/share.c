/* SPDX-License-Identifier: Apache-2.0
 * Weighted max-min shares, kept up to date where something changes: see share.h. Rates are max-min
 * fair if and only if every flow is at its cap or has a holder, a full link of its path on which no
 * flow has a higher level (rate over weight; Bertsekas and Gallager, 6.5.2). Every flow remembers
 * its holder, so that the condition can be checked where rates have changed, and there alone. */
#include "net/share.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

#define NO_BUCKET UINT32_MAX
#define NO_HOLDER UINT32_MAX

/* Levels and rates that differ by less are the same: what rounding leaves; and a link with less
 * than that left is full. */
static const double SAME = 1e-12, FULL = 1e-11;

/* Picoseconds by which a half one is rounded down: else equal things at a half would fall to
 * different sides by the last bit. */
static const double TIE = 1e-6;

/* After so many attempts all that is connected is filled. */
enum { MOST_ROUNDS = 7 };

/* sum + term, the rounding error kept (Knuth, The Art of Computer Programming 2, 4.2.2). */
static void add_term(struct sum *sum, double term)
{
    double high = sum->high + term, part = high - sum->high;
    sum->low += (sum->high - (high - part)) + (term - part);
    sum->high = high;
}

static double sum_of(const struct sum *sum)
{
    return sum->high + sum->low;
}

static void add_number(struct numbers *numbers, uint32_t number)
{
    MEM_GROW(numbers->items, numbers->count, numbers->cap);
    numbers->items[numbers->count++] = number;
}

/* ---- life cycle ---- */

void share_init(struct share *share, struct queue *queue, uint32_t flow_kind, uint32_t bucket_kind,
                uint32_t nlinks, const struct share_link *links)
{
    *share = (struct share){
        .queue = queue, .flow_kind = flow_kind, .bucket_kind = bucket_kind, .nlinks = nlinks};
    share->links = mem_calloc(nlinks, sizeof *share->links);
    for (uint32_t i = 0; i < nlinks; i++) {
        struct link *link = &share->links[i];
        link->capacity = links[i].capacity_Bps / 1e12;
        link->bucket = NO_BUCKET;
        if (links[i].peak_Bps > 0) {
            link->bucket = share->nbuckets;
            MEM_GROW(share->buckets, share->nbuckets, share->buckets_cap);
            share->buckets[share->nbuckets++] =
                (struct bucket){.peak = links[i].peak_Bps / 1e12,
                                .sustained = link->capacity,
                                .full = links[i].bucket_bytes,
                                .tokens = links[i].bucket_bytes,
                                .link = i,
                                .timer = queue_timer(queue, bucket_kind, link->bucket)};
        }
    }
}

void share_release(struct share *share)
{
    for (uint32_t i = 0; i < share->nlinks; i++) {
        free(share->links[i].hops);
    }
    free(share->links);
    free(share->buckets);
    free(share->flows);
    free(share->hops);
    free(share->fresh.items);
    free(share->dirty.items);
    free(share->open.items);
    free(share->asked.items);
    free(share->capped.items);
    free(share->limits);
    *share = (struct share){0};
}

uint32_t share_add(struct share *share, const uint32_t *path, const uint32_t *times, uint32_t npath,
                   double weight, double most_Bps)
{
    uint32_t number = share->nflows, first = share->nhops;
    MEM_GROW(share->flows, share->nflows, share->flows_cap);
    for (uint32_t i = 0; i < npath; i++) {
        uint32_t h = first, count = times ? times[i] : 1;
        while (h < share->nhops && share->hops[h].link != path[i]) {
            h++;
        }
        if (h == share->nhops) {
            MEM_GROW(share->hops, share->nhops, share->hops_cap);
            share->hops[share->nhops++] = (struct hop){.link = path[i], .flow = number};
        }
        share->hops[h].times += count;
    }
    share->flows[share->nflows++] =
        (struct flow){.hop = first,
                      .nhops = share->nhops - first,
                      .timer = queue_timer(share->queue, share->flow_kind, number),
                      .holder = NO_HOLDER,
                      .weight = weight,
                      .most = most_Bps > 0 ? most_Bps / 1e12 : INFINITY};
    return number;
}

/* ---- starts and ends ---- */

static void mark_dirty(struct share *share, uint32_t number)
{
    struct link *link = &share->links[number];
    if (!link->dirty) {
        link->dirty = true;
        add_number(&share->dirty, number);
    }
}

void share_start(struct share *share, ps_t now_ps, uint32_t number, double bytes)
{
    struct flow *flow = &share->flows[number];
    flow->remaining = bytes;
    flow->rate = 0;
    flow->since_ps = now_ps;
    flow->end_ps = PS_NEVER;
    flow->running = true;
    for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
        struct link *link = &share->links[share->hops[h].link];
        MEM_GROW(link->hops, link->nhops, link->cap);
        share->hops[h].at = link->nhops;
        link->hops[link->nhops++] = h;
    }
    add_number(&share->fresh, number);
}

/* The flow is held back by nobody for now. */
static void free_flow(struct share *share, struct flow *flow)
{
    if (flow->holder != NO_HOLDER) {
        share->links[flow->holder].bound--;
        flow->holder = NO_HOLDER;
    }
}

void share_end(struct share *share, uint32_t number)
{
    struct flow *flow = &share->flows[number];
    flow->running = false;
    free_flow(share, flow);
    for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
        struct hop *hop = &share->hops[h];
        struct link *link = &share->links[hop->link];
        uint32_t last = link->hops[--link->nhops];
        link->hops[hop->at] = last;
        share->hops[last].at = hop->at;
        add_term(&link->used, -flow->rate * hop->times);
        link->used = link->nhops > 0 ? link->used : (struct sum){0};
        if (link->nhops > 0 || link->bucket != NO_BUCKET) {
            mark_dirty(share, hop->link);
        }
    }
}

void share_empty(struct share *share, ps_t now_ps, uint32_t number)
{
    struct bucket *bucket = &share->buckets[number];
    bucket->tokens = 0;
    bucket->since_ps = now_ps;
    mark_dirty(share, bucket->link);
}

/* ---- buckets ---- */

/* Counts the tokens up to now; the capacity follows from them. */
static void open_bucket(struct share *share, struct link *link, ps_t now_ps)
{
    struct bucket *bucket = &share->buckets[link->bucket];
    double tokens =
        bucket->tokens + (bucket->sustained - bucket->used) * (double)(now_ps - bucket->since_ps);
    bucket->tokens = fmax(0, fmin(bucket->full, tokens));
    bucket->since_ps = now_ps;
    link->capacity = bucket->tokens > 0 ? bucket->peak : bucket->sustained;
}

/* Notes what the link's flows use from now on, and when that empties the bucket. */
static void close_bucket(struct share *share, const struct link *link, ps_t now_ps)
{
    struct bucket *bucket = &share->buckets[link->bucket];
    bucket->used = sum_of(&link->used);
    double excess = bucket->used - bucket->sustained;
    if (bucket->tokens > 0 && excess > bucket->sustained * SAME) {
        queue_set(share->queue, bucket->timer, ps_add(now_ps, bucket->tokens / excess));
    } else {
        queue_stop(share->queue, bucket->timer);
    }
}

/* ---- rates ---- */

static double remaining(const struct flow *flow, ps_t now_ps)
{
    return flow->remaining - flow->rate * (double)(now_ps - flow->since_ps);
}

/* A flow's rate from now on; its end is set anew if that changes anything. */
static void set_rate(struct share *share, struct flow *flow, ps_t now_ps, double rate)
{
    share->rates++;
    if (fabs(flow->rate - rate) <= rate * SAME) {
        return;
    }
    for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
        struct sum *used = &share->links[share->hops[h].link].used;
        add_term(used, -flow->rate * share->hops[h].times);
        add_term(used, rate * share->hops[h].times);
    }
    flow->remaining = remaining(flow, now_ps);
    flow->since_ps = now_ps;
    flow->rate = rate;
    flow->end_ps = ps_add(now_ps, fmax(0, flow->remaining / rate - TIE));
    queue_set(share->queue, flow->timer, flow->end_ps);
}

/* The flow is held back by a link, or by none. */
static void bind_flow(struct share *share, struct flow *flow, uint32_t holder)
{
    free_flow(share, flow);
    flow->holder = holder;
    if (holder != NO_HOLDER) {
        share->links[holder].bound++;
        share->links[holder].level = flow->rate / flow->weight;
    }
}

/* Gives its rate to a flow that has all links of its path to itself; false if it has not. */
static bool settle_alone(struct share *share, struct flow *flow, ps_t now_ps)
{
    const struct hop *hops = &share->hops[flow->hop];
    for (uint32_t i = 0; i < flow->nhops; i++) {
        if (share->links[hops[i].link].nhops > 1) {
            return false;
        }
    }
    double rate = flow->most;
    uint32_t holder = NO_HOLDER;
    for (uint32_t i = 0; i < flow->nhops; i++) {
        struct link *link = &share->links[hops[i].link];
        if (link->bucket != NO_BUCKET) {
            open_bucket(share, link, now_ps);
        }
        double part = hops[i].times == 1 ? link->capacity : link->capacity / hops[i].times;
        if (part < rate) {
            rate = part;
            holder = hops[i].link;
        }
    }
    set_rate(share, flow, now_ps, rate);
    bind_flow(share, flow, holder);
    for (uint32_t i = 0; share->nbuckets > 0 && i < flow->nhops; i++) {
        struct link *link = &share->links[hops[i].link];
        if (link->bucket != NO_BUCKET) {
            close_bucket(share, link, now_ps);
        }
    }
    return true;
}

/* ---- whom to fill ---- */

/* Asks for a new rate of the flow. */
static void ask(struct share *share, uint32_t number)
{
    struct flow *flow = &share->flows[number];
    if (flow->stamp != share->stamp) {
        flow->stamp = share->stamp;
        free_flow(share, flow);
        add_number(&share->asked, number);
    }
}

/* Asks for all flows of a link that are `above` a level, or that it holds back if `held`. True if
 * any is new. */
static bool ask_flows(struct share *share, uint32_t number, bool held, double above)
{
    const struct link *link = &share->links[number];
    uint32_t before = share->asked.count;
    for (uint32_t j = 0; j < link->nhops; j++) {
        uint32_t f = share->hops[link->hops[j]].flow;
        const struct flow *flow = &share->flows[f];
        if ((held && flow->holder == number) || flow->rate > above * flow->weight) {
            ask(share, f);
        }
    }
    return share->asked.count > before;
}

static void open_link(struct share *share, uint32_t number, ps_t now_ps, bool whole)
{
    struct link *link = &share->links[number];
    if (link->stamp != share->stamp) {
        link->stamp = share->stamp;
        add_number(&share->open, number);
        if (link->bucket != NO_BUCKET) {
            open_bucket(share, link, now_ps);
        }
        link->left = (struct sum){-link->used.high, -link->used.low};
        add_term(&link->left, link->capacity);
        link->weight = 0;
        link->last = 0;
        link->full = -1;
        link->asked = link->unserved = 0;
        if (whole) {
            ask_flows(share, number, false, -1);
        }
    }
}

/* Opens the links of all flows asked for: what those have now is theirs to be given. `whole`: asks
 * for all flows that meet them as well. */
static void open_all(struct share *share, ps_t now_ps, bool whole)
{
    for (uint32_t i = 0; i < share->open.count; i++) {
        share->links[share->open.items[i]].stamp = share->stamp - 1; /* open anew */
    }
    share->open.count = share->capped.count = 0;
    for (uint32_t i = 0; i < share->asked.count; i++) {
        struct flow *flow = &share->flows[share->asked.items[i]];
        flow->served = false;
        if (flow->most < INFINITY) {
            add_number(&share->capped, share->asked.items[i]);
        }
        for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
            const struct hop *hop = &share->hops[h];
            struct link *link = &share->links[hop->link];
            open_link(share, hop->link, now_ps, whole);
            add_term(&link->left, flow->rate * hop->times);
            link->weight += flow->weight * hop->times;
            link->unserved++;
            link->asked++;
        }
    }
}

/* Ends now the flows on touched links that would end within 1 ps. */
static bool end_near(struct share *share, ps_t now_ps)
{
    bool any = false;
    for (uint32_t i = 0; i < share->dirty.count; i++) {
        const struct link *link = &share->links[share->dirty.items[i]];
        for (uint32_t j = 0; j < link->nhops; j++) {
            struct flow *flow = &share->flows[share->hops[link->hops[j]].flow];
            if (flow->end_ps - now_ps <= 1) {
                flow->end_ps = now_ps;
                queue_set(share->queue, flow->timer, now_ps);
                any = true;
            }
        }
    }
    return any;
}

/* ---- filling ---- */

static double level_of(const struct share *share, const struct limit *limit)
{
    if (limit->is_flow) {
        const struct flow *flow = &share->flows[limit->number];
        return flow->most / flow->weight;
    }
    const struct link *link = &share->links[limit->number];
    double left = sum_of(&link->left);
    return left > 0 ? left / link->weight : 0;
}

/* Puts a limit into the free node `place` of the heap, or below it. */
static void sink_limit(struct share *share, uint32_t place, struct limit limit)
{
    struct limit *items = share->limits;
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child + 1 < share->nlimits && items[child + 1].level < items[child].level) {
            child++;
        }
        if (child >= share->nlimits || items[child].level >= limit.level) {
            break;
        }
        items[place] = items[child];
        place = child;
    }
    items[place] = limit;
}

static void add_limit(struct share *share, uint32_t number, bool is_flow)
{
    struct limit limit = {.number = number, .is_flow = is_flow};
    limit.level = level_of(share, &limit);
    MEM_GROW(share->limits, share->nlimits, share->limits_cap);
    share->limits[share->nlimits++] = limit;
}

/* The open links and the flows with a cap, as a heap by level. */
static void gather_limits(struct share *share)
{
    share->nlimits = 0;
    for (uint32_t i = 0; i < share->open.count; i++) {
        add_limit(share, share->open.items[i], false);
    }
    for (uint32_t i = 0; i < share->capped.count; i++) {
        add_limit(share, share->capped.items[i], true);
    }
    for (uint32_t i = share->nlimits / 2; i-- > 0;) {
        sink_limit(share, i, share->limits[i]);
    }
}

/* Serves a flow at a level, and takes that from its links. */
static void serve(struct share *share, struct flow *flow, double level, uint32_t holder)
{
    flow->served = true;
    flow->next = flow->weight * level;
    flow->holder = holder; /* counted there once the rates are final */
    for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
        struct link *link = &share->links[share->hops[h].link];
        add_term(&link->left, -flow->next * share->hops[h].times);
        link->weight -= flow->weight * share->hops[h].times;
        link->unserved--;
        link->last = level;
    }
}

/* Serves at a level whom the limit holds back: the flow, or all flows of the link. */
static void serve_all(struct share *share, const struct limit *limit, double level)
{
    if (limit->is_flow) {
        serve(share, &share->flows[limit->number], level, NO_HOLDER);
        return;
    }
    struct link *link = &share->links[limit->number];
    link->full = level;
    for (uint32_t j = 0; link->unserved > 0; j++) {
        struct flow *flow = &share->flows[share->hops[link->hops[j]].flow];
        if (flow->stamp == share->stamp && !flow->served) {
            serve(share, flow, level, limit->number);
        }
    }
}

/* Progressive filling of what the open links have left: the level rises until a link is full or a
 * flow at its cap; that fixes the rate of the flow, or of the link's flows; the others go on
 * rising. The level at which a link is full only rises as others are served, so a heap with old
 * levels will do. */
static void fill(struct share *share)
{
    double level = 0;
    gather_limits(share);
    while (share->nlimits > 0) {
        struct limit limit = share->limits[0];
        bool open = limit.is_flow ? !share->flows[limit.number].served
                                  : share->links[limit.number].unserved > 0;
        double at = open ? level_of(share, &limit) : 0;
        if (open && at > limit.level) {
            limit.level = at;
            sink_limit(share, 0, limit);
            continue;
        }
        struct limit last = share->limits[--share->nlimits];
        if (share->nlimits > 0) {
            sink_limit(share, 0, last);
        }
        if (open) {
            level = at <= level * (1 + SAME) ? level : at; /* equal ones get the very same */
            serve_all(share, &limit, level);
        }
    }
}

/* Asks for flows that were not filled and are not max-min fair beside those that were: on a link
 * that is full at a level, those above; on a link that holds them back, those who could have more,
 * because it is not full any more, or because others have. False if there are none. */
static bool ask_unfair(struct share *share)
{
    bool any = false;
    for (uint32_t i = 0; i < share->open.count; i++) {
        const struct link *link = &share->links[share->open.items[i]];
        bool holds = link->bound > 0;
        bool loose = holds && (sum_of(&link->left) > link->capacity * FULL ||
                               link->last > link->level * (1 + FULL));
        bool tight = link->full >= 0 && !(holds && link->full >= link->level * (1 - FULL));
        if (link->asked < link->nhops && (loose || tight)) {
            double above = tight ? link->full * (1 + FULL) : INFINITY;
            any |= ask_flows(share, share->open.items[i], loose, above);
        }
    }
    return any;
}

/* The rates of the last filling are final. */
static void close_all(struct share *share, ps_t now_ps)
{
    for (uint32_t i = 0; i < share->asked.count; i++) {
        struct flow *flow = &share->flows[share->asked.items[i]];
        uint32_t holder = flow->holder;
        flow->holder = NO_HOLDER;
        set_rate(share, flow, now_ps, flow->next);
        bind_flow(share, flow, holder);
    }
    for (uint32_t i = 0; share->nbuckets > 0 && i < share->open.count; i++) {
        const struct link *link = &share->links[share->open.items[i]];
        if (link->bucket != NO_BUCKET) {
            close_bucket(share, link, now_ps);
        }
    }
}

/* Asks for those whom the starts and ends concern at first hand. */
static void ask_first(struct share *share, ps_t now_ps)
{
    uint32_t nfresh = share->fresh.count;
    for (uint32_t i = 0; i < nfresh; i++) {
        struct flow *flow = &share->flows[share->fresh.items[i]];
        if (!flow->running || flow->stamp == share->stamp || settle_alone(share, flow, now_ps)) {
            continue;
        }
        ask(share, share->fresh.items[i]);
        for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
            if (share->links[share->hops[h].link].bound > 0) {
                ask_flows(share, share->hops[h].link, true, INFINITY);
            }
        }
    }
    share->fresh.count = 0;
    for (uint32_t i = 0; i < share->dirty.count; i++) {
        struct link *link = &share->links[share->dirty.items[i]];
        link->dirty = false;
        if (link->bucket != NO_BUCKET) { /* it may be empty: its flows can be held back now */
            open_bucket(share, link, now_ps);
            close_bucket(share, link, now_ps);
            ask_flows(share, share->dirty.items[i], false, -1);
        } else if (link->bound > 0) {
            ask_flows(share, share->dirty.items[i], true, INFINITY);
        }
    }
    share->dirty.count = 0;
}

void share_settle(struct share *share, ps_t now_ps)
{
    if (end_near(share, now_ps)) {
        return;
    }
    share->stamp += 2; /* stamp - 1: a link that was opened, and will be anew */
    share->asked.count = share->open.count = 0;
    ask_first(share, now_ps);
    bool more = share->asked.count > 0;
    for (uint32_t round = 0; more; round++) {
        open_all(share, now_ps, round == MOST_ROUNDS);
        fill(share);
        more = ask_unfair(share);
    }
    close_all(share, now_ps);
}
