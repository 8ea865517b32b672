/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter for float and double: see interp.cuh. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_float[OP_COUNT] = INTERP_ROW(DT_FLOAT);
extern const struct interp_entry interp_double[OP_COUNT] = INTERP_ROW(DT_DOUBLE);
