/* SPDX-License-Identifier: Apache-2.0
 * What the files of the plug-in offer plugin.cu for its table: see struct gpu in kernels/gpu.h for
 * what each does. All return 0 or the number of a CUDA error; streams are cudaStream_t. */
#pragma once

#include "kernels/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

int cuda_fold(const struct fold *fold, enum dtype dtype, enum redop op, enum gpu_version version,
              uint32_t blocks, uint32_t threads, void *stream);
int cuda_convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t count,
                 void *stream);
int cuda_fill(void *dst, const struct gpu_data *data, size_t count, void *stream);
int cuda_check(const void *src, const struct gpu_data *data, bool reduced, size_t count,
               struct gpu_bad *bad, void *stream);
int cuda_poison(void *dst, size_t bytes, uint64_t salt, void *stream);

int cuda_run_limit(enum dtype dtype, enum redop op, uint32_t threads, uint32_t *blocks);
int cuda_run(const struct gpu_launch *launch, void *stream);

#ifdef __cplusplus
}
#endif
