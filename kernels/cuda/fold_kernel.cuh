/* SPDX-License-Identifier: Apache-2.0
 * The stand-alone kernels around fold_range, and the tables by which cuda_fold finds them: one per
 * type, spread over the files fold_*.cu so that they compile side by side. Build line of each:
 * nvcc -std=c++17 -O3 -fmad=false -c; no register may be spilled. */
#pragma once

#include "kernels/cuda/fold.cuh"

/* Launched with any grid of blocks of 1 .. FOLD_THREADS threads. The fold lies in the parameters of
 * the kernel, where pointers are looked up by index without a copy. */
template <enum dtype T, enum redop OP, enum gpu_version V>
__global__ void __launch_bounds__(FOLD_THREADS, 1)
    fold_kernel(const __grid_constant__ struct fold fold)
{
    fold_range<T, OP, V>(fold, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
}

typedef void fold_kernel_fn(const struct fold fold);

struct fold_kernels {
    fold_kernel_fn *of[OP_COUNT][GPU_VERSION_COUNT];
};

#define FOLD_VERSIONS(dtype, op)                                                                   \
    {                                                                                              \
        fold_kernel<dtype, op, GPU_NAIVE>, fold_kernel<dtype, op, GPU_VECTOR>,                     \
            fold_kernel<dtype, op, GPU_FLIGHT>                                                     \
    }
/* In the order of the operators. */
#define FOLD_KERNELS(dtype)                                                                        \
    {                                                                                              \
        {                                                                                          \
            FOLD_VERSIONS(dtype, OP_SUM), FOLD_VERSIONS(dtype, OP_PROD),                           \
                FOLD_VERSIONS(dtype, OP_MAX), FOLD_VERSIONS(dtype, OP_MIN),                        \
                FOLD_VERSIONS(dtype, OP_AVG)                                                       \
        }                                                                                          \
    }

extern const struct fold_kernels fold_int8, fold_uint8, fold_int32, fold_uint32, fold_int64,
    fold_uint64, fold_half, fold_float, fold_double, fold_bfloat16, fold_f8e4m3, fold_f8e5m2;
