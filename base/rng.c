/* SPDX-License-Identifier: Apache-2.0
 * xoshiro256** and splitmix64, after the public domain code of Blackman and Vigna. */
#include "base/rng.h"

#include <assert.h>

static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */

uint64_t rng_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t rng_hash(const void *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return hash;
}

void rng_init(struct rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += GOLDEN;
        rng->state[i] = rng_mix(seed);
    }
}

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

uint64_t rng_next(struct rng *rng)
{
    uint64_t *s = rng->state;
    uint64_t result = rotate(s[1] * 5, 7) * 9, kept = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= kept;
    s[3] = rotate(s[3], 45);
    return result;
}

uint64_t rng_below(struct rng *rng, uint64_t n)
{
    assert(n >= 1);
    uint64_t excess =
        (0 - n) % n; /* 2^64 mod n: that many draws would make the first ones likelier */
    uint64_t bits;
    do
        bits = rng_next(rng);
    while (bits < excess);
    return bits % n;
}

double rng_unit(struct rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-53;
}
