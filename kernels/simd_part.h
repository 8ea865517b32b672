/* SPDX-License-Identifier: Apache-2.0
 * The first bytes of a vector where the instruction set has no byte masks: put together from
 * words of 8 bytes in registers, never through the stack, whose narrow stores a wide load would
 * have to wait for. */
#pragma once

#include "kernels/simd_types.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte is the lowest one");

typedef uint16_t u16_any __attribute__((aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));
typedef uint64_t u64_any __attribute__((aligned(1), may_alias));

typedef size_t part_t;

/* Called, not inlined: they are long, and there are many folds. */
#define PART __attribute__((noinline))

static INLINE part_t part_of(size_t bytes)
{
    return bytes;
}

/* 8 bytes or more: 8. Below that two loads that may overlap. */
static INLINE uint64_t load_word(const uint8_t *ptr, size_t bytes)
{
    if (bytes >= 8) return *(const u64_any *)ptr;
    if (bytes == 1) return *ptr;
    if (bytes < 4) return *(const u16_any *)ptr | (uint64_t)ptr[bytes - 1] << 8 * (bytes - 1);
    uint64_t last = *(const u32_any *)(ptr + bytes - 4);
    return *(const u32_any *)ptr | last << 8 * (bytes - 4);
}

static INLINE void store_word(uint8_t *ptr, size_t bytes, uint64_t word)
{
    if (bytes >= 8) {
        *(u64_any *)ptr = word;
    } else if (bytes == 1) {
        *ptr = (uint8_t)word;
    } else if (bytes < 4) {
        *(u16_any *)ptr = (uint16_t)word;
        ptr[bytes - 1] = (uint8_t)(word >> 8 * (bytes - 1));
    } else {
        *(u32_any *)ptr = (uint32_t)word;
        *(u32_any *)(ptr + bytes - 4) = (uint32_t)(word >> 8 * (bytes - 4));
    }
}

static PART vu load_part(const uint8_t *ptr, part_t bytes)
{
    vq words = {0};
    if (bytes == VB) return load(ptr);
    words[0] = load_word(ptr, bytes);
    if (bytes > 8) words[1] = load_word(ptr + 8, bytes - 8);
#if VB > 16
    if (bytes > 16) words[2] = load_word(ptr + 16, bytes - 16);
    if (bytes > 24) words[3] = load_word(ptr + 24, bytes - 24);
#endif
    return (vu)words;
}

static PART void store_part(uint8_t *ptr, part_t bytes, vu value)
{
    vq words = (vq)value;
    if (bytes == VB) {
        store(ptr, value);
        return;
    }
    store_word(ptr, bytes, words[0]);
    if (bytes > 8) store_word(ptr + 8, bytes - 8, words[1]);
#if VB > 16
    if (bytes > 16) store_word(ptr + 16, bytes - 16, words[2]);
    if (bytes > 24) store_word(ptr + 24, bytes - 24, words[3]);
#endif
}
