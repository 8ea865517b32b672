/* SPDX-License-Identifier: Apache-2.0
 * The vectorised kernels for x86-64 with AVX2: 32-byte vectors. */
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

#include "kernels/simd_body.h"
