/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter for half and bfloat16: see interp.cuh. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_half[OP_COUNT] = INTERP_ROW(DT_HALF);
extern const struct interp_entry interp_bfloat16[OP_COUNT] = INTERP_ROW(DT_BFLOAT16);
