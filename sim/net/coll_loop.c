/* SPDX-License-Identifier: Apache-2.0
 * Sizes x algorithms: see coll_loop.h. */
#include "net/coll_loop.h"

#include <stdlib.h>
#include <string.h>

struct ready_list coll_schedules(const struct coll_request *request, struct out *notes)
{
    static const enum wire_mode modes[] = {
        [CHOICE_STAGED] = WIRE_STAGED, [CHOICE_PULL] = WIRE_PULL};
    return (struct ready_list){
        .coll = request->coll,
        .args = {.nranks = (uint32_t)request->nranks,
                 .root = request->coll->rooted ? (uint32_t)request->root : 0,
                 .nnodes = request->nnodes,
                 .nodes = request->nodes},
        .mode = modes[request->wire],
        .drawn = request->drawn,
        .verify_ranks = VERIFY_RANKS,
        .notes = notes,
    };
}

struct traffic *coll_size_args(const struct coll_request *request, const struct linked *linked,
                               size_t count, struct net_args *args)
{
    uint64_t n = request->nranks;
    struct traffic *traffic =
        request->shares ? traffic_deal((uint32_t)n, request->shares, count * n * n) : NULL;
    args->slots = args->slots < linked->least_depth ? linked->least_depth : args->slots;
    args->esize = dtype_bytes(request->dtype);
    args->traffic = traffic;
    args->block_bytes = (traffic ? traffic_longest(traffic) : count) * args->esize;
    return traffic;
}

int coll_each_size(const struct coll_request *request,
                   int (*each)(size_t count, void *context, struct err *err), void *context,
                   struct err *err)
{
    size_t esize = dtype_bytes(request->dtype);
    uint64_t size = request->sweep.min;
    do {
        int bad = each(coll_block_count(request->coll, (uint32_t)request->nranks, size, esize),
                       context, err);
        if (bad) return bad;
    } while (sweep_next(&request->sweep, esize, &size));
    return 0;
}

struct loop {
    const struct coll_request *request;
    int (*each)(const struct algo_choice *choice, size_t count, void *context, struct err *err);
    void *context;
};

/* How the ranks reach each other, for what `auto` chooses. */
static enum algo_reach reach_of(const struct coll_request *request)
{
    if (request->form == FORM_COLLBENCH && request->nnodes > 1)
        return request->nnodes == request->nranks ? ALGO_NETWORK : ALGO_HOSTS;
    return request->wire == CHOICE_PULL ? ALGO_SHARED : ALGO_PRIVATE;
}

static int each_algo(const struct loop *loop, const char *name, size_t count, struct err *err)
{
    const struct coll_request *request = loop->request;
    bool every = strcmp(name, "all") == 0, automatic = strcmp(name, "auto") == 0;
    uint32_t nranks = (uint32_t)request->nranks;
    size_t size = coll_size(request->coll, nranks, count, dtype_bytes(request->dtype));
    struct algo_choice found = algo_auto(request->coll->id, nranks, size, reach_of(request));
    size_t nrows;
    const struct algo *table = algo_table(&nrows);
    for (size_t i = 0; i < nrows; i++) {
        const struct algo *algo = &table[i];
        if (algo->coll != request->coll->id || (every && !algo_runs_on_ranks(algo)) ||
            !(every || (automatic ? algo == found.algo : strcmp(algo->name, name) == 0)))
            continue;
        struct algo_choice choice = {algo, automatic ? found.channels : algo->channels,
                                     automatic ? found.parts : 1};
        choice.channels = request->channels ? (uint32_t)request->channels : choice.channels;
        choice.parts = request->parts ? (uint32_t)request->parts : choice.parts;
        int bad = loop->each(&choice, count, loop->context, err);
        if (bad) return bad;
    }
    return 0;
}

static int each_count(size_t count, void *context, struct err *err)
{
    const struct loop *loop = context;
    const struct coll_request *request = loop->request;
    if (request->drawn)
        return loop->each(&(struct algo_choice){algo_drawn(), 1, 1}, count, loop->context, err);
    for (size_t i = 0; i < request->algos.count; i++) {
        int bad = each_algo(loop, request->algos.items[i], count, err);
        if (bad) return bad;
    }
    return 0;
}

int coll_each(const struct coll_request *request,
              int (*each)(const struct algo_choice *choice, size_t count, void *context,
                          struct err *err),
              void *context, struct err *err)
{
    struct loop loop = {request, each, context};
    return coll_each_size(request, each_count, &loop, err);
}
