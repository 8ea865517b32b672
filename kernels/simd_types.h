/* SPDX-License-Identifier: Apache-2.0
 * Vectors of VB bytes for the kernels compiled per instruction set: their types, loads and stores
 * at any address. Everything is inlined by force: see simd_body.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define INLINE inline __attribute__((always_inline))

typedef uint32_t vu __attribute__((vector_size(VB)));
typedef int32_t vi __attribute__((vector_size(VB)));
typedef uint8_t vu8 __attribute__((vector_size(VB)));
typedef int8_t vi8 __attribute__((vector_size(VB)));
typedef uint16_t vu16 __attribute__((vector_size(VB)));
typedef int16_t vh __attribute__((vector_size(VB)));
typedef uint64_t vq __attribute__((vector_size(VB)));
typedef int64_t vl __attribute__((vector_size(VB)));
typedef float vf __attribute__((vector_size(VB)));
typedef double vd __attribute__((vector_size(VB)));
typedef vu vu_any __attribute__((aligned(1), may_alias));

static INLINE vu load(const uint8_t *ptr)
{
    return *(const vu_any *)ptr;
}

static INLINE void store(uint8_t *ptr, vu value)
{
    *(vu_any *)ptr = value;
}
