/* SPDX-License-Identifier: Apache-2.0
 * What the frameworks demand of a strategy: heads, batches, layers, experts, sequence. Every
 * violation is reported at once, each with the rule, both numbers, the nearest legal values and,
 * for layers, an uneven proposal. One function per rule, one table of all. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "train/strategy.h"

struct finding {
    const char *rule; /* its name in the table: "heads-tp" */
    bool warning;     /* it runs, but the user should know */
    char *text;       /* one sentence */
};

struct rules_report {
    struct finding *findings;
    size_t count, cap;
    size_t errors, warnings;
};

/* Checks every rule. An empty (zeroed) report is filled; rules_release frees it. */
void rules_check(struct rules_report *report, const struct strategy *strategy,
                 const struct model *model, const struct topo *topo);
void rules_release(struct rules_report *report);

/* Adds the errors of a report to `err` (ERR_USAGE). Returns -1 if there were any. */
int rules_refuse(const struct rules_report *report, struct err *err);

/* Rule i: its name, what it demands, where that comes from. NULL behind the last. */
struct rule_text {
    const char *name, *demands, *source;
};
const struct rule_text *rules_get(size_t i);

/* Tensor-parallel degrees up to `max` that a search may offer for a model: they divide the heads,
 * and are at most the number of key/value heads (more only makes copies of them). Ascending;
 * *count of them; freed by the caller. */
uint64_t *rules_offer_tp(const struct model *model, uint64_t max, size_t *count);
