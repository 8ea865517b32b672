/* SPDX-License-Identifier: Apache-2.0
 * What the emulation's streams ask of its memory. */
#pragma once

#include "emu.h"

namespace emu
{

/* Whether `bytes` (> 0) may be copied: each place lies within one allocation or wholly outside of
 * all, and is what the kind says. */
cudaError_t check_copy(const void *dst, const void *src, size_t bytes, cudaMemcpyKind kind);
/* Whether `bytes` (> 0) lie in one allocation, or in pinned host memory. */
cudaError_t check_set(const void *dst, size_t bytes);
/* Whether the address is one of a 64-bit word that a stream can wait for or write. */
bool is_word(const void *address);

} // namespace emu
