/* SPDX-License-Identifier: Apache-2.0
 * The event queue: see queue.h. Node i has the children 4i + 1 .. 4i + 4; whoever moves a timer's
 * node writes its new place into the timer. */
#include "net/queue.h"

#include <stdlib.h>

#include "base/mem.h"

enum { CHILDREN = 4 };
#define PLAIN UINT32_MAX   /* an item that is no timer */
#define NOWHERE UINT32_MAX /* the place of a stopped timer */

struct queue_item {
    ps_t time_ps;
    uint64_t sequence;
    uint32_t kind, id;
    uint32_t timer;
};

struct queue_timer {
    uint32_t kind, id;
    uint32_t place;
};

static bool before(const struct queue_item *a, const struct queue_item *b)
{
    return a->time_ps < b->time_ps || (a->time_ps == b->time_ps && a->sequence < b->sequence);
}

static void lay(struct queue *queue, size_t place, const struct queue_item *item)
{
    queue->items[place] = *item;
    if (item->timer != PLAIN) {
        queue->timers[item->timer].place = (uint32_t)place;
    }
}

/* Puts `item` at the free node `place`, or above it. */
static void rise(struct queue *queue, size_t place, struct queue_item item)
{
    while (place > 0) {
        size_t parent = (place - 1) / CHILDREN;
        if (!before(&item, &queue->items[parent])) {
            break;
        }
        lay(queue, place, &queue->items[parent]);
        place = parent;
    }
    lay(queue, place, &item);
}

/* Puts `item` at the free node `place`, or below it. */
static void sink(struct queue *queue, size_t place, struct queue_item item)
{
    for (;;) {
        size_t first = CHILDREN * place + 1, least = first;
        size_t end = first + CHILDREN < queue->count ? first + CHILDREN : queue->count;
        if (first >= queue->count) {
            break;
        }
        for (size_t child = first + 1; child < end; child++) {
            least = before(&queue->items[child], &queue->items[least]) ? child : least;
        }
        if (!before(&queue->items[least], &item)) {
            break;
        }
        lay(queue, place, &queue->items[least]);
        place = least;
    }
    lay(queue, place, &item);
}

/* Takes the node `place` out: the last one fills it. */
static void cut(struct queue *queue, size_t place)
{
    struct queue_item last = queue->items[--queue->count];
    if (place == queue->count) {
        return;
    }
    if (before(&last, &queue->items[place])) {
        rise(queue, place, last);
    } else {
        sink(queue, place, last);
    }
}

static void put(struct queue *queue, struct queue_item item)
{
    MEM_GROW(queue->items, queue->count, queue->cap);
    item.sequence = queue->sequence++;
    rise(queue, queue->count++, item);
}

void queue_put(struct queue *queue, ps_t time_ps, uint32_t kind, uint32_t id)
{
    put(queue, (struct queue_item){.time_ps = time_ps, .kind = kind, .id = id, .timer = PLAIN});
}

uint32_t queue_timer(struct queue *queue, uint32_t kind, uint32_t id)
{
    MEM_GROW(queue->timers, queue->ntimers, queue->timers_cap);
    queue->timers[queue->ntimers] = (struct queue_timer){kind, id, NOWHERE};
    return queue->ntimers++;
}

void queue_set(struct queue *queue, uint32_t number, ps_t time_ps)
{
    const struct queue_timer *timer = &queue->timers[number];
    struct queue_item item = {
        .time_ps = time_ps, .kind = timer->kind, .id = timer->id, .timer = number};
    if (timer->place == NOWHERE) {
        put(queue, item);
        return;
    }
    size_t place = timer->place;
    item.sequence = queue->sequence++;
    if (before(&item, &queue->items[place])) {
        rise(queue, place, item);
    } else {
        sink(queue, place, item);
    }
}

void queue_stop(struct queue *queue, uint32_t number)
{
    uint32_t place = queue->timers[number].place;
    if (place != NOWHERE) {
        queue->timers[number].place = NOWHERE;
        cut(queue, place);
    }
}

bool queue_take(struct queue *queue, struct event *event)
{
    if (queue->count == 0) {
        return false;
    }
    const struct queue_item *first = &queue->items[0];
    *event = (struct event){first->time_ps, first->kind, first->id};
    if (first->timer != PLAIN) {
        queue->timers[first->timer].place = NOWHERE;
    }
    cut(queue, 0);
    return true;
}

ps_t queue_time(const struct queue *queue)
{
    return queue->count > 0 ? queue->items[0].time_ps : PS_NEVER;
}

void queue_release(struct queue *queue)
{
    free(queue->items);
    free(queue->timers);
    *queue = (struct queue){0};
}

ps_t ps_add(ps_t time_ps, double span_ps)
{
    if (span_ps >= 0x1p64 - 0x1p11) { /* the next double is 2^64; catches infinity too */
        return PS_NEVER;
    }
    ps_t span = (ps_t)(span_ps + 0.5);
    return span > PS_NEVER - time_ps ? PS_NEVER : time_ps + span;
}
