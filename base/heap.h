/* SPDX-License-Identifier: Apache-2.0
 * A binary heap that gives the item with the least key first and, among equal keys, the one put in
 * first: the order of an event queue in which every run is the same run. The idea is git's
 * prio-queue; the insertion counter is its stable order. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_item {
    uint64_t key;      /* for instance a time in picoseconds */
    uint64_t sequence; /* insertion number, from 0, given by heap_push */
    union {
        void *ptr;
        uint64_t u64;
    } payload; /* the caller's; the heap does not look at it */
};

/* All zero is an empty heap. */
struct heap {
    struct heap_item *items;
    size_t count, cap;
    uint64_t next_sequence;
};

/* Puts an item in, in O(log count). */
void heap_push(struct heap *heap, uint64_t key, void *ptr);
void heap_push_u64(struct heap *heap, uint64_t key, uint64_t u64);

/* The first item, NULL if the heap is empty; valid until the next push or pop. */
const struct heap_item *heap_peek(const struct heap *heap);

/* Takes the first item out into *item; false if the heap is empty. O(log count). */
bool heap_pop(struct heap *heap, struct heap_item *item);

/* Frees the memory, not what payloads point to; the heap is empty and usable afterwards. */
void heap_release(struct heap *heap);
