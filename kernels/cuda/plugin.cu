/* SPDX-License-Identifier: Apache-2.0
 * The plug-in's one exported function: the table of kernels/gpu.h, filled with calls of the CUDA
 * runtime and with the kernels of this folder. Built by nvcc with the runtime inside, so that it
 * loads where there is no driver; and by a C++ compiler on the emulation of tests/cuda/. */
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <stdio.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/prims.cuh"

static cudaStream_t to_stream(void *stream)
{
    return static_cast<cudaStream_t>(stream);
}

static cudaEvent_t to_event(void *event)
{
    return static_cast<cudaEvent_t>(event);
}

/* 0 when the error is none or `fine`, which is then forgotten. */
static int but_for(cudaError_t error, cudaError_t fine)
{
    if (error != fine) return error;
    (void)cudaGetLastError();
    return 0;
}

/* ---- errors, versions, devices -------------------------------------------------------------- */

static const char *plugin_error_name(int error)
{
    return cudaGetErrorName(static_cast<cudaError_t>(error));
}

static const char *plugin_error_text(int error)
{
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

static int plugin_last_error(void)
{
    return cudaGetLastError();
}

static int plugin_versions(int *runtime, int *driver)
{
    cudaError_t error = cudaRuntimeGetVersion(runtime);
    return error != cudaSuccess ? error : cudaDriverGetVersion(driver);
}

static int plugin_count(int *devices)
{
    int found = 0; /* an error leaves it as it is */
    cudaError_t error = cudaGetDeviceCount(&found);
    *devices = error == cudaSuccess ? found : 0;
    (void)cudaGetLastError(); /* no device is an answer, not a failure of what comes next */
    return error;
}

static int plugin_use(int device)
{
    return cudaSetDevice(device);
}

/* What needs no context of the device. */
static cudaError_t describe(int device, struct gpu_info *info)
{
    struct cudaDeviceProp properties;
    int sms = 0;
    cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error == cudaSuccess) error = cudaDeviceGetPCIBusId(info->pci, sizeof info->pci, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&info->major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&info->minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    snprintf(info->name, sizeof info->name, "%.127s", properties.name);
    info->sms = (uint32_t)sms;
    return cudaSuccess;
}

static int plugin_info(int device, struct gpu_info *info)
{
    int before = 0;
    *info = {};
    cudaError_t error = describe(device, info);
    if (error == cudaSuccess) error = cudaGetDevice(&before);
    if (error == cudaSuccess) error = cudaSetDevice(device);
    if (error != cudaSuccess) return error;
    error = cudaMemGetInfo(&info->free_bytes, &info->bytes);
    cudaError_t back = cudaSetDevice(before);
    return error != cudaSuccess ? error : back;
}

static int plugin_can_peer(int device, int other, bool *can)
{
    int yes = 0;
    cudaError_t error = cudaSuccess;
    if (device != other) error = cudaDeviceCanAccessPeer(&yes, device, other);
    *can = error == cudaSuccess && yes;
    return error;
}

static int plugin_enable_peer(int other)
{
    return but_for(cudaDeviceEnablePeerAccess(other, 0), cudaErrorPeerAccessAlreadyEnabled);
}

/* ---- memory --------------------------------------------------------------------------------- */

static int plugin_alloc(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes);
}

static int plugin_free(void *memory)
{
    return cudaFree(memory);
}

static int plugin_host_alloc(void **memory, size_t bytes)
{
    return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}

static int plugin_host_free(void *memory)
{
    return cudaFreeHost(memory);
}

static int plugin_host_register(void *memory, size_t bytes)
{
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    return but_for(cudaHostRegister(memory, bytes, flags), cudaErrorHostMemoryAlreadyRegistered);
}

static int plugin_host_unregister(void *memory)
{
    return cudaHostUnregister(memory);
}

static int plugin_host_device(void *memory, void **device)
{
    return cudaHostGetDevicePointer(device, memory, 0);
}

static int plugin_ipc_get(void *memory, uint8_t handle[GPU_HANDLE_BYTES])
{
    static_assert(sizeof(cudaIpcMemHandle_t) == GPU_HANDLE_BYTES, "a handle is copied whole");
    cudaIpcMemHandle_t filled;
    cudaError_t error = cudaIpcGetMemHandle(&filled, memory);
    if (error == cudaSuccess) memcpy(handle, &filled, sizeof filled);
    return error;
}

static int plugin_ipc_open(const uint8_t handle[GPU_HANDLE_BYTES], void **memory)
{
    cudaIpcMemHandle_t filled;
    memcpy(&filled, handle, sizeof filled);
    return cudaIpcOpenMemHandle(memory, filled, cudaIpcMemLazyEnablePeerAccess);
}

static int plugin_ipc_close(void *memory)
{
    return cudaIpcCloseMemHandle(memory);
}

/* ---- copies --------------------------------------------------------------------------------- */

/* cudaMemcpy alone returns before a copy from device to device is over. */
static int plugin_copy(void *dst, const void *src, size_t bytes)
{
    cudaError_t error = cudaMemcpy(dst, src, bytes, cudaMemcpyDefault);
    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

static int plugin_copy_async(void *dst, const void *src, size_t bytes, void *stream)
{
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, to_stream(stream));
}

static int plugin_copy_peer(void *dst, int dst_device, const void *src, int src_device,
                            size_t bytes, void *stream)
{
    return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, bytes, to_stream(stream));
}

static int plugin_set_async(void *dst, int byte, size_t bytes, void *stream)
{
    return cudaMemsetAsync(dst, byte, bytes, to_stream(stream));
}

/* ---- streams and events --------------------------------------------------------------------- */

static int plugin_stream_new(void **stream)
{
    cudaStream_t made = nullptr; /* does not wait for the default stream, nor that for it */
    cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    *stream = made;
    return error;
}

static int plugin_stream_free(void *stream)
{
    return stream ? cudaStreamDestroy(to_stream(stream)) : cudaSuccess;
}

static int plugin_stream_sync(void *stream)
{
    return cudaStreamSynchronize(to_stream(stream));
}

static int plugin_stream_done(void *stream, bool *done)
{
    cudaError_t error = cudaStreamQuery(to_stream(stream));
    *done = error == cudaSuccess;
    return but_for(error, cudaErrorNotReady);
}

/* A call of the driver, by the name and type that it has had since CUDA 11.7; NULL: not there. */
static void *driver_call(const char *name)
{
    void *call = nullptr;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &call, 11070, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &call, cudaEnableDefault, &found);
#endif
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? call : nullptr;
}

/* The driver numbers its errors as the runtime does. */
static int plugin_stream_wait(void *stream, const uint64_t *word, uint64_t least)
{
    static const PFN_cuStreamWaitValue64_v11070 wait =
        reinterpret_cast<PFN_cuStreamWaitValue64_v11070>(driver_call("cuStreamWaitValue64"));
    if (!wait) return cudaErrorNotSupported;
    return wait(to_stream(stream), reinterpret_cast<CUdeviceptr>(word), least,
                CU_STREAM_WAIT_VALUE_GEQ);
}

static int plugin_stream_write(void *stream, uint64_t *word, uint64_t value)
{
    static const PFN_cuStreamWriteValue64_v11070 write =
        reinterpret_cast<PFN_cuStreamWriteValue64_v11070>(driver_call("cuStreamWriteValue64"));
    if (!write) return cudaErrorNotSupported;
    return write(to_stream(stream), reinterpret_cast<CUdeviceptr>(word), value,
                 CU_STREAM_WRITE_VALUE_DEFAULT);
}

static int plugin_event_new(void **event)
{
    cudaEvent_t made = nullptr;
    cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDefault);
    *event = made;
    return error;
}

static int plugin_event_free(void *event)
{
    return event ? cudaEventDestroy(to_event(event)) : cudaSuccess;
}

static int plugin_event_record(void *event, void *stream)
{
    return cudaEventRecord(to_event(event), to_stream(stream));
}

static int plugin_event_done(void *event, bool *done)
{
    cudaError_t error = cudaEventQuery(to_event(event));
    *done = error == cudaSuccess;
    return but_for(error, cudaErrorNotReady);
}

static int plugin_event_ms(void *from, void *to, float *ms)
{
    return cudaEventElapsedTime(ms, to_event(from), to_event(to));
}

static int plugin_stream_after(void *stream, void *event)
{
    return cudaStreamWaitEvent(to_stream(stream), to_event(event), 0);
}

/* ---- graphs --------------------------------------------------------------------------------- */

static int plugin_capture_begin(void *stream)
{
    return cudaStreamBeginCapture(to_stream(stream), cudaStreamCaptureModeThreadLocal);
}

static int plugin_capture_end(void *stream, void **graph)
{
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaError_t error = cudaStreamEndCapture(to_stream(stream), &recorded);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&ready, recorded, 0);
    if (recorded) (void)cudaGraphDestroy(recorded);
    *graph = ready;
    return error;
}

static int plugin_graph_launch(void *graph, void *stream)
{
    return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), to_stream(stream));
}

static int plugin_graph_free(void *graph)
{
    return graph ? cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)) : cudaSuccess;
}

/* ---- a kernel that holds a stream up -------------------------------------------------------- */

/* One thread; `until` is 4 bytes that the host sets. Holds launches back, so that what is queued
 * behind it starts without the cost of launching. */
static __global__ void spin_kernel(const uint32_t *until)
{
    while (ld_acquire_sys(until) == 0)
        spin_wait();
}

static int plugin_spin(const uint32_t *until, void *stream)
{
    return CC_LAUNCH(spin_kernel, 1, 1, 0, stream, until);
}

/* ---- the table ------------------------------------------------------------------------------ */

#ifdef CUEMU
static const char runtime_prefix[] = "emulated CUDA runtime";
static const bool is_emulated = true;
static void (*const plugin_moved)(uint64_t *, uint64_t *) = cuemu_moved;
#else
static const char runtime_prefix[] = "CUDA runtime";
static const bool is_emulated = false;
static void (*const plugin_moved)(uint64_t *, uint64_t *) = nullptr;
#endif

static const char *runtime_name(void)
{
    static const struct name {
        char text[64];
        name()
        {
            snprintf(text, sizeof text, "%s %d.%d", runtime_prefix, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
        }
    } name;
    return name.text;
}

static void fill_memory(struct gpu *gpu)
{
    gpu->alloc = plugin_alloc;
    gpu->free = plugin_free;
    gpu->host_alloc = plugin_host_alloc;
    gpu->host_free = plugin_host_free;
    gpu->host_register = plugin_host_register;
    gpu->host_unregister = plugin_host_unregister;
    gpu->host_device = plugin_host_device;
    gpu->ipc_get = plugin_ipc_get;
    gpu->ipc_open = plugin_ipc_open;
    gpu->ipc_close = plugin_ipc_close;
    gpu->copy = plugin_copy;
    gpu->copy_async = plugin_copy_async;
    gpu->copy_peer = plugin_copy_peer;
    gpu->set_async = plugin_set_async;
}

static void fill_streams(struct gpu *gpu)
{
    gpu->stream_new = plugin_stream_new;
    gpu->stream_free = plugin_stream_free;
    gpu->stream_sync = plugin_stream_sync;
    gpu->stream_done = plugin_stream_done;
    gpu->stream_wait = plugin_stream_wait;
    gpu->stream_write = plugin_stream_write;
    gpu->event_new = plugin_event_new;
    gpu->event_free = plugin_event_free;
    gpu->event_record = plugin_event_record;
    gpu->event_done = plugin_event_done;
    gpu->event_ms = plugin_event_ms;
    gpu->stream_after = plugin_stream_after;
    gpu->capture_begin = plugin_capture_begin;
    gpu->capture_end = plugin_capture_end;
    gpu->graph_launch = plugin_graph_launch;
    gpu->graph_free = plugin_graph_free;
    gpu->last_error = plugin_last_error;
}

static struct gpu filled(void)
{
    struct gpu gpu = {};
    gpu.abi = GPU_ABI;
    gpu.emulated = is_emulated;
    gpu.name = runtime_name();
    gpu.error_name = plugin_error_name;
    gpu.error_text = plugin_error_text;
    gpu.versions = plugin_versions;
    gpu.count = plugin_count;
    gpu.use = plugin_use;
    gpu.info = plugin_info;
    gpu.can_peer = plugin_can_peer;
    gpu.enable_peer = plugin_enable_peer;
    fill_memory(&gpu);
    fill_streams(&gpu);
    gpu.spin = plugin_spin;
    gpu.fold = cuda_fold;
    gpu.convert = cuda_convert;
    gpu.fill = cuda_fill;
    gpu.check = cuda_check;
    gpu.poison = cuda_poison;
    gpu.run_limit = cuda_run_limit;
    gpu.run = cuda_run;
    gpu.moved = plugin_moved;
    return gpu;
}

extern "C" __attribute__((visibility("default"))) const struct gpu *gpu_plugin(void)
{
    static const struct gpu gpu = filled();
    return &gpu;
}
