/* SPDX-License-Identifier: Apache-2.0
 * Ranks on cores: the affinity mask says what may be used, hwloc says how it hangs together. The
 * mask as the kernel gives it is already cut by the control group's cpuset; hwloc's set of allowed
 * processors only tells which of the two made it narrow. */
#include "exec/place.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"
#include "exec/cgroup.h"

const char *const bind_names[] = {"core", "numa", "none", NULL};

struct place {
    enum bind bind;
    uint32_t nranks;
    char **cpus;     /* by rank */
    uint32_t *nodes; /* by rank */
    char **warnings;
    size_t nwarnings, cap;
    struct machine machine;
};

/* A core of which at least one thread may be used. */
struct core {
    hwloc_bitmap_t threads; /* those that may be used */
    hwloc_obj_t object;     /* NULL: hwloc does not know it */
    hwloc_obj_t node;       /* its NUMA node; NULL: unknown */
    uint32_t ranks;
};

/* What may be used of the machine. */
struct scan {
    hwloc_topology_t topology; /* NULL: unknown */
    hwloc_bitmap_t mask;
    uint32_t quota; /* in whole cores */
    struct core *cores;
    uint32_t ncores, cap, nthreads;
};

static void warn(struct place *place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void warn(struct place *place, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    MEM_GROW(place->warnings, place->nwarnings, place->cap);
    place->warnings[place->nwarnings++] = mem_vprintf(format, args);
    va_end(args);
}

/* ---- what may be used ------------------------------------------------------------------------ */

static hwloc_bitmap_t new_bitmap(void)
{
    hwloc_bitmap_t bitmap = hwloc_bitmap_alloc();
    if (!bitmap) abort(); /* out of memory */
    return bitmap;
}

/* Freed by the caller. */
static char *list_text(hwloc_const_bitmap_t set)
{
    char *text = NULL;
    if (hwloc_bitmap_list_asprintf(&text, set) < 0) abort();
    return text;
}

/* The processors this thread may run on as a list; freed by the caller. The kernel leaves out those
 * that are offline or outside the cpuset. */
static char *own_mask(void)
{
    hwloc_bitmap_t mask = new_bitmap();
    for (size_t space = CPU_SETSIZE; hwloc_bitmap_iszero(mask); space *= 2) {
        cpu_set_t *set = CPU_ALLOC(space);
        size_t bytes = CPU_ALLOC_SIZE(space);
        bool known = set && sched_getaffinity(0, bytes, set) == 0;
        bool small = set && !known && errno == EINVAL; /* the kernel knows more processors */
        for (size_t cpu = 0; known && cpu < space; cpu++)
            if (CPU_ISSET_S(cpu, bytes, set)) hwloc_bitmap_set(mask, (unsigned)cpu);
        CPU_FREE(set);
        if (!small) break;
    }
    if (hwloc_bitmap_iszero(mask)) hwloc_bitmap_set(mask, 0); /* it runs somewhere */
    char *text = list_text(mask);
    hwloc_bitmap_free(mask);
    return text;
}

/* The NUMA node next to an object: memory hangs on the objects above it. */
static hwloc_obj_t home_node(hwloc_obj_t object)
{
    while (object && !object->memory_first_child)
        object = object->parent;
    hwloc_obj_t node = object ? object->memory_first_child : NULL;
    while (node && node->type != HWLOC_OBJ_NUMANODE) /* behind a cache of its own */
        node = node->memory_first_child;
    return node;
}

static void add_thread(struct scan *scan, hwloc_obj_t object, unsigned cpu)
{
    struct core *last = scan->ncores ? &scan->cores[scan->ncores - 1] : NULL;
    if (!last || !object || last->object != object) {
        MEM_GROW(scan->cores, scan->ncores, scan->cap);
        last = &scan->cores[scan->ncores++];
        *last = (struct core){new_bitmap(), object, home_node(object), 0};
    }
    hwloc_bitmap_set(last->threads, cpu);
    scan->nthreads++;
}

/* Counts the machine and lists the cores that may be used, in hwloc's order: neighbours share the
 * most. A thread without a core above it is one. */
static void scan_topology(struct scan *scan, struct machine *machine)
{
    hwloc_topology_t topology = scan->topology;
    hwloc_obj_t last = NULL;
    *machine = (struct machine){
        .packages = (uint32_t)hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE),
        .nodes = (uint32_t)hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE),
    };
    for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu));) {
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
        if (!core) core = pu;
        machine->threads++;
        machine->cores += core != last;
        last = core;
        if (hwloc_bitmap_isset(scan->mask, pu->os_index)) add_thread(scan, core, pu->os_index);
    }
}

/* The same where hwloc knows nothing. */
static void scan_mask(struct scan *scan)
{
    for (int cpu = -1; (cpu = hwloc_bitmap_next(scan->mask, cpu)) >= 0;)
        add_thread(scan, NULL, (unsigned)cpu);
}

static void scan_open(struct scan *scan, struct place *place, hwloc_topology_t topology,
                      const char *mask, uint32_t quota)
{
    *scan = (struct scan){.topology = topology, .mask = new_bitmap(), .quota = quota};
    if (hwloc_bitmap_list_sscanf(scan->mask, mask) || hwloc_bitmap_last(scan->mask) < 0) {
        hwloc_bitmap_only(scan->mask, 0);
    }
    if (topology &&
        hwloc_bitmap_isincluded(scan->mask, hwloc_topology_get_topology_cpuset(topology))) {
        scan_topology(scan, &place->machine);
        return;
    }
    scan->topology = NULL;
    scan_mask(scan);
    warn(place,
         "hwloc does not know the processors %s that may be used here: each counts as a core, "
         "caches "
         "and NUMA nodes are unknown",
         mask);
}

static void scan_close(struct scan *scan)
{
    for (uint32_t i = 0; i < scan->ncores; i++)
        hwloc_bitmap_free(scan->cores[i].threads);
    free(scan->cores);
    hwloc_bitmap_free(scan->mask);
}

/* ---- sets of ranks --------------------------------------------------------------------------- */

static uint32_t node_number(hwloc_obj_t node)
{
    return node ? node->os_index : UINT32_MAX;
}

static void give_core(struct place *place, struct scan *scan)
{
    uint32_t left = place->nranks, rank = 0;
    for (int level = 0; left; level++) {
        for (uint32_t i = 0; i < scan->ncores && left; i++) {
            struct core *core = &scan->cores[i];
            if (hwloc_bitmap_weight(core->threads) <= level) continue;
            core->ranks++;
            left--;
        }
    }
    hwloc_bitmap_t part = new_bitmap();
    for (uint32_t i = 0; i < scan->ncores; i++) {
        struct core *core = &scan->cores[i];
        uint32_t width = (uint32_t)hwloc_bitmap_weight(core->threads);
        int thread = -1;
        for (uint32_t j = 0; j < core->ranks; j++, rank++) {
            hwloc_bitmap_zero(part);
            for (uint32_t k = width * j / core->ranks; k < width * (j + 1) / core->ranks; k++) {
                thread = hwloc_bitmap_next(core->threads, thread);
                hwloc_bitmap_set(part, (unsigned)thread);
            }
            place->cpus[rank] = list_text(part);
            place->nodes[rank] = node_number(core->node);
        }
    }
    hwloc_bitmap_free(part);
}

static void give_node(struct place *place, struct scan *scan)
{
    hwloc_bitmap_t set = new_bitmap();
    for (uint32_t r = 0; r < place->nranks; r++) {
        hwloc_obj_t node = scan->cores[(uint64_t)r * scan->ncores / place->nranks].node;
        hwloc_bitmap_copy(set, scan->mask);
        if (node) hwloc_bitmap_and(set, set, node->cpuset);
        place->cpus[r] = list_text(set);
        place->nodes[r] = node_number(node);
    }
    hwloc_bitmap_free(set);
}

static void give_all(struct place *place, struct scan *scan)
{
    uint32_t node = node_number(scan->cores[0].node);
    for (uint32_t i = 1; i < scan->ncores; i++)
        if (node_number(scan->cores[i].node) != node) node = UINT32_MAX;
    for (uint32_t r = 0; r < place->nranks; r++) {
        place->cpus[r] = list_text(scan->mask);
        place->nodes[r] = node;
    }
}

static void (*const gives[])(struct place *place, struct scan *scan) = {
    [BIND_CORE] = give_core, [BIND_NUMA] = give_node, [BIND_NONE] = give_all};

/* The caches above rank 0's first thread. */
static void note_caches(struct place *place, hwloc_topology_t topology)
{
    hwloc_bitmap_t set = new_bitmap();
    hwloc_bitmap_list_sscanf(set, place->cpus[0]);
    hwloc_obj_t at = hwloc_get_pu_obj_by_os_index(topology, (unsigned)hwloc_bitmap_first(set));
    for (; at; at = at->parent) {
        if (!hwloc_obj_type_is_dcache(at->type)) continue;
        unsigned level = at->attr->cache.depth;
        if (level < 1 || level > MACHINE_CACHES) continue;
        place->machine.cache_bytes[level - 1] = at->attr->cache.size;
    }
    hwloc_bitmap_free(set);
}

/* ---- warnings -------------------------------------------------------------------------------- */

/* What made the mask narrower than the machine. */
static const char *mask_maker(const struct scan *scan)
{
    hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(scan->topology);
    return hwloc_bitmap_isincluded(allowed, scan->mask) ? "the control group's cpuset"
                                                        : "the affinity mask";
}

/* Fewer cores or threads than ranks although the machine has more. */
static void warn_narrow(struct place *place, const struct scan *scan)
{
    const struct machine *machine = &place->machine;
    uint32_t n = place->nranks;
    if (n > scan->ncores && machine->cores > scan->ncores) {
        warn(place, "%s has %u of %u cores, fewer than the %u ranks", mask_maker(scan),
             scan->ncores, machine->cores, n);
    } else if (n > scan->nthreads && machine->threads > scan->nthreads) {
        warn(place, "%s has %u of %u hardware threads, fewer than the %u ranks", mask_maker(scan),
             scan->nthreads, machine->threads, n);
    }
    if (n > scan->quota && scan->nthreads > scan->quota) {
        warn(place,
             "the control group's time quota is worth %u of %u processors, fewer than the %u ranks",
             scan->quota, scan->nthreads, n);
    }
}

/* Too many ranks. Returns true when some will wait for others. */
static bool warn_crowded(struct place *place, const struct scan *scan)
{
    uint32_t n = place->nranks, cores = scan->ncores, threads = scan->nthreads;
    bool crowded = n > threads || n > scan->quota;
    if (n > scan->quota && scan->quota < threads) {
        warn(place, "more ranks (%u) than cores (%u): times contain waiting for a core", n,
             scan->quota);
    } else if (crowded && threads == cores) {
        warn(place, "more ranks (%u) than cores (%u): times contain waiting for a core", n, cores);
    } else if (crowded) {
        warn(place,
             "more ranks (%u) than cores (%u, with %u hardware threads): times contain waiting for "
             "a core",
             n, cores, threads);
    } else if (n > cores) {
        warn(place,
             "more ranks (%u) than cores (%u, with %u hardware threads): some ranks share a core, "
             "each on hardware threads of its own",
             n, cores, threads);
    }
    return crowded;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

struct place *place_plan_on(struct hwloc_topology *topology, const char *mask, uint32_t quota,
                            enum bind bind, uint32_t nranks)
{
    struct place *place = mem_calloc(1, sizeof *place);
    struct scan scan;
    place->nranks = nranks;
    place->cpus = mem_calloc(nranks, sizeof *place->cpus);
    place->nodes = mem_calloc(nranks, sizeof *place->nodes);
    scan_open(&scan, place, topology, mask, quota);
    bool crowded = warn_crowded(place, &scan);
    warn_narrow(place, &scan);
    place->bind = bind == BIND_CORE && crowded ? BIND_NONE : bind;
    if (place->bind != bind) {
        warn(place, "ranks are not bound to cores: there is none for each of them");
    }
    gives[place->bind](place, &scan);
    if (scan.topology && nranks) note_caches(place, scan.topology);
    scan_close(&scan);
    return place;
}

/* The topology without devices, with what the control group forbids. NULL when hwloc cannot. */
static hwloc_topology_t load_topology(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return NULL;
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED |
                                           HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    if (hwloc_topology_load(topology) == 0) return topology;
    hwloc_topology_destroy(topology);
    return NULL;
}

struct place *place_plan(enum bind bind, uint32_t nranks)
{
    char *mask = own_mask();
    hwloc_topology_t topology = load_topology();
    struct place *place = place_plan_on(topology, mask, cgroup_cpus(""), bind, nranks);
    if (topology) hwloc_topology_destroy(topology);
    free(mask);
    return place;
}

void place_free(struct place *place)
{
    if (!place) return;
    for (uint32_t r = 0; r < place->nranks; r++)
        free(place->cpus[r]);
    for (size_t i = 0; i < place->nwarnings; i++)
        free(place->warnings[i]);
    free(place->cpus);
    free(place->nodes);
    free(place->warnings);
    free(place);
}

/* ---- answers --------------------------------------------------------------------------------- */

uint32_t place_nranks(const struct place *place)
{
    return place->nranks;
}

enum bind place_bound(const struct place *place)
{
    return place->bind;
}

const char *place_cpus(const struct place *place, uint32_t rank)
{
    return place->cpus[rank];
}

uint32_t place_node(const struct place *place, uint32_t rank)
{
    return place->nodes[rank];
}

size_t place_warnings(const struct place *place, const char *const **sentences)
{
    *sentences = (const char *const *)place->warnings;
    return place->nwarnings;
}

const struct machine *place_machine(const struct place *place)
{
    return &place->machine;
}

size_t place_last_level_bytes(const struct place *place)
{
    size_t most = 0;
    for (int i = 0; i < MACHINE_CACHES; i++)
        if (place->machine.cache_bytes[i] > most) most = place->machine.cache_bytes[i];
    return most;
}

/* ---- the child's side ------------------------------------------------------------------------ */

int place_bind(const char *cpus)
{
    hwloc_bitmap_t wanted = new_bitmap();
    int rc = -1;
    int last = hwloc_bitmap_list_sscanf(wanted, cpus) ? -1 : hwloc_bitmap_last(wanted);
    cpu_set_t *set = last < 0 ? NULL : CPU_ALLOC((size_t)last + 1);
    if (set) {
        size_t bytes = CPU_ALLOC_SIZE((size_t)last + 1);
        CPU_ZERO_S(bytes, set);
        for (int cpu = -1; (cpu = hwloc_bitmap_next(wanted, cpu)) >= 0;)
            CPU_SET_S((size_t)cpu, bytes, set);
        rc = sched_setaffinity(0, bytes, set) ? -1 : 0;
        CPU_FREE(set);
    }
    hwloc_bitmap_free(wanted);
    return rc;
}
