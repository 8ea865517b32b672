/* SPDX-License-Identifier: Apache-2.0
 * The answer of the bare command in words and tables: see step_text.h. */
#include "train/step_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/fault.h"
#include "train/bottleneck.h"
#include "train/event_text.h"

#define GIB 1073741824.0

static const struct out_column part_columns[] = {
    {"part", NULL, -46, 0, OUT_TEXT, NULL, NULL},
    {"key", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"time", "ms", 12, 3, OUT_DOUBLE, NULL, NULL},
    {"share", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
};

static void put(struct out *out, const char *key, double value)
{
    out_meta(out, key, out_double(value));
}

static void print_header(struct out *out, const struct answer *a)
{
    const struct plan *p = a->plan;
    const struct strategy *s = &p->strategy;
    char *cluster = topo_describe(&p->topo);
    out_note(out, "model %s: %.4g B parameters, %u layers", p->model.name,
             (double)p->model.params / 1e9, p->job.shape.layers);
    out_note(out, "cluster %s: %s", p->topo.name, cluster);
    out_note(out,
             "strategy %s, framework %s, %s, sequence %llu, micro-batch %llu, global batch "
             "%llu sequences, %llu micro-batches, schedule %s",
             s->word, s->framework.name, s->precision->name, (unsigned long long)s->seq,
             (unsigned long long)s->micro_batch, (unsigned long long)s->global_batch,
             (unsigned long long)job_microbatches(&p->job), schedule_name(s->schedule));
    for (int modelled = 0; modelled < 2 && a->config->format; modelled++) {
        char *unread = config_note(a->config, modelled);
        if (unread) out_note(out, "%s", unread);
        free(unread);
    }
    for (size_t i = 0; i < p->nassumed; i++) {
        out_note(out, "assumed: %s", p->assumed[i]);
    }
    for (size_t i = 0; i < p->rules.count; i++) {
        out_note(out, "%s: %s", p->rules.findings[i].warning ? "warning" : "rule",
                 p->rules.findings[i].text);
    }
    out_meta(out, "model", out_text(p->model.name));
    out_meta(out, "cluster", out_text(cluster));
    out_meta(out, "strategy", out_text(s->word));
    out_meta(out, "framework", out_text(s->framework.name));
    free(cluster);
}

/* What is in the job and not in its closed form. */
static void print_untimed(struct out *out, const struct job *job)
{
    const struct {
        bool there;
        const char *what;
    } untimed[] = {{job->offload != 0, "offloading"},
                   {job->packed_seq > 0, "packed sequences"},
                   {job_expert_load(job) != 1, "uneven experts"}};
    for (size_t i = 0; i < sizeof untimed / sizeof *untimed; i++) {
        if (untimed[i].there)
            out_note(out, "the closed form does not time %s; --step event does", untimed[i].what);
    }
}

/* What lies in the host's memory, which its file may state. */
static void print_host(struct out *out, const struct memory *m)
{
    char *of = m->host_capacity > 0 ? mem_printf("of %.0f GiB", m->host_capacity / GIB)
                                    : mem_strdup("which its file does not state (memory_GiB)");
    out_note(out, "in the host's memory: %.1f GiB of each rank, %.0f GiB of a host in all, %s",
             m->worst.host / GIB, m->host / GIB, of);
    out_meta(out, "host_memory_GiB", out_double(m->host / GIB));
    free(of);
}

static void print_memory(struct out *out, const struct answer *a)
{
    const struct memory *m = &a->memory;
    const struct stage_memory *w = &m->worst;
    char *remedy = a->event ? NULL : limit_remedy(a->plan, a->closed, &a->closed_step);
    double left = (m->capacity - m->reserved) / GIB;
    out_note(out,
             "memory: %s%s, %.1f GiB %s: %.1f GiB allocated, %.1f reserved, %.1f in nvidia-smi, "
             "of %.1f GiB (stage %u)",
             verdict_name(memory_verdict(m)), memory_host_full(m) ? " in the host's memory" : "",
             left < 0 ? -left : left, left < 0 ? "too much" : "to spare", m->allocated / GIB,
             m->reserved / GIB, memory_smi(m) / GIB, m->capacity / GIB, m->stage);
    out_note(out,
             "memory of stage %u, GiB: weights %.2f, gradients %.2f, optimizer %.2f, "
             "activations %.2f (%.3g micro-batches), recomputed layer %.2f, logits %.2f, "
             "gathered %.2f",
             m->stage, w->weights / GIB, w->gradients / GIB, w->optimizer / GIB,
             w->activations / GIB, w->in_flight, w->live / GIB, w->logits / GIB, w->gathered / GIB);
    if (remedy) out_note(out, "to fit: %s", remedy);
    if (w->host > 0) print_host(out, m);
    if (w->moment[MOMENT_SAVE] > m->capacity && w->moment[MOMENT_SAVE] > w->moment[MOMENT_INIT]) {
        out_note(
            out,
            "saving: a whole 16-bit state dict, %.1f GB, does not fit beside the states on one "
            "rank; save it sharded or gather it in host memory",
            2e-9 * job_params(&a->plan->job).total);
    }
    free(remedy);
    double checkpoint_B = 2 * job_params(&a->plan->job).total;
    double host_B = checkpoint_B * a->plan->job.gpus_per_node;
    put(out, "checkpoint_GB", checkpoint_B / 1e9);
    put(out, "host_load_TB", host_B / 1e12);
    if (host_B > 5e11) {
        out_note(out,
                 "loading: if each of the %u processes of a host reads the whole 16-bit checkpoint "
                 "(%.0f GB), the host needs %.2f TB of its own memory",
                 a->plan->job.gpus_per_node, checkpoint_B / 1e9, host_B / 1e12);
    }
    out_meta(out, "verdict", out_text(verdict_name(memory_verdict(m))));
    put(out, "memory_allocated_GiB", m->allocated / GIB);
    put(out, "memory_reserved_GiB", m->reserved / GIB);
    put(out, "memory_nvidia_smi_GiB", memory_smi(m) / GIB);
    put(out, "memory_capacity_GiB", m->capacity / GIB);
    put(out, "memory_worst_stage", m->stage);
}

/* "hardware FLOPs, attention counted full, input embedding counted" */
static char *convention_text(unsigned convention)
{
    const char *attention = convention & FLOPS_LINEAR ? "not counted"
                            : convention & FLOPS_FULL ? "counted full"
                                                      : "counted causal";
    return mem_printf("%s FLOPs, attention %s, input embedding %s",
                      convention & FLOPS_HARDWARE ? "hardware" : "model", attention,
                      convention & FLOPS_EMBEDDING ? "counted" : "not counted");
}

static void print_flops(struct out *out, const struct answer *a)
{
    const struct job *job = &a->plan->job;
    unsigned convention = a->convention, model_only = convention & ~(unsigned)FLOPS_HARDWARE;
    const char *unit;
    double gpu_s = a->step.time_s * job->ngpus, peak = plan_peak(a->plan, &unit);
    double model = step_flops(job, model_only);
    double hardware = step_flops(job, convention | FLOPS_HARDWARE);
    double chosen = step_flops(job, convention);
    double tokens = (double)job->global_batch * (double)job->seq;
    char *text = convention_text(convention);
    out_note(out,
             "%.1f TFLOP/s per GPU, %.4g GFLOP per token (%s); MFU %.1f %%, HFU %.1f %% of %.0f "
             "TFLOP/s, the dense %s peak",
             chosen / gpu_s / 1e12, chosen / tokens / 1e9, text, 100 * model / gpu_s / peak,
             100 * hardware / gpu_s / peak, peak / 1e12, unit);
    put(out, "TFLOPps_per_gpu", chosen / gpu_s / 1e12);
    put(out, "GFLOP_per_token", chosen / tokens / 1e9);
    put(out, "mfu_pct", 100 * model / gpu_s / peak);
    put(out, "hfu_pct", 100 * hardware / gpu_s / peak);
    put(out, "peak_TFLOPps", peak / 1e12);
    out_meta(out, "peak_unit", out_text(unit));
    free(text);
    text = mem_printf("%s,%s%s", convention & FLOPS_HARDWARE ? "hardware" : "model",
                      convention & FLOPS_LINEAR ? "linear"
                      : convention & FLOPS_FULL ? "full"
                                                : "causal",
                      convention & FLOPS_EMBEDDING ? ",embedding" : "");
    out_meta(out, "flops", out_text(text));
    free(text);
}

/* What a longer step would say of its causes, each alone: the share of its rate that a part that
 * takes `part_s` of the step would have. */
static double share_left(double part_s, double more_s)
{
    return part_s / (part_s + more_s);
}

/* What a measured step of t seconds says, which reaches `mfu` percent; NULL: nothing. Freed by the
 * caller. */
static char *measured_verdict(const struct answer *a, double t, double mfu)
{
    const struct step *s = &a->step;
    double band = a->band.n > 0 ? a->band.p90 : 15, more_s = t - s->time_s, net = 0, compute = 0;
    for (int i = 0; i < NPARTS; i++) {
        bool slows = i <= PART_RECOMPUTE || i == PART_OPTIMIZER || i == PART_BUBBLE;
        if (slows) compute += s->part_s[i]; /* stages wait for slower ones as much longer */
        if (i >= PART_TP && i <= PART_PP) net += s->part_s[i];
    }
    if (mfu > 100)
        return mem_strdup("measured: above the peak of the accelerators, which no run is: is it "
                          "the time of one step, and are unit, model, batch and GPUs those of the "
                          "run?");
    if (fabs(s->time_s / t - 1) * 100 <= band)
        return mem_printf("measured: as predicted, within the error band of %.1f %%", band);
    if (more_s < 0)
        return mem_printf("measured: quicker than the error band of %.1f %% allows: is the job the "
                          "same (recomputation, attention, precision, framework)?",
                          band);
    char *links = net > 0 ? mem_printf(", or what is exposed of the network at %.2g of its rate",
                                       share_left(net, more_s))
                          : mem_strdup("");
    char *text =
        mem_printf("measured: slower than the error band of %.1f %% allows. One cause alone "
                   "would be: accelerators at %.2g of their speed (try --fault gpu*=%.2g)%s, "
                   "or %.3g s a step outside of it (data, checkpoints, logging)",
                   band, share_left(compute, more_s), share_left(compute, more_s), links, more_s);
    free(links);
    return text;
}

/* What the user's own run reached, by the same convention. */
static void print_measured(struct out *out, const struct answer *a)
{
    const struct job *job = &a->plan->job;
    double tokens = (double)job->global_batch * (double)job->seq, gpus = job->ngpus;
    double t = a->measured_s > 0     ? a->measured_s
               : a->measured_tps > 0 ? tokens / (a->measured_tps * gpus)
                                     : 0;
    if (t <= 0) return;
    double rate = step_flops(job, a->convention) / t / gpus;
    const char *unit;
    double mfu = 100 * rate / plan_peak(a->plan, &unit);
    out_note(out,
             "measured: step %.6g s, %.0f tokens/s per GPU, %.1f TFLOP/s per GPU, %.2f %% of the "
             "%s peak; the prediction is %.1f %% %s that time",
             t, tokens / t / gpus, rate / 1e12, mfu, unit, 100 * fabs(a->step.time_s / t - 1),
             a->step.time_s < t ? "below" : "above");
    char *verdict =
        measured_verdict(a, t, 100 * step_flops(job, 0) / t / gpus / plan_peak(a->plan, &unit));
    if (verdict) out_note(out, "%s", verdict);
    free(verdict);
    put(out, "measured_step_s", t);
    put(out, "measured_tokens_per_s_per_gpu", tokens / t / gpus);
    put(out, "measured_TFLOPps_per_gpu", rate / 1e12);
    put(out, "measured_mfu_pct", mfu);
    put(out, "measured_error_pct", 100 * (a->step.time_s / t - 1));
}

/* "link host0/nic3 at 0.5 of its rate". Freed by the caller. */
static char *fault_text(const struct fault *fault)
{
    switch (fault->kind) {
    case FAULT_FRACTION:
        return mem_printf("link %s at %g of its rate", fault->link, fault->fraction);
    case FAULT_MISSING:
        return mem_printf("%s is missing", fault->link);
    case FAULT_NICS:
        return mem_printf("%llu NICs of each host are used", (unsigned long long)fault->nics);
    case FAULT_TCP:
        return mem_strdup("the network falls back to TCP");
    case FAULT_NO_PEERS:
        break;
    }
    return mem_strdup("no peer access: messages inside a host go through its memory");
}

/* "3 (host0/gpu3)". Freed by the caller. */
static char *gpu_text(const struct topo *topo, uint32_t gpu)
{
    return mem_printf("%u (host%u/gpu%u)", gpu, gpu / (uint32_t)topo->per_host,
                      gpu % (uint32_t)topo->per_host);
}

/* What is not as it should be. */
static void print_faults(struct out *out, const struct answer *a)
{
    const struct topo *topo = &a->plan->topo;
    for (size_t i = 0; i < topo->nfaults && a->event; i++) {
        char *text = fault_text(&topo->faults[i]);
        out_note(out, "fault: %s", text);
        free(text);
    }
    for (size_t i = 0, next; i < a->nslow; i = next) {
        const struct event_slow *first = &a->slow[i], *last;
        for (next = i + 1; next < a->nslow && a->slow[next].speed == first->speed &&
                           a->slow[next].gpu == a->slow[next - 1].gpu + 1;
             next++) {
        }
        last = &a->slow[next - 1];
        char *from = gpu_text(topo, first->gpu), *to = gpu_text(topo, last->gpu);
        if (first == last)
            out_note(out, "fault: accelerator %s computes at %g of its speed", from, first->speed);
        else
            out_note(out, "fault: accelerators %s to %s compute at %g of their speed", from, to,
                     first->speed);
        free(from);
        free(to);
    }
    if (a->other_job > 0)
        out_note(out, "another job takes %g of the network between hosts", a->other_job);
}

static void print_speed(struct out *out, const struct answer *a)
{
    const struct job *job = &a->plan->job;
    const struct step *s = &a->step;
    double gpus = job->ngpus;
    out_note(out, "step %.6g s, %.0f tokens/s per GPU, %.4g tokens/s in all", s->time_s,
             s->tokens_per_s / gpus, s->tokens_per_s);
    print_flops(out, a);
    print_measured(out, a);
    double exposed = s->part_s[PART_TP] + s->part_s[PART_CP] + s->part_s[PART_EP] +
                     s->part_s[PART_FSDP] + s->part_s[PART_DP] + s->part_s[PART_PP];
    out_note(out, "bubble %.1f %%, exposed communication %.1f %% of the step",
             100 * s->part_s[PART_BUBBLE] / s->time_s, 100 * exposed / s->time_s);
    char *limit = bottleneck_text(a->plan, s);
    out_note(out, "limited by %s", limit);
    out_meta(out, "limit", out_text(limit));
    free(limit);
    if (a->event) event_text_notes(out, a);
    if (a->band.unlike) {
        out_note(out,
                 "error band: no published run of this kind (%s); the nearest kind, %s with a %s "
                 "framework, has +-%.1f %% (9 of 10)",
                 a->band.unlike, limit_kind_name(limit_kind(job)), fw_class_name(job->fw),
                 a->band.p90);
    } else if (a->band.n > 0) {
        out_note(out,
                 "error band: +-%.1f %% (median), +-%.1f %% (9 of 10), over %.0f published "
                 "runs (%s, %s framework)",
                 a->band.median, a->band.p90, a->band.n, limit_kind_name(limit_kind(job)),
                 fw_class_name(job->fw));
    } else {
        out_note(out, "error band: no published run is like this one; +-15 %% is usual for a "
                      "framework without measurements");
    }
    put(out, "step_s", s->time_s);
    put(out, "tokens_per_s", s->tokens_per_s);
    put(out, "tokens_per_s_per_gpu", s->tokens_per_s / gpus);
    if (a->band.n > 0 && !a->band.unlike) {
        put(out, "error_median_pct", a->band.median);
        put(out, "error_p90_pct", a->band.p90);
    }
}

static void print_parts(struct out *out, const struct step *step)
{
    for (int i = 0; i < NPARTS; i++) {
        if (step->part_s[i] <= 0) continue;
        struct out_cell cells[] = {
            out_text(step_part_name((enum step_part)i)), out_text(step_part_key((enum step_part)i)),
            out_double(step->part_s[i] * 1e3), out_double(100 * step->part_s[i] / step->time_s)};
        out_row(out, cells);
    }
    struct out_cell total[] = {out_text("step"), out_text("step"), out_double(step->time_s * 1e3),
                               out_double(100)};
    out_row(out, total);
}

struct out *step_text_open(void)
{
    return out_new(part_columns, sizeof part_columns / sizeof *part_columns);
}

void step_text_print(struct out *out, const struct answer *a)
{
    out_meta(out, "engine", out_text(engine_names[a->event ? ENGINE_EVENT : ENGINE_CLOSED]));
    print_header(out, a);
    print_faults(out, a);
    if (!a->event) print_untimed(out, &a->plan->job);
    print_memory(out, a);
    print_speed(out, a);
    print_parts(out, &a->step);
    if (a->event) event_text_tables(out, a);
}
