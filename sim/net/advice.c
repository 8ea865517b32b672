/* SPDX-License-Identifier: Apache-2.0
 * The rules of advice.h: each is one function that gives its sentence or NULL. */
#include "net/advice.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/units.h"

/* No exchange between two accelerators has been seen below this. */
static const double least_us = 4;

static double nranks_of(const struct advice_call *call)
{
    return (double)topo_gpus(call->topo);
}

static double factor_of(const struct advice_call *call)
{
    return coll_get(call->coll)->busbw_factor((uint32_t)topo_gpus(call->topo));
}

/* What is to be explained: the measurement, else the prediction. */
static double seen(const struct advice_call *call)
{
    return call->measured_GBps >= 0 ? call->measured_GBps : call->busbw_GBps;
}

/* The measured share of what can be had at this size: small sizes are not held to the ceiling. */
static double reached(const struct advice_call *call)
{
    double best = call->busbw_GBps < 0.5 * call->ceiling.busbw_GBps ? call->busbw_GBps
                                                                    : call->ceiling.busbw_GBps;
    return call->measured_GBps < 0 || !(best > 0) ? -1 : call->measured_GBps / best;
}

static char *one_rank(const struct advice_call *call)
{
    if (topo_gpus(call->topo) > 1) return NULL;
    return mem_printf("one rank: busbw is 0 by its definition (algbw x %s), nothing is sent; it "
                      "says nothing about a link",
                      coll_get(call->coll)->busbw);
}

static char *latency(const struct advice_call *call)
{
    char size[UNITS_TEXT];
    if (call->fixed_us < 0.5 * call->time_us || nranks_of(call) < 2) return NULL;
    return mem_printf("latency-bound at %s: %.3g of %.3g us are launch and hops, whatever the "
                      "bandwidth",
                      units_size(size, call->bytes), call->fixed_us, call->time_us);
}

static char *two_nodes(const struct advice_call *call)
{
    double wire = call->ceiling.wire_GBps, n = nranks_of(call), g = (double)topo_domain(call->topo);
    bool adds = call->kind == CEILING_TREE || call->kind == CEILING_SWITCH;
    bool maybe = call->measured_GBps >= 0 && call->coll == COLL_ALLREDUCE;
    if (!(wire > 0) || seen(call) <= wire || seen(call) > 2 * wire || !(adds || maybe)) return NULL;
    return mem_printf("%.4g GB/s is above the %.4g GB/s of the NICs and no error: over %g nodes a "
                      "tree sends less through each NIC than the factor of busbw counts",
                      seen(call), wire, n / g);
}

static char *nvls(const struct advice_call *call)
{
    const struct ceiling *c = &call->ceiling;
    if (call->kind != CEILING_SWITCH || c->wire_GBps > 0 || seen(call) <= c->link_GBps ||
        seen(call) > 2 * c->link_GBps)
        return NULL;
    return mem_printf("%.4g GB/s is above the %.4g GB/s that a ring reaches here, and normal: NVLS "
                      "adds in the switch",
                      seen(call), c->link_GBps);
}

static char *alltoall(const struct advice_call *call)
{
    double n = nranks_of(call), g = (double)topo_domain(call->topo);
    bool all = call->coll == COLL_ALLTOALL || call->coll == COLL_ALLTOALLV;
    if (!all || n <= g) return NULL;
    double out = seen(call) / factor_of(call) * g * (n - g) / n;
    return mem_printf(
        "all-to-all: of %g blocks %g stay inside, so busbw ends at %.4g x (n-1)/(n-%g)"
        " = %.4g GB/s; at %.4g GB/s a node sends %.4g GB/s out",
        n - 1, g - 1, call->ceiling.per_gpu_GBps, g, call->ceiling.per_gpu_GBps * (n - 1) / (n - g),
        seen(call), out);
}

static char *pcie(const struct advice_call *call)
{
    const struct ceiling *c = &call->ceiling;
    if (c->limit != LIMIT_PCIE) return NULL;
    return mem_printf("the PCIe link of a GPU is the limit: it carries %.4g GB/s, its NICs %.4g: "
                      "more NICs do not help, more GPUs do",
                      c->node_GBps / (double)topo_domain(call->topo), c->wire_GBps);
}

static char *far_nic(const struct advice_call *call)
{
    uint64_t far = ceiling_far_gpus(call->topo);
    if (!far) return NULL;
    return mem_printf("%llu of %llu GPUs of a host have no NIC beside them: what they send goes by "
                      "a neighbour's, over NVLink or PCIe",
                      (unsigned long long)far, (unsigned long long)call->topo->per_host);
}

static char *artefact(const struct advice_call *call)
{
    if (!(call->measured_GBps > 0) || topo_gpus(call->topo) < 2) return NULL;
    double time_us = (double)call->bytes * factor_of(call) / call->measured_GBps / 1e3;
    if (time_us >= least_us) return NULL;
    return mem_printf("%.2g us is an artefact: no real exchange takes less than about %g us; was "
                      "the launch timed, or a graph that does not wait?",
                      time_us, least_us);
}

static char *verdict(const struct advice_call *call)
{
    double share = reached(call);
    if (share < 0) return NULL;
    if (share > 1.1)
        return mem_printf("measured %.4g GB/s, predicted %.4g, ceiling %.4g (%s): %s",
                          call->measured_GBps, call->busbw_GBps, call->ceiling.busbw_GBps,
                          call->ceiling.text,
                          call->measured_GBps > call->ceiling.busbw_GBps
                              ? "more than the links carry: are size, ranks, algorithm and the "
                                "factor of busbw those that you measured?"
                              : "quicker than predicted, at a size where latency decides; it says "
                                "nothing about the links");
    const char *word = share >= 0.95  ? "healthy"
                       : share >= 0.8 ? "fair: tuning may give the rest (PCIe reads in flight, "
                                        "relaxed ordering, NUMA binding)"
                       : share >= 0.6 ? "low"
                                      : "bad";
    return mem_printf("measured %.4g GB/s, predicted %.4g, ceiling %.4g (%s): %.0f %% of what can "
                      "be had, %s",
                      call->measured_GBps, call->busbw_GBps, call->ceiling.busbw_GBps,
                      call->ceiling.text, 100 * share, word);
}

static char *sockets(const struct advice_call *call)
{
    double share = reached(call);
    if (share < 0 || share >= 0.25 || !(call->ceiling.wire_GBps > 0)) return NULL;
    return mem_printf("below 25 %%: suspect a fall-back to sockets; NCCL_DEBUG=INFO must say "
                      "NET/IB, not NET/Socket");
}

static char *one_hca(const struct advice_call *call)
{
    double share = reached(call), nics = call->ceiling.nics;
    if (share < 0 || share >= 0.7 || !(call->ceiling.wire_GBps > 0)) return NULL;
    if (nics > 1)
        return mem_printf("%g NICs: suspect a single HCA in use (NCCL_IB_HCA), then PCIe ACS or ATS"
                          " that sends GPUDirect RDMA through the processor",
                          nics);
    return mem_printf(
        "one NIC: suspect PCIe ACS or no GPUDirect RDMA, or bonded ports, of which one "
        "flow takes one");
}

static char *(*const rules[NADVICE])(const struct advice_call *call) = {
    [ADVICE_ONE_RANK] = one_rank, [ADVICE_LATENCY] = latency,   [ADVICE_TWO_NODES] = two_nodes,
    [ADVICE_NVLS] = nvls,         [ADVICE_ALLTOALL] = alltoall, [ADVICE_PCIE] = pcie,
    [ADVICE_FAR_NIC] = far_nic,   [ADVICE_ARTEFACT] = artefact, [ADVICE_VERDICT] = verdict,
    [ADVICE_SOCKETS] = sockets,   [ADVICE_ONE_HCA] = one_hca,
};

void advice_add(struct advice *advice, const struct advice_call *call)
{
    for (int i = 0; i < NADVICE; i++) {
        char *text = rules[i](call);
        if (!text) continue;
        free(advice->texts[i]);
        advice->texts[i] = text;
    }
}

void advice_release(struct advice *advice)
{
    for (int i = 0; i < NADVICE; i++)
        free(advice->texts[i]);
}
