/* SPDX-License-Identifier: Apache-2.0
 * The text of a run in the format of another benchmark, line by line and column by column, for
 * programs that read that one's output: `--format nccl|osu`. Also `own`, our table, so that the
 * caller knows no difference.
 *
 * nccl: nccl-tests 2.19. Time is the mean over the samples, as there. A rank is listed as device
 *     RANK [0000:00:00] with the processor's name, for there are no devices; Pid is that of its
 *     process or thread. A placement that was not run is N/A. Without -n, "iters" is the least
 *     number of samples. Several launches are the cycles of its -N, and rows over all of them are
 *     left out. As there, data that was not checked (N/A in the rows, "validation: 0"
 *     above them) ends with "0 OK" too. A run that failed has no footer.
 *     sendrecv and gather and the like have no operator, so redop is none (sendrecv_perf prints the
 *     one that was asked for and ignores it); what nccl-tests leaves unchecked in place (alltoall,
 *     sendrecv) is checked. alltoallv: size and count are means over the ranks. Not barrier.
 * osu: the collectives of OSU micro-benchmarks 7.4 with -f, and -c if data is checked. Size is what
 *     OSU counts: a rank's buffer, but for allgather, gather, scatter, alltoall and alltoallv (in
 *     the mean) the bytes from one rank to one other; for reduce_scatter the whole input; barrier
 *     has no size, no type and no validation. Not sendrecv. OSU takes the mean of each rank, then
 * average, minimum and maximum over ranks; here each sample is first taken over the ranks
 * (--average), and average, minimum and maximum are over samples. So Avg is counted as OSU's with
 * -a 1, and is never below that with the default, -a 3. OSU has a barrier after each call:
 * --cadence isolated. Out of place, unless only in place was run. */
#pragma once

#include "bench/board.h"
#include "bench/fit.h"
#include "bench/header.h"
#include "sched/table.h"

enum format { FORMAT_OWN, FORMAT_NCCL, FORMAT_OSU };
extern const char *const format_names[]; /* of an option; ended by NULL */

/* The format that the name of a program asks for, folders before it ignored: all_reduce_perf and
 * the like nccl-tests', osu_allreduce and the like OSU's, others ours. */
enum format format_of_program(const char *path);

/* Refuses (ERR_USAGE) plans whose rows could not be told apart in the format: several algorithms,
 * in OSU's also several types, operators or launches, and what is no plain time. Returns 0 or -1.
 */
int format_check(enum format format, const struct plan *plan, struct err *err);

/* A table of the format's columns without a place to go yet; its CSV has the same columns. `show`
 * is table_new's. */
struct out *format_new(enum format format, const struct plan *plan, unsigned show);

/* In this order: before anything runs (`argv` is the whole command line); when the ranks run and
 * have measured the machine; each row; behind the rows. Other notes belong to our format alone. */
void format_preamble(struct out *out, enum format format, const struct fitted *fitted, int argc,
                     char **argv);
void format_facts(struct out *out, enum format format, const struct plan *plan, struct world *world,
                  const struct facts *facts);
void format_row(struct out *out, enum format format, const struct table_side *out_of_place,
                const struct table_side *in_place);
void format_footer(struct out *out, enum format format, const struct plan *plan,
                   const struct footer *footer);
