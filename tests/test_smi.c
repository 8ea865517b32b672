/* SPDX-License-Identifier: Apache-2.0
 * The status of NVLinks (tests/cases/nvlink), and tables of `nvidia-smi topo -m` from reports
 * (tests/cases/smi): the tree that each becomes, its warnings, and that the matrix of that tree has
 * the codes of the table; and the faults of broken ones. Rows that reports leave out are filled in
 * by the pattern of the others. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/smi.h"
#include "net/smi_links.h"

struct expected {
    const char *file;
    const char *tree;  /* as in draw() */
    const char *links; /* NVLinks, as in draw_links() */
    const char *warns; /* parts, each in one warning, by | */
    size_t nwarns;
};

/* The whole of a file. */
static char *text_of(const char *name)
{
    char *path = mem_printf("tests/cases/smi/%s.txt", name), *text = NULL;
    FILE *from = fopen(path, "r");
    cr_assert(from, "%s", path);
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    for (int c = getc(from); c != EOF; c = getc(from))
        putc(c, to);
    fclose(from);
    fclose(to);
    free(path);
    return text;
}

/* What hangs below a node, in the order of the list: (..) a bridge, [..] a switch. */
static void draw(const struct graph *graph, uint32_t parent, FILE *to)
{
    const char *gap = "";
    for (uint32_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->parent != parent || node->kind == GRAPH_NVSWITCH) continue;
        bool bridge = node->kind == GRAPH_BRIDGE, inner = bridge || node->kind == GRAPH_PCIE;
        fprintf(to, "%s%s", gap, bridge ? "(" : inner ? "[" : node->name);
        gap = node->kind == GRAPH_NUMA ? "; " : " ";
        if (node->kind == GRAPH_NUMA) fprintf(to, " ");
        draw(graph, i, to);
        fprintf(to, "%s", bridge ? ")" : inner ? "]" : "");
    }
}

static char *tree_of(const struct graph *graph)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    draw(graph, GRAPH_NONE, to);
    fclose(to);
    return text;
}

/* "4: gpu0-gpu1": the count only where it changes. */
static char *links_of(const struct graph *graph)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    uint32_t count = 0;
    for (size_t i = 0; i < graph->nlinks; i++) {
        const struct graph_link *link = &graph->links[i];
        if (link->via != GRAPH_NVLINK) continue;
        if (link->count != count) {
            fprintf(to, "%s%" PRIu32 ":", count ? " " : "", link->count);
        }
        count = link->count;
        fprintf(to, " %s-%s", graph->nodes[link->a].name, graph->nodes[link->b].name);
    }
    fclose(to);
    return text;
}

static char *matrix_of(const struct graph *graph)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    graph_matrix(graph, to);
    fclose(to);
    return text;
}

/* The line in which the first row, that of GPU0, begins. */
static const char *first_row(const char *text)
{
    const char *row = strstr(text, "\nGPU0");
    cr_assert(row, "no row in: %s", text);
    return row + 1;
}

static const char *next_word(const char **at, size_t *length)
{
    const char *word = *at + strspn(*at, " \t");
    *length = strcspn(word, " \t\n");
    *at = word + *length;
    return word;
}

/* Both texts have the same `n` codes in each of n rows, word by word. */
static void check_cells(const char *file, const char *given, const char *got, size_t n)
{
    const char *a = first_row(given), *b = first_row(got);
    for (size_t row = 0; row < n; row++) {
        for (size_t column = 0; column <= n; column++) {
            size_t la, lb;
            const char *x = next_word(&a, &la), *y = next_word(&b, &lb);
            cr_assert(la && lb, "%s: row %zu ends early", file, row);
            cr_expect(column == 0 || (la == lb && memcmp(x, y, la) == 0),
                      "%s: row %zu, column %zu: %.*s became %.*s", file, row, column, (int)la, x,
                      (int)lb, y);
        }
        a += strcspn(a, "\n") + 1;
        b += strcspn(b, "\n") + 1;
    }
}

static size_t devices(const struct graph *graph)
{
    size_t count = 0;
    for (size_t i = 0; i < graph->nnodes; i++)
        count += graph->nodes[i].kind == GRAPH_ACCEL || graph->nodes[i].kind == GRAPH_NIC;
    return count;
}

static void read_good(struct graph *graph, const char *path, const char *text)
{
    struct err err = ERR_INIT;
    cr_assert(smi_is(text, strlen(text)), "%s", path);
    int result = smi_read(graph, path, text, strlen(text), &err);
    cr_assert(result == 0 && !err.text, "%s", err.text);
    cr_assert_eq(graph_check(graph, path, &err), 0, "%s", err.text);
}

static void check_warnings(const struct graph *graph, const struct expected *e)
{
    char *all = mem_strdup("");
    for (size_t i = 0; i < graph->nwarnings; i++) {
        char *more = mem_printf("%s%s\n", all, graph->warnings[i]);
        free(all);
        all = more;
        cr_expect(strncmp(graph->warnings[i], e->file, strlen(e->file)) == 0, "%s", all);
    }
    cr_expect_eq(graph->nwarnings, e->nwarns, "%s: %zu warnings:\n%s", e->file, graph->nwarnings,
                 all);
    const char *says = e->warns ? e->warns : "";
    for (size_t length; *says; says += length + (says[length] == '|')) {
        length = strcspn(says, "|");
        char *part = mem_printf("%.*s", (int)length, says);
        cr_expect(strstr(all, part), "%s: no warning \"%s\" in:\n%s", e->file, part, all);
        free(part);
    }
    free(all);
}

static void check(const struct expected *e)
{
    struct graph graph, again;
    char *text = text_of(e->file);
    read_good(&graph, e->file, text);
    char *tree = tree_of(&graph), *links = links_of(&graph), *matrix = matrix_of(&graph);
    cr_expect_str_eq(tree, e->tree, "%s:\n%s", e->file, tree);
    cr_expect_str_eq(links, e->links ? e->links : "", "%s:\n%s", e->file, links);
    check_warnings(&graph, e);
    check_cells(e->file, text, matrix, devices(&graph));
    read_good(&again, "again", matrix);
    char *twice = matrix_of(&again);
    cr_expect_eq(devices(&again), devices(&graph));
    check_cells(e->file, matrix, twice, devices(&graph));
    free(text);
    free(tree);
    free(links);
    free(matrix);
    free(twice);
    graph_release(&graph);
    graph_release(&again);
}

#define TABLE(name, ...)                                                                           \
    Test(smi, name)                                                                                \
    {                                                                                              \
        check(&(struct expected){.file = #name, __VA_ARGS__});                                     \
    }

/* By the pattern, for the reports leave them out: e05 the NIC's cells; e06 GPU5 to GPU7 and mlx4_0;
 * e08 GPU5 to GPU15 and cells between NICs, with mlx5_8 and mlx5_9 on the second half's node; e09,
 * e11 cells between NICs (e09: the last two names); e10 GPU6, GPU7 and cells between NICs. e12*,
 * e13c and t* are tables of what is told in words; their lists of processors are made up. */
TABLE(e01, .tree = "numa1 (gpu0) (gpu1) (gpu2 [nic0 nic1])", .links = "4: gpu0-gpu1")
TABLE(e02,
      .tree = "numa0 ([[gpu0] [nic0]]); numa0.1 ([[gpu1] [nic1]]); numa0.2 ([[gpu2] [nic2]]); "
              "numa0.3 ([[gpu3] [nic3]])",
      .links = "4: gpu0-gpu1 gpu0-gpu2 gpu0-gpu3 gpu1-gpu2 gpu1-gpu3 gpu2-gpu3",
      .warns = "several NUMA nodes are named, the first is taken: GPU0, GPU1, GPU2, GPU3|SYS from "
               "others of the same NUMA node, which is taken for several: GPU1 (numa0.1), GPU2 "
               "(numa0.2), GPU3 (numa0.3)",
      .nwarns = 2)
TABLE(e03, .tree = "numa0 ([gpu0 gpu1 gpu2 gpu3]) (nic0); numa1 ([gpu4 gpu5 gpu6 gpu7])",
      .warns =
          "no NVLink, and no model is named: whether these 8 GPUs reach each other (P2P; consumer "
          "GPUs may not) is unknown|GPU without a local NIC (all are SYS): GPU4, GPU5, GPU6, GPU7",
      .nwarns = 2)
TABLE(e05, .tree = "numa0 (gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7 nic0)",
      .warns =
          "NUMA node -1 is none, node 0 is taken: NIC0|several NUMA nodes are named, the first "
          "is taken: GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7|no NVLink, and no model is "
          "named: whether these 8 GPUs reach each other (P2P; consumer GPUs may not) is unknown",
      .nwarns = 3)
TABLE(e06, .tree = "numa0 ([gpu0 gpu1] [gpu2 gpu3] mlx4_0); numa1 ([gpu4 gpu5] [gpu6 gpu7])",
      .warns = "no NUMA node is named, they are told apart by the lists of processors: GPU0, GPU1, "
               "GPU2, GPU3, GPU4, GPU5, GPU6, GPU7|no NVLink, and no model is named: whether these "
               "8 GPUs reach each other (P2P; consumer GPUs may not) is unknown|GPU without a "
               "local NIC (all are SYS): GPU4, GPU5, GPU6, GPU7",
      .nwarns = 3)
TABLE(
    e08,
    .tree = "numa0 ([[gpu0 gpu1 mlx5_0] [gpu2 gpu3 mlx5_1]]) ([[gpu4 gpu5 mlx5_2] [gpu6 gpu7 "
            "mlx5_3]]); numa1 ([[gpu8 gpu9 mlx5_4] [gpu10 gpu11 mlx5_5]]) ([[gpu12 gpu13 mlx5_6] "
            "[gpu14 gpu15 mlx5_7]]) ([mlx5_8 mlx5_9])",
    .links = "6: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
             "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0 gpu8-nvswitch0 gpu9-nvswitch0 "
             "gpu10-nvswitch0 gpu11-nvswitch0 gpu12-nvswitch0 gpu13-nvswitch0 gpu14-nvswitch0 "
             "gpu15-nvswitch0",
    .warns =
        "no NUMA node is named, they are told apart by the lists of processors: GPU0, GPU1, GPU2, "
        "GPU3, GPU4, GPU5, GPU6, GPU7, GPU8, GPU9, GPU10, GPU11, GPU12, GPU13, GPU14, GPU15",
    .nwarns = 1)
TABLE(
    e09,
    .tree =
        "numa0 ([gpu0 mlx5_0]); numa0.1 (gpu1) (gpu3); numa0.2 ([gpu2 mlx5_1]); numa1 ([gpu4 "
        "mlx5_4]); numa1.1 (gpu5) (gpu7); numa1.2 ([gpu6 mlx5_5]); numa6 (mlx5_6); numa7 (mlx5_7)",
    .links = "18: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
             "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0",
    .warns =
        "no NUMA node is named, further numbers are made up: NIC4 (numa6), NIC5 (numa7)|SYS from "
        "others of the same NUMA node, which is taken for several: GPU1 (numa0.1), GPU2 (numa0.2), "
        "GPU5 (numa1.1), GPU6 (numa1.2)|GPU without a local NIC (all are SYS): GPU1, GPU3, GPU5, "
        "GPU7|NIC without a local GPU, of storage or management perhaps: NIC4, NIC5",
    .nwarns = 4)
TABLE(e10,
      .tree = "numa3 ([[gpu0] [gpu1] [nic0] [nic1]]); numa1 ([[gpu2] [gpu3] [nic2] [nic3]]); numa7 "
              "([[gpu4] [gpu5] [nic4] [nic5]]); numa5 ([[gpu6] [gpu7] [nic6] [nic7]]); numa8 "
              "([nic8 nic9])",
      .links = "12: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
               "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0",
      .warns = "no NUMA node is named, further numbers are made up: NIC8 (numa8)|NIC without a "
               "local GPU, of storage or management perhaps: NIC8, NIC9",
      .nwarns = 2)
TABLE(e11, .tree = "numa1 (gpu0); numa0 ([gpu1 mlx5_0]); numa3 ([gpu2 mlx5_1]); numa2 (gpu3)",
      .links = "4: gpu0-gpu1 gpu0-gpu2 gpu0-gpu3 gpu1-gpu2 gpu1-gpu3 gpu2-gpu3",
      .warns = "GPU without a local NIC (all are SYS): GPU0, GPU3", .nwarns = 1)
TABLE(e12a, .tree = "numa0 (gpu0)",
      .warns = "no NUMA node is named, they are told apart by the lists of processors: GPU0",
      .nwarns = 1)
TABLE(e12b, .tree = "numa0 (gpu0 gpu1)",
      .warns =
          "several NUMA nodes are named, the first is taken: GPU0, GPU1|no NVLink, and no model is "
          "named: whether these 2 GPUs reach each other (P2P; consumer GPUs may not) is unknown",
      .nwarns = 2)
TABLE(e12d, .tree = "numa0 (gpu0) (gpu1)", .links = "3: gpu0-gpu1",
      .warns = "no NUMA node is named, they are told apart by the lists of processors: GPU0, GPU1",
      .nwarns = 1)
TABLE(e13a,
      .tree = "numa0 (gpu0); numa0.1 (gpu1); numa0.2 (gpu2); numa0.3 (gpu3); numa1 (gpu4); numa1.1 "
              "(gpu5); numa1.2 (gpu6 [nic0 nic1]); numa1.3 (gpu7)",
      .warns =
          "no NUMA node is named, they are told apart by the lists of processors: GPU0, GPU1, "
          "GPU2, GPU3, GPU4, GPU5, GPU6, GPU7|SYS from others of the same NUMA node, which is "
          "taken for several: GPU1 (numa0.1), GPU2 (numa0.2), GPU3 (numa0.3), GPU5 (numa1.1), GPU6 "
          "(numa1.2), GPU7 (numa1.3)|no NVLink, and no model is named: whether these 8 GPUs reach "
          "each other (P2P; consumer GPUs may not) is unknown|all of 8 GPUs are NODE or SYS: if "
          "their model has NVLink, this is maybe of `nvidia-smi topo -mp`, which hides it|GPU "
          "without a local NIC (all are SYS): GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU7",
      .nwarns = 5)
TABLE(e13c,
      .tree = "numa0 ([gpu0 nic0]) ([gpu1 nic1]) ([gpu2 nic2]) ([gpu3 nic3]); numa1 ([gpu4 nic4]) "
              "([gpu5 nic5]) ([gpu6 nic6]) ([gpu7 nic7])",
      .warns = "no NVLink, and no model is named: whether these 8 GPUs reach each other (P2P; "
               "consumer GPUs may not) is unknown|all of 8 GPUs are NODE or SYS: if their model "
               "has NVLink, this is maybe of `nvidia-smi topo -mp`, which hides it",
      .nwarns = 2)
TABLE(
    t01_dgx1,
    .tree =
        "numa0 ([gpu0 gpu1 nic0]) ([gpu2 gpu3 nic1]); numa1 ([gpu4 gpu5 nic2]) ([gpu6 gpu7 nic3])",
    .links = "1: gpu0-gpu1 gpu0-gpu2 2: gpu0-gpu3 gpu0-gpu4 gpu1-gpu2 1: gpu1-gpu3 2: gpu1-gpu5 "
             "gpu2-gpu3 1: gpu2-gpu6 gpu3-gpu7 gpu4-gpu5 gpu4-gpu6 2: gpu4-gpu7 gpu5-gpu6 1: "
             "gpu5-gpu7 2: gpu6-gpu7")
TABLE(t01_home,
      .tree = "numa0 (gpu0) (gpu1) ([gpu2 gpu3 nic0 nic1]); numa1 (gpu4) (gpu5) (gpu6) (gpu7)",
      .links = "2: gpu0-gpu1 gpu0-gpu2 1: gpu0-gpu3 gpu0-gpu4 gpu1-gpu2 2: gpu1-gpu3 1: gpu1-gpu5 "
               "gpu2-gpu3 2: gpu2-gpu6 gpu3-gpu7 gpu4-gpu5 gpu4-gpu6 1: gpu4-gpu7 gpu5-gpu6 2: "
               "gpu5-gpu7 1: gpu6-gpu7",
      .warns = "GPU without a local NIC (all are SYS): GPU4, GPU5, GPU6, GPU7", .nwarns = 1)
TABLE(t02_c4140, .tree = "numa0 (gpu0) (gpu1) (gpu2) (gpu3) (nic0)",
      .links = "2: gpu0-gpu1 gpu0-gpu2 gpu0-gpu3 gpu1-gpu2 gpu1-gpu3 gpu2-gpu3")
TABLE(t08_h100_6nics,
      .tree = "numa0 (gpu0) ([gpu1 nic0]) (gpu2) ([gpu3 nic3]) (nic1) (nic2); numa1 (gpu4) ([gpu5 "
              "nic4]) (gpu6) ([gpu7 nic5])",
      .links = "18: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
               "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0")
TABLE(t09_h200,
      .tree = "numa0 ([[gpu0] [gpu1] [nic0]]) ([[gpu2] [gpu3] [nic1]]); numa1 ([[gpu4] [gpu5] "
              "[nic2]]) ([[gpu6] [gpu7] [nic3]])",
      .links = "18: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
               "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0")
TABLE(t10_a4,
      .tree = "numa0 ([gpu0 gpu1 nic0 nic1]) ([gpu2 gpu3 nic2 nic3]); numa1 ([gpu4 gpu5 nic4 "
              "nic5]) ([gpu6 gpu7 nic6 nic7])",
      .links = "18: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
               "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0")
TABLE(t10_b200,
      .tree = "numa0 ([[gpu0] [nic0]]) ([[gpu1] [nic1]]) ([[gpu2] [nic2]]) ([[gpu3] [nic3]]) "
              "([nic8 nic9 nic10 nic11]); numa1 ([[gpu4] [nic4]]) ([[gpu5] [nic5]]) ([[gpu6] "
              "[nic6]]) ([[gpu7] [nic7]]) ([nic12 nic13 nic14 nic15])",
      .links = "18: gpu0-nvswitch0 gpu1-nvswitch0 gpu2-nvswitch0 gpu3-nvswitch0 gpu4-nvswitch0 "
               "gpu5-nvswitch0 gpu6-nvswitch0 gpu7-nvswitch0")
TABLE(t12_a40, .tree = "numa0 (gpu0) (gpu1) (gpu2) (gpu3); numa1 (gpu4) (gpu5) (gpu6) (gpu7)",
      .links = "4: gpu0-gpu1 gpu2-gpu3 gpu4-gpu5 gpu6-gpu7")
TABLE(t12_h100_pcie,
      .tree = "numa0 (gpu0) (gpu1) (gpu2) (gpu3) (nic0); numa1 (gpu4) (gpu5) (gpu6) (gpu7)",
      .links = "12: gpu0-gpu1 gpu2-gpu3 gpu4-gpu5 gpu6-gpu7",
      .warns = "GPU without a local NIC (all are SYS): GPU4, GPU5, GPU6, GPU7", .nwarns = 1)
TABLE(t13_4090_dual, .tree = "numa0 (gpu0) (gpu1) (gpu2) (gpu3); numa1 (gpu4) (gpu5) (gpu6) (gpu7)",
      .warns = "no NVLink, and no model is named: whether these 8 GPUs reach each other (P2P; "
               "consumer GPUs may not) is unknown|all of 8 GPUs are NODE or SYS: if their model "
               "has NVLink, this is maybe of `nvidia-smi topo -mp`, which hides it",
      .nwarns = 2)
TABLE(t14_4090_epyc, .tree = "numa0 (gpu0 gpu1) (gpu2 gpu3)",
      .warns = "no NVLink, and no model is named: whether these 4 GPUs reach each other (P2P; "
               "consumer GPUs may not) is unknown",
      .nwarns = 1)
TABLE(t15_a10, .tree = "numa0 (gpu0 gpu1 gpu2 gpu3 gpu4 gpu5)",
      .warns = "no NUMA node is named, they are told apart by the lists of processors: GPU0, GPU1, "
               "GPU2, GPU3, GPU4, GPU5|no NVLink, and no model is named: whether these 6 GPUs "
               "reach each other (P2P; consumer GPUs may not) is unknown",
      .nwarns = 2)
TABLE(t16_t4, .tree = "numa0 (gpu0); numa1 (gpu1) (gpu2) (gpu3)",
      .warns = "no NVLink, and no model is named: whether these 4 GPUs reach each other (P2P; "
               "consumer GPUs may not) is unknown",
      .nwarns = 1)
TABLE(t18_l40s, .tree = "numa0 (gpu0) (gpu1) (gpu2) (gpu3) (nic0)",
      .warns = "no NVLink, and no model is named: whether these 4 GPUs reach each other (P2P; "
               "consumer GPUs may not) is unknown",
      .nwarns = 1)
TABLE(t18_a100_far, .tree = "numa0 (gpu0) (gpu1); numa1 (nic0)",
      .warns = "no NVLink, and no model is named: whether these 2 GPUs reach each other (P2P; "
               "consumer GPUs may not) is unknown|GPU without a local NIC (all are SYS): GPU0, "
               "GPU1|NIC without a local GPU, of storage or management perhaps: NIC0",
      .nwarns = 3)

/* ---- faults ---- */

/* Reads a text that must be refused, with these parts (by |) in its sentences, `count` of them. */
static void refuse(const char *text, unsigned count, const char *says)
{
    struct err err = ERR_INIT;
    struct graph graph;
    cr_expect(smi_is(text, strlen(text)), "%s", text);
    cr_assert_eq(smi_read(&graph, "table", text, strlen(text), &err), -1, "%s", text);
    cr_expect(err.code == ERR_USAGE && err.count == count, "%u: %s", err.count, err.text);
    cr_expect(graph.nnodes == 0 && graph.nodes == NULL);
    for (size_t length; *says; says += length + (says[length] == '|')) {
        length = strcspn(says, "|");
        char *part = mem_printf("%.*s", (int)length, says);
        cr_expect(strstr(err.text, part), "\"%s\" is not in: %s", part, err.text);
        free(part);
    }
    err_release(&err);
}

static void refuse_file(const char *name, unsigned count, const char *says)
{
    char *text = text_of(name);
    refuse(text, count, says);
    free(text);
}

Test(smi, e12c)
{
    refuse_file("e12c", 1, "table:5: row GPU3, column NIC3: \"0-47\" is no code");
    refuse(" GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X PIX 0-7 0\nGPU1 PIX X 0-7\n", 1,
           "table:3: row GPU1 ends before its column NUMA Affinity");
    refuse(" GPU0 GPU1 CPU Affinity\nGPU0 X PIX SYS 0-7\nGPU1 PIX X 0-7\n", 1,
           "table:2: row GPU0 has 4 cells, the header 3 columns: \"0-7\" is over");
    refuse(" GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX\n", 1,
           "table:3: row GPU1 ends before its column GPU1");
    refuse(" GPU0 GPU1 NIC0\nGPU0 X PIX PIX\nGPU1 PIX X PIX\n", 1,
           "table:1: column NIC0 has no row");
    refuse(" GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nNIC0 PIX PIX\n", 1,
           "table:4: row NIC0 has no column");
    refuse(" GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\n", 2,
           "row GPU0 stands twice|column GPU1 has no row");
}

Test(smi, e12e)
{
    refuse_file("e12e_cells", 1,
                "table:4: row GPU2, column NIC0: \"NODENODE\" is several cells run into one");
    refuse_file("e12e_names", 1,
                "table:1: column 11, \"NIC8NIC9\", is two names run into one: NIC8 and NIC9");
    refuse(" GPU0 mlx5_0mlx5_1\nGPU0 X PIX PIX\nmlx5_0 PIX X PIX\nmlx5_1 PIX PIX X\n", 1,
           "column 2, \"mlx5_0mlx5_1\", is two names run into one: mlx5_0 and mlx5_1");
    refuse(" GPU0 GPU1\nGPU0 XNV4\nGPU1 NV4 X\n", 1,
           "row GPU0, column GPU0: \"XNV4\" is several cells run into one");
}

Test(smi, e13b)
{
    refuse_file(
        "e13b", 1,
        "table:1: this is the capability matrix of `nvidia-smi topo -p2p`|all pairs of GPUs: "
        "not supported; GNS: GPU not supported");
    refuse(" GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n", 1, "all pairs of GPUs: supported; OK");
    refuse(" GPU0 GPU1 GPU2\nGPU0 X OK CNS\nGPU1 OK X CNS\nGPU2 CNS CNS X\n", 1,
           "some pairs of GPUs: not supported; CNS: chipset not supported");
}

Test(smi, contradictions)
{
    refuse(" GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X\n", 1,
           "table:3: row GPU1, column GPU0: SYS, but row GPU0 (line 2), column GPU1: PIX");
    refuse(" GPU0 GPU1\nGPU0 PIX X\nGPU1 X PIX\n", 2, "row GPU0, column GPU0: PIX, but X stands");
    refuse(" GPU0 NIC0\nGPU0 X NV2\nNIC0 NV2 X\n", 2,
           "column NIC0: NV2, but only GPUs have NVLink");
    refuse(" GPU0 GPU1 Memory\nGPU0 X NV0\nGPU1 NV0 X\n", 3,
           "\"NV0\" is no code|Memory has no row");
    refuse(" GPU0 CPU Affinity\nGPU0 X all\n", 1, "column CPU Affinity: \"all\" is no list");
    refuse(" GPU0 CPU Infinity\nGPU0 X 0\n", 1, "\"CPU\" begins no column that is known");
    refuse(
        " GPU0 NIC0 NIC1\nGPU0 X PIX PIX\nNIC0 PIX X PIX\nNIC1 PIX PIX X\n\n NIC0: a\n NIC1: a\n",
        1, "two nodes are called a");
}

/* The nearer way is taken where cells cannot all be had, and the others are named. */
Test(smi, no_tree)
{
    const char *text = " GPU0 GPU1 NIC0\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nNIC0 SYS PIX X\n";
    struct graph graph;
    read_good(&graph, "no_tree", text);
    char *tree = tree_of(&graph);
    cr_expect_str_eq(tree, "numa0 ([gpu0 gpu1 nic0])");
    const char *says = "no_tree:2: row GPU0 has cells that no tree can have beside the others, the "
                       "nearer way is taken: NIC0 SYS (PIX by way of GPU1)";
    bool found = false;
    for (size_t i = 0; i < graph.nwarnings; i++)
        found |= strcmp(graph.warnings[i], says) == 0;
    cr_expect(found);
    free(tree);
    graph_release(&graph);
    /* the column of NUMA nodes says another than the cells */
    text = " GPU0 GPU1 NUMA Affinity\nGPU0 X PHB 0\nGPU1 PHB X 1\n";
    read_good(&graph, "column", text);
    cr_assert_eq(graph.nwarnings, 2);
    cr_expect_str_eq(graph.warnings[0],
                     "column:3: GPU1 is put at NUMA node 0, as its cells say, not "
                     "at 1, as its affinity says");
    graph_release(&graph);
}

/* A GPU with fewer links left: each pair has the fewer of two, as by a switch. */
Test(smi, fewer_links)
{
    struct graph graph;
    read_good(&graph, "fewer",
              " GPU0 GPU1 GPU2\nGPU0 X NV18 NV16\nGPU1 NV18 X NV16\nGPU2 NV16 NV16 X\n");
    char *links = links_of(&graph);
    cr_expect_str_eq(links, "18: gpu0-nvswitch0 gpu1-nvswitch0 16: gpu2-nvswitch0");
    free(links);
    graph_release(&graph);
    /* more than a GPU has, and not as by a switch */
    read_good(&graph, "odd", " GPU0 GPU1 GPU2\nGPU0 X NV18 NV4\nGPU1 NV18 X NV6\nGPU2 NV4 NV6 X\n");
    links = links_of(&graph);
    cr_expect_str_eq(links, "18: gpu0-gpu1 4: gpu0-gpu2 6: gpu1-gpu2");
    cr_assert_eq(graph.nwarnings, 2); /* the first: of no NUMA node */
    cr_expect_str_eq(
        graph.warnings[1],
        "odd:1: more NVLinks than the 18 that a GPU has, yet not as by a switch: GPU0, GPU1");
    free(links);
    graph_release(&graph);
}

Test(smi, not_a_table)
{
    static const char *const texts[] = {
        "", "GPU0", "GPU0 GPU1\n", "{\"GPU0\": 1}", "<system/>", "GPU0 X\nGPU1 PIX\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect_not(smi_is(texts[i], strlen(texts[i])), "%s", texts[i]);
    struct err err = ERR_INIT;
    struct graph graph;
    cr_expect_eq(smi_read(&graph, "empty", "", 0, &err), -1);
    cr_expect_str_eq(err.text, "empty:1: this is no table of `nvidia-smi topo -m`");
    err_release(&err);
    read_good(&graph, "soc",
              "> nvidia-smi\r\n\033[4mGPU0 GPU1\033[0m\r\nGPU0 X SOC\r\nGPU1 SOC X\r\n");
    cr_expect_eq(
        graph_near(&graph, graph_find(&graph, GRAPH_ACCEL, 0), graph_find(&graph, GRAPH_ACCEL, 1)),
        GRAPH_SYS);
    graph_release(&graph);
}

/* ---- nvidia-smi nvlink --status ---- */

static char *status_text(const char *name)
{
    char *path = mem_printf("../nvlink/%s", name), *text = text_of(path);
    free(path);
    return text;
}

/* Reads it, and again from the graph's own form: the same nodes, links and rates. */
static void read_status(struct graph *graph, const char *text)
{
    struct err err = ERR_INIT;
    struct graph again;
    char *own = NULL;
    size_t bytes = 0;
    cr_assert(smi_links_is(text, strlen(text)) && !smi_is(text, strlen(text)), "%s", text);
    cr_assert_eq(graph_parse(graph, "s", text, strlen(text), &err), 0, "%s", err.text);
    FILE *to = open_memstream(&own, &bytes);
    graph_write(graph, to);
    fclose(to);
    cr_assert_eq(graph_parse(&again, "own", own, bytes, &err), 0, "%s", err.text);
    cr_assert(again.nnodes == graph->nnodes && again.nlinks == graph->nlinks);
    for (size_t i = 0; i < again.nnodes; i++)
        cr_expect_str_eq(again.nodes[i].name, graph->nodes[i].name);
    for (size_t i = 0; i < again.nlinks; i++) {
        const struct graph_link *a = &again.links[i], *b = &graph->links[i];
        cr_expect(a->count == b->count && a->a == b->a && a->b == b->b);
        cr_expect_float_eq(a->GBps, b->GBps, 1e-9);
    }
    graph_release(&again);
    free(own);
}

/* C27: what works, what is broken, and what is normal. */
Test(smi, c27)
{
    static const struct {
        const char *file;
        unsigned gpus, links; /* of the first GPU, to nvswitch0 */
        double GBps;
        unsigned nwarns;
        const char *warns;
    } rows[] = {
        {"c27-v100", 1, 4, 4 * 25.781, 2,
         "s:1: gpu0 (Tesla V100-SXM2-16GB): a fault: 4 of 6 NVLinks are active (not: 3, 5): 67 % "
         "of the NVLink bandwidth, 103.1 of 154.7 GB/s per direction"},
        {"c27-a100-pcie", 1, 0, 0, 1,
         "s:1: gpu0 (NVIDIA A100-PCIE-40GB): all 12 NVLinks are inactive: normal for this card "
         "without an NVLink bridge, no fault"},
        {"unable", 2, 0, 0, 1,
         "s:2: gpu0 (NVIDIA A100 80GB PCIe): all NVLinks are inactive: normal for this card "
         "without an NVLink bridge, no fault"},
        {"h100", 4, 18, 18 * 26.562, 1, "s: where NVLinks lead is not said, one switch is taken"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct graph graph;
        char *text = status_text(rows[i].file);
        read_status(&graph, text);
        unsigned gpus = 0;
        for (size_t k = 0; k < graph.nnodes; k++)
            gpus += graph.nodes[k].kind == GRAPH_ACCEL;
        cr_expect_eq(gpus, rows[i].gpus, "%s", rows[i].file);
        cr_assert_eq(graph.nlinks, rows[i].links ? rows[i].gpus : 0);
        for (size_t k = 0; k < graph.nlinks; k++) {
            cr_expect_eq(graph.links[k].count, rows[i].links);
            cr_expect_float_eq(graph.links[k].GBps, rows[i].GBps, 1e-9);
        }
        cr_assert_eq(graph.nwarnings, rows[i].nwarns, "%s", rows[i].file);
        cr_expect(strncmp(graph.warnings[0], rows[i].warns, strlen(rows[i].warns)) == 0, "%s",
                  graph.warnings[0]);
        graph_release(&graph);
        free(text);
    }
}

/* Which module it is decides what links that are all down mean; rates that differ are a fault. */
Test(smi, status_of_links)
{
    static const struct {
        const char *text, *warns;
    } rows[] = {
        {"GPU 0: Tesla V100-SXM2-16GB\n Link 0: <inactive>\n",
         "all 1 NVLinks are inactive: a fault: an SXM module has NVLink, 0 %"},
        {"GPU 7: NVIDIA H100 80GB HBM3 (UUID: x)\r\n Link 0: <inactive>\r\n",
         "gpu7 (NVIDIA H100 80GB HBM3): all 1 NVLinks are inactive: normal for a PCIe card "
         "without an NVLink bridge, a fault for an SXM module"},
        {"GPU 0: A\n Link 0: 25 GB/s\n Link 1: 12.5 GB/s\n",
         "its NVLinks are not of one rate, 12.5 to 25 GB/s"},
        {"GPU 0: A\n Link 2: 25 GB/s\n Link 4: <disabled>\n", "1 of 2 NVLinks are active (not: 4)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct graph graph;
        read_status(&graph, rows[i].text);
        cr_expect(strstr(graph.warnings[0], rows[i].warns), "%s", graph.warnings[0]);
        graph_release(&graph);
    }
    struct graph graph;
    read_status(&graph, "GPU 0: NVIDIA L40S (UUID: GPU-1)\nGPU 3: NVIDIA L40S (UUID: GPU-2)\n");
    cr_expect(graph.nwarnings == 0 && graph.nnodes == 2 && graph.nlinks == 0);
    graph_release(&graph);
}

Test(smi, status_refused)
{
    static const struct {
        const char *text;
        unsigned count;
        const char *says;
    } rows[] = {
        {"GPU 0: A\n Link 0: 0 GB/s\n", 1, "s:2: link 0: \"0 GB/s\" is neither a rate such as"},
        {"GPU 0: A\n Link 0: 25 Gb/s\n Link 1: nan GB/s\n", 2, "s:3: link 1: \"nan GB/s\""},
        {"GPU 0: A\n Link 0: 1.2.3 GB/s\n Link 3: 0x19 GB/s\n Link 1: 1e999 GB/s\n", 3,
         "s:3: link 3: \"0x19 GB/s\" is neither"},
        {"GPU 0: A\n Link 0: 25 GB/s\n Link 0: 25 GB/s\n", 1, "s:3: link 0 follows link 0"},
        {"GPU 1: A\nGPU 0: A\n Link 0: 25 GB/s\n", 2, "s:2: GPU 0 follows GPU 1"},
        {" Link 0: 25 GB/s\nGPU 0: A\n", 1, "s:1: a link before any GPU"},
        {"GPU 0: A\nhello\n", 1, "s:2: \"hello\" is neither a GPU"},
        {"GPU 0: (UUID: x)\n", 1, "s:1: GPU 0 has no model's name"},
        {"GPU 99999999999999999999: A\n", 1, "s:1: the number of a GPU is above 999999"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = ERR_INIT;
        struct graph graph;
        cr_assert_eq(smi_links_read(&graph, "s", rows[i].text, strlen(rows[i].text), &err), -1);
        cr_expect(err.count == rows[i].count && err.code == ERR_USAGE, "%u: %s", err.count,
                  err.text);
        cr_expect(strstr(err.text, rows[i].says), "%s", err.text);
        cr_expect(graph.nnodes == 0 && graph.nodes == NULL);
        err_release(&err);
    }
    cr_expect_not(smi_links_is("", 0));
    cr_expect_not(smi_links_is("GPU0 GPU1\n", 10));
    cr_expect_not(smi_links_is("{\"GPU 0: A\": 1}\n", 17));
}
