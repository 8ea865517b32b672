/* SPDX-License-Identifier: Apache-2.0
 * Data races of an MSCCL file: two steps of a rank touch a chunk, one writes it, and nothing in the
 * file orders them: not their block, not a chain of dependencies, not messages to other ranks and
 * back. Chunks are those of the file, scratch as it numbers it. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/msccl_file.h"

struct reader {
    uint32_t step, next;
};

struct state { /* of one place */
    uint32_t writer, readers;
};

struct races {
    const struct file *file;
    const struct sched *shape; /* for the numbers of chunks */
    bool in_place;
    size_t *base; /* per rank: its first place */
    struct state *states;
    struct reader *readers;
    size_t nreaders, readers_cap;
    uint32_t *seen; /* per step: number of the search that has been there */
    uint32_t searches;
    uint32_t *stack;
    struct err *err;
};

/* ---- is `before` done when `after` starts? ---- */

static bool reaches(const struct races *races, uint32_t before, uint32_t x)
{
    return races->file->steps[x].block == races->file->steps[before].block && x >= before;
}

/* Puts a step on the stack unless the search has been there, or it lies before the goal. */
static void push(struct races *races, uint32_t before, uint32_t x, size_t *depth)
{
    if (x != FILE_NONE && races->seen[x] != races->searches &&
        races->file->pos[x] >= races->file->pos[before]) {
        races->seen[x] = races->searches;
        races->stack[(*depth)++] = x;
    }
}

/* Goes back from `after` along all edges; what stands earlier in the order than the goal cannot
 * lead to it. */
static bool ordered(struct races *races, uint32_t before, uint32_t after)
{
    const struct file *file = races->file;
    size_t depth = 0;
    races->searches++;
    push(races, before, after, &depth);
    while (depth > 0) {
        uint32_t x = races->stack[--depth];
        const struct file_step *step = &file->steps[x];
        if (reaches(races, before, x) ||
            (step->dep != FILE_NONE && reaches(races, before, step->dep)))
            return true;
        push(races, before, step->from, &depth);
        push(races, before, file_s(file, x) > 0 ? x - 1 : FILE_NONE, &depth);
        push(races, before, step->dep, &depth);
    }
    return false;
}

/* ---- the scan ---- */

static int check(struct races *races, uint32_t before, uint32_t after, uint8_t buf, uint32_t chunk)
{
    const struct file *file = races->file;
    if (before == FILE_NONE || before == after || ordered(races, before, after)) return 0;
    const struct file_step *a = &file->steps[before], *b = &file->steps[after];
    return file_fault(file, b->line, races->err,
                      "data race: rank %u tb %u step %u (%s, line %u) and tb %u step %u (%s) touch "
                      "%c[%u]%s, and no dependency orders them",
                      file_rank(file, after), file_tb(file, before), file_s(file, before),
                      file_info(a->kind)->type, a->line, file_tb(file, after), file_s(file, after),
                      file_info(b->kind)->type, "ios"[buf], chunk,
                      races -> in_place ? " (in place)" : "");
}

static size_t place_of(const struct races *races, uint32_t rank, uint8_t buf, uint32_t chunk)
{
    const struct sched *shape = races->shape;
    if (buf == BUF_SCRATCH) {
        return races->base[rank] + sched_chunks(shape, BUF_IN) + sched_chunks(shape, BUF_OUT) +
               chunk;
    }
    struct ref ref = sched_place(shape, rank, races->in_place, (struct ref){buf, chunk});
    return races->base[rank] + sched_place_number(shape, ref);
}

static int touch(struct races *races, uint32_t x, uint8_t buf, uint32_t first, bool write)
{
    const struct file_step *step = &races->file->steps[x];
    uint32_t rank = file_rank(races->file, x);
    for (uint32_t i = 0; i < step->cnt; i++) {
        struct state *state = &races->states[place_of(races, rank, buf, first + i)];
        if (check(races, state->writer, x, buf, first + i)) return -1;
        if (!write) {
            MEM_GROW(races->readers, races->nreaders, races->readers_cap);
            races->readers[races->nreaders] = (struct reader){x, state->readers};
            state->readers = (uint32_t)races->nreaders++;
            continue;
        }
        for (uint32_t r = state->readers; r != FILE_NONE; r = races->readers[r].next) {
            if (check(races, races->readers[r].step, x, buf, first + i)) return -1;
        }
        *state = (struct state){x, FILE_NONE};
    }
    return 0;
}

/* A copy onto itself touches nothing. */
static bool stays(const struct races *races, uint32_t x)
{
    const struct file_step *step = &races->file->steps[x];
    uint32_t rank = file_rank(races->file, x);
    return step->kind == FILE_COPY && place_of(races, rank, step->src_buf, step->src) ==
                                          place_of(races, rank, step->dst_buf, step->dst);
}

static int scan(struct races *races)
{
    const struct file *file = races->file;
    for (size_t i = 0; i < file->nsteps; i++) {
        uint32_t x = file->order[i];
        const struct file_step *step = &file->steps[x];
        const struct file_info *info = file_info(step->kind);
        if (stays(races, x)) continue;
        if ((info->reads_src && touch(races, x, step->src_buf, step->src, false)) ||
            (info->reads_dst && touch(races, x, step->dst_buf, step->dst, false)) ||
            (info->writes_dst && touch(races, x, step->dst_buf, step->dst, true))) {
            return -1;
        }
    }
    return 0;
}

int file_races(const struct file *file, const struct sched *shape, struct err *err)
{
    struct races races = {.file = file, .shape = shape, .err = err};
    races.base = mem_calloc(file->nranks + 1, sizeof *races.base);
    for (uint32_t r = 0; r < file->nranks; r++) {
        races.base[r + 1] = races.base[r] + sched_chunks(shape, BUF_IN) +
                            sched_chunks(shape, BUF_OUT) + file->gpus[file->gpu_of[r]].s_chunks;
    }
    races.states = mem_calloc(races.base[file->nranks], sizeof *races.states);
    races.seen = mem_calloc(file->nsteps, sizeof *races.seen);
    races.stack = mem_calloc(file->nsteps, sizeof *races.stack);
    int bad = 0;
    for (int in_place = 0; in_place < 2 && !bad; in_place++) {
        if (!file->places[in_place]) continue;
        races.in_place = in_place;
        races.nreaders = 0;
        memset(races.states, 0xff, races.base[file->nranks] * sizeof *races.states);
        bad = scan(&races);
    }
    free(races.base);
    free(races.states);
    free(races.seen);
    free(races.stack);
    free(races.readers);
    return bad;
}
