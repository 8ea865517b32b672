/* SPDX-License-Identifier: Apache-2.0
 * Feeds damaged files to the parsers of models, topologies, schedules and training frameworks'
 * configurations. Seeds are every shipped file, the machines of the tests (tables and NVLink status
 * of nvidia-smi, NCCL's files), their configurations, every topology as a file of ASTRA-sim, and
 * every algorithm written as an MSCCL file and as GOAL; an input is a seed with a few mutations.
 * What is accepted must make sense (a schedule: be right, as the oracle says, and survive writing;
 * a GOAL: run to its end, or wait in a circle; a configuration: become a strategy, or sentences),
 * what is refused must come with sentences that name the file. Inputs depend on (seed, iteration)
 * alone, so that --only repeats one. The parser runs in a child process: a crash or a hang names
 * its iteration. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "algo/algo.h"
#include "base/doc.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "base/ship.h"
#include "net/astra.h"
#include "net/goal_run.h"
#include "net/nccl_xml.h"
#include "net/network.h"
#include "net/smi.h"
#include "net/smi_links.h"
#include "net/topo.h"
#include "net/topo_parts.h"
#include "sched/copy.h"
#include "sched/goal.h"
#include "sched/msccl.h"
#include "sched/verify.h"
#include "tests/fuzz/fuzz.h"
#include "train/config.h"
#include "train/model.h"

enum { HANG_S = 20 }; /* an input that takes longer is a fault */

static const struct opts_row options[] =
    FUZZ_OPTIONS("this iteration alone; its input is written to stdout");

/* ---- seeds ---- */

enum seed_kind {
    SEED_MODEL,
    SEED_TOPOLOGY,
    SEED_SCHEDULE,
    SEED_TABLE,
    SEED_NCCL,
    SEED_LINKS,
    SEED_ASTRA,
    SEED_GOAL,
    SEED_CONFIG /* + row of `configs`: the last */
};

/* Configurations of tests/cases/configs: by their suffix, and the name that the parser is told. */
static const struct {
    const char *suffix, *name;
    const struct config_format *format;
} configs[] = {{".sh", "--megatron-args", &config_megatron},
               {".json", "fuzz.json", &config_deepspeed},
               {".toml", "fuzz.toml", &config_torchtitan},
               {".flags", "--torchtitan", &config_torchtitan},
               {".yaml", "fuzz.yaml", &config_accelerate}};
enum { NCONFIG_KINDS = sizeof configs / sizeof *configs };

struct seed {
    char *text;
    size_t bytes;
    unsigned kind; /* enum seed_kind */
};

struct seeds {
    struct seed *items;
    size_t count, cap;
    struct accel_table table;
    struct framework_table frameworks;
    struct topo topo; /* what configurations are tried on */
    struct model model;
};

/* Takes the text. */
static void add_seed(struct seeds *seeds, char *text, unsigned kind)
{
    MEM_GROW(seeds->items, seeds->count, seeds->cap);
    seeds->items[seeds->count++] = (struct seed){text, strlen(text), kind};
}

static void add_folder(struct seeds *seeds, const char *folder, enum seed_kind kind,
                       struct err *err)
{
    char **names = ship_names(folder, ".json", NULL);
    for (char **name = names; *name; name++) {
        char *path = ship_find(folder, *name, ".json");
        struct doc doc;
        if (path && doc_read(&doc, path, err) == 0) {
            add_seed(seeds, mem_strdup(doc.text), kind);
            doc_release(&doc);
        }
        free(path);
    }
    ship_names_free(names);
}

static char *schedule_text(const struct sched *sched, bool plain, struct err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    msccl_write(to, sched, &(struct msccl_opts){.plain = plain}, err);
    fclose(to);
    return text;
}

/* Every algorithm on a few ranks, with our attributes in the file and without. */
static void add_schedules(struct seeds *seeds, struct err *err)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        for (uint32_t plain = 0; plain < 2 && algo_runs_on_ranks(&table[a]); plain++) {
            struct algo_args args = {.nranks = 3 - plain, .channels = 1 + plain, .parts = 1};
            struct sched *sched = algo_build(&table[a], &args, false, err);
            if (sched) add_seed(seeds, schedule_text(sched, plain, err), SEED_SCHEDULE);
            sched_free(sched);
        }
    }
}

static char *goal_text(const struct sched *sched, struct err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    struct linked *linked = link_sched(sched, &(struct link_opts){.mode = WIRE_STAGED}, err);
    if (!linked) return NULL;
    FILE *to = open_memstream(&text, &bytes);
    struct goal_opts opts = {.block_bytes = 4096, .reduce_ns_per_byte = 1, .copy_ns_per_byte = 1};
    goal_write(to, linked, &opts, err);
    fclose(to);
    linked_free(linked);
    return text;
}

/* Every algorithm whose blocks are equal and that needs no agents, as GOAL. */
static void add_goals(struct seeds *seeds, struct err *err)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        struct err why = ERR_INIT;
        struct algo_args args = {.nranks = 2 + (uint32_t)a % 2, .channels = 1, .parts = 1};
        struct sched *sched = algo_build(&table[a], &args, false, &why);
        char *text = sched && sched->nagents == 0 ? goal_text(sched, err) : NULL;
        if (text) add_seed(seeds, text, SEED_GOAL);
        sched_free(sched);
        err_release(&why);
    }
}

/* Every shipped topology that a file of ASTRA-sim has words for, 4 times. */
static void add_astras(struct seeds *seeds)
{
    static const struct astra_latency latency = {1000, 5000};
    char **names = ship_names("topologies", ".json", NULL);
    for (char **name = names; *name; name++) {
        struct err why = ERR_INIT;
        struct topo topo;
        struct astra astra;
        char *many = mem_printf("%sx4", *name), *text = NULL;
        size_t bytes = 0;
        if (topo_read(&topo, &seeds->table, many, 0, 0, &why) == 0 &&
            astra_from_topo(&astra, &topo, &latency, &why) == 0) {
            FILE *to = open_memstream(&text, &bytes);
            astra_write(&astra, to);
            fclose(to);
            add_seed(seeds, text, SEED_ASTRA);
            astra_release(&astra);
        }
        topo_release(&topo);
        err_release(&why);
        free(many);
    }
    ship_names_free(names);
}

static void add_texts(struct seeds *seeds, const char *folder, const char *suffix, unsigned kind,
                      struct err *err)
{
    char **names = ship_names(folder, suffix, NULL);
    if (!*names)
        err_add(err, ERR_FAILED, "no %s in %s: run it in the source folder", suffix, folder);
    for (char **name = names; *name; name++) {
        char *path = ship_find(folder, *name, suffix), *text = NULL;
        size_t room = 0;
        FILE *from = path ? fopen(path, "rb") : NULL;
        if (from && getdelim(&text, &room, '\0', from) > 0) {
            add_seed(seeds, mem_strdup(text), kind);
        }
        if (from) fclose(from);
        free(text);
        free(path);
    }
    ship_names_free(names);
}

/* Configurations, ten times each: they are few beside the other files. */
static void add_configs(struct seeds *seeds, struct err *err)
{
    if (framework_read(&seeds->frameworks, NULL, err) ||
        topo_read(&seeds->topo, &seeds->table, "dgx2x8", 0, 0, err) ||
        model_read(&seeds->model, "llama3-8b", err))
        return;
    for (unsigned i = 0; i < NCONFIG_KINDS; i++)
        for (int times = 0; times < 10; times++)
            add_texts(seeds, "tests/cases/configs", configs[i].suffix, SEED_CONFIG + i, err);
}

/* ---- mutations: each works on a NUL-ended text and returns a new one ---- */

typedef char *mutate_fn(const char *text, size_t bytes, struct rng *rng, const struct seeds *seeds);

static size_t below(struct rng *rng, size_t n)
{
    return n ? (size_t)rng_below(rng, n) : 0;
}

/* text[0, from) + middle + text[to, bytes) */
static char *splice(const char *text, size_t bytes, size_t from, size_t to, const char *middle)
{
    return mem_printf("%.*s%s%.*s", (int)from, text, middle, (int)(bytes - to), text + to);
}

static char *flip_byte(const char *text, size_t bytes, struct rng *rng, const struct seeds *seeds)
{
    (void)seeds;
    char *copy = mem_strdup(text);
    if (bytes) {
        copy[below(rng, bytes)] ^= (char)(1 << below(rng, 8));
    }
    return copy;
}

static char *drop_range(const char *text, size_t bytes, struct rng *rng, const struct seeds *seeds)
{
    (void)seeds;
    size_t from = below(rng, bytes), length = below(rng, 40);
    size_t to = from + length < bytes ? from + length : bytes;
    return splice(text, bytes, from, to, "");
}

static char *drop_line(const char *text, size_t bytes, struct rng *rng, const struct seeds *seeds)
{
    (void)seeds;
    size_t from = below(rng, bytes);
    from += strcspn(text + from, "\n");
    size_t length = from < bytes ? strcspn(text + from + 1, "\n") + 1 : 0;
    return splice(text, bytes, from, from + length, "");
}

/* Puts a word in the place of an attribute's value. */
static char *put_attribute(const char *text, size_t bytes, struct rng *rng, const char *word)
{
    size_t from = below(rng, bytes);
    const char *quote = strstr(text + from, "=\"");
    from = quote ? (size_t)(quote - text) + 2 : bytes;
    return splice(text, bytes, from, from + strcspn(text + from, "\""), word);
}

/* Puts a word in the place of a value (what stands behind one of `marks`). */
static char *put_value(const char *text, size_t bytes, struct rng *rng, const char *marks,
                       const char *word)
{
    size_t from = below(rng, bytes);
    from += strcspn(text + from, marks);
    from += from < bytes;
    size_t space = strspn(text + from, " \n");
    size_t to = from + space + strcspn(text + from + space, ",]}\n");
    return splice(text, bytes, from, to, word);
}

/* Puts a word in the place of one between blanks. */
static char *put_word(const char *text, size_t bytes, struct rng *rng, const char *word)
{
    size_t from = below(rng, bytes);
    from += strcspn(text + from, " \n");
    from += from < bytes;
    return splice(text, bytes, from, from + strcspn(text + from, " \n"), word);
}

/* Values of configurations: in TOML behind "=", in a command line between blanks. */
static char *put_config(const char *text, size_t bytes, struct rng *rng)
{
    static const char *const words[] = {
        "0",    "1",     "2",      "3",    "-1",    "8",       "1.5",        "1e9",       "auto",
        "true", "False", "'no'",   "\"\"", "\"",    "'",       "[]",         "[1, 2]",    "[",
        "]",    "{}",    "&a",     "|",    "- a",   "#",       "\\",         "$A",        "${A:-4}",
        "none", "full",  "\"op\"", "fsdp", "never", "rowwise", "4294967295", "2147483647"};
    const char *word = words[below(rng, sizeof words / sizeof *words)];
    if (strstr(text, "]\n") && strstr(text, " = ")) return put_value(text, bytes, rng, "=[,", word);
    if (strncmp(text, "--", 2) == 0 || strstr(text, "torchrun"))
        return put_word(text, bytes, rng, word);
    return put_value(text, bytes, rng, ":,[", word);
}

static bool is_config(const char *text)
{
    return strstr(text, "torchrun") || strstr(text, "parallel") || strstr(text, "zero_opt") ||
           strstr(text, "fsdp_");
}

static char *edge_value(const char *text, size_t bytes, struct rng *rng, const struct seeds *seeds)
{
    (void)seeds;
    static const char *const words[] = {"0",
                                        "1",
                                        "2",
                                        "3",
                                        "7",
                                        "-1",
                                        "0.5",
                                        "1e-300",
                                        "1e308",
                                        "1e999",
                                        "65536",
                                        "1000000",
                                        "2147483648",
                                        "4294967296",
                                        "9223372036854775807",
                                        "99999999999999999999",
                                        "true",
                                        "false",
                                        "null",
                                        "[]",
                                        "{}",
                                        "[1,2]",
                                        "\"\"",
                                        "\"sliding_attention\"",
                                        "\"llama\"",
                                        "\"t5\"",
                                        "\"deepseek_v3\"",
                                        "\"\\u0000\"",
                                        "\"\\ud800\"",
                                        "{\"model_type\":\"llama\"}"};
    static const char *const xml_words[] = {
        "0",         "1",         "2",          "3",          "4",          "6",        "-1", "-2",
        "",          "1000000",   "2147483647", "4294967296", "1073741824", "s",        "r",  "rcs",
        "rrc",       "rrs",       "rrcs",       "cpy",        "re",         "nop",      "i",  "o",
        "allreduce", "allgather", "reduce",     "broadcast",  "&#10;",      "alltoallv"};
    static const char *const bus_words[] = {
        "0x030200",     "0x068000",        "0x020000", "0x060400", "0x068001", "2.5 GT/s",
        "0000:06:00.0", "fffffff:ffff:ff", "ffff:0:0", ",,,,f",    "0-7",      "1e999"};
    static const char *const goal_words[] = {
        "0",           "1", "2",  "0b",       "4294967296",  "18446744073709551615",  "l0",
        "l1",          "}", "{",  "requires", "irequires",   "send 1b to 0",          "rank 0 {",
        "recv 1 from", "#", "/*", "tag 7",    "nic 9 cpu 3", "calc 99999999999999999"};
    if (is_config(text)) return put_config(text, bytes, rng);
    if (strncmp(text, "num_ranks", 9) == 0)
        return put_word(text, bytes, rng,
                        goal_words[below(rng, sizeof goal_words / sizeof *goal_words)]);
    if (strncmp(text, "<system", 7) == 0 && below(rng, 2)) {
        return put_attribute(text, bytes, rng,
                             bus_words[below(rng, sizeof bus_words / sizeof *bus_words)]);
    }
    if (*text == '<')
        return put_attribute(text, bytes, rng,
                             xml_words[below(rng, sizeof xml_words / sizeof *xml_words)]);
    return put_value(text, bytes, rng, ":,[", words[below(rng, sizeof words / sizeof *words)]);
}

/* A stretch of some seed, from line to line, put in between. */
static char *foreign_lines(const char *text, size_t bytes, struct rng *rng,
                           const struct seeds *seeds)
{
    const struct seed *other = &seeds->items[below(rng, seeds->count)];
    size_t from = below(rng, other->bytes);
    from += strcspn(other->text + from, "\n");
    size_t length = below(rng, 200);
    length = from + length < other->bytes ? length : other->bytes - from;
    char *middle = mem_printf("%.*s", (int)length, other->text + from);
    size_t at = below(rng, bytes);
    at += strcspn(text + at, "\n");
    char *result = splice(text, bytes, at, at, middle);
    free(middle);
    return result;
}

static char *deepen(const char *text, size_t bytes, struct rng *rng, const struct seeds *seeds)
{
    (void)seeds;
    size_t depth = (size_t)1 << below(rng, 13), at = below(rng, bytes);
    const char *unit = *text == '<' ? "<a>" : below(rng, 2) ? "[" : "{";
    size_t length = strlen(unit);
    char *middle = mem_calloc(depth * length + 1, 1);
    for (size_t i = 0; i < depth; i++) {
        memcpy(middle + i * length, unit, length);
    }
    char *result = splice(text, bytes, at, at, middle);
    free(middle);
    return result;
}

/* The likely ones stand more than once. */
static mutate_fn *const mutations[] = {edge_value, edge_value,    edge_value, drop_line, drop_line,
                                       drop_range, foreign_lines, flip_byte,  deepen};

static char *make_input(const struct seed *seed, struct rng *rng, const struct seeds *seeds)
{
    char *text = mem_strdup(seed->text);
    for (size_t i = 1 + below(rng, 4); i > 0; i--) {
        mutate_fn *mutate = mutations[below(rng, sizeof mutations / sizeof *mutations)];
        char *next = mutate(text, strlen(text), rng, seeds);
        free(text);
        text = next;
    }
    return text;
}

/* ---- what must hold ---- */

static int complain(const char *what, const char *text)
{
    fprintf(stderr, "fuzz_parsers: %s: %.300s\n", what, text);
    return 1;
}

/* Sentences of a refusal: at least one, each naming the file, none endless. */
static int check_refusal(const struct err *err, const char *file)
{
    if (err->count == 0 || err->code != ERR_USAGE) {
        return complain("refused without a sentence", err->text ? err->text : "");
    }
    for (const char *line = err->text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, file, strlen(file)) != 0) {
            return complain("a sentence without the file", line);
        }
        if (strcspn(line, "\n") > 3000) {
            return complain("a sentence without end", line);
        }
    }
    return 0;
}

static int check_model(const struct model *m)
{
    uint64_t sum = 0, layers = 0;
    for (int part = 0; part < MODEL_PARTS; part++) {
        sum += m->once[part];
    }
    for (size_t i = 0; i < m->nkinds; i++) {
        sum += m->kinds[i].copies * model_kind_params(&m->kinds[i]);
        layers += m->kinds[i].copies;
    }
    if (sum != m->params || layers != m->layers || m->active > m->params) {
        return complain("counts do not add up", m->family);
    }
    return m->heads % m->kv_heads || m->head_dim == 0 ? complain("heads", m->family) : 0;
}

static int check_topo(const struct topo *t)
{
    double nic_Bps = topo_nic_Bps(t);
    if (topo_gpus(t) == 0 || topo_domain(t) > topo_gpus(t) || topo_domain(t) == 0) {
        return complain("no accelerators", t->name ? t->name : "");
    }
    if (!(nic_Bps >= 0 && isfinite(nic_Bps)) || !(t->oversubscribed >= 1)) {
        return complain("a network that cannot be", t->name ? t->name : "");
    }
    char *about = topo_describe(t);
    int bad = *about ? 0 : complain("nothing to say", t->name);
    free(about);
    return bad;
}

static int try_model(const char *text, struct err *err)
{
    struct model model;
    int bad = model_parse(&model, "fuzz.json", text, strlen(text), err);
    bad = bad < 0 ? check_refusal(err, "fuzz.json:") : check_model(&model);
    model_release(&model);
    return bad;
}

/* Hops of a way join, and links are what links must be. */
static int check_way(const struct network *network, uint32_t from, uint32_t to, uint32_t channel)
{
    uint32_t path[NETWORK_HOPS];
    uint32_t hops = network_route(network, from, to, channel, path);
    if (hops > NETWORK_HOPS || (hops == 0) != (from == to)) return complain("a way", "its length");
    uint64_t at = 0;
    for (uint32_t i = 0; i < hops; i++) {
        struct net_link link = network_link(network, path[i]);
        uint64_t start, end;
        network_ends(network, path[i], &start, &end);
        if (path[i] >= network_links(network) || (i > 0 && start != at)) {
            return complain("a way", "its hops do not join");
        }
        if (!(link.capacity_Bps > 0 && isfinite(link.capacity_Bps)) || link.kind >= NNET_KINDS) {
            return complain("a way", "a link of no capacity");
        }
        at = end;
    }
    return 0;
}

/* The engine's view of it, with its faults: either a sentence, or ways between all ends. */
static int try_network(const struct topo *topo)
{
    struct err why = ERR_INIT;
    struct net_rate rates[NNET_KINDS];
    for (int kind = 0; kind < NNET_KINDS; kind++) {
        rates[kind] = (struct net_rate){.efficiency = 0.5, .latency_ps = 1000};
    }
    if (topo_check_dims(topo, &why) < 0 || topo_gpus(topo) > INT32_MAX || topo->full_host > 4096 ||
        topo->nics > 4096) { /* larger ones take memory alone */
        err_release(&why);
        return 0;
    }
    struct network *network = network_build(topo, rates, NET_PXN, NULL, &why);
    int bad = (network == NULL) != (why.count > 0) ? complain("no network, no sentence", "") : 0;
    uint32_t n = network ? network_ranks(network) : 0;
    for (uint32_t i = 0; i < 24 && i < n && !bad; i++) {
        uint32_t from = (uint32_t)((uint64_t)i * 2654435761u % n);
        bad = check_way(network, from, i, i) || check_way(network, n - 1 - i, from, i);
    }
    network_free(network);
    err_release(&why);
    return bad;
}

static int try_topology(const char *text, const struct accel_table *table, struct err *err)
{
    struct doc doc;
    struct topo topo = {0};
    if (doc_parse(&doc, "fuzz.json", text, strlen(text), err) < 0) {
        return check_refusal(err, "fuzz.json:");
    }
    int bad = topo_parse(&topo, &doc, table, err);
    bad = bad < 0 ? check_refusal(err, "fuzz.json:") : check_topo(&topo) || try_network(&topo);
    topo_release(&topo);
    doc_release(&doc);
    return bad;
}

/* Written and read again it is the same. */
static int check_written(const struct sched *sched)
{
    struct err err = ERR_INIT;
    char *text = schedule_text(sched, false, &err);
    struct sched *again = msccl_parse("again.xml", text, strlen(text), &err);
    int bad = !again || !sched_equal(sched, again, &err)
                  ? complain("not the same again", err.text ? err.text : "")
                  : 0;
    err_release(&err);
    sched_free(again);
    free(text);
    return bad;
}

/* The oracle says of both placements what the verifier says, and one at least is right. */
static int check_schedule(const struct sched *sched)
{
    bool any = false;
    for (int in_place = 0; in_place <= coll_in_place(sched->coll); in_place++) {
        struct err why = ERR_INIT;
        bool proved = verify_sched(sched, in_place, &why) == 0;
        any |= proved;
        err_release(&why);
        if (proved && !verify_oracle(sched, in_place)) {
            return complain("accepted, but the result is wrong", sched->name);
        }
    }
    return any ? check_written(sched) : complain("right in no placement", sched->name);
}

static int try_schedule(const char *text, struct err *err)
{
    struct sched *sched = msccl_parse("fuzz.xml", text, strlen(text), err);
    int bad = sched ? check_schedule(sched) : check_refusal(err, "fuzz.xml:");
    if (!sched && err->count != 1) bad = complain("more than one sentence", err->text);
    sched_free(sched);
    return bad;
}

/* A graph without faults, or with faults that are told; rates are rates, devices hang below a NUMA
 * node, warnings name the file. */
static int check_graph(const struct graph *graph, const char *file, struct err *err)
{
    if (graph_check(graph, file, err) < 0) return check_refusal(err, file);
    for (size_t i = 0; i < graph->nnodes; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (!(node->up_GBps >= 0 && isfinite(node->up_GBps) && node->rate_Gbps >= 0)) {
            return complain("a rate that cannot be", node->name);
        }
        bool device = node->kind == GRAPH_ACCEL || node->kind == GRAPH_NIC;
        if (device && graph_numa(graph, (uint32_t)i) == GRAPH_NONE) {
            return complain("a device below nothing", node->name);
        }
    }
    for (size_t i = 0; i < graph->nwarnings; i++) {
        if (strncmp(graph->warnings[i], file, strlen(file)) != 0) {
            return complain("a warning without the file", graph->warnings[i]);
        }
    }
    return 0;
}

static int try_nccl(const char *text, struct err *err)
{
    struct graph graph;
    int bad = nccl_xml_read(&graph, "fuzz.xml", text, strlen(text), err);
    bad = bad < 0 ? check_refusal(err, "fuzz.xml:") : check_graph(&graph, "fuzz.xml", err);
    graph_release(&graph);
    return bad;
}

static char *matrix_text(const struct graph *graph)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    graph_matrix(graph, to);
    fclose(to);
    return text;
}

/* The matrix of what was read, read again, is the same matrix. */
static int try_table(const char *text, struct err *err)
{
    struct graph graph, again;
    if (smi_read(&graph, "fuzz.txt", text, strlen(text), err) < 0) {
        return check_refusal(err, "fuzz.txt:");
    }
    char *once = matrix_text(&graph), *twice = NULL;
    struct err refused = ERR_INIT;
    int bad = smi_read(&again, "again", once, strlen(once), &refused);
    bad = bad < 0 ? complain("refused again", refused.text) : 0;
    if (!bad) twice = matrix_text(&again);
    if (!bad && strcmp(once, twice) != 0) bad = complain("not the same again", once);
    err_release(&refused);
    graph_release(&graph);
    graph_release(&again);
    free(once);
    free(twice);
    return bad;
}

/* What was read is written in the graph's own form, and read again as the same text. */
static int try_links(const char *text, struct err *err)
{
    struct graph graph, again;
    if (smi_links_read(&graph, "fuzz.txt", text, strlen(text), err) < 0)
        return check_refusal(err, "fuzz.txt:");
    char *texts[2] = {NULL, NULL};
    size_t bytes;
    FILE *to = open_memstream(&texts[0], &bytes);
    graph_write(&graph, to);
    fclose(to);
    struct err refused = ERR_INIT;
    int bad = graph_parse(&again, "again", texts[0], bytes, &refused);
    bad = bad < 0 ? complain("refused again", refused.text) : 0;
    if (!bad) {
        to = open_memstream(&texts[1], &bytes);
        graph_write(&again, to);
        fclose(to);
        if (strcmp(texts[0], texts[1]) != 0) bad = complain("not the same again", texts[0]);
        graph_release(&again);
    }
    err_release(&refused);
    graph_release(&graph);
    free(texts[0]);
    free(texts[1]);
    return bad;
}

/* What was read is written and read again as the same text; as a topology it makes sense. */
static int try_astra(const char *text, const struct accel_table *table, struct err *err)
{
    struct astra astra, again;
    struct topo topo;
    if (astra_parse(&astra, "fuzz.yml", text, strlen(text), err) < 0)
        return check_refusal(err, "fuzz.yml:");
    char *texts[2] = {NULL, NULL};
    size_t bytes;
    FILE *to = open_memstream(&texts[0], &bytes);
    astra_write(&astra, to);
    fclose(to);
    int bad = astra_parse(&again, "again", texts[0], bytes, err) < 0
                  ? complain("refused again", err->text)
                  : 0;
    if (!bad) {
        to = open_memstream(&texts[1], &bytes);
        astra_write(&again, to);
        fclose(to);
        if (strcmp(texts[0], texts[1]) != 0) bad = complain("not the same again", texts[0]);
        astra_release(&again);
        int none = astra_to_topo(&astra, "fuzz.yml", &table->rows[0], &topo, err);
        if (!bad) bad = none ? check_refusal(err, "fuzz.yml:") : check_topo(&topo);
        if (!none) topo_release(&topo);
    }
    astra_release(&astra);
    free(texts[0]);
    free(texts[1]);
    return bad;
}

/* What was read is timed, unless it is longer than time; every byte passes two links. */
static int try_goal(const char *text, struct err *err)
{
    struct goal goal;
    struct goal_result result;
    if (goal_read(&goal, "fuzz.goal", text, strlen(text), err) < 0)
        return check_refusal(err, "fuzz.goal:");
    int bad = 0;
    if (goal.nranks <= 64) { /* others differ in the network's size alone */
        struct err why = ERR_INIT;
        struct network *network = network_switch(goal.nranks, 50e9, 5000000);
        bool ran = goal_run(&goal, network, 100, &result, &why) == 0;
        if (!ran && !strstr(why.text, "in a circle") && !strstr(why.text, "passes 213 days"))
            bad = complain("not timed", why.text);
        if (ran) goal_result_release(&result);
        err_release(&why);
        network_free(network);
    }
    goal_release(&goal);
    return bad;
}

/* What was read becomes a strategy on a cluster, and a shape a model, or a sentence says why not.
 */
static int try_config(const char *text, const struct seeds *seeds, unsigned row, struct err *err)
{
    struct config c = {0};
    struct strategy strategy = {0};
    struct err why = ERR_INIT;
    if (config_parse(&c, configs[row].format, configs[row].name, text, err) < 0) {
        config_release(&c);
        return check_refusal(err, configs[row].name);
    }
    int bad = 0;
    char *note = config_note(&c, true);
    c.args.framework = configs[row].format->framework;
    int none =
        strategy_make(&strategy, &c.args, &seeds->topo, &seeds->model, &seeds->frameworks, &why);
    if (none != (why.count ? -1 : 0)) bad = complain("no strategy, no sentence", text);
    if (!none && strategy.nlayout == 0) bad = complain("no layers", text);
    uint32_t before = why.count;
    if (c.has_shape && model_build(&c.shape, &why) < 0 && why.count == before)
        bad = complain("no model, no sentence", text);
    free(note);
    strategy_release(&strategy);
    err_release(&why);
    config_release(&c);
    return bad;
}

/* Runs one iteration; *accepted is added to. Returns 1 if something does not hold. */
static int iterate(const struct seeds *seeds, uint64_t seed, uint64_t iteration, bool show,
                   uint64_t *accepted)
{
    struct rng rng;
    rng_init(&rng, rng_mix(seed) ^ iteration);
    const struct seed *chosen = &seeds->items[below(&rng, seeds->count)];
    char *text = make_input(chosen, &rng, seeds);
    if (show) {
        fputs(text, stdout);
    }
    struct err err = ERR_INIT;
    int bad = chosen->kind >= SEED_CONFIG
                  ? try_config(text, seeds, chosen->kind - SEED_CONFIG, &err)
              : chosen->kind == SEED_SCHEDULE ? try_schedule(text, &err)
              : chosen->kind == SEED_TOPOLOGY ? try_topology(text, &seeds->table, &err)
              : chosen->kind == SEED_TABLE    ? try_table(text, &err)
              : chosen->kind == SEED_NCCL     ? try_nccl(text, &err)
              : chosen->kind == SEED_LINKS    ? try_links(text, &err)
              : chosen->kind == SEED_ASTRA    ? try_astra(text, &seeds->table, &err)
              : chosen->kind == SEED_GOAL     ? try_goal(text, &err)
                                              : try_model(text, &err);
    *accepted += err.count == 0;
    err_release(&err);
    free(text);
    return bad;
}

/* ---- the loop ---- */

struct progress {
    uint64_t iteration, accepted;
    bool bad;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void loop(const struct seeds *seeds, const struct request *request, struct progress *shared)
{
    for (double end = now_s() + request->time_s; now_s() < end && !shared->bad;) {
        alarm(HANG_S);
        shared->bad = iterate(seeds, request->seed, shared->iteration, false, &shared->accepted);
        shared->iteration += !shared->bad;
    }
}

/* In a child, so that this process lives to say which input it was. */
static int run(const struct seeds *seeds, const struct request *request)
{
    struct progress *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return complain("no shared memory", "mmap");
    }
    pid_t child = fork();
    if (child == 0) {
        loop(seeds, request, shared);
        _exit(shared->bad);
    }
    int status = 1;
    waitpid(child, &status, 0);
    printf("%" PRIu64 " inputs from %zu seeds, %" PRIu64 " accepted\n", shared->iteration,
           seeds->count, shared->accepted);
    if (status != 0) {
        fprintf(stderr, "fuzz_parsers: %s; repeat with --seed %" PRIu64 " --only %" PRIu64 "\n",
                WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "a fault", request->seed,
                shared->iteration);
        return 1;
    }
    /* a harness that refuses everything, or nothing, tests one half */
    if (shared->accepted == 0 || shared->accepted == shared->iteration) {
        return complain("inputs are all alike", "change the mutations");
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct request request = {0};
    struct seeds seeds = {0};
    struct opts opts;
    struct err err = ERR_INIT;
    int status = opts_parse(&opts, options, &request, argc, argv, &err) < 0 ? 2 : 0;
    if (status == 0 && accel_read(&seeds.table, NULL, &err) == 0) {
        add_folder(&seeds, "models", SEED_MODEL, &err);
        add_folder(&seeds, "topologies", SEED_TOPOLOGY, &err);
        add_schedules(&seeds, &err);
        add_goals(&seeds, &err);
        add_astras(&seeds);
        add_texts(&seeds, "tests/cases/smi", ".txt", SEED_TABLE, &err);
        add_texts(&seeds, "tests/cases/nccl", ".xml", SEED_NCCL, &err);
        add_texts(&seeds, "tests/cases/nvlink", ".txt", SEED_LINKS, &err);
        add_configs(&seeds, &err);
        uint64_t ignored = 0;
        status = err.count ? 1
                 : opts_is_set(&opts, "only")
                     ? iterate(&seeds, request.seed, request.only, true, &ignored)
                     : run(&seeds, &request);
    }
    status = err.count ? (int)err.code : status;
    err_print(&err, "fuzz_parsers");
    err_release(&err);
    opts_release(&opts);
    for (size_t i = 0; i < seeds.count; i++) {
        free(seeds.items[i].text);
    }
    free(seeds.items);
    topo_release(&seeds.topo);
    model_release(&seeds.model);
    framework_release(&seeds.frameworks);
    accel_release(&seeds.table);
    return status;
}
