/* SPDX-License-Identifier: Apache-2.0
 * The reader of option tables and the writer of --help. Each option type is one row of a table of
 * readers; there is no code for any single option. */
#include "base/opts.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"

#define HELP_COLUMNS 100 /* width of --help */
#define HELP_INDENT 30   /* where the texts of the rows start */

static size_t count_rows(const struct opts_row *rows)
{
    size_t n = 0;
    while (rows[n].name)
        n++;
    return n;
}

struct opts_row *opts_join(const struct opts_part *parts, size_t nparts)
{
    size_t total = 0;
    for (size_t i = 0; i < nparts; i++)
        total += count_rows(parts[i].rows);
    struct opts_row *joined = mem_calloc(total + 1, sizeof *joined), *to = joined;
    for (size_t i = 0; i < nparts; i++)
        for (const struct opts_row *row = parts[i].rows; row->name; row++, to++) {
            *to = *row;
            to->offset += parts[i].offset;
        }
    return joined;
}

/* Edits (insert, delete, replace) that turn a into b: Levenshtein's distance, one line kept. */
static size_t distance(const char *a, const char *b)
{
    size_t nb = strlen(b);
    size_t *line = mem_calloc(nb + 1, sizeof *line);
    for (size_t j = 0; j <= nb; j++)
        line[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = line[0];
        line[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            size_t other = 1 + (line[j] < line[j - 1] ? line[j] : line[j - 1]);
            diagonal = line[j];
            line[j] = replace < other ? replace : other;
        }
    }
    size_t edits = line[nb];
    free(line);
    return edits;
}

int opts_unknown(struct err *err, const char *what, const char *given, const char *const *names)
{
    char *text = mem_printf("%.60s", given); /* a sentence stays one, whatever a file holds */
    const char *nearest = NULL;
    size_t best = 0;
    char *valid = mem_strdup("");
    for (const char *const *name = names; *name; name++) {
        size_t edits = distance(text, *name);
        if (!nearest || edits < best) {
            nearest = *name;
            best = edits;
        }
        char *longer = mem_printf("%s%s%s", valid, *valid ? ", " : "", *name);
        free(valid);
        valid = longer;
    }
    const char *word = text + strspn(text, "-");
    bool close = nearest && 2 * best <= strlen(word); /* else naming it would be a guess */
    err_add(err, ERR_USAGE, "unknown %s \"%s\"%s%s; valid: %s", what, text,
            close ? ": nearest is " : "", close ? nearest : "", *valid ? valid : "none");
    free(valid);
    free(text);
    return -1;
}

/* ---- one reader per type: text -> field ---- */

typedef int reader(const struct opts_row *row, const char *option, const char *text, void *field,
                   struct err *err);

static int read_uint(const struct opts_row *row, const char *option, const char *text, void *field,
                     struct err *err)
{
    return units_read_uint(option, text, row->min, row->max ? row->max : UINT64_MAX, field, err);
}

static int read_count(const struct opts_row *row, const char *option, const char *text, void *field,
                      struct err *err)
{
    uint64_t count, max = row->max ? row->max : UINT64_MAX;
    struct err own = ERR_INIT;
    int bad = units_read_size(option, text, &count, &own);
    err_release(&own); /* it speaks of bytes */
    if (bad)
        return err_add(err, ERR_USAGE,
                       "%s: \"%s\" is no number of %s; accepted: a whole number from %llu, or with "
                       "K, M, G: 8K is 8192",
                       option, text, row->arg, (unsigned long long)row->min);
    if (count < row->min || count > max)
        return err_add(err, ERR_USAGE, "%s: \"%s\" is out of range; accepted: %llu to %llu %s",
                       option, text, (unsigned long long)row->min, (unsigned long long)max,
                       row->arg);
    *(uint64_t *)field = count;
    return 0;
}

static int read_size(const struct opts_row *row, const char *option, const char *text, void *field,
                     struct err *err)
{
    uint64_t bytes, max = row->max ? row->max : UINT64_MAX;
    if (units_read_size(option, text, &bytes, err)) return -1;
    if (bytes < row->min || bytes > max)
        return err_add(err, ERR_USAGE, "%s: \"%s\" is out of range; accepted: %s to %s", option,
                       text, units_size((char[UNITS_TEXT]){0}, row->min),
                       row->max ? units_size((char[UNITS_TEXT]){0}, max) : "any size");
    *(uint64_t *)field = bytes;
    return 0;
}

static int read_time_ps(const struct opts_row *row, const char *option, const char *text,
                        void *field, struct err *err)
{
    return units_read_time_ps(option, text, row->plain_seconds, field, err);
}

static int read_time_s(const struct opts_row *row, const char *option, const char *text,
                       void *field, struct err *err)
{
    return units_read_time_s(option, text, row->plain_seconds, field, err);
}

static int read_bandwidth(const struct opts_row *row, const char *option, const char *text,
                          void *field, struct err *err)
{
    (void)row;
    return units_read_bandwidth(option, text, field, err);
}

static int read_double(const struct opts_row *row, const char *option, const char *text,
                       void *field, struct err *err)
{
    (void)row;
    return units_read_double(option, text, field, err);
}

static int read_fraction(const struct opts_row *row, const char *option, const char *text,
                         void *field, struct err *err)
{
    (void)row;
    return units_read_fraction(option, text, field, err);
}

static int read_share(const struct opts_row *row, const char *option, const char *text, void *field,
                      struct err *err)
{
    (void)row;
    return units_read_share(option, text, field, err);
}

static int read_string(const struct opts_row *row, const char *option, const char *text,
                       void *field, struct err *err)
{
    (void)row;
    (void)option;
    (void)err;
    *(const char **)field = text;
    return 0;
}

static int read_choice(const struct opts_row *row, const char *option, const char *text,
                       void *field, struct err *err)
{
    for (unsigned i = 0; row->choices[i]; i++)
        if (strcmp(row->choices[i], text) == 0) {
            *(unsigned *)field = i;
            return 0;
        }
    char *what = mem_printf("value for %s", option);
    opts_unknown(err, what, text, row->choices);
    free(what);
    return -1;
}

/* Cuts the text at its commas: pointers and characters in one block of memory. */
static struct opts_list cut_list(const char *text)
{
    struct opts_list list = {.count = 1};
    for (const char *c = text; *c; c++)
        list.count += *c == ',';
    size_t pointers = list.count * sizeof *list.items;
    list.items = mem_calloc(pointers + strlen(text) + 1, 1);
    char *copy = strcpy((char *)list.items + pointers, text);
    for (size_t i = 0; i < list.count; i++)
        list.items[i] = strsep(&copy, ",");
    return list;
}

static int read_list(const struct opts_row *row, const char *option, const char *text, void *field,
                     struct err *err)
{
    struct opts_list list = cut_list(text), *target = field;
    int bad = 0;
    for (size_t i = 0; i < list.count; i++) {
        unsigned index;
        if (!*list.items[i])
            bad = err_add(err, ERR_USAGE, "%s: \"%s\" has an empty item; accepted: %s", option,
                          text, "names with commas between them");
        else if (row->choices)
            bad |= read_choice(row, option, list.items[i], &index, err);
    }
    if (bad) {
        free(list.items);
        return -1;
    }
    free(target->items);
    *target = list;
    return 0;
}

static int read_more(const struct opts_row *row, const char *option, const char *text, void *field,
                     struct err *err)
{
    (void)row;
    (void)option;
    (void)err;
    /* one block, as cut_list makes it, so that it is freed alike: the pointers, then the texts */
    struct opts_list *list = field;
    size_t old = 0, more = strlen(text) + 1, table = (list->count + 1) * sizeof *list->items;
    for (size_t i = 0; i < list->count; i++)
        old += strlen(list->items[i]) + 1;
    char **items = mem_calloc(1, table + old + more), *at = (char *)items + table;
    for (size_t i = 0; i <= list->count; i++) {
        items[i] = at;
        strcpy(at, i < list->count ? list->items[i] : text);
        at += strlen(at) + 1;
    }
    free(list->items);
    list->items = items;
    list->count++;
    return 0;
}

static reader *const READERS[] = {
    [OPTS_UINT] = read_uint,         [OPTS_SIZE] = read_size,
    [OPTS_TIME_PS] = read_time_ps,   [OPTS_TIME_S] = read_time_s,
    [OPTS_DOUBLE] = read_double,     [OPTS_STRING] = read_string,
    [OPTS_FRACTION] = read_fraction, [OPTS_BANDWIDTH] = read_bandwidth,
    [OPTS_CHOICE] = read_choice,     [OPTS_LIST] = read_list,
    [OPTS_MORE] = read_more,         [OPTS_COUNT] = read_count,
    [OPTS_SHARE] = read_share,
};

/* ---- the command line ---- */

/* What is being read: the words and how far we are. */
struct cursor {
    struct opts *opts;
    int argc, at;
    char **argv;
    struct err *err;
};

static void *field_of(const struct opts *opts, const struct opts_row *row)
{
    return (char *)opts->target + row->offset;
}

/* A word can be a value unless it looks like an option: "-5" and "-" can, "-n" and "--" cannot. */
static bool is_value(const char *word)
{
    return word[0] != '-' || !word[1] || isdigit((unsigned char)word[1]) || word[1] == '.';
}

/* Gives `row` its value: `inline_value` (behind "=" or the letter), else the next word. `option`
 * is the spelling the user chose. */
static void take(struct cursor *in, const struct opts_row *row, const char *option,
                 const char *inline_value)
{
    const char *text = inline_value;
    if (row->type == OPTS_FLAG) {
        if (text)
            err_add(in->err, ERR_USAGE, "%s takes no value but was given \"%s\"", option, text);
        *(bool *)field_of(in->opts, row) = true;
    } else {
        if (!text && in->at + 1 < in->argc && is_value(in->argv[in->at + 1]))
            text = in->argv[++in->at];
        if (!text)
            err_add(in->err, ERR_USAGE, "%s needs a value (%s): %s", option, row->arg, row->help);
        else
            READERS[row->type](row, option, text, field_of(in->opts, row), in->err);
    }
    in->opts->set[row - in->opts->rows] = true;
}

/* An option nobody knows: names the nearest and all valid ones, and skips the word behind it,
 * which was meant as its value. */
static void unknown_option(struct cursor *in, const char *spelling, bool by_letter, bool has_inline)
{
    const struct opts_row *rows = in->opts->rows;
    size_t nrows = count_rows(rows), n = 0;
    char **names = mem_calloc(nrows + 2, sizeof *names);
    for (size_t i = 0; i < nrows; i++)
        if (!by_letter)
            names[n++] = mem_printf("--%s", rows[i].name);
        else if (rows[i].letter)
            names[n++] = mem_printf("-%c", rows[i].letter);
    names[n++] = mem_strdup(by_letter ? "-h" : "--help");
    opts_unknown(in->err, "option", spelling, (const char *const *)names);
    while (n)
        free(names[--n]);
    free(names);
    if (!has_inline && in->at + 1 < in->argc && is_value(in->argv[in->at + 1])) in->at++;
}

/* The word at in->at starts with "--". */
static void read_long(struct cursor *in)
{
    char *option = mem_strdup(in->argv[in->at]);
    char *inline_value = strchr(option, '=');
    size_t offset = inline_value ? (size_t)(inline_value - option) + 1 : 0;
    if (inline_value) *inline_value = '\0';
    const char *text = offset ? in->argv[in->at] + offset : NULL; /* in argv, so that it lives on */
    const struct opts_row *row = in->opts->rows;
    while (row->name && strcmp(row->name, option + 2) != 0)
        row++;
    if (strcmp(option, "--help") == 0)
        in->opts->help = true;
    else if (row->name)
        take(in, row, option, text);
    else
        unknown_option(in, option, false, text != NULL);
    free(option);
}

/* The word at in->at is "-" and letters: flags, of which the last may be an option and its value.
 */
static void read_letters(struct cursor *in)
{
    const char *word = in->argv[in->at];
    for (const char *c = word + 1; *c; c++) {
        char option[] = {'-', *c, '\0'};
        const struct opts_row *row = in->opts->rows;
        while (row->name && row->letter != *c)
            row++;
        if (*c == 'h') {
            in->opts->help = true;
        } else if (row->name) {
            bool flag = row->type == OPTS_FLAG;
            take(in, row, option, flag || !c[1] ? NULL : c + 1);
            if (!flag) return;
        } else {
            unknown_option(in, option, true, c[1] != '\0');
            return;
        }
    }
}

/* Names and letters are unique and every default is one that a user could give. */
static void set_defaults(struct opts *opts, size_t nrows)
{
    for (size_t i = 0; i < nrows; i++) {
        const struct opts_row *row = &opts->rows[i];
        assert(strcmp(row->name, "help") != 0 && row->letter != 'h');
        for (size_t j = 0; j < i; j++) {
            assert(strcmp(row->name, opts->rows[j].name) != 0);
            assert(!row->letter || row->letter != opts->rows[j].letter);
        }
        if (!row->value || row->type == OPTS_FLAG) continue;
        struct err err = ERR_INIT;
        READERS[row->type](row, row->name, row->value, field_of(opts, row), &err);
        if (err.count) err_print(&err, "option table");
        assert(!err.count);
    }
}

int opts_parse(struct opts *opts, const struct opts_row *rows, void *target, int argc, char **argv,
               struct err *err)
{
    size_t nrows = count_rows(rows);
    *opts = (struct opts){.rows = rows, .target = target};
    opts->set = mem_calloc(nrows, sizeof *opts->set);
    opts->positionals = mem_calloc((size_t)argc + 1, sizeof *opts->positionals);
    set_defaults(opts, nrows);

    struct err faults = ERR_INIT;
    struct cursor in = {.opts = opts, .argc = argc, .argv = argv, .err = &faults};
    bool options = true;
    for (in.at = 1; in.at < argc; in.at++) {
        const char *word = argv[in.at];
        if (!options || word[0] != '-' || !word[1])
            opts->positionals[opts->npositionals++] = word;
        else if (strcmp(word, "--") == 0)
            options = false;
        else if (word[1] == '-')
            read_long(&in);
        else
            read_letters(&in);
    }
    if (opts->help) err_release(&faults);
    return err_move(err, &faults);
}

bool opts_is_set(const struct opts *opts, const char *name)
{
    const struct opts_row *row = opts->rows;
    while (row->name && strcmp(row->name, name) != 0)
        row++;
    assert(row->name);
    return opts->set[row - opts->rows];
}

void opts_release(struct opts *opts)
{
    for (const struct opts_row *row = opts->rows; row && row->name; row++) {
        if (row->type != OPTS_LIST && row->type != OPTS_MORE) continue;
        struct opts_list *list = field_of(opts, row);
        free(list->items);
        *list = (struct opts_list){0};
    }
    free(opts->set);
    free(opts->positionals);
    *opts = (struct opts){0};
}

/* ---- --help ---- */

/* Prints words from `text`, broken at HELP_COLUMNS, later lines indented; `column` is where we
 * stand. Ends the line. */
static void print_wrapped(FILE *to, const char *text, size_t column, size_t indent)
{
    const char *blank = "";
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (*blank && column + 1 + word > HELP_COLUMNS) {
            fprintf(to, "\n%*s", (int)indent, "");
            column = indent;
            blank = "";
        }
        fprintf(to, "%s%.*s", blank, (int)word, text);
        column += strlen(blank) + word;
        blank = " ";
        text += word + strspn(text + word, " ");
        for (; *text == '\n'; text++) { /* a line of its own */
            fprintf(to, "\n%*s", text[1] == '\n' ? 0 : (int)indent, "");
            column = indent;
            blank = "";
        }
    }
    fputc('\n', to);
}

/* "HELP (one of: a, b; 1..64; default 20)" */
static char *row_text(const struct opts_row *row)
{
    char *text = mem_strdup("");
    for (const char *const *choice = row->choices; choice && *choice; choice++) {
        char *longer = mem_printf("%s%s%s", text, *text ? ", " : "one of: ", *choice);
        free(text);
        text = longer;
    }
    if (row->type == OPTS_UINT && row->max) {
        free(text);
        text = mem_printf("%llu..%llu", (unsigned long long)row->min, (unsigned long long)row->max);
    }
    if (row->value) {
        char *longer = mem_printf("%s%sdefault %s", text, *text ? "; " : "", row->value);
        free(text);
        text = longer;
    }
    char *whole = *text ? mem_printf("%s (%s)", row->help, text) : mem_strdup(row->help);
    free(text);
    return whole;
}

static void help_row(FILE *to, const char letter, const char *name, const char *arg,
                     const char *text)
{
    char dash[] = {'-', letter, ',', '\0'};
    int column =
        fprintf(to, "  %3s --%s%s%s", letter ? dash : "", name, arg ? " " : "", arg ? arg : "");
    if (column >= HELP_INDENT - 1) {
        fputc('\n', to);
        column = 0;
    }
    fprintf(to, "%*s", HELP_INDENT - column, "");
    print_wrapped(to, text, HELP_INDENT, HELP_INDENT);
}

void opts_help(FILE *to, const char *usage, const char *about, const struct opts_row *rows)
{
    fprintf(to, "Usage: %s\n", usage);
    if (about) print_wrapped(to, about, 0, 0);
    if (!rows->section) fprintf(to, "\nOptions\n");
    for (const struct opts_row *row = rows; row->name; row++) {
        if (row->section) fprintf(to, "\n%s\n", row->section);
        char *text = row_text(row);
        help_row(to, row->letter, row->name, row->arg, text);
        free(text);
    }
    fprintf(to, "\n");
    help_row(to, 'h', "help", NULL, "print this and exit");
    fprintf(to, "\n");
    print_wrapped(
        to,
        "SIZE: bytes, or K, M, G, T for 2^10, 2^20, 2^30, 2^40 bytes (1.5K is "
        "1536). TIME: a number with ps, ns, us, ms, s, min or h. BANDWIDTH: GB/s is 10^9 bytes "
        "per second, Gb/s 10^9 bits, GiB/s 2^30 bytes. All GB in results are 10^9 bytes.",
        0, 0);
}
