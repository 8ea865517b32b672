/* SPDX-License-Identifier: Apache-2.0
 * The vectorised kernels for any machine: 16-byte vectors, on x86-64 SSE2. */
#define VB 16
#define KERNELS_NAME "generic"
#define KERNELS_TABLE kernels_generic

#include "kernels/simd_narrow.h"
#include "kernels/simd_part.h"

#ifdef __SSE2__
#include <emmintrin.h>

static INLINE void store_stream(uint8_t *ptr, vu value)
{
    _mm_stream_si128((__m128i *)(void *)ptr, (__m128i)value);
}

static INLINE void stream_fence(void)
{
    _mm_sfence();
}
#else
static INLINE void store_stream(uint8_t *ptr, vu value)
{
    store(ptr, value);
}

static INLINE void stream_fence(void)
{
}
#endif

static INLINE void widen_half(vu v, vf *a, vf *b)
{
    *a = widen_top(format_half, v << 16);
    *b = widen_top(format_half, v);
}

static INLINE vu narrow_half(vf a, vf b)
{
    return narrow_top(format_half, a) >> 16 | narrow_top(format_half, b);
}

#include "kernels/simd_body.h"
