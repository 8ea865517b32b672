/* SPDX-License-Identifier: Apache-2.0
 * `collbench bench-gpu`: one GPU's kernels against its own copy, virtual ranks, and what launching
 * costs. It is for those who work on kernels and for tests/gpu/check; collectives are measured by
 * the operations. */
#include "bench/gpu_cmd.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "bench/clock.h"
#include "bench/gpu_bench.h"
#include "bench/header.h"
#include "bench/stats.h"
#include "exec/launch.h"

enum { MOST_SAMPLES = 100000, MOST_DEVICES = 1 << 16, MOST_RANKS = 1024 };
#define MOST_BYTES (UINT64_C(1) << 40)

/* ---- what launching costs ---- */

enum { LAUNCHES = 64, TINY_BYTES = 16 };

struct tiny {
    const struct gpu *gpu;
    struct fold fold;
    void *graph;
};

static int tiny_work(void *ctx, void *stream)
{
    const struct tiny *tiny = ctx;
    return tiny->gpu->fold(&tiny->fold, DT_UINT8, OP_SUM, GPU_NAIVE, 1, TINY_BYTES, stream);
}

static int graph_work(void *ctx, void *stream)
{
    const struct tiny *tiny = ctx;
    return tiny->gpu->graph_launch(tiny->graph, stream);
}

static int no_work(void *ctx, void *stream)
{
    (void)ctx;
    (void)stream;
    return 0;
}

static int wait_work(void *ctx, void *stream)
{
    const struct tiny *tiny = ctx;
    int error = tiny_work(ctx, stream);
    return error ? error : tiny->gpu->stream_sync(stream);
}

static void launch_row(struct gpu_bench *bench, const char *what, double *us)
{
    struct gpu_row row = gpu_row_empty();
    row.part = "launch";
    row.what = what;
    row.p50_us = stats_median(us, bench->samples);
    row.min_us = us[0];
    gpu_row_print(bench, &row);
}

/* Two rows: the host's time per call, and from one kernel to the next on the device. */
static int bench_queue(struct gpu_bench *bench, struct gpu_watch *watch, gpu_work *work, void *ctx,
                       const char *host, const char *device, struct err *err)
{
    double *us = mem_calloc(2 * bench->samples, sizeof *us), *calls = us + bench->samples;
    int bad = gpu_watch_run(watch, work, ctx, host, err);
    for (uint64_t i = 0; !bad && i < bench->samples; i++)
        bad = gpu_watch_time(watch, work, ctx, LAUNCHES, &us[i], &calls[i], err);
    if (!bad) launch_row(bench, host, calls);
    if (!bad) launch_row(bench, device, us);
    free(us);
    return bad;
}

/* Two events with nothing between them; and a kernel as the host sees it, from call to end. */
static int bench_alone(struct gpu_bench *bench, struct gpu_watch *watch, struct tiny *tiny,
                       struct err *err)
{
    double *us = mem_calloc(2 * bench->samples, sizeof *us), *whole = us + bench->samples, launch;
    int bad = 0;
    for (uint64_t i = 0; !bad && i < bench->samples; i++) {
        bad = gpu_watch_time(watch, no_work, NULL, 0, &us[i], &launch, err);
        uint64_t begin = clock_ns();
        if (!bad) bad = gpu_watch_run(watch, wait_work, tiny, "a kernel", err);
        whole[i] = (double)(clock_ns() - begin) / 1e3;
    }
    if (!bad) launch_row(bench, "two events, nothing between", us);
    if (!bad) launch_row(bench, "kernel, from call to end", whole);
    free(us);
    return bad;
}

static int make_graph(struct tiny *tiny, void *stream, struct err *err)
{
    const struct gpu *gpu = tiny->gpu;
    int error = gpu->capture_begin(stream);
    if (!error) error = tiny_work(tiny, stream);
    if (!error) error = gpu->capture_end(stream, &tiny->graph);
    return gpu_check(gpu, error, err, "capturing a graph");
}

static int gpu_bench_launch(struct gpu_bench *bench, struct err *err)
{
    const struct gpu *gpu = bench->gpu;
    struct gpu_watch watch = {0};
    struct tiny tiny = {.gpu = gpu, .fold = {.nin = 1, .nout = 1, .count = TINY_BYTES}};
    void *memory = NULL;
    int bad = gpu_check(gpu, gpu->alloc(&memory, 2 * TINY_BYTES), err, "memory");
    tiny.fold.in[0] = memory;
    tiny.fold.out[0] = (uint8_t *)memory + TINY_BYTES;
    if (!bad) bad = gpu_watch_open(&watch, gpu, err);
    if (!bad) bad = make_graph(&tiny, watch.stream, err);
    if (!bad) bad = bench_alone(bench, &watch, &tiny, err);
    if (!bad) {
        bad = bench_queue(bench, &watch, tiny_work, &tiny, "launch, host's time",
                          "launch, device's time", err);
    }
    if (!bad) {
        bad = bench_queue(bench, &watch, graph_work, &tiny, "graph, host's time",
                          "graph, device's time", err);
    }
    if (tiny.graph) gpu->graph_free(tiny.graph);
    if (watch.gpu) gpu_watch_close(&watch);
    if (memory) gpu->free(memory);
    return bad;
}

/* ---- the table ---- */

struct gpu_row gpu_row_empty(void)
{
    return (struct gpu_row){.p50_us = NAN, .min_us = NAN, .copy_us = NAN};
}

static struct out_cell some(uint64_t number)
{
    return number ? out_uint(number) : (struct out_cell){0};
}

void gpu_row_print(struct gpu_bench *bench, const struct gpu_row *row)
{
    double rate = row->moved ? (double)row->moved / row->p50_us / 1e3 : NAN; /* B/us -> GB/s */
    double copy = 2 * (double)row->copy_bytes / row->copy_us / 1e3;
    double step = row->steps ? row->p50_us * 1e3 / (double)row->steps : NAN;
    bench->wrong += row->wrong;
    out_row(bench->out,
            (struct out_cell[]){out_text(row->part), out_text(row->what), out_text(row->version),
                                out_text(row->dtype), out_text(row->redop), some(row->ranks),
                                some(row->bytes), out_double(row->p50_us), out_double(row->min_us),
                                some(row->steps), out_double(step), some(row->moved),
                                some(row->counted), out_double(rate), out_double(copy),
                                out_double(100 * rate / copy),
                                row->checked ? out_uint(row->wrong) : (struct out_cell){0},
                                out_text(bench->gpu->emulated ? "emulated" : "measured")});
}

static const struct out_column columns[] = {
    {"part", NULL, -8, 0, OUT_TEXT, NULL, NULL},     {"what", NULL, -27, 0, OUT_TEXT, NULL, NULL},
    {"version", NULL, -7, 0, OUT_TEXT, NULL, NULL},  {"type", NULL, -9, 0, OUT_TEXT, NULL, NULL},
    {"redop", NULL, -5, 0, OUT_TEXT, NULL, NULL},    {"ranks", NULL, 5, 0, OUT_UINT, NULL, NULL},
    {"size", "B", 11, 0, OUT_UINT, NULL, NULL},      {"p50", "us", 10, 2, OUT_DOUBLE, NULL, NULL},
    {"min", "us", 10, 2, OUT_DOUBLE, NULL, NULL},    {"steps", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"step", "ns", 8, 1, OUT_DOUBLE, NULL, NULL},    {"moved", "B", 12, 0, OUT_UINT, NULL, NULL},
    {"counted", "B", 12, 0, OUT_UINT, NULL, NULL},   {"rate", "GB/s", 8, 1, OUT_DOUBLE, NULL, NULL},
    {"copy", "GB/s", 8, 1, OUT_DOUBLE, NULL, NULL},  {"of_copy", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"wrong", NULL, 6, 0, OUT_UINT, "#wrong", NULL}, {"source", NULL, -8, 0, OUT_TEXT, NULL, NULL},
};

/* ---- options ---- */

static const char *const part_words[] = {"kernels", "virtual", "launch", NULL};
static int (*const parts[])(struct gpu_bench *bench, struct err *err) = {
    gpu_bench_fold, gpu_bench_virtual, gpu_bench_launch};

struct asked {
    uint64_t device, samples, small, channels;
    struct opts_list parts, dtypes, ops, ranks;
    struct sweep sweep;
    const char *json, *csv;
    bool overwrite;
};

#define ROW(name_, letter_, type_, field, value_, arg_, help_, ...)                                \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct asked, field), .value = (value_), .arg = (arg_),                 \
        .help = (help_), __VA_ARGS__                                                               \
    }

static const struct opts_row rows[] = {
    ROW("part", 0, OPTS_LIST, parts, "kernels,virtual,launch", "WORD[,WORD]",
        "kernels: copy and reduce against the device's own copy; virtual: ranks as groups of "
        "blocks of one launch; launch: what launching costs",
        .section = "What", .choices = part_words),
    ROW("device", 0, OPTS_UINT, device, "0", "N", "the GPU, as CUDA counts them",
        .max = MOST_DEVICES),
    ROW("minbytes", 'b', OPTS_SIZE, sweep.min, "256M", "SIZE", "smallest buffer",
        .max = MOST_BYTES),
    ROW("maxbytes", 'e', OPTS_SIZE, sweep.max, "256M", "SIZE", "largest buffer", .max = MOST_BYTES),
    ROW("stepbytes", 'i', OPTS_SIZE, sweep.step, "1M", "SIZE", "added from size to size",
        .max = MOST_BYTES),
    ROW("stepfactor", 'f', OPTS_UINT, sweep.factor, NULL, "N",
        "multiplied from size to size, instead of --stepbytes", .max = UINT32_MAX),
    ROW("datatype", 'd', OPTS_LIST, dtypes, "float,bfloat16", "TYPE[,TYPE]",
        "element types, or all; virtual ranks use the first"),
    ROW("op", 'o', OPTS_LIST, ops, "sum", "OP[,OP]", "operators, or all; likewise"),
    ROW("ranks", 0, OPTS_LIST, ranks, "2,4,8", "N[,N]", "numbers of virtual ranks, 2 or more"),
    ROW("small", 0, OPTS_SIZE, small, "4K", "SIZE",
        "virtual ranks: the call that shows what a step costs, with one lane per rank", .min = 1,
        .max = MOST_BYTES),
    ROW("channels", 0, OPTS_UINT, channels, NULL, "N",
        "virtual ranks: lanes of a large call; without it, as many as run at once, 16 at most",
        .min = 1, .max = MOST_RANKS),
    ROW("iters", 'n', OPTS_UINT, samples, "21", "N", "samples of each row", .min = 1,
        .max = MOST_SAMPLES),
    ROW("json", 'J', OPTS_STRING, json, NULL, "FILE",
        "write the table as JSON too; - is stdout, without the text", .section = "Output"),
    ROW("csv", 0, OPTS_STRING, csv, NULL, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, NULL, "files may exist already"),
    {.name = NULL},
};

static bool is_all(const char *word)
{
    return strcmp(word, "all") == 0;
}

static void read_types(struct gpu_bench *bench, const struct asked *asked, struct err *err)
{
    for (size_t i = 0; i < asked->dtypes.count; i++) {
        const char *word = asked->dtypes.items[i];
        enum dtype dtype = DT_INT8, behind = DT_COUNT;
        if (!is_all(word)) {
            if (dtype_parse(word, &dtype, err)) continue;
            behind = dtype + 1;
        }
        for (; dtype < behind && bench->ndtypes < DT_COUNT; dtype++)
            bench->dtypes[bench->ndtypes++] = dtype;
    }
    for (size_t i = 0; i < asked->ops.count; i++) {
        const char *word = asked->ops.items[i];
        enum redop op = OP_SUM, behind = OP_COUNT;
        if (!is_all(word)) {
            if (redop_parse(word, &op, err)) continue;
            behind = op + 1;
        }
        for (; op < behind && bench->nops < OP_COUNT; op++)
            bench->ops[bench->nops++] = op;
    }
}

static void read_ranks(struct gpu_bench *bench, const struct asked *asked, struct err *err)
{
    bench->ranks = mem_calloc(asked->ranks.count, sizeof *bench->ranks);
    for (size_t i = 0; i < asked->ranks.count; i++) {
        const char *word = asked->ranks.items[i];
        char *end;
        unsigned long number = strtoul(word, &end, 10);
        if (*word < '0' || *word > '9' || *end || number < 2 || number > MOST_RANKS) {
            err_add(err, ERR_USAGE, "--ranks %s: must be a whole number from 2 to %d", word,
                    MOST_RANKS);
            continue;
        }
        bench->ranks[bench->nranks++] = (uint32_t)number;
    }
}

static int read_device(struct gpu_bench *bench, const struct asked *asked, struct err *err)
{
    int devices;
    const char *why;
    bench->gpu = gpu_devices(&devices, &why);
    if (!bench->gpu) return err_add(err, ERR_USAGE, "%s", why);
    if (asked->device >= (uint64_t)devices) {
        return err_add(err, ERR_USAGE, "--device %llu: there are %d, so the last one is %d",
                       (unsigned long long)asked->device, devices, devices - 1);
    }
    bench->device = (int)asked->device;
    return gpu_check(bench->gpu, bench->gpu->use(bench->device), err, "device %d", bench->device);
}

static int read_asked(struct gpu_bench *bench, const struct asked *asked, const struct opts *opts,
                      struct err *err)
{
    if (opts->npositionals > 0) {
        err_add(err, ERR_USAGE, "takes no words, \"%s\" was given", opts->positionals[0]);
    }
    if (opts_is_set(opts, "stepbytes") && asked->sweep.step && asked->sweep.factor) {
        err_add(err, ERR_USAGE,
                "--stepbytes (-i) adds and --stepfactor (-f) multiplies from size "
                "to size: give one of them");
    }
    sweep_check(&asked->sweep, err);
    read_types(bench, asked, err);
    read_ranks(bench, asked, err);
    bench->samples = asked->samples;
    bench->sweep = asked->sweep;
    bench->small = asked->small;
    bench->channels = asked->channels;
    return err->count || read_device(bench, asked, err) ? -1 : 0;
}

/* ---- the command ---- */

static void print_header(struct gpu_bench *bench, int argc, char **argv)
{
    struct out *out = bench->out;
    header_machine(out, header_source(true), argc, argv);
    header_gpus(out, bench->gpu, (uint32_t)bench->device + 1, NULL);
    out_note(out,
             "device %d alone; moved: bytes read and written, GB = 10^9 B; copy: the device's "
             "own, sample by sample beside each row; small sizes lie in its caches",
             bench->device);
    out_note(out, "virtual: ring all-reduce of ranks that are groups of blocks of one launch, no "
                  "link between them; a step is a group of fused records of the longest lane; "
                  "counted leaves the lines of ll out");
    out_meta(out, "device", out_int(bench->device));
    out_meta(out, "samples", out_uint(bench->samples));
    if (bench->gpu->emulated) out_meta(out, "source", out_text("emulated"));
}

static int measure(struct gpu_bench *bench, const struct asked *asked, int argc, char **argv,
                   struct err *err)
{
    bench->out = out_new(columns, sizeof columns / sizeof *columns);
    int bad = out_add_asked(bench->out, asked->json, asked->csv, asked->overwrite, err);
    if (!bad) print_header(bench, argc, argv);
    for (int part = 0; !bad && part_words[part]; part++) {
        bool wanted = false;
        for (size_t i = 0; i < asked->parts.count; i++)
            wanted = wanted || strcmp(asked->parts.items[i], part_words[part]) == 0;
        if (wanted) bad = parts[part](bench, err);
    }
    out_summary(bench->out);
    out_meta(bench->out, "okay", out_bool(!bad && bench->wrong == 0));
    out_meta(bench->out, "wrong", out_uint(bench->wrong));
    if (!bad) {
        out_note(bench->out, "wrong elements: %llu %s", (unsigned long long)bench->wrong,
                 bench->wrong ? "FAILED" : "OK");
    }
    if (bench->wrong) {
        err_add(err, ERR_FAILED, "%llu elements are wrong", (unsigned long long)bench->wrong);
    }
    return out_close(bench->out, err) || bad ? -1 : 0;
}

int gpu_cmd(int argc, char **argv, char **whole_argv)
{
    if (launch_is_child()) return launch_child(gpu_virtual_rank);
    struct asked asked = {0};
    struct gpu_bench bench = {.argv = whole_argv};
    struct opts opts;
    struct err err = ERR_INIT;
    int words = argc + (int)(argv - whole_argv);
    opts_parse(&opts, rows, &asked, argc, argv, &err);
    if (opts.help) {
        opts_help(stdout, "collbench bench-gpu [options]",
                  "Measures one GPU: kernels, ranks that share one launch, and launching itself.",
                  rows);
    } else if (err.count == 0 && read_asked(&bench, &asked, &opts, &err) == 0) {
        signal(SIGPIPE, SIG_IGN); /* files are completed although nobody reads stdout */
        measure(&bench, &asked, words, whole_argv, &err);
    }
    int status = (int)err.code;
    err_print(&err, "collbench bench-gpu");
    err_release(&err);
    free(bench.ranks);
    opts_release(&opts);
    return status;
}
