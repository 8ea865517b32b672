/* SPDX-License-Identifier: Apache-2.0
 * Narrow floats to float and back, one value at a time, in integer operations without a branch, so
 * that a compiler can vectorise loops over them. For the other files of this folder, and for code
 * on a GPU: what both have is KERNEL_INLINE. */
#pragma once

#include <string.h>

#include "kernels/kernels.h"

#ifdef __CUDACC__
#define KERNEL_INLINE static __host__ __device__ __forceinline__
#define KERNEL_CONST static constexpr
#else
#define KERNEL_INLINE static inline
#define KERNEL_CONST static const
#endif

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
KERNEL_CONST struct format format_half = {16, 10, 15, 0x47800000, 0x7c00, HALF_NAN};
KERNEL_CONST struct format format_e4m3 = {8, 3, 7, 0x43e00000, 0x7f, F8_NAN};  /* 448 */
KERNEL_CONST struct format format_e5m2 = {8, 2, 15, 0x47600000, 0x7c, F8_NAN}; /* 57344 */

KERNEL_INLINE float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

KERNEL_INLINE uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

KERNEL_INLINE double bits_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

KERNEL_INLINE uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

KERNEL_INLINE uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

KERNEL_INLINE uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Exact: the bits in the place that they have in a float, times the ratio of the biases, which also
 * puts subnormals right. */
KERNEL_INLINE float widened(struct format format, uint32_t bits)
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
KERNEL_INLINE uint32_t narrowed(struct format format, float value)
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
KERNEL_INLINE uint32_t bf16_bits(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? (uint32_t)BF16_NAN : rounded;
}

/* narrow_to_float and narrow_from_float of kernels.h, for loops over one type. */
KERNEL_INLINE float narrow_value(enum dtype dtype, uint32_t bits)
{
    switch (dtype) {
    case DT_HALF:
        return widened(format_half, bits);
    case DT_F8E4M3:
        return widened(format_e4m3, bits);
    case DT_F8E5M2:
        return widened(format_e5m2, bits);
    case DT_BFLOAT16:
        return bits_float(bits << 16);
    default:
        return dtype == DT_FLOAT ? bits_float(bits) : 0;
    }
}

KERNEL_INLINE uint32_t narrow_bits(enum dtype dtype, float value)
{
    switch (dtype) {
    case DT_HALF:
        return narrowed(format_half, value);
    case DT_F8E4M3:
        return narrowed(format_e4m3, value);
    case DT_F8E5M2:
        return narrowed(format_e5m2, value);
    case DT_BFLOAT16:
        return bf16_bits(value);
    default:
        return dtype != DT_FLOAT ? 0
               : value == value  ? float_bits(value)
                                 : (uint32_t)FLOAT_NAN_BITS;
    }
}

/* dtype_bytes of kernels.h, for code that is not linked with it. */
KERNEL_INLINE uint32_t esize_of(enum dtype dtype)
{
    switch (dtype) {
    case DT_INT32:
    case DT_UINT32:
    case DT_FLOAT:
        return 4;
    case DT_INT64:
    case DT_UINT64:
    case DT_DOUBLE:
        return 8;
    case DT_HALF:
    case DT_BFLOAT16:
        return 2;
    default:
        return 1;
    }
}
