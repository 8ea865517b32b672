/* SPDX-License-Identifier: Apache-2.0
 * Conversion between the element types: a loop for each pair of types, which the compiler makes
 * vectors of where it can. */
#include "kernels/convert.h"

#include <string.h>

#define FROM(to, to_type, from, from_type)                                                         \
    case from:                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                       \
            ((to_type *)dst)[i] = (to_type)converted(to, from, ((const from_type *)src)[i]);       \
        }                                                                                          \
        break;

#define CONVERT_TO(name, to, type)                                                                 \
    static void name(void *restrict dst, const void *restrict src, enum dtype dtype, size_t count) \
    {                                                                                              \
        switch (dtype) {                                                                           \
            FROM(to, type, DT_INT8, uint8_t)                                                       \
            FROM(to, type, DT_UINT8, uint8_t)                                                      \
            FROM(to, type, DT_INT32, uint32_t)                                                     \
            FROM(to, type, DT_UINT32, uint32_t)                                                    \
            FROM(to, type, DT_INT64, uint64_t)                                                     \
            FROM(to, type, DT_UINT64, uint64_t)                                                    \
            FROM(to, type, DT_HALF, uint16_t)                                                      \
            FROM(to, type, DT_FLOAT, uint32_t)                                                     \
            FROM(to, type, DT_DOUBLE, uint64_t)                                                    \
            FROM(to, type, DT_BFLOAT16, uint16_t)                                                  \
            FROM(to, type, DT_F8E4M3, uint8_t)                                                     \
            FROM(to, type, DT_F8E5M2, uint8_t)                                                     \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }

CONVERT_TO(to_int8, DT_INT8, uint8_t)
CONVERT_TO(to_uint8, DT_UINT8, uint8_t)
CONVERT_TO(to_int32, DT_INT32, uint32_t)
CONVERT_TO(to_uint32, DT_UINT32, uint32_t)
CONVERT_TO(to_int64, DT_INT64, uint64_t)
CONVERT_TO(to_uint64, DT_UINT64, uint64_t)
CONVERT_TO(to_half, DT_HALF, uint16_t)
CONVERT_TO(to_float, DT_FLOAT, uint32_t)
CONVERT_TO(to_double, DT_DOUBLE, uint64_t)
CONVERT_TO(to_bfloat16, DT_BFLOAT16, uint16_t)
CONVERT_TO(to_f8e4m3, DT_F8E4M3, uint8_t)
CONVERT_TO(to_f8e5m2, DT_F8E5M2, uint8_t)

void kernels_convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t count)
{
    static void (*const loops[DT_COUNT])(void *restrict, const void *restrict, enum dtype,
                                         size_t) = {
        [DT_INT8] = to_int8,     [DT_UINT8] = to_uint8,       [DT_INT32] = to_int32,
        [DT_UINT32] = to_uint32, [DT_INT64] = to_int64,       [DT_UINT64] = to_uint64,
        [DT_HALF] = to_half,     [DT_FLOAT] = to_float,       [DT_DOUBLE] = to_double,
        [DT_F8E4M3] = to_f8e4m3, [DT_BFLOAT16] = to_bfloat16, [DT_F8E5M2] = to_f8e5m2,
    };
    if (count == 0) return;
    if (to == from) {
        memcpy(dst, src, count * dtype_bytes(to));
    } else {
        loops[to](dst, src, from, count);
    }
}
