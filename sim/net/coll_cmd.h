/* SPDX-License-Identifier: Apache-2.0
 * The subcommand `commsim coll`: simulates one collective over sizes and algorithms and prints the
 * same table as the benchmark. */
#pragma once

/* Runs it: argv[0] is the subcommand's own name. Returns the exit status: 0 fine, 1 failed, 2
 * usage. */
int coll_cmd(int argc, char **argv);
