/* SPDX-License-Identifier: Apache-2.0
 * Conversion between the element types on a GPU: a kernel for each pair of types, bit for bit
 * kernels_convert. A thread takes so many elements per turn that the longer of the two types fills
 * 16 bytes, where both pointers allow it, else one. Bound by the memory but for narrow floats,
 * whose bits are put together in integer operations. */
#include "kernels/convert.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/entries.h"

enum { CONVERT_THREADS = 512, CONVERT_BLOCKS = 1024 };

template <class B, uint32_t N> struct alignas(N * sizeof(B)) elements {
    B at[N];
};

/* `count` groups of N elements. */
template <enum dtype TO, enum dtype FROM, uint32_t N>
static __device__ __forceinline__ void convert_range(bits_of<TO> *dst, const bits_of<FROM> *src,
                                                     size_t count, size_t thread, size_t nthreads)
{
    typedef elements<bits_of<TO>, N> to_type;
    typedef elements<bits_of<FROM>, N> from_type;
    for (size_t i = thread; i < count; i += nthreads) {
        from_type in = ld_data((const from_type *)src + i);
        to_type out;
#pragma unroll
        for (uint32_t k = 0; k < N; k++) {
            out.at[k] = (bits_of<TO>)converted(TO, FROM, in.at[k]);
        }
        st_data((to_type *)dst + i, out);
    }
}

template <enum dtype TO, enum dtype FROM>
static __global__ void __launch_bounds__(CONVERT_THREADS)
    convert_kernel(void *dst, const void *src, size_t count)
{
    constexpr size_t to = sizeof(bits_of<TO>), from = sizeof(bits_of<FROM>);
    constexpr uint32_t N = 16 / (to > from ? to : from);
    size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t nthreads = (size_t)gridDim.x * blockDim.x;
    bits_of<TO> *out = (bits_of<TO> *)dst;
    const bits_of<FROM> *in = (const bits_of<FROM> *)src;
    bool aligned = (uintptr_t)dst % (N * to) == 0 && (uintptr_t)src % (N * from) == 0;
    size_t groups = aligned ? count / N : 0, done = groups * N;
    convert_range<TO, FROM, N>(out, in, groups, thread, nthreads);
    convert_range<TO, FROM, 1>(out + done, in + done, count - done, thread, nthreads);
}

typedef void convert_fn(void *dst, const void *src, size_t count);

/* In the order of the types. */
#define CONVERT_TO(to)                                                                             \
    {                                                                                              \
        convert_kernel<to, DT_INT8>, convert_kernel<to, DT_UINT8>, convert_kernel<to, DT_INT32>,   \
            convert_kernel<to, DT_UINT32>, convert_kernel<to, DT_INT64>,                           \
            convert_kernel<to, DT_UINT64>, convert_kernel<to, DT_HALF>,                            \
            convert_kernel<to, DT_FLOAT>, convert_kernel<to, DT_DOUBLE>,                           \
            convert_kernel<to, DT_BFLOAT16>, convert_kernel<to, DT_F8E4M3>,                        \
            convert_kernel<to, DT_F8E5M2>                                                          \
    }

static convert_fn *const kernels[DT_COUNT][DT_COUNT] = {
    CONVERT_TO(DT_INT8),   CONVERT_TO(DT_UINT8),    CONVERT_TO(DT_INT32),  CONVERT_TO(DT_UINT32),
    CONVERT_TO(DT_INT64),  CONVERT_TO(DT_UINT64),   CONVERT_TO(DT_HALF),   CONVERT_TO(DT_FLOAT),
    CONVERT_TO(DT_DOUBLE), CONVERT_TO(DT_BFLOAT16), CONVERT_TO(DT_F8E4M3), CONVERT_TO(DT_F8E5M2),
};

int cuda_convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t count,
                 void *stream)
{
    if (count == 0) return 0;
    size_t blocks = (count - 1) / CONVERT_THREADS + 1;
    if (blocks > CONVERT_BLOCKS) blocks = CONVERT_BLOCKS;
    return CC_LAUNCH(kernels[to][from], (uint32_t)blocks, CONVERT_THREADS, 0, (cudaStream_t)stream,
                     dst, src, count);
}
