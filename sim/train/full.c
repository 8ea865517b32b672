/* SPDX-License-Identifier: Apache-2.0
 * Calls of a step on the network engine: see full.h. The groups of a call are cut into blocks:
 * those inside single domains are one job of the engine, those of each row of hosts that a group
 * spans another, since rings leave a host where their own members are. What a block needs
 * (schedule, routes, costs) is made once per call; the engine's jobs are kept and run again. */
#include "train/full.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/flow.h"
#include "train/pipeline.h"

/* Schedules and routes of all sizes of a call of groups that lie so. */
struct block_flow {
    enum coll_id coll;
    struct flow_lay lay;
    struct lib_args args; /* the step's, and whether it is `direct` */
    struct coll_request request;
    struct site site;
    struct flow *flow;
};

/* A block of groups of one call: what the engine runs of it at once. */
struct block {
    struct flow_call *calls; /* 1 or 2: they refer to themselves */
    uint32_t ncalls;
    uint32_t *ranks; /* rank k of group b, at k x groups + b; all there are */
    uint32_t groups, n;
};

/* One collective, or of a hierarchical exchange one half. */
struct part {
    struct fluid_call call;
    struct block *blocks;    /* made when it is first run */
    uint32_t nblocks, njobs; /* njobs: the engine's, calls of all blocks */
    bool made, timed;        /* timed: nothing stands for it, it takes alone_ps */
    ps_t front_ps;           /* before its messages begin */
    ps_t alone_ps;
};

/* A program that runs, or has run. */
struct run {
    uint32_t program, task;
    uint32_t part, left; /* the last part that began; jobs that have not ended */
    uint32_t *jobs[2];   /* of each part; NULL: not made yet */
    uint32_t next;       /* of the program's idle ones */
};

/* What a full_call stands for. */
struct program {
    struct full_call call;
    struct part parts[2];
    uint32_t nparts; /* 0: not cut yet */
    uint32_t idle;   /* runs; NONE */
};

#define NONE UINT32_MAX

struct full {
    const struct job *job;
    struct fluids *fluids;
    struct fluids_of of;
    struct network *network;
    double rates[NNET_KINDS]; /* parts of links' */
    struct net *net;
    struct queue queue; /* of runs: a part that is timed is over */
    struct block_flow **flows;
    struct program *programs;
    struct run *runs;
    uint32_t *run_of; /* by job of the engine */
    uint32_t *ended;  /* tasks */
    size_t nflows, flows_cap, programs_cap, runs_cap, run_of_cap, ended_cap;
    uint32_t nprograms, nruns, njobs, nended;
    struct tasks_outside outside;
};

/* ---- which ranks ---- */

static uint32_t stage_of(const struct full *full, uint32_t rank)
{
    return (uint32_t)(rank / job_pp_stride(full->job) % full->job->pp);
}

/* The members of the group that `rank` is the first of; false: it is not one of the call's. */
static bool group_of(const struct full *full, const struct full_call *of,
                     const struct fluid_call *call, uint32_t rank, uint32_t *members)
{
    if (stage_of(full, rank) != of->stage) return false;
    if (of->to != TASK_NONE) {
        int64_t far = ((int64_t)of->to - of->stage) * (int64_t)job_pp_stride(full->job);
        members[0] = rank;
        members[1] = (uint32_t)(rank + far);
        return true;
    }
    if (rank / call->stride % call->n != 0) return false;
    if (rank + (uint64_t)(call->n - 1) * call->stride >= full->job->ngpus) return false;
    for (uint32_t k = 0; k < call->n; k++) {
        members[k] = rank + k * call->stride;
    }
    return true;
}

/* ---- blocks ---- */

static struct block_flow *get_flow(struct full *full, const struct fluid_call *call,
                                   const struct flow_lay *lay, struct err *err)
{
    enum coll_id coll = call->coll;
    bool alike, direct = call->direct && coll == COLL_ALLTOALL;
    for (size_t i = 0; i < full->nflows; i++) {
        struct block_flow *f = full->flows[i];
        if (f->coll == coll && f->args.direct == direct && memcmp(&f->lay, lay, sizeof *lay) == 0)
            return f;
    }
    struct block_flow *f = mem_calloc(1, sizeof *f);
    *f = (struct block_flow){.coll = coll,
                             .lay = *lay,
                             .args = *full->of.args,
                             .request = {.coll = coll_get(coll),
                                         .nranks = lay->n,
                                         .slots = 1,
                                         .dtype = DT_UINT8,
                                         .net = NET_FLOW,
                                         .channels = full->of.args->channels}};
    f->args.direct = direct;
    if (flow_site(full->of.topo, lay, &f->site, &alike, err)) {
        free(f);
        return NULL;
    }
    f->flow = flow_group(&f->request, full->of.topo, full->of.consts, &f->args, lay, &f->site);
    MEM_GROW(full->flows, full->nflows, full->flows_cap);
    full->flows[full->nflows++] = f;
    return f;
}

/* Gets a block ready that has its ranks: as groups from `base` on do it. */
static int make_block(struct full *full, const struct fluid_call *call, uint32_t base, bool message,
                      struct block *block, struct err *err)
{
    struct flow_lay lay = {call->n, call->stride, base, 0};
    struct block_flow *f = get_flow(full, call, &lay, err);
    struct way way;
    if (!f) return -1;
    if (lib_way(&f->site, full->of.consts, &f->args, call->coll, call->bytes, &way))
        return err_add(err, ERR_USAGE, "no way to run %s inside a training step",
                       coll_get(call->coll)->name);
    struct lib_choice choice = {.algo = way.algo,
                                .proto = way.proto,
                                .algo_name = nccl_algo_name(way.algo),
                                .proto_name = nccl_proto_name(way.proto)};
    size_t count = coll_block_count(coll_get(call->coll), call->n, call->bytes, 1);
    block->calls = mem_calloc(2, sizeof *block->calls);
    if (flow_pieces(f->flow, &choice, count, block->calls, &block->ncalls, err)) return -1;
    for (uint32_t i = 0; i < block->ncalls; i++) {
        struct flow_call *c = &block->calls[i]; /* levels deal the same ranks otherwise */
        c->args.groups = block->groups * block->n / c->ready->sched->nranks;
        if (message) {
            c->args.flood = true;
            c->args.slice_bytes = 0;
        }
    }
    return 0;
}

static void add_group(struct block *block, const uint32_t *members)
{
    uint32_t n = block->n, groups = block->groups++;
    uint32_t *ranks = mem_calloc((size_t)n * block->groups, sizeof *ranks);
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t b = 0; b < groups; b++) {
            ranks[k * block->groups + b] = block->ranks[k * groups + b];
        }
        ranks[k * block->groups + groups] = members[k];
    }
    free(block->ranks);
    block->ranks = ranks;
}

static struct block *block_at(struct part *part, uint32_t *bases, uint32_t base)
{
    for (uint32_t i = 0; i < part->nblocks; i++) {
        if (bases[i] == base) return &part->blocks[i];
    }
    part->blocks = mem_realloc(part->blocks, part->nblocks + 1, sizeof *part->blocks);
    bases[part->nblocks] = base;
    part->blocks[part->nblocks] = (struct block){.n = part->call.n};
    return &part->blocks[part->nblocks++];
}

/* Deals the groups of a part over blocks; those in single domains, which are all alike, are one. */
static int make_blocks(struct full *full, const struct full_call *of, struct part *part,
                       struct err *err)
{
    const struct fluid_call *call = &part->call;
    uint64_t domain = topo_domain(full->of.topo), block = (uint64_t)call->n * call->stride;
    uint32_t *members = mem_calloc(call->n, sizeof *members);
    uint32_t *bases = mem_calloc(full->job->ngpus, sizeof *bases), inside = NONE;
    int bad = 0;
    for (uint32_t r = 0; r < full->job->ngpus; r++) {
        if (!group_of(full, of, call, r, members)) continue;
        uint64_t base = of->to != TASK_NONE ? call->base : r / block * block;
        bool one = base / domain == (base + block - 1) / domain;
        if (one && inside == NONE) inside = (uint32_t)base;
        add_group(block_at(part, bases, one ? inside : (uint32_t)base), members);
    }
    for (uint32_t i = 0; i < part->nblocks && !bad; i++) {
        bad = make_block(full, call, bases[i], of->message, &part->blocks[i], err);
        part->njobs += part->blocks[i].ncalls;
    }
    free(members);
    free(bases);
    return bad;
}

static int make_part(struct full *full, const struct full_call *of, struct part *part,
                     struct err *err)
{
    struct fluid fluid = {0};
    if (part->made) return 0;
    part->made = true;
    if (part->call.n > 1 && fluids_get(full->fluids, &part->call, &fluid, err)) return -1;
    part->alone_ps = of->message ? fluid.wire_ps : fluid.fixed_ps + fluid.wire_ps;
    part->front_ps = of->message ? 0 : fluid.front_ps;
    part->timed = part->call.n < 2 || fluid.formula || part->alone_ps == 0;
    if (!part->timed && make_blocks(full, of, part, err)) return -1;
    part->timed |= part->nblocks == 0;
    return 0;
}

/* ---- programs ---- */

static bool same_call(const struct full_call *a, const struct full_call *b)
{
    return a->call.coll == b->call.coll && a->call.bytes == b->call.bytes &&
           a->call.n == b->call.n && a->call.stride == b->call.stride &&
           a->call.cross == b->call.cross && a->call.direct == b->call.direct &&
           a->stage == b->stage && a->to == b->to && a->message == b->message;
}

uint32_t full_number(struct full *full, const struct full_call *call)
{
    for (uint32_t i = 0; i < full->nprograms; i++) {
        if (same_call(&full->programs[i].call, call)) return i + 1;
    }
    MEM_GROW(full->programs, full->nprograms, full->programs_cap);
    full->programs[full->nprograms] = (struct program){.call = *call, .idle = NONE};
    return ++full->nprograms;
}

/* One part, or the two of a hierarchical exchange. */
static void cut_program(const struct full *full, struct program *program)
{
    struct fluid_call calls[2];
    program->nparts = fluids_parts(full->fluids, &program->call.call, calls);
    for (uint32_t i = 0; i < program->nparts; i++) {
        program->parts[i].call = calls[i];
    }
}

/* ---- runs ---- */

/* The engine's jobs of a part for one run of it. */
static int make_jobs(struct full *full, const struct part *part, uint32_t number, uint32_t **jobs,
                     struct err *err)
{
    uint32_t count = 0;
    *jobs = mem_calloc(part->njobs, sizeof **jobs);
    for (uint32_t i = 0; i < part->nblocks; i++) {
        const struct block *block = &part->blocks[i];
        for (uint32_t k = 0; k < block->ncalls; k++) {
            const struct flow_call *call = &block->calls[k];
            struct net_job job = {.linked = call->ready->linked[0],
                                  .args = &call->args,
                                  .ranks = block->ranks,
                                  .routes = call->network};
            if (net_add(full->net, &job, &(*jobs)[count++], err)) return -1;
            MEM_GROW(full->run_of, full->njobs, full->run_of_cap);
            full->run_of[full->njobs++] = number;
        }
    }
    return 0;
}

static int start_part(struct full *full, uint32_t number, ps_t now_ps, struct err *err)
{
    struct run *run = &full->runs[number];
    struct program *program = &full->programs[run->program];
    struct part *part = &program->parts[run->part];
    if (make_part(full, &program->call, part, err)) return -1;
    if (part->timed) {
        run->left++;
        queue_put(&full->queue, ps_sum(now_ps, part->alone_ps), 0, number);
        return 0;
    }
    uint32_t **jobs = &run->jobs[run->part];
    if (!*jobs && make_jobs(full, part, number, jobs, err)) return -1;
    run->left += part->njobs;
    for (uint32_t i = 0; i < part->njobs; i++) {
        if (net_start(full->net, (*jobs)[i], ps_sum(now_ps, part->front_ps), err)) return -1;
    }
    return 0;
}

/* A part begins; with a kernel that spreads while it receives, the others with it. */
static int start_parts(struct full *full, uint32_t number, ps_t now_ps, struct err *err)
{
    struct run *run = &full->runs[number];
    const struct program *program = &full->programs[run->program];
    int bad = start_part(full, number, now_ps, err);
    while (!bad && program->call.call.direct && run->part + 1 < program->nparts) {
        run->part++;
        bad = start_part(full, number, now_ps, err);
    }
    return bad;
}

/* A job of a run has ended. Behind the last of a part the next begins, or the task has ended. */
static int end_job(struct full *full, uint32_t number, ps_t now_ps, struct err *err)
{
    struct run *run = &full->runs[number];
    struct program *program = &full->programs[run->program];
    if (--run->left > 0) return 0;
    if (++run->part < program->nparts) return start_parts(full, number, now_ps, err);
    run->next = program->idle;
    program->idle = number;
    MEM_GROW(full->ended, full->nended, full->ended_cap);
    full->ended[full->nended++] = run->task;
    return 0;
}

/* ---- as the graph sees it ---- */

static int start(void *context, const struct task *task, uint32_t number, ps_t now_ps,
                 struct err *err)
{
    struct full *full = context;
    struct program *program = &full->programs[task->outside - 1];
    uint32_t which = program->idle;
    if (!full->net) full->net = net_open(full->network, full->rates);
    if (program->nparts == 0) cut_program(full, program);
    if (which == NONE) {
        MEM_GROW(full->runs, full->nruns, full->runs_cap);
        which = full->nruns++;
        full->runs[which] = (struct run){.program = task->outside - 1};
    } else {
        program->idle = full->runs[which].next;
    }
    full->runs[which].task = number;
    full->runs[which].part = full->runs[which].left = 0;
    return start_parts(full, which, now_ps, err);
}

static ps_t next_ps(const void *context)
{
    const struct full *full = context;
    ps_t own_ps = queue_time(&full->queue);
    ps_t net_ps = full->net ? net_next_ps(full->net) : PS_NEVER;
    return own_ps < net_ps ? own_ps : net_ps;
}

static int take(void *context, const uint32_t **ended, uint32_t *nended, struct err *err)
{
    struct full *full = context;
    ps_t now_ps = next_ps(full);
    struct event event;
    int bad = 0;
    full->nended = 0;
    if (queue_time(&full->queue) == now_ps) {
        queue_take(&full->queue, &event);
        bad = end_job(full, event.id, now_ps, err);
    } else {
        const uint32_t *jobs;
        uint32_t njobs;
        bad = net_step(full->net, &jobs, &njobs, err);
        for (uint32_t i = 0; !bad && i < njobs; i++) {
            bad = end_job(full, full->run_of[jobs[i]], now_ps, err);
        }
    }
    *ended = full->ended;
    *nended = full->nended;
    return bad;
}

const struct tasks_outside *full_outside(struct full *full)
{
    return &full->outside;
}

/* Forgets the session, and what refers to it. */
static int close_net(struct full *full, struct err *err)
{
    int bad = full->net ? net_close(full->net, err) : 0;
    full->net = NULL;
    for (uint32_t i = 0; i < full->nruns; i++) {
        free(full->runs[i].jobs[0]);
        free(full->runs[i].jobs[1]);
    }
    for (uint32_t i = 0; i < full->nprograms; i++) {
        full->programs[i].idle = NONE;
    }
    full->nruns = full->njobs = 0;
    return bad;
}

int full_end(struct full *full, struct err *err)
{
    return close_net(full, err);
}

/* ---- life ---- */

static int check(const struct job *job, const struct topo *topo, struct err *err)
{
    bool pairs = job->schedule == PIPELINE_DUALPIPE || job->schedule == PIPELINE_DUALPIPEV;
    int bad = 0;
    if (job->ngpus > FULL_MOST_GPUS)
        bad = err_add(
            err, ERR_USAGE,
            "--net full runs every message of a step, on %d GPUs at most; here are %" PRIu32,
            FULL_MOST_GPUS, job->ngpus);
    if (flow_is_mesh(topo))
        bad = err_add(err, ERR_USAGE,
                      "--net full: %s joins accelerators pair by pair, where rings are modelled on "
                      "other links than messages, which then would not meet",
                      topo->name ? topo->name : "the topology");
    if (job->pp > 1 && pairs)
        bad = err_add(err, ERR_USAGE,
                      "--net full: this schedule runs forward and backward side by side, whose "
                      "collectives are not run apart; nearest: 1f1b");
    return bad;
}

struct full *full_new(const struct job *job, struct fluids *fluids, double fabric_eff,
                      struct err *err)
{
    struct fluids_of of = fluids_of(fluids);
    struct net_rate rates[NNET_KINDS];
    if (check(job, of.topo, err)) return NULL;
    net_rates(of.consts, of.topo, rates);
    struct network *network = network_build(of.topo, rates, NET_OWN, NULL, err);
    if (!network) return NULL;
    struct full *full = mem_calloc(1, sizeof *full);
    full->job = job;
    full->fluids = fluids;
    full->of = of;
    full->network = network;
    for (int k = 0; k < NNET_KINDS; k++) {
        full->rates[k] = k == NET_NIC || k == NET_FABRIC ? fabric_eff : 1;
    }
    full->outside = (struct tasks_outside){full, start, next_ps, take};
    return full;
}

static void program_release(struct program *program)
{
    for (int i = 0; i < 2; i++) {
        struct part *part = &program->parts[i];
        for (uint32_t k = 0; k < part->nblocks; k++) {
            free(part->blocks[k].calls);
            free(part->blocks[k].ranks);
        }
        free(part->blocks);
    }
}

void full_free(struct full *full)
{
    if (!full) return;
    close_net(full, NULL);
    for (uint32_t i = 0; i < full->nprograms; i++) {
        program_release(&full->programs[i]);
    }
    for (size_t i = 0; i < full->nflows; i++) {
        flow_free(full->flows[i]->flow);
        free(full->flows[i]);
    }
    void *all[] = {full->flows, full->programs, full->runs, full->run_of, full->ended};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    queue_release(&full->queue);
    network_free(full->network);
    free(full);
}
