/* SPDX-License-Identifier: Apache-2.0
 * Configurations of training frameworks as one flat list of items, whatever they are written in:
 * a command line, JSON, a flat subset of TOML or YAML. A table of words then fills a struct from
 * the list. What the table does not know stays marked as unread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct config_item {
    char *key;   /* "seq-length", "zero_optimization.stage" */
    char *value; /* NULL: an option without a value */
    char *where; /* "--megatron-args: --seq-length", "ds.json:3: zero_optimization.stage" */
    bool read;   /* a table knew it */
};

struct config_items {
    struct config_item *items;
    size_t count, cap;
};

void config_items_release(struct config_items *items);

/* Each reads `text` (`name`: how the user knows it) and adds its items. Returns 0, or -1 with a
 * sentence for each fault, with its line. All of TOML and YAML that these files do not use
 * (tables in tables, anchors, multi-line strings) is refused. */

/* A pasted command line or launch script: values behind a blank or "=", lines with or without a
 * backslash at their end, quotes, also around an option with its value, comments from # on; $NAME,
 * ${NAME[@]} are what NAME=VALUE, NAME=(...), NAME+=... said before, ${NAME:-VALUE} has its own.
 * Words before the first option and script names are passed over. A variable without a value where
 * options would stand is a fault, as are options of a variable that nothing takes up, unless the
 * text has no others. */
int config_scan_line(struct config_items *items, const char *name, const char *text,
                     struct err *err);
int config_scan_json(struct config_items *items, const char *name, const char *text,
                     struct err *err);
int config_scan_toml(struct config_items *items, const char *name, const char *text,
                     struct err *err);
int config_scan_yaml(struct config_items *items, const char *name, const char *text,
                     struct err *err);

/* Adds an item, of which it takes all three texts; `value` may be NULL. */
struct config_item *config_add(struct config_items *items, char *key, char *value, char *where);

/* Moves the items of `from` that `to` has no item of the same key for, and releases `from`. */
void config_items_move(struct config_items *to, struct config_items *from);

/* The item of that key; NULL if there is none. */
struct config_item *config_find(const struct config_items *items, const char *key);

enum config_type {
    CONFIG_UINT,   /* uint64_t, 1 or more */
    CONFIG_COUNT,  /* uint64_t, 0 or more */
    CONFIG_DOUBLE, /* double, 0 or more */
    CONFIG_TEXT,   /* const char *, borrowed from the item */
    CONFIG_ON,     /* bool: true where the option stands (or stands with true) */
    CONFIG_SWITCH, /* enum config_switch: true or false, any case, yes or no */
};

enum config_switch { SWITCH_ABSENT, SWITCH_OFF, SWITCH_ON };

struct config_word {
    const char *key; /* - and _ are the same */
    enum config_type type;
    size_t offset;              /* in the struct to be filled */
    const char *absent;         /* this value says no more than if the word were not there */
    const char *const *choices; /* CONFIG_TEXT: all that is accepted, ended by NULL; or NULL */
};

/* Fills `target` (zeroed, its doubles preset). Two items of one word must agree. Returns 0, or -1
 * with all faults. `words` is ended by a row without a key. */
int config_fill(struct config_items *items, const struct config_word *words, void *target,
                struct err *err);

/* A key that neither list knows, and that is one of `words` misspelt: a sentence each. Returns 0 or
 * -1. */
int config_check_names(const struct config_items *items, const struct config_word *words,
                       const char *const *unmodelled, struct err *err);

/* The keys that no table knew and that are in `of` (ended by NULL) and not switched off, or are all
 * the others; joined by commas, NULL if there is none. Freed by the caller. */
char *config_unread(const struct config_items *items, const char *const *of, bool others);

/* Where the item of that key stands, or the key itself if there is none. */
const char *config_where(const struct config_items *items, const char *key);
