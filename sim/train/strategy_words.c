/* SPDX-License-Identifier: Apache-2.0
 * Reads strategy words: "tp2pp4", "fsdp8x16", "zero1", "tp8dp2@order=dp,tp". One table says what
 * words there are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "train/strategy.h"

/* A word and the number behind it. */
enum word_kind {
    DEGREE, /* a number, 1 or more, into a field */
    SHARDS, /* none, N, or NxM */
    LEVEL,  /* 0..3 */
    FLAG,   /* no number */
};

/* Longer words stand before shorter ones that they end in or begin with. */
static const struct word {
    const char *name;
    enum word_kind kind;
    size_t offset;
} words[] = {
    {"ulysses", DEGREE, offsetof(struct strategy_args, ulysses)},
    {"fsdp", SHARDS, offsetof(struct strategy_args, shards)},
    {"zero", LEVEL, offsetof(struct strategy_args, zero)},
    {"shards", DEGREE, offsetof(struct strategy_args, shards)},
    {"vpp", DEGREE, offsetof(struct strategy_args, vpp)},
    {"etp", DEGREE, offsetof(struct strategy_args, etp)},
    {"tp", DEGREE, offsetof(struct strategy_args, tp)},
    {"pp", DEGREE, offsetof(struct strategy_args, pp)},
    {"dp", DEGREE, offsetof(struct strategy_args, dp)},
    {"cp", DEGREE, offsetof(struct strategy_args, cp)},
    {"ep", DEGREE, offsetof(struct strategy_args, ep)},
    {"sp", FLAG, offsetof(struct strategy_args, sp)},
};

static const char word_list[] =
    "tpN, ppN, dpN, cpN, ulyssesN, epN, etpN, vppN, sp, fsdp, fsdpN, fsdpNxM, zero0 to zero3, "
    "shardsN, @order=axis,...";

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* The number that `text` starts with: 1 read, 0 there is none, -1 a fault. */
static int read_number(const char *word, const char **text, uint64_t min, uint64_t max,
                       uint64_t *value, struct err *err)
{
    size_t length = digits(*text);
    if (length == 0) return 0;
    char *number = mem_printf("%.*s", (int)length, *text);
    char *what = mem_printf("--strategy: %s", word);
    int result = units_read_uint(what, number, min, max, value, err);
    free(number);
    free(what);
    *text += length;
    return result ? -1 : 1;
}

/* A field that a word sets must not have been set by another word. */
static int twice(const struct word *word, bool set, struct err *err)
{
    if (!set) return 0;
    return err_add(err, ERR_USAGE, "--strategy: \"%s\" is given twice", word->name);
}

static int read_degree(struct strategy_args *args, const struct word *word, const char **text,
                       struct err *err)
{
    uint64_t *field = (uint64_t *)(void *)((char *)args + word->offset);
    int result = twice(word, *field != 0, err);
    int got = read_number(word->name, text, 1, INT32_MAX, field, err);
    if (got == 0)
        err_add(err, ERR_USAGE, "--strategy: \"%s\" needs a number, as in %s2", word->name,
                word->name);
    return got == 1 ? result : -1;
}

static int read_shards(struct strategy_args *args, const struct word *word, const char **text,
                       struct err *err)
{
    int result = twice(word, args->zero != NULL, err);
    args->zero = "fsdp";
    int got = read_number(word->name, text, 1, INT32_MAX, &args->shards, err);
    if (got < 0) result = -1;
    if (got == 0 || **text != 'x') return result;
    (*text)++;
    got = read_number(word->name, text, 1, INT32_MAX, &args->replicas, err);
    if (got == 0)
        err_add(err, ERR_USAGE,
                "--strategy: the x behind fsdp%" PRIu64
                " needs a number of replicas, as in fsdp8x16",
                args->shards);
    return got == 1 ? result : -1;
}

static int read_level(struct strategy_args *args, const struct word *word, const char **text,
                      struct err *err)
{
    static const char *const levels[] = {"none", "1", "2", "3"};
    uint64_t level = 0;
    int result = twice(word, args->zero != NULL, err);
    int got = read_number(word->name, text, 0, 3, &level, err);
    if (got == 0) err_add(err, ERR_USAGE, "--strategy: \"zero\" needs a level, zero0 to zero3");
    args->zero = levels[got == 1 ? level : 0];
    return got == 1 ? result : -1;
}

static int read_flag(struct strategy_args *args, const struct word *word, const char **text,
                     struct err *err)
{
    bool *field = (bool *)((char *)args + word->offset);
    int result = twice(word, *field, err);
    *field = true;
    size_t length = digits(*text);
    if (length == 0) return result;
    err_add(err, ERR_USAGE, "--strategy: \"%s\" takes no number, it has %.*s", word->name,
            (int)length, *text);
    *text += length;
    return -1;
}

static int read_word(struct strategy_args *args, const char **text, struct err *err)
{
    static int (*const readers[])(struct strategy_args *, const struct word *, const char **,
                                  struct err *) = {
        [DEGREE] = read_degree, [SHARDS] = read_shards, [LEVEL] = read_level, [FLAG] = read_flag};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].name);
        if (strncmp(*text, words[i].name, length) != 0) continue;
        *text += length;
        return readers[words[i].kind](args, &words[i], text, err);
    }
    err_add(err, ERR_USAGE, "--strategy: nothing is called \"%.40s\"; words: %s", *text, word_list);
    *text += strlen(*text);
    return -1;
}

int strategy_parse(struct strategy_args *args, const char *word, struct err *err)
{
    static const char order[] = "@order=";
    const char *text = word;
    int result = 0;
    if (*text == '\0') return err_add(err, ERR_USAGE, "--strategy: is empty; words: %s", word_list);
    while (*text) {
        text += strspn(text, "-_+.");
        if (strncmp(text, order, strlen(order)) == 0) {
            args->order = text + strlen(order);
            break;
        }
        if (*text) result |= read_word(args, &text, err);
    }
    return result;
}

/* ---- lists ---- */

static bool is_axis(const char *text, size_t length)
{
    for (unsigned axis = 0; axis < NAXES; axis++) {
        const char *name = axis_name((enum axis)axis);
        if (strlen(name) == length && strncmp(text, name, length) == 0) return true;
    }
    return false;
}

/* Length of the first word of a list; with an order, of the axes behind its commas too. */
static size_t word_length(const char *text)
{
    size_t length = strcspn(text, ",");
    bool order = memchr(text, '@', length) != NULL;
    while (order && text[length] == ',' &&
           is_axis(text + length + 1, strcspn(text + length + 1, ",")))
        length += 1 + strcspn(text + length + 1, ",");
    return length;
}

char **strategy_list(const char *text, size_t *count)
{
    char **list = NULL;
    size_t cap = 0;
    *count = 0;
    for (bool more = true; more;) {
        size_t length = word_length(text);
        MEM_GROW(list, *count, cap);
        list[(*count)++] = mem_printf("%.*s", (int)length, text);
        more = text[length] == ',';
        text += length + more;
    }
    return list;
}

void strategy_list_free(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}
