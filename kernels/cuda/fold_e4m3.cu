/* SPDX-License-Identifier: Apache-2.0
 * The fold kernels of f8e4m3: see fold_kernel.cuh. */
#include "kernels/cuda/fold_kernel.cuh"

const struct fold_kernels fold_f8e4m3 = FOLD_KERNELS(DT_F8E4M3);
