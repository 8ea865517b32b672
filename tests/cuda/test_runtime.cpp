/* SPDX-License-Identifier: Apache-2.0
 * Tests of the emulated calls of the runtime: devices, copies, streams, events, graphs; and of the
 * plug-ins' tables, through which most of them are called. See test_emulator.cpp. */
#include "test_emulator.h"

#include <unistd.h>

#include "kernels/cuda/prims.cuh"

/* ---- devices and copies ---------------------------------------------------------------------- */

static void test_visible()
{
    int devices = 0;
    char id[32];
    OK(cudaGetDeviceCount(&devices));
    CHECK(devices == 2); /* "2,0,9,1": what follows an unknown one is not seen */
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    CHECK(!strcmp(id, "0000:03:00.0"));
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 1));
    CHECK(!strcmp(id, "0000:01:00.0"));
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}

static void test_no_device()
{
    int devices = 7;
    CHECK(cudaGetDeviceCount(&devices) == cudaErrorNoDevice && devices == 7);
    void *memory;
    CHECK(cudaMalloc(&memory, 1) == cudaErrorNoDevice);
    CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
    const struct gpu *gpu = opened(emulated_plugin);
    CHECK(gpu->count(&devices) == cudaErrorNoDevice && devices == 0);
    CHECK(!strcmp(gpu->error_name(cudaErrorNoDevice), "cudaErrorNoDevice"));
}

static void test_copies()
{
    uint8_t *memory = device_memory<uint8_t>(1000), host[1001] = {};
    const cudaError_t refused = cudaErrorInvalidValue;
    OK(cudaMemcpy(memory, host, 1000, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(memory + 1000, host, 0, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(memory, host, 1001, cudaMemcpyHostToDevice) == refused);
    CHECK(cudaMemcpy(host, memory + 1, 1000, cudaMemcpyDefault) == refused);
    CHECK(cudaMemcpy(memory - 1, host, 10, cudaMemcpyDefault) == refused);
    CHECK(cudaMemcpy(host, memory, 10, cudaMemcpyHostToDevice) == refused);
    CHECK(cudaMemcpy(host, host + 20, 10, cudaMemcpyDeviceToHost) == refused);
    CHECK(cudaMemcpy(memory, host, 10, (cudaMemcpyKind)9) == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemset(memory, 0, 1001) == refused);
    CHECK(cudaMemset(host, 0, 10) == refused);
    OK(cudaSetDevice(1));
    uint8_t *other = device_memory<uint8_t>(1000);
    OK(cudaMemcpyPeerAsync(other, 1, memory, 0, 1000, nullptr));
    CHECK(cudaMemcpyPeerAsync(other, 0, memory, 1, 1000, nullptr) == refused);
    CHECK(cudaMemcpyPeerAsync(other, 1, memory, 0, 1001, nullptr) == refused);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(other));
    CHECK(cudaFree(other) == refused);
    CHECK(cudaFree(memory + 1) == refused);
    OK(cudaFree(nullptr));
    uint8_t *fresh;
    OK(cudaMalloc((void **)&fresh, 1));
    CHECK(fetched(fresh) == 0xff); /* nothing may count on zeros */
    CHECK((uintptr_t)fresh % 256 == 0);
}

/* ---- streams, through the plug-in's table ---------------------------------------------------- */

static void test_events()
{
    const struct gpu *gpu = opened(emulated_plugin);
    uint32_t *go = pinned_memory<uint32_t>(1);
    uint8_t *memory = device_memory<uint8_t>(1000), byte = 0;
    void *first, *second, *from, *to;
    OK(gpu->stream_new(&first));
    OK(gpu->stream_new(&second));
    OK(gpu->event_new(&from));
    OK(gpu->event_new(&to));
    OK(gpu->event_record(from, second));
    OK(gpu->spin(go, first));
    OK(gpu->event_record(to, first));
    OK(gpu->stream_after(second, to));
    OK(gpu->set_async(memory, 5, 1000, second));
    usleep(20000);
    bool done = true;
    OK(gpu->stream_done(second, &done));
    CHECK(!done);
    OK(gpu->event_done(to, &done));
    CHECK(!done);
    float ms = 0;
    CHECK(gpu->event_ms(from, to, &ms) == cudaErrorNotReady);
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    OK(gpu->stream_sync(second));
    OK(gpu->event_done(to, &done));
    CHECK(done);
    OK(gpu->event_ms(from, to, &ms));
    CHECK(ms >= 10 && ms < 60000);
    OK(gpu->copy(&byte, memory + 999, 1));
    CHECK(byte == 5);
    OK(gpu->event_free(from));
    OK(gpu->event_free(to));
    OK(gpu->stream_free(first));
    OK(gpu->stream_free(second));
    CHECK(gpu->last_error() == cudaErrorNotReady || gpu->last_error() == 0);
}

/* Two streams take turns by words in memory. */
static void test_words()
{
    const struct gpu *gpu = opened(emulated_plugin);
    uint64_t *words = device_memory<uint64_t>(2);
    uint8_t *memory = device_memory<uint8_t>(1), byte = 0;
    void *first, *second;
    OK(gpu->stream_new(&first));
    OK(gpu->stream_new(&second));
    for (uint64_t turn = 1; turn <= 20; turn++) {
        OK(gpu->stream_wait(second, words, turn));
        OK(gpu->set_async(memory, (int)turn * 2, 1, second));
        OK(gpu->stream_write(second, words + 1, turn));
        OK(gpu->set_async(memory, (int)turn * 2 - 1, 1, first));
        OK(gpu->stream_write(first, words, turn));
        OK(gpu->stream_wait(first, words + 1, turn));
    }
    OK(gpu->stream_sync(first));
    OK(gpu->stream_sync(second));
    OK(gpu->copy(&byte, memory, 1));
    CHECK(byte == 40);
    uint64_t on_the_host = 0;
    CHECK(gpu->stream_wait(first, &on_the_host, 0) == cudaErrorInvalidValue);
    CHECK(gpu->stream_write(first, words + 2, 0) == cudaErrorInvalidValue);
    OK(gpu->stream_free(first));
    OK(gpu->stream_free(second));
}

static void dies_of_a_missing_word()
{
    const struct gpu *gpu = opened(emulated_plugin);
    OK(gpu->stream_wait(nullptr, device_memory<uint64_t>(1), 1));
    OK(gpu->stream_sync(nullptr));
}

static __global__ void increment(uint32_t *number)
{
    if (threadIdx.x == 0) st_data(number, ld_data(number) + 1);
}

static void test_graph()
{
    const struct gpu *gpu = opened(emulated_plugin);
    uint32_t *numbers = device_memory<uint32_t>(2), values[2];
    void *stream, *other, *graph, *fork_event, *join_event;
    OK(gpu->stream_new(&stream));
    OK(gpu->stream_new(&other));
    OK(gpu->event_new(&fork_event));
    OK(gpu->event_new(&join_event));
    OK(gpu->capture_begin(stream));
    OK(CC_LAUNCH(increment, 1, 32, 0, stream, numbers));
    OK(gpu->event_record(fork_event, stream));
    OK(gpu->stream_after(other, fork_event));
    OK(gpu->copy_async(numbers + 1, numbers, 4, other));
    CHECK(gpu->stream_sync(other) == cudaErrorStreamCaptureUnsupported);
    OK(gpu->event_record(join_event, other));
    OK(gpu->stream_after(stream, join_event));
    OK(CC_LAUNCH(increment, 1, 32, 0, stream, numbers + 1));
    CHECK(gpu->stream_sync(stream) == cudaErrorStreamCaptureUnsupported);
    OK(gpu->capture_end(stream, &graph));
    OK(gpu->stream_sync(other));
    OK(gpu->copy(values, numbers, 8));
    CHECK(values[0] == 0 && values[1] == 0); /* recorded, not run */
    for (int i = 0; i < 5; i++)
        OK(gpu->graph_launch(graph, stream));
    OK(gpu->graph_free(graph));
    OK(gpu->stream_sync(stream));
    OK(gpu->copy(values, numbers, 8));
    CHECK(values[0] == 5 && values[1] == 6);
    CHECK(gpu->capture_end(stream, &graph) != 0);
    OK(gpu->event_free(fork_event));
    OK(gpu->event_free(join_event));
    OK(gpu->stream_free(stream));
    OK(gpu->stream_free(other));
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* Every function up to `moved` is there. */
static void check_table(const struct gpu *gpu)
{
    CHECK(gpu->abi == GPU_ABI && gpu->name);
    void *const *entry = reinterpret_cast<void *const *>(&gpu->error_name);
    void *const *end = reinterpret_cast<void *const *>(&gpu->moved);
    for (; entry < end; entry++)
        CHECK(*entry);
    int runtime = 0, driver = -1;
    OK(gpu->versions(&runtime, &driver));
    CHECK(runtime >= 12000 && driver >= 0);
}

static void test_table()
{
    const struct gpu *gpu = opened(emulated_plugin);
    check_table(gpu);
    CHECK(gpu->emulated && gpu->moved && strstr(gpu->name, "emulated"));
    int devices = 0;
    OK(gpu->count(&devices));
    CHECK(devices == 4);
    struct gpu_info info;
    void *stream, *nowhere = nullptr;
    OK(gpu->stream_new(&stream));
    OK(gpu->use(3));
    CHECK(gpu->spin(static_cast<uint32_t *>(nowhere), stream) == cudaErrorInvalidResourceHandle);
    OK(gpu->stream_free(stream));
    OK(gpu->info(1, &info));
    CHECK(info.sms == 16 && info.major == 9 && info.bytes && !strcmp(info.pci, "0000:02:00.0"));
    CHECK(strstr(info.name, "emulated"));
    bool can = true;
    OK(gpu->can_peer(1, 1, &can));
    CHECK(!can);
    OK(gpu->can_peer(1, 2, &can));
    CHECK(can);
    OK(gpu->enable_peer(2));
    OK(gpu->enable_peer(2));
    CHECK(gpu->info(4, &info) == cudaErrorInvalidDevice);
    void *memory, *device;
    OK(gpu->host_alloc(&memory, 100));
    OK(gpu->host_device((char *)memory + 99, &device));
    OK(gpu->host_register(memory, 100)); /* again: fine */
    OK(gpu->host_free(memory));
}

/* The plug-in of nvcc loads here too; without a GPU it says so. */
static void test_real_table()
{
    if (!real_plugin) return;
    const struct gpu *gpu = opened(real_plugin);
    check_table(gpu);
    CHECK(!gpu->emulated && !gpu->moved);
    int devices = -1, error = gpu->count(&devices);
    CHECK(error ? devices == 0 : devices > 0);
    CHECK(strstr(gpu->error_name(error ? error : 1), "cudaError"));
}

/* ---- all of them ----------------------------------------------------------------------------- */

const std::vector<test> runtime_tests = {
    {"visible devices", test_visible, {"CUDA_VISIBLE_DEVICES=2,0,9,1"}, nullptr},
    {"no device", test_no_device, {"CUDA_VISIBLE_DEVICES="}, nullptr},
    {"no device at all", test_no_device, {"CUEMU_DEVICES=0"}, nullptr},
    {"copies", test_copies, {}, nullptr},
    {"events", test_events, {}, nullptr},
    {"words", test_words, {}, nullptr},
    {"words, delays", test_words, {"CUEMU_JITTER=100", "CUEMU_SEED=2"}, nullptr},
    {"missing word", dies_of_a_missing_word, {"CUEMU_TIMEOUT_S=1"}, "a stream waits for a word"},
    {"graph", test_graph, {}, nullptr},
    {"table", test_table, {}, nullptr},
    {"table of the real plug-in", test_real_table, {}, nullptr},
};
