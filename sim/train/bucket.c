/* SPDX-License-Identifier: Apache-2.0
 * Cuts a list of tensors into buckets. One rule serves PyTorch's DDP and Megatron: a bucket takes
 * tensors until it has reached its cap; no tensor is cut. */
#include "train/bucket.h"

size_t bucket_cut(const uint64_t *tensor_bytes, size_t ntensors, uint64_t first_cap, uint64_t cap,
                  uint64_t *buckets, size_t *last)
{
    size_t n = 0;
    uint64_t held = 0;
    for (size_t i = 0; i < ntensors; i++) {
        held += tensor_bytes[i];
        if (held < (n == 0 ? first_cap : cap) && i + 1 < ntensors) continue;
        buckets[n] = held;
        if (last) last[n] = i;
        n++;
        held = 0;
    }
    return n;
}

uint64_t bucket_cap(const struct job *job)
{
    if (!job->dp_overlap || job->bucket_B <= 0 || job->bucket_B >= 0x1p63) return UINT64_MAX;
    return (uint64_t)job->bucket_B;
}
