/* SPDX-License-Identifier: Apache-2.0
 * NCCL as an opponent: calls and graphs of them, in our buffers and in memory from ncclMemAlloc,
 * registered or as a symmetric window. Calls stand in the stream of the rank's device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/opponent.h"
#include "exec/device.h"

/* A way is form % FORMS in the memory way / FORMS (enum nccl_memory). */
enum { CALL, GRAPH, FORMS };

struct state {
    struct bench *bench;
    struct device *device;
    struct nccl_library *library;
    struct nccl *nccl;
    char *name; /* "NCCL 2.28.9" */
    int major;
    struct nccl_buffer buffers[NCCL_MEMORIES];
    uint8_t *memory[NCCL_MEMORIES]; /* .. and where they start, ours too; NULL: none */
    struct nccl_call calls[NCCL_MEMORIES * FORMS]; /* of the placement at hand, by way */
    size_t result;
};

static void release_calls(struct state *state)
{
    for (int way = 0; way < NCCL_MEMORIES * FORMS; way++)
        nccl_call_release(&state->calls[way]);
}

static void close_nccl(void *ctx)
{
    struct state *state = ctx;
    if (!state) return;
    release_calls(state);
    for (int kind = 0; state->nccl && kind < NCCL_MEMORIES; kind++)
        nccl_buffer_release(state->nccl, &state->buffers[kind]);
    nccl_close(state->nccl);
    nccl_library_free(state->library);
    free(state->name);
    free(state);
}

/* Gives all ranks the bytes of rank 0. */
static void share(void *ctx, void *bytes, size_t count)
{
    struct rank *rk = ctx;
    for (size_t done = 0; done < count; done += sizeof(uint64_t)) {
        uint64_t word = 0;
        size_t n = count - done < sizeof word ? count - done : sizeof word;
        memcpy(&word, (char *)bytes + done, n);
        word = board_agree(rk, word);
        memcpy((char *)bytes + done, &word, n);
    }
}

/* Private: as ours. */
static int allocate(struct state *state)
{
    const struct bench *bench = state->bench;
    state->memory[NCCL_PLAIN] = bench->memory;
    for (int kind = NCCL_PLAIN + 1; bench->plan->shared && kind < NCCL_MEMORIES; kind++) {
        if (nccl_buffer_new(state->nccl, (enum nccl_memory)kind, bench->memory_bytes,
                            &state->buffers[kind], bench->err)) {
            return err_add(
                bench->err, ERR_FAILED,
                "NCCL wants %zu B more per GPU for buffers of its own; --buffers private "
                "compares in ours alone",
                (NCCL_MEMORIES - 1) * bench->memory_bytes);
        }
        state->memory[kind] = state->buffers[kind].base;
    }
    return 0;
}

/* One group of ranks: every rank of the world is a rank of the communicator. */
static int connect(struct state *state)
{
    struct bench *bench = state->bench;
    struct rank *rk = bench->rk;
    struct gpu_info info;
    int devices = 0;
    const struct gpu *gpu = state->device->gpu;
    int number = state->device->number;
    if (gpu_check(gpu, gpu->count(&devices), bench->err, "counting GPUs") ||
        gpu_check(gpu, gpu->info(number, &info), bench->err, "asking GPU %d", number)) {
        return -1;
    }
    state->major = info.major;
    struct nccl_spec spec = {
        .library = state->library,
        .gpu = gpu,
        .device = number,
        .rank = rk->rank,
        .nranks = rk->nranks,
        .several = rk->nranks > (uint32_t)devices,
        .hostid_trick = bench->plan->nccl_hostid,
        .share = share,
        .ctx = rk,
    };
    state->nccl = nccl_open(&spec, bench->err);
    return state->nccl ? 0 : -1;
}

static void *open_nccl(struct bench *bench)
{
    rank_says(bench->rk, "opening NCCL");
    struct state *state = mem_calloc(1, sizeof *state);
    *state = (struct state){
        .bench = bench, .device = bench->rk->device, .library = nccl_load(bench->err)};
    if (state->library) state->name = nccl_short_text(state->library);
    if (state->library && connect(state) == 0 && allocate(state) == 0) return state;
    close_nccl(state);
    return NULL;
}

static const char *says_nccl(const void *ctx)
{
    (void)ctx;
    return NULL;
}

/* Graphs are captured at their first start: the plain call before has opened the connections. */
static void start_nccl(void *ctx, unsigned way)
{
    struct state *state = ctx;
    struct rank *rk = state->bench->rk;
    struct nccl_call *call = &state->calls[way];
    struct err err = ERR_INIT;
    bool capture = way % FORMS == GRAPH && !call->graph;
    if ((capture && nccl_call_capture(call, state->device->stream, &err)) ||
        nccl_call_start(call, state->device->stream, &err)) {
        rank_fail(rk, &err);
    }
}

static void finish_nccl(void *ctx)
{
    struct state *state = ctx;
    struct rank *rk = state->bench->rk;
    struct err err = ERR_INIT;
    bool done = false, told = false;
    for (struct waiter waiter = {0};;) {
        if (nccl_done(state->nccl, state->device->stream, &done, &err)) rank_fail(rk, &err);
        if (done) break;
        waiter_pause(&waiter, rk);
        if (told || !waiter_is_slow(&waiter)) continue;
        rank_waits(rk, 0, WAIT_LIBRARY, -1, 0);
        told = true;
    }
    if (told) rank_goes_on(rk);
    rank_tick(rk);
}

/* Each way once, so that connections are open and graphs captured before a stream is held. */
static void prime(struct state *state)
{
    for (unsigned way = 0; way < NCCL_MEMORIES * FORMS; way++) {
        if (!state->calls[way].nccl) continue;
        start_nccl(state, way);
        finish_nccl(state);
    }
}

static const char *meet_nccl(void *ctx, const struct side *side)
{
    struct state *state = ctx;
    const struct plan *plan = side->bench->plan;
    release_calls(state);
    state->result = side->check.places.out;
    for (int way = 0; way < NCCL_MEMORIES * FORMS; way++) {
        uint8_t *base = state->memory[way / FORMS];
        struct nccl_args args = {
            .coll = plan->coll,
            .dtype = side->row->dtype,
            .op = side->row->op,
            .in_place = side->in_place,
            .nranks = plan->nranks,
            .block_count = side->row->block_count,
            .traffic = side->traffic,
            .root = plan->root,
            .in = base + side->check.places.in,
            .out = base + side->check.places.out,
        };
        const char *why = nccl_lacks(nccl_version(state->library), state->major, &args);
        if (why) return why;
        if (base) nccl_call_make(state->nccl, &args, &state->calls[way]);
    }
    prime(state);
    return NULL;
}

static bool has_nccl(const void *ctx, unsigned way)
{
    const struct state *state = ctx;
    return state->memory[way / FORMS] != NULL;
}

static uint8_t *memory_nccl(const void *ctx, unsigned way)
{
    const struct state *state = ctx;
    return state->memory[way / FORMS];
}

static size_t result_nccl(const void *ctx)
{
    const struct state *state = ctx;
    return state->result;
}

static void describe_nccl(const void *ctx, unsigned way, struct result *result)
{
    const struct state *state = ctx;
    enum nccl_memory kind = (enum nccl_memory)(way / FORMS);
    snprintf(result->series, sizeof result->series, "nccl/%s%s", nccl_memory_name(kind),
             way % FORMS == GRAPH ? "+graph" : "");
    snprintf(result->transport, sizeof result->transport, "%s", state->name);
    if (kind != NCCL_PLAIN) snprintf(result->buffers, sizeof result->buffers, "NCCL's");
}

const struct opponent opponent_nccl = {
    .name = "nccl",
    .nways = NCCL_MEMORIES * FORMS,
    .open = open_nccl,
    .close = close_nccl,
    .says = says_nccl,
    .meet = meet_nccl,
    .has = has_nccl,
    .memory = memory_nccl,
    .result = result_nccl,
    .start = start_nccl,
    .finish = finish_nccl,
    .describe = describe_nccl,
};
