/* SPDX-License-Identifier: Apache-2.0
 * The text of a run in the format of nccl-tests, of OSU micro-benchmarks, or ours: see format.h.
 * Layouts were taken from the output of nccl-tests 2.19 and OSU 7.4. */
#include "bench/format.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "kernels/gpu.h"
#include "kernels/kernels.h"

const char *const format_names[] = {"own", "nccl", "osu", NULL};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static unsigned long long llu(uint64_t number)
{
    return number;
}

/* ---- ours ---- */

static struct out *own_new(const struct plan *plan, unsigned show)
{
    (void)plan;
    return table_new(show);
}

static void own_facts(struct out *out, const struct plan *plan, struct world *world,
                      const struct facts *facts)
{
    (void)plan;
    (void)world;
    header_facts(out, facts);
}

static void own_footer(struct out *out, const struct plan *plan, const struct footer *footer)
{
    (void)plan;
    header_footer(out, footer);
}

/* Foreign formats have no place for it but a comment. */
static void warn_emulated(struct out *out, const struct plan *plan)
{
    int devices;
    const char *why;
    const struct gpu *gpu = plan->device ? gpu_devices(&devices, &why) : NULL;
    if (gpu && gpu->emulated) out_line(out, "# WARNING: emulated GPUs, the times mean nothing");
}

/* ---- nccl-tests ---- */

static const char out_group[] = "out-of-place", in_group[] = "in-place";

static const struct out_column nccl_columns[] = {
    {"size", "B", 12, 0, OUT_UINT, NULL, NULL},
    {"count", "elements", 12, 0, OUT_UINT, NULL, NULL},
    {"type", NULL, 8, 0, OUT_TEXT, NULL, NULL},
    {"redop", NULL, 6, 0, OUT_TEXT, NULL, NULL},
    {"root", NULL, 6, 0, OUT_INT, NULL, NULL},
    {"time", "us", 7, 2, OUT_DOUBLE, NULL, out_group},
    {"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, out_group},
    {"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, out_group},
    {"wrong", NULL, 6, 0, OUT_INT, NULL, out_group},
    {"time", "us", 7, 2, OUT_DOUBLE, NULL, in_group},
    {"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, in_group},
    {"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, in_group},
    {"wrong", NULL, 6, 0, OUT_INT, NULL, in_group},
};

enum { NCCL_COLUMNS = sizeof nccl_columns / sizeof *nccl_columns };

static struct out *nccl_new(const struct plan *plan, unsigned show)
{
    (void)plan;
    (void)show;
    struct out *out = out_new(nccl_columns, NCCL_COLUMNS);
    out_imitate(out);
    return out;
}

static void nccl_preamble(struct out *out, const struct fitted *fitted, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    const struct plan *plan = fitted->plan;
    const struct sweep *sweep = &plan->sweep;
    bool factor = sweep->factor > 1;
    out_line(out, "# collbench version %s (format of nccl-tests)", COLLBENCH_VERSION);
    out_line(out, "# Collective test starting: %s_perf", coll_get(plan->coll)->nccl);
    out_line(out,
             "# nThread 1 nGpus 1 minBytes %llu maxBytes %llu step: %llu(%s) warmup iters: %llu "
             "iters: %llu agg iters: %llu validation: %llu graph: %d unalign: 0",
             llu(sweep->min), llu(sweep->max), llu(factor ? sweep->factor : sweep->step),
             factor ? "factor" : "bytes", llu(plan->warmup),
             llu(plan->samples ? plan->samples : PLAN_SAMPLES_LEAST), llu(plan->batch),
             llu(plan->rounds), plan->graph);
    warn_emulated(out, plan);
    out_line(out, "#");
}

static void nccl_device(struct out *out, struct world *world, uint32_t rank, int pid,
                        const char *host)
{
    const struct rank_device *device = &world_status(world, rank)->device;
    int devices;
    const char *why;
    const struct gpu *gpu = gpu_devices(&devices, &why);
    struct gpu_info info = {0};
    if (gpu) gpu->info(device->number, &info);
    out_line(out, "#  Rank %2u Group  0 Pid %6d on %10s device %2d [%s] %s", rank, pid, host,
             device->number, device->pci, info.name);
}

static void nccl_facts(struct out *out, const struct plan *plan, struct world *world,
                       const struct facts *facts)
{
    (void)facts;
    char *processor = header_processor();
    struct utsname uts;
    uname(&uts);
    uts.nodename[strcspn(uts.nodename, ".")] = '\0';
    out_line(out, "# Using devices");
    for (uint32_t rank = 0; rank < plan->nranks; rank++) {
        int pid = atomic_load_explicit(&world_status(world, rank)->pid, memory_order_acquire);
        if (plan->device) {
            nccl_device(out, world, rank, pid, uts.nodename);
            continue;
        }
        out_line(out, "#  Rank %2u Group  0 Pid %6d on %10s device %2u [0000:00:00] %s", rank, pid,
                 uts.nodename, rank, processor);
    }
    out_line(out, "#");
    out_line(out, "# %10s  %12s  %8s  %6s  %6s  %21s%31s%10s", "", "", "", "", "", out_group,
             in_group, "");
    out_line(out, "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s ", "size",
             "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw",
             "busbw", "#wrong");
    out_line(out, "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s ", "(B)",
             "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)",
             "");
    free(processor);
}

static struct out_cell *nccl_side(struct out_cell *at, const struct result *r)
{
    if (!r) return at + 4;
    *at++ = out_double(r->time_us);
    *at++ = out_double(r->algbw_GBps);
    *at++ = out_double(r->busbw_GBps);
    *at++ = r->wrong < 0 ? (struct out_cell){0} : out_int(r->wrong);
    return at;
}

/* Launches are the cycles of nccl-tests: each has its rows, all together (launch 0) have none. */
static void nccl_row(struct out *out, const struct table_side *out_of_place,
                     const struct table_side *in_place)
{
    const struct result *r = out_of_place->result ? out_of_place->result : in_place->result;
    if (r->launch == 0) return;
    struct out_cell cells[NCCL_COLUMNS] = {out_uint(r->bytes), out_uint(r->count),
                                           out_text(r->dtype), out_text(r->redop),
                                           out_int(r->root)};
    struct out_cell *at = nccl_side(cells + 5, out_of_place->result);
    nccl_side(at, in_place->result);
    out_row(out, cells);
}

/* "%g " and the last lines are nccl-tests' own: its readers look for them. */
static void nccl_footer(struct out *out, const struct plan *plan, const struct footer *footer)
{
    if (!footer->failed || footer->wrong) {
        out_line(out, "# Out of bounds values : %llu %s", llu(footer->wrong),
                 footer->wrong ? "FAILED" : "OK");
    }
    if (footer->failed) return;
    double count = (double)footer->busbw_count;
    out_line(out, "# Avg bus bandwidth    : %g ", count > 0 ? footer->busbw_sum / count : 0);
    out_line(out, "#");
    out_line(out, "# Collective test concluded: %s_perf", coll_get(plan->coll)->nccl);
    out_line(out, "#");
}

/* ---- OSU micro-benchmarks ---- */

/* sendrecv is none of theirs. Of a collective the first is the one to take when no name was given.
 */
static const struct {
    const char *program;
    enum coll_id coll;
    const char *title;
} osu_tests[] = {
    {"osu_allreduce", COLL_ALLREDUCE, "Allreduce"},
    {"osu_allgather", COLL_ALLGATHER, "Allgather"},
    {"osu_reduce_scatter", COLL_REDUCE_SCATTER, "Reduce_scatter"},
    {"osu_reduce_scatter_block", COLL_REDUCE_SCATTER, "Reduce_scatter_block"},
    {"osu_alltoall", COLL_ALLTOALL, "All-to-All Personalized Exchange"},
    {"osu_bcast", COLL_BROADCAST, "Broadcast"},
    {"osu_reduce", COLL_REDUCE, "Reduce"},
    {"osu_gather", COLL_GATHER, "Gather"},
    {"osu_scatter", COLL_SCATTER, "Scatter"},
    {"osu_alltoallv", COLL_ALLTOALLV, "All-to-Allv Personalized Exchange"},
    {"osu_barrier", COLL_BARRIER, "Barrier"},
};

enum { OSU_TESTS = sizeof osu_tests / sizeof *osu_tests };

/* What MPI calls them; those without a name there go by ours. OSU itself has char, int, float. */
static const char *const osu_types[DT_COUNT] = {
    [DT_INT8] = "MPI_INT8_T",     [DT_UINT8] = "MPI_UINT8_T", [DT_INT32] = "MPI_INT",
    [DT_UINT32] = "MPI_UINT32_T", [DT_INT64] = "MPI_INT64_T", [DT_UINT64] = "MPI_UINT64_T",
    [DT_FLOAT] = "MPI_FLOAT",     [DT_DOUBLE] = "MPI_DOUBLE",
};

static const char *osu_type(enum dtype dtype)
{
    return osu_types[dtype] ? osu_types[dtype] : dtype_name(dtype);
}

/* Fields are 10, 18 and 12 wide there; two blanks of each are the gap of our tables. Without a size
 * (barrier) the first field is 17 wide, and there is no validation. */
static const struct out_column osu_columns[] = {
    {"size", "B", -10, 0, OUT_UINT, NULL, NULL},
    {"avg_latency", "us", 16, 2, OUT_DOUBLE, NULL, NULL},
    {"min_latency", "us", 16, 2, OUT_DOUBLE, NULL, NULL},
    {"max_latency", "us", 16, 2, OUT_DOUBLE, NULL, NULL},
    {"iterations", NULL, 10, 0, OUT_UINT, NULL, NULL},
    {"validation", NULL, 16, 0, OUT_TEXT, NULL, NULL}, /* only if data is checked */
};

enum { OSU_COLUMNS = sizeof osu_columns / sizeof *osu_columns, OSU_FIRST_WIDTH = 17 };

static struct out *osu_new(const struct plan *plan, unsigned show)
{
    (void)show;
    bool sizes = !coll_get(plan->coll)->empty, checked = plan->rounds && sizes;
    struct out_column columns[OSU_COLUMNS];
    size_t first = sizes ? 0 : 1;
    memcpy(columns, osu_columns, sizeof columns);
    if (!sizes) columns[first].width = OSU_FIRST_WIDTH;
    struct out *out = out_new(columns + first, OSU_COLUMNS - first - (checked ? 0 : 1));
    out_imitate(out);
    return out;
}

/* NULL: there is no such test. */
static const char *osu_title(enum coll_id coll, const char *program)
{
    const char *title = NULL;
    for (size_t i = 0; i < OSU_TESTS; i++) {
        if (osu_tests[i].coll != coll) continue;
        bool named = strcmp(osu_tests[i].program, program) == 0;
        if (!title || named) title = osu_tests[i].title;
    }
    return title;
}

/* Readers of the title look for its beginning, up to the version; the rest says who measured. */
static void osu_preamble(struct out *out, const struct fitted *fitted, int argc, char **argv)
{
    const struct plan *plan = fitted->plan;
    const char *title = osu_title(plan->coll, argc > 0 ? base_name(argv[0]) : "");
    out_line(out, "%s", "");
    out_line(out, "# OSU MPI %s Latency Test v7.4 format, by collbench %s", title,
             COLLBENCH_VERSION);
    warn_emulated(out, plan);
    bool sizes = !coll_get(plan->coll)->empty, checked = plan->rounds && sizes;
    if (sizes) out_line(out, "# Datatype: %s.", osu_type(plan->dtypes[0]));
    out_line(out, "%-*s%*s%18s%18s%12s%*s", sizes ? 10 : 2, sizes ? "# Size" : "#", sizes ? 18 : 0,
             "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations",
             checked ? 18 : 0, checked ? "Validation" : "");
}

static void osu_facts(struct out *out, const struct plan *plan, struct world *world,
                      const struct facts *facts)
{
    (void)out;
    (void)plan;
    (void)world;
    (void)facts;
}

static void osu_row(struct out *out, const struct table_side *out_of_place,
                    const struct table_side *in_place)
{
    const struct result *r = out_of_place->result ? out_of_place->result : in_place->result;
    const struct coll *coll = coll_get(r->coll);
    bool per_peer = !coll->reduces && (coll->in_per_rank || coll->out_per_rank);
    struct out_cell cells[OSU_COLUMNS] = {
        out_uint(per_peer ? r->bytes / r->nranks : r->bytes),
        out_double(r->time_us),
        out_double(r->min_us),
        out_double(r->max_us),
        out_uint(r->nsamples * r->batch),
        r->wrong < 0 ? (struct out_cell){0} : out_text(r->wrong ? "Fail" : "Pass"),
    };
    out_row(out, cells + (coll->empty ? 1 : 0));
}

/* OSU's tables end with the last row. */
static void osu_footer(struct out *out, const struct plan *plan, const struct footer *footer)
{
    (void)out;
    (void)plan;
    (void)footer;
}

/* ---- any ---- */

static const struct {
    struct out *(*new)(const struct plan *plan, unsigned show);
    void (*preamble)(struct out *out, const struct fitted *fitted, int argc, char **argv);
    void (*facts)(struct out *out, const struct plan *plan, struct world *world,
                  const struct facts *facts);
    void (*row)(struct out *out, const struct table_side *out_of_place,
                const struct table_side *in_place);
    void (*footer)(struct out *out, const struct plan *plan, const struct footer *footer);
} formats[] = {
    [FORMAT_OWN] = {own_new, header_plan, own_facts, table_row, own_footer},
    [FORMAT_NCCL] = {nccl_new, nccl_preamble, nccl_facts, nccl_row, nccl_footer},
    [FORMAT_OSU] = {osu_new, osu_preamble, osu_facts, osu_row, osu_footer},
};

/* Whether the benchmark has a test of that collective. */
static bool has_test(enum format format, enum coll_id coll)
{
    if (format == FORMAT_NCCL) return coll != COLL_BARRIER;
    return format != FORMAT_OSU || osu_title(coll, "");
}

enum format format_of_program(const char *path)
{
    const char *name = base_name(path);
    struct err none = ERR_INIT;
    const struct coll *coll = coll_find(name, &none);
    err_release(&none);
    if (!coll) return FORMAT_OWN;
    size_t length = strlen(name);
    enum format format = FORMAT_OWN;
    if (length > 5 && strcmp(name + length - 5, "_perf") == 0) format = FORMAT_NCCL;
    if (strncmp(name, "osu_", 4) == 0) format = FORMAT_OSU;
    return has_test(format, coll->id) ? format : FORMAT_OWN;
}

int format_check(enum format format, const struct plan *plan, struct err *err)
{
    bool bad = false, other = format != FORMAT_OWN, osu = format == FORMAT_OSU;
    const struct {
        bool several;
        const char *what, *option;
    } rules[] = {
        {other && plan->nalgos > 1, "algorithm", "algo"},
        {osu && plan->ndtypes > 1, "type", "datatype"},
        {osu && plan->nops > 1, "operator", "op"},
        {osu && plan->launches != 1, "launch", "launches"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!rules[i].several) continue;
        bad = true;
        err_add(err, ERR_USAGE,
                "--format %s has no column for the %s; give one with --%s, or --format own",
                format_names[format], rules[i].what, rules[i].option);
    }
    if (!has_test(format, plan->coll)) {
        bad = true;
        err_add(err, ERR_USAGE,
                "--format %s: %s have no test of %s, whose table this could be; give --format own",
                format_names[format], format == FORMAT_NCCL ? "nccl-tests" : "OSU's benchmarks",
                coll_get(plan->coll)->name);
    }
    if (other && (plan->mode != MODE_TIME || plan->contest != CONTEST_NONE)) {
        bad = true;
        err_add(err, ERR_USAGE,
                "--format %s has columns for the time of one thing alone, not for what it is "
                "compared with; leave out the comparison, or give --format own",
                format_names[format]);
    }
    return bad ? -1 : 0;
}

struct out *format_new(enum format format, const struct plan *plan, unsigned show)
{
    return formats[format].new(plan, show);
}

void format_preamble(struct out *out, enum format format, const struct fitted *fitted, int argc,
                     char **argv)
{
    formats[format].preamble(out, fitted, argc, argv);
}

void format_facts(struct out *out, enum format format, const struct plan *plan, struct world *world,
                  const struct facts *facts)
{
    formats[format].facts(out, plan, world, facts);
}

void format_row(struct out *out, enum format format, const struct table_side *out_of_place,
                const struct table_side *in_place)
{
    formats[format].row(out, out_of_place, in_place);
}

void format_footer(struct out *out, enum format format, const struct plan *plan,
                   const struct footer *footer)
{
    formats[format].footer(out, plan, footer);
}
