/* SPDX-License-Identifier: Apache-2.0
 * Output of `commsim coll`: see coll_report.h. */
#include "net/coll_report.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/out.h"

static void log_messages(struct out *log, const struct result *result, const struct net_result *net)
{
    for (size_t i = 0; log && i < net->nlog; i++) {
        const struct msg_log *m = &net->log[i];
        out_row(log,
                (struct out_cell[]){out_uint(result->bytes), out_text(result->algo),
                                    out_bool(result->in_place), out_uint(m->src), out_uint(m->dst),
                                    out_uint(m->channel), out_uint(m->number), out_uint(m->bytes)});
    }
}

/* Writes the file of --trace, and says what it shows. It is closed with the first timeline. */
static int write_trace(struct coll_report *report, const struct result *result,
                       const struct net_result *net, struct err *err)
{
    const struct trace_file *file = &report->trace;
    char *what =
        mem_printf("%s %s, %llu B, %s %s, %s, %u ranks", report->request->coll->name, result->algo,
                   (unsigned long long)result->bytes, result->dtype, result->redop,
                   result->in_place ? "in place" : "out of place", result->nranks);
    struct trace_about about = {
        .program = "commsim " COMMSIM_VERSION,
        .command = report->command,
        .source = source_name(SOURCE_SIMULATED),
        .what = what,
        .clock = "simulated microseconds since the start",
    };
    int bad = trace_file_close(&report->trace, &net->steps, &about, err);
    if (!bad) {
        out_note(report->table, "--trace: %s, written to %s", what, file->path);
        trace_note(report->table, &net->steps);
    }
    free(what);
    return bad;
}

int coll_report_run(struct coll_report *report, const struct result *result,
                    const struct net_result *net, struct err *err)
{
    log_messages(report->log, result, net);
    return report->trace.fd >= 0 ? write_trace(report, result, net, err) : 0;
}

struct result coll_result(const struct coll_request *request, const char *name, size_t count,
                          bool in_place)
{
    const struct coll *coll = request->coll;
    uint32_t nranks = (uint32_t)request->nranks;
    struct result result = {
        .source = SOURCE_SIMULATED,
        .coll = coll->id,
        .root = coll->rooted ? (int)request->root : -1,
        .nranks = nranks,
        .in_place = in_place,
        .bytes = coll_size(coll, nranks, count, dtype_bytes(request->dtype)),
        .count = count,
        .nsamples = 1,
        .batch = 1,
        .wrong = -1,
    };
    snprintf(result.algo, sizeof result.algo, "%s", name);
    snprintf(result.buffers, sizeof result.buffers, "-");
    snprintf(result.dtype, sizeof result.dtype, "%s", dtype_name(request->dtype));
    snprintf(result.redop, sizeof result.redop, "%s",
             coll->reduces ? redop_name(request->redop) : "none");
    if (request->shares) result.busbw_factor = traffic_busbw(nranks, request->shares);
    return result;
}

void coll_result_time(struct result *result, double time_us)
{
    result->time_us = time_us;
    result->min_us = result->p50_us = result->p95_us = time_us;
    result->p99_us = result->max_us = time_us;
    result_bandwidths(result);
}

void coll_report_row(const struct coll_report *report, const struct result *out_of_place,
                     const struct result *in_place)
{
    struct table_side sides[2] = {0};
    if (out_of_place) sides[0] = (struct table_side){out_of_place, &out_of_place->time_us, 1};
    if (in_place) sides[1] = (struct table_side){in_place, &in_place->time_us, 1};
    table_row(report->table, &sides[0], &sides[1]);
}

void coll_report_meta(const struct coll_report *report, const char *topology)
{
    const struct coll_request *request = report->request;
    struct out *out = report->table;
    out_meta(out, "program", out_text("commsim " COMMSIM_VERSION));
    out_meta(out, "source", out_text(source_name(SOURCE_SIMULATED)));
    out_meta(out, "command", out_text(report->command));
    out_meta(out, "collective", out_text(request->coll->name));
    out_meta(out, "topology", out_text(topology));
    out_meta(out, "nranks", out_uint(request->nranks));
    if (request->shares && request->nranks <= VERIFY_RANKS) {
        char *text = traffic_text((uint32_t)request->nranks, request->shares);
        out_meta(out, "shares", out_text(text));
        free(text);
    }
}

int coll_report_open(struct coll_report *report, const struct coll_request *request,
                     const char *command, unsigned show, struct err *err)
{
    static const struct out_column log_columns[] = {
        {"size", "B", 0, 0, OUT_UINT, NULL, NULL},
        {"algo", NULL, 0, 0, OUT_TEXT, NULL, NULL},
        {"in_place", NULL, 0, 0, OUT_BOOL, NULL, NULL},
        {"src", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"dst", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"channel", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"number", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"bytes", "B", 0, 0, OUT_UINT, NULL, NULL},
    };
    *report = (struct coll_report){.request = request, .command = command, .trace.fd = -1};
    report->table = table_new(show);
    int bad = out_add_asked(report->table, request->json, request->csv, request->overwrite, err);
    if (request->log) {
        report->log = out_new(log_columns, sizeof log_columns / sizeof *log_columns);
        bad |= out_add(report->log, OUT_FORMAT_CSV, request->log, request->overwrite, err);
    }
    if (!bad && request->trace)
        bad = trace_file_open(&report->trace, request->trace, request->overwrite, err);
    return bad;
}

void coll_report_close(struct coll_report *report, struct err *err)
{
    trace_file_close(&report->trace, NULL, NULL, err); /* there was no timeline */
    out_close(report->log, err);
    out_close(report->table, err);
}
