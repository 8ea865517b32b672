/* SPDX-License-Identifier: Apache-2.0
 * The two binary interfaces of MPI in use, as tables: MPICH's (also MVAPICH, Intel, Cray: handles
 * are ints with fixed values) and Open MPI's (handles are addresses of symbols). The values of
 * MPICH are compared with its mpi.h by a test. Private to ref/, but for the types of functions.
 *
 * One type per function serves both. Handles and counts are passed as words: on the platforms that
 * Linux runs on with 64 bits (System V x86-64, AAPCS64, RISC-V LP64, ELFv2 POWER) an int argument
 * is the low half of a register or of an eight-byte stack slot of its own, so a callee that expects
 * an int finds it there. */
#pragma once

#include <stdint.h>

#include "kernels/kernels.h"
#include "sched/coll.h"

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
    const char *const *options;   /* behind "-n N"; NULL-terminated */
    const char *const *libraries; /* file names, tried in turn; NULL-terminated */
    /* the library */
    struct mpi_handle world, errors_return, info_null;
    struct mpi_handle dtype[DT_COUNT]; /* value 0 and no symbol: MPI has no such type */
    struct mpi_handle op[OP_COUNT];
    uintptr_t in_place, status_ignore; /* addresses */
};

/* The row of a family. */
const struct mpi_abi *mpi_abi_get(enum mpi_family family);

/* "MPI_Allreduce", "MPI_Iallreduce": the functions of a collective. With "_c" appended they take
 * counts of 64 bits. */
extern const char *const mpi_functions[COLL_COUNT][2];

/* Functions by the shape of their arguments: allreduce and reduce_scatter; allgather and alltoall;
 * broadcast. Those without a request return when done. */
typedef int mpi_reduce_fn(const void *send, void *recv, intptr_t count, uintptr_t dtype,
                          uintptr_t op, uintptr_t comm);
typedef int mpi_ireduce_fn(const void *send, void *recv, intptr_t count, uintptr_t dtype,
                           uintptr_t op, uintptr_t comm, uintptr_t *request);
typedef int mpi_gather_fn(const void *send, intptr_t count, uintptr_t dtype, void *recv,
                          intptr_t recv_count, uintptr_t recv_dtype, uintptr_t comm);
typedef int mpi_igather_fn(const void *send, intptr_t count, uintptr_t dtype, void *recv,
                           intptr_t recv_count, uintptr_t recv_dtype, uintptr_t comm,
                           uintptr_t *request);
typedef int mpi_bcast_fn(void *buffer, intptr_t count, uintptr_t dtype, intptr_t root,
                         uintptr_t comm);
typedef int mpi_ibcast_fn(void *buffer, intptr_t count, uintptr_t dtype, intptr_t root,
                          uintptr_t comm, uintptr_t *request);

/* The two functions of one collective; which member of each is used follows from it. */
struct mpi_calls {
    union {
        void *symbol; /* NULL: the library lacks it */
        mpi_reduce_fn *reduce;
        mpi_gather_fn *gather;
        mpi_bcast_fn *bcast;
    } blocking;
    union {
        void *symbol;
        mpi_ireduce_fn *reduce;
        mpi_igather_fn *gather;
        mpi_ibcast_fn *bcast;
    } started;
};
