/* SPDX-License-Identifier: Apache-2.0
 * The step interpreter of the plug-in with a planted fault: for sums of floats alone, which is what
 * `matrix --plain` asks for. Built beside a copy of interp.cuh or prims.cuh with one change; see
 * proofs.cmake. */
#include "kernels/cuda/interp.cuh"

extern const struct interp_entry interp_float[OP_COUNT] = {INTERP_ENTRY(DT_FLOAT, OP_SUM)};
extern const struct interp_entry interp_double[OP_COUNT] = {};
