/* SPDX-License-Identifier: Apache-2.0
 * Which send of a timeline belongs to which receive: shared by the file and the summary. */
#pragma once

#include "sched/trace.h"

#define TRACE_NONE SIZE_MAX

/* The sends of a trace, by wire and number. */
struct trace_sends {
    const struct trace *trace;
    size_t *sorted; /* indexes of events */
    size_t count;
};

void trace_sends_init(struct trace_sends *sends, const struct trace *trace);
void trace_sends_release(struct trace_sends *sends);

/* The index of the send whose message `receive` takes; TRACE_NONE when `receive` takes none. */
size_t trace_send_of(const struct trace_sends *sends, const struct trace_event *receive);
