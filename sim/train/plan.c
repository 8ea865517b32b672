/* SPDX-License-Identifier: Apache-2.0
 * Reads, resolves, checks, and fills the job's figures; one function per part of the job. */
#include "train/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "net/fault.h"
#include "net/network.h"
#include "train/rows.h"

int tables_read(struct tables *tables, enum engine engine, const char *constants, struct err *err)
{
    *tables = (struct tables){0};
    int bad = accel_read(&tables->accels, NULL, err);
    if (framework_read(&tables->frameworks, NULL, err)) bad = -1;
    for (enum engine e = 0; e < NENGINES; e++) {
        if (const_read(&tables->constants[e], e, e == engine ? constants : NULL, err)) bad = -1;
    }
    if (bad) tables_release(tables);
    return bad;
}

void tables_release(struct tables *tables)
{
    accel_release(&tables->accels);
    framework_release(&tables->frameworks);
    for (int e = 0; e < NENGINES; e++)
        const_release(&tables->constants[e]);
}

static const struct opts_row own_rows[] = {
    {.name = "model",
     .type = OPTS_STRING,
     .offset = offsetof(struct plan_args, model),
     .value = "llama3-8b",
     .arg = "NAME|PATH",
     .help =
         "a preset (commsim model lists them), or the path of a Hugging Face config.json or its "
         "folder; a preset's name means the preset, ./NAME the path",
     .section = "Model and machine"},
    {.name = "machine-factor",
     .type = OPTS_DOUBLE,
     .offset = offsetof(struct plan_args, machine_factor),
     .value = "1",
     .arg = "F",
     .help = "compute times are multiplied by F: machines of one type differ by up to 30 %"},
    {0},
};

struct opts_row *plan_options(size_t offset, const struct opts_row *more)
{
    const struct opts_part parts[] = {
        {topo_rows, offset + offsetof(struct plan_args, cluster)},
        {own_rows, offset},
        {strategy_rows, offset + offsetof(struct plan_args, strategy)},
        {more, 0},
    };
    return opts_join(parts, sizeof parts / sizeof *parts);
}

/* NVLink-C2C between a Grace CPU and its GPUs, bytes/s per direction (NVIDIA GH200 and GB200
 * datasheets: 900 GB/s both ways together). */
#define C2C_BPS 450e9
#define GRACE_MEMORY_BPS 500e9 /* LPDDR5X of a Grace CPU, the same datasheets */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* GPUs in use of `parts` alike parts of a host that its accelerators are spread over. */
static double in_part(const struct topo *topo, uint32_t parts)
{
    return (double)least(topo->per_host, (topo->full_host + parts - 1) / parts);
}

/* The way to the host's memory: a PCIe link, or a part of its switch's uplink; on Grace its C2C. */
static void fill_host(struct job *job, const struct topo *topo)
{
    const struct topo_host *host = &topo->host;
    double root = host->switches ? in_part(topo, host->switches) : 1;
    job->host_Bps = job->dev.grace ? C2C_BPS : host->pcie_GBps * 1e9;
    job->host_shared = job->dev.grace ? in_part(topo, host->sockets)
                                      : fmax(1, root * host->pcie_GBps / host->uplink_GBps);
    double memory_Bps = fmax(host->memory_GBps * 1e9, job->dev.grace ? GRACE_MEMORY_BPS : 0);
    job->host_mem_B = host->memory_GiB * 1073741824.;
    job->host_mem_Bps = memory_Bps / in_part(topo, host->sockets);
}

static void fill_machine(struct job *job, const struct topo *topo)
{
    fill_host(job, topo);
    job->dev.ring_Bps = topo->ring_GBps * 1e9;
    job->ngpus = (uint32_t)topo_gpus(topo);
    job->gpus_per_node = (uint32_t)topo->per_host;
    job->domain = (uint32_t)topo_domain(topo);
    job->nic_Bps = topo_nic_Bps(topo);
    job->fabric = topo->fabric;
    job->oversubscribed = topo->oversubscribed;
}

static void fill_shape(struct shape *s, const struct model *model)
{
    s->layers = (uint32_t)model->layers;
    s->hidden = (uint32_t)model->hidden;
    s->ffn = (uint32_t)model->ffn;
    s->heads = (uint32_t)model->heads;
    s->kv_heads = (uint32_t)model->kv_heads;
    s->head_dim = (uint32_t)model->head_dim;
    s->vocab = (uint32_t)model->vocab;
    s->gated = model->gated;
    s->tied = model->tied;
    if (model->mla) {
        s->q_lora = (uint32_t)model->q_lora_rank;
        s->kv_lora = (uint32_t)model->kv_lora_rank;
        s->nope_dim = (uint32_t)model->nope_head_dim;
        s->rope_dim = (uint32_t)model->rope_head_dim;
        s->v_dim = (uint32_t)model->v_head_dim;
    }
    uint64_t windowed = 0, moe = 0;
    for (uint64_t i = 0; i < model->layers; i++) {
        const struct model_kind *kind = model_layer(model, i);
        windowed += kind->window > 0;
        moe += kind->moe;
    }
    s->window = (uint32_t)model->window;
    s->window_share = (double)windowed / (double)model->layers;
    s->sink_attention = model->sinks;
    s->dense_layers = (uint32_t)(model->layers - moe);
    if (moe) {
        s->experts = (uint32_t)model->experts;
        s->topk = (uint32_t)model->experts_per_token;
        s->groups = (uint32_t)model->router_groups;
        s->group_topk = (uint32_t)model->router_group_topk;
        s->expert_ffn = (uint32_t)model->expert_ffn;
        s->shared_ffn = (uint32_t)model->shared_ffn;
    }
    s->params = (double)model->params;
}

static void fill_strategy(struct job *job, const struct strategy *s)
{
    static const enum shard shards[] = {SHARD_NONE, SHARD_ZERO1, SHARD_ZERO2, SHARD_FULL};
    job->tp = (uint32_t)s->tp, job->pp = (uint32_t)s->pp, job->dp = (uint32_t)s->dp;
    job->cp = (uint32_t)s->cp, job->vpp = (uint32_t)s->vpp, job->ep = (uint32_t)s->ep;
    job->etp = (uint32_t)s->etp;
    job->sp = s->sp;
    job->ulysses = s->ulysses;
    job->tp_stride = strategy_stride(s, AXIS_TP);
    job->cp_stride = strategy_stride(s, AXIS_CP);
    job->dp_stride = strategy_stride(s, AXIS_DP);
    job->pp_stride = strategy_stride(s, AXIS_PP);
    job->shard = shards[s->zero];
    job->shard_size = s->zero && s->shards < s->dp * s->cp ? (uint32_t)s->shards : 0;
    job->sharded_copy = s->zero == ZERO_3 && !s->fsdp;
    job->micro_batch = s->micro_batch;
    job->global_batch = s->global_batch;
    job->seq = s->seq;
    job->precision = s->precision->precision;
    job->fp8_rowwise = s->fp8_rowwise;
    job->recompute = s->recompute;
    job->rc_modules = s->rc_modules;
    job->rc_blocks = (uint32_t)s->rc_blocks;
    job->gpipe = s->schedule == SCHED_GPIPE;
    job->schedule = (uint8_t)s->schedule;
    job->moe_imbalance = s->moe_imbalance;
    job->moe_capacity = s->moe_capacity;
    job->packed_seq = (double)s->packed;
    job->offload = s->offload;
    job->zb = s->schedule == SCHED_ZB_1P ? 1 / 3. : s->schedule == SCHED_ZB_2P ? 0 : 1;
    job->lora_rank = (uint32_t)s->lora;
    job->qlora = s->qlora;
}

static void fill_framework(struct job *job, const struct strategy *s)
{
    const struct framework *f = &s->framework;
    job->fw = f->cls;
    job->attn = f->attention;
    job->graphs = f->graphs;
    job->grad_B = f->grad_bytes;
    job->grad_store_B = f->grad_store_bytes;
    job->reduce_B = f->reduce_bytes;
    job->tp_overlap = f->tp_overlap && s->sp;
    job->dp_overlap = f->dp_overlap;
    job->p2p_overlap = f->p2p_overlap;
    job->ep_overlap = f->ep_overlap;
    job->ep_dedup = f->ep_dedup;
    job->scatter_gather = f->scatter_gather;
    job->chunked_loss = f->chunked_loss;
    job->dropout = f->dropout;
    job->unfused_norm = f->cls == FW_EAGER;
    job->fp8_params = f->fp8_params && (job->precision == PREC_FP8 || job->precision == PREC_FP4);
    job->logit_B = f->logit_bytes;
    bool master = f->master_weights || job->precision == PREC_FP32 || job->precision == PREC_TF32;
    job->pure_bf16 = !master;
    job->shard_copy = f->shard_copy;
    job->opt_B = master ? 4 + s->optimizer->state_bytes : s->optimizer->bf16_bytes;
    job->opt_traffic = s->optimizer->traffic_bytes / 30;
    if (f->vocab_multiple) {
        uint64_t v = model_padded_vocab(job->shape.vocab, f->vocab_multiple, s->tp);
        job->shape.vocab = (uint32_t)v;
    }
    framework_overlap(job, f);
}

static void assume(struct plan *plan, char *sentence)
{
    plan->assumed = mem_realloc(plan->assumed, plan->nassumed + 1, sizeof *plan->assumed);
    plan->assumed[plan->nassumed++] = sentence;
}

/* "NAME=VALUE (framework X)" of a feature. */
static char *feature_text(const struct framework *f, const char *name)
{
    char buf[UNITS_TEXT];
    for (size_t i = 0; framework_feature_name(i); i++) {
        if (strcmp(framework_feature_name(i), name) == 0) {
            return mem_printf("%s=%s (framework %s)", name, framework_value(f, i, buf), f->name);
        }
    }
    return mem_strdup(name);
}

/* What the answer depends on and nobody stated. */
static void list_assumed(struct plan *plan, const struct plan_args *args)
{
    const struct strategy *s = &plan->strategy;
    if (s->seq_assumed) assume(plan, mem_printf("sequence length %zu", (size_t)s->seq));
    if (s->micro_assumed) assume(plan, mem_printf("micro-batch %zu", (size_t)s->micro_batch));
    if (s->batch_assumed) {
        assume(plan, mem_printf("global batch %zu sequences (1 Mi tokens, rounded up to what the "
                                "GPUs divide)",
                                (size_t)s->global_batch));
    }
    if (!args->strategy.precision) assume(plan, mem_printf("precision %s", s->precision->name));
    if (s->sp && !s->sp_asked)
        assume(plan, mem_printf("sequence parallelism, which %s has with tensor parallelism",
                                s->framework.name));
    if (!args->strategy.recompute) assume(plan, mem_strdup("no recomputation"));
    if (!plan->topo.nic_stated && plan->topo.hosts > 1) {
        assume(plan, mem_printf("network rate %g Gb/s per GPU, usual for this accelerator",
                                plan->topo.nic_Gbps));
    }
    static const char *const features[] = {"attention", "graphs", "tp-overlap", "dp-overlap",
                                           "grad-bytes"};
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        assume(plan, feature_text(&s->framework, features[i]));
    }
    for (size_t i = 0; i < plan->model.nassumed; i++) {
        assume(plan, mem_strdup(plan->model.assumed[i]));
    }
}

static int fill_job(struct plan *plan, double machine_factor, struct err *err)
{
    struct job *job = &plan->job;
    const struct strategy *s = &plan->strategy;
    if (plan->model.encoder_layers) {
        return err_add(err, ERR_USAGE,
                       "%s has an encoder: its layers are counted (commsim model), "
                       "but only decoders are timed",
                       plan->model.name);
    }
    if (!(machine_factor >= .1 && machine_factor <= 10)) {
        return err_add(err, ERR_USAGE,
                       "--machine-factor %g is outside 0.1..10; machines of one type differ by up "
                       "to 30 %%: 0.8..1.3",
                       machine_factor);
    }
    if (rows_device(&job->dev, &plan->topo.accel, err)) return -1;
    job->machine_factor = machine_factor;
    fill_machine(job, &plan->topo);
    fill_shape(&job->shape, &plan->model);
    fill_strategy(job, s);
    fill_framework(job, s);
    plan->stage_layers = mem_calloc(s->pp, sizeof *plan->stage_layers);
    for (uint64_t i = 0; i < s->pp; i++) {
        for (uint64_t chunk = 0; chunk < s->vpp && chunk * s->pp + i < s->nlayout; chunk++) {
            plan->stage_layers[i] += (double)s->layout[chunk * s->pp + i];
        }
    }
    job->stage_layers = plan->stage_layers;
    job->layout = s->nlayout == s->pp * s->vpp ? s->layout : NULL;
    return 0;
}

/* With cluster and model in their places: the rest. */
static int set_strategy(struct plan *plan, const struct tables *tables,
                        const struct strategy_args *args, double machine_factor, struct err *err)
{
    if (strategy_make(&plan->strategy, args, &plan->topo, &plan->model, &tables->frameworks, err))
        return -1;
    rules_check(&plan->rules, &plan->strategy, &plan->model, &plan->topo);
    return fill_job(plan, machine_factor, err);
}

int plan_make(struct plan *plan, const struct tables *tables, const struct plan_args *args,
              struct err *err)
{
    *plan = (struct plan){0};
    const struct topo_args *cluster = &args->cluster;
    int bad =
        topo_read(&plan->topo, &tables->accels, cluster->topo, cluster->nodes, cluster->gpus, err);
    if (!bad && args->faults) bad = fault_parse_all(&plan->topo, args->faults, err);
    if (!bad) bad = network_check_faults(&plan->topo, err);
    if (args->shape) {
        plan->model = *args->shape;
        *args->shape = (struct model){0};
    } else if (model_read(&plan->model, args->model ? args->model : "llama3-8b", err)) {
        bad = -1;
    }
    if (bad || set_strategy(plan, tables, &args->strategy, args->machine_factor, err)) {
        plan_release(plan);
        return -1;
    }
    list_assumed(plan, args);
    return 0;
}

int plan_vary(struct plan *plan, const struct plan *base, const struct tables *tables,
              const struct strategy_args *args, struct err *err)
{
    *plan = (struct plan){.topo = base->topo, .model = base->model, .borrows = true};
    if (set_strategy(plan, tables, args, base->job.machine_factor, err) == 0) return 0;
    plan_release(plan);
    return -1;
}

double plan_peak(const struct plan *plan, const char **name)
{
    const struct precision_row *row = plan->strategy.precision;
    enum peak unit = row->precision == PREC_FP8 ? PEAK_FP8 : row->needs;
    *name = peak_name(unit);
    return plan->topo.accel.peak_TF[unit] * 1e12;
}

void plan_release(struct plan *plan)
{
    for (size_t i = 0; i < plan->nassumed; i++)
        free(plan->assumed[i]);
    free(plan->assumed);
    free(plan->stage_layers);
    rules_release(&plan->rules);
    strategy_release(&plan->strategy);
    if (!plan->borrows) {
        model_release(&plan->model);
        topo_release(&plan->topo);
    }
    *plan = (struct plan){0};
}
