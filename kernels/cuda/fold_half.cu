/* SPDX-License-Identifier: Apache-2.0
 * The fold kernels of half: see fold_kernel.cuh. */
#include "kernels/cuda/fold_kernel.cuh"

const struct fold_kernels fold_half = FOLD_KERNELS(DT_HALF);
