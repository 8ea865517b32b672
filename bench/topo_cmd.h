/* SPDX-License-Identifier: Apache-2.0
 * The command `collbench topo`: what this machine is made of, as the table of
 * `nvidia-smi topo -m` and as a file for commsim. */
#pragma once

/* argv[0] is the command's name; `whole_argv` the whole command line, ended by NULL. The exit
 * status. */
int topo_here_cmd(int argc, char **argv, char **whole_argv);
