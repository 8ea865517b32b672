/* SPDX-License-Identifier: Apache-2.0
 * Options out of a pasted shell text: words, quotes, comments, and variables that the text itself
 * sets, arrays among them, as bash has them. Nothing is executed: branches and loops are read as
 * if each of their lines ran once, and what only a shell knows (the environment, the output of a
 * command) stays in the words as $NAME. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/config_file.h"

struct words {
    char **items;
    size_t count, cap;
};

/* NAME=VALUE is one word, NAME=(...) any number of them. */
struct variable {
    char *name;
    struct words words;
    bool used;
};

struct shell {
    const char *name, *text;
    struct variable *variables;
    size_t nvariables, variables_cap;
    char *word; /* the one that is being put together */
    size_t count, cap;
    bool any;        /* there is a word, though it may be empty */
    size_t expanded; /* bytes that variables gave, so that no text can grow without bound */
    struct config_items *items;
    bool open;    /* the last item may still take words as its value */
    bool started; /* an option or a script was seen in this command */
    struct err *err;
    int result;
};

enum { EXPANDED_MAX = 1 << 20, DEPTH_MAX = 2 };

static void words_release(struct words *words)
{
    for (size_t i = 0; i < words->count; i++)
        free(words->items[i]);
    free(words->items);
    *words = (struct words){0};
}

/* Takes `text`. */
static void words_add(struct words *words, char *text)
{
    MEM_GROW(words->items, words->count, words->cap);
    words->items[words->count++] = text;
}

/* ---- putting a word together ---- */

static void put(struct shell *sh, char c)
{
    MEM_GROW(sh->word, sh->count, sh->cap);
    sh->word[sh->count++] = c;
    sh->any = true;
}

/* Ends the word, if there is one. */
static void flush(struct shell *sh, struct words *out)
{
    if (sh->any) words_add(out, mem_printf("%.*s", (int)sh->count, sh->word ? sh->word : ""));
    sh->count = 0;
    sh->any = false;
}

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (s[n] == '_' || isalpha((unsigned char)s[n]) || (n && isdigit((unsigned char)s[n])))
        n++;
    return n;
}

/* $NAME, ${NAME}, ${NAME[@]}, ${NAME:-VALUE}; NAME may be the number of an argument. */
struct reference {
    const char *name, *usual; /* VALUE; NULL: none */
    size_t length, usual_length;
    size_t bytes; /* of all of it */
};

/* Whether there is one at `s`, a $. */
static bool read_reference(const char *s, struct reference *r)
{
    bool braces = s[1] == '{';
    *r = (struct reference){.name = s + 1 + braces};
    r->length = name_length(r->name);
    if (!r->length) r->length = braces ? strspn(r->name, "0123456789") : isdigit(*r->name) ? 1 : 0;
    const char *end = r->name + r->length;
    if (!r->length) return false;
    if (braces && *end == '[' && (end[1] == '@' || end[1] == '*') && end[2] == ']') end += 3;
    if (braces && *end == ':' && end[1] == '-') {
        r->usual = end + 2;
        r->usual_length = strcspn(r->usual, "}$\n");
        end = r->usual + r->usual_length;
    }
    if (braces && *end != '}') return false;
    r->bytes = (size_t)(end - s) + braces;
    return true;
}

static struct variable *find(const struct shell *sh, const char *name, size_t n)
{
    for (size_t i = 0; i < sh->nvariables; i++) {
        const char *is = sh->variables[i].name;
        if (strlen(is) == n && strncmp(is, name, n) == 0) return &sh->variables[i];
    }
    return NULL;
}

/* Bytes that a variable gave; outside quotes (`split`) blanks part them into words. */
static void put_text(struct shell *sh, const char *text, size_t n, struct words *split)
{
    sh->expanded += n + 1;
    for (size_t i = 0; i < n && sh->expanded <= EXPANDED_MAX; i++) {
        if (split && isspace((unsigned char)text[i]))
            flush(sh, split);
        else
            put(sh, text[i]);
    }
}

/* What the $ at `s` stands for; without a value it stays as it is. Returns the bytes it takes. */
static size_t put_reference(struct shell *sh, const char *s, struct words *out, bool quoted)
{
    struct reference r;
    if (s[1] == '@' || s[1] == '*') return 2; /* the text is given no arguments */
    if (!read_reference(s, &r)) {
        put(sh, *s);
        return 1;
    }
    struct variable *v = find(sh, r.name, r.length);
    struct words *split = quoted ? NULL : out;
    if (v) v->used = true;
    for (size_t i = 0; v && i < v->words.count; i++) {
        if (i && out) flush(sh, out);
        if (i && !out) put(sh, ' ');
        put_text(sh, v->words.items[i], strlen(v->words.items[i]), split);
    }
    if (v) return r.bytes;
    const char *value = r.usual ? r.usual : s;
    size_t n = r.usual ? r.usual_length : r.bytes;
    for (size_t i = 0; i < n; i++)
        if (!r.usual || (value[i] != '"' && value[i] != '\'')) put_text(sh, value + i, 1, split);
    return r.bytes;
}

/* The output of a command, or a sum: $(...) or `...` as it stands. Returns its bytes; 0: none. */
static size_t put_command(struct shell *sh, const char *s)
{
    size_t n = 0;
    if (*s == '`') {
        n = 1 + strcspn(s + 1, "`");
        n += s[n] != '\0';
    } else if (s[0] == '$' && s[1] == '(') {
        int depth = 0;
        for (n = 1; s[n] && (n == 1 || depth); n++)
            depth += (s[n] == '(') - (s[n] == ')');
    }
    for (size_t i = 0; i < n; i++)
        put(sh, s[i]);
    return n;
}

static bool is_joint(const char *s)
{
    return *s == '\\' && (s[1] == '\n' || s[1] == '\r');
}

/* Behind a backslash a character is itself. Returns the bytes; 0: it is no backslash, or stays. */
static size_t put_escaped(struct shell *sh, const char *s, char quote)
{
    if (*s != '\\' || quote == '\'' || !s[1]) return 0;
    if (is_joint(s)) return s[1] == '\r' && s[2] == '\n' ? 3 : 2;
    if (quote && !strchr("\"\\$`", s[1])) return 0;
    put(sh, s[1]);
    return 2;
}

/* Whether the word ends at `s`, outside quotes. *depth: of the brackets that it opened itself. */
static bool ends_word(const char *s, int *depth)
{
    if (isspace((unsigned char)*s) || strchr(";|&<>", *s) || is_joint(s)) return true;
    if (*s == '(') (*depth)++;
    return *s == ')' && (*depth)-- <= 0;
}

/* Reads to the end of the word at sh->text. `out`: where the words go; NULL: it is the value of a
 * variable and stays in sh->word, whole. */
static void read_word(struct shell *sh, struct words *out)
{
    const char *s = sh->text;
    char quote = 0;
    int depth = 0;
    sh->count = 0;
    sh->any = false;
    while (*s && (quote || !ends_word(s, &depth))) {
        size_t taken = put_escaped(sh, s, quote);
        if (!taken && quote != '\'') taken = put_command(sh, s);
        if (!taken && quote != '\'' && *s == '$') taken = put_reference(sh, s, out, quote);
        if (!taken && (quote ? *s == quote : *s == '"' || *s == '\'')) {
            quote = quote ? 0 : *s;
            sh->any |= s[1] == *s && quote;
            taken = 1;
        }
        if (!taken) put(sh, *s);
        s += taken ? taken : 1;
    }
    sh->text = s;
    if (out) flush(sh, out);
}

/* ---- variables ---- */

static bool is_option(const char *word)
{
    return word[0] == '-' && (word[1] == '-' || isalpha((unsigned char)word[1]));
}

/* Whether an option of two dashes stands in it, at its start or behind a blank. */
static bool holds_option(const char *text)
{
    for (const char *s = strstr(text, "--"); s; s = strstr(s + 2, "--"))
        if ((s == text || isspace((unsigned char)s[-1])) && isalpha((unsigned char)s[2]))
            return true;
    return false;
}

static bool idle_options(const struct variable *v)
{
    for (size_t i = 0; !v->used && i < v->words.count; i++)
        if (holds_option(v->words.items[i])) return true;
    return false;
}

/* Options of a variable that nothing takes up must not vanish. */
static void refuse_idle(struct shell *sh, const struct variable *v)
{
    sh->result = err_add(sh->err, ERR_USAGE,
                         "%s: %s holds options that nothing behind it takes up; write $%s where "
                         "they belong, or paste them alone",
                         sh->name, v->name, v->name);
}

static void skip_blanks(struct shell *sh)
{
    for (;; sh->text++) {
        if (*sh->text == '#') sh->text += strcspn(sh->text, "\n");
        if (!isspace((unsigned char)*sh->text) && !is_joint(sh->text)) break;
    }
}

/* The words of an array, behind its ( and to behind its ). */
static void read_array(struct shell *sh, struct words *words)
{
    for (;;) {
        skip_blanks(sh);
        if (!*sh->text) break;
        if (strchr(");|&<>", *sh->text)) {
            if (*sh->text++ == ')') break;
        } else {
            read_word(sh, words);
        }
    }
}

/* NAME=... or NAME+=... at sh->text, whose name has `n` bytes. */
static void assign(struct shell *sh, size_t n)
{
    char *name = mem_printf("%.*s", (int)n, sh->text);
    bool more = sh->text[n] == '+', array = sh->text[n + 1 + more] == '(';
    struct words words = {0};
    sh->text += n + 1 + more + array;
    if (array) {
        read_array(sh, &words);
    } else {
        read_word(sh, NULL);
        sh->any = true;
        flush(sh, &words);
    }
    struct variable *v = find(sh, name, n);
    if (!v) {
        MEM_GROW(sh->variables, sh->nvariables, sh->variables_cap);
        v = &sh->variables[sh->nvariables++];
        *v = (struct variable){.name = mem_strdup(name)};
    }
    free(name);
    if (!more && idle_options(v)) refuse_idle(sh, v);
    if (!more) words_release(&v->words);
    v->used = false;
    if (more && !array && v->words.count) {
        char **last = &v->words.items[v->words.count - 1];
        char *both = mem_printf("%s%s", *last, words.items[0]);
        free(*last);
        *last = both;
    } else {
        for (size_t i = 0; i < words.count; i++)
            words_add(&v->words, mem_strdup(words.items[i]));
    }
    words_release(&words);
}

/* ---- options ---- */

/* Scripts, what ends a command. */
static bool is_passed_over(const char *word)
{
    size_t n = strlen(word);
    return (n > 3 && strcmp(word + n - 3, ".py") == 0) || strchr("|&;<>", *word);
}

/* "--key" or "--key=value". */
static void add_option(struct shell *sh, const char *word)
{
    const char *key = word + strspn(word, "-");
    size_t length = strcspn(key, "=");
    char *value = key[length] ? mem_strdup(key + length + 1) : NULL;
    config_add(sh->items, mem_printf("%.*s", (int)length, key), value,
               mem_printf("%s: %.*s", sh->name, (int)(key + length - word), word));
    sh->open = !value;
    sh->started = true;
}

/* Whether the word is nothing but a variable without a value where options would stand: no value of
 * the option before it, or named as one that holds options. */
static bool is_missing(const struct shell *sh, const char *word)
{
    static const char *const ends[] = {"ARGS", "OPTS", "OPTIONS", "FLAGS", NULL};
    struct reference r;
    if (*word != '$' || !read_reference(word, &r) || word[r.bytes]) return false;
    const struct config_item *last = sh->open ? &sh->items->items[sh->items->count - 1] : NULL;
    if (r.name[r.length] == '[' || (sh->started && (!last || last->value))) return true;
    for (const char *const *end = ends; *end; end++) {
        size_t n = strlen(*end);
        if (r.length >= n && strncmp(r.name + r.length - n, *end, n) == 0) return true;
    }
    return false;
}

static void read_text(struct shell *sh, unsigned depth);

/* A word that is a command line itself ("--key value" in quotes, bash -c "...") is read as one. */
static void take_word(struct shell *sh, const char *word, unsigned depth)
{
    size_t blank = strcspn(word, " \t\n");
    bool pair = is_option(word) && word[blank] && blank < strcspn(word, "=");
    if (depth < DEPTH_MAX && word[blank] && (pair || holds_option(word + blank))) {
        const char *text = sh->text;
        sh->text = word;
        read_text(sh, depth + 1);
        sh->text = text;
    } else if (is_option(word)) {
        add_option(sh, word);
    } else if (is_missing(sh, word)) {
        sh->result = err_add(sh->err, ERR_USAGE,
                             "%s: %.60s is not set in the text; paste what it holds in its place, "
                             "or take it out",
                             sh->name, word);
    } else if (is_passed_over(word)) {
        sh->started |= strchr("|&;<>", *word) == NULL;
        sh->open = false;
    } else if (sh->open) {
        struct config_item *last = &sh->items->items[sh->items->count - 1];
        char *value = last->value ? mem_printf("%s %s", last->value, word) : mem_strdup(word);
        free(last->value);
        last->value = value;
    }
}

/* Signs between commands, a bracket, or digits in front of > and <. Returns whether it was one. */
static bool take_sign(struct shell *sh)
{
    size_t digits = strspn(sh->text, "0123456789"), n = digits + strspn(sh->text + digits, ";|&<>");
    if (n == digits || (digits && !strchr("<>", sh->text[digits]))) n = *sh->text == ')';
    if (!n) return false;
    sh->open = sh->started = false;
    sh->text += n;
    return true;
}

static void read_text(struct shell *sh, unsigned depth)
{
    while (sh->expanded <= EXPANDED_MAX) {
        skip_blanks(sh);
        if (!*sh->text) return;
        size_t n = name_length(sh->text);
        if (n && sh->text[n + (sh->text[n] == '+')] == '=') {
            assign(sh, n);
            sh->open = false;
        } else if (!take_sign(sh)) {
            struct words words = {0};
            read_word(sh, &words);
            for (size_t i = 0; i < words.count; i++)
                take_word(sh, words.items[i], depth);
            words_release(&words);
        }
    }
}

/* Variables with options that were not used: they are the options where the text has no others.
 * These are gathered first, as a word of one may assign another. */
static void take_idle(struct shell *sh)
{
    bool alone = sh->items->count == 0;
    struct words words = {0};
    for (size_t i = 0; i < sh->nvariables; i++) {
        struct variable *v = &sh->variables[i];
        if (!idle_options(v)) continue;
        if (!alone) refuse_idle(sh, v);
        for (size_t k = 0; alone && k < v->words.count; k++)
            words_add(&words, mem_strdup(v->words.items[k]));
        v->used = true;
    }
    for (size_t i = 0; i < words.count; i++)
        take_word(sh, words.items[i], 0);
    words_release(&words);
    for (size_t i = 0; alone && i < sh->nvariables; i++)
        if (idle_options(&sh->variables[i])) refuse_idle(sh, &sh->variables[i]);
}

int config_scan_line(struct config_items *items, const char *name, const char *text,
                     struct err *err)
{
    struct shell sh = {.name = name, .text = text, .items = items, .err = err};
    size_t before = items->count;
    read_text(&sh, 0);
    take_idle(&sh);
    if (sh.expanded > EXPANDED_MAX)
        sh.result = err_add(err, ERR_USAGE, "%s: its variables hold more than %d bytes in all",
                            name, EXPANDED_MAX);
    if (items->count == before && !sh.result)
        sh.result = err_add(err, ERR_USAGE, "%s: holds no option (words that start with --)", name);
    for (size_t i = 0; i < sh.nvariables; i++) {
        free(sh.variables[i].name);
        words_release(&sh.variables[i].words);
    }
    free(sh.variables);
    free(sh.word);
    return sh.result;
}
