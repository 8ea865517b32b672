/* SPDX-License-Identifier: Apache-2.0
 * The option table of the operations, and request -> plan: see options.h. Letters and defaults are
 * those of nccl-tests (doc/PERFORMANCE.md and src/common.cu there) unless a help text says so. */
#include "bench/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bench/format.h"
#include "bench/timing.h"
#include "bench/timing_gpu.h"
#include "bench/trace.h"
#include "bench/wiring.h"
#include "exec/device.h"
#include "exec/launch.h"
#include "exec/place.h"
#include "exec/transport.h"
#include "sched/copy.h"
#include "sched/layout.h"
#include "sched/msccl.h"
#include "sched/verify.h"

enum { MOST_RANKS = 1 << 20, MOST_PIECES = 1 << 20, MOST_CONNECTIONS = 64 };
#define MOST_BYTES (UINT64_C(1) << 60)

static const char *const rank_choices[] = {"processes", "threads", NULL};
static const char *const cadence_choices[] = {"back-to-back", "isolated", NULL};
static const char *const vs_choices[] = {"nothing", "mpi", "nccl", NULL};
enum { VS_NOTHING, VS_MPI, VS_NCCL };
static const char *const order_choices[] = {"shuffled", "listed", NULL};

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct request, field), .value = (value_), .arg = (arg_),               \
        .help = (help_), __VA_ARGS__                                                               \
    }
/* A flag that is taken for the sake of scripts, with one legal value: see fixed[]. */
#define FIXED(number, name_, letter_, value_)                                                      \
    ROW(name_, letter_, OPTS_UINT, fixed[number], value_, "N", "only " value_ " here")

static const struct opts_row rows[] = {
    ROW("size", 0, OPTS_SIZE, size, NULL, "SIZE", "one size: the same as -b SIZE -e SIZE",
        .section = "The call", .max = MOST_BYTES),
    ROW("minbytes", 'b', OPTS_SIZE, sweep.min, "32M", "SIZE", "smallest size", .max = MOST_BYTES),
    ROW("maxbytes", 'e', OPTS_SIZE, sweep.max, "32M", "SIZE", "largest size", .max = MOST_BYTES),
    ROW("stepbytes", 'i', OPTS_SIZE, sweep.step, "1M", "SIZE", "added from size to size",
        .max = MOST_BYTES),
    ROW("stepfactor", 'f', OPTS_UINT, sweep.factor, NULL, "N",
        "multiplied from size to size, instead of --stepbytes", .max = UINT32_MAX),
    ROW("datatype", 'd', OPTS_LIST, dtypes, "float", "TYPE[,TYPE]",
        "element types: int8, uint8, int32, uint32, int64, uint64, half, float, double, "
        "bfloat16, f8e4m3, f8e5m2, or all"),
    ROW("op", 'o', OPTS_LIST, ops, "sum", "OP[,OP]", "operators: sum, prod, max, min, avg, or all"),
    ROW("root", 'r', OPTS_UINT, root, "0", "RANK", "of broadcast, reduce, gather, scatter",
        .max = MOST_RANKS),
    ROW("imbalance", 0, OPTS_DOUBLE, imbalance, "1", "F",
        "alltoallv: rank 0 receives F times the mean, the others share the rest (a router of "
        "experts that favours one); 1 is even"),
    ROW("matrix", 0, OPTS_STRING, matrix, NULL, "FILE",
        "alltoallv: who sends which share to whom: a row of numbers per sender"),
    ROW("in-place", 0, OPTS_FLAG, in_place, NULL, NULL,
        "run in place only; with --out-of-place, or with neither, run both"),
    ROW("out-of-place", 0, OPTS_FLAG, out_of_place, NULL, NULL, "run out of place only"),
    ROW("algo", 0, OPTS_LIST, algos, "auto", "NAME[,NAME]",
        "algorithms; auto takes the one that suits the size, all takes every one of the operation",
        .section = "The algorithm"),
    ROW("schedule", 0, OPTS_STRING, schedule, NULL, "FILE",
        "a schedule of your own, as MSCCL writes them (XML), in place of an algorithm"),
    ROW("channels", 0, OPTS_UINT, channels, NULL, "N",
        "independent copies of the pattern; without it, the algorithm's own number", .min = 1,
        .max = MOST_PIECES),
    ROW("parts", 0, OPTS_UINT, parts, NULL, "N",
        "pieces into which each channel's share is cut; without it, 1, or what auto chooses",
        .min = 1, .max = MOST_PIECES),
    ROW("nodes", 0, OPTS_STRING, nodes, NULL, "N+N..",
        "node groups of neighbouring ranks for hierarchical algorithms, such as 2+3 or 2x4 (2 "
        "nodes of 4); without it, all ranks are one node"),
    ROW("slice", 0, OPTS_SIZE, slice, NULL, "SIZE",
        "most bytes of a chunk that one pass handles, a multiple of 64; without it, what suits the "
        "wire",
        .min = 1, .max = MOST_BYTES),
    ROW("depth", 0, OPTS_UINT, depth, NULL, "N",
        "messages that a wire holds; raised to what the schedule needs", .min = 1,
        .max = MOST_PIECES),
    ROW("ranks", 0, OPTS_UINT, nranks, NULL, "N",
        "ranks to start; without it, one per core, from 2 to 8, as many as memory allows; on GPUs, "
        "one "
        "per GPU",
        .section = "Ranks, memory, transport", .min = 1, .max = MOST_RANKS),
    ROW("ranks-as", 0, OPTS_CHOICE, ranks_as, "processes", "KIND", "what a rank is",
        .choices = rank_choices),
    ROW("buffers", 0, OPTS_CHOICE, buffers, "shared", "KIND",
        "where inputs and outputs lie: in memory that peers can map, or not",
        .choices = buffer_words),
    ROW("memory", 0, OPTS_CHOICE, memory, "auto", "KIND",
        "whose memory that is: the host's (OSU's H) or a GPU's, one per rank (D); auto: GPUs' with "
        "their transports, else the host's",
        .choices = memory_words),
    ROW("transport", 0, OPTS_STRING, transport, "shm", "NAME", "see collbench list"),
    ROW("hosts", 0, OPTS_STRING, hosts, NULL, "A:N,B:N..",
        "hosts and ranks on each, started over ssh; the first is this one"),
    ROW("rsh", 0, OPTS_STRING, rsh, NULL, "COMMAND",
        "in place of ssh: a command that takes a host and the words to run there"),
    ROW("iface", 0, OPTS_STRING, iface, NULL, "NAME",
        "interface, own address or prefix (10.0.0.0/8) for connections between ranks; without it, "
        "the first that leads to other hosts, or the loopback"),
    ROW("provider", 0, OPTS_STRING, provider, NULL, "NAME",
        "ofi: libfabric's provider, such as verbs or tcp;ofi_rxm; without it, the best there is"),
    ROW("connections", 0, OPTS_UINT, connections, NULL, "N",
        "tcp: connections per pair of ranks; without it, what suits the size", .min = 1,
        .max = MOST_CONNECTIONS),
    ROW("oversubscribe", 0, OPTS_FLAG, oversubscribe, NULL, NULL,
        "transports of GPUs: more ranks than GPUs, which they share; for checking, not for timing"),
    ROW("cudagraph", 'G', OPTS_UINT, cudagraph, "0", "N",
        "cuda-ipc: 1 or more launches each operation as a CUDA graph", .max = UINT32_MAX),
    ROW("wire", 0, OPTS_CHOICE, wire, "auto", "KIND",
        "how messages travel: staged copies them to a slot; pull lets the receiver read the "
        "sender's buffer; ll puts small ones beside their number in one cache line",
        .choices = wire_words),
    ROW("bind", 0, OPTS_CHOICE, bind, "core", "KIND",
        "cores of a rank: one of its own (none when there are too few), those of a NUMA node, all",
        .choices = bind_names),
    ROW("timeout", 'T', OPTS_TIME_S, timeout_s, "60", "SECONDS",
        "end the run when no rank makes progress for so long; 0: never", .plain_seconds = true),
    ROW("iters", 'n', OPTS_UINT, iters, NULL, "N",
        "samples; without it, as many as --precision needs, 20 to 4000", .section = "Measuring",
        .min = 1, .max = UINT32_MAX),
    ROW("precision", 0, OPTS_FRACTION, precision, "2%", "SHARE",
        "without -n: stop when half of the median's 95 % interval is below this share of it"),
    ROW("max-time", 0, OPTS_TIME_S, cap_s, "0.25", "SECONDS",
        "without -n: .. or when the samples of a row's placement took so long",
        .plain_seconds = true),
    ROW("warmup_iters", 'w', OPTS_UINT, warmup, NULL, "N",
        "operations before the timed ones; without it, 6 and as many more as 2 ms hold",
        .max = UINT32_MAX),
    ROW("agg_iters", 'm', OPTS_UINT, batch, "1", "N",
        "least operations per sample; its time is divided by their number", .min = 1,
        .max = UINT32_MAX),
    ROW("average", 'a', OPTS_UINT, average, "3", "N",
        "of each sample, over the ranks: 0 rank 0, 1 mean, 2 min, 3 max (nccl-tests' default is 1)",
        .max = AVERAGE_MAX),
    ROW("check", 'c', OPTS_UINT, check, "1", "N",
        "rounds of the data check, raised to what shows each rank's share; 0: no check",
        .max = UINT32_MAX),
    ROW("cadence", 0, OPTS_CHOICE, cadence, "back-to-back", "KIND",
        "what stands between two operations: back-to-back has nothing there, isolated a barrier "
        "before each (outside of the time)",
        .choices = cadence_choices),
    ROW("cold", 0, OPTS_FLAG, cold, NULL, NULL,
        "flush the buffers from the caches before each sample; isolated"),
    ROW("order", 0, OPTS_CHOICE, order, "shuffled", "KIND",
        "in which rows are measured; text and CSV are in order in any case, JSON as measured",
        .choices = order_choices),
    ROW("seed", 0, OPTS_UINT, seed, "1", "N", "of the shuffled order"),
    ROW("launches", 'N', OPTS_UINT, launches, "1", "N",
        "start the ranks N times and measure all rows each time, then all launches together; 0: "
        "for ever",
        .max = UINT32_MAX),
    ROW("run_cycles", 0, OPTS_UINT, launches, NULL, "N", "the same", .max = UINT32_MAX),
    ROW("time", 0, OPTS_TIME_S, soak_s, NULL, "TIME",
        "launch again and again for so long (2h), with time stamps and an alarm when a row drifts; "
        "JSON keeps the samples of the first 10 launches",
        .plain_seconds = true),
    ROW("vs", 0, OPTS_CHOICE, vs, "nothing", "WHAT",
        "compare with a library, sample by sample, in the same processes, by the same clock",
        .choices = vs_choices, .section = "Comparing"),
    ROW("mpiexec", 0, OPTS_STRING, mpiexec, NULL, "FILE",
        "the MPI library's launcher; without it, mpiexec as the shell finds it"),
    ROW("nccl-algo", 0, OPTS_STRING, nccl_algo, NULL, "NAME",
        "NCCL_ALGO for --vs nccl, such as Ring, Tree, NVLS; without it, what NCCL chooses"),
    ROW("nccl-proto", 0, OPTS_STRING, nccl_proto, NULL, "NAME",
        "NCCL_PROTO for --vs nccl: LL, LL128, Simple; without it, what NCCL chooses"),
    ROW("nccl-hostid", 0, OPTS_FLAG, nccl_hostid, NULL, NULL,
        "--vs nccl with ranks that share GPUs: each says it is on a host of its own (NCCL_HOSTID); "
        "shows that NCCL's calls work, its times are those of sockets"),
    ROW("groups", 0, OPTS_STRING, groups, NULL, "KxN",
        "K groups of N ranks each: one group alone against all at once"),
    ROW("overlap", 0, OPTS_FLAG, overlap, NULL, NULL,
        "the operation alone against the operation beside compute that takes as long"),
    ROW("looks", 0, OPTS_UINT, looks, "16", "N",
        "with --overlap: how often compute stops to drive the operation (OSU's -t)",
        .max = UINT32_MAX),
    ROW("skew", 0, OPTS_TIME_S, skew_s, NULL, "TIME",
        "all ranks on time against one that comes so late; counted from the last arrival; "
        "isolated"),
    ROW("trace", 0, OPTS_STRING, trace, NULL, "FILE",
        "instead of timing: the steps of one operation over time, for chrome://tracing or "
        "Perfetto",
        .section = "Looking inside"),
    ROW("repeat-check", 0, OPTS_FLAG, repeat_check, NULL, NULL,
        "instead of timing: are the bits the same on all ranks, in all runs, by all algorithms?"),
    ROW("output_file", 'J', OPTS_STRING, json, NULL, "FILE",
        "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("json", 0, OPTS_STRING, json, NULL, "FILE", "the same"),
    ROW("csv", 0, OPTS_STRING, csv, NULL, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("format", 0, OPTS_CHOICE, format, "own", "KIND",
        "of the text: own, or for parsers of nccl-tests or OSU tables", .choices = format_names),
    ROW("timestamps", 0, OPTS_FLAG, timestamps, NULL, NULL, "show when each row was complete"),
    ROW("report_timestamps", 'S', OPTS_UINT, timestamp, "0", "N", "1: the same", .max = 1),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, NULL, "files may exist already"),
    ROW("list", 0, OPTS_FLAG, list, NULL, NULL, "print what can be asked for and exit",
        .section = "Instead of a run"),
    ROW("version", 0, OPTS_FLAG, version, NULL, NULL, "print the version and exit"),
    ROW("nthreads", 't', OPTS_UINT, fixed[0], "1", "N", "only 1 here",
        .section = "Flags of nccl-tests that have one legal value here"),
    FIXED(1, "ngpus", 'g', "1"),
    FIXED(2, "parallel_init", 'p', "0"),
    FIXED(3, "blocking", 'z', "0"),
    FIXED(4, "report_cputime", 'C', "0"),
    FIXED(5, "local_register", 'R', "0"),
    FIXED(6, "unalign", 'u', "0"),
    FIXED(7, "stream_null", 'y', "0"),
    {.name = NULL},
};

/* Why the other values are refused, in the order of fixed[]. */
static const struct {
    const char *option;
    uint64_t value;
    const char *why;
} fixed_rules[NFIXED] = {
    {"nthreads", 1, "--ranks N --ranks-as threads starts several"},
    {"ngpus", 1, "a rank is a process or thread on cores; --ranks N starts several"},
    {"parallel_init", 0, "ranks always start in parallel"},
    {"blocking", 0, "see --cadence isolated"},
    {"report_cputime", 0, "the time is that of the wall clock"},
    {"local_register", 0, "there is no memory to register; see --buffers"},
    {"unalign", 0, "buffers are aligned"},
    {"stream_null", 0, "a rank on a GPU has a stream of its own"},
};

static void check_fixed(const struct request *request, struct err *err)
{
    for (size_t i = 0; i < NFIXED; i++) {
        if (request->fixed[i] == fixed_rules[i].value) continue;
        err_add(err, ERR_USAGE, "--%s %llu: %s; only %llu is legal", fixed_rules[i].option,
                (unsigned long long)request->fixed[i], fixed_rules[i].why,
                (unsigned long long)fixed_rules[i].value);
    }
}

/* Flags that only transports of GPUs have. */
static void check_gpu_flags(const struct request *request, struct err *err)
{
    const struct transport *const *at = transport_table();
    while (*at && strcmp((*at)->name, request->transport) != 0)
        at++;
    if (!*at || (*at)->device) return;
    bool there = strcmp(memory_words[request->memory], "gpu") == 0;
    const char *const asked[] = {request->cudagraph ? "--cudagraph 1" : NULL,
                                 request->oversubscribe && !there ? "--oversubscribe" : NULL,
                                 request->vs == VS_NCCL ? "--vs nccl" : NULL};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        if (!asked[i]) continue;
        err_add(err, ERR_USAGE,
                "%s is for ranks on GPUs, not for --transport %s%s; use --transport cuda-ipc or "
                "cuda-peer",
                asked[i], request->transport, there ? " --memory gpu" : "");
    }
}

/* Reads KxN. */
static void read_groups(struct request *request, const struct opts *opts, struct err *err)
{
    if (!request->groups) return;
    unsigned long long k = 0, n = 0;
    int end = 0;
    bool digits = strspn(request->groups, "0123456789x") == strlen(request->groups);
    bool read = digits && strlen(request->groups) < 16 &&
                sscanf(request->groups, "%llux%llu%n", &k, &n, &end) == 2 && !request->groups[end];
    if (!read || k < 2 || n < 1 || k * n > MOST_RANKS) {
        err_add(err, ERR_USAGE,
                "--groups %s: not KxN with K groups (2 or more) of N ranks (1 or more), %d ranks "
                "at most, such as 2x4",
                request->groups, MOST_RANKS);
        return;
    }
    request->ngroups = k;
    request->group_ranks = n;
    if (opts_is_set(opts, "ranks") && request->nranks != k * n) {
        err_add(err, ERR_USAGE, "--groups %s means %llu ranks, --ranks says %llu: give one of them",
                request->groups, k * n, (unsigned long long)request->nranks);
    }
    request->nranks = n;
}

/* --nodes says how many ranks there are, if nothing else does. */
static void read_nodes(struct request *request, const struct opts *opts, struct err *err)
{
    uint32_t *nodes, nnodes;
    if (!request->nodes || algo_nodes_parse(request->nodes, &nodes, &nnodes, err)) return;
    uint64_t nranks = algo_nodes_ranks(nodes, nnodes);
    free(nodes);
    bool asked = opts_is_set(opts, "ranks") || request->groups;
    if (asked && request->nranks != nranks) {
        err_add(err, ERR_USAGE,
                "--nodes %s has %llu ranks in all, --%s says %llu: give one of them",
                request->nodes, (unsigned long long)nranks, request->groups ? "groups" : "ranks",
                (unsigned long long)request->nranks);
    }
    request->nranks = nranks;
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
    struct sched *sched = msccl_read(request->schedule, err);
    if (!sched) return;
    bool asked = opts_is_set(opts, "ranks") || request->groups;
    if (asked && request->nranks != sched->nranks) {
        err_add(err, ERR_USAGE, "--schedule %s is for %u ranks, --%s says %llu", request->schedule,
                sched->nranks, request->groups ? "groups" : "ranks",
                (unsigned long long)request->nranks);
    }
    request->nranks = sched->nranks;
    request->root = sched->root;
    sched_free(sched);
}

/* Things that cannot be had at once: at most one of each line's options. */
static void check_conflicts(const struct request *request, struct err *err)
{
    const struct {
        const char *option;
        bool given;
    } aims[] = {
        {"--vs", request->vs > 0},           {"--groups", request->groups != NULL},
        {"--overlap", request->overlap},     {"--skew", request->skew_s > 0},
        {"--trace", request->trace != NULL}, {"--repeat-check", request->repeat_check},
    };
    const char *first = NULL;
    for (size_t i = 0; i < sizeof aims / sizeof *aims; i++) {
        if (!aims[i].given) continue;
        if (first)
            err_add(err, ERR_USAGE, "%s and %s are two different aims: give one of them", first,
                    aims[i].option);
        else
            first = aims[i].option;
    }
    if (request->vs == VS_MPI && request->ranks_as == 1) {
        err_add(err, ERR_USAGE,
                "--vs %s needs ranks that are processes, --ranks-as threads gives one process",
                vs_choices[request->vs]);
    }
}

/* Options about one library. */
static void check_library(const struct request *request, const struct opts *opts, struct err *err)
{
    static const struct {
        const char *option;
        unsigned vs;
    } rules[] = {{"mpiexec", VS_MPI},
                 {"nccl-algo", VS_NCCL},
                 {"nccl-proto", VS_NCCL},
                 {"nccl-hostid", VS_NCCL}};
    struct err none = ERR_INIT;
    const struct transport *transport = transport_named(request->transport, &none);
    err_release(&none); /* an unknown one is found again */
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!opts_is_set(opts, rules[i].option)) continue;
        if (request->vs == rules[i].vs) continue;
        if (rules[i].vs == VS_MPI && transport && transport->mpiexec) continue;
        err_add(err, ERR_USAGE, "--%s means nothing without --vs %s", rules[i].option,
                vs_choices[rules[i].vs]);
    }
}

/* Options that mean nothing without another one, or beside it. */
static void check_company(const struct request *request, const struct opts *opts, struct err *err)
{
    static const struct {
        const char *option, *other;
        bool together; /* with it; else: not with it */
    } rules[] = {
        {"looks", "overlap", true},    {"precision", "iters", false},
        {"max-time", "iters", false},  {"launches", "time", false},
        {"run_cycles", "time", false}, {"run_cycles", "launches", false},
        {"seed", "order", false},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *option = rules[i].option, *other = rules[i].other;
        bool listed = strcmp(other, "order") != 0 || request->order == 1;
        if (!opts_is_set(opts, option)) continue;
        if (rules[i].together && !opts_is_set(opts, other))
            err_add(err, ERR_USAGE, "--%s means nothing without --%s", option, other);
        if (!rules[i].together && opts_is_set(opts, other) && listed)
            err_add(err, ERR_USAGE, "--%s and --%s exclude each other%s: give one of them", option,
                    other, strcmp(other, "order") ? "" : " (listed)");
    }
    if (request->timeout_s > 0 && request->skew_s >= request->timeout_s) {
        err_add(
            err, ERR_USAGE,
            "--skew %g s is not less than --timeout (-T) %g s: the late rank would be taken for "
            "a stalled one",
            request->skew_s, request->timeout_s);
    }
}

/* --cold and --skew stand for isolated operations. */
static void check_cadence(struct request *request, const struct opts *opts, struct err *err)
{
    if (!request->cold && !(request->skew_s > 0)) return;
    if (opts_is_set(opts, "cadence") && request->cadence != CADENCE_ISOLATED) {
        err_add(err, ERR_USAGE,
                "--cadence back-to-back leaves no time between operations, which %s needs; valid: "
                "--cadence isolated",
                request->cold ? "--cold" : "--skew");
    }
    if (request->cold && !timing_can_flush()) {
        err_add(err, ERR_USAGE,
                "--cold needs a processor whose caches a program can flush (x86-64, "
                "aarch64); this is another one");
    }
    request->cadence = CADENCE_ISOLATED;
}

int request_parse(struct request *request, struct opts *opts, int argc, char **argv,
                  struct err *err)
{
    *request = (struct request){0};
    opts_parse(opts, rows, request, argc, argv, err);
    if (opts->help) return 0;
    if (err->count == 0 && opts->npositionals > 0) {
        err_add(err, ERR_USAGE, "\"%s\" is no option; the operation is the first word alone",
                opts->positionals[0]);
    }
    if (opts_is_set(opts, "size")) {
        if (opts_is_set(opts, "minbytes") || opts_is_set(opts, "maxbytes")) {
            err_add(err, ERR_USAGE,
                    "--size means both --minbytes (-b) and --maxbytes (-e): give "
                    "it or them, not both");
        }
        request->sweep.min = request->sweep.max = request->size;
    }
    if (opts_is_set(opts, "stepbytes") && request->sweep.factor && request->sweep.step) {
        err_add(err, ERR_USAGE,
                "--stepbytes (-i) %llu adds and --stepfactor (-f) %llu multiplies from size to "
                "size: give one of them",
                (unsigned long long)request->sweep.step, (unsigned long long)request->sweep.factor);
    }
    uint64_t beyond = request->slice % LAYOUT_GRANULE, below = request->slice - beyond;
    if (beyond && below) {
        err_add(err, ERR_USAGE, "--slice %llu is no multiple of %d; nearest are %llu and %llu",
                (unsigned long long)request->slice, LAYOUT_GRANULE, (unsigned long long)below,
                (unsigned long long)below + LAYOUT_GRANULE);
    } else if (beyond) {
        err_add(err, ERR_USAGE, "--slice %llu is no multiple of %d; nearest is %d",
                (unsigned long long)request->slice, LAYOUT_GRANULE, LAYOUT_GRANULE);
    }
    read_groups(request, opts, err);
    read_nodes(request, opts, err);
    read_schedule(request, opts, err);
    check_conflicts(request, err);
    check_library(request, opts, err);
    check_company(request, opts, err);
    check_cadence(request, opts, err);
    if (err->count == 0) {
        sweep_check(&request->sweep, err);
        check_fixed(request, err);
        check_gpu_flags(request, err);
    }
    return err->count ? -1 : 0;
}

void request_help(FILE *to, const struct coll *coll)
{
    char *usage = mem_printf("collbench %s [options]", coll->name);
    char *about = mem_printf("Runs %s (%s) between ranks on this machine, checks the data and "
                             "measures. Size is that of algbw = size / time; busbw = algbw x %s. "
                             "Times are in microseconds, GB is 10^9 bytes.",
                             coll->name, coll->promise, coll->busbw);
    opts_help(to, usage, about, rows);
    free(usage);
    free(about);
}

/* ---- words to numbers ---- */

static void plan_dtypes(struct plan *plan, const struct opts_list *list, struct err *err)
{
    bool all = false, named[DT_COUNT] = {false};
    for (size_t i = 0; i < list->count; i++) {
        enum dtype dtype;
        if (strcmp(list->items[i], "all") == 0) {
            all = true;
        } else if (dtype_parse(list->items[i], &dtype, err) == 0 && !named[dtype]) {
            named[dtype] = true;
            plan->dtypes[plan->ndtypes++] = dtype;
        }
    }
    for (unsigned dtype = 0; all && dtype < DT_COUNT; dtype++) {
        if (!named[dtype]) plan->dtypes[plan->ndtypes++] = (enum dtype)dtype;
    }
    if (coll_get(plan->coll)->empty && plan->ndtypes > 0) plan->ndtypes = 1; /* of no elements */
}

static void plan_ops(struct plan *plan, const struct opts_list *list, struct err *err)
{
    bool all = false, named[OP_COUNT] = {false};
    for (size_t i = 0; i < list->count; i++) {
        enum redop op;
        if (strcmp(list->items[i], "all") == 0) {
            all = true;
        } else if (redop_parse(list->items[i], &op, err) == 0 && !named[op]) {
            named[op] = true;
            plan->ops[plan->nops++] = op;
        }
    }
    for (unsigned op = 0; all && op < OP_COUNT; op++) {
        if (!named[op]) plan->ops[plan->nops++] = (enum redop)op;
    }
    if (!coll_get(plan->coll)->reduces) { /* the operator does not matter */
        plan->ops[0] = OP_SUM;
        plan->nops = 1;
    }
}

/* Once each: the same algorithm twice in a table tells nothing. */
static void add_algo(struct plan *plan, int32_t number)
{
    for (uint32_t i = 0; i < plan->nalgos; i++) {
        if (plan->algos[i] == number) return;
    }
    plan->algos[plan->nalgos++] = number;
}

/* A plan with room for `list`'s algorithms. */
static struct plan *plan_algos(enum coll_id coll, const struct opts_list *list, struct err *err)
{
    size_t nalgos, cap = 0;
    const struct algo *table = algo_table(&nalgos);
    for (size_t i = 0; i < list->count; i++)
        cap += strcmp(list->items[i], "all") == 0 ? nalgos : 1;
    size_t bytes = sizeof(struct plan) + cap * sizeof(int32_t);
    struct plan *plan = mem_calloc(1, bytes);
    plan->bytes = bytes;
    plan->coll = coll;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->items[i];
        if (strcmp(name, "auto") == 0) {
            add_algo(plan, PLAN_ALGO_AUTO);
        } else if (strcmp(name, "all") == 0) {
            for (size_t a = 0; a < nalgos; a++) {
                if (table[a].coll == coll && algo_runs_on_ranks(&table[a]))
                    add_algo(plan, (int32_t)a);
            }
        } else {
            const struct algo *algo = algo_find(coll, name, err);
            if (algo && !algo_runs_on_ranks(algo)) {
                err_add(err, ERR_USAGE,
                        "--algo %s reduces inside switches, which no transport here can have them "
                        "do: it is for commsim coll, which simulates it",
                        name);
            } else if (algo) {
                add_algo(plan, (int32_t)(algo - table));
            }
        }
    }
    return plan;
}

/* What ranks on GPUs do not do. */
static void check_device(struct plan *plan, const struct request *request, struct err *err)
{
    const struct transport *transport = transport_table()[plan->transport];
    const char *name = transport->name;
    const struct {
        bool asked;
        const char *what;
    } none[] = {{request->trace, "--trace"},
                {request->overlap, "--overlap"},
                {request->groups, "--groups"},
                {request->cold, "--cold"},
                {request->skew_s > 0, "--skew"},
                {request->vs == VS_MPI, "--vs mpi"},
                {request->repeat_check, "--repeat-check"}};
    for (size_t i = 0; plan->device && i < sizeof none / sizeof *none; i++) {
        if (!none[i].asked) continue;
        err_add(err, ERR_USAGE, "%s is for ranks on processors, not for %s %s: use %s",
                none[i].what, transport->device ? "--transport" : "--memory",
                transport->device ? name : "gpu", transport->device ? "shm" : "--memory host");
    }
    if (transport->device && plan->graph && !transport->graphs) {
        err_add(err, ERR_USAGE,
                "--cudagraph 1: %s issues each copy by itself; graphs are there with --transport "
                "cuda-ipc",
                name);
    }
    if (plan->device && request->batch > TIMING_GPU_BATCH) {
        err_add(err, ERR_USAGE,
                "--agg_iters (-m) %llu: a GPU's stream holds some 1000 operations; at most %d are "
                "queued at once",
                (unsigned long long)request->batch, TIMING_GPU_BATCH);
    }
}

void request_check_network(const struct request *request, const char *name, struct err *err)
{
    const struct {
        bool asked;
        const char *option, *part, *other, *valid;
    } needs[] = {
        {request->iface != NULL && !request->host_groups, "--iface", "tcp", "ofi",
         "tcp, shm+tcp, ofi or shm+ofi"}, /* over several hosts: also where these meet */
        {request->connections > 0, "--connections", "tcp", "tcp", "tcp or shm+tcp"},
        {request->provider != NULL, "--provider", "ofi", "ofi", "ofi or shm+ofi"},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        bool known = strstr(name, needs[i].part) || strstr(name, needs[i].other);
        if (!needs[i].asked || known) continue;
        err_add(err, ERR_USAGE, "%s is for --transport %s, not for %s", needs[i].option,
                needs[i].valid, name);
    }
}

/* Ranks of this host: the first of several. */
static uint32_t ranks_here(const struct plan *plan, const struct request *request)
{
    struct err none = ERR_INIT; /* it was made from a list of hosts */
    uint32_t *ranks, nhosts, here = plan->nranks;
    if (request->host_groups && !algo_nodes_parse(request->host_groups, &ranks, &nhosts, &none)) {
        here = ranks[0];
        free(ranks);
    }
    err_release(&none);
    return here;
}

static void plan_transport(struct plan *plan, const struct request *request, struct err *err)
{
    struct wiring wiring =
        wiring_of(request->transport, request->wire, request->buffers, request->memory, err);
    if (transport_table()[wiring.transport]->mpiexec && !request->mpiexec)
        transport_find(request->transport, err); /* none was named: is there one? */
    plan->transport = wiring.transport;
    plan->wire = wiring.wire;
    plan->shared = wiring.shared;
    plan->device = wiring.device;
    plan->oversubscribe = request->oversubscribe;
    plan->graph = request->cudagraph > 0;
    plan->nccl_hostid = request->nccl_hostid;
    check_device(plan, request, err);
    request_check_network(request, transport_table()[plan->transport]->name, err);
    wiring_processes(&wiring, plan->threads, err);
    if (!plan->device || err->count) return;
    uint32_t here = ranks_here(plan, request);
    wiring_devices(&wiring, here, plan->oversubscribe, plan->threads, err);
    plan->apart = wiring.apart;
    plan->most_lanes = wiring.most_lanes;
}

static void plan_root(struct plan *plan, const struct request *request, struct err *err)
{
    const struct coll *coll = coll_get(plan->coll);
    plan->root = (uint32_t)request->root;
    if (!coll->rooted && plan->root != 0) {
        err_add(err, ERR_USAGE, "%s has no root: --root (-r) %u means nothing here", coll->name,
                plan->root);
    } else if (plan->root >= plan->nranks) {
        err_add(err, ERR_USAGE, "--root (-r) %u is no rank: with %u ranks it is 0 to %u",
                plan->root, plan->nranks, plan->nranks - 1);
    }
}

static struct plan *plan_with_nodes(struct plan *plan, const struct request *request)
{
    uint32_t *nodes;
    struct err said = ERR_INIT; /* by read_nodes */
    bool bad = request->nodes && algo_nodes_parse(request->nodes, &nodes, &plan->nnodes, &said);
    err_release(&said);
    if (!request->nodes || bad) return plan;
    size_t at;
    plan = plan_append(plan, nodes, plan->nnodes * sizeof *nodes, &at);
    plan->nodes_at = at;
    free(nodes);
    return plan;
}

/* Ranks by host, and how they reach each other. */
static struct plan *plan_with_hosts(struct plan *plan, const struct request *request)
{
    uint32_t *ranks;
    struct err none = ERR_INIT; /* it was made from a list of hosts */
    snprintf(plan->iface, sizeof plan->iface, "%s", request->iface ? request->iface : "");
    plan->connections = (uint32_t)request->connections;
    snprintf(plan->provider, sizeof plan->provider, "%s",
             request->provider ? request->provider : "");
    bool bad = !request->host_groups ||
               algo_nodes_parse(request->host_groups, &ranks, &plan->nhosts, &none);
    err_release(&none);
    if (bad) return plan;
    size_t at;
    plan = plan_append(plan, ranks, plan->nhosts * sizeof *ranks, &at);
    plan->hosts_at = at;
    free(ranks);
    return plan;
}

/* The schedule of a file; placements in which it is not right are left out. */
static struct plan *plan_with_drawn(struct plan *plan, const struct request *request,
                                    struct err *err)
{
    struct err said = ERR_INIT; /* by read_schedule */
    struct sched *sched = request->schedule ? msccl_read(request->schedule, &said) : NULL;
    err_release(&said);
    if (!sched) return plan;
    if (sched->coll->id != plan->coll) {
        err_add(err, ERR_USAGE, "--schedule %s is for %s, not for %s", request->schedule,
                sched->coll->name, coll_get(plan->coll)->name);
    }
    struct err why = ERR_INIT;
    for (int place = 0; place < NPLACES; place++)
        plan->place[place] = plan->place[place] && !verify_sched(sched, place == IN_PLACE, &why);
    if (!plan->place[OUT_OF_PLACE] && !plan->place[IN_PLACE]) err_move(err, &why);
    err_release(&why);
    char *path = realpath(request->schedule, NULL);
    size_t at;
    plan = plan_append(plan, path ? path : "", path ? strlen(path) + 1 : 1, &at);
    plan->drawn_at = at;
    plan->drawn_parts = sched->nparts;
    plan->nalgos = 1;
    plan->algos[0] = PLAN_ALGO_DRAWN;
    snprintf(plan->drawn_name, sizeof plan->drawn_name, "file:%.20s", sched->name);
    snprintf(plan->cut, sizeof plan->cut, "file %016llx", (unsigned long long)sched_hash(sched));
    free(path);
    sched_free(sched);
    return plan;
}

/* Who sends how much to whom. */
static struct plan *plan_with_shares(struct plan *plan, const struct request *request,
                                     const struct opts *opts, struct err *err)
{
    struct traffic_wish wish = {request->matrix, opts_is_set(opts, "imbalance"),
                                request->imbalance};
    double *shares = traffic_shares(coll_get(plan->coll), plan->nranks, &wish, err);
    if (!shares) return plan;
    size_t at, bytes = sizeof *shares * plan->nranks * plan->nranks;
    plan = plan_append(plan, shares, bytes, &at);
    plan->shares_at = at;
    if (request->matrix) {
        snprintf(plan->cut, sizeof plan->cut, "matrix %016llx",
                 (unsigned long long)rng_hash(shares, bytes));
    } else {
        snprintf(plan->cut, sizeof plan->cut, "imbalance %g", request->imbalance);
    }
    free(shares);
    return plan;
}

/* The placements; some operations have one alone. */
static void plan_place(struct plan *plan, const struct request *request, struct err *err)
{
    const struct coll *coll = coll_get(plan->coll);
    bool both = request->in_place == request->out_of_place;
    plan->place[OUT_OF_PLACE] = both || request->out_of_place;
    plan->place[IN_PLACE] = both || request->in_place;
    if (coll_in_place(coll)) return;
    if (!plan->place[OUT_OF_PLACE]) {
        err_add(err, ERR_USAGE, "%s cannot run in place: %s; leave out --in-place", coll->name,
                coll->empty ? "it has no data" : "input and output are cut differently");
    }
    plan->place[IN_PLACE] = false;
}

static void plan_measuring(struct plan *plan, const struct request *request,
                           const struct opts *opts)
{
    bool warm = opts_is_set(opts, "warmup_iters");
    plan->warmup = warm ? request->warmup : PLAN_WARMUP;
    plan->warm_longer = !warm;
    plan->samples = opts_is_set(opts, "iters") ? request->iters : 0;
    plan->samples_cap = plan->samples ? plan->samples : PLAN_SAMPLES_MOST;
    plan->batch = request->batch;
    plan->average = (enum average)request->average;
    plan->rounds = request->check;
    plan->precision = request->precision;
    plan->cap_s = request->cap_s;
    plan->cadence = (enum cadence)request->cadence;
    plan->cold = request->cold;
    plan->shuffled = request->order == 0;
    plan->seed = request->seed;
    plan->launches = request->soak_s > 0 ? 0 : request->launches;
    plan->launch = 1;
}

/* What is done with the rows, and what they are compared with. */
static void plan_aim(struct plan *plan, const struct request *request)
{
    plan->mode = request->trace ? MODE_TRACE : request->repeat_check ? MODE_REPEAT : MODE_TIME;
    plan->contest = request->vs == VS_MPI    ? CONTEST_MPI
                    : request->vs == VS_NCCL ? CONTEST_NCCL
                    : request->groups        ? CONTEST_GROUPS
                    : request->overlap       ? CONTEST_OVERLAP
                    : request->skew_s > 0    ? CONTEST_SKEW
                                             : CONTEST_NONE;
    plan->ngroups = request->ngroups ? (uint32_t)request->ngroups : 1;
    plan->looks = request->looks;
    plan->skew_ns = (uint64_t)(request->skew_s * 1e9);
}

struct plan *request_plan(const struct request *request, const struct opts *opts,
                          const struct coll *coll, uint32_t nranks, struct err *err)
{
    unsigned before = err->count;
    struct plan *plan = plan_algos(coll->id, &request->algos, err);
    plan->nranks = nranks;
    plan->cores = launch_cores();
    plan->sweep = request->sweep;
    plan->channels = (uint32_t)request->channels;
    plan->parts = (uint32_t)request->parts;
    plan->slice_bytes = request->slice;
    plan->depth = (uint32_t)request->depth;
    plan->threads = request->ranks_as == 1;
    plan_dtypes(plan, &request->dtypes, err);
    plan_ops(plan, &request->ops, err);
    plan_transport(plan, request, err);
    plan_root(plan, request, err);
    plan_place(plan, request, err);
    plan_measuring(plan, request, opts);
    plan = plan_with_nodes(plan, request);
    plan = plan_with_hosts(plan, request);
    plan = plan_with_shares(plan, request, opts, err);
    plan = plan_with_drawn(plan, request, err);
    plan_aim(plan, request);
    if (request->trace) trace_check(plan, request->in_place && request->out_of_place, err);
    if (err->count > before) {
        free(plan);
        return NULL;
    }
    return plan;
}
