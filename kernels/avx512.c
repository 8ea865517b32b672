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

static INLINE void widen_half(vu v, vf *a, vf *b)
{
    *a = (vf)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)v));
    *b = (vf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)v, 1));
}

static INLINE vu narrow_half(vf a, vf b)
{
    __m256i low = _mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph((__m512)b, _MM_FROUND_TO_NEAREST_INT);
    return (vu)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

#include "kernels/simd_body.h"
