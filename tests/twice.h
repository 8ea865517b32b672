/* SPDX-License-Identifier: Apache-2.0
 * A cluster and a job whose rates are all twice as high, and whose latencies half: whatever a step
 * takes, it takes half of it then. */
#pragma once

#include "net/net_const.h"
#include "net/topo.h"
#include "train/constants.h"
#include "train/job.h"

static inline void times_all(double *const *list, size_t n, double by)
{
    for (size_t i = 0; i < n; i++) {
        *list[i] *= by;
    }
}

static inline void times_row(double *row, size_t n, double by)
{
    for (size_t i = 0; i < n; i++) {
        row[i] *= by;
    }
}

/* All rates twice, all latencies and fixed times half. */
static inline void twice_as_fast(struct net_consts *n, struct constants *c, struct topo *t,
                                 struct job *job)
{
    struct device *d = &job->dev;
    double *const us[] = {&n->single_gpu_us, &n->torch_add_us, &n->base_p2p_us,
                          &n->hop_p2p_us,    &n->base_nvls_us, &n->nvls_ramp_us,
                          &n->base_net_us,   &n->p2p_most_us,  &c->moe_layer_us};
    double *const rates[] = {
        &t->line_GBps,       &t->ring_GBps,        &t->nic_Gbps,          &t->one_nic_Gbps,
        &t->host.pcie_GBps,  &t->host.uplink_GBps, &t->host.socket_GBps,  &t->host.memory_GBps,
        &t->accel.line_GBps, &t->accel.ring_GBps,  &t->accel.memory_GBps, &t->accel.usual_nic_Gbps,
        &d->flops16,         &d->flops8,           &d->flops_tf32,        &d->flops32,
        &d->hbm_Bps,         &d->ring_Bps,         &d->nic_usual_Bps,     &job->nic_Bps,
        &job->host_Bps,      &job->host_mem_Bps};
    times_all(us, sizeof us / sizeof *us, .5);
    times_all(rates, sizeof rates / sizeof *rates, 2);
    times_row(n->launch_us, NLAUNCHES, .5);
    times_row(n->base_us, NNCCL_PROTOS, .5);
    times_row(n->hop_us, NNCCL_PROTOS, .5);
    times_row(n->alpha_us, NFABRICS, .5);
    times_row(c->kernel_us, NFW_CLASSES, .5);
    times_row(c->host_us, NFW_CLASSES, .5);
    times_row(c->step_ms, NFW_CLASSES, .5);
    t->scale_up_latency_ns /= 2;
    t->network_latency_ns /= 2;
}
