/* SPDX-License-Identifier: Apache-2.0
 * Compiled by nvcc only: the emulation's numbers (cuda_runtime.h and cudaTypedefs.h of this folder)
 * are CUDA's. Each line repeats what stands there. */
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>

#define SAME(name, number) static_assert((int)(name) == (number), #name)

SAME(cudaSuccess, 0);
SAME(cudaErrorInvalidValue, 1);
SAME(cudaErrorMemoryAllocation, 2);
SAME(cudaErrorInitializationError, 3);
SAME(cudaErrorInvalidConfiguration, 9);
SAME(cudaErrorInvalidMemcpyDirection, 21);
SAME(cudaErrorInsufficientDriver, 35);
SAME(cudaErrorNoDevice, 100);
SAME(cudaErrorInvalidDevice, 101);
SAME(cudaErrorDeviceUninitialized, 201);
SAME(cudaErrorPeerAccessUnsupported, 217);
SAME(cudaErrorInvalidResourceHandle, 400);
SAME(cudaErrorIllegalState, 401);
SAME(cudaErrorSymbolNotFound, 500);
SAME(cudaErrorNotReady, 600);
SAME(cudaErrorPeerAccessAlreadyEnabled, 704);
SAME(cudaErrorPeerAccessNotEnabled, 705);
SAME(cudaErrorHostMemoryAlreadyRegistered, 712);
SAME(cudaErrorHostMemoryNotRegistered, 713);
SAME(cudaErrorLaunchFailure, 719);
SAME(cudaErrorNotSupported, 801);
SAME(cudaErrorStreamCaptureUnsupported, 900);
SAME(cudaErrorStreamCaptureInvalidated, 901);
SAME(cudaErrorUnknown, 999);
SAME(cudaMemcpyHostToHost, 0);
SAME(cudaMemcpyHostToDevice, 1);
SAME(cudaMemcpyDeviceToHost, 2);
SAME(cudaMemcpyDeviceToDevice, 3);
SAME(cudaMemcpyDefault, 4);
SAME(cudaDevAttrMaxThreadsPerBlock, 1);
SAME(cudaDevAttrMultiProcessorCount, 16);
SAME(cudaDevAttrComputeCapabilityMajor, 75);
SAME(cudaDevAttrComputeCapabilityMinor, 76);
SAME(cudaStreamCaptureModeGlobal, 0);
SAME(cudaStreamCaptureModeThreadLocal, 1);
SAME(cudaStreamCaptureModeRelaxed, 2);
SAME(cudaDriverEntryPointSuccess, 0);
SAME(cudaDriverEntryPointSymbolNotFound, 1);
SAME(cudaDriverEntryPointVersionNotSufficent, 2);
SAME(cudaStreamNonBlocking, 1);
SAME(cudaEventDefault, 0);
SAME(cudaEventBlockingSync, 1);
SAME(cudaEventDisableTiming, 2);
SAME(cudaIpcMemLazyEnablePeerAccess, 1);
SAME(cudaHostAllocDefault, 0);
SAME(cudaHostAllocPortable, 1);
SAME(cudaHostAllocMapped, 2);
SAME(cudaHostRegisterDefault, 0);
SAME(cudaHostRegisterPortable, 1);
SAME(cudaHostRegisterMapped, 2);
SAME(cudaEnableDefault, 0);
SAME(CU_STREAM_WAIT_VALUE_GEQ, 0);
SAME(CU_STREAM_WRITE_VALUE_DEFAULT, 0);
SAME(CUDA_SUCCESS, 0);
SAME(CUDA_ERROR_INVALID_VALUE, 1);

/* The driver's errors, which the plug-in passes on as the runtime's. */
SAME(CUDA_ERROR_NO_DEVICE, cudaErrorNoDevice);
SAME(CUDA_ERROR_INVALID_HANDLE, cudaErrorInvalidResourceHandle);
SAME(CUDA_ERROR_NOT_SUPPORTED, cudaErrorNotSupported);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cudaErrorStreamCaptureUnsupported);
SAME(CUDA_ERROR_ILLEGAL_ADDRESS, cudaErrorIllegalAddress);
SAME(CUDA_ERROR_LAUNCH_FAILED, cudaErrorLaunchFailure);

static_assert(sizeof(cudaIpcMemHandle_t) == 64, "a handle");
static_assert(sizeof(CUdeviceptr) == sizeof(uint64_t), "an address");
static_assert(std::is_same<CUstream, cudaStream_t>::value, "one type of streams");
static_assert(offsetof(struct cudaDeviceProp, name) == 0, "the name stands first");
static_assert(sizeof(cudaDeviceProp::name) == 256, "its room");

static_assert(sizeof(uint2) == 8 && alignof(uint2) == 8, "as in the emulation");
static_assert(sizeof(uint4) == 16 && alignof(uint4) == 16, "as in the emulation");
static_assert(sizeof(ulonglong2) == 16 && alignof(ulonglong2) == 16, "as in the emulation");
static_assert(sizeof(float2) == 8 && alignof(float2) == 8, "as in the emulation");
static_assert(sizeof(float4) == 16 && alignof(float4) == 16, "as in the emulation");
static_assert(sizeof(double2) == 16 && alignof(double2) == 16, "as in the emulation");
static_assert(sizeof(dim3) == 12 && sizeof(uint3) == 12, "as in the emulation");
