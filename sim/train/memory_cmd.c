/* SPDX-License-Identifier: Apache-2.0
 * `commsim memory`: without a cluster, the table of a course, two bytes per weight and gradient and
 * twelve of Adam's states under each level of sharding, with formulas; with a cluster, every stage
 * of the job at every moment of a step. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "train/memory.h"
#include "train/plan.h"
#include "train/step_cmd.h"

#define GIB 1073741824.0

struct request {
    struct plan_args plan;
    const char *constants, *json, *csv;
    bool overwrite;
};

#define ROW(name_, type_, field, arg_, help_, ...)                                                 \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .arg = (arg_), .help = (help_), __VA_ARGS__                                                \
    }
static const struct opts_row own_options[] = {
    ROW("constants", OPTS_STRING, constants, "FILE", "constants in place of the shipped ones",
        .section = "Output"),
    ROW("json", OPTS_STRING, json, "FILE", "write the table as JSON (- is stdout)"),
    ROW("csv", OPTS_STRING, csv, "FILE", "write the table as CSV (- is stdout)"),
    ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files"),
    {0},
};

static struct out *open_out(const struct request *q, const struct out_column *columns, size_t n,
                            struct err *err)
{
    struct out *out = out_new(columns, n);
    out_add_asked(out, q->json, q->csv, q->overwrite, err);
    return out;
}

/* ---- model states alone ---- */

static const struct out_column state_columns[] = {
    {"states", NULL, -36, 0, OUT_TEXT, 0, 0},    {"weights", "GB", 9, 2, OUT_DOUBLE, 0, 0},
    {"gradients", "GB", 9, 2, OUT_DOUBLE, 0, 0}, {"optimizer", "GB", 9, 2, OUT_DOUBLE, 0, 0},
    {"total", "GB", 9, 2, OUT_DOUBLE, 0, 0},     {"total", "GiB", 9, 2, OUT_DOUBLE, 0, 0},
    {"formula", NULL, -28, 0, OUT_TEXT, 0, 0},
};

/* Rajbhandari et al. 2020, figure 1, with K = 12 (Adam, fp32 master and two moments). */
static void print_states(struct out *out, double params, double gpus, const char *what)
{
    static const struct {
        const char *name, *formula;
        bool weights, gradients, optimizer; /* sharded */
    } levels[] = {{"one GPU, nothing sharded", "2N + 2N + 12N", false, false, false},
                  {"ZeRO-1, per GPU", "2N + 2N + 12N/n", false, false, true},
                  {"ZeRO-2, per GPU", "2N + (2N + 12N)/n", false, true, true},
                  {"ZeRO-3 = FSDP, per GPU", "(2N + 2N + 12N)/n", true, true, true}};
    out_note(out, "N = %s = %.0f parameters, n = %.0f GPUs", what, params, gpus);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        double w = 2e-9 * params / (levels[i].weights ? gpus : 1);
        double g = 2e-9 * params / (levels[i].gradients ? gpus : 1);
        double o = 12e-9 * params / (levels[i].optimizer ? gpus : 1);
        char *name = mem_printf("%s (N %s)", levels[i].name, what);
        struct out_cell cells[] = {out_text(name),
                                   out_double(w),
                                   out_double(g),
                                   out_double(o),
                                   out_double(w + g + o),
                                   out_double((w + g + o) * 1e9 / GIB),
                                   out_text(levels[i].formula)};
        out_row(out, cells);
        free(name);
    }
}

/* The size that a name like "7b" or "1.5b" states; 0 for other names. */
static double nominal_params(const char *name)
{
    char *end;
    double billions = isdigit((unsigned char)*name) ? strtod(name, &end) : 0;
    return billions > 0 && (*end == 'b' || *end == 'B') && !end[1] ? billions * 1e9 : 0;
}

static void print_course(const struct request *q, struct err *err)
{
    struct model model;
    const char *name = q->plan.model;
    if (model_read(&model, name, err)) return;
    double gpus = q->plan.cluster.gpus ? (double)q->plan.cluster.gpus : 1;
    struct out *out = open_out(q, state_columns, sizeof state_columns / sizeof *state_columns, err);
    if (!err->count) {
        out_note(out,
                 "mixed precision with Adam: 2 B per weight, 2 B per gradient (frameworks that "
                 "accumulate in fp32 hold 4 B: --topo counts those), 12 B of fp32 "
                 "weight and moments; activations and buffers come on top: name a cluster "
                 "(--topo) for those. GB is 10^9 B, GiB 2^30 B");
        double nominal = nominal_params(name);
        double n = (double)model.params;
        out_meta(out, "checkpoint_weights_GiB", out_double(2 * n / GIB));
        out_meta(out, "checkpoint_full_GiB", out_double(14 * n / GIB));
        out_note(out,
                 "checkpoint (exact N): 16-bit weights 2N = %.1f GB = %.1f GiB; with fp32 copy and "
                 "moments 14N = %.1f GB = %.1f GiB",
                 2e-9 * n, 2 * n / GIB, 14e-9 * n, 14 * n / GIB);
        if (nominal > 0) print_states(out, nominal, gpus, "by name");
        print_states(out, (double)model.params, gpus, "exact");
    }
    out_close(out, err);
    model_release(&model);
}

/* ---- every stage ---- */

#define GIB_COLUMN(key)                                                                            \
    {                                                                                              \
        key, "GiB", 9, 2, OUT_DOUBLE, 0, 0                                                         \
    }
static const struct out_column stage_columns[] = {
    {"stage", NULL, 5, 0, OUT_UINT, 0, 0},
    {"layers", NULL, 6, 1, OUT_DOUBLE, 0, 0},
    {"in_flight", NULL, 9, 2, OUT_DOUBLE, 0, 0},
    GIB_COLUMN("weights"),
    GIB_COLUMN("gradients"),
    GIB_COLUMN("optimizer"),
    GIB_COLUMN("activations"),
    GIB_COLUMN("live"),
    GIB_COLUMN("logits"),
    GIB_COLUMN("gathered"),
    GIB_COLUMN("init"),
    GIB_COLUMN("forward"),
    GIB_COLUMN("backward"),
    GIB_COLUMN("step"),
    GIB_COLUMN("save"),
    GIB_COLUMN("peak"),
};

static void print_stage(struct out *out, const struct job *job, const struct constants *c,
                        uint32_t i)
{
    struct stage_memory s = memory_stage(job, c, i);
    const double bytes[] = {s.weights,
                            s.gradients,
                            s.optimizer,
                            s.activations,
                            s.live,
                            s.logits,
                            s.gathered,
                            s.moment[MOMENT_INIT],
                            s.moment[MOMENT_FORWARD],
                            s.moment[MOMENT_BACKWARD],
                            s.moment[MOMENT_OPTIMIZER],
                            s.moment[MOMENT_SAVE],
                            s.peak};
    enum { FIRST = 3, NBYTES = sizeof bytes / sizeof *bytes };
    struct out_cell cells[FIRST + NBYTES] = {out_uint(i), out_double(job_stage_layers(job, i)),
                                             out_double(s.in_flight)};
    for (size_t k = 0; k < NBYTES; k++) {
        cells[FIRST + k] = out_double(bytes[k] / GIB);
    }
    out_row(out, cells);
}

static const char *const formulas[] = {
    "weights: 2 B per parameter of the rank; ZeRO-3 / n; FSDP keeps the fp32 copy alone, sharded",
    "gradients: what the framework accumulates in (2 or 4 B), ZeRO-2 / n",
    "optimizer: fp32 copy 4 B + moments (AdamW 8 B), ZeRO-1 / n",
    "activations: layers x bytes per token and layer x tokens x micro-batches in flight",
    "bytes per token and layer: 4h/S + 2(q+kv)/t + 2q/t + 4a/t + 4h/S + 2 x 3f/t (gated; else 2 x "
    "2f/t); S = t with sequence parallelism, else 1",
    "besides, if there: dropout 2h/S, unfused attention 5 a s/t, fp32 copies of unfused norms 8h/S",
    "in flight: 1F1B min(m, p - i); interleaved (2(p - i - 1) + (v - 1)p + 1)/v; GPipe m",
    "logits: bytes per logit x tokens x V/t, last stage; gathered under FSDP and ZeRO-3: two whole "
    "layers (2 B), the gradients of one (2 or 4 B), embeddings (4 B)",
    "save: weights and optimizer + a whole 16-bit state dict (2N) on the rank that writes it",
};

/* Where states or activations are on the host: how much of its memory they take. */
static void note_host(struct out *out, const struct job *job, const struct constants *c)
{
    double most = 0;
    for (uint32_t i = 0; i < job->pp; i++) {
        double host = memory_stage(job, c, i).host;
        most = host > most ? host : most;
    }
    if (!job->offload) return;
    out_note(out, "in the host's memory: up to %.1f GiB for a GPU, %.1f GiB for the %u of a host",
             most / GIB, most * job->gpus_per_node / GIB, job->gpus_per_node);
    out_meta(out, "host_GiB_per_gpu", out_double(most / GIB));
}

/* What DeepSpeed's own tool would say of ZeRO-3: less than a run needs. */
static void note_estimator(struct out *out, const struct plan *plan)
{
    const struct model *m = &plan->model;
    const struct strategy *s = &plan->strategy;
    uint64_t widest = m->vocab;
    if (s->zero != ZERO_3 || s->fsdp || (s->offload & 3) == OFFLOAD_WEIGHTS) return;
    if (m->ffn > widest) widest = m->ffn;
    if (m->heads * m->head_dim > widest) widest = m->heads * m->head_dim;
    double largest = (double)widest * (double)m->hidden;
    double bytes =
        memory_deepspeed_estimate((double)m->params, largest, (double)s->gpus, s->offload);
    out_note(out,
             "DeepSpeed's own estimator says %.3f GiB, 4 Lmax + %s (Lmax %.1f M parameters of the "
             "largest module): states alone, without context, gathered layers, buffers and "
             "activations, which are counted here",
             bytes / GIB,
             s->offload & OFFLOAD_WEIGHTS     ? "0"
             : s->offload & OFFLOAD_OPTIMIZER ? "2N/n"
                                              : "18N/n",
             largest / 1e6);
    out_meta(out, "deepspeed_estimate_GiB", out_double(bytes / GIB));
}

static void print_stages(const struct request *q, struct err *err)
{
    struct tables tables;
    struct plan plan;
    if (tables_read(&tables, ENGINE_CLOSED, q->constants, err)) return;
    if (plan_make(&plan, &tables, &q->plan, err) == 0) {
        size_t n = sizeof stage_columns / sizeof *stage_columns;
        struct out *out = open_out(q, stage_columns, n, err);
        const struct constants *c = &tables.constants[ENGINE_CLOSED].values;
        struct memory m = memory_predict(&plan.job, c);
        if (!err->count && rules_refuse(&plan.rules, err) == 0) {
            for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++) {
                out_note(out, "%s", formulas[i]);
            }
            out_note(
                out,
                "%s on %s: %s; stage %u needs %.1f GiB allocated, %.1f reserved (x %.2f "
                "+ %.1f GB), %.1f in nvidia-smi (x %.2f + %.1f GB, at least what is reserved), "
                "of %.1f GiB",
                plan.strategy.word, plan.topo.name, verdict_name(memory_verdict(&m)), m.stage,
                m.allocated / GIB, m.reserved / GIB, c->reserved_factor, c->reserved_GB,
                memory_smi(&m) / GIB, c->smi_factor, c->smi_GB, m.capacity / GIB);
            note_host(out, &plan.job, c);
            note_estimator(out, &plan);
            for (uint32_t i = 0; i < plan.job.pp; i++) {
                print_stage(out, &plan.job, c, i);
            }
        }
        out_close(out, err);
        plan_release(&plan);
    }
    tables_release(&tables);
}

/* Options that only a cluster gives a meaning. Returns 0, or -1 with a sentence for each. */
static int refuse_unused(const struct opts *opts, struct err *err)
{
    static const char *const used[] = {"model", "gpus", "json", "csv", "overwrite"};
    int bad = 0;
    for (size_t i = 0; opts->rows[i].name; i++) {
        bool known = !opts->set[i];
        for (size_t k = 0; k < sizeof used / sizeof *used; k++)
            known |= strcmp(opts->rows[i].name, used[k]) == 0;
        if (known) continue;
        bad = err_add(err, ERR_USAGE,
                      "--%s needs a cluster: add --topo; without one only model states are "
                      "counted, from --model and --gpus",
                      opts->rows[i].name);
    }
    return bad;
}

int memory_cmd(int argc, char **argv)
{
    struct request q = {0};
    struct opts opts = {0};
    struct err err = ERR_INIT;
    struct opts_row *options = plan_options(offsetof(struct request, plan), own_options);
    if (opts_parse(&opts, options, &q, argc, argv, &err) == 0) {
        if (opts.help) {
            opts_help(stdout, "commsim memory --model NAME [--gpus N | --topo CLUSTER] [options]",
                      "Memory per GPU: of the model states alone, or, with a cluster, of every "
                      "pipeline stage at every moment of a step.",
                      options);
        } else if (opts.npositionals) {
            err_add(&err, ERR_USAGE, "memory takes no words, \"%s\" is one", opts.positionals[0]);
        } else if (q.plan.cluster.topo) {
            print_stages(&q, &err);
        } else if (refuse_unused(&opts, &err) == 0) {
            print_course(&q, &err);
        }
    }
    int status = err.count ? (int)err.code : 0;
    err_print(&err, "commsim memory");
    err_release(&err);
    opts_release(&opts);
    free(options);
    return status;
}
