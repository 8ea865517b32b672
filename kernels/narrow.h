/* SPDX-License-Identifier: Apache-2.0
 * Narrow floats to float and back, one value at a time, in integer operations without a branch, so
 * that a compiler can vectorise loops over them. For the other files of this folder. */
#pragma once

#include <string.h>

#include "kernels/kernels.h"

/* A float type narrower than float: sign, exponent, mantissa from the highest bit down. */
struct format {
    uint32_t width;    /* bits in all */
    uint32_t mantissa; /* bits of it that are stored */
    uint32_t bias;     /* of the exponent */
    uint32_t clamp;    /* float bits: magnitudes beyond become this before they are rounded */
    uint32_t special;  /* magnitudes from here on are infinite or NaN */
    uint32_t nan;      /* the one that results have */
};

/* half: what is rounded from 65536, which has the pattern of the infinity. */
static const struct format format_half = {16, 10, 15, 0x47800000, 0x7c00, HALF_NAN};
static const struct format format_e4m3 = {8, 3, 7, 0x43e00000, 0x7f, F8_NAN};  /* 448 */
static const struct format format_e5m2 = {8, 2, 15, 0x47600000, 0x7c, F8_NAN}; /* 57344 */

static inline float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Exact: the bits in the place that they have in a float, times the ratio of the biases, which also
 * puts subnormals right. */
static inline float widened(struct format format, uint32_t bits)
{
    uint32_t magnitude = bits & ((1u << (format.width - 1)) - 1);
    uint32_t sign = bits >> (format.width - 1) << 31, up = 23 - format.mantissa;
    float value = bits_float(magnitude << up) * bits_float((254 - format.bias) << 23);
    uint32_t special = magnitude >= format.special ? 0x7f800000 | magnitude << up : 0;
    return bits_float(float_bits(value) | sign | special);
}

/* To nearest even. Adding the power of two whose last bit is worth the last bit of the result lets
 * the addition do the rounding and leaves the significand as an integer; with the exponent above
 * the least one put on top of it, a significand that was rounded up carries into the exponent. */
static inline uint32_t narrowed(struct format format, float value)
{
    uint32_t bits = float_bits(value), up = 23 - format.mantissa;
    uint32_t magnitude = min_u32(bits & 0x7fffffff, format.clamp);
    uint32_t least = (128 - format.bias) << 23;
    uint32_t exponent = max_u32(magnitude & 0x7f800000, least), anchor = exponent + (up << 23);
    uint32_t significand = float_bits(bits_float(magnitude) + bits_float(anchor)) - anchor;
    uint32_t code = significand + ((exponent - least) >> up);
    code |= bits >> 31 << (format.width - 1);
    return (bits & 0x7fffffff) > 0x7f800000 ? format.nan : code;
}

/* bfloat16. */
static inline uint32_t bf16_bits(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? (uint32_t)BF16_NAN : rounded;
}
