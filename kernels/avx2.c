/* SPDX-License-Identifier: Apache-2.0
 * The vectorised kernels for x86-64 with AVX2 and F16C: 32-byte vectors. */
#define VB 32
#define KERNELS_NAME "avx2"
#define KERNELS_TABLE kernels_avx2

#include "kernels/simd_part.h"

#include <immintrin.h>

static INLINE void store_stream(uint8_t *ptr, vu value)
{
    _mm256_stream_si256((__m256i *)(void *)ptr, (__m256i)value);
}

static INLINE void stream_fence(void)
{
    _mm_sfence();
}

static INLINE void widen_half(vu v, vf *a, vf *b)
{
    *a = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)v));
    *b = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)v, 1));
}

static INLINE vu narrow_half(vf a, vf b)
{
    __m128i low = _mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph((__m256)b, _MM_FROUND_TO_NEAREST_INT);
    return (vu)_mm256_set_m128i(high, low);
}

#include "kernels/simd_body.h"
