/* SPDX-License-Identifier: Apache-2.0
 * The versions of the kernels that were built, for kernels.c alone. Each lives in its own file,
 * compiled for its own instruction set, and exports nothing but its table. */
#pragma once

#include "kernels/kernels.h"

extern const struct kernels kernels_reference;
extern const struct kernels kernels_generic;
extern const struct kernels kernels_avx2;   /* only where KERNELS_X86 is set */
extern const struct kernels kernels_avx512; /* only where KERNELS_X86 is set */
