/* SPDX-License-Identifier: Apache-2.0
 * Two-level algorithms: nodes are groups of consecutive ranks, of any sizes; what crosses from node
 * to node is as little, and in as few messages, as can be. K nodes of m ranks, M the largest m.
 *
 * All-reduce. The block is cut into M parts; in a node of m ranks local rank p mod m owns part p.
 *
 *     node 0: r0 r1 r2            inside   all send part p to its owner, who adds
 *              |  |  |            across   the K owners of a part each add one share of it
 *     node 1: r3 r4 r3 (part 2)            and send the sum to the others
 *                                 inside   the owner sends the whole part to its node
 *
 * With a parts owned: (M - a + 2a (K-1)/K + a (m-1)) S/M bytes and M - a + 2a (K-1) + a (m-1)
 * messages per rank; 2(n-1) S in all, of which 2(K-1) S cross: both least. 4 rounds (one node: 2).
 * Two levels: see Sistare, vandeVaart and Loh, "Optimization of MPI collectives on clusters of
 * large-scale SMPs", SC 1999; the exchange among owners is two-shot, see direct.c: as few bytes as
 * a ring over the nodes, in 2 rounds instead of 2(K-1), and nothing to be arranged for same bits.
 *
 * The same with agents (sched.h) in the switches, for either level or both: one in the switch of
 * each node; one per part (for its rail) in each switch under which nodes are.
 *
 *     inside   all send all parts up; the switch adds them, in the order of ranks, and sends each
 *              part to its owner; what he has in the end goes up again and down to all others:
 *              S (1 + a/M) up, S down per rank. One node: S up, S down, and the parts are one
 *     across   owners send their sums up, the switch adds them in the order of nodes and sends the
 *              result to each: a S/M up and down per rank. Of several switches the first adds the
 *              sums of the others to its own and sends them the result
 *
 * All-to-all. Blocks for local rank j of another node are gathered by local rank j mod m of this
 * one, which sends them on as one message of m blocks (NCCL 2.12 calls such a detour PXN):
 *
 *     r0: 0>3 1>3 2>3            for r3: one message into its output
 *     r1: 0>4 1>4 2>4            for r4
 *
 * A rank that serves s ranks of other nodes sends n - 1 - s blocks inside its node and s m across,
 * in s messages: n - 1 messages as in the direct exchange, but 1/m as many of them cross. */
#include "algo/builders.h"

#include <stdlib.h>

#include "base/mem.h"

struct nodes {
    uint32_t count, largest;    /* nodes, ranks of the largest */
    uint32_t mine, local, size; /* the rank's node, its number there, ranks there */
    uint32_t *first;            /* count + 1: rank with which each node begins */
};

static void nodes_init(struct nodes *nodes, const struct algo_args *args, uint32_t rank)
{
    *nodes = (struct nodes){.count = args->nnodes ? args->nnodes : 1};
    nodes->first = mem_calloc(nodes->count + 1, sizeof *nodes->first);
    for (uint32_t k = 0; k < nodes->count; k++) {
        uint32_t size = args->nnodes ? args->nodes[k] : args->nranks;
        nodes->first[k + 1] = nodes->first[k] + size;
        nodes->largest = size > nodes->largest ? size : nodes->largest;
        if (nodes->first[k] <= rank && rank < nodes->first[k + 1]) {
            nodes->mine = k;
            nodes->local = rank - nodes->first[k];
            nodes->size = size;
        }
    }
}

static void nodes_release(struct nodes *nodes)
{
    free(nodes->first);
}

/* The rank of node k that stands for number i. */
static uint32_t stand_in(const struct nodes *nodes, uint32_t k, uint32_t i)
{
    return nodes->first[k] + i % (nodes->first[k + 1] - nodes->first[k]);
}

/* The rank `d` further in the own node, and the node `d` further; d may be negative. */
static uint32_t local_at(const struct nodes *nodes, int64_t d)
{
    return nodes->first[nodes->mine] + wrap(nodes->local + d, nodes->size);
}

static uint32_t node_at(const struct nodes *nodes, int64_t d)
{
    return wrap(nodes->mine + d, nodes->count);
}

/* ---- all-reduce ---- */

/* The stages of a channel: each has wires of its own, and a lane in which they are received. What a
 * stage completes is sent on from its lane. So passes overlap, and adding melts into sending. NODE
 * is there where an agent adds inside: what comes back from it. */
enum { INSIDE, RESULTS, ACROSS, SUMS, NODE, NSTAGES = NODE, NSTAGES_UP };

struct builder {
    struct prog *prog;
    const struct algo_args *args;
    struct nodes nodes;
    uint32_t sub;
    bool inside, across; /* agents add inside the nodes, among them */
    uint32_t parts;      /* that owners share */
    uint32_t shares;     /* of each part: one per node where owners add across */
};

static struct builder builder_of(struct prog *prog, const struct algo_args *args, uint32_t end,
                                 bool inside, bool across)
{
    struct builder b = {.prog = prog, .args = args, .inside = inside, .across = across};
    nodes_init(&b.nodes, args, end);
    b.parts = inside && b.nodes.count == 1 ? 1 : b.nodes.largest;
    b.shares = across ? 1 : b.nodes.count;
    return b;
}

/* Switches of the network under which nodes are, and the first one's nodes. */
static uint32_t leaf_nodes(const struct builder *b)
{
    uint32_t most = b->args->leaf_nodes;
    return most && most < b->nodes.count ? most : b->nodes.count;
}

static uint32_t nleaves(const struct builder *b)
{
    return (b->nodes.count + leaf_nodes(b) - 1) / leaf_nodes(b);
}

/* The agent of part p in switch `leaf` of the network: behind those of the nodes. */
static uint32_t leaf_agent(const struct builder *b, uint32_t p, uint32_t leaf)
{
    return b->args->nranks + (b->inside ? b->nodes.count : 0) + p * nleaves(b) + leaf;
}

static uint32_t parts_with(const struct algo_args *args, bool inside, bool across)
{
    struct builder b = builder_of(NULL, args, 0, inside, across);
    nodes_release(&b.nodes);
    return b.parts * b.shares * pieces(args);
}

static uint32_t agents_with(const struct algo_args *args, bool inside, bool across)
{
    struct builder b = builder_of(NULL, args, 0, inside, across);
    uint32_t parts = across && b.nodes.count > 1 ? b.parts : 0;
    nodes_release(&b.nodes);
    return args->nranks > 1 ? leaf_agent(&b, parts, 0) - args->nranks : 0;
}

uint32_t hierarchical_parts(const struct algo_args *args)
{
    return parts_with(args, false, false);
}

uint32_t nvls_parts(const struct algo_args *args)
{
    return parts_with(args, true, false);
}

uint32_t sharp_parts(const struct algo_args *args)
{
    return parts_with(args, false, true);
}

uint32_t nvls_sharp_parts(const struct algo_args *args)
{
    return parts_with(args, true, true);
}

uint32_t nvls_agents(const struct algo_args *args)
{
    return agents_with(args, true, false);
}

uint32_t sharp_agents(const struct algo_args *args)
{
    return agents_with(args, false, true);
}

uint32_t nvls_sharp_agents(const struct algo_args *args)
{
    return agents_with(args, true, true);
}

static void on(const struct builder *b, uint32_t lane, uint32_t channel)
{
    uint32_t base = (b->inside ? NSTAGES_UP : NSTAGES) * (b->sub / b->args->parts);
    sched_lane(b->prog, (uint16_t)(base + lane), (uint16_t)(base + channel));
}

/* First of the shares of part p: all of them side by side, so that a part is one message. */
static uint32_t shares_of(const struct builder *b, uint32_t p)
{
    return (p * pieces(b->args) + b->sub) * b->shares;
}

static void send_part(const struct builder *b, uint32_t peer, uint32_t p)
{
    sched_send(b->prog, peer, shares_of(b, p));
    sched_span(b->prog, b->shares);
}

static void recv_part(const struct builder *b, uint32_t peer, uint32_t p)
{
    sched_recv(b->prog, peer, shares_of(b, p));
    sched_span(b->prog, b->shares);
}

/* The agent of the own node, where it has more than one rank to add up; 0: none. */
static uint32_t node_agent(const struct builder *b)
{
    return b->inside && b->nodes.size > 1 ? b->args->nranks + b->nodes.mine : 0;
}

/* The lane that has the node's sums of the own parts. */
static uint32_t node_lane(const struct builder *b)
{
    return node_agent(b) ? NODE : INSIDE;
}

static void add_up(const struct builder *b, uint32_t agent)
{
    const struct nodes *nodes = &b->nodes;
    on(b, INSIDE, INSIDE);
    for (uint32_t p = 0; p < b->parts; p++) {
        send_part(b, agent, p);
    }
    on(b, NODE, NODE);
    for (uint32_t p = nodes->local; nodes->count > 1 && p < b->parts; p += nodes->size) {
        recv_part(b, agent, p);
    }
}

static void add_inside(const struct builder *b)
{
    const struct nodes *nodes = &b->nodes;
    if (node_agent(b)) {
        add_up(b, node_agent(b));
        return;
    }
    on(b, INSIDE, INSIDE);
    for (uint32_t d = 1; d < nodes->size; d++) {
        uint32_t owner = local_at(nodes, d);
        for (uint32_t p = owner - nodes->first[nodes->mine]; p < b->parts; p += nodes->size) {
            send_part(b, owner, p);
        }
    }
    for (uint32_t p = nodes->local; p < b->parts; p += nodes->size) {
        for (uint32_t d = 1; d < nodes->size; d++) {
            sched_recv_reduce(b->prog, local_at(nodes, -(int64_t)d), shares_of(b, p));
            sched_span(b->prog, b->shares);
        }
        if (nodes->count == 1) {
            sched_final(b->prog);
        }
    }
}

static void add_across(const struct builder *b, uint32_t p)
{
    const struct nodes *nodes = &b->nodes;
    uint32_t first = shares_of(b, p), own = first + nodes->mine;
    if (b->across) {
        uint32_t agent = leaf_agent(b, p, nodes->mine / leaf_nodes(b));
        on(b, node_lane(b), ACROSS);
        send_part(b, agent, p);
        on(b, SUMS, SUMS);
        recv_part(b, agent, p);
        return;
    }
    on(b, node_lane(b), ACROSS);
    for (uint32_t d = 1; d < nodes->count; d++) {
        uint32_t k = node_at(nodes, d);
        sched_send(b->prog, stand_in(nodes, k, p), first + k);
    }
    on(b, ACROSS, ACROSS);
    for (uint32_t d = 1; d < nodes->count; d++) {
        sched_recv_reduce(b->prog, stand_in(nodes, node_at(nodes, -(int64_t)d), p), own);
    }
    sched_final(b->prog);
    on(b, ACROSS, SUMS);
    for (uint32_t d = 1; d < nodes->count; d++) {
        sched_send(b->prog, stand_in(nodes, node_at(nodes, d), p), own);
    }
    on(b, SUMS, SUMS);
    for (uint32_t d = 1; d < nodes->count; d++) {
        uint32_t k = node_at(nodes, -(int64_t)d);
        sched_recv(b->prog, stand_in(nodes, k, p), first + k);
    }
}

static void spread_down(const struct builder *b, uint32_t agent)
{
    const struct nodes *nodes = &b->nodes;
    bool alone = nodes->count == 1;
    on(b, SUMS, RESULTS);
    for (uint32_t p = nodes->local; !alone && p < b->parts; p += nodes->size) {
        send_part(b, agent, p);
    }
    on(b, RESULTS, RESULTS);
    for (uint32_t p = 0; p < b->parts; p++) {
        if (alone || p % nodes->size != nodes->local) {
            recv_part(b, agent, p);
        }
    }
}

static void spread_inside(const struct builder *b)
{
    const struct nodes *nodes = &b->nodes;
    if (node_agent(b)) {
        spread_down(b, node_agent(b));
        return;
    }
    for (uint32_t p = nodes->local; p < b->parts; p += nodes->size) {
        on(b, nodes->count > 1 ? SUMS : INSIDE, RESULTS);
        for (uint32_t d = 1; d < nodes->size; d++) {
            send_part(b, local_at(nodes, d), p);
        }
    }
    on(b, RESULTS, RESULTS);
    for (uint32_t d = 1; d < nodes->size; d++) {
        uint32_t owner = local_at(nodes, -(int64_t)d);
        for (uint32_t p = owner - nodes->first[nodes->mine]; p < b->parts; p += nodes->size) {
            recv_part(b, owner, p);
        }
    }
}

static void rank_allreduce(struct builder *b)
{
    for (; b->sub < pieces(b->args); b->sub++) {
        add_inside(b);
        for (uint32_t p = b->nodes.local; b->nodes.count > 1 && p < b->parts; p += b->nodes.size) {
            add_across(b, p);
        }
        spread_inside(b);
    }
}

/* ---- agents of the all-reduce ---- */

/* The agent of node k adds all parts in lane 2ch. */
static void switch_adds(const struct builder *b, uint32_t first, uint32_t size)
{
    uint32_t ch = b->sub / b->args->parts, base = NSTAGES_UP * ch;
    for (uint32_t p = 0; p < b->parts; p++) {
        struct ref sum = ref_scratch(0, shares_of(b, p));
        sched_lane(b->prog, (uint16_t)(2 * ch), (uint16_t)(base + INSIDE));
        agent_add(b->prog, first, size, sum, b->shares);
        if (b->nodes.count == 1) {
            sched_final(b->prog);
            sched_lane(b->prog, (uint16_t)(2 * ch), (uint16_t)(base + RESULTS));
            agent_send(b->prog, first, size, UINT32_MAX, sum, b->shares);
        } else {
            sched_lane(b->prog, (uint16_t)(2 * ch), (uint16_t)(base + NODE));
            sched_send_ref(b->prog, first + p % size, sum);
            sched_span(b->prog, b->shares);
        }
    }
}

/* .. and hands on what has been added across, from the owner to the others, in lane 2ch + 1. */
static void switch_spreads(const struct builder *b, uint32_t first, uint32_t size)
{
    uint32_t ch = b->sub / b->args->parts;
    sched_lane(b->prog, (uint16_t)(2 * ch + 1), (uint16_t)(NSTAGES_UP * ch + RESULTS));
    for (uint32_t p = 0; b->nodes.count > 1 && p < b->parts; p++) {
        struct ref result = ref_scratch(1, shares_of(b, p));
        sched_recv_ref(b->prog, first + p % size, result);
        sched_span(b->prog, b->shares);
        agent_send(b->prog, first, size, first + p % size, result, b->shares);
    }
}

static void node_switch(struct builder *b, uint32_t k)
{
    uint32_t first = b->nodes.first[k], size = b->nodes.first[k + 1] - first;
    sched_agent_at(b->prog, first, false);
    for (; size > 1 && b->sub < pieces(b->args); b->sub++) {
        switch_adds(b, first, size);
        switch_spreads(b, first, size);
    }
}

/* The agent of part p in switch `leaf` of the network: adds in lane 2ch; hands on what the first
 * switch has added, if it is another, in lane 2ch + 1. */
static void fabric_switch(struct builder *b, uint32_t p, uint32_t leaf)
{
    const struct nodes *nodes = &b->nodes;
    uint32_t first = leaf * leaf_nodes(b), end = first + leaf_nodes(b);
    end = end < nodes->count ? end : nodes->count;
    sched_agent_at(b->prog, stand_in(nodes, first, p), true);
    for (; b->sub < pieces(b->args); b->sub++) {
        uint32_t ch = b->sub / b->args->parts, base = (b->inside ? NSTAGES_UP : NSTAGES) * ch;
        struct ref sum = ref_scratch(0, shares_of(b, p)), result = sum;
        sched_lane(b->prog, (uint16_t)(2 * ch), (uint16_t)(base + ACROSS));
        sched_recv_ref(b->prog, stand_in(nodes, first, p), sum);
        for (uint32_t k = first + 1; k < end; k++) {
            sched_recv_reduce_ref(b->prog, stand_in(nodes, k, p), sum, sum);
        }
        for (uint32_t other = 1; leaf == 0 && other < nleaves(b); other++) {
            sched_recv_reduce_ref(b->prog, leaf_agent(b, p, other), sum, sum);
        }
        if (leaf == 0) {
            sched_final(b->prog);
            sched_lane(b->prog, (uint16_t)(2 * ch), (uint16_t)(base + SUMS));
        } else {
            sched_send_ref(b->prog, leaf_agent(b, p, 0), sum);
            result = ref_scratch(1, shares_of(b, p));
            sched_lane(b->prog, (uint16_t)(2 * ch + 1), (uint16_t)(base + SUMS));
            sched_recv_ref(b->prog, leaf_agent(b, p, 0), result);
        }
        for (uint32_t other = 1; leaf == 0 && other < nleaves(b); other++) {
            sched_send_ref(b->prog, leaf_agent(b, p, other), result);
        }
        for (uint32_t k = first; k < end; k++) {
            sched_send_ref(b->prog, stand_in(nodes, k, p), result);
        }
    }
}

static void allreduce(struct prog *prog, const struct algo_args *args, uint32_t end, bool inside,
                      bool across)
{
    if (args->nranks == 1) {
        copy_all(prog, parts_with(args, inside, across));
        return;
    }
    struct builder b = builder_of(prog, args, end, inside, across);
    uint32_t beyond = leaf_agent(&b, 0, 0);
    if (end < args->nranks) {
        rank_allreduce(&b);
    } else if (end < beyond) {
        node_switch(&b, end - args->nranks);
    } else {
        fabric_switch(&b, (end - beyond) / nleaves(&b), (end - beyond) % nleaves(&b));
    }
    nodes_release(&b.nodes);
}

void hierarchical_allreduce(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    allreduce(prog, args, rank, false, false);
}

void nvls_allreduce(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    allreduce(prog, args, end, true, false);
}

void sharp_allreduce(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    allreduce(prog, args, end, false, true);
}

void nvls_sharp_allreduce(struct prog *prog, const struct algo_args *args, uint32_t end)
{
    allreduce(prog, args, end, true, true);
}

/* ---- all-to-all ---- */

/* Channels 2ch inside the node and 2ch + 1 across, both sent on by lane 2ch; lane 2ch + 1 receives
 * from other nodes. */
static void send_lane(const struct builder *b, bool across)
{
    uint32_t base = 2 * (b->sub / b->args->parts);
    sched_lane(b->prog, (uint16_t)base, (uint16_t)(base + across));
}

/* The chunk of a rank's block that is being built. */
static uint32_t chunk_of(const struct builder *b, uint32_t rank)
{
    return rank * pieces(b->args) + b->sub;
}

/* The ranks of other nodes that local rank `server` serves, one after the other: the next after
 * (*d, *rank), where *d counts nodes onwards from the own one. False behind the last. Start with
 * *d = 0. */
static bool next_served(const struct nodes *nodes, uint32_t server, uint32_t *d, uint32_t *rank)
{
    uint32_t to = *rank + nodes->size;
    while (*d == 0 || to >= nodes->first[node_at(nodes, *d) + 1]) {
        if (++*d == nodes->count) {
            return false;
        }
        to = nodes->first[node_at(nodes, *d)] + server;
    }
    *rank = to;
    return true;
}

static void send_to_servers(const struct builder *b)
{
    const struct nodes *nodes = &b->nodes;
    send_lane(b, false);
    for (uint32_t i = 1; i < nodes->size; i++) {
        uint32_t server = local_at(nodes, i), d = 0, to = server;
        sched_send_ref(b->prog, server, ref_in(chunk_of(b, to)));
        while (next_served(nodes, server - nodes->first[nodes->mine], &d, &to)) {
            sched_send_ref(b->prog, server, ref_in(chunk_of(b, to)));
        }
    }
    uint32_t own = chunk_of(b, b->prog->rank);
    sched_copy(b->prog, ref_out(own), ref_in(own));
    for (uint32_t i = 1; i < nodes->size; i++) {
        uint32_t from = local_at(nodes, -(int64_t)i);
        sched_recv(b->prog, from, chunk_of(b, from));
    }
}

/* What the node has for one rank of another: with one piece per block it is collected in scratch
 * (group `s` of a plane or the next) and goes as one message, else piece by piece. */
static void serve(const struct builder *b, uint32_t s, uint32_t to)
{
    const struct nodes *nodes = &b->nodes;
    uint32_t groups = b->args->nranks / nodes->size, first = s % groups * nodes->size;
    bool at_once = pieces(b->args) > 1 || nodes->size == 1;
    for (uint32_t i = 0; i < nodes->size; i++) {
        struct ref slot = ref_scratch(s / groups, chunk_of(b, first + i));
        send_lane(b, false);
        if (i != nodes->local) {
            sched_recv_ref(b->prog, nodes->first[nodes->mine] + i, slot);
        } else if (!at_once) {
            sched_copy(b->prog, slot, ref_in(chunk_of(b, to)));
        } else {
            slot = ref_in(chunk_of(b, to));
        }
        send_lane(b, true);
        if (at_once) {
            sched_send_ref(b->prog, to, slot);
        }
    }
    if (!at_once) {
        sched_send_ref(b->prog, to, ref_scratch(s / groups, first));
        sched_span(b->prog, nodes->size);
    }
}

static void receive_from_servers(const struct builder *b)
{
    const struct nodes *nodes = &b->nodes;
    uint32_t base = 2 * (b->sub / b->args->parts) + 1;
    sched_lane(b->prog, (uint16_t)base, (uint16_t)base);
    for (uint32_t d = 1; d < nodes->count; d++) {
        uint32_t k = node_at(nodes, -(int64_t)d), server = stand_in(nodes, k, nodes->local);
        uint32_t size = nodes->first[k + 1] - nodes->first[k];
        uint32_t count = pieces(b->args) > 1 ? 1 : size;
        for (uint32_t i = 0; i < size; i += count) {
            sched_recv(b->prog, server, chunk_of(b, nodes->first[k] + i));
            sched_span(b->prog, count);
        }
    }
}

void hierarchical_alltoall(struct prog *prog, const struct algo_args *args, uint32_t rank)
{
    struct builder b = {.prog = prog, .args = args};
    nodes_init(&b.nodes, args, rank);
    for (; b.sub < pieces(args); b.sub++) {
        uint32_t d = 0, to = rank, s = 0;
        send_to_servers(&b);
        for (; next_served(&b.nodes, b.nodes.local, &d, &to); s++) {
            serve(&b, s, to);
        }
        receive_from_servers(&b);
    }
    nodes_release(&b.nodes);
}
