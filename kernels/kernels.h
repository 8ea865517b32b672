/* SPDX-License-Identifier: Apache-2.0
 * Element types, reduction operators and the kernels over them: one table of functions, chosen
 * once at start by what the CPU can do. The plain C reference is always there and is what the
 * vectorised versions are tested against, bit for bit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types and operators in the order of nccl-tests. */
enum dtype {
    DT_INT8,
    DT_UINT8,
    DT_INT32,
    DT_UINT32,
    DT_INT64,
    DT_UINT64,
    DT_HALF,     /* IEEE binary16 */
    DT_FLOAT,    /* binary32 */
    DT_DOUBLE,   /* binary64 */
    DT_BFLOAT16, /* the upper half of a float */
    DT_F8E4M3,   /* OCP 8-bit formats: E4M3 has no infinity, finite up to 448; */
    DT_F8E5M2,   /* E5M2 has one, finite up to 57344 */
    DT_COUNT
};
enum redop { OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_AVG, OP_COUNT };

enum { KERNEL_MAX_IN = 16, KERNEL_MAX_OUT = 16 };
enum { FLOAT_NAN_BITS = 0x7fc00000, BF16_NAN = 0x7fc0, HALF_NAN = 0x7e00, F8_NAN = 0x7f };
#define DOUBLE_NAN_BITS UINT64_C(0x7ff8000000000000)

/* One folded reduction: out[k][i] = (..(in[0][i] (+) in[1][i]) (+) ..) (+) in[nin-1][i].
 *
 *     in[0] --\
 *     in[1] ---(+)--> out[0], out[1], ...        each input is read once, each output written once
 *     in[2] --/
 *
 * An output may be the same address as any input (then element i of the input is read before it
 * is written); otherwise inputs and outputs do not overlap. Pointers need only be aligned to the
 * element. A fold over k inputs gives the same bits as k - 1 single steps. What (+) is:
 *
 *   sum, prod  integers       wrap
 *              float, double  rounded to nearest even
 *              narrow floats  widened to float, combined there, rounded to nearest even once per
 * (+). half and bfloat16 overflow to infinity. f8e4m3 and f8e5m2 saturate: a result beyond the
 * largest finite value (448, 57344), an infinite one included, becomes that value with its sign.
 * The infinity of f8e5m2 is one as an input: inf - inf and 0 * inf are NaN. any float      a NaN is
 * always the one above: same bits in every version avg        sum; the last (+) also divides by
 * `divisor` before it rounds to a narrow type. Integers: the wrapped sum, truncated towards zero.
 * Floats divide once, at the end (NCCL multiplies the inputs by a rounded 1/n instead: other last
 * bits). max        (a < b or b is NaN) ? b : a      so a NaN always wins, of two equal values (and
 * of min        (b < a or b is NaN) ? b : a      two zeros) the first; all bits unchanged
 *
 * With one input nothing is combined: a copy, whatever the divisor. */
struct fold {
    void *out[KERNEL_MAX_OUT];
    const void *in[KERNEL_MAX_IN];
    uint32_t nout, nin; /* 1..16 each; nin == 1 is a copy to every output */
    uint32_t divisor;   /* avg: applied to the last (+), after it; 0 or 1 = none */
    bool stream;        /* outputs are large and not read soon: non-temporal stores allowed */
    size_t count;       /* elements */
};

typedef void fold_fn(const struct fold *fold);

struct kernels {
    const char *name;                  /* "reference", "avx2", "avx512", ... */
    fold_fn *fold[DT_COUNT][OP_COUNT]; /* OP_AVG: sum, then divide when divisor > 1 */
    void (*copy)(void *dst, const void *src, size_t bytes, bool stream);
};

/* The best version for this CPU (set COLLBENCH_KERNELS=NAME to force one; unknown or
 * unsupported names give the sentence with the valid list and NULL). Never changes after the
 * first call; safe from several threads. */
const struct kernels *kernels_get(struct err *err);

/* All versions that this CPU can run, the reference first; NULL-terminated. */
const struct kernels *const *kernels_all(void);

/* "int8", "half", "bfloat16", ..: names as in nccl-tests. */
const char *dtype_name(enum dtype dtype);
size_t dtype_bytes(enum dtype dtype);
const char *redop_name(enum redop op);

/* Name to number; unknown: the sentence with the valid list (ERR_USAGE) and -1. Types also go by
 * NCCL's names where they differ: float16, float32, float64, float8e4m3, float8e5m2. */
int dtype_parse(const char *name, enum dtype *dtype, struct err *err);
int redop_parse(const char *name, enum redop *op, struct err *err);

/* bfloat16 bits to float and back (round to nearest even; any NaN gives BF16_NAN). */
float bf16_to_float(uint16_t bits);
uint16_t bf16_from_float(float value);

/* The bits of a float type of at most 32 bits (half, bfloat16, f8e4m3, f8e5m2, float) to float, and
 * back: to nearest even, f8 saturates, any NaN gives the type's one. 0 for other types. */
float narrow_to_float(enum dtype dtype, uint32_t bits);
uint32_t narrow_from_float(enum dtype dtype, float value);

/* `count` elements of one type to another; dst and src do not overlap, are aligned to the element
 * and may be NULL when count is 0. Cannot fail. Everything is rounded once:
 *
 *   to a float type  to nearest even; half, bfloat16 and float overflow to infinity, f8e4m3 and
 *                    f8e5m2 saturate, from an infinity too; any NaN becomes the type's one above
 *   float to integer truncated towards zero; what lies beyond the range becomes its end, NaN 0
 *   integer to integer  wraps: the low bits, of negative numbers with the sign above
 *   the same type    a copy, all bits unchanged */
void kernels_convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t count);

#ifdef __cplusplus
}
#endif
