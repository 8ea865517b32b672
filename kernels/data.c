/* SPDX-License-Identifier: Apache-2.0
 * The data of the correctness check: see data.h. All is computed in blocks of positions, as loops
 * over small arrays that a compiler vectorises; what they do for one position is in data_value.h.
 */
#include "kernels/data.h"

#include <string.h>

#include "kernels/data_value.h"

/* Positions per block; blocks end at multiples of it. */
enum { BLOCK = 256 };

/* ---- hashes ---------------------------------------------------------------------------------- */

static void hash_positions(const struct recipe *recipe, uint64_t first, size_t n, uint32_t *hash)
{
    uint64_t key = data_key(recipe->salt, first);
    uint32_t low = (uint32_t)first;
    for (size_t i = 0; i < n; i++) {
        hash[i] = position_hash(low + (uint32_t)i, key);
    }
}

static void turn_positions(const struct recipe *recipe, uint64_t first, size_t count,
                           uint32_t *turn)
{
    uint32_t place = place_of(first), n = recipe->turns, turned = recipe->turned;
    if (n == 1) {
        memset(turn, 0, count * sizeof *turn);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        turn[i] = turn_of(place + (uint32_t)i, n, turned);
    }
}

/* ---- values as integers ---------------------------------------------------------------------- */

/* sum, avg, exponents of prod: one rank's values; its group is active where the turn says so. */
static void sum_input(const struct recipe *recipe, uint64_t first, const uint32_t *hash, size_t n,
                      int32_t *value)
{
    uint32_t group[BLOCK], shift = recipe->shift, rank = recipe->rank, own = rank % recipe->groups;
    turn_positions(recipe, first, n, group);
    for (size_t i = 0; i < n; i++) {
        int32_t active = group[i] == own ? recipe->unit : 0;
        value[i] = active * active_value(rank_hash(hash[i], rank), shift, recipe->negative);
    }
}

/* The sum over the ranks of each position's group: group, group + groups, .. rank_hash in
 * increments. */
static void sum_reduced(const struct recipe *recipe, uint64_t first, const uint32_t *hash, size_t n,
                        int32_t *value)
{
    uint32_t group[BLOCK], x[BLOCK], step[BLOCK], groups = recipe->groups, shift = recipe->shift;
    turn_positions(recipe, first, n, group);
    for (size_t i = 0; i < n; i++) {
        value[i] = 0;
        x[i] = rank_hash(hash[i], group[i]);
        step[i] = hash[i] * (groups * (uint32_t)RANK_STEP);
    }
    for (uint32_t base = 0; base < recipe->nranks; base += groups) {
        int32_t left = (int32_t)(recipe->nranks - base);
        for (size_t i = 0; i < n; i++) {
            int32_t one = active_value(x[i], shift, recipe->negative) * recipe->unit;
            value[i] += (int32_t)group[i] < left ? one : 0;
            x[i] += step[i];
        }
    }
}

static void max_reduced(const struct recipe *recipe, const uint32_t *hash, size_t n, int32_t *value)
{
    uint32_t slots = recipe->slots;
    int32_t limit = recipe->limit;
    for (size_t i = 0; i < n; i++) {
        value[i] = largest_value(hash[i], slots, limit);
    }
}

static void max_input(const struct recipe *recipe, uint64_t first, const uint32_t *hash, size_t n,
                      int32_t *value)
{
    uint32_t turn[BLOCK], slots = recipe->slots;
    turn_positions(recipe, first, n, turn);
    max_reduced(recipe, hash, n, value);
    for (size_t i = 0; i < n; i++) {
        value[i] -= behind_largest(turn[i], slots);
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

/* No operator. */
static void make_bits(const struct recipe *recipe, const uint32_t *hash, size_t n, void *out)
{
    uint32_t esize = recipe->esize, rank = recipe->rank, word[BLOCK];
    uint64_t *wide = out;
    if (esize == 8) {
        for (size_t i = 0; i < n; i++) {
            wide[i] = moved_wide(rank_hash(hash[i], rank));
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        word[i] = moved_word(rank_hash(hash[i], rank), esize);
    }
    put_words(esize, word, n, out);
}

/* Those of up to 4 bytes in words of 32 bits, in which `scaled` wraps. */
static void encode_integers(const struct recipe *recipe, const int32_t *value, size_t n, void *out)
{
    uint32_t word[BLOCK], low = (uint32_t)recipe->scale;
    int32_t lift = recipe->lift;
    uint64_t scale = recipe->scale, *wide = out;
    if (recipe->op == OP_PROD) {
        for (size_t i = 0; i < n; i++) {
            uint64_t power = recipe->powers[value[i]];
            if (recipe->esize == 8) wide[i] = power;
            word[i] = (uint32_t)power;
        }
    } else if (recipe->esize == 8) {
        for (size_t i = 0; i < n; i++) {
            wide[i] = scaled(value[i], lift, scale);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            word[i] = (uint32_t)(value[i] + lift) * low;
        }
    }
    if (recipe->esize < 8) put_words(recipe->esize, word, n, out);
}

static void encode_doubles(const struct recipe *recipe, const int32_t *value, size_t n, double *out)
{
    double scale = (double)recipe->scale, divisor = (double)recipe->divisor;
    for (size_t i = 0; recipe->op == OP_PROD && i < n; i++) {
        out[i] = power_double(value[i]);
    }
    for (size_t i = 0; recipe->op != OP_PROD && i < n; i++) {
        out[i] = (double)value[i] * scale;
    }
    for (size_t i = 0; recipe->divisor > 1 && i < n; i++) {
        out[i] /= divisor;
    }
}

/* As floats, in which sums and powers of -2 are exact. */
static void widen_values(const struct recipe *recipe, const int32_t *value, size_t n, float *wide)
{
    float divisor = (float)recipe->divisor;
    for (size_t i = 0; recipe->op == OP_PROD && i < n; i++) {
        wide[i] = power_float(value[i]);
    }
    for (size_t i = 0; recipe->op != OP_PROD && i < n; i++) {
        wide[i] = (float)value[i];
    }
    for (size_t i = 0; recipe->divisor > 1 && i < n; i++) {
        wide[i] /= divisor;
    }
}

static inline void narrow_words(struct format format, const float *wide, size_t n, uint32_t *word)
{
    for (size_t i = 0; i < n; i++) {
        word[i] = narrowed(format, wide[i]);
    }
}

/* Float types of up to 32 bits. */
static void encode_floats(const struct recipe *recipe, const int32_t *value, size_t n, void *out)
{
    float wide[BLOCK];
    uint32_t word[BLOCK], esize = recipe->esize;
    widen_values(recipe, value, n, wide);
    if (recipe->dtype == DT_FLOAT) {
        memcpy(out, wide, n * sizeof *wide);
        return;
    }
    if (!is_sum(recipe->op)) {
        for (size_t i = 0; i < n; i++) {
            word[i] = bits_in_order(value[i], esize);
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

static void encode(const struct recipe *recipe, const int32_t *value, size_t n, void *out)
{
    if (is_integer(recipe->dtype)) {
        encode_integers(recipe, value, n, out);
    } else if (recipe->dtype == DT_DOUBLE) {
        encode_doubles(recipe, value, n, out);
    } else {
        encode_floats(recipe, value, n, out);
    }
}

/* data_element for `n` <= BLOCK positions that do not cross a multiple of BLOCK. */
static void make_block(const struct recipe *recipe, uint64_t first, size_t n, void *out)
{
    uint32_t hash[BLOCK];
    int32_t value[BLOCK];
    hash_positions(recipe, first, n, hash);
    if (recipe->op == OP_COUNT) {
        make_bits(recipe, hash, n, out);
        return;
    }
    if (is_sum(recipe->op) && recipe->input) {
        sum_input(recipe, first, hash, n, value);
    } else if (is_sum(recipe->op)) {
        sum_reduced(recipe, first, hash, n, value);
    } else if (recipe->input) {
        max_input(recipe, first, hash, n, value);
    } else {
        max_reduced(recipe, hash, n, value);
    }
    if (recipe->op == OP_MIN) negate(n, value);
    encode(recipe, value, n, out);
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

static size_t check(const struct recipe *recipe, const void *buf, uint64_t first, size_t count,
                    struct data_bad *bad)
{
    size_t esize = recipe->esize, wrong = 0;
    _Alignas(64) uint8_t expected[BLOCK * sizeof(double)];
    for (size_t done = 0, n; done < count; done += n) {
        n = block_length(first + done, count - done);
        const uint8_t *got = (const uint8_t *)buf + done * esize;
        make_block(recipe, first + done, n, expected);
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
    recipe_init(&recipe, dtype, op, nranks, true, rank, salt);
    size_t esize = recipe.esize;
    for (size_t done = 0, n; done < count; done += n) {
        n = block_length(first + done, count - done);
        make_block(&recipe, first + done, n, (uint8_t *)buf + done * esize);
    }
}

size_t data_check_reduced(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                          uint64_t first, size_t count, uint64_t salt, struct data_bad *bad)
{
    struct recipe recipe;
    recipe_init(&recipe, dtype, op, nranks, false, 0, salt);
    return check(&recipe, buf, first, count, bad);
}

size_t data_check_copy(const void *buf, enum dtype dtype, enum redop op, uint32_t nranks,
                       uint32_t rank, uint64_t first, size_t count, uint64_t salt,
                       struct data_bad *bad)
{
    struct recipe recipe;
    recipe_init(&recipe, dtype, op, nranks, true, rank, salt);
    return check(&recipe, buf, first, count, bad);
}

void data_poison(void *buf, size_t bytes, uint64_t salt)
{
    uint32_t pattern = poison_pattern(salt);
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
