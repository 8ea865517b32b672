/* SPDX-License-Identifier: Apache-2.0
 * Elements on a GPU: how each type is widened, combined and narrowed, in the words of struct fold
 * in kernels.h and to the same bits as the plain C reference. Elements travel as their bits, alone
 * or 16 bytes at a time; a combine of 16 bytes is one of each element in them. */
#pragma once

#include "kernels/cuda/prims.cuh"
#include "kernels/narrow.h"

/* ---- the types ------------------------------------------------------------------------------- */

/* bits: what is loaded and stored; value: what is compared; work: unsigned, holds any bits. */
template <class B, class V, class W> struct element_of {
    typedef B bits;
    typedef V value;
    typedef W work;
};

template <enum dtype T> struct element;
template <> struct element<DT_INT8> : element_of<uint8_t, int8_t, uint32_t> {
};
template <> struct element<DT_UINT8> : element_of<uint8_t, uint8_t, uint32_t> {
};
template <> struct element<DT_INT32> : element_of<uint32_t, int32_t, uint32_t> {
};
template <> struct element<DT_UINT32> : element_of<uint32_t, uint32_t, uint32_t> {
};
template <> struct element<DT_INT64> : element_of<uint64_t, int64_t, uint64_t> {
};
template <> struct element<DT_UINT64> : element_of<uint64_t, uint64_t, uint64_t> {
};
template <> struct element<DT_HALF> : element_of<uint16_t, float, uint32_t> {
};
template <> struct element<DT_FLOAT> : element_of<uint32_t, float, uint32_t> {
};
template <> struct element<DT_DOUBLE> : element_of<uint64_t, double, uint64_t> {
};
template <> struct element<DT_BFLOAT16> : element_of<uint16_t, float, uint32_t> {
};
template <> struct element<DT_F8E4M3> : element_of<uint8_t, float, uint32_t> {
};
template <> struct element<DT_F8E5M2> : element_of<uint8_t, float, uint32_t> {
};

template <enum dtype T> using bits_of = typename element<T>::bits;
template <enum dtype T> using value_of = typename element<T>::value;

/* The value of an element. Exact. */
template <enum dtype T> static __device__ __forceinline__ value_of<T> widen(bits_of<T> bits)
{
    if constexpr (T == DT_DOUBLE) {
        return bits_double(bits);
    } else if constexpr (T <= DT_UINT64) {
        return (value_of<T>)bits;
    } else if constexpr (T == DT_HALF) {
        return half_to_float(bits);
    } else {
        return narrow_value(T, bits);
    }
}

/* The bits of a value: floats to nearest even, f8 saturates, any NaN gives the type's one. */
template <enum dtype T> static __device__ __forceinline__ bits_of<T> narrow(value_of<T> value)
{
    if constexpr (T == DT_DOUBLE) {
        return value == value ? double_bits(value) : DOUBLE_NAN_BITS;
    } else if constexpr (T <= DT_UINT64) {
        return (bits_of<T>)value;
    } else if constexpr (T == DT_HALF) {
        return half_from_float_rn(value);
    } else {
        return (bits_of<T>)narrow_bits(T, value);
    }
}

/* ---- one (+) --------------------------------------------------------------------------------- */

/* Integers: the quotient of the magnitudes with the sign of the sum is what truncation gives. */
template <enum dtype T>
static __device__ __forceinline__ bits_of<T> divide_integer(bits_of<T> sum, uint32_t divisor)
{
    constexpr bool has_sign = T == DT_INT8 || T == DT_INT32 || T == DT_INT64;
    typename element<T>::work magnitude = sum;
    bool minus = has_sign && sum >> (8 * sizeof sum - 1);
    if (minus) magnitude = (bits_of<T>)(0 - magnitude);
    magnitude /= divisor;
    return (bits_of<T>)(minus ? 0 - magnitude : magnitude);
}

/* a (+) b; `divisor` > 1 (avg alone): divided by it, before floats are rounded to a narrow type. */
template <enum dtype T, enum redop OP>
static __device__ __forceinline__ bits_of<T> combine(bits_of<T> a, bits_of<T> b, uint32_t divisor)
{
    if constexpr (OP == OP_MAX || OP == OP_MIN) {
        value_of<T> x = widen<T>(a), y = widen<T>(b);
        return (OP == OP_MAX ? x < y : y < x) || y != y ? b : a;
    } else if constexpr (T <= DT_UINT64) {
        typename element<T>::work x = a, y = b;
        bits_of<T> result = (bits_of<T>)(OP == OP_PROD ? x * y : x + y);
        return OP == OP_AVG && divisor > 1 ? divide_integer<T>(result, divisor) : result;
    } else {
        value_of<T> x = widen<T>(a), y = widen<T>(b), result = OP == OP_PROD ? x * y : x + y;
        if (OP == OP_AVG && divisor > 1) result /= (value_of<T>)divisor;
        return narrow<T>(result);
    }
}

/* ---- 16 bytes of elements -------------------------------------------------------------------- */

template <enum dtype T, enum redop OP>
static __device__ __forceinline__ uint32_t combine_word(uint32_t a, uint32_t b, uint32_t divisor)
{
    uint32_t result = 0;
#pragma unroll
    for (uint32_t at = 0; at < 32; at += 8 * sizeof(bits_of<T>)) {
        bits_of<T> x = (bits_of<T>)(a >> at), y = (bits_of<T>)(b >> at);
        result |= (uint32_t)combine<T, OP>(x, y, divisor) << at;
    }
    return result;
}

/* Two words of 8-byte elements or of smaller ones, in *a and *b. */
template <enum dtype T, enum redop OP>
static __device__ __forceinline__ void combine_words(uint32_t *a0, uint32_t *a1, uint32_t b0,
                                                     uint32_t b1, uint32_t divisor)
{
    if constexpr (sizeof(bits_of<T>) == 8) {
        uint64_t a = (uint64_t)*a1 << 32 | *a0, b = (uint64_t)b1 << 32 | b0;
        a = combine<T, OP>(a, b, divisor);
        *a0 = (uint32_t)a;
        *a1 = (uint32_t)(a >> 32);
    } else {
        *a0 = combine_word<T, OP>(*a0, b0, divisor);
        *a1 = combine_word<T, OP>(*a1, b1, divisor);
    }
}

template <enum dtype T, enum redop OP>
static __device__ __forceinline__ uint4 combine(uint4 a, uint4 b, uint32_t divisor)
{
    combine_words<T, OP>(&a.x, &a.y, b.x, b.y, divisor);
    combine_words<T, OP>(&a.z, &a.w, b.z, b.w, divisor);
    return a;
}
