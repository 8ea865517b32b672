/* SPDX-License-Identifier: Apache-2.0
 * `collbench bench-step`: what the executor itself costs per step. */
#pragma once

/* `whole_argv` is the command line, run again in the child. Returns the exit status. */
int step_cmd(int argc, char **argv, char **whole_argv);
