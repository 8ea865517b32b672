/* SPDX-License-Identifier: Apache-2.0
 * Scanners for JSON and the flat parts of TOML and YAML, and the table-driven filling of a struct
 * from what they found. */
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

struct config_item *config_add(struct config_items *items, char *key, char *value, char *where)
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
            config_add(items, mem_strdup(path), json_text(value),
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
    config_add(items, path, value, mem_printf("%s:%u: %s", l->name, line, path));
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

static bool same_letter(char a, char b)
{
    bool dashes = (a == '-' || a == '_') && (b == '-' || b == '_');
    return a == b || dashes;
}

static bool same_key(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (!same_letter(*a, *b)) return false;
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

/* "$NAME" in a value that the text has no value for, or a command; NULL: there is none. Freed by
 * the caller. */
static char *unset_variable(const char *value)
{
    const char *s = value ? strpbrk(value, "$`") : NULL;
    if (!s || (*s == '$' && !isalnum((unsigned char)s[1]) && !strchr("_{(", s[1])) || !s[1])
        return NULL;
    return mem_strdup(s);
}

static int fill_item(const struct config_item *item, const struct config_word *word, void *target,
                     struct err *err)
{
    static int (*const fillers[])(const struct config_item *, const struct config_word *, void *,
                                  struct err *) = {
        [CONFIG_UINT] = fill_uint, [CONFIG_COUNT] = fill_uint, [CONFIG_DOUBLE] = fill_double,
        [CONFIG_TEXT] = fill_text, [CONFIG_ON] = fill_switch,  [CONFIG_SWITCH] = fill_switch};
    bool bare = word->type == CONFIG_ON || word->type == CONFIG_SWITCH;
    char *unset = unset_variable(item->value);
    if (unset) {
        int result = err_add(err, ERR_USAGE, "%s: %.60s is not set in the text; write its value",
                             item->where, unset);
        free(unset);
        return result;
    }
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
    static const char *const off[] = {"false", "no", "off", "none", "0", "auto", "fp32", "float32"};
    if (item->value && !*item->value) return false;
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
        if (item->read || is_of(item, of) == others) continue;
        text = joined(text, ", ", item->key);
        char *unset = unset_variable(item->value);
        if (unset) text = joined(text, " ", unset);
        free(unset);
    }
    return text;
}

/* Whether so many edits (insert, delete, replace a letter) make one key of the other. */
static bool within(const char *a, const char *b, unsigned edits)
{
    while (*a && *b && same_letter(*a, *b))
        a++, b++;
    if (!*a && !*b) return true;
    if (!edits) return false;
    return (*a && *b && within(a + 1, b + 1, edits - 1)) || (*a && within(a + 1, b, edits - 1)) ||
           (*b && within(a, b + 1, edits - 1));
}

/* Whether a key is a known one misspelt: by one letter, or by two in a long one. */
static bool is_near(const char *key, const char *known)
{
    size_t n = strlen(known);
    return n > 5 && within(key, known, n > 15 ? 2 : 1);
}

int config_check_names(const struct config_items *items, const struct config_word *words,
                       const char *const *unmodelled, struct err *err)
{
    int result = 0;
    for (size_t i = 0; i < items->count; i++) {
        const struct config_item *item = &items->items[i];
        const char *near = NULL;
        bool known = false;
        for (const struct config_word *word = words; word->key; word++) {
            known |= same_key(word->key, item->key);
            if (is_near(item->key, word->key)) near = word->key;
        }
        for (const char *const *word = unmodelled; *word; word++)
            known |= same_key(*word, item->key);
        if (!known && near)
            result = err_add(err, ERR_USAGE, "%s: is not known; nearest is %s", item->where, near);
    }
    return result;
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
        config_add(to, item->key, item->value, item->where);
        *item = (struct config_item){0};
    }
    config_items_release(from);
}
