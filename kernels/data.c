/* SPDX-License-Identifier: Apache-2.0
 * The data of the correctness check: see data.h. All is computed in blocks of positions, as loops
 * over small arrays that a compiler vectorises, first as integers, then in the type. */
#include "kernels/data.h"

#include <string.h>

#include "base/rng.h"

/* Positions per block; blocks end at multiples of it. */
enum { BLOCK = 256, ACTIVE = 8 };

/* All that is the same for a whole call. */
struct recipe {
    enum dtype dtype;
    enum redop op;
    uint32_t nranks;
    uint32_t groups; /* sum, avg: rank r is active where r % groups is the turn of the position */
    uint32_t shift;  /* sum, avg: magnitudes are 1 + (hash >> shift) */
    int32_t limit;   /* max: values lie in [-limit, limit] */
    uint32_t slots;  /* max: distinct values per position */
    uint64_t salt;
};

/* Sums: |sum| of all active ranks and one more must not exceed this, so that every partial sum is
 * exact, with a contribution too many as well. For an average, half of it in the float types: then
 * sums that differ by 1 differ by more than one unit in the last place, and so do the quotients. */
static const int32_t sum_limit[DT_COUNT] = {
    [DT_FLOAT] = 1 << 24,
    [DT_INT32] = 1 << 30,
    [DT_BFLOAT16] = 1 << 8,
};

/* Maximum: a number, except for bfloat16, where it is the place in the order of its finite values
 * (0x7f7f is the largest), since there are only 513 exact integers in a row. */
static const int32_t max_limit[DT_COUNT] = {
    [DT_FLOAT] = 1 << 24,
    [DT_INT32] = (1 << 30) - 1,
    [DT_BFLOAT16] = 0x7f7f,
};

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static struct recipe recipe_of(enum dtype dtype, enum redop op, uint32_t nranks, uint64_t salt)
{
    struct recipe r = {.dtype = dtype, .op = op, .nranks = nranks, .salt = salt};
    r.groups = ceil_div(nranks, ACTIVE);
    uint32_t most = (uint32_t)sum_limit[dtype] / (ceil_div(nranks, r.groups) + 1);
    if (op == OP_AVG) most /= dtype == DT_INT32 ? nranks : 2;
    for (r.shift = 31; r.shift > 0 && most >> (32 - r.shift) > 1; r.shift--) {
    }
    r.limit = max_limit[dtype];
    r.slots = nranks < (uint32_t)r.limit ? nranks : (uint32_t)r.limit;
    return r;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* One hash per position of a block, from the finaliser of MurmurHash3 (Appleby), keyed twice by
 * salt and upper half of the position. */
static void hash_positions(const struct recipe *recipe, uint64_t first, size_t n, uint32_t *hash)
{
    uint64_t key = rng_mix(rng_mix(recipe->salt) + (first >> 32));
    uint32_t low = (uint32_t)first, key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (size_t i = 0; i < n; i++) {
        uint32_t x = (low + (uint32_t)i) ^ key0;
        x = (x ^ (x >> 16)) * 0x85ebca6bu + key1;
        x = (x ^ (x >> 13)) * 0xc2b2ae35u;
        hash[i] = x ^ (x >> 16);
    }
}

/* The hash of position and rank: hash times an odd number of the rank (the step is even). */
enum { RANK_STEP = 0x3c6ef372, RANK_START = 0x2545f491 };

static uint32_t rank_hash(uint32_t hash, uint32_t rank)
{
    return hash * (rank * (uint32_t)RANK_STEP + (uint32_t)RANK_START);
}

/* A number below n from a hash. */
static uint32_t below(uint32_t hash, uint32_t n)
{
    return (uint32_t)((uint64_t)hash * n >> 32);
}

/* (a + b) mod n for a, b < n <= 2^31. */
static uint32_t add_mod(uint32_t a, uint32_t b, uint32_t n)
{
    uint32_t sum = a + b;
    return sum >= n ? sum - n : sum;
}

/* ---- values as integers ---------------------------------------------------------------------- */

/* The value of an active rank: the upper bits make the magnitude, the next one the sign. */
static int32_t active_value(uint32_t x, uint32_t shift)
{
    int32_t magnitude = (int32_t)(x >> shift) + 1;
    int32_t negative = -(int32_t)(x >> (shift - 1) & 1u);
    return (magnitude ^ negative) - negative;
}

/* A number below n per position, free of the salt (Fibonacci hashing), to which the salt is added:
 * over n salts in a row each position gets each number once. */
static void turn_positions(uint64_t first, uint64_t salt, uint32_t n, size_t count, uint32_t *turn)
{
    uint32_t start = (uint32_t)first + (uint32_t)(first >> 32), by = (uint32_t)(salt % n);
    if (n == 1) {
        memset(turn, 0, count * sizeof *turn);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        turn[i] = add_mod(below((start + (uint32_t)i) * 0x9e3779b1u, n), by, n);
    }
}

/* sum, avg: one rank's values; its group is active where the turn says so. */
static void sum_input(const struct recipe *recipe, uint32_t rank, uint64_t first,
                      const uint32_t *hash, size_t n, int32_t *value)
{
    uint32_t group[BLOCK], shift = recipe->shift, own = rank % recipe->groups;
    int32_t unit = recipe->op == OP_AVG && recipe->dtype == DT_INT32 ? (int32_t)recipe->nranks : 1;
    turn_positions(first, recipe->salt, recipe->groups, n, group);
    for (size_t i = 0; i < n; i++) {
        int32_t active = group[i] == own ? unit : 0;
        value[i] = active * active_value(rank_hash(hash[i], rank), shift);
    }
}

/* The sum over the ranks of each position's group: group, group + groups, ..; for an average of
 * integers, whose values are multiples of nranks, the quotient. rank_hash in increments. */
static void sum_reduced(const struct recipe *recipe, uint64_t first, const uint32_t *hash, size_t n,
                        int32_t *value)
{
    uint32_t group[BLOCK], x[BLOCK], step[BLOCK], groups = recipe->groups, shift = recipe->shift;
    turn_positions(first, recipe->salt, recipe->groups, n, group);
    for (size_t i = 0; i < n; i++) {
        value[i] = 0;
        x[i] = rank_hash(hash[i], group[i]);
        step[i] = hash[i] * (groups * (uint32_t)RANK_STEP);
    }
    for (uint32_t base = 0; base < recipe->nranks; base += groups) {
        int32_t left = (int32_t)(recipe->nranks - base);
        for (size_t i = 0; i < n; i++) {
            int32_t one = active_value(x[i], shift);
            value[i] += (int32_t)group[i] < left ? one : 0;
            x[i] += step[i];
        }
    }
}

/* max: the ranks' values at a position are `slots` neighbours, of which this is the largest. */
static void max_reduced(const struct recipe *recipe, const uint32_t *hash, size_t n, int32_t *value)
{
    uint32_t top = recipe->slots - 1, choices = 2 * (uint32_t)recipe->limit + 1 - top;
    int32_t least = (int32_t)top - recipe->limit;
    for (size_t i = 0; i < n; i++) {
        value[i] = (int32_t)below(hash[i], choices) + least;
    }
}

/* How far a rank is behind the largest turns with position and salt. */
static void max_input(const struct recipe *recipe, uint32_t rank, uint64_t first,
                      const uint32_t *hash, size_t n, int32_t *value)
{
    uint32_t behind[BLOCK], last = recipe->slots - 1;
    turn_positions(first, recipe->salt + rank, recipe->nranks, n, behind);
    max_reduced(recipe, hash, n, value);
    for (size_t i = 0; i < n; i++) {
        value[i] -= (int32_t)(behind[i] < last ? behind[i] : last);
    }
}

/* No operator: bits. Without bit 30 a pattern is finite in both float types, and in int32 differs
 * from poison. */
static void bit_values(uint32_t rank, const uint32_t *hash, size_t n, int32_t *value)
{
    for (size_t i = 0; i < n; i++) {
        value[i] = (int32_t)(rank_hash(hash[i], rank) & 0xbfffffffu);
    }
}

/* ---- values in the type ---------------------------------------------------------------------- */

static void encode_float(const struct recipe *recipe, uint32_t divisor, const int32_t *value,
                         size_t n, float *out)
{
    if (recipe->op == OP_COUNT) {
        memcpy(out, value, n * sizeof *out);
        return;
    }
    if (divisor > 1) {
        for (size_t i = 0; i < n; i++) {
            out[i] = (float)value[i] / (float)divisor;
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            out[i] = (float)value[i];
        }
    }
}

static void encode_bf16(const struct recipe *recipe, uint32_t divisor, const int32_t *value,
                        size_t n, uint16_t *out)
{
    if (recipe->op == OP_COUNT) {
        for (size_t i = 0; i < n; i++) {
            out[i] = (uint16_t)((uint32_t)value[i] >> 16);
        }
    } else if (recipe->op == OP_MAX) {
        for (size_t i = 0; i < n; i++) {
            out[i] = (uint16_t)(value[i] < 0 ? 0x8000 - value[i] : value[i]);
        }
    } else {
        float wide[BLOCK];
        encode_float(recipe, divisor, value, n, wide);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &wide[i], sizeof bits);
            out[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        }
    }
}

/* `divisor` > 1: what is encoded is an average; `value` is the sum (integers: the quotient). */
static void encode(const struct recipe *recipe, uint32_t divisor, const int32_t *value, size_t n,
                   void *out)
{
    if (recipe->dtype == DT_FLOAT) {
        encode_float(recipe, divisor, value, n, out);
    } else if (recipe->dtype == DT_BFLOAT16) {
        encode_bf16(recipe, divisor, value, n, out);
    } else {
        memcpy(out, value, n * sizeof *value);
    }
}

/* `n` <= BLOCK elements that do not cross a multiple of BLOCK: the input of `rank`, or (!input) the
 * reduction over all ranks. */
static void make_block(const struct recipe *recipe, bool input, uint32_t rank, uint64_t first,
                       size_t n, void *out)
{
    uint32_t hash[BLOCK];
    int32_t value[BLOCK];
    hash_positions(recipe, first, n, hash);
    if (recipe->op == OP_COUNT) {
        bit_values(rank, hash, n, value);
    } else if (recipe->op == OP_MAX && input) {
        max_input(recipe, rank, first, hash, n, value);
    } else if (recipe->op == OP_MAX) {
        max_reduced(recipe, hash, n, value);
    } else if (input) {
        sum_input(recipe, rank, first, hash, n, value);
    } else {
        sum_reduced(recipe, first, hash, n, value);
    }
    encode(recipe, recipe->op == OP_AVG && !input ? recipe->nranks : 1, value, n, out);
}

static size_t block_length(uint64_t first, size_t left)
{
    size_t n = (size_t)(BLOCK - first % BLOCK);
    return n < left ? n : left;
}

static double as_double(enum dtype dtype, const void *element)
{
    if (dtype == DT_FLOAT) return (double)*(const float *)element;
    if (dtype == DT_INT32) return (double)*(const int32_t *)element;
    return (double)bf16_to_float(*(const uint16_t *)element);
}

static size_t check(const struct recipe *recipe, bool input, uint32_t rank, const void *buf,
                    uint64_t first, size_t count, struct data_bad *bad)
{
    size_t esize = dtype_bytes(recipe->dtype), wrong = 0;
    _Alignas(64) uint8_t expected[BLOCK * sizeof(float)];
    for (size_t done = 0, n; done < count; done += n) {
        n = block_length(first + done, count - done);
        const uint8_t *got = (const uint8_t *)buf + done * esize;
        make_block(recipe, input, rank, first + done, n, expected);
        if (memcmp(expected, got, n * esize) == 0) continue;
        for (size_t i = 0; i < n * esize; i += esize) {
            if (memcmp(expected + i, got + i, esize) == 0) continue;
            if (wrong++ > 0) continue;
            bad->index = done + i / esize;
            bad->expected = as_double(recipe->dtype, expected + i);
            bad->got = as_double(recipe->dtype, got + i);
        }
    }
    return wrong;
}

/* ---- public ---------------------------------------------------------------------------------- */

void data_fill(void *buf, enum dtype dtype, enum redop op, uint32_t nranks, uint32_t rank,
               uint64_t first, size_t count, uint64_t salt)
{
    struct recipe recipe = recipe_of(dtype, op, nranks, salt);
    size_t esize = dtype_bytes(dtype);
    for (size_t done = 0, n; done < count; done += n) {
        n = block_length(first + done, count - done);
        make_block(&recipe, true, rank, first + done, n, (uint8_t *)buf + done * esize);
    }
}

size_t data_check_reduced(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                          uint64_t first, size_t count, uint64_t salt, struct data_bad *bad)
{
    struct recipe recipe = recipe_of(dtype, op, nranks, salt);
    return check(&recipe, false, 0, buf, first, count, bad);
}

size_t data_check_copy(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                       uint32_t rank, uint64_t first, size_t count, uint64_t salt,
                       struct data_bad *bad)
{
    struct recipe recipe = recipe_of(dtype, op, nranks, salt);
    return check(&recipe, true, rank, buf, first, count, bad);
}

void data_poison(void *buf, size_t bytes, uint64_t salt)
{
    uint16_t pattern = (uint16_t)(BF16_NAN | (rng_mix(salt) & 0x3f)), *out = buf;
    for (size_t i = 0; i < bytes / 2; i++) {
        out[i] = pattern;
    }
    if (bytes % 2) memcpy((uint8_t *)buf + bytes - 1, &pattern, 1);
}

uint32_t data_rounds(enum redop op, uint32_t nranks)
{
    uint32_t groups = ceil_div(nranks, ACTIVE);
    return (op == OP_SUM || op == OP_AVG) && groups > 2 ? groups : 2;
}
