/* SPDX-License-Identifier: Apache-2.0
 * `collbench p2p`: latency and bandwidth of every pair of ranks, one way, both ways, and with all
 * pairs at once; the slow pair is named. */
#pragma once

/* argv[0] is the command; `whole_argv` is the command line, run again in every rank. Returns the
 * exit status: that of the errors, or 128 + the signal that ended the run. */
int p2p_cmd(int argc, char **argv, char **whole_argv);
