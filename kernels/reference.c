/* SPDX-License-Identifier: Apache-2.0
 * The plain C kernels: one element at a time, in the words of kernels.h. They are the yardstick
 * that every faster version is compared with, bit for bit. */
#include <string.h>

#include "kernels/narrow.h"
#include "kernels/variants.h"

/* A NaN that was computed is always the same NaN: which one hardware gives depends on the machine
 * and on the order in which a compiler writes the operands. */
static float one_nan(float value)
{
    return value == value ? value : bits_float(FLOAT_NAN_BITS);
}

static double one_nan_double(double value)
{
    static const uint64_t bits = DOUBLE_NAN_BITS;
    if (value != value) memcpy(&value, &bits, sizeof value);
    return value;
}

/* One (+) per operator and kind of type; `divisor` > 1: divide after it. */
#define FLOAT_STEPS(type, name, fix)                                                               \
    static type sum_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        type sum = a + b;                                                                          \
        return fix(divisor > 1 ? sum / (type)divisor : sum);                                       \
    }                                                                                              \
    static type prod_##name(type a, type b, uint32_t divisor)                                      \
    {                                                                                              \
        (void)divisor;                                                                             \
        return fix(a * b);                                                                         \
    }                                                                                              \
    static type max_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        (void)divisor;                                                                             \
        return a < b || b != b ? b : a;                                                            \
    }                                                                                              \
    static type min_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        (void)divisor;                                                                             \
        return b < a || b != b ? b : a;                                                            \
    }

FLOAT_STEPS(float, float, one_nan)
FLOAT_STEPS(double, double, one_nan_double)

/* Unsigned arithmetic of 64 bits wraps, and what is cut off above does not matter below. The only
 * quotient that does not fit its type would need a divisor of -1. */
#define INTEGER_STEPS(type, name, divided)                                                         \
    static type sum_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        type sum = (type)((uint64_t)a + (uint64_t)b);                                              \
        if (divisor > 1) sum = (type)((divided)sum / (divided)divisor);                            \
        return sum;                                                                                \
    }                                                                                              \
    static type prod_##name(type a, type b, uint32_t divisor)                                      \
    {                                                                                              \
        (void)divisor;                                                                             \
        return (type)((uint64_t)a * (uint64_t)b);                                                  \
    }                                                                                              \
    static type max_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        (void)divisor;                                                                             \
        return a < b ? b : a;                                                                      \
    }                                                                                              \
    static type min_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        (void)divisor;                                                                             \
        return b < a ? b : a;                                                                      \
    }

INTEGER_STEPS(int8_t, int8, int64_t)
INTEGER_STEPS(uint8_t, uint8, uint64_t)
INTEGER_STEPS(int32_t, int32, int64_t)
INTEGER_STEPS(uint32_t, uint32, uint64_t)
INTEGER_STEPS(int64_t, int64, int64_t)
INTEGER_STEPS(uint64_t, uint64, uint64_t)

/* Narrow floats: a step of float between widening and rounding; max and min choose bits. */
#define NARROW_STEPS(type, name, dtype)                                                            \
    static type sum_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        float sum = sum_float(narrow_to_float(dtype, a), narrow_to_float(dtype, b), divisor);      \
        return (type)narrow_from_float(dtype, sum);                                                \
    }                                                                                              \
    static type prod_##name(type a, type b, uint32_t divisor)                                      \
    {                                                                                              \
        float prod = prod_float(narrow_to_float(dtype, a), narrow_to_float(dtype, b), divisor);    \
        return (type)narrow_from_float(dtype, prod);                                               \
    }                                                                                              \
    static type max_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        (void)divisor;                                                                             \
        float fa = narrow_to_float(dtype, a), fb = narrow_to_float(dtype, b);                      \
        return fa < fb || fb != fb ? b : a;                                                        \
    }                                                                                              \
    static type min_##name(type a, type b, uint32_t divisor)                                       \
    {                                                                                              \
        (void)divisor;                                                                             \
        float fa = narrow_to_float(dtype, a), fb = narrow_to_float(dtype, b);                      \
        return fb < fa || fb != fb ? b : a;                                                        \
    }

NARROW_STEPS(uint16_t, half, DT_HALF)
NARROW_STEPS(uint16_t, bf16, DT_BFLOAT16)
NARROW_STEPS(uint8_t, e4m3, DT_F8E4M3)
NARROW_STEPS(uint8_t, e5m2, DT_F8E5M2)

/* The fold over one (+): every input of element i is read before any output of it is written. */
#define FOLD(name, type, step, divides)                                                            \
    static void name(const struct fold *fold)                                                      \
    {                                                                                              \
        for (size_t i = 0; i < fold->count; i++) {                                                 \
            type acc = ((const type *)fold->in[0])[i];                                             \
            for (uint32_t k = 1; k < fold->nin; k++) {                                             \
                uint32_t divisor = divides && k + 1 == fold->nin ? fold->divisor : 1;              \
                acc = step(acc, ((const type *)fold->in[k])[i], divisor);                          \
            }                                                                                      \
            for (uint32_t k = 0; k < fold->nout; k++) {                                            \
                ((type *)fold->out[k])[i] = acc;                                                   \
            }                                                                                      \
        }                                                                                          \
    }

#define FOLDS(type, name)                                                                          \
    FOLD(fold_sum_##name, type, sum_##name, false)                                                 \
    FOLD(fold_prod_##name, type, prod_##name, false)                                               \
    FOLD(fold_max_##name, type, max_##name, false)                                                 \
    FOLD(fold_min_##name, type, min_##name, false)                                                 \
    FOLD(fold_avg_##name, type, sum_##name, true)

FOLDS(int8_t, int8)
FOLDS(uint8_t, uint8)
FOLDS(int32_t, int32)
FOLDS(uint32_t, uint32)
FOLDS(int64_t, int64)
FOLDS(uint64_t, uint64)
FOLDS(uint16_t, half)
FOLDS(float, float)
FOLDS(double, double)
FOLDS(uint16_t, bf16)
FOLDS(uint8_t, e4m3)
FOLDS(uint8_t, e5m2)

static void copy(void *dst, const void *src, size_t bytes, bool stream)
{
    (void)stream;
    if (dst != src && bytes > 0) memcpy(dst, src, bytes);
}

#define ROW(name)                                                                                  \
    {                                                                                              \
        [OP_SUM] = fold_sum_##name, [OP_PROD] = fold_prod_##name, [OP_MAX] = fold_max_##name,      \
        [OP_MIN] = fold_min_##name, [OP_AVG] = fold_avg_##name                                     \
    }

const struct kernels kernels_reference = {
    .name = "reference",
    .fold =
        {
            [DT_INT8] = ROW(int8),
            [DT_UINT8] = ROW(uint8),
            [DT_INT32] = ROW(int32),
            [DT_UINT32] = ROW(uint32),
            [DT_INT64] = ROW(int64),
            [DT_UINT64] = ROW(uint64),
            [DT_HALF] = ROW(half),
            [DT_FLOAT] = ROW(float),
            [DT_DOUBLE] = ROW(double),
            [DT_BFLOAT16] = ROW(bf16),
            [DT_F8E4M3] = ROW(e4m3),
            [DT_F8E5M2] = ROW(e5m2),
        },
    .copy = copy,
};
