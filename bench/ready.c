/* SPDX-License-Identifier: Apache-2.0
 * Schedules made ready to run: see ready.h. */
#include "bench/ready.h"

#include <stdlib.h>

#include "base/mem.h"
#include "exec/exec.h"
#include "kernels/gpu.h"
#include "sched/layout.h"
#include "sched/msccl.h"
#include "sched/verify.h"

enum {
    LL_MOST = 256,             /* bytes of a chunk up to which auto takes LL wires, */
    STAGED_MOST = 2048,        /* and of a call up to which it stages what could be pulled, */
    ROOTED_MOST = 8192,        /* .. of one with a root; all measured on 2 cores: README */
    DEVICE_LL_MOST = 32 << 10, /* the first on GPUs: where NCCL leaves LL; not measured */
    GUESS_DEPTH = 8, /* messages of room per wire: at least what the executor takes by itself */
    WIRE_BYTES = 1024,
    PAGE = 4096,
};

void ready_release(struct ready_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        for (int place = 0; place < NPLACES; place++)
            linked_free(set->items[i].linked[place]);
        sched_free(set->items[i].sched);
    }
    free(set->items);
    *set = (struct ready_set){0};
}

/* The mode that a row asks for. */
static enum wire_mode wire_of(const struct plan *plan, const struct plan_row *row, uint32_t nparts)
{
    if (plan->wire >= 0) return (enum wire_mode)plan->wire;
    unsigned modes = transport_table()[plan->transport]->modes;
    if (row->longest_bytes / nparts <= (plan->device ? DEVICE_LL_MOST : LL_MOST) &&
        modes >> WIRE_LL & 1) {
        return WIRE_LL;
    }
    if (plan->device) {
        return plan->shared && !plan->apart && modes >> WIRE_PULL & 1 ? WIRE_PULL : WIRE_STAGED;
    }
    size_t staged = coll_get(plan->coll)->rooted ? ROOTED_MOST : STAGED_MOST;
    return plan->shared && modes >> WIRE_PULL & 1 && row->bytes > staged ? WIRE_PULL : WIRE_STAGED;
}

/* Links for one placement. With auto, a schedule that cannot be pulled is staged. */
static struct linked *link_place(const struct plan *plan, const struct sched *sched,
                                 enum wire_mode mode, bool in_place, struct err *err)
{
    struct link_opts opts = {.mode = mode, .in_place = in_place, .fuse = true};
    struct err unproven = ERR_INIT;
    struct linked *linked = link_sched(sched, &opts, &unproven);
    if (linked || mode != WIRE_PULL) {
        err_move(err, &unproven);
        return linked;
    }
    err_release(&unproven);
    if (plan->wire >= 0) {
        err_add(
            err, ERR_USAGE,
            "--wire pull: %s %s cannot be pulled %s, because ranks would wait for each other for "
            "ever; valid: --wire auto or staged%s",
            sched->coll->name, sched->name, in_place ? "in place" : "out of place",
            in_place ? ", or --out-of-place" : "");
        return NULL;
    }
    opts.mode = WIRE_STAGED;
    return link_sched(sched, &opts, err);
}

/* The schedule of a row. One from a file must still be the one that the plan was made for. */
static struct sched *make_sched(const struct plan *plan, const struct plan_row *row,
                                struct err *err)
{
    struct algo_args args = plan_algo_args(plan, row);
    if (row->choice.algo != algo_drawn()) return algo_build(row->choice.algo, &args, false, err);
    struct sched *sched = msccl_read(plan_drawn(plan), err);
    if (sched && (sched->nranks != plan->nranks || sched->coll->id != plan->coll ||
                  sched->nparts != plan->drawn_parts || sched->root != plan->root)) {
        err_add(err, ERR_USAGE, "%s was changed while it was run", plan_drawn(plan));
        sched_free(sched);
        return NULL;
    }
    return sched;
}

const struct ready *ready_get(struct ready_set *set, const struct plan *plan,
                              const struct plan_row *row, struct err *err)
{
    struct algo_args args = plan_algo_args(plan, row);
    if (algo_check(&args, err)) return NULL;
    enum wire_mode mode = wire_of(plan, row, plan_nparts(plan, row));
    for (size_t i = 0; i < set->count; i++) {
        const struct ready *ready = &set->items[i];
        if (ready->choice.algo == row->choice.algo && ready->wire == (int)mode &&
            ready->choice.channels == args.channels && ready->choice.parts == args.parts) {
            return ready;
        }
    }
    struct sched *sched = make_sched(plan, row, err);
    if (!sched) return NULL;
    MEM_GROW(set->items, set->count, set->cap);
    struct ready *ready = &set->items[set->count++];
    *ready = (struct ready){.choice = row->choice, .wire = (int)mode, .sched = sched};
    for (int place = 0; place < NPLACES; place++) {
        if (!plan->place[place]) continue;
        ready->linked[place] = link_place(plan, sched, mode, place == IN_PLACE, err);
        if (!ready->linked[place]) return NULL;
    }
    return ready;
}

int ready_verify(const struct ready *ready, struct err *err)
{
    for (int place = 0; place < NPLACES; place++) {
        const struct linked *linked = ready->linked[place];
        if (linked && (verify_sched(ready->sched, place == IN_PLACE, err) ||
                       verify_linked(linked, linked->least_depth, err))) {
            return -1;
        }
    }
    return 0;
}

/* ---- memory ---- */

/* a + b x c, SIZE_MAX when that is too much. */
static size_t add_product(size_t a, size_t b, size_t c)
{
    size_t product, sum;
    if (__builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum)) {
        return SIZE_MAX;
    }
    return sum;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What any program needs at most: wires whose slots are its own (those on which it sends; on
 * devices, receives; on a network, both), chunks in one message. */
static void count_wires(const struct linked *linked, const struct transport *transport,
                        size_t *sends, size_t *most_chunks)
{
    *sends = 0;
    *most_chunks = 1;
    for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
        const struct lprog *prog = &linked->progs[p];
        size_t here = 0;
        for (uint32_t w = 0; w < prog->nwires; w++)
            here += transport->join || prog->wires[w].send != transport->device;
        *sends = larger(*sends, here);
        for (uint32_t s = 0; s < prog->nsteps; s++)
            *most_chunks = larger(*most_chunks, prog->steps[s].nchunks);
    }
}

/* How scratch is cut. */
static struct layout layout_of(const struct linked *linked, const struct plan *plan,
                               size_t block_bytes)
{
    const struct sched *sched = linked->sched;
    const struct transport *transport = transport_table()[plan->transport];
    size_t slice = plan->slice_bytes ? plan->slice_bytes : exec_slice(linked, transport);
    slice += (transport->granule - slice % transport->granule) % transport->granule;
    return (struct layout){.nblocks = coll_blocks(sched->coll, BUF_SCRATCH, sched->nranks),
                           .nparts = sched->nparts,
                           .granule = transport->granule,
                           .block_bytes = block_bytes,
                           .slice_bytes = slice};
}

uint64_t ready_steps(const struct ready *ready, const struct plan *plan, const struct plan_row *row)
{
    uint64_t most = 0;
    for (int place = 0; place < NPLACES; place++) {
        const struct linked *linked = ready->linked[place];
        if (!linked) continue;
        struct layout layout = layout_of(linked, plan, row->longest_bytes);
        for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
            uint64_t steps = linked->progs[p].nsteps * layout_passes(&layout);
            most = steps > most ? steps : most;
        }
    }
    return most;
}

/* On a device the places of all chunks stand in tables, of uneven blocks those of all ranks; a
 * lane has a reduced slice and lines of its own. */
static size_t tables_bytes(const struct linked *linked, const struct layout *layout)
{
    size_t ranks = linked->sched->nranks, lanes = 0, wires = 0;
    size_t chunks = ranks * layout->nparts * (2 * ranks + 3) * sizeof(struct gpu_range);
    for (uint32_t p = 0; p < linked->sched->nprogs; p++) {
        lanes = larger(lanes, linked->progs[p].nlanes);
        wires = larger(wires, linked->progs[p].nwires);
    }
    size_t lane = layout_longest(layout) + GPU_LINE + 256;
    return chunks + lanes * lane + wires * (WIRE_BYTES + sizeof(struct gpu_wire));
}

/* Scratch and slots of a handle, at most. */
static size_t handle_bytes(const struct linked *linked, const struct plan *plan, size_t block_bytes)
{
    const struct sched *sched = linked->sched;
    struct layout layout = layout_of(linked, plan, block_bytes);
    size_t longest = layout_longest(&layout) + layout.granule, sends, most_chunks;
    count_wires(linked, transport_table()[plan->transport], &sends, &most_chunks);
    size_t scratch = add_product(0, (size_t)layout.nblocks * layout.nparts, longest);
    scratch = add_product(0, scratch, sched->nplanes);
    size_t depth = larger(plan->depth ? plan->depth : GUESS_DEPTH, linked->least_depth);
    size_t message = linked->opts.mode == WIRE_PULL ? 16 : add_product(0, longest, most_chunks);
    if (linked->opts.mode == WIRE_LL) /* numbers */
        message = add_product(message, plan->device ? message : message / 3, 1);
    size_t wire = add_product(WIRE_BYTES, depth, add_product(64, message, 1));
    size_t bytes = add_product(add_product(2 * PAGE, scratch, 1), sends, wire);
    return plan->device ? add_product(bytes, tables_bytes(linked, &layout), 1) : bytes;
}

/* The schedule itself, which every rank holds in whole. */
static size_t sched_bytes(const struct ready *ready)
{
    size_t steps = 0, copies = 0;
    for (uint32_t p = 0; p < ready->sched->nprogs; p++)
        steps += ready->sched->progs[p].nsteps;
    for (int place = 0; place < NPLACES; place++)
        copies += ready->linked[place] != NULL;
    return steps * (sizeof(struct step) + copies * (sizeof(struct lstep) + sizeof(struct lwait)));
}

struct ready_bytes ready_bytes(const struct ready *ready, const struct plan *plan,
                               const struct plan_row *row)
{
    struct ready_bytes bytes = {0, 0, 0};
    for (int place = 0; place < NPLACES; place++) {
        if (!ready->linked[place]) continue;
        size_t buffers = plan_places(plan, row, 0, place == IN_PLACE).touched + PAGE;
        size_t handle = handle_bytes(ready->linked[place], plan, row->longest_bytes);
        size_t all = add_product(add_product(buffers, handle, 1), sched_bytes(ready), 1);
        bytes.all = larger(bytes.all, all);
        bytes.handle = larger(bytes.handle, handle);
        bytes.shared = larger(bytes.shared, plan->shared ? all : handle + SLOTS_TOUCHED);
    }
    return bytes;
}
