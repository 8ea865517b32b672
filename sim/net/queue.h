/* SPDX-License-Identifier: Apache-2.0
 * The event queue: what happens when, in picoseconds. Events of one instant come in the order in
 * which they were put, so every run is the same run. */
#pragma once

#include "base/heap.h"

/* Picoseconds since the start: 1 byte at 400 GB/s is 2.5 ps; the range is 213 days. */
typedef uint64_t ps_t;

/* Later than everything; times past the range end here. */
#define PS_NEVER UINT64_MAX

struct event {
    ps_t time_ps;
    uint32_t kind; /* the user's: what happens, and to whom */
    uint32_t id;
};

/* All zero is an empty queue. */
struct queue {
    struct heap heap;
};

void queue_put(struct queue *queue, ps_t time_ps, uint32_t kind, uint32_t id);

/* Takes the next event; false if there is none. */
bool queue_take(struct queue *queue, struct event *event);

/* When the next event is; PS_NEVER if there is none. */
ps_t queue_time(const struct queue *queue);

void queue_release(struct queue *queue);

/* time + span, the span (>= 0) rounded to the nearest picosecond; PS_NEVER past the range. */
ps_t ps_add(ps_t time_ps, double span_ps);
