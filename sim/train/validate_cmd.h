/* SPDX-License-Identifier: Apache-2.0
 * Commands that look at the model itself: how well it predicts published runs, what its constants
 * are, and how they are fitted. Each returns the exit status. */
#pragma once

int validate_cmd(int argc, char **argv);  /* commsim validate training [FILE|FOLDER]... */
int constants_cmd(int argc, char **argv); /* commsim constants */
int fit_cmd(int argc, char **argv);       /* commsim fit [FILE|FOLDER]... */
