/* SPDX-License-Identifier: Apache-2.0
 * The engine's own benchmark: see bench_cmd.h. Every load runs in a process of its own, so that
 * its peak memory is its own; building and linking the schedule and the network count as well. */
#include "net/bench_cmd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "net/fault.h"
#include "net/net.h"
#include "net/share.h"

/* What one run of a load took. */
struct sample {
    uint64_t events, flows; /* taken from the queue; starts and ends of flows */
    uint64_t ranks, classes;
    double wall_s, cpu_s, simulated_ms;
    double memory_MB; /* 10^6 bytes, peak */
};

/* A collective on a cluster of hosts of 8. */
struct load {
    enum coll_id coll;
    const char *algo;
    uint64_t hosts;
    enum topo_layout layout;
    uint64_t leaf_hosts;
    double oversubscribed;
    const char *fault; /* as behind --fault; NULL: none */
    bool fold;
    size_t size; /* S, bytes */
};

static const struct load all_to_all = {
    .coll = COLL_ALLTOALL,
    .algo = "direct",
    .hosts = 8,
    .layout = TOPO_FAT_TREE,
    .leaf_hosts = 2,
    .oversubscribed = 2,
    .size = 64 << 20,
};
static const struct load folded_ring = {
    .coll = COLL_ALLREDUCE,
    .algo = "ring",
    .hosts = 512,
    .layout = TOPO_RAIL,
    .leaf_hosts = 32,
    .oversubscribed = 1,
    .fold = true,
    .size = 1 << 30,
};
static const struct load slow_nic_ring = {
    .coll = COLL_ALLREDUCE,
    .algo = "ring",
    .hosts = 512,
    .layout = TOPO_RAIL,
    .leaf_hosts = 32,
    .oversubscribed = 1,
    .fault = "host100/nic7=0.5",
    .fold = true,
    .size = 1 << 30,
};

static double now_s(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- loads ---- */

/* 1,024 flows over two links each that nobody else uses; each starts anew when it ends, with
 * another size, until 4 million have run. */
static int run_disjoint(const struct load *load, struct sample *sample, struct err *err)
{
    enum { FLOWS = 1024, STARTS = 4000000 };
    (void)load, (void)err;
    struct queue queue = {0};
    struct share share;
    struct share_link *links = mem_calloc(2 * FLOWS, sizeof *links);
    for (uint32_t l = 0; l < 2 * FLOWS; l++) {
        links[l].capacity_Bps = 50e9;
    }
    share_init(&share, &queue, 0, 1, 2 * FLOWS, links);
    uint64_t started = 0;
    for (uint32_t f = 0; f < FLOWS; f++) {
        share_add(&share, (uint32_t[]){2 * f, 2 * f + 1}, NULL, 2, 1, 0);
        share_start(&share, 0, f, (double)(1000 + started++ * 7919 % 65536));
    }
    share_settle(&share, 0);
    struct event event = {0};
    while (queue_take(&queue, &event)) {
        sample->events++;
        share_end(&share, event.id);
        if (started < STARTS) {
            share_start(&share, event.time_ps, event.id, (double)(1000 + started++ * 7919 % 65536));
        }
        if (queue_time(&queue) > event.time_ps) {
            share_settle(&share, event.time_ps);
        }
    }
    sample->flows = started + sample->events;
    sample->simulated_ms = (double)event.time_ps / 1e9;
    share_release(&share);
    queue_release(&queue);
    free(links);
    return 0;
}

static struct network *build_network(const struct load *load, struct err *err)
{
    struct net_rate rates[NNET_KINDS];
    for (int kind = 0; kind < NNET_KINDS; kind++) {
        rates[kind] = (struct net_rate){.efficiency = 1, .latency_ps = 300000};
    }
    struct accel_table table = {0};
    struct topo topo = {0};
    struct network *network = NULL;
    if (accel_read(&table, NULL, err) == 0 &&
        topo_read(&topo, &table, "dgx-h100", load->hosts, 0, err) == 0) {
        topo.layout = load->layout;
        topo.leaf_hosts = load->leaf_hosts;
        topo.oversubscribed = load->oversubscribed;
        if (!load->fault || fault_parse(&topo, load->fault, err) == 0) {
            network = network_build(&topo, rates, NET_OWN, NULL, err);
        }
    }
    topo_release(&topo);
    accel_release(&table);
    return network;
}

static void count(const struct load *load, const struct net_result *result, struct sample *sample)
{
    uint64_t run = result->messages / result->stands_for;
    sample->events = result->events;
    sample->flows = load->size > 0 ? 2 * run : 0;
    sample->ranks = result->nranks;
    sample->classes = result->classes;
    sample->simulated_ms = (double)result->total_ps / 1e9;
}

static int run_collective(const struct load *load, struct sample *sample, struct err *err)
{
    struct network *network = build_network(load, err);
    const struct algo *algo = algo_find(load->coll, load->algo, err);
    struct sched *sched = NULL;
    struct linked *linked = NULL;
    int bad = -1;
    if (network && algo) {
        uint32_t n = network_ranks(network);
        struct algo_args args = {.nranks = n, .channels = 1, .parts = 1};
        sched = algo_build(algo, &args, false, err);
        linked = sched ? link_sched(sched, &(struct link_opts){.fuse = true}, err) : NULL;
    }
    if (linked) {
        struct net_args args = {.network = network,
                                .slots = 8,
                                .block_bytes =
                                    coll_block_count(sched->coll, sched->nranks, load->size, 1),
                                .fold = load->fold};
        struct net_result result;
        bad = net_run(linked, &args, &result, err);
        if (!bad) {
            count(load, &result, sample);
            net_result_release(&result);
        }
    }
    linked_free(linked);
    sched_free(sched);
    network_free(network);
    return bad;
}

static const struct row {
    const char *name, *what;
    int (*run)(const struct load *load, struct sample *sample, struct err *err);
    const struct load *load;
} rows[] = {
    {"disjoint", "1024 flows that never meet, over 2 links each", run_disjoint, NULL},
    {"alltoall", "64-rank all-to-all, 8 x 8, 2:1 fat tree", run_collective, &all_to_all},
    {"folded", "1 GiB ring all-reduce, 4096 ranks, rails", run_collective, &folded_ring},
    {"slow-nic", "the same with one slow NIC: no symmetry", run_collective, &slow_nic_ring},
};
enum { NROWS = sizeof rows / sizeof *rows };

/* ---- one run ---- */

/* In the child: runs, and writes the sample. */
static int run_here(const struct row *row, int to)
{
    struct err err = ERR_INIT;
    struct sample sample = {0};
    double wall = now_s(CLOCK_MONOTONIC), cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
    int bad = row->run(row->load, &sample, &err);
    sample.wall_s = now_s(CLOCK_MONOTONIC) - wall;
    sample.cpu_s = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    err_print(&err, "commsim");
    int status = bad ? (int)err.code : 0;
    err_release(&err);
    if (!bad && write(to, &sample, sizeof sample) != (ssize_t)sizeof sample) {
        status = ERR_FAILED;
    }
    return status;
}

static int run_row(const struct row *row, struct sample *sample, struct err *err)
{
    int ends[2], status = 0;
    struct rusage usage;
    if (pipe(ends)) {
        return err_add(err, ERR_FAILED, "bench %s: no pipe", row->name);
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(run_here(row, ends[1]));
    }
    close(ends[1]);
    bool got = child > 0 && read(ends[0], sample, sizeof *sample) == (ssize_t)sizeof *sample;
    close(ends[0]);
    if (child < 0 || wait4(child, &status, 0, &usage) != child || !got || status != 0) {
        return err_add(err, ERR_FAILED, "bench %s: its process failed", row->name);
    }
    sample->memory_MB = (double)usage.ru_maxrss * 1024 / 1e6;
    return 0;
}

/* ---- the command ---- */

struct request {
    struct opts_list only;
    uint64_t repeat;
    const char *json, *csv;
    bool overwrite;
};

static const char *const names[] = {"disjoint", "alltoall", "folded", "slow-nic", NULL};
_Static_assert(sizeof names / sizeof *names == NROWS + 1, "a name per row");

#define ROW(NAME, TYPE, FIELD, ...)                                                                \
    {                                                                                              \
        .name = NAME, .type = TYPE, .offset = offsetof(struct request, FIELD), __VA_ARGS__         \
    }

static const struct opts_row options[] = {
    ROW("only", OPTS_LIST, only, .arg = "NAMES", .choices = names,
        .help = "these loads alone: disjoint, alltoall, folded, slow-nic"),
    ROW("repeat", OPTS_UINT, repeat, .value = "3", .arg = "N", .min = 1, .max = 1000,
        .help = "runs of each; the table shows the one of least processor time, and the median"),
    ROW("json", OPTS_STRING, json, .letter = 'J', .arg = "FILE",
        .help = "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("csv", OPTS_STRING, csv, .arg = "FILE",
        .help = "write the table as CSV too; - is stdout, without the text"),
    ROW("overwrite", OPTS_FLAG, overwrite, .help = "files may exist already"),
    {.name = NULL},
};

static const struct out_column columns[] = {
    {"load", NULL, -10, 0, OUT_TEXT, NULL, NULL},
    {"ranks", NULL, 7, 0, OUT_UINT, NULL, NULL},
    {"classes", NULL, 8, 0, OUT_UINT, NULL, NULL},
    {"events", NULL, 10, 0, OUT_UINT, NULL, NULL},
    {"flow_ends", NULL, 10, 0, OUT_UINT, "starts+ends", NULL},
    {"rate", "M/s", 9, 3, OUT_DOUBLE, NULL, NULL},
    {"wall", "s", 9, 4, OUT_DOUBLE, NULL, NULL},
    {"cpu", "s", 9, 4, OUT_DOUBLE, NULL, NULL},
    {"cpu_median", "s", 9, 4, OUT_DOUBLE, "median", NULL},
    {"memory", "MB", 9, 1, OUT_DOUBLE, NULL, NULL},
    {"simulated", "ms", 10, 3, OUT_DOUBLE, NULL, NULL},
    {"what", NULL, -1, 0, OUT_TEXT, NULL, NULL},
};

static int compare_times(const void *a, const void *b)
{
    double x = ((const struct sample *)a)->cpu_s, y = ((const struct sample *)b)->cpu_s;
    return (x > y) - (x < y);
}

static struct out_cell known(uint64_t number)
{
    return number > 0 ? out_uint(number) : (struct out_cell){0};
}

static int bench_row(struct out *out, const struct row *row, uint64_t repeat, struct err *err)
{
    struct sample *samples = mem_calloc(repeat, sizeof *samples);
    int bad = 0;
    for (uint64_t i = 0; i < repeat && !bad; i++) {
        bad = run_row(row, &samples[i], err);
    }
    if (!bad) {
        qsort(samples, repeat, sizeof *samples, compare_times);
        const struct sample *best = &samples[0];
        out_row(out, (struct out_cell[]){
                         out_text(row->name), known(best->ranks), known(best->classes),
                         out_uint(best->events), out_uint(best->flows),
                         out_double((double)best->flows / best->cpu_s / 1e6),
                         out_double(best->wall_s), out_double(best->cpu_s),
                         out_double(samples[repeat / 2].cpu_s), out_double(best->memory_MB),
                         out_double(best->simulated_ms), out_text(row->what)});
    }
    free(samples);
    return bad;
}

static bool wanted(const struct request *request, const struct row *row)
{
    for (size_t i = 0; i < request->only.count; i++) {
        if (strcmp(request->only.items[i], row->name) == 0) return true;
    }
    return request->only.count == 0;
}

static void bench(const struct request *request, struct err *err)
{
    struct out *out = out_new(columns, sizeof columns / sizeof *columns);
    int bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    if (!bad) {
        out_meta(out, "program", out_text("commsim " COMMSIM_VERSION));
        out_meta(out, "repeat", out_uint(request->repeat));
        out_note(out, "rate: starts and ends of flows per second of processor time of the fastest "
                      "run; building and linking included");
    }
    for (size_t i = 0; i < NROWS && !bad; i++) {
        if (wanted(request, &rows[i])) {
            bad = bench_row(out, &rows[i], request->repeat, err);
        }
    }
    out_close(out, err);
}

int bench_cmd(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct request request = {0};
    struct opts opts;
    if (opts_parse(&opts, options, &request, argc, argv, &err) == 0 && opts.help) {
        opts_help(
            stdout, "commsim bench [options]",
            "Measures the network engine itself on loads that stay the same: flows that never "
            "meet, flows that share a fat tree, one rank for each class of 4,096, and 4,096 "
            "ranks one by one.",
            options);
    } else if (err.count == 0 && opts.npositionals > 0) {
        err_add(&err, ERR_USAGE, "commsim bench takes options alone, not \"%s\"",
                opts.positionals[0]);
    } else if (err.count == 0) {
        bench(&request, &err);
    }
    opts_release(&opts);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
