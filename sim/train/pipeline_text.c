/* SPDX-License-Identifier: Apache-2.0
 * Pipelines as pictures: see pipeline_text.h. */
#include "train/pipeline_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char *const kind_names[NTASK_KINDS] = {"F", "B", "W", "BW", "F&BW"};

/* The largest time that divides all starts and ends. */
static ps_t common(const struct pipeline *p, const struct pipeline_run *run)
{
    ps_t unit = run->end_ps;
    for (size_t i = 0; i < p->first[p->shape.ranks] && unit > 1; i++) {
        for (int end = 0; end < 2; end++) {
            ps_t a = end ? run->spans[i].end_ps : run->spans[i].start_ps;
            while (a) {
                ps_t rest = unit % a;
                unit = a;
                a = rest;
            }
        }
    }
    return unit;
}

static char mark(const struct pipeline_task *t)
{
    switch (t->kind) {
    case PIPELINE_F:
        return (char)('0' + t->micro[0] % 10);
    case PIPELINE_W:
        return '=';
    case PIPELINE_PAIR:
        return '#';
    default:
        return (char)('a' + t->micro[1] % 26);
    }
}

void pipeline_draw(struct out *out, const struct pipeline *p, const struct pipeline_run *run,
                   uint32_t width)
{
    if (run->end_ps == 0) return;
    ps_t unit = common(p, run);
    uint32_t columns = run->end_ps / unit <= width ? (uint32_t)(run->end_ps / unit) : width;
    char *line = mem_calloc((size_t)columns + 1, 1);
    double column_ps = (double)run->end_ps / columns;
    out_note(out,
             "a column is %.4g us; 0-9 forward and a-z backward of a micro-batch (the last digit, "
             "every 26th letter), = gradient of weights, # forward and backward overlapped, . idle",
             column_ps / 1e6);
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        size_t i = p->first[r], end = p->first[r + 1];
        for (uint32_t c = 0; c < columns; c++) {
            double middle = (c + 0.5) * column_ps;
            while (i < end && (double)run->spans[i].end_ps <= middle) {
                i++;
            }
            bool idle = i == end || (double)run->spans[i].start_ps > middle;
            line[c] = idle ? '.' : mark(&p->tasks[i]);
        }
        out_note(out, "%4" PRIu32 " %s", r, line);
    }
    free(line);
}

static void write_event(FILE *to, const struct pipeline *p, const struct pipeline_run *run,
                        uint32_t rank, size_t i)
{
    const struct pipeline_task *t = &p->tasks[i];
    const struct task_span *s = &run->spans[i];
    int side = t->kind != PIPELINE_F;
    fprintf(to, ",\n{\"name\":\"%s %" PRIu32, kind_names[t->kind],
            t->micro[t->kind == PIPELINE_PAIR ? 0 : side]);
    if (t->kind == PIPELINE_PAIR) fprintf(to, "&%" PRIu32, t->micro[1]);
    fprintf(to,
            "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%" PRIu32 ",\"ts\":%" PRIu64
            ".%06" PRIu64 ",\"dur\":%" PRIu64 ".%06" PRIu64 ",\"args\":{\"stage\":%" PRIu32 "}}",
            kind_names[t->kind], rank, s->start_ps / 1000000, s->start_ps % 1000000,
            (s->end_ps - s->start_ps) / 1000000, (s->end_ps - s->start_ps) % 1000000,
            pipeline_stage(p, rank, t->chunk[side]));
}

int pipeline_trace(const struct pipeline *p, const struct pipeline_run *run, const char *path,
                   bool overwrite, struct err *err)
{
    FILE *to = fopen(path, overwrite ? "w" : "wx");
    if (!to)
        return err_add(err, ERR_USAGE, "--trace: %s: %s%s", path, strerror(errno),
                       errno == EEXIST ? "; nearest: --overwrite" : "");
    fprintf(
        to,
        "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"%s, simulated\"}}",
        pipeline_row(p->shape.id)->name);
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        fprintf(to,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%" PRIu32
                ",\"args\":{\"name\":\"rank %" PRIu32 "\"}}",
                r, r);
        for (size_t i = p->first[r]; i < p->first[r + 1]; i++) {
            write_event(to, p, run, r, i);
        }
    }
    fprintf(to, "\n]}\n");
    int bad = ferror(to);
    bad |= fclose(to);
    return bad ? err_add(err, ERR_FAILED, "--trace: %s could not be written", path) : 0;
}
