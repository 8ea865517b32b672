/* SPDX-License-Identifier: Apache-2.0
 * Traffic matrices: files, imbalance, dealing, offsets. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sched/traffic.h"

static double *read_text(const char *text, uint32_t nranks, struct err *err)
{
    char path[] = "/tmp/traffic-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    double *shares = traffic_read(path, nranks, err);
    unlink(path);
    return shares;
}

Test(traffic, a_file_is_read_row_by_row)
{
    struct err err = ERR_INIT;
    double *shares = read_text("# who to whom\n0 1,2\n\n3;0 1e3 # hot\n0\t0 0\n", 3, &err);
    cr_assert_not_null(shares, "%s", err.text);
    const double wanted[] = {0, 1, 2, 3, 0, 1000, 0, 0, 0};
    for (size_t i = 0; i < 9; i++)
        cr_assert_eq(shares[i], wanted[i]);
    free(shares);
}

Test(traffic, a_broken_file_is_one_sentence_with_its_line)
{
    static const struct {
        const char *text, *says;
        uint32_t nranks;
    } broken[] = {
        {"1 2\n3\n", ":2: 1 numbers, but with 2 ranks a row has 2", 2},
        {"1 2\n3 x\n", ":2: 'x' is no share", 2},
        {"1 2\n3 -1\n", ":2: '-1' is no share", 2},
        {"1 nan\n3 1\n", ":1: 'nan' is no share", 2},
        {"1 inf\n3 1\n", ":1: 'inf' is no share", 2},
        {"1 2\n", "1 rows, but with 2 ranks there are 2", 2},
        {"1 2\n3 4\n5 6\n", "3 rows, but with 2 ranks there are 2", 2},
        {"0 0\n0 0\n", "add up to 0", 2},
        {"", "0 rows", 1},
        {"1 1 1 1 1 1\n", ":1: 6 numbers", 1},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct err err = ERR_INIT;
        cr_expect_null(read_text(broken[i].text, broken[i].nranks, &err));
        cr_expect_eq(err.code, ERR_USAGE);
        cr_expect_eq(err.count, 1);
        cr_expect_not_null(strstr(err.text, broken[i].says), "%s", err.text);
        err_release(&err);
    }
    struct err err = ERR_INIT;
    cr_expect_null(traffic_read("/nowhere/at/all", 2, &err));
    cr_expect_not_null(strstr(err.text, "/nowhere/at/all"));
    err_release(&err);
}

Test(traffic, what_is_dealt_is_all_and_in_proportion)
{
    struct rng rng;
    rng_init(&rng, 5);
    for (uint32_t n = 1; n <= 9; n++) {
        size_t pairs = (size_t)n * n;
        for (int turn = 0; turn < 20; turn++) {
            double *shares = mem_calloc(pairs, sizeof *shares), sum = 0;
            for (size_t i = 0; i < pairs; i++)
                shares[i] = (double)rng_below(&rng, 5);
            shares[rng_below(&rng, pairs)] += 1;
            for (size_t i = 0; i < pairs; i++)
                sum += shares[i];
            uint64_t total = rng_below(&rng, 10000), dealt = 0;
            struct traffic *traffic = traffic_deal(n, shares, total);
            for (size_t i = 0; i < pairs; i++) {
                double exact = (double)total * shares[i] / sum;
                double off = (double)traffic->elements[i] - exact;
                cr_assert(off > -1 && off < 1);
                cr_assert(shares[i] > 0 || traffic->elements[i] == 0);
                dealt += traffic->elements[i];
            }
            cr_assert_eq(dealt, total);
            free(traffic);
            free(shares);
        }
    }
}

Test(traffic, imbalance_is_the_load_of_rank_0_over_the_mean)
{
    enum { N = 4, TOTAL = 16000 };
    double shares[N * N];
    for (double factor = 1; factor <= N; factor += 0.5) {
        traffic_imbalance(N, factor, shares);
        struct traffic *traffic = traffic_deal(N, shares, TOTAL);
        cr_assert_float_eq((double)traffic_sum(traffic, BUF_OUT, 0), factor * TOTAL / N, 4);
        for (uint32_t r = 0; r < N; r++)
            cr_assert_float_eq((double)traffic_sum(traffic, BUF_IN, r), TOTAL / N, 4);
        cr_assert_eq(traffic_largest(traffic, BUF_OUT), traffic_sum(traffic, BUF_OUT, 0));
        free(traffic);
    }
    traffic_imbalance(1, 1, shares);
    cr_assert_eq(shares[0], 1);
}

Test(traffic, busbw_counts_the_busiest_rank)
{
    double shares[16];
    traffic_imbalance(4, 1, shares);
    cr_assert_float_eq(traffic_busbw(4, shares), 0.75, 1e-12);
    traffic_imbalance(4, 4, shares);
    cr_assert_float_eq(traffic_busbw(4, shares), 3, 1e-12); /* three inputs arrive at rank 0 */
    const double own[] = {1, 0, 0, 0}, one[] = {0, 0, 2, 0};
    cr_assert_eq(traffic_busbw(2, own), 0);
    cr_assert_eq(traffic_busbw(2, one), 2);
    char *text = traffic_text(2, one);
    cr_assert_str_eq(text, "0 0; 2 0");
    free(text);
}

Test(traffic, offsets_add_up_rows_and_columns)
{
    const double shares[] = {4, 0, 1, 2, 2, 2, 0, 3, 0};
    struct traffic *traffic = traffic_deal(3, shares, 14);
    size_t *in = traffic_offsets(traffic, BUF_IN, 1, 8);
    size_t *out = traffic_offsets(traffic, BUF_OUT, 1, 8);
    const size_t want_in[] = {0, 16, 32, 48}, want_out[] = {0, 0, 16, 40};
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(in[i], want_in[i]);
        cr_assert_eq(out[i], want_out[i]);
    }
    cr_assert_eq(traffic_longest(traffic), 4);
    free(in);
    free(out);
    free(traffic);
}
