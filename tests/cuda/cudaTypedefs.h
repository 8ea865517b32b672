/* SPDX-License-Identifier: Apache-2.0
 * The part of CUDA's driver interface that kernels/cuda/ reaches through
 * cudaGetDriverEntryPointByVersion: waits and writes of 64-bit words in a stream. */
#pragma once

#include "cuda_runtime.h"

typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUstream_st *CUstream;
typedef uint64_t cuuint64_t;
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WRITE_VALUE_DEFAULT = 0 };

typedef CUresult (*PFN_cuStreamWaitValue64_v11070)(CUstream stream, CUdeviceptr address,
                                                   cuuint64_t value, unsigned flags);
typedef CUresult (*PFN_cuStreamWriteValue64_v11070)(CUstream stream, CUdeviceptr address,
                                                    cuuint64_t value, unsigned flags);
