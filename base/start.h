/* SPDX-License-Identifier: Apache-2.0
 * What a program does before anything else. */
#pragma once

/* To be called first in main. Opens the null device on standard descriptors that are closed, since
 * a file opened later would get their number and be written over by what is meant for stdout; and
 * tells the C library to keep freed memory instead of giving it back, because taking pages anew is
 * what costs (microseconds each in virtual machines). */
void program_start(void);

/* To be called last in main: writes out what stdout still holds and gives the exit status of
 * `prog`, `status` or, when that is 0 and stdout could not be written in full, 1 with a sentence.
 */
int program_end(const char *prog, int status);
