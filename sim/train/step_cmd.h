/* SPDX-License-Identifier: Apache-2.0
 * `commsim --topo X --strategy Y` (the bare command): will it fit, how fast is it, what limits it;
 * and `commsim memory`. Each returns the exit status. */
#pragma once

int step_cmd(int argc, char **argv);
int memory_cmd(int argc, char **argv);
