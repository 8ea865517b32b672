/* SPDX-License-Identifier: Apache-2.0
 * The shared memory of a run, the rank's share of it, barriers and waiting. Everything lives in
 * one anonymous memory file; what nobody touches costs nothing. Pages are populated by system
 * calls that can say no, never by a store that may raise SIGBUS.
 *
 *   | header | barrier flags | status 0 .. n-1 | blob |   2 MiB   | extent 0 | extent 1 | ..
 *   |<------------- mapped by every process -------->|  aligned  |<- each on demand ->| */
#include "exec/world.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/futex.h>

#include "base/mem.h"
#include "exec/cgroup.h"
#include "exec/launch.h"
#include "exec/meet.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

enum {
    SHARED_LINE = 128,         /* two cache lines: the unit that prefetchers fetch */
    HUGE_PAGE = 2 << 20,       /* extents start at multiples of it, in the file and in memory */
    PREFAULT_TICK = 64 << 20,  /* bytes populated between two ticks of a rank */
    PREFAULT_CHUNK = 16 << 20, /* bytes populated between two looks at the free memory */
    MEMORY_MARGIN = 16 << 20,  /* bytes that prefaulting leaves to the rest of the machine */
    RANK_COST = 2 << 20,       /* memory of a rank's process, without its extents */
    PAGE_TABLE_SHARE = 128,    /* page tables: 1/512 per mapping, four mappings */
    SPIN_POLLS = 20000,        /* pauses before the first yield */
    CROWDED_POLLS = 4,         /* the same when ranks share cores: the peer may need this one */
    SLOW_POLLS = 4096,         /* from here on waiter_is_slow */
    YIELD_NS = 5000000,        /* yielding lasts this long, then sleeping begins */
    CROWDED_YIELD_NS = 20000000,
    SLEEP_NS = 50000,
    DRIVE_NS = 1000000,      /* who waits that long looks after what its peers may need of it */
    WOKEN_YIELD_NS = 200000, /* the same for who is woken when there is something to do, */
    WOKEN_US = 1000,         /* .. and its longest sleep */
    MOST_ROUNDS = 32,        /* of a barrier */
};

static const uint64_t world_magic = 0x31646c726f776263; /* "cbworld1" */

/* One round of one rank's barrier: written by one peer only. */
struct flag {
    _Alignas(SHARED_LINE) _Atomic uint64_t passed; /* barriers that the peer has entered */
};

struct header {
    uint64_t magic;
    uint32_t nranks;
    uint32_t rounds;  /* of a barrier: ceil(log2(nranks)) */
    uint32_t cores;   /* that the ranks may use */
    uint32_t crowded; /* more ranks than cores */
    struct net_spec net;
    uint8_t token[TOKEN_BYTES];
    uint32_t nhosts, host, first, nlocal; /* first, nlocal: ranks here */
    size_t hosts_off;                     /* first rank of each host, then nranks */
    _Atomic uint32_t meeting_set;
    char meeting[NET_NAME];
    _Alignas(SHARED_LINE) _Atomic uint64_t met; /* barriers that all hosts have passed */
    size_t flags_off;                           /* rounds flags per rank */
    size_t status_off;                          /* one per rank */
    size_t blob_off;                            /* page-aligned */
    size_t common_bytes; /* everything up to the end of the blob, whole pages */
    size_t extents_off;  /* of rank 0 */
    size_t extent_bytes;
    size_t asked_extent, asked_blob, asked_resident; /* as world_spec had them */
    size_t extent_step;                              /* from one extent to the next */
    _Alignas(SHARED_LINE) _Atomic uint32_t aborted;
};

struct world {
    int fd;
    struct header *head;         /* the common part, mapped */
    _Atomic(uint8_t *) *extents; /* per rank, NULL: not mapped in this process */
};

/* ---- sizes ---------------------------------------------------------------------------------- */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* *sum += a * b; false when it does not fit. */
static bool add_product(size_t *sum, size_t a, size_t b)
{
    size_t product;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*sum, product, sum);
}

/* Rounds up to a multiple of `unit`; false when that does not fit. */
static bool round_up(size_t *bytes, size_t unit)
{
    size_t rest = *bytes % unit;
    return !rest || !__builtin_add_overflow(*bytes, unit - rest, bytes);
}

/* Ranks on this host. */
static uint32_t spec_local(const struct world_spec *spec)
{
    return spec->nhosts > 1 ? spec->host_ranks[spec->host] : spec->nranks;
}

size_t world_need(const struct world_spec *spec)
{
    size_t need = spec->blob_bytes;
    uint32_t here = spec_local(spec);
    bool fits = add_product(&need, here, spec->resident_bytes) &&
                add_product(&need, here, spec->resident_bytes / PAGE_TABLE_SHARE) &&
                add_product(&need, here, RANK_COST);
    return fits ? need : SIZE_MAX;
}

/* Lays the file out. *file_bytes is its length. False when it is longer than files can be. */
static bool lay_out(const struct world_spec *spec, struct header *head, size_t *file_bytes)
{
    *head = (struct header){
        .magic = world_magic, .nranks = spec->nranks, .net = spec->net, .cores = launch_cores()};
    head->asked_blob = spec->blob_bytes;
    head->asked_extent = spec->extent_bytes;
    head->asked_resident = spec->resident_bytes;
    head->nhosts = spec->nhosts > 1 ? spec->nhosts : 1;
    head->host = spec->nhosts > 1 ? spec->host : 0;
    head->nlocal = spec_local(spec);
    while (head->rounds < 32 && (UINT64_C(1) << head->rounds) < head->nlocal)
        head->rounds++;
    size_t at = sizeof *head;
    head->hosts_off = at;
    bool fits = add_product(&at, head->nhosts + 1, sizeof(uint32_t)) && round_up(&at, SHARED_LINE);
    head->flags_off = at;
    fits = fits && add_product(&at, spec->nranks, MOST_ROUNDS * sizeof(struct flag));
    head->status_off = at;
    fits = fits && add_product(&at, spec->nranks, sizeof(struct rank_status)) &&
           round_up(&at, page_size());
    head->blob_off = at;
    fits = fits && add_product(&at, spec->blob_bytes, 1) && round_up(&at, page_size());
    head->common_bytes = at;
    fits = fits && round_up(&at, HUGE_PAGE);
    head->extents_off = at;
    head->extent_bytes = head->extent_step = spec->extent_bytes;
    fits = fits && round_up(&head->extent_bytes, page_size()) &&
           round_up(&head->extent_step, HUGE_PAGE) &&
           add_product(&at, spec->nranks, head->extent_step);
    *file_bytes = at;
    return fits && at <= INT64_MAX;
}

/* ---- memory --------------------------------------------------------------------------------- */

size_t memory_available_under(const char *root)
{
    char *path = mem_printf("%s/proc/meminfo", root);
    char *text = file_text(path);
    free(path);
    uint64_t kib = text ? text_field(text, "MemAvailable:", UINT64_MAX) : UINT64_MAX;
    if (text && kib == UINT64_MAX) kib = text_field(text, "MemFree:", UINT64_MAX);
    free(text);
    size_t free_bytes =
        kib == UINT64_MAX ? (size_t)sysconf(_SC_AVPHYS_PAGES) * page_size() : (size_t)kib * 1024;
    size_t group_bytes = cgroup_memory_free(root);
    return group_bytes < free_bytes ? group_bytes : free_bytes;
}

size_t memory_available(void)
{
    return memory_available_under("");
}

/* Bytes of [addr, addr + bytes) that are not in memory yet; at most one chunk is asked for. */
static size_t absent_bytes(void *addr, size_t bytes)
{
    size_t page = page_size(), npages = bytes / page, absent = 0;
    unsigned char *in = mem_calloc(npages, 1);
    if (mincore(addr, bytes, in) == 0) {
        for (size_t i = 0; i < npages; i++)
            absent += in[i] & 1 ? 0 : page;
    } else {
        absent = bytes;
    }
    free(in);
    return absent;
}

/* Populates whole pages for writing. 0, or the error number. Kernels before 5.14 lack the advice:
 * there a wake-up of nobody on a futex in each page does it, since that makes the kernel itself
 * fault the page in for writing and answer EFAULT where a store would raise SIGBUS. */
static int populate(uint8_t *addr, size_t bytes)
{
    if (madvise(addr, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    for (size_t off = 0; off < bytes; off += page_size()) {
        if (syscall(SYS_futex, addr + off, FUTEX_WAKE, 0, NULL, NULL, 0) < 0) return errno;
    }
    return 0;
}

int memory_prefault(void *addr, size_t bytes, struct err *err)
{
    size_t page = page_size();
    uint8_t *at = (uint8_t *)addr - (uintptr_t)addr % page;
    size_t left = bytes ? bytes + (uintptr_t)addr % page : 0;
    if (!round_up(&left, page)) return err_add(err, ERR_USAGE, "%zu B is no memory size", bytes);
    while (left > 0) {
        size_t step = left < PREFAULT_CHUNK ? left : PREFAULT_CHUNK;
        size_t room = memory_available(), absent = 0;
        int error = 0;
        if (room < step + MEMORY_MARGIN) absent = absent_bytes(at, step);
        if (absent && room < absent + MEMORY_MARGIN)
            error = ENOMEM;
        else
            error = populate(at, step);
        if (error) {
            return err_add(err, ERR_USAGE,
                           "out of memory: %zu B more are needed, but %zu B are free "
                           "(%d B of that are left to the system): %s",
                           left, room, MEMORY_MARGIN, strerror(error));
        }
        at += step;
        left -= step;
    }
    return 0;
}

/* ---- life cycle ----------------------------------------------------------------------------- */

enum limited { LIMITED_FILE, LIMITED_SPACE };

/* "WHAT of N B: REASON", and the limit of this process that may be the cause. Uses errno. */
static int limit_text(struct err *err, const char *what, size_t bytes, enum limited limited)
{
    struct rlimit limit;
    int error = errno;
    bool file = limited == LIMITED_FILE;
    const char *name = file ? "RLIMIT_FSIZE (ulimit -f)" : "RLIMIT_AS (ulimit -v)";
    int rc = file ? getrlimit(RLIMIT_FSIZE, &limit) : getrlimit(RLIMIT_AS, &limit);
    if (rc || limit.rlim_cur == RLIM_INFINITY) {
        return err_add(err, ERR_USAGE, "%s of %zu B: %s", what, bytes, strerror(error));
    }
    return err_add(err, ERR_USAGE, "%s of %zu B: %s; the limit %s is %llu B", what, bytes,
                   strerror(error), name, (unsigned long long)limit.rlim_cur);
}

/* Gives the file its length; nothing is allocated yet. Looks at RLIMIT_FSIZE first, since running
 * into it raises a signal. */
static int set_length(int fd, size_t bytes, struct err *err)
{
    struct rlimit limit;
    errno = EFBIG;
    bool within = getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
                  bytes <= limit.rlim_cur;
    if (within && ftruncate(fd, (off_t)bytes) == 0) return 0;
    return limit_text(err, "cannot make a memory file", bytes, LIMITED_FILE);
}

/* Maps and populates the common part. */
static int map_common(struct world *world, size_t bytes, struct err *err)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, world->fd, 0);
    if (map == MAP_FAILED) {
        return limit_text(err, "cannot map the common memory", bytes, LIMITED_SPACE);
    }
    if (memory_prefault(map, bytes, err)) {
        munmap(map, bytes);
        return -1;
    }
    world->head = map;
    return 0;
}

static int open_memfd(void)
{
    int fd = memfd_create("collbench", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = memfd_create("collbench", MFD_CLOEXEC); /* before 6.3 */
    return fd;
}

struct world_spec world_spec_of(const struct world *world)
{
    const struct header *head = world->head;
    return (struct world_spec){.nranks = head->nranks,
                               .net = head->net,
                               .blob_bytes = head->asked_blob,
                               .extent_bytes = head->asked_extent,
                               .resident_bytes = head->asked_resident,
                               .nhosts = head->nhosts,
                               .host = head->host};
}

static uint32_t *host_firsts(const struct world *world)
{
    return (uint32_t *)(void *)((uint8_t *)world->head + world->head->hosts_off);
}

/* Which ranks are where. */
static void lay_hosts(struct world *world, const struct world_spec *spec)
{
    struct header *head = world->head;
    uint32_t *first = host_firsts(world);
    for (uint32_t h = 0; h < head->nhosts; h++)
        first[h + 1] = first[h] + (head->nhosts > 1 ? spec->host_ranks[h] : head->nranks);
    head->first = first[head->host];
    uint32_t crowd = spec->machine_ranks ? spec->machine_ranks : head->nlocal;
    head->crowded = crowd > head->cores;
}

struct world *world_create(const struct world_spec *spec, struct err *err)
{
    size_t need = world_need(spec), room = memory_available(), file_bytes;
    struct header head;
    if (!spec->nranks) {
        err_add(err, ERR_USAGE, "a run needs at least 1 rank, not 0");
        return NULL;
    }
    if (need > room) {
        err_add(err, ERR_USAGE,
                "%u ranks with %zu B each need %zu B of memory (page tables and processes "
                "included), but only %zu B are free",
                spec->nranks, spec->resident_bytes, need, room);
        return NULL;
    }
    if (!lay_out(spec, &head, &file_bytes)) {
        err_add(err, ERR_USAGE, "%u ranks with %zu B each need more than the 2^63 - 1 B of a file",
                spec->nranks, spec->extent_bytes);
        return NULL;
    }
    struct world *world = mem_calloc(1, sizeof *world);
    world->fd = open_memfd();
    if (world->fd < 0) {
        err_add(err, ERR_FAILED, "cannot make a memory file: %s", strerror(errno));
        goto out;
    }
    if (set_length(world->fd, file_bytes, err)) goto out;
    if (map_common(world, head.common_bytes, err)) goto out;
    *world->head = head;
    lay_hosts(world, spec);
    if (spec->token) {
        memcpy(world->head->token, spec->token, TOKEN_BYTES);
    } else if (getrandom(world->head->token, TOKEN_BYTES, 0) != TOKEN_BYTES) {
        err_add(err, ERR_FAILED, "cannot draw a random token: %s", strerror(errno));
        goto out;
    }
    world->extents = mem_calloc(spec->nranks, sizeof *world->extents);
    return world;
out:
    world_close(world);
    return NULL;
}

struct world *world_attach(int fd, struct err *err)
{
    struct header head;
    struct stat file;
    bool good = fstat(fd, &file) == 0 && pread(fd, &head, sizeof head, 0) == sizeof head &&
                head.magic == world_magic && (uint64_t)file.st_size >= head.common_bytes;
    if (!good) {
        err_add(err, ERR_FAILED, "descriptor %d does not hold the memory of a run", fd);
        return NULL;
    }
    struct world *world = mem_calloc(1, sizeof *world);
    world->fd = fd;
    if (map_common(world, head.common_bytes, err)) {
        free(world);
        return NULL;
    }
    world->extents = mem_calloc(head.nranks, sizeof *world->extents);
    return world;
}

void world_close(struct world *world)
{
    if (!world) return;
    for (uint32_t r = 0; world->extents && r < world->head->nranks; r++) {
        uint8_t *extent = atomic_load_explicit(&world->extents[r], memory_order_acquire);
        if (extent) munmap(extent, world->head->extent_bytes);
    }
    free(world->extents);
    if (world->head) munmap(world->head, world->head->common_bytes);
    if (world->fd >= 0) close(world->fd);
    free(world);
}

int world_fd(const struct world *world)
{
    return world->fd;
}

uint32_t world_nranks(const struct world *world)
{
    return world->head->nranks;
}

void *world_blob(struct world *world)
{
    return (uint8_t *)world->head + world->head->blob_off;
}

struct rank_status *world_status(struct world *world, uint32_t rank)
{
    return (struct rank_status *)((uint8_t *)world->head + world->head->status_off) + rank;
}

size_t world_extent_bytes(const struct world *world)
{
    return world->head->extent_bytes;
}

void world_abort(struct world *world)
{
    atomic_store_explicit(&world->head->aborted, 1, memory_order_relaxed);
}

bool world_aborted(const struct world *world)
{
    return atomic_load_explicit(&world->head->aborted, memory_order_relaxed) != 0;
}

/* ---- extents -------------------------------------------------------------------------------- */

/* Maps `bytes` (> 0) of the file at an address that is a multiple of HUGE_PAGE, so that the kernel
 * can use huge pages where it does so for shared memory. NULL with errno. */
static uint8_t *map_aligned(int fd, size_t off, size_t bytes)
{
    size_t space = bytes;
    if (__builtin_add_overflow(space, HUGE_PAGE, &space)) {
        errno = ENOMEM;
        return NULL;
    }
    uint8_t *hold =
        mmap(NULL, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hold == MAP_FAILED) return NULL;
    size_t skip = (HUGE_PAGE - (uintptr_t)hold % HUGE_PAGE) % HUGE_PAGE;
    uint8_t *map =
        mmap(hold + skip, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)off);
    if (map == MAP_FAILED) {
        int error = errno;
        munmap(hold, space);
        errno = error;
        return NULL;
    }
    if (skip) munmap(hold, skip);
    munmap(map + bytes, space - skip - bytes);
    madvise(map, bytes, MADV_HUGEPAGE); /* a wish */
    return map;
}

uint8_t *world_extent(struct world *world, uint32_t rank, struct err *err)
{
    const struct header *head = world->head;
    if (rank >= head->nranks || !head->extent_bytes) {
        err_add(err, ERR_FAILED, "there is no extent %u: %u ranks have %zu B each", rank,
                head->nranks, head->extent_bytes);
        return NULL;
    }
    uint8_t *map = atomic_load_explicit(&world->extents[rank], memory_order_acquire);
    if (map) return map;
    map = map_aligned(world->fd, head->extents_off + rank * head->extent_step, head->extent_bytes);
    if (!map) {
        limit_text(err, "cannot map a rank's memory", head->extent_bytes, LIMITED_SPACE);
        return NULL;
    }
    uint8_t *first = NULL; /* another thread may have been faster: then its mapping stands */
    if (atomic_compare_exchange_strong_explicit(&world->extents[rank], &first, map,
                                                memory_order_acq_rel, memory_order_acquire)) {
        return map;
    }
    munmap(map, head->extent_bytes);
    return first;
}

const struct net_spec *world_net(const struct world *world)
{
    return &world->head->net;
}

const uint8_t *world_token(const struct world *world)
{
    return world->head->token;
}

uint32_t world_nhosts(const struct world *world)
{
    return world->head->nhosts;
}

uint32_t world_host(const struct world *world, uint32_t rank)
{
    const uint32_t *first = host_firsts(world);
    uint32_t host = 0;
    while (host + 1 < world->head->nhosts && first[host + 1] <= rank)
        host++;
    return host;
}

uint32_t world_own_host(const struct world *world)
{
    return world->head->host;
}

uint32_t world_first(const struct world *world, uint32_t host)
{
    return host_firsts(world)[host];
}

uint32_t world_host_ranks(const struct world *world, uint32_t host)
{
    return host_firsts(world)[host + 1] - host_firsts(world)[host];
}

uint8_t *world_shared(struct world *world, size_t *bytes)
{
    *bytes = world->head->common_bytes - world->head->status_off;
    return (uint8_t *)world->head + world->head->status_off;
}

const char *world_meeting(const struct world *world)
{
    bool set = atomic_load_explicit(&world->head->meeting_set, memory_order_acquire) != 0;
    return set ? world->head->meeting : "";
}

void world_set_meeting(struct world *world, const char *where)
{
    snprintf(world->head->meeting, sizeof world->head->meeting, "%s", where);
    atomic_store_explicit(&world->head->meeting_set, 1, memory_order_release);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

int rank_init(struct rank *rk, struct world *world, uint32_t rank, struct err *err)
{
    const struct header *head = world->head;
    if (rank >= head->nranks) {
        return err_add(err, ERR_FAILED, "there is no rank %u among %u", rank, head->nranks);
    }
    *rk = (struct rank){.rank = rank,
                        .nranks = head->nranks,
                        .world = world,
                        .status = world_status(world, rank),
                        .crowded = head->crowded != 0,
                        .control_fd = -1};
    atomic_store_explicit(&rk->status->pid, (int32_t)syscall(SYS_gettid), memory_order_relaxed);
    return 0;
}

void *rank_alloc(struct rank *rk, size_t bytes, struct err *err)
{
    size_t all = world_extent_bytes(rk->world), left = all - rk->used, need = bytes;
    if (!round_up(&need, page_size()) || need > left) {
        err_add(err, ERR_USAGE,
                "rank %u needs %zu B of its shared memory, but %zu B of %zu B are free", rk->rank,
                bytes, left, all);
        return NULL;
    }
    uint8_t *extent = world_extent(rk->world, rk->rank, err);
    if (!extent || rank_prefault(rk, extent + rk->used, need, err)) return NULL;
    rk->used += need;
    return extent + rk->used - need;
}

int rank_prefault(struct rank *rk, void *addr, size_t bytes, struct err *err)
{
    for (size_t done = 0; done < bytes;) {
        size_t step = bytes - done < PREFAULT_TICK ? bytes - done : PREFAULT_TICK;
        if (memory_prefault((uint8_t *)addr + done, step, err)) return -1;
        done += step;
        rank_tick(rk);
    }
    return 0;
}

size_t rank_mark(const struct rank *rk)
{
    return rk->used;
}

void rank_rewind(struct rank *rk, size_t mark)
{
    rk->used = mark;
}

void rank_publish(struct rank *rk, const void *at, size_t bytes)
{
    struct world *world = rk->world;
    struct rank_status *status = rk->status;
    if (world->head->nhosts == 1) return;
    uint64_t from = (uint64_t)((const uint8_t *)at - (const uint8_t *)world->head);
    assert(from >= world->head->status_off && from + bytes <= world->head->common_bytes);
    assert(status->nshown < STATUS_SHOWN);
    status->shown[status->nshown].at = from - world->head->status_off;
    status->shown[status->nshown++].bytes = bytes;
}

void rank_says(struct rank *rk, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(rk->status->what, sizeof rk->status->what, format, args);
    va_end(args);
}

/* Round k: rank r tells rank r + 2^k and waits for rank r - 2^k. After ceil(log2 n) rounds each has
 * heard, directly or not, of all (Hensgen, Finkel, Manber: Two algorithms for barrier
 * synchronization, 1988). Flags count barriers, so none is ever reset: a peer that is one barrier
 * ahead only makes the number larger. */
static void meet_here(struct rank *rk, uint64_t number)
{
    const struct header *head = rk->world->head;
    struct flag *flags = (struct flag *)((uint8_t *)rk->world->head + head->flags_off);
    for (uint32_t k = 0; k < head->rounds; k++) {
        uint64_t me = rk->rank - head->first, n = head->nlocal, hop = UINT64_C(1) << k; /* < n */
        uint64_t to = me + hop < n ? me + hop : me + hop - n;
        uint64_t from = me >= hop ? me - hop : me + n - hop;
        /* The release hands on all this rank did or heard of; pairs with the acquire below. */
        atomic_store_explicit(&flags[to * head->rounds + k].passed, number, memory_order_release);
        _Atomic uint64_t *mine = &flags[me * head->rounds + k].passed;
        bool told = false;
        for (struct waiter w = {0}; atomic_load_explicit(mine, memory_order_acquire) < number;
             waiter_pause(&w, rk)) {
            if (!told && waiter_is_slow(&w)) {
                rank_waits(rk, k, UINT32_MAX, (int32_t)(head->first + from), 0);
                told = true;
            }
        }
        if (told) rank_goes_on(rk);
    }
}

/* Over several hosts the first rank of each meets the others when its own host has, and the rest
 * wait for it. */
void rank_barrier(struct rank *rk)
{
    struct header *head = rk->world->head;
    uint64_t number = ++rk->barriers;
    meet_here(rk, number);
    if (rk->meet) {
        meet_hosts(rk, number);
        atomic_store_explicit(&head->met, number, memory_order_release); /* pairs with below */
    } else if (head->nhosts > 1) {
        bool told = false;
        for (struct waiter w = {0}; atomic_load_explicit(&head->met, memory_order_acquire) < number;
             waiter_pause(&w, rk)) {
            if (!told && waiter_is_slow(&w)) {
                rank_waits(rk, 0, UINT32_MAX, (int32_t)head->first, 0);
                told = true;
            }
        }
        if (told) rank_goes_on(rk);
    }
    rank_tick(rk);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb");
#endif
}

void rank_beat(struct rank *rk)
{
    _Atomic uint64_t *beat = &rk->status->beat;
    atomic_store_explicit(beat, atomic_load_explicit(beat, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (world_aborted(rk->world)) _exit(1);
}

void waiter_pause_slow(struct waiter *waiter, struct rank *rk)
{
    rank_beat(rk);
    if (!waiter->since_ns && waiter->spins < (rk->crowded ? CROWDED_POLLS : SPIN_POLLS)) {
        waiter->spins++;
        if (!rk->crowded) cpu_pause();
        return;
    }
    uint64_t now = now_ns();
    if (!waiter->since_ns) {
        waiter->since_ns = now;
        if (waiter->spins < SLOW_POLLS) waiter->spins = SLOW_POLLS;
    }
    if (now - waiter->since_ns > DRIVE_NS) rank_drive(rk);
    uint64_t patience_ns = rk->crowded ? CROWDED_YIELD_NS : YIELD_NS;
    if (now - waiter->since_ns < (waiter->sleep ? WOKEN_YIELD_NS : patience_ns)) {
        sched_yield();
    } else if (waiter->sleep) {
        waiter->sleep(waiter->with, WOKEN_US);
    } else {
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}
