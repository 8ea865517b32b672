/* SPDX-License-Identifier: Apache-2.0
 * `commsim coll`: options -> sizes x algorithms -> build, link, verify, simulate -> table. Here the
 * network is one switch; coll_cluster.c has clusters. Nothing here knows how a network works or how
 * a table looks. */
#include "net/coll_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/units.h"
#include "net/coll_cluster.h"
#include "net/coll_compare.h"
#include "net/coll_loop.h"
#include "net/coll_report.h"
#include "net/coll_request.h"
#include "net/ready.h"

struct session {
    const struct coll_request *request;
    struct ready_list schedules;
    struct coll_report report;
};

/* ---- one row ---- */

static struct result blank_result(const struct coll_request *request, const struct ready *ready,
                                  size_t count, bool in_place)
{
    struct result result = coll_result(request, ready->sched->name, count, in_place);
    result.wrong = request->nranks <= VERIFY_RANKS ? 0 : -1;
    result.channels = ready->choice.channels;
    result.parts = ready->choice.parts;
    snprintf(result.transport, sizeof result.transport, "switch");
    double factor = request->shares ? result.busbw_factor
                                    : request->coll->busbw_factor((uint32_t)request->nranks);
    result.bound_us = (double)result.bytes * factor / request->beta_Bps * 1e6;
    return result;
}

static int simulate(struct session *session, const struct ready *ready, size_t count, bool in_place,
                    struct result *result, struct err *err)
{
    const struct coll_request *request = session->request;
    const struct linked *linked = ready->linked[in_place];
    struct net_args args = coll_net_args(request);
    struct traffic *traffic = coll_size_args(request, linked, count, &args);
    args.keep_steps = session->report.trace.fd >= 0; /* of the first placement that runs */
    struct net_result net;
    int failed = net_run(linked, &args, &net, err);
    free(traffic);
    if (failed) return -1;
    *result = blank_result(request, ready, count, in_place);
    result->passes = net.passes;
    result->steps = sched_prog_of(ready->sched, 0)->nsteps * net.passes;
    coll_result_time(result, (double)net.total_ps / 1e6);
    int bad = coll_report_run(&session->report, result, &net, err);
    net_result_release(&net);
    return bad;
}

static int run_row(struct session *session, const struct algo_choice *choice, size_t count,
                   struct err *err)
{
    const struct ready *ready = ready_get(&session->schedules, choice, err);
    if (!ready) return -1;
    struct result results[2], *sides[2] = {NULL, NULL};
    for (int in_place = 0; in_place < 2; in_place++) {
        if (!ready->linked[in_place]) continue;
        sides[in_place] = &results[in_place];
        if (simulate(session, ready, count, in_place, sides[in_place], err)) return -1;
    }
    coll_report_row(&session->report, sides[0], sides[1]);
    return 0;
}

/* ---- all rows ---- */

static int run_choice(const struct algo_choice *choice, size_t count, void *context,
                      struct err *err)
{
    return run_row(context, choice, count, err);
}

static void describe(struct out *out, const struct coll_request *request)
{
    char alpha[UNITS_TEXT], beta[UNITS_TEXT], overhead[UNITS_TEXT], gamma[UNITS_TEXT];
    char slice[UNITS_TEXT];
    units_time(alpha, (double)request->alpha_ps / 1e12);
    units_time(overhead, (double)request->overhead_ps / 1e12);
    units_bandwidth(beta, request->beta_Bps);
    units_bandwidth(gamma, request->gamma_Bps);
    units_size(slice, request->slice);
    out_note(out, "commsim %s: SIMULATED %s of %llu rank(s) on one switch; nothing was measured",
             COMMSIM_VERSION, request->coll->name, (unsigned long long)request->nranks);
    out_note(out,
             "link of a rank, each direction: beta %s, max-min fair; a message arrives alpha = %s "
             "after its last byte left",
             beta, alpha);
    out_note(out, "lanes: posting a message takes %s; reduces and copies %s%s",
             request->overhead_ps ? overhead : "no time",
             request->gamma_Bps > 0 ? "run at " : "take no time",
             request->gamma_Bps > 0 ? gamma : "");
    out_note(out, "wires: %s, %llu slots (more if the schedule needs them); slice %s",
             coll_wires[request->wire], (unsigned long long)request->slots,
             request->slice ? slice : "whole chunks, one pass");
    out_note(out,
             "units: us, sizes in bytes, GB = 10^9 B; algbw = size / time, busbw = algbw x %s; "
             "%%bound = busbw / beta",
             request->coll->busbw);
    out_note(out,
             request->nranks <= VERIFY_RANKS
                 ? "#wrong 0: each schedule was proven right before it ran (verifier)"
                 : "#wrong N/A: schedules of more than %d ranks are not verified here",
             VERIFY_RANKS);
}

static void add_meta(const struct coll_report *report)
{
    const struct coll_request *request = report->request;
    struct out *out = report->table;
    coll_report_meta(report, "one switch, one link per rank");
    out_meta(out, "alpha_ps", out_uint(request->alpha_ps));
    out_meta(out, "beta_Bps", out_double(request->beta_Bps));
    out_meta(out, "overhead_ps", out_uint(request->overhead_ps));
    out_meta(out, "gamma_Bps",
             request->gamma_Bps > 0 ? out_double(request->gamma_Bps) : (struct out_cell){0});
    out_meta(out, "slots", out_uint(request->slots));
    out_meta(out, "slice_B", out_uint(request->slice));
    out_meta(out, "wire", out_text(coll_wires[request->wire]));
    out_meta(out, "verified", out_bool(request->nranks <= VERIFY_RANKS));
}

static int run_switch(struct coll_request *request, const struct opts *opts, const char *command,
                      struct err *err)
{
    if (coll_check_form(request, opts, err)) return -1;
    struct session session = {.request = request};
    int bad = coll_report_open(&session.report, request, command, 0, err);
    if (!bad) {
        add_meta(&session.report);
        describe(session.report.table, request);
        session.schedules = coll_schedules(request, session.report.table);
        session.schedules.in_place = true;
        bad = coll_each(request, run_choice, &session, err);
        ready_release(&session.schedules);
    }
    coll_report_close(&session.report, err);
    return bad;
}

/* ---- the command ---- */

/* Freed by the caller. */
static char *command_line(int argc, char **argv)
{
    char *line = mem_strdup("commsim");
    for (int i = 0; i < argc; i++) {
        char *longer = mem_printf("%s %s", line, argv[i]);
        free(line);
        line = longer;
    }
    return line;
}

static const char about[] =
    "Simulates a collective: what collbench or nccl-tests would print on a cluster (--topo), and "
    "what limits it; or the schedules that collbench runs, on one switch. On a modelled clock: "
    "nothing is measured. Operations are those of `collbench list`.";

int coll_cmd(int argc, char **argv)
{
    struct coll_request request = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    char *line = command_line(argc, argv);
    int bad = opts_parse(&opts, coll_options, &request, argc, argv, &err);
    if (opts.help) {
        opts_help(stdout, "commsim coll OPERATION [options]", about, coll_options);
    } else if (!bad && !coll_check(&request, &opts, &err)) {
        if (request.compare)
            coll_compare(&request, &opts, line, &err);
        else if (request.topo)
            coll_cluster(&request, &opts, line, &err);
        else
            run_switch(&request, &opts, line, &err);
    }
    coll_request_release(&request);
    free(line);
    opts_release(&opts);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
