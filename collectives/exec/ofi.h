/* SPDX-License-Identifier: Apache-2.0
 * The inside of the transport `ofi`, for its own files: libfabric opened at run time (ofi_lib.c),
 * what a rank makes once - endpoint, completion queue, registered memory (ofi_net.c) - and the
 * wires of handles over it (ofi.c). */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "exec/launch.h"
#include "exec/transport.h"

/* The functions that libfabric.so has; all others are inlines over tables of operations. */
struct ofi_lib {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int errnum);
    uint32_t (*version)(void);
};

/* The library, loaded on the first call; NULL with *why (not to be freed) when it is not there. */
const struct ofi_lib *ofi_lib(const char **why);

/* Libfabric takes over signals, those of a dying process among them. Between these two it may; then
 * they are as before. Only one thread of a process is between them at a time. */
struct ofi_signals;
struct ofi_signals *ofi_signals_keep(void);
void ofi_signals_restore(struct ofi_signals *kept);

/* An operation under way; the first part is libfabric's. */
enum ofi_op_kind { OFI_RECEIVE, OFI_HELLO, OFI_DATA, OFI_CREDIT };
struct ofi_op {
    struct fi_context2 context;
    enum ofi_op_kind kind;
    bool busy;
    uint32_t index; /* of the posted receive, or the slot */
    struct ofi_wire *wire;
};

/* What the two ends of a wire tell each other when they open it; crosses the network as it lies
 * here (all hosts of a run have one byte order). */
struct ofi_hello {
    uint8_t token[TOKEN_BYTES];
    uint32_t from, to;                 /* world ranks */
    uint32_t tag, channel;             /* of the handle, of the wire */
    uint32_t sends;                    /* 1: `from` is the sender */
    uint32_t number;                   /* of the wire, among all that `from` has */
    uint64_t depth, slot_bytes, piece; /* `piece`: the longest write that `from` can make */
    uint64_t slots, key;               /* where writes to `from` go */
};

/* Registered memory; a handle takes one piece as a whole. */
struct ofi_region {
    uint8_t *base;
    size_t bytes;
    struct fid_mr *mr;
    bool taken;
};

struct ofi_net {
    struct rank *rank;
    const struct ofi_lib *lib;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    bool sleeps;          /* the queue can be waited for */
    uint32_t empty;       /* polls in a row that found nothing */
    struct waiter waiter; /* .. where it cannot */
    fi_addr_t *peers;     /* by world rank; NULL: nobody looked for them yet */
    size_t cq_entries;    /* of the queue, */
    size_t booked;        /* .. and those that open handles can need at once */
    struct ofi_region *regions;
    size_t nregions, regions_cap;
    size_t inbox; /* the region with the receives */
    struct ofi_op *receives;
    struct ofi_wire **numbers; /* wires of open handles by number; NULL: free */
    size_t nnumbers, numbers_cap;
    struct ofi_hello *early; /* about handles that are not open here yet */
    size_t nearly, early_cap;
    struct ofi_wire *first, *last; /* wires that have something to hand to the library */
};

/* Makes the rank's endpoint and says in its card where it is; see transport.join. */
int ofi_join(struct rank *rk, struct err *err);
void ofi_leave(struct rank *rk);

/* Cuts one of the endpoint's connections, if its provider has such; see transport.drop. */
bool ofi_drop(struct rank *rk);

/* What a rank takes when it joins, in bytes; of providers that are not known by name: as tcp. */
size_t ofi_rank_bytes(const struct net_spec *net);

/* Removes the names of shared memory that ranks of this run left when they were killed. */
void ofi_sweep(const struct world *world);
void ofi_gpu_says(struct rank *rk, char *text, size_t size); /* see struct transport */

/* Looks up the addresses of all ranks, once. */
int ofi_find_peers(struct ofi_net *net, struct err *err);

/* Registered memory of at least `bytes`: the number of its region, a free one where one is large
 * enough. -1 with the sentence. */
int ofi_region_take(struct ofi_net *net, size_t bytes, size_t *region, struct err *err);

/* The provider's name. */
const char *ofi_provider(const struct ofi_net *net);

/* Posts the receive `index` (again). */
void ofi_receive(struct ofi_net *net, uint32_t index);
enum { OFI_RECEIVES = 128 }; /* hellos that may come before this end looks */
