/* SPDX-License-Identifier: Apache-2.0
 * Sums operators up: see ops_table.h. What compute waits for is found in the spans of a pass by
 * walking back from the operator that ended the wait, along what it waited for. */
#include "train/ops_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- rows ---- */

static bool same(const struct ops_row *row, const struct op *op, enum pass pass)
{
    return strcmp(row->name, op->name) == 0 && row->pass == pass && row->again == op->again &&
           row->lane == op->lane && row->part == op->part && row->m == op->m && row->n == op->n &&
           row->k == op->k && row->batch == op->count && row->peak == op->peak &&
           strcmp(row->limit, op->limit) == 0;
}

/* The row of an operator, new if there is none; its place. */
static size_t row_of(struct ops_table *table, const struct op *op, enum pass pass)
{
    for (size_t i = 0; i < table->count; i++) {
        if (same(&table->rows[i], op, pass)) return i;
    }
    MEM_GROW(table->rows, table->count, table->cap);
    table->rows[table->count] = (struct ops_row){.name = op->name,
                                                 .limit = op->limit,
                                                 .pass = pass,
                                                 .again = op->again,
                                                 .lane = op->lane,
                                                 .part = op->part,
                                                 .m = op->m,
                                                 .n = op->n,
                                                 .k = op->k,
                                                 .batch = op->count,
                                                 .peak = op->peak};
    return table->count++;
}

/* ---- waits ---- */

/* A pass under examination. */
struct walk {
    struct ops_table *table;
    const struct ops *ops;
    const struct task_span *spans;
    const size_t *rows;    /* by op */
    const int32_t *before; /* by op: the one before it on its lane, -1: none */
    double times;
};

/* What an operator waited for that ended last; -1: nothing. */
static int32_t cause_of(const struct walk *w, int32_t op)
{
    const struct op *o = &w->ops->list[op];
    const int32_t causes[] = {w->before[op], o->after[0], o->after[1]};
    int32_t last = -1;
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++) {
        int32_t c = causes[i];
        if (c >= 0 && (last < 0 || w->spans[c].end_ps > w->spans[last].end_ps)) last = c;
    }
    return last;
}

/* Charges [low, high), in which the compute lane stands still; `op` ran at the end of it, or ended
 * it by starting at `high`. */
static void charge(const struct walk *w, int32_t op, ps_t low_ps, ps_t high_ps)
{
    while (op >= 0 && high_ps > low_ps) {
        ps_t end_ps = w->spans[op].end_ps, start_ps = w->spans[op].start_ps;
        if (high_ps > end_ps) { /* all was there: the host had not issued it */
            ps_t from_ps = end_ps > low_ps ? end_ps : low_ps;
            w->table->host_s += w->times * 1e-12 * (double)(high_ps - from_ps);
            high_ps = from_ps;
        }
        if (start_ps < low_ps) start_ps = low_ps;
        if (high_ps > start_ps) {
            w->table->rows[w->rows[op]].charged_s +=
                w->times * 1e-12 * (double)(high_ps - start_ps);
            high_ps = start_ps;
        }
        op = cause_of(w, op);
    }
    w->table->host_s += w->times * 1e-12 * (double)(high_ps - low_ps);
}

/* The waits of the compute lane, and the one at the end of the pass. */
static void charge_waits(const struct walk *w)
{
    ps_t at_ps = 0, end_ps = 0;
    int32_t last = -1;
    for (uint32_t i = 0; i < w->ops->count; i++) {
        const struct task_span *s = &w->spans[i];
        if (s->end_ps >= end_ps) {
            end_ps = s->end_ps;
            last = (int32_t)i;
        }
        if (w->ops->list[i].lane != OP_COMPUTE) continue;
        if (s->start_ps > at_ps) charge(w, cause_of(w, (int32_t)i), at_ps, s->start_ps);
        at_ps = s->end_ps;
    }
    if (end_ps > at_ps) charge(w, last, at_ps, end_ps);
}

void ops_table_add(struct ops_table *table, const struct ops *ops, const struct task_span *spans,
                   enum pass pass, double times)
{
    size_t *rows = mem_calloc(ops->count, sizeof *rows);
    int32_t *before = mem_calloc(ops->count, sizeof *before);
    int32_t last[NOP_LANES];
    for (int i = 0; i < NOP_LANES; i++) {
        last[i] = -1;
    }
    for (uint32_t i = 0; i < ops->count; i++) {
        const struct op *op = &ops->list[i];
        double span_s = times * 1e-12 * (double)(spans[i].end_ps - spans[i].start_ps);
        rows[i] = row_of(table, op, pass);
        before[i] = last[op->lane];
        last[op->lane] = (int32_t)i;
        struct ops_row *row = &table->rows[rows[i]];
        row->count += (uint64_t)times;
        row->flops += times * op->flops;
        row->bytes += times * op->bytes;
        row->time_s += span_s;
        if (op->lane == OP_COMPUTE) row->charged_s += span_s;
    }
    struct walk w = {table, ops, spans, rows, before, times};
    charge_waits(&w);
    free(rows);
    free(before);
}

/* ---- a stage ---- */

/* What of the step's parts the rows do not hold. */
static void set_rest(struct ops_table *table, const struct event_stage *stage)
{
    for (int i = 0; i < NPARTS; i++) {
        table->rest_s[i] = 1e-12 * (double)stage->part_ps[i];
    }
    for (size_t i = 0; i < table->count; i++) {
        table->rest_s[table->rows[i].part] -= table->rows[i].charged_s;
    }
    table->rest_s[PART_LAUNCH] -= table->host_s;
}

int ops_table_make(struct ops_table *table, const struct event_args *args,
                   const struct event_result *result, uint32_t stage, struct err *err)
{
    struct constants c;
    *table = (struct ops_table){.stage = stage};
    event_chunks(args, &c);
    for (uint32_t i = 0; i < result->nchunks; i++) {
        const struct event_chunk *chunk = &result->chunks[i];
        if (chunk->stage != stage || chunk->times == 0) continue;
        struct ops ops = {0};
        struct task_span *spans = NULL;
        enum pass pass = (enum pass)chunk->pass;
        int bad =
            chunks_detail(args->chunks, &chunk->shape, pass, chunk->factor, &ops, &spans, err);
        if (!bad) ops_table_add(table, &ops, spans, pass, chunk->times);
        ops_release(&ops);
        free(spans);
        if (bad) return -1;
    }
    set_rest(table, &result->stages[stage]);
    return 0;
}

void ops_table_release(struct ops_table *table)
{
    free(table->rows);
    *table = (struct ops_table){0};
}

/* ---- output ---- */

const struct out_column ops_columns[OPS_COLUMNS] = {
    {"op", NULL, -24, 0, OUT_TEXT, NULL, NULL},
    {"pass", NULL, -4, 0, OUT_TEXT, NULL, NULL},
    {"part", NULL, 0, 0, OUT_TEXT, NULL, NULL},
    {"recomputed", NULL, 0, 0, OUT_BOOL, NULL, NULL},
    {"count", NULL, 7, 0, OUT_UINT, NULL, NULL},
    {"shape", NULL, -20, 0, OUT_TEXT, "m x n x k", NULL},
    {"m", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"n", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"k", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"batch", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"flops", "TFLOP", 9, 2, OUT_DOUBLE, NULL, NULL},
    {"bytes", "GB", 8, 2, OUT_DOUBLE, NULL, NULL},
    {"time", "ms", 9, 2, OUT_DOUBLE, NULL, NULL},
    {"efficiency", "%", 6, 1, OUT_DOUBLE, "eff.", NULL},
    {"limit", NULL, -8, 0, OUT_TEXT, NULL, NULL},
    {"charged", "ms", 9, 2, OUT_DOUBLE, NULL, NULL},
    {"share", "%", 6, 2, OUT_DOUBLE, NULL, NULL},
};

/* "8192 x 4096 x 4096", "32 x (128 x 64 x 64)", "". Freed by the caller. */
static char *shape_text(const struct ops_row *row)
{
    if (!row->m) return mem_strdup("");
    char *one = mem_printf("%" PRIu64 " x %" PRIu64 " x %" PRIu64, row->m, row->n, row->k);
    if (row->batch < 2) return one;
    char *all = mem_printf("%" PRIu64 " x (%s)", row->batch, one);
    free(one);
    return all;
}

/* The least time by the peak of what the row is made of; 0: none is known. */
static double best_s(const struct ops_row *row, double hbm_Bps)
{
    if (row->peak > 0) return row->flops / row->peak;
    return row->lane == OP_COMPUTE ? row->bytes / hbm_Bps : 0;
}

static void print_row(struct out *out, const struct ops_row *row, double step_s, double hbm_Bps)
{
    static const char *const passes[NPASSES] = {
        [PASS_F] = "F", [PASS_B] = "B", [PASS_W] = "W", [PASS_BW] = "B+W"};
    double best = best_s(row, hbm_Bps);
    char *name = mem_printf("%s%s", row->name, row->again ? ", again" : "");
    char *shape = shape_text(row);
    out_row(out, (struct out_cell[OPS_COLUMNS]){
                     out_text(name), out_text(passes[row->pass]),
                     out_text(step_part_key((enum step_part)row->part)), out_bool(row->again),
                     out_uint(row->count), out_text(shape), out_uint(row->m), out_uint(row->n),
                     out_uint(row->k), out_uint(row->batch), out_double(1e-12 * row->flops),
                     out_double(1e-9 * row->bytes), out_double(1e3 * row->time_s),
                     best > 0 ? out_double(100 * best / row->time_s) : (struct out_cell){0},
                     out_text(row->limit), out_double(1e3 * row->charged_s),
                     out_double(100 * row->charged_s / step_s)});
    free(name);
    free(shape);
}

/* Time of the step that is no operator's. */
static void print_other(struct out *out, const char *name, enum step_part part, double time_s,
                        double step_s)
{
    out_row(out, (struct out_cell[OPS_COLUMNS]){out_text(name),
                                                out_text(""),
                                                out_text(step_part_key(part)),
                                                out_bool(false),
                                                out_uint(0),
                                                out_text(""),
                                                out_uint(0),
                                                out_uint(0),
                                                out_uint(0),
                                                out_uint(0),
                                                out_double(0),
                                                out_double(0),
                                                out_double(1e3 * time_s),
                                                {0},
                                                out_text(""),
                                                out_double(1e3 * time_s),
                                                out_double(100 * time_s / step_s)});
}

void ops_table_print(struct out *out, const struct ops_table *table, double step_s, double hbm_Bps)
{
    const double nothing_s = 1e-9 * step_s; /* what sums of so many terms round to */
    out_note(out,
             "operators of a rank of stage %u in a step: time alone on their lane; charged is what "
             "of the step that is, of a collective what compute waits for it; eff. of the dense "
             "peak, or of the memory bandwidth where there are no FLOPs",
             table->stage);
    for (size_t i = 0; i < table->count; i++) {
        print_row(out, &table->rows[i], step_s, hbm_Bps);
    }
    if (table->host_s > nothing_s)
        print_other(out, "waits for the host", PART_LAUNCH, table->host_s, step_s);
    for (int i = 0; i < NPARTS; i++) {
        double rest_s = table->rest_s[i];
        if (rest_s < nothing_s && rest_s > -nothing_s) continue;
        char *name = mem_printf("beyond these: %s", step_part_key((enum step_part)i));
        print_other(out, name, (enum step_part)i, rest_s, step_s);
        free(name);
    }
}

int ops_table_write(const struct ops_table *table, double step_s, double hbm_Bps, const char *path,
                    bool overwrite, struct err *err)
{
    size_t length = strlen(path);
    bool csv = length > 4 && strcmp(path + length - 4, ".csv") == 0;
    bool json = length > 5 && strcmp(path + length - 5, ".json") == 0;
    struct out *out = out_new(ops_columns, OPS_COLUMNS);
    int bad = out_add(out,
                      csv    ? OUT_FORMAT_CSV
                      : json ? OUT_FORMAT_JSON
                             : OUT_FORMAT_TEXT,
                      path, overwrite, err);
    if (!bad) {
        out_meta(out, "stage", out_uint(table->stage));
        out_meta(out, "step_s", out_double(step_s));
        ops_table_print(out, table, step_s, hbm_Bps);
    }
    return out_close(out, err) | bad;
}
