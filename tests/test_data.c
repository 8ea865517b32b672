/* SPDX-License-Identifier: Apache-2.0
 * Tests of kernels/data.h: right results are accepted whatever the order of the additions, and
 * every kind of wrong one is seen: a contribution lost or come twice, data of another rank, place,
 * pass or run, and an output never written. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/data.h"

enum { COUNT = 600, MOST_RANKS = 64 };

static const uint32_t rank_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,
                                       10, 11, 12, 13, 14, 15, 16, 17, 64};
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

static bool is_integer(struct setting s)
{
    return s.dtype <= DT_UINT64;
}

/* Only the extreme shows. */
static bool is_extreme(struct setting s)
{
    return s.op == OP_MAX || s.op == OP_MIN;
}

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

static uint64_t inputs[MOST_RANKS][COUNT];

static void fill_inputs(struct setting s, uint64_t salt)
{
    for (uint32_t r = 0; r < s.nranks; r++) {
        data_fill(inputs[r], s.dtype, s.op, s.nranks, r, first, COUNT, salt);
    }
}

/* The reduction of inputs[order[0]], [order[1]], .. one by one; an average of one that is left of
 * two is divided too. */
static void reduce(struct setting s, const uint32_t *order, uint32_t n, void *out)
{
    static const uint64_t zeros[COUNT];
    memcpy(out, inputs[order[0]], COUNT * esize(s));
    if (n == 1 && s.nranks > 1 && s.op == OP_AVG) add(s, out, zeros, true);
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
    uint64_t out[COUNT];
    uint32_t order[MOST_RANKS];
    for (uint64_t salt = 40; salt < 43; salt++) {
        fill_inputs(s, salt);
        for (int round = 0; round < 3; round++) {
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

/* As trees add: pairs, pairs of pairs, .. : every partial result is exact in the narrow types too.
 */
Test(data, right_results_of_trees)
{
    for (unsigned i = 0; i < DT_COUNT * OP_COUNT; i++) {
        struct setting s = {.dtype = i % DT_COUNT, .op = i / DT_COUNT, .nranks = MOST_RANKS};
        struct data_bad bad = {0};
        fill_inputs(s, 7);
        for (uint32_t half = MOST_RANKS / 2; half > 0; half /= 2) {
            for (uint32_t r = 0; r < half; r++) {
                add(s, inputs[r], inputs[r + half], half == 1);
            }
        }
        cr_assert_eq(check(s, inputs[0], 7, &bad), 0, "%s %s %u ranks: at %zu", BOX(s), bad.index);
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
    static uint8_t whole[COUNT * 8], part[COUNT * 8];
    for (unsigned i = 0; i < DT_COUNT * (OP_COUNT + 1); i++) {
        enum dtype dtype = i % DT_COUNT;
        enum redop op = i / DT_COUNT;
        size_t size = dtype_bytes(dtype);
        data_fill(whole, dtype, op, 11, 4, first, COUNT, 3);
        for (size_t off = 0; off < COUNT; off += 37) {
            size_t n = off % 5 ? 1 : COUNT - off;
            data_fill(part, dtype, op, 11, 4, first + off, n, 3);
            cr_assert_arr_eq(part, whole + off * size, n * size);
        }
    }
}

/* ---- what an input looks like ---- */

static double value(struct setting s, const void *buf, size_t i)
{
    uint64_t word = 0;
    double wide;
    memcpy(&word, (const uint8_t *)buf + i * esize(s), esize(s));
    memcpy(&wide, &word, sizeof wide);
    switch (s.dtype) {
    case DT_INT8:
        return (int8_t)word;
    case DT_INT32:
        return (int32_t)word;
    case DT_INT64:
        return (double)(int64_t)word;
    case DT_DOUBLE:
        return wide;
    default:
        return is_integer(s) ? (double)word : (double)narrow_to_float(s.dtype, (uint32_t)word);
    }
}

/* Bits of a significand, the hidden one included; of an integer all that hold its magnitude. */
static int precision(enum dtype dtype)
{
    static const int bits[DT_COUNT] = {
        [DT_INT8] = 7,    [DT_UINT8] = 8,    [DT_INT32] = 31, [DT_UINT32] = 32,
        [DT_INT64] = 63,  [DT_UINT64] = 64,  [DT_HALF] = 11,  [DT_FLOAT] = 24,
        [DT_DOUBLE] = 53, [DT_BFLOAT16] = 8, [DT_F8E4M3] = 4, [DT_F8E5M2] = 3,
    };
    return bits[dtype];
}

/* Numbers are multiples of 1 up to here; averages of floats are those of a power of two. */
static double largest_sum(struct setting s)
{
    static const double units[DT_COUNT] = {[DT_HALF] = 32,    [DT_FLOAT] = 1,   [DT_DOUBLE] = 1,
                                           [DT_BFLOAT16] = 1, [DT_F8E4M3] = 32, [DT_F8E5M2] = 8192};
    double exact = ldexp(1, precision(s.dtype));
    return s.op == OP_AVG && !is_integer(s) ? exact / 2 * units[s.dtype] : exact;
}

static void few_at_a_time_all_in_turn(struct setting s)
{
    if (is_extreme(s)) return;
    double limit = largest_sum(s), neutral = s.op == OP_PROD;
    static bool seen[MOST_RANKS][COUNT];
    size_t negative = 0, positive = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t round = 0; round < data_rounds(s.dtype, s.op, s.nranks); round++) {
        fill_inputs(s, 1000 + round);
        for (size_t i = 0; i < COUNT; i++) {
            uint32_t active = 0;
            double most = 0, sum = 0;
            for (uint32_t r = 0; r < s.nranks; r++) {
                double v = value(s, inputs[r], i);
                active += v != neutral;
                seen[r][i] |= v != neutral;
                negative += v < 0;
                positive += v > 0 && v != neutral;
                sum += fabs(v);
                most = fmax(most, fabs(v));
            }
            cr_assert(s.op == OP_PROD || sum + most <= limit || s.nranks > limit / 2,
                      "%s %s %u ranks: %g + %g", BOX(s), sum, most);
            cr_assert(active >= 1 && active <= 8, "%s %s %u ranks: %u active", BOX(s), active);
        }
    }
    for (uint32_t r = 0; r < s.nranks; r++) {
        for (size_t i = 0; i < COUNT; i++) {
            cr_assert(seen[r][i], "%s %s %u ranks: rank %u never active at %zu", BOX(s), r, i);
        }
    }
    if (s.op == OP_PROD || (is_integer(s) && s.dtype % 2)) return; /* odd powers; no sign */
    cr_assert(negative > positive / 3 && positive > negative / 3, "%s %s %u ranks", BOX(s));
}

Test(data, a_few_ranks_at_a_time_and_all_in_turn)
{
    for_all_settings(few_at_a_time_all_in_turn);
}

static void all_ranks_distinct(struct setting s)
{
    if (!is_extreme(s)) return;
    fill_inputs(s, 5);
    for (uint32_t a = 0; a < s.nranks; a++) {
        for (uint32_t b = 0; b < a; b++) {
            cr_assert_eq(differences(s, inputs[a], inputs[b]), COUNT, "%s %s %u ranks", BOX(s));
        }
    }
}

Test(data, extremes_have_distinct_ranks)
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
    cr_assert_eq(data_rounds(DT_FLOAT, OP_SUM, 1), 2);
    cr_assert_eq(data_rounds(DT_INT32, OP_SUM, 16), 2);
    cr_assert_eq(data_rounds(DT_BFLOAT16, OP_SUM, 17), 3);
    cr_assert_eq(data_rounds(DT_UINT64, OP_AVG, 64), 8);
    cr_assert_eq(data_rounds(DT_F8E5M2, OP_PROD, 64), 8);
    cr_assert_eq(data_rounds(DT_F8E5M2, OP_SUM, 64), 10, "7 at a time");
    cr_assert_eq(data_rounds(DT_F8E4M3, OP_AVG, 64), 10);
    cr_assert_eq(data_rounds(DT_F8E5M2, OP_AVG, 64), 22, "3 at a time");
    cr_assert_eq(data_rounds(DT_INT8, OP_AVG, 14), 2);
    cr_assert_eq(data_rounds(DT_INT8, OP_AVG, 64), 64, "one at a time");
    cr_assert_eq(data_rounds(DT_FLOAT, OP_MAX, 64), 2);
    cr_assert_eq(data_rounds(DT_INT8, OP_MIN, 64), 2);
    cr_assert_eq(data_rounds(DT_INT8, OP_COUNT, 64), 2);
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

/* The fault of each rank is seen within the rounds: at every position; for max and
 * min, where one shows only its winner, over nranks salts (and twice is no fault). The wrong
 * elements counted are those that differ from the right result, the first of them is named. */
static void fault_is_seen(struct setting s, fault_fn *fault)
{
    static uint64_t right[COUNT], out[COUNT];
    static uint32_t order[MOST_RANKS + 1];
    uint32_t rounds = is_extreme(s) ? s.nranks : data_rounds(s.dtype, s.op, s.nranks);
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
    if (!is_extreme(s)) fault_is_seen(s, twice);
}

Test(data, a_lost_contribution_is_seen)
{
    for_all_settings(loss_is_seen);
}

Test(data, a_contribution_that_comes_twice_is_seen)
{
    for_all_settings(duplicate_is_seen);
}

/* A thousand ranks, at few positions: what is left when one is lost is the fold of those before it
 * and those behind it. */
static void loss_among_many_is_seen(enum dtype dtype, enum redop op)
{
    enum { RANKS = 1000, FEW = 5 };
    static uint64_t in[RANKS][FEW], before[RANKS][FEW], behind[RANKS][FEW];
    static bool seen[RANKS][FEW];
    struct setting s = {.dtype = dtype, .op = op, .nranks = RANKS};
    uint32_t rounds = is_extreme(s) ? RANKS : data_rounds(dtype, op, RANKS);
    struct err err = ERR_INIT;
    fold_fn *fold_of = kernels_get(&err)->fold[dtype][op];
    memset(seen, 0, sizeof seen);
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            data_fill(in[r], dtype, op, RANKS, r, first, FEW, round);
        }
        memcpy(before[0], in[0], sizeof in[0]);
        memcpy(behind[RANKS - 1], in[RANKS - 1], sizeof in[0]);
        for (uint32_t r = 1; r < RANKS; r++) {
            uint32_t b = RANKS - 1 - r;
            fold_of(&(struct fold){{before[r]}, {before[r - 1], in[r]}, 1, 2, 1, false, FEW});
            fold_of(&(struct fold){{behind[b]}, {behind[b + 1], in[b]}, 1, 2, 1, false, FEW});
        }
        uint64_t out[FEW];
        struct data_bad bad = {0};
        uint32_t last = RANKS - 1;
        fold_of(&(struct fold){{out}, {before[last - 1], in[last]}, 1, 2, RANKS, false, FEW});
        size_t wrong = data_check_reduced(out, dtype, op, RANKS, first, FEW, round, &bad);
        cr_assert_eq(wrong, 0, "%s %s", dtype_name(dtype), redop_name(op));
        for (uint32_t r = 1; r < last; r++) {
            fold_of(&(struct fold){{out}, {before[r - 1], behind[r + 1]}, 1, 2, RANKS, false, FEW});
            for (size_t i = 0; i < FEW; i++) {
                const uint8_t *at = (const uint8_t *)out + i * esize(s);
                seen[r][i] |= data_check_reduced(at, dtype, op, RANKS, first + i, 1, round, &bad);
            }
        }
    }
    for (uint32_t r = 1; r < RANKS - 1; r++) {
        for (size_t i = 0; i < FEW; i++) {
            cr_assert(seen[r][i], "%s %s: rank %u at %zu", dtype_name(dtype), redop_name(op), r, i);
        }
    }
}

Test(data, a_lost_contribution_of_a_thousand_is_seen)
{
    for (unsigned i = 0; i < DT_COUNT * OP_COUNT; i++) {
        enum dtype dtype = i % DT_COUNT;
        enum redop op = i / DT_COUNT;
        if (op == OP_AVG && dtype_bytes(dtype) == 1 && dtype <= DT_UINT8) continue; /* always 0 */
        loss_among_many_is_seen(dtype, op);
    }
}

/* A rank's data in the place of another's: one twice, one lost. */
static void replacement_is_seen(struct setting s)
{
    if (s.nranks < 2) return;
    uint64_t out[COUNT];
    uint32_t order[MOST_RANKS];
    for (uint32_t rank = 0; rank < s.nranks; rank++) {
        size_t wrong = 0;
        for (uint64_t salt = 0; salt < data_rounds(s.dtype, s.op, s.nranks); salt++) {
            struct data_bad bad;
            fill_inputs(s, salt);
            shuffled(&(struct rng){{5, 6, 7, 8}}, s.nranks, order);
            for (uint32_t i = 0; i < s.nranks; i++) {
                if (order[i] == rank) order[i] = (rank + 1) % s.nranks;
            }
            reduce(s, order, s.nranks, out);
            wrong += check(s, out, salt, &bad);
        }
        cr_assert_gt(wrong, is_extreme(s) ? 0 : COUNT / 4, "%s %s %u ranks: rank %u in %zu", BOX(s),
                     rank, wrong);
    }
}

Test(data, a_contribution_in_place_of_another_is_seen)
{
    for_all_settings(replacement_is_seen);
}

/* How many results of another place must be wrong: nearly all where the type has many values. */
static size_t least_misplaced(struct setting s)
{
    bool few = precision(s.dtype) < 24 || (s.op == OP_PROD && !is_integer(s));
    return few ? COUNT / 4 : COUNT * 9 / 10;
}

/* The right reduction, but of another place or another run. */
static void misplaced_is_seen(struct setting s)
{
    static const struct {
        int64_t shift; /* positions */
        int64_t salt;
    } faults[] = {{1, 0}, {-1, 0}, {256, 0}, {-4096, 0}, {1LL << 32, 0}, {0, -1}, {0, 1}, {0, 2}};
    uint64_t out[COUNT];
    uint32_t order[MOST_RANKS];
    if (is_integer(s) && esize(s) == 1 && s.op == OP_AVG) return; /* 1 or -1, if ranks are many */
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++) {
        for (uint32_t r = 0; r < s.nranks; r++) {
            data_fill(inputs[r], s.dtype, s.op, s.nranks, r, first + (uint64_t)faults[f].shift,
                      COUNT, 300 + (uint64_t)faults[f].salt);
            order[r] = r;
        }
        struct data_bad bad;
        reduce(s, order, s.nranks, out);
        size_t wrong = check(s, out, 300, &bad);
        cr_assert_gt(wrong, least_misplaced(s), "%s %s %u ranks: fault %zu in %zu", BOX(s), f,
                     wrong);
    }
}

Test(data, reductions_of_another_place_or_run_are_seen)
{
    for_all_settings(misplaced_is_seen);
}

/* Sums and extremes of 8-bit integers may be what the poison is; all other right results differ. */
static void poison_is_seen(struct setting s)
{
    uint64_t out[COUNT], poison[COUNT];
    uint32_t order[MOST_RANKS];
    struct data_bad bad = {0};
    bool any = is_integer(s) && esize(s) == 1 && s.op != OP_PROD;
    fill_inputs(s, 8);
    shuffled(&(struct rng){{1, 2, 3, 4}}, s.nranks, order);
    for (uint64_t salt = 0; salt < 5; salt++) {
        data_poison(poison, sizeof poison, salt);
        size_t wrong = check(s, poison, 8, &bad);
        cr_assert(any ? wrong > COUNT / 2 : wrong == COUNT, "%s %s %u ranks: %zu", BOX(s), wrong);
        for (size_t at = 0; at < COUNT && !any; at += 119) {
            reduce(s, order, s.nranks, out);
            memcpy((uint8_t *)out + at * esize(s), (uint8_t *)poison + at * esize(s), esize(s));
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
        uint8_t out[COUNT * 8];
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

/* No operator: any other rank, place or run differs nearly everywhere (in 15 or 7 bits a
 * stray element may agree). */
Test(data, copies)
{
    for (unsigned i = 0; i < NRANK_COUNTS * DT_COUNT; i++) {
        struct setting s = {i % DT_COUNT, OP_COUNT, rank_counts[i / DT_COUNT]};
        size_t most = COUNT - (esize(s) == 1 ? 25 : esize(s) == 2 ? 5 : 0);
        uint64_t other[COUNT];
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
        for (uint64_t salt = 0; salt < data_rounds(s.dtype, s.op, s.nranks); salt++) {
            data_fill(inputs[r], s.dtype, s.op, s.nranks, r, first, COUNT, salt);
            cr_assert_eq(check_copy(s, r, inputs[r], salt), 0);
            wrong += check_copy(s, (r + 1) % s.nranks, inputs[r], salt);
        }
        if (s.nranks > 1) cr_assert_gt(wrong, COUNT / 4, "%s %s %u ranks: %zu", BOX(s), wrong);
    }
}

Test(data, inputs_of_reductions_as_copies)
{
    for_all_settings(inputs_as_copies);
}
