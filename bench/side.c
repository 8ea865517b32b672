/* SPDX-License-Identifier: Apache-2.0
 * Buffers, handles and the data check of a rank: see side.h. */
#include "bench/side.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "bench/wiring.h"
#include "exec/device.h"
#include "exec/launch.h"

/* ---- the rank ---- */

/* A slot that peers on this host can map, in the same place of every rank's extent. */
static int allocate_slot(struct bench *bench)
{
    struct rank *rk = bench->rk;
    bench->slot = rank_alloc(rk, SLOTS_TOUCHED, bench->err);
    uint8_t *own = world_extent(rk->world, rk->rank, bench->err);
    uint32_t host = world_own_host(rk->world), first = world_first(rk->world, host);
    uint32_t neighbour = first + (rk->rank + 1 - first) % world_host_ranks(rk->world, host);
    uint8_t *next = world_extent(rk->world, neighbour, bench->err);
    if (!bench->slot || !own || !next) return -1;
    rank_barrier(rk); /* it is there on all ranks */
    bench->next_slot = next + (bench->slot - own);
    return rank_prefault(rk, next + (bench->slot - own), SLOTS_TOUCHED, bench->err);
}

/* The same on the rank's GPU. */
static int allocate_on_device(struct bench *bench)
{
    struct rank *rk = bench->rk;
    const struct gpu *gpu;
    uint32_t here = world_host_ranks(rk->world, world_own_host(rk->world));
    if (device_fit(here, bench->plan->oversubscribe, &gpu, bench->err) ||
        device_open(rk, bench->plan->device_bytes, bench->err)) {
        return -1;
    }
    void *memory = NULL;
    if (bench->plan->shared) {
        memory = device_alloc(rk, bench->memory_bytes, bench->err);
    } else if (gpu_check(gpu, gpu->alloc(&memory, bench->memory_bytes), bench->err,
                         "%zu B on device %d", bench->memory_bytes, rk->device->number)) {
        memory = NULL;
    }
    bench->memory = memory;
    return memory ? 0 : -1;
}

static void free_on_device(struct bench *bench)
{
    const struct gpu *gpu = bench->rk->device->gpu;
    if (bench->memory && !bench->plan->shared) gpu->free(bench->memory);
    device_close(bench->rk);
}

/* Memory for input and output of the largest row, filled in so that no page is missing later. */
static int allocate(struct bench *bench)
{
    const struct plan *plan = bench->plan;
    bench->memory_bytes = plan_touched(plan, bench->me);
    if (bench->memory_bytes == 0) bench->memory_bytes = 1; /* addresses for empty buffers */
    if (plan->device) return allocate_on_device(bench);
    if (plan->shared) {
        bench->memory = rank_alloc(bench->rk, bench->memory_bytes, bench->err);
        return bench->memory ? 0 : -1;
    }
    void *map =
        mmap(NULL, bench->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return err_add(bench->err, ERR_USAGE, "cannot map %zu B of private memory",
                       bench->memory_bytes);
    }
    bench->memory = map;
    if (rank_prefault(bench->rk, map, bench->memory_bytes, bench->err)) return -1;
    return allocate_slot(bench);
}

int bench_open(struct bench *bench, struct rank *rk, struct err *err)
{
    const struct plan *plan = board_plan(rk->world);
    *bench = (struct bench){
        .rk = rk,
        .err = err,
        .plan = plan,
        .transport = transport_table()[plan->transport],
        .kernels = kernels_get(err),
        .me = rk->rank % plan->nranks,
        .group = mem_calloc(plan->nranks, sizeof(uint32_t)),
    };
    for (uint32_t r = 0; r < plan->nranks; r++)
        bench->group[r] = rk->rank - bench->me + r;
    rank_says(rk, "%s, starting", coll_get(plan->coll)->name);
    if (rk->fault) launch_fault(rk);
    if (plan->rounds == 0 && launch_refuse_spoil(rk, "data are not checked (--check 0)", err))
        return -1;
    if (coll_get(plan->coll)->empty && launch_refuse_spoil(rk, "a barrier has no data", err))
        return -1;
    if (!bench->kernels || check_plant(rk, &bench->planted, err)) return -1;
    return allocate(bench) || site_open(&bench->site, rk, err) ? -1 : 0;
}

void bench_close(struct bench *bench)
{
    ready_release(&bench->ready);
    free(bench->group);
    site_close(&bench->site);
    if (bench->rk->device) {
        free_on_device(bench);
        return;
    }
    if (!bench->plan->shared && bench->memory) munmap(bench->memory, bench->memory_bytes);
}

/* ---- one placement of a row ---- */

void side_says(const struct side *side, const char *phase)
{
    rank_says(side->bench->rk, "%s %s, %zu B, %s, %s", coll_get(side->bench->plan->coll)->name,
              plan_algo_name(side->bench->plan, side->row), side->row->bytes,
              side->in_place ? "in place" : "out of place", phase);
}

int side_open(struct side *side, struct bench *bench, const struct plan_row *row, bool in_place,
              bool trace)
{
    const struct plan *plan = bench->plan;
    *side = (struct side){.bench = bench, .row = row, .in_place = in_place};
    side_says(side, "opening");
    side->ready = ready_get(&bench->ready, plan, row, bench->err);
    if (!side->ready) return -1;
    side->linked = side->ready->linked[in_place ? IN_PLACE : OUT_OF_PLACE];
    side->traffic = plan_traffic(plan, row);
    side->check = (struct check){
        .rk = bench->rk,
        .me = bench->me,
        .plan = plan,
        .row = row,
        .in_place = in_place,
        .memory = bench->memory,
        .places = plan_places(plan, row, bench->me, in_place),
        .traffic = side->traffic,
        .site = &bench->site,
    };
    side->rounds = check_rounds(plan, row, side->ready->sched->nparts);
    side->mark = rank_mark(bench->rk);
    side->device_mark = device_mark(bench->rk);
    struct exec_spec spec = {
        .linked = side->linked,
        .rank = bench->rk,
        .group = bench->group,
        .me = bench->me,
        .tag = ++bench->handles,
        .transport = bench->transport,
        .in = bench->memory + side->check.places.in,
        .out = bench->memory + side->check.places.out,
        .shared = plan->shared,
        .dtype = row->dtype,
        .op = row->op,
        .block_count = row->block_count,
        .traffic = side->traffic,
        .slice_bytes = plan->slice_bytes,
        .depth = plan->depth,
        .graph = plan->graph,
        .keep_trace = trace,
    };
    side->exec = exec_open(&spec, bench->err);
    return side->exec ? 0 : -1;
}

/* Nobody leaves before all are done with his memory, and nobody reuses it before all have left. */
void side_close(struct side *side)
{
    struct rank *rk = side->bench->rk;
    rank_barrier(rk);
    exec_close(side->exec);
    rank_barrier(rk);
    rank_rewind(rk, side->mark);
    device_rewind(rk, side->device_mark);
    free(side->traffic);
}

void side_operate(void *ctx)
{
    struct side *side = ctx;
    struct rank *rk = side->bench->rk;
    if (rk->fault) launch_fault(rk);
    exec_run(side->exec);
}

void side_queue(void *ctx)
{
    struct side *side = ctx;
    struct rank *rk = side->bench->rk;
    if (rk->fault) launch_fault(rk);
    exec_start(side->exec);
}

void side_wait(void *ctx)
{
    exec_wait(((struct side *)ctx)->exec);
}

struct runner side_runner(struct side *side)
{
    bool queues = exec_queues(side->exec);
    return (struct runner){side_operate, side, queues ? side_queue : NULL,
                           queues ? side_wait : NULL};
}

uint64_t side_check(const struct side *side, const struct runner *runner, uint64_t from,
                    uint64_t to, struct wrong *first)
{
    struct rank *rk = side->bench->rk;
    size_t esize = dtype_bytes(side->row->dtype);
    side_says(side, "checking");
    if (from == 0) board_place(rk->world, rk->rank)->wrong = 0;
    for (uint64_t round = from; round < to; round++) {
        uint64_t salt = side->row->index * 1000003 + round;
        check_fill(&side->check, salt);
        rank_barrier(rk);
        bool absent =
            side->bench->planted != UINT64_MAX && coll_get(side->bench->plan->coll)->empty;
        board_place(rk->world, rk->rank)->entered += !absent;
        if (rk->fault) exec_spoil(side->exec);
        runner->run(runner->ctx);
        if (rk->fault) exec_spoiled(side->exec);
        if (side->bench->planted < side->row->out_bytes / esize) {
            uint8_t *out = side->check.memory + side->check.places.out;
            site_flip(&side->bench->site, out + side->bench->planted * esize);
        }
        check_result(&side->check, salt);
    }
    board_show(rk);
    rank_barrier(rk);
    uint64_t wrong = 0;
    for (uint32_t r = rk->nranks; r-- > 0;) {
        const struct board_place *place = board_place(rk->world, r);
        wrong += place->wrong;
        if (place->wrong) *first = (struct wrong){r, place->in_input, place->bad};
    }
    rank_barrier(rk);
    return wrong;
}

struct result side_describe(const struct side *side)
{
    const struct plan *plan = side->bench->plan;
    const struct plan_row *row = side->row;
    const struct coll *coll = coll_get(plan->coll);
    struct result result = {
        .source = SOURCE_MEASURED,
        .coll = coll->id,
        .root = coll->rooted ? (int)plan->root : -1,
        .nranks = plan->nranks,
        .in_place = side->in_place,
        .bytes = row->bytes,
        .count = row->block_count,
        .time_us = NAN,
        .min_us = NAN,
        .p50_us = NAN,
        .p95_us = NAN,
        .p99_us = NAN,
        .max_us = NAN,
        .batch = plan->batch,
        .wrong = -1,
        .busbw_factor = plan_shares(plan) ? traffic_busbw(plan->nranks, plan_shares(plan)) : 0,
        .steps = exec_steps(side->exec),
        .passes = exec_passes(side->exec),
        .channels = row->choice.channels,
        .parts = row->choice.parts,
    };
    result.algbw_GBps = result.busbw_GBps = NAN;
    snprintf(result.algo, sizeof result.algo, "%s", plan_algo_name(plan, row));
    snprintf(result.transport, sizeof result.transport, "%s/%s", side->bench->transport->name,
             wire_mode_name(side->linked->opts.mode));
    snprintf(result.buffers, sizeof result.buffers, "%s",
             wiring_buffers(plan->transport, plan->shared, plan->device));
    snprintf(result.dtype, sizeof result.dtype, "%s", dtype_name(row->dtype));
    snprintf(result.redop, sizeof result.redop, "%s", coll->reduces ? redop_name(row->op) : "none");
    return result;
}
