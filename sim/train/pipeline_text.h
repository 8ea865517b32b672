/* SPDX-License-Identifier: Apache-2.0
 * A run of a pipeline as a picture of characters, and as a file of Chrome's trace event format
 * (Perfetto, chrome://tracing). */
#pragma once

#include "base/err.h"
#include "base/out.h"
#include "train/pipeline.h"

/* A line per rank, as notes: forwards as digits, backwards as letters (micro-batch modulo 10, 26),
 * W as "=", overlapped pairs as "#", idle as ".". At most `width` columns (>= 1), fewer where all
 * times are multiples of one. */
void pipeline_draw(struct out *out, const struct pipeline *pipeline, const struct pipeline_run *run,
                   uint32_t width);

/* Writes the trace: a row per rank. An existing file is refused unless `overwrite`. 0 or -1. */
int pipeline_trace(const struct pipeline *pipeline, const struct pipeline_run *run,
                   const char *path, bool overwrite, struct err *err);
