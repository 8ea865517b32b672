/* SPDX-License-Identifier: Apache-2.0
 * Time on a GPU: see timing_gpu.h. */
#include "bench/timing_gpu.h"

#include "bench/clock.h"
#include "bench/stats.h"
#include "exec/device.h"

enum { HOST_SAMPLES = 21 };

static void record(struct rank *rk, int which)
{
    struct device *device = rk->device;
    device_must(rk, device->gpu->event_record(device->events[which], device->stream),
                "recording an event");
}

/* Lets the device hold its stream until `let_go`. */
static void hold(struct rank *rk)
{
    struct device *device = rk->device;
    *(volatile uint32_t *)device->hold = 0;
    device_must(rk, device->gpu->spin(device->hold_device, device->stream), "holding the stream");
}

static void let_go(struct rank *rk)
{
    __atomic_store_n(rk->device->hold, 1, __ATOMIC_RELEASE);
}

uint64_t timing_gpu_batch(struct rank *rk, const struct runner *runner, uint64_t batch,
                          void (*meet)(void *ctx), void *ctx)
{
    struct device *device = rk->device;
    if (runner->queue) {
        hold(rk);
        record(rk, 0);
        for (uint64_t i = 0; i < batch; i++)
            runner->queue(runner->ctx);
        record(rk, 1);
        meet(ctx);
        let_go(rk);
    } else {
        meet(ctx);
        record(rk, 0);
        for (uint64_t i = 0; i < batch; i++)
            runner->run(runner->ctx);
        record(rk, 1);
    }
    if (runner->wait) runner->wait(runner->ctx); /* which says for whom */
    device_sync(rk, "timing");
    float ms = 0;
    device_must(rk, device->gpu->event_ms(device->events[0], device->events[1], &ms), "timing");
    rank_tick(rk);
    return (uint64_t)((double)ms * 1e6);
}

static void meet_all(void *ctx)
{
    rank_barrier(ctx);
}

uint64_t timing_gpu_sample(struct rank *rk, const struct runner *runner, uint64_t batch)
{
    return timing_gpu_batch(rk, runner, batch, meet_all, rk);
}

void timing_gpu_host(struct rank *rk, const struct runner *runner, double *host_us,
                     double *launch_us)
{
    double host[HOST_SAMPLES], launch[HOST_SAMPLES] = {0};
    for (int i = 0; i < HOST_SAMPLES; i++) {
        rank_barrier(rk);
        uint64_t begin = clock_ns();
        if (runner->queue) {
            runner->queue(runner->ctx);
            launch[i] = (double)(clock_ns() - begin) / 1e3;
            runner->wait(runner->ctx);
        } else {
            runner->run(runner->ctx);
        }
        host[i] = board_most(rk, (double)(clock_ns() - begin) / 1e3);
    }
    *host_us = stats_median(host, HOST_SAMPLES);
    *launch_us = board_most(rk, stats_median(launch, HOST_SAMPLES));
}
