/* SPDX-License-Identifier: Apache-2.0
 * How a buffer is cut into blocks, parts and passes. A schedule knows no size; this is the one
 * place where a chunk becomes bytes, for verifier, executor and simulator alike.
 *
 *     buffer   |      block 0       |      block 1       | ...       equal, or an offset table
 *     block    | part 0 | part 1 | part 2 |                          cut in granules of 64 B
 *     part     | pass 0 | pass 1 | .. |                              slices of slice_bytes
 *
 * chunk number = block * nparts + part. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { LAYOUT_GRANULE = 64 };

struct layout {
    uint32_t nblocks;      /* >= 1 */
    uint32_t nparts;       /* parts per block, >= 1 */
    size_t granule;        /* bytes; parts and slices start at multiples of it in their block */
    size_t block_bytes;    /* bytes of each block when `offsets` is NULL */
    const size_t *offsets; /* or nblocks + 1 byte offsets, ascending; borrowed */
    size_t slice_bytes;    /* most bytes of a chunk that one pass handles; a multiple of granule */
};

struct range {
    size_t off; /* bytes from the start of the buffer */
    size_t len; /* bytes; may be 0 */
};

/* Bytes of part `part` of block `block` that pass `pass` handles. A block of B bytes has
 * ceil(B / granule) granules; the first (granules % nparts) parts hold one more than the rest, and
 * the last non-empty part ends with the block. A part may be empty, and so is a pass behind its
 * end (off is then where it would start). Cannot fail; indexes must be in range. */
struct range chunk_range(const struct layout *layout, uint32_t block, uint32_t part, uint64_t pass);

/* The same for all passes at once: the whole part. */
struct range chunk_whole(const struct layout *layout, uint32_t block, uint32_t part);

/* The slice of a whole chunk that one pass handles (its place behind the end is where it would
 * start). For those who keep a table of whole chunks. */
static inline struct range range_slice(struct range whole, size_t slice_bytes, uint64_t pass)
{
    size_t skip;
    if (__builtin_mul_overflow((size_t)pass, slice_bytes, &skip) || skip > whole.len) {
        skip = whole.len;
    }
    size_t left = whole.len - skip;
    return (struct range){whole.off + skip, left < slice_bytes ? left : slice_bytes};
}

/* Passes until the longest chunk is done; at least 1. */
uint64_t layout_passes(const struct layout *layout);

/* Bytes of the whole buffer. */
size_t layout_bytes(const struct layout *layout);

/* Bytes of the longest slice any pass handles: min(slice_bytes, longest part). */
size_t layout_longest(const struct layout *layout);
