/* SPDX-License-Identifier: Apache-2.0
 * From words and options to a whole strategy: names become table rows, what is absent gets its
 * value. Whether the result is legal is checked elsewhere (rules.c). */
#include "train/strategy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"

const struct precision_row precision_table[] = {
    {"bf16", PREC_16, PEAK_BF16},   {"fp16", PREC_16, PEAK_FP16},
    {"fp32", PREC_FP32, PEAK_FP32}, {"tf32", PREC_TF32, PEAK_TF32},
    {"fp8", PREC_FP8, PEAK_FP8},    {"mxfp8", PREC_FP8, PEAK_FP4},
    {"nvfp4", PREC_FP4, PEAK_FP4},  {0},
};

/* Moments in fp32; adam8bit: two of 1 byte (bitsandbytes), whatever the weights are in. */
const struct optimizer_row optimizer_table[] = {
    {"adamw", 8, 4, 30}, {"adam8bit", 2, 2, 18}, {"momentum", 4, 2, 22}, {"sgd", 0, 0, 14}, {0},
};

static const char *const axis_names[NAXES + 1] = {"tp", "cp", "dp", "pp"};
static const char *const schedule_names[NSCHEDULES + 1] = {
    "gpipe", "1f1b", "interleaved", "zb-1p", "zb-2p", "dualpipe", "dualpipev"};
static const char *const cp_words[] = {"ring", "gather", "ulysses", NULL};
static const char *const offloads[] = {"optimizer", "weights", "activations", NULL};
static const char *const zero_words[] = {"none", "1", "2", "3", "fsdp", NULL};
static const char *const recipes[] = {"tensorwise", "rowwise", NULL};
static const char *const splits[] = {"embedding", "loss", NULL};
static const char *const recomputes[] = {"none", "selective", "full", "full:N", "core_attn", "mlp",
                                         "moe",  "mla_up",    "norm", "act",    "ops",       NULL};

const char *axis_name(enum axis axis)
{
    return axis_names[axis];
}

const char *schedule_name(enum schedule schedule)
{
    return schedule_names[schedule];
}

const char *schedule_whole_name(const char *name)
{
    return strcmp(name, "zb") == 0 ? schedule_names[SCHED_ZB_1P] : name;
}

#define AT(member) offsetof(struct strategy_args, member)
#define DEGREE(name, member, help)                                                                 \
    {                                                                                              \
        name, 0, OPTS_UINT, AT(member), NULL, "N", help, NULL, 1, INT32_MAX, false, NULL           \
    }
#define TEXT(name, member, arg, help)                                                              \
    {                                                                                              \
        name, 0, OPTS_STRING, AT(member), NULL, arg, help, NULL, 0, 0, false, NULL                 \
    }
const struct opts_row strategy_rows[] = {
    {"strategy", 's', OPTS_STRING, AT(strategy), NULL, "WORDS",
     "degrees in one word: tp2pp4, fsdp8x16, tp8cp2pp4vpp5, dp64zero1, ulysses4, ep8etp2, "
     "tp8dp2@order=dp,tp; GPUs that are left over become dp",
     "Strategy", 0, 0, false, NULL},
    DEGREE("tp", tp, "tensor-parallel ranks"),
    {"sp", 0, OPTS_FLAG, AT(sp), NULL, NULL, "sequence parallelism beside tensor parallelism", NULL,
     0, 0, false, NULL},
    DEGREE("pp", pp, "pipeline stages"),
    DEGREE("vpp", vpp, "chunks of each stage (interleaved schedule)"),
    DEGREE("dp", dp, "data-parallel ranks; default: all that are left over"),
    DEGREE("cp", cp, "context-parallel ranks"),
    DEGREE("ulysses", ulysses, "context-parallel ranks that exchange heads by all-to-all"),
    TEXT("cp-comm", cp_comm, "HOW",
         "of cp: keys and values go round a ring, all are gathered before attention (gather), or "
         "heads are exchanged (ulysses); default: the framework's"),
    DEGREE("ep", ep, "expert-parallel ranks, within dp x cp x tp"),
    DEGREE("etp", etp, "tensor-parallel ranks of an expert"),
    TEXT("zero", zero, "LEVEL", "none, 1, 2, 3 or fsdp; default: the framework's"),
    DEGREE("fsdp-shards", shards,
           "ranks of dp that share one copy of what fsdp or zero shards; default: all"),
    DEGREE("fsdp-replicas", replicas, "copies of these groups"),
    TEXT("order", order, "AXES", "axes from the innermost on, e.g. dp,tp; usual: tp,cp,dp,pp"),
    TEXT("schedule", schedule, "NAME",
         "gpipe, 1f1b, interleaved, zb-1p or zb (zero-bubble, memory of 1f1b), zb-2p, dualpipe "
         "(two copies of the weights) or dualpipev; default: 1f1b, interleaved with vpp"),
    TEXT("split", split, "LIST", "embedding, loss: each counts as a layer in the layout"),
    TEXT("layers", layers, "LIST", "layers of every chunk in model order, e.g. 4,8,8,8"),
    DEGREE("layers-per-chunk", layers_per_chunk, "layers of a chunk, in place of vpp"),
    DEGREE("first-stage-layers", first_layers, "layers of the first stage"),
    DEGREE("last-stage-layers", last_layers, "layers of the last stage"),
    {"micro-batch", 0, OPTS_UINT, AT(micro_batch), NULL, "N",
     "sequences of a rank at a time; default 1", "Job", 1, INT32_MAX, false, NULL},
    DEGREE("global-batch", global_batch,
           "sequences of a step; default: 1 Mi tokens, rounded up to what the GPUs divide"),
    DEGREE("accumulation", accumulation, "micro-batches of a rank in a step, for the global batch"),
    {"seq", 0, OPTS_COUNT, AT(seq), NULL, "TOKENS",
     "tokens of a sequence (8K is 8192); default 8192, or the model's longest if that is shorter",
     NULL, 1, INT64_MAX, false, NULL},
    TEXT("precision", precision, "FORMAT",
         "bf16 (default), fp16, fp32, tf32, fp8, mxfp8, nvfp4: what the linears run in"),
    TEXT("recipe", recipe, "NAME", "scaling of fp8: tensorwise (default) or rowwise"),
    TEXT("optimizer", optimizer, "NAME", "adamw (default), adam8bit, momentum, sgd"),
    TEXT("recompute", recompute, "WHAT",
         "none (default), selective, full, full:N (N layers of a chunk), or parts joined by +: "
         "core_attn, mlp, moe, mla_up, norm, act, ops"),
    DEGREE("lora", lora, "train adapters of this rank only"),
    {"qlora", 0, OPTS_FLAG, AT(qlora), NULL, NULL, "with --lora: frozen weights in 4 bits", NULL, 0,
     0, false, NULL},
    TEXT("moe-imbalance", moe_imbalance, "F",
         "tokens of the busiest rank's experts over the mean of all; default 1"),
    TEXT("moe-capacity", moe_capacity, "F",
         "an expert takes at most F times the mean number of tokens, the rest is dropped"),
    {"packed", 0, OPTS_COUNT, AT(packed), NULL, "TOKENS",
     "sequences are packed with documents of this mean length, and attention stays within them",
     NULL, 1, INT64_MAX, false, NULL},
    TEXT("offload", offload, "LIST", "optimizer, weights, activations: kept in the host's memory"),
    TEXT("bucket-size", bucket_size, "SIZE",
         "gradients are reduced in buckets of this size (feature bucket-bytes), 0: all at once"),
    TEXT("prefetch", prefetch, "N",
         "fsdp: layers whose weights are gathered ahead (feature prefetch)"),
    TEXT("tp-tiles", tp_tiles, "N",
         "pieces of a product that overlaps its collective (feature tp-tiles); default: tp"),
    TEXT("framework", framework, "NAME", "a row of data/frameworks.json; default megatron"),
    {"feature", 0, OPTS_LIST, AT(features), NULL, "NAME=VALUE,...",
     "changes features of the framework: tp-overlap=on,attention=fa2", NULL, 0, 0, false, NULL},
    {0},
};
#undef AT
#undef DEGREE
#undef TEXT

/* ---- words against long options ---- */

/* Fields that a word and a long option can both set. */
static const struct {
    const char *name;
    size_t offset;
} degrees[] = {
#define BOTH(name)                                                                                 \
    {                                                                                              \
#name, offsetof(struct strategy_args, name)                                                \
    }
    BOTH(tp), BOTH(pp),  BOTH(dp),  BOTH(cp),     BOTH(ulysses),
    BOTH(ep), BOTH(etp), BOTH(vpp), BOTH(shards), BOTH(replicas),
#undef BOTH
};

/* Merges the strategy word into the options: the same value twice is fine. */
static int merge_word(struct strategy_args *args, struct err *err)
{
    if (!args->strategy) return 0;
    struct strategy_args word = {0};
    int result = strategy_parse(&word, args->strategy, err);
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        uint64_t *option = (uint64_t *)(void *)((char *)args + degrees[i].offset);
        uint64_t said = *(uint64_t *)(void *)((char *)&word + degrees[i].offset);
        if (*option && said && *option != said)
            result = err_add(err, ERR_USAGE,
                             "--strategy %s says %s %" PRIu64 ", an option says %" PRIu64
                             "; give one of the two",
                             args->strategy, degrees[i].name, said, *option);
        if (said) *option = said;
    }
    const char **texts[] = {&args->zero, &args->order}, *said[] = {word.zero, word.order};
    for (size_t i = 0; i < 2; i++) {
        if (*texts[i] && said[i] && strcmp(*texts[i], said[i]) != 0)
            result = err_add(err, ERR_USAGE,
                             "--strategy %s says %s %s, an option says %s; give one of the two",
                             args->strategy, i ? "order" : "zero", said[i], *texts[i]);
        if (said[i]) *texts[i] = said[i];
    }
    args->sp |= word.sp;
    return result;
}

/* ---- names ---- */

/* Position of `text` among `names` (ended by NULL); -1 with a sentence. */
static int pick(const char *option, const char *text, const char *const *names, struct err *err)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0) return i;
    char *what = mem_printf("value for %s", option);
    opts_unknown(err, what, text, names);
    free(what);
    return -1;
}

/* The names of a table whose rows begin with one. Freed by the caller. */
static const char **row_names(const void *rows, size_t row_bytes)
{
    size_t count = 0, cap = 0;
    const char **names = NULL;
    for (const char *row = rows;; row += row_bytes) {
        MEM_GROW(names, count, cap);
        names[count] = *(const char *const *)(const void *)row;
        if (!names[count++]) return names;
    }
}

static int read_precision(struct strategy *s, const struct strategy_args *args, struct err *err)
{
    const char **names = row_names(precision_table, sizeof *precision_table);
    int i = 0, result = 0;
    if (args->precision && strchr(args->precision, ','))
        i = err_add(err, ERR_USAGE,
                    "--precision: \"%s\" names several formats, they exclude each "
                    "other; give one",
                    args->precision);
    else if (args->precision)
        i = pick("--precision", args->precision, names, err);
    if (i < 0) result = -1;
    s->precision = &precision_table[i < 0 ? 0 : i];
    if (args->recipe) {
        int recipe = pick("--recipe", args->recipe, recipes, err);
        if (recipe < 0) result = -1;
        s->fp8_rowwise = recipe == 1;
        if (recipe >= 0 && s->precision->precision != PREC_FP8)
            result = err_add(err, ERR_USAGE, "--recipe: %s is for fp8 and mxfp8, precision is %s",
                             args->recipe, s->precision->name);
    }
    free(names);
    return result;
}

static int read_optimizer(struct strategy *s, const struct strategy_args *args, struct err *err)
{
    const char **names = row_names(optimizer_table, sizeof *optimizer_table);
    int i = args->optimizer ? pick("--optimizer", args->optimizer, names, err) : 0;
    s->optimizer = &optimizer_table[i < 0 ? 0 : i];
    free(names);
    return i < 0 ? -1 : 0;
}

/* "mlp+norm": parts to run again. */
static int read_parts(struct strategy *s, const char *text, struct err *err)
{
    static const struct {
        const char *name;
        unsigned module;
    } parts[] = {
        {"core_attn", RCM_CORE_ATTN}, {"mlp", RCM_MLP}, {"moe", RCM_MOE}, {"mla_up", RCM_MLA_UP},
        {"norm", RCM_NORM | RCM_ACT}, {"act", RCM_ACT}, {"ops", RCM_OPS}};
    int result = 0;
    unsigned seen = 0; /* of the words */
    s->recompute = RC_SELECTIVE;
    s->rc_modules = 0;
    for (size_t length; *text; text += length + (text[length] == '+')) {
        length = strcspn(text, "+");
        size_t i = 0, n = sizeof parts / sizeof *parts;
        while (i < n && (strlen(parts[i].name) != length || strncmp(parts[i].name, text, length)))
            i++;
        if (i < n) {
            s->rc_modules |= parts[i].module;
            if (seen & 1u << i)
                result = err_add(err, ERR_USAGE, "--recompute: %.*s stands there twice",
                                 (int)length, text);
            seen |= 1u << i;
            continue;
        }
        char *word = mem_printf("%.*s", (int)length, text);
        result = opts_unknown(err, "value for --recompute", word, recomputes);
        free(word);
    }
    return result;
}

static int read_recompute(struct strategy *s, const char *text, struct err *err)
{
    if (!text || strcmp(text, "none") == 0) return 0;
    if (strcmp(text, "selective") == 0) {
        s->recompute = RC_SELECTIVE;
        s->rc_modules = s->framework.op_recompute ? RCM_OPS : RCM_CORE_ATTN;
        return 0;
    }
    if (strncmp(text, "full", 4) == 0 && (text[4] == '\0' || text[4] == ':')) {
        s->recompute = RC_FULL;
        if (text[4] == '\0') return 0;
        return units_read_uint("--recompute full:N", text + 5, 1, INT32_MAX, &s->rc_blocks, err);
    }
    if (*text == '\0') return opts_unknown(err, "value for --recompute", text, recomputes);
    return read_parts(s, text, err);
}

/* Which of the names in a comma-separated list are there, in which order: seen[i] is the position
 * of names[i] + 1, or 0. */
static int read_names(const char *option, const char *text, const char *const *names,
                      unsigned *seen, struct err *err)
{
    int result = 0;
    unsigned position = 0;
    for (size_t length;; text += length + 1) {
        length = strcspn(text, ",");
        char *word = mem_printf("%.*s", (int)length, text);
        int i = pick(option, word, names, err);
        if (i >= 0 && seen[i])
            i = err_add(err, ERR_USAGE, "%s: \"%s\" is given twice", option, word);
        if (i >= 0) seen[i] = ++position;
        if (i < 0) result = -1;
        free(word);
        if (text[length] == '\0') return result;
    }
}

static int read_order(struct strategy *s, const char *text, struct err *err)
{
    unsigned seen[NAXES] = {0};
    int result = text ? read_names("--order", text, axis_names, seen, err) : 0;
    unsigned count = 0;
    for (unsigned position = 1; position <= NAXES; position++)
        for (unsigned axis = 0; axis < NAXES; axis++)
            if (seen[axis] == position) s->order[count++] = (enum axis)axis;
    for (unsigned axis = 0; axis < NAXES; axis++)
        if (!seen[axis]) s->order[count++] = (enum axis)axis;
    return result;
}

static int read_zero(struct strategy *s, const struct strategy_args *args, struct err *err)
{
    s->zero = s->framework.zero;
    s->fsdp = s->zero == ZERO_3; /* a framework that shards all by default is an FSDP */
    const char *text = args->zero ? args->zero : args->shards ? "fsdp" : NULL;
    if (!text) return 0;
    int level = pick("--zero", text, zero_words, err);
    if (level < 0) return -1;
    s->fsdp = level == 4;
    s->zero = s->fsdp ? ZERO_3 : (enum zero_level)level;
    if (args->shards && !s->zero)
        return err_add(err, ERR_USAGE,
                       "--fsdp-shards: %" PRIu64 " shards are for fsdp and zero1 to zero3, zero is "
                       "%s",
                       args->shards, text);
    return 0;
}

static int read_schedule(struct strategy *s, const char *text, struct err *err)
{
    s->schedule = s->vpp > 1 ? SCHED_INTERLEAVED : SCHED_1F1B;
    if (!text) return 0;
    int i = pick("--schedule", schedule_whole_name(text), schedule_names, err);
    if (i < 0) return -1;
    s->schedule = (enum schedule)i;
    return 0;
}

/* Options that are features by another name. */
static int read_overlap(struct strategy *s, const struct strategy_args *args, struct err *err)
{
    struct framework *f = &s->framework;
    uint64_t bytes = 0;
    int result = 0;
    if (args->bucket_size) {
        result |= units_read_size("--bucket-size", args->bucket_size, &bytes, err);
        f->bucket_bytes = (double)bytes;
        if (bytes == 0) f->bucket_params = f->bucket_params_per_rank = 0;
    }
    if (args->prefetch) {
        result |= units_read_uint("--prefetch", args->prefetch, 0, 1 << 20, &f->prefetch, err);
        f->prefetch_params = 0;
    }
    if (args->tp_tiles)
        result |= units_read_uint("--tp-tiles", args->tp_tiles, 1, 1 << 10, &f->tp_tiles, err);
    return result;
}

const char *const strategy_usual_framework = "megatron";

static int read_framework(struct strategy *s, const struct strategy_args *args,
                          const struct framework_table *frameworks, struct err *err)
{
    const char *name = args->framework ? args->framework : strategy_usual_framework;
    const struct framework *row = framework_find(frameworks, name, err);
    if (!row) return -1;
    s->framework = *row;
    int result = 0;
    for (size_t i = 0; i < args->features.count; i++)
        result |= framework_feature(&s->framework, args->features.items[i], err);
    return result | read_overlap(s, args, err);
}

/* ---- what follows ---- */

static uint64_t or_one(uint64_t value)
{
    return value ? value : 1;
}

/* "ring", "gather" or "ulysses", which the words and options may say too. */
static int set_cp(struct strategy *s, const struct strategy_args *args, struct err *err)
{
    s->ulysses = args->ulysses > 1;
    s->cp = or_one(s->ulysses ? args->ulysses : args->cp);
    if (!args->cp_comm) return 0;
    int how = pick("--cp-comm", args->cp_comm, cp_words, err);
    if (how < 0) return -1;
    if (how == 2) {
        s->ulysses = s->cp > 1;
        return 0;
    }
    s->framework.cp = (enum cp_exchange)how;
    if (!s->ulysses) return 0;
    return err_add(err, ERR_USAGE,
                   "--cp-comm %s and ulysses %" PRIu64 " contradict each other; give cp %" PRIu64
                   " in place of ulysses, or leave "
                   "--cp-comm out",
                   args->cp_comm, s->cp, s->cp);
}

static int read_share(const char *option, const char *text, double least, bool above, double *value,
                      struct err *err)
{
    if (!text) return 0;
    if (units_read_double(option, text, value, err)) return -1;
    if (*value <= 1e6 && (above ? *value > least : *value >= least)) return 0;
    return err_add(err, ERR_USAGE, "%s is %g, it must be %s %g and at most 1e6", option, *value,
                   above ? "above" : "at least", least);
}

static int read_load(struct strategy *s, const struct strategy_args *args, struct err *err)
{
    unsigned seen[3] = {0};
    int result = args->offload ? read_names("--offload", args->offload, offloads, seen, err) : 0;
    for (unsigned i = 0; i < 3; i++)
        if (seen[i]) s->offload |= 1u << i;
    s->moe_imbalance = 1;
    s->packed = args->packed;
    result |= read_share("--moe-imbalance", args->moe_imbalance, 1, false, &s->moe_imbalance, err);
    result |= read_share("--moe-capacity", args->moe_capacity, 0, true, &s->moe_capacity, err);
    return result;
}

/* Whether shards and replicas say how many data-parallel ranks there are: "fsdp8x16" does, the
 * shards of ZeRO are a part of those that are left over. */
static bool of_fsdp(const struct strategy_args *args)
{
    return !args->zero || strcmp(args->zero, "fsdp") == 0;
}

static int set_degrees(struct strategy *s, const struct strategy_args *args,
                       const struct model *model, struct err *err)
{
    int result = 0;
    if (args->cp > 1 && args->ulysses > 1)
        result = err_add(err, ERR_USAGE,
                         "--cp %" PRIu64 " and --ulysses %" PRIu64
                         " are two ways to cut a sequence; give one of the two",
                         args->cp, args->ulysses);
    bool product = args->shards && (args->replicas || of_fsdp(args));
    if (product && args->dp && args->dp != args->shards * or_one(args->replicas))
        result = err_add(
            err, ERR_USAGE,
            "--dp: %" PRIu64 " is not %" PRIu64 " shards x %" PRIu64 " replicas = %" PRIu64,
            args->dp, args->shards, or_one(args->replicas), args->shards * or_one(args->replicas));
    s->tp = or_one(args->tp);
    s->pp = or_one(args->pp);
    result |= set_cp(s, args, err);
    s->ep = or_one(args->ep);
    s->etp = or_one(args->etp);
    s->layers_per_chunk = args->layers_per_chunk;
    s->vpp = or_one(args->vpp);
    if (args->layers_per_chunk && !args->vpp)
        s->vpp = or_one(model->layers / s->pp / args->layers_per_chunk);
    s->sp_asked = args->sp;
    s->sp = (args->sp || s->framework.tp_with_sp) && s->tp > 1;
    return result;
}

/* Product, or UINT64_MAX where it would not fit: no cluster is that large. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static void set_data_parallel(struct strategy *s, const struct strategy_args *args, uint64_t gpus)
{
    uint64_t model_parallel = times(times(s->tp, s->pp), s->cp);
    s->gpus = gpus;
    bool product = args->shards && (args->replicas || of_fsdp(args));
    s->dp = args->dp ? args->dp : product ? args->shards * or_one(args->replicas) : 0;
    s->dp_given = s->dp != 0;
    if (!s->dp) s->dp = or_one(gpus / model_parallel);
    s->edp = or_one(gpus / times(times(s->etp, s->ep), s->pp));
    uint64_t group = args->shards ? args->shards : or_one(s->dp / or_one(args->replicas));
    s->shards = times(group, s->cp);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int set_batch(struct strategy *s, const struct strategy_args *args,
                     const struct model *model, struct err *err)
{
    uint64_t longest = model->positions ? model->positions : model->max_positions;
    s->seq = args->seq ? args->seq : longest && longest < 8192 ? longest : 8192;
    s->seq_assumed = !args->seq;
    s->micro_batch = or_one(args->micro_batch);
    s->micro_assumed = !args->micro_batch;
    s->accumulation = args->accumulation;
    uint64_t round = times(s->micro_batch, s->dp);
    uint64_t step = times(s->gpus / gcd(s->gpus, round), round);
    uint64_t usual = ((1 << 20) + s->seq - 1) / s->seq;
    s->batch_assumed = !args->global_batch && !args->accumulation;
    s->global_batch = args->global_batch   ? args->global_batch
                      : args->accumulation ? times(round, args->accumulation)
                                           : times(usual / step + (usual % step != 0), step);
    uint64_t rank = (s->global_batch + s->dp - 1) / s->dp;
    s->micro_batches = or_one((rank + s->micro_batch - 1) / s->micro_batch);
    if (times(s->global_batch, s->seq) <= INT64_MAX) return 0;
    return err_add(err, ERR_USAGE,
                   "--global-batch: %" PRIu64 " sequences of %" PRIu64
                   " tokens are more than 2^63 tokens",
                   s->global_batch, s->seq);
}

/* "4,8,8": as many entries as there are; rules.c compares count and sum. */
static int read_layers(struct strategy *s, const char *text, struct err *err)
{
    size_t cap = 0;
    for (size_t length;; text += length + 1) {
        length = strcspn(text, ",");
        char *number = mem_printf("%.*s", (int)length, text);
        MEM_GROW(s->layout, s->nlayout, cap);
        int bad = units_read_uint("--layers", number, 0, INT32_MAX, &s->layout[s->nlayout], err);
        free(number);
        if (bad) return -1;
        s->nlayout++;
        if (text[length] == '\0') break;
    }
    s->layers_given = true;
    return 0;
}

static int set_layout(struct strategy *s, const struct strategy_args *args,
                      const struct model *model, struct err *err)
{
    unsigned seen[2] = {0};
    int result = args->split ? read_names("--split", args->split, splits, seen, err) : 0;
    uint64_t chunks = times(s->pp, s->vpp);
    s->layout_args = (struct layout_args){.layers = model->layers,
                                          .pp = s->pp,
                                          .vpp = s->vpp,
                                          .embedding = seen[0],
                                          .loss = seen[1],
                                          .first = args->first_layers,
                                          .last = args->last_layers};
    if (args->layers) {
        if (args->split || args->first_layers || args->last_layers)
            result = err_add(err, ERR_USAGE,
                             "--layers gives every chunk; --split, --first-stage-layers and "
                             "--last-stage-layers have no place beside it");
        return result | read_layers(s, args->layers, err);
    }
    if (chunks > 1 << 24)
        return err_add(err, ERR_USAGE,
                       "--pp %" PRIu64 " x --vpp %" PRIu64 " are more than %d chunks", s->pp,
                       s->vpp, 1 << 24);
    s->layout = mem_calloc(chunks, sizeof *s->layout);
    s->nlayout = chunks;
    strategy_layout(&s->layout_args, s->layout);
    return result;
}

/* Appends "tp2" if the degree is not 1. */
static void append(char **word, const char *name, uint64_t degree)
{
    if (degree <= 1) return;
    char *longer = mem_printf("%s%s%" PRIu64, *word, name, degree);
    free(*word);
    *word = longer;
}

/* Appends "@order=dp,tp" if the order is not the usual one; axes that follow in the usual order are
 * not named. */
static void append_order(char **word, const struct strategy *s)
{
    unsigned named = NAXES;
    while (named > 0 && (named == NAXES || s->order[named - 1] < s->order[named]))
        named--;
    if (named == 0) return;
    if (named == 1) named = 2; /* "dp" alone would read as if dp were the only axis moved */
    for (unsigned i = 0; i < named; i++) {
        char *longer = mem_printf("%s%s%s", *word, i ? "," : "@order=", axis_names[s->order[i]]);
        free(*word);
        *word = longer;
    }
}

static char *canonical(const struct strategy *s)
{
    char *word = mem_strdup("");
    append(&word, "tp", s->tp);
    append(&word, s->ulysses ? "ulysses" : "cp", s->cp);
    append(&word, "pp", s->pp);
    append(&word, "vpp", s->vpp);
    if (!s->fsdp) append(&word, "dp", s->dp);
    append(&word, "ep", s->ep);
    append(&word, "etp", s->etp);
    uint64_t shards = s->shards / s->cp;
    char *fsdp = s->fsdp && shards < s->dp
                     ? mem_printf("fsdp%" PRIu64 "x%" PRIu64, shards, s->dp / shards)
                     : mem_printf("fsdp%" PRIu64, shards);
    char *part = s->zero && shards < s->dp ? mem_printf("shards%" PRIu64, shards) : mem_strdup("");
    char *zero = s->zero == s->framework.zero && !s->zero
                     ? mem_strdup("")
                     : mem_printf("zero%u%s", (unsigned)s->zero, part);
    char *text = mem_printf("%s%s%s", word, s->fsdp ? fsdp : zero, s->sp ? "sp" : "");
    if (*text == '\0') {
        free(text);
        text = mem_strdup("dp1");
    }
    append_order(&text, s);
    free(word);
    free(fsdp);
    free(zero);
    free(part);
    return text;
}

int strategy_make(struct strategy *strategy, const struct strategy_args *args,
                  const struct topo *topo, const struct model *model,
                  const struct framework_table *frameworks, struct err *err)
{
    struct strategy_args all = *args;
    struct strategy *s = strategy;
    *s = (struct strategy){0};
    int result = merge_word(&all, err);
    result |= read_framework(s, &all, frameworks, err);
    result |= set_degrees(s, &all, model, err);
    set_data_parallel(s, &all, topo_gpus(topo));
    result |= read_precision(s, &all, err) | read_optimizer(s, &all, err);
    result |= read_recompute(s, all.recompute, err) | read_order(s, all.order, err);
    result |= read_zero(s, &all, err) | read_schedule(s, all.schedule, err);
    result |= set_batch(s, &all, model, err) | set_layout(s, &all, model, err);
    result |= read_load(s, &all, err);
    s->asked = (all.prefetch ? ASKED_PREFETCH : 0u) | (all.cp_comm ? ASKED_CP_COMM : 0u) |
               (all.tp_tiles ? ASKED_TP_TILES : 0u) | (all.bucket_size ? ASKED_BUCKET : 0u) |
               (all.schedule ? ASKED_SCHEDULE : 0u);
    s->lora = all.lora;
    s->qlora = all.qlora;
    if (result) {
        strategy_release(s);
        return -1;
    }
    s->word = canonical(s);
    return 0;
}

void strategy_release(struct strategy *strategy)
{
    free(strategy->word);
    free(strategy->layout);
    *strategy = (struct strategy){0};
}

uint64_t strategy_degree(const struct strategy *strategy, enum axis axis)
{
    const uint64_t degree[NAXES] = {[AXIS_TP] = strategy->tp,
                                    [AXIS_CP] = strategy->cp,
                                    [AXIS_DP] = strategy->dp,
                                    [AXIS_PP] = strategy->pp};
    return degree[axis];
}

uint64_t strategy_stride(const struct strategy *strategy, enum axis axis)
{
    uint64_t stride = 1;
    for (unsigned i = 0; i < NAXES && strategy->order[i] != axis; i++)
        stride = times(stride, strategy_degree(strategy, strategy->order[i]));
    return stride;
}
