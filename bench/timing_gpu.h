/* SPDX-License-Identifier: Apache-2.0
 * Time on a GPU, in two kinds that are not the same. "GPU time": events before and behind a batch
 * of operations in the stream, so that the device's clock says how long it worked. What launching
 * costs the host is kept out of it: a spin kernel holds the stream until everything is queued.
 *
 *      host     queue spin, event, batch, event | barrier | let go
 *      device   spin ......................................|event| op | op | .. | op |event|
 *
 * "As the host sees it": an operation alone, from the call that launches it to the moment at which
 * the host finds it done; with it, the part of that which the call itself took. */
#pragma once

#include "bench/side.h"

enum { TIMING_GPU_BATCH = 200 /* a stream takes some 1000 operations before queueing blocks */ };
#define TIMING_GPU_SAMPLE_S 200e-6 /* events have steps of 0.5 us */

/* Nanoseconds of a batch by the device's clock; all ranks call it. A runner that cannot queue is
 * run `batch` times between the events, so that its launches are in the time. */
uint64_t timing_gpu_sample(struct rank *rk, const struct runner *runner, uint64_t batch);

/* The same among those ranks that `meet` brings together. */
uint64_t timing_gpu_batch(struct rank *rk, const struct runner *runner, uint64_t batch,
                          void (*meet)(void *ctx), void *ctx);

/* Microseconds as the host sees it, the median of a few operations, each the slowest rank's; and of
 * the launching call (0: the runner cannot queue). All ranks call it and learn the same. */
void timing_gpu_host(struct rank *rk, const struct runner *runner, double *host_us,
                     double *launch_us);
