/* SPDX-License-Identifier: Apache-2.0
 * The vectorised kernels, written once in GCC vector extensions and compiled once per instruction
 * set. The including file sets what differs and gets one table, KERNELS_TABLE; all else is static,
 * so no wide instruction can leak into code that runs on a narrow machine. It defines before:
 *
 *   VB                             bytes of a vector
 *   KERNELS_NAME, KERNELS_TABLE    "avx2", kernels_avx2
 * and after including simd_types.h:
 *   part_t                         what load_part and store_part need to know
 *   part_of(bytes)                 the first 1 .. VB bytes of a vector
 *   load_part(ptr, part)           those bytes, zeros behind
 *   store_part(ptr, part, vec)
 *   store_stream(ptr, vec)         past the caches; ptr is VB-aligned
 *   stream_fence()                 orders streamed stores before later ones
 *   widen_half(v, &a, &b)          a vector of half to two of float, in any order of the lanes,
 *   narrow_half(a, b)              and back, rounded to nearest even
 *
 * A fold works on blocks of four vectors (one, where much is computed per element): the
 * accumulators stay in registers over all inputs, so each input is read once and each output
 * written once. What is left at the end goes vector by vector, the last one in part. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd_combine.h"

/* ---- one stretch of a fold at byte offset `at` of all inputs and outputs --------------------- */

static INLINE const uint8_t *input(const struct fold *fold, uint32_t k, size_t at)
{
    return (const uint8_t *)fold->in[k] + at;
}

static INLINE uint8_t *output(const struct fold *fold, uint32_t k, size_t at)
{
    return (uint8_t *)fold->out[k] + at;
}

/* Four vectors. Only outputs that are aligned can be streamed; the others are stored as usual. */
static INLINE void fold_block(const struct fold *fold, uint32_t nin, uint32_t nout, size_t at,
                              struct how how, const struct divide *divide, bool stream)
{
    const uint8_t *in = input(fold, 0, at);
    vu a = load(in), b = load(in + VB), c = load(in + 2 * VB), d = load(in + 3 * VB);
    for (uint32_t k = 1; k + 1 < nin; k++) {
        in = input(fold, k, at);
        a = combine(a, load(in), how);
        b = combine(b, load(in + VB), how);
        c = combine(c, load(in + 2 * VB), how);
        d = combine(d, load(in + 3 * VB), how);
    }
    if (nin > 1) {
        in = input(fold, nin - 1, at);
        a = combine_last(a, load(in), how, divide);
        b = combine_last(b, load(in + VB), how, divide);
        c = combine_last(c, load(in + 2 * VB), how, divide);
        d = combine_last(d, load(in + 3 * VB), how, divide);
    }
    for (uint32_t k = 0; k < nout; k++) {
        uint8_t *out = output(fold, k, at);
        if (stream && (uintptr_t)out % VB == 0) {
            store_stream(out, a);
            store_stream(out + VB, b);
            store_stream(out + 2 * VB, c);
            store_stream(out + 3 * VB, d);
        } else {
            store(out, a);
            store(out + VB, b);
            store(out + 2 * VB, c);
            store(out + 3 * VB, d);
        }
    }
}

/* One vector. */
static INLINE void fold_vector(const struct fold *fold, size_t at, struct how how,
                               const struct divide *divide, bool stream)
{
    vu a = load(input(fold, 0, at));
    for (uint32_t k = 1; k + 1 < fold->nin; k++) {
        a = combine(a, load(input(fold, k, at)), how);
    }
    if (fold->nin > 1) a = combine_last(a, load(input(fold, fold->nin - 1, at)), how, divide);
    for (uint32_t k = 0; k < fold->nout; k++) {
        uint8_t *out = output(fold, k, at);
        if (stream && (uintptr_t)out % VB == 0) {
            store_stream(out, a);
        } else {
            store(out, a);
        }
    }
}

/* The first 1 .. VB bytes of a vector. */
static INLINE void fold_part(const struct fold *fold, size_t at, size_t bytes, struct how how,
                             const struct divide *divide)
{
    part_t part = part_of(bytes);
    const void *const *in = fold->in, *const *last = in + fold->nin - 1;
    void *const *out = fold->out, *const *end = out + fold->nout;
    vu a = load_part((const uint8_t *)*in + at, part);
    if (in < last) {
        while (++in < last) {
            a = combine(a, load_part((const uint8_t *)*in + at, part), how);
        }
        a = combine_last(a, load_part((const uint8_t *)*in + at, part), how, divide);
    }
    for (; out < end; out++) {
        store_part((uint8_t *)*out + at, part, a);
    }
}

/* ---- whole folds ----------------------------------------------------------------------------- */

/* Blocks from byte `at` on; returns where the last whole one ends. The commonest shapes get loops
 * of their own, with the pointers in registers: a store might change those in *fold. */
static INLINE size_t fold_blocks(const struct fold *fold, size_t at, size_t bytes, struct how how,
                                 const struct divide *divide, bool stream)
{
    if (is_heavy(how)) {
        for (; bytes - at >= VB; at += VB) {
            fold_vector(fold, at, how, divide, stream);
        }
    } else if (!is_common(how)) {
        for (; bytes - at >= 4 * VB; at += 4 * VB) {
            fold_block(fold, fold->nin, fold->nout, at, how, divide, stream);
        }
    } else if (fold->nin == 2 && fold->nout == 1) {
        const struct fold own = {.in = {fold->in[0], fold->in[1]}, .out = {fold->out[0]}};
        for (; bytes - at >= 4 * VB; at += 4 * VB) {
            fold_block(&own, 2, 1, at, how, divide, stream);
        }
    } else if (fold->nin == 2 && fold->nout == 2) {
        const struct fold own = {.in = {fold->in[0], fold->in[1]},
                                 .out = {fold->out[0], fold->out[1]}};
        for (; bytes - at >= 4 * VB; at += 4 * VB) {
            fold_block(&own, 2, 2, at, how, divide, stream);
        }
    } else {
        for (; bytes - at >= 4 * VB; at += 4 * VB) {
            fold_block(fold, fold->nin, fold->nout, at, how, divide, stream);
        }
    }
    return at;
}

/* More than one vector. */
static INLINE void fold_long(const struct fold *fold, size_t bytes, struct how how,
                             const struct divide *divide)
{
    size_t at = 0;
    if (fold->stream) {
        at = (size_t)(-(uintptr_t)fold->out[0] % VB); /* < bytes */
        if (at) fold_part(fold, 0, at, how, divide);
        at = fold_blocks(fold, at, bytes, how, divide, true);
        stream_fence();
    } else {
        at = fold_blocks(fold, at, bytes, how, divide, false);
    }
    for (; at < bytes; at += VB) {
        fold_part(fold, at, bytes - at < VB ? bytes - at : VB, how, divide);
    }
}

static void copy_bytes(void *dst, const void *src, size_t bytes, bool stream);

static INLINE void fold_any(const struct fold *fold, struct how how)
{
    size_t bytes = fold->count * how_bytes(how);
    struct divide divide = divide_by(fold->divisor, how);
    if (bytes == 0) return;
    if (bytes <= VB) {
        fold_part(fold, 0, bytes, how, &divide);
    } else if (fold->nin == 1 && fold->nout == 1) {
        copy_bytes(fold->out[0], fold->in[0], bytes, fold->stream);
    } else {
        fold_long(fold, bytes, how, &divide);
    }
}

#define FOLD(name, dtype, op)                                                                      \
    static void name(const struct fold *fold)                                                      \
    {                                                                                              \
        fold_any(fold, (struct how){dtype, op});                                                   \
    }

#define FOLD_AVG(name, dtype, sum)                                                                 \
    static void name(const struct fold *fold)                                                      \
    {                                                                                              \
        if (fold->divisor > 1) {                                                                   \
            fold_any(fold, (struct how){dtype, OP_AVG});                                           \
        } else {                                                                                   \
            sum(fold);                                                                             \
        }                                                                                          \
    }

/* Types whose sums and products are the same bits with and without a sign share them. */
#define FOLDS_OF_BITS(name, dtype)                                                                 \
    FOLD(fold_sum_##name, dtype, OP_SUM)                                                           \
    FOLD(fold_prod_##name, dtype, OP_PROD)

#define FOLDS_OF_VALUES(name, dtype, sum)                                                          \
    FOLD(fold_max_##name, dtype, OP_MAX)                                                           \
    FOLD(fold_min_##name, dtype, OP_MIN)                                                           \
    FOLD_AVG(fold_avg_##name, dtype, sum)

FOLDS_OF_BITS(int8, DT_INT8)
FOLDS_OF_VALUES(int8, DT_INT8, fold_sum_int8)
FOLDS_OF_VALUES(uint8, DT_UINT8, fold_sum_int8)
FOLDS_OF_BITS(int32, DT_INT32)
FOLDS_OF_VALUES(int32, DT_INT32, fold_sum_int32)
FOLDS_OF_VALUES(uint32, DT_UINT32, fold_sum_int32)
FOLDS_OF_BITS(int64, DT_INT64)
FOLDS_OF_VALUES(int64, DT_INT64, fold_sum_int64)
FOLDS_OF_VALUES(uint64, DT_UINT64, fold_sum_int64)
FOLDS_OF_BITS(half, DT_HALF)
FOLDS_OF_VALUES(half, DT_HALF, fold_sum_half)
FOLDS_OF_BITS(float, DT_FLOAT)
FOLDS_OF_VALUES(float, DT_FLOAT, fold_sum_float)
FOLDS_OF_BITS(double, DT_DOUBLE)
FOLDS_OF_VALUES(double, DT_DOUBLE, fold_sum_double)
FOLDS_OF_BITS(bf16, DT_BFLOAT16)
FOLDS_OF_VALUES(bf16, DT_BFLOAT16, fold_sum_bf16)
FOLDS_OF_BITS(e4m3, DT_F8E4M3)
FOLDS_OF_VALUES(e4m3, DT_F8E4M3, fold_sum_e4m3)
FOLDS_OF_BITS(e5m2, DT_F8E5M2)
FOLDS_OF_VALUES(e5m2, DT_F8E5M2, fold_sum_e5m2)

static void copy_bytes(void *dst, const void *src, size_t bytes, bool stream)
{
    if (dst == src || bytes == 0) return;
    if (!stream || bytes < 8 * VB) {
        __builtin_memcpy(dst, src, bytes);
        return;
    }
    const uint8_t *from = src;
    uint8_t *to = dst, *end = to + bytes;
    size_t head = (size_t)(-(uintptr_t)to % VB);
    __builtin_memcpy(to, from, head);
    to += head;
    from += head;
    for (; end - to >= 4 * VB; to += 4 * VB, from += 4 * VB) {
        vu a = load(from), b = load(from + VB), c = load(from + 2 * VB), d = load(from + 3 * VB);
        store_stream(to, a);
        store_stream(to + VB, b);
        store_stream(to + 2 * VB, c);
        store_stream(to + 3 * VB, d);
    }
    __builtin_memcpy(to, from, (size_t)(end - to));
    stream_fence();
}

#define ROW(bits, value)                                                                           \
    {                                                                                              \
        [OP_SUM] = fold_sum_##bits, [OP_PROD] = fold_prod_##bits, [OP_MAX] = fold_max_##value,     \
        [OP_MIN] = fold_min_##value, [OP_AVG] = fold_avg_##value                                   \
    }

const struct kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .fold =
        {
            [DT_INT8] = ROW(int8, int8),
            [DT_UINT8] = ROW(int8, uint8),
            [DT_INT32] = ROW(int32, int32),
            [DT_UINT32] = ROW(int32, uint32),
            [DT_INT64] = ROW(int64, int64),
            [DT_UINT64] = ROW(int64, uint64),
            [DT_HALF] = ROW(half, half),
            [DT_FLOAT] = ROW(float, float),
            [DT_DOUBLE] = ROW(double, double),
            [DT_BFLOAT16] = ROW(bf16, bf16),
            [DT_F8E4M3] = ROW(e4m3, e4m3),
            [DT_F8E5M2] = ROW(e5m2, e5m2),
        },
    .copy = copy_bytes,
};
