/* SPDX-License-Identifier: Apache-2.0
 * `commsim compare`: every cluster with every strategy, each predicted as the bare command would.
 * A pair that breaks a rule keeps its row without figures, and its sentences go to stderr. */
#include "train/compare_cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/plot.h"
#include "train/bottleneck.h"
#include "train/memory.h"
#include "train/plan.h"
#include "train/runner.h"

struct request {
    struct plan_args plan; /* topo and strategy hold several */
    const char *plot, *json, *csv, *constants;
    unsigned engine; /* enum engine */
    bool overwrite;
};

#define ROW(name_, letter_, type_, field, arg_, help_, ...)                                        \
    {                                                                                              \
        .name = (name_), .letter = (letter_), .type = (type_),                                     \
        .offset = offsetof(struct request, field), .arg = (arg_), .help = (help_), __VA_ARGS__     \
    }

static const struct opts_row rows[] = {
    ROW("plot", 0, OPTS_STRING, plot, "FILE",
        "draw the parts of each step as stacked bars (.png or .svg by gnuplot; .gp: the script)",
        .section = "Output"),
    ROW("json", 'J', OPTS_STRING, json, "FILE",
        "write the table as JSON too; - is stdout, without the text"),
    ROW("csv", 0, OPTS_STRING, csv, "FILE",
        "write the table as CSV too; - is stdout, without the text"),
    ROW("overwrite", 0, OPTS_FLAG, overwrite, NULL, "files may exist already"),
    ROW("step", 0, OPTS_CHOICE, engine, "ENGINE", "what predicts: events, or closed forms",
        .value = "event", .choices = engine_names),
    ROW("constants", 0, OPTS_STRING, constants, "FILE", "another table of the engine's constants"),
    {.name = NULL},
};

static const char about[] =
    "Predicts one model on every cluster of --topo a,b,c with every strategy of --strategy x,y,z "
    "and prints one table: time of a step, tokens per second and GPU, memory, where the time goes "
    "and what limits it, as the bare command has them for the same words.";

/* ---- one pair of the product ---- */

struct pair {
    char *topo, *strategy; /* as in the table */
    bool legal;
    uint64_t gpus;
    uint64_t global_batch; /* sequences */
    double tokens_per_s_per_gpu, mfu, memory_GiB;
    double peak;     /* FLOP/s that MFU is a share of */
    char *peak_unit; /* "fp8" */
    enum verdict verdict;
    struct step step;
    char *bottleneck;
};

/* A sentence about a strategy, and the clusters that it is true of. */
struct told {
    char *topos, *strategy, *line;
    enum err_code code;
};

/* Columns before the parts of the step and behind them. */
enum { FRONT = 15, NCOLUMNS = FRONT + NPARTS + 1 };

struct comparison {
    struct tables tables;
    struct pair *pairs;
    size_t count, cap;
    struct told *told;
    size_t ntold, told_cap;
    struct out_column columns[NCOLUMNS];
};

/* Fills the figures of a pair that breaks no rule. */
static void predict(struct pair *pair, const struct plan *plan, enum engine engine,
                    const struct constants *constants, struct err *err)
{
    const struct job *job = &plan->job;
    struct memory memory = memory_predict(job, constants);
    const char *unit;
    struct runner_point point = {job, &plan->topo};
    if (runner_step(engine, &point, constants, &pair->step, err)) return;
    pair->peak = plan_peak(plan, &unit);
    pair->peak_unit = mem_strdup(unit);
    pair->legal = true;
    pair->gpus = job->ngpus;
    pair->global_batch = job->global_batch;
    pair->tokens_per_s_per_gpu = pair->step.tokens_per_s / job->ngpus;
    pair->mfu = pair->step.model_flops / pair->step.time_s / job->ngpus / pair->peak;
    pair->memory_GiB = memory.reserved / (1 << 30);
    pair->verdict = memory_verdict(&memory);
    pair->bottleneck = bottleneck_text(plan, &pair->step);
}

/* Takes the sentences of one pair. One that a strategy has on several clusters is told once. */
static void add_faults(struct comparison *c, const char *topo, const char *strategy,
                       struct err *from)
{
    char *rest = from->text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        struct told *same = NULL;
        for (size_t i = 0; i < c->ntold && !same; i++) {
            struct told *t = &c->told[i];
            if (strcmp(t->strategy, strategy) == 0 && strcmp(t->line, line) == 0) same = t;
        }
        if (same) {
            char *longer = mem_printf("%s,%s", same->topos, topo);
            free(same->topos);
            same->topos = longer;
            continue;
        }
        MEM_GROW(c->told, c->ntold, c->told_cap);
        c->told[c->ntold++] =
            (struct told){mem_strdup(topo), mem_strdup(strategy), mem_strdup(line), from->code};
    }
    err_release(from);
}

/* Adds the sentences, each behind its clusters and strategy. */
static void tell(const struct comparison *c, struct err *err)
{
    for (size_t i = 0; i < c->ntold; i++) {
        const struct told *t = &c->told[i];
        err_add(err, t->code, "%s %s: %s", t->topos, t->strategy, t->line);
    }
}

/* Whether the cluster can be read; its faults are told once, not with every strategy. */
static bool topo_known(const struct comparison *c, const struct topo_args *cluster,
                       const char *name, struct err *err)
{
    struct err own = ERR_INIT;
    struct topo topo;
    int bad = topo_read(&topo, &c->tables.accels, name, cluster->nodes, cluster->gpus, &own);
    if (bad) {
        err_move(err, &own);
    } else {
        topo_release(&topo);
    }
    return !bad;
}

/* A row of a cluster that cannot be read. */
static void add_unknown(struct comparison *c, const char *topo, const char *strategy)
{
    MEM_GROW(c->pairs, c->count, c->cap);
    c->pairs[c->count++] =
        (struct pair){.topo = mem_strdup(topo), .strategy = mem_strdup(strategy)};
}

static void add_pair(struct comparison *c, const struct request *request, const char *topo,
                     const char *strategy)
{
    struct err own = ERR_INIT;
    struct plan plan;
    struct plan_args args = request->plan;
    args.cluster.topo = topo;
    args.strategy.strategy = strategy;
    MEM_GROW(c->pairs, c->count, c->cap);
    struct pair *pair = &c->pairs[c->count++];
    *pair = (struct pair){.topo = mem_strdup(topo)};
    bool made = plan_make(&plan, &c->tables, &args, &own) == 0;
    pair->strategy = mem_strdup(made ? plan.strategy.word : strategy);
    if (made && rules_refuse(&plan.rules, &own) == 0) {
        predict(pair, &plan, (enum engine)request->engine,
                &c->tables.constants[request->engine].values, &own);
    }
    if (made) {
        plan_release(&plan);
    }
    if (own.count) {
        add_faults(c, topo, strategy, &own);
    }
}

static void release(struct comparison *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->pairs[i].topo);
        free(c->pairs[i].strategy);
        free(c->pairs[i].peak_unit);
        free(c->pairs[i].bottleneck);
    }
    for (size_t i = 0; i < c->ntold; i++) {
        free(c->told[i].topos);
        free(c->told[i].strategy);
        free(c->told[i].line);
    }
    free(c->told);
    free(c->pairs);
    tables_release(&c->tables);
}

/* ---- the table ---- */

static const struct out_column front[FRONT] = {
    {"topology", NULL, -14, 0, OUT_TEXT, NULL, NULL},
    {"strategy", NULL, -24, 0, OUT_TEXT, NULL, NULL},
    {"gpus", NULL, 6, 0, OUT_UINT, NULL, NULL},
    {"global_batch", NULL, 6, 0, OUT_UINT, "batch", NULL},
    {"step", "ms", 9, 1, OUT_DOUBLE, NULL, NULL},
    {"tokens_per_s_per_gpu", NULL, 9, 0, OUT_DOUBLE, "tok/s/GPU", NULL},
    {"slower", "x", 7, 2, OUT_DOUBLE, NULL, NULL}, /* than the fastest that fits */
    {"mfu", "%", 5, 1, OUT_DOUBLE, NULL, NULL},
    {"peak", "TFLOP/s", 7, 0, OUT_DOUBLE, NULL, NULL}, /* of MFU */
    {"peak_unit", NULL, -4, 0, OUT_TEXT, "unit", NULL},
    {"memory", "GiB", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"memory_verdict", NULL, -12, 0, OUT_TEXT, "verdict", NULL},
    {"compute", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
    {"communication", "%", 7, 1, OUT_DOUBLE, "comm", NULL},
    {"bubble", "%", 7, 1, OUT_DOUBLE, NULL, NULL},
};

static void make_columns(struct out_column columns[NCOLUMNS])
{
    memcpy(columns, front, sizeof front);
    for (int i = 0; i < NPARTS; i++) {
        columns[FRONT + i] = (struct out_column){.key = step_part_key((enum step_part)i),
                                                 .unit = "s",
                                                 .kind = OUT_DOUBLE,
                                                 .group = "part"};
    }
    columns[NCOLUMNS - 1] = (struct out_column){.key = "bottleneck", .width = -1, .kind = OUT_TEXT};
}

static double share_of(const struct step *step, enum step_part first, enum step_part last)
{
    double sum = 0;
    for (int i = (int)first; i <= (int)last; i++) {
        sum += step->part_s[i];
    }
    return 100 * sum / step->time_s;
}

static void print_pair(struct out *out, const struct pair *pair, double best)
{
    struct out_cell cells[NCOLUMNS] = {out_text(pair->topo), out_text(pair->strategy)};
    if (!pair->legal) {
        cells[NCOLUMNS - 1] = out_text("not possible: see the messages");
        out_row(out, cells);
        return;
    }
    const struct step *step = &pair->step;
    const struct out_cell figures[] = {
        out_uint(pair->gpus),
        out_uint(pair->global_batch),
        out_double(1e3 * step->time_s),
        out_double(pair->tokens_per_s_per_gpu),
        out_double(best / pair->tokens_per_s_per_gpu),
        out_double(100 * pair->mfu),
        out_double(pair->peak / 1e12),
        out_text(pair->peak_unit),
        out_double(pair->memory_GiB),
        out_text(verdict_name(pair->verdict)),
        out_double(share_of(step, PART_GEMM, PART_RECOMPUTE)),
        out_double(share_of(step, PART_TP, PART_PP)),
        out_double(share_of(step, PART_BUBBLE, PART_BUBBLE)),
    };
    memcpy(cells + 2, figures, sizeof figures);
    for (int i = 0; i < NPARTS; i++) {
        cells[FRONT + i] = out_double(step->part_s[i]);
    }
    cells[NCOLUMNS - 1] = out_text(pair->bottleneck);
    out_row(out, cells);
}

static int print_table(struct comparison *c, const struct request *request, struct err *err)
{
    double best = 0;
    make_columns(c->columns);
    struct out *out = out_new(c->columns, NCOLUMNS);
    int bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    bool none_fits = true;
    for (size_t i = 0; i < c->count; i++) {
        none_fits &= !c->pairs[i].legal || c->pairs[i].verdict == VERDICT_NO;
    }
    for (size_t i = 0; i < c->count; i++) {
        bool counts = c->pairs[i].legal && (none_fits || c->pairs[i].verdict != VERDICT_NO);
        best = fmax(best, counts ? c->pairs[i].tokens_per_s_per_gpu : 0);
    }
    if (!bad) {
        out_meta(out, "model", out_text(request->plan.model));
        out_note(out, "model %s; step times %s", request->plan.model,
                 request->engine == ENGINE_EVENT ? "by events" : "in closed form");
        out_note(out, "MFU: model FLOPs, attention counted causal, of the dense peak of the unit "
                      "that the linears run in; memory: the allocator's pool on the fullest GPU");
        out_note(out, "slower: than the fastest row%s",
                 none_fits ? " (none fits)" : " that fits; below 1 only where memory does not");
        out_note(
            out,
            "batch: sequences of a step; compute: with recomputation; comm: exposed communication");
    }
    for (size_t i = 0; !bad && i < c->count; i++) {
        print_pair(out, &c->pairs[i], best);
    }
    return out_close(out, err) | bad;
}

/* ---- the picture: GPU time per token, so that steps of different batches can be compared ---- */

static int draw(const struct comparison *c, const struct request *request, struct err *err)
{
    const char **bars = mem_calloc(c->count, sizeof *bars), *parts[NPARTS];
    double *values = mem_calloc(c->count * NPARTS, sizeof *values);
    for (int i = 0; i < NPARTS; i++) {
        parts[i] = step_part_key((enum step_part)i);
    }
    for (size_t i = 0; i < c->count; i++) {
        const struct pair *pair = &c->pairs[i];
        bars[i] = mem_printf("%s %s", pair->topo, pair->strategy);
        for (int k = 0; k < NPARTS; k++) {
            double share = pair->step.part_s[k] / pair->step.time_s;
            values[i * NPARTS + (size_t)k] =
                pair->legal ? 1e6 * share / pair->tokens_per_s_per_gpu : NAN;
        }
    }
    char *title = mem_printf("%s: where the time goes", request->plan.model);
    struct plot_bars plot = {title, "GPU time per token, us", c->count, NPARTS, bars, parts,
                             values};
    int bad = plot_bars(&plot, request->plot, err);
    for (size_t i = 0; i < c->count; i++) {
        free((char *)bars[i]);
    }
    free(bars);
    free(values);
    free(title);
    return bad;
}

/* ---- the command ---- */

/* Refuses what would only show after the table: an empty name in a list, a picture's suffix. */
static int check_request(const struct request *request, struct err *err)
{
    static const char *const suffixes[] = {".png", ".svg", ".gp"};
    const char *const lists[][2] = {{"--topo", request->plan.cluster.topo},
                                    {"--strategy", request->plan.strategy.strategy}};
    for (size_t i = 0; i < 2; i++) {
        size_t n = 0;
        char **words = strategy_list(lists[i][1], &n);
        for (size_t k = 0; k < n; k++) {
            if (*words[k] == '\0')
                err_add(err, ERR_USAGE, "%s: name %zu of %zu in \"%s\" is empty", lists[i][0],
                        k + 1, n, lists[i][1]);
        }
        strategy_list_free(words, n);
    }
    bool drawable = !request->plot;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !drawable; i++) {
        size_t length = strlen(request->plot), tail = strlen(suffixes[i]);
        drawable = length > tail && strcmp(request->plot + length - tail, suffixes[i]) == 0;
    }
    if (!drawable)
        err_add(err, ERR_USAGE,
                "--plot %s: a picture ends in .png or .svg, a gnuplot script in .gp",
                request->plot);
    return err->count ? -1 : 0;
}

static int compare(const struct request *request, struct err *err)
{
    struct comparison c = {0};
    if (check_request(request, err)) {
        return -1;
    }
    if (tables_read(&c.tables, (enum engine)request->engine, request->constants, err)) {
        return -1;
    }
    size_t ntopos = 0, nstrategies = 0;
    char **topos = strategy_list(request->plan.cluster.topo, &ntopos);
    char **strategies = strategy_list(request->plan.strategy.strategy, &nstrategies);
    struct err faults = ERR_INIT; /* of single pairs: they do not keep the others from the table */
    for (size_t t = 0; t < ntopos; t++) {
        bool known = topo_known(&c, &request->plan.cluster, topos[t], &faults);
        for (size_t s = 0; s < nstrategies; s++) {
            if (known) {
                add_pair(&c, request, topos[t], strategies[s]);
            } else {
                add_unknown(&c, topos[t], strategies[s]);
            }
        }
    }
    int bad = print_table(&c, request, err);
    if (!bad && request->plot) {
        bad = draw(&c, request, err);
    }
    strategy_list_free(topos, ntopos);
    strategy_list_free(strategies, nstrategies);
    tell(&c, &faults);
    release(&c);
    return err_move(err, &faults) | bad;
}

int compare_cmd(int argc, char **argv)
{
    struct err err = ERR_INIT;
    struct request request = {0};
    struct opts opts;
    struct opts_row *all = plan_options(offsetof(struct request, plan), rows);
    int bad = opts_parse(&opts, all, &request, argc, argv, &err);
    if (!bad && opts.help) {
        opts_help(stdout, "commsim compare --topo a,b --strategy x,y [options]", about, all);
    } else if (!bad && opts.npositionals) {
        err_add(&err, ERR_USAGE, "commsim compare takes no word \"%s\"", opts.positionals[0]);
    } else if (!bad && (!request.plan.cluster.topo || !request.plan.strategy.strategy)) {
        err_add(&err, ERR_USAGE, "commsim compare needs --topo a,b,... and --strategy x,y,...");
    } else if (!bad) {
        compare(&request, &err);
    }
    opts_release(&opts);
    free(all);
    int status = (int)err.code;
    err_print(&err, "commsim");
    err_release(&err);
    return status;
}
