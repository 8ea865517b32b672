/* SPDX-License-Identifier: Apache-2.0
 * Scoring: predictions look at inputs only (leak tests), the texts of published tables are
 * understood, the shipped constants reach their bars, and the tables are read strictly. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/mem.h"
#include "base/ship.h"
#include "net/net_const.h"
#include "train/event.h"
#include "train/fit.h"
#include "train/limit.h"
#include "train/pipeline.h"
#include "train/rowtext.h"
#include "train/score.h"
#include "train/step.h"
#include "train/validate_cmd.h"

static const char *const tables[] = {"llm-foundry", "megatron",   "memory", "nemo",
                                     "papers",      "torchtitan", "vtrain"};
enum { NTABLES = sizeof tables / sizeof *tables };

static char *shipped(const char *name)
{
    char *path = mem_printf("data/training/%s.csv", name);
    char *found = ship_find(".", path, NULL);
    cr_assert(found, "%s is not shipped", path);
    free(path);
    return found;
}

/* A file in a fresh folder, with text; freed and removed by drop_file. */
static char *temp_file(void)
{
    char *path = mem_strdup("/tmp/score-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    return path;
}

static void drop_file(char *path)
{
    remove(path);
    free(path);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

static void put_cell(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

/* What a prediction may read. */
static const char *const inputs[] = {"gpu",
                                     "gpu_mem_gb",
                                     "gpus_per_node",
                                     "intra_link",
                                     "inter_net",
                                     "n_gpus",
                                     "layers",
                                     "hidden",
                                     "ffn_hidden",
                                     "gated_mlp",
                                     "heads",
                                     "kv_heads",
                                     "head_dim",
                                     "vocab",
                                     "tied_emb",
                                     "seq_len",
                                     "moe_experts",
                                     "moe_topk",
                                     "moe_ffn_hidden",
                                     "moe_shared_ffn",
                                     "moe_dense_layers",
                                     "precision",
                                     "framework",
                                     "dp",
                                     "tp",
                                     "sp",
                                     "pp",
                                     "vpp",
                                     "cp",
                                     "ep",
                                     "zero",
                                     "shard_size",
                                     "micro_batch",
                                     "global_batch",
                                     "recompute",
                                     "flags"};

static const char *allowed_part(const char *column, const char *text)
{
    static const char *const models[] = {"DeepSeek", "Kimi", "GPT-OSS"};
    static const char *const notes[] = {"MLA", "alternating sliding-window"};
    const char *const *words = NULL;
    size_t n = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (strcmp(inputs[i], column) == 0) return text;
    }
    if (strcmp(column, "model") == 0) words = models, n = sizeof models / sizeof *models;
    if (strcmp(column, "notes") == 0) words = notes, n = sizeof notes / sizeof *notes;
    for (size_t i = 0; i < n; i++) {
        if (strcasestr(text, words[i])) return words[i];
    }
    return "";
}

/* The table with everything but inputs blanked, columns and rows in reverse order. */
static void write_stripped(const struct csv *csv, const char *path)
{
    FILE *f = fopen(path, "w");
    cr_assert(f);
    for (size_t c = csv->ncolumns; c-- > 0;)
        fprintf(f, "%s%s", csv->header[c], c ? "," : "\n");
    for (size_t r = csv->nrows; r-- > 0;) {
        for (size_t c = csv->ncolumns; c-- > 0;) {
            put_cell(f, allowed_part(csv->header[c], csv->cells[r * csv->ncolumns + c]));
            fputs(c ? "," : "\n", f);
        }
    }
    fclose(f);
}

Test(leak, predictions_read_inputs_only)
{
    struct const_table constants;
    struct err err = ERR_INIT;
    cr_assert_eq(const_read(&constants, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    for (size_t t = 0; t < NTABLES; t++) {
        char *path = shipped(tables[t]), *stripped = temp_file();
        struct csv csv;
        struct rows a, b;
        cr_assert_eq(csv_read(&csv, path, &err), 0, "%s", err.text);
        write_stripped(&csv, stripped);
        cr_assert_eq(rows_read(&a, &path, 1, &err), 0, "%s", err.text);
        cr_assert_eq(rows_read(&b, &stripped, 1, &err), 0, "%s", err.text);
        cr_assert_eq(a.nrows, b.nrows);
        struct runner *ra = score_runner(&a, ENGINE_CLOSED, &err);
        struct runner *rb = score_runner(&b, ENGINE_CLOSED, &err);
        struct prediction *p = score_predict(&a, ra, &constants.values, &err);
        struct prediction *q = score_predict(&b, rb, &constants.values, &err);
        cr_assert(p && q, "%s", err.text);
        for (size_t i = 0; i < a.nrows; i++) {
            const struct prediction *x = &p[i], *y = &q[a.nrows - 1 - i];
            cr_assert(x->time_s == y->time_s && x->memory.allocated == y->memory.allocated,
                      "%s line %zu: %.9g s with all columns, %.9g s with inputs alone", tables[t],
                      a.rows[i].line, x->time_s, y->time_s);
        }
        free(p);
        free(q);
        runner_free(ra);
        runner_free(rb);
        rows_release(&a);
        rows_release(&b);
        csv_release(&csv);
        drop_file(stripped);
        free(path);
    }
    const_release(&constants);
}

/* ---- the bars ---- */

static struct rows all_rows(void)
{
    struct rows rows;
    struct err err = ERR_INIT;
    char *paths[NTABLES];
    for (size_t i = 0; i < NTABLES; i++)
        paths[i] = shipped(tables[i]);
    cr_assert_eq(rows_read(&rows, paths, NTABLES, &err), 0, "%s", err.text);
    for (size_t i = 0; i < NTABLES; i++)
        free(paths[i]);
    return rows;
}

static bool complete(const struct row *row, const void *arg)
{
    unsigned kind = *(const unsigned *)arg;
    return row->complete == COMPLETE_Y && (kind == NKINDS || limit_kind(&row->job) == kind);
}

Test(bars, shipped_constants)
{
    static const struct {
        unsigned kind; /* NKINDS: all */
        size_t rows;   /* at least: fewer means that rows were lost */
        double median, p90, bias;
    } bars[] = {
        {NKINDS, 440, 4, 13, 2}, {0, 310, 4, 12.5, 2}, {1, 75, 3.5, 11, 3}, {2, 54, 6, 16, 4}};
    struct const_table constants;
    struct err err = ERR_INIT;
    cr_assert_eq(const_read(&constants, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    size_t fitted = 0;
    for (size_t i = 0; i < constants.list.nrows; i++)
        fitted += constants.list.rows[i].fitted;
    cr_assert(fitted <= 120, "%zu constants are fitted", fitted);
    struct rows rows = all_rows();
    struct runner *runner = score_runner(&rows, ENGINE_CLOSED, &err);
    struct prediction *p = score_predict(&rows, runner, &constants.values, &err);
    cr_assert_not_null(p, "%s", err.text);
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++) {
        struct score s = score_group(&rows, p, complete, &bars[i].kind, true);
        cr_assert(s.n >= bars[i].rows, "kind %u: %zu rows", bars[i].kind, s.n);
        cr_assert(
            s.median <= bars[i].median && s.p90 <= bars[i].p90 && fabs(s.bias) <= bars[i].bias,
            "kind %u: median %.2f, p90 %.2f, bias %.2f", bars[i].kind, s.median, s.p90, s.bias);
    }
    struct score m = score_memory(&rows, p, 1 << MEM_ALLOCATED, 1e9, NULL);
    cr_assert(m.n >= 20 && m.median <= 4 && m.p90 <= 10, "memory: %.1f / %.1f", m.median, m.p90);
    struct confusion c = score_fits(&rows, p);
    size_t right = c.fits_right + c.oom_right, n = right + c.fits_wrong + c.oom_wrong;
    cr_assert(n >= 380 && (double)right >= .89 * (double)n, "fits: %zu of %zu", right, n);
    free(p);
    runner_free(runner);
    rows_release(&rows);
    const_release(&constants);
}

/* The bands that predictions print are those of the shipped constants and tables. */
Test(bars, bands_are_current)
{
    char *rows = temp_file(), *bands = temp_file(), *now = ship_find("data", "bands.csv", NULL);
    char *argv[] = {"validate", "training", "--bands", bands, "--rows", rows, "--overwrite"};
    cr_redirect_stdout();
    cr_assert_eq(validate_cmd(7, argv), 0);
    struct csv a, b, r;
    struct err err = ERR_INIT;
    cr_assert_eq(csv_read(&a, now, &err), 0, "%s", err.text);
    cr_assert_eq(csv_read(&b, bands, &err), 0, "%s", err.text);
    cr_assert_eq(a.nrows, b.nrows);
    for (size_t i = 0; i < a.nrows * a.ncolumns; i++) {
        cr_assert_str_eq(a.cells[i], b.cells[i], "data/bands.csv is not what validate writes");
    }
    cr_assert_eq(csv_read(&r, rows, &err), 0, "%s", err.text);
    struct rows all = all_rows();
    cr_assert_eq(r.nrows, all.nrows, "one line per row");
    rows_release(&all);
    csv_release(&a);
    csv_release(&b);
    csv_release(&r);
    drop_file(rows);
    drop_file(bands);
    free(now);
}

Test(bars, require_sets_the_status, .init = cr_redirect_stdout)
{
    cr_redirect_stderr();
    static const struct {
        const char *require;
        int status;
    } cases[] = {{"median=4,p90=13", 0}, {"median=0.5", 1}, {"p90=5", 1}, {"worst=3", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *argv[] = {"validate", "training",  "--step",
                        "closed",   "--require", (char *)cases[i].require};
        cr_assert_eq(validate_cmd(6, argv), cases[i].status, "%s", cases[i].require);
    }
    char *missing[] = {"validate", "training", "/nowhere.csv"}, *word[] = {"validate"};
    cr_assert_eq(validate_cmd(3, missing), 2);
    cr_assert_eq(validate_cmd(1, word), 2);
}

/* ---- texts ---- */

Test(text, network_rates)
{
    static const struct {
        const char *text;
        unsigned per_node;
        double Gbps, over;
        enum fabric fabric;
        unsigned nics;
    } cases[] = {
        {"8x400 Gb/s NDR InfiniBand per node (not stated)", 8, 400, 1, FABRIC_IB, 8},
        {"Jean Zay: 4x100 Gb/s Omni-Path per node", 8, 50, 1, FABRIC_OMNIPATH, 4},
        {"800 Gb/s IB per node", 8, 100, 1, FABRIC_IB, 0},
        {"400 Gb/s NDR InfiniBand per GPU (not stated)", 4, 400, 1, FABRIC_IB, 0},
        {"1600 Gbps RoCE per node (stated in table title)", 8, 200, 1, FABRIC_ROCE, 0},
        {"AWS p5: EFA 3200 Gb/s per node", 8, 400, 1, FABRIC_EFA, 0},
        {"~50 GB/s NIC per GPU (stated 400 Gb/s)", 8, 400, 1, FABRIC_UNSTATED, 0},
        {"2 Tb/s RoCE per node (stated)", 8, 250, 1, FABRIC_ROCE, 0},
        {"Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, "
         "Management: 100Gb/s Ethernet NIC",
         8, 400, 1, FABRIC_IB, 8},
        {"8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC", 8, 400, 1, FABRIC_IB, 8},
        {"4x ConnectX-8 IB XDR 800 Gb/s", 4, 800, 1, FABRIC_IB, 4},
        {"GCP A3: 8x200 Gb/s GPUDirect-TCPX per node", 8, 200, 1, FABRIC_TCP, 8},
        {"RoCE 400 Gb/s per GPU, 3-layer Clos, 1:7 oversubscribed at top", 8, 400, 7, FABRIC_ROCE,
         0},
        {"6 x BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb Ethernet", 8, 0, 1, FABRIC_UNSTATED, 6},
        {"InfiniBand (rate not stated in the repo)", 8, 0, 1, FABRIC_IB, 0},
        {"unused (1 node)", 8, 0, 1, FABRIC_UNSTATED, 0},
        {"", 8, 0, 1, FABRIC_UNSTATED, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rowtext_net net = rowtext_net(cases[i].text, cases[i].per_node);
        cr_expect_float_eq(net.Gbps, cases[i].Gbps, 1e-9, "%s: %g", cases[i].text, net.Gbps);
        cr_expect_float_eq(net.oversubscribed, cases[i].over, 1e-9, "%s", cases[i].text);
        cr_expect_eq(net.nics, cases[i].nics, "%s: %u NICs", cases[i].text, net.nics);
        if (net.Gbps <= 0) continue;
        cr_expect_eq(rowtext_fabric(cases[i].text), cases[i].fabric, "%s", cases[i].text);
    }
}

/* The cluster and the order of passes that a row's cells mean. */
Test(text, clusters_and_schedules)
{
    static const struct {
        const char *gpu, *per_node, *link, *net, *gpus, *vpp, *flags;
        uint64_t hosts, per_host, domain_hosts, nics;
        double nic_Gbps, one_Gbps;
        enum pipeline_id schedule;
    } cases[] = {
        {"A100-SXM-80GB", "8", "NVLink", "4x100 Gb/s Omni-Path per node", "384", "1", "", 48, 8, 1,
         4, 50, 100, PIPELINE_1F1B},
        {"GB200", "4", "NVL72", "400 Gb/s NDR InfiniBand per GPU", "256", "4", "", 64, 4, 16, 4,
         400, 400, PIPELINE_INTERLEAVED},
        {"GB300", "4", "NVL72", "", "64", "1", "schedule zb-1p", 16, 4, 16, 4, 800, 800,
         PIPELINE_ZB_1P},
        {"H100-SXM", "8", "NVLink", "", "12", "1", "schedule zb-2p", 2, 6, 1, 8, 400, 400,
         PIPELINE_ZB_2P},
    };
    char *path = temp_file();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rows rows;
        struct err err = ERR_INIT;
        char *text = mem_printf(
            "gpu,gpus_per_node,intra_link,inter_net,n_gpus,layers,hidden,heads,vocab,seq_len,"
            "micro_batch,global_batch,precision,framework,pp,vpp,flags\n"
            "%s,%s,%s,%s,%s,16,1024,16,32000,2048,1,64,bf16,Megatron-Core,4,%s,%s\n",
            cases[i].gpu, cases[i].per_node, cases[i].link, cases[i].net, cases[i].gpus,
            cases[i].vpp, cases[i].flags);
        write_text(path, text);
        cr_assert_eq(rows_read(&rows, &path, 1, &err), 0, "%s", err.text);
        const struct row *row = rows.rows;
        const struct topo *topo = &row->topo;
        cr_assert(!row->reason, "%s", row->reason);
        cr_expect(topo->hosts == cases[i].hosts && topo->per_host == cases[i].per_host &&
                      topo->domain_hosts == cases[i].domain_hosts && topo->nics == cases[i].nics,
                  "case %zu: %zu x %zu, domain %zu, %zu NICs", i, (size_t)topo->hosts,
                  (size_t)topo->per_host, (size_t)topo->domain_hosts, (size_t)topo->nics);
        cr_expect_float_eq(topo->nic_Gbps, cases[i].nic_Gbps, 1e-9);
        cr_expect_float_eq(topo->one_nic_Gbps, cases[i].one_Gbps, 1e-9);
        cr_expect_eq(row->job.schedule, cases[i].schedule, "case %zu", i);
        rows_release(&rows);
        free(text);
    }
    drop_file(path);
}

/* Every pattern sets a feature that exists, to a value that exists. */
Test(text, pattern_tables)
{
    struct err err = ERR_INIT;
    struct csv csv;
    char *path = ship_find("data", "flags.csv", NULL);
    cr_assert_eq(csv_read(&csv, path, &err), 0, "%s", err.text);
    for (size_t i = 0; i < csv.nrows; i++) {
        struct job job = {0};
        struct features f = {.job = &job};
        rowtext_set(&f, csv_cell(&csv, i, "feature"), csv_cell(&csv, i, "value"), "2", &err);
    }
    cr_assert_eq(err.count, 0, "%s", err.text);
    csv_release(&csv);
    free(path);
}

Test(text, flags_with_negations)
{
    char *path = temp_file();
    write_text(path, "id,gpu,gpu_mem_gb,n_gpus,layers,hidden,heads,vocab,seq_len,micro_batch,"
                     "global_batch,precision,framework,tp,sp,recompute,flags\n"
                     "a,A100-80GB,80,8,4,1024,16,50257,2048,1,8,bf16,Megatron-Bridge,2,y,none,"
                     "\"no flash-attn; no TP comm overlap\"\n"
                     "b,A100-80GB,80,8,4,1024,16,50257,2048,1,8,bf16,Megatron-Bridge,2,n,none,"
                     "TP comm overlap; local DDP (no grad overlap); never heard of\n"
                     "c,Voodoo2,80,8,4,1024,16,50257,2048,1,8,bf16,x,2,n,none,\n"
                     "d,A100-80GB,80,8,,1024,16,50257,2048,1,8,bf16,x,2,n,none,\n");
    struct rows rows;
    struct err err = ERR_INIT;
    cr_assert_eq(rows_read(&rows, &path, 1, &err), 0, "%s", err.text);
    cr_assert_eq(rows.nrows, 4);
    cr_assert_eq(rows.rows[0].job.attn, ATTN_UNFUSED);
    cr_assert_eq(rows.rows[1].job.attn, ATTN_CUDNN);
    cr_assert(rows.rows[1].job.tp_overlap && !rows.rows[1].job.dp_overlap);
    cr_assert_eq(rows.rows[1].job.dp, 4);
    cr_assert_eq(rows.rows[1].job.shape.vocab % 256, 0);
    cr_assert_eq(rows.nunmatched, 1);
    cr_assert_str_eq(rows.rows[2].reason, "gpu-unknown");
    cr_assert_str_eq(rows.rows[3].reason, "shape-missing");
    rows_release(&rows);
    drop_file(path);
}

/* ---- tables ---- */

Test(csv, quotes_and_faults)
{
    char *path = temp_file();
    struct csv csv;
    struct err err = ERR_INIT;
    write_text(path, "a,b\r\n\"x, \"\"y\"\"\nz\",2\r\n3\n\n,\n");
    cr_assert_eq(csv_read(&csv, path, &err), 0, "%s", err.text);
    cr_assert_eq(csv.nrows, 3);
    cr_assert_str_eq(csv_cell(&csv, 0, "a"), "x, \"y\"\nz");
    cr_assert_str_eq(csv_cell(&csv, 0, "b"), "2");
    cr_assert_str_eq(csv_cell(&csv, 1, "a"), "3");
    cr_assert_str_eq(csv_cell(&csv, 1, "b"), "");
    cr_assert_str_eq(csv_cell(&csv, 1, "c"), "");
    cr_assert_eq(csv.line[1], 4);
    csv_release(&csv);
    write_text(path, "a,b\n\"open\n");
    cr_assert_eq(csv_read(&csv, path, &err), -1);
    write_text(path, "a,b\n1,2,3\n");
    cr_assert_eq(csv_read(&csv, path, &err), -1);
    cr_assert_eq(csv_read(&csv, "/nowhere/at/all.csv", &err), -1);
    cr_assert_eq(err.count, 3, "%s", err.text);
    err_release(&err);
    drop_file(path);
}

Test(constants, round_trip_and_faults)
{
    char *path = temp_file();
    struct const_table a, b;
    struct err err = ERR_INIT;
    cr_assert_eq(const_read(&a, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(const_write(&a, &a.values, path, &err), 0, "%s", err.text);
    cr_assert_eq(const_read(&b, ENGINE_CLOSED, path, &err), 0, "%s", err.text);
    for (size_t i = 0; i < a.list.nrows; i++) {
        cr_assert_float_eq(a.list.rows[i].value, b.list.rows[i].value, 1e-4 * a.list.rows[i].value);
        cr_assert_str_eq(a.list.rows[i].source, b.list.rows[i].source);
        cr_assert(*a.list.rows[i].source, "%s has no source", a.list.rows[i].name);
    }
    const_release(&b);
    write_text(path, "name,key,value,unit,source,fitted,prior,sigma,low,high\n"
                     "k0,,1,x,s,y,1,.1,0,\nk0,,1,x,s,y,1,.1,0,\nk1,,1,x,s,y,1,.1,0,\n"
                     "quant_exp,,many,x,s,y,1,.1,0,\nhbm_eff,,2,x,s,y,1,.1,0,1\n");
    cr_assert_eq(const_read(&b, ENGINE_CLOSED, path, &err), -1);
    cr_assert(err.count > 0 && strstr(err.text, ":4: there is no constant \"k1\""), "%s", err.text);
    err_release(&err);
    const_release(&a);
    drop_file(path);
}

/* What events replace has no row in the table of the event engine, and no value by mistake. */
Test(constants, events_need_fewer)
{
    static const char *const gone[] = {
        "layer_us",      "micro_ms",     "tp_exposed",         "dp_exposed",
        "pp_exposed",    "fsdp_us",      "tp_lat_us",          "nvlink_eff",
        "nic_eff",       "cp_hidden",    "cp_exposed",         "cp_lat_us",
        "ep_eff_nvlink", "ep_eff_nic",   "ep_exposed",         "ep_lat_us",
        "moe_host_us",   "graphs_full",  "tp_exposed_overlap", "fsdp_contention",
        "fsdp_eff_a100", "pp_lat_us",    "dp_lat_us",          "ep_exposed_overlap",
        "fsdp_eff_h100", "dp_contention"};
    struct const_table sets[NENGINES];
    size_t fitted[NENGINES] = {0};
    struct err err = ERR_INIT;
    for (enum engine e = 0; e < NENGINES; e++) {
        cr_assert_eq(const_read(&sets[e], e, NULL, &err), 0, "%s", err.text);
        for (size_t i = 0; i < sets[e].list.nrows; i++)
            fitted[e] += sets[e].list.rows[i].fitted;
    }
    for (size_t k = 0; k < sizeof gone / sizeof *gone; k++) {
        bool found[NENGINES] = {false};
        for (int e = 0; e < NENGINES; e++) {
            for (size_t i = 0; i < sets[e].list.nrows; i++)
                found[e] |= strcmp(sets[e].list.rows[i].name, gone[k]) == 0;
        }
        cr_assert(found[ENGINE_CLOSED] && !found[ENGINE_EVENT], "%s", gone[k]);
    }
    cr_assert(fitted[ENGINE_EVENT] + 20 <= fitted[ENGINE_CLOSED], "fitted: %zu of events, %zu",
              fitted[ENGINE_EVENT], fitted[ENGINE_CLOSED]);
    cr_assert(isnan(sets[ENGINE_EVENT].values.dp_exposed[FW_FUSED]) &&
              isnan(sets[ENGINE_CLOSED].values.sm_nvlink) && sets[ENGINE_EVENT].values.k0 > 0);
    for (int e = 0; e < NENGINES; e++)
        const_release(&sets[e]);
}

/* A table is read as what it is: the other engine's has rows too many and too few. */
Test(constants, of_the_other_engine)
{
    struct const_table table;
    struct err err = ERR_INIT;
    char *path = ship_find("data", "closed.csv", NULL);
    cr_assert_eq(const_read(&table, ENGINE_EVENT, path, &err), -1);
    cr_assert(strstr(err.text, "there is no constant \"tp_exposed\""), "%s", err.text);
    err_release(&err);
    free(path);
}

/* Points that are kept keep their step; all others are the same as one by one, in any company. */
Test(runner, one_by_one)
{
    struct rows rows = all_rows();
    struct const_table table;
    struct err err = ERR_INIT;
    cr_assert_eq(const_read(&table, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    struct runner *runner = score_runner(&rows, ENGINE_CLOSED, &err);
    struct step *steps = mem_calloc(rows.nrows, sizeof *steps);
    bool *keep = mem_calloc(rows.nrows, sizeof *keep);
    cr_assert_eq(runner_points(runner), rows.nrows);
    for (size_t i = 0; i < rows.nrows; i++) {
        steps[i].time_s = -1;
        keep[i] = i % 3 == 0;
    }
    cr_assert_eq(
        runner_steps(runner, &table.values, &(struct runner_ask){.keep = keep}, steps, &err), 0,
        "%s", err.text);
    for (size_t i = 0; i < rows.nrows; i++) {
        const struct row *row = &rows.rows[i];
        double alone = row->reason ? 0 : step_predict(&row->job, &table.values).time_s;
        cr_assert(steps[i].time_s == (keep[i] ? -1 : alone), "row %zu: %g", i, steps[i].time_s);
    }
    free(steps);
    free(keep);
    runner_free(runner);
    const_release(&table);
    rows_release(&rows);
}

/* Events in any company and on any thread are those of each step alone; no worse than this. */
Test(runner, events)
{
    struct rows rows;
    struct const_table table;
    struct net_const_table network;
    struct err err = ERR_INIT;
    char *paths[] = {shipped("torchtitan"), shipped("megatron")};
    struct lib_args library = lib_usual();
    cr_assert_eq(rows_read(&rows, paths, 2, &err), 0, "%s", err.text);
    cr_assert_eq(const_read(&table, ENGINE_EVENT, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(net_const_read(&network, NULL, &err), 0, "%s", err.text);
    struct runner *runner = score_runner(&rows, ENGINE_EVENT, &err);
    struct prediction *p = score_predict(&rows, runner, &table.values, &err);
    cr_assert_not_null(p, "%s", err.text);
    struct chunks *chunks = chunks_new();
    size_t alone = 0;
    for (size_t i = 0; i < rows.nrows; i++) {
        const struct row *row = &rows.rows[i];
        if (row->reason || row->job.ngpus > 64) continue;
        struct fluids *fluids = fluids_new(&row->topo, &network.values, &library);
        struct event_args args = {
            .job = &row->job, .c = &table.values, .fluids = fluids, .chunks = chunks};
        struct event_result result;
        cr_assert_eq(event_run(&args, &result, &err), 0, "%s", err.text);
        cr_assert_eq(result.step.time_s, p[i].time_s, "%s: %.12g s alone, %.12g", row->id,
                     result.step.time_s, p[i].time_s);
        event_release(&result);
        fluids_free(fluids);
        alone++;
    }
    unsigned all = NKINDS;
    struct score s = score_group(&rows, p, complete, &all, true);
    cr_assert(alone >= 30 && s.n >= 30 && s.median <= 7, "%zu rows, median %.1f of %zu", alone,
              s.median, s.n);
    chunks_free(chunks);
    free(p);
    runner_free(runner);
    net_const_release(&network);
    const_release(&table);
    rows_release(&rows);
    free(paths[0]);
    free(paths[1]);
}

/* Measurements made from known constants: the fit finds them again from a wrong start. */
Test(fit, finds_what_made_the_data)
{
    struct rows rows = all_rows();
    struct const_table table;
    struct err err = ERR_INIT;
    cr_assert_eq(const_read(&table, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    struct fit_point *points = mem_calloc(rows.nrows, sizeof *points);
    size_t n = 0;
    for (size_t i = 0; i < rows.nrows; i += 7) {
        if (!score_counts(&rows.rows[i])) continue;
        double t = step_predict(&rows.rows[i].job, &table.values).time_s;
        points[n++] = (struct fit_point){i, &rows.rows[i].job, t, 1};
    }
    double truth = table.values.gemm_eff[DEV_A100];
    for (size_t i = 0; i < table.list.nrows; i++) {
        struct const_row *row = &table.list.rows[i];
        row->prior = row->value;
        if (row->offset == offsetof(struct constants, gemm_eff) + DEV_A100 * sizeof(double)) {
            row->value = .8 * truth;
        }
    }
    struct solve_report report;
    struct runner *runner = score_runner(&rows, ENGINE_CLOSED, &err);
    int bad = fit_constants(&table, runner, points, n, false, 30, &report, &err);
    if (bad && strstr(err.text, "no solver")) cr_skip_test("%s", err.text);
    cr_assert_eq(bad, 0, "%s", err.text);
    cr_assert(report.cost_after < 1e-3 * report.cost_before, "%g to %g", report.cost_before,
              report.cost_after);
    cr_assert_float_eq(table.values.gemm_eff[DEV_A100], truth, .005 * truth);
    free(points);
    runner_free(runner);
    const_release(&table);
    rows_release(&rows);
}

/* A row of another device, class or kind than a job's does not move its time: what the fit leaves
 * out. */
Test(fit, rows_that_cannot_matter)
{
    struct rows rows = all_rows();
    struct const_table table;
    struct err err = ERR_INIT;
    size_t left_out = 0;
    cr_assert_eq(const_read(&table, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    for (size_t i = 0; i < rows.nrows; i += 41) {
        const struct job *job = &rows.rows[i].job;
        if (rows.rows[i].reason) continue;
        double before = step_predict(job, &table.values).time_s;
        for (size_t k = 0; k < table.list.nrows; k++) {
            const struct const_row *row = &table.list.rows[k];
            if (const_touches(row, job)) continue;
            double *slot = consts_slot(&table.values, row), kept = *slot;
            *slot = kept * 1.1;
            double after = step_predict(job, &table.values).time_s;
            *slot = kept;
            cr_assert(after == before, "%s %s moves %s", row->name, row->key, rows.rows[i].id);
            left_out++;
        }
    }
    cr_assert(left_out > 1000, "%zu", left_out);
    const_release(&table);
    rows_release(&rows);
}
