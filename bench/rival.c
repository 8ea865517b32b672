/* SPDX-License-Identifier: Apache-2.0
 * What the operation is compared with: see rival.h. */
#include "bench/rival.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/clock.h"
#include "bench/stats.h"

/* ---- the MPI library ---- */

enum { PROBES = 5, PROBE_CALLS_MOST = 100, WARMUP_LEAST = 6 };
#define PROBE_S 1e-3

/* A way to call the library: form % NFORMS in the buffers form / NFORMS. */
enum { NWAYS = 2 * MPI_FORM_COUNT };

static void call_mpi(void *ctx)
{
    struct rival *rival = ctx;
    mpi_call_run(&rival->calls[rival->form / MPI_FORM_COUNT],
                 (enum mpi_form)(rival->form % MPI_FORM_COUNT));
}

static int open_mpi(struct rival *rival)
{
    struct bench *bench = rival->bench;
    rank_says(bench->rk, "opening MPI");
    rival->mpi = mpi_open(bench->rk, bench->err);
    if (!rival->mpi) return -1;
    /* Private: as ours. Cold: what is flushed are our buffers, so both use these. */
    if (!bench->plan->shared || bench->plan->cold) return 0;
    rival->memory = mpi_memory(rival->mpi, bench->memory_bytes, bench->err);
    if (!rival->memory) return -1;
    return rank_prefault(bench->rk, rival->memory, bench->memory_bytes, bench->err);
}

/* Non-blocking calls of MPICH 4.0 fail with messages of 2 GiB and more. */
#define POLLED_MOST (UINT64_C(1) << 31)

static void release_calls(struct rival *rival)
{
    for (int own = 0; own < 2; own++)
        mpi_call_release(&rival->calls[own]);
}

/* The first form that can be used; MPI_FORM_COUNT: none. */
static unsigned first_form(const struct rival *rival)
{
    unsigned form = 0;
    while (form < MPI_FORM_COUNT && !rival->forms[form])
        form++;
    return form;
}

static void meet_mpi(struct rival *rival, struct timing *timing)
{
    const struct side *side = timing->side;
    const struct plan *plan = side->bench->plan;
    release_calls(rival);
    for (int own = 0; own < 2; own++) {
        uint8_t *memory = own ? rival->memory : side->check.memory;
        if (!memory) continue;
        struct mpi_args args = {
            .coll = plan->coll,
            .dtype = side->row->dtype,
            .op = side->row->op,
            .block_count = side->row->block_count,
            .traffic = side->traffic,
            .root = plan->root,
            .in = memory + side->check.places.in,
            .out = memory + side->check.places.out,
            .in_place = side->in_place,
        };
        rival->result = (size_t)((uint8_t *)mpi_result(&args) - memory);
        if (mpi_lacks(rival->mpi, &args)) { /* the parent has said so */
            timing->nseries = 1;
            return;
        }
        mpi_call_make(rival->mpi, &args, &rival->calls[own]);
    }
    bool small = side->row->in_bytes < POLLED_MOST && side->row->out_bytes < POLLED_MOST;
    for (unsigned form = 0; form < MPI_FORM_COUNT; form++) {
        rival->forms[form] = mpi_call_has(&rival->calls[0], (enum mpi_form)form) &&
                             (form != MPI_FORM_POLLED || small);
    }
    rival->form = first_form(rival);
    if (rival->form == MPI_FORM_COUNT) timing->nseries = 1;
    timing->series[SERIES_OTHER].runner = (struct runner){.run = call_mpi, .ctx = rival};
}

/* Warms up every way to call the library, then tries them in turns; the best is taken. */
static void warm_mpi(struct rival *rival)
{
    struct timing *timing = rival->timing;
    struct series *series = &timing->series[SERIES_OTHER];
    const struct plan *plan = timing->side->bench->plan;
    double op_s[NWAYS], tries_s[NWAYS][PROBES];
    bool tried[NWAYS];
    unsigned best = first_form(rival);
    for (unsigned way = 0; way < NWAYS; way++)
        tried[way] = (way < MPI_FORM_COUNT || rival->memory) && rival->forms[way % MPI_FORM_COUNT];
    uint64_t warmup = plan->warmup > WARMUP_LEAST ? plan->warmup : WARMUP_LEAST;
    for (rival->form = 0; rival->form < NWAYS; rival->form++) {
        if (!tried[rival->form]) continue;
        op_s[rival->form] = timing_warm(timing, series, warmup);
        if (plan->warm_longer) timing_warm(timing, series, timing_warm_more(op_s[rival->form]));
    }
    for (int probe = 0; probe < PROBES; probe++) {
        for (rival->form = 0; rival->form < NWAYS; rival->form++) {
            if (!tried[rival->form]) continue;
            double calls = op_s[rival->form] > 0 ? PROBE_S / op_s[rival->form] : 1;
            calls = fmin(fmax(calls, 1), PROBE_CALLS_MOST);
            tries_s[rival->form][probe] = timing_warm(timing, series, (uint64_t)calls);
        }
    }
    for (unsigned way = 0; way < NWAYS; way++) {
        if (!tried[way]) continue;
        op_s[way] = stats_median(tries_s[way], PROBES);
        if (op_s[way] < op_s[best]) best = way;
    }
    rival->form = (unsigned)board_agree(timing->side->bench->rk, best);
    series->op_s = op_s[rival->form];
}

/* "MPICH Version: 4.0.2" -> "MPICH 4.0.2", "Open MPI v4.1.4, package: .." -> "OpenMPI 4.1.4". */
static void short_version(const char *version, char *text, size_t room)
{
    static const char open_mpi[] = "Open MPI";
    bool open = strncmp(version, open_mpi, sizeof open_mpi - 1) == 0;
    const char *number = version + strcspn(version, "0123456789");
    snprintf(text, room, "%.*s %.*s", open ? 7 : (int)strcspn(version, " "),
             open ? "OpenMPI" : version, (int)strspn(number, "0123456789."), number);
}

static void name_mpi(const struct rival *rival, struct result *result)
{
    result->source = SOURCE_REFERENCE;
    snprintf(result->algo, sizeof result->algo, "mpi");
    snprintf(result->series, sizeof result->series, "mpi/%s",
             mpi_form_name((enum mpi_form)(rival->form % MPI_FORM_COUNT)));
    short_version(mpi_version(rival->mpi), result->transport, sizeof result->transport);
    if (rival->form >= MPI_FORM_COUNT) snprintf(result->buffers, sizeof result->buffers, "MPI's");
    result->steps = result->passes = 0;
    result->channels = result->parts = 0;
}

/* ---- all groups at once ---- */

static void meet_groups(struct rival *rival, struct timing *timing)
{
    (void)rival;
    timing->series[SERIES_OTHER].runner = timing->series[SERIES_OWN].runner;
    timing->series[SERIES_OWN].one_group = true;
}

/* ---- beside compute ---- */

enum { LANES = 16, UNIT_ROUNDS = 16, CALIBRATE_UNITS = 20000 };

/* `units` of arithmetic in registers: nothing that the operation could slow down but the core. */
static void compute(uint64_t units)
{
    double x[LANES];
    for (int i = 0; i < LANES; i++)
        x[i] = i;
    for (uint64_t u = 0; u < units * UNIT_ROUNDS; u++) {
        for (int i = 0; i < LANES; i++)
            x[i] = x[i] * 0.999 + 0.001;
    }
    volatile double sink = 0;
    for (int i = 0; i < LANES; i++)
        sink += x[i];
    (void)sink;
}

static double compute_s(uint64_t units)
{
    uint64_t start = clock_ns();
    compute(units);
    return (double)(clock_ns() - start) / 1e9;
}

static int open_overlap(struct rival *rival)
{
    double tries[PROBES];
    for (int i = 0; i < PROBES; i++)
        tries[i] = compute_s(CALIBRATE_UNITS);
    rival->units_per_s = CALIBRATE_UNITS / stats_median(tries, PROBES);
    return 0;
}

/* Starts the operation, computes, with plan->looks looks at the operation in between, and waits. */
static void run_beside(void *ctx)
{
    struct rival *rival = ctx;
    struct side *side = rival->timing->side;
    uint64_t pieces = side->bench->plan->looks + 1, done = 0;
    exec_start(side->exec);
    exec_progress(side->exec);
    for (uint64_t i = 1; i <= pieces; i++) {
        uint64_t to = rival->units * i / pieces;
        compute(to - done);
        done = to;
        if (i < pieces) exec_progress(side->exec);
    }
    for (struct waiter waiter = {0}; !exec_progress(side->exec);)
        waiter_pause(&waiter, side->bench->rk);
    rank_tick(side->bench->rk);
}

static void meet_overlap(struct rival *rival, struct timing *timing)
{
    rival->units = 0;
    timing->series[SERIES_OTHER].runner = (struct runner){.run = run_beside, .ctx = rival};
}

/* As much compute as the operation takes. */
static void warm_overlap(struct rival *rival)
{
    struct timing *timing = rival->timing;
    struct series *own = &timing->series[SERIES_OWN], *other = &timing->series[SERIES_OTHER];
    const struct plan *plan = timing->side->bench->plan;
    uint64_t warmup = plan->warmup > WARMUP_LEAST ? plan->warmup : WARMUP_LEAST;
    own->op_s = timing_warm(timing, own, warmup); /* how much to compute follows from it */
    if (plan->warm_longer) own->op_s = timing_warm(timing, own, timing_warm_more(own->op_s));
    rival->units = (uint64_t)ceil(own->op_s * rival->units_per_s);
    other->op_s = timing_warm(timing, other, warmup);
}

/* OSU's overlap: 100 % when the compute hides the whole operation, 0 % when it hides nothing. */
static void conclude_overlap(struct rival *rival, struct result *result, double pure_us)
{
    struct rank *rk = rival->bench->rk;
    double cpu = 0, wall = 0, tries[PROBES];
    for (uint32_t r = 0; r < rk->nranks; r++) {
        cpu += board_place(rk->world, r)->cpu_s;
        wall += board_place(rk->world, r)->wall_s;
    }
    for (int i = 0; i < PROBES; i++)
        tries[i] = compute_s(rival->units) * 1e6;
    result->compute_us = stats_median(tries, PROBES);
    double exposed = (result->p50_us - result->compute_us) / pure_us;
    result->overlap_pct = fmin(fmax(0, 100 - 100 * exposed), 100);
    result->cores = wall > 0 ? rk->nranks * cpu / wall : 0;
}

/* ---- one rank late ---- */

static void meet_skew(struct rival *rival, struct timing *timing)
{
    (void)rival;
    timing->series[SERIES_OTHER].runner = timing->series[SERIES_OWN].runner;
    timing->series[SERIES_OTHER].late = true;
}

/* ---- one table of all ---- */

static const struct kind {
    const char *own, *other; /* names of the series */
    int (*open)(struct rival *);
    void (*meet)(struct rival *, struct timing *);
    void (*warm)(struct rival *);
    bool checks; /* the second series is not just the operation again */
} kinds[] = {
    [CONTEST_NONE] = {"", "", NULL, NULL, NULL, false},
    [CONTEST_MPI] = {"own", "mpi", open_mpi, meet_mpi, warm_mpi, true},
    [CONTEST_GROUPS] = {"alone", "together", NULL, meet_groups, NULL, false},
    [CONTEST_OVERLAP] = {"pure", "overlapped", open_overlap, meet_overlap, warm_overlap, true},
    [CONTEST_SKEW] = {"on time", "one late", NULL, meet_skew, NULL, false},
};

static const struct kind *kind_of(const struct rival *rival)
{
    return &kinds[rival->bench->plan->contest];
}

int rival_open(struct rival *rival, struct bench *bench)
{
    *rival = (struct rival){.bench = bench};
    return kind_of(rival)->open ? kind_of(rival)->open(rival) : 0;
}

void rival_close(struct rival *rival)
{
    release_calls(rival);
    if (rival->memory) mpi_memory_free(rival->mpi, rival->memory);
    if (rival->mpi) mpi_close(rival->mpi);
}

void rival_meet(struct rival *rival, struct timing *timing)
{
    rival->timing = timing;
    timing->nseries = plan_series(rival->bench->plan);
    if (kind_of(rival)->meet) kind_of(rival)->meet(rival, timing);
}

uint64_t rival_check(struct rival *rival, uint64_t rounds, struct wrong *first)
{
    struct timing *timing = rival->timing;
    if (!kind_of(rival)->checks || timing->nseries < 2) return 0;
    struct side side = *timing->side;
    if (rival->mpi) side.check.places.out = rival->result;
    if (rival->mpi) rival->form = first_form(rival);
    uint64_t wrong = side_check(&side, &timing->series[SERIES_OTHER].runner, 0, rounds, first);
    if (!rival->memory || wrong) return wrong;
    side.check.memory = rival->memory;
    rival->form += MPI_FORM_COUNT;
    return side_check(&side, &timing->series[SERIES_OTHER].runner, 0, rounds, first);
}

void rival_warm(struct rival *rival)
{
    if (rival->timing->nseries == 2 && kind_of(rival)->warm) kind_of(rival)->warm(rival);
}

/* The verdict on the operation, against the library. */
static const char *verdict_of(const struct estimate *ratio)
{
    if (ratio->method == INTERVAL_NONE) return "";
    if (ratio->low > 1) return "faster";
    return ratio->high < 1 ? "slower" : "no difference";
}

void rival_name(const struct rival *rival, struct result results[NSERIES])
{
    const struct kind *kind = kind_of(rival);
    struct result *own = &results[SERIES_OWN], *other = &results[SERIES_OTHER];
    snprintf(own->series, sizeof own->series, "%s", kind->own);
    snprintf(other->series, sizeof other->series, "%s", kind->other);
    if (rival->bench->plan->contest == CONTEST_MPI) name_mpi(rival, other);
}

void rival_conclude(struct rival *rival, struct result results[NSERIES])
{
    const struct timing *timing = rival->timing;
    enum contest contest = rival->bench->plan->contest;
    struct result *own = &results[SERIES_OWN], *other = &results[SERIES_OTHER];
    if (timing->nseries < 2 && contest == CONTEST_MPI) /* why: a note, or mpi_lacks */
        snprintf(own->verdict, sizeof own->verdict, "not compared");
    if (timing->nseries < 2) return;
    rival_name(rival, results); /* by now the form is known */
    struct estimate ratio = estimate_ratio(timing->series[SERIES_OWN].us,
                                           timing->series[SERIES_OTHER].us, timing->nsamples);
    own->ratio = ratio.value;
    if (ratio.method != INTERVAL_NONE) {
        own->ratio_low = ratio.low;
        own->ratio_high = ratio.high;
    }
    if (contest == CONTEST_MPI)
        snprintf(own->verdict, sizeof own->verdict, "%s", verdict_of(&ratio));
    if (contest == CONTEST_OVERLAP) conclude_overlap(rival, other, own->p50_us);
}
