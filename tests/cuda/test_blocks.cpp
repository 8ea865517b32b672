/* SPDX-License-Identifier: Apache-2.0
 * Tests of how the emulation runs device code: launches, barriers, waits, memory that it may touch,
 * flags between processes. See test_emulator.cpp. */
#include "test_emulator.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/prims.cuh"

/* ---- kernels --------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(512) add(float *sum, const float *in, size_t count)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        st_data(sum + i, ld_data(sum + i) + ld_data(in + i));
}

static void test_launch()
{
    const size_t count = 100003;
    float *sum = device_memory<float>(count), *in = device_memory<float>(count);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(i % 1000);
    OK(cudaMemcpy(in, values.data(), count * 4, cudaMemcpyHostToDevice));
    OK(CC_LAUNCH(add, 3, 512, 0, nullptr, sum, in, count));
    OK(CC_LAUNCH(add, 1000, 64, 0, nullptr, sum, in, count));
    OK(CC_LAUNCH(add, 1, 1, 0, nullptr, sum, in, size_t(0)));
    OK(cudaMemcpy(values.data(), sum, count * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++)
        CHECK(values[i] == 2 * (float)(i % 1000));
    uint64_t read, written;
    cuemu_moved(&read, &written);
    CHECK(read == 2 * count * 8 && written == 2 * count * 4);
    cuemu_moved(&read, &written);
    CHECK(read == 0 && written == 0);
    CHECK(CC_LAUNCH(add, 1, 1025, 0, nullptr, sum, in, count) == cudaErrorInvalidConfiguration);
    CHECK(CC_LAUNCH(add, 0, 1, 0, nullptr, sum, in, count) == cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == 0);
    OK(cudaFree(sum));
    OK(cudaFree(in));
}

struct argument {
    uint32_t value;
};

static __global__ void store(uint32_t *out, const argument in)
{
    if (threadIdx.x == 0) *out = in.value;
}

/* Arguments are those of the launch, whatever the host does afterwards. */
static void test_arguments()
{
    uint32_t *out = device_memory<uint32_t>(1), *go = pinned_memory<uint32_t>(1);
    argument *in = new argument{7};
    const struct gpu *gpu = opened(emulated_plugin);
    OK(gpu->spin(go, nullptr));
    OK(CC_LAUNCH(store, 1, 32, 0, nullptr, out, *in));
    in->value = 8;
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    CHECK(fetched(out) == 7);
    delete in;
}

static __global__ void count_places(uint32_t *places)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    atomicAdd(places + block * 8 + thread, 1u + blockDim.x * blockDim.y * blockDim.z);
}

/* Each place of a grid and of a block is run once; a large block is cut to CUEMU_THREADS. */
static void test_places()
{
    uint32_t *places = device_memory<uint32_t>(24 * 8);
    std::vector<uint32_t> counts(24 * 8);
    OK(CC_LAUNCH(count_places, dim3(2, 3, 4), dim3(1, 2, 4), 0, nullptr, places));
    OK(CC_LAUNCH(count_places, 24, 512, 0, nullptr, places));
    OK(cudaMemcpy(counts.data(), places, 4 * counts.size(), cudaMemcpyDefault));
    for (uint32_t count : counts)
        CHECK(count == 2 * 9);
}

/* Reverses 64 numbers through shared memory, again and again; and votes. */
static __global__ void reverse(uint32_t *numbers, unsigned rounds, uint32_t *votes)
{
    __shared__ uint32_t held[64];
    uint32_t *mine = numbers + 64 * blockIdx.x;
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = threadIdx.x; i < 64; i += blockDim.x)
            held[i] = mine[i];
        __syncthreads();
        for (unsigned i = threadIdx.x; i < 64; i += blockDim.x)
            mine[i] = held[63 - i];
        bool last = __syncthreads_or(round + 1 == rounds && threadIdx.x + 1 == blockDim.x);
        if (last && threadIdx.x == 0) atomicAdd(votes, round);
    }
}

static void test_barrier()
{
    uint32_t *numbers = device_memory<uint32_t>(64 * 9), *votes = device_memory<uint32_t>(1);
    std::vector<uint32_t> values(64 * 9);
    for (uint32_t i = 0; i < values.size(); i++)
        values[i] = i;
    OK(cudaMemcpy(numbers, values.data(), 4 * values.size(), cudaMemcpyDefault));
    for (unsigned threads : {1u, 2u, 31u, 64u})
        OK(CC_LAUNCH(reverse, 9, threads, 0, nullptr, numbers, 5, votes));
    OK(CC_LAUNCH(reverse, 9, 64, 0, nullptr, numbers, 1, votes));
    OK(cudaMemcpy(values.data(), numbers, 4 * values.size(), cudaMemcpyDefault));
    for (uint32_t i = 0; i < values.size(); i++)
        CHECK(values[i] == (i / 64 * 64 + 63 - i % 64));
    CHECK(fetched(votes) == 9 * 4 * 4);
}

/* All blocks meet, `blocks` of them. */
static __global__ void meet(uint64_t *arrived, uint64_t blocks)
{
    if (threadIdx.x == 0) {
        atomicAdd_system(arrived, (uint64_t)1);
        while (ld_acquire_sys(arrived) < blocks)
            spin_wait();
    }
    __syncthreads();
}

static void test_room()
{
    int per_sm = 0, sms = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, meet, 512, 0));
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    unsigned blocks = (unsigned)(per_sm * sms);
    uint64_t *arrived = device_memory<uint64_t>(1);
    OK(CC_LAUNCH(meet, blocks, 512, 0, nullptr, arrived, blocks));
    OK(cudaDeviceSynchronize());
    CHECK(fetched(arrived) == blocks);
}

static void dies_without_room()
{
    uint64_t *arrived = device_memory<uint64_t>(1);
    OK(CC_LAUNCH(meet, 3, 32, 0, nullptr, arrived, 3)); /* CUEMU_SMS=1: room for two */
    OK(cudaDeviceSynchronize());
}

/* Two blocks of one stream wait for a block of another one. */
static void meet_in_two_streams()
{
    uint64_t *arrived = device_memory<uint64_t>(1);
    cudaStream_t other;
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(CC_LAUNCH(meet, 2, 32, 0, nullptr, arrived, 3));
    while (__atomic_load_n(arrived, __ATOMIC_RELAXED) < 2)
        sched_yield();
    OK(CC_LAUNCH(meet, 1, 32, 0, other, arrived, 3));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(other));
}

static __global__ void two_barriers(void *)
{
    if (threadIdx.x & 1)
        __syncthreads();
    else
        __syncthreads();
}

static void dies_at_two_barriers()
{
    OK(CC_LAUNCH(two_barriers, 1, 2, 0, nullptr, nullptr));
    OK(cudaDeviceSynchronize());
}

static __global__ void half_a_barrier(void *)
{
    if (threadIdx.x == 0) return;
    __syncthreads();
}

static void dies_at_half_a_barrier()
{
    OK(CC_LAUNCH(half_a_barrier, 1, 2, 0, nullptr, nullptr));
    OK(cudaDeviceSynchronize());
}

static void dies_of_a_missing_peer()
{
    uint64_t *arrived = device_memory<uint64_t>(1);
    OK(CC_LAUNCH(meet, 2, 8, 0, nullptr, arrived, 3));
    OK(cudaDeviceSynchronize());
}

static __global__ void touch(uint32_t *address)
{
    st_data(address, 1u);
}

static __global__ void touch_unchecked(volatile uint32_t *address)
{
    *address = 1;
}

static void dies_past_the_end()
{
    uint32_t *memory = device_memory<uint32_t>(64);
    OK(CC_LAUNCH(touch_unchecked, 1, 1, 0, nullptr, memory + 64));
    OK(cudaDeviceSynchronize());
}

static void dies_before_the_start()
{
    uint32_t *memory = device_memory<uint32_t>(1024);
    OK(CC_LAUNCH(touch_unchecked, 1, 1, 0, nullptr, memory - 1));
    OK(cudaDeviceSynchronize());
}

static void dies_on_host_memory()
{
    uint32_t *memory = new uint32_t[1];
    OK(CC_LAUNCH(touch, 1, 1, 0, nullptr, memory));
    OK(cudaDeviceSynchronize());
}

static void dies_unaligned()
{
    uint32_t *memory = device_memory<uint32_t>(2);
    OK(CC_LAUNCH(touch, 1, 1, 0, nullptr, (uint32_t *)((char *)memory + 2)));
    OK(cudaDeviceSynchronize());
}

static void test_peer_memory()
{
    uint32_t *memory = device_memory<uint32_t>(1);
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    OK(CC_LAUNCH(touch, 1, 1, 0, nullptr, memory));
    OK(cudaDeviceSynchronize());
    CHECK(fetched(memory) == 1);
}

static void dies_without_peer_access()
{
    uint32_t *memory = device_memory<uint32_t>(1);
    OK(cudaSetDevice(1));
    OK(CC_LAUNCH(touch, 1, 1, 0, nullptr, memory));
    OK(cudaDeviceSynchronize());
}

static void test_memory()
{
    size_t free_bytes, bytes;
    void *first, *second;
    OK(cudaMalloc(&first, 3 << 20));
    OK(cudaMemGetInfo(&free_bytes, &bytes));
    CHECK(bytes == 4 << 20 && free_bytes == 1 << 20);
    CHECK(cudaMalloc(&second, (1 << 20) + 1) == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&second, 1 << 20));
    OK(cudaFree(first));
    OK(cudaMalloc(&first, 3 << 20));
    CHECK(cudaMalloc(&second, SIZE_MAX) == cudaErrorMemoryAllocation);
}

/* ---- processes ------------------------------------------------------------------------------- */

enum { MOST_RANKS = 8, WORDS = 64, LINE_WORDS = 16 };

/* What all ranks of a test share; made before they are forked. */
struct meeting {
    uint64_t arrived;
    cudaIpcMemHandle_t handles[MOST_RANKS];
    uint64_t flags[MOST_RANKS * LINE_WORDS]; /* for devices, once registered */
};

static struct meeting *new_meeting()
{
    void *memory = mmap(nullptr, sizeof(struct meeting), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return static_cast<struct meeting *>(memory);
}

/* The n-th time that all ranks meet, n from 1. */
static void meet_all(struct meeting *meeting, uint64_t ranks, uint64_t n)
{
    __atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&meeting->arrived, __ATOMIC_ACQUIRE) < n * ranks)
        sched_yield();
}

static void in_ranks(unsigned ranks, void (*run)(struct meeting *, unsigned rank, unsigned ranks))
{
    struct meeting *meeting = new_meeting();
    std::vector<pid_t> children;
    for (unsigned rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            run(meeting, rank, ranks);
            exit(0);
        }
        children.push_back(child);
    }
    for (pid_t child : children) {
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0);
    }
}

/* In the memory of each rank: for every block and sender a flag, and two slots of WORDS words. */
struct exchange {
    uint8_t *memory[MOST_RANKS];
    uint64_t *bad;
    uint32_t rank, ranks, rounds, blocks;
};

static __device__ uint64_t *flag_of(const exchange &e, uint32_t owner, uint32_t sender)
{
    uint64_t *flags = reinterpret_cast<uint64_t *>(e.memory[owner]);
    return flags + (blockIdx.x * e.ranks + sender) * LINE_WORDS;
}

static __device__ uint32_t *slot_of(const exchange &e, uint32_t owner, uint32_t sender,
                                    uint32_t round)
{
    size_t flags = (size_t)e.blocks * e.ranks * LINE_WORDS * sizeof(uint64_t);
    uint32_t *slots = reinterpret_cast<uint32_t *>(e.memory[owner] + flags);
    return slots + ((blockIdx.x * e.ranks + sender) * 2 + round % 2) * WORDS;
}

/* Everyone writes to everyone, and goes on when all have written. */
static __global__ void all_to_all(exchange e)
{
    for (uint32_t round = 1; round <= e.rounds; round++) {
        for (uint32_t i = threadIdx.x; i < WORDS * e.ranks; i += blockDim.x)
            st_data(slot_of(e, i / WORDS, e.rank, round) + i % WORDS, round * 1000 + e.rank + i);
        __syncthreads();
        for (uint32_t peer = threadIdx.x; peer < e.ranks; peer += blockDim.x)
            st_release_sys(flag_of(e, peer, e.rank), round);
        for (uint32_t peer = threadIdx.x; peer < e.ranks; peer += blockDim.x)
            while (ld_acquire_sys(flag_of(e, e.rank, peer)) < round)
                spin_wait();
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < WORDS * e.ranks; i += blockDim.x) {
            uint32_t sender = i / WORDS,
                     word = ld_data(slot_of(e, e.rank, sender, round) + i % WORDS);
            if (word != round * 1000 + sender + e.rank * WORDS + i % WORDS)
                atomicAdd(e.bad, (uint64_t)1);
        }
        __syncthreads();
    }
}

static size_t exchange_bytes(unsigned ranks, unsigned blocks)
{
    return (size_t)blocks * ranks * (LINE_WORDS * sizeof(uint64_t) + 2 * WORDS * sizeof(uint32_t));
}

static void exchange_rank(struct meeting *meeting, unsigned rank, unsigned ranks)
{
    int devices = 0;
    OK(cudaGetDeviceCount(&devices));
    OK(cudaSetDevice((int)rank % devices));
    exchange e = {};
    e.rank = rank;
    e.ranks = ranks;
    e.rounds = 20;
    e.blocks = ranks == 2 ? 4 : 2;
    e.bad = device_memory<uint64_t>(1);
    e.memory[rank] = device_memory<uint8_t>(exchange_bytes(ranks, e.blocks));
    OK(cudaIpcGetMemHandle(&meeting->handles[rank], e.memory[rank]));
    meet_all(meeting, ranks, 1);
    for (unsigned peer = 0; peer < ranks; peer++) {
        void *memory = e.memory[peer];
        if (peer != rank)
            OK(cudaIpcOpenMemHandle(&memory, meeting->handles[peer],
                                    cudaIpcMemLazyEnablePeerAccess));
        e.memory[peer] = static_cast<uint8_t *>(memory);
    }
    OK(CC_LAUNCH(all_to_all, e.blocks, 32, 0, nullptr, e));
    OK(cudaDeviceSynchronize());
    CHECK(fetched(e.bad) == 0);
    uint64_t read, written, words = (uint64_t)e.blocks * e.rounds * WORDS * ranks;
    cuemu_moved(&read, &written);
    CHECK(read == 4 * words && written == 4 * words);
    meet_all(meeting, ranks, 2);
    for (unsigned peer = 0; peer < ranks; peer++)
        if (peer != rank) OK(cudaIpcCloseMemHandle(e.memory[peer]));
    OK(cudaFree(e.memory[rank]));
}

static void test_two_processes()
{
    in_ranks(2, exchange_rank);
}

static void test_eight_processes()
{
    in_ranks(8, exchange_rank);
}

/* Ranks in one process, as threads of the device: what the thread sanitizer can see. */
static void test_one_process()
{
    exchange e[3] = {};
    cudaStream_t streams[3];
    for (uint32_t rank = 0; rank < 3; rank++) {
        e[0].memory[rank] = device_memory<uint8_t>(exchange_bytes(3, 2));
        OK(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        e[rank] = e[0];
        e[rank].rank = rank;
        e[rank].ranks = 3;
        e[rank].rounds = 10;
        e[rank].blocks = 2;
        e[rank].bad = device_memory<uint64_t>(1);
        OK(CC_LAUNCH(all_to_all, 2, 32, 0, streams[rank], e[rank]));
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        OK(cudaStreamSynchronize(streams[rank]));
        CHECK(fetched(e[rank].bad) == 0);
        OK(cudaStreamDestroy(streams[rank]));
    }
}

/* Device 0 and 2 are on different islands when those have two devices. */
static void islands_rank(struct meeting *meeting, unsigned rank, unsigned ranks)
{
    int can = -1;
    OK(cudaSetDevice((int)rank * 2));
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1);
    OK(cudaDeviceCanAccessPeer(&can, 1, 2));
    CHECK(can == 0);
    OK(cudaDeviceCanAccessPeer(&can, 1, 1));
    CHECK(can == 0);
    OK(cudaDeviceEnablePeerAccess((int)rank * 2 + 1, 0));
    CHECK(cudaDeviceEnablePeerAccess((int)rank * 2 + 1, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(cudaDeviceEnablePeerAccess(2 - (int)rank * 2, 0) == cudaErrorPeerAccessUnsupported);
    void *memory = device_memory<uint8_t>(100), *theirs;
    cudaIpcMemHandle_t mine;
    OK(cudaIpcGetMemHandle(&mine, memory));
    CHECK(cudaIpcOpenMemHandle(&theirs, mine, 1) == cudaErrorDeviceUninitialized);
    CHECK(cudaIpcGetMemHandle(&mine, (char *)memory + 1) == cudaErrorInvalidValue);
    meeting->handles[rank] = mine;
    meet_all(meeting, ranks, 1);
    cudaIpcMemHandle_t other = meeting->handles[1 - rank];
    CHECK(cudaIpcOpenMemHandle(&theirs, other, 1) == cudaErrorPeerAccessUnsupported);
    OK(cudaSetDevice(2 - (int)rank * 2));
    cudaIpcMemHandle_t reused = other; /* the same number of a process that started later */
    reused.reserved[16]++;
    CHECK(cudaIpcOpenMemHandle(&theirs, reused, 1) == cudaErrorInvalidResourceHandle);
    OK(cudaIpcOpenMemHandle(&theirs, other, 1));
    CHECK(cudaFree(theirs) == cudaErrorInvalidValue);
    CHECK(cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue);
    meet_all(meeting, ranks, 2);
    if (rank == 0) OK(cudaFree(memory));
    meet_all(meeting, ranks, 3);
    OK(cudaIpcCloseMemHandle(theirs));
    if (rank == 1) CHECK(cudaIpcOpenMemHandle(&theirs, other, 1) == cudaErrorInvalidResourceHandle);
    meet_all(meeting, ranks, 4);
}

static void test_islands()
{
    in_ranks(2, islands_rank);
}

static __global__ void ping(uint64_t *mine, uint64_t *theirs, uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        st_release_sys(theirs, round);
        while (ld_acquire_sys(mine) < round)
            spin_wait();
    }
}

/* Memory of the host that two processes have registered, each for its devices. */
static void registered_rank(struct meeting *meeting, unsigned rank, unsigned ranks)
{
    void *device = nullptr, *flags = meeting->flags;
    CHECK(cudaHostGetDevicePointer(&device, flags, 0) == cudaErrorInvalidValue);
    OK(cudaHostRegister(meeting, sizeof *meeting, cudaHostRegisterMapped));
    CHECK(cudaHostRegister(meeting, 4096, 0) == cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostGetDevicePointer(&device, flags, 0));
    uint64_t *words = static_cast<uint64_t *>(device);
    OK(CC_LAUNCH(ping, 1, 1, 0, nullptr, words + LINE_WORDS * rank, words + LINE_WORDS * (1 - rank),
                 50));
    OK(cudaDeviceSynchronize());
    CHECK(meeting->flags[LINE_WORDS * rank] == 50);
    meet_all(meeting, ranks, 1);
    OK(cudaHostUnregister(meeting));
    CHECK(cudaHostUnregister(meeting) == cudaErrorHostMemoryNotRegistered);
}

static void test_registered()
{
    in_ranks(2, registered_rank);
}

static void after_fork(struct meeting *, unsigned, unsigned)
{
    int devices = 7;
    CHECK(cudaGetDeviceCount(&devices) == cudaErrorInitializationError && devices == 7);
    void *memory;
    CHECK(cudaMalloc(&memory, 1) == cudaErrorInitializationError);
}

static void test_fork()
{
    int devices = 0;
    OK(cudaGetDeviceCount(&devices));
    in_ranks(1, after_fork);
}

/* ---- planted races: found by the thread sanitizer -------------------------------------------- */

#ifdef __SANITIZE_THREAD__
static __global__ void no_barrier(uint32_t *out)
{
    __shared__ uint32_t held[32];
    held[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = held[(threadIdx.x + 1) % blockDim.x];
}

static void dies_without_barrier()
{
    OK(CC_LAUNCH(no_barrier, 1, 2, 0, nullptr, device_memory<uint32_t>(32)));
    OK(cudaDeviceSynchronize());
}

static __global__ void relaxed_flag(uint64_t *flag, uint64_t *data)
{
    if (blockIdx.x == 1) { /* the later one, so that nothing else puts it before the other */
        st_data(data, (uint64_t)1);
        __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
    } else {
        while (ld_acquire_sys(flag) == 0)
            spin_wait();
        st_data(data, ld_data(data) + 1);
    }
}

static void dies_of_a_relaxed_flag()
{
    uint64_t *words = device_memory<uint64_t>(64);
    OK(CC_LAUNCH(relaxed_flag, 2, 1, 0, nullptr, words, words + 32));
    OK(cudaDeviceSynchronize());
}
#endif

/* ---- all of them ----------------------------------------------------------------------------- */

const std::vector<test> block_tests = {
    {"launch", test_launch, {}, nullptr},
    {"launch, many threads", test_launch, {"CUEMU_THREADS=1024"}, nullptr},
    {"launch, one thread", test_launch, {"CUEMU_THREADS=1", "CUEMU_SMS=1"}, nullptr},
    {"places", test_places, {"CUEMU_THREADS=8"}, nullptr},
    {"arguments", test_arguments, {}, nullptr},
    {"barrier", test_barrier, {"CUEMU_THREADS=64"}, nullptr},
    {"barrier, permuted", test_barrier, {"CUEMU_THREADS=64", "CUEMU_SEED=5"}, nullptr},
    {"room for blocks", test_room, {}, nullptr},
    {"no room for a block",
     dies_without_room,
     {"CUEMU_SMS=1", "CUEMU_TIMEOUT_S=1"},
     "cuemu: nothing has moved for 1 s"},
    {"two streams", meet_in_two_streams, {"CUEMU_SMS=2"}, nullptr},
    {"two streams, no room",
     meet_in_two_streams,
     {"CUEMU_SMS=1", "CUEMU_TIMEOUT_S=1"},
     "cuemu: nothing has moved for 1 s"},
    {"two barriers", dies_at_two_barriers, {}, "thread 1 waits in __syncthreads at "},
    {"half a barrier", dies_at_half_a_barrier, {}, "1 of 2 threads have ended while others wait"},
    {"missing peer", dies_of_a_missing_peer, {"CUEMU_TIMEOUT_S=1"}, "all threads of block "},
    {"past the end", dies_past_the_end, {}, "SEGV"},
    {"before the start", dies_before_the_start, {}, "SEGV"},
    {"host memory", dies_on_host_memory, {}, "neither device memory nor pinned host memory"},
    {"not aligned", dies_unaligned, {}, "are not aligned"},
    {"peer memory", test_peer_memory, {}, nullptr},
    {"peer memory, not enabled", dies_without_peer_access, {}, "has not been enabled"},
    {"memory", test_memory, {"CUEMU_MEMORY_MB=4"}, nullptr},
    {"wrong setting", test_launch, {"CUEMU_SMS=x"}, "CUEMU_SMS=x: must be a number from 1"},
    {"two processes", test_two_processes, {}, nullptr},
    {"two processes, delays",
     test_two_processes,
     {"CUEMU_JITTER=100", "CUEMU_SEED=3", "CUEMU_THREADS=5"},
     nullptr},
    {"eight processes", test_eight_processes, {"CUEMU_THREADS=4"}, nullptr},
    {"one process", test_one_process, {"CUEMU_THREADS=4"}, nullptr},
    {"one process, delays", test_one_process, {"CUEMU_JITTER=50", "CUEMU_SEED=7"}, nullptr},
    {"islands", test_islands, {"CUEMU_P2P_GROUP=2"}, nullptr},
    {"registered memory", test_registered, {}, nullptr},
    {"fork", test_fork, {}, nullptr},
#ifdef __SANITIZE_THREAD__
    {"no barrier", dies_without_barrier, {}, "data race"},
    {"relaxed flag", dies_of_a_relaxed_flag, {}, "data race"},
#endif
};
