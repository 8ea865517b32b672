/* SPDX-License-Identifier: Apache-2.0
 * Files that are shipped with the programs (topologies, models, validation tables): where they
 * are, for a program run from its build folder, from an installation, or moved with its files. */
#pragma once

#include <stddef.h>

#include "base/err.h"

/* The shipped folder `folder` ("topologies"): the first that exists of, with P the folder of the
 * running program, P/FOLDER, P/../FOLDER, P/../share/collbench/FOLDER, the source folder that the
 * program was built from, and the installation's share/collbench/FOLDER. NULL if there is none.
 * Freed by the caller. */
char *ship_folder(const char *folder);

/* The file the user means by `name`: the path as given (so the working directory counts), the path
 * with `suffix` (".json") added, then FOLDER/name and FOLDER/name+suffix of the shipped folder.
 * NULL if none exists. Freed by the caller. */
char *ship_find(const char *folder, const char *name, const char *suffix);

/* Names (without `suffix`) of the files of the shipped folder that end in `suffix`, sorted, ended
 * by NULL; *count may be NULL. Freed by ship_names_free. */
char **ship_names(const char *folder, const char *suffix, size_t *count);
void ship_names_free(char **names);
