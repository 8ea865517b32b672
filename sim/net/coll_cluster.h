/* SPDX-License-Identifier: Apache-2.0
 * A collective on a cluster (--topo): whose call it is, what it takes, what is the best it could
 * take, and what limits it. */
#pragma once

#include "net/advice.h"
#include "net/ceiling.h"
#include "net/coll_request.h"
#include "net/flow.h"
#include "net/library.h"
#include "sched/coll.h"

/* A cluster with the constants of its networks. */
struct cluster {
    struct accel_table accels;
    struct net_const_table consts;
    struct topo topo;
    struct lib_args args; /* algo is set for each row */
    struct flow *flow;    /* NULL with --net closed */
};

/* Reads the cluster `name` and settles what depends on it: form, ranks and node groups of the
 * request. 0, or -1 with all faults (ERR_USAGE). Released by cluster_close in either case. */
int cluster_open(struct cluster *cluster, struct coll_request *request, const char *name,
                 struct err *err);
void cluster_close(struct cluster *cluster);

/* The rules that need both, once coll_check_form has passed: a fault of one link is nothing that a
 * formula knows. 0 or -1. */
int cluster_check(const struct cluster *cluster, const struct coll_request *request,
                  struct err *err);

/* Makes the engine ready, unless the request is for closed forms. Once the request has been
 * checked; it and `notes` are borrowed. */
void cluster_start(struct cluster *cluster, const struct coll_request *request, struct out *notes);

/* One predicted call. */
struct cluster_call {
    struct result result; /* time, algorithm, ceiling, limit */
    enum ceiling_kind kind;
    struct ceiling ceiling;
    struct lib_choice nccl; /* what NCCL's published formula takes; algo < 0: nothing */
    double fixed_us;        /* of its time: what does not grow with the bytes */
    struct flow_run run;
    bool skipped; /* the engine would have run for long: it is in closed form */
    bool ran;     /* by the engine: `run` is to be released with flow_release */
};

/* Predicts one call of `count` elements per block as a library's, by the algorithm `name` ("auto",
 * or one of the library's). 0 or -1. */
int cluster_predict(struct cluster *cluster, const struct coll_request *request, const char *name,
                    size_t count, struct cluster_call *call, struct err *err);

/* .. by an algorithm of ours, out of place or in place; call->ran is false where its schedule
 * cannot run so. The cluster must have been started with an engine. 0 or -1. */
int cluster_predict_own(struct cluster *cluster, const struct coll_request *request,
                        const struct algo_choice *choice, size_t count, bool in_place,
                        struct cluster_call *call, struct err *err);
void cluster_call_release(struct cluster_call *call);

/* The command: all sizes and algorithms, with output. 0 or -1. */
int coll_cluster(struct coll_request *request, const struct opts *opts, const char *command,
                 struct err *err);
