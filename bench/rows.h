/* SPDX-License-Identifier: Apache-2.0
 * The rows of a run as they come in: samples and results of rank 0, in the order in which they were
 * measured. A row goes to the record (JSON) as soon as it is whole, and to text and CSV in the
 * order of the plan. Over several launches each row's results are kept, without samples. */
#pragma once

#include "base/out.h"
#include "bench/board.h"
#include "bench/format.h"
#include "bench/timing.h"

struct rows;

/* Where rows go. The text may have another program's format; notes that do not belong to it are
 * left out then. */
struct outputs {
    struct out *record, *sheet, *text; /* JSON; CSV; text */
    enum format format;
};
void outputs_note(const struct outputs *outputs, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The plan and the outputs are borrowed. `wrong`: takes a sentence for each wrong result. */
struct rows *rows_new(const struct plan *plan, const struct outputs *outputs, struct err *wrong);
void rows_free(struct rows *rows);

/* A message of kind SAMPLES or RESULT. Returns true when it completed a row. */
bool rows_take(struct rows *rows, const struct message *message);

/* The ranks have ended: prints what is left, whole or not, and makes ready for the next launch. */
void rows_end_launch(struct rows *rows);

/* Behind several launches: one row for all launches of each. */
void rows_over_launches(struct rows *rows);

const struct footer *rows_footer(const struct rows *rows);
