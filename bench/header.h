/* SPDX-License-Identifier: Apache-2.0
 * What the output says about a run besides its rows: comment lines for people, the same as facts
 * for JSON. */
#pragma once

#include "base/out.h"
#include "bench/board.h"
#include "bench/fit.h"
#include "exec/place.h"

/* Version of what a JSON file holds; a change of meaning or of a name makes it one more. */
enum { RECORD_SCHEMA = 2 };

/* The processor's name as the kernel has it, freed by the caller. */
char *header_processor(void);

/* The command line as a shell would read it, the program without its folders; freed by the caller.
 */
char *header_command(int argc, char **argv);

/* Program, machine and command line alone: part of header_plan. */
void header_machine(struct out *out, enum source source, int argc, char **argv);

/* SOURCE_MEASURED, or SOURCE_EMULATED of runs on emulated GPUs. */
enum source header_source(bool device);

/* Before anything runs. `argv` is the whole command line. */
void header_plan(struct out *out, const struct fitted *fitted, int argc, char **argv);

/* The GPUs of this host's `nranks` ranks, which are there: their names, the CUDA runtime, who has
 * which, how buffers travel over the transport (NULL: there is none) and pairs without peer access;
 * and a warning where they are emulated. Part of header_plan. */
struct gpu;
struct transport;
void header_gpus(struct out *out, const struct gpu *gpu, uint32_t nranks,
                 const struct transport *transport);

/* Which cores the ranks have. */
void header_place(struct out *out, const struct place *place);

/* When the ranks have measured the machine. */
void header_facts(struct out *out, const struct facts *facts);

enum { FOOTER_LARGE = 1000000 }; /* bytes below which latency decides, not bandwidth */

/* What stands behind the rows. */
struct footer {
    uint64_t checked, wrong; /* results checked; wrong elements in all of them */
    uint64_t batched;        /* results whose samples are several operations */
    double busbw_sum;        /* of all measured results, as nccl-tests averages, */
    uint64_t busbw_count;
    double large_sum; /* .. and of those of FOOTER_LARGE bytes or more */
    uint64_t large_count;
    uint64_t drifts;  /* rows of a launch that drifted away from the launches before */
    uint64_t invalid; /* results below the least time there can be */
    bool failed;      /* the run ended early */
};
void header_footer(struct out *out, const struct footer *footer);
