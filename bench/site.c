/* SPDX-License-Identifier: Apache-2.0
 * Data of the check where they lie: see site.h. */
#include "bench/site.h"

#include "exec/device.h"

int site_open(struct site *site, struct rank *rk, struct err *err)
{
    *site = (struct site){.rk = rk};
    if (!rk->device) return 0;
    const struct gpu *gpu = rk->device->gpu;
    void *bad, *seen;
    if (gpu_check(gpu, gpu->host_alloc(&bad, sizeof *site->bad), err, "pinned memory")) return -1;
    site->bad = bad;
    if (gpu_check(gpu, gpu->host_device(bad, &seen), err, "pinned memory")) return -1;
    site->bad_device = seen;
    return 0;
}

void site_close(struct site *site)
{
    if (site->bad) site->rk->device->gpu->host_free(site->bad);
    site->bad = NULL;
}

/* The end of a kernel that was started. */
static void finish(const struct site *site, int error, const char *what)
{
    device_must(site->rk, error, what);
    device_sync(site->rk, what);
}

void site_poison(const struct site *site, void *at, size_t bytes, uint64_t salt)
{
    const struct device *device = site->rk->device;
    if (!site->bad) {
        data_poison(at, bytes, salt);
    } else {
        finish(site, device->gpu->poison(at, bytes, salt, device->stream), "poisoning");
    }
}

void site_fill(const struct site *site, void *at, const struct gpu_data *data, size_t count)
{
    const struct device *device = site->rk->device;
    if (!site->bad) {
        data_fill(at, data->dtype, data->op, data->nranks, data->rank, data->first, count,
                  data->salt);
    } else {
        finish(site, device->gpu->fill(at, data, count, device->stream), "filling");
    }
}

static size_t compare(const void *at, const struct gpu_data *data, bool reduced, size_t count,
                      struct data_bad *bad)
{
    return reduced ? data_check_reduced(at, data->dtype, data->op, data->nranks, data->first, count,
                                        data->salt, bad)
                   : data_check_copy(at, data->dtype, data->op, data->nranks, data->rank,
                                     data->first, count, data->salt, bad);
}

size_t site_wrong(const struct site *site, const void *at, const struct gpu_data *data,
                  bool reduced, size_t count, struct data_bad *bad)
{
    const struct device *device = site->rk->device;
    if (!site->bad) return compare(at, data, reduced, count, bad);
    *site->bad = (struct gpu_bad){0, UINT64_MAX};
    finish(site, device->gpu->check(at, data, reduced, count, site->bad_device, device->stream),
           "checking");
    if (site->bad->count == 0) return 0;
    uint64_t element; /* the host says what was expected */
    size_t esize = dtype_bytes(data->dtype), index = site->bad->lowest;
    struct gpu_data one = *data;
    one.first += index;
    device_copy(site->rk, &element, (const uint8_t *)at + index * esize, esize);
    compare(&element, &one, reduced, 1, bad);
    bad->index = index;
    return site->bad->count;
}

void site_flip(const struct site *site, uint8_t *at)
{
    uint8_t byte;
    if (!site->bad) {
        *at ^= 1;
        return;
    }
    device_copy(site->rk, &byte, at, 1);
    byte ^= 1;
    device_copy(site->rk, at, &byte, 1);
}
