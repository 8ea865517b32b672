/* SPDX-License-Identifier: Apache-2.0
 * A binary min-heap in an array: the children of item i are items 2i+1 and 2i+2. */
#include "base/heap.h"

#include <stdlib.h>

#include "base/mem.h"

static bool before(const struct heap_item *a, const struct heap_item *b)
{
    return a->key != b->key ? a->key < b->key : a->sequence < b->sequence;
}

/* Appends the item and moves it up while it comes before its parent. */
static void push(struct heap *heap, struct heap_item item)
{
    MEM_GROW(heap->items, heap->count, heap->cap);
    item.sequence = heap->next_sequence++;
    size_t at = heap->count++;
    for (; at && before(&item, &heap->items[(at - 1) / 2]); at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
}

void heap_push(struct heap *heap, uint64_t key, void *ptr)
{
    push(heap, (struct heap_item){.key = key, .payload.ptr = ptr});
}

void heap_push_u64(struct heap *heap, uint64_t key, uint64_t u64)
{
    push(heap, (struct heap_item){.key = key, .payload.u64 = u64});
}

const struct heap_item *heap_peek(const struct heap *heap)
{
    return heap->count ? heap->items : NULL;
}

bool heap_pop(struct heap *heap, struct heap_item *item)
{
    if (!heap->count) return false;
    *item = heap->items[0];
    struct heap_item last = heap->items[--heap->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && before(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!before(&heap->items[child], &last)) break;
        heap->items[at] = heap->items[child];
    }
    heap->items[at] = last;
    return true;
}

void heap_release(struct heap *heap)
{
    free(heap->items);
    *heap = (struct heap){0};
}
