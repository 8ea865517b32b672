/* SPDX-License-Identifier: Apache-2.0
 * Graphs of tasks: small ones by hand, to the picosecond; random ones against a plain second
 * interpreter, their longest path, themselves at twice the times, and a second account of where
 * each rank's time went. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "train/tasks.h"

enum { OWN, JOB, HOST, OTHER, BUBBLE, PARTS }; /* what time is charged as here */

static struct task compute(const struct tasks *tasks, uint32_t rank, ps_t work_ps)
{
    return (struct task){.lane = tasks->compute_lane[rank],
                         .rank = rank,
                         .kind = TASK_COMPUTE,
                         .part = OWN,
                         .sm_hit = 1,
                         .use = TASK_NONE,
                         .work_ps = work_ps};
}

static struct task job(uint32_t lane, uint32_t rank, uint32_t use, ps_t fixed_ps, ps_t work_ps)
{
    return (struct task){.lane = lane,
                         .rank = rank,
                         .kind = TASK_JOB,
                         .part = JOB,
                         .link_hit = 1,
                         .use = use,
                         .fixed_ps = fixed_ps,
                         .work_ps = work_ps};
}

static void run(struct tasks *tasks)
{
    struct err err = ERR_INIT;
    cr_assert_eq(tasks_run(tasks, &err), 0, "%s", err.text);
}

static void expect(const struct tasks *tasks, uint32_t task, ps_t start_ps, ps_t end_ps)
{
    cr_expect_eq(tasks->spans[task].start_ps, start_ps, "task %u starts at %llu, not %llu", task,
                 (unsigned long long)tasks->spans[task].start_ps, (unsigned long long)start_ps);
    cr_expect_eq(tasks->spans[task].end_ps, end_ps, "task %u ends at %llu, not %llu", task,
                 (unsigned long long)tasks->spans[task].end_ps, (unsigned long long)end_ps);
}

static uint32_t use_of(struct tasks *tasks, enum net_kind kind, float busy)
{
    struct task_use use = {{0}};
    use.busy[kind] = busy;
    return tasks_use(tasks, &use);
}

/* ---- order ---- */

Test(tasks, nothing_ends_at_once)
{
    struct tasks *tasks = tasks_new();
    run(tasks);
    cr_expect_eq(tasks_end(tasks), 0);
    uint32_t rank = tasks_rank(tasks);
    struct task join = {.lane = TASK_NONE, .kind = TASK_JOIN, .use = TASK_NONE};
    uint32_t first = tasks_add(tasks, &join);
    struct task empty = compute(tasks, rank, 0);
    uint32_t second = tasks_add(tasks, &empty);
    tasks_after(tasks, second, first);
    run(tasks);
    expect(tasks, first, 0, 0);
    expect(tasks, second, 0, 0);
    tasks_free(tasks);
    tasks_free(NULL);
}

/* compute  |a 100|   |c 50|     c waits for b, which started at once and is seen 30 later
 * lane     |b    170    | 30       */
Test(tasks, lanes_waits_and_lag)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), lane = tasks_lane(tasks);
    struct task task = compute(tasks, rank, 100);
    uint32_t a = tasks_add(tasks, &task);
    task.work_ps = 50;
    uint32_t c = tasks_add(tasks, &task); /* before b is there */
    struct task b_task = job(lane, rank, TASK_NONE, 20, 150);
    b_task.lag_ps = 30;
    uint32_t b = tasks_add(tasks, &b_task);
    tasks_after(tasks, c, b);
    b_task.lag_ps = 0;
    uint32_t d = tasks_add(tasks, &b_task); /* its lane does not see the lag */
    b_task.lane = TASK_NONE;
    uint32_t e = tasks_add(tasks, &b_task);
    tasks_after(tasks, e, a);
    struct task join = {.lane = TASK_NONE, .kind = TASK_JOIN, .use = TASK_NONE, .lag_ps = 7};
    join.work_ps = 1000; /* a join takes none */
    uint32_t all = tasks_add(tasks, &join), behind = tasks_add(tasks, &task);
    tasks_after(tasks, all, d);
    tasks_after(tasks, all, e);
    tasks_after(tasks, behind, all);
    for (int twice = 0; twice < 2; twice++) {
        run(tasks);
        expect(tasks, a, 0, 100);
        expect(tasks, b, 0, 170);
        expect(tasks, c, 200, 250);
        expect(tasks, d, 170, 340);
        expect(tasks, e, 100, 270);
        expect(tasks, all, 340, 340);
        expect(tasks, behind, 347, 397);
        cr_expect_eq(tasks_end(tasks), 397);
    }
    ps_t charged[PARTS] = {0};
    struct tasks_charge how = {.parts = PARTS, .bubble = BUBBLE};
    tasks_charge(tasks, rank, 0, 500, &how, charged);
    /* b with its lag for c; d, then the join's lag (part 0), for the last; then nothing runs */
    cr_expect_eq(charged[OWN], 100 + 50 + 50 + 7);
    cr_expect_eq(charged[JOB], 100 + 90);
    cr_expect_eq(charged[BUBBLE], 500 - 397);
    tasks_free(tasks);
}

/* The lane is taken in list order, also by who could start earlier. */
Test(tasks, list_order_holds)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), lane = tasks_lane(tasks);
    struct task slow = job(lane, rank, TASK_NONE, 0, 1000), task = compute(tasks, rank, 10);
    uint32_t s = tasks_add(tasks, &slow), first = tasks_add(tasks, &task);
    uint32_t second = tasks_add(tasks, &task);
    tasks_after(tasks, first, s);
    run(tasks);
    expect(tasks, first, 1000, 1010);
    expect(tasks, second, 1010, 1020);
    tasks_free(tasks);
}

Test(tasks, times_are_exact_at_any_size)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks);
    struct task task = compute(tasks, rank, ((ps_t)1 << 60) + 1); /* no double has it */
    task.fixed_ps = 1;
    uint32_t a = tasks_add(tasks, &task), b = tasks_add(tasks, &task);
    run(tasks);
    expect(tasks, a, 0, ((ps_t)1 << 60) + 2);
    expect(tasks, b, ((ps_t)1 << 60) + 2, ((ps_t)1 << 61) + 4);
    tasks_free(tasks);
}

Test(tasks, circles_are_refused)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), other = tasks_rank(tasks);
    struct task task = compute(tasks, rank, 10);
    tasks_add(tasks, &task);
    uint32_t b = tasks_add(tasks, &task), c = tasks_add(tasks, &task);
    task = compute(tasks, other, 10);
    uint32_t d = tasks_add(tasks, &task);
    tasks_after(tasks, b, d);
    tasks_after(tasks, d, c); /* c is behind b on its lane */
    struct err err = ERR_INIT;
    cr_expect_eq(tasks_run(tasks, &err), -1);
    cr_expect_eq(err.code, ERR_FAILED);
    cr_expect_str_eq(err.text, "tasks wait for each other in a circle: task 1 of rank 0, which "
                               "waits for task 3 of rank 1, cannot start; 1 of 4 tasks have run");
    err_release(&err);
    tasks_clear(tasks); /* and the memory serves on */
    rank = tasks_rank(tasks);
    task = compute(tasks, rank, 10);
    b = tasks_add(tasks, &task);
    tasks_after(tasks, b, b);
    cr_expect_eq(tasks_run(tasks, &err), -1);
    cr_expect(strstr(err.text, "task 0 of rank 0, which waits for task 0"), "%s", err.text);
    err_release(&err);
    tasks_clear(tasks);
    rank = tasks_rank(tasks);
    task = compute(tasks, rank, 10);
    tasks_add(tasks, &task);
    run(tasks);
    cr_expect_eq(tasks_end(tasks), 10);
    tasks_free(tasks);
}

/* ---- rates ---- */

Test(tasks, jobs_take_multiprocessors)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), other = tasks_rank(tasks), lane = tasks_lane(tasks);
    struct task task = compute(tasks, rank, 1000), far = compute(tasks, other, 1000);
    struct task half = compute(tasks, rank, 1000);
    half.lane = tasks_lane(tasks);
    half.sm_hit = .5F;
    struct task slow = job(lane, rank, TASK_NONE, 100, 300);
    slow.sm = .25F;
    uint32_t c = tasks_add(tasks, &task), h = tasks_add(tasks, &half);
    uint32_t j = tasks_add(tasks, &slow), f = tasks_add(tasks, &far);
    run(tasks);
    expect(tasks, j, 0, 400);       /* its own share does not slow it */
    expect(tasks, c, 0, 1100);      /* 400 at 3/4, then 700 */
    expect(tasks, h, 0, 400 + 658); /* 400 at 6/7, as the half that computes takes 4/3 */
    expect(tasks, f, 0, 1000);      /* another rank's */
    tasks_free(tasks);
}

/* Whatever jobs ask for, a tenth of the rate is left; and what is left is rounded up. */
Test(tasks, a_tenth_is_left)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks);
    struct task task = compute(tasks, rank, 1000);
    uint32_t c = tasks_add(tasks, &task);
    struct task slow = job(TASK_NONE, rank, TASK_NONE, 0, 1000);
    slow.sm = .75F;
    tasks_add(tasks, &slow);
    tasks_add(tasks, &slow);
    run(tasks);
    expect(tasks, c, 0, 1900);
    tasks_clear(tasks);
    rank = tasks_rank(tasks);
    task = compute(tasks, rank, 100);
    c = tasks_add(tasks, &task);
    slow.work_ps = 1000;
    slow.sm = .25F;
    tasks_add(tasks, &slow);
    run(tasks);
    expect(tasks, c, 0, 134); /* 133.3 */
    tasks_free(tasks);
}

Test(tasks, full_links_are_shared)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), other = tasks_rank(tasks);
    uint32_t nic = use_of(tasks, NET_NIC, .75F), nvlink = use_of(tasks, NET_NVLINK, 1);
    cr_expect_eq(use_of(tasks, NET_NIC, .75F), nic);
    cr_expect_eq(tasks->nuses, 2);
    uint32_t third = tasks_rank(tasks);
    struct task task = job(TASK_NONE, rank, nic, 0, 300);
    uint32_t a = tasks_add(tasks, &task), b = tasks_add(tasks, &task);
    struct task hit = task, free_links = job(TASK_NONE, rank, nvlink, 0, 300);
    hit.link_hit = .5F; /* asks for 3/4 half of the time */
    hit.use = use_of(tasks, NET_NIC, .375F);
    uint32_t c = tasks_add(tasks, &free_links);
    hit.rank = task.rank = other;
    uint32_t d = tasks_add(tasks, &task), e = tasks_add(tasks, &hit);
    struct task much = job(TASK_NONE, third, nvlink, 0, 300), little = much;
    little.use = use_of(tasks, NET_NVLINK, .25F);
    uint32_t f = tasks_add(tasks, &much), g = tasks_add(tasks, &little);
    run(tasks);
    expect(tasks, a, 0, 450); /* 1.5 times as long */
    expect(tasks, b, 0, 450);
    expect(tasks, c, 0, 300); /* other links */
    expect(tasks, d, 0, 322); /* gets .7 of its 3/4: e takes .375 in 1.25 times the time */
    expect(tasks, e, 0, 365); /* half of it stretches by 1.5: 257 done by then, the rest alone */
    expect(tasks, g, 0, 300); /* asks for less than its part */
    expect(tasks, f, 0, 375); /* gets 3/4; 225 done by then */
    tasks_free(tasks);
}

/* Latency passes at rate 1 and takes no links; then rates change in the middle of both. */
Test(tasks, rates_change_in_the_middle)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks);
    uint32_t full = use_of(tasks, NET_FABRIC, 1);
    struct task task = job(TASK_NONE, rank, full, 0, 600);
    uint32_t a = tasks_add(tasks, &task);
    task.fixed_ps = 100;
    task.work_ps = 100;
    uint32_t b = tasks_add(tasks, &task);
    task.fixed_ps = 1000;
    uint32_t c = tasks_add(tasks, &task);
    task.fixed_ps = 50;
    task.work_ps = 0;
    uint32_t d = tasks_add(tasks, &task);
    run(tasks);
    expect(tasks, b, 0, 300); /* 100..300 at half the rate */
    expect(tasks, a, 0, 700); /* 100 + 100 by then, 400 alone */
    expect(tasks, c, 0, 1100);
    expect(tasks, d, 0, 50);
    tasks_free(tasks);
}

/* All starts and ends of one instant come before rates change: two jobs in a row on a lane are one
 * to those beside them. */
Test(tasks, an_instant_is_one)
{
    struct tasks *tasks = tasks_new();
    uint32_t rank = tasks_rank(tasks), lane = tasks_lane(tasks);
    struct task task = compute(tasks, rank, 300), slow = job(lane, rank, TASK_NONE, 0, 150);
    slow.sm = .25F;
    uint32_t c = tasks_add(tasks, &task);
    for (int i = 0; i < 4; i++) {
        tasks_add(tasks, &slow);
    }
    run(tasks);
    expect(tasks, c, 0, 400);
    tasks_free(tasks);
}

/* Messages leave one rank and come into another: those of both directions pass each other; a job of
 * the receiver, which sends and receives, meets those that come, and one of the sender those that
 * leave. */
Test(tasks, messages_have_a_direction)
{
    struct tasks *tasks = tasks_new();
    uint32_t r0 = tasks_rank(tasks), r1 = tasks_rank(tasks), r2 = tasks_rank(tasks);
    uint32_t use = use_of(tasks, NET_NIC, 1);
    struct task up = job(TASK_NONE, r0, use, 0, 1000), down = job(TASK_NONE, r1, use, 0, 1000);
    up.peer = r1 + 1;
    down.peer = r0 + 1;
    uint32_t a = tasks_add(tasks, &up), b = tasks_add(tasks, &down);
    run(tasks);
    expect(tasks, a, 0, 1000);
    expect(tasks, b, 0, 1000);
    struct task both = job(TASK_NONE, r1, use, 100, 500);
    uint32_t c = tasks_add(tasks, &both);
    run(tasks);
    expect(tasks, c, 0, 1100);
    expect(tasks, a, 0, 1500);
    expect(tasks, b, 0, 1500);
    down.peer = r2 + 1; /* leaves r1 beside the job, and does not meet what comes */
    down.work_ps = 300;
    uint32_t d = tasks_add(tasks, &down);
    run(tasks);
    expect(tasks, d, 0, 100 + 3 * 250); /* half, then a third */
    tasks_free(tasks);
}

/* ---- charges by hand ---- */

/* rank 0  |F 100|                                 |B 100|          300..400: the message
 * rank 1         |F 100|host 20|B 100|                             20 of host, 200 of rank 1
 * message         100..150 (10 lag) ..            */
Test(tasks, idle_time_is_charged_to_what_it_waited_for)
{
    struct tasks *tasks = tasks_new();
    uint32_t r0 = tasks_rank(tasks), r1 = tasks_rank(tasks);
    uint32_t host = tasks_lane(tasks);
    struct task task = compute(tasks, r0, 100), back = compute(tasks, r1, 100);
    struct task send = job(TASK_NONE, r0, TASK_NONE, 10, 40);
    send.lag_ps = 10;
    uint32_t f0 = tasks_add(tasks, &task), m0 = tasks_add(tasks, &send);
    uint32_t f1 = tasks_add(tasks, &back), b1 = tasks_add(tasks, &back);
    struct task issue = {
        .lane = host, .rank = r1, .kind = TASK_HOST, .part = HOST, .use = TASK_NONE, .work_ps = 20};
    uint32_t h1 = tasks_add(tasks, &issue);
    send.rank = r1;
    uint32_t m1 = tasks_add(tasks, &send), b0 = tasks_add(tasks, &task);
    const uint32_t waits[][2] = {{m0, f0}, {f1, m0}, {h1, f1}, {b1, h1}, {m1, b1}, {b0, m1}};
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        tasks_after(tasks, waits[i][0], waits[i][1]);
    }
    run(tasks);
    expect(tasks, f1, 160, 260);
    expect(tasks, b1, 280, 380);
    expect(tasks, b0, 440, 540);
    ps_t blame[2] = {0};
    struct tasks_charge how = {.parts = PARTS, .bubble = BUBBLE, .blame_ps = blame};
    static const struct {
        ps_t from, to;
        uint32_t rank;
        ps_t want[PARTS];
    } rows[] = {
        {0, 540, 0, {200, 120, 20, 0, 200}},
        {0, 540, 1, {200, 120, 20, 0, 200}}, /* F and B of rank 0; both messages */
        {130, 400, 0, {0, 30 + 20, 20, 0, 200}},
        {0, 100, 1, {0, 0, 0, 0, 100}},
        {150, 170, 1, {10, 10, 0, 0, 0}},
        {390, 600, 1, {0, 50, 0, 0, 100 + 60}},
        {600, 700, 0, {0, 0, 0, 0, 100}},
        {200, 200, 0, {0, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ps_t charged[PARTS] = {0};
        tasks_charge(tasks, rows[i].rank, rows[i].from, rows[i].to, &how, charged);
        for (int k = 0; k < PARTS; k++) {
            cr_expect_eq(charged[k], rows[i].want[k], "row %zu part %d: %llu, not %llu", i, k,
                         (unsigned long long)charged[k], (unsigned long long)rows[i].want[k]);
        }
    }
    cr_expect_eq(blame[0], 200 + 100 + 100); /* not where nothing ran */
    cr_expect_eq(blame[1], 200 + 200);
    tasks_free(tasks);
}

/* Where two came at the same time, the task before on the lane counts. */
Test(tasks, the_lane_counts_first)
{
    for (int later = 0; later < 2; later++) {
        struct tasks *tasks = tasks_new();
        uint32_t r0 = tasks_rank(tasks), r1 = tasks_rank(tasks), lane = tasks_lane(tasks);
        struct task own = compute(tasks, r0, 100), task = job(TASK_NONE, r0, TASK_NONE, 0, 100);
        uint32_t wait = later ? TASK_NONE : tasks_add(tasks, &task);
        struct task on_lane = job(lane, r1, TASK_NONE, 0, 100), behind = on_lane;
        on_lane.part = HOST;
        tasks_add(tasks, &on_lane);
        wait = later ? tasks_add(tasks, &task) : wait;
        uint32_t b = tasks_add(tasks, &behind), o = tasks_add(tasks, &own);
        tasks_after(tasks, b, wait);
        tasks_after(tasks, o, b);
        run(tasks);
        ps_t charged[PARTS] = {0};
        struct tasks_charge how = {.parts = PARTS, .bubble = BUBBLE};
        tasks_charge(tasks, r0, 0, 300, &how, charged);
        cr_expect_eq(charged[HOST], 100);
        cr_expect_eq(charged[JOB], 100);
        tasks_free(tasks);
    }
}

/* ---- random graphs ---- */

struct wait {
    uint32_t task, before;
};

struct drawn {
    struct tasks *tasks;
    struct wait *waits; /* and those of the lanes */
    uint32_t nwaits, lane_waits;
};

/* What a graph is drawn with. `scale`: of all times. */
struct draw {
    uint64_t seed;
    ps_t scale, span;
    bool shares; /* of multiprocessors and links, else all runs at rate 1 */
    bool empty;  /* tasks without time */
};

static void wait_for(struct drawn *drawn, uint32_t task, uint32_t before)
{
    drawn->waits[drawn->nwaits++] = (struct wait){task, before};
}

static struct task draw_task(struct rng *rng, const struct draw *draw, const struct tasks *tasks,
                             uint32_t uses)
{
    uint32_t rank = (uint32_t)rng_below(rng, tasks->nranks);
    uint32_t lane = (uint32_t)rng_below(rng, 4);
    struct task task = compute(tasks, rank, draw->scale * (1 + rng_below(rng, draw->span)));
    task.fixed_ps = draw->scale * rng_below(rng, 2) * rng_below(rng, draw->span);
    task.lag_ps = draw->scale * (rng_below(rng, 4) ? 0 : rng_below(rng, draw->span));
    if (lane > 0) {
        task.lane = lane == 3 ? TASK_NONE : task.lane + lane;
        task.kind = lane == 1 ? TASK_HOST : TASK_JOB;
        task.part = lane == 1 ? HOST : (uint8_t)(JOB + 2 * rng_below(rng, 2));
    }
    if (draw->shares) {
        if (task.kind == TASK_JOB) task.sm = (float)rng_below(rng, 4) / 10;
        task.sm_hit = (float)rng_below(rng, 3) / 2;
        task.link_hit = (float)rng_below(rng, 5) / 4;
        task.use = rng_below(rng, 3) ? (uint32_t)rng_below(rng, uses) : TASK_NONE;
        if (task.kind == TASK_JOB && rng_below(rng, 3) == 0)
            task.peer = 1 + (uint32_t)rng_below(rng, tasks->nranks);
    }
    if (draw->empty && rng_below(rng, 4) == 0) {
        task.fixed_ps = task.work_ps = 0;
        if (rng_below(rng, 2)) task.kind = TASK_JOIN;
    }
    return task;
}

static struct drawn draw_graph(const struct draw *draw)
{
    struct rng rng;
    rng_init(&rng, draw->seed);
    struct drawn drawn = {.tasks = tasks_new()};
    struct tasks *tasks = drawn.tasks;
    uint32_t ranks = 1 + (uint32_t)rng_below(&rng, 4), n = (uint32_t)rng_below(&rng, 60);
    for (uint32_t r = 0; r < ranks; r++) {
        tasks_rank(tasks), tasks_lane(tasks), tasks_lane(tasks); /* host; one communicator */
    }
    for (int u = 0; u < 5; u++) {
        struct task_use use = {{0}};
        use.busy[NET_NIC] = (float)rng_below(&rng, 5) / 4;
        use.busy[NET_NVLINK] = (float)rng_unit(&rng);
        tasks_use(tasks, &use);
    }
    drawn.waits = mem_calloc(4 * (size_t)n + 1, sizeof *drawn.waits);
    for (uint32_t i = 0; i < n; i++) {
        struct task task = draw_task(&rng, draw, tasks, tasks->nuses);
        tasks_add(tasks, &task);
        for (uint32_t j = i; j-- > 0 && task.lane != TASK_NONE;) {
            if (tasks->list[j].lane != task.lane) continue;
            wait_for(&drawn, i, j);
            break;
        }
    }
    drawn.lane_waits = drawn.nwaits;
    for (uint32_t k = n ? (uint32_t)rng_below(&rng, 3 * (size_t)n) : 0; k-- > 0;) {
        uint32_t a = (uint32_t)rng_below(&rng, n), b = (uint32_t)rng_below(&rng, n);
        if (a == b) continue;
        wait_for(&drawn, a > b ? a : b, a > b ? b : a);
        tasks_after(tasks, a > b ? a : b, a > b ? b : a);
    }
    return drawn;
}

static void same(const struct task_span *a, const struct task_span *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(a[i].start_ps == b[i].start_ps && a[i].end_ps == b[i].end_ps, "task %u", i);
    }
}

static void release(struct drawn *drawn)
{
    tasks_free(drawn->tasks);
    free(drawn->waits);
}

/* When wait `k` is over: lanes do not see lag. */
static ps_t over_at(const struct drawn *drawn, uint32_t k, const struct task_span *spans)
{
    uint32_t before = drawn->waits[k].before;
    return spans[before].end_ps + (k < drawn->lane_waits ? 0 : drawn->tasks->list[before].lag_ps);
}

/* The longest path: what no run can beat. Tasks are in an order that works. */
static ps_t longest_path(const struct drawn *drawn, struct task_span *spans)
{
    const struct tasks *tasks = drawn->tasks;
    ps_t end = 0;
    for (uint32_t i = 0; i < tasks->ntasks; i++) {
        const struct task *t = &tasks->list[i];
        ps_t start = 0, span = t->kind == TASK_JOIN ? 0 : t->fixed_ps + t->work_ps;
        for (uint32_t k = 0; k < drawn->nwaits; k++) {
            if (drawn->waits[k].task == i && over_at(drawn, k, spans) > start)
                start = over_at(drawn, k, spans);
        }
        spans[i] = (struct task_span){start, start + span};
        end = start + span > end ? start + span : end;
    }
    return end;
}

Test(tasks, random_graphs_without_shares_are_their_longest_path)
{
    for (uint64_t seed = 0; seed < 600; seed++) {
        struct draw draw = {
            .seed = seed, .scale = 1, .span = seed % 2 ? 10 : 100000, .empty = seed % 3 == 0};
        struct drawn drawn = draw_graph(&draw);
        run(drawn.tasks);
        struct task_span *spans = mem_calloc(drawn.tasks->ntasks, sizeof *spans);
        cr_assert_eq(tasks_end(drawn.tasks), longest_path(&drawn, spans));
        same(spans, drawn.tasks->spans, drawn.tasks->ntasks);
        free(spans);
        draw.scale = 2;
        struct drawn twice = draw_graph(&draw);
        run(twice.tasks);
        cr_assert_eq(tasks_end(twice.tasks), 2 * tasks_end(drawn.tasks));
        release(&twice);
        release(&drawn);
    }
}

/* ---- a plain interpreter: all tasks looked at in every instant ---- */

struct plain {
    const struct drawn *drawn;
    struct task_span *spans;
    double *left; /* work */
};

static bool runs(const struct plain *p, uint32_t i, double now)
{
    return p->spans[i].start_ps != PS_NEVER && (double)p->spans[i].start_ps <= now &&
           p->spans[i].end_ps == PS_NEVER;
}

/* Whether the latency of a running task is over. */
static bool works(const struct plain *p, uint32_t i, double now)
{
    return runs(p, i, now) &&
           (double)(p->spans[i].start_ps + p->drawn->tasks->list[i].fixed_ps) <= now;
}

/* Whose links a task uses: out of (0) or into a rank. */
static uint32_t plain_end(const struct task *task, int into)
{
    return into && task->peer ? task->peer - 1 : task->rank;
}

static double plain_rate(const struct plain *p, uint32_t i, double now)
{
    const struct tasks *tasks = p->drawn->tasks;
    const struct task *t = &tasks->list[i];
    double sm = 0, over = 1;
    for (uint32_t j = 0; j < tasks->ntasks; j++) {
        if (j != i && runs(p, j, now) && tasks->list[j].rank == t->rank)
            sm += (double)tasks->list[j].sm;
    }
    double hit = (double)t->link_hit;
    for (int way = 0; way < 2 * NNET_KINDS && t->use != TASK_NONE && hit > 0; way++) {
        double others = 0, users = 1;
        int k = way / 2;
        if (tasks->uses[t->use].busy[k] == 0) continue;
        for (uint32_t j = 0; j < tasks->ntasks; j++) {
            const struct task *u = &tasks->list[j];
            if (j == i || u->use == TASK_NONE || !works(p, j, now)) continue;
            if (plain_end(u, way % 2) != plain_end(t, way % 2)) continue;
            users += tasks->uses[u->use].busy[k] > 0;
        }
        for (uint32_t j = 0; j < tasks->ntasks; j++) {
            const struct task *u = &tasks->list[j];
            if (j == i || u->use == TASK_NONE || !works(p, j, now)) continue;
            if (plain_end(u, way % 2) != plain_end(t, way % 2)) continue;
            double busy = (double)tasks->uses[u->use].busy[k], on = (double)u->link_hit;
            double longer = on > 0 ? fmax(1, fmin(1, busy / on) * users) : 1;
            others += busy / (1 - on + on * longer);
        }
        double asks = fmin(1, (double)tasks->uses[t->use].busy[k] / hit);
        over = fmax(over, asks / fmax(1 - others, 1 / users));
    }
    double slow = 1 / (1 - fmin(.9, sm)) - 1;
    return 1 / (1 + (double)t->sm_hit * slow + hit * (over - 1));
}

/* Starts all that can at `now`, ends what has no time; whether anything happened. */
static bool plain_starts(const struct plain *p, ps_t now)
{
    bool any = false;
    for (uint32_t i = 0; i < p->drawn->tasks->ntasks; i++) {
        const struct task *t = &p->drawn->tasks->list[i];
        bool can = p->spans[i].start_ps == PS_NEVER;
        for (uint32_t k = 0; k < p->drawn->nwaits && can; k++) {
            uint32_t before = p->drawn->waits[k].before;
            can = p->drawn->waits[k].task != i ||
                  (p->spans[before].end_ps != PS_NEVER && over_at(p->drawn, k, p->spans) <= now);
        }
        if (!can) continue;
        any = true;
        bool none = t->kind == TASK_JOIN || t->fixed_ps + t->work_ps == 0;
        p->spans[i] = (struct task_span){now, none ? now : PS_NEVER};
    }
    return any;
}

/* The next instant after `now` in which something happens, if rates stay. */
static ps_t plain_next(const struct plain *p, ps_t now)
{
    const struct tasks *tasks = p->drawn->tasks;
    ps_t next = PS_NEVER;
    for (uint32_t i = 0; i < tasks->ntasks; i++) {
        if (!runs(p, i, (double)now)) continue;
        ps_t at = p->spans[i].start_ps + tasks->list[i].fixed_ps;
        if (works(p, i, (double)now))
            at = now + (ps_t)ceil(p->left[i] / plain_rate(p, i, (double)now) - 1e-6);
        next = at < next ? at : next;
    }
    for (uint32_t k = 0; k < p->drawn->nwaits; k++) {
        if (p->spans[p->drawn->waits[k].before].end_ps == PS_NEVER) continue;
        ps_t at = over_at(p->drawn, k, p->spans);
        if (at > now && at < next) next = at;
    }
    return next;
}

static void plain_run(const struct plain *p)
{
    const struct tasks *tasks = p->drawn->tasks;
    double *rates = mem_calloc(tasks->ntasks, sizeof *rates);
    for (uint32_t i = 0; i < tasks->ntasks; i++) {
        p->spans[i] = (struct task_span){PS_NEVER, PS_NEVER};
        p->left[i] = (double)tasks->list[i].work_ps;
    }
    for (ps_t now = 0; now != PS_NEVER;) {
        while (plain_starts(p, now)) {
        }
        ps_t next = plain_next(p, now);
        for (uint32_t i = 0; i < tasks->ntasks; i++) {
            rates[i] = works(p, i, (double)now) ? plain_rate(p, i, (double)now) : 0;
        }
        for (uint32_t i = 0; i < tasks->ntasks && next != PS_NEVER; i++) {
            if (!runs(p, i, (double)now)) continue;
            p->left[i] -= rates[i] * (double)(next - now);
            if (works(p, i, (double)next) && p->left[i] < 1e-6) p->spans[i].end_ps = next;
        }
        now = next;
    }
    free(rates);
}

/* Rounding up may come out otherwise by a picosecond, and be handed on. */
Test(tasks, random_graphs_agree_with_a_plain_interpreter)
{
    size_t stretched = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct draw draw = {
            .seed = seed, .scale = 1, .span = 100000, .shares = true, .empty = seed % 3 == 0};
        struct drawn drawn = draw_graph(&draw);
        uint32_t n = drawn.tasks->ntasks;
        struct plain plain = {&drawn, mem_calloc(n, sizeof *plain.spans),
                              mem_calloc(n, sizeof *plain.left)};
        run(drawn.tasks);
        plain_run(&plain);
        for (uint32_t i = 0; i < n; i++) {
            const struct task_span *span = &drawn.tasks->spans[i];
            cr_assert_lt(fabs((double)span->end_ps - (double)plain.spans[i].end_ps), 100,
                         "graph %llu: task %u ends at %llu, not %llu", (unsigned long long)seed, i,
                         (unsigned long long)span->end_ps,
                         (unsigned long long)plain.spans[i].end_ps);
        }
        ps_t end = tasks_end(drawn.tasks), path = longest_path(&drawn, plain.spans);
        cr_assert_geq(end, path);
        stretched += end > path;
        free(plain.spans);
        free(plain.left);
        release(&drawn);
    }
    cr_assert_gt(stretched, 200);
}

/* Twice the times, twice the end (but for rounding up); the same again: the same. */
Test(tasks, random_graphs_scale_and_repeat)
{
    for (uint64_t seed = 1000; seed < 1400; seed++) {
        struct draw draw = {.seed = seed, .scale = 1, .span = 100000, .shares = true};
        struct drawn once = draw_graph(&draw), again = draw_graph(&draw);
        draw.scale = 2;
        struct drawn twice = draw_graph(&draw);
        uint32_t n = once.tasks->ntasks;
        run(once.tasks), run(again.tasks), run(twice.tasks);
        run(again.tasks);
        same(once.tasks->spans, again.tasks->spans, n);
        double end = (double)tasks_end(once.tasks);
        cr_assert_float_eq((double)tasks_end(twice.tasks), 2 * end, 200);
        release(&once), release(&again), release(&twice);
    }
}

/* ---- where the time went ---- */

/* Half of a task's own time to OTHER. */
static void halve(const void *context, uint32_t task, ps_t span_ps, ps_t *charged_ps)
{
    (void)context, (void)task;
    charged_ps[OTHER] += span_ps / 2;
    charged_ps[OWN] += span_ps - span_ps / 2;
}

/* What a task started behind; TASK_NONE: nothing. *tie: there were two of them. */
static uint32_t cause_of(const struct drawn *drawn, uint32_t task, bool *tie)
{
    const struct task_span *spans = drawn->tasks->spans;
    uint32_t cause = TASK_NONE;
    for (uint32_t k = 0; k < drawn->nwaits; k++) {
        if (drawn->waits[k].task != task || over_at(drawn, k, spans) != spans[task].start_ps)
            continue;
        *tie = *tie || (cause != TASK_NONE && cause != drawn->waits[k].before);
        cause = drawn->waits[k].before;
    }
    return cause;
}

/* The account of [from, to) again, the other way round: each task of the chain that led to `last`
 * fills the idle time that it covers. */
static void plain_idle(const struct drawn *drawn, uint32_t rank, uint32_t last, ps_t from, ps_t to,
                       ps_t *charged, bool *tie)
{
    const struct tasks *tasks = drawn->tasks;
    ps_t filled = 0;
    for (uint32_t i = last, next = TASK_NONE; i != TASK_NONE;
         next = i, i = cause_of(drawn, i, tie)) {
        ps_t low = tasks->spans[i].start_ps;
        ps_t high = next == TASK_NONE ? to : tasks->spans[next].start_ps;
        low = low > from ? low : from;
        high = high < to ? high : to;
        if (low >= high) continue;
        const struct task *t = &tasks->list[i];
        bool bubble = t->rank != rank && t->lane == tasks->compute_lane[t->rank];
        charged[bubble ? BUBBLE : t->part] += high - low;
        filled += high - low;
    }
    charged[BUBBLE] += to - from - filled;
}

static void plain_charge(const struct drawn *drawn, uint32_t rank, ps_t from, ps_t to,
                         ps_t *charged, bool *tie)
{
    const struct tasks *tasks = drawn->tasks;
    ps_t at = from, end = tasks_end(tasks);
    uint32_t last = TASK_NONE;
    for (uint32_t i = 0; i < tasks->ntasks; i++) {
        const struct task_span *span = &tasks->spans[i];
        if (span->end_ps == end) *tie = *tie || last != TASK_NONE, last = i;
        if (tasks->list[i].lane != tasks->compute_lane[rank] || span->end_ps <= from) continue;
        ps_t low = span->start_ps < to ? span->start_ps : to;
        ps_t high = span->end_ps < to ? span->end_ps : to;
        if (low > at) plain_idle(drawn, rank, cause_of(drawn, i, tie), at, low, charged, tie);
        at = low > at ? low : at;
        charged[tasks->list[i].part] += high - at;
        at = high;
    }
    ps_t stop = to < end ? to : end;
    if (stop > at) plain_idle(drawn, rank, last, at, stop, charged, tie);
    at = at > stop ? at : stop;
    charged[BUBBLE] += to - at;
}

Test(tasks, every_picosecond_is_charged_once)
{
    struct rng rng;
    rng_init(&rng, 7);
    size_t compared = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct draw draw = {.seed = seed,
                            .scale = 1,
                            .span = seed % 2 ? 20 : 1000000,
                            .shares = seed % 3 == 0,
                            .empty = seed % 2};
        struct drawn drawn = draw_graph(&draw);
        run(drawn.tasks);
        ps_t end = tasks_end(drawn.tasks);
        ps_t to = rng_below(&rng, end + end / 4 + 10), from = rng_below(&rng, to + 1);
        uint32_t rank = (uint32_t)rng_below(&rng, drawn.tasks->nranks);
        struct tasks_charge how = {.parts = PARTS, .bubble = BUBBLE};
        ps_t charged[PARTS] = {0}, split[PARTS] = {0}, plain[PARTS] = {0}, sums[2] = {0};
        tasks_charge(drawn.tasks, rank, from, to, &how, charged);
        how.split = halve;
        tasks_charge(drawn.tasks, rank, from, to, &how, split);
        for (int k = 0; k < PARTS; k++) {
            sums[0] += charged[k], sums[1] += split[k];
        }
        cr_assert_eq(sums[0], to - from, "graph %llu", (unsigned long long)seed);
        cr_assert_eq(sums[1], to - from, "graph %llu", (unsigned long long)seed);
        bool tie = false;
        plain_charge(&drawn, rank, from, to, plain, &tie);
        for (int k = 0; k < PARTS && !tie; k++) {
            cr_assert_eq(charged[k], plain[k], "graph %llu part %d", (unsigned long long)seed, k);
        }
        compared += !tie;
        release(&drawn);
    }
    cr_assert_gt(compared, 300);
}

/* ---- size ---- */

/* A step of many tasks, and memory that is used again: no pointer moves in the second run. */
Test(tasks, memory_serves_again)
{
    struct tasks *tasks = tasks_new();
    const struct task *list = NULL;
    const struct task_span *spans = NULL;
    ps_t end = 0;
    for (int again = 0; again < 3; again++) {
        tasks_clear(tasks);
        cr_assert(tasks->ntasks + tasks->nlanes + tasks->nranks + tasks->nuses == 0);
        uint32_t use = use_of(tasks, NET_NIC, .5F), before = TASK_NONE;
        for (uint32_t r = 0; r < 8; r++) {
            uint32_t rank = tasks_rank(tasks), lane = tasks_lane(tasks);
            struct task task = compute(tasks, rank, 1000), send = job(lane, rank, use, 10, 300);
            send.sm = .25F;
            for (uint32_t i = 0; i < 1500; i++) {
                uint32_t own = tasks_add(tasks, &task);
                uint32_t message = tasks_add(tasks, &send);
                tasks_after(tasks, message, own);
                if (r > 0) tasks_after(tasks, own, before + 2 * i + 1);
            }
            before = tasks->ntasks - 3000;
        }
        run(tasks);
        /* a rank's pace is 1000 and what it loses while a message of 310 goes: a quarter of it */
        if (again > 0) {
            cr_expect_eq(tasks->list, list);
            cr_expect_eq(tasks->spans, spans);
            cr_expect_eq(tasks_end(tasks), end);
        }
        list = tasks->list, spans = tasks->spans, end = tasks_end(tasks);
    }
    cr_expect_gt(end, 1500 * 1000 + 1499 * 77);
    cr_expect_lt(end, 1500 * 1000 + 1499 * 78 + 7 * 1400 + 310);
    tasks_free(tasks);
}

/* ---- jobs that others run ---- */

enum { PEND = 64 };

/* Ends each job when the graph itself would, or never. */
struct clock_outside {
    ps_t end_ps[PEND];
    uint32_t task[PEND], ended[PEND], npending;
    uint32_t lost, failing; /* the `outside` that does not end, or does not start; 0: none */
};

static int clock_start(void *context, const struct task *task, uint32_t number, ps_t now_ps,
                       struct err *err)
{
    struct clock_outside *c = context;
    if (task->outside == c->failing) return err_add(err, ERR_FAILED, "cannot start");
    cr_assert_lt(c->npending, PEND);
    c->end_ps[c->npending] =
        task->outside == c->lost ? PS_NEVER : now_ps + task->fixed_ps + task->work_ps;
    c->task[c->npending++] = number;
    return 0;
}

static ps_t clock_next(const void *context)
{
    const struct clock_outside *c = context;
    ps_t next = PS_NEVER;
    for (uint32_t i = 0; i < c->npending; i++) {
        next = c->end_ps[i] < next ? c->end_ps[i] : next;
    }
    return next;
}

static int clock_take(void *context, const uint32_t **ended, uint32_t *nended, struct err *err)
{
    (void)err;
    struct clock_outside *c = context;
    ps_t now_ps = clock_next(c);
    uint32_t n = 0, left = 0;
    for (uint32_t i = 0; i < c->npending; i++) {
        if (c->end_ps[i] == now_ps) {
            c->ended[n++] = c->task[i];
        } else {
            c->task[left] = c->task[i];
            c->end_ps[left++] = c->end_ps[i];
        }
    }
    c->npending = left;
    *ended = c->ended;
    *nended = n;
    return 0;
}

static struct tasks_outside a_clock(struct clock_outside *c)
{
    return (struct tasks_outside){
        .context = c, .start = clock_start, .next_ps = clock_next, .take = clock_take};
}

/* Ranks that compute beside jobs which take SM share, each on a lane; some wait for others. */
static void random_graph(struct tasks *tasks, struct rng *rng, bool outside)
{
    uint32_t lanes[3][2];
    tasks_clear(tasks);
    for (uint32_t r = 0; r < 3; r++) {
        tasks_rank(tasks);
        for (int k = 0; k < 2; k++)
            lanes[r][k] = tasks_lane(tasks);
    }
    for (uint32_t i = 0; i < 120; i++) {
        uint32_t rank = (uint32_t)rng_below(rng, 3);
        struct task task = compute(tasks, rank, rng_below(rng, 400));
        if (rng_below(rng, 2)) {
            task = job(lanes[rank][rng_below(rng, 2)], rank, TASK_NONE, rng_below(rng, 3) * 50,
                       rng_below(rng, 300));
            task.sm = rng_below(rng, 2) ? .25f : 0;
            task.lag_ps = rng_below(rng, 4) ? 0 : 70;
            task.outside = outside ? i + 1 : 0;
        }
        uint32_t number = tasks_add(tasks, &task);
        for (uint32_t k = 0; number > 0 && k < 2; k++)
            tasks_after(tasks, number, (uint32_t)rng_below(rng, number));
    }
}

/* Who ends jobs when they would have ended changes nothing, to the picosecond. */
Test(tasks, outside_is_inside)
{
    struct clock_outside c = {.lost = 0};
    struct tasks_outside outside = a_clock(&c);
    struct tasks *own = tasks_new(), *others = tasks_new();
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng a, b;
        rng_init(&a, seed);
        rng_init(&b, seed);
        random_graph(own, &a, false);
        random_graph(others, &b, true);
        others->outside = &outside;
        run(own);
        run(others);
        cr_assert_eq(tasks_end(own), tasks_end(others), "seed %llu", (unsigned long long)seed);
        for (uint32_t t = 0; t < own->ntasks; t++) {
            const struct task_span *x = &own->spans[t], *y = &others->spans[t];
            cr_assert(x->start_ps == y->start_ps && x->end_ps == y->end_ps,
                      "seed %llu, task %u: %llu to %llu, outside %llu to %llu",
                      (unsigned long long)seed, t, (unsigned long long)x->start_ps,
                      (unsigned long long)x->end_ps, (unsigned long long)y->start_ps,
                      (unsigned long long)y->end_ps);
        }
        others->outside = NULL; /* then they are its own again */
        run(others);
        cr_assert_eq(tasks_end(own), tasks_end(others));
    }
    tasks_free(own);
    tasks_free(others);
}

/* One that does not end, or does not start, is named; the graph runs again afterwards. */
Test(tasks, outside_fails)
{
    struct clock_outside c = {.lost = 0};
    struct tasks_outside outside = a_clock(&c);
    struct tasks *tasks = tasks_new();
    struct err err = ERR_INIT;
    tasks_rank(tasks);
    struct task task = job(tasks_lane(tasks), 0, TASK_NONE, 0, 1000);
    task.sm = .5f;
    task.outside = 1;
    uint32_t first = tasks_add(tasks, &task);
    task.outside = 2;
    uint32_t second = tasks_add(tasks, &task);
    task = compute(tasks, 0, 1500);
    uint32_t beside = tasks_add(tasks, &task);
    tasks->outside = &outside;
    c.lost = 2;
    cr_assert_eq(tasks_run(tasks, &err), -1);
    cr_assert(err.code == ERR_FAILED && strstr(err.text, "1 jobs") && strstr(err.text, "2 of 3"),
              "%s", err.text);
    err_release(&err);
    err = (struct err)ERR_INIT;
    c = (struct clock_outside){.failing = 2};
    cr_assert_eq(tasks_run(tasks, &err), -1);
    cr_assert(strstr(err.text, "cannot start"), "%s", err.text);
    err_release(&err);
    c = (struct clock_outside){.lost = 0};
    run(tasks);
    expect(tasks, first, 0, 1000);
    expect(tasks, second, 1000, 2000);
    expect(tasks, beside, 0, 2500); /* half of 2000 is 1000, and 500 more */
    tasks_free(tasks);
}
