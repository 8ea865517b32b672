/* SPDX-License-Identifier: Apache-2.0
 * The data of the correctness check: see data.h. All is computed in blocks of positions, as loops
 * over small arrays that a compiler vectorises, first as integers, then in the type: a value, or
 * for a product the exponent of a power, so that products are sums too. */
#include "kernels/data.h"

#include <string.h>

#include "base/rng.h"
#include "kernels/narrow.h"

/* Positions per block; blocks end at multiples of it. Exponents of one factor. */
enum { BLOCK = 256, ACTIVE = 8, INTEGER_EXPONENTS = 32 };

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
 * 64-bit integers and 3 in uint32, so that poison, which is odd and no multiple of 3, is not among
 * the values. negative   there are negative numbers */
static const struct range {
    int32_t sums, most;
    uint32_t exponents;
    int32_t unit;
    uint64_t scale;
    bool negative;
} ranges[DT_COUNT] = {
    [DT_INT8] = {127, 127, INTEGER_EXPONENTS, 1, 1, true},
    [DT_UINT8] = {255, 127, INTEGER_EXPONENTS, 1, 1, false},
    [DT_INT32] = {1 << 30, (1 << 30) - 1, INTEGER_EXPONENTS, 1, 1, true},
    [DT_UINT32] = {1 << 30, 1 << 29, INTEGER_EXPONENTS, 1, 3, false},
    [DT_INT64] = {1 << 30, 1 << 29, INTEGER_EXPONENTS, 1, 0x1fffffff6, true},
    [DT_UINT64] = {1 << 30, 1 << 29, INTEGER_EXPONENTS, 1, 0x3fffffffa, false},
    [DT_HALF] = {1 << 11, 0x7bff, 1, 1 << 5, 1, true},
    [DT_FLOAT] = {1 << 24, 1 << 24, 8, 1, 1, true},
    [DT_DOUBLE] = {1 << 24, 1 << 24, 8, 1, 0x1fffffff, true},
    [DT_BFLOAT16] = {1 << 8, 0x7f7f, 8, 1, 1, true},
    [DT_F8E4M3] = {1 << 4, 0x7e, 1, 1 << 5, 1, true},
    [DT_F8E5M2] = {1 << 3, 0x7b, 1, 1 << 13, 1, true},
};

/* All that is the same for a whole call. */
struct recipe {
    enum dtype dtype;
    enum redop op;
    uint32_t nranks;
    uint32_t groups;   /* sums: rank r is active where r % groups is the turn of the position */
    uint32_t shift;    /* sums: magnitudes are 1 + (hash >> shift >> 1) */
    uint32_t negative; /* sums: 1 if there are negative values */
    int32_t unit;      /* sums: what the values are multiples of */
    int32_t limit;     /* max, min: values lie in [-limit, limit] */
    uint32_t slots;    /* max, min: distinct values per position */
    uint64_t salt;
    uint64_t powers[ACTIVE * INTEGER_EXPONENTS + 1]; /* prod of integers: of -3 */
};

static bool is_integer(enum dtype dtype)
{
    return dtype <= DT_UINT64;
}

/* All but max and min. */
static bool is_sum(enum redop op)
{
    return op == OP_SUM || op == OP_PROD || op == OP_AVG;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Averages: of integers multiples of nranks, if the type has any. */
static int32_t unit_of(enum dtype dtype, enum redop op, uint32_t nranks)
{
    if (op != OP_AVG) return 1;
    if (!is_integer(dtype)) return ranges[dtype].unit;
    return nranks <= (uint32_t)ranges[dtype].sums ? (int32_t)nranks : 1;
}

/* The most that |sum| may be, in units. */
static uint32_t limit_of(enum dtype dtype, enum redop op, uint32_t nranks)
{
    int32_t sums = ranges[dtype].sums;
    if (op != OP_AVG) return (uint32_t)sums;
    return (uint32_t)(is_integer(dtype) ? sums / unit_of(dtype, op, nranks) : sums / 2);
}

/* Groups of at most 8 ranks, of which one is active at a time. The values of its ranks differ: by
 * sign, or by magnitudes of 1 and 2 at least. */
static uint32_t groups_of(enum dtype dtype, enum redop op, uint32_t nranks)
{
    uint32_t active = ACTIVE, limit = limit_of(dtype, op, nranks);
    if (!ranges[dtype].negative) limit /= 2;
    if (op != OP_PROD && limit < active + 1) active = limit > 2 ? limit - 1 : 1;
    return ceil_div(nranks, active);
}

static void recipe_init(struct recipe *r, enum dtype dtype, enum redop op, uint32_t nranks,
                        uint64_t salt)
{
    const struct range *range = &ranges[dtype];
    r->dtype = dtype;
    r->op = op;
    r->nranks = nranks;
    r->salt = salt;
    r->groups = groups_of(dtype, op, nranks);
    r->unit = unit_of(dtype, op, nranks);
    r->negative = range->negative && !(op == OP_PROD && is_integer(dtype));
    uint32_t most = limit_of(dtype, op, nranks) / (ceil_div(nranks, r->groups) + 1);
    if (op == OP_PROD) most = range->exponents;
    for (r->shift = 31; r->shift > 0 && most >> (32 - r->shift) > 0; r->shift--) {
    }
    r->limit = range->most;
    r->slots = nranks < (uint32_t)r->limit ? nranks : (uint32_t)r->limit;
    if (op != OP_PROD || !is_integer(dtype)) return;
    r->powers[0] = 1;
    for (size_t i = 1; i < sizeof r->powers / sizeof r->powers[0]; i++) {
        r->powers[i] = r->powers[i - 1] * (uint64_t)-3;
    }
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
static int32_t active_value(uint32_t x, uint32_t shift, uint32_t negative)
{
    int32_t magnitude = (int32_t)(x >> shift >> 1) + 1;
    int32_t minus = -(int32_t)(x >> shift & negative);
    return (magnitude ^ minus) - minus;
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

/* sum, avg, exponents of prod: one rank's values; its group is active where the turn says so. */
static void sum_input(const struct recipe *recipe, uint32_t rank, uint64_t first,
                      const uint32_t *hash, size_t n, int32_t *value)
{
    uint32_t group[BLOCK], shift = recipe->shift, own = rank % recipe->groups;
    turn_positions(first, recipe->salt, recipe->groups, n, group);
    for (size_t i = 0; i < n; i++) {
        int32_t active = group[i] == own ? recipe->unit : 0;
        value[i] = active * active_value(rank_hash(hash[i], rank), shift, recipe->negative);
    }
}

/* The sum over the ranks of each position's group: group, group + groups, ..; for an average of
 * integers the quotient: the values are multiples of nranks, or the sum is smaller than it.
 * rank_hash in increments. */
static void sum_reduced(const struct recipe *recipe, uint64_t first, const uint32_t *hash, size_t n,
                        int32_t *value)
{
    uint32_t group[BLOCK], x[BLOCK], step[BLOCK], groups = recipe->groups, shift = recipe->shift;
    int32_t unit = recipe->unit;
    if (recipe->op == OP_AVG && is_integer(recipe->dtype)) unit = (uint32_t)unit == recipe->nranks;
    turn_positions(first, recipe->salt, recipe->groups, n, group);
    for (size_t i = 0; i < n; i++) {
        value[i] = 0;
        x[i] = rank_hash(hash[i], group[i]);
        step[i] = hash[i] * (groups * (uint32_t)RANK_STEP);
    }
    for (uint32_t base = 0; base < recipe->nranks; base += groups) {
        int32_t left = (int32_t)(recipe->nranks - base);
        for (size_t i = 0; i < n; i++) {
            int32_t one = active_value(x[i], shift, recipe->negative) * unit;
            value[i] += (int32_t)group[i] < left ? one : 0;
            x[i] += step[i];
        }
    }
}

/* max: the ranks' values at a position are `slots` neighbours, of which this is the largest. min
 * has the same with the other sign. */
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

static void negate(size_t n, int32_t *value)
{
    for (size_t i = 0; i < n; i++) {
        value[i] = -value[i];
    }
}

/* ---- values in the type ---------------------------------------------------------------------- */

/* The low bytes of words to elements of 1, 2 or 4. */
static void put_words(size_t esize, const uint32_t *word, size_t n, void *out)
{
    uint8_t *bytes = out;
    uint16_t *halves = out;
    if (esize == 4) memcpy(out, word, n * sizeof *word);
    for (size_t i = 0; esize == 1 && i < n; i++) {
        bytes[i] = (uint8_t)word[i];
    }
    for (size_t i = 0; esize == 2 && i < n; i++) {
        halves[i] = (uint16_t)word[i];
    }
}

/* No operator: any bits but the highest but one, which is 0: so a pattern is finite in every float
 * type, and differs from poison. */
static void make_bits(const struct recipe *recipe, uint32_t rank, const uint32_t *hash, size_t n,
                      void *out)
{
    uint32_t esize = (uint32_t)dtype_bytes(recipe->dtype), word[BLOCK];
    uint64_t *wide = out;
    if (esize == 8) {
        for (size_t i = 0; i < n; i++) {
            wide[i] =
                rank_hash(hash[i], rank) * UINT64_C(0x9e3779b97f4a7c15) & ~(UINT64_C(1) << 62);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        word[i] = (rank_hash(hash[i], rank) & 0xbfffffffu) >> (32 - 8 * esize);
    }
    put_words(esize, word, n, out);
}

static void encode_integers(const struct recipe *recipe, const int32_t *value, size_t n, void *out)
{
    size_t esize = dtype_bytes(recipe->dtype);
    uint64_t scale = ranges[recipe->dtype].scale, *wide = out;
    uint32_t word[BLOCK], low = (uint32_t)scale;
    int32_t lift = recipe->negative || is_sum(recipe->op) ? 0 : recipe->limit;
    if (recipe->op == OP_PROD) {
        for (size_t i = 0; i < n; i++) {
            uint64_t power = recipe->powers[value[i]];
            if (esize == 8) wide[i] = power;
            word[i] = (uint32_t)power;
        }
    } else if (esize == 8) {
        for (size_t i = 0; i < n; i++) {
            wide[i] = (uint64_t)(int64_t)(value[i] + lift) * scale;
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            word[i] = (uint32_t)(value[i] + lift) * low;
        }
    }
    if (esize < 8) put_words(esize, word, n, out);
}

static void encode_doubles(const struct recipe *recipe, uint32_t divisor, const int32_t *value,
                           size_t n, double *out)
{
    double scale = (double)ranges[DT_DOUBLE].scale;
    for (size_t i = 0; recipe->op == OP_PROD && i < n; i++) {
        uint64_t bits = (uint64_t)(1023 + value[i]) << 52 | (uint64_t)(value[i] & 1) << 63;
        memcpy(&out[i], &bits, sizeof bits);
    }
    for (size_t i = 0; recipe->op != OP_PROD && i < n; i++) {
        out[i] = (double)value[i] * scale;
    }
    for (size_t i = 0; divisor > 1 && i < n; i++) {
        out[i] /= (double)divisor;
    }
}

/* As floats, in which sums and powers of -2 are exact. */
static void widen_values(const struct recipe *recipe, uint32_t divisor, const int32_t *value,
                         size_t n, float *wide)
{
    for (size_t i = 0; recipe->op == OP_PROD && i < n; i++) {
        wide[i] = bits_float((uint32_t)(127 + value[i]) << 23 | (uint32_t)(value[i] & 1) << 31);
    }
    for (size_t i = 0; recipe->op != OP_PROD && i < n; i++) {
        wide[i] = (float)value[i];
    }
    for (size_t i = 0; divisor > 1 && i < n; i++) {
        wide[i] /= (float)divisor;
    }
}

static inline void narrow_words(struct format format, const float *wide, size_t n, uint32_t *word)
{
    for (size_t i = 0; i < n; i++) {
        word[i] = narrowed(format, wide[i]);
    }
}

/* Float types of up to 32 bits. */
static void encode_floats(const struct recipe *recipe, uint32_t divisor, const int32_t *value,
                          size_t n, void *out)
{
    float wide[BLOCK];
    uint32_t word[BLOCK], esize = (uint32_t)dtype_bytes(recipe->dtype);
    widen_values(recipe, divisor, value, n, wide);
    if (recipe->dtype == DT_FLOAT) {
        memcpy(out, wide, n * sizeof *wide);
        return;
    }
    if (!is_sum(recipe->op)) {
        int32_t sign = 1 << (8 * esize - 1);
        for (size_t i = 0; i < n; i++) {
            word[i] = (uint32_t)(value[i] < 0 ? sign - value[i] : value[i]);
        }
    } else if (recipe->dtype == DT_HALF) {
        narrow_words(format_half, wide, n, word);
    } else if (recipe->dtype == DT_F8E4M3) {
        narrow_words(format_e4m3, wide, n, word);
    } else if (recipe->dtype == DT_F8E5M2) {
        narrow_words(format_e5m2, wide, n, word);
    } else {
        for (size_t i = 0; i < n; i++) {
            word[i] = bf16_bits(wide[i]);
        }
    }
    put_words(esize, word, n, out);
}

/* `divisor` > 1: what is encoded is an average; `value` is the sum (integers: the quotient). */
static void encode(const struct recipe *recipe, uint32_t divisor, const int32_t *value, size_t n,
                   void *out)
{
    if (is_integer(recipe->dtype)) {
        encode_integers(recipe, value, n, out);
    } else if (recipe->dtype == DT_DOUBLE) {
        encode_doubles(recipe, divisor, value, n, out);
    } else {
        encode_floats(recipe, divisor, value, n, out);
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
        make_bits(recipe, rank, hash, n, out);
        return;
    }
    if (is_sum(recipe->op) && input) {
        sum_input(recipe, rank, first, hash, n, value);
    } else if (is_sum(recipe->op)) {
        sum_reduced(recipe, first, hash, n, value);
    } else if (input) {
        max_input(recipe, rank, first, hash, n, value);
    } else {
        max_reduced(recipe, hash, n, value);
    }
    if (recipe->op == OP_MIN) negate(n, value);
    encode(recipe, recipe->op == OP_AVG && !input ? recipe->nranks : 1, value, n, out);
}

static size_t block_length(uint64_t first, size_t left)
{
    size_t n = (size_t)(BLOCK - first % BLOCK);
    return n < left ? n : left;
}

static double as_double(enum dtype dtype, const void *element)
{
    uint64_t word = 0;
    double value;
    memcpy(&word, element, dtype_bytes(dtype));
    switch (dtype) {
    case DT_INT8:
        return (int8_t)word;
    case DT_INT32:
        return (int32_t)word;
    case DT_INT64:
        return (double)(int64_t)word;
    case DT_UINT8:
    case DT_UINT32:
    case DT_UINT64:
        return (double)word;
    case DT_DOUBLE:
        memcpy(&value, &word, sizeof value);
        return value;
    default:
        return (double)narrow_to_float(dtype, (uint32_t)word);
    }
}

static size_t check(const struct recipe *recipe, bool input, uint32_t rank, const void *buf,
                    uint64_t first, size_t count, struct data_bad *bad)
{
    size_t esize = dtype_bytes(recipe->dtype), wrong = 0;
    _Alignas(64) uint8_t expected[BLOCK * sizeof(double)];
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
    struct recipe recipe;
    recipe_init(&recipe, dtype, op, nranks, salt);
    size_t esize = dtype_bytes(dtype);
    for (size_t done = 0, n; done < count; done += n) {
        n = block_length(first + done, count - done);
        make_block(&recipe, true, rank, first + done, n, (uint8_t *)buf + done * esize);
    }
}

size_t data_check_reduced(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                          uint64_t first, size_t count, uint64_t salt, struct data_bad *bad)
{
    struct recipe recipe;
    recipe_init(&recipe, dtype, op, nranks, salt);
    return check(&recipe, false, 0, buf, first, count, bad);
}

size_t data_check_copy(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                       uint32_t rank, uint64_t first, size_t count, uint64_t salt,
                       struct data_bad *bad)
{
    struct recipe recipe;
    recipe_init(&recipe, dtype, op, nranks, salt);
    return check(&recipe, true, rank, buf, first, count, bad);
}

void data_poison(void *buf, size_t bytes, uint64_t salt)
{
    uint32_t pattern = salt % 2 ? 0x7fffffff : 0x7fff7fff; /* bytes 0x7f and 0xff: NaN in 8 bits */
    uint8_t *out = buf;
    for (size_t i = 0; i < bytes / 4; i++) {
        memcpy(out + 4 * i, &pattern, 4);
    }
    if (bytes % 4) memcpy(out + bytes / 4 * 4, &pattern, bytes % 4);
}

uint32_t data_rounds(enum dtype dtype, enum redop op, uint32_t nranks)
{
    uint32_t groups = groups_of(dtype, op, nranks);
    return is_sum(op) && groups > 2 ? groups : 2;
}
