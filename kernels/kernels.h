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

enum dtype { DT_FLOAT, DT_INT32, DT_BFLOAT16, DT_COUNT };
enum redop { OP_SUM, OP_MAX, OP_AVG, OP_COUNT };

enum { KERNEL_MAX_IN = 16, KERNEL_MAX_OUT = 16 };
enum { FLOAT_NAN_BITS = 0x7fc00000, BF16_NAN = 0x7fc0 };

/* One folded reduction: out[k][i] = (..(in[0][i] (+) in[1][i]) (+) ..) (+) in[nin-1][i].
 *
 *     in[0] --\
 *     in[1] ---(+)--> out[0], out[1], ...        each input is read once, each output written once
 *     in[2] --/
 *
 * An output may be the same address as any input (then element i of the input is read before it
 * is written); otherwise inputs and outputs do not overlap. Pointers need only be aligned to the
 * element. Narrow floats are widened, added and rounded (to nearest even) once per (+), so a fold
 * over k inputs gives the same bits as k - 1 single steps. Integers wrap.
 * max(a, b) = (a < b or b is NaN) ? b : a, so a NaN always wins, its bits unchanged.
 * A sum or average that is NaN is the one quiet NaN below: same bits in every version. */
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

/* "float", "int32", "bfloat16": names as in nccl-tests. */
const char *dtype_name(enum dtype dtype);
size_t dtype_bytes(enum dtype dtype);
const char *redop_name(enum redop op);

/* Name to number; unknown: the sentence with the valid list (ERR_USAGE) and -1. */
int dtype_parse(const char *name, enum dtype *dtype, struct err *err);
int redop_parse(const char *name, enum redop *op, struct err *err);

/* bfloat16 bits to float and back (round to nearest even; any NaN gives BF16_NAN). */
float bf16_to_float(uint16_t bits);
uint16_t bf16_from_float(float value);

#ifdef __cplusplus
}
#endif
