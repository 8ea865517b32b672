/* SPDX-License-Identifier: Apache-2.0
 * The bare command: plan, memory, step, and what they mean. */
#include "train/step_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "base/plot.h"
#include "net/fault.h"
#include "net/fluid.h"
#include "net/library.h"
#include "train/advise.h"
#include "train/config.h"
#include "train/event.h"
#include "train/limit.h"
#include "train/ops_table.h"
#include "train/plan.h"
#include "train/slow.h"
#include "train/step_text.h"
#include "train/timeline.h"

static const char *const nets[] = {"fluid", "full", NULL};
static const char *const details[] = {[DETAIL_CHUNK] = "chunk", [DETAIL_OP] = "op", NULL};
enum { TIMELINE_WIDTH = 100 };
#define MOST_OTHER .95
static const char *const flops_words[] = {"model",  "hardware",  "causal", "full",
                                          "linear", "embedding", NULL};

struct request {
    struct plan_args plan;
    struct config_args configs;
    struct config config;
    unsigned emit;
    unsigned step, detail; /* enum engine, enum event_detail */
    unsigned net;          /* row of nets */
    double other_job;
    struct fault_args fault;
    const char *ops, *trace, *timeline; /* "-": stdout */
    struct slow_faults faults;          /* `fault`, sorted */
    struct event_slow *slow;            /* .. and read */
    size_t nslow;
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
    ROW("step", OPTS_CHOICE, step, "ENGINE",
        "how the step is timed: event (in the event queue, on the network) or closed (closed "
        "forms, the yardstick)",
        .value = "event", .choices = engine_names, .section = "Prediction"),
    ROW("detail", OPTS_CHOICE, detail, "LEVEL",
        "what the event engine runs: chunk (passes over chunks of layers, each put together from "
        "its operators before) or op (each operator)",
        .value = "chunk", .choices = details),
    ROW("net", OPTS_CHOICE, net, "LEVEL",
        "how collectives run: fluid (each once by the network engine, alone; in the step it is "
        "stretched where others load the same links) or full (all messages of all of them in the "
        "network engine, beside each operator; up to 64 GPUs)",
        .value = "fluid", .choices = nets),
    ROW("fault", OPTS_MORE, fault.faults, "FAULT",
        "something is broken; may be repeated: gpu3=0.8 or host1/gpu3=0.8 (an accelerator computes "
        "at .8 of its speed; host*, gpu*: all), host0/nic3=0.5 (a link at half its rate), "
        "host0/nic3=0 (a NIC is missing), link:host0/gpu2=0.5 (the scale-up links of an "
        "accelerator), no-peer-access, nics=1, tcp"),
    ROW("other-job", OPTS_SHARE, other_job, "SHARE",
        "another job takes this share of the network, in 0..0.95"),
    ROW("flops", OPTS_LIST, flops, "LIST",
        "which FLOP count: model or hardware (with recomputation); attention causal, full or not "
        "at all (linear); with the input embedding (embedding); default model,causal",
        .choices = flops_words),
    ROW("measured-time", OPTS_TIME_S, measured_s, "TIME",
        "time of a step that you measured: its tokens/s, FLOP/s and MFU, beside the prediction"),
    ROW("measured-rate", OPTS_DOUBLE, measured_tps, "N",
        "the same from tokens/s per GPU that you measured"),
    ROW("constants", OPTS_STRING, constants, "FILE", "constants in place of the shipped ones"),
    ROW("ops", OPTS_STRING, ops, "FILE",
        "the operators of the slowest stage, with shape, FLOPs, bytes, time, limit and share of "
        "the step, as a table (no file: below the answer; .csv and .json are written so)",
        .section = "Output"),
    ROW("timeline", OPTS_STRING, timeline, "FILE",
        "what each stage does when, as characters (no file: stdout) or as a picture (.png or .svg "
        "by gnuplot; .gp: the script)"),
    ROW("trace", OPTS_STRING, trace, "FILE",
        "write the same in Chrome's trace format (Perfetto, chrome://tracing)"),
    ROW("json", OPTS_STRING, json, "FILE", "write the result as JSON (- or no file: stdout)"),
    ROW("csv", OPTS_STRING, csv, "FILE", "write the tables as CSV (- is stdout)"),
    ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files"),
    {0},
};

/* The event engine for one plan, and what it gave. */
struct timing {
    struct net_const_table net;
    struct lib_args lib;
    struct fluids *fluids;
    struct chunks *chunks;
    struct event_args args;
    struct event_result result;
    struct advices advices;
};

static void timing_release(struct timing *t)
{
    advices_release(&t->advices);
    event_release(&t->result);
    chunks_free(t->chunks);
    fluids_free(t->fluids);
    net_const_release(&t->net);
    *t = (struct timing){0};
}

/* Whether a picture of the step was asked for. */
static bool wants_graph(const struct request *q)
{
    return q->trace || q->timeline;
}

static int run_events(const struct request *q, const struct plan *plan, const struct constants *c,
                      struct timing *t, struct err *err)
{
    if (net_const_read(&t->net, NULL, err)) return -1;
    t->lib = lib_usual();
    t->fluids = fluids_new(&plan->topo, &t->net.values, &t->lib);
    t->chunks = chunks_new();
    t->args = (struct event_args){.job = &plan->job,
                                  .c = c,
                                  .fluids = t->fluids,
                                  .chunks = t->chunks,
                                  .detail = q->net ? DETAIL_OP : (enum event_detail)q->detail,
                                  .full = q->net,
                                  .slow = q->slow,
                                  .nslow = q->nslow,
                                  .other_job = q->other_job,
                                  .keep = wants_graph(q)};
    return event_run(&t->args, &t->result, err);
}

static void ask_advice(const struct request *q, const struct plan *plan,
                       const struct tables *tables, struct timing *t)
{
    struct advise_args args = {.plan = plan,
                               .tables = tables,
                               .strategy = &q->plan.strategy,
                               .event = t->args,
                               .step_s = t->result.step.time_s,
                               .net = &t->net.values,
                               .lib = &t->lib};
    args.event.full = false;
    advise(&args, &t->advices);
}

/* The step of the same job with nothing broken by --fault and no other job; 0: this is it. */
static double healthy_s(const struct request *q, const struct plan *plan,
                        const struct tables *tables, const struct timing *t)
{
    if (q->fault.faults.count == 0 && !(q->other_job > 0)) return 0;
    const struct topo_args *cluster = &q->plan.cluster;
    struct err err = ERR_INIT;
    struct plan base = *plan, whole;
    struct event_result result = {0};
    struct event_args event = t->args;
    double time_s = 0;
    if (topo_read(&base.topo, &tables->accels, cluster->topo, cluster->nodes, cluster->gpus,
                  &err) == 0) {
        if (plan_vary(&whole, &base, tables, &q->plan.strategy, &err) == 0) {
            event.job = &whole.job;
            event.fluids = fluids_new(&whole.topo, &t->net.values, &t->lib);
            event.chunks = chunks_new();
            event.slow = NULL;
            event.nslow = 0;
            event.other_job = 0;
            event.keep = false;
            if (event_run(&event, &result, &err) == 0) time_s = result.step.time_s;
            event_release(&result);
            chunks_free(event.chunks);
            fluids_free(event.fluids);
            plan_release(&whole);
        }
        topo_release(&base.topo);
    }
    err_release(&err);
    return time_s;
}

/* "-" or a name behind an option that may stand alone. */
static bool to_stdout(const char *name)
{
    return strcmp(name, "-") == 0;
}

/* Pictures into files. 0, or -1 with sentences. */
static int write_pictures(const struct request *q, const struct plan *plan,
                          const struct timeline *timeline, struct err *err)
{
    char *what = mem_printf("%s on %s, %s", plan->model.name, plan->topo.name, plan->strategy.word);
    int bad = 0;
    if (q->trace) bad |= timeline_trace(timeline, what, q->trace, q->overwrite, err);
    if (q->timeline && !to_stdout(q->timeline))
        bad |= timeline_plot(timeline, what, q->timeline, q->overwrite, err);
    free(what);
    return bad;
}

/* What is printed behind the answer, or written beside it. */
struct extras {
    struct ops_table ops;
    struct timeline *timeline;
};

static int make_extras(const struct request *q, const struct plan *plan, struct timing *t,
                       struct extras *x, struct err *err)
{
    const struct event_result *r = &t->result;
    double step_s = r->step.time_s, hbm_Bps = plan->job.dev.hbm_Bps;
    int bad = 0;
    if (q->ops) {
        bad |= ops_table_make(&x->ops, &t->args, r, r->step.slowest_stage, err);
        if (!bad && !to_stdout(q->ops))
            bad |= ops_table_write(&x->ops, step_s, hbm_Bps, q->ops, q->overwrite, err);
    }
    if (wants_graph(q)) {
        x->timeline = timeline_new(r);
        bad |= write_pictures(q, plan, x->timeline, err);
    }
    return bad;
}

static void print_extras(struct out *out, const struct request *q, const struct plan *plan,
                         const struct timing *t, const struct extras *x)
{
    if (q->timeline && to_stdout(q->timeline)) timeline_draw(out, x->timeline, TIMELINE_WIDTH);
    if (!q->ops) return;
    out_table(out, "ops", ops_columns, OPS_COLUMNS);
    ops_table_print(out, &x->ops, t->result.step.time_s, plan->job.dev.hbm_Bps);
}

static void answer(struct request *q, const struct plan *plan, const struct tables *tables,
                   struct err *err)
{
    const struct constants *c = &tables->constants[q->step].values;
    struct answer a = {.plan = plan,
                       .config = &q->config,
                       .c = c,
                       .closed = &tables->constants[ENGINE_CLOSED].values,
                       .convention = q->convention,
                       .measured_s = q->measured_s,
                       .measured_tps = q->measured_tps};
    struct timing t = {0};
    struct extras x = {0};
    bool event = q->step == ENGINE_EVENT;
    if (rules_refuse(&plan->rules, err) || limit_band(&plan->job, &a.band, err)) return;
    a.closed_step = a.step = step_predict(&plan->job, a.closed);
    a.memory = memory_predict(&plan->job, c);
    struct out *out = step_text_open();
    int bad = out_add_asked(out, q->json, q->csv, q->overwrite, err);
    if (!bad && event && run_events(q, plan, c, &t, err) == 0 &&
        make_extras(q, plan, &t, &x, err) == 0) {
        a.step = t.result.step;
        a.event = &t.result;
        a.slow = q->slow;
        a.nslow = q->nslow;
        a.other_job = q->other_job;
        a.healthy_s = healthy_s(q, plan, tables, &t);
        ask_advice(q, plan, tables, &t);
        a.advices = &t.advices;
    }
    if (!err->count) {
        step_text_print(out, &a);
        if (event) print_extras(out, q, plan, &t, &x);
    }
    out_close(out, err);
    ops_table_release(&x.ops);
    timeline_free(x.timeline);
    timing_release(&t);
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

/* What only events can tell, and what is known to fail before long work. */
static int check_engine(const struct request *q, const struct opts *opts, struct err *err)
{
    static const char *const events[] = {"detail", "net",      "fault", "other-job",
                                         "ops",    "timeline", "trace"};
    int bad = 0;
    for (size_t i = 0; q->step == ENGINE_CLOSED && i < sizeof events / sizeof *events; i++) {
        if (opts_is_set(opts, events[i]))
            bad = err_add(err, ERR_USAGE, "--%s needs --step event; closed forms do not know it",
                          events[i]);
    }
    if (q->net && q->detail != DETAIL_OP && opts_is_set(opts, "detail"))
        bad =
            err_add(err, ERR_USAGE,
                    "--net full runs each operator, --detail chunk does not; nearest: --detail op");
    if (q->other_job > MOST_OTHER)
        bad =
            err_add(err, ERR_USAGE, "--other-job %g: a share of the network in 0..%g; nearest: %g",
                    q->other_job, MOST_OTHER, MOST_OTHER);
    if (q->trace && to_stdout(q->trace))
        bad = err_add(err, ERR_USAGE,
                      "--trace -: stdout has the answer; a trace is a file of its own");
    if (q->timeline && !to_stdout(q->timeline)) bad |= plot_check(q->timeline, err);
    return bad;
}

/* The format's own framework was taken, where the command without --emit takes another. */
static void say_framework(const char *framework)
{
    if (strcmp(framework, strategy_usual_framework) == 0) return;
    fprintf(stderr,
            "commsim: written as --framework %s has it; without --emit and --framework the "
            "prediction is of %s\n",
            framework, strategy_usual_framework);
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
    bool time = opts_is_set(opts, "measured-time"), rate = opts_is_set(opts, "measured-rate");
    if ((time && !(q->measured_s > 0)) || (rate && !(q->measured_tps > 0)) || (time && rate)) {
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
    bool others = emit && !opts_is_set(opts, "framework");
    if (others) q->plan.strategy.framework = config_emit_framework(q->emit);
    if (check_engine(q, opts, err)) return;
    if (tables_read(&tables, (enum engine)q->step, q->constants, err)) return;
    slow_sort(&q->faults, &q->fault.faults);
    q->plan.faults = &q->faults.links;
    if (config_apply(&q->config, &q->plan, opts, &tables, err) == 0 &&
        plan_make(&plan, &tables, &q->plan, err) == 0) {
        int bad = slow_read(&q->faults.gpus, &plan.topo, &q->slow, &q->nslow, err);
        if (!emit && !bad)
            answer(q, &plan, &tables, err);
        else if (!bad && rules_refuse(&plan.rules, err) == 0 &&
                 config_write(q->emit, &plan, q->plan.model, &tables, stdout, stderr, err) == 0 &&
                 others)
            say_framework(q->plan.strategy.framework);
        plan_release(&plan);
    }
    tables_release(&tables);
}

/* Without a file behind them, these mean stdout. */
static char **with_files(int *argc, char **argv)
{
    static const char *const options[] = {"--json", "--ops", "--timeline"};
    static char stdout_name[] = "-";
    char **args = mem_calloc(2 * (size_t)*argc + 1, sizeof *args);
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        args[n++] = argv[i];
        bool last = i + 1 == *argc || (argv[i + 1][0] == '-' && argv[i + 1][1] == '-');
        for (size_t k = 0; last && k < sizeof options / sizeof *options; k++) {
            if (strcmp(argv[i], options[k]) == 0) args[n++] = stdout_name;
        }
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
    char **args = with_files(&argc, argv);
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
    slow_release(&q.faults);
    free(q.slow);
    for (int i = 0; i < words; i++)
        free(pasted[i]);
    free(pasted);
    free(args);
    free(options);
    return status;
}
