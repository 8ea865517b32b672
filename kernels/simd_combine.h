/* SPDX-License-Identifier: Apache-2.0
 * One (+) on vectors of VB bytes for every type and operator: see kernels.h for what it gives.
 * Lanes stay where they are: narrow elements are taken out of 32-bit lanes by shifts and put back
 * by shifts, so that nothing crosses a lane. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd_narrow.h"

/* What a fold does, constant after inlining; OP_AVG here always divides. */
struct how {
    enum dtype dtype;
    enum redop op;
};

/* What the last (+) of an average needs: made once per call. */
struct divide {
    vf by; /* floats: the divisor */
    vd by_double;
    float inverse_8;            /* integers: just above 1 / divisor */
    double inverse_32;          /* the same */
    uint64_t inverse_64, by_64; /* floor(2^64 / divisor), the divisor */
};

static INLINE size_t how_bytes(struct how how)
{
    switch (how.dtype) {
    case DT_INT8:
    case DT_UINT8:
    case DT_F8E4M3:
    case DT_F8E5M2:
        return 1;
    case DT_HALF:
    case DT_BFLOAT16:
        return 2;
    case DT_INT64:
    case DT_UINT64:
    case DT_DOUBLE:
        return 8;
    default:
        return 4;
    }
}

/* Much is computed per element: then loops are kept short, as what they load costs little. */
static INLINE bool is_heavy(struct how how)
{
    if (how.op == OP_MAX || how.op == OP_MIN) return false;
    if (how.dtype <= DT_UINT64) return how.op == OP_AVG && how_bytes(how) != 4;
    bool narrow = how_bytes(how) == 1 || how.dtype == DT_HALF;
    return narrow && (VB == 16 || (how.op == OP_AVG && how_bytes(how) == 1));
}

/* What is used most gets loops of its own for its commonest shapes. */
static INLINE bool is_common(struct how how)
{
    if (how.op == OP_PROD || how.op == OP_MIN) return false;
    return how.dtype == DT_FLOAT || how.dtype == DT_INT32 || how.dtype == DT_BFLOAT16 ||
           how.dtype == DT_HALF || how.dtype == DT_DOUBLE;
}

/* A vector of 2 VB/4 bfloat16 is handled as two of VB/4 floats: the low halves of its words, moved
 * up, and the high halves. */
static INLINE vf bf16_low(vu v)
{
    return (vf)(v << 16);
}

static INLINE vf bf16_high(vu v)
{
    return (vf)(v & 0xffff0000u);
}

/* ---- max and min ----------------------------------------------------------------------------- */

/* Lanes of 2 or 1 bytes where float x < float y, a is no NaN, or b is one, from their bits: a
 * magnitude with its sign is compared as a number, in which the two zeros are one. `most` is the
 * largest magnitude that is no NaN. x, y are a, b in one order or the other. */
#define NARROW_TAKES_B(name, type, lane, bits)                                                     \
    static INLINE vu name(vu x, vu y, vu a, vu b, lane most)                                       \
    {                                                                                              \
        type low = (type)x & bits, high = (type)y & bits;                                          \
        type low_sign = (type)((type)x < 0), high_sign = (type)((type)y < 0);                      \
        type less = ((low ^ low_sign) - low_sign) < ((high ^ high_sign) - high_sign);              \
        return (vu)((less & (((type)a & bits) <= most)) | (((type)b & bits) > most));              \
    }

NARROW_TAKES_B(takes_b_16, vh, int16_t, 0x7fff)
NARROW_TAKES_B(takes_b_8, vi8, int8_t, 0x7f)

static INLINE vu bf16_join(vu low, vu high)
{
    return (low >> 16) | (high & 0xffff0000u);
}

static INLINE vu takes_b_float(vu x, vu y, vu b)
{
    return (vu)(((vf)x < (vf)y) | ((vf)b != (vf)b));
}

/* Lanes where the result is b. */
static INLINE vu takes_b(vu a, vu b, struct how how)
{
    vu x = how.op == OP_MIN ? b : a, y = how.op == OP_MIN ? a : b; /* if x < y */
    switch (how.dtype) {
    case DT_INT8:
        return (vu)((vi8)x < (vi8)y);
    case DT_UINT8:
        return (vu)((vu8)x < (vu8)y);
    case DT_INT32:
        return (vu)((vi)x < (vi)y);
    case DT_UINT32:
        return (vu)(x < y);
    case DT_INT64:
        return (vu)((vl)x < (vl)y);
    case DT_UINT64:
        return (vu)((vq)x < (vq)y);
    case DT_HALF:
        return takes_b_16(x, y, a, b, 0x7c00);
    case DT_BFLOAT16:
        return bf16_join(takes_b_float((vu)bf16_low(x), (vu)bf16_low(y), (vu)bf16_low(b)),
                         takes_b_float((vu)bf16_high(x), (vu)bf16_high(y), (vu)bf16_high(b)));
    case DT_F8E4M3:
        return takes_b_8(x, y, a, b, 0x7e);
    case DT_F8E5M2:
        return takes_b_8(x, y, a, b, 0x7c);
    case DT_DOUBLE:
        return (vu)(((vd)x < (vd)y) | ((vd)b != (vd)b));
    default:
        return takes_b_float(x, y, b);
    }
}

/* ---- integers -------------------------------------------------------------------------------- */

static INLINE vu combine_integers(vu a, vu b, struct how how)
{
    bool multiply = how.op == OP_PROD;
    switch (how_bytes(how)) {
    case 1:
        return multiply ? (vu)((vu8)a * (vu8)b) : (vu)((vu8)a + (vu8)b);
    case 4:
        return multiply ? a * b : a + b;
    default:
        return multiply ? (vu)((vq)a * (vq)b) : (vu)((vq)a + (vq)b);
    }
}

/* Truncating division of every lane of 1 byte, as floats. `inverse` is above 1 / divisor by 2^-22
 * to 2^-20 of it, so for |a| <= 255 the product has the sign of a and lies at or above
 * |a| / divisor by less than 1 / divisor: truncation gives the quotient. */
static INLINE vu divide_8(vu sum, struct how how, float inverse)
{
    vu result = {0};
    for (int at = 0; at < 32; at += 8) {
        vu top = sum << (24 - at);
        vi lane = how.dtype == DT_INT8 ? (vi)top >> 24 : (vi)(top >> 24);
        vf quotient = __builtin_convertvector(lane, vf) * inverse;
        result |= ((vu) __builtin_convertvector(quotient, vi) & 0xff) << at;
    }
    return result;
}

/* The same for 4 bytes, as doubles: `inverse` is above by 2^-54 to 2^-51, and |a| < 2^32. */
#define DIVIDE_32(name, type)                                                                      \
    static INLINE vu name(vu sum, double inverse)                                                  \
    {                                                                                              \
        type lane[VB / 4];                                                                         \
        __builtin_memcpy(lane, &sum, VB);                                                          \
        for (int i = 0; i < VB / 4; i++) {                                                         \
            lane[i] = (type)((double)lane[i] * inverse);                                           \
        }                                                                                          \
        __builtin_memcpy(&sum, lane, VB);                                                          \
        return sum;                                                                                \
    }

DIVIDE_32(divide_int32, int32_t)
DIVIDE_32(divide_uint32, uint32_t)

/* The same for 8 bytes, in integers. With m = floor(2^64 / divisor), floor(a m / 2^64) is the
 * quotient of a < 2^64 or one less: a m / 2^64 falls short of a / divisor by less than 1. */
static INLINE vu divide_64(vu sum, struct how how, const struct divide *divide)
{
    vq sign = how.dtype == DT_INT64 ? (vq)((vl)sum < 0) : (vq){0};
    vq a = ((vq)sum ^ sign) - sign, m = (vq){} + divide->inverse_64;
    vq a0 = a & 0xffffffffu, a1 = a >> 32, m0 = m & 0xffffffffu, m1 = m >> 32;
    vq middle = a1 * m0 + (a0 * m0 >> 32), other = a0 * m1 + (middle & 0xffffffffu);
    vq quotient = a1 * m1 + (middle >> 32) + (other >> 32);
    vq short_by_one = (vq)(a - quotient * divide->by_64 >= divide->by_64);
    quotient -= short_by_one;
    return (vu)((quotient ^ sign) - sign);
}

static INLINE vu divide_integers(vu sum, struct how how, const struct divide *divide)
{
    switch (how_bytes(how)) {
    case 1:
        return divide_8(sum, how, divide->inverse_8);
    case 4:
        return how.dtype == DT_INT32 ? divide_int32(sum, divide->inverse_32)
                                     : divide_uint32(sum, divide->inverse_32);
    default:
        return divide_64(sum, how, divide);
    }
}

/* ---- floats ---------------------------------------------------------------------------------- */

static INLINE vf combine_wide(vf a, vf b, struct how how, const vf *by)
{
    if (how.op == OP_PROD) return a * b;
    return by ? (a + b) / *by : a + b;
}

/* To nearest even. A NaN stays one: it came from bfloat16 values or is the default NaN, so its low
 * half is zero and nothing is carried. */
static INLINE vu bf16_round(vf value)
{
    vu bits = (vu)value;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

/* `by` for the last (+) of an average, else NULL; so below. */
static INLINE vu combine_bf16(vu a, vu b, struct how how, const vf *by)
{
    vu low = bf16_round(combine_wide(bf16_low(a), bf16_low(b), how, by));
    vu high = bf16_round(combine_wide(bf16_high(a), bf16_high(b), how, by));
    return bf16_join(low, high);
}

static INLINE vu combine_half(vu a, vu b, struct how how, const vf *by)
{
    vf a0, a1, b0, b1;
    widen_half(a, &a0, &a1);
    widen_half(b, &b0, &b1);
    return narrow_half(combine_wide(a0, b0, how, by), combine_wide(a1, b1, how, by));
}

/* Averages: the four bytes of a word one after another. */
static INLINE vu average_f8(vu a, vu b, struct how how, const vf *by)
{
    struct format format = how.dtype == DT_F8E4M3 ? format_e4m3 : format_e5m2;
    vu result = {0};
    for (int up = 0; up < 32; up += 8) {
        vf low = widen_top(format, a << up), high = widen_top(format, b << up);
        result |= narrow_top(format, (low + high) / *by) >> up;
    }
    return result;
}

/* Sums and products of f8 in the upper bytes of 16 bits go by way of half: f8e5m2 is its upper
 * byte, and f8e4m3, one to the right, is half of 1/256 of the value. A sum or product of numbers of
 * p bits that is rounded to 2p + 2 bits or more first (here half's 11) is rounded to p as if at
 * once (S. A. Figueroa, When is double rounding innocuous?, 1995); subnormal ones are exact in
 * half. */
static INLINE vu combine_f8_top(vu a, vu b, struct how how)
{
    bool e4m3 = how.dtype == DT_F8E4M3;
    vf a0, a1, b0, b1;
    widen_half(e4m3 ? (vu)((vh)a >> 1 & (short)0xbf80) : a & 0xff00ff00u, &a0, &a1);
    widen_half(e4m3 ? (vu)((vh)b >> 1 & (short)0xbf80) : b & 0xff00ff00u, &b0, &b1);
    if (e4m3 && how.op == OP_PROD) {
        a0 *= 256;
        a1 *= 256;
    }
    vu16 half = (vu16)narrow_half(combine_wide(a0, b0, how, NULL), combine_wide(a1, b1, how, NULL));
    vu16 magnitude = half & 0x7fff;
    vu16 rounded =
        e4m3 ? magnitude + 0x3f + (magnitude >> 7 & 1) : magnitude + 0x7f + (magnitude >> 8 & 1);
    uint16_t cap = e4m3 ? 0x7e << 7 : 0x7b << 8;
    vu most = (vu)((vu16){} + cap);
    vu16 code = (vu16)select_mask((vi)((vh)rounded < (vh)most), (vu)rounded, most);
    code = ((e4m3 ? code << 1 : code) & 0x7f00) | (half & 0x8000);
    if (e4m3) return (vu)code;
    return select_mask((vi)((vh)magnitude > 0x7c00), (vu){} + (F8_NAN << 24 | F8_NAN << 8),
                       (vu)code);
}

static INLINE vu combine_f8(vu a, vu b, struct how how)
{
    vu high = combine_f8_top(a, b, how);
    vu low = combine_f8_top((vu)((vu16)a << 8), (vu)((vu16)b << 8), how);
    vu result = high | (low >> 8);
    if (how.dtype == DT_F8E5M2) return result;
    vi8 is_nan = (((vi8)a & 0x7f) == 0x7f) | (((vi8)b & 0x7f) == 0x7f);
    return select_mask((vi)is_nan, (vu)((vi8){} + F8_NAN), result);
}

static INLINE vu combine_floats(vu a, vu b, struct how how, const struct divide *divide)
{
    const vf *by = divide ? &divide->by : NULL;
    vd sum;
    switch (how.dtype) {
    case DT_HALF:
        return combine_half(a, b, how, by);
    case DT_BFLOAT16:
        return combine_bf16(a, b, how, by);
    case DT_F8E4M3:
    case DT_F8E5M2:
        return by ? average_f8(a, b, how, by) : combine_f8(a, b, how);
    case DT_DOUBLE:
        if (how.op == OP_PROD) return (vu)((vd)a * (vd)b);
        sum = (vd)a + (vd)b;
        return (vu)(divide ? sum / divide->by_double : sum);
    default:
        return (vu)combine_wide((vf)a, (vf)b, how, by);
    }
}

/* Makes every NaN the same one. 8-bit floats have only that one already. */
static INLINE vu one_nan(vu v, struct how how)
{
    vh is_nan;
    switch (how.dtype) {
    case DT_HALF:
        is_nan = ((vh)v & 0x7fff) > 0x7c00;
        return select_mask((vi)is_nan, (vu)((vh){} + HALF_NAN), v);
    case DT_BFLOAT16:
        is_nan = ((vh)v & 0x7fff) > 0x7f80;
        return select_mask((vi)is_nan, (vu)((vh){} + BF16_NAN), v);
    case DT_FLOAT:
        return select_mask((vf)v != (vf)v, (vu){} + FLOAT_NAN_BITS, v);
    case DT_DOUBLE:
        return select_mask((vi)((vd)v != (vd)v), (vu)((vq){} + DOUBLE_NAN_BITS), v);
    default:
        return v;
    }
}

/* ---- any ------------------------------------------------------------------------------------- */

static INLINE bool is_integer(enum dtype dtype)
{
    return dtype <= DT_UINT64;
}

/* One (+). */
static INLINE vu combine(vu a, vu b, struct how how)
{
    if (how.op == OP_MAX || how.op == OP_MIN) return select_mask((vi)takes_b(a, b, how), b, a);
    if (is_integer(how.dtype)) return combine_integers(a, b, how);
    return combine_floats(a, b, how, NULL);
}

/* The last (+): also divides, and makes every NaN of a sum or product the same one. */
static INLINE vu combine_last(vu a, vu b, struct how how, const struct divide *divide)
{
    if (how.op == OP_MAX || how.op == OP_MIN) return combine(a, b, how);
    if (is_integer(how.dtype)) {
        vu result = combine_integers(a, b, how);
        return how.op == OP_AVG ? divide_integers(result, how, divide) : result;
    }
    return one_nan(combine_floats(a, b, how, how.op == OP_AVG ? divide : NULL), how);
}

static INLINE struct divide divide_by(uint32_t divisor, struct how how)
{
    struct divide divide = {0};
    if (how.op != OP_AVG) return divide;
    divide.by = (vf){} + (float)divisor;
    divide.by_double = (vd){} + (double)divisor;
    divide.inverse_8 = (float)(1.0 / divisor * (1 + 0x1p-21));
    divide.inverse_32 = 1.0 / divisor * (1 + 0x1p-52);
    divide.inverse_64 = (uint64_t)(((unsigned __int128)1 << 64) / divisor);
    divide.by_64 = divisor;
    return divide;
}
