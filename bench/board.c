/* SPDX-License-Identifier: Apache-2.0
 * Where everything lies in the blob: see board.h. */
#include "bench/board.h"

#include <string.h>

enum { LINE = 128 };

struct map {
    size_t board, places, samples, stride, bytes; /* offsets in the blob */
};

static size_t whole_lines(size_t bytes)
{
    return bytes + (LINE - bytes % LINE) % LINE;
}

static struct map map_of(const struct plan *plan)
{
    struct map map = {.board = whole_lines(plan->bytes)};
    map.places = map.board + sizeof(struct board);
    map.samples = map.places + plan_world(plan) * sizeof(struct board_place);
    map.stride = whole_lines(plan->samples_cap * BOARD_PLANES * sizeof(uint64_t));
    map.bytes = map.samples + plan_world(plan) * map.stride;
    return map;
}

static uint8_t *blob_at(struct world *world, size_t offset)
{
    return (uint8_t *)world_blob(world) + offset;
}

size_t board_blob_bytes(const struct plan *plan)
{
    return map_of(plan).bytes;
}

void board_init(struct world *world, const struct plan *plan)
{
    memcpy(world_blob(world), plan, plan->bytes);
}

const struct plan *board_plan(struct world *world)
{
    return world_blob(world);
}

struct board *board_of(struct world *world)
{
    return (struct board *)(void *)blob_at(world, map_of(board_plan(world)).board);
}

struct board_place *board_place(struct world *world, uint32_t rank)
{
    return (struct board_place *)(void *)blob_at(world, map_of(board_plan(world)).places) + rank;
}

uint64_t *board_samples(struct world *world, uint32_t rank, enum plane plane)
{
    const struct plan *plan = board_plan(world);
    struct map map = map_of(plan);
    size_t at = map.samples + rank * map.stride + plane * plan->samples_cap * sizeof(uint64_t);
    return (uint64_t *)(void *)blob_at(world, at);
}

void board_show(struct rank *rk)
{
    rank_publish(rk, board_place(rk->world, rk->rank), sizeof(struct board_place));
}

void board_show_samples(struct rank *rk, enum plane plane, uint64_t from, uint64_t to)
{
    uint64_t *samples = board_samples(rk->world, rk->rank, plane);
    if (to > from) rank_publish(rk, samples + from, (to - from) * sizeof *samples);
}

uint64_t board_agree(struct rank *rk, uint64_t value)
{
    struct board *board = board_of(rk->world);
    if (rk->rank == 0) {
        board->value = value;
        rank_publish(rk, &board->value, sizeof board->value);
    }
    rank_barrier(rk);
    value = board->value;
    rank_barrier(rk); /* before it is written again */
    return value;
}

double board_most(struct rank *rk, double value)
{
    board_place(rk->world, rk->rank)->value = value;
    board_show(rk);
    rank_barrier(rk);
    for (uint32_t r = 0; r < rk->nranks; r++) {
        double other = board_place(rk->world, r)->value;
        if (other > value) value = other;
    }
    rank_barrier(rk); /* before it is written again */
    return value;
}
