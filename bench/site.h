/* SPDX-License-Identifier: Apache-2.0
 * Data of the correctness check where they lie: in memory of the host, or of a rank's GPU, where
 * kernels fill, poison and compare them and the host only learns what was wrong. The data are those
 * of kernels/data.h. */
#pragma once

#include "exec/world.h"
#include "kernels/data.h"
#include "kernels/gpu.h"

struct site {
    struct rank *rk;
    struct gpu_bad *bad, *bad_device; /* pinned: what a kernel found; NULL: memory of the host */
};

/* A site in the memory of the rank's GPU if it has one (device_open), else of the host. 0 or -1;
 * site_close in either case. */
int site_open(struct site *site, struct rank *rk, struct err *err);
void site_close(struct site *site);

/* data_poison, data_fill and (reduced or not) data_check_* at an address of the site; over when
 * they return. */
void site_poison(const struct site *site, void *at, size_t bytes, uint64_t salt);
void site_fill(const struct site *site, void *at, const struct gpu_data *data, size_t count);
size_t site_wrong(const struct site *site, const void *at, const struct gpu_data *data,
                  bool reduced, size_t count, struct data_bad *bad);

/* Flips a bit of a byte: a planted fault. */
void site_flip(const struct site *site, uint8_t *at);
