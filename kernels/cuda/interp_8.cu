/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter for int8 and uint8: see interp.cuh. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_int8[OP_COUNT] = INTERP_ROW(DT_INT8);
extern const struct interp_entry interp_uint8[OP_COUNT] = INTERP_ROW(DT_UINT8);
