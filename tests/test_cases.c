/* SPDX-License-Identifier: Apache-2.0
 * Questions that users asked in public, with what was measured, and figures of papers and other
 * simulators: memory, FLOPs, rules, step times. tests/cases/questions.csv holds them; each is put
 * to the commands as a user would and read from their JSON. Cases that are missed stand there too,
 * with the reason; data/cases.md is the table with the answers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/mem.h"
#include "train/model.h"
#include "train/step_cmd.h"
#include "train/validate_cmd.h"

/* A row of the file. The answer is scale x (command.key, or that minus or over other.other_key). A
 * key is a fact of the answer ("step_s"), a column of its first row ("weights_GiB") or of the first
 * row that holds a text ("share_pct@bubble"); sums are joined by +. The line "mean error" asks for
 * the mean of |answer / expected - 1| over the case's questions above it, in percent. */
struct question {
    const char *name, *asks;
    const char *line, *key; /* line "": the program has no such answer */
    char op;                /* '-' or '/'; '?': whether the answer says `want`; or 0 */
    const char *other, *other_key;
    double scale;
    const char *want;
    double low, high;   /* NAN: `want` is a text */
    const char *reason; /* why it is missed; "": it is met */
};

static double cell_number(const struct csv *csv, size_t row, const char *column, double missing)
{
    const char *text = csv_cell(csv, row, column);
    return *text ? strtod(text, NULL) : missing;
}

static struct question question_of(const struct csv *csv, size_t row)
{
    struct question q = {
        .name = csv_cell(csv, row, "case"),
        .asks = csv_cell(csv, row, "question"),
        .line = csv_cell(csv, row, "command"),
        .key = csv_cell(csv, row, "key"),
        .op = *csv_cell(csv, row, "op"),
        .other = csv_cell(csv, row, "other"),
        .other_key = csv_cell(csv, row, "other_key"),
        .scale = cell_number(csv, row, "scale", 1),
        .want = csv_cell(csv, row, "expected"),
        .low = cell_number(csv, row, "low", NAN),
        .high = cell_number(csv, row, "high", NAN),
        .reason = csv_cell(csv, row, "reason"),
    };
    if (!*q.other_key) q.other_key = q.key;
    return q;
}

/* ---- asking ---- */

/* The words of a line as argv behind a program name; freed with free_words. */
static char **words_of(const char *line, int *argc)
{
    char *text = mem_strdup(line), *save = NULL;
    char **argv = mem_calloc(strlen(line) + 6, sizeof *argv);
    argv[0] = text;
    *argc = 1;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[(*argc)++] = w;
    return argv;
}

/* Runs "memory ...", "model ...", "validate ..." or the bare command; the JSON it writes. Freed by
 * the caller. */
static char *ask(const char *line)
{
    static const struct {
        const char *word;
        int (*command)(int, char **);
    } commands[] = {{"memory ", memory_cmd},
                    {"model ", model_cmd},
                    {"validate ", validate_cmd},
                    {"", step_cmd}};
    size_t i = 0;
    while (strncmp(line, commands[i].word, strlen(commands[i].word)) != 0)
        i++;
    char path[] = "/tmp/cases-XXXXXX";
    int fd = mkstemp(path), argc;
    cr_assert(fd >= 0);
    char *whole = mem_printf("%s --overwrite --json %s", line + strlen(commands[i].word), path);
    char **argv = words_of(whole, &argc);
    cr_assert_eq(commands[i].command(argc, argv), 0, "%s", line);
    off_t bytes = lseek(fd, 0, SEEK_END);
    cr_assert(bytes > 0);
    char *json = mem_calloc((size_t)bytes + 1, 1);
    cr_assert_eq(pread(fd, json, (size_t)bytes, 0), bytes);
    close(fd);
    remove(path);
    free(argv[0]);
    free(argv);
    free(whole);
    return json;
}

/* Text behind "key": in JSON, of the row that holds `row` (which may be NULL). */
static const char *find(const char *json, const char *key, size_t bytes, const char *row)
{
    const char *from = json;
    if (row) {
        from = strstr(json, row);
        cr_assert(from, "no row holds %s", row);
        while (from > json && from[-1] != '\n')
            from--;
    }
    char *quoted = mem_printf("\"%.*s\": ", (int)bytes, key);
    const char *at = strstr(from, quoted);
    cr_assert(at, "no %s in %s", quoted, json);
    at += strlen(quoted);
    free(quoted);
    return at;
}

/* The figure that `key` names: sums of "a+b@row". */
static double number(const char *json, const char *key)
{
    const char *row = strchr(key, '@');
    const char *end = row ? row : key + strlen(key);
    double sum = 0;
    while (key < end) {
        size_t bytes = strcspn(key, "+@");
        sum += strtod(find(json, key, bytes, row ? row + 1 : NULL), NULL);
        key += bytes + (key[bytes] == '+');
        if (*key == '@') break;
    }
    return sum;
}

static char *text_of(double value)
{
    return mem_printf(value >= 1e6 ? "%.0f" : "%.4g", value);
}

/* The answer as text and, where it is one, as a number. Freed by the caller. */
static char *answer(const struct question *q, double *value)
{
    *value = NAN;
    if (!*q->line) return mem_strdup("-");
    char *json = ask(q->line), *text;
    if (q->op == '?') {
        text = mem_strdup(strstr(json, q->want) ? q->want : "not said");
    } else if (isnan(q->low)) {
        const char *at = find(json, q->key, strlen(q->key), NULL) + 1;
        text = mem_printf("%.*s", (int)strcspn(at, "\""), at);
    } else {
        *value = number(json, q->key);
        if (q->op) {
            char *second = ask(q->other);
            double other = number(second, q->other_key);
            *value = q->op == '-' ? fabs(*value - other) : *value / other;
            free(second);
        }
        *value *= q->scale;
        text = text_of(*value);
    }
    free(json);
    return text;
}

static bool is_met(const struct question *q, const char *text, double value)
{
    if (!*q->line) return false;
    if (isnan(q->low)) {
        bool tight = strcmp(text, "tight") == 0 && strcmp(q->want, "fits") == 0;
        return strcmp(text, q->want) == 0 || tight;
    }
    double slack = 1e-9 * fabs(value);
    return value >= q->low - slack && value <= q->high + slack;
}

/* ---- the table ---- */

static const char heading[] =
    "# Questions of users, and what is answered\n"
    "\n"
    "Figures that users, projects and papers published, put to the program. The command line of\n"
    "each question is in `tests/cases/questions.csv`; `tests/test_cases.c` asks all of them and\n"
    "fails when an answer leaves its range, when a missed one is met, or when this file differs\n"
    "from what the program prints (`CASES_MD=data/cases.md` in the environment of the test writes\n"
    "it anew). No constant was set for a case.\n";

static const char columns[] = "| case | question | expected | range | predicted | | reason |\n"
                              "|---|---|---|---|---|---|---|\n";

/* Groups of cases, by the first letter of their names. */
static const struct {
    char letter;
    const char *title;
} groups[] = {{'A', "Users"}, {'S', "Papers and other simulators"}};

/* Begins the table of the group of `name` unless `*now` is its letter. */
static void put_group(FILE *to, const char *name, char *now)
{
    if (*now == *name) return;
    *now = *name;
    size_t i = 0;
    while (i < sizeof groups / sizeof *groups && groups[i].letter != *name)
        i++;
    cr_assert(i < sizeof groups / sizeof *groups, "case %s is of no group", name);
    fprintf(to, "\n## %s\n\n%s", groups[i].title, columns);
}

static void put_row(FILE *to, const struct question *q, const char *text, bool met)
{
    fprintf(to, "| %s | %s | ", q->name, q->asks);
    if (isnan(q->low)) {
        fprintf(to, "%s | | ", q->want);
    } else {
        double want = strtod(q->want, NULL);
        fprintf(to, want >= 1e6 ? "%.0f | " : "%.4g | ", want);
        if (q->low < q->high)
            fprintf(to, "%.4g to %.4g | ", q->low, q->high);
        else
            fprintf(to, "exact | ");
    }
    fprintf(to, "%s | %s | %s |\n", text, met ? "met" : "missed", q->reason);
}

/* Mean of |answer / expected - 1| over the case's questions above `row`, in percent. */
static double mean_error(const struct csv *csv, const double *answers, size_t row)
{
    const char *name = csv_cell(csv, row, "case");
    double sum = 0, n = 0;
    for (size_t i = 0; i < row; i++) {
        if (strcmp(csv_cell(csv, i, "case"), name) != 0) continue;
        sum += fabs(answers[i] / strtod(csv_cell(csv, i, "expected"), NULL) - 1);
        n++;
    }
    cr_assert(n > 0 && isfinite(sum), "%s has no errors to take the mean of", name);
    return 100 * sum / n;
}

/* Asks all questions and writes their tables; returns how many are met. */
static size_t ask_all(FILE *to, const struct csv *csv)
{
    double *answers = mem_calloc(csv->nrows, sizeof *answers);
    size_t nmet = 0;
    char group = 0;
    for (size_t i = 0; i < csv->nrows; i++) {
        struct question q = question_of(csv, i);
        char *text;
        if (strcmp(q.line, "mean error") == 0) {
            text = text_of(answers[i] = mean_error(csv, answers, i));
        } else {
            text = answer(&q, &answers[i]);
        }
        bool met = is_met(&q, text, answers[i]);
        cr_expect_eq(met, !*q.reason, "%s, %s: %s, expected %s (%g to %g): %s", q.name, q.asks,
                     text, q.want, q.low, q.high, met ? "met; take its reason away" : "missed");
        put_group(to, q.name, &group);
        put_row(to, &q, text, met);
        nmet += met;
        free(text);
    }
    free(answers);
    return nmet;
}

static char *whole_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t bytes = 0;
    if (file) {
        if (getdelim(&text, &bytes, '\0', file) < 0) free(text), text = NULL;
        fclose(file);
    }
    return text ? text : mem_strdup("");
}

/* ---- cases that other tests ask ---- */

/* Lists them; each test that is named must be in its file. */
static void put_others(FILE *to, const struct csv *csv)
{
    fputs("\n## Asked by other tests\n\n| case | what it says | test |\n|---|---|---|\n", to);
    for (size_t i = 0; i < csv->nrows; i++) {
        const char *file = csv_cell(csv, i, "file"), *test = csv_cell(csv, i, "test");
        bool python = strcmp(file + strlen(file) - 3, ".py") == 0;
        char *text = whole_file(file);
        char *line = mem_printf(python ? "def %s(" : "Test(%s", test);
        cr_expect(*test && strstr(text, line), "%s has no test %s", file, test);
        fprintf(to, "| %s | %s | `%s`: %s |\n", csv_cell(csv, i, "case"), csv_cell(csv, i, "says"),
                file, test);
        free(line);
        free(text);
    }
}

/* The commands print their tables too; nobody reads them here. */
static void silence(void)
{
    cr_assert(freopen("/dev/null", "w", stdout));
}

static void read_cases(struct csv *csv, const char *path)
{
    struct err err = ERR_INIT;
    cr_assert_eq(csv_read(csv, path, &err), 0, "%s", err.text);
}

/* The file of all answers. Freed by the caller. */
static char *whole_table(void)
{
    struct csv questions, others;
    read_cases(&questions, "tests/cases/questions.csv");
    read_cases(&others, "tests/cases/others.csv");
    cr_assert(questions.nrows > 150 && others.nrows > 10);
    char *table = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&table, &bytes);
    cr_assert(to);
    fputs(heading, to);
    size_t nmet = ask_all(to, &questions);
    fprintf(to, "\n%zu of %zu met.\n", nmet, questions.nrows);
    put_others(to, &others);
    fclose(to);
    csv_release(&questions);
    csv_release(&others);
    return table;
}

Test(cases, every_question, .init = silence)
{
    const char *path = getenv("CASES_MD");
    char *table = whole_table();
    if (path) {
        FILE *file = fopen(path, "w");
        cr_assert(file, "%s", path);
        fputs(table, file);
        fclose(file);
    }
    char *shipped = whole_file("data/cases.md");
    cr_expect_str_eq(shipped, table, "data/cases.md differs from what is answered");
    free(shipped);
    free(table);
}
