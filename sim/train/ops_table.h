/* SPDX-License-Identifier: Apache-2.0
 * The operators of a step as a table: what a stage's passes are made of, how often each operator
 * runs, its shape, FLOPs, bytes and time, and its share of the step. Equal operators of a pass are
 * one row. The shares of the rows and of the rest sum to the step. */
#pragma once

#include "base/err.h"
#include "base/out.h"
#include "train/event.h"

struct ops_row {
    const char *name, *limit; /* static */
    enum pass pass;
    bool again; /* recomputation, in a backward pass */
    uint8_t lane, part;
    uint64_t m, n, k, batch; /* of a matrix product; else 0 */
    uint64_t count;          /* in a step, on one rank */
    double flops, bytes;     /* of all of them */
    double time_s;           /* that they take, alone on their lane */
    double charged_s;        /* of the step: of compute its time, of a collective what compute waits
                                for it */
    double peak;             /* FLOP/s of the unit that they run on; 0 */
};

struct ops_table {
    struct ops_row *rows; /* in the order of the passes */
    size_t count, cap;
    uint32_t stage;
    double host_s;         /* compute waits for the host to issue kernels */
    double rest_s[NPARTS]; /* of the step, beyond the rows and host_s, by part: what is not of the
                              layers (optimizer, messages, bubble), and how much longer operators
                              take where collectives run beside them; below 0 where the step has
                              something else to do, or to wait for, meanwhile */
};

/* Adds one pass over a list of operators that is run `times` times in a step; `spans` by op. */
void ops_table_add(struct ops_table *table, const struct ops *ops, const struct task_span *spans,
                   enum pass pass, double times);

/* The table of a stage of `result`, which `args` gave. The chunks are left without a job. 0, or -1
 * with a sentence. */
int ops_table_make(struct ops_table *table, const struct event_args *args,
                   const struct event_result *result, uint32_t stage, struct err *err);
void ops_table_release(struct ops_table *table);

/* The rows, behind a note that explains them, into `out`, whose columns are ops_columns. `hbm_Bps`:
 * the datasheet's memory bandwidth, of which the efficiency of an operator without FLOPs is a
 * share. */
enum { OPS_COLUMNS = 17 };
extern const struct out_column ops_columns[OPS_COLUMNS];
void ops_table_print(struct out *out, const struct ops_table *table, double step_s, double hbm_Bps);

/* The same into a file of its own: .csv, .json, else text. 0, or -1 with a sentence. */
int ops_table_write(const struct ops_table *table, double step_s, double hbm_Bps, const char *path,
                    bool overwrite, struct err *err);
