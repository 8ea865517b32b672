/* SPDX-License-Identifier: Apache-2.0
 * `commsim coll --compare`: see coll_compare.h. */
#include "net/coll_compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "base/plot.h"
#include "net/coll_cluster.h"
#include "net/coll_loop.h"
#include "sched/table.h"

/* What one cluster gives for all sizes. */
struct site_column {
    char *name, *about; /* as the user wrote it; topo_describe */
    struct cluster cluster;
    double *sizes, *time_us, *busbw_GBps; /* bytes; per size */
    char **how;                           /* "Ring LL" */
    double ceiling_GBps;                  /* at the largest size */
    char limit[48];
    size_t skipped; /* sizes for which the engine would have run for long */
    size_t count, cap[4];
    struct coll_request request; /* of this cluster */
};

struct comparison {
    struct site_column *sites;
    size_t count;
    struct out_column *columns;
};

/* "a,b,c" -> cut at commas. A name that is empty is a fault. */
static int cut_names(struct comparison *c, const char *text, struct err *err)
{
    size_t cap = 0;
    char *copy = mem_strdup(text), *rest = copy;
    for (char *word; (word = strsep(&rest, ","));) {
        MEM_GROW(c->sites, c->count, cap);
        c->sites[c->count++] = (struct site_column){.name = mem_strdup(word)};
        if (!*word)
            err_add(err, ERR_USAGE, "--compare: name %zu in \"%s\" is empty", c->count, text);
    }
    free(copy);
    return err->count ? -1 : 0;
}

static void keep(struct site_column *site, struct cluster_call *call)
{
    const struct result *r = &call->result;
    MEM_GROW(site->sizes, site->count, site->cap[0]);
    MEM_GROW(site->time_us, site->count, site->cap[1]);
    MEM_GROW(site->busbw_GBps, site->count, site->cap[2]);
    MEM_GROW(site->how, site->count, site->cap[3]);
    site->sizes[site->count] = (double)r->bytes;
    site->time_us[site->count] = r->time_us;
    site->busbw_GBps[site->count] = r->bytes ? r->busbw_GBps : NAN;
    site->how[site->count++] = mem_printf("%s%s%s%s", r->algo, *r->proto ? " " : "", r->proto,
                                          call->skipped ? ", formula" : "");
    site->skipped += call->skipped;
    site->ceiling_GBps = r->ceiling_GBps;
    memcpy(site->limit, call->ceiling.text, sizeof site->limit);
    cluster_call_release(call);
}

static int each_library(size_t count, void *context, struct err *err)
{
    struct site_column *site = context;
    struct cluster_call call;
    int bad = cluster_predict(&site->cluster, &site->request, site->request.algos.items[0], count,
                              &call, err);
    if (!bad) keep(site, &call);
    return bad;
}

static int each_own(const struct algo_choice *choice, size_t count, void *context, struct err *err)
{
    struct site_column *site = context;
    struct cluster_call call;
    if (cluster_predict_own(&site->cluster, &site->request, choice, count, false, &call, err))
        return -1;
    if (!call.ran) return err_add(err, ERR_USAGE, "%s cannot run out of place", choice->algo->name);
    keep(site, &call);
    return 0;
}

/* The request is copied: what the cluster settles is its own. */
static int predict(struct site_column *site, const struct coll_request *request,
                   const struct opts *opts, struct err *err)
{
    site->request = *request;
    if (cluster_open(&site->cluster, &site->request, site->name, err) ||
        coll_check_form(&site->request, opts, err) ||
        cluster_check(&site->cluster, &site->request, err))
        return -1;
    site->about = topo_describe(&site->cluster.topo);
    cluster_start(&site->cluster, &site->request, NULL);
    return site->request.form == FORM_COLLBENCH
               ? coll_each(&site->request, each_own, site, err)
               : coll_each_size(&site->request, each_library, site, err);
}

/* ---- the table ---- */

enum { PER_SITE = 3 };

static void make_columns(struct comparison *c)
{
    static const struct out_column of_site[PER_SITE] = {
        {"time", "us", 11, 2, OUT_DOUBLE, NULL, NULL},
        {"busbw", "GB/s", 9, 2, OUT_DOUBLE, NULL, NULL},
        {"how", NULL, 14, 0, OUT_TEXT, NULL, NULL},
    };
    c->columns = mem_calloc(1 + PER_SITE * c->count, sizeof *c->columns);
    c->columns[0] = (struct out_column){"size", "B", 12, 0, OUT_UINT, NULL, NULL};
    for (size_t i = 0; i < c->count; i++)
        for (size_t k = 0; k < PER_SITE; k++) {
            struct out_column *column = &c->columns[1 + PER_SITE * i + k];
            *column = of_site[k];
            column->group = c->sites[i].name;
        }
}

static void print_rows(const struct comparison *c, struct out *out)
{
    struct out_cell *cells = mem_calloc(1 + PER_SITE * c->count, sizeof *cells);
    for (size_t row = 0; row < c->sites[0].count; row++) {
        cells[0] = out_uint((uint64_t)c->sites[0].sizes[row]);
        for (size_t i = 0; i < c->count; i++) {
            const struct site_column *site = &c->sites[i];
            struct out_cell *at = &cells[1 + PER_SITE * i];
            at[0] = out_double(site->time_us[row]);
            at[1] = out_double(site->busbw_GBps[row]);
            at[2] = out_text(site->how[row]);
        }
        out_row(out, cells);
    }
    free(cells);
}

static void describe(const struct comparison *c, const struct coll_request *request,
                     struct out *out)
{
    out_note(out, "commsim %s: SIMULATED %s on %zu clusters, %s; nothing was measured",
             COMMSIM_VERSION, request->coll->name, c->count,
             request->net == NET_CLOSED ? "in closed form" : "by the engine");
    for (size_t i = 0; i < c->count; i++) {
        const struct site_column *site = &c->sites[i];
        out_note(out, "%s: %s; ceiling %.4g GB/s, limited by %s", site->name, site->about,
                 site->ceiling_GBps, site->limit);
        if (site->skipped)
            out_note(out, "%s: %zu of %zu sizes in closed form, the engine would run for long",
                     site->name, site->skipped, site->count);
    }
}

static int print_table(struct comparison *c, const struct coll_request *request,
                       const char *command, struct err *err)
{
    make_columns(c);
    struct out *out = out_new(c->columns, 1 + PER_SITE * c->count);
    int bad = out_add_asked(out, request->json, request->csv, request->overwrite, err);
    if (!bad) {
        out_meta(out, "program", out_text("commsim " COMMSIM_VERSION));
        out_meta(out, "source", out_text(source_name(SOURCE_SIMULATED)));
        out_meta(out, "command", out_text(command));
        out_meta(out, "collective", out_text(request->coll->name));
        describe(c, request, out);
        out_note(out,
                 "units: us, sizes in bytes (of the first cluster, where blocks do not divide "
                 "alike), GB = 10^9 B; busbw = size / time x %s",
                 request->coll->busbw);
        print_rows(c, out);
    }
    return out_close(out, err) | bad;
}

/* ---- the picture ---- */

static int draw(const struct comparison *c, const struct coll_request *request, struct err *err)
{
    struct plot_line *lines = mem_calloc(2 * c->count, sizeof *lines);
    char *title = mem_printf("%s, simulated", request->coll->name);
    double **bounds = mem_calloc(c->count, sizeof *bounds);
    char **names = mem_calloc(c->count, sizeof *names);
    for (size_t i = 0; i < c->count; i++) {
        const struct site_column *site = &c->sites[i];
        size_t skip = site->sizes[0] > 0 ? 0 : 1; /* a log axis has no 0 */
        bounds[i] = mem_calloc(site->count, sizeof *bounds[i]);
        for (size_t k = 0; k < site->count; k++)
            bounds[i][k] = site->ceiling_GBps;
        names[i] = mem_printf("%s, ceiling", site->name);
        lines[i] = (struct plot_line){.name = site->name,
                                      .x = site->sizes + skip,
                                      .y = site->busbw_GBps + skip,
                                      .count = site->count - skip};
        lines[c->count + i] = lines[i];
        lines[c->count + i].name = names[i];
        lines[c->count + i].y = bounds[i];
        lines[c->count + i].bound = true;
    }
    struct plot_panel panel = {.y_label = "busbw, GB/s", .y_format = "%g", .lines = lines};
    struct plot_lines plot = {.title = title,
                              .x_label = "size, B",
                              .npanels = 1,
                              .nlines = 2 * c->count,
                              .panels = &panel};
    int bad = plot_lines(&plot, request->plot, err);
    for (size_t i = 0; i < c->count; i++) {
        free(bounds[i]);
        free(names[i]);
    }
    free(bounds);
    free(names);
    free(lines);
    free(title);
    return bad;
}

/* ---- the command ---- */

static void release(struct comparison *c)
{
    for (size_t i = 0; i < c->count; i++) {
        struct site_column *site = &c->sites[i];
        for (size_t k = 0; k < site->count; k++)
            free(site->how[k]);
        free(site->how);
        free(site->sizes);
        free(site->time_us);
        free(site->busbw_GBps);
        free(site->about);
        free(site->name);
        cluster_close(&site->cluster);
        coll_request_release(&site->request);
    }
    free(c->sites);
    free(c->columns);
}

int coll_compare(struct coll_request *request, const struct opts *opts, const char *command,
                 struct err *err)
{
    struct comparison c = {0};
    int bad = cut_names(&c, request->compare, err);
    for (size_t i = 0; !bad && i < c.count; i++)
        bad = predict(&c.sites[i], request, opts, err);
    if (!bad) bad = print_table(&c, request, command, err);
    if (!bad && request->plot) bad = draw(&c, request, err);
    release(&c);
    return bad;
}
