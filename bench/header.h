/* SPDX-License-Identifier: Apache-2.0
 * What the output says about a run besides its rows: comment lines for people, the same as facts
 * for JSON. */
#pragma once

#include "base/out.h"
#include "bench/board.h"
#include "bench/fit.h"

/* Before anything runs. `argv` is the whole command line. */
void header_plan(struct out *out, const struct fitted *fitted, int argc, char **argv);

/* When the ranks have measured the machine. */
void header_facts(struct out *out, const struct facts *facts);

/* What stands behind the rows. */
struct footer {
    uint64_t checked, wrong; /* results checked; wrong elements in all of them */
    uint64_t batched;        /* results whose samples are several operations */
    double busbw_sum;
    uint64_t busbw_count;
    bool failed; /* the run ended early */
};
void header_footer(struct out *out, const struct footer *footer);
