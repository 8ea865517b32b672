/* SPDX-License-Identifier: Apache-2.0
 * From what the user names (cluster, model, strategy, framework) to a job: the way into every
 * prediction. Tables are read once and serve many plans. */
#pragma once

#include "net/topo.h"
#include "train/constants.h"
#include "train/framework.h"
#include "train/job.h"
#include "train/model.h"
#include "train/rules.h"
#include "train/strategy.h"

struct tables {
    struct accel_table accels;
    struct framework_table frameworks;
    struct const_table constants[NENGINES];
};

/* Reads the shipped tables; `constants`, if not NULL, names another one for that engine. Returns 0
 * or -1. */
int tables_read(struct tables *tables, enum engine engine, const char *constants, struct err *err);
void tables_release(struct tables *tables);

/* What a plan is made of. */
struct plan_args {
    struct topo_args cluster;
    const char *model;   /* NULL: llama3-8b */
    struct model *shape; /* if not NULL, this model, already built; it is taken and left empty */
    struct strategy_args strategy;
    double machine_factor;          /* 0.1..10: of compute times; 1 is the type's usual machine */
    const struct opts_list *faults; /* of links, in the words of net/fault.h; NULL: none */
};

struct plan {
    struct topo topo;
    struct model model;
    struct strategy strategy;
    struct rules_report rules; /* all findings; errors are left to the caller */
    struct job job;
    double *stage_layers;
    char **assumed; /* sentences: what nobody stated */
    size_t nassumed;
    bool borrows; /* topo and model belong to another plan */
};

/* Makes a plan. Returns 0, or -1 with all faults (ERR_USAGE) and an empty plan. The tables must
 * outlive it. Rules that the framework would enforce are checked but do not fail here. */
int plan_make(struct plan *plan, const struct tables *tables, const struct plan_args *args,
              struct err *err);
void plan_release(struct plan *plan);

/* The plan of another strategy for the same job: cluster and model are those of `base`, which must
 * live longer (`plan` may change its own copy of the cluster's figures); nothing is listed as
 * assumed. Quick, for those who try many. Returns 0, or -1 with all faults and an empty plan. */
int plan_vary(struct plan *plan, const struct plan *base, const struct tables *tables,
              const struct strategy_args *args, struct err *err);

/* Dense peak of the unit that the linears run in, FLOP/s; *name is that unit ("fp8"). What MFU is a
 * share of. */
double plan_peak(const struct plan *plan, const char **name);

/* The rows of cluster, model, and strategy as one option table for a struct that holds a struct
 * plan_args at `offset`, followed by `more` (ended by a row without a name). Freed with free(). */
struct opts_row *plan_options(size_t offset, const struct opts_row *more);
