/* SPDX-License-Identifier: Apache-2.0
 * Schedules, linker and verifier, without running anything: every row of the algorithm table is
 * proved right, every single-step mutant of it is found, and planted races and deadlocks too. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "sched/layout.h"
#include "sched/progress.h"
#include "sched/verify.h"

static struct sched *build(const struct algo *algo, struct algo_args args, bool unroll)
{
    struct err err = ERR_INIT;
    struct sched *sched = algo_build(algo, &args, unroll, &err);
    cr_assert(sched, "%s", err.text ? err.text : "");
    return sched;
}

static struct algo_args args_of(uint32_t nranks, uint32_t root, uint32_t channels, uint32_t parts)
{
    return (struct algo_args){.nranks = nranks, .root = root, .channels = channels, .parts = parts};
}

static const struct algo *find(enum coll_id coll, const char *name)
{
    struct err err = ERR_INIT;
    const struct algo *algo = algo_find(coll, name, &err);
    cr_assert(algo);
    return algo;
}

/* ---- layout ---- */

static void check_partition(const struct layout *layout)
{
    size_t at = 0;
    uint64_t passes = layout_passes(layout);
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        size_t previous = SIZE_MAX,
               start = layout->offsets ? layout->offsets[b] : b * layout->block_bytes;
        cr_assert_eq(at, start);
        for (uint32_t p = 0; p < layout->nparts; p++) {
            struct range whole = chunk_whole(layout, b, p);
            size_t sum = 0;
            cr_assert_eq(whole.off, at);
            cr_assert((whole.off - start) % layout->granule == 0 || whole.len == 0);
            cr_assert_leq(whole.len, previous == SIZE_MAX ? whole.len : previous);
            previous = whole.len;
            for (uint64_t pass = 0; pass < passes; pass++) {
                struct range slice = chunk_range(layout, b, p, pass);
                cr_assert_eq(slice.off, whole.off + sum);
                cr_assert_leq(slice.len, layout->slice_bytes);
                sum += slice.len;
            }
            cr_assert_eq(sum, whole.len, "the passes cover the chunk");
            cr_assert_eq(chunk_range(layout, b, p, passes).len, 0);
            cr_assert_eq(chunk_range(layout, b, p, UINT64_MAX).len, 0);
            at += whole.len;
        }
    }
    cr_assert_eq(at, layout_bytes(layout));
}

Test(layout, chunks_and_passes_partition_every_buffer)
{
    static const size_t sizes[] = {0, 1, 4, 63, 64, 65, 127, 128, 1000, 4096, 4097, 100000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (uint32_t nparts = 1; nparts < 20; nparts += 3) {
            for (size_t slice = 64; slice < 1000; slice *= 3) {
                check_partition(&(struct layout){3, nparts, 64, sizes[s], NULL, slice / 64 * 64});
            }
        }
    }
    const size_t offsets[] = {0, 0, 5, 1000, 1064, 70000};
    check_partition(&(struct layout){5, 3, 64, 0, offsets, 256});
    struct layout huge = {2, 3, 64, ((size_t)1 << 33) + 5, NULL, (size_t)1 << 20};
    cr_assert_eq(layout_bytes(&huge), ((size_t)1 << 34) + 10);
    cr_assert_eq(chunk_range(&huge, 1, 2, 2730).off + chunk_range(&huge, 1, 2, 2730).len,
                 ((size_t)1 << 34) + 10, "the tail of a buffer beyond 2^31 bytes");
}

/* ---- the table ---- */

Test(table, every_row_is_proved_for_1_to_17_ranks)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        bool rooted = coll_get(table[a].coll)->rooted;
        for (uint32_t n = 1; n <= 17; n++) {
            for (uint32_t i = 0; i < 9 * (rooted ? n : 1); i++) {
                struct algo_args args = {
                    .nranks = n, .root = i / 9, .channels = 1 + i % 3, .parts = 1 + i / 3 % 3};
                struct sched *sched = build(&table[a], args, false);
                struct err err = ERR_INIT;
                cr_expect(!verify_all(sched, &err), "n=%u root=%u channels=%u parts=%u: %s", n,
                          args.root, args.channels, args.parts, err.text ? err.text : "");
                err_release(&err);
                sched_free(sched);
            }
        }
    }
}

static struct algo_args args_of_nodes(const char *text, uint32_t **nodes)
{
    struct err err = ERR_INIT;
    struct algo_args args = args_of(0, 0, 1, 1);
    cr_assert(!algo_nodes_parse(text, nodes, &args.nnodes, &err), "%s", text);
    args.nodes = *nodes;
    for (uint32_t k = 0; k < args.nnodes; k++) {
        args.nranks += args.nodes[k];
    }
    return args;
}

/* Even and uneven nodes, nodes of one rank, and one node that serves more than a plane holds. */
Test(table, grouped_rows_are_proved_for_nodes_of_any_sizes)
{
    static const char *const groups[] = {"5",   "2+3", "1+4",    "4+4",    "1+1+1", "3+1+2",
                                         "4x4", "2x8", "4+1x10", "1x10+4", "3+5+7"};
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t i = 0; i < count * sizeof groups / sizeof *groups; i++) {
        const struct algo *algo = &table[i % count];
        for (uint32_t k = 0; k < 4 && algo->grouped; k++) {
            uint32_t *nodes;
            struct algo_args args = args_of_nodes(groups[i / count], &nodes);
            args.channels = 1 + k % 2;
            args.parts = k < 2 ? 1 : 1 + k;
            args.leaf_nodes = k;
            struct sched *sched = build(algo, args, false);
            struct err err = ERR_INIT;
            cr_expect(!verify_all(sched, &err), "nodes %s channels=%u parts=%u: %s",
                      groups[i / count], args.channels, args.parts, err.text ? err.text : "");
            cr_expect(verify_oracle(sched, false) && verify_oracle(sched, true), "%s nodes %s",
                      algo->name, groups[i / count]);
            err_release(&err);
            sched_free(sched);
            free(nodes);
        }
    }
}

Test(table, oracle_agrees_with_every_row)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        for (uint32_t n = 1; n <= 9; n++) {
            uint32_t root = coll_get(table[a].coll)->rooted ? n / 2 : 0;
            struct sched *sched = build(&table[a], args_of(n, root, 2, 2), false);
            cr_expect(verify_oracle(sched, false) && verify_oracle(sched, true), "%s n=%u",
                      table[a].name, n);
            sched_free(sched);
        }
    }
}

static bool same_step(const struct sched *turned, uint32_t rank, const struct step *a,
                      const struct step *b)
{
    const struct step_info *info = step_info(a->kind);
    struct ref src = sched_ref(turned, rank, a->src), dst = sched_ref(turned, rank, a->dst);
    struct ref src2 = sched_ref(turned, rank, a->src2);
    bool wired = info->sends || info->receives;
    return a->kind == b->kind && a->final == b->final && a->lane == b->lane &&
           a->nchunks == b->nchunks &&
           (!wired || (a->channel == b->channel && sched_peer(turned, rank, a->peer) == b->peer)) &&
           (!info->reads_src || (src.buf == b->src.buf && src.chunk == b->src.chunk)) &&
           (!info->reads_src2 || (src2.buf == b->src2.buf && src2.chunk == b->src2.chunk)) &&
           (!info->writes || (dst.buf == b->dst.buf && dst.chunk == b->dst.chunk));
}

Test(table, relative_programs_are_those_of_each_rank_up_to_64)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        for (uint32_t n = 1; n <= 64 && table[a].symmetry == SYM_SHIFT; n++) {
            struct algo_args args = {.nranks = n, .channels = 2, .parts = 2};
            struct sched *one = build(&table[a], args, false), *all = build(&table[a], args, true);
            cr_assert(one->relative && !all->relative);
            for (uint32_t r = 0; r < n; r++) {
                const struct prog *want = sched_prog_of(all, r), *have = &one->progs[0];
                cr_assert_eq(want->nsteps, have->nsteps);
                for (size_t k = 0; k < want->nsteps; k++) {
                    cr_assert(same_step(one, r, &have->steps[k], &want->steps[k]),
                              "%s %s n=%u rank %u step %zu", coll_get(table[a].coll)->name,
                              table[a].name, n, r, k);
                }
            }
            sched_free(one);
            sched_free(all);
        }
    }
}

Test(table, ring_of_1024_ranks_relative_and_unrolled)
{
    for (int unroll = 0; unroll < 2; unroll++) {
        struct err err = ERR_INIT;
        struct sched *sched = build(find(COLL_ALLREDUCE, "ring"), args_of(1024, 0, 1, 1), unroll);
        cr_assert_eq(sched->nprogs, unroll ? 1024 : 1);
        cr_expect(!verify_all(sched, &err), "%s", err.text ? err.text : "");
        sched_free(sched);
    }
}

Test(table, arguments_out_of_range_are_refused)
{
    struct algo_args wrong[] = {args_of(0, 0, 1, 1), args_of(4, 4, 1, 1), args_of(4, 0, 0, 1),
                                args_of(4, 0, 1, 0), args_of(65536, 0, 64, 64)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err err = ERR_INIT;
        cr_expect_null(algo_build(find(COLL_ALLREDUCE, "ring"), &wrong[i], false, &err));
        cr_expect_eq(err.code, ERR_USAGE);
        err_release(&err);
    }
    struct err err = ERR_INIT;
    cr_expect_null(algo_find(COLL_ALLGATHER, "tree", &err));
    cr_expect(strstr(err.text, "ring"), "the valid names are listed: %s", err.text);
    err_release(&err);
}

/* ---- mutants: the verifier verified ---- */

struct tally {
    uint64_t mutants, rejected, equivalent, missed;
};

static void judge(struct tally *tally, struct sched *sched)
{
    struct err err = ERR_INIT;
    tally->mutants++;
    if (verify_all(sched, &err)) {
        tally->rejected++;
    } else if (verify_oracle(sched, false) && verify_oracle(sched, true)) {
        tally->equivalent++;
    } else {
        tally->missed++;
    }
    err_release(&err);
}

static void mutate_number(struct tally *tally, struct sched *sched, uint32_t *field,
                          uint32_t modulus)
{
    uint32_t before = *field;
    for (uint32_t value = 0; value < modulus; value++) {
        if (value != before) {
            *field = value;
            judge(tally, sched);
        }
    }
    *field = before;
}

static void mutate_ref(struct tally *tally, struct sched *sched, struct ref *ref)
{
    struct ref before = *ref;
    mutate_number(tally, sched, &ref->chunk, sched_chunks(sched, ref->buf));
    for (uint32_t buf = 0; buf < BUF_SCRATCH + sched->nplanes; buf++) {
        if (buf != before.buf) {
            *ref = (struct ref){buf, before.chunk % sched_chunks(sched, buf)};
            judge(tally, sched);
        }
    }
    *ref = before;
}

static void mutate_step(struct tally *tally, struct sched *sched, struct prog *prog, size_t k)
{
    struct step *step = &prog->steps[k], before = *step;
    const struct step_info *info = step_info(before.kind);
    for (enum step_kind kind = 0; kind < STEP_KIND_COUNT; kind++) {
        if (kind != before.kind) {
            step->kind = kind;
            judge(tally, sched);
        }
    }
    *step = before;
    if (info->sends || info->receives) {
        mutate_number(tally, sched, &step->peer, sched_ends(sched));
        step->channel ^= 1;
        judge(tally, sched);
        *step = before;
    }
    if (info->reads_src) {
        mutate_ref(tally, sched, &step->src);
    }
    if (info->reads_src2) {
        mutate_ref(tally, sched, &step->src2);
    }
    if (info->writes) {
        mutate_ref(tally, sched, &step->dst);
    }
    if (info->reduces) {
        step->final = !step->final;
        judge(tally, sched);
        *step = before;
    }
    memmove(step, step + 1, (prog->nsteps - k - 1) * sizeof *step); /* deletion */
    prog->nsteps--;
    judge(tally, sched);
    memmove(step + 1, step, (prog->nsteps - k) * sizeof *step);
    prog->nsteps++;
    *step = before;
}

static struct tally mutate_all(const struct algo *algo, struct algo_args args, bool unroll)
{
    struct tally tally = {0};
    struct sched *sched = build(algo, args, unroll);
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        for (size_t k = 0; k < sched->progs[p].nsteps; k++) {
            mutate_step(&tally, sched, &sched->progs[p], k);
        }
    }
    struct err err = ERR_INIT;
    cr_assert(!verify_all(sched, &err), "the original is whole again");
    sched_free(sched);
    return tally;
}

Test(mutants, every_single_step_mutant_is_rejected_or_right)
{
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t a = 0; a < count; a++) {
        for (uint32_t n = 2; n <= 5; n++) {
            for (int unroll = 0; unroll < 2; unroll++) {
                uint32_t root = coll_get(table[a].coll)->rooted ? n - 1 : 0;
                struct algo_args args = {
                    .nranks = n, .root = root, .channels = n == 3 ? 2 : 1, .parts = n == 4 ? 2 : 1};
                struct tally tally = mutate_all(&table[a], args, unroll);
                const char *coll = coll_get(table[a].coll)->name;
                cr_expect_eq(tally.missed, 0, "%s %s n=%u: %lu of %lu mutants are wrong and passed",
                             coll, table[a].name, n, (unsigned long)tally.missed,
                             (unsigned long)tally.mutants);
                /* a rank's own block may lie in two places: either is right to send */
                cr_expect_leq(20 * tally.equivalent, tally.mutants,
                              "%s %s n=%u: %lu of %lu mutants survive and are right", coll,
                              table[a].name, n, (unsigned long)tally.equivalent,
                              (unsigned long)tally.mutants);
                cr_expect_gt(tally.rejected, 10);
            }
        }
    }
}

Test(mutants, the_same_over_nodes)
{
    static const char *const groups[] = {"2+3", "1+2", "1x3", "2x2"};
    size_t count;
    const struct algo *table = algo_table(&count);
    for (size_t i = 0; i < count * sizeof groups / sizeof *groups; i++) {
        if (table[i % count].grouped) {
            uint32_t *nodes;
            struct algo_args args = args_of_nodes(groups[i / count], &nodes);
            args.parts = 1 + (uint32_t)(i / count) % 2;
            args.leaf_nodes = args.parts;
            struct tally tally = mutate_all(&table[i % count], args, true);
            cr_expect_eq(tally.missed, 0, "%s nodes %s: %lu of %lu mutants are wrong and passed",
                         table[i % count].name, groups[i / count], (unsigned long)tally.missed,
                         (unsigned long)tally.mutants);
            cr_expect_eq(tally.equivalent, 0, "%s nodes %s: %lu of %lu survive",
                         table[i % count].name, groups[i / count], (unsigned long)tally.equivalent,
                         (unsigned long)tally.mutants);
            free(nodes);
        }
    }
}

/* ---- planted faults in linked schedules ---- */

static struct linked *link_or_fail(const struct sched *sched, struct link_opts opts)
{
    struct err err = ERR_INIT;
    struct linked *linked = link_sched(sched, &opts, &err);
    cr_assert(linked, "%s", err.text ? err.text : "");
    return linked;
}

/* Every wait that the linker derived is needed: without it FREEDOM fails. */
static uint32_t drop_each_wait(const struct algo *algo, uint32_t n, struct link_opts opts)
{
    struct sched *sched = build(algo, args_of(n, 0, algo->channels, 1), false);
    struct linked *linked = link_or_fail(sched, opts);
    uint32_t dropped = 0;
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        for (uint32_t r = 0; r < linked->progs[p].nsteps; r++) {
            struct lstep *step = &linked->progs[p].steps[r];
            if (step->nwaits == 0) {
                continue;
            }
            struct err err = ERR_INIT;
            uint32_t before = step->nwaits;
            step->nwaits = 0;
            cr_expect(verify_linked(linked, linked->most_msgs + 1, &err),
                      "%s: a missing wait passed", algo->name);
            step->nwaits = before;
            err_release(&err);
            dropped++;
        }
    }
    linked_free(linked);
    sched_free(sched);
    return dropped;
}

Test(planted, a_missing_wait_is_a_race)
{
    struct link_opts pull = {WIRE_PULL, false, true}, placed = {WIRE_PULL, true, true};
    cr_expect_gt(drop_each_wait(find(COLL_ALLREDUCE, "ring"), 5, pull), 0);
    cr_expect_gt(drop_each_wait(find(COLL_ALLREDUCE, "tree"), 6, pull), 0);
    cr_expect_gt(drop_each_wait(find(COLL_ALLREDUCE, "twoshot"), 4, placed), 0);
    cr_expect_gt(drop_each_wait(find(COLL_REDUCE_SCATTER, "ring"), 4, pull), 0);
    cr_expect_gt(drop_each_wait(find(COLL_ALLREDUCE, "nvls"), 4, placed), 0);
    cr_expect_gt(drop_each_wait(find(COLL_BROADCAST, "nvls"), 4, pull), 0);
}

Test(planted, too_little_room_is_a_deadlock)
{
    struct sched *sched = build(find(COLL_ALLREDUCE, "ring"), args_of(6, 0, 1, 1), false);
    struct linked *linked = link_or_fail(sched, (struct link_opts){WIRE_STAGED, false, true});
    struct err err = ERR_INIT;
    cr_assert_eq(linked->least_depth, 2, "a fused ring holds one message while it sends the next");
    cr_expect(verify_linked(linked, 1, &err));
    cr_expect(strstr(err.text, "room"), "%s", err.text);
    err_release(&err);
    cr_expect(!verify_linked(linked, 2, &err));
    linked_free(linked);
    sched_free(sched);
}

Test(planted, pulling_in_place_alltoall_would_deadlock_and_is_refused)
{
    struct sched *sched = build(find(COLL_ALLTOALL, "pairwise"), args_of(4, 0, 1, 1), false);
    struct err err = ERR_INIT;
    struct link_opts opts = {WIRE_PULL, true, true};
    cr_expect_null(link_sched(sched, &opts, &err));
    cr_expect(strstr(err.text, "to be taken"), "%s", err.text);
    err_release(&err);
    sched_free(sched);
}

/* Two ranks that each wait for the other before they send. */
Test(planted, crossed_receives_are_a_deadlock)
{
    struct sched *sched = sched_new("crossed", COLL_BROADCAST, 2, 0, 1);
    for (uint32_t r = 0; r < 2; r++) {
        struct prog *prog = sched_prog(sched, r);
        sched_recv(prog, 1 - r, 0);
        sched_send(prog, 1 - r, 0);
    }
    struct err err = ERR_INIT;
    cr_expect(verify_all(sched, &err));
    cr_expect_not_null(err.text);
    err_release(&err);
    sched_free(sched);
}

/* A step of another lane reads what a lane writes: the linker orders it, and says by which wait. */
Test(planted, lanes_that_share_a_chunk_are_ordered)
{
    struct sched *sched = sched_new("lanes", COLL_BROADCAST, 2, 0, 1);
    struct prog *root = sched_prog(sched, 0), *leaf = sched_prog(sched, 1);
    sched_copy(root, ref_out(0), ref_in(0));
    sched_lane(root, 1, 0);
    sched_send_ref(root, 1, ref_out(0));
    sched_recv(leaf, 0, 0);
    struct linked *linked = link_or_fail(sched, (struct link_opts){WIRE_STAGED, false, true});
    cr_assert_eq(linked->progs[0].nwaits, 1);
    cr_expect_eq(linked->progs[0].waits[0].kind, LWAIT_LANE);
    struct err err = ERR_INIT;
    cr_expect(!verify_linked(linked, 1, &err));
    linked->progs[0].steps[1].nwaits = 0;
    cr_expect(verify_linked(linked, 1, &err));
    cr_expect(strstr(err.text, "no fixed order"), "%s", err.text);
    err_release(&err);
    linked_free(linked);
    sched_free(sched);
}

/* ---- fusion ---- */

/* Chunk reads and writes of one rank, slots included, as the executor does them when staged. */
static uint32_t count_touches(const struct linked *linked)
{
    uint32_t touches = 0;
    const struct lprog *prog = &linked->progs[0];
    for (uint32_t r = 0; r < prog->nsteps; r++) {
        const struct lstep *step = &prog->steps[r];
        const struct step_info *info = step_info((enum step_kind)step->kind);
        touches += info->reads_src && !(step->flags & LS_ACC);
        touches += (uint32_t)info->receives + info->reads_src2 + info->sends;
        touches += info->writes && !(step->flags & LS_NOSTORE);
    }
    return touches;
}

Test(fusion, ring_of_8_touches_44_chunks_instead_of_63)
{
    struct sched *sched = build(find(COLL_ALLREDUCE, "ring"), args_of(8, 0, 1, 1), false);
    struct linked *fused = link_or_fail(sched, (struct link_opts){WIRE_STAGED, false, true});
    struct linked *drawn = link_or_fail(sched, (struct link_opts){WIRE_STAGED, false, false});
    cr_expect_eq(count_touches(fused), 44);
    cr_expect_eq(count_touches(drawn), 63);
    linked_free(fused);
    linked_free(drawn);
    sched_free(sched);
}

/* Two-shot: one fold of n inputs, one store, n - 1 messages; and its results may be pushed. */
Test(fusion, twoshot_is_one_kernel_call_and_pushes)
{
    struct sched *sched = build(find(COLL_ALLREDUCE, "twoshot"), args_of(4, 0, 1, 1), false);
    struct linked *linked = link_or_fail(sched, (struct link_opts){WIRE_PULL, false, true});
    const struct lprog *prog = &linked->progs[0];
    uint32_t pushed = 0, pulled = 0;
    for (uint32_t w = 0; w < prog->nwires; w++) {
        pushed += prog->wires[w].mode == WIRE_PUSH;
        pulled += prog->wires[w].mode == WIRE_PULL;
    }
    cr_expect_eq(pushed, 6);
    cr_expect_eq(pulled, 6);
    cr_expect_eq(group_last(prog, 3), 8, "3 receives and 3 sends are one group");
    linked_free(linked);
    sched_free(sched);
}

/* A broadcast root may not push: nothing tells it that the receiver has begun. */
Test(fusion, pushing_needs_proof)
{
    struct sched *sched = build(find(COLL_BROADCAST, "binomial"), args_of(4, 0, 1, 1), false);
    struct linked *linked = link_or_fail(sched, (struct link_opts){WIRE_PULL, false, true});
    for (uint32_t p = 0; p < sched->nprogs; p++) {
        for (uint32_t w = 0; w < linked->progs[p].nwires; w++) {
            cr_expect_neq(linked->progs[p].wires[w].mode, WIRE_PUSH);
        }
    }
    linked_free(linked);
    sched_free(sched);
}
