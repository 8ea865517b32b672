/* SPDX-License-Identifier: Apache-2.0
 * The event queue on the stable heap: an event's kind and id are packed into the payload. */
#include "net/queue.h"

void queue_put(struct queue *queue, ps_t time_ps, uint32_t kind, uint32_t id)
{
    heap_push_u64(&queue->heap, time_ps, (uint64_t)kind << 32 | id);
}

bool queue_take(struct queue *queue, struct event *event)
{
    struct heap_item item;
    if (!heap_pop(&queue->heap, &item)) {
        return false;
    }
    event->time_ps = item.key;
    event->kind = (uint32_t)(item.payload.u64 >> 32);
    event->id = (uint32_t)item.payload.u64;
    return true;
}

ps_t queue_time(const struct queue *queue)
{
    const struct heap_item *item = heap_peek(&queue->heap);
    return item ? item->key : PS_NEVER;
}

void queue_release(struct queue *queue)
{
    heap_release(&queue->heap);
}

ps_t ps_add(ps_t time_ps, double span_ps)
{
    if (span_ps >= 0x1p64 - 0x1p11) { /* the next double is 2^64; catches infinity too */
        return PS_NEVER;
    }
    ps_t span = (ps_t)(span_ps + 0.5);
    return span > PS_NEVER - time_ps ? PS_NEVER : time_ps + span;
}
