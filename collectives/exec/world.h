/* SPDX-License-Identifier: Apache-2.0
 * The memory that the ranks of one run share, and what a rank is. One anonymous memory file holds
 * everything, inherited by descriptor: nothing has a name, so nothing can be left behind.
 *
 *   | header | status of rank 0 .. n-1 | blob (plan, samples) | extent of rank 0 | extent 1 | ..
 *
 * A run over several hosts has such a memory on each, laid out alike. Ranks of other hosts have
 * their status and their part of the blob in it too, as they looked when they were last published;
 * their extents are there but nobody may look at them.
 *
 * An extent is mapped by its owner and by the peers its programs name; pages that nobody touches
 * cost nothing. There are no mutable globals: a rank is a struct, so ranks can be threads. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct world;

/* How ranks reach each other where memory does not: the same on all of them. */
enum { TOKEN_BYTES = 32, NET_NAME = 64, RANK_CARD = 1024 };
struct net_spec {
    char transport[NET_NAME]; /* joined by every rank before rank_main; "": none */
    char iface[NET_NAME];     /* interface, or own address, for sockets; "": chosen */
    char provider[NET_NAME];  /* of libfabric; "": chosen */
    uint32_t connections;     /* per pair of ranks; 0: chosen */
};

struct world_spec {
    uint32_t nranks;
    struct net_spec net;
    size_t blob_bytes;     /* zeroed, shared by all: plan, results */
    size_t extent_bytes;   /* per rank, address space only */
    size_t resident_bytes; /* per rank: what will really be touched; checked against the memory */
    /* A run over several hosts; all 0: it has this one. */
    uint32_t nhosts, host;      /* hosts; number of this one */
    const uint32_t *host_ranks; /* ranks of each: at least 1 */
    uint32_t machine_ranks;     /* ranks that share this host's cores; 0: its own */
    const uint8_t *token;       /* of the run, TOKEN_BYTES; NULL: drawn */
};

/* What a rank is doing, for the one who watches. Written by the rank, each on its own lines. */
enum { STATUS_CPUS = 4096 };  /* room for the list of a rank's processors */
enum { STATUS_SHOWN = 8 };    /* ranges published between two barriers, at most */
enum { STATUS_HANDLES = 64 }; /* handles a rank may have open at once */

/* The GPU of a rank, as its peers need to know it: see device.h. */
struct rank_device {
    int32_t number, pid;
    uint64_t arena;     /* address in that process */
    uint8_t handle[64]; /* to open it in another one */
    char pci[32];
};

/* Where a transport of the network finds a rank: filled in by its join, read by its open. */
struct rank_card {
    char address[NET_NAME]; /* for people: "10.0.0.1:4711"; "": none */
    char kind[NET_NAME];    /* .. and "eth0 (private)"; see sock_kind */
    uint32_t bytes;
    uint8_t data[RANK_CARD];
};

struct rank_status {
    _Alignas(128) _Atomic uint64_t tick; /* goes up with every bit of progress */
    _Atomic uint64_t beat;               /* goes up while the rank is alive in a wait loop */
    _Atomic uint32_t waiting;            /* 1: blocked, and the four below are valid */
    _Atomic uint32_t wait_step;          /* step of the program as drawn */
    _Atomic uint32_t wait_kind;          /* enum step_kind, or UINT32_MAX for a barrier */
    _Atomic int32_t wait_peer;           /* world rank waited for, -1 unknown */
    _Atomic uint64_t wait_pass;
    _Atomic int32_t pid;
    _Atomic uint32_t done;                    /* 1: rank_main returned */
    _Atomic uint64_t handles[STATUS_HANDLES]; /* wire directories in the extent: see shm.c */
    char cpus[STATUS_CPUS];                   /* processors, see place.h; "": not bound */
    char letter;                              /* other hosts: of its state in /proc */
    char what[128];                           /* e.g. "allreduce ring, 1048576 B"; see rank_says */
    struct rank_device device;
    struct rank_card card;
    uint32_t nshown; /* see rank_publish; taken by the host's first rank */
    struct {
        uint64_t at, bytes; /* in the common memory */
    } shown[STATUS_SHOWN];
};

struct rank {
    uint32_t rank, nranks;
    struct world *world;
    struct rank_status *status;
    bool crowded;                   /* more ranks than cores: yield early */
    uint64_t barriers;              /* barriers passed */
    size_t used;                    /* bytes handed out of the own extent */
    int control_fd;                 /* pipe to the launcher, -1 if none */
    int fault;                      /* planted fault that is still to come, enum fault_kind, */
    uint64_t fault_at;              /* after this many calls */
    uint64_t faults;                /* calls so far */
    void *user;                     /* the program's own */
    struct device *device;          /* its GPU, NULL: none; see device.h */
    void *net;                      /* what its transport's join made, NULL: nothing */
    void (*drive)(struct rank *rk); /* called in every longer wait, whatever it is for: what peers
                                     * still need of its transport; NULL: nothing */
    struct meet *meet;              /* to the other hosts, of the host's first rank: see meet.h */
    /* The MPI library, NULL: it is not open; see mpi.h. */
    struct mpi_library *mpi;
};

/* Bytes that new shared memory may take now: the least of MemAvailable and of what every cgroup
 * (v1 or v2) above this process leaves. */
size_t memory_available(void);

/* The same, with /proc and the control groups looked for below the directory `root` (tests). */
size_t memory_available_under(const char *root);

/* Bytes that a run will really take: nranks x resident_bytes + blob, and what the kernel needs
 * for the ranks' page tables (1/128 of the resident bytes: own and three peers' extents) and
 * processes (2 MiB each). SIZE_MAX when it cannot be counted in 64 bits. */
size_t world_need(const struct world_spec *spec);

/* Creates the memory for a run. Refuses (ERR_USAGE, with need and free) when world_need() does not
 * fit memory_available(). */
struct world *world_create(const struct world_spec *spec, struct err *err);
/* Attaches to an inherited descriptor in a child. */
struct world *world_attach(int fd, struct err *err);
void world_close(struct world *world);
int world_fd(const struct world *world);
uint32_t world_nranks(const struct world *world);
void *world_blob(struct world *world);
struct rank_status *world_status(struct world *world, uint32_t rank);
size_t world_extent_bytes(const struct world *world);
const struct net_spec *world_net(const struct world *world);

/* TOKEN_BYTES that only the ranks of this run know; every connection begins with them. */
const uint8_t *world_token(const struct world *world);

/* Hosts that the ranks are on, and the number of a rank's; ranks of one host are consecutive. */
uint32_t world_nhosts(const struct world *world);
uint32_t world_host(const struct world *world, uint32_t rank);
uint32_t world_own_host(const struct world *world);
/* The first rank of a host, and how many it has. */
uint32_t world_first(const struct world *world, uint32_t host);
uint32_t world_host_ranks(const struct world *world, uint32_t host);

/* What it was made with; host_ranks and token are NULL. */
struct world_spec world_spec_of(const struct world *world);

/* The memory that hosts show each other: statuses and blob; *bytes of it. */
uint8_t *world_shared(struct world *world, size_t *bytes);

/* Where host 0's first rank listens for those of the other hosts: "" until the launcher has set it.
 * Setting is for the launcher of another host. */
const char *world_meeting(const struct world *world);
void world_set_meeting(struct world *world, const char *where);

/* Address of a rank's extent in this process: mapped on the first call (thread-safe), then the
 * same. NULL with the sentence when it cannot be mapped. */
uint8_t *world_extent(struct world *world, uint32_t rank, struct err *err);

/* Populates pages so that no fault falls into a timed region (MADV_POPULATE_WRITE; touching where
 * the kernel lacks it). Refuses with a sentence instead of a SIGBUS or the out-of-memory killer. */
int memory_prefault(void *addr, size_t bytes, struct err *err);

/* The same for a rank, which ticks as it goes on: populating gigabytes takes seconds. */
struct rank;
int rank_prefault(struct rank *rk, void *addr, size_t bytes, struct err *err);

/* Makes this thread rank `rank` of the world: fills *rk. */
int rank_init(struct rank *rk, struct world *world, uint32_t rank, struct err *err);

/* `bytes` (rounded up to pages) of the own extent, prefaulted; NULL with need and free when the
 * extent is used up. rank_mark and rank_rewind free everything allocated since. */
void *rank_alloc(struct rank *rk, size_t bytes, struct err *err);
size_t rank_mark(const struct rank *rk);
void rank_rewind(struct rank *rk, size_t mark);

/* All ranks meet (dissemination; over hosts: see meet.h). The memory effects of every rank before
 * it are seen by every rank of its host after it, what it published by all. */
void rank_barrier(struct rank *rk);

/* Shows `bytes` bytes at `at`, which lie in the rank's status or in the blob, to the ranks of other
 * hosts too, from the next barrier on; those of the own host see all memory anyway. Nobody else may
 * write there, and the owner not again before that barrier is passed. */
void rank_publish(struct rank *rk, const void *at, size_t bytes);

/* Says what this rank works on (shown in failure messages). */
void rank_says(struct rank *rk, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One unit of progress was made; cheap. */
static inline void rank_tick(struct rank *rk)
{
    atomic_store_explicit(&rk->status->tick,
                          atomic_load_explicit(&rk->status->tick, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Tells the one who watches that this rank is blocked, and when it goes on. Cheap (a few stores),
 * but meant for waits that are slow already. */
static inline void rank_waits(struct rank *rk, uint32_t step, uint32_t kind, int32_t peer,
                              uint64_t pass)
{
    struct rank_status *status = rk->status;
    atomic_store_explicit(&status->wait_step, step, memory_order_relaxed);
    atomic_store_explicit(&status->wait_kind, kind, memory_order_relaxed);
    atomic_store_explicit(&status->wait_peer, peer, memory_order_relaxed);
    atomic_store_explicit(&status->wait_pass, pass, memory_order_relaxed);
    atomic_store_explicit(&status->waiting, 1, memory_order_release); /* pairs with the watcher */
}
static inline void rank_goes_on(struct rank *rk)
{
    atomic_store_explicit(&rk->status->waiting, 0, memory_order_relaxed);
}

/* Waiting: spin briefly, then yield, then sleep; ends the process when the run was aborted.
 *
 *     for (struct waiter w = {0}; !ready(); waiter_pause(&w, rk)) {}
 *
 * waiter_is_slow() is true from the moment on when it pays to fill in rank_status (rank_waits). */
struct waiter {
    uint32_t spins;    /* pauses so far; stays at the number where yielding begins */
    uint64_t since_ns; /* when yielding began, 0: not yet */
    void (*sleep)(void *with, uint32_t us); /* for who can be woken; NULL: just sleeps */
    void *with;
};
void waiter_pause_slow(struct waiter *waiter, struct rank *rk);

/* For who waits in another way: the rank is alive. Ends the process when the run was aborted. */
void rank_beat(struct rank *rk);
static inline void rank_drive(struct rank *rk)
{
    if (rk->drive) rk->drive(rk);
}
static inline bool waiter_is_slow(const struct waiter *waiter)
{
    return waiter->spins >= 4096;
}
static inline void waiter_pause(struct waiter *waiter, struct rank *rk)
{
    if (waiter->spins < 64 && !rk->crowded) { /* plain loads first: PAUSE is slow in some VMs */
        waiter->spins++;
        return;
    }
    waiter_pause_slow(waiter, rk);
}

/* Asks every rank to end: seen in waiter_pause, which then leaves with _exit(1). */
void world_abort(struct world *world);
bool world_aborted(const struct world *world);
