/* SPDX-License-Identifier: Apache-2.0
 * `commsim compare`: the table over clusters and strategies says what links are worth, a pair that
 * cannot be is reported beside the others, and the picture holds every pair. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/mem.h"
#include "train/bottleneck.h"
#include "train/compare_cmd.h"
#include "train/step_cmd.h"

/* A command line with its output files in a folder of its own. */
struct run {
    char folder[32];
    char *csv, *plot;
    struct csv table;
    int status;
};

static void run(struct run *r, const char *topos, const char *strategies, const char *model,
                const char *const *more)
{
    strcpy(r->folder, "/tmp/compare-XXXXXX");
    cr_assert(mkdtemp(r->folder));
    r->csv = mem_printf("%s/a.csv", r->folder);
    r->plot = mem_printf("%s/a.gp", r->folder);
    const char *argv[32] = {"compare", "--topo", topos,  "--strategy", strategies, "--model",
                            model,     "--csv",  r->csv, "--plot",     r->plot};
    int argc = 11;
    while (more && *more) {
        argv[argc++] = *more++;
    }
    cr_redirect_stdout();
    cr_redirect_stderr();
    r->status = compare_cmd(argc, (char **)argv);
    struct err err = ERR_INIT;
    cr_assert_eq(csv_read(&r->table, r->csv, &err), 0, "%s", err.text);
}

static void end(struct run *r)
{
    remove(r->csv);
    remove(r->plot);
    remove(r->folder);
    free(r->csv);
    free(r->plot);
    csv_release(&r->table);
}

static const char *cell(const struct run *r, const char *topo, const char *strategy,
                        const char *column)
{
    for (size_t i = 0; i < r->table.nrows; i++) {
        if (strcmp(csv_cell(&r->table, i, "topology"), topo) == 0 &&
            strncmp(csv_cell(&r->table, i, "strategy"), strategy, strlen(strategy)) == 0) {
            return csv_cell(&r->table, i, column);
        }
    }
    cr_assert(false, "no row %s %s", topo, strategy);
    return "";
}

static double number(const struct run *r, const char *topo, const char *strategy,
                     const char *column)
{
    return atof(cell(r, topo, strategy, column));
}

/* Tensor parallelism inside the node against across nodes, on three machines: it costs at least
 * `least` there. */
static void check_across(const char *engine, double least)
{
    struct run r = {0};
    const char *more[] = {"--step", engine, NULL};
    run(&r, "pcie8-a100x2,dgx-a100x2,dgx-h100x2", "tp8dp2,tp8dp2@order=dp,tp,tp2pp4dp2,fsdp",
        "llama3-8b", more);
    cr_assert_eq(r.status, 0);
    cr_assert_eq(r.table.nrows, 12);
    static const char *const nvlink[] = {"dgx-a100x2", "dgx-h100x2"};
    for (int i = 0; i < 2; i++) {
        double inside = number(&r, nvlink[i], "tp8dp2", "step_ms");
        double across = number(&r, nvlink[i], "tp8dp2@order=dp,tp", "step_ms");
        cr_expect_gt(across, (1 + least) * inside, "%s: %.3f", nvlink[i], across / inside);
        cr_expect(strstr(cell(&r, nvlink[i], "tp8dp2@order=dp,tp", "bottleneck"), "NIC"));
        cr_expect_eq(strstr(cell(&r, nvlink[i], "tp8dp2", "bottleneck"), "NIC"), NULL);
        /* the same cards without NVLink: everything that communicates is slower */
        cr_expect_lt(2 * inside, number(&r, "pcie8-a100x2", "tp8dp2", "step_ms"));
    }
    cr_expect_lt(1.2 * number(&r, "dgx-a100x2", "fsdp16", "step_ms"),
                 number(&r, "pcie8-a100x2", "fsdp16", "step_ms"));
    cr_expect_lt(1.2 * number(&r, "dgx-h100x2", "tp8dp2", "step_ms"),
                 number(&r, "dgx-a100x2", "tp8dp2", "step_ms"));
    end(&r);
}

/* By events the tree over two hosts is taken, and collectives leave at all NICs. */
Test(compare, inside_the_node_or_across)
{
    check_across("event", .05);
    check_across("closed", .15);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fputs(text, file);
    fclose(file);
}

/* A model of 3.6 B parameters on 64 A100, 800 Gb/s per host: 16 tensor ranks leave the node. The
 * published runs took 4.97 s and 10.58 s (data/training/vtrain.csv), a ratio of 2.13. */
Test(compare, sixteen_tensor_ranks_on_nodes_of_eight)
{
    static const char *const options[] = {
        "--seq", "2048",        "--micro-batch", "32", "--global-batch", "512", "--recompute",
        "full",  "--precision", "fp16",          NULL};
    char topo[] = "/tmp/topo-XXXXXX", model[] = "/tmp/model-XXXXXX";
    cr_assert(mkstemp(topo) >= 0 && mkstemp(model) >= 0);
    write_file(topo, "{\"schema\": 1, \"form\": \"uniform\", \"accelerator\": \"A100-80GB\","
                     "\"hosts\": 8, \"accelerators_per_host\": 8, \"network\": {\"kind\": \"ib\","
                     "\"nics_per_host\": 4, \"nic_Gbps\": 200, \"source\": \"the runs' own\"}}");
    write_file(model, "{\"model_type\": \"gpt2\", \"n_embd\": 3072, \"n_layer\": 30,"
                      "\"n_head\": 32, \"n_positions\": 2048, \"vocab_size\": 51200}");
    struct run r = {0};
    run(&r, topo, "tp8dp8,tp16dp4", model, options);
    cr_assert_eq(r.status, 0);
    double ratio = number(&r, topo, "tp16dp4", "step_ms") / number(&r, topo, "tp8dp8", "step_ms");
    cr_expect(ratio >= 1.8 && ratio <= 2.5, "%.3f", ratio);
    cr_expect(strstr(cell(&r, topo, "tp16dp4", "bottleneck"), "NIC"));
    end(&r);
    remove(topo);
    remove(model);
}

Test(compare, parts_add_up)
{
    static const char *const parts[] = {"gemm", "attention", "elementwise", "recompute", "launch",
                                        "tp",   "cp",        "ep",          "fsdp",      "dp",
                                        "pp",   "bubble",    "optimizer"};
    struct run r = {0};
    run(&r, "dgx-h100x2", "pp4dp4,fsdp,ep8", "mixtral-8x7b", NULL);
    double best = 0;
    cr_assert_eq(r.status, 0);
    for (size_t i = 0; i < r.table.nrows; i++) {
        double sum_s = 0;
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            char *column = mem_printf("part_%s_s", parts[k]);
            sum_s += atof(csv_cell(&r.table, i, column));
            free(column);
        }
        double step_ms = atof(csv_cell(&r.table, i, "step_ms"));
        cr_expect_float_eq(1e3 * sum_s, step_ms, 1e-6 * step_ms, "%f %f", 1e3 * sum_s, step_ms);
        double slower = atof(csv_cell(&r.table, i, "slower_x"));
        cr_expect_geq(slower, 1);
        best += slower == 1;
    }
    cr_expect_eq(best, 1);
    end(&r);
}

/* A pair that breaks a rule keeps its row, without figures; the others have theirs; exit 2. */
Test(compare, pair_that_cannot_be)
{
    struct run r = {0};
    run(&r, "dgx-h100x2", "tp3dp2,tp8dp2,tp32", "llama3-8b", NULL);
    cr_expect_eq(r.status, 2);
    cr_assert_eq(r.table.nrows, 3);
    cr_expect_str_empty(cell(&r, "dgx-h100x2", "tp3dp2", "step_ms"));
    cr_expect_str_empty(cell(&r, "dgx-h100x2", "tp32", "step_ms"));
    cr_expect_gt(number(&r, "dgx-h100x2", "tp8dp2", "step_ms"), 0);
    end(&r);
}

Test(compare, picture_has_every_pair)
{
    struct run r = {0};
    run(&r, "dgx-a100,dgx-h100", "tp8,tp2pp4", "llama3-8b", NULL);
    cr_expect_eq(r.status, 0);
    char *text = mem_calloc(1 << 16, 1);
    FILE *file = fopen(r.plot, "r");
    cr_assert(file);
    cr_expect_gt(fread(text, 1, (1 << 16) - 1, file), 0);
    fclose(file);
    static const char *const bars[] = {"\n\"dgx-a100 tp8", "\n\"dgx-a100 tp2pp4",
                                       "\n\"dgx-h100 tp8", "\n\"dgx-h100 tp2pp4"};
    for (int i = 0; i < 4; i++) {
        cr_expect(strstr(text, bars[i]), "%s in %s", bars[i], text);
    }
    free(text);
    end(&r);
}

/* Shares of the table against its parts; MFU against 51.47 GFLOP per token, the causal count of
 * Llama-3-8B at 8192 tokens without the token table, of a dense peak of 989.5 TFLOP/s. */
Test(compare, shares_and_mfu)
{
    struct run r = {0};
    run(&r, "dgx-h100x2", "tp2pp4dp2,fsdp", "llama3-8b", NULL);
    for (size_t i = 0; i < r.table.nrows; i++) {
        double step_s = 1e-3 * atof(csv_cell(&r.table, i, "step_ms"));
        double comm_s = 0, compute_s = 0;
        static const char *const comm[] = {"part_tp_s",   "part_cp_s", "part_ep_s",
                                           "part_fsdp_s", "part_dp_s", "part_pp_s"};
        static const char *const compute[] = {"part_gemm_s", "part_attention_s",
                                              "part_elementwise_s", "part_recompute_s"};
        for (int k = 0; k < 6; k++) {
            comm_s += atof(csv_cell(&r.table, i, comm[k]));
        }
        for (int k = 0; k < 4; k++) {
            compute_s += atof(csv_cell(&r.table, i, compute[k]));
        }
        double bubble_s = atof(csv_cell(&r.table, i, "part_bubble_s"));
        cr_expect_float_eq(atof(csv_cell(&r.table, i, "communication_pct")), 100 * comm_s / step_s,
                           0.01);
        cr_expect_float_eq(atof(csv_cell(&r.table, i, "compute_pct")), 100 * compute_s / step_s,
                           0.01);
        cr_expect_float_eq(atof(csv_cell(&r.table, i, "bubble_pct")), 100 * bubble_s / step_s,
                           0.01);
        double mfu = atof(csv_cell(&r.table, i, "tokens_per_s_per_gpu")) * 51.47e9 / 989.5e12 * 100;
        cr_expect_float_eq(atof(csv_cell(&r.table, i, "mfu_pct")), mfu, 0.005 * mfu, "%f", mfu);
    }
    end(&r);
}

/* The percentage of the sentence is that of the part it names. */
Test(compare, sentence_and_parts_agree)
{
    struct run r = {0};
    run(&r, "dgx-h100x2", "tp8dp2,tp16", "llama3-8b", NULL);
    for (size_t i = 0; i < r.table.nrows; i++) {
        const char *text = csv_cell(&r.table, i, "bottleneck");
        const char *part = strstr(text, "tensor-parallel"), *is = part ? strstr(part, " is ") : 0;
        double share =
            atof(csv_cell(&r.table, i, "part_tp_s")) / atof(csv_cell(&r.table, i, "step_ms")) * 1e3;
        cr_assert(is, "%s", text);
        cr_expect_float_eq(atof(is + 4), 100 * share, 0.5 + 1e-9, "%s: %f", text, 100 * share);
    }
    end(&r);
}

/* A figure of the bare command for the same words. */
static double bare(const char *topo, const char *strategy, const char *engine, const char *key)
{
    char path[] = "/tmp/bare-XXXXXX";
    cr_assert(mkstemp(path) >= 0);
    const char *argv[] = {"commsim",   "--topo", topo,   "--strategy", strategy, "--model",
                          "llama3-8b", "--step", engine, "--json",     path,     "--overwrite"};
    cr_assert_eq(step_cmd(sizeof argv / sizeof *argv, (char **)argv), 0);
    json_t *root = json_load_file(path, 0, NULL);
    json_t *figure = json_object_get(json_object_get(root, "meta"), key);
    cr_assert(json_is_number(figure), "%s", key);
    double value = json_number_value(figure);
    json_decref(root);
    remove(path);
    return value;
}

/* Both commands predict the same for the same words, by either engine; events unless told. */
Test(compare, is_the_bare_command)
{
    static const char *const topos[] = {"pcie8-a100x2", "dgx-h100x2"};
    static const char *const strategies[] = {"tp8dp2", "tp2pp4dp2", "fsdp16"};
    static const char *const engines[] = {"event", "closed"};
    static const char *const more[][3] = {{NULL}, {"--step", "closed", NULL}};
    double both[2];
    for (int e = 0; e < 2; e++) {
        struct run r = {0};
        run(&r, "pcie8-a100x2,dgx-h100x2", "tp8dp2,tp2pp4dp2,fsdp16", "llama3-8b", more[e]);
        cr_assert_eq(r.status, 0);
        for (int i = 0; i < 6; i++) {
            const char *topo = topos[i / 3], *strategy = strategies[i % 3];
            double step_ms = number(&r, topo, strategy, "step_ms");
            double memory_GiB = number(&r, topo, strategy, "memory_GiB");
            double want_ms = 1e3 * bare(topo, strategy, engines[e], "step_s");
            cr_expect_float_eq(step_ms, want_ms, 1e-6 * want_ms, "%s %s by %s: %f, %f", topo,
                               strategy, engines[e], step_ms, want_ms);
            cr_expect_float_eq(memory_GiB, bare(topo, strategy, engines[e], "memory_reserved_GiB"),
                               1e-6);
            both[e] = step_ms;
        }
        end(&r);
    }
    cr_expect(fabs(both[0] - both[1]) > 1e-3 * both[0], "one engine behind both words: %f",
              both[0]);
}

static char *stdout_of(const char *option)
{
    const char *argv[] = {"compare", "--topo", "dgx-h100", "--strategy", "fsdp", option, "-"};
    cr_redirect_stdout();
    cr_expect_eq(compare_cmd(7, (char **)argv), 0);
    fflush(stdout);
    char *text = mem_calloc(1 << 16, 1);
    cr_expect_gt(fread(text, 1, (1 << 16) - 1, cr_get_redirected_stdout()), 0);
    return text;
}

Test(compare, json_on_stdout_is_json_alone)
{
    char *text = stdout_of("--json");
    json_t *root = json_loads(text, 0, NULL);
    cr_assert(root, "%s", text);
    cr_expect_eq(json_array_size(json_object_get(root, "rows")), 1);
    json_decref(root);
    free(text);
}

Test(compare, csv_on_stdout_is_csv_alone)
{
    char *text = stdout_of("--csv");
    cr_expect_eq(strncmp(text, "topology,strategy,", 18), 0, "%s", text);
    free(text);
}

Test(compare, faulty_table_of_constants)
{
    const char *argv[] = {"compare", "--topo",      "dgx-h100",     "--strategy",
                          "fsdp",    "--constants", "/no/such/file"};
    cr_redirect_stdout();
    cr_redirect_stderr();
    cr_expect_gt(compare_cmd(7, (char **)argv), 0);
}

Test(compare, missing_options)
{
    char *none[] = {"compare"}, *word[] = {"compare", "x"};
    cr_redirect_stderr();
    cr_expect_eq(compare_cmd(1, none), 2);
    cr_expect_eq(compare_cmd(2, word), 2);
}

/* ---- the sentence ---- */

static char *sentence(const char *topo, const char *strategy, const char *model)
{
    struct tables tables;
    struct plan plan;
    struct err err = ERR_INIT;
    struct plan_args args = {.cluster.topo = topo,
                             .model = model,
                             .strategy = {.strategy = strategy, .global_batch = 128},
                             .machine_factor = 1};
    cr_assert_eq(tables_read(&tables, ENGINE_CLOSED, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(plan_make(&plan, &tables, &args, &err), 0, "%s", err.text);
    struct step step = step_predict(&plan.job, &tables.constants[ENGINE_CLOSED].values);
    char *text = bottleneck_text(&plan, &step);
    plan_release(&plan);
    tables_release(&tables);
    return text;
}

Test(bottleneck, offload_waits_for_the_host)
{
    struct tables tables;
    struct plan plan;
    struct err err = ERR_INIT;
    struct plan_args args = {.cluster.topo = "dgx-h100", .model = "llama3-8b", .machine_factor = 1};
    args.strategy.strategy = "fsdp";
    cr_assert_eq(tables_read(&tables, ENGINE_EVENT, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(plan_make(&plan, &tables, &args, &err), 0, "%s", err.text);
    struct step step = {.time_s = 3, .part_s = {[PART_GEMM] = 1, [PART_OFFLOAD] = 2}};
    char *text = bottleneck_text(&plan, &step);
    cr_assert_eq(strncmp(text, "link to the host's memory: ", 27), 0, "%s", text);
    free(text);
    plan_release(&plan);
    tables_release(&tables);
}

Test(bottleneck, names_what_limits)
{
    static const struct {
        const char *topo, *strategy, *model, *part;
    } cases[] = {
        {"dgx-h100", "fsdp", "llama3-8b", "compute (H100-80GB): matrix products"},
        {"dgx-h100", "tp8", "llama3-8b", "link inside the node (nvswitch"},
        {"dgx-h100x2", "tp16", "llama3-70b", "NIC (InfiniBand, 400 Gb/s per GPU): tensor"},
        {"pcie8-a100x8", "dp64", "llama3.2-1b", "NIC ("},
        {"dgx-h100x64", "pp8dp64", "llama3-8b",
         "pipeline (2 micro-batches on 8 stages): pipeline bubble"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = sentence(cases[i].topo, cases[i].strategy, cases[i].model);
        cr_expect(strstr(text, cases[i].part), "%s %s: %s", cases[i].topo, cases[i].strategy, text);
        free(text);
    }
}
