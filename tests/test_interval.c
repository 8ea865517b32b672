/* SPDX-License-Identifier: Apache-2.0
 * Intervals of medians: how often they hold the true value, on correlated samples drawn with fixed
 * seeds, and the small and odd cases. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bench/interval.h"

enum { TRIALS = 300, LAUNCHES = 5 };
static const double TRUE_MEDIAN = 10;

static double normal(struct rng *rng)
{
    double radius = sqrt(-2 * log(1 - rng_unit(rng)));
    return radius * cos(6.283185307179586 * rng_unit(rng));
}

/* Log-normal samples around `median`; neighbours have the correlation `rho` on the logarithm. */
static void draw(struct rng *rng, double *samples, size_t n, double median, double sd, double rho)
{
    double z = normal(rng);
    for (size_t i = 0; i < n; i++) {
        samples[i] = median * exp(sd * z);
        z = rho * z + sqrt(1 - rho * rho) * normal(rng);
    }
}

static bool holds(const struct estimate *e, double value)
{
    return e->low <= value && value <= e->high;
}

/* ---- coverage ---- */

Test(interval, holds_the_true_median)
{
    static const struct {
        size_t n;
        double rho;
    } cases[] = {{10, 0}, {50, 0}, {50, 0.3}, {200, 0}, {200, 0.6}, {500, 0.8}, {1000, 0.9}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n = cases[c].n, held = 0;
        double *samples = mem_calloc(n, sizeof *samples);
        for (int t = 0; t < TRIALS; t++) {
            struct rng rng;
            rng_init(&rng, (uint64_t)t * 100 + c);
            draw(&rng, samples, n, TRUE_MEDIAN, 0.1, cases[c].rho);
            struct estimate e = estimate_median(samples, n);
            held += holds(&e, TRUE_MEDIAN);
        }
        free(samples);
        cr_expect(held * 100 >= 90 * TRIALS && held * 100 <= 99 * TRIALS,
                  "n %zu, rho %g: %zu of %d intervals hold the median", n, cases[c].rho, held,
                  TRIALS);
    }
}

/* The interval that takes the samples for independent: what the blocks are for. */
Test(interval, correlation_widens_it)
{
    enum { N = 1000 };
    double correlated[N], shuffled[N];
    struct rng rng;
    rng_init(&rng, 1);
    draw(&rng, correlated, N, TRUE_MEDIAN, 0.1, 0.9);
    for (size_t i = 0; i < N; i++) {
        size_t k = rng_below(&rng, i + 1);
        shuffled[i] = shuffled[k];
        shuffled[k] = correlated[i];
    }
    struct estimate wide = estimate_median(correlated, N), narrow = estimate_median(shuffled, N);
    cr_expect_eq(wide.value, narrow.value);
    cr_expect_gt(estimate_half_width(&wide), 2 * estimate_half_width(&narrow));
    cr_expect_lt(wide.dof, narrow.dof);
}

Test(interval, holds_the_true_ratio)
{
    enum { N = 200 };
    double a[N], b[N], common[N];
    size_t paired = 0, unpaired = 0, narrower = 0;
    for (int t = 0; t < TRIALS; t++) {
        struct rng rng;
        rng_init(&rng, (uint64_t)t);
        draw(&rng, common, N, 1, 0.2, 0.8);
        draw(&rng, a, N, TRUE_MEDIAN, 0.05, 0.3);
        draw(&rng, b, N, 1.5 * TRUE_MEDIAN, 0.05, 0.3);
        struct estimate u = estimate_unpaired(a, N, b, N);
        unpaired += holds(&u, 1.5);
        for (size_t i = 0; i < N; i++) { /* what disturbs the machine disturbs both */
            a[i] *= common[i];
            b[i] *= common[i];
        }
        struct estimate p = estimate_ratio(a, b, N);
        u = estimate_unpaired(a, N, b, N);
        paired += holds(&p, 1.5);
        narrower += estimate_half_width(&p) < estimate_half_width(&u);
    }
    cr_expect(paired * 100 >= 90 * TRIALS, "paired: %zu of %d", paired, TRIALS);
    cr_expect(unpaired * 100 >= 90 * TRIALS && unpaired * 100 <= 99 * TRIALS, "unpaired: %zu of %d",
              unpaired, TRIALS);
    cr_expect_eq(narrower, TRIALS);
}

Test(interval, holds_the_median_of_launches)
{
    double a[LAUNCHES], b[2 * LAUNCHES];
    size_t one = 0, ratio = 0, rejected = 0;
    for (int t = 0; t < TRIALS; t++) {
        struct rng rng;
        rng_init(&rng, (uint64_t)t);
        draw(&rng, a, LAUNCHES, TRUE_MEDIAN, 0.1, 0);
        draw(&rng, b, 2 * LAUNCHES, 0.5 * TRUE_MEDIAN, 0.02, 0);
        struct estimate e = estimate_launches(a, LAUNCHES);
        struct estimate r = estimate_launch_ratio(a, LAUNCHES, b, 2 * LAUNCHES);
        one += holds(&e, TRUE_MEDIAN);
        ratio += holds(&r, 0.5);
        cr_assert_eq(e.dof, LAUNCHES - 1);
        cr_assert(r.dof > LAUNCHES - 1 - 1e-9 && r.dof < 3 * LAUNCHES - 2);
        bool outside = !holds(&r, 0.5);
        rejected += outside;
        cr_assert_eq(outside, estimate_p(&r, 0.5) < 0.05); /* test and interval say the same */
    }
    cr_expect(one * 100 >= 90 * TRIALS && one * 100 <= 99 * TRIALS, "%zu of %d", one, TRIALS);
    cr_expect(ratio * 100 >= 90 * TRIALS && ratio * 100 <= 99 * TRIALS, "%zu of %d", ratio, TRIALS);
    cr_expect_eq(rejected, TRIALS - ratio);
}

/* ---- against figures worked out elsewhere ---- */

/* Logarithms 1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653. */
Test(interval, launches_by_hand)
{
    double medians[] = {exp(1), exp(2), exp(3)};
    struct estimate e = estimate_launches(medians, 3);
    cr_expect_float_eq(e.value, exp(2), 1e-9);
    cr_expect_float_eq(e.se_log, 1 / sqrt(3), 1e-12);
    cr_expect_float_eq(log(e.high), 2 + 4.302653 / sqrt(3), 1e-6);
    cr_expect_float_eq(log(e.low), 2 - 4.302653 / sqrt(3), 1e-6);
    cr_expect_eq(e.method, INTERVAL_LAUNCHES);
    /* t = 2 sqrt(3) with 2 degrees: p = 1 - t / sqrt(t^2 + 2) */
    cr_expect_float_eq(estimate_p(&e, 1), 1 - sqrt(12. / 14), 1e-9);
}

/* Welch: variances of the means 1/3 (of 1, 2, 3) and 1/2 (of 4, 5 on a scale of 1). */
Test(interval, welch_by_hand)
{
    double a[] = {exp(1), exp(2), exp(3)}, b[] = {exp(4), exp(5)};
    struct estimate r = estimate_launch_ratio(a, 3, b, 2);
    double va = 1. / 3, vb = 0.5 / 2;
    cr_expect_float_eq(log(r.value), 2.5, 1e-9);
    cr_expect_float_eq(r.se_log, sqrt(va + vb), 1e-12);
    cr_expect_float_eq(r.dof, (va + vb) * (va + vb) / (va * va / 2 + vb * vb / 1), 1e-9);
}

/* ---- small and odd ---- */

static void expect_none(struct estimate e, double value)
{
    cr_expect(isnan(value) ? isnan(e.value) : fabs(e.value / value - 1) < 1e-12, "%g", e.value);
    cr_expect(isnan(e.low) && isnan(e.high) && isnan(e.se_log) && isnan(e.dof));
    cr_expect(isnan(estimate_p(&e, 1)) && isnan(estimate_half_width(&e)));
    cr_expect_str_eq(interval_method_name(e.method), "none");
}

/* Class 0: logarithms 1, 2 against 2; class 1: 5 against 7, 8. Weights 2/3 each, so the difference
 * is (0.5 + 2.5) / 2; squares 0.5 + 0.5 with 2 degrees of freedom. */
Test(interval, classes_by_hand)
{
    const double b[] = {exp(1), exp(5), exp(2)}, o[] = {exp(7), exp(2), exp(8)};
    const unsigned bc[] = {0, 1, 0}, oc[] = {1, 0, 1}, far[] = {1, 1, 1}, near[] = {0, 0, 0};
    struct launches base = {b, bc, 3}, other = {o, oc, 3};
    double value;
    struct estimate r = estimate_launch_ratio_within(&base, &other, 2, &value);
    cr_expect_float_eq(log(r.value), 1.5, 1e-12);
    cr_expect_float_eq(log(value), 3.25, 1e-12);
    cr_expect_float_eq(r.se_log, sqrt(1 / 2. / (4 / 3.)), 1e-12);
    cr_expect_eq(r.dof, 2);
    base.n = other.n = 2; /* one launch per cell: nothing scatters */
    expect_none(estimate_launch_ratio_within(&base, &other, 2, &value), exp((1 + 2) / 2.));
    base.classes = near;
    other.classes = far; /* none to compare with */
    expect_none(estimate_launch_ratio_within(&base, &other, 2, &value), NAN);
    cr_expect(isnan(value));
}

/* What differs between classes is not in the interval, whatever their shares. */
Test(interval, classes_hold_the_ratio)
{
    const unsigned bc[LAUNCHES] = {0, 0, 0, 1, 1}, oc[LAUNCHES] = {1, 0, 1, 1, 0};
    size_t held = 0;
    for (int t = 0; t < TRIALS; t++) {
        double b[LAUNCHES], o[LAUNCHES], value;
        struct rng rng;
        rng_init(&rng, (uint64_t)t);
        draw(&rng, b, LAUNCHES, 10, 0.02, 0);
        draw(&rng, o, LAUNCHES, 11, 0.02, 0);
        for (int i = 0; i < LAUNCHES; i++) {
            b[i] *= bc[i] ? 4 : 1;
            o[i] *= oc[i] ? 4 : 1;
        }
        struct launches base = {b, bc, LAUNCHES}, other = {o, oc, LAUNCHES};
        struct estimate r = estimate_launch_ratio_within(&base, &other, 2, &value);
        held += holds(&r, 1.1);
        cr_assert_lt(estimate_half_width(&r), 0.1);
    }
    cr_expect(held * 100 >= 90 * TRIALS && held * 100 <= 99 * TRIALS, "%zu of %d", held, TRIALS);
}

Test(interval, few_samples)
{
    double samples[] = {3, 1, 2, 5, 4, 7};
    expect_none(estimate_median(NULL, 0), NAN);
    expect_none(estimate_ratio(NULL, NULL, 0), NAN);
    expect_none(estimate_launches(NULL, 0), NAN);
    expect_none(estimate_unpaired(samples, 5, NULL, 0), NAN);
    for (size_t n = 1; n < INTERVAL_SAMPLES_MIN; n++)
        expect_none(estimate_median(samples, n), n == 1 ? 3 : n == 2 ? 1 : 2);
    expect_none(estimate_ratio(samples, samples + 1, 2), 1);
    expect_none(estimate_launches(samples, 1), 3);
    expect_none(estimate_launch_ratio(samples, 1, samples, 3), cbrt(6) / 3);
    struct estimate e = estimate_median(samples, 5);
    cr_expect_eq(e.value, 3);
    cr_expect(e.low <= 1 && e.high >= 5, "%g..%g", e.low, e.high); /* all that was seen */
    cr_expect_str_eq(interval_method_name(e.method), "block bootstrap");
}

/* The median is the sample that stats.h names, wherever it stands and however many are equal. */
Test(interval, median_by_rank)
{
    double samples[101];
    for (size_t n = 5; n <= 101; n++) {
        for (size_t i = 0; i < n; i++)
            samples[i] = 1 + (double)((i * 37) % n); /* 1..n, as 37 has no factor in common */
        if (n % 37 == 0) continue;
        struct estimate e = estimate_median(samples, n);
        cr_expect_eq(e.value, (double)((n + 1) / 2), "n %zu: %g", n, e.value);
        cr_expect(e.low <= e.value && e.value <= e.high && e.low > 0 && e.se_log > 0);
    }
}

Test(interval, equal_samples)
{
    double same[40], zeros[40] = {0};
    for (size_t i = 0; i < 40; i++)
        same[i] = 0.25;
    struct estimate e = estimate_median(same, 40), r = estimate_unpaired(same, 40, same, 40);
    cr_expect(e.value == 0.25 && e.low == 0.25 && e.high == 0.25 && e.se_log == 0);
    cr_expect(r.value == 1 && estimate_p(&r, 1) == 1 && estimate_p(&r, 1.1) == 0);
    cr_expect_eq(estimate_half_width(&r), 0);
    expect_none(estimate_median(zeros, 40), NAN);
    expect_none(estimate_launches(zeros, 3), NAN);
    expect_none(estimate_ratio(zeros, same, 40), NAN);
}

/* Two states of the machine, one after the other: five times 200 samples are no 1000 facts. */
Test(interval, states_that_last)
{
    enum { N = 1000 };
    double samples[N];
    struct rng rng;
    rng_init(&rng, 3);
    for (size_t i = 0; i < N; i++)
        samples[i] = (i / 200 % 2 ? 20 : 10) * exp(0.01 * normal(&rng));
    struct estimate e = estimate_median(samples, N);
    cr_expect(e.low < 11 && e.high > 19, "%g in %g..%g", e.value, e.low, e.high);
}

/* The unit does not matter, the same samples give the same answer, and swapping turns a ratio. */
Test(interval, units_and_order)
{
    enum { N = 300 };
    double a[N], b[N], scaled[N];
    struct rng rng;
    rng_init(&rng, 7);
    draw(&rng, a, N, 3, 0.2, 0.5);
    draw(&rng, b, N, 4, 0.1, 0.5);
    for (size_t i = 0; i < N; i++)
        scaled[i] = a[i] * 1024; /* exact */
    struct estimate e = estimate_median(a, N), s = estimate_median(scaled, N);
    struct estimate again = estimate_median(a, N);
    cr_expect(e.low == again.low && e.high == again.high);
    cr_expect_float_eq(s.low / e.low, 1024, 1e-9);
    cr_expect_float_eq(s.se_log, e.se_log, 1e-12);
    struct estimate ab = estimate_unpaired(a, N, b, N), ba = estimate_unpaired(b, N, a, N);
    cr_expect_float_eq(ab.low * ba.high, 1, 1e-12);
    cr_expect_float_eq(estimate_p(&ab, 1), estimate_p(&ba, 1), 1e-12);
}

/* More samples, a narrower interval; a p value falls as the other value moves away. */
Test(interval, grows_and_falls)
{
    enum { N = 3200 };
    double *samples = mem_calloc(N, sizeof *samples), before = INFINITY;
    struct rng rng;
    rng_init(&rng, 5);
    draw(&rng, samples, N, TRUE_MEDIAN, 0.1, 0.3);
    for (size_t n = 50; n <= N; n *= 4) {
        struct estimate e = estimate_median(samples, n);
        cr_expect_lt(estimate_half_width(&e), before, "n %zu", n);
        before = estimate_half_width(&e);
    }
    struct estimate e = estimate_median(samples, N);
    double p = 1;
    for (double value = e.value; value < 1.02 * e.value; value *= 1.002) {
        cr_expect(estimate_p(&e, value) <= p);
        p = estimate_p(&e, value);
    }
    cr_expect_lt(p, 1e-3);
    free(samples);
}
