/* SPDX-License-Identifier: Apache-2.0
 * One element of the data of the correctness check (see data.h) from its position. The parts are
 * what the loops of data.c on the CPU are made of; data_element puts them together for code on a
 * GPU, where each thread makes an element at a time. First comes a value as an integer, then its
 * bits in the type: of a value, or for a product of the power with that exponent, so that products
 * are sums too. For the files of this folder. */
#pragma once

#include "kernels/narrow.h"

/* Ranks of a group, exponents of one factor. */
enum { ACTIVE = 8, INTEGER_EXPONENTS = 32 };

/* What the data of a type may be.
 *
 *   sums       |sum| of all active ranks and one more must not exceed this, so that every partial
 *              sum is exact, with a contribution too many as well. For an average, half of it in
 *              the float types: then sums that differ by 1 differ by more than one unit in the last
 *              place (or are powers of two apart), and so do the quotients.
 *   most       max, min: numbers from -most to most; in the narrow float types the places of its
 *              finite values in their order (half 0x7bff is the largest), since few are integers
 *   exponents  prod: factors are powers with exponents up to this; all together stay in the range
 *   unit       averages of floats: what 1 stands for, so large that quotients are not subnormal
 *   scale      what a number is multiplied by at last: lets all bits of 64 take part. Even in
 *              64-bit integers and 3 in uint32, so that poison, which is odd and no multiple of 3,
 *              is not among the values.
 *   negative   there are negative numbers */
static const struct range {
    int32_t sums, most;
    uint32_t exponents;
    int32_t unit;
    uint64_t scale;
    bool negative;
} ranges[DT_COUNT] = {
    {127, 127, INTEGER_EXPONENTS, 1, 1, true},                    /* int8 */
    {255, 127, INTEGER_EXPONENTS, 1, 1, false},                   /* uint8 */
    {1 << 30, (1 << 30) - 1, INTEGER_EXPONENTS, 1, 1, true},      /* int32 */
    {1 << 30, 1 << 29, INTEGER_EXPONENTS, 1, 3, false},           /* uint32 */
    {1 << 30, 1 << 29, INTEGER_EXPONENTS, 1, 0x1fffffff6, true},  /* int64 */
    {1 << 30, 1 << 29, INTEGER_EXPONENTS, 1, 0x3fffffffa, false}, /* uint64 */
    {1 << 11, 0x7bff, 1, 1 << 5, 1, true},                        /* half */
    {1 << 24, 1 << 24, 8, 1, 1, true},                            /* float */
    {1 << 24, 1 << 24, 8, 1, 0x1fffffff, true},                   /* double */
    {1 << 8, 0x7f7f, 8, 1, 1, true},                              /* bfloat16 */
    {1 << 4, 0x7e, 1, 1 << 5, 1, true},                           /* f8e4m3 */
    {1 << 3, 0x7b, 1, 1 << 13, 1, true},                          /* f8e5m2 */
};

/* All that is the same for a whole call. */
struct recipe {
    enum dtype dtype;
    enum redop op;
    uint32_t esize; /* bytes of an element */
    uint32_t nranks;
    uint32_t rank;     /* whose input it is, if it is one */
    bool input;        /* else the reduction over all ranks */
    uint32_t groups;   /* sums: rank r is active where r % groups is the turn of the position */
    uint32_t shift;    /* sums: magnitudes are 1 + (hash >> shift >> 1) */
    uint32_t negative; /* sums: 1 if there are negative values */
    int32_t unit;      /* sums: what the values are multiples of */
    int32_t limit;     /* max, min: values lie in [-limit, limit] */
    uint32_t slots;    /* max, min: distinct values per position */
    uint32_t turns;    /* what has turns: groups; max, min: ranks */
    uint32_t turned;   /* what the salt adds to the turn of a position */
    int32_t lift;      /* integers: added to a value, which .. */
    uint64_t scale;    /* .. is then multiplied by this; doubles too */
    uint32_t divisor;  /* floats: averages are divided by it; else 1 */
    uint64_t salt;
    uint64_t powers[ACTIVE * INTEGER_EXPONENTS + 1]; /* prod of integers: of -3 */
};

KERNEL_INLINE bool is_integer(enum dtype dtype)
{
    return dtype <= DT_UINT64;
}

/* All but max and min. */
KERNEL_INLINE bool is_sum(enum redop op)
{
    return op == OP_SUM || op == OP_PROD || op == OP_AVG;
}

static inline uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Averages: of integers multiples of nranks, if the type has any. */
static inline int32_t unit_of(enum dtype dtype, enum redop op, uint32_t nranks)
{
    if (op != OP_AVG) return 1;
    if (!is_integer(dtype)) return ranges[dtype].unit;
    return nranks <= (uint32_t)ranges[dtype].sums ? (int32_t)nranks : 1;
}

/* The most that |sum| may be, in units. */
static inline uint32_t limit_of(enum dtype dtype, enum redop op, uint32_t nranks)
{
    int32_t sums = ranges[dtype].sums;
    if (op != OP_AVG) return (uint32_t)sums;
    return (uint32_t)(is_integer(dtype) ? sums / unit_of(dtype, op, nranks) : sums / 2);
}

/* Groups of at most 8 ranks, of which one is active at a time. The values of its ranks differ: by
 * sign, or by magnitudes of 1 and 2 at least. */
static inline uint32_t groups_of(enum dtype dtype, enum redop op, uint32_t nranks)
{
    uint32_t active = ACTIVE, limit = limit_of(dtype, op, nranks);
    if (!ranges[dtype].negative) limit /= 2;
    if (op != OP_PROD && limit < active + 1) active = limit > 2 ? limit - 1 : 1;
    return ceil_div(nranks, active);
}

static inline void recipe_init_sum(struct recipe *r, enum redop op, uint32_t nranks)
{
    const struct range *range = &ranges[r->dtype];
    r->groups = groups_of(r->dtype, op, nranks);
    r->unit = unit_of(r->dtype, op, nranks);
    uint32_t most = limit_of(r->dtype, op, nranks) / (ceil_div(nranks, r->groups) + 1);
    if (op == OP_PROD) most = range->exponents;
    for (r->shift = 31; r->shift > 0 && most >> (32 - r->shift) > 0; r->shift--) {
    }
    if (op == OP_AVG && !r->input) {
        /* of integers the quotient: the sum is a multiple of nranks, or smaller than it */
        if (is_integer(r->dtype)) r->unit = (uint32_t)r->unit == nranks;
        r->divisor = nranks;
    }
    if (op != OP_PROD || !is_integer(r->dtype)) return;
    r->powers[0] = 1;
    for (size_t i = 1; i < sizeof r->powers / sizeof r->powers[0]; i++) {
        r->powers[i] = r->powers[i - 1] * (uint64_t)-3;
    }
}

/* The input of `rank`, or (!input) the reduction over all ranks; then `op` is not OP_COUNT. */
static inline void recipe_init(struct recipe *r, enum dtype dtype, enum redop op, uint32_t nranks,
                               bool input, uint32_t rank, uint64_t salt)
{
    const struct range *range = &ranges[dtype];
    r->dtype = dtype;
    r->esize = esize_of(dtype);
    r->op = op;
    r->nranks = nranks;
    r->rank = rank;
    r->input = input;
    r->salt = salt;
    r->divisor = 1;
    r->negative = range->negative && !(op == OP_PROD && is_integer(dtype));
    r->limit = range->most;
    r->slots = nranks < (uint32_t)r->limit ? nranks : (uint32_t)r->limit;
    r->lift = r->negative || is_sum(op) ? 0 : r->limit;
    r->scale = range->scale;
    recipe_init_sum(r, op, nranks);
    r->turns = is_sum(op) ? r->groups : nranks;
    r->turned = (uint32_t)((is_sum(op) ? salt : salt + rank) % r->turns);
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* rng_mix of base/rng.h. */
KERNEL_INLINE uint64_t data_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The key of all positions with the same upper half. */
KERNEL_INLINE uint64_t data_key(uint64_t salt, uint64_t position)
{
    return data_mix(data_mix(salt) + (position >> 32));
}

/* The hash of a position, from the finaliser of MurmurHash3 (Appleby), keyed twice by salt and
 * upper half of the position. */
KERNEL_INLINE uint32_t position_hash(uint32_t low, uint64_t key)
{
    uint32_t x = low ^ (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x85ebca6bu + (uint32_t)(key >> 32);
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

/* The hash of position and rank: hash times an odd number of the rank (the step is even). */
enum { RANK_STEP = 0x3c6ef372, RANK_START = 0x2545f491 };

KERNEL_INLINE uint32_t rank_hash(uint32_t hash, uint32_t rank)
{
    return hash * (rank * (uint32_t)RANK_STEP + (uint32_t)RANK_START);
}

/* A number below n from a hash. */
KERNEL_INLINE uint32_t below(uint32_t hash, uint32_t n)
{
    return (uint32_t)((uint64_t)hash * n >> 32);
}

/* (a + b) mod n for a, b < n <= 2^31. */
KERNEL_INLINE uint32_t add_mod(uint32_t a, uint32_t b, uint32_t n)
{
    uint32_t sum = a + b;
    return sum >= n ? sum - n : sum;
}

/* A number below n per position (`place`: the sum of its halves), free of the salt (Fibonacci
 * hashing), to which `turned`, of the salt, is added: over n salts in a row each position gets each
 * number once. */
KERNEL_INLINE uint32_t turn_of(uint32_t place, uint32_t n, uint32_t turned)
{
    return add_mod(below(place * 0x9e3779b1u, n), turned, n);
}

KERNEL_INLINE uint32_t place_of(uint64_t position)
{
    return (uint32_t)position + (uint32_t)(position >> 32);
}

/* ---- values as integers ---------------------------------------------------------------------- */

/* The value of an active rank: the upper bits make the magnitude, the next one the sign. */
KERNEL_INLINE int32_t active_value(uint32_t x, uint32_t shift, uint32_t negative)
{
    int32_t magnitude = (int32_t)(x >> shift >> 1) + 1;
    int32_t minus = -(int32_t)(x >> shift & negative);
    return (magnitude ^ minus) - minus;
}

/* max: the ranks' values at a position are `slots` neighbours, of which this is the largest. min
 * has the same with the other sign. */
KERNEL_INLINE int32_t largest_value(uint32_t hash, uint32_t slots, int32_t limit)
{
    uint32_t top = slots - 1, choices = 2 * (uint32_t)limit + 1 - top;
    return (int32_t)below(hash, choices) + ((int32_t)top - limit);
}

/* How far the rank whose turn this is lies behind the largest. */
KERNEL_INLINE int32_t behind_largest(uint32_t turn, uint32_t slots)
{
    return (int32_t)min_u32(turn, slots - 1);
}

/* ---- values in the type ---------------------------------------------------------------------- */

/* No operator: any bits but the highest but one, which is 0: so a pattern is finite in every float
 * type, and differs from poison. `x` is a rank_hash. */
KERNEL_INLINE uint64_t moved_wide(uint32_t x)
{
    return x * UINT64_C(0x9e3779b97f4a7c15) & ~(UINT64_C(1) << 62);
}

/* The same for elements of 1, 2 and 4 bytes. */
KERNEL_INLINE uint32_t moved_word(uint32_t x, uint32_t esize)
{
    return (x & 0xbfffffffu) >> (32 - 8 * esize);
}

/* Integers other than products. */
KERNEL_INLINE uint64_t scaled(int32_t value, int32_t lift, uint64_t scale)
{
    return (uint64_t)(int64_t)(value + lift) * scale;
}

/* (-2)^value. */
KERNEL_INLINE double power_double(int32_t value)
{
    return bits_double((uint64_t)(1023 + value) << 52 | (uint64_t)(value & 1) << 63);
}

KERNEL_INLINE float power_float(int32_t value)
{
    return bits_float((uint32_t)(127 + value) << 23 | (uint32_t)(value & 1) << 31);
}

/* max, min: the finite value at this place in the order of a narrow float type. */
KERNEL_INLINE uint32_t bits_in_order(int32_t value, uint32_t esize)
{
    int32_t sign = 1 << (8 * esize - 1);
    return (uint32_t)(value < 0 ? sign - value : value);
}

/* ---- one element ----------------------------------------------------------------------------- */

/* sum, avg, exponents of prod. The input: that of a rank whose group has its turn. Reduced: the sum
 * over that group, ranks turn, turn + groups, .. */
KERNEL_INLINE int32_t sum_value(const struct recipe *r, uint32_t turn, uint32_t hash)
{
    int32_t sum = 0;
    if (r->input) {
        if (turn != r->rank % r->groups) return 0;
        return r->unit * active_value(rank_hash(hash, r->rank), r->shift, r->negative);
    }
    for (uint32_t rank = turn; rank < r->nranks; rank += r->groups) {
        sum += r->unit * active_value(rank_hash(hash, rank), r->shift, r->negative);
    }
    return sum;
}

KERNEL_INLINE uint64_t float_type_bits(const struct recipe *r, int32_t value)
{
    if (r->dtype == DT_DOUBLE) {
        double wide = r->op == OP_PROD ? power_double(value) : (double)value * (double)r->scale;
        return double_bits(r->divisor > 1 ? wide / (double)r->divisor : wide);
    }
    if (!is_sum(r->op) && r->dtype != DT_FLOAT) return bits_in_order(value, r->esize);
    float wide = r->op == OP_PROD ? power_float(value) : (float)value;
    return narrow_bits(r->dtype, r->divisor > 1 ? wide / (float)r->divisor : wide);
}

/* The bits of the element at `position`, whose data_key is `key`, in the low bytes. */
KERNEL_INLINE uint64_t data_element(const struct recipe *r, uint64_t position, uint64_t key)
{
    uint32_t hash = position_hash((uint32_t)position, key), x = rank_hash(hash, r->rank);
    if (r->op == OP_COUNT) return r->esize == 8 ? moved_wide(x) : moved_word(x, r->esize);
    uint32_t turn = turn_of(place_of(position), r->turns, r->turned);
    int32_t value;
    if (is_sum(r->op)) {
        value = sum_value(r, turn, hash);
    } else {
        value = largest_value(hash, r->slots, r->limit);
        if (r->input) value -= behind_largest(turn, r->slots);
        if (r->op == OP_MIN) value = -value;
    }
    if (!is_integer(r->dtype)) return float_type_bits(r, value);
    return r->op == OP_PROD ? r->powers[value] : scaled(value, r->lift, r->scale);
}

/* ---- poison ---------------------------------------------------------------------------------- */

/* The four bytes that data_poison repeats: 0x7f and 0xff are NaN in 8 bits. */
KERNEL_INLINE uint32_t poison_pattern(uint64_t salt)
{
    return salt % 2 ? 0x7fffffff : 0x7fff7fff;
}
