/* SPDX-License-Identifier: Apache-2.0
 * How each collective is called in MPI: which functions it needs, and what they are passed. One row
 * per collective; nothing here knows how a library is opened or waited for. Private to ref/.
 *
 * One type per function serves both binary interfaces (mpi_abi.h). Handles and counts are passed as
 * words: on the platforms that Linux runs on with 64 bits (System V x86-64, AAPCS64, RISC-V LP64,
 * ELFv2 POWER) an int argument is the low half of a register or of an eight-byte stack slot of its
 * own, so a callee that expects an int finds it there. */
#pragma once

#include "ref/mpi.h"

/* The functions with counts of 64 bits have the same names with "_c" behind them. */
enum { MPI_COUNT_INT, MPI_COUNT_LARGE, MPI_COUNT_KINDS };

/* Functions by the shape of their arguments; those that take a request only start. */
typedef int mpi_reduce_all_fn(const void *send, void *recv, intptr_t count, uintptr_t dtype,
                              uintptr_t op, uintptr_t comm);
typedef int mpi_ireduce_all_fn(const void *send, void *recv, intptr_t count, uintptr_t dtype,
                               uintptr_t op, uintptr_t comm, uintptr_t *request);
typedef int mpi_reduce_fn(const void *send, void *recv, intptr_t count, uintptr_t dtype,
                          uintptr_t op, intptr_t root, uintptr_t comm);
typedef int mpi_ireduce_fn(const void *send, void *recv, intptr_t count, uintptr_t dtype,
                           uintptr_t op, intptr_t root, uintptr_t comm, uintptr_t *request);
typedef int mpi_gather_all_fn(const void *send, intptr_t count, uintptr_t dtype, void *recv,
                              intptr_t recv_count, uintptr_t recv_dtype, uintptr_t comm);
typedef int mpi_igather_all_fn(const void *send, intptr_t count, uintptr_t dtype, void *recv,
                               intptr_t recv_count, uintptr_t recv_dtype, uintptr_t comm,
                               uintptr_t *request);
typedef int mpi_gather_fn(const void *send, intptr_t count, uintptr_t dtype, void *recv,
                          intptr_t recv_count, uintptr_t recv_dtype, intptr_t root, uintptr_t comm);
typedef int mpi_igather_fn(const void *send, intptr_t count, uintptr_t dtype, void *recv,
                           intptr_t recv_count, uintptr_t recv_dtype, intptr_t root, uintptr_t comm,
                           uintptr_t *request);
typedef int mpi_bcast_fn(void *buffer, intptr_t count, uintptr_t dtype, intptr_t root,
                         uintptr_t comm);
typedef int mpi_ibcast_fn(void *buffer, intptr_t count, uintptr_t dtype, intptr_t root,
                          uintptr_t comm, uintptr_t *request);
/* Lists have ints; in the functions with large counts, 64 bits. */
typedef int mpi_alltoallv_fn(const void *send, const void *counts, const void *places,
                             uintptr_t dtype, void *recv, const void *recv_counts,
                             const void *recv_places, uintptr_t recv_dtype, uintptr_t comm);
typedef int mpi_ialltoallv_fn(const void *send, const void *counts, const void *places,
                              uintptr_t dtype, void *recv, const void *recv_counts,
                              const void *recv_places, uintptr_t recv_dtype, uintptr_t comm,
                              uintptr_t *request);
typedef int mpi_barrier_fn(uintptr_t comm);
typedef int mpi_ibarrier_fn(uintptr_t comm, uintptr_t *request);
typedef int mpi_sendrecv_fn(const void *send, intptr_t count, uintptr_t dtype, intptr_t to,
                            intptr_t tag, void *recv, intptr_t recv_count, uintptr_t recv_dtype,
                            intptr_t from, intptr_t recv_tag, uintptr_t comm, void *status);
typedef int mpi_replace_fn(void *buffer, intptr_t count, uintptr_t dtype, intptr_t to, intptr_t tag,
                           intptr_t from, intptr_t recv_tag, uintptr_t comm, void *status);
typedef int mpi_ireplace_fn(void *buffer, intptr_t count, uintptr_t dtype, intptr_t to,
                            intptr_t tag, intptr_t from, intptr_t recv_tag, uintptr_t comm,
                            uintptr_t *request);
typedef int mpi_irecv_fn(void *recv, intptr_t count, uintptr_t dtype, intptr_t from, intptr_t tag,
                         uintptr_t comm, uintptr_t *request);
typedef int mpi_isend_fn(const void *send, intptr_t count, uintptr_t dtype, intptr_t to,
                         intptr_t tag, uintptr_t comm, uintptr_t *request);

union mpi_function {
    void *symbol; /* NULL: the library lacks it */
    mpi_reduce_all_fn *reduce_all;
    mpi_ireduce_all_fn *ireduce_all;
    mpi_reduce_fn *reduce;
    mpi_ireduce_fn *ireduce;
    mpi_gather_all_fn *gather_all;
    mpi_igather_all_fn *igather_all;
    mpi_gather_fn *gather;
    mpi_igather_fn *igather;
    mpi_bcast_fn *bcast;
    mpi_ibcast_fn *ibcast;
    mpi_alltoallv_fn *alltoallv;
    mpi_ialltoallv_fn *ialltoallv;
    mpi_barrier_fn *barrier;
    mpi_ibarrier_fn *ibarrier;
    mpi_sendrecv_fn *sendrecv;
    mpi_replace_fn *replace;
    mpi_ireplace_fn *ireplace;
    mpi_irecv_fn *irecv;
    mpi_isend_fn *isend;
};

/* A verb is a collective, or sendrecv in place, which has functions of its own. */
enum { MPI_VERB_REPLACE = COLL_COUNT, MPI_VERBS };

enum { MPI_REQUESTS = 2 }; /* that a call starts at most: one per function */

struct mpi_verb {
    struct mpi_form_of {
        const char *names[MPI_REQUESTS]; /* of the functions; NULL: there are no more */
        /* Makes the call with its functions, or starts it. What they return. */
        int (*call)(const struct mpi_call *call, const union mpi_function *functions,
                    uintptr_t requests[MPI_REQUESTS]);
    } forms[MPI_FORM_COUNT];
};

/* The row of a collective in a placement. */
unsigned mpi_verb_of(enum coll_id coll, bool in_place);
extern const struct mpi_verb mpi_verbs[MPI_VERBS];
