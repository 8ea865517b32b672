/* SPDX-License-Identifier: Apache-2.0
 * Points are put into groups of equal clusters; a thread takes the largest group that is left, with
 * the group's store of collectives and the thread's own scratch memory. */
#include "train/runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/fluid.h"
#include "net/net_const.h"
#include "train/event.h"

/* Points whose clusters are equal. */
struct group {
    const struct topo *topo;
    struct fluids *fluids; /* NULL until an event needs one */
    size_t *points, npoints;
};

struct runner {
    enum engine engine;
    struct runner_point *points;
    size_t *same; /* by point: the first point of the same job on the same cluster */
    size_t npoints;
    struct group *groups; /* the largest first */
    size_t ngroups;
    struct net_const_table network;
    struct lib_args library;
};

/* A call of runner_steps. */
struct call {
    struct runner *runner;
    const struct constants *c;
    bool *wanted; /* by point */
    bool brief;
    struct step *steps;
    struct err *faults; /* by point */
    atomic_size_t next; /* the first group that nobody has taken */
};

static bool same_cluster(const struct topo *a, const struct topo *b)
{
    return a->accel.name == b->accel.name && a->hosts == b->hosts && a->per_host == b->per_host &&
           a->domain_hosts == b->domain_hosts && a->fabric == b->fabric &&
           a->nic_Gbps == b->nic_Gbps && a->nics == b->nics && a->one_nic_Gbps == b->one_nic_Gbps &&
           a->full_host == b->full_host && a->oversubscribed == b->oversubscribed;
}

static int by_size(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    if (x->npoints != y->npoints) return x->npoints < y->npoints ? 1 : -1;
    return (x->points[0] > y->points[0]) - (x->points[0] < y->points[0]);
}

/* Puts a point into its group, unless its job is there already. */
static void add_point(struct runner *r, struct group *group, size_t i)
{
    const struct job *job = r->points[i].job;
    for (size_t k = 0; k < group->npoints; k++) {
        if (memcmp(r->points[group->points[k]].job, job, sizeof *job) != 0) continue;
        r->same[i] = group->points[k];
        return;
    }
    group->points = mem_realloc(group->points, group->npoints + 1, sizeof *group->points);
    group->points[group->npoints++] = i;
}

static void make_groups(struct runner *r)
{
    for (size_t i = 0; i < r->npoints; i++) {
        const struct topo *topo = r->points[i].topo;
        size_t g = 0;
        r->same[i] = i;
        if (!r->points[i].job) continue;
        while (g < r->ngroups && !same_cluster(r->groups[g].topo, topo))
            g++;
        if (g == r->ngroups) {
            r->groups = mem_realloc(r->groups, ++r->ngroups, sizeof *r->groups);
            r->groups[g] = (struct group){.topo = topo};
        }
        add_point(r, &r->groups[g], i);
    }
    if (r->ngroups) qsort(r->groups, r->ngroups, sizeof *r->groups, by_size);
}

struct runner *runner_new(enum engine engine, const struct runner_point *points, size_t n,
                          struct err *err)
{
    struct runner *r = mem_calloc(1, sizeof *r);
    *r = (struct runner){.engine = engine, .npoints = n, .library = lib_usual()};
    if (net_const_read(&r->network, NULL, err)) {
        free(r);
        return NULL;
    }
    r->points = mem_calloc(n + 1, sizeof *r->points);
    r->same = mem_calloc(n + 1, sizeof *r->same);
    if (n) memcpy(r->points, points, n * sizeof *points);
    make_groups(r);
    return r;
}

void runner_free(struct runner *runner)
{
    if (!runner) return;
    for (size_t g = 0; g < runner->ngroups; g++) {
        fluids_free(runner->groups[g].fluids);
        free(runner->groups[g].points);
    }
    free(runner->groups);
    free(runner->points);
    free(runner->same);
    net_const_release(&runner->network);
    free(runner);
}

size_t runner_points(const struct runner *runner)
{
    return runner->npoints;
}

enum engine runner_engine(const struct runner *runner)
{
    return runner->engine;
}

/* ---- one step ---- */

static int run_events(const struct runner_point *point, const struct constants *c,
                      struct fluids *fluids, struct chunks *chunks, struct step *step,
                      struct err *err)
{
    struct event_args args = {.job = point->job, .c = c, .fluids = fluids, .chunks = chunks};
    struct event_result result = {0};
    int bad = event_run(&args, &result, err);
    if (!bad) *step = result.step;
    event_release(&result);
    return bad;
}

static int run_formulas(const struct runner_point *point, const struct constants *c,
                        struct fluids *fluids, struct chunks *chunks, struct step *step,
                        struct err *err)
{
    (void)fluids, (void)chunks, (void)err;
    *step = step_predict(point->job, c);
    return 0;
}

static int (*const engines[NENGINES])(const struct runner_point *, const struct constants *,
                                      struct fluids *, struct chunks *, struct step *,
                                      struct err *) = {run_events, run_formulas};

/* ---- all ---- */

static struct job shortened(const struct job *job)
{
    struct job brief = *job;
    uint64_t most = 2 * (uint64_t)job->pp < 8 ? 8 : 2 * (uint64_t)job->pp;
    if (job_microbatches(job) > most) brief.global_batch = most * job->dp * job->micro_batch;
    return brief;
}

static void run_group(struct call *call, struct group *group, struct chunks *chunks)
{
    struct runner *r = call->runner;
    if (r->engine == ENGINE_EVENT && !group->fluids)
        group->fluids = fluids_new(group->topo, &r->network.values, &r->library);
    for (size_t k = 0; k < group->npoints; k++) {
        size_t i = group->points[k];
        if (!call->wanted[i]) continue;
        struct runner_point point = r->points[i];
        struct job brief;
        if (call->brief && r->engine == ENGINE_EVENT) {
            brief = shortened(point.job);
            point.job = &brief;
        }
        engines[r->engine](&point, call->c, group->fluids, chunks, &call->steps[i],
                           &call->faults[i]);
    }
}

static void *work(void *arg)
{
    struct call *call = arg;
    struct runner *r = call->runner;
    struct chunks *chunks = r->engine == ENGINE_EVENT ? chunks_new() : NULL;
    for (;;) {
        /* Relaxed: a ticket; what the threads write meets in pthread_join. */
        size_t g = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (g >= r->ngroups) break;
        run_group(call, &r->groups[g], chunks);
    }
    chunks_free(chunks);
    return NULL;
}

/* All groups, on this thread and as many more as there are processors; where none can be started,
 * this one does all. */
static void run_groups(struct call *call)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t want = cpus > 1 ? (size_t)cpus - 1 : 0, nthreads = 0, ngroups = call->runner->ngroups;
    if (want >= ngroups) want = ngroups ? ngroups - 1 : 0;
    pthread_t *threads = mem_calloc(want + 1, sizeof *threads);
    while (nthreads < want && pthread_create(&threads[nthreads], NULL, work, call) == 0)
        nthreads++;
    work(call);
    for (size_t t = 0; t < nthreads; t++)
        pthread_join(threads[t], NULL);
    free(threads);
}

int runner_steps(struct runner *runner, const struct constants *c, const struct runner_ask *ask,
                 struct step *steps, struct err *err)
{
    size_t n = runner->npoints;
    const bool *keep = ask->keep;
    struct call call = {.runner = runner, .c = c, .brief = ask->brief};
    call.steps = mem_calloc(n + 1, sizeof *call.steps);
    call.wanted = mem_calloc(n + 1, sizeof *call.wanted);
    call.faults = mem_calloc(n + 1, sizeof *call.faults);
    for (size_t i = 0; i < n; i++) {
        call.faults[i] = (struct err)ERR_INIT;
        if (!keep || !keep[i]) call.wanted[runner->same[i]] = true;
    }
    run_groups(&call);
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (err_move(err, &call.faults[i])) bad = -1;
        if (!keep || !keep[i]) steps[i] = call.steps[runner->same[i]];
    }
    free(call.steps);
    free(call.wanted);
    free(call.faults);
    return bad;
}

int runner_step(enum engine engine, const struct runner_point *point, const struct constants *c,
                struct step *step, struct err *err)
{
    struct runner *runner = runner_new(engine, point, 1, err);
    int bad = runner ? runner_steps(runner, c, &(struct runner_ask){0}, step, err) : -1;
    runner_free(runner);
    return bad;
}
