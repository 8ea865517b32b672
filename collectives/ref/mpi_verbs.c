/* SPDX-License-Identifier: Apache-2.0
 * The calls of MPI, one pair of functions for each shape of arguments, and the table that says
 * which collective has which: see mpi_verbs.h. */
#include "ref/mpi_verbs.h"

enum { TAG = 1 }; /* of messages between two ranks */

typedef const union mpi_function functions;

static int reduce_all(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->reduce_all(c->send, c->recv, c->count, c->dtype, c->op, c->comm);
}

static int ireduce_all(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->ireduce_all(c->send, c->recv, c->count, c->dtype, c->op, c->comm, requests);
}

static int reduce(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->reduce(c->send, c->recv, c->count, c->dtype, c->op, c->root, c->comm);
}

static int ireduce(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->ireduce(c->send, c->recv, c->count, c->dtype, c->op, c->root, c->comm, requests);
}

static int gather_all(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->gather_all(c->send, c->count, c->dtype, c->recv, c->count, c->dtype, c->comm);
}

static int igather_all(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->igather_all(c->send, c->count, c->dtype, c->recv, c->count, c->dtype, c->comm,
                          requests);
}

static int gather(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->gather(c->send, c->count, c->dtype, c->recv, c->count, c->dtype, c->root, c->comm);
}

static int igather(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->igather(c->send, c->count, c->dtype, c->recv, c->count, c->dtype, c->root, c->comm,
                      requests);
}

static int bcast(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->bcast(c->recv, c->count, c->dtype, c->root, c->comm);
}

static int ibcast(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->ibcast(c->recv, c->count, c->dtype, c->root, c->comm, requests);
}

static int alltoallv(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->alltoallv(c->send, c->lists[MPI_SEND_COUNTS], c->lists[MPI_SEND_PLACES], c->dtype,
                        c->recv, c->lists[MPI_RECV_COUNTS], c->lists[MPI_RECV_PLACES], c->dtype,
                        c->comm);
}

static int ialltoallv(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->ialltoallv(c->send, c->lists[MPI_SEND_COUNTS], c->lists[MPI_SEND_PLACES], c->dtype,
                         c->recv, c->lists[MPI_RECV_COUNTS], c->lists[MPI_RECV_PLACES], c->dtype,
                         c->comm, requests);
}

static int barrier(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->barrier(c->comm);
}

static int ibarrier(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->ibarrier(c->comm, requests);
}

static int sendrecv(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->sendrecv(c->send, c->count, c->dtype, c->to, TAG, c->recv, c->count, c->dtype,
                       c->from, TAG, c->comm, c->status);
}

/* First the place for what comes, then what goes. */
static int isend_irecv(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    int rc = f[0].irecv(c->recv, c->count, c->dtype, c->from, TAG, c->comm, &requests[0]);
    if (rc) return rc;
    return f[1].isend(c->send, c->count, c->dtype, c->to, TAG, c->comm, &requests[1]);
}

static int replace(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    (void)requests;
    return f->replace(c->recv, c->count, c->dtype, c->to, TAG, c->from, TAG, c->comm, c->status);
}

static int ireplace(const struct mpi_call *c, functions *f, uintptr_t *requests)
{
    return f->ireplace(c->recv, c->count, c->dtype, c->to, TAG, c->from, TAG, c->comm, requests);
}

const struct mpi_verb mpi_verbs[MPI_VERBS] = {
    [COLL_ALLREDUCE] = {{{{"MPI_Allreduce"}, reduce_all}, {{"MPI_Iallreduce"}, ireduce_all}}},
    [COLL_ALLGATHER] = {{{{"MPI_Allgather"}, gather_all}, {{"MPI_Iallgather"}, igather_all}}},
    [COLL_REDUCE_SCATTER] = {{{{"MPI_Reduce_scatter_block"}, reduce_all},
                              {{"MPI_Ireduce_scatter_block"}, ireduce_all}}},
    [COLL_ALLTOALL] = {{{{"MPI_Alltoall"}, gather_all}, {{"MPI_Ialltoall"}, igather_all}}},
    [COLL_BROADCAST] = {{{{"MPI_Bcast"}, bcast}, {{"MPI_Ibcast"}, ibcast}}},
    [COLL_REDUCE] = {{{{"MPI_Reduce"}, reduce}, {{"MPI_Ireduce"}, ireduce}}},
    [COLL_GATHER] = {{{{"MPI_Gather"}, gather}, {{"MPI_Igather"}, igather}}},
    [COLL_SCATTER] = {{{{"MPI_Scatter"}, gather}, {{"MPI_Iscatter"}, igather}}},
    [COLL_SENDRECV] = {{{{"MPI_Sendrecv"}, sendrecv}, {{"MPI_Irecv", "MPI_Isend"}, isend_irecv}}},
    [COLL_ALLTOALLV] = {{{{"MPI_Alltoallv"}, alltoallv}, {{"MPI_Ialltoallv"}, ialltoallv}}},
    [COLL_BARRIER] = {{{{"MPI_Barrier"}, barrier}, {{"MPI_Ibarrier"}, ibarrier}}},
    [MPI_VERB_REPLACE] = {{{{"MPI_Sendrecv_replace"}, replace},
                           {{"MPI_Isendrecv_replace"}, ireplace}}},
};

unsigned mpi_verb_of(enum coll_id coll, bool in_place)
{
    return coll == COLL_SENDRECV && in_place ? (unsigned)MPI_VERB_REPLACE : (unsigned)coll;
}
