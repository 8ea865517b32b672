/* SPDX-License-Identifier: Apache-2.0
 * The command `commsim topo`: machines as graphs, from files of several programs. */
#pragma once

/* argv[0] is the command's name. The exit status. */
int topo_cmd(int argc, char **argv);
