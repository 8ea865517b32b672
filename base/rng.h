/* SPDX-License-Identifier: Apache-2.0
 * Random numbers that are the same on every machine: xoshiro256** seeded by splitmix64
 * (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021; public domain
 * code at prng.di.unimi.it). There is no global state and no seed from the clock. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t state[4];
};

/* Mixes all bits of x: a hash of one number (the output function of splitmix64). */
uint64_t rng_mix(uint64_t x);

/* A hash of `bytes` bytes (FNV-1a, Fowler, Noll and Vo). */
uint64_t rng_hash(const void *data, size_t bytes);

/* Starts a sequence; any seed will do, 0 included. */
void rng_init(struct rng *rng, uint64_t seed);

/* The next 64 random bits. */
uint64_t rng_next(struct rng *rng);

/* Uniform in 0..n-1 without bias; n is at least 1. */
uint64_t rng_below(struct rng *rng, uint64_t n);

/* Uniform in [0, 1), with 53 bits. */
double rng_unit(struct rng *rng);
