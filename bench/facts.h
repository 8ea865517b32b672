/* SPDX-License-Identifier: Apache-2.0
 * Facts about the machine and the software under a run, as "meta" of JSON: what somebody needs who
 * compares two records or wants to see the same again. */
#pragma once

#include "base/out.h"
#include "exec/place.h"

/* Sets the facts; call before the first row. Those that cannot be found out are null. The machine's
 * shape comes from `place`; NULL leaves it and the ranks' nodes out. Of the environment only what
 * is known to change a result is taken, as "env_NAME", and nothing whose name sounds like a secret.
 *
 *   host, started          node name; local time in ISO 8601 with the zone's offset
 *   processor, microcode, hypervisor, governor, clock_source, ..          see facts.c's tables
 *   packages, numa_nodes, machine_cores, machine_threads, cores_per_package
 *   cache_l1_B ..          bytes as rank 0 sees them
 *   numa_node_by_rank      "0 | 0 | -"; - is several or unknown */
void facts_note(struct out *out, const struct place *place);

/* The same with the files of the system below the directory `root` ("" outside tests). */
void facts_note_under(struct out *out, const struct place *place, const char *root);
