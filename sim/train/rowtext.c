/* SPDX-License-Identifier: Apache-2.0
 * Patterns are plain words, looked for in order; the first that fits counts. Features are one
 * table: name, kind, place in the job. */
#include "train/rowtext.h"

#include <ctype.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "train/rows.h"

bool rowtext_has(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

size_t rowtext_match(const struct csv *csv, const char *text)
{
    for (size_t i = 0; i < csv->nrows; i++) {
        if (rowtext_has(text, csv_cell(csv, i, "pattern"))) return i;
    }
    return SIZE_MAX;
}

/* The first number with a unit of rate in the text, in Gb/s; 0 if there is none. */
static double first_rate(const char *text)
{
    static const struct {
        const char *unit;
        double Gbps;
    } units[] = {{"Gb/s", 1}, {"Gbps", 1}, {"GB/s", 8}, {"Tb/s", 1000}};
    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at) ||
            (at > text && (isdigit((unsigned char)at[-1]) || at[-1] == '.'))) {
            continue;
        }
        char *end;
        double number = strtod(at, &end);
        while (*end == ' ')
            end++;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            if (strncmp(end, units[i].unit, 4) == 0) return number * units[i].Gbps;
        }
    }
    return 0;
}

/* "8x400 Gb/s", "4x ConnectX-7 IB NDR 400Gb/s": the number before x, and where the text goes on. */
static unsigned long times(const char *text, const char **behind)
{
    for (const char *at = text; *at; at++) {
        if (!isdigit((unsigned char)*at) || (at > text && !isspace((unsigned char)at[-1])))
            continue;
        char *end;
        unsigned long n = strtoul(at, &end, 10);
        if (*end == ' ') end++;
        if (*end == 'x' && (end[1] == ' ' || isdigit((unsigned char)end[1]))) {
            *behind = end + 1;
            return n;
        }
        at = end - 1;
    }
    return 0;
}

struct rowtext_net rowtext_net(const char *text, unsigned gpus_per_node)
{
    const char *compute = strstr(text, "Compute:"), *behind;
    const char *over = strcasestr(text, "oversubscribed"), *ratio = strstr(text, "1:");
    struct rowtext_net net = {.oversubscribed = 1};
    if (over && ratio && ratio[2] >= '2' && ratio[2] <= '9') net.oversubscribed = atof(ratio + 2);
    if (compute) text = compute + strlen("Compute:");
    unsigned long n = times(text, &behind);
    net.nics = (unsigned)n;
    net.Gbps = n ? (double)n * first_rate(behind) : first_rate(text);
    if (n || rowtext_has(text, "per node")) net.Gbps /= gpus_per_node;
    return net;
}

enum fabric rowtext_fabric(const char *text)
{
    static const struct {
        const char *word;
        enum fabric fabric;
    } words[] = {{"tcp", FABRIC_TCP},
                 {"efa", FABRIC_EFA},
                 {"omni-path", FABRIC_OMNIPATH},
                 {"slingshot", FABRIC_SLINGSHOT},
                 {"roce", FABRIC_ROCE},
                 {"infiniband", FABRIC_IB},
                 {" ib ", FABRIC_IB},
                 {"connectx", FABRIC_IB},
                 {"ndr", FABRIC_IB},
                 {"hdr", FABRIC_IB},
                 {"edr", FABRIC_IB},
                 {"rdma", FABRIC_ROCE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (rowtext_has(text, words[i].word)) return words[i].fabric;
    }
    return FABRIC_UNSTATED;
}

/* ---- features ---- */

static const struct word {
    const char *name;
    unsigned value;
} classes[] = {{"legacy", FW_LEGACY}, {"eager", FW_EAGER}, {"fused", FW_FUSED}, {0, 0}},
  attentions[] = {{"fa1", ATTN_FA1},         {"fa2", ATTN_FA2},     {"cudnn", ATTN_CUDNN},
                  {"unfused", ATTN_UNFUSED}, {"flash", UINT32_MAX}, {0, 0}},
  graph_modes[] = {{"partial", GRAPHS_PARTIAL}, {"full", GRAPHS_FULL}, {"any", UINT32_MAX}, {0, 0}},
  machines[] = {{"usual", MACHINE_USUAL}, {"B200-slow", MACHINE_B200_SLOW}, {0, 0}},
  module_words[] = {{"mla_up_proj", RCM_MLA_UP},
                    {"mlp", RCM_MLP},
                    {"moe", RCM_MOE},
                    {"core_attn", RCM_CORE_ATTN},
                    {"layernorm", RCM_NORM},
                    {"norm", RCM_NORM},
                    {"moe_act", RCM_ACT},
                    {"act", RCM_ACT},
                    {"ops", RCM_OPS},
                    {"half", RCM_HALF},
                    {"third", RCM_THIRD},
                    {"mlp_part", RCM_MLP_PART},
                    {"save_dot", RCM_SAVE_DOT},
                    {"none", 0},
                    {0, 0}},
  bucket_words[] = {{"lora", BUCKET_LORA},
                    {"sft", BUCKET_SFT},
                    {"packed", BUCKET_PACKED},
                    {"encoder", BUCKET_ENCODER},
                    {"offload", BUCKET_OFFLOAD},
                    {"deterministic", BUCKET_DETERMINISTIC},
                    {"regression", BUCKET_REGRESSION},
                    {"recompute-unknown", BUCKET_RECOMPUTE_UNKNOWN},
                    {"vision", BUCKET_VISION},
                    {"net-unstated", BUCKET_NET_UNSTATED},
                    {"target-from-flops", BUCKET_FROM_FLOPS},
                    {"gpu-rare", BUCKET_GPU_RARE},
                    {0, 0}};

static const struct {
    const char *name;
    enum { KIND_BOOL, KIND_DOUBLE, KIND_UINT } kind;
    size_t offset;
} fields[] = {
    {"tp_overlap", KIND_BOOL, offsetof(struct job, tp_overlap)},
    {"dp_overlap", KIND_BOOL, offsetof(struct job, dp_overlap)},
    {"p2p_overlap", KIND_BOOL, offsetof(struct job, p2p_overlap)},
    {"ep_overlap", KIND_BOOL, offsetof(struct job, ep_overlap)},
    {"ep_dedup", KIND_BOOL, offsetof(struct job, ep_dedup)},
    {"experts_dealt", KIND_BOOL, offsetof(struct job, experts_dealt)},
    {"ulysses", KIND_BOOL, offsetof(struct job, ulysses)},
    {"fp8_params", KIND_BOOL, offsetof(struct job, fp8_params)},
    {"fp8_rowwise", KIND_BOOL, offsetof(struct job, fp8_rowwise)},
    {"scatter_gather", KIND_BOOL, offsetof(struct job, scatter_gather)},
    {"dropout", KIND_BOOL, offsetof(struct job, dropout)},
    {"unfused_norm", KIND_BOOL, offsetof(struct job, unfused_norm)},
    {"sharded_copy", KIND_BOOL, offsetof(struct job, sharded_copy)},
    {"chunked_loss", KIND_BOOL, offsetof(struct job, chunked_loss)},
    {"zb", KIND_DOUBLE, offsetof(struct job, zb)},
    {"grad_B", KIND_DOUBLE, offsetof(struct job, grad_B)},
    {"grad_store_B", KIND_DOUBLE, offsetof(struct job, grad_store_B)},
    {"reduce_B", KIND_DOUBLE, offsetof(struct job, reduce_B)},
    {"opt_B", KIND_DOUBLE, offsetof(struct job, opt_B)},
    {"logit_B", KIND_DOUBLE, offsetof(struct job, logit_B)},
    {"etp", KIND_UINT, offsetof(struct job, etp)},
    {"local_batch", KIND_UINT, offsetof(struct job, local_batch)},
    {"rc_blocks", KIND_UINT, offsetof(struct job, rc_blocks)},
};

static int find_word(const struct word *words, const char *name, size_t length, unsigned *value)
{
    for (; words->name; words++) {
        if (strncasecmp(words->name, name, length) == 0 && !words->name[length]) {
            *value = words->value;
            return 0;
        }
    }
    return -1;
}

/* The modules named in a text, words between anything but letters, digits and _. */
static unsigned modules_of(const char *text)
{
    unsigned set = 0, one;
    while (*text) {
        size_t n = 0;
        while (isalnum((unsigned char)text[n]) || text[n] == '_')
            n++;
        if (n && find_word(module_words, text, n, &one) == 0) set |= one;
        text += n ? n : 1;
    }
    return set;
}

static void set_field(struct job *job, size_t i, const char *value, const char *word)
{
    char *at = (char *)job + fields[i].offset;
    const char *digits = word + strcspn(word, "0123456789");
    if (fields[i].kind == KIND_BOOL) {
        *(bool *)(void *)at = *value == 'y';
    } else if (fields[i].kind == KIND_DOUBLE) {
        *(double *)(void *)at = atof(value);
    } else {
        *(uint32_t *)(void *)at = (uint32_t)strtoul(*value == 'n' ? digits : value, NULL, 10);
    }
}

int rowtext_set(struct features *f, const char *feature, const char *value, const char *word,
                struct err *err)
{
    unsigned v = 0;
    const struct word *words = NULL;
    struct job *job = f->job;
    if (strcmp(feature, "ignore") == 0) return 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(feature, fields[i].name) != 0) continue;
        set_field(job, i, value, word);
        return 0;
    }
    if (strcmp(feature, "modules") == 0) {
        f->modules_given = true;
        f->modules |= modules_of(strcmp(value, "words") == 0 ? word : value);
        return 0;
    }
    if (strcmp(feature, "selective") == 0) {
        f->selective = modules_of(value);
        return 0;
    }
    if (strcmp(feature, "tp_overlap_sp") == 0) {
        f->tp_overlap_sp = *value == 'y';
        return 0;
    }
    const struct {
        const char *name;
        const struct word *words;
    } choices[] = {{"class", classes},
                   {"attention", attentions},
                   {"graphs", graph_modes},
                   {"machine", machines},
                   {"bucket", bucket_words}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (strcmp(feature, choices[i].name) == 0) words = choices[i].words;
    }
    if (!words || find_word(words, value, strlen(value), &v)) {
        return err_add(err, ERR_USAGE, "feature \"%s\" with value \"%s\" is not known", feature,
                       value);
    }
    if (words == bucket_words) f->buckets |= v;
    if (words == classes) job->fw = (enum fw_class)v;
    if (words == graph_modes &&
        v == UINT32_MAX) /* of a whole step, unless hosts must know counts */
        v = job->shape.experts ? GRAPHS_PARTIAL : GRAPHS_FULL;
    if (words == graph_modes) job->graphs = (enum graphs)v;
    if (words == machines) job->machine = (enum machine)v;
    if (words == attentions) {
        if (v != UINT32_MAX)
            job->attn = (enum attn_kernel)v;
        else if (job->attn == ATTN_UNFUSED)
            job->attn = ATTN_FA2;
    }
    return 0;
}

void rowtext_unset(struct features *f, const char *feature)
{
    struct err ignored = ERR_INIT;
    if (strcmp(feature, "attention") == 0) {
        rowtext_set(f, feature, "unfused", "", &ignored);
    } else if (strcmp(feature, "graphs") == 0) {
        f->job->graphs = GRAPHS_NONE;
    } else {
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            if (strcmp(feature, fields[i].name) == 0 && fields[i].kind == KIND_BOOL) {
                set_field(f->job, i, "n", "");
            }
        }
    }
    err_release(&ignored);
}

char *rows_bucket_names(unsigned buckets)
{
    size_t length = 1;
    for (const struct word *w = bucket_words; w->name; w++) {
        length += strlen(w->name) + 1;
    }
    char *text = mem_calloc(length, 1);
    for (const struct word *w = bucket_words; w->name; w++) {
        if (!(buckets & w->value)) continue;
        if (*text) strcat(text, "+");
        strcat(text, w->name);
    }
    return text;
}
