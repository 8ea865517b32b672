/* SPDX-License-Identifier: Apache-2.0
 * The MPI library, opened at run time, for the transport `mpi` (mpi_wire.c) and for who compares
 * with its collectives (ref/mpi.h). The launcher's side finds mpiexec and says how to start ranks
 * under it; a rank's side opens the library that belongs to it. Nothing of MPI is needed to build:
 * see mpi_abi.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "exec/mpi_abi.h"
#include "exec/world.h"

/* ---- the launcher's side -------------------------------------------------------------------- */

/* How to start ranks: for struct launch_spec. */
struct mpi_setup {
    char **words;              /* launch_spec.wrapper */
    const char *rank_variable; /* launch_spec.rank_variable */
    char **env;                /* launch_spec.env; tells mpi_library_open what it needs, too */
    char *text;                /* one line for headers: what was found, and how it is set up */
};

/* Looks for mpiexec (NULL: in PATH, then mpirun; else that file), asks it which MPI it belongs to,
 * and fills *setup for `nranks` ranks on this host; mpi_find_spread: on several. Nobody's mpiexec,
 * none, or one that cannot do that: a sentence (ERR_USAGE) and -1. */
int mpi_find(struct mpi_setup *setup, const char *mpiexec, uint32_t nranks, struct err *err);
int mpi_find_spread(struct mpi_setup *setup, const char *mpiexec, uint32_t nranks, struct err *err);
void mpi_setup_release(struct mpi_setup *setup);

/* Why there is no MPI, for listings; NULL when there is an mpiexec in PATH, or this process was
 * started by one. */
const char *mpi_absent(void);

/* ---- a rank's side -------------------------------------------------------------------------- */

/* Functions of the library that all its users need. */
struct mpi_base {
    int (*init)(int *argc, char ***argv);
    int (*finalize)(void);
    int (*rank)(uintptr_t comm, int *rank);
    int (*size)(uintptr_t comm, int *size);
    int (*set_errhandler)(uintptr_t comm, uintptr_t handler);
    int (*error_text)(int code, char *text, int *length);
    int (*version_text)(char *text, int *length);
    int (*test)(uintptr_t *request, int *done, void *status);
    int (*probe)(intptr_t from, intptr_t tag, uintptr_t comm, int *there, void *status);
};

/* The library as a rank has it open. */
struct mpi_library {
    struct rank *rk;
    const struct mpi_abi *abi;
    void *library; /* of dlopen */
    struct mpi_base fn;
    uintptr_t world;     /* communicator of all ranks */
    void *status_ignore; /* statuses, too */
    char *version;       /* what it calls itself, one line, e.g. "MPICH Version: 4.0.2" */
    bool initialised;
    uint32_t users;
};

/* Opens the library that mpi_find chose and initialises it, or takes it once more where `rk` has it
 * open: MPI can be initialised only once in a process. Its errors are returned from then on. The
 * world's rank and size must be those of `rk`, which must outlive it. NULL with a sentence. */
struct mpi_library *mpi_library_open(struct rank *rk, struct err *err);

/* The last of the users finalises, and every rank must do so; over several hosts the library stays
 * open, and ranks leave so (see library_free). Accepts NULL. */
void mpi_library_close(struct mpi_library *mpi);

/* Looks functions up into a struct of pointers. One that is missing: a sentence and -1. */
struct mpi_name {
    const char *name;
    size_t offset; /* in the struct */
};
int mpi_library_find(const struct mpi_library *mpi, const struct mpi_name *names, size_t count,
                     void *functions, struct err *err);

/* A handle of the tables; 0: the library lacks it. */
uintptr_t mpi_library_handle(const struct mpi_library *mpi, const struct mpi_handle *row);

/* Adds "WHAT fails: " and what the library says about the error code. -1. */
int mpi_library_error(const struct mpi_library *mpi, int code, const char *what, struct err *err);
