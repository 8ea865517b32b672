/* SPDX-License-Identifier: Apache-2.0
 * `collbench plot A.json [B.json ...] -o FILE`: time and bandwidth over size as a picture. */
#pragma once

/* argv[0] is "plot". Returns the exit status. */
int plot_cmd(int argc, char **argv);
