/* SPDX-License-Identifier: Apache-2.0
 * What all configuration formats share: finding the text, merging it with the options, and writing
 * a strategy so that it is known to be read back as the same. */
#include "train/config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/units.h"

static const struct config_format *const formats[NCONFIGS] = {
    &config_megatron, &config_deepspeed, &config_torchtitan, &config_accelerate};

const char *const config_emit_names[] = {"megatron", "deepspeed", "torchtitan", "fsdp", NULL};

const char *config_own(struct config *c, char *text)
{
    c->owned = mem_realloc(c->owned, c->nowned + 1, sizeof *c->owned);
    return c->owned[c->nowned++] = text;
}

void config_feature(struct config *c, const char *name, const char *value)
{
    struct opts_list *list = &c->args.features;
    char *text = mem_printf("%s=%s", name, value);
    config_own(c, text);
    list->items = mem_realloc(list->items, list->count + 1, sizeof *list->items);
    list->items[list->count++] = text;
}

void config_claim(struct config *c, const char *key, size_t offset, bool flag, uint64_t value)
{
    MEM_GROW(c->claims, c->nclaims, c->claims_cap);
    c->claims[c->nclaims++] = (struct config_claim){key, offset, flag, value};
}

const char *config_either(const struct config *c, const char *key, const char *other)
{
    return !config_find(&c->items, key) && config_find(&c->items, other) ? other : key;
}

int config_contradiction(const struct config *c, const char *key, const char *other,
                         const char *why, struct err *err)
{
    return err_add(err, ERR_USAGE, "%s: contradicts %s: %s", config_where(&c->items, key), other,
                   why);
}

/* ---- reading ---- */

enum { BYTES_MAX = 1 << 20 };

char *config_read_file(const char *option, const char *path, struct err *err)
{
    struct stat st;
    FILE *file = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    if (!file) {
        err_add(err, ERR_USAGE, "--%s: %s cannot be read, or is no file", option, path);
        return NULL;
    }
    char *text = mem_calloc(BYTES_MAX + 2, 1);
    size_t n = fread(text, 1, BYTES_MAX + 1, file);
    fclose(file);
    if (n <= BYTES_MAX && !memchr(text, '\0', n)) return text;
    err_add(err, ERR_USAGE, "--%s: %s is longer than %d bytes, or holds a byte 0", option, path,
            BYTES_MAX);
    free(text);
    return NULL;
}

int config_parse(struct config *c, const struct config_format *format, const char *name,
                 const char *text, struct err *err)
{
    c->format = format;
    if (c->format->scan(&c->items, name, text, err)) return -1;
    if (config_check_names(&c->items, format->words, format->unmodelled, err)) return -1;
    void *said = mem_calloc(1, c->format->bytes);
    int result = config_fill(&c->items, c->format->words, said, err);
    if (!result) result = c->format->translate(c, said, err);
    free(said);
    return result;
}

int config_read(struct config *c, const struct config_args *args, struct err *err)
{
    *c = (struct config){0};
    const char *value = NULL;
    for (size_t i = 0; i < NCONFIGS; i++) {
        if (!args->text[i]) continue;
        if (value)
            return err_add(err, ERR_USAGE, "--%s and --%s are two configurations; give one",
                           c->format->option, formats[i]->option);
        c->format = formats[i];
        value = args->text[i];
    }
    if (!value) return 0;
    bool is_text = c->format->inline_text && *value != '@' && strstr(value, "--");
    const char *path = *value == '@' ? value + 1 : value;
    if (c->format == &config_megatron && *value != '@' && !is_text)
        return err_add(err, ERR_USAGE,
                       "--megatron-args: \"%.60s\" holds no option; paste the arguments, or write "
                       "@FILE for those in a file",
                       value);
    char *text = is_text ? mem_strdup(value) : config_read_file(c->format->option, path, err);
    char *name = is_text ? mem_printf("--%s", c->format->option) : mem_strdup(path);
    int result = text ? config_parse(c, c->format, name, text, err) : -1;
    free(text);
    free(name);
    return result;
}

void config_release(struct config *c)
{
    config_items_release(&c->items);
    for (size_t i = 0; i < c->nowned; i++)
        free(c->owned[i]);
    free(c->owned);
    free(c->claims);
    free(c->args.features.items);
    model_release(&c->shape);
    *c = (struct config){0};
}

char *config_note(const struct config *c, bool modelled)
{
    char *unread = config_unread(&c->items, c->format->unmodelled, modelled);
    if (!unread) return NULL;
    char *text =
        mem_printf("--%s: %s: %s", c->format->option,
                   modelled ? "not known here or without bearing on the prediction, not read"
                            : "changes time or memory, but is not modelled, not read",
                   unread);
    free(unread);
    return text;
}

/* ---- options beside it ---- */

/* The field of a row as text, NULL where nothing is said. `buf` of UNITS_TEXT bytes. */
static const char *field_text(const struct opts_row *row, const struct strategy_args *args,
                              char *buf)
{
    const void *at = (const char *)args + row->offset;
    uint64_t number = 0;
    switch (row->type) {
    case OPTS_UINT:
    case OPTS_SIZE:
    case OPTS_COUNT:
        number = *(const uint64_t *)at;
        snprintf(buf, UNITS_TEXT, "%" PRIu64, number);
        return number ? buf : NULL;
    case OPTS_FLAG:
        return *(const bool *)at ? "on" : NULL;
    case OPTS_STRING:
        return *(const char *const *)at;
    default:
        return NULL;
    }
}

static void copy_field(const struct opts_row *row, struct strategy_args *to,
                       const struct strategy_args *from)
{
    size_t bytes = row->type == OPTS_FLAG     ? sizeof(bool)
                   : row->type == OPTS_STRING ? sizeof(const char *)
                                              : sizeof(uint64_t);
    memcpy((char *)to + row->offset, (const char *)from + row->offset, bytes);
}

/* Degrees of 1 and words of --strategy: the first that contradicts is one sentence. */
static int check_word(const struct config *c, const struct strategy_args *user, struct err *err)
{
    struct strategy_args word = {0};
    char mine[UNITS_TEXT], theirs[UNITS_TEXT];
    if (!user->strategy) return 0;
    if (strategy_parse(&word, user->strategy, err)) return -1;
    for (const struct opts_row *row = strategy_rows; row->name; row++) {
        const char *a = field_text(row, &word, mine), *b = field_text(row, &c->args, theirs);
        if (a && b && strcmp(a, b) != 0)
            return err_add(err, ERR_USAGE,
                           "--strategy %s says %s %s, --%s says %s; give one of the two",
                           user->strategy, row->name, a, c->format->option, b);
    }
    return 0;
}

static int merge_options(const struct config *c, struct strategy_args *user,
                         const struct opts *opts, struct err *err)
{
    int result = 0;
    char mine[UNITS_TEXT], theirs[UNITS_TEXT];
    for (const struct opts_row *row = strategy_rows; row->name; row++) {
        const char *said = field_text(row, &c->args, theirs);
        if (!said) continue;
        const char *option = opts_is_set(opts, row->name) ? field_text(row, user, mine) : NULL;
        bool framework = strcmp(row->name, "framework") == 0;
        if (option && !framework && strcmp(option, said) != 0)
            result = err_add(err, ERR_USAGE,
                             "--%s says %s %s, --%s %s is given beside it; give one of the two",
                             c->format->option, row->name, said, row->name, option);
        if (!option) copy_field(row, user, &c->args);
    }
    return result;
}

/* The configuration's features before the user's, which so have the last word. */
static void merge_features(struct config *c, struct strategy_args *user)
{
    struct opts_list *mine = &c->args.features, *theirs = &user->features;
    if (!mine->count) return;
    size_t count = mine->count + theirs->count;
    char **items = mem_calloc(count, sizeof *items);
    memcpy(items, mine->items, mine->count * sizeof *items);
    if (theirs->count) memcpy(items + mine->count, theirs->items, theirs->count * sizeof *items);
    config_own(c, (char *)theirs->items); /* its texts are in use; the new list is freed by opts */
    *theirs = (struct opts_list){count, items};
}

/* ---- the model ---- */

/* Figures of a shape that a configuration can state. */
static const struct {
    const char *name;
    size_t offset;
} figures[] = {
#define FIGURE(name, field)                                                                        \
    {                                                                                              \
        name, offsetof(struct model, field)                                                        \
    }
    FIGURE("layers", layers),
    FIGURE("hidden size", hidden),
    FIGURE("MLP width", ffn),
    FIGURE("heads", heads),
    FIGURE("key/value heads", kv_heads),
    FIGURE("head size", head_dim),
    FIGURE("vocabulary", vocab),
    FIGURE("experts", experts),
    FIGURE("experts per token", experts_per_token),
    FIGURE("groups of experts", router_groups),
    FIGURE("groups per token", router_group_topk),
    FIGURE("expert width", expert_ffn),
    FIGURE("shared expert width", shared_ffn),
    FIGURE("dense layers", dense_layers),
    FIGURE("KV latent", kv_lora_rank),
    FIGURE("query latent", q_lora_rank),
    FIGURE("window", window),
#undef FIGURE
};

/* Compares two finished shapes; one sentence for the first figure that differs, which ends in
 * `so`. */
static int compare_shapes(const char *option, const struct model *said, const struct model *model,
                          const char *so, struct err *err)
{
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        uint64_t a = *(const uint64_t *)(const void *)((const char *)said + figures[i].offset);
        uint64_t b = *(const uint64_t *)(const void *)((const char *)model + figures[i].offset);
        if (a != b)
            return err_add(err, ERR_USAGE, "%s: %s %" PRIu64 ", model %s: %" PRIu64 "; %s", option,
                           figures[i].name, a, model->name, b, so);
    }
    if (said->params == model->params) return 0;
    return err_add(err, ERR_USAGE,
                   "%s: the shape has %" PRIu64 " parameters, model %s has %" PRIu64
                   " (biases, norms, or a tied head); %s",
                   option, said->params, model->name, model->params, so);
}

/* A shape beside --model: they must agree, and the model, which knows more, is taken. */
static int check_model(struct config *c, const char *name, struct err *err)
{
    struct model model = {0};
    if (model_read(&model, name, err)) return -1;
    if (!c->shape.vocab) c->shape.vocab = model.vocab;
    char *option = mem_printf("--%s", c->format->option);
    int result = model_build(&c->shape, err);
    if (!result)
        result = compare_shapes(option, &c->shape, &model, "these are two models, give one", err);
    free(option);
    model_release(&model);
    return result;
}

static bool is_preset(const char *name)
{
    struct err unused = ERR_INIT;
    struct model model = {0};
    bool found = model_read(&model, name, &unused) == 0;
    err_release(&unused);
    model_release(&model);
    return found;
}

/* Figures that stand by themselves must be those of the model. */
static int check_claims(const struct config *c, const char *name, struct err *err)
{
    struct model model = {0};
    int result = 0;
    if (!c->nclaims) return 0;
    if (model_read(&model, name, err)) return -1;
    for (size_t i = 0; i < c->nclaims; i++) {
        const struct config_claim *claim = &c->claims[i];
        const void *at = (const char *)&model + claim->offset;
        uint64_t is = claim->flag ? *(const bool *)at : *(const uint64_t *)at;
        const struct config_item *item = config_find(&c->items, claim->key);
        const char *value = item && item->value ? item->value : "";
        char has[UNITS_TEXT];
        snprintf(has, sizeof has, "has %" PRIu64, is);
        if (is != claim->value)
            result =
                err_add(err, ERR_USAGE, "%s%s%.60s: model %s %s; these are two models, give one",
                        config_where(&c->items, claim->key), *value ? " " : "", value, name,
                        claim->flag ? "is otherwise" : has);
    }
    model_release(&model);
    return result;
}

/* Megatron keeps the activations of the last layer, whose backward pass comes first. */
static int check_offload(const struct config *c, const struct plan_args *args, struct err *err)
{
    struct model model = {0};
    if (!c->offload_layers) return 0;
    if (!c->has_shape && model_read(&model, args->model, err)) return -1;
    uint64_t layers = c->has_shape ? c->shape.layers : model.layers;
    model_release(&model);
    if (c->offload_layers + 1 >= layers) return 0;
    return err_add(err, ERR_USAGE,
                   "%s: is %" PRIu64 ", but what is modelled is that activations of all layers go "
                   "to the host or none; give %" PRIu64 " of the %" PRIu64
                   " (those of the last layer stay)",
                   config_where(&c->items, "cpu-offloading-num-layers"), c->offload_layers,
                   layers - 1, layers);
}

static int apply_model(struct config *c, struct plan_args *args, const struct opts *opts,
                       struct err *err)
{
    bool given = opts_is_set(opts, "model");
    if (c->model && !given) args->model = c->model;
    if (c->model && given && strcmp(c->model, args->model) != 0 && is_preset(c->model))
        return err_add(err, ERR_USAGE,
                       "--%s is for %s, --model %s is given beside it; give one of the two",
                       c->format->option, c->model, args->model);
    if (c->lacks && !given) return err_add(err, ERR_USAGE, "%s", c->lacks);
    if (!c->has_shape) return check_claims(c, args->model, err);
    if (given) return check_model(c, args->model, err);
    if (!c->shape.vocab)
        return err_add(err, ERR_USAGE,
                       "--%s: the size of the vocabulary is missing; add --vocab-size, or name the "
                       "model with --model",
                       c->format->option);
    if (model_build(&c->shape, err)) return -1;
    args->shape = &c->shape;
    return 0;
}

/* ---- the cluster ---- */

/* DeepSpeed: whichever of the three is missing follows from the other two. */
static int derive_batch(const struct config *c, struct strategy_args *args, uint64_t gpus,
                        struct err *err)
{
    struct strategy_args word = {0};
    if (args->strategy && strategy_parse(&word, args->strategy, err)) return -1;
    uint64_t model = 1, steps = args->accumulation ? args->accumulation : 1;
    const uint64_t degrees[][2] = {{args->tp, word.tp},
                                   {args->pp, word.pp},
                                   {args->cp, word.cp},
                                   {args->ulysses, word.ulysses}};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees && model < gpus; i++) {
        uint64_t degree = degrees[i][0] ? degrees[i][0] : degrees[i][1];
        model *= degree ? degree : 1;
    }
    uint64_t ranks = gpus / model ? gpus / model : 1, round = ranks * steps;
    if (args->global_batch % round == 0) {
        args->micro_batch = args->global_batch / round;
        return 0;
    }
    uint64_t less = args->global_batch / round * round;
    char *nearest = less ? mem_printf("%" PRIu64 " and %" PRIu64, less, less + round)
                         : mem_printf("%" PRIu64, round);
    err_add(err, ERR_USAGE,
            "--%s: a batch of %" PRIu64 " sequences is no multiple of %" PRIu64
            " data-parallel ranks x %" PRIu64 " micro-batches = %" PRIu64 "; nearest: %s",
            c->format->option, args->global_batch, ranks, steps, round, nearest);
    free(nearest);
    return -1;
}

static int apply_cluster(const struct config *c, struct plan_args *args,
                         const struct tables *tables, struct err *err)
{
    bool derive = c->derive_batch && !args->strategy.micro_batch && args->strategy.global_batch;
    struct topo topo = {0};
    if (!derive && !c->gpus && !c->hosts) return 0;
    if (topo_read(&topo, &tables->accels, args->cluster.topo, args->cluster.nodes,
                  args->cluster.gpus, err))
        return -1;
    int result = 0;
    uint64_t gpus = topo_gpus(&topo), hosts = topo.hosts;
    if (c->gpus && c->gpus != gpus)
        result = err_add(err, ERR_USAGE,
                         "--%s is for %" PRIu64 " GPUs, the cluster %s has %" PRIu64
                         "; --gpus %" PRIu64 " resizes it",
                         c->format->option, c->gpus, args->cluster.topo, gpus, c->gpus);
    else if (c->hosts && c->hosts != hosts)
        result = err_add(err, ERR_USAGE,
                         "--%s is for %" PRIu64 " hosts, the cluster %s has %" PRIu64
                         "; --nodes %" PRIu64 " resizes it",
                         c->format->option, c->hosts, args->cluster.topo, hosts, c->hosts);
    if (derive && !result) result = derive_batch(c, &args->strategy, gpus, err);
    topo_release(&topo);
    return result;
}

/* torchtitan: every n-th layer, as so many layers of each chunk. */
static int derive_recompute(struct config *c, struct plan_args *args, struct err *err)
{
    struct strategy_args *s = &args->strategy;
    struct model model = {0};
    if (!c->recompute_every || s->recompute) return 0;
    if (model_read(&model, args->model, err)) return -1;
    uint64_t chunks = (s->pp ? s->pp : 1) * (s->vpp ? s->vpp : 1);
    uint64_t chunk = s->layers_per_chunk ? s->layers_per_chunk : model.layers / chunks;
    uint64_t layers = chunk / c->recompute_every;
    s->recompute = layers ? config_own(c, mem_printf("full:%" PRIu64, layers)) : "none";
    model_release(&model);
    return 0;
}

/* What depends on the options beside it. */
static void settle(struct config *c, struct strategy_args *s)
{
    bool full = s->recompute && strcmp(s->recompute, "full") == 0;
    if (c->host_checkpoints && full)
        s->offload =
            s->offload ? config_own(c, mem_printf("%s,activations", s->offload)) : "activations";
    struct config_item *host = config_find(&c->items, "activation_checkpointing.cpu_checkpointing");
    if (c->host_checkpoints && !full && host) host->read = false;
    if (!s->micro_batch) s->micro_batch = c->usual_micro;
    if (!s->global_batch && !s->accumulation) s->accumulation = c->usual_accumulation;
}

int config_apply(struct config *c, struct plan_args *args, const struct opts *opts,
                 const struct tables *tables, struct err *err)
{
    if (!c->format) return 0;
    if (!c->args.framework) c->args.framework = c->format->framework;
    int result = check_word(c, &args->strategy, err);
    result |= merge_options(c, &args->strategy, opts, err);
    merge_features(c, &args->strategy);
    settle(c, &args->strategy);
    if (!result) result = check_offload(c, args, err);
    if (!result) result = apply_model(c, args, opts, err);
    if (!result) result = derive_recompute(c, args, err);
    return result ? -1 : apply_cluster(c, args, tables, err);
}

/* ---- writing ---- */

const char *config_emit_framework(unsigned emit)
{
    return formats[emit]->framework;
}

const char *config_value(const struct plan *plan, const char *feature, char *buf)
{
    for (size_t i = 0; framework_feature_name(i); i++) {
        if (strcmp(framework_feature_name(i), feature) == 0)
            return framework_value(&plan->strategy.framework, i, buf);
    }
    return "";
}

bool config_is(const struct plan *plan, const char *feature, const char *value)
{
    char buf[UNITS_TEXT];
    return strcmp(config_value(plan, feature, buf), value) == 0;
}

static const struct {
    const char *name;
    unsigned module;
} modules[] = {
    {"core_attn", RCM_CORE_ATTN}, {"mlp", RCM_MLP}, {"moe", RCM_MOE}, {"mla_up", RCM_MLA_UP},
    {"norm", RCM_NORM},           {"act", RCM_ACT}, {"ops", RCM_OPS}};

/* The value of --recompute. Freed by the caller. */
static char *recompute_text(const struct strategy *s)
{
    if (s->recompute == RC_NONE) return mem_strdup("none");
    if (s->recompute == RC_FULL)
        return s->rc_blocks ? mem_printf("full:%" PRIu64, s->rc_blocks) : mem_strdup("full");
    char *text = mem_strdup("");
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        if (!(s->rc_modules & modules[i].module)) continue;
        char *more = mem_printf("%s%s%s", text, *text ? "+" : "", modules[i].name);
        free(text);
        text = more;
    }
    return text;
}

char *config_offload_text(unsigned offload)
{
    static const char *const names[] = {"optimizer", "weights", "activations"};
    char *text = mem_strdup("");
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (!(offload & 1u << i)) continue;
        char *more = mem_printf("%s%s%s", text, *text ? "," : "", names[i]);
        free(text);
        text = more;
    }
    return text;
}

/* What a format leaves to others, as options; the line for the user into *line. */
static void say_beside(struct config *c, const struct strategy *s, FILE *line)
{
    char buf[UNITS_TEXT];
    struct strategy_args all = {
        .micro_batch = s->micro_batch,
        .global_batch = s->global_batch,
        .seq = s->seq,
        .optimizer = s->optimizer->name,
        .recompute = config_own(c, recompute_text(s)),
        .lora = s->lora,
        .qlora = s->qlora,
        .packed = s->packed,
        .offload = config_own(c, config_offload_text(s->offload)),
        .moe_imbalance = config_own(c, mem_printf("%.15g", s->moe_imbalance)),
        .moe_capacity = config_own(c, mem_printf("%.15g", s->moe_capacity)),
    };
    if (!s->offload) all.offload = NULL;
    if (!(s->moe_imbalance > 1)) all.moe_imbalance = NULL;
    if (!(s->moe_capacity > 0)) all.moe_capacity = NULL;
    for (const char *const *name = c->format->beside; *name; name++) {
        const struct opts_row *row = strategy_rows;
        while (strcmp(row->name, *name) != 0)
            row++;
        const char *value = field_text(row, &all, buf);
        if (!value || field_text(row, &c->args, (char[UNITS_TEXT]){0})) continue;
        copy_field(row, &c->args, &all);
        fprintf(line, row->type == OPTS_FLAG ? " --%s" : " --%s %s", *name, value);
    }
}

/* ---- comparing what was read back ---- */

/* Figures of a strategy that a prediction depends on. */
static const struct {
    const char *name;
    size_t offset;
} parts[] = {
#define PART(name, field)                                                                          \
    {                                                                                              \
        name, offsetof(struct strategy, field)                                                     \
    }
    PART("tensor parallelism", tp),
    PART("pipeline stages", pp),
    PART("data parallelism", dp),
    PART("context parallelism", cp),
    PART("expert parallelism", ep),
    PART("expert tensor parallelism", etp),
    PART("chunks per stage", vpp),
    PART("ranks that share a copy", shards),
    PART("micro-batch", micro_batch),
    PART("global batch", global_batch),
    PART("sequence", seq),
    PART("LoRA rank", lora),
    PART("packed documents", packed),
#undef PART
};

static uint64_t part_value(const struct strategy *s, size_t i)
{
    const void *at = (const char *)s + parts[i].offset;
    return *(const uint64_t *)at;
}

static int cannot(const struct config_format *f, const char *what, const char *wanted,
                  const char *got, struct err *err)
{
    return err_add(err, ERR_USAGE, "--emit %s: cannot say %s %s, it would be read as %s", f->emit,
                   what, wanted, got);
}

/* Those that are words. */
enum { NCHOICES = 9 };
struct choice {
    const char *name;
    char *text;
};

static void choices_of(const struct strategy *s, struct choice choices[NCHOICES])
{
    static const char *const levels[] = {"none", "1", "2", "3"};
    char *offload = config_offload_text(s->offload);
    const struct choice all[NCHOICES] = {
        {"sequence parallelism", mem_strdup(s->sp ? "on" : "off")},
        {"exchange of context parallelism", mem_strdup(s->ulysses ? "ulysses" : "ring or gather")},
        {"zero", mem_strdup(s->fsdp ? "fsdp" : levels[s->zero])},
        {"recipe", mem_strdup(s->fp8_rowwise ? "rowwise" : "tensorwise")},
        {"recompute", recompute_text(s)},
        {"schedule", mem_strdup(schedule_name(s->schedule))},
        {"qlora", mem_strdup(s->qlora ? "on" : "off")},
        {"offload", mem_strdup(*offload ? offload : "none")},
        {"optimizer", mem_strdup(s->optimizer->name)},
    };
    memcpy(choices, all, sizeof all);
    free(offload);
}

static int compare_choices(const struct config_format *f, const struct strategy *want,
                           const struct strategy *got, struct err *err)
{
    struct choice a[NCHOICES], b[NCHOICES];
    int result = 0;
    choices_of(want, a);
    choices_of(got, b);
    for (size_t i = 0; i < NCHOICES; i++) {
        if (strcmp(a[i].text, b[i].text) != 0)
            result = cannot(f, a[i].name, a[i].text, b[i].text, err);
        free(a[i].text);
        free(b[i].text);
    }
    return result;
}

static int compare_strategies(const struct config_format *f, const struct strategy *want,
                              const struct strategy *got, struct err *err)
{
    int result = compare_choices(f, want, got, err);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t a = part_value(want, i), b = part_value(got, i);
        char wanted[UNITS_TEXT], other[UNITS_TEXT];
        snprintf(wanted, sizeof wanted, "%" PRIu64, a);
        snprintf(other, sizeof other, "%" PRIu64, b);
        if (a != b) result = cannot(f, parts[i].name, wanted, other, err);
    }
    const struct {
        const char *name;
        double want, got;
    } loads[] = {{"imbalance of experts", want->moe_imbalance, got->moe_imbalance},
                 {"capacity of experts", want->moe_capacity, got->moe_capacity}};
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        char wanted[UNITS_TEXT], other[UNITS_TEXT];
        snprintf(wanted, sizeof wanted, "%g", loads[i].want);
        snprintf(other, sizeof other, "%g", loads[i].got);
        if (loads[i].want != loads[i].got) result = cannot(f, loads[i].name, wanted, other, err);
    }
    if (want->precision != got->precision)
        result = cannot(f, "precision", want->precision->name, got->precision->name, err);
    if (memcmp(want->order, got->order, sizeof want->order) != 0)
        result = cannot(f, "order of ranks", want->word, got->word, err);
    if (want->nlayout != got->nlayout ||
        memcmp(want->layout, got->layout, want->nlayout * sizeof *want->layout) != 0)
        result = cannot(f, "layers of each chunk", "as given", "the framework's usual split", err);
    return result;
}

/* Whether a feature has a say in this strategy: buckets where gradients are reduced whole, or leave
 * for the host's optimizer; gathers ahead where weights are sharded. The units of buckets may
 * differ as long as their bytes do not.
 */
static bool has_say(const char *name, const struct strategy *want, const struct strategy *got)
{
    const struct framework *f = &want->framework;
    double ranks = (double)want->dp * (double)want->cp;
    double a = framework_bucket_B(f, f->grad_bytes, ranks);
    double b = framework_bucket_B(&got->framework, f->grad_bytes, ranks);
    bool buckets = f->dp_overlap && (want->zero < ZERO_3 || want->offload & OFFLOAD_OPTIMIZER);
    if (strncmp(name, "bucket-", 7) == 0) return buckets && a != b;
    if (strcmp(name, "first-bucket-bytes") == 0) return f->dp_overlap && want->zero < ZERO_3;
    if (strcmp(name, "gather-overlap") == 0)
        return f->dp_overlap && (want->zero == ZERO_1 || want->zero == ZERO_2);
    if (strcmp(name, "reduce-each") == 0) return want->zero >= ZERO_2;
    static const char *const whole[] = {"prefetch",          "prefetch-params", "gather-tensors",
                                        "reduce-copy-bytes", "piece-kernels",   "gather-sync"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (strcmp(name, whole[i]) == 0) return want->zero == ZERO_3;
    }
    if (strcmp(name, "tp-tiles") == 0) return f->tp_overlap;
    if (strcmp(name, "sum-beside") == 0) return want->tp > 1;
    if (strcmp(name, "cp-comm") == 0) return want->cp > 1 && !want->ulysses;
    return strcmp(name, "zero") != 0;
}

/* Features that time and memory depend on: what differs becomes an option beside, or a sentence. */
static int compare_features(struct config *c, const struct strategy *want,
                            const struct strategy *got, FILE *line, struct err *err)
{
    char a[UNITS_TEXT], b[UNITS_TEXT];
    int result = 0, said = 0;
    for (size_t i = 0; framework_feature_name(i); i++) {
        const char *name = framework_feature_name(i);
        if (strcmp(name, "kv") == 0) break; /* behind it stand the framework's own rules */
        const char *wanted = framework_value(&want->framework, i, a);
        const char *other = framework_value(&got->framework, i, b);
        if (strcmp(wanted, other) == 0 || !has_say(name, want, got)) continue;
        if (!c->format->features_beside) {
            result = cannot(c->format, name, wanted, other, err);
            continue;
        }
        config_feature(c, name, wanted);
        fprintf(line, "%s%s=%s", said++ ? "," : " --feature ", name, wanted);
    }
    return result;
}

static int check_back(struct config *c, const struct plan *plan, const struct tables *tables,
                      FILE *line, struct err *err)
{
    const struct strategy *want = &plan->strategy;
    struct strategy got = {0};
    if (c->has_shape) {
        char *option = mem_printf("--emit %s", c->format->emit);
        int differs =
            model_build(&c->shape, err) || compare_shapes(option, &c->shape, &plan->model,
                                                          "it has no words for such a model", err);
        free(option);
        if (differs) return -1;
    }
    if (c->format->names_model && (!c->model || strcmp(c->model, plan->model.name) != 0))
        return cannot(c->format, "model", plan->model.name, c->model ? c->model : "none", err);
    say_beside(c, want, line);
    settle(c, &c->args);
    c->args.framework = c->format->framework;
    if (strategy_make(&got, &c->args, &plan->topo, &plan->model, &tables->frameworks, err))
        return -1;
    int result = compare_features(c, want, &got, line, err);
    strategy_release(&got);
    if (strategy_make(&got, &c->args, &plan->topo, &plan->model, &tables->frameworks, err))
        return -1;
    result |= compare_strategies(c->format, want, &got, err);
    strategy_release(&got);
    return result;
}

int config_write(unsigned emit, const struct plan *plan, const char *model,
                 const struct tables *tables, FILE *to, FILE *beside, struct err *err)
{
    struct config back = {0};
    char *text = NULL, *line = NULL;
    size_t bytes, line_bytes;
    FILE *out = open_memstream(&text, &bytes), *options = open_memstream(&line, &line_bytes);
    formats[emit]->write(out, plan);
    fclose(out);
    int result = config_parse(&back, formats[emit], "what --emit wrote", text, err);
    if (!result && !back.has_shape && !back.format->names_model)
        fprintf(options, " --model %s", model);
    if (!result) result = check_back(&back, plan, tables, options, err);
    fclose(options);
    if (!result) {
        fputs(text, to);
        fflush(to);
        if (line_bytes)
            fprintf(beside, "commsim: %s has no words for the rest; beside it:%s\n",
                    back.format->emit, line);
    }
    free(text);
    free(line);
    config_release(&back);
    return result;
}
