/* SPDX-License-Identifier: Apache-2.0
 * The parts of the network engine: the event queue, shares of links by hand and against a slow
 * water-filling, token buckets, several schedules in one run, folding, and what physics forbids.
 * test_net.c holds what is true of single schedules on one switch. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "base/rng.h"
#include "net/bench_cmd.h"
#include "net/fault.h"
#include "net/net.h"
#include "net/share.h"

/* ---- the queue ---- */

/* Random puts, sets and stops against a plain list searched from end to end. */
Test(queue, order)
{
    enum { TIMERS = 50, STEPS = 20000 };
    struct plain {
        ps_t time;
        uint64_t sequence;
        bool there;
    } plain[STEPS] = {0}; /* timers first, then the events as put */
    struct rng rng;
    rng_init(&rng, 1);
    struct queue queue = {0};
    uint64_t sequence = 0;
    uint32_t count = TIMERS;
    for (uint32_t i = 0; i < TIMERS; i++) {
        cr_assert_eq(queue_timer(&queue, 1, i), i);
    }
    for (int step = 0; step < STEPS; step++) {
        ps_t time = rng_below(&rng, 100); /* many ties */
        uint32_t timer = (uint32_t)rng_below(&rng, TIMERS);
        switch (rng_below(&rng, 4)) {
        case 0:
            queue_put(&queue, time, 0, count);
            plain[count++] = (struct plain){time, sequence++, true};
            break;
        case 1:
            queue_set(&queue, timer, time);
            plain[timer] = (struct plain){time, sequence++, true};
            break;
        case 2:
            queue_stop(&queue, timer);
            plain[timer].there = false;
            break;
        default: {
            struct event event;
            uint32_t first = UINT32_MAX;
            for (uint32_t i = 0; i < count; i++) {
                bool earlier = first == UINT32_MAX || plain[i].time < plain[first].time ||
                               (plain[i].time == plain[first].time &&
                                plain[i].sequence < plain[first].sequence);
                first = plain[i].there && earlier ? i : first;
            }
            cr_assert_eq(queue_time(&queue), first == UINT32_MAX ? PS_NEVER : plain[first].time);
            cr_assert_eq(queue_take(&queue, &event), first != UINT32_MAX);
            if (first != UINT32_MAX) {
                cr_assert_eq(event.id, first, "step %d: %u came, not %u", step, event.id, first);
                cr_assert_eq(event.time_ps, plain[first].time);
                cr_assert_eq(event.kind, first < TIMERS);
                plain[first].there = false;
            }
        }
        }
    }
    queue_release(&queue);
}

/* ---- shares by hand ---- */

enum { FLOW = 7, BUCKET = 8 };

/* Links, flows, and when each flow ended; rates in bytes per second, times in seconds. */
struct scene {
    struct queue queue;
    struct share share;
    double end[8];
    ps_t now;
};

static void scene_init(struct scene *scene, uint32_t nlinks, const struct share_link *links)
{
    memset(scene, 0, sizeof *scene);
    share_init(&scene->share, &scene->queue, FLOW, BUCKET, nlinks, links);
}

static void scene_release(struct scene *scene)
{
    share_release(&scene->share);
    queue_release(&scene->queue);
}

/* A flow over a path that ends with NONE. */
#define NONE UINT32_MAX
static uint32_t add(struct scene *scene, double weight, double most, const uint32_t *path)
{
    uint32_t npath = 0;
    while (path[npath] != NONE) {
        npath++;
    }
    return share_add(&scene->share, path, NULL, npath, weight, most);
}
#define PATH(...) ((const uint32_t[]){__VA_ARGS__, NONE})

static double rate(const struct scene *scene, uint32_t flow)
{
    return scene->share.flows[flow].rate * 1e12;
}

static void settle(struct scene *scene)
{
    if (queue_time(&scene->queue) > scene->now) {
        share_settle(&scene->share, scene->now);
    }
}

static void start(struct scene *scene, uint32_t flow, double bytes)
{
    share_start(&scene->share, scene->now, flow, bytes);
}

/* Lets time pass, to `seconds` or to the end of all. */
static void pass(struct scene *scene, double seconds)
{
    ps_t until = isinf(seconds) ? PS_NEVER - 1 : (ps_t)(seconds * 1e12);
    share_settle(&scene->share, scene->now);
    while (queue_time(&scene->queue) <= until) {
        struct event event;
        queue_take(&scene->queue, &event);
        scene->now = event.time_ps;
        if (event.kind == FLOW) {
            share_end(&scene->share, event.id);
            scene->end[event.id] = (double)event.time_ps / 1e12;
        } else {
            cr_assert_eq(event.kind, BUCKET);
            share_empty(&scene->share, event.time_ps, event.id);
        }
        settle(scene);
    }
    scene->now = isinf(seconds) ? scene->now : until;
}

static void same(double got, double want, const char *what)
{
    cr_assert(fabs(got - want) <= 1e-9 * fabs(want), "%s: %.12g, by hand %.12g", what, got, want);
}

/* The drawing of share.h: a and b have 4, c has 1. */
Test(share, drawing)
{
    struct scene s;
    scene_init(
        &s, 3,
        (struct share_link[]){{.capacity_Bps = 10}, {.capacity_Bps = 9}, {.capacity_Bps = 1}});
    uint32_t a = add(&s, 1, 0, PATH(0, 1)), b = add(&s, 1, 0, PATH(1)),
             c = add(&s, 1, 0, PATH(1, 2));
    start(&s, a, 4);
    start(&s, b, 8);
    start(&s, c, 1);
    share_settle(&s.share, 0);
    same(rate(&s, a), 4, "a");
    same(rate(&s, b), 4, "b");
    same(rate(&s, c), 1, "c");
    pass(&s, INFINITY);
    same(s.end[a], 1, "a ends");
    same(s.end[b], 1 + 4. / 9, "b ends, alone from 1 on");
    same(s.end[c], 1, "c ends");
    scene_release(&s);
}

/* Three flows share 3 bytes per ps. When a ends, b has 1 ps to go and ends with it; c has 3 ps, or
 * 1 alone. */
Test(share, nearly_done_is_done)
{
    struct scene s;
    scene_init(&s, 1, (struct share_link[]){{.capacity_Bps = 3e12}});
    static const double bytes[] = {1000, 1001, 1003};
    for (uint32_t i = 0; i < 3; i++) {
        start(&s, add(&s, 1, 0, PATH(0)), bytes[i]);
    }
    pass(&s, INFINITY);
    same(s.end[0], 1000e-12, "a");
    same(s.end[1], 1000e-12, "b");
    same(s.end[2], 1001e-12, "c");
    scene_release(&s);
}

/* A link of 12: weights 1, 2, 3 have 2, 4, 6. With the last capped at 3 the others have 3 and 6. */
Test(share, weights_and_caps)
{
    struct scene s;
    scene_init(&s, 2, (struct share_link[]){{.capacity_Bps = 12}, {.capacity_Bps = 100}});
    uint32_t a = add(&s, 1, 0, PATH(0)), b = add(&s, 2, 0, PATH(0)), c = add(&s, 3, 0, PATH(0)),
             d = add(&s, 3, 3, PATH(0)), e = add(&s, 1, 40, PATH(1));
    start(&s, a, 10);
    start(&s, b, 20);
    start(&s, c, 30);
    share_settle(&s.share, 0);
    same(rate(&s, a), 2, "a");
    same(rate(&s, b), 4, "b");
    same(rate(&s, c), 6, "c");
    pass(&s, 5); /* all end together */
    for (uint32_t i = 0; i < 3; i++) {
        same(s.end[i], 5, "ends");
    }
    start(&s, a, 9);
    start(&s, b, 36);
    start(&s, d, 9);
    start(&s, e, 40);
    share_settle(&s.share, s.now);
    same(rate(&s, a), 3, "a beside the capped one");
    same(rate(&s, b), 6, "b beside the capped one");
    same(rate(&s, d), 3, "the capped one");
    same(rate(&s, e), 40, "alone, and capped");
    pass(&s, INFINITY);
    same(s.end[a], 8, "a");
    same(s.end[d], 8, "d");
    same(s.end[b], 8 + 18. / 12, "b, alone from 8 on");
    same(s.end[e], 6, "e");
    scene_release(&s);
}

/* a stands twice on link 0 (10): alone it has 5; beside b, 2 r + r = 10. c stands for three flows
 * of a class on link 1 (12): 4 each. */
Test(share, multiplicity)
{
    struct scene s;
    scene_init(&s, 2, (struct share_link[]){{.capacity_Bps = 10}, {.capacity_Bps = 12}});
    uint32_t a = add(&s, 1, 0, PATH(0, 1, 0)), b = add(&s, 1, 0, PATH(0));
    uint32_t c = share_add(&s.share, PATH(1), (const uint32_t[]){3}, 1, 1, 0);
    start(&s, a, 5);
    pass(&s, INFINITY);
    same(s.end[a], 1, "a alone");
    start(&s, c, 8);
    pass(&s, INFINITY);
    same(s.end[c], 3, "c alone");
    start(&s, a, 10);
    start(&s, b, 10);
    share_settle(&s.share, s.now);
    same(rate(&s, a), 10. / 3, "a beside b");
    same(rate(&s, b), 10. / 3, "b beside a");
    pass(&s, INFINITY);
    same(s.end[b], 6, "both");
    start(&s, a, 1);
    start(&s, c, 1);
    share_settle(&s.share, s.now);
    same(rate(&s, c), 3, "c: a + 3 c = 12, both 3");
    same(rate(&s, a), 3, "a");
    scene_release(&s);
}

/* Peak 10, sustained 4, 12 tokens. 30 bytes: 2 s at 10 take the 12 tokens, 10 bytes remain at 4:
 * 4.5 s. A pause of 1.5 s brings 6 tokens: 14 bytes take 1 s at 10, 1 s at 4. A long pause brings
 * 12, not more: 30 bytes in 4.5 s again. */
Test(share, bucket)
{
    struct scene s;
    scene_init(&s, 1, (struct share_link[]){{4, 10, 12}});
    uint32_t a = add(&s, 1, 0, PATH(0));
    start(&s, a, 30);
    share_settle(&s.share, 0);
    same(rate(&s, a), 10, "full");
    pass(&s, 3);
    same(rate(&s, a), 4, "empty");
    pass(&s, 6);
    same(s.end[a], 4.5, "first");
    start(&s, a, 14);
    pass(&s, 100);
    same(s.end[a], 8, "after a pause");
    start(&s, a, 30);
    pass(&s, INFINITY);
    same(s.end[a], 104.5, "after a long pause");
    scene_release(&s);
}

/* Two flows over the same bucket (peak 10, sustained 4, 12 tokens), one capped at 1. b alone: rate
 * 1 < 4, the bucket stays full. From 1 s on a beside it: 9, excess 6, empty at 3 s (a: 18); then a
 * has 3: 30 bytes at 3 + 12 / 3 = 7 s. b alone again: tokens come back at 3 a second: 6 at 9 s,
 * when a has 9 again for 1 s and then 3. */
Test(share, bucket_of_two)
{
    struct scene s;
    scene_init(&s, 1, (struct share_link[]){{4, 10, 12}});
    uint32_t a = add(&s, 1, 0, PATH(0)), b = add(&s, 1, 1, PATH(0));
    start(&s, b, 50);
    pass(&s, 1);
    start(&s, a, 30);
    share_settle(&s.share, s.now);
    same(rate(&s, a), 9, "beside the capped one");
    pass(&s, 9);
    same(s.end[a], 7, "first");
    start(&s, a, 15);
    share_settle(&s.share, s.now);
    same(rate(&s, a), 9, "refilled");
    pass(&s, INFINITY);
    same(s.end[a], 9 + 1 + 6. / 3, "second");
    same(s.end[b], 50, "the capped one sees nothing of it");
    scene_release(&s);
}

/* A bucket that is not the limit costs nothing, and one shared with a plain link passes on what it
 * cannot use: link 1 (6) has a and b; a also link 0 (peak 5, sustained 1, 4 tokens). Both 3 until
 * 4 / (3 - 1) = 2 s, then a 1, b 5. */
Test(share, bucket_gives_way)
{
    struct scene s;
    scene_init(&s, 2, (struct share_link[]){{1, 5, 4}, {.capacity_Bps = 6}});
    uint32_t a = add(&s, 1, 0, PATH(0, 1)), b = add(&s, 1, 0, PATH(1));
    start(&s, a, 10);
    start(&s, b, 21);
    pass(&s, 1);
    same(rate(&s, a), 3, "a");
    pass(&s, 2.5);
    same(rate(&s, a), 1, "a, empty");
    same(rate(&s, b), 5, "b takes the rest");
    pass(&s, INFINITY);
    same(s.end[b], 5, "b: 6 + 15");
    same(s.end[a], 6, "a: 6 + 4");
    scene_release(&s);
}

/* Link 0 (14) holds a back at 5; b has 3 beside x (6) on link 1 (9), c and d 3 each on link 2 (6).
 * When x ends and e (weight 4) starts on link 2 at once, c and d give 2 each and b could take 4 of
 * that, but a is there too: both 6. */
Test(share, what_others_leave_is_for_all)
{
    struct scene s;
    scene_init(
        &s, 3,
        (struct share_link[]){{.capacity_Bps = 14}, {.capacity_Bps = 9}, {.capacity_Bps = 6}});
    enum { a, b, c, d, x, e };
    static const double weights[] = {1, 1, 1, 1, 2, 4};
    const uint32_t *paths[] = {PATH(0), PATH(0, 1), PATH(0, 2), PATH(0, 2), PATH(1), PATH(2)};
    for (uint32_t f = a; f <= e; f++) {
        cr_assert_eq(add(&s, weights[f], 0, paths[f]), f);
    }
    for (uint32_t f = a; f <= d; f++) {
        start(&s, f, 100);
    }
    start(&s, x, 6);
    share_settle(&s.share, 0);
    static const double first[] = {5, 3, 3, 3, 6}, then[] = {6, 6, 1, 1, 0, 4};
    for (uint32_t f = a; f <= x; f++) {
        same(rate(&s, f), first[f], "at first");
    }
    struct event event;
    cr_assert(queue_take(&s.queue, &event) && event.id == x);
    s.now = event.time_ps;
    share_end(&s.share, x);
    start(&s, e, 100);
    share_settle(&s.share, s.now);
    for (uint32_t f = a; f <= e; f++) {
        if (f != x) same(rate(&s, f), then[f], "then");
    }
    scene_release(&s);
}

/* ---- shares against a slow water-filling ---- */

/* All running flows rise together; whoever meets a full link or its cap stops. Link by link and
 * flow by flow, nothing kept from before. rate: bytes per ps. */
static void slow_fill(const struct share *share, const double *capacity, double *rates)
{
    bool *stopped = mem_calloc(share->nflows, sizeof *stopped);
    double *used = mem_calloc(share->nlinks, sizeof *used);
    double *slope = mem_calloc(share->nlinks, sizeof *slope);
    for (uint32_t f = 0; f < share->nflows; f++) {
        rates[f] = 0;
        stopped[f] = !share->flows[f].running;
    }
    for (;;) {
        memset(used, 0, share->nlinks * sizeof *used);
        memset(slope, 0, share->nlinks * sizeof *slope);
        double rise = INFINITY;
        for (uint32_t f = 0; f < share->nflows; f++) {
            const struct flow *flow = &share->flows[f];
            for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
                used[share->hops[h].link] += rates[f] * share->hops[h].times;
                slope[share->hops[h].link] += stopped[f] ? 0 : flow->weight * share->hops[h].times;
            }
            if (!stopped[f]) rise = fmin(rise, (flow->most - rates[f]) / flow->weight);
        }
        for (uint32_t l = 0; l < share->nlinks; l++) {
            if (slope[l] > 0) rise = fmin(rise, (capacity[l] - used[l]) / slope[l]);
        }
        if (isinf(rise)) break;
        for (uint32_t f = 0; f < share->nflows; f++) {
            const struct flow *flow = &share->flows[f];
            if (stopped[f]) continue;
            rates[f] += rise * flow->weight;
            stopped[f] = rates[f] >= flow->most * (1 - 1e-12);
            for (uint32_t h = flow->hop; h < flow->hop + flow->nhops; h++) {
                uint32_t l = share->hops[h].link;
                stopped[f] |= used[l] + rise * slope[l] >= capacity[l] * (1 - 1e-11);
            }
        }
    }
    free(stopped);
    free(used);
    free(slope);
}

static void assert_like_slow(const struct share *share, const double *capacity, double *rates)
{
    slow_fill(share, capacity, rates);
    for (uint32_t f = 0; f < share->nflows; f++) {
        double got = share->flows[f].running ? share->flows[f].rate : 0;
        cr_assert(fabs(got - rates[f]) <= 1e-8 * rates[f], "flow %u: %.12g, slowly %.12g", f, got,
                  rates[f]);
    }
}

/* Random flows come and go on random links; at every instant all rates are as they should be, and
 * each flow has carried its bytes when it ends. Small neighbourhoods: components part and meet. */
Test(share, like_a_slow_filling_at_every_instant)
{
    enum { LINKS = 40, FLOWS = 120, HOPS = 4, STARTS = 1500 };
    struct rng rng;
    rng_init(&rng, 42);
    struct share_link links[LINKS];
    double capacity[LINKS], rates[FLOWS], bytes[FLOWS] = {0}, carried[FLOWS] = {0};
    for (int i = 0; i < LINKS; i++) {
        links[i] = (struct share_link){.capacity_Bps = 1e9 * (double)(1 + rng_below(&rng, 10))};
        capacity[i] = links[i].capacity_Bps / 1e12;
    }
    struct queue queue = {0};
    struct share share;
    share_init(&share, &queue, 0, 1, LINKS, links);
    for (uint32_t f = 0; f < FLOWS; f++) {
        uint32_t path[HOPS], times[HOPS], npath = 1 + (uint32_t)rng_below(&rng, HOPS);
        uint32_t first = (uint32_t)rng_below(&rng, LINKS - HOPS);
        for (uint32_t i = 0; i < npath; i++) { /* some stand twice */
            path[i] = first + (uint32_t)rng_below(&rng, HOPS);
            times[i] = 1 + (uint32_t)(rng_below(&rng, 4) == 0) * (uint32_t)rng_below(&rng, 7);
        }
        double weight = 0.5 * (double)(1 + rng_below(&rng, 4));
        double most = rng_below(&rng, 3) == 0 ? 1e8 * (double)(1 + rng_below(&rng, 20)) : 0;
        share_add(&share, path, times, npath, weight, most);
    }
    uint64_t started = 0, ended = 0;
    ps_t now = 0, before = 0;
    struct event event;
    do {
        for (int i = 0; i < 3 && started < STARTS; i++) {
            uint32_t f = (uint32_t)rng_below(&rng, FLOWS);
            if (!share.flows[f].running) {
                bytes[f] = (double)(1 + rng_below(&rng, 1000000));
                carried[f] = 0;
                share_start(&share, now, f, bytes[f]);
                started++;
            }
        }
        share_settle(&share, now);
        if (queue_time(&queue) > now) { /* else some end now, and are settled afterwards */
            assert_like_slow(&share, capacity, rates);
        }
        cr_assert(queue_take(&queue, &event));
        before = now;
        now = event.time_ps;
        for (uint32_t f = 0; f < FLOWS; f++) {
            carried[f] += share.flows[f].running ? share.flows[f].rate * (double)(now - before) : 0;
        }
        const struct flow *flow = &share.flows[event.id];
        cr_assert(fabs(carried[event.id] - bytes[event.id]) <= 2 * flow->rate + 1e-6,
                  "flow %u carried %.6f of %.6f bytes", event.id, carried[event.id],
                  bytes[event.id]);
        share_end(&share, event.id);
        ended++;
    } while (ended < STARTS);
    share_release(&share);
    queue_release(&queue);
}

/* ---- schedules ---- */

struct made {
    struct sched *sched;
    struct linked *linked;
};

static struct made make(enum coll_id coll, const char *name, uint32_t nranks, uint32_t channels)
{
    struct err err = ERR_INIT;
    struct algo_args args = {.nranks = nranks, .channels = channels, .parts = 1};
    const struct algo *algo = algo_find(coll, name, &err);
    cr_assert(algo, "%s", err.text);
    struct made made = {.sched = algo_build(algo, &args, false, &err)};
    cr_assert(made.sched, "%s", err.text);
    made.linked = link_sched(made.sched, &(struct link_opts){.fuse = true}, &err);
    cr_assert(made.linked, "%s", err.text);
    return made;
}

static void made_release(struct made *made)
{
    linked_free(made->linked);
    sched_free(made->sched);
}

/* Of 1 MB 1000 us to read or write a buffer, 500 us a slot. */
static const struct net_hands slow_hands = {.buffer_Bps = 1e9, .slot_Bps = 2e9};

/* Arguments for S bytes of a collective. */
static struct net_args args_for(const struct made *made, size_t size)
{
    return (struct net_args){.slots = made->linked->least_depth < 8 ? 8 : made->linked->least_depth,
                             .beta_Bps = 50e9,
                             .block_bytes =
                                 coll_block_count(made->sched->coll, made->sched->nranks, size, 1)};
}

static struct net_result run_one(const struct made *made, const struct net_args *args)
{
    struct err err = ERR_INIT;
    struct net_result result;
    cr_assert_eq(net_run(made->linked, args, &result, &err), 0, "%s", err.text);
    return result;
}

static void run_jobs(const struct network *network, const struct net_job *jobs, uint32_t njobs,
                     struct net_result *results)
{
    struct err err = ERR_INIT;
    cr_assert_eq(net_run_jobs(network, jobs, njobs, results, &err), 0, "%s", err.text);
}

static void results_release(struct net_result *results, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        net_result_release(&results[i]);
    }
}

/* Two equal all-reduces on the same ports take 2.0 times, on disjoint ones 1.0, and so do three. */
Test(jobs, share_what_they_meet_on)
{
    struct made ring = make(COLL_ALLREDUCE, "ring", 8, 1);
    struct net_args args = args_for(&ring, 1 << 30);
    struct network *network = network_switch(24, 50e9, 5000000);
    uint32_t groups[3][8];
    for (uint32_t r = 0; r < 24; r++) {
        groups[r / 8][r % 8] = 3 * (r % 8) + r / 8; /* interleaved */
    }
    struct net_result alone, both[2], apart[3];
    struct net_job job = {.linked = ring.linked, .args = &args, .ranks = groups[0]}, other = job;
    run_jobs(network, &job, 1, &alone);
    run_jobs(network, (struct net_job[]){job, job}, 2, both);
    double times = (double)both[0].total_ps / (double)alone.total_ps;
    cr_assert(times > 1.98 && times < 2.0, "%.4f times: but for the latency, twice", times);
    cr_assert_eq(both[0].total_ps, both[1].total_ps);
    cr_assert_null(both[0].link_bytes); /* not asked for */
    struct net_job three[3] = {job, other, other};
    args.keep_links = true;
    three[1].ranks = groups[1];
    three[2].ranks = groups[2];
    run_jobs(network, three, 3, apart);
    for (uint32_t j = 0; j < 3; j++) {
        cr_assert_eq(apart[j].total_ps, alone.total_ps);
        for (uint32_t r = 0; r < 24; r++) { /* each on its own links */
            double want = r % 3 == j ? 2. * 7 / 8 * (1 << 30) : 0;
            cr_assert_eq(apart[j].link_bytes[2 * r], want);
            cr_assert_eq(apart[j].link_bytes[2 * r + 1], want);
        }
    }
    results_release(&alone, 1);
    results_release(both, 2);
    results_release(apart, 3);
    network_free(network);
    made_release(&ring);
}

/* A weight of 3 beside one of 1 has 3/4 of the port until it ends: of equal work the light job has
 * done a third by then, 4/3 x alone, and ends at 2 x. */
Test(jobs, weights)
{
    struct made shift = make(COLL_SENDRECV, "shift", 4, 1);
    struct net_cost costs[2][NSCOPES] = {0};
    for (int scope = 0; scope < NSCOPES; scope++) {
        costs[0][scope].weight = 3;
    }
    struct net_args heavy = args_for(&shift, 3 << 20), light = heavy;
    heavy.costs = costs[0];
    light.costs = costs[1];
    struct network *network = network_switch(4, 50e9, 0);
    struct net_job jobs[2] = {{.linked = shift.linked, .args = &heavy},
                              {.linked = shift.linked, .args = &light}};
    struct net_result results[2];
    run_jobs(network, jobs, 2, results);
    double alone = (3 << 20) / 50e9 * 1e12;
    cr_assert(fabs((double)results[0].total_ps - alone * 4 / 3) <= 2);
    cr_assert(fabs((double)results[1].total_ps - alone * 2) <= 2);
    results_release(results, 2);
    network_free(network);
    made_release(&shift);
}

/* 0 and 1 together, 2 after both and 3 us, 3 at 1 us, 4 after 3. */
Test(jobs, order)
{
    struct made ring = make(COLL_ALLREDUCE, "ring", 4, 1), none = make(COLL_BARRIER, "tree", 1, 1);
    struct net_args args = args_for(&ring, 1 << 20), empty = args_for(&none, 0);
    struct network *network = network_switch(16, 50e9, 5000000);
    static const uint32_t groups[4][4] = {
        {0, 1, 2, 3}, {7, 6, 5, 4}, {8, 10, 9, 11}, {12, 13, 14, 15}};
    static const uint32_t first_two[] = {0, 1}, fourth[] = {3};
    struct net_job jobs[] = {
        {.linked = ring.linked, .args = &args, .ranks = groups[0]},
        {.linked = ring.linked, .args = &args, .ranks = groups[1], .start_ps = 500},
        {ring.linked, &args, groups[0], first_two, 2, 3000000, NULL},
        {.linked = none.linked, .args = &empty, .ranks = groups[3], .start_ps = 1000000},
        {ring.linked, &args, groups[2], fourth, 1, 7, NULL},
    };
    struct net_result r[5], alone;
    run_jobs(network, jobs, 5, r);
    run_jobs(network, jobs, 1, &alone);
    cr_assert_eq(r[0].start_ps, 0);
    cr_assert_eq(r[0].total_ps, alone.total_ps);
    cr_assert_eq(r[1].start_ps, 500);
    cr_assert_eq(r[1].total_ps, 500 + alone.total_ps);
    cr_assert_eq(r[2].start_ps, 500 + alone.total_ps + 3000000);
    cr_assert_eq(r[2].total_ps, r[2].start_ps + alone.total_ps);
    cr_assert_eq(r[3].start_ps, 1000000);
    cr_assert_eq(r[3].total_ps, 1000000); /* one rank has nothing to do */
    cr_assert_eq(r[4].start_ps, 1000007);
    cr_assert_eq(r[4].total_ps, 1000007 + alone.total_ps);
    results_release(r, 5);
    results_release(&alone, 1);
    network_free(network);
    made_release(&ring);
    made_release(&none);
}

Test(jobs, refused)
{
    struct made ring = make(COLL_ALLREDUCE, "ring", 4, 1);
    struct net_args args = args_for(&ring, 1 << 20);
    struct network *network = network_switch(4, 50e9, 0), *small = network_switch(3, 50e9, 0);
    static const uint32_t bad[] = {0, 1, 2, 4}, self[] = {0};
    struct err err = ERR_INIT;
    struct net_result result;
    struct net_job job = {.linked = ring.linked, .args = &args};
    cr_assert_eq(net_run_jobs(small, &job, 1, &result, &err), -1);
    cr_assert(err.code == ERR_USAGE && strstr(err.text, "4 ranks") && strstr(err.text, "has 3"),
              "%s", err.text);
    err_release(&err);
    job.ranks = bad;
    job.after = self;
    job.nafter = 1;
    cr_assert_eq(net_run_jobs(network, &job, 1, &result, &err), -1);
    cr_assert(err.count == 2 && strstr(err.text, "rank 4 of the network") &&
                  strstr(err.text, "after job 0"),
              "%s", err.text);
    err_release(&err);
    network_free(network);
    network_free(small);
    made_release(&ring);
}

/* Costs by hand, one message of 1 MB: overhead 2 us, alpha 1 us + 3 us, 2 bytes for each. */
Test(costs, of_a_message)
{
    struct made shift = make(COLL_SENDRECV, "shift", 2, 1);
    struct net_args args = args_for(&shift, 1000000);
    struct net_cost costs[NSCOPES] = {
        [SCOPE_ALL] = {.overhead_ps = 2000000, .latency_ps = 3000000, .stretch = 2}};
    args.alpha_ps = 1000000;
    args.costs = costs;
    struct net_result result = run_one(&shift, &args);
    cr_assert_eq(result.total_ps, 2000000 + 40000000 + 4000000);
    cr_assert_eq(result.bytes, 2000000);
    cr_assert_eq(result.link_bytes[0], 2000000); /* stretched */
    cr_assert(fabs(result.limit_use - 40. / 46) < 1e-9 && result.limit == 0);
    net_result_release(&result);
    costs[SCOPE_ALL] = (struct net_cost){.most_Bps = 10e9};
    result = run_one(&shift, &args);
    cr_assert_eq(result.total_ps, 100000000 + 1000000);
    net_result_release(&result);
    made_release(&shift);
}

/* The wire's bound where endpoints reduce, 2 (n - 1) / n S / B, is met by the ring without latency:
 * 1 GiB over ports of 50 GiB/s. */
Test(physics, ring_all_reduce_of_1_GiB)
{
    static const struct {
        uint32_t n;
        double ms;
    } cases[] = {{8, 35.00}, {64, 39.38}, {512, 39.92}, {4096, 39.99}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int fold = cases[i].n > 512; fold < 2; fold++) {
            struct made ring = make(COLL_ALLREDUCE, "ring", cases[i].n, 1);
            struct net_args args = args_for(&ring, 1 << 30);
            args.beta_Bps = 50. * (1 << 30);
            args.fold = fold;
            struct net_result result = run_one(&ring, &args);
            double ms = (double)result.total_ps / 1e9;
            cr_assert(fabs(ms - cases[i].ms) <= 0.0051, "%u ranks: %.4f ms", cases[i].n, ms);
            cr_assert_eq(result.classes, fold ? 1 : cases[i].n);
            cr_assert(result.limit_use > 0.9999 && result.limit_use <= 1.0001);
            net_result_release(&result);
            made_release(&ring);
        }
    }
}

/* No algorithm is faster than the wire. */
Test(physics, no_all_reduce_beats_the_wire)
{
    size_t count, tried = 0;
    const struct algo *table = algo_table(&count);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t n = 2; n <= 64 && table[i].coll == COLL_ALLREDUCE; n = 2 * n + n % 3) {
            struct made made = make(COLL_ALLREDUCE, table[i].name, n, table[i].channels);
            size_t size = 16 << 20;
            struct net_args args = args_for(&made, size);
            struct net_result result = run_one(&made, &args);
            double times =
                algo_runs_on_ranks(&table[i]) ? 2. * (n - 1) / n : 1; /* a switch reduces */
            double bound = times * (double)size / args.beta_Bps * 1e12;
            cr_assert((double)result.total_ps >= bound * (1 - 1e-6), "%s on %u", table[i].name, n);
            cr_assert((double)result.total_ps <= bound * n, "%s on %u", table[i].name, n);
            net_result_release(&result);
            made_release(&made);
            tried++;
        }
    }
    cr_assert(tried > 20);
}

/* ---- clusters ---- */

/* Hosts of H100 as one line of the network member says; a fault as behind --fault, or NULL. */
static struct network *cluster(uint32_t hosts, uint32_t per_host, const char *member,
                               const char *fault)
{
    struct err err = ERR_INIT;
    char path[] = "/tmp/test_engine.XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    fprintf(file,
            "{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": \"H100-80GB\", \"hosts\": %u,"
            " \"accelerators_per_host\": %u, \"network\": {\"kind\": \"ib\", %s, \"source\": "
            "\"made up\"}}",
            hosts, per_host, member);
    fclose(file);
    struct accel_table table;
    struct topo topo;
    struct net_rate rates[NNET_KINDS];
    for (int kind = 0; kind < NNET_KINDS; kind++) {
        rates[kind] = (struct net_rate){1, 100000 + 1000 * (ps_t)kind, 0};
    }
    cr_assert_eq(accel_read(&table, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(topo_read(&topo, &table, path, 0, 0, &err), 0, "%s", err.text);
    if (fault) {
        cr_assert_eq(fault_parse(&topo, fault, &err), 0, "%s", err.text);
    }
    struct network *network = network_build(&topo, rates, NET_OWN, NULL, &err);
    cr_assert(network, "%s", err.text);
    topo_release(&topo);
    accel_release(&table);
    unlink(path);
    return network;
}

#define RAIL "\"nics_per_host\": 8, \"nic_Gbps\": 400, \"layout\": \"rail\""

static void near(double got, double want, double tolerance, const char *what)
{
    cr_assert(fabs(got - want) <= tolerance * fabs(want), "%s: %.12g, want %.12g", what, got, want);
}

/* The same with and without folding, to the picosecond. Classes that were run. */
static uint32_t fold_is_exact(const struct made *made, struct net_args args, const char *what)
{
    struct net_result folded, full;
    args.fold = true;
    folded = run_one(made, &args);
    args.fold = false;
    full = run_one(made, &args);
    cr_assert_eq(folded.total_ps, full.total_ps, "%s", what);
    near((double)folded.bytes, (double)full.bytes, 0, what);
    near((double)folded.messages, (double)full.messages, 0, what);
    near(folded.limit_use, full.limit_use, 1e-9, what);
    cr_assert_eq(full.classes, full.nranks);
    cr_assert_eq(folded.why[0] != 0, folded.classes == folded.nranks, "%s: %s", what, folded.why);
    for (uint32_t r = 0; r < full.nranks; r++) {
        cr_assert_eq(folded.finish_ps[r], full.finish_ps[r], "%s", what);
    }
    for (uint32_t l = 0; l < full.nlinks; l++) {
        near(folded.link_bytes[l], full.link_bytes[l], 1e-9, what);
    }
    uint32_t classes = folded.classes;
    net_result_release(&folded);
    net_result_release(&full);
    return classes;
}

/* Random collectives on random clusters. */
Test(fold, is_exact)
{
    static const char *const layouts[] = {"switch", "fat-tree", "rail", "dragonfly"};
    enum { CASES = 60 };
    struct rng rng;
    rng_init(&rng, 7);
    size_t count, tried = 0, folded = 0, deep = 0, most = 0;
    const struct algo *table = algo_table(&count);
    while (tried < CASES) {
        const struct algo *algo = &table[rng_below(&rng, count)];
        uint32_t per_host = 1u << rng_below(&rng, 4), hosts = 1 + (uint32_t)rng_below(&rng, 8);
        hosts <<= rng_below(&rng, 4);
        uint32_t n = hosts * per_host;
        uint32_t channels = 1 + (uint32_t)rng_below(&rng, 2);
        bool large = tried % 5 == 4; /* every fifth has 256 to 512 ranks */
        if (algo->symmetry != SYM_SHIFT || algo->coll == COLL_ALLTOALLV || large != (n >= 256)) {
            continue;
        }
        struct made made = make(algo->coll, algo->name, n, channels);
        if ((uint64_t)n * made.sched->progs[0].nsteps > (large && strcmp(algo->name, "ring") == 0
                                                             ? 300000
                                                             : 60000)) { /* keeps the test short */
            made_release(&made);
            continue;
        }
        const char *layout = layouts[rng_below(&rng, 4)];
        uint32_t leaf = 1u << rng_below(&rng, 5);
        char *member = mem_printf(
            "\"nics_per_host\": %u, \"nic_Gbps\": %u, \"layout\": \"%s\", \"leaf_hosts\": %u, "
            "\"oversubscribed\": %u%s",
            per_host, 100u << rng_below(&rng, 3), layout, leaf < hosts / 8 ? hosts / 8 : leaf,
            1u << rng_below(&rng, 2),
            rng_below(&rng, 4) == 0 ? ", \"burst_Gbps\": 800, \"burst_GB\": 0.0001" : "");
        struct network *network = cluster(hosts, per_host, member, NULL);
        size_t size = (size_t)64 * n * channels * (1 + rng_below(&rng, 2000));
        struct net_args args = args_for(&made, size);
        args.network = network;
        args.overhead_ps = rng_below(&rng, 2) * 1000;
        args.gamma_Bps = rng_below(&rng, 2) ? 100e9 : 0;
        args.hands = rng_below(&rng, 3) == 0 ? &slow_hands : NULL;
        size_t chunk = args.block_bytes / made.sched->nparts; /* 1, or 2 to 4 passes */
        args.slice_bytes =
            rng_below(&rng, 3) == 0 ? 64 * (1 + chunk / (64 * (1 + rng_below(&rng, 3)))) : 0;
        char *what = mem_printf("%s %s, %u x %u, %u channels, %zu B, %s", made.sched->coll->name,
                                algo->name, hosts, per_host, channels, size, member);
        uint32_t classes = fold_is_exact(&made, args, what);
        folded += classes < n;
        most = n > most ? n : most;
        deep += classes < n && classes > 1;
        tried++;
        free(what);
        free(member);
        made_release(&made);
        network_free(network);
    }
    struct network *rail = cluster(64, 8, RAIL, NULL); /* and one of 512 ranks */
    struct made ring = make(COLL_ALLGATHER, "ring", 512, 1);
    struct net_args args = args_for(&ring, 1 << 24);
    args.network = rail;
    cr_assert_eq(fold_is_exact(&ring, args, "512 ranks, two rail groups"), 256);
    made_release(&ring);
    network_free(rail);
    cr_assert_eq(most, 512);
    cr_assert(folded > CASES / 2 && deep > CASES / 4, "%zu of %d folded, %zu to more than one rank",
              folded, CASES, deep);
}

/* A row that runs on ranks, at random; false: it is not one for this. */
static bool make_random(struct made *made, struct rng *rng, uint32_t n, uint32_t channels)
{
    size_t count;
    const struct algo *table = algo_table(&count), *algo = &table[rng_below(rng, count)];
    if (!algo_runs_on_ranks(algo) || algo->coll == COLL_ALLTOALLV) return false;
    *made = make(algo->coll, algo->name, n, channels);
    if (made->sched->progs[0].nsteps < 4000) return true;
    made_release(made);
    return false;
}

/* Groups of any row, on a random cluster. */
struct grouped {
    struct made made;
    struct network *network;
    struct net_args args;
    char *what;
};

static bool grouped_make(struct grouped *g, struct rng *rng)
{
    static const char *const layouts[] = {"switch", "fat-tree", "rail"};
    uint32_t per_host = 1u << rng_below(rng, 4), hosts = 1u << rng_below(rng, 5);
    uint32_t all = hosts * per_host, groups = 1 + (uint32_t)rng_below(rng, 12);
    uint32_t n = 2 + (uint32_t)rng_below(rng, 15), channels = 1u << rng_below(rng, 3);
    if (n * groups > all || n * groups > 96 || !make_random(&g->made, rng, n, channels))
        return false;
    char *member = mem_printf(
        "\"nics_per_host\": %u, \"nic_Gbps\": 400, \"layout\": \"%s\", \"leaf_hosts\": %u",
        rng_below(rng, 3) ? per_host : 1, layouts[rng_below(rng, 3)], 1u << rng_below(rng, 4));
    bool broken = rng_below(rng, 4) == 0;
    g->network = cluster(hosts, per_host, member, broken ? "host0/nic0=0.5" : NULL);
    size_t chunk = 64 * (1 + rng_below(rng, 3000));
    g->args = args_for(&g->made, chunk * g->made.sched->nparts * n);
    g->args.network = g->network;
    g->args.groups = groups;
    g->args.base = (uint32_t)rng_below(rng, all - n * groups + 1);
    g->args.overhead_ps = rng_below(rng, 2) * 1000;
    g->args.hands = rng_below(rng, 4) == 0 ? &slow_hands : NULL;
    if (rng_below(rng, 3) == 0) g->args.slice_bytes = 64 * (1 + chunk / 128);
    g->what = mem_printf("%s %s, %u x %u from %u of %u x %u, %u channels, %zu B, %s%s",
                         g->made.sched->coll->name, g->made.sched->name, n, groups, g->args.base,
                         hosts, per_host, channels, chunk, member, broken ? ", broken" : "");
    free(member);
    return true;
}

static void grouped_release(struct grouped *g)
{
    network_free(g->network);
    made_release(&g->made);
    free(g->what);
}

/* Folded over groups, channels and members as far as it goes, it is what it is in full. */
Test(fold, groups_are_exact)
{
    enum { CASES = 200 };
    struct rng rng;
    rng_init(&rng, 11);
    uint32_t folded = 0, members = 0, less = 0, tried = 0;
    while (tried < CASES) {
        struct grouped g;
        if (!grouped_make(&g, &rng)) continue;
        struct net_result full = run_one(&g.made, &g.args), fold;
        g.args.fold = true;
        fold = run_one(&g.made, &g.args);
        cr_assert_eq(full.nranks, g.made.sched->nranks * g.args.groups);
        cr_assert_eq(fold.total_ps, full.total_ps, "%s: %llu, %llu", g.what,
                     (unsigned long long)fold.total_ps, (unsigned long long)full.total_ps);
        cr_assert_eq(fold.messages, full.messages, "%s", g.what);
        cr_assert_eq(fold.bytes, full.bytes, "%s", g.what);
        for (uint32_t r = 0; r < full.nranks; r++)
            cr_assert_eq(fold.finish_ps[r], full.finish_ps[r], "%s: rank %u", g.what, r);
        for (uint32_t l = 0; l < full.nlinks; l++)
            near(fold.link_bytes[l], full.link_bytes[l], 1e-9, g.what);
        folded += fold.stands_for > 1;
        members += fold.classes < full.classes;
        less += fold.events < full.events / 2;
        tried++;
        net_result_release(&full);
        net_result_release(&fold);
        grouped_release(&g);
    }
    cr_assert(folded > CASES / 3 && members > CASES / 5 && less > CASES / 5, "%u, %u, %u of %d",
              folded, members, less, CASES);
}

/* Groups of one run are what jobs on their ranks are together. */
Test(jobs, groups_are_jobs)
{
    struct made ring = make(COLL_ALLGATHER, "ring", 4, 2);
    struct net_args args = args_for(&ring, 1 << 20), one;
    struct network *network = cluster(4, 8, RAIL, "host1/nic0=0.25");
    struct net_result all, parts[3];
    struct net_job jobs[3];
    uint32_t ranks[3][4];
    args.network = network;
    args.groups = 3;
    args.base = 5;
    one = args;
    one.groups = 1;
    for (uint32_t b = 0; b < 3; b++) {
        for (uint32_t k = 0; k < 4; k++)
            ranks[b][k] = 5 + 3 * k + b;
        jobs[b] = (struct net_job){.linked = ring.linked, .args = &one, .ranks = ranks[b]};
    }
    all = run_one(&ring, &args);
    run_jobs(network, jobs, 3, parts);
    for (uint32_t r = 0; r < 12; r++)
        cr_assert_eq(all.finish_ps[r], parts[r % 3].finish_ps[r / 3], "%u", r);
    cr_assert(parts[0].total_ps != parts[1].total_ps || parts[1].total_ps != parts[2].total_ps);
    net_result_release(&all);
    results_release(parts, 3);
    network_free(network);
    made_release(&ring);
}

/* Where something differs nothing is folded, and the result says what. */
Test(fold, refused)
{
    struct err err = ERR_INIT;
    struct made ring = make(COLL_ALLREDUCE, "ring", 32, 1);
    struct net_args args = args_for(&ring, 1 << 20);
    struct network *healthy = cluster(4, 8, RAIL, NULL);
    struct network *slow = cluster(4, 8, RAIL, "host2/nic7=0.5");
    args.network = healthy;
    cr_assert_eq(fold_is_exact(&ring, args, "healthy"), 8);
    args.network = slow;
    cr_assert_eq(fold_is_exact(&ring, args, "one slow NIC"), 32);
    args.fold = true;
    struct net_result result = run_one(&ring, &args);
    cr_assert(strstr(result.why, "host2/nic7"), "%s", result.why);
    net_result_release(&result);
    args.network = healthy;
    args.block_bytes += 64; /* one chunk is longer */
    result = run_one(&ring, &args);
    cr_assert_eq(result.classes, 32);
    cr_assert(strstr(result.why, "chunks"), "%s", result.why);
    net_result_release(&result);
    args.block_bytes -= 64;
    args.keep_log = true;
    result = run_one(&ring, &args);
    cr_assert(result.classes == 32 && strstr(result.why, "kept") && result.nlog == 32 * 62);
    net_result_release(&result);
    made_release(&ring);
    args.keep_log = false;
    struct made tree = make(COLL_ALLREDUCE, "tree", 32, 2);
    result = run_one(&tree, &args);
    cr_assert(result.classes == 32 && strstr(result.why, "program of its own"), "%s", result.why);
    net_result_release(&result);
    made_release(&tree);
    struct made blocks = make(COLL_ALLTOALLV, "direct", 32, 1);
    double shares[32 * 32];
    traffic_imbalance(32, 4, shares);
    struct traffic *traffic = traffic_deal(32, shares, 1 << 20);
    args.traffic = traffic;
    args.esize = 1;
    args.block_bytes = traffic_longest(traffic);
    cr_assert_eq(fold_is_exact(&blocks, args, "uneven blocks"), 32);
    free(traffic);
    made_release(&blocks);
    network_free(healthy);
    network_free(slow);
    err_release(&err);
}

/* ---- on clusters ---- */

#define PLAIN(NICS) "\"nics_per_host\": " #NICS ", \"nic_Gbps\": 200"

/* Total time in ps of S bytes of a collective on a cluster, which it frees. */
static double time_on(struct network *network, enum coll_id coll, const char *algo, size_t size)
{
    struct made made = make(coll, algo, network_ranks(network), 1);
    struct net_args args = args_for(&made, size);
    args.network = network;
    struct net_result result = run_one(&made, &args);
    double time = (double)result.total_ps;
    net_result_release(&result);
    made_release(&made);
    network_free(network);
    return time;
}

/* Hops cut through: over two levels of switches a message takes their latency more, not its own
 * time again. */
Test(physics, two_levels_do_not_double)
{
    const char *one = PLAIN(1) ", \"layout\": \"switch\"";
    const char *two = PLAIN(1) ", \"layout\": \"fat-tree\", \"leaf_hosts\": 1";
    double flat = time_on(cluster(16, 1, one, NULL), COLL_ALLREDUCE, "ring", 1 << 30);
    double deep = time_on(cluster(16, 1, two, NULL), COLL_ALLREDUCE, "ring", 1 << 30);
    double wire = 2. * 15 / 16 * (1 << 30) / 25e9 * 1e12; /* 200 Gb/s */
    cr_assert(flat > wire && flat < 1.01 * wire, "%.4f of the wire's time", flat / wire);
    cr_assert(deep > flat && deep < 1.001 * flat, "%.4f times", deep / flat);
}

/* 64 hosts, 8 under a leaf, half as much above: of the 63 b that a host sends 56 b leave the leaf,
 * 8 x 56 b over 4 NICs' worth: 112 b / B, where the NIC itself needs 63. */
Test(physics, oversubscribed_all_to_all)
{
    struct network *network = cluster(64, 1,
                                      PLAIN(1) ", \"layout\": \"fat-tree\", \"leaf_hosts\": 8, "
                                               "\"oversubscribed\": 2",
                                      NULL);
    struct made made = make(COLL_ALLTOALL, "direct", 64, 1);
    struct net_args args = args_for(&made, 64 << 20);
    args.network = network;
    struct net_result result = run_one(&made, &args);
    double bound = 112 * (double)(1 << 20) / 25e9 * 1e12, up = 0;
    cr_assert((double)result.total_ps > bound && (double)result.total_ps < 1.5 * bound,
              "%.3f of the bound", (double)result.total_ps / bound);
    cr_assert_eq(network_link(network, result.limit).kind, NET_FABRIC);
    for (uint32_t l = 0; l < result.nlinks; l++) {
        up += network_link(network, l).kind == NET_FABRIC ? result.link_bytes[l] : 0;
    }
    cr_assert_eq(up, 2. * 64 * 56 * (1 << 20)); /* up and down again */
    net_result_release(&result);
    made_release(&made);
    network_free(network);
}

/* Every link carries the bytes of the messages whose route stands on it, no more, no less; and the
 * same run is the same run. */
Test(physics, bytes_are_conserved)
{
    static const struct {
        enum coll_id coll;
        const char *algo;
        bool gamma;
    } cases[] = {{COLL_ALLREDUCE, "tree", false},
                 {COLL_ALLREDUCE, "halving_doubling", true},
                 {COLL_ALLTOALL, "pairwise", false},
                 {COLL_ALLGATHER, "bruck", true},
                 {COLL_BROADCAST, "scatter_allgather", false},
                 {COLL_ALLREDUCE, "hierarchical", false}};
    struct network *network =
        cluster(6, 4, PLAIN(2) ", \"layout\": \"fat-tree\", \"leaf_hosts\": 2", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made made = make(cases[i].coll, cases[i].algo, 24, 2);
        struct net_args args = args_for(&made, 1234567);
        args.network = network;
        args.gamma_Bps = cases[i].gamma ? 300e9 : 0;
        args.keep_log = true;
        struct net_result result = run_one(&made, &args), again = run_one(&made, &args);
        double *bytes = mem_calloc(result.nlinks, sizeof *bytes);
        for (size_t m = 0; m < result.nlog; m++) {
            const struct msg_log *log = &result.log[m];
            uint32_t path[NETWORK_HOPS];
            uint32_t hops = network_route(network, log->src, log->dst, log->channel, path);
            for (uint32_t h = 0; h < hops; h++) {
                bytes[path[h]] += (double)log->bytes;
            }
        }
        for (uint32_t l = 0; l < result.nlinks; l++) {
            cr_assert_eq(result.link_bytes[l], bytes[l], "%s, link %u", cases[i].algo, l);
        }
        cr_assert_eq(result.trace, again.trace);
        args.gamma_Bps += 1e11;
        net_result_release(&again);
        again = run_one(&made, &args);
        cr_assert_neq(result.trace, again.trace);
        free(bytes);
        net_result_release(&result);
        net_result_release(&again);
        made_release(&made);
    }
    network_free(network);
}

/* Two all-reduces between two hosts of two: 2.0 times over one NIC, 1.0 over one each. */
Test(jobs, share_a_NIC)
{
    struct made ring = make(COLL_ALLREDUCE, "ring", 2, 1);
    struct net_args args = args_for(&ring, 1 << 30);
    static const uint32_t pairs[2][2] = {{0, 2}, {1, 3}};
    for (int nics = 1; nics <= 2; nics++) {
        struct network *network = cluster(2, 2, nics == 1 ? PLAIN(1) : PLAIN(2), NULL);
        struct net_job jobs[2] = {{.linked = ring.linked, .args = &args, .ranks = pairs[0]},
                                  {.linked = ring.linked, .args = &args, .ranks = pairs[1]}};
        struct net_result alone, both[2];
        run_jobs(network, jobs, 1, &alone);
        run_jobs(network, jobs, 2, both);
        near((double)both[0].total_ps / (double)alone.total_ps, nics == 1 ? 2 : 1, 0.001, "first");
        near((double)both[1].total_ps / (double)alone.total_ps, nics == 1 ? 2 : 1, 0.001, "second");
        results_release(&alone, 1);
        results_release(both, 2);
        network_free(network);
    }
    made_release(&ring);
}

/* NICs of 40 Gb/s, 80 while their 10 MB of tokens last: 5 GB/s beyond empty them in 2 ms, 20 MB;
 * the other 80 MB of 100 take 16 ms. */
Test(physics, burst)
{
    struct made shift = make(COLL_SENDRECV, "shift", 2, 1);
    struct net_args args = args_for(&shift, 100000000);
    struct network *network = cluster(2, 1,
                                      "\"nics_per_host\": 1, \"nic_Gbps\": 40, \"burst_Gbps\": 80, "
                                      "\"burst_GB\": 0.01",
                                      NULL);
    args.network = network;
    struct net_result result = run_one(&shift, &args);
    near((double)result.total_ps, 18e9, 1e-3, "burst");
    cr_assert((double)result.total_ps > 18e9 && result.limit_use > 0.999);
    net_result_release(&result);
    made_release(&shift);
    network_free(network);
}

/* A bucket of 100 bytes that goes at 125 per ps is found empty after 1 ps: 25 bytes too late, which
 * is rounding and no breach of physics. */
Test(physics, burst_of_less_than_a_picosecond)
{
    struct made shift = make(COLL_SENDRECV, "shift", 2, 1);
    struct net_args args = args_for(&shift, 125);
    struct network *network = cluster(2, 1,
                                      "\"nics_per_host\": 1, \"nic_Gbps\": 1, \"burst_Gbps\": "
                                      "1e6, \"burst_GB\": 1e-7, \"layout\": \"torus\"",
                                      NULL);
    args.network = network;
    struct net_result result = run_one(&shift, &args);
    cr_assert(result.total_ps > 0 && result.limit_use <= 1, "%g", result.limit_use);
    net_result_release(&result);
    made_release(&shift);
    network_free(network);
}

/* In-network reduction: every GPU sends its buffer up once and gets the result once: S / B, not
 * 2 (n - 1) / n S / B. Where no switch reduces it is refused. */
Test(physics, agents)
{
    struct err err = ERR_INIT;
    struct made nvls = make(COLL_ALLREDUCE, "nvls", 8, 1),
                ring = make(COLL_ALLREDUCE, "ring", 8, 1);
    struct network *host = cluster(1, 8, RAIL, NULL);
    struct net_args args = args_for(&nvls, 1 << 28);
    args.network = host;
    args.slice_bytes = 1 << 16; /* pieces follow each other up and down */
    args.granule = 256;
    struct net_result result = run_one(&nvls, &args);
    double most = 0, sum = 0;
    for (uint32_t l = 0; l < result.nlinks; l++) {
        if (result.link_bytes[l] > 0) {
            double seconds = result.link_bytes[l] / network_link(host, l).capacity_Bps;
            most = fmax(most, seconds);
            sum += result.link_bytes[l];
            cr_assert_eq(network_link(host, l).kind, NET_NVLINK);
        }
    }
    cr_assert_eq(sum, 16. * (1 << 28));
    double over = (double)result.total_ps / (most * 1e12);
    cr_assert(over >= 1 && over < 1.05, "%.3f of the wire's time", over);
    args.slice_bytes = 0;
    args.slots = 8;
    struct net_result slow = run_one(&ring, &args);
    cr_assert((double)slow.total_ps > 1.6 * (double)result.total_ps);
    net_result_release(&result);
    net_result_release(&slow);
    struct network *none = cluster(8, 1, PLAIN(1), NULL); /* one GPU per host: no NVSwitch */
    args.network = none;
    cr_assert_eq(net_run(nvls.linked, &args, &result, &err), -1);
    cr_assert(err.code == ERR_USAGE && strstr(err.text, "nvls reduces for rank 1"), "%s", err.text);
    err_release(&err);
    made_release(&nvls);
    made_release(&ring);
    network_free(host);
    network_free(none);
}

/* ---- ranks that move the data themselves ---- */

static const double BUFFER = 1000, SLOT = 500;

/* Programs of one block, drawn by hand: rank 0 sends to 1, which may reduce and send to 2. Of 1 MB;
 * on the link it takes 20 us, and 1 us to arrive. */
enum drawing { MESSAGE, PASS_ON, PASS_ON_UNSTORED, TWO_INTO_ONE, COPY, REDUCE, NDRAWINGS };

static struct sched *draw(enum drawing drawing)
{
    struct sched *sched = sched_new("by hand", COLL_ALLREDUCE, 4, 0, 1);
    for (uint32_t r = 0; r < 4; r++) {
        sched_prog(sched, r);
    }
    struct prog *progs = sched->progs;
    struct ref sum = drawing == PASS_ON_UNSTORED ? ref_scratch(0, 0) : ref_out(0);
    switch (drawing) {
    case MESSAGE:
        sched_send_ref(&progs[0], 1, ref_in(0));
        sched_recv_ref(&progs[1], 0, ref_out(0));
        break;
    case PASS_ON:
    case PASS_ON_UNSTORED:
        sched_send_ref(&progs[0], 1, ref_in(0));
        sched_recv_reduce_ref(&progs[1], 0, sum, ref_in(0));
        sched_send_ref(&progs[1], 2, sum);
        sched_recv_ref(&progs[2], 1, ref_out(0));
        break;
    case TWO_INTO_ONE:
        sched_send_ref(&progs[0], 1, ref_in(0));
        sched_send_ref(&progs[3], 1, ref_in(0));
        sched_recv_reduce_ref(&progs[1], 0, ref_out(0), ref_in(0));
        sched_recv_reduce_ref(&progs[1], 3, ref_out(0), ref_out(0));
        sched_send_ref(&progs[1], 2, ref_out(0));
        sched_recv_ref(&progs[2], 1, ref_out(0));
        break;
    case COPY:
        sched_copy(&progs[0], ref_out(0), ref_in(0));
        break;
    case REDUCE:
        sched_reduce(&progs[0], ref_out(0), ref_in(0), ref_in(0));
        break;
    case NDRAWINGS:
        break;
    }
    return sched;
}

/* Every wire goes by `mode`; PUSH is the linker's to give, so that is set behind it. */
static double time_drawn(enum drawing drawing, enum wire_mode mode, const struct net_args *args)
{
    struct err err = ERR_INIT;
    struct sched *sched = draw(drawing);
    struct link_opts opts = {.mode = mode == WIRE_PUSH ? WIRE_PULL : mode, .fuse = true};
    struct made made = {sched, link_sched(sched, &opts, &err)};
    cr_assert(made.linked, "%s", err.text);
    for (uint32_t r = 0; r < 4; r++) {
        for (uint32_t w = 0; w < made.linked->progs[r].nwires; w++) {
            made.linked->progs[r].wires[w].mode = (uint8_t)mode;
        }
    }
    struct net_result result = run_one(&made, args);
    double time_us = (double)result.total_ps / 1e6;
    net_result_release(&result);
    made_release(&made);
    return time_us;
}

Test(hands, by_hand)
{
    static const struct {
        enum drawing drawing;
        double staged[2], pull[2], push[2]; /* buffers and slots, all ranks one after the other */
        double wires_us;
        const char *what;
    } rows[] = {
        {MESSAGE, {2, 2}, {2, 0}, {2, 0}, 21, "a message"},
        {PASS_ON, {4, 4}, {3 + 2, 0}, {2 + 3 + 1, 0}, 42, "reduced, kept and passed on"},
        {PASS_ON_UNSTORED, {3, 4}, {5, 0}, {2 + 3 + 1, 0}, 42, "reduced and passed on"},
        {TWO_INTO_ONE, {4, 5}, {4 + 2, 0}, {2 + 4 + 1, 0}, 62, "two into one"},
        {COPY, {2, 0}, {2, 0}, {2, 0}, 0, "copy"},
        {REDUCE, {3, 0}, {3, 0}, {3, 0}, 0, "reduce"},
    };
    struct net_args args = {.alpha_ps = 1000000,
                            .beta_Bps = 50e9,
                            .slots = 8,
                            .block_bytes = 1000000,
                            .hands = &slow_hands};
    _Static_assert(sizeof rows / sizeof *rows == NDRAWINGS, "a row per drawing");
    for (size_t i = 0; i < NDRAWINGS; i++) {
        const double *of[] = {[WIRE_STAGED] = rows[i].staged,
                              [WIRE_PULL] = rows[i].pull,
                              [WIRE_PUSH] = rows[i].push,
                              [WIRE_LL] = rows[i].staged};
        for (int mode = 0; mode < WIRE_MODE_COUNT; mode++) {
            double want = of[mode][0] * BUFFER + of[mode][1] * SLOT + rows[i].wires_us;
            char *what = mem_printf("%s, %s", rows[i].what, wire_mode_name((enum wire_mode)mode));
            near(time_drawn(rows[i].drawing, (enum wire_mode)mode, &args), want, 1e-9, what);
            free(what);
        }
    }
}

/* Two lanes of a rank, or two jobs on it, take turns; those of two ranks do not meet. */
Test(hands, one_group_at_a_time)
{
    struct net_args args = {
        .beta_Bps = 50e9, .slots = 8, .block_bytes = 1000000, .hands = &slow_hands};
    for (uint32_t both = 0; both < 2; both++) {
        struct sched *sched = draw(NDRAWINGS);
        struct prog *other = &sched->progs[both ? 0 : 1];
        for (int i = 0; i < 3; i++) {
            sched_copy(&sched->progs[0], ref_out(0), ref_in(0));
        }
        sched_lane(other, 1, 0);
        sched_copy(other, ref_scratch(0, 0), ref_in(0));
        struct err err = ERR_INIT;
        struct made made = {sched, link_sched(sched, &(struct link_opts){.fuse = true}, &err)};
        cr_assert(made.linked, "%s", err.text);
        args.keep_steps = true;
        struct net_result result = run_one(&made, &args), jobs[2];
        near((double)result.finish_ps[0] / 1e6, (3 + both) * 2 * BUFFER, 1e-9, "lanes");
        double last = 0; /* turns: the other lane's one copy is not kept to the end */
        for (size_t i = 0; i < result.steps.count; i++) {
            const struct trace_event *event = &result.steps.events[i];
            if (event->lane == 1) last = (double)event->end / 1e6;
        }
        cr_assert(last <= (1 + both) * 2 * BUFFER, "%g us", last);
        net_result_release(&result);
        args.keep_steps = false;
        struct network *network = network_switch(8, 50e9, 0);
        uint32_t here[] = {0, 1, 2, 3}, there[] = {4, 5, 6, 7};
        run_jobs(network,
                 (struct net_job[]){
                     {.linked = made.linked, .args = &args, .ranks = here},
                     {.linked = made.linked, .args = &args, .ranks = both ? here : there}},
                 2, jobs);
        double end = fmax((double)jobs[0].total_ps, (double)jobs[1].total_ps) / 1e6;
        near(end, both ? 16 * BUFFER : 6 * BUFFER, 1e-9, "jobs");
        results_release(jobs, 2);
        network_free(network);
        made_release(&made);
    }
}

/* No row of the table stops for want of hands, in any mode; none is faster than with free ones. */
Test(hands, every_row_ends)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        for (uint32_t n = 1; n <= 9 && table[a].coll != COLL_ALLTOALLV; n++) {
            struct err err = ERR_INIT;
            struct algo_args asked = {.nranks = n, .channels = 1 + n % 2, .parts = 1 + n % 3};
            struct made made = {.sched = algo_build(&table[a], &asked, false, &err)};
            struct link_opts opts = {.mode = n % 4 == 0   ? WIRE_PULL
                                             : n % 4 == 1 ? WIRE_LL
                                                          : WIRE_STAGED,
                                     .fuse = n % 5 > 0};
            if (made.sched) made.linked = link_sched(made.sched, &opts, &err);
            if (made.linked && made.linked->least_depth > 0) {
                struct net_args args = args_for(&made, 10000);
                args.slots = made.linked->least_depth;
                args.slice_bytes = n % 3 ? 64 * n : 0;
                struct net_result idle = run_one(&made, &args);
                args.hands = &slow_hands;
                struct net_result busy = run_one(&made, &args);
                cr_assert(busy.total_ps >= idle.total_ps, "%s", made.sched->name);
                cr_assert_eq(busy.bytes, idle.bytes);
                net_result_release(&idle);
                net_result_release(&busy);
            }
            if (made.sched) made_release(&made);
            err_release(&err);
        }
    }
}

/* Two lanes of each rank get a message in one instant, and the turn decides what comes next: all
 * ranks must take it alike, whatever the order of events. Lane 0 from rank - 1, lane 1 from - 2. */
Test(hands, turns_are_alike_on_all_ranks)
{
    struct err err = ERR_INIT;
    struct sched *sched = sched_new("turns", COLL_ALLREDUCE, 4, 0, 1);
    sched->relative = true;
    struct prog *prog = sched_prog(sched, 0);
    for (uint16_t lane = 0; lane < 2; lane++) {
        sched_lane(prog, lane, lane);
        sched_send_ref(prog, 1u + lane, ref_in(0));
        sched_recv_reduce_ref(prog, 3u - lane, ref_scratch(lane, 0), ref_in(0));
        if (lane) sched_copy(prog, ref_scratch(3, 0), ref_scratch(lane, 0));
        sched_send_ref(prog, 1u + lane, ref_scratch(lane, 0));
        sched_recv_ref(prog, 3u - lane, ref_scratch(4u + lane, 0));
    }
    struct made made = {sched, link_sched(sched, &(struct link_opts){.mode = WIRE_PULL}, &err)};
    cr_assert(made.linked, "%s", err.text);
    struct net_args args = {
        .beta_Bps = 50e9, .slots = 8, .block_bytes = 1000000, .hands = &slow_hands};
    cr_assert_eq(fold_is_exact(&made, args, "turns"), 1);
    made_release(&made);
}

/* ---- the subcommand ---- */

Test(bench_cmd, rows_and_exit_status, .init = cr_redirect_stderr)
{
    char path[] = "/tmp/test_engine.XXXXXX", row[1024];
    close(mkstemp(path));
    cr_redirect_stdout();
    char *argv[] = {"bench", "--only", "alltoall", "--repeat", "1", "--csv", path, "--overwrite"};
    cr_assert_eq(bench_cmd(8, argv), 0);
    FILE *file = fopen(path, "r");
    cr_assert(fgets(row, sizeof row, file) && strncmp(row, "load,ranks,classes,events,", 26) == 0);
    cr_assert(fgets(row, sizeof row, file));
    unsigned long long events, flows;
    cr_assert_eq(sscanf(row, "alltoall,64,64,%llu,%llu,", &events, &flows), 2, "%s", row);
    cr_assert_eq(flows, 2 * 64 * 63);           /* a start and an end each */
    cr_assert(events >= flows, "%llu", events); /* each ends, and arrives */
    cr_assert(!fgets(row, sizeof row, file));
    fclose(file);
    unlink(path);
    cr_assert_eq(bench_cmd(3, (char *[]){"bench", "--only", "everything"}), 2);
    cr_assert_eq(bench_cmd(2, (char *[]){"bench", "alltoall"}), 2);
    cr_assert_eq(bench_cmd(3, (char *[]){"bench", "--repeat", "0"}), 2);
}

/* ---- jobs that another clock starts ---- */

/* Runs the session to its end; when each job ended first, and last. */
static void step_all(struct net *net, uint32_t njobs, ps_t *first, ps_t *last)
{
    struct err err = ERR_INIT;
    const uint32_t *ended;
    uint32_t nended;
    for (uint32_t j = 0; j < njobs; j++)
        first[j] = last[j] = PS_NEVER;
    while (net_next_ps(net) != PS_NEVER) {
        ps_t now = net_next_ps(net);
        cr_assert_eq(net_step(net, &ended, &nended, &err), 0, "%s", err.text);
        for (uint32_t i = 0; i < nended; i++) {
            if (first[ended[i]] == PS_NEVER) first[ended[i]] = now;
            last[ended[i]] = now;
        }
    }
}

/* Jobs that meet on links, started by hand, end as net_run_jobs has it; once more later, too. */
Test(session, is_run_jobs)
{
    struct made ring = make(COLL_ALLREDUCE, "ring", 4, 2),
                all = make(COLL_ALLTOALL, "direct", 8, 1);
    struct net_args ring_args = args_for(&ring, 3 << 20), all_args = args_for(&all, 1 << 20);
    struct network *network = cluster(4, 4, RAIL, "host1/nic0=0.25");
    const uint32_t ranks[] = {0, 4, 8, 12};
    struct net_job jobs[] = {
        {.linked = ring.linked, .args = &ring_args, .ranks = ranks},
        {.linked = all.linked, .args = &all_args, .start_ps = 40000000},
        {.linked = ring.linked, .args = &ring_args, .start_ps = 70000000},
    };
    struct err err = ERR_INIT;
    struct net_result results[3];
    ps_t first[3], last[3], again = 0;
    run_jobs(network, jobs, 3, results);
    struct net *net = net_open(network, NULL);
    for (uint32_t j = 0; j < 3; j++) {
        uint32_t number;
        cr_assert_eq(net_add(net, &jobs[j], &number, &err), 0, "%s", err.text);
        cr_assert_eq(number, j);
        cr_assert_eq(net_start(net, j, jobs[j].start_ps, &err), 0, "%s", err.text);
    }
    step_all(net, 3, first, last);
    for (uint32_t j = 0; j < 3; j++) {
        cr_expect_eq(first[j], results[j].total_ps, "job %u: %llu, %llu", j,
                     (unsigned long long)first[j], (unsigned long long)results[j].total_ps);
        again = last[j] > again ? last[j] : again;
    }
    cr_assert_gt(results[1].total_ps, results[2].start_ps); /* they overlap */
    again += 1000;
    for (uint32_t j = 3; j-- > 0;)
        cr_assert_eq(net_start(net, j, again + jobs[j].start_ps, &err), 0, "%s", err.text);
    step_all(net, 3, first, last);
    for (uint32_t j = 0; j < 3; j++)
        cr_expect_eq(first[j], again + results[j].total_ps, "job %u again", j);
    cr_expect_eq(net_close(net, &err), 0, "%s", err.text);
    results_release(results, 3);
    network_free(network);
    made_release(&ring);
    made_release(&all);
}

/* At half of their rates links carry half; a job that the network cannot hold is refused. */
Test(session, rates)
{
    struct made ring = make(COLL_ALLGATHER, "ring", 4, 1);
    struct net_args args = args_for(&ring, 64 << 20);
    struct network *network = cluster(4, 1, RAIL, NULL);
    struct net_job job = {.linked = ring.linked, .args = &args};
    struct err err = ERR_INIT;
    double rates[NNET_KINDS];
    ps_t ends[2], last;
    uint32_t number;
    for (int k = 0; k < NNET_KINDS; k++)
        rates[k] = .5;
    for (int half = 0; half < 2; half++) {
        struct net *net = net_open(network, half ? rates : NULL);
        cr_assert_eq(net_add(net, &job, &number, &err), 0, "%s", err.text);
        cr_assert_eq(net_start(net, 0, 0, &err), 0, "%s", err.text);
        step_all(net, 1, &ends[half], &last);
        args.base = 1;
        cr_assert_eq(net_add(net, &job, &number, &err), -1);
        args.base = 0;
        err_release(&err);
        err = (struct err)ERR_INIT;
        cr_expect_eq(net_close(net, half ? NULL : &err), 0, "%s", err.text);
    }
    double times = (double)ends[1] / (double)ends[0];
    cr_expect(times > 1.9 && times <= 2, "%g", times);
    network_free(network);
    made_release(&ring);
}
