/* SPDX-License-Identifier: Apache-2.0
 * The event queue: what happens when, in picoseconds. Events of one instant come in the order in
 * which they were put, so every run is the same run. Beside plain events there are timers, each at
 * one time or at none, which can be set anew and stopped: a heap of four children per node (after
 * LaMarca and Ladner, 1996) in which a timer knows its place. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Picoseconds since the start: 1 byte at 400 GB/s is 2.5 ps; the range is 213 days. */
typedef uint64_t ps_t;

/* Later than everything; times past the range end here. */
#define PS_NEVER UINT64_MAX

struct event {
    ps_t time_ps;
    uint32_t kind; /* the user's: what happens, and to whom */
    uint32_t id;
};

struct queue_item;
struct queue_timer;

/* All zero is an empty queue. */
struct queue {
    struct queue_item *items; /* the heap */
    size_t count, cap;
    uint64_t sequence;
    struct queue_timer *timers;
    uint32_t ntimers, timers_cap;
};

/* Puts an event in, in O(log events). */
void queue_put(struct queue *queue, ps_t time_ps, uint32_t kind, uint32_t id);

/* A new timer, stopped; gives its number. It lives as long as the queue. */
uint32_t queue_timer(struct queue *queue, uint32_t kind, uint32_t id);

/* Sets a timer, which may run already, to `time_ps`; in an instant it comes after the events that
 * are there. queue_stop takes it out; stopping a stopped one is fine. O(log events). */
void queue_set(struct queue *queue, uint32_t timer, ps_t time_ps);
void queue_stop(struct queue *queue, uint32_t timer);

/* Takes the next event, or the next timer, which then is stopped; false if there is none. */
bool queue_take(struct queue *queue, struct event *event);

/* When the next event is; PS_NEVER if there is none. */
ps_t queue_time(const struct queue *queue);

void queue_release(struct queue *queue);

/* time + span; PS_NEVER past the range. */
static inline ps_t ps_sum(ps_t time_ps, ps_t span_ps)
{
    return span_ps > PS_NEVER - time_ps ? PS_NEVER : time_ps + span_ps;
}

/* time x count; PS_NEVER past the range. */
static inline ps_t ps_times(ps_t time_ps, uint64_t count)
{
    return count > 0 && time_ps > PS_NEVER / count ? PS_NEVER : time_ps * count;
}

/* time + span, the span (>= 0) rounded to the nearest picosecond; PS_NEVER past the range. */
ps_t ps_add(ps_t time_ps, double span_ps);
