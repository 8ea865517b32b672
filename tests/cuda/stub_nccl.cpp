/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for NCCL on the emulation of the CUDA runtime, so that the code that calls NCCL runs
 * in tests: the entry points of ref/nccl_functions.h with NCCL's meaning, and nothing of its speed.
 * It exports `nccl_stub`, by which the product knows that no figure is a result. Every collective
 * is made of whole messages between pairs of ranks and a fold of the plain C reference:
 *
 *     a memory file of rank 0, opened by all through /proc/PID/fd/N
 *     | shared: joined, aborted | members | a pair of counters for (from, to) .. | data of (0, 0)
 * ..
 *
 * Settings: NCCL_STUB_VERSION (22809), NCCL_STUB_FAIL=SYMBOL (that function fails),
 * CUEMU_TIMEOUT_S. Compiled with STUB_OLD it is a library of 2.18, without the functions that came
 * later. */
#include <cuda_runtime.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/narrow.h"
#include "ref/nccl_abi.h"

#define NCCL_FUNCTION(need, result, name, symbol, parameters)                                      \
    extern "C" __attribute__((visibility("default"))) result symbol parameters;
#include "ref/nccl_functions.h"
#undef NCCL_FUNCTION
extern "C" __attribute__((visibility("default"))) const int nccl_stub = 1;

/* The plain C kernels are compiled in, and what they need of kernels.c. */
#define HIDDEN extern "C" __attribute__((visibility("hidden")))
HIDDEN const struct kernels kernels_reference;
HIDDEN float narrow_to_float(enum dtype dtype, uint32_t bits)
{
    return narrow_value(dtype, bits);
}
HIDDEN uint32_t narrow_from_float(enum dtype dtype, float value)
{
    return narrow_bits(dtype, value);
}

namespace
{

enum { CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6 };
enum { TEXT_BYTES = 200, HOST_BYTES = 64, PAGE = 4096, PAIR_SHIFT = 36 /* 64 GiB, sparse */ };

thread_local char last_error[TEXT_BYTES];

nccl_result refuse(nccl_result code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return code;
}

[[noreturn]] void die(const char *text)
{
    fprintf(stderr, "nccl stub: %s\n", text);
    abort();
}

int number(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : otherwise;
}

bool planted(const char *symbol)
{
    const char *text = getenv("NCCL_STUB_FAIL");
    return text && strcmp(text, symbol) == 0;
}

int version()
{
#if defined(STUB_OLD)
    return NCCL_NUMBER(2, 18, 5);
#else
    return number("NCCL_STUB_VERSION", NCCL_NUMBER(2, 28, 9));
#endif
}

/* ---- what the ranks share ------------------------------------------------------------------- */

struct alignas(64) member {
    char host[HOST_BYTES], gpu[32];
};
/* Messages of one rank to another, one at a time. */
struct alignas(64) pair {
    std::atomic<uint64_t> sent, taken;
    uint64_t bytes, what; /* of the message between the two */
};
struct alignas(64) shared {
    std::atomic<uint32_t> joined, aborted;
};

struct identity { /* what is in a unique id */
    pid_t pid;
    int fd;
};

} // namespace

struct ncclComm {
    int rank, n, fd;
    shared *all;
    size_t bytes; /* mapped */
    std::atomic<nccl_result> error;

    member &of(int r)
    {
        return reinterpret_cast<member *>(all + 1)[r];
    }
    size_t number_of(int from, int to) const
    {
        return static_cast<size_t>(from) * static_cast<size_t>(n) + static_cast<size_t>(to);
    }
    pair &between(int from, int to)
    {
        return reinterpret_cast<pair *>(&of(n))[number_of(from, to)];
    }
    off_t data(int from, int to) const
    {
        return static_cast<off_t>(bytes + (number_of(from, to) << PAIR_SHIFT));
    }
};

namespace
{

/* Gives up the core; false once the communicator is aborted. Nobody waits for ever. */
struct patience {
    time_t since = time(nullptr);
    bool wait(ncclComm *comm)
    {
        if (comm->all->aborted.load()) {
            comm->error = REMOTE;
            return false;
        }
        if (time(nullptr) - since > number("CUEMU_TIMEOUT_S", 120)) die("a rank did not come");
        sched_yield();
        return true;
    }
};

/* ---- messages ------------------------------------------------------------------------------- */

struct message {
    bool send;
    int peer;
    char *at;
    size_t bytes;
    uint64_t what; /* must be the same at both ends */
    bool done = false;
};

void transfer(int fd, const message &m, off_t from)
{
    for (size_t moved = 0; moved < m.bytes;) {
        off_t at = from + static_cast<off_t>(moved);
        ssize_t n = m.send ? pwrite(fd, m.at + moved, m.bytes - moved, at)
                           : pread(fd, m.at + moved, m.bytes - moved, at);
        if (n <= 0) die("cannot move data");
        moved += static_cast<size_t>(n);
    }
}

/* Makes the message if it can be made now. */
bool attempt(ncclComm *comm, message &m)
{
    pair &p = m.send ? comm->between(comm->rank, m.peer) : comm->between(m.peer, comm->rank);
    off_t data = m.send ? comm->data(comm->rank, m.peer) : comm->data(m.peer, comm->rank);
    uint64_t sent = p.sent.load(), taken = p.taken.load();
    if (m.send != (sent == taken)) return false;
    if (m.send) {
        transfer(comm->fd, m, data);
        p.bytes = m.bytes;
        p.what = m.what;
        p.sent.store(sent + 1);
    } else {
        if (p.bytes != m.bytes || p.what != m.what) die("two ranks disagree on what they do");
        transfer(comm->fd, m, data);
        p.taken.store(taken + 1);
    }
    return m.done = true;
}

/* All messages, those between the same two in order. False: aborted. */
bool deliver(ncclComm *comm, std::vector<message> &messages)
{
    patience patience;
    for (size_t left = messages.size(); left > 0;) {
        size_t before = left;
        for (size_t i = 0; i < messages.size(); i++) {
            message &m = messages[i];
            bool first = !m.done;
            for (size_t k = 0; first && k < i; k++)
                first =
                    messages[k].done || messages[k].send != m.send || messages[k].peer != m.peer;
            if (first && attempt(comm, m)) left--;
        }
        if (left == before && !patience.wait(comm)) return false;
    }
    return true;
}

/* ---- collectives ---------------------------------------------------------------------------- */

enum verb { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, ALLTOALL, GATHER, SCATTER };

struct work {
    verb what;
    const void *send;
    void *recv;
    size_t count;
    nccl_dtype dtype;
    nccl_redop op;
    int root;
};

size_t width(nccl_dtype dtype)
{
    static const size_t widths[DT_COUNT] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return widths[dtype];
}

/* What both ends of a message must agree on. */
uint64_t sign(const work &w)
{
    uint64_t parts[] = {static_cast<uint64_t>(w.what) + 1, static_cast<uint64_t>(w.dtype),
                        static_cast<uint64_t>(w.op), static_cast<uint64_t>(w.root), w.count};
    uint64_t hash = 0;
    for (uint64_t part : parts)
        hash = hash * 1000003 + part;
    return hash;
}

void copy(void *dst, const void *src, size_t bytes)
{
    if (dst != src && bytes > 0) memcpy(dst, src, bytes);
}

/* Folds the ranks' parts, in order of rank, KERNEL_MAX_IN at a time. */
void fold(const work &w, const std::vector<const void *> &parts)
{
    struct fold f = {};
    f.nout = 1;
    f.out[0] = w.recv;
    f.count = w.count;
    std::vector<char> first(w.count * width(w.dtype));
    for (size_t done = 0; done < parts.size();) {
        f.nin = 0;
        if (done > 0) {
            copy(first.data(), w.recv, first.size());
            f.in[f.nin++] = first.data();
        }
        while (f.nin < KERNEL_MAX_IN && done < parts.size())
            f.in[f.nin++] = parts[done++];
        bool last = done == parts.size();
        f.divisor = last && w.op == OP_AVG ? static_cast<uint32_t>(parts.size()) : 0;
        kernels_reference.fold[w.dtype][w.op](&f);
    }
}

/* Reductions: every rank that ends with a result gets the others' parts of it. */
void reduce(ncclComm *comm, const work &w)
{
    size_t bytes = w.count * width(w.dtype);
    bool scatters = w.what == REDUCE_SCATTER, mine = w.what != REDUCE || comm->rank == w.root;
    size_t stride = scatters ? bytes : 0;
    char *in = static_cast<char *>(const_cast<void *>(w.send));
    std::vector<std::vector<char>> kept(static_cast<size_t>(comm->n));
    std::vector<const void *> parts(static_cast<size_t>(comm->n));
    std::vector<message> messages;
    for (int r = 0; r < comm->n; r++) {
        size_t at = static_cast<size_t>(r);
        parts[at] = in + at * stride;
        if (r == comm->rank) continue;
        if (w.what != REDUCE || r == w.root)
            messages.push_back({true, r, in + at * stride, bytes, sign(w)});
        if (!mine) continue;
        kept[at].resize(bytes);
        parts[at] = kept[at].data();
        messages.push_back({false, r, kept[at].data(), bytes, sign(w)});
    }
    if (deliver(comm, messages) && mine) fold(w, parts);
}

/* The others: which block of `send` goes to whom, and where theirs comes to. */
void move(ncclComm *comm, const work &w)
{
    size_t bytes = w.count * width(w.dtype);
    bool many_in = w.what == ALLTOALL || w.what == SCATTER;
    bool many_out = w.what == ALLTOALL || w.what == GATHER || w.what == ALLGATHER;
    bool rooted_in = w.what == BROADCAST || w.what == SCATTER, rooted_out = w.what == GATHER;
    char *in = static_cast<char *>(const_cast<void *>(w.send)), *out = static_cast<char *>(w.recv);
    std::vector<message> messages;
    for (int r = 0; r < comm->n; r++) {
        size_t at = static_cast<size_t>(r) * bytes;
        bool sends = (!rooted_in || comm->rank == w.root) && (!rooted_out || r == w.root);
        bool receives = (!rooted_in || r == w.root) && (!rooted_out || comm->rank == w.root);
        char *from = in + (many_in ? at : 0), *to = out + (many_out ? at : 0);
        if (r == comm->rank) {
            if (sends && receives) copy(to, from, bytes);
            continue;
        }
        if (sends) messages.push_back({true, r, from, bytes, sign(w)});
        if (receives) messages.push_back({false, r, to, bytes, sign(w)});
    }
    deliver(comm, messages);
}

/* ---- groups --------------------------------------------------------------------------------- */

struct pending {
    ncclComm *comm;
    nccl_stream stream;
    bool collective;
    work what;
    std::vector<message> messages;
};
thread_local int depth;
thread_local std::vector<pending> *queue;

nccl_result push(const pending &p)
{
    cudaError_t error = cuemu_launch(
        dim3(1), dim3(1), 0, p.stream,
        [p]() {
            std::vector<message> messages = p.messages; /* a graph runs it again and again */
            if (p.comm->error != NCCL_SUCCESS) return;
            if (!p.collective) {
                deliver(p.comm, messages);
            } else if (p.what.what == ALLREDUCE || p.what.what == REDUCE ||
                       p.what.what == REDUCE_SCATTER) {
                reduce(p.comm, p.what);
            } else {
                move(p.comm, p.what);
            }
        },
        []() {});
    return error ? refuse(CUDA_ERROR, "Cuda failure '%s'", cudaGetErrorString(error))
                 : NCCL_SUCCESS;
}

nccl_result flush()
{
    nccl_result rc = NCCL_SUCCESS;
    for (const pending &p : *queue)
        rc = rc ? rc : push(p);
    delete queue;
    queue = nullptr;
    return rc;
}

nccl_result add(const pending &p)
{
    if (!queue) queue = new std::vector<pending>;
    bool joins = !p.collective && !queue->empty() && !queue->back().collective &&
                 queue->back().comm == p.comm && queue->back().stream == p.stream;
    if (joins) {
        queue->back().messages.push_back(p.messages[0]);
    } else {
        queue->push_back(p);
    }
    return depth > 0 ? NCCL_SUCCESS : flush();
}

nccl_result check(const char *symbol, ncclComm *comm, nccl_dtype dtype, int peer)
{
    if (planted(symbol)) return refuse(SYSTEM_ERROR, "%s: planted by NCCL_STUB_FAIL", symbol);
    if (!comm) return refuse(INVALID_ARGUMENT, "%s: comm argument is NULL", symbol);
    int ntypes = version() < NCCL_NUMBER(2, 24, 0) ? DT_F8E4M3 : DT_COUNT;
    if (dtype < 0 || dtype >= ntypes)
        return refuse(INVALID_ARGUMENT, "%s: invalid type %d", symbol, dtype);
    if (peer < 0 || peer >= comm->n)
        return refuse(INVALID_ARGUMENT, "%s: invalid root %d", symbol, peer);
    return comm->error;
}

nccl_result collective(const char *symbol, ncclComm *comm, nccl_stream stream, const work &w)
{
    nccl_result rc = check(symbol, comm, w.dtype, w.root);
    if (rc) return rc;
    if (w.op < 0 || w.op >= OP_COUNT)
        return refuse(INVALID_ARGUMENT, "%s: invalid reduction operation %d", symbol, w.op);
    if (w.count == 0) return NCCL_SUCCESS;
    return add({comm, stream, true, w, {}});
}

nccl_result one_message(const char *symbol, ncclComm *comm, nccl_stream stream, nccl_dtype dtype,
                        const message &m)
{
    nccl_result rc = check(symbol, comm, dtype, m.peer);
    if (rc) return rc;
    return add({comm, stream, false, {}, {m}});
}

/* ---- communicators -------------------------------------------------------------------------- */

bool same_gpu(const member &a, const member &b)
{
    return strcmp(a.host, b.host) == 0 && strcmp(a.gpu, b.gpu) == 0;
}

/* NCCL takes one rank per GPU; from 2.30.3 on more, if it is told so. */
nccl_result check_members(ncclComm *comm)
{
    bool more = version() >= NCCL_NUMBER(2, 30, 3) && number("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
    for (int r = 0; r < comm->n; r++) {
        if (more || r == comm->rank || !same_gpu(comm->of(r), comm->of(comm->rank))) continue;
        return refuse(INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on %s",
                      comm->rank, r, comm->of(r).gpu);
    }
    return NCCL_SUCCESS;
}

void describe(member &self)
{
    const char *host = getenv("NCCL_HOSTID");
    int device = 0;
    snprintf(self.host, sizeof self.host, "%s", host ? host : "");
    cudaGetDevice(&device);
    cudaDeviceGetPCIBusId(self.gpu, sizeof self.gpu, device);
}

nccl_result map(ncclComm *comm, const identity &id)
{
    char path[64];
    size_t n = static_cast<size_t>(comm->n);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(id.pid), id.fd);
    comm->fd = open(path, O_RDWR | O_CLOEXEC);
    comm->bytes = sizeof(shared) + n * sizeof(member) + n * n * sizeof(pair);
    comm->bytes = (comm->bytes + PAGE - 1) / PAGE * PAGE;
    off_t whole = static_cast<off_t>(comm->bytes + ((n * n) << PAIR_SHIFT));
    if (comm->fd < 0 || ftruncate(comm->fd, whole))
        return refuse(SYSTEM_ERROR, "cannot open %s", path);
    void *all = mmap(nullptr, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->fd, 0);
    if (all == MAP_FAILED) return refuse(SYSTEM_ERROR, "cannot map %s", path);
    comm->all = static_cast<shared *>(all);
    return NCCL_SUCCESS;
}

void release(ncclComm *comm)
{
    if (comm->all) munmap(comm->all, comm->bytes);
    if (comm->fd >= 0) close(comm->fd);
    delete comm;
}

nccl_result join(ncclComm *comm, const identity &id)
{
    nccl_result rc = map(comm, id);
    if (rc) return rc;
    describe(comm->of(comm->rank));
    comm->all->joined++;
    patience patience;
    while (comm->all->joined < static_cast<uint32_t>(comm->n)) {
        if (!patience.wait(comm)) return refuse(REMOTE, "aborted");
    }
    if (comm->rank == 0 && id.pid == getpid()) close(id.fd); /* all have opened it */
    return check_members(comm);
}

} // namespace

/* ---- the entry points ----------------------------------------------------------------------- */

nccl_result ncclGetVersion(int *result)
{
    *result = version();
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(nccl_result result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(nccl_comm)
{
    return last_error;
}

nccl_result ncclGetUniqueId(nccl_id *id)
{
    if (planted("ncclGetUniqueId")) return refuse(SYSTEM_ERROR, "planted by NCCL_STUB_FAIL");
    identity made = {getpid(), memfd_create("nccl_stub", MFD_CLOEXEC)};
    if (made.fd < 0) return refuse(SYSTEM_ERROR, "memfd_create fails");
    *id = {};
    memcpy(id, &made, sizeof made);
    return NCCL_SUCCESS;
}

nccl_result ncclCommInitRank(nccl_comm *comm, int nranks, nccl_id id, int rank)
{
    int devices = 0;
    identity made;
    memcpy(&made, &id, sizeof made);
    if (planted("ncclCommInitRank")) return refuse(SYSTEM_ERROR, "planted by NCCL_STUB_FAIL");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return refuse(INVALID_ARGUMENT, "rank %d of %d", rank, nranks);
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error) return refuse(CUDA_ERROR, "Cuda failure '%s'", cudaGetErrorString(error));
    ncclComm *made_comm = new ncclComm{rank, nranks, -1, nullptr, 0, {NCCL_SUCCESS}};
    nccl_result rc = join(made_comm, made);
    if (rc) release(made_comm);
    if (!rc) *comm = made_comm;
    return rc;
}

nccl_result ncclCommDestroy(nccl_comm comm)
{
    if (!comm) return refuse(INVALID_ARGUMENT, "comm argument is NULL");
    release(comm);
    return NCCL_SUCCESS;
}

nccl_result ncclCommAbort(nccl_comm comm)
{
    comm->all->aborted = 1;
    cudaDeviceSynchronize();
    return ncclCommDestroy(comm);
}

nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *error)
{
    *error = comm->error;
    return NCCL_SUCCESS;
}

nccl_result ncclAllReduce(const void *send, void *recv, size_t count, nccl_dtype dtype,
                          nccl_redop op, nccl_comm comm, nccl_stream stream)
{
    return collective("ncclAllReduce", comm, stream, {ALLREDUCE, send, recv, count, dtype, op, 0});
}

nccl_result ncclReduce(const void *send, void *recv, size_t count, nccl_dtype dtype, nccl_redop op,
                       int root, nccl_comm comm, nccl_stream stream)
{
    return collective("ncclReduce", comm, stream, {REDUCE, send, recv, count, dtype, op, root});
}

nccl_result ncclBroadcast(const void *send, void *recv, size_t count, nccl_dtype dtype, int root,
                          nccl_comm comm, nccl_stream stream)
{
    return collective("ncclBroadcast", comm, stream,
                      {BROADCAST, send, recv, count, dtype, 0, root});
}

nccl_result ncclAllGather(const void *send, void *recv, size_t count, nccl_dtype dtype,
                          nccl_comm comm, nccl_stream stream)
{
    return collective("ncclAllGather", comm, stream, {ALLGATHER, send, recv, count, dtype, 0, 0});
}

nccl_result ncclReduceScatter(const void *send, void *recv, size_t count, nccl_dtype dtype,
                              nccl_redop op, nccl_comm comm, nccl_stream stream)
{
    return collective("ncclReduceScatter", comm, stream,
                      {REDUCE_SCATTER, send, recv, count, dtype, op, 0});
}

nccl_result ncclSend(const void *send, size_t count, nccl_dtype dtype, int peer, nccl_comm comm,
                     nccl_stream stream)
{
    char *at = static_cast<char *>(const_cast<void *>(send));
    size_t bytes = count * (dtype >= 0 && dtype < DT_COUNT ? width(dtype) : 0);
    return one_message("ncclSend", comm, stream, dtype, {true, peer, at, bytes, 0});
}

nccl_result ncclRecv(void *recv, size_t count, nccl_dtype dtype, int peer, nccl_comm comm,
                     nccl_stream stream)
{
    char *at = static_cast<char *>(recv);
    size_t bytes = count * (dtype >= 0 && dtype < DT_COUNT ? width(dtype) : 0);
    return one_message("ncclRecv", comm, stream, dtype, {false, peer, at, bytes, 0});
}

nccl_result ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

nccl_result ncclGroupEnd(void)
{
    if (depth == 0) return refuse(INVALID_USAGE, "ncclGroupEnd: not in a group call");
    return --depth > 0 || !queue ? NCCL_SUCCESS : flush();
}

#if !defined(STUB_OLD)
nccl_result ncclAlltoAll(const void *send, void *recv, size_t count, nccl_dtype dtype,
                         nccl_comm comm, nccl_stream stream)
{
    if (send == recv && count > 0) return refuse(INVALID_ARGUMENT, "ncclAlltoAll: not in place");
    return collective("ncclAlltoAll", comm, stream, {ALLTOALL, send, recv, count, dtype, 0, 0});
}

nccl_result ncclGather(const void *send, void *recv, size_t count, nccl_dtype dtype, int root,
                       nccl_comm comm, nccl_stream stream)
{
    return collective("ncclGather", comm, stream, {GATHER, send, recv, count, dtype, 0, root});
}

nccl_result ncclScatter(const void *send, void *recv, size_t count, nccl_dtype dtype, int root,
                        nccl_comm comm, nccl_stream stream)
{
    return collective("ncclScatter", comm, stream, {SCATTER, send, recv, count, dtype, 0, root});
}

nccl_result ncclMemAlloc(void **memory, size_t bytes)
{
    cudaError_t error = cudaMalloc(memory, bytes);
    return error ? refuse(CUDA_ERROR, "Cuda failure '%s'", cudaGetErrorString(error))
                 : NCCL_SUCCESS;
}

nccl_result ncclMemFree(void *memory)
{
    cudaError_t error = cudaFree(memory);
    return error ? refuse(CUDA_ERROR, "Cuda failure '%s'", cudaGetErrorString(error))
                 : NCCL_SUCCESS;
}

nccl_result ncclCommRegister(nccl_comm comm, void *memory, size_t, void **handle)
{
    if (planted("ncclCommRegister")) return refuse(SYSTEM_ERROR, "planted by NCCL_STUB_FAIL");
    if (!comm) return refuse(INVALID_ARGUMENT, "comm argument is NULL");
    *handle = memory;
    return NCCL_SUCCESS;
}

nccl_result ncclCommDeregister(nccl_comm comm, void *)
{
    return comm ? NCCL_SUCCESS : refuse(INVALID_ARGUMENT, "comm argument is NULL");
}

nccl_result ncclCommWindowRegister(nccl_comm comm, void *memory, size_t bytes, nccl_window *window,
                                   int)
{
    if (!comm || reinterpret_cast<uintptr_t>(memory) % PAGE || bytes % PAGE)
        return refuse(INVALID_ARGUMENT, "a window starts and ends at multiples of %d", PAGE);
    *window = static_cast<nccl_window>(memory);
    return NCCL_SUCCESS;
}

nccl_result ncclCommWindowDeregister(nccl_comm comm, nccl_window)
{
    return comm ? NCCL_SUCCESS : refuse(INVALID_ARGUMENT, "comm argument is NULL");
}
#endif
