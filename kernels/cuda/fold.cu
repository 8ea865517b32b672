/* SPDX-License-Identifier: Apache-2.0
 * The fold of the table in gpu.h: looks the kernel up and chooses the launch. */
#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold_kernel.cuh"

/* In the order of the types. */
static const struct fold_kernels *const tables[DT_COUNT] = {
    &fold_int8, &fold_uint8, &fold_int32,  &fold_uint32,   &fold_int64,  &fold_uint64,
    &fold_half, &fold_float, &fold_double, &fold_bfloat16, &fold_f8e4m3, &fold_f8e5m2,
};

/* A type of `bytes` bytes whose kernels are the plainest: for copies. */
static enum dtype plain_type(uint32_t bytes)
{
    return bytes == 1 ? DT_UINT8 : bytes == 2 ? DT_BFLOAT16 : bytes == 4 ? DT_UINT32 : DT_UINT64;
}

/* Blocks of a launch over `bytes` bytes per input: a turn for every thread if that is not more than
 * a device can take in some waves; short ones, so that the last wave does not leave much idle. */
static int suitable_blocks(size_t bytes, uint32_t threads, uint32_t *blocks)
{
    enum { WAVES = 8, TURN_BYTES = 64 };
    int device, sms;
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error) return error;
    size_t turns = bytes / TURN_BYTES / threads + 1, most = (size_t)sms * WAVES;
    *blocks = (uint32_t)(turns < most ? turns : most);
    return 0;
}

int cuda_fold(const struct fold *fold, enum dtype dtype, enum redop op, enum gpu_version version,
              uint32_t blocks, uint32_t threads, void *stream)
{
    uint32_t esize = esize_of(dtype);
    if (fold->count == 0) return 0;
    if (fold->nin == 1) { /* whatever the operator */
        dtype = plain_type(esize);
        op = OP_SUM;
    }
    if (threads == 0) threads = FOLD_THREADS;
    if (threads > FOLD_THREADS) return cudaErrorInvalidValue;
    int error = blocks ? 0 : suitable_blocks(fold->count * esize, threads, &blocks);
    if (error) return error;
    fold_kernel_fn *kernel = tables[dtype]->of[op][version];
    return CC_LAUNCH(kernel, blocks, threads, 0, (cudaStream_t)stream, *fold);
}
