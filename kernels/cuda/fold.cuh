/* SPDX-License-Identifier: Apache-2.0
 * The folded reduction on a GPU, as struct fold in kernels.h says it: the one body that the
 * stand-alone kernels (fold_*.cu) and the step interpreter share. Every element of an input is
 * loaded once, every element of an output stored once, and nothing else touches memory, so the
 * bound of all versions is (nin + nout) * count * element size over the bandwidth of the memory.
 * What they try:
 *
 *   1  GPU_NAIVE   One element per thread and turn. A warp still asks for whole lines, but a thread
 *                  has nin elements of 1 .. 8 bytes on their way: bound by latency, and for narrow
 *                  types by the number of load and store instructions.
 *   2  GPU_VECTOR  16 bytes per thread and turn, where all pointers agree modulo 16: 2 to 16 times
 *                  fewer instructions, and as many times more bytes on their way. Elements before
 *                  the first and behind the last 16 bytes go one by one. Bound by latency where a
 *                  multiprocessor has few threads, as beside other kernels, or as a lane.
 *   3  GPU_FLIGHT  Four turns at once: all loads of two inputs are under way before the first
 *                  combine, those of the third before the second, and so on. By Little's law a
 *                  memory of 4.8 TB/s and 0.7 us needs 3.4 MB on their way, 25 KB in each of 132
 *                  multiprocessors: 512 threads with 2 inputs of 4 x 16 bytes have 64 KB. Bound by
 *                  the memory; f8e4m3 and f8e5m2, at some 40 instructions per element, and the
 *                  averages of 8-bit integers by arithmetic. Types of one byte and half take
 *                  two turns.
 *
 * Pointers that do not agree modulo 16 leave the elements one by one, in the last version as many
 * turns at once as else. */
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/gpu.h"

enum { FOLD_THREADS = 512 /* most in a block */ };

/* Turns at once. 16 bytes are so many elements of one byte that more would not fit into the
 * registers, nor, beside the interpreter's, of half, which takes several for each. */
template <enum dtype T, enum gpu_version V>
constexpr uint32_t fold_turns = V != GPU_FLIGHT                           ? 1
                                : sizeof(bits_of<T>) == 1 || T == DT_HALF ? 2
                                                                          : 4;

/* What a thread loads at N places, `stride` packs apart: P is uint4 or the bits of an element. */
template <uint32_t N, class P>
static __device__ __forceinline__ void fold_load(P (&pack)[N], const void *in, size_t skip,
                                                 size_t at, size_t stride)
{
    const P *from = (const P *)((const uint8_t *)in + skip) + at;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        pack[i] = ld_data(from + i * stride);
    }
}

template <enum dtype T, enum redop OP, uint32_t N, class P>
static __device__ __forceinline__ void fold_combine(P (&pack)[N], const P (&next)[N],
                                                    uint32_t divisor)
{
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        pack[i] = combine<T, OP>(pack[i], next[i], divisor);
    }
}

/* Packs at, at + stride, .. (N of them) of those that start `skip` bytes behind the pointers. All
 * are read before any is written. */
template <enum dtype T, enum redop OP, uint32_t N, class P>
static __device__ __forceinline__ void fold_turn(const struct fold &f, size_t skip, size_t at,
                                                 size_t stride)
{
    P pack[N], next[N], later[N];
    fold_load(pack, f.in[0], skip, at, stride);
    if (f.nin > 1) {
        fold_load(next, f.in[1], skip, at, stride);
#pragma unroll 1
        for (uint32_t k = 2; k < f.nin; k++) {
            fold_load(later, f.in[k], skip, at, stride);
            fold_combine<T, OP>(pack, next, 1);
#pragma unroll
            for (uint32_t i = 0; i < N; i++) {
                next[i] = later[i];
            }
        }
        fold_combine<T, OP>(pack, next, f.divisor);
    }
#pragma unroll 1
    for (uint32_t k = 0; k < f.nout; k++) {
        P *to = (P *)((uint8_t *)f.out[k] + skip) + at;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            st_data(to + i * stride, pack[i]);
        }
    }
}

/* `count` packs from `skip` bytes behind the pointers on, N at once per thread while there are. */
template <enum dtype T, enum redop OP, uint32_t N, class P>
static __device__ __forceinline__ void fold_stretch(const struct fold &f, size_t skip, size_t count,
                                                    uint32_t thread, uint32_t nthreads)
{
    size_t at = thread, stride = nthreads;
    if constexpr (N > 1) {
        for (; at + (N - 1) * stride < count; at += N * stride) {
            fold_turn<T, OP, N, P>(f, skip, at, stride);
        }
    }
#pragma unroll 1
    for (; at < count; at += stride) {
        fold_turn<T, OP, 1, P>(f, skip, at, stride);
    }
}

/* Elements of `esize` bytes in front of the first multiple of 16, `count` at most; `count` when the
 * pointers do not agree on where it is. */
static __device__ __forceinline__ size_t fold_head(const struct fold &f, uint32_t esize)
{
    uint32_t place = (uint32_t)(uintptr_t)f.in[0], differ = 0;
    for (uint32_t k = 1; k < f.nin; k++) {
        differ |= (uint32_t)(uintptr_t)f.in[k] ^ place;
    }
    for (uint32_t k = 0; k < f.nout; k++) {
        differ |= (uint32_t)(uintptr_t)f.out[k] ^ place;
    }
    size_t head = (0 - place) % 16 / esize;
    return differ % 16 || head > f.count ? f.count : head;
}

/* The part of a fold that falls to thread `thread` of `nthreads` (a block's, or a grid's), which
 * all call it. They need not be in step, nor do they wait for each other. `f` had better lie in
 * shared memory or be a parameter of the kernel: its pointers are looked up by index. */
template <enum dtype T, enum redop OP, enum gpu_version V>
static __device__ __forceinline__ void fold_range(const struct fold &f, uint32_t thread,
                                                  uint32_t nthreads)
{
    constexpr uint32_t esize = sizeof(bits_of<T>), per = 16 / esize;
    constexpr uint32_t N = fold_turns<T, V>;
    if constexpr (V == GPU_NAIVE) {
        fold_stretch<T, OP, 1, bits_of<T>>(f, 0, f.count, thread, nthreads);
    } else {
        size_t head = fold_head(f, esize), packs = (f.count - head) / per;
        fold_stretch<T, OP, N, uint4>(f, head * esize, packs, thread, nthreads);
        size_t first = 0, end = head;
#pragma unroll 1
        for (uint32_t part = 0; part < 2; part++) {
            fold_stretch<T, OP, N, bits_of<T>>(f, first * esize, end - first, thread, nthreads);
            first = head + packs * per;
            end = f.count;
        }
    }
}
