/* SPDX-License-Identifier: Apache-2.0
 * `collbench OPERATION`: the parent's side of a run, from the command line to the printed table. */
#pragma once

#include "sched/coll.h"

/* argv[0] is the operation. Also the entry of the ranks: launch_run starts the same command line
 * again in every child. Returns the exit status: that of the errors, or 128 + SIGPIPE when the
 * reader of stdout went away. */
int run_cmd(const struct coll *coll, int argc, char **argv, char **whole_argv);
