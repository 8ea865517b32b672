/* SPDX-License-Identifier: Apache-2.0
 * Elements for tests of kernels: random ones, with many of those that kernels get wrong. */
#pragma once

#include <string.h>

#include "base/rng.h"
#include "kernels/kernels.h"

/* Zeros, infinities, NaNs (quiet, signalling, with payload), subnormals, the largest ones, the ends
 * of the integers; narrow types take the upper bits. */
static const uint32_t odd_values[] = {
    0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0x7fa00000,
    0xffffffff, 0x7fffffff, 0x00000001, 0x80000001, 0x007fffff, 0x7f7fffff, 0xff7fffff, 0x3f800000,
    0xbf800000, 0x3f808000, 0x3f818000, 0x33800000, 0x7c000000, 0xfc000000, 0x7c010000, 0x7bff0000,
    0xfbff0000, 0x04000000, 0x03ff0000, 0x00010000, 0x80010000, 0x7ff00000, 0xfff00000, 0x7e000000};
enum { NODD = sizeof odd_values / sizeof odd_values[0] };

/* Element i from 64 bits, narrow types the upper ones. */
static inline void put(enum dtype dtype, void *buf, size_t i, uint64_t bits)
{
    size_t size = dtype_bytes(dtype);
    bits >>= 64 - 8 * size;
    memcpy((uint8_t *)buf + i * size, &bits, size); /* little-endian, as the kernels are */
}

/* `count` elements: a quarter odd values, a quarter numbers near 1 (whose sums are rounded), the
 * rest any bits. */
static inline void random_elements(struct rng *rng, enum dtype dtype, void *buf, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word = rng_next(rng), bits = rng_next(rng);
        if (word >> 62 == 0) {
            bits = (uint64_t)odd_values[rng_below(rng, NODD)] << 32 | (word & 1 ? bits >> 32 : 0);
        }
        if (word >> 62 == 1) bits = (bits & 0x80ffffffffffffff) | 0x3f00000000000000;
        put(dtype, buf, i, bits);
    }
}
