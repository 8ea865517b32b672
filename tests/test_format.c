/* SPDX-License-Identifier: Apache-2.0
 * The tables in the format of nccl-tests and OSU micro-benchmarks, from results made by hand,
 * compared with the whole text that must come out. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/format.h"

/* A table on its way to a file of its own. */
struct made {
    char path[64];
    enum format format;
    struct fitted fitted;
    struct out *out;
    struct err err;
    struct plan plan;
};

static void make(struct made *made, enum format format, enum out_format to, struct plan plan)
{
    *made = (struct made){.format = format, .plan = plan, .err = ERR_INIT};
    strcpy(made->path, "/tmp/test_format.XXXXXX");
    int fd = mkstemp(made->path);
    cr_assert_geq(fd, 0);
    close(fd);
    made->fitted.plan = &made->plan;
    made->out = format_new(format, &made->plan, 0);
    cr_assert_eq(out_add(made->out, to, made->path, true, &made->err), 0);
}

/* Ends the table; what is in the file must be `text`. */
static void expect_text(struct made *made, const char *text)
{
    cr_assert_eq(out_close(made->out, &made->err), 0);
    FILE *file = fopen(made->path, "r");
    char *found = NULL;
    size_t cap = 0;
    cr_assert_not_null(file);
    if (getdelim(&found, &cap, '\0', file) < 0) found[0] = '\0';
    fclose(file);
    unlink(made->path);
    cr_assert_str_eq(found, text, "got:\n%s\nexpected:\n%s", found, text);
    free(found);
}

static struct result result_of(enum coll_id coll, uint64_t bytes, uint64_t count, double time_us)
{
    struct result result = {
        .coll = coll,
        .algo = "ring",
        .transport = "shm/pull",
        .buffers = "shared",
        .dtype = "float",
        .redop = "sum",
        .root = -1,
        .nranks = 4,
        .bytes = bytes,
        .count = count,
        .time_us = time_us,
        .min_us = time_us / 2,
        .p50_us = time_us,
        .p95_us = time_us,
        .p99_us = time_us,
        .max_us = time_us * 2,
        .nsamples = 25,
        .batch = 4,
        .launch = 1,
    };
    result_bandwidths(&result);
    return result;
}

static void add_row(struct made *made, const struct result *out_of_place,
                    const struct result *in_place)
{
    struct table_side sides[] = {{.result = out_of_place}, {.result = in_place}};
    format_row(made->out, made->format, &sides[0], &sides[1]);
}

/* ---- nccl-tests ---- */

static const struct plan nccl_plan = {
    .coll = COLL_ALLREDUCE,
    .nranks = 2,
    .sweep = {.min = 8, .max = 128 << 20, .step = 1 << 20, .factor = 2},
    .nalgos = 1,
    .ndtypes = 1,
    .nops = 1,
    .warmup = 5,
    .samples = 30,
    .batch = 3,
    .rounds = 1,
};

Test(nccl, head_and_foot)
{
    struct made made;
    make(&made, FORMAT_NCCL, OUT_FORMAT_TEXT, nccl_plan);
    struct world_spec spec = {
        .nranks = 2, .blob_bytes = 64, .extent_bytes = 4096, .resident_bytes = 4096};
    struct world *world = world_create(&spec, &made.err);
    cr_assert_not_null(world);
    atomic_store(&world_status(world, 0)->pid, 4711);
    atomic_store(&world_status(world, 1)->pid, 1234567);
    format_preamble(made.out, FORMAT_NCCL, &made.fitted, 0, NULL);
    format_facts(made.out, FORMAT_NCCL, &made.plan, world, &(struct facts){0});
    struct footer footer = {.checked = 3, .busbw_sum = 4.5, .busbw_count = 3};
    format_footer(made.out, FORMAT_NCCL, &made.plan, &footer);
    world_close(world);
    struct utsname uts;
    uname(&uts);
    char *processor = header_processor();
    uts.nodename[strcspn(uts.nodename, ".")] = '\0';
    char *text = mem_printf(
        "# collbench version " COLLBENCH_VERSION " (format of nccl-tests)\n"
        "# Collective test starting: all_reduce_perf\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 "
        "iters: 30 agg iters: 3 validation: 1 graph: 0 unalign: 0\n"
        "#\n"
        "# Using devices\n"
        "#  Rank  0 Group  0 Pid   4711 on %10s device  0 [0000:00:00] %s\n"
        "#  Rank  1 Group  0 Pid 1234567 on %10s device  1 [0000:00:00] %s\n"
        "#\n"
        "#                                                              out-of-place              "
        "         in-place          \n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong    "
        " time   algbw   busbw  #wrong \n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
        " (us)  (GB/s)  (GB/s)         \n"
        "# Out of bounds values : 0 OK\n"
        "# Avg bus bandwidth    : 1.5 \n"
        "#\n"
        "# Collective test concluded: all_reduce_perf\n"
        "#\n",
        uts.nodename, processor, uts.nodename, processor);
    expect_text(&made, text);
    free(processor);
    free(text);
}

/* A step of bytes, and samples by time: at least 20. */
Test(nccl, parameters)
{
    struct plan plan = nccl_plan;
    plan.coll = COLL_ALLTOALL;
    plan.sweep.factor = 0;
    plan.samples = plan.rounds = 0;
    struct made made;
    make(&made, FORMAT_NCCL, OUT_FORMAT_TEXT, plan);
    format_preamble(made.out, FORMAT_NCCL, &made.fitted, 0, NULL);
    expect_text(&made, "# collbench version " COLLBENCH_VERSION " (format of nccl-tests)\n"
                       "# Collective test starting: alltoall_perf\n"
                       "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 1048576(bytes) "
                       "warmup iters: 5 iters: 20 agg iters: 3 validation: 0 graph: 0 unalign: 0\n"
                       "#\n");
}

/* Every way in which a number can fill its column; N/A for what was not run or not checked; and a
 * row over all launches, which must not come out. */
static void nccl_rows(struct made *made)
{
    struct result a = result_of(COLL_ALLREDUCE, 1 << 20, 1 << 18, 9999.994);
    struct result b = result_of(COLL_ALLREDUCE, 1 << 20, 1 << 18, 9999.996);
    struct result c = result_of(COLL_ALLREDUCE, 1 << 20, 1 << 18, 123456.7);
    struct result d = result_of(COLL_ALLREDUCE, 1 << 20, 1 << 18, 12345678.9);
    struct result fast = result_of(COLL_ALLREDUCE, UINT64_C(1) << 38, UINT64_C(1) << 36, 0.25);
    struct result bcast = result_of(COLL_BROADCAST, 12, 3, 0.5);
    b.wrong = 1234567;
    c.wrong = -1;
    bcast.root = 3;
    strcpy(bcast.redop, "none");
    strcpy(bcast.dtype, "bfloat16");
    struct result all = a;
    all.launch = 0;
    add_row(made, &a, &b);
    add_row(made, &all, NULL);
    add_row(made, &c, &d);
    add_row(made, NULL, &fast);
    add_row(made, &bcast, NULL);
}

Test(nccl, rows)
{
    struct made made;
    make(&made, FORMAT_NCCL, OUT_FORMAT_TEXT, nccl_plan);
    nccl_rows(&made);
    expect_text(&made,
                "     1048576        262144     float     sum      -1  9999.99    0.10    0.16"
                "       0  10000.0    0.10    0.16  1234567\n"
                "     1048576        262144     float     sum      -1   123457    0.01    0.01"
                "     N/A  1.2e+07    0.00    0.00       0\n"
                "274877906944   68719476736     float     sum      -1      N/A     N/A     N/A"
                "     N/A     0.25   1e+09   2e+09       0\n"
                "          12             3  bfloat16    none       3     0.50    0.02    0.02"
                "       0      N/A     N/A     N/A     N/A\n");
}

Test(nccl, csv_has_the_same_columns)
{
    struct made made;
    make(&made, FORMAT_NCCL, OUT_FORMAT_CSV, nccl_plan);
    format_preamble(made.out, FORMAT_NCCL, &made.fitted, 0, NULL);
    struct result r = result_of(COLL_ALLREDUCE, 1 << 20, 1 << 18, 8388608);
    r.wrong = -1;
    add_row(&made, &r, NULL);
    expect_text(&made, "size_B,count_elements,type,redop,root,out_of_place_time_us,"
                       "out_of_place_algbw_GBps,out_of_place_busbw_GBps,out_of_place_wrong,"
                       "in_place_time_us,in_place_algbw_GBps,in_place_busbw_GBps,in_place_wrong\n"
                       "1048576,262144,float,sum,-1,8388608,0.000125,0.0001875,,,,,\n");
}

/* A run that ends early has no footer, unless it says that data was wrong. */
Test(nccl, footers)
{
    static const struct {
        struct footer footer;
        const char *text;
    } cases[] = {
        {{.wrong = 3, .busbw_sum = 1, .busbw_count = 3},
         "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 0.333333 \n#\n"
         "# Collective test concluded: all_reduce_perf\n#\n"},
        {{.busbw_sum = 1e-6, .busbw_count = 1},
         "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1e-06 \n#\n"
         "# Collective test concluded: all_reduce_perf\n#\n"},
        {{.failed = true, .checked = 3, .busbw_sum = 1, .busbw_count = 3}, ""},
        {{.failed = true, .wrong = 2}, "# Out of bounds values : 2 FAILED\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made made;
        make(&made, FORMAT_NCCL, OUT_FORMAT_TEXT, nccl_plan);
        format_footer(made.out, FORMAT_NCCL, &made.plan, &cases[i].footer);
        expect_text(&made, cases[i].text);
    }
}

/* ---- OSU ---- */

#define OSU_HEAD "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"

static void osu_table(struct made *made, enum coll_id coll, uint64_t rounds, char *program)
{
    struct plan plan = {.coll = coll, .nranks = 4, .rounds = rounds, .dtypes = {DT_FLOAT}};
    make(made, FORMAT_OSU, OUT_FORMAT_TEXT, plan);
    format_preamble(made->out, FORMAT_OSU, &made->fitted, 1, (char *[]){program, NULL});
    format_facts(made->out, FORMAT_OSU, &made->plan, NULL, &(struct facts){0});
}

/* Sizes are per pair; out of place counts, in place if it is alone; an unchecked one is N/A. */
Test(osu, rows)
{
    struct made made;
    osu_table(&made, COLL_ALLGATHER, 1, "collbench");
    struct result a = result_of(COLL_ALLGATHER, 4 << 20, 1 << 18, 1234.567);
    struct result b = result_of(COLL_ALLGATHER, 16, 1, 0.25);
    struct result c = result_of(COLL_ALLGATHER, UINT64_C(1) << 36, UINT64_C(1) << 32, 12345678.9);
    b.wrong = 1;
    c.wrong = -1;
    add_row(&made, &a, &b);
    add_row(&made, NULL, &b);
    add_row(&made, &c, NULL);
    format_footer(made.out, FORMAT_OSU, &made.plan, &(struct footer){.checked = 3, .wrong = 1});
    expect_text(&made,
                "\n"
                "# OSU MPI Allgather Latency Test v7.4 format, by collbench " COLLBENCH_VERSION "\n"
                "# Datatype: MPI_FLOAT.\n" OSU_HEAD "        Validation\n"
                "1048576              1234.57            617.28           2469.13         100"
                "              Pass\n"
                "4                       0.25              0.12              0.50         100"
                "              Fail\n"
                "17179869184       12345678.90        6172839.45       24691357.80         100"
                "               N/A\n");
}

/* Size, title and columns of each operation; the title is that of the link if there are two. */
Test(osu, sizes_and_titles)
{
    static const struct {
        enum coll_id coll;
        char *program, *title;
        int size;
    } cases[] = {
        {COLL_ALLREDUCE, "x/osu_allreduce", "Allreduce", 64},
        {COLL_ALLGATHER, "osu_allgather", "Allgather", 16},
        {COLL_REDUCE_SCATTER, "collbench", "Reduce_scatter", 64},
        {COLL_REDUCE_SCATTER, "/x/osu_reduce_scatter", "Reduce_scatter", 64},
        {COLL_REDUCE_SCATTER, "/x/osu_reduce_scatter_block", "Reduce_scatter_block", 64},
        {COLL_ALLTOALL, "", "All-to-All Personalized Exchange", 16},
        {COLL_BROADCAST, "osu_bcast", "Broadcast", 64},
        {COLL_REDUCE, "osu_reduce", "Reduce", 64},
        {COLL_GATHER, "osu_gather", "Gather", 16},
        {COLL_SCATTER, "osu_scatter", "Scatter", 16},
        {COLL_ALLTOALLV, "osu_alltoallv", "All-to-Allv Personalized Exchange", 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made made;
        osu_table(&made, cases[i].coll, 0, cases[i].program);
        struct result r = result_of(cases[i].coll, 64, 4, 1.5);
        r.wrong = -1;
        add_row(&made, &r, NULL);
        char *text = mem_printf(
            "\n# OSU MPI %s Latency Test v7.4 format, by collbench " COLLBENCH_VERSION "\n"
            "# Datatype: MPI_FLOAT.\n" OSU_HEAD "\n"
            "%-10d              1.50              0.75              3.00         100\n",
            cases[i].title, cases[i].size);
        expect_text(&made, text);
        free(text);
    }
}

/* osu_barrier has no size, no type, and no validation even if there was a check. */
Test(osu, barrier)
{
    for (uint64_t rounds = 0; rounds < 2; rounds++) {
        struct made made;
        osu_table(&made, COLL_BARRIER, rounds, "osu_barrier");
        struct result r = result_of(COLL_BARRIER, 0, 0, 1.5);
        add_row(&made, &r, NULL);
        expect_text(&made,
                    "\n# OSU MPI Barrier Latency Test v7.4 format, by collbench " COLLBENCH_VERSION
                    "\n# Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
                    "             1.50              0.75              3.00         100\n");
    }
}

/* What MPI calls a type, or we do. */
Test(osu, types)
{
    static const struct {
        enum dtype dtype;
        const char *name;
    } cases[] = {
        {DT_INT8, "MPI_INT8_T"},     {DT_UINT8, "MPI_UINT8_T"}, {DT_INT32, "MPI_INT"},
        {DT_UINT32, "MPI_UINT32_T"}, {DT_INT64, "MPI_INT64_T"}, {DT_UINT64, "MPI_UINT64_T"},
        {DT_HALF, "half"},           {DT_FLOAT, "MPI_FLOAT"},   {DT_DOUBLE, "MPI_DOUBLE"},
        {DT_BFLOAT16, "bfloat16"},   {DT_F8E4M3, "f8e4m3"},     {DT_F8E5M2, "f8e5m2"},
    };
    cr_assert_eq(sizeof cases / sizeof *cases, DT_COUNT);
    for (size_t i = 0; i < DT_COUNT; i++) {
        struct made made;
        struct plan plan = {.coll = COLL_ALLREDUCE, .nranks = 4, .dtypes = {cases[i].dtype}};
        make(&made, FORMAT_OSU, OUT_FORMAT_TEXT, plan);
        format_preamble(made.out, FORMAT_OSU, &made.fitted, 0, NULL);
        char *text = mem_printf(
            "\n# OSU MPI Allreduce Latency Test v7.4 format, by collbench " COLLBENCH_VERSION
            "\n# Datatype: %s.\n" OSU_HEAD "\n",
            cases[i].name);
        expect_text(&made, text);
        free(text);
    }
}

/* ---- ours, and the choice ---- */

Test(own, is_the_table_of_results)
{
    struct made made, plain;
    make(&made, FORMAT_OWN, OUT_FORMAT_CSV, nccl_plan);
    make(&plain, FORMAT_OWN, OUT_FORMAT_CSV, nccl_plan);
    struct result r = result_of(COLL_ALLREDUCE, 64, 16, 1.5);
    struct table_side side = {.result = &r}, none = {0};
    add_row(&made, &r, NULL);
    out_close(plain.out, &plain.err);
    plain.out = table_new(0);
    cr_assert_eq(out_add(plain.out, OUT_FORMAT_CSV, plain.path, true, &plain.err), 0);
    table_row(plain.out, &side, &none);
    cr_assert_eq(out_close(plain.out, &plain.err), 0);
    FILE *file = fopen(plain.path, "r");
    char *text = NULL;
    size_t cap = 0;
    cr_assert_not_null(file);
    cr_assert_gt(getdelim(&text, &cap, '\0', file), 0);
    fclose(file);
    unlink(plain.path);
    expect_text(&made, text);
    free(text);
}

Test(choice, by_the_name_of_the_program)
{
    static const struct {
        const char *path;
        enum format format;
    } cases[] = {
        {"all_reduce_perf", FORMAT_NCCL},
        {"/usr/bin/all_gather_perf", FORMAT_NCCL},
        {"reduce_scatter_perf", FORMAT_NCCL},
        {"./alltoall_perf", FORMAT_NCCL},
        {"broadcast_perf", FORMAT_NCCL},
        {"osu_allreduce", FORMAT_OSU},
        {"a/osu_allgather", FORMAT_OSU},
        {"osu_reduce_scatter", FORMAT_OSU},
        {"osu_reduce_scatter_block", FORMAT_OSU},
        {"osu_alltoall", FORMAT_OSU},
        {"osu_bcast", FORMAT_OSU},
        {"collbench", FORMAT_OWN},
        {"allreduce", FORMAT_OWN},
        {"all_reduce", FORMAT_OWN},
        {"reduce_perf", FORMAT_NCCL},
        {"gather_perf", FORMAT_NCCL},
        {"./scatter_perf", FORMAT_NCCL},
        {"sendrecv_perf", FORMAT_NCCL},
        {"alltoallv_perf", FORMAT_NCCL},
        {"osu_reduce", FORMAT_OSU},
        {"osu_gather", FORMAT_OSU},
        {"osu_scatter", FORMAT_OSU},
        {"osu_alltoallv", FORMAT_OSU},
        {"a/osu_barrier", FORMAT_OSU},
        {"barrier_perf", FORMAT_OWN},
        {"osu_sendrecv", FORMAT_OWN},
        {"hypercube_perf", FORMAT_OWN},
        {"osu_latency", FORMAT_OWN},
        {"osu_", FORMAT_OWN},
        {"_perf", FORMAT_OWN},
        {"all_reduce_perf/", FORMAT_OWN},
        {"osu_x/collbench", FORMAT_OWN},
        {"", FORMAT_OWN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(format_of_program(cases[i].path), cases[i].format, "%s", cases[i].path);
}

/* Nobody could tell whose test it is. */
Test(choice, of_what_they_do_not_test)
{
    for (int i = 0; i < COLL_COUNT; i++) {
        struct plan plan = {
            .coll = (enum coll_id)i, .nalgos = 1, .ndtypes = 1, .nops = 1, .launches = 1};
        for (enum format format = FORMAT_OWN; format <= FORMAT_OSU; format++) {
            struct err err = ERR_INIT;
            bool lacks = (format == FORMAT_NCCL && i == COLL_BARRIER) ||
                         (format == FORMAT_OSU && i == COLL_SENDRECV);
            cr_expect_eq(format_check(format, &plan, &err), lacks ? -1 : 0, "%d %d", format, i);
            if (lacks) cr_expect_not_null(strstr(err.text, "no test of"), "%s", err.text);
            err_release(&err);
        }
    }
}

/* What has no column is refused. */
Test(choice, of_a_plan)
{
    static const struct {
        enum format format;
        uint32_t nalgos, ndtypes, nops, launches;
        enum mode mode;
        enum contest contest;
        const char *say; /* NULL: fine */
    } cases[] = {
        {FORMAT_OWN, 3, 3, 3, 3, MODE_TRACE, CONTEST_MPI, NULL},
        {FORMAT_NCCL, 1, 3, 3, 3, MODE_TIME, CONTEST_NONE, NULL},
        {FORMAT_NCCL, 2, 1, 1, 1, MODE_TIME, CONTEST_NONE, "nccl has no column for the algo"},
        {FORMAT_NCCL, 1, 1, 1, 1, MODE_TIME, CONTEST_MPI, "nccl has columns for the time"},
        {FORMAT_OSU, 1, 1, 1, 1, MODE_TRACE, CONTEST_NONE, "osu has columns for the time"},
        {FORMAT_OSU, 1, 1, 1, 1, MODE_TIME, CONTEST_NONE, NULL},
        {FORMAT_OSU, 1, 2, 1, 1, MODE_TIME, CONTEST_NONE, "--datatype"},
        {FORMAT_OSU, 1, 1, 3, 1, MODE_TIME, CONTEST_NONE, "--op"},
        {FORMAT_OSU, 1, 1, 1, 2, MODE_TIME, CONTEST_NONE, "--launches"},
        {FORMAT_OSU, 1, 1, 1, 0, MODE_TIME, CONTEST_NONE, "--launches"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = ERR_INIT;
        struct plan plan = {.nalgos = cases[i].nalgos,
                            .ndtypes = cases[i].ndtypes,
                            .nops = cases[i].nops,
                            .launches = cases[i].launches,
                            .mode = cases[i].mode,
                            .contest = cases[i].contest};
        int status = format_check(cases[i].format, &plan, &err);
        cr_expect_eq(status, cases[i].say ? -1 : 0, "case %zu", i);
        cr_expect_eq(err.code, cases[i].say ? ERR_USAGE : ERR_NONE, "case %zu", i);
        if (cases[i].say) {
            cr_assert_not_null(err.text);
            cr_expect_not_null(strstr(err.text, cases[i].say), "%s", err.text);
        }
        err_release(&err);
    }
}
