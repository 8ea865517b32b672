/* SPDX-License-Identifier: Apache-2.0
 * What a timeline says: sends matched with receives, the chain that led to the last step, and the
 * summary in words. See trace.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "base/units.h"
#include "sched/sched.h"
#include "sched/trace_match.h"

/* ---- sends and receives ---- */

/* A message: its wire, and its number there. */
struct key {
    uint32_t src, dst, channel;
    uint64_t number;
};

static int compare_keys(const struct key *x, const struct key *y)
{
    if (x->src != y->src) return x->src < y->src ? -1 : 1;
    if (x->dst != y->dst) return x->dst < y->dst ? -1 : 1;
    if (x->channel != y->channel) return x->channel < y->channel ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static struct key key_of(const struct trace_event *event, bool sends)
{
    return (struct key){sends ? event->rank : event->peer, sends ? event->peer : event->rank,
                        event->channel, event->number};
}

static int by_message(const void *a, const void *b, void *ctx)
{
    const struct trace *trace = ctx;
    struct key x = key_of(&trace->events[*(const size_t *)a], true);
    struct key y = key_of(&trace->events[*(const size_t *)b], true);
    return compare_keys(&x, &y);
}

void trace_sends_init(struct trace_sends *sends, const struct trace *trace)
{
    *sends = (struct trace_sends){trace, mem_calloc(trace->count, sizeof(size_t)), 0};
    for (size_t i = 0; i < trace->count; i++) {
        if (trace->events[i].kind == STEP_SEND) sends->sorted[sends->count++] = i;
    }
    qsort_r(sends->sorted, sends->count, sizeof *sends->sorted, by_message,
            (void *)(uintptr_t)trace);
}

void trace_sends_release(struct trace_sends *sends)
{
    free(sends->sorted);
}

size_t trace_send_of(const struct trace_sends *sends, const struct trace_event *receive)
{
    if (!step_info((enum step_kind)receive->kind)->receives) return TRACE_NONE;
    struct key key = key_of(receive, false);
    size_t low = 0, high = sends->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        struct key at = key_of(&sends->trace->events[sends->sorted[middle]], true);
        int order = compare_keys(&at, &key);
        if (order == 0) return sends->sorted[middle];
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return TRACE_NONE;
}

/* ---- the chain ---- */

/* Groups of a trace, by the index of their first event. */
struct groups {
    const struct trace *trace;
    struct trace_sends sends;
    size_t *by_end; /* sorted by (rank, end) */
    size_t count;
};

static bool is_head(const struct trace_event *event)
{
    return event->record == event->group;
}

static int by_end(const void *a, const void *b, void *ctx)
{
    const struct trace *trace = ctx;
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    const struct trace_event *x = &trace->events[i], *y = &trace->events[k];
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return i < k ? -1 : i > k;
}

static void groups_init(struct groups *groups, const struct trace *trace)
{
    *groups = (struct groups){.trace = trace, .by_end = mem_calloc(trace->count, sizeof(size_t))};
    trace_sends_init(&groups->sends, trace);
    for (size_t i = 0; i < trace->count; i++) {
        if (is_head(&trace->events[i])) groups->by_end[groups->count++] = i;
    }
    qsort_r(groups->by_end, groups->count, sizeof *groups->by_end, by_end,
            (void *)(uintptr_t)trace);
}

static void groups_release(struct groups *groups)
{
    trace_sends_release(&groups->sends);
    free(groups->by_end);
}

/* The first event of the group that an event is in. */
static size_t head_of(const struct trace *trace, size_t at)
{
    while (!is_head(&trace->events[at]))
        at--;
    return at;
}

/* Among the messages that the group took, the send that ended last. */
static size_t last_send(const struct groups *groups, size_t head)
{
    const struct trace_event *events = groups->trace->events;
    size_t last = TRACE_NONE;
    for (size_t at = head; at < groups->trace->count && (at == head || !is_head(&events[at]));
         at++) {
        size_t send = trace_send_of(&groups->sends, &events[at]);
        if (send != TRACE_NONE && (last == TRACE_NONE || events[send].end > events[last].end)) {
            last = send;
        }
    }
    return last == TRACE_NONE ? last : head_of(groups->trace, last);
}

/* The group that the rank (one thread) or the lane finished before this one began. */
static size_t own_before(const struct groups *groups, size_t head)
{
    const struct trace_event *events = groups->trace->events, *group = &events[head];
    if (!groups->trace->one_thread) {
        if (head == 0) return TRACE_NONE;
        size_t before = head_of(groups->trace, head - 1);
        bool same = events[before].rank == group->rank && events[before].lane == group->lane;
        return same ? before : TRACE_NONE;
    }
    size_t low = 0, high = groups->count; /* the first behind (rank, begin) */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct trace_event *at = &events[groups->by_end[middle]];
        bool behind = at->rank != group->rank ? at->rank > group->rank : at->end > group->begin;
        if (behind) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    while (low > 0 && groups->by_end[low - 1] == head) /* no time passed in it */
        low--;
    bool found = low > 0 && events[groups->by_end[low - 1]].rank == group->rank;
    return found ? groups->by_end[low - 1] : TRACE_NONE;
}

/* What the group followed; TRACE_NONE: nothing that is known. */
static size_t cause_of(const struct groups *groups, size_t head, bool *by_wire)
{
    const struct trace_event *events = groups->trace->events, *group = &events[head];
    size_t send = last_send(groups, head), own = own_before(groups, head);
    *by_wire =
        send != TRACE_NONE && group->begin > group->came &&
        (!groups->trace->one_thread || own == TRACE_NONE || events[send].end > events[own].end);
    return *by_wire ? send : own;
}

struct trace_link *trace_chain(const struct trace *trace, size_t *count)
{
    struct groups groups;
    struct trace_link *links = NULL;
    size_t cap = 0, at = TRACE_NONE;
    *count = 0;
    groups_init(&groups, trace);
    for (size_t i = 0; i < groups.count; i++) {
        size_t head = groups.by_end[i];
        if (at == TRACE_NONE || trace->events[head].end > trace->events[at].end) at = head;
    }
    while (at != TRACE_NONE && *count < groups.count) { /* equal times might lead in a circle */
        struct trace_link link = {.event = at};
        size_t cause = cause_of(&groups, at, &link.by_message);
        uint64_t begin = trace->events[at].begin;
        uint64_t since = cause == TRACE_NONE ? 0 : trace->events[cause].end;
        link.gap = begin > since ? begin - since : 0;
        MEM_GROW(links, *count, cap);
        links[(*count)++] = link;
        at = cause;
    }
    groups_release(&groups);
    return links;
}

/* ---- the summary ---- */

static char *ticks_text(char *buf, const struct trace *trace, uint64_t ticks)
{
    return units_time(buf, (double)ticks / trace->ticks_per_us / 1e6);
}

struct busy {
    uint32_t rank;
    uint64_t end, work; /* work: some lane of the rank works */
};

static int later_first(const void *a, const void *b)
{
    const struct busy *x = a, *y = b;
    if (x->end != y->end) return x->end > y->end ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int by_begin(const void *a, const void *b)
{
    const struct trace_span *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Ticks that at least one of the groups in events [first, end) covers. */
static uint64_t covered(const struct trace *trace, size_t first, size_t end)
{
    struct trace_span *spans = mem_calloc(end - first, sizeof *spans);
    size_t n = 0;
    for (size_t i = first; i < end; i++) {
        const struct trace_event *event = &trace->events[i];
        if (is_head(event)) spans[n++] = (struct trace_span){event->begin, event->end};
    }
    qsort(spans, n, sizeof *spans, by_begin);
    uint64_t sum = 0, until = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t from = spans[i].begin > until ? spans[i].begin : until;
        if (spans[i].end <= from) continue;
        sum += spans[i].end - from;
        until = spans[i].end;
    }
    free(spans);
    return sum;
}

static void note_ranks(struct out *out, const struct trace *trace)
{
    char work[UNITS_TEXT], wait[UNITS_TEXT], from[UNITS_TEXT], to[UNITS_TEXT];
    struct busy *busy = mem_calloc(trace->nranks, sizeof *busy);
    size_t at = 0;
    for (uint32_t r = 0; r < trace->nranks; r++) {
        size_t first = at;
        while (at < trace->count && trace->events[at].rank == r)
            at++;
        busy[r] = (struct busy){r, trace->spans[r].end, covered(trace, first, at)};
    }
    qsort(busy, trace->nranks, sizeof *busy, later_first);
    uint32_t shown = trace->nranks < TRACE_RANKS ? trace->nranks : TRACE_RANKS;
    if (shown < trace->nranks) {
        out_note(out, "of %u ranks, the %u that ended last:", trace->nranks, shown);
    }
    for (uint32_t i = 0; i < shown; i++) {
        const struct trace_span *span = &trace->spans[busy[i].rank];
        uint64_t all = span->end - span->begin;
        out_note(out, "rank %u: %s to %s; working %s, waiting %s", busy[i].rank,
                 ticks_text(from, trace, span->begin), ticks_text(to, trace, span->end),
                 ticks_text(work, trace, busy[i].work),
                 ticks_text(wait, trace, all > busy[i].work ? all - busy[i].work : 0));
    }
    free(busy);
}

/* "rank 2 step 3 (recv 1 <- 1)" */
static void put_link(FILE *to, const struct trace *trace, const struct trace_link *link)
{
    const struct trace_event *event = &trace->events[link->event];
    const struct step_info *info = step_info((enum step_kind)event->kind);
    fprintf(to, "rank %u step %u (%s %u", event->rank, event->step, info->name, event->chunk);
    if (info->sends || info->receives) {
        fprintf(to, " %s %u", info->sends ? "->" : "<-", event->peer);
    }
    fputc(')', to);
}

static void note_chain(struct out *out, const struct trace *trace)
{
    size_t count, length, shown = 0, hops = 0;
    struct trace_link *chain = trace_chain(trace, &count);
    if (!chain) return;
    uint64_t work = 0, wire = 0, other = 0;
    char text[3][UNITS_TEXT], *line = NULL;
    FILE *to = open_memstream(&line, &length);
    for (size_t i = 0; i < count; i++) {
        const struct trace_event *event = &trace->events[chain[i].event];
        work += event->end - event->begin;
        *(chain[i].by_message ? &wire : &other) += chain[i].gap;
        if (!chain[i].by_message) continue;
        hops++;
        if (!to || shown == TRACE_HOPS) continue;
        shown++;
        fputs(shown > 1 ? " <= " : "", to);
        put_link(to, trace, &chain[i]);
    }
    if (to) fclose(to);
    out_note(out,
             "the chain behind it: %zu group%s of steps, %s work, %s from the end of a send to the "
             "begin of its receive (%zu waited for), %s other",
             count, count == 1 ? "" : "s", ticks_text(text[0], trace, work),
             ticks_text(text[1], trace, wire), hops, ticks_text(text[2], trace, other));
    if (line && hops > 0) {
        out_note(out, "waits of the chain, the last first: %s%s", line,
                 shown < hops ? " <= .." : "");
    }
    free(line);
    free(chain);
}

void trace_note(struct out *out, const struct trace *trace)
{
    char total[UNITS_TEXT];
    uint64_t last = 0, first = UINT64_MAX;
    for (uint32_t r = 0; r < trace->nranks; r++) {
        last = trace->spans[r].end > last ? trace->spans[r].end : last;
        first = trace->spans[r].begin < first ? trace->spans[r].begin : first;
    }
    out_note(out, "timeline: %zu steps on %u rank%s in %s, from the first begin to the last end",
             trace->count, trace->nranks, trace->nranks == 1 ? "" : "s",
             ticks_text(total, trace, last > first ? last - first : 0));
    note_ranks(out, trace);
    size_t count;
    struct trace_link *chain = trace_chain(trace, &count);
    if (!chain) return;
    const struct trace_event *event = &trace->events[chain[0].event];
    const struct step_info *info = step_info((enum step_kind)event->kind);
    bool wired = info->sends || info->receives;
    char peer[32] = "", end[UNITS_TEXT];
    if (wired) snprintf(peer, sizeof peer, " %s %u", info->sends ? "->" : "<-", event->peer);
    out_note(out, "ended last: rank %u, lane %u, pass %llu, step %u (%s %u%s) at %s", event->rank,
             event->lane, (unsigned long long)event->pass, event->step, info->name, event->chunk,
             peer, ticks_text(end, trace, event->end));
    free(chain);
    note_chain(out, trace);
}
