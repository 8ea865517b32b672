/* SPDX-License-Identifier: Apache-2.0
 * The MPI library as an opponent, opened at run time. The launcher's side finds mpiexec and says
 * how to start ranks under it; a rank's side opens the library that belongs to it, and makes calls.
 * Nothing of MPI is needed to build: see mpi_abi.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "exec/world.h"
#include "kernels/kernels.h"
#include "ref/mpi_abi.h"
#include "sched/coll.h"

/* ---- the launcher's side -------------------------------------------------------------------- */

/* How to start ranks: for struct launch_spec. */
struct mpi_setup {
    char **words;              /* launch_spec.wrapper */
    const char *rank_variable; /* launch_spec.rank_variable */
    char **env;                /* launch_spec.env; tells mpi_open what it needs, too */
    char *text;                /* one line for headers: what was found, and how it is set up */
};

/* Looks for mpiexec (NULL: in PATH, then mpirun; else that file), asks it which MPI it belongs to,
 * and fills *setup for `nranks` ranks. Nobody's mpiexec, or none: a sentence (ERR_USAGE) and -1. */
int mpi_find(struct mpi_setup *setup, const char *mpiexec, uint32_t nranks, struct err *err);
void mpi_setup_release(struct mpi_setup *setup);

/* Why there is no MPI, for listings; NULL when there is an mpiexec in PATH. */
const char *mpi_absent(void);

/* ---- a rank's side -------------------------------------------------------------------------- */

struct mpi;

/* Opens the library that mpi_find chose and initialises it. The world's rank and size must be
 * those of `rk`. NULL with a sentence. Only once per process, and `rk` must outlive it. */
struct mpi *mpi_open(struct rank *rk, struct err *err);

/* Finalises and frees; every rank calls it. Accepts NULL. */
void mpi_close(struct mpi *mpi);

/* What the library calls itself, one line, e.g. "MPICH Version: 4.0.2". */
const char *mpi_version(const struct mpi *mpi);

/* Memory as the library likes it best (MPI_Alloc_mem). NULL with a sentence. */
void *mpi_memory(struct mpi *mpi, size_t bytes, struct err *err);
void mpi_memory_free(struct mpi *mpi, void *memory);

/* ---- calls ---------------------------------------------------------------------------------- */

/* Blocking: as everybody calls it. Polled: the non-blocking call, then MPI_Test until it is done,
 * giving up the core after 64 misses, or at once when there are more ranks than cores. */
enum mpi_form { MPI_FORM_BLOCKING, MPI_FORM_POLLED, MPI_FORM_COUNT };
const char *mpi_form_name(enum mpi_form form);

struct mpi_args {
    enum coll_id coll;
    enum dtype dtype;
    enum redop op;      /* ignored when the collective does not reduce */
    bool in_place;      /* the buffers overlap as coll_alias says */
    size_t block_count; /* elements per block, as in exec_spec */
    uint32_t root;      /* ignored when the collective has none */
    bool large;         /* the functions with counts of 64 bits, even where 32 would do */
    void *in, *out;     /* own buffers; in place: both, where they start */
};

/* Why MPI cannot do that; NULL when it can. With `mpi` NULL (before the library is open) the count
 * is not judged: whether more than 2^31 - 1 elements go depends on the library. */
const char *mpi_lacks(const struct mpi *mpi, const struct mpi_args *args);

/* A call, ready to be made as often as wanted. */
struct mpi_call {
    struct mpi *mpi;
    enum coll_id coll;
    const struct mpi_calls *calls; /* functions for this size of count */
    const void *send;
    void *recv; /* broadcast: the buffer */
    intptr_t count;
    uintptr_t dtype, op;
    intptr_t root;
};

/* Fills *call. mpi_lacks must have been NULL. */
void mpi_call_make(struct mpi *mpi, const struct mpi_args *args, struct mpi_call *call);

/* Where the result starts after the call. It is `out`, but for reduce_scatter in place, where MPI
 * puts the rank's block at the start of the input and not on the rank's own block of it. */
void *mpi_result(const struct mpi_args *args);

/* Makes the call once. Ticks. An error of MPI ends the rank with a sentence. */
void mpi_call_run(struct mpi_call *call, enum mpi_form form);
