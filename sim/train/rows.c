/* SPDX-License-Identifier: Apache-2.0
 * A row of a table becomes a job. Inputs are read by column name; what a row leaves out gets the
 * stated default and is noted; nothing is dropped, a row without a job says why. */
#include "train/rows.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "train/constants.h"
#include "train/pipeline.h"
#include "train/rowtext.h"

/* A row as it is being read. */
struct reader {
    struct rows *rows;
    const struct csv *csv;
    size_t at;
    struct row *row;
    struct features features;
    struct err *err;
};

static const char *cell(const struct reader *r, const char *name)
{
    return csv_cell(r->csv, r->at, name);
}

/* A whole number, or `missing` where the cell is empty or no number. */
static uint32_t number(const struct reader *r, const char *name, uint32_t missing)
{
    const char *text = cell(r, name);
    char *end;
    double value = strtod(text, &end);
    return end == text || *end || !(value >= 0 && value < 4e9) ? missing : (uint32_t)value;
}

static double real(const struct reader *r, const char *name)
{
    const char *text = cell(r, name);
    char *end;
    double value = strtod(text, &end);
    return end == text || !isfinite(value) || value < 0 ? 0 : value;
}

static void assume(struct reader *r, const char *what)
{
    char *all = mem_printf("%s%s%s", r->row->assumed ? r->row->assumed : "",
                           r->row->assumed ? "; " : "", what);
    free(r->row->assumed);
    r->row->assumed = all;
}

int rows_device(struct device *dev, const struct accel *accel, struct err *err)
{
    *dev = (struct device){.name = accel->name,
                           .cls = NDEV_CLASSES,
                           .flops16 = accel->peak_TF[PEAK_BF16] * 1e12,
                           .flops8 = accel->peak_TF[PEAK_FP8] * 1e12,
                           .flops_tf32 = accel->peak_TF[PEAK_TF32] * 1e12,
                           .flops32 = accel->peak_TF[PEAK_FP32] * 1e12,
                           .hbm_Bps = accel->memory_GBps * 1e9,
                           .mem_B = accel->memory_GiB * 1073741824.0,
                           .sms = accel->sms,
                           .grace = accel->name[0] == 'G' &&
                                    (accel->name[1] == 'B' || accel->name[1] == 'H'),
                           .ring_Bps = accel->ring_GBps * 1e9,
                           .nic_usual_Bps = accel->usual_nic_Gbps * 1e9 / 8};
    if (dev->flops16 <= 0) dev->flops16 = accel->peak_TF[PEAK_FP16] * 1e12;
    if (dev->flops8 <= 0) dev->flops8 = dev->flops16;
    if (dev->flops_tf32 <= 0) dev->flops_tf32 = dev->flops32;
    for (int i = 0; i < NDEV_CLASSES; i++) {
        if (strcmp(dev_class_name((enum dev_class)i), accel->class_name) == 0) {
            dev->cls = (enum dev_class)i;
            return 0;
        }
    }
    return err_add(err, ERR_USAGE, "accelerator %s is of class \"%s\", which has no constants",
                   accel->name, accel->class_name);
}

/* The cluster of a row: the accelerator in hosts, domains and a network as the job has them. Where
 * a domain is several hosts, the job's hosts fill the fewest domains evenly, as schedulers place
 * them so that groups stay inside: 64 hosts of domains of 18 sit in four of 16. */
static void make_topo(struct row *row, const struct accel *accel, const char *link, bool stated,
                      unsigned nics)
{
    const struct job *job = &row->job;
    struct accel as_there = *accel;
    as_there.usual_per_host = job->gpus_per_node;
    as_there.usual_domain = job->domain;
    as_there.usual_nic_Gbps = job->nic_Bps * 8 / 1e9;
    if (accel->scale_up == SCALE_UP_NVLINK_CUBE && rowtext_has(link, "NVSwitch"))
        as_there.scale_up = SCALE_UP_NVSWITCH; /* V100 in a DGX-2 */
    struct topo *topo = &row->topo;
    topo_usual(topo, &as_there, job->ngpus);
    uint64_t domains = (topo->hosts + topo->domain_hosts - 1) / topo->domain_hosts;
    topo->domain_hosts = (topo->hosts + domains - 1) / domains;
    topo->fabric = job->fabric;
    topo->nic_stated = stated;
    topo->oversubscribed = job->oversubscribed;
    if (nics && nics < topo->nics) {
        topo->one_nic_Gbps *= (double)topo->nics / nics;
        topo->nics = nics;
    }
}

/* GPU, domain and network. Returns -1 when the GPU is not known. */
static int read_machine(struct reader *r)
{
    struct job *job = &r->row->job;
    const char *gpu = cell(r, "gpu"), *net = cell(r, "inter_net"), *link = cell(r, "intra_link");
    const struct accel *accel =
        *gpu ? accel_match(&r->rows->accels, gpu, real(r, "gpu_mem_gb")) : NULL;
    if (!accel || rows_device(&job->dev, accel, r->err)) return -1;
    job->ngpus = number(r, "n_gpus", 0);
    job->gpus_per_node = number(r, "gpus_per_node", accel->usual_per_host);
    if (!job->gpus_per_node) job->gpus_per_node = 8;
    job->domain = strncmp(gpu, "GB", 2) == 0 || rowtext_has(link, "72") ? 72 : job->gpus_per_node;
    struct rowtext_net said = rowtext_net(net, job->gpus_per_node);
    double rate = said.Gbps;
    job->oversubscribed = said.oversubscribed;
    job->fabric = rate > 0 ? rowtext_fabric(net) : FABRIC_UNSTATED;
    if (rate > 0 && job->fabric == FABRIC_UNSTATED) job->fabric = FABRIC_IB; /* of unstated kind */
    job->nic_Bps = rate > 0 ? rate * 1e9 / 8 : job->dev.nic_usual_Bps;
    if (rate <= 0 && job->ngpus > job->domain) {
        r->features.buckets |= BUCKET_NET_UNSTATED;
        assume(r, "the accelerator's usual network rate");
    }
    if (job->ngpus) make_topo(r->row, accel, link, rate > 0, said.nics);
    return 0;
}

/* Words in the model's name that tell its attention and to which groups of experts its router is
 * limited (DeepSeek's public configs: n_group, topk_group), which tables have no column for;
 * nothing else of the name counts. */
static void read_attention(struct reader *r)
{
    struct shape *s = &r->row->job.shape;
    const char *model = cell(r, "model"), *notes = cell(r, "notes");
    if (s->experts && (rowtext_has(model, "deepseek") || rowtext_has(model, "kimi") ||
                       rowtext_has(notes, "MLA"))) {
        s->q_lora = 1536, s->kv_lora = 512, s->nope_dim = 128, s->rope_dim = 64, s->v_dim = 128;
    }
    if (s->experts >= 160 && rowtext_has(model, "deepseek"))
        s->groups = 8, s->group_topk = s->experts == 160 ? 3 : 4;
    if (rowtext_has(model, "gpt-oss") || rowtext_has(notes, "alternating sliding-window")) {
        s->window = 128, s->window_share = .5;
        s->sink_attention = true;
    }
}

static int read_shape(struct reader *r)
{
    struct job *job = &r->row->job;
    struct shape *s = &job->shape;
    s->layers = number(r, "layers", 0);
    s->hidden = number(r, "hidden", 0);
    s->heads = number(r, "heads", 0);
    s->vocab = number(r, "vocab", 0);
    job->seq = number(r, "seq_len", 0);
    job->micro_batch = number(r, "micro_batch", 0);
    job->global_batch = number(r, "global_batch", 0);
    if (!s->layers || !s->hidden || !s->heads || !s->vocab || !job->seq || !job->micro_batch ||
        !job->global_batch || !job->ngpus) {
        return -1;
    }
    s->ffn = number(r, "ffn_hidden", 4 * s->hidden);
    s->kv_heads = number(r, "kv_heads", s->heads);
    s->head_dim = number(r, "head_dim", s->hidden / s->heads);
    s->gated = strcmp(cell(r, "gated_mlp"), "y") == 0;
    s->tied = strcmp(cell(r, "tied_emb"), "y") == 0;
    s->experts = number(r, "moe_experts", 0);
    s->topk = number(r, "moe_topk", 1);
    s->expert_ffn = number(r, "moe_ffn_hidden", s->ffn);
    s->shared_ffn = number(r, "moe_shared_ffn", 0);
    s->dense_layers = s->experts ? number(r, "moe_dense_layers", 0) : s->layers;
    if (s->dense_layers > s->layers) s->dense_layers = s->layers;
    read_attention(r);
    return 0;
}

static uint32_t degree(const struct reader *r, const char *name)
{
    uint32_t d = number(r, name, 1);
    return d ? d : 1;
}

static void read_strategy(struct reader *r)
{
    struct job *job = &r->row->job;
    job->tp = degree(r, "tp"), job->pp = degree(r, "pp"), job->cp = degree(r, "cp");
    job->vpp = degree(r, "vpp"), job->ep = degree(r, "ep");
    if (job->pp == 1) job->vpp = 1;
    if (job->pp > job->shape.layers) job->pp = job->shape.layers;
    uint64_t rest = (uint64_t)job->tp * job->pp * job->cp;
    job->dp = number(r, "dp", (uint32_t)(rest < job->ngpus ? job->ngpus / rest : 1));
    if (!job->dp) job->dp = 1;
    job->sp = strcmp(cell(r, "sp"), "y") == 0 && job->tp > 1;
    uint32_t multiple = 128 * job->tp;
    job->shape.vocab = (job->shape.vocab + multiple - 1) / multiple * multiple;
    const char *zero = cell(r, "zero");
    const struct {
        const char *prefix;
        enum shard shard;
    } words[] = {{"zero1", SHARD_ZERO1},
                 {"zero2", SHARD_ZERO2},
                 {"fsdp-grad-op", SHARD_GRAD_OP},
                 {"zero3", SHARD_FULL},
                 {"fsdp", SHARD_FULL}};
    for (size_t i = 0; i < sizeof words / sizeof *words && !job->shard; i++) {
        if (strncmp(zero, words[i].prefix, strlen(words[i].prefix)) == 0)
            job->shard = words[i].shard;
    }
    if (strstr(zero, "not re-gathered")) job->shard = SHARD_GRAD_OP;
    if (rowtext_has(zero, "offload")) r->features.buckets |= BUCKET_OFFLOAD;
    job->shard_size = number(r, "shard_size", 0);
}

static int read_precision(struct reader *r)
{
    const char *text = cell(r, "precision");
    const struct {
        const char *prefix;
        enum precision precision;
    } words[] = {{"fp16", PREC_16}, {"bf16", PREC_16},   {"16", PREC_16},
                 {"fp8", PREC_FP8}, {"mxfp8", PREC_FP8}, {"nvfp4", PREC_FP4},
                 {"fp4", PREC_FP4}, {"tf32", PREC_TF32}, {"fp32", PREC_FP32}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strncmp(text, words[i].prefix, strlen(words[i].prefix)) == 0) {
            r->row->job.precision = words[i].precision;
            return 0;
        }
    }
    return -1;
}

/* The framework's row of data/published.csv; else the era's class. */
static int read_framework(struct reader *r)
{
    struct job *job = &r->row->job;
    const struct csv *table = &r->rows->published;
    size_t at = rowtext_match(table, cell(r, "framework"));
    static const char *const features[] = {
        "class",   "attention",    "grad_B",     "grad_store_B",   "reduce_B",
        "opt_B",   "logit_B",      "selective",  "scatter_gather", "tp_overlap_sp",
        "machine", "sharded_copy", "dp_overlap", "unfused_norm"};
    job->zb = 1, job->machine_factor = 1, job->opt_traffic = 1, job->etp = 1;
    job->dp_overlap = job->p2p_overlap = true;
    if (at == SIZE_MAX) {
        assume(r, "a framework of its GPU's era");
        bool v100 = job->dev.cls == DEV_V100, a100 = job->dev.cls == DEV_A100;
        at = rowtext_match(table, v100 ? "megatron-lm (2020)" : a100 ? "pytorch" : "megatron-core");
    }
    r->row->published = at;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        if (rowtext_set(&r->features, features[i], csv_cell(table, at, features[i]), "", r->err)) {
            return -1;
        }
    }
    double bf16_B = atof(csv_cell(table, at, "bf16_grad_store_B"));
    if (bf16_B > 0 && strcmp(cell(r, "precision"), "bf16") == 0) job->grad_store_B = bf16_B;
    return 0;
}

/* Remembers a flag word that no pattern knows, once. */
static void note_unmatched(struct reader *r, const char *word)
{
    struct rows *rows = r->rows;
    rows->nunmatched++;
    r->row->unmatched++;
    for (size_t i = 0; i < rows->nunmatched_kinds; i++) {
        if (strcmp(rows->unmatched[i], word) == 0) return;
    }
    rows->unmatched = mem_realloc(rows->unmatched, rows->nunmatched_kinds + 1, sizeof(char *));
    rows->unmatched[rows->nunmatched_kinds++] = mem_strdup(word);
}

static int read_flag(struct reader *r, const char *word)
{
    const struct csv *table = &r->rows->flags;
    r->rows->nwords++;
    bool off = strncmp(word, "no ", 3) == 0 || strstr(word, "(no ");
    if (strstr(word, "not stated") || (off && strstr(word, "stated"))) return 0;
    size_t at = rowtext_match(table, word);
    if (at == SIZE_MAX) {
        note_unmatched(r, word);
        return 0;
    }
    const char *feature = csv_cell(table, at, "feature");
    if (off) {
        rowtext_unset(&r->features, feature);
        return 0;
    }
    return rowtext_set(&r->features, feature, csv_cell(table, at, "value"), word, r->err);
}

static int read_flags(struct reader *r)
{
    char *all = mem_strdup(cell(r, "flags")), *save = NULL;
    int bad = 0;
    for (char *word = strtok_r(all, ";", &save); word; word = strtok_r(NULL, ";", &save)) {
        while (isspace((unsigned char)*word))
            word++;
        for (size_t n = strlen(word); n && isspace((unsigned char)word[n - 1]); n--)
            word[n - 1] = 0;
        for (char *c = word; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        if (*word && read_flag(r, word)) bad = -1;
    }
    if (!*cell(r, "flags")) assume(r, "what its framework does by default");
    free(all);
    return bad;
}

static void read_recompute(struct reader *r)
{
    struct job *job = &r->row->job;
    const char *text = cell(r, "recompute");
    if (!*text) {
        r->features.buckets |= BUCKET_RECOMPUTE_UNKNOWN;
        assume(r, "no recomputation");
    }
    if (strcmp(text, "full") == 0) {
        job->recompute = RC_FULL;
        job->rc_modules = r->features.modules & RCM_HALF;
    }
    if (strcmp(text, "selective") == 0) {
        job->recompute = RC_SELECTIVE;
        job->rc_modules = r->features.modules_given ? r->features.modules : r->features.selective;
    }
    if (job->recompute != RC_FULL) job->rc_blocks = 0;
}

/* Measured columns: never read by a prediction. */
static void read_measured(struct reader *r)
{
    struct row *row = r->row;
    static const struct {
        const char *word;
        enum mem_measure mem;

    } kinds[] = {{"oom", MEM_OOM},           {"nvidia-smi", MEM_SMI},
                 {"reserved", MEM_RESERVED}, {"allocated", MEM_ALLOCATED},
                 {"parameters", MEM_OTHER},  {"states", MEM_OTHER},
                 {"activation", MEM_OTHER},  {"active", MEM_OTHER}};
    const char *text = cell(r, "memory_kind"), *complete = cell(r, "complete");
    row->measured_s = real(r, "derived_step_time_s");
    row->complete = strcmp(complete, "y") == 0         ? COMPLETE_Y
                    : strcmp(complete, "assumed") == 0 ? COMPLETE_ASSUMED
                                                       : COMPLETE_NO;
    row->status = cell(r, "status");
    row->status_ok = strcmp(row->status, "ok") == 0;
    const char *from = cell(r, "derived_from");
    if (strncmp(from, "tflops:", 7) == 0 || strncmp(from, "mfu:", 4) == 0) {
        row->buckets |= BUCKET_FROM_FLOPS;
    }
    if (rowtext_has(cell(r, "notes"), "regression")) row->buckets |= BUCKET_REGRESSION;
    row->mem_stage = rowtext_has(text, "LAST rank") ? 1 : rowtext_has(text, "first p") ? 0 : -1;
    if (!*text) return;
    row->mem = MEM_OTHER;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!rowtext_has(text, kinds[i].word)) continue;
        row->mem = kinds[i].mem;
        break;
    }
    double value = real(r, "memory_gb");
    bool binary = rowtext_has(text, "GiB") || rowtext_has(text, "MiB");
    row->measured_GiB = binary ? value : value / 1.073741824;
}

/* Buckets, gathers and prefetch, as the framework's row of data/frameworks.json has them; all else
 * that they depend on has been read. */
static int read_overlap(struct reader *r)
{
    const char *name = csv_cell(&r->rows->published, r->row->published, "row");
    const struct framework *framework = framework_find(&r->rows->frameworks, name, r->err);
    if (!framework) return -1;
    framework_overlap(&r->row->job, framework);
    return 0;
}

/* The order of a pipeline's passes. */
static enum pipeline_id schedule_of(const struct job *job)
{
    if (job->zb < 1) return job->zb > 0 ? PIPELINE_ZB_1P : PIPELINE_ZB_2P;
    if (job->vpp > 1) return PIPELINE_INTERLEAVED;
    return job->gpipe ? PIPELINE_GPIPE : PIPELINE_1F1B;
}

static int read_row(struct reader *r)
{
    struct row *row = r->row;
    struct job *job = &row->job;
    memset(job, 0, sizeof *job);
    r->features = (struct features){.job = job};
    const char *model = cell(r, "model");
    if (rowtext_has(model, "bert")) r->features.buckets |= BUCKET_ENCODER;
    if (rowtext_has(model, "lora")) r->features.buckets |= BUCKET_LORA;
    if (rowtext_has(model, "vision") || rowtext_has(model, "VL ")) {
        r->features.buckets |= BUCKET_VISION;
    }
    if (read_machine(r)) {
        row->reason = "gpu-unknown";
    } else if (read_shape(r)) {
        row->reason = "shape-missing";
    } else if (read_precision(r)) {
        row->reason = "precision-unknown";
    } else {
        read_strategy(r);
        if (read_framework(r) || read_flags(r)) return -1;
        read_recompute(r);
        job->schedule = (uint8_t)schedule_of(job);
        if (read_overlap(r)) return -1;
        job->pure_bf16 = job->opt_B < 8; /* Adam's moments in 16 bits and no copy */
        if (r->features.tp_overlap_sp && job->sp) job->tp_overlap = true;
    }
    read_measured(r);
    row->buckets |= r->features.buckets;
    return 0;
}

static int read_table(struct rows *rows, const char *path, struct err *err)
{
    rows->tables = mem_realloc(rows->tables, rows->ntables + 1, sizeof *rows->tables);
    struct csv *csv = &rows->tables[rows->ntables];
    if (csv_read(csv, path, err)) return -1;
    rows->ntables++;
    rows->rows = mem_realloc(rows->rows, rows->nrows + csv->nrows, sizeof *rows->rows);
    int bad = 0;
    for (size_t i = 0; i < csv->nrows; i++) {
        struct row *row = &rows->rows[rows->nrows++];
        memset(row, 0, sizeof *row);
        row->file = csv->path;
        row->id = csv_cell(csv, i, "id");
        row->framework = csv_cell(csv, i, "framework");
        row->line = csv->line[i];
        struct reader r = {.rows = rows, .csv = csv, .at = i, .row = row, .err = err};
        if (read_row(&r)) bad = -1;
    }
    return bad;
}

static int is_csv(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > 4 && strcmp(entry->d_name + n - 4, ".csv") == 0;
}

/* A file, or all .csv files of a folder in order of their names. */
static int read_path(struct rows *rows, const char *path, struct err *err)
{
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) return read_table(rows, path, err);
    struct dirent **entries;
    int n = scandir(path, &entries, is_csv, alphasort), bad = 0;
    if (n <= 0) bad = err_add(err, ERR_USAGE, "folder %s holds no .csv file", path);
    for (int i = 0; i < n; i++) {
        char *file = mem_printf("%s/%s", path, entries[i]->d_name);
        if (read_table(rows, file, err)) bad = -1;
        free(file);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return bad;
}

static int read_patterns(struct csv *csv, const char *name, struct err *err)
{
    char *path = csv_shipped(name);
    if (!path) return err_add(err, ERR_FAILED, "the shipped table data/%s is not found", name);
    int bad = csv_read(csv, path, err);
    free(path);
    return bad;
}

int rows_read(struct rows *rows, char *const *paths, size_t npaths, struct err *err)
{
    *rows = (struct rows){0};
    int bad = accel_read(&rows->accels, NULL, err);
    if (framework_read(&rows->frameworks, NULL, err)) bad = -1;
    if (read_patterns(&rows->published, "published.csv", err)) bad = -1;
    if (read_patterns(&rows->flags, "flags.csv", err)) bad = -1;
    for (size_t i = 0; i < npaths && !bad; i++) {
        if (read_path(rows, paths[i], err)) bad = -1;
    }
    if (bad) rows_release(rows);
    return bad;
}

void rows_release(struct rows *rows)
{
    for (size_t i = 0; i < rows->nrows; i++) {
        free(rows->rows[i].assumed);
        topo_release(&rows->rows[i].topo);
    }
    for (size_t i = 0; i < rows->ntables; i++) {
        csv_release(&rows->tables[i]);
    }
    for (size_t i = 0; i < rows->nunmatched_kinds; i++) {
        free(rows->unmatched[i]);
    }
    free(rows->unmatched);
    free(rows->rows);
    free(rows->tables);
    csv_release(&rows->published);
    csv_release(&rows->flags);
    accel_release(&rows->accels);
    framework_release(&rows->frameworks);
    *rows = (struct rows){0};
}
