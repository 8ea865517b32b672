/* SPDX-License-Identifier: Apache-2.0
 * The rank's side of the pairwise matrix: see p2p.h. For each pass, size and round
 *
 *   open | wait for the turn, check, measure alone | all at once, check | report, close
 *
 * Data are checked in the first pass, and all pairs are measured at once in as many as the plan
 * says. Ranks whose turn it is not sleep in the kernel until their bell rings: ones that look up
 * now and then, a dozen of them on a few cores, would make the measured pair several times slower.
 * Who has had his turn rings for the two who are next; the last pair of a round rings for all.
 * Over several hosts, where no bell is heard, all meet between two turns. */
#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/check.h"
#include "bench/clock.h"
#include "bench/p2p.h"
#include "bench/site.h"
#include "bench/stats.h"
#include "bench/timing_gpu.h"
#include "exec/device.h"
#include "exec/exec.h"
#include "exec/launch.h"

enum {
    CLOCK_SHARE = 50,    /* a sample takes at least so many readings of the clock, */
    MEET_SHARE = 100,    /* and so many meetings */
    WINDOW_NS = 1000000, /* a window of messages takes about that: its start and end do not count */
    DOZE_NS = 100000000, /* asleep for so long, a rank shows that it lives */
    LIGHT_DOZE_NS = 1000000, /* .. and at first, when peers may need it: twice as long each time */
    PIECE = 4 << 20,         /* elements filled or checked between two signs of progress */
};

/* What a rank has as long as it lives. */
struct seat {
    struct rank *rk;
    struct err *err;
    struct p2p_plan *plan;
    uint8_t *memory;  /* two blocks of the largest size, */
    struct site site; /* which lie here */
    uint64_t *word;   /* what the first of a pair tells the second; NULL on GPUs */
    bool apart;       /* the ranks are on several hosts */
    size_t bytes;     /* of memory */
    uint64_t planted; /* element to make wrong, UINT64_MAX: none */
    uint32_t pass;
    uint32_t rings;    /* of the own bell, answered */
    uint64_t finished; /* pairs measured at once before this round */
    uint32_t tag;      /* of handles: the same on all ranks */
    double clock_ns;   /* a reading of the clock */
    double *us;        /* samples */
};

/* A pair, as one of its two ranks sees it. */
struct duel {
    struct seat *seat;
    const struct p2p_legs *legs;
    uint64_t bytes;
    struct p2p_pair pair;
    uint32_t k;        /* its number in the round */
    uint32_t group[2]; /* world ranks */
    uint32_t me;       /* 0 or 1 in the group */
    bool delays;       /* a planted delay before each send */
    struct exec *exec[NLEGS];
    double meet_ns;                        /* of the first rank */
    uint64_t met_before, their_met_before; /* GPUs: meetings of the two before this round */
    struct p2p_result result;
};

static const struct {
    const char *says;
    enum p2p_leg legs[2];
    uint32_t nlegs;
    bool meets; /* at the end of a sample */
} modes[P2P_NMODES] = {
    [P2P_LATENCY] = {"latency", {LEG_THERE, LEG_BACK}, 2, false},
    [P2P_THERE] = {"one way", {LEG_THERE}, 1, true},
    [P2P_BACK] = {"one way, back", {LEG_BACK}, 1, true},
    [P2P_BOTH] = {"both ways", {LEG_BOTH}, 1, true},
    [P2P_AT_ONCE] = {"all pairs at once", {LEG_BOTH}, 1, true},
};

static void says(const struct duel *duel, const char *phase, const char *what)
{
    rank_says(duel->seat->rk, "p2p, ranks %u and %u, %llu B, %s %s", duel->pair.first,
              duel->pair.second, (unsigned long long)duel->bytes, phase, what);
}

/* ---- operations ---- */

static void sleep_ns(uint64_t ns)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)},
        NULL);
}

/* Group rank whose block `block` of the leg's output is. */
static uint32_t owner_of(enum p2p_leg leg, uint32_t block)
{
    return leg == LEG_BOTH ? block : leg == LEG_BACK;
}

static void operate(const struct duel *duel, enum p2p_leg leg)
{
    struct rank *rk = duel->seat->rk;
    if (rk->fault) launch_fault(rk);
    if (duel->delays && (leg == LEG_BOTH || (leg != LEG_MEET && owner_of(leg, 0) == duel->me))) {
        sleep_ns(duel->seat->plan->slow_ns);
    }
    exec_run(duel->exec[leg]);
}

/* Both are here, and see what the other wrote before. On GPUs by the host's memory: what is queued
 * in the stream does not matter. */
static void meet(const struct duel *duel)
{
    struct rank *rk = duel->seat->rk;
    if (!rk->device) {
        operate(duel, LEG_MEET);
        return;
    }
    struct p2p_place *own = p2p_place(duel->seat->plan, rk->rank);
    struct p2p_place *theirs = p2p_place(duel->seat->plan, duel->group[1 - duel->me]);
    uint64_t times = own->met - duel->met_before + 1;
    atomic_fetch_add_explicit(&own->met, 1, memory_order_release); /* pairs with the acquire */
    for (struct waiter waiter = {0};
         atomic_load_explicit(&theirs->met, memory_order_acquire) - duel->their_met_before < times;
         waiter_pause(&waiter, rk)) {
    }
}

/* The first rank's value, for both. */
static uint64_t agree(const struct duel *duel, uint64_t value)
{
    struct p2p_place *place = p2p_place(duel->seat->plan, duel->group[0]);
    uint64_t *word = duel->seat->word;
    if (word) {
        *word = value; /* the second's is overwritten */
        operate(duel, LEG_WORD);
        return *word;
    }
    if (duel->me == 0) place->value = value;
    meet(duel);
    value = place->value;
    meet(duel); /* before it is written again */
    return value;
}

/* Writes a word of each cache line of the own buffer, its value unchanged. */
static void touch(const struct duel *duel)
{
    enum { LINE = 64 };
    for (size_t at = 0; at < p2p_buffer_bytes(duel->bytes); at += LINE) {
        volatile uint8_t *word = duel->seat->memory + at;
        *word = *word;
    }
    rank_tick(duel->seat->rk);
}

/* The same, one message at a time, of lines that both ranks have just written: a receiver that
 * reads the sender's buffer again would find it in its own cache, and nothing would travel. */
static double run_fresh(const struct duel *duel, enum p2p_leg leg, uint64_t window)
{
    uint64_t ns = 0;
    for (uint64_t w = 0; w < window; w++) {
        touch(duel);
        meet(duel);
        uint64_t start = clock_ns();
        operate(duel, leg);
        meet(duel);
        ns += clock_ns() - start;
    }
    return (double)ns;
}

/* Messages go from buffer to buffer, not through slots that are written anew each time. */
static bool is_pulled(const struct duel *duel, enum p2p_leg leg)
{
    return duel->legs->legs[leg].ready->linked[IN_PLACE]->opts.mode == WIRE_PULL;
}

/* Messages of a window, one after the other. */
struct window {
    const struct duel *duel;
    enum p2p_mode mode;
};

static void run_message(void *ctx)
{
    const struct window *window = ctx;
    for (uint32_t i = 0; i < modes[window->mode].nlegs; i++)
        operate(window->duel, modes[window->mode].legs[i]);
}

static void queue_message(void *ctx)
{
    const struct window *window = ctx;
    struct rank *rk = window->duel->seat->rk;
    if (rk->fault) launch_fault(rk);
    for (uint32_t i = 0; i < modes[window->mode].nlegs; i++)
        exec_start(window->duel->exec[modes[window->mode].legs[i]]);
}

static void await_messages(void *ctx)
{
    const struct window *window = ctx;
    for (uint32_t i = 0; i < modes[window->mode].nlegs; i++)
        exec_wait(window->duel->exec[modes[window->mode].legs[i]]);
}

static void meet_other(void *ctx)
{
    meet(ctx);
}

/* A sample by the device's clock. */
static double run_on_gpu(const struct duel *duel, enum p2p_mode mode, uint64_t count)
{
    struct window window = {duel, mode};
    struct runner runner = {.run = run_message, .ctx = &window};
    if (exec_queues(duel->exec[LEG_THERE]) && !duel->delays) {
        runner.queue = queue_message;
        runner.wait = await_messages;
    }
    struct duel mine = *duel; /* the meeting's, which only counts in the places */
    return (double)timing_gpu_batch(duel->seat->rk, &runner, count, meet_other, &mine);
}

/* Whether GPUs' clocks count: over other transports the host drives all, and its own does. */
static bool by_gpu(const struct seat *seat)
{
    return seat->rk->device && transport_table()[seat->plan->transport]->device;
}

/* Nanoseconds of one sample. */
static double run_sample(const struct duel *duel, enum p2p_mode mode, uint64_t window)
{
    enum p2p_leg first = modes[mode].legs[0];
    if (by_gpu(duel->seat)) return run_on_gpu(duel, mode, window);
    if (modes[mode].meets && is_pulled(duel, first)) return run_fresh(duel, first, window);
    uint64_t start = clock_ns();
    for (uint64_t w = 0; w < window; w++) {
        for (uint32_t i = 0; i < modes[mode].nlegs; i++)
            operate(duel, modes[mode].legs[i]);
    }
    if (modes[mode].meets) meet(duel);
    return (double)(clock_ns() - start);
}

/* ---- data check ---- */

static struct gpu_data data_of(uint32_t owner, uint64_t first, uint64_t salt)
{
    return (struct gpu_data){P2P_DTYPE, OP_COUNT, 2, owner, first, salt};
}

/* Data in the blocks that are ours, poison in the other's. */
static void fill(const struct duel *duel, enum p2p_leg leg, uint64_t salt)
{
    struct seat *seat = duel->seat;
    size_t esize = dtype_bytes(P2P_DTYPE), count = duel->legs->legs[leg].row.block_count;
    for (uint32_t block = 0; block <= (leg == LEG_BOTH); block++) {
        uint32_t owner = owner_of(leg, block);
        for (size_t done = 0, n; done < count; done += n) {
            n = count - done < PIECE ? count - done : PIECE;
            uint8_t *at = seat->memory + (block * count + done) * esize;
            if (owner == duel->me) {
                struct gpu_data data = data_of(owner, done, salt);
                site_fill(&seat->site, at, &data, n);
            } else {
                site_poison(&seat->site, at, n * esize, salt);
            }
            rank_tick(seat->rk);
        }
    }
}

static void compare(const struct duel *duel, enum p2p_leg leg, uint64_t salt)
{
    struct seat *seat = duel->seat;
    struct p2p_found *found = &p2p_place(seat->plan, seat->rk->rank)->found;
    size_t esize = dtype_bytes(P2P_DTYPE), count = duel->legs->legs[leg].row.block_count;
    for (uint32_t block = 0; block <= (leg == LEG_BOTH); block++) {
        for (size_t done = 0, n; done < count; done += n) {
            n = count - done < PIECE ? count - done : PIECE;
            struct data_bad bad;
            size_t at = block * count + done;
            struct gpu_data data = data_of(owner_of(leg, block), done, salt);
            size_t wrong =
                site_wrong(&seat->site, seat->memory + at * esize, &data, false, n, &bad);
            if (wrong && found->wrong == 0) {
                found->bad = bad;
                found->bad.index += at;
            }
            found->wrong += wrong;
            rank_tick(seat->rk);
        }
    }
}

/* Runs a leg on fresh data; `round` tells checks of the same pair apart. A pair and size is checked
 * on its three legs alone, and once more behind all at once: one element that always arrives wrong
 * counts three or four times, once for each leg whose output holds it. */
static void check(const struct duel *duel, enum p2p_leg leg, uint64_t round)
{
    struct seat *seat = duel->seat;
    size_t esize = dtype_bytes(P2P_DTYPE);
    uint64_t salt = (duel->result.index * 2 + round) * NLEGS + (uint64_t)leg;
    meet(duel); /* nobody looks at the old data any more */
    fill(duel, leg, salt);
    meet(duel);
    if (seat->rk->fault) exec_spoil(duel->exec[leg]);
    operate(duel, leg);
    if (seat->rk->fault) exec_spoiled(duel->exec[leg]);
    if (seat->planted < duel->legs->legs[leg].row.out_bytes / esize) {
        site_flip(&seat->site, seat->memory + seat->planted * esize);
    }
    compare(duel, leg, salt);
}

/* ---- timing ---- */

static uint64_t clamp(double value, uint64_t least, uint64_t most)
{
    if (!(value > (double)least)) return least;
    return value < (double)most ? (uint64_t)value : most;
}

/* Doubles the window until a sample is long enough, which warms up too; settles the number of
 * samples. */
static void settle(struct duel *duel, enum p2p_mode mode)
{
    const struct seat *seat = duel->seat;
    struct p2p_times *times = &duel->result.times[mode];
    double cell_ns = seat->plan->cell_s * 1e9, least_ns = CLOCK_SHARE * seat->clock_ns;
    if (modes[mode].meets && !is_pulled(duel, modes[mode].legs[0])) {
        double window_ns = MEET_SHARE * duel->meet_ns;
        if (window_ns < WINDOW_NS) window_ns = WINDOW_NS;
        if (window_ns > cell_ns / P2P_SAMPLES_LEAST) window_ns = cell_ns / P2P_SAMPLES_LEAST;
        if (least_ns < window_ns) least_ns = window_ns;
    }
    uint64_t most = P2P_WINDOW_MOST;
    if (by_gpu(seat)) { /* what a stream takes, as long as its events need */
        most = TIMING_GPU_BATCH / modes[mode].nlegs;
        least_ns = TIMING_GPU_SAMPLE_S * 1e9;
    }
    double took_ns, spent_ns; /* the latter with what is done between the readings of the clock */
    uint64_t window = 1, more;
    do {
        times->window = window;
        uint64_t start = clock_ns();
        took_ns = run_sample(duel, mode, window);
        spent_ns = (double)(clock_ns() - start);
        window = 2 * times->window < most ? 2 * times->window : most;
        more = agree(duel, took_ns < least_ns && window > times->window);
    } while (more);
    uint64_t samples = seat->plan->samples;
    if (!samples) samples = clamp(cell_ns / spent_ns, P2P_SAMPLES_LEAST, P2P_SAMPLES_MOST);
    times->samples = agree(duel, samples);
}

/* Statistics of the samples in seat->us, which hold nanoseconds per sample. */
static void conclude(struct duel *duel, enum p2p_mode mode)
{
    struct p2p_times *times = &duel->result.times[mode];
    double *us = duel->seat->us;
    double messages = (double)times->window * modes[mode].nlegs;
    for (uint64_t i = 0; i < times->samples; i++)
        us[i] = us[i] / 1e3 / messages;
    times->p50_us = stats_median(us, times->samples); /* sorts */
    times->min_us = us[0];
    times->quarter_us = stats_percentile(us, times->samples, 0.25);
}

static void measure_alone(struct duel *duel, enum p2p_mode mode)
{
    says(duel, "timing", modes[mode].says);
    settle(duel, mode);
    struct p2p_times *times = &duel->result.times[mode];
    for (uint64_t i = 0; i < times->samples; i++)
        duel->seat->us[i] = run_sample(duel, mode, times->window);
    conclude(duel, mode);
}

/* Goes on until every pair of the round has its samples, so that none is measured with less beside
 * it than the others; those are as many as alone, or fewer when they take longer than a cell. Where
 * ranks share cores, windows are shorter and cells longer by as much as there are ranks per core.
 * `all` is what `finished` comes to; over several hosts, which do not see it, everybody goes on
 * until a cell is over. */
static void measure_at_once(struct duel *duel, uint64_t all)
{
    struct p2p_plan *plan = duel->seat->plan;
    struct p2p_times *times = &duel->result.times[P2P_AT_ONCE];
    const struct p2p_times *alone = &duel->result.times[P2P_BOTH];
    uint64_t share = (plan->nranks + plan->cores - 1) / plan->cores, count = 0;
    says(duel, "timing", modes[P2P_AT_ONCE].says);
    *times = (struct p2p_times){.samples = alone->samples};
    times->window = alone->window > share ? alone->window / share : 1;
    meet(duel);
    double cell_ns = 1e9 * plan->cell_s * (double)share;
    double limit_ns = plan->samples ? INFINITY : cell_ns;
    uint64_t start = clock_ns();
    for (bool more = true; more;) {
        double ns = run_sample(duel, P2P_AT_ONCE, times->window);
        if (count < times->samples) {
            duel->seat->us[count++] = ns;
            bool late = (double)(clock_ns() - start) > limit_ns && count >= P2P_SAMPLES_LEAST;
            if (late) times->samples = count;
            if (count == times->samples && duel->me == 0) {
                atomic_fetch_add_explicit(&p2p_board(plan)->finished, 1, memory_order_relaxed);
            }
        }
        bool others = atomic_load_explicit(&p2p_board(plan)->finished, memory_order_relaxed) < all;
        bool early = (double)(clock_ns() - start) < cell_ns || count < times->samples;
        more = agree(duel, duel->seat->apart ? early : others);
    }
    conclude(duel, P2P_AT_ONCE);
}

static void run_alone(struct duel *duel)
{
    if (duel->seat->pass == 0) {
        says(duel, "checking", "data");
        for (int leg = LEG_THERE; leg <= LEG_BOTH; leg++)
            check(duel, (enum p2p_leg)leg, 0);
    }
    enum { MEETINGS = 10 };
    uint64_t start = clock_ns();
    for (int i = 0; i < MEETINGS; i++)
        meet(duel);
    duel->meet_ns = (double)(clock_ns() - start) / MEETINGS;
    for (int mode = P2P_LATENCY; mode <= P2P_BOTH; mode++)
        measure_alone(duel, (enum p2p_mode)mode);
}

/* ---- a round ---- */

/* Finds this rank's pair; false: it rests. */
static bool find_duel(struct duel *duel, uint32_t round)
{
    const struct seat *seat = duel->seat;
    uint32_t nranks = seat->plan->nranks, rank = seat->rk->rank;
    for (uint32_t k = 0; k < p2p_pairs(nranks); k++) {
        struct p2p_pair pair = p2p_pair_of(nranks, round, k);
        if (pair.first != rank && pair.second != rank) continue;
        duel->pair = pair;
        duel->k = k;
        duel->group[0] = pair.first;
        duel->group[1] = pair.second;
        duel->me = pair.second == rank;
        duel->met_before = p2p_place(seat->plan, rank)->met;
        duel->their_met_before = p2p_place(seat->plan, duel->group[1 - duel->me])->met;
        const struct p2p_plan *plan = seat->plan;
        bool to_it = plan->slow_to == P2P_ALL || plan->slow_to == duel->group[1 - duel->me];
        duel->delays = plan->slow_ns && plan->slow_from == rank && to_it;
        return true;
    }
    return false;
}

static int open_duel(struct duel *duel)
{
    struct seat *seat = duel->seat;
    says(duel, "opening", "handles");
    for (int leg = 0; leg < NLEGS; leg++) {
        if (leg == LEG_WORD && !seat->word) continue;
        struct exec_spec spec = {
            .linked = duel->legs->legs[leg].ready->linked[IN_PLACE],
            .rank = seat->rk,
            .group = duel->group,
            .me = duel->me,
            .tag = seat->tag + 1 + (uint32_t)leg,
            .transport = transport_table()[seat->plan->transport],
            .in = leg == LEG_WORD ? (void *)seat->word : seat->memory,
            .out = leg == LEG_WORD ? (void *)seat->word : seat->memory,
            .shared = seat->plan->shared,
            .dtype = P2P_DTYPE,
            .op = OP_SUM,
            .block_count = duel->legs->legs[leg].row.block_count,
        };
        duel->exec[leg] = exec_open(&spec, seat->err);
        if (!duel->exec[leg]) return -1;
    }
    return 0;
}

/* Sleeps until the own bell was rung once more. */
static void await_bell(struct seat *seat, uint32_t round)
{
    struct rank *rk = seat->rk;
    struct p2p_plan *plan = seat->plan;
    _Atomic uint32_t *bell = &p2p_place(plan, rk->rank)->bell;
    struct waiter waiter = {0};
    struct timespec doze = {.tv_nsec = rk->drive ? LIGHT_DOZE_NS : DOZE_NS};
    /* pairs with the release in ring */
    while (atomic_load_explicit(bell, memory_order_acquire) == seat->rings) {
        uint64_t turn = atomic_load_explicit(&p2p_board(plan)->turn, memory_order_relaxed);
        struct p2p_pair pair = p2p_pair_of(plan->nranks, round, (uint32_t)turn);
        rank_waits(rk, 0, UINT32_MAX, (int32_t)pair.first, 0);
        long slept = syscall(SYS_futex, bell, FUTEX_WAIT, seat->rings, &doze, NULL, 0);
        if (slept) waiter_pause(&waiter, rk);
        rank_drive(rk);
        doze.tv_nsec = 2 * doze.tv_nsec < DOZE_NS ? 2 * doze.tv_nsec : DOZE_NS;
    }
    seat->rings++;
    rank_goes_on(rk);
}

static void ring(const struct seat *seat, uint32_t rank)
{
    _Atomic uint32_t *bell = &p2p_place(seat->plan, rank)->bell;
    atomic_fetch_add_explicit(bell, 1, memory_order_release); /* pairs with that in await_bell */
    syscall(SYS_futex, bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* After turn k of a round. */
static void ring_next(const struct seat *seat, uint32_t round, uint32_t k)
{
    uint32_t nranks = seat->plan->nranks, next_k = (k + 1) % p2p_pairs(nranks);
    atomic_store_explicit(&p2p_board(seat->plan)->turn, next_k, memory_order_relaxed);
    if (next_k == 0) { /* of the next round */
        for (uint32_t r = 0; r < nranks; r++)
            ring(seat, r);
        return;
    }
    struct p2p_pair next = p2p_pair_of(nranks, round, next_k);
    ring(seat, next.first);
    ring(seat, next.second);
}

static int report(struct duel *duel)
{
    struct seat *seat = duel->seat;
    for (int i = 0; i < 2; i++) {
        const struct p2p_found *found = &p2p_place(seat->plan, duel->group[i])->found;
        duel->result.wrong[i] = found->wrong;
        duel->result.bad[i] = found->bad;
    }
    return rank_send(seat->rk, &duel->result, sizeof duel->result, seat->err);
}

/* The n-th core (counted round) of a mask that has some; CPU_SETSIZE: none. */
static size_t nth_core(const cpu_set_t *mask, uint32_t n)
{
    uint32_t cores = (uint32_t)CPU_COUNT(mask), left = cores ? n % cores : 0;
    size_t core = 0;
    while (core < CPU_SETSIZE && (!CPU_ISSET(core, mask) || left-- > 0))
        core++;
    return core;
}

/* Where ranks share cores they are not bound to any: the two of a pair would often be measured on
 * one and the same. Runs the pair on a core each, as if there were no other ranks. */
static void run_apart(struct duel *duel)
{
    struct rank *rk = duel->seat->rk;
    uint32_t cores = duel->seat->plan->cores, other = duel->group[0] % cores;
    uint32_t wanted = rk->rank % cores;
    if (duel->me == 1 && wanted == other) wanted++;
    cpu_set_t mask, own;
    bool known = sched_getaffinity(0, sizeof mask, &mask) == 0; /* not with over CPU_SETSIZE */
    bool apart = rk->crowded && cores > 1 && known && CPU_COUNT(&mask) > 1;
    if (apart) {
        CPU_ZERO(&own);
        CPU_SET(nth_core(&mask, wanted), &own);
        apart = sched_setaffinity(0, sizeof own, &own) == 0;
    }
    if (apart) rk->crowded = false; /* waits need not yield */
    run_alone(duel);
    if (!apart) return;
    rk->crowded = true;
    sched_setaffinity(0, sizeof mask, &mask);
}

/* One pair after the other. */
static void take_turns(struct seat *seat, struct duel *duel, uint32_t round)
{
    for (uint32_t k = 0; seat->apart && k < p2p_pairs(seat->plan->nranks); k++) {
        if (duel && duel->k == k) run_apart(duel);
        rank_barrier(seat->rk);
    }
    if (seat->apart) return;
    if (duel) {
        if (duel->k > 0) await_bell(seat, round);
        run_apart(duel);
        if (duel->me == 0) ring_next(seat, round, duel->k);
    }
    await_bell(seat, round); /* all have had their turn */
}

/* The middle of a round: what the pairs do. */
static void run_pairs(struct seat *seat, struct duel *duel, uint32_t round, uint64_t bytes)
{
    struct rank *rk = seat->rk;
    uint32_t npairs = p2p_pairs(seat->plan->nranks);
    rank_says(rk, "p2p, %llu B, round %u, waiting for its turn", (unsigned long long)bytes, round);
    take_turns(seat, duel, round);
    if (seat->pass < seat->plan->at_once) {
        rank_barrier(rk);
        seat->finished += npairs;
        if (duel) measure_at_once(duel, seat->finished);
        rank_barrier(rk);
        if (duel && seat->pass == 0) check(duel, LEG_BOTH, 1);
    }
    if (seat->apart) { /* what was found here */
        struct p2p_found *found = &p2p_place(seat->plan, rk->rank)->found;
        rank_publish(rk, found, sizeof *found);
        rank_barrier(rk);
    } else if (duel) {
        meet(duel); /* the other has counted */
    }
}

static int run_round(struct seat *seat, const struct p2p_legs *legs, uint32_t size_at,
                     uint32_t round)
{
    struct rank *rk = seat->rk;
    const struct p2p_plan *plan = seat->plan;
    size_t mark = rank_mark(rk), mark_there = device_mark(rk);
    struct duel duel = {.seat = seat, .legs = legs, .bytes = plan->sizes[size_at]};
    bool plays = find_duel(&duel, round);
    uint64_t number = (uint64_t)size_at * p2p_rounds(plan->nranks) + round;
    duel.result = (struct p2p_result){
        .index = number * p2p_pairs(plan->nranks) + duel.k, .size_at = size_at, .pair = duel.pair};
    p2p_place(seat->plan, rk->rank)->found.wrong = 0;
    if (plays && open_duel(&duel)) return -1;
    seat->tag += NLEGS;
    rank_barrier(rk);
    run_pairs(seat, plays ? &duel : NULL, round, duel.bytes);
    if (plays && duel.me == 0 && report(&duel)) return -1;
    rank_barrier(rk); /* nobody leaves before all are done with his memory, */
    for (int leg = 0; leg < NLEGS; leg++)
        exec_close(duel.exec[leg]);
    rank_barrier(rk); /* and nobody uses it again before all have left */
    rank_rewind(rk, mark);
    device_rewind(rk, mark_there);
    return 0;
}

/* ---- the rank ---- */

static double clock_cost_ns(void)
{
    enum { CALLS = 200 };
    uint64_t start = clock_ns(), last = start;
    for (int i = 0; i < CALLS; i++)
        last = clock_ns();
    return (double)(last - start) / CALLS;
}

static int allocate_on_device(struct seat *seat)
{
    struct rank *rk = seat->rk;
    void *memory = NULL;
    if (device_open(rk, seat->plan->device_bytes, seat->err)) return -1;
    const struct gpu *gpu = rk->device->gpu;
    if (seat->plan->shared) {
        memory = device_alloc(rk, seat->bytes, seat->err);
    } else if (gpu_check(gpu, gpu->alloc(&memory, seat->bytes), seat->err, "%zu B on device %d",
                         seat->bytes, rk->device->number)) {
        return -1;
    }
    seat->memory = memory;
    return memory ? 0 : -1;
}

static void release(struct seat *seat)
{
    struct device *device = seat->rk->device;
    site_close(&seat->site);
    if (device) {
        if (seat->memory && !seat->plan->shared) device->gpu->free(seat->memory);
        device_close(seat->rk);
    } else if (!seat->plan->shared && seat->memory) {
        munmap(seat->memory, seat->bytes);
    }
    free(seat->us);
}

static int allocate(struct seat *seat)
{
    const struct p2p_plan *plan = seat->plan;
    uint64_t most = plan->samples ? plan->samples : P2P_SAMPLES_MOST;
    seat->us = mem_calloc(most, sizeof *seat->us);
    seat->bytes = p2p_buffer_bytes(plan->sizes[plan->nsizes - 1]);
    if (plan->device) return allocate_on_device(seat);
    seat->word = rank_alloc(seat->rk, sizeof *seat->word, seat->err);
    if (!seat->word) return -1;
    if (plan->shared) {
        seat->memory = rank_alloc(seat->rk, seat->bytes, seat->err);
        return seat->memory ? 0 : -1;
    }
    void *map = mmap(NULL, seat->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return err_add(seat->err, ERR_USAGE, "cannot map %zu B of private memory", seat->bytes);
    }
    seat->memory = map;
    return rank_prefault(seat->rk, map, seat->bytes, seat->err);
}

static int run_size(struct seat *seat, uint32_t size_at)
{
    struct p2p_legs legs;
    int bad = p2p_legs_make(&legs, seat->plan, seat->plan->sizes[size_at], seat->err);
    for (uint32_t round = 0; !bad && round < p2p_rounds(seat->plan->nranks); round++)
        bad = run_round(seat, &legs, size_at, round);
    p2p_legs_release(&legs);
    return bad;
}

int p2p_rank(struct rank *rk, struct err *err)
{
    struct seat seat = {.rk = rk,
                        .err = err,
                        .plan = world_blob(rk->world),
                        .apart = world_nhosts(rk->world) > 1,
                        .clock_ns = clock_cost_ns()};
    rank_says(rk, "p2p, starting");
    int bad = check_plant(rk, &seat.planted, err);
    if (!bad) bad = allocate(&seat) || site_open(&seat.site, rk, err) ? -1 : 0;
    for (; !bad && seat.pass < seat.plan->passes; seat.pass++) {
        for (uint32_t i = 0; !bad && i < seat.plan->nsizes; i++)
            bad = run_size(&seat, i);
    }
    release(&seat);
    return bad;
}
