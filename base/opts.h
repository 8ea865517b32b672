/* SPDX-License-Identifier: Apache-2.0
 * Options as a table: one row per option drives parsing, defaults and --help. A program writes
 * rows and a struct that they fill; it writes no parser. The idea is git's parse-options. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Type of an option      the field at `offset`   what the user writes */
enum opts_type {
    OPTS_FLAG,      /*    bool                    nothing: naming it sets it to true */
    OPTS_UINT,      /*    uint64_t                a whole number in min..max */
    OPTS_SIZE,      /*    uint64_t, bytes         a size in min..max bytes: 1G, 1.5K */
    OPTS_COUNT,     /*    uint64_t                a number in min..max: 8192 or 8K */
    OPTS_TIME_PS,   /*    uint64_t, picoseconds   a time: 2.5us */
    OPTS_TIME_S,    /*    double, seconds         a time: 2.5us */
    OPTS_BANDWIDTH, /*    double, bytes/s         a bandwidth: 50GB/s, 400Gb/s */
    OPTS_DOUBLE,    /*    double                  a finite number */
    OPTS_FRACTION,  /*    double                  a share between 0 and 1: 5%, 0.05 */
    OPTS_SHARE,     /*    double                  the same, 0 and 1 included */
    OPTS_STRING,    /*    const char *            any text, borrowed from argv */
    OPTS_CHOICE,    /*    unsigned                one of `choices`: its index */
    OPTS_LIST,      /*    struct opts_list        texts by commas, each of `choices` if given */
    OPTS_MORE,      /*    struct opts_list        any text; each use of the option adds one */
};

/* Texts cut at commas, or given one by one. Owned by the struct opts that filled it. */
struct opts_list {
    size_t count;
    char **items; /* NULL when count is 0 */
};

struct opts_row {
    const char *name; /* without "--" */
    char letter;      /* single-letter form, 0 for none; case counts */
    enum opts_type type;
    size_t offset;       /* of the field in the target struct */
    const char *value;   /* default as the user would write it; NULL leaves the field alone */
    const char *arg;     /* word for the value in --help; NULL for a flag */
    const char *help;    /* one or two lines' worth of text, wrapped by --help */
    const char *section; /* heading in --help; NULL continues the one above */
    uint64_t min, max;   /* UINT, SIZE, COUNT; max 0 means no upper bound */
    bool plain_seconds;  /* TIME: a number without unit is seconds */
    const char *const *choices; /* CHOICE, LIST: valid texts, ended by NULL */
};

/* A table whose fields lie `offset` bytes into the target struct. */
struct opts_part {
    const struct opts_row *rows;
    size_t offset;
};

/* One table of several: their rows in order, offsets shifted. Freed by the caller with free(). */
struct opts_row *opts_join(const struct opts_part *parts, size_t nparts);

/* What a command line held, beside the fields it filled. */
struct opts {
    const struct opts_row *rows; /* borrowed */
    void *target;                /* borrowed */
    bool help;                   /* --help or -h was given: nothing else counts */
    bool *set;                   /* by row: the user gave it */
    size_t npositionals;
    const char **positionals; /* words that are no options, in order, borrowed from argv */
};

/* Fills `target` (zeroed by the caller) with the defaults, then with argv[1..argc-1]. `rows` ends
 * with a row without name and must not use the letter h or the name help. Accepts --name value,
 * --name=value, -n value, -nvalue, -ab for flags, and -- before words that start with a dash.
 * A later use of an option replaces an earlier one (OPTS_MORE: adds to it). ALL faults are added to
 * `err` (ERR_USAGE) before -1 is returned. Call opts_release in either case. */
int opts_parse(struct opts *opts, const struct opts_row *rows, void *target, int argc, char **argv,
               struct err *err);

/* Whether the user gave --name. The name must be in the table. */
bool opts_is_set(const struct opts *opts, const char *name);

/* Frees what opts_parse made, the lists inside the target included. */
void opts_release(struct opts *opts);

/* Prints the help: usage line, a text about the program (may be NULL), the rows by section, and
 * how sizes, times and bandwidths are written. */
void opts_help(FILE *to, const char *usage, const char *about, const struct opts_row *rows);

/* Adds the sentence for a name that is not in a list: what it is, the nearest valid name if one is
 * near, and all of them ("unknown algorithm \"rign\": nearest is ring; valid: ring, tree"). `names`
 * ends with NULL. Returns -1. */
int opts_unknown(struct err *err, const char *what, const char *text, const char *const *names);
