/* SPDX-License-Identifier: Apache-2.0
 * Scanners for command lines, JSON, and the flat parts of TOML and YAML, and the table-driven
 * filling of a struct from what they found. */
#include "train/config_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/units.h"

void config_items_release(struct config_items *items)
{
    for (size_t i = 0; i < items->count; i++) {
        free(items->items[i].key);
        free(items->items[i].value);
        free(items->items[i].where);
    }
    free(items->items);
    *items = (struct config_items){0};
}

/* Takes key and value. */
static struct config_item *add(struct config_items *items, char *key, char *value, char *where)
{
    MEM_GROW(items->items, items->count, items->cap);
    struct config_item *item = &items->items[items->count++];
    *item = (struct config_item){.key = key, .value = value, .where = where};
    return item;
}

/* "old new", or "old,new". Takes `old`. */
static char *joined(char *old, const char *between, const char *more)
{
    char *text = old ? mem_printf("%s%s%s", old, between, more) : mem_strdup(more);
    free(old);
    return text;
}

/* ---- command lines ---- */

/* A shell line that is being read. */
struct shell {
    const char *text;
    struct config_items variables; /* NAME=VALUE that stood before */
    char *word;                    /* the last one, NUL-ended */
    size_t count, cap;
};

/* Longer values are not put in, so that no text can grow without bound. */
enum { VARIABLE_MAX = 4096 };

static void put(struct shell *sh, char c)
{
    MEM_GROW(sh->word, sh->count, sh->cap);
    sh->word[sh->count++] = c;
}

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (s[n] == '_' || isalpha((unsigned char)s[n]) || (n && isdigit((unsigned char)s[n])))
        n++;
    return n;
}

/* The value of $NAME, ${NAME} or ${NAME:-VALUE} at `s` into the word. Returns the bytes it takes; 0
 * if it is something else, or has no value: then it stays as it is. */
static size_t put_variable(struct shell *sh, const char *s)
{
    bool braces = s[1] == '{';
    const char *name = s + 1 + braces;
    size_t n = name_length(name), length = n;
    const char *usual = NULL;
    if (n == 0 && braces) n = strspn(name, "0123456789"), length = n;
    if (n == 0 || sh->count > VARIABLE_MAX) return 0;
    if (braces && name[n] == ':' && name[n + 1] == '-') {
        usual = name + n + 2;
        length = n + 2 + strcspn(usual, "}\n");
    }
    if (braces && name[length] != '}') return 0;
    char *key = mem_printf("%.*s", (int)n, name);
    const char *value = NULL;
    for (size_t i = 0; i < sh->variables.count; i++)
        if (strcmp(sh->variables.items[i].key, key) == 0) value = sh->variables.items[i].value;
    free(key);
    if (!value && !usual) return 0;
    const char *end = value ? value + strlen(value) : name + length;
    for (const char *c = value ? value : usual; c < end; c++)
        if (value || (*c != '"' && *c != '\'')) put(sh, *c);
    return (size_t)(name - s) + length + braces;
}

/* A word NAME=VALUE is kept. */
static bool is_assignment(struct shell *sh)
{
    size_t n = name_length(sh->word);
    if (n == 0 || sh->word[n] != '=' || sh->word[n + 1] == '(') return false;
    char *value = sh->word + n + 1;
    if (strlen(value) <= VARIABLE_MAX && !strchr(value, '$'))
        add(&sh->variables, mem_printf("%.*s", (int)n, sh->word), mem_strdup(value), NULL);
    return true;
}

/* Whether the ( or ) at `s` ends the word: the head of an array ("NAME=("), or the end of one.
 * *depth: of the brackets that the word opened itself. */
static bool ends_word(struct shell *sh, const char **s, int *depth)
{
    if (**s == '(') {
        (*depth)++;
        if (sh->count == 0 || sh->word[sh->count - 1] != '=') return false;
    } else if (**s != ')' || (*depth)-- > 0) {
        return false;
    } else if (sh->count) {
        return true;
    }
    put(sh, *(*s)++);
    return true;
}

/* The next word; false at the end. */
static bool next_word(struct shell *sh)
{
    const char *s = sh->text;
    for (;; s++) {
        if (*s == '#') s += strcspn(s, "\n");
        bool blank = isspace((unsigned char)*s) || (*s == '\\' && (s[1] == '\n' || s[1] == '\r'));
        if (!blank) break;
    }
    bool any = *s != '\0';
    char quote = 0;
    int depth = 0;
    sh->count = 0;
    for (; *s && (quote || !isspace((unsigned char)*s)); s++) {
        if (!quote && (*s == '(' || *s == ')') && ends_word(sh, &s, &depth)) break;
        size_t taken = *s == '$' && quote != '\'' ? put_variable(sh, s) : 0;
        if (taken) {
            s += taken - 1;
        } else if (quote ? *s == quote : *s == '"' || *s == '\'') {
            quote = quote ? 0 : *s;
        } else if (*s == '\\' && quote != '\'' && (s[1] == '\n' || s[1] == '\r')) {
            if (!quote) break;
            s++;
        } else {
            put(sh, *s);
        }
    }
    put(sh, '\0');
    sh->text = s;
    return any;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && (word[1] == '-' || isalpha((unsigned char)word[1]));
}

/* Words that are neither options nor values: scripts, shell arrays, what ends a command. */
static bool is_passed_over(const char *word)
{
    size_t n = strlen(word), digits = strspn(word, "0123456789");
    return (n > 3 && strcmp(word + n - 3, ".py") == 0) || strstr(word, "[@]") ||
           strcmp(word, ")") == 0 || (n > 2 && strcmp(word + n - 2, "=(") == 0) ||
           (word[digits] && strchr("|&;<>", word[digits]));
}

/* "--key", "--key=value", or "--key value" in quotes. Returns whether words may follow as its
 * value. */
static bool add_option(struct config_items *items, const char *name, const char *word)
{
    const char *key = word + strspn(word, "-");
    size_t length = strcspn(key, "= \t\n");
    const char *value = key + length + (key[length] != '\0');
    if (key[length] && key[length] != '=') value += strspn(value, " \t\n");
    bool has = key[length] == '=' || *value;
    add(items, mem_printf("%.*s", (int)length, key), has ? mem_strdup(value) : NULL,
        mem_printf("%s: %.*s", name, (int)(key + length - word), word));
    return !has;
}

int config_scan_line(struct config_items *items, const char *name, const char *text,
                     struct err *err)
{
    struct shell sh = {.text = text};
    bool open = false; /* the last item may still take words as its value */
    size_t before = items->count;
    while (next_word(&sh)) {
        if (is_option(sh.word)) {
            open = add_option(items, name, sh.word);
        } else if (is_passed_over(sh.word) || is_assignment(&sh)) {
            open = false;
        } else if (open) {
            struct config_item *last = &items->items[items->count - 1];
            last->value = joined(last->value, " ", sh.word);
        }
    }
    free(sh.word);
    config_items_release(&sh.variables);
    if (items->count > before) return 0;
    return err_add(err, ERR_USAGE, "%s: holds no option (words that start with --)", name);
}

/* ---- JSON ---- */

static char *json_text(const json_t *value)
{
    if (json_is_string(value)) return mem_strdup(json_string_value(value));
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    char *text = mem_strdup(dump ? dump : "");
    free(dump);
    return text;
}

/* Nested deeper than any of these files, so that no file can exhaust the stack. */
enum { DEPTH_MAX = 16 };

static int scan_object(struct config_items *items, struct doc *doc, json_t *object,
                       const char *prefix, unsigned depth, struct err *err)
{
    const char *key;
    json_t *value;
    int result = 0;
    json_object_foreach(object, key, value)
    {
        char *path = mem_printf("%s%s%s", prefix, *prefix ? "." : "", key);
        if (json_is_object(value) && depth == DEPTH_MAX) {
            result = doc_fault(doc, err, object, key, "\"%s\" is nested deeper than %d objects",
                               key, DEPTH_MAX);
        } else if (json_is_object(value)) {
            result |= scan_object(items, doc, value, path, depth + 1, err);
        } else if (!json_is_null(value)) {
            add(items, mem_strdup(path), json_text(value),
                mem_printf("%s:%u: %s", doc->path, doc_line(doc, object, key, 0), path));
        }
        free(path);
    }
    return result;
}

int config_scan_json(struct config_items *items, const char *name, const char *text,
                     struct err *err)
{
    struct doc doc = {0};
    if (doc_parse(&doc, name, text, strlen(text), err)) return -1;
    int result = json_is_object(doc.root)
                     ? scan_object(items, &doc, doc.root, "", 1, err)
                     : doc_fault(&doc, err, NULL, NULL, "the file must be an object");
    doc_release(&doc);
    return result;
}

/* ---- TOML and YAML: lines ---- */

struct lines {
    const char *name, *text;
    unsigned number;
    char *line; /* the current one, without comment and blanks at its end; owned */
    size_t indent;
    struct err *err;
};

/* Ends a line at a # outside quotes and at blanks. */
static void strip(char *line, bool hash_after_blank)
{
    char quote = 0;
    for (char *s = line; *s; s++) {
        if (quote && *s == quote) {
            quote = 0;
        } else if (!quote && (*s == '"' || *s == '\'')) {
            quote = *s;
        } else if (!quote && *s == '#' &&
                   (!hash_after_blank || s == line || isspace((unsigned char)s[-1]))) {
            *s = '\0';
            break;
        }
    }
    size_t n = strlen(line);
    while (n && isspace((unsigned char)line[n - 1]))
        line[--n] = '\0';
}

static bool next_line(struct lines *l, bool yaml)
{
    while (*l->text) {
        size_t n = strcspn(l->text, "\n");
        free(l->line);
        l->line = mem_printf("%.*s", (int)n, l->text);
        l->text += n + (l->text[n] == '\n');
        l->number++;
        strip(l->line, yaml);
        l->indent = strspn(l->line, " ");
        if (l->line[l->indent]) return true;
    }
    return false;
}

static int fault(struct lines *l, const char *what)
{
    return err_add(l->err, ERR_USAGE, "%s:%u: %s: %.60s", l->name, l->number, what,
                   l->line + l->indent);
}

/* The text of a scalar: without quotes. NULL with a sentence if it is something else. */
static char *scalar(struct lines *l, const char *text)
{
    size_t n = strlen(text);
    char quote = *text == '"' || *text == '\'' ? *text : 0;
    if (!quote && n && !strchr("{[&*|>!", *text)) return mem_strdup(text);
    bool simple = quote && n >= 2 && text[n - 1] == quote && !memchr(text, '\\', n) &&
                  !memchr(text + 1, quote, n - 2);
    if (simple) return mem_printf("%.*s", (int)(n - 2), text + 1);
    fault(l, "the value is none of: a number, a word, true, false, a plain string, a list");
    return NULL;
}

/* "[a, b]" -> "a,b"; more lines are read until the bracket closes. */
static char *list_text(struct lines *l, const char *text, bool yaml)
{
    char *all = mem_strdup(text), *result = NULL;
    while (!strchr(all, ']') && next_line(l, yaml))
        all = joined(all, " ", l->line + l->indent);
    char *end = strchr(all, ']');
    if (!end || end[1] || strchr(all + 1, '[')) {
        free(all);
        fault(l, "the list does not end with one ] at the end of a line");
        return NULL;
    }
    *end = '\0';
    bool bad = false;
    for (char *s = all + 1, *next; s && !bad; s = next) {
        next = strchr(s, ',');
        if (next) *next++ = '\0';
        s += strspn(s, " \t");
        strip(s, false);
        char *item = *s ? scalar(l, s) : NULL;
        bad = *s && !item;
        if (item) result = joined(result, ",", item);
        free(item);
    }
    free(all);
    if (!result && !bad) result = mem_strdup("");
    return result;
}

/* Adds prefix.key; a key that is there already is a fault. Takes `value`; NULL is a fault that has
 * its sentence. */
static int add_line(struct config_items *items, struct lines *l, const char *prefix,
                    const char *key, char *value, unsigned line)
{
    if (!value) return -1;
    char *path = mem_printf("%s%s%s", prefix, *prefix ? "." : "", key);
    for (size_t i = 0; i < items->count; i++) {
        if (strcmp(items->items[i].key, path) != 0) continue;
        int result = err_add(l->err, ERR_USAGE, "%s:%u: %.60s is given twice", l->name, line, path);
        free(path);
        free(value);
        return result;
    }
    add(items, path, value, mem_printf("%s:%u: %s", l->name, line, path));
    return 0;
}

/* A bare or quoted key at the start of `text`, cut out of it at `separator`; the rest in *value.
 * NULL if there is none. Freed by the caller. */
static char *cut_key(char *text, char separator, char **value)
{
    char *at = strchr(text, separator);
    if (!at || at == text) return NULL;
    *value = at + 1 + strspn(at + 1, " \t");
    *at = '\0';
    strip(text, false);
    size_t n = strlen(text);
    if (n >= 2 && (*text == '"' || *text == '\'') && text[n - 1] == *text) {
        text[n - 1] = '\0';
        text++;
    }
    bool good = *text != '\0';
    for (const char *s = text; *s; s++)
        good &= isalnum((unsigned char)*s) || strchr("_-./", *s) != NULL;
    return good ? mem_strdup(text) : NULL;
}

/* A number may have _ between its digits. */
static char *toml_scalar(struct lines *l, const char *text)
{
    char *value = scalar(l, text);
    bool number = isdigit((unsigned char)*text) && strspn(text, "0123456789_") == strlen(text);
    if (!value || !number) return value;
    char *to = value;
    for (const char *from = value; *from; from++)
        if (*from != '_') *to++ = *from;
    *to = '\0';
    return value;
}

static int toml_line(struct config_items *items, struct lines *l, char **section)
{
    char *text = l->line + strspn(l->line, " \t"), *value = NULL;
    size_t n = strlen(text);
    if (*text == '[') {
        if (n < 3 || text[n - 1] != ']' || text[1] == '[' || strpbrk(text + 1, " \t\"'"))
            return fault(l, "a section is one [name] alone on its line");
        free(*section);
        *section = mem_printf("%.*s", (int)(n - 2), text + 1);
        return 0;
    }
    unsigned line = l->number;
    char *copy = mem_strdup(text), *key = cut_key(copy, '=', &value);
    int result = -1;
    if (!key)
        result = fault(l, "expected [section] or key = value");
    else if (*value == '[')
        result = add_line(items, l, *section, key, list_text(l, value, false), line);
    else
        result = add_line(items, l, *section, key, toml_scalar(l, value), line);
    free(key);
    free(copy);
    return result;
}

int config_scan_toml(struct config_items *items, const char *name, const char *text,
                     struct err *err)
{
    struct lines l = {.name = name, .text = text, .err = err};
    char *section = mem_strdup("");
    int result = 0;
    while (next_line(&l, false))
        result |= toml_line(items, &l, &section);
    free(section);
    free(l.line);
    return result;
}

/* What of a YAML file is open: a map, and the key whose value is still to come. */
struct yaml {
    char *map;     /* "" or "fsdp_config" */
    size_t indent; /* of the members of that map */
    char *pending; /* "key:" without a value */
    unsigned pending_line;
    size_t pending_indent;
    char *list; /* items of the pending key, joined */
};

/* Ends the pending key: a list, or nothing. */
static int yaml_close(struct config_items *items, struct lines *l, struct yaml *y)
{
    int result = 0;
    if (y->pending && y->list)
        result = add_line(items, l, y->map, y->pending, y->list, y->pending_line);
    free(y->pending);
    y->pending = y->list = NULL;
    return result;
}

/* Enters or leaves a map by the indent of a line "key: ...". */
static int yaml_indent(struct config_items *items, struct lines *l, struct yaml *y)
{
    if (y->pending && !y->list && l->indent > y->pending_indent) {
        if (*y->map) return fault(l, "maps in maps are not known here");
        free(y->map);
        y->map = y->pending;
        y->pending = NULL;
        y->indent = l->indent;
        return 0;
    }
    int result = yaml_close(items, l, y);
    if (l->indent == 0 && *y->map) {
        free(y->map);
        y->map = mem_strdup("");
        y->indent = 0;
    }
    return l->indent == y->indent ? result
                                  : fault(l, "is indented otherwise than the lines before it");
}

static int yaml_line(struct config_items *items, struct lines *l, struct yaml *y)
{
    char *text = l->line + l->indent, *value = NULL;
    if (*text == '\t') return fault(l, "a tab cannot indent a line");
    if (strcmp(text, "---") == 0 && l->indent == 0) return 0;
    if (text[0] == '-' && (text[1] == ' ' || text[1] == '\0')) {
        if (!y->pending) return fault(l, "a list item without a key above it");
        char *item = scalar(l, text + 1 + strspn(text + 1, " "));
        if (!item) return -1;
        y->list = joined(y->list, ",", item);
        free(item);
        return 0;
    }
    if (yaml_indent(items, l, y)) return -1;
    unsigned line = l->number;
    char *copy = mem_strdup(text), *key = cut_key(copy, ':', &value);
    int result = 0;
    if (!key || (*value && value[-1] == ':'))
        result = fault(l, "expected \"key: value\"");
    else if (*value == '\0')
        y->pending = mem_strdup(key), y->pending_line = line, y->pending_indent = l->indent;
    else if (*value == '[')
        result = add_line(items, l, y->map, key, list_text(l, value, true), line);
    else if (strcmp(value, "{}") != 0 && strcmp(value, "null") != 0 && strcmp(value, "~") != 0)
        result = add_line(items, l, y->map, key, scalar(l, value), line);
    free(key);
    free(copy);
    return result;
}

int config_scan_yaml(struct config_items *items, const char *name, const char *text,
                     struct err *err)
{
    struct lines l = {.name = name, .text = text, .err = err};
    struct yaml y = {.map = mem_strdup("")};
    int result = 0;
    while (next_line(&l, true))
        result |= yaml_line(items, &l, &y);
    result |= yaml_close(items, &l, &y);
    free(y.map);
    free(l.line);
    return result;
}

/* ---- filling a struct ---- */

static bool same_key(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        bool dashes = (*a == '-' || *a == '_') && (*b == '-' || *b == '_');
        if (*a != *b && !dashes) return false;
    }
    return *a == *b;
}

static int fill_uint(const struct config_item *item, const struct config_word *word, void *field,
                     struct err *err)
{
    double value = 0;
    uint64_t *number = field, min = word->type == CONFIG_UINT;
    if (strspn(item->value, "0123456789") == strlen(item->value))
        return units_read_uint(item->where, item->value, min, INT32_MAX, number, err);
    if (units_read_double(item->where, item->value, &value, err)) return -1;
    if (value < (double)min || value > INT32_MAX || value != (double)(uint64_t)value)
        return err_add(err, ERR_USAGE, "%s: \"%s\" is not a whole number in %d..%d", item->where,
                       item->value, (int)min, INT32_MAX);
    *number = (uint64_t)value;
    return 0;
}

static int fill_double(const struct config_item *item, const struct config_word *word, void *field,
                       struct err *err)
{
    (void)word;
    double value = 0;
    if (units_read_double(item->where, item->value, &value, err)) return -1;
    if (value < 0) return err_add(err, ERR_USAGE, "%s: %s is below 0", item->where, item->value);
    *(double *)field = value;
    return 0;
}

static int fill_text(const struct config_item *item, const struct config_word *word, void *field,
                     struct err *err)
{
    *(const char **)field = item->value;
    if (!word->choices) return 0;
    for (const char *const *choice = word->choices; *choice; choice++)
        if (strcmp(*choice, item->value) == 0) return 0;
    char *list = NULL;
    for (const char *const *choice = word->choices; *choice; choice++)
        list = joined(list, ", ", *choice);
    err_add(err, ERR_USAGE, "%s: \"%.60s\" is not known; known: %s", item->where, item->value,
            list);
    free(list);
    return -1;
}

static int fill_switch(const struct config_item *item, const struct config_word *word, void *field,
                       struct err *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        if (item->value && strcasecmp(item->value, words[i]) != 0) continue;
        bool on = !item->value || i % 2;
        if (word->type == CONFIG_ON)
            *(bool *)field = on;
        else
            *(enum config_switch *)field = on ? SWITCH_ON : SWITCH_OFF;
        return 0;
    }
    return err_add(err, ERR_USAGE, "%s: \"%.60s\" is neither true nor false%s", item->where,
                   item->value, word->type == CONFIG_ON ? "; the option takes no value" : "");
}

static int fill_item(const struct config_item *item, const struct config_word *word, void *target,
                     struct err *err)
{
    static int (*const fillers[])(const struct config_item *, const struct config_word *, void *,
                                  struct err *) = {
        [CONFIG_UINT] = fill_uint, [CONFIG_COUNT] = fill_uint, [CONFIG_DOUBLE] = fill_double,
        [CONFIG_TEXT] = fill_text, [CONFIG_ON] = fill_switch,  [CONFIG_SWITCH] = fill_switch};
    bool bare = word->type == CONFIG_ON || word->type == CONFIG_SWITCH;
    if (!item->value && !bare) return err_add(err, ERR_USAGE, "%s: has no value", item->where);
    if (word->type != CONFIG_TEXT && item->value && strlen(item->value) > 60)
        return err_add(err, ERR_USAGE, "%s: \"%.60s...\" is no value for it", item->where,
                       item->value);
    if (item->value && word->absent && strcmp(item->value, word->absent) == 0) return 0;
    return fillers[word->type](item, word, (char *)target + word->offset, err);
}

/* Whether an earlier item of the same key has another value. */
static int check_twice(const struct config_items *items, size_t i, struct err *err)
{
    const struct config_item *item = &items->items[i];
    const char *value = item->value ? item->value : "";
    for (size_t k = 0; k < i; k++) {
        const struct config_item *other = &items->items[k];
        const char *before = other->value ? other->value : "";
        if (!same_key(other->key, item->key) || strcmp(before, value) == 0) continue;
        return err_add(err, ERR_USAGE, "%s: is given twice, as \"%.60s\" and as \"%.60s\"",
                       item->where, before, value);
    }
    return 0;
}

int config_fill(struct config_items *items, const struct config_word *words, void *target,
                struct err *err)
{
    int result = 0;
    for (size_t i = 0; i < items->count; i++) {
        struct config_item *item = &items->items[i];
        for (const struct config_word *word = words; word->key; word++) {
            if (!same_key(word->key, item->key)) continue;
            item->read = true;
            if (check_twice(items, i, err) || fill_item(item, word, target, err)) result = -1;
        }
    }
    return result;
}

/* Whether it is in the list, and says more than that it is off. */
static bool is_of(const struct config_item *item, const char *const *of)
{
    static const char *const off[] = {"false", "no", "off", "none", "0", "", "auto"};
    for (size_t i = 0; item->value && i < sizeof off / sizeof *off; i++)
        if (strcasecmp(item->value, off[i]) == 0) return false;
    for (; *of; of++)
        if (same_key(*of, item->key)) return true;
    return false;
}

char *config_unread(const struct config_items *items, const char *const *of, bool others)
{
    char *text = NULL;
    for (size_t i = 0; i < items->count; i++) {
        const struct config_item *item = &items->items[i];
        if (!item->read && is_of(item, of) != others) text = joined(text, ", ", item->key);
    }
    return text;
}

struct config_item *config_find(const struct config_items *items, const char *key)
{
    for (size_t i = 0; i < items->count; i++) {
        if (same_key(items->items[i].key, key)) return &items->items[i];
    }
    return NULL;
}

const char *config_where(const struct config_items *items, const char *key)
{
    const struct config_item *item = config_find(items, key);
    return item ? item->where : key;
}

void config_items_move(struct config_items *to, struct config_items *from)
{
    size_t before = to->count;
    for (size_t i = 0; i < from->count; i++) {
        struct config_item *item = &from->items[i];
        const struct config_item *other = config_find(to, item->key);
        if (other && other < to->items + before) continue;
        add(to, item->key, item->value, item->where);
        *item = (struct config_item){0};
    }
    config_items_release(from);
}
