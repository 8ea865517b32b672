/* SPDX-License-Identifier: Apache-2.0
 * Operations inside one domain whose switch reduces and multicasts, as NVLink's switches do for
 * NCCL's NVLS: agent 0 stands in the switch, ranks speak to it alone. Sums are taken in the order
 * of ranks. Bytes of a rank on its link, up to the switch and down from it:
 *
 *                    up          down
 *   all-reduce       S           S              see hierarchical.c, also for several domains
 *   all-gather       S/n         (n-1)/n S      its own block a rank copies itself
 *   reduce-scatter   S           S/n
 *   broadcast        S (root)    S (the others)
 *   reduce           S           S (root)
 *
 * Ranks send in lane 2ch and receive in lane 2ch + 1, so that pieces follow each other. */
#include "algo/builders.h"

uint32_t one_agent(const struct algo_args *args)
{
    return args->nranks > 1;
}

void agent_add(struct prog *prog, uint32_t first, uint32_t size, struct ref sum, uint32_t nchunks)
{
    for (uint32_t i = 0; i < size; i++) {
        if (i == 0) {
            sched_recv_ref(prog, first, sum);
        } else {
            sched_recv_reduce_ref(prog, first + i, sum, sum);
        }
        sched_span(prog, nchunks);
    }
}

void agent_send(struct prog *prog, uint32_t first, uint32_t size, uint32_t but, struct ref from,
                uint32_t nchunks)
{
    for (uint32_t i = 0; i < size; i++) {
        if (first + i != but) {
            sched_send_ref(prog, first + i, from);
            sched_span(prog, nchunks);
        }
    }
}

static void to_switch(struct prog *prog, uint32_t ch)
{
    sched_lane(prog, (uint16_t)(2 * ch), (uint16_t)ch);
}

static void from_switch(struct prog *prog, uint32_t ch)
{
    sched_lane(prog, (uint16_t)(2 * ch + 1), (uint16_t)ch);
}

/* The agent's lane of a channel. */
static void in_switch(struct prog *prog, uint32_t ch)
{
    sched_lane(prog, (uint16_t)ch, (uint16_t)ch);
}

void nvls_allgather(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    uint32_t n = args->nranks, w = pieces(args);
    for (uint32_t sub = 0; sub < w; sub++) {
        uint32_t ch = sub / args->parts;
        if (end < n) {
            to_switch(prog, ch);
            if (n > 1) sched_send_ref(prog, n, ref_in(sub));
            sched_copy(prog, ref_out(end * w + sub), ref_in(sub));
        }
        from_switch(prog, ch);
        for (uint32_t r = 0; r < n && end < n; r++) {
            if (r != end) sched_recv(prog, n, r * w + sub);
        }
        in_switch(prog, ch);
        for (uint32_t r = 0; r < n && end == n; r++) {
            struct ref block = ref_scratch(0, r * w + sub);
            sched_recv_ref(prog, r, block);
            agent_send(prog, 0, n, r, block, 1);
        }
    }
}

void nvls_reduce_scatter(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    uint32_t n = args->nranks, w = pieces(args);
    if (n == 1) {
        copy_all(prog, w);
        return;
    }
    for (uint32_t sub = 0; sub < w; sub++) {
        uint32_t ch = sub / args->parts;
        to_switch(prog, ch);
        for (uint32_t r = 0; r < n && end < n; r++) {
            sched_send_ref(prog, n, ref_in(r * w + sub));
        }
        from_switch(prog, ch);
        if (end < n) sched_recv(prog, n, sub);
        in_switch(prog, ch);
        for (uint32_t r = 0; r < n && end == n; r++) {
            struct ref sum = ref_scratch(0, r * w + sub);
            agent_add(prog, 0, n, sum, 1);
            sched_final(prog);
            sched_send_ref(prog, r, sum);
        }
    }
}

void nvls_broadcast(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    uint32_t n = args->nranks, root = args->root;
    for (uint32_t sub = 0; sub < pieces(args); sub++) {
        uint32_t ch = sub / args->parts;
        struct ref piece = ref_scratch(0, sub);
        if (end == n) {
            in_switch(prog, ch);
            sched_recv_ref(prog, root, piece);
            agent_send(prog, 0, n, root, piece, 1);
        } else if (end == root) {
            to_switch(prog, ch);
            if (n > 1) sched_send_ref(prog, n, ref_in(sub));
            sched_copy(prog, ref_out(sub), ref_in(sub));
        } else {
            in_switch(prog, ch);
            sched_recv(prog, n, sub);
        }
    }
}

void nvls_reduce(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    uint32_t n = args->nranks;
    if (n == 1) {
        copy_all(prog, pieces(args));
        return;
    }
    for (uint32_t sub = 0; sub < pieces(args); sub++) {
        uint32_t ch = sub / args->parts;
        struct ref sum = ref_scratch(0, sub);
        if (end == n) {
            in_switch(prog, ch);
            agent_add(prog, 0, n, sum, 1);
            sched_final(prog);
            sched_send_ref(prog, args->root, sum);
            continue;
        }
        to_switch(prog, ch);
        sched_send_ref(prog, n, ref_in(sub));
        from_switch(prog, ch);
        if (end == args->root) sched_recv(prog, n, sub);
    }
}
