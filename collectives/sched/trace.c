/* SPDX-License-Identifier: Apache-2.0
 * Timelines and their files: see trace.h. The format is that of the document "Trace Event Format"
 * of the Chromium project: complete events (X) for steps and waits, flow events (s, f) for
 * messages, metadata events (M) for names. Times there are in microseconds. */
#include "sched/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "sched/sched.h"
#include "sched/trace_match.h"

void trace_init(struct trace *trace, uint32_t nranks, double ticks_per_us, bool one_thread)
{
    *trace = (struct trace){
        .nranks = nranks,
        .ticks_per_us = ticks_per_us,
        .one_thread = one_thread,
        .spans = mem_calloc(nranks, sizeof *trace->spans),
    };
}

void trace_release(struct trace *trace)
{
    free(trace->events);
    free(trace->spans);
    *trace = (struct trace){0};
}

void trace_add(struct trace *trace, const struct trace_event *event)
{
    MEM_GROW(trace->events, trace->count, trace->cap);
    trace->events[trace->count++] = *event;
}

static int by_place(const void *a, const void *b)
{
    const struct trace_event *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->pass != y->pass) return x->pass < y->pass ? -1 : 1;
    return x->record < y->record ? -1 : x->record > y->record;
}

void trace_sort(struct trace *trace)
{
    if (trace->count > 0) qsort(trace->events, trace->count, sizeof *trace->events, by_place);
}

/* ---- writing ---- */

struct writer {
    FILE *to;
    const struct trace *trace;
    bool any; /* an event was written before */
};

static void put_comma(struct writer *writer)
{
    fputs(writer->any ? ",\n" : "\n", writer->to);
    writer->any = true;
}

static double us(const struct writer *writer, uint64_t ticks)
{
    return (double)ticks / writer->trace->ticks_per_us;
}

/* "name": text, for a process or one of its threads. */
static void put_name(struct writer *writer, const char *what, uint32_t rank, uint32_t thread,
                     const char *name, uint32_t number)
{
    put_comma(writer);
    fprintf(writer->to, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"",
            what, rank, thread);
    fprintf(writer->to, name, number);
    fputs("\"}}", writer->to);
}

/* The begin of a complete event, up to its arguments. */
static void put_complete(struct writer *writer, const char *cat, uint32_t rank, uint32_t thread,
                         uint64_t begin, uint64_t end)
{
    put_comma(writer);
    fprintf(writer->to,
            "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.6f,\"dur\":%.6f,", cat,
            rank, thread, us(writer, begin), us(writer, end - begin));
}

static void put_step(struct writer *writer, const struct trace_event *event, bool critical)
{
    const struct step_info *info = step_info((enum step_kind)event->kind);
    bool wired = info->sends || info->receives;
    if (event->record == event->group && event->begin > event->came) {
        put_complete(writer, "wait", event->rank, event->lane, event->came, event->begin);
        fprintf(writer->to, "\"name\":\"wait\",\"args\":{\"step\":%u,\"pass\":%llu}}", event->step,
                (unsigned long long)event->pass);
    }
    put_complete(writer, "step", event->rank, event->lane, event->begin, event->end);
    fprintf(writer->to, "\"name\":\"%s %u", info->name, event->chunk);
    if (wired) fprintf(writer->to, " %s %u", info->sends ? "->" : "<-", event->peer);
    fprintf(writer->to,
            "\",\"args\":{\"step\":%u,\"kind\":\"%s\",\"group\":%u,\"chunk\":%u,\"chunks\":%u,"
            "\"pass\":%llu,\"bytes\":%llu,\"last_chain\":%s",
            event->step, info->name, event->group, event->chunk, event->nchunks,
            (unsigned long long)event->pass, (unsigned long long)event->bytes,
            critical ? "true" : "false");
    if (wired) {
        fprintf(writer->to, ",\"peer\":%u,\"channel\":%u,\"message\":%llu", event->peer,
                event->channel, (unsigned long long)event->number);
    }
    fputs("}}", writer->to);
}

static void put_flow(struct writer *writer, char phase, size_t id, const struct trace_event *event)
{
    put_comma(writer);
    fprintf(writer->to,
            "{\"ph\":\"%c\",\"cat\":\"message\",\"name\":\"message\",\"id\":%zu,\"pid\":%u,"
            "\"tid\":%u,\"ts\":%.6f%s}",
            phase, id, event->rank, event->lane, us(writer, event->begin),
            phase == 'f' ? ",\"bp\":\"e\"" : "");
}

/* An arrow for every receive whose send is known. */
static void put_flows(struct writer *writer)
{
    const struct trace *trace = writer->trace;
    struct trace_sends sends;
    trace_sends_init(&sends, trace);
    for (size_t i = 0; i < trace->count; i++) {
        size_t send = trace_send_of(&sends, &trace->events[i]);
        if (send == TRACE_NONE) continue;
        put_flow(writer, 's', send, &trace->events[send]);
        put_flow(writer, 'f', send, &trace->events[i]);
    }
    trace_sends_release(&sends);
}

/* Names of ranks and lanes. The operation of a rank has a thread of its own, behind its lanes. */
static void put_frames(struct writer *writer)
{
    const struct trace *trace = writer->trace;
    size_t at = 0;
    for (uint32_t rank = 0; rank < trace->nranks; rank++) {
        put_name(writer, "process_name", rank, 0, "rank %u", rank);
        uint32_t nlanes = 0;
        for (; at < trace->count && trace->events[at].rank == rank; at++) {
            uint32_t lane = trace->events[at].lane;
            if (lane < nlanes) continue;
            put_name(writer, "thread_name", rank, lane, "lane %u", lane);
            nlanes = lane + 1;
        }
        put_name(writer, "thread_name", rank, nlanes, "operation", 0);
        const struct trace_span *span = &trace->spans[rank];
        put_complete(writer, "operation", rank, nlanes, span->begin, span->end);
        fputs("\"name\":\"operation\",\"args\":{}}", writer->to);
    }
}

/* By event: it is in a group of the chain that led to the last step. Freed by the caller. */
static bool *critical_events(const struct trace *trace)
{
    bool *critical = mem_calloc(trace->count, sizeof *critical);
    size_t count;
    struct trace_link *chain = trace_chain(trace, &count);
    for (size_t i = 0; i < count; i++) {
        const struct trace_event *head = &trace->events[chain[i].event];
        for (size_t at = chain[i].event;
             at < trace->count && trace->events[at].rank == head->rank &&
             trace->events[at].lane == head->lane && trace->events[at].pass == head->pass &&
             trace->events[at].group == head->group;
             at++)
            critical[at] = true;
    }
    free(chain);
    return critical;
}

static void put_about(FILE *to, const struct trace *trace, const struct trace_about *about)
{
    const struct {
        const char *key, *text;
    } words[] = {
        {"program", about->program}, {"command", about->command}, {"source", about->source},
        {"what", about->what},       {"clock", about->clock},
    };
    json_t *data = json_object();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].text) json_object_set_new(data, words[i].key, json_string(words[i].text));
    }
    json_object_set_new(data, "nranks", json_integer(trace->nranks));
    json_object_set_new(data, "steps", json_integer((json_int_t)trace->count));
    json_dumpf(data, to, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(data);
}

static void write_all(FILE *to, const struct trace *trace, const struct trace_about *about)
{
    struct writer writer = {.to = to, .trace = trace};
    bool *critical = critical_events(trace);
    fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":", to);
    put_about(to, trace, about);
    fputs(",\"traceEvents\":[", to);
    put_frames(&writer);
    for (size_t i = 0; i < trace->count; i++)
        put_step(&writer, &trace->events[i], critical[i]);
    put_flows(&writer);
    fputs("\n]}\n", to);
    free(critical);
}

/* ---- the file ---- */

int trace_file_open(struct trace_file *file, const char *path, bool overwrite, struct err *err)
{
    *file = (struct trace_file){.path = path, .fd = -1};
    if (strcmp(path, "-") == 0 || *path == '\0') {
        return err_add(err, ERR_USAGE,
                       "--trace \"%s\": the timeline needs a file of its own, as in --trace "
                       "out.json",
                       path);
    }
    int unless = overwrite ? 0 : O_EXCL;
    file->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    file->created = file->fd >= 0;
    if (file->fd < 0 && !unless && errno == EEXIST) {
        file->fd = open(path, O_WRONLY | O_CLOEXEC);
    }
    if (file->fd >= 0) return 0;
    if (errno == EEXIST) {
        return err_add(err, ERR_USAGE,
                       "--trace: %s exists and is kept; name another file or give --overwrite",
                       path);
    }
    return err_add(err, ERR_USAGE, "--trace: cannot write %s: %s", path, strerror(errno));
}

/* Empties a regular file, then writes. 0, or -1 with errno. */
static int rewrite(int fd, const struct trace *trace, const struct trace_about *about)
{
    struct stat stat;
    if (fstat(fd, &stat) || (S_ISREG(stat.st_mode) && ftruncate(fd, 0))) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    FILE *to = fdopen(fd, "w");
    if (!to) return -1;
    write_all(to, trace, about);
    int error = fflush(to) || ferror(to) ? errno : 0;
    if (fclose(to) && !error) error = errno;
    errno = error;
    return error ? -1 : 0;
}

int trace_file_close(struct trace_file *file, const struct trace *trace,
                     const struct trace_about *about, struct err *err)
{
    int fd = file->fd;
    file->fd = -1;
    if (fd < 0) return 0;
    if (!trace) {
        close(fd);
        if (file->created) unlink(file->path);
        return 0;
    }
    if (rewrite(fd, trace, about) == 0) return 0;
    return err_add(err, ERR_FAILED, "--trace: cannot write %s: %s", file->path, strerror(errno));
}
