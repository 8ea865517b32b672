/* SPDX-License-Identifier: Apache-2.0
 * Reads and checks what `commsim coll` is asked for: see coll_request.h. */
#include "net/coll_request.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "algo/algo.h"
#include "base/units.h"
#include "sched/msccl.h"

const char *const coll_wires[] = {"staged", "pull", NULL};
static const char *const as_choices[] = {"auto", "nccl", "mpi", "collbench", NULL};
static const char *const net_choices[] = {"closed", "flow", "full", NULL};
static const char *const launch_choices[] = {"process", "single",    "torch",
                                             "graph",   "symmetric", NULL};

enum { MOST = 1 << 30 }; /* ranks, channels, parts: far above what memory holds */

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct coll_request, field), .value = (value_), .arg = (arg_),          \
        .help = (help_), __VA_ARGS__                                                               \
    }

const struct opts_row coll_options[] = {
    ROW("topo", 't', OPTS_STRING, topo, NULL, "NAME[xN]",
        "a file (path, working directory, shipped folder; .json may be left out), or N times a "
        "shipped type: dgx-h100x4. Without it the network is one switch",
        .section = "A cluster"),
    ROW("nodes", 0, OPTS_STRING, node_text, NULL, "N",
        "hosts, in place of what the file says. On one switch: node groups of neighbouring ranks "
        "for hierarchical algorithms, such as 2+3 or 2x4 (2 nodes of 4)"),
    ROW("gpus", 'g', OPTS_UINT, gpus, NULL, "N",
        "accelerators in all: whole hosts, or a part of one host", .min = 1, .max = INT32_MAX),
    ROW("as", 0, OPTS_CHOICE, as, "auto", "WHO",
        "whose call it is: that of NCCL, of an MPI library, or collbench's own schedules; auto is "
        "nccl, and mpi on hosts without accelerators",
        .choices = as_choices),
    ROW("net", 0, OPTS_CHOICE, net, "flow", "HOW",
        "closed: by formula; flow: the engine runs the schedule, of equal ranks only one; full: "
        "the engine runs all ranks",
        .choices = net_choices),
    ROW("nccl", 0, OPTS_STRING, version, NULL, "VERSION",
        "of the library, such as 2.18.3: those that behave alike are one class"),
    ROW("launch-mode", 0, OPTS_CHOICE, launch_mode, "process", "MODE",
        "process: one process per GPU; single: one for all GPUs of a host (nccl-tests -g); torch: "
        "a loop in PyTorch; graph: captured in a CUDA graph; symmetric: symmetric memory",
        .choices = launch_choices),
    ROW("launch", 0, OPTS_TIME_S, launch_s, NULL, "TIME",
        "the floor that launching sets, measured on your hosts"),
    ROW("alpha-net", 0, OPTS_TIME_S, alpha_net_s, NULL, "TIME",
        "latency of a hop between hosts, measured on your network"),
    ROW("sharp", 0, OPTS_FLAG, sharp, NULL, NULL, "the network's switches reduce (SHARP)"),
    ROW("no-pxn", 0, OPTS_FLAG, no_pxn, NULL, NULL,
        "sends between hosts are not gathered by the receiver's rail (NCCL_PXN_DISABLE=1)"),
    ROW("fault", 0, OPTS_MORE, faults, NULL, "WHAT",
        "what is broken, repeated: host0/nic3=0.5 (half its rate), host0/nic3=0 (missing; host* is "
        "every host), "
        "no-peer-access, nics=1 (used), tcp"),
    ROW("compare", 0, OPTS_STRING, compare, NULL, "A,B,C",
        "the same call on several clusters, side by side, in place of --topo"),
    ROW("measured", 0, OPTS_DOUBLE, measured_GBps, NULL, "BUSBW",
        "what you measured, busbw in GB/s at the (one) size: the answer says what it points to"),
    ROW("ranks", 0, OPTS_UINT, nranks, "8", "N", "ranks, each with one link to the switch",
        .section = "One switch", .min = 1, .max = MOST),
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
        .choices = coll_wires),
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
        "algorithms; auto takes the one that suits the size (of a library: its choice), all takes "
        "every one of the operation",
        .section = "The algorithm"),
    ROW("proto", 0, OPTS_STRING, proto_name, NULL, "NAME",
        "NCCL's protocol, in place of its choice"),
    ROW("schedule", 0, OPTS_STRING, schedule, NULL, "FILE",
        "a schedule of your own, as MSCCL writes them (XML), in place of an algorithm"),
    ROW("channels", 0, OPTS_UINT, channels, NULL, "N",
        "independent copies of the pattern; without it, the algorithm's own number", .min = 1,
        .max = MOST),
    ROW("parts", 0, OPTS_UINT, parts, NULL, "N",
        "pieces into which each channel's share is cut; without it, 1, or what auto chooses",
        .min = 1, .max = MOST),
    ROW("slice", 0, OPTS_SIZE, slice, "0", "SIZE",
        "most bytes of a chunk that one pass handles, a multiple of 64; 0: whole chunks, one pass"),
    ROW("json", 'J', OPTS_STRING, json, NULL, "FILE",
        "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("csv", 0, OPTS_STRING, csv, NULL, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("links", 0, OPTS_FLAG, links, NULL, NULL,
        "after each row, what each kind of link has carried, and how full it was"),
    ROW("log", 0, OPTS_STRING, log, NULL, "FILE", "write every message of every run as CSV"),
    ROW("trace", 0, OPTS_STRING, trace, NULL, "FILE",
        "write the timeline of every step (Chrome trace format: chrome://tracing, Perfetto), out "
        "of place, of one size and one algorithm"),
    ROW("plot", 0, OPTS_STRING, plot, NULL, "FILE",
        "--compare: draw busbw over size (.png or .svg by gnuplot; .gp: the script)"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, NULL, "files may exist already"),
    {.name = NULL},
};

bool coll_on_cluster(const struct coll_request *request)
{
    return request->topo || request->compare;
}

struct net_args coll_net_args(const struct coll_request *request)
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

/* ---- which option belongs to what ---- */

enum {
    ON_SWITCH = 1 << FORM_SWITCH,
    OF_NCCL = 1 << FORM_NCCL,
    OF_MPI = 1 << FORM_MPI,
    OF_COLLBENCH = 1 << FORM_COLLBENCH,
    OURS = ON_SWITCH | OF_COLLBENCH,
    LIBRARIES = OF_NCCL | OF_MPI,
    CLUSTERS = LIBRARIES | OF_COLLBENCH,
};

static const struct {
    const char *name;
    unsigned forms;
} belongs[] = {
    {"ranks", ON_SWITCH},     {"alpha", ON_SWITCH},  {"beta", ON_SWITCH},
    {"overhead", ON_SWITCH},  {"gamma", ON_SWITCH},  {"slots", OURS},
    {"wire", OURS},           {"imbalance", OURS},   {"matrix", OURS},
    {"schedule", OURS},       {"parts", OURS},       {"slice", OURS},
    {"gpus", CLUSTERS},       {"as", CLUSTERS},      {"net", CLUSTERS},
    {"measured", CLUSTERS},   {"links", CLUSTERS},   {"plot", CLUSTERS},
    {"fault", CLUSTERS},      {"nccl", OF_NCCL},     {"proto", OF_NCCL},
    {"sharp", OF_NCCL},       {"no-pxn", OF_NCCL},   {"channels", OURS | OF_NCCL},
    {"launch-mode", OF_NCCL}, {"launch", LIBRARIES}, {"alpha-net", LIBRARIES},
};

static void check_belonging(const struct coll_request *request, const struct opts *opts,
                            struct err *err)
{
    static const char *const where[NFORMS] = {
        "on one switch; --topo names a cluster",
        "for a call of NCCL",
        "for a call of an MPI library",
        "for collbench's own schedules",
    };
    for (size_t i = 0; i < sizeof belongs / sizeof *belongs; i++)
        if (!(belongs[i].forms & 1u << request->form) && opts_is_set(opts, belongs[i].name))
            err_add(err, ERR_USAGE, "--%s means nothing %s", belongs[i].name, where[request->form]);
}

/* ---- what the words mean ---- */

/* "2.18.3" -> its class. */
static void read_version(struct coll_request *request, struct err *err)
{
    const char *text = request->version;
    request->lib_class = NLIB_CLASSES;
    if (!text) return;
    char *end;
    unsigned long minor = 0;
    bool ok = strncmp(text, "2.", 2) == 0 && isdigit((unsigned char)text[2]);
    if (ok) {
        minor = strtoul(text + 2, &end, 10);
        ok = (*end == '\0' || *end == '.' || *end == '-' || *end == '+') && minor < 1000;
    }
    if (!ok) {
        err_add(err, ERR_USAGE, "--nccl %s is no version of NCCL: 2.MINOR, such as 2.18 or 2.27.3",
                text);
        return;
    }
    request->no_nvls = minor < 17;
    request->lib_class = minor <= 18 ? LIB_NCCL_2_18 : minor <= 26 ? LIB_NCCL_2_19 : LIB_NCCL_2_27;
}

static void read_proto(struct coll_request *request, struct err *err)
{
    const char *names[NNCCL_PROTOS + 1] = {0};
    request->proto = -1;
    if (!request->proto_name) return;
    for (int i = 0; i < NNCCL_PROTOS; i++) {
        names[i] = nccl_proto_name(i);
        if (strcasecmp(request->proto_name, names[i]) == 0) request->proto = i;
    }
    if (request->proto < 0) opts_unknown(err, "protocol of NCCL", request->proto_name, names);
}

/* --nodes of a cluster is a number of hosts. */
static void read_hosts(struct coll_request *request, struct err *err)
{
    if (request->node_text && coll_on_cluster(request))
        units_read_uint("--nodes", request->node_text, 1, INT32_MAX, &request->hosts, err);
}

static void check_plot(const char *path, struct err *err)
{
    static const char *const suffixes[] = {".png", ".svg", ".gp"};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t tail = strlen(suffixes[i]);
        if (length > tail && strcmp(path + length - tail, suffixes[i]) == 0) return;
    }
    err_add(err, ERR_USAGE, "--plot %s: a picture ends in .png or .svg, a gnuplot script in .gp",
            path);
}

/* A picture, and several clusters. */
static void check_compare(const struct coll_request *request, const struct opts *opts,
                          struct err *err)
{
    static const char *const single[] = {"topo",  "measured", "links", "log",
                                         "trace", "schedule", NULL};
    if (request->plot) check_plot(request->plot, err);
    if (!request->compare) {
        if (request->plot)
            err_add(err, ERR_USAGE, "--plot draws what --compare A,B,C compares: give it too");
        return;
    }
    for (size_t i = 0; single[i]; i++)
        if (opts_is_set(opts, single[i]))
            err_add(err, ERR_USAGE,
                    "--%s is for one cluster, --compare takes several: give one of "
                    "the two",
                    single[i]);
    if (request->algos.count != 1 || strcmp(request->algos.items[0], "all") == 0)
        err_add(err, ERR_USAGE,
                "--compare compares clusters with one algorithm: --algo names "
                "several");
}

static void check_measured(const struct coll_request *request, const struct opts *opts,
                           struct err *err)
{
    if (!opts_is_set(opts, "measured")) return;
    if (!(request->measured_GBps >= 0) || request->measured_GBps > 1e6)
        err_add(err, ERR_USAGE, "--measured %g: busbw in GB/s, 0 to 10^6", request->measured_GBps);
    if (request->sweep.min != request->sweep.max)
        err_add(err, ERR_USAGE,
                "--measured is the busbw at one size, but the sizes go from %llu "
                "to %llu B: give one with --size",
                (unsigned long long)request->sweep.min, (unsigned long long)request->sweep.max);
}

int coll_check(struct coll_request *request, const struct opts *opts, struct err *err)
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
    sweep_check(&request->sweep, err);
    struct net_args args = coll_net_args(request);
    net_check(&args, err);
    read_version(request, err);
    read_proto(request, err);
    read_hosts(request, err);
    check_compare(request, opts, err);
    check_measured(request, opts, err);
    if (!opts_is_set(opts, "measured")) request->measured_GBps = -1;
    if (!opts_is_set(opts, "launch")) request->launch_s = -1;
    if (!opts_is_set(opts, "alpha-net")) request->alpha_net_s = -1;
    return err->count > 0 ? -1 : 0;
}

/* ---- rules of a form ---- */

/* A timeline is that of one size and one algorithm. */
static void check_trace(const struct coll_request *request, struct err *err)
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

/* On one switch --nodes says how many ranks there are, if nothing else does. */
static void read_nodes(struct coll_request *request, const struct opts *opts, struct err *err)
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
static void read_schedule(struct coll_request *request, const struct opts *opts, struct err *err)
{
    static const char *const said[] = {"algo", "channels", "parts", "root", "nodes"};
    bool on_switch = request->form == FORM_SWITCH;
    if (!request->schedule) return;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (!opts_is_set(opts, said[i]) || (!on_switch && strcmp(said[i], "nodes") == 0)) continue;
        err_add(err, ERR_USAGE, "--%s is said by the file of --schedule: give one of them",
                said[i]);
    }
    request->drawn = msccl_read(request->schedule, err);
    if (!request->drawn) return;
    if (request->coll && request->drawn->coll != request->coll) {
        err_add(err, ERR_USAGE, "--schedule %s is for %s, not for %s", request->schedule,
                request->drawn->coll->name, request->coll->name);
    }
    if ((!on_switch || opts_is_set(opts, "ranks")) && request->nranks != request->drawn->nranks) {
        err_add(err, ERR_USAGE, "--schedule %s is for %u ranks, --%s says %llu", request->schedule,
                request->drawn->nranks, on_switch ? "ranks" : "topo",
                (unsigned long long)request->nranks);
    }
    request->nranks = request->drawn->nranks;
    request->root = request->drawn->root;
}

static void read_traffic(struct coll_request *request, const struct opts *opts, struct err *err)
{
    struct traffic_wish wish = {request->matrix, opts_is_set(opts, "imbalance"),
                                request->imbalance};
    request->shares = traffic_shares(request->coll, (uint32_t)request->nranks, &wish, err);
}

static void check_root(const struct coll_request *request, struct err *err)
{
    if (request->coll && !request->coll->rooted && request->root > 0) {
        err_add(err, ERR_USAGE, "%s has no root: --root (-r) %llu means nothing here",
                request->coll->name, (unsigned long long)request->root);
    } else if (request->coll && request->root >= request->nranks) {
        err_add(err, ERR_USAGE, "--root is %llu; with %llu ranks it is 0 to %llu",
                (unsigned long long)request->root, (unsigned long long)request->nranks,
                (unsigned long long)request->nranks - 1);
    }
}

/* The number of an algorithm of NCCL; -1: none of this name. */
static int nccl_algo_find(const char *name)
{
    for (int i = 0; i < NNCCL_ALGOS; i++)
        if (strcasecmp(name, nccl_algo_name(i)) == 0) return i;
    return -1;
}

static void check_algos(const struct coll_request *request, struct err *err)
{
    const char *names[NNCCL_ALGOS + 3] = {0};
    for (int i = 0; i < NNCCL_ALGOS; i++)
        names[i] = nccl_algo_name(i);
    names[NNCCL_ALGOS] = "auto";
    names[NNCCL_ALGOS + 1] = "all";
    for (size_t i = 0; request->coll && i < request->algos.count; i++) {
        const char *name = request->algos.items[i];
        bool wide = strcmp(name, "auto") == 0 || strcmp(name, "all") == 0;
        if (wide) continue;
        if (request->form == FORM_NCCL && nccl_algo_find(name) < 0)
            opts_unknown(err, "algorithm of NCCL", name, names);
        else if (request->form == FORM_MPI)
            err_add(err, ERR_USAGE,
                    "--algo %s: an MPI library's own choice is not to be forced; "
                    "--as collbench runs the algorithms themselves",
                    name);
        else if (request->form != FORM_NCCL)
            algo_find(request->coll->id, name, err);
    }
}

/* NCCL has room for 64 channels, 32 before 2.19. */
static void check_channels(const struct coll_request *request, struct err *err)
{
    uint64_t most = request->lib_class == LIB_NCCL_2_18 ? 32 : 64;
    if (request->form == FORM_NCCL && request->channels > most)
        err_add(err, ERR_USAGE, "--channels is %llu; NCCL%s has 1 to %llu",
                (unsigned long long)request->channels, most < 64 ? " before 2.19" : "",
                (unsigned long long)most);
}

/* A library of MPI has formulas alone, our own schedules have none; what the engine sees is not
 * there for a formula. */
static void check_net(struct coll_request *request, const struct opts *opts, struct err *err)
{
    static const char *const engine[] = {"links", "log", "trace", "channels"};
    if (request->form == FORM_SWITCH) return;
    if (request->form == FORM_MPI && !opts_is_set(opts, "net")) request->net = NET_CLOSED;
    if (request->form == FORM_MPI && request->net != NET_CLOSED)
        err_add(err, ERR_USAGE, "--net: an MPI library is there in closed form alone");
    if (request->form == FORM_COLLBENCH && request->net == NET_CLOSED)
        err_add(err, ERR_USAGE, "--net closed: collbench's schedules are run, there is no formula");
    for (size_t i = 0; request->net == NET_CLOSED && i < sizeof engine / sizeof *engine; i++)
        if (opts_is_set(opts, engine[i]))
            err_add(err, ERR_USAGE, "--%s is what the engine sees; in closed form it does not run",
                    engine[i]);
    if (request->links && ((request->json && strcmp(request->json, "-") == 0) ||
                           (request->csv && strcmp(request->csv, "-") == 0)))
        err_add(err, ERR_USAGE, "--links prints text: give --json or --csv a file, not stdout");
}

int coll_check_form(struct coll_request *request, const struct opts *opts, struct err *err)
{
    check_belonging(request, opts, err);
    if (request->form == FORM_SWITCH) read_nodes(request, opts, err);
    read_schedule(request, opts, err);
    check_root(request, err);
    if (err->count == 0) read_traffic(request, opts, err);
    check_algos(request, err);
    if (request->form == FORM_NCCL && request->coll && request->coll->empty)
        err_add(err, ERR_USAGE, "NCCL has no %s: --as mpi or --as collbench", request->coll->name);
    check_channels(request, err);
    check_net(request, opts, err);
    if (request->trace && err->count == 0) check_trace(request, err);
    return err->count > 0 ? -1 : 0;
}

void coll_request_release(struct coll_request *request)
{
    sched_free(request->drawn);
    free(request->nodes);
    free(request->shares);
}
