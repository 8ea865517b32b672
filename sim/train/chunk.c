/* SPDX-License-Identifier: Apache-2.0
 * Runs the operators of a chunk of layers as a graph of tasks. Layers that are alike, or that come
 * back in a period, are run until a period takes what the one before took; the rest is counted, and
 * one task stands for it, so that the host is as far ahead behind them as it would be. */
#include "train/chunk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/full.h"

enum { PERIOD_MOST = 64 }; /* layers of a pattern that is looked for */

/* One layer, embedding or head as a pass meets it. */
struct visit {
    enum layer_kind kind;
    uint32_t layer, place, key;
};

/* Visits first .. first + period x times - 1, of which `run` periods are run. */
struct region {
    uint32_t first, period, times, run;
    ps_t jump_ps; /* of what is counted */
};

/* What became of a visit that was run. */
struct record {
    ps_t end_ps, ps, compute_ps, part_ps[NPARTS];
    double busy_ps[NNET_KINDS], bytes[NNET_KINDS], sent[NOP_LANES], flops, floor_s;
    uint32_t kernels;
    bool sync;            /* the host waits in it */
    ps_t slack_ps;        /* the least time that an operator was issued before it started */
    uint32_t first, stop; /* its tasks */
    uint32_t issued;      /* the host's task before them, TASK_NONE: none */
};

struct kept {
    struct chunk_pass pass;
    struct visit *visits; /* of the forward, then of the backward of a pair */
    uint32_t nforward, nvisits;
    uint32_t base, span;
    enum pass kind; /* NPASSES: a pair */
    bool far;       /* the host has issued all up to where it waits */
    double factor;
};

struct chunks {
    const struct job *job;
    const struct constants *c;
    struct fluids *fluids;
    struct full *full; /* or NULL */
    ps_t issue_ps;
    struct tasks *tasks;
    struct ops ops;
    struct visit *visits;
    struct record *records;
    struct region *regions;
    uint32_t *task_of; /* by operator */
    struct kept **kept;
    size_t visits_cap, records_cap, regions_cap, task_cap, nkept, kept_cap;
    uint32_t nregions;
};

static void forget(struct chunks *chunks)
{
    for (size_t i = 0; i < chunks->nkept; i++) {
        free(chunks->kept[i]->pass.layer_ps);
        free(chunks->kept[i]->visits);
        free(chunks->kept[i]);
    }
    chunks->nkept = 0;
}

struct chunks *chunks_new(void)
{
    struct chunks *chunks = mem_calloc(1, sizeof *chunks);
    chunks->tasks = tasks_new();
    return chunks;
}

void chunks_free(struct chunks *chunks)
{
    if (!chunks) return;
    forget(chunks);
    tasks_free(chunks->tasks);
    ops_release(&chunks->ops);
    free(chunks->visits);
    free(chunks->records);
    free(chunks->regions);
    free(chunks->task_of);
    free(chunks->kept);
    free(chunks);
}

void chunks_job(struct chunks *chunks, const struct job *job, const struct constants *c,
                struct fluids *fluids)
{
    forget(chunks);
    chunks->job = job;
    chunks->c = c;
    chunks->fluids = fluids;
    chunks->full = NULL;
    chunks->issue_ps = (ps_t)llround(ops_issue_s(job, c) * 1e12);
}

void chunks_full(struct chunks *chunks, struct full *full)
{
    chunks->full = full;
}

/* ---- operators as tasks ---- */

static double sent_share(enum coll_id coll, double n)
{
    if (coll == COLL_SENDRECV) return 1;
    return (coll == COLL_ALLREDUCE ? 2 : 1) * (n - 1) / n;
}

void chunks_fabric(struct fluid *fluid, double eff)
{
    double net = fmax((double)fluid->busy[NET_NIC], (double)fluid->busy[NET_FABRIC]);
    double stretch = fmax(1, net / eff);
    fluid->wire_ps = (ps_t)llround((double)fluid->wire_ps * stretch);
    for (int k = 0; k < NNET_KINDS; k++) {
        double slow = k == NET_NIC || k == NET_FABRIC ? eff : 1;
        fluid->busy[k] = (float)fmin(1, (double)fluid->busy[k] / slow / stretch);
    }
}

void chunks_job_task(struct task *task, struct task_use *use, const struct fluid *fluid,
                     const struct constants *c)
{
    const double sm[NFLUID_MOVERS] = {
        [FLUID_NETWORK] = c->sm_network, [FLUID_NVLINK] = c->sm_nvlink};
    task->kind = TASK_JOB;
    task->sm = (float)sm[fluid->mover];
    task->sm_hit = 0;
    task->fixed_ps = fluid->front_ps;
    task->work_ps = fluid->fixed_ps - fluid->front_ps + fluid->wire_ps;
    task->link_hit = 0;
    if (task->work_ps > 0) task->link_hit = (float)((double)fluid->wire_ps / (double)task->work_ps);
    for (int k = 0; k < NNET_KINDS; k++) {
        use->busy[k] = fluid->busy[k] * task->link_hit;
    }
}

/* A collective's job, or its piece of one, as training runs it. */
static int op_job(struct chunks *chunks, const struct op *op, struct fluid *fluid, struct err *err)
{
    if (fluids_get(chunks->fluids, &op->call, fluid, err)) return -1;
    chunks_fabric(fluid, chunks->c->fabric_eff[chunks->job->fabric]);
    fluid->wire_ps /= op->pieces;
    fluid->fixed_ps /= op->pieces;
    fluid->front_ps /= op->pieces;
    for (int k = 0; k < NNET_KINDS; k++) {
        fluid->bytes[k] /= op->pieces;
    }
    return 0;
}

/* Where operators go, and what the next one finds there. */
struct adder {
    struct chunks *chunks;
    struct tasks *tasks;
    const struct chunk_lanes *lanes;
    double factor;
    ps_t issue_ps; /* of a kernel; 0: the host is far ahead */
    uint32_t start, label;
    uint32_t issued;          /* the host's last task; TASK_NONE: it has done nothing */
    uint32_t last[NOP_LANES]; /* tasks of this pass; TASK_NONE: none */
};

static struct adder adder_of(struct chunks *chunks, struct tasks *tasks,
                             const struct chunk_lanes *lanes, double factor, uint32_t start)
{
    struct adder a = {.chunks = chunks,
                      .tasks = tasks,
                      .lanes = lanes,
                      .factor = factor,
                      .issue_ps = chunks->issue_ps,
                      .start = start,
                      .issued = TASK_NONE};
    for (int i = 0; i < NOP_LANES; i++) {
        a.last[i] = TASK_NONE;
    }
    return a;
}

/* The host issues so many kernels behind what it has issued. */
static void issue(struct adder *a, ps_t span_ps, uint32_t label)
{
    uint32_t host = tasks_add(a->tasks, &(struct task){.lane = a->lanes->host,
                                                       .rank = a->lanes->rank,
                                                       .kind = TASK_HOST,
                                                       .part = PART_LAUNCH,
                                                       .use = TASK_NONE,
                                                       .fixed_ps = span_ps,
                                                       .label = label});
    if (a->issued == TASK_NONE && a->start != TASK_NONE) tasks_after(a->tasks, host, a->start);
    a->issued = host;
}

/* A collective's task; what it does to the network is added to the record. */
static int job_task(struct adder *a, const struct op *op, struct task *task, struct record *record,
                    struct err *err)
{
    struct fluid fluid;
    struct task_use use;
    if (op_job(a->chunks, op, &fluid, err)) return -1;
    chunks_job_task(task, &use, &fluid, a->chunks->c);
    task->use = tasks_use(a->tasks, &use);
    for (int k = 0; k < NNET_KINDS; k++) {
        record->busy_ps[k] += (double)fluid.busy[k] * (double)fluid.wire_ps;
        record->bytes[k] += fluid.bytes[k];
    }
    record->sent[op->lane] += op->bytes * sent_share(op->call.coll, op->call.n);
    struct full_call whole = {.call = op->call, .stage = task->rank, .to = TASK_NONE};
    if (a->chunks->full) task->outside = full_number(a->chunks->full, &whole);
    return 0;
}

/* Operator i of the list: it waits for those it names, and for the host to have issued all that
 * stands before it. */
static int add_op(struct adder *a, const struct ops *ops, uint32_t i, struct record *record,
                  struct err *err)
{
    struct chunks *chunks = a->chunks;
    const struct op *op = &ops->list[i];
    struct task task = {.lane = a->lanes->lane[op->lane],
                        .rank = a->lanes->rank,
                        .kind = TASK_COMPUTE,
                        .part = op->part,
                        .sm_hit = 1,
                        .use = TASK_NONE,
                        .label = a->label + i};
    if (op->call.n > 1) {
        if (job_task(a, op, &task, record, err)) return -1;
    } else {
        task.work_ps = (ps_t)llround(op->seconds * a->factor * 1e12);
        record->flops += op->flops;
        if (op->peak > 0) record->floor_s += op->flops / op->peak;
    }
    uint32_t t = tasks_add(a->tasks, &task);
    bool waits = false;
    for (int k = 0; k < 2; k++) {
        int32_t before = op->after[k];
        if (before < 0) continue;
        waits = true;
        tasks_after(a->tasks, t, chunks->task_of[before]);
    }
    if (!waits && a->start != TASK_NONE) tasks_after(a->tasks, t, a->start);
    if (a->issued != TASK_NONE) tasks_after(a->tasks, t, a->issued);
    if (a->issue_ps > 0 && op->kernels > 0) {
        issue(a, op->kernels * a->issue_ps, task.label);
        record->kernels += op->kernels;
    }
    if (chunks->issue_ps > 0 && op->sync) { /* from here on the host is one kernel ahead */
        a->issue_ps = chunks->issue_ps;
        issue(a, a->issue_ps, task.label);
        tasks_after(a->tasks, a->issued, t);
        record->sync = true;
    }
    chunks->task_of[i] = a->last[op->lane] = t;
    return 0;
}

static void reserve(struct chunks *chunks, uint32_t nops)
{
    if (nops <= chunks->task_cap) return;
    chunks->task_cap = 2 * (size_t)nops;
    chunks->task_of = mem_realloc(chunks->task_of, chunks->task_cap, sizeof *chunks->task_of);
}

int chunks_add(struct chunks *chunks, struct tasks *tasks, const struct chunk_lanes *lanes,
               const struct ops *ops, double factor, uint32_t start, uint32_t label, uint32_t *end,
               struct err *err)
{
    struct adder a = adder_of(chunks, tasks, lanes, factor, start);
    struct record record = {0};
    a.label = label;
    reserve(chunks, ops->count);
    for (uint32_t i = 0; i < ops->count; i++) {
        if (add_op(&a, ops, i, &record, err)) return -1;
    }
    *end = tasks_add(tasks, &(struct task){.lane = TASK_NONE,
                                           .rank = lanes->rank,
                                           .kind = TASK_JOIN,
                                           .use = TASK_NONE,
                                           .label = label});
    if (start != TASK_NONE) tasks_after(tasks, *end, start);
    if (a.issued != TASK_NONE) tasks_after(tasks, *end, a.issued);
    for (int i = 0; i < NOP_LANES; i++) {
        if (a.last[i] != TASK_NONE) tasks_after(tasks, *end, a.last[i]);
    }
    return 0;
}

/* An empty graph of one rank with its lanes. */
static struct chunk_lanes fresh_lanes(struct tasks *tasks)
{
    tasks_clear(tasks);
    struct chunk_lanes lanes = {.rank = tasks_rank(tasks)};
    lanes.lane[OP_COMPUTE] = tasks->compute_lane[lanes.rank];
    for (int i = OP_COMPUTE + 1; i < NOP_LANES; i++) {
        lanes.lane[i] = tasks_lane(tasks);
    }
    lanes.host = tasks_lane(tasks);
    return lanes;
}

/* ---- visits and their periods ---- */

static void add_visit(struct chunks *chunks, uint32_t *n, enum layer_kind kind, uint32_t layer,
                      uint32_t place)
{
    MEM_GROW(chunks->visits, *n, chunks->visits_cap);
    uint32_t key = ops_key(chunks->job, kind, layer, place);
    chunks->visits[(*n)++] = (struct visit){kind, layer, place, key};
}

/* Appends the visits of a shape in the order of the pass to the `n` that are there; their new
 * number. */
static uint32_t list_visits(struct chunks *chunks, uint32_t n, const struct chunk_shape *shape,
                            bool forward)
{
    const struct shape *s = &chunks->job->shape;
    uint32_t dense = s->experts ? s->dense_layers : UINT32_MAX;
    if (forward ? shape->embedding : shape->head)
        add_visit(chunks, &n, forward ? LAYER_EMBEDDING : LAYER_HEAD, 0, 0);
    for (uint32_t i = 0; i < shape->layers; i++) {
        uint32_t place = forward ? i : shape->layers - 1 - i, layer = shape->first + place;
        add_visit(chunks, &n, layer < dense ? LAYER_DENSE : LAYER_MOE, layer, place);
    }
    if (forward ? shape->head : shape->embedding)
        add_visit(chunks, &n, forward ? LAYER_HEAD : LAYER_EMBEDDING, 0, 0);
    return n;
}

/* How far visits from `first` on repeat with a period. */
static uint32_t repeats(const struct visit *v, uint32_t first, uint32_t n, uint32_t period)
{
    uint32_t i = first + period;
    while (i < n && v[i].key == v[i - period].key) {
        i++;
    }
    return (i - first) / period;
}

/* Cuts the visits into regions: at each place the period that covers most, at least three times. */
static void find_regions(struct chunks *chunks, uint32_t n)
{
    chunks->nregions = 0;
    for (uint32_t first = 0; first < n;) {
        struct region best = {.first = first, .period = 1, .times = 1};
        for (uint32_t period = 1; period <= PERIOD_MOST && period <= (n - first) / 3; period++) {
            uint32_t times = repeats(chunks->visits, first, n, period);
            if (times >= 3 && times * period > best.times * best.period) {
                best.period = period;
                best.times = times;
            }
        }
        best.run = best.times < 2 ? best.times : 2;
        MEM_GROW(chunks->regions, chunks->nregions, chunks->regions_cap);
        chunks->regions[chunks->nregions++] = best;
        first += best.period * best.times;
    }
}

/* ---- a pass ---- */

/* Adds a visit's operators; fills the record's sums. */
static int add_visit_tasks(struct adder *a, const struct kept *kept, const struct visit *visit,
                           struct record *record, struct err *err)
{
    struct chunks *chunks = a->chunks;
    struct ops *ops = &chunks->ops;
    uint32_t first = ops->count;
    record->first = a->tasks->ntasks;
    record->issued = a->issued;
    ops_layer(ops, chunks->job, chunks->c, visit->kind, kept->kind, visit->layer, visit->place);
    ops_place(ops, first, kept->base, kept->span);
    reserve(chunks, ops->count);
    for (uint32_t i = first; i < ops->count; i++) {
        if (add_op(a, ops, i, record, err)) return -1;
    }
    record->stop = a->tasks->ntasks;
    return 0;
}

/* One task in place of periods that are not run; the host spends `host_ps` on theirs. */
static void add_jump(struct adder *a, const struct region *region, ps_t host_ps)
{
    struct chunks *chunks = a->chunks;
    if (chunks->ops.count == 0) return;
    uint32_t last = chunks->task_of[chunks->ops.last];
    uint32_t jump = tasks_add(a->tasks, &(struct task){.lane = a->lanes->lane[OP_COMPUTE],
                                                       .rank = a->lanes->rank,
                                                       .kind = TASK_COMPUTE,
                                                       .use = TASK_NONE,
                                                       .fixed_ps = region->jump_ps});
    tasks_after(a->tasks, jump, last);
    chunks->task_of[chunks->ops.last] = jump;
    if (host_ps > 0) issue(a, host_ps, 0);
}

/* Runs the regions as they stand; records[] by visit that is run, in order. */
static int run_regions(struct chunks *chunks, const struct kept *kept, struct err *err)
{
    struct chunk_lanes lanes = fresh_lanes(chunks->tasks);
    struct adder a = adder_of(chunks, chunks->tasks, &lanes, kept->factor, TASK_NONE);
    uint32_t n = 0;
    if (kept->far) a.issue_ps = 0;
    chunks->ops.count = 0;
    for (uint32_t r = 0; r < chunks->nregions; r++) {
        const struct region *region = &chunks->regions[r];
        uint64_t kernels = 0;
        bool sync = false;
        for (uint32_t i = 0; i < region->period * region->run; i++, n++) {
            MEM_GROW(chunks->records, n, chunks->records_cap);
            struct record *record = &chunks->records[n];
            *record = (struct record){0};
            const struct visit *visit = &chunks->visits[region->first + i];
            if (add_visit_tasks(&a, kept, visit, record, err)) return -1;
            if (i >= region->period * (region->run - 1)) kernels += record->kernels;
            sync = sync || record->sync;
        }
        ps_t host_ps = kernels * chunks->issue_ps * (region->times - region->run);
        if (region->run < region->times) add_jump(&a, region, sync ? region->jump_ps : host_ps);
    }
    return tasks_run(chunks->tasks, err);
}

static const struct tasks_charge charging = {.parts = NPARTS, .bubble = PART_BUBBLE};

/* A visit's tasks: how long the compute lane runs them, how far ahead the host is, and when the
 * last has ended, the host aside; 0: there are none. */
static ps_t read_tasks(const struct tasks *tasks, struct record *record)
{
    ps_t end_ps = 0;
    uint32_t host = record->issued;
    record->compute_ps = 0;
    record->slack_ps = PS_NEVER;
    for (uint32_t t = record->first; t < record->stop; t++) {
        const struct task_span *span = &tasks->spans[t];
        if (tasks->list[t].kind == TASK_HOST) {
            host = t;
            continue;
        }
        ps_t ahead_ps = host == TASK_NONE ? PS_NEVER : span->start_ps - tasks->spans[host].end_ps;
        if (ahead_ps < record->slack_ps) record->slack_ps = ahead_ps;
        if (span->end_ps > end_ps) end_ps = span->end_ps;
        if (tasks->list[t].kind == TASK_COMPUTE)
            record->compute_ps += span->end_ps - span->start_ps;
    }
    return end_ps;
}

/* Whether the last two periods that were run took the same, and the times that the last one will
 * come again: for ever if the host keeps up or waits in each, or until what it is ahead is used up.
 */
static uint64_t repeats_for(const struct chunks *chunks, const struct region *region, uint32_t n,
                            ps_t *period_ps)
{
    ps_t slack_ps = PS_NEVER, issue_ps = 0;
    bool sync = false;
    *period_ps = 0;
    for (uint32_t i = n - region->period; i < n; i++) {
        const struct record *record = &chunks->records[i];
        if (record->ps != chunks->records[i - region->period].ps) return 0;
        *period_ps += record->ps;
        sync = sync || record->sync;
        issue_ps += record->kernels * chunks->issue_ps;
        if (record->slack_ps < slack_ps) slack_ps = record->slack_ps;
    }
    return sync || *period_ps >= issue_ps ? UINT64_MAX : slack_ps / (issue_ps - *period_ps);
}

/* Cuts a region behind `times` periods. */
static void cut_region(struct chunks *chunks, uint32_t r, uint32_t times)
{
    MEM_GROW(chunks->regions, chunks->nregions, chunks->regions_cap);
    struct region *region = &chunks->regions[r];
    memmove(region + 2, region + 1, (chunks->nregions - r - 1) * sizeof *region);
    chunks->nregions++;
    region[1] = *region;
    region[1].first += times * region->period;
    region[1].times -= times;
    region[1].run = region[1].times < 2 ? region[1].times : 2;
    region[1].jump_ps = 0;
    region->times = times;
}

/* Times of the records: each from where the one before ended, behind a jump from its end. Whether
 * all regions have come to repeat themselves, and what is counted stood in the graph; if not, it is
 * to be run again. */
static bool read_records(struct chunks *chunks)
{
    ps_t at_ps = 0;
    uint32_t n = 0;
    for (uint32_t r = 0; r < chunks->nregions; r++) {
        struct region *region = &chunks->regions[r];
        for (uint32_t i = 0; i < region->period * region->run; i++, n++) {
            struct record *record = &chunks->records[n];
            ps_t end_ps = read_tasks(chunks->tasks, record);
            record->end_ps = end_ps > at_ps ? end_ps : at_ps;
            tasks_charge(chunks->tasks, 0, at_ps, record->end_ps, &charging, record->part_ps);
            record->ps = record->end_ps - at_ps;
            at_ps = record->end_ps;
        }
        if (region->run == region->times) continue;
        ps_t period_ps;
        uint64_t more = repeats_for(chunks, region, n, &period_ps);
        if (more == 0) {
            uint64_t twice = 2 * (uint64_t)region->run;
            region->run = twice < region->times ? (uint32_t)twice : region->times;
            return false;
        }
        if (more < region->times - region->run) {
            cut_region(chunks, r, region->run + (uint32_t)more);
            return false;
        }
        /* a host that is never late need not be ahead */
        ps_t jump_ps = chunks->issue_ps ? ps_times(period_ps, region->times - region->run) : 0;
        if (jump_ps != region->jump_ps) {
            region->jump_ps = jump_ps;
            return false;
        }
        at_ps = ps_sum(at_ps, jump_ps);
    }
    return true;
}

static void add_record(struct record *sum, const struct record *one)
{
    sum->ps = ps_sum(sum->ps, one->ps);
    sum->compute_ps += one->compute_ps;
    sum->flops += one->flops;
    sum->floor_s += one->floor_s;
    for (int i = 0; i < NPARTS; i++) {
        sum->part_ps[i] += one->part_ps[i];
    }
    for (int k = 0; k < NNET_KINDS; k++) {
        sum->busy_ps[k] += one->busy_ps[k];
        sum->bytes[k] += one->bytes[k];
    }
    for (int i = 0; i < NOP_LANES; i++) {
        sum->sent[i] += one->sent[i];
    }
}

/* The figures of a pass from the sums over its visits. */
static void fill_pass(struct chunk_pass *pass, const struct record *sum)
{
    double total = sum->ps > 0 ? (double)sum->ps : 1;
    pass->total_ps = sum->ps;
    memcpy(pass->part_ps, sum->part_ps, sizeof pass->part_ps);
    ps_t exposed_ps = sum->part_ps[PART_TP] + sum->part_ps[PART_CP] + sum->part_ps[PART_EP];
    pass->compute_share = (double)sum->compute_ps / total;
    pass->link_share = (double)exposed_ps / total;
    for (int k = 0; k < NNET_KINDS; k++) {
        pass->busy[k] = (float)(sum->busy_ps[k] / total);
        pass->bytes[k] = sum->bytes[k];
    }
    memcpy(pass->sent, sum->sent, sizeof pass->sent);
    pass->flops = sum->flops;
    pass->floor_s = sum->floor_s;
}

/* What happens behind the last visit's end goes to it: weights' gradients, a host that is late. */
static void add_tail(const struct chunks *chunks, struct record *sum, ps_t from_ps,
                     struct chunk_pass *pass)
{
    ps_t end_ps = tasks_end(chunks->tasks);
    if (end_ps <= from_ps || pass->nlayers == 0) return;
    struct record tail = {.ps = end_ps - from_ps};
    tasks_charge(chunks->tasks, 0, from_ps, end_ps, &charging, tail.part_ps);
    pass->layer_ps[pass->nlayers - 1] += tail.ps;
    add_record(sum, &tail);
}

/* When the host has issued all; 0: it issues nothing. */
static ps_t host_end(const struct tasks *tasks)
{
    for (uint32_t t = tasks->ntasks; t-- > 0;) {
        if (tasks->list[t].kind == TASK_HOST) return tasks->spans[t].end_ps;
    }
    return 0;
}

static int run_pass(struct chunks *chunks, struct kept *kept, struct err *err)
{
    struct chunk_pass *pass = &kept->pass;
    struct record sum = {0};
    find_regions(chunks, kept->nvisits);
    do {
        if (run_regions(chunks, kept, err)) return -1;
    } while (!read_records(chunks));
    uint32_t at = 0, first = 0;
    ps_t end_ps = 0;
    pass->nlayers = kept->nvisits;
    pass->layer_ps = mem_calloc(kept->nvisits, sizeof *pass->layer_ps);
    for (uint32_t r = 0; r < chunks->nregions; r++) {
        const struct region *region = &chunks->regions[r];
        for (uint32_t i = 0; i < region->period * region->times; i++) {
            uint32_t times = i / region->period, run = region->run - 1;
            uint32_t which = (times < run ? times : run) * region->period + i % region->period;
            const struct record *record = &chunks->records[first + which];
            pass->layer_ps[at++] = record->ps;
            add_record(&sum, record);
        }
        first += region->period * region->run;
        end_ps = first ? chunks->records[first - 1].end_ps + region->jump_ps : 0;
    }
    add_tail(chunks, &sum, end_ps, pass);
    fill_pass(pass, &sum);
    pass->host_ps = host_end(chunks->tasks);
    return 0;
}

/* ---- what is kept ---- */

static bool same_visits(const struct visit *a, const struct visit *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].key != b[i].key) return false;
    }
    return true;
}

static int run_pair(struct chunks *chunks, struct kept *kept, struct err *err);

static bool same_pass(const struct kept *a, const struct kept *b)
{
    return a->kind == b->kind && a->factor == b->factor && a->base == b->base &&
           a->span == b->span && a->far == b->far && a->nforward == b->nforward &&
           a->nvisits == b->nvisits && same_visits(a->visits, b->visits, a->nvisits);
}

/* The pass like `want`, its visits borrowed; run if it has not been. */
static const struct chunk_pass *find_pass(struct chunks *chunks, const struct kept *want,
                                          struct err *err)
{
    for (size_t i = 0; i < chunks->nkept; i++) {
        if (same_pass(chunks->kept[i], want)) return &chunks->kept[i]->pass;
    }
    struct kept *kept = mem_calloc(1, sizeof *kept);
    *kept = *want;
    kept->visits = mem_calloc(want->nvisits, sizeof *kept->visits);
    for (uint32_t i = 0; i < want->nvisits; i++) {
        kept->visits[i] = want->visits[i];
    }
    if (kept->kind == NPASSES ? run_pair(chunks, kept, err) : run_pass(chunks, kept, err)) {
        free(kept->pass.layer_ps);
        free(kept->visits);
        free(kept);
        return NULL;
    }
    MEM_GROW(chunks->kept, chunks->nkept, chunks->kept_cap);
    chunks->kept[chunks->nkept++] = kept;
    return &kept->pass;
}

const struct chunk_pass *chunks_pass(struct chunks *chunks, const struct chunk_shape *shape,
                                     enum pass pass, double factor, struct err *err)
{
    struct kept want = {.nvisits = list_visits(chunks, 0, shape, pass == PASS_F),
                        .base = shape->base,
                        .span = shape->span,
                        .kind = pass,
                        .factor = factor};
    want.visits = chunks->visits;
    return find_pass(chunks, &want, err);
}

int chunks_part(struct chunks *chunks, const struct chunk_shape *shape, enum pass pass,
                double factor, uint32_t from, uint32_t to, struct chunk_part *part, struct err *err)
{
    list_visits(chunks, 0, shape, pass == PASS_F);
    struct kept want = {.nvisits = to - from,
                        .base = shape->base,
                        .span = shape->span,
                        .kind = pass,
                        .factor = factor};
    memmove(chunks->visits, chunks->visits + from, (to - from) * sizeof *chunks->visits);
    want.visits = chunks->visits;
    part->near = find_pass(chunks, &want, err);
    want.far = true;
    part->far = part->near ? find_pass(chunks, &want, err) : NULL;
    return part->far ? 0 : -1;
}

/* ---- two passes side by side ---- */

/* Seconds of an operator alone. */
static int op_alone(struct chunks *chunks, const struct kept *kept, const struct op *op,
                    double *seconds, struct err *err)
{
    struct fluid fluid;
    *seconds = op->seconds * kept->factor;
    if (op->call.n < 2) return 0;
    if (op_job(chunks, op, &fluid, err)) return -1;
    *seconds = (double)(fluid.fixed_ps + fluid.wire_ps) * 1e-12;
    return 0;
}

static double ready_at(const struct op *op, const double *end_s, const double *lane_s)
{
    double at = lane_s[op->lane];
    for (int k = 0; k < 2; k++) {
        if (op->after[k] >= 0) at = fmax(at, end_s[op->after[k]]);
    }
    return at;
}

/* The order in which operators of two lists that lie one behind the other (the second from `half`
 * on) start: each time the one that can start first; of two that can, the one whose list is less
 * far, so that both go on together and each has work while the other waits. */
static int weave(struct chunks *chunks, const struct kept *kept, uint32_t half, uint32_t *order,
                 struct err *err)
{
    const struct ops *ops = &chunks->ops;
    double *end_s = mem_calloc(ops->count, sizeof *end_s), lane_s[NOP_LANES] = {0};
    uint32_t next[2] = {0, half}, stop[2] = {half, ops->count};
    double all_s[2] = {0, 0}, done_s[2] = {0, 0};
    int rc = 0;
    for (uint32_t i = 0; i < ops->count; i++) {
        all_s[i >= half] += ops->list[i].seconds;
    }
    for (uint32_t n = 0; n < ops->count && rc == 0; n++) {
        double at[2] = {INFINITY, INFINITY}, seconds = 0;
        for (int s = 0; s < 2; s++) {
            if (next[s] < stop[s]) at[s] = ready_at(&ops->list[next[s]], end_s, lane_s);
        }
        bool behind = done_s[1] * all_s[0] <= done_s[0] * all_s[1];
        int s = at[1] < at[0] || (at[1] == at[0] && behind);
        uint32_t op = next[s]++;
        rc = op_alone(chunks, kept, &ops->list[op], &seconds, err);
        lane_s[ops->list[op].lane] = end_s[op] = at[s] + seconds;
        done_s[s] += ops->list[op].seconds;
        order[n] = op;
    }
    free(end_s);
    return rc;
}

/* Appends the operators of visits as a chain of their own; ends[i]: how many there are with visit
 * i's. */
static void append_chain(struct chunks *chunks, const struct job *job, const struct visit *visits,
                         uint32_t n, enum pass pass, uint32_t *ends)
{
    struct ops *all = &chunks->ops, chain = {0};
    uint32_t shift = all->count;
    for (uint32_t i = 0; i < n; i++) {
        ops_layer(&chain, job, chunks->c, visits[i].kind, pass, visits[i].layer, visits[i].place);
        if (ends) ends[i] = shift + chain.count;
    }
    for (uint32_t i = 0; i < chain.count; i++) {
        MEM_GROW(all->list, all->count, all->cap);
        struct op *op = &all->list[all->count++];
        *op = chain.list[i];
        for (int k = 0; k < 2; k++) {
            if (op->after[k] >= 0) op->after[k] += (int32_t)shift;
        }
    }
    ops_release(&chain);
}

/* Runs the operators in the order given (NULL: of the list), on a graph of their own. */
static int run_order(struct chunks *chunks, const struct kept *kept, const uint32_t *order,
                     struct record *record, struct err *err)
{
    struct chunk_lanes lanes = fresh_lanes(chunks->tasks);
    struct adder a = adder_of(chunks, chunks->tasks, &lanes, kept->factor, TASK_NONE);
    reserve(chunks, chunks->ops.count);
    for (uint32_t i = 0; i < chunks->ops.count; i++) {
        if (add_op(&a, &chunks->ops, order ? order[i] : i, record, err)) return -1;
    }
    if (tasks_run(chunks->tasks, err)) return -1;
    record->stop = chunks->tasks->ntasks;
    record->ps = tasks_end(chunks->tasks);
    read_tasks(chunks->tasks, record);
    tasks_charge(chunks->tasks, 0, 0, record->ps, &charging, record->part_ps);
    return 0;
}

/* Ends of the visits of a pair's backward; the last one's is the pair's. */
static void fill_layers(struct chunks *chunks, struct chunk_pass *pass, uint32_t from,
                        const uint32_t *ends)
{
    ps_t at_ps = 0;
    for (uint32_t i = 0; i < pass->nlayers; i++) {
        ps_t end_ps = i + 1 == pass->nlayers ? pass->total_ps : at_ps;
        for (uint32_t op = i ? ends[i - 1] : from; op < ends[i]; op++) {
            ps_t one_ps = chunks->tasks->spans[chunks->task_of[op]].end_ps;
            if (one_ps > end_ps) end_ps = one_ps;
        }
        pass->layer_ps[i] = end_ps - at_ps;
        at_ps = end_ps;
    }
}

/* Two passes woven into one; collectives are whole, for it is the other pass that hides them. */
static int run_pair(struct chunks *chunks, struct kept *kept, struct err *err)
{
    struct job whole = *chunks->job;
    whole.ep_overlap = whole.tp_overlap = false;
    struct chunk_pass *pass = &kept->pass;
    uint32_t nback = kept->nvisits - kept->nforward;
    uint32_t *ends = mem_calloc(nback, sizeof *ends);
    chunks->ops.count = 0;
    append_chain(chunks, &whole, kept->visits, kept->nforward, PASS_F, NULL);
    uint32_t half = chunks->ops.count;
    append_chain(chunks, &whole, kept->visits + kept->nforward, nback, PASS_BW, ends);
    ops_place(&chunks->ops, 0, kept->base, kept->span);
    uint32_t *order = mem_calloc(chunks->ops.count, sizeof *order);
    struct record sum = {0};
    int rc = weave(chunks, kept, half, order, err);
    if (!rc) rc = run_order(chunks, kept, order, &sum, err);
    if (!rc) {
        fill_pass(pass, &sum);
        pass->nlayers = nback;
        pass->layer_ps = mem_calloc(nback, sizeof *pass->layer_ps);
        fill_layers(chunks, pass, half, ends);
    }
    free(order);
    free(ends);
    return rc;
}

/* One behind the other: the sum of the two in the place of a pair that takes longer. */
static void in_turn(struct chunk_pass *pair, const struct chunk_pass *f, const struct chunk_pass *b)
{
    double total = (double)(f->total_ps + b->total_ps);
    for (int i = 0; i < NPARTS; i++) {
        pair->part_ps[i] = f->part_ps[i] + b->part_ps[i];
    }
    pair->total_ps = f->total_ps + b->total_ps;
    double wf = (double)f->total_ps / total, wb = (double)b->total_ps / total;
    pair->compute_share = wf * f->compute_share + wb * b->compute_share;
    pair->link_share = wf * f->link_share + wb * b->link_share;
    for (int k = 0; k < NNET_KINDS; k++) {
        pair->busy[k] = (float)(wf * (double)f->busy[k] + wb * (double)b->busy[k]);
    }
    if (b->nlayers > 0) memcpy(pair->layer_ps, b->layer_ps, b->nlayers * sizeof *b->layer_ps);
    if (b->nlayers > 0) pair->layer_ps[0] += f->total_ps;
}

const struct chunk_pass *chunks_pair(struct chunks *chunks, const struct chunk_shape *forward,
                                     const struct chunk_shape *backward, double factor,
                                     struct err *err)
{
    const struct chunk_pass *f = chunks_pass(chunks, forward, PASS_F, factor, err);
    const struct chunk_pass *b = f ? chunks_pass(chunks, backward, PASS_BW, factor, err) : NULL;
    if (!b) return NULL;
    uint32_t nforward = list_visits(chunks, 0, forward, true);
    struct kept want = {.nforward = nforward,
                        .nvisits = list_visits(chunks, nforward, backward, false),
                        .base = backward->base,
                        .span = backward->span,
                        .kind = NPASSES,
                        .factor = factor};
    want.visits = chunks->visits;
    size_t before = chunks->nkept;
    const struct chunk_pass *pair = find_pass(chunks, &want, err);
    if (pair && chunks->nkept > before && pair->total_ps > f->total_ps + b->total_ps)
        in_turn(&chunks->kept[before]->pass, f, b);
    return pair;
}

int chunks_detail(struct chunks *chunks, const struct chunk_shape *shape, enum pass pass,
                  double factor, struct ops *ops, struct task_span **spans, struct err *err)
{
    uint32_t n = list_visits(chunks, 0, shape, pass == PASS_F);
    struct record record = {0};
    chunks->ops.count = 0;
    append_chain(chunks, chunks->job, chunks->visits, n, pass, NULL);
    ops_place(&chunks->ops, 0, shape->base, shape->span);
    struct kept kept = {.factor = factor};
    if (run_order(chunks, &kept, NULL, &record, err)) return -1;
    *ops = chunks->ops;
    chunks->ops = (struct ops){0};
    *spans = mem_calloc(ops->count, sizeof **spans);
    for (uint32_t i = 0; i < ops->count; i++) {
        (*spans)[i] = chunks->tasks->spans[chunks->task_of[i]];
    }
    return 0;
}
