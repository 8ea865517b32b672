/* SPDX-License-Identifier: Apache-2.0
 * The fold kernels of float, double and bfloat16: see fold_kernel.cuh. */
#include "kernels/cuda/fold_kernel.cuh"

const struct fold_kernels fold_float = FOLD_KERNELS(DT_FLOAT);
const struct fold_kernels fold_double = FOLD_KERNELS(DT_DOUBLE);
const struct fold_kernels fold_bfloat16 = FOLD_KERNELS(DT_BFLOAT16);
