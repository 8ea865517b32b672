/* SPDX-License-Identifier: Apache-2.0
 * What the files of the model share: how layers are listed before they are grouped into kinds.
 * Not for others; model.h is the interface. */
#pragma once

#include "train/model.h"

/* What one layer is, before counting. */
struct model_spec {
    uint64_t window;
    bool moe, causal, cross;
};

/* A contradiction between dimensions: the field that is at fault (its offset in struct model) and
 * the sentence, freed by the caller. */
struct model_fault {
    size_t offset;
    char *sentence;
};
enum { MODEL_FAULTS_MAX = 8 }; /* more than there are rules */

/* Gives the dimensions that are 0 their defaults, then checks all. Returns how many faults. */
size_t model_check(struct model *model, struct model_fault faults[MODEL_FAULTS_MAX]);

/* Completes a model whose dimensions are filled: model_check, kinds from specs[layers], counts.
 * Returns -1 with sentences (prefixed with the model's path or name) on contradiction. */
int model_finish(struct model *model, const struct model_spec *specs, struct err *err);

/* Notes an assumption, printf-like. */
void model_assume(struct model *model, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fills params, replicated and active of every kind, once, params, active and mtp_params. Returns
 * -1 with a sentence if a count does not fit. */
int model_count(struct model *model, struct err *err);
