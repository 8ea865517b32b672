/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter for f8e4m3 and f8e5m2: see interp.cuh. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_f8e4m3[OP_COUNT] = INTERP_ROW(DT_F8E4M3);
extern const struct interp_entry interp_f8e5m2[OP_COUNT] = INTERP_ROW(DT_F8E5M2);
