/* SPDX-License-Identifier: Apache-2.0
 * The command line of `collbench OPERATION`: nccl-tests' flags and ours, as one option table, and
 * the plan that follows from it. */
#pragma once

#include "base/opts.h"
#include "bench/plan.h"

enum { NFIXED = 8 };

/* What the user wrote; fields are explained by the help texts of the table. */
struct request {
    uint64_t nranks, size, iters, warmup, batch, root, check, average, channels, parts, slice;
    uint64_t depth, launches, looks, seed, timestamp;
    struct sweep sweep;
    double timeout_s, precision, cap_s, skew_s, soak_s;
    struct opts_list dtypes, ops, algos;
    unsigned wire, buffers, memory, ranks_as, cadence, vs, order, bind, format;
    const char *transport, *json, *csv, *mpiexec, *groups, *trace;
    const char *nccl_algo, *nccl_proto;
    const char *nodes, *matrix, *schedule;
    const char *hosts, *rsh, *iface, *provider;
    char *host_groups; /* ranks by host, "4+4"; NULL: one host; freed by the owner */
    uint64_t connections;
    uint32_t copies; /* that another launcher has started, one per rank; 0: none */
    double imbalance;
    uint64_t ngroups, group_ranks; /* read from `groups`; 0: not given */
    bool nccl_hostid, oversubscribe, in_place, out_of_place, overwrite, list, version, overlap,
        cold, timestamps, repeat_check;
    uint64_t cudagraph;
    uint64_t fixed[NFIXED]; /* flags of nccl-tests that have one legal value here */
};

/* Parses the words behind the operation. 0, or -1 with all faults. Call opts_release always. */
int request_parse(struct request *request, struct opts *opts, int argc, char **argv,
                  struct err *err);

/* Options of connections with a transport that has none: a sentence each. */
void request_check_network(const struct request *request, const char *transport, struct err *err);

/* Prints --help of an operation. */
void request_help(FILE *to, const struct coll *coll);

/* The plan for `nranks` ranks, freed with free(); NULL with all faults that do not depend on
 * memory. */
struct plan *request_plan(const struct request *request, const struct opts *opts,
                          const struct coll *coll, uint32_t nranks, struct err *err);
