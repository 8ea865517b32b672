/* SPDX-License-Identifier: Apache-2.0
 * `collbench bench-gpu`: what one GPU does with our kernels. */
#pragma once

/* Runs the command; argv[0] is its name, `whole_argv` the whole command line. Returns the exit
 * status. */
int gpu_cmd(int argc, char **argv, char **whole_argv);
