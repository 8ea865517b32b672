/* SPDX-License-Identifier: Apache-2.0
 * The determinism report: see repeat.h. Outputs are compared by a hash of 64 bits that the ranks
 * put on the board; only where hashes differ are elements counted, against rank 0's output, which
 * goes piece by piece through a window that all ranks map. */
#include "bench/repeat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out.h"
#include "base/rng.h"
#include "bench/side.h"
#include "exec/launch.h"

enum { PIECE = 4 << 20 }; /* bytes between two signs of progress */
enum { FLOAT_EXPONENTS = 13, BF16_EXPONENTS = 7 };
#define SEED UINT64_C(0x7265706561740001)

/* All that one rank has. */
struct repeat {
    struct bench bench;
    uint64_t nruns;
    bool promised;         /* all ranks end with the same */
    uint8_t *first;        /* the first output of the call at hand; NULL: none is compared */
    uint8_t *window;       /* rank 0 writes its own, */
    const uint8_t *shared; /* and all read it here */
};

/* ---- data ---- */

/* Float types: bits of the mantissa, bias, and how many exponents around that of 1 the data has. */
static const struct {
    uint32_t mantissa, bias, exponents;
} floats[DT_COUNT] = {
    [DT_HALF] = {10, 15, 8},
    [DT_FLOAT] = {23, 127, FLOAT_EXPONENTS},
    [DT_DOUBLE] = {52, 1023, FLOAT_EXPONENTS},
    [DT_BFLOAT16] = {7, 127, BF16_EXPONENTS},
    [DT_F8E4M3] = {3, 7, 4},
    [DT_F8E5M2] = {2, 15, 4},
};

/* An element from 64 random bits: sign and mantissa of any bits, one of several exponents around
 * that of 1; an integer of any bits. Never a NaN or an infinity, nor a sum of float, double or
 * bfloat16 that becomes one. */
static void put_element(uint8_t *at, enum dtype dtype, uint64_t bits)
{
    size_t esize = dtype_bytes(dtype);
    uint32_t m = floats[dtype].mantissa, exponents = floats[dtype].exponents;
    uint64_t value = bits;
    if (exponents > 0) {
        uint64_t spread = rng_mix(bits) % exponents;
        value = bits >> 63 << (8 * esize - 1) | (bits & ((UINT64_C(1) << m) - 1)) |
                (floats[dtype].bias - exponents / 2 + spread) << m;
    }
    memcpy(at, &value, esize);
}

/* Poisons the buffers and fills the own input, which depends on rank and position alone. */
static void fill(const struct side *side)
{
    const struct bench *bench = side->bench;
    const struct check *check = &side->check;
    const struct plan_row *row = side->row;
    size_t esize = dtype_bytes(row->dtype);
    for (size_t done = 0, n; done < check->places.bytes; done += n) {
        n = check->places.bytes - done < PIECE ? check->places.bytes - done : PIECE;
        data_poison(check->memory + done, n, SEED);
        rank_tick(bench->rk);
    }
    if (!coll_has_input(coll_get(bench->plan->coll), bench->plan->root, bench->me)) return;
    struct rng rng;
    rng_init(&rng, SEED + bench->me);
    for (size_t i = 0; i < row->in_bytes / esize; i++) {
        put_element(check->memory + check->places.in + i * esize, row->dtype, rng_next(&rng));
        if (i % (PIECE / sizeof(float)) == 0) rank_tick(bench->rk);
    }
}

/* ---- comparing ---- */

/* Hash of `bytes` bytes: every bit of it depends on every word. */
static uint64_t hash_of(struct rank *rk, const uint8_t *at, size_t bytes)
{
    uint64_t hash = rng_mix(SEED ^ bytes);
    for (size_t done = 0; done < bytes; done += sizeof hash) {
        uint64_t word = 0;
        size_t left = bytes - done;
        memcpy(&word, at + done, left < sizeof word ? left : sizeof word);
        hash = rng_mix(hash ^ word);
        if (done % PIECE == 0) rank_tick(rk);
    }
    return hash;
}

/* A number of 64 bits in the order of the values of the type; +0 and -0 are one. */
static uint64_t order_of(enum dtype dtype, const uint8_t *at)
{
    size_t esize = dtype_bytes(dtype);
    uint64_t x = 0, sign = UINT64_C(1) << (8 * esize - 1), above = sign - 1;
    memcpy(&x, at, esize);
    if (floats[dtype].exponents > 0) return x & sign ? sign - (x & above) : sign + x;
    bool has_sign = dtype == DT_INT8 || dtype == DT_INT32 || dtype == DT_INT64;
    return has_sign ? x ^ sign : x;
}

/* The number of values of the type between two of its bit patterns. */
static uint64_t distance(enum dtype dtype, const uint8_t *a, const uint8_t *b)
{
    uint64_t x = order_of(dtype, a), y = order_of(dtype, b);
    return x > y ? x - y : y - x;
}

struct difference {
    uint64_t elements, max_ulp;
};

static void compare(struct rank *rk, enum dtype dtype, const uint8_t *a, const uint8_t *b,
                    size_t bytes, struct difference *difference)
{
    size_t esize = dtype_bytes(dtype);
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        rank_tick(rk);
        if (memcmp(a + done, b + done, n) == 0) continue;
        for (size_t i = done; i < done + n; i += esize) {
            if (memcmp(a + i, b + i, esize) == 0) continue;
            uint64_t ulp = distance(dtype, a + i, b + i);
            difference->elements++;
            difference->max_ulp = ulp > difference->max_ulp ? ulp : difference->max_ulp;
        }
    }
}

/* Elements in which the own output is not rank 0's; every rank calls it. */
static uint64_t differs_from_rank0(const struct repeat *repeat, const struct side *side,
                                   const uint8_t *out)
{
    struct rank *rk = repeat->bench.rk;
    struct difference difference = {0, 0};
    for (size_t done = 0, n; done < side->row->out_bytes; done += n) {
        n = side->row->out_bytes - done;
        n = n < REPEAT_WINDOW ? n : REPEAT_WINDOW;
        if (rk->rank == 0) memcpy(repeat->window, out + done, n);
        rank_barrier(rk);
        compare(rk, side->row->dtype, out + done, repeat->shared, n, &difference);
        rank_barrier(rk);
    }
    return difference.elements;
}

/* Ranks whose hash of a run is not rank 0's. */
static uint32_t ranks_differ(const struct repeat *repeat, uint64_t run)
{
    struct rank *rk = repeat->bench.rk;
    uint64_t zero = board_samples(rk->world, 0, PLANE_BEGIN)[run];
    uint32_t count = 0;
    for (uint32_t r = 1; r < rk->nranks; r++)
        count += board_samples(rk->world, r, PLANE_BEGIN)[run] != zero;
    return count;
}

/* ---- one placement of a row ---- */

/* Bytes of the own output of which something is promised. */
static size_t promised_bytes(const struct side *side)
{
    const struct plan *plan = side->bench->plan;
    struct promise promise =
        coll_after(coll_get(plan->coll), plan->nranks, plan->root, side->bench->me, 0);
    return promise.content == CONTENT_FREE ? 0 : side->row->out_bytes;
}

/* What the ranks share on the board:
 *   PLANE_BEGIN        [run]   hash of the output
 *   PLANE_END          [0]     elements that are not rank 0's, in the first run where some are not
 *   PLANE_OTHER_BEGIN  [0]     elements that are not those of the call's first output
 *   PLANE_OTHER_END    [0]     their largest distance in ulp */
static void run_all(const struct repeat *repeat, struct side *side)
{
    struct rank *rk = repeat->bench.rk;
    uint64_t *hashes = board_samples(rk->world, rk->rank, PLANE_BEGIN);
    uint64_t *unlike = board_samples(rk->world, rk->rank, PLANE_END);
    uint8_t *out = side->check.memory + side->check.places.out;
    size_t bytes = promised_bytes(side), esize = dtype_bytes(side->row->dtype);
    bool counted = false;
    *unlike = 0;
    for (uint64_t run = 0; run < repeat->nruns; run++) {
        fill(side);
        rank_barrier(rk);
        if (rk->fault) exec_spoil(side->exec);
        side_operate(side);
        if (rk->fault) exec_spoiled(side->exec);
        if (repeat->bench.planted < bytes / esize) out[repeat->bench.planted * esize] ^= 1;
        hashes[run] = hash_of(rk, out, bytes);
        rank_barrier(rk);
        if (!repeat->promised || counted || ranks_differ(repeat, run) == 0) continue;
        *unlike = differs_from_rank0(repeat, side, out);
        counted = true;
    }
}

/* Rank 0: adds up what is on the board. */
static void collect(const struct repeat *repeat, struct repeated *sum)
{
    struct world *world = repeat->bench.rk->world;
    uint32_t nranks = repeat->bench.rk->nranks;
    for (uint64_t run = 0; run < repeat->nruns; run++) {
        bool differs = false;
        for (uint32_t r = 0; r < nranks; r++) {
            const uint64_t *hashes = board_samples(world, r, PLANE_BEGIN);
            differs = differs || hashes[run] != hashes[0];
        }
        sum->runs_differ += differs;
        uint32_t ranks = repeat->promised ? ranks_differ(repeat, run) : 0;
        sum->ranks_differ = ranks > sum->ranks_differ ? ranks : sum->ranks_differ;
    }
    for (uint32_t r = 0; r < nranks; r++) {
        uint64_t differ = *board_samples(world, r, PLANE_OTHER_BEGIN);
        uint64_t ulp = *board_samples(world, r, PLANE_OTHER_END);
        sum->hash = rng_mix(sum->hash ^ *board_samples(world, r, PLANE_BEGIN));
        sum->rank_elements += *board_samples(world, r, PLANE_END);
        sum->max_ulp = ulp > sum->max_ulp ? ulp : sum->max_ulp;
        if (!repeat->promised) {
            sum->differ += differ;
        } else if (differ > sum->differ) {
            sum->differ = differ;
        }
    }
}

static int run_side(struct repeat *repeat, const struct plan_row *row, bool in_place, bool is_first)
{
    struct side side;
    struct rank *rk = repeat->bench.rk;
    if (side_open(&side, &repeat->bench, row, in_place, false)) return -1;
    side_says(&side, "repeating");
    run_all(repeat, &side);
    const uint8_t *out = side.check.memory + side.check.places.out;
    struct difference difference = {0, 0};
    size_t bytes = promised_bytes(&side);
    if (repeat->first && is_first) memcpy(repeat->first, out, bytes);
    if (repeat->first) compare(rk, row->dtype, out, repeat->first, bytes, &difference);
    *board_samples(rk->world, rk->rank, PLANE_OTHER_BEGIN) = difference.elements;
    *board_samples(rk->world, rk->rank, PLANE_OTHER_END) = difference.max_ulp;
    rank_barrier(rk);
    int bad = 0;
    if (rk->rank == 0) {
        uint64_t elements = row->out_bytes / dtype_bytes(row->dtype);
        bool one_output = repeat->promised || coll_get(repeat->bench.plan->coll)->root_out;
        struct message message;
        memset(&message, 0, sizeof message);
        message.kind = MESSAGE_REPEATED;
        message.u.repeated = (struct repeated){
            .row = row->index,
            .result = side_describe(&side),
            .nruns = repeat->nruns,
            .promised = repeat->promised,
            .is_first = is_first,
            .elements = one_output ? elements : elements * rk->nranks,
        };
        collect(repeat, &message.u.repeated);
        bad = rank_send(rk, &message, sizeof message, repeat->bench.err);
    }
    side_close(&side); /* behind its barrier the board is written again */
    return bad;
}

/* ---- the rank ---- */

static uint64_t runs_of(const struct plan *plan)
{
    return plan->samples ? plan->samples : REPEAT_RUNS;
}

/* All ranks end with the same if rank 0 and rank 1 do: a promise names no rank but by its number.
 */
static bool same_promised(const struct plan *plan)
{
    if (plan->nranks == 1) return true;
    const struct coll *coll = coll_get(plan->coll);
    struct promise a = coll_after(coll, plan->nranks, plan->root, 0, 0);
    struct promise b = coll_after(coll, plan->nranks, plan->root, 1, 0);
    return a.content == b.content && a.block == b.block && a.all == b.all &&
           (a.all || a.rank == b.rank);
}

/* Bytes of the largest output; 0 where only one is made of each call. */
static size_t first_bytes(const struct plan *plan)
{
    size_t most = 0;
    if (plan->nalgos == 1 && !(plan->place[OUT_OF_PLACE] && plan->place[IN_PLACE])) return 0;
    for (uint32_t dtype_at = 0; dtype_at < plan->ndtypes; dtype_at++) {
        struct plan_row row;
        plan_at(plan, dtype_at, 0, plan_sizes(plan, dtype_at) - 1, &row);
        most = row.out_bytes > most ? row.out_bytes : most;
    }
    return most;
}

size_t repeat_bytes(const struct plan *plan)
{
    return first_bytes(plan) + REPEAT_WINDOW;
}

static int repeat_open(struct repeat *repeat, struct rank *rk, struct err *err)
{
    if (bench_open(&repeat->bench, rk, err)) return -1;
    const struct plan *plan = repeat->bench.plan;
    size_t bytes = first_bytes(plan);
    if (bytes > 0) repeat->first = mem_calloc(1, bytes);
    repeat->nruns = runs_of(plan);
    repeat->promised = same_promised(plan);
    repeat->window = rank_alloc(rk, REPEAT_WINDOW, err);
    uint8_t *own = world_extent(rk->world, rk->rank, err);
    uint8_t *zero = world_extent(rk->world, 0, err);
    if (!repeat->window || !own || !zero) return -1;
    repeat->shared = zero + board_agree(rk, (uint64_t)(repeat->window - own));
    return 0;
}

static int run_rows(struct repeat *repeat)
{
    const struct plan *plan = repeat->bench.plan;
    struct plan_row row;
    plan_first(plan, &row);
    bool is_first;
    do {
        is_first = row.algo_at == 0;
        for (int place = 0; place < NPLACES; place++) {
            if (!plan->place[place]) continue;
            if (run_side(repeat, &row, place == IN_PLACE, is_first)) return -1;
            is_first = false;
        }
    } while (plan_next(plan, &row));
    return 0;
}

int repeat_rank(struct rank *rk, struct err *err)
{
    struct repeat repeat = {0};
    int bad = repeat_open(&repeat, rk, err);
    if (!bad) bad = run_rows(&repeat);
    free(repeat.first);
    bench_close(&repeat.bench);
    return bad;
}

/* ---- the parent ---- */

struct out *repeat_table(void)
{
    static const struct out_column columns[] = {
        {"size", "B", 12, 0, OUT_UINT, NULL, NULL},
        {"count", "elements", 12, 0, OUT_UINT, NULL, NULL},
        {"type", NULL, 9, 0, OUT_TEXT, NULL, NULL},
        {"redop", NULL, 6, 0, OUT_TEXT, NULL, NULL},
        {"algo", NULL, 12, 0, OUT_TEXT, NULL, NULL},
        {"placement", NULL, 12, 0, OUT_TEXT, NULL, NULL},
        {"ranks", NULL, 10, 0, OUT_TEXT, NULL, NULL},
        {"runs", NULL, 10, 0, OUT_TEXT, NULL, NULL},
        {"vs_first", NULL, 8, 0, OUT_TEXT, "vs first", NULL},
        {"differ", "elements", 12, 0, OUT_UINT, NULL, NULL},
        {"differ", "%", 8, 3, OUT_DOUBLE, NULL, NULL},
        {"max", "ulp", 10, 0, OUT_UINT, NULL, NULL},
        {"hash", NULL, 16, 0, OUT_TEXT, NULL, NULL},
        {"nranks", NULL, 0, 0, OUT_UINT, NULL, NULL}, /* from here on hidden in text */
        {"nruns", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"runs_differ", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"ranks_differ", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"ranks_differ", "elements", 0, 0, OUT_UINT, NULL, NULL},
        {"transport", NULL, 0, 0, OUT_TEXT, NULL, NULL},
        {"channels", NULL, 0, 0, OUT_UINT, NULL, NULL},
        {"parts", NULL, 0, 0, OUT_UINT, NULL, NULL},
    };
    return out_new(columns, sizeof columns / sizeof *columns);
}

/* "same", or how many are not. Freed by the caller. */
static char *sameness(uint64_t differ)
{
    return differ ? mem_printf("%" PRIu64 " differ", differ) : mem_strdup("same");
}

void repeat_row(struct out *table, const struct repeated *r)
{
    const struct result *result = &r->result;
    const struct out_cell none = {0};
    char *ranks = sameness(r->ranks_differ), *runs = sameness(r->runs_differ);
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    double share = r->elements ? 100.0 * (double)r->differ / (double)r->elements : 0;
    struct out_cell cells[] = {
        out_uint(result->bytes),
        out_uint(result->count),
        out_text(result->dtype),
        out_text(result->redop),
        out_text(result->algo),
        out_text(result->in_place ? "in place" : "out of place"),
        r->promised ? out_text(ranks) : none,
        out_text(runs),
        out_text(r->is_first ? "first"
                 : r->differ ? "differs"
                             : "same"),
        out_uint(r->differ),
        out_double(share),
        out_uint(r->max_ulp),
        out_text(hash),
        out_uint(result->nranks),
        out_uint(r->nruns),
        out_uint(r->runs_differ),
        r->promised ? out_uint(r->ranks_differ) : none,
        r->promised ? out_uint(r->rank_elements) : none,
        out_text(result->transport),
        out_uint(result->channels),
        out_uint(result->parts),
    };
    out_row(table, cells);
    free(ranks);
    free(runs);
}

void repeat_header(struct out *table, const struct plan *plan)
{
    out_note(table,
             "determinism: each call %" PRIu64 " times on the same data, whose sums are not exact; "
             "ranks: output against rank 0's; runs: against the first; differ, max: against the "
             "first row of the same call; hash: of all outputs, to compare launches",
             runs_of(plan));
}

struct repeat_seen {
    bool known;
    uint64_t hash;
};

/* What this placement gave in an earlier launch, if there was one. */
static struct repeat_seen *seen_of(struct repeats *repeats, const struct repeated *r)
{
    uint64_t at = 2 * r->row + r->result.in_place;
    if (at >= repeats->nseen) {
        uint64_t more = 2 * (at + 1);
        repeats->seen = mem_realloc(repeats->seen, more, sizeof *repeats->seen);
        memset(repeats->seen + repeats->nseen, 0, (more - repeats->nseen) * sizeof *repeats->seen);
        repeats->nseen = more;
    }
    return &repeats->seen[at];
}

void repeat_take(struct repeats *repeats, const struct repeated *r, struct err *err)
{
    const struct result *result = &r->result;
    struct repeat_seen *seen = seen_of(repeats, r);
    char *call = mem_printf("%s %s, %" PRIu64 " B, %s %s, %s", coll_get(result->coll)->name,
                            result->algo, result->bytes, result->dtype, result->redop,
                            result->in_place ? "in place" : "out of place");
    repeats->rows++;
    repeats->reduces = coll_get(result->coll)->reduces;
    repeats->ranks_bad += r->ranks_differ > 0;
    repeats->runs_bad += r->runs_differ > 0;
    repeats->others += !r->is_first;
    repeats->others_same += !r->is_first && r->differ == 0;
    if (r->ranks_differ > 0) {
        err_add(err, ERR_FAILED,
                "%s: the output of %u of %u ranks is not that of rank 0, in %" PRIu64 " elements",
                call, r->ranks_differ, result->nranks, r->rank_elements);
    }
    if (r->runs_differ > 0) {
        err_add(err, ERR_FAILED, "%s: %" PRIu64 " of %" PRIu64 " runs differ from the first", call,
                r->runs_differ, r->nruns);
    }
    if (seen->known && seen->hash != r->hash) {
        repeats->launches_bad++;
        err_add(err, ERR_FAILED, "%s: this launch's result is not that of the first", call);
    }
    if (!seen->known) *seen = (struct repeat_seen){true, r->hash};
    free(call);
}

void repeats_release(struct repeats *repeats)
{
    free(repeats->seen);
    *repeats = (struct repeats){0};
}

void repeat_note(const struct repeats *repeats, struct out *table, bool failed)
{
    bool good = !failed && repeats->ranks_bad + repeats->runs_bad + repeats->launches_bad == 0;
    out_meta(table, "repeatable", failed ? (struct out_cell){0} : out_bool(good));
    if (failed) {
        out_note(table, "determinism: N/A, the run failed; the rows above are all that was seen");
        return;
    }
    if (good) {
        out_note(table,
                 "determinism: OK, %" PRIu64 " rows, each the same bits in all runs and launches "
                 "and, where promised, on all ranks",
                 repeats->rows);
    } else {
        out_note(table,
                 "determinism: FAILED, of %" PRIu64 " rows %" PRIu64 " differ between ranks, "
                 "%" PRIu64 " between runs, %" PRIu64 " between launches",
                 repeats->rows, repeats->ranks_bad, repeats->runs_bad, repeats->launches_bad);
    }
    if (repeats->others > 0) {
        out_note(table,
                 "against the first row of the same call: %" PRIu64 " of %" PRIu64
                 " others are the same bits%s",
                 repeats->others_same, repeats->others,
                 repeats->reduces
                     ? " (another order of additions rounds differently; that is no fault)"
                     : "");
    }
}
