/* SPDX-License-Identifier: Apache-2.0
 * Time by the events of a stream: see gpu_bench.h. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "bench/clock.h"
#include "bench/gpu_bench.h"
#include "bench/stats.h"

enum { BATCH_MOST = 100, SAMPLE_US = 200 };

int gpu_watch_open(struct gpu_watch *watch, const struct gpu *gpu, struct err *err)
{
    void *word, *seen;
    *watch = (struct gpu_watch){.gpu = gpu};
    if (gpu_check(gpu, gpu->host_alloc(&word, GPU_LINE), err, "pinned memory")) return -1;
    watch->hold = word;
    if (gpu_check(gpu, gpu->host_device(word, &seen), err, "pinned memory")) return -1;
    watch->hold_device = seen;
    for (int i = 0; i < 2; i++) {
        if (gpu_check(gpu, gpu->event_new(&watch->events[i]), err, "an event")) return -1;
    }
    return gpu_check(gpu, gpu->stream_new(&watch->stream), err, "a stream");
}

void gpu_watch_close(struct gpu_watch *watch)
{
    const struct gpu *gpu = watch->gpu;
    if (watch->stream) gpu->stream_free(watch->stream);
    for (int i = 0; i < 2; i++) {
        if (watch->events[i]) gpu->event_free(watch->events[i]);
    }
    if (watch->hold) gpu->host_free(watch->hold);
}

int gpu_watch_run(struct gpu_watch *watch, gpu_work *work, void *ctx, const char *what,
                  struct err *err)
{
    const struct gpu *gpu = watch->gpu;
    if (gpu_check(gpu, work(ctx, watch->stream), err, "%s", what)) return -1;
    return gpu_check(gpu, gpu->stream_sync(watch->stream), err, "%s", what);
}

/* Event, batch, event, behind a spin kernel. */
static int queue(struct gpu_watch *watch, gpu_work *work, void *ctx, uint64_t batch,
                 double *launch_us)
{
    const struct gpu *gpu = watch->gpu;
    int error = gpu->spin(watch->hold_device, watch->stream);
    if (!error) error = gpu->event_record(watch->events[0], watch->stream);
    uint64_t begin = clock_ns();
    for (uint64_t i = 0; !error && i < batch; i++)
        error = work(ctx, watch->stream);
    *launch_us = (double)(clock_ns() - begin) / 1e3 / (double)(batch ? batch : 1);
    if (!error) error = gpu->event_record(watch->events[1], watch->stream);
    return error;
}

int gpu_watch_time(struct gpu_watch *watch, gpu_work *work, void *ctx, uint64_t batch, double *us,
                   double *launch_us, struct err *err)
{
    const struct gpu *gpu = watch->gpu;
    float ms = 0;
    __atomic_store_n(watch->hold, 0, __ATOMIC_RELEASE);
    int error = queue(watch, work, ctx, batch, launch_us);
    __atomic_store_n(watch->hold, 1,
                     __ATOMIC_RELEASE); /* also after an error: the stream goes on */
    int end = gpu->stream_sync(watch->stream);
    if (!error) error = end;
    if (!error) error = gpu->event_ms(watch->events[0], watch->events[1], &ms);
    *us = (double)ms * 1e3 / (double)(batch ? batch : 1);
    return gpu_check(gpu, error, err, "timing on the device");
}

static int copy_work(void *ctx, void *stream)
{
    const struct gpu_copy *copy = ctx;
    return copy->gpu->copy_async(copy->dst, copy->src, copy->bytes, stream);
}

/* Operations per sample, after one to warm up. */
static int find_batch(struct gpu_watch *watch, gpu_work *work, void *ctx, uint64_t *batch,
                      struct err *err)
{
    double us, launch;
    if (gpu_watch_run(watch, work, ctx, "warming up", err) ||
        gpu_watch_time(watch, work, ctx, 2, &us, &launch, err)) {
        return -1;
    }
    double fit = us > 0 ? ceil(SAMPLE_US / us) : BATCH_MOST;
    *batch = (uint64_t)fmin(fmax(fit, 1), BATCH_MOST);
    return 0;
}

int gpu_watch_beside(struct gpu_watch *watch, gpu_work *work, void *ctx, struct gpu_copy *copy,
                     uint64_t samples, struct gpu_row *row, struct err *err)
{
    double *us = mem_calloc(2 * samples, sizeof *us), *copies = us + samples, launch;
    uint64_t batch, copy_batch;
    int bad = find_batch(watch, copy_work, copy, &copy_batch, err);
    if (!bad) bad = find_batch(watch, work, ctx, &batch, err);
    for (uint64_t i = 0; !bad && i < samples; i++) {
        bad = gpu_watch_time(watch, work, ctx, batch, &us[i], &launch, err);
        if (!bad)
            bad = gpu_watch_time(watch, copy_work, copy, copy_batch, &copies[i], &launch, err);
    }
    if (!bad) {
        row->p50_us = stats_median(us, samples);
        row->min_us = us[0];
        row->copy_us = stats_median(copies, samples);
        row->copy_bytes = copy->bytes;
    }
    free(us);
    return bad;
}
