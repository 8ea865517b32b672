/* SPDX-License-Identifier: Apache-2.0
 * Free text of published tables: network descriptions and flag words. Internal to rows. */
#pragma once

#include <stdbool.h>

#include "base/csv.h"
#include "train/job.h"

/* What a text says of a network. */
struct rowtext_net {
    double Gbps;           /* rate per GPU, 0: not stated */
    unsigned nics;         /* of a host, 0: not stated */
    double oversubscribed; /* from "1:k oversubscribed", else 1 */
};

/* "N x .. R Gb/s" and "R .. per node" are divided by `gpus_per_node`, any other R is per GPU. Only
 * the part behind "Compute:" is read where there is one. */
struct rowtext_net rowtext_net(const char *text, unsigned gpus_per_node);

/* The kind of network by word; FABRIC_UNSTATED if no word is known. */
enum fabric rowtext_fabric(const char *text);

/* The row of the table whose column `pattern` is part of `text` (case ignored), or SIZE_MAX. */
size_t rowtext_match(const struct csv *csv, const char *text);

bool rowtext_has(const char *text, const char *word); /* word is part of text, case ignored */

/* Features that tables set: what flags and framework rows change in a job. */
struct features {
    struct job *job;
    bool tp_overlap_sp; /* TP overlap follows from sequence parallelism */
    unsigned selective; /* what "selective" means: RCM_... */
    bool modules_given;
    unsigned modules;
    unsigned buckets;
};

/* Sets a feature by name; `word` is the text it came from. A name or value that no code knows is a
 * sentence (the shipped tables are checked in full). Returns 0 or -1. */
int rowtext_set(struct features *f, const char *feature, const char *value, const char *word,
                struct err *err);

/* Turns a feature off: "no flash-attn". */
void rowtext_unset(struct features *f, const char *feature);
