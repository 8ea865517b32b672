/* SPDX-License-Identifier: Apache-2.0
 * Tables of measured collectives as calls on topologies: data/machines.csv where it knows the
 * machine, else the text columns alone. Nothing here reads a measured figure but to keep it. */
#pragma once

#include "base/csv.h"
#include "net/coll_text.h"

enum coll_band { BAND_SMALL, BAND_MIDDLE, BAND_LARGE, NBANDS }; /* < 64 KiB, to 16 MiB, above */

enum coll_state { STATE_HEALTHY, STATE_BUGGY, STATE_UNCLEAR };

struct coll_row {
    const char *file, *id, *machine, *op; /* borrowed from the table */
    size_t line;
    struct coll_machine as; /* the parsed machine */
    bool from_table;        /* data/machines.csv gave the topology or the process mode */
    uint64_t hosts, per_host;
    enum coll_id coll;
    uint64_t bytes;      /* of the call */
    enum coll_band band; /* of the size column */
    const char *reason;  /* why there is no prediction; NULL if there is one */
    const char *bucket;  /* scored apart by a rule that reads text and size; "" for none */
    enum coll_state state;
    const char *state_word; /* as the table says it */
    bool contradicts;       /* the bus bandwidth in the table is not that of its time and size */
    double measured_us;     /* 0: none */
};

struct coll_rows {
    struct coll_row *rows;
    size_t nrows;
    struct csv *tables;
    size_t ntables;
    struct csv machines;
    struct accel_table accels;
};

/* Reads tables. Returns 0, or -1 with a sentence per fault (file and line): a column that is
 * missing or there twice, a figure that is none. A row that repeats another in all columns that are
 * read has the reason "repeat". */
int coll_rows_read(struct coll_rows *rows, char *const *paths, size_t npaths, struct err *err);
void coll_rows_release(struct coll_rows *rows);

/* Whether a row counts in the score of healthy rows. */
bool coll_row_counts(const struct coll_row *row);

/* How the machine's kind is called in scores: "1 node NVSwitch", "InfiniBand". */
const char *coll_row_class(const struct coll_row *row);

const char *coll_band_name(enum coll_band band);
