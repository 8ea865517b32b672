/* SPDX-License-Identifier: Apache-2.0
 * The two binary interfaces of MPI in use, as tables: MPICH's (also MVAPICH, Intel, Cray: handles
 * are ints with fixed values) and Open MPI's (handles are addresses of symbols). The values of
 * MPICH are compared with its mpi.h by a test. Private to exec/ and ref/. */
#pragma once

#include <stdint.h>

#include "kernels/kernels.h"

enum mpi_family { MPI_MPICH, MPI_OPEN, MPI_FAMILIES };

/* A handle: a fixed value, or the address of a symbol. */
struct mpi_handle {
    uintptr_t value;
    const char *symbol; /* NULL: the value stands */
};

struct mpi_abi {
    const char *name;
    /* the launcher */
    const char *sign;          /* in what `mpiexec --version` prints */
    const char *version_after; /* the version number stands behind it */
    const char *rank_variable;
    const char *const *options; /* behind "-n N"; NULL-terminated */
    const char *const *spread;  /* the same over several hosts: see launch_hydra.c; NULL: cannot */
    const char *const *libraries; /* file names, tried in turn; NULL-terminated */
    /* the library */
    struct mpi_handle world, errors_return, info_null, request_null;
    struct mpi_handle dtype[DT_COUNT]; /* value 0 and no symbol: MPI has no such type */
    struct mpi_handle bits8, bits16;   /* integers to move elements of types that MPI lacks with */
    struct mpi_handle op[OP_COUNT];
    uintptr_t in_place, status_ignore;  /* addresses */
    intptr_t tag_ub;                    /* the attribute that says which tags there are */
    size_t request_bytes, status_bytes; /* in arrays */
    size_t status_error;                /* where an int in a status says the error */
};

/* The row of a family. */
const struct mpi_abi *mpi_abi_get(enum mpi_family family);
