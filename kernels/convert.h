/* SPDX-License-Identifier: Apache-2.0
 * One element from any type to any other, as kernels_convert in kernels.h says: for the loops on
 * the CPU and for code on a GPU. Types are constants where this is called, so that one way through
 * is left of each function. For the files of this folder. */
#pragma once

#include "kernels/narrow.h"

KERNEL_INLINE bool is_signed(enum dtype dtype)
{
    return dtype == DT_INT8 || dtype == DT_INT32 || dtype == DT_INT64;
}

/* The bits of an integer with its sign in all bits above. */
KERNEL_INLINE uint64_t sign_extended(enum dtype dtype, uint64_t bits)
{
    if (dtype == DT_INT8) return (uint64_t)(int64_t)(int8_t)bits;
    return dtype == DT_INT32 ? (uint64_t)(int64_t)(int32_t)bits : bits;
}

/* To float, rounded to odd: towards zero, with the last bit set unless exact. What is then rounded
 * to nearest in a type of 22 bits or less comes out as if rounded once (Boldo and Melquiond,
 * "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008). */
KERNEL_INLINE float odd_float(double value)
{
    float nearest = (float)value;
    double back = (double)nearest;
    if (back == value || value != value) return nearest;
    uint32_t beyond = value < 0 ? back < value : back > value;
    return bits_float((float_bits(nearest) - beyond) | 1);
}

/* An integer whose sign is extended, as a double rounded to odd (of 53 bits at least). */
KERNEL_INLINE double odd_double(bool minus, uint64_t bits)
{
    uint64_t magnitude = minus ? 0 - bits : bits;
    uint64_t below = magnitude & 0x7ff;
    if (magnitude >> 53) magnitude = (magnitude - below) | (below ? 0x800 : 0);
    return minus ? -(double)magnitude : (double)magnitude;
}

KERNEL_INLINE uint64_t from_integer(enum dtype to, bool minus, uint64_t bits)
{
    if (to <= DT_UINT64) return bits;
    if (to == DT_DOUBLE) return double_bits(minus ? (double)(int64_t)bits : (double)bits);
    if (to == DT_FLOAT) return float_bits(minus ? (float)(int64_t)bits : (float)bits);
    return narrow_bits(to, odd_float(odd_double(minus, bits)));
}

/* The integer next to a number on the side of zero, or the type's nearest. NaN gives 0. */
KERNEL_INLINE uint64_t to_integer(enum dtype to, double value)
{
    if (value != value) return 0;
    switch (to) {
    case DT_UINT64:
        return value <= 0 ? 0 : value >= 0x1p64 ? UINT64_MAX : (uint64_t)value;
    case DT_INT64:
        if (value >= 0x1p63) return INT64_MAX;
        return (uint64_t)(value <= -0x1p63 ? INT64_MIN : (int64_t)value);
    default: {
        double most = to == DT_INT8    ? INT8_MAX
                      : to == DT_UINT8 ? UINT8_MAX
                      : to == DT_INT32 ? (double)INT32_MAX
                                       : (double)UINT32_MAX;
        double least = is_signed(to) ? -most - 1 : 0;
        value = value < least ? least : value;
        return (uint64_t)(int64_t)(value > most ? most : value);
    }
    }
}

/* `bits` in the low bytes, so the result. */
KERNEL_INLINE uint64_t converted(enum dtype to, enum dtype from, uint64_t bits)
{
    if (to == from) return bits;
    if (from <= DT_UINT64) {
        bits = sign_extended(from, bits);
        return from_integer(to, is_signed(from) && bits >> 63, bits);
    }
    if (from == DT_DOUBLE) {
        double value = bits_double(bits);
        if (to <= DT_UINT64) return to_integer(to, value);
        return narrow_bits(to, to == DT_FLOAT ? (float)value : odd_float(value));
    }
    float value = narrow_value(from, (uint32_t)bits);
    if (to <= DT_UINT64) return to_integer(to, (double)value);
    if (to != DT_DOUBLE) return narrow_bits(to, value);
    return value == value ? double_bits((double)value) : DOUBLE_NAN_BITS;
}
