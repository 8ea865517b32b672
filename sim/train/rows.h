/* SPDX-License-Identifier: Apache-2.0
 * Published measurements as jobs: how the text of a table (machine, framework, flags) becomes the
 * figures that memory and step read. The rules look at inputs only, never at a measured column, an
 * id, or a source; data/published.csv and data/flags.csv hold the patterns. */
#pragma once

#include "base/csv.h"
#include "net/topo.h"
#include "train/framework.h"
#include "train/job.h"

/* Why a row is scored apart; a set. */
enum {
    BUCKET_LORA = 1,
    BUCKET_SFT = 2,
    BUCKET_PACKED = 4,
    BUCKET_ENCODER = 8,
    BUCKET_OFFLOAD = 16,
    BUCKET_DETERMINISTIC = 32,
    BUCKET_REGRESSION = 64,
    BUCKET_RECOMPUTE_UNKNOWN = 128,
    BUCKET_VISION = 256,
    /* labels: these rows are scored with the rest */
    BUCKET_NET_UNSTATED = 512,
    BUCKET_FROM_FLOPS = 1024,
    BUCKET_GPU_RARE = 2048,
    BUCKET_APART = 511, /* those that are scored apart */
};

enum completeness { COMPLETE_Y, COMPLETE_ASSUMED, COMPLETE_NO };

enum mem_measure { MEM_NONE, MEM_ALLOCATED, MEM_RESERVED, MEM_SMI, MEM_OOM, MEM_OTHER };

struct row {
    const char *file, *id, *framework; /* borrowed from the table */
    size_t line;
    size_t published; /* row of data/published.csv that its framework matched */
    struct job job;
    struct topo topo;   /* the cluster that it ran on, by the same figures */
    const char *reason; /* why there is no job, NULL if there is one */
    unsigned buckets;
    enum completeness complete;
    bool status_ok;
    const char *status;
    double measured_s;   /* 0: none */
    double measured_GiB; /* 0: none */
    enum mem_measure mem;
    int mem_stage;      /* -1: the largest, 0: first, 1: last */
    char *assumed;      /* what was taken without being stated */
    unsigned unmatched; /* flag words that no pattern knows */
};

struct rows {
    struct row *rows;
    size_t nrows;
    size_t nwords, nunmatched; /* flag words in all, and those that no pattern knows */
    char **unmatched;          /* different ones */
    size_t nunmatched_kinds;
    struct csv *tables;
    size_t ntables;
    struct csv published, flags;
    struct accel_table accels;
    struct framework_table frameworks;
};

/* Reads files, and folders of .csv files. Returns 0, or -1 with a sentence per unreadable file. */
int rows_read(struct rows *rows, char *const *paths, size_t npaths, struct err *err);
void rows_release(struct rows *rows);

/* Names of the buckets of a set, joined by +; "" for none. Freed by the caller. */
char *rows_bucket_names(unsigned buckets);

/* Fills what a device needs from the accelerator table. Returns 0, or -1 if its class has no
 * constants (a sentence is added). */
int rows_device(struct device *dev, const struct accel *accel, struct err *err);
