/* SPDX-License-Identifier: Apache-2.0
 * The trees of NCCL: in each node (group of consecutive ranks) a chain that ends at the node's
 * first rank, between the first ranks a binary tree; the second half of the channels has a tree
 * that complements that of the first, so that a node inside one is a leaf of the other (Jeaugey,
 * "Massively scale your deep learning training with NCCL 2.4", 2019; Sanders, Speck and Traeff
 * 2009).
 *
 *     node 0: 0 <- 1 <- 2 <- 3        up:   receive and add from the chain and the child nodes,
 *             |                             send to the parent
 *     node 1: 4 <- 5 <- 6 <- 7        down: the same way back
 *
 * In-order tree of K nodes: node v > 0 stands at the height of its lowest set bit, node 0 above
 * all; the second tree is its mirror image (K even), or itself shifted by one (K odd). Up and down
 * are lanes of their own: the next pass goes up while this one comes down. */
#include "net/flow.h"

enum { NOBODY = UINT32_MAX };

static uint32_t parent_of(uint32_t place, uint32_t k)
{
    if (place == 0) return NOBODY;
    uint32_t bit = place & -place, up = (place - bit) | bit << 1;
    return up < k ? up : place - bit;
}

/* The place of a node in the first or second tree. */
static uint32_t place_of(uint32_t node, bool second, uint32_t k)
{
    return !second ? node : k % 2 == 0 ? k - 1 - node : wrap((int64_t)node - 1, k);
}

/* Whom a rank adds up from (the next of its chain, and at most two child nodes), and to whom it
 * sends. */
struct stand {
    uint32_t up, down[3], ndown;
};

static uint32_t nodes_of(const struct algo_args *args)
{
    return args->nnodes ? args->nnodes : 1;
}

static uint32_t size_of(const struct algo_args *args, uint32_t node)
{
    return args->nnodes ? args->nodes[node] : args->nranks;
}

/* Parent and children of node `mine` in tree t, as their first ranks. */
static void join_nodes(struct stand *s, const struct algo_args *args, uint32_t mine, uint32_t t)
{
    bool second = t >= (args->channels + 1) / 2;
    uint32_t k = nodes_of(args), place = place_of(mine, second, k), first = 0;
    for (uint32_t node = 0; node < k; first += size_of(args, node++)) {
        uint32_t other = place_of(node, second, k);
        if (other == parent_of(place, k)) s->up = first;
        if (other != 0 && parent_of(other, k) == place) s->down[s->ndown++] = first;
    }
}

static struct stand stand_of(const struct algo_args *args, uint32_t rank, uint32_t t)
{
    struct stand s = {.up = NOBODY};
    uint32_t node = 0, first = 0;
    while (rank >= first + size_of(args, node))
        first += size_of(args, node++);
    if (rank + 1 < first + size_of(args, node)) s.down[s.ndown++] = rank + 1;
    if (rank > first)
        s.up = rank - 1;
    else
        join_nodes(&s, args, node, t);
    return s;
}

static void go_up(struct prog *prog, const struct stand *s, uint32_t c)
{
    for (uint32_t i = 0; i < s->ndown; i++)
        sched_recv_reduce(prog, s->down[i], c);
    if (s->up != NOBODY)
        sched_send(prog, s->up, c);
    else
        sched_final(prog);
}

static void go_down(struct prog *prog, const struct stand *s, uint32_t c)
{
    if (s->up != NOBODY) sched_recv(prog, s->up, c);
    for (uint32_t i = 0; i < s->ndown; i++)
        sched_send(prog, s->down[i], c);
}

static void build(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    for (uint32_t t = 0; t < args->channels; t++) {
        struct stand s = stand_of(args, rank, t);
        for (uint32_t down = 0; down < 2; down++)
            for (uint32_t c = t * args->parts; c < (t + 1) * args->parts; c++) {
                sched_lane(prog, (uint16_t)(2 * t + down), (uint16_t)t);
                (down ? go_down : go_up)(prog, &s, c);
            }
    }
}

static uint32_t nparts(const struct algo_args *args)
{
    return args->channels * args->parts;
}

const struct algo flow_tree = {
    .coll = COLL_ALLREDUCE,
    .name = "chain_tree",
    .symmetry = SYM_NONE,
    .channels = 2,
    .paper = "Jeaugey 2019; Sanders, Speck, Traeff 2009",
    .what = "a chain inside each node, two complementary binary trees between nodes",
    .nparts = nparts,
    .build = build,
    .grouped = true,
};

/* ---- reduction inside nodes alone ---- */

static uint32_t one_per_node(const struct algo_args *args)
{
    return nodes_of(args);
}

static uint32_t one_part(const struct algo_args *args)
{
    (void)args;
    return 1;
}

/* Node `node` has the ranks from `first` on. */
static void inside_switch(struct prog *prog, uint32_t first, uint32_t size)
{
    struct ref sum = ref_scratch(0, 0);
    sched_agent_at(prog, first, false);
    sched_lane(prog, 0, 0);
    sched_recv_ref(prog, first, sum);
    for (uint32_t i = 1; i < size; i++)
        sched_recv_reduce_ref(prog, first + i, sum, sum);
    sched_final(prog);
    sched_lane(prog, 0, 1);
    for (uint32_t i = 0; i < size; i++)
        sched_send_ref(prog, first + i, sum);
}

static void build_inside(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    uint32_t node = 0, first = 0;
    if (end >= args->nranks) {
        for (; node < end - args->nranks; node++)
            first += size_of(args, node);
        inside_switch(prog, first, size_of(args, node));
        return;
    }
    while (end >= first + size_of(args, node))
        first += size_of(args, node++);
    sched_lane(prog, 0, 0);
    sched_send(prog, args->nranks + node, 0);
    sched_lane(prog, 1, 1);
    sched_recv(prog, args->nranks + node, 0);
}

const struct algo flow_inside = {
    .coll = COLL_ALLREDUCE,
    .name = "inside",
    .symmetry = SYM_NONE,
    .channels = 1,
    .paper = "NVIDIA NVLink SHARP 2022",
    .what = "the switch of each node adds up its ranks, and tells them",
    .nparts = one_part,
    .build = build_inside,
    .grouped = true,
    .agents = one_per_node,
};
