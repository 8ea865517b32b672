/* SPDX-License-Identifier: Apache-2.0
 * Commands that look at how well measured collectives are predicted. Each returns the exit status;
 * argv[0] is the word of the command, argv[1] "collectives". */
#pragma once

int coll_validate_cmd(int argc, char **argv); /* commsim validate collectives [FILE]... */
int coll_fit_cmd(int argc, char **argv);      /* commsim fit collectives [FILE]... */
