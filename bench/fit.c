/* SPDX-License-Identifier: Apache-2.0
 * Ranks and memory of a run: see fit.h. */
#include "bench/fit.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "bench/board.h"
#include "bench/repeat.h"
#include "bench/trace.h"
#include "bench/wiring.h"
#include "exec/device.h"
#include "exec/launch.h"
#include "exec/transport.h"
#include "kernels/gpu.h"

enum { RANKS_LEAST = 2, RANKS_MOST = 8 };
enum { MPI_BYTES = 64 << 20 };    /* of the library itself, per rank */
enum { EXTENT_SLACK = 16 << 20 }; /* address space alone, beside twice what is counted */

void fitted_release(struct fitted *fitted)
{
    ready_release(&fitted->ready);
    free(fitted->plan);
    *fitted = (struct fitted){0};
}

/* Builds the schedules that the sizes of one type and algorithm need and adds up to *most. As sizes
 * grow a schedule that was left does not come back, so the last size of each can be looked for by
 * halves; it needs the most. */
static int need_of_sizes(const struct plan *plan, uint32_t dtype_at, uint32_t algo_at,
                         struct ready_set *set, struct ready_bytes *most, struct err *err)
{
    uint64_t sizes = plan_sizes(plan, dtype_at);
    for (uint64_t first = 0, last; first < sizes; first = last + 1) {
        size_t number = 0;
        uint64_t behind = sizes;
        last = first;
        for (uint64_t k = first; k < behind; k = last + 1 + (behind - last - 1) / 2) {
            struct plan_row row;
            plan_at(plan, dtype_at, algo_at, k, &row);
            const struct ready *ready = ready_get(set, plan, &row, err);
            if (!ready) return -1;
            size_t at = (size_t)(ready - set->items);
            if (k > first && at != number) {
                behind = k;
                continue;
            }
            number = at;
            last = k;
            struct ready_bytes bytes = ready_bytes(ready, plan, &row);
            if (bytes.all > most->all) most->all = bytes.all;
            if (bytes.shared > most->shared) most->shared = bytes.shared;
            if (bytes.handle > most->handle) most->handle = bytes.handle;
        }
    }
    return 0;
}

/* What the steps of the one row that is traced need. */
static int add_trace(const struct plan *plan, struct ready_set *set, struct world_spec *spec,
                     struct err *err)
{
    struct plan_row row;
    plan_first(plan, &row);
    const struct ready *ready = ready_get(set, plan, &row, err);
    if (!ready) return -1;
    spec->resident_bytes += ready_steps(ready, plan, &row) * TRACE_STEP_BYTES;
    return 0;
}

/* What libraries may need: the transport's to join, and MPI's own buffers and what it allocates for
 * a call. */
static size_t libraries_bytes(const struct plan *plan, const struct net_spec *net)
{
    size_t bytes = transport_rank_bytes(transport_table()[plan->transport], net);
    return plan->contest == CONTEST_MPI ? bytes + 2 * plan_touched(plan, 0) + MPI_BYTES : bytes;
}

/* What the rank with the longest buffers needs beyond rank 0. */
static size_t uneven_bytes(const struct plan *plan)
{
    size_t first = plan_touched(plan, 0), most = first;
    for (uint32_t r = 1; coll_get(plan->coll)->uneven && r < plan->nranks; r++) {
        size_t bytes = plan_touched(plan, r);
        most = bytes > most ? bytes : most;
    }
    return most - first;
}

/* What the plan needs, in *spec. At first by its buffers alone, since schedules for very many ranks
 * are large themselves; then, if those fit in `limit`, by everything. */
static int plan_need(const struct plan *plan, struct ready_set *set, size_t limit,
                     struct world_spec *spec, size_t *device_bytes, struct err *err)
{
    *spec = (struct world_spec){.nranks = plan_world(plan),
                                .net = transport_net(transport_table()[plan->transport]),
                                .nhosts = plan->nhosts,
                                .host_ranks = plan_host_ranks(plan),
                                .blob_bytes = board_blob_bytes(plan)};
    snprintf(spec->net.iface, sizeof spec->net.iface, "%s", plan->iface);
    snprintf(spec->net.provider, sizeof spec->net.provider, "%s", plan->provider);
    spec->net.connections = plan->connections;
    size_t libraries = libraries_bytes(plan, &spec->net);
    spec->resident_bytes = plan->device ? 0 : plan_touched(plan, 0) + libraries;
    if (world_need(spec) > limit) return 0;
    struct ready_bytes most = {0, 0, 0};
    for (uint32_t dtype_at = 0; dtype_at < plan->ndtypes; dtype_at++) {
        for (uint32_t algo_at = 0; algo_at < plan->nalgos; algo_at++) {
            if (need_of_sizes(plan, dtype_at, algo_at, set, &most, err)) return -1;
        }
    }
    spec->resident_bytes = most.all + libraries;
    if (plan->device) { /* of the host's memory only directories, and slots where they lie there */
        size_t more = DEVICE_SLACK + uneven_bytes(plan);
        *device_bytes = most.all < SIZE_MAX - more ? most.all + more : SIZE_MAX;
        bool staged = plan->apart || !transport_table()[plan->transport]->device;
        size_t handle = staged ? most.handle : 0;
        spec->resident_bytes = DEVICE_HOST_BYTES + handle;
        spec->extent_bytes = handle < SIZE_MAX / 4 ? 2 * handle + EXTENT_SLACK : SIZE_MAX / 2;
        return 0;
    }
    if (plan->mode == MODE_REPEAT) spec->resident_bytes += repeat_bytes(plan);
    if (plan->mode == MODE_TRACE && add_trace(plan, set, spec, err)) return -1;
    spec->extent_bytes = most.shared < SIZE_MAX / 4 ? 2 * most.shared + EXTENT_SLACK : SIZE_MAX / 2;
    return 0;
}

/* The largest size below the plan's that needs no more than `limit`, in whole MiB if it is that
 * large; *fits false: not even 0. */
static int largest_size(const struct plan *plan, struct ready_set *set, size_t limit,
                        uint64_t *largest, bool *fits, struct err *err)
{
    struct plan *trial = mem_calloc(1, plan->bytes);
    memcpy(trial, plan, plan->bytes);
    uint64_t low = 0, high = plan->sweep.max; /* high does not fit */
    *fits = false;
    int bad = 0;
    for (uint64_t size = 0; !bad && (!*fits || low + 1 < high); size = low + (high - low) / 2) {
        struct world_spec spec;
        trial->sweep = (struct sweep){.min = size, .max = size};
        bad = plan_need(trial, set, limit, &spec, &trial->device_bytes, err);
        bool fit_now = world_need(&spec) <= limit;
        if (size == 0 && !fit_now) break;
        *fits = true;
        if (fit_now) {
            low = size;
        } else {
            high = size;
        }
    }
    free(trial);
    const uint64_t mib = UINT64_C(1) << 20;
    *largest = low >= mib ? low / mib * mib : low;
    return bad;
}

static int refuse(const struct fitted *fitted, size_t limit, struct ready_set *set, struct err *err)
{
    const struct plan *plan = fitted->plan;
    char need[UNITS_TEXT], have[UNITS_TEXT], size[UNITS_TEXT], best[UNITS_TEXT];
    uint64_t largest;
    bool fits;
    if (largest_size(plan, set, limit, &largest, &fits, err)) return -1;
    err_add(err, ERR_USAGE,
            "%s of %s with %u ranks needs %s of memory, but only %s %s, with "
            "or without the data check; %s%s",
            coll_get(plan->coll)->name, units_size(size, plan->sweep.max), plan_world(plan),
            units_size_near(need, world_need(&fitted->spec)), units_size_near(have, limit),
            fitted->asked ? "are available" : "(half of what is available) may be used",
            fits ? "the largest size that fits is " : "no size fits: use fewer ranks or samples",
            fits ? units_size(best, largest) : "");
    return -1;
}

/* Ranks on GPUs: one on each. */
static bool wants_devices(const struct request *request)
{
    struct err none = ERR_INIT;
    struct wiring wiring =
        wiring_of(request->transport, request->wire, request->buffers, request->memory, &none);
    err_release(&none);
    return wiring.device;
}

int fit(const struct request *request, const struct opts *opts, const struct coll *coll,
        struct fitted *fitted, struct err *err)
{
    uint32_t cores = launch_cores();
    *fitted =
        (struct fitted){.asked = opts_is_set(opts, "ranks") || request->groups || request->nodes ||
                                 request->schedule || request->hosts || request->copies,
                        .available = memory_available()};
    fitted->wanted = cores < RANKS_LEAST ? RANKS_LEAST : cores > RANKS_MOST ? RANKS_MOST : cores;
    int devices = 0;
    const char *why;
    if (wants_devices(request) && gpu_devices(&devices, &why)) fitted->wanted = (uint32_t)devices;
    if (fitted->asked) fitted->wanted = (uint32_t)request->nranks;
    size_t limit = fitted->asked ? fitted->available : fitted->available / 2;
    for (uint32_t nranks = fitted->wanted;; nranks--) {
        ready_release(&fitted->ready);
        free(fitted->plan);
        fitted->plan = request_plan(request, opts, coll, nranks, err);
        if (!fitted->plan) return -1;
        if (plan_need(fitted->plan, &fitted->ready, limit, &fitted->spec,
                      &fitted->plan->device_bytes, err)) {
            return -1;
        }
        if (world_need(&fitted->spec) <= limit) return 0;
        if (fitted->asked || nranks <= RANKS_LEAST) break;
    }
    return refuse(fitted, limit, &fitted->ready, err);
}
