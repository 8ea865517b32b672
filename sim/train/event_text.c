/* SPDX-License-Identifier: Apache-2.0
 * Stages, traffic and advice in words and tables: see event_text.h. */
#include "train/event_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/network.h"

#define GIB 1073741824.0

/* "7.52 TB", "12.3 GB", "840 MB": 10^9 bytes a GB. */
static char *bytes_text(double bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        bytes /= 1e3;
        unit++;
    }
    return mem_printf("%.3g %s", bytes, units[unit]);
}

static const char *const axes[] = {"tp", "cp", "ep", "fsdp", "dp", "pp"};
enum { NAXES_SENT = sizeof axes / sizeof *axes };

/* "NVLink 12.3 GB, NIC 1.2 GB" of the amounts above 0. Freed by the caller. */
static char *amounts_text(const double *bytes, int count, const char *(*name)(int i))
{
    char *text = mem_strdup("");
    for (int i = 0; i < count; i++) {
        if (!(bytes[i] > 0)) continue;
        char *amount = bytes_text(bytes[i]);
        char *longer = mem_printf("%s%s%s %s", text, *text ? ", " : "", name(i), amount);
        free(amount);
        free(text);
        text = longer;
    }
    return text;
}

static const char *kind_name(int i)
{
    return net_kind_name((enum net_kind)i);
}

static const char *axis_text(int i)
{
    return axes[i];
}

static void print_traffic(struct out *out, const struct event_result *event)
{
    uint32_t stage = event->step.slowest_stage;
    char *links = amounts_text(event->stages[stage].bytes, NNET_KINDS, kind_name);
    char *sent = amounts_text(event->bytes_by_axis, NAXES_SENT, axis_text);
    if (*links || *sent)
        out_note(out,
                 "a rank of stage %u in a step: %s over its links, in and out together; sends %s",
                 stage, *links ? links : "nothing", *sent ? sent : "nothing");
    free(links);
    free(sent);
}

/* ---- what would help ---- */

/* The slowest accelerator by --fault, where the step is longer for it. */
static void print_straggler(struct out *out, const struct answer *a)
{
    const struct event_slow *slowest = a->slow;
    size_t alike = 0;
    for (size_t i = 0; i < a->nslow; i++) {
        if (a->slow[i].speed < slowest->speed) slowest = &a->slow[i], alike = 0;
        alike += a->slow[i].speed == slowest->speed;
    }
    if (alike == 0 || alike == a->plan->job.ngpus || a->healthy_s >= a->step.time_s) return;
    uint32_t per_host = (uint32_t)a->plan->topo.per_host;
    char *more = alike > 1 ? mem_printf(" and %zu more", alike - 1) : mem_strdup("");
    out_note(out, "the others wait for accelerator %u (host%u/gpu%u)%s, at %g of the speed",
             slowest->gpu, slowest->gpu / per_host, slowest->gpu % per_host, more, slowest->speed);
    free(more);
}

static void print_change(struct out *out, const struct advice *b, bool fits)
{
    char *host = b->memory.host > 0
                     ? mem_printf(", %.0f GiB of each host's memory", b->memory.host / GIB)
                     : mem_strdup("");
    out_note(out, "%s: %s (%s): step %.4g s (%+.1f %%), %.0f of %.0f GiB%s, %s",
             fits ? "quicker" : "would fit", b->change, b->word, b->step_s, -100 * b->gain,
             b->memory.reserved / GIB, b->memory.capacity / GIB, host,
             verdict_name(memory_verdict(&b->memory)));
    free(host);
}

static void print_advice(struct out *out, const struct answer *a)
{
    const struct advices *all = a->advices;
    bool fits = memory_verdict(&a->memory) != VERDICT_NO;
    double host_B = a->memory.host_capacity;
    char *host =
        host_B > 0 ? mem_printf(", within the %.0f GiB of a host", host_B / GIB) : mem_strdup("");
    print_straggler(out, a);
    if (a->healthy_s > 0) {
        out_note(out, "without what is broken or taken: step %.4g s (%+.1f %%)", a->healthy_s,
                 100 * (a->healthy_s / a->step.time_s - 1));
        out_meta(out, "healthy_step_s", out_double(a->healthy_s));
    }
    if (!fits && all->lora_B > 0)
        out_note(out,
                 "would fit as another kind of training: adapters alone (--lora %d), %.0f of %.0f "
                 "GiB",
                 ADVICE_LORA, all->lora_B / GIB, a->memory.capacity / GIB);
    for (size_t i = 0; i < all->count; i++) {
        print_change(out, &all->best[i], fits);
    }
    if (all->count == 0 && !fits)
        out_note(out,
                 "nothing that was tried makes it fit: one change or two at a time, then %zu whole "
                 "strategies on these GPUs (degrees in powers of 2, micro-batch 1, ZeRO-1 or all "
                 "sharded, full recomputation; optimizer, weights and activations on the host or "
                 "not%s)",
                 all->tried, host);
    if (all->count == 0 && fits)
        out_note(out,
                 "no single change is quicker: %zu are legal and fit, the best %zu were simulated",
                 all->legal, all->timed);
    free(host);
}

static const struct out_column advice_columns[] = {
    {"change", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"strategy", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"step", "s", 0, 0, OUT_DOUBLE, NULL, NULL},
    {"gain", "%", 0, 0, OUT_DOUBLE, NULL, NULL},
    {"memory_reserved", "GiB", 0, 0, OUT_DOUBLE, NULL, NULL},
    {"memory_capacity", "GiB", 0, 0, OUT_DOUBLE, NULL, NULL},
    {"verdict", NULL, 0, 0, OUT_TEXT, NULL, NULL},
};

static void table_advice(struct out *out, const struct advices *all)
{
    out_table(out, "advice", advice_columns, sizeof advice_columns / sizeof *advice_columns);
    for (size_t i = 0; i < all->count; i++) {
        const struct advice *b = &all->best[i];
        out_row(out,
                (struct out_cell[]){out_text(b->change), out_text(b->word), out_double(b->step_s),
                                    out_double(100 * b->gain), out_double(b->memory.reserved / GIB),
                                    out_double(b->memory.capacity / GIB),
                                    out_text(verdict_name(memory_verdict(&b->memory)))});
    }
}

/* ---- stages and traffic ---- */

enum { STAGE_FRONT = 3, STAGE_BACK = 3, STAGE_COLUMNS = STAGE_FRONT + NPARTS + STAGE_BACK };

/* Parts that the column "compute" of the text stands for. */
static bool is_compute(int part)
{
    return part == PART_GEMM || part == PART_ATTENTION || part == PART_ELEMENT ||
           part == PART_RECOMPUTE || part == PART_OPTIMIZER;
}

/* A part has a column in the text where any stage has some of it. */
static void stage_columns(const struct event_result *event, struct out_column *columns)
{
    const struct out_column front[STAGE_FRONT] = {
        {"stage", NULL, 5, 0, OUT_UINT, NULL, NULL},
        {"layers", NULL, 6, 1, OUT_DOUBLE, NULL, NULL},
        {"compute", "ms", 10, 1, OUT_DOUBLE, NULL, NULL},
    };
    const struct out_column back[STAGE_BACK] = {
        {"idle", "ms", 10, 1, OUT_DOUBLE, NULL, NULL},
        {"executed", "TFLOP", 0, 1, OUT_DOUBLE, NULL, NULL},
        {"at_peak", "ms", 0, 1, OUT_DOUBLE, NULL, NULL},
    };
    memcpy(columns, front, sizeof front);
    memcpy(columns + STAGE_FRONT + NPARTS, back, sizeof back);
    for (int i = 0; i < NPARTS; i++) {
        ps_t most = 0;
        for (uint32_t k = 0; k < event->nstages; k++) {
            ps_t part = event->stages[k].part_ps[i];
            most = part > most ? part : most;
        }
        columns[STAGE_FRONT + i] = (struct out_column){.key = step_part_key((enum step_part)i),
                                                       .unit = "ms",
                                                       .width = !is_compute(i) && most > 0 ? 9 : 0,
                                                       .precision = 1,
                                                       .kind = OUT_DOUBLE};
    }
}

static void table_stages(struct out *out, const struct answer *a)
{
    const struct event_result *event = a->event;
    struct out_column columns[STAGE_COLUMNS];
    stage_columns(event, columns);
    out_table(out, "stages", columns, STAGE_COLUMNS);
    for (uint32_t i = 0; i < event->nstages; i++) {
        const struct event_stage *s = &event->stages[i];
        struct out_cell cells[STAGE_COLUMNS] = {out_uint(i),
                                                out_double(job_stage_layers(&a->plan->job, i)),
                                                out_double(1e-9 * (double)s->compute_ps)};
        for (int k = 0; k < NPARTS; k++) {
            cells[STAGE_FRONT + k] = out_double(1e-9 * (double)s->part_ps[k]);
        }
        struct out_cell *back = cells + STAGE_FRONT + NPARTS;
        back[0] = out_double(1e-9 * (double)(event->step_ps - s->compute_ps));
        back[1] = out_double(1e-12 * s->flops);
        back[2] = out_double(1e3 * s->floor_s);
        out_row(out, cells);
    }
}

static const struct out_column traffic_columns[] = {
    {"stage", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"by", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"name", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"bytes", "GB", 0, 0, OUT_DOUBLE, NULL, NULL},
};

static void table_traffic(struct out *out, const struct event_result *event)
{
    out_table(out, "traffic", traffic_columns, sizeof traffic_columns / sizeof *traffic_columns);
    for (uint32_t i = 0; i < event->nstages; i++) {
        for (int k = 0; k < NNET_KINDS; k++) {
            double bytes = event->stages[i].bytes[k];
            if (bytes <= 0) continue;
            out_row(out, (struct out_cell[]){out_uint(i), out_text("link"), out_text(kind_name(k)),
                                             out_double(1e-9 * bytes)});
        }
    }
    uint32_t stage = event->step.slowest_stage;
    for (int i = 0; i < NAXES_SENT; i++) {
        if (event->bytes_by_axis[i] <= 0) continue;
        out_row(out, (struct out_cell[]){out_uint(stage), out_text("axis"), out_text(axes[i]),
                                         out_double(1e-9 * event->bytes_by_axis[i])});
    }
}

/* The stage that the others wait for, in a sentence. */
static void print_worst(struct out *out, const struct event_result *event)
{
    uint32_t worst = event->step.slowest_stage;
    if (event->nstages < 2) return;
    const struct event_stage *s = &event->stages[worst];
    out_note(out,
             "slowest: the ranks of stage %u, which compute %.1f %% of the step and wait for "
             "other stages %.1f %%",
             worst, 100 * (double)s->compute_ps / (double)event->step_ps,
             100 * (double)s->part_ps[PART_BUBBLE] / (double)event->step_ps);
    out_meta(out, "slowest_stage", out_uint(worst));
}

/* ---- all ---- */

void event_text_notes(struct out *out, const struct answer *a)
{
    print_worst(out, a->event);
    if (a->advices) print_advice(out, a);
    print_traffic(out, a->event);
}

void event_text_tables(struct out *out, const struct answer *a)
{
    table_stages(out, a);
    table_traffic(out, a->event);
    if (a->advices) table_advice(out, a->advices);
}
