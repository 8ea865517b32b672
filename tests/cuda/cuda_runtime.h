/* SPDX-License-Identifier: Apache-2.0
 * The part of the CUDA runtime that kernels/cuda/ uses, for machines without a GPU: the same .cu
 * files, compiled as C++ against this header, run on CPUs (see emu.h). Numbers are CUDA's; a file
 * that nvcc compiles with the real headers (abi_check.cu) proves it. Nothing here is a model of
 * speed. Settings are environment variables, read once:
 *
 *     CUEMU_DEVICES    devices (4); CUDA_VISIBLE_DEVICES picks and orders them as on real ones
 *     CUEMU_SMS        multiprocessors of each (16), two blocks at a time on each
 *     CUEMU_P2P_GROUP  devices per island with peer access (all in one)
 *     CUEMU_THREADS    most threads of a block that are run: blockDim becomes that (32)
 *     CUEMU_SEED       not 0: the threads of a block take turns in random order
 *     CUEMU_JITTER     at flags, barriers, waits and stream operations: random delays up to so
 *                      many microseconds (0)
 *     CUEMU_MEMORY_MB  memory of each device (4096)
 *     CUEMU_TIMEOUT_S  a device that spins longer without any progress aborts the process (120) */
#pragma once

#define CUEMU 1
#define CUDART_VERSION 13000

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#define CUEMU_ERRORS(X)                                                                            \
    X(cudaSuccess, 0, "no error")                                                                  \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                               \
    X(cudaErrorInitializationError, 3, "initialization error")                                     \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                          \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                    \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime")     \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                       \
    X(cudaErrorDeviceUninitialized, 201, "invalid device context")                                 \
    X(cudaErrorPeerAccessUnsupported, 217,                                                         \
      "peer access is not supported between these two devices")                                    \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                              \
    X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")        \
    X(cudaErrorSymbolNotFound, 500, "named symbol not found")                                      \
    X(cudaErrorNotReady, 600, "device not ready")                                                  \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                    \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                      \
    X(cudaErrorHostMemoryAlreadyRegistered, 712,                                                   \
      "part or all of the requested memory range is already mapped")                               \
    X(cudaErrorHostMemoryNotRegistered, 713,                                                       \
      "pointer does not correspond to a registered memory region")                                 \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                   \
    X(cudaErrorNotSupported, 801, "operation not supported")                                       \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")  \
    X(cudaErrorStreamCaptureInvalidated, 901,                                                      \
      "operation failed due to a previous error during capture")                                   \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define CUEMU_ERROR(name, number, text) name = number,
    CUEMU_ERRORS(CUEMU_ERROR)
#undef CUEMU_ERROR
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess,
    cudaDriverEntryPointSymbolNotFound,
    cudaDriverEntryPointVersionNotSufficent
};
enum { cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum { cudaEnableDefault = 0 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct cudaIpcMemHandle_st {
    char reserved[64];
} cudaIpcMemHandle_t;
struct cudaDeviceProp { /* the first member of the real one */
    char name[256];
};

#define CUEMU_API extern "C" __attribute__((visibility("default")))
CUEMU_API const char *cudaGetErrorName(cudaError_t error);
CUEMU_API const char *cudaGetErrorString(cudaError_t error);
CUEMU_API cudaError_t cudaGetLastError(void);
CUEMU_API cudaError_t cudaPeekAtLastError(void);
CUEMU_API cudaError_t cudaRuntimeGetVersion(int *version);
CUEMU_API cudaError_t cudaDriverGetVersion(int *version);
CUEMU_API cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **function, unsigned version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *status = nullptr);

CUEMU_API cudaError_t cudaGetDeviceCount(int *count);
CUEMU_API cudaError_t cudaSetDevice(int device);
CUEMU_API cudaError_t cudaGetDevice(int *device);
CUEMU_API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
CUEMU_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
CUEMU_API cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device);
CUEMU_API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other);
CUEMU_API cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags);
CUEMU_API cudaError_t cudaDeviceSynchronize(void);
CUEMU_API cudaError_t cudaMemGetInfo(size_t *free, size_t *total);

CUEMU_API cudaError_t cudaMalloc(void **memory, size_t bytes);
CUEMU_API cudaError_t cudaFree(void *memory);
CUEMU_API cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
CUEMU_API cudaError_t cudaFreeHost(void *memory);
CUEMU_API cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
CUEMU_API cudaError_t cudaHostUnregister(void *memory);
CUEMU_API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
CUEMU_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory);
CUEMU_API cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle,
                                           unsigned flags);
CUEMU_API cudaError_t cudaIpcCloseMemHandle(void *memory);

CUEMU_API cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes,
                                 enum cudaMemcpyKind kind);
CUEMU_API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                                      enum cudaMemcpyKind kind, cudaStream_t stream = nullptr);
CUEMU_API cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                          int src_device, size_t bytes,
                                          cudaStream_t stream = nullptr);
CUEMU_API cudaError_t cudaMemset(void *dst, int byte, size_t bytes);
CUEMU_API cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes,
                                      cudaStream_t stream = nullptr);

CUEMU_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
CUEMU_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
CUEMU_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
CUEMU_API cudaError_t cudaStreamQuery(cudaStream_t stream);
CUEMU_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                          unsigned flags = 0);
CUEMU_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
CUEMU_API cudaError_t cudaEventDestroy(cudaEvent_t event);
CUEMU_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
CUEMU_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
CUEMU_API cudaError_t cudaEventQuery(cudaEvent_t event);
CUEMU_API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

CUEMU_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
CUEMU_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
CUEMU_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                           unsigned long long flags = 0);
CUEMU_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
CUEMU_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
CUEMU_API cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* Not CUDA's: the bytes that ld_data and st_data have moved in this process since the last call. */
CUEMU_API void cuemu_moved(uint64_t *read, uint64_t *written);

/* ---- device code ---------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local /* a block is one thread of the host, see emu.h */
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
    return {x, y};
}

/* The thread that runs, and its block. Both change only between the turns of threads. */
struct cuemu_thread {
    uint3 index;
    uint64_t read, written; /* bytes of data so far */
};
struct cuemu_block {
    uint3 index, blocks, threads;
};
#define CUEMU_TLS extern __thread __attribute__((visibility("default"), tls_model("initial-exec")))
CUEMU_TLS struct cuemu_thread *cuemu_thread;
CUEMU_TLS struct cuemu_block cuemu_block;
#define threadIdx (cuemu_thread->index)
#define blockIdx (cuemu_block.index)
#define blockDim (cuemu_block.threads)
#define gridDim (cuemu_block.blocks)

/* Memory that the device has been found to reach, by a few bits of the address; empty at the start
 * of a block. */
struct cuemu_range {
    uintptr_t from, to;
};
enum { CUEMU_RANGES = 16 };
CUEMU_TLS struct cuemu_range cuemu_ranges[CUEMU_RANGES];

/* Dies unless device memory or pinned host memory lies there, within reach of the device that runs
 * this, and the address is a multiple of `bytes`, a power of two. */
CUEMU_API void cuemu_look(const void *address, size_t bytes);
static inline void cuemu_check(const void *address, size_t bytes)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    const struct cuemu_range &range = cuemu_ranges[(at >> 20 ^ at >> 12) % CUEMU_RANGES];
    if (at < range.from || at + bytes > range.to || at % bytes) cuemu_look(address, bytes);
}

/* A barrier of the block, named by its place in the source: all threads must stand at the same
 * one. Returns whether `vote` was not 0 for any of them. */
CUEMU_API int cuemu_barrier(const char *file, int line, int vote);
/* Called in every turn of a loop that waits for others. */
CUEMU_API void cuemu_spin(void);
/* Called before and after a store that others wait for: CUEMU_JITTER. */
CUEMU_API void cuemu_jitter(void);
/* Called for each 16-byte line that is read and may have just been written: see st_ll. */
CUEMU_API void cuemu_saw(const uint64_t *line);

#define __syncthreads() ((void)cuemu_barrier(__FILE__, __LINE__, 0))
#define __syncthreads_or(vote) cuemu_barrier(__FILE__, __LINE__, (vote))

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __nanosleep(unsigned)
{
    cuemu_spin();
}

/* Read-modify-write, relaxed as on a GPU; the _system twins are the same here. */
template <class T> static inline T atomicAdd(T *address, T value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicOr(T *address, T value)
{
    return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicExch(T *address, T value)
{
    return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicCAS(T *address, T expected, T value)
{
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return expected;
}
template <class T> static inline T atomicMin(T *address, T value)
{
    T old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T> static inline T atomicAdd_system(T *address, T value)
{
    return atomicAdd(address, value);
}
template <class T> static inline T atomicMin_system(T *address, T value)
{
    return atomicMin(address, value);
}

template <class To, class From> static inline To cuemu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float value)
{
    return cuemu_bits<unsigned>(value);
}
static inline float __uint_as_float(unsigned bits)
{
    return cuemu_bits<float>(bits);
}
static inline long long __double_as_longlong(double value)
{
    return cuemu_bits<long long>(value);
}
static inline double __longlong_as_double(long long bits)
{
    return cuemu_bits<double>(bits);
}

/* kernel<<<grid, block, shared, stream>>>(..): arguments are converted and kept at the call.
 * `touch` is called by the host thread that will run a block: the thread_locals of a module that
 * was opened are made when the first of them is used, and to the thread sanitizer a fiber that did
 * so would have no order to the others. */
__attribute__((visibility("default"))) cudaError_t cuemu_launch(dim3 grid, dim3 block,
                                                                size_t shared, cudaStream_t stream,
                                                                std::function<void()> body,
                                                                void (*touch)());
static thread_local volatile char cuemu_touched;
template <class... P, class... A>
static inline cudaError_t cuemu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                       cudaStream_t stream, A &&...arguments)
{
    std::tuple<P...> kept(std::forward<A>(arguments)...);
    return cuemu_launch(
        grid, block, shared, stream, [kernel, kept]() { std::apply(kernel, kept); },
        []() { cuemu_touched = 1; });
}

CUEMU_API cudaError_t cuemu_occupancy(int *blocks, int threads, size_t shared);
template <class F>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F, int threads,
                                                                        size_t shared)
{
    return cuemu_occupancy(blocks, threads, shared);
}
