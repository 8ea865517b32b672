/* SPDX-License-Identifier: Apache-2.0
 * Candidates are a table of moves, each alone and together with another recomputation (most moves
 * trade memory for time), sequence parallelism, or ZeRO-1. See advise.h. */
#include "train/advise.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "net/fluid.h"
#include "train/step.h"

enum {
    TIMED = 6,   /* best of the closed form that the event engine times .. */
    UNRANKED = 2 /* .. and of those whose gain the closed form does not know */
};

static const double least_gain = 1e-3;

/* Of a job that does not fit, what one change makes fit is not told with a second one for less. */
static const double least_of_two = .05;

/* What the host does once a step, which the engine drops where a whole step is captured: published
 * runs of that kind are benchmarks that read no data and write no log. Advice does not
 * promise it. */
static double fixed_s(const struct job *job, const struct constants *c)
{
    return 1e-3 * c->step_ms[job->fw] * (job->dev.grace ? c->host_grace : 1);
}

/* ---- moves ---- */

/* A strategy under change. */
struct variant {
    const struct plan *now;
    struct strategy_args args; /* complete: nothing is left to defaults that could move */
    char **features;           /* of args.features, if it has more than the user's */
    double nic_factor;         /* of the network's rate */
    bool fits;                 /* the present one */
    char *text;                /* what was changed */
};

static void variant_release(struct variant *v)
{
    free(v->features);
    free(v->text);
}

static void say(struct variant *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct variant *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *more = mem_vprintf(format, args);
    va_end(args);
    char *text = v->text ? mem_printf("%s, %s", v->text, more) : mem_strdup(more);
    free(v->text);
    free(more);
    v->text = text;
}

/* The arguments that give the present strategy, whatever the user left to defaults. */
static void complete(struct variant *v, const struct strategy_args *said)
{
    static const char *const levels[] = {"none", "1", "2", "3"};
    const struct strategy *s = &v->now->strategy;
    struct strategy_args word = {0}, *a = &v->args;
    struct err ignored = ERR_INIT; /* it has been read before */
    if (said->strategy) strategy_parse(&word, said->strategy, &ignored);
    err_release(&ignored);
    *a = *said;
    a->strategy = NULL;
    a->order = word.order ? word.order : said->order;
    a->etp = word.etp ? word.etp : said->etp;
    a->tp = s->tp, a->pp = s->pp, a->vpp = s->vpp, a->ep = s->ep;
    a->cp = s->ulysses ? 0 : s->cp;
    a->ulysses = s->ulysses ? s->cp : 0;
    if (s->ulysses) a->cp_comm = NULL;
    a->dp = a->replicas = a->accumulation = a->layers_per_chunk = 0;
    a->sp = s->sp || s->sp_asked;
    a->zero = s->fsdp ? "fsdp" : levels[s->zero];
    a->shards = s->zero && s->shards < s->dp * s->cp ? s->shards / s->cp : 0;
    a->micro_batch = s->micro_batch;
    a->global_batch = s->global_batch;
    a->seq = s->seq;
}

/* Of "fsdpNxM" M takes the ranks that are left; shards of ZeRO are a part of them anyway. */
static void take_rest(struct variant *v)
{
    struct strategy_args *a = &v->args;
    if (!a->shards || strcmp(a->zero, "fsdp") != 0) return;
    uint64_t cp = a->ulysses ? a->ulysses : a->cp;
    a->replicas = v->now->strategy.gpus / (a->tp * a->pp * (cp ? cp : 1) * a->shards);
}

/* What can be doubled or halved. */
#define DEGREE(name_, field_)                                                                      \
    {                                                                                              \
        name_, offsetof(struct strategy_args, field_)                                              \
    }
enum { NO_DEGREE, TP, CP, ULYSSES, PP, VPP, EP, MICRO, NDEGREES };
static const struct {
    const char *name;
    size_t offset;
} degrees[NDEGREES] = {
    [TP] = DEGREE("tp", tp),
    [CP] = DEGREE("cp", cp),
    [ULYSSES] = DEGREE("ulysses", ulysses),
    [PP] = DEGREE("pp", pp),
    [VPP] = DEGREE("vpp", vpp),
    [EP] = DEGREE("ep", ep),
    [MICRO] = DEGREE("micro-batch", micro_batch),
};
#undef DEGREE

/* Multiplies by 2^power. False: it would be no whole number, or more than there are GPUs. */
static bool scale(struct variant *v, int degree, int power)
{
    uint64_t *field = (uint64_t *)(void *)((char *)&v->args + degrees[degree].offset);
    uint64_t value = *field ? *field : 1, factor = (uint64_t)1 << abs(power);
    if (power < 0 && value % factor) return false;
    value = power < 0 ? value / factor : value * factor;
    if (degree != MICRO && value > v->now->strategy.gpus) return false;
    *field = value;
    say(v, "%s %" PRIu64, degrees[degree].name, value);
    return true;
}

struct move {
    bool (*apply)(struct variant *v, const struct move *move);
    struct {
        int degree, power;
    } scales[2];
    const char *word;
    bool unranked; /* the closed form does not know what it gains */
};

/* Layers that were dealt out by hand are not for another number of chunks. */
static void forget_layout(struct variant *v)
{
    const struct strategy *s = &v->now->strategy;
    v->args.layers = NULL;
    if (v->args.pp == 1) v->args.vpp = 1;
    if ((v->args.vpp > 1) != (s->vpp > 1)) v->args.schedule = NULL;
    if (v->args.pp == 1) v->args.schedule = NULL;
}

/* Chunks in turn are for those who have them, or have them now. */
static bool has_interleaved(const struct variant *v)
{
    const struct strategy *s = &v->now->strategy;
    return s->vpp > 1 || s->framework.schedules >= SCHEDULES_INTERLEAVED;
}

/* One degree, or two that keep their product. */
static bool set_degrees(struct variant *v, const struct move *move)
{
    for (int i = 0; i < 2 && move->scales[i].degree; i++) {
        int degree = move->scales[i].degree;
        if (degree == CP && v->args.ulysses > 1) degree = ULYSSES;
        if (degree == EP && !v->now->model.experts) return false;
        if (degree == VPP && (v->args.pp < 2 || !has_interleaved(v))) return false;
        if (!scale(v, degree, move->scales[i].power)) return false;
        if (degree == PP || degree == VPP) forget_layout(v);
    }
    return true;
}

static bool set_zero(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    bool whole = strcmp(move->word, "fsdp") == 0;
    const char *word = whole && s->framework.gather_tensors ? "3" : move->word; /* no FSDP there */
    if (strcmp(v->args.zero, word) == 0 || s->dp * s->cp < 2) return false;
    if (whole && s->zero == ZERO_3 && !v->args.shards) return false; /* it is so by another name */
    /* beside a pipeline gradients would be cut anew for each micro-batch */
    if (strcmp(word, "2") == 0 && v->args.pp > 1) return false;
    v->args.zero = word;
    v->args.shards = 0;
    say(v, word == move->word && whole ? "%s" : "zero %s", word);
    return true;
}

/* Beside another move, which leaves sharding alone. */
static bool add_zero1(struct variant *v, const struct move *move)
{
    return v->now->strategy.zero == ZERO_NONE && strcmp(v->args.zero, "none") == 0 &&
           set_zero(v, move);
}

/* More ranks that share one copy, 2^power times as many, or all (power 0). */
static bool widen_shards(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    uint64_t power = (uint64_t)move->scales[0].power;
    uint64_t shards = power ? v->args.shards << power : s->dp;
    if (!v->args.shards || s->dp % shards || (power && shards >= s->dp)) return false;
    v->args.shards = shards < s->dp ? shards : 0;
    say(v, "fsdp-shards %" PRIu64, shards);
    return true;
}

/* Shards within a scale-up domain, copies beyond it. */
static bool set_shards(struct variant *v, const struct move *move)
{
    if (move->word == NULL) return widen_shards(v, move);
    const struct strategy *s = &v->now->strategy;
    uint64_t shards = topo_domain(&v->now->topo) / strategy_stride(s, AXIS_DP);
    if (s->zero < ZERO_3 || v->args.shards || shards < 2 || shards >= s->dp || s->dp % shards)
        return false;
    v->args.shards = shards;
    say(v, "fsdp-shards %" PRIu64, shards);
    return true;
}

static bool set_recompute(struct variant *v, const struct move *move)
{
    static const char *const names[] = {"none", "selective", "full"};
    const struct strategy *s = &v->now->strategy;
    if (strcmp(names[s->recompute], move->word) == 0 && !s->rc_blocks) return false;
    if (v->args.recompute && strcmp(v->args.recompute, move->word) == 0) return false;
    if (strstr(move->word, "mla_up") && !v->now->model.mla) return false;
    v->args.recompute = move->word;
    say(v, "recompute %s", move->word);
    return true;
}

/* Slow, and not timed by the closed form: only where the present job does not fit. */
static bool set_offload(struct variant *v, const struct move *move)
{
    if (v->fits || (v->args.offload && strcmp(v->args.offload, move->word) == 0)) return false;
    v->args.offload = move->word;
    say(v, "offload %s", move->word);
    return true;
}

static bool set_schedule(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    bool two_p = strcmp(move->word, "zb-2p") == 0;
    if (s->framework.schedules < (two_p ? SCHEDULES_ALL : SCHEDULES_ZERO_BUBBLE)) return false;
    if (s->pp < 2 || strcmp(schedule_name(s->schedule), move->word) == 0) return false;
    v->args.schedule = move->word;
    if (s->vpp > 1) v->args.layers = NULL;
    v->args.vpp = 1;
    say(v, "schedule %s", move->word);
    return true;
}

static bool set_sp(struct variant *v, const struct move *move)
{
    (void)move;
    if (v->args.sp || v->args.tp < 2) return false;
    v->args.sp = true;
    say(v, "sp");
    return true;
}

static bool set_feature(struct variant *v, const struct move *move)
{
    char buf[UNITS_TEXT];
    size_t length = strcspn(move->word, "="), n = v->args.features.count;
    bool differs = false;
    for (size_t i = 0; framework_feature_name(i); i++) {
        const char *name = framework_feature_name(i);
        if (strlen(name) == length && strncmp(name, move->word, length) == 0)
            differs = strcmp(framework_value(&v->now->strategy.framework, i, buf),
                             move->word + length + 1) != 0;
    }
    if (!differs) return false;
    v->features = mem_calloc(n + 1, sizeof *v->features);
    if (n) memcpy(v->features, v->args.features.items, n * sizeof *v->features);
    v->features[n] = (char *)move->word;
    v->args.features = (struct opts_list){n + 1, v->features};
    say(v, "%s", move->word);
    return true;
}

/* What compiled frameworks have; older and eager ones lack it. */
static bool set_fused_feature(struct variant *v, const struct move *move)
{
    return v->now->strategy.framework.cls == FW_FUSED && set_feature(v, move);
}

static bool set_bucket(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    uint64_t bytes = 0;
    struct err never = ERR_INIT;
    units_read_size("bucket", move->word, &bytes, &never);
    if (s->dp * s->cp < 2 || s->framework.bucket_bytes == (double)bytes) return false;
    v->args.bucket_size = move->word;
    say(v, "bucket-size %s", move->word);
    return true;
}

static bool set_prefetch(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    if (s->zero != ZERO_3 || s->framework.prefetch == strtoull(move->word, NULL, 10)) return false;
    v->args.prefetch = move->word;
    say(v, "prefetch %s", move->word);
    return true;
}

static bool set_cp_comm(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    const char *now = s->ulysses ? "ulysses" : s->framework.cp == CP_GATHER ? "gather" : "ring";
    if (s->cp < 2 || strcmp(now, move->word) == 0) return false;
    v->args.cp = s->cp;
    v->args.ulysses = 0;
    v->args.cp_comm = move->word;
    say(v, "cp-comm %s", move->word);
    return true;
}

/* A whole step captured: what compiled frameworks can, unless experts decide who gets what. */
static bool set_graphs(struct variant *v, const struct move *move)
{
    const struct strategy *s = &v->now->strategy;
    return s->framework.cls == FW_FUSED && !v->now->model.experts && set_feature(v, move);
}

/* It takes sequence parallelism. */
static bool set_tp_overlap(struct variant *v, const struct move *move)
{
    if (v->args.tp < 2 || !set_fused_feature(v, move)) return false;
    if (!v->args.sp) say(v, "sp");
    v->args.sp = true;
    return true;
}

static bool set_network(struct variant *v, const struct move *move)
{
    (void)move;
    const struct topo *topo = &v->now->topo;
    if (topo_gpus(topo) <= topo_domain(topo)) return false;
    v->nic_factor = 2;
    say(v, "NICs of %g Gb/s per GPU", v->nic_factor * topo->nic_Gbps);
    return true;
}

static const struct move moves[] = {
    {set_degrees, {{MICRO, 1}}, NULL, false},
    {set_degrees, {{MICRO, -1}}, NULL, false},
    {set_degrees, {{MICRO, 2}}, NULL, false},
    {set_degrees, {{TP, 1}}, NULL, false},
    {set_degrees, {{TP, -1}}, NULL, false},
    {set_degrees, {{PP, 1}}, NULL, false},
    {set_degrees, {{PP, -1}}, NULL, false},
    {set_degrees, {{CP, 1}}, NULL, false},
    {set_degrees, {{CP, -1}}, NULL, false},
    {set_degrees, {{EP, 1}}, NULL, false},
    {set_degrees, {{EP, -1}}, NULL, false},
    {set_degrees, {{VPP, 1}}, NULL, false},
    {set_degrees, {{VPP, 2}}, NULL, false},
    {set_degrees, {{VPP, -1}}, NULL, false},
    {set_degrees, {{TP, 1}, {PP, -1}}, NULL, false},
    {set_degrees, {{TP, -1}, {PP, 1}}, NULL, false},
    {set_degrees, {{TP, 1}, {CP, -1}}, NULL, false},
    {set_degrees, {{TP, -1}, {CP, 1}}, NULL, false},
    {set_degrees, {{TP, -1}, {MICRO, -1}}, NULL, false},
    {set_degrees, {{PP, -1}, {MICRO, -1}}, NULL, false},
    {set_degrees, {{PP, 1}, {VPP, 1}}, NULL, false},
    {set_zero, {{0}}, "none", false},
    {set_zero, {{0}}, "1", false},
    {set_zero, {{0}}, "2", false},
    {set_zero, {{0}}, "fsdp", false},
    {set_shards, {{0}}, "domain", false},
    {set_shards, {{0, 1}}, NULL, false},
    {set_shards, {{0, 2}}, NULL, false},
    {set_shards, {{0, 0}}, NULL, false},
    {set_recompute, {{0}}, "none", false},
    {set_recompute, {{0}}, "selective", false},
    {set_recompute, {{0}}, "full", false},
    {set_recompute, {{0}}, "mlp", false},
    {set_recompute, {{0}}, "norm+mlp", false},
    {set_recompute, {{0}}, "norm+mla_up", false},
    {set_recompute, {{0}}, "norm+mla_up+mlp", false},
    {set_offload, {{0}}, "optimizer", true},
    {set_offload, {{0}}, "optimizer,weights", true},
    {set_offload, {{0}}, "activations", true},
    {set_schedule, {{0}}, "zb-1p", false},
    {set_schedule, {{0}}, "zb-2p", false},
    {set_schedule, {{0}}, "dualpipev", true},
    {set_sp, {{0}}, NULL, false},
    {set_tp_overlap, {{0}}, "tp-overlap=on", false},
    {set_feature, {{0}}, "dp-overlap=on", false},
    {set_fused_feature, {{0}}, "p2p-overlap=on", false},
    {set_fused_feature, {{0}}, "ep-overlap=on", false},
    {set_fused_feature, {{0}}, "ep-dedup=on", false},
    {set_graphs, {{0}}, "graphs=full", false},
    {set_feature, {{0}}, "grad-bytes=2", false},
    {set_feature, {{0}}, "gather-overlap=on", true},
    {set_prefetch, {{0}}, "2", true},
    {set_bucket, {{0}}, "128M", true},
    {set_cp_comm, {{0}}, "ring", true},
    {set_cp_comm, {{0}}, "gather", true},
    {set_cp_comm, {{0}}, "ulysses", false},
    {set_network, {{0}}, NULL, false},
};
enum { NMOVES = sizeof moves / sizeof *moves };

/* Beside another move; the first is none. */
static const struct move recomputes[] = {
    {NULL, {{0}}, NULL, false},
    {set_recompute, {{0}}, "none", false},
    {set_recompute, {{0}}, "selective", false},
    {set_recompute, {{0}}, "full", false},
    {set_recompute, {{0}}, "norm+mlp", false},
    {set_recompute, {{0}}, "norm+mla_up+mlp", false},
    {set_sp, {{0}}, NULL, false},
    {add_zero1, {{0}}, "1", false},
};
enum { NRECOMPUTES = sizeof recomputes / sizeof *recomputes };

/* ---- candidates ---- */

struct candidate {
    size_t move, recompute; /* move NMOVES: none, the other alone */
    double closed_s;        /* by the closed form */
};

/* Makes the plan of a candidate. False: it changes nothing, is not legal, or does not fit. Both
 * are released by the caller if it is true. */
static bool make(const struct advise_args *args, const struct candidate *candidate,
                 struct variant *v, struct plan *plan, struct memory *memory)
{
    const struct move *move = candidate->move < NMOVES ? &moves[candidate->move] : &recomputes[0];
    const struct move *other = &recomputes[candidate->recompute];
    *v = (struct variant){.now = args->plan, .nic_factor = 1};
    complete(v, args->strategy);
    struct memory now = memory_predict(&args->plan->job, args->event.c);
    v->fits = memory_verdict(&now) != VERDICT_NO;
    bool twice = other->apply && move->apply == other->apply;
    bool changed = !twice && (move->apply || other->apply) &&
                   (!move->apply || move->apply(v, move)) &&
                   (!other->apply || other->apply(v, other));
    if (changed) take_rest(v);
    struct err err = ERR_INIT;
    bool made = changed && plan_vary(plan, args->plan, args->tables, &v->args, &err) == 0;
    err_release(&err);
    if (made) {
        plan->topo.nic_Gbps *= v->nic_factor;
        plan->topo.one_nic_Gbps *= v->nic_factor;
        plan->job.nic_Bps *= v->nic_factor;
        *memory = memory_predict(&plan->job, args->event.c);
        if (plan->rules.errors == 0 && memory_verdict(memory) != VERDICT_NO) return true;
        plan_release(plan);
    }
    variant_release(v);
    return false;
}

static int by_time(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->closed_s != y->closed_s) return x->closed_s < y->closed_s ? -1 : 1;
    return x->move < y->move ? -1 : x->move > y->move;
}

/* The best way to make each move, by the closed form, best first; gives their number. */
static size_t rank(const struct advise_args *args, struct candidate *list)
{
    const struct constants *closed = &args->tables->constants[ENGINE_CLOSED].values;
    size_t count = 0;
    for (size_t move = 0; move < NMOVES; move++) {
        struct candidate best = {.closed_s = INFINITY};
        for (size_t k = 0; k < NRECOMPUTES; k++) {
            struct candidate c = {.move = move, .recompute = k};
            struct variant v;
            struct plan plan;
            struct memory memory;
            if (!make(args, &c, &v, &plan, &memory)) continue;
            c.closed_s = step_predict(&plan.job, closed).time_s;
            if (c.closed_s < best.closed_s) best = c;
            plan_release(&plan);
            variant_release(&v);
        }
        if (best.closed_s < INFINITY) list[count++] = best;
    }
    qsort(list, count, sizeof *list, by_time);
    return count;
}

/* ---- times ---- */

/* A candidate's step by the event engine; 0: it has none. */
static double time_of(const struct advise_args *args, const struct plan *plan, double nic_factor)
{
    struct err err = ERR_INIT;
    struct event_args event = args->event;
    struct event_result result = {0};
    struct fluids *other = nic_factor != 1 ? fluids_new(&plan->topo, args->net, args->lib) : NULL;
    event.job = &plan->job;
    event.detail = DETAIL_CHUNK;
    event.keep = false;
    event.most = EVENT_MOST / 8; /* it is one of several */
    if (other) event.fluids = other;
    double time_s = event_run(&event, &result, &err) == 0 ? result.step.time_s : 0;
    event_release(&result);
    fluids_free(other);
    err_release(&err);
    return time_s;
}

static void release_one(struct advice *advice)
{
    free(advice->change);
    free(advice->word);
}

/* The first move that changes the same thing. */
static size_t kind_of(size_t move)
{
    const struct move *m = &moves[move];
    for (size_t i = 0; i < move; i++) {
        if (m->apply == set_tp_overlap && moves[i].apply == set_sp) return i; /* holds it */
        if (moves[i].apply == m->apply && moves[i].scales[0].degree == m->scales[0].degree &&
            m->apply != set_feature && m->apply != set_fused_feature)
            return i;
    }
    return move;
}

static void drop(struct advices *advices, size_t at)
{
    release_one(&advices->best[at]);
    advices->count--;
    memmove(&advices->best[at], &advices->best[at + 1],
            (advices->count - at) * sizeof *advices->best);
}

/* Takes `advice` into the list, which is kept by time and has one of a kind, or frees it. */
static void keep(struct advices *advices, struct advice advice)
{
    for (size_t i = 0; i < advices->count; i++) {
        const struct advice *other = &advices->best[i];
        if (other->step_s == advice.step_s && strcmp(other->word, advice.word) == 0) {
            release_one(&advice); /* the same in other words */
            return;
        }
        bool longer = strstr(advice.change, other->change) != NULL;
        bool shorter = strstr(other->change, advice.change) != NULL;
        if (other->kind != advice.kind && !longer && !shorter) continue;
        double least = other->step_s * (1 + (longer ? -least_gain : shorter ? least_gain : 0));
        if (least <= advice.step_s) {
            release_one(&advice);
            return;
        }
        drop(advices, i);
    }
    size_t at = advices->count;
    while (at > 0 && advices->best[at - 1].step_s > advice.step_s) {
        at--;
    }
    if (at == NADVICE_BEST) {
        release_one(&advice);
        return;
    }
    if (advices->count == NADVICE_BEST) drop(advices, NADVICE_BEST - 1);
    memmove(&advices->best[at + 1], &advices->best[at],
            (advices->count - at) * sizeof *advices->best);
    advices->best[at] = advice;
    advices->count++;
}

/* The move that is what stands beside others, where it is one. */
static size_t move_of(const struct candidate *candidate)
{
    const struct move *other = &recomputes[candidate->recompute];
    bool (*apply)(struct variant *, const struct move *) =
        other->apply == add_zero1 ? set_zero : other->apply;
    for (size_t i = 0; i < NMOVES; i++) {
        bool same =
            other->word ? moves[i].word && strcmp(moves[i].word, other->word) == 0 : !moves[i].word;
        if (moves[i].apply == apply && same) return i;
    }
    return NMOVES;
}

/* The step of a plan; 0: it has none. */
static double step_of(const struct advise_args *args, const struct plan *plan, double nic_factor)
{
    double step_s = time_of(args, plan, nic_factor);
    if (step_s > 0 && plan->job.graphs == GRAPHS_FULL && args->plan->job.graphs != GRAPHS_FULL)
        step_s += fixed_s(&plan->job, args->event.c);
    return step_s;
}

/* Of two changes one is left out if the other alone fits and is about as quick as both, `pair_s`.
 */
static struct candidate lighter(const struct advise_args *args, struct candidate pair,
                                double pair_s, bool fits)
{
    const struct candidate alone[] = {{NMOVES, pair.recompute, 0}, {pair.move, 0, 0}};
    double more = fits ? least_gain : least_of_two;
    if (pair.move == NMOVES || pair.recompute == 0) return pair;
    for (size_t i = 0; i < 2; i++) {
        struct variant v;
        struct plan plan;
        struct memory memory;
        if (!make(args, &alone[i], &v, &plan, &memory)) continue;
        double step_s = step_of(args, &plan, v.nic_factor);
        plan_release(&plan);
        variant_release(&v);
        if (step_s > 0 && step_s <= pair_s * (1 + more)) return alone[i];
    }
    return pair;
}

static void try_one(const struct advise_args *args, const struct candidate *candidate,
                    bool must_gain, struct advices *advices)
{
    struct variant v;
    struct plan plan;
    struct advice advice;
    if (!make(args, candidate, &v, &plan, &advice.memory)) return;
    size_t move = candidate->move < NMOVES ? candidate->move : move_of(candidate);
    advice.kind = move < NMOVES ? kind_of(move) : NMOVES;
    advice.step_s = step_of(args, &plan, v.nic_factor);
    advices->timed += advice.step_s > 0;
    advice.gain = 1 - advice.step_s / args->step_s;
    bool wanted = advice.step_s > 0 && (advice.gain >= least_gain || !must_gain);
    struct candidate less =
        wanted ? lighter(args, *candidate, advice.step_s, must_gain) : *candidate;
    if (less.move != candidate->move || less.recompute != candidate->recompute) {
        try_one(args, &less, must_gain, advices);
    } else if (wanted) {
        advice.change = mem_strdup(v.text);
        advice.word = mem_strdup(plan.strategy.word);
        keep(advices, advice);
    }
    plan_release(&plan);
    variant_release(&v);
}

/* Bytes reserved if adapters alone are trained; 0: that is the job, or does not fit either. */
static double lora_reserved_B(const struct advise_args *args)
{
    struct variant v = {.now = args->plan, .nic_factor = 1};
    struct plan plan;
    struct err err = ERR_INIT;
    double reserved = 0;
    complete(&v, args->strategy);
    v.args.lora = ADVICE_LORA;
    take_rest(&v);
    if (!args->plan->strategy.lora &&
        plan_vary(&plan, args->plan, args->tables, &v.args, &err) == 0) {
        struct memory m = memory_predict(&plan.job, args->event.c);
        if (plan.rules.errors == 0 && memory_verdict(&m) != VERDICT_NO) reserved = m.reserved;
        plan_release(&plan);
    }
    err_release(&err);
    variant_release(&v);
    return reserved;
}

/* ---- all strategies, where no change of the present one fits ---- */

/* A whole strategy. */
struct whole {
    uint64_t tp, cp, pp;
    const char *zero, *offload; /* offload NULL: as it is */
    double closed_s;
};

/* How it shards, and the words that differ from the present strategy. */
static void say_whole(struct variant *v, const struct whole *w)
{
    const struct strategy *s = &v->now->strategy;
    bool whole = strcmp(w->zero, "fsdp") == 0;
    const char *word = whole && s->framework.gather_tensors ? "3" : w->zero;
    if (strcmp(v->args.zero, word) != 0) say(v, whole && word == w->zero ? "%s" : "zero %s", word);
    v->args.zero = word;
    v->args.shards = 0;
    if (w->tp != s->tp) say(v, "tp %" PRIu64, w->tp);
    if (w->cp != s->cp) say(v, "%s %" PRIu64, s->ulysses ? "ulysses" : "cp", w->cp);
    if (w->pp != s->pp) say(v, "pp %" PRIu64, w->pp);
    if (v->args.micro_batch != s->micro_batch) say(v, "micro-batch 1");
    if (s->recompute != RC_FULL || s->rc_blocks) say(v, "recompute full");
    if (v->args.sp && !(s->sp || s->sp_asked)) say(v, "sp");
    if (w->offload) say(v, "offload %s", w->offload);
}

/* Makes the plan of a whole strategy. False: it is not legal, or does not fit. */
static bool make_whole(const struct advise_args *args, const struct whole *w, struct variant *v,
                       struct plan *plan, struct memory *memory)
{
    struct err err = ERR_INIT;
    *v = (struct variant){.now = args->plan, .nic_factor = 1};
    complete(v, args->strategy);
    v->args.tp = w->tp, v->args.pp = w->pp;
    *(v->args.ulysses ? &v->args.ulysses : &v->args.cp) = w->cp;
    v->args.sp = w->tp > 1;
    if (w->pp != args->plan->strategy.pp) forget_layout(v);
    v->args.micro_batch = 1;
    v->args.recompute = "full";
    if (w->offload) v->args.offload = w->offload;
    say_whole(v, w);
    if (v->text && plan_vary(plan, args->plan, args->tables, &v->args, &err) == 0) {
        *memory = memory_predict(&plan->job, args->event.c);
        if (plan->rules.errors == 0 && memory_verdict(memory) != VERDICT_NO) return true;
        plan_release(plan);
    }
    err_release(&err);
    variant_release(v);
    return false;
}

/* Takes the quicker of two by the closed form. */
static void weigh(const struct advise_args *args, struct whole w, struct whole *best)
{
    const struct constants *closed = &args->tables->constants[ENGINE_CLOSED].values;
    struct variant v;
    struct plan plan;
    struct memory memory;
    if (!make_whole(args, &w, &v, &plan, &memory)) return;
    w.closed_s = step_predict(&plan.job, closed).time_s;
    if (w.closed_s < best->closed_s) *best = w;
    plan_release(&plan);
    variant_release(&v);
}

/* All of them with one kind of offloading. */
static size_t weigh_all(const struct advise_args *args, const char *offload, struct whole *best)
{
    static const char *const zeros[] = {"1", "fsdp"}, none[] = "none";
    uint64_t gpus = args->plan->strategy.gpus, domain = topo_domain(&args->plan->topo);
    size_t tried = 0;
    for (uint64_t tp = 1; tp <= gpus && tp <= domain; tp *= 2) {
        for (uint64_t pp = 1; tp * pp <= gpus && pp <= args->plan->job.shape.layers; pp *= 2) {
            for (uint64_t cp = 1; tp * pp * cp <= gpus; cp *= 2) {
                bool one = tp * pp == gpus; /* nobody to share with */
                for (size_t z = 0; z < (one ? 1 : 2); z++, tried++) {
                    struct whole w = {tp, cp, pp, one ? none : zeros[z], offload, 0};
                    weigh(args, w, best);
                }
            }
        }
    }
    return tried;
}

/* The best by the closed form without offloading, else with the least of it that fits. */
static void search(const struct advise_args *args, struct advices *advices)
{
    static const char *const offloads[] = {NULL, "optimizer", "activations", "optimizer,weights",
                                           "optimizer,weights,activations"};
    for (size_t i = 0; i < sizeof offloads / sizeof *offloads && !advices->count; i++) {
        struct whole best = {.closed_s = INFINITY};
        struct variant v;
        struct plan plan;
        struct advice advice = {.kind = NMOVES};
        advices->tried += weigh_all(args, offloads[i], &best);
        if (best.closed_s == INFINITY || !make_whole(args, &best, &v, &plan, &advice.memory))
            continue;
        advice.step_s = step_of(args, &plan, 1);
        advice.gain = 1 - advice.step_s / args->step_s;
        if (advice.step_s > 0) {
            advice.change = mem_strdup(v.text);
            advice.word = mem_strdup(plan.strategy.word);
            keep(advices, advice);
        }
        plan_release(&plan);
        variant_release(&v);
    }
}

void advise(const struct advise_args *args, struct advices *advices)
{
    *advices = (struct advices){0};
    struct candidate list[NMOVES];
    struct memory now = memory_predict(&args->plan->job, args->event.c);
    bool fits = memory_verdict(&now) != VERDICT_NO;
    size_t timed[2] = {0};
    if (!fits) advices->lora_B = lora_reserved_B(args);
    advices->legal = rank(args, list);
    for (size_t i = 0; i < advices->legal; i++) {
        bool unranked = moves[list[i].move].unranked;
        if (timed[unranked] < (unranked ? (size_t)UNRANKED : (size_t)TIMED)) {
            timed[unranked]++;
            try_one(args, &list[i], fits, advices);
        }
    }
    if (!fits && advices->count == 0) search(args, advices);
}

void advices_release(struct advices *advices)
{
    for (size_t i = 0; i < advices->count; i++) {
        release_one(&advices->best[i]);
    }
    *advices = (struct advices){0};
}
