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
 *
 * A fold works on blocks of four vectors: the accumulators stay in registers over all inputs, so
 * each input is read once and each output written once. What is left at the end goes vector by
 * vector, the last one in part. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd_types.h"

/* What a fold does, constant after inlining; OP_AVG here always divides. */
struct how {
    enum dtype dtype;
    enum redop op;
};

/* What the last (+) needs: made once per call. */
struct divide {
    vf by;          /* floats: the divisor */
    double inverse; /* integers: a double just above 1 / divisor */
};

static INLINE vu select_mask(vi mask, vu yes, vu no)
{
    return ((vu)mask & yes) | (~(vu)mask & no);
}

/* Lanes where max(a, b) takes b. */
static INLINE vi max_takes_b(vf a, vf b)
{
    return (a < b) | (b != b);
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

static INLINE vu bf16_join(vu low, vu high)
{
    return (low >> 16) | (high & 0xffff0000u);
}

/* To nearest even. A NaN stays one: it came from bfloat16 values or is the default NaN, so its low
 * half is zero and nothing is carried. */
static INLINE vu bf16_round(vf value)
{
    vu bits = (vu)value;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

/* One (+). */
static INLINE vu combine(vu a, vu b, struct how how)
{
    switch (how.dtype) {
    case DT_FLOAT:
        if (how.op == OP_MAX) return select_mask(max_takes_b((vf)a, (vf)b), b, a);
        return (vu)((vf)a + (vf)b);
    case DT_INT32:
        if (how.op == OP_MAX) return select_mask((vi)a < (vi)b, b, a);
        return a + b;
    default:
        if (how.op == OP_MAX) {
            vu low = (vu)max_takes_b(bf16_low(a), bf16_low(b));
            vu high = (vu)max_takes_b(bf16_high(a), bf16_high(b));
            return select_mask((vi)bf16_join(low, high), b, a);
        }
        return bf16_join(bf16_round(bf16_low(a) + bf16_low(b)),
                         bf16_round(bf16_high(a) + bf16_high(b)));
    }
}

/* Truncating division of every lane. `inverse` is above 1 / divisor by 2^-54 to 2^-51 of it, so for
 * |a| <= 2^31 the product has the sign of a and lies at or above |a| / divisor by less than
 * 1 / divisor: truncation gives the quotient. */
static INLINE vu divide_int32(vu sum, double inverse)
{
    int32_t lane[VB / 4];
    __builtin_memcpy(lane, &sum, VB);
    for (int i = 0; i < VB / 4; i++) {
        lane[i] = (int32_t)((double)lane[i] * inverse);
    }
    __builtin_memcpy(&sum, lane, VB);
    return sum;
}

/* The last (+): also divides, and makes every NaN of a sum the same one. */
static INLINE vu combine_last(vu a, vu b, struct how how, const struct divide *divide)
{
    if (how.op == OP_AVG && how.dtype == DT_INT32) return divide_int32(a + b, divide->inverse);
    if (how.op == OP_MAX || how.dtype == DT_INT32) return combine(a, b, how);
    if (how.dtype == DT_FLOAT) {
        vf sum = (vf)a + (vf)b;
        if (how.op == OP_AVG) sum /= divide->by;
        return select_mask(sum != sum, (vu){} + FLOAT_NAN_BITS, (vu)sum);
    }
    vf low = bf16_low(a) + bf16_low(b), high = bf16_high(a) + bf16_high(b);
    if (how.op == OP_AVG) {
        low /= divide->by;
        high /= divide->by;
    }
    vu sum = bf16_join(bf16_round(low), bf16_round(high));
    vh is_nan = ((vh)sum & 0x7fff) > 0x7f80;
    return select_mask((vi)is_nan, (vu)((vh){} + BF16_NAN), sum);
}

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

static INLINE struct divide divide_by(uint32_t divisor, struct how how)
{
    struct divide divide = {{0}, 0};
    if (how.op == OP_AVG && how.dtype != DT_INT32) divide.by = (vf){} + (float)divisor;
    if (how.op == OP_AVG && how.dtype == DT_INT32) {
        divide.inverse = 1.0 / divisor * (1 + 0x1p-52);
    }
    return divide;
}

/* Blocks from byte `at` on; returns where the last whole one ends. The commonest shapes get loops
 * of their own, with the pointers in registers: a store might change those in *fold. */
static INLINE size_t fold_blocks(const struct fold *fold, size_t at, size_t bytes, struct how how,
                                 const struct divide *divide, bool stream)
{
    if (fold->nin == 2 && fold->nout == 1) {
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
    size_t bytes = fold->count * (how.dtype == DT_BFLOAT16 ? 2 : 4);
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

FOLD(fold_sum_float, DT_FLOAT, OP_SUM)
FOLD(fold_max_float, DT_FLOAT, OP_MAX)
FOLD_AVG(fold_avg_float, DT_FLOAT, fold_sum_float)
FOLD(fold_sum_int32, DT_INT32, OP_SUM)
FOLD(fold_max_int32, DT_INT32, OP_MAX)
FOLD_AVG(fold_avg_int32, DT_INT32, fold_sum_int32)
FOLD(fold_sum_bf16, DT_BFLOAT16, OP_SUM)
FOLD(fold_max_bf16, DT_BFLOAT16, OP_MAX)
FOLD_AVG(fold_avg_bf16, DT_BFLOAT16, fold_sum_bf16)

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

const struct kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .fold =
        {
            [DT_FLOAT] = {fold_sum_float, fold_max_float, fold_avg_float},
            [DT_INT32] = {fold_sum_int32, fold_max_int32, fold_avg_int32},
            [DT_BFLOAT16] = {fold_sum_bf16, fold_max_bf16, fold_avg_bf16},
        },
    .copy = copy_bytes,
};
