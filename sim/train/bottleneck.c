/* SPDX-License-Identifier: Apache-2.0
 * Names what limits a step. Which link a group of ranks uses follows from how far it spans: beyond
 * the scale-up domain it is the NIC. */
#include "train/bottleneck.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "net/fault.h"

/* Whether the communication of a part leaves the domain: the span of its group in ranks. */
static bool leaves_domain(const struct job *job, enum step_part part)
{
    uint64_t domain = job->domain;
    switch (part) {
    case PART_TP:
        return job_tp_stride(job) * job->tp > domain;
    case PART_CP:
        return job_cp_stride(job) * job->cp > domain;
    case PART_EP:
        return (uint64_t)job->ep * job->etp > domain;
    case PART_FSDP:
    case PART_DP:
        return job_dp_stride(job) * job->dp * job->cp > domain;
    case PART_PP:
        return job_pp_stride(job) * job->pp > domain;
    default:
        return false;
    }
}

/* The parts that are useful arithmetic. */
static bool is_compute(enum step_part part)
{
    return part == PART_GEMM || part == PART_ATTENTION || part == PART_ELEMENT;
}

static bool is_communication(enum step_part part)
{
    return part == PART_TP || part == PART_CP || part == PART_EP || part == PART_FSDP ||
           part == PART_DP || part == PART_PP;
}

/* The largest part among compute or among all others. */
static enum step_part largest(const struct step *step, bool compute)
{
    enum step_part found = compute ? PART_GEMM : PART_TP;
    for (int i = 0; i < NPARTS; i++) {
        enum step_part part = (enum step_part)i;
        if (is_compute(part) == compute && step->part_s[part] > step->part_s[found]) {
            found = part;
        }
    }
    return found;
}

static struct bottleneck bottleneck_of(const struct job *job, const struct step *step, bool compute)
{
    enum step_part part = largest(step, compute);
    return (struct bottleneck){
        .part = part,
        .share = step->part_s[part] / step->time_s,
        .compute = compute,
        .nic = leaves_domain(job, part),
    };
}

struct bottleneck bottleneck_loss(const struct job *job, const struct step *step)
{
    return bottleneck_of(job, step, false);
}

struct bottleneck bottleneck_find(const struct job *job, const struct step *step)
{
    struct bottleneck loss = bottleneck_loss(job, step), work = bottleneck_of(job, step, true);
    return loss.share > work.share ? loss : work;
}

/* Whether NICs that could do more are used by TCP. */
static bool falls_back(const struct topo *topo)
{
    for (size_t i = 0; i < topo->nfaults; i++) {
        if (topo->faults[i].kind == FAULT_TCP) return true;
    }
    return false;
}

/* What has to grow for the part to shrink. Freed by the caller. */
static char *limit_name(const struct plan *plan, const struct bottleneck *b)
{
    const struct topo *topo = &plan->topo;
    const struct job *job = &plan->job;
    if (b->compute) {
        return mem_printf("compute (%s)", topo->accel.name);
    }
    if (b->nic && falls_back(topo)) {
        return mem_printf("NIC (TCP through the hosts' processors, not the %g Gb/s per GPU of the "
                          "NICs)",
                          topo->nic_Gbps);
    }
    if (b->nic) {
        return mem_printf("NIC (%s, %g Gb/s per GPU)", topo_fabric_title(topo->fabric),
                          topo->nic_Gbps);
    }
    if (is_communication(b->part)) {
        return mem_printf("link inside the node (%s, %g GB/s in a ring)",
                          scale_up_name(topo->scale_up), topo->ring_GBps);
    }
    if (b->part == PART_BUBBLE) {
        return mem_printf("pipeline (%" PRIu64 " micro-batches on %" PRIu32 " stages)",
                          job_microbatches(job), job->pp);
    }
    return mem_strdup(b->part == PART_OPTIMIZER ? "memory bandwidth"
                      : b->part == PART_LAUNCH  ? "host"
                      : b->part == PART_OFFLOAD ? "link to the host's memory"
                                                : "memory size");
}

char *bottleneck_text(const struct plan *plan, const struct step *step)
{
    struct bottleneck b = bottleneck_find(&plan->job, step);
    struct bottleneck loss = bottleneck_loss(&plan->job, step);
    char *limit = limit_name(plan, &b), *next = limit_name(plan, &loss);
    char *text = b.compute && loss.share >= .05
                     ? mem_printf("%s: %s is %.0f %% of the step, then %s: %s is %.0f %%", limit,
                                  step_part_name(b.part), 100 * b.share, next,
                                  step_part_name(loss.part), 100 * loss.share)
                     : mem_printf("%s: %s is %.0f %% of the step", limit, step_part_name(b.part),
                                  100 * b.share);
    free(limit);
    free(next);
    return text;
}
