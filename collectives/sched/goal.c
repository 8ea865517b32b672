/* SPDX-License-Identifier: Apache-2.0
 * Linked schedules as GOAL text: see goal.h. */
#include "sched/goal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sched/layout.h"

struct goal {
    FILE *to;
    const struct linked *linked;
    const struct goal_opts *opts;
    uint32_t rank;
    const struct lprog *prog;
    uint32_t labels; /* given so far */
    uint32_t *last;  /* per record: the label of its last operation */
};

static uint64_t bytes_of(const struct goal *goal, uint32_t buf, uint32_t chunk, uint32_t nchunks)
{
    const struct sched *sched = goal->linked->sched;
    enum buf kind = buf >= BUF_SCRATCH ? BUF_SCRATCH : (enum buf)buf;
    struct layout layout = {.nblocks = coll_blocks(sched->coll, kind, sched->nranks),
                            .nparts = sched->nparts,
                            .granule = LAYOUT_GRANULE,
                            .block_bytes = goal->opts->block_bytes};
    struct ref ref = sched_ref(sched, goal->rank, (struct ref){buf, chunk});
    uint32_t total = sched_chunks(sched, buf);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < nchunks; i++) {
        uint32_t c = (uint32_t)(((uint64_t)ref.chunk + i) % total);
        bytes += chunk_whole(&layout, c / sched->nparts, c % sched->nparts).len;
    }
    return bytes;
}

static void print_message(struct goal *goal, uint32_t lane, const struct lstep *step, bool sends)
{
    const struct lwire *wire = &goal->prog->wires[step->wire];
    uint64_t bytes = sends ? bytes_of(goal, step->src_buf, step->src, step->nchunks)
                           : bytes_of(goal, step->dst_buf, step->dst, step->nchunks);
    fprintf(goal->to, "l%u: %s %" PRIu64 "b %s %u tag %u cpu %u nic %u\n", goal->labels++,
            sends ? "send" : "recv", bytes, sends ? "to" : "from",
            sched_peer(goal->linked->sched, goal->rank, wire->peer), wire->channel, lane,
            wire->channel);
}

/* What a record does: a message, then its time. A record that does nothing is a calc of no time. */
static void print_record(struct goal *goal, uint32_t lane, const struct lstep *step)
{
    const struct step_info *info = step_info((enum step_kind)step->kind);
    const struct goal_opts *opts = goal->opts;
    bool wired = info->sends || info->receives;
    double per_byte = info->reduces             ? opts->reduce_ns_per_byte
                      : step->kind == STEP_COPY ? opts->copy_ns_per_byte
                                                : 0;
    if (wired) print_message(goal, lane, step, info->sends);
    double ns = 0;
    if (per_byte > 0)
        ns = per_byte * (double)bytes_of(goal, step->dst_buf, step->dst, step->nchunks);
    if (wired && ns <= 0) return;
    fprintf(goal->to, "l%u: calc %.0f cpu %u\n", goal->labels, round(ns), lane);
    if (wired) fprintf(goal->to, "l%u requires l%u\n", goal->labels, goal->labels - 1);
    goal->labels++;
}

static void print_requires(const struct goal *goal, uint32_t record, uint32_t first)
{
    const struct lstep *step = &goal->prog->steps[record];
    for (uint32_t i = 0; i < step->nwaits; i++) {
        const struct lwait *wait = &goal->prog->waits[step->wait + i];
        if (wait->kind == LWAIT_LANE && wait->distance == 0)
            fprintf(goal->to, "l%u requires l%u\n", first, goal->last[wait->number]);
    }
}

static void print_rank(struct goal *goal, uint32_t rank)
{
    const struct sched *sched = goal->linked->sched;
    goal->rank = rank;
    goal->prog = &goal->linked->progs[sched->prog_of[sched->relative ? 0 : rank]];
    goal->labels = 0;
    const struct lprog *prog = goal->prog;
    uint32_t *first = mem_calloc(prog->nsteps, sizeof *first);
    goal->last = mem_calloc(prog->nsteps, sizeof *goal->last);
    fprintf(goal->to, "rank %u {\n", rank);
    for (uint32_t lane = 0; lane < prog->nlanes; lane++) {
        for (uint32_t r = prog->lane_start[lane]; r < prog->lane_start[lane + 1]; r++) {
            first[r] = goal->labels;
            print_record(goal, lane, &prog->steps[r]);
            goal->last[r] = goal->labels - 1;
            if (r > prog->lane_start[lane])
                fprintf(goal->to, "l%u requires l%u\n", first[r], goal->last[r - 1]);
        }
    }
    for (uint32_t r = 0; r < prog->nsteps; r++) {
        print_requires(goal, r, first[r]);
    }
    fputs("}\n\n", goal->to);
    free(first);
    free(goal->last);
}

int goal_write(FILE *to, const struct linked *linked, const struct goal_opts *opts, struct err *err)
{
    struct goal goal = {.to = to, .linked = linked, .opts = opts};
    if (linked->opts.mode != WIRE_STAGED) {
        return err_add(err, ERR_USAGE,
                       "GOAL is written of staged wires, not of %s: it has no word for buffers "
                       "that stay busy until they are read",
                       wire_mode_name(linked->opts.mode));
    }
    if (linked->sched->nagents) {
        return err_add(err, ERR_USAGE,
                       "%s has %u agent(s) inside switches, for which GOAL has no word: it knows "
                       "ranks alone",
                       linked->sched->name, linked->sched->nagents);
    }
    fprintf(to, "num_ranks %u\n\n", linked->sched->nranks);
    for (uint32_t rank = 0; rank < linked->sched->nranks; rank++) {
        print_rank(&goal, rank);
    }
    if (fflush(to) || ferror(to)) return err_add(err, ERR_FAILED, "the file was not written");
    return 0;
}
