/* SPDX-License-Identifier: Apache-2.0
 * A rank's communicator, memory and calls: see nccl.h. */
#include "ref/nccl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ref/nccl_abi.h"

enum { PAGE = 4096 /* windows start and end on whole ones: NCCL_WIN_REQUIRED_ALIGNMENT */ };

struct nccl {
    const struct nccl_library *library;
    const struct gpu *gpu;
    nccl_comm comm;
    uint32_t rank, nranks;
    void *token; /* device memory that a barrier reduces */
    bool broken; /* an error was seen */
};

/* 0 when `code` is success, else the sentence "WHAT fails: ..". `comm` NULL: not of one. */
static int check(struct nccl *nccl, nccl_result code, const char *what, struct err *err)
{
    if (code == NCCL_SUCCESS) return 0;
    const struct nccl_functions *fn = &nccl->library->fn;
    const char *last = fn->last_error ? fn->last_error(nccl->comm) : NULL;
    nccl->broken = true;
    bool said = last && *last;
    return err_add(err, ERR_FAILED, "%s fails: %s%s%.*s%s", what, fn->error_string(code),
                   said ? " (" : "", said ? (int)strcspn(last, "\r\n") : 0, said ? last : "",
                   said ? ")" : "");
}

/* ---- the communicator ----------------------------------------------------------------------- */

/* What ranks that share a device must say before the library looks at it. */
static void set_environment(const struct nccl_spec *spec)
{
    if (spec->several) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    if (!spec->hostid_trick) return;
    char *host = mem_printf("collbench-rank-%u", spec->rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    free(host);
}

/* The number that all ranks meet by: rank 0 makes it. */
static int agree_on_id(struct nccl *nccl, const struct nccl_spec *spec, nccl_id *id,
                       struct err *err)
{
    struct {
        nccl_id id;
        nccl_result code;
    } shared = {.code = NCCL_SUCCESS};
    if (spec->rank == 0) shared.code = nccl->library->fn.get_unique_id(&shared.id);
    spec->share(spec->ctx, &shared, sizeof shared);
    *id = shared.id;
    return check(nccl, shared.code, "ncclGetUniqueId of rank 0", err);
}

struct nccl *nccl_open(const struct nccl_spec *spec, struct err *err)
{
    struct nccl *nccl = mem_calloc(1, sizeof *nccl);
    *nccl = (struct nccl){
        .library = spec->library, .gpu = spec->gpu, .rank = spec->rank, .nranks = spec->nranks};
    set_environment(spec);
    nccl_id id;
    int bad = agree_on_id(nccl, spec, &id, err);
    if (!bad)
        bad = gpu_check(spec->gpu, spec->gpu->use(spec->device), err, "choosing GPU %d",
                        spec->device);
    if (!bad)
        bad = gpu_check(spec->gpu, spec->gpu->alloc(&nccl->token, sizeof(float)), err,
                        "allocating a word for barriers");
    if (!bad)
        bad = check(
            nccl,
            nccl->library->fn.comm_init_rank(&nccl->comm, (int)spec->nranks, id, (int)spec->rank),
            "ncclCommInitRank", err);
    if (!bad) return nccl;
    nccl_close(nccl);
    return NULL;
}

void nccl_close(struct nccl *nccl)
{
    if (!nccl) return;
    const struct nccl_functions *fn = &nccl->library->fn;
    if (nccl->comm && nccl->broken) fn->comm_abort(nccl->comm);
    if (nccl->comm && !nccl->broken) fn->comm_destroy(nccl->comm);
    if (nccl->token) nccl->gpu->free(nccl->token);
    free(nccl);
}

/* ---- memory --------------------------------------------------------------------------------- */

const char *nccl_memory_name(enum nccl_memory kind)
{
    static const char *const names[NCCL_MEMORIES] = {"plain", "registered", "window"};
    return names[kind];
}

static bool has_memory(const struct nccl_functions *fn, enum nccl_memory kind)
{
    bool own = fn->mem_alloc && fn->mem_free;
    const bool has[NCCL_MEMORIES] = {
        [NCCL_REGISTERED] = own && fn->comm_register && fn->comm_deregister,
        [NCCL_WINDOW] = own && fn->window_register && fn->window_deregister,
    };
    return has[kind];
}

int nccl_buffer_new(struct nccl *nccl, enum nccl_memory kind, size_t bytes,
                    struct nccl_buffer *buffer, struct err *err)
{
    assert(kind == NCCL_REGISTERED || kind == NCCL_WINDOW);
    const struct nccl_functions *fn = &nccl->library->fn;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    *buffer = (struct nccl_buffer){.kind = kind, .bytes = bytes};
    if (!has_memory(fn, kind)) return 0;
    if (check(nccl, fn->mem_alloc(&buffer->base, bytes), "ncclMemAlloc", err)) return -1;
    if (kind == NCCL_REGISTERED) {
        return check(nccl, fn->comm_register(nccl->comm, buffer->base, bytes, &buffer->handle),
                     "ncclCommRegister", err);
    }
    nccl_window window = NULL;
    if (check(nccl,
              fn->window_register(nccl->comm, buffer->base, bytes, &window, NCCL_WINDOW_SYMMETRIC),
              "ncclCommWindowRegister", err)) {
        return -1;
    }
    buffer->handle = window;
    if (!window) nccl_buffer_release(nccl, buffer); /* these GPUs cannot have one */
    return 0;
}

void nccl_buffer_release(struct nccl *nccl, struct nccl_buffer *buffer)
{
    if (!buffer->base) return;
    const struct nccl_functions *fn = &nccl->library->fn;
    if (buffer->handle && buffer->kind == NCCL_REGISTERED)
        fn->comm_deregister(nccl->comm, buffer->handle);
    if (buffer->handle && buffer->kind == NCCL_WINDOW)
        fn->window_deregister(nccl->comm, buffer->handle);
    fn->mem_free(buffer->base);
    *buffer = (struct nccl_buffer){0};
}

/* ---- what it has ---------------------------------------------------------------------------- */

static bool is_float(enum dtype dtype)
{
    return dtype == DT_HALF || dtype == DT_FLOAT || dtype == DT_DOUBLE || dtype == DT_BFLOAT16 ||
           dtype == DT_F8E4M3 || dtype == DT_F8E5M2;
}

const char *nccl_lacks(int version, int major, const struct nccl_args *args)
{
    const struct coll *coll = coll_get(args->coll);
    bool eighth = args->dtype == DT_F8E4M3 || args->dtype == DT_F8E5M2;
    if (eighth && version && version < NCCL_NUMBER(2, 24, 0))
        return "NCCL has 8-bit floats from 2.24 on";
    if (eighth && coll->reduces && major && major < 9)
        return "NCCL reduces 8-bit floats on compute capability 9.0 or more alone";
    if (coll->reduces && args->op == OP_AVG && is_float(args->dtype) &&
        (args->nranks & (args->nranks - 1)) != 0) {
        return "NCCL averages by a rounded 1/n that it multiplies the inputs with: unless n is a "
               "power of two the last bits are others";
    }
    if (!args->in_place) return NULL;
    if (coll->empty) return "there is no data that could lie in place";
    if (args->coll == COLL_ALLTOALL || args->coll == COLL_ALLTOALLV ||
        args->coll == COLL_SENDRECV) {
        return "NCCL cannot receive into what it sends";
    }
    return NULL;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* `count` elements between the own buffer at byte `at` and a peer; nothing goes for none (an empty
 * message would still make both wait). */
static nccl_result send_part(const struct nccl_call *c, size_t at, size_t count, uint32_t peer,
                             nccl_stream stream)
{
    const struct nccl *nccl = c->nccl;
    if (count == 0) return NCCL_SUCCESS;
    return nccl->library->fn.send((const char *)c->args.in + at, count, (nccl_dtype)c->args.dtype,
                                  (int)peer, nccl->comm, stream);
}

static nccl_result recv_part(const struct nccl_call *c, size_t at, size_t count, uint32_t peer,
                             nccl_stream stream)
{
    const struct nccl *nccl = c->nccl;
    if (count == 0) return NCCL_SUCCESS;
    return nccl->library->fn.recv((char *)c->args.out + at, count, (nccl_dtype)c->args.dtype,
                                  (int)peer, nccl->comm, stream);
}

/* Block `peer` of the input to each peer in [0, nsend), block `peer` of the output from each in
 * [0, nrecv): the messages of a call that has no function of its own, in one group. */
static nccl_result exchange(const struct nccl_call *c, uint32_t nsend, uint32_t nrecv,
                            nccl_stream stream)
{
    const struct nccl_functions *fn = &c->nccl->library->fn;
    size_t esize = dtype_bytes(c->args.dtype), count = c->args.block_count;
    const size_t *in = c->places[BUF_IN], *out = c->places[BUF_OUT];
    nccl_result rc = fn->group_start(), end;
    for (uint32_t r = 0; !rc && r < nsend; r++) {
        rc = send_part(c, in ? in[r] : r * count * esize, in ? (in[r + 1] - in[r]) / esize : count,
                       r, stream);
    }
    for (uint32_t r = 0; !rc && r < nrecv; r++) {
        rc = recv_part(c, out ? out[r] : r * count * esize,
                       out ? (out[r + 1] - out[r]) / esize : count, r, stream);
    }
    end = fn->group_end();
    return rc ? rc : end;
}

/* Gather, scatter with messages: those between the root and everybody. The root's own block in
 * place stays where it is. */
static nccl_result rooted_exchange(const struct nccl_call *c, bool gather, nccl_stream stream)
{
    const struct nccl_functions *fn = &c->nccl->library->fn;
    const struct nccl_args *a = &c->args;
    size_t bytes = a->block_count * dtype_bytes(a->dtype);
    bool root = c->nccl->rank == a->root;
    nccl_result rc = fn->group_start(), end;
    for (uint32_t r = 0; !rc && root && r < a->nranks; r++) {
        if (a->in_place && r == a->root) continue;
        rc = gather ? recv_part(c, r * bytes, a->block_count, r, stream)
                    : send_part(c, r * bytes, a->block_count, r, stream);
    }
    if (!rc && !(root && a->in_place)) {
        rc = gather ? send_part(c, 0, a->block_count, a->root, stream)
                    : recv_part(c, 0, a->block_count, a->root, stream);
    }
    end = fn->group_end();
    return rc ? rc : end;
}

static nccl_result allreduce(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    return c->nccl->library->fn.all_reduce(a->in, a->out, a->block_count, (nccl_dtype)a->dtype,
                                           (nccl_redop)a->op, c->nccl->comm, stream);
}

static nccl_result allgather(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    return c->nccl->library->fn.all_gather(a->in, a->out, a->block_count, (nccl_dtype)a->dtype,
                                           c->nccl->comm, stream);
}

static nccl_result reduce_scatter(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    return c->nccl->library->fn.reduce_scatter(a->in, a->out, a->block_count, (nccl_dtype)a->dtype,
                                               (nccl_redop)a->op, c->nccl->comm, stream);
}

static nccl_result alltoall(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    const struct nccl_functions *fn = &c->nccl->library->fn;
    if (!fn->all_to_all) return exchange(c, a->nranks, a->nranks, stream);
    return fn->all_to_all(a->in, a->out, a->block_count, (nccl_dtype)a->dtype, c->nccl->comm,
                          stream);
}

static nccl_result broadcast(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    return c->nccl->library->fn.broadcast(a->in, a->out, a->block_count, (nccl_dtype)a->dtype,
                                          (int)a->root, c->nccl->comm, stream);
}

static nccl_result reduce(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    return c->nccl->library->fn.reduce(a->in, a->out, a->block_count, (nccl_dtype)a->dtype,
                                       (nccl_redop)a->op, (int)a->root, c->nccl->comm, stream);
}

static nccl_result gather(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    const struct nccl_functions *fn = &c->nccl->library->fn;
    if (!fn->gather) return rooted_exchange(c, true, stream);
    return fn->gather(a->in, a->out, a->block_count, (nccl_dtype)a->dtype, (int)a->root,
                      c->nccl->comm, stream);
}

static nccl_result scatter(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_args *a = &c->args;
    const struct nccl_functions *fn = &c->nccl->library->fn;
    if (!fn->scatter) return rooted_exchange(c, false, stream);
    return fn->scatter(a->in, a->out, a->block_count, (nccl_dtype)a->dtype, (int)a->root,
                       c->nccl->comm, stream);
}

/* To the next rank, from the one before. */
static nccl_result sendrecv(const struct nccl_call *c, nccl_stream stream)
{
    const struct nccl_functions *fn = &c->nccl->library->fn;
    uint32_t n = c->args.nranks, rank = c->nccl->rank;
    nccl_result rc = fn->group_start(), end;
    if (!rc) rc = send_part(c, 0, c->args.block_count, (rank + 1) % n, stream);
    if (!rc) rc = recv_part(c, 0, c->args.block_count, (rank + n - 1) % n, stream);
    end = fn->group_end();
    return rc ? rc : end;
}

static nccl_result alltoallv(const struct nccl_call *c, nccl_stream stream)
{
    return exchange(c, c->args.nranks, c->args.nranks, stream);
}

static nccl_result barrier(const struct nccl_call *c, nccl_stream stream)
{
    return c->nccl->library->fn.all_reduce(c->nccl->token, c->nccl->token, 1, DT_FLOAT, OP_MAX,
                                           c->nccl->comm, stream);
}

static const char messages[] = "ncclSend/ncclRecv";

/* One row per collective. */
static const struct {
    const char *function;
    nccl_result (*start)(const struct nccl_call *call, nccl_stream stream);
} verbs[COLL_COUNT] = {
    [COLL_ALLREDUCE] = {"ncclAllReduce", allreduce},
    [COLL_ALLGATHER] = {"ncclAllGather", allgather},
    [COLL_REDUCE_SCATTER] = {"ncclReduceScatter", reduce_scatter},
    [COLL_ALLTOALL] = {"ncclAlltoAll", alltoall},
    [COLL_BROADCAST] = {"ncclBroadcast", broadcast},
    [COLL_REDUCE] = {"ncclReduce", reduce},
    [COLL_GATHER] = {"ncclGather", gather},
    [COLL_SCATTER] = {"ncclScatter", scatter},
    [COLL_SENDRECV] = {messages, sendrecv},
    [COLL_ALLTOALLV] = {messages, alltoallv},
    [COLL_BARRIER] = {"ncclAllReduce of one element", barrier},
};

const char *nccl_function(const struct nccl *nccl, enum coll_id coll)
{
    const struct nccl_functions *fn = &nccl->library->fn;
    bool lacking = (coll == COLL_ALLTOALL && !fn->all_to_all) ||
                   (coll == COLL_GATHER && !fn->gather) || (coll == COLL_SCATTER && !fn->scatter);
    return lacking ? messages : verbs[coll].function;
}

void nccl_call_make(struct nccl *nccl, const struct nccl_args *args, struct nccl_call *call)
{
    assert((args->coll == COLL_ALLTOALLV) == (args->traffic != NULL));
    *call = (struct nccl_call){.nccl = nccl, .args = *args};
    call->args.traffic = NULL;
    for (int buf = 0; args->traffic && buf < 2; buf++) {
        call->places[buf] =
            traffic_offsets(args->traffic, (enum buf)buf, nccl->rank, dtype_bytes(args->dtype));
    }
}

void nccl_call_release(struct nccl_call *call)
{
    if (call->graph) call->nccl->gpu->graph_free(call->graph);
    free(call->places[BUF_IN]);
    free(call->places[BUF_OUT]);
    *call = (struct nccl_call){0};
}

static int start(struct nccl_call *call, void *stream, struct err *err)
{
    enum coll_id coll = call->args.coll;
    nccl_result rc = verbs[coll].start(call, stream);
    return check(call->nccl, rc, nccl_function(call->nccl, coll), err);
}

int nccl_call_capture(struct nccl_call *call, void *stream, struct err *err)
{
    const struct gpu *gpu = call->nccl->gpu;
    if (gpu_check(gpu, gpu->capture_begin(stream), err, "capturing a graph")) return -1;
    int bad = start(call, stream, err);
    int end = gpu_check(gpu, gpu->capture_end(stream, &call->graph), err, "capturing a graph");
    return bad || end ? -1 : 0;
}

int nccl_call_start(struct nccl_call *call, void *stream, struct err *err)
{
    const struct gpu *gpu = call->nccl->gpu;
    if (!call->graph) return start(call, stream, err);
    return gpu_check(gpu, gpu->graph_launch(call->graph, stream), err, "launching a graph");
}

int nccl_done(struct nccl *nccl, void *stream, bool *done, struct err *err)
{
    nccl_result error = NCCL_SUCCESS;
    if (gpu_check(nccl->gpu, nccl->gpu->stream_done(stream, done), err, "waiting for NCCL")) {
        nccl->broken = true;
        return -1;
    }
    nccl_result rc = nccl->library->fn.comm_error(nccl->comm, &error); /* aborted: done, too */
    if (error == NCCL_IN_PROGRESS) error = NCCL_SUCCESS;
    return check(nccl, rc ? rc : error, "an operation of NCCL", err);
}
