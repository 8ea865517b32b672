/* SPDX-License-Identifier: Apache-2.0
 * `collbench p2p`, the parent's side: options -> plan -> memory -> ranks -> rows. Rows come in the
 * last pass, round by round in the order of p2p.h; matrices and slow pairs when all are there. */
#include "bench/p2p_cmd.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/progress.h"
#include "base/units.h"
#include "bench/across.h"
#include "bench/header.h"
#include "bench/p2p_report.h"
#include "bench/wiring.h"
#include "exec/device.h"
#include "exec/launch.h"
#include "exec/mpi.h"
#include "exec/transport.h"
#include "sched/sweep.h"

enum { MOST_RANKS = 1 << 15, RANKS_LEAST = 2, RANKS_MOST = 8, EXTENT_SLACK = 16 << 20 };
#define MOST_BYTES (UINT64_C(1) << 50)
#define TOTAL_S 6.0    /* all cells together take about that, if their limits allow */
#define CELL_S 0.01    /* most */
#define LEAST_S 0.0005 /* least */
enum { PASSES = 3, PASSES_OF_MANY = 2, MANY_PAIRS = 500, PASSES_MOST = 1000 };

struct p2p_request {
    struct request common; /* ranks, hosts, transport, timeout, files */
    struct opts_list sizes;
    uint64_t passes;
    double cell_s;
};

static const char *const rank_choices[] = {"processes", "threads", NULL};

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct p2p_request, field), .value = (value_), .arg = (arg_),           \
        .help = (help_), __VA_ARGS__                                                               \
    }

static const struct opts_row rows[] = {
    ROW("size", 0, OPTS_LIST, sizes, "8,1M", "SIZE[,SIZE]",
        "message sizes; latency is compared at the smallest, bandwidth at the largest",
        .section = "Messages"),
    ROW("minbytes", 'b', OPTS_SIZE, common.sweep.min, "8", "SIZE",
        "smallest size, instead of --size", .max = MOST_BYTES),
    ROW("maxbytes", 'e', OPTS_SIZE, common.sweep.max, "1M", "SIZE",
        "largest size, instead of --size", .max = MOST_BYTES),
    ROW("stepbytes", 'i', OPTS_SIZE, common.sweep.step, "1M", "SIZE", "added from size to size",
        .max = MOST_BYTES),
    ROW("stepfactor", 'f', OPTS_UINT, common.sweep.factor, NULL, "N",
        "multiplied from size to size, instead of --stepbytes", .max = UINT32_MAX),
    ROW("ranks", 0, OPTS_UINT, common.nranks, NULL, "N",
        "ranks to start; without it, one per core, from 2 to 8", .min = 1, .max = MOST_RANKS,
        .section = "Ranks, memory, transport"),
    ROW("ranks-as", 0, OPTS_CHOICE, common.ranks_as, "processes", "KIND", "what a rank is",
        .choices = rank_choices),
    ROW("buffers", 0, OPTS_CHOICE, common.buffers, "shared", "KIND",
        "where messages lie: in memory that peers can map, or not", .choices = buffer_words),
    ROW("memory", 0, OPTS_CHOICE, common.memory, "auto", "KIND",
        "whose memory that is: the host's (OSU's H) or a GPU's, one per rank (D); auto: GPUs' with "
        "their transports, else the host's",
        .choices = memory_words),
    ROW("transport", 0, OPTS_STRING, common.transport, "shm", "NAME", "see collbench list"),
    ROW("hosts", 0, OPTS_STRING, common.hosts, NULL, "A:N,B:N..",
        "hosts and ranks on each, started over ssh; the first is this one"),
    ROW("rsh", 0, OPTS_STRING, common.rsh, NULL, "COMMAND",
        "in place of ssh: a command that takes a host and the words to run there"),
    ROW("iface", 0, OPTS_STRING, common.iface, NULL, "NAME",
        "interface, own address or prefix (10.0.0.0/8) for connections between ranks"),
    ROW("provider", 0, OPTS_STRING, common.provider, NULL, "NAME",
        "ofi: libfabric's provider; without it, the best there is"),
    ROW("connections", 0, OPTS_UINT, common.connections, NULL, "N",
        "tcp: connections per pair of ranks", .min = 1, .max = 64),
    ROW("oversubscribe", 0, OPTS_FLAG, common.oversubscribe, NULL, NULL,
        "transports of GPUs: more ranks than GPUs, which they share; for checking, not for timing"),
    ROW("wire", 0, OPTS_CHOICE, common.wire, "auto", "KIND",
        "how messages travel: staged copies them to a slot; pull lets the receiver read the "
        "sender's buffer; ll puts small ones beside their number in one cache line",
        .choices = wire_words),
    ROW("timeout", 'T', OPTS_TIME_S, common.timeout_s, "60", "SECONDS",
        "end the run when no rank makes progress for so long; 0: never", .plain_seconds = true),
    ROW("iters", 'n', OPTS_UINT, common.iters, NULL, "N",
        "samples per cell (one mode of one pair in one pass); without it, as many as fit "
        "--cell-time, 5 to 1000",
        .min = 1, .max = UINT32_MAX, .section = "Measuring"),
    ROW("cell-time", 0, OPTS_TIME_S, cell_s, NULL, "TIME",
        "time of a cell; without it, 10ms, or for many pairs so little that all take about 6 s, "
        "but at least 0.5ms"),
    ROW("passes", 0, OPTS_UINT, passes, NULL, "N",
        "visits to each pair, all others between two of them; the better one counts, so that a "
        "pair is called slow only if it was slow each time; without it, 3, or 2 for more than 500 "
        "pairs",
        .min = 1, .max = PASSES_MOST),
    ROW("json", 'J', OPTS_STRING, common.json, NULL, "FILE",
        "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("csv", 0, OPTS_STRING, common.csv, NULL, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("overwrite", 0, OPTS_FLAG, common.overwrite, NULL, NULL, "files may exist already"),
    {.name = NULL},
};

static void help(void)
{
    opts_help(stdout, "collbench p2p [options]",
              "Measures every pair of ranks, on this machine or over --hosts: latency (half of a "
              "message there and "
              "back), bandwidth one way, both ways (the sum), and both ways with all pairs of a "
              "round at once. Each pair is measured alone, while the other ranks sleep. Names the "
              "pairs that are slow. Times are in microseconds, GB is 10^9 bytes. "
              "COLLBENCH_SLOW=FROM:TO:MICROSECONDS makes rank FROM wait so long before each "
              "message to rank TO (or all), to see it named.",
              rows);
}

/* ---- options -> plan ---- */

struct sizes {
    uint64_t *bytes;
    size_t count, cap;
    uint32_t nrounded;
};

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void add_size(struct sizes *sizes, uint64_t asked)
{
    MEM_GROW(sizes->bytes, sizes->count, sizes->cap);
    sizes->bytes[sizes->count++] = asked;
}

/* Whole elements (at least one, unless 0 is asked for), ascending, each once. */
static void round_sizes(struct sizes *sizes)
{
    uint64_t esize = dtype_bytes(P2P_DTYPE);
    if (sizes->count == 0) return; /* none could be read */
    for (size_t i = 0; i < sizes->count; i++) {
        uint64_t whole = sizes->bytes[i] / esize * esize;
        sizes->nrounded += sizes->bytes[i] != whole;
        sizes->bytes[i] = sizes->bytes[i] && !whole ? esize : whole;
    }
    qsort(sizes->bytes, sizes->count, sizeof *sizes->bytes, by_size);
    size_t kept = 0;
    for (size_t i = 0; i < sizes->count; i++) {
        if (i == 0 || sizes->bytes[i] != sizes->bytes[kept - 1])
            sizes->bytes[kept++] = sizes->bytes[i];
    }
    sizes->count = kept;
}

static void read_sizes(struct sizes *sizes, const struct p2p_request *request,
                       const struct opts *opts, struct err *err)
{
    bool swept = false;
    static const char *const names[] = {"minbytes", "maxbytes", "stepbytes", "stepfactor"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        swept = swept || opts_is_set(opts, names[i]);
    if (swept && opts_is_set(opts, "size")) {
        err_add(err, ERR_USAGE,
                "--size lists sizes and --minbytes (-b), --maxbytes (-e) and their steps make "
                "them: give it or them, not both");
    } else if (swept && sweep_check(&request->common.sweep, err) == 0) {
        uint64_t size = request->common.sweep.min;
        do {
            add_size(sizes, size);
        } while (sweep_next(&request->common.sweep, dtype_bytes(P2P_DTYPE), &size));
    }
    for (size_t i = 0; !swept && i < request->sizes.count; i++) {
        uint64_t bytes;
        if (units_read_size("--size", request->sizes.items[i], &bytes, err)) continue;
        if (bytes > MOST_BYTES) {
            err_add(err, ERR_USAGE, "--size %s is more than the most, %llu bytes",
                    request->sizes.items[i], (unsigned long long)MOST_BYTES);
            continue;
        }
        add_size(sizes, bytes);
    }
    round_sizes(sizes);
}

/* A planted delay for tests: COLLBENCH_SLOW=FROM:TO:MICROSECONDS, where TO may be "all". */
static void read_slow(struct p2p_plan *plan, struct err *err)
{
    const char *text = getenv("COLLBENCH_SLOW");
    uint64_t us;
    int end = 0;
    if (!text || !*text) return;
    plan->slow_to = P2P_ALL;
    bool good = sscanf(text, "%" SCNu32 ":all:%" SCNu64 "%n", &plan->slow_from, &us, &end) == 2 ||
                sscanf(text, "%" SCNu32 ":%" SCNu32 ":%" SCNu64 "%n", &plan->slow_from,
                       &plan->slow_to, &us, &end) == 3;
    if (!good || text[end] || us == 0 || us > UINT32_MAX) {
        err_add(err, ERR_USAGE, "COLLBENCH_SLOW=%s: not of the form FROM:TO:MICROSECONDS", text);
    } else if (plan->slow_from >= plan->nranks || plan->slow_from == plan->slow_to ||
               (plan->slow_to >= plan->nranks && plan->slow_to != P2P_ALL)) {
        err_add(err, ERR_USAGE, "COLLBENCH_SLOW=%s: not two different ranks below %u", text,
                plan->nranks);
    } else {
        plan->slow_ns = us * 1000;
    }
}

static void read_transport(struct p2p_plan *plan, const struct p2p_request *request,
                           const struct opts *opts, struct err *err)
{
    struct wiring wiring = wiring_of(request->common.transport, request->common.wire,
                                     request->common.buffers, request->common.memory, err);
    plan->transport = wiring.transport;
    plan->wire = wiring.wire;
    plan->shared = wiring.shared;
    plan->device = wiring.device;
    plan->oversubscribe = request->common.oversubscribe;
    int devices;
    const char *why;
    request_check_network(&request->common, transport_table()[plan->transport]->name, err);
    wiring_processes(&wiring, plan->threads, err);
    if (plan->device && request->common.host_groups) {
        err_add(err, ERR_USAGE,
                "p2p over several hosts is for --memory host: pairs of GPUs meet in the memory of "
                "one host");
    }
    if (!plan->device || err->count) return;
    if (!opts_is_set(opts, "ranks") && gpu_devices(&devices, &why) && devices > 1)
        plan->nranks = (uint32_t)devices;
    wiring_devices(&wiring, plan->nranks, plan->oversubscribe, plan->threads, err);
    plan->apart = wiring.apart;
    plan->most_lanes = wiring.most_lanes;
}

static uint64_t all_pairs(const struct p2p_plan *plan)
{
    return (uint64_t)p2p_rounds(plan->nranks) * p2p_pairs(plan->nranks);
}

/* How much is measured: less of each where there are many pairs. */
static void choose_effort(struct p2p_plan *plan, const struct p2p_request *request,
                          const struct opts *opts, struct err *err)
{
    uint64_t pairs = all_pairs(plan);
    plan->samples = request->common.iters;
    plan->passes = pairs > MANY_PAIRS ? PASSES_OF_MANY : PASSES;
    if (opts_is_set(opts, "passes")) plan->passes = (uint32_t)request->passes;
    static const char *const names[] = {"iters", "cell-time", "passes"};
    bool asked = false; /* for so much of it */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        asked = asked || opts_is_set(opts, names[i]);
    plan->at_once = plan->nranks <= plan->cores ? plan->passes : pairs <= MANY_PAIRS || asked;
    if (p2p_pairs(plan->nranks) == 1) plan->at_once = 0;
    double cells = (double)pairs * plan->nsizes * plan->passes * P2P_NMODES;
    plan->cell_s = TOTAL_S / cells < CELL_S ? TOTAL_S / cells : CELL_S;
    if (plan->cell_s < LEAST_S) plan->cell_s = LEAST_S;
    if (opts_is_set(opts, "cell-time")) plan->cell_s = request->cell_s;
    if (!(plan->cell_s > 0)) err_add(err, ERR_USAGE, "--cell-time 0: a cell needs some time");
}

/* The plan, freed with free(); NULL with all faults. */
static struct p2p_plan *make_plan(const struct p2p_request *request, const struct opts *opts,
                                  struct err *err)
{
    struct sizes sizes = {0};
    uint32_t cores = launch_cores();
    read_sizes(&sizes, request, opts, err);
    struct p2p_plan *plan = mem_calloc(1, p2p_plan_bytes((uint32_t)sizes.count));
    plan->cores = cores;
    plan->nranks = cores < RANKS_LEAST ? RANKS_LEAST : cores > RANKS_MOST ? RANKS_MOST : cores;
    if (opts_is_set(opts, "ranks") || request->common.hosts || request->common.copies)
        plan->nranks = (uint32_t)request->common.nranks;
    plan->nsizes = (uint32_t)sizes.count;
    plan->nrounded = sizes.nrounded;
    for (size_t i = 0; i < sizes.count; i++)
        plan->sizes[i] = sizes.bytes[i];
    plan->threads = request->common.ranks_as == 1;
    free(sizes.bytes);
    if (plan->nranks < 2) {
        err_add(err, ERR_USAGE, "--ranks 1: a pair needs two ranks, the least is 2");
        plan->nranks = 2;
    }
    read_transport(plan, request, opts, err);
    read_slow(plan, err);
    choose_effort(plan, request, opts, err);
    if (err->count == 0) return plan;
    free(plan);
    return NULL;
}

static struct net_spec net_of(const struct p2p_plan *plan, const struct request *request)
{
    struct net_spec net = transport_net(transport_table()[plan->transport]);
    snprintf(net.iface, sizeof net.iface, "%s", request->iface ? request->iface : "");
    snprintf(net.provider, sizeof net.provider, "%s", request->provider ? request->provider : "");
    net.connections = (uint32_t)request->connections;
    return net;
}

/* Verifies the schedules of all sizes and counts the memory of a rank. */
static int size_world(struct p2p_plan *plan, const struct request *request, struct world_spec *spec,
                      struct err *err)
{
    size_t handles = 0, buffer = p2p_buffer_bytes(plan->sizes[plan->nsizes - 1]);
    int bad = 0;
    for (uint32_t i = 0; !bad && i < plan->nsizes; i++) {
        struct p2p_legs legs;
        bad = p2p_legs_make(&legs, plan, plan->sizes[i], err);
        for (int leg = 0; !bad && leg < NLEGS; leg++)
            bad = ready_verify(legs.legs[leg].ready, err);
        size_t bytes = bad ? 0 : p2p_handle_bytes(&legs);
        if (bytes > handles) handles = bytes;
        p2p_legs_release(&legs);
    }
    size_t all = handles < SIZE_MAX / 4 ? handles + buffer : SIZE_MAX / 4;
    *spec = (struct world_spec){
        .net = net_of(plan, request),
        .nranks = plan->nranks,
        .blob_bytes = p2p_blob_bytes(plan->nranks, plan->nsizes),
        .extent_bytes = 2 * all + EXTENT_SLACK,
        .resident_bytes = all,
    };
    plan->device_bytes = all + DEVICE_SLACK;
    bool host = plan->apart || !transport_table()[plan->transport]->device; /* slots are there */
    if (plan->device && !host) spec->resident_bytes = DEVICE_HOST_BYTES;
    spec->resident_bytes += transport_rank_bytes(transport_table()[plan->transport], &spec->net);
    return bad;
}

/* ---- the run ---- */

struct p2p_run {
    const struct p2p_plan *plan;
    const struct request *request;
    struct across *across;
    struct world *world;
    struct out *table;
    struct err *err;
    uint64_t count;             /* pairs x sizes */
    struct p2p_result *results; /* by index: the best of the visits so far; and behind them the */
                                /* visits themselves, pass by pass */
    uint32_t *visits;           /* by index */
    uint64_t visited;           /* in all */
    uint64_t next;              /* row pair to print */
    uint64_t wrong;
    struct progress progress;
    bool unread; /* the reader of stdout went away, so the run was ended */
    int signal;  /* that ended the run from outside; 0: none */
};

static void say_wrong(struct p2p_run *run, const struct p2p_result *result)
{
    for (int i = 0; i < 2; i++) {
        if (!result->wrong[i]) continue;
        const struct data_bad *bad = &result->bad[i];
        run->wrong += result->wrong[i];
        err_add(run->err, ERR_FAILED,
                "p2p, %llu B, ranks %u and %u: rank %u has %llu wrong elements; the first: element "
                "%zu, expected %.9g, got %.9g",
                (unsigned long long)run->plan->sizes[result->size_at], result->pair.first,
                result->pair.second, i ? result->pair.second : result->pair.first,
                (unsigned long long)result->wrong[i], bad->index, bad->expected, bad->got);
    }
}

/* Prints what comes next and had all its visits; after the end (`all`) whatever had one. */
static void print_ready(struct p2p_run *run, bool all)
{
    for (; run->next < run->count; run->next++) {
        const struct p2p_result *result = &run->results[run->next];
        uint32_t visits = run->visits[run->next];
        if (visits < run->plan->passes && !all) break;
        if (!visits) continue;
        progress_clear(&run->progress);
        p2p_rows(run->table, result, run->plan->sizes[result->size_at]);
        say_wrong(run, result);
    }
    progress_step(&run->progress, run->visited, NULL);
}

static void on_message(void *ctx, uint32_t rank, const void *bytes, size_t length)
{
    struct p2p_run *run = ctx;
    struct p2p_result result;
    (void)rank;
    if (length != sizeof result) return;
    memcpy(&result, bytes, sizeof result);
    if (run->visited == 0) across_note_addresses(run->world, run->table);
    uint32_t pass = run->visits[result.index]++;
    run->results[(pass + 1) * run->count + result.index] = result;
    if (pass == 0) run->results[result.index] = result;
    if (pass > 0) p2p_merge(&run->results[result.index], &result);
    run->visited++;
    print_ready(run, false);
    if (!run->unread && out_reader_gone(run->table)) {
        run->unread = true;
        raise(SIGTERM); /* to launch_run, which ends the ranks */
    }
}

/* What a figure is, for the one who reads the table. */
static void note_figures(struct out *out, const struct p2p_plan *plan)
{
    out_note(out,
             "latency: half of a message there and back; both ways and all at once: the sum of "
             "both ways; medians of samples over a window of messages");
    bool pulls = transport_table()[plan->transport]->modes >> WIRE_PULL & 1;
    if (plan->shared && pulls && !plan->device) {
        out_note(
            out,
            "where the receiver reads the sender's buffer, bandwidth is that of one message at "
            "a time, just written by both: else it would come out of its own cache");
    }
    if (p2p_pairs(plan->nranks) == 1) {
        out_note(out, "all at once: N/A, rounds of %u ranks have one pair", plan->nranks);
    } else if (plan->at_once == 0) {
        out_note(out,
                 "all at once: N/A, reduced: with more ranks than cores and over %d pairs it "
                 "takes --passes, --iters or --cell-time to ask for it",
                 MANY_PAIRS);
    } else {
        out_note(out, "all at once: the %u pairs of a round; slowdown: against both ways alone",
                 p2p_pairs(plan->nranks));
    }
    out_note(out,
             "data: for each pair and size checked there, back and both ways%s; #wrong is the sum "
             "over these %u",
             plan->at_once ? ", and again behind all at once" : "", plan->at_once ? 4 : 3);
}

/* How often and how long, and what is less than it would be for few pairs. */
static void note_effort(struct out *out, const struct p2p_plan *plan)
{
    char cell[UNITS_TEXT], most[UNITS_TEXT];
    if (plan->passes > 1) {
        out_note(out,
                 "%u passes over all pairs and sizes; of each figure the best of the visits to a "
                 "pair is shown, and slow is what was slow in all of them",
                 plan->passes);
    } else {
        out_note(out, "1 pass: what disturbs the machine for a moment can make a pair look slow");
    }
    if (plan->at_once > 0 && plan->at_once < plan->passes) {
        out_note(out, "reduced: with more ranks than cores, all at once only in the first pass");
    }
    if (plan->passes < PASSES) {
        out_note(out, "reduced: %u instead of %d passes, so slow is less sure", plan->passes,
                 PASSES);
    }
    if (!plan->samples && plan->cell_s < CELL_S) {
        units_time(cell, plan->cell_s);
        units_time(most, CELL_S);
        out_note(out, "reduced: %s instead of %s per cell, so fewer samples", cell, most);
    }
}

/* Faults asked for through the environment. */
static void note_planted(struct out *out, const struct p2p_plan *plan)
{
    const char *wrong = getenv("COLLBENCH_WRONG");
    if (wrong && *wrong) {
        out_note(out,
                 "PLANTED by COLLBENCH_WRONG=%s: that element of the rank's buffer is wrong in "
                 "each check of its pairs in which the buffer is so long",
                 wrong);
    }
    if (plan->slow_ns) {
        char to[UNITS_TEXT] = "all others";
        if (plan->slow_to != P2P_ALL) snprintf(to, sizeof to, "rank %u", plan->slow_to);
        out_note(out, "PLANTED by COLLBENCH_SLOW: rank %u waits %g us before each message to %s",
                 plan->slow_from, (double)plan->slow_ns / 1e3, to);
    }
}

static void note_device(struct out *out, const struct p2p_plan *plan)
{
    int devices;
    const char *why;
    const struct gpu *gpu = gpu_devices(&devices, &why);
    const struct transport *transport = transport_table()[plan->transport];
    if (gpu) header_gpus(out, gpu, plan->nranks, transport);
    if (!transport->device) return;
    out_note(out,
             "times are those of the GPUs' clocks, without launching: messages of a window wait "
             "in the streams until both ranks of a pair are there");
}

static void note_plan(struct out *out, const struct p2p_plan *plan, const struct world_spec *spec)
{
    const char *kind = plan->threads ? "threads" : "processes";
    const char *wire =
        plan->wire == PLAN_WIRE_AUTO ? "auto" : wire_mode_name((enum wire_mode)plan->wire);
    char text[UNITS_TEXT];
    out_note(out, "p2p of %u ranks (%s), %llu pairs in %u rounds; needs %s of memory", plan->nranks,
             kind, (unsigned long long)all_pairs(plan), p2p_rounds(plan->nranks),
             units_size_near(text, world_need(spec)));
    if (plan->device) {
        note_device(out, plan);
    } else if (plan->nranks > plan->cores) {
        out_note(out,
                 "more ranks (%u) than cores (%u): alone a pair has the cores for itself, all at "
                 "once contains waiting for a core",
                 plan->nranks, plan->cores);
    }
    out_note(out, "transport %s, wires %s; buffers %s; schedules verified before anything ran",
             transport_table()[plan->transport]->name, wire,
             wiring_buffers(plan->transport, plan->shared, plan->device));
    if (plan->nrounded) {
        out_note(out,
                 "sizes: %u of those asked for were no whole elements of %zu B, and are rounded",
                 plan->nrounded, dtype_bytes(P2P_DTYPE));
    }
    note_figures(out, plan);
    note_effort(out, plan);
    note_planted(out, plan);
    out_meta(out, "nranks", out_uint(plan->nranks));
    out_meta(out, "ranks_as", out_text(kind));
    out_meta(out, "pairs", out_uint(all_pairs(plan)));
    out_meta(out, "rounds", out_uint(p2p_rounds(plan->nranks)));
    out_meta(out, "passes", out_uint(plan->passes));
    out_meta(out, "at_once_passes", out_uint(plan->at_once));
    out_meta(out, "transport", out_text(transport_table()[plan->transport]->name));
    out_meta(out, "wire", out_text(wire));
    out_meta(out, "buffers", out_text(plan->shared ? "shared" : "private"));
    out_meta(out, "cell_time_s", out_double(plan->cell_s));
    out_meta(out, "memory_need_B", out_uint(world_need(spec)));
}

static void note_end(struct p2p_run *run, bool failed)
{
    uint64_t here = 0;
    for (uint64_t i = 0; i < run->count; i++)
        here += run->visits[i] > 0;
    if (failed) {
        out_note(run->table, "the run FAILED: the rows above are all that was measured");
    } else {
        const struct hosts *hosts = run->across->hosts;
        p2p_summary(run->table, run->plan, run->results,
                    hosts && hosts_count(hosts) > 1 ? hosts_ranks(hosts) : NULL);
    }
    out_note(run->table, "wrong elements : %llu in %llu of %llu pairs checked%s",
             (unsigned long long)run->wrong, (unsigned long long)here,
             (unsigned long long)run->count,
             run->wrong ? " FAILED"
             : failed   ? ""
                        : " OK");
    out_meta(run->table, "checked", out_uint(here));
    out_meta(run->table, "wrong", out_uint(run->wrong));
    out_meta(run->table, "okay", out_bool(!failed && run->wrong == 0));
}

/* Starts the ranks and prints what they send. */
static void start(struct p2p_run *run, char **argv, const struct mpi_setup *mpi)
{
    const struct p2p_plan *plan = run->plan;
    run->count = all_pairs(plan) * plan->nsizes;
    memcpy(world_blob(run->world), plan, p2p_plan_bytes(plan->nsizes));
    run->results = mem_calloc((plan->passes + 1) * run->count, sizeof *run->results);
    run->visits = mem_calloc(run->count, sizeof *run->visits);
    struct launch_spec spec = {
        .prog = "collbench",
        .argv = argv,
        .world = run->world,
        .threads = plan->threads,
        .timeout_s = run->request->timeout_s,
        .on_message = on_message,
        .ctx = run,
        .interrupted = &run->signal,
        .env = mpi->env,
        .wrapper = mpi->words,
        .rank_variable = mpi->rank_variable,
        .hosts = run->across->hosts,
        .bind = BIND_CORE,
        .blob_used = p2p_plan_bytes(plan->nsizes),
    };
    progress_init(&run->progress, "p2p", run->count * plan->passes);
    struct err launch_err = ERR_INIT;
    bool failed = launch_run(&spec, &launch_err) != 0;
    if (run->unread) {
        err_release(&launch_err); /* nobody but us ended it */
    } else {
        err_move(run->err, &launch_err);
    }
    print_ready(run, true);
    progress_clear(&run->progress);
    note_end(run, failed);
    free(run->results);
    free(run->visits);
}

/* The memory of the run, once its hosts are there; NULL: refused. */
static struct world *make_world(const struct across *across, struct world_spec *spec,
                                struct err *err)
{
    if (across->hosts) {
        spec->nhosts = hosts_count(across->hosts);
        spec->host_ranks = hosts_ranks(across->hosts);
        spec->token = hosts_token(across->hosts);
        spec->machine_ranks = across_machine_ranks(across, spec->nranks);
    }
    return world_create(spec, err); /* refuses what does not fit */
}

/* The signal that ended the run, SIGPIPE when the reader of stdout went away; 0: none. */
static int run_plan(const struct request *request, struct p2p_plan *plan, struct across *across,
                    char **argv, struct err *err)
{
    struct world_spec spec;
    struct mpi_setup mpi = {0};
    struct p2p_run run = {.plan = plan, .request = request, .across = across, .err = err};
    bool mpiexec = transport_table()[plan->transport]->mpiexec;
    int argc = 0;
    while (argv[argc])
        argc++;
    if (size_world(plan, request, &spec, err)) return 0;
    bool spread = request->host_groups != NULL; /* several hosts */
    if (mpiexec && (spread ? mpi_find_spread : mpi_find)(&mpi, NULL, plan->nranks, err)) return 0;
    run.world = across_open(across, request, err) ? NULL : make_world(across, &spec, err);
    if (!run.world) {
        mpi_setup_release(&mpi);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN); /* writing says it too, and files are completed */
    run.table = out_new(p2p_columns, P2P_COLUMNS);
    if (out_add_asked(run.table, request->json, request->csv, request->overwrite, err) == 0) {
        header_machine(run.table, header_source(plan->device), argc, argv);
        note_plan(run.table, plan, &spec);
        across_note(across, run.table);
        if (!out_reader_gone(run.table)) start(&run, argv, &mpi);
    }
    world_close(run.world);
    mpi_setup_release(&mpi);
    int ended = out_reader_gone(run.table) ? SIGPIPE : run.signal;
    out_close(run.table, err);
    return ended;
}

/* A run of this process's own, or of copies that it is the first of. */
static int run_pairs(struct p2p_request *request, struct opts *opts, const struct foreign *foreign,
                     char **argv, struct err *err)
{
    struct across across;
    struct p2p_plan *plan = NULL;
    int ended = 0;
    if (foreign->name && err->count) return 0; /* nobody is waited for */
    int bad = foreign->name ? across_copies(&across, foreign, &request->common, opts, argv, err)
                            : across_read(&across, &request->common, opts, err);
    across.grouped = false; /* there are no hierarchical algorithms here */
    if (!bad) plan = make_plan(request, opts, err);
    if (plan) ended = run_plan(&request->common, plan, &across, argv, err);
    across_close(&across, ended ? 128 + ended : (int)err->code);
    free(request->common.host_groups);
    free(plan);
    return ended;
}

int p2p_cmd(int argc, char **argv, char **whole_argv)
{
    if (launch_is_child()) return launch_child(p2p_rank);
    struct p2p_request request = {.passes = 0};
    struct opts opts;
    struct foreign foreign = {.name = NULL};
    struct err err = ERR_INIT, kernels_err = ERR_INIT;
    int ended = 0, status;
    opts_parse(&opts, rows, &request, argc, argv, &err);
    if (opts.npositionals > 0) {
        err_add(&err, ERR_USAGE, "takes no words, \"%s\" was given", opts.positionals[0]);
    }
    if (opts.help) {
        help();
    } else {
        if (!kernels_get(&kernels_err)) err_move(&err, &kernels_err);
        if (foreign_read(&foreign, &err)) foreign.rank = 0; /* nobody knows who this copy is */
    }
    if (!opts.help && foreign.name && foreign.rank > 0) { /* copy 0 speaks for all */
        status = err.count
                     ? (int)err.code
                     : foreign_follow(&foreign, whole_argv, across_patience_s(&request.common));
    } else {
        if (!opts.help) ended = run_pairs(&request, &opts, &foreign, whole_argv, &err);
        bool quiet = ended == SIGPIPE && err.count > 0; /* a fault came first */
        status = ended && !quiet ? 128 + ended : (int)err.code;
        err_print(&err, "collbench p2p");
    }
    foreign_release(&foreign);
    err_release(&err);
    opts_release(&opts);
    return status;
}
