/* SPDX-License-Identifier: Apache-2.0
 * Recursive doubling and halving: in step s every rank exchanges with one partner, so that groups
 * of 2^s ranks that know the same become groups of twice the size (Thakur, Rabenseifner and Gropp,
 * "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005; Rabenseifner,
 * "Optimization of collective reduction operations", ICCS 2004).
 *
 *     n = 6      fold      step 0      step 1       unfold        Groups are powers of two: of the
 *     rank 0   <-+       <-+         <-----+     -+               n - p extra ranks (p = the power
 *     rank 1    -+         |               |    <-+               of two within n) each gives what
 *     rank 2   <-+       <-+         <---+ |     -+               it has to its left neighbour
 *     rank 3    -+                       | |    <-+               first, who hands it the result
 *     rank 4             <-+         <---|-+                      at the end. The others are
 *     rank 5             <-+         <---+                        numbered through: v.
 *
 * k = log2 p, r = n - p. Bytes and messages that the busiest rank sends; where r > 0, add the last
 * column's bytes and 1 message:
 *
 *   allreduce       recursive_doubling  k S             k messages   S
 *                   halving_doubling    2 (p-1)/p S     2k           S
 *                   swing               the same
 *   allgather       recursive_doubling  (p-1) S/n       k            (n-1 + sum of min(2^s, r)
 *                                                                    for s = 0 .. k-1) S/n
 *   reduce_scatter  recursive_halving   (n-1) S/n       k            S/n
 *
 * The halving-doubling pair sends what is left in one piece: chunks are numbered by splitting the
 * buffer at each step, so that what a rank keeps is always a range. */
#include "algo/builders.h"

struct fold {
    uint32_t power, extra; /* n = power + extra */
    uint32_t v;            /* number of this rank, or of the neighbour it gives to */
    bool folds, idle;      /* it is one of a pair; the one that waits for the result */
};

static struct fold fold_of(uint32_t n, uint32_t rank)
{
    struct fold fold = {.power = power_within(n)};
    fold.extra = n - fold.power;
    fold.folds = rank < 2 * fold.extra;
    fold.idle = fold.folds && rank % 2 == 1;
    fold.v = fold.folds ? rank / 2 : rank - fold.extra;
    return fold;
}

/* The rank that is numbered v; of v = power: n. */
static uint32_t rank_of(const struct fold *fold, uint32_t v)
{
    return v < fold->extra ? 2 * v : v + fold->extra;
}

/* ---- allreduce ---- */

/* The idle rank's input is added to its neighbour's, into buffer `dst`; `span` chunks a piece. */
static void fold_in(struct prog *prog, const struct algo_args *args, const struct fold *fold,
                    uint32_t span, uint32_t dst)
{
    for (uint32_t sub = 0; fold->folds && sub < pieces(args); sub++) {
        uint32_t c = sub * span;
        use_sub(prog, args, sub);
        if (fold->idle) {
            sched_send_ref(prog, prog->rank - 1, ref_in(c));
        } else {
            sched_recv_reduce_ref(prog, prog->rank + 1, (struct ref){dst, c}, ref_in(c));
        }
        sched_span(prog, span);
    }
}

static void fold_out(struct prog *prog, const struct algo_args *args, const struct fold *fold,
                     uint32_t span)
{
    for (uint32_t sub = 0; fold->folds && sub < pieces(args); sub++) {
        use_sub(prog, args, sub);
        if (fold->idle) {
            sched_recv(prog, prog->rank - 1, sub * span);
        } else {
            sched_send(prog, prog->rank + 1, sub * span);
        }
        sched_span(prog, span);
    }
}

/* Swaps chunk c with the partner: both get lower rank's (+) higher rank's, the same bits. */
static void swap_and_add(struct prog *prog, uint32_t peer, uint32_t c, uint32_t from, uint32_t to)
{
    struct ref src = {from, c}, dst = {to, c};
    sched_send_ref(prog, peer, src);
    if (prog->rank < peer) {
        sched_recv_reduce_ref(prog, peer, dst, src);
    } else {
        sched_recv_ref(prog, peer, ref_scratch(0, c));
        sched_reduce(prog, dst, ref_scratch(0, c), src);
    }
}

/* Sums go to the output and to a scratch plane in turn, the last to the output: the partner may
 * still be reading the one while the other is written. */
void doubling_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    struct fold fold = fold_of(args->nranks, rank);
    if (args->nranks == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    uint32_t left = fold.folds, from = BUF_IN; /* sums still to come */
    for (uint32_t bit = 1; bit < fold.power; bit <<= 1) {
        left++;
    }
    if (fold.folds) {
        from = --left % 2 ? BUF_SCRATCH + 1 : BUF_OUT;
        fold_in(prog, args, &fold, 1, from);
    }
    for (uint32_t bit = 1; bit < fold.power && !fold.idle; bit <<= 1) {
        uint32_t to = --left % 2 ? BUF_SCRATCH + 1 : BUF_OUT;
        for (uint32_t sub = 0; sub < pieces(args); sub++) {
            use_sub(prog, args, sub);
            swap_and_add(prog, rank_of(&fold, fold.v ^ bit), sub, from, to);
            if (left == 0) {
                sched_final(prog);
            }
        }
        from = to;
    }
    fold_out(prog, args, &fold, 1);
}

/* Who meets whom. In step s (bit = 2^s) v meets peer(v, bit); bit s of label(v) says which half of
 * what the group shares it keeps. All that meet in later steps have equal labels up to bit s. */
struct pattern {
    uint32_t (*peer)(uint32_t v, uint32_t bit, uint32_t power);
    uint32_t (*label)(uint32_t v, uint32_t power);
};

/* The first chunk of the range, of power / bit chunks, that a label keeps until the step of `bit`:
 * bit s of the label is worth half of what was left. */
static uint32_t range_at(uint32_t label, uint32_t bit, uint32_t power)
{
    uint32_t first = 0;
    for (uint32_t b = 1; b < bit; b <<= 1) {
        power /= 2;
        first += label & b ? power : 0;
    }
    return first;
}

static void halve_and_double(struct prog *prog, const struct algo_args *args,
                             const struct pattern *pattern)
{
    struct fold fold = fold_of(args->nranks, prog->rank);
    uint32_t power = fold.power, label = pattern->label(fold.v, power), bit = 1;
    fold_in(prog, args, &fold, power, BUF_OUT);
    for (; bit < power && !fold.idle; bit <<= 1) { /* halving: send one half, add the other */
        uint32_t peer = rank_of(&fold, pattern->peer(fold.v, bit, power)), half = power / bit / 2;
        for (uint32_t sub = 0; sub < pieces(args); sub++) {
            use_sub(prog, args, sub);
            sched_send(prog, peer, sub * power + range_at(label ^ bit, 2 * bit, power));
            sched_span(prog, half);
            sched_recv_reduce(prog, peer, sub * power + range_at(label, 2 * bit, power));
            sched_span(prog, half);
            if (half == 1) {
                sched_final(prog);
            }
        }
    }
    for (bit >>= 1; bit > 0 && !fold.idle; bit >>= 1) { /* doubling: the same way back */
        uint32_t peer = rank_of(&fold, pattern->peer(fold.v, bit, power)), half = power / bit / 2;
        for (uint32_t sub = 0; sub < pieces(args); sub++) {
            use_sub(prog, args, sub);
            sched_send(prog, peer, sub * power + range_at(label, 2 * bit, power));
            sched_span(prog, half);
            sched_recv(prog, peer, sub * power + range_at(label ^ bit, 2 * bit, power));
            sched_span(prog, half);
        }
    }
    fold_out(prog, args, &fold, power);
}

static uint32_t cube_peer(uint32_t v, uint32_t bit, uint32_t power)
{
    (void)power;
    return v ^ bit;
}

static uint32_t cube_label(uint32_t v, uint32_t power)
{
    (void)power;
    return v;
}

/* Nearest partner first, as that is where half of all bytes go. */
void halving_doubling_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    static const struct pattern cube = {cube_peer, cube_label};
    (void)rank;
    if (args->nranks == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    halve_and_double(prog, args, &cube);
}

/* Swing's distance in step s: the sum of (-2)^i for i = 0 .. s, which is 1, -1, 3, -5, 11, .. */
static int64_t swing_distance(uint32_t bit)
{
    int64_t sum = 0, term = 1;
    for (; bit > 0; bit >>= 1, term *= -2) {
        sum += term;
    }
    return sum;
}

static uint32_t swing_peer(uint32_t v, uint32_t bit, uint32_t power)
{
    int64_t distance = swing_distance(bit);
    return wrap(v % 2 == 0 ? v + distance : v - distance, power);
}

/* Distances from step s on are equal modulo 2^(s+1): so the even ranks of those that meet from
 * there on are equal modulo 2^(s+1) too, and the odd ones are those less the distance. Bits 1, 2,
 * .. of the even number decide the halves; in the last step an even rank meets an odd one. */
static uint32_t swing_label(uint32_t v, uint32_t power)
{
    uint32_t even = v % 2 == 0 ? v : swing_peer(v, power / 2, power);
    return even / 2 + (v % 2) * (power / 2);
}

/* Short-cuts on rings and tori: partners are nearer than in the cube, and lie to either side in
 * turn (De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth
 * allreduce", NSDI 2024). */
void swing_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    static const struct pattern swing = {swing_peer, swing_label};
    (void)rank;
    if (args->nranks == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    halve_and_double(prog, args, &swing);
}

/* ---- several blocks in a row ---- */

struct message {
    uint32_t block, sub, chunk;
};

static uint32_t messages(const struct algo_args *args, uint32_t count)
{
    return pieces(args) == 1 ? 1 : count * pieces(args);
}

/* Message m of those for blocks from `first` on; its lane is set. */
static struct message message(struct prog *prog, const struct algo_args *args, uint32_t first,
                              uint32_t m)
{
    uint32_t w = pieces(args), block = wrap((int64_t)first + m / w, args->nranks);
    use_sub(prog, args, m % w);
    return (struct message){block, m % w, block * w + m % w};
}

static uint32_t span_of(const struct algo_args *args, uint32_t count)
{
    return pieces(args) == 1 ? count : 1;
}

void allgather_own(struct prog *prog, const struct algo_args *args)
{
    for (uint32_t sub = 0; sub < pieces(args); sub++) {
        uint32_t c = prog->rank * pieces(args) + sub;
        if (!prog->written[c]) {
            use_sub(prog, args, sub);
            sched_copy(prog, ref_out(c), ref_in(sub));
        }
    }
}

void allgather_send(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                    uint32_t count)
{
    uint32_t span = span_of(args, count);
    if (span > 1) {
        allgather_own(prog, args);
    }
    for (uint32_t m = 0; m < messages(args, count); m++) {
        struct message msg = message(prog, args, first, m);
        bool own = msg.block == prog->rank && span == 1;
        sched_send_ref(prog, peer, own ? ref_in(msg.sub) : ref_out(msg.chunk));
        sched_span(prog, span);
    }
}

void allgather_recv(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                    uint32_t count)
{
    for (uint32_t m = 0; m < messages(args, count); m++) {
        sched_recv(prog, peer, message(prog, args, first, m).chunk);
        sched_span(prog, span_of(args, count));
    }
}

static struct ref partial_ref(const struct prog *prog, struct partial from, struct message msg)
{
    return (struct ref){msg.block == prog->rank ? from.own : from.others, msg.chunk};
}

void partial_send(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                  uint32_t count, struct partial from)
{
    for (uint32_t m = 0; m < messages(args, count); m++) {
        struct message msg = message(prog, args, first, m);
        sched_send_ref(prog, peer, partial_ref(prog, from, msg));
        sched_span(prog, span_of(args, count));
    }
}

void partial_add(struct prog *prog, const struct algo_args *args, uint32_t peer, uint32_t first,
                 uint32_t count, struct partial from, bool last)
{
    for (uint32_t m = 0; m < messages(args, count); m++) {
        struct message msg = message(prog, args, first, m);
        struct ref dst = last && count == 1 ? ref_out(msg.sub) : ref_scratch(0, msg.chunk);
        sched_recv_reduce_ref(prog, peer, dst, partial_ref(prog, from, msg));
        sched_span(prog, span_of(args, count));
        if (last) {
            sched_final(prog);
        }
    }
}

/* ---- allgather and reduce_scatter: groups are ranges of ranks, so of blocks ---- */

/* Blocks of the `bit` numbers from v on. */
static uint32_t blocks_of(const struct fold *fold, uint32_t v, uint32_t bit)
{
    return rank_of(fold, v + bit) - rank_of(fold, v);
}

void doubling_allgather(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks;
    struct fold fold = fold_of(n, rank);
    if (fold.idle) {
        allgather_send(prog, args, rank - 1, rank, 1);
        allgather_recv(prog, args, rank - 1, wrap(rank + 1, n), n - 1);
        allgather_own(prog, args);
        return;
    }
    if (fold.folds) {
        allgather_recv(prog, args, rank + 1, rank + 1, 1);
    }
    for (uint32_t bit = 1; bit < fold.power; bit <<= 1) {
        uint32_t ours = fold.v - fold.v % bit, theirs = ours ^ bit;
        uint32_t peer = rank_of(&fold, fold.v ^ bit);
        allgather_send(prog, args, peer, rank_of(&fold, ours), blocks_of(&fold, ours, bit));
        allgather_recv(prog, args, peer, rank_of(&fold, theirs), blocks_of(&fold, theirs, bit));
    }
    if (fold.folds) {
        allgather_send(prog, args, rank + 1, wrap(rank + 2, n), n - 1);
    }
    allgather_own(prog, args);
}

/* The pair's two blocks stay together to the end. */
void halving_reduce_scatter(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    uint32_t n = args->nranks, w = pieces(args);
    struct fold fold = fold_of(n, rank);
    struct partial in = {BUF_IN, BUF_IN}, scratch = {BUF_SCRATCH, BUF_SCRATCH}, from = in;
    if (fold.idle) {
        partial_send(prog, args, rank - 1, 0, n, in);
    } else if (fold.folds) {
        partial_add(prog, args, rank + 1, 0, n, in, false);
        from = scratch;
    }
    for (uint32_t bit = fold.power / 2; bit > 0 && !fold.idle; bit >>= 1) {
        uint32_t ours = fold.v - fold.v % bit, theirs = ours ^ bit;
        uint32_t peer = rank_of(&fold, fold.v ^ bit);
        partial_send(prog, args, peer, rank_of(&fold, theirs), blocks_of(&fold, theirs, bit), from);
        partial_add(prog, args, peer, rank_of(&fold, ours), blocks_of(&fold, ours, bit), from,
                    bit == 1);
        from = scratch;
    }
    for (uint32_t sub = 0; sub < w && (fold.folds || n == 1); sub++) {
        use_sub(prog, args, sub);
        if (fold.idle) {
            sched_recv(prog, rank - 1, sub);
            continue;
        }
        sched_copy(prog, ref_out(sub), (struct ref){from.own, rank * w + sub});
        if (fold.folds) {
            sched_send_ref(prog, rank + 1, ref_scratch(0, (rank + 1) * w + sub));
        }
    }
}
