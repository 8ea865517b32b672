/* SPDX-License-Identifier: Apache-2.0
 * Tests of kernels/data.h: right results are accepted whatever the order of the additions, and
 * every kind of wrong one is seen: a contribution lost or come twice, data of another rank, place,
 * pass or run, and an output never written. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/data.h"

enum { COUNT = 600, MOST_RANKS = 64 };

static const uint32_t rank_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 64};
enum { NRANK_COUNTS = sizeof rank_counts / sizeof rank_counts[0] };

/* Positions from here on cross 2^32 and start in the middle of a block. */
static const uint64_t first = (UINT64_C(1) << 32) - 301;

/* One setting: everything but the salt. */
struct setting {
    enum dtype dtype;
    enum redop op;
    uint32_t nranks;
};

#define BOX(s) dtype_name((s).dtype), redop_name((s).op), (s).nranks

static size_t esize(struct setting s)
{
    return dtype_bytes(s.dtype);
}

/* All settings: calls `body` for each. */
static void for_all_settings(void (*body)(struct setting s))
{
    for (unsigned i = 0; i < NRANK_COUNTS * DT_COUNT * OP_COUNT; i++) {
        struct setting s = {.dtype = i % DT_COUNT,
                            .op = i / DT_COUNT % OP_COUNT,
                            .nranks = rank_counts[i / (DT_COUNT * OP_COUNT)]};
        body(s);
    }
}

/* out = out (+) in, for the average divided by nranks if `last`. */
static void add(struct setting s, void *out, const void *in, bool last)
{
    struct fold fold = {.in = {out, in},
                        .out = {out},
                        .nin = 2,
                        .nout = 1,
                        .divisor = last ? s.nranks : 1,
                        .count = COUNT};
    struct err err = ERR_INIT;
    kernels_get(&err)->fold[s.dtype][s.op](&fold);
}

static uint32_t inputs[MOST_RANKS][COUNT];

static void fill_inputs(struct setting s, uint64_t salt)
{
    for (uint32_t r = 0; r < s.nranks; r++) {
        data_fill(inputs[r], s.dtype, s.op, s.nranks, r, first, COUNT, salt);
    }
}

/* The reduction of inputs[order[0]], [order[1]], .. one by one. */
static void reduce(struct setting s, const uint32_t *order, uint32_t n, void *out)
{
    memcpy(out, inputs[order[0]], COUNT * esize(s));
    for (uint32_t i = 1; i < n; i++) {
        add(s, out, inputs[order[i]], i + 1 == n);
    }
}

static void shuffled(struct rng *rng, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)rng_below(rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

static size_t check(struct setting s, const void *buf, uint64_t salt, struct data_bad *bad)
{
    return data_check_reduced(buf, s.dtype, s.op, s.nranks, first, COUNT, salt, bad);
}

static bool differ(struct setting s, const void *a, const void *b, size_t i)
{
    return memcmp((const uint8_t *)a + i * esize(s), (const uint8_t *)b + i * esize(s), esize(s));
}

/* Elements of a that are not those of b. */
static size_t differences(struct setting s, const void *a, const void *b)
{
    size_t n = 0;
    for (size_t i = 0; i < COUNT; i++) {
        n += differ(s, a, b, i);
    }
    return n;
}

/* ---- right results ---- */

static void right_in_any_order(struct setting s)
{
    struct rng rng;
    rng_init(&rng, s.nranks);
    uint32_t out[COUNT], order[MOST_RANKS];
    for (uint64_t salt = 40; salt < 43; salt++) {
        fill_inputs(s, salt);
        for (int round = 0; round < 5; round++) {
            struct data_bad bad = {0};
            shuffled(&rng, s.nranks, order);
            reduce(s, order, s.nranks, out);
            size_t wrong = check(s, out, salt, &bad);
            cr_assert_eq(wrong, 0, "%s %s %u ranks: %zu wrong, at %zu expected %g, got %g", BOX(s),
                         wrong, bad.index, bad.expected, bad.got);
        }
    }
}

Test(data, right_results_in_any_order)
{
    for_all_settings(right_in_any_order);
}

/* As trees add: pairs, pairs of pairs, .. in bfloat16 too every partial sum is exact. */
Test(data, right_results_of_trees)
{
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        struct setting s = {.dtype = dtype, .op = OP_AVG, .nranks = MOST_RANKS};
        struct data_bad bad = {0};
        fill_inputs(s, 7);
        for (uint32_t half = MOST_RANKS / 2; half > 0; half /= 2) {
            for (uint32_t r = 0; r < half; r++) {
                add(s, inputs[r], inputs[r + half], half == 1);
            }
        }
        cr_assert_eq(check(s, inputs[0], 7, &bad), 0, "%s", dtype_name(dtype));
    }
}

Test(data, nothing_is_right)
{
    struct data_bad bad = {.index = 5};
    data_fill(NULL, DT_FLOAT, OP_SUM, 3, 0, 0, 0, 1);
    data_poison(NULL, 0, 1);
    cr_assert_eq(data_check_reduced(NULL, DT_FLOAT, OP_SUM, 3, 0, 0, 1, &bad), 0);
    cr_assert_eq(data_check_copy(NULL, DT_FLOAT, OP_COUNT, 3, 0, 0, 0, 1, &bad), 0);
    cr_assert_eq(bad.index, 5);
}

/* A part of the data is what the whole has there, wherever it is cut. */
Test(data, parts_are_cut_from_the_whole)
{
    uint32_t whole[COUNT], part[COUNT];
    for (unsigned op = 0; op <= OP_COUNT; op++) {
        data_fill(whole, DT_FLOAT, op, 11, 4, first, COUNT, 3);
        for (size_t off = 0; off < COUNT; off += 37) {
            size_t n = off % 5 ? 1 : COUNT - off;
            data_fill(part, DT_FLOAT, op, 11, 4, first + off, n, 3);
            cr_assert_arr_eq(part, whole + off, n * sizeof *part);
        }
    }
}

/* ---- what an input looks like ---- */

static double value(struct setting s, const void *buf, size_t i)
{
    if (s.dtype == DT_FLOAT) return (double)((const float *)buf)[i];
    if (s.dtype == DT_INT32) return ((const int32_t *)buf)[i];
    return (double)bf16_to_float(((const uint16_t *)buf)[i]);
}

/* The largest |sum| that is exact, and whose average over nranks differs in the type from that of
 * every other sum up to there (integers: of the multiples of nranks). */
static double largest_sum(struct setting s)
{
    if (s.dtype == DT_INT32) return 0x1p30;
    double exact = s.dtype == DT_FLOAT ? 0x1p24 : 0x1p8;
    return s.op == OP_AVG ? exact / 2 : exact;
}

static void few_at_a_time_all_in_turn(struct setting s)
{
    if (s.op == OP_MAX) return;
    uint32_t groups = (s.nranks + 7) / 8, most = (s.nranks + groups - 1) / groups;
    double limit = largest_sum(s) / (most + 1); /* one may come twice */
    static bool seen[MOST_RANKS][COUNT];
    size_t negative = 0, positive = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t round = 0; round < data_rounds(s.op, s.nranks); round++) {
        fill_inputs(s, 1000 + round);
        for (size_t i = 0; i < COUNT; i++) {
            uint32_t active = 0;
            for (uint32_t r = 0; r < s.nranks; r++) {
                double v = value(s, inputs[r], i);
                active += v != 0;
                seen[r][i] |= v != 0;
                negative += v < 0;
                positive += v > 0;
                cr_assert(v <= limit && -v <= limit, "%s %s %u ranks: %g", BOX(s), v);
            }
            cr_assert(active >= 1 && active <= most, "%s %s %u ranks: %u active", BOX(s), active);
        }
    }
    for (uint32_t r = 0; r < s.nranks; r++) {
        for (size_t i = 0; i < COUNT; i++) {
            cr_assert(seen[r][i], "%s %s %u ranks: rank %u never active at %zu", BOX(s), r, i);
        }
    }
    cr_assert(negative > positive / 2 && positive > negative / 2);
}

Test(data, at_most_eight_ranks_at_a_time_and_all_in_turn)
{
    for_all_settings(few_at_a_time_all_in_turn);
}

static void all_ranks_distinct(struct setting s)
{
    if (s.op != OP_MAX) return;
    fill_inputs(s, 5);
    for (uint32_t a = 0; a < s.nranks; a++) {
        for (uint32_t b = 0; b < a; b++) {
            cr_assert_eq(differences(s, inputs[a], inputs[b]), COUNT, "%s %s %u ranks", BOX(s));
        }
    }
}

Test(data, maximum_has_distinct_ranks)
{
    for_all_settings(all_ranks_distinct);
}

Test(data, maximum_of_more_ranks_than_bfloat16_has_values)
{
    enum { RANKS = 100000 };
    struct setting s = {.dtype = DT_BFLOAT16, .op = OP_MAX, .nranks = RANKS};
    uint16_t out[COUNT] = {0};
    struct data_bad bad = {0};
    data_fill(out, s.dtype, s.op, RANKS, 0, first, COUNT, 1);
    for (uint32_t r = 1; r < RANKS; r += 1) {
        data_fill(inputs[0], s.dtype, s.op, RANKS, r, first, COUNT, 1);
        add(s, out, inputs[0], r + 1 == RANKS);
        if (r == RANKS / 2) cr_assert_gt(check(s, out, 1, &bad), 0);
    }
    cr_assert_eq(check(s, out, 1, &bad), 0);
}

Test(data, rounds)
{
    cr_assert_eq(data_rounds(OP_SUM, 1), 2);
    cr_assert_eq(data_rounds(OP_SUM, 16), 2);
    cr_assert_eq(data_rounds(OP_SUM, 17), 3);
    cr_assert_eq(data_rounds(OP_AVG, 64), 8);
    cr_assert_eq(data_rounds(OP_MAX, 64), 2);
    cr_assert_eq(data_rounds(OP_COUNT, 64), 2);
}

/* ---- wrong results ---- */

/* What a fault makes of the inputs: the ranks that are added, in order. */
typedef uint32_t fault_fn(uint32_t nranks, uint32_t rank, uint32_t *order);

static uint32_t lose(uint32_t nranks, uint32_t rank, uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        if (r != rank) order[n++] = r;
    }
    return n;
}

static uint32_t twice(uint32_t nranks, uint32_t rank, uint32_t *order)
{
    order[0] = rank;
    for (uint32_t r = 0; r < nranks; r++) {
        order[r + 1] = r;
    }
    return nranks + 1;
}

/* The fault of each rank is seen within the rounds: at every position for sum and avg; for max,
 * where a position shows only its winner, somewhere (and twice is no fault). The wrong elements
 * counted are those that differ from the right result, the first of them is named. */
static void fault_is_seen(struct setting s, fault_fn *fault)
{
    static uint32_t right[COUNT], out[COUNT], order[MOST_RANKS + 1];
    uint32_t rounds = s.op == OP_MAX ? s.nranks : data_rounds(s.op, s.nranks);
    static bool seen[MOST_RANKS][COUNT];
    memset(seen, 0, sizeof seen);
    for (uint32_t round = 0; round < rounds; round++) {
        fill_inputs(s, 77 + round);
        shuffled(&(struct rng){{1, 2, 3, 4}}, s.nranks, order);
        reduce(s, order, s.nranks, right);
        for (uint32_t rank = 0; rank < s.nranks; rank++) {
            struct data_bad bad = {0};
            reduce(s, order, fault(s.nranks, rank, order), out);
            size_t wrong = check(s, out, 77 + round, &bad);
            cr_assert_eq(wrong, differences(s, out, right), "%s %s %u ranks", BOX(s));
            for (size_t i = COUNT; i-- > 0;) {
                if (!differ(s, out, right, i)) continue;
                seen[rank][i] = true;
                cr_assert_geq(i, bad.index);
                if (i > bad.index) continue;
                cr_assert_eq(bad.expected, value(s, right, i));
                cr_assert_eq(bad.got, value(s, out, i));
            }
        }
    }
    for (uint32_t rank = 0; rank < s.nranks; rank++) {
        for (size_t i = 0; i < COUNT; i++) {
            cr_assert(seen[rank][i], "%s %s %u ranks: rank %u at %zu", BOX(s), rank, i);
        }
    }
}

static void loss_is_seen(struct setting s)
{
    if (s.nranks > 1) fault_is_seen(s, lose);
}

static void duplicate_is_seen(struct setting s)
{
    if (s.op != OP_MAX) fault_is_seen(s, twice);
}

Test(data, a_lost_contribution_is_seen)
{
    for_all_settings(loss_is_seen);
}

Test(data, a_contribution_that_comes_twice_is_seen)
{
    for_all_settings(duplicate_is_seen);
}

/* A rank's data in the place of another's: one twice, one lost. */
static void replacement_is_seen(struct setting s)
{
    if (s.nranks < 2) return;
    uint32_t out[COUNT], order[MOST_RANKS];
    for (uint32_t rank = 0; rank < s.nranks; rank++) {
        size_t wrong = 0;
        for (uint64_t salt = 0; salt < data_rounds(s.op, s.nranks); salt++) {
            struct data_bad bad;
            fill_inputs(s, salt);
            shuffled(&(struct rng){{5, 6, 7, 8}}, s.nranks, order);
            for (uint32_t i = 0; i < s.nranks; i++) {
                if (order[i] == rank) order[i] = (rank + 1) % s.nranks;
            }
            reduce(s, order, s.nranks, out);
            wrong += check(s, out, salt, &bad);
        }
        cr_assert_gt(wrong, s.op == OP_MAX ? 0 : COUNT / 2, "%s %s %u ranks: rank %u in %zu",
                     BOX(s), rank, wrong);
    }
}

Test(data, a_contribution_in_place_of_another_is_seen)
{
    for_all_settings(replacement_is_seen);
}

/* The right reduction, but of another place or another run: nearly every element is wrong. */
static void misplaced_is_seen(struct setting s)
{
    static const struct {
        int64_t shift; /* positions */
        int64_t salt;
    } faults[] = {{1, 0}, {-1, 0}, {256, 0}, {-4096, 0}, {1LL << 32, 0}, {0, -1}, {0, 1}, {0, 2}};
    uint32_t out[COUNT], order[MOST_RANKS];
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++) {
        for (uint32_t r = 0; r < s.nranks; r++) {
            data_fill(inputs[r], s.dtype, s.op, s.nranks, r, first + (uint64_t)faults[f].shift,
                      COUNT, 300 + (uint64_t)faults[f].salt);
            order[r] = r;
        }
        struct data_bad bad;
        reduce(s, order, s.nranks, out);
        size_t wrong = check(s, out, 300, &bad);
        cr_assert_gt(wrong, COUNT * 9 / 10, "%s %s %u ranks: fault %zu in %zu", BOX(s), f, wrong);
    }
}

Test(data, reductions_of_another_place_or_run_are_seen)
{
    for_all_settings(misplaced_is_seen);
}

static void poison_is_seen(struct setting s)
{
    uint32_t out[COUNT], order[MOST_RANKS], poison[COUNT];
    struct data_bad bad = {0};
    fill_inputs(s, 8);
    shuffled(&(struct rng){{1, 2, 3, 4}}, s.nranks, order);
    for (uint64_t salt = 0; salt < 5; salt++) {
        data_poison(poison, sizeof poison, salt);
        cr_assert_eq(check(s, poison, 8, &bad), COUNT);
        cr_assert_eq(bad.index, 0);
        for (size_t at = 0; at < COUNT; at += 119) {
            reduce(s, order, s.nranks, out);
            memcpy((uint8_t *)out + at * esize(s), poison, esize(s));
            cr_assert_eq(check(s, out, 8, &bad), 1, "%s %s %u ranks", BOX(s));
            cr_assert_eq(bad.index, at);
        }
    }
}

Test(data, poison_is_seen)
{
    for_all_settings(poison_is_seen);
}

Test(data, poison_fills_every_byte)
{
    for (size_t bytes = 0; bytes < 20; bytes++) {
        uint8_t buf[24] = {0};
        data_poison(buf, bytes, 1);
        for (size_t i = 0; i < sizeof buf; i++) {
            cr_assert_eq(buf[i] != 0, i < bytes);
        }
    }
}

/* Any single bit of the output counts. */
Test(data, every_bit_counts)
{
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        struct setting s = {.dtype = dtype, .op = OP_SUM, .nranks = 3};
        uint32_t order[] = {0, 1, 2};
        uint8_t out[COUNT * 4];
        struct data_bad bad;
        fill_inputs(s, 2);
        reduce(s, order, 3, out);
        for (size_t bit = 0; bit < 8 * COUNT * esize(s); bit += 7) {
            out[bit / 8] ^= (uint8_t)(1u << bit % 8);
            cr_assert_eq(check(s, out, 2, &bad), 1);
            cr_assert_eq(bad.index, bit / 8 / esize(s));
            out[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        cr_assert_eq(check(s, out, 2, &bad), 0);
    }
}

/* ---- copies ---- */

static size_t check_copy(struct setting s, uint32_t rank, const void *buf, uint64_t salt)
{
    struct data_bad bad = {0};
    return data_check_copy(buf, s.dtype, s.op, s.nranks, rank, first, COUNT, salt, &bad);
}

/* No operator: any other rank, place or run differs nearly everywhere (in 15 bits of bfloat16 a
 * stray element may agree). */
Test(data, copies)
{
    for (unsigned i = 0; i < NRANK_COUNTS * DT_COUNT; i++) {
        struct setting s = {i % DT_COUNT, OP_COUNT, rank_counts[i / DT_COUNT]};
        size_t most = s.dtype == DT_BFLOAT16 ? COUNT - 5 : COUNT;
        uint32_t other[COUNT];
        fill_inputs(s, 21);
        for (uint32_t r = 0; r < s.nranks; r++) {
            cr_assert_eq(check_copy(s, r, inputs[r], 21), 0);
            uint32_t next = (r + 1) % s.nranks;
            if (next != r) cr_assert_geq(check_copy(s, next, inputs[r], 21), most);
            cr_assert_geq(check_copy(s, r, inputs[r], 20), most);
            cr_assert_geq(check_copy(s, r, inputs[r], 22), most);
            data_fill(other, s.dtype, s.op, s.nranks, r, first + 1, COUNT, 21);
            cr_assert_geq(check_copy(s, r, other, 21), most);
            data_fill(other, s.dtype, s.op, s.nranks, r, first + (1LL << 32), COUNT, 21);
            cr_assert_geq(check_copy(s, r, other, 21), most);
            data_poison(other, sizeof other, 21);
            cr_assert_eq(check_copy(s, r, other, 21), COUNT);
        }
    }
}

/* The inputs of a reduction can be checked as copies too (inputs must stay unchanged); over the
 * rounds another rank's are seen. */
static void inputs_as_copies(struct setting s)
{
    for (uint32_t r = 0; r < s.nranks; r++) {
        size_t wrong = 0;
        for (uint64_t salt = 0; salt < data_rounds(s.op, s.nranks); salt++) {
            data_fill(inputs[r], s.dtype, s.op, s.nranks, r, first, COUNT, salt);
            cr_assert_eq(check_copy(s, r, inputs[r], salt), 0);
            wrong += check_copy(s, (r + 1) % s.nranks, inputs[r], salt);
        }
        if (s.nranks > 1) cr_assert_gt(wrong, COUNT / 2);
    }
}

Test(data, inputs_of_reductions_as_copies)
{
    for_all_settings(inputs_as_copies);
}
