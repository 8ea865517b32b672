/* SPDX-License-Identifier: Apache-2.0
 * Which cores each rank of a run gets, decided by the parent with hwloc; a child only binds itself
 * to the list of processors that it is handed. "Thread" here is a hardware thread, hwloc's PU: what
 * the kernel numbers as a cpu. A core has one or more of them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum bind {
    BIND_CORE, /* a core for each rank; a hardware thread where the cores are not enough */
    BIND_NUMA, /* all that may be used of one NUMA node; ranks in blocks over the nodes */
    BIND_NONE, /* all that may be used */
};

/* "core", "numa", "none", by enum bind; ended by NULL. */
extern const char *const bind_names[];

struct place;
struct hwloc_topology;

enum { MACHINE_CACHES = 5 };

/* What hwloc knows of the whole machine, whatever of it may be used; 0: unknown. */
struct machine {
    uint32_t packages, nodes, cores, threads;
    size_t cache_bytes[MACHINE_CACHES]; /* L1 (data), L2, .. as rank 0's first thread sees them */
};

/* Places `nranks` ranks on the cores in this thread's affinity mask, which holds no more than the
 * control group's cpuset. Nothing is bound yet. Cannot fail: what keeps ranks from a core of their
 * own is a warning, and BIND_CORE becomes BIND_NONE when it would put two ranks on one thread or
 * the control groups' time quotas are worth fewer cores than there are ranks. Reads the topology
 * (a few ms): once per run, in the parent. place_free frees; NULL is fine.
 *
 *   core: every core gets a rank before one gets a second; ranks are dealt in hwloc's order, so
 *         ranks next to each other sit next to each other; a core's threads are shared out among
 *         its ranks, so sets are disjoint.
 *   numa: rank r of n gets the node of the core floor(r C / n) among the C cores: blocks in
 *         proportion to the cores of each node. */
struct place *place_plan(enum bind bind, uint32_t nranks);

/* The same on a given topology (hwloc_topology_t), loaded with all of its threads (flag
 * INCLUDE_DISALLOWED), a mask ("0-3,8", not empty) and a quota in whole cores (UINT32_MAX: none).
 * Where the mask is no part of the topology, or that is NULL, every processor of the mask counts
 * as a core, which is a warning too. */
struct place *place_plan_on(struct hwloc_topology *topology, const char *mask, uint32_t quota,
                            enum bind bind, uint32_t nranks);
void place_free(struct place *place);

uint32_t place_nranks(const struct place *place);

/* What the ranks are bound to: what was asked for, or BIND_NONE. */
enum bind place_bound(const struct place *place);

/* The processors of a rank (rank < nranks) as the kernel numbers them: "0-3,8"; never empty. Lives
 * as long as the place. */
const char *place_cpus(const struct place *place, uint32_t rank);

/* The NUMA node of a rank's processors, as the kernel numbers it; UINT32_MAX: several or unknown.
 */
uint32_t place_node(const struct place *place, uint32_t rank);

/* Sentences that the user has to see, without newline; their number. They live as long as the
 * place. */
size_t place_warnings(const struct place *place, const char *const **sentences);

const struct machine *place_machine(const struct place *place);

/* Bytes of the largest cache that rank 0 shares in; 0: unknown. */
size_t place_last_level_bytes(const struct place *place);

/* Child side: binds the calling thread to such a list. -1 when that is not allowed or the text is
 * no list, which leaves the thread as it was. */
int place_bind(const char *cpus);
