/* SPDX-License-Identifier: Apache-2.0
 * `commsim coll`: options -> sizes x algorithms -> build, link, verify, simulate -> table. Nothing
 * here knows how a network works or how a table looks. */
#include "net/coll_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/units.h"
#include "kernels/kernels.h"
#include "net/net.h"
#include "sched/msccl.h"
#include "sched/sweep.h"
#include "sched/table.h"
#include "sched/verify.h"

enum { VERIFY_RANKS = 64 }; /* up to here a schedule is always verified before it runs */

enum wire_choice { CHOICE_STAGED, CHOICE_PULL };
static const char *const wire_choices[] = {"staged", "pull", NULL};

struct request {
    uint64_t nranks, root, channels, parts, slots, size, slice;
    struct sweep sweep;
    ps_t alpha_ps, overhead_ps;
    double beta_Bps, gamma_Bps;
    struct opts_list algos;
    unsigned wire;
    const char *dtype_name, *redop_name, *json, *csv, *log, *trace, *node_text, *matrix, *schedule;
    double imbalance;
    bool overwrite;
    const struct coll *coll; /* from here on found, not read */
    enum dtype dtype;
    enum redop redop;
    uint32_t *nodes, nnodes; /* node groups */
    double *shares;          /* alltoallv: of the traffic; else NULL */
    struct sched *drawn;     /* of --schedule; else NULL */
};

enum { MOST = 1 << 30 }; /* ranks, channels, parts: far above what memory holds */

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct request, field), .value = (value_), .arg = (arg_),               \
        .help = (help_), __VA_ARGS__                                                               \
    }

static const struct opts_row rows[] = {
    ROW("ranks", 0, OPTS_UINT, nranks, "8", "N", "ranks, each with one link to the switch",
        .section = "The network", .min = 1, .max = MOST),
    ROW("alpha", 0, OPTS_TIME_PS, alpha_ps, "5us", "TIME",
        "latency: a message arrives this long after its last byte has left"),
    ROW("beta", 0, OPTS_BANDWIDTH, beta_Bps, "50GB/s", "BANDWIDTH",
        "bandwidth of a rank's link, in each direction"),
    ROW("overhead", 0, OPTS_TIME_PS, overhead_ps, "0ps", "TIME",
        "time for which a lane is busy with each message it posts"),
    ROW("gamma", 0, OPTS_BANDWIDTH, gamma_Bps, NULL, "BANDWIDTH",
        "speed of reduces and copies; without it they take no time"),
    ROW("slots", 0, OPTS_UINT, slots, "8", "N",
        "messages that a wire holds; raised to what the schedule needs", .min = 1,
        .max = UINT32_MAX),
    ROW("wire", 0, OPTS_CHOICE, wire, "staged", "KIND",
        "how messages travel: staged copies them to a slot, pull keeps the sender's buffer busy "
        "until the receiver has read it",
        .choices = wire_choices),
    ROW("size", 0, OPTS_SIZE, size, NULL, "SIZE", "one size: the same as -b SIZE -e SIZE",
        .section = "The call (letters as in nccl-tests)"),
    ROW("minbytes", 'b', OPTS_SIZE, sweep.min, "32M", "SIZE", "smallest size"),
    ROW("maxbytes", 'e', OPTS_SIZE, sweep.max, "32M", "SIZE", "largest size"),
    ROW("stepbytes", 'i', OPTS_SIZE, sweep.step, "1M", "SIZE", "added from size to size"),
    ROW("stepfactor", 'f', OPTS_UINT, sweep.factor, NULL, "N",
        "multiplied from size to size, instead of --stepbytes", .min = 1, .max = UINT32_MAX),
    ROW("datatype", 'd', OPTS_STRING, dtype_name, "float", "TYPE", "element type"),
    ROW("op", 'o', OPTS_STRING, redop_name, "sum", "OP", "reduction operator"),
    ROW("root", 'r', OPTS_UINT, root, "0", "RANK", "of broadcast, reduce, gather, scatter",
        .min = 0, .max = MOST),
    ROW("imbalance", 0, OPTS_DOUBLE, imbalance, "1", "F",
        "alltoallv: rank 0 receives F times the mean, the others share the rest"),
    ROW("matrix", 0, OPTS_STRING, matrix, NULL, "FILE",
        "alltoallv: who sends which share to whom: a row of numbers per sender"),
    ROW("algo", 0, OPTS_LIST, algos, "auto", "NAME[,NAME]",
        "algorithms; auto takes the one that suits the size, all takes every one of the operation",
        .section = "The algorithm"),
    ROW("schedule", 0, OPTS_STRING, schedule, NULL, "FILE",
        "a schedule of your own, as MSCCL writes them (XML), in place of an algorithm"),
    ROW("channels", 0, OPTS_UINT, channels, NULL, "N",
        "independent copies of the pattern; without it, the algorithm's own number", .min = 1,
        .max = MOST),
    ROW("parts", 0, OPTS_UINT, parts, NULL, "N",
        "pieces into which each channel's share is cut; without it, 1, or what auto chooses",
        .min = 1, .max = MOST),
    ROW("nodes", 0, OPTS_STRING, node_text, NULL, "N+N..",
        "node groups of neighbouring ranks for hierarchical algorithms, such as 2+3 or 2x4 (2 "
        "nodes of 4); without it, all ranks are one node"),
    ROW("slice", 0, OPTS_SIZE, slice, "0", "SIZE",
        "most bytes of a chunk that one pass handles, a multiple of 64; 0: whole chunks, one pass"),
    ROW("json", 'J', OPTS_STRING, json, NULL, "FILE",
        "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("csv", 0, OPTS_STRING, csv, NULL, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("log", 0, OPTS_STRING, log, NULL, "FILE", "write every message of every run as CSV"),
    ROW("trace", 0, OPTS_STRING, trace, NULL, "FILE",
        "write the timeline of every step (Chrome trace format: chrome://tracing, Perfetto), out "
        "of place, of one size and one algorithm"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, NULL, "files may exist already"),
    {.name = NULL},
};

/* ---- schedules, built once for all sizes ---- */

struct ready {
    struct algo_choice choice;
    struct sched *sched;
    struct linked *linked[2]; /* out of place, in place */
};

struct session {
    struct request request;
    struct ready *ready;
    size_t nready, cap;
    struct out *table, *log;
    struct trace_file trace;
    const char *command; /* line, for files */
};

/* Links and verifies one placement. A placement that cannot be linked (a swap in place cannot be
 * pulled) leaves its cells unknown, and `why` says so. */
static int link_placement(const struct request *request, struct ready *ready, bool in_place,
                          struct err *why, struct err *err)
{
    static const enum wire_mode modes[] = {
        [CHOICE_STAGED] = WIRE_STAGED, [CHOICE_PULL] = WIRE_PULL};
    struct link_opts opts = {.mode = modes[request->wire], .in_place = in_place, .fuse = true};
    struct linked *linked = link_sched(ready->sched, &opts, why);
    ready->linked[in_place] = linked;
    if (!linked || request->nranks > VERIFY_RANKS) {
        return 0;
    }
    return verify_sched(ready->sched, in_place, err) ||
                   verify_linked(linked, linked->least_depth, err)
               ? -1
               : 0;
}

static int link_both(struct session *session, struct ready *ready, struct err *err)
{
    struct err why = ERR_INIT;
    int bad = 0;
    int placements = coll_in_place(session->request.coll) ? 2 : 1;
    for (int in_place = 0; in_place < placements; in_place++) {
        if (session->request.drawn && verify_sched(ready->sched, in_place, &why)) continue;
        bad |= link_placement(&session->request, ready, in_place, &why, err);
    }
    if (!bad && !ready->linked[0] && !ready->linked[1]) {
        return err_move(err, &why);
    }
    if (why.count > 0) {
        out_note(session->table, "%s is not run %s: %s", ready->sched->name,
                 ready->linked[0] ? "in place" : "out of place", why.text);
    }
    err_release(&why);
    return bad;
}

/* The schedule of a choice; built, linked and verified when it is first asked for. */
static const struct ready *get_ready(struct session *session, const struct algo_choice *choice,
                                     struct err *err)
{
    for (size_t i = 0; i < session->nready; i++) {
        const struct algo_choice *c = &session->ready[i].choice;
        if (c->algo == choice->algo && c->channels == choice->channels &&
            c->parts == choice->parts) {
            return &session->ready[i];
        }
    }
    const struct request *request = &session->request;
    struct algo_args args = {.nranks = (uint32_t)request->nranks,
                             .root = request->coll->rooted ? (uint32_t)request->root : 0,
                             .channels = choice->channels,
                             .parts = choice->parts,
                             .nnodes = request->nnodes,
                             .nodes = request->nodes};
    MEM_GROW(session->ready, session->nready, session->cap);
    struct ready *ready = &session->ready[session->nready++];
    *ready = (struct ready){.choice = *choice};
    ready->sched = request->drawn ? request->drawn : algo_build(choice->algo, &args, false, err);
    if (!ready->sched || link_both(session, ready, err)) {
        return NULL;
    }
    return ready;
}

/* ---- one row ---- */

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
static int write_trace(struct session *session, const struct result *result,
                       const struct net_result *net, struct err *err)
{
    const struct trace_file *file = &session->trace;
    char *what =
        mem_printf("%s %s, %llu B, %s %s, %s, %u ranks", session->request.coll->name, result->algo,
                   (unsigned long long)result->bytes, result->dtype, result->redop,
                   result->in_place ? "in place" : "out of place", result->nranks);
    struct trace_about about = {
        .program = "commsim " COMMSIM_VERSION,
        .command = session->command,
        .source = source_name(SOURCE_SIMULATED),
        .what = what,
        .clock = "simulated microseconds since the start",
    };
    int bad = trace_file_close(&session->trace, &net->steps, &about, err);
    if (!bad) {
        out_note(session->table, "--trace: %s, written to %s", what, file->path);
        trace_note(session->table, &net->steps);
    }
    free(what);
    return bad;
}

/* What every simulated row says before it is run. */
static struct result blank_result(const struct request *request, const struct ready *ready,
                                  size_t count, bool in_place)
{
    const struct coll *coll = request->coll;
    struct result result = {
        .source = SOURCE_SIMULATED,
        .coll = coll->id,
        .root = coll->rooted ? (int)request->root : -1,
        .nranks = (uint32_t)request->nranks,
        .in_place = in_place,
        .bytes = coll_size(coll, (uint32_t)request->nranks, count, dtype_bytes(request->dtype)),
        .count = count,
        .nsamples = 1,
        .batch = 1,
        .wrong = request->nranks <= VERIFY_RANKS ? 0 : -1,
        .channels = ready->choice.channels,
        .parts = ready->choice.parts,
    };
    snprintf(result.algo, sizeof result.algo, "%s", ready->sched->name);
    snprintf(result.transport, sizeof result.transport, "switch");
    snprintf(result.buffers, sizeof result.buffers, "-");
    snprintf(result.dtype, sizeof result.dtype, "%s", dtype_name(request->dtype));
    snprintf(result.redop, sizeof result.redop, "%s",
             coll->reduces ? redop_name(request->redop) : "none");
    double factor = coll->busbw_factor(result.nranks);
    if (request->shares)
        factor = result.busbw_factor = traffic_busbw(result.nranks, request->shares);
    result.bound_us = (double)result.bytes * factor / request->beta_Bps * 1e6;
    return result;
}

/* The network as asked for; the block's size is still to come. */
static struct net_args net_args(const struct request *request)
{
    return (struct net_args){
        .alpha_ps = request->alpha_ps,
        .beta_Bps = request->beta_Bps,
        .overhead_ps = request->overhead_ps,
        .gamma_Bps = request->gamma_Bps,
        .slots = (uint32_t)request->slots,
        .slice_bytes = request->slice,
        .keep_log = request->log != NULL,
    };
}

/* alltoallv's; else NULL. Freed with free(). */
static struct traffic *deal_traffic(const struct request *request, size_t count)
{
    uint64_t n = request->nranks;
    return request->shares ? traffic_deal((uint32_t)n, request->shares, count * n * n) : NULL;
}

static int simulate(struct session *session, const struct ready *ready, size_t count, bool in_place,
                    struct result *result, struct err *err)
{
    const struct request *request = &session->request;
    const struct linked *linked = ready->linked[in_place];
    struct net_args args = net_args(request);
    args.slots = args.slots < linked->least_depth ? linked->least_depth : args.slots;
    args.esize = dtype_bytes(request->dtype);
    args.block_bytes = count * args.esize;
    struct traffic *traffic = deal_traffic(request, count);
    if (traffic) {
        args.traffic = traffic;
        args.block_bytes = traffic_longest(traffic) * args.esize;
    }
    args.keep_steps = session->trace.fd >= 0; /* of the first placement that runs */
    struct net_result net;
    int failed = net_run(linked, &args, &net, err);
    free(traffic);
    if (failed) {
        return -1;
    }
    *result = blank_result(request, ready, count, in_place);
    result->time_us = (double)net.total_ps / 1e6;
    result->min_us = result->p50_us = result->p95_us = result->time_us;
    result->p99_us = result->max_us = result->time_us;
    result->passes = net.passes;
    result->steps = sched_prog_of(ready->sched, 0)->nsteps * net.passes;
    result_bandwidths(result);
    log_messages(session->log, result, &net);
    int bad = args.keep_steps ? write_trace(session, result, &net, err) : 0;
    net_result_release(&net);
    return bad;
}

static int run_row(struct session *session, const struct algo_choice *choice, size_t count,
                   struct err *err)
{
    const struct ready *ready = get_ready(session, choice, err);
    if (!ready) {
        return -1;
    }
    struct result results[2];
    struct table_side sides[2] = {0};
    for (int in_place = 0; in_place < 2; in_place++) {
        if (!ready->linked[in_place]) {
            continue;
        }
        if (simulate(session, ready, count, in_place, &results[in_place], err)) {
            return -1;
        }
        sides[in_place] = (struct table_side){&results[in_place], &results[in_place].time_us, 1};
    }
    table_row(session->table, &sides[0], &sides[1]);
    return 0;
}

/* ---- all rows ---- */

static int run_algo(struct session *session, const char *name, size_t count, struct err *err)
{
    const struct request *request = &session->request;
    if (request->drawn)
        return run_row(session, &(struct algo_choice){algo_drawn(), 1, 1}, count, err);
    bool every = strcmp(name, "all") == 0, automatic = strcmp(name, "auto") == 0;
    size_t size =
        coll_size(request->coll, (uint32_t)request->nranks, count, dtype_bytes(request->dtype));
    enum algo_reach reach = request->wire == CHOICE_PULL ? ALGO_SHARED : ALGO_PRIVATE;
    struct algo_choice found = algo_auto(request->coll->id, (uint32_t)request->nranks, size, reach);
    size_t nrows;
    const struct algo *table = algo_table(&nrows);
    for (size_t i = 0; i < nrows; i++) {
        const struct algo *algo = &table[i];
        if (algo->coll != request->coll->id ||
            !(every || (automatic ? algo == found.algo : strcmp(algo->name, name) == 0))) {
            continue;
        }
        struct algo_choice choice = {algo, automatic ? found.channels : algo->channels,
                                     automatic ? found.parts : 1};
        choice.channels = request->channels ? (uint32_t)request->channels : choice.channels;
        choice.parts = request->parts ? (uint32_t)request->parts : choice.parts;
        if (run_row(session, &choice, count, err)) {
            return -1;
        }
    }
    return 0;
}

static int run_sizes(struct session *session, struct err *err)
{
    const struct request *request = &session->request;
    size_t esize = dtype_bytes(request->dtype);
    uint64_t size = request->sweep.min;
    do {
        size_t count = coll_block_count(request->coll, (uint32_t)request->nranks, size, esize);
        for (size_t i = 0; i < request->algos.count; i++) {
            if (run_algo(session, request->algos.items[i], count, err)) {
                return -1;
            }
        }
    } while (sweep_next(&request->sweep, esize, &size));
    return 0;
}

/* ---- the request, and what the output says about it ---- */

/* A timeline is that of one size and one algorithm. */
static void check_trace(const struct request *request, struct err *err)
{
    const struct coll *coll = request->coll;
    size_t esize = dtype_bytes(request->dtype);
    uint32_t nranks = (uint32_t)request->nranks;
    if (coll_block_count(coll, nranks, request->sweep.min, esize) !=
            coll_block_count(coll, nranks, request->sweep.max, esize) &&
        request->sweep.min != request->sweep.max) {
        err_add(err, ERR_USAGE,
                "--trace shows one operation, but the sizes go from %llu to %llu B: give one with "
                "--size",
                (unsigned long long)request->sweep.min, (unsigned long long)request->sweep.max);
    }
    size_t count = request->algos.count;
    if (count != 1 || strcmp(request->algos.items[0], "all") == 0) {
        err_add(err, ERR_USAGE,
                "--trace shows one operation, but --algo names several algorithms: give one");
    }
}

/* --nodes says how many ranks there are, if nothing else does. */
static void read_nodes(struct request *request, const struct opts *opts, struct err *err)
{
    if (!request->node_text ||
        algo_nodes_parse(request->node_text, &request->nodes, &request->nnodes, err))
        return;
    uint64_t sum = algo_nodes_ranks(request->nodes, request->nnodes);
    if (opts_is_set(opts, "ranks") && sum != request->nranks) {
        err_add(err, ERR_USAGE, "--nodes %s has %llu ranks in all, --ranks says %llu: give one",
                request->node_text, (unsigned long long)sum, (unsigned long long)request->nranks);
    }
    request->nranks = sum;
}

/* --schedule says all about the algorithm, and how many ranks there are. */
static void read_schedule(struct request *request, const struct opts *opts, struct err *err)
{
    static const char *const said[] = {"algo", "channels", "parts", "root", "nodes"};
    if (!request->schedule) return;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (!opts_is_set(opts, said[i])) continue;
        err_add(err, ERR_USAGE, "--%s is said by the file of --schedule: give one of them",
                said[i]);
    }
    request->drawn = msccl_read(request->schedule, err);
    if (!request->drawn) return;
    if (request->coll && request->drawn->coll != request->coll) {
        err_add(err, ERR_USAGE, "--schedule %s is for %s, not for %s", request->schedule,
                request->drawn->coll->name, request->coll->name);
    }
    if (opts_is_set(opts, "ranks") && request->nranks != request->drawn->nranks) {
        err_add(err, ERR_USAGE, "--schedule %s is for %u ranks, --ranks says %llu",
                request->schedule, request->drawn->nranks, (unsigned long long)request->nranks);
    }
    request->nranks = request->drawn->nranks;
    request->root = request->drawn->root;
}

static void read_traffic(struct request *request, const struct opts *opts, struct err *err)
{
    struct traffic_wish wish = {request->matrix, opts_is_set(opts, "imbalance"),
                                request->imbalance};
    request->shares = traffic_shares(request->coll, (uint32_t)request->nranks, &wish, err);
}

/* All broken rules at once. */
static int check_request(struct request *request, const struct opts *opts, struct err *err)
{
    if (opts->npositionals != 1) {
        err_add(err, ERR_USAGE, "commsim coll takes one operation, %zu were given",
                opts->npositionals);
    }
    request->coll = opts->npositionals ? coll_find(opts->positionals[0], err) : NULL;
    dtype_parse(request->dtype_name, &request->dtype, err);
    redop_parse(request->redop_name, &request->redop, err);
    if (opts_is_set(opts, "size")) {
        request->sweep.min = request->sweep.max = request->size;
    }
    read_nodes(request, opts, err);
    read_schedule(request, opts, err);
    sweep_check(&request->sweep, err);
    struct net_args args = net_args(request);
    net_check(&args, err);
    if (request->coll && !request->coll->rooted && request->root > 0) {
        err_add(err, ERR_USAGE, "%s has no root: --root (-r) %llu means nothing here",
                request->coll->name, (unsigned long long)request->root);
    } else if (request->coll && request->root >= request->nranks) {
        err_add(err, ERR_USAGE, "--root is %llu; with %llu ranks it is 0 to %llu",
                (unsigned long long)request->root, (unsigned long long)request->nranks,
                (unsigned long long)request->nranks - 1);
    }
    if (err->count == 0) {
        read_traffic(request, opts, err);
    }
    for (size_t i = 0; request->coll && i < request->algos.count; i++) {
        const char *name = request->algos.items[i];
        if (strcmp(name, "auto") != 0 && strcmp(name, "all") != 0) {
            algo_find(request->coll->id, name, err);
        }
    }
    if (request->trace && err->count == 0) {
        check_trace(request, err);
    }
    return err->count > 0 ? -1 : 0;
}

static void describe(struct out *out, const struct request *request)
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
             wire_choices[request->wire], (unsigned long long)request->slots,
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

static void add_meta(struct out *out, const struct request *request, const char *line)
{
    out_meta(out, "program", out_text("commsim " COMMSIM_VERSION));
    out_meta(out, "source", out_text(source_name(SOURCE_SIMULATED)));
    out_meta(out, "command", out_text(line));
    out_meta(out, "collective", out_text(request->coll->name));
    out_meta(out, "topology", out_text("one switch, one link per rank"));
    out_meta(out, "nranks", out_uint(request->nranks));
    if (request->shares && request->nranks <= VERIFY_RANKS) {
        char *text = traffic_text((uint32_t)request->nranks, request->shares);
        out_meta(out, "shares", out_text(text));
        free(text);
    }
    out_meta(out, "alpha_ps", out_uint(request->alpha_ps));
    out_meta(out, "beta_Bps", out_double(request->beta_Bps));
    out_meta(out, "overhead_ps", out_uint(request->overhead_ps));
    out_meta(out, "gamma_Bps",
             request->gamma_Bps > 0 ? out_double(request->gamma_Bps) : (struct out_cell){0});
    out_meta(out, "slots", out_uint(request->slots));
    out_meta(out, "slice_B", out_uint(request->slice));
    out_meta(out, "wire", out_text(wire_choices[request->wire]));
    out_meta(out, "verified", out_bool(request->nranks <= VERIFY_RANKS));
}

static int open_outputs(struct session *session, struct err *err)
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
    const struct request *request = &session->request;
    session->table = table_new(0);
    int bad = out_add_asked(session->table, request->json, request->csv, request->overwrite, err);
    if (request->log) {
        session->log = out_new(log_columns, sizeof log_columns / sizeof *log_columns);
        bad |= out_add(session->log, OUT_FORMAT_CSV, request->log, request->overwrite, err);
    }
    if (!bad && request->trace) {
        bad = trace_file_open(&session->trace, request->trace, request->overwrite, err);
    }
    if (!bad) {
        add_meta(session->table, request, session->command);
        describe(session->table, request);
    }
    return bad;
}

static void session_release(struct session *session)
{
    for (size_t i = 0; i < session->nready; i++) {
        linked_free(session->ready[i].linked[0]);
        linked_free(session->ready[i].linked[1]);
        if (!session->request.drawn) sched_free(session->ready[i].sched);
    }
    free(session->ready);
    sched_free(session->request.drawn);
    free(session->request.nodes);
    free(session->request.shares);
}

int coll_cmd(int argc, char **argv)
{
    struct session session = {.trace.fd = -1};
    struct opts opts;
    struct err err = ERR_INIT;
    char *line = command_line(argc, argv);
    session.command = line;
    int bad = opts_parse(&opts, rows, &session.request, argc, argv, &err);
    if (opts.help) {
        opts_help(stdout, "commsim coll OPERATION [options]",
                  "Simulates a collective on one switch: the schedules that collbench runs, on a "
                  "modelled clock. Operations are those of `collbench list`.",
                  rows);
    } else if (!bad && !check_request(&session.request, &opts, &err)) {
        if (!open_outputs(&session, &err)) {
            run_sizes(&session, &err);
        }
        trace_file_close(&session.trace, NULL, NULL, &err); /* there was no timeline */
        out_close(session.log, &err);
        out_close(session.table, &err);
    }
    session_release(&session);
    free(line);
    opts_release(&opts);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
