/* SPDX-License-Identifier: Apache-2.0
 * The event engine against closed forms and against properties that hold for any right answer:
 * shares are max-min fair, bytes are conserved, equal runs give equal traces. Formulas use
 * A = alpha, b = bytes of one message / beta, n = ranks; they are stated where they are tested. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algo/algo.h"
#include "base/mem.h"
#include "net/coll_cmd.h"
#include "net/net.h"
#include "sched/layout.h"

#define ALPHA 5000000u /* 5 us */
#define BETA 50e9

static double us(ps_t ps)
{
    return (double)ps / 1e6;
}

/* Time in us of `bytes` over one link. */
static double over_link(double bytes)
{
    return bytes / BETA * 1e6;
}

static const double A = ALPHA / 1e6;

static void near(double got, double want, const char *what, uint32_t n)
{
    double error = want == 0 ? fabs(got) : fabs(got / want - 1);
    cr_assert(error <= 1e-4, "%s, n = %u: got %.6f us, formula %.6f us, off by %.4f %%", what, n,
              got, want, 100 * error);
}

/* ---- schedules made by hand ---- */

/* An allreduce-shaped schedule (one block of `parts` parts) with an empty program per rank. */
static struct sched *hand(uint32_t nranks, uint32_t parts)
{
    struct sched *sched = sched_new("hand", COLL_ALLREDUCE, nranks, 0, parts);
    for (uint32_t r = 0; r < nranks; r++) {
        sched_prog(sched, r);
    }
    return sched;
}

static struct linked *link_hand(const struct sched *sched, enum wire_mode mode)
{
    struct err err = ERR_INIT;
    struct linked *linked = link_sched(sched, &(struct link_opts){.mode = mode}, &err);
    cr_assert(linked, "%s", err.text);
    return linked;
}

static struct net_args plain_args(size_t block_bytes)
{
    return (struct net_args){
        .alpha_ps = ALPHA, .beta_Bps = BETA, .slots = 8, .block_bytes = block_bytes};
}

static struct net_result run_linked(const struct linked *linked, const struct net_args *args)
{
    struct err err = ERR_INIT;
    struct net_result result;
    cr_assert_eq(net_run(linked, args, &result, &err), 0, "%s", err.text);
    return result;
}

/* Total time in us of a schedule made by hand, which it frees. */
static double time_hand(struct sched *sched, enum wire_mode mode, const struct net_args *args)
{
    struct linked *linked = link_hand(sched, mode);
    struct net_result result = run_linked(linked, args);
    double time = us(result.total_ps);
    net_result_release(&result);
    linked_free(linked);
    sched_free(sched);
    return time;
}

static void message(struct sched *sched, uint32_t src, uint32_t dst, uint32_t chunk)
{
    sched_send_ref(&sched->progs[src], dst, ref_in(chunk));
    sched_recv_ref(&sched->progs[dst], src, ref_out(chunk));
}

Test(net, one_message)
{
    struct net_args args = plain_args(1 << 20);
    struct sched *sched = hand(2, 1);
    message(sched, 0, 1, 0);
    near(time_hand(sched, WIRE_STAGED, &args), A + over_link(1 << 20), "one message", 2);
}

Test(net, two_flows_into_one_port_take_twice_as_long)
{
    struct net_args args = plain_args(1 << 20);
    struct sched *sched = hand(3, 1);
    message(sched, 0, 2, 0);
    message(sched, 1, 2, 0);
    near(time_hand(sched, WIRE_STAGED, &args), A + 2 * over_link(1 << 20), "two into one", 3);
    sched = hand(3, 1);
    message(sched, 0, 1, 0);
    message(sched, 0, 2, 0);
    near(time_hand(sched, WIRE_STAGED, &args), A + 2 * over_link(1 << 20), "two out of one", 3);
}

Test(net, disjoint_flows_do_not_meet)
{
    struct net_args args = plain_args(1 << 20);
    struct sched *sched = hand(4, 1);
    message(sched, 0, 2, 0);
    message(sched, 1, 3, 0);
    near(time_hand(sched, WIRE_STAGED, &args), A + over_link(1 << 20), "disjoint", 4);
    sched = hand(2, 1); /* full duplex: the two directions do not meet */
    for (uint32_t r = 0; r < 2; r++) {
        sched_send_ref(&sched->progs[r], 1 - r, ref_in(0));
        sched_recv_ref(&sched->progs[r], 1 - r, ref_out(0));
    }
    near(time_hand(sched, WIRE_STAGED, &args), A + over_link(1 << 20), "both ways", 2);
}

/* The second message of a wire follows the first; it does not share with it. */
Test(net, a_wire_is_first_in_first_out)
{
    struct net_args args = plain_args(2 << 20);
    struct sched *sched = hand(3, 2);
    for (uint32_t chunk = 0; chunk < 2; chunk++) { /* 0 -> 1 -> 2 in two pieces */
        message(sched, 0, 1, chunk);
    }
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        sched_send_ref(&sched->progs[1], 2, ref_out(chunk));
        sched_recv_ref(&sched->progs[2], 1, ref_out(chunk));
    }
    /* rank 1 has both pieces at A + 2b and then sends both */
    near(time_hand(sched, WIRE_STAGED, &args), 2 * A + 4 * over_link(1 << 20), "two hops", 3);
}

Test(net, no_bytes_take_the_latency)
{
    struct net_args args = plain_args(0);
    struct sched *sched = hand(2, 1);
    message(sched, 0, 1, 0);
    near(time_hand(sched, WIRE_STAGED, &args), A, "no bytes", 2);
    args =
        plain_args(64); /* the second part of one granule is empty, and stands behind the first */
    sched = hand(2, 2);
    message(sched, 0, 1, 0);
    message(sched, 0, 1, 1);
    near(time_hand(sched, WIRE_STAGED, &args), A + over_link(64), "empty part", 2);
}

/* A staged or pulled wire holds `slots` messages. m messages from 0 to 1, slots d: message k is
 * posted when message k - d has arrived, so with b < A and d = 1 each takes A + b. */
Test(net, slots_hold_the_sender_back)
{
    enum { M = 6 };
    double b = over_link(1 << 10);
    for (uint32_t slots = 1; slots <= 3; slots++) {
        struct net_args args = plain_args(M << 10);
        args.slots = slots;
        struct sched *sched = hand(2, M);
        double arrival[M], drain = 0;
        for (uint32_t k = 0; k < M; k++) {
            message(sched, 0, 1, k);
            double posted = k >= slots ? arrival[k - slots] : 0;
            drain = fmax(posted, drain) + b;
            arrival[k] = drain + A;
        }
        near(time_hand(sched, WIRE_STAGED, &args), arrival[M - 1], "slots", slots);
        if (slots == 1) {
            near(arrival[M - 1], M * (A + b), "one slot", slots);
        }
    }
}

/* Overhead keeps the lane, not the link, busy: m posts of o each. */
Test(net, overhead_and_gamma)
{
    struct net_args args = plain_args(4 << 10);
    args.overhead_ps = 1000000;
    struct sched *sched = hand(5, 1);
    for (uint32_t r = 1; r < 5; r++) {
        message(sched, 0, r, 0);
    }
    /* posts at 1, 2, 3, 4 us; each is through in 0.08 us, before the next */
    near(time_hand(sched, WIRE_STAGED, &args), 4 + over_link(4 << 10) + A, "overhead", 5);

    args = plain_args(4 << 10);
    args.gamma_Bps = 1e9; /* 4.096 us per block */
    sched = hand(2, 1);
    sched_send_ref(&sched->progs[0], 1, ref_in(0));
    sched_recv_reduce_ref(&sched->progs[1], 0, ref_out(0), ref_in(0));
    sched_copy(&sched->progs[1], ref_scratch(0, 0), ref_out(0));
    sched_reduce(&sched->progs[1], ref_out(0), ref_out(0), ref_scratch(0, 0));
    near(time_hand(sched, WIRE_STAGED, &args), A + over_link(4 << 10) + 3 * 4.096, "gamma", 2);
}

/* Lanes of a rank work side by side unless one needs what the other makes. */
Test(net, lanes)
{
    struct net_args args = plain_args(4 << 10);
    args.gamma_Bps = 1e9;
    for (int dependent = 0; dependent < 2; dependent++) {
        struct sched *sched = hand(1, 1);
        struct prog *prog = &sched->progs[0];
        sched_copy(prog, ref_out(0), ref_in(0));
        sched_lane(prog, 1, 0);
        sched_copy(prog, ref_scratch(0, 0), dependent ? ref_out(0) : ref_in(0));
        near(time_hand(sched, WIRE_STAGED, &args), (1 + dependent) * 4.096, "lanes", 1);
    }
}

/* Pulled, a source stays busy until its receiver has read it. Rank 1 is busy with copies for a
 * while; rank 0 can only overwrite what it sent to rank 1, and pass it on, once rank 1 has it. */
Test(net, a_pulled_source_is_busy)
{
    struct net_args args = plain_args(4 << 10);
    args.gamma_Bps = 1e9;
    double b = over_link(4 << 10), busy = 4 * 4.096;
    for (int pull = 0; pull < 2; pull++) {
        struct sched *sched = hand(4, 1);
        sched_send_ref(&sched->progs[0], 1, ref_out(0));
        sched_recv_ref(&sched->progs[0], 2, ref_out(0));
        sched_send_ref(&sched->progs[0], 3, ref_out(0));
        sched_send_ref(&sched->progs[2], 0, ref_in(0));
        for (int i = 0; i < 4; i++) {
            sched_copy(&sched->progs[1], ref_scratch(0, 0), ref_in(0));
        }
        sched_recv_ref(&sched->progs[1], 0, ref_out(0));
        sched_recv_ref(&sched->progs[3], 0, ref_out(0));
        struct linked *linked = link_hand(sched, pull ? WIRE_PULL : WIRE_STAGED);
        struct net_result result = run_linked(linked, &args);
        near(us(result.finish_ps[3]), (pull ? busy : A + b) + A + b, "passed on", 4);
        net_result_release(&result);
        linked_free(linked);
        sched_free(sched);
    }
}

/* A rank has finished when nobody needs its buffers any more. */
Test(net, a_pulled_sender_waits_for_its_reader)
{
    struct net_args args = plain_args(4 << 10);
    for (int pull = 0; pull < 2; pull++) {
        struct sched *sched = hand(2, 1);
        message(sched, 0, 1, 0);
        struct linked *linked = link_hand(sched, WIRE_PULL);
        for (uint32_t r = 0; r < 2; r++) { /* the linker may have raised it to PUSH */
            linked->progs[r].wires[0].mode = pull ? WIRE_PULL : WIRE_STAGED;
        }
        struct net_result result = run_linked(linked, &args);
        near(us(result.finish_ps[0]), pull ? A + over_link(4 << 10) : 0, "sender", 2);
        near(us(result.finish_ps[1]), A + over_link(4 << 10), "receiver", 2);
        net_result_release(&result);
        linked_free(linked);
        sched_free(sched);
    }
}

Test(net, a_deadlock_is_named)
{
    struct net_args args = plain_args(1024);
    struct sched *sched = hand(2, 2); /* both send two before they take the first */
    for (uint32_t r = 0; r < 2; r++) {
        sched_send_ref(&sched->progs[r], 1 - r, ref_in(0));
        sched_send_ref(&sched->progs[r], 1 - r, ref_in(1));
        sched_recv_ref(&sched->progs[r], 1 - r, ref_out(0));
        sched_recv_ref(&sched->progs[r], 1 - r, ref_out(1));
    }
    struct linked *linked = link_hand(sched, WIRE_STAGED);
    cr_assert_eq(linked->least_depth, 2);
    args.slots = 1;
    struct err err = ERR_INIT;
    struct net_result result;
    cr_assert_eq(net_run(linked, &args, &result, &err), -1);
    cr_assert_eq(err.code, ERR_FAILED);
    const char *want[] = {"deadlock", "rank 0 lane 0", "step 1 (send)", "room for message 1"};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        cr_assert(strstr(err.text, want[i]), "no '%s' in: %s", want[i], err.text);
    }
    err_release(&err);
    args.slots = 2;
    result = run_linked(linked, &args);
    near(us(result.total_ps), A + over_link(1024), "two slots", 2);
    net_result_release(&result);

    for (uint32_t r = 0; r < 2; r++) { /* now both receive first: no room helps */
        struct lstep *steps = linked->progs[r].steps, swap = steps[0];
        steps[0] = steps[2];
        steps[2] = swap;
    }
    cr_assert_eq(net_run(linked, &args, &result, &err), -1);
    cr_assert(strstr(err.text, "the arrival of message 0"), "%s", err.text);
    err_release(&err);
    linked_free(linked);
    sched_free(sched);
}

Test(net, both_ends_must_agree_on_the_bytes)
{
    struct sched *sched = hand(2, 2); /* of 192 bytes part 0 has 128 and part 1 has 64 */
    sched_send_ref(&sched->progs[0], 1, ref_in(0));
    sched_recv_ref(&sched->progs[1], 0, ref_out(1));
    struct linked *linked = link_hand(sched, WIRE_STAGED);
    struct net_args args = plain_args(192);
    struct err err = ERR_INIT;
    struct net_result result;
    cr_assert_eq(net_run(linked, &args, &result, &err), -1);
    cr_assert(strstr(err.text, "128 bytes") && strstr(err.text, "64 bytes"), "%s", err.text);
    err_release(&err);
    linked_free(linked);
    sched_free(sched);
}

Test(net, arguments_out_of_range)
{
    struct sched *sched = hand(2, 1);
    message(sched, 0, 1, 0);
    struct linked *linked = link_hand(sched, WIRE_STAGED);
    struct net_args args = {.beta_Bps = 0, .gamma_Bps = NAN, .slots = 0, .slice_bytes = 100};
    struct err err = ERR_INIT;
    struct net_result result;
    cr_assert_eq(net_run(linked, &args, &result, &err), -1);
    cr_assert_eq(err.count, 4, "%s", err.text);
    cr_assert_eq(err.code, ERR_USAGE);
    err_release(&err);
    args = plain_args((size_t)1 << 50);
    args.beta_Bps = 1; /* 36 million years */
    cr_assert_eq(net_run(linked, &args, &result, &err), -1);
    cr_assert(err.code == ERR_USAGE && strstr(err.text, "213 days"), "%s", err.text);
    err_release(&err);
    linked_free(linked);
    sched_free(sched);
}

/* ---- the algorithms against their formulas ---- */

/* One row of the algorithm table, run: total time in us. `size` is S as algbw counts it; it must be
 * a multiple of 64 bytes x ranks x channels x parts, so that all chunks are alike. */
struct call {
    enum coll_id coll;
    const char *algo;
    uint32_t nranks, root, channels, parts;
    size_t size;
    enum wire_mode mode;
    bool in_place;
};

/* False if it cannot be linked in this mode. */
static bool try_call(const struct call *call, const struct net_args *extra,
                     struct net_result *result)
{
    struct err err = ERR_INIT;
    struct algo_args args = {.nranks = call->nranks,
                             .root = call->root,
                             .channels = call->channels,
                             .parts = call->parts};
    const struct algo *algo = algo_find(call->coll, call->algo, &err);
    cr_assert(algo, "%s", err.text);
    struct sched *sched = algo_build(algo, &args, false, &err);
    cr_assert(sched, "%s", err.text);
    struct linked *linked = link_sched(
        sched, &(struct link_opts){.mode = call->mode, .in_place = call->in_place, .fuse = true},
        &err);
    if (!linked) {
        err_release(&err);
        sched_free(sched);
        return false;
    }
    struct net_args net = extra ? *extra : plain_args(0);
    net.slots = net.slots < linked->least_depth ? linked->least_depth : net.slots;
    net.block_bytes = coll_block_count(coll_get(call->coll), call->nranks, call->size, 1);
    uint32_t n = call->nranks;
    double *shares = mem_calloc((size_t)n * n, sizeof *shares);
    traffic_imbalance(n, 1, shares);
    struct traffic *even = traffic_deal(n, shares, net.block_bytes * n * n);
    if (sched->coll->uneven) net.traffic = even;
    net.esize = 1;
    *result = run_linked(linked, &net);
    free(shares);
    free(even);
    linked_free(linked);
    sched_free(sched);
    return true;
}

static struct net_result run_call(const struct call *call, const struct net_args *extra)
{
    struct net_result result = {0};
    cr_assert(try_call(call, extra, &result), "%s does not link", call->algo);
    return result;
}

static double time_call(const struct call *call, const struct net_args *extra)
{
    struct net_result result = run_call(call, extra);
    double time = us(result.total_ps);
    net_result_release(&result);
    return time;
}

/* Formulas in A, b = S / (n x channels x parts) / beta or S / (channels x parts) / beta. Every
 * rank posts what it sends at once, so the n - 1 messages of a direct exchange share its link. */
static double ring_all_reduce(uint32_t n, double whole)
{
    return 2 * (n - 1) * (A + whole / n);
}
static double ring_half(uint32_t n, double whole)
{
    return (n - 1) * (A + whole / n);
}
static double oneshot(uint32_t n, double whole)
{
    return A + (n - 1) * whole;
}
static double twoshot(uint32_t n, double whole)
{
    return 2 * (A + (n - 1) * whole / n);
}
static double direct(uint32_t n, double whole)
{
    return A + (n - 1) * whole / n;
}
/* One piece hops n - 1 times. */
static double chain(uint32_t n, double whole)
{
    return (n - 1) * (A + whole);
}
/* A rank at position v (relative to the root) that has the data sends to its c children at once:
 * they share its egress, so all have it c x whole + A later. */
static double binomial_from(uint32_t v, uint32_t below, uint32_t n, double whole)
{
    uint32_t children = 0;
    for (uint32_t bit = below >> 1; bit > 0; bit >>= 1) {
        children += v + bit < n;
    }
    double latest = 0;
    for (uint32_t bit = below >> 1; bit > 0; bit >>= 1) {
        if (v + bit < n) {
            double sub = binomial_from(v + bit, bit, n, whole);
            latest = fmax(latest, children * whole + A + sub);
        }
    }
    return latest;
}
static double binomial(uint32_t n, double whole)
{
    uint32_t below = 1;
    while (below < n) {
        below *= 2;
    }
    return binomial_from(0, below, n, whole);
}

/* The tree of positions lo..hi in order: its root is the one with most trailing zeros. */
static uint32_t subtree_root(uint32_t lo, uint32_t hi)
{
    uint32_t best = lo;
    for (uint32_t v = lo; v <= hi; v++) {
        best = (v & -v) > (best & -best) ? v : best;
    }
    return best;
}
/* When the sum of the subtree lo..hi is at its root. Two children whose sums are ready at s <= t
 * send at once; they share the root's ingress while both flow: the second is there at
 * max(s + 2 whole, t + whole) + A. */
static double tree_up(uint32_t lo, uint32_t hi, double whole)
{
    uint32_t root = subtree_root(lo, hi);
    bool left = root > lo, right = root < hi;
    double s = left ? tree_up(lo, root - 1, whole) : 0;
    double t = right ? tree_up(root + 1, hi, whole) : 0;
    if (left && right) {
        return fmax(fmin(s, t) + 2 * whole, fmax(s, t) + whole) + A;
    }
    return left || right ? s + t + whole + A : 0;
}
/* From the root having the result to all of lo..hi having it. */
static double tree_down(uint32_t lo, uint32_t hi, double whole)
{
    uint32_t root = subtree_root(lo, hi), children = (uint32_t)(root > lo) + (root < hi ? 1 : 0);
    double left = root > lo ? tree_down(lo, root - 1, whole) : 0;
    double right = root < hi ? tree_down(root + 1, hi, whole) : 0;
    return children ? children * whole + A + fmax(left, right) : 0;
}
/* Rank 0 stands above the tree of 1..n-1. */
static double single_tree(uint32_t n, double whole)
{
    return tree_up(1, n - 1, whole) + 2 * (whole + A) + tree_down(1, n - 1, whole);
}

/* Rounds of exchanges that double what is known: k = ceil(log2 n). */
static uint32_t rounds(uint32_t n)
{
    uint32_t k = 0;
    while (1u << k < n) {
        k++;
    }
    return k;
}
static double all_each_round(uint32_t n, double whole)
{
    return rounds(n) * (A + whole);
}
static double half_each_round(uint32_t n, double whole)
{
    return rounds(n) * (A + whole / 2);
}
static double there_and_back(uint32_t n, double whole)
{
    return 2 * (rounds(n) * A + (n - 1) * whole / n);
}
static double one_way(uint32_t n, double whole)
{
    return rounds(n) * A + (n - 1) * whole / n;
}
static double one_message_each(uint32_t n, double whole)
{
    (void)n;
    return A + whole;
}
static double latencies(uint32_t n, double whole)
{
    (void)whole;
    return rounds(n) * A;
}

static const struct {
    enum coll_id coll;
    const char *algo;
    double (*formula)(uint32_t n, double whole_us); /* whole_us = S / beta */
    bool powers;                                    /* holds for powers of two alone */
} formulas[] = {
    {COLL_ALLREDUCE, "ring", ring_all_reduce, false},
    {COLL_ALLREDUCE, "tree", single_tree, false}, /* one channel: one tree */
    {COLL_ALLREDUCE, "oneshot", oneshot, false},
    {COLL_ALLREDUCE, "twoshot", twoshot, false},
    {COLL_ALLGATHER, "ring", ring_half, false},
    {COLL_REDUCE_SCATTER, "ring", ring_half, false},
    {COLL_ALLTOALL, "direct", direct, false},
    {COLL_BROADCAST, "binomial", binomial, false},
    {COLL_BROADCAST, "chain", chain, false},
    {COLL_REDUCE, "chain", chain, false},
    {COLL_REDUCE, "direct", oneshot, false},
    {COLL_ALLGATHER, "direct", direct, false},
    {COLL_REDUCE_SCATTER, "direct", direct, false},
    {COLL_GATHER, "direct", direct, false},
    {COLL_SCATTER, "direct", direct, false},
    {COLL_ALLGATHER, "bruck", one_way, false},
    {COLL_REDUCE_SCATTER, "bruck", one_way, false},
    {COLL_SENDRECV, "shift", one_message_each, false},
    {COLL_BARRIER, "dissemination", latencies, false},
    {COLL_ALLREDUCE, "recursive_doubling", all_each_round, true},
    {COLL_ALLREDUCE, "halving_doubling", there_and_back, true},
    {COLL_ALLREDUCE, "swing", there_and_back, true},
    {COLL_ALLGATHER, "recursive_doubling", one_way, true},
    {COLL_REDUCE_SCATTER, "recursive_halving", one_way, true},
    {COLL_ALLTOALL, "bruck", half_each_round, true},
};

Test(net, formulas)
{
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++) {
        for (uint32_t n = 2; n <= 64; n = formulas[i].powers ? 2 * n : n + 1) {
            for (size_t unit = 1; unit <= 10000; unit *= 100) { /* latency, both, bandwidth */
                struct call call = {.coll = formulas[i].coll,
                                    .algo = formulas[i].algo,
                                    .nranks = n,
                                    .channels = 1,
                                    .parts = 1,
                                    .size = 64 * unit * n,
                                    .in_place = unit == 100};
                double want = formulas[i].formula(n, over_link((double)call.size));
                near(time_call(&call, NULL), want, formulas[i].algo, n);
            }
        }
    }
}

/* The pipelined chain of m pieces, b each: piece k leaves rank i when it has come (rank 0: has it),
 * the piece before has left, and the next rank has released piece k - slots; it does that when it
 * has room itself for passing on. With room enough: (n - 1) A + (n - 2 + m) b. */
Test(net, pipelined_chain)
{
    enum { M = 12 };
    for (uint32_t slots = 1; slots <= M; slots++) {
        for (uint32_t n = 2; n <= 64; n += 1 + n / 8) {
            struct call call = {.coll = COLL_BROADCAST,
                                .algo = "chain",
                                .nranks = n,
                                .root = n / 2,
                                .channels = 1,
                                .parts = M,
                                .size = (size_t)M << 17};
            struct net_args args = plain_args(0);
            args.slots = slots;
            double b = over_link(1 << 17), done[65][M], drain[65] = {0}, arrive = 0;
            memset(done, 0, sizeof done); /* done[i][k]: rank i has ended its group of piece k */
            for (uint32_t k = 0; k < M; k++) {
                arrive = 0;
                for (uint32_t i = 0; i < n; i++) {
                    double room = i + 1 < n && k >= slots ? done[i + 1][k - slots] : 0;
                    double order = k > 0 ? done[i][k - 1] : 0;
                    done[i][k] = fmax(fmax(arrive, room), order);
                    drain[i] = fmax(done[i][k], drain[i]) + b;
                    arrive = drain[i] + A;
                }
            }
            near(time_call(&call, &args), done[n - 1][M - 1], "chain", n);
            if (slots == M) {
                near(done[n - 1][M - 1], (n - 1) * A + (n - 2 + M) * b, "chain, roomy", n);
            }
        }
    }
}

/* The shift pairwise exchange as a relative program: in step k to rank + k, from rank - k. */
Test(net, shift_alltoall)
{
    for (uint32_t n = 2; n <= 64; n++) {
        struct sched *sched = sched_new("shift", COLL_ALLTOALL, n, 0, 1);
        sched->relative = true;
        struct prog *prog = sched_prog(sched, 0);
        for (uint32_t k = 1; k < n; k++) {
            sched_send_ref(prog, k, ref_in(k));
            sched_recv_ref(prog, n - k, ref_out(n - k));
        }
        struct net_args args = plain_args(64000);
        near(time_hand(sched, WIRE_STAGED, &args), (n - 1) * (A + over_link(64000)), "shift", n);
    }
}

/* ---- against a plain fluid model, where no formula exists ---- */

/* A message that starts when two others have arrived and a third has started (NOTHING: none). */
struct fluid {
    uint32_t src, dst, after[2], behind;
    double left, rate, arrival;
    enum { WAITING, FLOWING, SENT } state;
};

enum { NOTHING = UINT32_MAX };

/* Rates of all flowing messages, in bytes per us: raise all together; whoever meets a full link
 * stops. */
static void fluid_rates(struct fluid *m, size_t count, uint32_t n)
{
    double *left = mem_calloc(2 * (size_t)n, sizeof *left);
    uint32_t *users = mem_calloc(2 * (size_t)n, sizeof *users);
    bool *stopped = mem_calloc(count, sizeof *stopped);
    for (uint32_t l = 0; l < 2 * n; l++) {
        left[l] = BETA / 1e6;
    }
    for (size_t i = 0; i < count; i++) {
        m[i].rate = 0;
        stopped[i] = m[i].state != FLOWING;
    }
    for (;;) {
        memset(users, 0, 2 * (size_t)n * sizeof *users);
        for (size_t i = 0; i < count; i++) {
            users[m[i].src] += !stopped[i];
            users[n + m[i].dst] += !stopped[i];
        }
        double rise = INFINITY;
        for (uint32_t l = 0; l < 2 * n; l++) {
            rise = users[l] ? fmin(rise, left[l] / users[l]) : rise;
        }
        if (isinf(rise)) {
            break;
        }
        for (uint32_t l = 0; l < 2 * n; l++) {
            left[l] -= rise * users[l];
        }
        for (size_t i = 0; i < count; i++) {
            if (!stopped[i]) {
                m[i].rate += rise;
                stopped[i] = fmin(left[m[i].src], left[n + m[i].dst]) < BETA / 1e6 * 1e-9;
            }
        }
    }
    free(left);
    free(users);
    free(stopped);
}

/* When a waiting message can start: INFINITY if that is not known yet. */
static double fluid_ready(const struct fluid *m, size_t i)
{
    double ready = m[i].behind != NOTHING && m[m[i].behind].state == WAITING ? INFINITY : 0;
    for (int k = 0; k < 2; k++) {
        uint32_t a = m[i].after[k];
        if (a != NOTHING) {
            ready = fmax(ready, m[a].state == SENT ? m[a].arrival : INFINITY);
        }
    }
    return ready;
}

/* When the last message of `count` arrives, in us. Each has a wire of its own. */
static double fluid_time(struct fluid *m, size_t count, uint32_t n)
{
    double now = 0, last = 0;
    for (size_t sent = 0; sent < count;) {
        double next = INFINITY;
        for (size_t i = 0; i < count; i++) {
            double ready = m[i].state == WAITING ? fluid_ready(m, i) : INFINITY;
            if (ready <= now + 1e-9) {
                m[i].state = FLOWING;
            } else {
                next = fmin(next, ready);
            }
        }
        fluid_rates(m, count, n);
        for (size_t i = 0; i < count; i++) {
            next = m[i].state == FLOWING ? fmin(next, now + m[i].left / m[i].rate) : next;
        }
        for (size_t i = 0; i < count; i++) {
            if (m[i].state == FLOWING) {
                m[i].left -= m[i].rate * (next - now);
                if (m[i].left <= 1e-6 * m[i].rate) {
                    m[i].state = SENT;
                    m[i].arrival = next + A;
                    last = fmax(last, m[i].arrival);
                    sent++;
                }
            }
        }
        now = next;
    }
    return last;
}

/* Parent of position v in the in-order tree of 0..n-1, found from above. */
static uint32_t parent_of(uint32_t v, uint32_t n)
{
    uint32_t lo = 1, hi = n - 1, above = 0;
    for (;;) {
        uint32_t root = subtree_root(lo, hi);
        if (root == v) {
            return above;
        }
        above = root;
        if (v < root) {
            hi = root - 1;
        } else {
            lo = root + 1;
        }
    }
}

/* Messages of one tree, with `rank_of(v)` for positions: v's up message is m[v - 1], its down
 * message m[n - 1 + v - 1]; both numbers from `base`. */
static void add_tree(struct fluid *m, uint32_t base, uint32_t n, uint32_t tree, double bytes)
{
    for (uint32_t v = 1; v < n; v++) {
        uint32_t p = parent_of(v, n);
        uint32_t rank = tree == 0 ? v : n % 2 == 0 ? n - 1 - v : (v + 1) % n;
        uint32_t up = tree == 0 ? p : n % 2 == 0 ? n - 1 - p : (p + 1) % n;
        m[v - 1] = (struct fluid){rank, up, {NOTHING, NOTHING}, NOTHING, bytes, 0, 0, WAITING};
        m[n + v - 2] = (struct fluid){up, rank, {NOTHING, NOTHING}, NOTHING, bytes, 0, 0, WAITING};
        if (p > 0) {
            m[n + v - 2].after[0] = base + n + p - 2;
        }
    }
    for (uint32_t v = 1; v < n; v++) { /* what v's parent does after v's message */
        uint32_t p = parent_of(v, n);
        if (p > 0) {
            uint32_t *after = m[p - 1].after;
            after[after[0] != NOTHING] = base + v - 1;
        } else {
            m[n + v - 2].after[0] = base + v - 1; /* rank 0 has one child: back it goes */
        }
    }
}

/* Two trees, half of the data each, meet on the links: no closed form, but a plain model. */
Test(net, double_tree)
{
    for (uint32_t n = 2; n <= 64; n++) {
        struct call call = {.coll = COLL_ALLREDUCE,
                            .algo = "tree",
                            .nranks = n,
                            .channels = 2,
                            .parts = 1,
                            .size = 1 << 20};
        size_t count = 4 * (size_t)(n - 1);
        struct fluid *m = mem_calloc(count, sizeof *m);
        add_tree(m, 0, n, 0, 1 << 19);
        add_tree(m + 2 * (n - 1), 2 * (n - 1), n, 1, 1 << 19);
        near(time_call(&call, NULL), fluid_time(m, count, n), "double tree", n);
        free(m);
        if (n == 2) { /* here there is one: the trees use opposite directions */
            near(time_call(&call, NULL), 2 * (A + over_link(1 << 19)), "double tree", 2);
        }
    }
}

/* In round k ranks whose sum is k mod n swap blocks; who would meet itself goes on at once, and so
 * runs into its next partner's round. */
Test(net, pairwise_alltoall)
{
    for (uint32_t n = 2; n <= 24; n++) {
        struct call call = {.coll = COLL_ALLTOALL,
                            .algo = "pairwise",
                            .nranks = n,
                            .channels = 1,
                            .parts = 1,
                            .size = (size_t)n << 17};
        size_t count = (size_t)n * (n - 1);
        struct fluid *m = mem_calloc(count, sizeof *m);
        uint32_t *got = mem_calloc(n, sizeof *got);   /* last message for each rank */
        uint32_t *sent = mem_calloc(n, sizeof *sent); /* and of each rank */
        uint32_t next = 0;
        memset(got, 0xff, n * sizeof *got);
        memset(sent, 0xff, n * sizeof *sent);
        for (uint32_t k = 0; k < n; k++) {
            uint32_t first = next;
            for (uint32_t r = 0; r < n; r++) {
                uint32_t p = (k + n - r) % n;
                if (p != r) {
                    m[next] =
                        (struct fluid){r, p, {got[r], NOTHING}, sent[r], 1 << 17, 0, 0, WAITING};
                    sent[r] = next++;
                }
            }
            for (uint32_t i = first; i < next; i++) {
                got[m[i].dst] = i;
            }
        }
        cr_assert_eq(next, count);
        near(time_call(&call, NULL), fluid_time(m, count, n), "pairwise", n);
        free(m);
        free(got);
        free(sent);
    }
}

/* ---- what holds for every row of the table ---- */

static void assert_sound(const struct call *call, const struct net_result *result)
{
    double egress = 0, ingress = 0, most = 0;
    uint64_t logged = 0, out = 0, in = 0; /* by ranks, not by agents */
    for (uint32_t r = 0; r < result->nranks; r++) {
        egress += result->link_bytes[2 * r];
        ingress += result->link_bytes[2 * r + 1];
        most = result->link_bytes[2 * r + 1] > most ? result->link_bytes[2 * r + 1] : most;
        cr_assert(result->finish_ps[r] <= result->total_ps);
    }
    for (size_t i = 0; i < result->nlog; i++) {
        logged += result->log[i].bytes;
        out += result->log[i].src < result->nranks ? result->log[i].bytes : 0;
        in += result->log[i].dst < result->nranks ? result->log[i].bytes : 0;
    }
    cr_assert_eq((uint64_t)egress, out);
    cr_assert_eq((uint64_t)ingress, in);
    cr_assert_eq(logged, result->bytes);
    cr_assert_eq(result->nlog, result->messages);
    double least = coll_get(call->coll)->busbw_factor(call->nranks) * (double)call->size;
    double each = least * call->nranks;
    if (call->coll == COLL_BROADCAST || call->coll == COLL_REDUCE) {
        each = least * (call->nranks - 1); /* the root receives, or sends, nothing */
    } else if (coll_get(call->coll)->rooted) {
        each = least; /* all that the root has or wants */
    }
    if (call->nranks > 1) {
        cr_assert((double)result->bytes >= each - 1, "%s of %zu B on %u ranks moved %llu B",
                  call->algo, call->size, call->nranks, (unsigned long long)result->bytes);
    }
    cr_assert((double)result->total_ps >= most / BETA * 1e12 - (double)result->messages);
}

static bool same_log(const struct net_result *a, const struct net_result *b)
{
    for (size_t i = 0; i < a->nlog && a->nlog == b->nlog; i++) {
        const struct msg_log *x = &a->log[i], *y = &b->log[i];
        if (x->src != y->src || x->dst != y->dst || x->channel != y->channel ||
            x->number != y->number || x->bytes != y->bytes) {
            return false;
        }
    }
    return a->nlog == b->nlog;
}

static void check_call(const struct call *call)
{
    struct net_args args = plain_args(0);
    args.keep_log = true;
    struct net_result whole;
    if (!try_call(call, &args, &whole)) { /* in place, a swap cannot be pulled */
        cr_assert(call->mode == WIRE_PULL && call->in_place);
        return;
    }
    struct net_result again = run_call(call, &args);
    assert_sound(call, &whole);
    cr_assert_eq(whole.passes, 1);
    cr_assert_eq(whole.trace, again.trace);
    cr_assert_eq(whole.total_ps, again.total_ps);
    cr_assert(same_log(&whole, &again));
    args.slice_bytes = 64; /* as many passes as granules in the longest chunk */
    struct net_result sliced = run_call(call, &args);
    assert_sound(call, &sliced);
    cr_assert_eq(sliced.bytes, whole.bytes);
    cr_assert_eq(sliced.messages, sliced.passes * whole.messages);
    for (uint32_t r = 0; r < call->nranks; r++) {
        cr_assert_eq(sliced.link_bytes[2 * r], whole.link_bytes[2 * r]);
    }
    cr_assert(call->size < (size_t)256 * call->nranks * call->parts * call->channels ||
              sliced.passes >= 3);
    net_result_release(&whole);
    net_result_release(&again);
    net_result_release(&sliced);
}

Test(net, every_row)
{
    static const uint32_t ranks[] = {1, 2, 3, 5, 8, 13};
    static const size_t sizes[] = {0, 1, 63, 1000, 30001};
    size_t nalgos;
    const struct algo *table = algo_table(&nalgos);
    for (size_t i = 0; i < nalgos; i++) {
        for (size_t j = 0; j < sizeof ranks / sizeof *ranks; j++) {
            for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
                uint32_t turn = (uint32_t)(i + j + k);
                struct call call = {.coll = table[i].coll,
                                    .algo = table[i].name,
                                    .nranks = ranks[j],
                                    .root = coll_get(table[i].coll)->rooted ? ranks[j] / 2 : 0,
                                    .channels = 1 + turn % 2,
                                    .parts = 1 + turn % 3,
                                    .mode = turn % 2 ? WIRE_PULL : WIRE_STAGED,
                                    .in_place = turn / 2 % 2};
                const struct coll *coll = coll_get(call.coll);
                call.size = coll_size(coll, call.nranks,
                                      coll_block_count(coll, call.nranks, sizes[k], 1), 1);
                check_call(&call);
            }
        }
    }
}

/* Another input gives another trace, so the comparison of traces can fail. */
Test(net, traces_differ_with_the_input)
{
    struct call call = {.coll = COLL_ALLREDUCE,
                        .algo = "tree",
                        .nranks = 6,
                        .channels = 2,
                        .parts = 1,
                        .size = 1 << 16};
    struct net_args args = plain_args(0), other = args;
    other.alpha_ps++;
    struct net_result a = run_call(&call, &args), b = run_call(&call, &other);
    cr_assert_neq(a.trace, b.trace);
    net_result_release(&a);
    net_result_release(&b);
}

/* One program for all ranks gives what a program per rank gives. */
Test(net, relative_is_unrolled)
{
    struct err err = ERR_INIT;
    struct algo_args args = {.nranks = 9, .channels = 2, .parts = 2};
    uint64_t trace[2];
    for (int unroll = 0; unroll < 2; unroll++) {
        const struct algo *ring = algo_find(COLL_ALLREDUCE, "ring", &err);
        struct sched *sched = algo_build(ring, &args, unroll, &err);
        cr_assert_eq(sched->nprogs, unroll ? 9 : 1);
        struct linked *linked = link_sched(sched, &(struct link_opts){.fuse = true}, &err);
        struct net_args net = plain_args(100001);
        struct net_result result = run_linked(linked, &net);
        trace[unroll] = result.total_ps ^ result.messages << 48;
        net_result_release(&result);
        linked_free(linked);
        sched_free(sched);
    }
    cr_assert_eq(trace[0], trace[1]);
}

/* ---- the subcommand ---- */

/* Runs "coll WORDS", cut at blanks; gives the exit status. */
static int run_words(const char *words)
{
    char *copy = mem_strdup(words), *rest = copy, *word;
    char *argv[32] = {"coll"};
    int argc = 1;
    while ((word = strsep(&rest, " "))) {
        argv[argc++] = word;
    }
    int status = coll_cmd(argc, argv);
    free(copy);
    return status;
}

Test(coll_cmd, exit_status, .init = cr_redirect_stderr)
{
    static const struct {
        int status;
        const char *words;
    } cases[] = {
        {0, "allreduce --ranks 3 -b 0 -e 64 -f 2 --algo all"},
        {0, "all_gather --ranks 1 --size 1K"},
        {0, "alltoall --wire pull --algo all --size 1K"},
        {0, "broadcast --root 7 --size 4T --parts 3 --channels 2 --slice 1G"},
        {0, "--help"},
        {2, "allreduc"},
        {2, "allreduce broadcast"},
        {2, "allreduce --size 1X"},
        {2, "allreduce --ranks 0"},
        {2, "allreduce --beta 0GB/s"},
        {2, "allreduce --slots 0"},
        {2, "allreduce --slice 100"},
        {2, "allreduce --algo rign"},
        {2, "allreduce -d float8"},
        {2, "allreduce -o product"},
        {2, "allreduce -b 1M -e 1K"},
        {2, "allreduce -b 1 -e 2 -i 0"},
        {2, "allreduce -b 1 -e 2 -f 1"},
        {2, "allreduce --channels 5000"},
        {2, "broadcast --root 8"},
        {2, "allreduce --log /nowhere/log.csv"},
        {2, "allreduce --size 1K --algo ring --alpha 9000000s"},
    };
    cr_redirect_stdout();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = run_words(cases[i].words);
        cr_assert_eq(status, cases[i].status, "coll %s: exit %d", cases[i].words, status);
    }
}

/* The row and the log that the command writes are those of the engine. */
Test(coll_cmd, writes_what_was_simulated)
{
    char table[] = "/tmp/test_net.XXXXXX", log[] = "/tmp/test_net.XXXXXX";
    close(mkstemp(table));
    close(mkstemp(log));
    cr_redirect_stdout();
    char *words = mem_printf("allreduce --ranks 8 --alpha 5us --beta 50GB/s --size 1G --algo ring "
                             "--overwrite --csv %s --log %s",
                             table, log);
    cr_assert_eq(run_words(words), 0);
    free(words);
    char head[4096], row[4096];
    FILE *file = fopen(table, "r");
    cr_assert(fgets(head, sizeof head, file) && fgets(row, sizeof row, file));
    cr_assert(strncmp(head, "size_B,count_elements,type,redop,root,out_of_place_time_us,", 59) ==
              0);
    double time = 0;
    cr_assert_eq(sscanf(row, "1073741824,268435456,float,sum,-1,%lf,", &time), 1, "%s", row);
    near(time, ring_all_reduce(8, over_link(1 << 30)), "commsim", 8);
    cr_assert(strstr(row, ",ring,switch,-,") && strstr(row, ",simulated,8,"), "%s", row);
    fclose(file);
    size_t lines = 0;
    file = fopen(log, "r");
    while (fgets(row, sizeof row, file)) {
        lines++;
    }
    fclose(file);
    cr_assert_eq(lines, 1 + 2 * 8 * 14); /* heading; two placements, ranks, steps */
    unlink(table);
    unlink(log);
}
