/* SPDX-License-Identifier: Apache-2.0
 * The columns of every result table, in order, and their cells: see table.h. Widths of the first
 * thirteen are nccl-tests'. */
#include "sched/table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char out_group[] = "out-of-place", in_group[] = "in-place";

static const struct out_column columns[] = {
    {"size", "B", 12, 0, OUT_UINT, NULL, NULL},
    {"count", "elements", 12, 0, OUT_UINT, NULL, NULL},
    {"type", NULL, 8, 0, OUT_TEXT, NULL, NULL},
    {"redop", NULL, 6, 0, OUT_TEXT, NULL, NULL},
    {"root", NULL, 6, 0, OUT_INT, NULL, NULL},
    {"time", "us", 7, 2, OUT_DOUBLE, NULL, out_group},
    {"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, out_group},
    {"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, out_group},
    {"wrong", NULL, 6, 0, OUT_INT, "#wrong", out_group},
    {"time", "us", 7, 2, OUT_DOUBLE, NULL, in_group},
    {"algbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, in_group},
    {"busbw", "GB/s", 6, 2, OUT_DOUBLE, NULL, in_group},
    {"wrong", NULL, 6, 0, OUT_INT, "#wrong", in_group},
    {"algo", NULL, 12, 0, OUT_TEXT, NULL, NULL},
    {"transport", NULL, 15, 0, OUT_TEXT, NULL, NULL},
    {"buffers", NULL, 8, 0, OUT_TEXT, NULL, NULL},
    {"p50", "us", 8, 2, OUT_DOUBLE, NULL, out_group},
    {"p99", "us", 8, 2, OUT_DOUBLE, NULL, out_group},
    {"bound", "%", 6, 1, OUT_DOUBLE, "%bound", out_group},
    {"p50", "us", 8, 2, OUT_DOUBLE, NULL, in_group},
    {"p99", "us", 8, 2, OUT_DOUBLE, NULL, in_group},
    {"bound", "%", 6, 1, OUT_DOUBLE, "%bound", in_group},
    {"source", NULL, 0, 0, OUT_TEXT, NULL, NULL}, /* from here on hidden in text */
    {"nranks", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"channels", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"parts", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"passes", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"steps", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"batch", NULL, 0, 0, OUT_UINT, NULL, NULL},
    {"transport", NULL, 0, 0, OUT_TEXT, NULL, out_group},
    {"min", "us", 0, 3, OUT_DOUBLE, NULL, out_group},
    {"p95", "us", 0, 3, OUT_DOUBLE, NULL, out_group},
    {"max", "us", 0, 3, OUT_DOUBLE, NULL, out_group},
    {"bound_time", "us", 0, 3, OUT_DOUBLE, NULL, out_group},
    {"nsamples", NULL, 0, 0, OUT_UINT, NULL, out_group},
    {"samples", "us", 0, 3, OUT_DOUBLES, NULL, out_group},
    {"transport", NULL, 0, 0, OUT_TEXT, NULL, in_group},
    {"min", "us", 0, 3, OUT_DOUBLE, NULL, in_group},
    {"p95", "us", 0, 3, OUT_DOUBLE, NULL, in_group},
    {"max", "us", 0, 3, OUT_DOUBLE, NULL, in_group},
    {"bound_time", "us", 0, 3, OUT_DOUBLE, NULL, in_group},
    {"nsamples", NULL, 0, 0, OUT_UINT, NULL, in_group},
    {"samples", "us", 0, 3, OUT_DOUBLES, NULL, in_group},
};

enum { NCOLUMNS = sizeof columns / sizeof *columns };

const char *source_name(enum source source)
{
    static const char *const names[] = {
        [SOURCE_MEASURED] = "measured",
        [SOURCE_SIMULATED] = "simulated",
        [SOURCE_REFERENCE] = "reference",
    };
    return names[source];
}

struct out *table_new(void)
{
    return out_new(columns, NCOLUMNS);
}

static struct out_cell *call_cells(struct out_cell *at, const struct result *r)
{
    *at++ = out_uint(r->bytes);
    *at++ = out_uint(r->count);
    *at++ = out_text(r->dtype);
    *at++ = out_text(r->redop);
    *at++ = out_int(r->root);
    return at;
}

static struct out_cell *time_cells(struct out_cell *at, const struct result *r)
{
    if (!r) {
        return at + 4;
    }
    *at++ = out_double(r->time_us);
    *at++ = out_double(r->algbw_GBps);
    *at++ = out_double(r->busbw_GBps);
    *at++ = r->wrong < 0 ? (struct out_cell){0} : out_int(r->wrong);
    return at;
}

static struct out_cell *spread_cells(struct out_cell *at, const struct result *r)
{
    if (!r) {
        return at + 3;
    }
    bool bounded = r->bound_us > 0 && r->p50_us > 0;
    *at++ = out_double(r->p50_us);
    *at++ = out_double(r->p99_us);
    *at++ = bounded ? out_double(100 * r->bound_us / r->p50_us) : (struct out_cell){0};
    return at;
}

static struct out_cell *run_cells(struct out_cell *at, const struct result *r)
{
    *at++ = out_text(source_name(r->source));
    *at++ = out_uint(r->nranks);
    *at++ = out_uint(r->channels);
    *at++ = out_uint(r->parts);
    *at++ = out_uint(r->passes);
    *at++ = out_uint(r->steps);
    *at++ = out_uint(r->batch);
    return at;
}

static struct out_cell *hidden_cells(struct out_cell *at, const struct table_side *side)
{
    const struct result *r = side->result;
    if (!r) {
        return at + 7;
    }
    *at++ = out_text(r->transport);
    *at++ = out_double(r->min_us);
    *at++ = out_double(r->p95_us);
    *at++ = out_double(r->max_us);
    *at++ = r->bound_us > 0 ? out_double(r->bound_us) : (struct out_cell){0};
    *at++ = out_uint(r->nsamples);
    *at++ = side->samples_us ? out_doubles(side->samples_us, side->nsamples) : (struct out_cell){0};
    return at;
}

/* "shm/pull", or "shm/pull+staged" when the placements differ. */
static char *both_transports(const struct result *out_of_place, const struct result *in_place)
{
    const char *one = out_of_place ? out_of_place->transport : in_place->transport;
    const char *other = in_place ? in_place->transport : one;
    if (strcmp(one, other) == 0) return mem_strdup(one);
    const char *mode = strchr(other, '/');
    return mem_printf("%s+%s", one, mode ? mode + 1 : other);
}

void table_row(struct out *out, const struct table_side *out_of_place,
               const struct table_side *in_place)
{
    const struct result *r = out_of_place->result ? out_of_place->result : in_place->result;
    assert(r);
    struct out_cell cells[NCOLUMNS] = {0};
    struct out_cell *at = call_cells(cells, r);
    at = time_cells(at, out_of_place->result);
    at = time_cells(at, in_place->result);
    *at++ = out_text(r->algo);
    char *transport = both_transports(out_of_place->result, in_place->result);
    *at++ = out_text(transport);
    *at++ = out_text(r->buffers);
    at = spread_cells(at, out_of_place->result);
    at = spread_cells(at, in_place->result);
    at = run_cells(at, r);
    at = hidden_cells(at, out_of_place);
    at = hidden_cells(at, in_place);
    assert(at == cells + NCOLUMNS);
    out_row(out, cells);
    free(transport);
}
