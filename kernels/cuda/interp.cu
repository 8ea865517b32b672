/* SPDX-License-Identifier: Apache-2.0
 * The interpreter of each type and operator, for the plug-in's table. */
#include "kernels/cuda/entries.h"
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_int8[OP_COUNT], interp_uint8[OP_COUNT],
    interp_int32[OP_COUNT], interp_uint32[OP_COUNT], interp_int64[OP_COUNT],
    interp_uint64[OP_COUNT], interp_half[OP_COUNT], interp_float[OP_COUNT], interp_double[OP_COUNT],
    interp_bfloat16[OP_COUNT], interp_f8e4m3[OP_COUNT], interp_f8e5m2[OP_COUNT];

static const struct interp_entry *const rows[DT_COUNT] = {
    interp_int8, interp_uint8, interp_int32,  interp_uint32,   interp_int64,  interp_uint64,
    interp_half, interp_float, interp_double, interp_bfloat16, interp_f8e4m3, interp_f8e5m2};

int cuda_run(const struct gpu_launch *launch, void *stream)
{
    return rows[launch->dtype][launch->op].run(launch, stream);
}

int cuda_run_limit(enum dtype dtype, enum redop op, uint32_t threads, uint32_t *blocks)
{
    int device, sms, each;
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error) return (int)error;
    int failed = rows[dtype][op].limit(threads, &each);
    if (failed) return failed;
    *blocks = (uint32_t)sms * (uint32_t)each;
    return 0;
}
