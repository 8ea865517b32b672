/* SPDX-License-Identifier: Apache-2.0
 * The entry points of NCCL that are used, one per line: a list without an include guard, expanded
 * where NCCL_FUNCTION(need, result, name, symbol, parameters) is defined. `need`: MUST, or MAY
 * where older libraries lack it. The names of types are ours (nccl_abi.h); a test gives them the
 * library's own meaning and so compares each line with nccl.h. */

NCCL_FUNCTION(MUST, nccl_result, get_version, ncclGetVersion, (int *version))
NCCL_FUNCTION(MUST, nccl_result, get_unique_id, ncclGetUniqueId, (nccl_id * id))
NCCL_FUNCTION(MUST, nccl_result, comm_init_rank, ncclCommInitRank,
              (nccl_comm * comm, int nranks, nccl_id id, int rank))
NCCL_FUNCTION(MUST, nccl_result, comm_destroy, ncclCommDestroy, (nccl_comm comm))
NCCL_FUNCTION(MUST, nccl_result, comm_abort, ncclCommAbort, (nccl_comm comm))
NCCL_FUNCTION(MUST, nccl_result, comm_error, ncclCommGetAsyncError,
              (nccl_comm comm, nccl_result *error))
NCCL_FUNCTION(MUST, const char *, error_string, ncclGetErrorString, (nccl_result result))
NCCL_FUNCTION(MAY, const char *, last_error, ncclGetLastError, (nccl_comm comm))

NCCL_FUNCTION(MUST, nccl_result, all_reduce, ncclAllReduce,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, nccl_redop op,
               nccl_comm comm, nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, reduce, ncclReduce,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, nccl_redop op,
               int root, nccl_comm comm, nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, broadcast, ncclBroadcast,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, int root,
               nccl_comm comm, nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, all_gather, ncclAllGather,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, nccl_comm comm,
               nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, reduce_scatter, ncclReduceScatter,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, nccl_redop op,
               nccl_comm comm, nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, send, ncclSend,
              (const void *send, size_t count, nccl_dtype dtype, int peer, nccl_comm comm,
               nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, recv, ncclRecv,
              (void *recv, size_t count, nccl_dtype dtype, int peer, nccl_comm comm,
               nccl_stream stream))
NCCL_FUNCTION(MUST, nccl_result, group_start, ncclGroupStart, (void))
NCCL_FUNCTION(MUST, nccl_result, group_end, ncclGroupEnd, (void))

/* from 2.28 on */
NCCL_FUNCTION(MAY, nccl_result, all_to_all, ncclAlltoAll,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, nccl_comm comm,
               nccl_stream stream))
NCCL_FUNCTION(MAY, nccl_result, gather, ncclGather,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, int root,
               nccl_comm comm, nccl_stream stream))
NCCL_FUNCTION(MAY, nccl_result, scatter, ncclScatter,
              (const void *send, void *recv, size_t count, nccl_dtype dtype, int root,
               nccl_comm comm, nccl_stream stream))

/* memory of its own: from 2.19 on; windows: from 2.27 on */
NCCL_FUNCTION(MAY, nccl_result, mem_alloc, ncclMemAlloc, (void **memory, size_t bytes))
NCCL_FUNCTION(MAY, nccl_result, mem_free, ncclMemFree, (void *memory))
NCCL_FUNCTION(MAY, nccl_result, comm_register, ncclCommRegister,
              (nccl_comm comm, void *memory, size_t bytes, void **handle))
NCCL_FUNCTION(MAY, nccl_result, comm_deregister, ncclCommDeregister, (nccl_comm comm, void *handle))
NCCL_FUNCTION(MAY, nccl_result, window_register, ncclCommWindowRegister,
              (nccl_comm comm, void *memory, size_t bytes, nccl_window *window, int flags))
NCCL_FUNCTION(MAY, nccl_result, window_deregister, ncclCommWindowDeregister,
              (nccl_comm comm, nccl_window window))
