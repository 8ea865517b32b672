/* SPDX-License-Identifier: Apache-2.0
 * The bare command: plan, memory, step, and what they mean. */
#include "train/step_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "train/bottleneck.h"
#include "train/config.h"
#include "train/limit.h"
#include "train/plan.h"

#define GIB 1073741824.0

static const char *const step_models[] = {"closed", NULL};
static const char *const flops_words[] = {"model",  "hardware",  "causal", "full",
                                          "linear", "embedding", NULL};

struct request {
    struct plan_args plan;
    struct config_args configs;
    struct config config;
    unsigned emit;
    unsigned step;
    struct opts_list flops;
    const char *constants, *json, *csv;
    bool overwrite;
    unsigned convention;             /* FLOPS_..., from `flops` */
    double measured_s, measured_tps; /* of the user's run; at most one is given */
};

#define ROW(name_, type_, field, arg_, help_, ...)                                                 \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .arg = (arg_), .help = (help_), __VA_ARGS__                                                \
    }
static const struct opts_row own_options[] = {
    ROW("megatron-args", OPTS_STRING, configs.text[0], "TEXT|@FILE",
        "Megatron-LM arguments, as pasted from a command line, in place of --strategy",
        .section = "Other frameworks' configurations"),
    ROW("deepspeed", OPTS_STRING, configs.text[1], "FILE", "a DeepSpeed configuration (JSON)"),
    ROW("torchtitan", OPTS_STRING, configs.text[2], "FILE|FLAGS",
        "a torchtitan configuration (TOML), or its flags as pasted"),
    ROW("accelerate", OPTS_STRING, configs.text[3], "FILE",
        "an accelerate configuration for FSDP (YAML)"),
    ROW("emit", OPTS_CHOICE, emit, "FORMAT",
        "no prediction but the strategy as a launch command or file: megatron, deepspeed, "
        "torchtitan, fsdp (accelerate's YAML)",
        .choices = config_emit_names),
    ROW("step", OPTS_CHOICE, step, "MODEL", "how the step is timed: closed (closed forms)",
        .value = "closed", .choices = step_models, .section = "Prediction"),
    ROW("flops", OPTS_LIST, flops, "LIST",
        "which FLOP count: model or hardware (with recomputation); attention causal, full or not "
        "at all (linear); with the input embedding (embedding); default model,causal",
        .choices = flops_words),
    ROW("measured-time", OPTS_TIME_S, measured_s, "TIME",
        "time of a step that you measured: its tokens/s, FLOP/s and MFU, beside the prediction"),
    ROW("measured-rate", OPTS_DOUBLE, measured_tps, "N",
        "the same from tokens/s per GPU that you measured"),
    ROW("constants", OPTS_STRING, constants, "FILE", "constants in place of the shipped ones"),
    ROW("json", OPTS_STRING, json, "FILE", "write the result as JSON (- or no file: stdout)",
        .section = "Output"),
    ROW("csv", OPTS_STRING, csv, "FILE", "write the breakdown as CSV (- is stdout)"),
    ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files"),
    {0},
};

static const struct out_column columns[] = {
    {"part", NULL, -46, 0, OUT_TEXT, NULL, NULL},
    {"key", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"time", "ms", 12, 3, OUT_DOUBLE, NULL, NULL},
    {"share", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
};

/* Everything that is known about one prediction. */
struct answer {
    const struct request *q;
    const struct plan *plan;
    const struct constants *c;
    struct step step;
    struct memory memory;
    struct band band;
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
    char *unread = a->q->config.format ? config_note(&a->q->config) : NULL;
    if (unread) out_note(out, "%s", unread);
    free(unread);
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

static void print_memory(struct out *out, const struct answer *a)
{
    const struct memory *m = &a->memory;
    const struct stage_memory *w = &m->worst;
    char *remedy = limit_remedy(a->plan, a->c, &a->step);
    double left = (m->capacity - m->reserved) / GIB;
    out_note(out,
             "memory: %s, %.1f GiB %s: %.1f GiB allocated, %.1f reserved, %.1f in nvidia-smi, "
             "of %.1f GiB (stage %u)",
             verdict_name(memory_verdict(m)), left < 0 ? -left : left,
             left < 0 ? "too much" : "to spare", m->allocated / GIB, m->reserved / GIB,
             memory_smi(m) / GIB, m->capacity / GIB, m->stage);
    out_note(out,
             "memory of stage %u, GiB: weights %.2f, gradients %.2f, optimizer %.2f, "
             "activations %.2f (%.3g micro-batches), recomputed layer %.2f, logits %.2f, "
             "gathered %.2f",
             m->stage, w->weights / GIB, w->gradients / GIB, w->optimizer / GIB,
             w->activations / GIB, w->in_flight, w->live / GIB, w->logits / GIB, w->gathered / GIB);
    if (remedy) out_note(out, "to fit: %s", remedy);
    if (w->moment[MOMENT_SAVE] > m->capacity) {
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
    unsigned convention = a->q->convention, model_only = convention & ~(unsigned)FLOPS_HARDWARE;
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

/* What the user's own run reached, by the same convention. */
static void print_measured(struct out *out, const struct answer *a)
{
    const struct job *job = &a->plan->job;
    double tokens = (double)job->global_batch * (double)job->seq, gpus = job->ngpus;
    double t = a->q->measured_s > 0     ? a->q->measured_s
               : a->q->measured_tps > 0 ? tokens / (a->q->measured_tps * gpus)
                                        : 0;
    if (t <= 0) return;
    double rate = step_flops(job, a->q->convention) / t / gpus;
    const char *unit;
    double mfu = 100 * rate / plan_peak(a->plan, &unit);
    out_note(out,
             "measured: step %.6g s, %.0f tokens/s per GPU, %.1f TFLOP/s per GPU, %.2f %% of the "
             "%s peak; the prediction is %+.1f %% of that time",
             t, tokens / t / gpus, rate / 1e12, mfu, unit, 100 * (a->step.time_s / t - 1));
    put(out, "measured_step_s", t);
    put(out, "measured_tokens_per_s_per_gpu", tokens / t / gpus);
    put(out, "measured_TFLOPps_per_gpu", rate / 1e12);
    put(out, "measured_mfu_pct", mfu);
    put(out, "measured_error_pct", 100 * (a->step.time_s / t - 1));
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

static struct out *open_out(const struct request *q, struct err *err)
{
    struct out *out = out_new(columns, sizeof columns / sizeof *columns);
    out_add_asked(out, q->json, q->csv, q->overwrite, err);
    return out;
}

static void answer(const struct request *q, const struct plan *plan, const struct constants *c,
                   struct err *err)
{
    struct answer a = {.q = q, .plan = plan, .c = c};
    if (rules_refuse(&plan->rules, err) || limit_band(&plan->job, &a.band, err)) return;
    a.step = step_predict(&plan->job, c);
    a.memory = memory_predict(&plan->job, c);
    struct out *out = open_out(q, err);
    if (!err->count) {
        print_header(out, &a);
        print_memory(out, &a);
        print_speed(out, &a);
        print_parts(out, &a.step);
    }
    out_close(out, err);
    free(a.band.unlike);
}

/* The convention that --flops names; words that exclude each other are refused. */
static int read_flops(struct request *q, struct err *err)
{
    static const struct {
        const char *word;
        unsigned group, flag; /* one word of each group */
    } words[] = {{"model", 1, 0},
                 {"hardware", 1, FLOPS_HARDWARE},
                 {"causal", 2, 0},
                 {"full", 2, FLOPS_FULL},
                 {"linear", 2, FLOPS_LINEAR},
                 {"embedding", 4, FLOPS_EMBEDDING}};
    unsigned seen = 0;
    for (size_t i = 0; i < q->flops.count; i++) {
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
            if (strcmp(q->flops.items[i], words[k].word) != 0) continue;
            if (seen & words[k].group) {
                return err_add(err, ERR_USAGE,
                               "--flops: \"%s\" contradicts a word before it; give one of model, "
                               "hardware and one of causal, full, linear",
                               words[k].word);
            }
            seen |= words[k].group;
            q->convention |= words[k].flag;
        }
    }
    return 0;
}

static void run(struct request *q, const struct opts *opts, struct err *err)
{
    if (opts->npositionals) {
        err_add(err, ERR_USAGE, "\"%s\" is no option; commsim --help lists the commands",
                opts->positionals[0]);
        return;
    }
    if (!q->plan.cluster.topo) {
        err_add(err, ERR_USAGE, "--topo is missing: a cluster such as dgx-h100x2 or a path");
        return;
    }
    if (read_flops(q, err)) return;
    if (q->measured_s < 0 || q->measured_tps < 0 || (q->measured_s > 0 && q->measured_tps > 0)) {
        err_add(err, ERR_USAGE,
                "--measured-time %g s, --measured-rate %g: give one of the two, above 0",
                q->measured_s, q->measured_tps);
        return;
    }
    struct tables tables;
    struct plan plan;
    bool emit = opts_is_set(opts, "emit");
    if (emit && (q->json || q->csv)) {
        err_add(err, ERR_USAGE,
                "--emit %s writes no prediction; run again without it for --json or --csv",
                config_emit_names[q->emit]);
        return;
    }
    if (config_read(&q->config, &q->configs, err)) return;
    if (emit && !opts_is_set(opts, "framework"))
        q->plan.strategy.framework = config_emit_framework(q->emit);
    if (tables_read(&tables, q->constants, err)) return;
    if (config_apply(&q->config, &q->plan, opts, &tables, err) == 0 &&
        plan_make(&plan, &tables, &q->plan, err) == 0) {
        if (!emit)
            answer(q, &plan, &tables.constants.values, err);
        else if (rules_refuse(&plan.rules, err) == 0)
            config_write(q->emit, &plan, q->plan.model, &tables, stdout, stderr, err);
        plan_release(&plan);
    }
    tables_release(&tables);
}

/* Without a file behind it, --json means stdout. */
static char **with_json_file(int *argc, char **argv)
{
    static char stdout_name[] = "-";
    char **args = mem_calloc((size_t)*argc + 2, sizeof *args);
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        args[n++] = argv[i];
        bool last = i + 1 == *argc || (argv[i + 1][0] == '-' && argv[i + 1][1] == '-');
        if (strcmp(argv[i], "--json") == 0 && last) args[n++] = stdout_name;
    }
    *argc = n;
    return args;
}

/* A pasted text may begin with a dash, which no value behind a blank may: joins both by "=".
 * `pasted` of argc entries owns the new texts. */
static void join_pasted(int *argc, char **args, char **pasted)
{
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        bool takes =
            strcmp(args[i], "--megatron-args") == 0 || strcmp(args[i], "--torchtitan") == 0;
        if (takes && i + 1 < *argc && strpbrk(args[i + 1], " =") && args[i + 1][0] == '-') {
            pasted[n] = mem_printf("%s=%s", args[i], args[i + 1]);
            args[n] = pasted[n];
            i++;
        } else {
            args[n] = args[i];
        }
        n++;
    }
    *argc = n;
}

int step_cmd(int argc, char **argv)
{
    struct request q = {0};
    struct opts opts = {0};
    struct err err = ERR_INIT;
    struct opts_row *options = plan_options(offsetof(struct request, plan), own_options);
    char **args = with_json_file(&argc, argv);
    int words = argc;
    char **pasted = mem_calloc((size_t)words, sizeof *pasted);
    join_pasted(&argc, args, pasted);
    if (opts_parse(&opts, options, &q, argc, args, &err) == 0) {
        if (opts.help) {
            opts_help(stdout, "commsim --topo CLUSTER [--strategy WORDS] [options]",
                      "Predicts memory and time of a training step.", options);
        } else {
            run(&q, &opts, &err);
        }
    }
    int status = err.count ? (int)err.code : 0;
    err_print(&err, "commsim");
    err_release(&err);
    opts_release(&opts);
    config_release(&q.config);
    for (int i = 0; i < words; i++)
        free(pasted[i]);
    free(pasted);
    free(args);
    free(options);
    return status;
}
