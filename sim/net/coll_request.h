/* SPDX-License-Identifier: Apache-2.0
 * What `commsim coll` is asked for: its options, read and checked. Without --topo the network is
 * one switch of --alpha and --beta; with it a cluster, and the call is that of a library or of
 * collbench. Which option belongs to which is one table; all broken rules are said at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/opts.h"
#include "kernels/kernels.h"
#include "net/library.h"
#include "net/net.h"
#include "net/topo.h"
#include "sched/coll.h"
#include "sched/sweep.h"

struct sched;

/* Whose call it is; FORM_SWITCH: our schedules on one switch. */
enum coll_form { FORM_SWITCH, FORM_NCCL, FORM_MPI, FORM_COLLBENCH, NFORMS };

enum { VERIFY_RANKS = 64 }; /* up to here a schedule is always verified before it runs */

struct coll_request {
    uint64_t nranks; /* the one switch */
    ps_t alpha_ps, overhead_ps;
    double beta_Bps, gamma_Bps;
    uint64_t slots;
    unsigned wire;
    const char *topo, *compare, *node_text; /* the cluster */
    uint64_t gpus;
    struct opts_list faults;
    unsigned as, net;
    const char *version; /* of NCCL */
    unsigned launch_mode;
    double launch_s, alpha_net_s; /* negative: not given */
    bool sharp, no_pxn;
    uint64_t root, size, slice; /* the call */
    struct sweep sweep;
    const char *dtype_name, *redop_name, *matrix;
    double imbalance;
    struct opts_list algos; /* the algorithm */
    const char *proto_name, *schedule;
    uint64_t channels, parts;
    const char *json, *csv, *log, *trace, *plot; /* output */
    bool overwrite, links;
    double measured_GBps;
    const struct coll *coll; /* from here on found, not read */
    enum coll_form form;
    enum dtype dtype;
    enum redop redop;
    enum lib_class lib_class;
    bool no_nvls;            /* a version of before NVLS */
    int proto;               /* enum nccl_proto, -1 */
    uint64_t hosts;          /* --nodes of a cluster; 0: not given */
    uint32_t *nodes, nnodes; /* node groups */
    double *shares;          /* alltoallv: of the traffic; else NULL */
    struct sched *drawn;     /* of --schedule; else NULL */
};

/* The options: offsets are those of struct coll_request. */
extern const struct opts_row coll_options[];

/* Whether it is about clusters (--topo, --compare). */
bool coll_on_cluster(const struct coll_request *request);

/* The rules that hold whatever the cluster is, and what the words mean: operation, type, sizes,
 * files. Adds every broken one (ERR_USAGE); 0 or -1. */
int coll_check(struct coll_request *request, const struct opts *opts, struct err *err);

/* Then, with `form` and `nranks` known (of a cluster: set by the caller, and `nodes` too): options
 * that mean nothing in this form, algorithms, root, traffic, schedule, timeline. 0 or -1. */
int coll_check_form(struct coll_request *request, const struct opts *opts, struct err *err);

void coll_request_release(struct coll_request *request);

/* The network of a run, as far as the request says it; the block's size is still to come. */
struct net_args coll_net_args(const struct coll_request *request);

extern const char *const coll_wires[]; /* "staged", "pull" */
enum wire_choice { CHOICE_STAGED, CHOICE_PULL };
