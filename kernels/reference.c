/* SPDX-License-Identifier: Apache-2.0
 * The plain C kernels: one element at a time, in the words of kernels.h. They are the yardstick
 * that every faster version is compared with, bit for bit. */
#include <string.h>

#include "kernels/variants.h"

/* A NaN that an addition gave is always the same NaN: which one hardware gives depends on the
 * machine and on the order in which a compiler writes the operands. */
static float one_nan(float value)
{
    static const uint32_t bits = FLOAT_NAN_BITS;
    if (value != value) memcpy(&value, &bits, sizeof value);
    return value;
}

/* One (+) per type and operator; `divisor` > 1: divide after it. */
static float sum_float(float a, float b, uint32_t divisor)
{
    float sum = a + b;
    return one_nan(divisor > 1 ? sum / (float)divisor : sum);
}

static float max_float(float a, float b, uint32_t divisor)
{
    (void)divisor;
    return a < b || b != b ? b : a;
}

static int32_t sum_int32(int32_t a, int32_t b, uint32_t divisor)
{
    int32_t sum = (int32_t)((uint32_t)a + (uint32_t)b);
    return divisor > 1 ? (int32_t)((int64_t)sum / (int64_t)divisor) : sum;
}

static int32_t max_int32(int32_t a, int32_t b, uint32_t divisor)
{
    (void)divisor;
    return a < b ? b : a;
}

static uint16_t sum_bf16(uint16_t a, uint16_t b, uint32_t divisor)
{
    return bf16_from_float(sum_float(bf16_to_float(a), bf16_to_float(b), divisor));
}

static uint16_t max_bf16(uint16_t a, uint16_t b, uint32_t divisor)
{
    (void)divisor;
    float fa = bf16_to_float(a), fb = bf16_to_float(b);
    return fa < fb || fb != fb ? b : a;
}

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

FOLD(fold_sum_float, float, sum_float, false)
FOLD(fold_max_float, float, max_float, false)
FOLD(fold_avg_float, float, sum_float, true)
FOLD(fold_sum_int32, int32_t, sum_int32, false)
FOLD(fold_max_int32, int32_t, max_int32, false)
FOLD(fold_avg_int32, int32_t, sum_int32, true)
FOLD(fold_sum_bf16, uint16_t, sum_bf16, false)
FOLD(fold_max_bf16, uint16_t, max_bf16, false)
FOLD(fold_avg_bf16, uint16_t, sum_bf16, true)

static void copy(void *dst, const void *src, size_t bytes, bool stream)
{
    (void)stream;
    if (dst != src && bytes > 0) memcpy(dst, src, bytes);
}

const struct kernels kernels_reference = {
    .name = "reference",
    .fold =
        {
            [DT_FLOAT] = {fold_sum_float, fold_max_float, fold_avg_float},
            [DT_INT32] = {fold_sum_int32, fold_max_int32, fold_avg_int32},
            [DT_BFLOAT16] = {fold_sum_bf16, fold_max_bf16, fold_avg_bf16},
        },
    .copy = copy,
};
