/* SPDX-License-Identifier: Apache-2.0
 * Tests of base/: what a user types (units, options), what he reads (output), and the tools that
 * must give the same answer on every run (random numbers). */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/units.h"

/* ---- errors and memory ---- */

Test(err, sentences_add_up_and_usage_wins)
{
    struct err err = ERR_INIT, more = ERR_INIT, none = ERR_INIT;
    cr_assert_eq(err_add(&err, ERR_USAGE, "a %d", 1), -1);
    cr_assert_eq(err_add(&more, ERR_FAILED, "b\nc"), -1);
    cr_assert_eq(err_add(&more, ERR_FAILED, "d"), -1);
    cr_assert_eq(err_move(&err, &none), 0);
    cr_assert_eq(err_move(&err, &more), -1);
    cr_assert_eq(err.code, ERR_USAGE);
    cr_assert_eq(err.count, 3);
    cr_assert_str_eq(err.text, "a 1\nb c\nd");
    cr_assert_null(more.text);
    cr_assert_eq(more.count, 0);
    err_release(&err);
    cr_assert_eq(err.code, ERR_NONE);
    err_release(&err);
}

/* What fn(argument) writes to the file descriptor, up to 64 KiB. Freed by the caller. */
static char *captured(int fd, void (*fn)(void *), void *argument)
{
    int pipes[2], kept = dup(fd);
    cr_assert_eq(pipe(pipes), 0);
    dup2(pipes[1], fd);
    close(pipes[1]);
    fn(argument);
    fflush(NULL);
    dup2(kept, fd);
    close(kept);
    char *text = mem_calloc(65536, 1);
    for (ssize_t n = 0, more; (more = read(pipes[0], text + n, (size_t)(65535 - n))) > 0;)
        n += more;
    close(pipes[0]);
    return text;
}

static void print_err(void *err)
{
    err_print(err, "prog");
}

Test(err, each_sentence_is_printed_with_the_program)
{
    struct err err = ERR_INIT;
    char *nothing = captured(STDERR_FILENO, print_err, &err);
    cr_expect_str_eq(nothing, "");
    err_add(&err, ERR_FAILED, "one");
    err_add(&err, ERR_FAILED, "two %%");
    char *text = captured(STDERR_FILENO, print_err, &err);
    cr_expect_str_eq(text, "prog: one\nprog: two %\n");
    free(nothing);
    free(text);
    err_release(&err);
}

Test(mem, an_overflowing_product_ends_the_program, .exit_code = 1)
{
    void *p = mem_realloc(NULL, SIZE_MAX / 4, 8);
    free(p);
    _exit(0);
}

Test(mem, grow_doubles_and_keeps)
{
    int *items = NULL;
    size_t count = 0, cap = 0;
    for (int i = 0; i < 1000; i++) {
        MEM_GROW(items, count, cap);
        items[count++] = i;
    }
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(items[i], i);
    cr_assert_eq(cap, 1024);
    free(items);
    free(mem_calloc(0, 8));
    cr_assert_null(mem_strdup(NULL));
}

/* ---- units ---- */

/* Expects one usage sentence in `err` that holds all of the texts, then releases it. */
static void expect_fault(struct err *err, const char *a, const char *b, const char *c)
{
    cr_assert_eq(err->code, ERR_USAGE, "%s: no fault", b);
    cr_assert_eq(err->count, 1, "%s: %u faults", b, err->count);
    cr_expect(strstr(err->text, a) && strstr(err->text, b) && strstr(err->text, c),
              "\"%s\" should hold \"%s\", \"%s\" and \"%s\"", err->text, a, b, c);
    err_release(err);
}

Test(units, sizes)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"1024", 1024},
                 {"1K", 1024},
                 {"1k", 1024},
                 {"1KiB", 1024},
                 {"1 KiB", 1024},
                 {"1KB", 1024},
                 {"1024 B", 1024},
                 {"0", 0},
                 {"0G", 0},
                 {"000", 0},
                 {"1.5K", 1536},
                 {"1.50000000000000000000000000K", 1536},
                 {".5k", 512},
                 {"1.", 1},
                 {"1m", 1 << 20},
                 {"64M", 64 << 20},
                 {"1G", 1 << 30},
                 {"4T", 4ull << 40},
                 {"0.0009765625K", 1},
                 {"2147483649", 2147483649ull},
                 {"18446744073709551615", UINT64_MAX},
                 {"16777215T", 16777215ull << 40}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = ERR_INIT;
        uint64_t bytes = 7;
        int status = units_read_size("--size", cases[i].text, &bytes, &err);
        cr_expect_eq(status, 0, "%s", cases[i].text);
        cr_expect_eq(bytes, cases[i].bytes, "%s gives %llu", cases[i].text,
                     (unsigned long long)bytes);
        err_release(&err);
    }
}

Test(units, bad_sizes_name_option_value_and_what_is_accepted)
{
    static const char *const texts[] = {"1X",
                                        "-5",
                                        "",
                                        "K",
                                        ".",
                                        "1.3",
                                        "0.1K",
                                        "1Gb",
                                        "1e9",
                                        "1 K i",
                                        "1iB",
                                        "0x10",
                                        " 1",
                                        "NaN",
                                        "inf",
                                        "1.2.3",
                                        "+1",
                                        "1KK",
                                        "1,5K",
                                        "١",
                                        "18446744073709551616",
                                        "16777216T",
                                        "16777215.99999904632568359375T",
                                        "99999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = ERR_INIT;
        uint64_t bytes = 7;
        char *quoted = mem_printf("\"%s\"", texts[i]);
        int status = units_read_size("--size", texts[i], &bytes, &err);
        cr_expect_eq(status, -1, "%s", quoted);
        cr_expect_eq(bytes, 7, "%s must not change the result", quoted);
        expect_fault(&err, "--size", quoted, "accepted: bytes, or K, M, G, T");
        free(quoted);
    }
}

Test(units, sizes_survive_the_way_out_and_in)
{
    struct rng rng;
    rng_init(&rng, 1);
    cr_assert_str_eq(units_size((char[UNITS_TEXT]){0}, 1 << 20), "1 MiB");
    cr_assert_str_eq(units_size((char[UNITS_TEXT]){0}, 1536), "1536 B");
    cr_assert_str_eq(units_size((char[UNITS_TEXT]){0}, 3 << 19), "1536 KiB");
    cr_assert_str_eq(units_size((char[UNITS_TEXT]){0}, 1ull << 50), "1024 TiB");
    for (int i = 0; i < 1000; i++) {
        uint64_t bytes = rng_next(&rng) >> rng_below(&rng, 64) << rng_below(&rng, 40), back = 0;
        struct err err = ERR_INIT;
        char text[UNITS_TEXT];
        cr_assert_eq(units_read_size("x", units_size(text, bytes), &back, &err), 0, "%s", text);
        cr_assert_eq(back, bytes, "%s", text);
    }
}

Test(units, times)
{
    static const struct {
        const char *text;
        uint64_t ps;
    } cases[] = {{"10ns", 10000},
                 {"2.5us", 2500000},
                 {"2.5 us", 2500000},
                 {"2.5µs", 2500000},
                 {"400ps", 400},
                 {"0.0004ns", 0},
                 {"0.5ps", 1},
                 {"3ms", 3000000000},
                 {"2s", 2000000000000},
                 {"0s", 0},
                 {"18446744s", 18446744000000000000ull}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = ERR_INIT;
        uint64_t ps = 7;
        double s = 7;
        cr_expect_eq(units_read_time_ps("--alpha", cases[i].text, false, &ps, &err), 0);
        cr_expect_eq(ps, cases[i].ps, "%s gives %llu ps", cases[i].text, (unsigned long long)ps);
        cr_expect_eq(units_read_time_s("--alpha", cases[i].text, false, &s, &err), 0);
        cr_expect_float_eq(s * 1e12, (double)ps, 1, "%s gives %g s", cases[i].text, s);
    }
}

Test(units, bad_times)
{
    static const char *const texts[] = {"5", "-5us", "", "2.5 parsecs", "us", "1e-6s", "213d"};
    struct err err = ERR_INIT;
    uint64_t ps = 7;
    double s = 7;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_expect_eq(units_read_time_ps("--alpha", texts[i], false, &ps, &err), -1);
        expect_fault(&err, "--alpha", texts[i],
                     "accepted: a number with ps, ns, us, ms, s, min or h");
        cr_expect_eq(units_read_time_s("--alpha", texts[i], false, &s, &err), -1);
        expect_fault(&err, "--alpha", texts[i], "accepted: a number with");
    }
    cr_expect_eq(units_read_time_ps("--alpha", "20000000s", false, &ps, &err), -1);
    expect_fault(&err, "--alpha", "20000000s", "too large");
    cr_expect_eq(ps, 7);
    cr_expect_eq(units_read_time_s("--timeout", "5", true, &s, &err), 0);
    cr_expect_eq(s, 5);
    cr_expect_eq(units_read_time_ps("--timeout", "1.5", true, &ps, &err), 0);
    cr_expect_eq(ps, 1500000000000);
}

Test(units, bandwidths)
{
    static const struct {
        const char *text;
        double bytes_per_s;
    } cases[] = {{"50GB/s", 50e9},     {"25GB", 25e9},       {"400Gb/s", 50e9},
                 {"400Gbps", 50e9},    {"400 Gbit/s", 50e9}, {"2GiB/s", 2147483648.0},
                 {"1.5 TB/s", 1.5e12}, {"100kB/s", 1e5},     {"1MiB/s", 1048576},
                 {"8b/s", 1},          {"7B/s", 7}};
    static const char *const bad[] = {"50", "",      "-1GB/s", "0GB/s",  "GB/s",
                                      "5G", "5iB/s", "5GB/h",  "5gbps/s"};
    struct err err = ERR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = 7;
        cr_expect_eq(units_read_bandwidth("--beta", cases[i].text, &got, &err), 0, "%s",
                     cases[i].text);
        cr_expect_float_eq(got, cases[i].bytes_per_s, 1e-12 * got, "%s gives %g", cases[i].text,
                           got);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double got = 7;
        cr_expect_eq(units_read_bandwidth("--beta", bad[i], &got, &err), -1, "%s", bad[i]);
        expect_fault(&err, "--beta", bad[i], "GB/s (10^9 bytes)");
        cr_expect_eq(got, 7);
    }
}

Test(units, whole_numbers_and_decimals)
{
    struct err err = ERR_INIT;
    uint64_t n = 7;
    double d = 7;
    static const char *const bad[] = {"0", "65", "-1", "", "1.5", "1K", "99999999999999999999",
                                      " 3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(units_read_uint("--ranks", bad[i], 1, 64, &n, &err), -1, "%s", bad[i]);
        expect_fault(&err, "--ranks", bad[i], "1..64");
        cr_expect_eq(n, 7);
    }
    cr_expect_eq(units_read_uint("--ranks", "1", 1, 64, &n, &err), 0);
    cr_expect_eq(n, 1);
    cr_expect_eq(units_read_uint("--ranks", "64", 1, 64, &n, &err), 0);
    cr_expect_eq(n, 64);
    cr_expect_eq(units_read_uint("-x", "18446744073709551615", 0, UINT64_MAX, &n, &err), 0);
    cr_expect_eq(n, UINT64_MAX);
    static const char *const bad_decimals[] = {"", "inf", "nan", "0x1p3", "1e999", "1 ", "one"};
    for (size_t i = 0; i < sizeof bad_decimals / sizeof *bad_decimals; i++) {
        cr_expect_eq(units_read_double("--f", bad_decimals[i], &d, &err), -1, "%s",
                     bad_decimals[i]);
        expect_fault(&err, "--f", bad_decimals[i], "accepted");
        cr_expect_eq(d, 7);
    }
    cr_expect_eq(units_read_double("--f", "-1.5e-3", &d, &err), 0);
    cr_expect_eq(d, -1.5e-3);
}

Test(units, shares)
{
    static const struct {
        const char *text;
        bool share, fraction; /* legal */
        double value;
    } cases[] = {{"0", true, false, 0},     {"0%", true, false, 0},    {"1", true, false, 1},
                 {"100%", true, false, 1},  {"5%", true, true, .05},   {".5", true, true, .5},
                 {"1.01", false, false, 0}, {"101%", false, false, 0}, {"-1", false, false, 0},
                 {"0.5x", false, false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = ERR_INIT;
        double value = -1, other = -1;
        cr_expect_eq(units_read_share("--x", cases[i].text, &value, &err) == 0, cases[i].share,
                     "%s", cases[i].text);
        cr_expect_eq(units_read_fraction("--x", cases[i].text, &other, &err) == 0,
                     cases[i].fraction, "%s", cases[i].text);
        cr_expect_float_eq(value, cases[i].share ? cases[i].value : -1, 1e-15);
        cr_expect_float_eq(other, cases[i].fraction ? cases[i].value : -1, 1e-15);
        err_release(&err);
    }
}

Test(units, texts_have_three_digits)
{
    static const struct {
        double s;
        const char *text;
    } times[] = {{2.5e-6, "2.50 us"}, {123e-9, "123 ns"},   {999.6e-9, "1.00 us"}, {1, "1.00 s"},
                 {12345, "12345 s"},  {0, "0.00 s"},        {1e-13, "0.100 ps"},   {NAN, "N/A"},
                 {-1, "N/A"},         {9.996e-3, "10.0 ms"}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        cr_expect_str_eq(units_time((char[UNITS_TEXT]){0}, times[i].s), times[i].text);
    cr_expect_str_eq(units_bandwidth((char[UNITS_TEXT]){0}, 50e9), "50.0 GB/s");
    cr_expect_str_eq(units_bandwidth((char[UNITS_TEXT]){0}, 12.5e6), "0.0125 GB/s");
    cr_expect_str_eq(units_bandwidth((char[UNITS_TEXT]){0}, 1234.4e9), "1234 GB/s");
    cr_expect_str_eq(units_bandwidth((char[UNITS_TEXT]){0}, INFINITY), "N/A");
    cr_expect_str_eq(units_size_near((char[UNITS_TEXT]){0}, 13207024435), "12.3 GiB");
    cr_expect_str_eq(units_size_near((char[UNITS_TEXT]){0}, 999), "999 B");
    cr_expect_str_eq(units_size_near((char[UNITS_TEXT]){0}, 1536), "1.50 KiB");
    cr_expect_str_eq(units_size_near((char[UNITS_TEXT]){0}, UINT64_MAX), "16.0 EiB");
}

/* ---- options ---- */

static const char *const OPERATORS[] = {"sum", "max", "avg", NULL};

struct conf {
    uint64_t size, iters, latency_ps;
    double timeout_s, beta, factor;
    unsigned op;
    bool draw, quiet;
    const char *json;
    struct opts_list algos, ops;
};

static const struct opts_row ROWS[] = {
    {"size", 'b', OPTS_SIZE, offsetof(struct conf, size), "32M", "SIZE", .help = "bytes of a rank",
     .section = "Sizes", .min = 4, .max = 1ull << 40},
    {"iters", 'n', OPTS_UINT, offsetof(struct conf, iters), "20", "N", .help = "timed iterations",
     .section = "Measuring", .min = 1, .max = 1000},
    {"timeout", 'T', OPTS_TIME_S, offsetof(struct conf, timeout_s), "60", "TIME",
     .help = "the run is given up after it", .plain_seconds = true},
    {"latency", 'l', OPTS_TIME_PS, offsetof(struct conf, latency_ps), "5us", "TIME",
     .help = "of a link"},
    {"beta", 0, OPTS_BANDWIDTH, offsetof(struct conf, beta), "50GB/s", "BANDWIDTH",
     .help = "of a link"},
    {"factor", 0, OPTS_DOUBLE, offsetof(struct conf, factor), "2", "X", .help = "size factor"},
    {"op", 'o', OPTS_CHOICE, offsetof(struct conf, op), "max", "OP", .help = "operator",
     .choices = OPERATORS},
    {"ops", 0, OPTS_LIST, offsetof(struct conf, ops), NULL, "OP[,OP]", .help = "operators",
     .choices = OPERATORS},
    {"algo", 0, OPTS_LIST, offsetof(struct conf, algos), "auto", "NAME[,NAME]",
     .help = "algorithms"},
    {"json", 'J', OPTS_STRING, offsetof(struct conf, json), NULL, "FILE",
     .help = "JSON goes there"},
    {"draw", 'd', OPTS_FLAG, offsetof(struct conf, draw), NULL, NULL, .help = "draw it"},
    {"quiet", 'q', OPTS_FLAG, offsetof(struct conf, quiet), NULL, NULL, .help = "say less"},
    {0}};

/* Parses the words (cut at blanks; '_' stands for an empty word). */
static int parse(struct opts *opts, struct conf *conf, const char *line, struct err *err)
{
    static char words[1024], empty[] = "";
    char *argv[64] = {empty}, *rest = strcpy(words, line);
    int argc = 1;
    for (char *word; (word = strsep(&rest, " "));)
        if (*word) argv[argc++] = strcmp(word, "_") == 0 ? empty : word;
    *conf = (struct conf){0};
    return opts_parse(opts, ROWS, conf, argc, argv, err);
}

Test(opts, defaults_come_from_the_table)
{
    struct opts opts;
    struct conf conf;
    struct err err = ERR_INIT;
    cr_assert_eq(parse(&opts, &conf, "", &err), 0);
    cr_expect_eq(conf.size, 32 << 20);
    cr_expect_eq(conf.iters, 20);
    cr_expect_eq(conf.timeout_s, 60);
    cr_expect_eq(conf.latency_ps, 5000000);
    cr_expect_eq(conf.beta, 50e9);
    cr_expect_eq(conf.factor, 2);
    cr_expect_eq(conf.op, 1);
    cr_expect_eq(conf.algos.count, 1);
    cr_expect_str_eq(conf.algos.items[0], "auto");
    cr_expect_eq(conf.ops.count, 0);
    cr_expect_null(conf.json);
    cr_expect_not(conf.draw);
    cr_expect_not(opts_is_set(&opts, "size"));
    opts_release(&opts);
}

Test(opts, every_spelling)
{
    struct opts opts;
    struct conf conf;
    struct err err = ERR_INIT;
    cr_assert_eq(parse(&opts, &conf,
                       "allreduce --size 1K --size=2K -n20 -T 5 --algo ring,tree --ops=sum,avg "
                       "-qdJ- --factor -1.5 -- -x --size",
                       &err),
                 0, "%s", err.text);
    cr_expect_eq(conf.size, 2048, "the last one counts");
    cr_expect_eq(conf.iters, 20);
    cr_expect_eq(conf.timeout_s, 5);
    cr_expect_eq(conf.factor, -1.5);
    cr_expect_eq(conf.algos.count, 2);
    cr_expect_str_eq(conf.algos.items[0], "ring");
    cr_expect_str_eq(conf.algos.items[1], "tree");
    cr_expect_eq(conf.ops.count, 2);
    cr_expect_str_eq(conf.json, "-");
    cr_expect(conf.draw && conf.quiet);
    cr_expect(opts_is_set(&opts, "size") && opts_is_set(&opts, "draw"));
    cr_expect_not(opts_is_set(&opts, "op"));
    cr_assert_eq(opts.npositionals, 3);
    cr_expect_str_eq(opts.positionals[0], "allreduce");
    cr_expect_str_eq(opts.positionals[1], "-x");
    cr_expect_str_eq(opts.positionals[2], "--size");
    opts_release(&opts);
    cr_expect_null(conf.algos.items);
}

Test(opts, one_fault_each)
{
    static const struct {
        const char *line, *a, *b;
    } cases[] = {{"--size 1X", "--size", "\"1X\""},
                 {"--size -5", "--size", "\"-5\" is negative"},
                 {"--size _", "--size", "\"\" is empty"},
                 {"--size=", "--size", "\"\" is empty"},
                 {"-b 2T", "-b", "4 B to 1 TiB"},
                 {"-b 3", "-b", "4 B to 1 TiB"},
                 {"-n 0", "-n", "1..1000"},
                 {"-n-5", "-n", "\"-5\" is out of range"},
                 {"-n", "-n", "needs a value (N)"},
                 {"--size --draw", "--size", "needs a value (SIZE)"},
                 {"--latency 5", "--latency", "has no unit"},
                 {"--beta 5X", "--beta", "unknown unit"},
                 {"-o summ", "-o", "nearest is sum; valid: sum, max, avg"},
                 {"-o sumabcd", "-o", "\"sumabcd\"; valid: sum, max, avg"},
                 {"--ops sum,foo", "--ops", "\"foo\"; valid: sum, max, avg"},
                 {"--algo ring,", "--algo", "empty item"},
                 {"--draw=yes", "--draw", "takes no value"},
                 {"--agло 1", "option", "valid: --size, --iters"},
                 {"--aglo ring", "\"--aglo\": nearest is --algo", "--quiet, --help"},
                 {"--aglo=ring", "\"--aglo\": nearest is --algo", "--quiet, --help"},
                 {"-N 5", "option \"-N\"", "valid: -b, -n, -T, -l, -o, -J, -d, -q, -h"},
                 {"-q5", "option \"-5\"", "-h"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opts opts;
        struct conf conf;
        struct err err = ERR_INIT;
        cr_expect_eq(parse(&opts, &conf, cases[i].line, &err), -1, "%s", cases[i].line);
        cr_expect_eq(opts.npositionals, 0, "%s", cases[i].line);
        expect_fault(&err, cases[i].a, cases[i].b, "");
        opts_release(&opts);
    }
}

Test(opts, bounds_are_legal)
{
    static const char *const lines[] = {"-b4 -n1", "-b1T -n1000"};
    static const uint64_t sizes[] = {4, 1ull << 40}, iters[] = {1, 1000};
    for (int i = 0; i < 2; i++) {
        struct opts opts;
        struct conf conf;
        struct err err = ERR_INIT;
        cr_assert_eq(parse(&opts, &conf, lines[i], &err), 0, "%s", err.text);
        cr_expect_eq(conf.size, sizes[i]);
        cr_expect_eq(conf.iters, iters[i]);
        opts_release(&opts);
    }
}

Test(opts, the_nearest_name_is_the_one_with_the_fewest_edits)
{
    static const char *const names[] = {"tree", "ring", "rings", "direct", "recursive", NULL};
    static const char *const none[] = {NULL};
    static const struct {
        const char *text, *nearest;
    } cases[] = {{"rign", "ring"},
                 {"tre", "tree"},
                 {"ringsy", "rings"},
                 {"irect", "direct"},
                 {"dirct", "direct"},
                 {"RIng", "ring"},
                 {"recursiv", "recursive"},
                 {"rxcxrsive", "recursive"},
                 {"t", NULL},
                 {"zzzz", NULL}};
    struct err err = ERR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *expected = mem_printf("unknown algorithm \"%s\"%s%s; valid: tree, ring, rings, "
                                    "direct, recursive",
                                    cases[i].text, cases[i].nearest ? ": nearest is " : "",
                                    cases[i].nearest ? cases[i].nearest : "");
        cr_expect_eq(opts_unknown(&err, "algorithm", cases[i].text, names), -1);
        cr_expect_str_eq(err.text, expected);
        err_release(&err);
        free(expected);
    }
    opts_unknown(&err, "algorithm", "ring", none);
    expect_fault(&err, "algorithm", "\"ring\"", "valid: none");
}

Test(opts, all_faults_at_once)
{
    struct opts opts;
    struct conf conf;
    struct err err = ERR_INIT;
    cr_assert_eq(parse(&opts, &conf, "--size 1X -n 0 --siez 4 -o foo --ops a,b --beta 1", &err),
                 -1);
    cr_expect_eq(err.count, 7, "%s", err.text);
    cr_expect_eq(err.code, ERR_USAGE);
    err_release(&err);
    opts_release(&opts);
    cr_assert_eq(parse(&opts, &conf, "--size 1X -h", &err), 0, "help comes before faults");
    cr_expect(opts.help);
    cr_expect_eq(err.count, 0);
    opts_release(&opts);
}

Test(opts, help_shows_every_row_with_its_default)
{
    char *text = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);
    opts_help(to, "prog <op> [options]", "Measures things.", ROWS);
    fclose(to);
    static const char *const parts[] = {
        "Usage: prog <op> [options]\nMeasures things.\n\nSizes\n",
        "  -b, --size SIZE             bytes of a rank (default 32M)\n",
        "\nMeasuring\n  -n, --iters N               timed iterations (1..1000; default 20)\n",
        "  -o, --op OP                 operator (one of: sum, max, avg; default max)\n",
        "      --beta BANDWIDTH        of a link (default 50GB/s)\n",
        "  -d, --draw                  draw it\n",
        "  -h, --help                  print this and exit\n",
        "2^10, 2^20, 2^30",
        "GB/s is 10^9 bytes"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(strstr(text, parts[i]), "help lacks: %s\n%s", parts[i], text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        cr_expect_leq(end - line, 100, "a line of the help is too long");
    free(text);
}

/* An option of which each use adds a text, commas and all; others forget the earlier use. */
Test(opts, each_use_adds_one)
{
    struct faults {
        struct opts_list list;
        const char *json;
    } target = {{0, NULL}, NULL};
    static const struct opts_row rows[] = {
        {"fault", 'f', OPTS_MORE, offsetof(struct faults, list), NULL, "FAULT", .help = "broken"},
        {"json", 'J', OPTS_STRING, offsetof(struct faults, json), NULL, "FILE", .help = "to"},
        {0}};
    char *argv[] = {(char[]){"x"},   (char[]){"--fault"}, (char[]){"a,b=1"},    (char[]){"-J1"},
                    (char[]){"-fc"}, (char[]){"-J2"},     (char[]){"--fault="}, NULL};
    struct opts opts;
    struct err err = ERR_INIT;
    cr_assert_eq(opts_parse(&opts, rows, &target, 7, argv, &err), 0, "%s", err.text);
    cr_assert_eq(target.list.count, 3);
    cr_expect_str_eq(target.list.items[0], "a,b=1");
    cr_expect_str_eq(target.list.items[1], "c");
    cr_expect_str_eq(target.list.items[2], "");
    cr_expect_str_eq(target.json, "2");
    opts_release(&opts);
    cr_expect_eq(target.list.count, 0);
}

/* Two tables on two parts of one target: each row fills its own part. */
Test(opts, tables_join)
{
    struct pair {
        uint64_t first;
        struct {
            uint64_t before, value;
        } second;
    } pair = {0};
    static const struct opts_row first[] = {{"one", 'o', OPTS_UINT, 0, "1", "N", .help = "first"},
                                            {0}};
    static const struct opts_row second[] = {
        {"two", 't', OPTS_UINT, 8, "2", "N", .help = "second", .section = "Second"}, {0}};
    const struct opts_part parts[] = {{first, offsetof(struct pair, first)},
                                      {second, offsetof(struct pair, second)}};
    struct opts_row *rows = opts_join(parts, 2);
    struct opts opts;
    struct err err = ERR_INIT;
    char prog[] = "prog", option[] = "-t5";
    cr_assert_eq(opts_parse(&opts, rows, &pair, 2, (char *[]){prog, option}, &err), 0);
    cr_expect_eq(pair.first, 1);
    cr_expect_eq(pair.second.before, 0);
    cr_expect_eq(pair.second.value, 5);
    cr_expect(opts_is_set(&opts, "two") && !opts_is_set(&opts, "one"));
    opts_release(&opts);
    free(rows);
}

/* ---- output ---- */

enum {
    SIZE,
    COUNT,
    TYPE,
    REDOP,
    ROOT,
    TIME,
    ALGBW,
    BUSBW,
    WRONG,
    TIME_IN,
    ALGBW_IN,
    BUSBW_IN,
    WRONG_IN,
    OK,
    SAMPLES,
    NCOLUMNS
};

static const struct out_column COLUMNS[NCOLUMNS] = {
    {"size", "B", 12, .kind = OUT_UINT},
    {"count", "elements", 12, .kind = OUT_UINT},
    {"type", NULL, 8, .kind = OUT_TEXT},
    {"redop", NULL, 6, .kind = OUT_TEXT},
    {"root", NULL, 6, .kind = OUT_INT},
    {"time", "us", 7, 2, OUT_DOUBLE, NULL, "out-of-place"},
    {"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, "out-of-place"},
    {"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, "out-of-place"},
    {"wrong", NULL, 6, 0, OUT_UINT, "#wrong", "out-of-place"},
    {"time", "us", 7, 2, OUT_DOUBLE, NULL, "in-place"},
    {"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, "in-place"},
    {"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, "in-place"},
    {"wrong", NULL, 6, 0, OUT_UINT, "#wrong", "in-place"},
    {"ok", NULL, 0, .kind = OUT_BOOL},
    {"samples", "us", 0, .kind = OUT_DOUBLES}};

/* A new file name in a new folder; both go with forget(). */
static char *scratch(void)
{
    char folder[] = "/tmp/test_base.XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    return mem_printf("%s/out", folder);
}

static void forget(char *path)
{
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    free(path);
}

static char *content(const char *path)
{
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    char *text = NULL;
    size_t cap = 0;
    if (getdelim(&text, &cap, '\0', file) < 0) text[0] = '\0';
    fclose(file);
    return text;
}

/* Two rows; the second has unknown cells and a text that needs quotes. */
static void two_rows(struct out *out)
{
    static const double samples[] = {1.5, 2.25, NAN};
    out_row(out, (struct out_cell[NCOLUMNS]){
                     out_uint(1073741824), out_uint(268435456), out_text("float"), out_text("sum"),
                     out_int(-1), out_double(1234.25), out_double(42.5), out_double(74.375),
                     out_uint(0), out_double(123456.75), out_double(0.1), out_double(0.175),
                     out_uint(3), out_bool(true), out_doubles(samples, 3)});
    out_row(out, (struct out_cell[NCOLUMNS]){[SIZE] = out_uint(0),
                                             [TYPE] = out_text("a,\"b\""),
                                             [REDOP] = out_text(""),
                                             [TIME] = out_double(NAN),
                                             [ALGBW] = out_double(-INFINITY),
                                             [BUSBW_IN] = out_double(12345678.75)});
}

static char *written(enum out_format format)
{
    struct err err = ERR_INIT;
    char *path = scratch();
    struct out *out = out_new(COLUMNS, NCOLUMNS);
    cr_assert_eq(out_add(out, format, path, false, &err), 0);
    out_meta(out, "ranks", out_uint(8));
    out_meta(out, "seed", out_text("no utf-8: \xff"));
    out_note(out, "nThread 1");
    two_rows(out);
    out_note(out, "Out of bounds values : %d OK", 0);
    out_meta(out, "done", out_bool(true));
    cr_assert_eq(out_close(out, &err), 0);
    char *text = content(path);
    forget(path);
    return text;
}

Test(out, text_looks_like_nccl_tests)
{
    char *text = written(OUT_FORMAT_TEXT);
    cr_assert_str_eq(
        text,
        "# nThread 1\n"
        "#                                                              out-of-place           "
        "            in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
        "     (us)  (GB/s)  (GB/s)\n"
        "  1073741824     268435456     float     sum      -1  1234.25   42.50   74.38       0"
        "   123457    0.10    0.17       3\n"
        "           0           N/A     a,\"b\"             N/A      N/A     N/A     N/A     N/A"
        "      N/A     N/A  12345679     N/A\n"
        "# Out of bounds values : 0 OK\n");
    free(text);
}

Test(out, csv_quotes_and_leaves_the_unknown_empty)
{
    char *text = written(OUT_FORMAT_CSV);
    cr_assert_str_eq(
        text, "size_B,count_elements,type,redop,root,out_of_place_time_us,out_of_place_algbw_GBps,"
              "out_of_place_busbw_GBps,out_of_place_wrong,in_place_time_us,in_place_algbw_GBps,"
              "in_place_busbw_GBps,in_place_wrong,ok,samples_us\n"
              "1073741824,268435456,float,sum,-1,1234.25,42.5,74.375,0,123456.75,0.1,0.175,3,true,"
              "1.5;2.25;\n"
              "0,,\"a,\"\"b\"\"\",\"\",,,,,,,,12345678.75,,,\n");
    free(text);
}

Test(out, json_has_numbers_nulls_and_all_parts)
{
    char *text = written(OUT_FORMAT_JSON);
    json_error_t fault;
    json_t *all = json_loads(text, JSON_REJECT_DUPLICATES, &fault), *meta, *rows, *notes, *summary;
    cr_assert_not_null(all, "%s", fault.text);
    cr_assert_eq(json_unpack(all, "{s:o, s:o, s:o, s:o}", "meta", &meta, "rows", &rows, "notes",
                             &notes, "summary", &summary),
                 0);
    cr_expect_eq(json_integer_value(json_object_get(meta, "ranks")), 8);
    cr_expect_str_eq(json_string_value(json_object_get(meta, "seed")), "no utf-8: ?");
    cr_expect(json_is_true(json_object_get(summary, "done")));
    cr_expect_eq(json_array_size(notes), 2);
    cr_assert_eq(json_array_size(rows), 2);
    json_t *one = json_array_get(rows, 0), *two = json_array_get(rows, 1);
    cr_expect_eq(json_object_size(one), NCOLUMNS);
    cr_expect_eq(json_integer_value(json_object_get(one, "size_B")), 1073741824);
    cr_expect_eq(json_real_value(json_object_get(one, "in_place_time_us")), 123456.75);
    cr_expect(json_is_true(json_object_get(one, "ok")));
    cr_expect_eq(json_array_size(json_object_get(one, "samples_us")), 3);
    cr_expect(json_is_null(json_array_get(json_object_get(one, "samples_us"), 2)));
    cr_expect_str_eq(json_string_value(json_object_get(two, "type")), "a,\"b\"");
    cr_expect(json_is_null(json_object_get(two, "out_of_place_time_us")));
    cr_expect(json_is_null(json_object_get(two, "count_elements")));
    json_decref(all);
    free(text);
}

/* The file is read while the table is still open, as it would be found after a kill. */
Test(out, json_is_whole_after_each_row)
{
    static const struct out_column column[] = {{"n", NULL, 4, .kind = OUT_UINT}};
    struct err err = ERR_INIT;
    char *path = scratch();
    struct out *out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, path, false, &err), 0);
    for (uint64_t n = 1; n <= 5; n++) {
        if (n == 2) out_meta(out, "state", out_text("a long text that is replaced by a short one"));
        if (n == 4) out_meta(out, "state", out_text("x"));
        out_row(out, &(struct out_cell){.kind = OUT_UINT, .v.u = n});
        char *text = content(path);
        json_t *all = json_loads(text, 0, NULL);
        cr_assert_not_null(all, "after row %d: %s", (int)n, text);
        cr_expect_eq(json_array_size(json_object_get(all, "rows")), n);
        json_decref(all);
        free(text);
    }
    cr_assert_eq(out_close(out, &err), 0);
    json_t *all = json_load_file(path, 0, NULL);
    cr_assert_not_null(all);
    json_decref(all);
    forget(path);
}

Test(out, no_rows_still_give_a_valid_file)
{
    static const enum out_format formats[] = {OUT_FORMAT_TEXT, OUT_FORMAT_CSV, OUT_FORMAT_JSON};
    static const char *const expected[] = {
        "", "n_B\n", "{\"meta\": {},\n\"rows\": [\n],\n\"summary\": {},\n\"notes\": []}\n"};
    static const struct out_column column[] = {{"n", "B", 4, .kind = OUT_UINT}};
    for (int i = 0; i < 3; i++) {
        struct err err = ERR_INIT;
        char *path = scratch();
        struct out *out = out_new(column, 1);
        cr_assert_eq(out_add(out, formats[i], path, false, &err), 0);
        cr_assert_eq(out_close(out, &err), 0);
        char *text = content(path);
        cr_expect_str_eq(text, expected[i]);
        free(text);
        forget(path);
    }
}

Test(out, left_aligned_columns_and_no_units)
{
    static const struct out_column columns[] = {{"name", NULL, -8, .kind = OUT_TEXT},
                                                {"n", NULL, 3, .kind = OUT_UINT},
                                                {"about", NULL, -20, .kind = OUT_TEXT}};
    struct err err = ERR_INIT;
    char *path = scratch();
    struct out *out = out_new(columns, 3);
    cr_assert_eq(out_add(out, OUT_FORMAT_TEXT, path, false, &err), 0);
    out_row(out, (struct out_cell[]){out_text("ring"), out_uint(2), out_text("a ring")});
    out_row(out, (struct out_cell[]){out_text("rather long"), out_uint(12345), {0}});
    cr_assert_eq(out_close(out, &err), 0);
    char *text = content(path);
    cr_expect_str_eq(text,
                     "# name      n  about\nring        2  a ring\nrather long  12345  N/A\n");
    free(text);
    forget(path);
}

Test(out, an_existing_file_is_kept_unless_told)
{
    static const struct out_column column[] = {{"n", NULL, 4, .kind = OUT_UINT}};
    struct err err = ERR_INIT;
    char *path = scratch();
    FILE *file = fopen(path, "w");
    fputs("precious and long, longer than what is written over it, by far, it is to be hoped",
          file);
    fclose(file);
    struct out *out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, path, false, &err), -1);
    expect_fault(&err, path, "exists and is kept", "--overwrite");
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, "/no/such/folder/x", false, &err), -1);
    expect_fault(&err, "/no/such/folder/x", "cannot be written", "No such file");
    cr_assert_eq(out_close(out, &err), 0);
    char *text = content(path);
    cr_expect_eq(strncmp(text, "precious", 8), 0);
    free(text);

    out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_CSV, path, true, &err), 0);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, "/dev/null", false, &err), 0, "a device is no file");
    cr_assert_eq(out_add(out, OUT_FORMAT_TEXT, NULL, false, &err), 0);
    cr_assert_eq(out_add(out, OUT_FORMAT_CSV, "-", false, &err), -1);
    expect_fault(&err, "two outputs", "stdout", "file");
    cr_assert_eq(out_close(out, &err), 0);
    text = content(path);
    cr_expect_eq(strncmp(text, "precious", 8), 0, "refused: nothing is overwritten");
    free(text);

    out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_CSV, path, true, &err), 0);
    cr_assert_eq(out_close(out, &err), 0);
    text = content(path);
    cr_expect_str_eq(text, "n\n");
    free(text);
    forget(path);
}

Test(out, a_full_disk_is_reported)
{
    static const struct out_column column[] = {{"n", NULL, 4, .kind = OUT_UINT}};
    struct err err = ERR_INIT;
    struct out *out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_CSV, "/dev/full", false, &err), 0);
    out_row(out, &(struct out_cell){.kind = OUT_UINT, .v.u = 1});
    cr_assert_eq(out_close(out, &err), -1);
    cr_expect_eq(err.code, ERR_FAILED);
    cr_expect(strstr(err.text, "/dev/full could not be written in full: No space left"), "%s",
              err.text);
    err_release(&err);
}

/* A fault of any place leaves every file as it was: no new one, no emptied one. */
Test(out, a_refused_table_leaves_no_trace)
{
    static const struct out_column column[] = {{"n", NULL, 4, .kind = OUT_UINT}};
    struct err err = ERR_INIT;
    char *kept = scratch(), *fresh = scratch(), *link_to_fresh = scratch();
    FILE *file = fopen(kept, "w");
    fputs("precious", file);
    fclose(file);
    struct out *out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, kept, true, &err), 0);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, fresh, false, &err), 0);
    cr_assert_eq(out_add(out, OUT_FORMAT_CSV, fresh, true, &err), -1);
    expect_fault(&err, "two outputs name one file", fresh, "own");
    cr_assert_eq(symlink(fresh, link_to_fresh), 0);
    cr_assert_eq(out_add(out, OUT_FORMAT_CSV, link_to_fresh, true, &err), -1);
    expect_fault(&err, "two outputs name one file", fresh, link_to_fresh);
    out_note(out, "not written");
    out_row(out, &(struct out_cell){.kind = OUT_UINT, .v.u = 1});
    cr_expect_eq(out_close(out, &err), 0);
    char *text = content(kept);
    cr_expect_str_eq(text, "precious");
    cr_expect_neq(access(fresh, F_OK), 0);
    free(text);
    forget(kept);
    forget(fresh);
    forget(link_to_fresh);
}

/* The document is whole before the first row: a program killed there leaves valid JSON. */
Test(out, json_is_whole_from_the_start)
{
    static const struct out_column column[] = {{"n", NULL, 4, .kind = OUT_UINT}};
    struct err err = ERR_INIT;
    char *path = scratch();
    struct out *out = out_new(column, 1);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, path, false, &err), 0);
    for (int i = 0; i < 3; i++) {
        out_meta(out, "k", out_uint((uint64_t)i));
        out_note(out, "note %d", i);
        json_t *all = json_load_file(path, 0, NULL);
        cr_assert_not_null(all);
        cr_expect_eq(json_integer_value(json_object_get(json_object_get(all, "meta"), "k")), i);
        cr_expect_eq(json_array_size(json_object_get(all, "notes")), (size_t)i + 1);
        json_decref(all);
    }
    cr_assert_eq(out_close(out, &err), 0);
    forget(path);
}

static void json_to_stdout(void *unused)
{
    (void)unused;
    struct err err = ERR_INIT;
    struct out *out = out_new(COLUMNS, NCOLUMNS);
    cr_assert_eq(out_add(out, OUT_FORMAT_JSON, "-", false, &err), 0);
    two_rows(out);
    cr_assert_eq(out_close(out, &err), 0);
}

Test(out, json_goes_through_a_pipe)
{
    char *text = captured(STDOUT_FILENO, json_to_stdout, NULL);
    json_t *all = json_loads(text, 0, NULL);
    cr_assert_not_null(all, "%s", text);
    cr_expect_eq(json_array_size(json_object_get(all, "rows")), 2);
    json_decref(all);
    free(text);
}

Test(out, every_place_gets_everything)
{
    static const struct out_column column[] = {{"n", NULL, 4, .kind = OUT_UINT}};
    static const enum out_format formats[] = {OUT_FORMAT_TEXT, OUT_FORMAT_CSV, OUT_FORMAT_JSON,
                                              OUT_FORMAT_TEXT};
    static const char *const expected[] = {
        "# a\n#  n\n   1\n   2\n# b\n", "n\n1\n2\n",
        ("{\"meta\": {\"k\": 1},\n\"rows\": [\n{\"n\": 1},\n{\"n\": 2}\n],\n\"summary\": {},\n"
         "\"notes\": [\"a\", \"b\"]}\n"),
        "# a\n#  n\n   1\n   2\n# b\n"};
    struct err err = ERR_INIT;
    struct out *out = out_new(column, 1);
    char *paths[4];
    for (int i = 0; i < 4; i++) {
        paths[i] = scratch();
        cr_assert_eq(out_add(out, formats[i], paths[i], false, &err), 0);
    }
    out_meta(out, "k", out_uint(1));
    out_note(out, "a");
    out_row(out, &(struct out_cell){.kind = OUT_UINT, .v.u = 1});
    out_row(out, &(struct out_cell){.kind = OUT_UINT, .v.u = 2});
    out_note(out, "b");
    cr_assert_eq(out_close(out, &err), 0);
    for (int i = 0; i < 4; i++) {
        char *text = content(paths[i]);
        cr_expect_str_eq(text, expected[i]);
        free(text);
        forget(paths[i]);
    }
    cr_expect_eq(out_close(NULL, &err), 0);
}

/* ---- progress ---- */

/* What a run that is `age_s` old writes when stderr is the file descriptor. Freed by the caller. */
static char *progress_text(int writer, int reader, double age_s)
{
    int kept = dup(STDERR_FILENO);
    dup2(writer, STDERR_FILENO);
    struct progress progress;
    progress_init(&progress, "allreduce", 10);
    progress.start_s -= age_s;
    progress_step(&progress, 4, "1 MiB");
    progress_clear(&progress);
    dup2(kept, STDERR_FILENO);
    close(kept);
    char *text = mem_calloc(1024, 1);
    cr_assert_eq(write(writer, "!", 1), 1);
    for (size_t n = 0; n < 1023 && !strchr(text, '!'); n++)
        cr_assert_eq(read(reader, text + n, 1), 1);
    return text;
}

Test(progress, speaks_on_a_terminal_after_a_second_only)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), pipes[2];
    if (terminal < 0) cr_skip_test("no pseudo terminal");
    cr_assert(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int other = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    cr_assert_geq(other, 0);
    cr_assert_eq(pipe(pipes), 0);
    char *late = progress_text(other, terminal, 2000), *early = progress_text(other, terminal, -9),
         *piped = progress_text(pipes[1], pipes[0], 2000);
    cr_expect_str_eq(late, "\rallreduce: 4 of 10: 1 MiB, 2000 s\033[K\r\033[K!");
    cr_expect_str_eq(early, "!");
    cr_expect_str_eq(piped, "!");
    free(late);
    free(early);
    free(piped);
}

/* ---- random numbers ---- */

/* First outputs of splitmix64 with seed 1234567, and of xoshiro256** with state 1, 2, 3, 4, as
 * published with the reference code and used by other implementations' tests. */
Test(rng, matches_the_reference)
{
    static const uint64_t splitmix[] = {6457827717110365317u, 3203168211198807973u,
                                        9817491932198370423u, 4593380528125082431u,
                                        16408922859458223821u};
    uint64_t state = 1234567;
    for (int i = 0; i < 5; i++)
        cr_expect_eq(rng_mix(state += 0x9e3779b97f4a7c15u), splitmix[i]);
    static const uint64_t xoshiro[] = {
        11520u, 0u, 1509978240u, 1215971899390074240u, 1216172134540287360u, 607988272756665600u};
    struct rng rng = {{1, 2, 3, 4}};
    for (int i = 0; i < 6; i++)
        cr_expect_eq(rng_next(&rng), xoshiro[i]);
    struct rng seeded;
    rng_init(&seeded, 1234567);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(seeded.state[i], splitmix[i]);
}

Test(rng, below_is_even_and_unit_is_in_range)
{
    struct rng rng;
    rng_init(&rng, 0);
    unsigned counts[7] = {0};
    double sum = 0;
    for (int i = 0; i < 70000; i++) {
        uint64_t n = rng_below(&rng, 7);
        cr_assert_lt(n, 7);
        counts[n]++;
        double unit = rng_unit(&rng);
        cr_assert(unit >= 0 && unit < 1);
        sum += unit;
    }
    for (int i = 0; i < 7; i++)
        cr_expect(counts[i] > 9600 && counts[i] < 10400, "%u", counts[i]); /* 4 sigma */
    cr_expect_float_eq(sum / 70000, 0.5, 0.005);
    cr_expect_eq(rng_below(&rng, 1), 0);
    cr_expect_leq(rng_below(&rng, UINT64_MAX), UINT64_MAX - 1);
}
