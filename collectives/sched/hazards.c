/* SPDX-License-Identifier: Apache-2.0
 * The scan for read/write hazards: see hazards.h. */
#include "sched/hazards.h"

#include <stdlib.h>

#include "base/mem.h"

enum { NONE = UINT32_MAX };

struct reader {
    uint32_t step, next;
    uint32_t pass;
};

struct state { /* of one place */
    uint32_t writer, writer_pass;
    uint32_t readers; /* since the last write: head of a list */
};

struct scan {
    const struct sched *sched;
    const struct prog *prog;
    bool in_place;
    uint32_t pass;
    struct state *places;
    struct reader *readers;
    size_t nreaders, readers_cap;
    hazard_fn *fn;
    void *ctx;
};

static void emit(const struct scan *scan, uint32_t before, uint32_t before_pass, uint32_t after,
                 bool before_writes, bool after_writes)
{
    bool across = before_pass != scan->pass;
    if (before == NONE || (scan->pass == 1 && !across) || (before == after && !across)) {
        return;
    }
    scan->fn(scan->ctx, &(struct hazard){before, after, before_writes, after_writes, across});
}

static void read_place(struct scan *scan, uint32_t step, struct state *place)
{
    emit(scan, place->writer, place->writer_pass, step, true, false);
    MEM_GROW(scan->readers, scan->nreaders, scan->readers_cap);
    scan->readers[scan->nreaders] = (struct reader){step, place->readers, scan->pass};
    place->readers = (uint32_t)scan->nreaders++;
}

static void write_place(struct scan *scan, uint32_t step, struct state *place)
{
    emit(scan, place->writer, place->writer_pass, step, true, true);
    for (uint32_t r = place->readers; r != NONE; r = scan->readers[r].next) {
        emit(scan, scan->readers[r].step, scan->readers[r].pass, step, false, true);
    }
    *place = (struct state){step, scan->pass, NONE};
}

static void visit(struct scan *scan, uint32_t step, struct ref ref, uint32_t nchunks,
                  void (*touch)(struct scan *, uint32_t, struct state *))
{
    if (scan->pass > 0 && ref.buf < BUF_SCRATCH) {
        return;
    }
    uint32_t chunks = sched_chunks(scan->sched, ref.buf);
    for (uint32_t i = 0; i < nchunks; i++) {
        struct ref at = {ref.buf, (ref.chunk + i) % chunks};
        at = sched_place(scan->sched, scan->prog->rank, scan->in_place, at);
        touch(scan, step, &scan->places[sched_place_number(scan->sched, at)]);
    }
}

/* In place, a copy onto itself: it touches nothing. */
static bool stays(const struct scan *scan, const struct step *step)
{
    struct ref src = sched_place(scan->sched, scan->prog->rank, scan->in_place, step->src);
    struct ref dst = sched_place(scan->sched, scan->prog->rank, scan->in_place, step->dst);
    return step->kind == STEP_COPY && src.buf == dst.buf && src.chunk == dst.chunk;
}

static void scan_pass(struct scan *scan)
{
    for (uint32_t k = 0; k < scan->prog->nsteps; k++) {
        const struct step *step = &scan->prog->steps[k];
        const struct step_info *info = step_info(step->kind);
        if (stays(scan, step)) {
            continue;
        }
        if (info->reads_src) {
            visit(scan, k, step->src, step->nchunks, read_place);
        }
        if (info->reads_src2) {
            visit(scan, k, step->src2, step->nchunks, read_place);
        }
        if (info->writes) {
            visit(scan, k, step->dst, step->nchunks, write_place);
        }
    }
}

void hazards_scan(const struct sched *sched, const struct prog *prog, bool in_place, hazard_fn *fn,
                  void *ctx)
{
    struct scan scan = {.sched = sched, .prog = prog, .in_place = in_place, .fn = fn, .ctx = ctx};
    uint32_t nplaces = sched_places(sched);
    scan.places = mem_calloc(nplaces, sizeof *scan.places);
    for (uint32_t i = 0; i < nplaces; i++) {
        scan.places[i] = (struct state){NONE, 0, NONE};
    }
    for (scan.pass = 0; scan.pass < (sched->nplanes > 0 ? 2u : 1u); scan.pass++) {
        scan_pass(&scan);
    }
    free(scan.places);
    free(scan.readers);
}
