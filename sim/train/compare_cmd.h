/* SPDX-License-Identifier: Apache-2.0
 * `commsim compare`: several clusters and several strategies for one model, as one table and one
 * picture. */
#pragma once

/* Runs it: argv[0] is the subcommand's own name. Returns the exit status: 0 fine, 1 failed, 2 if a
 * pair cannot be run as asked (the others are still in the table). */
int compare_cmd(int argc, char **argv);
