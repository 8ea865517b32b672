/* SPDX-License-Identifier: Apache-2.0
 * A plan from the words of a command line, for tests of what plans become. */
#pragma once

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/plan.h"

/* Reads the tables, with the shipped constants, and plans what `line` says ("--topo dgx-h100
 * --strategy tp8"). A line with faults that are not the plan's fails the test. -1 with sentences:
 * there is no such plan. */
static inline int planned_if(struct tables *tables, struct plan *plan, enum engine engine,
                             const char *line, struct err *no_plan)
{
    static const struct opts_row none[] = {{0}};
    struct plan_args args = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    struct opts_row *rows = plan_options(0, none);
    char *text = mem_strdup(line), *save = NULL, *argv[64] = {"x"};
    int argc = 1;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        cr_assert(argc < 64);
        argv[argc++] = w;
    }
    cr_assert_eq(opts_parse(&opts, rows, &args, argc, argv, &err), 0, "%s", err.text);
    cr_assert_eq(tables_read(tables, engine, NULL, &err), 0, "%s", err.text);
    int rc = plan_make(plan, tables, &args, no_plan);
    opts_release(&opts);
    free(rows);
    free(text);
    return rc;
}

/* The same, of a line that must give a plan. */
static inline void planned(struct tables *tables, struct plan *plan, enum engine engine,
                           const char *line)
{
    struct err err = ERR_INIT;
    cr_assert_eq(planned_if(tables, plan, engine, line, &err), 0, "%s: %s", line, err.text);
}
