/* SPDX-License-Identifier: Apache-2.0
 * What an MSCCL file says about order: which block a dependency means, which step sends what
 * another receives, and an order of all steps that respects every edge. Without such an order the
 * file deadlocks, and the cycle is named.
 *
 *     gpu 0                    gpu 1
 *     tb 0: s ----message----> tb 0: r         edges: down a block, along a dependency, along a
 *           |                        |         message, and down the list where it is given
 *           r <---.          dep  .- s
 *     tb 1: s <- dep ...          '-> tb 1: cpy */
#include <stdlib.h>

#include "base/mem.h"
#include "sched/msccl_file.h"

/* ---- which block an id means, and who holds a wire ---- */

struct key {
    uint32_t gpu, kind, a,
        b; /* kind 0: a = id; 1, 2: a = peer sent to, received from, b = channel */
    uint32_t block;
};

struct keys {
    struct key *items;
    size_t count, cap;
};

static int compare_keys(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->gpu != y->gpu) return x->gpu < y->gpu ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->a != y->a) return x->a < y->a ? -1 : 1;
    return x->b < y->b ? -1 : x->b > y->b;
}

static void add_key(struct keys *keys, struct key key)
{
    MEM_GROW(keys->items, keys->count, keys->cap);
    keys->items[keys->count++] = key;
}

static uint32_t find_key(const struct keys *keys, struct key key)
{
    if (keys->count == 0) return FILE_NONE;
    const struct key *found = bsearch(&key, keys->items, keys->count, sizeof key, compare_keys);
    return found ? found->block : FILE_NONE;
}

/* All keys of the file, sorted; the same one twice is a fault. */
static int make_keys(const struct file *file, struct keys *keys, struct err *err)
{
    static const char *const twice[] = {"has the id of", "sends to the peer and channel of",
                                        "receives from the peer and channel of"};
    for (uint32_t i = 0; i < file->nblocks; i++) {
        const struct file_block *block = &file->blocks[i];
        add_key(keys, (struct key){block->gpu, 0, block->id, 0, i});
        if (block->send != FILE_NONE)
            add_key(keys, (struct key){block->gpu, 1, block->send, block->channel, i});
        if (block->recv != FILE_NONE)
            add_key(keys, (struct key){block->gpu, 2, block->recv, block->channel, i});
    }
    if (keys->count > 0) qsort(keys->items, keys->count, sizeof *keys->items, compare_keys);
    for (size_t i = 1; i < keys->count; i++) {
        const struct key *x = &keys->items[i - 1], *y = &keys->items[i];
        if (compare_keys(x, y) == 0) {
            const struct file_block *one = &file->blocks[x->block], *two = &file->blocks[y->block];
            return file_fault(file, two->line, err, "gpu %u: block %u %s block %u (line %u)",
                              file->gpus[x->gpu].id, two->id, twice[x->kind], one->id, one->line);
        }
    }
    return 0;
}

static int resolve_gpus(struct file *file, struct err *err)
{
    if (file->ngpus != file->nranks) {
        return file_fault(file, file->line, err, "ngpus is %u, but there are %zu <gpu>",
                          file->nranks, file->ngpus);
    }
    file->gpu_of = mem_calloc(file->nranks, sizeof *file->gpu_of);
    for (uint32_t g = 0; g < file->ngpus; g++) {
        uint32_t *slot = &file->gpu_of[file->gpus[g].id];
        if (*slot) {
            return file_fault(file, file->gpus[g].line, err, "gpu %u stands here a second time",
                              file->gpus[g].id);
        }
        *slot = g + 1;
    }
    for (uint32_t r = 0; r < file->nranks; r++) {
        file->gpu_of[r]--; /* as many gpus as ranks, none twice: all are there */
    }
    return 0;
}

static int resolve_deps(struct file *file, const struct keys *keys, struct err *err)
{
    for (uint32_t x = 0; x < file->nsteps; x++) {
        struct file_step *step = &file->steps[x];
        if (step->depid == FILE_NONE) continue;
        uint32_t gpu = file->blocks[step->block].gpu;
        uint32_t b = find_key(keys, (struct key){.gpu = gpu, .a = step->depid});
        if (b == FILE_NONE || step->deps >= file->blocks[b].count) {
            return file_fault(file, step->line, err,
                              "<step depid=\"%u\" deps=\"%u\">: gpu %u has no such %s", step->depid,
                              step->deps, file->gpus[gpu].id, b == FILE_NONE ? "block" : "step");
        }
        step->dep = file->blocks[b].first + step->deps;
    }
    return 0;
}

/* ---- messages: the k-th send of a wire meets the k-th receive ---- */

/* The next step of a block from `x` on that sends (or receives); FILE_NONE: none. */
static uint32_t next_of(const struct file *file, const struct file_block *block, uint32_t x,
                        bool sends)
{
    for (; x < block->first + block->count; x++) {
        const struct file_info *info = file_info(file->steps[x].kind);
        if (sends ? info->sends : info->receives) return x;
    }
    return FILE_NONE;
}

static int pair_blocks(struct file *file, const struct file_block *from,
                       const struct file_block *to, struct err *err)
{
    uint32_t sender = file->gpus[from->gpu].id;
    uint32_t s = next_of(file, from, from->first, true);
    uint32_t r = to ? next_of(file, to, to->first, false) : FILE_NONE;
    for (; s != FILE_NONE && r != FILE_NONE;
         s = next_of(file, from, s + 1, true), r = next_of(file, to, r + 1, false)) {
        struct file_step *send = &file->steps[s], *recv = &file->steps[r];
        if (send->cnt != recv->cnt) {
            return file_fault(file, recv->line, err,
                              "rank %u receives %u chunk(s) (tb %u step %u), but rank %u sends %u "
                              "(line %u)",
                              from->send, recv->cnt, to->id, file_s(file, r), sender, send->cnt,
                              send->line);
        }
        send->to = r;
        recv->from = s;
    }
    if (s != FILE_NONE) {
        return file_fault(file, file->steps[s].line, err,
                          "rank %u tb %u step %u sends to rank %u on channel %u what is never "
                          "received there",
                          sender, from->id, file_s(file, s), from->send, from->channel);
    }
    return 0;
}

static int pair_messages(struct file *file, const struct keys *keys, struct err *err)
{
    for (uint32_t b = 0; b < file->nblocks; b++) {
        const struct file_block *from = &file->blocks[b];
        if (from->send == FILE_NONE) continue;
        struct key key = {file->gpu_of[from->send], 2, file->gpus[from->gpu].id, from->channel, 0};
        uint32_t other = find_key(keys, key);
        if (pair_blocks(file, from, other == FILE_NONE ? NULL : &file->blocks[other], err))
            return -1;
    }
    for (uint32_t x = 0; x < file->nsteps; x++) {
        const struct file_step *step = &file->steps[x];
        const struct file_block *block = &file->blocks[step->block];
        if (file_info(step->kind)->receives && step->from == FILE_NONE) {
            return file_fault(file, step->line, err,
                              "rank %u tb %u step %u deadlocks: it waits for a message of rank %u "
                              "on channel %u that is never sent",
                              file_rank(file, x), block->id, file_s(file, x), block->recv,
                              block->channel);
        }
    }
    return 0;
}

/* ---- the order ---- */

struct graph {
    struct file *file;
    uint32_t *before;    /* per step: edges into it that are still open */
    uint32_t *dependent; /* per step: a step that waits for it; a list by `next` */
    uint32_t *next;
    uint32_t *listed;   /* per step: the step behind it in its program */
    uint32_t *unlisted; /* .. and before it */
};

struct place {
    uint32_t rank, at, step;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* Edges down the lists of a file that gives them. */
static void list_edges(struct graph *graph)
{
    struct file *file = graph->file;
    struct place *places = mem_calloc(file->nsteps, sizeof *places);
    size_t count = 0;
    for (uint32_t x = 0; x < file->nsteps; x++) {
        if (file->steps[x].at != FILE_NONE)
            places[count++] = (struct place){file_rank(file, x), file->steps[x].at, x};
    }
    if (count > 0) qsort(places, count, sizeof *places, compare_places);
    for (size_t i = 1; i < count; i++) {
        if (places[i].rank != places[i - 1].rank) continue;
        graph->listed[places[i - 1].step] = places[i].step;
        graph->unlisted[places[i].step] = places[i - 1].step;
        graph->before[places[i].step]++;
    }
    free(places);
}

static void graph_init(struct graph *graph, struct file *file)
{
    *graph = (struct graph){.file = file};
    uint32_t **arrays[] = {&graph->dependent, &graph->next, &graph->listed, &graph->unlisted};
    graph->before = mem_calloc(file->nsteps, sizeof *graph->before);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i] = mem_calloc(file->nsteps, sizeof **arrays[i]);
        for (uint32_t x = 0; x < file->nsteps; x++) {
            (*arrays[i])[x] = FILE_NONE;
        }
    }
    for (uint32_t x = 0; x < file->nsteps; x++) {
        const struct file_step *step = &file->steps[x];
        graph->before[x] = (file_s(file, x) > 0 ? 1u : 0u) + (step->from != FILE_NONE ? 1u : 0u);
        if (step->dep != FILE_NONE) {
            graph->before[x]++;
            graph->next[x] = graph->dependent[step->dep];
            graph->dependent[step->dep] = x;
        }
    }
    list_edges(graph);
}

static void graph_release(struct graph *graph)
{
    free(graph->before);
    free(graph->dependent);
    free(graph->next);
    free(graph->listed);
    free(graph->unlisted);
}

/* One edge into `x` is done. */
static void arrive(struct graph *graph, uint32_t x, uint32_t *tail)
{
    struct file *file = graph->file;
    if (x != FILE_NONE && --graph->before[x] == 0) {
        file->pos[x] = *tail;
        file->order[(*tail)++] = x;
    }
}

/* Steps in the order in which they become free: first in, first out, so that ranks and blocks take
 * turns. The number of steps that become free. */
static uint32_t sort_steps(struct graph *graph)
{
    struct file *file = graph->file;
    uint32_t tail = 0;
    for (uint32_t x = 0; x < file->nsteps; x++) {
        if (graph->before[x] == 0) {
            file->pos[x] = tail;
            file->order[tail++] = x;
        }
    }
    for (uint32_t head = 0; head < tail; head++) {
        uint32_t x = file->order[head];
        const struct file_block *block = &file->blocks[file->steps[x].block];
        arrive(graph, x + 1 < block->first + block->count ? x + 1 : FILE_NONE, &tail);
        arrive(graph, graph->listed[x], &tail);
        arrive(graph, file->steps[x].to, &tail);
        for (uint32_t d = graph->dependent[x]; d != FILE_NONE; d = graph->next[d]) {
            arrive(graph, d, &tail);
        }
    }
    return tail;
}

/* What a step that never becomes free waits for: one of its open edges. */
static uint32_t waits_for(const struct graph *graph, uint32_t x)
{
    const struct file_step *step = &graph->file->steps[x];
    uint32_t candidates[] = {file_s(graph->file, x) > 0 ? x - 1 : FILE_NONE, step->from, step->dep,
                             graph->unlisted[x]};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        uint32_t y = candidates[i];
        if (y != FILE_NONE && graph->before[y] > 0) return y;
    }
    return FILE_NONE;
}

/* Names the steps of a cycle, at most four of them. */
static int report_cycle(const struct graph *graph, struct err *err)
{
    const struct file *file = graph->file;
    uint32_t x = 0;
    while (graph->before[x] == 0) {
        x++;
    }
    for (size_t i = 0; i < file->nsteps; i++) { /* surely on a cycle after that */
        x = waits_for(graph, x);
    }
    char *text = mem_strdup("deadlock:");
    uint32_t start = x, named = 0;
    do {
        char *longer = named < 4
                           ? mem_printf("%s%s rank %u tb %u step %u (line %u)", text,
                                        named ? " waits for" : "", file_rank(file, x),
                                        file_tb(file, x), file_s(file, x), file->steps[x].line)
                           : mem_strdup(text);
        free(text);
        text = longer;
        named++;
        x = waits_for(graph, x);
    } while (x != start);
    file_fault(file, file->steps[start].line, err, "%s%s, which waits for the first of them", text,
               named > 4 ? " .." : "");
    free(text);
    return -1;
}

int file_order(struct file *file, struct err *err)
{
    struct keys keys = {0};
    int bad = resolve_gpus(file, err) || make_keys(file, &keys, err) ||
              resolve_deps(file, &keys, err) || pair_messages(file, &keys, err);
    free(keys.items);
    if (bad) return -1;
    file->order = mem_calloc(file->nsteps, sizeof *file->order);
    file->pos = mem_calloc(file->nsteps, sizeof *file->pos);
    struct graph graph;
    graph_init(&graph, file);
    if (sort_steps(&graph) < file->nsteps) bad = report_cycle(&graph, err);
    graph_release(&graph);
    return bad;
}
