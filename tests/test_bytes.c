/* SPDX-License-Identifier: Apache-2.0
 * Bytes moved, counted and not timed: what each rank sends in a run of the simulator, whose
 * messages are those of the executor (the matrix compares the two), against the closed form of the
 * algorithm. Every row of the table must have one here. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "net/net.h"

/* One rank of a call. v: number from the root on. Nodes: K of them, of which the own one has m
 * ranks from `first` on; M is the largest. */
struct who {
    uint32_t n, rank, v;
    uint32_t nnodes, m, first, M;
    const uint32_t *nodes;
};

static uint32_t power_within_n(uint32_t n) /* the largest power of two <= n */
{
    uint32_t p = 1;
    while (2 * p <= n)
        p *= 2;
    return p;
}

static uint32_t log2_of(uint32_t p)
{
    return (uint32_t)__builtin_ctz(p);
}

/* Lowest set bit of v; of 0: the least power of two >= n. */
static uint32_t low(uint32_t v, uint32_t n)
{
    uint32_t p = power_within_n(n);
    return v ? v & -v : p == n ? n : 2 * p;
}

/* Ranks in v's subtree of the binomial tree, and its children. */
static uint32_t size_of(uint32_t v, uint32_t n)
{
    uint32_t bit = low(v, n);
    return v == 0 ? n : bit < n - v ? bit : n - v;
}

static uint32_t kids(uint32_t v, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t b = 1; b < low(v, n); b *= 2)
        count += v + b < n;
    return count;
}

/* Ranks beyond a power of two: the first 2 (n-p) are pairs, whose odd ones wait. */
static bool pairs_up(const struct who *w)
{
    return w->rank < 2 * (w->n - power_within_n(w->n));
}

static bool waits(const struct who *w)
{
    return pairs_up(w) && w->rank % 2;
}

/* ---- bytes that a rank sends, in units of S ---- */

static double none(const struct who *w)
{
    (void)w;
    return 0;
}

static double one(const struct who *w)
{
    return w->n > 1;
}

static double share(const struct who *w)
{
    return (w->n - 1.0) / w->n;
}

static double two_shares(const struct who *w)
{
    return 2 * share(w);
}

static double all_to_all(const struct who *w)
{
    return w->n - 1.0;
}

static double doubling(const struct who *w)
{
    uint32_t k = log2_of(power_within_n(w->n));
    return waits(w) ? 1 : k + pairs_up(w);
}

static double halving_doubling(const struct who *w)
{
    double p = power_within_n(w->n);
    return waits(w) ? 1 : 2 * (p - 1) / p + pairs_up(w);
}

/* A rank sends what its group has, which doubles; pairs count for two. */
static double doubling_gather(const struct who *w)
{
    uint32_t r = w->n - power_within_n(w->n);
    uint32_t v = pairs_up(w) ? w->rank / 2 : w->rank - r;
    if (waits(w)) return 1.0 / w->n;
    double blocks = pairs_up(w) ? w->n - 1.0 : 0;
    for (uint32_t bit = 1; bit < power_within_n(w->n); bit *= 2) {
        uint32_t from = v - v % bit, pairs = from >= r ? 0 : r - from < bit ? r - from : bit;
        blocks += bit + pairs;
    }
    return blocks / w->n;
}

static double halving_scatter(const struct who *w)
{
    return waits(w) ? 1 : share(w);
}

static double bruck_alltoall(const struct who *w)
{
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < w->n; i++)
        blocks += (uint32_t)__builtin_popcount(i);
    return (double)blocks / w->n;
}

static double scatter_allgather(const struct who *w)
{
    return (size_of(w->v, w->n) - 1.0 + w->n - size_of((w->v + 1) % w->n, w->n)) / w->n;
}

static double but_the_root(const struct who *w)
{
    return w->v > 0;
}

static double binomial_down(const struct who *w)
{
    return kids(w->v, w->n);
}

static double chain_down(const struct who *w)
{
    return w->v + 1 < w->n;
}

static double scatter_gather(const struct who *w)
{
    double p = power_within_n(w->n);
    if (w->v >= p) return 1;
    return (p - 1 + (w->v > 0 ? low(w->v, (uint32_t)p) : 0)) / p;
}

static double gather_direct(const struct who *w)
{
    return w->v > 0 ? 1.0 / w->n : 0;
}

static double gather_binomial(const struct who *w)
{
    return w->v > 0 ? (double)size_of(w->v, w->n) / w->n : 0;
}

static double scatter_direct(const struct who *w)
{
    return w->v == 0 ? share(w) : 0;
}

static double scatter_binomial(const struct who *w)
{
    return (size_of(w->v, w->n) - 1.0) / w->n;
}

/* a: parts that the rank owns, of M; see hierarchical.c. */
static double hierarchical_sum(const struct who *w)
{
    uint32_t l = w->rank - w->first, a = (w->M - l + w->m - 1) / w->m, K = w->nnodes;
    return (w->M - a + a * (w->m - 1.0) + 2.0 * a * (K - 1) / K) / w->M;
}

/* s: ranks of other nodes that the rank serves. */
static double hierarchical_swap(const struct who *w)
{
    uint32_t l = w->rank - w->first, s = 0;
    for (uint32_t k = 0, at = 0; k < w->nnodes; at += w->nodes[k++]) {
        for (uint32_t j = 0; at != w->first && j < w->nodes[k]; j++)
            s += j % w->m == l;
    }
    return (w->n - 1.0 - s + (double)s * w->m) / w->n;
}

/* ---- bytes of all ranks together ---- */

static double twice_each(const struct who *w)
{
    return 2.0 * (w->n - 1);
}

static double once_each(const struct who *w)
{
    return w->n - 1.0;
}

typedef double form_fn(const struct who *w);

static const struct row {
    enum coll_id coll;
    const char *algo;
    form_fn *of_rank; /* NULL: only the sum has a closed form */
    form_fn *total;
} forms[] = {
    {COLL_ALLREDUCE, "ring", two_shares, NULL},
    {COLL_ALLREDUCE, "tree", NULL, twice_each},
    {COLL_ALLREDUCE, "oneshot", all_to_all, NULL},
    {COLL_ALLREDUCE, "twoshot", two_shares, NULL},
    {COLL_ALLREDUCE, "recursive_doubling", doubling, NULL},
    {COLL_ALLREDUCE, "halving_doubling", halving_doubling, NULL},
    {COLL_ALLREDUCE, "swing", halving_doubling, NULL},
    {COLL_ALLREDUCE, "hierarchical", hierarchical_sum, twice_each},
    {COLL_ALLGATHER, "ring", share, NULL},
    {COLL_ALLGATHER, "recursive_doubling", doubling_gather, NULL},
    {COLL_ALLGATHER, "bruck", share, NULL},
    {COLL_ALLGATHER, "pat", share, NULL},
    {COLL_ALLGATHER, "direct", share, NULL},
    {COLL_REDUCE_SCATTER, "ring", share, NULL},
    {COLL_REDUCE_SCATTER, "recursive_halving", halving_scatter, NULL},
    {COLL_REDUCE_SCATTER, "bruck", share, NULL},
    {COLL_REDUCE_SCATTER, "pat", share, NULL},
    {COLL_REDUCE_SCATTER, "direct", share, NULL},
    {COLL_ALLTOALL, "pairwise", share, NULL},
    {COLL_ALLTOALL, "direct", share, NULL},
    {COLL_ALLTOALL, "hierarchical", hierarchical_swap, NULL},
    {COLL_ALLTOALL, "bruck", bruck_alltoall, NULL},
    {COLL_BROADCAST, "binomial", binomial_down, once_each},
    {COLL_BROADCAST, "chain", chain_down, once_each},
    {COLL_BROADCAST, "scatter_allgather", scatter_allgather, once_each},
    {COLL_BROADCAST, "double_tree", NULL, once_each},
    {COLL_REDUCE, "direct", but_the_root, once_each},
    {COLL_REDUCE, "binomial", but_the_root, once_each},
    {COLL_REDUCE, "chain", but_the_root, once_each},
    {COLL_REDUCE, "reduce_scatter_gather", scatter_gather, NULL},
    {COLL_GATHER, "direct", gather_direct, share},
    {COLL_GATHER, "binomial", gather_binomial, NULL},
    {COLL_SCATTER, "direct", scatter_direct, share},
    {COLL_SCATTER, "binomial", scatter_binomial, NULL},
    {COLL_SENDRECV, "shift", one, NULL},
    {COLL_ALLTOALLV, "pairwise", share, NULL},
    {COLL_ALLTOALLV, "direct", share, NULL},
    {COLL_BARRIER, "dissemination", none, NULL},
    {COLL_BARRIER, "tree", none, NULL},
};
enum { NFORMS = sizeof forms / sizeof *forms };

static const struct row *form_of(const struct algo *algo)
{
    for (size_t i = 0; i < NFORMS; i++) {
        if (forms[i].coll == algo->coll && strcmp(forms[i].algo, algo->name) == 0) return &forms[i];
    }
    return NULL;
}

/* ---- counting ---- */

/* Runs it; bytes that each rank has sent, with chunks of 64 B all. Freed by the caller. */
static uint64_t *count(const struct algo *algo, const struct algo_args *args, size_t *size)
{
    struct err err = ERR_INIT;
    uint32_t n = args->nranks;
    struct sched *sched = algo_build(algo, args, false, &err);
    cr_assert_not_null(sched, "%s", err.text);
    struct linked *linked =
        link_sched(sched, &(struct link_opts){.mode = WIRE_STAGED, .fuse = true}, &err);
    cr_assert_not_null(linked, "%s", err.text);
    size_t block = sched->coll->empty ? 0 : (size_t)64 * sched->nparts;
    double *shares = mem_calloc((size_t)n * n, sizeof *shares);
    traffic_imbalance(n, 1, shares);
    struct traffic *even = traffic_deal(n, shares, block * n * n);
    struct net_args net = {.beta_Bps = 1e9,
                           .slots = linked->most_msgs + 1,
                           .block_bytes = block,
                           .traffic = sched->coll->uneven ? even : NULL,
                           .esize = 1};
    struct net_result result;
    cr_assert_eq(net_run(linked, &net, &result, &err), 0, "%s", err.text);
    uint64_t *sent = mem_calloc(n, sizeof *sent);
    for (uint32_t r = 0; r < n; r++) {
        sent[r] = (uint64_t)result.link_bytes[2 * r]; /* out of rank r, into the switch */
    }
    *size = coll_size(sched->coll, n, block, 1);
    net_result_release(&result);
    free(shares);
    free(even);
    linked_free(linked);
    sched_free(sched);
    return sent;
}

static struct who who_is(const struct algo_args *args, uint32_t rank)
{
    struct who w = {.n = args->nranks,
                    .rank = rank,
                    .v = (rank + args->nranks - args->root) % args->nranks,
                    .nnodes = args->nnodes,
                    .nodes = args->nodes};
    for (uint32_t k = 0, first = 0; k < args->nnodes; first += args->nodes[k++]) {
        w.M = args->nodes[k] > w.M ? args->nodes[k] : w.M;
        if (rank >= first && rank < first + args->nodes[k]) {
            w.first = first;
            w.m = args->nodes[k];
        }
    }
    return w;
}

static void compare(const struct algo *algo, const struct algo_args *args)
{
    const struct row *form = form_of(algo);
    const char *coll = coll_get(algo->coll)->name;
    cr_assert_not_null(form, "%s %s has no closed form in this test", coll, algo->name);
    size_t size;
    uint64_t *sent = count(algo, args, &size), total = 0;
    for (uint32_t r = 0; r < args->nranks; r++) {
        struct who w = who_is(args, r);
        total += sent[r];
        if (!form->of_rank) continue;
        double wanted = form->of_rank(&w) * (double)size;
        cr_assert(fabs((double)sent[r] - wanted) < 1e-6 * (wanted + 1),
                  "%s %s, %u ranks, root %u, %u nodes: rank %u sent %llu B, not %g", coll,
                  algo->name, args->nranks, args->root, args->nnodes, r,
                  (unsigned long long)sent[r], wanted);
    }
    if (form->total) {
        struct who w = who_is(args, 0);
        double wanted = form->total(&w) * (double)size;
        cr_assert(fabs((double)total - wanted) < 1e-6 * (wanted + 1),
                  "%s %s, %u ranks: all sent %llu B, not %g", coll, algo->name, args->nranks,
                  (unsigned long long)total, wanted);
    }
    free(sent);
}

Test(bytes, every_row_moves_its_closed_form)
{
    static const char *const groups[] = {"1", "5", "2+3", "1+4", "4+4", "1+1+1", "3+1+2", "4x4"};
    size_t nalgos;
    const struct algo *table = algo_table(&nalgos);
    for (size_t a = 0; a < nalgos; a++) {
        if (!algo_runs_on_ranks(&table[a])) continue; /* test_agents.c: links in both directions */
        uint32_t cuts[] = {1, 2, 3};
        for (uint32_t n = 1; n <= 17; n++) {
            uint32_t nroots = coll_get(table[a].coll)->rooted && n <= 9 ? n : 1, whole[] = {n};
            for (uint32_t root = 0; root < nroots; root++) {
                compare(&table[a], &(struct algo_args){.nranks = n,
                                                       .root = root,
                                                       .channels = cuts[(n + root) % 3],
                                                       .parts = cuts[n % 2],
                                                       .nnodes = 1,
                                                       .nodes = whole});
            }
        }
        for (uint32_t g = 0; table[a].grouped && g < sizeof groups / sizeof *groups; g++) {
            struct err err = ERR_INIT;
            uint32_t *nodes;
            struct algo_args args = {.channels = 1 + g % 2, .parts = 1 + g % 3};
            cr_assert_eq(algo_nodes_parse(groups[g], &nodes, &args.nnodes, &err), 0);
            for (uint32_t k = 0; k < args.nnodes; k++)
                args.nranks += nodes[k];
            args.nodes = nodes;
            compare(&table[a], &args);
            free(nodes);
        }
    }
}
