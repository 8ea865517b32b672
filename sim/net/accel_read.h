/* SPDX-License-Identifier: Apache-2.0
 * Readers of parts of the topology files that accel.c and topo.c share. Internal to net/. */
#pragma once

#include "base/doc.h"
#include "net/topo.h"

/* One accelerator object. Adds every fault; strings are borrowed from the doc, the list of aliases
 * is the caller's to free, also after a fault. Returns 0 or -1. */
int accel_read_row(struct doc *doc, const json_t *row, struct accel *accel, struct err *err);

/* A kind of link by name: 1 read, 0 absent, -1 a fault. */
int scale_up_read(struct doc *doc, const json_t *object, const char *key, enum scale_up *kind,
                  struct err *err);
