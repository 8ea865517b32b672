/* SPDX-License-Identifier: Apache-2.0
 * Slow accelerators among the faults of a command line: "gpu3=0.8" (the fourth of the cluster),
 * "host1/gpu3=0.8", "host*" or "gpu*" for all. Faults of links are net/fault.h's; "link:" before
 * one says so where the name alone would mean the accelerator ("link:host0/gpu2=0.5"). */
#pragma once

#include "base/err.h"
#include "base/opts.h"
#include "net/topo.h"
#include "train/event.h"

/* The faults of a command line, sorted. Strings are borrowed from it. */
struct slow_faults {
    struct opts_list links; /* for fault_parse_all */
    struct opts_list gpus;  /* for slow_read */
};

/* Sorts by what they look like; cannot fail. Freed by slow_release. */
void slow_sort(struct slow_faults *faults, const struct opts_list *texts);
void slow_release(struct slow_faults *faults);

/* The accelerators that the faults of `gpus` name on a cluster, each with its speed; the list,
 * freed by the caller, by number. 0, or -1 with a sentence for each fault that is wrong: no such
 * host or accelerator, a speed outside 0.01..1, one accelerator named twice. */
int slow_read(const struct opts_list *gpus, const struct topo *topo, struct event_slow **slow,
              size_t *nslow, struct err *err);
