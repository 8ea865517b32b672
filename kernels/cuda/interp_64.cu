/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter for int64 and uint64: see interp.cuh. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_int64[OP_COUNT] = INTERP_ROW(DT_INT64);
extern const struct interp_entry interp_uint64[OP_COUNT] = INTERP_ROW(DT_UINT64);
