/* SPDX-License-Identifier: Apache-2.0
 * What `commsim coll` writes: the table that collbench has, the log of messages, the timeline. One
 * result goes in; nothing here knows how a time was found. */
#pragma once

#include "net/coll_request.h"
#include "net/net.h"
#include "sched/table.h"
#include "sched/trace.h"

struct out;

struct coll_report {
    const struct coll_request *request;
    const char *command; /* line, for files */
    struct out *table, *log;
    struct trace_file trace; /* fd -1: none, or written */
};

/* Opens all that is asked for; `show` is that of table_new. 0, or -1 (ERR_USAGE). Closed by
 * coll_report_close in either case. */
int coll_report_open(struct coll_report *report, const struct coll_request *request,
                     const char *command, unsigned show, struct err *err);
void coll_report_close(struct coll_report *report, struct err *err);

/* Facts that every run has: program, operation, sizes. */
void coll_report_meta(const struct coll_report *report, const char *topology);

/* What every simulated row says before its time is known; `name` is the algorithm. */
struct result coll_result(const struct coll_request *request, const char *name, size_t count,
                          bool in_place);

/* Sets all times of a result, and its bandwidths. */
void coll_result_time(struct result *result, double time_us);

/* A row: the placements that are not NULL. */
void coll_report_row(const struct coll_report *report, const struct result *out_of_place,
                     const struct result *in_place);

/* Writes the messages of a run to --log, and its steps to --trace if that waits for them. 0 or -1.
 */
int coll_report_run(struct coll_report *report, const struct result *result,
                    const struct net_result *net, struct err *err);
