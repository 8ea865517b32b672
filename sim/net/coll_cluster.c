/* SPDX-License-Identifier: Apache-2.0
 * `commsim coll --topo`: see coll_cluster.h. Prediction first, the command behind it. */
#include "net/coll_cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/out.h"
#include "base/units.h"
#include "net/coll_loop.h"
#include "net/coll_report.h"
#include "net/fault.h"
#include "net/links.h"

/* ---- the cluster ---- */

enum { AS_AUTO, AS_NCCL, AS_MPI, AS_COLLBENCH };

static enum coll_form form_of(const struct coll_request *request, const struct topo *topo)
{
    static const enum coll_form forms[] = {
        [AS_NCCL] = FORM_NCCL, [AS_MPI] = FORM_MPI, [AS_COLLBENCH] = FORM_COLLBENCH};
    if (request->as != AS_AUTO) return forms[request->as];
    return topo->scale_up == SCALE_UP_MEMORY ? FORM_MPI : FORM_NCCL;
}

static struct lib_args lib_args_of(const struct coll_request *request)
{
    struct lib_args args = lib_usual();
    args.library = request->form == FORM_MPI ? LIBRARY_MPI : LIBRARY_NCCL;
    args.lib_class = request->lib_class;
    args.launch = (enum launch)request->launch_mode;
    args.proto = request->proto;
    args.channels = (uint32_t)request->channels;
    args.sharp = request->sharp;
    args.no_pxn = request->no_pxn;
    args.no_nvls = request->no_nvls;
    if (request->launch_s >= 0) args.launch_us = request->launch_s * 1e6;
    if (request->alpha_net_s >= 0) args.alpha_us = request->alpha_net_s * 1e6;
    return args;
}

int cluster_open(struct cluster *cluster, struct coll_request *request, const char *name,
                 struct err *err)
{
    *cluster = (struct cluster){0};
    if (accel_read(&cluster->accels, NULL, err) || net_const_read(&cluster->consts, NULL, err) ||
        topo_read(&cluster->topo, &cluster->accels, name, request->hosts, request->gpus, err) ||
        fault_parse_all(&cluster->topo, &request->faults, err))
        return -1;
    const struct topo *topo = &cluster->topo;
    if (topo->network_efficiency > 0)
        cluster->consts.values.nic_eff[topo->fabric] = topo->network_efficiency;
    request->form = form_of(request, topo);
    request->nranks = topo_gpus(topo);
    free(request->nodes);
    request->nnodes = (uint32_t)topo->hosts;
    request->nodes = mem_calloc(request->nnodes, sizeof *request->nodes);
    for (uint32_t i = 0; i < request->nnodes; i++)
        request->nodes[i] = (uint32_t)topo->per_host;
    cluster->args = lib_args_of(request);
    return 0;
}

void cluster_start(struct cluster *cluster, const struct coll_request *request, struct out *notes)
{
    if (request->net != NET_CLOSED)
        cluster->flow =
            flow_new(request, &cluster->topo, &cluster->consts.values, &cluster->args, notes);
}

void cluster_close(struct cluster *cluster)
{
    flow_free(cluster->flow);
    topo_release(&cluster->topo);
    net_const_release(&cluster->consts);
    accel_release(&cluster->accels);
}

/* ---- one call ---- */

static enum ceiling_kind kind_of_library(int algo, enum coll_id coll)
{
    static const enum ceiling_kind kinds[NNCCL_ALGOS] = {
        [NCCL_RING] = CEILING_RING,     [NCCL_TREE] = CEILING_TREE,
        [NCCL_NVLS] = CEILING_SWITCH,   [NCCL_NVLS_TREE] = CEILING_SWITCH,
        [NCCL_COLLNET] = CEILING_SHARP, [NCCL_PAT] = CEILING_ANY,
        [NCCL_P2P] = CEILING_PAIRS,
    };
    bool pairs = coll == COLL_ALLTOALL || coll == COLL_ALLTOALLV;
    return algo >= 0 ? kinds[algo] : pairs ? CEILING_PAIRS : CEILING_ANY;
}

static enum ceiling_kind kind_of_own(const char *row, enum coll_id coll)
{
    bool pairs = coll == COLL_ALLTOALL || coll == COLL_ALLTOALLV || coll == COLL_SENDRECV ||
                 coll == COLL_GATHER || coll == COLL_SCATTER;
    if (strcmp(row, "nvls") == 0) return CEILING_SWITCH;
    if (strstr(row, "sharp")) return CEILING_SHARP;
    return strcmp(row, "ring") == 0 ? CEILING_RING : pairs ? CEILING_PAIRS : CEILING_ANY;
}

/* The link that was nearest to its capacity, or, when that was not half full and the call far from
 * its ceiling, that it is latency; in
 * closed form the one that the ceiling names, or latency where it takes half of the time. Channels
 * of NCCL that were counted by hand may be too few. */
static void set_limit(const struct coll_request *request, struct cluster_call *call)
{
    struct result *result = &call->result;
    const struct net_result *net = &call->run.net;
    result->ceiling_GBps = call->ceiling.busbw_GBps;
    bool waits = call->fixed_us > 0.5 * result->time_us;
    snprintf(result->limit, sizeof result->limit, "%s%.38s",
             !waits                ? ""
             : *call->ceiling.text ? "latency; "
                                   : "latency",
             call->ceiling.text);
    if (!call->ran || net->limit == UINT32_MAX) return;
    char *name = network_link_name(call->run.network, net->limit);
    bool idle = net->limit_use < 0.5 && result->busbw_GBps < 0.5 * result->ceiling_GBps;
    bool few = request->form == FORM_NCCL && request->channels && !waits;
    snprintf(result->limit, sizeof result->limit, "%s%s (%.0f %%)",
             !idle ? ""
             : few ? "channels; "
                   : "latency; ",
             name, 100 * net->limit_use);
    free(name);
}

static void set_ran(const struct coll_request *request, struct cluster_call *call)
{
    const struct sched *sched = call->run.ready->sched;
    call->ran = true;
    call->result.wrong = request->nranks <= VERIFY_RANKS ? 0 : -1;
    call->result.passes = call->run.net.passes;
    call->result.steps = sched_prog_of(sched, 0)->nsteps * call->run.net.passes;
}

static int predict_library(struct cluster *cluster, const struct coll_request *request, int algo,
                           size_t count, struct cluster_call *call, struct err *err)
{
    const struct topo *topo = &cluster->topo;
    const struct net_consts *consts = &cluster->consts.values;
    struct lib_args args = cluster->args;
    struct lib_time time;
    enum coll_id coll = request->coll->id;
    uint64_t bytes =
        coll_size(request->coll, (uint32_t)request->nranks, count, dtype_bytes(request->dtype));
    args.algo = algo;
    if (lib_closed(topo, consts, &args, coll, bytes, &time, err)) return -1;
    bool mpi = request->form == FORM_MPI;
    *call = (struct cluster_call){.kind = kind_of_library(time.choice.algo, coll)};
    call->result = coll_result(request, mpi ? "MPI" : time.choice.algo_name, count, false);
    call->result.channels = time.choice.channels;
    snprintf(call->result.proto, sizeof call->result.proto, "%s", time.choice.proto_name);
    snprintf(call->result.transport, sizeof call->result.transport, "%s", mpi ? "mpi" : "nccl");
    call->ceiling = ceiling_of(topo, consts, call->kind, coll);
    call->nccl = mpi ? (struct lib_choice){-1, -1, 0, "", ""} : time.nccl;
    call->fixed_us = fmax(0, time.time_us - time.wire_us);
    double time_us = time.time_us;
    bool engine = cluster->flow && time.choice.algo >= 0; /* one rank alone: a copy */
    bool quick = engine && flow_is_quick(cluster->flow, &time.choice, count);
    call->skipped = engine && !quick;
    if (call->skipped) snprintf(call->result.transport, sizeof call->result.transport, "formula");
    if (quick) {
        if (flow_library(cluster->flow, &time.choice, count, &call->run, err)) return -1;
        set_ran(request, call);
        if (lib_call_us(topo, consts, &args, coll, call->run.device_us, &time_us, err)) {
            flow_release(&call->run);
            return -1;
        }
    }
    coll_result_time(&call->result, time_us);
    set_limit(request, call);
    return 0;
}

int cluster_predict_own(struct cluster *cluster, const struct coll_request *request,
                        const struct algo_choice *choice, size_t count, bool in_place,
                        struct cluster_call *call, struct err *err)
{
    enum coll_id coll = request->coll->id;
    *call = (struct cluster_call){0};
    if (flow_own(cluster->flow, choice, count, in_place, &call->run, err)) return -1;
    if (!call->run.ready) return 0;
    const char *name = call->run.ready->sched->name;
    call->kind = kind_of_own(name, coll);
    call->ceiling = ceiling_of(&cluster->topo, &cluster->consts.values, call->kind, coll);
    call->result = coll_result(request, name, count, in_place);
    call->result.channels = choice->channels;
    call->result.parts = choice->parts;
    snprintf(call->result.transport, sizeof call->result.transport, "network");
    set_ran(request, call);
    coll_result_time(&call->result, call->run.device_us);
    set_limit(request, call);
    return 0;
}

int cluster_predict(struct cluster *cluster, const struct coll_request *request, const char *name,
                    size_t count, struct cluster_call *call, struct err *err)
{
    int algo = -1;
    while (algo < NNCCL_ALGOS && strcasecmp(name, "auto") != 0 &&
           (algo < 0 || strcasecmp(name, nccl_algo_name(algo)) != 0))
        algo++;
    return predict_library(cluster, request, algo, count, call, err);
}

void cluster_call_release(struct cluster_call *call)
{
    if (call->ran) flow_release(&call->run);
}

/* ---- the command ---- */

struct session {
    struct coll_request *request;
    struct cluster cluster;
    struct coll_report report;
    struct links *links; /* NULL: not asked for */
    struct advice advice;
    char *nccl;        /* what NCCL's formula takes for the last row */
    char *folded;      /* how the last run was folded, or why not */
    char *skipped;     /* the rows that are in closed form, though the engine was asked for */
    double busbw_GBps; /* of the last row */
    size_t elements;   /* .. per block */
};

static void note_folding(struct session *session, const struct net_result *net)
{
    free(session->folded);
    session->folded =
        net->classes < net->nranks
            ? mem_printf("of %u ranks %u were run, the others are equal", net->nranks, net->classes)
            : mem_printf("all %u ranks were run%s%s", net->nranks, *net->why ? ": " : "", net->why);
}

static void note_choice(struct session *session, const struct cluster_call *call)
{
    free(session->nccl);
    session->nccl = mem_printf("at %llu B NCCL's published formula takes %s %s on %u channels",
                               (unsigned long long)call->result.bytes, call->nccl.algo_name,
                               call->nccl.proto_name, call->nccl.channels);
}

static void note_skipped(struct session *session, const struct cluster_call *call)
{
    char size[UNITS_TEXT], *before = session->skipped;
    session->skipped = mem_printf("%s%s%s at %s", before ? before : "", before ? ", " : "",
                                  call->result.algo, units_size(size, call->result.bytes));
    free(before);
}

/* Output of one call beside its row. */
static int tell(struct session *session, struct cluster_call *call, struct err *err)
{
    const struct coll_request *request = session->request;
    struct advice_call about = {
        .topo = &session->cluster.topo,
        .coll = request->coll->id,
        .kind = call->kind,
        .ceiling = call->ceiling,
        .bytes = call->result.bytes,
        .time_us = call->result.time_us,
        .busbw_GBps = call->result.busbw_GBps,
        .fixed_us = call->fixed_us,
        .measured_GBps = request->measured_GBps,
    };
    advice_add(&session->advice, &about);
    if (request->form == FORM_NCCL && call->nccl.algo >= 0) note_choice(session, call);
    if (call->skipped) note_skipped(session, call);
    if (!call->ran) return 0;
    note_folding(session, &call->run.net);
    if (session->links) {
        char *name = mem_printf("%s %s %llu B", request->coll->name, call->result.algo,
                                (unsigned long long)call->result.bytes);
        links_add(session->links, name, call->run.network, &call->run.net);
        free(name);
    }
    return coll_report_run(&session->report, &call->result, &call->run.net, err);
}

static int each_own(const struct algo_choice *choice, size_t count, void *context, struct err *err)
{
    struct session *session = context;
    const struct coll_request *request = session->request;
    struct cluster_call calls[2] = {0};
    const struct result *rows[2] = {NULL, NULL};
    int bad = 0, places = coll_in_place(request->coll) ? 2 : 1;
    for (int i = 0; i < places && !bad; i++) {
        struct cluster_call *call = &calls[i];
        bad = cluster_predict_own(&session->cluster, request, choice, count, i, call, err);
        if (bad || !call->ran) continue;
        rows[i] = &call->result; /* what is said beside the row is of the first that ran */
        bad = i && rows[0] ? coll_report_run(&session->report, rows[i], &call->run.net, err)
                           : tell(session, call, err);
    }
    if (!bad) coll_report_row(&session->report, rows[0], rows[1]);
    for (int i = 0; i < 2; i++)
        cluster_call_release(&calls[i]);
    return bad;
}

static int one_library(struct session *session, const char *name, size_t count, struct err *err)
{
    struct cluster_call call;
    if (cluster_predict(&session->cluster, session->request, name, count, &call, err)) return -1;
    struct result in_place = call.result;
    in_place.in_place = true;
    if (session->request->nranks == 1) coll_result_time(&in_place, 0); /* nothing to copy */
    bool both = coll_in_place(session->request->coll);
    coll_report_row(&session->report, &call.result, both ? &in_place : NULL);
    session->busbw_GBps = call.result.busbw_GBps;
    session->elements = count;
    int bad = tell(session, &call, err);
    cluster_call_release(&call);
    return bad;
}

/* Every algorithm that the library has there; those that it has not are left out. */
static int all_library(struct session *session, size_t count, struct err *err)
{
    int rows = 0;
    struct err why = ERR_INIT;
    for (int i = 0; i < NNCCL_ALGOS; i++) {
        struct err own = ERR_INIT;
        rows += one_library(session, nccl_algo_name(i), count, &own) == 0;
        if (own.code == ERR_FAILED) return err_move(err, &own);
        err_move(&why, &own);
    }
    if (rows == 0) return err_move(err, &why);
    err_release(&why);
    return 0;
}

static int each_library(size_t count, void *context, struct err *err)
{
    struct session *session = context;
    const struct opts_list *names = &session->request->algos;
    for (size_t i = 0; i < names->count; i++) {
        bool all = strcmp(names->items[i], "all") == 0, alone = session->request->nranks == 1;
        int bad = all && !alone
                      ? all_library(session, count, err)
                      : one_library(session, alone ? "auto" : names->items[i], count, err);
        if (bad) return bad;
    }
    return 0;
}

static void describe(struct session *session)
{
    static const char *const how[] = {
        [NET_CLOSED] = "closed form",
        [NET_FLOW] = "the engine runs the schedule, of equal ranks one",
        [NET_FULL] = "the engine runs the schedule of all ranks",
    };
    const struct coll_request *request = session->request;
    const struct cluster *cluster = &session->cluster;
    struct out *out = session->report.table;
    char *text = topo_describe(&cluster->topo);
    enum lib_class lib_class = cluster->args.lib_class == NLIB_CLASSES
                                   ? lib_class_of(&cluster->topo)
                                   : cluster->args.lib_class;
    const char *who = request->form == FORM_COLLBENCH ? "collbench"
                      : request->form == FORM_MPI     ? "an MPI library"
                                                      : lib_class_name(lib_class);
    out_note(out, "commsim %s: SIMULATED %s of %llu rank(s) as %s; nothing was measured",
             COMMSIM_VERSION, request->coll->name, (unsigned long long)request->nranks, who);
    out_note(out, "cluster %s: %s", cluster->topo.name, text);
    out_note(out,
             "time: %s; constants of data/network.csv, each with its source, none of this "
             "machine%s",
             how[request->net],
             request->form == FORM_NCCL ? "; in place and out of place are alike" : "");
    out_note(out,
             "units: us, sizes in bytes, GB = 10^9 B; algbw = size / time, busbw = algbw x %s; "
             "ceiling: busbw for endless sizes; limited by: the fullest link, with its use",
             request->coll->busbw);
    if (request->form == FORM_NCCL && request->net != NET_CLOSED && flow_is_mesh(&cluster->topo))
        out_note(out,
                 "rings are laid over all links of a GPU: here they are one link into a switch");
    coll_report_meta(&session->report, text);
    out_meta(out, "as", out_text(who));
    out_meta(out, "net", out_text(how[request->net]));
    free(text);
}

/* Options that change nothing on this cluster. */
static void note_idle(const struct session *session)
{
    const struct coll_request *request = session->request;
    const struct topo *topo = &session->cluster.topo;
    bool one_host = topo->hosts == 1, one_node = topo_gpus(topo) <= topo_domain(topo);
    bool outside = false;
    for (size_t i = 0; i < topo->nfaults; i++)
        outside |= topo->faults[i].kind == FAULT_TCP || topo->faults[i].kind == FAULT_NICS;
    const struct {
        bool given, idle;
        const char *name, *why;
    } notes[] = {
        {request->sharp, one_node, "--sharp", "nothing leaves the NVLink domain or host"},
        {request->sharp, !one_node && request->coll->id != COLL_ALLREDUCE, "--sharp",
         "switches reduce for allreduce alone"},
        {request->alpha_net_s >= 0, one_node, "--alpha-net",
         "nothing leaves the NVLink domain or host"},
        {outside, one_host, "a fault of the network", "there is one host"},
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (notes[i].given && notes[i].idle)
            out_note(session->report.table, "%s has no effect here: %s", notes[i].name,
                     notes[i].why);
}

/* Devices that reach each other over PCIe may be no faster so than through host memory: the last
 * call again without peer access. */
static int compare_paths(struct session *session, struct err *err)
{
    const struct coll_request *request = session->request;
    const struct topo *topo = &session->cluster.topo;
    if (request->form != FORM_NCCL || request->net == NET_CLOSED || request->faults.count > 0 ||
        topo->scale_up != SCALE_UP_PCIE || !topo->host.peer_access || topo->per_host < 2)
        return 0;
    static char fault[] = "no-peer-access";
    struct coll_request bounced = *request;
    struct cluster cluster;
    struct cluster_call call;
    char *faults[] = {fault};
    bounced.nodes = NULL;
    bounced.faults = (struct opts_list){.items = faults, .count = 1};
    bounced.log = bounced.trace = NULL;
    int bad = cluster_open(&cluster, &bounced, request->topo, err);
    if (!bad) {
        cluster_start(&cluster, &bounced, session->report.table);
        const char *algo = request->algos.items[request->algos.count - 1];
        bad = cluster_predict(&cluster, &bounced, strcmp(algo, "all") == 0 ? "auto" : algo,
                              session->elements, &call, err);
    }
    if (!bad) {
        double there = call.result.busbw_GBps, here = session->busbw_GBps;
        out_note(session->report.table,
                 "at the last size %.4g GB/s with peer access, %.4g through host memory "
                 "(NCCL_P2P_DISABLE=1): the better is %s",
                 here, there,
                 here > 1.02 * there   ? "peer access"
                 : there > 1.02 * here ? "host memory"
                                       : "neither");
        cluster_call_release(&call);
    }
    cluster_close(&cluster);
    free(bounced.nodes);
    return bad;
}

/* What was found beside the rows. */
static void conclude(struct session *session)
{
    struct out *out = session->report.table;
    if (session->nccl) out_note(out, "%s", session->nccl);
    if (session->folded) out_note(out, "%s", session->folded);
    if (session->skipped)
        out_note(out, "by formula: %s: the engine would run for long; --net full lets it",
                 session->skipped);
    for (int i = 0; i < NADVICE; i++)
        if (session->advice.texts[i]) out_note(out, "%s", session->advice.texts[i]);
}

static int run(struct session *session, struct err *err)
{
    struct coll_request *request = session->request;
    struct cluster *cluster = &session->cluster;
    describe(session);
    note_idle(session);
    cluster_start(cluster, request, session->report.table);
    int bad = request->form == FORM_COLLBENCH ? coll_each(request, each_own, session, err)
                                              : coll_each_size(request, each_library, session, err);
    if (!bad) bad = compare_paths(session, err);
    if (!bad) conclude(session);
    return bad;
}

/* Each pair of --algo and --proto must be one that the library has there; "all" takes those. */
static void check_pairs(const struct cluster *cluster, const struct coll_request *request,
                        struct err *err)
{
    for (size_t i = 0; i < request->algos.count; i++) {
        const char *name = request->algos.items[i];
        struct lib_args args = cluster->args;
        struct lib_time time;
        if (strcmp(name, "all") == 0) continue;
        while (args.algo < NNCCL_ALGOS && strcasecmp(name, "auto") != 0 &&
               (args.algo < 0 || strcasecmp(name, nccl_algo_name(args.algo)) != 0))
            args.algo++;
        lib_closed(&cluster->topo, &cluster->consts.values, &args, request->coll->id, 1, &time,
                   err);
    }
}

static void check_library(const struct cluster *cluster, const struct coll_request *request,
                          struct err *err)
{
    const struct topo *topo = &cluster->topo;
    if (topo->scale_up == SCALE_UP_MEMORY)
        err_add(err, ERR_USAGE,
                "--as nccl: %s has no accelerators, and NCCL runs on nothing else: --as mpi or "
                "--as collbench",
                topo->name);
    bool ib = topo->fabric == FABRIC_IB || topo->fabric == FABRIC_UNSTATED;
    if (request->sharp && topo->hosts > 1 && !ib)
        err_add(err, ERR_USAGE,
                "--sharp: the switches of InfiniBand alone reduce; the network of %s is %s",
                topo->name, topo_fabric_name(topo->fabric));
    check_pairs(cluster, request, err);
}

int cluster_check(const struct cluster *cluster, const struct coll_request *request,
                  struct err *err)
{
    if (request->form == FORM_NCCL && request->coll) check_library(cluster, request, err);
    for (size_t i = 0; i < cluster->topo.nfaults && request->net == NET_CLOSED; i++) {
        const struct fault *fault = &cluster->topo.faults[i];
        if (fault->link)
            err_add(err, ERR_USAGE,
                    "%s: a formula knows no single link (%s); --net flow, with --as nccl or "
                    "collbench, does",
                    fault->where, fault->link);
    }
    return err->count ? -1 : 0;
}

int coll_cluster(struct coll_request *request, const struct opts *opts, const char *command,
                 struct err *err)
{
    struct session session = {.request = request};
    int bad = cluster_open(&session.cluster, request, request->topo, err) ||
              coll_check_form(request, opts, err) || cluster_check(&session.cluster, request, err);
    if (!bad) {
        bad = coll_report_open(&session.report, request, command, TABLE_CEILING, err);
        if (request->links) session.links = links_new();
        if (!bad) bad = run(&session, err);
        coll_report_close(&session.report, err);
        if (!bad && session.links) bad = links_print(session.links, err);
        links_free(session.links);
    }
    free(session.nccl);
    free(session.folded);
    free(session.skipped);
    advice_release(&session.advice);
    cluster_close(&session.cluster);
    return bad;
}
