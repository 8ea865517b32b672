/* SPDX-License-Identifier: Apache-2.0
 * How a framework cuts gradients (and weights) into buckets that are reduced or gathered at once,
 * while the backward pass goes on: who waits for what in data parallelism. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "train/job.h"

/* Buckets of a list of tensors in the order in which their gradients are ready (last layer first).
 * DDP's rule: a tensor is never cut; a bucket closes once it has reached its cap, so it may exceed
 * it; the first bucket has a cap of its own (PyTorch: 1 MiB, then 25 MiB). Megatron's: the same
 * with one cap, counted in elements. Writes the bytes of each bucket into `buckets` (room for
 * ntensors) and, if `last` is not NULL, the number of the tensor that closes it; gives their
 * number. */
size_t bucket_cut(const uint64_t *tensor_bytes, size_t ntensors, uint64_t first_cap, uint64_t cap,
                  uint64_t *buckets, size_t *last);

/* Bytes of a bucket of this job's data parallelism: of `grad_B` per parameter, by its framework's
 * row; UINT64_MAX: one bucket for all (no overlap, or legacy). */
uint64_t bucket_cap(const struct job *job);
