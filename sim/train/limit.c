/* SPDX-License-Identifier: Apache-2.0
 * Tries changes of a job that save memory, cheapest first, and looks up the error band. */
#include "train/limit.h"

#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/mem.h"

/* ---- what would make it fit ---- */

/* A changed job, as numbers and as the rules see it. */
struct trial {
    struct strategy s;
    struct job job;
};

static bool recompute_all(struct trial *t)
{
    if (t->job.recompute == RC_FULL && !t->job.rc_blocks) return false;
    t->job.recompute = t->s.recompute = RC_FULL;
    t->job.rc_modules = t->s.rc_modules = 0;
    t->job.rc_blocks = 0;
    t->s.rc_blocks = 0;
    return true;
}

static bool shard_optimizer(struct trial *t)
{
    if (t->job.shard != SHARD_NONE || t->job.dp * t->job.cp < 2) return false;
    t->job.shard = SHARD_ZERO1;
    t->s.zero = ZERO_1;
    return true;
}

static bool smallest_batch(struct trial *t)
{
    if (t->job.micro_batch == 1) return false;
    t->job.micro_batch = t->s.micro_batch = 1;
    t->s.micro_batches = job_microbatches(&t->job);
    if (t->s.accumulation) t->s.accumulation = t->s.micro_batches;
    return true;
}

static bool shard_all(struct trial *t)
{
    struct job *job = &t->job;
    if (job->shard == SHARD_FULL || job->dp * job->cp < 2 || job->pp > 1) return false;
    job->shard = SHARD_FULL;
    job->shard_size = 0;
    t->s.zero = ZERO_3;
    t->s.fsdp = true;
    t->s.shards = t->s.dp * t->s.cp;
    return true;
}

static bool drop_experts(struct trial *t)
{
    if (t->job.ep == 1) return false;
    t->job.ep = 1;
    t->s.ep = 1;
    t->s.edp = t->s.gpus / (t->s.etp * t->s.pp);
    return true;
}

static bool is_legal(const struct plan *plan, const struct trial *t)
{
    struct rules_report report = {0};
    rules_check(&report, &t->s, &plan->model, &plan->topo);
    bool legal = report.errors == 0;
    rules_release(&report);
    return legal;
}

enum { CHANGES = 4 };

char *limit_remedy(const struct plan *plan, const struct constants *c, const struct step *step)
{
    static const struct {
        const char *text;
        bool (*apply[CHANGES])(struct trial *);
    } remedies[] = {
        {"zero1 (optimizer states sharded over dp)", {shard_optimizer}},
        {"micro-batch 1", {smallest_batch}},
        {"zero1 with micro-batch 1", {shard_optimizer, smallest_batch}},
        {"full recomputation", {recompute_all}},
        {"zero1 with full recomputation", {shard_optimizer, recompute_all}},
        {"fsdp", {shard_all}},
        {"fsdp with full recomputation", {shard_all, recompute_all}},
        {"fsdp with full recomputation and micro-batch 1",
         {shard_all, recompute_all, smallest_batch}},
        {"fsdp without expert parallelism (ep 1)", {shard_all, drop_experts}},
        {"fsdp without expert parallelism (ep 1), with full recomputation",
         {shard_all, drop_experts, recompute_all}},
        {"fsdp without expert parallelism (ep 1), with full recomputation and micro-batch 1",
         {shard_all, drop_experts, recompute_all, smallest_batch}},
    };
    struct memory now = memory_predict(&plan->job, c);
    if (memory_verdict(&now) != VERDICT_NO) return NULL;
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++) {
        struct trial other = {plan->strategy, plan->job};
        bool changed = true;
        for (size_t k = 0; k < CHANGES && remedies[i].apply[k]; k++) {
            changed = remedies[i].apply[k](&other) && changed;
        }
        if (!changed || !is_legal(plan, &other)) continue;
        framework_overlap(&other.job, &other.s.framework); /* buckets, gathers ahead */
        struct memory m = memory_predict(&other.job, c);
        if (memory_verdict(&m) == VERDICT_NO) continue;
        double ratio = step_predict(&other.job, c).time_s / step->time_s;
        return mem_printf("%s would fit: %.1f GiB reserved, step time x %.2f", remedies[i].text,
                          m.reserved / 1073741824., ratio);
    }
    return mem_strdup("none of zero1, fsdp, full recomputation, micro-batch 1 and ep 1, alone or "
                      "together, makes it fit; --step event tries other degrees and offloading");
}

/* ---- the error band ---- */

unsigned limit_kind(const struct job *job)
{
    if (job->shape.experts) return 2;
    return job->precision == PREC_FP8 || job->precision == PREC_FP4;
}

const char *limit_kind_name(unsigned kind)
{
    static const char *const names[NKINDS] = {"dense 16 bit", "dense fp8 or fp4",
                                              "mixture of experts"};
    return names[kind];
}

bool limit_holds_name(const char *names, const char *name)
{
    size_t length = strlen(name);
    for (; *names; names += strcspn(names, " "), names += *names == ' ') {
        if (strcspn(names, " ") == length && strncmp(names, name, length) == 0) return true;
    }
    return false;
}

/* What sets a job apart from the runs of a band; NULL if nothing does. Freed by the caller. */
static char *unlike(const struct job *job, const struct csv *csv, size_t row)
{
    const char *accels = csv_cell(csv, row, "accelerators");
    double most_B = atof(csv_cell(csv, row, "largest_model_B"));
    double billions = job_params(job).total / 1e9, gpus = atof(csv_cell(csv, row, "most_gpus"));
    if (!limit_holds_name(accels, job->dev.name))
        return mem_printf("%s; published runs are on %s", job->dev.name, accels);
    if (billions > most_B)
        return mem_printf("%.4g B parameters; published runs have at most %.4g B", billions,
                          most_B);
    if (job->ngpus > gpus)
        return mem_printf("%u GPUs; published runs have at most %.0f", job->ngpus, gpus);
    return NULL;
}

int limit_band(const struct job *job, struct band *band, struct err *err)
{
    *band = (struct band){0};
    char *path = csv_shipped("bands.csv");
    struct csv csv;
    if (!path) return err_add(err, ERR_FAILED, "the shipped table data/bands.csv is not found");
    int bad = csv_read(&csv, path, err);
    free(path);
    if (bad) return -1;
    for (size_t i = 0; i < csv.nrows; i++) {
        if (strcmp(csv_cell(&csv, i, "kind"), limit_kind_name(limit_kind(job))) != 0 ||
            strcmp(csv_cell(&csv, i, "class"), fw_class_name(job->fw)) != 0) {
            continue;
        }
        band->n = atof(csv_cell(&csv, i, "rows"));
        band->median = atof(csv_cell(&csv, i, "median_pct"));
        band->p90 = atof(csv_cell(&csv, i, "p90_pct"));
        band->unlike = unlike(job, &csv, i);
    }
    csv_release(&csv);
    return 0;
}
