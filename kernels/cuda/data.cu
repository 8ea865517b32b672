/* SPDX-License-Identifier: Apache-2.0
 * The data of the correctness check on a GPU: written and checked where they lie, element by
 * element by the functions of data_value.h, so bit for bit what data.c makes on the CPU. Nobody
 * waits for these but the user: they are bound by arithmetic, at some 100 instructions per
 * element. */
#include "kernels/cuda/entries.h"
#include "kernels/cuda/prims.cuh"
#include "kernels/data_value.h"

enum { DATA_THREADS = 256, DATA_BLOCKS = 1024 };

/* data_element for the positions that a thread walks through: the key changes every 2^32. */
struct data_walk {
    uint64_t position, key;
};

static __device__ __forceinline__ uint64_t walk_to(struct data_walk *walk, const struct recipe &r,
                                                   uint64_t position)
{
    if (walk->position >> 32 != position >> 32) walk->key = data_key(r.salt, position);
    walk->position = position;
    return data_element(&r, position, walk->key);
}

static __device__ __forceinline__ struct data_walk walk_from(const struct recipe &r,
                                                             uint64_t position)
{
    struct data_walk walk = {position, data_key(r.salt, position)};
    return walk;
}

/* B: unsigned, as long as an element. dst: count elements, aligned to their size. */
template <class B>
static __global__ void fill_kernel(B *dst, const __grid_constant__ struct recipe recipe,
                                   uint64_t first, size_t count)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    struct data_walk walk = walk_from(recipe, first + i);
    for (; i < count; i += (size_t)gridDim.x * blockDim.x) {
        st_data(dst + i, (B)walk_to(&walk, recipe, first + i));
    }
}

/* *bad, which the host may see: added to once by each thread that finds anything. */
template <class B>
static __global__ void check_kernel(const B *src, const __grid_constant__ struct recipe recipe,
                                    uint64_t first, size_t count, struct gpu_bad *bad)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    struct data_walk walk = walk_from(recipe, first + i);
    unsigned long long wrong = 0, lowest = ~0ull;
    for (; i < count; i += (size_t)gridDim.x * blockDim.x) {
        if (ld_data(src + i) == (B)walk_to(&walk, recipe, first + i)) continue;
        if (wrong++ == 0) lowest = i;
    }
    if (wrong == 0) return;
    atomicAdd((unsigned long long *)&bad->count, wrong);
    atomicMin((unsigned long long *)&bad->lowest, lowest);
}

static __global__ void poison_kernel(uint8_t *dst, size_t bytes, uint32_t pattern)
{
    size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t nthreads = (size_t)gridDim.x * blockDim.x, words = bytes / 4;
    if ((uintptr_t)dst % 4) words = 0;
    for (size_t i = thread; i < words; i += nthreads) {
        st_data((uint32_t *)(void *)dst + i, pattern);
    }
    for (size_t i = words * 4 + thread; i < bytes; i += nthreads) {
        st_data(dst + i, (uint8_t)(pattern >> i % 4 * 8));
    }
}

static uint32_t blocks_for(size_t turns)
{
    size_t blocks = (turns + DATA_THREADS - 1) / DATA_THREADS, most = DATA_BLOCKS;
    return (uint32_t)(blocks < most ? blocks : most);
}

template <class B>
static int launch(bool check, void *memory, const struct recipe *recipe, uint64_t first,
                  size_t count, struct gpu_bad *bad, cudaStream_t stream)
{
    uint32_t blocks = blocks_for(count);
    if (!check)
        return CC_LAUNCH(fill_kernel<B>, blocks, DATA_THREADS, 0, stream, (B *)memory, *recipe,
                         first, count);
    return CC_LAUNCH(check_kernel<B>, blocks, DATA_THREADS, 0, stream, (const B *)memory, *recipe,
                     first, count, bad);
}

/* By the size of the element. */
static int launch_any(bool check, void *memory, const struct gpu_data *data, bool input,
                      size_t count, struct gpu_bad *bad, void *stream)
{
    static decltype(&launch<uint8_t>)
        const launches[] = {launch<uint8_t>, launch<uint16_t>, launch<uint32_t>, launch<uint64_t>};
    struct recipe recipe;
    if (count == 0) return 0;
    recipe_init(&recipe, data->dtype, data->op, data->nranks, input, data->rank, data->salt);
    uint32_t log2 = recipe.esize == 8 ? 3 : recipe.esize / 2;
    return launches[log2](check, memory, &recipe, data->first, count, bad, (cudaStream_t)stream);
}

int cuda_fill(void *dst, const struct gpu_data *data, size_t count, void *stream)
{
    return launch_any(false, dst, data, true, count, nullptr, stream);
}

int cuda_check(const void *src, const struct gpu_data *data, bool reduced, size_t count,
               struct gpu_bad *bad, void *stream)
{
    return launch_any(true, (void *)src, data, !reduced, count, bad, stream);
}

int cuda_poison(void *dst, size_t bytes, uint64_t salt, void *stream)
{
    if (bytes == 0) return 0;
    return CC_LAUNCH(poison_kernel, blocks_for(bytes / 4 + 1), DATA_THREADS, 0,
                     (cudaStream_t)stream, (uint8_t *)dst, bytes, poison_pattern(salt));
}
