/* SPDX-License-Identifier: Apache-2.0
 * The emulation's devices and their memory: allocations, pinned host memory, handles for other
 * processes, and which copies are allowed. See emu.h. */
#include "emu_stream.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)0)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace emu
{

/* ---- errors --------------------------------------------------------------------------------- */

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
#define CUEMU_ERROR(name, number, text) {name, #name, text},
    CUEMU_ERRORS(CUEMU_ERROR)
#undef CUEMU_ERROR
};

/* ---- devices -------------------------------------------------------------------------------- */

static thread_local int current = -1;

/* CUDA cannot be used in the child of a process that has used it. */
static bool used, forked;

cudaError_t usable()
{
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked = used; }); });
    if (forked) return cudaErrorInitializationError;
    used = true;
    return setting().visible.empty() ? cudaErrorNoDevice : cudaSuccess;
}

int current_device()
{
    if (setting().visible.empty()) return -1;
    return setting().visible[current < 0 ? 0 : (size_t)current];
}

int ordinal_of(int device)
{
    for (size_t i = 0; i < setting().visible.size(); i++)
        if (setting().visible[i] == device) return (int)i;
    return -1;
}

bool peers(int device, int other)
{
    return device != other && device / setting().island == other / setting().island;
}

static bool is_ordinal(int device)
{
    return device >= 0 && (size_t)device < setting().visible.size();
}

/* ---- allocations ---------------------------------------------------------------------------- */

/*   | guard page | (unused) | memory, 256-byte aligned, its end at a page's | guard page |
 *   map                      base                                           map + map_bytes */
struct allocation {
    char *map;
    size_t map_bytes, bytes;
    int device; /* of the machine */
    int file;   /* -1: opened from a handle */
};

static const size_t PAGE = 4096, ALIGN = 256;

static std::mutex mutex;
static std::map<char *, allocation> &allocations = *new std::map<char *, allocation>;
static std::map<char *, size_t> &pinned = *new std::map<char *, size_t>;
static std::set<char *> &pinned_here = *new std::set<char *>; /* by cudaHostAlloc */

/* What device code reaches, made anew with each change: kernels look at the last one without a
 * lock, which to the thread sanitizer would put threads in order. Old ones are kept. */
struct reach {
    struct range {
        uintptr_t from, to;
        int device; /* -1: any reaches it */
    };
    std::vector<range> ranges;
    std::set<std::pair<int, int>> peers; /* device, other: access has been enabled */
};
static std::atomic<const reach *> reachable{nullptr};
static std::set<std::pair<int, int>> &enabled = *new std::set<std::pair<int, int>>;

/* With `mutex` held. */
static void publish()
{
    static std::vector<std::unique_ptr<const reach>> &all =
        *new std::vector<std::unique_ptr<const reach>>;
    auto now = std::make_unique<reach>();
    for (auto &entry : allocations) {
        uintptr_t from = (uintptr_t)entry.first;
        int device = entry.second.file < 0 ? -1 : entry.second.device;
        now->ranges.push_back({from, from + entry.second.bytes, device});
    }
    for (auto &entry : pinned)
        now->ranges.push_back({(uintptr_t)entry.first, (uintptr_t)entry.first + entry.second, -1});
    now->peers = enabled;
    reachable = now.get();
    all.push_back(std::move(now));
}

static size_t rounded_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* The allocation that holds any of [address, address + bytes), its guard pages included. */
static const allocation *touched(const void *address, size_t bytes, char **base)
{
    const char *from = static_cast<const char *>(address);
    for (auto &entry : allocations) {
        const allocation &a = entry.second;
        if (from + bytes <= a.map || from >= a.map + a.map_bytes) continue;
        *base = entry.first;
        return &a;
    }
    return nullptr;
}

/* What [address, address + bytes) is. */
enum place { HOST, PINNED, DEVICE, BROKEN };
static place place_of(const void *address, size_t bytes, int *device)
{
    std::lock_guard<std::mutex> lock(mutex);
    char *base;
    const char *from = static_cast<const char *>(address);
    if (const allocation *a = touched(address, bytes, &base)) {
        *device = a->device;
        return from >= base && from + bytes <= base + a->bytes ? DEVICE : BROKEN;
    }
    for (auto &entry : pinned)
        if (from >= entry.first && from + bytes <= entry.first + entry.second) return PINNED;
    return HOST;
}

cudaError_t check_copy(const void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    int device;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (!dst || !src) return cudaErrorInvalidValue;
    place to = place_of(dst, bytes, &device), from = place_of(src, bytes, &device);
    if (to == BROKEN || from == BROKEN) return cudaErrorInvalidValue;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool right = to_device == (to == DEVICE) && from_device == (from == DEVICE);
    return kind == cudaMemcpyDefault || right ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t check_set(const void *dst, size_t bytes)
{
    int device;
    place to = dst ? place_of(dst, bytes, &device) : BROKEN;
    return to == DEVICE || to == PINNED ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_word(const void *address)
{
    return (uintptr_t)address % sizeof(uint64_t) == 0 &&
           check_set(address, sizeof(uint64_t)) == cudaSuccess;
}

/* Whether both places lie on the devices that the caller says. */
static bool lies_on(const void *address, size_t bytes, int ordinal)
{
    int device = -1;
    return is_ordinal(ordinal) && place_of(address, bytes, &device) == DEVICE &&
           device == setting().visible[(size_t)ordinal];
}

/* Maps `pages` bytes of the file between two guard pages; NULL: no memory. */
static char *map_file(int file, size_t pages)
{
    void *map = mmap(nullptr, pages + 2 * PAGE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    char *inside = static_cast<char *>(map) + PAGE;
    if (mmap(inside, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
        MAP_FAILED) {
        madvise(inside, pages, MADV_POPULATE_WRITE); /* far cheaper than faults, if known */
        return static_cast<char *>(map);
    }
    munmap(map, pages + 2 * PAGE);
    return nullptr;
}

static void *keep(char *map, size_t bytes, int device, int file)
{
    size_t pages = rounded_up(bytes, PAGE);
    char *base = map + PAGE + pages - rounded_up(bytes, ALIGN);
    ASAN_POISON_MEMORY_REGION(base + bytes, rounded_up(bytes, ALIGN) - bytes);
    std::lock_guard<std::mutex> lock(mutex);
    allocations[base] = {map, pages + 2 * PAGE, bytes, device, file};
    publish();
    return base;
}

/* Bytes of this process on the device. */
static size_t allocated(int device)
{
    std::lock_guard<std::mutex> lock(mutex);
    size_t bytes = 0;
    for (auto &entry : allocations)
        if (entry.second.device == device && entry.second.file >= 0) bytes += entry.second.bytes;
    return bytes;
}

/* Ends an allocation of this process, or one opened from a handle. */
static cudaError_t drop(void *memory, bool opened)
{
    std::lock_guard<std::mutex> lock(mutex);
    auto it = allocations.find(static_cast<char *>(memory));
    if (it == allocations.end() || (it->second.file < 0) != opened) return cudaErrorInvalidValue;
    ASAN_UNPOISON_MEMORY_REGION(it->second.map + PAGE, it->second.map_bytes - 2 * PAGE);
    munmap(it->second.map, it->second.map_bytes);
    if (!opened) close(it->second.file);
    allocations.erase(it);
    publish();
    return cudaSuccess;
}

static cudaError_t pin(char *memory, size_t bytes)
{
    std::lock_guard<std::mutex> lock(mutex);
    for (auto &entry : pinned)
        if (memory < entry.first + entry.second && entry.first < memory + bytes)
            return cudaErrorHostMemoryAlreadyRegistered;
    pinned[memory] = bytes;
    publish();
    return cudaSuccess;
}

/* ---- handles -------------------------------------------------------------------------------- */

struct handle {
    uint64_t magic, bytes, started; /* start time of the process: a reused number is noticed */
    int process, file, device;
};
static_assert(sizeof(handle) <= sizeof(cudaIpcMemHandle_t), "fits");
static const uint64_t MAGIC = 0x63756d6548414e44;

/* When the process started, in ticks since boot: field 22 of /proc/PID/stat; 0: it is gone. */
static uint64_t start_of(int process)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *stat = fopen(path, "re");
    if (!stat) return 0;
    text[fread(text, 1, sizeof text - 1, stat)] = 0;
    fclose(stat);
    const char *field = strrchr(text, ')'); /* the name, field 2, may hold spaces */
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, nullptr, 10) : 0;
}

static cudaError_t open_handle(const handle &h, void **memory)
{
    if (h.magic != MAGIC || h.started != start_of(h.process)) return cudaErrorInvalidResourceHandle;
    if (h.process == getpid()) return cudaErrorDeviceUninitialized;
    if (h.device != current_device() && !peers(h.device, current_device()))
        return cudaErrorPeerAccessUnsupported;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.process, h.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return cudaErrorInvalidResourceHandle;
    char *map = map_file(file, rounded_up(h.bytes, PAGE));
    close(file);
    if (!map) return cudaErrorMemoryAllocation;
    *memory = keep(map, h.bytes, h.device, -1);
    return cudaSuccess;
}

} // namespace emu

using namespace emu;

/* ---- the runtime's calls -------------------------------------------------------------------- */

const char *cudaGetErrorName(cudaError_t error)
{
    for (auto &entry : error_texts)
        if (entry.error == error) return entry.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (auto &entry : error_texts)
        if (entry.error == error) return entry.text;
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error); /* *count stays as it was, as on real ones */
    *count = (int)setting().visible.size();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (!is_ordinal(device)) return failed(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t error = usable();
    if (error == cudaSuccess) *device = current < 0 ? 0 : current;
    return failed(error);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    if (!is_ordinal(device)) return failed(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = MOST_THREADS;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = setting().sms;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    }
    return failed(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    if (!is_ordinal(device)) return failed(cudaErrorInvalidDevice);
    snprintf(properties->name, sizeof properties->name, "emulated GPU");
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    if (!is_ordinal(device)) return failed(cudaErrorInvalidDevice);
    if (bytes < 13) return failed(cudaErrorInvalidValue);
    int number = setting().visible[(size_t)device] + 1;
    snprintf(id, (size_t)bytes, "%04x:%02x:00.0", number >> 8, number & 255);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other)
{
    if (!is_ordinal(device) || !is_ordinal(other)) return failed(cudaErrorInvalidDevice);
    *can = peers(setting().visible[(size_t)device], setting().visible[(size_t)other]);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned)
{
    if (!is_ordinal(other)) return failed(cudaErrorInvalidDevice);
    int device = current_device(), peer = setting().visible[(size_t)other];
    if (!peers(device, peer)) return failed(cudaErrorPeerAccessUnsupported);
    std::lock_guard<std::mutex> lock(mutex);
    bool fresh = enabled.insert({device, peer}).second;
    publish();
    return failed(fresh ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    *total = (size_t)setting().memory_MB << 20;
    *free_bytes = *total - allocated(current_device());
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    *memory = nullptr;
    if (!bytes) return cudaSuccess;
    size_t pages = rounded_up(bytes, PAGE);
    size_t room = ((size_t)setting().memory_MB << 20) - allocated(current_device());
    if (pages < bytes || bytes > room) return failed(cudaErrorMemoryAllocation);
    int file = memfd_create("cuemu", MFD_CLOEXEC);
    char *map = file >= 0 && !ftruncate(file, (off_t)pages) ? map_file(file, pages) : nullptr;
    if (!map) {
        if (file >= 0) close(file);
        return failed(cudaErrorMemoryAllocation);
    }
    memset(map + PAGE, 0xff, pages); /* nothing may count on zeros */
    *memory = keep(map, bytes, current_device(), file);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    return failed(memory ? drop(memory, false) : cudaSuccess);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    *memory = nullptr;
    if (!bytes) return cudaSuccess;
    void *map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    memset(map, 0xff, bytes);
    pin(static_cast<char *>(map), bytes);
    std::lock_guard<std::mutex> lock(mutex);
    pinned_here.insert(static_cast<char *>(map));
    *memory = map;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    if (!memory) return cudaSuccess;
    std::lock_guard<std::mutex> lock(mutex);
    char *base = static_cast<char *>(memory);
    if (!pinned_here.erase(base)) return failed(cudaErrorInvalidValue);
    munmap(base, pinned[base]);
    pinned.erase(base);
    publish();
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (!memory || !bytes) return failed(cudaErrorInvalidValue);
    return failed(pin(static_cast<char *>(memory), bytes));
}

cudaError_t cudaHostUnregister(void *memory)
{
    std::lock_guard<std::mutex> lock(mutex);
    char *base = static_cast<char *>(memory);
    if (pinned_here.count(base)) return failed(cudaErrorInvalidValue);
    if (!pinned.erase(base)) return failed(cudaErrorHostMemoryNotRegistered);
    publish();
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
    int unused;
    if (place_of(host, 1, &unused) != PINNED) return failed(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory)
{
    std::lock_guard<std::mutex> lock(mutex);
    auto it = allocations.find(static_cast<char *>(memory));
    if (it == allocations.end() || it->second.file < 0) return failed(cudaErrorInvalidValue);
    handle h = {MAGIC,    it->second.bytes, start_of(getpid()),
                getpid(), it->second.file,  it->second.device};
    *out = {};
    memcpy(out, &h, sizeof h);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t in, unsigned flags)
{
    cudaError_t error = usable();
    if (error != cudaSuccess) return failed(error);
    if (flags != cudaIpcMemLazyEnablePeerAccess) return failed(cudaErrorInvalidValue);
    handle h;
    memcpy(&h, &in, sizeof h);
    return failed(open_handle(h, memory));
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    return failed(drop(memory, true));
}

void cuemu_look(const void *address, size_t bytes)
{
    uintptr_t at = (uintptr_t)address;
    unsigned block = cuemu_block.index.x, thread = cuemu_thread ? cuemu_thread->index.x : 0;
    if (at % bytes)
        die("block %u, thread %u: %zu bytes at %p are not aligned", block, thread, bytes, address);
    const reach *now = reachable;
    for (size_t i = 0; now && i < now->ranges.size(); i++) {
        const reach::range &range = now->ranges[i];
        if (at < range.from || at + bytes > range.to) continue;
        int device = running_device();
        if (range.device >= 0 && range.device != device &&
            !now->peers.count({device, range.device}))
            die("block %u, thread %u: device %d touches memory of device %d, and peer access has "
                "not "
                "been enabled",
                block, thread, device, range.device);
        cuemu_ranges[(at >> 20 ^ at >> 12) % CUEMU_RANGES] = {range.from, range.to};
        return;
    }
    die("block %u, thread %u: device code touches %zu bytes at %p, where there is neither device "
        "memory nor pinned host memory",
        block, thread, bytes, address);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t bytes, cudaStream_t stream)
{
    if (!bytes) return cudaSuccess;
    if (!lies_on(dst, bytes, dst_device) || !lies_on(src, bytes, src_device))
        return failed(cudaErrorInvalidValue);
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}
