/* SPDX-License-Identifier: Apache-2.0
 * Tests of kernels/: every version against the plain reference, bit for bit, over shapes, counts,
 * misaligned pointers, outputs on inputs and streaming; the reference against the words of
 * kernels.h; names, parsing and the choice of a version. */
#include <criterion/criterion.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/kernels.h"
#include "tests/elements.h"

enum { MOST = 1024, GUARD = 128, SLOT = MOST * 8 + 576, NSLOTS = 2 * KERNEL_MAX_IN };

static const size_t counts[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000};
enum { NCOUNTS = sizeof counts / sizeof counts[0] };

static const uint32_t divisors[] = {0, 1, 2, 3, 7, 8, 16384, 1000000007, UINT32_MAX};
enum { NDIVISORS = sizeof divisors / sizeof divisors[0] };

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- every version against the reference ---- */

static _Alignas(4096) uint8_t slots[NSLOTS][SLOT];
static uint8_t pristine[KERNEL_MAX_IN][MOST * 8];
static uint8_t expected[MOST * 8];

/* One case: what is called, and where outputs lie. */
struct call {
    const struct kernels *kernels;
    enum dtype dtype;
    enum redop op;
    uint32_t nin, nout;
    size_t count;
    uint32_t divisor;
    bool stream, aliased;
    uint32_t shift; /* 0: all aligned; else a seed for misaligned pointers */
};

static const char *describe(const struct call *call)
{
    static char text[200];
    snprintf(text, sizeof text,
             "%s %s %s: %u in, %u out, %zu elements, divisor %u, stream %d, aliased %d, shift %u",
             call->kernels->name, dtype_name(call->dtype), redop_name(call->op), call->nin,
             call->nout, call->count, call->divisor, call->stream, call->aliased, call->shift);
    return text;
}

/* Where element 0 of a slot lies. */
static uint8_t *slot_start(const struct call *call, uint32_t slot)
{
    uint32_t by = call->shift ? (slot * 5 + call->shift) % 32 : 0;
    return slots[slot] + GUARD + by * dtype_bytes(call->dtype);
}

/* The slot of output k: its own, or with `aliased` that of an input while there are any. */
static uint32_t out_slot(const struct call *call, uint32_t k)
{
    uint32_t first = (uint32_t)call->count % call->nin;
    return call->aliased && k < call->nin ? (first + k) % call->nin : KERNEL_MAX_IN + k;
}

static void make_expected(struct call call)
{
    struct fold fold = {.out = {expected},
                        .nin = call.nin,
                        .nout = 1,
                        .divisor = call.divisor,
                        .count = call.count};
    for (uint32_t k = 0; k < call.nin; k++) {
        fold.in[k] = pristine[k];
    }
    kernels_all()[0]->fold[call.dtype][call.op](&fold);
}

/* True if the slot holds `content` with its guards untouched. */
static bool slot_is(const struct call *call, uint32_t slot, const uint8_t *content)
{
    size_t bytes = call->count * dtype_bytes(call->dtype);
    const uint8_t *start = slot_start(call, slot);
    for (const uint8_t *p = slots[slot]; p < start; p++) {
        if (*p != 0xa5) return false;
    }
    for (const uint8_t *p = start + bytes; p < start + bytes + GUARD; p++) {
        if (*p != 0xa5) return false;
    }
    return memcmp(start, content, bytes) == 0;
}

static void run_call(const struct call *call)
{
    size_t bytes = call->count * dtype_bytes(call->dtype);
    struct fold fold = {.nin = call->nin,
                        .nout = call->nout,
                        .divisor = call->divisor,
                        .stream = call->stream,
                        .count = call->count};
    bool overwritten[NSLOTS] = {false};
    for (uint32_t k = 0; k < call->nout; k++) {
        uint32_t slot = out_slot(call, k);
        overwritten[slot] = true;
        fold.out[k] = slot_start(call, slot);
        memset(slots[slot], 0xa5, bytes + 4 * GUARD);
    }
    for (uint32_t k = 0; k < call->nin; k++) {
        fold.in[k] = slot_start(call, k);
        memset(slots[k], 0xa5, bytes + 4 * GUARD);
        memcpy(slot_start(call, k), pristine[k], bytes);
    }
    call->kernels->fold[call->dtype][call->op](&fold);
    for (uint32_t k = 0; k < call->nout; k++) {
        if (!slot_is(call, out_slot(call, k), expected))
            cr_assert_fail("output %u: %s", k, describe(call));
    }
    for (uint32_t k = 0; k < call->nin; k++) {
        if (!overwritten[k] && !slot_is(call, k, pristine[k]))
            cr_assert_fail("input %u: %s", k, describe(call));
    }
}

/* All versions, placements, alignments and numbers of outputs for the inputs in `pristine`. */
static void run_all_ways(struct call call)
{
    make_expected(call);
    for (const struct kernels *const *k = kernels_all(); *k; k++) {
        call.kernels = *k;
        for (unsigned way = 0; way < 3 * 2 * 2; way++) {
            call.shift = way % 3 * 7;
            call.aliased = way / 3 % 2;
            call.stream = way / 6;
            for (call.nout = 1; call.nout <= 4; call.nout++) {
                run_call(&call);
            }
        }
    }
}

static void matrix(enum dtype dtype)
{
    struct rng rng;
    rng_init(&rng, 1 + dtype);
    for (unsigned op = 0; op < OP_COUNT; op++) {
        for (uint32_t nin = 1; nin <= KERNEL_MAX_IN; nin++) {
            for (size_t c = 0; c < NCOUNTS; c++) {
                struct call call = {.dtype = dtype, .op = op, .nin = nin, .count = counts[c]};
                call.divisor = divisors[(nin + c) % NDIVISORS];
                for (uint32_t k = 0; k < nin; k++) {
                    random_elements(&rng, dtype, pristine[k], counts[c]);
                }
                run_all_ways(call);
            }
        }
    }
}

Test(kernels, versions_equal_reference_int8)
{
    matrix(DT_INT8);
}

Test(kernels, versions_equal_reference_uint8)
{
    matrix(DT_UINT8);
}

Test(kernels, versions_equal_reference_int32)
{
    matrix(DT_INT32);
}

Test(kernels, versions_equal_reference_uint32)
{
    matrix(DT_UINT32);
}

Test(kernels, versions_equal_reference_int64)
{
    matrix(DT_INT64);
}

Test(kernels, versions_equal_reference_uint64)
{
    matrix(DT_UINT64);
}

Test(kernels, versions_equal_reference_half)
{
    matrix(DT_HALF);
}

Test(kernels, versions_equal_reference_float)
{
    matrix(DT_FLOAT);
}

Test(kernels, versions_equal_reference_double)
{
    matrix(DT_DOUBLE);
}

Test(kernels, versions_equal_reference_bfloat16)
{
    matrix(DT_BFLOAT16);
}

Test(kernels, versions_equal_reference_f8e4m3)
{
    matrix(DT_F8E4M3);
}

Test(kernels, versions_equal_reference_f8e5m2)
{
    matrix(DT_F8E5M2);
}

/* Every pair of 8-bit floats. */
Test(kernels, all_pairs_of_8_bits)
{
    enum { PAIRS = 1 << 16 };
    static uint8_t a[PAIRS], b[PAIRS], want[PAIRS], got[PAIRS];
    for (uint32_t i = 0; i < PAIRS; i++) {
        a[i] = (uint8_t)i;
        b[i] = (uint8_t)(i >> 8);
    }
    for (unsigned i = 0; i < DT_COUNT * OP_COUNT * NDIVISORS; i++) {
        enum dtype dtype = i % DT_COUNT;
        enum redop op = i / DT_COUNT % OP_COUNT;
        if (dtype_bytes(dtype) > 1) continue;
        struct fold fold = {.in = {a, b}, .out = {want}, .nin = 2, .nout = 1, .count = PAIRS};
        fold.divisor = divisors[i / DT_COUNT / OP_COUNT];
        kernels_all()[0]->fold[dtype][op](&fold);
        for (const struct kernels *const *k = kernels_all(); *k; k++) {
            fold.out[0] = got;
            (*k)->fold[dtype][op](&fold);
            cr_assert_arr_eq(got, want, PAIRS, "%s %s %s", (*k)->name, dtype_name(dtype),
                             redop_name(op));
        }
    }
}

Test(kernels, sixteen_outputs_of_sixteen_inputs)
{
    struct rng rng;
    rng_init(&rng, 9);
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        struct call call = {.dtype = dtype, .nin = KERNEL_MAX_IN, .count = 777, .shift = 3};
        call.nout = KERNEL_MAX_OUT;
        for (uint32_t k = 0; k < call.nin; k++) {
            random_elements(&rng, dtype, pristine[k], call.count);
        }
        make_expected(call);
        for (const struct kernels *const *k = kernels_all(); *k; k++) {
            call.kernels = *k;
            call.aliased = false;
            run_call(&call);
            call.aliased = true;
            run_call(&call);
        }
    }
}

/* Every pair of odd values meets, in every version. */
Test(kernels, odd_values_meet)
{
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        for (unsigned op = 0; op < OP_COUNT; op++) {
            struct call call = {.dtype = dtype, .op = op, .nin = 2, .count = (size_t)NODD * NODD};
            for (size_t i = 0; i < call.count; i++) {
                put(dtype, pristine[0], i, (uint64_t)odd_values[i / NODD] << 32);
                put(dtype, pristine[1], i, (uint64_t)odd_values[i % NODD] << 32);
            }
            for (size_t d = 0; d < NDIVISORS; d++) {
                call.divisor = divisors[d];
                run_all_ways(call);
            }
        }
    }
}

/* Divisions that a product with a rounded inverse gets wrong: at and beside multiples. */
static void averages_at_multiples(enum dtype dtype)
{
    struct rng rng;
    rng_init(&rng, 6);
    struct call call = {.dtype = dtype, .op = OP_AVG, .nin = 2, .nout = 1, .count = MOST};
    unsigned bits = 8 * (unsigned)dtype_bytes(dtype);
    memset(pristine[1], 0, sizeof pristine[1]);
    for (uint32_t i = 2; i < 2000; i++) {
        call.divisor = i < 1000 ? i : (uint32_t)rng_next(&rng) >> rng_below(&rng, 30) | 2;
        for (size_t k = 0; k < MOST; k++) {
            uint64_t any = rng_next(&rng) >> (64 - bits) >> rng_below(&rng, 2);
            uint64_t sum = any / call.divisor * call.divisor + k % 3 - 1;
            put(dtype, pristine[0], k, (k % 2 ? -sum : sum) << (64 - bits));
        }
        make_expected(call);
        for (const struct kernels *const *k = kernels_all(); *k; k++) {
            call.kernels = *k;
            run_call(&call);
        }
    }
}

Test(kernels, integer_averages_at_multiples)
{
    for (unsigned dtype = DT_INT8; dtype <= DT_UINT64; dtype++) {
        averages_at_multiples(dtype);
    }
}

/* A fold over k inputs is k - 1 single folds, the divisor in the last. */
Test(kernels, fold_is_single_folds)
{
    struct rng rng;
    rng_init(&rng, 3);
    for (unsigned pick = 0; pick < DT_COUNT * OP_COUNT; pick++) {
        enum dtype dtype = pick % DT_COUNT;
        enum redop op = pick / DT_COUNT;
        size_t count = 333, bytes = count * dtype_bytes(dtype);
        for (uint32_t k = 0; k < KERNEL_MAX_IN; k++) {
            random_elements(&rng, dtype, pristine[k], count);
        }
        for (uint32_t nin = 2; nin <= KERNEL_MAX_IN; nin++) {
            struct call call = {.dtype = dtype, .op = op, .nin = nin, .count = count, .divisor = 5};
            make_expected(call);
            for (const struct kernels *const *k = kernels_all(); *k; k++) {
                memcpy(slots[0], pristine[0], bytes);
                for (uint32_t i = 1; i < nin; i++) {
                    struct fold one = {.in = {slots[0], pristine[i]},
                                       .out = {slots[0]},
                                       .nin = 2,
                                       .nout = 1,
                                       .divisor = i + 1 == nin ? 5 : 1,
                                       .count = count};
                    (*k)->fold[dtype][op](&one);
                }
                cr_assert_arr_eq(slots[0], expected, bytes, "%s %s %s, %u inputs", (*k)->name,
                                 dtype_name(dtype), redop_name(op), nin);
            }
        }
    }
}

/* ---- large and long: loops, streaming, sizes beyond 4 GiB are one loop of size_t ---- */

Test(kernels, large_streamed_folds)
{
    enum { COUNT = (1 << 18) + 13 };
    uint32_t *a = malloc(COUNT * 4 + 64), *b = malloc(COUNT * 4 + 64);
    uint32_t *c = malloc(COUNT * 4 + 64), *want = malloc(COUNT * 4 + 64);
    struct rng rng;
    rng_init(&rng, 4);
    random_elements(&rng, DT_INT32, a, COUNT);
    random_elements(&rng, DT_INT32, b, COUNT);
    for (unsigned dtype = 0; dtype < DT_COUNT; dtype++) {
        size_t count = COUNT * 4 / dtype_bytes(dtype) - 3;
        struct fold fold = {.in = {a, b}, .out = {want}, .nin = 2, .nout = 1, .count = count};
        kernels_all()[0]->fold[dtype][OP_SUM](&fold);
        for (const struct kernels *const *k = kernels_all(); *k; k++) {
            fold.out[0] = c;
            fold.stream = true;
            memset(c, 0, COUNT * 4);
            (*k)->fold[dtype][OP_SUM](&fold);
            cr_assert_eq(memcmp(c, want, count * dtype_bytes(dtype)), 0, "%s", (*k)->name);
        }
    }
    free(a);
    free(b);
    free(c);
    free(want);
}

Test(kernels, copies)
{
    static uint8_t from[9000], to[9000], want[9000];
    struct rng rng;
    rng_init(&rng, 5);
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (uint8_t)rng_next(&rng);
    }
    for (const struct kernels *const *k = kernels_all(); *k; k++) {
        for (unsigned round = 0; round < 4000; round++) {
            size_t bytes = rng_below(&rng, round % 2 ? 300 : 8000);
            size_t src = rng_below(&rng, 500), dst = rng_below(&rng, 500);
            memset(to, 0xa5, sizeof to);
            memset(want, 0xa5, sizeof want);
            memcpy(want + dst, from + src, bytes);
            (*k)->copy(to + dst, from + src, bytes, round / 2 % 2);
            cr_assert_eq(memcmp(to, want, sizeof to), 0, "%s: %zu bytes", (*k)->name, bytes);
        }
        memcpy(to, from, sizeof to);
        (*k)->copy(to, to, sizeof to, true);
        cr_assert_eq(memcmp(to, from, sizeof to), 0);
        (*k)->copy(NULL, NULL, 0, true);
    }
}

/* ---- the reference against the words of kernels.h ---- */

static uint32_t one_step(enum dtype dtype, enum redop op, uint32_t a, uint32_t b, uint32_t divisor)
{
    uint32_t result = 0;
    struct fold fold = {
        .in = {&a, &b}, .out = {&result}, .nin = 2, .nout = 1, .divisor = divisor, .count = 1};
    kernels_all()[0]->fold[dtype][op](&fold);
    return result;
}

static float float_step(enum redop op, float a, float b, uint32_t divisor)
{
    return bits_float(one_step(DT_FLOAT, op, float_bits(a), float_bits(b), divisor));
}

static int32_t int_step(enum redop op, int32_t a, int32_t b, uint32_t divisor)
{
    return (int32_t)one_step(DT_INT32, op, (uint32_t)a, (uint32_t)b, divisor);
}

Test(reference, integers)
{
    cr_assert_eq(int_step(OP_SUM, INT32_MAX, 1, 1), INT32_MIN);
    cr_assert_eq(int_step(OP_SUM, INT32_MIN, -1, 1), INT32_MAX);
    cr_assert_eq(int_step(OP_SUM, 5, 6, 3), 11, "a sum has no divisor");
    cr_assert_eq(int_step(OP_MAX, -5, -6, 3), -5);
    cr_assert_eq(int_step(OP_MAX, INT32_MIN, INT32_MAX, 1), INT32_MAX);
    cr_assert_eq(int_step(OP_AVG, 7, 0, 2), 3);
    cr_assert_eq(int_step(OP_AVG, -7, 0, 2), -3, "towards zero");
    cr_assert_eq(int_step(OP_AVG, INT32_MAX, 1, 2), INT32_MIN / 2, "of the wrapped sum");
    cr_assert_eq(int_step(OP_AVG, INT32_MIN, 0, 1), INT32_MIN);
    cr_assert_eq(int_step(OP_AVG, INT32_MIN, 0, 1u << 31), -1);
    cr_assert_eq(int_step(OP_AVG, INT32_MAX, 0, 1u << 31), 0);
    cr_assert_eq(int_step(OP_AVG, INT32_MIN, 0, UINT32_MAX), 0);
    cr_assert_eq(int_step(OP_AVG, 9, 0, 0), 9, "0 divides as little as 1");
}

Test(reference, floats)
{
    cr_assert_eq(float_step(OP_SUM, 1.5f, 2.25f, 3), 3.75f);
    cr_assert_eq(float_step(OP_AVG, 1.0f, 1.0f, 3), 2.0f / 3.0f);
    cr_assert_eq(one_step(DT_FLOAT, OP_SUM, 0x7f800000, 0xff800000, 1), FLOAT_NAN_BITS);
    cr_assert_eq(one_step(DT_FLOAT, OP_SUM, 0xff812345, 0x3f800000, 1), FLOAT_NAN_BITS);
    cr_assert_eq(one_step(DT_FLOAT, OP_AVG, 0x3f800000, 0xffffffff, 4), FLOAT_NAN_BITS);
    cr_assert_eq(one_step(DT_FLOAT, OP_SUM, 0x80000000, 0x80000000, 1), 0x80000000);
    cr_assert_eq(one_step(DT_FLOAT, OP_SUM, 0x80000000, 0x00000000, 1), 0);
}

Test(reference, a_nan_wins_the_maximum_and_the_first_of_two_zeros)
{
    cr_assert_eq(one_step(DT_FLOAT, OP_MAX, 0x7f812345, 0x7f800000, 1), 0x7f812345);
    cr_assert_eq(one_step(DT_FLOAT, OP_MAX, 0x7f800000, 0xff812345, 1), 0xff812345);
    cr_assert_eq(one_step(DT_FLOAT, OP_MAX, 0x7fc00000, 0xffc00001, 1), 0xffc00001);
    cr_assert_eq(one_step(DT_FLOAT, OP_MAX, 0x80000000, 0x00000000, 1), 0x80000000);
    cr_assert_eq(one_step(DT_FLOAT, OP_MAX, 0x00000000, 0x80000000, 1), 0x00000000);
    cr_assert_eq(one_step(DT_BFLOAT16, OP_MAX, 0x7f81, 0x7f80, 1), 0x7f81);
    cr_assert_eq(one_step(DT_BFLOAT16, OP_MAX, 0x7f80, 0xff81, 1), 0xff81);
    cr_assert_eq(float_step(OP_MAX, -2.0f, -1.0f, 7), -1.0f);
}

Test(reference, bfloat16_rounds_once_per_step)
{
    /* 256 + 1 lies between 256 and 258: to even; 256 + 3 between 258 and 260: to even, up. */
    uint16_t a = bf16_from_float(256), one = bf16_from_float(1), three = bf16_from_float(3);
    cr_assert_eq(one_step(DT_BFLOAT16, OP_SUM, a, one, 1), a);
    cr_assert_eq(one_step(DT_BFLOAT16, OP_SUM, a, three, 1), bf16_from_float(260));
    /* An average is rounded after the division alone: 257 / 5 = 51.4 is nearest to 51.5, while
     * 256 / 5 = 51.2 would be nearest to 51.25. */
    cr_assert_eq(one_step(DT_BFLOAT16, OP_AVG, a, one, 5), bf16_from_float(51.5f));
    cr_assert_eq(one_step(DT_BFLOAT16, OP_SUM, 0x7f7f, 0x7f7f, 1), 0x7f80, "to infinity");
    cr_assert_eq(one_step(DT_BFLOAT16, OP_SUM, 0x7f80, 0xff80, 1), BF16_NAN);
    cr_assert_eq(one_step(DT_BFLOAT16, OP_SUM, 0xff81, 0, 1), BF16_NAN);
}

/* Nearest by distance: of the two neighbours in bfloat16, the nearer one, and of two equally near
 * the one whose last bit is 0. */
Test(reference, bfloat16_from_float_is_nearest)
{
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234};
    for (uint32_t high = 0; high < 0x7f7f; high++) {
        double below = bf16_to_float((uint16_t)high), above = bf16_to_float((uint16_t)(high + 1));
        for (size_t i = 0; i < sizeof lows / sizeof lows[0]; i++) {
            float value = bits_float(high << 16 | lows[i]);
            double down = (double)value - below, up = above - (double)value;
            uint32_t want = down < up || (down == up && high % 2 == 0) ? high : high + 1;
            cr_assert_eq(bf16_from_float(value), want, "%08x", float_bits(value));
            cr_assert_eq(bf16_from_float(-value), want | 0x8000, "-%08x", float_bits(value));
        }
    }
    cr_assert_eq(bf16_from_float(bits_float(0x7f7f7fff)), 0x7f7f);
    cr_assert_eq(bf16_from_float(bits_float(0x7f7f8000)), 0x7f80, "half way to 2^128");
    cr_assert_eq(bf16_from_float(INFINITY), 0x7f80);
    cr_assert_eq(bf16_from_float(-INFINITY), 0xff80);
}

Test(reference, bfloat16_goes_to_float_and_back)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        bool nan = (bits & 0x7fff) > 0x7f80;
        cr_assert_eq(float_bits(bf16_to_float((uint16_t)bits)), bits << 16);
        cr_assert_eq(bf16_from_float(bf16_to_float((uint16_t)bits)), nan ? BF16_NAN : bits);
    }
}

/* The same for every format: each value and its neighbours, by distance. */
static void narrow_is_nearest(enum dtype dtype, uint32_t most, uint32_t after)
{
    uint32_t sign = 1u << (8 * dtype_bytes(dtype) - 1);
    for (uint32_t code = 0; code < most; code++) {
        double below = (double)narrow_to_float(dtype, code);
        double above = (double)narrow_to_float(dtype, code + 1);
        cr_assert_gt(above, below);
        for (int i = 0; i <= 8; i++) {
            float at = (float)(below + (above - below) * i / 8);
            for (int step = -1; step <= 1; step++) {
                float value = step ? nextafterf(at, step < 0 ? -1.0f : 1e30f) : at;
                if ((double)value < below || (double)value > above) continue;
                double down = (double)value - below, up = above - (double)value;
                uint32_t want = down < up || (down == up && code % 2 == 0) ? code : code + 1;
                cr_assert_eq(narrow_from_float(dtype, value), want, "%s %a", dtype_name(dtype),
                             (double)value);
                cr_assert_eq(narrow_from_float(dtype, -value), want | sign);
            }
        }
    }
    cr_assert_eq(narrow_from_float(dtype, 1e30f), after);
    cr_assert_eq(narrow_from_float(dtype, -INFINITY), after | sign);
}

Test(reference, narrow_floats_are_nearest)
{
    cr_assert_eq(narrow_to_float(DT_HALF, 0x7bff), 65504.0f);
    cr_assert_eq(narrow_to_float(DT_HALF, 0x0001), 0x1p-24f);
    cr_assert_eq(narrow_to_float(DT_F8E4M3, 0x7e), 448.0f);
    cr_assert_eq(narrow_to_float(DT_F8E4M3, 0x01), 0x1p-9f);
    cr_assert_eq(narrow_to_float(DT_F8E5M2, 0x7b), 57344.0f);
    cr_assert_eq(narrow_to_float(DT_F8E5M2, 0x01), 0x1p-16f);
    cr_assert_eq(narrow_to_float(DT_F8E5M2, 0xfc), -INFINITY);
    narrow_is_nearest(DT_HALF, 0x7bff, 0x7c00);
    narrow_is_nearest(DT_F8E4M3, 0x7e, 0x7e);
    narrow_is_nearest(DT_F8E5M2, 0x7b, 0x7b);
    cr_assert_eq(narrow_from_float(DT_HALF, 65519.99f), 0x7bff);
    cr_assert_eq(narrow_from_float(DT_HALF, 65520.0f), 0x7c00, "half way to 2^16");
    cr_assert_eq(narrow_from_float(DT_HALF, bits_float(0xffc00001)), HALF_NAN);
    cr_assert_eq(narrow_from_float(DT_F8E4M3, -NAN), F8_NAN);
    cr_assert_eq(narrow_from_float(DT_F8E5M2, -NAN), F8_NAN);
    cr_assert(isnan(narrow_to_float(DT_F8E4M3, 0xff)) && isnan(narrow_to_float(DT_F8E5M2, 0x7d)));
}

/* The rules of kernels.h, one by one. */
Test(reference, narrow_sums_and_products)
{
    cr_assert_eq(one_step(DT_HALF, OP_SUM, 0x7bff, 0x7bff, 1), 0x7c00, "to infinity");
    cr_assert_eq(one_step(DT_F8E4M3, OP_SUM, 0x7e, 0x7e, 1), 0x7e, "saturates");
    cr_assert_eq(one_step(DT_F8E4M3, OP_PROD, 0x7e, 0xfe, 1), 0xfe);
    cr_assert_eq(one_step(DT_F8E5M2, OP_PROD, 0x7b, 0x7b, 1), 0x7b);
    cr_assert_eq(one_step(DT_F8E5M2, OP_SUM, 0x7c, 0xfb, 1), 0x7b, "inf - 57344 saturates");
    cr_assert_eq(one_step(DT_F8E5M2, OP_SUM, 0x7c, 0xfc, 1), F8_NAN, "inf - inf");
    cr_assert_eq(one_step(DT_F8E5M2, OP_PROD, 0x00, 0xfc, 1), F8_NAN, "0 * inf");
    cr_assert_eq(one_step(DT_F8E4M3, OP_SUM, 0xff, 0x38, 1), F8_NAN);
    cr_assert_eq(one_step(DT_F8E4M3, OP_MAX, 0xff, 0x38, 1), 0xff, "a NaN wins as it is");
    cr_assert_eq(one_step(DT_F8E4M3, OP_MIN, 0x38, 0xff, 1), 0xff);
    cr_assert_eq(one_step(DT_F8E4M3, OP_MIN, 0x00, 0x80, 1), 0x00, "the first of two zeros");
    cr_assert_eq(one_step(DT_HALF, OP_MIN, 0x3c00, 0xbc00, 1), 0xbc00);
    cr_assert_eq(one_step(DT_INT8, OP_PROD, 100, 3, 1), 44, "wraps");
    cr_assert_eq(one_step(DT_UINT8, OP_AVG, 200, 100, 2), 22, "the wrapped sum");
    cr_assert_eq(one_step(DT_UINT32, OP_MAX, 0x80000000, 1, 1), 0x80000000);
    cr_assert_eq(one_step(DT_INT32, OP_MIN, 0x80000000, 1, 1), 0x80000000);
}

/* ---- names and the choice ---- */

Test(names, parse_and_print)
{
    struct err err = ERR_INIT;
    for (unsigned i = 0; i < DT_COUNT; i++) {
        enum dtype dtype = DT_COUNT;
        cr_assert_eq(dtype_parse(dtype_name(i), &dtype, &err), 0);
        cr_assert_eq(dtype, i);
    }
    for (unsigned i = 0; i < OP_COUNT; i++) {
        enum redop op = OP_COUNT;
        cr_assert_eq(redop_parse(redop_name(i), &op, &err), 0);
        cr_assert_eq(op, i);
    }
    cr_assert_eq(err.count, 0);
    cr_assert_eq(dtype_bytes(DT_FLOAT), 4);
    cr_assert_eq(dtype_bytes(DT_INT32), 4);
    cr_assert_eq(dtype_bytes(DT_BFLOAT16), 2);
    cr_assert_eq(dtype_bytes(DT_F8E5M2), 1);
    cr_assert_eq(dtype_bytes(DT_UINT64), 8);
    enum dtype dtype = DT_COUNT;
    cr_assert_eq(dtype_parse("float16", &dtype, &err), 0);
    cr_assert_eq(dtype, DT_HALF);
}

Test(names, unknown_ones_list_the_valid)
{
    struct err err = ERR_INIT;
    enum dtype dtype = DT_INT32;
    enum redop op = OP_MAX;
    cr_assert_eq(dtype_parse("quad", &dtype, &err), -1);
    cr_assert_eq(dtype, DT_INT32);
    cr_assert_eq(err.code, ERR_USAGE);
    cr_assert_str_eq(err.text, "unknown data type 'quad', valid are: int8, uint8, int32, uint32, "
                               "int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2");
    err_release(&err);
    cr_assert_eq(redop_parse("", &op, &err), -1);
    cr_assert_eq(op, OP_MAX);
    cr_assert_str_eq(err.text, "unknown operator '', valid are: sum, prod, max, min, avg");
    err_release(&err);
}

Test(choice, best_by_default_and_for_good)
{
    struct err err = ERR_INIT;
    unsetenv("COLLBENCH_KERNELS");
    const struct kernels *const *all = kernels_all();
    cr_assert_str_eq(all[0]->name, "reference");
    size_t n = 0;
    while (all[n]) {
        n++;
    }
    cr_assert_geq(n, 2);
    const struct kernels *best = kernels_get(&err);
    cr_assert_eq(best, all[n - 1]);
    setenv("COLLBENCH_KERNELS", "reference", 1);
    cr_assert_eq(kernels_get(&err), best);
    setenv("COLLBENCH_KERNELS", "nonsense", 1);
    cr_assert_eq(kernels_get(&err), best);
    cr_assert_eq(err.count, 0);
}

Test(choice, forced)
{
    struct err err = ERR_INIT;
    setenv("COLLBENCH_KERNELS", "fastest", 1);
    cr_assert_null(kernels_get(&err));
    cr_assert_eq(err.code, ERR_USAGE);
    cr_assert(strstr(err.text, "'fastest', valid are: reference, generic"), "%s", err.text);
    err_release(&err);
    setenv("COLLBENCH_KERNELS", "generic", 1);
    cr_assert_str_eq(kernels_get(&err)->name, "generic");
    setenv("COLLBENCH_KERNELS", "", 1);
    cr_assert_str_eq(kernels_get(&err)->name, "generic");
}

static void *get_in_thread(void *result)
{
    struct err err = ERR_INIT;
    *(const struct kernels **)result = kernels_get(&err);
    err_release(&err);
    return NULL;
}

Test(choice, same_for_all_threads)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    const struct kernels *got[THREADS] = {NULL};
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, get_in_thread, &got[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_not_null(got[i]);
        cr_assert_eq(got[i], got[0]);
    }
}
