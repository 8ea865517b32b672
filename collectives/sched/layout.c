/* SPDX-License-Identifier: Apache-2.0
 * From chunks to bytes: see layout.h. */
#include "sched/layout.h"

static struct range block_range(const struct layout *layout, uint32_t block)
{
    if (layout->offsets) {
        return (struct range){layout->offsets[block],
                              layout->offsets[block + 1] - layout->offsets[block]};
    }
    return (struct range){block * layout->block_bytes, layout->block_bytes};
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

struct range chunk_whole(const struct layout *layout, uint32_t block, uint32_t part)
{
    struct range range = block_range(layout, block);
    size_t granules = (range.len + layout->granule - 1) / layout->granule;
    size_t each = granules / layout->nparts, extra = granules % layout->nparts;
    size_t first = part * each + min_size(part, extra);
    size_t last = first + each + (part < extra ? 1 : 0);
    size_t begin = min_size(first * layout->granule, range.len);
    size_t end = min_size(last * layout->granule, range.len);
    return (struct range){range.off + begin, end - begin};
}

struct range chunk_range(const struct layout *layout, uint32_t block, uint32_t part, uint64_t pass)
{
    return range_slice(chunk_whole(layout, block, part), layout->slice_bytes, pass);
}

static size_t longest_part(const struct layout *layout)
{
    size_t longest = 0;
    uint32_t nblocks = layout->offsets ? layout->nblocks : 1;
    for (uint32_t block = 0; block < nblocks; block++) {
        size_t len = chunk_whole(layout, block, 0).len; /* part 0 is never shorter than another */
        longest = len > longest ? len : longest;
    }
    return longest;
}

uint64_t layout_passes(const struct layout *layout)
{
    size_t longest = longest_part(layout);
    uint64_t passes = longest / layout->slice_bytes + (longest % layout->slice_bytes != 0);
    return passes ? passes : 1;
}

size_t layout_bytes(const struct layout *layout)
{
    return layout->offsets ? layout->offsets[layout->nblocks] - layout->offsets[0]
                           : layout->nblocks * layout->block_bytes;
}

size_t layout_longest(const struct layout *layout)
{
    return min_size(longest_part(layout), layout->slice_bytes);
}
