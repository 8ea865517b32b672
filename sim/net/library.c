/* SPDX-License-Identifier: Apache-2.0
 * One call of a library: the ways it could go (closed.h), what it takes, what that costs; and the
 * same constants in the engine's terms. */
#include "net/library.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "net/closed.h"
#include "net/nccl.h"

static const char *const algo_names[NNCCL_ALGOS] = {"Ring",         "Tree", "NVLS", "NVLSTree",
                                                    "CollNetChain", "PAT",  "P2P"};
static const char *const proto_names[NNCCL_PROTOS] = {"LL", "LL128", "Simple"};
static const char *const class_names[NLIB_CLASSES] = {"NCCL <= 2.18", "NCCL 2.19-2.26",
                                                      "NCCL >= 2.27", "RCCL", "MPI"};

const char *nccl_algo_name(int algo)
{
    return algo < 0 ? "" : algo_names[algo];
}

const char *nccl_proto_name(int proto)
{
    return proto < 0 ? "" : proto_names[proto];
}

const char *lib_class_name(enum lib_class lib_class)
{
    return class_names[lib_class];
}

struct lib_args lib_usual(void)
{
    return (struct lib_args){.library = LIBRARY_NCCL,
                             .lib_class = NLIB_CLASSES,
                             .launch = LAUNCH_PROCESS,
                             .algo = -1,
                             .proto = -1,
                             .launch_us = -1,
                             .alpha_us = -1};
}

enum lib_class lib_class_of(const struct topo *topo)
{
    switch (link_gen_of(topo)) {
    case LINK_NVLINK2:
    case LINK_NVLINK3:
        return LIB_NCCL_2_18;
    case LINK_NVLINK5:
        return LIB_NCCL_2_27;
    case LINK_XGMI:
        return LIB_RCCL;
    case LINK_MEMORY:
        return LIB_MPI;
    default:
        return LIB_NCCL_2_19;
    }
}

static struct lib_choice choice_of(int algo, int proto, uint32_t channels)
{
    return (struct lib_choice){algo, proto, channels, nccl_algo_name(algo), nccl_proto_name(proto)};
}

static void take(struct lib_time *time, const struct way *w)
{
    time->choice = choice_of(w->algo, w->proto, 0);
    time->nccl = choice_of(-1, -1, 0);
    time->base_us = w->base_us;
    time->latency_us = w->latency_us;
    time->wire_us = w->wire_us;
    time->ceiling_GBps = w->ceiling_GBps;
    time->limit = w->limit;
}

static double sum(const struct way *w)
{
    return w->base_us + w->latency_us + w->wire_us;
}

/* What NCCL's own formula takes, and the channels it gives our choice. */
static void ask_nccl(const struct site *site, const struct lib_args *args, enum coll_id coll,
                     uint64_t bytes, struct lib_time *time)
{
    struct nccl_choice nccl;
    time->nccl = choice_of(-1, -1, 0);
    if (nccl_choose(site, args, coll, bytes, &nccl))
        time->nccl = choice_of(nccl.algo, nccl.proto, nccl.channels);
    struct lib_args ours = *args;
    ours.algo = time->choice.algo;
    ours.proto = time->choice.proto;
    if (nccl_choose(site, &ours, coll, bytes, &nccl)) time->choice.channels = nccl.channels;
}

/* The pairs of algorithm and protocol that there are: "Ring (LL, Simple), Tree (Simple)". */
static void list_ways(const struct site *site, const struct net_consts *consts,
                      const struct lib_args *args, enum coll_id coll, char *text, size_t room)
{
    struct way ways[NWAYS];
    struct lib_args any = *args;
    any.algo = any.proto = -1;
    unsigned n = closed_ways(site, consts, &any, coll, 1 << 20, ways);
    size_t length = 0;
    for (int algo = 0; algo < NNCCL_ALGOS; algo++) {
        const char *open = " (";
        for (unsigned i = 0; i < n && length < room; i++) {
            if (ways[i].algo != algo) continue;
            bool first = *open == ' ';
            length += (size_t)snprintf(
                text + length, room - length, "%s%s%s%s", first && length ? ", " : "",
                first ? nccl_algo_name(algo) : "", open, nccl_proto_name(ways[i].proto));
            open = "/";
        }
        if (*open == '/' && length < room)
            length += (size_t)snprintf(text + length, room - length, ")");
    }
}

/* One rank has nothing to send: a copy reads its memory and writes it. */
static void copy_alone(const struct topo *topo, const struct site *site,
                       const struct net_consts *consts, const struct lib_args *args,
                       enum coll_id coll, uint64_t bytes, struct lib_time *time)
{
    bool cpu = topo->scale_up == SCALE_UP_MEMORY;
    double GBps = cpu ? topo->host.memory_GBps : topo->accel.memory_GBps;
    time->choice = time->nccl = choice_of(-1, -1, 0);
    time->choice.algo_name = "copy";
    time->wire_us = GBps > 0 ? 2 * (double)bytes / (GBps * 1e3) : 0;
    time->time_us = time->wire_us;
    if (args->library != LIBRARY_MPI)
        time->time_us = closed_launched(site, consts, args, coll, time->wire_us, &time->launch_us);
}

static unsigned quickest(const struct way *ways, unsigned n)
{
    unsigned best = 0;
    for (unsigned i = 1; i < n; i++) {
        if (sum(&ways[i]) < sum(&ways[best])) best = i;
    }
    return best;
}

int lib_way(const struct site *site, const struct net_consts *consts, const struct lib_args *args,
            enum coll_id coll, uint64_t bytes, struct way *way)
{
    struct way ways[NWAYS];
    if (args->library == LIBRARY_MPI) {
        *way = closed_mpi(site, consts, site->gen != LINK_MEMORY, coll, bytes);
        return 0;
    }
    unsigned n = closed_ways(site, consts, args, coll, bytes, ways);
    if (n) *way = ways[quickest(ways, n)];
    return n ? 0 : -1;
}

int lib_closed(const struct topo *topo, const struct net_consts *consts,
               const struct lib_args *args, enum coll_id coll, uint64_t bytes,
               struct lib_time *time, struct err *err)
{
    struct site site;
    if (site_of(topo, &site, err)) return -1;
    *time = (struct lib_time){.limit = ""};
    if (site.n <= 1) {
        copy_alone(topo, &site, consts, args, coll, bytes, time);
        return 0;
    }
    if (args->library == LIBRARY_MPI) {
        struct way w = closed_mpi(&site, consts, site.gen != LINK_MEMORY, coll, bytes);
        take(time, &w);
        time->time_us = sum(&w);
        return 0;
    }
    struct way ways[NWAYS];
    unsigned n = closed_ways(&site, consts, args, coll, bytes, ways), best;
    if (!n) {
        char legal[256] = "";
        list_ways(&site, consts, args, coll, legal, sizeof legal);
        return err_add(err, ERR_USAGE,
                       "%s: no way to run %s with --algo %s and --proto %s; there are %s",
                       topo->name ? topo->name : "topology", coll_get(coll)->name,
                       args->algo < 0 ? "auto" : nccl_algo_name(args->algo),
                       args->proto < 0 ? "of choice" : nccl_proto_name(args->proto), legal);
    }
    best = quickest(ways, n);
    take(time, &ways[best]);
    ask_nccl(&site, args, coll, bytes, time);
    time->time_us = closed_launched(&site, consts, args, coll, sum(&ways[best]), &time->launch_us);
    return 0;
}

int lib_call_us(const struct topo *topo, const struct net_consts *consts,
                const struct lib_args *args, enum coll_id coll, double device_us, double *time_us,
                struct err *err)
{
    struct site site;
    double floor_us;
    if (site_of(topo, &site, err)) return -1;
    *time_us = closed_launched(&site, consts, args, coll, device_us, &floor_us);
    return 0;
}
