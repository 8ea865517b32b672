/* SPDX-License-Identifier: Apache-2.0
 * `--trace FILE`: every step of one operation over time, in place of timing. The ranks check the
 * data, warm up, and run one operation whose steps they record; the parent writes the file (see
 * sched/trace.h) and sums it up. */
#pragma once

#include "bench/board.h"

struct out;

/* A plan for a trace has one row and one placement: adds a sentence (ERR_USAGE) that says what must
 * be given. `both`: the user asked for both placements; else, where the plan has both, it is
 * left with out of place. 0 or -1. */
int trace_check(struct plan *plan, bool both, struct err *err);

/* Memory for each step that a rank executes: its own, and the parent's. */
enum { TRACE_STEP_BYTES = 512 };

/* The rank's side, for launch_child. */
int trace_rank(struct rank *rk, struct err *err);

/* The parent's side. */
struct traced {
    struct trace trace;
    struct trace_file file;
    struct result result; /* of the traced operation; `time_us` is from the first begin to the last
                             end over all ranks */
};

/* Opens the file, before the ranks start. 0 or -1 (ERR_USAGE). Nothing leaks without it, or before
 * traced_release. */
int traced_open(struct traced *traced, const struct plan *plan, const char *path, bool overwrite,
                struct err *err);

/* Takes MESSAGE_STEPS and MESSAGE_RESULT, of any rank, and ignores the others. */
void traced_take(struct traced *traced, const struct message *message);

/* Writes the file, unless the run failed: then a new file is removed and an old one kept. `command`
 * may be NULL. 0 or -1. */
int traced_write(struct traced *traced, const char *command, bool failed, struct err *err);

/* Behind traced_write: what was traced, and the summary. Call it for each output. */
void traced_note(const struct traced *traced, struct out *out);
void traced_release(struct traced *traced);
