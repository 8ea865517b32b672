/* SPDX-License-Identifier: Apache-2.0
 * The MPI library as an opponent: its memory and its collectives. How it is found and opened is in
 * exec/mpi.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "exec/mpi.h"
#include "kernels/kernels.h"
#include "sched/coll.h"
#include "sched/traffic.h"

/* ---- a rank's side -------------------------------------------------------------------------- */

struct mpi;

/* Opens the library, see mpi_library_open, and looks its collectives up. NULL with a sentence. */
struct mpi *mpi_open(struct rank *rk, struct err *err);

/* See mpi_library_close; every rank calls it. Accepts NULL. */
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
    enum redop op;                 /* ignored when the collective does not reduce */
    bool in_place;                 /* the buffers overlap as coll_alias says */
    size_t block_count;            /* elements per block, as in exec_spec */
    const struct traffic *traffic; /* alltoallv: .. of each block; else NULL */
    uint32_t root;                 /* ignored when the collective has none */
    bool large;     /* the functions with counts of 64 bits, even where 32 would do */
    void *in, *out; /* own buffers; in place: both, where they start */
};

/* Why MPI cannot do that; NULL when it can. With `mpi` NULL (before the library is open) what
 * depends on the library is not judged: whether it moves more than 2^31 - 1 elements, and whether
 * its maximum and minimum of unsigned integers are right, which mpi_open tries. Types that MPI
 * lacks (half, bfloat16, 8-bit floats) can be moved, as unsigned integers of their width, but not
 * reduced. */
const char *mpi_lacks(const struct mpi *mpi, const struct mpi_args *args);

/* alltoallv: elements per block, and where each block starts. */
enum mpi_list { MPI_SEND_COUNTS, MPI_SEND_PLACES, MPI_RECV_COUNTS, MPI_RECV_PLACES, MPI_LISTS };

/* A call, ready to be made as often as wanted. */
struct mpi_call {
    struct mpi *mpi;
    unsigned verb, kind;    /* rows of the functions */
    bool polled_only;       /* the blocking function would crash */
    const void *send;       /* MPI_IN_PLACE where the own data lie in the result's buffer */
    void *recv;             /* broadcast, sendrecv in place: the buffer */
    void *lists[MPI_LISTS]; /* of ints; for functions with large counts, of 64 bits */
    intptr_t count;
    uintptr_t dtype, op, comm;
    intptr_t root;
    intptr_t to, from; /* sendrecv: the next rank and the one before */
    void *status;      /* that nobody looks at */
};

/* Fills *call; mpi_lacks must have been NULL. `args` with its traffic is not needed any more. Freed
 * with mpi_call_release, which accepts a call of zeros. */
void mpi_call_make(struct mpi *mpi, const struct mpi_args *args, struct mpi_call *call);
void mpi_call_release(struct mpi_call *call);

/* Whether the call can be made in that form: all can in one. Not polled: sendrecv in place with a
 * library older than MPI 4. Not blocking: reduce in place to another rank than 0 with MPICH before
 * 4.1.2, which may crash. */
bool mpi_call_has(const struct mpi_call *call, enum mpi_form form);

/* Where the result starts after the call. It is `out`, but for reduce_scatter in place, where MPI
 * puts the rank's block at the start of the input and not on the rank's own block of it. */
void *mpi_result(const struct mpi_args *args);

/* Makes the call once, in a form that it has. Ticks. An error of MPI ends the rank with a sentence.
 */
void mpi_call_run(struct mpi_call *call, enum mpi_form form);
