/* SPDX-License-Identifier: Apache-2.0
 * The columns of every result table, in order, and their cells: see table.h. Widths of the first
 * thirteen are nccl-tests'. */
#include "sched/table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

const char *source_name(enum source source)
{
    static const char *const names[] = {
        [SOURCE_MEASURED] = "measured",
        [SOURCE_SIMULATED] = "simulated",
        [SOURCE_REFERENCE] = "reference",
        [SOURCE_EMULATED] = "emulated",
    };
    return names[source];
}

/* A column, and the cell it has for a result. */
struct field {
    struct out_column column;
    struct out_cell (*cell)(const struct table_side *side);
    unsigned show; /* enum table_show: shown in text if asked for; 0: as the width says */
};

static struct out_cell positive(double value)
{
    return value > 0 ? out_double(value) : (struct out_cell){0};
}

static struct out_cell word(const char *text)
{
    return out_text(*text ? text : NULL);
}

#define CELL(name, expression)                                                                     \
    static struct out_cell name(const struct table_side *side)                                     \
    {                                                                                              \
        const struct result *r = side->result;                                                     \
        (void)r;                                                                                   \
        return expression;                                                                         \
    }
CELL(size, out_uint(r->bytes))
CELL(count, out_uint(r->count))
CELL(type, out_text(r->dtype))
CELL(redop, out_text(r->redop))
CELL(root, out_int(r->root))
CELL(time_us, out_double(r->time_us))
/* 0 bytes have no speed. */
CELL(algbw, r->bytes ? out_double(r->algbw_GBps) : (struct out_cell){0})
CELL(busbw, r->bytes ? out_double(r->busbw_GBps) : (struct out_cell){0})
CELL(wrong, r->wrong < 0 ? (struct out_cell){0} : out_int(r->wrong))
CELL(algo, out_text(r->algo))
CELL(series, word(r->series))
CELL(transport, out_text(r->transport))
CELL(buffers, out_text(r->buffers))
CELL(p50, out_double(r->p50_us))
CELL(half_width, r->ci_high_us > 0 ? out_double(50 * (r->ci_high_us - r->ci_low_us) / r->p50_us)
                                   : (struct out_cell){0})
CELL(p99, out_double(r->p99_us))
CELL(bound, positive(100 * r->bound_us / r->p50_us))
CELL(ratio, positive(r->ratio))
CELL(ratio_low, positive(r->ratio_low))
CELL(ratio_high, positive(r->ratio_high))
CELL(verdict, word(r->verdict))
CELL(compute, positive(r->compute_us))
CELL(overlap, r->compute_us > 0 ? out_double(r->overlap_pct) : (struct out_cell){0})
CELL(cores, positive(r->cores))
CELL(wait_us, positive(r->wait_us))
CELL(source, out_text(source_name(r->source)))
CELL(nranks, out_uint(r->nranks))
CELL(channels, out_uint(r->channels))
CELL(parts, out_uint(r->parts))
CELL(passes, out_uint(r->passes))
CELL(steps, out_uint(r->steps))
CELL(launch, out_uint(r->launch))
CELL(order, out_uint(r->order))
CELL(timestamp, word(r->timestamp))
CELL(ping, positive(r->ping_us))
CELL(host_us, positive(r->host_us))
CELL(launch_us, positive(r->launch_us))
CELL(batch, out_uint(r->batch))
CELL(min_us, out_double(r->min_us))
CELL(p95, out_double(r->p95_us))
CELL(max_us, out_double(r->max_us))
CELL(ci_low, positive(r->ci_low_us))
CELL(ci_high, positive(r->ci_high_us))
CELL(interval, word(r->interval))
CELL(stop, word(r->stop))
CELL(bound_time, positive(r->bound_us))
CELL(nsamples, out_uint(r->nsamples))
CELL(proto, word(r->proto))
CELL(ceiling, positive(r->ceiling_GBps))
CELL(of_ceiling, r->ceiling_GBps > 0 && r->bytes ? out_double(100 * r->busbw_GBps / r->ceiling_GBps)
                                                 : (struct out_cell){0})
CELL(limit, word(r->limit))
CELL(samples,
     side->samples_us ? out_doubles(side->samples_us, side->nsamples) : (struct out_cell){0})

static const struct field call_fields[] = {
    {{"size", "B", 12, 0, OUT_UINT, NULL, NULL}, size, 0},
    {{"count", "elements", 12, 0, OUT_UINT, NULL, NULL}, count, 0},
    {{"type", NULL, 8, 0, OUT_TEXT, NULL, NULL}, type, 0},
    {{"redop", NULL, 6, 0, OUT_TEXT, NULL, NULL}, redop, 0},
    {{"root", NULL, 6, 0, OUT_INT, NULL, NULL}, root, 0},
};
static const struct field time_fields[] = {
    {{"time", "us", 7, 2, OUT_DOUBLE, NULL, NULL}, time_us, 0},
    {{"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, NULL}, algbw, 0},
    {{"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, NULL}, busbw, 0},
    {{"wrong", NULL, 6, 0, OUT_INT, "#wrong", NULL}, wrong, 0},
};
/* `transport` of a row comes between algo and buffers: see both_transports. */
static const struct field how_fields[] = {
    {{"algo", NULL, 22, 0, OUT_TEXT, NULL, NULL}, algo, 0},
    {{"transport", NULL, 15, 0, OUT_TEXT, NULL, NULL}, NULL, 0},
    {{"buffers", NULL, 8, 0, OUT_TEXT, NULL, NULL}, buffers, 0},
    {{"series", NULL, 13, 0, OUT_TEXT, NULL, NULL}, series, TABLE_CONTEST},
};
static const struct field spread_fields[] = {
    {{"p50", "us", 8, 2, OUT_DOUBLE, NULL, NULL}, p50, 0},
    {{"half_width", "%", 5, 1, OUT_DOUBLE, "+-%", NULL}, half_width, TABLE_SURE},
    {{"p99", "us", 8, 2, OUT_DOUBLE, NULL, NULL}, p99, 0},
    {{"bound", "%", 6, 1, OUT_DOUBLE, "%bound", NULL}, bound, 0},
    {{"ratio", NULL, 6, 2, OUT_DOUBLE, NULL, NULL}, ratio, TABLE_CONTEST},
    {{"ratio_low", NULL, 6, 2, OUT_DOUBLE, "low", NULL}, ratio_low, TABLE_CONTEST},
    {{"ratio_high", NULL, 6, 2, OUT_DOUBLE, "high", NULL}, ratio_high, TABLE_CONTEST},
    {{"verdict", NULL, 13, 0, OUT_TEXT, NULL, NULL}, verdict, TABLE_CONTEST},
    {{"compute", "us", 8, 2, OUT_DOUBLE, NULL, NULL}, compute, TABLE_OVERLAP},
    {{"overlap", "%", 7, 1, OUT_DOUBLE, NULL, NULL}, overlap, TABLE_OVERLAP},
    {{"cores", NULL, 5, 2, OUT_DOUBLE, NULL, NULL}, cores, TABLE_OVERLAP},
    {{"wait", "us", 8, 2, OUT_DOUBLE, NULL, NULL}, wait_us, TABLE_WAIT},
    {{"host", "us", 8, 2, OUT_DOUBLE, NULL, NULL}, host_us, TABLE_GPU},
    {{"launch_cost", "us", 8, 2, OUT_DOUBLE, "launch", NULL}, launch_us, TABLE_GPU},
};
static const struct field run_fields[] = {
    {{"launch", NULL, 6, 0, OUT_UINT, NULL, NULL}, launch, TABLE_LAUNCH},
    {{"timestamp", NULL, 25, 0, OUT_TEXT, NULL, NULL}, timestamp, TABLE_TIME},
    {{"source", NULL, 0, 0, OUT_TEXT, NULL, NULL}, source, 0}, /* from here on not in text */
    {{"nranks", NULL, 0, 0, OUT_UINT, NULL, NULL}, nranks, 0},
    {{"channels", NULL, 0, 0, OUT_UINT, NULL, NULL}, channels, 0},
    {{"parts", NULL, 0, 0, OUT_UINT, NULL, NULL}, parts, 0},
    {{"passes", NULL, 0, 0, OUT_UINT, NULL, NULL}, passes, 0},
    {{"steps", NULL, 0, 0, OUT_UINT, NULL, NULL}, steps, 0},
    {{"batch", NULL, 0, 0, OUT_UINT, NULL, NULL}, batch, 0},
    {{"ping", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, ping, 0},
    {{"order", NULL, 0, 0, OUT_UINT, NULL, NULL}, order, 0},
};
static const struct field more_fields[] = {
    {{"transport", NULL, 0, 0, OUT_TEXT, NULL, NULL}, transport, 0},
    {{"min", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, min_us, 0},
    {{"p95", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, p95, 0},
    {{"max", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, max_us, 0},
    {{"ci_low", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, ci_low, 0},
    {{"ci_high", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, ci_high, 0},
    {{"interval", NULL, 0, 0, OUT_TEXT, NULL, NULL}, interval, 0},
    {{"stop", NULL, 0, 0, OUT_TEXT, NULL, NULL}, stop, 0},
    {{"bound_time", "us", 0, 3, OUT_DOUBLE, NULL, NULL}, bound_time, 0},
    {{"nsamples", NULL, 0, 0, OUT_UINT, NULL, NULL}, nsamples, 0},
    {{"samples", "us", 0, 3, OUT_DOUBLES, NULL, NULL}, samples, 0},
};

static const struct field ceiling_fields[] = {
    {{"proto", NULL, 7, 0, OUT_TEXT, NULL, NULL}, proto, TABLE_CEILING},
    {{"ceiling", "GB/s", 8, 2, OUT_DOUBLE, NULL, NULL}, ceiling, TABLE_CEILING},
    {{"of_ceiling", "%", 8, 1, OUT_DOUBLE, "%ceiling", NULL}, of_ceiling, TABLE_CEILING},
    {{"limit", NULL, -1, 0, OUT_TEXT, "limited by", NULL}, limit, TABLE_CEILING},
};

enum place { OUT_OF_PLACE, IN_PLACE, EITHER };

#define SECTION(fields, place)                                                                     \
    {                                                                                              \
        fields, sizeof fields / sizeof *fields, place                                              \
    }
static const struct section {
    const struct field *fields;
    size_t count;
    enum place place;
} sections[] = {
    SECTION(call_fields, EITHER),         SECTION(time_fields, OUT_OF_PLACE),
    SECTION(time_fields, IN_PLACE),       SECTION(how_fields, EITHER),
    SECTION(spread_fields, OUT_OF_PLACE), SECTION(spread_fields, IN_PLACE),
    SECTION(run_fields, EITHER),          SECTION(more_fields, OUT_OF_PLACE),
    SECTION(more_fields, IN_PLACE),       SECTION(ceiling_fields, EITHER),
};

enum { NSECTIONS = sizeof sections / sizeof *sections };
enum {
    NCOLUMNS = sizeof call_fields / sizeof *call_fields + sizeof how_fields / sizeof *how_fields +
               sizeof run_fields / sizeof *run_fields +
               sizeof ceiling_fields / sizeof *ceiling_fields +
               2 * (sizeof time_fields / sizeof *time_fields +
                    sizeof spread_fields / sizeof *spread_fields +
                    sizeof more_fields / sizeof *more_fields)
};

struct out *table_new(unsigned show)
{
    static const char *const groups[] = {"out-of-place", "in-place", NULL};
    struct out_column columns[NCOLUMNS], *at = columns;
    for (size_t s = 0; s < NSECTIONS; s++) {
        for (size_t i = 0; i < sections[s].count; i++, at++) {
            const struct field *field = &sections[s].fields[i];
            *at = field->column;
            at->group = groups[sections[s].place];
            if (field->show && !(field->show & show)) at->width = 0;
        }
    }
    assert(at == columns + NCOLUMNS);
    return out_new(columns, NCOLUMNS);
}

/* "shm/pull", or "shm/pull+staged" when the placements differ. */
static void both_transports(const struct table_side *const sides[3], char *text, size_t room)
{
    const struct result *out_of_place = sides[OUT_OF_PLACE]->result;
    const struct result *in_place = sides[IN_PLACE]->result;
    const char *one = sides[EITHER]->result->transport;
    const char *other = in_place ? in_place->transport : one;
    const char *mode = strchr(other, '/');
    bool same = !out_of_place || strcmp(one, other) == 0;
    snprintf(text, room, "%s%s%s", one, same ? "" : "+", same ? "" : mode ? mode + 1 : other);
}

void table_row(struct out *out, const struct table_side *out_of_place,
               const struct table_side *in_place)
{
    const struct table_side *sides[] = {out_of_place, in_place,
                                        out_of_place->result ? out_of_place : in_place};
    assert(sides[EITHER]->result);
    struct out_cell cells[NCOLUMNS] = {0}, *at = cells;
    char transports[2 * sizeof sides[EITHER]->result->transport];
    both_transports(sides, transports, sizeof transports);
    for (size_t s = 0; s < NSECTIONS; s++) {
        const struct table_side *side = sides[sections[s].place];
        for (size_t i = 0; i < sections[s].count; i++, at++) {
            const struct field *field = &sections[s].fields[i];
            if (side->result) *at = field->cell ? field->cell(side) : out_text(transports);
        }
    }
    out_row(out, cells);
}
