/* SPDX-License-Identifier: Apache-2.0
 * What device code needs beyond plain C++: launches, flags that other devices and processes see,
 * lines that carry their own flags, and half floats by instruction. Each has a version for nvcc
 * (PTX) and one for the emulation of tests/cuda/ (CUEMU). All other device code is common.
 *
 * A flag is written and read with system scope. The pattern of all waits and posts:
 *
 *     wait: thread 0:  while (ld_acquire_sys(flag) < n) spin_wait();      then __syncthreads()
 *     post: __syncthreads(), then thread 0:  st_release_sys(flag, n)
 *
 * The barrier orders the block's accesses before thread 0's release, and what follows a wait after
 * its acquire (PTX memory model: causality order goes through barriers). */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/narrow.h"

/* CC_LAUNCH(kernel, grid, block, shmem_bytes, stream, args...): gives the cudaError_t. The only way
 * to launch a kernel; write a kernel with several template arguments in (brackets). */
#ifdef CUEMU

#define CC_LAUNCH(kernel, grid, block, shmem_bytes, stream, ...)                                   \
    cuemu_launch((kernel), (grid), (block), (shmem_bytes), (cudaStream_t)(stream), __VA_ARGS__)

static inline uint64_t ld_acquire_sys(const uint64_t *flag)
{
    cuemu_check(flag, sizeof *flag);
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static inline uint32_t ld_acquire_sys(const uint32_t *flag)
{
    cuemu_check(flag, sizeof *flag);
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static inline void st_release_sys(uint64_t *flag, uint64_t value)
{
    cuemu_check(flag, sizeof *flag);
    cuemu_jitter();
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
    cuemu_jitter();
}

static inline void st_release_sys(uint32_t *flag, uint32_t value)
{
    cuemu_check(flag, sizeof *flag);
    cuemu_jitter();
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
    cuemu_jitter();
}

static inline void ld_ll(const uint64_t *line, uint64_t out[2])
{
    cuemu_check(line, 16);
    out[0] = __atomic_load_n(line, __ATOMIC_RELAXED);
    out[1] = __atomic_load_n(line + 1, __ATOMIC_RELAXED);
    cuemu_saw(line);
}

/* Released only for what comes after the kernel that saw the line: ld_ll acquires nothing. */
static inline void st_ll(uint64_t *line, const uint64_t in[2])
{
    cuemu_check(line, 16);
    __atomic_store_n(line, in[0], __ATOMIC_RELEASE);
    cuemu_jitter();
    __atomic_store_n(line + 1, in[1], __ATOMIC_RELEASE);
}

static inline uint32_t ld_stop(const uint32_t *word)
{
    cuemu_check(word, sizeof *word);
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void spin_wait(void)
{
    cuemu_spin();
}

static inline void fence_system(void)
{
    __threadfence_system();
}

static inline void check_device(const void *address)
{
    cuemu_check(address, 1);
}

template <class T> static inline T ld_data(const T *address)
{
    cuemu_check(address, sizeof(T));
    cuemu_thread->read += sizeof(T);
    return *address;
}

template <class T> static inline void st_data(T *address, T value)
{
    cuemu_check(address, sizeof(T));
    cuemu_thread->written += sizeof(T);
    *address = value;
}

static inline float half_to_float(uint16_t bits)
{
    return widened(format_half, bits);
}

static inline uint16_t half_from_float_rn(float value)
{
    return (uint16_t)narrowed(format_half, value);
}

#else

/* clang-format off */
#define CC_LAUNCH(kernel, grid, block, shmem_bytes, stream, ...)                                   \
    ((kernel)<<<(grid), (block), (shmem_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__),            \
     cudaGetLastError())
/* clang-format on */

/* A flag, with what was released before its value was written. */
__device__ __forceinline__ uint64_t ld_acquire_sys(const uint64_t *flag)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

__device__ __forceinline__ uint32_t ld_acquire_sys(const uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

/* Sets a flag after all that this thread did, or saw done, before. */
__device__ __forceinline__ void st_release_sys(uint64_t *flag, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ void st_release_sys(uint32_t *flag, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/* A line is 16 bytes, aligned: two words of data (low half) and flag (high half), each read and
 * written whole, in any order between the two. */
__device__ __forceinline__ void ld_ll(const uint64_t *line, uint64_t out[2])
{
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(out[0]), "=l"(out[1])
                 : "l"(line)
                 : "memory");
}

__device__ __forceinline__ void st_ll(uint64_t *line, const uint64_t in[2])
{
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(line), "l"(in[0]), "l"(in[1])
                 : "memory");
}

/* A word of pinned host memory that only says "give up". */
__device__ __forceinline__ uint32_t ld_stop(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/* Stands in every turn of a loop that waits: nothing to do on a GPU. */
__device__ __forceinline__ void spin_wait(void)
{
}

__device__ __forceinline__ void fence_system(void)
{
    __threadfence_system();
}

/* For addresses in tables: the emulation dies where the device cannot reach. A GPU would fault. */
__device__ __forceinline__ void check_device(const void *)
{
}

/* Data in global memory, of 1 to 16 bytes, aligned to their size. */
template <class T> __device__ __forceinline__ T ld_data(const T *address)
{
    return *address;
}

template <class T> __device__ __forceinline__ void st_data(T *address, T value)
{
    *address = value;
}

/* Exact; a NaN keeps its bits, which the instruction alone would not do. */
__device__ __forceinline__ float half_to_float(uint16_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    uint32_t nan = 0x7f800000u | (bits & 0x7fffu) << 13 | (uint32_t)(bits >> 15) << 31;
    return (bits & 0x7fffu) > 0x7c00u ? __uint_as_float(nan) : value;
}

/* To nearest even, beyond 65504 to infinity, any NaN to HALF_NAN. */
__device__ __forceinline__ uint16_t half_from_float_rn(float value)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return value != value ? (uint16_t)HALF_NAN : bits;
}

#endif
