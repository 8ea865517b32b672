/* SPDX-License-Identifier: Apache-2.0
 * `commsim pipeline`: runs one pipeline schedule, or all side by side, on stages whose times are
 * given, and sets the idle time beside the closed form of the schedule's paper. */
#include "train/pipeline_cmd.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts.h"
#include "base/out.h"
#include "base/units.h"
#include "train/pipeline.h"
#include "train/pipeline_text.h"

struct request {
    unsigned schedule;
    uint64_t stages, micro, chunks, group, width;
    struct opts_list times, uneven, slow;
    uint64_t pair_ps, message_ps, latency_ps;
    bool timeline, compare, overwrite;
    const char *trace, *json, *csv;
};

/* In the order of enum pipeline_id; the short form is last. */
static const char *const names[] = {"gpipe",    "1f1b",      "interleaved", "zb-1p", "zb-2p",
                                    "dualpipe", "dualpipev", "zb",          NULL};

#define ROW(name_, type_, field, arg_, help_, ...)                                                 \
    {                                                                                              \
        .name = (name_), .type = (type_), .offset = offsetof(struct request, field),               \
        .arg = (arg_), .help = (help_), __VA_ARGS__                                                \
    }
static const struct opts_row options[] = {
    ROW("schedule", OPTS_CHOICE, schedule, "NAME",
        "gpipe, 1f1b, interleaved, zb-1p or zb (ZB-H1), zb-2p (ZB-H2), dualpipe, dualpipev",
        .value = "1f1b", .choices = names, .section = "Schedule"),
    ROW("stages", OPTS_UINT, stages, "P", "ranks of the pipeline", .value = "4", .min = 1,
        .max = 65536),
    ROW("micro", OPTS_UINT, micro, "M", "micro-batches of a step", .value = "8", .min = 1,
        .max = 1 << 24),
    ROW("virtual", OPTS_UINT, chunks, "V",
        "virtual stages per rank (interleaved alone; default: 2 there)", .min = 1, .max = 65535),
    ROW("group", OPTS_UINT, group, "N",
        "interleaved: micro-batches that pass a virtual stage in a row (default: P, or, where P "
        "does not divide M, M / (M / P rounded down))",
        .min = 1, .max = 1 << 24),
    ROW("compare", OPTS_FLAG, compare, NULL, "all schedules side by side"),
    ROW("times", OPTS_LIST, times, "F,B,W",
        "times of a rank for one micro-batch: forward, gradient of the input, gradient of the "
        "weights; divided among its virtual stages",
        .value = "1ms,1ms,1ms", .section = "Times"),
    ROW("pair", OPTS_TIME_PS, pair_ps, "TIME",
        "dualpipe, dualpipev: a forward and a backward overlapped (default: F + B + W)"),
    ROW("uneven", OPTS_LIST, uneven, "X,..",
        "a factor on the times of each stage along the path of a micro-batch (P of them; P V if "
        "interleaved, 2 P for dualpipev)"),
    ROW("slow", OPTS_MORE, slow, "RANK=X", "rank RANK takes X times as long; can be repeated"),
    ROW("p2p", OPTS_TIME_PS, message_ps, "TIME",
        "a message between stages keeps its lane busy so long"),
    ROW("p2p-latency", OPTS_TIME_PS, latency_ps, "TIME", "and arrives this much later"),
    ROW("timeline", OPTS_FLAG, timeline, NULL, "draw the ranks over time", .section = "Output"),
    ROW("width", OPTS_UINT, width, "N", "columns of the drawing, at most", .value = "100",
        .min = 10, .max = 10000),
    ROW("trace", OPTS_STRING, trace, "FILE",
        "write the timeline in Chrome's trace format (Perfetto, chrome://tracing)"),
    ROW("json", OPTS_STRING, json, "FILE", "write the table as JSON (- is stdout)"),
    ROW("csv", OPTS_STRING, csv, "FILE", "write the table as CSV (- is stdout)"),
    ROW("overwrite", OPTS_FLAG, overwrite, NULL, "replace existing files"),
    {0},
};

/* ---- the request, read ---- */

struct inputs {
    ps_t times_ps[3];    /* F, B, W of a rank */
    double *rank_factor; /* per rank */
    double *uneven;      /* per stage; NULL: all 1 */
    size_t nuneven;
    bool alike; /* all stages and ranks are, and messages take no time: closed forms hold */
};

static void inputs_release(struct inputs *in)
{
    free(in->rank_factor);
    free(in->uneven);
}

/* A factor in least..10^6. */
static int read_factor(const char *option, const char *text, double least, double *factor,
                       struct err *err)
{
    if (units_read_double(option, text, factor, err)) return -1;
    if (*factor >= least && *factor <= 1e6) return 0;
    return err_add(err, ERR_USAGE,
                   "%s: a factor lies between %g and 1000000, %s does not; nearest: %.7g", option,
                   least, text, *factor < least ? least : 1e6);
}

/* A rank that takes no time is none. */
static const double least_slow = .01;

static void read_slow(const struct request *q, struct inputs *in, struct err *err)
{
    for (size_t i = 0; i < q->slow.count; i++) {
        char *text = mem_strdup(q->slow.items[i]), *equals = strchr(text, '=');
        uint64_t rank;
        double factor;
        if (!equals) {
            err_add(err, ERR_USAGE, "--slow %s: it is RANK=FACTOR, as 2=1.3", text);
        } else {
            *equals = 0;
            if (units_read_uint("--slow", text, 0, q->stages - 1, &rank, err) == 0 &&
                read_factor("--slow", equals + 1, least_slow, &factor, err) == 0) {
                in->rank_factor[rank] = factor;
                in->alike &= factor == 1;
            }
        }
        free(text);
    }
}

/* All faults are added to `err`. */
static void read_inputs(const struct request *q, struct inputs *in, struct err *err)
{
    *in = (struct inputs){.alike = q->message_ps == 0 && q->latency_ps == 0};
    if (q->times.count != 3)
        err_add(err, ERR_USAGE, "--times takes 3 times, F,B,W; %zu are given", q->times.count);
    for (size_t i = 0; i < 3 && i < q->times.count; i++) {
        units_read_time_ps("--times", q->times.items[i], false, &in->times_ps[i], err);
        if (in->times_ps[i] > PS_NEVER / 1000 / (q->micro * q->stages))
            err_add(err, ERR_USAGE,
                    "--times %s: too long for %" PRIu64 " micro-batches on %" PRIu64
                    " stages, which must stay within 5 hours; nearest: %.3g s",
                    q->times.items[i], q->micro, q->stages,
                    1e-12 * (double)(PS_NEVER / 1000 / (q->micro * q->stages)));
    }
    in->rank_factor = mem_calloc(q->stages, sizeof *in->rank_factor);
    for (size_t i = 0; i < q->stages; i++) {
        in->rank_factor[i] = 1;
    }
    read_slow(q, in, err);
    in->nuneven = q->uneven.count;
    in->uneven = q->uneven.count ? mem_calloc(q->uneven.count, sizeof *in->uneven) : NULL;
    for (size_t i = 0; i < q->uneven.count; i++) {
        read_factor("--uneven", q->uneven.items[i], 0, &in->uneven[i], err);
        in->alike &= in->uneven[i] == 1;
    }
    if (q->compare && (q->trace || q->timeline))
        err_add(err, ERR_USAGE, "--trace and --timeline show one schedule, --compare is of all");
    if (q->compare && in->nuneven)
        err_add(err, ERR_USAGE,
                "--uneven is about the stages of one schedule, --compare is of all");
}

/* ---- one run ---- */

struct answer {
    struct pipeline *pipeline;
    struct pipeline_run run;
    double idle_ps, form_ps; /* of the middle rank; NaN: the closed form does not hold */
    double bubble;           /* idle share of all ranks together */
    double in_flight;        /* micro-batches, the most of any rank */
};

static uint32_t parts(const struct pipeline *p)
{
    return p->stages / p->shape.ranks ? p->stages / p->shape.ranks : 1;
}

static ps_t busy_ps(const struct pipeline_rank *r)
{
    ps_t sum = 0;
    for (int k = 0; k < NTASK_KINDS; k++) {
        sum += r->busy_ps[k];
    }
    return sum;
}

/* [stage][3]; a rank's time is cut among its stages so that they add up to it. */
static ps_t *stage_times(const struct pipeline *p, const struct inputs *in)
{
    ps_t *times = mem_calloc(p->stages, 3 * sizeof *times);
    for (uint32_t s = 0; s < p->stages; s++) {
        ps_t part = s / p->shape.ranks, n = parts(p);
        for (size_t k = 0; k < 3; k++) {
            ps_t t = in->times_ps[k];
            ps_t span = t / n + (part < t % n);
            times[3 * (size_t)s + k] = in->uneven ? ps_add(0, in->uneven[s] * (double)span) : span;
        }
    }
    return times;
}

static void sum_up(const struct request *q, const struct inputs *in, struct answer *a)
{
    const struct pipeline *p = a->pipeline;
    const struct pipeline_run *run = &a->run;
    const ps_t *t = in->times_ps;
    double idle = 0, step = (double)run->step_ps;
    for (uint32_t r = 0; r < p->shape.ranks; r++) {
        double held = pipeline_peak(p, r).held;
        idle += (double)(run->step_ps - busy_ps(&run->ranks[r]));
        a->in_flight = fmax(a->in_flight, held / parts(p));
    }
    a->bubble = step > 0 ? idle / step / p->shape.ranks : 0;
    uint32_t middle = pipeline_form_rank(&p->shape);
    a->idle_ps = (double)(run->step_ps - busy_ps(&run->ranks[middle]));
    struct pipeline_times times = {(double)t[0], (double)t[1], (double)t[2],
                                   q->pair_ps ? (double)q->pair_ps : (double)(t[0] + t[1] + t[2])};
    a->form_ps = in->alike ? pipeline_row(p->shape.id)->idle(&p->shape, &times) : NAN;
}

static int answer(const struct request *q, enum pipeline_id id, const struct inputs *in,
                  struct answer *a, struct err *err)
{
    *a = (struct answer){0};
    bool interleaved = id == PIPELINE_INTERLEAVED;
    bool plain = q->compare && !interleaved; /* what is meant for the interleaved row alone */
    struct pipeline_shape shape = {.id = id,
                                   .ranks = (uint32_t)q->stages,
                                   .chunks = plain         ? 1
                                             : q->chunks   ? (uint32_t)q->chunks
                                             : interleaved ? 2
                                                           : 1,
                                   .micro = (uint32_t)q->micro,
                                   .group = plain ? 0 : (uint32_t)q->group};
    a->pipeline = pipeline_new(&shape, err);
    if (!a->pipeline) return -1;
    if (in->uneven && in->nuneven != a->pipeline->stages)
        return err_add(err, ERR_USAGE,
                       "--uneven takes a factor for each of the %" PRIu32 " stages, %zu are given",
                       a->pipeline->stages, in->nuneven);
    ps_t *times = stage_times(a->pipeline, in);
    const ps_t *t = in->times_ps;
    double whole = (double)(t[0] + t[1] + t[2]);
    struct pipeline_costs costs = {.stage_ps = times,
                                   .rank_factor = in->rank_factor,
                                   .pair_factor =
                                       q->pair_ps && whole > 0 ? (double)q->pair_ps / whole : 0,
                                   .message_ps = q->message_ps,
                                   .latency_ps = q->latency_ps};
    int bad = pipeline_check(a->pipeline, err) || pipeline_run(a->pipeline, &costs, &a->run, err);
    if (!bad) sum_up(q, in, a);
    free(times);
    return bad ? -1 : 0;
}

static void answer_release(struct answer *a)
{
    pipeline_free(a->pipeline);
    pipeline_run_release(&a->run);
}

/* ---- output ---- */

#define MS 1e-9 /* of a picosecond */

static const struct out_column rank_columns[] = {
    {"rank", NULL, 4, 0, OUT_UINT, 0, 0},
    {"forward", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"backward", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"weights", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"overlapped", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"busy", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"bubble", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"message", "ms", 10, 3, OUT_DOUBLE, 0, 0},
    {"idle", "%", 7, 2, OUT_DOUBLE, 0, 0},
    {"in_flight", NULL, 9, 2, OUT_DOUBLE, "in flight", 0},
    {"blamed", "ms", 10, 3, OUT_DOUBLE, 0, 0},
};

static const struct out_column compare_columns[] = {
    {"schedule", NULL, -12, 0, OUT_TEXT, 0, 0},
    {"step", "ms", 12, 3, OUT_DOUBLE, 0, 0},
    {"idle", "%", 7, 2, OUT_DOUBLE, 0, 0},
    {"idle", "ms", 12, 3, OUT_DOUBLE, 0, 0},
    {"closed_form", "ms", 12, 3, OUT_DOUBLE, "closed form", 0},
    {"in_flight", NULL, 9, 2, OUT_DOUBLE, "in flight", 0},
    {"weights", NULL, 7, 0, OUT_UINT, 0, 0},
    {"formula", NULL, -19, 0, OUT_TEXT, 0, 0},
    {"source", NULL, -40, 0, OUT_TEXT, 0, 0},
};

static struct out *open_out(const struct request *q, const struct inputs *in,
                            const struct out_column *columns, size_t n, struct err *err)
{
    struct out *out = out_new(columns, n);
    if (out_add_asked(out, q->json, q->csv, q->overwrite, err) == 0) {
        out_meta(out, "program", out_text("commsim " COMMSIM_VERSION));
        out_meta(out, "ranks", out_uint(q->stages));
        out_meta(out, "micro_batches", out_uint(q->micro));
        static const char *const keys[] = {"forward_ms", "backward_ms", "weights_ms"};
        char text[3][UNITS_TEXT];
        for (int k = 0; k < 3; k++) {
            out_meta(out, keys[k], out_double(MS * (double)in->times_ps[k]));
            units_time(text[k], 1e-12 * (double)in->times_ps[k]);
        }
        out_note(out,
                 "F %s, B %s, W %s: forward, gradient of the input and of the weights, of a "
                 "rank for one micro-batch",
                 text[0], text[1], text[2]);
    }
    return out;
}

static void print_rank(struct out *out, const struct answer *a, uint32_t r)
{
    const struct pipeline_rank *rank = &a->run.ranks[r];
    const ps_t *busy = rank->busy_ps;
    double step = (double)a->run.step_ps;
    double idle = (double)(rank->bubble_ps + rank->message_ps);
    out_row(
        out,
        (struct out_cell[]){
            out_uint(r), out_double(MS * (double)busy[PIPELINE_F]),
            out_double(MS * (double)(busy[PIPELINE_B] + busy[PIPELINE_BW])),
            out_double(MS * (double)busy[PIPELINE_W]), out_double(MS * (double)busy[PIPELINE_PAIR]),
            out_double(MS * (double)busy_ps(rank)), out_double(MS * (double)rank->bubble_ps),
            out_double(MS * (double)rank->message_ps), out_double(step > 0 ? 100 * idle / step : 0),
            out_double((double)pipeline_peak(a->pipeline, r).held / parts(a->pipeline)),
            out_double(MS * (double)rank->blame_ps)});
}

static void print_totals(struct out *out, const struct answer *a)
{
    const struct pipeline_shape *s = &a->pipeline->shape;
    const struct pipeline_row *row = pipeline_row(s->id);
    out_meta(out, "schedule", out_text(row->name));
    out_meta(out, "virtual", out_uint(a->pipeline->shape.chunks));
    out_meta(out, "group", out_uint(s->group));
    out_meta(out, "step_ms", out_double(MS * (double)a->run.step_ps));
    out_meta(out, "idle_pct", out_double(100 * a->bubble));
    out_meta(out, "idle_ms", out_double(MS * a->idle_ps));
    out_meta(out, "closed_form_ms", out_double(MS * a->form_ps));
    out_meta(out, "in_flight", out_double(a->in_flight));
    out_meta(out, "weight_copies", out_uint(row->weights));
    out_note(out,
             "schedule %s, %s: %" PRIu32 " ranks, %" PRIu32 " stages, %" PRIu32 " micro-batches",
             row->name, row->source, s->ranks, a->pipeline->stages, s->micro);
    if (s->group)
        out_note(out, "%" PRIu32 " micro-batches pass a virtual stage in a row", s->group);
    if (row->weights > 1)
        out_note(out, "a rank holds %" PRIu32 " stages: %" PRIu32 " times the parameters",
                 row->weights, row->weights);
    out_note(out, "step %.6g ms%s; all ranks together are idle for %.4g %% of it",
             MS * (double)a->run.step_ps,
             row->staggered ? " (of each rank from its own start: ranks need not meet)" : "",
             100 * a->bubble);
    if (isnan(a->form_ps))
        out_note(out,
                 "the closed form %s does not hold here: it is of equal stages and ranks, messages "
                 "that take no time, enough micro-batches, and of W not longer than F and B",
                 row->form);
    else
        out_note(out, "idle of rank %" PRIu32 ": %.9g ms; closed form %s: %.9g ms",
                 pipeline_form_rank(s), MS * a->idle_ps, row->form, MS * a->form_ps);
    out_note(out, "in flight: most micro-batches that a rank holds activations of, from F to W; "
                  "blamed: idle time of other ranks that it is the reason for");
}

static enum pipeline_id asked_for(const struct request *q)
{
    return q->schedule < NPIPELINES ? (enum pipeline_id)q->schedule : PIPELINE_ZB_1P;
}

static void print_one(const struct request *q, const struct inputs *in, struct err *err)
{
    struct answer a;
    if (answer(q, asked_for(q), in, &a, err) == 0 &&
        (!q->trace || pipeline_trace(a.pipeline, &a.run, q->trace, q->overwrite, err) == 0)) {
        size_t n = sizeof rank_columns / sizeof *rank_columns;
        struct out *out = open_out(q, in, rank_columns, n, err);
        if (!err->count) {
            print_totals(out, &a);
            if (q->timeline) pipeline_draw(out, a.pipeline, &a.run, (uint32_t)q->width);
            for (uint32_t r = 0; r < a.pipeline->shape.ranks; r++) {
                print_rank(out, &a, r);
            }
        }
        out_close(out, err);
    }
    answer_release(&a);
}

static void print_compared(struct out *out, const struct pipeline_row *row, const struct answer *a)
{
    out_row(out, (struct out_cell[]){out_text(row->name), out_double(MS * (double)a->run.step_ps),
                                     out_double(100 * a->bubble), out_double(MS * a->idle_ps),
                                     out_double(MS * a->form_ps), out_double(a->in_flight),
                                     out_uint(row->weights), out_text(row->form),
                                     out_text(row->source)});
}

/* A schedule that these numbers do not fit is a note with the reason. */
static void print_all(const struct request *q, const struct inputs *in, struct err *err)
{
    struct answer answers[NPIPELINES] = {0};
    struct out *out =
        open_out(q, in, compare_columns, sizeof compare_columns / sizeof *compare_columns, err);
    bool ran[NPIPELINES] = {false};
    for (unsigned id = 0; id < NPIPELINES && !err->count; id++) {
        struct err why = ERR_INIT;
        ran[id] = answer(q, (enum pipeline_id)id, in, &answers[id], &why) == 0;
        if (!ran[id]) out_note(out, "%s", why.text);
        err_release(&why);
    }
    for (unsigned id = 0; id < NPIPELINES; id++) {
        if (ran[id]) print_compared(out, pipeline_row((enum pipeline_id)id), &answers[id]);
        answer_release(&answers[id]);
    }
    out_close(out, err);
}

int pipeline_cmd(int argc, char **argv)
{
    struct request q = {0};
    struct opts opts = {0};
    struct err err = ERR_INIT;
    if (opts_parse(&opts, options, &q, argc, argv, &err) == 0) {
        if (opts.help) {
            opts_help(stdout, "commsim pipeline --schedule NAME --stages P --micro M [options]",
                      "Runs a pipeline schedule on stages of given times: when each rank is busy, "
                      "what it waits for, how many activations it holds.",
                      options);
        } else if (opts.npositionals) {
            err_add(&err, ERR_USAGE, "pipeline takes no words, \"%s\" is one", opts.positionals[0]);
        } else {
            struct inputs in;
            read_inputs(&q, &in, &err);
            if (!err.count) (q.compare ? print_all : print_one)(&q, &in, &err);
            inputs_release(&in);
        }
    }
    int status = err.count ? (int)err.code : 0;
    err_print(&err, "commsim pipeline");
    err_release(&err);
    opts_release(&opts);
    return status;
}
