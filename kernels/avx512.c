/* SPDX-License-Identifier: Apache-2.0
 * The vectorised kernels for x86-64 with AVX-512 F, BW, VL and DQ: 64-byte vectors, and byte masks
 * for the ends. */
#define VB 64
#define KERNELS_NAME "avx512"
#define KERNELS_TABLE kernels_avx512

#include "kernels/simd_types.h"

#include <immintrin.h>

typedef __mmask64 part_t;

static INLINE part_t part_of(size_t bytes)
{
    return ~UINT64_C(0) >> (VB - bytes);
}

static INLINE vu load_part(const uint8_t *ptr, part_t part)
{
    return (vu)_mm512_maskz_loadu_epi8(part, ptr);
}

static INLINE void store_part(uint8_t *ptr, part_t part, vu value)
{
    _mm512_mask_storeu_epi8(ptr, part, (__m512i)value);
}

static INLINE void store_stream(uint8_t *ptr, vu value)
{
    _mm512_stream_si512((__m512i *)(void *)ptr, (__m512i)value);
}

static INLINE void stream_fence(void)
{
    _mm_sfence();
}

#include "kernels/simd_body.h"
