/* SPDX-License-Identifier: Apache-2.0
 * Ranks on cores, over made-up machines that hwloc builds from a text: what holds for every
 * machine, mask and number of ranks, examples written out, the warnings, and binding on this
 * machine. */
#include <criterion/criterion.h>

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/place.h"

/* `synthetic` is hwloc's; `allowed` what a control group leaves, NULL: all. */
static hwloc_topology_t machine_new(const char *synthetic, const char *allowed)
{
    hwloc_topology_t topology;
    cr_assert_eq(hwloc_topology_init(&topology), 0);
    cr_assert_eq(hwloc_topology_set_synthetic(topology, synthetic), 0, "%s", synthetic);
    cr_assert_eq(hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED), 0);
    cr_assert_eq(hwloc_topology_load(topology), 0, "%s", synthetic);
    if (allowed) {
        hwloc_bitmap_t set = hwloc_bitmap_alloc();
        hwloc_bitmap_list_sscanf(set, allowed);
        cr_assert_eq(hwloc_topology_allow(topology, set, NULL, HWLOC_ALLOW_FLAG_CUSTOM), 0);
        hwloc_bitmap_free(set);
    }
    return topology;
}

static hwloc_bitmap_t bitmap_of(const char *list)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    cr_assert_eq(hwloc_bitmap_list_sscanf(set, list), 0, "%s", list);
    return set;
}

/* ---- what holds everywhere ------------------------------------------------------------------- */

#define SERVER "pack:2 numa:2 l3:2 core:2 pu:2" /* 32 threads, 4 nodes */

static const struct {
    const char *synthetic, *mask;
} machines[] = {
    {"pu:1", "0"},
    {"core:1 pu:2", "0-1"},
    {"pack:1 core:2 pu:1", "0-1"},
    {"pack:1 core:2 pu:1", "1"},
    {"pu:6", "0,2-5"},
    {"core:4 pu:2", "0-7"},
    {"core:4 pu:2", "1,2-4,7"}, /* halves of cores and a whole one */
    {"core:3 pu:4", "0-2,4-10"},
    {"numa:2 core:4 pu:1", "0-7"},
    {"numa:2 core:4 pu:1", "0-3,7"}, /* five ranks in blocks of four and one */
    {"core:2 pu:2(indexes=0,2,1,3)", "0-3"},
    {"numa:2 core:2 pu:2(indexes=core:numa)", "0-7"},
    {SERVER, "0-31"},
    {SERVER, "3,8-9,15,16-17,19-30"},
    {SERVER, "17"},
};
enum { NMACHINES = sizeof machines / sizeof *machines };

/* One plan with what is known about it from elsewhere. */
struct tried {
    hwloc_topology_t topology;
    hwloc_bitmap_t mask;
    const struct place *place;
    uint32_t nranks, ncores, nthreads;
    char *what;
};

static hwloc_obj_t core_of(hwloc_topology_t topology, unsigned cpu)
{
    hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(topology, cpu);
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
    return core ? core : pu;
}

/* Cores of which the set holds a part. */
static uint32_t cores_in(hwloc_topology_t topology, hwloc_const_bitmap_t set)
{
    hwloc_bitmap_t left = hwloc_bitmap_dup(set);
    uint32_t cores = 0;
    for (int cpu; (cpu = hwloc_bitmap_first(left)) >= 0; cores++)
        hwloc_bitmap_andnot(left, left, core_of(topology, (unsigned)cpu)->cpuset);
    hwloc_bitmap_free(left);
    return cores;
}

static void expect_core(const struct tried *t)
{
    hwloc_bitmap_t taken = hwloc_bitmap_alloc(), cores = hwloc_bitmap_alloc();
    unsigned before = 0;
    for (uint32_t r = 0; r < t->nranks; r++) {
        hwloc_bitmap_t set = bitmap_of(place_cpus(t->place, r));
        unsigned first = (unsigned)hwloc_bitmap_first(set);
        hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(t->topology, first);
        hwloc_obj_t core = core_of(t->topology, first);
        cr_expect(!hwloc_bitmap_intersects(set, taken), "%s: rank %u takes what others have",
                  t->what, r);
        cr_expect(hwloc_bitmap_isincluded(set, core->cpuset), "%s: rank %u on cores", t->what, r);
        cr_expect(r == 0 || pu->logical_index > before, "%s: rank %u is out of order", t->what, r);
        if (t->nranks <= t->ncores) { /* all that may be used of a core of its own */
            hwloc_bitmap_t whole = hwloc_bitmap_dup(core->cpuset);
            hwloc_bitmap_and(whole, whole, t->mask);
            cr_expect(hwloc_bitmap_isequal(whole, set), "%s: rank %u", t->what, r);
            hwloc_bitmap_free(whole);
        }
        before = pu->logical_index;
        hwloc_bitmap_or(taken, taken, set);
        hwloc_bitmap_or(cores, cores, core->cpuset);
        hwloc_bitmap_free(set);
    }
    uint32_t used = cores_in(t->topology, cores);
    uint32_t least = t->nranks < t->ncores ? t->nranks : t->ncores;
    cr_expect_eq(used, least, "%s: %u cores are used", t->what, used);
    hwloc_bitmap_free(taken);
    hwloc_bitmap_free(cores);
}

static void expect_numa(const struct tried *t)
{
    unsigned before = 0;
    for (uint32_t r = 0; r < t->nranks; r++) {
        hwloc_bitmap_t set = bitmap_of(place_cpus(t->place, r));
        hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(t->topology, place_node(t->place, r));
        cr_assert_not_null(node, "%s: rank %u on node %u", t->what, r, place_node(t->place, r));
        hwloc_bitmap_t own = hwloc_bitmap_dup(node->cpuset);
        hwloc_bitmap_and(own, own, t->mask);
        cr_expect(hwloc_bitmap_isequal(own, set), "%s: rank %u on %s", t->what, r,
                  place_cpus(t->place, r));
        cr_expect_geq(node->logical_index, before, "%s: rank %u is out of order", t->what, r);
        before = node->logical_index;
        uint32_t here = 0; /* its share: within one of ranks x cores of the node / cores */
        for (uint32_t other = 0; other < t->nranks; other++)
            here += place_node(t->place, other) == node->os_index;
        double share = (double)t->nranks * cores_in(t->topology, own) / t->ncores;
        cr_expect(here > share - 1 && here < share + 1, "%s: node %u has %u ranks, not %g", t->what,
                  node->os_index, here, share);
        hwloc_bitmap_free(own);
        hwloc_bitmap_free(set);
    }
}

static void expect_all(const struct tried *t)
{
    for (uint32_t r = 0; r < t->nranks; r++) {
        hwloc_bitmap_t set = bitmap_of(place_cpus(t->place, r));
        cr_expect(hwloc_bitmap_isequal(set, t->mask), "%s: rank %u", t->what, r);
        hwloc_bitmap_free(set);
    }
}

static void (*const expects[])(const struct tried *t) = {
    [BIND_CORE] = expect_core, [BIND_NUMA] = expect_numa, [BIND_NONE] = expect_all};

/* Returns the number of plans tried. */
static size_t try_machine(const char *synthetic, const char *mask, enum bind bind)
{
    struct tried t = {.topology = machine_new(synthetic, NULL), .mask = bitmap_of(mask)};
    t.nthreads = (uint32_t)hwloc_bitmap_weight(t.mask);
    t.ncores = cores_in(t.topology, t.mask);
    for (t.nranks = 1; t.nranks <= 2 * t.nthreads + 1; t.nranks++) {
        struct place *place = place_plan_on(t.topology, mask, UINT32_MAX, bind, t.nranks);
        t.place = place;
        t.what = mem_printf("%s, mask %s, --bind %s, %u ranks", synthetic, mask, bind_names[bind],
                            t.nranks);
        bool fits = bind != BIND_CORE || t.nranks <= t.nthreads;
        cr_expect_eq(place_bound(place), fits ? bind : BIND_NONE, "%s", t.what);
        expects[place_bound(place)](&t);
        for (uint32_t r = 0; r < t.nranks; r++) {
            hwloc_bitmap_t set = bitmap_of(place_cpus(place, r));
            cr_expect(!hwloc_bitmap_iszero(set), "%s: rank %u has nothing", t.what, r);
            cr_expect(hwloc_bitmap_isincluded(set, t.mask), "%s: rank %u", t.what, r);
            hwloc_bitmap_free(set);
        }
        free(t.what);
        place_free(place);
    }
    hwloc_bitmap_free(t.mask);
    hwloc_topology_destroy(t.topology);
    return t.nranks - 1;
}

Test(place, every_machine_mask_and_number_of_ranks)
{
    size_t tried = 0;
    for (size_t i = 0; i < NMACHINES; i++)
        for (enum bind bind = BIND_CORE; bind <= BIND_NONE; bind++)
            tried += try_machine(machines[i].synthetic, machines[i].mask, bind);
    cr_expect_gt(tried, 3 * NMACHINES);
}

/* ---- written out ----------------------------------------------------------------------------- */

struct example {
    const char *synthetic, *mask;
    enum bind bind;
    uint32_t nranks;
    const char *cpus, *nodes; /* by rank, separated by blanks; - no single node */
};

static const struct example examples[] = {
    {"pack:1 core:2 pu:1", "0-1", BIND_CORE, 2, "0 1", "0 0"},
    {"pack:1 core:2 pu:1", "0-1", BIND_CORE, 3, "0-1 0-1 0-1", "0 0 0"},
    {"core:4 pu:2", "0-7", BIND_CORE, 2, "0-1 2-3", "0 0"},
    {"core:4 pu:2", "0-7", BIND_CORE, 6, "0 1 2 3 4-5 6-7", "0 0 0 0 0 0"},
    {"core:2 pu:4", "0-7", BIND_CORE, 4, "0-1 2-3 4-5 6-7", "0 0 0 0"},
    {"core:2 pu:4", "0-7", BIND_CORE, 5, "0 1 2-3 4-5 6-7", "0 0 0 0 0"},
    {"core:4 pu:2", "0,2-3", BIND_CORE, 2, "0 2-3", "0 0"},
    {"core:4 pu:2", "0,2-3", BIND_CORE, 3, "0 2 3", "0 0 0"},
    /* threads numbered as Linux does: second hyperthreads after all the first */
    {"core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", "0-7", BIND_CORE, 4, "0,4 1,5 2,6 3,7", "0 0 0 0"},
    {"numa:2 core:2 pu:1", "0-3", BIND_NUMA, 1, "0-1", "0"},
    {"numa:2 core:2 pu:1", "0-3", BIND_NUMA, 2, "0-1 2-3", "0 1"},
    {"numa:2 core:2 pu:1", "0-3", BIND_NUMA, 5, "0-1 0-1 0-1 2-3 2-3", "0 0 0 1 1"},
    {"numa:2 core:4 pu:1", "1-3,7", BIND_NUMA, 4, "1-3 1-3 1-3 7", "0 0 0 1"},
    {"numa:2 core:2 pu:1", "0-3", BIND_NONE, 2, "0-3 0-3", "- -"},
    {"numa:2 core:2 pu:1", "2-3", BIND_NONE, 1, "2-3", "1"},
    {"numa:2(indexes=7,5) core:2 pu:1", "0-3", BIND_NUMA, 2, "0-1 2-3", "7 5"},
    {"numa:2(indexes=7,5) core:2 pu:1", "0-3", BIND_CORE, 4, "0 1 2 3", "7 7 5 5"},
};

/* What follows the first k blanks of a list of words. */
static char *word(const char *list, uint32_t k)
{
    for (; k; k--)
        list = strchr(list, ' ') + 1;
    return mem_printf("%.*s", (int)strcspn(list, " "), list);
}

Test(place, examples)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const struct example *e = &examples[i];
        hwloc_topology_t topology = machine_new(e->synthetic, NULL);
        struct place *place = place_plan_on(topology, e->mask, UINT32_MAX, e->bind, e->nranks);
        cr_assert_eq(place_nranks(place), e->nranks);
        for (uint32_t r = 0; r < e->nranks; r++) {
            char *cpus = word(e->cpus, r), *number = word(e->nodes, r);
            uint32_t node = *number == '-' ? UINT32_MAX : (uint32_t)atoi(number);
            cr_expect_str_eq(place_cpus(place, r), cpus, "%s, %u ranks: rank %u is on %s, not %s",
                             e->synthetic, e->nranks, r, place_cpus(place, r), cpus);
            cr_expect_eq(place_node(place, r), node, "%s, %u ranks: rank %u on node %u",
                         e->synthetic, e->nranks, r, place_node(place, r));
            free(cpus);
            free(number);
        }
        place_free(place);
        hwloc_topology_destroy(topology);
    }
}

/* ---- warnings -------------------------------------------------------------------------------- */

struct warned {
    const char *synthetic, *allowed, *mask;
    uint32_t quota, nranks;
    const char *sentences; /* one a line, without the one about binding */
};

static const struct warned warned[] = {
    {"core:2 pu:1", NULL, "0-1", UINT32_MAX, 2, ""},
    {"core:4 pu:2", NULL, "0-7", UINT32_MAX, 4, ""},
    {"core:4 pu:1", NULL, "0-1", UINT32_MAX, 2, ""}, /* narrow, but enough */
    {"core:2 pu:1", NULL, "0-1", UINT32_MAX, 8,
     "more ranks (8) than cores (2): times contain waiting for a core\n"},
    {"core:2 pu:1", NULL, "0", UINT32_MAX, 2,
     "more ranks (2) than cores (1): times contain waiting for a core\n"
     "the affinity mask has 1 of 2 cores, fewer than the 2 ranks\n"},
    {"core:2 pu:1", "1", "1", UINT32_MAX, 2,
     "more ranks (2) than cores (1): times contain waiting for a core\n"
     "the control group's cpuset has 1 of 2 cores, fewer than the 2 ranks\n"},
    {"core:4 pu:1", "0-2", "0", UINT32_MAX, 2,
     "more ranks (2) than cores (1): times contain waiting for a core\n"
     "the affinity mask has 1 of 4 cores, fewer than the 2 ranks\n"},
    {"core:4 pu:2", NULL, "0-1", UINT32_MAX, 2, /* one core's hyperthreads while three are idle */
     "more ranks (2) than cores (1, with 2 hardware threads): some ranks share a core, each on "
     "hardware threads of its own\n"
     "the affinity mask has 1 of 4 cores, fewer than the 2 ranks\n"},
    {"core:2 pu:2", NULL, "0,2", UINT32_MAX, 3,
     "more ranks (3) than cores (2): times contain waiting for a core\n"
     "the affinity mask has 2 of 4 hardware threads, fewer than the 3 ranks\n"},
    {"core:2 pu:2", NULL, "0-3", UINT32_MAX, 5,
     "more ranks (5) than cores (2, with 4 hardware threads): times contain waiting for a core\n"},
    {"core:4 pu:1", NULL, "0-3", 2, 2, ""},
    {"core:4 pu:1", NULL, "0-3", 1, 2,
     "more ranks (2) than cores (1): times contain waiting for a core\n"
     "the control group's time quota is worth 1 of 4 processors, fewer than the 2 ranks\n"},
    {"core:4 pu:1", NULL, "0-3", 7, 5, /* the quota is not what is short */
     "more ranks (5) than cores (4): times contain waiting for a core\n"},
    {"core:4 pu:1", NULL, "0-3", 6, 8,
     "more ranks (8) than cores (4): times contain waiting for a core\n"},
};

Test(place, warnings)
{
    for (size_t i = 0; i < sizeof warned / sizeof *warned; i++) {
        const struct warned *w = &warned[i];
        hwloc_topology_t topology = machine_new(w->synthetic, w->allowed);
        for (enum bind bind = BIND_CORE; bind <= BIND_NONE; bind++) {
            struct place *place = place_plan_on(topology, w->mask, w->quota, bind, w->nranks);
            const char *const *sentences;
            size_t count = place_warnings(place, &sentences);
            char *all = mem_strdup("");
            size_t unbound = 0;
            for (size_t k = 0; k < count; k++) {
                if (strstr(sentences[k], "not bound")) {
                    unbound++;
                    continue;
                }
                char *more = mem_printf("%s%s\n", all, sentences[k]);
                free(all);
                all = more;
            }
            cr_expect_str_eq(all, w->sentences, "row %zu, --bind %s:\n%s", i, bind_names[bind],
                             all);
            bool waiting = strstr(w->sentences, "waiting") != NULL;
            cr_expect_eq(place_bound(place), waiting && bind == BIND_CORE ? BIND_NONE : bind);
            cr_expect_eq(unbound, place_bound(place) != bind, "row %zu, --bind %s", i,
                         bind_names[bind]);
            free(all);
            place_free(place);
        }
        hwloc_topology_destroy(topology);
    }
}

/* hwloc reads another machine, or none: every processor counts as a core, and that is said. */
Test(place, a_topology_that_is_not_this_machine)
{
    hwloc_topology_t other = machine_new("l3:1(size=4096) core:2 pu:1", NULL);
    hwloc_topology_t topologies[] = {NULL, other};
    for (size_t i = 0; i < 2; i++) {
        struct place *place = place_plan_on(topologies[i], "1,5", UINT32_MAX, BIND_CORE, 2);
        const char *const *sentences;
        cr_assert_eq(place_warnings(place, &sentences), 1);
        cr_expect(strstr(sentences[0], "does not know the processors 1,5"), "%s", sentences[0]);
        cr_expect_eq(place_bound(place), BIND_CORE);
        cr_expect_str_eq(place_cpus(place, 0), "1");
        cr_expect_str_eq(place_cpus(place, 1), "5");
        cr_expect_eq(place_node(place, 1), UINT32_MAX);
        cr_expect_eq(place_last_level_bytes(place), 0);
        cr_expect_eq(place_machine(place)->cores, 0);
        place_free(place);
        place = place_plan_on(topologies[i], "1,5", UINT32_MAX, BIND_NUMA, 3);
        cr_expect_str_eq(place_cpus(place, 2), "1,5");
        place_free(place);
    }
    hwloc_topology_destroy(other);
}

Test(place, the_machine_and_its_caches)
{
    hwloc_topology_t topology =
        machine_new("pack:2 numa:2 l3:1(size=33554432) l2:2(size=1048576) l1d:1(size=49152) "
                    "l1i:1(size=32768) core:1 pu:2",
                    NULL);
    struct place *place = place_plan_on(topology, "3-15", UINT32_MAX, BIND_CORE, 3);
    const struct machine *m = place_machine(place);
    cr_expect_eq(m->packages, 2);
    cr_expect_eq(m->nodes, 4);
    cr_expect_eq(m->cores, 8);
    cr_expect_eq(m->threads, 16);
    cr_expect_eq(m->cache_bytes[0], 49152);
    cr_expect_eq(m->cache_bytes[1], 1048576);
    cr_expect_eq(m->cache_bytes[2], 33554432);
    cr_expect_eq(m->cache_bytes[3], 0);
    cr_expect_eq(place_last_level_bytes(place), 33554432);
    place_free(place);
    hwloc_topology_destroy(topology);
    topology = machine_new("core:2 pu:1", NULL);
    place = place_plan_on(topology, "0-1", UINT32_MAX, BIND_NONE, 1);
    cr_expect_eq(place_last_level_bytes(place), 0, "there is no cache in this machine");
    place_free(place);
    hwloc_topology_destroy(topology);
}

/* ---- this machine ---------------------------------------------------------------------------- */

static char *mask_now(void)
{
    cpu_set_t set;
    hwloc_bitmap_t bitmap = hwloc_bitmap_alloc();
    char *text;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) hwloc_bitmap_set(bitmap, (unsigned)cpu);
    cr_assert_geq(hwloc_bitmap_list_asprintf(&text, bitmap), 0);
    hwloc_bitmap_free(bitmap);
    return text;
}

static void *bind_thread(void *arg)
{
    cr_expect_eq(place_bind(arg), 0);
    char *now = mask_now();
    cr_expect_str_eq(now, arg);
    free(now);
    return NULL;
}

Test(place, binding_here)
{
    char *before = mask_now(), *after;
    struct place *none = place_plan(BIND_NONE, 2), *core = place_plan(BIND_CORE, 1);
    cr_expect_str_eq(place_cpus(none, 1), before);
    after = mask_now(); /* looking must not bind */
    cr_expect_str_eq(after, before);
    free(after);

    char *one = mem_strdup(place_cpus(core, 0));
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, bind_thread, one), 0);
    pthread_join(thread, NULL);
    after = mask_now(); /* another thread's affair */
    cr_expect_str_eq(after, before);
    free(after);

    const char *const bad[] = {"", "core", "0-1,x", "0-", "99999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(place_bind(bad[i]), -1, "\"%s\"", bad[i]);
        after = mask_now();
        cr_expect_str_eq(after, before, "\"%s\"", bad[i]);
        free(after);
    }
    free(one);
    free(before);
    place_free(core);
    place_free(none);
}

/* taskset in front of the program: the plan keeps to it, and says what it costs. */
Test(place, a_narrow_mask_here)
{
    struct place *wide = place_plan(BIND_CORE, 1);
    cr_assert_eq(place_bind(place_cpus(wide, 0)), 0);
    char *mask = mask_now();
    hwloc_bitmap_t set = bitmap_of(mask);
    uint32_t threads = (uint32_t)hwloc_bitmap_weight(set);
    struct place *narrow = place_plan(BIND_CORE, threads + 1);
    const char *const *sentences;
    size_t count = place_warnings(narrow, &sentences), named = 0;
    for (size_t i = 0; i < count; i++)
        named += strstr(sentences[i], "the affinity mask has") ||
                 strstr(sentences[i], "the control group's cpuset has");
    bool more = place_machine(narrow)->threads > threads;
    cr_expect_eq(named, more, "%u of %u threads, %zu warnings", threads,
                 place_machine(narrow)->threads, count);
    cr_expect_eq(place_bound(narrow), BIND_NONE);
    for (uint32_t r = 0; r <= threads; r++)
        cr_expect_str_eq(place_cpus(narrow, r), mask);
    hwloc_bitmap_free(set);
    free(mask);
    place_free(narrow);
    place_free(wide);
}
