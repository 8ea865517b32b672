/* SPDX-License-Identifier: Apache-2.0
 * `collbench compare A.json B.json`: is B slower than A? One verdict per row, none over all. */
#pragma once

/* argv[0] is "compare". Returns the exit status: 1 if a row is slower. */
int compare_cmd(int argc, char **argv);
