/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter for int32 and uint32: see interp.cuh. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_int32[OP_COUNT] = INTERP_ROW(DT_INT32);
extern const struct interp_entry interp_uint32[OP_COUNT] = INTERP_ROW(DT_UINT32);
