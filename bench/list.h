/* SPDX-License-Identifier: Apache-2.0
 * `collbench list`: what can be asked for on this machine. */
#pragma once

/* Prints operations, algorithms, wires, transports, types, operators, kernels and the bound's
 * table. Returns the exit status. */
int list_cmd(int argc, char **argv);

/* Prints program and version. Returns the exit status. */
int version_print(void);
