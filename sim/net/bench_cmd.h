/* SPDX-License-Identifier: Apache-2.0
 * The subcommand `commsim bench`: how fast the network engine itself is, and how much memory it
 * takes, on a few loads that stay the same from version to version. */
#pragma once

/* Runs it: argv[0] is the subcommand's own name. Returns the exit status: 0 fine, 1 failed, 2
 * usage. */
int bench_cmd(int argc, char **argv);
