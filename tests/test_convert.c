/* SPDX-License-Identifier: Apache-2.0
 * Tests of kernels_convert: every pair of types against a plain computation in long double, which
 * holds all 64-bit integers and all doubles, and takes a value apart by its definition. */
#include <criterion/criterion.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/kernels.h"
#include "tests/elements.h"

_Static_assert(LDBL_MANT_DIG >= 64, "long double holds 64-bit integers");

/* Stored bits of the mantissa, exponent of the least normal number, code of the largest result,
 * first magnitude that is no number, the NaN. */
struct kind {
    int mantissa, least;
    uint64_t most, special, nan;
};

static const struct kind kinds[DT_COUNT] = {
    [DT_HALF] = {10, -14, 0x7c00, 0x7c00, 0x7e00},
    [DT_FLOAT] = {23, -126, 0x7f800000, 0x7f800000, 0x7fc00000},
    [DT_DOUBLE] = {52, -1022, UINT64_C(0x7ff) << 52, UINT64_C(0x7ff) << 52, UINT64_C(0xfff) << 51},
    [DT_BFLOAT16] = {7, -126, 0x7f80, 0x7f80, 0x7fc0},
    [DT_F8E4M3] = {3, -6, 0x7e, 0x7f, 0x7f},
    [DT_F8E5M2] = {2, -14, 0x7b, 0x7c, 0x7f},
};

static bool whole(enum dtype dtype)
{
    return dtype <= DT_UINT64;
}

static bool with_sign(enum dtype dtype)
{
    return dtype == DT_INT8 || dtype == DT_INT32 || dtype == DT_INT64;
}

static uint64_t sign_bit(enum dtype dtype)
{
    return UINT64_C(1) << (8 * dtype_bytes(dtype) - 1);
}

static long double decode(enum dtype dtype, uint64_t bits)
{
    const struct kind *kind = &kinds[dtype];
    uint64_t magnitude = bits & (sign_bit(dtype) - 1);
    long double value = INFINITY;
    if (whole(dtype)) {
        bool minus = with_sign(dtype) && bits & sign_bit(dtype);
        return minus ? (long double)bits - 2 * (long double)sign_bit(dtype) : (long double)bits;
    }
    if (magnitude < kind->special) {
        uint64_t one = UINT64_C(1) << kind->mantissa, fraction = magnitude & (one - 1);
        int field = (int)(magnitude >> kind->mantissa);
        if (field > 0) fraction += one;
        value =
            ldexpl((long double)fraction, kind->least - kind->mantissa + (field ? field - 1 : 0));
    } else if (dtype == DT_F8E4M3 || magnitude > kind->special) {
        return NAN;
    }
    return bits & sign_bit(dtype) ? -value : value;
}

static uint64_t encode_integer(enum dtype dtype, long double value)
{
    long double most = (long double)(sign_bit(dtype) - 1), least = -most - 1;
    if (!with_sign(dtype)) {
        most = (long double)(sign_bit(dtype) - 1 + sign_bit(dtype));
        least = 0;
    }
    if (isnan(value)) return 0;
    value = fminl(fmaxl(truncl(value), least), most);
    return value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
}

/* The significand as an integer is rounded by rintl, to nearest even; put behind the exponent, a
 * carry or a leading one counts it up. */
static uint64_t encode_float(enum dtype dtype, long double value)
{
    const struct kind *kind = &kinds[dtype];
    uint64_t sign = signbit(value) ? sign_bit(dtype) : 0, code = kind->most;
    long double magnitude = fabsl(value);
    if (isnan(value)) return kind->nan;
    if (magnitude < ldexpl(1, 1100)) {
        int exponent = magnitude > 0 ? ilogbl(magnitude) : kind->least;
        if (exponent < kind->least) exponent = kind->least;
        code = (uint64_t)rintl(ldexpl(magnitude, kind->mantissa - exponent));
        code += (uint64_t)(exponent - kind->least) << kind->mantissa;
        if (code > kind->most) code = kind->most;
    }
    return sign | code;
}

/* The bits that `bits` must become. */
static uint64_t expected(enum dtype to, enum dtype from, uint64_t bits)
{
    uint64_t mask = sign_bit(to) - 1 + sign_bit(to);
    if (to == from) return bits;
    if (whole(to) && whole(from)) {
        bool minus = with_sign(from) && bits & sign_bit(from);
        return (minus ? bits | ~(sign_bit(from) - 1) : bits) & mask;
    }
    long double value = decode(from, bits);
    return (whole(to) ? encode_integer(to, value) : encode_float(to, value)) & mask;
}

static uint64_t element(enum dtype dtype, const void *buf, size_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const uint8_t *)buf + i * dtype_bytes(dtype), dtype_bytes(dtype));
    return bits;
}

/* All of `count` elements to all types. */
static void convert_all(enum dtype from, const void *src, size_t count)
{
    uint8_t *dst = malloc(count * 8 + 1);
    for (unsigned to = 0; to < DT_COUNT; to++) {
        size_t bytes = count * dtype_bytes(to);
        memset(dst, 0xa5, count * 8 + 1);
        kernels_convert(dst, to, src, from, count);
        for (size_t i = 0; i < count; i++) {
            uint64_t bits = element(from, src, i), want = expected(to, from, bits);
            uint64_t got = element(to, dst, i);
            if (got != want)
                cr_assert_fail("%s %016lx is %lx in %s, not %lx", dtype_name(from), bits, want,
                               dtype_name(to), got);
        }
        cr_assert_eq(dst[bytes], 0xa5, "%s to %s writes too far", dtype_name(from), dtype_name(to));
    }
    free(dst);
}

Test(convert, every_value_of_8_and_16_bits)
{
    static uint16_t src[1 << 16];
    for (unsigned from = 0; from < DT_COUNT; from++) {
        if (dtype_bytes(from) > 2) continue;
        size_t count = (size_t)1 << 8 * dtype_bytes(from);
        for (size_t i = 0; i < count; i++) {
            put(from, src, i, (uint64_t)i << (64 - 8 * dtype_bytes(from)));
        }
        convert_all(from, src, count);
    }
}

/* Numbers a little beside the middle between two neighbours of a narrower type: what is wrong when
 * rounded twice. */
static uint64_t beside_a_middle(struct rng *rng, enum dtype dtype)
{
    unsigned width = 8 * (unsigned)dtype_bytes(dtype), kept = 2 + (unsigned)rng_below(rng, 30);
    uint64_t bits = rng_next(rng) >> (64 - width);
    if (whole(dtype)) bits >>= rng_below(rng, width - 1);
    if (kept < width) bits &= ~(UINT64_MAX >> (64 - width) >> kept);
    uint64_t least = bits & (0 - bits); /* the last one kept, above which all stays */
    bits += rng_below(rng, 3);
    return (rng_below(rng, 2) ? bits : bits - (least > 2)) << (64 - width);
}

Test(convert, wider_types)
{
    enum { COUNT = 20000 };
    static uint64_t src[COUNT];
    struct rng rng;
    rng_init(&rng, 5);
    for (unsigned from = 0; from < DT_COUNT; from++) {
        if (dtype_bytes(from) <= 2) continue;
        random_elements(&rng, from, src, COUNT / 2);
        for (size_t i = COUNT / 2; i < COUNT; i++) {
            put(from, src, i, beside_a_middle(&rng, from));
        }
        convert_all(from, src, COUNT);
    }
}

/* Doubles beside every middle of the narrow float types, both sides, and the middles. */
Test(convert, doubles_at_every_middle)
{
    enum { NAROUND = 3, MOST = NAROUND << 16 };
    static double src[MOST];
    for (unsigned to = DT_HALF; to < DT_COUNT; to++) {
        size_t count = 0;
        if (dtype_bytes(to) > 2) continue;
        for (uint64_t code = 0; code + 1 < kinds[to].special; code++) {
            double middle = (double)((decode(to, code) + decode(to, code + 1)) / 2);
            src[count++] = nextafter(middle, 0);
            src[count++] = -middle;
            src[count++] = nextafter(middle, INFINITY);
        }
        convert_all(DT_DOUBLE, src, count);
    }
}

/* Integers beside the middles, and the ends. */
Test(convert, integers_beside_middles)
{
    static uint64_t src[64 * 64 * 5];
    size_t count = 0;
    for (unsigned high = 0; high < 64; high++) {
        for (unsigned low = 0; low < high; low++) {
            for (uint64_t by = 0; by < 5; by++) {
                src[count++] = (UINT64_C(1) << high) + (UINT64_C(1) << low) + by - 2;
            }
        }
    }
    convert_all(DT_UINT64, src, count);
    convert_all(DT_INT64, src, count);
}

Test(convert, any_count_and_none)
{
    static uint32_t src[70];
    struct rng rng;
    rng_init(&rng, 6);
    random_elements(&rng, DT_FLOAT, src, 70);
    for (size_t count = 0; count <= 70; count++) {
        convert_all(DT_FLOAT, src, count);
    }
    kernels_convert(NULL, DT_HALF, NULL, DT_FLOAT, 0);
}
