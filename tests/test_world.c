/* SPDX-License-Identifier: Apache-2.0
 * Tests of the shared memory of a run: what is free, refusals with both numbers, populating
 * without signals, extents, barriers among threads. Launching is test_launch.c. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

#include "base/mem.h"
#include "exec/cgroup.h"
#include "exec/launch.h"
#include "exec/world.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SANITIZED = 1 }; /* its shadow needs terabytes of address space */
#else
enum { SANITIZED = 0 };
#endif

enum { PAGE_TEST = 4096, MIB = 1 << 20 };

/* ---- control groups, read from made-up trees ------------------------------------------------ */

struct fake_file {
    const char *path, *text;
};
struct fake_tree {
    const char *what;
    struct fake_file files[12];
    size_t memory; /* expected bytes */
    uint32_t cpus;
};

#define MEMINFO                                                                                    \
    {                                                                                              \
        "proc/meminfo", "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:    8000 kB\n"         \
    }
#define V2_MOUNT(root) "30 23 0:26 " root " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"

static const struct fake_tree trees[] = {
    {"no control groups at all", {MEMINFO}, 8000 * 1024, UINT32_MAX},
    {"no MemAvailable", {{"proc/meminfo", "MemFree:  100 kB\n"}}, 100 * 1024, UINT32_MAX},
    {"v2: the cache counts as free",
     {MEMINFO,
      {"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT("/")},
      {"sys/fs/cgroup/a/b/memory.max", "1000000\n"},
      {"sys/fs/cgroup/a/b/memory.current", "700000\n"},
      {"sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 200000\nactive_file 7\n"},
      {"sys/fs/cgroup/a/b/cpu.max", "350000 100000\n"}},
     500000,
     3},
    {"v2: a group above is tighter",
     {MEMINFO,
      {"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT("/")},
      {"sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"sys/fs/cgroup/a/memory.max", "4000000\n"},
      {"sys/fs/cgroup/a/memory.high", "3000000\n"},
      {"sys/fs/cgroup/a/memory.current", "2900000\n"},
      {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
      {"sys/fs/cgroup/a/cpu.max", "50000 100000\n"}},
     100000,
     1},
    {"v2: over the limit leaves nothing",
     {MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {"proc/self/mountinfo", V2_MOUNT("/")},
      {"sys/fs/cgroup/memory.max", "1000\n"},
      {"sys/fs/cgroup/memory.current", "2000\n"}},
     0,
     UINT32_MAX},
    {"v2: the namespace hides the path",
     {MEMINFO,
      {"proc/self/cgroup", "0::/../../elsewhere\n"},
      {"proc/self/mountinfo", V2_MOUNT("/")},
      {"sys/elsewhere/memory.max", "10\n"}, /* not a group: must not be followed */
      {"sys/fs/cgroup/memory.max", "5000\n"},
      {"sys/fs/cgroup/memory.current", "1000\n"}},
     4000,
     UINT32_MAX},
    {"v2: only the container's part is mounted, at a place with a blank",
     {MEMINFO,
      {"proc/self/cgroup", "0::/docker/abc/x\n"},
      {"proc/self/mountinfo", "9 8 0:1 /docker/abc /my\\040cg rw shared:1 - cgroup2 none rw\n"},
      {"my cg/x/memory.max", "6000\n"},
      {"my cg/memory.max", "5500\n"}},
     5500,
     UINT32_MAX},
    {"v1 beside an empty v2",
     {MEMINFO,
      {"proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/c\n0::/\n"},
      {"proc/self/mountinfo", "35 31 0:32 / /sys/m rw - cgroup cgroup rw,memory\n"
                              "36 31 0:33 / /sys/c rw - cgroup cgroup rw,cpu,cpuacct\n"
                              "37 31 0:34 / /sys/u rw - cgroup2 cgroup2 rw\n"},
      {"sys/m/m/memory.limit_in_bytes", "900000\n"},
      {"sys/m/m/memory.usage_in_bytes", "500000\n"},
      {"sys/m/m/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n"},
      {"sys/m/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/c/c/cpu.cfs_quota_us", "200000\n"},
      {"sys/c/c/cpu.cfs_period_us", "100000\n"},
      {"sys/c/cpu.cfs_quota_us", "-1\n"},
      {"sys/c/cpu.cfs_period_us", "100000\n"}},
     500000,
     2},
};

/* Writes a file below `root`, with the folders above it. */
static void write_file(const char *root, const struct fake_file *file)
{
    char *path = mem_printf("%s/%s", root, file->path);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out, "%s", path);
    fputs(file->text, out);
    fclose(out);
    free(path);
}

static void remove_tree(const char *root)
{
    char *command = mem_printf("rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
    free(command);
}

Test(memory, every_group_above_counts)
{
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        char root[] = "/tmp/collbench-test-XXXXXX";
        cr_assert_not_null(mkdtemp(root));
        for (const struct fake_file *file = trees[i].files; file->path; file++) {
            write_file(root, file);
        }
        size_t memory = memory_available_under(root);
        uint32_t cpus = cgroup_cpus(root);
        remove_tree(root);
        cr_expect_eq(memory, trees[i].memory, "%s: %zu B", trees[i].what, memory);
        cr_expect_eq(cpus, trees[i].cpus, "%s: %u cpus", trees[i].what, cpus);
    }
}

Test(memory, the_real_machine_has_some)
{
    cr_assert_gt(memory_available(), (size_t)MIB);
    cr_assert_geq(launch_cores(), 1);
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* The world cannot be made, with a usage error whose one sentence holds `word`. */
static void refused(const struct world_spec *spec, const char *word, const char *other)
{
    struct err err = ERR_INIT;
    cr_assert_null(world_create(spec, &err));
    cr_assert_eq(err.code, ERR_USAGE);
    cr_assert_eq(err.count, 1);
    cr_assert(strstr(err.text, word) && strstr(err.text, other), "%s", err.text);
    err_release(&err);
}

Test(world, too_much_memory_is_refused_with_both_numbers)
{
    struct world_spec spec = {
        .nranks = 8, .extent_bytes = (size_t)1 << 50, .resident_bytes = (size_t)1 << 50};
    size_t need = world_need(&spec);
    char *text = mem_printf("need %zu B", need);
    cr_assert_gt(need, 8 * spec.resident_bytes);
    refused(&spec, text, "B are free");
    free(text);
    spec.resident_bytes = SIZE_MAX / 2; /* does not even fit 64 bits */
    cr_assert_eq(world_need(&spec), SIZE_MAX);
    refused(&spec, "need", "B are free");
    spec = (struct world_spec){.nranks = 16, .extent_bytes = (size_t)1 << 60};
    refused(&spec, "16 ranks", "2^63");
    spec = (struct world_spec){.nranks = 0};
    refused(&spec, "at least 1", "0");
}

Test(world, a_file_size_limit_is_a_sentence)
{
    struct rlimit limit = {.rlim_cur = 8 * MIB, .rlim_max = RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct world_spec spec = {.nranks = 2, .extent_bytes = 64 * MIB};
    refused(&spec, "RLIMIT_FSIZE", "8388608 B");
}

Test(world, an_address_space_limit_is_a_sentence)
{
    if (SANITIZED) cr_skip_test("no room for the sanitizer under RLIMIT_AS");
    struct err err = ERR_INIT;
    struct world_spec spec = {.nranks = 2, .extent_bytes = (size_t)8 << 30};
    struct world *world = world_create(&spec, &err);
    cr_assert_not_null(world);
    struct rlimit limit = {.rlim_cur = (rlim_t)4 << 30, .rlim_max = RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_assert_null(world_extent(world, 1, &err));
    cr_assert(strstr(err.text, "RLIMIT_AS") && strstr(err.text, "4294967296 B"), "%s", err.text);
    err_release(&err);
    world_close(world);
}

Test(world, a_wrong_descriptor_is_a_sentence)
{
    struct err err = ERR_INIT;
    cr_assert_null(world_attach(open("/dev/null", 0), &err));
    cr_assert_eq(err.count, 1);
    err_release(&err);
}

/* ---- populating ----------------------------------------------------------------------------- */

/* Pages of [addr, addr + bytes) that are in memory. */
static size_t pages_in(void *addr, size_t bytes)
{
    size_t npages = bytes / PAGE_TEST, in = 0;
    unsigned char *map = mem_calloc(npages, 1);
    cr_assert_eq(mincore(addr, bytes, map), 0);
    for (size_t i = 0; i < npages; i++)
        in += map[i] & 1;
    free(map);
    return in;
}

/* Makes madvise(.., MADV_POPULATE_WRITE) answer EINVAL, as kernels before 5.14 do. */
static bool forbid_populate(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0) == 0;
}

/* Shared and private memory is populated, contents stay, and a page that cannot be had (behind the
 * end of the file) is a sentence and no SIGBUS. */
static void populate_all(void)
{
    struct err err = ERR_INIT;
    size_t bytes = 20 * MIB + 3 * PAGE_TEST; /* more than one step */
    int fd = memfd_create("test", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    uint8_t *maps[2] = {
        mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
    };
    for (int i = 0; i < 2; i++) {
        cr_assert_neq(maps[i], MAP_FAILED);
        maps[i][5 * PAGE_TEST + 1] = 77;
        cr_assert_eq(memory_prefault(maps[i] + 1, bytes - 2, &err), 0, "%s", err.text);
        cr_assert_eq(pages_in(maps[i], bytes), bytes / PAGE_TEST);
        cr_assert_eq(maps[i][5 * PAGE_TEST + 1], 77);
        cr_assert_eq(memory_prefault(maps[i], 0, &err), 0);
    }
    cr_assert_eq(memory_prefault(maps[0] + bytes, PAGE_TEST, &err), -1);
    cr_assert_eq(err.count, 1);
    cr_assert(strstr(err.text, "are needed") && strstr(err.text, "are free"), "%s", err.text);
    err_release(&err);
    munmap(maps[0], 2 * bytes);
    munmap(maps[1], bytes);
    close(fd);
}

Test(memory, populating)
{
    populate_all();
}

Test(memory, populating_on_an_old_kernel)
{
    if (!forbid_populate()) cr_skip_test("no seccomp filters here");
    cr_assert_eq(madvise(NULL, 0, 23), -1);
    populate_all();
}

/* Shows a machine with so little free memory to this process alone: a name space of its own in
 * which another file lies over /proc/meminfo. False where that is not allowed. */
static bool pretend_free(const char *kib)
{
    char path[] = "/tmp/collbench-test-XXXXXX";
    int fd = mkstemp(path);
    char *text = mem_printf("MemAvailable: %s kB\n", kib);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) &&
                (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
                mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                mount(path, "/proc/meminfo", NULL, MS_BIND, NULL) == 0;
    if (fd >= 0) close(fd);
    unlink(path);
    free(text);
    return good;
}

Test(memory, populating_stops_before_the_memory_is_gone)
{
    struct err err = ERR_INIT;
    size_t bytes = 12 * MIB;
    uint8_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(map, MAP_FAILED);
    cr_assert_eq(memory_prefault(map, bytes / 2, &err), 0);
    if (!pretend_free("20000")) cr_skip_test("no mount name space here");
    cr_assert_eq(memory_available(), (size_t)20000 * 1024);
    cr_assert_eq(memory_prefault(map, bytes / 2, &err), 0, "what is there needs nothing");
    cr_assert_eq(memory_prefault(map + bytes / 2, bytes / 2, &err), -1);
    cr_assert_eq(err.count, 1);
    cr_assert(strstr(err.text, "6291456 B more are needed, but 20480000 B are free"), "%s",
              err.text);
    cr_assert_lt(pages_in(map + bytes / 2, bytes / 2), bytes / 2 / PAGE_TEST);
    err_release(&err);
    refused(&(struct world_spec){.nranks = 2, .resident_bytes = 16 * MIB},
            "2 ranks with 16777216 B", "only 20480000 B are free");
    munmap(map, bytes);
}

/* ---- extents and barriers among threads ----------------------------------------------------- */

enum { MOST_RANKS = 9, ROUNDS = 2000 };

struct member {
    struct world *world;
    uint32_t rank;
    uint8_t *extents[MOST_RANKS];
    uint32_t wrong;
    pthread_t thread;
};

/* Maps all extents while the others do the same, then meets them many times; `seen` rows are
 * plain memory, so the thread sanitizer sees whether the barrier orders them. */
static void *member_run(void *arg)
{
    struct member *member = arg;
    struct err err = ERR_INIT;
    struct rank rk;
    uint32_t *rows = world_blob(member->world);
    member->wrong += rank_init(&rk, member->world, member->rank, &err) != 0;
    for (uint32_t r = 0; r < rk.nranks; r++) {
        member->extents[r] = world_extent(member->world, r, &err);
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint32_t *row = rows + (round % 2) * rk.nranks;
        row[rk.rank] = round;
        rank_barrier(&rk);
        for (uint32_t r = 0; r < rk.nranks; r++)
            member->wrong += row[r] != round;
    }
    member->wrong += rk.barriers != ROUNDS || err.count;
    err_release(&err);
    return NULL;
}

Test(world, threads_map_and_meet)
{
    for (uint32_t n = 1; n <= MOST_RANKS; n++) {
        struct err err = ERR_INIT;
        struct world_spec spec = {.nranks = n,
                                  .blob_bytes = 2 * n * sizeof(uint32_t),
                                  .extent_bytes = 3 * MIB,
                                  .resident_bytes = PAGE_TEST};
        struct world *world = world_create(&spec, &err);
        cr_assert_not_null(world, "%s", err.text);
        struct member members[MOST_RANKS];
        for (uint32_t r = 0; r < n; r++) {
            members[r] = (struct member){.world = world, .rank = r};
            cr_assert_eq(pthread_create(&members[r].thread, NULL, member_run, &members[r]), 0);
        }
        for (uint32_t r = 0; r < n; r++)
            pthread_join(members[r].thread, NULL);
        for (uint32_t r = 0; r < n; r++) {
            cr_assert_eq(members[r].wrong, 0, "%u of %u", r, n);
            for (uint32_t e = 0; e < n; e++) {
                cr_assert_eq(members[r].extents[e], members[0].extents[e]);
                cr_assert_eq((uintptr_t)members[r].extents[e] % (2 * MIB), 0);
            }
        }
        world_close(world);
    }
}

/* A rank in a barrier that nobody else enters ends with status 1 when the run is aborted. */
Test(world, a_waiting_rank_sees_the_abort)
{
    struct err err = ERR_INIT;
    struct world *world = world_create(&(struct world_spec){.nranks = 2}, &err);
    cr_assert_not_null(world, "%s", err.text);
    pid_t child = fork();
    if (child == 0) {
        struct rank rk;
        if (rank_init(&rk, world, 0, &err)) _exit(9);
        alarm(30);
        rank_barrier(&rk);
        _exit(8);
    }
    struct rank_status *status = world_status(world, 0);
    while (!atomic_load(&status->waiting))
        usleep(1000);
    uint64_t beat = atomic_load(&status->beat);
    cr_assert_eq(atomic_load(&status->wait_kind), UINT32_MAX);
    cr_assert_eq(atomic_load(&status->wait_peer), 1);
    while (atomic_load(&status->beat) == beat)
        usleep(1000);
    world_abort(world);
    int how;
    cr_assert_eq(waitpid(child, &how, 0), child);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 1, "%#x", how);
    world_close(world);
}

Test(world, an_extent_is_handed_out_and_taken_back)
{
    struct err err = ERR_INIT;
    struct rank rk;
    struct world_spec spec = {.nranks = 1, .extent_bytes = MIB, .resident_bytes = MIB};
    struct world *world = world_create(&spec, &err);
    cr_assert_not_null(world, "%s", err.text);
    cr_assert_eq(rank_init(&rk, world, 0, &err), 0);
    uint8_t *a = rank_alloc(&rk, 1, &err), *b = rank_alloc(&rk, 2 * PAGE_TEST, &err);
    cr_assert_eq(b, a + PAGE_TEST);
    cr_assert_eq(pages_in(b, 2 * PAGE_TEST), 2);
    size_t mark = rank_mark(&rk);
    cr_assert_not_null(rank_alloc(&rk, MIB - 3 * PAGE_TEST, &err));
    cr_assert_null(rank_alloc(&rk, 1, &err));
    cr_assert(strstr(err.text, "needs 1 B") && strstr(err.text, "0 B of 1048576 B"), "%s",
              err.text);
    err_release(&err);
    cr_assert_null(rank_alloc(&rk, SIZE_MAX, &err));
    err_release(&err);
    rank_rewind(&rk, mark);
    cr_assert_eq(rank_alloc(&rk, 1, &err), b + 2 * PAGE_TEST);
    cr_assert_eq(rank_init(&rk, world, 1, &err), -1);
    err_release(&err);
    world_close(world);
}
