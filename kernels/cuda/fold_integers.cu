/* SPDX-License-Identifier: Apache-2.0
 * The fold kernels of integers: see fold_kernel.cuh. */
#include "kernels/cuda/fold_kernel.cuh"

const struct fold_kernels fold_int8 = FOLD_KERNELS(DT_INT8);
const struct fold_kernels fold_uint8 = FOLD_KERNELS(DT_UINT8);
const struct fold_kernels fold_int32 = FOLD_KERNELS(DT_INT32);
const struct fold_kernels fold_uint32 = FOLD_KERNELS(DT_UINT32);
const struct fold_kernels fold_int64 = FOLD_KERNELS(DT_INT64);
const struct fold_kernels fold_uint64 = FOLD_KERNELS(DT_UINT64);
